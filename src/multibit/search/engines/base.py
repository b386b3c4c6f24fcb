"""What an engine is: it sees codes and rows only, and declares what it can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from multibit.codes import Codes
from multibit.codes.distance import Allowed, Neighbours


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do, as data. Every engine is exact and answers by (distance, row).

    Attributes:
        filters: it can search among some rows only.
        max_distance: it can stop at a distance.
        any_length: every prefix length at full speed; otherwise other lengths than the stored one cost more.
        max_k: most neighbours it returns, None for no limit.
    """

    filters: bool = True
    max_distance: bool = True
    any_length: bool = True
    max_k: int | None = None


class Engine(Protocol):
    """Answers queries over a fixed set of codes."""

    capabilities: ClassVar[Capabilities]

    def __init__(self, codes: Codes) -> None: ...

    @property
    def reason(self) -> str:
        """How it searches and why, for people."""
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
            bits: 1 to the codes' length. allowed: (N,) bool. max_distance: largest distance to be found.
            threads: all processors when None.

        Returns:
            Neighbours with min(k, allowed rows) columns; rows past `counts` are -1.
        """
        ...
