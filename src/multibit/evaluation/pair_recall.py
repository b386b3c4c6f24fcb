"""Pair recall: where the own counterpart of each query stands in its ranking, the metric of image-text retrieval.

The own counterparts of a query are the candidates of the same item: the texts of an image, or the image of a text. Of
several, the nearest counts. Candidates at equal distance have no order, so every value is the exact mean over all their
orders, and no ranking is stored: three counts per query are enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import FloatArray, IntArray, Rows
from multibit.codes import Codes
from multibit.codes.distance import check_k, common_length, run, scan_of
from multibit.errors import DataError
from multibit.evaluation.rank_kernels import own_counts

QUERIES, ITEMS = 1 << 10, 1 << 12  # whose products are held at once
UNIT = 1 << 20  # real values are rounded to multiples of 1/UNIT, so that their products are exact


@dataclass(frozen=True, eq=False)
class OwnCounts:
    """Counts around the nearest own counterpart of each query.

    Attributes:
        before: (Q,) candidates that are nearer. tied: (Q,) candidates at its distance, itself included.
        own: (Q,) own counterparts at that distance; 0 where the query has none, which leaves it undefined.
    """

    before: IntArray
    tied: IntArray
    own: IntArray

    def __len__(self) -> int:
        return len(self.own)

    def recall(self, k: int) -> FloatArray:
        """Probability (Q,) that an own counterpart is among the first k, over all orders of ties; NaN where undefined.

        With m of the t tied candidates, o of them own, among the first k, none is own with probability
        C(t-o, m) / C(t, m), the product of (t-m-j) / (t-j) over j < o.

        Raises:
            DataError: k less than 1.

        Example:
            >>> counts = OwnCounts(before=np.array([0, 2]), tied=np.array([1, 4]), own=np.array([1, 1]))
            >>> counts.recall(1), counts.recall(3)
            (array([1., 0.]), array([1.  , 0.25]))
        """
        inside = np.clip(check_k(k) - self.before, 0, self.tied)
        missed = np.ones(len(self))
        for j in range(int(self.own.max(initial=0))):
            left = np.maximum(self.tied - inside - j, 0) / np.maximum(self.tied - j, 1)
            missed = np.where(j < self.own, missed * left, missed)
        return np.where(self.own > 0, 1 - missed, np.nan)

    def rank(self) -> FloatArray:
        """Expected rank (Q,) of the first own counterpart over all orders of ties, from 1; NaN where undefined.

        The first of o own ones among t tied candidates stands at place (t+1) / (o+1) on average.

        Example:
            >>> OwnCounts(before=np.array([0, 2]), tied=np.array([1, 4]), own=np.array([1, 1])).rank()
            array([1. , 4.5])
        """
        return np.where(self.own > 0, self.before + (self.tied + 1) / (self.own + 1), np.nan)


def pair_recall(
    query: Codes,
    database: Codes,
    k: int,
    bits: int | None = None,
    query_items: ArrayLike | None = None,
    database_items: ArrayLike | None = None,
    *,
    threads: int | None = None,
) -> FloatArray:
    """Recall at k of the own counterpart of each query: (Q,) in [0, 1]; the mean over the queries is R@k.

    The arguments are those of `count_own`; `OwnCounts.recall` tells how ties count.

    Example:
        >>> image = Codes.binarize([[1, 1], [1, -1], [-1, -1]])
        >>> text = Codes.binarize([[1, 1], [1, 1], [-1, -1]])
        >>> pair_recall(image, text, k=1).round(2)  # image 0 is tied between 2 texts, image 1 between 3
        array([0.5 , 0.33, 1.  ])
    """
    return count_own(query, database, bits, query_items, database_items, threads=threads).recall(k)


def count_own(
    query: Codes,
    database: Codes,
    bits: int | None = None,
    query_items: ArrayLike | None = None,
    database_items: ArrayLike | None = None,
    *,
    threads: int | None = None,
) -> OwnCounts:
    """Find the nearest own counterpart of each query by Hamming distance, and count the candidates around it.

    Args:
        query: Q codes of one modality. database: N codes of the other, the candidates.
        bits: prefix length; the full length when None.
        query_items: (Q,) number of the item of each query; its row when None.
        database_items: (N,) the same of the candidates. Equal numbers are counterparts of each other.
        threads: all processors when None.

    Raises:
        DataError: codes shorter than `bits`, or item numbers that are not one whole number each.
    """
    length = common_length(query, database, bits)
    mine = _OwnRows.of(query_items, len(query), database_items, len(database))
    before, tied, own = (np.zeros(len(query), np.int64) for _ in range(3))
    scan = scan_of(query, database, length)
    run(own_counts, len(query), threads, scan, mine.rows, mine.first, mine.last, before, tied, own)
    return OwnCounts(before, tied, own)


class ProductCounter:
    """`count_own` of real values, which are ranked by their inner product, largest first.

    Values are rounded to 2^-20, so that products are exact and equal vectors are tied on every machine.

    Args:
        query: (Q, d) values in [-1, 1], such as relaxed codes or features of unit length.
        database: (N, d), the first candidates, all own counterparts among them; `add` takes the others.
        query_items, database_items: as for `count_own`.

    Raises:
        DataError: shapes that do not fit, values outside [-1, 1], or item numbers that are not one whole number each.

    Example:
        >>> counter = ProductCounter([[1.0, 0.0]], [[0.8, 0.6]])
        >>> counter.add([[0.9, 0.1], [0.0, 1.0]])
        >>> counter.counts().rank()
        array([2.])
    """

    def __init__(
        self,
        query: ArrayLike,
        database: ArrayLike,
        query_items: ArrayLike | None = None,
        database_items: ArrayLike | None = None,
    ) -> None:
        asked, searched = _values(query), _values(database)
        if asked.shape[1] != searched.shape[1]:
            raise DataError(f"values of {asked.shape[1]} and of {searched.shape[1]} dimensions.", field="values")
        mine = _OwnRows.of(query_items, len(asked), database_items, len(searched))
        self._query, self._best = _whole(asked), np.full(len(asked), np.inf)
        self._before, self._tied, self._own = (np.zeros(len(asked), np.int64) for _ in range(3))
        for q, values in enumerate(self._query):
            products = _whole(searched[mine.of_query(q)]) @ values
            if len(products):
                self._best[q] = products.max()
                self._own[q] = np.count_nonzero(products == self._best[q])
        self.add(searched)

    def add(self, candidates: ArrayLike) -> None:
        """Count more candidates, of the same dimension."""
        found = _values(candidates)
        for first in range(0, len(found), ITEMS):
            part = _whole(found[first : first + ITEMS]).T
            for start in range(0, len(self._query), QUERIES):
                block = slice(start, start + QUERIES)
                products, best = self._query[block] @ part, self._best[block, None]  # (q, n), (q, 1)
                self._before[block] += np.count_nonzero(products > best, axis=1)
                self._tied[block] += np.count_nonzero(products == best, axis=1)

    def counts(self) -> OwnCounts:
        """The counts so far."""
        return OwnCounts(self._before.copy(), self._tied.copy(), self._own.copy())


def _values(values: ArrayLike) -> NDArray[Any]:
    """Values (n, d) in [-1, 1].

    Raises:
        DataError: another shape, or a value outside.
    """
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise DataError(f"need numbers (n, d), got {array.dtype} {array.shape}.", field="values")
    for start in range(0, len(array), ITEMS):
        block = array[start : start + ITEMS]
        if not (np.abs(block) <= 1 + 1e-6).all():  # false for NaN too
            worst = block[~(np.abs(block) <= 1 + 1e-6)][0]
            raise DataError(f"every value must be in [-1, 1], got {worst}.", field="values")
    return array


def _whole(values: NDArray[Any]) -> FloatArray:
    return np.round(values.astype(np.float64) * UNIT)


@dataclass(frozen=True, eq=False)
class _OwnRows:
    """The candidates of each query's item: rows[first[q] : last[q]]."""

    rows: Rows
    first: Rows
    last: Rows

    @classmethod
    def of(cls, query_items: ArrayLike | None, queries: int, database_items: ArrayLike | None, items: int) -> _OwnRows:
        asked, searched = _item_numbers(query_items, queries, "query"), _item_numbers(database_items, items, "database")
        order = np.argsort(searched, kind="stable")
        first, last = (np.searchsorted(searched[order], asked, side) for side in ("left", "right"))
        return cls(order, first.astype(np.int64), last.astype(np.int64))

    def of_query(self, q: int) -> Rows:
        return self.rows[self.first[q] : self.last[q]]


def _item_numbers(items: ArrayLike | None, count: int, whose: str) -> Rows:
    """The number of the item of each row.

    Raises:
        DataError: not one whole number each.
    """
    if items is None:
        return np.arange(count)
    numbers = np.asarray(items)
    if numbers.shape != (count,) or (count and numbers.dtype.kind not in "iu"):
        raise DataError(f"need {count} whole numbers, got {numbers.dtype} {numbers.shape}.", field=f"{whose} items")
    return numbers.astype(np.int64)
