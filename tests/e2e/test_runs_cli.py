"""Run folders on the command line: whose split, folders of separate models, and places that cannot be written."""

from __future__ import annotations

import numpy as np
import pytest

from commands import done, refused
from conftest import plant
from multibit import FeatureStore, Run, runs
from multibit.report import reproduction

TINY = [f"--set={each}" for each in ("epochs=1", "lengths=8,16", "scales=2", "hidden=16", "dimension=8")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two data sets, features of the first by another encoder, a run on the first, and separate models."""
    folder = tmp_path_factory.mktemp("made")
    for name, items, seed in (("first", 60, 0), ("second", 60, 1), ("longer", 80, 0)):
        np.savez(folder / f"{name}.npz", **plant(items, seed=seed))
    np.savez(folder / "recoded.npz", **{**plant(60), "image": -plant(60)["image"]})
    done("train", folder / "first.npz", "--out", folder / "run", *TINY)
    done("train", folder / "first.npz", "--out", folder / "separate", "--variant", "separate", *TINY)
    return folder


# ---- the split of a run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "items"), [("second", 60), ("longer", 80)])
@pytest.mark.parametrize("verb", ["train", "check"])
def test_the_split_of_a_run_on_other_data_is_refused(verb, name, items, made, tmp_path):
    out = ["--out", tmp_path / "run", *TINY] if verb == "train" else []
    said = refused(verb, made / f"{name}.npz", "--split", made / "run", *out)
    theirs, ours = (FeatureStore.open(made / f"{each}.npz").dataset.fingerprint() for each in ("first", name))
    assert f"is the split of data {theirs} with 60 items, here is data {ours} with {items}" in said
    assert "Name a run on this data, or a seed" in said and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("features", "split"), [("first", "run"), ("recoded", "run"), ("first", "separate/8"), ("second", "file")]
)
def test_a_split_of_the_same_items_and_a_split_file_are_taken(features, split, made, tmp_path):
    given = made / ("run/split.safetensors" if split == "file" else split)
    done("train", made / f"{features}.npz", "--split", given, "--out", tmp_path / "new", *TINY)
    assert np.array_equal(Run.load(tmp_path / "new").split.query, Run.load(made / "run").split.query)


def test_other_features_are_refused_with_both_fingerprints(made):
    said = refused("evaluate", made / "run", made / "longer.npz", "--no-report")
    for name, items in (("longer", 80), ("first", 60)):
        assert f"{FeatureStore.open(made / f'{name}.npz').fingerprint()} with {items}" in said
    assert f"Name the features that it was trained on: {made / 'first.npz'}" in said


# ---- folders of separate models -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    ["evaluate separate", "encode separate", "index separate", "search separate word",
     "evaluate run --against separate", "check first.npz --split separate"],
)  # fmt: skip
def test_a_folder_of_separate_models_names_them(command, made, monkeypatch):
    monkeypatch.chdir(made)
    said = refused(*command.split())
    assert said == (
        "Error: separate: holds separate models, one for each length. Name one of them: separate/8, separate/16."
    )


def test_info_says_what_a_folder_of_separate_models_is(made):
    printed = done("info", made / "separate")
    assert "separate models, one for each length" in printed
    assert f"{made / 'separate' / '8'}, {made / 'separate' / '16'}" in printed


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        ("full", "separate", "holds one model for all lengths, so separate models cannot lie below it"),
        ("separate", "full", "holds separate models (8, 16), so no other run"),
    ],
)
def test_one_model_and_separate_models_never_nest(first, second, sentence, made, tmp_path):
    done("train", made / "first.npz", "--out", tmp_path / "X", "--variant", first, *TINY)
    before = sorted(tmp_path.rglob("*"))
    said = refused("train", made / "first.npz", "--out", tmp_path / "X", "--variant", second, *TINY)
    assert f"{tmp_path / 'X'}: {sentence}. Choose another folder." in said and sorted(tmp_path.rglob("*")) == before


# ---- places that cannot be written ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("train first.npz --out file", "folder"),
        ("train first.npz --variant separate --out file", "folder"),
        ("reproduce first.npz --out file", "folder"),
        ("demo --out file", "folder"),
        ("features items.csv --out file", "folder"),
        ("evaluate run --report file", "folder"),
        ("evaluate run --no-report --save-dir file", "folder"),
        ("evaluate run --out folder.json", "file"),
        ("encode run --out folder.npz", "file"),
        ("index run --out file", "folder"),
        ("merge run/index/image.mbx --out folder.mbx", "file"),
        ("export run/index/image.mbx --out folder.npy", "file"),
        ("search run word --sheet folder.png", "file"),
        ("check first.npz --html folder.html", "file"),
        ("check first.npz --groups folder.csv", "file"),
        ("import manifest items.csv --out folder.jsonl", "file"),
        ("import webdataset shards --images file --out new.jsonl", "folder"),
        ("label items.csv --out folder.jsonl", "file"),
    ],
)
def test_a_place_of_another_kind_is_refused_before_any_work(command, wanted, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for each in ("run", "first.npz"):
        (tmp_path / each).symlink_to(made / each)
    (tmp_path / "file").write_text("mine")
    for ending in ("json", "npz", "mbx", "npy", "png", "html", "csv", "jsonl"):
        (tmp_path / f"folder.{ending}").mkdir()
    (tmp_path / "items.csv").write_text("id,image,text,labels\n1,a.png,x,y\n")
    monkeypatch.setattr(runs, "encode", lambda *_: pytest.fail("too late"))
    monkeypatch.setattr(reproduction, "encode", lambda *_: pytest.fail("too late"))
    other = "file" if wanted == "folder" else "folder"
    assert f": is a {other}, but a {wanted} is to be written there." in refused(*command.split())
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_cannot_be_written_is_said_before_training(made, tmp_path, monkeypatch):
    def refuse(dir):
        raise OSError(30, "Read-only file system", f"{dir}/tmpx")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    for verb in ("train", "reproduce"):
        out = tmp_path / "new" / "out"
        said = refused(verb, made / "first.npz", "--out", out, *TINY)
        assert said == f"Error: {out}: cannot be written in {tmp_path} (Read-only file system). Choose another place."
