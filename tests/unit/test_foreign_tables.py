"""Manifests as spreadsheets, pandas and other tools write them: what is read, what is told, what is refused."""

import csv
import json
import unicodedata
import warnings

import pyarrow
import pyarrow.parquet
import pytest

from multibit.data.export import write_dataset
from multibit.data.manifest import read_manifest, write_manifest
from multibit.data.notes import DataNote
from multibit.data.values import first_class, id_of, path_of
from multibit.errors import ConfigError, DataError

ROWS = "id,image,text,labels\na,a.png,one,cat|dog\nb,b.png,two,dog\n"


def noted(path, **options):
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", DataNote)
        return read_manifest(path, **options), [str(each.message) for each in notes]


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def lines(path, *rows):
    return write(path, "\n".join(json.dumps(row) for row in rows))


def refused(path, **options):
    with pytest.raises(DataError) as caught:
        read_manifest(path, **options)
    assert caught.value.file == path
    return caught.value


def labels_of(data):
    return [data.label_names_of(row) for row in range(len(data))]


# Columns


@pytest.mark.parametrize(
    "header", ["ID,Image,Text,Labels", "id, image, text, labels", "id,image,text,label", "id,image,TEXT ,Label"]
)
def test_names_of_columns_may_differ_in_case_blanks_and_number(tmp_path, header):
    data, notes = noted(write(tmp_path / "m.csv", ROWS.replace("id,image,text,labels", header)))
    assert labels_of(data) == [["cat", "dog"], ["dog"]] and data.texts == (("one",), ("two",)) and not notes


def test_a_column_of_the_right_name_goes_first(tmp_path):
    data, _ = noted(write(tmp_path / "m.csv", "id,image,text,Labels,label,labels\na,,x,A,B,c\n"))
    assert data.label_names == ("c",)


