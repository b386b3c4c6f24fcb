"""`multibit evaluate` with its report, comparisons with other runs, and the files of the field."""

from __future__ import annotations

import csv
import importlib.util
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from commands import Words, assert_names, done, refused, settings
from conftest import plant
from multibit import FeatureStore, Run, evaluate_run, load_evaluations, measurement
from multibit.evaluation import cost
from multibit.evaluation.comparison import compare, compare_queries
from multibit.evaluation.metric import MAP, TAU_B

SMALL = [*settings(epochs=3, lengths="8,16", scales=3, hidden=32, dimension=8), "--queries=20", "--training=60",
         "--validation=10"]  # fmt: skip


def make_quick(patch):
    patch.setattr(measurement, "load_text_encoder", Words)
    patch.setattr(cost, "TIMED", 3)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    make_quick(monkeypatch)


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
        "stranger": ["--split=1"],
    }.items():
        done("train", folder / "ready.npz", "--out", made[name], *SMALL, *options)
    return SimpleNamespace(**made, features=folder / "ready.npz")


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    """A report of two runs, what was printed, and how often items were encoded."""
    folder = tmp_path_factory.mktemp("report")
    encoded = []
    encode_store = measurement.encode_store
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        patch.setattr(measurement, "encode_store", lambda *a, **k: encoded.append(a) or encode_store(*a, **k))
        printed = done(
            "evaluate", runs.first, "--against", runs.second, "--report", folder / "new", "--out", folder / "e.json"
        )
    return SimpleNamespace(folder=folder / "new", out=folder / "e.json", printed=printed, encoded=len(encoded))


def comparison_rows(printed):
    return [line for line in printed.splitlines() if re.search(r"-to-\w+ +\| (8|16) \|", line)]


def names_in(rows):
    return [row.split("|")[3].strip() for row in rows]


# Comparison with another run


def test_evaluation_without_another_run_compares_nothing(runs):
    assert comparison_rows(done("evaluate", runs.first, "--no-report", "--markdown")) == []


def test_another_run_is_compared_query_by_query_under_both_protocols(runs):
    printed = done("evaluate", runs.first, "--against", runs.second, "--markdown", "--no-report")
    store = FeatureStore.open(runs.features)
    both = (evaluate_run(Run.load(run), store) for run in (runs.first, runs.second))
    expected = []
    for mine, theirs in zip(*both, strict=True):
        assert f"**{compare(mine, theirs).table().title}**" in printed and mine.protocol in printed
        for direction, arrow in {"i2t": "image-to-text", "t2i": "text-to-image"}.items():
            for bits in (8, 16):
                a, b = (each.values[MAP, direction, bits] for each in (mine, theirs))
                difference = compare_queries(a, b)
                star = "*" if difference.p < 0.05 else ""
                edges = ("**", "_") if a.mean() > b.mean() else ("_", "**")
                expected += [
                    f"| {arrow} | {bits} | {runs.first.name} | {edges[0]}{100 * a.mean():.2f}{edges[0]} "
                    "|  |  |  |  |  |  |",
                    f"| {arrow} | {bits} | {runs.second.name} | {edges[1]}{100 * b.mean():.2f}{edges[1]} "
                    f"| {100 * (a - b).mean():+.2f}{star} "
                    f"| {100 * difference.low:+.2f} to {100 * difference.high:+.2f} "
                    f"| {100 * (a > b).mean():.1f} | {100 * (a == b).mean():.1f} | {100 * (a < b).mean():.1f} "
                    f"| {difference.p:.4f} |",
                ]
    assert comparison_rows(printed) == expected


def test_several_runs_are_rows_of_one_table(runs, tmp_path):
    third = tmp_path / "third"
    done("train", runs.features, "--out", third, *SMALL, "--set=epochs=1")
    printed = done("evaluate", runs.first, "--against", runs.second, "--against", third, "--markdown", "--no-report")
    assert names_in(comparison_rows(printed)) == [runs.first.name, runs.second.name, third.name] * 8


def test_the_evaluation_file_is_about_the_first_run_only(runs, tmp_path):
    done("evaluate", runs.first, "--no-report", "--out", tmp_path / "alone.json")
    done("evaluate", runs.first, "--no-report", "--against", runs.second, "--out", tmp_path / "compared.json")
    assert (tmp_path / "alone.json").read_bytes() == (tmp_path / "compared.json").read_bytes()
    assert (tmp_path / "alone.parquet").read_bytes() == (tmp_path / "compared.parquet").read_bytes()
    run = Run.load(runs.first)
    known = {"run": run.record.model, "data": run.record.data, "split": run.split.identity()}
    for evaluation in load_evaluations(tmp_path / "alone.json"):
        assert evaluation.name == "first"
        assert evaluation.fingerprints == known


