"""Evaluation protocols: rankings of both directions at all lengths -> per-query values of every metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import FloatArray, Labels, mean_of
from multibit.codes import DIRECTIONS, CodedItems, Codes
from multibit.codes.items import DIRECTION_NAMES, MODALITIES, Direction, Modality
from multibit.data.dataset import LabelRows
from multibit.errors import ConfigError, DataError, counted, require_kind
from multibit.evaluation.metric import (
    COLLISION,
    INVERSION,
    MAP,
    MAP_ASYMMETRIC,
    MAP_BEST_TIES,
    MAP_TIE_AVERAGED,
    MAP_WORST_TIES,
    NDCG,
    PAIR_RECALL,
    PRECISION,
    TAU_B,
    Metric,
    as_metric,
)
from multibit.evaluation.metrics import (
    PrecisionRecall,
    RankingCounts,
    Ties,
    average_precision,
    average_precision_of,
    precision_of,
    precision_recall_of,
)
from multibit.evaluation.pair_metrics import add_pair_recall
from multibit.evaluation.ranking import Anchor, Key, Rankings
from multibit.evaluation.real_precision import asymmetric_average_precision
from multibit.evaluation.relevance import GradedRelevance, LabelSetRelevance
from multibit.evaluation.resolution import ideal_of_sets, ndcg_of_rows, pool_resolution
from multibit.evaluation.sampling import sampled_queries
from multibit.progress import track
from multibit.table import Cell, Table

TIES: dict[Metric, Ties] = {
    MAP: "stable", MAP_TIE_AVERAGED: "average", MAP_BEST_TIES: "best", MAP_WORST_TIES: "worst"
}  # fmt: skip
ValueKey = tuple[Metric, Direction, int]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Per-query values of one protocol.

    Attributes:
        protocol: human-readable description of the database.
        lengths: the code lengths.
        queries, database: number of items.
        values: (metric, direction, bits) -> (Q,) per-query values, NaN where undefined. The metrics are mAP under its
            four tie rules; with a rank cutoff also mAP and precision at it; for each graded relevance NDCG@100, tau-b,
            collision and inversion; with relaxed queries the asymmetric mAP; pair recall where it was added, alone for
            items without labels.
        floors: name -> (Q,) average precision of a ranking that learned nothing; none without labels.
        curves: (direction, bits) -> precision-recall points by Hamming radius; none without labels.
        name: of the run, for tables. fingerprints: of "run", "data" and "split", as far as known.

    Evaluations are equal when all fields are; undefined values equal each other.

    Example:
        >>> from multibit import evaluate_run
        >>> evaluation, unseen = evaluate_run(run, store)
        >>> evaluation.lengths, evaluation.queries, unseen.database
        ((4, 8), 6, 7)
        >>> evaluation.of("mAP", "t2i", 8).shape, 0 < evaluation.mean("mAP", "t2i", 8) <= 1
        ((6,), True)
    """

    protocol: str
    lengths: tuple[int, ...]
    queries: int
    database: int
    values: dict[ValueKey, FloatArray] = field(repr=False)
    floors: dict[str, FloatArray] = field(repr=False)
    curves: dict[Key, PrecisionRecall] = field(repr=False)
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

    def __repr__(self) -> str:
        sizes = f"{self.queries:,} queries, {self.database:,} items"
        return f"Evaluation({self.name!r:.60}, {self.protocol}, {sizes}, {len(self.lengths)} lengths)"

    def _repr_html_(self) -> str:
        """Mean of every metric in percent, for notebooks."""
        rows: list[tuple[Cell, ...]] = [
            (
                f"{DIRECTION_NAMES[direction]}, {metric}",
                *(metric.shown(self.mean(metric, direction, bits)) for bits in self.lengths),
            )
            for metric in self.metrics
            for direction in DIRECTIONS
        ]
        header = ("", *(f"{bits} bits" for bits in self.lengths))
        return Table(
            f"{self.name}, {self.protocol}", header, tuple(rows), "In percent, ranks as they are."
        )._repr_html_()

    @property
    def undefined(self) -> int:
        """Queries without any relevant item in the database: left out of every mean. 0 without labels."""
        return int(np.isnan(self.floors["random"]).sum()) if self.labelled else 0

    @property
    def labelled(self) -> bool:
        """Whether the items have labels; without them only pair recall is measured."""
        return "random" in self.floors

    @property
    def metrics(self) -> list[Metric]:
        """The measured metrics, in order."""
        return list(dict.fromkeys(metric for metric, _, _ in self.values))

    @property
    def headline(self) -> Metric:
        """The metric that reports and comparisons begin with: mAP, or R@10 without labels."""
        return MAP if self.labelled else PAIR_RECALL

    @property
    def references(self) -> list[str]:
        """Names of the graded relevances of the resolution metrics, in order."""
        return list(dict.fromkeys(metric.reference for metric in self.metrics if metric.name == TAU_B.name))

    def of(self, metric: Metric | str, direction: Direction, bits: int) -> FloatArray:
        """(Q,) values of a metric, NaN where undefined.

        Raises:
            ConfigError: not measured; the message lists what was measured.
        """
        key = as_metric(metric), direction, bits
        if key not in self.values:
            directions, lengths = (dict.fromkeys(str(key[place]) for key in self.values) for place in (1, 2))
            raise ConfigError(
                f"{metric}, {direction}, {bits} bits was not measured; choose from the metrics "
                f"{', '.join(map(str, self.metrics))}, the directions {', '.join(directions)} and the lengths "
                f"{', '.join(lengths)}.",
                option="metric",
            )
        return self.values[key]

    def mean(self, metric: Metric | str, direction: Direction, bits: int) -> float:
        """Mean, or of ranks the median, over the queries for which the metric is defined; NaN if there are none.

        Raises:
            ConfigError: not measured; the message lists what was measured.
        """
        return as_metric(metric).summary(self.of(metric, direction, bits))

    def mean_of_directions(self, metric: Metric | str, bits: int) -> float:
        """Mean of the two directions' means."""
        return float(np.mean([self.mean(metric, direction, bits) for direction in DIRECTIONS]))

    def floor(self, name: str) -> float:
        """Mean of a floor over the queries for which it is defined.

        Raises:
            ConfigError: not measured; the message lists what was measured.
        """
        if name not in self.floors:
            known = ", ".join(self.floors) or "none"
            raise ConfigError(f"floor {name!r} was not measured; choose from {known}.", option="name")
        return mean_of(self.floors[name])

    def to_dict(self) -> dict[str, Any]:
        """All fields except the per-query values as plain values, for JSON; undefined means are null."""
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
                {"metric": str(metric), "direction": direction, "bits": bits, "value": mean}
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
    query: CodedItems,
    database: CodedItems,
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
    """Rank the database for every query in both directions at every length, and compute the metrics.

    Row i of the images and row i of the texts are the same item: each is the own counterpart of the other. Without any
    labels only pair recall is measured.

    Args:
        query, database: coded items, with codes at least as long as the longest length.
        lengths: prefix lengths.
        training_labels: (n, C) multi-hot, for the frequency of each label (popularity floor).
        protocol: human-readable description of the database.
        at: also compute mAP and precision at this rank.
        graded, anchor: also compute resolution, as `add_resolution` does.
        name: of the run, for tables. fingerprints: of "run", "data" and "split".

    Raises:
        DataError: no query or item, labels but no query with a relevant item, `at` without labels, or codes shorter
            than a length. ConfigError: `at` less than 1.

    Example:
        >>> labels = np.eye(4, dtype=np.uint8)[np.arange(12) % 4]
        >>> items = CodedItems.binarize({"image": labels - 0.5, "text": labels - 0.5}, labels)
        >>> found = evaluate(items.take(np.arange(4)), items.take(np.arange(4, 12)), (2, 4), training_labels=labels)
        >>> found.mean("mAP", "i2t", 4), round(found.floor("random"), 3)
        (1.0, 0.434)
    """
    for side, items in (("query", query), ("database", database)):
        require_kind(items, CodedItems, side, "Make them with CodedItems.binarize(values, labels).")
    rankings = Rankings(query, database, lengths)
    measured = evaluate_rankings(
        rankings, training_labels=training_labels, protocol=protocol, at=at, name=name, fingerprints=fingerprints
    )
    measured = add_pair_recall(measured, rankings)
    return add_resolution(measured, rankings, graded, anchor) if graded else measured


