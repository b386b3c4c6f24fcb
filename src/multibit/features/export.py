"""Export of encoders: a network in torch -> the folder of a portable encoder."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from multibit.codes.items import Modality
from multibit.errors import CacheNote, ConfigError, MissingExtraError
from multibit.features.base import Words, quiet
from multibit.features.packaged import IMAGE_ENCODERS, TEXT_ENCODERS
from multibit.features.portable import (
    ABOUT,
    KIND,
    STEP,
    TOKENIZER,
    VERSION,
    About,
    PortableWords,
    cached_folder,
    is_cached,
)
from multibit.features.portable_words import portable_words
from multibit.features.sessions import NETWORK, checksum_of
from multibit.files import write_json
from multibit.paths import replacing
from multibit.progress import notice

OPSET = 20
PROBES = (
    "a red flower", "", " ", "A Red, Green & Blue; Flower!  (two)", "naïve café — ½", "日本語 👁 x",
    "line\nbreak\tand tab", "word " * 600, "x" * 3000, "snake_case don't e-mail #1 $2 50%",
)  # fmt: skip
"""Texts on which a portable tokenizer must agree with the encoder's own."""


def export_encoder(encoder: Any, folder: Path) -> None:
    """Write an encoder in torch as the folder of a portable encoder.

    Args:
        encoder: a packaged one, or one side of a CLIP-like model, in float32 on the CPU. folder: must not exist.

    Raises:
        ConfigError: an encoder that is a function or has a prompt, that is not in float32, or whose tokenizer runs in
            Python only. MissingExtraError: a library is not installed.
    """
    modality: Modality = "image" if hasattr(encoder, "prepare") else "text"
    if not hasattr(encoder, "compute") or encoder.recipe.dtype != "float32" or encoder.device != "cpu":
        raise ConfigError(
            f"the {modality} encoder {encoder.recipe.name!r} in {encoder.recipe.dtype} cannot be made portable.",
            option="encoder",
            hint="Packaged encoders and CLIP-like models in float32 on a CPU can.",
        )
    with replacing(folder) as temporary:
        temporary.mkdir()
        about = (_images if modality == "image" else _texts)(encoder, temporary)
        about.checksum = checksum_of(temporary)
        write_json(temporary / ABOUT, msgspec.to_builtins(about), kind=KIND, version=VERSION)


def cached_encoder(name: str, modality: Modality) -> Path:
    """Folder of a packaged encoder in the cache of the user, where it is written when first needed.

    Where the cache cannot be written, it is a folder of this process, which a warning says.

    Raises:
        MissingExtraError: it is not there yet, and a library that the export needs is not installed.
    """
    encoders: Any = IMAGE_ENCODERS if modality == "image" else TEXT_ENCODERS
    folder = cached_folder(name, encoders[name].weights())
    if is_cached(folder):
        return folder
    with notice(f"Preparing the {modality} encoder for ONNX Runtime: once, some seconds"):
        try:
            export_encoder(encoders[name]("cpu"), folder)
        except OSError as error:
            if not is_cached(folder):  # else another process was faster
                return _encoder_of_process(name, modality, f"{folder} ({error.strerror or error})")
    return folder


@functools.cache
def _encoder_of_process(name: str, modality: Modality, unwritten: str) -> Path:
    """Folder of a packaged encoder, which is removed when the process ends."""
    encoders: Any = IMAGE_ENCODERS if modality == "image" else TEXT_ENCODERS
    parent = tempfile.TemporaryDirectory(prefix="multibit-")
    atexit.register(parent.cleanup)
    export_encoder(encoders[name]("cpu"), Path(parent.name) / name)
    problem = (
        f"cannot write the {modality} encoder to {unwritten}, so every process prepares it anew, some seconds long"
    )
    warnings.warn(f"{problem}. Set MULTIBIT_CACHE to a folder that can be written.", CacheNote, stacklevel=3)
    return Path(parent.name) / name


def _images(encoder: Any, folder: Path) -> About:
    pixels = np.stack([encoder.prepare(Image.new("RGB", (8, 8)))] * 2)
    _write_network(encoder, {"pixels": pixels}, ({0: "n"},), folder)
    return About("image", asdict(encoder.recipe), "", encoder.token_shape, preparation=encoder.preparation.to_dict())


def _texts(encoder: Any, folder: Path) -> About:
    reader = encoder.reader
    fixed = reader.step == reader.limit  # trained on texts padded to the limit
    about = About(
        "text", asdict(encoder.recipe), "", encoder.token_shape,
        limit=reader.limit, step=reader.limit if fixed else STEP, inputs=list(encoder.inputs),
        pad=int(reader.words.tokenizer.pad_token_id or 0),
    )  # fmt: skip
    portable_words(reader.words.tokenizer).save(str(folder / TOKENIZER))
    _require_same_words(reader.words, PortableWords(folder / TOKENIZER, about.limit, about.pad, about.inputs), about)
    inputs = reader.words.padded(["a", "a"], about.step if fixed else 2 * STEP)
    sizes: Any = {0: "n"} if fixed else {0: "n", 1: "tokens"}
    _write_network(encoder, {name: inputs[name] for name in encoder.inputs}, (sizes,) * len(encoder.inputs), folder)
    return about


def _require_same_words(words: Words, portable: Words, about: About) -> None:
    """Refuse a tokenizer that differs from the encoder's own on a few texts.

    Raises:
        ConfigError: names the text.
    """
    for text in PROBES:
        one, other = (each.padded([text], about.limit) for each in (words, portable))
        if any(not np.array_equal(one[name], other[name]) for name in about.inputs):
            raise ConfigError(
                f"the tokenizer of {about.recipe['name']!r} cannot be made portable: it differs for {text[:40]!r}.",
                option="encoder",
            )


def _write_network(encoder: Any, inputs: dict[str, Any], sizes: Sequence[Any], folder: Path) -> None:
    """Write the network of an encoder, traced on some inputs.

    Args:
        encoder: with `compute`. inputs: name -> example. sizes: of each input, axis -> name of a size that may vary.
    """
    import torch

    for library in ("onnx", "onnxscript"):
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(library, extra="offline", need="The export of an encoder")

    class Computing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = encoder.network

        def forward(self, *arrays: Any) -> Any:
            found = encoder.compute(*arrays)
            return found if encoder.token_shape else found[:1]

    names = ["features", "tokens"] if encoder.token_shape else ["features"]
    examples = tuple(torch.from_numpy(array) for array in inputs.values())
    with _silent():
        program = torch.onnx.export(
            Computing().eval(), examples, dynamo=True, opset_version=OPSET, verbose=False,
            input_names=list(inputs), output_names=names, dynamic_shapes=(tuple(sizes),),
        )  # fmt: skip
    assert program is not None
    program.save(folder / NETWORK, external_data=True)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard what the exporter prints and logs about libraries that it would use."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
