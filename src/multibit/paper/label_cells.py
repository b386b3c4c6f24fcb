"""Cells that need labels only: settings, split, scales and label-side teachers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import kendalltau

from multibit.arrays import FloatArray, Labels, mean_of
from multibit.evaluation.relevance import GradedRelevance
from multibit.evaluation.resolution import ideal_gains, ndcg
from multibit.hashing.bits import allocate_bits
from multibit.paper.accuracy_cells import LEARNED, UNIFORM_ALPHA
from multibit.paper.cells import Cells, Column, Named, Nodes, Quantity, Row, Scale
from multibit.paper.reproduction import Reproduction
from multibit.relation import RelationTeacher, teacher_class
from multibit.relation.teacher import quadrature
from multibit.relation.teachers import LearnedWeights

TEACHER_QUERIES = 500  # that a label-side teacher ranks the database for
BLOCK = 1 << 15  # database rows whose scores are held at once
FIDELITY_QUERIES, FIDELITY_CANDIDATES = 200, 2_000  # that both the quadrature kernel and g* rank

VALUE = Quantity("value", "g")
TAU, RHO = Quantity("tau"), Quantity("rho")
BITS, CUMULATIVE = Quantity("bits", ".0f"), Quantity("cumulative", ".0f")
ERROR, FIDELITY = Quantity("error %"), Quantity("tau-b")

FRT, UKM, UMH = Named("FRT"), Named("UKM"), Named("UMH")
SETTINGS = (
    "epsilon", "alpha", "eta", "scales", "dimension", "hidden", "teacher_temperature", "student_temperature",
    "scale_weight", "learning_rate", "batch_size", "epochs",
)  # fmt: skip


def parameters(r: Reproduction, seed: int) -> Cells[float]:
    """The settings of the runs and what follows from them (Table `tab:all-parameters`)."""
    config = r.config
    tau, rho = quadrature(config.alpha, config.eta, config.scales)
    values = {name: float(getattr(config, name)) for name in SETTINGS}
    values |= {"number of lengths": float(len(config.lengths)), "longest length": float(config.code_bits)}
    values |= {f"beta {bits}": beta for bits, beta in zip(config.lengths, config.length_weights, strict=True)}
    of_scales: dict[str, Sequence[float]] = {
        "tau": tau.tolist(), "rho": rho.tolist(), "bits": allocate_bits(rho, config.code_bits),
    }  # fmt: skip
    for name, each in of_scales.items():
        values |= {f"{name} of scale {i}": float(value) for i, value in enumerate(each, start=1)}
    return Cells({(Named(name), VALUE): round(value, 4) for name, value in values.items()})


def data_split(r: Reproduction, seed: int) -> Cells[float]:
    """Number of rows of each part of the split (Table `tab:data-split`)."""
    items, classes = r.subject.labels.shape
    sizes = {"pairs": items, "classes": classes}
    sizes |= {part: len(getattr(r.split, part)) for part in ("train", "validation", "query", "database")}
    return Cells({(Named("split"), Quantity(name, ".0f")): float(size) for name, size in sizes.items()})


def scale_coverage(r: Reproduction, seed: int) -> Cells[float]:
    """Scales, weights and bits (Table `tab:scale-coverage`)."""
    tau, rho = quadrature(r.config.alpha, r.config.eta, r.config.scales)
    bits = allocate_bits(rho, r.config.code_bits)
    columns: dict[Column, ArrayLike] = {TAU: tau, RHO: rho, BITS: bits, CUMULATIVE: np.cumsum(bits)}
    rows = zip(*(np.asarray(values, np.float64).tolist() for values in columns.values()), strict=True)
    scales = enumerate(rows, start=1)
    return Cells({(Scale(i), name): value for i, row in scales for name, value in zip(columns, row, strict=True)})


def quadrature_fidelity(r: Reproduction, seed: int) -> Cells[float]:
    """The quadrature kernel compared with the exact one (Table `tab:quadrature-fidelity`)."""
    exact = _fit(r, "frt")
    rows = np.random.RandomState(42).permutation(r.split.database)[:FIDELITY_CANDIDATES]
    asked = r.subject.labels[r.split.query[:FIDELITY_QUERIES]]
    wanted = np.round(exact.scores(asked, r.subject.labels[rows]), 10)
    cells: Cells[float] = Cells()
    for scales in (2, 4, 8, 16):
        rule = _fit(r, LearnedWeights.name, scales=scales)  # untrained: with the weights of the quadrature
        got = np.round(rule.scores(asked, r.subject.labels[rows]), 10)
        taus = [kendalltau(a, b).statistic for a, b in zip(wanted, got, strict=True)]
        cells[Nodes(scales), ERROR] = 100 * exact.quadrature_error(scales)
        cells[Nodes(scales), FIDELITY] = mean_of(taus)
    return cells


def teacher_quality(r: Reproduction, seed: int) -> Cells[float]:
    """NDCG@100 of label-side teachers (Table `tab:teacher-quality`)."""
    teachers: dict[Row, RelationTeacher] = {
        Named("Binary Relation"): _fit(r, "binary"),
        Named("Jaccard Relation"): _fit(r, "jaccard"),
        Named("Single-scale Graph Relation"): _fit(r, "single-scale"),
        UMH: _fit(r, "umh", UNIFORM_ALPHA),
    }
    if r.subject.store is not None:
        teachers[Named(LEARNED.title)] = r.teacher(LEARNED.method, seed, **LEARNED.settings)
    return _ndcg_of_teachers(r, {**teachers, FRT: _fit(r, "frt")})


def teacher_aligned(r: Reproduction, seed: int) -> Cells[float]:
    """NDCG@100 of teachers with equal scales and normalisation (Table `tab:teacher-aligned`)."""
    return _ndcg_of_teachers(r, {FRT: _fit(r, "frt"), UKM: _fit(r, "ukm"), UMH: _fit(r, "umh")})


def _fit(r: Reproduction, name: str, teacher_alpha: float = 0.0, scales: int | None = None) -> RelationTeacher:
    c = r.config
    labels = r.subject.labels[r.split.train]
    return teacher_class(name).fit(labels, c.alpha, c.eta, scales or c.scales, c.epsilon, teacher_alpha)


def _ndcg_of_teachers(r: Reproduction, teachers: Mapping[Row, RelationTeacher]) -> Cells[float]:
    cells: Cells[float] = Cells()
    for name, graded in r.references.items():
        for row, teacher in teachers.items():
            measure = partial(_ndcg_of, r, teacher, name, graded)
            cells[row, Quantity(name)] = r.remember(("teacher", teacher.fingerprint(), name), measure)
    return cells


def _ndcg_of(r: Reproduction, teacher: RelationTeacher, name: str, graded: GradedRelevance) -> float:
    """Mean NDCG@100 of one teacher under one evaluator."""
    asked, database = (r.subject.labels[rows] for rows in (r.split.query[:TEACHER_QUERIES], r.split.database))
    ranking = partial(first_of_teacher, teacher, asked, database)
    rows = r.remember(("first of teacher", teacher.fingerprint()), ranking)
    ideal = r.remember(("ideal gains", name), partial(ideal_gains, graded, asked, database))
    gains = [graded.scores(asked[q : q + 1], database[rows[q]])[0] for q in range(len(asked))]
    return mean_of([ndcg(got, best) for got, best in zip(gains, ideal, strict=True)])


def first_of_teacher(teacher: RelationTeacher, asked: Labels, database: Labels, k: int = 100) -> NDArray[np.int64]:
    """The first k database rows of each query by a teacher's scores, ties by row: (Q, k).

    Args:
        asked, database: (Q, C) and (N, C) multi-hot labels.
    """
    left, k = teacher.embed(asked), min(k, len(database))
    rows, scores = np.empty((len(left), 0), np.int64), np.empty((len(left), 0))
    for start in range(0, len(database), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(database)))
        right = teacher.embed(database[block])
        found = []
        for q in range(len(left)):
            own = np.round(np.asarray(teacher.compare(left[q : q + 1], right))[0], 10)  # equal label sets tie
            found.append(_largest(np.append(scores[q], own), np.append(rows[q], block), k))
        scores, rows = (np.stack(each) for each in zip(*found, strict=True))
    return rows


def _largest(scores: FloatArray, rows: NDArray[np.int64], k: int) -> tuple[FloatArray, NDArray[np.int64]]:
    """The k largest scores, largest first, with their rows; ties in the order given."""
    kept = min(k, len(scores))
    candidates = np.flatnonzero(scores >= np.partition(scores, -kept)[-kept])
    first = candidates[np.argsort(-scores[candidates], kind="stable")[:kept]]
    return scores[first], rows[first]
