"""The finding of a study in a few numbers: mean mAP at each length, and the gain over the compared runs."""

from __future__ import annotations

from dataclasses import dataclass

from multibit.evaluation.comparison import SIGNIFICANT, Difference
from multibit.evaluation.metric import MAP
from multibit.report.study import Study
from multibit.table import Number, percent


@dataclass(frozen=True)
class Gain:
    """The gain over a compared run at each length.

    Attributes:
        over: name of that run. cells: per length, the mean difference in points, its interval, and "better", "worse" or
            "" where the sign is not certain.
    """

    over: str
    cells: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Finding:
    """The headline of one protocol.

    Attributes:
        protocol: human-readable. means: per length, mAP in percent, mean of both directions.
        gains: over each other run.
    """

    protocol: str
    means: tuple[Number, ...]
    gains: tuple[Gain, ...]


def findings(study: Study) -> list[Finding]:
    """The headline of each protocol."""
    found = []
    for number, evaluation in enumerate(study.first.evaluations):
        means = tuple(percent(evaluation.mean_of_directions(MAP, bits), ".1f") for bits in evaluation.lengths)
        comparison = study.comparisons[number] if study.comparisons else None
        gains = tuple(
            Gain(run.name, tuple(_cell(comparison.overall[name, bits]) for bits in evaluation.lengths))
            for run, name in zip(study.runs[1:], comparison.names[1:], strict=True)
        ) if comparison else ()  # fmt: skip
        found.append(Finding(evaluation.protocol, means, gains))
    return found


def sentence(study: Study) -> str:
    """The finding in one sentence, at the longest code."""
    first, *others = study.runs
    bits = first.lengths[-1]
    parts = [
        f"{100 * evaluation.mean_of_directions(MAP, bits):.1f} % with {evaluation.protocol}"
        for evaluation in first.evaluations
    ]
    text = f"Mean mAP at {bits} bits: {', '.join(parts)}."
    for run in others:
        name = study.comparisons[0].names[1 + others.index(run)]
        each = study.comparisons[0].overall[name, bits]
        verdict = {"better": "better than", "worse": "worse than", "": "not certainly different from"}[_verdict(each)]
        text += f" {verdict.capitalize()} {run.name}: {_interval(each)}."
    return text


def _cell(difference: Difference) -> tuple[str, str, str]:
    low, high = (percent(value, "+.1f") for value in (difference.low, difference.high))
    return str(percent(difference.mean, "+.1f")), f"{low} to {high}", _verdict(difference)


def _interval(difference: Difference) -> str:
    mean, interval, _ = _cell(difference)
    return f"{mean} points (95 % interval {interval})"


def _verdict(difference: Difference) -> str:
    if difference.p >= SIGNIFICANT:
        return ""
    return "better" if difference.mean > 0 else "worse"
