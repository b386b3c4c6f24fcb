"""Batches of queries: the answers of single searches, read from and written to Parquet in bounded memory."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from multibit import Codes, Index
from multibit.data.manifest import read_manifest
from multibit.errors import ConfigError, DataError, FormatError
from multibit.search import batches
from multibit.search.batches import Queries, QueryFile, block_size, unpacked
from multibit.search.exchange import import_index
from multibit.search.results import write_hits

BITS = np.random.default_rng(3).integers(0, 2, (40, 24), np.uint8)
QUERIES = Codes.from_bits(np.random.default_rng(4).integers(0, 2, (23, 24), np.uint8))


def filled(ids=None, segments: int = 1) -> Index:
    index = Index("model a", modality="image")
    names = ids or [f"item {row}" for row in range(40)]
    for rows in np.array_split(np.arange(40), segments):
        payloads = [{"year": 2000 + int(row) % 3, "labels": ["x"] * int(row % 3)} if row % 4 else {} for row in rows]
        index.add([names[row] for row in rows], Codes.from_bits(BITS[rows]), payloads)
    return index


def pairs(result) -> list:
    distances = result.distances.tolist()
    return [list(zip(ids, near, strict=False)) for ids, near in zip(result.ids, distances, strict=True)]


def packed(codes: Codes) -> pyarrow.Array:
    rows = codes.to_bytes().reshape(len(codes), -1)
    return pyarrow.array([row.tobytes() for row in rows], pyarrow.binary(rows.shape[1]))


def write(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


# Blocks


@pytest.mark.parametrize("block", [1, 7, 23, 100])
@pytest.mark.parametrize(
    "options", [{}, {"bits": 9}, {"max_distance": 6}, {"where": {"year": 2001}}, {"k": 99}], ids=str
)
def test_batches_give_the_answers_of_one_search(monkeypatch, block, options):
    monkeypatch.setattr(batches, "BLOCK", block)
    index = filled(segments=3)
    found = list(index.search_batches(QUERIES, **{"k": 5, **options}))
    assert [len(result) for result in found[:-1]] == [min(block, 23)] * (len(found) - 1)
    assert [each for result in found for each in pairs(result)] == pairs(index.search(QUERIES, **{"k": 5, **options}))
    asked = [name for result in found for name in result.queries.to_pylist()]
    assert asked == list(range(23))


def test_blocks_of_queries_keep_their_ids(monkeypatch):
    monkeypatch.setattr(batches, "BLOCK", 4)
    names = pyarrow.array([f"q{row}" for row in range(23)])
    blocks = [Queries(QUERIES.take(range(10)), names[:10]), Queries(QUERIES.take(range(10, 23)), names[10:])]
    found = list(filled().search_batches(blocks, 2))
    assert [len(result) for result in found] == [4, 4, 2, 4, 4, 4, 1]
    assert [name for result in found for name in result.queries.to_pylist()] == names.to_pylist()


def test_all_batches_are_of_the_version_that_the_first_one_saw(monkeypatch):
    monkeypatch.setattr(batches, "BLOCK", 5)
    index = filled()
    expected = pairs(index.search(QUERIES, 40))
    found = index.search_batches(QUERIES, 40)
    answers = pairs(next(found))
    index.remove(["item 3"])
    assert answers + [each for result in found for each in pairs(result)] == expected


@pytest.mark.parametrize("k", [1, 10, 10_000, 2**40])
@pytest.mark.parametrize("items", [1, 1000, 10_000_000])
def test_a_block_has_a_bounded_number_of_hits(k, items):
    size = block_size(k, items)
    assert 1 <= size <= batches.BLOCK and (size == 1 or size * min(k, items) <= batches.HITS)


def test_no_queries_give_no_hits():
    (result,) = filled().search_batches(QUERIES.take([]), 3)
    assert len(result) == 0 and result.to_table().num_rows == 0


@pytest.mark.parametrize("wrong", [{"k": 0}, {"bits": 25}, {"fields": ["colour"]}, {"where": {"colour": 1}}])
def test_a_wrong_argument_is_named(wrong):
    with pytest.raises((DataError, ConfigError)) as caught:
        next(filled().search_batches(QUERIES, **wrong))
    assert caught.value.option == next(iter(wrong))


# Codes of stored items


@pytest.mark.parametrize("ids", [["item 7", "item 0", "item 7", "item 39"], [], np.array(["item 12"])])
def test_the_codes_of_stored_items_are_in_the_order_asked(ids):
    index = filled(segments=3)
    index.upsert(["item 12"], Codes.from_bits(BITS[[5]]))
    rows = [5 if name == "item 12" else int(str(name).split()[1]) for name in ids]
    assert index.codes_of(ids) == Codes.from_bits(BITS[rows].reshape(-1, 24))


@pytest.mark.parametrize("ids", [["item 40"], ["item 1", 3], [None], "item 1"])
def test_an_unknown_item_has_no_code(ids):
    with pytest.raises(DataError):
        filled(segments=2).codes_of(ids)
    with pytest.raises(DataError):
        Index().codes_of([])


def test_items_with_several_codes_keep_them():
    bits = np.random.default_rng(1).integers(0, 2, (5, 3, 16), np.uint8)
    index = Index()
    index.add(list("abcde"), Codes.from_bits(bits))
    assert index.codes_of(["d", "a"]) == Codes.from_bits(bits[[3, 0]])


# Tables


def test_a_table_has_a_row_for_each_hit():
    index = filled(segments=3)
    result = index.search(QUERIES, 4, fields=["labels", "year"])
    rows = result.to_table().to_pylist()
    expected = [
        {"query": q, "rank": h.rank, "id": h.id, "distance": h.distance, "labels": None, "year": None, **h.payload}
        for q in range(23)
        for h in result.hits(q)
    ]
    assert rows == expected
    assert index.search(QUERIES, 4).to_table().column_names[4:] == list(index.fields)


def test_a_field_without_values_in_some_segment_is_null_there():
    index = Index()
    index.add(["a"], QUERIES.take([0]), [{"year": 1}])
    index.add(["b"], QUERIES.take([1]), [{"labels": ["x"]}])
    rows = index.search(QUERIES.take([0]), 2).to_table().to_pylist()
    assert [(row["id"], row["year"], row["labels"]) for row in rows] == [("a", 1, None), ("b", None, ["x"])]


@pytest.mark.parametrize("name", ["query", "rank", "id", "distance"])
def test_a_field_that_is_named_like_a_column_is_refused(name):
    index = Index()
    index.add(["a"], QUERIES.take([0]), [{name: 1, "year": 2}])
    with pytest.raises(DataError) as caught:
        index.search(QUERIES, 1).to_table()
    assert caught.value.option == "fields" and repr(name) in caught.value.problem
    assert index.search(QUERIES, 1, fields=["year"]).to_table().num_rows == 23


def test_relaxed_answers_have_no_table():
    with pytest.raises(DataError):
        filled().search_relaxed(np.ones((1, 24)) / 2, 3).to_table()


# Files of queries


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("large", [pyarrow.binary(), pyarrow.large_binary(), None], ids=str)
def test_packed_codes_are_read(views, large):
    bits = np.random.default_rng(5).integers(0, 2, (6, 13) if views == 1 else (6, views, 13), np.uint8)
    codes = Codes.from_bits(bits)
    values = packed(codes) if large is None else packed(codes).cast(large)
    assert unpacked(values, views, 13) == codes
    assert unpacked(values.slice(2, 3), views, 13) == codes.take([2, 3, 4])
    assert unpacked(values.slice(0, 0), views, 13) == codes.take([])


@pytest.mark.parametrize(
    ("values", "row"),
    [([b"ab", None], 2), ([b"ab", b"abc"], 2), ([b"", b""], 1), (["ab"], None), ([1], None)],
)
def test_codes_that_are_not_packed_codes_are_refused(values, row):
    with pytest.raises(DataError) as caught:
        unpacked(pyarrow.array(values), 1, None)
    assert (caught.value.field, caught.value.row) == ("code", row)


def test_codes_that_are_not_a_whole_number_of_views_are_refused():
    with pytest.raises(DataError):
        unpacked(pyarrow.array([b"abc"]), 2, None)


def test_a_file_of_queries_is_read_in_blocks(tmp_path):
    path = write(tmp_path / "q.parquet", id=[f"q{row}" for row in range(23)], code=packed(QUERIES), text=["x"] * 23)
    file = QueryFile.open(path)
    assert (file.given, file.count, file.modality(), file.modality("image")) == ("code", 23, "text", "image")
    blocks = list(file.blocks(10))
    assert [first for first, _, _ in blocks] == [0, 10, 20]
    assert Codes.concatenate([file.codes(values) for _, _, values in blocks]) == QUERIES
    assert [name for _, ids, _ in blocks for name in ids.to_pylist()] == [f"q{row}" for row in range(23)]


@pytest.mark.parametrize(
    ("columns", "given"),
    [
        ({"text": ["a", "b"]}, "text"),
        ({"image": ["a.jpg", "b.jpg"]}, "image"),
        ({"id": [5, 7]}, "id"),
        ({"text": pyarrow.array(["a", "b", "a"]).dictionary_encode()}, "text"),
        ({"id": pyarrow.array(["a", "b", "a"]).dictionary_encode(), "text": ["x", "y", "z"]}, "text"),
    ],
)
def test_what_a_file_gives_follows_from_its_columns(tmp_path, columns, given):
    file = QueryFile.open(write(tmp_path / "q.parquet", **columns))
    ((first, ids, values),) = file.blocks(9)
    expected = {name: pyarrow.array(column).to_pylist() for name, column in columns.items()}
    assert (file.given, first) == (given, 0)
    assert ids.to_pylist() == expected.get("id", list(range(len(expected[given]))))
    assert values.to_pylist() == expected[given]
    assert not any(pyarrow.types.is_dictionary(each.type) for each in (ids, values))


@pytest.mark.parametrize(
    ("columns", "field", "row"),
    [
        ({"text": ["a", None]}, "text", 2),
        ({"text": pyarrow.array(["a", None]).dictionary_encode()}, "text", 2),
        ({"text": pyarrow.array([1, 1]).dictionary_encode()}, "text", None),
        ({"id": ["a", None], "text": ["a", "b"]}, "id", 2),
        ({"id": [0.5], "text": ["a"]}, "id", None),
        ({"text": [1]}, "text", None),
        ({"caption": ["a"]}, "", None),
    ],
)
def test_a_bad_file_of_queries_is_named(tmp_path, columns, field, row):
    path = write(tmp_path / "q.parquet", **columns)
    with pytest.raises(DataError) as caught:
        list(QueryFile.open(path).blocks(1))
    assert (caught.value.file, caught.value.field, caught.value.row) == (path, field, row)


@pytest.mark.parametrize("content", [b"", b"id,text\n1,a\n"])
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "q.parquet").write_bytes(content)
    for path in (tmp_path / "q.parquet", tmp_path, tmp_path / "none.parquet"):
        with pytest.raises(DataError) as caught:
            QueryFile.open(path)
        assert caught.value.file == path


@pytest.mark.parametrize("facts", [b"{", b"[1]", b'{"views": 0}', b'{"bits": "x"}'])
def test_a_file_that_says_what_is_not_possible_is_refused(tmp_path, facts):
    table = pyarrow.table({"code": pyarrow.array([b"ab"], pyarrow.binary(2))})
    pyarrow.parquet.write_table(table.replace_schema_metadata({b"multibit": facts}), tmp_path / "q.parquet")
    with pytest.raises((DataError, FormatError)) as caught:
        QueryFile.open(tmp_path / "q.parquet")
    assert caught.value.file == tmp_path / "q.parquet"


def test_a_damaged_column_is_refused_with_the_file(tmp_path):
    path = write(tmp_path / "q.parquet", text=["some text of a query"] * 50)
    content = bytearray(path.read_bytes())
    content[4:60] = bytes(range(56))
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(QueryFile.open(path).blocks(8))
    assert caught.value.file == path


def test_texts_that_are_not_utf_8_are_refused_with_the_file(tmp_path):
    """Arrow writes what it is given, and finds out when it makes texts of it."""
    bad = pyarrow.array([b"a", b"\xff"]).view(pyarrow.string())
    path = write(tmp_path / "q.parquet", id=["1", "2"], text=bad)
    for work in (lambda: list(QueryFile.open(path).blocks(8)), lambda: read_manifest(path), lambda: import_index(path)):
        with pytest.raises(DataError) as caught:
            work()
        assert caught.value.file == path and "utf" in caught.value.problem.lower()


def test_a_modality_that_contradicts_the_file_is_refused(tmp_path):
    file = QueryFile.open(write(tmp_path / "q.parquet", text=["a"]))
    with pytest.raises(DataError) as caught:
        file.modality("image")
    assert caught.value.option == "kind"


# Files of hits


def test_hits_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "BLOCK", 5)
    index, path = filled(range(100, 140), segments=3), tmp_path / "hits.parquet"
    assert write_hits(path, index.search_batches(QUERIES, 3, fields=["year"]), 23) == 69
    table = pyarrow.parquet.read_table(path)
    assert table.to_pylist() == index.search(QUERIES, 3, fields=["year"]).to_table().to_pylist()
    kinds = [str(table.schema.field(name).type) for name in table.column_names]
    assert kinds == ["int64", "int32", "int64", "uint16", "int64"]
    assert json.loads(table.schema.metadata[b"multibit"]) == {"bits": 24, "lost": [], "exact": True}


def test_a_batch_without_queries_writes_a_file_without_hits(tmp_path):
    assert write_hits(tmp_path / "h.parquet", filled().search_batches(QUERIES.take([]), 3), 0) == 0
    assert pyarrow.parquet.read_table(tmp_path / "h.parquet").column_names == [
        "query", "rank", "id", "distance", "year", "labels",
    ]  # fmt: skip


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_batch_that_stops_leaves_the_file_that_was_there(tmp_path, failure):
    path = tmp_path / "h.parquet"
    path.write_text("before")

    def failing():
        yield from filled().search_batches(QUERIES, 3)
        raise failure

    with pytest.raises(failure):
        write_hits(path, failing(), 23)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "h.parquet"
    path.write_text("before")

    def full(*_arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pyarrow.parquet.ParquetWriter, "write_table", full)
    with pytest.raises(OSError):
        write_hits(path, filled().search_batches(QUERIES, 3), 23)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_hits_of_another_ending_are_refused(tmp_path):
    with pytest.raises(DataError) as caught:
        write_hits(tmp_path / "h.csv", [], 0)
    assert caught.value.file == tmp_path / "h.csv"


def test_two_columns_of_queries_of_one_name_are_refused(tmp_path):
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "q.parquet")
    with pytest.raises(DataError) as caught:
        QueryFile.open(tmp_path / "q.parquet")
    assert (caught.value.file, caught.value.field) == (tmp_path / "q.parquet", "text")
