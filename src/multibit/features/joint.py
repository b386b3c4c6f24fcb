"""CLIP, SigLIP and similar models through `transformers`: images and texts in one space.

A model is a folder, or a name on the hub, which is contacted only for files that are not on this disk yet. Only the
settings of the library's image processors are used: their scaling depends on whether torchvision is installed, and they
scale a long thin image as a whole, which may exhaust the memory, before they crop it.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from multibit.errors import ConfigError, MissingExtraError, first_line
from multibit.features.base import (
    LOCAL,
    Features,
    LibraryWords,
    TextReader,
    as_array,
    forward,
    hash_files,
    offline,
    own_weights,
    package_versions,
    quiet,
)
from multibit.features.recipe import EncoderRecipe
from multibit.features.scaling import Scaling
from multibit.features.tokens import MAX_WORDS, Tokens, TokenShape

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
WEIGHTS = "*.safetensors"
PICKLED = "*.bin"  # weights whose reading could run code: never loaded
Hub = Literal["ask", "ask without token", "never"]
"""What a name may do: one that the user gave asks the hub, with the user's token; one from a file has no token."""
SETTINGS = "preprocessor_config.json"
VOCABULARY = ("tokenizer.json", "vocab.*", "*.model")
TOKENIZER = (*VOCABULARY, "tokenizer_config.json", "special_tokens_map.json", "merges.txt")
COMPLETE = "A model folder needs config.json, model.safetensors, preprocessor_config.json and the tokenizer's files."


