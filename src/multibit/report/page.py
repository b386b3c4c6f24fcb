"""Tables and figures -> a folder, and one HTML page that opens without a network."""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path

from multibit import __version__
from multibit.errors import MissingExtraError
from multibit.files import replacing, require_writable
from multibit.report import values
from multibit.report.assessment import Assessment
from multibit.report.study import report_tables
from multibit.report.tables import Table, write_table

PAGE = "report.html"
VALUES = "evaluation.json"
DPI = 150
TABLES = (
    "accuracy-[0-9]",
    "comparison-[0-9]",
    "resolution-[0-9]",
    "agreement",
    "quantization",
    "strata",
    "bits",
    "cost",
)
CAPTIONS = {
    "map-by-length": "mAP by code length",
    "precision-recall": "Precision and recall within each Hamming radius",
    "precision-at-n": "Precision of the first N ranks",
    "rank-displacement": "Change of rank with the code length",
    "distances-by-shared-labels": "Distances by number of shared labels",
    "label-graph": "Label graph and diffusion scales",
    "bit-balance": "Balance of the bits in the database",
    "bit-budget": "Bits of each scale",
    "accuracy-and-cost": "Accuracy against storage and search time",
    "ap-differences": "Differences of average precision, query by query",
}
"""Every figure that a report can have: name of the file -> what it shows."""
OWN = (
    PAGE,
    *(f"tables/{name}.{ending}" for name in TABLES for ending in ("md", "csv", "tex")),
    *(f"figures/{name}.{ending}" for name in CAPTIONS for ending in ("png", "pdf")),
)
"""Names of all files that some report has: what an earlier report left is removed by them."""

TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>multibit: {{ name }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #1f2328; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: .88rem; } .wide { overflow-x: auto; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #d0d7de; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.best { font-weight: 700; } .second { text-decoration: underline; } .note { color: #59636e; font-size: .85rem; }
.warning { border-left: 4px solid #bc4c00; padding: .3rem .8rem; background: #fff8f2; }
figure { margin: 1.4rem 0; } figcaption { font-weight: 600; } img { max-width: 100%; height: auto; }
nav a { margin-right: .8rem; }
</style></head><body>
<h1>{{ name }}</h1>
<p class="note">multibit {{ version }}{% if others %}; beside {{ others | join(", ") }}{% endif %}</p>
{% for warning in warnings %}<p class="warning">{{ warning }}</p>{% endfor %}
<nav><a href="#run">Run</a><a href="#tables">Tables</a><a href="#figures">Figures</a></nav>
<h2 id="run">Run</h2>
<table>{% for key, value in facts.items() %}<tr><th>{{ key }}</th><td>{{ value }}</td></tr>{% endfor %}</table>
<div id="tables">{% for table in tables %}
<h2>{{ table.title }}</h2>
<div class="wide"><table>
<tr>{% for heading in table.header -%}
<th class="{{ 'n' if table.numeric[loop.index0] }}">{{ heading }}</th>
{%- endfor %}</tr>
{% for row in table.rows %}<tr>{% set i = loop.index0 %}{% for cell in row -%}
<td class="{{ 'n' if table.numeric[loop.index0] }} {{ table.marks.get((i, loop.index0), '') }}">{{ cell }}</td>
{%- endfor %}</tr>
{% endfor %}</table></div>
<p class="note">{{ table.note }}</p>{% endfor %}</div>
<h2 id="figures">Figures</h2>
{% for picture in pictures -%}
<figure><figcaption>{{ picture.title }}</figcaption>
<img alt="{{ picture.title }}" width="{{ picture.width }}" src="data:image/png;base64,{{ picture.content }}"></figure>
{% endfor %}</body></html>
"""


def undrawn() -> str:
    """Why this machine can draw neither figures nor the page: a sentence, empty where it can."""
    if any(importlib.util.find_spec(name) is None for name in ("matplotlib", "jinja2")):
        return str(MissingExtraError("matplotlib or jinja2", extra="report", need="a report with figures"))
    return ""


def check_target(folder: Path) -> None:
    """Refuse a folder of `write_report` before the work, not after it.

    Raises:
        DataError: it cannot be written. FormatError: its evaluation.json is there and is none.
    """
    for each in (folder, folder / "tables", folder / "figures"):
        require_writable(each, folder=True)
    require_writable(folder / PAGE)
    values.check_target(folder / VALUES)


def write_report(runs: Sequence[Assessment], folder: Path) -> list[Path]:
    """Write values and tables of the first run beside the others, and where this machine can draw, figures and page.

    Args:
        runs: assessed on the same split, the reported one first.
        folder: a report that is there is replaced; files that are no report's are left alone.

    Returns:
        The files, the page first if there is one.

    Raises:
        MismatchError: the runs measured different things.
    """
    tables = report_tables(runs)
    figures = {} if undrawn() else _draw(runs)
    written = values.save_evaluations(folder / VALUES, runs[0].evaluations)
    for name, table in tables.items():
        written += write_table(table, folder / "tables" / name)
    for name, content in figures.items():
        written.append(_write(folder / "figures" / name, content))
    if figures:
        page = _render(runs, tables, {name: content for name, content in figures.items() if name.endswith(".png")})
        written.insert(0, _write(folder / PAGE, page.encode()))
    for name in OWN:
        for path in folder.glob(name):
            if path not in written:
                path.unlink()
    return written


def _draw(runs: Sequence[Assessment]) -> dict[str, bytes]:
    """The content of each figure file, by name."""
    from multibit.report.figures import report_figures

    files = {}
    for name, figure in report_figures(runs).items():
        for ending in ("png", "pdf"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=ending, dpi=DPI, metadata={"CreationDate": None} if ending == "pdf" else None)
            files[f"{name}.{ending}"] = buffer.getvalue()
    return files


def _write(path: Path, content: bytes) -> Path:
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return path


def _render(runs: Sequence[Assessment], tables: dict[str, Table], pictures: dict[str, bytes]) -> str:
    import jinja2

    template = jinja2.Environment(autoescape=True).from_string(TEMPLATE)
    return template.render(
        name=runs[0].name,
        version=__version__,
        others=[run.name for run in runs[1:]],
        warnings=runs[0].warnings,
        facts=runs[0].run,
        tables=tables.values(),
        pictures=[
            {
                "title": CAPTIONS[name.removesuffix(".png")],
                "width": int.from_bytes(content[16:20]) * 96 // DPI,  # a PNG says its width there
                "content": base64.b64encode(content).decode(),
            }
            for name, content in pictures.items()
        ],
    )
