"""The index: added items are found, invalid ones are refused, saved ones are loaded."""

from __future__ import annotations

import json
import shutil
import types
from pathlib import Path

import numpy as np
import pytest

from multibit import Codes, Index
from multibit.errors import BusyError, ConfigError, DataError, FormatError, MismatchError
from multibit.files import write_arrays
from multibit.search.columns import strings, text_arrays

BITS = np.random.default_rng(3).integers(0, 2, (12, 40), np.uint8)
QUERIES = np.random.default_rng(4).integers(0, 2, (5, 40), np.uint8)


def codes(rows=slice(None), bits: int = 40) -> Codes:
    return Codes.from_bits(BITS[rows, :bits])


def filled(model: str = "model a") -> Index:
    index = Index(model)
    payloads = [{"row": row, "even": row % 2 == 0, "labels": ["日本", f"l{row % 3}"]} for row in range(12)]
    index.add([f"item {row}" for row in range(12)], codes(), payloads)
    return index


def ids(index: Index) -> list:
    return [index.ids[row] for row in range(len(index))]


def content(index: Index):
    payloads = [index.payloads[row] for row in range(len(index))]
    return ids(index), payloads, index.model, None if index.codes is None else index.codes.to_bits().tolist()


def plain_search(query: np.ndarray, k: int, bits: int, rows=range(12)) -> list[tuple[int, int]]:
    """The k nearest (distance, row) of some rows, by counting differing bits one by one."""
    return sorted((sum(int(a != b) for a, b in zip(query[:bits], BITS[n, :bits], strict=True)), n) for n in rows)[:k]


def found(result, number: int = 0) -> list[tuple[int, int]]:
    count = result.counts[number]
    return list(zip(result.distances[number, :count].tolist(), result.rows[number, :count].tolist(), strict=True))


# Searching


@pytest.mark.parametrize("bits", [1, 16, 17, 33, 40, None])
@pytest.mark.parametrize("k", [1, 3, 12, 99])
def test_the_nearest_items_are_found_at_every_length(bits, k):
    result = filled().search(Codes.from_bits(QUERIES), k=k, bits=bits)
    assert result.bits == (bits or 40)
    assert len(result) == 5
    for number, query in enumerate(QUERIES):
        expected = plain_search(query, k, bits or 40)
        assert found(result, number) == expected
        assert result.ids[number] == [f"item {row}" for _, row in expected]


def test_hits_carry_everything_about_the_items():
    hits = filled().search(codes([7]), k=2, bits=33).hits()
    assert (hits[0].rank, hits[0].id, hits[0].distance, hits[0].bits) == (1, "item 7", 0, 33)
    assert hits[0].payload == {"row": 7, "even": False, "labels": ["日本", "l1"]}
    (distance, row) = plain_search(BITS[7], 2, 33)[1]
    assert (hits[1].rank, hits[1].id, hits[1].distance, hits[1].payload["row"]) == (2, f"item {row}", distance, row)


def test_hits_are_those_of_the_query_asked_for():
    result = filled().search(codes([4, 9]), k=1)
    assert [result.hits(query)[0].id for query in range(2)] == ["item 4", "item 9"]


def test_equal_distances_are_in_the_order_of_adding():
    index = Index()
    for name in "cab":
        index.add([name], codes([0]))
    assert index.search(codes([0]), k=3).ids == [["c", "a", "b"]]


def test_an_item_added_later_is_found_and_an_older_result_keeps_its_answers():
    index = Index()
    index.add(["a"], codes([0]))
    before = index.search(codes([1]), k=5)
    index.add(["b"], codes([1]))
    assert index.search(codes([1]), k=1).ids == [["b"]]
    index.remove(["a"])
    assert before.ids == [["a"]]


def test_queries_may_be_longer_than_the_index_but_not_shorter():
    index = Index()
    index.add(["a", "b"], codes([0, 1], bits=16))
    assert index.search(codes([1]), k=1).ids == index.search(codes([1]), k=1, bits=16).ids == [["b"]]
    with pytest.raises(DataError) as caught:
        filled().search(codes([1], bits=16))
    assert caught.value.option == "bits" and "40" in caught.value.problem and "16" in caught.value.problem


