"""The paper's figures, drawn from a reproduction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from multibit.codes.distance import nearest
from multibit.errors import DataError
from multibit.evaluation.protocol import DIRECTIONS
from multibit.evaluation.relevance import GradedRelevance
from multibit.hashing.variants import VARIANTS
from multibit.report.figures import draw_line, draw_panels
from multibit.report.paper import TABLES
from multibit.report.paper_cells import GRID, MIDDLE, Cells, ap_gains, displacement_panel, length_near
from multibit.report.reproduction import Reproduction
from multibit.report.sheet import Search, contact_sheet
from multibit.search import Hit

COMPARED = {"Naive Prefix": "naive-prefix", "MultiBit": "full"}
QUALITATIVE_BITS, QUALITATIVE_HITS = 16, 6


def cross_length_stability(r: Reproduction, seed: int) -> Figure:
    """Rank shifts between the shortest and the longest code (Figure `fig:cross-length-stability`)."""
    figure, panels = draw_panels(len(COMPARED), list(COMPARED))
    for axes, variant in zip(panels, COMPARED.values(), strict=True):
        rank, moved, taus = displacement_panel(r, seed, variant)
        axes.axvspan(0, 0.2, color="0.9", zorder=0)
        for number, (x, y) in enumerate(zip(rank, moved, strict=True)):
            axes.plot(x, y, ".", markersize=2, color=str(0.15 * number), zorder=1)
        _contours(axes, rank.ravel(), moved.ravel())
        axes.axhline(0, color="#0b3c5d", linewidth=0.8)
        text = f"tau-b {taus.mean():.3f} ± {taus.std():.3f}, mean |change| {np.abs(moved).mean():.3f}"
        axes.text(0.98, 0.95, text, transform=axes.transAxes, ha="right", fontsize=8)
        short, long = min(r.config.lengths), max(r.config.lengths)
        axes.set(xlabel=f"normalised rank at {short} bits", ylabel=f"change at {long} bits", ylim=(-1, 1))
    return figure


def _contours(axes: object, x: np.ndarray, y: np.ndarray) -> None:
    density, at_x, at_y = np.histogram2d(x, y, bins=24, range=((0, 1), (-1, 1)))
    middle = [(edges[1:] + edges[:-1]) / 2 for edges in (at_x, at_y)]
    if density.max() > 1:
        axes.contour(*middle, density.T, levels=4, colors="#d95f02", linewidths=0.9)  # type: ignore[attr-defined]


def query_level_gain(r: Reproduction, seed: int) -> Figure:
    """Cumulative distribution of the AP differences (Figure `fig:query-level-gain`)."""
    bits = length_near(r.config, MIDDLE)
    figure, (axes,) = draw_panels(1, [f"AP of the full model minus the other design, {bits} bits"])
    for number, variant in enumerate(("single-scale", "uniform-bits", "pairwise")):
        gains = np.sort(ap_gains(r, seed, variant))
        share = np.arange(1, len(gains) + 1) / len(gains)
        label = f"{VARIANTS[variant].title}: {100 * (gains > 0).mean():.1f} % improved"
        draw_line(axes, gains.tolist(), share.tolist(), number, label, markers=False)
    axes.axvline(0, color="0.4", linewidth=0.8)
    axes.set(xlabel="difference (points)", ylabel="share of queries")
    axes.legend(fontsize=8)
    return figure


def parameter_sensitivity(r: Reproduction, seed: int) -> Figure:
    """Validation mean mAP over alpha and eta (Figure `fig:parameter-sensitivity`)."""
    cells = TABLES["sensitivity"].measure(r, seed)
    grid = np.array([[cells[f"eta {eta:.2f}", f"alpha {alpha}"] for alpha in GRID["alpha"]] for eta in GRID["eta"]])
    figure, (axes,) = draw_panels(1, [f"Validation mean mAP (%) at {length_near(r.config, MIDDLE)} bits"])
    picture = axes.imshow(grid, cmap="Greys", origin="lower", aspect="auto")
    middle = (grid.max() + grid.min()) / 2
    for (i, j), value in np.ndenumerate(grid):
        axes.text(
            j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color="white" if value > middle else "black"
        )
    i, j = np.unravel_index(grid.argmax(), grid.shape)
    axes.plot(j, i + 0.3, "*", color="#d95f02", markersize=11)
    axes.set_xticks(range(len(GRID["alpha"])), [str(alpha) for alpha in GRID["alpha"]])
    axes.set_yticks(range(len(GRID["eta"])), [str(eta) for eta in GRID["eta"]])
    axes.grid(False)
    axes.set(xlabel="alpha", ylabel="eta")
    figure.colorbar(picture, ax=axes)
    return figure


def deployment_cost(r: Reproduction, seed: int) -> Figure:
    """What serving all lengths costs (Figure `fig:performance-efficiency`)."""
    cells: Cells = TABLES["multi-length-cost"].measure(r, seed)
    rows = list(dict.fromkeys(row for row, _ in cells))
    panels_of = {
        "train h": "training time (h)",
        "query ms": f"query time at {length_near(r.config, MIDDLE)} bits (ms)",
        "model MB": "weights (MB)",
        "code MiB": "codes (MiB)",
    }
    figure, panels = draw_panels(len(panels_of), list(panels_of.values()))
    for axes, column in zip(panels, panels_of, strict=True):
        bars = axes.barh(rows[::-1], [cells[row, column] for row in rows[::-1]], color="0.65", edgecolor="black")
        axes.bar_label(bars, fmt="%.3g", padding=3, fontsize=8)
        axes.margins(x=0.2)
    return figure


def qualitative_retrieval(r: Reproduction, seed: int, path: Path) -> None:
    """The query of each direction where the full model gains most on the baseline, with the first hits of both.

    Rank, distance and relevance stand below each hit (Figure `fig:qualitative-retrieval`).

    Raises:
        DataError: the data set has no pictures.
    """
    data, bits = r.store.dataset, length_near(r.config, QUALITATIVE_BITS)
    if not any(image is not None and image.is_file() for image in data.images):
        raise DataError("It needs the pictures themselves, and this data set has features only.")
    relevance = GradedRelevance.idf(r.subject.labels[r.split.database])
    searches = []
    for direction, (asked, searched) in DIRECTIONS.items():
        gain = (
            r.evaluation("full", seed).values["mAP", direction, bits]
            - r.evaluation("baseline", seed).values["mAP", direction, bits]
        )
        q = int(np.nanargmax(gain))
        row = r.split.query[q]
        grades = relevance.scores(data.labels[row : row + 1], data.labels[r.split.database])[0]
        for variant in ("baseline", "full"):
            run = r.run(variant, seed)
            side = r.codes(run, "query").codes(asked).take(np.array([q])), r.codes(run, "database").codes(searched)
            found = nearest(*side, QUALITATIVE_HITS, bits)
            hits = [
                Hit(
                    rank,
                    data.ids[r.split.database[hit]],
                    int(distance),
                    bits,
                    {**data.describe(int(r.split.database[hit])), "relevance": float(grades[hit])},
                )
                for rank, (hit, distance) in enumerate(zip(found.rows[0], found.distances[0], strict=True), start=1)
            ]
            what = f"{direction}, {VARIANTS[variant].title}: {data.texts[row][0] if asked == 'text' else data.ids[row]}"
            labels = frozenset(data.label_names[label] for label in np.flatnonzero(data.labels[row]))
            searches.append(
                Search(what, labels, data.images[row] if asked == "image" else None, {bits: hits}, searched)
            )
    contact_sheet(searches, path)


FIGURES: dict[str, Callable[[Reproduction, int], Figure]] = {
    "cross-length-stability": cross_length_stability,
    "query-level-gain": query_level_gain,
    "parameter-sensitivity": parameter_sensitivity,
    "deployment-cost": deployment_cost,
}
"""Name -> figure; the qualitative retrieval is a contact sheet of its own."""
