"""Exact search through pruned lists: codes grouped around centroids, groups skipped by the triangle inequality.

For a query q, a centroid c and a code x, |d(q, c) - d(x, c)| <= d(q, x). The members of a list are kept in order of
d(x, c), so that with k answers within distance T at hand, only those between d(q, c) - T and d(q, c) + T need a look.
Where codes are not clustered, nothing can be skipped and the plain scan is faster: `PrunedLists.build` measures that on
some of the codes and says so, and a query whose bounds do not help is handed back to the scan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.codes import list_kernels
from multibit.codes.distance import Allowed, Neighbours, as_mask, nearest, prefix_sides, room_for, run
from multibit.codes.packing import Codes

SMALLEST = 20_000  # fewer codes are scanned faster than any list is looked up
WORTHWHILE = 0.06  # share of codes visited, above which a plain scan is faster
SAMPLE = 64  # codes asked to see how much pruning helps
ROUNDS = 4  # of k-majority


@dataclass(frozen=True, eq=False)
class PrunedLists:
    """Codes in lists around L centroids.

    Attributes:
        codes: N, all of them, in the lists' order. order: (N,) int64, the original row of each.
        centroids: L codes.
        rings: (L, bits + 2) int64, where the members at each distance from the centroid begin in `codes`.
        visited: share of the codes that sample queries looked at.
    """

    codes: Codes
    order: NDArray[np.int64]
    centroids: Codes
    rings: NDArray[np.int64]
    visited: float

    @property
    def worthwhile(self) -> bool:
        """Whether pruning was faster than a scan on the sample."""
        return self.visited <= WORTHWHILE

    @property
    def reason(self) -> str:
        """Why lists or the scan are used, for people."""
        if len(self.codes) < SMALLEST:
            return f"plain scan: {len(self.codes):,} codes are too few for lists"
        looked = f"sample queries looked at {100 * self.visited:.1f} % of the codes in {len(self.centroids):,} lists"
        return f"{'pruned lists' if self.worthwhile else 'plain scan'}: {looked}"

    @classmethod
    def build(cls, codes: Codes, lists: int | None = None, seed: int = 0) -> PrunedLists:
        """Group codes by k-majority: each centroid bit is the majority of its members' bits.

        Args:
            codes: N codes. lists: how many; about sqrt(N) when None. seed: of the first centroids.
        """
        count = len(codes)
        if count < SMALLEST and lists is None:
            return cls(codes, np.arange(count), codes.take([]), np.zeros((0, codes.bits + 2), np.int64), 1.0)
        rng = np.random.default_rng(seed)
        wanted = min(count, lists or int(count**0.5))
        sample = codes.take(np.sort(rng.choice(count, min(count, 32 * wanted), replace=False)))
        centroids = sample.take(np.sort(rng.choice(len(sample), wanted, replace=False)))
        for _ in range(ROUNDS):
            centroids = _majorities(sample, centroids)
        near = nearest(codes, centroids, 1)
        home, distance = near.rows[:, 0], near.distances[:, 0].astype(np.int64)
        order = np.lexsort((distance, home))
        sizes = np.zeros((wanted, codes.bits + 1), np.int64)
        np.add.at(sizes, (home, distance), 1)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        rings = np.empty((wanted, codes.bits + 2), np.int64)
        rings[:, :-1], rings[:, -1] = starts[:-1].reshape(sizes.shape), starts[1:].reshape(sizes.shape)[:, -1]
        ordered = codes.take(order)
        visited = _visited(ordered, centroids, rings, rng)
        return cls(ordered, order, centroids, rings, visited)

    def nearest(
        self,
        queries: Codes,
        k: int,
        *,
        allowed: Allowed = None,
        max_distance: int | None = None,
        threads: int | None = None,
    ) -> tuple[Neighbours, NDArray[np.int64]]:
        """The k nearest of each query at the full length, as `codes.distance.nearest`.

        Returns:
            The neighbours, by original rows, and the queries that were given up because a scan is faster for them.
        """
        bits = self.codes.bits
        found = room_for(len(queries), k, self.codes, allowed, np.uint16)
        given_up = np.zeros(len(queries), np.uint8)
        limit = bits if max_distance is None else min(bits, max_distance)
        if found.rows.size:
            run(
                list_kernels.nearest_in_lists, len(queries), threads, *self._sides(queries), as_mask(allowed), limit,
                WORTHWHILE, found.rows, found.distances, found.counts, given_up,
            )  # fmt: skip
        return found, np.flatnonzero(given_up)

    def _sides(self, queries: Codes) -> tuple[Any, ...]:
        rows, planes, mask = prefix_sides(queries, self.codes, self.codes.bits)
        return rows, planes, mask, self.order, self.centroids.words, self.rings, self.reach

    @cached_property
    def reach(self) -> NDArray[np.int64]:
        """(L,) distance of the farthest member of each list, -1 where it is empty."""
        filled = np.diff(self.rings, axis=1) > 0  # (L, bits + 1)
        return np.where(filled.any(axis=1), filled.shape[1] - 1 - filled[:, ::-1].argmax(axis=1), -1)


def _majorities(codes: Codes, centroids: Codes) -> Codes:
    """One round of k-majority; an empty list keeps its centroid, an even vote is a one."""
    home = nearest(codes, centroids, 1).rows[:, 0]
    order = np.argsort(home, kind="stable")
    filled, starts, sizes = np.unique(home[order], return_index=True, return_counts=True)
    ones = np.add.reduceat(codes.take(order).to_bits().astype(np.int64), starts, axis=0)
    bits = centroids.to_bits()
    bits[filled] = 2 * ones >= sizes[:, None]
    return Codes.from_bits(bits)


def _visited(ordered: Codes, centroids: Codes, rings: NDArray[np.int64], rng: np.random.Generator) -> float:
    """Share of the codes that queries like the codes themselves, a few bits off, would look at for ten answers."""
    rows = rng.choice(len(ordered), min(SAMPLE, len(ordered)), replace=False)
    bits = ordered.take(rows).to_bits()
    queries = Codes.from_bits(bits ^ (rng.random(bits.shape) < 0.05))
    tenth = nearest(queries, ordered, 10).distances[:, -1].astype(np.int64)
    away = nearest(queries, centroids, len(centroids))  # all centroid distances
    looked = 0
    for q in range(len(queries)):
        lists, distance = away.rows[q], away.distances[q].astype(np.int64)
        low = np.maximum(distance - tenth[q], 0)
        high = np.minimum(distance + tenth[q], ordered.bits)
        looked += int(np.maximum(rings[lists, high + 1] - rings[lists, np.minimum(low, ordered.bits)], 0).sum())
    return looked / (len(queries) * len(ordered))
