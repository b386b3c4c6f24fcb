"""Manifests in three formats, and every mistake in one."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from multibit import read_manifest
from multibit.data.dataset import PairedDataset
from multibit.data.manifest import write_manifest
from multibit.data.notes import DataNote
from multibit.errors import ConfigError, DataError

ITEMS = [
    {"id": "é-1", "image": "bilder/größe 1.jpg", "texts": ["une pomme, rouge", '日本 "語"'], "labels": ["fruit", "赤"]},
    {"id": "2", "image": None, "texts": ["two\nlines"], "labels": []},
    {"id": "three 👁", "image": "c.png", "texts": ["a", "b", "c"], "labels": ["fruit"]},
]
HEADER = "id,image,text,labels\n"
GOOD = HEADER + "a,a.jpg,a text,cat|dog\nb,,b text,\n"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_csv(path: Path, cell) -> Path:
    """The items as CSV, several values of a cell joined by `cell`."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "image", "texts", "labels"])
        rows.writerows([item["id"], item["image"], cell(item["texts"]), cell(item["labels"])] for item in ITEMS)
    return path


def write_jsonl(path: Path, items, **options) -> Path:
    return write(path, "".join(json.dumps(item, **options) + "\n" for item in items))


def write_parquet(path: Path) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ITEMS), path)
    return path


def content(data: PairedDataset):
    return data.ids, data.images, data.texts, data.label_names, data.labels.tolist()


def refused(path: Path, **options) -> DataError:
    """The error that a manifest is refused with."""
    with pytest.raises(DataError) as caught:
        read_manifest(path, **options)
    assert caught.value.file == path
    return caught.value


# Formats


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: write_csv(folder / "items.csv", "|".join),
        lambda folder: write_csv(folder / "items.csv", json.dumps),
        lambda folder: write_csv(folder / "ITEMS.CSV", lambda values: json.dumps(values, ensure_ascii=False)),
        lambda folder: write_jsonl(folder / "items.jsonl", ITEMS),
        lambda folder: write_jsonl(folder / "items.jsonl", ITEMS, ensure_ascii=False),
        lambda folder: write_parquet(folder / "items.parquet"),
    ],
    ids=["csv", "csv of JSON lists", "csv of unescaped lists", "jsonl", "jsonl unescaped", "parquet"],
)
def test_every_format_contains_the_same_data_set(tmp_path, make):
    assert content(read_manifest(make(tmp_path))) == (
        ("é-1", "2", "three 👁"),
        (tmp_path / "bilder/größe 1.jpg", None, tmp_path / "c.png"),
        (("une pomme, rouge", '日本 "語"'), ("two\nlines",), ("a", "b", "c")),
        ("fruit", "赤"),
        [[1, 1], [0, 0], [1, 0]],
    )


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_csv_of_any_system_is_read(tmp_path, ending, mark):
    path = write(tmp_path / "items.csv", mark + GOOD.replace("\n", ending).encode())
    assert content(read_manifest(path)) == content(read_manifest(write(tmp_path / "plain.csv", GOOD)))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_blank_lines_and_a_byte_order_mark_in_jsonl_are_skipped(tmp_path, mark):
    line = json.dumps({**ITEMS[0], "id": "x"}).encode()
    path = write(tmp_path / "items.jsonl", mark + b"\n" + line + b"\n \t\n\n" + line.replace(b'"x"', b'"y"') + b"\n\n")
    assert read_manifest(path).ids == ("x", "y")


def test_blank_lines_in_csv_are_skipped(tmp_path):
    assert read_manifest(write(tmp_path / "items.csv", HEADER + "\n\na,,x,\n\nb,,y,\n\n")).ids == ("a", "b")


def test_other_columns_are_ignored(tmp_path):
    path = write(tmp_path / "items.csv", "width,id,image,text,labels,url\n3,a,a.jpg,x,cat,http\n")
    assert read_manifest(path).describe(0) == {
        "image": str((tmp_path / "a.jpg").absolute()), "text": "x", "labels": ["cat"],
    }  # fmt: skip


# Fields


def test_image_paths_are_relative_to_the_manifest_or_to_a_folder(tmp_path):
    path = write(tmp_path / "items.csv", HEADER + f"a,sub/a.jpg,x,\nb,{tmp_path / 'b.jpg'},x,\n")
    assert read_manifest(path).images == (tmp_path / "sub/a.jpg", tmp_path / "b.jpg")
    elsewhere = tmp_path / "images"
    assert read_manifest(path, images=elsewhere).images == (elsewhere / "sub/a.jpg", tmp_path / "b.jpg")


def test_a_text_is_one_text_whatever_it_contains(tmp_path):
    path = write(tmp_path / "items.csv", HEADER + "a,,one | two,\nb,,[not a list,\nc,,  ,\n")
    assert read_manifest(path).texts == (("one | two",), ("[not a list",), ("",))


