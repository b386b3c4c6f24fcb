"""Encoders: the protocols of frozen networks that turn images and texts into feature vectors, and their shared parts.

Encoders whose weights come inside ordinary packages are in `packaged`, CLIP and similar models in `joint`; any function
can be one. An encoder may also give token vectors: of the patches of an image, of the words of a text. Each encoder has
the recipe of its features, which is stored with them, so features of different recipes are never mixed in one run.

The features of an item do not depend on the other items of its batch: images of one size are independent rows of every
layer, and a text is padded to a length that depends on that text alone (`TextReader`). Linear algebra libraries
may still round differently for another batch size, processor or number of threads; tests bound the difference.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from multibit.arrays import IntArray
from multibit.errors import ConfigError, DataError, require_integer, require_kind
from multibit.features.recipe import EncoderRecipe
from multibit.features.tokens import Tokens, TokenShape
from multibit.files import fingerprint

T = TypeVar("T")
R = TypeVar("R")
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
    """Encodes texts. An encoder of your own may leave out `truncated`; then no text counts as too long."""

    recipe: EncoderRecipe
    batch_size: int

    def encode(self, texts: Sequence[str]) -> Features:
        """Texts -> (n, dimension)."""
        ...

    def truncated(self, texts: Sequence[str]) -> int:
        """Number of texts that are longer than the encoder reads; their ends are ignored."""
        ...


class ImageTokenEncoder(ImageEncoder, Protocol):
    """An image encoder that also gives the vectors of patches."""

    @property
    def token_shape(self) -> TokenShape | None:
        """Number of tokens of an image, and their length; None if this model has none after all."""
        ...

    def encode_tokens(self, prepared: Sequence[NDArray[np.uint8]]) -> tuple[Features, Tokens]:
        """As `encode`, bit for bit, and the float16 tokens of the same pass."""
        ...


class TextTokenEncoder(TextEncoder, Protocol):
    """A text encoder that also gives the vectors of words."""

    @property
    def token_shape(self) -> TokenShape | None:
        """Largest number of tokens of a text, and their length; None if this model has none after all."""
        ...

    def encode_tokens(self, texts: Sequence[str]) -> tuple[Features, Tokens]:
        """As `encode`, bit for bit, and the float16 tokens of the same pass."""
        ...


@dataclass
class ImageFunction:
    """Any function as an image encoder.

    Attributes:
        function: n RGB images -> (n, recipe.dimension). recipe: describes the features.
        batch_size: number of images per call.

    Raises:
        DataError: no function, no recipe, or a batch size that is not whole or less than 1.

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

    def __post_init__(self) -> None:
        _require_function(self)

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

    Raises:
        DataError: no function, no recipe, or a batch size that is not whole or less than 1.

    Example:
        >>> recipe = EncoderRecipe("length", weights="", dimension=1, preprocessing="letters")
        >>> TextFunction(lambda texts: [[len(text)] for text in texts], recipe).encode(["a cat", ""])
        array([[5.], [0.]], dtype=float32)
    """

    function: Callable[[list[str]], ArrayLike]
    recipe: EncoderRecipe
    batch_size: int = 256

    def __post_init__(self) -> None:
        _require_function(self)

    def encode(self, texts: Sequence[str]) -> Features:
        """Texts -> (n, dimension)."""
        batches = [list(texts[start : start + self.batch_size]) for start in range(0, len(texts), self.batch_size)]
        vectors = [np.asarray(self.function(batch), self.recipe.dtype) for batch in batches]
        return np.concatenate([np.empty((0, self.recipe.dimension), self.recipe.dtype), *vectors])

    def truncated(self, texts: Sequence[str]) -> int:
        """Always 0: the limit of a function is unknown."""
        return 0


def _require_function(encoder: ImageFunction | TextFunction) -> None:
    """Refuse an encoder whose fields are swapped or missing."""
    if not callable(encoder.function):
        raise DataError(f"need a function, got {type(encoder.function).__name__}.", option="function")
    hint = "Describe the features: EncoderRecipe(name, weights, dimension, preprocessing)."
    require_kind(encoder.recipe, EncoderRecipe, "recipe", hint)
    require_integer(encoder.batch_size, 1, "batch_size")


def count_truncated(encoder: TextEncoder, texts: Sequence[str]) -> int:
    """Number of texts that are longer than an encoder reads; 0 where it does not say, see `TextEncoder`.

    Example:
        >>> class Letters:
        ...     recipe, batch_size = EncoderRecipe("letters", "", 1, "none"), 8
        ...     def encode(self, texts):
        ...         return np.array([[len(text)] for text in texts], np.float32)
        >>> count_truncated(Letters(), ["a cat"])
        0
    """
    count = getattr(encoder, "truncated", None)
    return 0 if count is None else int(count(texts))


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
        self.token_shape: TokenShape | None = getattr(encoder, "token_shape", None)
        self.tokenizer: Any = getattr(encoder, "tokenizer", None)

    def encode(self, texts: Sequence[str]) -> Features:
        """Texts, each inside the prompt -> (n, dimension)."""
        return self._encoder.encode(self._filled(texts))

    def encode_tokens(self, texts: Sequence[str]) -> tuple[Features, Tokens]:
        """As `encode`, and the tokens of the whole prompts; only if the encoder gives some."""
        return cast(TextTokenEncoder, self._encoder).encode_tokens(self._filled(texts))

    def truncated(self, texts: Sequence[str]) -> int:
        """Number of texts that are too long inside the prompt."""
        return count_truncated(self._encoder, self._filled(texts))

    def _filled(self, texts: Sequence[str]) -> list[str]:
        return [self._prompt.replace("{}", text) for text in texts]


def prompted(encoder: TextEncoder, prompt: str) -> TextEncoder:
    """An encoder that reads each text inside a prompt; the encoder itself for the prompt `{}`. Raises as `Prompted`."""
    return encoder if prompt == "{}" else Prompted(encoder, prompt)


LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Arguments of every `from_pretrained`: nothing is downloaded, and code that lies in a model's folder is never run."""


