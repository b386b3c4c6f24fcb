"""How many queries take part in measurements that cost a pass of real values, or a sort, over the database each."""

from __future__ import annotations

FEWEST = 100
"""Queries that are compared however large the database is."""


def sampled_queries(queries: int, items: int, *, most: int, pairs: int) -> int:
    """Number of queries to compare, from the first: as many as `pairs` allow, so that the cost of a measurement ends.

    Args:
        queries: number of all queries. items: of the database. most: queries at most, if the database is small.
        pairs: query-item pairs at most, if that leaves `FEWEST` queries.

    Example:
        >>> [sampled_queries(5_000, items, most=1_000, pairs=50_000_000) for items in (3_577, 100_000, 300_000, 10**7)]
        [1000, 500, 166, 100]
    """
    return min(queries, most, max(FEWEST, pairs // max(items, 1)))
