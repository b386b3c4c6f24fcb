"""`multibit evaluate --against` and `--report` as people use them."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from conftest import plant
from multibit import Run
from multibit.cli import app
from multibit.evaluation.comparison import compare_queries
from multibit.evaluation.relevance import GradedRelevance
from multibit.report import assessment

SETTINGS = ("epochs=3", "lengths=8,16", "scales=3", "hidden=32", "dimension=8")
TINY = [*(f"--set={setting}" for setting in SETTINGS), "--query=20", "--training=60", "--validation=10"]


class Words:
    """Stands for the packaged text encoder, which is slow to load."""

    def __init__(self, name):
        self.name = name

    def encode(self, texts):
        return np.random.default_rng(0).normal(size=(len(texts), 6))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(assessment, "load_text_encoder", Words)
    monkeypatch.setattr(assessment, "TIMED", 3)


def cli(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments):
    result = cli(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def refused(*arguments):
    """What is said on the error stream, without a traceback."""
    result = cli(*arguments)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 1
    return result.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One split trained twice; and one with other lengths, and one of another split."""
    folder = tmp_path_factory.mktemp("runs")
    np.savez(folder / "ready.npz", **plant(200), label_names=[f"topic {i}" for i in range(8)])
    made = {name: folder / name for name in ("first", "second", "longer", "stranger")}
    for name, options in {
        "first": [],
        "second": ["--set=learning_rate=0.01"],
        "longer": ["--set=lengths=4,16"],
        "stranger": ["--seed=1"],
    }.items():
        done("train", folder / "ready.npz", "--out", made[name], *TINY, *options)
    return SimpleNamespace(**made)


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assessment, "load_text_encoder", Words)
        patch.setattr(assessment, "TIMED", 3)
        printed = done("evaluate", runs.first, "--against", runs.second, "--report", folder / "new")
    return SimpleNamespace(folder=folder / "new", printed=printed)


def comparison_rows(printed):
    return [line for line in printed.splitlines() if re.search(r"-to-\w+ +\| (8|16) \|", line)]


# Against another run


def test_evaluation_without_another_run_compares_nothing(runs):
    assert "beside" not in done("evaluate", runs.first)


def test_another_run_is_compared_query_by_query_under_both_protocols(runs):
    printed = done("evaluate", runs.first, "--against", runs.second, "--markdown")
    assert printed.count(f"**{runs.first.name} beside other runs**") == 2
    rows = comparison_rows(printed)
    assert len(rows) == 2 * 2 * 2
    first, second = (Run.load(run) for run in (runs.first, runs.second))
    store = first.open_features()
    evaluations = [list(pair) for pair in zip(first.evaluate(store), second.evaluate(store), strict=True)]
    expected = []
    for mine, theirs in evaluations:
        for direction, arrow in {"i2t": "image-to-text", "t2i": "text-to-image"}.items():
            for bits in (8, 16):
                a, b = (each.values["mAP", direction, bits] for each in (mine, theirs))
                difference = compare_queries(a, b)
                star = "*" if difference.p < 0.05 else ""
                expected.append(
                    f"| {runs.second.name}, {arrow} | {bits} | {100 * a.mean():.2f} | {100 * b.mean():.2f} "
                    f"| {100 * (a - b).mean():+.2f}{star} "
                    f"| {100 * difference.low:+.2f} to {100 * difference.high:+.2f} "
                    f"| {100 * (a > b).mean():.1f} | {100 * (a == b).mean():.1f} | {100 * (a < b).mean():.1f} "
                    f"| {difference.p:.4f} |"
                )
    assert rows == expected


def test_several_runs_stand_below_each_other(runs, tmp_path):
    third = tmp_path / "third"
    done("train", runs.first.parent / "ready.npz", "--out", third, *TINY, "--set=epochs=1")
    printed = done("evaluate", runs.first, "--against", runs.second, "--against", third, "--markdown")
    assert [row.split(",")[0].removeprefix("| ") for row in comparison_rows(printed)] == (
        [runs.second.name] * 4 + [third.name] * 4
    ) * 2


