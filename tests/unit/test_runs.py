"""Run folders: content, errors, and that only training rows reach the model."""

from __future__ import annotations

import dataclasses
import json
import platform
import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import ITEMS, SMALL, plant, save_npz
from multibit import RelationTeacher, Run, Split, runs, train
from multibit.errors import BusyError, ConfigError, DataError, FormatError, MismatchError
from multibit.evaluation import protocol
from multibit.files import read_arrays, read_json, write_arrays, write_json
from multibit.folders import only_writer
from multibit.hashing import train as train_module
from multibit.hashing.methods import METHODS
from multibit.pipeline import require_comparable
from multibit.records import RUN_FILES, STATE_FILE, RunRecord, Selection, is_run
from multibit.runs import read_history

pytestmark = pytest.mark.slow  # models are trained

FILES = {"history.jsonl", "model.safetensors", "run.json", "split.safetensors", "teacher.safetensors"}


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of its folder, to modify."""
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


def test_the_files_of_a_run_folder_and_their_content(finished, store, split):
    assert {path.name for path in finished.folder.iterdir()} == FILES
    record = json.loads((finished.folder / "run.json").read_text(encoding="utf-8"))
    assert record["config"] == SMALL.to_dict() and record["config"]["seed"] == 42
    assert record["label_names"] == [f"topic {i}" for i in range(8)]
    assert record["recipe"] == store.recipe.to_dict()
    assert record["data"] == store.fingerprint() and finished.features == store.source.resolve()
    assert not Path(record["features"]).is_absolute() and str(Path.home()) not in json.dumps(record)
    assert record["model"] == finished.model.fingerprint() and tuple(record["blocks"]) == finished.model.blocks
    for name in ("multibit", "torch", "numpy", "scipy", "numba", "safetensors"):
        assert record["versions"][name] == version(name)
    assert record["versions"]["python"] == platform.python_version()
    assert record["device"] == "cpu" and record["threads"] == 1 and record["method"] == ""
    history = [json.loads(line) for line in (finished.folder / "history.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in history] == [1, 2, 3, 4]
    assert read_history(finished) == history
    scores = [row["validation_mAP"] for row in history]
    assert record["selection"] == {
        "epoch": 1 + int(np.argmax(scores)),
        "validation_mean_mAP": max(scores),
        "validation_recall": None,
        "rule": "largest validation mean mAP",
        "by_length": {},
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
    assert other.record.model != finished.record.model


def test_a_run_without_validation_rows_keeps_and_records_the_last_epoch(store, tmp_path):
    run = Run.create(tmp_path / "run", store, Split.draw(ITEMS, query=10, train=30, validation=0), SMALL)
    assert run.record.selection == Selection(SMALL.epochs, "last epoch, no validation rows", None)


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
    assert poisoned.record.data != finished.record.data
    assert weights_equal(poisoned.model, finished.model)
    assert teachers_equal(poisoned.teacher, finished.teacher)
    assert poisoned.record.selection == finished.record.selection
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


def test_an_interrupted_run_is_resumed_to_the_same_result(finished, store, split, tmp_path, monkeypatch):
    calls, score = [], train_module.selection_score

    def press_ctrl_c(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score(*args)

    whole_train = runs.train
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train_module, "selection_score", press_ctrl_c)
        patch.setattr(runs, "train", lambda *args, **kwargs: whole_train(*args, **kwargs, save_every=0))
        Run.create(tmp_path / "run", store, split, SMALL)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [STATE_FILE]
    with pytest.raises(FormatError) as caught:
        Run.load(tmp_path / "run")
    assert caught.value.file == tmp_path / "run" and "not finished" in caught.value.problem
    resumed = Run.create(tmp_path / "run", store, split, SMALL)
    assert resumed.record == finished.record
    assert {path.name for path in resumed.folder.iterdir()} == FILES
    assert (resumed.folder / "history.jsonl").read_bytes() == (finished.folder / "history.jsonl").read_bytes()


def test_a_crash_before_the_last_file_leaves_an_unfinished_run_that_is_resumed(
    finished, store, split, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(Split, "save", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        Run.create(tmp_path / "run", store, split, SMALL)
    with pytest.raises(FormatError) as caught:
        Run.load(tmp_path / "run")
    assert caught.value.file == tmp_path / "run" and "not finished" in caught.value.problem
    assert Run.create(tmp_path / "run", store, split, SMALL).record == finished.record


def test_an_unfinished_run_of_other_settings_is_not_continued(store, split, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(Split, "save", lambda *_: (_ for _ in ()).throw(OSError))
        Run.create(tmp_path / "run", store, split, SMALL)
    with pytest.raises(MismatchError) as caught:
        Run.create(tmp_path / "run", store, split, dataclasses.replace(SMALL, epochs=9))
    assert caught.value.file == tmp_path / "run" / STATE_FILE


@pytest.mark.parametrize("name", ["history.jsonl", "model.safetensors", "split.safetensors"])
def test_files_that_no_training_wrote_are_not_replaced(store, split, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(DataError) as caught:
        Run.create(tmp_path, store, split, SMALL)
    assert caught.value.file == tmp_path and name in caught.value.problem
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}


def test_a_finished_run_is_not_overwritten(finished, store, split):
    with pytest.raises(DataError) as caught:
        Run.create(finished.folder, store, split, SMALL)
    assert caught.value.file == finished.folder


@pytest.mark.parametrize(
    ("role", "rows", "numbers"),
    [
        ("train", [1, 2, 999], ("999", "0 to 79")),
        ("validation", [80], ("row 80", "0 to 79")),
        ("query", [40, 999], ("999", "0 to 79")),
        ("database", [0, 999], ("999", "0 to 79")),
        ("database", [], ()),
        ("query", [], ()),
    ],
)
def test_a_split_that_does_not_fit_is_refused_with_its_row(role, rows, numbers, store, tmp_path):
    given = {"train": np.arange(30), "validation": [], "query": [40, 41], "database": np.arange(40), "seed": 0}
    with pytest.raises(DataError) as caught:
        Run.create(tmp_path / "run", store, Split(**{**given, role: np.array(rows, int)}), SMALL)
    assert caught.value.field == "split"
    assert all(part in caught.value.problem for part in (role, *numbers))
    assert not (tmp_path / "run").exists()


def test_a_refused_device_leaves_no_finished_run(store, split, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError) as caught:
        Run.create(tmp_path / "run", store, split, SMALL, device="cuda")
    assert caught.value.option == "device"
    assert not (tmp_path / "run" / "run.json").exists()


def test_an_empty_folder_is_not_a_run(tmp_path):
    with pytest.raises(FormatError) as caught:
        Run.load(tmp_path)
    assert str(tmp_path / "run.json") in str(caught.value)


@pytest.mark.parametrize("name", sorted(FILES - {"history.jsonl"}))
def test_a_run_with_a_missing_file_is_refused(name, copy):
    (copy / name).unlink()
    with pytest.raises(FormatError) as caught:
        Run.load(copy)
    assert str(copy / name) in str(caught.value)


@pytest.mark.parametrize("name", sorted(FILES - {"history.jsonl"}))
def test_a_run_with_a_truncated_file_is_refused(name, copy):
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(FormatError) as caught:
        Run.load(copy)
    assert str(copy / name) in str(caught.value)


def test_a_run_of_a_newer_version_is_refused(copy):
    record = read_json(copy / "run.json", kind="run", version=1)
    write_json(copy / "run.json", {**record, "version": 2}, kind="run", version=2)
    with pytest.raises(FormatError) as caught:
        Run.load(copy)
    assert str(copy / "run.json") in str(caught.value) and "version 2" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"), [("model", "hash model"), ("split", "split"), ("teacher", "relation teacher")]
)
def test_a_run_with_a_part_of_a_newer_version_is_refused(name, kind, copy):
    path = copy / f"{name}.safetensors"
    write_arrays(path, *read_arrays(path, kind=kind, version=99), kind=kind, version=99)
    with pytest.raises(FormatError) as caught:
        Run.load(copy)
    assert str(path) in str(caught.value) and "version 99" in str(caught.value)


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
    with pytest.raises(FormatError) as caught:
        Run.load(copy)
    assert caught.value.file == copy and f"{name}.safetensors" in caught.value.problem


@pytest.mark.parametrize("field", ["config", "model", "teacher", "split", "recipe", "label_names", "data", "features"])
def test_a_record_without_a_field_is_refused(field, copy):
    record = read_json(copy / "run.json", kind="run", version=1)
    record.pop(field)
    write_json(copy / "run.json", record, kind="run", version=1)
    with pytest.raises(FormatError) as caught:
        Run.load(copy)
    assert (caught.value.file, caught.value.field) == (copy / "run.json", field)


def test_a_file_is_not_a_run(tmp_path):
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(FormatError) as caught:
        Run.load(tmp_path / "run")
    assert str(tmp_path / "run") in str(caught.value)


def test_a_run_on_half_precision_features_equals_one_on_the_same_values(split, tmp_path):
    half = {name: plant(ITEMS)[name].astype(np.float16) for name in ("image", "text")}
    whole = {name: array.astype(np.float32) for name, array in half.items()}
    models = [
        Run.create(tmp_path / name, save_npz(tmp_path / f"{name}.npz", **data), split, SMALL).record.model
        for name, data in (("half", half), ("whole", whole))
    ]
    assert models[0] == models[1]


def test_a_run_folder_can_be_moved(copy, finished):
    assert weights_equal(Run.load(copy).model, finished.model)


# ---- modified records ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field"),
    [
        *(
            ({each.name: 3}, each.name)
            for each in dataclasses.fields(RunRecord)
            if each.name not in ("threads", "parameters")
        ),
        ({"threads": "many"}, "threads"),
        ({"parameters": "many"}, "parameters"),
        ({"label_names": ["x"]}, ""),
        ({"config": {"epochs": 3}}, ""),
        ({"method": "baseline"}, ""),
        ({"selection": {"epoch": "two", "rule": "r"}}, "selection.epoch"),
        ({"dataset": {"items": 3}}, "dataset.fingerprint"),
        ({"selection": {}}, "selection.epoch"),
        ({"label_names": ["x", 3]}, "label_names[1]"),
    ],
    ids=str,
)
def test_a_modified_record_is_refused_with_the_field(change, field, copy):
    record = json.loads((copy / "run.json").read_text(encoding="utf-8"))
    (copy / "run.json").write_text(json.dumps({**record, **change}), encoding="utf-8")
    with pytest.raises(FormatError) as caught:
        Run.load(copy)
    assert (caught.value.file, caught.value.field) == (copy / "run.json", field)


@pytest.mark.parametrize(
    ("change", "field", "named"),
    [
        ({"recipe": {}}, "recipe.image", ""),
        ({"recipe": {"image": 3, "text": {}}}, "recipe.image", ""),
        ({"config": {"epochs": True}}, "config", "epochs"),
        ({"config": {"patience": 3}}, "config", "patience"),
    ],
    ids=str,
)
def test_a_record_of_another_version_is_refused_with_the_field(change, field, named, copy, finished):
    dataclasses.replace(finished.record, **change).write(copy / "run.json")
    with pytest.raises(FormatError) as caught:
        Run.load(copy)
    assert (caught.value.file, caught.value.field) == (copy / "run.json", field)
    assert named in caught.value.problem


def test_the_path_of_the_features_may_change(copy):
    record = json.loads((copy / "run.json").read_text(encoding="utf-8"))
    (copy / "run.json").write_text(json.dumps({**record, "features": None}), encoding="utf-8")
    assert Run.load(copy).record.features is None


def test_a_record_is_read_as_it_was_written(finished, tmp_path):
    finished.record.write(tmp_path / "run.json")
    assert RunRecord.read(tmp_path / "run.json") == finished.record


# ---- methods --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["baseline", None])
def test_the_method_is_recorded(method, store, split, tmp_path):
    tiny = {"lengths": (6, 16), "scales": 3, "hidden": 24, "dimension": 12, "epochs": 1}
    run = Run.create(tmp_path / "run", store, split, method=method, **tiny)
    assert run.record.method == (method or "multibit-plus")
    assert run.config == METHODS[run.record.method].config(**tiny)


def test_runs_of_other_lengths_or_splits_are_not_comparable(finished, other_run, store, split, tmp_path):
    require_comparable(finished, finished)
    longer = Run.create(tmp_path / "longer", store, split, dataclasses.replace(SMALL, lengths=(6, 12), epochs=1))
    unlabelled = save_npz(tmp_path / "unlabelled.npz", labels=np.zeros((ITEMS, 0), np.uint8), label_names=())
    free = Run.create(tmp_path / "free", unlabelled, split, lengths=(6, 16), epochs=1, method="multibit-free")
    for other, field in ((other_run, "split"), (longer, "lengths"), (free, "data")):
        with pytest.raises(MismatchError) as caught:
            require_comparable(finished, other)
        assert caught.value.field == field and str(other.folder) in caught.value.problem


def test_runs_on_the_same_rows_are_comparable_whatever_drew_them(finished, store, split, tmp_path):
    drawn_by_others = Split.of_roles(ITEMS, split.roles)
    assert drawn_by_others.fingerprint() != split.fingerprint()
    require_comparable(finished, Run.create(tmp_path / "run", store, drawn_by_others, SMALL))


def test_a_second_training_in_the_same_folder_is_refused(store, split, tmp_path):
    (tmp_path / "run").mkdir()
    with only_writer(tmp_path / "run"), pytest.raises(BusyError) as caught:
        Run.create(tmp_path / "run", store, split, SMALL)
    assert caught.value.file == tmp_path / "run" and (tmp_path / "run").is_dir()
    assert Run.create(tmp_path / "run", store, split, SMALL).folder == tmp_path / "run"  # the lock is gone


def test_a_model_for_each_length_is_one_run(store, split, tmp_path):
    run = Run.create(tmp_path / "run", store, split, SMALL, method="separate")
    assert sorted(path.name for path in run.folder.iterdir()) == sorted(RUN_FILES)  # no training state is left
    assert run.lengths == SMALL.lengths and run.model.models == 2 and not run.model.layout.nested
    assert set(run.record.selection.by_length) == {"6", "16"} and run.record.method == "separate"
    assert {row["bits"] for row in read_history(run)} == {6, 16}
    again = Run.load(run.folder)
    assert again.model.fingerprint() == run.record.model and again.model.layout == run.model.layout


def test_an_interrupted_model_for_each_length_is_resumed_bit_for_bit(store, split, tmp_path, monkeypatch):
    whole = Run.create(tmp_path / "whole", store, split, SMALL, method="separate")
    score, calls = protocol.selection_score, []

    def stopping(*arguments):
        calls.append(1)
        if len(calls) == SMALL.epochs + 2:  # in the second epoch of the second length
            raise KeyboardInterrupt
        return score(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("multibit.hashing.train.selection_score", stopping)
        Run.create(tmp_path / "cut", store, split, SMALL, method="separate")
    assert is_run(tmp_path / "cut") and (tmp_path / "cut" / "training-state-6.pt").exists()
    with pytest.raises(FormatError):
        Run.load(tmp_path / "cut")
    resumed = Run.create(tmp_path / "cut", store, split, SMALL, method="separate")
    assert resumed.record.model == whole.record.model and read_history(resumed) == read_history(whole)


def test_a_run_and_a_training_have_a_short_repr(finished, store, split):
    assert repr(finished) == f"Run({str(finished.folder)!r}, 16 bits)"
    assert len(repr(train(store.take(split.train), config=SMALL))) < 80
    assert len(repr(store.dataset)) < 80


@pytest.mark.parametrize(
    "line", ["", "not JSON", "[]", '{"epoch": 1}', '{"epoch": "one", "total": 1, "learning_rate": 1}']
)
def test_a_corrupt_history_is_refused(line, copy):
    run, path = Run.load(copy), copy / "history.jsonl"
    if line:
        path.write_text(line + "\n")
    else:
        path.unlink()
    with pytest.raises(FormatError) as caught:
        read_history(run)
    assert caught.value.file == path


def test_what_is_no_run_folder_is_named(store, tmp_path):
    store.save(tmp_path / "features")
    (tmp_path / "items.csv").write_text("id,text\n")
    for name, said in (("features", "feature store"), ("items.csv", "a file"), ("nothing", "no such")):
        with pytest.raises(FormatError) as caught:
            Run.load(tmp_path / name)
        assert caught.value.file == tmp_path / name and said in caught.value.problem and "train" in caught.value.hint
