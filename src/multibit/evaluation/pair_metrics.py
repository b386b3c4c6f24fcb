"""Pair recall of an evaluation: of codes, and of the real values that they are made from.

A query is one image, or one text; of an item with several texts each one is a query and a candidate of its own, any of
them counts as the counterpart of the image, and the value of the item is the mean over its texts. The candidates are
the query items, as in image-text retrieval, or the query items together with the database, as for a user who searches
everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import FloatArray, IntArray, Rows, unit_rows
from multibit.codes import DIRECTIONS, Codes
from multibit.codes.items import Direction, Modality
from multibit.codes.layout import Layout
from multibit.evaluation.metric import NDCG, PAIRS, Metric
from multibit.evaluation.pair_recall import OwnCounts, ProductCounter, count_own
from multibit.evaluation.ranking import Rankings
from multibit.evaluation.relevance import GradedRelevance, LabelSetRelevance
from multibit.evaluation.sampling import sampled_queries
from multibit.progress import track

if TYPE_CHECKING:
    from multibit.evaluation.evaluation import Evaluation, ValueKey

WITH_DATABASE = "database"
"""Reference of pair recall among the query items and the database."""

CONTENT = "labels x content"
"""Reference of NDCG under labels and content: `ContentGains`."""


def compared_queries(queries: int, database: int) -> int:
    """Number of queries, from the first, whose real values are ranked."""
    return sampled_queries(queries, database, most=2_000, pairs=100_000_000)


@dataclass(frozen=True, eq=False)
class TextCodes:
    """The codes of each text of items that have several.

    Attributes:
        codes: of T texts, the texts of an item one after the other. counts: (n,) texts of each item.
        layout: where the code of each length is.
    """

    codes: Codes
    counts: IntArray
    layout: Layout

    def at(self, bits: int) -> Codes:
        """The codes whose prefix is that of `bits` bits."""
        nested = self.layout.nested and self.layout.views == 1
        return self.codes if nested else self.codes.columns(self.layout.part(bits), self.layout.views)


def add_pair_recall(
    evaluation: Evaluation, rankings: Rankings, texts: tuple[TextCodes, TextCodes] | None = None
) -> Evaluation:
    """The evaluation with R@1, R@5, R@10 and the median rank of the own counterpart added, ties averaged.

    Args:
        evaluation: of these rankings. texts: codes of each text of the query items and of the database, where items
            have several; the codes of the rankings, one for each item, when None.
    """
    values = dict(evaluation.values)
    counts = None if texts is None else texts[0].counts
    with track("Own counterparts", len(rankings), "rankings") as advance:
        for (direction, bits), ranking in rankings.items():
            if ranking.counterparts is None:
                continue
            images = direction == "t2i"  # the candidates
            query, own, others = ranking.query, ranking.counterparts, ranking.database
            if texts is not None:
                query = texts[0].at(bits) if images else query
                own, others = (own, others) if images else (each.at(bits) for each in texts)
            numbers = _item_numbers(len(rankings.query), counts, direction)
            near = count_own(query, own, bits, *numbers)
            far = count_own(query, Codes.concatenate([own, others]), bits, numbers[0], _padded(numbers[1], len(others)))
            for reference, found in (("", near), (WITH_DATABASE, far)):
                values |= _values_of(found, direction, bits, reference, counts)
            advance()
    return replace(evaluation, values=values)


def _item_numbers(items: int, counts: IntArray | None, direction: Direction) -> tuple[Rows, Rows]:
    """Number of the item of each query and of each candidate among the query items."""
    images = np.arange(items)
    texts = images if counts is None else np.repeat(images, counts)
    return (images, texts) if direction == "i2t" else (texts, images)


def _padded(numbers: Rows, others: int) -> Rows:
    """Item numbers of candidates followed by those of other items, which are nobody's counterpart."""
    return np.concatenate([numbers, np.full(others, -1)])


def _values_of(
    found: OwnCounts,
    direction: Direction,
    bits: int,
    reference: str,
    counts: IntArray | None,
    queries: int | None = None,
) -> dict[ValueKey, FloatArray]:
    """Values of each query item, the mean over its texts where each text is a query; NaN for later items."""
    values: dict[ValueKey, FloatArray] = {}
    for metric in PAIRS:
        each = found.rank() if metric.is_rank else found.recall(metric.cutoff or 1)
        if direction == "t2i" and counts is not None:
            each = np.add.reduceat(each, np.cumsum(counts) - counts) / counts
        values[metric.under(reference), direction, bits] = _whole(each, queries)
    return values


def _whole(values: FloatArray, queries: int | None) -> FloatArray:
    """Values of the first queries as those of all, NaN where they are not known."""
    whole = np.full(len(values) if queries is None else queries, np.nan)
    whole[: len(values)] = values
    return whole


# Real values


@dataclass(frozen=True, eq=False)
class RealBlock:
    """Real values of some items, what their codes are made from, and what their content is.

    Attributes:
        values: (name, bits) -> modality -> values in [-1, 1], ranked by their inner product: (n, d) of images, (t, d)
            of texts. Bits are 0 for values that are the same at all lengths.
        texts: (n,) texts of each item. content: features of n items, for NDCG under labels and content.
    """

    values: Mapping[tuple[str, int], Mapping[Modality, NDArray[np.float32]]]
    texts: IntArray
    content: Mapping[Modality, NDArray[np.float32]]


