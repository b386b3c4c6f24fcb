"""Tables of a study: accuracy, resolution, comparison, agreement, quantisation, strata, bits and cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multibit.arrays import mean_of
from multibit.codes.items import DIRECTION_NAMES, DIRECTIONS, MODALITIES, length_near
from multibit.errors import counted
from multibit.evaluation.assessment import Assessment
from multibit.evaluation.cost import Times
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.metric import RESOLUTION
from multibit.evaluation.tables import accuracy_table, content_table, pair_tables
from multibit.features.leaks import LookAlikes
from multibit.report.study import Study
from multibit.table import Cell, Mark, Number, Table, mark_columns, percent

TABLE_FILES = (
    "accuracy-[0-9]", "pair-recall-[0-9]", "pair-recall-comparison", "content", "look-alikes", "resolution-[0-9]",
    "comparison-[0-9]", "agreement", "quantization", "strata", "bits", "cost",
)  # fmt: skip
"""Patterns of the names that `study_tables` gives, to find the files of an earlier report."""


def study_tables(study: Study) -> dict[str, Table]:
    """All tables by the name of their files. What was not measured has no table."""
    first, runs = study.first, study.runs
    tables = {
        f"accuracy-{i}": accuracy_table(evaluation)
        for i, evaluation in enumerate(first.evaluations, start=1)
        if evaluation.labelled
    }
    tables |= {f"pair-recall-{i}": table for i, table in enumerate(pair_tables(first.evaluations[0]), start=1)}
    if study.pairs is not None:
        tables["pair-recall-comparison"] = study.pairs.table()
    if (content := content_table(first.evaluations[0])) is not None:
        tables["content"] = content
    if first.look_alikes is not None and first.look_alikes.any:
        tables["look-alikes"] = _look_alikes(first, first.look_alikes)
    tables |= _tables_of_protocols(study)
    if first.agreement:
        tables["agreement"] = _agreement(runs)
    if first.quantization:
        tables["quantization"] = _quantization(first)
    if first.strata:
        tables["strata"] = _strata(runs)
    tables["bits"] = _bits(first)
    if any(run.cost for run in runs):
        tables["cost"] = _cost(runs)
    return tables


def _tables_of_protocols(study: Study) -> dict[str, Table]:
    """Resolution, where all runs have it, and comparison of each protocol."""
    tables = {}
    for i, each in enumerate(zip(*(run.evaluations for run in study.runs), strict=False), start=1):
        if all(evaluation.references for evaluation in each):
            tables[f"resolution-{i}"] = _resolution(each, [run.name for run in study.runs])
        if study.comparisons:
            tables[f"comparison-{i}"] = study.comparisons[i - 1].table()
    return tables


def _look_alikes(run: Assessment, found: LookAlikes) -> Table:
    """MAP, or without labels R@10, with and without the queries that have a look-alike elsewhere."""
    metric = run.evaluations[0].headline
    left_out = {
        "all compared": found.compared[:0],
        "without look-alikes in training": found.training,
        "without look-alikes in training or database": np.union1d(found.training, found.database),
    }
    rows: list[tuple[Cell, ...]] = []
    for evaluation in run.evaluations:
        for name, rejected in left_out.items():
            kept = np.setdiff1d(found.compared, rejected)
            for direction in DIRECTIONS:
                means = [mean_of(evaluation.of(metric, direction, bits)[kept]) for bits in evaluation.lengths]
                label = f"{evaluation.protocol}: {name}, {DIRECTION_NAMES[direction]}"
                rows.append((label, Number(len(kept), ","), *map(percent, means)))
    header = ("", "queries", *(f"{bits} bits" for bits in run.evaluations[0].lengths))
    total = run.evaluations[0].queries
    part = "" if len(found.compared) == total else f" Queries compared: {len(found.compared):,} of {total:,}."
    note = (
        f"{metric} in percent. {counted(len(found.training), 'query has', 'queries have')} a look-alike (equal image "
        f"features or a near-duplicate image) among the training and validation items, {len(found.database):,} among "
        f"the other items of the database.{part} A split by groups of near-duplicates keeps look-alikes on one side."
    )
    return Table("With and without look-alikes", header, tuple(rows), note)


def _resolution(evaluations: Sequence[Evaluation], names: Sequence[str]) -> Table:
    """A row per reference, length and run; the best run of each reference and length is marked."""
    first = evaluations[0]
    rows: list[tuple[Cell, ...]] = []
    marks: dict[tuple[int, int], Mark] = {}
    for reference in first.references:
        for bits in first.lengths:
            means = [
                [evaluation.mean_of_directions(metric.under(reference), bits) for metric in RESOLUTION]
                for evaluation in evaluations
            ]
            if len(names) > 1:
                marks |= _resolution_marks(means, top=len(rows), left=3)
            for name, values in zip(names, means, strict=True):
                rows.append((reference, Number(bits, "d"), name, *(Number(value, ".3f") for value in values)))
    header = ("reference", "bits", "run", *map(str, RESOLUTION))
    note = (
        "Mean of both directions. NDCG@100 on the whole database; the others on the union of the first 100 ranks of "
        f"the run and of {names[0]}."
    )
    return Table(f"Relevance resolution, {first.protocol}", header, tuple(rows), note, marks)


def _resolution_marks(means: Sequence[Sequence[float]], top: int, left: int) -> dict[tuple[int, int], Mark]:
    """Marks of a block of a table whose first cell is (top, left): means[run][metric]."""
    marks: dict[tuple[int, int], Mark] = {}
    for column, metric in enumerate(RESOLUTION):
        found = mark_columns([[row[column]] for row in means], larger_is_better=metric.larger_is_better)
        marks |= {(top + row, left + column): mark for (row, _), mark in found.items()}
    return marks


def _agreement(runs: Sequence[Assessment]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        for direction, pairs in run.agreement.items():
            far = max(pairs, key=lambda pair: pair.lengths[1] - pair.lengths[0])
            rows.append(
                (
                    f"{run.name}, {DIRECTION_NAMES[direction]}",
                    Number(far.tau.mean(), ".3f"),
                    Number(float(np.mean([pair.tau.mean() for pair in pairs])), ".3f"),
                    Number(far.displacement.mean(), ".3f"),
                )
            )
    far_name = f"{runs[0].lengths[0]}-{runs[0].lengths[-1]}"
    header = ("", f"tau-b {far_name}", "mean tau-b of all pairs", f"mean rank displacement {far_name}")
    compared = counted(len(next(iter(runs[0].agreement.values()))[0].tau), "query", "queries")
    note = f"Over the whole database, mean of the first {compared}."
    return Table("Cross-length ranking agreement", header, tuple(rows), note)


def _quantization(run: Assessment) -> Table:
    rows = tuple(
        (
            DIRECTION_NAMES[direction],
            Number(bits, "d"),
            Number(each.deviation, ".4f"),
            Number(each.tau.mean(), ".3f"),
            Number(each.ties, ".4f"),
            Number(each.ceiling, ".3f"),
            Number(each.gap, ".3f"),
        )
        for (direction, bits), each in run.quantization.items()
    )
    header = ("", "bits", "deviation", "tau-b soft/binary", "S(B)", "ceiling", "gap")
    compared = counted(len(next(iter(run.quantization.values())).tau), "query", "queries")
    return Table("Quantisation loss", header, rows, f"tau-b of the first {compared}; S(B) is the share of tied pairs.")


def _strata(runs: Sequence[Assessment]) -> Table:
    rows = tuple(
        (
            f"{run.name}, {DIRECTION_NAMES[direction]}",
            stratum.name,
            Number(mean_of(stratum.values), ".3f"),
            Number(stratum.pairs, ","),
        )
        for run in runs
        for direction, strata in run.strata.items()
        for stratum in strata
    )
    compared = counted(len(next(iter(runs[0].strata.values()))[0].values), "query", "queries")
    note = f"{length_near(runs[0].lengths)} bits, label-name reference; the first {compared}."
    return Table("Pairs that share no label", ("", "pairs", "NDCG@100", "count"), rows, note)


def _bits(run: Assessment) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for modality in MODALITIES:
        health, start = run.health[modality], 0
        for scale, width in enumerate(run.blocks or (len(health.balance),), start=1):
            block = slice(start, start + width)
            rows.append(
                (
                    f"{modality}, scale {scale}" if run.blocks else f"{modality}, whole code",
                    Number(width, "d"),
                    Number(np.abs(health.balance[block] - 0.5).mean(), ".3f"),
                    Number(health.entropy[block].mean(), ".3f"),
                    Number(health.mean_correlation(start, start + width), ".3f"),
                )
            )
            start += width
        for length, count in health.distinct.items():
            codes = Number(count, ",", " code" if count == 1 else " codes")
            rows.append((f"{modality}, first {length} bits", codes, "", "", ""))
    header = ("", "bits", "|share of ones - 0.5|", "entropy", "|correlation|")
    return Table("Use of the bits in the database", header, tuple(rows), "Means over the bits of a block.")


def _cost(runs: Sequence[Assessment]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        cost, lengths = run.cost, run.lengths
        if cost is None:
            continue
        separate = sum(cost.payload[bits] for bits in lengths)
        costs: list[tuple[Cell, ...]] = [
            ("one nested database, both modalities", Number(cost.nested / 2**20, ".3f", " MiB"), ""),
            (f"{len(lengths)} separate databases", Number(separate / 2**20, ".3f", " MiB"), ""),
            ("weights", Number(cost.model.bytes / 1e6, ".2f", " MB"), ""),
            ("parameters", Number(cost.model.parameters / 1e6, ".2f", " M"), ""),
            ("coding one image and one text", Number(cost.model.flops / 1e9, ".4f", " GFLOP"), ""),
            *((f"coding one {m} feature vector", *_times(t, ".3f")) for m, t in cost.encode.items()),
            *((f"one search at {bits} bits", *_times(t, ".4f")) for bits, t in cost.query.items()),
        ]
        rows += [(run.name, *each) for each in costs]
    note = "One thread; 100 hits. Reading images and texts and their encoders are not included."
    return Table("Cost", ("run", "what", "cost", "95th percentile"), tuple(rows), note)


def _times(times: Times, form: str) -> tuple[Number, Number]:
    return Number(times.median, form, " ms"), Number(times.p95, form, " ms")
