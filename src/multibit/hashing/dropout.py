"""How much dropout and mixing the features of a data set bear."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multibit.arrays import Labels
from multibit.hashing.layers import scale_rows

DROPPED = 0.1  # largest relative deviation, by dropout of a row's values, of its product with itself
DROPPED_OF_LABELS = 0.25  # the same of its product with what its labels explain of it
ROWS = 4096  # that tell it for all
ROUNDING = 1e-12  # share of a row below which a part of it is nothing


def dropout_bound(features: NDArray[np.float32], labels: Labels | None = None) -> float:
    """The largest fraction of values to drop of one modality: small where a few values carry a row or its labels.

    To drop a fraction p of the values x of a row, and scale the others by 1/(1-p), changes its product with y by a
    standard deviation of sqrt(p/(1-p) sum x^2 y^2). Relative to sum y^2 this is kept below `DROPPED` for y = x, and
    below `DROPPED_OF_LABELS` for the y that the labels explain of x. The features of an encoder are far from both, but
    a topic vector of ten values can lose the one that says what it is, and of a histogram, or of the tags of a
    photograph, the labels explain a hundredth part.

    Args:
        features: (n, d) of the training items, of which some are looked at. labels: (n, C) of the same items, None to
            look at the features alone.

    Example:
        >>> round(dropout_bound(np.ones((5, 300), np.float32)), 4), round(dropout_bound(np.eye(5, 300)), 4)
        (0.75, 0.0099)
        >>> faint = np.ones((4, 300), np.float32)  # one value in 300 says which of two labels an item has
        >>> faint[:2, 0] += 0.1
        >>> round(dropout_bound(faint, np.eye(2, dtype=np.uint8)[[0, 0, 1, 1]]), 4)
        0.0001
    """
    step = max(1, len(features) // ROWS)
    rows = scale_rows(torch.from_numpy(np.asarray(features[::step], np.float32))).double()  # squares sum to d
    bound = _bound(rows, rows, DROPPED)
    if labels is None or not labels.any():
        return bound
    explained = _explained(rows, torch.from_numpy(np.asarray(labels[::step], np.float64)))
    return min(bound, _bound(rows, explained, DROPPED_OF_LABELS))


def _explained(rows: Tensor, labels: Tensor) -> Tensor:
    """(n, d) the mean, over the labels of an item, of how the mean row with that label differs from the mean row.

    Args:
        rows: (n, d). labels: (n, C).
    """
    differences = (labels.T @ rows) / labels.sum(dim=0).clamp(min=1)[:, None] - rows.mean(dim=0)  # (C, d)
    return (labels @ differences) / labels.sum(dim=1).clamp(min=1)[:, None]


def _bound(rows: Tensor, parts: Tensor, deviation: float) -> float:
    """The fraction to drop that changes the products of rows x and parts y by this relative standard deviation."""
    size = float(parts.square().sum(dim=1).mean())
    if size <= ROUNDING * rows.shape[1]:
        return 1.0
    variance = float((rows.square() * parts.square()).sum(dim=1).mean()) / size**2
    return deviation**2 / (deviation**2 + variance)
