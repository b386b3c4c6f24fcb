"""The compiled inner loops of the pruned lists; see `codes.lists` for the idea and `codes.kernels` for the shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from multibit.codes.kernels import CHUNK, compiled, fill_distances

FIRST_LISTS = 4  # looked at before the bounds decide whether a scan is faster
SHIFT = 40  # a candidate is one number, distance * 2^40 + row, so that sorting numbers sorts by (distance, row)


@compiled
def nearest_in_lists(
    first: int, last: int, queries: Any, planes: Any, mask: Any, order: Any, centroids: Any, rings: Any, reach: Any,
    allowed: Any, limit: int, worthwhile: float, out_rows: Any, out_distances: Any, out_count: Any, out_given_up: Any,
) -> None:  # fmt: skip
    """The k nearest rows of queries first..last by (distance, row), looking only where the triangle inequality allows.

    Args:
        planes: (W, N), members list by list, by distance from their centroid. order: (N,) their rows.
        centroids: (W, L). rings: (L, bits + 2), where each distance begins. reach: (L,), the farthest member.
        limit: largest distance to be found.
        worthwhile: share of the codes above which the query is given up: out_given_up (Q,) becomes 1.
    """
    k, lists, total = out_rows.shape[1], centroids.shape[1], planes.shape[1]
    away, by_distance = np.empty(lists, np.uint16), np.empty(lists, np.int64)
    candidates, histogram = np.empty(2 * k + 2 * CHUNK, np.int64), np.empty(rings.shape[1], np.int64)
    for q in range(first, last):
        for start in range(0, lists, CHUNK):
            fill_distances(centroids, queries, q, mask, start, away[start : start + CHUNK], 0)
        _sort_lists(away, rings.shape[1], by_distance)
        histogram[:] = 0
        count, inside, cut = 0, 0, limit  # candidates, those within the cut, largest distance that may still enter
        for visit in range(lists):
            if visit == FIRST_LISTS and _remaining(away, rings, reach, cut) > worthwhile * total:
                out_given_up[q] = 1
                break
            at = by_distance[visit]
            begin, end = _span(rings, reach, at, np.int64(away[at]), cut)
            if begin < end:
                count, inside, cut = _look(
                    begin, end, k, queries, q, planes, mask, order, allowed, candidates, count, inside, cut, histogram
                )
        candidates[:count].sort()
        out_count[q] = min(count, k)
        for i in range(out_count[q]):
            out_rows[q, i] = candidates[i] & ((1 << SHIFT) - 1)
            out_distances[q, i] = candidates[i] >> SHIFT


@compiled
def _look(
    begin: int, end: int, k: int, queries: Any, q: int, planes: Any, mask: Any, order: Any, allowed: Any,
    candidates: Any, count: int, inside: int, cut: int, histogram: Any,
) -> tuple[int, int, int]:  # fmt: skip
    """Take the members begin..end within the cut, and lower the cut while k stay within it.

    Rows do not come in order here, so unlike in a scan a row at the cut may still win its tie and enters.
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
    if distance - cut > reach[at]:  # most lists: known without a look at the rings
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
