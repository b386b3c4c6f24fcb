"""Figures of a study: colour is the run, line style the direction, opacity and marker the code length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from multibit.arrays import FloatArray
from multibit.codes.items import DIRECTION_NAMES, DIRECTIONS, MODALITIES, Direction, length_near
from multibit.evaluation.assessment import COUNTED_QUERIES, MOST_SHARED, SAMPLED_QUERIES
from multibit.evaluation.metric import MAP, MAP_BEST_TIES, MAP_WORST_TIES
from multibit.report.figures import MARKERS, draw_panels
from multibit.report.study import Study
from multibit.report.svg import INK
from multibit.table import counted

if TYPE_CHECKING:  # matplotlib is optional, and names and captions are read without it
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

RUN_COLORS = ("#2f81f7", "#db6d28", "#2da44e", "#8957e5", "#db61a2", "#8b949e")
"""Colours of the runs, with enough contrast on light and on dark pages."""

DIRECTION_DASHES: dict[Direction, Literal["-", "--"]] = {"i2t": "-", "t2i": "--"}
FLOOR_DASHES = {"popularity": ":", "random": "-."}
POINTS = 300  # of a curve: more cannot be seen
MOST_NAMES = 32  # labels whose names can be read next to the graph


@dataclass(frozen=True)
class StudyFigure:
    """A figure of the report.

    Attributes:
        name: of its files. title: what it shows. draw: draws a study.
        caption: study -> its run, protocol and what to see. has: whether a study has what it shows.
    """

    name: str
    title: str
    draw: Callable[[Study], Figure]
    caption: Callable[[Study], str]
    has: Callable[[Study], bool] = lambda study: True


def figures_of(study: Study) -> list[StudyFigure]:
    """The figures that a study has data for, in the order of the page."""
    return [each for each in FIGURES if each.has(study)]


def draw_study(study: Study) -> dict[str, Figure]:
    """All figures of a study, by the name of their files."""
    shown = replace(study, runs=tuple(replace(run, name=_as_label(run.name)) for run in study.runs))
    return {each.name: each.draw(shown) for each in figures_of(study)}


def _as_label(name: str) -> str:
    """The name for matplotlib, which reads text between dollars as a formula and hides labels that begin with _."""
    plain = name.replace("$", r"\$") if name.count("$") > 1 else name
    return f" {plain}" if plain.startswith("_") else plain


def _color(number: int) -> str:
    return RUN_COLORS[number % len(RUN_COLORS)]


def _panels(
    titles: Sequence[str], left: float = 0.07, bottom: float = 0.14, between: float = 0.22
) -> tuple[Figure, list[Axes]]:
    """Panels side by side with fixed margins: finding the best ones takes longer than the drawing."""
    figure, panels = draw_panels(titles, layout=None)
    figure.subplots_adjust(
        left=left if len(titles) > 1 else 2 * left, right=0.98, top=0.9, bottom=bottom, wspace=between
    )
    return figure, panels


def _at_lengths(axes: Axes, lengths: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(lengths), [str(bits) for bits in lengths])
    axes.minorticks_off()
    axes.set_xlabel("code length (bits)")


def _thinned(values: FloatArray) -> tuple[list[int], list[float]]:
    """At most about `POINTS` of the points of a curve, denser at its start, with their places."""
    count = len(values)
    kept = np.unique(np.concatenate([np.arange(min(count, 50)), np.linspace(0, count - 1, POINTS).astype(int)]))
    return kept.tolist(), values[kept].tolist()


def _by_length(
    axes: Axes, x: Sequence[float], y: Sequence[float], place: int, places: int, dash: str, label: str
) -> None:
    """A line of the first run at one of several lengths: the longer, the more opaque."""
    alpha = 0.35 + 0.65 * (place + 1) / places
    every = max(1, len(x) // 8)
    axes.plot(
        x, y, color=_color(0), alpha=alpha, linestyle=dash, marker=MARKERS[place % len(MARKERS)], markersize=4.5,
        markevery=every, label=label,
    )  # fmt: skip


# Accuracy


def _map_by_length(study: Study) -> Figure:
    from matplotlib.lines import Line2D

    first, runs = study.first, study.runs
    figure, panels = _panels([evaluation.protocol for evaluation in first.evaluations], bottom=0.24)
    for i, axes in enumerate(panels):
        for number, run in enumerate(runs):
            evaluation = run.evaluations[i]
            for direction, dash in DIRECTION_DASHES.items():
                means, low, high = (
                    [100 * evaluation.mean(metric, direction, bits) for bits in run.lengths]
                    for metric in (MAP, MAP_WORST_TIES, MAP_BEST_TIES)
                )
                label = f"{run.name}, {DIRECTION_NAMES[direction]}"
                axes.plot(
                    run.lengths, means, color=_color(number), linestyle=dash, marker="o", markersize=4.5, label=label
                )
                axes.fill_between(run.lengths, low, high, color=_color(number), alpha=0.1, linewidth=0)
        _draw_floors(axes, {name: 100 * first.evaluations[i].floor(name) for name in first.evaluations[i].floors})
        _at_lengths(axes, first.lengths)
        axes.set_ylabel("mAP@all (%)")
    handles = [Line2D([], [], color=_color(number), marker="o", label=run.name) for number, run in enumerate(runs)]
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


def _runs(study: Study) -> str:
    """The reported run, and those that it is compared with."""
    others = ", ".join(run.name for run in study.runs[1:])
    return f"{study.first.name}, compared with {others}" if others else study.first.name


def _whole(study: Study) -> str:
    return study.first.evaluations[0].protocol


def _map_caption(study: Study) -> str:
    return (
        f"{_runs(study)}; a panel per protocol. The higher, the better; a flat line means that short codes lose "
        "little. The bands are the bounds over all orders of equal distances: a wide band means that many items are "
        "tied. Floors are rankings that learned nothing."
    )


# Training


def _training(study: Study) -> Figure:
    figure, (loss, score) = _panels(["Training loss, relative to the first epoch", "Validation mean mAP (%)"])
    for number, run in enumerate(study.runs):
        for bits in dict.fromkeys(row.get("bits", 0) for row in run.history):
            rows = [row for row in run.history if row.get("bits", 0) == bits]
            epochs, total = [row["epoch"] for row in rows], np.array([row["total"] for row in rows])
            scored = [(row["epoch"], 100 * row["validation_mAP"]) for row in rows if "validation_mAP" in row]
            name = f"{run.name}, {bits:.0f} bits" if bits else run.name
            scale = abs(total[0]) if len(total) and total[0] else 1.0
            loss.plot(epochs, total / scale, color=_color(number), label=name)
            if scored:
                score.plot(*zip(*scored, strict=True), color=_color(number), marker=".", markersize=3, label=name)
                best = max(scored, key=lambda each: each[1])
                score.plot(*best, "*", color=_color(number), markersize=10)
    for axes in (loss, score):
        axes.set_xlabel("epoch")
    loss.set_ylabel("loss / first loss")
    score.set_ylabel("mAP (%)")
    loss.legend(fontsize=8, frameon=False)
    return figure


def _training_caption(study: Study) -> str:
    return (
        f"{_runs(study)}; validation queries against training items, mean over directions and lengths; stars mark the "
        "selected epoch. A validation curve that still rises at the end asks for more epochs, one that falls for fewer."
    )


# The reported run


def _precision_recall(study: Study) -> Figure:
    run = study.first
    figure, panels = _panels([f"{DIRECTION_NAMES[direction]}, by Hamming radius" for direction in DIRECTIONS])
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        for number, bits in enumerate(run.lengths):
            curve = run.evaluations[0].curves[direction, bits]
            known = ~np.isnan(curve.precision)
            points = curve.recall[known].tolist(), curve.precision[known].tolist()
            _by_length(axes, *points, number, len(run.lengths), DIRECTION_DASHES[direction], f"{bits} bits")
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1))
        axes.legend(fontsize=8, frameon=False)
    return figure


def _precision_recall_caption(study: Study) -> str:
    return (
        f"{study.first.name}; {_whole(study)}; over all pairs within each Hamming radius, from 0 to the code length. "
        "The higher, the better: at the same recall fewer wrong items are found."
    )


def _precision_at_n(study: Study) -> Figure:
    run = study.first
    figure, panels = _panels([DIRECTION_NAMES[direction] for direction in DIRECTIONS])
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        for number, bits in enumerate(run.lengths):
            places, values = _thinned(run.precision[direction, bits])
            ranks = [place + 1 for place in places]
            _by_length(axes, ranks, values, number, len(run.lengths), DIRECTION_DASHES[direction], f"{bits} bits")
        axes.set(xlabel="first N ranks", ylabel="precision")
        axes.legend(fontsize=8, frameon=False)
    return figure


def _precision_at_n_caption(study: Study) -> str:
    return (
        f"{study.first.name}; {_whole(study)}; mean share of relevant items among the first N. The higher, the better; "
        "the left end is what a user sees first. The axis does not start at 0."
    )


def _faded(number: int) -> Colormap:
    """A colour map from nearly transparent to the colour of a run, for light and dark pages alike."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    return LinearSegmentedColormap.from_list("run", [to_rgba(_color(number), 0.06), to_rgba(_color(number), 1.0)])


