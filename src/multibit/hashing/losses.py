"""Losses and targets that several methods share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

ROUNDING = 8  # times the precision of a number of size 1: squared distances of unit vectors below this are taken as 0


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


def mean_triplet_hinge(distances: Tensor, weights: Tensor, far: Tensor, margin: float) -> Tensor:
    """Sum over all triplets of w_ap [d_ap - d_an + margin]_+, divided by the number of those above 0; 0 without any.

    The negatives of each anchor are sorted, so that sums over them are differences of cumulative sums: for b items this
    takes about b^2 steps and numbers, where the triplets are b^3.

    Args:
        distances: (b, b) of the anchors from all items. weights: (b, b) of the positives of each anchor, 0 for other
            items. far: (b, b) bool, negatives of each anchor. margin: of the distance of a negative over a positive.

    Example:
        >>> distances = torch.tensor([[0.0, 0.5, 0.6]])
        >>> weights, far = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[False, True, True]])
        >>> round(float(mean_triplet_hinge(distances, weights, far, margin=0.55)), 4)  # of 2 * 0.05 alone
        0.1
    """
    infinity = float("inf")
    ordered = distances.masked_fill(~far, infinity).sort(dim=1).values  # (b, b), items that are not far last
    sums = functional.pad(ordered.masked_fill(ordered == infinity, 0).cumsum(dim=1), (1, 0))  # (b, b + 1)
    reach = distances + margin  # (b, b), of each positive
    counts = torch.searchsorted(ordered.detach(), reach.detach().contiguous())  # (b, b) negatives nearer than the reach
    total = (weights * (counts * reach - sums.gather(1, counts))).sum()
    return total / (counts * (weights > 0)).sum().clamp(min=1)


def kernel_discrepancy(first: Tensor, second: Tensor) -> Tensor:
    """Mean of k(x, x') - 2 k(x, y) + k(y, y') over all pairs, with k(x, y) = exp(-|x - y| / 2): squared MMD.

    Args:
        first: (n, B) samples x, of about unit length. second: (n, B) samples y.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
        >>> float(kernel_discrepancy(x, x)), round(float(kernel_discrepancy(x[:1], x[1:])), 4)  # 2 - 2 exp(-1 / 2)
        (0.0, 0.7869)
    """
    within, across = _kernel(first, first).mean() + _kernel(second, second).mean(), _kernel(first, second).mean()
    return within - 2 * across


def _kernel(first: Tensor, second: Tensor) -> Tensor:
    """(n, m) exp(-|x - y| / 2)."""
    squares = first.square().sum(dim=1)[:, None] + second.square().sum(dim=1)  # (n, m)
    squared = squares - 2 * first @ second.T
    equal = squared < ROUNDING * torch.finfo(squared.dtype).eps
    distances = squared.masked_fill(equal, 1).sqrt().masked_fill(equal, 0)  # without the infinite slope at 0
    return torch.exp(-distances / 2)
