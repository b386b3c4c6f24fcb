"""The guide to publishing as a test: its Python examples run, its verbs and options exist."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
import typer.main
from test_readme import blocks

from multibit.cli import app

for library in ("datasets", "langchain_core", "llama_index.core"):
    pytest.importorskip(library)

GUIDE = (Path(__file__).parents[2] / "docs" / "publishing.md").read_text(encoding="utf-8")


def test_the_examples_run_as_printed(packaged_run, tmp_path, monkeypatch, capsys):
    shutil.copytree(packaged_run, tmp_path / "run")
    os.symlink(packaged_run.parent / "features", tmp_path / "features")
    monkeypatch.chdir(tmp_path)
    examples = [block for block in blocks("python", GUIDE) if "SentenceTransformer" not in block]
    assert len(examples) == 6
    for example in examples:
        exec(compile(example, "publishing.md", "exec"), {})
    labels, *hits, image, node = capsys.readouterr().out.splitlines()
    assert "ClassLabel" in labels and len(hits) == 2
    assert Path(image).is_file()
    assert 0 <= float(node.split()[0]) <= 1


def test_every_command_has_a_known_verb_and_known_options():
    verbs = typer.main.get_command(app).commands
    for line in "\n".join(blocks("sh", GUIDE)).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["multibit"]:
            known = {option for parameter in verbs[words[1]].params for option in parameter.opts}
            assert {word for word in words if word.startswith("-")} <= known, line
