"""What a first hour with other data than the sample meets on the command line."""

from __future__ import annotations

import numpy as np
import pytest

from commands import TINY, assert_names, cli, done, refused
from conftest import plant
from multibit import FeatureStore, Run, Split


@pytest.fixture
def ready(tmp_path):
    """Features of 80 planted items, and a manifest of the same items with other labels."""
    data = plant(80)
    np.savez(tmp_path / "f.npz", **data)
    rows = "".join(f"{row},a text,{'even' if row % 2 == 0 else 'odd'}\n" for row in range(80))
    (tmp_path / "items.csv").write_text("id,text,labels\n" + rows)
    np.savez(tmp_path / "vectors.npz", image=data["image"], text=data["text"])
    return tmp_path


def test_ready_features_need_no_images_and_get_other_labels_without_encoding(ready):
    store = ready / "store"
    done("features", ready / "items.csv", "--ready", ready / "vectors.npz", "--recipe", "mine", "--out", store)
    before = FeatureStore.open(store)
    (ready / "new.csv").write_text("id,labels\n" + "".join(f"{row},l{row % 3}\n" for row in reversed(range(90))))
    said = refused("features", ready / "new.csv", "--map", "text=none", "--relabel", "--out", store)
    assert_names(said, "text")
    (ready / "new.csv").write_text("id,text,labels\n" + "".join(f"{row},,l{row % 3}\n" for row in reversed(range(90))))
    assert "80 items, 3 labels" in done("features", ready / "new.csv", "--relabel", "--out", store)
    after = FeatureStore.open(store)
    assert after.dataset.label_names == ("l0", "l1", "l2") and after.dataset.ids == before.dataset.ids
    assert after.dataset.labels.argmax(axis=1).tolist() == [row % 3 for row in range(80)]
    assert np.array_equal(after.image[:], before.image[:]) and after.dataset.texts == before.dataset.texts
    assert after.fingerprint() != before.fingerprint()
    (ready / "new.csv").write_text("id,text,labels\n1,,a\n")
    assert_names(refused("features", ready / "new.csv", "--relabel", "--out", store), "79 of 80", "'0'")
    said = refused("features", ready / "new.csv", "--relabel", "--update", "--out", store)
    assert_names(said, "--update", "--relabel")
    assert FeatureStore.open(store).fingerprint() == after.fingerprint()


@pytest.mark.slow
def test_a_finished_training_is_kept_when_run_again(ready):
    command = ["train", ready / "f.npz", "--out", ready / "run", *TINY]
    done(*command)
    before = (ready / "run" / "run.json").read_bytes()
    assert "Kept" in done(*command)
    assert (ready / "run" / "run.json").read_bytes() == before
    for other in (["--seed", "7"], ["--split", "7"], ["--method", "cca-itq"]):
        words = command[: -len(TINY)] if "--method" in other else command
        assert_names(refused(*words, *other), ready / "run", "finished")


@pytest.mark.slow
def test_a_protocol_that_does_not_apply_says_why(ready):
    rows = np.arange(80)
    Split(rows[:60], rows[60:64], rows[64:], rows[:64], None).save(ready / "split.safetensors")
    done("train", ready / "f.npz", "--split", ready / "split.safetensors", "--out", ready / "run", *TINY)
    found = cli("evaluate", ready / "run", "--no-report")
    assert found.code == 0
    assert "kept out of the database" in found.err and "training or validation item" in found.err


@pytest.mark.slow
def test_labels_that_teach_nothing_and_duplicates_across_the_split_are_warned_about(ready):
    data = plant(80)
    data["labels"] = np.random.default_rng(0).integers(0, 2, (80, 3), np.uint8)
    data["labels"][:, 0] |= data["labels"].sum(axis=1) == 0
    data["image"][1:] = data["image"][0]
    data["text"][1:] = data["text"][0]
    np.savez(ready / "f.npz", **data)
    trained = cli("train", ready / "f.npz", "--out", ready / "run", *TINY)
    assert trained.code == 0 and "duplicates leak labels" in trained.err and "--groups" in trained.err
    assert "most common labels first" in trained.err
    evaluated = cli("evaluate", ready / "run", "--no-report")
    assert evaluated.code == 0 and "most common labels first" in evaluated.err


def test_labels_of_most_items_are_warned_about(tmp_path):
    rows = "".join(f'{row},"a dog, a cat{", a bird" if row % 9 == 0 else ""}"\n' for row in range(40))
    (tmp_path / "items.csv").write_text("id,text\n" + rows)
    common = cli("label", tmp_path / "items.csv", "--max-share=1", "--out", tmp_path / "new.csv")
    assert common.code == 0 and "--max-share" in common.err
    animals = ("dog", "cat", "bird", "horse", "cow", "sheep", "goat", "duck")
    rows = "".join(f"{row},a {animals[row % 8]}\n" for row in range(40))
    (tmp_path / "items.csv").write_text("id,text\n" + rows)
    rare = cli("label", tmp_path / "items.csv", "--out", tmp_path / "rare.csv")
    assert rare.code == 0 and "Warning" not in rare.err


def test_images_that_all_are_elsewhere_are_one_finding(tmp_path):
    rows = "".join(f"{row},{row}.png,a text,label\n" for row in range(30))
    (tmp_path / "items.csv").write_text("id,image,text,labels\n" + rows)
    printed = done("check", tmp_path / "items.csv")
    assert "missing images" in printed and "unreadable" not in printed and "cannot be read" not in printed


@pytest.mark.slow
def test_runs_on_the_same_rows_are_compared_whatever_drew_them(ready):
    done("train", ready / "f.npz", "--out", ready / "first", *TINY)
    np.savez(ready / "rows.npz", **Run.load(ready / "first").split.roles)
    for name, split in (("taken", ready / "first"), ("given", ready / "rows.npz")):
        done("train", ready / "f.npz", "--split", split, "--out", ready / name, *TINY)
        printed = done("evaluate", ready / "first", "--no-report", "--against", ready / name)
        assert "first minus it" in printed and name in printed
