"""One query without Arrow and numba: the answers are those of `Index.search`."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multibit.codes import Codes
from multibit.search import Index, single
from multibit.search.single import nearest_rows, search_once

NOON = datetime.datetime(2024, 2, 29, 12, 30, 1, 5)
PAYLOADS = [
    {"text": "naïve 日本", "labels": ["a", "b"], "year": 2001, "score": 0.5, "seen": True, "day": NOON.date()},
    {"text": "", "labels": [], "year": -(2**40), "seen": False, "at": NOON, "more": {"x": [1, None]}},
    {"labels": ["b", "c", "b"], "utc": NOON.replace(tzinfo=datetime.UTC), "score": -1e300},
    {},
]


def codes(count: int, bits: int, seed: int = 0) -> Codes:
    return Codes.from_bits(np.random.default_rng(seed).integers(0, 2, (count, bits)))


def saved(tmp_path, ids, bits: int = 20, changes=lambda index: None, **options) -> Index:
    index = Index("m", modality="image", **options)
    payloads = [PAYLOADS[row % len(PAYLOADS)] for row in range(len(ids))]
    index.add(ids, codes(len(ids), bits), payloads)
    changes(index)
    index.save(tmp_path / "a.mbx")
    return Index.open(tmp_path / "a.mbx")


def once(tmp_path, query, k=5, bits=20, **options):
    return search_once(tmp_path / "a.mbx", query, k, bits, **{"model": "m", "modality": "image", **options})


IDS = {
    "numbered": range(7, 107),
    "integers": [3 * row - 50 for row in range(100)],
    "strings": [f"é{row}" for row in range(100)],
}


@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("bits", [1, 4, 16, 17, 20])
@pytest.mark.parametrize("k", [1, 10, 500])
def test_the_hits_are_those_of_the_index(tmp_path, kind, bits, k):
    index, query = saved(tmp_path, IDS[kind]), codes(1, 20, seed=1)
    found = once(tmp_path, query, k, bits)
    assert found == index.search(query, k, bits).hits()
    assert len(found) == min(k, 100)


def test_removed_items_and_several_segments_are_searched_in_order_of_age(tmp_path):
    def change(index):
        index.remove(list(range(0, 20, 2)))
        for first in (200, 300):
            index.upsert(range(first, first + 30), codes(30, 20, seed=first), [{"text": str(first)}] * 30)
        index.upsert([1, 201], codes(2, 20, seed=9), [{"year": 5}] * 2)

    index = saved(tmp_path, range(100), changes=change)
    assert len(index.version.parts) > 1
    for bits in (3, 20):
        query = codes(1, 20, seed=2)
        assert once(tmp_path, query, 60, bits) == index.search(query, 60, bits).hits()


def test_a_largest_distance_is_kept(tmp_path):
    index, query = saved(tmp_path, range(100)), codes(1, 20, seed=1)
    found = once(tmp_path, query, 50, max_distance=6)
    assert found == index.search(query, 50, max_distance=6).hits()
    assert 0 < len(found) < 50


def test_items_without_metadata_are_found(tmp_path):
    index = Index("m", modality="image")
    index.add(None, codes(9, 20))
    index.save(tmp_path / "a.mbx")
    assert once(tmp_path, codes(1, 20, seed=1)) == index.search(codes(1, 20, seed=1), 5).hits()


@pytest.mark.parametrize("options", [{"model": "other"}, {"modality": "text"}, {"bits": 21}])
def test_what_does_not_fit_is_left_to_the_index(tmp_path, options):
    saved(tmp_path, range(10))
    assert once(tmp_path, codes(1, 24), **options) is None


@pytest.mark.parametrize("damage", ["manifest", "segment", "gone"])
def test_a_damaged_index_is_left_to_the_index(tmp_path, damage):
    saved(tmp_path, range(10))
    file = tmp_path / "a.mbx" / "manifest.json"
    if damage == "segment":
        file = next((tmp_path / "a.mbx").glob("segment-*"))
    content = file.read_bytes()
    file.unlink()
    if damage != "gone":
        file.write_bytes(content.replace(b'"m"', b'"n"') if damage == "manifest" else content[:-100])
    assert once(tmp_path, codes(1, 20)) is None


def test_older_numpy_counts_ones_by_a_table():
    words = np.arange(1 << 16, dtype=np.uint16)
    assert np.array_equal(single._table(), [bin(word).count("1") for word in words.tolist()])


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(1, 50), st.integers(0, 7))
def test_the_nearest_rows_are_those_of_a_stable_sort(values, k, reach):
    distances = np.array(values, np.uint16)
    expected = [row for row in np.argsort(distances, kind="stable").tolist() if values[row] <= reach][:k]
    assert nearest_rows(distances, k, reach).tolist() == expected
