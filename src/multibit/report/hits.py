"""The table of the hits of one search."""

from __future__ import annotations

from collections.abc import Sequence

from multibit.search.hits import Hit
from multibit.table import Number, Table


def hits_table(
    hits: Sequence[Hit], searched: str, bits: int, measure: str = "distance", *, exact: bool = True
) -> Table:
    """Hits of one search, best first.

    Args:
        hits: with payloads. searched: modality of the hits, "image" or "text". bits: length searched at.
        measure: name of that column, "distance", or "score" for a relaxed query. exact: False after an approximate
            search.
    """
    rows = tuple(
        (
            Number(hit.rank, "d"),
            Number(getattr(hit, measure), ".2f" if measure == "score" else "d"),
            str(hit.id),
            ", ".join(hit.payload.get("labels") or ()),
            str(hit.payload.get(searched) or ""),
        )
        for hit in hits
    )
    header = ("rank", measure, "id", "labels", searched)
    return Table(f"{len(hits)} nearest {searched}s at {bits} bits{'' if exact else ', approximate'}", header, rows)
