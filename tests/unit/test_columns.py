"""Ids and payloads: columns of any kind are kept and filed as they were, and what is wrong is named."""

from __future__ import annotations

import datetime
import string
from pathlib import Path

import msgspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multibit import Codes, Index
from multibit.errors import DataError
from multibit.files import read_arrays
from multibit.search.columns import IdColumn, IdHeader, strings, text_arrays, text_column
from multibit.search.filters import passing
from multibit.search.metadata import Metadata

IDS = {
    "numbered": range(6),
    "counted from elsewhere": range(40, 46),
    "integers": [5, -1, 0, 2**63 - 1, -(2**63), 7],
    "strings": ["", "a", "A", "日本 👁", "a\x00b", "7"],
}


def listed(column) -> list:
    return [column[row] for row in range(len(column))]


def random_codes(count, bits=16):
    return Codes.from_bits(np.random.default_rng(count).integers(0, 2, (count, bits)))


def indexed(ids, **more) -> Index:
    index = Index()
    index.add(ids, random_codes(len(ids)), **more)
    return index


def content(index):
    codes = None if index.codes is None else index.codes.to_bits().tolist()
    return listed(index.ids), listed(index.payloads), codes


# Text in arrays


@pytest.mark.parametrize("texts", [[], [""], ["a", "", "日本", "👁"], ["x" * 5000, "y"]])
def test_text_comes_back_from_its_arrays(texts):
    arrays = text_arrays(strings(texts), "names")
    assert set(arrays) == {"names", "names_offsets"} and len(arrays["names_offsets"]) == len(texts) + 1
    assert text_column(arrays, "names").to_pylist() == texts


@pytest.mark.parametrize(("first", "last"), [(0, 2), (1, 4), (4, 4), (2, 5)])
def test_a_slice_of_text_is_filed_alone(first, last):
    texts = ["one", "", "drei", "四", "five"]
    arrays = text_arrays(strings(texts)[first:last], "names")
    assert text_column(arrays, "names").to_pylist() == texts[first:last]
    assert arrays["names"].tobytes() == "".join(texts[first:last]).encode()


# Ids


@pytest.mark.parametrize("kind", IDS)
def test_ids_are_kept_in_order_and_found_again(kind):
    column = IdColumn.of(IDS[kind])
    assert len(column) == 6 and listed(column) == list(IDS[kind])
    assert column.find(list(IDS[kind])[::-1]).tolist() == [5, 4, 3, 2, 1, 0]
    assert {type(name) for name in listed(column)} == {str if kind == "strings" else int}


@pytest.mark.parametrize("kind", IDS)
def test_ids_come_back_from_their_arrays(kind):
    column = IdColumn.of(IDS[kind])
    arrays, header = column.to_arrays()
    back = IdColumn.from_arrays(arrays, msgspec.convert({"bits": 8, **header}, IdHeader), 6)
    assert (listed(back), back.kind) == (listed(column), column.kind)


@pytest.mark.parametrize("kind", IDS)
def test_ids_can_be_taken_in_any_order(kind):
    column = IdColumn.of(IDS[kind]).take(np.array([4, 0, 2]))
    assert listed(column) == [list(IDS[kind])[row] for row in (4, 0, 2)]
    assert column.find([column[1]]).tolist() == [1]


@pytest.mark.parametrize("kind", IDS)
def test_an_unknown_id_has_no_row(kind):
    column = IdColumn.of(IDS[kind])
    for name in ("nobody", 99, -3, 2**70, None, 1.5, "\ud800"):
        assert column.find([column[0], name]).tolist() == [0, -1]


@pytest.mark.parametrize("one", IDS)
@pytest.mark.parametrize("other", IDS)
def test_a_column_is_found_in_another(one, other):
    rows = IdColumn.of(IDS[one]).find(IdColumn.of(IDS[other])).tolist()
    assert rows == [list(IDS[one]).index(name) if name in list(IDS[one]) else -1 for name in IDS[other]]


