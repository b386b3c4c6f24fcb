"""Mixing of pairs: a network that learns from pairs that are partly others does not learn each by heart."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from multibit.hashing.layers import scale_rows
from multibit.hashing.learner import Batch

SMALLEST = 1e-6  # score with itself of a mixed pair: parts without labels, or with opposite ones, have none


class Mix(NamedTuple):
    """A partner of each pair of a batch, and its share.

    Image and text of a pair have the same partner and share, so that they remain a pair.

    Attributes:
        partners: (b,) int64, rows of the batch in another order. shares: (b,) float32 in [0, 1].

    Example:
        >>> mix = Mix(torch.tensor([1, 0]), torch.tensor([0.25, 0.0]))
        >>> mix.means(torch.eye(2))
        tensor([[0.6250, 0.2500],
                [0.2500, 1.0000]])
        >>> mix.scores(torch.eye(2))
        tensor([[1.0000, 0.3162],
                [0.3162, 1.0000]])
    """

    partners: Tensor
    shares: Tensor

    @classmethod
    def draw(cls, items: int, strength: float, largest: float, device: torch.device) -> Self:
        """Partners at random, and shares from Beta(strength, strength): the smaller it is, the nearer to 0 or 1.

        Args:
            items: of the batch. strength: > 0. largest: in [0, 1], times which the shares are taken.
        """
        shares = torch.distributions.Beta(strength, strength).sample(torch.Size([items])) * largest
        return cls(torch.randperm(items).to(device), shares.to(device))

    def batch(self, batch: Batch) -> Batch:
        """The batch with the features of mixed pairs, of which, as in the network, only the direction counts."""
        return batch._replace(image=self._rows(scale_rows(batch.image)), text=self._rows(scale_rows(batch.text)))

    def means(self, values: Tensor) -> Tensor:
        """Values (..., b, b) of any two pairs of the batch -> means of those of the parts of two mixed pairs."""
        return self._rows(self._rows(values).mT).mT

    def scores(self, scores: Tensor) -> Tensor:
        """Scores (..., b, b) among the pairs of the batch -> those among the mixed pairs.

        They are means, scaled so that a mixed pair has with itself what its parts have with themselves: where scores
        are products of unit rows, those of mixed rows, at unit length again.
        """
        means = self.means(scores)
        own, of_parts = (each.diagonal(dim1=-2, dim2=-1) for each in (means, scores))
        of_parts = torch.lerp(of_parts, of_parts[..., self.partners], self.shares)
        scale = (of_parts / own.clamp_min(SMALLEST)).clamp_min(SMALLEST).sqrt()  # (..., b), with a finite gradient
        return means * scale[..., :, None] * scale[..., None, :]

    def _rows(self, rows: Tensor) -> Tensor:
        """(..., b, d) -> (..., b, d), rows mixed."""
        return torch.lerp(rows, rows[..., self.partners, :], self.shares[:, None])
