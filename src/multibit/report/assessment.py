"""A run -> everything that is measured on it, as one value; tables, figures and the page read only this."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.codes import Codes, hamming_distances
from multibit.codes.distance import nearest
from multibit.data import FeatureStore
from multibit.data.encoders import load_text_encoder
from multibit.errors import DataError, MultibitError
from multibit.evaluation.agreement import LengthAgreement, Quantization, cross_length_agreement, quantization
from multibit.evaluation.health import CodeHealth, code_health
from multibit.evaluation.metrics import pack_labels
from multibit.evaluation.protocol import DIRECTIONS, CodedPairs, Evaluation, add_asymmetric, add_resolution
from multibit.evaluation.relevance import GradedRelevance
from multibit.evaluation.strata import Stratum, no_shared_label
from multibit.hashing.model import MODALITIES, HashModel, Modality
from multibit.relation import RelationTeacher
from multibit.report.tables import counted
from multibit.runs import Run

FloatArray = NDArray[np.float64]
Relaxed = dict[str, NDArray[np.float32]]
FIRST_RANKS = 1_000  # of the precision@N curve
SAMPLED_QUERIES, SAMPLED_ITEMS = 5, 500  # of the rank displacement picture
COUNTED_QUERIES, MOST_SHARED = 200, 3  # of the picture of distances by shared labels; 3 stands for 3 or more
BLOCK = 64  # queries whose first ranks are in memory at once
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
        precision: (direction, length) -> (n,) mean precision at ranks 1..n of the queries that have a relevant item.
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


def assess(
    run: Run, store: FeatureStore, anchor: Run | None = None, evaluations: Sequence[Evaluation] | None = None
) -> Assessment:
    """Measure everything on a run's own split.

    Args:
        run: to measure. store: its features. anchor: the run whose first ranks all candidate pools share; this run
            when None.
        evaluations: what `run.evaluate(store)` gave, so that it is not measured again; measured here when None.

    Raises:
        MismatchError: other features than the run was split by, or an anchor of another split.
    """
    run.require_own(store)
    run.require_same_split(anchor or run)
    split, lengths = run.split, run.config.lengths
    asked, searched = (_relax(run, store, rows) for rows in (split.query, split.database))
    query, database = (_coded(each, store, rows) for each, rows in ((asked, split.query), (searched, split.database)))
    graded, text_note = _references(run, database)
    complete = []
    for evaluation, rows in zip(evaluations or run.evaluate(store), run.databases.values(), strict=True):
        part = database.take(np.flatnonzero(np.isin(split.database, rows)))
        first = None if anchor is None else run.first_rows(store, rows, anchor)
        asymmetric = add_asymmetric(evaluation, asked, query.labels, part)
        complete.append(add_resolution(asymmetric, query, part, graded, first))
    agreement, quantized, strata, precision = {}, {}, {}, {}
    for direction, (one, other) in DIRECTIONS.items():
        q, d = query.codes(one), database.codes(other)
        if len(lengths) > 1:
            agreement[direction] = cross_length_agreement(q, d, lengths)
        for bits in lengths:
            quantized[direction, bits] = quantization(asked[one], searched[other], bits)
            precision[direction, bits] = precision_curve(q, d, query.labels, database.labels, FIRST_RANKS, bits)
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
        evaluations=complete,
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
        warnings=[*_suspicions(run, store, complete[0], health), *text_note],
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


def _relax(run: Run, store: FeatureStore, rows: NDArray[np.int64]) -> Relaxed:
    """Modality -> (n, B) codes before the sign."""
    pairs = store.take(rows)
    return {"image": run.model.encode(pairs.image, "image"), "text": run.model.encode(pairs.mean_text, "text")}


def _coded(relaxed: Relaxed, store: FeatureStore, rows: NDArray[np.int64]) -> CodedPairs:
    image, text = (Codes.from_signs(relaxed[modality]) for modality in MODALITIES)
    return CodedPairs(image, text, store.dataset.labels[rows])


def precision_curve(
    query: Codes, database: Codes, query_labels: ArrayLike, labels: ArrayLike, ranks: int, bits: int | None = None
) -> FloatArray:
    """Mean precision at the first 1, 2, ... ranks, ties by row: (min(ranks, N),), of queries with a relevant item.

    Raises:
        DataError: labels that do not fit, or no query has a relevant item.
    """
    asked, searched = pack_labels(query_labels, len(query), "query"), pack_labels(labels, len(database), "database")
    columns = min(ranks, len(database))
    hits, defined = np.zeros(columns), 0
    for start in range(0, len(query), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(query)))
        for q, rows in zip(block, nearest(query.take(block), database, ranks, bits).rows, strict=True):
            relevant = np.any(searched & asked[:, q : q + 1], axis=0)
            if relevant.any():
                hits += np.cumsum(relevant[rows])
                defined += 1
    if not defined:
        raise DataError(f"none of the {len(query)} queries has a relevant item: precision has no mean.")
    return hits / (defined * np.arange(1, columns + 1))


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
    counts = np.zeros((MOST_SHARED + 1, bits + 1), np.int64)
    labels = database.labels.astype(np.float32)  # a real matrix product is fast, and exact for counts
    for q in range(min(len(query), COUNTED_QUERIES)):
        distance = hamming_distances(query.image.take([q]), database.text)[0]
        shared = np.minimum(labels @ query.labels[q].astype(np.float32), MOST_SHARED).astype(np.int64)
        counts += np.bincount(shared * (bits + 1) + distance, minlength=counts.size).reshape(counts.shape)
    return {number: row / row.sum() for number, row in enumerate(counts) if row.any()}


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
        "split": run.split.describe(),
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
            bits = counted(len(each.dead), "bit is", "bits are")
            found.append(f"{bits} the same in all {modality} codes: {each.dead[:8].tolist()}.")
    gaps = [abs(evaluation.mean("mAP", "i2t", b) - evaluation.mean("mAP", "t2i", b)) for b in evaluation.lengths]
    if max(gaps) < 1e-9:
        found.append("Both directions have the same mAP to nine digits: are the modalities mixed up?")
    seen = {row.tobytes() for row in np.asarray(store.image)[run.split.train]}
    repeated = sum(row.tobytes() in seen for row in np.asarray(store.image)[run.split.query])
    if repeated:
        queries = counted(repeated, "query has", "queries have")
        found.append(f"{queries} the picture features of a training item: duplicates leak labels.")
    if evaluation.undefined:
        queries = counted(evaluation.undefined, "query", "queries")
        found.append(f"Left out of the means: {queries} without any relevant item.")
    return found
