"""Resolution among pairs without a common label, and among the most related quarter of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import FloatArray
from multibit.codes import Codes, hamming_distances
from multibit.errors import ConfigError, DataError
from multibit.evaluation.relevance import GradedRelevance
from multibit.evaluation.resolution import ndcg

NAMES = "no shared label", "no shared label, graph top 25 %"
KEPT = 1 << 24  # pairs up to which relations are kept
BLOCK = 32  # queries whose relations to the whole database are held at once
CHUNK = 1 << 16  # items whose labels are held as real values at once


@dataclass(frozen=True, eq=False)
class Stratum:
    """NDCG@100 among a subset of candidate pairs (Table `tab:resolution-noshared`).

    Attributes:
        name: for tables. pairs: number of pairs. values: (q,) NDCG of each query; NaN where nothing is relevant.
    """

    name: str
    pairs: int
    values: FloatArray


def no_shared_label(
    sides: Sequence[tuple[Codes, Codes]],
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    relevance: GradedRelevance,
    graph_weights: FloatArray,
    bits: int | None = None,
    k: int = 100,
    compared: int = 500,
) -> list[tuple[Stratum, Stratum]]:
    """NDCG@k of the pairs that share no label, and of the quarter of them that the label graph relates most.

    The quarter is exact: of equally related pairs the first by query row, then database row, are taken.

    Args:
        sides: query and database codes of each direction; the labels are the same in all.
        query_labels, database_labels: multi-hot. relevance: not 0 for such pairs.
        graph_weights: W (C, C) of the label graph; two label sets are related by the sum of the weights between them.
        bits: prefix length. k: rank cutoff. compared: number of queries to use, from the first.

    Returns:
        Both strata for each of the sides.

    Raises:
        DataError: every pair shares a label. ConfigError: `compared` is less than 1.
    """
    if compared < 1:
        raise ConfigError(f"need at least 1 query, got {compared}.", option="compared")
    asked, searched = np.asarray(query_labels)[:compared], np.asarray(database_labels)
    relations = _Relations(asked, searched, graph_weights)
    pairs = sum(len(values) for values in relations.apart())
    if not pairs:
        raise DataError("every query shares a label with every item, so no pair is left.", field="labels")
    quarter = max(pairs // 4, 1)
    threshold = _value_at(pairs - quarter, relations.apart)
    at_threshold = quarter - sum(int((values > threshold).sum()) for values in relations.apart())  # these fill it up
    counts, values = np.zeros(2, np.int64), np.empty((len(sides), 2, len(asked)))
    for block, relation in relations:
        closest = relation > threshold
        tied = np.flatnonzero(relation == threshold)[:at_threshold]  # in the order of the rows
        closest.ravel()[tied] = True
        at_threshold -= len(tied)
        scores = _in_chunks(partial(relevance.scores, asked[block]), searched)
        rows = np.arange(block.start, block.stop)
        for stratum, inside in enumerate((relation >= 0, closest)):
            counts[stratum] += inside.sum()
        for number, (query, database) in enumerate(sides):
            distances = hamming_distances(query.take(rows), database, bits)
            for stratum, inside in enumerate((relation >= 0, closest)):
                each = zip(distances, scores, inside, strict=True)
                values[number, stratum, block] = [_ndcg_within(*row, k) for row in each]
    return [(Stratum(NAMES[0], int(counts[0]), side[0]), Stratum(NAMES[1], int(counts[1]), side[1])) for side in values]


class _Relations:
    """Relations of each query to the whole database by the label graph, in blocks of queries.

    They are read several times: small problems are kept in memory, large ones are computed again.
    """

    def __init__(self, asked: NDArray[Any], searched: NDArray[Any], graph_weights: FloatArray) -> None:
        self._asked, self._searched, self._weights = asked, searched, graph_weights
        self._blocks = [slice(start, min(start + BLOCK, len(asked))) for start in range(0, len(asked), BLOCK)]
        self._kept: dict[int, NDArray[np.float32]] | None = {} if len(asked) * len(searched) <= KEPT else None

    def __iter__(self) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        for block in self._blocks:
            if self._kept is None:
                yield block, self._related(block)
            else:
                if block.start not in self._kept:
                    self._kept[block.start] = self._related(block)
                yield block, self._kept[block.start]

    def apart(self) -> Iterator[NDArray[np.float32]]:
        """Relations of the pairs that share no label."""
        for _, values in self:
            yield values[values >= 0]

    def _related(self, block: slice) -> NDArray[np.float32]:
        """(b, N) sums of weights between label sets, -1 where a label is shared."""
        wanted = self._asked[block].astype(np.float64)
        shared = _in_chunks(lambda items: wanted @ items.T, self._searched)
        weights = _in_chunks(lambda items: wanted @ self._weights @ items.T, self._searched)
        return np.where(shared == 0, weights, -1).astype(np.float32)


def _in_chunks(work: Callable[[FloatArray], FloatArray], labels: NDArray[Any]) -> FloatArray:
    """(b, N) values of a block of queries, computed from the labels of some items at a time."""
    starts = range(0, len(labels), CHUNK)
    return np.concatenate([work(labels[start : start + CHUNK].astype(np.float64)) for start in starts], axis=1)


def _value_at(rank: int, blocks: Callable[[], Iterable[NDArray[np.float32]]]) -> np.float32:
    """The value at a rank (0 is the smallest) of values >= 0 that are read in blocks, twice.

    Such floats sort like their bit patterns, so counting the upper and then the lower 16 bits finds the value.
    """
    bits = 0
    for shift in (16, 0):
        counts = np.zeros(1 << 16, np.int64)
        for values in blocks():
            digits = values.view(np.uint32) >> np.uint32(shift)
            inside = digits if shift else digits[digits >> 16 == bits] & 0xFFFF
            counts += np.bincount(inside, minlength=1 << 16)
        ends = np.cumsum(counts)
        digit = int(np.searchsorted(ends, rank, side="right"))
        rank -= int(ends[digit] - counts[digit])
        bits = bits << 16 | digit
    return np.uint32(bits).view(np.float32)


def _ndcg_within(distance: NDArray[np.uint16], score: FloatArray, inside: NDArray[np.bool_], k: int) -> float:
    rows = np.flatnonzero(inside)
    ranked = rows[np.argsort(distance[rows], kind="stable")][:k]
    return ndcg(score[ranked], np.sort(score[rows])[::-1][:k])
