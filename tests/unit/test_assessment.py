"""All measurements of a run as one value: each against its definition, and the warnings."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from commands import Words
from conftest import plant
from multibit import Config, FeatureStore, Run, Split, evaluate, measurement
from multibit.errors import MismatchError, MissingExtraError
from multibit.evaluation import cost
from multibit.evaluation.metric import COLLISION, INVERSION, MAP, MAP_ASYMMETRIC, NDCG, PAIRS, PRECISION, TAU_B
from multibit.evaluation.pair_metrics import CONTENT
from multibit.evaluation.ranking import Ranking
from multibit.evaluation.relevance import GradedRelevance, LabelSetRelevance
from multibit.evaluation.resolution import pool_resolution
from multibit.features.recipe import EncoderRecipe, Recipe
from multibit.hashing.encode import encode
from multibit.measurement import assess_run, measure

pytestmark = pytest.mark.slow  # models are trained and assessed

ITEMS = 200
CONFIG = Config(epochs=8, lengths=(8, 16), scales=3, hidden=64, dimension=16, learning_rate=0.01)
SIDES = {"i2t": ("image", "text"), "t2i": ("text", "image")}
NAMES = [f"topic {i}" for i in range(8)]


@pytest.fixture(scope="module", autouse=True)
def quick():
    """A small text encoder, and few repetitions of timed calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "load_text_encoder", Words)
        patch.setattr(cost, "TIMED", 3)
        yield


def split_of(seed=1):
    return Split.draw(ITEMS, query=20, train=60, validation=10, seed=seed)


def train_on(folder, data, config=CONFIG, split=None):
    folder.mkdir(exist_ok=True)
    np.savez(folder / "ready.npz", **data)
    store = FeatureStore.open(folder / "ready.npz")
    return Run.create(folder / "run", store, split or split_of(), config), store


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_on(tmp_path_factory.mktemp("planted"), {**plant(ITEMS), "label_names": NAMES})


def assess(run, store, anchor=None, **options):
    return assess_run(measure(run, store, **options), store, None if anchor is None else measure(anchor, store))


@pytest.fixture(scope="module")
def found(trained):
    return assess(*trained)


@pytest.fixture(scope="module")
def coded(trained):
    run, store = trained
    return [encode(run.model, store.take(rows)) for rows in (run.split.query, run.split.database)]


def bits_of(coded, direction, length=None):
    asked, searched = SIDES[direction]
    return coded[0].codes(asked).to_bits()[:, :length], coded[1].codes(searched).to_bits()[:, :length]


def distances(coded, direction, length=None):
    query, database = bits_of(coded, direction, length)
    return (query[:, None] != database[None]).sum(axis=2)


def changed(run, change):
    """The run with other weights of its heads."""
    model = copy.deepcopy(run.model)
    with torch.no_grad():
        change(model.heads)
    return replace(run, model=model)


# What is measured


PAIR_NAMES = {metric.name for metric in PAIRS}


def test_evaluations_are_those_of_the_run_with_both_references(trained, found):
    run, store = trained
    labels = store.dataset.labels[run.split.database]
    graded = [GradedRelevance.idf(labels), GradedRelevance.semantic(NAMES, Words().encode)]
    query = encode(run.model, store.take(run.split.query))
    assert len(found.evaluations) == 2
    for one, rows in zip(found.evaluations, (run.split.database, run.split.unseen), strict=True):
        database = encode(run.model, store.take(rows))
        training = store.dataset.labels[run.split.train]
        other = evaluate(query, database, (8, 16), training_labels=training, graded=graded)
        whole, of_pairs = one is found.evaluations[0], [metric for metric in one.metrics if metric.name in PAIR_NAMES]
        assert bool(of_pairs) == whole  # measured once, against the whole database
        ours, theirs = (set(each.metrics) - {NDCG.under(CONTENT)} for each in (one, other))
        assert ours - {*of_pairs} == {*theirs, MAP_ASYMMETRIC} - {
            metric for metric in theirs if metric.name in PAIR_NAMES
        }
        for key, values in other.values.items():
            if key[0].name in PAIR_NAMES and not whole:
                continue
            np.testing.assert_array_equal(one.values[key], values)
    assert {NDCG.under("IDF"), INVERSION.under("label names")} <= set(found.evaluations[0].metrics)