def test_strings_of_one_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr("multibit.search.columns.xxhash.xxh3_64_intdigest", lambda text: len(text))
    column = IdColumn.of(["a", "bb", "b", "cc", "c"])
    assert column.find(["c", "b", "a", "cc", "bb", "d", "dd", "ddd"]).tolist() == [4, 2, 0, 3, 1, -1, -1, -1]
    with pytest.raises(DataError) as caught:
        IdColumn.of(["a", "bb", "b", "cc", "b"])
    assert "'b'" in caught.value.problem


@pytest.mark.parametrize(
    "values", [["a", "b"], [3, 7], pyarrow.array(["a", "b"]).dictionary_encode(), pyarrow.chunked_array([[3], [7]])]
)
def test_ids_may_be_an_arrow_column(values):
    given = values if isinstance(values, pyarrow.Array | pyarrow.ChunkedArray) else pyarrow.array(values)
    assert listed(IdColumn.of(given)) == given.to_pylist()


@pytest.mark.parametrize("values", [["a", None], [1.5], [True], ["a", "a"]])
def test_an_arrow_column_of_other_values_is_refused(values):
    with pytest.raises(DataError) as caught:
        IdColumn.of(pyarrow.array(values))
    assert caught.value.field == "ids"


@pytest.mark.parametrize(("one", "other"), [("numbered", "strings"), ("strings", "integers"), ("integers", "strings")])
def test_ids_of_two_kinds_cannot_be_mixed(one, other):
    index = indexed(IDS[one])
    with pytest.raises(DataError) as caught:
        index.add(IDS[other], random_codes(6))
    kind, wanted = IdColumn.of(IDS[other]).kind, IdColumn.of(IDS[one]).kind
    assert caught.value.field == "ids" and kind in caught.value.problem and wanted in caught.value.problem


def test_ranges_that_meet_stay_a_range():
    column = IdColumn.concatenate([IdColumn.of(range(4)), IdColumn.of(range(4, 10))])
    assert column.values == range(10) and column.kind == "range"


@pytest.mark.parametrize("then", [range(5, 7), range(9, 4, -1), [11], np.array([4, 6])])
def test_other_integers_after_a_range_are_stored_one_by_one(then):
    column = IdColumn.concatenate([IdColumn.of(range(4)), IdColumn.of(then)])
    assert listed(column) == [0, 1, 2, 3, *then] and column.kind == "integer"


@pytest.mark.parametrize("ids", [range(0, 10, 2), range(3, 0, -1), range(7, -8, -7)])
def test_a_range_with_steps_comes_back_from_its_file(tmp_path, ids):
    indexed(ids).save(tmp_path / "a.mbx")
    assert listed(Index.load(tmp_path / "a.mbx").ids) == list(ids)


def test_a_range_with_steps_can_be_followed_by_another():
    index = indexed(range(0, 4, 2))
    index.add(range(4, 6), random_codes(2))
    assert listed(index.ids) == [0, 2, 4, 5] and len(index) == len(index.codes)


def test_a_large_numbered_index_stores_no_ids(tmp_path):
    index = Index()
    for _ in range(3):
        index.add(None, Codes.from_bits(np.zeros((100_000, 1))))
    assert index.ids.values == range(300_000)
    index.save(tmp_path / "a.mbx")
    for file in (tmp_path / "a.mbx").glob("segment-*"):
        arrays, header = read_arrays(file, kind="index segment", version=1)
        assert set(arrays) == {"words"} and header["ids"] == "range"
    loaded = Index.load(tmp_path / "a.mbx")
    assert loaded.ids.values == range(300_000)
    assert loaded.search(Codes.from_bits([[1]]), k=2, among=[299_999, 150_000]).ids == [[150_000, 299_999]]


# Metadata

PAYLOADS = [{"a": [1, {"b": 2.5}, None]}, {}, {"": True, "日本": "👁"}]


def filed(data: Metadata) -> Metadata:
    arrays, header = data.to_arrays()
    return Metadata.from_arrays(arrays, header["fields"], len(data))


