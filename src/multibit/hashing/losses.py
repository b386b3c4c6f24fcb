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


def triplets(labels: Tensor, *, without_self: bool) -> tuple[Tensor, Tensor, Tensor]:
    """All triplets of a batch: anchor, an item that shares a label with it, an item that shares none.

    Args:
        labels: (b, C) multi-hot. without_self: whether an anchor is not its own positive.

    Returns:
        Three (T,) int64 positions in the batch.

    Example:
        >>> [part.tolist() for part in triplets(torch.tensor([[1.0, 0], [1, 0], [0, 1]]), without_self=True)]
        [[0, 1], [1, 0], [2, 2]]
    """
    related = shared_labels(labels) > 0
    positive = related & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device) if without_self else related
    anchor, near, far = torch.nonzero(positive[:, :, None] & ~related[:, None, :], as_tuple=True)
    return anchor, near, far


def mean_hinge(values: Tensor) -> Tensor:
    """() mean of the values above 0; 0 where there are none.

    Example:
        >>> float(mean_hinge(torch.tensor([-1.0, 1.0, 3.0]))), float(mean_hinge(torch.zeros(0)))
        (2.0, 0.0)
    """
    above = values.clamp(min=0)
    return above.sum() / (values > 0).sum().clamp(min=1)
