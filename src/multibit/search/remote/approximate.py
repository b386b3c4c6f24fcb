"""How much an approximate search finds of what the exact one finds."""

from __future__ import annotations

import numpy as np

from multibit.codes import Codes
from multibit.errors import DataError
from multibit.search.remote.index import RemoteIndex


def recall(index: RemoteIndex, queries: Codes, k: int = 10, bits: int | None = None, *, ef_search: int) -> float:
    """Share of the k nearest items that an approximate search finds, as the mean over all queries.

    Items at the distance of the k-th nearest are equally good, so any of them counts. The index must not change
    meanwhile.

    Args:
        index: whose HNSW index is measured. queries: Q codes, at least one. k, bits: as for `RemoteIndex.search`.
        ef_search: candidates of the approximate search.

    Returns:
        0 to 1.

    Raises:
        DataError: no queries, or an empty index. ConfigError, UnavailableError: as `RemoteIndex.search`.
    """
    if not len(queries) or not len(index):
        raise DataError(f"{len(queries)} queries in {len(index)} items have no recall.", field="queries")
    exact = index.search(queries, k, bits, fields=())
    found = index.search(queries, k, bits, fields=(), ef_search=ef_search)
    farthest = exact.distances[:, -1:]  # without a filter every query has the same number of hits
    good = (found.distances <= farthest) & (np.arange(found.distances.shape[1]) < found.counts[:, None])
    return float(good.sum() / exact.counts.sum())