def _rank_displacement(study: Study) -> Figure:
    run = study.first
    short, long = run.lengths[0], run.lengths[-1]
    figure, (axes,) = _panels([f"Change of rank from {short} to {long} bits, image-to-text"])
    rank, moved = run.displacement
    bins = axes.hexbin(
        rank, moved, gridsize=24, cmap=_faded(0), bins="log", mincnt=1, extent=(0, 1, -1, 1), linewidth=0
    )
    figure.colorbar(bins, ax=axes, label="items", format="%g")
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set(xlabel=f"normalised rank at {short} bits", ylabel="change of rank", ylim=(-1, 1))
    axes.text(0.98, 0.95, f"mean |change| {np.abs(moved).mean():.3f}", transform=axes.transAxes, ha="right", fontsize=8)
    return figure


def _rank_displacement_caption(study: Study) -> str:
    items = study.first.displacement.shape[1]
    return (
        f"{study.first.name}; {_whole(study)}; a sample of {counted(items, 'item', 'items')} of "
        f"{SAMPLED_QUERIES} queries. The nearer to the middle line, the better: an item keeps its rank when the code "
        "is cut short. The left end matters most, the first ranks."
    )


def _distances_by_shared_labels(study: Study) -> Figure:
    run = study.first
    figure, (axes,) = _panels(["Distance by number of shared labels, image-to-text"])
    for number, (count, share) in enumerate(run.shared.items()):
        label = f"{count}{' or more' if count == MOST_SHARED else ''} shared"
        _by_length(axes, list(range(len(share))), share.tolist(), number, len(run.shared), "-", label)
    bits = len(next(iter(run.shared.values()))) - 1
    axes.set(xlabel=f"Hamming distance at {bits} bits", ylabel="share of pairs", ylim=(0, None))
    axes.legend(fontsize=8, frameon=False)
    return figure