class JointImages:
    """The image side of a CLIP-like model.

    Raises:
        ConfigError: no such model, or one that cannot be loaded. MissingExtraError: transformers is not installed.
    """

    def __init__(self, name: str, device: str = "cpu", dtype: str = "float32", hub: Hub = "ask") -> None:
        model = _open(name, device, dtype, hub)
        self.folder, self.network, self.device, self._dtype = model.folder, model.network, device, dtype
        with _loading(model.folder, "image processor"):
            settings = _library().AutoImageProcessor.from_pretrained(model.folder, **LOCAL).to_dict()
            self.preparation = Scaling.of(settings)
        self.batch_size = 8 if device == "cpu" else 256
        with _loading(model.folder, "image network"):
            output, self._norm = _with_missing_norm(self.network, self._probe)
            dimension, self.token_shape = int(output.pooler_output.shape[1]), self._patches(output)
        self.recipe = EncoderRecipe(
            name=model.name,
            weights=model.weights,
            dimension=dimension,
            preprocessing=f"RGB, {self.preparation.describe()}, unit length",
            dtype=dtype,
            source=model.source,
            versions=package_versions("torch", "transformers", "pillow"),
        )

    def prepare(self, image: Image.Image) -> NDArray[np.uint8]:
        """One RGB image -> (height, width, 3)."""
        return self.preparation.apply(image)

    def encode(self, prepared: Sequence[NDArray[np.uint8]]) -> Features:
        """Prepared images -> (n, dimension) of unit length."""
        return np.asarray(self._run(prepared, False)[0], self._dtype)

    def encode_tokens(self, prepared: Sequence[NDArray[np.uint8]]) -> tuple[Features, Tokens]:
        """As `encode`, and the last states of the patches, row by row, after the network's last normalisation."""
        assert self.token_shape is not None
        vectors, values = self._run(prepared, True)
        assert values is not None
        return np.asarray(vectors, self._dtype), Tokens(values, np.full(len(values), values.shape[1]))

    def compute(self, pixels: Any, with_tokens: bool = True) -> tuple[Any, Any]:
        """Tensor (n, height, width, 3) uint8 -> vectors (n, dimension) of unit length, patches (n, t, d) or None."""
        return self._features(self._forward(pixels), with_tokens)

    def _run(self, prepared: Sequence[NDArray[np.uint8]], with_tokens: bool) -> tuple[Features, NDArray[Any] | None]:
        import torch

        with torch.inference_mode():
            pixels = torch.from_numpy(np.stack(prepared)).to(self.device)
            vectors, patches = self.compute(pixels, with_tokens)
            return as_array(vectors), None if patches is None else as_array(patches.half())

    def _forward(self, pixels: Any) -> Any:
        """The network's output: the vectors of the images, and the states of their tokens."""
        import torch

        values = pixels.permute(0, 3, 1, 2).float()
        mean, deviation = (
            torch.tensor(values, device=self.device).view(1, 3, 1, 1)
            for values in (self.preparation.mean, self.preparation.deviation)
        )
        values = ((values * self.preparation.factor - mean) / deviation).to(getattr(torch, self._dtype))
        return self.network.get_image_features(pixel_values=values)

    def _features(self, output: Any, with_tokens: bool) -> tuple[Any, Any]:
        import torch

        vectors = torch.nn.functional.normalize(output.pooler_output.float(), dim=1)
        if not with_tokens or self.token_shape is None:
            return vectors, None
        return vectors, self._norm(output.last_hidden_state[:, -self.token_shape[0] :])  # (n, t, d), no class token

    def _probe(self) -> Any:
        """The output of one image."""
        import torch

        with torch.inference_mode():
            pixels = torch.from_numpy(self.prepare(Image.new("RGB", (1, 1)))[None].copy())
            return self._forward(pixels.to(self.device))

    def _patches(self, output: Any) -> TokenShape | None:
        """Number and length of the tokens of an image, None in a network without patches."""
        states = getattr(output, "last_hidden_state", None)  # (n, t, d), after a class token in some networks
        side = getattr(getattr(self.network.config, "vision_config", None), "patch_size", None)
        if states is None or states.ndim != 3 or not isinstance(side, int):
            return None
        count = (self.preparation.height // side) * (self.preparation.width // side)
        return (count, states.shape[2]) if states.shape[1] >= count else None


class JointTexts:
    """The text side of a CLIP-like model; longer texts are truncated at the model's own limit.

    Raises:
        ConfigError: no such model, or one that cannot be loaded. MissingExtraError: transformers is not installed.
    """

    def __init__(self, name: str, device: str = "cpu", dtype: str = "float32", hub: Hub = "ask") -> None:
        model = _open(name, device, dtype, hub)
        self.folder, self.network, self.device, self._dtype = model.folder, model.network, device, dtype
        with _loading(model.folder, "tokenizer"):
            if not _files(model.folder, VOCABULARY):  # the library would create an empty one
                raise ValueError(f"found none of {', '.join(VOCABULARY)}")
            tokenizer = _library().AutoTokenizer.from_pretrained(model.folder, **LOCAL)
        config = model.network.config
        limit = min(int(config.get_text_config().max_position_embeddings), tokenizer.model_max_length)
        self.batch_size = 64 if device == "cpu" else 512
        with _loading(model.folder, "text network"):
            words = LibraryWords(tokenizer)
            probe = words.padded(["a"], limit)
            self.inputs = tuple(probe)
            dimension, states = self._probe(probe)
            self.token_shape = (min(MAX_WORDS, limit), states) if states else None
        # SigLIP was trained on texts padded to the limit; the other models ignore the padding.
        step = limit if config.model_type.startswith("siglip") else 16
        self.tokenizer = tokenizer
        self.reader = TextReader(words, limit, functools.partial(forward, self), dimension, step)
        vocabulary = hash_files(*_files(model.folder, TOKENIZER))
        self.recipe = EncoderRecipe(
            name=model.name,
            weights=model.weights,
            dimension=dimension,
            preprocessing=f"tokenizer {vocabulary}, at most {limit} tokens, unit length",
            dtype=dtype,
            text_limit=limit,
            source=model.source,
            versions=package_versions("torch", "transformers", "tokenizers"),
        )

    def encode(self, texts: Sequence[str]) -> Features:
        """Texts of any length and script -> (n, dimension) of unit length."""
        return self.reader.encode(texts, self.batch_size).astype(self._dtype)

    def encode_tokens(self, texts: Sequence[str]) -> tuple[Features, Tokens]:
        """As `encode`, and the last states of at most 32 tokens, those of start and end included."""
        assert self.token_shape is not None
        vectors, tokens = self.reader.encode_tokens(texts, self.batch_size, self.token_shape)
        return vectors.astype(self._dtype), tokens

    def compute(self, *inputs: Any) -> tuple[Any, Any]:
        """Tensors (n, tokens), named by `inputs` -> vectors (n, dimension) of unit length, states (n, tokens, d)."""
        import torch

        output = self.network.get_text_features(**dict(zip(self.inputs, inputs, strict=True)))
        vectors = torch.nn.functional.normalize(output.pooler_output.float(), dim=1)
        return vectors, getattr(output, "last_hidden_state", None)

    def _probe(self, inputs: Mapping[str, NDArray[np.int64]]) -> tuple[int, int]:
        """Dimensions of the vectors and of the states, 0 without states."""
        import torch

        with torch.inference_mode():
            vectors, states = self.compute(*(torch.from_numpy(array).to(self.device) for array in inputs.values()))
        return int(vectors.shape[1]), 0 if states is None else int(states.shape[2])

    def truncated(self, texts: Sequence[str]) -> int:
        """Number of texts with more tokens than the model reads."""
        return self.reader.truncated(texts)


@dataclass(frozen=True)
class _Model:
    name: str
    source: str
    folder: Path
    weights: str
    network: Any


def _open(name: str, device: str, dtype: str, hub: Hub) -> _Model:
    """The network of a model folder, or of a name on the hub.

    Raises:
        ConfigError: no such model, or one that cannot be loaded.
    """
    is_folder = Path(name).is_dir() and (hub == "ask" or Path(name).is_absolute())
    folder = Path(name).resolve() if is_folder else None
    source = name if folder is None else str(folder)
    folder = folder or _from_hub(name, hub)
    if not _is_complete(folder):
        pickled = ", ".join(path.name for path in _files(folder, [PICKLED]))
        why = f"has pickled weights only, {pickled}, which could run code" if pickled else "is not a complete model"
        raise ConfigError(f"{why}.", file=folder, hint=COMPLETE)
    weights = hash_files(*_weight_files(folder))
    with _loading(folder, "network"):
        network = _network(folder, weights, device, dtype)
    for method in ("get_image_features", "get_text_features"):
        if not hasattr(network, method):
            raise ConfigError(f"a {type(network).__name__} has no {method}; a CLIP-like model is needed.", file=folder)
    return _Model(Path(source).name, source, folder, weights, network)


@functools.lru_cache(maxsize=1)
def _network(folder: Path, weights: str, device: str, dtype: str) -> Any:
    """One network for images and texts; `weights` is an argument so that changed files are loaded again."""
    import torch

    network, report = _library().AutoModel.from_pretrained(
        folder, dtype=getattr(torch, dtype), output_loading_info=True, use_safetensors=True, **LOCAL
    )
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ValueError(f"the weights lack {len(missing)} tensors, such as {missing[0]}")
    return own_weights(network.eval().to(device))


def _with_missing_norm(network: Any, forward: Callable[[], Any]) -> tuple[Any, Any]:
    """Run the image network and find its last normalisation: CLIP applies it to the class token alone, SigLIP to all.

    Args:
        network: of images and texts. forward: runs it on an image.

    Returns:
        Its output, and the module that is still to be applied to the states of the patches.
    """
    import torch

    norm = getattr(getattr(network, "vision_model", None), "post_layernorm", torch.nn.Identity())
    dimensions: list[int] = []
    handle = norm.register_forward_hook(lambda module, inputs, output: dimensions.append(inputs[0].ndim))
    try:
        output = forward()
    finally:
        handle.remove()
    return output, torch.nn.Identity() if 3 in dimensions else norm


def _from_hub(name: str, hub: Hub) -> Path:
    """Folder of a model of the hub: the downloaded copy, or a new download.

    Raises:
        ConfigError: the name is a path, the hub may not be asked, or it cannot provide the model.
    """
    if not HUB_NAME.fullmatch(name):
        raise ConfigError("no such folder.", file=name)
    _library()
    import huggingface_hub as library

    with contextlib.suppress(Exception):  # not downloaded yet, or only in part
        folder = Path(library.snapshot_download(name, local_files_only=True))
        if _is_complete(folder):
            return folder
    if hub == "never":
        raise ConfigError(
            f"{name!r} is not on this disk, and the hub is not asked for a name that comes from a file.",
            field="encoder",
            hint="Allow it by `download`.",
        )
    token = None if hub == "ask" else False
    try:
        return Path(
            library.snapshot_download(name, allow_patterns=[WEIGHTS, "*.json", "*.txt", "*.model"], token=token)
        )
    except Exception as error:  # the library passes errors of its connections through
        raise ConfigError(
            f"{name!r} is neither a folder nor downloaded, and the hub did not provide it ({first_line(error):.200}).",
            field="encoder",
            hint=f"Without a network, give a model folder. {COMPLETE}",
        ) from None


def _is_complete(folder: Path) -> bool:
    return bool(_weight_files(folder)) and (folder / "config.json").is_file()


def _weight_files(folder: Path) -> list[Path]:
    return _files(folder, [WEIGHTS])


def _files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in folder.glob(pattern)})


@contextlib.contextmanager
def _loading(folder: Path, part: str) -> Iterator[None]:
    """Load a part of a model without the network and without output.

    Raises:
        ConfigError: it cannot be loaded. MissingExtraError: a library is not installed.
    """
    try:
        with offline(), quiet():
            yield
    except ConfigError as error:
        raise error.within(folder) from None
    except MissingExtraError:
        raise
    except Exception as error:  # for a damaged or foreign folder the library raises anything
        raise ConfigError(
            f"cannot be loaded ({first_line(error):.200}).", file=folder, field=part, hint=COMPLETE
        ) from None


def _library() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("transformers", extra="clip", need="A CLIP-like encoder") from None
    return transformers
