"""CLIP, SigLIP and their relatives through `transformers`: pictures and texts in one space.

A model is a folder, or a name on the hub, which is asked only for what is not on this disk yet. Of the library's
picture processors only the settings are used: their scaling depends on whether torchvision is installed, and scales all
of a long thin picture, which may fill the memory, before it cuts the middle.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from multibit.data.encoders import (
    EncoderRecipe,
    Features,
    encode_by_length,
    hash_files,
    offline,
    own_weights,
    package_versions,
    quiet,
    token_counts,
)
from multibit.errors import ConfigError, MissingExtraError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
WEIGHTS = ("*.safetensors", "*.bin")  # the first kind that is there is taken
VOCABULARY = ("tokenizer.json", "vocab.*", "*.model")
TOKENIZER = (*VOCABULARY, "tokenizer_config.json", "special_tokens_map.json", "merges.txt")
CONTENT = "config.json, model.safetensors, preprocessor_config.json and the tokenizer's files"


class JointPictures:
    """The picture side of a CLIP-like model."""

    def __init__(self, name: str, device: str = "cpu", dtype: str = "float32") -> None:
        model = _open(name, device, dtype)
        self._network, self.device, self._dtype = model.network, device, dtype
        with _sentences(name, "its picture processor"):
            settings = _library().AutoImageProcessor.from_pretrained(model.folder, local_files_only=True).to_dict()
        self._scaling = Scaling.of(settings, name)
        self.batch_size = 8 if device == "cpu" else 256
        with _sentences(name, "its picture network"):
            dimension = self.encode([self.prepare(Image.new("RGB", (1, 1)))]).shape[1]
        self.recipe = EncoderRecipe(
            name=model.name,
            weights=model.weights,
            dimension=dimension,
            preprocessing=f"RGB, {self._scaling.describe()}, unit length",
            dtype=dtype,
            source=model.source,
            versions=package_versions("torch", "transformers", "pillow"),
        )

    def prepare(self, picture: Image.Image) -> NDArray[np.uint8]:
        """One RGB picture -> (height, width, 3)."""
        return self._scaling.apply(picture)

    def encode(self, prepared: Sequence[NDArray[np.uint8]]) -> Features:
        """Prepared pictures -> (n, dimension) of unit length."""
        import torch

        with torch.inference_mode():
            pixels = torch.from_numpy(np.stack(prepared)).to(self.device).permute(0, 3, 1, 2).float()
            mean, deviation = (
                torch.tensor(values, device=self.device).view(1, 3, 1, 1)
                for values in (self._scaling.mean, self._scaling.deviation)
            )
            pixels = ((pixels * self._scaling.factor - mean) / deviation).to(getattr(torch, self._dtype))
            vectors = torch.nn.functional.normalize(
                self._network.get_image_features(pixel_values=pixels).pooler_output.float(), dim=1
            )
        return np.asarray(vectors.cpu().numpy(), self._dtype)


class JointTexts:
    """The text side of a CLIP-like model; longer texts are cut at the model's own limit."""

    def __init__(self, name: str, device: str = "cpu", dtype: str = "float32") -> None:
        model = _open(name, device, dtype)
        self._network, self.device, self._dtype = model.network, device, dtype
        with _sentences(name, "its tokenizer"):
            if not _files(model.folder, VOCABULARY):  # the library would make up an empty one
                raise ValueError(f"none of {', '.join(VOCABULARY)} is there")
            self._tokenizer = _library().AutoTokenizer.from_pretrained(model.folder, local_files_only=True)
        config = model.network.config
        self._limit = min(int(config.get_text_config().max_position_embeddings), self._tokenizer.model_max_length)
        # SigLIP was trained on texts that are all padded to the limit; the others do not see the padding.
        self._step = self._limit if config.model_type.startswith("siglip") else 16
        self.batch_size = 64 if device == "cpu" else 512
        self._dimension = 0
        with _sentences(name, "its text network"), _inference():
            tokens = self._tokenizer(["a"], padding="max_length", max_length=self._limit, return_tensors="pt")
            self._dimension = int(self._forward(tokens).shape[1])
        words = hash_files(*_files(model.folder, TOKENIZER))
        self.recipe = EncoderRecipe(
            name=model.name,
            weights=model.weights,
            dimension=self._dimension,
            preprocessing=f"tokenizer {words}, at most {self._limit} tokens, unit length",
            dtype=dtype,
            text_limit=self._limit,
            source=model.source,
            versions=package_versions("torch", "transformers", "tokenizers"),
        )

    def encode(self, texts: Sequence[str]) -> Features:
        """Texts of any length and script -> (n, dimension) of unit length."""
        vectors = encode_by_length(
            texts, self._tokenizer, self._limit, self.batch_size, self._forward, self._dimension, self._step
        )
        return vectors.astype(self._dtype)

    def _forward(self, tokens: Mapping[str, Any]) -> Any:
        inputs = {key: ids.to(self.device) for key, ids in tokens.items()}
        return self._network.get_text_features(**inputs).pooler_output

    def truncated(self, texts: Sequence[str]) -> int:
        """How many of the texts have more tokens than the model reads."""
        return int((token_counts(self._tokenizer, texts) > self._limit).sum())


