"""Figures of a study, legible in grey: lines differ by dash and marker as well as by colour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from multibit.arrays import FloatArray
from multibit.codes.items import DIRECTION_NAMES, DIRECTIONS, MODALITIES, length_near
from multibit.evaluation.assessment import MOST_SHARED
from multibit.evaluation.metric import MAP
from multibit.report.study import Study

if TYPE_CHECKING:  # matplotlib is optional, and names and captions are read without it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0b3c5d", "#d95f02", "#4d4d4d", "#1b9e77", "#7570b3")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FLOOR_DASHES = {"popularity": ":", "random": "--"}
PANEL = (5.0, 3.6)  # inches


@dataclass(frozen=True)
class ReportFigure:
    """A figure of the report.

    Attributes:
        name: of its files. caption: what it shows. draw: draws a study. has: whether a study has what it shows.
    """

    name: str
    caption: str
    draw: Callable[[Study], Figure]
    has: Callable[[Study], bool] = lambda study: True


def report_figures(study: Study) -> dict[str, Figure]:
    """All figures, by the name of their files."""
    shown = replace(study, runs=tuple(replace(run, name=_as_label(run.name)) for run in study.runs))
    return {each.name: each.draw(shown) for each in FIGURES if each.has(study)}


def _as_label(name: str) -> str:
    """The name for matplotlib, which reads text between dollars as a formula and hides labels that begin with _."""
    plain = name.replace("$", r"\$") if name.count("$") > 1 else name
    return f" {plain}" if plain.startswith("_") else plain


def draw_panels(titles: Sequence[str], columns: int | None = None) -> tuple[Figure, list[Axes]]:
    """A figure with one panel per title, side by side, or in rows of `columns`."""
    from matplotlib.figure import Figure

    columns = columns or len(titles)
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(len(titles))]
    for each, title in zip(axes, titles, strict=True):
        each.set_title(title, fontsize=10)
        each.grid(alpha=0.25, linewidth=0.6)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], style: int, label: str, markers: bool = True) -> None:
    """A line that differs from those of other styles by colour, dash and marker."""
    color, dash = COLORS[style % len(COLORS)], DASHES[style % len(DASHES)]
    marker = MARKERS[style % len(MARKERS)] if markers else None
    axes.plot(x, y, color=color, linestyle=dash, marker=marker, label=label, markersize=4.5)


def draw_distributions(axes: Axes, differences: Mapping[str, FloatArray], xlabel: str) -> None:
    """The cumulative distribution of per-query differences by label, and a line at zero."""
    for style, (label, values) in enumerate(differences.items()):
        share = np.arange(1, len(values) + 1) / len(values)
        draw_line(axes, np.sort(values).tolist(), share.tolist(), style, label, markers=False)
    axes.axvline(0, color="0.4", linewidth=0.8)
    axes.set(xlabel=xlabel, ylabel="share of queries")
    axes.legend(fontsize=8)


def draw_surface(
    figure: Figure,
    axes: Axes,
    alpha: Sequence[float],
    eta: Sequence[float],
    values: FloatArray,
    best: tuple[float, float],
    notes: Mapping[tuple[float, float], str] | None = None,
) -> None:
    """Draw a response surface: a shaded cell with its number for each alpha and eta, and a star at the best.

    Args:
        figure, axes: the panel. alpha, eta: columns and rows. values: (rows, columns) in percent. best: alpha and eta.
        notes: (alpha, eta) -> a short text below the number.
    """
    image = axes.imshow(values, cmap="Greys", origin="lower", aspect="auto")
    middle = (values.max() + values.min()) / 2
    for (i, j), value in np.ndenumerate(values):
        color = "white" if value > middle else "black"
        axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color=color)
        if note := (notes or {}).get((alpha[j], eta[i])):
            axes.text(j, i - 0.28, note, ha="center", va="center", fontsize=6, color=color)
    axes.plot(alpha.index(best[0]), eta.index(best[1]) + 0.3, "*", color="#d95f02", markersize=11)
    axes.set_xticks(range(len(alpha)), [str(each) for each in alpha])
    axes.set_yticks(range(len(eta)), [str(each) for each in eta])
    axes.grid(False)
    axes.set(xlabel="alpha", ylabel="eta")
    figure.colorbar(image, ax=axes)


def _at_lengths(axes: Axes, lengths: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(lengths), [str(bits) for bits in lengths])
    axes.minorticks_off()
    axes.set_xlabel("code length (bits)")


def _map_by_length(study: Study) -> Figure:
    first, runs = study.first, study.runs
    figure, panels = draw_panels([evaluation.protocol for evaluation in first.evaluations])
    for i, axes in enumerate(panels):
        for number, run in enumerate(runs):
            evaluation = run.evaluations[i]
            for j, direction in enumerate(DIRECTIONS):
                means = [100 * evaluation.mean(MAP, direction, bits) for bits in run.lengths]
                draw_line(axes, run.lengths, means, 2 * number + j, f"{run.name}, {DIRECTION_NAMES[direction]}")
        for name, dash in FLOOR_DASHES.items():
            if name in first.evaluations[i].floors:
                floor = 100 * first.evaluations[i].floor(name)
                axes.axhline(floor, color="0.45", linestyle=dash, linewidth=1, label=f"floor: {name}")
        _at_lengths(axes, first.lengths)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("mAP@all (%)")
        axes.legend(fontsize=7)
    return figure


def _precision_recall(study: Study) -> Figure:
    run = study.first
    figure, panels = draw_panels([f"{DIRECTION_NAMES[direction]}, by Hamming radius" for direction in DIRECTIONS])
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        for number, bits in enumerate(run.lengths):
            curve = run.evaluations[0].curves[direction, bits]
            known = ~np.isnan(curve.precision)
            points = curve.recall[known].tolist(), curve.precision[known].tolist()
            draw_line(axes, *points, number, f"{bits} bits", markers=bits <= 32)
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1))
        axes.legend(fontsize=8)
    return figure


def _precision_at_n(study: Study) -> Figure:
    run = study.first
    figure, panels = draw_panels([DIRECTION_NAMES[direction] for direction in DIRECTIONS])
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        for number, bits in enumerate(run.lengths):
            values = run.precision[direction, bits]
            draw_line(axes, list(range(1, len(values) + 1)), values.tolist(), number, f"{bits} bits", markers=False)
        axes.set(xlabel="first N ranks", ylabel="precision", ylim=(0, 1))
        axes.legend(fontsize=8)
    return figure


def _rank_displacement(study: Study) -> Figure:
    from matplotlib.colors import LogNorm

    run = study.first
    short, long = run.lengths[0], run.lengths[-1]
    figure, (axes,) = draw_panels([f"Change of rank from {short} to {long} bits (sample, image-to-text)"])
    rank, moved = run.displacement
    shades = LogNorm(vmin=0.3)  # below one item, so that single items are not white
    bins = axes.hexbin(rank, moved, gridsize=32, cmap="Greys", norm=shades, mincnt=1, extent=(0, 1, -1, 1))
    figure.colorbar(bins, ax=axes, label="items", format="%g")
    axes.axvline(0.2, color="#d95f02", linestyle="--", linewidth=1, label="first 20 %")
    axes.axhline(0, color="#0b3c5d", linewidth=0.8)
    axes.set(xlabel=f"normalised rank at {short} bits", ylabel="change of rank", ylim=(-1, 1))
    axes.text(0.98, 0.95, f"mean |change| {np.abs(moved).mean():.3f}", transform=axes.transAxes, ha="right", fontsize=8)
    axes.legend(fontsize=8, loc="lower right")
    return figure


def _ap_differences(study: Study) -> Figure:
    comparison, bits = study.comparisons[0], length_near(study.first.lengths)
    figure, panels = draw_panels([f"{DIRECTION_NAMES[direction]}, {bits} bits" for direction in DIRECTIONS])
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        differences = {}
        for name in comparison.names[1:]:
            each = comparison.differences[name, direction, bits]
            differences[f"compared with {_as_label(name)}: {100 * each.improved:.0f} % improved"] = 100 * each.values
        draw_distributions(axes, differences, f"AP of {study.first.name} minus the other (points)")
    return figure


def _distances_by_shared_labels(study: Study) -> Figure:
    run = study.first
    figure, (axes,) = draw_panels(["Distance by number of shared labels (image-to-text)"])
    for number, (count, share) in enumerate(run.shared.items()):
        label = f"{count}{' or more' if count == MOST_SHARED else ''} shared"
        draw_line(axes, list(range(len(share))), share.tolist(), number, label, markers=False)
    bits = len(next(iter(run.shared.values()))) - 1
    axes.set(xlabel=f"Hamming distance at {bits} bits", ylabel="share of pairs", ylim=(0, None))
    axes.legend(fontsize=8)
    return figure


def _label_graph(study: Study) -> Figure:
    teacher = study.first.teacher
    assert teacher is not None
    figure, (graph, scales) = draw_panels(["Label graph: PPMI weights", "Response of each scale"])
    eigenvalues, vectors = teacher.spectrum
    order = np.argsort(vectors[:, np.argsort(eigenvalues)[min(1, len(eigenvalues) - 1)]])  # related labels side by side
    image = graph.imshow(teacher.graph.weights[np.ix_(order, order)], cmap="Greys")
    graph.grid(False)
    graph.set(xlabel="label", ylabel="label")
    figure.colorbar(image, ax=graph)
    at = np.linspace(0, 2, 200)
    for number, tau in enumerate(teacher.tau):
        draw_line(scales, at.tolist(), np.exp(-tau * at).tolist(), number, rf"$\tau$ = {tau:.2f}", markers=False)
    whole = (at + teacher.eta) ** -teacher.alpha
    scales.plot(at, whole / whole[0], color="black", linewidth=2, alpha=0.5, label="fractional kernel")
    scales.plot(eigenvalues, np.full(len(eigenvalues), -0.03), "|", color="0.3", label="eigenvalues")
    scales.set(xlabel="eigenvalue of the Laplacian", ylabel="response (relative)")
    scales.legend(fontsize=7)
    return figure


def _bit_balance(study: Study) -> Figure:
    run = study.first
    figure, panels = draw_panels([f"{modality} codes" for modality in MODALITIES])
    ends = np.cumsum(run.blocks)[:-1]
    for axes, modality in zip(panels, MODALITIES, strict=True):
        balance = run.health[modality].balance
        axes.stairs(balance, np.arange(len(balance) + 1) + 0.5, fill=True, color="0.6")  # faster than 128 bars
        axes.axhline(0.5, color="black", linewidth=0.8)
        for end in ends:
            axes.axvline(end + 0.5, color="#d95f02", linewidth=0.9, linestyle="--")
        axes.set(xlabel="bit (dashed: next scale)" if run.blocks else "bit", ylabel="share of ones", ylim=(0, 1))
    return figure


def _bit_budget(study: Study) -> Figure:
    from matplotlib.ticker import MaxNLocator

    run, teacher = study.first, study.first.teacher
    assert teacher is not None
    figure, (axes,) = draw_panels(["Bits of each diffusion scale"])
    names = [f"{number}\n" + rf"$\tau$ = {tau:.1f}" for number, tau in enumerate(teacher.tau, start=1)]
    bars = axes.bar(names, run.blocks, color="0.6", edgecolor="black", linewidth=0.6)
    axes.bar_label(bars, fontsize=9)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="scale, local to long range", ylabel="bits")
    return figure


def _accuracy_and_cost(study: Study) -> Figure:
    figure, (storage, time) = draw_panels(["Accuracy against storage", "Accuracy against search time"])
    for number, run in enumerate(study.runs):
        if run.cost is None:
            continue
        means = [100 * run.evaluations[0].mean_of_directions(MAP, bits) for bits in run.lengths]
        sizes = [bits / 8 for bits in run.lengths]
        times = [1e3 * run.cost.query[bits].median for bits in run.lengths]
        for axes, x in ((storage, sizes), (time, times)):
            draw_line(axes, x, means, number, run.name)
            for bits, at, mean in zip(run.lengths, x, means, strict=True):
                axes.annotate(f"{bits}", (at, mean), textcoords="offset points", xytext=(4, -10), fontsize=7)
    storage.set(xlabel="bytes per code", ylabel="mean mAP@all (%)")
    time.set(xlabel="median search time (microseconds)", ylabel="mean mAP@all (%)")
    for axes in (storage, time):
        axes.margins(y=0.12)  # space for the numbers next to the points
        axes.set_xlim(left=0)
    storage.legend(fontsize=8)
    return figure


def _has_teacher(study: Study) -> bool:
    return study.first.teacher is not None


def _has_scales(study: Study) -> bool:
    return _has_teacher(study) and bool(study.first.blocks)


def _has_cost(study: Study) -> bool:
    return study.first.cost is not None


def _has_lengths(study: Study) -> bool:
    return len(study.first.lengths) > 1


def _has_comparison(study: Study) -> bool:
    return bool(study.comparisons)


FIGURES = (
    ReportFigure("map-by-length", "mAP by code length", _map_by_length),
    ReportFigure("precision-recall", "Precision and recall within each Hamming radius", _precision_recall),
    ReportFigure("precision-at-n", "Precision of the first N ranks", _precision_at_n),
    ReportFigure("rank-displacement", "Change of rank with the code length", _rank_displacement, _has_lengths),
    ReportFigure("distances-by-shared-labels", "Distances by number of shared labels", _distances_by_shared_labels),
    ReportFigure("label-graph", "Label graph and diffusion scales", _label_graph, _has_teacher),
    ReportFigure("bit-balance", "Balance of the bits in the database", _bit_balance),
    ReportFigure("bit-budget", "Bits of each scale", _bit_budget, _has_scales),
    ReportFigure("accuracy-and-cost", "Accuracy against storage and search time", _accuracy_and_cost, _has_cost),
    ReportFigure(
        "ap-differences", "Differences of average precision, query by query", _ap_differences, _has_comparison
    ),
)
"""The figures of a report, in the order of the page."""
