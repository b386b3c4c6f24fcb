"""Methods that read tokens, from the images and texts to a search by free text and image, at every length."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from commands import assert_names, done, refused, settings
from multibit import METHODS, Run
from multibit.features import Tokens, packaged
from multibit.features.recipe import EncoderRecipe

pytestmark = pytest.mark.slow
TOKENS = [name for name, method in METHODS.items() if method.inputs == "tokens"]
SMALL = {"epochs": 2, "lengths": "8,16", "batch_size": 16, "dimension": 16, "hidden": 32, "concepts": 4}


def small(name):
    """Options of a quick training, of those that a method has."""
    return settings(**{key: value for key, value in SMALL.items() if hasattr(METHODS[name].defaults, key)})


class Colours:
    """An image encoder: the mean colour of the image, and that of its quarters."""

    recipe = EncoderRecipe("colours", "w1", 3, "mean colour")
    batch_size, token_shape = 8, (4, 3)

    def prepare(self, image):
        return np.asarray(image.resize((2, 2)))

    def encode(self, prepared):
        return np.stack(prepared).reshape(len(prepared), 4, 3).mean(axis=1).astype(np.float32)

    def encode_tokens(self, prepared):
        values = np.stack(prepared).reshape(len(prepared), 4, 3).astype(np.float16)
        return self.encode(prepared), Tokens(values, np.full(len(prepared), 4))


class Words:
    """A text encoder: the sum of the vectors of the words, and these vectors."""

    recipe = EncoderRecipe("words", "w2", 5, "random")
    batch_size, token_shape = 8, (3, 5)

    def _vectors(self, text):
        return np.stack([np.random.default_rng(list(word.encode())).normal(size=5) for word in text.split()[:3]])

    def encode(self, texts):
        return np.stack([self._vectors(text).sum(axis=0) for text in texts]).astype(np.float32)

    def encode_tokens(self, texts):
        counts = np.array([len(text.split()[:3]) for text in texts])
        values = np.zeros((len(texts), 3, 5), np.float16)
        for row, text in enumerate(texts):
            values[row, : counts[row]] = self._vectors(text)
        return self.encode(texts), Tokens(values, counts)

    def truncated(self, texts):
        return 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """48 images of three colours with texts that name them, features with tokens, and the same without."""
    folder, rng = tmp_path_factory.mktemp("tokens"), np.random.default_rng(0)
    rows, colours = ["id,image,text,labels"], {"red": 0, "green": 1, "blue": 2}
    for row in range(48):
        name = list(colours)[row % 3]
        pixels = rng.integers(0, 90, (4, 4, 3), np.uint8)
        pixels[..., colours[name]] += 150
        Image.fromarray(pixels).save(folder / f"{row}.png")
        rows.append(f"{row},{row}.png,a {name} thing{row % 4},{name}")
    (folder / "items.csv").write_text("\n".join(rows))
    encoders = ["--image-encoder", "colours", "--text-encoder", "words"]
    with pytest.MonkeyPatch.context() as patch:
        known(patch)
        done("features", folder / "items.csv", "--out", folder / "tokens", *encoders, "--tokens")
        done("features", folder / "items.csv", "--out", folder / "plain", *encoders)
    return folder


def known(patch):
    """Make the encoders known by name."""
    patch.setitem(packaged.IMAGE_ENCODERS, "colours", lambda _: Colours())
    patch.setitem(packaged.TEXT_ENCODERS, "words", lambda _: Words())


@pytest.mark.parametrize("name", TOKENS)
def test_a_method_that_reads_tokens_goes_all_the_way(name, folder, tmp_path, monkeypatch):
    known(monkeypatch)
    run = tmp_path / "run"
    done("train", folder / "tokens", "--out", run, "--method", name, *small(name))
    assert Run.load(run).model.reads_tokens
    done("evaluate", run, "--no-report")
    done("index", run)
    for bits in (8, 16):
        by_text = done("search", run, "a red thing1", "--bits", bits, "-k", 3, "--json").splitlines()
        by_image = done("search", run, folder / "1.png", "--bits", bits, "-k", 3, "--json").splitlines()
        assert len(by_text) == len(by_image) == 3


def test_the_codes_of_a_query_are_those_of_the_item(folder, tmp_path, monkeypatch):
    """An image that is searched for by its own pixels is coded as it was when it was stored."""
    known(monkeypatch)
    run = tmp_path / "run"
    done("train", folder / "tokens", "--out", run, "--method", TOKENS[0], *small(TOKENS[0]))
    done("index", run)
    first = done("search", run, folder / "5.png", "--in", "image", "-k", 1, "--json")
    assert '"distance": 0' in first


@pytest.mark.parametrize("name", TOKENS)
def test_without_tokens_it_is_refused_and_the_variant_is_named(name, folder, tmp_path):
    said = refused("train", folder / "plain", "--out", tmp_path / "run", "--method", name, *small(name))
    assert_names(said, "tokens: ", repr(name), f"{name.removesuffix('-single')}-pooled")
    assert not (tmp_path / "run").exists()