def test_two_columns_or_keys_of_one_name_are_refused(tmp_path):
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 3, names=["id", "text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "m.parquet")
    assert refused(tmp_path / "m.parquet").field == "text"
    assert refused(write(tmp_path / "m.csv", "id,text,text\na,x,y\n")).field == "text"
    error = refused(write(tmp_path / "m.jsonl", '{"id": "a", "text": "x"}\n{"id": "b", "text": "x", "text": "y"}'))
    assert (error.row, error.field) == (2, "text")
    assert refused(write(tmp_path / "m.json", '[{"id": "a", "id": "b", "text": "x"}]')).field == "id"


# Rows


def test_a_header_that_occurs_again_is_refused(tmp_path):
    assert refused(write(tmp_path / "m.csv", ROWS + ROWS)).row == 4
    assert refused(write(tmp_path / "m.csv", ROWS + "\ufeff" + ROWS)).row == 4


def test_a_quotation_mark_never_swallows_rows_between_tabs(tmp_path):
    error = refused(write(tmp_path / "m.tsv", 'id\ttext\na\tone\nb\t"open\nc\ttwo\nd\tclose"\n'))
    assert error.row == 3
    data, _ = noted(write(tmp_path / "m.tsv", 'id\ttext\na\t"two\nlines"\nb\t"a\ttab"\n'))
    assert data.texts == (("two\nlines",), ("a\ttab",))


def test_byte_order_marks_inside_joined_lines_are_no_text(tmp_path):
    row = {"id": "a", "image": "", "text": "x", "labels": []}
    path = write(tmp_path / "m.jsonl", "".join(f"\ufeff{json.dumps({**row, 'id': name})}\r\n" for name in "ab"))
    assert noted(path)[0].ids == ("a", "b")


# Values


def test_ids_are_not_blank_and_floats_are_exact():
    assert id_of(" a ") == " a " and id_of(2.0**53) == str(2**53) and id_of(10**30) == "1" + 30 * "0"
    for value in ("  ", "", None, 1e22, 0.5, True):
        with pytest.raises(DataError):
            id_of(value, row=3)


def test_cells_of_ids_that_differ_only_in_their_blanks_are_one(tmp_path):
    assert refused(write(tmp_path / "m.csv", "id,text\na,x\n a ,y\n")).row == 3


def test_ids_that_differ_in_case_or_unicode_form_are_two(tmp_path):
    forms = [unicodedata.normalize(form, "é") for form in ("NFC", "NFD")]
    data, _ = noted(lines(tmp_path / "m.jsonl", *({"id": each, "text": "x"} for each in ("a", "A", *forms))))
    assert data.ids == ("a", "A", *forms)


@pytest.mark.parametrize("address", ["https://x.org/a.png", "file:///a.png", "s3://bucket/a.png", "a\ud800.png"])
def test_an_address_and_half_a_letter_are_no_path(address):
    with pytest.raises(DataError) as caught:
        path_of(address, row=2)
    assert (caught.value.row, caught.value.field) == (2, "image")


def test_relative_paths_of_windows_are_found(tmp_path):
    (tmp_path / "img").mkdir()
    (tmp_path / "img/a.png").touch()
    (tmp_path / "odd\\name.png").touch()
    data, _ = noted(write(tmp_path / "m.csv", "id,image,text\na,img\\a.png,x\nb,odd\\name.png,x\nc,,x\n"))
    assert data.images == (tmp_path / "img/a.png", tmp_path / "odd\\name.png", None)


@pytest.mark.parametrize("text", ["['a dog', 'a cat']", '["a dog"]', "['a' 'b']"])
def test_a_list_in_a_column_of_one_text_is_refused(tmp_path, text):
    path = tmp_path / "m.csv"
    cell = text.replace('"', '""')
    write(path, f'id,text\na,"{cell}"\n')
    assert (refused(path).row, refused(path).field) == (2, "text")
    write(path, "id,text\na,[Verse] it's a text\n")
    assert noted(path)[0].texts == (("[Verse] it's a text",),)


# Labels


def test_class_numbers_count_from_where_they_fit_the_names(tmp_path):
    names = ["x", "y", "z"]
    for numbers, wanted in (([0, 1], [["x"], ["y"]]), ([1, 3], [["x"], ["z"]]), ([-1, 0], [[], ["x"]])):
        rows = [{"id": str(i), "text": "t", "labels": number} for i, number in enumerate(numbers)]
        assert labels_of(noted(lines(tmp_path / "m.jsonl", *rows), label_names=names)[0]) == wanted
        cells = "".join(f"{i},t,{number}\n" for i, number in enumerate(numbers))
        assert labels_of(noted(write(tmp_path / "m.csv", f"id,text,labels\n{cells}"), label_names=names)[0]) == wanted


def test_class_numbers_that_fit_twice_or_never_are_refused(tmp_path):
    rows = [{"id": str(number), "text": "t", "labels": [number]} for number in (1, 2)]
    error = refused(lines(tmp_path / "m.jsonl", *rows), label_names=["x", "y", "z"])
    assert error.field == "labels" and "'y'" in error.problem and "'x'" in error.problem
    assert refused(lines(tmp_path / "m.jsonl", *rows), label_names=["x"]).row == 1
    assert (first_class(0, 2, "xyz"), first_class(1, 3, "xyz")) == (0, 1)
    for lowest, highest in ((1, 2), (0, 3), (1, 4)):
        with pytest.raises(DataError):
            first_class(lowest, highest, "xyz")


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["dog;cat", "dog"], "separator"),
        (["nan", "dog"], "nan"),
        (["0 1 0", "1 1 0"], "[0, 1, 0]"),
        (["0|1|0", "1|1|0"], "[0, 1, 0]"),
        (["dog|cat", "salt, pepper"], ""),
        (["dog", ""], ""),
        (["0", "1"], ""),
    ],
)
def test_labels_that_may_be_mistakes_are_told(tmp_path, cells, told):
    rows = "".join(f'{row},x,"{cell}"\n' for row, cell in enumerate(cells))
    _, notes = noted(write(tmp_path / "m.csv", f"id,text,labels\n{rows}"))
    assert len(notes) == bool(told) and told in "".join(notes)


# There and back

ODD = [
    "a\rb", "a\nb", "a\r\nb", 'q"q', '"q', 'q"', "=1+1", "a|b", "[1, 2]", "[x", "{}", "\u2028x", "\x85", "a\tb", "a,b",
    "\ufeffbom", "null", "e\u0301", "\U0001f600", "\x1b[31m", "'x", "\\N", "\x0b\x0c",
]  # fmt: skip


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_what_is_written_is_read_back(tmp_path, ending):
    rows = [
        {
            "id": f"{row} {text}x",
            "image": f"d/{row}.png",
            "texts": [text, "second"],
            "labels": [f"{text.strip()}l", "m"],
        }
        for row, text in enumerate(ODD)
    ]
    data, _ = noted(lines(tmp_path / "m.jsonl", *rows))
    write_manifest(data, tmp_path / f"n.{ending}")
    again, notes = noted(tmp_path / f"n.{ending}")
    assert again.fingerprint() == data.fingerprint() and again.images == data.images
    assert len(notes) == (ending == "csv")  # of the text null


