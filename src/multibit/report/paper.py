"""Every table of the paper that concerns MultiBit and its variants, as a registry.

An entry says what it measures, and what the paper printed and claimed there. The columns of the eleven published
methods are left out; they join as further variants.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import pairwise

import numpy as np

from multibit.config import Config
from multibit.errors import ConfigError
from multibit.hashing.variants import VARIANTS
from multibit.report import paper_cells
from multibit.report.paper_cells import (
    ABLATION,
    FIDELITY,
    GAIN_CANDIDATES,
    GAIN_QUERIES,
    MIDDLE,
    TEACHER_QUERIES,
    Cells,
    FloatArray,
    length_near,
)
from multibit.report.reproduction import Reproduction
from multibit.report.tables import Table


@dataclass(frozen=True)
class Claim:
    """What the paper says that a table shows, and whether the cells measured here show it.

    Attributes:
        text: in a sentence. holds: cells, all of them numbers -> it does.
        about: column -> the claim is about it.
    """

    text: str
    holds: Callable[[Cells], bool]
    about: Callable[[str], bool] = lambda column: True

    def judge(self, cells: Cells) -> bool | None:
        """Whether the cells show it; None where they do not say: there is none, or one is no number."""
        said = {key: value for key, value in cells.items() if self.about(key[1])}
        return self.holds(said) if said and not np.isnan(list(said.values())).any() else None


@dataclass(frozen=True)
class Entry:
    """A table of the paper.

    Attributes:
        name: as the command line has it. title: what it shows. label: of the table in the paper's source.
        measure: a reproduction and a seed -> cells. claims: that it supports. digits: after the point.
        labels_only: it needs no features. note: how it is measured, where the paper leaves that open.
        of_lengths: what the paper printed belongs to its lengths, and rows and columns do not name them.

    In title and note, {bits} stands for the length that a table of one length shows: 64 in the paper.
    """

    name: str
    title: str
    label: str
    measure: Callable[[Reproduction, int], Cells]
    claims: tuple[Claim, ...] = ()
    digits: int = 3
    labels_only: bool = False
    note: str = ""
    of_lengths: bool = False


@dataclass(frozen=True, eq=False)
class Outcome:
    """A table as measured here.

    Attributes:
        entry: what was measured. cells: (row, column) -> (seeds,) values. printed: the paper's, where it has them.
        verdicts: claim -> reproduced or not; None where the cells do not say.
        bits: the length that a table of one length shows. note: what else to know when reading it.
    """

    entry: Entry
    cells: Mapping[tuple[str, str], FloatArray]
    printed: Cells = field(default_factory=dict)
    verdicts: Mapping[str, bool | None] = field(default_factory=dict)
    bits: int = MIDDLE
    note: str = ""

    def table(self) -> Table:
        """Got, and below it the paper's value and the difference where the paper has one."""
        rows, columns = (list(dict.fromkeys(key[i] for key in self.cells)) for i in range(2))
        body = []
        for row in rows:
            body.append((row, *(self._got(row, column) for column in columns)))
            if any((row, column) in self.printed for column in columns):
                body.append(("  paper", *(self._paper(row, column) for column in columns)))
                body.append(("  difference", *(self._difference(row, column) for column in columns)))
        words = {True: "reproduced", False: "NOT REPRODUCED", None: "not measured"}
        verdicts = [f"{words[verdict]}: {claim}." for claim, verdict in self.verdicts.items()]
        note = " ".join(part for part in (self.entry.note.format(bits=self.bits), self.note, *verdicts) if part)
        return Table(self.entry.title.format(bits=self.bits), ("", *columns), tuple(body), note)

    def _got(self, row: str, column: str) -> str:
        values = self.cells.get((row, column))
        if values is None or np.isnan(values).any():
            return "-"
        form = self._form(column)
        mean = format(np.mean(values), form)
        return f"{mean} ± {np.std(values, ddof=1):{form}}" if len(values) > 1 else mean

    def _paper(self, row: str, column: str) -> str:
        value = self.printed.get((row, column))
        return "-" if value is None else format(value, self._form(column))

    def _difference(self, row: str, column: str) -> str:
        value, values = self.printed.get((row, column)), self.cells.get((row, column))
        if value is None or values is None or np.isnan(values).any():
            return "-"
        return format(np.mean(values) - value, f"+{self._form(column)}")

    def _form(self, column: str) -> str:
        if column == "value":  # of a setting
            return "g"
        whole = column in ("pairs", "models", "bits", "cumulative", "best epoch", "classes", "train", "validation")
        return f".{0 if whole or column in ('query', 'database') else self.entry.digits}f"


