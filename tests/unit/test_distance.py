"""Hamming distances and nearest codes against numpy and faiss."""

import faiss
import numpy as np
import pytest

from multibit.codes import Codes, hamming_distances
from multibit.codes.distance import distance_histogram, nearest, nearest_relaxed, within
from multibit.errors import DataError

LENGTHS = [1, 7, 8, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129, 256, 1024]
every_length = pytest.mark.parametrize("length", LENGTHS)


def random_bits(items, length, seed=0):
    return np.random.default_rng(seed).integers(0, 2, size=(items, length), dtype=np.uint8)


def slow_distances(queries, database):
    return np.array([[(q != r).sum() for r in database] for q in queries]).reshape(len(queries), len(database))


def slow_nearest(distances, k):
    rows = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return rows, np.take_along_axis(distances, rows, axis=1)


def thermometer(distances, length):
    """Codes at the given distances from the code of ones."""
    return Codes.from_bits(np.arange(length) >= np.asarray(distances)[:, None])


def assert_nearest(got, expected):
    np.testing.assert_array_equal(got.rows, expected[0])
    np.testing.assert_array_equal(got.distances, expected[1])
    assert (got.counts == expected[0].shape[1]).all()


@every_length
def test_distances_count_the_differing_bits_at_every_kind_of_prefix(length):
    queries, database = random_bits(4, length, seed=1), random_bits(9, length, seed=2)
    a, b = Codes.from_bits(queries), Codes.from_bits(database)
    np.testing.assert_array_equal(hamming_distances(a, b), slow_distances(queries, database))
    for cut in [cut for cut in LENGTHS if cut <= length]:
        expected = slow_distances(queries[:, :cut], database[:, :cut])
        np.testing.assert_array_equal(hamming_distances(a, b, cut), expected)
        np.testing.assert_array_equal(hamming_distances(a.prefix(cut), b, cut), expected)
        np.testing.assert_array_equal(hamming_distances(a.prefix(cut), b.prefix(cut)), expected)


def test_every_prefix_of_a_code_has_its_own_distance():
    queries, database = random_bits(2, 150, seed=1), random_bits(3, 150, seed=2)
    a, b = Codes.from_bits(queries), Codes.from_bits(database)
    for cut in range(1, 151):
        expected = slow_distances(queries[:, :cut], database[:, :cut])
        np.testing.assert_array_equal(hamming_distances(a, b, cut), expected)


@pytest.mark.parametrize("length", [8, 16, 64, 128, 256, 1024])
def test_distances_equal_those_of_faiss(length):
    a, b = Codes.from_bits(random_bits(5, length, seed=1)), Codes.from_bits(random_bits(70, length, seed=2))
    index = faiss.IndexBinaryFlat(length)
    index.add(b.to_bytes())
    found, rows = index.search(a.to_bytes(), 70)
    np.testing.assert_array_equal(np.take_along_axis(hamming_distances(a, b), rows, axis=1), found)
    np.testing.assert_array_equal(nearest(a, b, 70).distances, found)
    np.testing.assert_array_equal(nearest(a, b, 7).distances, index.search(a.to_bytes(), 7)[0])


def test_opposite_codes_differ_in_every_bit():
    ones = Codes.from_bits(np.ones((1, 1024)))
    assert hamming_distances(ones, Codes.from_bits(np.zeros((1, 1024)))).tolist() == [[1024]]


@every_length
@pytest.mark.parametrize("items", [1, 63, 64, 65, 129])
def test_nearest_is_a_stable_sort_by_distance(items, length):
    queries, database = random_bits(3, length, seed=1), random_bits(items, length, seed=2)
    a, b = Codes.from_bits(queries), Codes.from_bits(database)
    distances = slow_distances(queries, database)
    for k in {1, 2, items - 1, items, items + 1} - {0}:
        assert_nearest(nearest(a, b, k), slow_nearest(distances, k))


@pytest.mark.parametrize("k", [1, 2, 63, 64, 65, 1023, 1024, 1025, 4096, 5000, 8193, 9999, 10000, 10001])
@pytest.mark.parametrize("bits", [3, 20, 128])
def test_nearest_is_a_stable_sort_over_many_chunks(bits, k):
    queries, database = random_bits(3, 128, seed=1), random_bits(10_000, 128, seed=2)
    distances = (queries[:, None, :bits] != database[None, :, :bits]).sum(axis=2)
    got = nearest(Codes.from_bits(queries), Codes.from_bits(database), k, bits)
    assert_nearest(got, slow_nearest(distances, k))


