"""Indices whose places were edited and sealed again: an error of ours at the first use, and in a check of all of it."""

from __future__ import annotations

import numpy as np
import pytest

from multibit import Codes, Index
from multibit.codes.lists import PrunedLists
from multibit.errors import DataError, FormatError
from multibit.files import read_arrays, write_arrays
from multibit.search.storage import PART_VERSION, SEGMENT, require_sound

FAR = 2**40


@pytest.fixture
def index(tmp_path):
    made = Index("model", "exact", "image")
    payloads = [{"t": f"text {row}", "l": ["x", "y"]} for row in range(9)]
    made.add([f"id {row}" for row in range(9)], Codes.from_bits(np.eye(9, 20, dtype=bool)), payloads)
    made.save(tmp_path / "a.mbx")
    return tmp_path / "a.mbx"


def crafted(index, name, place, value):
    """Change a value of an array of the segment, with a checksum of it."""
    (path,) = index.glob("segment-*")
    arrays, header = read_arrays(path, kind=SEGMENT, version=PART_VERSION)
    arrays = {key: np.array(array) for key, array in arrays.items()}
    if name == "metadata":  # Arrow's stream: the offsets are among its words
        words = arrays[name].view(np.int64)
        (found,) = np.flatnonzero((words[:-1] == place) & (words[1:] == place + 6))
        words[found] = value
    else:
        arrays[name][place] = value
    write_arrays(path, arrays, header, kind=SEGMENT, version=PART_VERSION)
    return index


def search(path):
    opened = Index.open(path)
    query = Codes.from_bits(np.eye(1, 20, dtype=bool))
    return opened.search(query, 9).hits(), list(opened.ids)


def find(path):
    with Index.editing(path) as writer:
        writer.upsert([f"id {row}" for row in range(9)], Codes.from_bits(np.ones((9, 20), bool)), [{}] * 9)


CRAFTED = [
    ("ids_offsets", 3, FAR, search),
    ("ids_offsets", 3, -5, search),
    ("ids", 0, 255, search),
    ("id_rows", slice(None), FAR, find),
    ("id_rows", slice(None), -FAR, find),
    ("metadata", 24, FAR, search),
    ("metadata", 24, -FAR, search),
]


@pytest.mark.parametrize(("name", "place", "value", "use"), CRAFTED)
def test_a_place_outside_of_the_file_is_refused_when_it_is_used(index, name, place, value, use):
    crafted(index, name, place, value)
    with pytest.raises(FormatError):
        use(index)
    with pytest.raises(FormatError) as caught:
        require_sound(index)
    assert caught.value.file.parent == index


def test_a_lookup_of_other_rows_is_found_by_the_check(index):
    crafted(index, "id_rows", slice(None), np.roll(np.arange(9), 1))
    with pytest.raises(FormatError) as caught:
        require_sound(index)
    assert caught.value.field == "id_rows"


def test_an_index_as_it_was_written_is_sound(index):
    require_sound(index)
    assert len(search(index)[1]) == 9


@pytest.mark.parametrize("row", [-1, 64, FAR])
def test_lists_of_rows_that_do_not_exist_are_refused(row):
    codes = Codes.from_bits(np.random.default_rng(0).integers(0, 2, (64, 16), np.uint8))
    built = PrunedLists.build(codes, lists=4)
    built.require_of(codes)
    arrays = {
        "words": built.codes.words, "order": built.order.copy(), "centroids": built.centroids.words,
        "rings": built.rings,
    }  # fmt: skip
    arrays["order"][5] = row
    found = PrunedLists.from_arrays(codes, arrays, {"visited": 0.01, "lists": 4})
    for use in (lambda: found.nearest(codes.take([0]), 3), lambda: found.require_of(codes)):
        with pytest.raises(DataError) as caught:
            use()
        assert caught.value.field == "order"
    with pytest.raises(DataError):
        built.require_of(codes.take(np.arange(64)[::-1].copy()))