@dataclass(frozen=True)
class Scaling:
    """How a picture becomes the network's input.

    Attributes:
        shortest: length that the shorter side is scaled to; None: all of the picture becomes `width` x `height`.
        width, height: of the input, its middle where `shortest` is given. filter: of Pillow.
        factor, mean, deviation: the input is (pixels * factor - mean) / deviation, channel by channel.
    """

    shortest: int | None
    width: int
    height: int
    filter: Image.Resampling
    factor: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, settings: Mapping[str, Any], name: str) -> Scaling:
        """From the settings of a picture processor of `transformers`.

        Raises:
            ConfigError: it makes pictures of no fixed size, or does something else to them.
        """
        size, crop = dict(settings.get("size") or {}), dict(settings.get("crop_size") or {})
        cut = crop if settings.get("do_center_crop") else {}
        shortest = size.get("shortest_edge")
        final = cut if shortest else size
        fits = bool(shortest) or not cut or cut == size
        if not settings.get("do_resize") or settings.get("do_pad") or not fits or not {"height", "width"} <= set(final):
            raise ConfigError(
                f"encoder {name!r}: its preprocessor_config.json asks for pictures of size {size}, crop {crop}; only a "
                "fixed size, or the middle of a picture whose shorter side is scaled, can be made."
            )
        width, height = int(final["width"]), int(final["height"])
        if shortest and shortest < max(width, height):
            raise ConfigError(f"encoder {name!r}: cannot cut {width} x {height} out of a shorter side of {shortest}.")
        scaled, normal = settings.get("do_rescale"), settings.get("do_normalize")
        return cls(
            int(shortest) if shortest else None, width, height, Image.Resampling(settings.get("resample", 3)),
            float(settings["rescale_factor"]) if scaled else 1.0,
            tuple(map(float, settings["image_mean"])) if normal else (0.0,) * 3,
            tuple(map(float, settings["image_std"])) if normal else (1.0,) * 3,
        )  # fmt: skip

    def describe(self) -> str:
        """For people."""
        part = f"middle of shorter side {self.shortest}" if self.shortest else "all"
        return (
            f"{part}, {self.width} x {self.height} {self.filter.name.lower()}, "
            f"(x * {self.factor:.6g} - {list(self.mean)}) / {list(self.deviation)}"
        )

    def apply(self, picture: Image.Image) -> NDArray[np.uint8]:
        """One RGB picture -> (height, width, 3): scaled, and only the middle ever computed."""
        width, height = picture.size
        if self.shortest is None:
            return np.asarray(picture.resize((self.width, self.height), self.filter))
        short = min(width, height)
        whole = int(self.shortest * width / short), int(self.shortest * height / short)
        left, top = (whole[0] - self.width) // 2, (whole[1] - self.height) // 2
        across, down = width / whole[0], height / whole[1]
        box = (
            left * across,
            top * down,
            min((left + self.width) * across, width),
            min((top + self.height) * down, height),
        )
        return np.asarray(picture.resize((self.width, self.height), self.filter, box=box))


