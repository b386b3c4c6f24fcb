"""The evaluation: per-query values of every metric under one protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import FloatArray, mean_of
from multibit.codes import DIRECTIONS
from multibit.codes.items import DIRECTION_NAMES, Direction
from multibit.errors import ConfigError
from multibit.evaluation.metric import (
    MAP,
    PAIR_RECALL,
    TAU_B,
    Metric,
    as_metric,
)
from multibit.evaluation.metrics import (
    PrecisionRecall,
)
from multibit.evaluation.ranking import Key
from multibit.table import Cell, Table

ValueKey = tuple[Metric, Direction, int]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Per-query values of one protocol.

    Attributes:
        protocol: human-readable description of the database.
        lengths: the code lengths.
        queries, database: number of items.
        values: (metric, direction, bits) -> (Q,) per-query values, NaN where undefined. The metrics are mAP under its
            four tie rules; with a rank cutoff also mAP and precision at it; for each graded relevance NDCG@100, tau-b,
            collision and inversion; with relaxed queries the asymmetric mAP; pair recall where it was added, alone for
            items without labels.
        floors: name -> (Q,) average precision of a ranking that learned nothing; none without labels.
        curves: (direction, bits) -> precision-recall points by Hamming radius; none without labels.
        name: of the run, for tables. fingerprints: of "run", "data" and "split", as far as known.

    Evaluations are equal when all fields are; undefined values equal each other.

    Example:
        >>> from multibit import evaluate_run
        >>> evaluation, unseen = evaluate_run(run, store)
        >>> evaluation.lengths, evaluation.queries, unseen.database
        ((4, 8), 6, 7)
        >>> evaluation.of("mAP", "t2i", 8).shape, 0 < evaluation.mean("mAP", "t2i", 8) <= 1
        ((6,), True)
    """

    protocol: str
    lengths: tuple[int, ...]
    queries: int
    database: int
    values: dict[ValueKey, FloatArray] = field(repr=False)
    floors: dict[str, FloatArray] = field(repr=False)
    curves: dict[Key, PrecisionRecall] = field(repr=False)
    name: str = "run"
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Evaluation):
            return NotImplemented
        return (
            self.to_dict() == other.to_dict()
            and _equal(self.values, other.values)
            and _equal(self.floors, other.floors)
        )

    def __repr__(self) -> str:
        sizes = f"{self.queries:,} queries, {self.database:,} items"
        return f"Evaluation({self.name!r:.60}, {self.protocol}, {sizes}, {len(self.lengths)} lengths)"

    def _repr_html_(self) -> str:
        """Mean of every metric in percent, for notebooks."""
        rows = self.rows({str(metric): metric for metric in self.metrics})
        title, note = f"{self.name}, {self.protocol}", "In percent, ranks as they are."
        return Table(title, self.header, tuple(rows), note)._repr_html_()

    @property
    def header(self) -> tuple[str, ...]:
        """Headings of a table whose columns are the lengths, see `rows`."""
        return ("", *(f"{bits} bits" for bits in self.lengths))

    def rows(self, metrics: Mapping[str, Metric]) -> list[tuple[Cell, ...]]:
        """Rows of a table: the means of each metric in both directions at every length.

        Args:
            metrics: name in the table -> metric.
        """
        return [
            (
                f"{DIRECTION_NAMES[direction]}, {name}",
                *(metric.shown(self.mean(metric, direction, bits)) for bits in self.lengths),
            )
            for name, metric in metrics.items()
            for direction in DIRECTIONS
        ]

    @property
    def undefined(self) -> int:
        """Queries without any relevant item in the database: left out of every mean. 0 without labels."""
        return int(np.isnan(self.floors["random"]).sum()) if self.labelled else 0

    @property
    def labelled(self) -> bool:
        """Whether the items have labels; without them only pair recall is measured."""
        return "random" in self.floors

    @property
    def metrics(self) -> list[Metric]:
        """The measured metrics, in order."""
        return list(dict.fromkeys(metric for metric, _, _ in self.values))

    @property
    def headline(self) -> Metric:
        """The metric that reports and comparisons begin with: mAP, or R@10 without labels."""
        return MAP if self.labelled else PAIR_RECALL

    @property
    def references(self) -> list[str]:
        """Names of the graded relevances of the resolution metrics, in order."""
        return list(dict.fromkeys(metric.reference for metric in self.metrics if metric.name == TAU_B.name))

    def of(self, metric: Metric | str, direction: Direction, bits: int) -> FloatArray:
        """(Q,) values of a metric, NaN where undefined.

        Raises:
            ConfigError: not measured; the message lists what was measured.
        """
        key = as_metric(metric), direction, bits
        if key not in self.values:
            directions, lengths = (dict.fromkeys(str(key[place]) for key in self.values) for place in (1, 2))
            raise ConfigError(
                f"{metric}, {direction}, {bits} bits was not measured; choose from the metrics "
                f"{', '.join(map(str, self.metrics))}, the directions {', '.join(directions)} and the lengths "
                f"{', '.join(lengths)}.",
                option="metric",
            )
        return self.values[key]

    def mean(self, metric: Metric | str, direction: Direction, bits: int) -> float:
        """Mean, or of ranks the median, over the queries for which the metric is defined; NaN if there are none.

        Raises:
            ConfigError: not measured; the message lists what was measured.
        """
        return as_metric(metric).summary(self.of(metric, direction, bits))

    def mean_of_directions(self, metric: Metric | str, bits: int) -> float:
        """Mean of the two directions' means."""
        return float(np.mean([self.mean(metric, direction, bits) for direction in DIRECTIONS]))

    def floor(self, name: str) -> float:
        """Mean of a floor over the queries for which it is defined.

        Raises:
            ConfigError: not measured; the message lists what was measured.
        """
        if name not in self.floors:
            known = ", ".join(self.floors) or "none"
            raise ConfigError(f"floor {name!r} was not measured; choose from {known}.", option="name")
        return mean_of(self.floors[name])

    def to_dict(self) -> dict[str, Any]:
        """All fields except the per-query values as plain values, for JSON; undefined means are null."""
        return {
            "name": self.name,
            "fingerprints": dict(self.fingerprints),
            "protocol": self.protocol,
            "lengths": list(self.lengths),
            "queries": self.queries,
            "queries_without_relevant_item": self.undefined,
            "database": self.database,
            "tie_rule": "distance, then database row",
            "floors": {name: self.floor(name) for name in self.floors},
            "means": [
                {"metric": str(metric), "direction": direction, "bits": bits, "value": mean}
                for metric, direction, bits in self.values
                for mean in _plain(np.array([self.mean(metric, direction, bits)]))
            ],
            "curves": [
                {
                    "direction": direction,
                    "bits": bits,
                    "radius": curve.radius.tolist(),
                    "precision": _plain(curve.precision),
                    "recall": _plain(curve.recall),
                }
                for (direction, bits), curve in self.curves.items()
            ],
        }


def _plain(values: FloatArray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _equal(a: Mapping[Any, NDArray[Any]], b: Mapping[Any, NDArray[Any]]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key], equal_nan=True) for key in a)
