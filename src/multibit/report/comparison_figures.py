"""Figures of all runs of a study: accuracy, differences by query, training, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from multibit.codes.items import DIRECTION_NAMES, length_near
from multibit.evaluation.metric import MAP, MAP_BEST_TIES, MAP_WORST_TIES
from multibit.report.figure_parts import (
    DIRECTION_DASHES,
    POINTS,
    StudyFigure,
    as_label,
    at_lengths,
    by_direction,
    color_of,
    database_of,
    names_of,
    panels_of,
)
from multibit.report.figures import MARKERS
from multibit.report.study import Study
from multibit.report.svg import INK

if TYPE_CHECKING:  # matplotlib is optional, and captions are read without it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BOUNDS = (MAP_WORST_TIES, MAP_BEST_TIES)
FLOOR_DASHES = {"popularity": ":", "random": "-."}


# Accuracy


def _named(study: Study) -> str:
    """The headline metric as axes name it."""
    return "mAP@all" if study.headline == MAP else str(study.headline)


def _accuracy_by_length(study: Study) -> Figure:
    from matplotlib.lines import Line2D

    first, runs = study.first, study.runs
    figure, panels = panels_of([evaluation.protocol for evaluation in first.evaluations], bottom=0.24)
    for i, axes in enumerate(panels):
        for number, run in enumerate(runs):
            evaluation = run.evaluations[i]
            for direction, dash in DIRECTION_DASHES.items():
                means, *bounds = (
                    [100 * evaluation.mean(metric, direction, bits) for bits in run.lengths]
                    for metric in (study.headline, *(BOUNDS if study.headline == MAP else ()))
                )
                label = f"{run.name}, {DIRECTION_NAMES[direction]}"
                axes.plot(
                    run.lengths, means, color=color_of(number), linestyle=dash, marker="o", markersize=4.5, label=label
                )
                for low, high in zip(bounds[::2], bounds[1::2], strict=True):
                    axes.fill_between(run.lengths, low, high, color=color_of(number), alpha=0.1, linewidth=0)
        if study.headline == MAP:
            _draw_floors(axes, {name: 100 * first.evaluations[i].floor(name) for name in first.evaluations[i].floors})
        at_lengths(axes, first.lengths)
        axes.set_ylabel(f"{_named(study)} (%)")
    handles = [Line2D([], [], color=color_of(number), marker="o", label=run.name) for number, run in enumerate(runs)]
    styles = DIRECTION_DASHES.items()
    handles += [Line2D([], [], color="0.5", linestyle=dash, label=DIRECTION_NAMES[d]) for d, dash in styles]
    figure.legend(handles=handles, fontsize=8, loc="lower center", ncols=min(len(handles), 6), frameon=False)
    return figure


def _draw_floors(axes: Axes, floors: dict[str, float]) -> None:
    """Floors as lines where they are near the curves, else as a note below them, so that differences stay visible."""
    low, high = axes.get_ylim()
    below = []
    for name, value in floors.items():
        if value >= low - 0.25 * (high - low):
            axes.axhline(value, color="0.5", linestyle=FLOOR_DASHES.get(name, ":"), linewidth=1, label=f"floor: {name}")
        else:
            below.append(f"{name} {value:.1f}")
    if below:
        note = f"floors, below this axis: {', '.join(below)}"
        axes.text(0.98, 0.03, note, transform=axes.transAxes, ha="right", fontsize=8)


def _accuracy_caption(study: Study) -> str:
    if study.headline != MAP:
        return (
            f"{names_of(study)}. How often the own counterpart of a query is among the first ten of the query items, "
            "ties averaged. The higher, the better; a flat line means that short codes lose little."
        )
    return (
        f"{names_of(study)}; a panel per protocol. The higher, the better; a flat line means that short codes lose "
        "little. The bands are the bounds over all orders of equal distances: a wide band means that many items are "
        "tied. Floors are rankings that learned nothing."
    )


# Query by query


def _ap_differences(study: Study) -> Figure:
    comparison, bits = study.comparisons[0], length_near(study.first.lengths)
    figure, panels = by_direction(f", {bits} bits")
    for axes, direction in panels:
        for number, name in enumerate(comparison.names[1:], start=1):
            each = comparison.differences[name, direction, bits]
            values = np.quantile(100 * each.values, np.linspace(0, 1, min(len(each.values), POINTS)))
            share = np.linspace(1 / len(each.values), 1, len(values))
            label = f"{as_label(name)}: {100 * each.improved:.0f} % improved"
            axes.plot(values, share, color=color_of(number), linestyle=DIRECTION_DASHES[direction], label=label)
        axes.axvline(0, color=INK, linewidth=0.8)
        what = "AP" if comparison.metric == MAP else comparison.metric
        axes.set(xlabel=f"{what} of {study.first.name} minus the other (points)", ylabel="share of queries")
        axes.legend(fontsize=8, frameon=False)
    return figure


def _ap_differences_caption(study: Study) -> str:
    return (
        f"{names_of(study)}; {database_of(study)}; "
        "the queries sorted by their difference. What lies right of the line at zero "
        f"is better with {study.first.name}; a long left end means that some queries lose much."
    )


# Training


def _training(study: Study) -> Figure:
    figure, (loss, score) = panels_of(["Training loss, relative to the first epoch", "Validation mAP or recall (%)"])
    for number, run in enumerate(study.runs):
        for bits in dict.fromkeys(row.get("bits", 0) for row in run.history):
            rows = [row for row in run.history if row.get("bits", 0) == bits]
            epochs, total = [row["epoch"] for row in rows], np.array([row["total"] for row in rows])
            scores = [row.get("validation_mAP", row.get("validation_recall")) for row in rows]
            scored = [(epoch, 100 * each) for epoch, each in zip(epochs, scores, strict=True) if each is not None]
            name = f"{run.name}, {bits:.0f} bits" if bits else run.name
            scale = abs(total[0]) if len(total) and total[0] else 1.0
            loss.plot(epochs, total / scale, color=color_of(number), label=name)
            if scored:
                score.plot(*zip(*scored, strict=True), color=color_of(number), marker=".", markersize=3, label=name)
                best = max(scored, key=lambda each: each[1])
                score.plot(*best, "*", color=color_of(number), markersize=10)
    for axes in (loss, score):
        axes.set_xlabel("epoch")
    loss.set_ylabel("loss / first loss")
    score.set_ylabel("mAP (%)")
    loss.legend(fontsize=8, frameon=False)
    return figure


def _training_caption(study: Study) -> str:
    return (
        f"{names_of(study)}; "
        "validation queries against training items, mean over directions and lengths; stars mark the "
        "selected epoch. A validation curve that still rises at the end asks for more epochs, one that falls for fewer."
    )


# Cost


def _accuracy_and_cost(study: Study) -> Figure:
    figure, (storage, time) = panels_of(["Accuracy against storage", "Accuracy against search time"])
    for number, run in enumerate(study.runs):
        if run.cost is None:
            continue
        means = [100 * run.evaluations[0].mean_of_directions(study.headline, bits) for bits in run.lengths]
        sizes = [bits / 8 for bits in run.lengths]
        median, high = (
            [1e3 * getattr(run.cost.query[bits], name) for bits in run.lengths] for name in ("median", "p95")
        )
        style: dict[str, Any] = {"color": color_of(number), "marker": MARKERS[number % len(MARKERS)], "markersize": 5}
        storage.plot(sizes, means, label=run.name, **style)
        later = [max(0.0, slow - usual) for usual, slow in zip(median, high, strict=True)]
        time.errorbar(
            median, means, xerr=[[0.0] * len(later), later], linestyle="none", elinewidth=0.8, alpha=0.9, **style
        )
        for axes, x in ((storage, sizes), (time, median)):
            for bits, at, mean in zip(run.lengths, x, means, strict=True):
                axes.annotate(f"{bits}", (at, mean), textcoords="offset points", xytext=(4, -10), fontsize=7)
    storage.set(xlabel="bytes per code", ylabel=f"mean {_named(study)} (%)")
    time.set(
        xlabel="search time (microseconds): median, line to the 95th percentile", ylabel=f"mean {_named(study)} (%)"
    )
    for axes in (storage, time):
        axes.margins(y=0.12)  # space for the numbers next to the points
        axes.set_xlim(left=0)
    storage.legend(fontsize=8, frameon=False)
    return figure


def _accuracy_and_cost_caption(study: Study) -> str:
    return (
        f"{names_of(study)}; {database_of(study)}; "
        "numbers are code lengths. The upper left is best. Times are single searches "
        "on this machine and differ between calls, so they are points and not a curve."
    )


ACCURACY_FIGURES = (
    StudyFigure("map-by-length", "Accuracy by code length", _accuracy_by_length, _accuracy_caption),
    StudyFigure(
        "ap-differences", "Differences to the compared runs, query by query", _ap_differences, _ap_differences_caption,
        lambda study: bool(study.comparisons),
    ),
    StudyFigure(
        "training", "Training", _training, _training_caption,
        lambda study: len(study.first.history) > 1,
    ),
)  # fmt: skip

COST_FIGURES = (
    StudyFigure(
        "accuracy-and-cost", "Accuracy against storage and search time", _accuracy_and_cost,
        _accuracy_and_cost_caption, lambda study: study.first.cost is not None,
    ),
)  # fmt: skip
