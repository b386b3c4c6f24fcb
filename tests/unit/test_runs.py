"""The run folder: what it keeps, what it refuses, and that nothing but the training rows reaches the model."""

from __future__ import annotations

import dataclasses
import json
import platform
import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from conftest import plant
from multibit import Config, FeatureStore, Index, PairedDataset, RelationTeacher, Run, Split, runs, training
from multibit.data import Recipe, encoders
from multibit.data.encoders import EncoderRecipe
from multibit.errors import ConfigError, DataError, FormatError, MismatchError
from multibit.files import read_arrays, read_json, write_arrays, write_json
from multibit.runs import STATE_FILE

ITEMS = 80
SMALL = Config(lengths=(6, 16), scales=3, hidden=24, dimension=12, epochs=4, batch_size=16, learning_rate=3e-3)
FILES = {"history.jsonl", "model.safetensors", "run.json", "split.safetensors", "teacher.safetensors"}


def save_npz(path, **changes):
    np.savez(path, **{**plant(ITEMS), "label_names": [f"topic {i}" for i in range(8)], **changes})
    return FeatureStore.open(path)


@pytest.fixture(scope="module")
def split():
    return Split.draw(ITEMS, query=16, train=40, validation=8, seed=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return save_npz(tmp_path_factory.mktemp("features") / "ready.npz")


@pytest.fixture(scope="module")
def finished(store, split, tmp_path_factory):
    """One finished run that no test changes."""
    return Run.create(tmp_path_factory.mktemp("runs") / "run", store, split, SMALL)


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of its folder to spoil."""
    return Path(shutil.copytree(finished.folder, tmp_path / "copy"))


def weights_equal(first, second):
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


def teachers_equal(first, second):
    return (
        np.array_equal(first.tau, second.tau)
        and np.array_equal(first.rho, second.rho)
        and all(np.array_equal(value, getattr(second.graph, name)) for name, value in vars(first.graph).items())
    )


def test_a_run_folder_holds_what_it_promises_and_no_more(finished, store, split):
    assert {path.name for path in finished.folder.iterdir()} == FILES
    record = json.loads((finished.folder / "run.json").read_text(encoding="utf-8"))
    assert record["config"] == SMALL.to_dict() and record["config"]["seed"] == 42
    assert record["label_names"] == [f"topic {i}" for i in range(8)]
    assert record["recipe"] == store.recipe.to_dict()
    assert record["data"] == store.fingerprint() and Path(record["features"]) == store.source.resolve()
    assert record["model"] == finished.model.fingerprint() and tuple(record["blocks"]) == finished.model.blocks
    for name in ("multibit", "torch", "numpy", "scipy", "numba", "safetensors"):
        assert record["versions"][name] == version(name)
    assert record["versions"]["python"] == platform.python_version()
    assert record["device"] == "cpu" and record["threads"] == torch.get_num_threads()
    history = [json.loads(line) for line in (finished.folder / "history.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in history] == [1, 2, 3, 4]
    scores = [row["validation_mAP"] for row in history]
    assert record["selection"] == {
        "epoch": 1 + int(np.argmax(scores)),
        "validation_mean_mAP": max(scores),
        "rule": "largest validation mean mAP",
    }


def test_a_loaded_run_is_the_run_that_was_made(finished, store, split):
    loaded = Run.load(finished.folder)
    assert loaded.config == SMALL and loaded.recipe == store.recipe
    assert loaded.label_names == store.dataset.label_names
    assert weights_equal(loaded.model, finished.model) and not loaded.model.training
    for role in ("train", "validation", "query", "database", "unseen"):
        assert np.array_equal(getattr(loaded.split, role), getattr(split, role))
    assert loaded.split.seed == 3
    teacher = RelationTeacher.fit(
        store.dataset.labels[split.train], SMALL.alpha, SMALL.eta, SMALL.scales, SMALL.epsilon
    )
    assert teachers_equal(loaded.teacher, teacher)


def test_the_same_command_makes_the_same_run(finished, store, split, tmp_path):
    again = Run.create(tmp_path / "again", store, split, SMALL)
    assert again.record == finished.record
    assert (again.folder / "history.jsonl").read_bytes() == (finished.folder / "history.jsonl").read_bytes()
    other = Run.create(tmp_path / "other", store, split, dataclasses.replace(SMALL, seed=1))
    assert other.record["model"] != finished.record["model"]


def test_a_run_without_validation_rows_keeps_the_last_epoch_and_says_so(store, tmp_path):
    run = Run.create(tmp_path / "run", store, Split.draw(ITEMS, query=10, train=30, validation=0), SMALL)
    assert run.record["selection"] == {
        "epoch": SMALL.epochs,
        "validation_mean_mAP": None,
        "rule": "last epoch, no validation rows",
    }


@pytest.mark.parametrize("poison", ["noise", "not a number"])
def test_query_and_unseen_rows_cannot_reach_the_model(poison, finished, split, tmp_path):
    """Everything about them is replaced but the label names: model, teacher and selection stay bit for bit."""
    rng, data = np.random.default_rng(1), plant(ITEMS)
    forbidden = np.concatenate([split.query, split.unseen])
    assert len(forbidden) == ITEMS - len(split.train) - len(split.validation)
    for name in ("image", "text"):
        noise = 100 * rng.normal(size=data[name].shape)
        data[name][forbidden] = noise[forbidden] if poison == "noise" else np.nan
    data["labels"][forbidden] = 1 - data["labels"][forbidden]
    poisoned = Run.create(tmp_path / "run", save_npz(tmp_path / "poisoned.npz", **data), split, SMALL)
    assert poisoned.record["data"] != finished.record["data"]
    assert weights_equal(poisoned.model, finished.model)
    assert teachers_equal(poisoned.teacher, finished.teacher)
    assert poisoned.record["selection"] == finished.record["selection"]
    assert (poisoned.folder / "history.jsonl").read_bytes() == (finished.folder / "history.jsonl").read_bytes()


def test_validation_rows_reach_the_selection_only(finished, split, tmp_path):
    data = plant(ITEMS)
    data["labels"][split.validation] = data["labels"][split.validation][::-1]
    other = Run.create(tmp_path / "run", save_npz(tmp_path / "other.npz", **data), split, SMALL)
    histories = [
        [json.loads(line) for line in (run.folder / "history.jsonl").read_text().splitlines()]
        for run in (finished, other)
    ]
    scores = [[row.pop("validation_mAP") for row in history] for history in histories]
    assert scores[0] != scores[1] and histories[0] == histories[1]
    assert teachers_equal(other.teacher, finished.teacher)


@pytest.mark.parametrize("role", ["train", "label"])
def test_training_rows_do_reach_the_model(role, finished, split, tmp_path):
    data = plant(ITEMS)
    changed = data["image" if role == "train" else "labels"]
    changed[split.train] = changed[split.train][::-1]
    other = Run.create(tmp_path / "run", save_npz(tmp_path / "other.npz", **data), split, SMALL)
    assert not weights_equal(other.model, finished.model)


def test_an_interrupted_run_goes_on_to_the_same_result(finished, store, split, tmp_path, monkeypatch):
    calls, score = [], training.selection_score

    def press_ctrl_c(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score(*args)

    whole_train = runs.train
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training, "selection_score", press_ctrl_c)
        patch.setattr(runs, "train", lambda *args, **kwargs: whole_train(*args, **kwargs, save_every=0))
        Run.create(tmp_path / "run", store, split, SMALL)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [STATE_FILE]
    with pytest.raises(FormatError, match="its training is not finished"):
        Run.load(tmp_path / "run")
    resumed = Run.create(tmp_path / "run", store, split, SMALL)
    assert resumed.record == finished.record
    assert {path.name for path in resumed.folder.iterdir()} == FILES
    assert (resumed.folder / "history.jsonl").read_bytes() == (finished.folder / "history.jsonl").read_bytes()


def test_a_crash_before_the_last_file_leaves_an_unfinished_run_that_goes_on(
    finished, store, split, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(Split, "save", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        Run.create(tmp_path / "run", store, split, SMALL)
    with pytest.raises(FormatError, match="not finished"):
        Run.load(tmp_path / "run")
    assert Run.create(tmp_path / "run", store, split, SMALL).record == finished.record


def test_an_unfinished_run_of_other_settings_is_not_continued(store, split, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(Split, "save", lambda *_: (_ for _ in ()).throw(OSError))
        Run.create(tmp_path / "run", store, split, SMALL)
    with pytest.raises(MismatchError, match=r"other settings or data\. Choose another folder or delete it"):
        Run.create(tmp_path / "run", store, split, dataclasses.replace(SMALL, epochs=9))


def test_a_finished_run_is_not_overwritten(finished, store, split):
    with pytest.raises(DataError, match=r"holds a finished run\. Choose another folder or delete it first"):
        Run.create(finished.folder, store, split, SMALL)


@pytest.mark.parametrize(
    ("role", "rows", "message"),
    [
        ("train", [1, 2, 999], "split: train names row 999, the features have 80 rows"),
        ("validation", [80], "split: validation names row 80, the features have 80 rows"),
        ("query", [40, 999], "split: query names row 999, the features have 80 rows"),
        ("database", [0, 999], "split: database names row 999, the features have 80 rows"),
        ("database", [], "split: no row in database"),
        ("query", [], "split: no row in query"),
    ],
)
def test_a_split_that_does_not_fit_is_refused_with_its_row(role, rows, message, store, tmp_path):
    given = {"train": np.arange(30), "validation": [], "query": [40, 41], "database": np.arange(40), "seed": 0}
    with pytest.raises(DataError, match=message):
        Run.create(tmp_path / "run", store, Split(**{**given, role: np.array(rows, int)}), SMALL)
    assert not (tmp_path / "run").exists()


def test_a_refused_device_leaves_no_finished_run(store, split, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        Run.create(tmp_path / "run", store, split, SMALL, device="cuda")
    assert not (tmp_path / "run" / "run.json").exists()


def test_an_empty_folder_is_no_run(tmp_path):
    with pytest.raises(FormatError, match=r"run\.json: no such file, so this is not a complete multibit run"):
        Run.load(tmp_path)


@pytest.mark.parametrize("name", sorted(FILES - {"history.jsonl"}))
def test_a_run_with_a_missing_file_is_refused(name, copy):
    (copy / name).unlink()
    with pytest.raises(FormatError, match=f"{name}: no such file"):
        Run.load(copy)


@pytest.mark.parametrize("name", sorted(FILES - {"history.jsonl"}))
def test_a_run_with_a_torn_file_is_refused(name, copy):
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(FormatError, match=rf"{name}: (torn|not readable as JSON)"):
        Run.load(copy)


def test_a_run_of_a_newer_version_is_refused(copy):
    record = read_json(copy / "run.json", kind="run", version=1)
    write_json(copy / "run.json", {**record, "version": 2}, kind="run", version=2)
    with pytest.raises(FormatError, match="format version 2, this multibit reads up to 1"):
        Run.load(copy)


@pytest.mark.parametrize(
    ("name", "kind"), [("model", "hash model"), ("split", "split"), ("teacher", "relation teacher")]
)
def test_a_run_with_a_part_of_a_newer_version_is_refused(name, kind, copy):
    path = copy / f"{name}.safetensors"
    write_arrays(path, *read_arrays(path, kind=kind, version=99), kind=kind, version=99)
    with pytest.raises(FormatError, match=f"{name}.*version 99"):
        Run.load(copy)


@pytest.fixture(scope="module")
def other_run(store, tmp_path_factory):
    """A run on the same features by another split and seed."""
    split = Split.draw(ITEMS, query=16, train=40, validation=8, seed=4)
    return Run.create(tmp_path_factory.mktemp("other") / "run", store, split, dataclasses.replace(SMALL, seed=5))


@pytest.mark.parametrize("name", ["model", "split", "teacher"])
def test_a_file_of_another_run_is_refused(name, copy, finished, other_run):
    assert not weights_equal(other_run.model, finished.model) and not teachers_equal(
        other_run.teacher, finished.teacher
    )
    shutil.copy(other_run.folder / f"{name}.safetensors", copy)
    with pytest.raises(FormatError, match=rf"{name}\.safetensors is not the {name} that run\.json describes"):
        Run.load(copy)


@pytest.mark.parametrize("field", ["config", "model", "teacher", "split", "recipe", "label_names", "data", "features"])
def test_a_record_without_a_field_is_refused(field, copy):
    record = read_json(copy / "run.json", kind="run", version=1)
    record.pop(field)
    write_json(copy / "run.json", record, kind="run", version=1)
    with pytest.raises(FormatError, match=rf"run\.json: lacks {field}"):
        Run.load(copy)


def test_a_file_is_no_run(tmp_path):
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(FormatError, match=r"run\.json: no such file, so this is not a complete multibit run"):
        Run.load(tmp_path / "run")


def test_features_are_found_where_they_were(finished, store):
    assert finished.open_features().fingerprint() == store.fingerprint()


def test_features_of_the_same_recipe_are_taken(finished, tmp_path):
    save_npz(tmp_path / "more.npz", **plant(12, seed=9), ids=[f"new {i}" for i in range(12)])
    assert len(finished.open_features(tmp_path / "more.npz")) == 12


def test_features_of_another_recipe_are_refused(finished, tmp_path):
    save_npz(tmp_path / "other.npz", recipe="clip")
    with pytest.raises(MismatchError, match=r"other\.npz have name 'clip', the model was trained on 'ready-made'"):
        finished.open_features(tmp_path / "other.npz")


def test_features_of_another_length_are_refused(finished, tmp_path):
    save_npz(tmp_path / "other.npz", image=plant(ITEMS, image_dim=9)["image"])
    with pytest.raises(MismatchError, match="have dimension 9, the model was trained on 24"):
        finished.open_features(tmp_path / "other.npz")


def test_features_that_are_gone_are_reported(store, split, tmp_path):
    path = tmp_path / "moved.npz"
    run = Run.create(tmp_path / "run", save_npz(path), split, SMALL)
    path.rename(tmp_path / "elsewhere.npz")
    with pytest.raises(DataError, match=r"moved\.npz: the features that this run was trained on are gone"):
        run.open_features()
    assert len(run.open_features(tmp_path / "elsewhere.npz")) == ITEMS


def test_a_run_on_features_in_memory_asks_for_their_path(store, split, tmp_path):
    run = Run.create(tmp_path / "run", dataclasses.replace(store, source=None), split, SMALL)
    with pytest.raises(DataError, match="does not know where its features are; name them"):
        run.open_features()


@pytest.mark.parametrize("field", ["image", "text", "labels", "ids", "label_names"])
def test_evaluation_refuses_other_data(field, finished, tmp_path):
    names = {"ids": [f"id {i}" for i in range(ITEMS)], "label_names": [f"theme {i}" for i in range(8)]}
    data = plant(ITEMS)
    if field in data:
        data[field][0] = 1 - data[field][0]
    changed = names[field] if field in names else data[field]
    other = save_npz(tmp_path / "other.npz", **{field: changed})
    with pytest.raises(MismatchError, match=r"other\.npz: not the data that the run's split belongs to, so training"):
        finished.evaluate(other)


def test_evaluation_takes_the_same_data_from_another_place(finished, tmp_path):
    moved = save_npz(tmp_path / "moved.npz")
    assert [evaluation.queries for evaluation in finished.evaluate(moved)] == [16, 16]


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
    evaluations = finished.evaluate(store, at=5)
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
                for metric, cut in (("mAP", None), ("mAP@5", 5)):
                    np.testing.assert_allclose(
                        evaluation.values[metric, direction, bits], slow_average_precision(*sides, cut), atol=1e-12
                    )


def test_training_rows_are_left_out_of_the_second_protocol_only(finished, store):
    first, second = finished.evaluate(store)
    assert "training items in the database" in first.protocol and "kept out" in second.protocol


def test_a_database_of_training_rows_only_has_one_protocol(store, tmp_path):
    run = Run.create(tmp_path / "run", store, Split.draw(ITEMS, query=20, train=52, validation=8), SMALL)
    assert len(run.split.unseen) == 0
    assert [evaluation.database for evaluation in run.evaluate(store)] == [60]


def indexed(run, store, modality, rows=None):
    index = Index(model=run.model.fingerprint())
    run.index_items(index, store, modality, rows)
    return index


def ids_of(index):
    return [index.ids[row] for row in range(len(index))]


@pytest.mark.parametrize("modality", ["image", "text"])
def test_an_index_holds_the_codes_and_facts_of_its_items(modality, finished, store):
    rows = np.array([7, 3, 70])
    index = indexed(finished, store, modality, rows)
    assert ids_of(index) == ["7", "3", "70"] and index.model == finished.model.fingerprint()
    expected = finished.model.encode(getattr(store, modality)[rows], modality) >= 0
    assert np.array_equal(index.codes.to_bits(), expected)
    assert index.payloads[0]["labels"] == [f"topic {i}" for i in np.flatnonzero(store.dataset.labels[7])]


def test_an_index_holds_all_items_unless_rows_are_named(finished, store):
    assert ids_of(indexed(finished, store, "image")) == list(store.dataset.ids)


def test_items_that_the_index_knows_are_replaced(finished, store):
    index = indexed(finished, store, "image", np.array([7, 3]))
    finished.index_items(index, store, "text", np.array([3, 4]))
    assert ids_of(index) == ["7", "3", "4"]
    assert index.codes.take([1]) == indexed(finished, store, "text", np.array([3])).codes


def test_the_index_of_another_run_is_refused(finished, other_run, store):
    index = indexed(finished, store, "image")
    with pytest.raises(MismatchError, match="Build the index again with this model"):
        other_run.index_items(index, store, "image")
    assert len(index) == ITEMS


@pytest.mark.parametrize("bits", [None, 1, 6, 9])
def test_saved_codes_are_those_of_the_prefix(bits, finished, store, tmp_path):
    finished.save_codes(tmp_path / "c.npz", store, bits)
    with np.load(tmp_path / "c.npz", allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    assert found["bits"] == (bits or 16) and found["ids"].tolist() == list(store.dataset.ids)
    for modality in ("image", "text"):
        expected = finished.model.encode(getattr(store, modality), modality) >= 0
        assert np.array_equal(np.unpackbits(found[modality], axis=1)[:, : bits or 16], expected[:, :bits])


def test_a_mat_file_holds_queries_and_database_as_signs(finished, store, split, tmp_path):
    finished.save_mat(tmp_path / "c.mat", store, 6)
    found = scipy.io.loadmat(tmp_path / "c.mat")
    for side, rows in (("q", split.query), ("r", split.database)):
        assert np.array_equal(found[f"{side}_l"], store.dataset.labels[rows])
        for name, modality in (("img", "image"), ("txt", "text")):
            expected = finished.model.encode(getattr(store, modality)[rows], modality)[:, :6] >= 0
            assert np.array_equal(found[f"{side}_{name}"], np.where(expected, 1, -1))


def test_a_mat_file_of_other_data_is_refused(finished, tmp_path):
    other = save_npz(tmp_path / "other.npz", **plant(ITEMS, seed=8))
    with pytest.raises(MismatchError, match="not the data that the run's split belongs to"):
        finished.save_mat(tmp_path / "c.mat", other)
    assert not (tmp_path / "c.mat").exists()


class Pictures:
    """The mean colour, for tests."""

    batch_size = 4

    def __init__(self, weights="one"):
        self.recipe = EncoderRecipe("tiny-pictures", weights, 3, "mean colour")

    def prepare(self, picture):
        return np.asarray(picture)

    def encode(self, prepared):
        return np.stack([array.reshape(-1, 3).mean(axis=0) - 100 for array in prepared]).astype(np.float32)


class Texts:
    """How often some letters occur, for tests."""

    def __init__(self, weights="one"):
        self.recipe = EncoderRecipe("tiny-texts", weights, 5, "letters")

    def encode(self, texts):
        return np.array([[1 + text.count(letter) for letter in "abcde"] for text in texts], np.float32)


@pytest.fixture
def encoded(tmp_path, monkeypatch):
    """A run whose features come from encoders, which are at hand."""
    monkeypatch.setitem(encoders.PICTURE_ENCODERS, "tiny-pictures", lambda _: Pictures())
    monkeypatch.setitem(encoders.TEXT_ENCODERS, "tiny-texts", lambda _: Texts())
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
    recipe = Recipe(Pictures().recipe, Texts().recipe)
    store = FeatureStore(dataset, image, texts, np.arange(ITEMS + 1) * 2, recipe)
    return Run.create(tmp_path / "run", store, Split.usual(ITEMS), SMALL)


def test_a_text_is_encoded_as_the_features_were(encoded):
    expected = encoded.model.encode(Texts().encode(["abba"]), "text")
    assert np.array_equal(encoded.encode_text("abba"), expected)


def test_a_picture_is_encoded_as_the_features_were(encoded, tmp_path):
    Image.new("RGB", (4, 2), (200, 30, 60)).save(tmp_path / "rot.png")
    expected = encoded.model.encode(np.array([[100, -70, -40]], np.float32), "image")
    assert np.array_equal(encoded.encode_picture(tmp_path / "rot.png"), expected)


def test_encoders_of_other_weights_are_refused(encoded, tmp_path, monkeypatch):
    monkeypatch.setitem(encoders.PICTURE_ENCODERS, "tiny-pictures", lambda _: Pictures("two"))
    monkeypatch.setitem(encoders.TEXT_ENCODERS, "tiny-texts", lambda _: Texts("two"))
    message = "this machine's encoders have weights 'two', the model was trained on 'one'"
    with pytest.raises(MismatchError, match=message):
        encoded.encode_text("abba")
    Image.new("RGB", (4, 2)).save(tmp_path / "black.png")
    with pytest.raises(MismatchError, match=message):
        encoded.encode_picture(tmp_path / "black.png")


def test_a_picture_query_that_is_gone_is_reported(encoded, tmp_path):
    with pytest.raises(DataError, match=r"gone\.png: no such picture"):
        encoded.encode_picture(tmp_path / "gone.png")


def test_a_run_on_ready_made_features_has_no_encoder_for_raw_queries(finished):
    with pytest.raises(DataError, match=r"trained on ready features \(ready-made\), so it cannot encode a raw text"):
        finished.encode_text("a cat")


def test_a_run_on_half_precision_features_equals_one_on_the_same_values(split, tmp_path):
    half = {name: plant(ITEMS)[name].astype(np.float16) for name in ("image", "text")}
    whole = {name: array.astype(np.float32) for name, array in half.items()}
    models = [
        Run.create(tmp_path / name, save_npz(tmp_path / f"{name}.npz", **data), split, SMALL).record["model"]
        for name, data in (("half", half), ("whole", whole))
    ]
    assert models[0] == models[1]


def test_a_run_folder_may_be_moved(copy, finished):
    assert weights_equal(Run.load(copy).model, finished.model)


# ---- run.json edited by hand ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *(({name: 3}, f"cannot be understood at {name}, so it was edited") for name in runs.FIELDS),
        ({"label_names": ["x"]}, "is not what its fingerprint says, so it was edited"),
        ({"selection": {"epoch": "two", "rule": "r"}}, "is not what its fingerprint says, so it was edited"),
        ({"dataset": {"items": 3}}, "cannot be understood at dataset, fingerprint, so it was edited"),
        ({"selection": {}}, "cannot be understood at selection, epoch, so it was edited"),
        ({"recipe": {}}, "cannot be understood at recipe, so it was edited"),
        ({"recipe": {"image": 3, "text": {}}}, "cannot be understood at recipe, so it was edited"),
        ({"config": {"epochs": True}}, "epochs: cannot read True as int. It was edited"),
        ({"config": {"patience": 3}}, "unknown setting patience; there are"),
    ],
    ids=str,
)
def test_a_record_that_was_edited_is_named(change, sentence, copy):
    record = json.loads((copy / "run.json").read_text(encoding="utf-8"))
    (copy / "run.json").write_text(json.dumps({**record, **change}), encoding="utf-8")
    with pytest.raises(FormatError) as caught:
        Run.load(copy)
    assert str(caught.value).startswith(f"{copy / 'run.json'}: {sentence}")


def test_features_that_nobody_knows_are_a_record_too(copy):
    record = json.loads((copy / "run.json").read_text(encoding="utf-8"))
    (copy / "run.json").write_text(json.dumps({**record, "features": None}), encoding="utf-8")
    assert Run.load(copy).record["features"] is None
