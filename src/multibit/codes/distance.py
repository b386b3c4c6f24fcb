"""Exact Hamming distances and exact nearest codes, at any prefix length: the typed face of the kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.codes import kernels
from multibit.codes.packing import WORD, Codes, last_mask
from multibit.errors import DataError
from multibit.progress import console

Rows = NDArray[np.int64]
Allowed = NDArray[np.bool_] | None
ATTEMPTS = 32  # more than there are functions in any kernel
_EVERY_ROW = np.zeros(0, np.uint8)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest database rows of Q queries, best first, equal ones by row.

    Attributes:
        rows: (Q, k) int64. distances: (Q, k) uint16 Hamming distances, or float64 inner products, largest first.
        counts: (Q,) int64, how many of the k were found; past them rows are -1.
    """

    rows: Rows
    distances: NDArray[Any]
    counts: Rows


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
    sides = prefix_sides(a, b, common_length(a, b, bits))
    out = np.empty((len(a), len(b)), np.uint16)
    run(kernels.all_distances, len(a), threads, *sides, out)
    return out


def nearest(
    queries: Codes,
    database: Codes,
    k: int,
    bits: int | None = None,
    *,
    allowed: Allowed = None,
    max_distance: int | None = None,
    threads: int | None = None,
) -> Neighbours:
    """The k nearest database rows of each query, ordered by (distance, row).

    Args:
        queries: Q codes. database: N codes. k: at least 1; all N rows when larger.
        bits: prefix length, 1 to B; the full length when None.
        allowed: (N,) bool, the rows that may be found; all when None.
        max_distance: only rows at most this far; any when None.
        threads: all processors when None; the result is the same for any number.

    Returns:
        Neighbours with min(k, allowed rows) columns.

    Raises:
        DataError: k < 1, max_distance < 0, `allowed` of another length, or `bits` longer than the codes.

    Example:
        >>> codes = Codes.from_signs([[1, 1], [-1, 1], [1, 1]])
        >>> found = nearest(codes.take([0]), codes, k=2)
        >>> found.rows, found.distances
        (array([[0, 2]]), array([[0, 0]], dtype=uint16))
    """
    length = common_length(queries, database, bits)
    found = room_for(len(queries), k, database, allowed, np.uint16)
    limit = length + 1 if max_distance is None else min(length, _radius(max_distance)) + 1
    sides = prefix_sides(queries, database, length)
    if found.rows.size:
        run(
            kernels.nearest, len(queries), threads, *sides, as_mask(allowed), limit,
            found.rows, found.distances, found.counts,
        )  # fmt: skip
    return found


@dataclass(frozen=True, eq=False)
class WithinRadius:
    """All database rows within a radius of Q queries, ordered by (distance, row).

    Attributes:
        offsets: (Q+1,) int64, query q's hits are rows[offsets[q]:offsets[q + 1]].
        rows: (total,) int64. distances: (total,) uint16.
    """

    offsets: Rows
    rows: Rows
    distances: NDArray[np.uint16]


def within(
    queries: Codes,
    database: Codes,
    radius: int,
    bits: int | None = None,
    *,
    allowed: Allowed = None,
    threads: int | None = None,
) -> WithinRadius:
    """Every database row at most `radius` bits away (range search).

    Raises:
        DataError: radius < 0, `allowed` of another length, or `bits` longer than the codes.

    Example:
        >>> codes = Codes.from_signs([[1, 1], [-1, 1], [1, 1]])
        >>> within(codes, codes, radius=0).rows
        array([0, 2, 1, 0, 2])
    """
    length = common_length(queries, database, bits)
    limit = min(length, _radius(radius)) + 1
    counts = distance_histogram(queries, database, bits, allowed=allowed, threads=threads)[:, :limit]
    ends = np.cumsum(counts)  # (Q * limit,), in the order of the result
    place = (ends - counts.ravel()).reshape(counts.shape)
    total = int(ends[-1]) if len(ends) else 0
    rows, distances = np.empty(total, np.int64), np.empty(total, np.uint16)
    offsets = np.concatenate([[0], np.cumsum(counts.sum(axis=1))])
    sides = prefix_sides(queries, database, length)
    run(kernels.place_within, len(queries), threads, *sides, as_mask(allowed), limit, place, rows, distances)
    return WithinRadius(offsets, rows, distances)


def distance_histogram(
    queries: Codes, database: Codes, bits: int | None = None, *, allowed: Allowed = None, threads: int | None = None
) -> NDArray[np.int64]:
    """How many database rows lie at each distance: (Q, B+1) int64.

    Example:
        >>> codes = Codes.from_signs([[1, 1], [-1, 1], [1, 1]])
        >>> distance_histogram(codes.take([0]), codes)
        array([[2, 1, 0]])
    """
    length = common_length(queries, database, bits)
    check_allowed(allowed, database)
    out = np.zeros((len(queries), length + 1), np.int64)
    run(kernels.count_distances, len(queries), threads, *prefix_sides(queries, database, length), as_mask(allowed), out)
    return out


