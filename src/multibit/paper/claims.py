"""What the paper says that its tables show, judged by the cells that were measured here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from multibit.hashing.methods import METHODS, published
from multibit.paper.cells import Alpha, AtLength, Cells, Column, Eta, Row, Searching


@dataclass(frozen=True)
class Claim:
    """A statement about the cells of one table.

    Attributes:
        text: the statement. holds: cells, all of them defined -> whether they show it.
        about: column -> whether the claim is about it.
        found: cells -> what was measured, in words.
        datasets: names in the paper of the datasets that it is about, None for a dataset that the paper does not have;
            all when empty.
    """

    text: str
    holds: Callable[[Cells[float]], bool]
    about: Callable[[Column], bool] = lambda column: True
    found: Callable[[Cells[float]], str] = lambda cells: ""
    datasets: tuple[str | None, ...] = ()

    def concerns(self, dataset: str | None) -> bool:
        """Whether the paper says it about a dataset."""
        return not self.datasets or dataset in self.datasets

    def judge(self, cells: Cells[float]) -> Verdict:
        """Whether the cells show it; unknown if there are none that it is about, or one is missing or undefined."""
        about = cells.where(self.about)
        if not about or np.isnan(list(about.values())).any():
            return Verdict(None)
        try:
            return Verdict(bool(self.holds(about)), self.found(about))
        except KeyError:  # a cell of other code lengths
            return Verdict(None)


@dataclass(frozen=True)
class Verdict:
    """The judgement of a claim.

    Attributes:
        holds: None if the cells do not say. found: what was measured, in words.
    """

    holds: bool | None
    found: str = ""

    def __str__(self) -> str:
        words = {True: "reproduced", False: "NOT REPRODUCED", None: "not measured"}
        return words[self.holds] + (f" ({self.found})" if self.found else "")


def rising(rows: Sequence[Row]) -> Callable[[Cells[float]], bool]:
    """Every row is above the one before it, in every column."""
    return lambda cells: all(cells[a, c] < cells[b, c] for a, b in pairwise(rows) for c in cells.columns)


def largest(row: Row, among: Sequence[Row] = ()) -> Callable[[Cells[float]], bool]:
    """A row has the largest value of every column, among some rows or all."""
    return lambda cells: all(
        value <= cells[row, column] for (other, column), value in cells.items() if not among or other in among
    )


def between(least: float, most: float, digits: int) -> Callable[[Cells[float]], bool]:
    """Every value is in the range that the paper prints, rounded as the paper rounds."""
    return lambda cells: all(least <= round(value, digits) <= most for value in cells.values())


def span(digits: int) -> Callable[[Cells[float]], str]:
    """The smallest and the largest value, in words."""
    return lambda cells: f"{min(cells.values()):.{digits}f} to {max(cells.values()):.{digits}f}"


def better(row: Row, other: Row) -> Callable[[Cells[float]], bool]:
    """A row is better than another in every column."""
    return lambda cells: all(_better(cells[row, c], cells[other, c], c) for c in cells.columns)


def best_row(row: Row) -> Callable[[Cells[float]], bool]:
    """A row is at least as good as every other one in every column."""
    return lambda cells: all(
        cells[row, c] == cells[other, c] or _better(cells[row, c], cells[other, c], c)
        for other, c in cells
        if other != row
    )


def best_in(share: float) -> Callable[[Cells[float]], bool]:
    """MultiBit has the largest value in so many columns, over both directions; a share of them if below 1."""

    def holds(cells: Cells[float]) -> bool:
        best, settings = wins(cells)
        return best >= (share if share >= 1 else share * settings)

    return holds


RIVALS = ("DSSH", "DNPH", "DECH", "DIMCH", "DPBE", "DSTH", "DPSIH", "DGHDGH", "CMCL", "RCMH", "VH-ABL")
"""The methods that the paper compares; here a variant can stand for one of them, such as "CMCL (pooled)"."""


PUBLISHED = {method.title: published(method).title for method in METHODS.values()}
"""Title of a method -> that of the published method of which it is a variant, or its own."""


def wins(cells: Cells[float]) -> tuple[int, int]:
    """In how many settings, directions and lengths, MultiBit is the best of those in the paper, and their number.

    MultiBit+, classical references and real-valued features, which the paper does not have, do not compete.

    Raises:
        KeyError: one of the compared methods is not measured.
    """
    found = []
    for direction in dict.fromkeys(row.direction for row in cells.rows if isinstance(row, Searching)):
        rivals = {
            row: PUBLISHED[row.title]
            for row in cells.rows
            if isinstance(row, Searching) and row.direction == direction and PUBLISHED.get(row.title) in RIVALS
        }
        if missing := set(RIVALS) - set(rivals.values()):
            raise KeyError(f"not measured: {', '.join(sorted(missing))}")
        own = Searching(direction, "MultiBit")
        found += [cells[own, c] >= max(cells[row, c] for row in rivals) for c in cells.columns]
    return sum(found), len(found)


def wins_in_words(cells: Cells[float]) -> str:
    """The count of `wins`."""
    best, settings = wins(cells)
    return f"{best} of {settings}"


def improving(cells: Cells[float]) -> bool:
    """Every row is better than the one before it, in every column."""
    return all(_better(cells[b, c], cells[a, c], c) for a, b in pairwise(cells.rows) for c in cells.columns)


def _better(value: float, other: float, column: Column) -> bool:
    return value > other if column.larger_is_better else value < other


def peak_at(eta: float, alpha: float) -> Callable[[Cells[float]], bool]:
    """The largest cell of a grid is in the row of eta and in the column of alpha."""
    return lambda cells: peak(cells) == (Eta(eta), Alpha(alpha))


def peak(cells: Cells[float]) -> tuple[Row, Column]:
    """Row and column of the largest cell."""
    return max(cells, key=lambda key: cells[key])


def monotone(*, rises: bool) -> Callable[[Cells[float]], bool]:
    """In every row, each quantity rises, or falls, with the code length."""

    def holds(cells: Cells[float]) -> bool:
        groups: dict[tuple[Row, Any], list[tuple[int, float]]] = {}
        for (row, column), value in cells.items():
            if isinstance(column, AtLength):
                groups.setdefault((row, column.quantity), []).append((column.bits, value))
        pairs = [pair for values in groups.values() for pair in pairwise(sorted(values))]
        return all((b > a) == rises and a != b for (_, a), (_, b) in pairs)

    return holds


def among(*wanted: Column) -> Callable[[Column], bool]:
    """Whether a column is one of those wanted."""
    return lambda column: column in wanted


def in_words(form: str, value: Callable[[Cells[float]], float]) -> Callable[[Cells[float]], str]:
    """A value of the cells, formatted."""
    return lambda cells: f"{value(cells):{form}}"


def both_in_words(form: str, values: Callable[[Cells[float]], tuple[float, float]]) -> Callable[[Cells[float]], str]:
    """Two values of the cells, formatted."""
    return lambda cells: " and ".join(f"{value:{form}}" for value in values(cells))
