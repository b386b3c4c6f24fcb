"""Ready-made features become a store under a declared recipe, matched to their items by id."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from multibit import FeatureStore, PairedDataset
from multibit.cli import app
from multibit.errors import DataError, MismatchError
from multibit.features.ready import read_ready

IMAGE = np.arange(12, dtype=np.float32).reshape(3, 4)
TEXT = np.arange(6, dtype=np.float16).reshape(3, 2)
SEVERAL = np.arange(10, dtype=np.float16).reshape(5, 2)


@pytest.fixture
def data() -> PairedDataset:
    texts = (("x",), ("y", "z", ""), ("w",))
    return PairedDataset(("a", "b", "c"), (None,) * 3, texts, np.eye(3, dtype=np.uint8), ("p", "q", "r"))


def written(folder: Path, form: str, **arrays) -> Path:
    if form == "npz":
        np.savez(folder / "ready.npz", **arrays)
        return folder / "ready.npz"
    (folder / "ready").mkdir()
    for name, array in arrays.items():
        np.save(folder / "ready" / f"{name}.npy", array)
    return folder / "ready"


@pytest.mark.parametrize("form", ["npz", "npy"])
def test_rows_without_ids_are_those_of_the_items_in_order(data, tmp_path, form):
    store = read_ready(data, written(tmp_path, form, image=IMAGE, text=TEXT), "CLIP B/32 of mine")
    assert np.array_equal(store.image, IMAGE) and np.array_equal(store.text, TEXT)
    assert store.recipe.image.name == store.recipe.text.name == "CLIP B/32 of mine"
    assert store.dataset is data and store.skipped == ()
    assert isinstance(store.image, np.memmap) == (form == "npy")


def test_a_row_for_each_text_belongs_to_the_item_of_the_text(data, tmp_path):
    store = read_ready(data, written(tmp_path, "npz", image=IMAGE, text=SEVERAL), "mine")
    assert store.offsets.tolist() == [0, 1, 4, 5]


@pytest.mark.parametrize("ids", [["c", "a"], [b"c", b"a"]])
@pytest.mark.parametrize("form", ["npz", "npy"])
def test_rows_with_ids_find_their_items_and_items_without_are_listed(data, tmp_path, form, ids):
    store = read_ready(data, written(tmp_path, form, image=IMAGE[:2], text=TEXT[:2], ids=np.array(ids)), "mine")
    assert store.dataset.ids == ("a", "c")
    assert np.array_equal(store.image, IMAGE[[1, 0]]) and np.array_equal(store.text, TEXT[[1, 0]])
    assert [name for name, _ in store.skipped] == ["b"] and "no row in ready" in store.skipped[0][1]


@pytest.mark.parametrize(
    ("arrays", "field", "found"),
    [
        ({"image": IMAGE}, "text", "image (3, 4)"),
        ({"image": IMAGE[0], "text": TEXT}, "image", "image (4,), text (3, 2)"),
        ({}, "image, text", ""),
        ({"image": IMAGE[:2], "text": TEXT}, "", "2 image and 3 text rows for 3 items with 5 texts"),
        ({"image": IMAGE, "text": SEVERAL[:4]}, "", "3 image and 4 text rows for 3 items with 5 texts"),
        ({"image": IMAGE, "text": TEXT, "ids": ["a", "b"]}, "", "2 ids, 3 image rows and 3 text rows"),
        ({"image": IMAGE, "text": TEXT, "ids": ["a", "b", "z"]}, "ids", "'z'"),
        ({"image": IMAGE, "text": TEXT, "ids": ["a", "b", "a"]}, "ids", "'a'"),
        ({"image": IMAGE, "text": TEXT, "ids": [b"a", b"b", b"\xff"]}, "ids", "UTF-8"),
        ({"image": IMAGE, "text": TEXT, "ids": np.array("a")}, "ids", "()"),
        ({"image": IMAGE[:0], "text": TEXT[:0], "ids": np.array([], str)}, "ids", ""),
    ],
)
@pytest.mark.parametrize("form", ["npz", "npy"])
def test_vectors_that_do_not_fit_are_refused(data, tmp_path, form, arrays, field, found):
    path = written(tmp_path, form, **arrays)
    with pytest.raises(DataError) as caught:
        read_ready(data, str(path), "mine")
    assert (caught.value.file, caught.value.field) == (path, field)
    assert found in caught.value.problem


def test_a_corrupt_array_is_refused(data, tmp_path):
    path = written(tmp_path, "npy", image=IMAGE, text=TEXT)
    (path / "text.npy").write_bytes(b"corrupt")
    with pytest.raises(DataError) as caught:
        read_ready(data, path, "mine")
    assert caught.value.file == path


@pytest.mark.slow
def test_the_command_line_takes_them_with_a_declared_recipe_and_never_mixes_recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    Path("items.csv").write_text("id,image,text,labels\n" + "".join(f"{i},,t{i},{'xy'[i % 2]}\n" for i in range(40)))
    written(tmp_path, "npy", image=rng.normal(size=(39, 6)), text=rng.normal(size=(39, 5)), ids=np.arange(39))

    def run(*arguments):
        return CliRunner().invoke(app, arguments)

    result = run("features", "items.csv", "--out", "one", "--ready", "ready", "--recipe", "mine")
    assert result.exit_code == 0 and "39 items" in result.stdout
    assert FeatureStore.open("one").recipe.image.name == "mine"
    assert run("features", "items.csv", "--out", "two", "--ready", "ready", "--recipe", "other").exit_code == 0
    for lonely in (["--ready", "ready"], ["--recipe", "mine"]):
        refused = run("features", "items.csv", "--out", "three", *lonely)
        assert refused.exit_code == 1 and "--ready" in refused.stderr and "--recipe" in refused.stderr
    small = [f"--set={setting}" for setting in ("epochs=1", "hidden=8", "dimension=8", "scales=2", "lengths=8,16")]
    assert run("train", "one", "--out", "run", *small).exit_code == 0
    mixed = run("evaluate", "run", "two")
    assert mixed.exit_code == 1 and "'other'" in mixed.stderr and "'mine'" in mixed.stderr
    with pytest.raises(MismatchError):
        FeatureStore.open("one").recipe.require(FeatureStore.open("two").recipe, "these")
