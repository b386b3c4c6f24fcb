"""The contract of an engine: it searches codes by row, and declares its capabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from multibit.codes import Codes
from multibit.codes.distance import Allowed, Neighbours
from multibit.files import Arrays


@dataclass(frozen=True)
class Capabilities:
    """Optional features of an engine. Every engine is exact and ranks by (distance, row).

    Attributes:
        filters: accepts `allowed`. views: accepts items with several codes each.
        stored: is slow to build, so it is stored with the codes: it is a `StoredEngine`.
    """

    filters: bool = True
    views: bool = False
    stored: bool = False


class Engine(Protocol):
    """Searches a fixed set of codes. `Index` checks the arguments, so an engine gets valid ones only."""

    capabilities: ClassVar[Capabilities]

    def __init__(self, codes: Codes) -> None: ...

    @property
    def reason(self) -> str:
        """Human-readable search strategy and why it was chosen."""
        ...

    def search(
        self,
        queries: Codes,
        k: int,
        bits: int,
        *,
        allowed: Allowed = None,
        max_distance: int | None = None,
        threads: int | None = None,
    ) -> Neighbours:
        """The k nearest rows of each query at a prefix of `bits`, by (distance, row).

        Args:
            queries: Q codes, at least `bits` long. k: at least 1; all allowed rows when larger.
            bits: 1 to the length of the codes. allowed: (N,) bool, the rows that may be found; None for an engine
                without filters. max_distance: largest distance to be found. threads: all processors when None.

        Returns:
            Neighbours with min(k, allowed rows) columns; rows past `counts` are -1.
        """
        ...


class StoredEngine(Engine, Protocol):
    """An engine that is written next to the codes, and mapped when they are loaded."""

    def to_arrays(self) -> tuple[Arrays, dict[str, Any]]:
        """Arrays and header for a file; no arrays where it is quick to build again."""
        ...

    @classmethod
    def from_arrays(cls, codes: Codes, arrays: Arrays, header: Mapping[str, Any]) -> StoredEngine:
        """Inverse of `to_arrays`, for the same codes.

        Raises:
            DataError: arrays of other shapes or types, or of other codes.
        """
        ...

    def require_sound(self) -> None:
        """Refuse what was stored if it is not of the codes; may take the time of building it.

        Raises:
            DataError: it is of other codes.
        """
        ...
