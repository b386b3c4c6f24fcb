"""Portable encoders: an image or a text encoder as a folder that needs no torch, run by ONNX Runtime.

The folder holds the network (`network.onnx` and its weights), `encoder.json` with the recipe of the features and how
the input is prepared, and the tokenizer of a text encoder. `multibit.features.export` writes it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from multibit.arrays import IntArray
from multibit.codes.items import Modality
from multibit.errors import FormatError, MissingExtraError
from multibit.features.base import Features, TextReader, in_order
from multibit.features.recipe import EncoderRecipe
from multibit.features.scaling import preparation_of
from multibit.features.sessions import Network, batch_of, cache_folder
from multibit.features.tokens import Tokens, TokenShape
from multibit.files import read_json, typed
from multibit.machine import processors

if TYPE_CHECKING:
    from PIL import Image

KIND, VERSION = "portable encoder", 1
ABOUT, TOKENIZER = "encoder.json", "tokenizer.json"
RUNTIME = "onnxruntime"
IMAGES_AT_ONCE = 4  # more leave the processor's cache
STEP = 4  # tokens: texts are padded to a multiple of them


EXPORT = 1
"""Number of the way in which cached encoders are written; a new number makes them again."""


class About(msgspec.Struct):
    """Content of `encoder.json`.

    Attributes:
        modality: of the inputs. recipe: of the features. checksum: of the network.
        token_shape: of the token features; None without them.
        preparation: of images, see `scaling`. limit: number of tokens that are read of a text. step: a text is padded
            to a multiple of this many tokens, with the token `pad`. inputs: names of the inputs of a text network.
    """

    modality: Modality
    recipe: dict[str, Any]
    checksum: str
    token_shape: tuple[int, int] | None = None
    preparation: dict[str, Any] | None = None
    limit: Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)] = 0
    step: Annotated[int, msgspec.Meta(ge=1, lt=1 << 20)] = STEP
    pad: Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)] = 0
    inputs: list[str] = []


class PortableImages:
    """The image encoder of a folder; see `ImageEncoder`.

    Raises:
        FormatError: missing, corrupt or newer. MissingExtraError: ONNX Runtime is not installed.
    """

    batch_size = 8 * IMAGES_AT_ONCE
    device = "cpu"

    def __init__(self, folder: Path, *, many: bool = False) -> None:
        about = read_about(folder, "image")
        try:
            self.preparation = preparation_of(about.preparation or {})
        except (KeyError, TypeError, ValueError):
            raise FormatError("invalid value.", file=folder / ABOUT, field="preparation") from None
        self.recipe = _recipe(about, "pillow")
        self.token_shape: TokenShape | None = about.token_shape
        self._network = Network(folder, about.checksum, many=many)

    def prepare(self, image: Image.Image) -> NDArray[np.uint8]:
        """One RGB image -> (height, width, 3)."""
        return self.preparation.apply(image)

    def encode(self, prepared: Sequence[NDArray[np.uint8]]) -> Features:
        """Prepared images -> (n, dimension); a few images at a time on each processor."""
        return self._run(prepared, ["features"])[0]

    def encode_tokens(self, prepared: Sequence[NDArray[np.uint8]]) -> tuple[Features, Tokens]:
        """As `encode`, and the float16 vectors of the patches."""
        vectors, tokens = self._run(prepared, ["features", "tokens"])
        return vectors, Tokens(tokens.astype(np.float16), np.full(len(tokens), tokens.shape[1]))

    def _run(self, prepared: Sequence[NDArray[np.uint8]], outputs: list[str]) -> list[NDArray[Any]]:
        size = IMAGES_AT_ONCE if len(prepared) > 1 else 1
        groups = [prepared[start : start + size] for start in range(0, len(prepared), size)]

        def run(group: Sequence[NDArray[np.uint8]]) -> list[NDArray[Any]]:
            return [found[: len(group)] for found in self._network({"pixels": batch_of(group, size)}, outputs)]

        return [np.concatenate(parts) for parts in zip(*in_order(run, groups, processors()), strict=True)]


class PortableTexts:
    """The text encoder of a folder; see `TextEncoder`.

    Raises:
        FormatError: missing, corrupt or newer. MissingExtraError: ONNX Runtime or tokenizers is not installed.
    """

    batch_size = 64
    device = "cpu"

    def __init__(self, folder: Path, *, many: bool = False) -> None:
        about = read_about(folder, "text")
        self.recipe = _recipe(about, "tokenizers")
        self.token_shape: TokenShape | None = about.token_shape
        self._network = Network(folder, about.checksum, many=many)
        self._outputs = ["features", "tokens"] if about.token_shape else ["features"]
        words = PortableWords(folder / TOKENIZER, about.limit, about.pad, about.inputs)
        self.tokenizer = words.tokenizer
        self._reader = TextReader(
            words, about.limit, self._forward, self.recipe.dimension, about.step, threads=processors()
        )

    def encode(self, texts: Sequence[str]) -> Features:
        """Texts of any length and script -> (n, dimension) of unit length."""
        return self._reader.encode(texts, self.batch_size)

    def encode_tokens(self, texts: Sequence[str]) -> tuple[Features, Tokens]:
        """As `encode`, and the float16 states of the words, those of start and end included."""
        assert self.token_shape is not None
        return self._reader.encode_tokens(texts, self.batch_size, self.token_shape)

    def truncated(self, texts: Sequence[str]) -> int:
        """Number of texts with more tokens than are read."""
        return self._reader.truncated(texts)

    def _forward(
        self, inputs: Mapping[str, NDArray[np.int64]], states: bool
    ) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
        found = self._network(inputs, self._outputs if states else self._outputs[:1])
        return found[0], found[1] if states else None


class PortableWords:
    """A tokenizer of the library `tokenizers`; see `Words`.

    Attributes:
        path: of its JSON file. limit: number of tokens that are read. pad: number of the padding token. inputs: names
            of the inputs of the network.
    """

    def __init__(self, path: Path, limit: int, pad: int, inputs: Sequence[str]) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtraError("tokenizers", extra="onnx", need="A portable text encoder") from None
        if not path.is_file():
            raise FormatError("no such file, so this is not a complete portable encoder.", file=path)
        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises a bare Exception
            raise FormatError(f"not a tokenizer ({error}).", file=path) from None
        self.tokenizer.no_padding()  # a file may have both baked in
        self.tokenizer.enable_truncation(limit)
        self._pad, self._inputs = pad, tuple(inputs)

    def counts(self, texts: Sequence[str]) -> IntArray:
        """See `Words.counts`."""
        found = self.tokenizer.encode_batch(list(texts))
        return np.array([len(each.ids) + bool(each.overflowing) for each in found], np.int64)

    def padded(self, texts: Sequence[str], length: int) -> Mapping[str, NDArray[np.int64]]:
        """See `Words.padded`."""
        ids = np.full((len(texts), length), self._pad, np.int64)
        mask = np.zeros((len(texts), length), np.int64)
        for row, found in enumerate(self.tokenizer.encode_batch(list(texts))):
            ids[row, : len(found.ids)], mask[row, : len(found.ids)] = found.ids, 1
        return {name: {"input_ids": ids, "attention_mask": mask}[name] for name in self._inputs}


def cached_folder(name: str, weights: str) -> Path:
    """Where the cache of the user has the packaged encoder with this name and hash of the weights."""
    return cache_folder() / "encoders" / f"{name}-{weights}-{EXPORT}"


def is_cached(folder: Path) -> bool:
    """Whether the cache has this folder; False too where one may not look into the cache."""
    return os.path.isdir(folder)  # noqa: PTH112 - the method of `Path` fails where one may not look


def read_about(folder: Path, modality: Modality) -> About:
    """Content of `encoder.json`.

    Raises:
        FormatError: missing, corrupt, newer, or an encoder of the other modality.
    """
    about = typed(read_json(folder / ABOUT, kind=KIND, version=VERSION), About, folder / ABOUT)
    if about.modality != modality:
        raise FormatError(f"encodes {about.modality}s, not {modality}s.", file=folder / ABOUT, field="modality")
    return about


def _recipe(about: About, *libraries: str) -> EncoderRecipe:
    """The recipe, with the versions of the libraries that make the features here."""
    try:
        recipe = EncoderRecipe(**about.recipe)
    except TypeError as error:
        raise FormatError(f"invalid recipe ({error}).", file=ABOUT, field="recipe") from None
    return replace(recipe, versions={name: version(name) for name in (RUNTIME, *libraries)})
