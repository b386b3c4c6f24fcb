"""The paper's figures: each is measured by a reproduction first, and then drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL.Image import Image

from multibit.arrays import FloatArray
from multibit.codes.distance import nearest
from multibit.codes.items import DIRECTIONS, Direction, length_near
from multibit.config import GRID_ALPHA, GRID_ETA
from multibit.errors import DataError
from multibit.evaluation.metric import MAP
from multibit.evaluation.relevance import GradedRelevance
from multibit.hashing.methods import METHODS
from multibit.paper.accuracy_cells import (
    CODE_SIZE,
    MODEL_SIZE,
    QUERY_TIME,
    TRAINING,
    ap_gains,
)
from multibit.paper.cells import Alpha, Eta
from multibit.paper.ranking_cells import displacements
from multibit.paper.reproduction import Reproduction
from multibit.paper.tables import TABLES, Outcome, reproduce
from multibit.report.figures import draw_distributions, draw_panels, draw_surface
from multibit.report.sheet import Search, draw_sheet
from multibit.runs import Run
from multibit.search import Hit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUALITATIVE_BITS, QUALITATIVE_HITS = 16, 6
QUALITATIVE_METHODS = ("baseline", "multibit")


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper.

    Attributes:
        name: on the command line and of its files. label: of the figure in the paper's source.
        measure: reproduction, seeds -> what it shows: the mean over all seeds where it draws cells of a table, the
            first seed where it draws single queries.
        draw: draws what was measured, by printed name of the dataset, "" where there is only one.
        joined: whether the paper shows several datasets in it. What is measured is then a JSON object, which is kept
            next to the figure.
    """

    name: str
    label: str
    measure: Callable[[Reproduction, Sequence[int]], Any]
    draw: Callable[[Mapping[str, Any]], Figure | Image]
    joined: bool = False


def stability(r: Reproduction, seed: int) -> dict[str, Any]:
    """The rank displacement of five queries by two designs, plain."""
    panels = displacements(r, seed)
    return {
        "lengths": list(panels[0].lengths),
        "designs": {
            str(panel.design): {name: _plain(getattr(panel, name)) for name in ("rank", "moved", "tau")}
            for panel in panels
        },
    }


def gains(r: Reproduction, seed: int) -> dict[str, Any]:
    """The AP differences in points between the full model and other designs, plain."""
    measured = ap_gains(r, seed)
    return {
        "bits": measured.bits,
        "differences": {str(design): _plain(values) for design, values in measured.by_design.items()},
    }


def sensitivity(r: Reproduction, seeds: Sequence[int]) -> dict[str, Any]:
    """The validation mean mAP in percent over alpha and eta, the mean over the seeds, plain."""
    outcome = reproduce(TABLES["sensitivity"], r, seeds)
    grid = [[float(outcome.cells[Eta(eta), Alpha(alpha)].mean()) for alpha in GRID_ALPHA] for eta in GRID_ETA]
    return {"bits": outcome.bits, "alpha": GRID_ALPHA, "eta": GRID_ETA, "mean_map": grid}


def _plain(values: FloatArray) -> list[Any]:
    """Nested lists of numbers; null where a value is undefined."""
    return np.where(np.isnan(values), None, values).tolist()  # type: ignore[no-any-return, call-overload]


def _titled(dataset: str, text: str) -> str:
    return f"{dataset}: {text}" if dataset else text