def _distances_caption(study: Study) -> str:
    return (
        f"{study.first.name}; {_whole(study)}; the first {COUNTED_QUERIES} queries. The farther the curves of more "
        "shared labels lie to the left of that of none, the better the codes tell related items from others."
    )


def _ap_differences(study: Study) -> Figure:
    comparison, bits = study.comparisons[0], length_near(study.first.lengths)
    figure, panels = _panels([f"{DIRECTION_NAMES[direction]}, {bits} bits" for direction in DIRECTIONS])
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        for number, name in enumerate(comparison.names[1:], start=1):
            each = comparison.differences[name, direction, bits]
            values = np.quantile(100 * each.values, np.linspace(0, 1, min(len(each.values), POINTS)))
            share = np.linspace(1 / len(each.values), 1, len(values))
            label = f"{_as_label(name)}: {100 * each.improved:.0f} % improved"
            axes.plot(values, share, color=_color(number), linestyle=DIRECTION_DASHES[direction], label=label)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set(xlabel=f"AP of {study.first.name} minus the other (points)", ylabel="share of queries")
        axes.legend(fontsize=8, frameon=False)
    return figure


def _ap_differences_caption(study: Study) -> str:
    return (
        f"{_runs(study)}; {_whole(study)}; the queries sorted by their difference. What lies right of the line at zero "
        f"is better with {study.first.name}; a long left end means that some queries lose much."
    )


# Labels and bits


