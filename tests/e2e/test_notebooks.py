"""The notebooks of the documentation run, cell by cell, on a part of the sample."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import ROOT

interactive, nbformat = pytest.importorskip("IPython.core.interactiveshell"), pytest.importorskip("nbformat")
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NOTEBOOK_EPOCHS", "2")
    monkeypatch.setenv("NOTEBOOK_ITEMS", "100")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    shell = interactive.InteractiveShell()  # in this process: a kernel would import everything again
    content = nbformat.read(notebook, as_version=4)
    nbformat.validate(content)
    for cell in content.cells:
        if cell.cell_type == "code":
            shell.run_cell(cell.source, store_history=False).raise_error()
