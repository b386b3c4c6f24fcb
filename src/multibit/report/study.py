"""Assessed runs together with their comparisons: what a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from multibit.evaluation.assessment import Assessment
from multibit.evaluation.comparison import Comparison, compare, distinct, require_comparable


@dataclass(frozen=True, eq=False)
class Study:
    """Runs that were assessed on the same split. Tables, figures and the page only read it.

    Attributes:
        runs: the reported run first; their names differ.
        comparisons: the mAP of the first run compared with the others, one per protocol; empty for a single run.
    """

    runs: tuple[Assessment, ...]
    comparisons: tuple[Comparison, ...]

    @classmethod
    def of(cls, runs: Sequence[Assessment], comparisons: Sequence[Comparison] = ()) -> Study:
        """Number repeated names and compare the first run with the others.

        Args:
            runs: the reported run first. comparisons: of their mAP, one per protocol, if they were made before.

        Raises:
            MismatchError: the runs were evaluated on different queries, databases, lengths or data.
        """
        names = distinct([run.name for run in runs])
        named = tuple(replace(run, name=name) for run, name in zip(runs, names, strict=True))
        first, *others = named
        for other in others:
            for mine, theirs in zip(first.evaluations, other.evaluations, strict=False):
                require_comparable(mine, theirs, (first.name, other.name))
        protocols = range(len(first.evaluations) if others and not comparisons else 0)
        made = [compare(*(run.evaluations[i] for run in named), names=names) for i in protocols]
        return cls(named, tuple(comparisons) or tuple(made))

    @property
    def first(self) -> Assessment:
        """The reported run."""
        return self.runs[0]
