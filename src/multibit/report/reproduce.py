"""A reproduction -> a folder: every table got beside printed, every figure, and one page of markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from multibit.config import Config
from multibit.data import FeatureStore
from multibit.data.features import read_npz
from multibit.errors import ConfigError, DataError, FormatError, MissingExtraError
from multibit.files import fingerprint, read_json, replacing, write_json
from multibit.report.page import undrawn
from multibit.report.paper import TABLES, Outcome, reproduce
from multibit.report.paper_cells import MIDDLE
from multibit.report.reproduction import Reproduction, Subject
from multibit.report.tables import Table, write_table

QUALITATIVE = "qualitative-retrieval"
SUMMARY = "reproduction.json"
FIGURE_NAMES = (
    "cross-length-stability", "query-level-gain", "parameter-sensitivity", "deployment-cost", QUALITATIVE,
)  # fmt: skip
QUICK = {"epochs": 15}  # to see everything work, not to compare numbers
QUICK_LEAVES_OUT = ("sensitivity", "parameter-sensitivity")  # 25 trainings
METHOD = (
    "teacher", "allocation", "aligned", "alignment", "standard_weight", "binary_weight", "within_weight",
    "consistency_weight",
)  # fmt: skip
"""Settings that tell the methods of the paper apart."""


def choose(names: Sequence[str], *, quick: bool) -> list[str]:
    """The tables and figures to make: those named, or all.

    Raises:
        ConfigError: an unknown name.
    """
    for name in names:
        if name not in FIGURE_NAMES and name not in TABLES:
            raise ConfigError(f"table: {name!r} is unknown; there are {', '.join([*TABLES, *FIGURE_NAMES])}.")
    everything = [*TABLES, *FIGURE_NAMES]
    return list(dict.fromkeys(names)) or [name for name in everything if not (quick and name in QUICK_LEAVES_OUT)]


def require_plan(config: Config, seeds: Sequence[int]) -> None:
    """Refuse what no reproduction can be made with, before the first features and trainings.

    Raises:
        ConfigError: no seed, one twice or out of range; or settings that make another method of the paper's, since its
            tables vary them themselves.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds: need one or more different ones, got {', '.join(map(str, seeds)) or 'none'}.")
    for seed in seeds:
        config.override({"seed": seed})
    for name in METHOD:
        value, papers = getattr(config, name), getattr(Config(), name)
        if value != papers:
            raise ConfigError(
                f"{name}: the tables set it for each method, so it must be {papers} here, got {value}. "
                "Use `multibit train` and `evaluate` for a method of your own."
            )


def entries_table() -> Table:
    """What can be made, for people."""
    rows = [
        (name, entry.title.format(bits=MIDDLE), entry.label, "labels" if entry.labels_only else "features")
        for name, entry in TABLES.items()
    ]
    rows += [(name, "figure", "", "features") for name in FIGURE_NAMES]
    return Table("Tables and figures of the paper", ("name", "what", "label in the paper", "needs"), tuple(rows))


def reproduce_all(
    reproduction: Reproduction, names: Sequence[str], seeds: Sequence[int], folder: Path, console: Console
) -> tuple[list[Outcome], dict[str, str]]:
    """Make tables and figures, print each when it is done, and keep all in `folder`.

    What a data set cannot give (no features, no label names, no pictures) is left out with a sentence. Interrupted?
    Call it again: trained runs are found again.

    Returns:
        The tables that were made, and why others and figures were left out, by name.

    Raises:
        ConfigError: as `require_plan`. DataError: features that are not finite, or a folder with the tables of other
            data or settings.
    """
    require_plan(reproduction.config, seeds)
    if reproduction.subject.store is not None:
        reproduction.subject.store.require_finite()
    identity = _identity(reproduction, seeds)
    earlier = _earlier(folder, identity)
    outcomes: list[Outcome] = []
    left_out: dict[str, str] = {}
    for name in names:
        try:
            if name in FIGURE_NAMES:
                _draw(reproduction, name, seeds[0], folder / "figures")
            else:
                outcomes.append(reproduce(TABLES[name], reproduction, seeds))
                console.print(outcomes[-1].table().rich())
                write_table(outcomes[-1].table(), folder / "tables" / name)
        except (DataError, MissingExtraError) as error:
            left_out[name] = str(error)
    for reason in dict.fromkeys(left_out.values()):
        names_of = ", ".join(name for name, why in left_out.items() if why == reason)
        console.print(f"Left out: {names_of}. {reason}", markup=False)
    _write_summary(reproduction, outcomes, left_out, identity, earlier, folder)
    return outcomes, left_out


