"""Run folders on the command line: splits of other runs, paths that cannot be written."""

from __future__ import annotations

import numpy as np
import pytest

from commands import TINY, assert_names, done, refused
from multibit import FeatureStore, Run, indices, measurement, pipeline
from multibit.paper import reproduction

# ---- the split of a run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "items"), [("second", 60), ("longer", 80)])
@pytest.mark.parametrize("verb", ["train", "check"])
def test_the_split_of_a_run_on_other_data_is_refused(verb, name, items, made, tmp_path):
    out = ["--out", tmp_path / "run", *TINY] if verb == "train" else []
    said = refused(verb, made / f"{name}.npz", "--split", made / "plain", *out)
    fingerprints = [FeatureStore.open(made / f"{each}.npz").dataset.fingerprint() for each in ("ready", name)]
    assert_names(said, "--split", made / "plain", *fingerprints, "60 items", items)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("features", "split"), [("ready", "plain"), ("recoded", "plain"), ("ready", "separate"), ("second", "file")]
)
def test_a_split_of_the_same_items_and_a_split_file_are_taken(features, split, made, tmp_path):
    given = made / ("plain/split.safetensors" if split == "file" else split)
    done("train", made / f"{features}.npz", "--split", given, "--out", tmp_path / "new", *TINY)
    assert np.array_equal(Run.load(tmp_path / "new").split.query, Run.load(made / "plain").split.query)


def test_other_features_are_refused_with_both_fingerprints(made):
    said = refused("evaluate", made / "plain", made / "longer.npz", "--no-report")
    for name, items in (("longer", 80), ("ready", 60)):
        assert_names(said, FeatureStore.open(made / f"{name}.npz").fingerprint(), items)
    assert_names(said, made / "ready.npz")


# ---- paths that cannot be written -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("train ready.npz --out file", "folder"),
        ("train ready.npz --method separate --out file", "folder"),
        ("reproduce ready.npz --out file", "folder"),
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
        ("check ready.npz --html folder.html", "file"),
        ("check ready.npz --groups folder.csv", "file"),
        ("import manifest items.csv --out folder.jsonl", "file"),
        ("import webdataset shards --images file --out new.jsonl", "folder"),
        ("label items.csv --out folder.jsonl", "file"),
    ],
)
def test_a_path_of_another_kind_is_refused_before_any_work(command, wanted, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").symlink_to(made / "plain")
    (tmp_path / "ready.npz").symlink_to(made / "ready.npz")
    (tmp_path / "file").write_text("mine")
    for ending in ("json", "npz", "mbx", "npy", "png", "html", "csv", "jsonl"):
        (tmp_path / f"folder.{ending}").mkdir()
    (tmp_path / "items.csv").write_text("id,image,text,labels\n1,a.png,x,y\n")
    for module in (measurement, pipeline, indices, reproduction):
        monkeypatch.setattr(module, "encode_store", lambda *_, **__: pytest.fail("too late"))
    assert_names(refused(*command.split()), "folder." if wanted == "file" else "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_cannot_be_written_is_said_before_training(made, tmp_path, monkeypatch):
    def refuse(dir):
        raise OSError(30, "Read-only file system", f"{dir}/tmpx")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    for verb in ("train", "reproduce"):
        out = tmp_path / "new" / "out"
        assert_names(refused(verb, made / "ready.npz", "--out", out, *TINY), out, tmp_path, "Read-only file system")