def test_metadata_come_back_as_equal_objects_of_their_own():
    data = Metadata.of(PAYLOADS, IdColumn.of(range(3)))
    assert listed(data) == PAYLOADS
    data[0]["a"].clear()
    assert data[0] == PAYLOADS[0]
    assert listed(filed(data)) == PAYLOADS


def test_without_metadata_nothing_is_stored():
    data = Metadata.of(None, IdColumn.of(range(3)))
    assert listed(data) == [{}, {}, {}] and data.to_arrays()[0] == {}
    assert listed(filed(data)) == [{}, {}, {}] and len(Metadata.concatenate([data, data])) == 6


@pytest.mark.parametrize("first", [True, False])
def test_metadata_join_with_rows_that_have_none(first):
    with_some, with_none = (Metadata.of(given, IdColumn.of(range(3))) for given in (PAYLOADS, None))
    joined = Metadata.concatenate([with_some, with_none] if first else [with_none, with_some])
    assert listed(joined) == (PAYLOADS + [{}] * 3 if first else [{}] * 3 + PAYLOADS)
    assert listed(joined.take(np.array([5, 0]))) == [joined[5], joined[0]]


DAY, TIME = datetime.date(2020, 2, 29), datetime.datetime(2020, 2, 29, 12, 30, 1, 5)
KINDS = {
    "string": ["a", "日本", None, ""],
    "integer": [2**63 - 1, -(2**63), None, 0],
    "float": [1.5, 2, None, -0.0],
    "boolean": [True, False, None, True],
    "date": [DAY, None, DAY, datetime.date(1, 1, 1)],
    "timestamp": [TIME, None, TIME, TIME],
    "timestamp UTC": [TIME.replace(tzinfo=datetime.UTC), None, None, None],
    "list": [["a", "b"], [], None, ["👁"]],
    "json": [1, "a", None, {"a": [1, None]}],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_has_the_kind_of_its_values_and_gives_them_back(kind):
    data = Metadata.of([{"x": value} for value in KINDS[kind]], IdColumn(range(4)))
    assert dict(data.kinds) == {"x": kind}
    for each in (data, filed(data), Metadata.concatenate([data.take(np.array([0, 1])), data.take(np.array([2, 3]))])):
        assert [row.get("x") for row in listed(each)] == KINDS[kind]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "json"])
def test_a_table_gives_the_kinds_that_mappings_give(tmp_path, kind):
    table = pyarrow.table({"x": pyarrow.array(KINDS[kind])})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    for source in (table, tmp_path / "x.parquet", table.slice(0, 4).to_batches()[0]):
        data = Metadata.of(source, IdColumn(range(4)))
        assert dict(data.kinds) == {"x": kind} and [row.get("x") for row in listed(data)] == KINDS[kind]
    part = Metadata.of(table.slice(1, 2), IdColumn(range(2)))
    assert [row.get("x") for row in listed(part)] == KINDS[kind][1:3]


def test_a_frame_gives_columns():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"n": [1, 2], "t": ["a", None], "f": [0.5, float("nan")]}, index=[7, 9])
    assert listed(Metadata.of(frame, IdColumn(range(2)))) == [{"n": 1, "t": "a", "f": 0.5}, {"n": 2}]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "json"])
@pytest.mark.parametrize("as_table", [False, True])
def test_a_batch_of_another_kind_is_refused_and_a_json_field_takes_all(kind, as_table):
    for other in KINDS:
        if other == "json":
            continue
        values = [{"x": value} for value in KINDS[kind]]
        index = indexed(range(4), payloads=[{"x": value} for value in KINDS[other]])
        new = pyarrow.Table.from_pylist(values) if as_table else values
        if kind == other:
            index.add(None, random_codes(4), new)
            continue
        with pytest.raises(DataError) as caught:
            index.add(None, random_codes(4), new)
        assert caught.value.field == "payloads" and "'x'" in caught.value.problem and other in caught.value.problem
        assert len(index) == 4