def test_what_is_written_is_about_the_first_run_only(runs, tmp_path):
    done("evaluate", runs.first, "--out", tmp_path / "alone.json")
    done("evaluate", runs.first, "--against", runs.second, "--out", tmp_path / "beside.json")
    assert (tmp_path / "alone.json").read_bytes() == (tmp_path / "beside.json").read_bytes()
    assert json.loads((tmp_path / "alone.json").read_text())["run"] == Run.load(runs.first).record["model"]


def test_a_run_of_another_split_is_refused(runs):
    assert "have different splits: they cannot be compared" in refused(
        "evaluate", runs.first, "--against", runs.stranger
    )


def test_a_run_of_other_lengths_is_refused(runs):
    assert "lengths" in refused("evaluate", runs.first, "--against", runs.longer)


def test_a_run_beside_itself_is_all_ties(runs):
    printed = done("evaluate", runs.first, "--against", runs.first, "--markdown")
    assert len(comparison_rows(printed)) == 8


def test_a_folder_that_is_no_run_is_refused(runs, tmp_path):
    assert "not a complete multibit run" in refused("evaluate", runs.first, "--against", tmp_path)


# The report


def test_a_report_says_where_its_page_is(report):
    assert report.printed.splitlines()[-1] == f"Wrote {report.folder / 'report.html'}: open it in a browser"


def test_a_report_has_page_values_tables_and_figures(report):
    assert {path.name for path in report.folder.iterdir()} == {
        "report.html", "per-query.parquet", "evaluation.json", "tables", "figures",
    }  # fmt: skip
    assert len(list((report.folder / "tables").iterdir())) == 11 * 3
    assert len(list((report.folder / "figures").iterdir())) == 10 * 2
    assert all(path.stat().st_size for path in report.folder.rglob("*"))


def test_the_page_names_both_runs(report):
    text = (report.folder / "report.html").read_text(encoding="utf-8")
    assert "<h1>first</h1>" in text and "beside second" in text


def test_pools_of_both_runs_share_the_ranks_of_the_first(runs, report):
    """The first run's own row is what it measures alone, the other's is not."""
    with (report.folder / "tables" / "resolution-1.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == ["first", "second"] * 4
    first, second = Run.load(runs.first), Run.load(runs.second)
    store = first.open_features()
    graded = [GradedRelevance.idf(store.dataset.labels[first.split.database])]

    def mean_tau(run, anchor):
        evaluation = run.evaluate(store, graded=graded, anchor=anchor)[0]
        return f"{np.mean([evaluation.mean('tau-b IDF', direction, 8) for direction in ('i2t', 't2i')]):.3f}"

    shown = {row["run"]: row["tau-b"] for row in rows if (row["reference"], row["bits"]) == ("IDF", "8")}
    assert shown == {"first": mean_tau(first, None), "second": mean_tau(second, first)}
    assert shown["second"] != mean_tau(second, None)


def test_a_report_with_a_run_of_another_split_is_refused(runs, tmp_path):
    sentence = refused("evaluate", runs.first, "--against", runs.stranger, "--report", tmp_path / "report")
    assert "have different splits: they cannot be compared" in sentence
    assert not (tmp_path / "report").exists()


def test_a_missing_library_is_named_with_its_extra(runs, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )
    sentence = refused("evaluate", runs.first, "--report", tmp_path / "report")
    assert sentence.startswith("Error: a report with figures needs matplotlib or jinja2, which is not installed.")
    assert sentence.endswith('Install it with: pip install "multibit[report]"')
    assert not (tmp_path / "report").exists()


def test_runs_in_folders_of_one_name_are_told_apart(runs, tmp_path):
    for name in ("first", "second"):
        shutil.copytree(getattr(runs, name), tmp_path / name / "run")
    done("evaluate", tmp_path / "first" / "run", "--against", tmp_path / "second" / "run", "--report", tmp_path / "out")
    with (tmp_path / "out" / "tables" / "comparison-1.csv").open(encoding="utf-8") as file:
        assert len(list(csv.reader(file))) == 1 + 4


def test_help_names_both_options():
    shown = done("evaluate", "--help")
    assert "--against" in shown and "--report" in shown
