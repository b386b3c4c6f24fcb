"""The compiled inner loops over packed codes (numba). They see plain arrays and release the GIL.

Every kernel takes a range of queries, so that `over_queries` can share them among threads; a query is never split,
hence the result is the same for any number of threads. Shapes: Q queries, N database rows, K 64-bit words of a code,
V 64-bit words of a label set; `queries`, `database` and `masks` are the four planes of `Codes.words`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import njit
from numba.extending import intrinsic

CHUNK = 4096  # database rows per step: their distances stay in the first-level cache
GROUP = 64  # rows whose smallest distance is looked at first


def over_queries(work: Callable[[int, int], None], count: int, threads: int | None = None) -> None:
    """Call `work(first, last)` on ranges that cover 0..count, on several threads (all processors when None)."""
    workers = min(threads or len(os.sched_getaffinity(0)), count)
    if workers <= 1:
        work(0, count)
        return
    parts = min(count, workers * 4)  # small parts even out a busy processor
    edges = [count * part // parts for part in range(parts + 1)]
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work, first, last) for first, last in itertools.pairwise(edges)]:
            done.result()


@intrinsic
def _popcount(_context: Any, word: Any) -> Any:
    """Number of ones in an unsigned word, as one machine instruction where there is one."""

    def emit(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return word(word), emit


@njit(nogil=True, cache=True)
def _add_distances(plane: Any, word: Any, mask: Any, distances: Any) -> None:
    """distances[i] += ones of (plane[i] xor word) inside the mask."""
    for i in range(len(distances)):
        difference = plane.dtype.type((plane[i] ^ word) & mask)
        distances[i] += np.uint16(_popcount(difference))  # type: ignore[call-arg]  # numba passes the context


@njit(nogil=True, cache=True)
def _fill_distances(queries: Any, q: int, database: Any, masks: Any, start: int, distances: Any) -> None:
    """Hamming distances of query q to database rows from `start` on, at the prefix that the masks select."""
    stop = start + len(distances)
    distances[:] = 0
    if masks[0][0]:
        _add_distances(database[0][start:stop], queries[0][q], masks[0][0], distances)
    if masks[1][0]:
        _add_distances(database[1][start:stop], queries[1][q], masks[1][0], distances)
    if masks[2][0]:
        _add_distances(database[2][start:stop], queries[2][q], masks[2][0], distances)
    for k in range(len(masks[3])):
        _add_distances(database[3][k, start:stop], queries[3][k, q], masks[3][k], distances)


@njit(nogil=True, cache=True)
def all_distances(first: int, last: int, queries: Any, database: Any, masks: Any, out: Any) -> None:
    """Distances of queries first..last to every row, into out (Q, N) uint16."""
    for q in range(first, last):
        _fill_distances(queries, q, database, masks, 0, out[q])


@njit(nogil=True, cache=True)
def _keep_best(rows: Any, distances: Any, count: int, k: int, histogram: Any) -> tuple[int, int]:
    """Keep the k best of `count` candidates, in place and in row order, by (distance, row).

    Returns:
        How many are kept, and the distance that a later row must stay under to enter.
    """
    histogram[:] = 0
    for i in range(count):
        histogram[distances[i]] += 1
    cut, below = 0, 0  # the cut distance, and how many lie below it
    while below + histogram[cut] < k:
        below += histogram[cut]
        cut += 1
    at_cut, kept = k - below, 0
    for i in range(count):
        if distances[i] < cut or (distances[i] == cut and at_cut > 0):
            at_cut -= distances[i] == cut
            rows[kept], distances[kept] = rows[i], distances[i]
            kept += 1
    return kept, cut


@njit(nogil=True, cache=True)
def nearest(
    first: int, last: int, queries: Any, database: Any, masks: Any, bits: int, out_rows: Any, out_distances: Any
) -> None:
    """The k nearest rows of queries first..last by (distance, row), into out_rows (Q, k) and out_distances (Q, k)."""
    count_rows, k = len(database[0]), out_rows.shape[1]
    capacity = max(2 * k, k + CHUNK)
    rows, distances = np.empty(capacity + CHUNK, np.int64), np.empty(capacity + CHUNK, np.uint16)
    chunk, histogram = np.empty(CHUNK, np.uint16), np.empty(bits + 2, np.int64)
    for q in range(first, last):
        count, threshold = 0, bits + 1
        for start in range(0, count_rows, CHUNK):
            size = min(CHUNK, count_rows - start)
            _fill_distances(queries, q, database, masks, start, chunk[:size])
            for group in range(0, size, GROUP):
                if chunk[group : min(group + GROUP, size)].min() >= threshold:
                    continue
                for i in range(group, min(group + GROUP, size)):
                    if chunk[i] < threshold:
                        rows[count], distances[count] = start + i, chunk[i]
                        count += 1
            if count > capacity or (threshold > bits and count > k):
                count, threshold = _keep_best(rows, distances, count, k, histogram)
        if count > k:
            count, threshold = _keep_best(rows, distances, count, k, histogram)
        _sort_by_distance(rows[:count], distances[:count], histogram, out_rows[q], out_distances[q])


@njit(nogil=True, cache=True)
def _sort_by_distance(rows: Any, distances: Any, histogram: Any, out_rows: Any, out_distances: Any) -> None:
    """Counting sort, stable: equal distances stay in row order."""
    histogram[:] = 0
    for distance in distances:
        histogram[distance + 1] += 1
    for distance in range(1, len(histogram)):
        histogram[distance] += histogram[distance - 1]
    for i in range(len(rows)):
        place = histogram[distances[i]]
        histogram[distances[i]] += 1
        out_rows[place], out_distances[place] = rows[i], distances[i]


@njit(nogil=True, cache=True)
def _mark_relevant(query_labels: Any, q: int, labels: Any, relevant: Any) -> None:
    """relevant[i] = 1 where row i shares a label with query q."""
    relevant[:] = 0
    for v in range(len(labels)):
        word = query_labels[v, q]
        if word:
            for i in range(len(relevant)):
                relevant[i] |= np.uint8((labels[v, i] & word) != 0)


@njit(nogil=True, cache=True)
def ranking_counts(
    first: int, last: int, queries: Any, database: Any, masks: Any, query_labels: Any, labels: Any,
    at: int, precision_sum: Any, hits: Any, total: Any, relevant_total: Any,
) -> None:  # fmt: skip
    """What the ranking metrics need of each query's full ranking by (distance, row), without sorting it.

    A row's rank is one plus the rows of smaller distance plus the earlier rows of the same distance, so one pass for
    the histograms and one in row order give every rank.

    Args:
        at: ranks past this one are not counted in the first two results.
        precision_sum: out (Q,) float64, sum of precision@rank over the relevant rows ranked at most `at`.
        hits: out (Q,) int64, relevant rows ranked at most `at`.
        total: out (Q, bits + 1) int64, rows at each distance. relevant_total: out, relevant rows at each distance.
    """
    count_rows, distances_count = len(database[0]), total.shape[1]
    distances, relevant = np.empty(count_rows, np.uint16), np.empty(count_rows, np.uint8)
    rank, found = np.empty(distances_count, np.int64), np.empty(distances_count, np.int64)
    for q in range(first, last):
        _fill_distances(queries, q, database, masks, 0, distances)
        _mark_relevant(query_labels, q, labels, relevant)
        for i in range(count_rows):
            total[q, distances[i]] += 1
            relevant_total[q, distances[i]] += relevant[i]
        rank[0], found[0] = 0, 0  # rows, and relevant rows, ranked before the next row of this distance
        for distance in range(1, distances_count):
            rank[distance] = rank[distance - 1] + total[q, distance - 1]
            found[distance] = found[distance - 1] + relevant_total[q, distance - 1]
        precision, hit = 0.0, 0
        for i in range(count_rows):
            distance = distances[i]
            rank[distance] += 1
            if relevant[i]:
                found[distance] += 1
                if rank[distance] <= at:
                    precision += found[distance] / rank[distance]
                    hit += 1
        precision_sum[q], hits[q] = precision, hit