def _label_graph(study: Study) -> Figure:
    run, teacher = study.first, study.first.teacher
    assert teacher is not None
    figure, (graph, scales) = _panels(
        ["Label graph: PPMI weights", "Response of each scale"], left=0.15, bottom=0.3, between=0.25
    )
    weights, shown = teacher.graph.weights, _shown_labels(study)
    eigenvalues, vectors = teacher.spectrum
    order = shown[
        np.argsort(vectors[shown, np.argsort(eigenvalues)[min(1, len(eigenvalues) - 1)]])
    ]  # related ones together
    graph.grid(False)
    graph.set(xlabel="label", ylabel="label")
    if weights.any():
        image = graph.imshow(weights[np.ix_(order, order)], cmap=_faded(0), interpolation="nearest")
        names = [_as_label(_short(run.label_names[row] if run.label_names else f"label {row}")) for row in order]
        graph.set_xticks(range(len(order)), names, rotation=90, fontsize=5.5)
        graph.set_yticks(range(len(order)), names, fontsize=5.5)
        figure.colorbar(image, ax=graph)
    else:
        graph.set(xticks=[], yticks=[])
        text = "No edge: no two labels occur together\nmore often than by chance."
        graph.text(0.5, 0.5, text, transform=graph.transAxes, ha="center", va="center")
    at = np.linspace(0, 2, 100)
    for number, tau in enumerate(teacher.tau):
        _by_length(scales, at.tolist(), np.exp(-tau * at).tolist(), number, len(teacher.tau), "-", f"tau = {tau:.2f}")
    whole = (at + teacher.eta) ** -teacher.alpha
    scales.plot(at, whole / whole[0], color=INK, linewidth=2, alpha=0.5, label="fractional kernel")
    scales.plot(eigenvalues, np.full(len(eigenvalues), -0.03), "|", color=INK, alpha=0.5, label="eigenvalues")
    scales.set(xlabel="eigenvalue of the Laplacian", ylabel="response (relative)")
    scales.legend(fontsize=7, frameon=False)
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"


def _shown_labels(study: Study) -> np.ndarray:
    """Rows of the labels with the largest degrees, as many as have room for their names."""
    assert study.first.teacher is not None
    degree = study.first.teacher.graph.weights.sum(axis=1)
    return np.sort(np.argsort(-degree, kind="stable")[:MOST_NAMES])


def _label_graph_caption(study: Study) -> str:
    assert study.first.teacher is not None
    labels, shown = len(study.first.teacher.graph.weights), len(_shown_labels(study))
    part = f"the {shown} of {labels} labels with the largest degree" if shown < labels else f"all {labels} labels"
    return (
        f"{study.first.name}, training labels; {part}, related ones next to each other. Blocks are groups of labels "
        "that occur together; a label without a dark cell is related to none, and the teacher can only tell whether it "
        "is shared. On the right, the larger tau, the longer the range of the scale."
    )


def _bit_balance(study: Study) -> Figure:
    run = study.first
    figure, panels = _panels([f"{modality} codes" for modality in MODALITIES])
    ends = np.cumsum(run.blocks)[:-1]
    for axes, modality in zip(panels, MODALITIES, strict=True):
        balance = run.health[modality].balance
        edges = np.arange(len(balance) + 1) + 0.5
        axes.stairs(balance, edges, fill=True, baseline=0.5, color=_color(0))  # faster than 128 bars
        axes.axhline(0.5, color=INK, linewidth=0.8)
        for end in ends:
            axes.axvline(end + 0.5, color=_color(1), linewidth=0.9, linestyle="--")
        axes.set(xlabel="bit (dashed: next scale)" if run.blocks else "bit", ylabel="share of ones", ylim=(0, 1))
    return figure


def _bit_balance_caption(study: Study) -> str:
    return (
        f"{study.first.name}; {_whole(study)}; all items of the database. The nearer to 0.5, the better: a bit at 0 "
        "or 1 is the same in all codes and tells nothing apart."
    )


def _bit_budget(study: Study) -> Figure:
    from matplotlib.ticker import MaxNLocator

    run, teacher = study.first, study.first.teacher
    assert teacher is not None
    figure, (axes,) = _panels(["Bits of each diffusion scale"], bottom=0.2)
    names = [f"{number}\ntau = {tau:.1f}" for number, tau in enumerate(teacher.tau, start=1)]
    bars = axes.bar(names, run.blocks, color=_color(0))
    axes.bar_label(bars, fontsize=9)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="scale, local to long range", ylabel="bits")
    return figure