@pytest.mark.parametrize("make", [Index, filled])
@pytest.mark.parametrize("k", [0, -1, 2.5])
def test_fewer_than_one_hit_is_refused(make, k):
    with pytest.raises(DataError) as caught:
        make().search(codes([0]), k=k)
    assert caught.value.option == "k" and str(k) in caught.value.problem


@pytest.mark.parametrize("make", [Index, filled])
@pytest.mark.parametrize("bits", [0, -1, 41])
def test_a_length_that_the_codes_do_not_have_is_refused(make, bits):
    with pytest.raises(DataError) as caught:
        make().search(codes([0]), bits=bits)
    assert caught.value.option == "bits" and str(bits) in caught.value.problem and "40" in caught.value.problem


@pytest.mark.parametrize("bits", [None, 8])
def test_an_empty_index_answers_with_nothing(bits):
    result = Index().search(codes([0, 1]), k=3, bits=bits)
    assert len(result) == 2
    assert result.ids == [[], []] and result.hits(1) == []
    assert result.bits == (bits or 40)


def test_no_query_has_no_answer():
    result = filled().search(codes(slice(0)), k=3)
    assert len(result) == 0 and result.ids == []


def test_an_unknown_engine_names_the_known_ones():
    with pytest.raises(ConfigError) as caught:
        Index(engine="magic")
    assert caught.value.option == "engine"
    assert "'magic'" in caught.value.problem and "exact" in caught.value.problem


def test_an_index_and_a_result_show_their_size():
    index = Index(modality="image")
    assert repr(index) == "Index(empty, exact engine)"
    index.add(None, codes())
    assert repr(index) == "Index(12 images, 40 bits, exact engine)"
    assert repr(filled()) == "Index(12 items, 40 bits, exact engine)"
    assert repr(index.search(codes([0, 1]), k=3, bits=16)) == "SearchResult(2 queries, 6 hits at 16 bits)"


def test_results_of_binary_queries_have_distances_and_no_scores():
    result = filled().search(codes([3]), k=2)
    assert result.distances.dtype == np.uint16 and result.hits()[0].score is None
    assert type(result.hits()[0].distance) is int
    with pytest.raises(DataError):
        _ = result.scores


def test_results_of_relaxed_queries_have_scores_and_no_distances():
    result = filled().search_relaxed(np.full((1, 40), 0.5), k=2)
    assert result.scores.dtype == np.float64 and result.hits()[0].distance is None
    assert type(result.hits()[0].score) is float
    with pytest.raises(DataError):
        _ = result.distances


# Searching among some


@pytest.mark.parametrize("distance", [0, 15, 20, 40, 99])
def test_items_farther_than_a_distance_are_left_out(distance):
    result = filled().search(Codes.from_bits(QUERIES), k=4, max_distance=distance)
    for number, query in enumerate(QUERIES):
        expected = [pair for pair in plain_search(query, 4, 40) if pair[0] <= distance]
        assert found(result, number) == expected
        assert [hit.id for hit in result.hits(number)] == [f"item {row}" for _, row in expected]
        assert (result.rows[number, len(expected) :] == -1).all()


FILTERS = {
    "some ids": ({"among": ["item 3", "item 8", "item 3"]}, lambda row: row in (3, 8)),
    "no id": ({"among": []}, lambda row: False),
    "a value": ({"where": {"even": True}}, lambda row: row % 2 == 0),
    "a value in a list": ({"where": {"labels": "l2"}}, lambda row: row % 3 == 2),
    "a whole list": ({"where": {"labels": ["日本", "l2"]}}, lambda row: row % 3 == 2),
    "two values": ({"where": {"even": True, "labels": "l0"}}, lambda row: row % 6 == 0),
    "no condition": ({"where": {}}, lambda row: True),
    "a value that nobody has": ({"where": {"labels": "l9"}}, lambda row: False),
    "not a value": ({"where": {"labels": {"$ne": "l1"}}}, lambda row: row % 3 != 1),
    "a range": ({"where": {"row": {"$gt": 2, "$lte": 7}}}, lambda row: 2 < row <= 7),
    "one of two filters": ({"where": {"$or": [{"row": 3}, {"even": True}]}}, lambda row: row == 3 or row % 2 == 0),
    "a filter as JSON": ({"where": '{"row": {"$in": [1, 5]}}'}, lambda row: row in (1, 5)),
    "ids and a value": ({"among": ["item 3", "item 8"], "where": {"even": True}}, lambda row: row == 8),
    "a value, near": ({"where": {"even": True}, "max_distance": 19}, lambda row: row % 2 == 0),
}


