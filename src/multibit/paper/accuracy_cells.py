"""Cells of accuracy and cost: mAP of the designs, sensitivity, query-level gain, and the cost of serving."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from multibit.arrays import FloatArray, mean_of
from multibit.codes import Codes
from multibit.codes.distance import nearest
from multibit.codes.items import DIRECTIONS, MODALITIES, Modality, length_near
from multibit.config import GRID_ALPHA, GRID_ETA
from multibit.evaluation.comparison import compare_queries
from multibit.evaluation.metric import MAP
from multibit.evaluation.metrics import average_precision
from multibit.evaluation.real_precision import cosine_average_precision
from multibit.features import Pairs
from multibit.hashing.code_model import CodeModel
from multibit.hashing.encode import encode_codes, shared_features
from multibit.hashing.methods import METHODS
from multibit.paper.cells import FLOAT, Alpha, AtLength, Cells, Design, Eta, Quantity, Searching
from multibit.paper.reproduction import Reproduction

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
MULTIBIT_PLUS = _design("multibit-plus")
TESTED = 2_000  # resamples of the paired test
P_VALUE = Quantity("p", ".3f", larger_is_better=False)
"""Of the paired test of a method's average precision against the full model's."""

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
    """mAP@all in percent of the full model and of the compared methods (Tables `tab:sota-comparison`, ...).

    With compared methods also MultiBit+, the ceilings of real-valued features, and the p-value of the paired test of
    each method against the full model.
    """
    cells: Cells[float] = Cells()
    designs = r.designs((MULTIBIT_PLUS, MULTIBIT)) if r.compared else [MULTIBIT]
    full = r.evaluation("multibit", seed)
    for direction in DIRECTIONS:
        for design in designs:
            found, row = r.evaluation(design.method, seed), Searching(direction, design.title)
            for bits in found.lengths:
                cells[row, AtLength(MEAN_MAP, bits)] = 100 * found.mean(MAP, direction, bits)
                if design != MULTIBIT:
                    pair = full.of(MAP, direction, bits), found.of(MAP, direction, bits)
                    cells[row, AtLength(P_VALUE, bits)] = compare_queries(*pair, resamples=TESTED).p
    if r.compared:
        cells.update(_ceilings(r, seed))
    return cells


def _ceilings(r: Reproduction, seed: int) -> Cells[float]:
    """mAP@all in percent of rankings by the cosine of real-valued features, the same at every length."""
    cells: Cells[float] = Cells()
    for title, sides in real_features(r, seed).items():
        for direction, (asked, searched) in DIRECTIONS.items():
            values = cosine_average_precision(
                sides["query"][asked], sides["database"][searched], r.pairs("query").labels, r.pairs("database").labels
            )
            for bits in r.config.lengths:
                cells[Searching(direction, title), AtLength(MEAN_MAP, bits)] = 100 * mean_of(values)
    return cells


def real_features(r: Reproduction, seed: int) -> dict[str, dict[str, dict[Modality, Any]]]:
    """Title -> side -> modality -> features that both modalities share, before they are made binary.

    Those of the full model, and those of a joint encoder where the features are of one.
    """
    run, pairs = r.run("multibit", seed), {side: r.pairs(side) for side in ("query", "database")}
    shared = {
        side: {modality: shared_features(run.model, each.features(modality), modality) for modality in MODALITIES}
        for side, each in pairs.items()
    }
    found: dict[str, dict[str, dict[Modality, Any]]] = {f"{FLOAT}shared feature of MultiBit": shared}
    if r.store.recipe.is_joint:
        found[f"{FLOAT}features of the encoder"] = {
            side: {modality: each.features(modality) for modality in MODALITIES} for side, each in pairs.items()
        }
    return found


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
        run = r.run(method, seed)
        query, database = r.codes(run, "query").take(asked).at(bits), r.codes(run, "database").take(rows).at(bits)
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
    for design in r.designs(SERVING):
        run = r.run(design.method, seed)
        accuracy = _mean_map(r, seed, [design], COST_MAP)
        cells |= accuracy
        cells[design, MEAN_OF_LENGTHS] = float(np.mean(list(accuracy.values())))
        cells[design, MODELS] = run.model.models
        cells[design, MODEL_SIZE] = run.model.nbytes / 1e6
        cells[design, CODE_SIZE] = 2 * len(r.split.database) * run.model.layout.stored / 8 / 2**20
        cells[design, TRAINING] = r.seconds(run) / 3600
        cells[design, QUERY_TIME] = _query_time(r, design.method, seed, length_near(r.config.lengths))
    for saved, size in ((MODEL_SAVED, MODEL_SIZE), (CODE_SAVED, CODE_SIZE)):
        cells[MULTIBIT, saved] = 100 * (1 - cells[MULTIBIT, size] / cells[SEPARATE, size])
    return cells


def efficiency(r: Reproduction, seed: int) -> Cells[float]:
    """Size and times of the full model (Table `tab:performance-efficiency-raw`)."""
    cells: Cells[float] = Cells()
    for design in r.designs([MULTIBIT]):
        cells |= _efficiency_of(r, design, seed)
    return cells


def _efficiency_of(r: Reproduction, design: Design, seed: int) -> Cells[float]:
    """Of the model of the longest code, as in the paper, where each length has a model of its own."""
    run, asked = r.run(design.method, seed), r.pairs("query")
    model = run.model.serving(run.model.bits)
    # Heads and binarisation, which the paper counts as encoding.
    times = {m: 1e3 * _seconds(partial(encode_codes, model, asked, m)) / len(asked) for m in MODALITIES}
    values = {
        "parameters M": model.parameter_count / 1e6,
        "GFLOPs": model.flops / 1e9,
        "train h": r.seconds(run, run.model.bits) / 3600,
        "best epoch": float(run.record.selection.epoch),
        "image ms": times["image"],
        "text ms": times["text"],
    }
    forms = {"parameters M": ".2f", "best epoch": ".0f"}
    return Cells(
        {
            (design, Quantity(name, forms.get(name, ".4f"), larger_is_better=False)): value
            for name, value in values.items()
        }
    )


def _query_time(r: Reproduction, method: str, seed: int, bits: int) -> float:
    """Milliseconds per query in a batch for coding its features and finding 100 hits; mean of both directions."""
    model, queries = r.run(method, seed).model, r.pairs("query")
    database, times = r.codes(r.run(method, seed), "database").at(bits), []
    for asked, searched in DIRECTIONS.values():
        search = partial(_search, model.serving(bits), queries, asked, database.codes(searched), bits)
        times.append(1e3 * _seconds(search) / len(queries))
    return float(np.mean(times))


def _search(model: CodeModel, queries: Pairs, modality: Modality, database: Codes, bits: int) -> None:
    nearest(encode_codes(model, queries, modality, bits), database, 100, bits)


def _seconds(work: Callable[[], Any]) -> float:
    """Median of five calls, after a first one that is not timed."""
    work()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))
