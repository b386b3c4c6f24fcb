"""Hash networks in ONNX: the codes are those of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from multibit.errors import ConfigError
from multibit.features.sessions import Network
from multibit.hashing.code_model import CodeModel
from multibit.hashing.heads import can_export, export_head
from multibit.hashing.lengths import PerLength
from multibit.hashing.linear_codes import LinearCodes
from multibit.hashing.linear_hash import LinearHash
from multibit.hashing.methods.dech import UnitHash
from multibit.hashing.methods.dpbe import SampledHash
from multibit.hashing.methods.dpsih import PolysemicCodes
from multibit.hashing.methods.vh_abl import OrderedHash
from multibit.hashing.model import HashModel

pytest.importorskip("onnx", reason="onnx is not installed: pip install multibit[train]")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install multibit[onnx]")
SIZES = {"image": 20, "text": 12}


def randomised(model: CodeModel) -> CodeModel:
    """Random weights and buffers, so that no layer is close to the identity."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict().items():
        if name == "order":
            tensor.copy_(torch.randperm(len(tensor), generator=generator))
        elif tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * (0.5 if "running_var" in name else 1) + 0.2)
            if "running_var" not in name:
                tensor.sub_(0.7)
    return model.eval()


MODELS = {
    "multibit": lambda: HashModel(20, 12, (5, 2, 1), hidden=16, dimension=8, dropout=0.1, input_dropout=0.1),
    "linear hash": lambda: LinearHash(20, 12, bits=8),
    "linear codes": lambda: LinearCodes(20, 12, (4, 8), nested=False),
    "ordered": lambda: OrderedHash(20, 12, bits=8, image_hidden=16, text_hidden=16, dimension=8),
    "unit": lambda: UnitHash(20, 12, bits=8, hidden=16),
    "per length": lambda: PerLength.join([LinearHash(20, 12, bits=bits) for bits in (4, 8)]),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("modality", ["image", "text"])
def test_an_exported_network_gives_the_codes_of_torch(name, modality, tmp_path):
    model = randomised(MODELS[name]())
    export_head(model, modality, tmp_path / "head")
    rows = np.random.default_rng(1).normal(size=(50, SIZES[modality])).astype(np.float32)
    rows[3] = 0
    rows[4] *= 1e30
    rows[5] *= 1e-30
    (found,) = Network(tmp_path / "head", "")({"features": rows}, ["codes"])
    expected = model.encode(rows, modality)
    assert found.shape == expected.shape == (50, model.layout.stored)
    assert np.abs(expected).max() > 0.1
    assert found == pytest.approx(expected, abs=2e-6)
    alone = Network(tmp_path / "head", "")({"features": rows[:1]}, ["codes"])[0]
    assert alone == pytest.approx(found[:1], abs=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        SampledHash(20, 12, bits=8),
        PolysemicCodes(20, 12, bits=8),
        PolysemicCodes(20, 12, bits=8, tokens={"image": (4, 6), "text": (3, 5)}, views=2),
        PerLength.join([SampledHash(20, 12, bits=bits) for bits in (4, 8)]),
    ],
    ids=["samples", "pooled", "tokens", "per length"],
)
def test_a_network_that_is_more_than_layers_is_refused(model, tmp_path):
    assert not can_export(model)
    with pytest.raises(ConfigError) as caught:
        export_head(model, "image", tmp_path / "head")
    assert model.network in caught.value.problem
    assert not (tmp_path / "head").exists()


def test_every_layer_of_a_stack_can_be_written():
    from multibit.hashing.heads import _WRITERS

    for make in MODELS.values():
        for stack in make().stacks("image"):
            assert isinstance(stack[0], nn.Linear)
            assert {type(layer) for layer in stack} <= set(_WRITERS)
