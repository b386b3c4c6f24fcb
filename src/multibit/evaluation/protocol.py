"""Two directions x all lengths -> a stream of per-query values; tables and significance read this stream."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.codes import Codes
from multibit.codes.distance import nearest
from multibit.errors import ConfigError, DataError
from multibit.evaluation.agreement import asymmetric_average_precision
from multibit.evaluation.metrics import (
    PrecisionRecall,
    Ties,
    average_precision,
    average_precision_of,
    count_rankings,
    precision_recall_of,
)
from multibit.evaluation.relevance import GradedRelevance
from multibit.evaluation.resolution import POOL, ideal_gains, ndcg_at, pool_resolution
from multibit.progress import progress

Side = Literal["image", "text"]
DIRECTIONS: dict[str, tuple[Side, Side]] = {"i2t": ("image", "text"), "t2i": ("text", "image")}
"""Direction -> modality of the query, modality of the database."""

TIE_METRICS: dict[str, Ties] = {
    "mAP tie-averaged": "average", "mAP best ties": "best", "mAP worst ties": "worst"
}  # fmt: skip
ASYMMETRIC_QUERIES = 1_000
FloatArray = NDArray[np.float64]
Key = tuple[str, str, int]
Anchor = Mapping[tuple[str, int], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class CodedPairs:
    """Items with a code for each modality and their labels: a query set or a database.

    Attributes:
        image, text: N codes each. labels: (N, C) multi-hot.
    """

    image: Codes
    text: Codes
    labels: NDArray[np.uint8]

    def __post_init__(self) -> None:
        counts = len(self.image), len(self.text), len(self.labels)
        if len(set(counts)) != 1:
            raise DataError(f"{counts[0]} image codes, {counts[1]} text codes, {counts[2]} label rows: must be equal.")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> CodedPairs:
        """Some of the items, in the order given."""
        return CodedPairs(self.image.take(rows), self.text.take(rows), self.labels[rows])

    def codes(self, modality: str) -> Codes:
        """The codes of one modality, "image" or "text"."""
        return self.image if modality == "image" else self.text


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Per-query values of one protocol.

    Attributes:
        protocol: what is in the database, for people.
        lengths: the code lengths.
        queries, database: how many items there are.
        values: (metric, direction, bits) -> (Q,) per-query values, NaN where undefined. "mAP" ranks ties by database
            row, "mAP tie-averaged" is the mean over all tie orders, "mAP best ties" and "mAP worst ties" the bounds;
            with a rank cut k also "mAP@k" and "precision@k"; for each graded relevance X also "NDCG@100 X", "tau-b X",
            "collision X", "inversion X"; with relaxed queries also "mAP asymmetric".
        floors: name -> (Q,) average precision of a ranking that learned nothing, the same in both directions.
        curves: (direction, bits) -> precision-recall points by Hamming radius.
        name: of the run, for tables. fingerprints: "run", "data" and "split" -> 16 digits, as far as they are known.

    Two are equal when everything in them is, undefined values at the same places among it.
    """

    protocol: str
    lengths: tuple[int, ...]
    queries: int
    database: int
    values: dict[Key, FloatArray] = field(repr=False)
    floors: dict[str, FloatArray] = field(repr=False)
    curves: dict[tuple[str, int], PrecisionRecall] = field(repr=False)
    name: str = "run"
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Evaluation):
            return NotImplemented
        return (
            self.to_dict() == other.to_dict()
            and _equal(self.values, other.values)
            and _equal(self.floors, other.floors)
        )

    @property
    def undefined(self) -> int:
        """Queries without any relevant item in the database: left out of every mean."""
        return int(np.isnan(self.floors["random"]).sum())

    @property
    def metrics(self) -> list[str]:
        """Names of what was measured, in order."""
        return list(dict.fromkeys(metric for metric, _, _ in self.values))

    def mean(self, metric: str, direction: str, bits: int) -> float:
        """Mean over the queries for which the metric is defined; NaN when there is none.

        Raises:
            ConfigError: it was not measured; says what was.
        """
        if (metric, direction, bits) not in self.values:
            directions, lengths = (dict.fromkeys(str(key[place]) for key in self.values) for place in (1, 2))
            raise ConfigError(
                f"{metric!r}, {direction!r}, {bits} bits: was not measured. There are the metrics "
                f"{', '.join(self.metrics)}; the directions {', '.join(directions)}; the lengths {', '.join(lengths)}."
            )
        values = self.values[metric, direction, bits]
        defined = values[~np.isnan(values)]
        return float(defined.mean()) if len(defined) else math.nan

    def floor(self, name: str) -> float:
        """Mean of a floor over the queries for which it is defined.

        Raises:
            ConfigError: no such floor; says which there are.
        """
        if name not in self.floors:
            raise ConfigError(f"floor {name!r}: was not measured. There are {', '.join(self.floors) or 'none'}.")
        return float(np.nanmean(self.floors[name]))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the per-query values as plain values, for JSON; undefined means are null."""
        return {
            "name": self.name,
            "fingerprints": dict(self.fingerprints),
            "protocol": self.protocol,
            "lengths": list(self.lengths),
            "queries": self.queries,
            "queries_without_relevant_item": self.undefined,
            "database": self.database,
            "tie_rule": "distance, then database row",
            "floors": {name: self.floor(name) for name in self.floors},
            "means": [
                {"metric": metric, "direction": direction, "bits": bits, "value": mean}
                for metric, direction, bits in self.values
                for mean in _plain(np.array([self.mean(metric, direction, bits)]))
            ],
            "curves": [
                {
                    "direction": direction,
                    "bits": bits,
                    "radius": curve.radius.tolist(),
                    "precision": _plain(curve.precision),
                    "recall": _plain(curve.recall),
                }
                for (direction, bits), curve in self.curves.items()
            ],
        }


def evaluate(
    query: CodedPairs,
    database: CodedPairs,
    lengths: Sequence[int],
    *,
    training_labels: ArrayLike,
    protocol: str = "the whole database",
    at: int | None = None,
    graded: Sequence[GradedRelevance] = (),
    anchor: Anchor | None = None,
    name: str = "run",
    fingerprints: Mapping[str, str] | None = None,
) -> Evaluation:
    """Search every query in both directions at every length, and measure.

    Args:
        query, database: the two sides, with codes at least as long as the longest length.
        lengths: prefix lengths to measure.
        training_labels: (n, C) multi-hot, to know which labels are common (popularity floor).
        protocol: what is in the database, for people.
        at: also measure mAP@at and precision@at.
        graded, anchor: also measure resolution, as `add_resolution` does.
        name: of the run, for tables. fingerprints: of "run", "data" and "split".

    Raises:
        DataError: an empty side, no query with a relevant item, or codes shorter than a length.
    """
    if not len(query) or not len(database):
        raise DataError(f"nothing to evaluate: {len(query)} queries, {len(database)} database items ({protocol}).")
    floors = {
        "random": random_floor(query.labels, database.labels),
        "popularity": popularity_floor(query.labels, database.labels, training_labels),
    }
    if np.isnan(floors["random"]).all():
        raise DataError(f"none of the {len(query)} queries has a relevant item in the database ({protocol}).")
    defined = ~np.isnan(floors["random"])
    values: dict[Key, FloatArray] = {}
    curves = {}
    with progress(f"Ranking, {protocol}", len(DIRECTIONS) * len(lengths), "rankings") as advance:
        for direction, (asked, searched) in DIRECTIONS.items():
            sides = query.codes(asked), database.codes(searched), query.labels, database.labels
            for bits in lengths:
                counts = count_rankings(*sides, bits)
                values["mAP", direction, bits] = average_precision_of(counts, "stable")
                for metric, ties in TIE_METRICS.items():
                    values[metric, direction, bits] = average_precision_of(counts, ties)
                curves[direction, bits] = precision_recall_of(counts)
                if at is not None:
                    counts = count_rankings(*sides, bits, at)
                    values[f"mAP@{at}", direction, bits] = average_precision_of(counts, "stable")
                    values[f"precision@{at}", direction, bits] = np.where(defined, counts.hits / at, np.nan)
                advance()
    shape = tuple(lengths), len(query), len(database)
    measured = Evaluation(protocol, *shape, values, floors, curves, name, dict(fingerprints or {}))
    return add_resolution(measured, query, database, graded, anchor) if graded else measured


def add_resolution(
    evaluation: Evaluation,
    query: CodedPairs,
    database: CodedPairs,
    graded: Sequence[GradedRelevance],
    anchor: Anchor | None = None,
) -> Evaluation:
    """The evaluation with NDCG@100, tau-b, collision and inversion rate under each reference added.

    Args:
        evaluation: of this query and database. graded: the references.
        anchor: (direction, bits) -> (Q, 100) first rows of the run that all runs share in their candidate pools; the
            run itself when None.
    """
    values = dict(evaluation.values)
    ideal = {each.name: ideal_gains(each, query.labels, database.labels) for each in graded}
    steps = len(DIRECTIONS) * len(evaluation.lengths)
    with progress(f"Resolution, {evaluation.protocol}", steps, "rankings") as advance:
        for direction, (asked, searched) in DIRECTIONS.items():
            sides = query.codes(asked), database.codes(searched), query.labels, database.labels
            for bits in evaluation.lengths:
                first = None if anchor is None else anchor[direction, bits]
                for each in graded:
                    values[f"NDCG@100 {each.name}", direction, bits] = ndcg_at(
                        *sides, each, bits, ideal=ideal[each.name]
                    )
                    pool = pool_resolution(*sides, each, bits, first)
                    values |= {(f"{metric} {each.name}", direction, bits): pool[metric] for metric in pool}
                advance()
    return replace(evaluation, values=values)


def add_asymmetric(
    evaluation: Evaluation,
    relaxed: Mapping[str, ArrayLike],
    query_labels: ArrayLike,
    database: CodedPairs,
) -> Evaluation:
    """The evaluation with "mAP asymmetric" added: queries keep their real values, the database is binary.

    Real products are ranked by sorting, so that only the first 1,000 queries are measured; the others are NaN.

    Args:
        evaluation: of these queries and this database. relaxed: modality -> (Q, B) relaxed codes of the queries.
        query_labels: (Q, C) multi-hot.
    """
    values = dict(evaluation.values)
    steps, labels = len(DIRECTIONS) * len(evaluation.lengths), np.asarray(query_labels)[:ASYMMETRIC_QUERIES]
    with progress(f"Asymmetric, {evaluation.protocol}", steps, "rankings") as advance:
        for direction, (asked, searched) in DIRECTIONS.items():
            for bits in evaluation.lengths:
                found = asymmetric_average_precision(
                    np.asarray(relaxed[asked])[: len(labels)], database.codes(searched), labels, database.labels, bits
                )
                whole = np.full(evaluation.queries, np.nan)
                whole[: len(found)] = found
                values["mAP asymmetric", direction, bits] = whole
                advance()
    return replace(evaluation, values=values)


def first_rows(query: CodedPairs, database: CodedPairs, lengths: Sequence[int]) -> Anchor:
    """The first 100 rows of each query in both directions at all lengths: the anchor that other runs share."""
    return {
        (direction, bits): nearest(query.codes(asked), database.codes(searched), POOL, bits).rows
        for direction, (asked, searched) in DIRECTIONS.items()
        for bits in lengths
    }


def selection_score(query: CodedPairs, database: CodedPairs, lengths: Sequence[int]) -> float:
    """Mean mAP over both directions and all lengths: the number that picks the best epoch on validation data."""
    values = [
        average_precision(query.codes(asked), database.codes(searched), query.labels, database.labels, bits)
        for asked, searched in DIRECTIONS.values()
        for bits in lengths
    ]
    if np.isnan(values).all():
        raise DataError(f"none of the {len(query)} queries has a relevant item: no mean exists.")
    return float(np.nanmean(values))  # every ranking leaves out the same queries


def random_floor(query_labels: NDArray[np.uint8], database_labels: NDArray[np.uint8]) -> FloatArray:
    """Exact expected AP (Q,) of a random order: equal codes, averaged over all tie orders."""
    query, database = _equal_codes(len(query_labels)), _equal_codes(len(database_labels))
    return average_precision(query, database, query_labels, database_labels, ties="average")


def popularity_floor(
    query_labels: NDArray[np.uint8], database_labels: NDArray[np.uint8], training_labels: ArrayLike
) -> FloatArray:
    """AP (Q,) of one order for every query: items with the most common labels first.

    An item's popularity is the sum, over its labels, of their frequency in training: the number of labels that it
    shares with a random training item, on average.
    """
    frequency = np.asarray(training_labels, np.float64).sum(axis=0)
    if frequency.shape != database_labels.shape[1:]:
        raise DataError(f"labels: {frequency.size} columns in training, {database_labels.shape[1]} in the database.")
    popularity = database_labels.astype(np.float64) @ frequency
    order = np.argsort(-popularity, kind="stable")
    query, database = _equal_codes(len(query_labels)), _equal_codes(len(database_labels))
    return average_precision(query, database, query_labels, database_labels[order], ties="stable")


def _equal_codes(count: int) -> Codes:
    return Codes.from_bits(np.zeros((count, 1), np.uint8))


def _plain(values: FloatArray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _equal(a: Mapping[Any, FloatArray], b: Mapping[Any, FloatArray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key], equal_nan=True) for key in a)
