"""The README's Python example, run as printed."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_example_runs_as_printed(planted_npz: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    planted_npz.rename(planted_npz.with_name("features.npz"))
    monkeypatch.chdir(planted_npz.parent)
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, str(README), "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["16", "32", "64", "128"]
    assert all(float(line.split()[1]) > 0.5 for line in lines[:4])
    assert len(lines[4].split(",")) == 5


def test_the_example_has_at_most_twelve_lines():
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(example.splitlines()) <= 12
