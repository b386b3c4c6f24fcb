"""Tables of one evaluation, of the hits of a search, and of the available methods."""

from __future__ import annotations

from multibit.codes.items import DIRECTION_NAMES, DIRECTIONS
from multibit.config import Config
from multibit.errors import counted
from multibit.evaluation.metric import MAP, MAP_ASYMMETRIC, MAP_TIE_AVERAGED, NDCG, PRECISION
from multibit.evaluation.pair_metrics import (
    CONTENT,
    WITH_DATABASE,
    compared_queries,
    pair_metrics,
    real_values_of,
)
from multibit.evaluation.protocol import Evaluation, asymmetric_queries
from multibit.relation import TEACHERS
from multibit.table import Cell, Number, Table, percent

ACCURACY = (MAP.name, MAP_TIE_AVERAGED.name, MAP_ASYMMETRIC.name, PRECISION.name)
"""Names of the metrics of the accuracy table, at any cutoff."""

FLOORS = {"popularity": "most common labels first", "random": "random order"}
"""Name of a floor -> its ranking."""


LENGTHS_IN_WORDS = {"nested": "nested", "several": "a code for each", "one": "a model for each"}
INPUTS_IN_WORDS = {"pooled": "one vector", "tokens": "tokens"}


def accuracy_table(evaluation: Evaluation) -> Table:
    """MAP in percent at every length in both directions, and the floors of rankings that learned nothing."""
    rows: list[tuple[Cell, ...]] = [
        (
            f"{DIRECTION_NAMES[direction]}, {metric}",
            *(percent(evaluation.mean(metric, direction, bits)) for bits in evaluation.lengths),
        )
        for metric in evaluation.metrics
        if metric.name in ACCURACY
        for direction in DIRECTIONS
    ]
    for name, meaning in ((name, FLOORS[name]) for name in FLOORS if name in evaluation.floors):
        rows.append((f"floor: {meaning}", *[percent(evaluation.floor(name))] * len(evaluation.lengths)))
    header = ("", *(f"{bits} bits" for bits in evaluation.lengths))
    return Table(f"mAP@all, {evaluation.protocol}", header, tuple(rows), _accuracy_note(evaluation))


def pair_tables(evaluation: Evaluation) -> list[Table]:
    """Recall and median rank of the own counterpart: among the query items, and among the database too.

    Empty where it was not measured.
    """
    tables, names = [], ["", *real_values_of(evaluation)]
    items = counted(evaluation.queries, "query item", "query items")
    whole = counted(evaluation.queries + evaluation.database, "item", "items")
    header = ("", *(f"{bits} bits" for bits in evaluation.lengths))
    for among, candidates in (("", f"the {items}"), (WITH_DATABASE, f"all {whole}")):
        rows: list[tuple[Cell, ...]] = [
            (
                f"{DIRECTION_NAMES[direction]}, {metric.under(name)}",
                *(metric.shown(evaluation.mean(metric, direction, bits)) for bits in evaluation.lengths),
            )
            for name in names
            for metric in pair_metrics(f"{name} {among}".strip())
            if metric in evaluation.metrics
            for direction in DIRECTIONS
        ]
        if rows:
            note = _pair_note(evaluation, bool(names[1:]))
            tables.append(Table(f"Pair recall, among {candidates}", header, tuple(rows), note))
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
    header = ("", *(f"{bits} bits" for bits in evaluation.lengths))
    return Table(f"Labels and content, {evaluation.protocol}", header, tuple(rows), note)


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


def methods_tables() -> list[Table]:
    """The methods and the relation teachers that can be trained."""
    from multibit.hashing.methods import METHODS  # imports torch, which the other tables do not need

    variants = [method for method in METHODS.values() if isinstance(method.defaults, Config)]
    compared = [method for method in METHODS.values() if method not in variants]
    own = tuple(
        (m.name, m.title, m.meaning, ", ".join(f"{name} {value}" for name, value in m.settings.items()))
        for m in variants
    )
    others = tuple(
        (m.name, m.title, m.venue or "classical", LENGTHS_IN_WORDS[m.lengths], INPUTS_IN_WORDS[m.inputs], m.differs)
        for m in compared
    )
    teachers = tuple((name, (teacher.__doc__ or "").splitlines()[0]) for name, teacher in TEACHERS.items())
    heading = ("method", "name in the paper", "venue", "code lengths", "reads", "what differs from the published code")
    return [
        Table("MultiBit and its variants", ("method", "name in the paper", "meaning", "settings"), own),
        Table("Compared methods", heading, others),
        Table("Relation teachers", ("teacher", "g*"), teachers),
    ]