def test_line_breaks_inside_a_cell_are_kept_as_they_are(tmp_path):
    path = write(tmp_path / "items.csv", HEADER + 'a,,"one\r\ntwo\rthree\nfour",\r\n')
    assert read_manifest(path).texts == (("one\r\ntwo\rthree\nfour",),)


def test_a_text_field_of_a_list_holds_several(tmp_path):
    path = write_jsonl(tmp_path / "items.jsonl", [{"id": 1, "image": None, "text": ["a", "b|c"], "labels": None}])
    assert read_manifest(path).texts == (("a", "b|c"),)


def test_ids_that_are_numbers_become_their_digits(tmp_path):
    items = [{"id": number, "image": "", "text": "x", "labels": "a|b"} for number in (0, 10)]
    assert read_manifest(write_jsonl(tmp_path / "items.jsonl", items)).ids == ("0", "10")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(items), tmp_path / "items.parquet")
    assert read_manifest(tmp_path / "items.parquet").ids == ("0", "10")


@pytest.mark.parametrize(
    ("separator", "cell"),
    [("|", "cat|dog"), ("|", " cat | dog |"), (";", "cat;dog"), (" / ", "cat / dog"), (";", '"[""cat"", ""dog""]"')],
)
def test_several_values_are_split_at_the_separator_or_written_as_a_list(tmp_path, separator, cell):
    path = write(tmp_path / "items.csv", "id,image,texts,labels\n" + f"a,,{cell},{cell}\n")
    data = read_manifest(path, separator=separator)
    assert data.texts == (("cat", "dog"),)
    assert data.label_names_of(0) == ["cat", "dog"]


def test_a_label_given_twice_counts_once(tmp_path):
    assert read_manifest(write(tmp_path / "items.csv", HEADER + "a,,x,cat|cat\n")).labels.tolist() == [[1]]


def test_label_columns_are_in_alphabetical_order_or_as_asked(tmp_path):
    path = write(tmp_path / "items.csv", HEADER + "a,,x,dog\nb,,x,cat|bird\n")
    assert read_manifest(path).label_names == ("bird", "cat", "dog")
    asked = read_manifest(path, label_names=["dog", "cat", "fish", "bird"])
    assert asked.label_names == ("dog", "cat", "fish", "bird")
    assert asked.labels.tolist() == [[1, 0, 0, 0], [0, 1, 0, 1]]


def test_columns_of_another_name_are_mapped(tmp_path):
    path = write(tmp_path / "items.csv", "file_name,caption,key,tags\na.jpg,x,7,cat\n")
    names = {"id": "key", "image": "file_name", "text": "caption", "labels": "tags"}
    assert content(read_manifest(path, columns=names)) == (
        ("7",), (tmp_path / "a.jpg",), (("x",),), ("cat",), [[1]],
    )  # fmt: skip


def test_several_texts_of_another_name_are_mapped(tmp_path):
    path = write(tmp_path / "items.csv", "id,image,captions,labels\na,,x|y,cat\n")
    assert read_manifest(path, columns={"texts": "captions"}).texts == (("x", "y"),)


def test_texts_win_over_text_where_both_are_there(tmp_path):
    path = write(tmp_path / "items.csv", "id,image,text,texts,labels\na,,title,x|y,cat\n")
    with pytest.warns(DataNote, match="the column text is not read"):
        assert read_manifest(path).texts == (("x", "y"),)


def test_a_text_column_that_was_asked_for_wins(tmp_path):
    path = write(tmp_path / "items.csv", "id,image,caption,texts,labels\na,,asked for,another,cat\n")
    assert read_manifest(path, columns={"text": "caption"}).texts == (("asked for",),)


def test_a_texts_column_that_was_asked_for_and_is_missing_is_named(tmp_path):
    error = refused(write(tmp_path / "items.csv", GOOD), columns={"texts": "captions"})
    assert (error.row, error.field) == (2, "texts") and "'captions'" in error.problem


# Mistakes


@pytest.mark.parametrize("field", ["id", "text"])
def test_a_missing_column_is_named_with_those_that_exist_and_the_argument_to_map_it(tmp_path, field):
    columns = [name for name in ("id", "image", "text", "labels") if name != field]
    error = refused(write(tmp_path / "items.csv", ",".join(columns) + "\n\nx,y,z\n"))
    assert (error.row, error.field) == (3, field)
    assert f"{field!r}" in error.problem and ", ".join(columns) in error.problem and "`columns`" in error.hint