def test_integers_fit_a_field_of_floats_and_anything_json_fits_a_json_field():
    index = indexed(range(2), payloads=[{"f": 0.5, "j": 1}, {"j": "a"}])
    index.add(None, random_codes(1), [{"f": 2, "j": ["x"]}])
    index.add(None, random_codes(1), pyarrow.table({"f": [3], "j": [True]}))
    assert index.payloads[2] == {"f": 2.0, "j": ["x"]} and index.payloads[3] == {"f": 3.0, "j": True}
    with pytest.raises(DataError):
        index.add(None, random_codes(1), [{"f": 2**53 + 1}])


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ({}, [0, 1, 2, 3]),
        ({"n": 1}, [0, 2]),
        ({"n": 1, "tags": "x"}, [0]),
        ({"tags": "x"}, [0, 1]),
        ({"tags": ["x", "y"]}, [0]),
        ({"n": 1.5}, []),
        ({"n": None}, [3]),
        ({"deep": {"a": 1}}, [3]),
    ],
)
def test_where_wants_equal_values_or_a_list_that_contains_them(where, rows):
    payloads = [{"n": 1, "tags": ["x", "y"]}, {"n": 2, "tags": ["x"]}, {"n": 1}, {"deep": {"a": 1}}]
    data = Metadata.of(payloads, IdColumn.of(range(4)))
    assert np.flatnonzero(passing(where, data, data.kinds)).tolist() == rows


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(string.printable + "é日👁\x00", max_size=6), unique=True, min_size=1, max_size=8), st.data())
def test_any_texts_are_kept_as_ids_and_payloads(names, data):
    rows = np.array(data.draw(st.lists(st.integers(0, len(names) - 1), unique=True)), np.int64)
    ids = IdColumn.of(names).take(rows)
    payloads = Metadata.of([{name: name} for name in names], IdColumn.of(names)).take(rows)
    arrays, header = ids.to_arrays()
    back = IdColumn.from_arrays(arrays, msgspec.convert({"bits": 8, **header}, IdHeader), len(rows))
    assert listed(back) == [names[row] for row in rows]
    assert listed(filed(payloads)) == [{names[row]: names[row]} for row in rows]


# Conditions as typed


TYPED = [
    ("labels=1", [0]),
    ('labels="1"', [0]),
    ("labels=true", [1]),
    ("labels!=true", [0, 2]),
    ("not labels=true", [0, 2]),
    ("year=2001", [0]),
    ("year>=2001", [0, 1]),
    ("year > 2001", [1]),
    ("year<2001.5", [0]),
    ("year=null", [2]),
    ("on=true", [0]),
    ("day<=2020-01-01", [0]),
    ("text=a = b", [1]),
    ("text<b", [1, 2]),
]


@pytest.mark.parametrize(("typed", "rows"), TYPED)
def test_a_typed_condition_gets_the_kind_of_its_field(typed, rows):
    held = [
        {"labels": ["1", "dog"], "year": 2001, "on": True, "day": datetime.date(2020, 1, 1), "text": "d"},
        {"labels": ["true"], "year": 2010, "on": False, "day": datetime.date(2021, 1, 1), "text": "a = b"},
        {"text": "a"},
    ]
    index = indexed(range(3), payloads=held)
    found = index.search(random_codes(1), where=index.read_where([typed])).ids[0]
    assert sorted(found) == rows
    both = index.search(random_codes(1), where=index.read_where([typed, "text=a"])).ids[0]
    assert both == [row for row in rows if row == 2]


@pytest.mark.parametrize(
    ("typed", "found"),
    [("x=3", "x=3"), ("x=a", "'a'"), ("x>true", "'true'"), ("y=1", "'y'"), ("x", "'x'"), ("=x", "'=x'"), ("t=", "t=")],
)
def test_a_typed_condition_that_nothing_fulfils_is_refused(typed, found):
    with pytest.raises(DataError) as caught:
        indexed(range(2), payloads=[{"x": 1, "t": "a"}, {}]).read_where([typed])
    assert caught.value.option == "where" and found in caught.value.problem


# What is refused, and changes nothing


