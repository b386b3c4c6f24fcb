"""Average precision of rankings by real values: of the query alone, or of both sides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import FloatArray, unit_rows
from multibit.codes import Codes
from multibit.codes.compiling import over_queries
from multibit.errors import DataError
from multibit.evaluation.metrics import pack_both_labels

BLOCK = 32  # queries whose scores of the whole database are held at once
SCORES = 1 << 22  # products that are held at once
SIGNS = 1 << 13  # items whose signs are held as real values at once
UNIT = 1 << 20  # relaxed values are rounded to multiples of 1/UNIT, so that their sums are exact


def asymmetric_average_precision(
    query: ArrayLike, database: Codes, query_labels: ArrayLike, database_labels: ArrayLike, bits: int | None = None
) -> FloatArray:
    """Average precision when the query keeps its real values and the database is binary (asymmetric ranking).

    Items are ranked by the inner product of the relaxed query with their signs, largest first, ties by row. Values are
    rounded to 2^-20, so that the products are exact and items of equal codes are tied.

    Args:
        query: (Q, B) relaxed codes in [-1, 1]. database: N codes.
        query_labels: (Q, C) multi-hot. database_labels: (N, C) multi-hot. bits: prefix length.

    Returns:
        (Q,) float64 in [0, 1]; NaN marks a query without any relevant item.

    Raises:
        DataError: shapes that do not fit, or a value outside [-1, 1].

    Example:
        >>> database = Codes.binarize([[1, -1], [1, 1], [-1, 1]])
        >>> asymmetric_average_precision([[0.9, 0.1]], database, [[1]], [[1], [0], [1]]).round(4)  # ranks 2 and 3
        array([0.5833])
    """
    database.require_one_view("Asymmetric ranking", "Rank by the binary codes.")
    values = np.asarray(query, np.float64)
    length = database.check_length(bits)
    if values.ndim != 2 or values.shape[1] < length:
        raise DataError(f"need shape (Q, {length} or more), got {values.shape}.", field="relaxed queries")
    if not (np.abs(values) <= 1).all():  # false for NaN too
        worst = values[~(np.abs(values) <= 1)][0]
        raise DataError(f"every value must be in [-1, 1], got {worst}.", field="relaxed queries")
    asked, searched = pack_both_labels(query_labels, len(values), database_labels, len(database))
    whole = np.round(values[:, :length] * UNIT)
    signs = database.prefix(length).to_signs()
    found = np.empty(len(values))
    size = max(BLOCK, SCORES // max(len(signs), 1))  # queries per block: the database is converted once for each
    for start in range(0, len(values), size):
        block = slice(start, start + size)
        _rank_by_product(whole[block], signs, asked[:, block], searched, found[block])
    return found


def cosine_average_precision(
    query: ArrayLike, database: ArrayLike, query_labels: ArrayLike, database_labels: ArrayLike
) -> FloatArray:
    """Average precision of real-valued features, ranked by the cosine, largest first, ties by row.

    What binary codes could reach at most, if they lost nothing of these features.

    Args:
        query: (Q, d). database: (N, d). query_labels: (Q, C) multi-hot. database_labels: (N, C) multi-hot.

    Returns:
        (Q,) float64 in [0, 1]; NaN marks a query without any relevant item.

    Raises:
        DataError: shapes that do not fit.

    Example:
        >>> cosine_average_precision([[1.0, 0]], [[2.0, 0], [0, 1], [1, 1]], [[1]], [[0], [1], [1]]).round(4)
        array([0.5833])
    """
    asked, searched = (unit_rows(np.asarray(side, np.float64)) for side in (query, database))
    if asked.shape[1] != searched.shape[1]:
        raise DataError(f"features of {asked.shape[1]} and of {searched.shape[1]} dimensions.", field="features")
    words = pack_both_labels(query_labels, len(asked), database_labels, len(searched))
    found = np.empty(len(asked))
    for start in range(0, len(asked), BLOCK):
        scores = np.round(asked[start : start + BLOCK] @ searched.T, 12)  # (b, N); equal features are tied
        for q, score in enumerate(scores, start):
            relevant: NDArray[np.bool_] = np.any(words[1] & words[0][:, q : q + 1], axis=0)
            found[q] = _precision_of(relevant[np.argsort(-score, kind="stable")])
    return found


def _rank_by_product(
    values: FloatArray, signs: NDArray[Any], asked: NDArray[np.uint64], searched: NDArray[np.uint64], found: FloatArray
) -> None:
    """Average precision of a block of queries: (b, B) whole numbers, (N, B) signs, labels in words."""
    score = np.empty((len(values), len(signs)))
    for start in range(0, len(signs), SIGNS):
        score[:, start : start + SIGNS] = values @ signs[start : start + SIGNS].astype(np.float64).T
    rows = np.arange(len(signs), dtype=np.uint64)

    def work(first: int, last: int) -> None:
        for q in range(first, last):
            relevant: NDArray[np.bool_] = np.any(searched & asked[:, q : q + 1], axis=0)
            behind = (signs.shape[1] * UNIT - score[q]).astype(np.uint64)  # 0 for the largest possible product
            order = np.sort(behind << np.uint64(32) | rows) & np.uint64(2**32 - 1)
            found[q] = _precision_of(relevant[order])

    over_queries(work, len(values))


def _precision_of(relevant: NDArray[np.bool_]) -> float:
    """Average precision of one query, of its items in the order of their ranks; NaN if none is relevant."""
    places = np.flatnonzero(relevant) + 1
    return float((np.arange(1, len(places) + 1) / places).mean()) if len(places) else math.nan
