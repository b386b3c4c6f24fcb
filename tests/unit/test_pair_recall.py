"""Recall and rank of the own counterpart against sorting under every order of ties."""

import itertools

import numpy as np
import pytest

from multibit.codes import Codes, hamming_distances
from multibit.errors import DataError
from multibit.evaluation.pair_recall import OwnCounts, ProductCounter, count_own, pair_recall


def by_all_orders(distances, own, k):
    """Recall at k and expected rank of the first own candidate: the mean over all orders that sort the distances."""
    orders = [
        order for order in itertools.permutations(range(len(distances)))
        if all(distances[a] <= distances[b] for a, b in itertools.pairwise(order))
    ]  # fmt: skip
    ranks = [min(place for place, row in enumerate(order, start=1) if own[row]) for order in orders]
    return np.mean([rank <= k for rank in ranks]), np.mean(ranks)


@pytest.mark.parametrize("distances", [(0, 1, 2, 3), (1, 1, 1, 1), (0, 1, 1, 2, 2), (2, 2, 0, 1, 1, 1)])
def test_values_are_means_over_all_orders_of_ties(distances):
    bits = np.arange(3) >= np.array(distances)[:, None]
    query, database = Codes.from_bits(np.ones((1, 3))), Codes.from_bits(bits)
    for pattern in itertools.product([0, 1], repeat=len(distances)):
        if any(pattern):
            counts = count_own(query, database, query_items=[1], database_items=pattern)
            for k in range(1, len(distances) + 2):
                recall, rank = by_all_orders(distances, pattern, k)
                assert counts.recall(k)[0] == pytest.approx(recall)
                assert counts.rank()[0] == pytest.approx(rank)


def slow_counts(scores, query_items, database_items):
    """The three counts of each query by a loop; larger scores are nearer."""
    rows = []
    for row, item in zip(scores, query_items, strict=True):
        mine = row[database_items == item]
        best = mine.max() if len(mine) else np.inf
        rows.append(((row > best).sum(), (row == best).sum(), (mine == best).sum()))
    return np.array(rows).reshape(-1, 3).T


@pytest.mark.parametrize(("queries", "items", "bits"), [(7, 40, 3), (1, 1, 1), (5, 9, 13), (40, 70, 130), (3, 8192, 8)])
def test_counts_equal_those_of_all_distances(queries, items, bits):
    rng = np.random.default_rng(queries)
    query, database = (Codes.from_bits(rng.integers(0, 2, (count, bits + 2))) for count in (queries, items))
    asked, searched = rng.integers(0, 6, queries), rng.integers(0, 5, items)  # item 5 has no counterpart
    counts = count_own(query, database, bits, asked, searched)
    slow = slow_counts(-hamming_distances(query, database, bits).astype(int), asked, searched)
    defined = slow[2] > 0
    for fast, expected in zip((counts.before, counts.tied, counts.own), slow, strict=True):
        np.testing.assert_array_equal(fast[defined], expected[defined])
    assert np.isnan(counts.recall(10)[~defined]).all()
    assert np.isnan(counts.rank()[~defined]).all()


@pytest.mark.parametrize(("queries", "items"), [(9, 30), (1, 1), (2, 5000)])
def test_products_of_signs_rank_like_distances(queries, items):
    rng = np.random.default_rng(items)
    query, database = (Codes.from_bits(rng.integers(0, 2, (count, 12))) for count in (queries, items))
    asked, searched = rng.integers(0, 4, queries), rng.integers(0, 5, items)
    searched[:1] = asked[:1]
    by_distance = count_own(query, database, None, asked, searched)
    by_product = ProductCounter(query.to_signs(), database.to_signs(), asked, searched).counts()
    for name in ("before", "tied", "own"):
        np.testing.assert_array_equal(getattr(by_distance, name), getattr(by_product, name))


def test_counts_of_real_values_equal_those_of_all_products():
    rng = np.random.default_rng(3)
    query, database = (np.round(rng.uniform(-1, 1, (count, 6)) * 8) / 8 for count in (30, 90))  # exact, with ties
    asked, searched = np.arange(30), np.repeat(np.arange(30), 3)
    counts = ProductCounter(query, database, asked, searched).counts()
    slow = slow_counts(query @ database.T, asked, searched)
    np.testing.assert_array_equal([counts.before, counts.tied, counts.own], slow)


def test_rows_are_the_items_where_no_numbers_are_given():
    image, text = Codes.from_bits([[0, 0], [1, 1]]), Codes.from_bits([[0, 0], [0, 0], [1, 1]])
    np.testing.assert_array_equal(pair_recall(image, text, 1), [0.5, 0])
    np.testing.assert_array_equal(pair_recall(image, text, 2), [1, 0.5])


def test_without_a_query_there_is_no_value():
    empty, database = Codes.from_bits(np.zeros((0, 4))), Codes.from_bits(np.zeros((3, 4)))
    assert count_own(empty, database).recall(1).shape == (0,)
    assert np.isnan(count_own(database, empty).rank()).all()
    assert np.isnan(ProductCounter(np.zeros((2, 4)), np.zeros((0, 4))).counts().recall(5)).all()


@pytest.mark.parametrize("items", [[0], [0.0, 1.0], [[0, 1]]])
def test_items_need_a_whole_number_each(items):
    codes = Codes.from_bits([[0, 1], [1, 1]])
    with pytest.raises(DataError) as error:
        count_own(codes, codes, query_items=items)
    assert error.value.field == "query items"


def test_bad_values_are_refused():
    for query, database in (([[1.5]], [[0.5]]), ([[np.nan]], [[0.5]]), ([[0.5]], [[0.5, 1]]), ([0.5], [[0.5]])):
        with pytest.raises(DataError) as error:
            ProductCounter(query, database).counts()
        assert error.value.field == "values"
    with pytest.raises(DataError):
        OwnCounts(*np.ones((3, 1), int)).recall(0)