def test_saved_evaluations_can_be_compared_later(runs, tmp_path):
    for name in ("first", "second"):
        done("evaluate", getattr(runs, name), "--no-report", "--out", tmp_path / f"{name}.json")
    saved = [load_evaluations(tmp_path / f"{name}.json")[0] for name in ("first", "second")]
    printed = done("evaluate", runs.first, "--against", runs.second, "--markdown", "--no-report")
    assert compare(*saved).markdown() in printed


def test_a_run_of_another_split_is_refused(runs, tmp_path):
    said = refused("evaluate", runs.first, "--against", runs.stranger, "--report", tmp_path / "report")
    assert_names(said, runs.first, runs.stranger, "split")
    assert not (tmp_path / "report").exists()


def test_a_run_of_other_lengths_is_refused_before_the_work(runs, monkeypatch):
    monkeypatch.setattr(measurement, "encode_store", lambda *_, **__: pytest.fail("too late"))
    assert_names(refused("evaluate", runs.first, "--against", runs.longer), runs.first, "8/16", runs.longer, "4/16")


def test_a_run_compared_with_itself_is_all_ties(runs):
    rows = comparison_rows(done("evaluate", runs.first, "--against", runs.first, "--markdown", "--no-report"))
    assert names_in(rows) == ["first", "first (2)"] * 8
    assert all("| +0.00 | +0.00 to +0.00 | 0.0 | 100.0 | 0.0 | 1.0000 |" in row for row in rows[1::2])


def test_a_folder_without_a_run_is_refused(runs, tmp_path):
    assert_names(refused("evaluate", runs.first, "--against", tmp_path), tmp_path / "run.json")


# The report


@pytest.mark.slow
def test_the_numbers_are_printed_before_the_files(report):
    *_, page, values = report.printed.splitlines()
    assert page.startswith(f"Wrote {report.folder / 'report.html'}: ")
    assert values.startswith(f"Wrote {report.out}: ")
    assert report.printed.index("mAP@all") < report.printed.index("Wrote")


@pytest.mark.slow
def test_queries_and_database_of_each_run_are_encoded_once(report):
    assert report.encoded == 2 * 2


