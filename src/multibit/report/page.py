"""Tables and figures as a folder, and HTML pages that open without a network."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multibit import __version__
from multibit.data.checking import Check
from multibit.errors import FormatError, MissingExtraError, counted, shown
from multibit.evaluation import storage
from multibit.evaluation.assessment import Assessment
from multibit.evaluation.comparison import Comparison
from multibit.files import read_json
from multibit.folders import renewing
from multibit.paths import replacing
from multibit.records import is_run
from multibit.report.examples import Example, thumbnail, unreadable
from multibit.report.glossary import TERMS, term_of, term_of_row
from multibit.report.headline import findings, sentence
from multibit.report.study import Study
from multibit.report.study_figures import FIGURES, draw_study, figures_of
from multibit.report.study_tables import TABLE_FILES, study_tables
from multibit.report.svg import as_svg, svg_width
from multibit.table import Table, write_table

if TYPE_CHECKING:
    from multibit.data import PairedDataset

PAGE = "report.html"
FOLDERS = ("tables", "figures")
DPI = 150
SHOWN_GROUPS, SHOWN_IMAGES = 50, 8  # near-duplicates on the page of a check
OWN = (
    PAGE,
    *(f"tables/{name}.{ending}" for name in TABLE_FILES for ending in ("md", "csv", "tex")),
    *(f"figures/{figure.name}.{ending}" for figure in FIGURES for ending in ("svg", "pdf", "png")),
)
"""Patterns of all files that a report can have or had in earlier versions, to remove those of an earlier report."""


def missing_for_figures() -> MissingExtraError | None:
    """What has to be installed to draw figures and pages; None if nothing is missing."""
    for module in ("matplotlib", "jinja2"):
        if importlib.util.find_spec(module) is None:
            return MissingExtraError(module, extra="report", need="A report with figures")
    return None


def write_report(
    runs: Sequence[Assessment],
    folder: Path,
    *,
    comparisons: Sequence[Comparison] = (),
    examples: Sequence[Example] = (),
    pdf: bool = False,
    keep: Iterable[Path] = (),
) -> list[Path]:
    """Write the tables of the first run compared with the others, and its figures and page if the extra is installed.

    Args:
        runs: assessed on the same split, the reported run first.
        folder: an earlier report there is replaced, in one step; other files are left alone.
        comparisons: of the mAP of the runs, one per protocol, if they were made before.
        examples: searches of the first run. pdf: also write the figures as PDF, for LaTeX.
        keep: files there that stay though an earlier report may have written them: the evaluation of this run.

    Returns:
        The files, the page first if there is one.

    Raises:
        MismatchError: the runs were evaluated on different queries, databases, lengths or data.
    """
    study = Study.of(runs, comparisons)
    tables = study_tables(study)
    figures = {} if missing_for_figures() else _draw(study, pdf)
    kept = {path.resolve() for path in keep}
    earlier = [path.name for path in _earlier_evaluation(folder) if path.resolve() not in kept]
    with renewing(folder, own=(*OWN, *earlier)) as fresh:  # on a full disk the earlier report stays
        written = [path for name, table in tables.items() for path in write_table(table, fresh / "tables" / name)]
        for name, content in figures.items():
            written.append(_write(fresh / "figures" / name, content))
        if figures:
            page = _report_page(study, tables, figures, examples)
            written.insert(0, _write(fresh / PAGE, page.encode()))
    return [folder / path.relative_to(fresh) for path in written]


def write_check_page(check: Check, name: str, path: Path, data: PairedDataset | None = None) -> None:
    """Write the findings about a dataset as one HTML page, near-duplicate images side by side.

    Args:
        check: the findings. name: of the dataset. path: of the page. data: the dataset, for its images.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    unreadable_images = Table("Images that cannot be read", ("id", "reason"), tuple(check.unreadable))
    tables = [*check.tables, *([unreadable_images] if unreadable_images.rows else [])]
    groups = _look_alikes(check, data) if data is not None else []
    about = f"{counted(len(check.groups), 'group', 'groups')} of images whose hashes are nearly equal"
    if len(groups) < len(check.groups) or any(len(group) > SHOWN_IMAGES for group in check.groups):
        about += f"; the first {SHOWN_GROUPS} groups and {SHOWN_IMAGES} images of each are shown"
    content = render_page(
        "groups", title=f"multibit check: {name}", heading_text=name, tables=tables, groups=groups,
        about_groups=f"{about}. --groups writes all of them for training.",
    )  # fmt: skip
    _write(path, content.encode())