def evaluate_rankings(
    rankings: Rankings,
    *,
    training_labels: ArrayLike | None,
    protocol: str = "the whole database",
    at: int | None = None,
    name: str = "run",
    fingerprints: Mapping[str, str] | None = None,
) -> Evaluation:
    """Compute mAP and precision-recall curves of rankings; the arguments are those of `evaluate`.

    Without training labels there is no popularity floor, and without any labels there are no values at all.
    """
    sizes, known = (len(rankings.query), len(rankings.database)), dict(fingerprints or {})
    if not rankings.labelled:
        if at is not None:
            raise DataError("mAP and precision at a rank need labels, and no item has one.", option="at")
        return Evaluation(protocol, rankings.lengths, *sizes, {}, {}, {}, name, known)
    labels = rankings.query.labels, rankings.database.labels
    if not (labels[0].any(axis=0) & labels[1].any(axis=0)).any():
        queries = counted(len(rankings.query), "query", "queries")
        raise DataError(f"no query has a relevant item in the database ({queries}; {protocol}).", field="labels")
    values: dict[ValueKey, FloatArray] = {}
    curves = {}
    with track(f"Ranking, {protocol}", len(rankings), "rankings") as advance:
        for (direction, bits), ranking in rankings.items():
            cut = None if at is None else ranking.counts_at(at)  # first: the same pass counts the whole ranking
            for metric, ties in TIES.items():
                values[metric, direction, bits] = average_precision_of(ranking.counts, ties)
            curves[direction, bits] = precision_recall_of(ranking.counts)
            if at is not None and cut is not None:
                values[MAP.at(at), direction, bits] = average_precision_of(cut, "stable")
                values[PRECISION.at(at), direction, bits] = precision_of(cut)
            advance()
    floors = {"random": random_floor(rankings["i2t", rankings.lengths[0]].counts)}
    if training_labels is not None:
        floors["popularity"] = popularity_floor(*labels, training_labels)
    return Evaluation(protocol, rankings.lengths, *sizes, values, floors, curves, name, known)


