"""Exact Hamming distance and exact nearest codes, at any prefix length: the typed face of the kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from multibit.codes import kernels
from multibit.codes.packing import Codes, last_mask
from multibit.errors import DataError


def common_length(a: Codes, b: Codes, bits: int | None) -> int:
    """The prefix length to compare two sets of codes at; the full length when None.

    Raises:
        DataError: the codes differ in length and no `bits` is given, or `bits` is longer than one of them.
    """
    if bits is None and a.bits != b.bits:
        raise DataError(f"codes of {a.bits} and {b.bits} bits: give `bits` to compare a common prefix.")
    return b.check_length(a.check_length(bits))


def hamming_distances(a: Codes, b: Codes, bits: int | None = None, *, threads: int | None = None) -> NDArray[np.uint16]:
    """Hamming distance of every pair.

    Args:
        a: Q codes. b: N codes.
        bits: prefix length, 1 to B; the full length when None.
        threads: all processors when None.

    Returns:
        (Q, N) uint16, number of differing bits (`eq:hamming-distance`).

    Raises:
        DataError: `bits` is longer than the codes.

    Example:
        >>> a = Codes.from_signs([[1, 1, 1, 1]])
        >>> b = Codes.from_signs([[1, 1, 1, 1], [1, -1, -1, -1]])
        >>> hamming_distances(a, b), hamming_distances(a, b, bits=2)
        (array([[0, 3]], dtype=uint16), array([[0, 1]], dtype=uint16))
    """
    length = common_length(a, b, bits)
    out = np.empty((len(a), len(b)), np.uint16)
    sides = np.ascontiguousarray(a.planes(length).T), b.planes(length), last_mask(length)
    kernels.over_queries(lambda first, last: kernels.all_distances(first, last, *sides, out), len(a), threads)
    return out


def nearest(
    queries: Codes, database: Codes, k: int, bits: int | None = None, *, threads: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """The k nearest database rows of each query, ordered by (distance, row).

    Args:
        queries: Q codes. database: N codes. k: at least 1; all N rows when larger.
        bits: prefix length, 1 to B; the full length when None.
        threads: all processors when None; the result is the same for any number.

    Returns:
        Rows (Q, min(k, N)) int64 and their distances (Q, min(k, N)) uint16.

    Raises:
        DataError: k < 1, or `bits` longer than the codes.

    Example:
        >>> codes = Codes.from_signs([[1, 1], [-1, 1], [1, 1]])
        >>> nearest(codes.take([0]), codes, k=2)
        (array([[0, 2]]), array([[0, 0]], dtype=uint16))
    """
    length = common_length(queries, database, bits)
    if k < 1:
        raise DataError(f"k: need at least 1 neighbour, got {k}.")
    shape = (len(queries), min(k, len(database)))
    rows, distances = np.empty(shape, np.int64), np.empty(shape, np.uint16)
    sides = np.ascontiguousarray(queries.planes(length).T), database.planes(length), last_mask(length)
    if rows.size:
        kernels.over_queries(
            lambda first, last: kernels.nearest(first, last, *sides, length, rows, distances), len(queries), threads
        )
    return rows, distances
