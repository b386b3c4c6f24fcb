"""A graph network on the codes of a batch, whose edges have vectors as long as a code: the generator of DGHDGH."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

MASKED = -1e9  # score of a sender that shares a label with the receiver
NUMBERS_AT_ONCE = 2**18  # of the hidden layer of the edges in work together, which then stay in the processor's cache
NORM_EPSILON = 1e-5


class Edges(NamedTuple):
    """Ordered pairs of n nodes, each with itself and with the nodes around it on a ring, or with all nodes.

    Every node has the same number of edges. Where an edge equals its reverse, one row stands for both.

    Attributes:
        source, target: (E,) int64 nodes; the edges of a node are in rows that follow one another.
        times: (E, 1) number of pairs that a row stands for, 1.0 or 2.0. linked: (n, n) bool, the pairs.
        row: (n, n) int64, the row of each pair; 0 where there is none. symmetric: whether edges equal their reverse.

    Example:
        >>> Edges.of(2, symmetric=True).row
        tensor([[0, 1],
                [3, 2]])
        >>> Edges.of(9, degree=4, symmetric=False).linked.sum(dim=1).unique()
        tensor([3])
    """

    source: Tensor
    target: Tensor
    times: Tensor
    linked: Tensor
    row: Tensor
    symmetric: bool

    @classmethod
    def of(cls, nodes: int, *, symmetric: bool, degree: int | None = None, like: Tensor | None = None) -> Edges:
        """The edges of some nodes.

        Args:
            nodes: n. symmetric: whether edges equal their reverse. degree: most edges of a node, all n when None.
            like: a tensor of the type and on the device of the values of the edges.
        """
        kind = torch.zeros(0) if like is None else like
        every = torch.arange(nodes, device=kind.device)
        reach = nodes // 2 if degree is None or degree >= nodes else (degree - 1) // 2
        width = min(nodes, 2 * reach + 1)  # edges of a node; with an even n the opposite node is met once
        steps = torch.arange(0 if symmetric else reach + 1 - width, reach + 1, device=kind.device)  # along the ring
        source = every.repeat_interleave(len(steps))
        target = (every[:, None] + steps).flatten() % nodes
        step = steps.repeat(nodes)  # (E,)
        row = torch.zeros(nodes, nodes, dtype=torch.int64, device=kind.device)
        linked = torch.zeros_like(row, dtype=torch.bool)
        numbers = torch.arange(len(source), device=kind.device)
        for start, end in ((target, source), (source, target))[0 if symmetric else 1 :]:
            row[start, end], linked[start, end] = numbers, True
        twice = symmetric & (step > 0) & (2 * step != nodes)  # opposite on the ring: both directions have their row
        return cls(source, target, (1.0 + twice).to(kind.dtype)[:, None], linked, row, symmetric)

    def sum_by_source(self, values: Tensor) -> Tensor:
        """(E, d) values of the edges -> (n, d) sums over the edges that leave each node."""
        sums = values.view(len(self.row), -1, values.shape[1]).sum(dim=1)
        return sums.index_add(0, self.target, values * (self.times - 1)) if self.symmetric else sums

    def mean_by_source(self, values: Tensor) -> Tensor:
        """(E, d) values of the edges -> (n, d) means over the edges that leave each node."""
        return self.sum_by_source(values) * (len(self.row) / self.times.sum())

    def mean(self, values: Tensor) -> Tensor:
        """(E, d) values of the edges -> (d,) means over all pairs."""
        return (self.times.T @ values).squeeze(0) / self.times.sum()


def correlation_parts(first: Tensor, second: Tensor, edges: Edges) -> Tensor:
    """(E, d) products of the centred unit vectors of both ends, whose sum over d is the correlation of the ends.

    Args:
        first: (n, d) of the sources. second: (n, d) of the targets.

    Example:
        >>> codes = torch.tensor([[0.9, 0.1, 0.2], [0.3, 0.8, 0.1]])
        >>> correlation_parts(codes, codes, Edges.of(2, symmetric=True)).sum(dim=1).round(decimals=3)
        tensor([ 1.0000, -0.3500,  1.0000, -0.3500])
    """
    left, right = (functional.normalize(each - each.mean(dim=1, keepdim=True), dim=1) for each in (first, second))
    return left[edges.source] * right[edges.target]


class GraphNetwork(nn.Module):
    """Alternates updates of the nodes and of the edges; classifies the nodes, and gives each edge values in (0, 1).

    Attributes:
        enter: layer on the codes. nodes, edges: the updates. node_norm, edge_norm: batch norms without an offset.
        classify: node -> logits. interpolate: edge -> logits of lambda.
    """

    def __init__(self, bits: int, classes: int, layers: int, heads: int) -> None:
        super().__init__()
        self.enter = nn.Linear(bits, bits)
        self.nodes = nn.ModuleList(NodeUpdate(bits, math.gcd(bits, heads)) for _ in range(layers))
        self.edges = nn.ModuleList(EdgeUpdate(bits) for _ in range(layers))
        self.node_norm, self.edge_norm = BatchScale(bits), BatchScale(bits)
        self.classify, self.interpolate = nn.Linear(bits, classes), nn.Linear(bits, bits)

    def forward(self, first: Tensor, second: Tensor, related: Tensor, edges: Edges) -> tuple[Tensor, Tensor, Tensor]:
        """All updates but the last of the edges, which only `interpolation` needs.

        The codes of row i of both sets belong to one item: its node begins as the code of the first set, and listens
        from the code of the second.

        Args:
            first: (n, d) codes that send. second: (n, d) codes that receive. related: (n, n) bool.
            edges: from the first to the second; symmetric if both are the same.

        Returns:
            (n, C) logits of the nodes, (n, d) nodes, (E, d) edges.
        """
        nodes, receiving = self.enter(first), self.enter(second)
        values = correlation_parts(first, second, edges)
        for number, update in enumerate(self.nodes):
            if number:
                values = self.edges[number - 1](nodes, values, edges)
            nodes = receiving = update(nodes, receiving, values, related, edges)
        gain, shift = self.node_norm(nodes.mean(dim=0), nodes.square().mean(dim=0))
        return self.classify(nodes * gain + shift), nodes, values

    def interpolation(self, nodes: Tensor, values: Tensor, edges: Edges) -> Tensor:
        """What `forward` returned of nodes and edges -> (E, d) lambda in (0, 1)."""
        values = self.edges[-1](nodes, values, edges)
        gain, shift = self.edge_norm(edges.mean(values), edges.mean(values.square()))
        weight = self.interpolate.weight  # the norm is made a part of the layer, for the edges are many
        bias = self.interpolate.bias + weight @ shift
        return torch.sigmoid(functional.linear(values, weight * gain, bias))


class NodeUpdate(nn.Module):
    """Attention over the nodes that share no label, then the sum of the edges that leave the node, then a network.

    Attributes:
        ask, key, value, out: layers of the attention. listen: layer on the edges. norm: after each part.
        network: of four times the width.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ask, self.key, self.value, self.out = (_attention_layer(width) for _ in range(4))
        self.listen = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.network = _network(width)

    def forward(self, nodes: Tensor, receiving: Tensor, values: Tensor, related: Tensor, edges: Edges) -> Tensor:
        """(n, d) nodes that send, (n, d) that receive, (E, d) edges, (n, n) bool -> (n, d) nodes."""
        nodes = self._settle(nodes + self.attend(nodes, receiving, related))
        heard = torch.cat([functional.gelu(self.listen(few)) for few in _few_rows(values)])  # (E, d)
        nodes = self._settle(nodes + edges.sum_by_source(heard))
        return self._settle(nodes + self.network(nodes))

    def attend(self, nodes: Tensor, receiving: Tensor, related: Tensor) -> Tensor:
        """(n, d) what each receiving node takes from the nodes that share no label with it; from all without any."""
        asked, key, value = (
            layer(each).unflatten(1, (self.heads, -1)).transpose(0, 1)  # (heads, n, d / heads)
            for layer, each in ((self.ask, receiving), (self.key, nodes), (self.value, nodes))
        )
        scores = asked @ key.transpose(1, 2) / key.shape[2] ** 0.5  # (heads, n receiving, n sending)
        shares = torch.softmax(scores.masked_fill(related, MASKED), dim=2)
        return self.out((shares @ value).transpose(0, 1).flatten(1))  # type: ignore[no-any-return]

    def _settle(self, nodes: Tensor) -> Tensor:
        return self.norm(functional.gelu(nodes))  # type: ignore[no-any-return]