def add_resolution(
    evaluation: Evaluation, rankings: Rankings, graded: Sequence[GradedRelevance], anchor: Anchor | None = None
) -> Evaluation:
    """The evaluation with NDCG@100, tau-b, collision and inversion rate under each reference added.

    Args:
        evaluation: of these rankings. graded: the references.
        anchor: first rows of the run that shares its candidates with all pools; this run when None.
    """
    values = dict(evaluation.values)
    query, database = rankings.query, rankings.database
    sets = LabelSetRelevance.of(graded, query.labels, database.labels)
    ideal = [ideal_of_sets(each) for each in sets]
    with track(f"Resolution, {evaluation.protocol}", len(rankings), "rankings") as advance:
        for (direction, bits), ranking in rankings.items():
            first = ranking.first.rows
            pools = pool_resolution(ranking, sets, first if anchor is None else anchor[direction, bits])
            for each, of_sets, gains, pool in zip(graded, sets, ideal, pools, strict=True):
                key = direction, bits
                values[NDCG.under(each.name), *key] = ndcg_of_rows(first, of_sets, gains)
                for metric, found in zip((TAU_B, COLLISION, INVERSION), pool, strict=True):
                    values[metric.under(each.name), *key] = found
            advance()
    return replace(evaluation, values=values)


def asymmetric_queries(queries: int, database: int) -> int:
    """Number of queries, from the first, with an asymmetric mAP."""
    return sampled_queries(queries, database, most=1_000, pairs=50_000_000)


def add_asymmetric(evaluation: Evaluation, rankings: Rankings) -> Evaluation:
    """The evaluation with the asymmetric mAP added: queries keep their real values, the database is binary.

    Real-valued rankings are sorted, so only the first `asymmetric_queries` are evaluated; the others are NaN.

    Args:
        evaluation: of these rankings, whose queries have relaxed codes. rankings: read for their items.
    """
    values = dict(evaluation.values)
    query, database = rankings.query, rankings.database
    labels = query.labels[: asymmetric_queries(len(query), len(database))]
    with track(f"Asymmetric, {evaluation.protocol}", len(rankings), "rankings") as advance:
        for direction, bits in rankings:
            asked, searched = DIRECTIONS[direction]
            relaxed = query.at(bits).relaxed[asked][: len(labels)]
            whole = np.full(evaluation.queries, np.nan)
            whole[: len(labels)] = asymmetric_average_precision(
                relaxed, database.at(bits).codes(searched), labels, database.labels, bits
            )
            values[MAP_ASYMMETRIC, direction, bits] = whole
            advance()
    return replace(evaluation, values=values)


def selection_score(query: CodedItems, database: CodedItems, lengths: Sequence[int]) -> float:
    """Mean mAP over both directions and all lengths; selects the best epoch on validation data.

    Raises:
        DataError: no query has a relevant item.
    """
    values = [
        average_precision(
            query.at(bits).codes(asked), database.at(bits).codes(searched), query.labels, database.labels, bits
        )
        for asked, searched in DIRECTIONS.values()
        for bits in lengths
    ]
    if np.isnan(values).all():
        queries = counted(len(query), "query", "queries")
        raise DataError(f"no query has a relevant item ({queries}): the mean is undefined.", field="labels")
    return float(np.nanmean(values))  # the same queries are undefined in every ranking


def within_modality(
    query: CodedItems, database: CodedItems, lengths: Sequence[int]
) -> dict[Modality, dict[int, float]]:
    """Mean average precision within a modality: modality -> length -> mAP."""
    labels = query.labels, database.labels
    return {
        modality: {
            bits: mean_of(
                average_precision(query.at(bits).codes(modality), database.at(bits).codes(modality), *labels, bits)
            )
            for bits in lengths
        }
        for modality in MODALITIES
    }


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


def _plain(values: FloatArray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _equal(a: Mapping[Any, NDArray[Any]], b: Mapping[Any, NDArray[Any]]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key], equal_nan=True) for key in a)
