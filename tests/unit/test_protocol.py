"""The evaluation of both directions: query and database modality, floors, curves, JSON."""

import json

import numpy as np
import pytest

from multibit.codes import Codes
from multibit.codes.items import DIRECTIONS, CodedItems
from multibit.errors import ConfigError, DataError
from multibit.evaluation.floors import popularity_floor, random_floor
from multibit.evaluation.metric import MAP, MAP_BEST_TIES, MAP_TIE_AVERAGED, MAP_WORST_TIES, PAIRS, PRECISION
from multibit.evaluation.metrics import average_precision, count_rankings, precision_at, precision_recall
from multibit.evaluation.pair_metrics import WITH_DATABASE, pair_metrics
from multibit.evaluation.protocol import evaluate, selection_score

LENGTHS = (4, 8, 12)


def coded(items, seed, labels=5, bits=12):
    rng = np.random.default_rng(seed)
    image, text = (Codes.from_bits(rng.integers(0, 2, size=(items, bits))) for _ in range(2))
    multi_hot = (rng.random((items, labels)) < 0.3).astype(np.uint8)
    multi_hot[:, 0] |= ~multi_hot.any(axis=1)  # every item has a label
    return CodedItems(image, text, multi_hot)


@pytest.fixture
def query():
    return coded(7, seed=1)


@pytest.fixture
def database():
    return coded(50, seed=2)


@pytest.fixture
def training():
    return coded(30, seed=3).labels