@pytest.mark.parametrize("case", FILTERS)
@pytest.mark.parametrize("bits", [5, 40])
def test_filters_come_before_the_ranking(case, bits):
    options, wanted = FILTERS[case]
    result = filled().search(Codes.from_bits(QUERIES), k=3, bits=bits, **options)
    for number, query in enumerate(QUERIES):
        nearest = plain_search(query, 3, bits, [row for row in range(12) if wanted(row)])
        assert found(result, number) == [pair for pair in nearest if pair[0] <= options.get("max_distance", 40)]


def test_an_unknown_id_to_search_among_is_refused():
    with pytest.raises(DataError) as caught:
        filled().search(codes([0]), among=["item 1", "item 99"])
    assert caught.value.field == "ids" and "'item 99'" in caught.value.problem


@pytest.mark.parametrize("distance", [-1, 1.5])
def test_a_negative_or_fractional_distance_is_refused(distance):
    with pytest.raises(DataError) as caught:
        filled().search(codes([0]), max_distance=distance)
    assert caught.value.option == "max_distance" and str(distance) in caught.value.problem


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({"nobody has it": None}, "'nobody has it'"),
        ({"even": "yes"}, "'yes'"),
        ({"row": True}, "True"),
        ({"row": {"$near": 1}}, "$near"),
        ({"$nor": []}, "$nor"),
        ("{", "JSON"),
        ([], "list"),
        ({"row": {"$in": 3}}, "3"),
        ({"even": {"$gt": False}}, "order"),
    ],
)
def test_a_filter_that_does_not_fit_the_fields_is_refused(where, found):
    for search in (filled().search, filled().search_relaxed):
        with pytest.raises(DataError) as caught:
            search(codes([0]) if search.__name__ == "search" else np.zeros((1, 40)), where=where)
        assert caught.value.option == "where" and found in caught.value.problem


def test_hits_have_the_fields_that_are_asked_for():
    hits = filled().search(codes([7]), k=1, fields=["even", "row"]).hits()
    assert hits[0].payload == {"row": 7, "even": False}
    with pytest.raises(ConfigError) as caught:
        filled().search(codes([7]), fields=["odd"])
    assert caught.value.option == "fields"


def test_a_snapshot_is_not_reached_by_later_changes():
    index = filled()
    snapshot = index.snapshot()
    index.remove(["item 3"])
    index.compact()
    assert content(snapshot) == content(filled()) and len(index) == 11


@pytest.mark.parametrize("bits", [7, 40])
@pytest.mark.parametrize("options", [{}, {"candidates": 12}, {"where": {"even": True}}])
def test_relaxed_queries_rank_by_the_inner_product(bits, options):
    values = np.random.default_rng(5).uniform(-1, 1, (4, 40))
    result = filled().search_relaxed(values, k=5, bits=bits, **options)
    rows = np.arange(0, 12, 2 if "where" in options else 1)
    for number, value in enumerate(values):
        scores = (BITS[rows, :bits].astype(float) * 2 - 1) @ value[:bits]
        best = np.lexsort((rows, -scores))[:5]
        assert result.ids[number] == [f"item {row}" for row in rows[best]]
        assert [hit.score for hit in result.hits(number)] == pytest.approx(scores[best].tolist(), abs=1e-9)


# Adding

BAD = {
    "fewer ids": (["x"], codes([0, 1]), None, "", "1 ids, 2 codes, 1 payloads"),
    "fewer codes": (["x", "y"], codes([0]), None, "", "2 ids, 1 codes, 2 payloads"),
    "fewer payloads": (["x", "y"], codes([0, 1]), [{}], "", "2 ids, 2 codes, 1 payloads"),
    "known id": (["x", "item 3"], codes([0, 1]), None, "ids", "'item 3'"),
    "id twice": (["x", "x"], codes([0, 1]), None, "ids", "'x'"),
    "number twice": ([5, 5], codes([0, 1]), None, "ids", "5"),
    "id is a float": ([1.5], codes([0]), None, "ids", "1.5"),
    "id is a truth value": ([True], codes([0]), None, "ids", "True"),
    "id is nothing": ([None], codes([0]), None, "ids", "None"),
    "ids are mixed": (["x", 1], codes([0, 1]), None, "ids", "'x'"),
    "another kind": ([1], codes([0]), None, "ids", "integer"),
    "numbered": (None, codes([0]), None, "ids", "string"),
    "shorter codes": (["x"], codes([0], bits=32), None, "codes", "32"),
    "longer codes": (["x"], Codes.from_bits(np.ones((1, 41))), None, "codes", "41"),
    "payload is a set": (["x", "y"], codes([0, 1]), [{}, {"a": {1}}], "payloads", "'y'"),
    "payload is a path": (["x"], codes([0]), [{"a": Path("x")}], "payloads", "'x'"),
    "payload is NaN": (["x"], codes([0]), [{"a": float("nan")}], "payloads", "'x'"),
    "payload is an array": (["x"], codes([0]), [{"a": np.ones(2)}], "payloads", "'x'"),
    "payload is a list": (["x"], codes([0]), [[1]], "payloads", "list"),
    "payload is a text": (["x"], codes([0]), ["text"], "payloads", "str"),
}
ADD_ONLY = ("known id", "numbered")