def test_cells_for_a_spreadsheet_have_no_formulas_and_keep_their_apostrophe(tmp_path):
    rows = [{"id": f"{sign}1+1", "image": f"{sign}a.png", "texts": ["=x"], "labels": ["=y"]} for sign in "=+-@a"]
    data, _ = noted(lines(tmp_path / "m.jsonl", *rows))
    write_manifest(data, tmp_path / "safe.csv", spreadsheet_safe=True)
    with (tmp_path / "safe.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
    again, _ = noted(tmp_path / "safe.csv")
    assert again.ids == ("'=1+1", "'+1+1", "'-1+1", "'@1+1", "a1+1") and again.texts == data.texts
    with pytest.raises(ConfigError) as caught:
        write_dataset(data, tmp_path / "safe.jsonl", spreadsheet_safe=True)
    assert caught.value.option == "spreadsheet_safe"


# Columns that no field is read from


@pytest.mark.parametrize("name", ["m.csv", "m.jsonl", "m.parquet"])
def test_columns_that_are_not_used_are_told_once(tmp_path, name):
    rows = [{"id": f"item {i}", "text": "a text", "price": "3", "Label": "red", "brand": "x"} for i in range(3)]
    path = tmp_path / name
    if name == "m.csv":
        write(path, "id,text,price,Label,brand\n" + "".join(f"{','.join(row.values())}\n" for row in rows))
    elif name == "m.jsonl":
        lines(path, *({**row, "later": 1} if row["id"] == "item 2" else row for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    data, notes = noted(path)
    assert data.label_names == ("red",)
    (told,) = notes
    assert told.startswith(str(path)) and "price, brand" in told and ("later" in told) == (name == "m.jsonl")
    _, notes = noted(path, columns={"labels": "brand"})
    assert "Label" in notes[0] and "brand" not in notes[0]


def test_the_index_column_of_a_data_frame_is_told(tmp_path):
    _, notes = noted(write(tmp_path / "m.csv", ",id,text\n0,a,one\n1,b,two\n"))
    assert len(notes) == 1 and "without a name" in notes[0]


# Semicolons and tabs


@pytest.mark.parametrize("mark", [";", "\t", ","])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_cells_of_a_csv_are_separated_as_its_header_shows(tmp_path, mark, bom, quoted, end):
    rows = [["id", "text", "labels"], ["a", "one, two; and\nthree", "cat|dog"], ["b", 'says "no"', "dog"]]
    always = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    with (tmp_path / "m.csv").open("w", encoding="utf-8", newline="") as file:
        file.write(bom)
        csv.writer(file, delimiter=mark, quoting=always, lineterminator=end).writerows(rows)
    data, notes = noted(tmp_path / "m.csv")
    assert list(data.ids) == ["a", "b"] and data.texts == (("one, two; and\nthree",), ('says "no"',)) and not notes
    assert labels_of(data) == [["cat", "dog"], ["dog"]]


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("id,text;note,labels", {"text": "text;note"}),  # a comma shows fields
        ('"id","text;a;b;c",labels', {"text": "text;a;b;c"}),  # marks in quoted names do not count
        ("sku,title,kind", {"id": "sku", "text": "title", "labels": "kind"}),
        ("sku;title;kind", {"id": "sku", "text": "title", "labels": "kind"}),
        ("id;text, long;labels", {"text": "text, long"}),
    ],
)
def test_names_of_columns_may_have_other_marks(tmp_path, header, columns):
    mark = ";" if header.startswith(("sku;", "id;")) else ","
    data, _ = noted(write(tmp_path / "m.csv", f"{header}\n{mark.join(['a', 'one', 'cat'])}\n"), columns=columns)
    assert list(data.ids) == ["a"] and data.texts == (("one",),) and labels_of(data) == [["cat"]]


def test_a_row_of_other_marks_than_the_header_is_refused(tmp_path):
    assert refused(write(tmp_path / "m.csv", "id;text\na;one\nb,two\n")).row == 3


def test_a_file_without_any_line_is_refused(tmp_path):
    refused(write(tmp_path / "m.csv", ""))
