"""Range search and distance histograms against counting with numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multibit import Codes
from multibit.codes.distance import distance_histogram, nearest, within
from multibit.codes.kernels import CHUNK
from multibit.errors import DataError

LENGTHS = [1, 7, 8, 16, 17, 63, 64, 65, 128, 129, 256]


def random_bits(items, length, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (items, length), np.uint8)


def plain_distances(queries, database):
    return (queries[:, None] != database[None]).sum(axis=2)


def split(found):
    """Rows and distances of each query."""
    edges = found.offsets[1:-1]
    return [part.tolist() for part in np.split(found.rows, edges)], [
        part.tolist() for part in np.split(found.distances, edges)
    ]


def plain_within(distances, radius, allowed=None):
    """Rows and distances of each query, by (distance, row)."""
    rows, near = [], []
    for line in distances:
        order = np.argsort(line, kind="stable")
        kept = order[(line[order] <= radius) & (True if allowed is None else allowed[order])]
        rows.append(kept.tolist())
        near.append(line[kept].tolist())
    return rows, near


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("items", [1, 64, 65, 700])
def test_every_row_inside_the_radius_is_found_by_distance_then_row(items, length):
    queries, database = random_bits(5, length, seed=1), random_bits(items, length, seed=2)
    distances = plain_distances(queries, database)
    for radius in {0, 1, length // 2 - 1, length // 2, length - 1, length, length + 9} - {-1}:
        found = within(Codes.from_bits(queries), Codes.from_bits(database), radius)
        assert split(found) == plain_within(distances, radius)


@pytest.mark.parametrize("items", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1])
@pytest.mark.parametrize("filtered", [False, True])
def test_rows_at_the_edges_of_the_pieces_that_are_read_together_are_found(items, filtered):
    database = np.ones((items, 20), np.uint8)
    inside = [row for row in (0, CHUNK - 1, CHUNK, items - 1) if row < items]
    database[inside] = 0
    allowed = np.arange(items) != inside[-1] if filtered else None
    found = within(Codes.from_bits(np.zeros((1, 20))), Codes.from_bits(database), 19, allowed=allowed)
    assert found.rows.tolist() == [row for row in sorted(set(inside)) if not filtered or row != inside[-1]]


@pytest.mark.parametrize("bits", [1, 15, 16, 30])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_a_filter_and_a_prefix_hold_together(bits, share):
    queries, database = random_bits(4, 30, seed=1), random_bits(900, 30, seed=2)
    allowed = np.random.default_rng(3).random(900) < share
    distances = plain_distances(queries[:, :bits], database[:, :bits])
    a, b = Codes.from_bits(queries), Codes.from_bits(database)
    for radius in (0, bits // 3, bits):
        assert split(within(a, b, radius, bits, allowed=allowed)) == plain_within(distances, radius, allowed)
    expected = [np.bincount(line[allowed], minlength=bits + 1) for line in distances]
    np.testing.assert_array_equal(distance_histogram(a, b, bits, allowed=allowed), expected)


@pytest.mark.parametrize("length", [8, 64, 128])
def test_range_search_equals_that_of_faiss(length):
    faiss = pytest.importorskip("faiss", reason='faiss is not installed: pip install "multibit[faiss]"')
    a, b = Codes.from_bits(random_bits(6, length, seed=1)), Codes.from_bits(random_bits(2000, length, seed=2))
    index = faiss.IndexBinaryFlat(length)
    index.add(b.to_bytes())
    radius = length // 2 - 2
    offsets, distances, rows = index.range_search(a.to_bytes(), radius + 1)  # faiss: strictly below
    found = within(a, b, radius)
    np.testing.assert_array_equal(found.offsets, offsets)
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        order = np.lexsort((rows[first:last], distances[first:last]))
        np.testing.assert_array_equal(found.rows[first:last], rows[first:last][order])
        np.testing.assert_array_equal(found.distances[first:last], distances[first:last][order])


@pytest.mark.parametrize("length", LENGTHS)
def test_the_histogram_counts_the_rows_at_each_distance(length):
    queries, database = random_bits(3, length, seed=1), random_bits(1700, length, seed=2)
    got = distance_histogram(Codes.from_bits(queries), Codes.from_bits(database))
    expected = [np.bincount(line, minlength=length + 1) for line in plain_distances(queries, database)]
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == np.int64


@pytest.mark.parametrize("threads", [1, 2, 3, 40])
def test_any_number_of_threads_gives_the_same_answer(threads):
    a, b = Codes.from_bits(random_bits(70, 40, seed=1)), Codes.from_bits(random_bits(800, 40, seed=2))
    one, other = within(a, b, 17), within(a, b, 17, threads=threads)
    for name in ("offsets", "rows", "distances"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(distance_histogram(a, b), distance_histogram(a, b, threads=threads))


def test_answers_have_the_promised_types():
    codes = Codes.from_bits(random_bits(9, 20))
    found = within(codes, codes, 5)
    assert (found.offsets.dtype, found.rows.dtype, found.distances.dtype) == (np.int64, np.int64, np.uint16)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 2**18 - 1), min_size=1, max_size=30),
    st.lists(st.integers(0, 2**18 - 1), min_size=1, max_size=4),
    st.integers(1, 18),
    st.integers(0, 20),
)
def test_range_search_is_nearest_search_up_to_a_distance(numbers, asked, bits, radius):
    a, b = (
        Codes.from_bits(np.array([[n >> j & 1 for j in range(18)] for n in part], np.uint8))
        for part in (asked, numbers)
    )
    rows, distances = split(within(a, b, radius, bits))
    found = nearest(a, b, len(numbers), bits, max_distance=radius)
    assert rows == [line[:count].tolist() for line, count in zip(found.rows, found.counts, strict=True)]
    assert distances == [line[:count].tolist() for line, count in zip(found.distances, found.counts, strict=True)]
    histogram = distance_histogram(a, b, bits)
    assert histogram.sum(axis=1).tolist() == [len(numbers)] * len(asked)
    assert histogram[:, : radius + 1].sum(axis=1).tolist() == [len(line) for line in rows]


@pytest.mark.parametrize("radius", [-1, -7])
def test_a_negative_radius_is_refused(radius):
    codes = Codes.from_bits(random_bits(3, 20))
    with pytest.raises(DataError) as caught:
        within(codes, codes, radius)
    assert caught.value.option == "radius" and str(radius) in caught.value.problem
    with pytest.raises(DataError) as caught:
        nearest(codes, codes, 1, max_distance=radius)
    assert caught.value.option == "max_distance" and str(radius) in caught.value.problem


@pytest.mark.parametrize("size", [0, 2, 4])
def test_a_filter_of_another_length_is_refused(size):
    codes = Codes.from_bits(random_bits(3, 20))
    allowed = np.ones(size, bool)
    for search in (within, distance_histogram):
        with pytest.raises(DataError) as caught:
            search(codes, codes, *([4] if search is within else []), allowed=allowed)
        assert caught.value.option == "allowed"
        assert "3 codes" in caught.value.problem and f"({size},)" in caught.value.problem


@pytest.mark.parametrize("bits", [0, 21])
def test_a_prefix_that_the_codes_do_not_have_is_refused(bits):
    codes = Codes.from_bits(random_bits(3, 20))
    for search in (lambda: within(codes, codes, 4, bits), lambda: distance_histogram(codes, codes, bits)):
        with pytest.raises(DataError) as caught:
            search()
        assert caught.value.option == "bits" and str(bits) in caught.value.problem
