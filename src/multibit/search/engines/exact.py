"""The default engine: one compiled pass over all codes."""

from __future__ import annotations

from typing import ClassVar

from multibit.codes import Codes
from multibit.codes.distance import Allowed, Neighbours, nearest
from multibit.search.engines.base import Capabilities


class ExactEngine:
    """Scans the words of the prefix."""

    capabilities: ClassVar[Capabilities] = Capabilities(views=True)
    reason = "plain scan"

    def __init__(self, codes: Codes) -> None:
        self._codes = codes

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
        """See `Engine.search`."""
        return nearest(queries, self._codes, k, bits, allowed=allowed, max_distance=max_distance, threads=threads)
