"""The command line: the full pipeline on small images, ready features, help, and Ctrl-C."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import scipy.io
import torch
import typer.main
from PIL import Image

import multibit
from commands import TINY, assert_golden, assert_names, cli, done, masked, refused, settings
from conftest import plant
from multibit import (
    METHODS,
    Codes,
    FeatureStore,
    HashModel,
    Index,
    RelationTeacher,
    Run,
    Split,
    encode_text,
    load_evaluations,
)
from multibit.cli import app, options
from multibit.cli.app import flags_of
from multibit.codes import Modality
from multibit.data.manifest import read_manifest
from multibit.features import packaged as encoders
from multibit.features.recipe import EncoderRecipe
from multibit.hashing.methods.multibit import build_model
from multibit.hashing.state import TrainingState
from multibit.hashing.train import Training
from multibit.records import STATE_FILE
from multibit.search.engines import ENGINES

GOLDEN = Path(__file__).parent / "golden"
VERBS = (
    "demo", "import", "label", "check", "features", "select", "train", "encode", "evaluate", "index", "merge", "export",
    "search", "duplicates", "serve", "push", "methods", "reproduce", "info",
)  # fmt: skip
COLOURS = {
    "rot": (200, 30, 30),
    "grün": (30, 180, 40),
    "синий": (30, 40, 200),
    "黄色": (220, 210, 40),
    "violet foncé": (140, 30, 160),
    "grau|weiß": (190, 190, 190),
}
SETTINGS = settings(epochs=30, lengths="8,16", scales=3, hidden=64, dimension=16, learning_rate=0.01)


@pytest.fixture(autouse=True)
def plain_output(monkeypatch):
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "PY_COLORS"):
        monkeypatch.delenv(name, raising=False)


class Images:
    """Colours on a 2 x 2 grid."""

    batch_size = 8

    def __init__(self, name):
        self.recipe = EncoderRecipe(name, "colours", 12, "RGB, 2 x 2")

    def prepare(self, image):
        return np.asarray(image.resize((2, 2)))

    def encode(self, prepared):
        return np.stack([array.reshape(-1).astype(np.float32) - 128 for array in prepared])


class Texts:
    """A random vector for each word, summed."""

    def __init__(self, name):
        self.recipe = EncoderRecipe(name, "words", 16, "bag of words")

    def encode(self, texts):
        return np.stack([sum((self._word(word) for word in text.lower().split()), np.zeros(16)) for text in texts])

    def truncated(self, texts):
        return 0

    @staticmethod
    def _word(word):
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
        return np.random.default_rng(seed).normal(size=16).astype(np.float32)


def draw_images(folder, count=60):
    """Noisy images of one colour each, and their manifest, whose last row has a file that is not an image."""
    rng = np.random.default_rng(0)
    rows = []
    (folder / "Bilder für alle").mkdir(parents=True)
    for number in range(count):
        colour = list(COLOURS)[number % len(COLOURS)]
        pixels = np.clip(np.array(COLOURS[colour]) + rng.normal(0, 25, size=(9, 12, 3)), 0, 255).astype(np.uint8)
        name = f"Bilder für alle/{colour.replace('|', '·')} № {number:02d}.png"
        Image.fromarray(pixels).save(folder / name)
        texts = [f"{colour} {colour} {number}"] + [f"ein Bild : {colour} {colour}"] * (number % 3 == 0)
        labels = [colour, "selten"][: 1 + (number % 10 == 9)]
        rows.append({"id": f"Ω{number}", "image": name, "texts": texts, "labels": labels})
    (folder / "kaputt.png").write_text("no picture")
    rows.append({"id": "kaputt", "image": "kaputt.png", "texts": ["x"], "labels": []})
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (folder / "Stücke.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder / "Stücke.jsonl"


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """Features, run, evaluation, codes and index of the images, each made by its verb; and what the verbs printed."""
    folder = tmp_path_factory.mktemp("ein ganzer Lauf")
    data = draw_images(folder)
    features, run = folder / "features", folder / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(encoders.IMAGE_ENCODERS, "colours", lambda _: Images("colours"))
        patch.setitem(encoders.TEXT_ENCODERS, "words", lambda _: Texts("words"))
        chosen = ["--image-encoder", "colours", "--text-encoder", "words"]
        sizes = ["--queries", 12, "--training", 36, "--validation", 6]
        printed = {
            "features": done("features", data, "--out", features, *chosen),
            "again": done("features", data, "--out", features, *chosen),
            "train": done("train", features, "--out", run, *SETTINGS, *sizes),
            "evaluate": done("evaluate", run, "--at", 5, "--no-report"),
            "encode": done("encode", run, "--out", folder / "codes.npz"),
            "index": done("index", run),
        }
        yield SimpleNamespace(folder=folder, data=data, features=features, run=run, printed=printed)


def hits(line, query, *options):
    return [json.loads(row) for row in done("search", line.run, query, "--json", *options).splitlines()]


def ids_of(index):
    return [index.ids[row] for row in range(len(index))]


def image_of(line, number):
    return next((line.folder / "Bilder für alle").glob(f"*№ {number:02d}.png"))


def test_features_keep_every_readable_item_and_list_the_others(line):
    assert f"Wrote {line.features}: 60 items, 1 skipped" in line.printed["features"]
    assert "skipped kaputt: " in line.printed["features"]
    store = FeatureStore.open(line.features)
    assert store.dataset.ids == tuple(f"Ω{number}" for number in range(60)) and len(store.text) == 80
    assert sorted(store.dataset.label_names) == sorted([*COLOURS, "selten"])


def test_features_made_already_are_kept(line):
    assert f"Kept {line.features}: 60 items, 1 skipped" in line.printed["again"]


def test_training_names_the_run_and_the_chosen_epoch(line):
    selected = Run.load(line.run).record.selection.epoch
    assert f"16-bit code, best epoch {selected} (largest validation mean mAP)" in line.printed["train"]


def test_evaluation_prints_both_protocols_far_above_chance(line):
    printed = line.printed["evaluate"]
    for words in ("training items in the database", "training items kept out", "8 bits", "16 bits", "precision@5"):
        assert words in printed
    content = json.loads((line.run / "evaluation.json").read_text(encoding="utf-8"))
    for evaluation in content["evaluations"]:
        assert evaluation["fingerprints"]["run"] == Run.load(line.run).model.fingerprint()
        measured = [row["value"] for row in evaluation["means"] if row["metric"] == "mAP"]
        assert len(measured) == 4 and min(measured) > evaluation["floors"]["random"] + 0.2


@pytest.mark.parametrize("name", ["evaluation.json", "evaluation.parquet"])
def test_a_damaged_evaluation_of_a_run_is_made_again(line, name, tmp_path):
    run = Path(shutil.copytree(line.run, tmp_path / "run"))
    asked = ("evaluate", run, line.features, "--no-report")
    done(*asked)
    before = load_evaluations(run / "evaluation.json")
    (run / name).write_text("{")
    done(*asked)
    assert load_evaluations(run / "evaluation.json") == before
    elsewhere = tmp_path / "evaluation.json"
    elsewhere.with_name(name).write_text("{")  # which may be anything
    assert_names(refused(*asked, "--out", elsewhere), elsewhere.with_name(name))
    assert elsewhere.with_name(name).read_text() == "{"


def test_the_codes_file_is_plain_numpy_and_its_prefixes_are_the_codes(line):
    with np.load(line.folder / "codes.npz", allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    store, model = FeatureStore.open(line.features), HashModel.load(line.run / "model.safetensors")
    ends = store.offsets
    means = np.stack([store.text[ends[i] : ends[i + 1]].mean(axis=0) for i in range(60)])
    assert found["ids"].tolist() == list(store.dataset.ids) and found["bits"] == 16
    assert str(found["model"]) == model.fingerprint()
    for modality, vectors in (("image", store.image), ("text", means)):
        relaxed = model.encode(vectors, modality)
        sure = np.abs(relaxed) > 1e-5  # the mean may be rounded otherwise
        bits = np.unpackbits(found[modality], axis=1)
        assert found[modality].dtype == np.uint8 and sure.mean() > 0.99
        for length in (1, 8, 13, 16):
            assert (bits[:, :length] == (relaxed >= 0)[:, :length])[sure[:, :length]].all()


@pytest.mark.parametrize("colour", [colour for colour in COLOURS if " " not in colour])
def test_a_text_finds_images_of_its_colour(colour, line):
    found = hits(line, f"{colour} {colour}", "-k", 5)
    assert [row["rank"] for row in found] == [1, 2, 3, 4, 5] and {row["bits"] for row in found} == {16}
    assert sum(colour in row["labels"] for row in found) >= 3  # chance is one in six
    assert all(Path(row["image"]).is_file() for row in found)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_image_finds_texts_of_its_colour(number, line):
    found = hits(line, image_of(line, number), "-k", 5, "--bits", 8)
    assert {row["bits"] for row in found} == {8} and max(row["distance"] for row in found) <= 8
    assert sum(list(COLOURS)[number] in row["text"] for row in found) >= 3  # chance is one in six


def test_an_image_finds_itself_at_distance_zero(line):
    found = hits(line, image_of(line, 7), "--in", "image", "-k", 60)
    assert next(row["distance"] for row in found if row["id"] == "Ω7") == 0
    order = [(row["distance"], int(row["id"][1:])) for row in found]
    assert order == sorted(order) and len(found) == 60


def test_hits_are_those_of_the_index_of_python(line):
    run, index = Run.load(line.run), Index.load(line.run / "index" / "image.mbx")
    expected = index.search(Codes.binarize(encode_text(run, "rot")), 7, 11).hits()
    found = hits(line, "rot", "-k", 7, "--bits", 11)
    assert [(row["id"], row["distance"]) for row in found] == [(hit.id, hit.distance) for hit in expected]
    assert [row["labels"] for row in found] == [hit.payload["labels"] for hit in expected]


def test_json_lines_are_not_escaped(line):
    printed = done("search", line.run, "синий синий", "--json")
    assert "синий" in printed and "\\u" not in printed


def test_hits_are_printed_as_a_table_unless_asked_otherwise(line):
    printed = done("search", line.run, "grün", "-k", 3)
    assert "3 nearest images at 16 bits" in printed and "Ω" in printed
    printed = done("search", line.run, image_of(line, 1), "-k", 3, "--bits", 5)
    assert "3 nearest texts at 5 bits" in printed and "grün" in printed


def test_a_query_is_read_as_told(line):
    assert "image" in hits(line, "rot.png", "--as", "text", "-k", 1)[0]
    assert_names(refused("search", line.run, "rot.png"), "rot.png")  # an image by its ending, and there is none


def test_the_hits_can_be_drawn(line, tmp_path):
    sheet = tmp_path / "Treffer" / "sheet.png"
    assert f"Wrote {sheet}" in done("search", line.run, "rot", "--sheet", sheet)
    with Image.open(sheet) as image:
        assert image.width > 1000 and len(image.convert("RGB").getcolors(1 << 20)) > 100


def test_json_lines_stay_alone_on_standard_output(line, tmp_path):
    result = cli("search", line.run, "rot", "--json", "--sheet", tmp_path / "s.png", "-k", 2)
    assert [json.loads(each)["rank"] for each in result.out.splitlines()] == [1, 2]
    assert f"Wrote {tmp_path / 's.png'}" in result.err


def test_an_index_can_hold_the_database_only(line, tmp_path):
    done("index", line.run, "--items", "database", "--out", tmp_path / "index")
    run, store = Run.load(line.run), FeatureStore.open(line.features)
    for modality in ("image", "text"):
        index = Index.load(tmp_path / "index" / f"{modality}.mbx")
        assert ids_of(index) == [store.dataset.ids[row] for row in run.split.database]
    found = hits(line, image_of(line, 0), "--index", tmp_path / "index", "-k", 100)
    assert len(found) == 48


def test_codes_can_be_truncated_and_written_for_matlab(line, tmp_path):
    done("encode", line.run, "--out", tmp_path / "c.npz", "--bits", 9)
    done("encode", line.run, "--out", tmp_path / "c.mat", "--bits", 9)
    mat, split = scipy.io.loadmat(tmp_path / "c.mat"), Run.load(line.run).split
    with np.load(tmp_path / "c.npz") as file:
        for key, rows, modality in (("q_img", split.query, "image"), ("r_txt", split.database, "text")):
            bits = np.unpackbits(file[modality], axis=1)[rows, :9]
            assert np.array_equal(mat[key], 2.0 * bits - 1)


def test_evaluation_can_print_markdown_and_write_elsewhere(line, tmp_path):
    printed = done("evaluate", line.run, line.features, "--markdown", "--no-report", "--out", tmp_path / "e.json")
    assert "| image-to-text, mAP |" in printed and "|---|--:|--:|" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"e.json", "e.parquet"}


@pytest.mark.parametrize(
    ("name", "what"),
    [("Stücke.jsonl", "dataset"), ("features", "features"), ("run", "run"), ("run/index/text.mbx", "index"),
     ("codes.npz", "codes")],
)  # fmt: skip
def test_info_knows_every_kind_of_file(name, what, line):
    assert re.search(rf"(?m)^what: +{what}$", done("info", line.folder / name))


@pytest.mark.parametrize("name", ["Stücke.jsonl", "features", "run/index/text.mbx", "codes.npz"])
def test_info_of_the_images_reads_as_stored(name, line):
    stored = {"Stücke.jsonl": "data", "run/index/text.mbx": "index", "codes.npz": "codes"}.get(name, name)
    assert_golden(GOLDEN / f"info-{stored}.txt", masked(done("info", line.folder / name), line.folder))


def exact_features(path):
    """Patterns of +-1, one per topic, with some signs flipped: a sum of nine of them is never near zero."""
    rng = np.random.default_rng(5)
    first, second = np.eye(6, dtype=np.uint8)[rng.integers(6, size=(2, 80))]
    patterns = rng.choice([-1.0, 1.0], size=(6, 9))[first.argmax(axis=1)]
    image, text = (patterns * rng.choice([1, -1], p=[0.85, 0.15], size=(80, 9)) for _ in range(2))
    labels = first | second * (rng.random((80, 1)) < 0.3)
    names = [f"topic {i}" for i in range(6)]
    np.savez(path, image=image.astype(np.float32), text=text.astype(np.float32), labels=labels, label_names=names)


def exact_model(model):
    """Weights that carry the patterns unchanged into heads of +-1: codes free of rounding."""
    eye, rng = torch.eye(9), np.random.default_rng(6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for projection in model.projections.values():
            projection.layers[0].weight.copy_(torch.cat([eye, -eye]))
            projection.layers[3].weight.copy_(torch.cat([eye, -eye], dim=1))
        model.heads.weight.copy_(torch.from_numpy(rng.choice([-1.0, 1.0], size=(model.bits, 9))))
    return model.eval()


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """A run on ready features whose codes are the same on every machine, as trained weights are not."""
    folder = tmp_path_factory.mktemp("exact")
    exact_features(folder / "ready.npz")

    def train(training, validation, config, **_):
        teacher = RelationTeacher.fit(training.labels, config.alpha, config.eta, config.scales, config.epsilon)
        model = exact_model(build_model(training, teacher, config))
        state = TrainingState(epoch=3, best_epoch=2, best_score=0.5, history=[])
        return Training(model, teacher, config, state, METHODS["multibit-plus"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multibit.runs.train", train)
        exact = settings(hidden=18, dimension=9, lengths="8,16,32")
        done("train", folder / "ready.npz", "--out", folder / "run", *exact)
    return folder


def test_the_exact_codes_are_far_from_rounding(exact):
    model, store = HashModel.load(exact / "run" / "model.safetensors"), FeatureStore.open(exact / "ready.npz")
    for modality in ("image", "text"):
        assert np.abs(model.encode(getattr(store, modality), modality)).min() > 0.5


@pytest.mark.parametrize("name", ["run", "ready.npz"])
def test_info_of_ready_features_reads_as_stored(name, exact):
    stored = {"ready.npz": "ready"}.get(name, name)
    assert_golden(GOLDEN / f"info-{stored}.txt", masked(done("info", exact / name), exact))


@pytest.mark.parametrize("options", [[], ["--markdown"], ["--at", "10"]], ids=["plain", "markdown", "at"])
def test_evaluation_reads_as_stored(options, exact, tmp_path):
    printed = done("evaluate", exact / "run", *options, "--no-report", "--out", tmp_path / "evaluation.json")
    name = f"evaluate{''.join(options).replace('--', '-')}"
    assert_golden(GOLDEN / f"{name}.txt", masked(printed, tmp_path))


def test_ready_features_run_the_full_pipeline(planted_npz, tmp_path):
    run = tmp_path / "run"
    done("train", planted_npz, "--out", run, *TINY, "--seed", 7)
    done("evaluate", run, "--no-report")
    done("encode", run, planted_npz, "--out", tmp_path / "codes.npz")
    done("index", run)
    assert Run.load(run).config.seed == 7 and Run.load(run).split.seed == 42
    with np.load(tmp_path / "codes.npz") as file:
        assert file["image"].shape == file["text"].shape == (200, 2)
    assert len(Index.load(run / "index" / "image.mbx")) == 200


def test_settings_come_from_preset_file_and_options_in_this_order(planted_npz, tmp_path):
    (tmp_path / "s.toml").write_text('preset = "mirflickr"\nepochs = 9\nlengths = [4, 8]\nhidden = 16\ndimension = 8\n')
    done("train", planted_npz, "--out", tmp_path / "run", "--config", tmp_path / "s.toml", "--set", "epochs=1")
    config = Run.load(tmp_path / "run").config
    assert (config.alpha, config.epochs, config.lengths) == (1.2, 1, (4, 8))


@pytest.mark.parametrize(
    ("options", "method", "alpha", "said"),
    [
        ([], "multibit-plus", 0.9, "Method multibit-plus; the paper's is --method multibit\n"),
        (["--preset=default"], "multibit-plus", 0.9, "Method multibit-plus; "),
        (["--preset=mirflickr"], "multibit", 1.2, "Method multibit, the paper's\n"),
        (["--preset=coco"], "multibit", 0.9, "Method multibit, the paper's\n"),
        (["--config=coco.toml"], "multibit", 0.9, "Method multibit, the paper's\n"),
        (["--config=none.toml"], "multibit-plus", 0.9, "Method multibit-plus; "),
        (["--preset=mirflickr", "--method=multibit-plus"], "multibit-plus", 1.2, "Method multibit-plus; "),
        (["--method=frt-sbo"], "frt-sbo", 0.9, "Method frt-sbo; the paper's is --method multibit\n"),
    ],
    ids=str,
)
def test_a_preset_means_the_paper_and_the_method_is_printed(options, method, alpha, said, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("coco.toml").write_text('preset = "coco"\n')
    Path("none.toml").write_text("batch_size = 64\n")
    printed = done("train", made / "ready.npz", "--out", "run", *TINY, *options)
    run = Run.load("run")
    assert said in printed and (run.record.method, run.config.alpha) == (method, alpha)
    assert run.config.binary_weight == METHODS[method].config().binary_weight


def test_the_seed_of_the_training_leaves_the_split_alone(made, tmp_path):
    for name, chosen in {"one": ["--seed=1"], "two": ["--seed=2"], "three": ["--seed=2", "--split=2"]}.items():
        done("train", made / "ready.npz", "--out", tmp_path / name, *TINY, *chosen)
    runs = [Run.load(tmp_path / name) for name in ("one", "two", "three")]
    assert [run.config.seed for run in runs] == [1, 2, 2] and [run.split.seed for run in runs] == [42, 42, 2]
    assert runs[0].record.split == runs[1].record.split != runs[2].record.split
    assert runs[0].record.model != runs[1].record.model


def test_the_split_is_as_large_as_told(planted_npz, tmp_path):
    sizes = ["--queries", 20, "--training", 50, "--validation", 0]
    done("train", planted_npz, "--out", tmp_path / "run", *TINY, *sizes)
    split, expected = Run.load(tmp_path / "run").split, Split.draw(200, query=20, train=50, validation=0)
    assert np.array_equal(split.query, expected.query) and np.array_equal(split.train, expected.train)
    assert "50 train, 0 validation, 20 query, 180 database" in done("info", tmp_path / "run")


def test_columns_label_names_and_separator_of_another_manifest(tmp_path, monkeypatch):
    monkeypatch.setitem(encoders.IMAGE_ENCODERS, "efficientnet-lite0", Images)
    monkeypatch.setitem(encoders.TEXT_ENCODERS, "all-minilm-l6-v2", Texts)
    Image.new("RGB", (3, 3), "red").save(tmp_path / "a.png")
    (tmp_path / "m.csv").write_text("key,file_name,caption,tags\n1,a.png,a | b,x;z\n2,a.png,c,\n", encoding="utf-8-sig")
    (tmp_path / "names.txt").write_text("z\ny\n\nx\n")
    columns = [f"--map={pair}" for pair in ("id=key", "image=file_name", "text=caption", "labels=tags")]
    options = ["--separator", ";", "--label-names", tmp_path / "names.txt", "--images", tmp_path, "--workers", 1]
    done("features", tmp_path / "m.csv", "--out", tmp_path / "f", *columns, *options)
    data = FeatureStore.open(tmp_path / "f").dataset
    assert data.label_names == ("z", "y", "x") and data.labels.tolist() == [[1, 0, 1], [0, 0, 0]]
    assert data.texts == (("a | b",), ("c",))


@pytest.fixture
def small_demo(line, monkeypatch):
    monkeypatch.setattr("multibit.demo.load_sample", lambda: read_manifest(line.data))
    monkeypatch.setitem(encoders.IMAGE_ENCODERS, "efficientnet-lite0", lambda _: Images("efficientnet-lite0"))
    monkeypatch.setitem(encoders.TEXT_ENCODERS, "all-minilm-l6-v2", lambda _: Texts("all-minilm-l6-v2"))


@pytest.mark.slow
def test_the_demo_writes_features_run_numbers_index_and_a_sheet(small_demo, tmp_path):
    out = tmp_path / "demo"
    printed = done("demo", "--out", out, *TINY)
    assert "Encoding the sample" in printed and "60 items" in printed and "Skipped kaputt" in printed
    assert "mAP@all, training items kept out" in printed and "multibit search" in printed.splitlines()[-1]
    made = {path.name for path in out.iterdir()}
    assert made == {"features", "run", "evaluation.json", "evaluation.parquet", "searches.png"}
    assert len(Index.load(out / "run" / "index" / "image.mbx")) == 45
    with Image.open(out / "searches.png") as sheet:
        assert sheet.width > 500
    first = Run.load(out / "run").record
    assert first.method == "multibit-plus"
    again = done("demo", "--out", out, *TINY)
    assert "Encoding the sample" not in again and Run.load(out / "run").record == first


def test_the_demo_works_with_short_codes(small_demo, tmp_path):
    done("demo", "--out", tmp_path / "demo", *TINY, "--set", "lengths=4,8")
    with Image.open(tmp_path / "demo" / "searches.png") as sheet:
        assert sheet.width > 500


def test_the_demo_prints_its_method_and_keeps_its_split(small_demo, tmp_path):
    for seed, method, said in (
        (42, "multibit-plus", "; the paper's is --method multibit"),
        (7, "multibit", ", the paper's"),
    ):
        printed = done("demo", "--out", tmp_path / method, *TINY, "--method", method, "--seed", seed)
        run = Run.load(tmp_path / method / "run")
        assert f"Method {method}{said}\n" in printed and "Split (seed 42)" in printed
        assert (run.config.seed, run.split.seed) == (seed, 42)


MULTIBIT = Path(sys.executable).with_name("multibit")
ENVIRONMENT = {**os.environ, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "PYTHONUTF8": "1"}


def subprocess_of(*command):
    return subprocess.run(
        list(map(str, command)), env=ENVIRONMENT, capture_output=True, text=True, encoding="utf-8", check=False
    )


def test_help_lists_every_verb_with_its_whole_summary_in_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = done("--help").splitlines()
    assert max(map(len, printed)) <= 80
    listed = dict(line.split(maxsplit=1) for line in printed[printed.index("Commands:") + 1 :])
    summaries = {command.name: command.callback.__doc__.splitlines()[0] for command in app.registered_commands}
    assert tuple(summaries) == VERBS and listed == summaries
    assert max(map(len, summaries.values())) < 60


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_and_option_has_a_help_text(verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    parameters = typer.main.get_command(app).commands[verb].params
    assert all(parameter.help and parameter.help.strip() for parameter in parameters)
    printed = done(verb, "--help")
    assert all(option in printed for parameter in parameters for option in parameter.opts if option.startswith("-"))


def test_choices_are_those_of_the_library():
    assert set(typing.get_args(options.Modality)) == set(typing.get_args(Modality))
    assert {engine.value for engine in options.EngineName} == set(ENGINES)


@pytest.mark.parametrize(
    ("verb", "argument", "flag"),
    [
        ("train", "epochs", "--set epochs"),
        ("train", "seed", "--seed"),
        ("train", "query", "--queries"),
        ("train", "given", "--split"),
        ("train", "features", "FEATURES"),
        ("train", "nonsense", None),
        ("features", "columns", "--map"),
        ("features", "batch_size", "--batch-size"),
        ("features", "epochs", None),
        ("import", "columns", "--map"),
        ("import", "names", "--map"),
        ("label", "names", "--vocabulary"),
        ("evaluate", "path", "--out"),
        ("search", "k", "-k"),
        ("search", "modality", "--in"),
        ("reproduce", "key", "--labels-key"),
        ("reproduce", "names", "--table"),
        ("reproduce", "folder", "--out"),
        ("search", "allowed", "--where"),
        ("index", "ids", "--remove"),
    ],
)
def test_arguments_are_spelled_as_the_options_of_the_verb(verb, argument, flag):
    assert flags_of(typer.main.get_command(app).commands[verb])(argument) == flag


def test_a_setting_in_a_file_keeps_its_name():
    assert flags_of(typer.main.get_command(app).commands["train"], in_file=True)("epochs") is None


def test_progress_is_shown_by_the_command_line_only(made, tmp_path, capsys):
    multibit.train(FeatureStore.open(made / "ready.npz").take(range(40)), epochs=1, hidden=16, dimension=8)
    assert capsys.readouterr() == ("", "")
    assert cli("train", made / "ready.npz", "--out", tmp_path / "run", *TINY).err


def test_no_stored_text_is_unused():
    used = {"evaluate", "evaluate-markdown", "evaluate-at10", "methods", "reproduce-list", "reproduce-labels"}
    used |= {f"info-{name}" for name in ("data", "features", "index", "codes", "run", "ready")}
    assert {path.stem for path in GOLDEN.glob("*.txt")} == used


@pytest.mark.slow
@pytest.mark.parametrize("code", ["import multibit, sys", "import sys; from multibit.cli import app"])
def test_importing_is_light(code):
    heavy = ["torch", "numba", "numpy", "scipy", "pyarrow", "PIL", "safetensors", "sentence_transformers"]
    result = subprocess_of(sys.executable, "-c", f"{code}; print([name for name in {heavy} if name in sys.modules])")
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_every_public_name_can_be_imported():
    assert set(multibit.__all__) <= set(dir(multibit)) and list(multibit.__all__) == sorted(multibit.__all__)
    for name in multibit.__all__:
        assert name.isupper() or getattr(multibit, name).__name__ == name
    with pytest.raises(AttributeError, match="tarin"):
        _ = multibit.tarin


def test_the_docstring_lists_exactly_the_public_names():
    listed, _, _ = multibit.__doc__.partition("Names are loaded when first used")
    rows = re.findall(r"(?m)^(?:[a-z]+)?  +((?:\w+, )*\w+,?)$", listed.partition("in the order of the flow:")[2])
    names = [name for row in rows for name in re.findall(r"\w+", row)]
    assert sorted(names) == sorted(multibit.__all__) and len(names) == len(set(names))


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["train"],
        ["train", "x.npz"],
        ["train", "x.npz", "--out", "r", "--nonsense"],
        ["train", "x.npz", "--out", "r", "--device", "tpu"],
        ["train", "x.npz", "--out", "r", "--seed", "one"],
        ["train", "x.npz", "--out", "r", "--query", "5"],
        ["features", "x.csv", "--out", "f", "--workers", "0"],
        ["evaluate", "r", "--at", "0"],
        ["index", "r", "--items", "some"],
        ["search", "r", "q", "-k", "many"],
        ["search", "r", "q", "--in", "sound"],
        ["search", "r", "q", "--as", "smell"],
        ["merge"],
        ["export", "i.mbx"],
        ["index", "r", "--engine", "magic"],
        ["info"],
        ["info", "a", "b"],
    ],
    ids=" ".join,
)
def test_wrong_options_exit_with_2_and_the_usage(arguments):
    result = cli(*arguments)
    assert result.code == 2
    assert "Usage: multibit" in result.err and "Error" in result.err and "Traceback" not in result.err


def test_without_a_verb_the_help_is_shown():
    result = cli()
    assert "Commands:" in result.out + result.err


def test_the_package_runs_as_a_module():
    asked = [sys.executable, "-m", "multibit", "--help"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout.startswith("Usage: multibit")


FOUR_EPOCHS = [*(each for each in TINY if "epochs" not in each), "--set=epochs=4"]
INTERRUPTED = """
import functools, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
from multibit import runs
from multibit.cli import main
from multibit.hashing import train as training

