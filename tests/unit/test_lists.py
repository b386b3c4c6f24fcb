"""Pruned lists: every code in the list of its nearest centroid, and the same answers as a scan."""

import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multibit.codes import Codes, kernels, list_kernels, lists
from multibit.codes.compiling import is_compiled
from multibit.codes.lists import PrunedLists
from multibit.search.engines.lists import ListsEngine


@pytest.fixture
def small(monkeypatch):
    """Small collections are put in lists, and looked up there however many codes that costs."""
    monkeypatch.setattr(lists, "SMALLEST", 1)
    monkeypatch.setattr(lists, "WORTHWHILE", 1.0)


def random_bits(items, length, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (items, length), np.uint8)


def clustered_bits(items, length, centres=8, share=0.05, seed=1):
    rng = np.random.default_rng(seed)
    flips = rng.random((items, length)) < share
    return random_bits(centres, length, seed=2)[rng.integers(centres, size=items)] ^ flips.astype(np.uint8)


def plain_nearest(query, database, k, allowed=None, max_distance=None):
    distances = (database != query).sum(axis=1)
    order = np.argsort(distances, kind="stable")
    kept = np.ones(len(database), bool) if allowed is None else allowed
    order = order[kept[order] & (distances[order] <= (len(query) if max_distance is None else max_distance))]
    return order[:k].tolist(), distances[order[:k]].tolist()


def assert_plain(found, queries, database, k, skip=(), **limits):
    for q in sorted(set(range(len(queries))) - set(skip)):
        rows, distances = plain_nearest(queries[q], database, k, **limits)
        count = found.counts[q]
        assert (found.rows[q, :count].tolist(), found.distances[q, :count].tolist()) == (rows, distances)


# Building


@pytest.mark.parametrize("length", [1, 20, 64, 130])
@pytest.mark.parametrize("wanted", [None, 1, 5, 300, 999])
def test_every_code_is_in_the_ring_of_its_distance_in_the_list_of_its_nearest_centroid(small, wanted, length):
    bits = clustered_bits(300, length)
    built = PrunedLists.build(Codes.from_bits(bits), wanted)
    assert len(built.centroids) == (17 if wanted is None else min(wanted, 300))
    assert sorted(built.order) == list(range(300))
    assert np.array_equal(built.codes.to_bits(), bits[built.order])
    centroids = built.centroids.to_bits()
    assert built.rings.shape == (len(centroids), length + 2)
    seen = 0
    for at, ring in enumerate(built.rings):
        assert ring[0] == seen
        for distance in range(length + 1):
            for member in bits[built.order[ring[distance] : ring[distance + 1]]]:
                away = (centroids != member).sum(axis=1)
                assert away[at] == distance == away.min()
        seen = ring[-1]
    assert seen == 300


def test_the_members_of_a_ring_stay_in_row_order(small):
    built = PrunedLists.build(Codes.from_bits(clustered_bits(500, 12)), 4)
    for ring in built.rings:
        for first, last in itertools.pairwise(ring):
            assert (np.diff(built.order[first:last]) > 0).all()


@pytest.mark.parametrize("wanted", [1, 7, 200])
def test_the_reach_of_a_list_is_its_farthest_member(small, wanted):
    built = PrunedLists.build(Codes.from_bits(clustered_bits(200, 30)), wanted)
    centroids, members = built.centroids.to_bits(), built.codes.to_bits()
    for at, ring in enumerate(built.rings):
        away = (members[ring[0] : ring[-1]] != centroids[at]).sum(axis=1)
        assert built.reach[at] == max(away, default=-1)


def test_the_same_seed_builds_the_same_lists_and_another_seed_others(small):
    codes = Codes.from_bits(random_bits(400, 40))
    one, same, other = (PrunedLists.build(codes, seed=seed) for seed in (3, 3, 4))
    assert one.centroids == same.centroids and np.array_equal(one.order, same.order) and one.visited == same.visited
    assert one.centroids != other.centroids


@pytest.mark.parametrize("items", [1, 2, 7, 30])
def test_the_centroid_of_a_single_list_is_the_majority_of_all_codes_and_an_even_vote_is_a_one(small, items):
    bits = random_bits(items, 50)
    assert items == 1 or items % 2 or (2 * bits.sum(axis=0) == items).any()
    built = PrunedLists.build(Codes.from_bits(bits), 1)
    assert np.array_equal(built.centroids.to_bits(), [2 * bits.sum(axis=0) >= items])


# Whether lists pay


