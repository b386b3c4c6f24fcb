"""The tables of the paper that concern MultiBit and its methods: what each one measures, printed and claims.

The paper's columns of compared methods are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files

import numpy as np

from multibit.arrays import FloatArray
from multibit.codes.items import MIDDLE, length_near
from multibit.config import Config
from multibit.errors import ConfigError
from multibit.paper import accuracy_cells as accuracy
from multibit.paper import label_cells as of_labels
from multibit.paper import ranking_cells as ranking
from multibit.paper.accuracy_cells import MULTIBIT, NAIVE_PREFIX, SEPARATE
from multibit.paper.cells import AtLength, Cells, Column, Nodes, Row
from multibit.paper.claims import Claim, better, improving, largest, peak_at, rising
from multibit.paper.label_cells import FIDELITY, FRT, UKM, UMH
from multibit.paper.reproduction import Reproduction
from multibit.table import Cell, Number, Table

Measure = Callable[[Reproduction, int], Cells[float]]
UNDEFINED = Number(float("nan"))


@dataclass(frozen=True)
class Entry:
    """A table of the paper.

    Attributes:
        name: on the command line. title: what it shows. label: of the table in the paper's source.
        measure: reproduction, seed -> cells. claims: what the paper says that the cells show.
        labels_only: it needs no features and does not depend on the seed.
        note: how to read it. `{bits}` in title and note stands for the length of a table of one length.
        of_lengths: its printed values hold only for the paper's code lengths.
    """

    name: str
    title: str
    label: str
    measure: Measure
    claims: tuple[Claim, ...] = ()
    labels_only: bool = False
    note: str = ""
    of_lengths: bool = False

    def titled(self, bits: int = MIDDLE) -> str:
        """The title of the table at a code length."""
        return self.title.format(bits=bits)


@dataclass(frozen=True, eq=False)
class Outcome:
    """A table as measured here.

    Attributes:
        entry: what was measured. cells: (seeds,) values. printed: the paper's value of the cells that it has.
        verdicts: claim -> reproduced or not; None where the cells do not say.
        bits: the length that a table of one length shows. note: what else to know when reading it.
    """

    entry: Entry
    cells: Cells[FloatArray]
    printed: Cells[float] = field(default_factory=Cells)
    verdicts: Mapping[str, bool | None] = field(default_factory=dict)
    bits: int = MIDDLE
    note: str = ""

    def table(self) -> Table:
        """The measured values, and below each row the paper's values and the differences where the paper has any."""
        columns = self.cells.columns
        body: list[tuple[Cell, ...]] = []
        for row in self.cells.rows:
            body.append((str(row), *(self._measured(row, column) for column in columns)))
            if any((row, column) in self.printed for column in columns):
                body.append(("  paper", *(self._paper(row, column) for column in columns)))
                body.append(("  difference", *(self._difference(row, column) for column in columns)))
        words = {True: "reproduced", False: "NOT REPRODUCED", None: "not measured"}
        verdicts = [f"{words[verdict]}: {claim}." for claim, verdict in self.verdicts.items()]
        note = " ".join(part for part in (self.entry.note.format(bits=self.bits), self.note, *verdicts) if part)
        return Table(self.entry.titled(self.bits), ("", *map(str, columns)), tuple(body), note)

    def _measured(self, row: Row, column: Column) -> Number:
        values = self.cells.get((row, column))
        if values is None or np.isnan(values).any():
            return UNDEFINED
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return Number(float(np.mean(values)), column.form, spread=spread)

    def _paper(self, row: Row, column: Column) -> Number:
        return Number(self.printed.get((row, column), float("nan")), column.form)

    def _difference(self, row: Row, column: Column) -> Number:
        measured, paper = self._measured(row, column), self._paper(row, column)
        return Number(measured.value - paper.value, f"+{column.form}")


