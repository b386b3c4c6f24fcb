"""One search of a version of an index: check the arguments, choose the rows, search each part, join the answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from multibit.arrays import Rows
from multibit.codes import Codes
from multibit.codes.distance import Neighbours, ScoredRows, check_k, check_radius, nearest_relaxed
from multibit.errors import ConfigError, DataError, require_known
from multibit.search.changes import rows_of
from multibit.search.columns import Id
from multibit.search.conditions import Where
from multibit.search.engines import ENGINES
from multibit.search.filters import Filter, Mask
from multibit.search.results import SearchResult
from multibit.search.segments import Chosen, Part, Version, merge_found


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
    if (among is not None or where is not None) and not ENGINES[engine].capabilities.filters:
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
    codes = version.codes
    if codes is None:
        raise DataError("the index is empty, so it cannot be searched.")
    require_fields(version, fields)
    allowed = None
    if among is not None or where is not None:
        masks = [_as_mask(part, some) for part, some in zip(version.parts, _chosen(version, among, where), strict=True)]
        allowed = np.concatenate(masks)
    found = nearest_relaxed(values, codes, k, bits, candidates=candidates, allowed=allowed, threads=threads)
    if len(version.removed):
        every = np.delete(np.arange(version.starts[-1]), version.removed)
        found = ScoredRows(np.where(found.rows < 0, -1, every[found.rows]), found.scores, found.counts)
    return SearchResult(codes.check_length(bits), found, version, fields)


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


def _as_mask(part: Part, chosen: Chosen | None) -> Mask:
    """(live rows,) bool of the chosen rows."""
    mask = np.ones(len(part.segment), bool)
    if chosen is not None and chosen.rows is not None:
        mask[:] = False
        mask[chosen.rows] = True
    elif chosen is not None and chosen.mask is not None:
        mask = chosen.mask
    return mask if part.alive is None else mask[part.alive]
