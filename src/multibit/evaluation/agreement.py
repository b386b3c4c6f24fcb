"""Agreement of rankings: between code lengths, and before and after binarisation on one side or both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import FloatArray, unit_rows
from multibit.codes import DIRECTIONS, CodedItems, Codes, hamming_distances
from multibit.codes.compiling import compiled, over_queries
from multibit.codes.distance import distance_histogram
from multibit.codes.items import Direction
from multibit.errors import ConfigError, DataError
from multibit.evaluation.metrics import pack_both_labels
from multibit.evaluation.resolution import count_pairs, tau_of_levels
from multibit.progress import track

BLOCK = 32  # queries whose distances to the whole database are held at once
SCORES = 1 << 22  # products that are held at once
SIGNS = 1 << 13  # items whose signs are held as real values at once
CHUNK = 1 << 16  # items whose deviations from a sign are held at once
UNIT = 1 << 20  # relaxed values are rounded to multiples of 1/UNIT, so that their sums are exact


def ranks(distance: ArrayLike) -> NDArray[np.int64]:
    """Rank of each item, from 0, by (distance, row): the inverse of a stable sort.

    Example:
        >>> ranks([3, 0, 3, 1])
        array([2, 0, 3, 1])
    """
    order = np.argsort(np.asarray(distance), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


def rank_displacement(short: ArrayLike, long: ArrayLike) -> FloatArray:
    """Signed change of each item's normalised rank from a short to a long code (Delta r): (N,) in [-1, 1].

    Args:
        short, long: (N,) distances of the same items at the two lengths.

    Example:
        >>> rank_displacement([0, 1, 2], [1, 0, 2])
        array([ 0.5, -0.5,  0. ])
    """
    before, after = ranks(short), ranks(long)
    return np.asarray((after - before) / max(len(before) - 1, 1))


@dataclass(frozen=True, eq=False)
class LengthAgreement:
    """Agreement of the rankings at two code lengths, per query.

    Attributes:
        lengths: the two code lengths. tau: (Q,) tau-b of their distances over the whole database.
        displacement: (Q,) mean |Delta r|.
    """

    lengths: tuple[int, int]
    tau: FloatArray
    displacement: FloatArray


def cross_length_agreement(query: Codes, database: Codes, lengths: Sequence[int]) -> list[LengthAgreement]:
    """Compare the rankings of every pair of lengths, over the whole database (Table `tab:cross-length-agreement-complete`).

    Args:
        query: Q codes. database: N codes. lengths: two or more prefix lengths.

    Raises:
        DataError: fewer than two lengths, or an empty database.
    """  # noqa: E501 - the table's name
    return ranking_agreement(dict.fromkeys(lengths, (query, database)))


def ranking_agreement(sides: Mapping[int, tuple[Codes, Codes]]) -> list[LengthAgreement]:
    """Compare the rankings of every pair of lengths, where each length has codes of its own (separate models).

    Args:
        sides: length -> Q query codes and N database codes, of the same items in the same order at every length.

    Raises:
        DataError: fewer than two lengths, or an empty database.
    """
    lengths = sorted(sides)
    queries, items = (len(each) for each in sides[lengths[0]]) if lengths else (0, 0)
    if len(lengths) < 2 or not items:
        raise DataError(
            f"need two or more lengths and a database, got {tuple(lengths)} and {items} items.", field="lengths"
        )
    pairs = list(itertools.combinations(lengths, 2))
    tau, displacement = np.empty((len(pairs), queries)), np.empty((len(pairs), queries))
    with track("Comparing rankings of all lengths", queries, "queries") as advance:
        for start in range(0, queries, BLOCK):
            rows = np.arange(start, min(start + BLOCK, queries))
            distances = {bits: hamming_distances(q.take(rows), database, bits) for bits, (q, database) in sides.items()}
            for pair, (short, long) in enumerate(pairs):
                _compare(distances[short], distances[long], short, long, tau[pair, start:], displacement[pair, start:])
            advance(len(rows))
    return [LengthAgreement(pair, tau[i], displacement[i]) for i, pair in enumerate(pairs)]


def _compare(
    a: NDArray[np.uint16], b: NDArray[np.uint16], a_bits: int, b_bits: int, tau: FloatArray, moved: FloatArray
) -> None:
    def work(first: int, last: int) -> None:
        _compare_queries(first, last, a, b, a_bits + 1, b_bits + 1, tau, moved)

    over_queries(work, len(a))


@compiled
def _compare_queries(
    first: int, last: int, a: NDArray[np.uint16], b: NDArray[np.uint16], a_levels: int, b_levels: int,
    tau: FloatArray, moved: FloatArray,
) -> None:  # fmt: skip
    for q in range(first, last):
        tau[q] = tau_of_levels(a[q], b[q], a_levels, b_levels)
        at_a, at_b = _first_ranks(a[q], a_levels), _first_ranks(b[q], b_levels)
        total = 0
        for i in range(a.shape[1]):
            total += abs(at_a[a[q, i]] - at_b[b[q, i]])
            at_a[a[q, i]] += 1
            at_b[b[q, i]] += 1
        moved[q] = total / (a.shape[1] * max(a.shape[1] - 1, 1))


@compiled
def _first_ranks(distance: NDArray[np.uint16], levels: int) -> NDArray[np.int64]:
    """The rank of the first row of each distance."""
    place = np.zeros(levels + 1, np.int64)
    for value in distance:
        place[value + 1] += 1
    return np.cumsum(place)


@dataclass(frozen=True, eq=False)
class Quantization:
    """The effect of binarisation at one length (Tables `tab:quantization`, `tab:tie-ceiling`).

    Attributes:
        bits: code length. deviation: mean | |h| - 1 | over all items and bits.
        tau: (q,) tau-b between the relaxed and the binary ranking of each compared query.
        ties: S(B), mean share of candidate pairs at equal Hamming distance.
    """

    bits: int
    deviation: float
    tau: FloatArray
    ties: float

    @property
    def ceiling(self) -> float:
        """The largest tau-b that the ties of the binary ranking allow, sqrt(1 - S(B))."""
        return math.sqrt(1 - self.ties)

    @property
    def gap(self) -> float:
        """The ceiling minus the mean tau-b."""
        return self.ceiling - float(self.tau.mean())


def quantization(
    query: CodedItems, database: CodedItems, direction: Direction, bits: int, compared: int = 500
) -> Quantization:
    """Compare the rankings of relaxed and binary codes in one direction at one length.

    Args:
        query, database: Q and N >= 2 items with relaxed values. direction: of the search. bits: prefix length.
        compared: number of queries to rank both ways, from the first; each costs a sort of the database.

    Raises:
        DataError: no relaxed values, an empty query set, or fewer than two items. ConfigError: no query to compare.
    """
    if compared < 1:
        raise ConfigError(f"need at least 1 query, got {compared}.", option="compared")
    if not (query.relaxed and database.relaxed) or not len(query) or len(database) < 2:
        raise DataError(
            f"need 1 or more queries and 2 or more items with relaxed values, got {query} and {database}.",
            field="relaxed",
        )
    asked, searched = DIRECTIONS[direction]
    q, d = query.relaxed[asked], database.relaxed[searched]  # (Q, B), (N, B)
    codes = database.codes(searched)
    first = query.codes(asked).take(np.arange(min(compared, len(query))))
    length = codes.check_length(bits)
    deviation = sum(_deviation(side[:, :length]) for side in (q, d)) / ((len(q) + len(d)) * length)
    tau = np.empty(len(first))
    for start in range(0, len(first), BLOCK):
        block = slice(start, min(start + BLOCK, len(first)))
        soft = (length - q[block, :length] @ d[:, :length].T) / np.float32(2)  # (b, N)
        hard = hamming_distances(first.take(np.arange(block.start, block.stop)), codes, length)
        tau[block] = _soft_tau(soft, hard, length)
    histogram = distance_histogram(first, codes, length)
    pairs = len(d) * (len(d) - 1)
    ties = float(((histogram * (histogram - 1)).sum(axis=1) / pairs).mean())
    return Quantization(length, float(deviation), tau, ties)


def _deviation(values: NDArray[np.float32]) -> float:
    """Sum of | |h| - 1 |, of some items at a time."""
    blocks = (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))
    return sum(float(np.abs(np.abs(block) - 1).sum(dtype=np.float64)) for block in blocks)


def _soft_tau(soft: NDArray[np.float32], hard: NDArray[np.uint16], bits: int) -> FloatArray:
    """Tau-b of each row, by one sort of integers that carry both values."""
    values = np.empty(len(soft))

    def work(first: int, last: int) -> None:
        for q in range(first, last):
            key = np.sort(_sortable(soft[q]).astype(np.uint64) << np.uint64(16) | hard[q])
            near = (key >> np.uint64(16)).astype(np.uint32)
            values[q] = _tau_of_sorted(near, (key & np.uint64(0xFFFF)).astype(np.uint16), bits + 1)

    over_queries(work, len(soft))
    return values


def _sortable(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Integers in the order of these floats, equal where they are equal: the bits, inverted if negative."""
    bits, sign = (values + np.float32(0)).view(np.uint32), np.uint32(1 << 31)  # + 0 because -0 equals 0
    return np.where(bits & sign, ~bits, bits | sign)