def _bit_budget_caption(study: Study) -> str:
    return (
        f"{study.first.name}. Scales that explain more of the teacher get more bits; neither more nor fewer is better."
    )


# Cost


def _accuracy_and_cost(study: Study) -> Figure:
    figure, (storage, time) = _panels(["Accuracy against storage", "Accuracy against search time"])
    for number, run in enumerate(study.runs):
        if run.cost is None:
            continue
        means = [100 * run.evaluations[0].mean_of_directions(MAP, bits) for bits in run.lengths]
        sizes = [bits / 8 for bits in run.lengths]
        median, high = (
            [1e3 * getattr(run.cost.query[bits], name) for bits in run.lengths] for name in ("median", "p95")
        )
        style: dict[str, Any] = {"color": _color(number), "marker": MARKERS[number % len(MARKERS)], "markersize": 5}
        storage.plot(sizes, means, label=run.name, **style)
        later = [max(0.0, slow - usual) for usual, slow in zip(median, high, strict=True)]
        time.errorbar(
            median, means, xerr=[[0.0] * len(later), later], linestyle="none", elinewidth=0.8, alpha=0.9, **style
        )
        for axes, x in ((storage, sizes), (time, median)):
            for bits, at, mean in zip(run.lengths, x, means, strict=True):
                axes.annotate(f"{bits}", (at, mean), textcoords="offset points", xytext=(4, -10), fontsize=7)
    storage.set(xlabel="bytes per code", ylabel="mean mAP@all (%)")
    time.set(xlabel="search time (microseconds): median, line to the 95th percentile", ylabel="mean mAP@all (%)")
    for axes in (storage, time):
        axes.margins(y=0.12)  # space for the numbers next to the points
        axes.set_xlim(left=0)
    storage.legend(fontsize=8, frameon=False)
    return figure


def _accuracy_and_cost_caption(study: Study) -> str:
    return (
        f"{_runs(study)}; {_whole(study)}; numbers are code lengths. The upper left is best. Times are single searches "
        "on this machine and differ between calls, so they are points and not a curve."
    )


def _has_teacher(study: Study) -> bool:
    return study.first.teacher is not None


FIGURES = (
    StudyFigure("map-by-length", "mAP by code length", _map_by_length, _map_caption),
    StudyFigure(
        "ap-differences", "Differences of average precision, query by query", _ap_differences, _ap_differences_caption,
        lambda study: bool(study.comparisons),
    ),
    StudyFigure(
        "training", "Training", _training, _training_caption,
        lambda study: len(study.first.history) > 1,
    ),
    StudyFigure(
        "precision-recall", "Precision and recall within each Hamming radius", _precision_recall,
        _precision_recall_caption,
    ),
    StudyFigure(
        "precision-at-n", "Precision of the first N ranks", _precision_at_n, _precision_at_n_caption,
        lambda study: bool(study.first.precision),
    ),
    StudyFigure(
        "rank-displacement", "Change of rank with the code length", _rank_displacement, _rank_displacement_caption,
        lambda study: len(study.first.lengths) > 1 and study.first.displacement.size > 0,
    ),
    StudyFigure(
        "distances-by-shared-labels", "Distances by number of shared labels", _distances_by_shared_labels,
        _distances_caption, lambda study: bool(study.first.shared),
    ),
    StudyFigure("label-graph", "Label graph and diffusion scales", _label_graph, _label_graph_caption, _has_teacher),
    StudyFigure("bit-balance", "Balance of the bits in the database", _bit_balance, _bit_balance_caption),
    StudyFigure(
        "bit-budget", "Bits of each scale", _bit_budget, _bit_budget_caption,
        lambda study: _has_teacher(study) and bool(study.first.blocks),
    ),
    StudyFigure(
        "accuracy-and-cost", "Accuracy against storage and search time", _accuracy_and_cost,
        _accuracy_and_cost_caption, lambda study: study.first.cost is not None,
    ),
)  # fmt: skip
"""The figures of a report, in the order of the page."""
