"""The paper's multi-panel tables and figures, made from finished reproductions of several datasets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from multibit import __version__
from multibit.config import PRESETS, Config
from multibit.errors import ConfigError, DataError, FormatError, shown
from multibit.files import read_json
from multibit.folders import subfolder
from multibit.paper.accuracy_cells import P_VALUE
from multibit.paper.cells import FLOAT, Cells
from multibit.paper.figures import FIGURES, PaperFigure
from multibit.paper.outcome import DATASETS, Entry, Outcome
from multibit.paper.reproduce import (
    FIGURE_KIND,
    FIGURE_VERSION,
    KIND,
    SUMMARY,
    VERSION,
    MadeTable,
    Style,
    Summary,
    numbers_of,
    save_figure,
)
from multibit.paper.tables import TABLES
from multibit.paths import replacing
from multibit.report.page import missing_for_figures
from multibit.table import Cell, Mark, Number, Table, mark_columns, write_table

PAGE = "joined"
Part = Literal["dataset", "row", "quantity", "bits", "column"]
"""What names a cell: dataset, row, column; and quantity and code length, into which a column can be divided."""


@dataclass(frozen=True)
class Layout:
    """How a table of several datasets is arranged in the paper.

    Attributes:
        down: parts that name a line, outermost first. across: parts that name a column, outermost first.
        compared: whose values compete for bold and underline: the rows of one column and dataset, those of one
            direction among them, all cells of a dataset, or none.
    """

    down: tuple[Part, ...] = ("dataset", "row")
    across: tuple[Part, ...] = ("column",)
    compared: Literal["rows", "directions", "grid", "none"] = "rows"


WIDE: tuple[Part, ...] = ("dataset", "bits")
LAYOUTS: dict[str, Layout] = {
    "parameters": Layout(("row",), ("dataset",), "none"),
    "data-split": Layout(("dataset",), ("column",), "none"),
    "scale-coverage": Layout(compared="none"),
    "quadrature-fidelity": Layout(("dataset",), ("column", "row"), "none"),
    "teacher-quality": Layout(("column", "row"), ("dataset",)),
    "teacher-aligned": Layout(("dataset",), ("row", "column")),
    "main-comparison": Layout(("row",), WIDE, "directions"),
    "component-ablation": Layout(("row",), WIDE),
    "teacher-transfer": Layout(("row",), WIDE),
    "query-gain": Layout(("row", "dataset"), ("column",), "none"),
    "resolution-idf": Layout(across=("bits", "quantity")),
    "resolution-label-names": Layout(across=("bits", "quantity")),
    "evaluator-agreement": Layout(("dataset",), ("column",), "none"),
    "resolution-strata": Layout(compared="none"),
    "scale-boundary": Layout(compared="none"),
    "quantization": Layout(across=("quantity", "bits"), compared="none"),
    "tie-ceiling": Layout(compared="none"),
    "order-preservation": Layout(across=("quantity", "bits"), compared="none"),
    "sensitivity": Layout(compared="grid"),
    "multi-length-cost": Layout(),
    "cross-length-agreement": Layout(),
    "rank-displacement": Layout(),
    "efficiency": Layout(compared="none"),
}
"""Name of the table -> its arrangement; a table that is not here does not depend on the dataset."""


@dataclass(frozen=True)
class Made:
    """One measured cell of a finished reproduction.

    Attributes:
        names: what names it. got: one value per seed. paper: printed value, NaN where the paper has none.
        form: Python format. larger_is_better: how to compare two values.
    """

    names: Mapping[Part, str]
    got: tuple[float, ...]
    paper: float
    form: str
    larger_is_better: bool

    @property
    def mean(self) -> float:
        """Over the seeds; NaN where one of them is undefined."""
        return float(np.mean(self.got))

    def number(self) -> Number:
        """Measured value, with the deviation over the seeds, and the paper's in parentheses."""
        paper = "" if math.isnan(self.paper) else f" ({self.paper:{self.form}})"
        spread = float(np.std(self.got, ddof=1)) if len(set(self.got)) > 1 else None
        return Number(self.mean, self.form, paper, spread)


