"""The finding of a study in a few numbers: mean mAP and pair recall by length, and the gain over the compared runs."""

from __future__ import annotations

from dataclasses import dataclass

from multibit.errors import counted
from multibit.evaluation.comparison import SIGNIFICANT, Comparison, Difference
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.metric import MAP, PAIR_RECALL, Metric
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
    """The headline of one protocol, or of pair recall.

    Attributes:
        metric: "mAP" or "R@10". protocol: human-readable. means: per length, in percent, mean of both directions.
        gains: over each other run.
    """

    metric: str
    protocol: str
    means: tuple[Number, ...]
    gains: tuple[Gain, ...]


def findings(study: Study) -> list[Finding]:
    """The headline of each protocol, and of pair recall where it was measured."""
    whole = study.first.evaluations[0]
    compared = {each.evaluations[0].protocol: each for each in study.comparisons if each.metric == MAP}
    found = [
        _finding(study, evaluation, MAP, evaluation.protocol, compared.get(evaluation.protocol))
        for evaluation in study.first.evaluations
        if evaluation.labelled
    ]
    if PAIR_RECALL in whole.metrics:
        pairs = next((each for each in study.comparisons if each.metric == PAIR_RECALL), study.pairs)
        found.append(_finding(study, whole, PAIR_RECALL, _among(whole), pairs))
    return found


def _finding(study: Study, evaluation: Evaluation, metric: Metric, what: str, comparison: Comparison | None) -> Finding:
    means = tuple(percent(evaluation.mean_of_directions(metric, bits), ".1f") for bits in evaluation.lengths)
    gains = tuple(
        Gain(run.name, tuple(_cell(comparison.overall[name, bits]) for bits in evaluation.lengths))
        for run, name in zip(study.runs[1:], comparison.names[1:], strict=True)
    ) if comparison else ()  # fmt: skip
    return Finding(str(metric), what, means, gains)


def _among(evaluation: Evaluation) -> str:
    return f"own counterpart among the {counted(evaluation.queries, 'query item', 'query items')}"


def sentence(study: Study) -> str:
    """The finding in one sentence, at the longest code."""
    first, *others = study.runs
    bits = first.lengths[-1]
    parts = [
        f"{100 * evaluation.mean_of_directions(MAP, bits):.1f} % with {evaluation.protocol}"
        for evaluation in first.evaluations
        if evaluation.labelled
    ]
    whole = first.evaluations[0]
    sentences = [f"Mean mAP at {bits} bits: {', '.join(parts)}."] if parts else []
    if PAIR_RECALL in whole.metrics:
        name = PAIR_RECALL if parts else f"Mean {PAIR_RECALL} at {bits} bits"
        sentences.append(f"{name}: {100 * whole.mean_of_directions(PAIR_RECALL, bits):.1f} %, {_among(whole)}.")
    text = " ".join(sentences)
    for run in others:
        name = study.comparisons[0].names[1 + others.index(run)]
        each = study.comparisons[0].overall[name, bits]
        verdict = {"better": "better than", "worse": "worse than", "": "not certainly different from"}[_verdict(each)]
        text += f" {verdict.capitalize()} {run.name} in {study.comparisons[0].metric}: {_interval(each)}."
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
