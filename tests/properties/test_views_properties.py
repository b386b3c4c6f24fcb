"""What holds for any items with several codes each."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from multibit.codes import Codes, hamming_distances
from multibit.codes.distance import distance_histogram, nearest, within
from multibit.evaluation.metrics import count_rankings

quick = settings(max_examples=50, deadline=None)


@st.composite
def two_sets(draw, most_bits=40):
    """Bits (N, V, B) of some queries and of a database, of one length, each with its own number of views."""
    length = draw(st.integers(1, most_bits))
    shapes = [(draw(st.integers(1, 8)), draw(st.integers(1, 4)), length) for _ in range(2)]
    return tuple(draw(arrays(np.uint8, shape, elements=st.integers(0, 1))) for shape in shapes)


def results(a, b):
    """Everything that is found by distance."""
    ranked, ranged = nearest(a, b, len(b)), within(a, b, a.bits // 2)
    labels = np.ones((len(a), 1)), np.arange(len(b))[:, None] % 2
    counts = count_rankings(a, b, *labels)
    found = [vars(each).values() for each in (ranked, ranged, counts)]
    return [hamming_distances(a, b), distance_histogram(a, b), *itertools.chain(*found)]


def assert_same(one, other):
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@given(two_sets(), st.data())
@quick
def test_the_distance_is_the_least_of_all_pairs_at_any_prefix(sets, data):
    queries, database = sets
    cut = data.draw(st.integers(1, queries.shape[2]))
    pairs = (queries[:, None, :, None, :cut] != database[None, :, None, :, :cut]).sum(axis=-1)
    found = hamming_distances(Codes.from_bits(queries), Codes.from_bits(database), cut)
    np.testing.assert_array_equal(found, pairs.min(axis=(2, 3)))


@given(two_sets())
@quick
def test_the_distance_is_symmetric_and_an_item_is_at_zero_from_itself(sets):
    a, b = map(Codes.from_bits, sets)
    np.testing.assert_array_equal(hamming_distances(a, b), hamming_distances(b, a).T)
    assert not np.diag(hamming_distances(a, a)).any()


@given(two_sets(), st.integers(1, 4), st.integers(1, 4))
@quick
def test_views_that_are_all_equal_are_one(sets, asked, views):
    one = [Codes.from_bits(bits[:, 0]) for bits in sets]
    more = [Codes.from_bits(np.repeat(bits[:, :1], count, 1)) for bits, count in zip(sets, (asked, views), strict=True)]
    assert_same(results(*one), results(*more))


@given(two_sets(), st.data())
@quick
def test_a_view_that_is_there_twice_changes_nothing(sets, data):
    twice = [np.concatenate([bits, bits[:, [data.draw(st.integers(0, bits.shape[1] - 1))]]], axis=1) for bits in sets]
    assert_same(results(*map(Codes.from_bits, sets)), results(*map(Codes.from_bits, twice)))


@given(two_sets(), st.randoms(use_true_random=False))
@quick
def test_the_order_of_the_views_does_not_matter(sets, random):
    shuffled = [bits[:, random.sample(range(bits.shape[1]), bits.shape[1])] for bits in sets]
    assert_same(results(*map(Codes.from_bits, sets)), results(*map(Codes.from_bits, shuffled)))


@given(two_sets())
@quick
def test_another_view_never_takes_an_item_further_away(sets):
    queries, database = sets
    fewer = hamming_distances(Codes.from_bits(queries), Codes.from_bits(database[:, :1]))
    assert (hamming_distances(Codes.from_bits(queries), Codes.from_bits(database)) <= fewer).all()


@given(two_sets())
@quick
def test_every_search_agrees_with_the_distances(sets):
    a, b = map(Codes.from_bits, sets)
    distances = hamming_distances(a, b)
    order = np.argsort(distances, axis=1, kind="stable")
    found = nearest(a, b, len(b))
    np.testing.assert_array_equal(found.rows, order)
    np.testing.assert_array_equal(found.distances, np.take_along_axis(distances, order, axis=1))
    for q, line in enumerate(distances):
        np.testing.assert_array_equal(distance_histogram(a, b)[q], np.bincount(line, minlength=a.bits + 1))


@given(two_sets(), st.data())
@quick
def test_packing_then_cutting_is_cutting_then_packing(sets, data):
    bits, _ = sets
    start = data.draw(st.integers(0, bits.shape[2] - 1))
    stop = data.draw(st.integers(start + 1, bits.shape[2]))
    assert Codes.from_bits(bits).columns(slice(start, stop)) == Codes.from_bits(bits[:, :, start:stop])
    assert Codes.from_bits(bits).prefix(stop) == Codes.from_bits(bits[:, :, :stop])


@given(two_sets())
@quick
def test_codes_side_by_side_are_cut_into_views(sets):
    bits, _ = sets
    flat = bits.reshape(len(bits), -1)
    assert Codes.from_bits(flat).columns(slice(0, flat.shape[1]), bits.shape[1]) == Codes.from_bits(bits)