@dataclass(frozen=True)
class Finished:
    """A reproduction that was read from its folder.

    Attributes:
        folder: of the reproduction. title: printed name of the dataset.
        facts: what was measured with, human-readable.
        cells: name of the table -> its cells. claims: name of the table -> claim -> verdict in words.
        notes: name of the table -> what else to know about this dataset. bits: name of the table -> the length that a
            table of one length shows.
    """

    folder: Path
    title: str
    facts: str
    cells: Mapping[str, Sequence[Made]]
    claims: Mapping[str, Mapping[str, str]]
    notes: Mapping[str, str]
    bits: Mapping[str, int]


@dataclass(frozen=True)
class PanelTable(Table):
    """A table whose header has a line of groups, and whose lines are in blocks.

    Attributes:
        groups: title and number of columns of each group, in order; empty for a plain header.
        under: heading of each column below its group. blocks: number of lines of each block.
        leading: number of columns that name a line.
    """

    groups: tuple[tuple[str, int], ...] = ()
    under: tuple[str, ...] = ()
    blocks: tuple[int, ...] = field(default=())
    leading: int = 1

    def latex(self) -> str:
        """A booktabs table: groups over their columns, a rule between blocks."""
        lines = super().latex().split("\n")
        top = lines.index(r"\toprule")
        if self.groups:
            lines[top + 1 : top + 2] = self._grouped_header(lines[top + 1])
        start = lines.index(r"\midrule") + 1
        for lines_above in np.cumsum(self.blocks)[:-1][::-1]:
            lines.insert(start + int(lines_above), r"\midrule")
        return "\n".join(lines)

    def _grouped_header(self, plain: str) -> list[str]:
        """The two header lines, and the rules between them; `plain` has the headings of the leading columns."""
        leading = plain.removesuffix(r" \\").split(" & ")[: self.leading]
        titles = [_latex_header((title,)).removesuffix(r" \\") for title, _ in self.groups]
        spans, rules, column = [], [], self.leading + 1
        for title, (_, width) in zip(titles, self.groups, strict=True):
            spans.append(rf"\multicolumn{{{width}}}{{c}}{{{title}}}")
            rules.append(rf"\cmidrule(lr){{{column}-{column + width - 1}}}")
            column += width
        return [
            " & ".join([*leading, *spans]) + r" \\",
            " ".join(rules),
            _latex_header((*[""] * self.leading, *self.under)),
        ]


def _latex_header(headings: Sequence[str]) -> str:
    """The header line of a table, escaped."""
    lines = Table("", tuple(headings), ()).latex().split("\n")
    return lines[lines.index(r"\toprule") + 1]


