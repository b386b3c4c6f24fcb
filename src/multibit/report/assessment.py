"""A run -> everything that is measured on it, as one value; tables, figures and the page read only this."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.codes import Codes, hamming_distances
from multibit.codes.distance import nearest
from multibit.data import FeatureStore
from multibit.data.encoders import load_text_encoder
from multibit.errors import DataError, MultibitError
from multibit.evaluation.agreement import LengthAgreement, Quantization, cross_length_agreement, quantization
from multibit.evaluation.health import CodeHealth, code_health
from multibit.evaluation.protocol import DIRECTIONS, CodedPairs, Evaluation
from multibit.evaluation.relevance import GradedRelevance
from multibit.evaluation.strata import Stratum, no_shared_label
from multibit.hashing.model import MODALITIES, HashModel, Modality
from multibit.relation import RelationTeacher
from multibit.runs import Run, encode

FloatArray = NDArray[np.float64]
FIRST_RANKS = 1_000  # of the precision@N curve
SAMPLED_QUERIES, SAMPLED_ITEMS = 5, 500  # of the rank displacement picture
TIMED = 200  # single queries and items that are timed


@dataclass(frozen=True)
class Times:
    """Milliseconds of many single runs."""

    median: float
    p95: float


@dataclass(frozen=True, eq=False)
class Cost:
    """What serving costs (Tables `tab:multi-length-cost`, `tab:performance-efficiency-raw`).

    Attributes:
        payload: length -> bytes of all packed codes of that length, both modalities. nested: bytes of the one stored
            code that serves all lengths. model: bytes of the weights. parameters: trained. flops: of coding
            one picture and one text from their features.
        encode: modality -> time of coding one feature vector. query: length -> time of one exact search of 100 hits.
    """

    payload: dict[int, int]
    nested: int
    model: int
    parameters: int
    flops: int
    encode: dict[Modality, Times]
    query: dict[int, Times]


@dataclass(frozen=True, eq=False)
class Assessment:
    """All measurements of a run.

    Attributes:
        name: for tables. run: facts of the run, by name. lengths: measured.
        evaluations: one per protocol, the field's usual one first.
        agreement: direction -> rankings of all pairs of lengths. quantization: (direction, length).
        health: modality -> use of the bits in the database. cost: of serving.
        strata: direction -> the two strata without shared labels; empty without a text encoder for the label names.
        precision: (direction, length) -> (n,) mean precision at ranks 1..n.
        displacement: (2, points) normalised rank at the shortest length, and its change at the longest, of a sample.
        shared: number of shared labels -> (B + 1,) share of image-to-text pairs at each distance.
        teacher: that the run learned from. blocks: bits of each scale.
        warnings: what should make one suspicious, in sentences.
    """

    name: str
    run: dict[str, str]
    lengths: tuple[int, ...]
    evaluations: list[Evaluation]
    agreement: dict[str, list[LengthAgreement]]
    quantization: dict[tuple[str, int], Quantization]
    health: dict[Modality, CodeHealth]
    cost: Cost
    strata: dict[str, tuple[Stratum, Stratum]]
    precision: dict[tuple[str, int], FloatArray]
    displacement: FloatArray
    shared: dict[int, FloatArray]
    teacher: RelationTeacher
    blocks: tuple[int, ...]
    warnings: list[str]


def assess(run: Run, store: FeatureStore, anchor: Run | None = None) -> Assessment:
    """Measure everything on a run's own split.

    Args:
        run: to measure. store: its features. anchor: the run whose first ranks all candidate pools share; this run
            when None.

    Raises:
        MismatchError: other features than the run was split by, or an anchor of another split.
    """
    run.require_own(store)
    query, database = (encode(run.model, store.take(rows)) for rows in (run.split.query, run.split.database))
    graded, text_note = _references(run, database)
    evaluations = run.evaluate(store, graded=graded, anchor=anchor)
    relaxed = {
        side: {modality: _relax(run, store, rows, modality) for modality in MODALITIES}
        for side, rows in {"query": run.split.query, "database": run.split.database}.items()
    }
    lengths = run.config.lengths
    agreement, quantized, strata, precision = {}, {}, {}, {}
    for direction, (asked, searched) in DIRECTIONS.items():
        q, d = query.codes(asked), database.codes(searched)
        if len(lengths) > 1:
            agreement[direction] = cross_length_agreement(q, d, lengths)
        for bits in lengths:
            sides = relaxed["query"][asked], relaxed["database"][searched]  # type: ignore[index]
            quantized[direction, bits] = quantization(*sides, bits)
            precision[direction, bits] = _precision_curve(q, d, query.labels, database.labels, bits)
        if len(graded) > 1:
            with contextlib.suppress(DataError):  # every pair shares a label
                strata[direction] = no_shared_label(
                    q, d, query.labels, database.labels, graded[1], run.teacher.graph.weights, min(64, run.model.bits)
                )
    health = {m: code_health(database.codes(m), lengths, run.model.blocks) for m in MODALITIES}
    return Assessment(
        name=run.folder.resolve().name,
        run=_facts(run),
        lengths=lengths,
        evaluations=evaluations,
        agreement=agreement,
        quantization=quantized,
        health=health,
        cost=_cost(run, store, query, database),
        strata=strata,
        precision=precision,
        displacement=_displacement(query.image, database.text, lengths),
        shared=_distances_by_shared_labels(query, database, run.model.bits),
        teacher=run.teacher,
        blocks=run.model.blocks,
        warnings=[*_suspicions(run, store, evaluations[0], health), *text_note],
    )


def _references(run: Run, database: CodedPairs) -> tuple[list[GradedRelevance], list[str]]:
    """The IDF evaluator, and the label-name evaluator where a text encoder and names are at hand."""
    idf = GradedRelevance.idf(database.labels)
    try:
        own = run.recipe.text
        encoder = (
            load_text_encoder(own.source or own.name, **own.options)
            if own.weights
            else load_text_encoder("all-minilm-l6-v2")
        )
        return [idf, GradedRelevance.semantic(run.label_names, encoder.encode)], []
    except MultibitError as error:
        return [idf], [f"No label-name evaluator: {error}"]


def _relax(run: Run, store: FeatureStore, rows: NDArray[np.int64], modality: Modality) -> NDArray[np.float32]:
    pairs = store.take(rows)
    return run.model.encode(pairs.image if modality == "image" else pairs.mean_text, modality)


def _precision_curve(
    query: Codes, database: Codes, query_labels: NDArray[np.uint8], labels: NDArray[np.uint8], bits: int
) -> FloatArray:
    rows = nearest(query, database, FIRST_RANKS, bits).rows  # (Q, n)
    hits = np.stack([(labels[r] @ y.astype(np.int64)) > 0 for r, y in zip(rows, query_labels, strict=True)])
    return np.asarray((np.cumsum(hits, axis=1) / np.arange(1, rows.shape[1] + 1)).mean(axis=0))


def _displacement(query: Codes, database: Codes, lengths: Sequence[int]) -> FloatArray:
    """Ranks among a sample of items, as the four-panel figure of the paper does."""
    rng = np.random.default_rng(0)
    asked = query.take(rng.permutation(len(query))[:SAMPLED_QUERIES])
    items = database.take(np.sort(rng.permutation(len(database))[:SAMPLED_ITEMS]))
    ranked = [
        np.argsort(np.argsort(hamming_distances(asked, items, bits), axis=1, kind="stable"), axis=1, kind="stable")
        for bits in (min(lengths), max(lengths))
    ]
    before, after = (each.ravel() / max(len(items) - 1, 1) for each in ranked)
    return np.stack([before, after - before])


def _distances_by_shared_labels(query: CodedPairs, database: CodedPairs, bits: int) -> dict[int, FloatArray]:
    sample = query.take(np.arange(min(len(query), 200)))
    distance = hamming_distances(sample.image, database.text)
    shared = np.minimum(sample.labels.astype(np.int64) @ database.labels.T.astype(np.int64), 3)
    groups = {count: distance[shared == count] for count in range(4)}
    return {count: np.bincount(d, minlength=bits + 1) / len(d) for count, d in groups.items() if len(d)}


def _cost(run: Run, store: FeatureStore, query: CodedPairs, database: CodedPairs) -> Cost:
    model, items = run.model, 2 * len(database)
    parameters = sum(weights.numel() for weights in model.parameters())
    inputs = model.image_dim + model.text_dim
    layers = inputs * model.hidden + 2 * model.hidden * model.dimension + 2 * model.dimension * model.bits
    pairs = store.take(run.split.query[:1])
    vectors: dict[Modality, NDArray[np.float32]] = {"image": pairs.image, "text": pairs.mean_text}
    asked = query.image.take([0])
    return Cost(
        payload={bits: items * -(-bits // 8) for bits in run.config.lengths},
        nested=items * -(-model.bits // 8),
        model=sum(weights.numel() * weights.element_size() for weights in model.state_dict().values()),
        parameters=parameters,
        flops=2 * layers,
        encode={m: _time(partial(_code, model, vectors[m], m)) for m in MODALITIES},
        query={b: _time(partial(nearest, asked, database.text, 100, b, threads=1)) for b in run.config.lengths},
    )


def _code(model: HashModel, vector: NDArray[np.float32], modality: Modality) -> Codes:
    return Codes.from_signs(model.encode(vector, modality))


def _time(work: Callable[[], Any]) -> Times:
    work()
    times = np.empty(TIMED)
    for i in range(TIMED):
        start = time.perf_counter()
        work()
        times[i] = 1e3 * (time.perf_counter() - start)
    return Times(float(np.median(times)), float(np.quantile(times, 0.95)))


def _facts(run: Run) -> dict[str, str]:
    return {
        "code": f"{run.model.bits} bits",
        "bits of the scales": f"{', '.join(map(str, run.model.blocks))}, local to long range",
        "settings": ", ".join(f"{name} {value}" for name, value in run.config.to_dict().items()),
        "selected epoch": f"{run.record['selection']['epoch']} ({run.record['selection']['rule']})",
        "split": f"seed {run.split.seed}: {len(run.split.train):,} train, {len(run.split.validation):,} validation, "
        f"{len(run.split.query):,} query, {len(run.split.database):,} database",
        "picture features": f"{run.recipe.image.name}, {run.model.image_dim}-d",
        "text features": f"{run.recipe.text.name}, {run.model.text_dim}-d",
        "model": str(run.record["model"]),
        "data": str(run.record["data"]),
        "versions": ", ".join(f"{name} {value}" for name, value in run.record["versions"].items()),
    }


def _suspicions(run: Run, store: FeatureStore, evaluation: Evaluation, health: dict[Modality, CodeHealth]) -> list[str]:
    found = []
    for modality, each in health.items():
        if each.distinct[max(each.distinct)] == 1:
            found.append(f"All {modality} codes are equal.")
        elif len(each.dead):
            found.append(f"{len(each.dead)} bits are the same in all {modality} codes: {each.dead[:8].tolist()}.")
    gaps = [abs(evaluation.mean("mAP", "i2t", b) - evaluation.mean("mAP", "t2i", b)) for b in evaluation.lengths]
    if max(gaps) < 1e-9:
        found.append("Both directions have the same mAP to nine digits: are the modalities mixed up?")
    seen = {row.tobytes() for row in np.asarray(store.image)[run.split.train]}
    repeated = sum(row.tobytes() in seen for row in np.asarray(store.image)[run.split.query])
    if repeated:
        found.append(f"{repeated:,} queries have the picture features of a training item: duplicates leak labels.")
    if evaluation.undefined:
        found.append(f"{evaluation.undefined:,} queries have no relevant item and are left out of the means.")
    return found
