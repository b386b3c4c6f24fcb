"""The steps of the command line as functions: features, indices, export, queries."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from conftest import ITEMS, SMALL, plant, save_npz
from multibit import FeatureStore, HashModel, Index, PairedDataset, Run, Split
from multibit.errors import DataError, MismatchError
from multibit.features import packaged
from multibit.features.recipe import EncoderRecipe, Recipe
from multibit.indices import build_indices, open_index, update_indices
from multibit.paths import portable_path
from multibit.pipeline import open_features, require_split_of, write_codes
from multibit.queries import encode_image, encode_text
from multibit.search.names import index_path

# Features


def test_features_are_opened_from_their_recorded_path(finished, store):
    assert open_features(finished).fingerprint() == store.fingerprint()


def test_features_of_the_same_recipe_are_accepted(finished, tmp_path):
    save_npz(tmp_path / "more.npz", **plant(12, seed=9), ids=[f"new {i}" for i in range(12)])
    assert len(open_features(finished, tmp_path / "more.npz")) == 12


def test_features_of_another_recipe_are_refused(finished, tmp_path):
    save_npz(tmp_path / "other.npz", recipe="clip")
    with pytest.raises(MismatchError) as caught:
        open_features(finished, tmp_path / "other.npz")
    assert caught.value.file == tmp_path / "other.npz"
    assert "'clip'" in caught.value.problem and "'ready-made'" in caught.value.problem


def test_features_of_another_length_are_refused(finished, tmp_path):
    save_npz(tmp_path / "other.npz", image=plant(ITEMS, image_dim=9)["image"])
    with pytest.raises(MismatchError) as caught:
        open_features(finished, tmp_path / "other.npz")
    assert caught.value.file == tmp_path / "other.npz"
    assert "dimension 9" in caught.value.problem and "24" in caught.value.problem


def test_missing_features_are_reported(store, split, tmp_path):
    path = tmp_path / "moved.npz"
    run = Run.create(tmp_path / "run", save_npz(path), split, SMALL)
    path.rename(tmp_path / "elsewhere.npz")
    with pytest.raises(DataError) as caught:
        open_features(run)
    assert caught.value.file == path and "`features`" in caught.value.hint
    assert len(open_features(run, tmp_path / "elsewhere.npz")) == ITEMS


def test_a_run_on_features_in_memory_needs_their_path(store, split, tmp_path):
    run = Run.create(tmp_path / "run", dataclasses.replace(store, source=None), split, SMALL)
    with pytest.raises(DataError) as caught:
        open_features(run)
    assert caught.value.file == run.folder and "`features`" in caught.value.hint


# Splits of other runs


def test_the_split_of_a_run_on_other_data_is_refused(finished, store, tmp_path):
    require_split_of(str(finished.folder), store.dataset)
    for given in (None, "7", str(finished.folder / "split.safetensors")):
        require_split_of(given, save_npz(tmp_path / "other.npz", **plant(12)).dataset)
    with pytest.raises(MismatchError) as caught:
        require_split_of(str(finished.folder), save_npz(tmp_path / "other.npz", **plant(12)).dataset)
    assert (caught.value.file, caught.value.option) == (finished.folder, "split")
    assert "80 items" in caught.value.problem and "12 items" in caught.value.problem


# Indices


def ids_of(index):
    return [index.ids[row] for row in range(len(index))]


@pytest.mark.parametrize("modality", ["image", "text"])
def test_an_index_holds_the_codes_and_facts_of_its_items(modality, finished, store):
    rows = np.array([7, 3, 70])
    index = build_indices(finished, store, rows)[modality]
    assert ids_of(index) == ["7", "3", "70"] and index.model == finished.model.fingerprint()
    assert index.modality == modality
    expected = finished.model.encode(getattr(store, modality)[rows], modality) >= 0
    assert np.array_equal(index.codes.to_bits(), expected)
    assert index.payloads[0]["labels"] == [f"topic {i}" for i in np.flatnonzero(store.dataset.labels[7])]


def test_an_index_holds_all_items_unless_rows_are_given(finished, store):
    assert ids_of(build_indices(finished, store)["image"]) == list(store.dataset.ids)
    assert ids_of(build_indices(finished, store, np.arange(ITEMS) < 3)["text"]) == ["0", "1", "2"]
    assert ids_of(build_indices(finished, store, [])["image"]) == []


def test_an_index_describes_items_with_and_without_an_image_text_and_label(finished, store):
    data = store.dataset
    images = (None, Path("photos/1.png"), *data.images[2:])
    labels = data.labels.copy()
    labels[1] = 0
    texts = (("first", "second"), ("",), *data.texts[2:])
    described = dataclasses.replace(data, images=images, texts=texts, labels=labels)
    index = build_indices(finished, dataclasses.replace(store, dataset=described), [1, 0])["text"]
    assert index.payloads.rows(np.arange(2)) == [
        {"image": portable_path(images[1], finished.folder / "index"), "text": "", "labels": []},
        {"text": "first", "labels": data.label_names_of(0)},
    ]


def test_an_index_has_the_given_engine(finished, store):
    built = build_indices(finished, store, engine="lists")
    assert {modality: index.engine_name for modality, index in built.items()} == {"image": "lists", "text": "lists"}


@pytest.fixture
def folder(finished, store, tmp_path):
    """Indices of rows 7 and 3, in a folder."""
    for modality, index in build_indices(finished, store, [7, 3]).items():
        index.save(index_path(tmp_path / "index", modality))
    return tmp_path / "index"


def test_updating_adds_new_items_and_replaces_known_ones(finished, store, folder):
    changed = dataclasses.replace(store, image=-store.image)
    updated = update_indices(finished, changed, folder, [3, 4])
    for modality, index in updated.items():
        loaded = open_index(finished, folder, modality)
        assert ids_of(index) == ids_of(loaded) == ["7", "3", "4"]
        expected = build_indices(finished, changed, [3, 4])[modality].codes
        assert loaded.codes == index.codes and index.codes.take([1, 2]) == expected
        assert index.codes.take([0]) == build_indices(finished, store, [7])[modality].codes


def test_an_index_of_another_model_is_refused(finished, other_run, store, folder):
    before = (index_path(folder, "image") / "manifest.json").read_bytes()
    for refused in (lambda: update_indices(other_run, store, folder), lambda: open_index(other_run, folder, "image")):
        with pytest.raises(MismatchError) as caught:
            refused()
        assert finished.record.model in str(caught.value) and other_run.record.model in str(caught.value)
    assert (index_path(folder, "image") / "manifest.json").read_bytes() == before


def test_an_index_of_the_other_modality_is_refused(finished, folder):
    path = index_path(folder, "text")
    Index.load(index_path(folder, "image")).save(path)
    with pytest.raises(MismatchError) as caught:
        open_index(finished, folder, "text")
    assert (caught.value.file, caught.value.field) == (path, "modality")


def test_an_index_of_an_earlier_version_has_no_modality_and_is_opened(finished, folder):
    path = index_path(folder, "text")
    index = Index.load(path)
    index.modality = ""
    index.save(path)
    assert len(open_index(finished, folder, "text")) == 2


def test_a_missing_index_is_reported(finished, tmp_path):
    with pytest.raises(DataError) as caught:
        open_index(finished, tmp_path, "image")
    assert caught.value.file == tmp_path / "image.mbx"


# Export


@pytest.mark.parametrize("bits", [None, 1, 6, 9])
def test_saved_codes_are_those_of_the_prefix(bits, finished, store, tmp_path):
    write_codes(finished, store, tmp_path / "c.npz", bits)
    with np.load(tmp_path / "c.npz", allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    assert (
        found["bits"] == (bits or 16)
        and found["model"] == finished.record.model
        and found["ids"].tolist() == list(store.dataset.ids)
    )
    for modality in ("image", "text"):
        expected = finished.model.encode(getattr(store, modality), modality) >= 0
        assert np.array_equal(np.unpackbits(found[modality], axis=1)[:, : bits or 16], expected[:, :bits])


def test_a_mat_file_holds_queries_and_database_as_signs(finished, store, split, tmp_path):
    write_codes(finished, store, tmp_path / "c.mat", 6)
    found = scipy.io.loadmat(tmp_path / "c.mat")
    for side, rows in (("q", split.query), ("r", split.database)):
        assert np.array_equal(found[f"{side}_l"], store.dataset.labels[rows])
        for name, modality in (("img", "image"), ("txt", "text")):
            expected = finished.model.encode(getattr(store, modality)[rows], modality)[:, :6] >= 0
            assert np.array_equal(found[f"{side}_{name}"], np.where(expected, 1, -1))


def test_a_mat_file_of_other_data_is_refused(finished, tmp_path):
    other = save_npz(tmp_path / "other.npz", **plant(ITEMS, seed=8))
    with pytest.raises(MismatchError) as caught:
        write_codes(finished, other, tmp_path / "c.mat")
    assert (caught.value.file, caught.value.field) == (tmp_path / "other.npz", "data")
    assert not (tmp_path / "c.mat").exists()


@pytest.mark.parametrize(("name", "bits"), [("c.txt", None), ("c.npz", 17), ("c.mat", 0)])
def test_another_ending_or_length_is_refused_before_the_encoding(name, bits, finished, store, tmp_path, monkeypatch):
    monkeypatch.setattr(HashModel, "encode", lambda *_: pytest.fail("encoded"))
    with pytest.raises(DataError) as caught:
        write_codes(finished, store, tmp_path / name, bits)
    assert str(name if bits is None else bits) in str(caught.value)
    assert not list(tmp_path.iterdir())


# Queries


class Images:
    """An image encoder for tests: the mean colour."""

    batch_size = 4

    def __init__(self, weights="one"):
        self.recipe = EncoderRecipe("tiny-images", weights, 3, "mean colour")

    def prepare(self, image):
        return np.asarray(image)

    def encode(self, prepared):
        return np.stack([array.reshape(-1, 3).mean(axis=0) - 100 for array in prepared]).astype(np.float32)


class Texts:
    """A text encoder for tests: counts of letters."""

    def __init__(self, weights="one"):
        self.recipe = EncoderRecipe("tiny-texts", weights, 5, "letters")

    def encode(self, texts):
        return np.array([[1 + text.count(letter) for letter in "abcde"] for text in texts], np.float32)


@pytest.fixture
def encoded(tmp_path, monkeypatch):
    """A run on features of the encoders above."""
    monkeypatch.setitem(packaged.IMAGE_ENCODERS, "tiny-images", lambda _: Images())
    monkeypatch.setitem(packaged.TEXT_ENCODERS, "tiny-texts", lambda _: Texts())
    data, rng = plant(ITEMS), np.random.default_rng(2)
    dataset = PairedDataset(
        tuple(f"id {i}" for i in range(ITEMS)),
        (None,) * ITEMS,
        tuple(("abc"[i % 3] * (1 + i), "d") for i in range(ITEMS)),
        data["labels"],
        tuple(f"topic {i}" for i in range(8)),
    )
    texts = Texts().encode([text for item in dataset.texts for text in item])
    image = rng.normal(size=(ITEMS, 3)).astype(np.float32)
    recipe = Recipe(Images().recipe, Texts().recipe)
    store = FeatureStore(dataset, image, texts, np.arange(ITEMS + 1) * 2, recipe)
    return Run.create(tmp_path / "run", store, Split.usual(ITEMS), SMALL)


def test_a_text_is_encoded_as_the_features_were(encoded):
    expected = encoded.model.encode(Texts().encode(["abba"]), "text")
    assert np.array_equal(encode_text(encoded, "abba"), expected)


def test_an_image_is_encoded_as_the_features_were(encoded, tmp_path):
    Image.new("RGB", (4, 2), (200, 30, 60)).save(tmp_path / "red.png")
    expected = encoded.model.encode(np.array([[100, -70, -40]], np.float32), "image")
    assert np.array_equal(encode_image(encoded, tmp_path / "red.png"), expected)


def test_encoders_of_other_weights_are_refused(encoded, tmp_path, monkeypatch):
    monkeypatch.setitem(packaged.IMAGE_ENCODERS, "tiny-images", lambda _: Images("two"))
    monkeypatch.setitem(packaged.TEXT_ENCODERS, "tiny-texts", lambda _: Texts("two"))
    Image.new("RGB", (4, 2)).save(tmp_path / "black.png")
    for refused in (lambda: encode_text(encoded, "abba"), lambda: encode_image(encoded, tmp_path / "black.png")):
        with pytest.raises(MismatchError) as caught:
            refused()
        assert "weights 'two'" in caught.value.problem and "'one'" in caught.value.problem


def test_a_missing_image_query_is_reported(encoded, tmp_path):
    with pytest.raises(DataError) as caught:
        encode_image(encoded, tmp_path / "gone.png")
    assert str(tmp_path / "gone.png") in str(caught.value)


def test_a_run_on_ready_made_features_has_no_encoder_for_raw_queries(finished):
    for refused in (lambda: encode_text(finished, "a cat"), lambda: encode_image(finished, Path("cat.png"))):
        with pytest.raises(DataError) as caught:
            refused()
        assert "ready-made" in caught.value.problem
