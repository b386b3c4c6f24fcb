"""One or several assessed runs -> the tables of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from multibit.evaluation.protocol import DIRECTIONS, Evaluation
from multibit.hashing.model import MODALITIES
from multibit.report.assessment import Assessment
from multibit.report.comparison import compare, distinct, require_comparable
from multibit.report.tables import ARROWS, Mark, Table, accuracy_table, counted, mark_columns

RESOLUTION = {"NDCG@100": True, "tau-b": True, "collision": False, "inversion": False}
"""Metric -> larger is better."""


def report_tables(runs: Sequence[Assessment]) -> dict[str, Table]:
    """All tables, by the name of their files; the first run is the one that is reported, the others stand beside it.

    Raises:
        MismatchError: the runs measured other queries, databases, lengths or data.
    """
    runs = [replace(run, name=name) for run, name in zip(runs, distinct([run.name for run in runs]), strict=True)]
    first = runs[0]
    for other in runs[1:]:
        for mine, theirs in zip(first.evaluations, other.evaluations, strict=False):
            require_comparable(mine, theirs, (first.name, other.name))
    tables = {f"accuracy-{i}": accuracy_table(evaluation) for i, evaluation in enumerate(first.evaluations, start=1)}
    names = [run.name for run in runs]
    for i in range(len(first.evaluations)):
        evaluations = [run.evaluations[i] for run in runs]
        tables[f"resolution-{i + 1}"] = _resolution(evaluations, names)
        if len(runs) > 1:
            tables[f"comparison-{i + 1}"] = compare(*evaluations, names=names).table()
    if first.agreement:
        tables["agreement"] = _agreement(runs)
    tables["quantization"] = _quantization(first)
    if first.strata:
        tables["strata"] = _strata(runs)
    tables["bits"] = _bits(first)
    tables["cost"] = _cost(runs)
    return tables


def _resolution(evaluations: Sequence[Evaluation], names: Sequence[str]) -> Table:
    first = evaluations[0]
    references = [m.removeprefix("NDCG@100 ") for m in first.metrics if m.startswith("NDCG@100 ")]
    rows, numbers = [], []
    for reference in references:
        for bits in first.lengths:
            block = []
            for name, evaluation in zip(names, evaluations, strict=True):
                means = [
                    float(np.mean([evaluation.mean(f"{metric} {reference}", d, bits) for d in DIRECTIONS]))
                    for metric in RESOLUTION
                ]
                block.append(means)
                rows.append(
                    (reference, str(bits), name, *("-" if np.isnan(value) else f"{value:.3f}" for value in means))
                )
            numbers.append(block)
    marks: dict[tuple[int, int], Mark] = {}
    if len(names) > 1:
        for i, block in enumerate(numbers):
            for j, larger in enumerate(RESOLUTION.values()):
                found = mark_columns([[row[j]] for row in block], larger_is_better=larger)
                marks |= {(i * len(names) + row, 3 + j): mark for (row, _), mark in found.items()}
    header = ("reference", "bits", "run", "NDCG@100", "tau-b", "collision", "inversion")
    note = (
        "Mean of both directions. NDCG@100 on the whole database; the others on the union of the first 100 ranks of "
        f"the run and of {names[0]}."
    )
    return Table(f"Relevance resolution, {first.protocol}", header, tuple(rows), note, marks)


def _agreement(runs: Sequence[Assessment]) -> Table:
    rows = []
    for run in runs:
        for direction, pairs in run.agreement.items():
            far = max(pairs, key=lambda pair: pair.lengths[1] - pair.lengths[0])
            rows.append(
                (
                    f"{run.name}, {ARROWS[direction]}",
                    f"{far.tau.mean():.3f}",
                    f"{np.mean([pair.tau.mean() for pair in pairs]):.3f}",
                    f"{far.displacement.mean():.3f}",
                )
            )
    far_name = f"{runs[0].lengths[0]}-{runs[0].lengths[-1]}"
    header = ("", f"tau-b {far_name}", "mean tau-b of all pairs", f"mean rank displacement {far_name}")
    return Table("Cross-length ranking agreement", header, tuple(rows), "Over the whole database, per query.")


def _quantization(run: Assessment) -> Table:
    rows = tuple(
        (
            ARROWS[direction],
            str(bits),
            f"{each.deviation:.4f}",
            f"{each.tau.mean():.3f}",
            f"{each.ties:.4f}",
            f"{each.ceiling:.3f}",
            f"{each.gap:.3f}",
        )
        for (direction, bits), each in run.quantization.items()
    )
    header = ("", "bits", "deviation", "tau-b soft/binary", "S(B)", "ceiling", "gap")
    compared = counted(len(next(iter(run.quantization.values())).tau), "query", "queries")
    note = f"tau-b of the first {compared}; S(B) is the share of tied pairs."
    return Table("What the sign costs", header, rows, note)


def _strata(runs: Sequence[Assessment]) -> Table:
    rows = tuple(
        (f"{run.name}, {ARROWS[direction]}", stratum.name, _mean(stratum.values), f"{stratum.pairs:,}")
        for run in runs
        for direction, strata in run.strata.items()
        for stratum in strata
    )
    return Table(
        "Pairs that share no label",
        ("", "pairs", "NDCG@100", "count"),
        rows,
        f"{min(64, sum(runs[0].blocks))} bits, label-name reference.",
    )


def _mean(values: NDArray[np.float64]) -> str:
    """Mean of the defined values, or a dash where there is none."""
    defined = values[~np.isnan(values)]
    return f"{defined.mean():.3f}" if len(defined) else "-"


def _bits(run: Assessment) -> Table:
    rows = []
    for modality in MODALITIES:
        health, start = run.health[modality], 0
        for scale, width in enumerate(run.blocks, start=1):
            block = slice(start, start + width)
            rows.append(
                (
                    f"{modality}, scale {scale}",
                    str(width),
                    f"{np.abs(health.balance[block] - 0.5).mean():.3f}",
                    f"{health.entropy[block].mean():.3f}",
                    f"{health.mean_correlation(start, start + width):.3f}",
                )
            )
            start += width
        for length, count in health.distinct.items():
            rows.append((f"{modality}, first {length} bits", counted(count, "code", "codes"), "", "", ""))
    header = ("", "bits", "|share of ones - 0.5|", "entropy", "|correlation|")
    return Table("Use of the bits in the database", header, tuple(rows), "Means over the bits of a block.")


def _cost(runs: Sequence[Assessment]) -> Table:
    rows = []
    for run in runs:
        cost, lengths = run.cost, run.lengths
        separate = sum(cost.payload[bits] for bits in lengths)
        rows += [
            (run.name, "one nested database, both modalities", f"{cost.nested / 2**20:.3f} MiB"),
            (run.name, f"{len(lengths)} separate databases", f"{separate / 2**20:.3f} MiB"),
            (run.name, "weights", f"{cost.model / 1e6:.2f} MB, {cost.parameters / 1e6:.2f} M parameters"),
            (run.name, "coding one picture and one text", f"{cost.flops / 1e9:.4f} GFLOP"),
            *(
                (run.name, f"coding one {m} feature vector", f"{t.median:.3f} ms, p95 {t.p95:.3f} ms")
                for m, t in cost.encode.items()
            ),
            *(
                (run.name, f"one search at {b} bits", f"{t.median:.4f} ms, p95 {t.p95:.4f} ms")
                for b, t in cost.query.items()
            ),
        ]
    note = "One thread; 100 hits. Reading pictures and texts and their encoders are not included."
    return Table("Cost", ("run", "what", "cost"), tuple(rows), note)
