"""Retrieval metrics of Hamming rankings: average precision, precision at a rank, precision-recall by radius.

An item is relevant when it shares at least one label with the query. Tie rules: "stable" ranks by (distance, database
row), as the paper does; "average" is the exact mean over all orders of equally distant items; "best" and "worst" put
their relevant items first or last, which bounds the others. Rankings are counted, not sorted, and memory does not grow
with queries x database.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import FloatArray, IntArray, as_labels
from multibit.codes import Codes
from multibit.codes.distance import common_length, run, scan_of
from multibit.errors import ConfigError, DataError, UndefinedQueryWarning, counted, require_integer
from multibit.evaluation.rank_kernels import RankCounts, ranking_counts

Ties = Literal["stable", "average", "best", "worst"]
LabelWords = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""Labels of the queries (V, Q) and of the database (V, N), 64 label columns in each word."""


@dataclass(frozen=True, eq=False)
class RankingCounts:
    """Counts per query, from which every metric in this module is computed.

    Attributes:
        precision_sum: (Q,) sum of precision@rank over the relevant items ranked at most `at`, ties by row.
        hits: (Q,) relevant items ranked at most `at`, ties by row.
        total: (Q, B+1) database items at each Hamming distance.
        relevant: (Q, B+1) relevant items at each Hamming distance.
        at: the rank cutoff.
    """

    precision_sum: FloatArray
    hits: IntArray
    total: IntArray
    relevant: IntArray
    at: int


def count_rankings(
    query: Codes,
    database: Codes,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    bits: int | None = None,
    at: int | None = None,
    *,
    threads: int | None = None,
) -> RankingCounts:
    """Rank the database for every query and count; the arguments are those of `average_precision`."""
    common_length(query, database, bits)  # refuses what is not codes
    words = pack_both_labels(query_labels, len(query), database_labels, len(database))
    return count_packed(query, database, words, bits, (at,), threads=threads)[0]


def count_packed(
    query: Codes,
    database: Codes,
    words: LabelWords,
    bits: int | None,
    cutoffs: Sequence[int | None],
    *,
    threads: int | None = None,
) -> list[RankingCounts]:
    """Counts at several rank cutoffs of one ranking, None for the whole database; each query is ranked once.

    Args:
        words: the labels, packed by `pack_both_labels`.
    """
    for at in cutoffs:
        if at is not None:
            _check_cutoff(at, "at")
    length, count = common_length(query, database, bits), len(query)
    at_distance = count, length + 1
    counts = RankCounts(
        np.zeros((len(cutoffs), count)),
        np.zeros((len(cutoffs), count), np.int64),
        np.zeros(at_distance, np.int64),
        np.zeros(at_distance, np.int64),
    )
    cuts = np.array([len(database) if at is None else at for at in cutoffs], np.int64)
    scan = scan_of(query, database, length)
    run(ranking_counts, count, threads, scan, *words, cuts, counts)
    return [
        RankingCounts(sums, hits, counts.total, counts.relevant, cut)
        for sums, hits, cut in zip(counts.precision_sum, counts.hits, cuts.tolist(), strict=True)
    ]


def average_precision(
    query: Codes,
    database: Codes,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    bits: int | None = None,
    ties: Ties = "stable",
    at: int | None = None,
    *,
    threads: int | None = None,
) -> FloatArray:
    """Average precision of each query.

    AP@k = (sum of precision@i over the relevant items at ranks i <= k) / min(k, R), with R the relevant items in the
    database; AP@all, the default, is the paper's mAP@all before the mean.

    Args:
        query: Q codes. database: N codes.
        query_labels: (Q, C) multi-hot. database_labels: (N, C) multi-hot.
        bits: prefix length; the full length when None.
        ties: "stable" ranks equal distances by database row; "average" is the exact mean over all their orders; "best"
            and "worst" are the bounds, relevant items first or last among equals.
        at: the rank cutoff k; the whole database when None.
        threads: all processors when None.

    Returns:
        (Q,) float64 in [0, 1]; NaN marks a query without any relevant item, for which AP is undefined.

    Raises:
        DataError: labels that do not fit the codes or each other. ConfigError: an unknown tie rule, at < 1.

    Example:
        >>> query = Codes.binarize([[1, 1, 1]])
        >>> database = Codes.binarize([[1, 1, 1], [1, 1, -1], [1, -1, 1]])
        >>> labels = [[1, 0], [0, 1], [1, 0]]
        >>> average_precision(query, database, [[1, 0]], labels).round(4)  # relevant at ranks 1 and 3
        array([0.8333])
        >>> average_precision(query, database, [[1, 0]], labels, ties="average").round(4)  # ranks 2 and 3 are tied
        array([0.9167])
    """
    check_ties(ties)
    counts = count_rankings(query, database, query_labels, database_labels, bits, at, threads=threads)
    return average_precision_of(counts, ties)


