"""What the paper says that its tables show, judged by the cells that were measured here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from multibit.paper.cells import Alpha, Cells, Column, Eta, Row


@dataclass(frozen=True)
class Claim:
    """A statement about the cells of one table.

    Attributes:
        text: the statement. holds: cells, all of them defined -> whether they show it.
        about: column -> whether the claim is about it.
    """

    text: str
    holds: Callable[[Cells[float]], bool]
    about: Callable[[Column], bool] = lambda column: True

    def judge(self, cells: Cells[float]) -> bool | None:
        """Whether the cells show it; None if there are none that it is about, or one is undefined."""
        about = cells.where(self.about)
        return self.holds(about) if about and not np.isnan(list(about.values())).any() else None


def rising(rows: Sequence[Row]) -> Callable[[Cells[float]], bool]:
    """Every row is above the one before it, in every column."""
    return lambda cells: all(cells[a, c] < cells[b, c] for a, b in pairwise(rows) for c in cells.columns)


def largest(row: Row) -> Callable[[Cells[float]], bool]:
    """A row has the largest value of every column."""
    return lambda cells: all(value <= cells[row, column] for (_, column), value in cells.items())


def better(row: Row, other: Row) -> Callable[[Cells[float]], bool]:
    """A row is better than another in every column."""
    return lambda cells: all(_better(cells[row, c], cells[other, c], c) for c in cells.columns)


def improving(cells: Cells[float]) -> bool:
    """Every row is better than the one before it, in every column."""
    return all(_better(cells[b, c], cells[a, c], c) for a, b in pairwise(cells.rows) for c in cells.columns)


def _better(value: float, other: float, column: Column) -> bool:
    return value > other if column.larger_is_better else value < other


def peak_at(eta: float, alphas: Sequence[float]) -> Callable[[Cells[float]], bool]:
    """The largest cell of a grid is in the row of eta and in one of the columns of alpha."""
    return lambda cells: max(cells, key=lambda key: cells[key]) in [(Eta(eta), Alpha(alpha)) for alpha in alphas]
