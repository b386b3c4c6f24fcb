"""Evaluations on the same queries -> one value: which run is best where, and whether it could be chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from multibit.errors import DataError, MismatchError
from multibit.evaluation.comparison import Difference, compare_queries
from multibit.evaluation.protocol import DIRECTIONS, Evaluation
from multibit.report.tables import ARROWS, Mark, Table, counted, mark_columns

SIGNIFICANT = 0.05
SMALLER_IS_BETTER = ("collision", "inversion")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs on the same queries; each but the first has its difference to the first.

    Attributes:
        metric: that is compared. names: of the runs. evaluations: of the runs.
        differences: (name, direction, bits) -> the first run minus that run, query by query.
    """

    metric: str
    names: tuple[str, ...]
    evaluations: tuple[Evaluation, ...]
    differences: dict[tuple[str, str, int], Difference]

    def table(self) -> Table:
        """A row per direction, length and run; the best of each length and direction is marked, and the second."""
        rows: list[tuple[str, ...]] = []
        marks: dict[tuple[int, int], Mark] = {}
        larger = not self.metric.startswith(SMALLER_IS_BETTER)
        for direction in DIRECTIONS:
            for bits in self.evaluations[0].lengths:
                means = [evaluation.mean(self.metric, direction, bits) for evaluation in self.evaluations]
                found = mark_columns([[mean] for mean in means], larger_is_better=larger)
                marks |= {(len(rows) + row, 3): mark for (row, _), mark in found.items()}
                for name, mean in zip(self.names, means, strict=True):
                    difference = self.differences.get((name, direction, bits))
                    cells = ("",) * 6 if difference is None else _cells(difference, larger)
                    rows.append((ARROWS[direction], str(bits), name, f"{100 * mean:.2f}", *cells))
        first, shares = self.names[0], ("improved", "tied", "degraded")
        header = ("", "bits", "run", self.metric, f"{first} minus it", "95 % interval", *shares, "p")
        title = f"{first} beside other runs, {self.evaluations[0].protocol}"
        return Table(title, header, tuple(rows), self._note(), marks)

    def _note(self) -> str:
        sizes = {len(difference.values) for difference in self.differences.values()}
        low, high = min(sizes), max(sizes)
        paired = counted(low, "query", "queries") if low == high else f"{low:,} to {high:,} queries"
        return (
            f"{self.metric} in percent. Paired over the {paired} that both runs define: randomisation test "
            f"(* p < {SIGNIFICANT}), bootstrap interval of the mean difference, share of queries in percent that "
            f"{self.names[0]} improves, ties or degrades."
        )

    def markdown(self) -> str:
        """GitHub-flavoured markdown, the best bold, the second in italics, significant differences starred."""
        return self.table().markdown()

    def csv(self) -> str:
        """Comma-separated values, one header line."""
        return self.table().csv()

    def latex(self) -> str:
        """A booktabs table, the best bold, the second underlined, significant differences starred."""
        return self.table().latex()


def compare(*evaluations: Evaluation, names: Sequence[str] | None = None, metric: str = "mAP") -> Comparison:
    """Compare runs on the same queries, the first with each of the others.

    Args:
        evaluations: of two or more runs under one protocol, the run of interest first.
        names: of the runs; their own when None. Repeated ones are numbered.
        metric: one that all of them measured.

    Raises:
        DataError: fewer than two, or a metric that one of them lacks. MismatchError: other queries, database, protocol,
            lengths, data or split.
    """
    if len(evaluations) < 2:
        raise DataError(f"a comparison needs two or more evaluations, got {len(evaluations)}.")
    chosen = [evaluation.name for evaluation in evaluations] if names is None else list(names)
    if len(chosen) != len(evaluations):
        raise DataError(f"{len(chosen)} names for {len(evaluations)} evaluations.")
    shown = distinct(chosen)
    first, *others = evaluations
    for name, evaluation in zip(shown, evaluations, strict=True):
        require_comparable(first, evaluation, (shown[0], name))
        if metric not in evaluation.metrics:
            raise DataError(f"{name} did not measure {metric}; it has {', '.join(evaluation.metrics)}.")
    differences = {
        (name, direction, bits): compare_queries(
            first.values[metric, direction, bits], other.values[metric, direction, bits]
        )
        for name, other in zip(shown[1:], others, strict=True)
        for direction in DIRECTIONS
        for bits in first.lengths
    }
    return Comparison(metric, tuple(shown), tuple(evaluations), differences)


def require_comparable(first: Evaluation, other: Evaluation, names: tuple[str, str]) -> None:
    """Refuse to set two evaluations side by side that measured different things.

    Raises:
        MismatchError: other queries, database, protocol, lengths, data or split.
    """
    for part in ("data", "split"):
        known = [evaluation.fingerprints.get(part) for evaluation in (first, other)]
        if all(known) and known[0] != known[1]:
            which = f"{known[1]} and {known[0]}"
            raise MismatchError(f"{names[1]} and {names[0]} were measured on a different {part}: {which}.")
    what = [(each.queries, each.database, each.lengths, each.protocol) for each in (first, other)]
    if what[0] != what[1]:
        raise MismatchError(
            f"{names[1]} and {names[0]} measured different queries, databases or lengths: "
            + ", ".join(
                f"{each.queries:,} x {each.database:,} at {'/'.join(map(str, each.lengths))} bits ({each.protocol})"
                for each in (other, first)
            )
            + "."
        )


def distinct(names: Sequence[str]) -> list[str]:
    """Names that differ: repeated ones are numbered.

    Example:
        >>> distinct(["run", "run", "other"])
        ['run', 'run (2)', 'other']
    """
    seen: Counter[str] = Counter()
    out = []
    for name in names:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def _cells(difference: Difference, larger_is_better: bool) -> tuple[str, ...]:
    star = "*" if difference.p < SIGNIFICANT else ""
    shares = difference.improved, difference.tied, difference.degraded
    return (
        f"{100 * difference.mean:+.2f}{star}",
        f"{100 * difference.low:+.2f} to {100 * difference.high:+.2f}",
        *(f"{100 * share:.1f}" for share in (shares if larger_is_better else shares[::-1])),
        f"{difference.p:.4f}",
    )
