"""The compiled inner loops of the ranking metrics; see `codes.kernels` for the shapes.

V is the number of 64-bit words of a label set.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from multibit.codes.compiling import compiled
from multibit.codes.kernels import all_distances_of


class RankCounts(NamedTuple):
    """Where `ranking_counts` writes, per query.

    Attributes:
        precision_sum: (A, Q) float64, sum of precision@rank over the relevant rows ranked at most each cutoff.
        hits: (A, Q) int64, relevant rows ranked at most each cutoff.
        total, relevant: (Q, bits + 1) int64, rows and relevant rows at each distance.
    """

    precision_sum: Any
    hits: Any
    total: Any
    relevant: Any


@compiled
def _mark_relevant(query_labels: Any, q: int, labels: Any, relevant: Any) -> None:
    """relevant[i] = 1 where row i shares a label with query q."""
    relevant[:] = 0
    for v in range(len(labels)):
        word = query_labels[v, q]
        if word:
            for i in range(len(relevant)):
                relevant[i] |= np.uint8((labels[v, i] & word) != 0)


@compiled
def ranking_counts(first: int, last: int, scan: Any, query_labels: Any, labels: Any, cutoffs: Any, out: Any) -> None:
    """Counts that the ranking metrics need of each query's full ranking by (distance, row), without sorting it.

    A row's rank is one plus the rows of smaller distance plus the earlier rows of the same distance, so one pass for
    the histograms and one in row order give every rank.

    Args:
        query_labels: (V, Q) uint64. labels: (V, N) uint64.
        cutoffs: (A,) int64, ranks past which rows do not count in `precision_sum` and `hits`.
    """
    count_rows, distances_count = scan.planes.shape[1] // scan.views, out.total.shape[1]
    distances, relevant = np.empty(count_rows, np.uint16), np.empty(count_rows, np.uint8)
    rank, found = np.empty(distances_count, np.int64), np.empty(distances_count, np.int64)
    for q in range(first, last):
        all_distances_of(scan, q, distances)
        _mark_relevant(query_labels, q, labels, relevant)
        total, relevant_total = out.total[q], out.relevant[q]
        for i in range(count_rows):
            total[distances[i]] += 1
            relevant_total[distances[i]] += relevant[i]
        rank[0], found[0] = 0, 0  # rows, and relevant rows, ranked before the next row of this distance
        for distance in range(1, distances_count):
            rank[distance] = rank[distance - 1] + total[distance - 1]
            found[distance] = found[distance - 1] + relevant_total[distance - 1]
        for i in range(count_rows):
            distance = distances[i]
            rank[distance] += 1
            if relevant[i]:
                found[distance] += 1
                for a in range(len(cutoffs)):
                    if rank[distance] <= cutoffs[a]:
                        out.precision_sum[a, q] += found[distance] / rank[distance]
                        out.hits[a, q] += 1


@compiled
def own_counts(
    first: int, last: int, scan: Any, rows: Any, starts: Any, stops: Any, before: Any, tied: Any, own: Any
) -> None:
    """Counts around the nearest of each query's own rows; nothing is written where it has none.

    Args:
        rows: (N,) int64, the rows of query q from starts[q] to stops[q] - 1. before, tied, own: (Q,) int64, rows nearer
            than the nearest own one, rows at its distance, and own ones among them.
    """
    distances = np.empty(scan.planes.shape[1] // scan.views, np.uint16)
    for q in range(first, last):
        if starts[q] == stops[q]:
            continue
        all_distances_of(scan, q, distances)
        best, count = np.uint16(0xFFFF), 0
        for place in range(starts[q], stops[q]):
            distance = distances[rows[place]]
            if distance < best:
                best, count = distance, 0
            if distance == best:
                count += 1
        nearer, equal = 0, 0
        for distance in distances:
            nearer += distance < best
            equal += distance == best
        before[q], tied[q], own[q] = nearer, equal, count