@pytest.fixture
def partly_undefined():
    """Queries of which two have no relevant item, and their database."""
    database = coded(50, seed=2)
    database.labels[:, 4] = 0
    query = coded(5, seed=1)
    query.labels[1:3] = [[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]
    return query, database


def test_each_direction_has_queries_of_one_modality_and_a_database_of_the_other(query, database, training):
    evaluation = evaluate(query, database, LENGTHS, training_labels=training)
    sides = {"i2t": (query.image, database.text), "t2i": (query.text, database.image)}
    for (direction, codes), bits in [(side, bits) for side in sides.items() for bits in LENGTHS]:
        arguments = *codes, query.labels, database.labels, bits
        stable, averaged = average_precision(*arguments), average_precision(*arguments, ties="average")
        np.testing.assert_array_equal(evaluation.values[MAP, direction, bits], stable)
        np.testing.assert_array_equal(evaluation.values[MAP_TIE_AVERAGED, direction, bits], averaged)
        curve, expected = evaluation.curves[direction, bits], precision_recall(*arguments)
        np.testing.assert_array_equal(curve.radius, expected.radius)
        np.testing.assert_array_equal(curve.precision, expected.precision)
        np.testing.assert_array_equal(curve.recall, expected.recall)
        assert evaluation.mean(MAP, direction, bits) == pytest.approx(stable.mean())
        assert evaluation.of("mAP", direction, bits) is evaluation.values[MAP, direction, bits]
    assert len(evaluation.values) == (4 + 2 * len(PAIRS)) * 2 * 3
    assert len(evaluation.curves) == 2 * 3


def test_a_perfect_direction_is_distinguished_from_a_useless_one():
    labels = np.eye(4, dtype=np.uint8)
    own = Codes.from_bits(labels)
    opposite = Codes.from_bits(1 - labels)
    query, database = CodedItems(own, own, labels), CodedItems(opposite, own, labels)
    evaluation = evaluate(query, database, [4], training_labels=labels)
    assert evaluation.mean(MAP, "i2t", 4) == 1
    assert evaluation.mean(MAP, "t2i", 4) == pytest.approx(1 / 4)


@pytest.mark.parametrize("at", [1, 10, 80])
def test_a_rank_cutoff_adds_two_metrics(query, database, training, at):
    evaluation = evaluate(query, database, [8], training_labels=training, at=at)
    arguments = query.text, database.image, query.labels, database.labels
    np.testing.assert_array_equal(evaluation.values[MAP.at(at), "t2i", 8], average_precision(*arguments, bits=8, at=at))
    np.testing.assert_array_equal(evaluation.values[PRECISION.at(at), "t2i", 8], precision_at(*arguments, at, 8))
    np.testing.assert_array_equal(evaluation.values[MAP, "t2i", 8], average_precision(*arguments, bits=8))
    assert {metric for metric, _, _ in evaluation.values} == {
        MAP, MAP_TIE_AVERAGED, MAP_BEST_TIES, MAP_WORST_TIES, MAP.at(at), PRECISION.at(at),
        *PAIRS, *pair_metrics(WITH_DATABASE),
    }  # fmt: skip


def test_the_random_floor_is_the_mean_over_random_orders(query, database):
    rng = np.random.default_rng(0)
    floor = random_floor(count_rankings(query.image, database.text, query.labels, database.labels, 8))
    relevant = (query.labels[:, None] & database.labels[None]).any(axis=2)
    ranks = np.arange(1, len(database) + 1)
    for i, row in enumerate(relevant):
        hits = np.array([row[rng.permutation(len(row))] for _ in range(4000)])
        values = (hits * np.cumsum(hits, axis=1) / ranks).sum(axis=1) / row.sum()
        assert floor[i] == pytest.approx(values.mean(), abs=5 * values.std() / len(values) ** 0.5)


def test_the_popularity_floor_by_hand():
    training = [[1, 0, 0], [1, 1, 0], [1, 1, 0], [0, 0, 1]]  # frequencies 3, 2, 1
    database = np.array([[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1, 1]], np.uint8)  # popularity 1, 2, 3, 3
    query = np.array([[0, 0, 1], [0, 1, 0], [1, 0, 0]], np.uint8)  # the order is rows 2, 3, 1, 0
    expected = [(1 / 2 + 2 / 4) / 2, (1 / 2 + 2 / 3) / 2, 1]
    np.testing.assert_allclose(popularity_floor(query, database, training), expected)


def test_floors_come_with_the_evaluation(query, database, training):
    evaluation = evaluate(query, database, [8], training_labels=training)
    equal = Codes.from_bits(np.zeros((len(query), 1))), Codes.from_bits(np.zeros((len(database), 1)))
    expected = average_precision(*equal, query.labels, database.labels, ties="average")
    np.testing.assert_array_equal(evaluation.floors["random"], expected)
    np.testing.assert_array_equal(
        evaluation.floors["popularity"], popularity_floor(query.labels, database.labels, training)
    )
    assert evaluation.floor("random") == pytest.approx(evaluation.floors["random"].mean())


def test_queries_without_relevant_item_are_counted_and_left_out_of_the_means(partly_undefined, training):
    evaluation = evaluate(*partly_undefined, LENGTHS, training_labels=training, at=5)
    defined = [0, 3, 4]
    assert evaluation.undefined == 2
    for key in [(MAP, "i2t", 4), (MAP_TIE_AVERAGED, "t2i", 12), (MAP.at(5), "t2i", 8), (PRECISION.at(5), "i2t", 8)]:
        values = evaluation.values[key]
        np.testing.assert_array_equal(np.isnan(values), [False, True, True, False, False])
        assert evaluation.mean(*key) == pytest.approx(values[defined].mean())
    assert evaluation.floor("popularity") == pytest.approx(evaluation.floors["popularity"][defined].mean())


@pytest.mark.parametrize("key", [("mAP", "i2t", 99), ("mAP@7", "i2t", 12), (MAP, "image-to-text", 12)])
def test_values_that_were_not_measured_are_refused_with_those_that_were(query, database, training, key):
    evaluation = evaluate(query, database, (4, 12), training_labels=training)
    with pytest.raises(ConfigError) as caught:
        evaluation.mean(*key)
    assert caught.value.option == "metric"
    assert all(known in caught.value.problem for known in (str(key[0]), str(key[2]), "mAP worst ties", "i2t", "4, 12"))


def test_an_unknown_metric_or_floor_is_refused(query, database, training):
    evaluation = evaluate(query, database, (4, 12), training_labels=training)
    with pytest.raises(ConfigError) as caught:
        evaluation.mean("map", "i2t", 12)
    assert caught.value.option == "metric" and "'map'" in caught.value.problem
    with pytest.raises(ConfigError) as caught:
        evaluation.floor("luck")
    assert caught.value.option == "name"
    assert all(name in caught.value.problem for name in ("'luck'", "random", "popularity"))


def test_the_result_is_plain_json_without_nan(partly_undefined, training):
    evaluation = evaluate(*partly_undefined, LENGTHS, training_labels=training, protocol="unseen items", at=5)
    read = json.loads(json.dumps(evaluation.to_dict(), allow_nan=False))
    assert (read["protocol"], read["queries"], read["database"]) == ("unseen items", 5, 50)
    assert read["queries_without_relevant_item"] == 2
    assert read["floors"] == {name: evaluation.floor(name) for name in ("random", "popularity")}
    assert len(read["means"]) == (6 + 2 * len(PAIRS)) * 2 * 3
    for mean in read["means"]:
        assert mean["value"] == evaluation.mean(mean["metric"], mean["direction"], mean["bits"])
    assert [(curve["direction"], curve["bits"]) for curve in read["curves"]] == list(evaluation.curves)


def test_a_radius_that_contains_no_item_is_null_in_json():
    labels = np.ones((2, 1), np.uint8)
    near, far = Codes.from_bits(np.zeros((2, 3))), Codes.from_bits([[1, 1, 0], [1, 1, 1]])
    evaluation = evaluate(CodedItems(near, near, labels), CodedItems(far, far, labels), [3], training_labels=labels)
    curve = evaluation.to_dict()["curves"][0]
    assert curve["radius"] == [0, 1, 2, 3]
    assert curve["precision"] == [None, None, 1, 1]
    assert curve["recall"] == [0, 0, 0.5, 1]


def test_the_selection_score_is_the_mean_over_directions_and_lengths(query, database, training):
    evaluation = evaluate(query, database, LENGTHS, training_labels=training)
    means = [evaluation.mean("mAP", direction, bits) for direction in ("i2t", "t2i") for bits in LENGTHS]
    assert selection_score(query, database, LENGTHS) == pytest.approx(np.mean(means))


def test_the_selection_score_leaves_out_undefined_queries(partly_undefined):
    query, database = partly_undefined
    values = [
        average_precision(query.codes(asked), database.codes(searched), query.labels, database.labels, 8)
        for asked, searched in DIRECTIONS.values()
    ]
    assert selection_score(query, database, [8]) == np.nanmean(values)


def test_taken_items_keep_codes_and_labels_together(database):
    rows = np.array([3, 3, 0])
    taken = database.take(rows)
    assert taken.codes("image") == database.image.take(rows)
    assert taken.codes("text") == database.text.take(rows)
    np.testing.assert_array_equal(taken.labels, database.labels[rows])
    assert len(taken) == 3


def test_counts_of_coded_items_must_agree(database):
    with pytest.raises(DataError) as caught:
        CodedItems(database.image, database.text.take([0, 1]), database.labels)
    assert "50 image codes, 2 text codes" in caught.value.problem


def test_an_empty_side_is_refused(query, database, training):
    nothing = database.take(np.zeros(0, np.int64))
    for sides, field, numbers in (
        ((query, nothing), "database", ("7 queries", "0 database items")),
        ((query.take([]), database), "query", ("0 queries", "50 database items")),
    ):
        with pytest.raises(DataError) as caught:
            evaluate(*sides, LENGTHS, training_labels=training)
        assert caught.value.field == field
        assert all(number in caught.value.problem for number in numbers)


def test_queries_that_share_no_label_with_the_database_are_refused(query, database, training):
    unlabelled = CodedItems(database.image, database.text, np.zeros_like(database.labels))
    with pytest.raises(DataError) as caught:
        evaluate(query, unlabelled, LENGTHS, training_labels=training, protocol="unseen items")
    assert caught.value.field == "labels"
    assert all(part in caught.value.problem for part in ("7 queries", "unseen items"))


def test_a_length_past_the_codes_is_refused(query, database, training):
    with pytest.raises(DataError) as caught:
        evaluate(query, database, [8, 13], training_labels=training)
    assert "13" in caught.value.problem and "1 to 12" in caught.value.problem


def test_a_rank_cutoff_below_one_is_refused(query, database, training):
    with pytest.raises(ConfigError) as caught:
        evaluate(query, database, LENGTHS, training_labels=training, at=0)
    assert caught.value.option == "at" and "got 0" in caught.value.problem


def test_training_labels_of_other_columns_are_refused(query, database):
    with pytest.raises(DataError) as caught:
        evaluate(query, database, LENGTHS, training_labels=np.ones((30, 4)))
    assert caught.value.field == "training labels"
    assert all(number in caught.value.problem for number in ("4 columns", "5"))