def add_real_pairs(
    evaluation: Evaluation, rankings: Rankings, query: RealBlock, database: Iterable[RealBlock]
) -> Evaluation:
    """The evaluation with pair recall of real values, and of labelled items NDCG under labels and content, added.

    Only the first `compared_queries` queries are ranked; the others are NaN. The candidates are complete.

    Args:
        evaluation: of these rankings. query: all query items. database: its items in order, some at a time; read once.
    """
    queries, items = len(rankings.query), len(rankings.database)
    first = compared_queries(queries, items)
    counters = {
        (key, direction): _counter(query, key, direction, first) for key in query.values for direction in DIRECTIONS
    }
    counts = query.texts[:first] if (query.texts > 1).any() else None
    found = {("", *place): counter.counts() for place, counter in counters.items()}
    gains = ContentGains(rankings, query.content, first) if rankings.labelled else None
    with track("Real values", items, "items") as advance:
        for block in database:
            for (key, direction), counter in counters.items():
                counter.add(block.values[key][DIRECTIONS[direction][1]])
            if gains is not None:
                gains.add(block.content)
            advance(len(block.texts))
    found |= {(WITH_DATABASE, *place): counter.counts() for place, counter in counters.items()}
    values = dict(evaluation.values)
    for (among, (name, own_bits), direction), each in found.items():
        for bits in (own_bits,) if own_bits else rankings.lengths:
            values |= _values_of(each, direction, bits, f"{name} {among}".strip(), counts, queries)
    for key, ndcg in gains.ndcg().items() if gains is not None else ():
        values[NDCG.under(CONTENT), *key] = _whole(ndcg, queries)
    return replace(evaluation, values=values)


def real_values_of(evaluation: Evaluation) -> list[str]:
    """Names of the real values whose pair recall was measured among the query items, in order."""
    names = dict.fromkeys(metric.reference for metric in evaluation.metrics if metric.name == PAIRS[0].name)
    return [name for name in names if name and WITH_DATABASE not in name]


def pair_metrics(reference: str) -> list[Metric]:
    """The metrics of the own counterpart under a reference."""
    return [metric.under(reference) for metric in PAIRS]


def _counter(query: RealBlock, key: tuple[str, int], direction: Direction, first: int) -> ProductCounter:
    """Counts around the own counterparts of the first query items, among all query items."""
    asked, searched = DIRECTIONS[direction]
    values, (queries, candidates) = query.values[key], _item_numbers(len(query.texts), query.texts, direction)
    compared = first if asked == "image" else int(query.texts[:first].sum())
    return ProductCounter(values[asked][:compared], values[searched], queries[:compared], candidates)


class ContentGains:
    """NDCG@100 of the database under labels and content: an item gains by both, none by one alone.

    r(q, i) = idf(q, i) max(0, (cos(image_q, image_i) + cos(text_q, text_i)) / 2), with idf the IDF-weighted number of
    shared labels, and features centred by the mean of the query items.

    Args:
        rankings: of the database. content: modality -> (Q, d) features of the query items.
        queries: number of queries to compare, from the first.
    """

    def __init__(self, rankings: Rankings, content: Mapping[Modality, NDArray[np.float32]], queries: int) -> None:
        labels = rankings.query.labels, rankings.database.labels
        (self._sets,) = LabelSetRelevance.of([GradedRelevance.idf(labels[1])], *labels)
        self._means = {
            modality: each.mean(axis=0, dtype=np.float64).astype(np.float32) for modality, each in content.items()
        }
        self._asked = {modality: self._centred(modality, each[:queries]) for modality, each in content.items()}
        self._left = self._sets.left[self._sets.asked[:queries]].astype(np.float32)
        self._first = {key: ranking.first.rows[:queries] for key, ranking in rankings.items()}
        self._gains = {key: np.zeros(rows.shape) for key, rows in self._first.items()}
        self._ideal = np.zeros((queries, 0), np.float32)
        self._seen = 0

    def _centred(self, modality: Modality, features: NDArray[np.float32]) -> NDArray[np.float32]:
        return unit_rows(features - self._means[modality])

    def add(self, content: Mapping[Modality, NDArray[np.float32]]) -> None:
        """Take the next items of the database."""
        start, count = self._seen, len(content["image"])
        near = sum(self._asked[modality] @ self._centred(modality, each).T for modality, each in content.items())
        gain = np.maximum(np.asarray(near) / 2, 0)
        gain *= self._left @ self._sets.right[self._sets.searched[start : start + count]].T.astype(np.float32)
        for key, rows in self._first.items():
            query, place = np.nonzero((rows >= start) & (rows < start + count))
            self._gains[key][query, place] = gain[query, rows[query, place] - start]
        most = next(iter(self._first.values())).shape[1]
        best = np.concatenate([self._ideal, gain], axis=1)
        self._ideal = best if best.shape[1] <= most else -np.partition(-best, most - 1, axis=1)[:, :most]
        self._seen += count

    def ndcg(self) -> dict[tuple[Direction, int], FloatArray]:
        """NDCG of the compared queries by direction and length; NaN where nothing is relevant."""
        ideal = -np.sort(-self._ideal.astype(np.float64), axis=1)
        best = _dcg(ideal)
        return {
            key: np.divide(_dcg(gains), best, out=np.full(len(best), np.nan), where=best > 0)
            for key, gains in self._gains.items()
        }


def _dcg(gains: FloatArray) -> FloatArray:
    return np.asarray(gains @ (1 / np.log2(np.arange(2, gains.shape[1] + 2))))
