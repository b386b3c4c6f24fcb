"""A model for each code length, side by side in one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, cast

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn

from multibit.codes.items import Modality
from multibit.codes.layout import Layout
from multibit.hashing.code_model import CodeModel, TokenBatch


class PartSizes(Struct):
    """One of the models in `sizes`: the name of its network, and the sizes of that."""

    network: str
    sizes: dict[str, Any]


class PerLength(CodeModel, network="per length"):
    """Separately trained models, one for each code length, that are stored and used together.

    Attributes:
        parts: the models, shortest code first.

    Example:
        >>> import numpy as np
        >>> from multibit.hashing.model import HashModel
        >>> model = PerLength.join([HashModel(6, 5, (4,), 8, 8), HashModel(6, 5, (8,), 8, 8)])
        >>> model.encode(np.zeros((2, 6)), "image").shape, model.layout.part(8), model.models
        ((2, 12), slice(4, 12, None), 2)
    """

    def __init__(self, image_dim: int, text_dim: int, parts: Annotated[list[PartSizes], Meta(min_length=1)]) -> None:
        models = [CodeModel.networks[each.network].of_sizes(each.sizes) for each in parts]
        if any((each.image_dim, each.text_dim) != (image_dim, text_dim) for each in models):
            raise ValueError("models for features of different lengths")
        self._hold(models)

    @classmethod
    def join(cls, models: Sequence[CodeModel]) -> PerLength:
        """Hold trained models, shortest code first."""
        joined = cls.__new__(cls)
        joined._hold(models)
        return joined.eval()

    def _hold(self, models: Sequence[CodeModel]) -> None:
        first = models[0]
        layout = Layout(tuple(each.bits for each in models), nested=False, views=first.layout.views)
        parts = [{"network": each.network, "sizes": each.sizes} for each in models]
        super().__init__(layout, image_dim=first.image_dim, text_dim=first.text_dim, parts=parts)
        self.parts = nn.ModuleList(models)

    @property
    def reads_tokens(self) -> bool:
        """Whether the models need token features."""
        return any(part.reads_tokens for part in self._models)

    @property
    def _models(self) -> list[CodeModel]:
        return [cast(CodeModel, part) for part in self.parts]

    def serving(self, bits: int) -> CodeModel:
        """The network of the shortest length that is long enough."""
        return next(part for part in self._models if part.bits == self.layout.serving(bits))

    @property
    def models(self) -> int:
        """Number of separately trained networks."""
        return len(self.parts)

    @property
    def flops(self) -> int:
        """Floating-point operations to code one image and one text at all lengths."""
        return sum(part.flops for part in self._models)

    def stacks(self, modality: Modality) -> list[list[nn.Module]] | None:
        """See `CodeModel.stacks`."""
        found = [part.stacks(modality) for part in self._models]
        return None if any(each is None for each in found) else [stack for each in found for stack in each or ()]

    def forward(self, features: Tensor, modality: Modality, tokens: TokenBatch | None = None) -> Tensor:
        """(n, d_m) features -> (n, stored bits) relaxed codes of all lengths, side by side."""
        return torch.cat([part(features, modality, tokens) for part in self.parts], dim=1)
