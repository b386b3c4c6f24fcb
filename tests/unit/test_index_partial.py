"""An index of which a segment is missing or corrupt: refused by name, or searched without it when asked."""

from __future__ import annotations

import json
import shutil
from unittest import mock

import numpy as np
import pyarrow.parquet
import pytest

from multibit import Codes, Index
from multibit.codes import lists
from multibit.errors import FormatError
from multibit.search.results import write_hits

BITS = np.random.default_rng(8).integers(0, 2, (3000, 32), np.uint8)
QUERIES = Codes.from_bits(BITS[[4, 1500, 2800]])
SEGMENTS = ([*range(1500)], [*range(1500, 2700)], [*range(2700, 3000)])


def rows_of(path) -> list[dict]:
    return json.loads((path / "manifest.json").read_text())["segments"]


@pytest.fixture
def path(tmp_path):
    """Three segments; an item of the first one is removed."""
    index = Index("model a")
    for rows in SEGMENTS:
        index.add(rows, Codes.from_bits(BITS[rows]), [{"n": row} for row in rows])
    index.remove([7])
    index.save(tmp_path / "a.mbx")
    assert len(rows_of(tmp_path / "a.mbx")) == 3
    return tmp_path / "a.mbx"


def damage(file, how):
    if how == "missing":
        file.unlink()
    else:
        content = file.read_bytes()
        file.write_bytes(
            content[: len(content) // 2] if how == "truncated" else content[:-1] + bytes([content[-1] ^ 1])
        )


def expected(queries, k, rows):
    """Ids of the nearest of some rows by (distance, row)."""
    bits = queries.to_bits()
    return [sorted(rows, key=lambda row: (int((BITS[row] != query).sum()), row))[:k] for query in bits]


@pytest.mark.parametrize("how", ["missing", "truncated", "changed"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_lost_segment_is_named_and_the_others_are_searched(path, number, how):
    file = path / rows_of(path)[number]["file"]
    damage(file, how)
    with pytest.raises(FormatError) as caught:
        Index.load(path)
    assert caught.value.file == file
    index = Index.load(path, partial=True)
    assert [(lost.file, lost.items) for lost in index.lost] == [(file, len(SEGMENTS[number]))]
    left = [row for at, rows in enumerate(SEGMENTS) if at != number for row in rows if row != 7]
    assert [index.ids[row] for row in range(len(index))] == left
    result = index.search(QUERIES, 9)
    assert result.ids == expected(QUERIES, 9, left) and result.lost == index.lost
    assert [hit.payload["n"] for hit in result.hits(1)] == result.ids[1]
    assert index.search(QUERIES, 3, where={"n": {"$lt": 2800}}).ids == expected(
        QUERIES, 3, [row for row in left if row < 2800]
    )


def test_without_the_list_of_removed_rows_their_segment_is_lost(path):
    damage(path / rows_of(path)[0]["removed"], "missing")
    index = Index.open(path, partial=True)
    assert len(index) == 1500 and index.ids[0] == 1500
    (lost,) = index.lost
    assert (lost.file, lost.items) == (path / rows_of(path)[0]["removed"], 1500)


def test_a_whole_index_has_lost_nothing(path):
    index = Index.open(path, partial=True)
    assert index.lost == () and index.search(QUERIES).lost == ()
    index.add([5000], QUERIES.take([0]))


def test_with_every_segment_lost_the_index_is_refused(path):
    for entry in rows_of(path):
        damage(path / entry["file"], "missing")
    with pytest.raises(FormatError) as caught:
        Index.open(path, partial=True)
    assert caught.value.file == path / rows_of(path)[2]["file"]


def test_a_corrupt_manifest_is_refused(path):
    damage(path / "manifest.json", "truncated")
    with pytest.raises(FormatError) as caught:
        Index.open(path, partial=True)
    assert caught.value.file == path / "manifest.json"


def test_a_part_of_an_index_is_not_changed(path):
    file = path / rows_of(path)[1]["file"]
    damage(file, "missing")
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    index = Index.open(path, partial=True)
    for change in (
        lambda: index.add([5000], QUERIES.take([0])),
        lambda: index.upsert([1], QUERIES.take([0])),
        lambda: index.remove([1]),
        index.compact,
        lambda: index.save(path),
        lambda: Index.merge([index]),
        lambda: index.writer().__enter__(),
        lambda: Index.editing(path).__enter__(),
    ):
        with pytest.raises(FormatError) as caught:
            change()
        assert caught.value.file == file
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before


def test_what_is_left_can_be_saved_elsewhere(path, tmp_path):
    damage(path / rows_of(path)[1]["file"], "missing")
    index = Index.open(path, partial=True)
    index.save(tmp_path / "rest.mbx")
    rest = Index.load(tmp_path / "rest.mbx")
    assert rest.lost == () and rest.codes == index.codes and len(rest) == 1799


def test_a_restored_segment_is_read_by_the_next_opening(path, tmp_path):
    file = path / rows_of(path)[1]["file"]
    file.replace(tmp_path / "kept")
    assert len(Index.open(path, partial=True)) == 1799
    (tmp_path / "kept").replace(file)
    assert len(Index.open(path, partial=True)) == 2999


def test_a_reader_of_a_part_refreshes(path):
    damage(path / rows_of(path)[1]["file"], "missing")
    index, other = Index.open(path, partial=True), Index()
    assert not index.refresh()
    other.add([1], QUERIES.take([0]))
    other.save(path)
    assert index.refresh() and index.lost == () and len(index) == 1


def test_a_file_of_hits_says_what_was_lost(path, tmp_path):
    file = path / rows_of(path)[1]["file"]
    damage(file, "missing")
    write_hits(tmp_path / "h.parquet", Index.open(path, partial=True).search_batches(QUERIES, 2), 3)
    schema = pyarrow.parquet.read_schema(tmp_path / "h.parquet")
    assert json.loads(schema.metadata[b"multibit"])["lost"] == [str(file)]


# Stored engines


@pytest.fixture
def listed(path, monkeypatch):
    """The same index with pruned lists for every segment."""
    monkeypatch.setattr(lists, "SMALLEST", 1)
    monkeypatch.setattr(lists, "WORTHWHILE", 1.0)
    index = Index.load(path)
    index.engine_name = "lists"
    index.save(path)
    return path


def test_lists_are_stored_once_and_mapped(listed):
    engines = [entry["engine"] for entry in rows_of(listed)]
    assert all(name.startswith("lists-") for name in engines)
    with mock.patch.object(lists.PrunedLists, "build", side_effect=AssertionError("built again")):
        index = Index.load(listed)
        assert index.search(QUERIES, 9).ids == expected(QUERIES, 9, [row for row in range(3000) if row != 7])
        with index.writer() as writer:
            writer.remove([8])
    assert [entry["engine"] for entry in rows_of(listed)] == engines
    with Index.editing(listed) as writer:
        writer.compact()
    (entry,) = rows_of(listed)
    assert entry["engine"] not in engines
    assert {file.name for file in listed.iterdir()} == {"manifest.json", entry["file"], entry["engine"]}


@pytest.mark.parametrize("how", ["missing", "truncated", "changed"])
def test_lost_lists_are_named(listed, how):
    file = listed / rows_of(listed)[1]["engine"]
    damage(file, how)
    with pytest.raises(FormatError) as caught:
        Index.load(listed)
    assert caught.value.file == file
    index = Index.load(listed, partial=True)
    assert [lost.file for lost in index.lost] == [file] and len(index) == 1799


def test_lists_of_other_codes_are_refused(listed):
    first, second, _ = (listed / entry["engine"] for entry in rows_of(listed))
    shutil.copy(first, second)
    with pytest.raises(FormatError) as caught:
        Index.open(listed)
    assert caught.value.file == second


def test_another_engine_has_no_lists(listed):
    index = Index.load(listed)
    index.engine_name = "exact"
    index.save(listed)
    assert not list(listed.glob("lists-*")) and len(Index.load(listed)) == 2999
