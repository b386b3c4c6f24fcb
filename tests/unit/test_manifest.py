"""A user's own manifest, in three formats, with every mistake that people make in one."""

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
from multibit.errors import DataError

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


def reading(path: Path, **options):
    """The sentence with which a manifest is refused."""
    with pytest.raises(DataError) as caught:
        read_manifest(path, **options)
    return str(caught.value)


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
def test_every_format_holds_the_same_data_set(tmp_path, make):
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
def test_blank_lines_and_a_byte_order_mark_in_jsonl_are_passed_over(tmp_path, mark):
    line = json.dumps({**ITEMS[0], "id": "x"}).encode()
    path = write(tmp_path / "items.jsonl", mark + b"\n" + line + b"\n \t\n\n" + line.replace(b'"x"', b'"y"') + b"\n\n")
    assert read_manifest(path).ids == ("x", "y")


def test_blank_lines_in_csv_are_passed_over(tmp_path):
    assert read_manifest(write(tmp_path / "items.csv", HEADER + "\n\na,,x,\n\nb,,y,\n\n")).ids == ("a", "b")


def test_fields_that_are_not_ours_are_ignored(tmp_path):
    path = write(tmp_path / "items.csv", "width,id,image,text,labels,url\n3,a,a.jpg,x,cat,http\n")
    assert read_manifest(path).describe(0) == {
        "image": str((tmp_path / "a.jpg").absolute()), "text": "x", "labels": ["cat"],
    }  # fmt: skip


# Fields


def test_pictures_are_relative_to_the_manifest_or_to_a_folder(tmp_path):
    path = write(tmp_path / "items.csv", HEADER + f"a,sub/a.jpg,x,\nb,{tmp_path / 'b.jpg'},x,\n")
    assert read_manifest(path).images == (tmp_path / "sub/a.jpg", tmp_path / "b.jpg")
    elsewhere = tmp_path / "pictures"
    assert read_manifest(path, images=elsewhere).images == (elsewhere / "sub/a.jpg", tmp_path / "b.jpg")


def test_a_text_is_one_text_whatever_it_holds(tmp_path):
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
def test_several_values_are_cut_at_the_separator_or_written_as_a_list(tmp_path, separator, cell):
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
    assert read_manifest(path).texts == (("x", "y"),)


def test_a_text_column_that_was_asked_for_wins(tmp_path):
    path = write(tmp_path / "items.csv", "id,image,caption,texts,labels\na,,asked for,another,cat\n")
    assert read_manifest(path, columns={"text": "caption"}).texts == (("asked for",),)


def test_a_texts_column_that_was_asked_for_and_is_missing_is_named(tmp_path):
    assert "captions" in reading(write(tmp_path / "items.csv", GOOD), columns={"texts": "captions"})


# Mistakes


@pytest.mark.parametrize("field", ["id", "image", "text", "labels"])
def test_a_missing_column_is_named_with_what_is_there_and_the_remedy(tmp_path, field):
    columns = [name for name in ("id", "image", "text", "labels") if name != field]
    path = write(tmp_path / "items.csv", ",".join(columns) + "\n\nx,y,z\n")
    assert reading(path) == (
        f"{path}, row 3: no '{field}'; it has {', '.join(columns)}. Name the column with --column {field}=NAME, "
        f"of import with --map {field}=NAME."
    )


def test_a_mapping_to_a_column_that_is_not_there_names_the_column(tmp_path):
    sentence = reading(write(tmp_path / "items.csv", GOOD), columns={"image": "file_name"})
    assert "items.csv, row 2: no 'file_name'; it has id, image, text, labels" in sentence


def test_a_mapping_of_an_unknown_field_names_the_fields(tmp_path):
    sentence = reading(write(tmp_path / "items.csv", GOOD), columns={"picture": "image"})
    assert sentence == "columns: picture is not a field; there are id, image, text, texts, labels."


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("items.csv", HEADER + "a,,x,c\nb,,y\n", ", row 3: need 4 cells, as in the header"),
        ("items.csv", HEADER + 'a,,"x\ny",c\nb,,y,c,d\n', ", row 4: need 4 cells, as in the header"),
        ("items.csv", HEADER + ",,x,c\n", ", row 2: no 'id'"),
        ("items.csv", "id;image;text;labels\na;;x;c\n", ", row 2: no 'id'; it has id;image;text;labels"),
        ("items.csv", HEADER + 'a,,x,"[""c"""\n', ", row 2: '[\"c\"' starts like a JSON list but is none"),
        ("items.csv", HEADER + 'a,,x,"[1, 2]"\n', ", row 2: need a text or a list of texts, got '[1, 2]'"),
        ("items.jsonl", '\n{"id": 1,\n', ", row 2: not JSON ("),
        ("items.jsonl", "[1, 2]\n", ", row 1: need an object with the fields id, image, text, texts, labels"),
        ("items.jsonl", '{"id": null, "image": "", "text": "", "labels": ""}\n', ", row 1: no 'id'"),
        ("items.jsonl", '{"id": 1, "image": "", "text": 5, "labels": ""}\n', ", row 1: need a text or a list of texts"),
        ("items.jsonl", '{"id": 1, "image": "", "text": "", "labels": [3]}\n', ", row 1: need a text or a list of"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_with_file_and_row(tmp_path, name, content, sentence):
    path = write(tmp_path / name, content)
    assert reading(path).startswith(str(path) + sentence)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("items.csv", "", "the manifest is empty; it needs at least one row"),
        ("items.csv", HEADER, "the manifest is empty; it needs at least one row"),
        ("items.jsonl", "\n \n", "the manifest is empty; it needs at least one row"),
        ("items.csv", GOOD.encode("utf-16"), "not UTF-8 ("),
        ("items.csv", GOOD.replace("text", "é").encode("latin-1"), "not UTF-8 ("),
        ("items.jsonl", '{"id": "é"}'.encode("latin-1"), "not UTF-8 ("),
        ("items.parquet", b"", "cannot be read ("),
        ("items.parquet", b"PAR1 but no more", "cannot be read ("),
        ("items.txt", GOOD, "a manifest must end in .csv, .jsonl, .parquet"),
        ("items", GOOD, "a manifest must end in .csv, .jsonl, .parquet"),
        ("items.csv", HEADER + "a,,x,c\nb,,x,c\na,,x,c\n", "duplicate id 'a': rows "),
        ("items.csv", None, "no such file"),
        ("items.parquet", None, "no such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, sentence):
    path = tmp_path / name
    if content is not None:
        write(path, content)
    assert reading(path).startswith(f"{path}: {sentence}")


def test_text_that_is_not_utf8_comes_with_the_remedy(tmp_path):
    assert reading(write(tmp_path / "items.csv", b"id,image\n\xff,\n")).endswith("Save it as UTF-8.")


def test_an_empty_parquet_file_is_refused(tmp_path):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ITEMS).slice(0, 0), tmp_path / "items.parquet")
    assert "the manifest is empty" in reading(tmp_path / "items.parquet")


