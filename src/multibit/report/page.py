"""Tables and figures -> a folder, and one HTML page that opens without a network."""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from multibit import __version__
from multibit.errors import MissingExtraError
from multibit.files import replacing, write_json
from multibit.report.assessment import Assessment
from multibit.report.study import report_tables
from multibit.report.tables import Table

PAGE = """<!doctype html>
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
img { max-width: 100%; height: auto; margin: .6rem 0; } nav a { margin-right: .8rem; }
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
{% for title, picture in pictures.items() %}<img alt="{{ title }}" src="data:image/png;base64,{{ picture }}">
{% endfor %}</body></html>
"""


def require_drawing() -> None:
    """Refuse to begin a report that cannot be drawn.

    Raises:
        MissingExtraError: matplotlib or jinja2 is not installed.
    """
    if any(importlib.util.find_spec(name) is None for name in ("matplotlib", "jinja2")):
        raise MissingExtraError("matplotlib or jinja2", extra="report", need="a report with figures")


def write_report(runs: Sequence[Assessment], folder: Path) -> list[Path]:
    """Write everything about the first run, beside the others: values, tables, figures, page.

    Args:
        runs: assessed on the same split, the reported one first. folder: files in it are replaced.

    Returns:
        The files, the page first.

    Raises:
        MissingExtraError: matplotlib or jinja2 is not installed.
    """
    require_drawing()
    tables = report_tables(runs)
    written = write_values(runs[0], tables, folder)
    from multibit.report.figures import report_figures

    pictures = {}
    for name, figure in report_figures(runs).items():
        for ending in ("png", "pdf"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=ending, dpi=150, metadata={"CreationDate": None} if ending == "pdf" else None)
            written.append(_write(folder / "figures" / f"{name}.{ending}", buffer.getvalue()))
            if ending == "png":
                pictures[name.replace("-", " ")] = base64.b64encode(buffer.getvalue()).decode()
    page = _write(folder / "report.html", _render(runs, tables, pictures).encode())
    return [page, *written]


def write_values(run: Assessment, tables: dict[str, Table], folder: Path) -> list[Path]:
    """Write the per-query values (Parquet), all means (JSON), and the tables (markdown, CSV, LaTeX)."""
    written = [_write_parquet(run, folder / "per-query.parquet")]
    content = {"run": run.run, "evaluations": [evaluation.to_dict() for evaluation in run.evaluations]}
    write_json(folder / "evaluation.json", content, kind="evaluation", version=1)
    written.append(folder / "evaluation.json")
    for name, table in tables.items():
        for ending, text in {"md": table.markdown(), "csv": table.csv(), "tex": table.latex()}.items():
            written.append(_write(folder / "tables" / f"{name}.{ending}", text.encode()))
    return written


def _write_parquet(run: Assessment, path: Path) -> Path:
    """One row per protocol, metric, direction, length and query."""
    columns: dict[str, list[Any]] = {name: [] for name in ("protocol", "metric", "direction", "bits", "query", "value")}
    for evaluation in run.evaluations:
        for (metric, direction, bits), values in evaluation.values.items():
            count = len(values)
            columns["protocol"] += [evaluation.protocol] * count
            columns["metric"] += [metric] * count
            columns["direction"] += [direction] * count
            columns["bits"] += [bits] * count
            columns["query"] += range(count)
            columns["value"] += values.tolist()
    with replacing(path) as temporary:
        pyarrow.parquet.write_table(pyarrow.table(columns), temporary)
    return path


def _write(path: Path, content: bytes) -> Path:
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return path


def _render(runs: Sequence[Assessment], tables: dict[str, Table], pictures: dict[str, str]) -> str:
    import jinja2

    template = jinja2.Environment(autoescape=True).from_string(PAGE)
    return template.render(
        name=runs[0].name,
        version=__version__,
        others=[run.name for run in runs[1:]],
        warnings=runs[0].warnings,
        facts=runs[0].run,
        tables=tables.values(),
        pictures=pictures,
    )
