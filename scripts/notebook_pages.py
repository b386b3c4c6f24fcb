"""Hook of MkDocs: the notebooks of docs/ as pages, with a link to the notebook itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files

HTML, TEXT = "text/html", "text/plain"


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each notebook."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            notebook = nbformat.read(file.abs_src_path, as_version=4)
            page = file.src_uri.replace(".ipynb", ".md")
            files.append(File.generated(config, page, content=_page(notebook, Path(file.src_uri).name)))
    return files


def _page(notebook: Any, name: str) -> str:
    first, *cells = (_cell(cell) for cell in notebook.cells)
    return "\n\n".join([first, f"[Download the notebook]({name}){{: download }}", *cells])


def _cell(cell: Any) -> str:
    if cell.cell_type == "markdown":
        return str(cell.source)
    return "\n\n".join([f"```python\n{cell.source}\n```", *map(_output, cell.outputs)])


def _output(output: Any) -> str:
    data = output.get("data", {})
    if HTML in data:
        return f'<div class="output">{data[HTML]}</div>'
    return f"```text\n{output.get('text', data.get(TEXT, '')).rstrip()}\n```"
