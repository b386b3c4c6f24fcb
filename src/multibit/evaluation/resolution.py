"""How well distances keep differences in relevance: NDCG, Kendall's tau-b, collisions, inversions.

Each metric is a function of one query first; the functions of many queries run the same definition compiled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.codes import Codes
from multibit.codes.distance import hamming_distances, nearest
from multibit.codes.kernels import compiled
from multibit.errors import DataError
from multibit.evaluation.relevance import GradedRelevance

FloatArray = NDArray[np.float64]
POOL = 100  # first ranks of the run and of the anchor run that make the candidate pool
DIGITS = 10  # of relevance: a matrix product rounds the last digits of equal label sets differently
LARGEST_TABLE = 1 << 22  # cells of a contingency table; beyond, scipy sorts
BLOCK = 64  # queries whose relevance to the whole database, or label vectors of whose hits, are in memory at once


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
    """How the pairs of a candidate pool are ordered.

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
            f"relevance of shape {r.shape} and distance of shape {d.shape}: need one of each per candidate."
        )
    return PairOrder(*_pair_order(r, d))


@compiled
def _pair_order(relevance: FloatArray, distance: FloatArray) -> tuple[float, float, float]:
    right, wrong, same_distance, same_relevance = 0, 0, 0, 0
    for i in range(len(relevance)):
        for j in range(i):
            r, d = relevance[i] - relevance[j], distance[i] - distance[j]
            if r == 0 and d == 0:
                continue
            if r == 0:
                same_relevance += 1
            elif d == 0:
                same_distance += 1
            elif (r > 0) == (d < 0):
                right += 1
            else:
                wrong += 1
    differing = right + wrong + same_distance
    scale = math.sqrt(float(differing) * float(right + wrong + same_relevance))
    tau = (right - wrong) / scale if scale > 0 else 0.0
    if differing == 0:
        return tau, math.nan, math.nan
    return tau, same_distance / differing, wrong / differing


def ideal_gains(
    relevance: GradedRelevance, query_labels: ArrayLike, database_labels: ArrayLike, k: int = 100
) -> FloatArray:
    """The k largest relevances of each query in the database, largest first: (Q, min(k, N)).

    They depend on labels only, so one call serves all lengths and both directions.
    """
    left, right = relevance.vectors(query_labels)[0], relevance.vectors(database_labels)[1]
    count = min(k, len(right))
    gains = np.empty((len(left), count))
    for start in range(0, len(left), BLOCK):
        block = left[start : start + BLOCK] @ right.T  # (b, N)
        gains[start : start + BLOCK] = -np.sort(np.partition(-block, count - 1, axis=1)[:, :count], axis=1)
    return gains


def ndcg_at(
    query: Codes,
    database: Codes,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    relevance: GradedRelevance,
    bits: int | None = None,
    k: int = 100,
    *,
    ideal: FloatArray | None = None,
) -> FloatArray:
    """NDCG@k (Q,) of the Hamming ranking of the whole database, ties by row; NaN where nothing is relevant.

    Args:
        query, database: codes. query_labels, database_labels: multi-hot. bits: prefix length. k: ranks.
        ideal: from `ideal_gains`, when it is at hand.
    """
    rows = nearest(query, database, k, bits).rows
    left, right = relevance.vectors(query_labels)[0], relevance.vectors(database_labels)[1]
    ranked = np.empty((len(rows), rows.shape[1]))
    for start in range(0, len(rows), BLOCK):
        block = slice(start, start + BLOCK)
        ranked[block] = np.einsum("qc,qkc->qk", left[block], right[rows[block]])
    best = ideal_gains(relevance, query_labels, database_labels, k) if ideal is None else ideal
    discount = 1 / np.log2(np.arange(2, ranked.shape[1] + 2))
    ideal_sum = best @ discount
    values: FloatArray = np.divide(ranked @ discount, ideal_sum, out=np.full(len(ranked), np.nan), where=ideal_sum > 0)
    return values


def pool_resolution(
    query: Codes,
    database: Codes,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    relevance: GradedRelevance,
    bits: int | None = None,
    anchor: NDArray[np.int64] | None = None,
) -> dict[str, FloatArray]:
    """Tau-b, collision and inversion rate of each query on its candidate pool (resolution protocol).

    The pool is the union of the first 100 ranks of this run and of the anchor run.

    Args:
        query, database: codes. query_labels, database_labels: multi-hot. bits: prefix length.
        anchor: (Q, 100) rows of the anchor run's first ranks; this run itself when None.

    Returns:
        "tau-b", "collision", "inversion" -> (Q,).
    """
    own = nearest(query, database, POOL, bits).rows
    other = own if anchor is None else anchor
    if len(other) != len(own):
        raise DataError(f"the anchor run has {len(other)} queries, this run {len(own)}; they must be the same.")
    left, right = relevance.vectors(query_labels)[0], relevance.vectors(database_labels)[1]
    values = np.empty((3, len(own)))
    for q in range(len(own)):
        pool = np.union1d(own[q], other[q])
        distance = hamming_distances(query.take([q]), database.take(pool), bits, threads=1)[0]
        grades = np.round(right[pool] @ left[q], DIGITS)
        values[:, q] = _pair_order(grades, distance.astype(np.float64))
    return dict(zip(("tau-b", "collision", "inversion"), values, strict=True))


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
        raise DataError(f"need two integer scores of equal length, got {x.dtype} {x.shape} and {y.dtype} {y.shape}.")
    if not len(x):
        return 0.0
    levels = int(x.max()) + 1, int(y.max()) + 1
    if min(x.min(), y.min()) < 0:
        raise DataError("the scores must be at least 0.")
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
    scale = math.sqrt(float(agree + disagree + tied_a) * float(agree + disagree + tied_b))
    return (agree - disagree) / scale if scale > 0 else 0.0
