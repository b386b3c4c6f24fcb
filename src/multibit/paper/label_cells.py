"""Cells that need labels only: settings, split, scales and label-side teachers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import kendalltau

from multibit.arrays import Labels, mean_of
from multibit.evaluation.resolution import ideal_gains, ndcg
from multibit.hashing.bits import allocate_bits
from multibit.paper.cells import Cells, Column, Named, Nodes, Quantity, Row, Scale
from multibit.paper.reproduction import Reproduction
from multibit.relation import RelationTeacher, teacher_class
from multibit.relation.teacher import quadrature
from multibit.relation.teachers import LearnedWeights

TEACHER_QUERIES = 500  # that a label-side teacher ranks the database for
FIDELITY_QUERIES, FIDELITY_CANDIDATES = 200, 2_000  # that both the quadrature kernel and g* rank
UNIFORM_ALPHA = 1.2  # its scales are used by the multi-scale teachers on every dataset (Table `tab:teacher-quality`)

VALUE = Quantity("value", "g")
TAU, RHO = Quantity("tau"), Quantity("rho")
BITS, CUMULATIVE = Quantity("bits", ".0f"), Quantity("cumulative", ".0f")
ERROR, FIDELITY = Quantity("error %"), Quantity("tau-b")

FRT, UKM, UMH = Named("FRT"), Named("UKM"), Named("UMH")
SETTINGS = (
    "epsilon", "alpha", "eta", "scales", "dimension", "teacher_temperature", "student_temperature", "scale_weight",
    "learning_rate", "batch_size", "epochs",
)  # fmt: skip


def parameters(r: Reproduction, seed: int) -> Cells[float]:
    """The settings of the runs (Table `tab:all-parameters`)."""
    return Cells({(Named(name), VALUE): float(getattr(r.config, name)) for name in SETTINGS})


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
        learned = r.run("multibit", seed, teacher="learned-weights")
        teachers[Named("Learned-weight Multi-scale Heat")] = learned.teacher
    return _ndcg_of_teachers(r, {**teachers, FRT: _fit(r, "frt")})


def teacher_aligned(r: Reproduction, seed: int) -> Cells[float]:
    """NDCG@100 of teachers with equal scales and normalisation (Table `tab:teacher-aligned`)."""
    return _ndcg_of_teachers(r, {FRT: _fit(r, "frt"), UKM: _fit(r, "ukm"), UMH: _fit(r, "umh")})


def _fit(r: Reproduction, name: str, alpha: float | None = None, scales: int | None = None) -> RelationTeacher:
    c = r.config
    labels = r.subject.labels[r.split.train]
    return teacher_class(name).fit(labels, alpha or c.alpha, c.eta, scales or c.scales, c.epsilon)


def _ndcg_of_teachers(r: Reproduction, teachers: Mapping[Row, RelationTeacher]) -> Cells[float]:
    asked, database = (r.subject.labels[rows] for rows in (r.split.query[:TEACHER_QUERIES], r.split.database))
    rows = {row: first_of_teacher(teacher, asked, database) for row, teacher in teachers.items()}
    cells: Cells[float] = Cells()
    for name, graded in r.references.items():
        ideal = ideal_gains(graded, asked, database)
        for row, ranked in rows.items():
            gains = [graded.scores(asked[q : q + 1], database[ranked[q]])[0] for q in range(len(asked))]
            values = [ndcg(got, best) for got, best in zip(gains, ideal, strict=True)]
            cells[row, Quantity(name)] = mean_of(values)
    return cells


def first_of_teacher(teacher: RelationTeacher, asked: Labels, database: Labels, k: int = 100) -> NDArray[np.int64]:
    """The first k database rows of each query by a teacher's scores, ties by row: (Q, k).

    Args:
        asked, database: (Q, C) and (N, C) multi-hot labels.
    """
    left, right, k = teacher.embed(asked), teacher.embed(database), min(k, len(database))
    rows = np.empty((len(left), k), np.int64)
    for q in range(len(left)):
        scores = np.round(np.asarray(teacher.compare(left[q : q + 1], right))[0], 10)  # equal label sets tie
        least = np.partition(scores, -k)[-k]
        candidates = np.flatnonzero(scores >= least)  # ascending, so a stable sort leaves ties in row order
        rows[q] = candidates[np.argsort(-scores[candidates], kind="stable")[:k]]
    return rows
