"""Rankings against brute force, and that each is computed once whatever is asked of it."""

import itertools
from collections import Counter

import numpy as np
import pytest

from multibit.codes import DIRECTIONS, CodedItems, Codes
from multibit.errors import DataError
from multibit.evaluation import ranking as module
from multibit.evaluation.protocol import add_asymmetric, add_resolution, evaluate_rankings
from multibit.evaluation.ranking import POOL, Ranking, Rankings
from multibit.evaluation.relevance import GradedRelevance

LENGTHS = (2, 5, 8)


def items(count, seed, labels=5):
    """Short codes, so that most distances are tied; some items have no label."""
    rng = np.random.default_rng(seed)
    relaxed = {modality: np.tanh(rng.normal(size=(count, 8))) for modality in ("image", "text")}
    return CodedItems.binarize(relaxed, (rng.random((count, labels)) < 0.2).astype(np.uint8))


def brute_force(query, database, direction, bits):
    """Rows (Q, N) by (distance, row), and relevance (Q, N) in that order, pair by pair."""
    asked, searched = DIRECTIONS[direction]
    a, b = query.codes(asked).to_bits()[:, :bits], database.codes(searched).to_bits()[:, :bits]
    rows = [
        sorted(range(len(b)), key=lambda row, code=code: (int((code != b[row]).sum()), row)) for code in a
    ]  # fmt: skip
    relevant = [
        [bool((labels & database.labels[row]).any()) for row in order]
        for labels, order in zip(query.labels, rows, strict=True)
    ]
    return np.array(rows), np.array(relevant)


@pytest.mark.parametrize(("queries", "database"), [(1, 1), (7, 30), (130, 20), (3, 250)])
def test_first_ranks_and_precision_equal_brute_force(queries, database):
    """130 queries are more than two blocks; 250 items are more than the pool."""
    sides = items(queries, seed=1), items(database, seed=2)
    rankings = Rankings(*sides, LENGTHS, depth=40)
    assert list(rankings) == list(itertools.product(("i2t", "t2i"), LENGTHS)) and len(rankings) == 6
    for key, ranking in rankings.items():
        rows, relevant = brute_force(*sides, *key)
        np.testing.assert_array_equal(ranking.first.rows, rows[:, :POOL])
        np.testing.assert_array_equal(rankings.anchor[key], rows[:, :POOL])
        defined = relevant[relevant.any(axis=1)]
        depth = min(40, database)
        expected = np.cumsum(defined, axis=1)[:, :depth] / np.arange(1, depth + 1)
        expected = expected.mean(axis=0) if len(defined) else np.full(depth, np.nan)
        np.testing.assert_allclose(ranking.first.precision, expected, rtol=1e-12)


@pytest.mark.parametrize("depth", [1, 7, 100, 101, 1000])
def test_the_depth_bounds_the_precision_curve_but_not_the_pool(depth):
    sides = items(4, seed=1), items(150, seed=2)
    curve = Rankings(*sides, (8,), depth=depth)["t2i", 8].first
    assert curve.rows.shape == (4, 100)
    assert curve.precision.shape == (min(depth, 150),)
    whole = Rankings(*sides, (8,))["t2i", 8].first
    np.testing.assert_array_equal(curve.precision, whole.precision[:depth])


def test_equal_distances_are_ranked_by_row():
    equal = CodedItems.binarize({"image": np.ones((5, 3)), "text": np.ones((5, 3))}, np.eye(5))
    for ranking in Rankings(equal, equal, (1, 3)).values():
        np.testing.assert_array_equal(ranking.first.rows, [range(5)] * 5)


def test_precision_is_undefined_where_no_query_has_a_relevant_item():
    query, database = items(3, seed=1), items(20, seed=2)
    database.labels[:] = 0
    first = Rankings(query, database, (8,))["i2t", 8].first
    assert np.isnan(first.precision).all() and first.precision.shape == (20,)
    np.testing.assert_array_equal(first.rows, brute_force(query, database, "i2t", 8)[0])


