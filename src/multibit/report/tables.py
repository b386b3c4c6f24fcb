"""Evaluations -> tables, for the terminal and for markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import rich.box
import rich.table
import rich.text

from multibit.evaluation.protocol import DIRECTIONS, Evaluation
from multibit.search import Hit

ARROWS = {"i2t": "image-to-text", "t2i": "text-to-image"}


@dataclass(frozen=True)
class Table:
    """Text cells under headings; numbers are formatted already.

    Attributes:
        title: what it shows. header: a heading per column. rows: cells. note: what to know when reading it.

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

    def markdown(self) -> str:
        """GitHub-flavoured markdown."""
        lines = [
            f"**{self.title}**",
            "",
            _markdown_row(self.header),
            "|" + "".join("--:|" if number else "---|" for number in self._numeric()),
            *(_markdown_row(row) for row in self.rows),
        ]
        return "\n".join([*lines, "", self.note] if self.note else lines)

    def _numeric(self) -> list[bool]:
        """Which columns hold numbers only, to be set flush right."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.header)
        return [all(cell.replace(".", "", 1).isdigit() for cell in column) for column in columns]

    def rich(self) -> rich.table.Table:
        """For the terminal."""
        table = rich.table.Table(
            title=self.title, caption=self.note or None, box=rich.box.SIMPLE_HEAD, title_justify="left",
            caption_justify="left",
        )  # fmt: skip
        for heading, number in zip(self.header, self._numeric(), strict=True):
            table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
        for row in self.rows:
            table.add_row(*map(rich.text.Text, row))
        return table


def _markdown_row(cells: Sequence[str]) -> str:
    """Cells between bars; a bar or line break inside a cell would tear the row."""
    return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"


def accuracy_table(evaluation: Evaluation) -> Table:
    """MAP in percent at every length, both directions, above the floors of a ranking that learned nothing."""
    rows = [
        (f"{ARROWS[direction]}, {metric}", *_cells(evaluation, metric, direction))
        for metric in _metrics(evaluation)
        for direction in DIRECTIONS
    ]
    floors = {"popularity": "most common labels first", "random": "random order"}
    for name, meaning in floors.items():
        value = _percent(evaluation.floor(name))
        rows.append((f"floor: {meaning}", *[value] * len(evaluation.lengths)))
    note = f"In percent. {evaluation.queries:,} queries, {evaluation.database:,} items searched; mAP ranks ties by row."
    if evaluation.undefined:
        note += f" {evaluation.undefined:,} queries without any relevant item are left out of the means."
    header = ("", *(f"{bits} bits" for bits in evaluation.lengths))
    return Table(f"mAP@all, {evaluation.protocol}", header, tuple(rows), note)


def hits_table(hits: Sequence[Hit], searched: str, bits: int) -> Table:
    """Hits of one search, best first; `searched` is the modality of the hits, "image" or "text"."""
    rows = tuple(
        (
            str(hit.rank),
            str(hit.distance),
            str(hit.id),
            ", ".join(hit.payload.get("labels") or ()),
            str(hit.payload.get(searched) or ""),
        )
        for hit in hits
    )
    return Table(
        f"{len(hits)} nearest {searched}s at {bits} bits", ("rank", "distance", "id", "labels", searched), rows
    )


def _metrics(evaluation: Evaluation) -> Sequence[str]:
    return list(dict.fromkeys(metric for metric, _, _ in evaluation.values))


def _cells(evaluation: Evaluation, metric: str, direction: str) -> list[str]:
    return [_percent(evaluation.mean(metric, direction, bits)) for bits in evaluation.lengths]


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"
