"""The label graph of a training set: PPMI weights W, normalised Laplacian L, label specificity s."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from multibit.arrays import FloatArray, IntArray, as_labels
from multibit.errors import ConfigError, DataError, counted

EPSILON = 0.1
"""PPMI smoothing constant (Table `tab:all-parameters`)."""


@dataclass(frozen=True, eq=False)
class LabelGraph:
    """Co-occurrence of the labels of a training set.

    Attributes:
        weights: W (C, C), positive pointwise mutual information of two labels, 0 on the diagonal (`eq:ppmi-graph`).
        laplacian: L (C, C) = I - D^-1/2 W D^-1/2. A label that never co-occurs has 1 on its diagonal.
        specificity: s (C,) = log((N+1)/(n_a+1)): rare labels weigh more, a label on every item weighs nothing.
        cooccurrence: (C, C), number of items with both labels.

    Example:
        >>> graph = LabelGraph.from_labels([[1, 1, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1]])
        >>> graph.weights.round(2)
        array([[0.  , 0.64, 0.  ],
               [0.64, 0.  , 0.  ],
               [0.  , 0.  , 0.  ]])
    """

    weights: FloatArray
    laplacian: FloatArray
    specificity: FloatArray
    cooccurrence: FloatArray

    def __repr__(self) -> str:
        return f"LabelGraph({len(self.weights)} labels, {np.count_nonzero(self.weights) // 2} edges)"

    @classmethod
    def from_labels(cls, labels: ArrayLike, epsilon: float = EPSILON) -> LabelGraph:
        """Build the graph of (N, C) multi-hot training labels.

        Raises:
            DataError: wrong shape or values, no rows, or no label at all.
            ConfigError: epsilon is not positive.
        """
        if not 0 < epsilon < np.inf:
            raise ConfigError(f"must be a positive number, got {epsilon}.", option="epsilon")
        y = as_labels(labels).astype(np.float64)  # (N, C)
        items = len(y)
        if not y.any():
            none = f"no row has a label ({counted(items, 'row', 'rows')}), so there is no relation to learn."
            raise DataError(none, field="labels")
        cooccurrence = y.T @ y  # (C, C), n_ab
        count = np.diag(cooccurrence)  # (C,), n_a
        weights = _ppmi(cooccurrence, count, items, epsilon)
        specificity = np.log((items + 1) / (count + 1))
        return cls(weights, _normalized_laplacian(weights), specificity, cooccurrence)


def related_labels(labels: csr_array) -> IntArray:
    """Number of neighbours of each label in the label graph, in memory of the pairs of labels that occur together.

    Args:
        labels: (N, C) sparse multi-hot.

    Returns:
        (C,) int64.

    Example:
        >>> related_labels(csr_array([[1, 1, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1]]))
        array([1, 1, 0])
    """
    y = labels.astype(np.float64)
    pairs = (y.T @ y).tocoo()
    count = pairs.diagonal()
    apart = (pairs.row != pairs.col) & (pairs.data > 0)
    first, second = pairs.row[apart], pairs.col[apart]
    weights = _information(pairs.data[apart], count[first], count[second], y.shape[0], EPSILON)
    return np.bincount(first[weights > 0], minlength=y.shape[1]).astype(np.int64)


def _ppmi(cooccurrence: FloatArray, count: FloatArray, items: int, epsilon: float) -> FloatArray:
    information = _information(cooccurrence, count[:, None], count[None, :], items, epsilon)
    weights = np.where(cooccurrence > 0, np.maximum(information, 0.0), 0.0)
    np.fill_diagonal(weights, 0.0)
    return weights


def _information(both: FloatArray, first: FloatArray, second: FloatArray, items: int, epsilon: float) -> FloatArray:
    """Smoothed pointwise mutual information of two labels, from the items with both and with each."""
    return np.asarray(np.log((both + epsilon) * items / ((first + epsilon) * (second + epsilon))))


def _normalized_laplacian(weights: FloatArray) -> FloatArray:
    degree = weights.sum(axis=1)  # (C,)
    with np.errstate(divide="ignore"):
        scale = np.where(degree > 0, degree**-0.5, 0.0)
    laplacian: FloatArray = np.eye(len(weights)) - scale[:, None] * weights * scale[None, :]
    return laplacian
