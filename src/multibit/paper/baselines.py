"""Optimisers of the compared methods: what the paper says, and what the methods' public code has."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from multibit.paper.cells import Cells, Named, Quantity
from multibit.paper.outcome import DATASETS, Outcome
from multibit.paper.reproduction import Reproduction
from multibit.table import Table

LEARNING_RATE = Quantity("learning rate", "g")
HEADER = ("method", "paper", "rate in the paper", "public code", "rate in the code", "agrees", "source", "remark")

Rate = float | dict[str, float] | None
"""Learning rate, by dataset where it differs; None without an optimiser."""


@dataclass(frozen=True)
class Baseline:
    """A compared method.

    Attributes:
        method: name. paper, code: optimiser and learning rate of the heads. agrees: whether both say the same.
        source: repository and commit of the public code. remark: what else the code does.
    """

    method: str
    paper: tuple[str, Rate]
    code: tuple[str, Rate]
    agrees: bool
    source: str
    remark: str


@cache
def baselines() -> tuple[Baseline, ...]:
    """The compared methods, in the order of the paper's main table."""
    content = json.loads(files("multibit.paper").joinpath("baselines.json").read_text(encoding="utf-8"))
    return tuple(Baseline(**{**each, "paper": tuple(each["paper"]), "code": tuple(each["code"])}) for each in content)


def baseline_optimizers(r: Reproduction, seed: int) -> Cells[float]:
    """Learning rates of the public code (Table `tab:baseline-optimizers`); nothing is trained."""
    rates = {each.method: _rate(each.code[1], r.subject.column) for each in baselines()}
    return Cells({(Named(method), LEARNING_RATE): rate for method, rate in rates.items() if rate is not None})


def differing() -> str:
    """How many methods have other settings in their public code, in words."""
    methods = baselines()
    return f"{sum(not each.agrees for each in methods)} of {len(methods)} differ"


def lay_out(outcome: Outcome) -> Table:
    """One row per method."""
    rows = tuple(
        (
            each.method, each.paper[0], _text(each.paper[1]), each.code[0], _text(each.code[1]),
            "yes" if each.agrees else "NO", each.source, each.remark,
        )
        for each in baselines()
    )  # fmt: skip
    return Table(outcome.entry.titled(outcome.bits), HEADER, rows, outcome.notes())


def _rate(rate: Rate, dataset: str | None) -> float | None:
    return rate.get(dataset or "") if isinstance(rate, dict) else rate


def _text(rate: Any) -> str:
    if rate is None:
        return "-"
    return (
        ", ".join(f"{value:g} ({DATASETS[name]})" for name, value in rate.items())
        if isinstance(rate, dict)
        else f"{rate:g}"
    )
