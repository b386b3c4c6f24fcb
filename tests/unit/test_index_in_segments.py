"""Verbs over a whole index work segment by segment: they never join its codes, ids or metadata."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow.parquet as pq
import pytest

from multibit import Codes, Index
from multibit.errors import ConfigError, DataError
from multibit.inventory import describe
from multibit.search.building import copy_index, create_index
from multibit.search.duplicates import find_duplicates
from multibit.search.exchange import export_codes, export_index, import_index
from multibit.search.remote.loading import BLOCK, IndexSource
from multibit.search.segments import Version
from multibit.search.shards import reshard
from multibit.serve.explain import field_counts

ITEMS, BITS, SIZE = 60, 24, 9
REMOVED = [0, 8, 9, 17, 30, 31, 32, 33, 34, 35, 36, 59]  # at both ends of segments


def payload(row):
    """Some fields begin in the third segment only."""
    later = {"day": datetime.date(2020, 1, 1 + row % 3), "json": {"n": row}} if row >= 2 * SIZE else {}
    return {"labels": [f"label {row % 5}", "all"], "year": 2000 + row % 4, "text": f"text {row}", **later}


@pytest.fixture(scope="module")
def bits():
    """Codes of 20 groups of three, a bit apart."""
    random = np.random.default_rng(5)
    found = np.repeat(random.integers(0, 2, (ITEMS // 3, BITS)), 3, axis=0)
    found[np.arange(ITEMS), np.arange(ITEMS) % 3] ^= 1
    return found[random.permutation(ITEMS)]


@pytest.fixture
def folder(tmp_path, bits):
    """An index of segments of nine items, of which some are removed."""
    path = tmp_path / "image.mbx"
    with create_index(path, modality="image", size=SIZE) as builder:
        for start in range(0, ITEMS, SIZE):
            rows = range(start, min(start + SIZE, ITEMS))
            builder.add([f"i{row}" for row in rows], Codes.from_bits(bits[rows]), list(map(payload, rows)))
    with Index.open(path).writer() as writer:
        writer.remove([f"i{row}" for row in REMOVED])
    return path


@pytest.fixture
def index(folder):
    opened = Index.open(folder)
    assert len(opened.version.parts) > 5
    assert any(part.removed is not None for part in opened.version.parts)
    return opened


@pytest.fixture
def whole(bits):
    """The same items in one segment."""
    kept = kept_rows()
    index = Index(modality="image")
    index.add([f"i{row}" for row in kept], Codes.from_bits(bits[kept]), list(map(payload, kept)))
    return index


def kept_rows():
    return [row for row in range(ITEMS) if row not in REMOVED]


@pytest.fixture(autouse=True)
def unjoined(monkeypatch):
    """An index that is searched, counted, listed or exported is never joined."""
    for name in ("codes", "ids", "metadata"):
        monkeypatch.setattr(Version, name, property(lambda version, name=name: pytest.fail(f"joined the {name}")))


@pytest.mark.parametrize("candidates", [None, 12, ITEMS])
@pytest.mark.parametrize("options", [{}, {"where": {"labels": "label 2"}}, {"among": ["i40", "i1", "i58"]}])
@pytest.mark.parametrize("k", [1, 5, ITEMS])
def test_relaxed_searches_are_those_of_one_segment(index, whole, candidates, options, k):
    values = np.random.default_rng(1).integers(-7, 8, (4, BITS)) / 8  # whose sums are exact, so there are ties
    options = {**options, "candidates": None if candidates is None else max(candidates, k)}
    for length in (None, 3, 17):
        ours, theirs = (each.search_relaxed(values, k, length, **options) for each in (index, whole))
        assert ours.ids == theirs.ids
        np.testing.assert_array_equal(ours.scores, theirs.scores)
        np.testing.assert_array_equal(ours.rows, theirs.rows)
        assert ours.hits(2) == theirs.hits(2)


def test_too_few_candidates_and_an_empty_choice(index):
    values = np.ones((1, BITS))
    with pytest.raises(DataError) as caught:
        index.search_relaxed(values, 5, candidates=4)
    assert caught.value.option == "candidates"
    assert index.search_relaxed(values, 5, candidates=3, where={"year": 1}).ids == [[]]
    assert index.search_relaxed(values, 5, where={"year": 1}).ids == [[]]


def test_pages_are_in_order_of_age(index, whole):
    for start, count in ((0, 5), (3, 20), (7, ITEMS), (ITEMS, 5), (0, 0), (ITEMS - len(REMOVED) - 1, 9)):
        kept = kept_rows()[start : start + count]
        assert index.page(start, count) == whole.page(start, count) == [(f"i{row}", payload(row)) for row in kept]


def test_some_codes_are_spread_over_all_items(index, bits):
    kept = bits[kept_rows()]
    np.testing.assert_array_equal(index.some_codes(ITEMS).to_bits(), kept)
    np.testing.assert_array_equal(index.some_codes(3).to_bits(), kept[[0, (len(kept) - 1) // 2, len(kept) - 1]])
    with pytest.raises(DataError):
        Index().some_codes(3)


@pytest.mark.parametrize("field", ["labels", "year", "text", "day", "json"])
def test_values_are_counted_over_all_segments(index, whole, field):
    found = index.values(field, ITEMS)
    counts = {}
    for row in kept_rows():
        given = payload(row).get(field)
        for value in given if field == "labels" else [given] if field != "json" else []:
            if value is not None:
                counts[value] = counts.get(value, 0) + 1
    if field != "json":
        assert found == sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    assert found == whole.values(field, ITEMS)
    assert index.values(field, 2) == found[:2]
    assert index.values(field, most=len(found)) == found
    assert index.values(field, most=len(found) - 1) is None


def test_unknown_fields_are_refused_and_the_server_counts_the_same(index, whole):
    with pytest.raises(ConfigError) as caught:
        index.values("unknown")
    assert caught.value.option == "field"
    for every in (False, True):
        counted = field_counts(index, every)
        assert counted == field_counts(whole, every)
        assert counted["labels"]["values"][0] == ("all", ITEMS - len(REMOVED))
        assert counted["text"]["values"] is None or every


@pytest.mark.parametrize(("length", "radius"), [(None, 2), (7, 0), (16, 1)])
def test_near_duplicates_are_those_of_one_segment(index, whole, length, radius, tmp_path):
    ours, theirs = (find_duplicates(each, radius, length) for each in (index, whole))
    assert ours.groups == theirs.groups
    assert len(ours)
    tables = []
    for number, found in enumerate((ours, theirs)):
        found.save(tmp_path / f"{number}.parquet")
        tables.append(pq.read_table(tmp_path / f"{number}.parquet"))
    assert tables[0].to_pylist() == tables[1].to_pylist()


def test_no_near_duplicates_keep_the_fields(index):
    found = find_duplicates(index, 0)
    assert len(found) == 0
    assert set(found.metadata.columns) == set(index.fields)


def test_an_export_is_that_of_one_segment(index, whole, tmp_path):
    for name, each in (("ours", index), ("theirs", whole)):
        export_index(each, tmp_path / f"{name}.parquet", 20)
    ours, theirs = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("ours", "theirs"))
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    assert ours.to_pylist() == theirs.to_pylist()
    assert len(import_index(tmp_path / "ours.parquet")) == ITEMS - len(REMOVED)


@pytest.mark.parametrize("block", [1, 4, ITEMS])
@pytest.mark.parametrize("length", [None, 3, 20])
def test_exported_codes_are_those_of_one_segment(index, bits, tmp_path, monkeypatch, length, block):
    monkeypatch.setattr("multibit.search.exchange.ROWS", block)
    kept = bits[kept_rows()][:, :length]
    export_codes(index, tmp_path / "codes.npy", length)
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), np.packbits(kept, axis=1))
    faiss = pytest.importorskip("faiss")
    export_codes(index, tmp_path / "codes.faiss", length)
    added = faiss.IndexBinaryFlat(8 * -(-kept.shape[1] // 8))
    added.add(np.packbits(kept, axis=1))
    assert (tmp_path / "codes.faiss").read_bytes() == faiss.serialize_index_binary(added).tobytes()
    assert {path.name for path in tmp_path.glob("codes*")} == {"codes.npy", "codes.faiss"}


def test_codes_of_an_empty_index_are_not_exported(tmp_path):
    with pytest.raises(DataError):
        export_codes(Index(), tmp_path / "codes.npy")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fields", [[], ["day", "labels"]])
def test_a_copy_has_the_items_and_some_fields(index, folder, fields, monkeypatch):
    monkeypatch.setattr("multibit.search.building.BLOCK", 4)
    copy_index(index, folder.parent / "copy.mbx", fields)
    copy = Index.open(folder.parent / "copy.mbx")
    assert copy.fields == {name: index.fields[name] for name in fields}
    assert (copy.model, copy.modality, copy.engine_name) == (index.model, index.modality, index.engine_name)
    assert copy.page(0, ITEMS) == [
        (f"i{row}", {name: value for name, value in payload(row).items() if name in fields}) for row in kept_rows()
    ]
    np.testing.assert_array_equal(copy.some_codes(ITEMS).to_bits(), index.some_codes(ITEMS).to_bits())
    with pytest.raises(ConfigError) as caught:
        copy_index(index, folder.parent / "other.mbx", ["unknown"])
    assert caught.value.option == "fields" and not (folder.parent / "other.mbx").exists()


def test_an_index_is_described_loaded_and_resharded(index, folder, whole):
    facts = describe(folder)
    assert facts["code"] == f"{BITS} bits, 4 bytes per item"
    assert facts["ids"] == "string"
    for start in (0, 1, 8, 30, ITEMS):
        blocks = list(index.version.blocks(4, start))
        assert [name for block in blocks for name in block.ids.listed(np.arange(len(block)))] == [
            f"i{row}" for row in kept_rows()[start:]
        ]
        assert max(map(len, blocks), default=0) <= 4 < BLOCK
    assert len(IndexSource(index).fingerprint()) > 8
    reshard(folder.parent, ["image"], 2)


def test_a_reader_sees_an_index_that_was_written_anew(folder, index):
    copy_index(Index.open(folder), folder, [])
    reader = Index.open(folder)
    assert index.refresh() and not index.fields and not index.refresh()
    for name in ("new", "newer"):  # neither has a version before
        with create_index(folder) as builder:
            builder.add([name], Codes.from_bits(np.ones((1, BITS))))
        assert reader.refresh() and reader.page(0, 9) == [(name, {})]
        assert not reader.refresh()


def test_compacting_joins_up_to_the_largest_segment_and_keeps_whole_ones(folder, bits, monkeypatch):
    monkeypatch.setattr("multibit.search.segments.LARGEST", 20)
    before = Index.open(folder)
    sizes, pages = [part.live for part in before.version.parts], before.page(0, ITEMS)
    assert sizes == [7, 7, 9, 3, 8, 9, 5]
    with before.writer() as writer:
        writer.compact()
    after = Index.load(folder)
    assert [part.live for part in after.version.parts] == [14, 20, 14]
    assert all(part.removed is None for part in after.version.parts)
    assert after.page(0, ITEMS) == pages and after.fields == before.fields
    np.testing.assert_array_equal(after.some_codes(ITEMS).to_bits(), bits[kept_rows()])
    with after.writer() as writer:
        writer.remove(["i40"])
        kept = [part.segment.file for part in writer.version.parts]
        writer.compact()
    again = Index.open(folder)
    assert [part.segment.file for part in again.version.parts][::2] == kept[::2]
    assert [part.live for part in again.version.parts] == [14, 19, 14]
    assert again.version.compacted() is again.version
