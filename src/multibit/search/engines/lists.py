"""Pruned lists for large, clustered collections, with the plain scan where it is faster."""

from __future__ import annotations

from typing import ClassVar

from multibit.codes import Codes
from multibit.codes.distance import Allowed, Neighbours, nearest
from multibit.codes.lists import PrunedLists
from multibit.search.engines.base import Capabilities


class ListsEngine:
    """Searches pruned lists at the full length, and scans at shorter lengths."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, codes: Codes) -> None:
        self._codes = codes
        self._lists = PrunedLists.build(codes)

    @property
    def reason(self) -> str:
        """Whether lists or the scan are used, and why."""
        return self._lists.reason

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
        if not self._lists.worthwhile or bits != self._codes.bits:
            return nearest(queries, self._codes, k, bits, allowed=allowed, max_distance=max_distance, threads=threads)
        whole = queries.prefix(bits)
        found, given_up = self._lists.nearest(whole, k, allowed=allowed, max_distance=max_distance, threads=threads)
        if len(given_up):
            scanned = nearest(
                whole.take(given_up), self._codes, k, allowed=allowed, max_distance=max_distance, threads=threads
            )
            for name in ("rows", "distances", "counts"):
                getattr(found, name)[given_up] = getattr(scanned, name)
        return found