@pytest.mark.parametrize(
    ("ids", "place", "found"),
    [
        (["new", 1], "ids", "'new'"),
        ([True, False], "ids", "True"),
        ([1, True], "ids", "True"),
        ([None, None], "ids", "None"),
        ([1.0, 2.0], "ids", "1.0"),
        (np.array([1.0, 2.0]), "ids", "1.0"),
        ([b"a", b"b"], "ids", "b'a'"),
        ([["a"], ["b"]], "ids", "['a']"),
        (["new", "new"], "ids", "'new'"),
        (["new", "b"], "ids", "'b'"),
        ([3, 4], "ids", "integer"),
        (None, "ids", "string"),
        (["new"], "", "1 ids, 2 codes, 2 payloads"),
    ],
)
def test_invalid_ids_are_refused_and_nothing_is_added(ids, place, found):
    index = indexed(["a", "b", "c"], payloads=PAYLOADS)
    before = content(index)
    with pytest.raises(DataError) as caught:
        index.add(ids, random_codes(2), [{}, {}])
    assert (caught.value.field or caught.value.option) == place and found in caught.value.problem
    assert content(index) == before


@pytest.mark.parametrize("ids", [np.array([4, 9]), np.array([4, 9], np.uint8), np.array(["4", "9"]), range(4, 6)])
def test_arrays_and_ranges_are_ids_too(ids):
    assert listed(indexed(ids).ids) == (ids.tolist() if isinstance(ids, np.ndarray) else [4, 5])


@pytest.mark.parametrize("ids", [list(np.array([4, 9])), list(np.array(["a", "b"]))])
def test_numbers_and_strings_of_numpy_are_ids(ids):
    assert listed(indexed(ids).ids) == [name.item() for name in ids]


@pytest.mark.parametrize("act", ["remove", "among"])
def test_numpy_integers_are_ids_of_a_numbered_index(act):
    index = indexed(range(4))
    if act == "among":
        assert index.search(random_codes(1), among=[np.int64(2)]).ids == [[2]]
    else:
        index.remove(np.array([2]))
        assert listed(index.ids) == [0, 1, 3]


def test_true_is_not_the_item_of_number_1():
    index = indexed([5, 1])
    with pytest.raises(DataError) as caught:
        index.remove([True])
    assert "True" in caught.value.problem


@pytest.mark.parametrize("ids", [[2**63], [-(2**63) - 1], np.array([2**63], np.uint64)])
def test_integers_of_more_than_64_bits_are_refused(ids):
    with pytest.raises(DataError) as caught:
        indexed(ids)
    assert caught.value.field == "ids" and "64-bit" in caught.value.problem


def test_a_range_of_more_than_64_bits_is_refused_too():
    index = indexed([5])
    with pytest.raises(DataError) as caught:
        index.add(range(2**63, 2**63 + 2), random_codes(2))
    assert caught.value.field == "ids" and "64-bit" in caught.value.problem


@pytest.mark.parametrize("largest", [2**63 - 1, 2**63 - 2])
def test_the_numbering_cannot_continue_past_64_bits(largest):
    index = indexed([largest])
    with pytest.raises(DataError) as caught:
        index.add(None, random_codes(2))
    assert caught.value.option == "ids" and str(largest) in caught.value.problem
    assert listed(index.ids) == [largest]


def test_an_emptied_index_of_strings_accepts_numbered_items():
    index = indexed(["a"])
    index.remove(["a"])
    index.add(None, random_codes(2))
    assert listed(index.ids) == [0, 1]


def test_text_that_utf8_cannot_encode_is_refused():
    with pytest.raises(DataError) as caught:
        indexed(["\ud800"])
    assert caught.value.field == "ids" and "UTF-8" in caught.value.problem
    with pytest.raises(DataError) as caught:
        indexed(["a"], payloads=[{"x": "\ud800"}])
    assert caught.value.field == "payloads" and "'a'" in caught.value.problem


@pytest.mark.parametrize("act", ["add", "remove", "among"])
def test_a_single_string_is_not_taken_for_ids_of_one_letter(act):
    index = indexed(["a", "b"])
    with pytest.raises(DataError) as caught:
        if act == "add":
            Index().add("ab", random_codes(2))
        elif act == "remove":
            index.remove("ab")
        else:
            index.search(random_codes(1), among="ab")
    assert caught.value.field == "ids" and "'ab'" in caught.value.problem


