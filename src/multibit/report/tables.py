"""Evaluations -> tables: for the terminal, markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import rich.box
import rich.table
import rich.text

from multibit.evaluation.protocol import ASYMMETRIC_QUERIES, DIRECTIONS, Evaluation
from multibit.files import replacing
from multibit.hashing.variants import VARIANTS
from multibit.relation import TEACHERS
from multibit.search import Hit

ARROWS = {"i2t": "image-to-text", "t2i": "text-to-image"}
Mark = Literal["best", "second"]
_LATEX = str.maketrans(
    {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
     "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "<": r"$<$", ">": r"$>$", "±": r"$\pm$"}
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Text cells under headings; numbers are formatted already.

    Attributes:
        title: what it shows. header: a heading per column. rows: cells. note: what to know when reading it.
        marks: (row, column) -> "best" or "second" of its column.

    Example:
        >>> print(Table("Floors", ("name", "mAP"), (("random", "7.65"),), "in percent").markdown())
        **Floors**
        <BLANKLINE>
        | name | mAP |
        |---|--:|
        | random | 7.65 |
        <BLANKLINE>
        in percent
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    marks: Mapping[tuple[int, int], Mark] = field(default_factory=dict)

    def markdown(self) -> str:
        """GitHub-flavoured markdown, the best bold, the second in italics."""
        around = {"best": "**", "second": "_", None: ""}
        marked = [
            [f"{(edge := around[self.marks.get((i, j))])}{cell}{edge}" for j, cell in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]
        lines = [
            f"**{self.title}**",
            "",
            _markdown_row(self.header),
            "|" + "".join("--:|" if number else "---|" for number in self.numeric),
            *(_markdown_row(row) for row in marked),
        ]
        return "\n".join([*lines, "", self.note] if self.note else lines)

    def csv(self) -> str:
        """Comma-separated values, one header line; marks are left out."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.header, *self.rows])
        return out.getvalue()

    def latex(self) -> str:
        """A booktabs table, the best bold, the second underlined."""
        macros = {"best": r"\textbf{%s}", "second": r"\underline{%s}", None: "%s"}
        body = [
            " & ".join(macros[self.marks.get((i, j))] % cell.translate(_LATEX) for j, cell in enumerate(row)) + r" \\"
            for i, row in enumerate(self.rows)
        ]
        return "\n".join(
            [
                r"\begin{table}[htbp]",
                r"\centering",
                rf"\caption{{{self.title.translate(_LATEX)}. {self.note.translate(_LATEX)}}}",
                rf"\begin{{tabular}}{{{''.join('r' if number else 'l' for number in self.numeric)}}}",
                r"\toprule",
                " & ".join(heading.translate(_LATEX) for heading in self.header) + r" \\",
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
            ]
        )

    def rich(self) -> rich.table.Table:
        """For the terminal."""
        styles = {"best": "bold", "second": "underline", None: ""}
        table = rich.table.Table(
            title=self.title,
            caption=self.note or None,
            box=rich.box.SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
        )
        for heading, number in zip(self.header, self.numeric, strict=True):
            table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
        for i, row in enumerate(self.rows):
            table.add_row(*(rich.text.Text(cell, styles[self.marks.get((i, j))]) for j, cell in enumerate(row)))
        return table

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers only, to be set flush right."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.header)
        return [all(_is_number(cell) for cell in column) for column in columns]


def write_table(table: Table, path: Path) -> list[Path]:
    """Write a table as `path` with the endings .md, .csv and .tex."""
    written = []
    for ending, text in {"md": table.markdown() + "\n", "csv": table.csv(), "tex": table.latex() + "\n"}.items():
        target = path.with_name(f"{path.name}.{ending}")
        with replacing(target) as temporary:
            temporary.write_text(text, encoding="utf-8")
        written.append(target)
    return written


