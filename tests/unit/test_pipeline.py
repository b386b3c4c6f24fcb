"""The steps of the command line as functions: features, measuring, indices, export, queries."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from conftest import plant
from multibit import Config, FeatureStore, HashModel, Index, PairedDataset, Run, Split, pipeline
from multibit.errors import DataError, MismatchError, MissingExtraError
from multibit.evaluation import cost
from multibit.evaluation.metric import MAP
from multibit.features import packaged
from multibit.features.recipe import EncoderRecipe, Recipe
from multibit.hashing.encode import encode_store
from multibit.pipeline import (
    assess_run,
    build_indices,
    encode_image,
    encode_text,
    evaluate_run,
    index_path,
    label_name_relevance,
    measure,
    open_features,
    open_index,
    references_of,
    require_split_of,
    update_indices,
    write_codes,
)
from multibit.report.field import LAST, field_record, write_field_files

ITEMS = 80
SMALL = Config(lengths=(6, 16), scales=3, hidden=24, dimension=12, epochs=4, batch_size=16, learning_rate=3e-3)
NAMES = tuple(f"topic {i}" for i in range(8))


def save_npz(path, **changes):
    np.savez(path, **{**plant(ITEMS), "label_names": NAMES, **changes})
    return FeatureStore.open(path)


@pytest.fixture(scope="module")
def split():
    return Split.draw(ITEMS, query=16, train=40, validation=8, seed=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return save_npz(tmp_path_factory.mktemp("features") / "ready.npz")


@pytest.fixture(scope="module")
def finished(store, split, tmp_path_factory):
    """A finished run."""
    return Run.create(tmp_path_factory.mktemp("runs") / "run", store, split, SMALL)


@pytest.fixture(scope="module")
def other_run(store, split, tmp_path_factory):
    """Another run on the same split."""
    return Run.create(tmp_path_factory.mktemp("other") / "run", store, split, dataclasses.replace(SMALL, seed=5))


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


# Measuring


@pytest.mark.parametrize("field", ["image", "text", "labels", "ids", "label_names"])
def test_evaluation_refuses_other_data(field, finished, tmp_path):
    names = {"ids": [f"id {i}" for i in range(ITEMS)], "label_names": [f"theme {i}" for i in range(8)]}
    data = plant(ITEMS)
    if field in data:
        data[field][0] = 1 - data[field][0]
    changed = names[field] if field in names else data[field]
    other = save_npz(tmp_path / "other.npz", **{field: changed})
    with pytest.raises(MismatchError) as caught:
        evaluate_run(finished, other)
    assert (caught.value.file, caught.value.field) == (tmp_path / "other.npz", "data")
    assert str(finished.record.features) in caught.value.hint


def test_evaluation_accepts_the_same_data_at_another_path(finished, tmp_path):
    moved = save_npz(tmp_path / "moved.npz")
    assert [evaluation.queries for evaluation in evaluate_run(finished, moved)] == [16, 16]


def slow_average_precision(query_bits, database_bits, query_labels, database_labels, at=None):
    values = []
    for bits, labels in zip(query_bits, query_labels, strict=True):
        order = np.argsort((bits != database_bits).sum(axis=1), kind="stable")
        relevant = (database_labels[order] & labels).any(axis=1)
        precision = np.cumsum(relevant) / np.arange(1, len(relevant) + 1)
        found = relevant[:at].sum() if at is None else min(at, relevant.sum())
        values.append((precision * relevant)[:at].sum() / found if relevant.any() else np.nan)
    return np.array(values)


def test_evaluation_measures_the_queries_against_both_databases(finished, store, split):
    evaluations = evaluate_run(finished, store, at=5)
    assert [evaluation.database for evaluation in evaluations] == [len(split.database), len(split.unseen)]
    for evaluation, rows in zip(evaluations, (split.database, split.unseen), strict=True):
        assert not np.isin(split.query, rows).any()
        query, database = store.take(split.query), store.take(rows)
        for direction, asked, searched in (("i2t", "image", "text"), ("t2i", "text", "image")):
            signs = [
                finished.model.encode(getattr(pairs, modality), modality) >= 0
                for pairs, modality in ((query, asked), (database, searched))
            ]
            for bits in SMALL.lengths:
                sides = signs[0][:, :bits], signs[1][:, :bits], query.labels, database.labels
                for metric, cut in ((MAP, None), (MAP.at(5), 5)):
                    np.testing.assert_allclose(
                        evaluation.values[metric, direction, bits], slow_average_precision(*sides, cut), atol=1e-12
                    )


def test_training_rows_are_left_out_of_the_second_protocol_only(finished, store):
    first, second = evaluate_run(finished, store)
    assert "training items in the database" in first.protocol and "kept out" in second.protocol


def test_a_database_of_training_rows_only_has_one_protocol(store, tmp_path):
    run = Run.create(tmp_path / "run", store, Split.draw(ITEMS, query=20, train=52, validation=8), SMALL)
    assert len(run.split.unseen) == 0
    assert [evaluation.database for evaluation in evaluate_run(run, store)] == [60]


# Each item is coded once


@pytest.fixture
def coded_rows(monkeypatch):
    """(fingerprint of the model, modality) -> number of rows of each call of `HashModel.encode`."""
    calls, encode = {}, HashModel.encode

    def counting(self, features, modality):
        calls.setdefault((self.fingerprint(), modality), []).append(len(features))
        return encode(self, features, modality)

    monkeypatch.setattr(HashModel, "encode", counting)
    return calls


def test_measuring_codes_each_query_and_database_item_once(finished, store, coded_rows):
    measured = measure(finished, store, at=5)
    rows = len(finished.split.query) + len(finished.split.database)
    model = finished.record.model
    assert {key: sum(calls) for key, calls in coded_rows.items()} == {(model, "image"): rows, (model, "text"): rows}
    assert (len(measured.query), len(measured.database)) == (16, 64)
    expected = encode_store(finished.model, store, finished.split.database)
    assert measured.database.image == expected.image and measured.database.text == expected.text
    assert measured.rankings[0].database is measured.database


def test_a_report_against_another_run_and_field_files_codes_each_item_once(
    finished, other_run, store, coded_rows, tmp_path, monkeypatch
):
    monkeypatch.setattr(pipeline, "load_text_encoder", Words)
    monkeypatch.setattr(cost, "TIMED", 3)
    first, other = measure(finished, store, depth=LAST), measure(other_run, store)
    write_field_files(field_record(first, store), tmp_path)
    assessed = [assess_run(first, store), assess_run(other, store, first)]
    assert [each.evaluations[0].references for each in assessed] == [["IDF", "label names"]] * 2
    rows = len(finished.split.query) + len(finished.split.database)
    for run in (finished, other_run):
        for modality in ("image", "text"):
            calls = Counter(coded_rows[run.record.model, modality])
            assert calls.pop(1) == 4  # one to warm up and three that are timed, of a single item
            assert sum(size * count for size, count in calls.items()) == rows


# References


class Words:
    """Replaces a text encoder: a random vector for each text."""

    def __init__(self, name="words"):
        self.name = name

    def encode(self, texts):
        return np.stack([np.random.default_rng(list(text.encode())).normal(size=6) for text in texts])


def test_the_references_of_ready_made_features_use_the_packaged_encoder(finished, store, monkeypatch):
    loaded = []
    monkeypatch.setattr(pipeline, "load_text_encoder", lambda name: loaded.append(name) or Words())
    database = measure(finished, store).database
    references, notes = references_of(finished.recipe.text, NAMES, database)
    assert [each.name for each in references] == ["IDF", "label names"] and notes == []
    assert loaded == [pipeline.DEFAULT_TEXT_ENCODER]
    assert [each.name for each in references_of(finished.recipe.text, ["label 0", "label 1"], database)[0]] == ["IDF"]


def test_a_missing_text_encoder_leaves_the_idf_reference_and_a_note(finished, store, monkeypatch):
    def missing(name):
        raise MissingExtraError("sentence_transformers", extra="offline", need="The packaged text encoder")

    monkeypatch.setattr(pipeline, "load_text_encoder", missing)
    references, notes = references_of(finished.recipe.text, NAMES, measure(finished, store).database)
    assert [each.name for each in references] == ["IDF"]
    assert len(notes) == 1 and "multibit[offline]" in notes[0]


def test_label_names_are_encoded_by_the_source_of_the_recipe(monkeypatch):
    """The base name of a hub model, such as clip-vit-base-patch32, is not enough to load it."""
    loaded = []
    for name in ("owner/tiny", "tiny"):
        monkeypatch.setitem(packaged.TEXT_ENCODERS, name, lambda _, name=name: loaded.append(name) or Words())
    recipe = EncoderRecipe("tiny", "a1b2", 6, "words", source="owner/tiny")
    relevance = label_name_relevance(recipe, NAMES)
    assert loaded == ["owner/tiny"] and relevance.kernel.shape == (8, 8)
    label_name_relevance(dataclasses.replace(recipe, source=""), NAMES)
    assert loaded == ["owner/tiny", "tiny"]


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
    before = index_path(folder, "image").read_bytes()
    for refused in (lambda: update_indices(other_run, store, folder), lambda: open_index(other_run, folder, "image")):
        with pytest.raises(MismatchError) as caught:
            refused()
        assert finished.record.model in str(caught.value) and other_run.record.model in str(caught.value)
    assert index_path(folder, "image").read_bytes() == before


def test_an_index_of_the_other_modality_is_refused(finished, folder):
    path = index_path(folder, "text")
    path.write_bytes(index_path(folder, "image").read_bytes())
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