def test_earlier_measurements_are_kept_and_not_repeated(trained, found, monkeypatch):
    run, store = trained
    measured = measure(run, store, at=7)
    monkeypatch.setattr(measurement, "encode_store", lambda *_, **__: pytest.fail("coded twice"))
    assessed = assess_run(measured, store)
    for one, before, alone in zip(assessed.evaluations, measured.evaluations, found.evaluations, strict=True):
        assert {MAP.at(7), PRECISION.at(7)} | set(alone.metrics) == set(one.metrics)
        assert all(one.values[key] is values for key, values in before.values.items())
        key = TAU_B.under("IDF"), "i2t", 8
        np.testing.assert_array_equal(one.values[key], alone.values[key])


def test_map_asymmetric_keeps_the_real_values_of_the_query(trained, found):
    """Each query and length on its own: sort by inner product, ties by row."""
    run, store = trained
    query, relaxed = store.take(run.split.query), {}
    relaxed["image"], relaxed["text"] = (
        run.model.encode(query.image, "image"),
        run.model.encode(query.mean_text, "text"),
    )
    for evaluation, rows in zip(found.evaluations, (run.split.database, run.split.unseen), strict=True):
        database = encode(run.model, store.take(rows))
        relevant = query.labels.astype(int) @ store.dataset.labels[rows].T > 0
        for (direction, (asked, searched)), bits in itertools.product(SIDES.items(), (8, 16)):
            signs = database.codes(searched).to_signs()[:, :bits].astype(float)
            expected = []
            for values, wanted in zip(relaxed[asked][:, :bits], relevant, strict=True):
                score = [sum(float(v) * s for v, s in zip(values, row, strict=True)) for row in signs]
                ranked = sorted(range(len(rows)), key=lambda i: (-round(score[i], 6), i))
                places = [place for place, i in enumerate(ranked, start=1) if wanted[i]]
                expected.append(np.mean([hits / place for hits, place in enumerate(places, start=1)]))
            np.testing.assert_allclose(evaluation.values[MAP_ASYMMETRIC, direction, bits], expected)


def test_rankings_of_both_directions_are_compared_over_all_pairs_of_lengths(coded, found):
    assert list(found.agreement) == ["i2t", "t2i"]
    for direction, pairs in found.agreement.items():
        assert [pair.lengths for pair in pairs] == [(8, 16)]
        ranked = [
            np.argsort(np.argsort(distances(coded, direction, bits), axis=1, kind="stable"), axis=1) for bits in (8, 16)
        ]
        moved = np.abs(ranked[1] - ranked[0]).mean(axis=1) / (len(coded[1]) - 1)
        np.testing.assert_allclose(pairs[0].displacement, moved)


def test_quantization_is_of_the_relaxed_codes_of_each_side(trained, found):
    run, store = trained
    assert list(found.quantization) == list(itertools.product(("i2t", "t2i"), (8, 16)))
    for (direction, bits), each in found.quantization.items():
        asked, searched = SIDES[direction]
        query, database = store.take(run.split.query), store.take(run.split.database)
        relaxed = [
            run.model.encode(pairs.image if side == "image" else pairs.mean_text, side)[:, :bits]
            for pairs, side in ((query, asked), (database, searched))
        ]
        off = np.concatenate([np.abs(np.abs(values) - 1) for values in relaxed])
        assert (each.bits, len(each.tau)) == (bits, 20)
        assert each.deviation == pytest.approx(off.mean(), rel=1e-5)


