"""Tables of one evaluation: accuracy, pair recall, and relevance by labels and content."""

from __future__ import annotations

from collections.abc import Sequence

from multibit.codes.items import DIRECTION_NAMES, DIRECTIONS
from multibit.errors import counted
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.metric import MAP, MAP_ASYMMETRIC, MAP_TIE_AVERAGED, NDCG, PRECISION, Metric
from multibit.evaluation.pair_metrics import (
    CONTENT,
    WITH_DATABASE,
    compared_queries,
    pair_metrics,
    real_values_of,
)
from multibit.evaluation.protocol import asymmetric_queries
from multibit.table import Cell, Number, Table, percent

ACCURACY = (MAP.name, MAP_TIE_AVERAGED.name, MAP_ASYMMETRIC.name, PRECISION.name)
"""Names of the metrics of the accuracy table, at any cutoff."""

FLOORS = {"popularity": "most common labels first", "random": "random order"}
"""Name of a floor -> its ranking."""


def values_table(title: str, evaluation: Evaluation, metrics: Sequence[Metric], note: str = "") -> Table:
    """Some metrics at every length in both directions, and the floors of rankings that learned nothing.

    Args:
        title, note: of the table. evaluation, metrics: whose values are shown.
    """
    rows = evaluation.rows({str(metric): metric for metric in metrics})
    for name, meaning in FLOORS.items():
        if name in evaluation.floors:
            rows.append((f"floor: {meaning}", *[percent(evaluation.floor(name))] * len(evaluation.lengths)))
    return Table(title, evaluation.header, tuple(rows), note)


def accuracy_table(evaluation: Evaluation) -> Table:
    """MAP in percent at every length in both directions, and the floors of rankings that learned nothing."""
    metrics = [metric for metric in evaluation.metrics if metric.name in ACCURACY]
    return values_table(f"mAP@all, {evaluation.protocol}", evaluation, metrics, _accuracy_note(evaluation))


def pair_tables(evaluation: Evaluation) -> list[Table]:
    """Recall and median rank of the own counterpart: among the query items, and among the database too.

    Empty where it was not measured.
    """
    tables, names = [], ["", *real_values_of(evaluation)]
    items = counted(evaluation.queries, "query item", "query items")
    whole = counted(evaluation.queries + evaluation.database, "item", "items")
    for among, candidates in (("", f"the {items}"), (WITH_DATABASE, f"all {whole}")):
        metrics = {
            str(metric.under(name)): metric
            for name in names
            for metric in pair_metrics(f"{name} {among}".strip())
            if metric in evaluation.metrics
        }
        if metrics:
            note = _pair_note(evaluation, bool(names[1:]))
            rows = tuple(evaluation.rows(metrics))
            tables.append(Table(f"Pair recall, among {candidates}", evaluation.header, rows, note))
    return tables


def _pair_note(evaluation: Evaluation, with_real_values: bool) -> str:
    note = "R in percent: the own counterpart of a query, not an item that shares a label; ties averaged."
    if with_real_values and (sample := _sample(evaluation)):
        note += f" Real values: {sample}."
    return note


def _sample(evaluation: Evaluation) -> str:
    """The queries whose real values were ranked; empty for all."""
    compared = compared_queries(evaluation.queries, evaluation.database)
    return f"the first {compared:,} queries" if compared < evaluation.queries else ""


def content_table(evaluation: Evaluation) -> Table | None:
    """NDCG under labels and content; None where it was not measured."""
    metric = NDCG.under(CONTENT)
    if metric not in evaluation.metrics:
        return None
    rows: list[tuple[Cell, ...]] = [
        (
            f"{DIRECTION_NAMES[direction]}, {metric}",
            *(Number(evaluation.mean(metric, direction, bits), ".3f") for bits in evaluation.lengths),
        )
        for direction in DIRECTIONS
    ]
    sample = _sample(evaluation)
    note = f"Relevance is IDF-weighted shared labels times the cosine of the features{sample and '; '}{sample}."
    return Table(f"Labels and content, {evaluation.protocol}", evaluation.header, tuple(rows), note)


def _accuracy_note(evaluation: Evaluation) -> str:
    sizes = counted(evaluation.queries, "query", "queries"), counted(evaluation.database, "item", "items")
    note = f"In percent. {sizes[0]}, {sizes[1]} searched; mAP ranks ties by row."
    if MAP_ASYMMETRIC in evaluation.metrics:
        note += " Asymmetric: the query keeps its real values, only the database is binary"
        compared = asymmetric_queries(evaluation.queries, evaluation.database)
        note += f" (first {compared:,} queries)." if evaluation.queries > compared else "."
    if evaluation.undefined:
        undefined = counted(evaluation.undefined, "query", "queries")
        note += f" Left out of the means: {undefined} without any relevant item."
    return note