@pytest.mark.parametrize("k", [1, 100, 4097])
@pytest.mark.parametrize("order", ["closer and closer", "farther and farther", "equal", "far, then equal", "waves"])
def test_nearest_holds_in_any_row_order(order, k):
    items, length = 20_000, 64
    distances = {
        "closer and closer": np.linspace(64, 0, items).astype(int),  # every row beats the ones before
        "farther and farther": np.linspace(0, 64, items).astype(int),
        "equal": np.full(items, 5),
        "far, then equal": np.where(np.arange(items) < 5000, 64, 3),
        "waves": 64 - np.arange(items) % 65,
    }[order]
    got = nearest(Codes.from_bits(np.ones((1, length))), thermometer(distances, length), k)
    assert_nearest(got, slow_nearest(distances[None], k))


@pytest.mark.parametrize("k", [1, 10, 2999])
@pytest.mark.parametrize("threads", [1, 2])
def test_many_queries_that_share_a_pass_over_the_database_do_not_mix(threads, k):
    queries, database = random_bits(70, 24, seed=1), random_bits(3000, 24, seed=2)
    distances = (queries[:, None] != database[None]).sum(axis=2)
    got = nearest(Codes.from_bits(queries), Codes.from_bits(database), k, threads=threads)
    assert_nearest(got, slow_nearest(distances, k))


def test_queries_with_very_many_neighbours_do_not_mix():
    queries, database = random_bits(20, 6, seed=1), random_bits(150_000, 6, seed=2)
    distances = (queries[:, None] != database[None]).sum(axis=2, dtype=np.uint8)
    got = nearest(Codes.from_bits(queries), Codes.from_bits(database), 140_000, threads=1)
    assert_nearest(got, slow_nearest(distances, 140_000))


def test_equal_codes_come_in_row_order():
    found = nearest(Codes.from_bits([[1, 0, 1]]), Codes.from_bits([[1, 0, 1]] * 200), 150)
    assert found.rows.tolist() == [list(range(150))]
    assert not found.distances.any()


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 50, None])
def test_any_number_of_threads_gives_the_same_result(threads):
    queries, database = random_bits(9, 96, seed=1), random_bits(300, 96, seed=2)
    a, b = Codes.from_bits(queries), Codes.from_bits(database)
    distances = slow_distances(queries, database)
    np.testing.assert_array_equal(hamming_distances(a, b, threads=threads), distances)
    assert_nearest(nearest(a, b, 40, threads=threads), slow_nearest(distances, 40))


def test_results_have_the_promised_types():
    codes = Codes.from_bits(random_bits(3, 40))
    found = nearest(codes, codes, 2)
    assert (found.rows.dtype, found.distances.dtype, found.counts.dtype) == (np.int64, np.uint16, np.int64)
    assert hamming_distances(codes, codes).dtype == np.uint16


@pytest.mark.parametrize("length", [5, 64, 128])
@pytest.mark.parametrize(("asked", "searched"), [(3, 0), (0, 3), (0, 0)])
def test_nothing_asked_or_nothing_searched_gives_empty_results(asked, searched, length):
    a, b = Codes.from_bits(random_bits(asked, length)), Codes.from_bits(random_bits(searched, length))
    assert hamming_distances(a, b).shape == (asked, searched)
    found = nearest(a, b, 2)
    assert found.rows.shape == found.distances.shape == (asked, min(2, searched))
    assert found.counts.tolist() == [min(2, searched)] * asked
    ranged = within(a, b, length)
    assert ranged.offsets.tolist() == [searched * q for q in range(asked + 1)]
    assert len(ranged.rows) == len(ranged.distances) == asked * searched
    assert distance_histogram(a, b).sum() == asked * searched


@pytest.mark.parametrize("length", [64, 128, 256])
def test_taken_and_loaded_codes_are_searched_alike(tmp_path, length):
    database = random_bits(30, length)
    codes = Codes.from_bits(database)
    codes.save(tmp_path / "codes.safetensors")
    expected = slow_distances(database[[4, 2]], database)
    np.testing.assert_array_equal(hamming_distances(codes.take([4, 2]), codes), expected)
    np.testing.assert_array_equal(hamming_distances(codes, codes.take([4, 2])), expected.T)
    loaded = Codes.load(tmp_path / "codes.safetensors")
    np.testing.assert_array_equal(hamming_distances(loaded.take([4, 2]), loaded), expected)