def test_a_parquet_file_cut_short_is_refused(tmp_path):
    raw = write_parquet(tmp_path / "items.parquet").read_bytes()
    assert "cannot be read" in reading(write(tmp_path / "items.parquet", raw[:-3]))


def test_a_folder_of_that_name_is_refused(tmp_path):
    (tmp_path / "items.csv").mkdir()
    assert "items.csv: cannot be read" in reading(tmp_path / "items.csv")


def test_an_unknown_label_is_named_with_its_row(tmp_path):
    path = write(tmp_path / "items.csv", HEADER + "a,,x,cat\nb,,x,cat|fish\n")
    assert reading(path, label_names=["cat", "dog"]) == (
        f"{path}, row 3: the label 'fish' is unknown; 2 labels are known."
    )


def test_allowed_labels_that_repeat_are_refused(tmp_path):
    assert "duplicate label name 'cat'" in reading(
        write(tmp_path / "items.csv", GOOD), label_names=["cat", "dog", "cat"]
    )


@pytest.mark.parametrize(
    ("rows", "options", "row"),
    [
        ("a,,x,cat\n\nb,,x,fish\n", {"label_names": ["cat"]}, "row 4"),
        ("a,,x,cat\n\na,,x,cat\n", {}, "rows 2 and 4"),
    ],
    ids=["unknown label", "duplicate id"],
)
def test_every_mistake_is_named_with_the_row_that_an_editor_shows(tmp_path, rows, options, row):
    assert row in reading(write(tmp_path / "items.csv", HEADER + rows), **options)


def test_a_quote_that_is_never_closed_is_refused(tmp_path):
    sentence = reading(write(tmp_path / "items.csv", HEADER + 'a,,x,cat\nb,,"never closed\n'))
    assert "items.csv, row " in sentence and "not CSV (unexpected end of data)" in sentence


def test_a_quote_that_is_never_closed_is_named_with_its_row(tmp_path):
    assert ", row 3: " in reading(write(tmp_path / "items.csv", HEADER + 'a,,x,cat\nb,,"never closed\n'))


def test_a_long_text_is_read_from_csv_as_from_jsonl(tmp_path):
    item = {"id": "a", "image": "", "text": "x" * 140_000, "labels": ""}
    expected = read_manifest(write_jsonl(tmp_path / "items.jsonl", [item])).texts
    assert read_manifest(write(tmp_path / "items.csv", HEADER + f"a,,{item['text']},\n")).texts == expected


def test_half_a_letter_is_refused_with_a_sentence(tmp_path):
    path = write(tmp_path / "items.jsonl", '{"id": "\\ud83d", "image": "", "text": "", "labels": ""}\n')
    with pytest.raises(DataError, match=r"items\.jsonl"):
        read_manifest(path).fingerprint()


def test_labels_are_a_matrix_of_bytes_even_without_any(tmp_path):
    labels = read_manifest(write(tmp_path / "items.csv", HEADER + "a,,x,\nb,,x,\n")).labels
    assert labels.shape == (2, 0) and labels.dtype == np.uint8


def test_a_folder_of_pictures_that_has_no_effect_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "m.csv"
    path.write_text("id,image,text,labels\na,/photos/a.jpg,x,y\nb,,x,y\n")
    with pytest.raises(DataError, match=r"m\.csv: the folder of pictures .*new has no effect.* /photos/a\.jpg first"):
        read_manifest(path, images=tmp_path / "new")
    monkeypatch.chdir("/")
    for folder in ("/photos", "photos"):
        assert read_manifest(path, images=folder).images[0] == read_manifest(path).images[0]
    path.write_text("id,image,text,labels\na,,x,y\n")
    assert read_manifest(path, images=tmp_path / "new").images == (None,)