@pytest.mark.parametrize(
    ("change", "case"), [("add", case) for case in BAD] + [("upsert", case) for case in BAD if case not in ADD_ONLY]
)
def test_invalid_items_are_refused_and_change_nothing(change, case):
    names, new, payloads, place, found_value = BAD[case]
    index = filled()
    with pytest.raises(DataError) as caught:
        getattr(index, change)(names, new, payloads)
    assert (caught.value.field or caught.value.option) == place and found_value in caught.value.problem
    assert content(index) == content(filled())
    assert len(found(index.search(codes([0]), k=99))) == 12
    index.add(["x", "y"], codes([0, 1]))  # refused ids stay free
    assert len(index) == 14


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["a", "b", ""], "string"),
        ([7, -1, 2**62], "integer"),
        (np.array([7, 3, 5]), "integer"),
        (np.array(["x", "日本", "👁"]), "string"),
        (None, "range"),
        (range(5, 8), "range"),
    ],
)
def test_ids_are_strings_integers_or_numbered(tmp_path, names, kind):
    index = Index()
    index.add(names, codes([0, 1, 2]))
    expected = [0, 1, 2] if names is None else list(names)
    assert ids(index) == expected and index.ids.kind == kind
    assert {type(name) for name in ids(index)} == {str if kind == "string" else int}
    index.save(tmp_path / "a.mbx")
    assert ids(Index.load(tmp_path / "a.mbx")) == expected
    assert Index.load(tmp_path / "a.mbx").search(codes([1]), k=1).ids == [[expected[1]]]


@pytest.mark.parametrize("step", ["saved", "added to"])
def test_every_second_number_is_an_id_as_well(tmp_path, step):
    index = Index()
    index.add(range(0, 4, 2), codes([0, 1]))
    if step == "saved":
        index.save(tmp_path / "a.mbx")
        index = Index.load(tmp_path / "a.mbx")
        assert ids(index) == [0, 2]
    else:
        index.add(range(4, 6), codes([2, 3]))
        assert ids(index) == [0, 2, 4, 5]
        assert len(index.ids) == len(index.codes)


@pytest.mark.parametrize(
    ("name", "payload", "field"),
    [(2**64, {}, "ids"), ("\ud83d", {}, "ids"), ("x", {"text": "\udcff"}, "payloads")],
    ids=["number", "id", "payload"],
)
def test_values_that_no_column_can_hold_are_refused(name, payload, field):
    with pytest.raises(DataError) as caught:
        Index().add([name], codes([0]), [payload])
    assert caught.value.field == field


def test_numbered_ids_continue():
    index = Index()
    index.add(None, codes([0, 1]))
    index.add(None, codes([2, 3]))
    assert ids(index) == [0, 1, 2, 3] and index.ids.kind == "range"
    with pytest.raises(DataError) as caught:
        index.add([3], codes([0]))
    assert caught.value.field == "ids" and "3" in caught.value.problem
    index.add([9], codes([4]))
    assert ids(index) == [0, 1, 2, 3, 9]


def test_numbered_ids_continue_after_a_removal():
    index = Index()
    index.add(None, codes([0, 1, 2]))
    index.remove([0])
    index.add(None, codes([3]))
    assert ids(index) == [1, 2, 3]


def test_adding_nothing_changes_nothing():
    index = filled()
    index.add([], codes(slice(0)))
    assert content(index) == content(filled())


