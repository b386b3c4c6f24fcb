"""The layout of the main comparison: a line per method and direction, with the paper's value in parentheses."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from multibit.codes.items import DIRECTIONS
from multibit.paper.accuracy_cells import MEAN_MAP, P_VALUE
from multibit.paper.cells import AtLength, Searching
from multibit.paper.outcome import Outcome
from multibit.table import Cell, Mark, Number, Table, mark_columns

SIGNIFICANT = 0.05


def lay_out_comparison(outcome: Outcome) -> Table:
    """The measured values with marks, significance and the paper's values."""
    lengths = [c.bits for c in outcome.cells.columns if isinstance(c, AtLength) and c.quantity == MEAN_MAP]
    rows = [row for row in outcome.cells.rows if isinstance(row, Searching)]
    body: tuple[tuple[Cell, ...], ...] = tuple(
        (str(row), *(_number(outcome, row, bits) for bits in lengths)) for row in rows
    )
    return Table(
        outcome.entry.titled(outcome.bits), ("", *map(str, lengths)), body, outcome.notes(), _marks(rows, body)
    )


def _number(outcome: Outcome, row: Searching, bits: int) -> Number:
    """Mean over the seeds, with a sign where the paired test of every seed is significant, and the paper's value."""
    column = AtLength(MEAN_MAP, bits)
    values = outcome.cells[row, column]
    p, full = outcome.cells.get((row, AtLength(P_VALUE, bits))), _full(outcome, row, column)
    sign = ""
    if p is not None and full is not None and p.max() < SIGNIFICANT:
        sign = " *" if full > values.mean() else " +"
    paper = outcome.printed.get((row, column), math.nan)
    spread = float(np.std(values, ddof=1)) if len(set(values.tolist())) > 1 else None
    suffix = sign if math.isnan(paper) else f"{sign} ({paper:{MEAN_MAP.form}})"
    return Number(float(values.mean()), MEAN_MAP.form, suffix, spread)


def _full(outcome: Outcome, row: Searching, column: AtLength) -> float | None:
    found = outcome.cells.get((Searching(row.direction, "MultiBit"), column))
    return None if found is None else float(found.mean())


def _marks(rows: list[Searching], body: tuple[tuple[Cell, ...], ...]) -> Mapping[tuple[int, int], Mark]:
    """The best and the second binary code of each direction and length, where several compete."""
    marks: dict[tuple[int, int], Mark] = {}
    for direction in DIRECTIONS:
        lines = [i for i, row in enumerate(rows) if row.direction == direction and row.is_code]
        if len(lines) < 2:
            continue
        values = [[cell.value if isinstance(cell, Number) else None for cell in body[i]] for i in lines]
        marks |= {(lines[i], column): mark for (i, column), mark in mark_columns(values).items()}
    return marks
