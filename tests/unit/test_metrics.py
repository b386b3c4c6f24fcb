"""Ranking metrics against textbook loops, every tie pattern, and scikit-learn."""

import itertools
import math
import warnings

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from multibit.codes import Codes
from multibit.errors import ConfigError, DataError, UndefinedQueryWarning
from multibit.evaluation.metrics import (
    average_precision,
    count_rankings,
    mean_average_precision,
    precision_at,
    precision_recall,
)


def ap_by_loop(distances, relevant, at=None):
    """Textbook AP@at of the stable ranking; NaN without a relevant item."""
    order = np.argsort(distances, kind="stable")
    found, total = 0, 0.0
    for rank, row in enumerate(order[:at], start=1):
        if relevant[row]:
            found += 1
            total += found / rank
    possible = min(sum(relevant), len(order) if at is None else at)
    return total / possible if possible else math.nan


def ap_of_many(order, relevant, at):
    """AP@at (Q,) of one order of the items for many relevance patterns (Q, N)."""
    hits = relevant[:, order]
    precision = np.cumsum(hits, axis=1) / np.arange(1, len(order) + 1)
    return (precision * hits)[:, :at].sum(axis=1) / np.minimum(relevant.sum(axis=1), at)


def at_distances(distances, length):
    """A query and a database of codes that lie at the given distances from it."""
    bits = np.arange(length) >= np.asarray(distances)[:, None]
    return Codes.from_bits(np.ones((1, length))), Codes.from_bits(bits)


def ranking(relevant, distances=None):
    """The arguments of a metric for one query: items without ties, or at the given distances."""
    distances = range(len(relevant)) if distances is None else distances
    query, database = at_distances(distances, max(1, *distances))
    return query, database, [[1]], np.array(relevant)[:, None]


def tied_data(queries=6, items=60, bits=3, labels=4, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 2, size=(queries, bits)), rng.integers(0, 2, size=(items, bits))
    query_labels, database_labels = rng.random((queries, labels)) < 0.4, rng.random((items, labels)) < 0.3
    query_labels[:, 0] = True
    database_labels[0, 0] = True
    return {
        "arguments": (Codes.from_bits(a), Codes.from_bits(b), query_labels, database_labels),
        "distances": (a[:, None] != b[None]).sum(axis=2),
        "relevant": (query_labels[:, None] & database_labels[None]).any(axis=2),
    }


@pytest.mark.parametrize(
    ("relevant", "at", "expected"),
    [
        ([1, 0, 1, 1, 0], None, (1 + 2 / 3 + 3 / 4) / 3),
        ([1, 0, 1, 1, 0], 1, 1.0),
        ([1, 0, 1, 1, 0], 2, 1 / 2),  # two of the three could be found
        ([1, 0, 1, 1, 0], 3, (1 + 2 / 3) / 3),
        ([1, 0, 1, 1, 0], 5, (1 + 2 / 3 + 3 / 4) / 3),
        ([1, 0, 1, 1, 0], 99, (1 + 2 / 3 + 3 / 4) / 3),  # more ranks than items
        ([0, 1, 0, 0], 3, 1 / 2),  # more ranks than relevant items
        ([0, 0, 0, 1], 3, 0.0),  # found too late
        ([0, 0, 0, 1], None, 1 / 4),
        ([1, 1, 1], None, 1.0),
        ([1], None, 1.0),
    ],
)
@pytest.mark.parametrize("ties", ["stable", "average"])
def test_average_precision_by_hand(relevant, at, expected, ties):
    assert average_precision(*ranking(relevant), ties=ties, at=at) == pytest.approx([expected])


@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("at", [None, 1, 2, 5, 20, 59, 60, 61, 1000])
def test_average_precision_of_tied_rankings_equals_the_loop(bits, at):
    data = tied_data()
    a, b, *_ = data["arguments"]
    distances = (a.prefix(bits).to_bits()[:, None] != b.prefix(bits).to_bits()[None]).sum(axis=2)
    expected = [ap_by_loop(d, r, at) for d, r in zip(distances, data["relevant"], strict=True)]
    np.testing.assert_allclose(average_precision(*data["arguments"], bits, at=at), expected, rtol=1e-12)


