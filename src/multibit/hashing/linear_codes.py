"""Codes that are linear in the features: the network of the closed forms, and the algebra that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from multibit.arrays import FloatArray
from multibit.codes.items import MODALITIES, Modality
from multibit.codes.layout import Layout
from multibit.features import Pairs
from multibit.hashing.code_model import CodeModel, TokenBatch
from multibit.hashing.layers import scale_rows
from multibit.hashing.learner import require_two

RANK_TOLERANCE = 1e-10  # eigenvalues up to this share of the largest one count as 0


class LinearMap(NamedTuple):
    """x -> x W + b.

    Attributes:
        weights: (d, B) float64. shift: (B,) float64.
    """

    weights: FloatArray
    shift: FloatArray

    def __call__(self, features: FloatArray) -> FloatArray:
        """(n, d) -> (n, B)."""
        return features @ self.weights + self.shift

    def then(self, matrix: FloatArray) -> LinearMap:
        """This map followed by x -> x M, of a (B, B') matrix M."""
        return LinearMap(self.weights @ matrix, self.shift @ matrix)


class LinearCodes(CodeModel, network="linear codes"):
    """Features -> linear layer -> tanh, for each modality, solved and not trained.

    Input rows are scaled to the length sqrt(d_m), as by `scale_rows`.

    Attributes:
        heads: modality -> linear layer; zeros until they are solved.

    Example:
        >>> model = LinearCodes(image_dim=20, text_dim=12, lengths=(4, 8))
        >>> model.encode(np.zeros((3, 12)), "text").shape, model.layout.part(8)
        ((3, 12), slice(4, 12, None))
    """

    def __init__(self, image_dim: int, text_dim: int, lengths: Sequence[int], nested: bool = False) -> None:
        layout = Layout(tuple(lengths), nested)
        super().__init__(layout, image_dim=image_dim, text_dim=text_dim, lengths=list(lengths), nested=nested)
        self.heads = nn.ModuleDict(
            {modality: _zeros(size, layout.stored) for modality, size in self.dimensions.items()}
        )

    @classmethod
    def of(
        cls, maps: Mapping[Modality, LinearMap], layout: Layout, features: Mapping[Modality, FloatArray]
    ) -> LinearCodes:
        """The model that codes by the signs of linear maps.

        The relaxed code is tanh(z / s), where s is the root mean square of the values z over all bits of a length and
        all training items. The tanh then gets values of about unit size: it keeps their signs and their order, and
        bits with small values stay small, which is what a search with relaxed queries ranks by.

        Args:
            maps: modality -> map to the stored bits of the layout. features: modality -> (n, d_m) scaled training rows.
        """
        model = cls(len(maps["image"].weights), len(maps["text"].weights), layout.lengths, layout.nested)
        parts = [layout.part(bits) for bits in ((layout.longest,) if layout.nested else layout.lengths)]
        with torch.no_grad():
            for modality, (weights, shift) in maps.items():
                size = np.ones(layout.stored)
                for part in parts:
                    values = features[modality] @ weights[:, part] + shift[part]  # (n, bits)
                    size[part] = np.sqrt(np.square(values, out=values).mean()) or 1.0
                head: nn.Linear = model.heads[modality]  # type: ignore[assignment]
                head.weight.copy_(torch.from_numpy((weights / size).T))
                head.bias.copy_(torch.from_numpy(shift / size))
        return model.eval()

    def stacks(self, modality: Modality) -> list[list[nn.Module]]:
        """See `CodeModel.stacks`."""
        return [[self.heads[modality], nn.Tanh()]]

    def forward(self, features: Tensor, modality: Modality, tokens: TokenBatch | None = None) -> Tensor:
        """(n, d_m) features -> (n, stored bits) relaxed codes in [-1, 1]."""
        return torch.tanh(self.heads[modality](scale_rows(features)))


def _zeros(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer of zeros; torch's own initialisation would draw from the caller's random state."""
    here = torch.empty(0).device  # not allocated inside `torch.device("meta")`
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, device=here)  # type: ignore[no-untyped-call]
    for weights in layer.parameters():
        nn.init.zeros_(weights)
    return layer


def solver_features(training: Pairs) -> dict[Modality, FloatArray]:
    """Modality -> (n, d_m) float64 features of the training items, rows scaled as by the network.

    An item with several texts has their mean, as when it is encoded.

    Raises:
        DataError: fewer than two items.
    """
    require_two(training)
    return {
        modality: scale_rows(torch.from_numpy(training.features(modality))).double().numpy() for modality in MODALITIES
    }


def signs(values: FloatArray) -> FloatArray:
    """-1.0 or +1.0, with sign(0) = +1."""
    return np.where(values >= 0, 1.0, -1.0)


def solve(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """(d, m) solution S of M S = R, of a regular (d, d) matrix M and (d, m) R."""
    return np.asarray(np.linalg.solve(matrix, right), np.float64)


def inverse_root(eigenvalues: FloatArray) -> FloatArray:
    """1 / sqrt of the eigenvalues of a Gram matrix; 0 for those that are 0 up to rounding.

    Example:
        >>> inverse_root(np.array([4.0, 1e-15, -1e-15]))
        array([0.5, 0. , 0. ])
    """
    kept = eigenvalues > RANK_TOLERANCE * eigenvalues.max(initial=0.0)
    return np.where(kept, 1 / np.sqrt(np.where(kept, eigenvalues, 1.0)), 0.0)


def polar(matrix: FloatArray) -> FloatArray:
    """U V^T of the thin singular value decomposition, over the singular values that are not 0.

    The solution of the Procrustes problem: it has the largest inner product with the matrix among all matrices with
    singular values of at most 1. It is unique, unlike U and V, and costs the Gram matrix of the smaller side.

    Args:
        matrix: (n, m).

    Example:
        >>> polar(np.array([[0.0, 3.0], [2.0, 0.0], [0.0, 0.0]])) + 0.0
        array([[0., 1.], [1., 0.], [0., 0.]])
    """
    if len(matrix) < matrix.shape[1]:
        return polar(matrix.T).T
    values, vectors = np.linalg.eigh(matrix.T @ matrix)
    factor: FloatArray = matrix @ ((vectors * inverse_root(values)) @ vectors.T)  # (n, m)
    return factor
