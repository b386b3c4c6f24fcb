"""The output folder of a reproduction: tables, figures, and a summary as markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from PIL.Image import Image
from rich.console import Console

from multibit.arrays import Labels, as_labels
from multibit.codes.items import MIDDLE
from multibit.config import MAX_BITS, Config
from multibit.errors import ConfigError, DataError, MissingExtraError, counted, printable, require_known
from multibit.features.store import FeatureStore
from multibit.files import Arrays, fingerprint, read_json, typed, write_json
from multibit.folders import subfolder
from multibit.hashing.methods import METHODS
from multibit.npz import read_npz
from multibit.paper.figures import FIGURES, PaperFigure
from multibit.paper.reproduction import Reproduction, Subject
from multibit.paper.tables import TABLES, Outcome, reproduce
from multibit.paths import portable_path, replacing
from multibit.progress import tracked
from multibit.report.page import DPI, missing_for_figures
from multibit.table import Table, print_table, write_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUMMARY, KIND, VERSION = "reproduction.json", "reproduction", 1
FIGURE_KIND, FIGURE_VERSION = "figure", 1
QUICK = {"epochs": 15}  # for a trial run, not for comparing numbers
SOTA = "sota"  # stands for the tables that have rows of the compared methods
SOTA_TABLES = (
    "main-comparison", "resolution-idf", "resolution-label-names", "resolution-strata", "multi-length-cost",
    "cross-length-agreement", "efficiency",
)  # fmt: skip
QUICK_LEAVES_OUT = ("sensitivity", "parameter-sensitivity")  # 25 trainings
METHOD = (
    "teacher", "teacher_alpha", "scale_teacher", "allocation", "aligned", "alignment", "standard_weight",
    "binary_weight", "within_weight", "consistency_weight",
)  # fmt: skip
"""Settings by which the methods of the paper differ."""


class MadeCell(msgspec.Struct):
    """A measured cell in `reproduction.json`: a value per seed, None where it is undefined, and that of the paper."""

    row: str
    column: str
    got: Annotated[list[float | None], msgspec.Meta(min_length=1)]
    paper: float | None


class Style(msgspec.Struct):
    """How a column is printed: Python format, and how to compare two values."""

    form: Annotated[str, msgspec.Meta(pattern=r"^[-+ ]?,?(\.[0-9]{1,2})?[feg%]?$")] = ".3f"
    larger_is_better: bool = True


class MadeTable(msgspec.Struct):
    """A table in `reproduction.json`; earlier versions wrote cells and claims only."""

    cells: list[MadeCell]
    claims: dict[str, bool | None]
    found: dict[str, str] = {}
    columns: dict[str, Style] = {}
    bits: Annotated[int, msgspec.Meta(ge=1, le=MAX_BITS)] = MIDDLE
    note: str = ""


class Summary(msgspec.Struct):
    """What `reproduction.json` must have."""

    config: dict[str, Any]
    column: str | None
    seeds: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]]
    tables: dict[str, MadeTable]
    data: str = ""
    split: str = ""
    text_encoder: str | None = None
    compared: list[str] = []


def choose(names: Sequence[str], *, quick: bool) -> list[str]:
    """The tables and figures to make: the named ones, or all.

    Args:
        names: of tables and figures; all when empty. quick: without those that need many trainings.

    Raises:
        ConfigError: an unknown name.
    """
    everything = [*TABLES, *FIGURES]
    chosen: list[str] = []
    for name in names:
        require_known("name", name, [*everything, SOTA], option="names")
        chosen += SOTA_TABLES if name == SOTA else [name]
    return list(dict.fromkeys(chosen)) or [name for name in everything if not (quick and name in QUICK_LEAVES_OUT)]


def compared_methods(given: Sequence[str] | None, names: Sequence[str], store: FeatureStore | None) -> tuple[str, ...]:
    """The compared methods that the tables show besides MultiBit and its variants.

    Args:
        given: names of methods; when None all of them if the tables are asked for as "sota", else none.
        names: of the tables, as asked for. store: the features; without tokens the pooled variants are chosen.

    Raises:
        ConfigError: an unknown method, or a variant of MultiBit, which has tables of its own.
    """
    compared = {name: method for name, method in METHODS.items() if not isinstance(method.defaults, Config)}
    if given is None:
        if SOTA not in names:
            return ()
        reads = "pooled" if store is None or store.image_tokens is None else "tokens"
        return tuple(name for name, method in compared.items() if reads in method.tables)
    for name in given:
        require_known("method", name, compared, option="methods")
    return tuple(name for name in compared if name in given)


def require_plan(config: Config, seeds: Sequence[int]) -> None:
    """Refuse settings and seeds that no reproduction can use, before anything is extracted or trained.

    Raises:
        ConfigError: no seed, a repeated one, or one out of range; or a setting that the tables vary themselves.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        found = ", ".join(map(str, seeds)) or "none"
        raise ConfigError(f"need one or more different seeds, got {found}.", option="seeds")
    for seed in seeds:
        config.override({"seed": seed})
    for name in METHOD:
        value, papers = getattr(config, name), getattr(Config(), name)
        if value != papers:
            raise ConfigError(
                f"the tables set it for each method, so it must be {papers} here, got {value}.",
                field=name,
                hint="Train and evaluate a method of your own with `multibit train` and `multibit evaluate`.",
            )