def test_few_codes_are_scanned_and_the_reason_is_given():
    built = PrunedLists.build(Codes.from_bits(random_bits(300, 40)))
    assert built.reason.startswith("plain scan") and "300" in built.reason
    assert not built.worthwhile and len(built.centroids) == 0


def test_random_codes_are_scanned_and_the_reason_is_given():
    engine = ListsEngine(Codes.from_bits(random_bits(lists.SMALLEST, 64)))
    assert engine.reason.startswith("plain scan") and "141 lists" in engine.reason


def test_clustered_codes_are_searched_in_lists_and_the_reason_is_given():
    bits = clustered_bits(lists.SMALLEST, 128, centres=300, share=0.02)
    engine = ListsEngine(Codes.from_bits(bits))
    assert engine.reason.startswith("pruned lists")
    queries = np.concatenate([bits[[5, 17_000]], random_bits(2, 128, seed=5)])
    assert_plain(engine.search(Codes.from_bits(queries), 30, 128), queries, bits, 30)


@pytest.mark.parametrize("length", [3, 64])
@pytest.mark.parametrize("items", [1, 9, 70])
def test_the_share_of_visited_codes_is_between_0_and_1(small, items, length):
    for bits in (random_bits(items, length), clustered_bits(items, length), np.zeros((items, length), np.uint8)):
        assert 0 < PrunedLists.build(Codes.from_bits(bits)).visited <= 1


# Looking up


@pytest.mark.parametrize("wanted", [1, 2, 5, 40, 500])
@pytest.mark.parametrize("k", [1, 10, 499, 501])
def test_any_number_of_lists_gives_the_answers_of_a_scan(small, k, wanted):
    bits, queries = clustered_bits(500, 30), np.concatenate([clustered_bits(4, 30, seed=8), random_bits(4, 30, seed=9)])
    found, given_up = PrunedLists.build(Codes.from_bits(bits), wanted).nearest(Codes.from_bits(queries), k)
    assert len(given_up) == 0 and (found.counts == min(k, 500)).all()
    assert_plain(found, queries, bits, k)


