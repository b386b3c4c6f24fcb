"""Asymmetric search: real-valued queries against binary codes, ranked by inner product."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multibit import Codes, Index
from multibit.codes.distance import nearest, nearest_relaxed
from multibit.errors import DataError

LENGTHS = [1, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 128, 200]


def random_bits(items, length, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (items, length), np.uint8)


def dyadic(count, length, seed=1):
    """Multiples of 1/8 in (-1, 1): their sums are exact in any order, so equal scores are equal."""
    return np.random.default_rng(seed).integers(-7, 8, (count, length)) / 8


def plain(values, bits, k, rows=None):
    """Rows and scores of each query, by (-score, row), among some rows."""
    rows = np.arange(len(bits)) if rows is None else np.sort(rows)
    scores = values @ np.where(bits[rows], 1.0, -1.0).T
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
    return rows[order], np.take_along_axis(scores, order, axis=-1)


def assert_found(found, expected):
    np.testing.assert_array_equal(found.rows, expected[0])
    np.testing.assert_array_equal(found.scores, expected[1])
    assert (found.counts == found.rows.shape[1]).all()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("items", [1, 2, 63, 64, 65, 1000])
def test_the_rows_of_the_largest_inner_products_come_first_and_ties_by_row(items, length):
    values, bits = dyadic(5, length), random_bits(items, length)
    for k in {1, 2, 3, 10, items - 1, items, items + 1} - {0}:
        assert_found(nearest_relaxed(values, Codes.from_bits(bits), k), plain(values, bits, k))


@pytest.mark.parametrize("bits", [1, 5, 16, 17, 100, 128])
def test_only_the_prefix_counts_however_wide_the_query(bits):
    values, database = dyadic(3, 150), random_bits(300, 128)
    found = nearest_relaxed(values, Codes.from_bits(database), 20, bits)
    assert_found(found, plain(values[:, :bits], database[:, :bits], 20))


@pytest.mark.parametrize("k", [1, 2, 7, 500, 2000])
@pytest.mark.parametrize("order", ["better and better", "worse and worse", "equal", "waves"])
def test_the_answers_do_not_depend_on_the_order_of_the_rows(order, k):
    ones = {
        "better and better": np.linspace(0, 24, 2000).astype(int),
        "worse and worse": np.linspace(24, 0, 2000).astype(int),
        "equal": np.full(2000, 9),
        "waves": np.arange(2000) * 7 % 25,
    }[order]
    bits = np.arange(24) < ones[:, None]
    values = np.full((1, 24), 0.25)
    assert_found(nearest_relaxed(values, Codes.from_bits(bits), k), plain(values, bits, k))


def test_equal_codes_tie_by_row_whatever_the_rounding():
    codes = Codes.from_bits(np.tile(random_bits(3, 90), (100, 1)))
    found = nearest_relaxed(np.random.default_rng(2).uniform(-1, 1, (4, 90)), codes, 300)
    for rows, scores in zip(found.rows, found.scores, strict=True):
        assert len(np.unique(scores)) == 3
        assert all((np.diff(rows[scores == score]) == 3).all() for score in np.unique(scores))


def test_a_query_of_zeros_finds_the_first_rows():
    found = nearest_relaxed(np.zeros((2, 20)), Codes.from_bits(random_bits(50, 20)), 4)
    assert found.rows.tolist() == [[0, 1, 2, 3]] * 2 and not found.scores.any()


@pytest.mark.parametrize("bits", [1, 16, 63, 128])
def test_queries_of_plus_and_minus_one_score_the_length_less_twice_the_distance(bits):
    asked, codes = random_bits(4, 128, seed=1), Codes.from_bits(random_bits(500, 128))
    hard = nearest(Codes.from_bits(asked), codes, 60, bits)
    soft = nearest_relaxed(asked * 2.0 - 1.0, codes, 60, bits)
    np.testing.assert_array_equal(soft.rows, hard.rows)
    np.testing.assert_array_equal(soft.scores, bits - 2.0 * hard.distances)


def test_the_score_splits_ties_of_the_hamming_distance():
    codes = Codes.from_bits([[0, 1, 1], [1, 0, 1], [1, 1, 0]])  # each one bit off the query's signs
    values = [[0.5, 0.125, 0.25]]
    assert nearest(Codes.binarize(values), codes, 3).distances.tolist() == [[1, 1, 1]]
    found = nearest_relaxed(values, codes, 3)
    assert found.rows.tolist() == [[1, 2, 0]] and found.scores.tolist() == [[0.625, 0.375, -0.125]]


# In two stages


@pytest.mark.parametrize("candidates", [10, 11, 50, 400, 900])
@pytest.mark.parametrize("bits", [9, 16, 40])
def test_two_stages_rank_the_nearest_by_hamming_distance(bits, candidates):
    values, database = dyadic(6, 40), random_bits(400, 40)
    found = nearest_relaxed(values, Codes.from_bits(database), 10, bits, candidates=candidates)
    for q, query in enumerate(values[:, :bits]):
        distances = (database[:, :bits] != (query >= 0)).sum(axis=1)
        near = np.argsort(distances, kind="stable")[:candidates]
        rows, scores = plain(query, database[:, :bits], 10, near)
        assert found.rows[q].tolist() == rows.tolist() and found.scores[q].tolist() == scores.tolist()
    assert found.counts.tolist() == [10] * 6


def test_two_stages_over_all_rows_are_one():
    values, codes = dyadic(4, 33), Codes.from_bits(random_bits(200, 33))
    one, two = nearest_relaxed(values, codes, 30), nearest_relaxed(values, codes, 30, candidates=200)
    np.testing.assert_array_equal(one.rows, two.rows)
    np.testing.assert_array_equal(one.scores, two.scores)


def test_too_few_candidates_can_miss_the_best_score():
    codes = Codes.from_bits([[1, 0, 0], [0, 1, 1]])
    values = [[0.875, -0.125, 0.125]]  # nearest by signs is neither; row 0 is one bit off and row 1 two
    assert nearest_relaxed(values, codes, 1, candidates=1).rows.tolist() == [[0]]
    values = [[0.875, 0.125, 0.125]]
    assert nearest_relaxed(values, codes, 1, candidates=1).rows.tolist() == [[1]]
    assert nearest_relaxed(values, codes, 1).rows.tolist() == [[0]]


# Filters, threads


@pytest.mark.parametrize("candidates", [None, 40])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.6])
def test_only_allowed_rows_are_found_and_k_of_them_where_k_exist(share, candidates):
    values, database = dyadic(4, 24), random_bits(300, 24)
    allowed = np.random.default_rng(4).random(300) < share
    found = nearest_relaxed(values, Codes.from_bits(database), 12, candidates=candidates, allowed=allowed)
    assert found.counts.tolist() == [min(12, allowed.sum())] * 4
    for q, query in enumerate(values):
        distances = np.where(allowed, (database != (query >= 0)).sum(axis=1), 99)
        near = np.argsort(distances, kind="stable")[: min(candidates or 300, allowed.sum())]
        assert found.rows[q].tolist() == plain(query, database, 12, near)[0].tolist()


@pytest.mark.parametrize("threads", [1, 2, 3, 50])
@pytest.mark.parametrize("candidates", [None, 60])
def test_any_number_of_threads_gives_the_same_answer(candidates, threads):
    values, codes = dyadic(70, 48), Codes.from_bits(random_bits(500, 48))
    one = nearest_relaxed(values, codes, 20, candidates=candidates)
    other = nearest_relaxed(values, codes, 20, candidates=candidates, threads=threads)
    for name in ("rows", "scores", "counts"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize(("asked", "stored"), [(0, 30), (3, 0)])
def test_nothing_asked_or_nothing_stored_gives_empty_answers(asked, stored):
    found = nearest_relaxed(np.zeros((asked, 8)), Codes.from_bits(random_bits(stored, 8)), 5)
    assert found.rows.shape == (asked, min(5, stored)) and found.scores.dtype == np.float64


@pytest.mark.parametrize("candidates", [1, 4])
def test_as_many_candidates_as_there_are_hits_to_find_are_enough(candidates):
    values, database = dyadic(2, 16), random_bits(4, 16)
    found = nearest_relaxed(values, Codes.from_bits(database[:candidates]), 9, candidates=candidates)
    assert_found(found, plain(values, database[:candidates], 9))


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_query_is_ranked_by_inner_product_then_row(data):
    length, items = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 30))
    pool = random_bits(4, length, seed=data.draw(st.integers(0, 99)))
    bits = pool[data.draw(st.lists(st.integers(0, 3), min_size=items, max_size=items))]
    eighths = st.lists(st.integers(-8, 8), min_size=length, max_size=length)
    values = np.array([data.draw(eighths)]) / 8
    k = data.draw(st.integers(1, items + 1))
    assert_found(nearest_relaxed(values, Codes.from_bits(bits), k), plain(values, bits, k))


# What is refused


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_with_its_row_and_column(wrong):
    values = np.zeros((3, 20))
    values[2, 17] = wrong
    with pytest.raises(DataError) as caught:
        nearest_relaxed(values, Codes.from_bits(random_bits(9, 20)), 1)
    assert caught.value.field == "relaxed queries"
    assert f"[2, 17] is {wrong}" in caught.value.problem
    assert nearest_relaxed(values, Codes.from_bits(random_bits(9, 20)), 1, bits=17).counts.tolist() == [1, 1, 1]


@pytest.mark.parametrize("shape", [(20,), (2, 19), (2, 0), (1, 2, 20)])
def test_queries_of_another_shape_are_refused(shape):
    with pytest.raises(DataError) as caught:
        nearest_relaxed(np.zeros(shape), Codes.from_bits(random_bits(9, 20)), 1)
    assert caught.value.field == "relaxed queries" and str(shape) in caught.value.problem


@pytest.mark.parametrize(
    ("settings", "option", "found"),
    [
        ({"k": 0}, "k", "0"),
        ({"k": 5, "candidates": 4}, "candidates", "4"),
        ({"k": 5, "bits": 21}, "bits", "21"),
        ({"k": 5, "allowed": np.ones(8, bool)}, "allowed", "(8,)"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, option, found):
    with pytest.raises(DataError) as caught:
        nearest_relaxed(np.zeros((1, 20)), Codes.from_bits(random_bits(9, 20)), **settings)
    assert caught.value.option == option and found in caught.value.problem


# Through the index


def test_an_index_finds_relaxed_queries_among_the_items_that_are_asked_for():
    database, values = random_bits(60, 32), dyadic(3, 32)
    index = Index()
    names = [f"item {row}" for row in range(60)]
    index.add(names, Codes.from_bits(database), [{"third": row % 3 == 0} for row in range(60)])
    result = index.search_relaxed(values, 7, 20, where={"third": True}, among=names[10:])
    rows, scores = plain(values[:, :20], database[:, :20], 7, np.arange(12, 60, 3))
    assert result.ids == [[names[row] for row in line] for line in rows]
    assert [[hit.score for hit in result.hits(q)] for q in range(3)] == result.scores.tolist() == scores.tolist()
    assert {hit.distance for hit in result.hits(0)} == {None}
    assert result.bits == 20 and {hit.bits for hit in result.hits(0)} == {20}


def test_an_empty_index_has_nothing_for_relaxed_queries():
    with pytest.raises(DataError):
        Index().search_relaxed(np.zeros((1, 8)))


def test_values_whose_sum_overflows_are_refused():
    codes = Codes.binarize(np.ones((3, 128)))
    with pytest.raises(DataError) as caught:
        nearest_relaxed(np.full((1, 128), 1e308), codes, 2)
    assert caught.value.field == "relaxed queries"