def test_data_without_columns_of_images_and_labels_have_none(tmp_path):
    for name, content in (
        ("items.csv", "id,text\n1,a cat\n"),
        ("items.tsv", "id\ttext\n1\ta cat\n"),
        ("items.jsonl", '{"id": 1, "text": "a cat"}\n'),
        ("items.json", '[{"id": 1, "text": "a cat"}]'),
    ):
        data = read_manifest(write(tmp_path / name, content))
        assert (data.ids, data.images, data.texts) == (("1",), (None,), (("a cat",),))
        assert data.label_names == () and data.labels.shape == (1, 0)


def test_a_mapped_column_of_labels_must_exist(tmp_path):
    error = refused(write(tmp_path / "items.csv", "id,text\n1,a cat\n"), columns={"labels": "tags"})
    assert error.field == "labels" and "'tags'" in error.problem


def test_a_json_list_and_tabs_hold_what_csv_holds(tmp_path):
    rows = [{"id": "a", "image": "a.png", "text": "x, y", "labels": ["p", "q"]}, {"id": "b", "text": "z", "labels": []}]
    listed = read_manifest(write(tmp_path / "items.json", json.dumps(rows, indent=1)))
    tabs = read_manifest(write(tmp_path / "items.tsv", "id\timage\ttext\tlabels\na\ta.png\tx, y\tp|q\nb\t\tz\t\n"))
    assert listed.fingerprint() == tabs.fingerprint() and listed.images == tabs.images
    assert tabs.labels.tolist() == [[1, 1], [0, 0]]


def test_a_mapping_to_a_column_that_does_not_exist_names_the_column(tmp_path):
    error = refused(write(tmp_path / "items.csv", GOOD), columns={"image": "file_name"})
    assert (error.row, error.field) == (2, "image")
    assert "'file_name'" in error.problem and "id, image, text, labels" in error.problem


