"""The hash model: a projection per modality, then one linear head per diffusion scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from multibit.codes.items import Modality
from multibit.codes.layout import Layout
from multibit.errors import ConfigError
from multibit.hashing.code_model import FIRST_NETWORK, CodeModel, TokenBatch
from multibit.hashing.layers import Dropout, scale_rows


class HashModel(CodeModel, network=FIRST_NETWORK):
    """Maps feature vectors of either modality to relaxed codes in (-1, 1): the network of MultiBit.

    The M scale heads are independent linear maps of the shared feature (`eq:scale-subblocks`); stacked they are one
    matrix, whose output is already the concatenation of the blocks, local to long range.

    Attributes:
        image_dim, text_dim: lengths of the feature vectors.
        blocks: bits of each scale, local to long range; their sum is the code length.
        hidden: width of the hidden layer of each projection. dimension: d, width of the shared feature.

    Example:
        >>> import numpy as np
        >>> model = HashModel(image_dim=20, text_dim=12, blocks=(5, 2, 1), hidden=16, dimension=8)
        >>> model.encode(np.zeros((3, 12)), "text").shape
        (3, 8)
    """

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        blocks: Sequence[int],
        hidden: int = 1280,
        dimension: int = 512,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
    ) -> None:
        blocks = tuple(int(width) for width in blocks)
        widths = {
            "image_dim": image_dim, "text_dim": text_dim, "blocks": min(blocks, default=0), "hidden": hidden,
            "dimension": dimension,
        }  # fmt: skip
        for name, size in widths.items():
            if size < 1:
                raise ConfigError(f"must be at least 1, got {size}.", option=name)
        super().__init__(
            Layout((sum(blocks),)), image_dim=image_dim, text_dim=text_dim, blocks=blocks, hidden=hidden,
            dimension=dimension, dropout=dropout, input_dropout=input_dropout,
        )  # fmt: skip
        self.blocks, self.hidden, self.dimension = blocks, hidden, dimension
        self.projections = nn.ModuleDict(
            {
                modality: Projection(size, hidden, dimension, dropout, input_dropout)
                for modality, size in self.dimensions.items()
            }
        )
        self.heads = nn.Linear(dimension, sum(self.blocks))

    @property
    def flops(self) -> int:
        """Floating-point operations to code one image and one text from their features."""
        inputs = self.image_dim + self.text_dim
        return 2 * (inputs * self.hidden + 2 * self.hidden * self.dimension + 2 * self.dimension * self.bits)

    def forward(self, features: Tensor, modality: Modality, tokens: TokenBatch | None = None) -> Tensor:
        """(n, d_m) features -> (n, B_max) relaxed code in (-1, 1)."""
        z = self.projections[modality](features)  # (n, d)
        return torch.tanh(self.heads(z))  # (n, B_max)

    def stacks(self, modality: Modality) -> list[list[nn.Module]]:
        """See `CodeModel.stacks`."""
        projection = cast(Projection, self.projections[modality])
        return [[*projection.layers, self.heads, nn.Tanh()]]

    def limit_dropout(self, modality: Modality, share: float) -> None:
        """Drop at most this fraction of the feature values and of the hidden units of one modality in training."""
        for layer in self.projections[modality].modules():
            if isinstance(layer, nn.Dropout):
                layer.p = min(layer.p, share)

    def embed(self, features: Tensor, modality: Modality) -> Tensor:
        """(n, d_m) features -> (n, d) shared feature."""
        return self.projections[modality](features)  # type: ignore[no-any-return]


class Projection(nn.Module):
    """E^m: input features -> shared feature, a two-layer MLP.

    Input rows are scaled to the length sqrt(d_m), so only their direction counts, as for CLIP features.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float, input_dropout: float = 0.0) -> None:
        super().__init__()
        self.drop = Dropout(input_dropout)
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.ReLU(),
            Dropout(dropout),
            nn.Linear(hidden, outputs),
        )

    def forward(self, features: Tensor) -> Tensor:
        """(n, inputs) -> (n, outputs)."""
        return self.layers(self.drop(scale_rows(features)))  # type: ignore[no-any-return]