def test_a_payload_is_any_mapping_and_reads_as_json():
    index = Index()
    index.add(["x", "y"], codes([0, 1]), [types.MappingProxyType({"a": (1, 2)}), {"1": "x"}])
    assert [index.payloads[row] for row in range(2)] == [{"a": [1, 2]}, {"1": "x"}]


def test_a_payload_that_the_caller_changes_later_stays_as_it_was():
    payload = {"a": [1]}
    index = Index()
    index.add(["x"], codes([0]), [payload])
    payload["a"].append({2})
    index.search(codes([0])).hits()[0].payload["a"] = "spoiled"
    assert index.payloads[0] == {"a": [1]}


def test_items_with_and_without_payload_may_be_mixed():
    index = Index()
    index.add(["a"], codes([0]))
    index.add(["b"], codes([1]), [{"x": 1}])
    index.add(["c"], codes([2]))
    assert [index.payloads[row] for row in range(3)] == [{}, {"x": 1}, {}]


# Changing


def test_an_upsert_appends_and_what_it_replaces_is_gone():
    index = filled()
    index.upsert(["new", "item 5", "item 2", "newer"], codes([0, 1, 3, 4]), [{"row": n} for n in range(4)])
    stay = [row for row in range(12) if row not in (2, 5)]
    assert ids(index) == [*(f"item {row}" for row in stay), "new", "item 5", "item 2", "newer"]
    assert index.codes.to_bits().tolist() == BITS[[*stay, 0, 1, 3, 4]].tolist()
    assert [index.payloads[row] for row in range(10, 14)] == [{"row": n} for n in range(4)]
    assert index.payloads[2] == filled().payloads[3]


def test_of_items_at_one_distance_the_oldest_is_first_and_a_replaced_one_is_new():
    index = Index()
    for name in "abcd":
        index.add([name], codes([0]))
    index.upsert(["b"], codes([0]))
    for _ in range(2):
        assert index.search(codes([0]), k=3).ids == [["a", "c", "d"]] and ids(index) == ["a", "c", "d", "b"]
        index.compact()


def test_an_upsert_into_an_empty_index_is_an_add():
    index = Index()
    index.upsert(["a", "b"], codes([0, 1]))
    assert ids(index) == ["a", "b"]


def test_removed_items_are_found_no_more_and_the_others_keep_their_order():
    index = filled()
    index.remove(["item 7", "item 0", "item 7"])
    kept = [row for row in range(12) if row not in (0, 7)]
    assert ids(index) == [f"item {row}" for row in kept]
    assert index.codes.to_bits().tolist() == BITS[kept].tolist()
    expected = [f"item {row}" for _, row in plain_search(BITS[7], 99, 40, kept)]
    assert index.search(codes([7]), k=99).ids == [expected]
    index.add(["item 7"], codes([7]))
    assert index.search(codes([7]), k=1).ids == [["item 7"]]


def test_removing_an_unknown_id_is_refused_and_removes_nothing():
    index = filled()
    with pytest.raises(DataError) as caught:
        index.remove(["item 1", "item 99"])
    assert caught.value.field == "ids" and "'item 99'" in caught.value.problem
    assert content(index) == content(filled())


def test_removing_everything_leaves_an_empty_index_that_takes_anything():
    index = filled()
    index.remove(ids(index))
    assert len(index) == 0 and index.search(codes([0])).ids == [[]]
    index.add([1, 2], codes([0, 1], bits=8))
    assert ids(index) == [1, 2]


def test_merged_parts_are_what_was_built_at_once():
    payloads = [filled().payloads[row] for row in range(12)]
    parts = []
    for rows in (slice(0, 5), slice(5, 5), slice(5, 12)):
        part = Index("model a")
        part.add(ids(filled())[rows], codes(rows), payloads[rows])
        parts.append(part)
    assert content(Index.merge([parts[0], Index("model a"), *parts[1:]])) == content(filled())


