"""The README as a test: its Python example runs, its commands are those of the gate, its verbs and options exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import typer.main
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

from multibit import Index, Run
from multibit.cli import app
from multibit.features import packaged
from pages import ROOT, blocks, commands, require_known_options, run_block

README = ROOT / "README.md"


def work_of(script: str) -> list[list[str]]:
    """The commands of a script without its frame."""
    return [words for words in commands(script) if words[0] not in ("set", "cd", "rm")]


def run_example(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run_block(README, blocks(README, "python")[number], {})


@pytest.mark.slow
def test_the_whole_project_runs_as_printed(
    letters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    for encoders, name in (
        (packaged.IMAGE_ENCODERS, "efficientnet-lite0"),
        (packaged.TEXT_ENCODERS, "all-minilm-l6-v2"),
    ):
        monkeypatch.setitem(encoders, name, encoders["letters"])
    (tmp_path / "photos").mkdir()
    rows = []
    for row in range(60):
        Image.new("RGB", (8, 8), (4 * row, 0, 0)).save(tmp_path / "photos" / f"{row}.png")
        rows.append(f"{row},{row}.png,{'a red flower' if row % 2 else 'the sky'},{'flower' if row % 2 else 'sky'}")
    (tmp_path / "items.csv").write_text("\n".join(["id,image,text,labels", *rows, ""]))
    run_example(0, tmp_path, monkeypatch)
    losses, seen, unseen, *hits = capsys.readouterr().out.splitlines()
    assert len(losses.split(",")) == 20
    assert seen.startswith("training items in the database") and unseen.startswith("training items kept out")
    assert [hit.split()[0] for hit in hits] == ["1", "2", "3"] * 2
    assert all(hit.endswith(("['flower']", "['sky']")) for hit in hits)
    assert len(Index.open(tmp_path / "image.mbx")) == 45 and Run.load(tmp_path / "run").lengths == (16, 32, 64, 128)


@pytest.mark.slow
def test_another_method_is_compared_as_printed(
    planted_npz: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    planted_npz.rename(planted_npz.with_name("features.npz"))
    run_example(1, planted_npz.parent, monkeypatch)
    printed = capsys.readouterr().out
    rows = [line.split("|") for line in printed.splitlines() if "multibit" in line and "-to-" in line]
    assert len(rows) >= 6 and all("**" in row[4] for row in rows[:6])  # the trained method is the best everywhere


def test_the_examples_are_short():
    assert [len(example.text.splitlines()) <= 30 for example in blocks(README, "python")] == [True, True]


def test_the_full_check_of_the_readme_is_that_of_the_script():
    check = work_of((ROOT / "scripts" / "check.sh").read_text(encoding="utf-8"))
    assert check[-1][0] == "pytest"
    assert check in [work_of(block.text) for block in blocks(README, "sh")]


def test_the_gate_is_the_install_line_and_the_check_of_the_readme():
    script = work_of((ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    gate = [words for words in script if words[0] != "export"]
    assert gate in [work_of(block.text) for block in blocks(README, "sh")]


def test_every_command_of_the_readme_has_a_known_verb_and_known_options():
    for block in blocks(README, "sh"):
        require_known_options(block.text)


def test_the_guide_to_serving_has_every_option_with_its_default():
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    verb = typer.main.get_command(app).commands["serve"]
    options = {parameter.opts[0]: parameter for parameter in verb.params if parameter.param_type_name == "option"}
    named = set(re.findall(r"`(--[a-z-]+)`", text))
    assert named - {"--update", "--soak"} == set(options)
    for names, default in re.findall(r"^\| ((?:`--[a-z-]+`(?:, )?)+) \| ([\d., ]+) \|", text, re.MULTILINE):
        values = [options[name].default for name in re.findall(r"--[a-z-]+", names)]
        assert [str(value).removesuffix(".0") for value in values] == default.strip().replace(", ", " ").replace(
            ",", ""
        ).split(" ")
    assert all(options[name].envvar == f"MULTIBIT_{name[2:].replace('-', '_').upper()}" for name in options)


def test_every_direct_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {Requirement(each).name for each in (*project["dependencies"], *extras["offline"], *extras["dev"])}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.partition("==")[0] for line in lines if not line.startswith("#")}
    assert all("==" in line for line in lines if not line.startswith("#"))
    assert {canonicalize_name(name) for name in wanted} <= pins


def test_every_file_that_the_guide_names_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = "runs|measurement|pipeline|indices|queries|files"
    named = re.findall(rf"`((?:src|tests|scripts)/[\w./]+|\w+/\w+\.\w+|(?:{rooms})\.py)`", text)
    assert len(set(named)) > 40
    missing = [each for each in named if not any((ROOT / part / each).exists() for part in ("", "src/multibit"))]
    assert missing == []