def test_precision_at_n_counts_the_first_ranks(coded, found):
    relevant = coded[0].labels.astype(int) @ coded[1].labels.T > 0
    for (direction, bits), curve in found.precision.items():
        order = np.argsort(distances(coded, direction, bits), axis=1, kind="stable")
        hits = np.take_along_axis(relevant, order, axis=1)
        expected = [hits[:, :n].mean() for n in range(1, len(coded[1]) + 1)]
        np.testing.assert_allclose(curve, expected)
    assert len(found.precision) == 4


def test_precision_at_n_stops_at_the_depth(trained, found):
    curve = assess(*trained, depth=7).precision["t2i", 16]
    np.testing.assert_array_equal(curve, found.precision["t2i", 16][:7])


def test_the_displacement_is_of_real_queries(coded, found):
    """Five of the queries and all of the few items: a row of ranks for each."""
    items = len(coded[1])
    assert found.displacement.shape == (2, 5 * items)
    before, after = (
        np.argsort(np.argsort(distances(coded, "i2t", bits), axis=1, kind="stable"), axis=1) / (items - 1)
        for bits in (8, 16)
    )
    shown = found.displacement.reshape(2, 5, items)
    matching = [
        {q for q in range(20) if np.allclose(before[q], row) and np.allclose(after[q] - before[q], moved)}
        for row, moved in zip(*shown, strict=True)
    ]
    assert all(matching)
    assert len(set.union(*matching)) >= 5  # more where queries have equal codes


def test_distances_are_counted_by_number_of_shared_labels(coded, found):
    shared = np.minimum(coded[0].labels.astype(int) @ coded[1].labels.T, 3)
    distance = distances(coded, "i2t")
    assert list(found.shared) == sorted(set(shared.ravel().tolist()))
    for count, share in found.shared.items():
        expected = [(distance[shared == count] == radius).mean() for radius in range(17)]
        np.testing.assert_allclose(share, expected)


def test_bits_are_those_of_the_database(coded, found):
    for modality, health in found.health.items():
        bits = coded[1].codes(modality).to_bits()
        np.testing.assert_allclose(health.balance, bits.mean(axis=0))
        assert health.distinct == {length: len({tuple(row) for row in bits[:, :length]}) for length in (8, 16)}
        assert health.blocks == found.blocks
    assert sum(found.blocks) == 16


def test_cost_by_hand(trained, found):
    run, _ = trained
    cost, sizes = found.cost, [tuple(weights.shape) for weights in run.model.parameters()]
    assert cost.payload == {8: 2 * 180, 16: 2 * 180 * 2}
    assert cost.nested == 2 * 180 * 2
    assert cost.model.parameters == sum(int(np.prod(size)) for size in sizes)
    assert cost.model.bytes == 4 * cost.model.parameters
    heads, *projections = sorted((size for size in sizes if len(size) == 2), key=lambda size: size != (16, 16))
    assert len(projections) == 4
    assert cost.model.flops == 2 * (sum(a * b for a, b in projections) + 2 * heads[0] * heads[1])
    assert list(cost.encode) == ["image", "text"] and list(cost.query) == [8, 16]
    assert all(0 < times.median <= times.p95 for times in [*cost.encode.values(), *cost.query.values()])


def test_lengths_are_rounded_up_to_bytes(trained):
    run, store = trained
    short = replace(run, config=CONFIG.override({"lengths": (9, 16)}))
    assert assess(short, store).cost.payload == {9: 2 * 180 * 2, 16: 2 * 180 * 2}


def test_strata_of_both_directions_are_pairs_without_a_shared_label(coded, found):
    apart = coded[0].labels.astype(int) @ coded[1].labels.T == 0
    for direction in ("i2t", "t2i"):
        every, closest = found.strata[direction]
        assert every.pairs == apart.sum()
        assert 0 < closest.pairs < every.pairs
        assert len(every.values) == 20