def counted(number: int, one: str, many: str) -> str:
    """A number and what it counts.

    Example:
        >>> counted(1, "query", "queries"), counted(1200, "query", "queries")
        ('1 query', '1,200 queries')
    """
    return f"{number:,} {one if number == 1 else many}"


def _is_number(cell: str) -> bool:
    """Whether a cell is a number, with or without a mark of significance."""
    return cell.rstrip("*").replace(".", "", 1).replace(",", "").lstrip("+-").isdigit() or cell in ("", "-")


def _markdown_row(cells: Sequence[str]) -> str:
    """Cells between bars; a bar or line break inside a cell would tear the row."""
    return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"


def mark_columns(
    rows: Sequence[Sequence[float | None]], *, larger_is_better: bool = True
) -> dict[tuple[int, int], Mark]:
    """Best and second of each column of numbers; equal values share a mark.

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


def accuracy_table(evaluation: Evaluation) -> Table:
    """MAP in percent at every length, both directions, above the floors of a ranking that learned nothing."""
    shown = [metric for metric in evaluation.metrics if metric.startswith(("mAP", "precision"))]
    rows = [
        (f"{ARROWS[direction]}, {metric}", *_percents(evaluation, metric, direction))
        for metric in shown
        if metric not in ("mAP best ties", "mAP worst ties")
        for direction in DIRECTIONS
    ]
    floors = {"popularity": "most common labels first", "random": "random order"}
    for name, meaning in floors.items():
        value = _percent(evaluation.floor(name))
        rows.append((f"floor: {meaning}", *[value] * len(evaluation.lengths)))
    sizes = counted(evaluation.queries, "query", "queries"), counted(evaluation.database, "item", "items")
    note = f"In percent. {sizes[0]}, {sizes[1]} searched; mAP ranks ties by row."
    if "mAP asymmetric" in evaluation.metrics:
        note += " Asymmetric: the query keeps its real values, only the database is binary"
        note += f" (first {ASYMMETRIC_QUERIES:,} queries)." if evaluation.queries > ASYMMETRIC_QUERIES else "."
    if evaluation.undefined:
        undefined = counted(evaluation.undefined, "query", "queries")
        note += f" Left out of the means: {undefined} without any relevant item."
    header = ("", *(f"{bits} bits" for bits in evaluation.lengths))
    return Table(f"mAP@all, {evaluation.protocol}", header, tuple(rows), note)


def variants_tables() -> list[Table]:
    """The methods and the relation teachers that training knows."""
    settings = [", ".join(f"{name} {value}" for name, value in v.settings.items()) for v in VARIANTS.values()]
    methods = tuple(
        (v.name, v.title, v.meaning, changed) for v, changed in zip(VARIANTS.values(), settings, strict=True)
    )
    teachers = tuple((name, (teacher.__doc__ or "").splitlines()[0]) for name, teacher in TEACHERS.items())
    return [
        Table("Variants", ("--variant", "in the paper", "what", "settings"), methods),
        Table("Relation teachers", ("--set teacher=", "what g* is"), teachers),
    ]


def hits_table(hits: Sequence[Hit], searched: str, bits: int, measure: str = "distance") -> Table:
    """Hits of one search, best first.

    Args:
        hits: with payloads. searched: modality of the hits, "image" or "text". bits: length searched at.
        measure: what their `distance` is: "distance", or the "score" of a relaxed query.
    """
    rows = tuple(
        (
            str(hit.rank),
            f"{hit.distance:.2f}" if isinstance(hit.distance, float) else str(hit.distance),
            str(hit.id),
            ", ".join(hit.payload.get("labels") or ()),
            str(hit.payload.get(searched) or ""),
        )
        for hit in hits
    )
    header = ("rank", measure, "id", "labels", searched)
    return Table(f"{len(hits)} nearest {searched}s at {bits} bits", header, rows)


def _percents(evaluation: Evaluation, metric: str, direction: str) -> list[str]:
    return [_percent(evaluation.mean(metric, direction, bits)) for bits in evaluation.lengths]


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"