CIRCLE: dict = {}
CIRCLE["again"] = CIRCLE


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        ({"x": float("nan")}, "JSON"),
        ({"x": float("inf")}, "JSON"),
        ({"x": {1}}, "type set"),
        ({"x": np.int64(1)}, "type int64"),
        ({"x": b"bytes"}, "type bytes"),
        ({(1, 2): 3}, "keys"),
        (CIRCLE, "Circular"),
        ([1], "list"),
        ("text", "str"),
        (None, "NoneType"),
    ],
)
@pytest.mark.parametrize("change", ["add", "upsert"])
def test_a_payload_that_is_not_a_json_object_is_refused_and_nothing_is_changed(change, payload, found):
    index = indexed(["a", "b", "c"], payloads=PAYLOADS)
    before = content(index)
    with pytest.raises(DataError) as caught:
        getattr(index, change)(["fine", "new"], random_codes(2), [{}, payload])
    assert caught.value.field == "payloads"
    assert "'new'" in caught.value.problem and found in caught.value.problem
    assert content(index) == before


def test_a_payload_comes_back_equal_or_is_refused():
    try:
        index = indexed(["a"], payloads=[{1: "one"}])
    except DataError:
        return
    assert index.payloads[0] == {1: "one"}


@pytest.mark.parametrize("ids", [["nobody"], ["a", "nobody"], [1], [None], [("a",)]])
@pytest.mark.parametrize("act", ["remove", "among"])
def test_unknown_ids_are_refused_and_nothing_is_changed(act, ids):
    index = indexed(["a", "b", "c"], payloads=PAYLOADS)
    before = content(index)
    with pytest.raises(DataError) as caught:
        if act == "remove":
            index.remove(ids)
        else:
            index.search(random_codes(1), among=ids)
    assert caught.value.field == "ids" and repr(ids[-1]) in caught.value.problem
    assert content(index) == before


@pytest.mark.parametrize("change", ["add", "upsert"])
def test_codes_of_another_length_are_refused_and_nothing_is_changed(change):
    index = indexed(["a", "b", "c"], payloads=PAYLOADS)
    before = content(index)
    with pytest.raises(DataError) as caught:
        getattr(index, change)(["a" if change == "upsert" else "new"], random_codes(1, 17))
    assert caught.value.field == "codes" and "17" in caught.value.problem and "16" in caught.value.problem
    assert content(index) == before


def test_an_id_given_several_times_is_removed_once():
    index = indexed(["a", "b", "c"])
    index.remove(["b", "b"])
    assert listed(index.ids) == ["a", "c"]


@pytest.mark.parametrize(
    ("ids", "removed", "then"), [(range(3), [0], 3), (range(3), [2], 2), (range(5, 7), [], 7), ([4, -9], [], 5)]
)
def test_items_without_ids_are_numbered_after_the_largest(ids, removed, then):
    index = indexed(ids)
    index.remove(removed)
    index.add(None, random_codes(2))
    assert listed(index.ids)[-2:] == [then, then + 1]


MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.exists(), reason="this system does not list what is mapped")
def test_the_columns_of_a_loaded_index_read_the_mapped_file(tmp_path):
    indexed(["a", "b", "c"], payloads=PAYLOADS).save(tmp_path / "a.mbx")
    loaded = Index.load(tmp_path / "a.mbx")
    columns = loaded.payloads.columns.values()
    assert len(columns) == 3
    buffers = [buffer for column in (loaded.ids.values, *columns) for buffer in column.buffers()]
    places = [buffer.address for buffer in buffers if buffer is not None] + [loaded.codes.words.ctypes.data]
    mapped = [line.split()[0].split("-") for line in MAPS.read_text().splitlines() if "/a.mbx/" in line]
    assert len(places) > 7
    for place in places:
        assert any(int(first, 16) <= place < int(last, 16) for first, last in mapped)
