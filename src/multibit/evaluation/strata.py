"""Resolution where nothing is shared: pairs without a common label, and the most related quarter of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.codes import Codes, hamming_distances
from multibit.errors import ConfigError, DataError
from multibit.evaluation.relevance import GradedRelevance
from multibit.evaluation.resolution import ndcg

FloatArray = NDArray[np.float64]
QUARTILE = 0.75
BLOCK = 32  # queries whose relations to the whole database are in memory at once
CHUNK = 1 << 16  # items whose labels are in memory as real values at once


@dataclass(frozen=True, eq=False)
class Stratum:
    """NDCG@100 among some candidate pairs (Table `tab:resolution-noshared`).

    Attributes:
        name: for tables. pairs: how many there are. values: (q,) NDCG of each query; NaN where nothing is relevant.
    """

    name: str
    pairs: int
    values: FloatArray


def no_shared_label(
    query: Codes,
    database: Codes,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    relevance: GradedRelevance,
    graph_weights: FloatArray,
    bits: int | None = None,
    k: int = 100,
    compared: int = 500,
) -> tuple[Stratum, Stratum]:
    """NDCG@k of the pairs that share no label, and of their quarter that the label graph relates most.

    Args:
        query, database: codes. query_labels, database_labels: multi-hot. relevance: that is not 0 for such pairs.
        graph_weights: W (C, C) of the label graph; two label sets are related by the sum of the weights between them.
        bits: prefix length. k: ranks. compared: the first so many queries are taken.

    Raises:
        DataError: every pair shares a label. ConfigError: no query to compare.
    """
    if compared < 1:
        raise ConfigError(f"compared: need at least 1 query, got {compared}.")
    asked, searched = np.asarray(query_labels)[:compared], np.asarray(database_labels)
    blocks = [slice(start, min(start + BLOCK, len(asked))) for start in range(0, len(asked), BLOCK)]

    def related(block: slice) -> NDArray[np.float32]:
        """(b, N) sums of weights between label sets, -1 where a label is shared."""
        wanted = asked[block].astype(np.float64)
        shared = _in_chunks(lambda items: wanted @ items.T, searched)
        weights = _in_chunks(lambda items: wanted @ graph_weights @ items.T, searched)
        return np.where(shared == 0, weights, -1).astype(np.float32)

    def apart() -> Iterator[NDArray[np.float32]]:
        for block in blocks:
            values = related(block)
            yield values[values >= 0]

    pairs = sum(len(values) for values in apart())
    if not pairs:
        raise DataError("every query shares a label with every item: there is no such pair.")
    threshold = _value_at(int(np.ceil(QUARTILE * (pairs - 1))), apart)
    counts, values = np.zeros(2, np.int64), np.empty((2, len(asked)))
    for block in blocks:
        relation = related(block)
        closest = (relation > 0) & (relation >= threshold)  # no relation is not close
        distances = hamming_distances(query.take(np.arange(block.start, block.stop)), database, bits)
        scores = _in_chunks(partial(relevance.scores, asked[block]), searched)
        for stratum, inside in enumerate((relation >= 0, closest)):
            counts[stratum] += inside.sum()
            each = zip(distances, scores, inside, strict=True)
            values[stratum, block] = [_ndcg_within(*row, k) for row in each]
    names = "no shared label", "no shared label, graph top 25 %"
    first, second = (Stratum(name, int(counts[i]), values[i]) for i, name in enumerate(names))
    return first, second


def _in_chunks(work: Callable[[FloatArray], FloatArray], labels: NDArray[Any]) -> FloatArray:
    """(b, N) values of a block of queries, made from the labels of some items at a time."""
    starts = range(0, len(labels), CHUNK)
    return np.concatenate([work(labels[start : start + CHUNK].astype(np.float64)) for start in starts], axis=1)


def _value_at(rank: int, blocks: Callable[[], Iterable[NDArray[np.float32]]]) -> np.float32:
    """The value at a rank, from 0 the smallest, of values >= 0 that come in blocks, twice.

    Such floats are ordered as their bits are, so counting the upper and then the lower 16 bits finds it.
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