def join(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write the paper's tables of several datasets, each in its own layout, with the paper's values next to them.

    Args:
        folders: finished reproductions (`reproduce_all`), one for each dataset. out: folder of the tables, as markdown,
            CSV and LaTeX; of all tables on one page, as markdown and, if the extra "report" is installed, as HTML;
            and of the figures that show several datasets.

    Returns:
        The written files.

    Raises:
        ConfigError: no folder. DataError: two folders of the same dataset, or `out` is a reproduction itself.
            FormatError: a folder without a readable summary.
    """
    if not folders:
        raise ConfigError("need one or more folders of finished reproductions, got none.", option="join")
    if (out / SUMMARY).exists():
        raise DataError("is a reproduction itself.", file=out, option="out", hint="Choose another `out`.")
    finished = [_read(Path(folder)) for folder in folders]
    titles = [each.title for each in finished]
    if repeated := next((title for title in titles if titles.count(title) > 1), None):
        raise DataError(f"two folders are of {repeated}.", option="join", hint="Give one folder for each dataset.")
    tables = joined_tables(finished)
    written = [path for name, table in tables.items() for path in write_table(table, subfolder(out, "tables") / name)]
    parts = ["# The paper's tables, measured here", *(f"{each.title}: {each.facts}" for each in finished)]
    page = "\n\n".join([*parts, *(table.markdown() for table in tables.values())]) + "\n"
    written.append(_write(out / f"{PAGE}.md", page.encode()))
    if missing_for_figures() is None:
        written.append(_write(out / f"{PAGE}.html", _html(finished, tables).encode()))
        written += _draw(finished, out)
    return written


def joined_tables(finished: Sequence[Finished]) -> dict[str, Table]:
    """The tables that one of the reproductions has, in the paper's layouts, and one of the claims."""
    tables: dict[str, Table] = {}
    for name, entry in TABLES.items():
        cells = [cell for each in finished for cell in each.cells.get(name, ())]
        if name in LAYOUTS and cells:
            tables[name] = _arrange(entry, LAYOUTS[name], cells, finished)
        elif cells:
            tables[name] = Outcome(entry, Cells()).table()
    return {**tables, "claims": _claims_table(finished)}


def _arrange(entry: Entry, layout: Layout, cells: Sequence[Made], finished: Sequence[Finished]) -> PanelTable:
    """The cells of all datasets by the layout of the table."""
    bits = " or ".join(map(str, dict.fromkeys(each.bits[entry.name] for each in finished if entry.name in each.bits)))
    notes = [f"{each.title}: {each.notes[entry.name]}" for each in finished if each.notes.get(entry.name)]
    lines = _in_order(tuple(cell.names[part] for part in layout.down) for cell in cells)
    columns = _in_order(tuple(cell.names[part] for part in layout.across) for cell in cells)
    by_place = {_place(cell, layout): cell for cell in cells}
    marks = {place: mark for cell, mark in _marks(cells, layout) for place in [_place(cell, layout)]}
    leading = len(layout.down)
    rows: list[tuple[Cell, ...]] = []
    for i, line in enumerate(lines):
        repeats = i > 0 and leading > 1 and lines[i - 1][0] == line[0]
        names = ("", *line[1:]) if repeats else line
        found = [by_place.get((line, column)) for column in columns]
        rows.append((*names, *("-" if cell is None else cell.number() for cell in found)))
    return PanelTable(
        entry.title.format(bits=bits),
        (*[""] * leading, *(" ".join(part for part in column if part) for column in columns)),
        tuple(rows),
        " ".join([entry.note.format(bits=bits), "In parentheses: the paper.", *notes]).strip(),
        {
            (i, leading + j): marks[line, column]
            for i, line in enumerate(lines)
            for j, column in enumerate(columns)
            if (line, column) in marks
        },
        tuple((title, len(list(group))) for title, group in groupby(columns, key=lambda column: column[0]))
        if len(layout.across) > 1
        else (),
        tuple(column[-1] for column in columns) if len(layout.across) > 1 else (),
        tuple(len(list(group)) for _, group in groupby(lines, key=lambda line: line[0])) if leading > 1 else (),
        leading,
    )


def _place(cell: Made, layout: Layout) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(cell.names[part] for part in layout.down), tuple(cell.names[part] for part in layout.across)


def _in_order(names: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Without repetition, such that names with the same beginning are together."""
    found = list(dict.fromkeys(names))
    first = list(dict.fromkeys(name[0] for name in found))
    return sorted(found, key=lambda name: first.index(name[0]))


def _marks(cells: Sequence[Made], layout: Layout) -> list[tuple[Made, Mark]]:
    """The best and the second of the values that compete."""
    if layout.compared == "none":
        return []

    def rivals(cell: Made) -> tuple[str, ...]:
        direction = cell.names["row"].rpartition(", ")[2] if layout.compared == "directions" else ""
        column = "" if layout.compared == "grid" else cell.names["column"]
        return cell.names["dataset"], column, direction

    found: list[tuple[Made, Mark]] = []
    competing = [cell for cell in cells if not cell.names["row"].startswith(FLOAT)]
    for _, group in groupby(sorted(competing, key=rivals), key=rivals):
        rows = list(group)
        if len(rows) > 1:
            marks = mark_columns([[cell.mean] for cell in rows], larger_is_better=rows[0].larger_is_better)
            found += [(rows[i], mark) for (i, _), mark in marks.items()]
    return found


def _claims_table(finished: Sequence[Finished]) -> Table:
    """The claims of the paper and whether each dataset shows them."""
    rows = []
    for name, entry in TABLES.items():
        for claim in dict.fromkeys(claim.text for claim in entry.claims):
            verdicts = [each.claims.get(name, {}).get(claim, "-") for each in finished]
            if set(verdicts) != {"-"}:
                rows.append((name, claim, *verdicts))
    note = "yes: shown by the cells measured here; NO: not shown; with what was measured. -: not measured."
    return Table("Claims of the paper", ("table", "claim", *(each.title for each in finished)), tuple(rows), note)


def _draw(finished: Sequence[Finished], out: Path) -> list[Path]:
    """The figures that show several datasets, of those that have them."""
    written = []
    for figure in (each for each in FIGURES.values() if each.joined):
        kept = {each.title: numbers_of(each.folder / "figures", figure) for each in finished}
        measured = {title: _read_numbers(path, figure) for title, path in kept.items() if path.exists()}
        if measured:
            written += save_figure(figure.draw(measured), subfolder(out, "figures") / figure.name)
    return written


def _read_numbers(path: Path, figure: PaperFigure) -> dict[str, Any]:
    """The numbers of a figure, drawn alone first, so that an error names the file."""
    numbers = read_json(path, kind=FIGURE_KIND, version=FIGURE_VERSION)
    try:
        figure.draw({"": numbers})
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"invalid content ({type(error).__name__}).", file=path, hint="Make it again.") from None
    return numbers


def _html(finished: Sequence[Finished], tables: Mapping[str, Table]) -> str:
    import jinja2

    text = files("multibit.paper").joinpath("joined.html.jinja").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, finalize=shown, trim_blocks=True, lstrip_blocks=True).from_string(
        text
    )
    return template.render(version=__version__, finished=finished, tables=tables)


def _write(path: Path, content: bytes) -> Path:
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return path


# Reading


def _read(folder: Path) -> Finished:
    path = folder / SUMMARY
    content = read_json(path, kind=KIND, version=VERSION, form=Summary, hint="Make it again.")
    title = DATASETS.get(content.column or "", folder.resolve().name)
    return Finished(
        folder,
        title,
        _facts(content),
        {name: _cells_of(title, table) for name, table in content.tables.items()},
        {name: _verdicts_of(table) for name, table in content.tables.items()},
        {name: table.note for name, table in content.tables.items()},
        {name: table.bits for name, table in content.tables.items()},
    )


def _cells_of(title: str, table: MadeTable) -> list[Made]:
    found = []
    for cell in table.cells:
        got = tuple(math.nan if value is None else value for value in cell.got)
        paper = math.nan if cell.paper is None else cell.paper
        quantity, _, bits = cell.column.rpartition(" ")
        if quantity == P_VALUE.name:
            continue
        names: dict[Part, str] = {
            "dataset": title, "row": cell.row, "column": cell.column,
            "quantity": quantity or cell.column, "bits": bits,
        }  # fmt: skip
        style = table.columns.get(cell.column, Style())  # earlier versions did not write how a column is printed
        found.append(Made(names, got, paper, style.form, style.larger_is_better))
    return found


def _verdicts_of(table: MadeTable) -> dict[str, str]:
    words = {True: "yes", False: "NO", None: "-"}
    return {
        claim: words[verdict] + (f" ({table.found[claim]})" if claim in table.found else "")
        for claim, verdict in table.claims.items()
    }


def _facts(content: Summary) -> str:
    """Seeds, and the settings that are not those of the paper."""
    paper = PRESETS.get(content.column or "default", Config()).to_dict()
    changed = [f"{name} {value}" for name, value in content.config.items() if paper.get(name, value) != value]
    seeds = ", ".join(map(str, content.seeds))
    return f"seeds {seeds}; " + (
        f"settings other than the paper's: {', '.join(changed)}." if changed else "settings of the paper."
    )
