"""Evaluation protocols: rankings of both directions at all lengths -> per-query values of every metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from multibit.arrays import FloatArray, mean_of
from multibit.codes import DIRECTIONS, CodedItems
from multibit.codes.items import MODALITIES, Modality
from multibit.errors import DataError, counted, require_kind
from multibit.evaluation.evaluation import Evaluation, ValueKey
from multibit.evaluation.floors import popularity_floor, random_floor
from multibit.evaluation.metric import (
    COLLISION,
    INVERSION,
    MAP,
    MAP_ASYMMETRIC,
    MAP_BEST_TIES,
    MAP_TIE_AVERAGED,
    MAP_WORST_TIES,
    NDCG,
    PRECISION,
    TAU_B,
    Metric,
)
from multibit.evaluation.metrics import (
    Ties,
    average_precision,
    average_precision_of,
    precision_of,
    precision_recall_of,
)
from multibit.evaluation.pair_metrics import add_pair_recall
from multibit.evaluation.ranking import Anchor, Rankings
from multibit.evaluation.real_precision import asymmetric_average_precision
from multibit.evaluation.relevance import GradedRelevance, LabelSetRelevance
from multibit.evaluation.resolution import ideal_of_sets, ndcg_of_rows, pool_resolution
from multibit.evaluation.sampling import sampled_queries
from multibit.progress import track

TIES: dict[Metric, Ties] = {
    MAP: "stable", MAP_TIE_AVERAGED: "average", MAP_BEST_TIES: "best", MAP_WORST_TIES: "worst"
}  # fmt: skip


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