def test_facts_of_the_run_are_human_readable(trained, found):
    run, _ = trained
    assert found.name == "run"
    assert found.facts["code"] == "16 bits, trained at 8, 16"
    assert found.facts["split"] == "seed 1: 60 train, 10 validation, 20 query, 180 database"
    assert found.facts["image features"] == "ready-made, 24-d"
    assert found.facts["model"] == run.model.fingerprint()
    assert "epochs 8" in found.facts["settings"] and "torch " in found.facts["versions"]
    assert all(isinstance(value, str) for value in found.facts.values())


def test_one_length_has_no_agreement(trained):
    run, store = trained
    one = replace(run, config=CONFIG.override({"lengths": (16,)}))
    assessed = assess(one, store)
    assert assessed.agreement == {}
    assert list(assessed.quantization) == [("i2t", 16), ("t2i", 16)]
    assert not assessed.displacement[1].any()


def test_a_protocol_with_an_empty_database_is_left_out(tmp_path):
    split = Split.draw(ITEMS, query=20, train=170, validation=10, seed=1)
    assessed = assess(*train_on(tmp_path, plant(ITEMS), split=split))
    assert [evaluation.protocol for evaluation in assessed.evaluations] == ["training items in the database"]


# References


def test_the_text_encoder_of_the_run_encodes_the_label_names(trained, monkeypatch):
    loaded = []
    monkeypatch.setattr(measurement, "load_text_encoder", lambda name: loaded.append(name) or Words())
    monkeypatch.setattr(measurement, "text_encoder_of", lambda recipe, **_: loaded.append(recipe) or Words())
    run, store = trained
    assess(run, store)
    own = EncoderRecipe("its own", "a1b2", 16, "words")
    assess(replace(run, recipe=Recipe(run.recipe.image, own)), store)
    assert loaded == ["all-minilm-l6-v2", own]  # ready-made features have no known encoder


def test_without_a_text_encoder_the_idf_reference_stands_alone_with_a_warning(trained, monkeypatch):
    def missing(name):
        raise MissingExtraError("sentence_transformers", extra="offline", need="the packaged text encoder")

    monkeypatch.setattr(measurement, "load_text_encoder", missing)
    assessed = assess(*trained)
    assert assessed.strata == {}
    assert assessed.evaluations[0].references == ["IDF"]
    assert [w for w in assessed.warnings if w.startswith("No label-name evaluator: ") and "multibit[offline]" in w]


def test_without_label_names_the_idf_reference_stands_alone_with_a_warning(trained):
    run, store = trained
    nameless = replace(run, record=replace(run.record, label_names=[f"label {i}" for i in range(8)]))
    assessed = assess(nameless, store)
    assert assessed.strata == {}
    (warning,) = doubts(assessed.warnings)
    assert warning.startswith("No label-name evaluator: ") and "label names" in warning


def test_an_unknown_text_encoder_is_a_warning(trained):
    run, store = trained
    elsewhere = Recipe(run.recipe.image, EncoderRecipe("elsewhere", "a1b2", 16, "words"))
    assessed = assess(replace(run, recipe=elsewhere), store)
    assert any("elsewhere" in warning for warning in assessed.warnings)


def test_data_where_all_items_share_a_label_is_assessed_without_strata(tmp_path):
    data = plant(ITEMS)
    data["labels"] = np.concatenate([data["labels"], np.ones((ITEMS, 1), np.uint8)], axis=1)
    assessed = assess(*train_on(tmp_path, {**data, "label_names": [*NAMES, "all"]}))
    assert assessed.strata == {}


# The anchor


@pytest.fixture(scope="module")
def other(tmp_path_factory, trained):
    run, store = trained
    folder = tmp_path_factory.mktemp("other") / "run"
    return Run.create(folder, store, run.split, CONFIG.override({"seed": 7, "epochs": 1}))


