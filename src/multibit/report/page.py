"""Tables and figures as a folder, and HTML pages that open without a network."""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from multibit import __version__
from multibit.data.checking import Check
from multibit.errors import FormatError, MissingExtraError, shown
from multibit.evaluation import storage
from multibit.evaluation.assessment import Assessment
from multibit.evaluation.comparison import Comparison
from multibit.files import read_json, replacing
from multibit.folders import renewing
from multibit.report.figures import FIGURES, report_figures
from multibit.report.study import Study
from multibit.report.study_tables import TABLE_FILES, study_tables
from multibit.runs import is_run
from multibit.table import Table, write_table

PAGE = "report.html"
FOLDERS = ("tables", "figures")
DPI = 150
CAPTIONS = {figure.name: figure.caption for figure in FIGURES}
OWN = (
    PAGE,
    *(f"tables/{name}.{ending}" for name in TABLE_FILES for ending in ("md", "csv", "tex")),
    *(f"figures/{name}.{ending}" for name in CAPTIONS for ending in ("png", "pdf")),
)
"""Patterns of all files that a report can have, to remove those of an earlier report."""


def missing_for_figures() -> MissingExtraError | None:
    """What has to be installed to draw figures and pages; None if nothing is missing."""
    for module in ("matplotlib", "jinja2"):
        if importlib.util.find_spec(module) is None:
            return MissingExtraError(module, extra="report", need="A report with figures")
    return None


def write_report(
    runs: Sequence[Assessment], folder: Path, *, comparisons: Sequence[Comparison] = (), keep: Iterable[Path] = ()
) -> list[Path]:
    """Write the tables of the first run compared with the others, and its figures and page if the extra is installed.

    Args:
        runs: assessed on the same split, the reported run first.
        folder: an earlier report there is replaced, in one step; other files are left alone.
        comparisons: of the mAP of the runs, one per protocol, if they were made before.
        keep: files there that stay though an earlier report may have written them: the evaluation of this run.

    Returns:
        The files, the page first if there is one.

    Raises:
        MismatchError: the runs were evaluated on different queries, databases, lengths or data.
    """
    study = Study.of(runs, comparisons)
    tables = study_tables(study)
    figures = {} if missing_for_figures() else _draw(study)
    kept = {path.resolve() for path in keep}
    earlier = [path.name for path in _earlier_evaluation(folder) if path.resolve() not in kept]
    with renewing(folder, own=(*OWN, *earlier)) as fresh:  # on a full disk the earlier report stays
        written = [path for name, table in tables.items() for path in write_table(table, fresh / "tables" / name)]
        for name, content in figures.items():
            written.append(_write(fresh / "figures" / name, content))
        if figures:
            page = _report_page(study, tables, {name: figures[name] for name in figures if name.endswith(".png")})
            written.insert(0, _write(fresh / PAGE, page.encode()))
    return [folder / path.relative_to(fresh) for path in written]


def write_check_page(check: Check, name: str, path: Path) -> None:
    """Write the findings about a dataset as one HTML page.

    Args:
        check: the findings. name: of the dataset. path: of the page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    unreadable = Table("Images that cannot be read", ("id", "reason"), tuple(check.unreadable))
    tables = [*check.tables, *([unreadable] if unreadable.rows else [])]
    _write(path, _render(title=f"multibit check: {name}", heading=name, tables=tables).encode())


def _draw(study: Study) -> dict[str, bytes]:
    """The content of each figure file, by name."""
    drawn = {}
    for name, figure in report_figures(study).items():
        for ending in ("png", "pdf"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=ending, dpi=DPI, metadata={"CreationDate": None} if ending == "pdf" else None)
            drawn[f"{name}.{ending}"] = buffer.getvalue()
            figure.set_layout_engine("none")  # the layout stays: it takes as long as the drawing
    return drawn


def _write(path: Path, content: bytes) -> Path:
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return path


def _earlier_evaluation(folder: Path) -> list[Path]:
    """The evaluation that earlier versions wrote into the folder of a report."""
    evaluation = [folder / "evaluation.json", folder / "evaluation.parquet"]
    own = any(path.exists() for name in OWN for path in folder.glob(name)) and not is_run(folder)
    return evaluation if own and all(map(Path.is_file, evaluation)) and _is_evaluation(evaluation[0]) else []


def _is_evaluation(path: Path) -> bool:
    try:
        read_json(path, kind=storage.KIND, version=storage.VERSION)
    except FormatError:
        return False
    return True


def _report_page(study: Study, tables: Mapping[str, Table], images: Mapping[str, bytes]) -> str:
    return _render(
        title=f"multibit: {study.first.name}",
        heading=study.first.name,
        others=[run.name for run in study.runs[1:]],
        warnings=study.first.warnings,
        facts=study.first.facts,
        tables=list(tables.values()),
        images=[
            {
                "caption": CAPTIONS[name.removesuffix(".png")],
                "width": int.from_bytes(content[16:20]) * 96 // DPI,  # the width in the PNG header
                "content": base64.b64encode(content).decode(),
            }
            for name, content in images.items()
        ],
    )


def _render(**content: Any) -> str:
    """The page of a report or of a check; every value is escaped."""
    try:
        import jinja2
    except ImportError:
        raise MissingExtraError("jinja2", extra="report", need="An HTML page") from None
    text = files("multibit.report").joinpath("page.html.jinja").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, finalize=shown).from_string(text)
    return template.render(version=__version__, **content)