def _look_alikes(check: Check, data: PairedDataset) -> list[dict[str, Any]]:
    """The images of the groups of near-duplicates, as small copies."""
    shown = [group[:SHOWN_IMAGES] for group in check.groups[:SHOWN_GROUPS]]
    wanted = {name for group in shown for name in group}
    paths = {name: path for name, path in zip(data.ids, data.images, strict=True) if name in wanted and path}
    return [
        {
            "title": "",
            "items": [
                {"id": name, "image": thumbnail(paths[name]) if name in paths else "", "lines": []} for name in each
            ],
        }
        for each in shown
    ]


def _draw(study: Study, pdf: bool) -> dict[str, bytes]:
    """The content of each figure file, by name."""
    drawn = {}
    for name, figure in draw_study(study).items():
        drawn[f"{name}.svg"] = as_svg(figure, name)
        if pdf:
            buffer = io.BytesIO()
            figure.savefig(buffer, format="pdf", metadata={"CreationDate": None})
            drawn[f"{name}.pdf"] = buffer.getvalue()
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


def _report_page(
    study: Study, tables: Mapping[str, Table], figures: Mapping[str, bytes], examples: Sequence[Example]
) -> str:
    first, evaluation = study.first, study.first.evaluations[0]
    queries = counted(evaluation.queries, "query", "queries")
    return render_page(
        "report",
        title=f"multibit: {first.name}",
        heading_text=first.name,
        sizes=f"{queries}, {counted(evaluation.database, 'item', 'items')} in the database",
        others=[run.name for run in study.runs[1:]],
        sentence=sentence(study),
        findings=findings(study),
        lengths=first.lengths,
        labelled=study.labelled,
        warnings=first.warnings,
        facts=first.facts,
        tables=tables,
        examples=examples,
        missing_images=unreadable(examples),
        figures=[
            {
                "name": each.name,
                "title": each.title,
                "caption": each.caption(study),
                "width": svg_width(figures[f"{each.name}.svg"]),
                "source": f"data:image/svg+xml;base64,{base64.b64encode(figures[f'{each.name}.svg']).decode()}",
            }
            for each in figures_of(study)
            if f"{each.name}.svg" in figures
        ],
        glossary=TERMS,
    )


def render_page(name: str, **content: Any) -> str:
    """An HTML page as text; every value is escaped, and only the page's own script may run.

    Args:
        name: of its template. content: what the template shows.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:
        raise MissingExtraError("jinja2", extra="report", need="An HTML page") from None
    folder = files("multibit.report").joinpath("templates")
    texts = {each.name: each.read_text(encoding="utf-8") for each in folder.iterdir() if each.is_file()}
    own = {"style": texts["page.css"], "script": texts["page.js"]}
    environment = jinja2.Environment(
        autoescape=True, finalize=shown, loader=jinja2.DictLoader(texts), undefined=jinja2.StrictUndefined
    )
    page: str = environment.get_template(f"{name}.html.jinja").render(
        version=__version__,
        term_of=term_of,
        term_of_row=term_of_row,
        hashes={part: f"sha256-{_sha256(text)}" for part, text in own.items()},
        **{part: Markup(text) for part, text in own.items()},  # files of this package
        **{"glossary": (), **content},
    )
    return page.strip() + "\n"


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
