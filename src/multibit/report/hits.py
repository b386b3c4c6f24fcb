"""The table of the hits of one search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multibit.search.hits import Hit
from multibit.table import Cell, Number, Table


def hits_table(
    hits: Sequence[Hit],
    searched: str,
    bits: int,
    measure: str = "distance",
    *,
    fields: Sequence[str] | None = None,
    exact: bool = True,
) -> Table:
    """Hits of one search, best first.

    Args:
        hits: with payloads. searched: modality of the hits, "image" or "text". bits: length searched at.
        measure: name of that column, "distance", or "score" for a relaxed query. fields: of the metadata to show;
            labels and the image or text when None. exact: False after an approximate search.
    """
    shown = tuple(fields or ("labels", searched))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            Number(hit.rank, "d"),
            Number(getattr(hit, measure), ".2f" if measure == "score" else "d"),
            str(hit.id),
            *(_shown(hit.payload.get(field)) for field in shown),
        )
        for hit in hits
    )
    header = ("rank", measure, "id", *shown)
    return Table(f"{len(hits)} nearest {searched}s at {bits} bits{'' if exact else ', approximate'}", header, rows)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
