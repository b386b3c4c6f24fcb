"""Encoders: the protocols of frozen networks that turn images and texts into feature vectors, and their shared parts.

Encoders whose weights come inside ordinary packages are in `packaged`, CLIP and similar models in `joint`; any function
can be one. Each encoder has the recipe of its features, which is stored with them, so features of different recipes are
never mixed in one run.

The features of an item do not depend on the other items of its batch: images of one size are independent rows of every
layer, and a text is padded to a length that depends on that text alone (`encode_by_length`). Linear algebra libraries
may still round differently for another batch size, processor or number of threads; tests bound the difference.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from multibit.arrays import IntArray
from multibit.errors import ConfigError
from multibit.features.recipe import EncoderRecipe
from multibit.files import fingerprint

Features = NDArray[Any]
"""(n, d) float32 or float16."""


class ImageEncoder(Protocol):
    """Encodes images. `prepare` runs in worker threads, `encode` on whole batches."""

    recipe: EncoderRecipe
    batch_size: int

    def prepare(self, image: Image.Image) -> NDArray[np.uint8]:
        """One RGB image -> the array that `encode` takes."""
        ...

    def encode(self, prepared: Sequence[NDArray[np.uint8]]) -> Features:
        """Prepared images -> (n, dimension)."""
        ...


class TextEncoder(Protocol):
    """Encodes texts."""

    recipe: EncoderRecipe
    batch_size: int

    def encode(self, texts: Sequence[str]) -> Features:
        """Texts -> (n, dimension)."""
        ...

    def truncated(self, texts: Sequence[str]) -> int:
        """Number of texts that are longer than the encoder reads; their ends are ignored."""
        ...


@dataclass
class ImageFunction:
    """Any function as an image encoder.

    Attributes:
        function: n RGB images -> (n, recipe.dimension). recipe: describes the features.
        batch_size: number of images per call.

    Example:
        >>> recipe = EncoderRecipe("mean colour", weights="", dimension=3, preprocessing="RGB")
        >>> def mean_colour(images):
        ...     return [np.asarray(image).mean(axis=(0, 1)) for image in images]
        >>> encoder = ImageFunction(mean_colour, recipe)
        >>> encoder.encode([encoder.prepare(Image.new("RGB", (2, 2), "red"))])
        array([[255., 0., 0.]], dtype=float32)
    """

    function: Callable[[list[Image.Image]], ArrayLike]
    recipe: EncoderRecipe
    batch_size: int = 32

    def prepare(self, image: Image.Image) -> NDArray[np.uint8]:
        """One RGB image -> (height, width, 3)."""
        return np.asarray(image)

    def encode(self, prepared: Sequence[NDArray[np.uint8]]) -> Features:
        """Prepared images -> (n, dimension)."""
        return np.asarray(self.function([Image.fromarray(pixels) for pixels in prepared]), self.recipe.dtype)


@dataclass
class TextFunction:
    """Any function as a text encoder.

    Attributes:
        function: n texts -> (n, recipe.dimension). recipe: describes the features.
        batch_size: number of texts per call.

    Example:
        >>> recipe = EncoderRecipe("length", weights="", dimension=1, preprocessing="letters")
        >>> TextFunction(lambda texts: [[len(text)] for text in texts], recipe).encode(["a cat", ""])
        array([[5.], [0.]], dtype=float32)
    """

    function: Callable[[list[str]], ArrayLike]
    recipe: EncoderRecipe
    batch_size: int = 256

    def encode(self, texts: Sequence[str]) -> Features:
        """Texts -> (n, dimension)."""
        batches = [list(texts[start : start + self.batch_size]) for start in range(0, len(texts), self.batch_size)]
        vectors = [np.asarray(self.function(batch), self.recipe.dtype) for batch in batches]
        return np.concatenate([np.empty((0, self.recipe.dimension), self.recipe.dtype), *vectors])

    def truncated(self, texts: Sequence[str]) -> int:
        """Always 0: the limit of a function is unknown."""
        return 0


class Prompted:
    """A text encoder that reads each text inside a prompt, such as "a photo of {}".

    Raises:
        ConfigError: a prompt without `{}`.
    """

    def __init__(self, encoder: TextEncoder, prompt: str) -> None:
        if "{}" not in prompt:
            raise ConfigError(
                f"needs {{}} where the text goes, got {prompt!r}.", option="prompt", hint="Example: 'a photo of {}'."
            )
        self._encoder, self._prompt = encoder, prompt
        self.recipe = replace(encoder.recipe, prompt=prompt)
        self.batch_size = encoder.batch_size

    def encode(self, texts: Sequence[str]) -> Features:
        """Texts, each inside the prompt -> (n, dimension)."""
        return self._encoder.encode(self._filled(texts))

    def truncated(self, texts: Sequence[str]) -> int:
        """Number of texts that are too long inside the prompt."""
        return self._encoder.truncated(self._filled(texts))

    def _filled(self, texts: Sequence[str]) -> list[str]:
        return [self._prompt.replace("{}", text) for text in texts]


def own_weights(network: Any) -> Any:
    """Copy the weights of a network into memory of its own, in place, so results are bit-identical.

    The libraries map weights from their file, where they may be unaligned; sums over unaligned numbers are rounded
    differently, so features would depend on how the network was loaded.
    """
    for parameter in network.parameters():
        parameter.data = parameter.data.clone()
    return network


def encode_by_length(
    texts: Sequence[str],
    tokenizer: Any,
    limit: int,
    batch_size: int,
    forward: Callable[[Mapping[str, Any]], Any],
    dimension: int,
    step: int = 16,
) -> Features:
    """Encode texts in batches of equal padded length.

    A text is padded to the next multiple of `step` tokens, so its features do not depend on the other texts, and short
    texts do not cost as much as long ones.

    Args:
        texts: n texts. tokenizer: of `transformers`. limit: maximum number of tokens. batch_size: texts per batch.
        forward: tokenised texts, as `transformers` returns them, -> tensor (m, dimension).
        dimension: of the features. step: number of tokens.

    Returns:
        (n, dimension) of unit length.
    """
    import torch

    lengths = np.minimum(-(-token_counts(tokenizer, texts) // step) * step, limit)
    features = np.zeros((len(texts), dimension), np.float32)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            tokens = tokenizer(
                [texts[row] for row in batch],
                truncation=True, padding="max_length", max_length=int(length), return_tensors="pt",
            )  # fmt: skip
            with torch.inference_mode():
                vectors = torch.nn.functional.normalize(forward(tokens).float(), dim=1)
            features[batch] = vectors.cpu().numpy()
    return features


def token_counts(tokenizer: Any, texts: Sequence[str]) -> IntArray:
    """(n,) number of tokens of each text before truncation, special tokens included."""
    if not len(texts):
        return np.zeros(0, np.int64)
    return np.array([len(ids) for ids in tokenizer(list(texts), verbose=False)["input_ids"]], np.int64)


def hash_files(*paths: Path) -> str:
    """16 hexadecimal digits of the content of some files."""
    return fingerprint(*(np.memmap(path, np.uint8, mode="r") for path in paths))


def package_versions(*packages: str) -> dict[str, str]:
    """Package -> installed version."""
    return {package: version(package) for package in packages}


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Keep the libraries from contacting the hub about weights that are on disk."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard what libraries print while they load, such as progress bars of their own."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield
