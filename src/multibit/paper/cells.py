"""Cells of a table: values by row and column, whose keys have types of their own and a printed name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from multibit.codes.items import DIRECTION_NAMES, Direction

V = TypeVar("V")

# Columns: each knows the format of its numbers.


@dataclass(frozen=True)
class Quantity:
    """A column that shows one quantity.

    Attributes:
        name: printed heading. form: Python format of its numbers. larger_is_better: for claims that compare rows.
    """

    name: str
    form: str = ".3f"
    larger_is_better: bool = True

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class AtLength:
    """A quantity at one code length.

    Example:
        >>> str(AtLength(Quantity("tau-b"), 64)), str(AtLength(Quantity(""), 64))
        ('tau-b 64', '64')
    """

    quantity: Quantity
    bits: int

    @property
    def form(self) -> str:
        """Format of its numbers."""
        return self.quantity.form

    @property
    def larger_is_better(self) -> bool:
        """How to compare two values."""
        return self.quantity.larger_is_better

    def __str__(self) -> str:
        return f"{self.quantity} {self.bits}".strip()


@dataclass(frozen=True)
class LengthAgreementTau:
    """Tau-b between the rankings of two lengths, or the mean over all pairs of lengths.

    Attributes:
        direction: of the search. lengths: the pair; None for the mean over all pairs.
    """

    direction: Direction
    lengths: tuple[int, int] | None = None
    form: ClassVar[str] = ".3f"
    larger_is_better: ClassVar[bool] = True

    def __str__(self) -> str:
        pair = "mean" if self.lengths is None else f"{self.lengths[0]}-{self.lengths[1]}"
        return f"{pair} {self.direction}"


@dataclass(frozen=True)
class Alpha:
    """A column of the sensitivity grid: mean mAP in percent at one exponent alpha."""

    value: float
    form: ClassVar[str] = ".2f"
    larger_is_better: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"alpha {self.value}"


Column = Quantity | AtLength | LengthAgreementTau | Alpha

# Rows.

FLOAT = "float: "
"""Beginning of the name of a row of real-valued features, which are no codes."""


@dataclass(frozen=True)
class Design:
    """A trained design.

    Attributes:
        title: printed name. method: name of the method. teacher: that replaces the method's own; "" for its own.
        teacher_alpha: fractional order whose nodes the teacher has; 0 for that of the bit budget.
        scale_teacher: that the scale loss follows, as the setting of this name.
    """

    title: str
    method: str
    teacher: str = ""
    teacher_alpha: float = 0.0
    scale_teacher: str = "heat"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that the method is trained with, where they are not its own."""
        chosen = {"teacher": self.teacher, "teacher_alpha": self.teacher_alpha, "scale_teacher": self.scale_teacher}
        return {name: value for name, value in chosen.items() if value not in ("", 0.0, "heat")}

    def __str__(self) -> str:
        return self.title


@dataclass(frozen=True)
class Searching:
    """One direction of search.

    Attributes:
        direction: of the search. title: of what is searched with, where a table compares several.
    """

    direction: Direction
    title: str = ""

    @property
    def is_code(self) -> bool:
        """Whether binary codes are searched, not real-valued features."""
        return not self.title.startswith(FLOAT)

    def __str__(self) -> str:
        name = DIRECTION_NAMES[self.direction]
        return f"{self.title}, {name}" if self.title else name


@dataclass(frozen=True)
class Length:
    """One code length."""

    bits: int

    def __str__(self) -> str:
        return f"{self.bits} bits"


@dataclass(frozen=True)
class Scale:
    """One diffusion scale, counted from 1."""

    number: int

    def __str__(self) -> str:
        return f"scale {self.number}"


@dataclass(frozen=True)
class Nodes:
    """A quadrature rule by its number of nodes M."""

    count: int

    def __str__(self) -> str:
        return f"M = {self.count}"


@dataclass(frozen=True)
class Eta:
    """A row of the sensitivity grid: one regularisation eta."""

    value: float

    def __str__(self) -> str:
        return f"eta {self.value:.2f}"


@dataclass(frozen=True)
class Named:
    """A row that has only a name: a teacher, a stratum, a setting."""

    name: str

    def __str__(self) -> str:
        return self.name


Row = Design | Searching | Length | Scale | Nodes | Eta | Named


class Cells(dict[tuple[Row, Column], V]):
    """Values by row and column, in the order in which they are printed.

    Example:
        >>> cells = Cells({(Nodes(2), Quantity("tau-b")): 0.9, (Nodes(4), Quantity("tau-b")): 0.95})
        >>> cells[Nodes(4), Quantity("tau-b")], [str(row) for row in cells.rows]
        (0.95, ['M = 2', 'M = 4'])
    """

    @property
    def rows(self) -> list[Row]:
        """The rows, in order of appearance."""
        return list(dict.fromkeys(row for row, _ in self))

    @property
    def columns(self) -> list[Column]:
        """The columns, in order of appearance."""
        return list(dict.fromkeys(column for _, column in self))

    def where(self, wanted: Callable[[Column], bool]) -> Cells[V]:
        """The cells of some columns."""
        return Cells({key: value for key, value in self.items() if wanted(key[1])})

    def find(self, texts: Mapping[tuple[str, str], float]) -> Cells[float]:
        """The values of a table that is known by printed names only, under the keys that these cells have."""
        named = {key: (str(key[0]), str(key[1])) for key in self}
        return Cells({key: texts[name] for key, name in named.items() if name in texts})
