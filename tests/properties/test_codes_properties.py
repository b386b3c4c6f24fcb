"""What holds for any codes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from multibit.codes import Codes, hamming_distances
from multibit.codes.distance import nearest, nearest_relaxed, within
from multibit.codes.lists import PrunedLists

quick = settings(max_examples=50, deadline=None)


@st.composite
def two_sets(draw, most_bits=150):
    """Bits of some queries and of a database, of one length."""
    length = draw(st.integers(1, most_bits))
    queries, database = (draw(arrays(np.uint8, (draw(st.integers(1, 12)), length), elements=st.integers(0, 1)))
                         for _ in range(2))  # fmt: skip
    return queries, database


def distances_by_definition(queries, database):
    return (queries[:, None] != database[None]).sum(axis=2)


@given(two_sets(), st.data())
@quick
def test_packing_then_cutting_is_cutting_then_packing(sets, data):
    bits, _ = sets
    cut = data.draw(st.integers(1, bits.shape[1]))
    assert Codes.from_bits(bits).prefix(cut) == Codes.from_bits(bits[:, :cut])


@given(two_sets())
@quick
def test_bits_signs_and_bytes_come_back(sets):
    bits, _ = sets
    codes = Codes.from_bits(bits)
    np.testing.assert_array_equal(codes.to_bits(), bits)
    assert Codes.binarize(codes.to_signs()) == codes
    assert Codes.from_bytes(codes.to_bytes(), codes.bits) == codes


@given(arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 40)), elements=st.floats(allow_nan=False)))
@quick
def test_the_sign_bit_is_one_from_zero_up(values):
    np.testing.assert_array_equal(Codes.binarize(values).to_bits(), np.where(values < 0, 0, 1))


@given(two_sets(), st.data())
@quick
def test_distances_at_any_prefix_count_differing_bits(sets, data):
    queries, database = sets
    cut = data.draw(st.integers(1, queries.shape[1]))
    got = hamming_distances(Codes.from_bits(queries), Codes.from_bits(database), cut)
    np.testing.assert_array_equal(got, distances_by_definition(queries[:, :cut], database[:, :cut]))


@given(two_sets())
@quick
def test_distance_is_a_metric(sets):
    queries, database = sets
    a, b = Codes.from_bits(queries), Codes.from_bits(database)
    across, within = hamming_distances(a, b).astype(int), hamming_distances(b, b).astype(int)
    np.testing.assert_array_equal(hamming_distances(b, a), across.T)
    assert not np.diag(within).any()
    assert (across[:, :, None] <= across[:, None, :] + within[None]).all()


@given(two_sets(), st.data())
@quick
def test_flipping_the_same_bits_everywhere_changes_no_distance(sets, data):
    queries, database = sets
    length = queries.shape[1]
    mask = data.draw(arrays(np.uint8, length, elements=st.integers(0, 1)))
    before = hamming_distances(Codes.from_bits(queries), Codes.from_bits(database))
    np.testing.assert_array_equal(
        hamming_distances(Codes.from_bits(queries ^ mask), Codes.from_bits(database ^ mask)), before
    )


@given(two_sets(), st.data())
@quick
def test_a_longer_prefix_is_never_closer(sets, data):
    queries, database = sets
    cut = data.draw(st.integers(1, queries.shape[1]))
    a, b = Codes.from_bits(queries), Codes.from_bits(database)
    assert (hamming_distances(a, b, cut) <= hamming_distances(a, b)).all()


@given(two_sets(most_bits=6), st.integers(1, 15), st.sampled_from([1, 2, 5]))
@quick
def test_nearest_is_the_stable_order_of_the_distances(sets, k, threads):
    queries, database = sets
    distances = distances_by_definition(queries, database)
    expected = np.argsort(distances, axis=1, kind="stable")[:, :k]
    found = nearest(Codes.from_bits(queries), Codes.from_bits(database), k, threads=threads)
    np.testing.assert_array_equal(found.rows, expected)
    np.testing.assert_array_equal(found.distances, np.take_along_axis(distances, expected, axis=1))


@given(st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 12), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_nearest_is_the_stable_order_at_any_size(items, k, length, seed):
    bits = np.random.default_rng(seed).integers(0, 2, size=(items, length), dtype=np.uint8)
    distances = distances_by_definition(bits[:1], bits)
    found = nearest(Codes.from_bits(bits[:1]), Codes.from_bits(bits), k)
    np.testing.assert_array_equal(found.rows, np.argsort(distances, axis=1, kind="stable")[:, :k])


@given(two_sets(), st.data())
@quick
def test_fewer_neighbours_are_the_first_of_more(sets, data):
    queries, database = sets
    a, b = Codes.from_bits(queries), Codes.from_bits(database)
    few = data.draw(st.integers(1, len(database)))
    np.testing.assert_array_equal(nearest(a, b, few).rows, nearest(a, b, len(database)).rows[:, :few])


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 70), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_relaxed_search_is_the_stable_order_of_the_scores(items, length, k, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(-4, 5, size=(3, length)) / 4  # sums of quarters are exact, so ties are
    bits = rng.integers(0, 2, size=(items, length))
    scores = values @ (2.0 * bits - 1).T
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    found = nearest_relaxed(values, Codes.from_bits(bits), k)
    np.testing.assert_array_equal(found.rows, expected)
    np.testing.assert_array_equal(found.scores, np.take_along_axis(scores, expected, axis=1))


@given(two_sets(most_bits=20), st.integers(0, 21))
@quick
def test_within_a_radius_are_the_first_of_all_neighbours(sets, radius):
    queries, database = sets
    a, b = Codes.from_bits(queries), Codes.from_bits(database)
    ranged, ranked = within(a, b, radius), nearest(a, b, len(database))
    for q in range(len(queries)):
        hits = slice(ranged.offsets[q], ranged.offsets[q + 1])
        inside = ranked.distances[q] <= radius
        np.testing.assert_array_equal(ranged.rows[hits], ranked.rows[q][inside])
        np.testing.assert_array_equal(ranged.distances[hits], ranked.distances[q][inside])


@given(st.integers(1, 2000), st.integers(1, 40), st.integers(1, 2100), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_pruned_lists_find_what_the_scan_finds_unless_they_give_a_query_up(items, lists, k, seed):
    rng = np.random.default_rng(seed)
    centres = rng.integers(0, 2, size=(1 + lists // 2, 33))
    database = centres[rng.integers(len(centres), size=items)] ^ (rng.random((items, 33)) < 0.02)
    codes, queries = Codes.from_bits(database), Codes.from_bits(database[:8])
    allowed, farthest = rng.random(items) < 0.7, int(rng.integers(0, 34))
    pruned = PrunedLists.build(codes, lists, seed=seed)
    for limits in ({}, {"allowed": allowed}, {"max_distance": farthest}):
        expected = nearest(queries, codes, k, **limits)
        found, given_up = pruned.nearest(queries, k, **limits)
        for q in set(range(len(queries))) - set(given_up.tolist()):
            count = expected.counts[q]
            assert found.counts[q] == count
            np.testing.assert_array_equal(found.rows[q, :count], expected.rows[q, :count])
            np.testing.assert_array_equal(found.distances[q, :count], expected.distances[q, :count])
            assert (found.rows[q, count:] == -1).all()


def test_pruned_lists_of_clustered_codes_give_no_query_up_and_say_so():
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 2, size=(60, 64))
    codes = Codes.from_bits(centres[rng.integers(60, size=3000)] ^ (rng.random((3000, 64)) < 0.01))
    pruned = PrunedLists.build(codes, 60)
    assert not len(pruned.nearest(codes.take(range(20)), 5)[1])
    assert pruned.worthwhile
