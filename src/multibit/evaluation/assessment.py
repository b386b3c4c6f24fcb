"""All measurements of one model as one value, which tables, figures and pages read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import FloatArray, Rows
from multibit.codes import DIRECTIONS, CodedItems, Modality, hamming_distances
from multibit.codes.items import Direction, length_near
from multibit.errors import DataError, counted
from multibit.evaluation.agreement import (
    LengthAgreement,
    Quantization,
    quantization,
    ranking_agreement,
    ranks,
)
from multibit.evaluation.cost import Cost
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.health import BitUse, CodeHealth
from multibit.evaluation.metric import MAP
from multibit.evaluation.pair_metrics import RealBlock, add_real_pairs
from multibit.evaluation.protocol import add_asymmetric, add_resolution
from multibit.evaluation.ranking import Anchor, Key, Ranking, Rankings
from multibit.evaluation.relevance import GradedRelevance
from multibit.evaluation.sampling import sampled_queries
from multibit.evaluation.strata import Stratum, no_shared_label
from multibit.features.leaks import LookAlikes
from multibit.relation import LabelGraph, RelationTeacher

SAMPLED_QUERIES, SAMPLED_ITEMS = 5, 500  # of the rank displacement figure

AGREEING = {"most": 1_000, "pairs": 100_000_000}  # queries of a measurement, see `sampled_queries`
QUANTIZED = {"most": 200, "pairs": 20_000_000}
APART = {"most": 500, "pairs": 25_000_000}
COUNTED_QUERIES, MOST_SHARED = 200, 3  # of the figure of distances by shared labels; 3 means 3 or more


@dataclass(frozen=True, eq=False)
class Assessment:
    """All measurements of one model on one split.

    Attributes:
        name: for tables. facts: about the run, by name. lengths: measured code lengths.
        evaluations: one per protocol, the whole database first. Of items without labels there is one, and what needs
            labels is empty.
        agreement: direction -> agreement of all pairs of lengths. quantization: by direction and length; empty
            without relaxed values.
        health: modality -> statistics of the bits in the database. cost: of serving; None without a model.
        strata: direction -> the two strata without shared labels; empty without the label-name evaluator.
        precision: by direction and length, (n,) mean precision at ranks 1..n; empty for a run that is compared with.
        displacement: (2, points) normalised rank at the shortest length, and its change at the longest, of a sample.
        shared: number of shared labels -> (B + 1,) share of image-to-text pairs at each distance.
        teacher: the relation teacher of the training; None without a model. blocks: bits of each scale.
        warnings: reasons to doubt the numbers, one sentence each.
        history: of the training, a row per epoch, as `runs.read_history` returns it; empty without a model.
        label_names: of the label columns; empty where they are not known.
        look_alikes: queries with a near-duplicate among other items; None where they were not looked for.
    """

    name: str
    facts: dict[str, str]
    lengths: tuple[int, ...]
    evaluations: list[Evaluation]
    agreement: dict[Direction, list[LengthAgreement]]
    quantization: dict[Key, Quantization]
    health: dict[Modality, CodeHealth]
    cost: Cost | None
    strata: dict[Direction, tuple[Stratum, Stratum]]
    precision: dict[Key, FloatArray]
    displacement: FloatArray
    shared: dict[int, FloatArray]
    teacher: RelationTeacher | None
    blocks: tuple[int, ...]
    warnings: list[str]
    history: Sequence[Mapping[str, float]] = ()
    label_names: Sequence[str] = ()
    look_alikes: LookAlikes | None = None


def assess(
    rankings: Sequence[Rankings],
    evaluations: Sequence[Evaluation],
    *,
    references: Sequence[GradedRelevance],
    bits: BitUse,
    teacher: RelationTeacher | None = None,
    graph: LabelGraph | None = None,
    blocks: Sequence[int] = (),
    cost: Cost | None = None,
    anchors: Sequence[Anchor] | None = None,
    facts: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
    history: Sequence[Mapping[str, float]] = (),
    label_names: Sequence[str] = (),
    real: tuple[RealBlock, Iterable[RealBlock]] | None = None,
    look_alikes: LookAlikes | None = None,
) -> Assessment:
    """Complete the measurements of evaluated rankings; `multibit.measurement.assess_run` does it for a run.

    Args:
        rankings: one per protocol, the whole database first. evaluations: of the rankings. Relaxed values,
            if there are any, give the asymmetric mAP and the quantisation loss.
        teacher: the relation teacher of the training. graph: of the training labels. blocks: bits of each scale.
        references: graded relevances; a normalised one also gives the strata without shared labels, by the graph.
        bits: use of the bits in the database. cost: of serving.
        anchors: first rows of the run that shares its candidates with all pools, by protocol; this run when None.
            A run with other anchors is only compared, so what the figures of a single run show is left out.
        facts: about the run. warnings: from earlier steps. history: of the training.
        label_names: of the label columns, if known.
        real: real values of the query items and of the whole database, for their pair recall; where they are known.
        look_alikes: queries with a near-duplicate among other items, if they were looked for.
    """
    whole, complete, shown = rankings[0], [], anchors is None
    for number, (each, evaluation) in enumerate(zip(rankings, evaluations, strict=True)):
        anchor = None if anchors is None else anchors[number]
        measured = add_asymmetric(evaluation, each) if each.labelled and _has_relaxed(each) else evaluation
        complete.append(add_resolution(measured, each, references, anchor) if references else measured)
    if real is not None:
        complete[0] = add_real_pairs(complete[0], whole, *real)
    query, database, lengths = whole.query, whole.database, whole.lengths
    quantized = sampled_queries(len(query), len(database), **QUANTIZED)
    return Assessment(
        name=complete[0].name,
        facts=dict(facts or {}),
        lengths=lengths,
        evaluations=complete,
        agreement={d: _agreement(whole, d) for d in DIRECTIONS if len(lengths) > 1},
        quantization={
            (direction, bits): quantization(query.at(bits), database.at(bits), direction, bits, quantized)
            for direction, bits in whole
            if _has_relaxed(whole)
        },
        health=bits.health,
        cost=cost,
        strata=_strata(whole, references, graph),
        precision={key: ranking.first.precision for key, ranking in whole.items() if shown and whole.labelled},
        displacement=_displacement(whole["i2t", min(lengths)], whole["i2t", max(lengths)])
        if shown
        else np.zeros((2, 0)),
        shared=_distances_by_shared_labels(query, database, _longest(query)) if shown and whole.labelled else {},
        teacher=teacher,
        blocks=tuple(blocks),
        warnings=[*bits.warnings, *suspicions(complete[0]), *warnings],
        history=history,
        label_names=label_names,
        look_alikes=look_alikes,
    )


def _agreement(rankings: Rankings, direction: Direction) -> list[LengthAgreement]:
    found = (rankings[direction, bits] for bits in rankings.lengths)
    first = np.arange(sampled_queries(len(rankings.query), len(rankings.database), **AGREEING))
    return ranking_agreement({ranking.bits: (ranking.query.take(first), ranking.database) for ranking in found})


def _longest(items: CodedItems) -> int:
    return items.image.bits if items.layout is None else items.layout.longest


def _has_relaxed(rankings: Rankings) -> bool:
    return bool(rankings.query.at(min(rankings.lengths)).relaxed)


def _strata(
    rankings: Rankings, references: Sequence[GradedRelevance], graph: LabelGraph | None
) -> dict[Direction, tuple[Stratum, Stratum]]:
    """Strata of each direction, under the first reference that relates items without a shared label."""
    graded = next((each for each in references if each.normalized), None)
    if graded is None or graph is None:
        return {}
    labels, bits = (rankings.query.labels, rankings.database.labels), length_near(rankings.lengths)
    sides = [(rankings[direction, bits].query, rankings[direction, bits].database) for direction in DIRECTIONS]
    compared = sampled_queries(len(rankings.query), len(rankings.database), **APART)
    try:
        found = no_shared_label(sides, *labels, graded, graph.weights, bits, compared=compared)
    except DataError:  # every pair shares a label
        return {}
    return dict(zip(DIRECTIONS, found, strict=True))


def _displacement(short: Ranking, long: Ranking) -> FloatArray:
    """Ranks among a sample of items, as in the four-panel figure of the paper."""
    rng = np.random.default_rng(0)
    asked = rng.permutation(len(short.query))[:SAMPLED_QUERIES]
    items = np.sort(rng.permutation(len(short.database))[:SAMPLED_ITEMS])
    before, after = (
        np.stack([ranks(row) for row in _distances(each, asked, items)]).ravel() / max(len(items) - 1, 1)
        for each in (short, long)
    )
    return np.stack([before, after - before])


def _distances(ranking: Ranking, asked: Rows, items: Rows) -> NDArray[np.uint16]:
    return hamming_distances(ranking.query.take(asked), ranking.database.take(items), ranking.bits)


def _distances_by_shared_labels(query: CodedItems, database: CodedItems, bits: int) -> dict[int, FloatArray]:
    query, database = query.at(bits), database.at(bits)
    counts = np.zeros((MOST_SHARED + 1, bits + 1), np.int64)
    labels = database.labels.astype(np.float32)  # a float matrix product is fast, and exact for counts
    for q in range(min(len(query), COUNTED_QUERIES)):
        distance = hamming_distances(query.image.take([q]), database.text, bits)[0]
        shared = np.minimum(labels @ query.labels[q].astype(np.float32), MOST_SHARED).astype(np.int64)
        counts += np.bincount(shared * (bits + 1) + distance, minlength=counts.size).reshape(counts.shape)
    return {number: row / row.sum() for number, row in enumerate(counts) if row.any()}


def suspicions(evaluation: Evaluation) -> list[str]:
    """Reasons to doubt the numbers of an evaluation, one sentence each."""
    if not evaluation.labelled:
        return []
    found = []
    gaps = [abs(evaluation.mean(MAP, "i2t", b) - evaluation.mean(MAP, "t2i", b)) for b in evaluation.lengths]
    if max(gaps) < 1e-9:
        found.append("Both directions have the same mAP to nine digits: the modalities may be mixed up.")
    if evaluation.undefined:
        queries = counted(evaluation.undefined, "query", "queries")
        found.append(f"Left out of the means: {queries} without any relevant item.")
    return found