def own_weights(network: Any) -> Any:
    """Copy the weights of a network into memory of its own, in place, so results are bit-identical.

    The libraries map weights from their file, where they may be unaligned; sums over unaligned numbers are rounded
    differently, so features would depend on how the network was loaded.
    """
    for parameter in network.parameters():
        parameter.data = parameter.data.clone()
    return network


class Words(Protocol):
    """Turns texts into the numbers of their tokens."""

    def counts(self, texts: Sequence[str]) -> IntArray:
        """(n,) number of tokens of each text, special ones included; more than are read of one that is truncated."""
        ...

    def padded(self, texts: Sequence[str], length: int) -> Mapping[str, NDArray[np.int64]]:
        """Inputs of a network by name, each (n, length): texts truncated or padded to some tokens."""
        ...


@dataclass(frozen=True)
class LibraryWords:
    """A tokenizer of `transformers`."""

    tokenizer: Any

    def counts(self, texts: Sequence[str]) -> IntArray:
        """See `Words.counts`."""
        if not len(texts):
            return np.zeros(0, np.int64)
        return np.array([len(ids) for ids in self.tokenizer(list(texts), verbose=False)["input_ids"]], np.int64)

    def padded(self, texts: Sequence[str], length: int) -> Mapping[str, NDArray[np.int64]]:
        """See `Words.padded`."""
        found = self.tokenizer(
            list(texts), truncation=True, padding="max_length", max_length=length, return_tensors="np"
        )
        return {name: np.asarray(values, np.int64) for name, values in found.items() if name != "token_type_ids"}