@pytest.mark.parametrize("k", [1, 3, 2000, 4999])
@pytest.mark.parametrize("kind", ["equal", "two codes", "short", "from far to near"])
def test_more_ties_than_the_candidates_hold_are_still_cut_by_row(small, kind, k):
    """The candidates are trimmed on the way when more than 2 k + 3,072 stand at the cut."""
    items = 9000
    bits = {
        "equal": np.ones((items, 20), np.uint8),
        "two codes": np.repeat(np.arange(items) % 2, 20).reshape(items, 20).astype(np.uint8),
        "short": random_bits(items, 3),
        "from far to near": (np.arange(20) < (np.arange(items) * 21 // items)[:, None]).astype(np.uint8),
    }[kind]
    queries = np.concatenate([bits[[0, -1]], 1 - bits[:1]])
    built = PrunedLists.build(Codes.from_bits(bits), 6)
    found, given_up = built.nearest(Codes.from_bits(queries), k)
    assert len(given_up) == 0
    assert_plain(found, queries, bits, k)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("farthest", [None, 0, 3, 50])
def test_filter_and_largest_distance_hold_in_lists(small, farthest, share):
    bits, queries = clustered_bits(800, 40), clustered_bits(5, 40, seed=8)
    allowed = np.random.default_rng(4).random(800) < share
    built = PrunedLists.build(Codes.from_bits(bits), 12)
    found, _ = built.nearest(Codes.from_bits(queries), 20, allowed=allowed, max_distance=farthest)
    assert_plain(found, queries, bits, 20, allowed=allowed, max_distance=farthest)


def test_a_filter_on_one_list_leaves_the_others_unseen(small):
    bits = clustered_bits(600, 40)
    built = PrunedLists.build(Codes.from_bits(bits), 10)
    at = int(np.diff(built.rings[:, [0, -1]], axis=1).argmax())
    allowed = np.zeros(600, bool)
    allowed[built.order[built.rings[at, 0] : built.rings[at, -1]]] = True
    queries = random_bits(6, 40, seed=3)
    found, _ = built.nearest(Codes.from_bits(queries), 600, allowed=allowed)
    assert (found.counts == allowed.sum()).all()
    assert_plain(found, queries, bits, 600, allowed=allowed)


def two_kinds_of_queries():
    """Codes in clusters, queries out of them (bounds help) and of no relation (they do not)."""
    bits = clustered_bits(3000, 128, centres=40, share=0.01)
    return bits, np.concatenate([bits[:6], random_bits(6, 128, seed=9)])


def test_only_queries_whose_bounds_do_not_help_are_given_up(monkeypatch):
    monkeypatch.setattr(lists, "SMALLEST", 1)
    monkeypatch.setattr(lists, "WORTHWHILE", 0.1)
    bits, queries = two_kinds_of_queries()
    found, given_up = PrunedLists.build(Codes.from_bits(bits)).nearest(Codes.from_bits(queries), 5)
    assert given_up.tolist() == [6, 7, 8, 9, 10, 11]
    assert_plain(found, queries, bits, 5, skip=given_up)


@pytest.mark.parametrize("limits", [{}, {"max_distance": 45}, {"allowed": np.arange(3000) % 3 > 0}])
def test_queries_that_are_given_up_are_scanned_and_put_in_their_place(monkeypatch, limits):
    monkeypatch.setattr(lists, "SMALLEST", 1)
    monkeypatch.setattr(lists, "WORTHWHILE", 0.1)
    bits, queries = two_kinds_of_queries()
    order = np.random.default_rng(0).permutation(len(queries))
    engine = ListsEngine(Codes.from_bits(bits))
    assert engine.reason.startswith("pruned lists")
    assert_plain(engine.search(Codes.from_bits(queries[order]), 25, 128, **limits), queries[order], bits, 25, **limits)


def test_with_so_few_lists_that_all_are_visited_no_query_is_given_up(monkeypatch):
    monkeypatch.setattr(lists, "WORTHWHILE", 0.0)
    bits, queries = two_kinds_of_queries()
    for wanted, given_up in [(list_kernels.FIRST_LISTS, 0), (list_kernels.FIRST_LISTS + 20, 12)]:
        built = PrunedLists.build(Codes.from_bits(bits), wanted)
        assert len(built.nearest(Codes.from_bits(queries), 5)[1]) == given_up


@pytest.mark.parametrize("threads", [1, 2, 5, 64])
def test_any_number_of_threads_finds_and_gives_up_the_same(monkeypatch, threads):
    monkeypatch.setattr(lists, "WORTHWHILE", 0.1)
    bits, queries = two_kinds_of_queries()
    built, asked = PrunedLists.build(Codes.from_bits(bits), 50), Codes.from_bits(np.tile(queries, (5, 1)))
    (one, given_up), (other, also) = (built.nearest(asked, 9, threads=count) for count in (None, threads))
    assert given_up.tolist() == also.tolist() and len(given_up) == 30
    assert np.array_equal(one.rows, other.rows) and np.array_equal(one.distances, other.distances)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_lists_answer_as_a_scan_does(data):
    length, items = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 60))
    code = st.integers(0, 2**length - 1)
    pool = data.draw(st.lists(code, min_size=1, max_size=6))
    numbers = data.draw(st.lists(st.sampled_from(pool) | code, min_size=items, max_size=items))
    asked = data.draw(st.lists(st.sampled_from(pool) | code, min_size=1, max_size=4))
    bits, queries = ([[n >> j & 1 for j in range(length)] for n in part] for part in (numbers, asked))
    bits, queries = np.array(bits, np.uint8), np.array(queries, np.uint8)
    k, wanted = data.draw(st.integers(1, items + 1)), data.draw(st.integers(1, items))
    limits = {
        "max_distance": data.draw(st.none() | st.integers(0, length + 1)),
        "allowed": data.draw(st.none() | st.lists(st.booleans(), min_size=items, max_size=items).map(np.array)),
    }
    with mock.patch.object(lists, "WORTHWHILE", 1.0):
        found, given_up = PrunedLists.build(Codes.from_bits(bits), wanted).nearest(
            Codes.from_bits(queries), k, **limits
        )
    assert len(given_up) == 0
    assert_plain(found, queries, bits, k, **limits)


def test_a_compiled_lookup_is_known_to_be_compiled_on_disk(small, monkeypatch):
    codes = Codes.from_bits(random_bits(50, 16))
    PrunedLists.build(codes).nearest(codes, 1)
    kernel = list_kernels.nearest_in_lists
    if kernel.stats.cache_path is None:
        pytest.skip("compiled kernels cannot be kept on this machine")
    monkeypatch.setattr(type(kernel), "signatures", property(lambda _: []))  # as in a process that did not use it yet
    assert is_compiled(kernels.nearest)
    assert is_compiled(kernel)