score, calls = training.selection_score, []

def waiting(*args):
    calls.append(1)
    if len(calls) == 2:
        print("in the second epoch", flush=True)
        signal.pause()
    return score(*args)

training.selection_score = waiting
runs.train = functools.partial(runs.train, save_every=0)
main()
"""


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A training that got Ctrl-C in its second epoch, with the arguments that resume it."""
    folder = tmp_path_factory.mktemp("interrupted")
    np.savez(folder / "ready.npz", **plant(60))
    arguments = ["train", str(folder / "ready.npz"), "--out", str(folder / "run"), *FOUR_EPOCHS]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().startswith("Method multibit-plus")
    assert process.stdout.readline().startswith("Split seed")
    assert process.stdout.readline() == "in the second epoch\n"
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    return SimpleNamespace(folder=folder, arguments=arguments, code=process.returncode, err=err)


@pytest.mark.slow
def test_ctrl_c_exits_with_130_and_no_traceback(interrupted):
    assert interrupted.code == 130 and "Traceback" not in interrupted.err


@pytest.mark.slow
def test_ctrl_c_says_how_to_resume(interrupted):
    assert "Error: interrupted. The same command goes on from what was kept" in interrupted.err


@pytest.mark.slow
def test_the_same_command_resumes_after_ctrl_c(interrupted, tmp_path):
    run = interrupted.folder / "run"
    assert [path.name for path in run.iterdir()] == [STATE_FILE]
    assert_names(refused("info", run), run, "not finished")
    trained = mock.Mock(wraps=torch.optim.Adam.step)
    with mock.patch.object(torch.optim.Adam, "step", lambda self, *args: trained(self, *args)):
        done(*interrupted.arguments)
    assert trained.call_count == 3  # one batch per epoch, of which the first was kept
    whole = [str(tmp_path / "run") if part == str(run) else part for part in interrupted.arguments]
    done(*whole)
    assert Run.load(run).record == Run.load(tmp_path / "run").record
    assert (run / "history.jsonl").read_bytes() == (tmp_path / "run" / "history.jsonl").read_bytes()
