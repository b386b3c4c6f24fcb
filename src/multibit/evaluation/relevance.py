"""Graded relevance of items to queries: the references of the resolution metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow
from numpy.typing import ArrayLike

from multibit.arrays import FloatArray, Labels, Rows, unit_rows
from multibit.errors import DataError

PROMPT = "a photo of a {}"
BLOCK = 1 << 14  # label sets whose vectors are made at once


@dataclass(frozen=True, eq=False)
class GradedRelevance:
    """A symmetric relevance between label sets, r(q, i) = y_q K y_i, with or without cosine normalisation.

    Make one with `shared_labels`, `idf` or `semantic`.

    Attributes:
        name: for tables. kernel: K (C, C). normalized: divide by sqrt(y_q K y_q) sqrt(y_i K y_i).
        origin: name of the text encoder that the kernel is by; "" where there is none.

    Example:
        >>> relevance = GradedRelevance.shared_labels(3)
        >>> relevance.scores([[1, 1, 0]], [[1, 1, 1], [0, 1, 0], [0, 0, 1]])
        array([[2., 1., 0.]])
    """

    name: str
    kernel: FloatArray
    normalized: bool = False
    origin: str = ""

    @classmethod
    def shared_labels(cls, columns: int) -> GradedRelevance:
        """The number of shared labels."""
        return cls("shared labels", np.eye(columns))

    @classmethod
    def idf(cls, database_labels: ArrayLike) -> GradedRelevance:
        """Shared labels weighted by w_c = log((R+1)/(n_c+1)) over the R database items (IDF-weighted evaluator)."""
        labels = np.asarray(database_labels)
        return cls("IDF", np.diag(np.log((len(labels) + 1) / (labels.sum(axis=0, dtype=np.float64) + 1))))

    @classmethod
    def semantic(
        cls,
        label_names: Sequence[str],
        encode: Callable[[Sequence[str]], ArrayLike],
        prompt: str = PROMPT,
        origin: str = "",
    ) -> GradedRelevance:
        """Similarity of the label names to a text encoder (`eq:semantic-kernel`, `eq:semantic-relevance`).

        Args:
            label_names: C names. encode: n texts -> (n, d) vectors. prompt: text around a name, with {} for the name.
            origin: name of the text encoder.

        Raises:
            DataError: no label names, or vectors of another shape or not finite.
        """
        if not label_names or all(name == f"label {i}" for i, name in enumerate(label_names)):
            raise DataError("the data set has no label names, which semantic relevance needs.", field="label_names")
        vectors = np.asarray(encode([prompt.format(name) for name in label_names]), np.float64)
        if vectors.ndim != 2 or len(vectors) != len(label_names) or not np.isfinite(vectors).all():
            raise DataError(
                f"the text encoder returned shape {vectors.shape} for {len(label_names)} label names; need one finite "
                "vector each.",
                field="label_names",
            )
        unit = unit_rows(vectors - vectors.mean(axis=0))
        kernel = np.maximum(unit @ unit.T, 0.0)
        np.fill_diagonal(kernel, 1.0)
        return cls("label names", kernel, normalized=True, origin=origin)

    def vectors(self, labels: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Two (n, C) arrays l and r for these label sets, such that scores(a, b) = l_a r_b^T.

        Raises:
            DataError: another number of columns.
        """
        y = np.asarray(labels, np.float64)
        if y.ndim != 2 or y.shape[1] != len(self.kernel):
            raise DataError(f"need shape (items, {len(self.kernel)}), got {y.shape}.", field="labels")
        left = y @ self.kernel
        if not self.normalized:
            return left, y
        norm = np.sqrt(np.einsum("nc,nc->n", left, y))[:, None]
        scale = np.divide(1.0, norm, out=np.zeros_like(norm), where=norm > 0)
        return left * scale, y * scale

    def scores(self, query_labels: ArrayLike, database_labels: ArrayLike) -> FloatArray:
        """Relevance of every pair: (Q, C) and (N, C) multi-hot -> (Q, N), at least 0."""
        return np.asarray(self.vectors(query_labels)[0] @ self.vectors(database_labels)[1].T)


@dataclass(frozen=True, eq=False)
class LabelSetRelevance:
    """A graded relevance of database items to queries, computed once for each distinct label set.

    The relevance of item i to query q is left[asked[q]] . right[searched[i]].

    Attributes:
        left: (Uq, C) vectors of the distinct label sets of the queries. asked: (Q,) the set of each query.
        right: (U, C) vectors of the distinct label sets of the database. searched: (N,) the set of each item.
    """

    left: FloatArray
    asked: Rows
    right: FloatArray
    searched: Rows

    @classmethod
    def of(
        cls, references: Sequence[GradedRelevance], query_labels: ArrayLike, database_labels: ArrayLike
    ) -> list[LabelSetRelevance]:
        """One for each reference; the label sets are found once.

        Args:
            references: graded relevances. query_labels: (Q, C) multi-hot. database_labels: (N, C) multi-hot.

        Raises:
            DataError: another number of columns.
        """
        (few, asked), (many, searched) = _distinct(query_labels), _distinct(database_labels)
        return [cls(np.ascontiguousarray(each.vectors(few)[0]), asked, _right(each, many), searched)
                for each in references]  # fmt: skip

    @property
    def counts(self) -> Rows:
        """(U,) database items with each label set."""
        return np.bincount(self.searched, minlength=len(self.right))


def _right(relevance: GradedRelevance, sets: Labels) -> FloatArray:
    """The right vectors (U, C) of label sets, made in blocks: the left ones are as large."""
    whole = np.empty((len(sets), len(relevance.kernel)))
    for start in range(0, max(len(sets), 1), BLOCK):  # an empty block has its columns checked
        whole[start : start + BLOCK] = relevance.vectors(sets[start : start + BLOCK])[1]
    return whole


def _distinct(labels: ArrayLike) -> tuple[Labels, Rows]:
    """The distinct rows of (N, C) labels in the order of their first occurrence, and the number of each row's set."""
    whole = np.asarray(labels, np.uint8)
    if whole.ndim != 2 or not whole.size:
        return whole, np.arange(len(whole))
    packed = np.packbits(whole, axis=1)  # (N, ceil(C / 8))
    kind = pyarrow.binary(packed.shape[1])
    found = pyarrow.Array.from_buffers(kind, len(packed), [None, pyarrow.py_buffer(packed)]).dictionary_encode()
    which = found.indices.to_numpy().astype(np.int64)
    first = np.full(len(found.dictionary), len(whole))
    np.minimum.at(first, which, np.arange(len(whole)))
    return whole[first], which
