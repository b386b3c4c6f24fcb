"""Relevance resolution: NDCG, Kendall's tau-b, collision and inversion rates against a graded relevance.

Each metric is defined for one query; the functions of many queries run the same definition compiled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import FloatArray, Rows
from multibit.codes.compiling import compiled
from multibit.codes.distance import run, scan_of
from multibit.codes.kernels import Scan, all_distances_of
from multibit.codes.packing import WORD
from multibit.errors import DataError
from multibit.evaluation.ranking import Ranking
from multibit.evaluation.relevance import GradedRelevance, LabelSetRelevance

SCALE = 1e10  # relevances are compared to ten digits: sums of equal label sets may differ in the last ones
LARGEST_TABLE = 1 << 22  # cells of a contingency table; larger problems are sorted by scipy
GAINS = 1 << 20  # relevances that are held at once to find the largest
BLOCK = 64  # queries whose relevance to the whole database, or label vectors of whose hits, are held at once


def ndcg(ranked: ArrayLike, ideal: ArrayLike) -> float:
    """Normalised discounted cumulative gain of one query, gain r and discount log2(rank + 1).

    Args:
        ranked: relevance of the first k ranks. ideal: the k largest relevances of the whole database.

    Returns:
        In [0, 1]; NaN when nothing is relevant.

    Example:
        >>> round(ndcg([2.0, 0.0, 1.0], [2.0, 1.0, 0.0]), 4)
        0.9502
    """
    best = _dcg(np.sort(np.asarray(ideal, np.float64))[::-1])
    return _dcg(np.asarray(ranked, np.float64)) / best if best > 0 else math.nan


def _dcg(gains: FloatArray) -> float:
    return float(gains @ (1 / np.log2(np.arange(2, len(gains) + 2))))


@dataclass(frozen=True)
class PairOrder:
    """Order of the pairs of a candidate pool.

    Attributes:
        tau: Kendall's tau-b between relevance and minus distance; 0 when everything is tied.
        collision: share of pairs of different relevance at equal distance. inversion: share in the wrong order; both
            NaN when no pair differs in relevance.
    """

    tau: float
    collision: float
    inversion: float


def pair_order(relevance: ArrayLike, distance: ArrayLike) -> PairOrder:
    """Tau-b, collision and inversion rate of one query's pool.

    Args:
        relevance, distance: (m,) of the same candidates.

    Example:
        >>> pair_order([2, 1, 0], [0, 3, 3])
        PairOrder(tau=0.8164965809277261, collision=0.3333333333333333, inversion=0.0)
    """
    r, d = np.asarray(relevance, np.float64), np.asarray(distance, np.float64)
    if r.shape != d.shape or r.ndim != 1:
        raise DataError(
            f"relevance of shape {r.shape}, distance of shape {d.shape}: need one of each per candidate.",
            field="distance",
        )
    distinct, level = np.unique(d, return_inverse=True)
    return PairOrder(*_pair_order(r, level.astype(np.uint16), len(distinct)))


@compiled
def _pair_order(relevance: FloatArray, distance: NDArray[np.uint16], levels: int) -> tuple[float, float, float]:
    """Tau, collision and inversion rate of candidates whose distances are below `levels`."""
    order = np.argsort(relevance)
    wrong, right, same_relevance, same_distance = count_pairs(relevance[order], distance[order], levels)
    differing = right + wrong + same_distance
    tau = tau_of_counts(right, wrong, same_relevance, same_distance)
    if differing == 0:
        return tau, math.nan, math.nan
    return tau, same_distance / differing, wrong / differing


@compiled
def count_pairs(a: NDArray[Any], b: NDArray[np.uint16], levels: int) -> tuple[int, int, int, int]:
    """Count the pairs of items in O(N log levels).

    Args:
        a: (N,) ascending. b: (N,) below `levels`, of the same items.

    Returns:
        Pairs in the same order by both, in opposite order, tied in a only, tied in b only.
    """
    tree, seen, group = np.zeros(levels + 1, np.int64), np.zeros(levels, np.int64), np.zeros(levels, np.int64)
    agree, disagree, tied_a, tied_b = 0, 0, 0, 0
    start = 0
    while start < len(a):
        stop = start
        while stop < len(a) and a[stop] == a[start]:
            group[b[stop]] += 1
            stop += 1
        for i in range(start, stop):
            level = b[i]
            smaller = _sum_below(tree, level)
            agree += smaller
            disagree += start - smaller - seen[level]
            tied_b += seen[level]
            tied_a += stop - start - group[level]
        for i in range(start, stop):
            _add_at(tree, b[i])
            seen[b[i]] += 1
            group[b[i]] = 0
        start = stop
    return agree, disagree, tied_a // 2, tied_b  # each pair tied in a was counted from both sides


@compiled
def _sum_below(tree: NDArray[np.int64], level: int) -> int:
    """Items below a level, from a Fenwick tree of counts."""
    total = 0
    while level > 0:
        total += tree[level]
        level -= level & -level
    return total


@compiled
def _add_at(tree: NDArray[np.int64], level: int) -> None:
    """Count one more item at a level."""
    at = level + 1
    while at < len(tree):
        tree[at] += 1
        at += at & -at


def ideal_gains(
    relevance: GradedRelevance, query_labels: ArrayLike, database_labels: ArrayLike, k: int = 100
) -> FloatArray:
    """The k largest relevances of each query in the database, largest first: (Q, min(k, N)).

    They depend only on the labels, so one call serves all lengths and both directions.
    """
    (sets,) = LabelSetRelevance.of([relevance], query_labels, database_labels)
    return ideal_of_sets(sets, k)


def ideal_of_sets(sets: LabelSetRelevance, k: int = 100) -> FloatArray:
    """`ideal_gains`: the largest relevances of the distinct label sets, each as often as the database has it."""
    items, counts = len(sets.searched), sets.counts
    kept = min(k, len(sets.right))  # each set has an item, so no other set can be among the k largest
    gains = np.empty((len(sets.left), min(k, items)))
    size = max(1, min(BLOCK, GAINS // max(len(sets.right), 1)))
    for start in range(0, len(sets.left), size):
        block = sets.left[start : start + size] @ sets.right.T  # (b, U)
        largest = np.argpartition(-block, kept - 1, axis=1)[:, :kept]
        for row, chosen, out in zip(block, largest, gains[start : start + size], strict=True):
            best = chosen[np.argsort(-row[chosen], kind="stable")]
            out[:] = np.repeat(row[best], np.minimum(counts[best], len(out)))[: len(out)]
    return gains[sets.asked]


def ndcg_of_rows(rows: Rows, sets: LabelSetRelevance, ideal: FloatArray) -> FloatArray:
    """NDCG (Q,) of the first ranks of each query; NaN where nothing is relevant.

    Args:
        rows: (Q, k) database rows, nearest first. sets: relevance of database items to queries.
        ideal: (Q, k) from `ideal_of_sets`.
    """
    ranked: FloatArray = np.empty(rows.shape)
    for start in range(0, len(rows), BLOCK):
        block = slice(start, start + BLOCK)
        left, right = sets.left[sets.asked[block]], sets.right[sets.searched[rows[block]]]  # (b, C), (b, k, C)
        ranked[block] = np.einsum("qc,qkc->qk", left, right)
    discount = 1 / np.log2(np.arange(2, rows.shape[1] + 2))
    ideal_sum = ideal @ discount
    values: FloatArray = np.divide(ranked @ discount, ideal_sum, out=np.full(len(ranked), np.nan), where=ideal_sum > 0)
    return values


def pool_resolution(ranking: Ranking, references: Sequence[LabelSetRelevance], anchor: Rows) -> FloatArray:
    """Tau-b, collision and inversion rate of each query on its candidate pool (resolution protocol).

    The pool is the union of the first 100 ranks of this ranking and of the anchor run.

    Args:
        ranking: of Q queries. references: R relevances of the same label sets. anchor: (Q, 100) rows of the anchor run.

    Returns:
        (R, 3, Q).

    Raises:
        DataError: the anchor has another number of queries.
    """
    own = ranking.first.rows
    if len(anchor) != len(own):
        raise DataError(
            f"the anchor run has {len(anchor)} queries, this run {len(own)}: need the same.", option="anchor"
        )
    scan = scan_of(ranking.query, ranking.database, ranking.bits)
    values = np.empty((len(references), 3, len(own)))
    if references:
        left, right = np.stack([sets.left for sets in references]), np.stack([sets.right for sets in references])
        vectors = left, references[0].asked, right, references[0].searched  # the label sets are the same
        run(_pool_orders, len(own), None, scan, own, np.ascontiguousarray(anchor), *vectors, values)
    return values


@compiled
def _pool_orders(
    first: int, last: int, scan: Scan, own: Rows, anchor: Rows,
    left: FloatArray, asked: Rows, right: FloatArray, searched: Rows, out: FloatArray,
) -> None:  # fmt: skip
    """Write the order of the pairs of each query's pool into out (R, 3, Q), under each of R references."""
    planes, views = scan.planes, scan.views
    levels = len(planes) * WORD + 1
    for q in range(first, last):
        pool = np.unique(np.concatenate((own[q], anchor[q])))
        words = np.empty((len(planes), len(pool) * views), planes.dtype)
        for i, row in enumerate(pool):
            words[:, i * views : (i + 1) * views] = planes[:, row * views : (row + 1) * views]
        distance = np.empty(len(pool), np.uint16)
        all_distances_of(Scan(scan.queries, words, scan.mask, scan.allowed, scan.asked, views), q, distance)
        for reference in range(len(left)):
            relevance = np.zeros(len(pool))
            for i, row in enumerate(pool):
                for column in range(left.shape[2]):
                    relevance[i] += left[reference, asked[q], column] * right[reference, searched[row], column]
            found = _pair_order(np.rint(relevance * SCALE), distance, levels)
            out[reference, 0, q], out[reference, 1, q], out[reference, 2, q] = found


