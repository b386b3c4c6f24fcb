"""Losses and targets that several methods share."""

from __future__ import annotations

import torch
from torch import Tensor


def shared_labels(labels: Tensor, others: Tensor | None = None) -> Tensor:
    """(n, m) 1.0 where two items share a label, of (n, C) and (m, C) multi-hot labels; of the same when None."""
    other = labels if others is None else others
    return (labels @ other.T > 0).to(labels.dtype)


def affinity(labels: Tensor) -> Tensor:
    """(n, n) tanh of half the number of shared labels: 0, .462, .762, .905 for 0, 1, 2, 3 of them."""
    return torch.tanh(labels @ labels.T / 2)


def soft_label_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """() mean over rows of -sum_c targets log softmax(logits); the targets need not sum to 1.

    Example:
        >>> round(float(soft_label_cross_entropy(torch.zeros(1, 4), torch.tensor([[1.0, 1.0, 0.0, 0.0]]))), 4)
        2.7726
    """
    return -(targets * torch.log_softmax(logits, dim=1)).sum(dim=1).mean()


def squared_deviation(relaxed: Tensor) -> Tensor:
    """() mean squared deviation of relaxed codes from their signs."""
    return (relaxed - torch.where(relaxed >= 0, 1.0, -1.0)).square().mean()
