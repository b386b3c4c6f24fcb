"""Export of hash networks: the stacks of a `CodeModel` -> ONNX, written node by node from the weights.

A layer is one of those that `_WRITERS` lists. The input is (n, d) features; its rows are scaled as by `scale_rows`, up
to the factor sqrt(d), which is part of the first weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from multibit.codes.items import Modality
from multibit.errors import ConfigError, MissingExtraError
from multibit.features.sessions import NETWORK, SMALL, WEIGHTS
from multibit.hashing.code_model import CodeModel
from multibit.hashing.layers import Columns, Dropout, UnitRows

OPSET, IR = 20, 10
TINY = 1e-12  # as in torch.nn.functional.normalize


def can_export(model: CodeModel) -> bool:
    """Whether a network can be written."""
    return not model.reads_tokens and model.stacks("image") is not None


def export_head(model: CodeModel, modality: Modality, folder: Path) -> None:
    """Write the network of one modality: features (n, d_m) -> relaxed codes of all lengths (n, stored bits).

    Args:
        model: trained. modality: of the features. folder: gets `network.onnx` and its weights.

    Raises:
        ConfigError: the network reads tokens, or is more than stacks of layers. MissingExtraError: onnx is not
            installed.
    """
    stacks = model.stacks(modality)
    if stacks is None or not can_export(model):
        raise ConfigError(
            f"the network {model.network!r} cannot be made portable: it is more than a stack of layers.",
            option="run",
            hint="Search with this run through torch.",
        )
    try:
        import onnx
    except ImportError:
        raise MissingExtraError("onnx", extra="train", need="The export of a model") from None
    size = model.dimensions[modality]
    graph = _Graph()
    scaled = _unit(graph, _of_size_one(graph, "features"))
    outputs = [_stack(graph, stack, scaled, size) for stack in stacks]
    graph.add("Concat", *outputs, output="codes", axis=1)
    shapes: dict[str, list[Any]] = {"features": ["n", size], "codes": ["n", model.layout.stored]}
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    whole = onnx.helper.make_graph(graph.nodes, f"{model.network} {modality}", ends[:1], ends[1:], graph.constants)
    network = onnx.helper.make_model(
        whole, producer_name="multibit", ir_version=IR, opset_imports=[onnx.helper.make_opsetid("", OPSET)]
    )
    onnx.checker.check_model(network)
    folder.mkdir(parents=True)
    onnx.save_model(network, folder / NETWORK, save_as_external_data=True, location=WEIGHTS, size_threshold=SMALL)


class _Graph:
    """Nodes and constants in the order of the computation; each node has a new name for its output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, values: Any) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name


def _of_size_one(graph: _Graph, rows: str) -> str:
    """Rows divided by their largest magnitude, so that no square overflows; rows of zeros are unchanged."""
    axes = graph.constant(np.array([1]))
    peak = graph.add("ReduceMax", graph.add("Abs", rows), axes, keepdims=1)
    nonzero = graph.add("Greater", peak, graph.constant(np.float32(0)))
    return graph.add("Div", rows, graph.add("Where", nonzero, peak, graph.constant(np.float32(1))))


def _unit(graph: _Graph, rows: str) -> str:
    length = graph.add("ReduceL2", rows, graph.constant(np.array([1])), keepdims=1)
    return graph.add("Div", rows, graph.add("Max", length, graph.constant(np.float32(TINY))))


def _stack(graph: _Graph, stack: list[nn.Module], rows: str, size: int) -> str:
    """The nodes of some layers; the first is linear and takes the factor sqrt(size) of `scale_rows`."""
    first, *rest = stack
    rows = _linear(graph, rows, cast(nn.Linear, first), float(size**0.5))
    for layer in rest:
        rows = _WRITERS[type(layer)](graph, rows, layer)
    return rows


def _linear(graph: _Graph, rows: str, layer: nn.Linear, factor: float = 1.0) -> str:
    weights = (layer.weight.detach().double().numpy() * factor).astype(np.float32)
    return graph.add("Gemm", rows, graph.constant(weights), graph.constant(_array(layer.bias)), transB=1)


def _batch_norm(graph: _Graph, rows: str, layer: nn.BatchNorm1d) -> str:
    names = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
    return graph.add("BatchNormalization", rows, *(graph.constant(_array(each)) for each in names), epsilon=layer.eps)


def _array(tensor: Any) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().numpy()
    return array


_WRITERS: dict[type[nn.Module], Callable[[_Graph, str, Any], str]] = {
    nn.Linear: _linear,
    nn.ReLU: lambda graph, rows, _: graph.add("Relu", rows),
    nn.Tanh: lambda graph, rows, _: graph.add("Tanh", rows),
    nn.Dropout: lambda _, rows, __: rows,
    Dropout: lambda _, rows, __: rows,
    nn.BatchNorm1d: _batch_norm,
    UnitRows: lambda graph, rows, _: _unit(graph, rows),
    Columns: lambda graph, rows, layer: graph.add("Gather", rows, graph.constant(_array(layer.order)), axis=1),
}