@pytest.mark.parametrize(
    ("parts", "error", "field", "others"),
    [
        ([], DataError, "", ["at least one"]),
        ([filled(), filled()], DataError, "part 2", ["part 1", "'item 0'"]),
        ([Index(), filled(""), filled("")], DataError, "part 3", ["part 2", "'item 0'"]),
        ([Index(), Index(modality="image"), Index(modality="text")], MismatchError, "part 3", ["part 2", "image"]),
        ([filled(), filled("model b")], MismatchError, "part 2", ["part 1", "model a", "model b"]),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, error, field, others):
    with pytest.raises(error) as caught:
        Index.merge(parts)
    assert caught.value.field == field and all(other in caught.value.problem for other in others)


def test_an_unknown_modality_fits_any_and_the_known_one_is_kept(tmp_path):
    part = Index("model a", modality="image")
    part.add(["x"], codes([0]))
    merged = Index.merge([filled(), part])
    merged.save(tmp_path / "whole.mbx")
    assert merged.modality == Index.load(tmp_path / "whole.mbx").modality == "image" and len(merged) == 13


def test_merging_changes_no_part():
    part = filled()
    merged = Index.merge([part])
    merged.remove(["item 3"])
    assert content(part) == content(filled())


# Saving


def raw(folder: Path) -> dict[str, bytes]:
    """The files of an index."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("verify", [True, False])
def test_an_index_comes_back_as_it_was_saved(tmp_path, verify):
    index = filled()
    index.add(["日本 👁", ""], codes([0, 1]), [{"a": [1, None, {"b": 2.5}]}, {"": True}])
    index.save(tmp_path / "new folder" / "a.mbx")
    loaded = Index.load(str(tmp_path / "new folder" / "a.mbx"), verify=verify)
    assert content(loaded) == content(index)
    assert loaded.search(codes(), k=5, bits=17).ids == index.search(codes(), k=5, bits=17).ids
    assert files(tmp_path / "new folder") == ["a.mbx"]


@pytest.mark.parametrize("bits", [1, 16, 31, 32, 64, 65, 128, 200])
def test_codes_of_every_length_come_back(tmp_path, bits):
    values = np.random.default_rng(bits).integers(0, 2, (3, bits))
    index = Index()
    index.add([0, 1, 2], Codes.from_bits(values))
    index.save(tmp_path / "a.mbx")
    assert np.array_equal(Index.load(tmp_path / "a.mbx").codes.to_bits(), values)


def test_a_loaded_index_can_be_changed_and_knows_its_ids(tmp_path):
    filled().save(tmp_path / "a.mbx")
    index = Index.load(tmp_path / "a.mbx")
    with pytest.raises(DataError) as caught:
        index.add(["item 3"], codes([0]))
    assert "'item 3'" in caught.value.problem
    index.add(["new"], codes([0]))
    index.remove(["item 1"])
    assert index.search(codes([0]), k=2).ids == [["item 0", "new"]]


def test_changes_reach_the_disk_only_by_saving(tmp_path):
    filled().save(tmp_path / "a.mbx")
    before = raw(tmp_path / "a.mbx")
    index = Index.load(tmp_path / "a.mbx")
    index.codes.words[...] = 0
    index.remove(["item 1"])
    assert raw(tmp_path / "a.mbx") == before
    index.save(tmp_path / "a.mbx")
    assert len(Index.load(tmp_path / "a.mbx")) == 11


def test_a_loaded_index_is_not_disturbed_when_its_file_is_replaced(tmp_path):
    filled().save(tmp_path / "a.mbx")
    reader = Index.load(tmp_path / "a.mbx")
    writer = Index()
    writer.add(["other"], codes([0]))
    writer.save(tmp_path / "a.mbx")
    shutil.rmtree(tmp_path / "a.mbx")
    assert content(reader) == content(filled())


def test_an_empty_index_is_not_saved(tmp_path):
    with pytest.raises(DataError) as caught:
        Index().save(tmp_path / "a.mbx")
    assert caught.value.file == tmp_path / "a.mbx"
    assert files(tmp_path) == []


def test_an_index_to_which_nothing_was_added_is_empty(tmp_path):
    index = Index("m")
    index.add([], codes(slice(0)))
    assert index.codes is None
    with pytest.raises(DataError):
        index.save(tmp_path / "a.mbx")


def assert_refused(path: Path, found: str, file: Path | None = None, **options) -> FormatError:
    """Loading raises a FormatError that names the file, with `found` in the problem."""
    with pytest.raises(FormatError) as caught:
        Index.load(path, **options)
    assert caught.value.file == (file or path) and found in caught.value.problem
    return caught.value


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


@pytest.mark.parametrize("name", ["segment-*", "removed-*", "manifest.json"])
@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_a_truncated_file_is_named(tmp_path, cut, name):
    path = tmp_path / "a.mbx"
    index = filled()
    index.remove(["item 3"])
    index.save(path)
    file = only(path, name)
    file.write_bytes(file.read_bytes()[:cut])
    if (cut, name) != (-1, "manifest.json"):  # the last byte of the manifest is a line break
        assert_refused(path, "truncated", file, verify=False)


@pytest.mark.parametrize("name", ["segment-*", "removed-*", "manifest.json"])
def test_a_changed_file_is_named(tmp_path, name):
    path = tmp_path / "a.mbx"
    index = filled()
    index.remove(["item 3"])
    index.save(path)
    file = only(path, name)
    content = file.read_bytes()
    if name == "manifest.json":
        file.write_bytes(content.replace(b"model a", b"model b"))
    else:
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert_refused(path, "checksum", file)


@pytest.mark.parametrize("name", ["segment-*", "removed-*"])
def test_a_missing_file_is_named(tmp_path, name):
    path = tmp_path / "a.mbx"
    index = filled()
    index.remove(["item 3"])
    index.save(path)
    file = only(path, name)
    file.unlink()
    assert_refused(path, "no such file", file)
    with pytest.raises(FormatError) as caught, Index.editing(path) as writer:
        writer.remove(["item 1"])
    assert caught.value.file == file


def test_another_file_is_refused(tmp_path):
    codes().save(tmp_path / "a.mbx")
    assert_refused(tmp_path / "a.mbx", "multibit codes")
    assert_refused(tmp_path / "b.mbx", "no such file")
    (tmp_path / "c.mbx").mkdir()
    assert_refused(tmp_path / "c.mbx", "folder without manifest.json")


def test_a_newer_index_is_refused_with_a_hint(tmp_path):
    filled().save(tmp_path / "a.mbx")
    file = tmp_path / "a.mbx" / "manifest.json"
    file.write_text(file.read_text().replace('"version": 3', '"version": 99'))
    assert "Upgrade" in assert_refused(tmp_path / "a.mbx", "version 99", file).hint


# Single files of earlier versions


def old_file(path: Path, payloads, **header) -> None:
    """A file as version 1 wrote it."""
    texts = strings([json.dumps(payload, ensure_ascii=False) for payload in payloads])
    names = strings([f"item {row}" for row in range(len(payloads))])
    arrays = {"words": codes().words, **text_arrays(names, "ids"), **text_arrays(texts, "payloads")}
    facts = {"bits": 40, "count": len(payloads), "model": "model a", "engine": "exact", "ids": "string", **header}
    write_arrays(path, arrays, facts, kind="index", version=1)


def test_a_single_file_is_read_and_becomes_a_folder_at_the_first_change(tmp_path):
    path = tmp_path / "a.mbx"
    payloads = [filled().payloads[row] for row in range(12)]
    old_file(path, payloads)
    assert content(Index.load(path)) == content(filled()) and Index.load(path).modality == ""
    opened = Index.open(path)
    with opened.writer() as writer:
        writer.remove(["item 3"])
    assert path.is_dir() and files(tmp_path) == ["a.mbx"]
    assert ids(opened) == ids(Index.load(path)) == [f"item {row}" for row in range(12) if row != 3]
    old_file(tmp_path / "b.mbx", payloads)
    filled().save(tmp_path / "b.mbx")
    assert (tmp_path / "b.mbx").is_dir() and files(tmp_path) == ["a.mbx", "b.mbx"]


def test_a_single_file_with_values_of_several_kinds_is_read(tmp_path):
    old_file(tmp_path / "a.mbx", [{"x": 1}, {"x": "a"}, {"x": ["a", None]}] * 4)
    assert Index.load(tmp_path / "a.mbx").payloads[2] == {"x": ["a", None]}


# Opening, refreshing, writing


def test_a_reader_sees_what_others_wrote_when_it_refreshes(tmp_path):
    path = tmp_path / "a.mbx"
    filled().save(path)
    reader, writing = Index.open(path), Index.open(path)
    assert not reader.refresh()
    with writing.writer() as writer:
        writer.upsert(["item 3", "new"], codes([0, 1]), [{"row": 99}, {}])
    assert content(reader) == content(filled())
    assert reader.refresh() and not reader.refresh()
    assert content(reader) == content(writing) == content(Index.load(path)) and ids(reader)[-2:] == ["item 3", "new"]
    with writing.writer() as writer:
        writer.compact()
    assert len(list(path.glob("segment-*"))) == 1 and not list(path.glob("removed-*"))
    before = content(reader)
    assert reader.refresh() and content(reader) == before


def test_a_change_writes_no_more_than_itself(tmp_path):
    path = tmp_path / "a.mbx"
    filled().save(path)
    before = raw(path)
    with Index.editing(path) as index:
        index.upsert(["item 3"], codes([0]), [{"row": 99}])
    after = raw(path)
    kept = [name for name in before if name.startswith("segment-")]
    assert [after[name] for name in kept] == [before[name] for name in kept] and len(after) == 4


def test_an_index_in_memory_has_no_writer():
    with pytest.raises(ConfigError), filled().writer():
        pass
    with pytest.raises(ConfigError):
        filled().refresh()


@pytest.mark.parametrize("batches", [20, 200])
def test_many_small_changes_leave_few_segments(tmp_path, batches):
    index = Index()
    for number in range(batches):
        index.add([number], codes([number % 12]), [{"n": number}])
        index.upsert([number // 2], codes([number % 12]), [{"n": number}])
    index.save(tmp_path / "a.mbx")
    assert len(list((tmp_path / "a.mbx").glob("segment-*"))) < 16
    assert {index.payloads[row]["n"] for row in range(len(index))} <= set(range(batches))


# Editing a file that others write


def test_an_edit_is_in_the_file_when_it_is_done(tmp_path):
    path = tmp_path / "a.mbx"
    filled().save(path)
    with Index.editing(path) as index:
        index.remove(["item 1"])
        assert len(Index.load(path)) == 12
    assert len(Index.load(path)) == 11
    assert files(tmp_path) == ["a.mbx"]


def test_an_edit_that_fails_leaves_the_file_and_frees_it(tmp_path):
    path = tmp_path / "a.mbx"
    filled().save(path)
    before = raw(path)
    with pytest.raises(DataError), Index.editing(path) as index:
        index.remove(["item 1"])
        index.remove(["item 99"])
    assert raw(path) == before
    filled().save(path)


@pytest.mark.parametrize("how", ["save", "editing"])
def test_a_second_writer_is_refused_and_readers_are_not(tmp_path, how):
    path = tmp_path / "a.mbx"
    filled().save(path)
    with Index.editing(path):
        assert len(Index.load(path)) == 12
        with pytest.raises(BusyError) as caught:
            if how == "save":
                Index.load(path).save(path)
            else:
                with Index.editing(path) as index:
                    index.remove(["item 1"])
    assert caught.value.file == path and caught.value.hint
    assert content(Index.load(path)) == content(filled())
    filled().save(path)


def test_two_indexes_of_a_folder_may_be_edited_together(tmp_path):
    for name in ("image.mbx", "text.mbx"):
        filled().save(tmp_path / name)
    with Index.editing(tmp_path / "image.mbx") as image, Index.editing(tmp_path / "text.mbx") as text:
        image.remove(["item 1"])
        text.remove(["item 1"])
    assert len(Index.load(tmp_path / "image.mbx")) == len(Index.load(tmp_path / "text.mbx")) == 11


def test_temporary_files_of_a_killed_writer_are_removed_by_the_next_one_and_nothing_else(tmp_path):
    for name in (".a.mbx.k1ll3d_x~", ".b.mbx.k1ll3d_x~", "a.mbx.mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("half")
    filled().save(tmp_path / "a.mbx")
    assert files(tmp_path) == [".b.mbx.k1ll3d_x~", "a.mbx", "a.mbx.mine"]


# The model


def test_a_search_with_codes_of_another_model_is_refused():
    assert filled().search(codes([0]), 1, model="model a").ids == filled().search(codes([0]), 1).ids
    with pytest.raises(MismatchError) as caught:
        filled().search(codes([0]), 1, model="b")
    assert "model a" in caught.value.problem and "model b" in caught.value.problem


def test_codes_of_the_same_model_are_accepted():
    filled().require_model("model a")


@pytest.mark.parametrize(("own", "named"), [("model a", "model a"), ("", "unknown")])
def test_codes_of_another_model_are_refused(own, named):
    with pytest.raises(MismatchError) as caught:
        Index(own).require_model("b")
    assert named in caught.value.problem and "model b" in caught.value.problem and caught.value.hint
