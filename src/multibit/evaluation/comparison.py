"""Comparison of runs on the same queries: means, paired randomisation test and bootstrap intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from multibit.arrays import FloatArray
from multibit.codes.items import DIRECTION_NAMES, DIRECTIONS, Direction
from multibit.errors import ConfigError, DataError, MismatchError, counted, require_kind
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.metric import MAP, Metric, as_metric
from multibit.table import Cell, Mark, Number, Table, mark_columns, percent

RESAMPLES = 10_000
RESAMPLED = 250  # resamples that are held at once
SIGNIFICANT = 0.05
PLURAL = {"data": "data", "split": "splits"}


@dataclass(frozen=True, eq=False)
class Difference:
    """Per-query differences of a metric between run A and run B.

    Attributes:
        values: (n,) A minus B, over the queries where both are defined.
        p: two-sided p value of the paired randomisation test (signs of the differences exchanged at random).
        low, high: 95 % bootstrap interval of the mean difference.
    """

    values: FloatArray
    p: float
    low: float
    high: float

    def __repr__(self) -> str:
        return f"Difference({self.mean:+.4f}, p {self.p:.4f}, {len(self.values):,} queries)"

    @property
    def mean(self) -> float:
        """Mean of A minus B."""
        return float(self.values.mean())

    @property
    def improved(self) -> float:
        """Share of queries where A is larger."""
        return float((self.values > 0).mean())

    @property
    def tied(self) -> float:
        """Share of queries where both are equal."""
        return float((self.values == 0).mean())

    @property
    def degraded(self) -> float:
        """Share of queries where A is smaller."""
        return float((self.values < 0).mean())


def compare_queries(a: ArrayLike, b: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> Difference:
    """Compare two runs query by query.

    Args:
        a, b: (Q,) values of the same queries; NaN where undefined, and left out.
        resamples: number for the test and for the bootstrap. seed: of both.

    Raises:
        DataError: shapes that differ, or no query where both are defined. ConfigError: fewer than one resample.

    Example:
        >>> difference = compare_queries([0.9, 0.8, 0.7, 0.6], [0.5, 0.8, 0.6, 0.7])
        >>> round(difference.mean, 3), difference.improved, difference.tied, difference.degraded
        (0.1, 0.5, 0.25, 0.25)
    """
    return compare_all([(a, b)], resamples=resamples, seed=seed)[0]


def compare_all(
    pairs: Sequence[tuple[ArrayLike, ArrayLike]], *, resamples: int = RESAMPLES, seed: int = 0
) -> list[Difference]:
    """`compare_queries` of several pairs; those with the same number of defined queries share the random numbers.

    Raises:
        As `compare_queries`.
    """
    if resamples < 1:
        raise ConfigError(f"need at least 1, got {resamples}.", option="resamples")
    values = [_defined_differences(a, b) for a, b in pairs]
    found: dict[int, Difference] = {}
    for size in dict.fromkeys(map(len, values)):
        places = [place for place, each in enumerate(values) if len(each) == size]
        found |= zip(places, _resampled(np.stack([values[place] for place in places]), resamples, seed), strict=True)
    return [found[place] for place in range(len(values))]


def _defined_differences(a: ArrayLike, b: ArrayLike) -> FloatArray:
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise DataError(
            f"shapes {first.shape} and {second.shape}: the runs must have the same queries.", field="values"
        )
    values: FloatArray = (first - second)[~np.isnan(first - second)]
    if not len(values):
        queries = counted(first.size, "query", "queries")
        raise DataError(f"no query has a value in both runs ({queries}).", field="values")
    return values


def _resampled(values: FloatArray, resamples: int, seed: int) -> list[Difference]:
    """The differences of several metrics (m, n) on the same number of queries."""
    count, rng = values.shape[1], np.random.default_rng(seed)
    sums, boot = np.empty((len(values), resamples)), np.empty((len(values), resamples))
    for start in range(0, resamples, RESAMPLED):
        size = min(RESAMPLED, resamples - start)
        block = slice(start, start + size)
        signs = rng.integers(0, 2, (size, count)) * 2 - 1
        sums[:, block] = np.abs(values @ signs.T.astype(np.float64) / count)
        drawn = rng.integers(0, count, (size, count)) + np.arange(size)[:, None] * count
        often = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        boot[:, block] = values @ often.T.astype(np.float64) / count
    means = np.abs(values.mean(axis=1))
    as_extreme = (sums >= means[:, None] - 1e-12).sum(axis=1)
    low, high = np.quantile(boot, [0.025, 0.975], axis=1)
    return [
        Difference(row, float((extreme + 1) / (resamples + 1)), float(least), float(most))
        for row, extreme, least, most in zip(values, as_extreme, low, high, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs on the same queries, with the difference of the first run to each of the others.

    Attributes:
        metric: the compared metric. names, evaluations: of the runs.
        differences: (name, direction, bits) -> the first run minus that run, query by query.
        overall: (name, bits) -> the same, of the mean of both directions.

    Example:
        >>> from multibit import evaluate_run
        >>> evaluation = evaluate_run(run, store)[0]
        >>> comparison = compare(evaluation, evaluation, names=["first", "again"])
        >>> comparison.differences["again", "i2t", 8].mean
        0.0
    """

    metric: Metric
    names: tuple[str, ...]
    evaluations: tuple[Evaluation, ...]
    differences: dict[tuple[str, Direction, int], Difference]
    overall: dict[tuple[str, int], Difference]

    def __repr__(self) -> str:
        return f"Comparison({self.metric} of {len(self.names)} runs, {self.names[0]!r:.60} with the others)"

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        return self.table()._repr_html_()

    def table(self) -> Table:
        """One row per direction, length and run; the best and second best of each direction and length are marked."""
        rows: list[tuple[Cell, ...]] = []
        marks: dict[tuple[int, int], Mark] = {}
        larger = self.metric.larger_is_better
        for direction in DIRECTIONS:
            for bits in self.evaluations[0].lengths:
                means = [evaluation.mean(self.metric, direction, bits) for evaluation in self.evaluations]
                found = mark_columns([[mean] for mean in means], larger_is_better=larger)
                marks |= {(len(rows) + row, 3): mark for (row, _), mark in found.items()}
                for name, mean in zip(self.names, means, strict=True):
                    difference = self.differences.get((name, direction, bits))
                    cells: tuple[Cell, ...] = ("",) * 6 if difference is None else _cells(difference, self.metric)
                    rows.append((DIRECTION_NAMES[direction], Number(bits, "d"), name, self.metric.shown(mean), *cells))
        first, shares = self.names[0], ("improved", "tied", "degraded")
        header = ("", "bits", "run", str(self.metric), f"{first} minus it", "95 % interval", *shares, "p")
        title = f"{first} compared with other runs in {self.metric}, {self.evaluations[0].protocol}"
        return Table(title, header, tuple(rows), self._note(), marks)

    def _note(self) -> str:
        sizes = {len(difference.values) for difference in self.differences.values()}
        low, high = min(sizes), max(sizes)
        paired = counted(low, "query", "queries") if low == high else f"{low:,} to {high:,} queries"
        unit = ": median, and mean difference" if self.metric.is_rank else " in percent"
        return (
            f"{self.metric}{unit}. Paired over the {paired} that are defined in both runs: randomisation test "
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


def headline_of(evaluations: Sequence[Evaluation]) -> Metric:
    """The metric to compare evaluations in: mAP, or R@10 where one of them has no labels."""
    return next((each.headline for each in evaluations if not each.labelled), MAP)


def compare(
    *evaluations: Evaluation, names: Sequence[str] | None = None, metric: Metric | str | None = None
) -> Comparison:
    """Compare runs on the same queries, the first with each of the others.

    Args:
        evaluations: of two or more runs under one protocol, the run of interest first.
        names: of the runs; their own when None. Repeated names are numbered.
        metric: to compare, measured in all of them; mAP when None, or R@10 where one of them has no labels.

    Raises:
        DataError: fewer than two evaluations or something else, names that are one text or of another number, or a
            metric that one of them lacks.
            ConfigError: an unknown metric. MismatchError: different queries, database, protocol, lengths, data or
            split.

    Example:
        >>> from multibit.codes import CodedItems
        >>> from multibit.evaluation.protocol import evaluate
        >>> labels = np.eye(4, dtype=np.uint8)[np.arange(12) % 4]
        >>> random = np.random.default_rng(0).normal(size=(12, 4))
        >>> found = []
        >>> for name, values in {"labels": labels - 0.5, "random": random}.items():
        ...     items = CodedItems.binarize({"image": values, "text": values}, labels)
        ...     sides = items.take(np.arange(4)), items.take(np.arange(4, 12))
        ...     found.append(evaluate(*sides, [4], training_labels=labels, name=name))
        >>> compare(*found)
        Comparison(mAP of 2 runs, 'labels' with the others)
    """
    for evaluation in evaluations:
        require_kind(evaluation, Evaluation, "evaluations", "Make them with evaluate, or read load_evaluations(path).")
    if len(evaluations) < 2:
        raise DataError(f"need 2 or more, got {len(evaluations)}.", field="evaluations")
    chosen = [evaluation.name for evaluation in evaluations] if names is None else _given(names)
    if len(chosen) != len(evaluations):
        raise DataError(f"{len(chosen)} names for {len(evaluations)} evaluations.", option="names")
    shown, measured = distinct(chosen), as_metric(headline_of(evaluations) if metric is None else metric)
    first, *others = evaluations
    for name, evaluation in zip(shown, evaluations, strict=True):
        require_comparable(first, evaluation, (shown[0], name))
        if measured not in evaluation.metrics:
            known = ", ".join(map(str, evaluation.metrics))
            raise DataError(f"{measured} was not measured in {name}; choose from {known}.", option="metric")
    pairs: dict[tuple[str, Direction, int], tuple[FloatArray, FloatArray]] = {
        (name, direction, bits): (first.values[measured, direction, bits], other.values[measured, direction, bits])
        for name, other in zip(shown[1:], others, strict=True)
        for direction in DIRECTIONS
        for bits in first.lengths
    }
    both = {
        (name, bits): tuple(
            np.mean(side, axis=0) for side in zip(*(pairs[name, d, bits] for d in DIRECTIONS), strict=True)
        )
        for name in shown[1:]
        for bits in first.lengths
    }
    found = compare_all([*pairs.values(), *both.values()])
    differences = dict(zip(pairs, found, strict=False))
    overall = dict(zip(both, found[len(pairs) :], strict=True))
    return Comparison(measured, tuple(shown), tuple(evaluations), differences, overall)


def _given(names: Sequence[str]) -> list[str]:
    """Names that the caller gave.

    Raises:
        DataError: one text, which Python would take for a list of letters.
    """
    if isinstance(names, str):
        raise DataError(f"need a list of names, got the text {names!r}.", option="names")
    return list(names)


def require_comparable(first: Evaluation, other: Evaluation, names: tuple[str, str]) -> None:
    """Refuse to compare evaluations of different queries or databases.

    Raises:
        MismatchError: different queries, database, protocol, lengths, data or split.
    """
    for part in PLURAL:
        known = [evaluation.fingerprints.get(part) for evaluation in (first, other)]
        if all(known) and known[0] != known[1]:
            which = f"{known[1]} and {known[0]}"
            raise MismatchError(
                f"{names[1]} and {names[0]} were evaluated on different {PLURAL[part]}: {which}.", field=part
            )
    what = [(each.queries, each.database, each.lengths, each.protocol) for each in (first, other)]
    if what[0] != what[1]:
        raise MismatchError(
            f"{names[1]} and {names[0]} have different queries, databases or code lengths: "
            + ", ".join(
                f"{each.queries:,} x {each.database:,} at {'/'.join(map(str, each.lengths))} bits ({each.protocol})"
                for each in (other, first)
            )
            + "."
        )


def distinct(names: Sequence[str]) -> list[str]:
    """Unique names: repeated ones are numbered.

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


def _cells(difference: Difference, metric: Metric) -> tuple[Cell, ...]:
    star = "*" if difference.p < SIGNIFICANT else ""
    shares = difference.improved, difference.tied, difference.degraded
    return (
        metric.shown(difference.mean, "+", star),
        f"{metric.shown(difference.low, '+')} to {metric.shown(difference.high, '+')}",
        *(percent(share, ".1f") for share in (shares if metric.larger_is_better else shares[::-1])),
        Number(difference.p, ".4f"),
    )
