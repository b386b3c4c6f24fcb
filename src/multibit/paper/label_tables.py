"""The tables of the paper that need labels only: what each one measures, and its claims."""

from __future__ import annotations

from collections.abc import Callable

from multibit.paper import accuracy_cells as accuracy
from multibit.paper import baselines
from multibit.paper import label_cells as of_labels
from multibit.paper.cells import Cells, Column, Nodes, Quantity
from multibit.paper.claims import (
    Claim,
    among,
    in_words,
    largest,
    rising,
)
from multibit.paper.label_cells import ERROR, FIDELITY, FRT, UKM, UMH
from multibit.paper.outcome import Entry
from multibit.paper.reproduction import Reproduction


def _nodes(count: int, column: Column, test: Callable[[float], bool]) -> Callable[[Cells[float]], bool]:
    return lambda cells: test(cells[Nodes(count), column])


def _sizes_that_differ(r: Reproduction, cells: Cells[float], printed: Cells[float]) -> str:
    """Each size of the split that is not the paper's."""
    differing = [
        f"{column} {cells[row, column]:,.0f} (paper {value:,.0f})"
        for (row, column), value in printed.items()
        if cells[row, column] != value
    ]
    return f"Differs from the paper: {', '.join(differing)}." if differing else ""


NAMES = Quantity("label names")

LABEL_TABLES = (
    Entry(
        "parameters",
        "Parameter register",
        "tab:all-parameters",
        of_labels.parameters,
        labels_only=True,
        seeded=False,
        note="Optimiser: Adam with cosine annealing; the epoch of the best validation mean mAP is kept; listwise "
        "candidates are the mini-batch. All as in the paper, which does not give the hidden width.",
        of_lengths=True,
    ),
    Entry(
        "data-split",
        "Data split",
        "tab:data-split",
        of_labels.data_split,
        labels_only=True,
        seeded=False,
        remark=_sizes_that_differ,
    ),
    Entry(
        "scale-coverage",
        "Scale coverage",
        "tab:scale-coverage",
        of_labels.scale_coverage,
        labels_only=True,
        seeded=False,
        of_lengths=True,
    ),
    Entry(
        "quadrature-fidelity",
        "Quadrature fidelity",
        "tab:quadrature-fidelity",
        of_labels.quadrature_fidelity,
        claims=(
            Claim(
                "the error at M = 4 is 6.1 % to 18.6 %",
                _nodes(4, ERROR, lambda value: 6.1 <= round(value, 1) <= 18.6),
                found=in_words(".1f", lambda cells: cells[Nodes(4), ERROR]),
            ),
            Claim(
                "the error at M = 8 is at most 1.7 %",
                _nodes(8, ERROR, lambda value: round(value, 1) <= 1.7),
                found=in_words(".1f", lambda cells: cells[Nodes(8), ERROR]),
            ),
            Claim("tau-b is at least 0.93 at M = 4", _nodes(4, FIDELITY, lambda value: value >= 0.93)),
            Claim("tau-b is at least 0.99 at M = 8", _nodes(8, FIDELITY, lambda value: value >= 0.99)),
        ),
        labels_only=True,
        seeded=False,
        note=f"tau-b of at most {of_labels.FIDELITY_QUERIES} queries on {of_labels.FIDELITY_CANDIDATES:,} database "
        "items drawn with seed 42.",
    ),
    Entry(
        "teacher-quality",
        "Teacher quality, NDCG@100",
        "tab:teacher-quality",
        of_labels.teacher_quality,
        claims=(Claim("FRT is the best teacher under every evaluator", largest(FRT)),),
        labels_only=True,
        note="The database ranked by the teacher's own scores, ties by row, at most "
        f"{of_labels.TEACHER_QUERIES} queries. UMH and the learned weights have the nodes of alpha "
        f"{accuracy.UNIFORM_ALPHA}; only the learned weights are trained.",
        by_label_names=among(NAMES),
    ),
    Entry(
        "teacher-aligned",
        "Teacher quality, equal scales and normalisation",
        "tab:teacher-aligned",
        of_labels.teacher_aligned,
        claims=(Claim("FRT is above UKM, and UKM above UMH", rising((UMH, UKM, FRT))),),
        labels_only=True,
        seeded=False,
        note=f"At most {of_labels.TEACHER_QUERIES} queries; all teachers have the nodes of the dataset's alpha.",
        by_label_names=among(NAMES),
    ),
    Entry(
        "baseline-optimizers",
        "Optimisers of the compared methods",
        "tab:baseline-optimizers",
        baselines.baseline_optimizers,
        claims=(
            Claim(
                "the settings are those of the original implementations",
                lambda cells: all(each.agrees for each in baselines.baselines()),
                found=lambda cells: baselines.differing(),
            ),
        ),
        labels_only=True,
        seeded=False,
        note="Learning rates of the hash heads. The compared methods are not trained here; where they are, follow the "
        "public code.",
        layout=baselines.lay_out,
    ),
)
