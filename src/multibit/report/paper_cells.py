"""How the cells of the paper's tables are computed: a reproduction and a seed -> (row, column) -> value."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from multibit.codes import Codes, hamming_distances
from multibit.codes.distance import nearest
from multibit.config import Config
from multibit.errors import DataError
from multibit.evaluation.agreement import Quantization, quantization, rank_displacement, ranking_agreement
from multibit.evaluation.comparison import compare_queries
from multibit.evaluation.metrics import average_precision
from multibit.evaluation.protocol import DIRECTIONS
from multibit.evaluation.resolution import ideal_gains, kendall_tau, ndcg
from multibit.evaluation.strata import no_shared_label
from multibit.hashing.bits import allocate_bits
from multibit.hashing.model import MODALITIES, Modality
from multibit.hashing.variants import VARIANTS
from multibit.relation import RelationTeacher, teacher_class
from multibit.relation.teacher import quadrature
from multibit.relation.teachers import LearnedWeights
from multibit.report.reproduction import Reproduction
from multibit.report.tables import ARROWS
from multibit.runs import Run

Cells = dict[tuple[str, str], float]
"""(row, column) -> value."""

FloatArray = NDArray[np.float64]
SHORT = {"NDCG@100": "N", "tau-b": "tau-b", "collision": "C", "inversion": "I"}
ABLATION = ("baseline", "frt", "frt-sbo", "full")
GRID = {"eta": (0.05, 0.1, 0.2, 0.5, 1.0), "alpha": (0.3, 0.6, 0.9, 1.2, 1.5)}
TEACHER_QUERIES = 500  # that a label-side teacher ranks the database for
FIDELITY = 200, 2_000  # queries and candidates that the quadrature kernel and g* both rank
GAIN_QUERIES, GAIN_CANDIDATES = 1_500, 500  # of the query-level comparison
PANEL_QUERIES, PANEL_CANDIDATES = 5, 500  # of the rank displacement panels
MIDDLE = 64  # bits of the tables that show one length
UNIFORM_ALPHA = 1.2  # whose scales the multi-scale teachers use on every data set (Table `tab:teacher-quality`)


def mean_of(values: FloatArray) -> float:
    """Mean over the queries for which a value is defined; NaN where there is none.

    Example:
        >>> mean_of(np.array([0.5, np.nan, 1.0]))
        0.75
    """
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def length_near(config: Config, printed: int) -> int:
    """The trained length that stands for one of the paper's lengths: itself, or else the nearest.

    Example:
        >>> length_near(Config(), 64), length_near(Config(lengths=(8, 24, 40)), 64)
        (64, 40)
    """
    return min(config.lengths, key=lambda bits: abs(bits - printed))


def main_comparison(r: Reproduction, seed: int) -> Cells:
    """mAP@all of the full model (Table `tab:sota-comparison`, its own rows)."""
    found = r.evaluation("full", seed)
    return {(ARROWS[d], str(b)): 100 * found.mean("mAP", d, b) for d in DIRECTIONS for b in found.lengths}


def _mean_map(r: Reproduction, seed: int, rows: Mapping[str, tuple[str, dict[str, Any]]]) -> Cells:
    """Mean mAP of both directions in percent: row name -> (variant, settings)."""
    cells = {}
    for name, (variant, settings) in rows.items():
        found = r.evaluation(variant, seed, **settings)
        for bits in found.lengths:
            cells[name, str(bits)] = 100 * float(np.mean([found.mean("mAP", d, bits) for d in DIRECTIONS]))
    return cells


def component_ablation(r: Reproduction, seed: int) -> Cells:
    """Mean mAP as the components are added (Table `tab:component-ablation`)."""
    return _mean_map(r, seed, {VARIANTS[name].title: (name, {}) for name in ABLATION})


def teacher_transfer(r: Reproduction, seed: int) -> Cells:
    """Mean mAP by relation teacher (Table `tab:teacher-transfer`)."""
    teachers = {
        "PPMI only": "ppmi",
        "+ specificity": "ppmi-specificity",
        "Single-scale Graph Relation": "single-scale",
        "UMH": "umh",
        "Learned-weight Multi-scale Heat": "learned-weights",
        "UKM": "ukm",
    }
    rows: dict[str, tuple[str, dict[str, Any]]] = {"Baseline": ("baseline", {})}
    rows |= {name: ("full", {"teacher": teacher}) for name, teacher in teachers.items()}
    return _mean_map(r, seed, {**rows, "Full MultiBit (FRT)": ("full", {})})


def _fit(r: Reproduction, name: str, alpha: float | None = None, scales: int | None = None) -> RelationTeacher:
    c = r.config
    labels = r.subject.labels[r.split.train]
    return teacher_class(name).fit(labels, alpha or c.alpha, c.eta, scales or c.scales, c.epsilon)


def teacher_quality(r: Reproduction, seed: int) -> Cells:
    """NDCG@100 of label-side teachers (Table `tab:teacher-quality`)."""
    teachers = {
        "Binary Relation": _fit(r, "binary"),
        "Jaccard Relation": _fit(r, "jaccard"),
        "Single-scale Graph Relation": _fit(r, "single-scale"),
        "UMH": _fit(r, "umh", UNIFORM_ALPHA),
    }
    if r.subject.store is not None:
        teachers["Learned-weight Multi-scale Heat"] = r.run("full", seed, teacher="learned-weights").teacher
    return _ndcg_of_teachers(r, {**teachers, "FRT": _fit(r, "frt")})


def teacher_aligned(r: Reproduction, seed: int) -> Cells:
    """The same with equal scales and normalisation (Table `tab:teacher-aligned`)."""
    return _ndcg_of_teachers(r, {"FRT": _fit(r, "frt"), "UKM": _fit(r, "ukm"), "UMH": _fit(r, "umh")})


def _ndcg_of_teachers(r: Reproduction, teachers: Mapping[str, RelationTeacher]) -> Cells:
    asked, database = (r.subject.labels[rows] for rows in (r.split.query[:TEACHER_QUERIES], r.split.database))
    rows = {name: first_of_teacher(teacher, asked, database) for name, teacher in teachers.items()}
    cells = {}
    for name, graded in r.references.items():
        ideal = ideal_gains(graded, asked, database)
        for teacher, ranked in rows.items():
            gains = [graded.scores(asked[q : q + 1], database[ranked[q]])[0] for q in range(len(asked))]
            values = [ndcg(got, best) for got, best in zip(gains, ideal, strict=True)]
            cells[teacher, name] = mean_of(np.array(values))
    return cells


def first_of_teacher(
    teacher: RelationTeacher, asked: NDArray[np.uint8], database: NDArray[np.uint8], k: int = 100
) -> NDArray[np.int64]:
    """The first k database rows of each query by a teacher's scores, ties by row: (Q, k).

    Args:
        asked, database: (Q, C) and (N, C) multi-hot labels.
    """
    left, right, k = teacher.embed(asked), teacher.embed(database), min(k, len(database))
    rows = np.empty((len(left), k), np.int64)
    for q in range(len(left)):
        scores = np.round(np.asarray(teacher.compare(left[q : q + 1], right))[0], 10)  # so that equal label sets tie
        least = np.partition(scores, -k)[-k]
        candidates = np.flatnonzero(scores >= least)  # ascending, so a stable sort leaves ties in row order
        rows[q] = candidates[np.argsort(-scores[candidates], kind="stable")[:k]]
    return rows


def resolution(name: str) -> Callable[[Reproduction, int], Cells]:
    """Resolution under "IDF" (`tab:resolution-multilength`) or "label names" (`tab:resolution-semantic`)."""

    def measure(r: Reproduction, seed: int) -> Cells:
        if name not in r.references:
            _ = r.semantic  # says why it cannot be had
        cells = {}
        for row, variant in {"Naive Prefix": "naive-prefix", "MultiBit": "full"}.items():
            found = r.evaluation(variant, seed, graded=True)
            for bits in [b for b in found.lengths if b <= MIDDLE] or found.lengths:
                for metric, short in SHORT.items():
                    values = [found.mean(f"{metric} {name}", d, bits) for d in DIRECTIONS]
                    cells[row, f"{short} {bits}"] = float(np.mean(values))
        return cells

    return measure


def resolution_strata(r: Reproduction, seed: int) -> Cells:
    """NDCG@100 of pairs that share no label (Table `tab:resolution-noshared`)."""
    run = r.run("full", seed)
    query, database = r.codes(run, "query"), r.codes(run, "database")
    cells: Cells = {}
    found = [
        no_shared_label(
            query.codes(a), database.codes(b), query.labels, database.labels, r.semantic,
            run.teacher.graph.weights, length_near(r.config, MIDDLE),
        )
        for a, b in DIRECTIONS.values()
    ]  # fmt: skip
    for strata in zip(*found, strict=True):
        name = strata[0].name
        cells[name, "NDCG@100"] = float(np.mean([mean_of(each.values) for each in strata]))
        cells[name, "pairs"] = float(strata[0].pairs)
    return cells


def scale_coverage(r: Reproduction, seed: int) -> Cells:
    """Scales, weights and bits (Table `tab:scale-coverage`)."""
    tau, rho = quadrature(r.config.alpha, r.config.eta, r.config.scales)
    bits = allocate_bits(rho, r.config.code_bits)
    columns: dict[str, Any] = {"tau": tau, "rho": rho, "bits": bits, "cumulative": np.cumsum(bits)}
    return {(f"scale {i + 1}", name): float(column[i]) for i in range(len(bits)) for name, column in columns.items()}


def scale_boundary(r: Reproduction, seed: int) -> Cells:
    """Resolution at the ends of the blocks (Table `tab:scale-boundary`)."""
    ends = np.cumsum(r.run("full", seed).model.blocks).tolist()
    lengths = sorted({b for b in (MIDDLE, *ends) if b <= r.config.code_bits})
    found = r.evaluation("full", seed, lengths, graded=True)
    return {
        (f"{bits} bits", short): float(np.mean([found.mean(f"{metric} IDF", d, bits) for d in DIRECTIONS]))
        for bits in lengths
        for metric, short in SHORT.items()
    }


def _relaxed(r: Reproduction, seed: int, side: str, modality: Modality) -> NDArray[np.float32]:
    run, pairs = r.run("full", seed), r.store.take(getattr(r.split, side))
    return run.model.encode(pairs.image if modality == "image" else pairs.mean_text, modality)


def _quantized(r: Reproduction, seed: int) -> Iterator[tuple[str, int, Quantization]]:
    for direction, (asked, searched) in DIRECTIONS.items():
        sides = _relaxed(r, seed, "query", asked), _relaxed(r, seed, "database", searched)
        for bits in r.config.lengths:
            make = partial(quantization, *sides, bits)
            yield direction, bits, r.remember(("quantization", seed, direction, bits), make)


def sign_statistics(r: Reproduction, seed: int) -> Cells:
    """What the sign does to the relaxed code (Table `tab:quantization`)."""
    cells = {}
    for direction, bits, each in _quantized(r, seed):
        cells[ARROWS[direction], f"deviation {bits}"] = each.deviation
        cells[ARROWS[direction], f"tau-b {bits}"] = float(each.tau.mean())
    return dict(sorted(cells.items(), key=lambda item: (item[0][0], item[0][1].split()[0])))


def tie_ceiling(r: Reproduction, seed: int) -> Cells:
    """The ceiling that ties set (Table `tab:tie-ceiling`)."""
    cells: Cells = {}
    for direction, bits, each in _quantized(r, seed):
        if direction == "i2t":
            columns = {"S(B)": each.ties, "ceiling": each.ceiling, "tau-b": float(each.tau.mean()), "gap": each.gap}
            cells |= {(f"{bits} bits", name): value for name, value in columns.items()}
    return cells


def quadrature_fidelity(r: Reproduction, seed: int) -> Cells:
    """Quadrature kernel beside the exact one (Table `tab:quadrature-fidelity`)."""
    queries, candidates = FIDELITY
    exact = _fit(r, "frt")
    rows = np.random.RandomState(42).permutation(r.split.database)[:candidates]
    asked = r.subject.labels[r.split.query[:queries]]
    wanted = np.round(exact.scores(asked, r.subject.labels[rows]), 10)
    cells = {}
    for scales in (2, 4, 8, 16):
        rule = _fit(r, LearnedWeights.name, scales=scales)  # untrained: the quadrature weights themselves
        got = np.round(rule.scores(asked, r.subject.labels[rows]), 10)
        taus = [kendalltau(a, b).statistic for a, b in zip(wanted, got, strict=True)]
        cells[f"M = {scales}", "error %"] = 100 * exact.quadrature_error(scales)
        cells[f"M = {scales}", "tau-b"] = mean_of(np.array(taus))
    return cells


def sensitivity(r: Reproduction, seed: int) -> Cells:
    """Validation mean mAP over alpha and eta (Table `tab:parameter-sensitivity-grid`)."""
    cells, bits = {}, length_near(r.config, MIDDLE)
    for eta in GRID["eta"]:
        for alpha in GRID["alpha"]:
            run = r.run("full", seed, alpha=alpha, eta=eta)
            query, database = r.codes(run, "validation"), r.codes(run, "train")
            values = [
                mean_of(average_precision(query.codes(a), database.codes(b), query.labels, database.labels, bits))
                for a, b in DIRECTIONS.values()
            ]
            cells[f"eta {eta:.2f}", f"alpha {alpha}"] = 100 * float(np.mean(values))
    return cells


def ap_gains(r: Reproduction, seed: int, variant: str) -> FloatArray:
    """AP of `full` minus AP of a variant in points, image-to-text, one length, a fixed sample of queries and items."""
    bits = length_near(r.config, MIDDLE)
    asked = np.random.RandomState(42).permutation(len(r.split.query))[:GAIN_QUERIES]
    rows = np.sort(np.random.RandomState(42).permutation(len(r.split.database))[:GAIN_CANDIDATES])

    def ap(name: str) -> FloatArray:
        run = r.serving(name, seed, bits)
        query, database = r.codes(run, "query").take(asked), r.codes(run, "database").take(rows)
        return average_precision(query.image, database.text, query.labels, database.labels, bits)

    return 100 * compare_queries(ap("full"), ap(variant), resamples=1).values


def query_gain(r: Reproduction, seed: int) -> Cells:
    """AP of the full model beside other designs (Table `tab:query-level-gain`)."""
    cells = {}
    for variant in ("single-scale", "uniform-bits", "pairwise"):
        gains, title = ap_gains(r, seed, variant), VARIANTS[variant].title
        cells[title, "improved %"] = 100 * float((gains > 0).mean())
        cells[title, "tied %"] = 100 * float((gains == 0).mean())
        cells[title, "degraded %"] = 100 * float((gains < 0).mean())
        cells[title, "mean pp"] = float(gains.mean())
    return cells


def multi_length_cost(r: Reproduction, seed: int) -> Cells:
    """Accuracy and cost of serving all lengths (Table `tab:multi-length-cost`)."""
    rows = {"Naive Prefix": "naive-prefix", "MultiBit-Sep": "separate", "MultiBit": "full"}
    cells = _mean_map(r, seed, {row: (variant, {}) for row, variant in rows.items()})
    for row, variant in rows.items():
        runs = r.runs(variant, seed)
        lengths = [run.model.bits for run in runs]  # of the stored codes
        parameters = [weights for run in runs for weights in run.model.parameters()]
        cells[row, "models"] = len(runs)
        cells[row, "model MB"] = sum(weights.numel() * weights.element_size() for weights in parameters) / 1e6
        cells[row, "code MiB"] = 2 * len(r.split.database) * sum(lengths) / 8 / 2**20
        cells[row, "train h"] = r.seconds(runs) / 3600
        cells[row, "query ms"] = _query_time(r, variant, seed, length_near(r.config, MIDDLE))
    return dict(sorted(cells.items(), key=lambda item: list(rows).index(item[0][0])))


def _query_time(r: Reproduction, variant: str, seed: int, bits: int) -> float:
    """Milliseconds a query takes in a batch: coding its features, and 100 hits; mean of both directions."""
    run = r.serving(variant, seed, bits)
    database, times = r.codes(run, "database"), []
    for asked, searched in DIRECTIONS.values():
        features = r.store.take(r.split.query)
        values = features.image if asked == "image" else features.mean_text

        times.append(1e3 * _seconds(partial(_search, run, values, asked, database.codes(searched), bits)) / len(values))
    return float(np.mean(times))


def _search(run: Run, features: NDArray[np.float32], modality: Modality, database: Codes, bits: int) -> None:
    nearest(Codes.from_signs(run.model.encode(features, modality)), database, 100, bits)


def _seconds(work: Callable[[], Any]) -> float:
    """Median of five runs, after one that is not counted."""
    work()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def cross_length_agreement(r: Reproduction, seed: int) -> Cells:
    """Tau-b between lengths (Table `tab:cross-length-agreement-complete`)."""
    rows = {
        "Naive Prefix": "naive-prefix",
        "MultiBit-Sep": "separate",
        "MultiBit without MPA": "frt-sbo",
        "MultiBit": "full",
    }
    cells = {}
    for row, variant in rows.items():
        for direction in DIRECTIONS:
            taus = _agreement_of(r, variant, seed, direction)
            far = min(r.config.lengths), max(r.config.lengths)
            cells[row, f"{far[0]}-{far[1]} {direction}"] = taus[far]
            cells[row, f"mean {direction}"] = float(np.mean(list(taus.values())))
    order = [f"{min(r.config.lengths)}-{max(r.config.lengths)}", "mean"]
    return dict(sorted(cells.items(), key=lambda c: (list(rows).index(c[0][0]), order.index(c[0][1].split()[0]))))


def _agreement_of(r: Reproduction, variant: str, seed: int, direction: str) -> dict[tuple[int, int], float]:
    """Mean tau-b of every pair of lengths; each length is ranked by the model that serves it."""
    asked, searched = DIRECTIONS[direction]
    sides = {}
    for bits in r.config.lengths:
        run = r.serving(variant, seed, bits)
        sides[bits] = r.codes(run, "query").codes(asked), r.codes(run, "database").codes(searched)
    return {pair.lengths: float(pair.tau.mean()) for pair in ranking_agreement(sides)}


def displacement_panel(r: Reproduction, seed: int, variant: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Five image queries and 500 texts at the shortest and the longest length.

    Returns:
        Normalised rank at the shortest (5, 500), its change at the longest (5, 500), tau-b of the two rankings (5,).

    Raises:
        DataError: there is one length only.
    """
    short, long = min(r.config.lengths), max(r.config.lengths)
    if short == long:
        raise DataError(f"It compares the shortest code with the longest, and there is one length only: {long} bits.")
    run = r.run(variant, seed)
    rng = np.random.RandomState(42)
    asked = r.codes(run, "query").image.take(rng.permutation(len(r.split.query))[:PANEL_QUERIES])
    rows = np.sort(rng.permutation(len(r.split.database))[:PANEL_CANDIDATES])
    items = r.codes(run, "database").text.take(rows)
    before, after = hamming_distances(asked, items, short), hamming_distances(asked, items, long)
    order = np.argsort(np.argsort(before, axis=1, kind="stable"), axis=1) / max(len(rows) - 1, 1)
    moved = np.stack([rank_displacement(a, b) for a, b in zip(before, after, strict=True)])
    taus = np.array([kendall_tau(a, b) for a, b in zip(before, after, strict=True)])
    return order, moved, taus


