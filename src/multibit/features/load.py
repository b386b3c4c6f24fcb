"""Encoders by name, or by the recipe of stored features."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from multibit.codes.items import Modality
from multibit.errors import ConfigError, DataError, MultibitError, require_known
from multibit.features.base import ImageEncoder, TextEncoder, prompted
from multibit.features.joint import Hub, JointImages, JointTexts
from multibit.features.packaged import IMAGE_ENCODERS, TEXT_ENCODERS
from multibit.features.portable import ABOUT, PortableImages, PortableTexts, cached_folder, is_cached
from multibit.features.recipe import EncoderRecipe
from multibit.features.storage import read_header
from multibit.features.tokens import TokenShapes

DTYPES = ("float32", "float16")
RUNTIMES = ("torch", "onnxruntime")
"""Libraries that run an encoder; features differ by about 1e-6, so those of both may be in one run."""


def load_image_encoder(
    name: str,
    device: str = "cpu",
    *,
    dtype: str = "float32",
    batch_size: int | None = None,
    runtime: str | None = None,
) -> ImageEncoder:
    """An image encoder.

    Args:
        name: of a packaged encoder, the folder of a CLIP-like model, or its name (`owner/name`) on the hub.
        device: where it runs. dtype: float32, or float16 for CLIP-like models.
        batch_size: images per batch; the encoder's own choice when None.
        runtime: "torch", or "onnxruntime" for packaged encoders on a CPU, which is faster; the faster when None.

    Raises:
        ConfigError: an unknown name, dtype or runtime, or a model that cannot be loaded. MissingExtraError: a library
            is not installed.
    """
    encoder: ImageEncoder = _load(name, "image", device, dtype, runtime)
    if batch_size:
        encoder.batch_size = batch_size
    return encoder


def load_text_encoder(
    name: str,
    device: str = "cpu",
    *,
    dtype: str = "float32",
    prompt: str = "{}",
    batch_size: int | None = None,
    runtime: str | None = None,
) -> TextEncoder:
    """A text encoder.

    Args:
        name, device, dtype, batch_size, runtime: as for `load_image_encoder`.
        prompt: what the encoder reads, with `{}` for the text.

    Raises:
        ConfigError: an unknown name, dtype or runtime, a model that cannot be loaded, or a prompt without `{}`.
            MissingExtraError: its library is not installed.
    """
    encoder: TextEncoder = _load(name, "text", device, dtype, runtime)
    if batch_size:
        encoder.batch_size = batch_size
    return prompted(encoder, prompt)


def image_encoder_of(
    recipe: EncoderRecipe,
    *,
    folder: Path | None = None,
    download: bool = False,
    runtime: str | None = None,
) -> ImageEncoder:
    """The image encoder that made stored features, loaded from the source in their recipe; it runs on the CPU.

    Args:
        recipe: of the features.
        folder: of the file that holds the recipe: a relative source is a model folder inside it.
        download: whether the hub may be asked for a model that is not on this disk; the user's token is not sent.
        runtime: as for `load_image_encoder`.

    Raises:
        DataError: the features are ready-made. ConfigError, MissingExtraError: as `load_image_encoder`.
    """
    encoder: ImageEncoder = _load(source_of(recipe, folder), "image", "cpu", recipe.dtype, runtime, _hub(download))
    return encoder


def text_encoder_of(
    recipe: EncoderRecipe,
    *,
    folder: Path | None = None,
    download: bool = False,
    runtime: str | None = None,
) -> TextEncoder:
    """The text encoder that made stored features, loaded from the source in their recipe, with their prompt.

    Args:
        recipe, folder, download, runtime: as for `image_encoder_of`.

    Raises:
        DataError: the features are ready-made. ConfigError, MissingExtraError: as `load_text_encoder`.
    """
    encoder: TextEncoder = _load(source_of(recipe, folder), "text", "cpu", recipe.dtype, runtime, _hub(download))
    return prompted(encoder, recipe.prompt)


def _hub(download: bool) -> Hub:
    return "ask without token" if download else "never"


def token_shapes(image_encoder: ImageEncoder, text_encoder: TextEncoder) -> TokenShapes:
    """Number and length of the tokens that two encoders give.

    Raises:
        ConfigError: one gives none; names the encoders that do.
    """
    shapes: TokenShapes = {}
    sides: tuple[tuple[Modality, ImageEncoder | TextEncoder], ...] = (("image", image_encoder), ("text", text_encoder))
    for modality, encoder in sides:
        shape = getattr(encoder, "token_shape", None)
        if shape is None:
            known: Mapping[str, Any] = IMAGE_ENCODERS if modality == "image" else TEXT_ENCODERS
            names = [name for name, make in known.items() if hasattr(make, "encode_tokens")]
            raise ConfigError(
                f"the {modality} encoder {encoder.recipe.name!r} gives none.",
                option="tokens",
                hint=f"Use {', '.join(names)}, a CLIP-like model, or an encoder of your own with encode_tokens.",
            )
        shapes[modality] = tuple(shape)
    return shapes


def source_of(recipe: EncoderRecipe, folder: Path | None = None) -> str:
    """What loads the encoder that made stored features: its name, hub name, or absolute model folder.

    Args:
        folder: of the file that holds the recipe: a relative source is a model folder inside it, never one elsewhere.

    Raises:
        DataError: ready-made features, or a relative folder outside.
    """
    if not recipe.weights:
        raise DataError(
            f"the features are ready-made, under the name {recipe.name!r}, so a raw text or image cannot be encoded.",
            hint="Encode it as the features were made, then use HashModel.encode and Index.search in Python.",
        )
    source = recipe.source or recipe.name
    if folder is None or source in IMAGE_ENCODERS or source in TEXT_ENCODERS or Path(source).is_absolute():
        return source
    inside = Path(os.path.realpath(folder / source))
    if inside.is_dir() and inside.is_relative_to(os.path.realpath(folder)):
        return str(inside)
    if "/" in source and ".." not in Path(source).parts:
        return source  # on the hub
    raise DataError(
        f"the encoder is the model folder {source!r}, which is not in {folder}.",
        field=recipe.name,
        hint=f"Put the model into {folder} as {Path(source).name}.",
    )


def located_recipe(recipe: EncoderRecipe, folder: Path, features: Path | None) -> EncoderRecipe:
    """The recipe of a run, with the place of a model folder that only its features know: a run keeps its name.

    Args:
        recipe: of one modality. folder: of the run. features: that it was trained on, if known.
    """
    if "/" in recipe.source or not recipe.source or (folder / recipe.source).exists() or features is None:
        return recipe
    with contextlib.suppress(MultibitError):
        stored = read_header(features).recipe
        return next((each for each in (stored.image, stored.text) if each == recipe), recipe)
    return recipe


def _load(name: str, modality: Modality, device: str, dtype: str, runtime: str | None, hub: Hub = "ask") -> Any:
    require_known("dtype", dtype, DTYPES)
    if runtime is not None:
        require_known("runtime", runtime, RUNTIMES)
    packaged: Mapping[str, Any] = IMAGE_ENCODERS if modality == "image" else TEXT_ENCODERS
    if name in packaged:
        if dtype != "float32":
            raise ConfigError(f"{name} runs in float32 only, got {dtype!r}.", option="dtype")
        if (runtime or _faster_runtime(packaged[name], name, device)) == "torch":
            return packaged[name](device)
        return _portable(name, modality, device)
    if (Path(name) / ABOUT).is_file():
        return _portable_folder(Path(name), modality, device, dtype, runtime)
    if runtime == "onnxruntime":
        raise ConfigError(f"{name} runs in torch only; packaged encoders run in ONNX Runtime.", option="runtime")
    if "/" in name or Path(name).is_dir():
        return (JointImages if modality == "image" else JointTexts)(name, device, dtype, hub)
    raise ConfigError(
        f"{name!r} is unknown; choose from {', '.join(packaged)}, or give a CLIP-like model as a folder or as its name "
        "on the hub (owner/name).",
        field=f"{modality} encoder",
    )


def _portable_folder(folder: Path, modality: Modality, device: str, dtype: str, runtime: str | None) -> Any:
    """A portable encoder by its folder, such as the quantised one of an exported model."""
    for option, wanted, found in (
        ("device", "cpu", device), ("dtype", "float32", dtype), ("runtime", "onnxruntime", runtime or "onnxruntime")
    ):  # fmt: skip
        if found != wanted:
            raise ConfigError(f"{folder} is a portable encoder, which needs {wanted}, got {found}.", option=option)
    encoder: Any = (PortableImages if modality == "image" else PortableTexts)(folder, many=True)
    encoder.recipe = replace(encoder.recipe, source=str(folder.resolve()))
    return encoder


def _portable(name: str, modality: Modality, device: str) -> Any:
    """A packaged encoder in ONNX Runtime, for many inputs."""
    if device != "cpu":
        raise ConfigError(f"runs on a CPU, not on {device}.", option="runtime", hint="Use torch.")
    from multibit.features.export import cached_encoder

    folder = cached_encoder(name, modality)
    return PortableImages(folder, many=True) if modality == "image" else PortableTexts(folder, many=True)


def _faster_runtime(encoder: Any, name: str, device: str) -> str:
    """ONNX Runtime, if the encoder can be exported, or was, and the libraries are installed."""
    if device != "cpu" or not hasattr(encoder, "compute"):
        return "torch"
    needed = ["onnxruntime", "tokenizers"]
    if not is_cached(cached_folder(name, encoder.weights())):
        needed += ["onnx", "onnxscript"]
    return "onnxruntime" if all(map(importlib.util.find_spec, needed)) else "torch"