@dataclass(frozen=True)
class TextReader:
    """Encodes texts in batches of equal padded length.

    A text is padded to the next multiple of `step` tokens, so its features do not depend on the other texts, and short
    texts do not cost as much as long ones.

    Attributes:
        words: the tokenizer. limit: maximum number of tokens.
        forward: inputs of `Words.padded` -> (m, dimension) float32, the vectors of the texts, and (m, tokens, h), the
            states of their tokens; it may be asked for the vectors alone, and gives None then.
        dimension: of the features. step: number of tokens. threads: number of batches at the same time.
    """

    words: Words
    limit: int
    forward: Callable[[Mapping[str, NDArray[np.int64]], bool], tuple[NDArray[np.float32], NDArray[Any] | None]]
    dimension: int
    step: int = 16
    threads: int = 1

    def encode(self, texts: Sequence[str], batch_size: int) -> NDArray[np.float32]:
        """Texts -> (n, dimension) of unit length; `batch_size` texts at a time."""
        features = np.zeros((len(texts), self.dimension), np.float32)
        for rows, _, pooled, _ in self._batches(texts, batch_size, False):
            features[rows] = pooled
        return features

    def encode_tokens(
        self, texts: Sequence[str], batch_size: int, shape: TokenShape
    ) -> tuple[NDArray[np.float32], Tokens]:
        """As `encode`, and the states of the tokens, those of start and end included.

        Of a text with more than `shape[0]` tokens the last that is kept is the end token, which stands for the whole
        text in many models, as if the text had been cut before it was read.
        """
        features = np.zeros((len(texts), self.dimension), np.float32)
        values, counts = np.zeros((len(texts), *shape), np.float16), np.ones(len(texts), np.int64)
        for rows, found, pooled, states in self._batches(texts, batch_size, True):
            features[rows] = pooled
            numbers = np.tile(np.arange(shape[0]), (len(rows), 1))  # (m, kept) which token goes where
            numbers[:, -1] = np.where(found > shape[0], found - 1, numbers[:, -1])
            real = numbers < found[:, None]
            half = cast(NDArray[Any], states).astype(np.float16, copy=False)
            kept = half[np.arange(len(rows))[:, None], np.where(real, numbers, 0)]
            values[rows] = np.where(real[..., None], kept, np.float16(0))  # (m, kept, h)
            counts[rows] = np.minimum(found, shape[0])
        return features, Tokens(values, counts)

    def _batches(
        self, texts: Sequence[str], batch_size: int, states: bool
    ) -> Iterator[tuple[IntArray, IntArray, NDArray[np.float32], NDArray[Any] | None]]:
        """Batches of texts of one padded length: rows, numbers of tokens, vectors, states."""
        counts = np.clip(self.words.counts(texts), 1, self.limit)
        lengths = np.minimum(-(-counts // self.step) * self.step, self.limit)
        batches = [
            (same[start : start + batch_size], int(length))
            for length in np.unique(lengths)
            for same in [np.flatnonzero(lengths == length)]
            for start in range(0, len(same), batch_size)
        ]

        def encode(batch: tuple[IntArray, int]) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
            rows, length = batch
            return self.forward(self.words.padded([texts[row] for row in rows], length), states)

        for (rows, _), (vectors, found) in zip(batches, in_order(encode, batches, self.threads), strict=True):
            yield rows, counts[rows], vectors, found

    def truncated(self, texts: Sequence[str]) -> int:
        """Number of texts with more tokens than the limit."""
        return int((self.words.counts(texts) > self.limit).sum())


class TensorTexts(Protocol):
    """The network of a text encoder in torch.

    Attributes:
        device: where it runs. inputs: names of the inputs, in the order of the arguments of `compute`.
    """

    device: str
    inputs: tuple[str, ...]

    @property
    def compute(self) -> Callable[..., tuple[Any, Any]]:
        """(n, tokens) int64 -> vectors (n, d) float32 of unit length, states (n, tokens, h) or None; all tensors."""
        ...


def forward(
    encoder: TensorTexts, inputs: Mapping[str, NDArray[np.int64]], states: bool
) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
    """`TextReader.forward` of a network in torch; the states are float16."""
    import torch

    with torch.inference_mode():
        tensors = (torch.from_numpy(inputs[name]).to(encoder.device) for name in encoder.inputs)
        vectors, found = encoder.compute(*tensors)
        return as_array(vectors), as_array(found.half()) if states else None


def as_array(tensor: Any) -> NDArray[Any]:
    """A tensor as an array in the memory of this process."""
    array: NDArray[Any] = tensor.cpu().numpy()
    return array


def in_order(function: Callable[[T], R], items: Sequence[T], threads: int) -> Iterator[R]:
    """Results of a function that needs no Python while it computes, in order, on several threads."""
    if threads <= 1 or len(items) <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        yield from pool.map(function, items)


def unread(encoder: TextEncoder, text: str) -> Unread | None:
    """What a text encoder cannot read in a text, so that its vector says little; None if nothing was found.

    An encoder that has not learned a script replaces its words by one token for "unknown", or spells them letter by
    letter. Encoders without a `tokenizer` are not asked.

    Args:
        encoder: any. text: not empty.
    """
    tokenizer = getattr(encoder, "tokenizer", None)
    if tokenizer is None:
        return None
    tokens, unknown_token = _tokens(tokenizer, text)
    unknown = sum(token == unknown_token for token in tokens)
    letters = [character for character in text if character.isalpha()]
    foreign = sum(not character.isascii() for character in letters) > len(letters) / 2
    spelled = len(letters) > 2 and foreign and len(tokens) >= 0.75 * len(letters)
    return Unread(unknown, len(tokens), spelled) if unknown or spelled or not tokens else None


def _tokens(tokenizer: Any, text: str) -> tuple[Sequence[int], int | None]:
    """The tokens of a text, and the one for "unknown", by a tokenizer of `transformers` or of `tokenizers`."""
    if hasattr(tokenizer, "unk_token_id"):
        return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], tokenizer.unk_token_id
    name = getattr(tokenizer.model, "unk_token", None) or "<unk>"
    return tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.token_to_id(name)


class Unread(NamedTuple):
    """Tokens of a text that are unknown, all its tokens, and whether its words are spelled letter by letter."""

    unknown: int
    tokens: int
    spelled: bool


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