def kendall_tau(a: ArrayLike, b: ArrayLike) -> float:
    """Kendall's tau-b of two integer scores of the same items, by their contingency table.

    Args:
        a, b: (N,) integers with few values, such as Hamming distances at two lengths.

    Returns:
        In [-1, 1]; 0 when one of them is constant.

    Example:
        >>> kendall_tau([0, 1, 2, 2], [0, 2, 1, 3])
        0.5477225575051661
    """
    x, y = np.asarray(a), np.asarray(b)
    if x.shape != y.shape or x.ndim != 1 or x.dtype.kind not in "iu" or y.dtype.kind not in "iu":
        raise DataError(
            f"need two integer arrays of equal length, got {x.dtype} {x.shape} and {y.dtype} {y.shape}.", field="scores"
        )
    if not len(x):
        return 0.0
    levels = int(x.max()) + 1, int(y.max()) + 1
    if min(x.min(), y.min()) < 0:
        raise DataError(f"must be at least 0, got {min(x.min(), y.min())}.", field="scores")
    if max(levels) > 2**16 or levels[0] * levels[1] > LARGEST_TABLE:
        from scipy.stats import kendalltau  # slow to import, rarely needed

        tau = float(kendalltau(x, y).statistic)
        return 0.0 if math.isnan(tau) else tau
    return float(tau_of_levels(x.astype(np.uint16), y.astype(np.uint16), *levels))