def entries_table() -> Table:
    """The tables and figures that can be made."""
    rows = [
        (name, entry.titled(), entry.label, "labels" if entry.labels_only else "features")
        for name, entry in TABLES.items()
    ]
    rows += [(name, "figure", figure.label, "features") for name, figure in FIGURES.items()]
    return Table("Tables and figures of the paper", ("name", "what", "label in the paper", "needs"), tuple(rows))


def reproduce_all(
    reproduction: Reproduction, names: Sequence[str], seeds: Sequence[int], folder: Path, console: Console
) -> tuple[list[Outcome], dict[str, str]]:
    """Make tables and figures, print each table when it is done, and write all to `folder`.

    What the dataset does not allow (no features, label names or images) is left out with the reason. After an
    interruption call it again: trained runs are reused.

    Args:
        reproduction: of the dataset. names: of tables and figures.
        seeds: of the trainings; figures of single queries use the first.
        folder: of the results. console: for the tables and the reasons.

    Returns:
        The tables that were made, and for what was left out the name and the reason.

    Raises:
        ConfigError: as `require_plan`. DataError: features that are not finite, or the folder holds tables of other
            data or settings.
    """
    require_plan(reproduction.config, seeds)
    if reproduction.subject.store is not None:
        reproduction.subject.store.require_finite()
    identity = _identity(reproduction, seeds, folder)
    earlier = _earlier(folder, identity)
    outcomes: list[Outcome] = []
    left_out: dict[str, str] = {}
    for name in tracked(names, "Making tables and figures", "parts"):
        try:
            if name in FIGURES:
                _make_figure(FIGURES[name], reproduction, seeds, folder)
            else:
                outcomes.append(reproduce(TABLES[name], reproduction, seeds))
                table = outcomes[-1].table()
                print_table(table, console)
                write_table(table, subfolder(folder, "tables") / name)
        except (DataError, MissingExtraError) as error:
            left_out[name] = str(error)
    for reason in dict.fromkeys(left_out.values()):
        names_of = ", ".join(name for name, why in left_out.items() if why == reason)
        console.print(printable(f"Left out: {names_of}. {reason}"), markup=False)
    _write_summary(reproduction, outcomes, left_out, identity, earlier, folder)
    return outcomes, left_out


def _make_figure(figure: PaperFigure, reproduction: Reproduction, seeds: Sequence[int], folder: Path) -> None:
    """Measure and draw a figure; where the paper shows several datasets in it, keep its numbers to be joined."""
    if missing := missing_for_figures():
        raise missing
    measured = figure.measure(reproduction, seeds)
    place = subfolder(folder, "figures")
    if figure.joined:
        write_json(numbers_of(place, figure), measured, kind=FIGURE_KIND, version=FIGURE_VERSION)
    save_figure(figure.draw({"": measured}), place / figure.name)


def numbers_of(folder: Path, figure: PaperFigure) -> Path:
    """The file of the numbers that a figure shows."""
    return folder / f"{figure.name}.json"


def save_figure(drawn: Figure | Image, path: Path) -> list[Path]:
    """Write a figure as PNG and PDF, or a contact sheet as PNG; `path` has no ending yet."""
    written = [
        path.with_name(f"{path.name}.{each}") for each in (("png",) if isinstance(drawn, Image) else ("png", "pdf"))
    ]
    for each in written:
        with replacing(each) as temporary:
            if isinstance(drawn, Image):
                drawn.save(temporary, format="png")
            else:
                drawn.savefig(temporary, format=each.suffix[1:], dpi=DPI)
    return written


def _identity(r: Reproduction, seeds: Sequence[int], folder: Path) -> dict[str, Any]:
    """What all tables of one folder must share."""
    encoder = r.text_encoder
    if encoder is not None and Path(encoder).is_dir():
        encoder = portable_path(Path(encoder), folder)
    store, labels = r.subject.store, r.subject.labels
    return {
        "config": r.config.to_dict(),
        "data": store.fingerprint() if store is not None else fingerprint(labels),
        "column": r.subject.column,
        "split": r.split.fingerprint(),
        "seeds": list(seeds),
        "text_encoder": encoder,
        "compared": list(r.compared),
    }


