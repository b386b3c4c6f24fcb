"""Floors: the mAP of rankings that learned nothing, against which that of codes is read."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from multibit.arrays import FloatArray, Labels, mean_of
from multibit.codes import DIRECTIONS, Codes
from multibit.codes.items import DIRECTION_NAMES
from multibit.data.dataset import LabelRows
from multibit.errors import DataError
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.metric import (
    MAP,
)
from multibit.evaluation.metrics import (
    RankingCounts,
    average_precision,
    average_precision_of,
)

ALWAYS = 1 - 1e-9
"""A floor above this is 1, apart from rounding."""


def random_floor(counts: RankingCounts) -> FloatArray:
    """Exact expected AP (Q,) of a random order: all items tied, averaged over all tie orders.

    Args:
        counts: of any ranking; they tell how many items are relevant.
    """
    relevant, total = (each.sum(axis=1, keepdims=True) for each in (counts.relevant, counts.total))
    one_group = RankingCounts(counts.precision_sum, counts.hits, total, relevant, int(total.max()))
    return average_precision_of(one_group, "average")


def popularity_floor(query_labels: Labels, database_labels: Labels, training_labels: ArrayLike) -> FloatArray:
    """AP (Q,) of one order for every query: items with the most common labels first.

    The popularity of an item is the sum, over its labels, of their frequency in training: the mean number of labels
    that it shares with a random training item.

    Raises:
        DataError: training labels with another number of columns.
    """
    frequency = np.asarray(training_labels, np.float64).sum(axis=0)
    if frequency.shape != database_labels.shape[1:]:
        raise DataError(
            f"{frequency.size} columns, the database has {database_labels.shape[1]}.", field="training labels"
        )
    popularity = database_labels.astype(np.float64) @ frequency
    order = np.argsort(-popularity, kind="stable")
    query, database = _equal_codes(len(query_labels)), _equal_codes(len(database_labels))
    return average_precision(query, database, query_labels, database_labels[order], ties="stable")


ALL_RELEVANT = "every item is relevant to every query, so any order has 100 % mAP: it says nothing about the codes"


def floor_warning(evaluation: Evaluation) -> str:
    """A warning where mAP is no sign of learning; else empty.

    Every item is relevant, or codes rank worse than one order for all queries, most common labels first.
    """
    if evaluation.labelled and evaluation.floor("random") > ALWAYS:
        return f"{ALL_RELEVANT} ({evaluation.protocol})."
    if "popularity" not in evaluation.floors:
        return ""
    floor, bits = evaluation.floor("popularity"), max(evaluation.lengths)
    low = [name for name in DIRECTIONS if evaluation.mean(MAP, name, bits) < floor]
    if not low:
        return ""
    found = ", ".join(f"{DIRECTION_NAMES[name]} {100 * evaluation.mean(MAP, name, bits):.2f}" for name in low)
    return (
        f"{found} % mAP at {bits} bits is below the {100 * floor:.2f} % of ranking the most common labels first "
        f"({evaluation.protocol}): nothing was learned, or the labels say little about the items."
    )


def common_labels_floor(labels: LabelRows, sample: int = 1_000) -> float:
    """MAP of ranking the items with the most common labels first, for some items as queries; NaN without labels.

    Args:
        labels: (N, C). sample: number of queries; ten times as many other items are ranked. Drawn with a fixed seed.
    """
    rows = np.random.default_rng(0).permutation(len(labels))
    chosen = min(sample, len(rows) // 2)
    query, database = labels[np.sort(rows[:chosen])], labels[np.sort(rows[chosen : 11 * sample])]
    if not len(query) or not query.any():
        return float("nan")
    return mean_of(popularity_floor(query, database, database))


def _equal_codes(count: int) -> Codes:
    return Codes.from_bits(np.zeros((count, 1), np.uint8))
