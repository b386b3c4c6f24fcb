"""Exact search through pruned lists: codes grouped around centroids, groups skipped by the triangle inequality.

For a query q, a centroid c and a code x, |d(q, c) - d(x, c)| <= d(q, x). The members of a list are kept in order of
d(x, c), so once k answers within distance T are known, only members between d(q, c) - T and d(q, c) + T are compared.
Where codes are not clustered, nothing can be skipped and the plain scan is faster: `PrunedLists.build` measures this on
a sample, and a query whose bounds do not help is given back to the scan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.codes import list_kernels
from multibit.codes.distance import Allowed, Neighbours, nearest, run, scan_of
from multibit.codes.kernels import Found
from multibit.codes.list_kernels import Lists
from multibit.codes.packing import Codes
from multibit.errors import DataError
from multibit.files import Arrays

SMALLEST = 20_000  # fewer codes are scanned faster than any lists are searched
WORTHWHILE = 0.04  # share of codes visited, above which a plain scan is faster: 3.2 % take 0.9 x its time, 4.8 % 1.2 x
SAMPLE = 64  # queries that measure how much pruning helps
ROUNDS = 4  # of k-majority


@dataclass(frozen=True, eq=False)
class PrunedLists:
    """Codes in lists around L centroids.

    Attributes:
        codes: N codes, list by list. order: (N,) int64, the original row of each.
        centroids: L codes.
        rings: (L, bits + 2) int64, where the members at each distance from the centroid begin in `codes`.
        visited: share of the codes that were compared with sample queries. made: number of lists when it was measured.
    """

    codes: Codes
    order: NDArray[np.int64]
    centroids: Codes
    rings: NDArray[np.int64]
    visited: float
    made: int

    @property
    def worthwhile(self) -> bool:
        """Whether pruning is faster than a scan, by the sample."""
        return self.visited <= WORTHWHILE

    @property
    def reason(self) -> str:
        """Human-readable reason why the lists or the scan are used."""
        if len(self.codes) < SMALLEST:
            return f"plain scan: {len(self.codes):,} codes are too few for lists"
        visited = f"sample queries visited {100 * self.visited:.1f} % of the codes in {self.made:,} lists"
        return f"{'pruned lists' if self.worthwhile else 'plain scan'}: {visited}"

    @classmethod
    def build(cls, codes: Codes, lists: int | None = None, seed: int = 0) -> PrunedLists:
        """Group codes by k-majority: each centroid bit is the majority of its members' bits.

        Args:
            codes: N codes. lists: number of lists; about sqrt(N) when None. seed: of the first centroids.
        """
        count = len(codes)
        if count < SMALLEST and lists is None:
            return cls._scanned(codes)
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
        return cls(ordered, order, centroids, rings, visited, wanted)

    def to_arrays(self) -> tuple[Arrays, dict[str, Any]]:
        """Arrays and header for a file; no arrays where the scan is used."""
        header = {"visited": self.visited, "lists": self.made}
        if not self.worthwhile:
            return {}, header
        arrays: Arrays = {
            "words": self.codes.words, "order": self.order, "centroids": self.centroids.words, "rings": self.rings,
        }  # fmt: skip
        return arrays, header

    @classmethod
    def from_arrays(cls, codes: Codes, arrays: Arrays, header: Mapping[str, Any]) -> PrunedLists:
        """Inverse of `to_arrays`; the arrays are used as they are, such as mapped.

        Args:
            codes: that the lists were built of.

        Raises:
            DataError: arrays of other shapes or types, or of other codes.
        """
        if not arrays:
            return cls._scanned(codes, header["visited"], header["lists"])
        words, order, centroids, rings = (arrays[name] for name in ("words", "order", "centroids", "rings"))
        wanted = {
            "words": (words, codes.words.shape, np.uint16),
            "order": (order, (len(codes),), np.int64),
            "centroids": (centroids, (len(codes.words), len(rings)), np.uint16),
            "rings": (rings, (len(rings), codes.bits + 2), np.int64),
        }
        for name, (array, shape, dtype) in wanted.items():
            if array.shape != shape or array.dtype != dtype:
                raise DataError(f"need {np.dtype(dtype)} {shape}, got {array.dtype} {array.shape}.", field=name)
        if rings.min(initial=0) < 0 or rings.max(initial=0) > len(codes):
            raise DataError(f"a list begins outside of the {len(codes):,} codes.", field="rings")
        ordered, middle = Codes(words, codes.bits), Codes(centroids, codes.bits)
        return cls(ordered, order, middle, rings, float(header["visited"]), int(header["lists"]))

    @classmethod
    def _scanned(cls, codes: Codes, visited: float = 1.0, made: int = 0) -> PrunedLists:
        """No lists: codes that are scanned."""
        return cls(codes, np.zeros(0, np.int64), codes.take([]), np.zeros((0, codes.bits + 2), np.int64), visited, made)

    def nearest(
        self,
        queries: Codes,
        k: int,
        *,
        allowed: Allowed = None,
        max_distance: int | None = None,
        threads: int | None = None,
    ) -> tuple[Neighbours, NDArray[np.int64]]:
        """The k nearest of each query at the full length, as `codes.distance.nearest`; the arguments must be valid.

        Returns:
            The neighbours, by original rows, and the queries that were given up because a scan is faster for them.
        """
        bits = self.codes.bits
        self._require_rows()
        found = Neighbours.allocate(len(queries), k, self.codes, allowed)
        given_up = np.zeros(len(queries), np.uint8)
        limit = bits if max_distance is None else min(bits, max_distance)
        if found.rows.size:
            scan, out = scan_of(queries, self.codes, bits, allowed), Found(found.rows, found.distances, found.counts)
            lists = Lists(self.order, self.centroids.words, self.rings, self.reach)
            run(list_kernels.nearest_in_lists, len(queries), threads, scan, lists, limit, WORTHWHILE, out, given_up)
        return found, np.flatnonzero(given_up)

    def require_of(self, codes: Codes) -> None:
        """Refuse lists that do not have every one of these codes once, with the members of each list in order.

        Raises:
            DataError: they are of other codes.
        """
        if not len(self.order):
            return
        self._require_rows()
        starts = self.rings.ravel()
        whole = np.array_equal(np.sort(self.order), np.arange(len(codes)))
        same = whole and np.array_equal(self.codes.words, codes.words[..., self.order])
        if not same or (np.diff(starts) < 0).any():
            raise DataError("the lists are not those of the codes.", field="order")

    def _require_rows(self) -> None:
        """Refuse rows outside of the codes, which may come from a file: the kernels follow them unchecked.

        Raises:
            DataError: there is one.
        """
        if self._rows and not 0 <= self._rows[0] <= self._rows[1] < len(self.codes):
            raise DataError(f"a row outside of the {len(self.codes):,} codes.", field="order")

    @cached_property
    def _rows(self) -> tuple[int, int] | None:
        """The first and the last row in the lists."""
        return (int(self.order.min()), int(self.order.max())) if len(self.order) else None

    @cached_property
    def reach(self) -> NDArray[np.int64]:
        """(L,) distance of the farthest member of each list, -1 where it is empty."""
        filled = np.diff(self.rings, axis=1) > 0  # (L, bits + 1)
        return np.where(filled.any(axis=1), filled.shape[1] - 1 - filled[:, ::-1].argmax(axis=1), -1)


def _majorities(codes: Codes, centroids: Codes) -> Codes:
    """One round of k-majority; an empty list keeps its centroid, a tied vote gives a one."""
    home = nearest(codes, centroids, 1).rows[:, 0]
    order = np.argsort(home, kind="stable")
    filled, starts, sizes = np.unique(home[order], return_index=True, return_counts=True)
    ones = np.add.reduceat(codes.take(order).to_bits().astype(np.int64), starts, axis=0)
    bits = centroids.to_bits()
    bits[filled] = 2 * ones >= sizes[:, None]
    return Codes.from_bits(bits)


def _visited(ordered: Codes, centroids: Codes, rings: NDArray[np.int64], rng: np.random.Generator) -> float:
    """Share of the codes that a search for ten neighbours visits; the queries are codes with 5 % of bits flipped."""
    rows = rng.choice(len(ordered), min(SAMPLE, len(ordered)), replace=False)
    bits = ordered.take(rows).to_bits()
    queries = Codes.from_bits(bits ^ (rng.random(bits.shape) < 0.05))
    tenth = nearest(queries, ordered, 10).distances[:, -1].astype(np.int64)
    away = nearest(queries, centroids, len(centroids))  # all centroid distances
    visited = 0
    for q in range(len(queries)):
        lists, distance = away.rows[q], away.distances[q].astype(np.int64)
        low = np.maximum(distance - tenth[q], 0)
        high = np.minimum(distance + tenth[q], ordered.bits)
        visited += int(np.maximum(rings[lists, high + 1] - rings[lists, np.minimum(low, ordered.bits)], 0).sum())
    return visited / (len(queries) * len(ordered))
