"""A table of the paper: what it measures, the paper's values and claims, and how both are printed together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files

import numpy as np

from multibit.arrays import FloatArray
from multibit.codes.items import MIDDLE, length_near
from multibit.config import Config
from multibit.paper.cells import Cells, Column, Row
from multibit.paper.claims import PUBLISHED, Claim
from multibit.paper.reproduction import Reproduction
from multibit.table import Cell, Number, Table

DATASETS = {"mirflickr": "MIRFlickr-25K", "iapr": "IAPR TC-12", "coco": "MS-COCO", "nuswide": "NUS-WIDE"}
"""Name of a dataset of the paper -> its printed name."""

Measure = Callable[[Reproduction, int], Cells[float]]
UNDEFINED = Number(float("nan"))


@dataclass(frozen=True)
class Entry:
    """A table of the paper.

    Attributes:
        name: on the command line. title: what it shows. label: of the table in the paper's source.
        measure: reproduction, seed -> cells. claims: what the paper says that the cells show.
        labels_only: it needs no features. seeded: its cells depend on the seed.
        note: how to read it. `{bits}` in title and note stands for the length of a table of one length.
        remark: reproduction, measured cells, the paper's cells -> what else to know when reading it.
        of_lengths: its printed values hold only for the paper's code lengths.
        by_label_names: column -> whether the label-name evaluator measures it.
        layout: outcome -> the table, where it is not one of measured values and the paper's below them.
    """

    name: str
    title: str
    label: str
    measure: Measure
    claims: tuple[Claim, ...] = ()
    labels_only: bool = False
    seeded: bool = True
    note: str = ""
    remark: Callable[[Reproduction, Cells[float], Cells[float]], str] = lambda *_: ""
    of_lengths: bool = False
    by_label_names: Callable[[Column], bool] = lambda column: False
    layout: Callable[[Outcome], Table] | None = None

    def titled(self, bits: int = MIDDLE) -> str:
        """The title of the table at a code length."""
        return self.title.format(bits=bits)


@dataclass(frozen=True, eq=False)
class Outcome:
    """A table as measured here.

    Attributes:
        entry: what was measured. cells: (seeds,) values. printed: the paper's value of the cells that it has.
        verdicts: claim -> reproduced or not; None where the cells do not say. found: claim -> what was measured, in
            words.
        bits: the length that a table of one length shows. note: what else to know when reading it.
    """

    entry: Entry
    cells: Cells[FloatArray]
    printed: Cells[float] = field(default_factory=Cells)
    verdicts: Mapping[str, bool | None] = field(default_factory=dict)
    found: Mapping[str, str] = field(default_factory=dict)
    bits: int = MIDDLE
    note: str = ""

    def table(self) -> Table:
        """The measured values, and below each row the paper's values and the differences where the paper has any."""
        if self.entry.layout is not None:
            return self.entry.layout(self)
        columns = self.cells.columns
        body: list[tuple[Cell, ...]] = []
        for row in self.cells.rows:
            body.append((str(row), *(self._measured(row, column) for column in columns)))
            if any((row, column) in self.printed for column in columns):
                body.append(("  paper", *(self._paper(row, column) for column in columns)))
                body.append(("  difference", *(self._difference(row, column) for column in columns)))
        return Table(self.entry.titled(self.bits), ("", *map(str, columns)), tuple(body), self.notes())

    def notes(self) -> str:
        """How to read the table, and the claims with their verdicts."""
        words = {True: "reproduced", False: "NOT REPRODUCED", None: "not measured"}
        verdicts = [
            f"{words[verdict]}: {claim}{f' (here {found})' if (found := self.found.get(claim)) else ''}."
            for claim, verdict in self.verdicts.items()
        ]
        return " ".join(part for part in (self.entry.note.format(bits=self.bits), self.note, *verdicts) if part)

    def _measured(self, row: Row, column: Column) -> Number:
        values = self.cells.get((row, column))
        if values is None or np.isnan(values).any():
            return UNDEFINED
        varies = len(set(values.tolist())) > 1  # a cell without training is the same for every seed
        spread = float(np.std(values, ddof=1)) if varies else None
        return Number(float(np.mean(values)), column.form, spread=spread)

    def _paper(self, row: Row, column: Column) -> Number:
        return Number(self.printed.get((row, column), float("nan")), column.form)

    def _difference(self, row: Row, column: Column) -> Number:
        measured, paper = self._measured(row, column), self._paper(row, column)
        return Number(measured.value - paper.value, f"+{column.form}")


