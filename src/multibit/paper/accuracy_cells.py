"""Cells of accuracy and cost: mAP of the designs, sensitivity, query-level gain, and the cost of serving."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import FloatArray, mean_of
from multibit.codes import Codes
from multibit.codes.distance import nearest
from multibit.codes.items import DIRECTIONS, MODALITIES, Modality, length_near
from multibit.config import GRID_ALPHA, GRID_ETA
from multibit.evaluation.comparison import compare_queries
from multibit.evaluation.metric import MAP
from multibit.evaluation.metrics import average_precision
from multibit.hashing.methods import METHODS
from multibit.paper.cells import Alpha, AtLength, Cells, Design, Eta, Quantity, Searching
from multibit.paper.reproduction import Reproduction
from multibit.runs import Run

GAIN_QUERIES, GAIN_CANDIDATES = 1_500, 500  # of the query-level comparison
UNIFORM_ALPHA = 1.2  # whose nodes UMH and the learned weights have on every dataset (Table `tab:teacher-quality`)

MEAN_MAP = Quantity("", ".2f")
"""In percent; a column of it is headed by the code length alone."""

COST_MAP = Quantity("")
"""The same with three digits, as in the table of costs."""


def _design(method: str) -> Design:
    """A method under its own title."""
    return Design(METHODS[method].title, method)


NAIVE_PREFIX, SEPARATE, MULTIBIT = _design("naive-prefix"), _design("separate"), Design("MultiBit", "multibit")
ABLATION = tuple(map(_design, ("baseline", "frt", "frt-sbo", "multibit")))
FULL_FRT = Design("Full MultiBit (FRT)", "multibit")
TRANSFER = (
    Design("Baseline", "baseline"),
    Design("PPMI only", "multibit", "ppmi"),
    Design("+ specificity", "multibit", "ppmi-specificity"),
    Design("Single-scale Graph Relation", "multibit", "single-scale"),
    Design("UMH", "multibit", "umh", UNIFORM_ALPHA),
    Design("Learned-weight Multi-scale Heat", "multibit", "learned-weights", UNIFORM_ALPHA),
    Design("UKM", "multibit", "ukm"),
    FULL_FRT,
)
PPMI, SPECIFICITY, SINGLE_SCALE, UMH_CODES, LEARNED = TRANSFER[1:6]
OWN_SCALES = (
    *(replace(each, title=f"{each}, no scale loss", scale_teacher="own") for each in (PPMI, SPECIFICITY, SINGLE_SCALE)),
    *(replace(each, title=f"{each}, own scale loss", scale_teacher="own") for each in (UMH_CODES, LEARNED)),
)
"""The teachers again, where the scale loss follows them too; UKM has the scales of the full model in both readings."""
GAIN_OVER = tuple(map(_design, ("single-scale", "uniform-bits", "pairwise")))
UNIFORM_BITS = GAIN_OVER[1]
SERVING = (NAIVE_PREFIX, SEPARATE, MULTIBIT)

IMPROVED, TIED, DEGRADED = (Quantity(f"{name} %", ".2f") for name in ("improved", "tied", "degraded"))
MEAN_GAIN = Quantity("mean pp", ".2f")

MODELS, MODEL_SIZE, CODE_SIZE, TRAINING, QUERY_TIME = (
    Quantity(name, form, larger_is_better=False)
    for name, form in (
        ("models", ".0f"), ("model MB", ".2f"), ("code MiB", ".3f"), ("train h", ".3f"), ("query ms", ".4f"),
    )
)  # fmt: skip
MEAN_OF_LENGTHS = Quantity("mean", ".2f")
MODEL_SAVED, CODE_SAVED = Quantity("model saved %", ".0f"), Quantity("code saved %", ".0f")
"""By one nested model, of the storage of separate models."""


def main_comparison(r: Reproduction, seed: int) -> Cells[float]:
    """mAP@all of the full model in percent (Table `tab:sota-comparison`, its own rows)."""
    found = r.evaluation("multibit", seed)
    return Cells(
        {
            (Searching(direction), AtLength(MEAN_MAP, bits)): 100 * found.mean(MAP, direction, bits)
            for direction in DIRECTIONS
            for bits in found.lengths
        }
    )


def component_ablation(r: Reproduction, seed: int) -> Cells[float]:
    """Mean mAP as the components are added (Table `tab:component-ablation`)."""
    return _mean_map(r, seed, ABLATION)


def teacher_transfer(r: Reproduction, seed: int) -> Cells[float]:
    """Mean mAP by relation teacher (Table `tab:teacher-transfer`), in both readings of the scale loss."""
    cells = _mean_map(r, seed, TRANSFER)
    for first, other in zip((PPMI, SPECIFICITY, SINGLE_SCALE, UMH_CODES, LEARNED), OWN_SCALES, strict=True):
        same = first.teacher_alpha == r.config.alpha  # its nodes are those of the bit budget: one model for both
        measured = _mean_map(r, seed, [first if same else other])
        cells |= {(other, column): value for (_, column), value in measured.items()}
    return cells


def _mean_map(r: Reproduction, seed: int, designs: Sequence[Design], quantity: Quantity = MEAN_MAP) -> Cells[float]:
    """Mean mAP of both directions in percent."""
    cells: Cells[float] = Cells()
    for design in designs:
        found = r.evaluation(design.method, seed, **design.settings)
        for bits in found.lengths:
            cells[design, AtLength(quantity, bits)] = 100 * found.mean_of_directions(MAP, bits)
    return cells


def sensitivity(r: Reproduction, seed: int) -> Cells[float]:
    """Mean mAP on validation queries over alpha and eta (Table `tab:parameter-sensitivity-grid`)."""
    bits, cells = length_near(r.config.lengths), Cells[float]()
    for eta in GRID_ETA:
        for alpha in GRID_ALPHA:
            run = r.run("multibit", seed, alpha=alpha, eta=eta)
            query, database = r.codes(run, "validation"), r.codes(run, "train")
            values = [
                mean_of(average_precision(query.codes(a), database.codes(b), query.labels, database.labels, bits))
                for a, b in DIRECTIONS.values()
            ]
            cells[Eta(eta), Alpha(alpha)] = 100 * float(np.mean(values))
    return cells


@dataclass(frozen=True, eq=False)
class Gains:
    """Differences of average precision between the full model and other designs.

    Attributes:
        bits: code length. by_design: other design -> (n,) differences in percentage points, one per query.
    """

    bits: int
    by_design: dict[Design, FloatArray]


def ap_gains(r: Reproduction, seed: int) -> Gains:
    """AP of the full model minus AP of other designs, image-to-text, on a fixed sample of queries and items."""
    bits = length_near(r.config.lengths)
    asked = np.random.RandomState(42).permutation(len(r.split.query))[:GAIN_QUERIES]
    rows = np.sort(np.random.RandomState(42).permutation(len(r.split.database))[:GAIN_CANDIDATES])

    def ap(method: str) -> FloatArray:
        run = r.serving(method, seed, bits)
        query, database = r.codes(run, "query").take(asked), r.codes(run, "database").take(rows)
        return average_precision(query.image, database.text, query.labels, database.labels, bits)

    full = ap("multibit")
    gains = {design: 100 * compare_queries(full, ap(design.method), resamples=1).values for design in GAIN_OVER}
    return Gains(bits, gains)


def query_gain(r: Reproduction, seed: int) -> Cells[float]:
    """AP of the full model compared with other designs (Table `tab:query-level-gain`)."""
    cells: Cells[float] = Cells()
    for design, gains in ap_gains(r, seed).by_design.items():
        cells[design, IMPROVED] = 100 * float((gains > 0).mean())
        cells[design, TIED] = 100 * float((gains == 0).mean())
        cells[design, DEGRADED] = 100 * float((gains < 0).mean())
        cells[design, MEAN_GAIN] = float(gains.mean())
    return cells


def multi_length_cost(r: Reproduction, seed: int) -> Cells[float]:
    """Accuracy and cost of serving all lengths (Table `tab:multi-length-cost`)."""
    cells: Cells[float] = Cells()
    for design in SERVING:
        runs = r.runs(design.method, seed)
        stored = sum(run.model.bits for run in runs)  # bits of all stored codes of an item and modality
        accuracy = _mean_map(r, seed, [design], COST_MAP)
        cells |= accuracy
        cells[design, MEAN_OF_LENGTHS] = float(np.mean(list(accuracy.values())))
        cells[design, MODELS] = len(runs)
        cells[design, MODEL_SIZE] = sum(run.model.nbytes for run in runs) / 1e6
        cells[design, CODE_SIZE] = 2 * len(r.split.database) * stored / 8 / 2**20
        cells[design, TRAINING] = r.seconds(runs) / 3600
        cells[design, QUERY_TIME] = _query_time(r, design.method, seed, length_near(r.config.lengths))
    for saved, size in ((MODEL_SAVED, MODEL_SIZE), (CODE_SAVED, CODE_SIZE)):
        cells[MULTIBIT, saved] = 100 * (1 - cells[MULTIBIT, size] / cells[SEPARATE, size])
    return cells


def efficiency(r: Reproduction, seed: int) -> Cells[float]:
    """Size and times of the full model (Table `tab:performance-efficiency-raw`)."""
    run = r.run("multibit", seed)
    model, features = run.model, _query_features(r)
    times = {m: 1e3 * _seconds(partial(_code, run, features[m], m)) / len(features[m]) for m in MODALITIES}
    values = {
        "parameters M": model.parameter_count / 1e6,
        "GFLOPs": model.flops / 1e9,
        "train h": r.seconds([run]) / 3600,
        "best epoch": float(run.record.selection.epoch),
        "image ms": times["image"],
        "text ms": times["text"],
    }
    forms = {"parameters M": ".2f", "best epoch": ".0f"}
    return Cells(
        {
            (MULTIBIT, Quantity(name, forms.get(name, ".4f"), larger_is_better=False)): value
            for name, value in values.items()
        }
    )


def _query_features(r: Reproduction) -> dict[Modality, NDArray[np.float32]]:
    features = r.store.take(r.split.query)
    return {"image": features.image, "text": features.mean_text}


def _query_time(r: Reproduction, method: str, seed: int, bits: int) -> float:
    """Milliseconds per query in a batch for coding its features and finding 100 hits; mean of both directions."""
    run, features = r.serving(method, seed, bits), _query_features(r)
    database, times = r.codes(run, "database"), []
    for asked, searched in DIRECTIONS.values():
        values = features[asked]
        search = partial(_search, run, values, asked, database.codes(searched), bits)
        times.append(1e3 * _seconds(search) / len(values))
    return float(np.mean(times))


def _search(run: Run, features: NDArray[np.float32], modality: Modality, database: Codes, bits: int) -> None:
    nearest(_code(run, features, modality), database, 100, bits)


def _code(run: Run, features: NDArray[np.float32], modality: Modality) -> Codes:
    """Heads and binarisation, which the paper counts as encoding."""
    return Codes.binarize(run.model.encode(features, modality))


def _seconds(work: Callable[[], Any]) -> float:
    """Median of five calls, after a first one that is not timed."""
    work()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))