def reproduce(entry: Entry, reproduction: Reproduction, seeds: Sequence[int]) -> Outcome:
    """Measure one table for every seed, and put the paper's values and claims beside it.

    Raises:
        DataError: the data set lacks what the table needs: features, label names.
    """
    measured = [entry.measure(reproduction, seed) for seed in (seeds[:1] if entry.labels_only else seeds)]
    cells = {key: np.array([each.get(key, np.nan) for each in measured], np.float64) for key in measured[0]}
    means = {key: float(values.mean()) for key, values in cells.items()}
    printed, note = printed_values(entry.name, reproduction.subject.column), ""
    lengths = Config().lengths
    if printed and entry.of_lengths and reproduction.config.lengths != lengths:
        printed, note = {}, f"The paper's values are of {', '.join(map(str, lengths))} bits, so none stand here."
    verdicts = {claim.text: claim.judge(means) for claim in entry.claims}
    return Outcome(entry, cells, printed, verdicts, length_near(reproduction.config, MIDDLE), note)


@cache
def _paper() -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    loaded: dict[str, dict[str, dict[str, dict[str, float]]]] = json.loads(
        files("multibit.report").joinpath("paper.json").read_text(encoding="utf-8")
    )
    return loaded


def printed_values(name: str, column: str | None) -> Cells:
    """What the paper printed in a table for one of its data sets; nothing for another data set."""
    rows = _paper().get(name, {}).get(column or "", {})
    return {(row, cell): value for row, cells in rows.items() for cell, value in cells.items()}


def find_entry(name: str) -> Entry:
    """The table of a name.

    Raises:
        ConfigError: there is none.
    """
    if name not in TABLES:
        raise ConfigError(f"table: {name!r} is unknown; there are {', '.join(TABLES)}.")
    return TABLES[name]


def _columns(cells: Cells) -> list[str]:
    return list(dict.fromkeys(column for _, column in cells))


def _rising(rows: Sequence[str]) -> Callable[[Cells], bool]:
    """Every row is above the one before it, in every column."""
    return lambda cells: all(cells[a, c] < cells[b, c] for a, b in pairwise(rows) for c in _columns(cells))


def _on_top(row: str, columns: Callable[[str], bool] = lambda _: True) -> Callable[[Cells], bool]:
    """A row is the largest in every column that is asked for."""
    return lambda cells: all(
        value <= cells[row, column] for (other, column), value in cells.items() if other != row and columns(column)
    )


def _better_resolution(cells: Cells) -> bool:
    return all(
        (cells["MultiBit", c] > cells["Naive Prefix", c]) == c.startswith(("N ", "tau-b")) for c in _columns(cells)
    )


def _monotone_resolution(cells: Cells) -> bool:
    rows = list(dict.fromkeys(row for row, _ in cells))
    rises = {"N": True, "tau-b": True, "C": False, "I": False}
    return all((cells[a, c] < cells[b, c]) == up for a, b in pairwise(rows) for c, up in rises.items())


def _peak(cells: Cells) -> bool:
    best = max(cells, key=lambda key: cells[key])
    return best in (("eta 0.20", "alpha 0.9"), ("eta 0.20", "alpha 1.2"))


