"""Finished reproductions, read from their folders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from multibit.config import PRESETS, Config
from multibit.files import read_json
from multibit.paper.accuracy_cells import P_VALUE
from multibit.paper.layouts import Part
from multibit.paper.outcome import DATASETS
from multibit.paper.reproduce import (
    KIND,
    SUMMARY,
    VERSION,
    MadeTable,
    Style,
    Summary,
)
from multibit.table import Number


@dataclass(frozen=True)
class Made:
    """One measured cell of a finished reproduction.

    Attributes:
        names: what names it. got: one value per seed. paper: printed value, NaN where the paper has none.
        form: Python format. larger_is_better: how to compare two values.
    """

    names: Mapping[Part, str]
    got: tuple[float, ...]
    paper: float
    form: str
    larger_is_better: bool

    @property
    def mean(self) -> float:
        """Over the seeds; NaN where one of them is undefined."""
        return float(np.mean(self.got))

    def number(self) -> Number:
        """Measured value, with the deviation over the seeds, and the paper's in parentheses."""
        paper = "" if math.isnan(self.paper) else f" ({self.paper:{self.form}})"
        spread = float(np.std(self.got, ddof=1)) if len(set(self.got)) > 1 else None
        return Number(self.mean, self.form, paper, spread)


@dataclass(frozen=True)
class Finished:
    """A reproduction that was read from its folder.

    Attributes:
        folder: of the reproduction. title: printed name of the dataset.
        facts: what was measured with, human-readable.
        cells: name of the table -> its cells. claims: name of the table -> claim -> verdict in words.
        notes: name of the table -> what else to know about this dataset. bits: name of the table -> the length that a
            table of one length shows.
    """

    folder: Path
    title: str
    facts: str
    cells: Mapping[str, Sequence[Made]]
    claims: Mapping[str, Mapping[str, str]]
    notes: Mapping[str, str]
    bits: Mapping[str, int]


def read_finished(folder: Path) -> Finished:
    """Read a finished reproduction.

    Raises:
        FormatError: no readable summary.
    """
    path = folder / SUMMARY
    content = read_json(path, kind=KIND, version=VERSION, form=Summary, hint="Make it again.")
    title = DATASETS.get(content.column or "", folder.resolve().name)
    return Finished(
        folder,
        title,
        _facts(content),
        {name: _cells_of(title, table) for name, table in content.tables.items()},
        {name: _verdicts_of(table) for name, table in content.tables.items()},
        {name: table.note for name, table in content.tables.items()},
        {name: table.bits for name, table in content.tables.items()},
    )


def _cells_of(title: str, table: MadeTable) -> list[Made]:
    found = []
    for cell in table.cells:
        got = tuple(math.nan if value is None else value for value in cell.got)
        paper = math.nan if cell.paper is None else cell.paper
        quantity, _, bits = cell.column.rpartition(" ")
        if quantity == P_VALUE.name:
            continue
        names: dict[Part, str] = {
            "dataset": title, "row": cell.row, "column": cell.column,
            "quantity": quantity or cell.column, "bits": bits,
        }  # fmt: skip
        style = table.columns.get(cell.column, Style())  # earlier versions did not write how a column is printed
        found.append(Made(names, got, paper, style.form, style.larger_is_better))
    return found


def _verdicts_of(table: MadeTable) -> dict[str, str]:
    words = {True: "yes", False: "NO", None: "-"}
    return {
        claim: words[verdict] + (f" ({table.found[claim]})" if claim in table.found else "")
        for claim, verdict in table.claims.items()
    }


def _facts(content: Summary) -> str:
    """Seeds, and the settings that are not those of the paper."""
    paper = PRESETS.get(content.column or "default", Config()).to_dict()
    changed = [f"{name} {value}" for name, value in content.config.items() if paper.get(name, value) != value]
    seeds = ", ".join(map(str, content.seeds))
    return f"seeds {seeds}; " + (
        f"settings other than the paper's: {', '.join(changed)}." if changed else "settings of the paper."
    )