@dataclass(frozen=True)
class _Model:
    name: str
    source: str
    folder: Path
    weights: str
    network: Any


def _open(name: str, device: str, dtype: str) -> _Model:
    folder = Path(name).resolve() if Path(name).is_dir() else None
    source = name if folder is None else str(folder)
    folder = folder or _from_hub(name)
    files = _weight_files(folder)
    if not files or not (folder / "config.json").is_file():
        raise ConfigError(f"encoder {name!r}: {folder} is no complete model; it needs {CONTENT}.")
    weights = hash_files(*files)
    with _sentences(name, "its network"):
        network = _network(folder, weights, device, dtype)
    for method in ("get_image_features", "get_text_features"):
        if not hasattr(network, method):
            raise ConfigError(f"encoder {name!r}: a {type(network).__name__} has no {method}; need a CLIP-like model.")
    return _Model(Path(source).name, source, folder, weights, network)


@functools.lru_cache(maxsize=1)
def _network(folder: Path, weights: str, device: str, dtype: str) -> Any:
    """One network for pictures and texts; `weights` is here so that changed files are read again."""
    import torch

    network, said = _library().AutoModel.from_pretrained(
        folder, dtype=getattr(torch, dtype), local_files_only=True, output_loading_info=True
    )
    if said["missing_keys"]:
        missing = sorted(said["missing_keys"])
        raise ValueError(f"the weights lack {len(missing)} tensors, among them {missing[0]}")
    return own_weights(network.eval().to(device))


def _from_hub(name: str) -> Path:
    """Folder of a model of the hub: as downloaded before, else downloaded now."""
    if not HUB_NAME.fullmatch(name):
        raise ConfigError(f"encoder {name!r}: no such folder.")
    _library()
    import huggingface_hub as hub

    with contextlib.suppress(Exception):  # not here, or not all of it
        folder = Path(hub.snapshot_download(name, local_files_only=True))
        if _weight_files(folder) and (folder / "config.json").is_file():
            return folder
    try:
        files = [Path(file.rfilename) for file in hub.model_info(name, timeout=20).siblings or ()]
        kind = next((kind for kind in WEIGHTS if any(file.match(kind) for file in files)), WEIGHTS[0])
        return Path(hub.snapshot_download(name, allow_patterns=[kind, "*.json", "*.txt", "*.model"]))
    except Exception as error:  # the library lets those of its connections through
        raise ConfigError(
            f"encoder {name!r}: is neither a folder nor on this disk, and the hub does not give it ({_short(error)}). "
            f"Without a network give a folder with {CONTENT}."
        ) from None


def _files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in folder.glob(pattern)})


def _weight_files(folder: Path) -> list[Path]:
    return next((files for kind in WEIGHTS if (files := _files(folder, [kind]))), [])


@contextlib.contextmanager
def _sentences(name: str, what: str) -> Iterator[None]:
    """Load without network or noise; what goes wrong is a sentence."""
    try:
        with offline(), quiet():
            yield
    except (ConfigError, MissingExtraError):
        raise
    except Exception as error:  # a damaged or foreign folder makes the library raise anything
        raise ConfigError(f"encoder {name!r}: {what} cannot be loaded ({_short(error)}); it needs {CONTENT}.") from None


def _inference() -> contextlib.AbstractContextManager[Any]:
    import torch

    return torch.inference_mode()


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _library() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("transformers", extra="clip", need="a CLIP-like encoder") from None
    return transformers
