"""Compiled inner loops of the pruned lists; see `codes.lists` for the idea and `codes.kernels` for the shapes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from multibit.codes.compiling import compiled
from multibit.codes.kernels import CHUNK, fill_distances

FIRST_LISTS = 4  # visited before the bounds decide whether a scan is faster
SHIFT = 40  # a candidate is one number, distance * 2^40 + row, so that sorting numbers sorts by (distance, row)


class Lists(NamedTuple):
    """The lists that a scan is cut into.

    Attributes:
        order: (N,) int64, original rows of the planes, list by list, by distance from the centroid.
        centroids: (W, L) uint16. rings: (L, bits + 2) int64, where the members at each distance begin.
        reach: (L,) int64, distance of the farthest member, -1 where a list is empty.
    """

    order: Any
    centroids: Any
    rings: Any
    reach: Any


@compiled
def nearest_in_lists(
    first: int, last: int, scan: Any, lists: Any, limit: int, worthwhile: float, found: Any, given_up: Any
) -> None:
    """The k nearest rows of queries first..last by (distance, row), only where the triangle inequality allows any.

    Args:
        scan: its planes in the order of `lists`, `allowed` by original row.
        limit: largest distance to be found.
        worthwhile: share of the codes above which a query is given up: given_up (Q,) becomes 1.
    """
    planes, queries, mask, allowed = scan.planes, scan.queries, scan.mask, scan.allowed
    order, centroids, rings, reach = lists.order, lists.centroids, lists.rings, lists.reach
    k, total, count_lists = found.rows.shape[1], planes.shape[1], centroids.shape[1]
    away, by_distance = np.empty(count_lists, np.uint16), np.empty(count_lists, np.int64)
    candidates, histogram = np.empty(2 * k + 2 * CHUNK, np.int64), np.empty(rings.shape[1], np.int64)
    for q in range(first, last):
        for start in range(0, count_lists, CHUNK):
            fill_distances(centroids, queries, q, mask, start, away[start : start + CHUNK], 0)
        _sort_lists(away, rings.shape[1], by_distance)
        histogram[:] = 0
        count, inside, cut = 0, 0, limit  # candidates, those within the cut, largest distance that may still enter
        for visit in range(count_lists):
            if visit == FIRST_LISTS and _remaining(away, rings, reach, cut) > worthwhile * total:
                given_up[q] = 1
                break
            at = by_distance[visit]
            begin, end = _span(rings, reach, at, np.int64(away[at]), cut)
            if begin < end:
                count, inside, cut = _visit(
                    begin, end, k, planes, queries, q, mask, order, allowed, candidates, histogram, count, inside, cut
                )
        candidates[:count].sort()
        found.counts[q] = min(count, k)
        for i in range(found.counts[q]):
            found.rows[q, i] = candidates[i] & ((1 << SHIFT) - 1)
            found.values[q, i] = candidates[i] >> SHIFT


@compiled
def _visit(
    begin: int, end: int, k: int, planes: Any, queries: Any, q: int, mask: Any, order: Any, allowed: Any,
    candidates: Any, histogram: Any, count: int, inside: int, cut: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Add the members begin..end within the cut to the candidates, and lower the cut while k stay within it.

    Rows do not come in order here, so unlike in a scan a row at the cut may still win its tie and enters. The arrays
    are separate arguments because this is called for every list: a tuple slows the search down by about 5 %.

    Returns:
        The new count, inside and cut.
    """
    part = np.empty(CHUNK, np.uint16)
    for start in range(begin, end, CHUNK):
        near = part[: min(CHUNK, end - start)]
        if not fill_distances(planes, queries, q, mask, start, near, cut + 1):
            continue
        if count + len(near) > len(candidates):
            candidates[:count].sort()
            count = min(count, k)
        for i in range(len(near)):
            row = order[start + i]
            if near[i] <= cut and (not len(allowed) or allowed[row]):
                candidates[count] = (np.int64(near[i]) << SHIFT) + row
                count += 1
                inside += 1
                histogram[near[i]] += 1
                while inside - histogram[cut] >= k:
                    inside -= histogram[cut]
                    cut -= 1
    return count, inside, cut


@compiled
def _span(rings: Any, reach: Any, at: int, distance: int, cut: int) -> tuple[int, int]:
    """Members of a list that may lie within the cut of a query at this distance from its centroid."""
    if distance - cut > reach[at]:  # most lists: decided without reading the rings
        return 0, 0
    farthest = rings.shape[1] - 2
    low, high = max(0, distance - cut), min(farthest, distance + cut)
    return rings[at, low], max(rings[at, low], rings[at, high + 1])


@compiled
def _remaining(away: Any, rings: Any, reach: Any, cut: int) -> int:
    """How many members of all lists may lie within the cut."""
    total = 0
    for at in range(len(away)):
        begin, end = _span(rings, reach, at, np.int64(away[at]), cut)
        total += end - begin
    return total


@compiled
def _sort_lists(away: Any, distances: int, by_distance: Any) -> None:
    """Counting sort of the lists, nearest centroid first."""
    place = np.zeros(distances + 1, np.int64)
    for distance in away:
        place[distance + 1] += 1
    for distance in range(1, len(place)):
        place[distance] += place[distance - 1]
    for at in range(len(away)):
        by_distance[place[away[at]]] = at
        place[away[at]] += 1
