"""Export of one modality of a run as a sentence-transformers model, made of that library's own modules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from multibit.codes.items import MODALITIES, Modality
from multibit.errors import ConfigError, MissingExtraError, require_known
from multibit.features.base import offline, quiet
from multibit.features.joint import JointImages, JointTexts
from multibit.features.load import image_encoder_of, text_encoder_of
from multibit.features.packaged import AllMiniLM
from multibit.features.recipe import EncoderRecipe
from multibit.hashing.layers import Columns, UnitRows
from multibit.paths import replacing, require_new
from multibit.runs import Run

OLD_NAMES = "sentence_transformers.models"
"""Where modules were before version 6, which reads these names too."""


def export_sentences(run: Run, folder: Path | str, modality: Modality = "text") -> None:
    """Write one modality of a run as a model that `SentenceTransformer(folder)` opens without code from elsewhere.

    `encode(inputs, precision="ubinary", truncate_dim=32)` then gives the packed 32-bit code of each text or image. The
    modules are the encoder, `Normalize`, and a `Dense` for each layer of the hash network. Texts are those of the
    packaged text encoder or of a CLIP-like model; images those of a CLIP-like model only. That library scales images
    in its own way, so a few bits of an image's code may differ.

    Args:
        run: with one nested code. folder: must not exist. modality: "text" or "image".

    Raises:
        DataError: `folder` exists, or the features are ready-made. ConfigError: codes that are not nested, a network
            that is more than a stack of layers, an encoder that the library does not have, or float16 features.
            MissingExtraError: a library is not installed. MismatchError: the installed encoder differs.
    """
    require_known("modality", modality, MODALITIES)
    model_class, library = _library()
    target = Path(folder)
    require_new(target)
    layers = _layers(_stack_of(run, modality), run.model.dimensions[modality])
    recipe: EncoderRecipe = getattr(run.recipe, modality)
    if recipe.dtype != "float32":
        raise ConfigError(f"the features are {recipe.dtype}; only float32 is exported.", option="run")
    prefix = _prefix(recipe.prompt)
    prompts = {"prompts": {"query": prefix, "document": prefix}, "default_prompt_name": "query"} if prefix else {}
    with replacing(target) as temporary, offline(), quiet():
        encoder = _encoder_modules(library, run, modality, recipe)
        modules = [*encoder, library.Normalize(), *_head(library, layers)]
        model = model_class(modules=modules, similarity_fn_name="dot", device="cpu", **prompts)
        model.save(str(temporary), create_model_card=False)
        _write_old_names(temporary / "modules.json")
        (temporary / "README.md").write_text(_card(run, modality), encoding="utf-8")


# The hash network


@dataclass(frozen=True)
class _Layer:
    """A linear layer and what follows it.

    Attributes:
        weight: (out, in). bias: (out,). activation: element-wise. unit: whether rows get unit length afterwards.
    """

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    activation: nn.Module
    unit: bool = False


def _stack_of(run: Run, modality: Modality) -> list[nn.Module]:
    stacks = run.model.stacks(modality)
    if not run.model.layout.nested or run.model.layout.views > 1:
        problem = "the codes are not nested; every prefix of an embedding must be a code."
        raise ConfigError(problem, option="run", hint="Train a method with one nested code.")
    if stacks is None or len(stacks) != 1:
        problem = f"the network {run.model.network!r} is more than a stack of layers."
        raise ConfigError(problem, option="run", hint="Search with this run through multibit.")
    return stacks[0]


def _layers(stack: Sequence[nn.Module], size: int) -> list[_Layer]:
    """The layers of a network whose input has unit length; the first takes the factor sqrt(size) of `scale_rows`."""
    found: list[_Layer] = []
    for module in stack:
        if isinstance(module, nn.Linear):
            factor = 1.0 if found else float(size**0.5)
            found.append(_Layer(_array(module.weight) * factor, _array(module.bias), nn.Identity()))
        elif isinstance(module, nn.ReLU | nn.Tanh):
            found[-1] = replace(found[-1], activation=module)
        elif isinstance(module, nn.BatchNorm1d):
            _append_batch_norm(found, module)
        elif isinstance(module, UnitRows):
            found[-1] = replace(found[-1], unit=True)
        elif isinstance(module, Columns):
            order = module.order.numpy()
            found[-1] = replace(found[-1], weight=found[-1].weight[order], bias=found[-1].bias[order])
        elif not isinstance(module, nn.Dropout):
            raise ConfigError(f"the layer {type(module).__name__} has no counterpart.", option="run")
    return found


def _append_batch_norm(found: list[_Layer], module: nn.BatchNorm1d) -> None:
    assert module.running_mean is not None and module.running_var is not None
    gain = _array(module.weight) / np.sqrt(_array(module.running_var) + module.eps)
    shift = _array(module.bias) - _array(module.running_mean) * gain
    found.append(_Layer(np.diag(gain), shift, nn.Identity()))


def _head(library: Any, layers: Sequence[_Layer]) -> list[nn.Module]:
    made: list[nn.Module] = []
    for layer in layers:
        outputs, inputs = layer.weight.shape
        weight, bias = (torch.from_numpy(each.astype(np.float32)) for each in (layer.weight, layer.bias))
        made.append(
            library.Dense(inputs, outputs, activation_function=layer.activation, init_weight=weight, init_bias=bias)
        )
        if layer.unit:
            made.append(library.Normalize())
    return made


def _array(tensor: Any) -> NDArray[np.float64]:
    array: NDArray[np.float64] = tensor.detach().double().numpy()
    return array


# The encoder


def _encoder_modules(library: Any, run: Run, modality: Modality, recipe: EncoderRecipe) -> list[nn.Module]:
    """The modules from an input to the features, up to their length.

    Raises:
        ConfigError: the library has no such encoder.
    """
    if recipe.name == "all-minilm-l6-v2" and not recipe.source:
        encoder = AllMiniLM()
        _require_same(run, modality, encoder.recipe)
        transformer = library.Transformer(str(encoder.folder), max_seq_length=recipe.text_limit)
        return [transformer, library.Pooling(recipe.dimension, pooling_mode="mean")]
    load = image_encoder_of if modality == "image" else text_encoder_of
    joint = load(replace(run.encoder_recipe(modality), prompt="{}"), folder=run.folder)
    if not isinstance(joint, JointImages | JointTexts):
        raise ConfigError(
            f"the {modality} encoder {recipe.name!r} is not one of sentence-transformers, which would need code from "
            "elsewhere.",
            option="modality",
            hint="Export the texts, or train on features of a CLIP-like model.",
        )
    _require_same(run, modality, joint.recipe)
    method = {"method": f"get_{modality}_features", "method_output_name": "pooler_output"}
    padding = {"text": {"padding": "max_length", "max_length": recipe.text_limit}}
    fixed = isinstance(joint, JointTexts) and joint.reader.step == joint.reader.limit  # trained on padded texts
    options = {"processing_kwargs": padding} if fixed else {}
    transformer = library.Transformer(
        str(joint.folder), modality_config={modality: method}, module_output_name="sentence_embedding",
        processor_kwargs={"model_max_length": recipe.text_limit} if modality == "text" else None, **options,
    )  # fmt: skip
    return [transformer]


def _require_same(run: Run, modality: Modality, found: EncoderRecipe) -> None:
    """Refuse an encoder that is not that of the training.

    Raises:
        MismatchError: names the difference.
    """
    run.recipe.require_encoder(modality, replace(found, prompt=getattr(run.recipe, modality).prompt))


def _prefix(prompt: str) -> str:
    """What the library writes in front of each text.

    Raises:
        ConfigError: the prompt goes on after the text.
    """
    if not prompt.endswith("{}") or prompt.count("{}") != 1:
        raise ConfigError(f"the prompt {prompt!r} goes on after the text, which the library cannot do.", option="run")
    return prompt.removesuffix("{}")


# Files


def _write_old_names(path: Path) -> None:
    """Name the modules as before version 6, so that more versions open the folder."""
    modules = json.loads(path.read_text(encoding="utf-8"))
    for each in modules:
        each["type"] = f"{OLD_NAMES}.{each['type'].rpartition('.')[2]}"
    path.write_text(json.dumps(modules, indent=2), encoding="utf-8")


def _card(run: Run, modality: Modality) -> str:
    longest, shortest = run.model.bits, min(run.lengths)
    inputs = 'texts, such as ["a red flower"]' if modality == "text" else "images of Pillow"
    return f"""---
library_name: sentence-transformers
tags: [hashing, binary-codes, multibit]
---

# {run.name}, {modality} side

Binary codes for image-text search: the signs of the embedding are a code of {longest} bits, and every prefix of it is a
code too. Made by multibit from model {run.record.model}; codes can be compared with all codes of that model.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("MODEL")
codes = model.encode(inputs, precision="ubinary", truncate_dim={shortest})  # inputs: {inputs}
```
"""


def _library() -> tuple[Any, Any]:
    """The class of models, and the modules."""
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import modules
    except ImportError:
        raise MissingExtraError("sentence_transformers", extra="sentence-transformers", need="This export") from None
    return SentenceTransformer, modules
