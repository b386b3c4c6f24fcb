"""Tables of typed cells, printed as terminal text, markdown, CSV, LaTeX and HTML."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from multibit.cells import no_formula, write_csv
from multibit.errors import printable
from multibit.paths import replacing

if TYPE_CHECKING:
    import rich.console
    import rich.table

FILE_WIDTH = 120  # characters of a table in a file, wider where words need it
SHORTEST = 8  # characters to which a word is shortened at most

Mark = Literal["best", "second"]
_TAG = re.compile("<(?=[A-Za-z/!?])")
"""What a reader of markdown takes for the beginning of a tag."""
_LATEX = str.maketrans(
    {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
     "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "<": r"$<$", ">": r"$>$", "±": r"$\pm$"}
)  # fmt: skip


@dataclass(frozen=True)
class Number:
    """A cell that holds a number and how it is printed.

    Attributes:
        value: printed as a dash if it is NaN. form: Python format. suffix: text after the number, such as a unit or a
            star for significance. spread: standard deviation over seeds, printed after a plus-minus sign.

    Example:
        >>> str(Number(0.5)), str(Number(1192, ",")), str(Number(float("nan"))), str(Number(61.2, ".1f", spread=0.4))
        ('0.50', '1,192', '-', '61.2 ± 0.4')
    """

    value: float
    form: str = ".2f"
    suffix: str = ""
    spread: float | None = None

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "-"
        spread = "" if self.spread is None else f" ± {self.spread:{self.form.lstrip('+')}}"
        return f"{self.value:{self.form}}{spread}{self.suffix}"


Cell = str | Number


def percent(value: float, form: str = ".2f", suffix: str = "") -> Number:
    """A share in percent.

    Example:
        >>> str(percent(0.0765))
        '7.65'
    """
    return Number(100 * value, form, suffix)


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header.

    Attributes:
        title: what the table shows. header: a heading per column. rows: texts and numbers. note: how to read it.
        marks: (row, column) -> "best" or "second" of the column.

    Example:
        >>> print(Table("Floors", ("name", "mAP"), (("random", Number(7.65)),), "In percent.").markdown())
        **Floors**
        <BLANKLINE>
        | name | mAP |
        |---|--:|
        | random | 7.65 |
        <BLANKLINE>
        In percent.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    marks: Mapping[tuple[int, int], Mark] = field(default_factory=dict)

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether it holds only numbers; such a column is right-aligned."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.header)
        return [all(isinstance(cell, Number) or cell in ("", "-") for cell in column) for column in columns]

    def markdown(self) -> str:
        """GitHub-flavoured markdown; the best is bold, the second italic."""
        around = {"best": "**", "second": "_", None: ""}
        marked = [
            [f"{(edge := around[self.marks.get((i, j))])}{cell}{edge}" for j, cell in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]
        lines = [
            f"**{_line(self.title)}**",
            "",
            _markdown_row(self.header),
            "|" + "".join("--:|" if number else "---|" for number in self.numeric),
            *(_markdown_row(row) for row in marked),
        ]
        return "\n".join([*lines, "", _line(self.note)] if self.note else lines)

    def csv(self) -> str:
        """Comma-separated values with one header line and without marks.

        A text that a spreadsheet would take for a formula gets an apostrophe in front.
        """
        out = io.StringIO()
        rows = ([_no_formula(cell) for cell in row] for row in (self.header, *self.rows))
        write_csv(out, rows)
        return out.getvalue()

    def latex(self) -> str:
        """A booktabs table; the best is bold, the second underlined."""
        macros = {"best": r"\textbf{%s}", "second": r"\underline{%s}", None: "%s"}
        body = [
            " & ".join(macros[self.marks.get((i, j))] % _latex(cell) for j, cell in enumerate(row)) + r" \\"
            for i, row in enumerate(self.rows)
        ]
        return "\n".join(
            [
                r"\begin{table}[htbp]",
                r"\centering",
                rf"\caption{{{_latex(self.title)}. {_latex(self.note)}}}",
                rf"\begin{{tabular}}{{{''.join('r' if number else 'l' for number in self.numeric)}}}",
                r"\toprule",
                " & ".join(map(_latex, self.header)) + r" \\",
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
            ]
        )

    def _repr_html_(self) -> str:
        """An HTML table for notebooks; the best is bold, the second in italics."""
        tags = {"best": "<b>%s</b>", "second": "<i>%s</i>", None: "%s"}
        head = "".join(f"<th>{html.escape(heading)}</th>" for heading in self.header)
        body = "".join(
            "<tr>"
            + "".join(
                f"<td>{tags[self.marks.get((i, j))] % html.escape(_text(cell))}</td>" for j, cell in enumerate(row)
            )
            + "</tr>"
            for i, row in enumerate(self.rows)
        )
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return f"<table><caption>{html.escape(self.title)}</caption><tr>{head}</tr>{body}</table>{note}"

    def rich(self, width: int = FILE_WIDTH, *, shorten: bool = False) -> rich.table.Table:
        """A rich table for the terminal; the best is bold, the second underlined.

        Args:
            width: in characters; lines are broken between words only, and the longest words may make it wider.
            shorten: shorten these words in the middle instead.
        """
        import rich.box  # slow to import
        import rich.table
        import rich.text

        header, rows = [_text(cell) for cell in self.header], [[_text(cell) for cell in row] for row in self.rows]
        widths = column_widths([header, *rows], self.numeric, width, shorten=shorten)
        styles = {"best": "bold", "second": "underline", None: ""}
        table = rich.table.Table(
            title=rich.text.Text(_text(self.title)),
            caption=rich.text.Text(_text(self.note)) if self.note else None,
            box=rich.box.SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
        )
        for j, (heading, number) in enumerate(zip(header, self.numeric, strict=True)):
            each = None if widths is None else widths[j]
            table.add_column(
                rich.text.Text(_shortened(heading, each)),
                justify="right" if number else "left", no_wrap=number and each is None,
                overflow="ellipsis", width=each,
            )  # fmt: skip
        for i, row in enumerate(rows):
            table.add_row(
                *(
                    rich.text.Text(
                        _shortened(cell, None if widths is None else widths[j]), styles[self.marks.get((i, j))]
                    )
                    for j, cell in enumerate(row)
                )
            )
        return table


def print_table(table: Table, console: rich.console.Console) -> None:
    """Print a table: as wide as a terminal, with the longest words shortened; in a file all words are whole."""
    width = console.width if console.is_terminal else FILE_WIDTH
    console.print(table.rich(width, shorten=console.is_terminal))


def column_widths(
    rows: Sequence[Sequence[str]], numeric: Sequence[bool], width: int, *, shorten: bool
) -> list[int] | None:
    """Characters of each column so that a table fits a terminal; None if it fits as it is.

    A column of numbers keeps its numbers, a column of texts its longest word unless words are shortened.

    Args:
        rows: cells as texts, the header first. numeric: whether a column holds only numbers. width: of the terminal.
        shorten: words down to `SHORTEST` characters where they do not fit.

    Example:
        >>> column_widths([["name", "text"], ["a-long-name", "three short words"]], [False, False], 29, shorten=True)
        [11, 11]
    """
    columns = list(zip(*rows, strict=True))
    available = width - 3 * len(columns) - 1  # two blanks around each cell, and the space between columns
    natural = [max(map(cell_width, column)) for column in columns]
    if sum(natural) <= available:
        return None
    least = [_longest_word(column) for column in columns]
    kept = [
        max(map(cell_width, column[1:]), default=0) if number else 0
        for column, number in zip(columns, numeric, strict=True)
    ]
    floor = [max(number, min(SHORTEST, words)) for number, words in zip(kept, least, strict=True)]
    least = [max(number, words) for number, words in zip(kept, least, strict=True)]
    while shorten and sum(least) > available and least != floor:
        widest = max((j for j in range(len(columns)) if least[j] > floor[j]), key=lambda j: least[j])
        least[widest] -= 1
    while sum(least) < available:
        narrow = [j for j in range(len(columns)) if least[j] < natural[j]]
        least[min(narrow, key=lambda j: least[j])] += 1
    return least


def cell_width(text: str) -> int:
    """Columns of the terminal that a text takes, two for each wide character."""
    import rich.cells  # slow to import

    return rich.cells.cell_len(text)


def _longest_word(column: Sequence[str]) -> int:
    return max((cell_width(word) for text in column for word in text.split()), default=0)


def _shortened(text: str, width: int | None) -> str:
    """The text, with words that are longer than a width shortened in the middle."""
    if width is None or all(cell_width(word) <= width for word in text.split()):
        return text
    return " ".join(_short_word(word, width) for word in text.split())


def _short_word(word: str, width: int) -> str:
    if cell_width(word) <= width:
        return word
    head, tail = word[: width - width // 2 - 1], word[len(word) - width // 2 :]
    while cell_width(head) + 1 + cell_width(tail) > width and (head or tail):  # wide characters
        head, tail = (head[:-1], tail) if len(head) > len(tail) else (head, tail[1:])
    return f"{head}…{tail}"


def write_table(table: Table, path: Path) -> list[Path]:
    """Write a table as markdown, CSV and LaTeX.

    Args:
        table: to write. path: without the endings .md, .csv and .tex, which are added.

    Returns:
        The paths of the three files.

    Example:
        >>> table = Table("Floors", ("name", "mAP"), (("random", Number(7.65)),))
        >>> [path.name for path in write_table(table, Path("floors"))]
        ['floors.md', 'floors.csv', 'floors.tex']
    """
    written = []
    for ending, text in {"md": table.markdown() + "\n", "csv": table.csv(), "tex": table.latex() + "\n"}.items():
        target = path.with_name(f"{path.name}.{ending}")
        with replacing(target) as temporary:
            temporary.write_text(text, encoding="utf-8")
        written.append(target)
    return written


def mark_columns(
    rows: Sequence[Sequence[float | None]], *, larger_is_better: bool = True
) -> dict[tuple[int, int], Mark]:
    """The best and the second value of each column; equal values share a mark.

    Example:
        >>> mark_columns([[None, 3.0], [None, 5.0], [None, 4.0]])
        {(1, 1): 'best', (2, 1): 'second'}
    """
    marks: dict[tuple[int, int], Mark] = {}
    for column in range(len(rows[0]) if rows else 0):
        values = {row[column] for row in rows}
        ranked = sorted((v for v in values if v is not None and not math.isnan(v)), reverse=larger_is_better)
        names: tuple[Mark, ...] = ("best", "second")
        for value, mark in zip(ranked, names, strict=False):
            marks |= {(i, column): mark for i, row in enumerate(rows) if row[column] == value}
    return marks


def _text(cell: Cell) -> str:
    """A cell as text, without control characters."""
    return printable(str(cell))


def _line(text: str) -> str:
    """A text on one line of markdown, without control characters and tags."""
    return _TAG.sub("&lt;", " ".join(_text(text).split()))


def _latex(cell: Cell) -> str:
    """A cell as text of LaTeX."""
    return _text(cell).translate(_LATEX)


def _no_formula(cell: Cell) -> str:
    """A cell whose text a spreadsheet does not take for a formula; numbers unchanged."""
    return _text(cell) if isinstance(cell, Number) else no_formula(_text(cell))


def _markdown_row(cells: Sequence[Cell]) -> str:
    """Cells between bars; a bar or line break inside a cell would break the row."""
    return "| " + " | ".join(_line(str(cell)).replace("|", r"\|") for cell in cells) + " |"
