"""Compiled selection of the nearest rows from distances that come in row order; see `codes.kernels` for the shapes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from multibit.codes.compiling import compiled
from multibit.codes.vectors import GROUP, SEVERAL, any_below, below, lowest


class Candidates(NamedTuple):
    """Candidates of a batch of queries, in row order, and the cut of each.

    The cut is the smallest distance within which a query has k candidates already. A later row enters only below the
    cut, since at the cut it would lose the tie.

    Attributes:
        rows: (batch, capacity) int64. distances: (batch, capacity) uint16.
        histogram: (batch, limit + 1) int64, candidates at each distance.
        counts: (batch,) int64, candidates. inside: (batch,) int64, those at less than the cut. cuts: (batch,) int64.
    """

    rows: Any
    distances: Any
    histogram: Any
    counts: Any
    inside: Any
    cuts: Any


@compiled
def no_candidates(batch: int, k: int, limit: int, step: int) -> Any:
    """Room for the candidates of a batch of queries to which at most `step` rows are added at a time."""
    capacity = max(2 * k, k + 4 * step)
    return Candidates(
        np.empty((batch, capacity), np.int64),
        np.empty((batch, capacity), np.uint16),
        np.zeros((batch, limit + 1), np.int64),
        np.zeros(batch, np.int64),
        np.zeros(batch, np.int64),
        np.full(batch, limit, np.int64),
    )


@compiled
def forget(kept: Any, limit: int) -> None:
    """Start again with no candidates."""
    kept.histogram[:], kept.counts[:], kept.inside[:], kept.cuts[:] = 0, 0, 0, limit


@compiled
def make_room(kept: Any, b: int, k: int) -> None:
    """Drop the candidates of query b that have become too far; needed before `take`, where more would not fit.

    Neither `take` nor a function around both does this: counting references to the arrays would cost more than either.
    """
    rows, near, histogram, at_cut = kept.rows[b], kept.distances[b], kept.histogram[b], k - kept.inside[b]
    kept.counts[b] = _keep_best(rows, near, kept.counts[b], kept.cuts[b], at_cut, histogram)


@compiled
def take(distances: Any, size: int, start: int, k: int, kept: Any, b: int) -> None:
    """Add the rows below the cut to the candidates of query b, and lower the cut where k are within it already.

    Args:
        distances: of the rows from `start` on; the length is a multiple of `SEVERAL`. size: how many of them are rows.
    """
    rows, near, histogram = kept.rows, kept.distances, kept.histogram  # indexed by b: views of a row cost more
    count, inside, cut = kept.counts[b], kept.inside[b], kept.cuts[b]
    for several in range(0, size, SEVERAL):
        if not any_below(distances, several, cut):
            continue
        for group in range(several, min(several + SEVERAL, size), GROUP):
            found = below(distances, group, cut)
            if size - group < GROUP:
                found &= (np.uint64(1) << np.uint64(size - group)) - np.uint64(1)
            while found:
                i = group + np.int64(lowest(found))
                found &= found - np.uint64(1)
                distance = distances[i]
                if distance < cut:
                    rows[b, count], near[b, count] = start + i, distance
                    count += 1
                    histogram[b, distance] += 1
                    inside += 1
                    while inside >= k:
                        cut -= 1
                        inside -= histogram[b, cut]
    kept.counts[b], kept.inside[b], kept.cuts[b] = count, inside, cut


@compiled
def finish(kept: Any, b: int, k: int, limit: int, found: Any, q: int) -> None:
    """Write the k best candidates of query b of the batch as the result of query q, ordered by (distance, row)."""
    rows, near, cut = kept.rows[b], kept.distances[b], kept.cuts[b]
    count = _keep_best(rows, near, kept.counts[b], cut, k - kept.inside[b], kept.histogram[b])
    found.counts[q] = count
    _sort_by_distance(rows[:count], near[:count], limit, found.rows[q], found.values[q])


@compiled
def drop(distances: Any, size: int, allowed: Any, limit: int) -> None:
    """Put the rows that are not allowed out of reach."""
    for i in range(size):
        distances[i] = distances[i] if allowed[i] else limit


@compiled
def _keep_best(rows: Any, distances: Any, count: int, cut: int, at_cut: int, histogram: Any) -> int:
    """Keep the candidates below the cut and the first `at_cut` at it, in place and in row order; returns how many."""
    kept = 0
    left = at_cut
    for i in range(count):
        if distances[i] < cut or (distances[i] == cut and left > 0):
            left -= distances[i] == cut
            rows[kept], distances[kept] = rows[i], distances[i]
            kept += 1
    histogram[cut] = at_cut - left
    return kept


@compiled
def _sort_by_distance(rows: Any, distances: Any, limit: int, out_rows: Any, out_distances: Any) -> None:
    """Counting sort of distances below the limit, stable: equal distances stay in row order."""
    place = np.zeros(limit + 1, np.int64)
    for distance in distances:
        place[distance + 1] += 1
    for distance in range(1, len(place)):
        place[distance] += place[distance - 1]
    for i in range(len(rows)):
        at = place[distances[i]]
        place[distances[i]] += 1
        out_rows[at], out_distances[at] = rows[i], distances[i]
