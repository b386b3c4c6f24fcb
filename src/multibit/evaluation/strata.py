"""Resolution where nothing is shared: pairs without a common label, and the most related quarter of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.codes import Codes, hamming_distances
from multibit.errors import DataError
from multibit.evaluation.relevance import GradedRelevance
from multibit.evaluation.resolution import ndcg

FloatArray = NDArray[np.float64]
QUARTILE = 0.75


@dataclass(frozen=True, eq=False)
class Stratum:
    """NDCG@100 among some candidate pairs (Table `tab:resolution-noshared`).

    Attributes:
        name: for tables. pairs: how many there are. values: (q,) NDCG of each query; NaN where nothing is relevant.
    """

    name: str
    pairs: int
    values: FloatArray


def no_shared_label(
    query: Codes,
    database: Codes,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    relevance: GradedRelevance,
    graph_weights: FloatArray,
    bits: int | None = None,
    k: int = 100,
    compared: int = 500,
) -> tuple[Stratum, Stratum]:
    """NDCG@k of the pairs that share no label, and of their quarter that the label graph relates most.

    Args:
        query, database: codes. query_labels, database_labels: multi-hot. relevance: that is not 0 for such pairs.
        graph_weights: W (C, C) of the label graph; two label sets are related by the sum of the weights between them.
        bits: prefix length. k: ranks. compared: the first so many queries are taken.

    Raises:
        DataError: every pair shares a label.
    """
    asked, searched = np.asarray(query_labels, np.float64)[:compared], np.asarray(database_labels, np.float64)
    apart = asked @ searched.T == 0  # (q, N)
    if not apart.any():
        raise DataError("every query shares a label with every item: there is no such pair.")
    related = asked @ graph_weights @ searched.T
    closest = apart & (related > 0) & (related >= np.quantile(related[apart], QUARTILE))  # no relation is not close
    distances = hamming_distances(query.take(np.arange(len(asked))), database, bits)
    scores = relevance.scores(asked, searched)
    strata = {"no shared label": apart, "no shared label, graph top 25 %": closest}
    first, second = (
        Stratum(
            name,
            int(inside.sum()),
            np.array([_ndcg_within(*each, k) for each in zip(distances, scores, inside, strict=True)]),
        )
        for name, inside in strata.items()
    )
    return first, second


def _ndcg_within(distance: NDArray[np.uint16], score: FloatArray, inside: NDArray[np.bool_], k: int) -> float:
    rows = np.flatnonzero(inside)
    ranked = rows[np.argsort(distance[rows], kind="stable")][:k]
    return ndcg(score[ranked], np.sort(score[rows])[::-1][:k])