class EdgeUpdate(nn.Module):
    """Attention of an edge over its two ends, then a network.

    Attributes:
        tell: layer on the nodes. ask, key, value: layers of the attention. norm: after each part.
        network: of four times the width.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tell = nn.Linear(width, width)
        self.ask, self.key, self.value = (_attention_layer(width) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.network = _network(width)

    def forward(self, nodes: Tensor, values: Tensor, edges: Edges) -> Tensor:
        """(n, d) nodes, (E, d) edges -> (E, d) edges.

        The edge asks by a linear layer, so the product with the key of a node is one with the edge itself: the layer
        is applied to the nodes instead of to the many more edges. A softmax over two ends is a sigmoid.
        """
        told = functional.gelu(self.tell(nodes))  # (n, d)
        key, value = self.key(told) / nodes.shape[1] ** 0.5, self.value(told)  # (n, d)
        direct, offset = key @ self.ask.weight, key @ self.ask.bias  # (n, d), (n,)
        updated = []
        for few, source, target in zip(
            _few_rows(values), _few_rows(edges.source, values), _few_rows(edges.target, values), strict=True
        ):
            score = (few * (direct[source] - direct[target])).sum(dim=1) + offset[source] - offset[target]
            share = torch.sigmoid(score)[:, None]  # (e, 1), of the source
            heard = value[target] + share * (value[source] - value[target])  # (e, d)
            settled = self._settle(few + heard)
            updated.append(self._settle(settled + self.network(settled)))
        return torch.cat(updated)

    def _settle(self, values: Tensor) -> Tensor:
        return self.norm(functional.gelu(values))  # type: ignore[no-any-return]


class BatchScale(nn.Module):
    """Batch norm of the present batch with a trained scale and no offset; the network is used in training only.

    Attributes:
        scale: (d,).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
        """(d,) means of the values and of their squares -> (d,) gain and shift that normalise the values.

        Values after a layer norm are of unit size, so the difference of squares is exact to far less than the epsilon.
        """
        gain = self.scale * torch.rsqrt((square - mean.square()).clamp(min=0) + NORM_EPSILON)
        return gain, -mean * gain


def _attention_layer(width: int) -> nn.Linear:
    """A linear layer with Glorot's initial weights."""
    layer = nn.Linear(width, width)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _network(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.LayerNorm(4 * width), nn.Linear(4 * width, width))


def _few_rows(values: Tensor, like: Tensor | None = None) -> tuple[Tensor, ...]:
    """Blocks of rows that are worked on together; those of `like` when given."""
    width = (values if like is None else like).shape[1]
    return torch.split(values, max(1, NUMBERS_AT_ONCE // (4 * width)))
