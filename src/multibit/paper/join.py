"""The paper's multi-panel tables and figures, made from finished reproductions of several datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from multibit import __version__
from multibit.errors import ConfigError, DataError, FormatError, shown
from multibit.files import read_json
from multibit.folders import subfolder
from multibit.paper.cells import FLOAT, Cells
from multibit.paper.figures import FIGURES, PaperFigure
from multibit.paper.finished import Finished, Made, read_finished
from multibit.paper.layouts import LAYOUTS, Layout
from multibit.paper.outcome import Entry, Outcome
from multibit.paper.panels import PanelTable
from multibit.paper.reproduce import (
    FIGURE_KIND,
    FIGURE_VERSION,
    SUMMARY,
    numbers_of,
    save_figure,
)
from multibit.paper.tables import TABLES
from multibit.paths import replacing
from multibit.report.page import missing_for_figures
from multibit.table import Cell, Mark, Table, mark_columns, write_table

PAGE = "joined"


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
    finished = [read_finished(Path(folder)) for folder in folders]
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
