"""LinearHash: one linear layer for each modality, the hash head of most compared methods."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from multibit.codes.items import Modality
from multibit.codes.layout import Layout
from multibit.hashing.code_model import CodeModel, TokenBatch
from multibit.hashing.layers import scale_rows


class LinearHash(CodeModel, network="linear hash"):
    """Features -> linear layer -> dropout -> tanh, for each modality.

    Input rows are scaled to the length sqrt(d_m), as by `scale_rows`.

    Attributes:
        heads: modality -> linear layer.

    Example:
        >>> import numpy as np
        >>> LinearHash(image_dim=20, text_dim=12, bits=8).encode(np.zeros((3, 12)), "text").shape
        (3, 8)
    """

    def __init__(self, image_dim: int, text_dim: int, bits: int, dropout: float = 0.2) -> None:
        super().__init__(Layout((bits,)), image_dim=image_dim, text_dim=text_dim, bits=bits, dropout=dropout)
        self.heads = nn.ModuleDict({modality: nn.Linear(size, bits) for modality, size in self.dimensions.items()})
        self.drop = nn.Dropout(dropout)

    def stacks(self, modality: Modality) -> list[list[nn.Module]]:
        """See `CodeModel.stacks`."""
        return [[self.heads[modality], self.drop, nn.Tanh()]]

    def forward(self, features: Tensor, modality: Modality, tokens: TokenBatch | None = None) -> Tensor:
        """(n, d_m) features -> (n, B) relaxed code in (-1, 1)."""
        return torch.tanh(self.drop(self.heads[modality](scale_rows(features))))