def _earlier(folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """The tables that the folder already holds, by name.

    Raises:
        DataError: they are of other data, settings or seeds. FormatError: corrupt or truncated.
    """
    path = folder / SUMMARY
    if not path.exists():
        return {}
    stored = read_json(path, kind=KIND, version=VERSION)
    typed(stored, Summary, path, "Delete the file; trained runs are kept.")
    content = {"text_encoder": None, "compared": [], "data": "", "split": "", **stored}
    content["config"] = {**Config().to_dict(), **content["config"]}  # a setting that is newer had its default then
    different = [name for name, value in identity.items() if content[name] != value]
    if different:
        theirs = content["config"]
        settings = [f"{k} {theirs.get(k)} there, {v} here" for k, v in identity["config"].items() if theirs.get(k) != v]
        what = ", ".join(name if name != "config" else f"config ({'; '.join(settings)})" for name in different)
        raise DataError(
            f"holds tables of another {what}.", file=folder, option="folder", hint="Choose another `folder`."
        )
    tables: dict[str, Any] = content["tables"]
    return tables


def _write_summary(
    r: Reproduction,
    outcomes: Sequence[Outcome],
    left_out: dict[str, str],
    identity: dict[str, Any],
    earlier: dict[str, Any],
    folder: Path,
) -> None:
    tables = {**earlier, **{each.entry.name: _plain(each) for each in outcomes}}
    facts = [
        f"{len(r.subject.labels):,} items, {r.subject.labels.shape[1]} labels; seeds "
        f"{', '.join(map(str, identity['seeds']))}; the paper's column: {r.subject.column or 'none'}.",
        *(f"Left out: {name}. {reason}" for name, reason in left_out.items()),
    ]
    pages = [folder / "tables" / f"{name}.md" for name in TABLES if name in tables]
    made = [each.read_text(encoding="utf-8").strip() for each in pages if each.exists()]
    with replacing(folder / "reproduction.md") as temporary:
        temporary.write_text(
            "\n\n".join(["# The paper's tables, measured here", *facts, *made]) + "\n", encoding="utf-8"
        )
    write_json(folder / SUMMARY, {**identity, "left_out": left_out, "tables": tables}, kind=KIND, version=VERSION)


def _plain(outcome: Outcome) -> dict[str, Any]:
    """A table as plain values, for JSON; undefined values are null."""
    cells = [
        {
            "row": str(row),
            "column": str(column),
            "got": [None if np.isnan(value) else float(value) for value in values],
            "paper": outcome.printed.get((row, column)),
        }
        for (row, column), values in outcome.cells.items()
    ]
    columns = {
        str(column): {"form": column.form, "larger_is_better": column.larger_is_better}
        for column in outcome.cells.columns
    }
    claims = {"claims": dict(outcome.verdicts), "found": dict(outcome.found)}
    about = {"label": outcome.entry.label, "bits": outcome.bits, "note": outcome.note}
    return {**about, "columns": columns, "cells": cells, **claims}


def open_subject(path: Path, key: str | None, column: str | None) -> Subject:
    """A feature store, or an `.npz` with features or with labels only.

    Args:
        path: feature store folder or `.npz`. key: of the labels in an `.npz` without features; "labels" when None.
        column: name of the dataset in the paper.

    Raises:
        DataError: unreadable, no such key, or labels other than 0 and 1. ConfigError: a key for a file with features.
    """
    arrays = read_npz(path) if path.suffix == ".npz" else {}
    if path.suffix == ".npz" and not {"image", "text"} <= set(arrays):
        labels = _labels_of(path, arrays, key or "labels")
        names = tuple(str(each) for each in arrays.get("label_names", ()))
        if names and len(names) != labels.shape[1]:
            sizes = counted(len(names), "name", "names"), counted(labels.shape[1], "label column", "label columns")
            raise DataError(f"{' for '.join(sizes)}.", file=path, field="label_names")
        return Subject(labels, names, None, column)
    if key is not None:
        raise ConfigError(
            f"{path} has features with labels of their own, so there is no array {key!r} to choose.",
            option="key",
            hint="Leave it out.",
        )
    store = FeatureStore.open(path)
    return Subject(store.dataset.labels, store.dataset.label_names, store, column)


def _labels_of(path: Path, arrays: Arrays, key: str) -> Labels:
    if key not in arrays:
        found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        hint = "Name the array of labels: `key`."
        raise DataError(f"no array {key!r}; found {found or 'none'}.", file=path, hint=hint)
    try:
        return as_labels(arrays[key])
    except DataError as error:
        error.field = key
        raise error.within(path) from None