def test_queries_without_relevant_item_are_left_out_of_the_precision():
    query, database = items(6, seed=1), items(20, seed=2)
    query.labels[:, 0] = database.labels[:, 0] = 1
    alone = Rankings(query, database, (8,))["i2t", 8].first.precision
    unlabelled = items(4, seed=3)
    unlabelled.labels[:] = 0
    both = CodedItems(
        *(Codes.concatenate([query.codes(side), unlabelled.codes(side)]) for side in ("image", "text")),
        np.concatenate([query.labels, unlabelled.labels]),
    )
    np.testing.assert_array_equal(Rankings(both, database, (8,))["i2t", 8].first.precision, alone)


@pytest.mark.parametrize(("queries", "database", "field"), [(0, 5, "query"), (5, 0, "database"), (0, 0, "query")])
def test_an_empty_side_is_refused(queries, database, field):
    with pytest.raises(DataError) as caught:
        Rankings(items(queries, seed=1), items(database, seed=2), (8,))
    assert caught.value.field == field
    assert f"{queries} queries and {database} database items" in caught.value.problem


def test_no_length_is_refused():
    with pytest.raises(DataError) as caught:
        Rankings(items(2, seed=1), items(3, seed=2), ())
    assert caught.value.option == "lengths"


@pytest.mark.parametrize("lengths", [(9,), (2, 9)])
def test_a_length_past_the_codes_is_refused_before_any_ranking(lengths):
    with pytest.raises(DataError) as caught:
        Rankings(items(2, seed=1), items(3, seed=2), lengths)
    assert "9" in caught.value.problem


@pytest.fixture
def calls(monkeypatch):
    """Name -> number of calls for each prefix length and query modality."""
    found = {"nearest": Counter(), "count_packed": Counter()}
    nearest, count_packed = module.nearest, module.count_packed

    def counting_nearest(query, database, k, bits):
        found["nearest"][id(database), bits] += 1
        return nearest(query, database, k, bits)

    def counting_counts(query, database, words, bits, cutoffs):
        found["count_packed"][id(database), bits, cutoffs] += 1
        return count_packed(query, database, words, bits, cutoffs)

    monkeypatch.setattr(module, "nearest", counting_nearest)
    monkeypatch.setattr(module, "count_packed", counting_counts)
    return found


def test_each_direction_and_length_is_ranked_once_whatever_is_asked(calls):
    query, database = items(6, seed=1), items(40, seed=2)
    query.labels[:, 0] = database.labels[:, 0] = 1
    rankings = Rankings(query, database, LENGTHS)
    assert not calls["nearest"] and not calls["count_packed"]
    other = Rankings(items(6, seed=3), items(40, seed=4), LENGTHS)
    anchor = other.anchor
    for count in calls.values():
        count.clear()
    references = [GradedRelevance.idf(database.labels), GradedRelevance.shared_labels(5)]
    evaluation = evaluate_rankings(rankings, training_labels=database.labels, at=5)
    for each in (None, anchor, rankings.anchor):
        add_resolution(add_asymmetric(evaluation, rankings), rankings, references, each)
    assert all(len(ranking.first.precision) == 40 for ranking in rankings.values())
    sides = {id(database.text), id(database.image)}
    assert calls["nearest"] == Counter(itertools.product(sides, LENGTHS))
    assert calls["count_packed"] == Counter(itertools.product(sides, LENGTHS, [(None, 5)]))


def test_a_ranking_keeps_what_it_computed(calls):
    query, database = items(70, seed=1), items(40, seed=2)
    ranking = Ranking(query.image, database.text, query.labels, database.labels, 8)
    assert ranking.first is ranking.first and ranking.counts is ranking.counts
    assert sum(calls["nearest"].values()) == 2  # two blocks of queries
    assert sum(calls["count_packed"].values()) == 1