def draw_stability(measured: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Rank shifts between the shortest and the longest code: a row of panels for each dataset."""
    panels = [(name, each["lengths"], *one) for name, each in measured.items() for one in each["designs"].items()]
    titles = [_titled(dataset, design) for dataset, _, design, _ in panels]
    figure, drawn = draw_panels(titles, columns=len(panels) // len(measured))
    for axes, (_, (short, long), _, panel) in zip(drawn, panels, strict=True):
        rank, moved, tau = (np.array(panel[name], float) for name in ("rank", "moved", "tau"))
        axes.axvspan(0, 0.2, color="0.9", zorder=0)
        for number, (x, y) in enumerate(zip(rank, moved, strict=True)):
            axes.plot(x, y, ".", markersize=2, color=str(0.15 * number), zorder=1)
        _contours(axes, rank.ravel(), moved.ravel())
        axes.axhline(0, color="#0b3c5d", linewidth=0.8)
        text = f"tau-b {tau.mean():.3f} ± {tau.std(ddof=1):.3f}, mean |change| {np.abs(moved).mean():.3f}"
        axes.text(0.98, 0.95, text, transform=axes.transAxes, ha="right", fontsize=8)
        axes.set(xlabel=f"normalised rank at {short} bits", ylabel=f"change at {long} bits", ylim=(-1, 1))
    return figure


def _contours(axes: Axes, x: FloatArray, y: FloatArray) -> None:
    density, at_x, at_y = np.histogram2d(x, y, bins=24, range=((0, 1), (-1, 1)))
    middle = [(edges[1:] + edges[:-1]) / 2 for edges in (at_x, at_y)]
    if density.max() > 1:
        axes.contour(*middle, density.T, levels=4, colors="#d95f02", linewidths=0.9)


def draw_gains(measured: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Cumulative distributions of the AP differences: a panel for each dataset."""
    titles = [
        _titled(name, f"AP of the full model minus the other design, {each['bits']} bits")
        for name, each in measured.items()
    ]
    figure, panels = draw_panels(titles)
    for axes, each in zip(panels, measured.values(), strict=True):
        differences = {design: np.array(values, float) for design, values in each["differences"].items()}
        lines = {f"{name}: {100 * (values > 0).mean():.1f} % improved": values for name, values in differences.items()}
        draw_distributions(axes, lines, "difference (points)")
    return figure


def draw_sensitivity(measured: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Validation mean mAP over alpha and eta, with a star at the best: a panel for each dataset."""
    titles = [_titled(name, f"Validation mean mAP (%) at {each['bits']} bits") for name, each in measured.items()]
    figure, panels = draw_panels(titles)
    for axes, each in zip(panels, measured.values(), strict=True):
        alpha, eta, grid = each["alpha"], each["eta"], np.array(each["mean_map"], float)
        best = alpha[grid.argmax() % len(alpha)], eta[grid.argmax() // len(alpha)]
        draw_surface(figure, axes, alpha, eta, grid, best)
    return figure


def draw_cost(measured: Mapping[str, Outcome]) -> Figure:
    """The cost of serving all lengths on one dataset: a panel per kind of cost, a bar per design."""
    (outcome,) = measured.values()
    costs = {
        TRAINING: "training time (h)",
        QUERY_TIME: f"query time at {outcome.bits} bits (ms)",
        MODEL_SIZE: "weights (MB)",
        CODE_SIZE: "codes (MiB)",
    }
    rows = outcome.cells.rows[::-1]
    figure, panels = draw_panels(list(costs.values()))
    for axes, column in zip(panels, costs, strict=True):
        seeds = np.stack([outcome.cells[row, column] for row in rows])  # (designs, seeds)
        error = seeds.std(axis=1, ddof=1) if seeds.shape[1] > 1 else None
        bars = axes.barh(list(map(str, rows)), seeds.mean(axis=1), xerr=error, color="0.65", edgecolor="black")
        axes.bar_label(bars, fmt="%.3g", padding=3, fontsize=8)
        axes.margins(x=0.2)
    return figure


def qualitative_searches(r: Reproduction, seed: int) -> list[Search]:
    """For each direction the query where the full model gains most over the baseline, with the first hits of both.

    Raises:
        DataError: the dataset has no image files.
    """
    data, bits = r.store.dataset, length_near(r.config.lengths, QUALITATIVE_BITS)
    if not any(image is not None and image.is_file() for image in data.images):
        raise DataError("the dataset has no image files, but they are needed.", field="images")
    searches = []
    for direction in DIRECTIONS:
        baseline, full = (r.evaluation(method, seed).of(MAP, direction, bits) for method in QUALITATIVE_METHODS)
        best = int(np.nanargmax(full - baseline))
        searches += [_search(r, r.run(method, seed), method, direction, best, bits) for method in QUALITATIVE_METHODS]
    return searches


def _search(r: Reproduction, run: Run, method: str, direction: Direction, query: int, bits: int) -> Search:
    """The first hits of one query, with their graded relevance in the payload."""
    data, (asked, searched) = r.store.dataset, DIRECTIONS[direction]
    row, database = int(r.split.query[query]), r.split.database
    codes = r.codes(run, "query").codes(asked).take([query])
    found = nearest(codes, r.codes(run, "database").codes(searched), QUALITATIVE_HITS, bits)
    items = [int(database[hit]) for hit in found.rows[0]]
    relevance = GradedRelevance.idf(data.labels[database]).scores(data.labels[row : row + 1], data.labels[items])[0]
    hits = [
        Hit(rank, data.ids[item], int(distance), bits, {**data.describe(item), "relevance": float(grade)})
        for rank, (item, distance, grade) in enumerate(zip(items, found.distances[0], relevance, strict=True), start=1)
    ]
    title = f"{direction}, {METHODS[method].title}: {data.texts[row][0] if asked == 'text' else data.ids[row]}"
    image = data.images[row] if asked == "image" else None
    return Search(title, frozenset(data.label_names_of(row)), image, {bits: hits}, searched)


def _cost(r: Reproduction, seeds: Sequence[int]) -> Outcome:
    return reproduce(TABLES["multi-length-cost"], r, seeds)


def _sheet(measured: Mapping[str, Sequence[Search]]) -> Image:
    (searches,) = measured.values()
    return draw_sheet(searches)


def _of_first(measure: Callable[[Reproduction, int], Any]) -> Callable[[Reproduction, Sequence[int]], Any]:
    return lambda r, seeds: measure(r, seeds[0])


FIGURES: dict[str, PaperFigure] = {
    figure.name: figure
    for figure in (
        PaperFigure(
            "cross-length-stability", "fig:cross-length-stability", _of_first(stability), draw_stability, joined=True
        ),
        PaperFigure("query-level-gain", "fig:query-level-gain", _of_first(gains), draw_gains, joined=True),
        PaperFigure("parameter-sensitivity", "fig:parameter-sensitivity", sensitivity, draw_sensitivity, joined=True),
        PaperFigure("deployment-cost", "fig:performance-efficiency", _cost, draw_cost),
        PaperFigure("qualitative-retrieval", "fig:qualitative-retrieval", _of_first(qualitative_searches), _sheet),
    )
}
"""Name -> figure."""
