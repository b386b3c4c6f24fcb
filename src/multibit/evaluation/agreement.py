"""Agreement of rankings: between code lengths, and before and after binarisation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import FloatArray
from multibit.codes import DIRECTIONS, CodedItems, Codes, hamming_distances
from multibit.codes.compiling import compiled, over_queries
from multibit.codes.distance import distance_histogram
from multibit.codes.items import Direction
from multibit.errors import ConfigError, DataError
from multibit.evaluation.resolution import count_pairs, tau_of_counts, tau_of_levels
from multibit.progress import track

BLOCK = 32  # queries whose distances to the whole database are held at once
CHUNK = 1 << 16  # items whose deviations from a sign are held at once


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
    tau: float = tau_of_counts(agree, disagree, tied_a, tied_b)
    return tau
