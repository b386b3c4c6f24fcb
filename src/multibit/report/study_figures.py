"""The figures of a report in the order of the page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from multibit.report.comparison_figures import ACCURACY_FIGURES, COST_FIGURES
from multibit.report.figure_parts import StudyFigure, as_label
from multibit.report.run_figures import RUN_FIGURES
from multibit.report.study import Study

if TYPE_CHECKING:  # matplotlib is optional, and names and captions are read without it
    from matplotlib.figure import Figure

FIGURES = (*ACCURACY_FIGURES, *RUN_FIGURES, *COST_FIGURES)


def figures_of(study: Study) -> list[StudyFigure]:
    """The figures that a study has data for, in the order of the page."""
    return [each for each in FIGURES if each.has(study)]


def draw_study(study: Study) -> dict[str, Figure]:
    """All figures of a study, by the name of their files."""
    shown = replace(study, runs=tuple(replace(run, name=as_label(run.name)) for run in study.runs))
    return {each.name: each.draw(shown) for each in figures_of(study)}