def test_pools_hold_the_first_ranks_of_the_anchor_too(trained, other, coded, found):
    run, store = trained
    assessed = assess(run, store, anchor=other)
    theirs = [encode(other.model, store.take(rows)) for rows in (run.split.query, run.split.database)]
    relevance = GradedRelevance.idf(coded[1].labels)
    for direction, (asked, searched) in SIDES.items():
        first = np.argsort(distances(theirs, direction, 8), axis=1, kind="stable")[:, :100]
        sides = coded[0].codes(asked), coded[1].codes(searched), coded[0].labels, coded[1].labels
        (expected,) = pool_resolution(Ranking(*sides, bits=8), LabelSetRelevance.of([relevance], *sides[2:]), first)
        for metric, values in zip((TAU_B, COLLISION, INVERSION), expected, strict=True):
            np.testing.assert_array_equal(assessed.evaluations[0].values[metric.under("IDF"), direction, 8], values)
        key = TAU_B.under("IDF"), direction, 8
        assert not np.array_equal(assessed.evaluations[0].values[key], found.evaluations[0].values[key])


def test_an_anchor_of_another_split_is_refused(trained, tmp_path):
    run, store = trained
    stranger = Run.create(tmp_path / "stranger", store, split_of(seed=2), CONFIG.override({"epochs": 1}))
    with pytest.raises(MismatchError) as caught:
        assess(run, store, anchor=stranger)
    assert caught.value.field == "split"
    assert all(str(each.folder) in caught.value.problem for each in (run, stranger))


def test_features_of_other_data_are_refused(trained, tmp_path):
    run, _ = trained
    np.savez(tmp_path / "other.npz", **plant(ITEMS, seed=5), label_names=NAMES)
    with pytest.raises(MismatchError) as caught:
        assess(run, FeatureStore.open(tmp_path / "other.npz"))
    assert (caught.value.file, caught.value.field) == (tmp_path / "other.npz", "data")


# Warnings


def doubts(warnings):
    """Warnings of other kinds than few different codes, which planted data of eight labels always has."""
    return [each for each in warnings if "different" not in each]


def test_a_normal_run_has_no_warnings(found):
    assert doubts(found.warnings) == []


def test_equal_codes_and_equal_directions_are_suspicious(trained):
    run, store = trained
    blank = changed(run, lambda heads: (heads.weight.zero_(), heads.bias.zero_()))
    *found, below_in, below_out = doubts(assess(blank, store).warnings)
    assert found == [
        "All image codes are equal.",
        "All text codes are equal.",
        "Both directions have the same mAP to nine digits: the modalities may be mixed up.",
    ]
    assert all("most common labels first" in each for each in (below_in, below_out))


def test_dead_bits_are_suspicious_and_named(trained):
    run, store = trained

    def kill(heads):
        heads.weight[[3, 5]] = 0
        heads.bias[[3, 5]] = 1

    warnings = assess(changed(run, kill), store).warnings
    assert doubts(warnings) == [f"2 of 16 bits are constant in the {side} codes: [3, 5]." for side in ("image", "text")]


def test_images_that_are_both_query_and_training_item_are_suspicious(tmp_path):
    data, split = plant(ITEMS), split_of()
    data["image"][split.query[:2]] = data["image"][split.train[:2]]
    warnings = assess(*train_on(tmp_path, {**data, "label_names": NAMES})).warnings
    assert doubts(warnings) == ["2 queries have the image features of a training item: duplicates leak labels."]


def test_images_that_are_query_and_database_item_but_not_training_item_are_not_suspicious(tmp_path):
    data, split = plant(ITEMS), split_of()
    data["image"][split.query[:2]] = data["image"][split.unseen[:2]]
    assert doubts(assess(*train_on(tmp_path, {**data, "label_names": NAMES})).warnings) == []


def test_queries_without_relevant_items_are_counted(tmp_path):
    data, split = plant(ITEMS), split_of()
    labels = np.concatenate([data["labels"], np.zeros((ITEMS, 1), np.uint8)], axis=1)
    labels[split.query[:3]] = [0] * 8 + [1]
    warnings = assess(*train_on(tmp_path, {**data, "labels": labels, "label_names": [*NAMES, "rare"]})).warnings
    assert doubts(warnings) == ["Left out of the means: 3 queries without any relevant item."]
