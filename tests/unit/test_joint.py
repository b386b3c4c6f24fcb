"""CLIP and SigLIP: tiny ones with random weights, written to a folder, through the real loading code, no network."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from multibit import Codes, FeatureStore, PairedDataset
from multibit.cli import app
from multibit.errors import ConfigError, DataError, MismatchError, MissingExtraError
from multibit.features import extract, packaged
from multibit.features.base import LOCAL, hash_files
from multibit.features.extract import extract_features
from multibit.features.joint import JointImages, Scaling
from multibit.features.load import image_encoder_of, load_image_encoder, load_text_encoder, text_encoder_of
from multibit.features.recipe import Recipe
from multibit.hashing.model import HashModel

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install multibit[clip]")
import torch  # noqa: E402

pytestmark = pytest.mark.slow  # images are encoded

SIDE, LIMIT = 32, 20
TEXTS = ["a red apple on a wooden table", "", "日本語のテキスト 👁", "x" * 3000, "frog. green, pond", "a b " * 30]
TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT_TOWER = {**TOWER, "max_position_embeddings": LIMIT, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
VISION_TOWER = {**TOWER, "image_size": SIDE, "patch_size": 8}
IMAGE_SETTINGS = {
    "do_resize": True, "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
    "image_mean": [0.48, 0.45, 0.40], "image_std": [0.26, 0.25, 0.27],
}  # fmt: skip


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content))


def write_clip(folder: Path, seed: int = 0) -> Path:
    """A CLIP model folder: random weights, a byte-level vocabulary with one merge, the usual image settings."""
    folder.mkdir()
    torch.manual_seed(seed)
    letters = [chr(code) for code in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(letter + "</w>" for letter in letters), "re"]
    config = transformers.CLIPConfig(
        text_config={**TEXT_TOWER, "vocab_size": len(words)}, vision_config=VISION_TOWER, projection_dim=16
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    write_json(folder / "vocab.json", {word: number for number, word in enumerate(words)})
    (folder / "merges.txt").write_text("#version: 0.2\nr e\n")
    special = {"bos_token": words[0], "eos_token": words[1], "unk_token": words[1], "pad_token": words[1]}
    write_json(
        folder / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer", "model_max_length": LIMIT, **special}
    )
    crop = {"size": {"shortest_edge": SIDE}, "do_center_crop": True, "crop_size": {"height": SIDE, "width": SIDE}}
    write_json(
        folder / "preprocessor_config.json", {"image_processor_type": "CLIPImageProcessor", **crop, **IMAGE_SETTINGS}
    )
    return folder


def write_siglip(folder: Path) -> Path:
    """A SigLIP model folder: random weights, a sentencepiece vocabulary trained on a few lines."""
    import sentencepiece

    folder.mkdir()
    torch.manual_seed(0)
    lines = [f"a {colour} {thing} on the table" for colour in ("red", "green") for thing in ("apple", "frog", "cat")]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(folder / "spiece"), vocab_size=40, pad_id=0, eos_id=1,
        unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    text = {**TEXT_TOWER, "vocab_size": 40, "pad_token_id": 1}
    config = transformers.SiglipConfig(text_config=text, vision_config=VISION_TOWER)
    transformers.SiglipModel(config).save_pretrained(folder)
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "SiglipTokenizer", "model_max_length": LIMIT, "model_input_names": ["input_ids"]},
    )
    size = {"size": {"height": SIDE, "width": SIDE}, "image_processor_type": "SiglipImageProcessor"}
    write_json(folder / "preprocessor_config.json", {**size, **IMAGE_SETTINGS})
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    folders = {"clip": write_clip(folder / "tiny-clip")}
    if importlib.util.find_spec("sentencepiece"):
        folders["siglip"] = write_siglip(folder / "tiny-siglip")
    return folders


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise OSError("the network is blocked in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="module", params=["clip", "siglip"])
def kind(request, models) -> str:
    if request.param not in models:
        pytest.skip("sentencepiece is not installed: pip install multibit[clip]")
    return request.param


@pytest.fixture
def image_encoder(models, kind):
    return load_image_encoder(str(models[kind]))


@pytest.fixture
def text_encoder(models, kind):
    return load_text_encoder(str(models[kind]))


def noise(*sizes: tuple[int, int]) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)) for width, height in sizes]


def library_network(folder: Path):
    return transformers.AutoModel.from_pretrained(folder).eval()


def unit(vectors) -> np.ndarray:
    return torch.nn.functional.normalize(vectors.pooler_output, dim=1).numpy()


# The features equal those of the library


@pytest.mark.parametrize("size", [(64, 64), (70, 40), (33, 90), (32, 32), (31, 500), (20, 25)])
def test_images_are_scaled_and_cropped_like_the_library_does(models, kind, image_encoder, size):
    (image,) = noise(size)
    image = image.point(lambda value: 64 + value // 2)  # no overshoot that the library would clip in another order
    processor = transformers.AutoImageProcessor.from_pretrained(models[kind])
    wanted = processor(image, do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"][0]
    prepared = image_encoder.prepare(image)
    assert prepared.shape == (SIDE, SIDE, 3) and prepared.dtype == np.uint8
    assert np.abs(prepared.astype(int) - wanted.transpose(1, 2, 0)).max() <= 1  # rounding of the cut's place


def test_image_features_equal_the_librarys(models, kind, image_encoder):
    images = noise((64, 64), (40, 80))
    inputs = transformers.AutoImageProcessor.from_pretrained(models[kind])(images, return_tensors="pt")
    with torch.inference_mode():
        wanted = unit(library_network(models[kind]).get_image_features(**inputs))
    found = image_encoder.encode([image_encoder.prepare(image) for image in images])
    assert found == pytest.approx(wanted, abs=2e-3)
    assert found.dtype == np.float32 and np.abs(found[0] - found[1]).max() > 0.01


def test_text_features_equal_the_librarys_with_its_padding(models, kind, text_encoder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(models[kind])
    inputs = tokenizer(TEXTS, padding="max_length", max_length=LIMIT, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        wanted = unit(library_network(models[kind]).get_text_features(**inputs))
    assert text_encoder.encode(TEXTS) == pytest.approx(wanted, abs=1e-5)
    assert text_encoder.encode([]).shape == (0, wanted.shape[1])


def test_long_texts_are_cut_at_the_models_own_limit_and_counted(text_encoder):
    cut = text_encoder.encode(["frog " * LIMIT, "frog " * LIMIT + "and a very different end"])
    assert np.array_equal(cut[0], cut[1])
    assert [text_encoder.truncated([text]) for text in ("a red frog", "", "x " * 99)] == [0, 0, 1]
    assert (text_encoder.truncated(["frog " * LIMIT]), text_encoder.truncated(TEXTS * 2)) == (
        1,
        2 * text_encoder.truncated(TEXTS),
    )
    assert text_encoder.truncated([]) == 0
    assert text_encoder.recipe.text_limit == LIMIT


def test_a_prompt_goes_around_every_text(models, kind, text_encoder):
    prompted = load_text_encoder(str(models[kind]), prompt="a photo of {}, {}")
    assert np.array_equal(prompted.encode(["cat", ""]), text_encoder.encode(["a photo of cat, cat", "a photo of , "]))
    assert prompted.recipe.prompt == "a photo of {}, {}" and prompted.recipe != text_encoder.recipe
    assert prompted.truncated(["cat", "c a t s " * 3]) == text_encoder.truncated(
        ["a photo of cat, cat", f"a photo of {'c a t s ' * 3}, {'c a t s ' * 3}"]
    )


def test_half_precision_is_close_and_recorded_in_the_recipe(models, kind, image_encoder, text_encoder):
    half_images = load_image_encoder(str(models[kind]), dtype="float16")
    half_texts = load_text_encoder(str(models[kind]), dtype="float16")
    prepared = [image_encoder.prepare(image) for image in noise((64, 64), (40, 80))]
    assert half_images.encode(prepared).dtype == half_texts.encode(TEXTS).dtype == np.float16
    assert half_images.encode(prepared) == pytest.approx(image_encoder.encode(prepared), abs=0.02)
    assert half_texts.encode(TEXTS) == pytest.approx(text_encoder.encode(TEXTS), abs=0.02)
    assert half_images.recipe.dtype == "float16" and half_images.recipe != image_encoder.recipe
    with pytest.raises(MismatchError) as caught:
        Recipe(image_encoder.recipe, text_encoder.recipe).require(
            Recipe(half_images.recipe, half_texts.recipe), "these"
        )
    assert caught.value.field == "image features"
    assert all(part in caught.value.problem for part in ("dtype", "float16", "float32"))


# One item alone, and in a batch


def flipped_bits(model: HashModel, one: np.ndarray, other: np.ndarray, modality) -> int:
    codes = [Codes.binarize(model.encode(vectors, modality)).to_bytes() for vectors in (one, other)]
    return int(np.bitwise_count(codes[0] ^ codes[1]).sum())


def test_features_and_codes_of_one_item_are_those_of_a_batch(image_encoder, text_encoder, record_testsuite_property):
    """Bound: 1e-5 of a feature of unit length, and one code bit in a thousand."""
    prepared = [image_encoder.prepare(image) for image in noise(*itertools.product((20, 40, 64), (30, 50)))]
    texts = [*TEXTS, *(f"{count} frogs " * count for count in range(6))]
    torch.manual_seed(0)
    model = HashModel(image_encoder.recipe.dimension, text_encoder.recipe.dimension, (64, 64))
    for modality, encode, items in (("image", image_encoder.encode, prepared), ("text", text_encoder.encode, texts)):
        together = encode(items)
        alone = np.concatenate([encode([item]) for item in items])
        assert np.abs(together - alone).max() <= 1e-5
        flips = flipped_bits(model, together, alone, modality)
        record_testsuite_property(f"flipped {modality} bits of {128 * len(items)}", flips)
        assert flips <= 128 * len(items) / 1000


def test_the_batch_size_is_an_option(models, kind, image_encoder, text_encoder):
    small_images, small_texts = (
        load(str(models[kind]), batch_size=2) for load in (load_image_encoder, load_text_encoder)
    )
    assert small_images.batch_size == small_texts.batch_size == 2
    assert small_texts.encode(TEXTS) == pytest.approx(text_encoder.encode(TEXTS), abs=1e-5)


def test_features_hardly_depend_on_how_items_fall_into_shards(
    image_encoder, text_encoder, tmp_path, monkeypatch, record_testsuite_property
):
    """Images not at all on the processors measured so far, texts in the last digits of some."""
    for row, image in enumerate(noise(*[(40, 30 + row) for row in range(11)])):
        image.save(tmp_path / f"{row}.png")
    data = PairedDataset(
        tuple(map(str, range(11))), tuple(tmp_path / f"{row}.png" for row in range(11)),
        tuple(("a red frog " * row, "x", "apple " * (row % 4)) for row in range(11)), np.ones((11, 1)), ("l",),
    )  # fmt: skip
    stores = []
    for size in (3, 8):
        monkeypatch.setattr(extract, "SHARD", size)
        stores.append(extract_features(data, image_encoder, text_encoder, tmp_path / str(size)))
    for name in ("image", "text"):
        one, other = (getattr(store, name)[:] for store in stores)
        record_testsuite_property(f"{name} features that differ", int((one != other).sum()))
        assert np.abs(one - other).max() <= 1e-5


# The recipe


def test_the_recipe_says_how_the_features_were_made(models, kind, image_encoder, text_encoder):
    folder = models[kind]
    for recipe in (image_encoder.recipe, text_encoder.recipe):
        assert (recipe.name, recipe.source, recipe.dtype) == (f"tiny-{kind}", str(folder), "float32")
        assert recipe.weights == hash_files(folder / "model.safetensors")
        assert recipe.dimension == (16 if kind == "clip" else 32)
        assert {"torch", "transformers"} <= set(recipe.versions)
    assert "32 x 32 bicubic" in image_encoder.recipe.preprocessing and "0.48" in image_encoder.recipe.preprocessing
    assert f"at most {LIMIT} tokens" in text_encoder.recipe.preprocessing


def test_a_copy_elsewhere_has_the_same_recipe_other_weights_or_words_have_not(models, tmp_path):
    (tmp_path / "copy").mkdir()
    copy = shutil.copytree(models["clip"], tmp_path / "copy" / "tiny-clip")
    recipe = load_text_encoder(str(models["clip"])).recipe
    assert load_text_encoder(str(copy)).recipe == recipe
    (copy / "merges.txt").write_text("#version: 0.2\n")
    assert load_text_encoder(str(copy)).recipe != recipe
    (tmp_path / "other").mkdir()
    assert load_text_encoder(str(write_clip(tmp_path / "other" / "tiny-clip", seed=1))).recipe != recipe


def test_other_image_settings_are_another_recipe(models, tmp_path):
    copy = shutil.copytree(models["clip"], tmp_path / "tiny-clip")
    settings = json.loads((copy / "preprocessor_config.json").read_text())
    write_json(copy / "preprocessor_config.json", {**settings, "image_mean": [0.5, 0.5, 0.5]})
    assert load_image_encoder(str(copy)).recipe != load_image_encoder(str(models["clip"])).recipe


# What cannot be loaded


@pytest.mark.parametrize("load", [load_image_encoder, load_text_encoder])
def test_a_hub_model_that_the_hub_does_not_provide_is_refused(load):
    with pytest.raises(ConfigError) as caught:
        load("nobody/nothing-here")
    assert caught.value.field == "encoder" and "nobody/nothing-here" in caught.value.problem
    assert "config.json" in caught.value.hint


@pytest.mark.parametrize("load", [load_image_encoder, load_text_encoder])
@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such/folder"])
def test_a_folder_that_does_not_exist_is_refused(load, name):
    with pytest.raises(ConfigError) as caught:
        load(name)
    assert caught.value.file == Path(name)


def test_a_missing_hub_model_is_an_error_of_the_command_line(tmp_path):
    (tmp_path / "items.csv").write_text("id,image,text,labels\na,a.jpg,x,y\n")
    arguments = ["features", str(tmp_path / "items.csv"), "--out", str(tmp_path / "f"), "--image-encoder", "nobody/x"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1 and result.stderr.startswith("Error: ") and "nobody/x" in result.stderr


def test_a_model_in_the_hubs_cache_is_loaded_without_the_network(models, monkeypatch):
    import huggingface_hub

    def cached(name, local_files_only=False, **_):
        assert local_files_only and name == "somebody/tiny-clip"
        return str(models["clip"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    recipe = load_image_encoder("somebody/tiny-clip").recipe
    assert (recipe.name, recipe.source) == ("tiny-clip", "somebody/tiny-clip")
    assert recipe == load_image_encoder(str(models["clip"])).recipe


@pytest.fixture
def asked_hub(models, monkeypatch):
    """A hub with the model somebody/tiny-clip that is not on this disk; records what it is asked."""
    import huggingface_hub

    asked = []

    def download(name, local_files_only=False, **options):
        if local_files_only:
            raise FileNotFoundError(name)
        asked.append(options)
        return str(models["clip"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


def test_a_model_not_in_the_cache_is_downloaded_without_pickled_weights(asked_hub):
    load_image_encoder("somebody/tiny-clip")
    assert asked_hub == [{"allow_patterns": ["*.safetensors", "*.json", "*.txt", "*.model"], "token": None}]


@pytest.mark.parametrize("of", [image_encoder_of, text_encoder_of])
def test_a_name_from_a_file_never_asks_the_hub_unless_allowed_and_never_with_the_token(of, asked_hub, models):
    load = load_image_encoder if of is image_encoder_of else load_text_encoder
    recipe = replace(load(str(models["clip"])).recipe, source="somebody/tiny-clip")
    with pytest.raises(ConfigError) as caught:
        of(recipe)
    assert asked_hub == [] and "`download`" in caught.value.hint
    of(recipe, download=True)
    assert [each["token"] for each in asked_hub] == [False]


def test_a_relative_model_folder_is_one_inside_the_folder_of_the_file(models, tmp_path, monkeypatch):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for folder in (run / "tiny-clip", elsewhere / "outside", elsewhere / "somebody/tiny-clip"):
        shutil.copytree(models["clip"], folder)
    (run / "link").symlink_to(elsewhere / "outside")
    recipe = load_text_encoder(str(models["clip"])).recipe
    monkeypatch.chdir(elsewhere)  # folders of the working directory are not meant
    assert text_encoder_of(replace(recipe, source="tiny-clip"), folder=run).recipe == recipe
    for source in ("outside", "../elsewhere/outside", "link", "./../elsewhere/outside"):
        with pytest.raises(DataError):
            text_encoder_of(replace(recipe, source=source), folder=run)
    with pytest.raises(ConfigError):
        text_encoder_of(replace(recipe, source="somebody/tiny-clip"), folder=run)


def test_pickled_weights_are_refused(models, tmp_path):
    folder = shutil.copytree(models["clip"], tmp_path / "clip")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError) as caught:
        load_image_encoder(str(folder))
    assert caught.value.file == folder and "pytorch_model.bin" in caught.value.problem


def test_code_in_a_model_folder_is_never_run(models, tmp_path):
    folder = shutil.copytree(models["clip"], tmp_path / "clip")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "own.Own", "AutoTokenizer": ["own.Own", None], "AutoImageProcessor": "own.Own"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    for load in (load_image_encoder, load_text_encoder):
        load(str(folder))
    assert not (tmp_path / "run").exists()


def test_every_library_call_forbids_remote_code():
    """A call of `from_pretrained` without these arguments could ask the user and run code of a model's author."""
    assert LOCAL == {"local_files_only": True, "trust_remote_code": False}
    text = "\n".join(path.read_text() for path in Path(packaged.__file__).parent.glob("*.py"))
    calls = re.findall(r"(Auto\w+)\.from_pretrained\((.*?\*\*LOCAL)", text, re.DOTALL)
    assert len(calls) == len(re.findall(r"Auto\w+\.from_pretrained\(", text)) >= 5
    assert all(call.count("(") <= 1 for _, call in calls)  # each ends in its own arguments
    assert all("use_safetensors=True" in call for name, call in calls if name == "AutoModel")


