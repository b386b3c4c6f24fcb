"""Figures of the reported run of a study: retrieval, ranks, labels and bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from multibit.codes.items import MODALITIES
from multibit.errors import counted
from multibit.evaluation.assessment import COUNTED_QUERIES, MOST_SHARED, SAMPLED_QUERIES
from multibit.report.figure_parts import (
    DIRECTION_DASHES,
    StudyFigure,
    as_label,
    by_direction,
    by_length,
    color_of,
    database_of,
    panels_of,
    thinned,
)
from multibit.report.study import Study
from multibit.report.svg import INK

if TYPE_CHECKING:  # matplotlib is optional, and captions are read without it
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

MOST_NAMES = 32  # labels whose names can be read next to the graph


# Retrieval


def _precision_recall(study: Study) -> Figure:
    run = study.first
    figure, panels = by_direction(", by Hamming radius")
    for axes, direction in panels:
        for number, bits in enumerate(run.lengths):
            curve = run.evaluations[0].curves[direction, bits]
            known = ~np.isnan(curve.precision)
            points = curve.recall[known].tolist(), curve.precision[known].tolist()
            by_length(axes, *points, number, len(run.lengths), DIRECTION_DASHES[direction], f"{bits} bits")
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1))
        axes.legend(fontsize=8, frameon=False)
    return figure


def _precision_recall_caption(study: Study) -> str:
    return (
        f"{study.first.name}; {database_of(study)}; "
        "over all pairs within each Hamming radius, from 0 to the code length. "
        "The higher, the better: at the same recall fewer wrong items are found."
    )


def _precision_at_n(study: Study) -> Figure:
    run = study.first
    figure, panels = by_direction()
    for axes, direction in panels:
        for number, bits in enumerate(run.lengths):
            places, values = thinned(run.precision[direction, bits])
            ranks = [place + 1 for place in places]
            by_length(axes, ranks, values, number, len(run.lengths), DIRECTION_DASHES[direction], f"{bits} bits")
        axes.set(xlabel="first N ranks", ylabel="precision")
        axes.legend(fontsize=8, frameon=False)
    return figure


def _precision_at_n_caption(study: Study) -> str:
    return (
        f"{study.first.name}; {database_of(study)}; "
        "mean share of relevant items among the first N. The higher, the better; "
        "the left end is what a user sees first. The axis does not start at 0."
    )


def _faded(number: int) -> Colormap:
    """A colour map from nearly transparent to the colour of a run, for light and dark pages alike."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    return LinearSegmentedColormap.from_list("run", [to_rgba(color_of(number), 0.06), to_rgba(color_of(number), 1.0)])


def _rank_displacement(study: Study) -> Figure:
    run = study.first
    short, long = run.lengths[0], run.lengths[-1]
    figure, (axes,) = panels_of([f"Change of rank from {short} to {long} bits, image-to-text"])
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
        f"{study.first.name}; {database_of(study)}; a sample of {counted(items, 'item', 'items')} of "
        f"{SAMPLED_QUERIES} queries. The nearer to the middle line, the better: an item keeps its rank when the code "
        "is cut short. The left end matters most, the first ranks."
    )


def _distances_by_shared_labels(study: Study) -> Figure:
    run = study.first
    figure, (axes,) = panels_of(["Distance by number of shared labels, image-to-text"])
    for number, (count, share) in enumerate(run.shared.items()):
        label = f"{count}{' or more' if count == MOST_SHARED else ''} shared"
        by_length(axes, list(range(len(share))), share.tolist(), number, len(run.shared), "-", label)
    bits = len(next(iter(run.shared.values()))) - 1
    axes.set(xlabel=f"Hamming distance at {bits} bits", ylabel="share of pairs", ylim=(0, None))
    axes.legend(fontsize=8, frameon=False)
    return figure


def _distances_caption(study: Study) -> str:
    return (
        f"{study.first.name}; {database_of(study)}; "
        f"the first {COUNTED_QUERIES} queries. The farther the curves of more "
        "shared labels lie to the left of that of none, the better the codes tell related items from others."
    )


# Labels and bits


def _label_graph(study: Study) -> Figure:
    run, teacher = study.first, study.first.teacher
    assert teacher is not None
    figure, (graph, scales) = panels_of(
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
        names = [as_label(_short(run.label_names[row] if run.label_names else f"label {row}")) for row in order]
        graph.set_xticks(range(len(order)), names, rotation=90, fontsize=5.5)
        graph.set_yticks(range(len(order)), names, fontsize=5.5)
        figure.colorbar(image, ax=graph)
    else:
        graph.set(xticks=[], yticks=[])
        text = "No edge: no two labels occur together\nmore often than by chance."
        graph.text(0.5, 0.5, text, transform=graph.transAxes, ha="center", va="center")
    at = np.linspace(0, 2, 100)
    for number, tau in enumerate(teacher.tau):
        by_length(scales, at.tolist(), np.exp(-tau * at).tolist(), number, len(teacher.tau), "-", f"tau = {tau:.2f}")
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
    figure, panels = panels_of([f"{modality} codes" for modality in MODALITIES])
    ends = np.cumsum(run.blocks)[:-1]
    for axes, modality in zip(panels, MODALITIES, strict=True):
        balance = run.health[modality].balance
        edges = np.arange(len(balance) + 1) + 0.5
        axes.stairs(balance, edges, fill=True, baseline=0.5, color=color_of(0))  # faster than 128 bars
        axes.axhline(0.5, color=INK, linewidth=0.8)
        for end in ends:
            axes.axvline(end + 0.5, color=color_of(1), linewidth=0.9, linestyle="--")
        axes.set(xlabel="bit (dashed: next scale)" if run.blocks else "bit", ylabel="share of ones", ylim=(0, 1))
    return figure


def _bit_balance_caption(study: Study) -> str:
    return (
        f"{study.first.name}; {database_of(study)}; "
        "all items of the database. The nearer to 0.5, the better: a bit at 0 "
        "or 1 is the same in all codes and tells nothing apart."
    )


def _bit_budget(study: Study) -> Figure:
    from matplotlib.ticker import MaxNLocator

    run, teacher = study.first, study.first.teacher
    assert teacher is not None
    figure, (axes,) = panels_of(["Bits of each diffusion scale"], bottom=0.2)
    names = [f"{number}\ntau = {tau:.1f}" for number, tau in enumerate(teacher.tau, start=1)]
    bars = axes.bar(names, run.blocks, color=color_of(0))
    axes.bar_label(bars, fontsize=9)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="scale, local to long range", ylabel="bits")
    return figure


def _bit_budget_caption(study: Study) -> str:
    return (
        f"{study.first.name}. Scales that explain more of the teacher get more bits; neither more nor fewer is better."
    )


def _has_teacher(study: Study) -> bool:
    return study.first.teacher is not None


RUN_FIGURES = (
    StudyFigure(
        "precision-recall", "Precision and recall within each Hamming radius", _precision_recall,
        _precision_recall_caption, lambda study: study.labelled,
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
)  # fmt: skip