def check_ties(ties: str) -> None:
    """Refuse an unknown tie rule.

    Raises:
        ConfigError: unknown.
    """
    if ties not in get_args(Ties):
        raise ConfigError(f"must be one of {', '.join(get_args(Ties))}, got {ties!r}.", option="ties")


def _check_cutoff(cutoff: int, option: str) -> None:
    require_integer(cutoff, 1, option, kind=ConfigError)


def average_precision_of(counts: RankingCounts, ties: Ties) -> FloatArray:
    """Average precision (Q,) from counts; NaN where there is no relevant item."""
    if ties == "stable":
        sums = counts.precision_sum
    elif ties == "average":
        sums = _expected_precision_sum(counts)
    else:
        sums = _bound_precision_sum(counts, relevant_first=ties == "best")
    best = np.minimum(counts.relevant.sum(axis=1), counts.at)
    values: FloatArray = np.divide(sums, best, out=np.full(len(sums), np.nan), where=best > 0)
    return values


def _expected_precision_sum(counts: RankingCounts) -> FloatArray:
    """Mean of `precision_sum` over all orders of equally distant items, in closed form.

    In a group of n items (r relevant) after s earlier ones (c relevant), the item at place j is relevant with
    probability r/n and then has on average c + 1 + (j-1)(r-1)/(n-1) relevant items up to itself. With the slope
    g = (r-1)/(n-1), the sum over the m places within the cutoff is r/n (g m + (c + 1 - g (s+1)) (H(s+m) - H(s))).
    """
    n, r = counts.total.astype(np.float64), counts.relevant.astype(np.float64)
    before, found = np.cumsum(n, axis=1) - n, np.cumsum(r, axis=1) - r
    inside = np.clip(counts.at - before, 0, n)
    slope = np.divide(r - 1, n - 1, out=np.zeros_like(n), where=n > 1)
    start = before.astype(np.int64)
    harmonic = _harmonic_numbers(int(n.sum(axis=1).max(initial=0)))
    spread = harmonic[start + inside.astype(np.int64)] - harmonic[start]
    share = np.divide(r, n, out=np.zeros_like(n), where=n > 0)
    expected = share * (slope * inside + (found + 1 - slope * (before + 1)) * spread)
    return np.asarray(expected.sum(axis=1))


def _bound_precision_sum(counts: RankingCounts, *, relevant_first: bool) -> FloatArray:
    """`precision_sum` when the relevant items come first, or last, among equally distant ones, in closed form.

    With c relevant items earlier and t items before the r relevant ones of a group, the sum over the m of them within
    the cutoff is m + (c - t) (H(t+m) - H(t)).
    """
    n, r = counts.total, counts.relevant
    found = np.cumsum(r, axis=1) - r
    before = np.cumsum(n, axis=1) - n + (0 if relevant_first else n - r)
    inside = np.clip(counts.at - before, 0, r)
    harmonic = _harmonic_numbers(int(n.sum(axis=1).max(initial=0)))
    spread = harmonic[before + inside] - harmonic[before]
    return np.asarray((inside + (found - before) * spread).sum(axis=1))


def _harmonic_numbers(count: int) -> FloatArray:
    """H(0) .. H(count), summed in extended precision because the closed form takes differences of them."""
    terms = 1 / np.arange(1, count + 1, dtype=np.longdouble)
    return np.concatenate([[0.0], np.cumsum(terms)]).astype(np.float64)


def mean_average_precision(
    query: Codes,
    database: Codes,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    bits: int | None = None,
    ties: Ties = "stable",
    at: int | None = None,
    *,
    threads: int | None = None,
) -> float:
    """Mean of `average_precision` over the queries that have a relevant item; the others are counted in a warning.

    Raises:
        DataError: as `average_precision`, or no query has a relevant item.

    Example:
        >>> query, database = Codes.binarize([[1, 1], [-1, 1]]), Codes.binarize([[1, 1], [1, -1], [-1, -1]])
        >>> mean_average_precision(query, database, [[1, 0], [0, 1]], [[1, 0], [0, 1], [0, 1]])
        0.7916666666666666
    """
    values = average_precision(query, database, query_labels, database_labels, bits, ties, at, threads=threads)
    return mean_defined(values)


