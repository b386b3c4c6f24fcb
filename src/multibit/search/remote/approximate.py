"""How much an approximate search finds of what the exact one finds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from multibit.codes import Codes
from multibit.errors import DataError
from multibit.search.conditions import Where
from multibit.search.remote.index import RemoteIndex
from multibit.search.results import SearchResult


@dataclass
class Recall:
    """Share of the nearest items that approximate searches find, over all queries whose results are added.

    Items at the distance of the k-th nearest are equally good, so any of them counts.

    Attributes:
        queries: number of queries. found: nearest items that were found. nearest: that there are.
    """

    queries: int = 0
    found: int = 0
    nearest: int = 0

    def add(self, approximate: SearchResult, exact: SearchResult) -> None:
        """Count the hits of some queries.

        Args:
            approximate, exact: results of the same queries, with the same k, length and filter.
        """
        last = np.maximum(exact.counts - 1, 0)[:, None]
        farthest = np.take_along_axis(exact.distances, last, 1) if exact.distances.shape[1] else exact.distances
        is_hit = np.arange(approximate.distances.shape[1]) < approximate.counts[:, None]
        good = np.count_nonzero((approximate.distances <= farthest) & is_hit, axis=1)
        self.queries += len(exact)
        self.found += int(np.minimum(good, exact.counts).sum())
        self.nearest += int(exact.counts.sum())

    def measured(self, approximate: Iterable[SearchResult], exact: Iterable[SearchResult]) -> Iterator[SearchResult]:
        """The approximate results, which are counted on the way.

        Args:
            approximate, exact: results of the same blocks of queries, as `RemoteIndex.search_batches` makes them.
        """
        for one, other in zip(approximate, exact, strict=True):
            self.add(one, other)
            yield one

    @property
    def value(self) -> float:
        """The recall, 0 to 1.

        Raises:
            DataError: no query has an item to find.
        """
        if not self.nearest:
            problem = f"{self.queries} queries have no items to find, so there is no recall."
            raise DataError(problem, field="queries")
        return self.found / self.nearest


def recall(
    index: RemoteIndex,
    queries: Codes,
    k: int = 10,
    bits: int | None = None,
    *,
    ef_search: int,
    max_distance: int | None = None,
    where: Where | None = None,
) -> float:
    """Share of the k nearest items that an approximate search finds, over all queries.

    Items at the distance of the k-th nearest are equally good, so any of them counts. The index must not change
    meanwhile.

    Args:
        index: whose HNSW index is measured. queries: Q codes, at least one. ef_search: candidates of the approximate
            search. k, bits, max_distance, where: as for `RemoteIndex.search`.

    Returns:
        0 to 1.

    Raises:
        DataError: no query has an item to find. ConfigError, UnavailableError: as `RemoteIndex.search`.
    """
    measured = Recall()
    measured.add(*(
        index.search(queries, k, bits, max_distance=max_distance, where=where, fields=(), ef_search=candidates)
        for candidates in (ef_search, None)
    ))  # fmt: skip
    return measured.value
