"""The reference engine in plain numpy: slow and simple, the oracle of the contract tests."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from multibit.codes import Codes
from multibit.codes.distance import Allowed, Neighbours
from multibit.search.engines.base import Capabilities


class ReferenceEngine:
    """Compares unpacked bits and sorts."""

    capabilities: ClassVar[Capabilities] = Capabilities()
    reason = "plain numpy, for comparison"

    def __init__(self, codes: Codes) -> None:
        self._codes = codes
        self._bits = codes.to_bits()

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
        found = Neighbours.allocate(len(queries), k, self._codes, allowed)
        reach = bits if max_distance is None else max_distance
        for q, query in enumerate(queries.to_bits()[:, :bits]):
            distances = (self._bits[:, :bits] != query).sum(axis=1)
            near = (distances <= reach) & (True if allowed is None else allowed)
            rows = np.flatnonzero(near)
            best = rows[np.argsort(distances[rows], kind="stable")][: found.rows.shape[1]]
            found.rows[q, : len(best)], found.distances[q, : len(best)] = best, distances[best]
            found.counts[q] = len(best)
        return found
