"""Hits: one result of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Hit:
    """One result of a search.

    Attributes:
        rank: from 1. id: of the item.
        distance: number of differing bits; None for a relaxed query.
        bits: code length of the search. payload: metadata of the item, without null values.
        score: inner product with a relaxed query, larger is nearer; None for a binary query.

    Example:
        >>> Hit(rank=1, id="a", distance=3, bits=16, payload={"year": 2001}).payload["year"]
        2001
    """

    rank: int
    id: str | int
    distance: int | None
    bits: int
    payload: Mapping[str, Any]
    score: float | None = None