@compiled
def tau_of_levels(a: NDArray[np.uint16], b: NDArray[np.uint16], a_levels: int, b_levels: int) -> float:
    """Tau-b of two scores with values below a_levels and b_levels; see `kendall_tau`."""
    table = np.zeros((a_levels, b_levels), np.int64)
    for i in range(len(a)):
        table[a[i], b[i]] += 1
    above = np.zeros(b_levels, np.int64)  # items of larger a, by b
    agree, disagree, tied_a, tied_both = 0, 0, 0, 0
    for x in range(a_levels - 1, -1, -1):
        larger = above.sum()
        below, row_total = 0, 0
        for y in range(b_levels):
            cell = table[x, y]
            larger -= above[y]  # now: larger a and larger b
            agree += cell * larger
            disagree += cell * below
            below += above[y]
            tied_a += cell * row_total  # pairs of equal a and different b
            row_total += cell
            tied_both += cell * (cell - 1) // 2
        for y in range(b_levels):
            above[y] += table[x, y]
    total = len(a) * (len(a) - 1) // 2
    tied_b = total - agree - disagree - tied_a - tied_both  # pairs of equal b and different a
    tau: float = tau_of_counts(agree, disagree, tied_a, tied_b)
    return tau


@compiled
def tau_of_counts(agree: int, disagree: int, tied_a: int, tied_b: int) -> float:
    """Tau-b from the pairs in the same and in the opposite order, and those tied in one score alone; 0 if undefined."""
    scale = math.sqrt(float(agree + disagree + tied_a) * float(agree + disagree + tied_b))
    return (agree - disagree) / scale if scale > 0 else 0.0
