"""Assessed runs together with their comparisons: what a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from multibit.evaluation.assessment import Assessment
from multibit.evaluation.comparison import Comparison, compare, distinct, headline_of, require_comparable
from multibit.evaluation.metric import PAIR_RECALL, Metric


@dataclass(frozen=True, eq=False)
class Study:
    """Runs that were assessed on the same split. Tables, figures and the page only read it.

    Attributes:
        runs: the reported run first; their names differ.
        comparisons: the first run compared with the others in mAP, or in R@10 where one of them has no labels; one per
            protocol, empty for a single run.
        pairs: their R@10 compared; None for a single run, where one of them has none, or where `comparisons` has it.
    """

    runs: tuple[Assessment, ...]
    comparisons: tuple[Comparison, ...]
    pairs: Comparison | None = None

    @classmethod
    def of(cls, runs: Sequence[Assessment], comparisons: Sequence[Comparison] = ()) -> Study:
        """Number repeated names and compare the first run with the others.

        Args:
            runs: the reported run first. comparisons: of the runs, one per protocol, if they were made before.

        Raises:
            MismatchError: the runs were evaluated on different queries, databases, lengths or data.
        """
        names = distinct([run.name for run in runs])
        named = tuple(replace(run, name=name) for run, name in zip(runs, names, strict=True))
        first, *others = named
        for other in others:
            for mine, theirs in zip(first.evaluations, other.evaluations, strict=False):
                require_comparable(mine, theirs, (first.name, other.name))
        protocols = zip(*(run.evaluations for run in named), strict=False)  # those without labels have only the first
        made = [compare(*each, names=names) for each in protocols] if others and not comparisons else []
        whole = [run.evaluations[0] for run in named]
        both = (
            bool(others)
            and headline_of(whole) != PAIR_RECALL
            and all(PAIR_RECALL in evaluation.metrics for evaluation in whole)
        )
        pairs = compare(*whole, names=names, metric=PAIR_RECALL) if both else None
        return cls(named, tuple(comparisons) or tuple(made), pairs)

    @property
    def headline(self) -> Metric:
        """The metric that the report begins with: mAP, or R@10 where one of the runs has no labels."""
        return headline_of([run.evaluations[0] for run in self.runs])

    @property
    def labelled(self) -> bool:
        """Whether the items of the first run have labels."""
        return self.first.evaluations[0].labelled

    @property
    def first(self) -> Assessment:
        """The reported run."""
        return self.runs[0]