def mean_defined(values: FloatArray) -> float:
    """Mean of the defined values, with a warning that counts the undefined ones.

    Raises:
        DataError: no value is defined.

    Example:
        >>> mean_defined(np.array([0.25, 0.75]))
        0.5
    """
    undefined, queries = int(np.isnan(values).sum()), counted(len(values), "query", "queries")
    if undefined == len(values):
        problem = f"no query has a relevant item in the database ({queries}): the mean is undefined."
        raise DataError(problem, field="labels")
    if undefined:
        warnings.warn(
            f"Left out of the mean: {undefined:,} of {queries} without a relevant item in the database.",
            UndefinedQueryWarning,
            stacklevel=3,
        )
    return float(np.nanmean(values))


def precision_at(
    query: Codes,
    database: Codes,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    k: int,
    bits: int | None = None,
    *,
    threads: int | None = None,
) -> FloatArray:
    """Share of relevant items among the first k ranks of each query, ties by row: (Q,) float64.

    NaN where a query has no relevant item, as for average precision. Ranks past the end of the database count as not
    relevant.

    Example:
        >>> codes = Codes.binarize([[1, 1], [1, -1], [-1, -1]])
        >>> precision_at(codes.take([0]), codes, [[1]], [[1], [0], [1]], k=2)
        array([0.5])
    """
    _check_cutoff(k, "k")
    return precision_of(count_rankings(query, database, query_labels, database_labels, bits, k, threads=threads))


def precision_of(counts: RankingCounts) -> FloatArray:
    """Precision (Q,) at the rank cutoff of the counts; NaN where there is no relevant item."""
    return np.where(counts.relevant.any(axis=1), counts.hits / counts.at, np.nan)


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Points of a precision-recall curve by Hamming radius.

    Attributes:
        radius: (B+1,) 0 to B. precision, recall: (B+1,) over all pairs within the radius, of all queries together;
            precision is NaN at radii that contain no item.
    """

    radius: IntArray
    precision: FloatArray
    recall: FloatArray

    def __repr__(self) -> str:
        return f"PrecisionRecall(radius 0 to {len(self.radius) - 1})"


def precision_recall(
    query: Codes,
    database: Codes,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    bits: int | None = None,
    *,
    threads: int | None = None,
) -> PrecisionRecall:
    """Precision and recall within each Hamming radius, pooled over all query-item pairs (hash lookup protocol).

    Raises:
        DataError: as `average_precision`, or no pair is relevant.

    Example:
        >>> codes = Codes.binarize([[1, 1], [1, -1], [-1, -1]])
        >>> points = precision_recall(codes.take([0]), codes, [[1]], [[1], [0], [1]])
        >>> points.precision.round(2), points.recall
        (array([1.  , 0.5 , 0.67]), array([0.5, 0.5, 1. ]))
    """
    return precision_recall_of(count_rankings(query, database, query_labels, database_labels, bits, threads=threads))


def precision_recall_of(counts: RankingCounts) -> PrecisionRecall:
    """Precision-recall points from counts."""
    retrieved = counts.total.sum(axis=0).cumsum()
    correct = counts.relevant.sum(axis=0).cumsum()
    if not correct[-1]:
        raise DataError("no query has a relevant item in the database: recall is undefined.", field="labels")
    precision = np.divide(correct, retrieved, out=np.full(len(correct), np.nan), where=retrieved > 0)
    return PrecisionRecall(np.arange(len(correct)), precision, correct / correct[-1])


def pack_both_labels(query_labels: ArrayLike, queries: int, database_labels: ArrayLike, items: int) -> LabelWords:
    """Labels of both sides as words, of the same columns; see `pack_labels`.

    Raises:
        DataError: other shapes than (queries, C) and (items, C), or a value other than 0 and 1.
    """
    words = pack_labels(query_labels, queries, "query"), pack_labels(database_labels, items, "database")
    columns = np.shape(query_labels)[1], np.shape(database_labels)[1]
    if columns[0] != columns[1]:
        raise DataError(f"{columns[0]} columns for the queries, {columns[1]} for the database.", field="labels")
    return words


def pack_labels(labels: ArrayLike, rows: int, whose: str) -> NDArray[np.uint64]:
    """Multi-hot labels (N, C) as (V, N) 64-bit words, so that sharing a label is one AND.

    Raises:
        DataError: not (rows, C), or a value other than 0 and 1.
    """
    array = as_labels(labels, rows=rows, whose=whose)
    padded = np.zeros((rows, max(1, -(-array.shape[1] // 64)) * 64), np.bool_)
    padded[:, : array.shape[1]] = array
    words = np.packbits(padded, axis=1, bitorder="little").view(np.uint64)
    return np.ascontiguousarray(words.T)