def _draw(reproduction: Reproduction, name: str, seed: int, folder: Path) -> None:
    if reason := undrawn():
        raise DataError(reason)
    from multibit.report.paper_figures import FIGURES, qualitative_retrieval

    folder.mkdir(parents=True, exist_ok=True)
    if name == QUALITATIVE:
        qualitative_retrieval(reproduction, seed, folder / f"{name}.png")
        return
    figure = FIGURES[name](reproduction, seed)
    for ending in ("png", "pdf"):
        with replacing(folder / f"{name}.{ending}") as temporary:
            figure.savefig(temporary, format=ending, dpi=150)


def _identity(r: Reproduction, seeds: Sequence[int]) -> dict[str, Any]:
    """What tables must share to stand in one folder."""
    labels = fingerprint(r.subject.labels)
    return {
        "config": r.config.to_dict(),
        "data": r.subject.store.fingerprint() if r.subject.store else labels,
        "column": r.subject.column,
        "split": r.split.fingerprint(),
        "seeds": list(seeds),
    }


def _earlier(folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """The tables that are in the folder already, by name.

    Raises:
        DataError: they are of other data, settings or seeds. FormatError: torn or edited.
    """
    path = folder / SUMMARY
    if not path.exists():
        return {}
    content = read_json(path, kind="reproduction", version=1, fields=("tables", *identity))
    if not isinstance(content["tables"], dict) or not isinstance(content["config"], dict):
        raise FormatError(f"{path}: cannot be understood, so it was edited. Delete it; trained runs are kept.")
    different = [name for name, value in identity.items() if content[name] != value]
    if different:
        theirs = content["config"]
        settings = [f"{k} {theirs.get(k)} there, {v} here" for k, v in identity["config"].items() if theirs.get(k) != v]
        what = ", ".join(name if name != "config" else f"config ({'; '.join(settings)})" for name in different)
        raise DataError(f"{folder}: holds tables of another {what}. Choose another folder with --out.")
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
    write_json(folder / SUMMARY, {**identity, "left_out": left_out, "tables": tables}, kind="reproduction", version=1)


def _plain(outcome: Outcome) -> dict[str, Any]:
    cells = [
        {
            "row": row,
            "column": column,
            "got": [None if np.isnan(value) else float(value) for value in values],
            "paper": outcome.printed.get((row, column)),
        }
        for (row, column), values in outcome.cells.items()
    ]
    return {"label": outcome.entry.label, "cells": cells, "claims": dict(outcome.verdicts)}


def open_subject(path: Path, key: str | None, column: str | None) -> Subject:
    """A feature store, or an `.npz` with labels only.

    Args:
        path: feature store folder or `.npz`. key: of the labels in an `.npz` without features; "labels" when None.
        column: the paper's data set that this is.

    Raises:
        DataError: unreadable, or no such key; says what is there. ConfigError: a key though there are features.
    """
    if path.suffix != ".npz":
        store = FeatureStore.open(path)
        return Subject(store.dataset.labels, store.dataset.label_names, store, column)
    arrays = read_npz(path)
    if {"image", "text"} <= set(arrays):
        if key is not None:
            raise ConfigError(f"--labels-key {key}: {path} has features, whose labels are known. Leave it out.")
        store = FeatureStore.open(path)
        return Subject(store.dataset.labels, store.dataset.label_names, store, column)
    name = key or "labels"
    if name not in arrays:
        found = ", ".join(f"{each} {array.shape}" for each, array in arrays.items())
        raise DataError(f"{path}: no {name!r}; it has {found}. Name the labels with --labels-key.")
    labels = np.asarray(arrays[name])
    if labels.ndim != 2 or not np.isin(labels, (0, 1)).all():
        raise DataError(f"{path}: {name} has shape {labels.shape}; labels must be a matrix (items, labels) of 0 and 1.")
    names = tuple(str(each) for each in arrays.get("label_names", ()))
    if names and len(names) != labels.shape[1]:
        raise DataError(f"{path}: {len(names)} label_names for {labels.shape[1]} label columns.")
    return Subject(labels.astype(np.uint8), names, None, column)
