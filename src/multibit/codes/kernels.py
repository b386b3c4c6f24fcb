"""Compiled inner loops over packed codes: distances, the nearest rows, counts.

Every kernel takes a range of queries, as `codes.compiling` distributes them. Shapes: Q queries with A codes each, N
database rows with V codes each, W words of a prefix. A and V are 1 except for codes with several views, where the
distance of a query and a row is the smallest of their A x V pairs of codes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from multibit.codes.compiling import BATCH, compiled
from multibit.codes.selection import drop, finish, forget, make_room, no_candidates, take
from multibit.codes.vectors import ones

CHUNK = 1536  # database rows per step: eight planes of them and their distances stay in the first-level cache
CANDIDATES = 1 << 22  # maximum candidates of a batch: fewer queries share a pass when each needs many


class Scan(NamedTuple):
    """What a kernel compares: queries with a database, at one prefix length.

    Attributes:
        queries: (Q A, W) uint16. planes: (W, N V) uint16, `Codes.words` cut to the prefix.
        mask: uint16, the bits of the last word that belong to the prefix.
        allowed: (N,) uint8, 0 where a row must not be found; (0,) when every row may be.
        asked, views: A and V, the codes of one query and of one row.
    """

    queries: Any
    planes: Any
    mask: Any
    allowed: Any
    asked: int
    views: int


class Found(NamedTuple):
    """Where a kernel writes the k best rows of each query.

    Attributes:
        rows: (Q, k) int64. values: (Q, k), uint16 distances or float64 scores. counts: (Q,) int64, rows found.
    """

    rows: Any
    values: Any
    counts: Any


@compiled
def _differ(a: Any, b: Any) -> Any:
    """Number of different bits of two words."""
    return np.uint16(ones(np.uint16(a ^ b)))


@compiled
def _add_eight(planes: Any, queries: Any, q: Any, w: Any, start: Any, distances: Any, limit: Any) -> Any:
    q0, q1, q2, q3 = queries[q, w], queries[q, w + 1], queries[q, w + 2], queries[q, w + 3]
    q4, q5, q6, q7 = queries[q, w + 4], queries[q, w + 5], queries[q, w + 6], queries[q, w + 7]
    w0, first, below = np.uint64(w), np.uint64(start), np.uint16(0)
    w1, w2, w3, w4 = w0 + np.uint64(1), w0 + np.uint64(2), w0 + np.uint64(3), w0 + np.uint64(4)
    w5, w6, w7 = w0 + np.uint64(5), w0 + np.uint64(6), w0 + np.uint64(7)
    for i in range(np.uint64(len(distances))):
        j = first + i
        low = _differ(planes[w0, j], q0) + _differ(planes[w1, j], q1)
        low += _differ(planes[w2, j], q2) + _differ(planes[w3, j], q3)
        high = _differ(planes[w4, j], q4) + _differ(planes[w5, j], q5)
        high += _differ(planes[w6, j], q6) + _differ(planes[w7, j], q7)
        distance = np.uint16(low + high + (distances[i] if w else np.uint16(0)))
        distances[i] = distance
        below = np.uint16(below | np.uint16(distance - limit))
    return below


@compiled
def _add_four(planes: Any, queries: Any, q: Any, w: Any, start: Any, distances: Any, limit: Any) -> Any:
    q0, q1, q2, q3 = queries[q, w], queries[q, w + 1], queries[q, w + 2], queries[q, w + 3]
    w0, first, below = np.uint64(w), np.uint64(start), np.uint16(0)
    w1, w2, w3 = w0 + np.uint64(1), w0 + np.uint64(2), w0 + np.uint64(3)
    for i in range(np.uint64(len(distances))):
        j = first + i
        low = _differ(planes[w0, j], q0) + _differ(planes[w1, j], q1)
        high = _differ(planes[w2, j], q2) + _differ(planes[w3, j], q3)
        distance = np.uint16(low + high + (distances[i] if w else np.uint16(0)))
        distances[i] = distance
        below = np.uint16(below | np.uint16(distance - limit))
    return below


@compiled
def _add_one(planes: Any, queries: Any, q: Any, w: Any, start: Any, distances: Any, limit: Any, mask: Any) -> Any:
    word, w0, first, below = queries[q, w] & mask, np.uint64(w), np.uint64(start), np.uint16(0)
    for i in range(np.uint64(len(distances))):
        distance = np.uint16(_differ(planes[w0, first + i] & mask, word) + (distances[i] if w else np.uint16(0)))
        distances[i] = distance
        below = np.uint16(below | np.uint16(distance - limit))
    return below


@compiled
def fill_distances(planes: Any, queries: Any, q: int, mask: Any, start: int, distances: Any, limit: int) -> bool:
    """Hamming distances of query q to the rows from `start` on, into `distances`; whether one is below `limit`.

    Several words at a time stay in registers; one at a time, the sums are stored and read again for each. "Below" is
    the borrow of a subtraction, collected without a branch. Unsigned indices avoid the check for negative ones.
    """
    count, below, w = len(planes), np.uint16(0), 0
    whole = count if mask == 0xFFFF else count - 1  # words that need no mask
    while whole - w >= 8:
        below = _add_eight(planes, queries, q, w, start, distances, np.uint16(limit))
        w += 8
    while whole - w >= 4:
        below = _add_four(planes, queries, q, w, start, distances, np.uint16(limit))
        w += 4
    while w < count:
        last = mask if w == count - 1 else np.uint16(0xFFFF)
        below = _add_one(planes, queries, q, w, start, distances, np.uint16(limit), last)
        w += 1
    return bool(below & 0x8000)


@compiled
def fill_least(scan: Any, q: int, start: int, distances: Any, limit: int) -> bool:
    """As `fill_distances`, for codes with several views: distances of query q to the rows, each of the nearest pair.

    The callers use `fill_distances` where both sides have one view: even a call in between costs `nearest` a fifth.
    """
    planes, queries, mask, asked, views = scan.planes, scan.queries, scan.mask, scan.asked, scan.views
    step = max(CHUNK // views, 1)  # rows whose codes stay in the first-level cache
    least, other = np.empty(step * views, np.uint16), np.empty(step * views, np.uint16)
    for begin in range(0, len(distances), step):
        near = distances[begin : begin + step]
        first, codes = (start + begin) * views, len(near) * views
        fill_distances(planes, queries, q * asked, mask, first, least[:codes], 0)
        for a in range(1, asked):
            fill_distances(planes, queries, q * asked + a, mask, first, other[:codes], 0)
            for i in range(codes):
                least[i] = min(least[i], other[i])
        for i in range(len(near)):
            smallest = least[i * views]
            for v in range(1, views):
                smallest = min(smallest, least[i * views + v])
            near[i] = smallest
    return _any_below(distances, np.uint16(limit))  # type: ignore[no-any-return]


@compiled
def all_distances_of(scan: Any, q: int, distances: Any) -> None:
    """Distances of one query to every row, chunk by chunk."""
    if scan.asked * scan.views > 1:
        fill_least(scan, q, 0, distances, 0)
        return
    for start in range(0, len(distances), CHUNK):
        fill_distances(scan.planes, scan.queries, q, scan.mask, start, distances[start : start + CHUNK], 0)


@compiled
def all_distances(first: int, last: int, scan: Any, out: Any) -> None:
    """Distances of queries first..last to every row, into out (Q, N) uint16."""
    for q in range(first, last):
        all_distances_of(scan, q, out[q])


@compiled
def bare_distances(first: int, last: int, scan: Any) -> int:
    """Distances of queries first..last to every row, chunk by chunk, not kept: the upper bound in the benchmark."""
    planes, queries, mask = scan.planes, scan.queries, scan.mask
    chunk, seen = np.empty(CHUNK, np.uint16), 0
    for start in range(0, planes.shape[1], CHUNK):
        part = chunk[: min(CHUNK, planes.shape[1] - start)]
        for q in range(first, last):
            seen += fill_distances(planes, queries, q, mask, start, part, 1)
    return seen


@compiled
def _any_below(distances: Any, limit: Any) -> bool:
    """Whether one is below the limit."""
    below = np.uint16(0)
    for i in range(len(distances)):
        below = np.uint16(below | np.uint16(distances[i] - limit))
    return bool(below & 0x8000)


@compiled
def nearest(first: int, last: int, scan: Any, limit: int, found: Any) -> None:
    """The k nearest rows of queries first..last by (distance, row), in one pass over the database for a batch of them.

    Args:
        limit: rows at this distance or further must not be found.
    """
    planes, queries, mask, allowed = scan.planes, scan.queries, scan.mask, scan.allowed
    single, count_rows, k = scan.asked * scan.views == 1, planes.shape[1] // scan.views, found.rows.shape[1]
    batch = max(1, min(BATCH, CANDIDATES // max(2 * k, k + 4 * CHUNK), last - first))
    kept, chunk = no_candidates(batch, k, limit, CHUNK), np.empty(CHUNK, np.uint16)
    counts, capacity = kept.counts, kept.rows.shape[1]
    for begin in range(first, last, batch):
        many = min(batch, last - begin)
        forget(kept, limit)
        for start in range(0, count_rows, CHUNK):
            part = chunk[: min(CHUNK, count_rows - start)]
            for b in range(many):
                near_enough = (
                    fill_distances(planes, queries, begin + b, mask, start, part, kept.cuts[b])
                    if single
                    else fill_least(scan, begin + b, start, part, kept.cuts[b])
                )
                if near_enough:
                    if len(allowed):
                        drop(chunk, len(part), allowed[start : start + len(part)], np.uint16(limit))
                    if counts[b] + len(part) > capacity:
                        make_room(kept, b, k)
                    take(chunk, len(part), start, k, kept, b)
        for b in range(many):
            finish(kept, b, k, limit, found, begin + b)


@compiled
def count_distances(first: int, last: int, scan: Any, out: Any) -> None:
    """Count the rows at each distance from queries first..last, into out (Q, bits + 1) int64."""
    planes, queries, mask, allowed = scan.planes, scan.queries, scan.mask, scan.allowed
    single, count_rows = scan.asked * scan.views == 1, planes.shape[1] // scan.views
    chunk = np.empty(CHUNK, np.uint16)
    for q in range(first, last):
        for start in range(0, count_rows, CHUNK):
            part = chunk[: min(CHUNK, count_rows - start)]
            if single:
                fill_distances(planes, queries, q, mask, start, part, 0)
            else:
                fill_least(scan, q, start, part, 0)
            for i in range(len(part)):
                if not len(allowed) or allowed[start + i]:
                    out[q, part[i]] += 1


@compiled
def place_within(first: int, last: int, scan: Any, limit: int, place: Any, rows: Any, distances: Any) -> None:
    """Write the rows nearer than `limit` of queries first..last to rows and distances, ordered by (distance, row).

    Args:
        place: (Q, limit) int64, the next position in rows and distances for each distance; advanced in place.
    """
    planes, queries, mask, allowed = scan.planes, scan.queries, scan.mask, scan.allowed
    single, count_rows = scan.asked * scan.views == 1, planes.shape[1] // scan.views
    chunk = np.empty(CHUNK, np.uint16)
    for q in range(first, last):
        for start in range(0, count_rows, CHUNK):
            part = chunk[: min(CHUNK, count_rows - start)]
            near_enough = (
                fill_distances(planes, queries, q, mask, start, part, limit)
                if single
                else fill_least(scan, q, start, part, limit)
            )
            if not near_enough:
                continue
            for i in range(len(part)):
                if part[i] < limit and (not len(allowed) or allowed[start + i]):
                    at = place[q, part[i]]
                    place[q, part[i]] += 1
                    rows[at], distances[at] = start + i, part[i]
