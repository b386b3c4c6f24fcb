"""The table, the CSV file and the figure of a selection of alpha and eta."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from multibit.hashing.select import Choice, Setting
from multibit.paths import replacing
from multibit.report.figures import draw_panels, draw_surface
from multibit.report.page import DPI, missing_for_figures
from multibit.table import Cell, Number, Table, percent

NAME = "response-surface"


def surface_table(choice: Choice) -> Table:
    """The grid as in the paper: a row per eta, a column per alpha, validation mean mAP in percent."""
    alphas, etas = _axes(choice)
    rows: list[tuple[Cell, ...]] = [
        (f"eta {eta}", *(_cell(choice, Setting(alpha, eta)) for alpha in alphas)) for eta in etas
    ]
    best = choice.best
    note = "In percent, on validation queries against training items."
    if any(choice.epochs(setting) < choice.stages[-1] for setting in choice.scores):
        note += f" @N: stopped after epoch N of {choice.stages[-1]}, with the mAP that it had then."
    return Table(
        f"Validation mean mAP at {choice.bits} bits",
        ("", *(f"alpha {alpha}" for alpha in alphas)),
        tuple(rows),
        note,
        {(etas.index(best.eta), 1 + alphas.index(best.alpha)): "best"},
    )


def _cell(choice: Choice, setting: Setting) -> Number:
    epochs = choice.epochs(setting)
    return percent(choice.scores[setting][-1], suffix="" if epochs == choice.stages[-1] else f" @{epochs}")


def scores_table(choice: Choice) -> Table:
    """A row per setting: epochs that it was trained for, and its score at each stage that it reached."""
    rows: list[tuple[Cell, ...]] = []
    for setting, scores in choice.scores.items():
        left_out = [""] * (len(choice.stages) - len(scores))
        rows.append((str(setting.alpha), str(setting.eta), Number(choice.epochs(setting), "d"),
                     *(Number(score, "") for score in scores), *left_out))  # fmt: skip
    header = ("alpha", "eta", "epochs", *(f"mAP epoch {epochs}" for epochs in choice.stages))
    return Table("Settings", header, tuple(rows))


def write_selection(choice: Choice, folder: Path) -> list[Path]:
    """Write the scores as CSV, and the response surface as PNG and PDF if the extra is installed.

    Returns:
        The paths of the files.
    """
    written = [folder / f"{NAME}.csv"]
    with replacing(written[0]) as temporary:
        temporary.write_text(scores_table(choice).csv(), encoding="utf-8")
    if missing_for_figures():
        return written
    alphas, etas = _axes(choice)
    values = np.array([[100 * choice.scores[Setting(alpha, eta)][-1] for alpha in alphas] for eta in etas])
    stopped = {
        (setting.alpha, setting.eta): f"epoch {choice.epochs(setting)}"
        for setting in choice.scores
        if choice.epochs(setting) < choice.stages[-1]
    }
    figure, (axes,) = draw_panels([f"Validation mean mAP (%) at {choice.bits} bits"])
    draw_surface(figure, axes, alphas, etas, values, choice.best, stopped)
    for ending in ("png", "pdf"):
        written.append(folder / f"{NAME}.{ending}")
        with replacing(written[-1]) as temporary:
            figure.savefig(temporary, format=ending, dpi=DPI)
    return written


def _axes(choice: Choice) -> tuple[list[float], list[float]]:
    """Values of alpha and of eta, in the order of the grid."""
    return [list(dict.fromkeys(values)) for values in zip(*choice.scores, strict=True)]  # type: ignore[return-value]
