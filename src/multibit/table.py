"""Tables of typed cells, printed as terminal text, markdown, CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from multibit.errors import printable
from multibit.files import replacing

if TYPE_CHECKING:
    import rich.table

Mark = Literal["best", "second"]
_FORMULA = ("=", "+", "-", "@", "\t", "＝", "＋", "－", "＠")
"""What a spreadsheet takes for the beginning of a formula."""
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
        csv.writer(out, lineterminator="\n").writerows(rows)
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

    def rich(self) -> rich.table.Table:
        """A rich table for the terminal; the best is bold, the second underlined."""
        import rich.box  # slow to import
        import rich.table
        import rich.text

        styles = {"best": "bold", "second": "underline", None: ""}
        table = rich.table.Table(
            title=rich.text.Text(_text(self.title)),
            caption=rich.text.Text(_text(self.note)) if self.note else None,
            box=rich.box.SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
        )
        for heading, number in zip(self.header, self.numeric, strict=True):
            table.add_column(
                rich.text.Text(_text(heading)), justify="right" if number else "left", no_wrap=number, overflow="fold"
            )
        for i, row in enumerate(self.rows):
            table.add_row(*(rich.text.Text(_text(cell), styles[self.marks.get((i, j))]) for j, cell in enumerate(row)))
        return table


def write_table(table: Table, path: Path) -> list[Path]:
    """Write a table as markdown, CSV and LaTeX.

    Args:
        table: to write. path: without the endings .md, .csv and .tex, which are added.

    Returns:
        The paths of the three files.
    """
    written = []
    for ending, text in {"md": table.markdown() + "\n", "csv": table.csv(), "tex": table.latex() + "\n"}.items():
        target = path.with_name(f"{path.name}.{ending}")
        with replacing(target) as temporary:
            temporary.write_text(text, encoding="utf-8")
        written.append(target)
    return written


def counted(number: int, one: str, many: str) -> str:
    """A number with the noun that it counts.

    Example:
        >>> counted(1, "query", "queries"), counted(1200, "query", "queries")
        ('1 query', '1,200 queries')
    """
    return f"{number:,} {one if number == 1 else many}"


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
    text = _text(cell)
    if isinstance(cell, Number) or not text.lstrip("\r\n").startswith(_FORMULA) or text == "-":
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def _markdown_row(cells: Sequence[Cell]) -> str:
    """Cells between bars; a bar or line break inside a cell would break the row."""
    return "| " + " | ".join(_line(str(cell)).replace("|", r"\|") for cell in cells) + " |"
