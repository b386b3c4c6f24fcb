"""Ids and payloads: columns of any kind are kept and filed as they were, and what is wrong is named."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multibit import Codes, Index
from multibit.errors import DataError
from multibit.files import read_arrays
from multibit.search.columns import IdColumn, PayloadColumn, strings, text_arrays, text_column

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
    assert column.rows_of(list(IDS[kind])[::-1]).tolist() == [5, 4, 3, 2, 1, 0]
    assert {type(name) for name in listed(column)} == {str if kind == "strings" else int}


@pytest.mark.parametrize("kind", IDS)
def test_ids_come_back_from_their_arrays(kind):
    column = IdColumn.of(IDS[kind])
    arrays, header = column.to_arrays()
    back = IdColumn.from_arrays(arrays, {**header, "count": 6})
    assert (listed(back), back.kind) == (listed(column), column.kind)


@pytest.mark.parametrize("kind", IDS)
def test_ids_can_be_taken_in_any_order(kind):
    column = IdColumn.of(IDS[kind]).take(np.array([4, 0, 2]))
    assert listed(column) == [list(IDS[kind])[row] for row in (4, 0, 2)]
    assert column.rows_of([column[1]]).tolist() == [1]


@pytest.mark.parametrize("kind", IDS)
def test_an_unknown_id_is_refused(kind):
    column = IdColumn.of(IDS[kind])
    for name in ("nobody", 99, -3, 2**70, None, 1.5):
        assert column.known([name]) == [False]
        with pytest.raises(DataError) as caught:
            column.rows_of([column[0], name])
        assert caught.value.field == "ids" and repr(name) in caught.value.problem


@pytest.mark.parametrize(("one", "other"), [("numbered", "strings"), ("strings", "integers"), ("integers", "strings")])
def test_ids_of_two_kinds_cannot_be_mixed(one, other):
    kind, wanted = IdColumn.of(IDS[other]).kind, IdColumn.of(IDS[one]).kind
    with pytest.raises(DataError) as caught:
        IdColumn.of(IDS[one]).append(IdColumn.of(IDS[other]))
    assert caught.value.field == "ids" and kind in caught.value.problem and wanted in caught.value.problem


def test_ranges_that_meet_stay_a_range():
    column = IdColumn.of(range(4)).append(IdColumn.of(range(4, 10)))
    assert column.values == range(10) and column.kind == "range"


@pytest.mark.parametrize("then", [range(5, 7), range(9, 4, -1), [11], np.array([4, 6])])
def test_other_integers_after_a_range_are_stored_one_by_one(then):
    column = IdColumn.of(range(4)).append(IdColumn.of(then))
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
    arrays, header = read_arrays(tmp_path / "a.mbx", kind="index", version=1)
    assert set(arrays) == {"words"} and header["ids"] == "range"
    loaded = Index.load(tmp_path / "a.mbx")
    assert loaded.ids.values == range(300_000)
    assert loaded.search(Codes.from_bits([[1]]), k=2, among=[299_999, 150_000]).ids == [[150_000, 299_999]]
    assert "row_by_id" not in vars(loaded.ids)


# Payloads

PAYLOADS = [{"a": [1, None, {"b": 2.5}]}, {}, {"": True, "日本": "👁"}]


def test_payloads_come_back_as_equal_objects_of_their_own():
    column = PayloadColumn.of(PAYLOADS, IdColumn.of(range(3)))
    assert listed(column) == PAYLOADS
    column[0]["a"].clear()
    assert column[0] == PAYLOADS[0]
    assert listed(PayloadColumn.from_arrays(column.to_arrays(), 3)) == PAYLOADS


def test_without_payloads_nothing_is_stored():
    column = PayloadColumn.of(None, IdColumn.of(range(3)))
    assert listed(column) == [{}, {}, {}] and column.to_arrays() == {}
    assert listed(PayloadColumn.from_arrays({}, 3)) == [{}, {}, {}]
    assert column.append(column).texts is None and len(column.append(column)) == 6


@pytest.mark.parametrize("first", [True, False])
def test_payloads_join_with_rows_that_have_none(first):
    with_some, with_none = (PayloadColumn.of(given, IdColumn.of(range(3))) for given in (PAYLOADS, None))
    joined = with_some.append(with_none) if first else with_none.append(with_some)
    assert listed(joined) == (PAYLOADS + [{}] * 3 if first else [{}] * 3 + PAYLOADS)
    assert listed(joined.take(np.array([5, 0]))) == [joined[5], joined[0]]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ({}, [0, 1, 2, 3]),
        ({"n": 1}, [0, 2]),
        ({"n": 1, "tags": "x"}, [0]),
        ({"tags": "x"}, [0, 1]),
        ({"tags": ["x", "y"]}, [0]),
        ({"n": "1"}, []),
        ({"missing": 1}, []),
        ({"deep": {"a": 1}}, [3]),
    ],
)
def test_where_wants_equal_values_or_a_list_that_contains_them(where, rows):
    payloads = [{"n": 1, "tags": ["x", "y"]}, {"n": 2, "tags": ["x"]}, {"n": 1}, {"deep": {"a": 1}}]
    column = PayloadColumn.of(payloads, IdColumn.of(range(4)))
    assert np.flatnonzero(column.matching(where)).tolist() == rows


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(string.printable + "é日👁\x00", max_size=6), unique=True, min_size=1, max_size=8), st.data())
def test_any_texts_are_kept_as_ids_and_payloads(names, data):
    rows = np.array(data.draw(st.lists(st.integers(0, len(names) - 1), unique=True)), np.int64)
    ids = IdColumn.of(names).take(rows)
    payloads = PayloadColumn.of([{name: name} for name in names], IdColumn.of(names)).take(rows)
    arrays, header = ids.to_arrays()
    back = IdColumn.from_arrays(arrays, {**header, "count": len(rows)})
    assert listed(back) == [names[row] for row in rows]
    filed = PayloadColumn.from_arrays(payloads.to_arrays(), len(rows))
    assert listed(filed) == [{names[row]: names[row]} for row in rows]


# Conditions


@pytest.mark.parametrize(
    ("typed", "value"),
    [("1", 1), ("1.0", 1.0), ("2", "2"), ('"2"', "2"), ("true", True), ("null", None), ('["x"]', ["x"])],
)
def test_a_typed_condition_gets_the_type_of_the_payloads(typed, value):
    held = [{"x": 2}, {"x": 1}, {"x": ["2", "a b"]}, {"x": True}, {"x": None}, {"x": ["x"]}, {}]
    column = PayloadColumn.of(held, IdColumn(range(len(held))))
    read = column.read_conditions({"x": typed})["x"]
    assert read == value and type(read) is type(value)
    assert column.matching({"x": read}).sum() == 1


@pytest.mark.parametrize(("condition", "found"), [({"x": "3"}, "x=3"), ({"x": "true"}, "x=true"), ({"y": "1"}, "'y'")])
def test_a_condition_that_no_payload_fulfils_is_refused(condition, found):
    for column in (PayloadColumn.of([{"x": 1}, {}], IdColumn(range(2))), PayloadColumn(2)):
        with pytest.raises(DataError) as caught:
            column.read_conditions(condition)
        assert caught.value.option == "where"
        assert found in caught.value.problem or not column.texts


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
    buffers = loaded.ids.values.buffers() + loaded.payloads.texts.buffers()
    places = [buffer.address for buffer in buffers if buffer is not None] + [loaded.codes.words.ctypes.data]
    mapped = [line.split()[0].split("-") for line in MAPS.read_text().splitlines() if line.endswith("/a.mbx")]
    assert len(places) == 5
    for place in places:
        assert any(int(first, 16) <= place < int(last, 16) for first, last in mapped)