TABLES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("parameters", "Parameter register", "tab:all-parameters", paper_cells.parameters, labels_only=True),
        Entry("data-split", "Data split", "tab:data-split", paper_cells.data_split, labels_only=True, digits=0),
        Entry(
            "scale-coverage",
            "Scale coverage",
            "tab:scale-coverage",
            paper_cells.scale_coverage,
            labels_only=True,
            of_lengths=True,
        ),
        Entry(
            "quadrature-fidelity",
            "Quadrature fidelity",
            "tab:quadrature-fidelity",
            paper_cells.quadrature_fidelity,
            claims=(
                Claim("tau-b is at least 0.93 at M = 4", lambda c: c["M = 4", "tau-b"] >= 0.93),
                Claim("tau-b is at least 0.99 at M = 8", lambda c: c["M = 8", "tau-b"] >= 0.99),
            ),
            labels_only=True,
            note=f"tau-b of at most {FIDELITY[0]} queries on {FIDELITY[1]:,} database items drawn with seed 42.",
        ),
        Entry(
            "teacher-quality",
            "Teacher quality, NDCG@100",
            "tab:teacher-quality",
            paper_cells.teacher_quality,
            claims=(Claim("FRT is the best teacher under every evaluator", _on_top("FRT")),),
            labels_only=True,
            note=f"The database ranked by the teacher's own scores, ties by row, at most {TEACHER_QUERIES} queries.",
        ),
        Entry(
            "teacher-aligned",
            "Teacher quality, equal scales and normalisation",
            "tab:teacher-aligned",
            paper_cells.teacher_aligned,
            claims=(Claim("FRT is above UKM, and UKM above UMH", _rising(("UMH", "UKM", "FRT"))),),
            labels_only=True,
        ),
        Entry("main-comparison", "mAP@all in percent", "tab:sota-comparison", paper_cells.main_comparison, digits=2),
        Entry(
            "component-ablation",
            "Component ablation, mean mAP in percent",
            "tab:component-ablation",
            paper_cells.component_ablation,
            claims=(
                Claim("every component gains at every length", _rising([VARIANTS[name].title for name in ABLATION])),
            ),
            digits=2,
        ),
        Entry(
            "teacher-transfer",
            "Relation teachers, mean mAP in percent",
            "tab:teacher-transfer",
            paper_cells.teacher_transfer,
            claims=(Claim("FRT is the best teacher at every length", _on_top("Full MultiBit (FRT)")),),
            digits=2,
        ),
        Entry(
            "query-gain",
            "Query-level gain of the full model",
            "tab:query-level-gain",
            paper_cells.query_gain,
            claims=(
                Claim(
                    "the mean gain is positive against every design",
                    lambda cells: all(value > 0 for value in cells.values()),
                    about=lambda column: column == "mean pp",
                ),
            ),
            digits=2,
            note=f"{{bits}} bits, image-to-text; at most {GAIN_CANDIDATES} candidates and {GAIN_QUERIES:,} queries, "
            "seed 42.",
            of_lengths=True,
        ),
        Entry(
            "resolution-idf",
            "Relevance resolution, IDF-weighted evaluator",
            "tab:resolution-multilength",
            paper_cells.resolution("IDF"),
            claims=(Claim("MultiBit is above Naive Prefix on every metric", _better_resolution),),
            note="Mean of both directions; pools shared with the full model.",
        ),
        Entry(
            "resolution-label-names",
            "Relevance resolution, label-name evaluator",
            "tab:resolution-semantic",
            paper_cells.resolution("label names"),
            claims=(Claim("MultiBit is above Naive Prefix on every metric", _better_resolution),),
            note="Mean of both directions; pools shared with the full model.",
        ),
        Entry(
            "resolution-strata",
            "Pairs that share no label, label-name evaluator",
            "tab:resolution-noshared",
            paper_cells.resolution_strata,
            note="{bits} bits, mean of both directions.",
            of_lengths=True,
        ),
        Entry(
            "scale-boundary",
            "Resolution at the scale boundaries, IDF-weighted evaluator",
            "tab:scale-boundary",
            paper_cells.scale_boundary,
            claims=(Claim("resolution improves with every boundary", _monotone_resolution),),
        ),
        Entry("quantization", "Quantisation statistics", "tab:quantization", paper_cells.sign_statistics, digits=4),
        Entry(
            "tie-ceiling",
            "Ceiling that ties set",
            "tab:tie-ceiling",
            paper_cells.tie_ceiling,
            claims=(
                Claim(
                    "tau-b stays within 0.011 of the ceiling",
                    lambda cells: all(value <= 0.011 for value in cells.values()),
                    about=lambda column: column == "gap",
                ),
            ),
        ),
        Entry(
            "sensitivity",
            "Validation mean mAP in percent at {bits} bits",
            "tab:parameter-sensitivity-grid",
            paper_cells.sensitivity,
            claims=(Claim("the grid peaks at eta 0.20 and alpha 0.9 or 1.2", _peak),),
            digits=2,
            of_lengths=True,
        ),
        Entry(
            "multi-length-cost",
            "Serving all lengths: mean mAP in percent, and cost",
            "tab:multi-length-cost",
            paper_cells.multi_length_cost,
            claims=(
                Claim(
                    "one nested model is above the separate ones at every length",
                    lambda cells: all(cells["MultiBit", c] > cells["MultiBit-Sep", c] for c in _columns(cells)),
                    about=str.isdigit,
                ),
            ),
            note="Times on this machine, in a batch; query ms is coding and ranking at {bits} bits, 100 hits.",
            of_lengths=True,
        ),
        Entry(
            "cross-length-agreement",
            "Cross-length ranking agreement, tau-b",
            "tab:cross-length-agreement-complete",
            paper_cells.cross_length_agreement,
            claims=(Claim("MultiBit agrees most with itself", _on_top("MultiBit")),),
            of_lengths=True,
        ),
        Entry(
            "rank-displacement",
            "Rank displacement, five queries and 500 candidates",
            "tab:rank-displacement-sample",
            paper_cells.sampled_displacement,
            claims=(
                Claim(
                    "MultiBit moves candidates less than Naive Prefix",
                    lambda c: c["MultiBit", "mean |change|"] < c["Naive Prefix", "mean |change|"],
                ),
            ),
            of_lengths=True,
        ),
        Entry(
            "efficiency",
            "Efficiency",
            "tab:performance-efficiency-raw",
            paper_cells.efficiency,
            digits=4,
            note="Times on this machine, in a batch.",
            of_lengths=True,
        ),
    )
}
"""Name -> table, in the order in which they are made: labels only first."""
