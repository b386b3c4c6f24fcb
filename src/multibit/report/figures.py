"""Assessments -> figures, legible in grey: lines differ by dash and marker as well as by colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from multibit.evaluation.comparison import compare_queries
from multibit.evaluation.protocol import DIRECTIONS
from multibit.hashing.model import MODALITIES
from multibit.report.assessment import Assessment
from multibit.report.tables import ARROWS

COLORS = ("#0b3c5d", "#d95f02", "#4d4d4d", "#1b9e77", "#7570b3")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PANEL = (5.0, 3.6)  # inches


def report_figures(runs: Sequence[Assessment]) -> dict[str, Figure]:
    """All figures, by the name of their files; the first run is the one that is reported."""
    runs = [replace(run, name=_as_label(run.name)) for run in runs]
    first = runs[0]
    figures = {
        "map-by-length": _map_by_length(runs),
        "precision-recall": _precision_recall(first),
        "precision-at-n": _precision_at_n(first),
        "rank-displacement": _rank_displacement(first),
        "distances-by-shared-labels": _distances_by_shared_labels(first),
        "label-graph": _label_graph(first),
        "bit-balance": _bit_balance(first),
        "bit-budget": _bit_budget(first),
        "accuracy-and-cost": _accuracy_and_cost(runs),
    }
    if len(runs) > 1:
        figures["ap-differences"] = _ap_differences(runs)
    return figures


def _as_label(name: str) -> str:
    """The name for matplotlib, which reads text between dollars as a formula and hides labels that begin with _."""
    plain = name.replace("$", r"\$") if name.count("$") > 1 else name
    return f" {plain}" if plain.startswith("_") else plain


def draw_panels(count: int, titles: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels side by side, with a title each."""
    figure = Figure(figsize=(PANEL[0] * count, PANEL[1]), layout="constrained")
    axes = [figure.add_subplot(1, count, i + 1) for i in range(count)]
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


def _at_lengths(axes: Axes, lengths: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(lengths), [str(bits) for bits in lengths])
    axes.minorticks_off()
    axes.set_xlabel("code length (bits)")


def _map_by_length(runs: Sequence[Assessment]) -> Figure:
    first = runs[0]
    figure, panels = draw_panels(len(first.evaluations), [evaluation.protocol for evaluation in first.evaluations])
    for i, axes in enumerate(panels):
        for number, run in enumerate(runs):
            evaluation = run.evaluations[i]
            for j, direction in enumerate(DIRECTIONS):
                means = [100 * evaluation.mean("mAP", direction, bits) for bits in run.lengths]
                draw_line(axes, run.lengths, means, 2 * number + j, f"{run.name}, {ARROWS[direction]}")
        for name, dash in {"popularity": ":", "random": "--"}.items():
            floor = 100 * first.evaluations[i].floor(name)
            axes.axhline(floor, color="0.45", linestyle=dash, linewidth=1, label=f"floor: {name}")
        _at_lengths(axes, first.lengths)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("mAP@all (%)")
        axes.legend(fontsize=7)
    return figure


def _precision_recall(run: Assessment) -> Figure:
    figure, panels = draw_panels(2, [f"{ARROWS[direction]}, by Hamming radius" for direction in DIRECTIONS])
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        for number, bits in enumerate(run.lengths):
            curve = run.evaluations[0].curves[direction, bits]
            known = ~np.isnan(curve.precision)
            points = curve.recall[known].tolist(), curve.precision[known].tolist()
            draw_line(axes, *points, number, f"{bits} bits", markers=bits <= 32)
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1))
        axes.legend(fontsize=8)
    return figure


def _precision_at_n(run: Assessment) -> Figure:
    figure, panels = draw_panels(2, [ARROWS[direction] for direction in DIRECTIONS])
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        for number, bits in enumerate(run.lengths):
            values = run.precision[direction, bits]
            draw_line(axes, list(range(1, len(values) + 1)), values.tolist(), number, f"{bits} bits", markers=False)
        axes.set(xlabel="first N ranks", ylabel="precision", ylim=(0, 1))
        axes.legend(fontsize=8)
    return figure


def _rank_displacement(run: Assessment) -> Figure:
    short, long = run.lengths[0], run.lengths[-1]
    figure, (axes,) = draw_panels(1, [f"Change of rank from {short} to {long} bits (sample, image-to-text)"])
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


