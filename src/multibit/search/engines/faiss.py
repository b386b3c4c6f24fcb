"""faiss `IndexBinaryFlat` as an engine, with ties ordered by row."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from multibit.codes import Codes
from multibit.codes.distance import Allowed, Neighbours
from multibit.errors import MissingExtraError
from multibit.machine import threads_or_all
from multibit.search.engines.base import Capabilities


class FaissEngine:
    """Searches with faiss, and orders and cuts ties by row.

    faiss returns equal distances in any order and drops any of them, so each result is completed by a range search up
    to its last distance and sorted by (distance, row). faiss needs whole bytes: a cut byte is padded with zeros on both
    sides, which changes no distance. One faiss index is built for each length that is searched.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(filters=False)
    reason = "faiss IndexBinaryFlat"

    def __init__(self, codes: Codes) -> None:
        try:
            import faiss
        except ImportError:
            raise MissingExtraError("faiss", extra="faiss", need="The faiss engine") from None
        self._faiss = faiss
        self._codes = codes
        self._by_length: dict[int, Any] = {}

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
        """See `Engine.search`; without filters."""
        found = Neighbours.allocate(len(queries), k, self._codes)
        if not found.rows.size:
            return found
        before = self._faiss.omp_get_max_threads()  # a setting of the whole process
        self._faiss.omp_set_num_threads(threads_or_all(threads))
        try:
            self._fill(found, queries, bits, max_distance)
        finally:
            self._faiss.omp_set_num_threads(before)
        return found

    def _fill(self, found: Neighbours, queries: Codes, bits: int, max_distance: int | None) -> None:
        index, packed = self._index(bits), queries.prefix(bits).to_bytes()
        last = index.search(packed, found.rows.shape[1])[0][:, -1].astype(int)
        for q, radius in enumerate(last):
            reach = radius if max_distance is None else min(radius, max_distance)
            rows, distances = self._within(index, packed[q : q + 1], reach)
            order = np.lexsort((rows, distances))[: found.rows.shape[1]]
            found.rows[q, : len(order)], found.distances[q, : len(order)] = rows[order], distances[order]
            found.counts[q] = len(order)

    def _within(self, index: Any, query: NDArray[np.uint8], reach: int) -> tuple[NDArray[Any], NDArray[Any]]:
        _, distances, rows = index.range_search(
            query, int(reach) + 1
        )  # faiss finds distances strictly below the radius
        return rows, distances.astype(np.int64)

    def _index(self, bits: int) -> Any:
        if bits not in self._by_length:
            packed = self._codes.prefix(bits).to_bytes()
            index = self._faiss.IndexBinaryFlat(packed.shape[1] * 8)
            index.add(packed)
            self._by_length[bits] = index
        return self._by_length[bits]
