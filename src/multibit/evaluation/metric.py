"""Metric objects: name, cutoff, reference, direction of improvement and rule for undefined queries."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import numpy as np

from multibit.arrays import FloatArray
from multibit.errors import ConfigError
from multibit.table import Number, percent

NO_RELEVANT_ITEM = "no item of the database shares a label with the query"
_REST = re.compile(r"(?:@(?P<cutoff>[1-9]\d*))?(?: (?P<reference>.+))?")  # after the name


@dataclass(frozen=True)
class Metric:
    """A metric with one value per query. Metrics are equal when name, cutoff and reference are.

    Attributes:
        name: such as "mAP". cutoff: last rank; None for the whole database.
        reference: name of the graded relevance; "" for binary relevance by shared labels. Of pair recall, what is
            ranked and among which items; "" for codes among the query items.
        larger_is_better: direction of improvement.
        is_rank: values are ranks, summarised by their median; all others are shares, summarised by their mean.
        undefined: when a query has no value; its value is then NaN and left out of every mean.

    Example:
        >>> str(NDCG.under("IDF")), Metric.parse("NDCG@100 IDF") == NDCG.under("IDF")
        ('NDCG@100 IDF', True)
    """

    name: str
    cutoff: int | None = None
    reference: str = ""
    larger_is_better: bool = field(default=True, compare=False, repr=False)
    is_rank: bool = field(default=False, compare=False, repr=False)
    undefined: str = field(default=NO_RELEVANT_ITEM, compare=False, repr=False)

    def __str__(self) -> str:
        cutoff = "" if self.cutoff is None else f"@{self.cutoff}"
        return f"{self.name}{cutoff}{' ' if self.reference else ''}{self.reference}"

    def at(self, cutoff: int) -> Metric:
        """The same metric over the first `cutoff` ranks."""
        return replace(self, cutoff=cutoff)

    def under(self, reference: str) -> Metric:
        """The same metric against a graded relevance."""
        return replace(self, reference=reference)

    def summary(self, values: FloatArray) -> float:
        """Mean, or of ranks the median, of the defined values; NaN if there are none."""
        defined = values[~np.isnan(values)]
        if not len(defined):
            return float("nan")
        return float(np.median(defined) if self.is_rank else defined.mean())

    def shown(self, value: float, sign: str = "", suffix: str = "") -> Number:
        """A value as tables print it: shares in percent, ranks as they are."""
        return Number(value, f"{sign},.1f", suffix) if self.is_rank else percent(value, f"{sign}.2f", suffix)

    @classmethod
    def parse(cls, text: str) -> Metric:
        """The metric with this name, the inverse of `str`; for the command line and for files.

        Raises:
            ConfigError: unknown.
        """
        for known in sorted(METRICS, key=lambda metric: -len(metric.name)):  # the longest name that fits
            match = _REST.fullmatch(text.removeprefix(known.name)) if text.startswith(known.name) else None
            if match is not None:
                cutoff = int(match["cutoff"]) if match["cutoff"] else None
                return replace(known, cutoff=cutoff, reference=match["reference"] or "")
        raise ConfigError(f"unknown metric {text!r}; choose from {', '.join(map(str, METRICS))}.", option="metric")


MAP = Metric("mAP")
"""Mean average precision over the whole database, ties by database row."""

MAP_TIE_AVERAGED = Metric("mAP tie-averaged")
"""Mean average precision, as the exact mean over all orders of equal distances."""

MAP_BEST_TIES, MAP_WORST_TIES = Metric("mAP best ties"), Metric("mAP worst ties")
"""Mean average precision with relevant items first, or last, among equal distances: bounds of the others."""

MAP_ASYMMETRIC = Metric("mAP asymmetric")
"""Mean average precision with real-valued queries and a binary database."""

PRECISION = Metric("precision")
"""Share of relevant items among the first ranks."""

NDCG = Metric("NDCG", cutoff=100, undefined="nothing in the database is relevant to the query")
"""Normalised discounted cumulative gain of the whole database."""

TAU_B = Metric("tau-b", undefined="never: 0 where everything is tied")
"""Kendall's tau-b between relevance and negative distance on the candidate pool."""

COLLISION = Metric("collision", larger_is_better=False, undefined="no pair of the pool differs in relevance")
"""Share of pairs of different relevance at equal distance."""

INVERSION = Metric("inversion", larger_is_better=False, undefined="no pair of the pool differs in relevance")
"""Share of pairs of different relevance in the wrong order."""

NO_COUNTERPART = "no candidate belongs to the item of the query"
PAIR_RECALL = Metric("R", cutoff=10, undefined=NO_COUNTERPART)
"""Whether an own counterpart is among the first ranks, as the exact mean over all orders of equal distances."""

MEDIAN_RANK = Metric("median rank", larger_is_better=False, is_rank=True, undefined=NO_COUNTERPART)
"""Expected rank of the first own counterpart over all orders of equal distances; the median over the queries."""

PAIRS = (PAIR_RECALL.at(1), PAIR_RECALL.at(5), PAIR_RECALL, MEDIAN_RANK)
"""The metrics of the own counterpart, each measured among the query items and among the database too."""

RESOLUTION = (NDCG, TAU_B, COLLISION, INVERSION)
"""The metrics of relevance resolution, each measured under a reference."""

METRICS = (
    MAP, MAP_TIE_AVERAGED, MAP_BEST_TIES, MAP_WORST_TIES, MAP_ASYMMETRIC, PRECISION, PAIR_RECALL, MEDIAN_RANK,
    *RESOLUTION,
)  # fmt: skip
"""All metrics."""


def as_metric(metric: Metric | str) -> Metric:
    """The metric itself, or the one with a name such as "mAP" or "NDCG@100 IDF"."""
    return Metric.parse(metric) if isinstance(metric, str) else metric
