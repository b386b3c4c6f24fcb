"""What the figures of a study share: colour is the run, line style the direction, opacity the code length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from multibit.arrays import FloatArray
from multibit.codes.items import DIRECTION_NAMES, DIRECTIONS, Direction
from multibit.report.figures import MARKERS, draw_panels
from multibit.report.study import Study

if TYPE_CHECKING:  # matplotlib is optional, and names and captions are read without it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RUN_COLORS = ("#2f81f7", "#db6d28", "#2da44e", "#8957e5", "#db61a2", "#8b949e")
"""Colours of the runs, with enough contrast on light and on dark pages."""

DIRECTION_DASHES: dict[Direction, Literal["-", "--"]] = {"i2t": "-", "t2i": "--"}
POINTS = 300  # of a curve: more cannot be seen


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


def as_label(name: str) -> str:
    """The name for matplotlib, which reads text between dollars as a formula and hides labels that begin with _."""
    plain = name.replace("$", r"\$") if name.count("$") > 1 else name
    return f" {plain}" if plain.startswith("_") else plain


def color_of(number: int) -> str:
    """The colour of a run by its place."""
    return RUN_COLORS[number % len(RUN_COLORS)]


def panels_of(
    titles: Sequence[str], left: float = 0.07, bottom: float = 0.14, between: float = 0.22
) -> tuple[Figure, list[Axes]]:
    """Panels side by side with fixed margins: finding the best ones takes longer than the drawing."""
    figure, panels = draw_panels(titles, layout=None)
    figure.subplots_adjust(
        left=left if len(titles) > 1 else 2 * left, right=0.98, top=0.9, bottom=bottom, wspace=between
    )
    return figure, panels


def by_direction(what: str = "") -> tuple[Figure, list[tuple[Axes, Direction]]]:
    """A panel for each direction; `what` is shown follows its name."""
    figure, panels = panels_of([f"{DIRECTION_NAMES[direction]}{what}" for direction in DIRECTIONS])
    return figure, list(zip(panels, DIRECTIONS, strict=True))


def at_lengths(axes: Axes, lengths: Sequence[int]) -> None:
    """Make the horizontal axis one of code lengths."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(lengths), [str(bits) for bits in lengths])
    axes.minorticks_off()
    axes.set_xlabel("code length (bits)")


def thinned(values: FloatArray) -> tuple[list[int], list[float]]:
    """At most about `POINTS` of the points of a curve, denser at its start, with their places."""
    count = len(values)
    kept = np.unique(np.concatenate([np.arange(min(count, 50)), np.linspace(0, count - 1, POINTS).astype(int)]))
    return kept.tolist(), values[kept].tolist()


def by_length(
    axes: Axes, x: Sequence[float], y: Sequence[float], place: int, places: int, dash: str, label: str
) -> None:
    """A line of the first run at one of several lengths: the longer, the more opaque."""
    alpha = 0.35 + 0.65 * (place + 1) / places
    every = max(1, len(x) // 8)
    axes.plot(
        x, y, color=color_of(0), alpha=alpha, linestyle=dash, marker=MARKERS[place % len(MARKERS)], markersize=4.5,
        markevery=every, label=label,
    )  # fmt: skip


def names_of(study: Study) -> str:
    """The reported run, and those that it is compared with."""
    others = ", ".join(run.name for run in study.runs[1:])
    return f"{study.first.name}, compared with {others}" if others else study.first.name


def database_of(study: Study) -> str:
    """The protocol of the figures that show only one: the whole database."""
    return study.first.evaluations[0].protocol