def test_codes_of_two_lengths_need_a_common_prefix():
    long, short = Codes.from_bits(random_bits(2, 40)), Codes.from_bits(random_bits(2, 20))
    for compare in (lambda: hamming_distances(long, short), lambda: nearest(short, long, 1)):
        with pytest.raises(DataError) as caught:
            compare()
        assert "40" in caught.value.problem and "20" in caught.value.problem and "`bits`" in caught.value.hint


@pytest.mark.parametrize("bits", [0, 21])
def test_a_prefix_longer_than_one_side_is_refused(bits):
    long, short = Codes.from_bits(random_bits(2, 40)), Codes.from_bits(random_bits(2, 20))
    for a, b in [(long, short), (short, long)]:
        for compare in (lambda a=a, b=b: hamming_distances(a, b, bits), lambda a=a, b=b: nearest(a, b, 1, bits)):
            with pytest.raises(DataError) as caught:
                compare()
            assert caught.value.option == "bits" and str(bits) in caught.value.problem


@pytest.mark.parametrize("k", [0, -3, 1.5, "2", True])
def test_the_number_of_neighbours_must_be_positive(k):
    codes = Codes.from_bits(random_bits(2, 20))
    with pytest.raises(DataError) as caught:
        nearest(codes, codes, k)
    assert caught.value.option == "k" and repr(k) in caught.value.problem


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("k", [1, 40, 5000])
def test_only_allowed_rows_are_found(k, share):
    queries, database = random_bits(3, 20, seed=1), random_bits(3000, 20, seed=2)
    allowed = np.random.default_rng(3).random(3000) < share
    rows = np.flatnonzero(allowed)
    distances = (queries[:, None] != database[None, rows]).sum(axis=2)
    local, expected = slow_nearest(distances, k)
    got = nearest(Codes.from_bits(queries), Codes.from_bits(database), k, allowed=allowed)
    assert_nearest(got, (rows[local], expected))


@pytest.mark.parametrize("farthest", [0, 3, 7, 19, 20, 99])
@pytest.mark.parametrize("k", [1, 50, 3000])
def test_rows_past_the_largest_distance_are_not_found(k, farthest):
    queries, database = random_bits(5, 20, seed=1), random_bits(3000, 20, seed=2)
    distances = (queries[:, None] != database[None]).sum(axis=2)
    got = nearest(Codes.from_bits(queries), Codes.from_bits(database), k, max_distance=farthest)
    for q, (rows, near) in enumerate(zip(*slow_nearest(distances, k), strict=True)):
        inside = rows[near <= farthest]
        assert got.counts[q] == len(inside)
        np.testing.assert_array_equal(got.rows[q, : len(inside)], inside)
        np.testing.assert_array_equal(got.distances[q, : len(inside)], near[: len(inside)])
        assert (got.rows[q, len(inside) :] == -1).all()


@pytest.mark.parametrize("radius", [0, 2, 9, 20, 99])
@pytest.mark.parametrize("bits", [5, 20])
@pytest.mark.parametrize("filtered", [False, True])
def test_within_lists_every_allowed_row_inside_the_radius_by_distance_then_row(bits, radius, filtered):
    queries, database = random_bits(4, 20, seed=1), random_bits(2500, 20, seed=2)
    allowed = np.arange(2500) % 3 > 0 if filtered else np.ones(2500, bool)
    distances = (queries[:, None, :bits] != database[None, :, :bits]).sum(axis=2)
    a, b = Codes.from_bits(queries), Codes.from_bits(database)
    got = within(a, b, radius, bits, allowed=allowed if filtered else None)
    assert len(got.offsets) == 5
    for q, row in enumerate(distances):
        order = np.argsort(row, kind="stable")
        expected = order[(row[order] <= radius) & allowed[order]]
        hits = slice(got.offsets[q], got.offsets[q + 1])
        np.testing.assert_array_equal(got.rows[hits], expected)
        np.testing.assert_array_equal(got.distances[hits], row[expected])


@pytest.mark.parametrize("bits", [1, 16, 33])
def test_the_histogram_counts_the_allowed_rows_at_each_distance(bits):
    queries, database = random_bits(3, 33, seed=1), random_bits(200, 33, seed=2)
    a, b, allowed = Codes.from_bits(queries), Codes.from_bits(database), np.arange(200) % 2 == 0
    distances = (queries[:, None, :bits] != database[None, :, :bits]).sum(axis=2)
    expected = [np.bincount(row, minlength=bits + 1) for row in distances]
    np.testing.assert_array_equal(distance_histogram(a, b, bits), expected)
    expected = [np.bincount(row[allowed], minlength=bits + 1) for row in distances]
    np.testing.assert_array_equal(distance_histogram(a, b, bits, allowed=allowed), expected)


