"""One search of a version of an index: check the arguments, choose the rows, search each part, join the answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import Rows
from multibit.codes import Codes
from multibit.codes.distance import (
    Neighbours,
    ScoredRows,
    best_of,
    check_candidates,
    check_k,
    check_radius,
    check_relaxed,
    nearest,
    nearest_relaxed,
)
from multibit.errors import ConfigError, DataError, require_known
from multibit.machine import threads_or_all
from multibit.search.changes import rows_of
from multibit.search.columns import Id
from multibit.search.conditions import Where
from multibit.search.engines import ENGINES
from multibit.search.filters import Filter, Mask
from multibit.search.results import SearchResult
from multibit.search.segments import Chosen, Part, Version, merge_found, merge_scored


def search(
    version: Version,
    engine: str,
    codes: Codes,
    k: int,
    bits: int | None,
    *,
    max_distance: int | None,
    among: Sequence[Id] | None,
    where: Where | None,
    fields: Sequence[str] | None,
    threads: int | None,
) -> SearchResult:
    """See `Index.search`."""
    check_k(k)
    threads_or_all(threads)  # refuses a wrong one where nothing is searched, too
    if max_distance is not None:
        check_radius(max_distance, "max_distance")
    first = version.parts[0].segment.codes if version.parts else None
    length = (codes if first is None else first).check_length(bits)
    require_fields(version, fields)
    if first is None:
        return SearchResult(length, Neighbours.allocate(len(codes), k, codes.take([])), version)
    codes.check_length(length)
    require_views(engine, codes, first)
    chosen = _chosen(version, among, where)
    if where is not None and among is None and not ENGINES[engine].capabilities.filters:  # named rows need no engine
        problem = f"the {engine} engine cannot search with filters."
        raise ConfigError(problem, option="engine", hint="Use the exact engine.")
    found = [
        part.search(engine, codes, k, length, some, max_distance=max_distance, threads=threads)
        for part, some in zip(version.parts, chosen, strict=True)
    ]
    return SearchResult(length, merge_found(found, version.starts, k), version, fields)


def search_relaxed(
    version: Version,
    values: ArrayLike,
    k: int,
    bits: int | None,
    *,
    candidates: int | None,
    among: Sequence[Id] | None,
    where: Where | None,
    fields: Sequence[str] | None,
    threads: int | None,
) -> SearchResult:
    """See `Index.search_relaxed`."""
    threads_or_all(threads)
    if not version.parts:
        raise DataError("the index is empty, so it cannot be searched.")
    require_fields(version, fields)
    array = check_relaxed(values, version.parts[0].segment.codes, bits)
    check_k(k)
    chosen = _chosen(version, among, where)
    allowed = [_as_mask(part, some) for part, some in zip(version.parts, chosen, strict=True)]
    segments = [part.segment.codes for part in version.parts]
    if candidates is None:
        scored = [nearest_relaxed(array, codes, k, array.shape[1], allowed=mask, threads=threads)
                  for codes, mask in zip(segments, allowed, strict=True)]  # fmt: skip
        found = merge_scored(scored, version.starts, k)
    else:
        passing = sum(
            len(codes) if mask is None else int(mask.sum()) for codes, mask in zip(segments, allowed, strict=True)
        )
        check_candidates(candidates, min(k, passing))
        near = [nearest(Codes.binarize(array), codes, candidates, array.shape[1], allowed=mask, threads=threads)
                for codes, mask in zip(segments, allowed, strict=True)]  # fmt: skip
        found = _best_of(version, array, merge_found(near, version.starts, candidates), k, threads)
    return SearchResult(array.shape[1], found, version, fields)


def _best_of(
    version: Version, values: NDArray[np.float64], near: Neighbours, k: int, threads: int | None
) -> ScoredRows:
    """The best of the candidates, whose codes are read into one place."""
    rows = np.unique(near.rows[near.rows >= 0])
    if not len(rows):
        return ScoredRows(near.rows[:, :k], np.zeros(near.rows[:, :k].shape), near.counts)
    codes = Codes.concatenate([part.segment.codes.take(inner) for part, _, inner in version.by_part(rows)])
    places = Neighbours(np.searchsorted(rows, near.rows), near.distances, near.counts)
    found = best_of(values, codes, places, k, threads=threads)
    return ScoredRows(rows[found.rows], found.scores, found.counts)


def require_views(engine: str, *codes: Codes) -> None:
    """Refuse items with several codes where the engine cannot search them.

    Raises:
        ConfigError: names the engine.
    """
    most = max((each.views for each in codes), default=1)
    if most > 1 and not ENGINES[engine].capabilities.views:
        problem = f"the {engine} engine cannot search items with {most} codes each."
        raise ConfigError(problem, option="engine", hint="Use the exact engine.")


def require_fields(version: Version, fields: Sequence[str] | None) -> None:
    """Refuse a field that no item has.

    Raises:
        ConfigError: names the field.
    """
    for name in fields or ():
        require_known("field", name, version.kinds, option="fields")


def _chosen(version: Version, among: Sequence[Id] | None, where: Where | None) -> list[Chosen | None]:
    """The rows of each part that may be found."""
    condition = None if where is None else Filter.parse(where, version.kinds)
    rows: Sequence[Rows | None] = [None] * len(version.parts) if among is None else rows_of(version, among)
    return [part.choose(condition, version.kinds, some) for part, some in zip(version.parts, rows, strict=True)]


def _as_mask(part: Part, chosen: Chosen | None) -> Mask | None:
    """(rows,) bool of the chosen rows of a part; None for all."""
    if chosen is None or chosen.rows is None:
        return None if chosen is None else chosen.mask
    mask = np.zeros(len(part.segment), bool)
    mask[chosen.rows] = True
    return mask