@pytest.mark.parametrize("at", [None, 1, 2, 3, 4, 5])
def test_both_tie_rules_hold_for_every_tie_pattern_and_every_relevance_of_four_items(at):
    """Four items at 0..3 bits give every pattern of ties; one label per item, so queries give every relevance."""
    relevant = np.array(list(itertools.product([0, 1], repeat=4)))[1:]
    cut = 4 if at is None else at
    for distances in itertools.product(range(4), repeat=4):
        query, database = at_distances(distances, 3)
        asked = Codes.concatenate([query] * len(relevant))
        stable = average_precision(asked, database, relevant, np.eye(4), at=at)
        expected = ap_of_many(np.argsort(distances, kind="stable"), relevant, cut)
        np.testing.assert_allclose(stable, expected, rtol=1e-12)
        orders = [
            order for order in itertools.permutations(range(4)) if (np.diff(np.take(distances, order)) >= 0).all()
        ]
        averaged = average_precision(asked, database, relevant, np.eye(4), ties="average", at=at)
        expected = np.mean([ap_of_many(list(order), relevant, cut) for order in orders], axis=0)
        np.testing.assert_allclose(averaged, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("at", [None, 3, 25, 70])
def test_tie_averaged_is_the_mean_over_random_tie_orders(at):
    data, orders = tied_data(), 4000
    averaged = average_precision(*data["arguments"], ties="average", at=at)
    rng = np.random.default_rng(1)
    for i, (distances, relevant) in enumerate(zip(data["distances"], data["relevant"], strict=True)):
        cut = len(distances) if at is None else at
        shuffled = np.lexsort([rng.random((orders, len(distances))), np.tile(distances, (orders, 1))], axis=1)
        values = np.array([ap_of_many(order, relevant[None], cut)[0] for order in shuffled])
        assert averaged[i] == pytest.approx(values.mean(), abs=5 * values.std() / orders**0.5)


def test_tie_averaged_of_a_large_database_of_equal_codes_is_the_exact_expectation():
    items, some = 50_000, 17_000
    labels = np.zeros((items, 1))
    labels[:some] = 1
    query, database = at_distances(np.zeros(items, int), 1)
    got = average_precision(query, database, [[1]], labels, ties="average")
    slope = (some - 1) / (items - 1)
    expected = math.fsum((1 + slope * (place - 1)) / place for place in range(1, items + 1)) / items
    assert got == pytest.approx([expected], rel=1e-12)


def test_without_ties_both_rules_agree_with_scikit_learn():
    """Its score groups ties and calls a query without relevant item 0, so only rankings free of both compare."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        distances, relevant = rng.permutation(100), rng.random(100) < rng.uniform(0.02, 0.9)
        relevant[rng.integers(100)] = True
        expected = average_precision_score(relevant, -distances)
        for ties in ("stable", "average"):
            assert average_precision(*ranking(relevant, distances), ties=ties) == pytest.approx([expected], rel=1e-12)


@pytest.mark.parametrize("at", [None, 4, 30])
def test_stable_lies_between_the_worst_and_the_best_tie_order(at):
    data = tied_data(bits=2)
    stable = average_precision(*data["arguments"], at=at)
    averaged = average_precision(*data["arguments"], ties="average", at=at)
    for i, (distances, relevant) in enumerate(zip(data["distances"], data["relevant"], strict=True)):
        cut = len(distances) if at is None else at
        best = ap_of_many(np.lexsort([~relevant, distances]), relevant[None], cut)[0]
        worst = ap_of_many(np.lexsort([relevant, distances]), relevant[None], cut)[0]
        assert worst < best
        assert worst <= stable[i] <= best
        assert worst < averaged[i] < best


def test_a_query_without_relevant_item_has_no_average_precision():
    query, database = at_distances([0, 1, 2], 2)
    asked = Codes.concatenate([query] * 3)
    for ties in ("stable", "average"):
        values = average_precision(asked, database, [[1, 0, 0], [0, 0, 1], [0, 0, 0]], [[1, 0, 0]] * 3, ties=ties)
        np.testing.assert_array_equal(np.isnan(values), [False, True, True])


def test_the_mean_leaves_undefined_queries_out_and_counts_them():
    query, database = at_distances([0, 1, 2, 3], 3)
    asked = Codes.concatenate([query] * 3)
    labels = [[1, 0], [0, 1], [0, 0]], [[0, 0], [1, 0], [0, 0], [1, 0]]
    with pytest.warns(UndefinedQueryWarning) as caught:
        assert mean_average_precision(asked, database, *labels) == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert caught[0].filename == __file__ and "2 of 3" in str(caught[0].message)


def test_the_mean_of_defined_queries_comes_without_a_warning():
    data = tied_data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = mean_average_precision(*data["arguments"], 2, "average", 7)
    assert got == pytest.approx(average_precision(*data["arguments"], 2, "average", 7).mean())


@pytest.mark.parametrize("items", [0, 3])
def test_the_mean_is_undefined_when_no_query_has_a_relevant_item(items):
    codes = Codes.from_bits(np.zeros((items, 4)))
    query = Codes.from_bits(np.zeros((2, 4)))
    with pytest.raises(DataError) as caught:
        mean_average_precision(query, codes, np.zeros((2, 5)), np.ones((items, 5)))
    assert caught.value.field == "labels" and "2 queries" in caught.value.problem


@pytest.mark.parametrize("k", [1, 2, 3, 5, 59, 60, 61, 200])
def test_precision_at_k_counts_the_first_k(k):
    data = tied_data()
    expected = []
    for distances, relevant in zip(data["distances"], data["relevant"], strict=True):
        first = np.argsort(distances, kind="stable")[:k]
        expected.append(sum(relevant[row] for row in first) / k)
    np.testing.assert_allclose(precision_at(*data["arguments"], k), expected, rtol=1e-12)


def test_precision_at_k_by_hand():
    got = [precision_at(*ranking([1, 0, 1, 1]), k)[0] for k in (1, 2, 3, 4, 8)]
    assert got == pytest.approx([1, 1 / 2, 2 / 3, 3 / 4, 3 / 8])


def test_precision_at_k_is_undefined_for_a_query_without_relevant_item():
    assert np.isnan(precision_at(*ranking([0, 0, 0]), 2)).tolist() == [True]
    assert precision_at(*ranking([0, 0, 1]), 2).tolist() == [0]


def test_precision_at_k_ranks_at_the_prefix():
    query = Codes.from_bits([[1, 1, 1]])
    database = Codes.from_bits([[1, 0, 0], [0, 1, 1]])
    assert precision_at(query, database, [[1]], [[1], [0]], 1).tolist() == [0]
    assert precision_at(query, database, [[1]], [[1], [0]], 1, bits=1).tolist() == [1]


def test_precision_and_recall_by_hand():
    points = precision_recall(*ranking([1, 0, 1, 0, 0], distances=[1, 1, 3, 3, 4]))
    assert points.radius.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(points.precision, [np.nan, 1 / 2, 1 / 2, 2 / 4, 2 / 5])
    np.testing.assert_allclose(points.recall, [0, 1 / 2, 1 / 2, 1, 1])


@pytest.mark.parametrize("bits", [1, 3, 9, None])
def test_precision_and_recall_pool_all_pairs_within_a_radius(bits):
    data = tied_data(bits=9, items=40)
    a, b, *_ = data["arguments"]
    length = 9 if bits is None else bits
    distances = (a.to_bits()[:, None, :length] != b.to_bits()[None, :, :length]).sum(axis=2)
    points = precision_recall(*data["arguments"], bits)
    assert points.radius.tolist() == list(range(length + 1))
    for radius in points.radius:
        inside = distances <= radius
        correct = (inside & data["relevant"]).sum()
        assert points.recall[radius] == correct / data["relevant"].sum()
        expected = correct / inside.sum() if inside.any() else math.nan
        assert points.precision[radius] == pytest.approx(expected, nan_ok=True)


def test_recall_is_undefined_without_any_relevant_pair():
    with pytest.raises(DataError) as caught:
        precision_recall(*ranking([0, 0]))
    assert caught.value.field == "labels" and "recall" in caught.value.problem


@pytest.mark.parametrize("labels", [1, 2, 63, 64, 65, 128, 129, 200])
def test_any_shared_label_makes_an_item_relevant_for_any_number_of_columns(labels):
    query, database = at_distances(np.arange(labels), labels)
    asked = Codes.concatenate([query] * labels)
    values = average_precision(asked, database, np.eye(labels), np.eye(labels))
    np.testing.assert_allclose(values, 1 / np.arange(1, labels + 1))


@pytest.mark.parametrize("labels", [70, 130])
def test_many_labels_give_the_values_of_the_loop(labels):
    data = tied_data(labels=labels)
    sparse = np.random.default_rng(2).random((60, labels)) < 0.01
    a, b, query_labels, _ = data["arguments"]
    relevant = (query_labels[:, None] & sparse[None]).any(axis=2)
    expected = [ap_by_loop(d, r) for d, r in zip(data["distances"], relevant, strict=True)]
    np.testing.assert_allclose(average_precision(a, b, query_labels, sparse), expected, rtol=1e-12)


@pytest.mark.parametrize("threads", [1, 2, 5, None])
def test_any_number_of_threads_gives_the_same_values(threads):
    data = tied_data(queries=11)
    for ties in ("stable", "average"):
        np.testing.assert_array_equal(
            average_precision(*data["arguments"], ties=ties, threads=threads),
            average_precision(*data["arguments"], ties=ties, threads=1),
        )
    np.testing.assert_array_equal(
        precision_at(*data["arguments"], 7, threads=threads), precision_at(*data["arguments"], 7, threads=1)
    )


def test_counts_add_up_to_the_database_and_to_the_relevant_items():
    data = tied_data()
    counts = count_rankings(*data["arguments"], at=10)
    for i, (distances, relevant) in enumerate(zip(data["distances"], data["relevant"], strict=True)):
        np.testing.assert_array_equal(counts.total[i], np.bincount(distances, minlength=4))
        np.testing.assert_array_equal(counts.relevant[i], np.bincount(distances[relevant], minlength=4))
        assert counts.hits[i] == relevant[np.argsort(distances, kind="stable")[:10]].sum()


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float32, list])
def test_labels_of_any_type_give_the_same_values(kind):
    a, b, query_labels, database_labels = tied_data()["arguments"]
    given = [labels.tolist() if kind is list else labels.astype(kind) for labels in (query_labels, database_labels)]
    np.testing.assert_array_equal(
        average_precision(a, b, *given), average_precision(a, b, query_labels, database_labels)
    )


def test_an_unknown_tie_rule_is_refused():
    with pytest.raises(ConfigError) as caught:
        average_precision(*ranking([1, 0]), ties="luck")
    assert caught.value.option == "ties" and "'luck'" in caught.value.problem
    assert all(rule in caught.value.problem for rule in ("stable", "average", "best", "worst"))


@pytest.mark.parametrize("at", [0, -1])
def test_a_rank_cutoff_below_one_is_refused(at):
    for option, measure in (("at", average_precision), ("k", precision_at)):
        with pytest.raises(ConfigError) as caught:
            measure(*ranking([1, 0]), **{option: at})
        assert caught.value.option == option and f"got {at}" in caught.value.problem


@pytest.mark.parametrize(
    ("query_labels", "database_labels", "field", "numbers"),
    [
        ([[1], [1]], [[1], [0]], "query labels", ("1 rows", "(2, 1)")),
        ([[1]], [[1]], "database labels", ("2 rows", "(1, 1)")),
        ([1], [[1], [0]], "query labels", ("1 rows", "(1,)")),
        ([[2]], [[1], [0]], "query labels", ("[0, 0] is 2",)),
        ([[1]], [[1], [np.nan]], "database labels", ("[1, 0] is nan",)),
        (np.ones((1, 64)), np.ones((2, 65)), "labels", ("64", "65")),
    ],
)
def test_labels_that_do_not_fit_are_refused(query_labels, database_labels, field, numbers):
    query, database, *_ = ranking([1, 0])
    with pytest.raises(DataError) as caught:
        average_precision(query, database, query_labels, database_labels)
    assert caught.value.field == field
    assert all(number in caught.value.problem for number in numbers)


def test_label_columns_must_be_equal_on_both_sides():
    query, database, *_ = ranking([1, 0])
    with pytest.raises(DataError) as caught:
        average_precision(query, database, np.ones((1, 3)), np.ones((2, 5)))
    assert caught.value.field == "labels"
    assert all(number in caught.value.problem for number in ("3", "5"))


def test_codes_of_two_lengths_need_a_common_prefix():
    query, database = Codes.from_bits([[1, 0, 1]]), Codes.from_bits([[1, 0]])
    with pytest.raises(DataError) as caught:
        average_precision(query, database, [[1]], [[1]])
    assert "3 and 2 bits" in caught.value.problem
    assert average_precision(query, database, [[1]], [[1]], bits=2).tolist() == [1]