def reproduce(entry: Entry, reproduction: Reproduction, seeds: Sequence[int]) -> Outcome:
    """Measure one table for every seed and compare it with the paper's values and claims.

    Raises:
        DataError: the dataset lacks what the table needs, such as features or label names.
    """
    measured = [_measure(entry, reproduction, seed) for seed in (seeds[:1] if entry.labels_only else seeds)]
    cells = Cells({key: np.array([each.get(key, np.nan) for each in measured], np.float64) for key in measured[0]})
    means = Cells({key: float(values.mean()) for key, values in cells.items()})
    printed, note = cells.find(printed_texts(entry.name, reproduction.subject.column)), ""
    lengths = Config().lengths
    if printed and entry.of_lengths and reproduction.config.lengths != lengths:
        note = f"The paper's values are for {', '.join(map(str, lengths))} bits and are not shown."
        printed = Cells()
    verdicts = {claim.text: claim.judge(means) for claim in entry.claims}
    return Outcome(entry, cells, printed, verdicts, length_near(reproduction.config.lengths), note)


def _measure(entry: Entry, reproduction: Reproduction, seed: int) -> Cells[float]:
    """The cells of one seed, measured once: a figure of the same cells shows the same numbers."""
    return reproduction.remember(("cells", entry.measure, seed), partial(entry.measure, reproduction, seed))