def sampled_displacement(r: Reproduction, seed: int) -> Cells:
    """Statistics of the displacement panels (Table `tab:rank-displacement-sample`)."""
    cells = {}
    for row, variant in {"Naive Prefix": "naive-prefix", "MultiBit": "full"}.items():
        _, moved, taus = displacement_panel(r, seed, variant)
        cells[row, "tau-b"] = float(taus.mean())
        cells[row, "mean |change|"] = float(np.abs(moved).mean())
    return cells


def efficiency(r: Reproduction, seed: int) -> Cells:
    """Size and times of the full model (Table `tab:performance-efficiency-raw`)."""
    run = r.run("full", seed)
    model, features = run.model, r.store.take(r.split.query)
    layers = (model.image_dim + model.text_dim) * model.hidden + 2 * model.dimension * (model.hidden + model.bits)
    encode = {m: features.image if m == "image" else features.mean_text for m in MODALITIES}
    times = {m: 1e3 * _seconds(partial(model.encode, encode[m], m)) / len(features.image) for m in MODALITIES}
    columns = {
        "parameters M": sum(weights.numel() for weights in model.parameters()) / 1e6,
        "GFLOPs": 2 * layers / 1e9,
        "train h": r.seconds([run]) / 3600,
        "best epoch": float(run.record["selection"]["epoch"]),
        "image ms": times["image"],
        "text ms": times["text"],
    }
    return {("MultiBit", name): value for name, value in columns.items()}


def data_split(r: Reproduction, seed: int) -> Cells:
    """Rows of each role (Table `tab:data-split`)."""
    s = r.split
    columns = {
        "pairs": len(r.subject.labels),
        "classes": r.subject.labels.shape[1],
        "train": len(s.train),
        "validation": len(s.validation),
        "query": len(s.query),
        "database": len(s.database),
    }
    return {("split", name): float(value) for name, value in columns.items()}


def parameters(r: Reproduction, seed: int) -> Cells:
    """The settings of the runs (Table `tab:all-parameters`)."""
    names = (
        "epsilon", "alpha", "eta", "scales", "dimension", "teacher_temperature", "student_temperature", "scale_weight",
        "learning_rate", "batch_size", "epochs",
    )  # fmt: skip
    return {(name, "value"): float(getattr(r.config, name)) for name in names}
