"""Tables of evaluations and hits, the formats of tables, and the facts of `multibit info`."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from rich.console import Console

from multibit import Codes, FeatureStore, Index
from multibit.errors import DataError, FormatError
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.metric import MAP, MAP_TIE_AVERAGED, PRECISION
from multibit.evaluation.tables import accuracy_table
from multibit.inventory import describe
from multibit.report.hits import hits_table
from multibit.search import Hit
from multibit.table import Number, Table, mark_columns, percent, print_table, write_table

HITS = [
    Hit(1, "shelf/book", 0, 16, {"labels": ["book", "wood"], "text": "naïve 本", "image": "a.png"}),
    Hit(2, 7, 11, 16, {"labels": [], "text": None}),
    Hit(3, "x", 16, 16, {}),
]


def evaluation(**changed) -> Evaluation:
    """Two queries, the second of which has nothing relevant; one metric more than usual."""
    lost = np.nan
    values = {
        (metric, direction, bits): np.array([value + bits / 1000, lost])
        for metric, value in ((MAP, 0.5), (MAP_TIE_AVERAGED, 0.25), (PRECISION.at(5), 0.125))
        for direction, bits in (("i2t", 16), ("i2t", 128), ("t2i", 16), ("t2i", 128))
    }
    floors = {"random": np.array([0.07654, lost]), "popularity": np.array([0.1, lost])}
    settings = {"protocol": "unseen items only", "lengths": (16, 128), "queries": 1192, "database": 3577}
    return Evaluation(**{**settings, "values": values, "floors": floors, "curves": {}, **changed})


def shown(table: Table, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table.rich())
    return console.file.getvalue()


# Accuracy


def test_accuracy_table():
    assert accuracy_table(evaluation()).markdown() == (
        "**mAP@all, unseen items only**\n"
        "\n"
        "|  | 16 bits | 128 bits |\n"
        "|---|--:|--:|\n"
        "| image-to-text, mAP | 51.60 | 62.80 |\n"
        "| text-to-image, mAP | 51.60 | 62.80 |\n"
        "| image-to-text, mAP tie-averaged | 26.60 | 37.80 |\n"
        "| text-to-image, mAP tie-averaged | 26.60 | 37.80 |\n"
        "| image-to-text, precision@5 | 14.10 | 25.30 |\n"
        "| text-to-image, precision@5 | 14.10 | 25.30 |\n"
        "| floor: most common labels first | 10.00 | 10.00 |\n"
        "| floor: random order | 7.65 | 7.65 |\n"
        "\n"
        "In percent. 1,192 queries, 3,577 items searched; mAP ranks ties by row."
        " Left out of the means: 1 query without any relevant item."
    )


def test_accuracy_note_counts_undefined_queries_only_if_there_are_any():
    full = {"random": np.array([0.25]), "popularity": np.array([0.5])}
    values = {key: value[:1] for key, value in evaluation().values.items()}
    note = accuracy_table(evaluation(floors=full, values=values)).note
    assert note == "In percent. 1,192 queries, 3,577 items searched; mAP ranks ties by row."


# Hits


def test_hits_table():
    assert hits_table(HITS, "text", 16).markdown() == (
        "**3 nearest texts at 16 bits**\n"
        "\n"
        "| rank | distance | id | labels | text |\n"
        "|--:|--:|---|---|---|\n"
        "| 1 | 0 | shelf/book | book, wood | naïve 本 |\n"
        "| 2 | 11 | 7 |  |  |\n"
        "| 3 | 16 | x |  |  |"
    )


def test_hits_table_of_images_shows_their_paths():
    assert [row[-1] for row in hits_table(HITS, "image", 16).rows] == ["a.png", "", ""]


def test_hits_table_shows_the_fields_asked_for():
    hit = Hit(1, "a", 0, 16, {"year": 0, "tags": ["x", "y"], "text": "t"})
    table = hits_table([hit], "image", 16, fields=["tags", "year", "other"])
    assert table.header[2:] == ("id", "tags", "year", "other")
    assert table.rows[0][3:] == ("x, y", "0", "")


def test_hits_table_of_a_relaxed_query_shows_scores():
    table = hits_table([Hit(1, "a", None, 16, {}, score=3.14159)], "text", 16, "score")
    assert table.header[1] == "score"
    assert table.rows[0][1] == Number(3.14159, ".2f")


def test_hits_table_without_hits_has_its_headings():
    table = hits_table([], "text", 64)
    assert table.title == "0 nearest texts at 64 bits"
    assert table.markdown().splitlines()[2] == "| rank | distance | id | labels | text |"
    assert "distance" in shown(table)


# Numbers


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(0.5), "0.50"),
        (Number(-0.0005, "+.3f"), "-0.001"),
        (Number(1_192, ","), "1,192"),
        (Number(16, "d", " codes"), "16 codes"),
        (Number(0.1, "+.2f", "*"), "+0.10*"),
        (Number(2.0, ".2f", spread=2**0.5), "2.00 ± 1.41"),
        (Number(2.0, "+.1f", "*", spread=0.26), "+2.0 ± 0.3*"),
        (Number(float("nan"), ".2f", "*", spread=1.0), "-"),
        (percent(0.61234, ".1f"), "61.2"),
    ],
)
def test_number_prints_by_its_format(number, text):
    assert str(number) == text


# Formats


@pytest.mark.parametrize(
    ("cells", "numeric"),
    [
        ((Number(1, "d"), Number(2.5)), True),
        ((Number(7, "d"), "", "-"), True),
        ((Number(float("nan")),), True),
        ((Number(1, "d"), "two"), False),
        (("1", "2.50"), False),
        ((), True),
    ],
)
def test_only_columns_of_numbers_are_right_aligned(cells, numeric):
    table = Table("t", ("n",), tuple((cell,) for cell in cells))
    assert table.numeric == [numeric]
    assert table.markdown().splitlines()[3] == ("|--:|" if numeric else "|---|")
    assert (r"\begin{tabular}{r}" if numeric else r"\begin{tabular}{l}") in table.latex()


MARKED = Table(
    "50 % off_cut",
    ("a & b", "mAP"),
    (("x_1 | {y}", Number(1.5, ".1f")), ("é~^\\", Number(2.5, ".1f")), ('"q", z', "-")),
    "a note #1",
    {(0, 1): "second", (1, 1): "best"},
)


def test_markdown_shows_marks_as_bold_and_italic():
    assert MARKED.markdown().splitlines()[4:7] == [
        r"| x_1 \| {y} | _1.5_ |", "| é~^\\ | **2.5** |", '| "q", z | - |',
    ]  # fmt: skip


def test_csv_is_read_back():
    expected = [MARKED.header, *MARKED.rows]
    assert list(csv.reader(io.StringIO(MARKED.csv()))) == [[str(cell) for cell in row] for row in expected]


def test_a_table_is_written_in_three_formats(tmp_path):
    written = write_table(MARKED, tmp_path / "new" / "a.b")
    assert [path.name for path in written] == ["a.b.md", "a.b.csv", "a.b.tex"]
    assert [path.read_text(encoding="utf-8") for path in written] == [
        MARKED.markdown() + "\n", MARKED.csv(), MARKED.latex() + "\n",
    ]  # fmt: skip


def test_latex():
    assert MARKED.latex().splitlines() == [
        r"\begin{table}[htbp]",
        r"\centering",
        r"\caption{50 \% off\_cut. a note \#1}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"a \& b & mAP \\",
        r"\midrule",
        r"x\_1 | \{y\} & \underline{1.5} \\",
        r"é\textasciitilde{}\textasciicircum{}\textbackslash{} & \textbf{2.5} \\",
        r'"q", z & - \\',
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


@pytest.mark.parametrize(
    ("column", "larger", "marks"),
    [
        ([1.0, 3.0, 2.0], True, [None, "best", "second"]),
        ([1.0, 3.0, 2.0], False, ["best", None, "second"]),
        ([3.0, 3.0, 2.0, 1.0], True, ["best", "best", "second", None]),
        ([None, 3.0, None], True, [None, "best", None]),
        ([None, None], True, [None, None]),
        ([], True, []),
    ],
)
def test_best_and_second_of_a_column_are_marked_and_ties_share_a_mark(column, larger, marks):
    found = mark_columns([[value] for value in column], larger_is_better=larger)
    assert [found.get((row, 0)) for row in range(len(column))] == marks


def test_undefined_values_get_no_mark():
    found = mark_columns([[float("nan")], [1.0], [3.0], [2.0]])
    assert found == {(2, 0): "best", (3, 0): "second"}


def test_terminal_shows_every_cell_the_title_and_the_note():
    table = accuracy_table(evaluation())
    text = shown(table)
    cells = [
        *table.header,
        *(str(cell) for row in table.rows for cell in row),
        table.title,
        "In percent. 1,192 queries",
    ]
    assert [cell for cell in cells if cell not in text] == []


def test_terminal_does_not_interpret_markup_in_cells():
    assert "[bold]not markup[/bold]" in shown(Table("t", ("a",), (("[bold]not markup[/bold]",),)))


def test_a_file_has_every_character_of_a_long_word_in_one_line():
    lines = shown(Table("t", ("a", "n"), (("x" * 150, Number(12.34)),)), width=10_000).splitlines()
    assert [line.count("x") for line in lines if "x" in line] == [150]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_terminal_breaks_no_word_and_no_number_and_shortens_the_longest_names(width):
    name = "multibit-plus-with-a-long-name-seed42"
    table = Table("t", ("run", "mAP", "meaning"), ((name, Number(1234.5678), "some short words of a text"),))
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_table(table, console)
    lines = console.file.getvalue().splitlines()
    words = " ".join(lines).split()
    assert {"1234.57", "some", "short", "words", "of", "a", "text", "meaning"} <= set(words)
    assert all(len(line) <= width for line in lines)
    (shortened,) = {word for word in words if word.startswith("mul")}
    assert shortened == name or (shortened.endswith("2") and "…" in shortened)


@pytest.mark.parametrize("cell", ["cat|dog", "two\nlines"])
def test_markdown_cell_with_a_bar_or_line_break_stays_one_cell(cell):
    row = Table("t", ("a", "b"), ((cell, "x"),)).markdown().splitlines()[-1]
    assert row.replace(r"\|", "").count("|") == 3


# Facts about a file


def test_a_manifest_is_described(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    items = [
        {"id": "1", "image": "a.png", "texts": ["x"], "labels": ["cat"]},
        {"id": "2", "image": "gone.png", "texts": ["x", "y"], "labels": ["cat", "dog"]},
        {"id": "3", "image": "gone too.png", "texts": ["x"], "labels": []},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(items), tmp_path / "items.parquet")
    facts = describe(tmp_path / "items.parquet")
    assert len(facts.pop("fingerprint")) == 16
    assert facts == {
        "what": "dataset",
        "items": "3",
        "labels": "2, 1.00 per item",
        "most common labels": "cat (2), dog (1)",
        "items without label": "1",
        "texts per item": "1 (2 items), 2 (1 item)",
        "images": "3, of which 2 are missing",
    }


@pytest.mark.parametrize("saved", [True, False])
def test_features_are_described_on_disk_and_ready_made(planted_npz, tmp_path, saved):
    path = planted_npz
    if saved:
        FeatureStore.open(planted_npz).save(path := tmp_path / "store")
    facts = describe(path)
    assert facts["what"] == "features"
    assert facts["items"] == "200"
    assert facts["image features"] == "24-d float32, ready-made"
    assert facts["text features"] == "16-d float32, ready-made"
    assert facts["skipped items"] == "0"
    assert facts["with features"] == FeatureStore.open(planted_npz).fingerprint()


def test_an_index_is_described(tmp_path):
    index = Index("a1b2")
    index.add(range(1500), Codes.from_bits(np.zeros((1500, 128))))
    index.save(tmp_path / "a.mbx")
    assert describe(tmp_path / "a.mbx") == {
        "what": "index",
        "items": "1,500",
        "code": "128 bits, 16 bytes per item",
        "ids": "range",
        "search": "plain scan",
        "model": "a1b2",
    }


def test_codes_in_an_npz_are_described(tmp_path):
    packed = np.zeros((5, 2), np.uint8)
    np.savez(tmp_path / "codes.npz", image=packed, text=packed, bits=12, model="a1b2")
    assert describe(tmp_path / "codes.npz") == {"what": "codes", "items": "5", "code": "12 bits", "model": "a1b2"}


@pytest.mark.parametrize(
    ("name", "error"), [("gone", DataError), ("a.txt", DataError), ("a.csv", DataError), ("a.mbx", FormatError)]
)
def test_describe_refuses_missing_and_foreign_files(tmp_path, name, error):
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "a.mbx").write_text("hello")
    (tmp_path / "a.csv").write_text("hello")
    with pytest.raises(error) as caught:
        describe(tmp_path / name)
    assert name in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\3\4 and no more", b"hello", "codes without model"])
def test_describe_refuses_a_corrupt_npz(tmp_path, content):
    path: Path = tmp_path / "a.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, image=np.zeros((2, 2), np.uint8), text=np.zeros((2, 2), np.uint8), bits=16)
    with pytest.raises((DataError, FormatError)) as caught:
        describe(path)
    assert path.name in str(caught.value)


def test_texts_that_a_spreadsheet_would_run_and_control_characters_are_only_text():
    cells = ("=1+1", "+a", "-b", "@c", "-", "-0.5", Number(-1.0), "\x1b[2J")
    table = Table("t", tuple("abcdefgh"), (cells,))
    assert table.csv().splitlines()[1] == "'=1+1,'+a,'-b,'@c,-,-0.5,-1.00,\\u001b[2J"
    assert "\x1b" not in table.markdown() and "\x1b" not in table.latex()