@pytest.mark.slow
def test_one_evaluation_file_holds_every_metric(runs, tmp_path):
    shutil.copytree(runs.first, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation.*", "report"))
    printed = done("evaluate", tmp_path / "run", runs.features, "--no-report")
    assert printed.splitlines()[-1].startswith(f"Wrote {tmp_path / 'run' / 'evaluation.json'}: ")
    quick = load_evaluations(tmp_path / "run" / "evaluation.json")
    printed = done("evaluate", tmp_path / "run", runs.features)
    assert f"Wrote {tmp_path / 'run' / 'report' / 'report.html'}: " in printed
    assert [path.name for path in (tmp_path / "run").rglob("evaluation.*")].count("evaluation.json") == 1
    whole = load_evaluations(tmp_path / "run" / "evaluation.json")
    for one, other in zip(quick, whole, strict=True):
        assert {"mAP asymmetric", "tau-b IDF"} <= {str(metric) for metric in set(other.metrics) - set(one.metrics)}
        assert all(np.array_equal(values, other.values[key]) for key, values in one.values.items())
    assert "comparison-1.md" not in {path.name for path in (tmp_path / "run" / "report" / "tables").iterdir()}


def test_a_quick_evaluation_writes_no_report(runs, tmp_path):
    shutil.copytree(runs.first, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation.*", "report"))
    before = {path.name for path in (tmp_path / "run").iterdir()}
    done("evaluate", tmp_path / "run", runs.features, "--no-report")
    assert {path.name for path in (tmp_path / "run").iterdir()} - before == {"evaluation.json", "evaluation.parquet"}


@pytest.mark.slow
def test_a_report_of_fewer_runs_removes_old_comparisons(runs, tmp_path):
    options = "--report", tmp_path / "report"
    done("evaluate", runs.first, "--against", runs.second, *options)
    (tmp_path / "report" / "tables" / "my notes.md").write_text("mine")
    done("evaluate", runs.first, *options)
    names = {path.name for path in (tmp_path / "report").rglob("*")}
    assert "my notes.md" in names and "accuracy-1.md" in names
    assert not [name for name in names if name.startswith(("comparison", "ap-differences"))]


@pytest.mark.slow
def test_a_report_has_page_tables_and_figures(report):
    assert {path.name for path in report.folder.iterdir()} == {"report.html", "tables", "figures"}
    assert len(list((report.folder / "tables").iterdir())) == 15 * 3
    assert {path.suffix for path in (report.folder / "figures").iterdir()} == {".svg"}
    assert len(list((report.folder / "figures").iterdir())) == 11
    assert all(path.stat().st_size for path in report.folder.rglob("*"))


@pytest.mark.slow
def test_the_page_names_both_runs(report):
    text = (report.folder / "report.html").read_text(encoding="utf-8")
    assert "<h1>first</h1>" in text and "second" in text


@pytest.mark.slow
def test_pools_of_both_runs_share_the_ranks_of_the_first(runs, report):
    """The first run has the values that it has alone, the second those of candidates from both."""
    with (report.folder / "tables" / "resolution-1.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == ["first", "second"] * 4
    store = FeatureStore.open(runs.features)
    first, second = (measurement.measure(Run.load(run), store) for run in (runs.first, runs.second))

    def mean_tau(measured, anchor):
        evaluation = measurement.assess_run(measured, store, anchor).evaluations[0]
        return f"{np.mean([evaluation.mean(TAU_B.under('IDF'), direction, 8) for direction in ('i2t', 't2i')]):.3f}"

    shown = {row["run"]: row["tau-b"] for row in rows if (row["reference"], row["bits"]) == ("IDF", "8")}
    assert shown == {"first": mean_tau(first, None), "second": mean_tau(second, first)}
    assert shown["second"] != mean_tau(second, None)


def test_without_the_extra_there_are_numbers_values_tables_and_a_hint(runs, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )
    printed = done("evaluate", runs.first, "--report", tmp_path / "report", "--out", tmp_path / "e.json")
    assert printed.startswith("mAP@all")
    *_, hint, values = printed.splitlines()
    assert_names(hint, tmp_path / "report", 'pip install "multibit[report]"')
    assert_names(values, tmp_path / "e.json")
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"tables"}


def test_the_files_of_the_field_are_written_on_request(runs, tmp_path):
    printed = done("evaluate", runs.first, "--no-report", "--save-dir", tmp_path / "coco")
    assert f"Wrote {tmp_path / 'coco'}: 14 files" in printed
    names = {str(path.relative_to(tmp_path / "coco")) for path in (tmp_path / "coco").rglob("*.*")}
    assert {"PR_cruve/8-ours-ready-i2t.mat", "PR_cruve/16-ours-ready-t2i-topN.csv", "ready-16-train.log"} <= names
    log = (tmp_path / "coco" / "ready-8-train.log").read_text(encoding="utf-8")
    means = load_evaluations(runs.first / "evaluation.json")[0]
    i2t, t2i = (means.mean(MAP, direction, 8) for direction in ("i2t", "t2i"))
    assert re.search(rf"FINISHED >>>>>> Best epoch, I-T: \d, mAP: {i2t:.4f}, T-I: \d, mAP: {t2i:.4f}\n", log)


@pytest.mark.slow
def test_runs_in_folders_of_one_name_are_told_apart(runs, tmp_path):
    for name in ("first", "second"):
        shutil.copytree(getattr(runs, name), tmp_path / name / "run")
    first, second = (tmp_path / name / "run" for name in ("first", "second"))
    done("evaluate", first, runs.features, "--against", second, "--report", tmp_path / "out")
    with (tmp_path / "out" / "tables" / "comparison-1.csv").open(encoding="utf-8") as file:
        assert [row["run"] for row in csv.DictReader(file)] == ["run", "run (2)"] * 4


@pytest.mark.slow
def test_a_metric_that_nothing_defines_is_a_dash_and_never_nan(tmp_path):
    data = plant(100)
    np.savez(tmp_path / "one.npz", **{**data, "labels": np.ones((100, 1), np.uint8)})  # one label on all: IDF is 0
    done("train", tmp_path / "one.npz", "--out", tmp_path / "run", *SMALL)
    done("evaluate", tmp_path / "run")
    for path in (tmp_path / "run" / "report").rglob("*"):
        if path.suffix in (".md", ".csv", ".tex", ".html"):
            assert "nan" not in path.read_text(encoding="utf-8").lower().split(), path.name
    assert "| IDF | 8 |" in (tmp_path / "run" / "report" / "tables" / "resolution-1.md").read_text(encoding="utf-8")