def _ap_differences(runs: Sequence[Assessment]) -> Figure:
    first, *others = runs
    bits = min(64, first.lengths[-1]) if min(64, first.lengths[-1]) in first.lengths else first.lengths[-1]
    figure, panels = draw_panels(2, [f"{ARROWS[direction]}, {bits} bits" for direction in DIRECTIONS])
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        for number, other in enumerate(others):
            pair = (run.evaluations[0].values["mAP", direction, bits] for run in (first, other))
            difference = compare_queries(*pair)
            values = np.sort(100 * difference.values)
            share = np.arange(1, len(values) + 1) / len(values)
            label = f"beside {other.name}: {100 * difference.improved:.0f} % improved"
            draw_line(axes, values.tolist(), share.tolist(), number, label, markers=False)
        axes.axvline(0, color="0.4", linewidth=0.8)
        axes.set(xlabel=f"AP of {first.name} minus the other (points)", ylabel="share of queries")
        axes.legend(fontsize=8)
    return figure


def _distances_by_shared_labels(run: Assessment) -> Figure:
    figure, (axes,) = draw_panels(1, ["Distance by number of shared labels (image-to-text)"])
    for number, (count, share) in enumerate(run.shared.items()):
        label = f"{count}{' or more' if count == 3 else ''} shared"
        draw_line(axes, list(range(len(share))), share.tolist(), number, label, markers=False)
    bits = len(next(iter(run.shared.values()))) - 1
    axes.set(xlabel=f"Hamming distance at {bits} bits", ylabel="share of pairs", ylim=(0, None))
    axes.legend(fontsize=8)
    return figure


def _label_graph(run: Assessment) -> Figure:
    figure, (graph, scales) = draw_panels(2, ["Label graph: PPMI weights", "What each scale keeps"])
    eigenvalues, vectors = run.teacher.spectrum
    order = np.argsort(vectors[:, np.argsort(eigenvalues)[min(1, len(eigenvalues) - 1)]])  # related labels side by side
    picture = graph.imshow(run.teacher.graph.weights[np.ix_(order, order)], cmap="Greys")
    graph.grid(False)
    graph.set(xlabel="label", ylabel="label")
    figure.colorbar(picture, ax=graph)
    at = np.linspace(0, 2, 200)
    for number, tau in enumerate(run.teacher.tau):
        draw_line(scales, at.tolist(), np.exp(-tau * at).tolist(), number, rf"$\tau$ = {tau:.2f}", markers=False)
    whole = (at + run.teacher.eta) ** -run.teacher.alpha
    scales.plot(at, whole / whole[0], color="black", linewidth=2, alpha=0.5, label="fractional kernel")
    scales.plot(eigenvalues, np.full(len(eigenvalues), -0.03), "|", color="0.3", label="eigenvalues")
    scales.set(xlabel="eigenvalue of the Laplacian", ylabel="response (relative)")
    scales.legend(fontsize=7)
    return figure


def _bit_balance(run: Assessment) -> Figure:
    figure, panels = draw_panels(2, [f"{modality} codes" for modality in MODALITIES])
    ends = np.cumsum(run.blocks)[:-1]
    for axes, modality in zip(panels, MODALITIES, strict=True):
        balance = run.health[modality].balance
        axes.bar(np.arange(1, len(balance) + 1), balance, width=1.0, color="0.6")
        axes.axhline(0.5, color="black", linewidth=0.8)
        for end in ends:
            axes.axvline(end + 0.5, color="#d95f02", linewidth=0.9, linestyle="--")
        axes.set(xlabel="bit (dashed: next scale)", ylabel="share of ones", ylim=(0, 1))
    return figure


def _bit_budget(run: Assessment) -> Figure:
    figure, (axes,) = draw_panels(1, ["Bits of each diffusion scale"])
    names = [f"{number}\n" + rf"$\tau$ = {tau:.1f}" for number, tau in enumerate(run.teacher.tau, start=1)]
    bars = axes.bar(names, run.blocks, color="0.6", edgecolor="black", linewidth=0.6)
    axes.bar_label(bars, fontsize=9)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="scale, local to long range", ylabel="bits")
    return figure


def _accuracy_and_cost(runs: Sequence[Assessment]) -> Figure:
    figure, (storage, time) = draw_panels(2, ["Accuracy against storage", "Accuracy against search time"])
    for number, run in enumerate(runs):
        evaluation = run.evaluations[0]
        means = [50 * sum(evaluation.mean("mAP", d, bits) for d in DIRECTIONS) for bits in run.lengths]
        sizes = [bits / 8 for bits in run.lengths]
        times = [1e3 * run.cost.query[bits].median for bits in run.lengths]
        for axes, x in ((storage, sizes), (time, times)):
            draw_line(axes, x, means, number, run.name)
            for bits, at, mean in zip(run.lengths, x, means, strict=True):
                axes.annotate(f"{bits}", (at, mean), textcoords="offset points", xytext=(4, -10), fontsize=7)
    storage.set(xlabel="bytes per code", ylabel="mean mAP@all (%)")
    time.set(xlabel="median search time (microseconds)", ylabel="mean mAP@all (%)")
    for axes in (storage, time):
        axes.margins(y=0.12)  # room for the numbers at the points
        axes.set_xlim(left=0)
    storage.legend(fontsize=8)
    return figure
