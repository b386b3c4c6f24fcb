"""Parts of figures: panels, lines that are legible in grey, distributions, response surfaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from multibit.arrays import FloatArray

if TYPE_CHECKING:  # matplotlib is optional
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0b3c5d", "#d95f02", "#4d4d4d", "#1b9e77", "#7570b3")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PANEL = (5.0, 3.6)  # inches


def draw_panels(
    titles: Sequence[str], columns: int | None = None, layout: Literal["constrained"] | None = "constrained"
) -> tuple[Figure, list[Axes]]:
    """A figure with one panel per title, side by side, or in rows of `columns`; a layout of matplotlib, or none."""
    from matplotlib.figure import Figure

    columns = columns or len(titles)
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout=layout)
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