def nearest_relaxed(
    values: ArrayLike,
    database: Codes,
    k: int,
    bits: int | None = None,
    *,
    candidates: int | None = None,
    allowed: Allowed = None,
    threads: int | None = None,
) -> Neighbours:
    """The k database rows of the largest inner product with relaxed queries (asymmetric search).

    The query keeps its values in (-1, 1), the database stays binary, so the score splits the ties that Hamming distance
    leaves; on values of +-1 it is B - 2 x distance.

    Args:
        values: (Q, B) relaxed codes. database: N codes. k: at least 1. bits: prefix length; the full length when None.
        candidates: score only this many nearest rows by Hamming distance (two stages); all rows when None.
        allowed, threads: as in `nearest`.

    Returns:
        Neighbours by (-score, row), scores as float64 in `distances`.

    Raises:
        DataError: values of another width or not finite, k < 1, candidates < k, or `bits` longer than the codes.

    Example:
        >>> codes = Codes.from_signs([[1, 1], [-1, 1], [1, -1]])
        >>> nearest_relaxed([[0.9, 0.1]], codes, k=3).rows
        array([[0, 2, 1]])
    """
    array = np.asarray(values, np.float64)
    length = database.check_length(bits)
    if array.ndim != 2 or array.shape[1] < length:
        raise DataError(f"relaxed queries: need (Q, {length} or more) values, got shape {array.shape}.")
    if not np.isfinite(array[:, :length]).all():
        row, column = np.argwhere(~np.isfinite(array[:, :length]))[0]
        raise DataError(f"relaxed queries: row {row}, column {column} is {array[row, column]}; it must be finite.")
    if np.abs(array[:, :length]).max(initial=0) > np.finfo(np.float64).max / length:
        raise DataError("relaxed queries: values so large that their sum overflows; those of a code are in (-1, 1).")
    found = room_for(len(array), k, database, allowed, np.float64)
    tables, planes = _byte_tables(array[:, :length]), database.planes(length)
    if candidates is not None and candidates < found.rows.shape[1]:
        raise DataError(f"candidates: {candidates} cannot hold the {found.rows.shape[1]} hits asked for.")
    if not found.rows.size:
        return found
    if candidates is None:
        run(
            kernels.best_scores, len(array), threads, planes, as_mask(allowed), tables,
            found.rows, found.distances, found.counts,
        )  # fmt: skip
        first = found
    else:
        signs = Codes.from_signs(array[:, :length])
        first = nearest(signs, database, candidates, length, allowed=allowed, threads=threads)
        first = Neighbours(first.rows, np.full(first.rows.shape, -np.inf), first.counts)
        run(kernels.score_rows, len(array), threads, planes, tables, first.rows, first.counts, first.distances)
    order = np.lexsort((first.rows, -first.distances), axis=1)[:, : found.rows.shape[1]]
    return Neighbours(
        np.take_along_axis(first.rows, order, 1),
        np.take_along_axis(first.distances, order, 1),
        np.minimum(first.counts, found.rows.shape[1]),
    )


def prefix_sides(
    queries: Codes, database: Codes, length: int
) -> tuple[NDArray[np.uint16], NDArray[np.uint16], np.uint16]:
    """What the kernels take: queries (Q, W), planes (W, N), mask of the last word."""
    return np.ascontiguousarray(queries.planes(length).T), database.planes(length), last_mask(length)


def run(kernel: Any, queries: int, threads: int | None, *arguments: Any) -> None:
    """Run a kernel over all queries; the first time on a machine, say that it is being compiled."""

    def work(first: int, last: int) -> None:
        kernel(first, last, *arguments)

    if not queries:
        return
    if kernels.is_compiled(kernel):
        kernels.over_queries(work, queries, threads)
    else:
        with console.status("Compiling for this processor, once: some seconds"):
            _compile(work)
        kernels.over_queries(work, queries, threads)


def _compile(work: Callable[[int, int], None]) -> None:
    """Compile a kernel by running it on nothing.

    Where the result cannot be kept on disk, numba fails after each function that it has compiled, but has it then: so
    ask again until all are there.
    """
    for _ in range(ATTEMPTS):
        with contextlib.suppress(OSError):
            work(0, 0)
            return


def check_allowed(allowed: Allowed, database: Codes) -> None:
    """Refuse a filter of another length."""
    if allowed is not None and np.shape(allowed) != (len(database),):
        raise DataError(f"allowed: need a row for each of the {len(database)} codes, got shape {np.shape(allowed)}.")


def room_for(queries: int, k: int, database: Codes, allowed: Allowed, dtype: Any) -> Neighbours:
    """Room for the answer."""
    if not isinstance(k, int | np.integer):
        raise DataError(f"k: must be a whole number, got {k!r}.")
    if k < 1:
        raise DataError(f"k: need at least 1 neighbour, got {k}.")
    check_allowed(allowed, database)
    columns = min(k, len(database) if allowed is None else int(np.count_nonzero(allowed)))
    shape = (queries, columns)
    return Neighbours(np.full(shape, -1, np.int64), np.zeros(shape, dtype), np.zeros(queries, np.int64))


def as_mask(allowed: Allowed) -> NDArray[np.uint8]:
    """What the kernels take as `allowed`: nothing when every row is."""
    return _EVERY_ROW if allowed is None else np.ascontiguousarray(allowed, np.bool_).view(np.uint8)


def _radius(radius: int) -> int:
    if not isinstance(radius, int | np.integer):
        raise DataError(f"the largest distance must be a whole number, got {radius!r}.")
    if radius < 0:
        raise DataError(f"the largest distance must be at least 0, got {radius}.")
    return radius


def _byte_tables(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(Q, 2 W, 256): what each byte value adds to the inner product at each place; bits past the length add nothing."""
    count, length = values.shape
    padded = np.zeros((count, -(-length // WORD) * WORD))
    padded[:, :length] = values
    signs = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") * 2.0 - 1.0  # (256, 8)
    return np.ascontiguousarray(padded.reshape(count, padded.shape[1] // 8, 8) @ signs.T)