def test_a_mapping_of_an_unknown_field_names_the_fields(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_manifest(write(tmp_path / "items.csv", GOOD), columns={"picture": "image"})
    assert caught.value.option == "columns"
    assert "picture" in caught.value.problem and "id, image, text, texts, labels" in caught.value.problem


@pytest.mark.parametrize(
    ("name", "content", "row", "field"),
    [
        ("items.csv", HEADER + "a,,x,c\nb,,y\n", 3, ""),
        ("items.csv", HEADER + 'a,,"x\ny",c\nb,,y,c,d\n', 4, ""),
        ("items.csv", HEADER + ",,x,c\n", 2, "id"),
        ("items.csv", "id:image:text:labels\na::x:c\n", 2, "id"),
        ("items.csv", HEADER + 'a,,x,"[""c"""\n', 2, "labels"),
        ("items.csv", HEADER + 'a,,x,"[1.5, 2]"\n', 2, "labels"),
        ("items.csv", "id,image,text,labels,text\na,,x,c,y\n", 1, "text"),
        ("items.jsonl", '\n{"id": 1,\n', 2, ""),
        ("items.jsonl", "[1, 2]\n", 1, ""),
        ("items.jsonl", '{"id": null, "image": "", "text": "", "labels": ""}\n', 1, "id"),
        ("items.jsonl", '{"id": 1, "image": "", "text": 5, "labels": ""}\n', 1, "text"),
        ("items.jsonl", '{"id": 1, "image": "", "text": "", "labels": [true]}\n', 1, "labels"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_with_file_row_and_field(tmp_path, name, content, row, field):
    error = refused(write(tmp_path / name, content))
    assert (error.row, error.field) == (row, field)


@pytest.mark.parametrize(("row", "found"), [("b,,y", 3), ("b,,y,c,d,e", 6)])
def test_a_row_of_the_wrong_length_is_refused_with_both_numbers(tmp_path, row, found):
    error = refused(write(tmp_path / "items.csv", HEADER + row + "\n"))
    assert f"{found} cells" in error.problem and "4" in error.problem


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("items.csv", "", "empty"),
        ("items.csv", HEADER, "empty"),
        ("items.jsonl", "\n \n", "empty"),
        ("items.csv", GOOD.encode("utf-16-le"), "UTF-16"),
        ("items.csv", GOOD.replace("text", "é").encode("latin-1"), "UTF-8"),
        ("items.jsonl", '{"id": "é"}'.encode("latin-1"), "UTF-8"),
        ("items.parquet", b"", ""),
        ("items.parquet", b"PAR1 but no more", ""),
        ("items.txt", GOOD, ".csv, .jsonl, .parquet"),
        ("items", GOOD, ".csv, .jsonl, .parquet"),
        ("items.csv", None, "no such file"),
        ("items.parquet", None, "no such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, found):
    path = tmp_path / name
    if content is not None:
        write(path, content)
    error = refused(path)
    assert error.row is None and found in error.problem


def test_an_empty_parquet_file_is_refused(tmp_path):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ITEMS).slice(0, 0), tmp_path / "items.parquet")
    assert "empty" in refused(tmp_path / "items.parquet").problem


def test_a_truncated_parquet_file_is_refused(tmp_path):
    raw = write_parquet(tmp_path / "items.parquet").read_bytes()
    refused(write(tmp_path / "items.parquet", raw[:-3]))


def test_a_folder_of_that_name_is_refused(tmp_path):
    (tmp_path / "items.csv").mkdir()
    refused(tmp_path / "items.csv")


@pytest.mark.parametrize("texts", [[0, 1], [["a"], 3], [True], [{}]])
def test_a_list_of_what_is_no_text_is_refused_with_its_row(tmp_path, texts):
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps({"id": "1", "text": texts}) + "\n")
    with pytest.raises(DataError) as caught:
        read_manifest(path)
    assert (caught.value.file, caught.value.row, caught.value.field) == (path, 1, "text")


def test_an_id_that_csv_would_change_is_refused(tmp_path):
    data = PairedDataset(("a", " a "), (None, None), (("x",), ("y",)), np.zeros((2, 0), np.uint8), ())
    with pytest.raises(DataError) as caught:
        write_manifest(data, tmp_path / "items.csv")
    assert caught.value.field == "id" and not (tmp_path / "items.csv").exists()
    write_manifest(data, tmp_path / "items.jsonl")
    assert read_manifest(tmp_path / "items.jsonl").ids == data.ids


def test_an_unknown_label_is_named_with_its_row(tmp_path):
    error = refused(write(tmp_path / "items.csv", HEADER + "a,,x,cat\nb,,x,cat|fish\n"), label_names=["cat", "dog"])
    assert (error.row, error.field) == (3, "labels")
    assert "'fish'" in error.problem and "2 labels" in error.problem and "`label_names`" in error.hint


def test_allowed_labels_that_repeat_are_refused(tmp_path):
    error = refused(write(tmp_path / "items.csv", GOOD), label_names=["cat", "dog", "cat"])
    assert error.field == "label_names" and "'cat'" in error.problem


@pytest.mark.parametrize(
    ("rows", "options", "field"),
    [
        ("a,,x,cat\n\nb,,x,fish\n", {"label_names": ["cat"]}, "labels"),
        ("a,,x,cat\n\na,,x,cat\n", {}, "ids"),
    ],
    ids=["unknown label", "duplicate id"],
)
def test_every_mistake_is_named_with_the_row_that_an_editor_shows(tmp_path, rows, options, field):
    error = refused(write(tmp_path / "items.csv", HEADER + rows), **options)
    assert (error.row, error.field) == (4, field)


def test_a_duplicate_id_is_named_with_both_rows(tmp_path):
    error = refused(write(tmp_path / "items.csv", HEADER + "a,,x,c\nb,,x,c\na,,x,c\n"))
    assert "'a' in rows 2 and 4" in error.problem


def test_a_quote_that_is_never_closed_is_refused_with_its_row(tmp_path):
    error = refused(write(tmp_path / "items.csv", HEADER + 'a,,x,cat\nb,,"never closed\n'))
    assert error.row == 3 and "CSV" in error.problem


def test_a_quote_that_is_never_closed_in_the_header_is_refused(tmp_path):
    assert "CSV" in refused(write(tmp_path / "items.csv", '"id,image\n')).problem


def test_a_long_text_is_read_from_csv_as_from_jsonl(tmp_path):
    item = {"id": "a", "image": "", "text": "x" * 140_000, "labels": ""}
    expected = read_manifest(write_jsonl(tmp_path / "items.jsonl", [item])).texts
    assert read_manifest(write(tmp_path / "items.csv", HEADER + f"a,,{item['text']},\n")).texts == expected


def test_a_lone_surrogate_is_refused(tmp_path):
    path = write(tmp_path / "items.jsonl", '{"id": "\\ud83d", "image": "", "text": "", "labels": ""}\n')
    assert refused(path).field == "ids"


def test_labels_are_a_matrix_of_bytes_even_without_any(tmp_path):
    labels = read_manifest(write(tmp_path / "items.csv", HEADER + "a,,x,\nb,,x,\n")).labels
    assert labels.shape == (2, 0) and labels.dtype == np.uint8


def test_a_folder_of_images_that_has_no_effect_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "m.csv"
    path.write_text("id,image,text,labels\na,/photos/a.jpg,x,y\nb,,x,y\n")
    error = refused(path, images=tmp_path / "new")
    assert error.option == "images" and "/photos/a.jpg" in error.problem
    monkeypatch.chdir("/")
    for folder in ("/photos", "photos"):
        assert read_manifest(path, images=folder).images[0] == read_manifest(path).images[0]
    path.write_text("id,image,text,labels\na,,x,y\n")
    assert read_manifest(path, images=tmp_path / "new").images == (None,)
