"""`multibit select`: what it prints and writes, the command that it suggests, resumption, and refusals."""

from __future__ import annotations

import csv
import json
import shlex

import numpy as np
import pytest

from commands import TINY, assert_names, done, refused, settings
from conftest import plant
from multibit import FeatureStore, Run
from multibit.evaluation.protocol import selection_score
from multibit.hashing.encode import encode
from multibit.selection import SelectionRecord

GRID = ["--alpha", "0.3,0.9", "--eta", "0.1, 0.2"]
OPTIONS = [*TINY, *settings(epochs=2), "--seed", "3", "--split", "5", "--preset", "mirflickr", "--validation=12",
           "--queries=20", "--training=40"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("select it")
    np.savez(folder / "ready.npz", **plant(80))
    return folder


@pytest.fixture(scope="module")
def selected(folder):
    """What a selection prints; its folder is `s`."""
    return done("select", folder / "ready.npz", "--out", folder / "s", *GRID, *OPTIONS)


@pytest.mark.slow
def test_it_prints_method_split_table_and_choice(selected, folder):
    record = SelectionRecord.read(folder / "s")
    best, score = record.choice.best, 100 * record.choice.best_score
    assert selected.startswith("Method multibit, the paper's\nSplit seed 5: 40 train, 12 validation, 20 query")
    assert "Validation mean mAP at 16 bits" in selected and "eta 0.1" in selected and "alpha 0.9" in selected
    assert f"Best: alpha {best.alpha}, eta {best.eta}, validation mean mAP {score:.2f} % at 16 bits\n" in selected
    assert (record.method, record.config["seed"], record.stages) == ("multibit", 3, [1, 2])


@pytest.mark.slow
def test_it_writes_the_record_the_scores_and_the_surface(selected, folder):
    names = {path.name for path in (folder / "s").iterdir()}
    assert names == {"selection.json", *(f"response-surface.{ending}" for ending in ("csv", "png", "pdf"))}
    rows = list(csv.DictReader((folder / "s" / "response-surface.csv").read_text().splitlines()))
    assert [(row["alpha"], row["eta"]) for row in rows] == [
        ("0.3", "0.1"),
        ("0.9", "0.1"),
        ("0.3", "0.2"),
        ("0.9", "0.2"),
    ]
    content = json.loads((folder / "s" / "selection.json").read_text())
    assert content["chosen"] in content["settings"]


@pytest.mark.slow
def test_info_describes_the_folder(selected, folder):
    chosen = SelectionRecord.read(folder / "s").chosen
    described = done("info", folder / "s")
    assert described.startswith("what:") and "selection" in described.splitlines()[0]
    assert f"alpha {chosen.alpha}, eta {chosen.eta}: {100 * chosen.scores[-1]:.2f} % mAP" in described


@pytest.mark.slow
def test_the_suggested_command_trains_the_chosen_setting(selected, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (line,) = [line for line in selected.splitlines() if line.startswith("Train with: ")]
    program, *words = shlex.split(line.removeprefix("Train with: "))
    assert (program, words[:2]) == ("multibit", ["train", str(folder / "ready.npz")])
    done(*words)
    run, choice, store = Run.load("run"), SelectionRecord.read(folder / "s").choice, FeatureStore.open("ready.npz")
    assert (run.config.alpha, run.config.eta) == choice.best and run.record.split == SelectionRecord.read(
        folder / "s"
    ).split
    assert (run.config.seed, run.record.method) == (3, "multibit")
    query, database = (encode(run.model, store.take(rows)) for rows in (run.split.validation, run.split.train))
    assert selection_score(query, database, [16]) == choice.best_score


@pytest.mark.slow
def test_the_same_command_reads_a_finished_selection(selected, folder, monkeypatch):
    before = (folder / "s" / "selection.json").read_bytes()
    monkeypatch.setattr("multibit.hashing.select.train", lambda *_, **__: pytest.fail("trained again"))
    assert done("select", folder / "ready.npz", "--out", folder / "s", *GRID, *OPTIONS) == selected
    assert (folder / "s" / "selection.json").read_bytes() == before


@pytest.mark.slow
def test_full_trains_every_setting_to_the_end(folder, tmp_path):
    printed = done("select", folder / "ready.npz", "--out", tmp_path / "s", *GRID, *TINY, *settings(epochs=2), "--full")
    record = SelectionRecord.read(tmp_path / "s")
    assert printed.startswith("Method multibit-plus; the paper's is --method multibit\n") and "@" not in printed
    assert record.stages == [2] and {len(each.scores) for each in record.settings} == {1}


def test_of_separate_models_that_of_the_compared_length_is_trained(folder, tmp_path):
    done("select", folder / "ready.npz", "--out", tmp_path / "s", *GRID, *TINY, "--method", "separate")
    record = SelectionRecord.read(tmp_path / "s")
    assert record.config["lengths"] == [16] and record.bits == 16


def test_without_the_report_extra_it_says_what_is_missing(folder, tmp_path, monkeypatch):
    for where in ("multibit.report.selection", "multibit.report.page"):
        monkeypatch.setattr(f"{where}.missing_for_figures", lambda: "install it")
    printed = done("select", folder / "ready.npz", "--out", tmp_path / "s", *GRID, *TINY)
    assert "No figure: install it" in printed
    assert {path.suffix for path in (tmp_path / "s").iterdir()} == {".json", ".csv"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--alpha", "0.3,many"], ["--alpha", "0.3,many"]),
        (["--alpha", ""], ["--alpha", "none"]),
        (["--eta", "0.1,0.10"], ["--eta", "0.1, 0.1"]),
        (["--eta", "0"], ["--eta", "0"]),
        (["--set", "alpha=0.5"], ["--set", "alpha", "--alpha"]),
        (["--method", "baseline"], ["--method", "alpha", "eta"]),
        (["--method", "multibit-free"], ["--method", "multibit-free", "label graph", "multibit-plus"]),
        (["--method", "half"], ["--method", "half"]),
        (["--preset", "flickr"], ["--preset", "flickr"]),
        (["--queries", "20", "--training", "40", "--validation", "0"], ["--validation"]),
    ],
    ids=str,
)
def test_what_cannot_be_selected_is_refused_before_any_training(options, named, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("multibit.hashing.select.train", lambda *_, **__: pytest.fail("too late"))
    assert_names(refused("select", folder / "ready.npz", "--out", tmp_path / "s", *TINY, *options), *named)
    assert not (tmp_path / "s").exists()


def test_items_without_labels_are_refused_before_any_training(tmp_path, monkeypatch):
    monkeypatch.setattr("multibit.hashing.select.train", lambda *_, **__: pytest.fail("too late"))
    np.savez(tmp_path / "plain.npz", **{**plant(80), "labels": np.zeros((80, 0), np.uint8)})
    said = refused("select", tmp_path / "plain.npz", "--out", tmp_path / "s", *GRID, *OPTIONS)
    assert_names(said, tmp_path / "plain.npz", "label graph")
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_a_folder_of_another_selection_is_refused(selected, folder):
    other = [word if word != "3" else "4" for word in OPTIONS]  # the seed
    said = refused("select", folder / "ready.npz", "--out", folder / "s", *GRID, *other)
    assert_names(said, folder / "s", "--out", "seed 3 there, 4 here")