@pytest.mark.parametrize(
    ("harm", "part"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), ""),
        (lambda folder: (folder / "config.json").unlink(), ""),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"truncated"), "network"),
        (lambda folder: (folder / "config.json").write_text("{"), "network"),
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "image processor"),
    ],
    ids=["no weights", "no config", "truncated weights", "truncated config", "no image settings"],
)
def test_a_damaged_folder_is_refused(models, tmp_path, harm, part):
    folder = shutil.copytree(models["clip"], tmp_path / "clip")
    harm(folder)
    with pytest.raises(ConfigError) as caught:
        load_image_encoder(str(folder))
    assert (caught.value.file, caught.value.field) == (folder, part)
    assert "model.safetensors" in caught.value.hint


def test_a_folder_without_a_vocabulary_is_refused(models, tmp_path):
    folder = shutil.copytree(models["clip"], tmp_path / "clip")
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ConfigError) as caught:
        load_text_encoder(str(folder))
    assert (caught.value.file, caught.value.field) == (folder, "tokenizer")
    assert "tokenizer.json, vocab.*, *.model" in caught.value.problem


def test_weights_that_lack_a_tensor_are_refused_not_invented(models, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(models["clip"], tmp_path / "clip")
    tensors = load_file(folder / "model.safetensors")
    del tensors["visual_projection.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError) as caught:
        load_image_encoder(str(folder))
    assert (caught.value.file, caught.value.field) == (folder, "network")
    assert "visual_projection.weight" in caught.value.problem


def test_a_model_of_another_kind_is_refused(tmp_path):
    config = transformers.BertConfig(**TOWER, vocab_size=30, max_position_embeddings=20)
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    with pytest.raises(ConfigError) as caught:
        load_text_encoder(str(tmp_path / "bert"))
    assert caught.value.file == tmp_path / "bert"
    assert "BertModel" in caught.value.problem and "get_image_features" in caught.value.problem


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"size": {"longest_edge": 30}}, "30"),
        ({"do_center_crop": False}, "32"),
        ({"do_resize": False}, "32"),
        ({"do_pad": True}, "32"),
        ({"size": {"height": 40, "width": 40}}, "40"),
        ({"size": {"shortest_edge": 16}}, "16"),
    ],
)
def test_image_settings_that_cannot_be_followed_are_refused(models, tmp_path, changed, found):
    folder = shutil.copytree(models["clip"], tmp_path / "clip")
    settings = {
        **IMAGE_SETTINGS, "do_center_crop": True, "size": {"shortest_edge": 32},
        "crop_size": {"height": 32, "width": 32}, **changed,
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        Scaling.of(settings)
    assert caught.value.field == "preprocessor_config.json" and found in caught.value.problem
    write_json(folder / "preprocessor_config.json", {"image_processor_type": "CLIPImageProcessor", **settings})
    with pytest.raises(ConfigError) as caught:
        load_image_encoder(str(folder))
    assert caught.value.file == folder


@pytest.mark.parametrize("load", [load_image_encoder, load_text_encoder])
def test_settings_out_of_range_are_refused(models, load):
    packaged = "efficientnet-lite0" if load is load_image_encoder else "all-minilm-l6-v2"
    for name, dtype in ((str(models["clip"]), "int8"), (packaged, "float16")):
        with pytest.raises(ConfigError) as caught:
            load(name, dtype=dtype)
        assert caught.value.option == "dtype" and dtype in caught.value.problem


def test_a_prompt_without_a_place_for_the_text_is_refused(models):
    with pytest.raises(ConfigError) as caught:
        load_text_encoder(str(models["clip"]), prompt="a photo")
    assert caught.value.option == "prompt" and "a photo" in caught.value.problem


def test_the_missing_library_is_named_with_its_extra(models, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError) as caught:
        JointImages(str(models["clip"]))
    assert (caught.value.module, caught.value.extra) == ("transformers", "clip")


# From a recipe to its encoder


@pytest.fixture
def hub(models, monkeypatch):
    """A hub whose only model, `somebody/tiny-clip`, has been downloaded before."""
    import huggingface_hub

    def downloaded(name, **_):
        if name != "somebody/tiny-clip":
            raise FileNotFoundError(name)
        return str(models["clip"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", downloaded)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_encoder_of_the_hub_comes_back_from_its_recipe(hub, dtype):
    """Its recipe has the base name `tiny-clip`, which alone would not be found."""
    images = load_image_encoder("somebody/tiny-clip", dtype=dtype)
    texts = load_text_encoder("somebody/tiny-clip", dtype=dtype, prompt="a photo of {}")
    stored = msgspec.convert(json.loads(json.dumps(Recipe(images.recipe, texts.recipe).to_dict())), Recipe)
    assert (stored.image.name, stored.image.source) == ("tiny-clip", "somebody/tiny-clip")
    again = image_encoder_of(stored.image), text_encoder_of(stored.text)
    assert Recipe(again[0].recipe, again[1].recipe) == stored
    assert (again[1].recipe.prompt, again[1].recipe.dtype) == ("a photo of {}", dtype)
    prepared = [images.prepare(image) for image in noise((64, 64), (40, 80))]
    assert np.array_equal(again[0].encode(prepared), images.encode(prepared))
    assert np.array_equal(again[1].encode(TEXTS), texts.encode(TEXTS))


def test_an_encoder_of_a_folder_comes_back_from_its_recipe(models, kind, image_encoder, text_encoder, monkeypatch):
    monkeypatch.chdir("/")
    assert image_encoder_of(image_encoder.recipe).recipe == image_encoder.recipe
    assert text_encoder_of(text_encoder.recipe).recipe == text_encoder.recipe
    assert text_encoder.recipe.source == str(models[kind])


@pytest.mark.parametrize(("encoder_of", "modality"), [(image_encoder_of, "image"), (text_encoder_of, "text")])
def test_ready_made_features_have_no_encoder(encoder_of, modality):
    with pytest.raises(DataError) as caught:
        encoder_of(getattr(Recipe.ready_made("CLIP of mine", 4, 4), modality))
    assert "CLIP of mine" in caught.value.problem


@pytest.mark.parametrize(
    ("load", "encoder_of"), [(load_image_encoder, image_encoder_of), (load_text_encoder, text_encoder_of)]
)
def test_a_model_folder_that_was_moved_is_refused_by_its_old_path(models, tmp_path, load, encoder_of):
    folder = shutil.copytree(models["clip"], tmp_path / "tiny-clip")
    recipe = load(str(folder)).recipe
    folder.rename(tmp_path / "moved")
    with pytest.raises(ConfigError) as caught:
        encoder_of(recipe)
    assert caught.value.file == folder


def test_base_imports_no_encoder():
    """`base` is below `packaged` and `joint`, which are below `load`."""
    command = (
        "import sys, multibit.features.base; print(*(name for name in sys.modules if 'multibit.features' in name))"
    )
    result = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert not {f"multibit.features.{name}" for name in ("packaged", "joint", "load")} & set(result.stdout.split())
    command = "import sys, multibit.features.load; print('transformers' in sys.modules or 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


# Odd images


@pytest.mark.parametrize("size", [(1, 1), (3, 1), (1, 3), (30_000, 2), (2, 30_000)])
def test_tiny_and_thin_images_are_encoded(image_encoder, size):
    vectors = image_encoder.encode(
        [image_encoder.prepare(Image.new("RGB", size, "red")), image_encoder.prepare(Image.new("RGB", (64, 64), "red"))]
    )
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-5)


# The full pipeline


@pytest.mark.slow
def test_the_full_pipeline_runs_on_a_model_folder(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = ["id,image,text,labels"]
    for row in range(40):
        colour = ("red", "lime")[row % 2]
        Image.new("RGB", (40, 30 + row), colour).save(f"{row}.png")
        rows.append(f"{row},{row}.png,a {colour} thing {'that is long ' * (row == 7)},{colour}")
    Path("items.csv").write_text("\n".join(rows))

    def ran(*arguments: str):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    clip = str(models["clip"])
    encoders = ["--image-encoder", clip, "--text-encoder", clip, "--prompt", "see {}", "--dtype", "float16"]
    printed = ran("features", "items.csv", "--out", "features", *encoders)
    assert "1 of 40 texts" in printed and f"{LIMIT} tokens" in printed
    assert "truncated texts:      1" in ran("info", "features")
    store = FeatureStore.open("features")
    assert store.image.dtype == store.text.dtype == np.float16 and len(store) == 40
    small = ["--set", "epochs=2", "--set", "hidden=16", "--set", "dimension=8", "--set", "scales=2"]
    ran("train", "features", "--out", "run", "--set", "lengths=8,16", *small)
    ran("index", "run")
    assert len(ran("search", "run", "a lime thing", "--json").splitlines()) == 10
    assert len(ran("search", "run", "7.png", "--json").splitlines()) == 10
    (models["clip"] / "model.safetensors").rename(tmp_path / "away")
    try:
        result = CliRunner().invoke(app, ["search", "run", "a lime thing"])
    finally:
        (tmp_path / "away").rename(models["clip"] / "model.safetensors")
    assert result.exit_code == 1 and clip in result.stderr


# Ray


def test_the_missing_ray_is_named_with_its_extra(image_encoder, text_encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    data = PairedDataset(("a",), (Path("a.png"),), (("x",),), np.ones((1, 1)), ("l",))
    with pytest.raises(MissingExtraError) as caught:
        extract_features(data, image_encoder, text_encoder, tmp_path / "store", engine="ray")
    assert (caught.value.module, caught.value.extra) == ("ray", "ray")