def reproduce(entry: Entry, reproduction: Reproduction, seeds: Sequence[int]) -> Outcome:
    """Measure one table for every seed and compare it with the paper's values and claims.

    Raises:
        DataError: the dataset lacks what the table needs, such as features or label names.
    """
    measured = [_measure(entry, reproduction, seed) for seed in (seeds if entry.seeded else seeds[:1])]
    cells = Cells({key: np.array([each.get(key, np.nan) for each in measured], np.float64) for key in measured[0]})
    means = Cells({key: float(values.mean()) for key, values in cells.items()})
    dataset = reproduction.subject.column
    printed, left_out = _comparable(entry, reproduction, cells.find(_with_variants(printed_texts(entry.name, dataset))))
    notes = [*left_out, entry.remark(reproduction, means, printed), _evaluator(entry, reproduction, means)]
    verdicts = {claim.text: claim.judge(means) for claim in entry.claims if claim.concerns(dataset)}
    return Outcome(
        entry,
        cells,
        printed,
        {text: verdict.holds for text, verdict in verdicts.items()},
        {text: verdict.found for text, verdict in verdicts.items() if verdict.found},
        length_near(reproduction.config.lengths),
        " ".join(note for note in notes if note),
    )


def _comparable(entry: Entry, reproduction: Reproduction, printed: Cells[float]) -> tuple[Cells[float], list[str]]:
    """The paper's values that can be compared with those measured here, and why others are left out."""
    notes, lengths = [], Config().lengths
    if printed and entry.of_lengths and reproduction.config.lengths != lengths:
        notes.append(f"The paper's values are for {', '.join(map(str, lengths))} bits and are not shown.")
        printed = Cells()
    if printed.where(entry.by_label_names) and reproduction.substituted:
        notes.append("The paper's label-name evaluator is by CLIP's text encoder, so its values are not shown.")
        printed = printed.where(lambda column: not entry.by_label_names(column))
    return printed, notes


def _evaluator(entry: Entry, reproduction: Reproduction, means: Cells[float]) -> str:
    """Which text encoder reads the label names, where a column depends on it."""
    if not means.where(entry.by_label_names):
        return ""
    how = ", which stands in for an unknown one" if reproduction.substituted else ""
    return f"Label names are read by the text encoder {reproduction.semantic.origin}{how}."


def _measure(entry: Entry, reproduction: Reproduction, seed: int) -> Cells[float]:
    """The cells of one seed, measured once: a figure of the same cells shows the same numbers."""
    return reproduction.remember(("cells", entry.measure, seed), partial(entry.measure, reproduction, seed))


@cache
def printed_tables() -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Name of the table -> dataset -> row -> column -> value, as in the paper."""
    loaded: dict[str, dict[str, dict[str, dict[str, float]]]] = json.loads(
        files("multibit.paper").joinpath("printed.json").read_text(encoding="utf-8")
    )
    return loaded


def printed_texts(name: str, column: str | None) -> dict[tuple[str, str], float]:
    """What the paper printed in a table for one of its datasets, by printed names; empty for another dataset."""
    rows = printed_tables().get(name, {}).get(column or "", {})
    return {(row, cell): value for row, cells in rows.items() for cell, value in cells.items()}


def _with_variants(texts: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """The paper's values, also under the names of the variants of a method that a dataset without tokens has."""
    known = dict(texts)
    for (row, cell), value in texts.items():
        title, comma, direction = row.partition(", ")
        known |= {(f"{each}{comma}{direction}", cell): value for each, other in PUBLISHED.items() if other == title}
    return known
