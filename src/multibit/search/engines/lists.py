"""Pruned lists for large, clustered collections, with the plain scan where it is faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from multibit.codes import Codes
from multibit.codes import lists as lists_module
from multibit.codes.distance import Allowed, Neighbours, nearest
from multibit.codes.lists import PrunedLists
from multibit.errors import DataError
from multibit.files import Arrays
from multibit.search.engines.base import Capabilities

LENGTHS = 3  # the full length, a half and a quarter of it
SHORTEST = 32  # bits; shorter codes are scanned in no time


class ListsEngine:
    """Searches pruned lists at the full length, a half and a quarter of it, and scans at other lengths."""

    capabilities: ClassVar[Capabilities] = Capabilities(stored=True)

    def __init__(self, codes: Codes, lists: Mapping[int, PrunedLists] | None = None) -> None:
        self._codes = codes
        self._lists = lists or {bits: PrunedLists.build(codes.prefix(bits)) for bits in _lengths(codes)}

    @property
    def reason(self) -> str:
        """Whether lists or the scan are used, and why."""
        full, *shorter = self._lists.items()
        also = [str(bits) for bits, lists in shorter if lists.worthwhile]
        return f"{full[1].reason}{'; pruned lists also at ' if also else ''}{', '.join(also)}{' bits' if also else ''}"

    def to_arrays(self) -> tuple[Arrays, dict[str, Any]]:
        """See `StoredEngine.to_arrays`."""
        arrays: Arrays = {}
        headers = {}
        for bits, lists in self._lists.items():
            some, headers[str(bits)] = lists.to_arrays()
            arrays |= {f"{name} {bits}": array for name, array in some.items()}
        return arrays, headers

    @classmethod
    def from_arrays(cls, codes: Codes, arrays: Arrays, header: Mapping[str, Any]) -> ListsEngine:
        """See `StoredEngine.from_arrays`."""
        if str(codes.bits) not in header:
            lengths = ", ".join(header)
            raise DataError(f"lists of codes of {lengths} bits, the codes have {codes.bits}.", field="header")
        lists = {}
        for bits, facts in header.items():
            named = {name.split()[0]: array for name, array in arrays.items() if name.split()[1] == bits}
            lists[int(bits)] = PrunedLists.from_arrays(codes.prefix(int(bits)), named, facts)
        return cls(codes, lists)

    def require_sound(self) -> None:
        """See `StoredEngine.require_sound`."""
        for bits, lists in self._lists.items():
            lists.require_of(self._codes.prefix(bits))

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
        lists = self._lists.get(bits)
        if lists is None or not lists.worthwhile:
            return nearest(queries, self._codes, k, bits, allowed=allowed, max_distance=max_distance, threads=threads)
        whole = queries.prefix(bits)
        found, given_up = lists.nearest(whole, k, allowed=allowed, max_distance=max_distance, threads=threads)
        if len(given_up):
            scanned = nearest(
                whole.take(given_up), self._codes, k, bits, allowed=allowed, max_distance=max_distance, threads=threads
            )
            for name in ("rows", "distances", "counts"):
                getattr(found, name)[given_up] = getattr(scanned, name)
        return found


def _lengths(codes: Codes) -> list[int]:
    """Lengths with lists of their own, the full length first."""
    if len(codes) < lists_module.SMALLEST:
        return [codes.bits]
    halves = [codes.bits >> power for power in range(1, LENGTHS)]
    return [codes.bits, *(bits for bits in halves if bits >= SHORTEST)]
