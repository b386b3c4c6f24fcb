"""Quantisation: a portable text encoder with int8 weights, which is smaller and faster, and makes other codes.

Matrices are int8 with a scale for each column; the inputs of each matrix are rounded while it computes. The hash
networks stay as they are: they are small, and their signs are the code. Image encoders stay too: their convolutions are
slower in int8 on processors, and lose much more.
"""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import msgspec

from multibit.errors import MissingExtraError
from multibit.features.portable import ABOUT, KIND, VERSION, read_about
from multibit.features.sessions import NETWORK, WEIGHTS, checksum_of, runtime
from multibit.files import write_json

SUFFIX = "-int8"
"""Of the name of a quantised encoder, and of the fingerprint of a model with one: neither fits codes of the other."""


def quantize_texts(folder: Path) -> None:
    """Quantise the text encoder in a folder, in place, and rename it in its recipe.

    Args:
        folder: of a portable text encoder in float32.

    Raises:
        MissingExtraError: onnx or ONNX Runtime is not installed.
    """
    about = read_about(folder, "text")
    runtime()
    if importlib.util.find_spec("onnx") is None:
        raise MissingExtraError("onnx", extra="train", need="Quantisation")
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    network = onnx.load(folder / NETWORK)
    for name in (NETWORK, WEIGHTS):
        (folder / name).unlink()
    del network.graph.value_info[:]  # shapes of the float32 network, which the library would trust
    logging.disable(logging.WARNING)  # about steps that are done elsewhere
    try:
        quantize_dynamic(
            network, folder / NETWORK, weight_type=QuantType.QInt8, per_channel=True, use_external_data_format=True,
            reduce_range=True,  # 7 bits: products of 8 bits overflow on processors without VNNI
        )  # fmt: skip
    finally:
        logging.disable(logging.NOTSET)
    about.checksum = checksum_of(folder)
    about.recipe = {**about.recipe, "name": f"{about.recipe['name']}{SUFFIX}", "weights": about.checksum}
    write_json(folder / ABOUT, msgspec.to_builtins(about), kind=KIND, version=VERSION)