@cache
def _printed() -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Name of the table -> dataset -> row -> column -> value, as in the paper."""
    loaded: dict[str, dict[str, dict[str, dict[str, float]]]] = json.loads(
        files("multibit.paper").joinpath("printed.json").read_text(encoding="utf-8")
    )
    return loaded


def printed_texts(name: str, column: str | None) -> dict[tuple[str, str], float]:
    """What the paper printed in a table for one of its datasets, by printed names; empty for another dataset."""
    rows = _printed().get(name, {}).get(column or "", {})
    return {(row, cell): value for row, cells in rows.items() for cell, value in cells.items()}


def find_entry(name: str) -> Entry:
    """The table with a name.

    Raises:
        ConfigError: unknown name.
    """
    if name not in TABLES:
        raise ConfigError(f"unknown table {name!r}; choose from {', '.join(TABLES)}.", option="names")
    return TABLES[name]


def _is(*wanted: Column) -> Callable[[Column], bool]:
    return lambda column: column in wanted


_ENTRIES = (
    Entry("parameters", "Parameter register", "tab:all-parameters", of_labels.parameters, labels_only=True),
    Entry("data-split", "Data split", "tab:data-split", of_labels.data_split, labels_only=True),
    Entry(
        "scale-coverage",
        "Scale coverage",
        "tab:scale-coverage",
        of_labels.scale_coverage,
        labels_only=True,
        of_lengths=True,
    ),
    Entry(
        "quadrature-fidelity",
        "Quadrature fidelity",
        "tab:quadrature-fidelity",
        of_labels.quadrature_fidelity,
        claims=(
            Claim("tau-b is at least 0.93 at M = 4", lambda cells: cells[Nodes(4), FIDELITY] >= 0.93),
            Claim("tau-b is at least 0.99 at M = 8", lambda cells: cells[Nodes(8), FIDELITY] >= 0.99),
        ),
        labels_only=True,
        note=f"tau-b of at most {of_labels.FIDELITY_QUERIES} queries on {of_labels.FIDELITY_CANDIDATES:,} database "
        "items drawn with seed 42.",
    ),
    Entry(
        "teacher-quality",
        "Teacher quality, NDCG@100",
        "tab:teacher-quality",
        of_labels.teacher_quality,
        claims=(Claim("FRT is the best teacher under every evaluator", largest(FRT)),),
        labels_only=True,
        note="The database ranked by the teacher's own scores, ties by row, at most "
        f"{of_labels.TEACHER_QUERIES} queries.",
    ),
    Entry(
        "teacher-aligned",
        "Teacher quality, equal scales and normalisation",
        "tab:teacher-aligned",
        of_labels.teacher_aligned,
        claims=(Claim("FRT is above UKM, and UKM above UMH", rising((UMH, UKM, FRT))),),
        labels_only=True,
    ),
    Entry("main-comparison", "mAP@all in percent", "tab:sota-comparison", accuracy.main_comparison),
    Entry(
        "component-ablation",
        "Component ablation, mean mAP in percent",
        "tab:component-ablation",
        accuracy.component_ablation,
        claims=(Claim("every component gains at every length", rising(accuracy.ABLATION)),),
    ),
    Entry(
        "teacher-transfer",
        "Relation teachers, mean mAP in percent",
        "tab:teacher-transfer",
        accuracy.teacher_transfer,
        claims=(Claim("FRT is the best teacher at every length", largest(accuracy.FULL_FRT)),),
    ),
    Entry(
        "query-gain",
        "Query-level gain of the full model",
        "tab:query-level-gain",
        accuracy.query_gain,
        claims=(
            Claim(
                "the mean gain is positive against every design",
                lambda cells: all(value > 0 for value in cells.values()),
                about=_is(accuracy.MEAN_GAIN),
            ),
        ),
        note=f"{{bits}} bits, image-to-text; at most {accuracy.GAIN_CANDIDATES} candidates and "
        f"{accuracy.GAIN_QUERIES:,} queries, seed 42.",
        of_lengths=True,
    ),
    Entry(
        "resolution-idf",
        "Relevance resolution, IDF-weighted evaluator",
        "tab:resolution-multilength",
        ranking.resolution("IDF"),
        claims=(Claim("MultiBit is above Naive Prefix on every metric", better(MULTIBIT, NAIVE_PREFIX)),),
        note="Mean of both directions; pools shared with the full model.",
    ),
    Entry(
        "resolution-label-names",
        "Relevance resolution, label-name evaluator",
        "tab:resolution-semantic",
        ranking.resolution("label names"),
        claims=(Claim("MultiBit is above Naive Prefix on every metric", better(MULTIBIT, NAIVE_PREFIX)),),
        note="Mean of both directions; pools shared with the full model.",
    ),
    Entry(
        "resolution-strata",
        "Pairs that share no label, label-name evaluator",
        "tab:resolution-noshared",
        ranking.resolution_strata,
        note="{bits} bits, mean of both directions.",
        of_lengths=True,
    ),
    Entry(
        "scale-boundary",
        "Resolution at the scale boundaries, IDF-weighted evaluator",
        "tab:scale-boundary",
        ranking.scale_boundary,
        claims=(Claim("resolution improves with every boundary", improving),),
    ),
    Entry("quantization", "Quantisation statistics", "tab:quantization", ranking.sign_statistics),
    Entry(
        "tie-ceiling",
        "Ceiling of tau-b set by ties",
        "tab:tie-ceiling",
        ranking.tie_ceiling,
        claims=(
            Claim(
                "tau-b stays within 0.011 of the ceiling",
                lambda cells: all(value <= 0.011 for value in cells.values()),
                about=_is(ranking.GAP),
            ),
        ),
    ),
    Entry(
        "sensitivity",
        "Validation mean mAP in percent at {bits} bits",
        "tab:parameter-sensitivity-grid",
        accuracy.sensitivity,
        claims=(Claim("the grid peaks at eta 0.20 and alpha 0.9 or 1.2", peak_at(0.2, (0.9, 1.2))),),
        of_lengths=True,
    ),
    Entry(
        "multi-length-cost",
        "Serving all lengths: mean mAP in percent, and cost",
        "tab:multi-length-cost",
        accuracy.multi_length_cost,
        claims=(
            Claim(
                "one nested model is above the separate ones at every length",
                lambda cells: all(cells[MULTIBIT, c] > cells[SEPARATE, c] for c in cells.columns),
                about=lambda column: isinstance(column, AtLength),
            ),
        ),
        note="Times on this machine, in a batch; query ms is coding and ranking at {bits} bits, 100 hits.",
        of_lengths=True,
    ),
    Entry(
        "cross-length-agreement",
        "Cross-length ranking agreement, tau-b",
        "tab:cross-length-agreement-complete",
        ranking.cross_length_agreement,
        claims=(Claim("MultiBit agrees most with itself", largest(MULTIBIT)),),
        of_lengths=True,
    ),
    Entry(
        "rank-displacement",
        "Rank displacement, five queries and 500 candidates",
        "tab:rank-displacement-sample",
        ranking.sampled_displacement,
        claims=(
            Claim(
                "MultiBit moves candidates less than Naive Prefix",
                lambda cells: cells[MULTIBIT, ranking.DISPLACEMENT] < cells[NAIVE_PREFIX, ranking.DISPLACEMENT],
            ),
        ),
        of_lengths=True,
    ),
    Entry(
        "efficiency",
        "Efficiency",
        "tab:performance-efficiency-raw",
        accuracy.efficiency,
        note="Times on this machine, in a batch.",
        of_lengths=True,
    ),
)

TABLES: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
"""Name -> table, in the order of measuring: labels only first."""