@pytest.mark.parametrize(("length", "bits"), [(3, 3), (16, 9), (40, 40), (130, 100)])
@pytest.mark.parametrize("k", [1, 7, 600])
def test_relaxed_queries_rank_by_inner_product(length, bits, k):
    values, database = np.random.default_rng(1).uniform(-1, 1, size=(4, length)), random_bits(500, length, seed=2)
    scores = values[:, :bits] @ np.where(database[:, :bits], 1.0, -1.0).T
    got = nearest_relaxed(values, Codes.from_bits(database), k, bits)
    expected = np.argsort(-scores.round(9), axis=1, kind="stable")[:, :k]  # equal codes tie, whatever the rounding
    np.testing.assert_array_equal(got.rows, expected)
    np.testing.assert_allclose(got.scores, np.take_along_axis(scores, expected, axis=1), atol=1e-12)
    assert (got.counts == min(k, 500)).all()


@pytest.mark.parametrize("k", [1, 30, 300])
def test_relaxed_queries_find_only_allowed_rows(k):
    values, database = np.random.default_rng(1).uniform(-1, 1, size=(3, 30)), random_bits(300, 30, seed=2)
    allowed = np.arange(300) % 5 > 2
    rows = np.flatnonzero(allowed)
    scores = values @ np.where(database[rows], 1.0, -1.0).T
    got = nearest_relaxed(values, Codes.from_bits(database), k, allowed=allowed)
    np.testing.assert_array_equal(got.rows, rows[np.argsort(-scores, axis=1, kind="stable")[:, :k]])
    assert (got.counts == min(k, len(rows))).all()


def test_relaxed_queries_of_plus_and_minus_one_rank_by_hamming_distance():
    queries, database = random_bits(3, 24, seed=1), random_bits(400, 24, seed=2)
    codes = Codes.from_bits(database)
    hard = nearest(Codes.from_bits(queries), codes, 90)
    soft = nearest_relaxed(np.where(queries, 1, -1), codes, 90)
    np.testing.assert_array_equal(soft.rows, hard.rows)
    np.testing.assert_array_equal(soft.scores, 24 - 2.0 * hard.distances)


@pytest.mark.parametrize("candidates", [12, 60, 400])
def test_two_stages_rank_the_hamming_candidates_by_inner_product(candidates):
    values, database = np.random.default_rng(1).uniform(-1, 1, size=(4, 30)), random_bits(400, 30, seed=2)
    allowed, codes = np.arange(400) % 4 > 0, Codes.from_bits(database)
    got = nearest_relaxed(values, codes, 12, candidates=candidates, allowed=allowed)
    scores = values @ np.where(database, 1.0, -1.0).T
    near = nearest(Codes.binarize(values), codes, candidates, allowed=allowed).rows
    for q, rows in enumerate(near):
        expected = sorted(rows, key=lambda row, q=q: (-scores[q, row], row))[:12]
        np.testing.assert_array_equal(got.rows[q], expected)


@pytest.mark.parametrize(
    ("search", "option", "found"),
    [
        (lambda codes: nearest(codes, codes, 1, allowed=np.ones(3, bool)), "allowed", "(3,)"),
        (lambda codes: within(codes, codes, 1, allowed=np.ones(3, bool)), "allowed", "(3,)"),
        (lambda codes: nearest(codes, codes, 1, max_distance=-1), "max_distance", "-1"),
        (lambda codes: nearest(codes, codes, 1, max_distance=1.5), "max_distance", "1.5"),
        (lambda codes: within(codes, codes, -1), "radius", "-1"),
        (lambda codes: nearest_relaxed(np.zeros((1, 20)), codes, 3, candidates=2), "candidates", "2"),
        (lambda codes: nearest_relaxed(np.zeros((1, 20)), codes, 3, candidates=3.5), "candidates", "3.5"),
    ],
)
def test_arguments_out_of_range_are_refused(search, option, found):
    with pytest.raises(DataError) as caught:
        search(Codes.from_bits(random_bits(4, 20)))
    assert caught.value.option == option and found in caught.value.problem


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (np.zeros((2, 19)), "(2, 19)"),
        (np.where(np.arange(40).reshape(2, 20) == 23, np.nan, 0.5), "[1, 3]"),
    ],
)
def test_invalid_relaxed_queries_are_refused(values, found):
    with pytest.raises(DataError) as caught:
        nearest_relaxed(values, Codes.from_bits(random_bits(4, 20)), 1)
    assert caught.value.field == "relaxed queries" and found in caught.value.problem