@compiled
def _tau_of_sorted(a: NDArray[np.uint32], b: NDArray[np.uint16], levels: int) -> float:
    """Tau-b of items in ascending order of a, where b has few levels."""
    agree, disagree, tied_a, tied_b = count_pairs(a, b, levels)
    scale = math.sqrt(float(agree + disagree + tied_a) * float(agree + disagree + tied_b))
    return (agree - disagree) / scale if scale > 0 else 0.0


def asymmetric_average_precision(
    query: ArrayLike, database: Codes, query_labels: ArrayLike, database_labels: ArrayLike, bits: int | None = None
) -> FloatArray:
    """Average precision when the query keeps its real values and the database is binary (asymmetric ranking).

    Items are ranked by the inner product of the relaxed query with their signs, largest first, ties by row. Values are
    rounded to 2^-20, so that the products are exact and items of equal codes are tied.

    Args:
        query: (Q, B) relaxed codes in [-1, 1]. database: N codes.
        query_labels: (Q, C) multi-hot. database_labels: (N, C) multi-hot. bits: prefix length.

    Returns:
        (Q,) float64 in [0, 1]; NaN marks a query without any relevant item.

    Raises:
        DataError: shapes that do not fit, or a value outside [-1, 1].

    Example:
        >>> database = Codes.binarize([[1, -1], [1, 1], [-1, 1]])
        >>> asymmetric_average_precision([[0.9, 0.1]], database, [[1]], [[1], [0], [1]]).round(4)  # ranks 2 and 3
        array([0.5833])
    """
    database.require_one_view("Asymmetric ranking", "Rank by the binary codes.")
    values = np.asarray(query, np.float64)
    length = database.check_length(bits)
    if values.ndim != 2 or values.shape[1] < length:
        raise DataError(f"need shape (Q, {length} or more), got {values.shape}.", field="relaxed queries")
    if not (np.abs(values) <= 1).all():  # false for NaN too
        worst = values[~(np.abs(values) <= 1)][0]
        raise DataError(f"every value must be in [-1, 1], got {worst}.", field="relaxed queries")
    asked, searched = pack_both_labels(query_labels, len(values), database_labels, len(database))
    whole = np.round(values[:, :length] * UNIT)
    signs = database.prefix(length).to_signs()
    found = np.empty(len(values))
    size = max(BLOCK, SCORES // max(len(signs), 1))  # queries per block: the database is converted once for each
    for start in range(0, len(values), size):
        block = slice(start, start + size)
        _rank_by_product(whole[block], signs, asked[:, block], searched, found[block])
    return found


def cosine_average_precision(
    query: ArrayLike, database: ArrayLike, query_labels: ArrayLike, database_labels: ArrayLike
) -> FloatArray:
    """Average precision of real-valued features, ranked by the cosine, largest first, ties by row.

    What binary codes could reach at most, if they lost nothing of these features.

    Args:
        query: (Q, d). database: (N, d). query_labels: (Q, C) multi-hot. database_labels: (N, C) multi-hot.

    Returns:
        (Q,) float64 in [0, 1]; NaN marks a query without any relevant item.

    Raises:
        DataError: shapes that do not fit.

    Example:
        >>> cosine_average_precision([[1.0, 0]], [[2.0, 0], [0, 1], [1, 1]], [[1]], [[0], [1], [1]]).round(4)
        array([0.5833])
    """
    asked, searched = (unit_rows(np.asarray(side, np.float64)) for side in (query, database))
    if asked.shape[1] != searched.shape[1]:
        raise DataError(f"features of {asked.shape[1]} and of {searched.shape[1]} dimensions.", field="features")
    words = pack_both_labels(query_labels, len(asked), database_labels, len(searched))
    found = np.empty(len(asked))
    for start in range(0, len(asked), BLOCK):
        scores = np.round(asked[start : start + BLOCK] @ searched.T, 12)  # (b, N); equal features are tied
        for q, score in enumerate(scores, start):
            relevant: NDArray[np.bool_] = np.any(words[1] & words[0][:, q : q + 1], axis=0)
            places = np.flatnonzero(relevant[np.argsort(-score, kind="stable")]) + 1
            found[q] = (np.arange(1, len(places) + 1) / places).mean() if len(places) else np.nan
    return found


def _rank_by_product(
    values: FloatArray, signs: NDArray[Any], asked: NDArray[np.uint64], searched: NDArray[np.uint64], found: FloatArray
) -> None:
    """Average precision of a block of queries: (b, B) whole numbers, (N, B) signs, labels in words."""
    score = np.empty((len(values), len(signs)))
    for start in range(0, len(signs), SIGNS):
        score[:, start : start + SIGNS] = values @ signs[start : start + SIGNS].astype(np.float64).T
    rows = np.arange(len(signs), dtype=np.uint64)

    def work(first: int, last: int) -> None:
        for q in range(first, last):
            relevant: NDArray[np.bool_] = np.any(searched & asked[:, q : q + 1], axis=0)
            behind = (signs.shape[1] * UNIT - score[q]).astype(np.uint64)  # 0 for the largest possible product
            order = np.sort(behind << np.uint64(32) | rows) & np.uint64(2**32 - 1)
            places = np.flatnonzero(relevant[order]) + 1
            found[q] = (np.arange(1, len(places) + 1) / places).mean() if len(places) else np.nan

    over_queries(work, len(values))
