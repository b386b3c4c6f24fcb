"""Exact Hamming distances and exact nearest codes at any prefix length: the typed interface of the kernels.

The rows of a result are items. Where they have several views, their distance is that of their nearest pair of codes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import Rows, require_finite
from multibit.codes import kernels, score_kernels, table_kernels
from multibit.codes.compiling import is_compiled, over_queries
from multibit.codes.kernels import Found, Scan
from multibit.codes.packing import WORD, Codes, last_mask, require_codes
from multibit.errors import DataError, require_integer
from multibit.machine import threads_or_all
from multibit.progress import notice

Allowed = NDArray[np.bool_] | None
ATTEMPTS = 32  # more than the number of functions in any kernel
_EVERY_ROW = np.zeros(0, np.uint8)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest database rows of Q queries, ordered by (distance, row).

    Attributes:
        rows: (Q, k) int64. distances: (Q, k) uint16 Hamming distances.
        counts: (Q,) int64, number of rows found; later rows are -1.
    """

    rows: Rows
    distances: NDArray[np.uint16]
    counts: Rows

    @classmethod
    def allocate(cls, queries: int, k: int, database: Codes, allowed: Allowed = None) -> Neighbours:
        """Allocate the result arrays, with min(k, allowed rows) columns and nothing found yet."""
        return cls(*_allocate(queries, k, database, allowed, np.uint16))


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """The database rows of the largest scores for Q relaxed queries, ordered by (-score, row).

    Attributes:
        rows: (Q, k) int64. scores: (Q, k) float64 inner products.
        counts: (Q,) int64, number of rows found; later rows are -1.
    """

    rows: Rows
    scores: NDArray[np.float64]
    counts: Rows


def common_length(a: Codes, b: Codes, bits: int | None) -> int:
    """The prefix length at which to compare two sets of codes; the full length when None.

    Raises:
        DataError: the codes differ in length and no `bits` is given, or `bits` is longer than one of them; or arrays
            instead of codes.
    """
    for codes in (a, b):
        require_codes(codes)
    if bits is None and a.bits != b.bits:
        raise DataError(
            f"codes of {a.bits} and {b.bits} bits cannot be compared at their full length.",
            hint="Compare a common prefix: `bits`.",
        )
    return b.check_length(a.check_length(bits))


def hamming_distances(a: Codes, b: Codes, bits: int | None = None, *, threads: int | None = None) -> NDArray[np.uint16]:
    """Hamming distance of every pair of items.

    Args:
        a: codes of Q items. b: codes of N items; each side may have several views.
        bits: prefix length, 1 to B; the full length when None.
        threads: all processors when None.

    Returns:
        (Q, N) uint16, number of differing bits (`eq:hamming-distance`), of the nearest pair of views.

    Raises:
        DataError: `bits` is longer than the codes.

    Example:
        >>> a = Codes.binarize([[1, 1, 1, 1]])
        >>> b = Codes.binarize([[1, 1, 1, 1], [1, -1, -1, -1]])
        >>> hamming_distances(a, b), hamming_distances(a, b, bits=2)
        (array([[0, 3]], dtype=uint16), array([[0, 1]], dtype=uint16))
        >>> hamming_distances(a, Codes.binarize([[[1, -1, -1, -1], [1, 1, 1, 1]]]))  # one item with two codes
        array([[0]], dtype=uint16)
    """
    scan = scan_of(a, b, common_length(a, b, bits))
    out = np.empty((len(a), len(b)), np.uint16)
    run(kernels.all_distances, len(a), threads, scan, out)
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
        max_distance: largest distance to be found; any when None.
        threads: at least 1; all processors when None; the result is the same for any number.

    Returns:
        Neighbours with min(k, allowed rows) columns.

    Raises:
        DataError: k or max_distance not whole or out of range, `allowed` of another length, or `bits` longer than the
            codes.

    Example:
        >>> codes = Codes.binarize([[1, 1], [-1, 1], [1, 1]])
        >>> found = nearest(codes.take([0]), codes, k=2)
        >>> found.rows, found.distances
        (array([[0, 2]]), array([[0, 0]], dtype=uint16))
    """
    length = common_length(queries, database, bits)
    check_k(k)
    radius = length if max_distance is None else min(length, check_radius(max_distance, "max_distance"))
    check_allowed(allowed, database)
    found = Neighbours.allocate(len(queries), k, database, allowed)
    if found.rows.size:
        scan, out = scan_of(queries, database, length, allowed), Found(found.rows, found.distances, found.counts)
        if _by_tables(scan, len(queries), length):
            asked = table_kernels.nibbles_of(scan.queries, length)
            run(table_kernels.nearest, len(queries), threads, scan, asked, radius + 1, out)
        else:
            run(kernels.nearest, len(queries), threads, scan, radius + 1, out)
    return found


def _by_tables(scan: Scan, queries: int, length: int) -> bool:
    """Whether a search uses `table_kernels`: where they are faster, and can do it."""
    able = scan.asked * scan.views == 1 and length <= table_kernels.MOST_BITS
    return able and queries >= table_kernels.FEWEST and table_kernels.is_faster()


@dataclass(frozen=True, eq=False)
class WithinRadius:
    """All database rows within a radius of Q queries, ordered by (distance, row).

    Attributes:
        offsets: (Q+1,) int64; the hits of query q are rows[offsets[q]:offsets[q + 1]].
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
        DataError: radius not whole or negative, `allowed` of another length, or `bits` longer than the codes.

    Example:
        >>> codes = Codes.binarize([[1, 1], [-1, 1], [1, 1]])
        >>> within(codes, codes, radius=0).rows
        array([0, 2, 1, 0, 2])
    """
    length = common_length(queries, database, bits)
    limit = min(length, check_radius(radius, "radius")) + 1
    counts = distance_histogram(queries, database, bits, allowed=allowed, threads=threads)[:, :limit]
    ends = np.cumsum(counts)  # (Q * limit,), in the order of the result
    place = (ends - counts.ravel()).reshape(counts.shape)
    total = int(ends[-1]) if len(ends) else 0
    rows, distances = np.empty(total, np.int64), np.empty(total, np.uint16)
    offsets = np.concatenate([[0], np.cumsum(counts.sum(axis=1))])
    scan = scan_of(queries, database, length, allowed)
    run(kernels.place_within, len(queries), threads, scan, limit, place, rows, distances)
    return WithinRadius(offsets, rows, distances)


def distance_histogram(
    queries: Codes, database: Codes, bits: int | None = None, *, allowed: Allowed = None, threads: int | None = None
) -> NDArray[np.int64]:
    """Number of database rows at each distance: (Q, B+1) int64.

    Raises:
        DataError: `allowed` of another length, or `bits` longer than the codes.

    Example:
        >>> codes = Codes.binarize([[1, 1], [-1, 1], [1, 1]])
        >>> distance_histogram(codes.take([0]), codes)
        array([[2, 1, 0]])
    """
    length = common_length(queries, database, bits)
    check_allowed(allowed, database)
    out = np.zeros((len(queries), length + 1), np.int64)
    run(kernels.count_distances, len(queries), threads, scan_of(queries, database, length, allowed), out)
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
) -> ScoredRows:
    """The k database rows of the largest inner product with relaxed queries (asymmetric search).

    The query keeps its values in (-1, 1) and the database stays binary, so the score breaks ties of the Hamming
    distance; for values of +-1 it is B - 2 x distance.

    Args:
        values: (Q, B) relaxed codes. database: N codes. k: at least 1. bits: prefix length; the full length when None.
        candidates: score only this many nearest rows by Hamming distance (two stages); all rows when None.
        allowed, threads: as in `nearest`.

    Returns:
        ScoredRows with min(k, allowed rows) columns.

    Raises:
        DataError: values of another width or not finite, k < 1, candidates < k, `bits` longer than the codes, or items
            with several views, for which the score is not defined.

    Example:
        >>> codes = Codes.binarize([[1, 1], [-1, 1], [1, -1]])
        >>> nearest_relaxed([[0.9, 0.1]], codes, k=3).rows
        array([[0, 2, 1]])
    """
    array = check_relaxed(values, database, bits)
    check_k(k)
    check_allowed(allowed, database)
    found = ScoredRows(*_allocate(len(array), k, database, allowed, np.float64))
    if candidates is not None:
        check_candidates(candidates, found.rows.shape[1])
        near = nearest(Codes.binarize(array), database, candidates, array.shape[1], allowed=allowed, threads=threads)
        return best_of(array, database, near, k, threads=threads)
    if found.rows.size:
        tables, planes = _byte_tables(array), database.planes(array.shape[1])
        first = Found(found.rows, found.scores, found.counts)
        run(score_kernels.best_scores, len(array), threads, planes, _as_mask(allowed), tables, first)
    return _best(found, k)


def best_of(
    values: NDArray[np.float64], database: Codes, candidates: Neighbours, k: int, *, threads: int | None = None
) -> ScoredRows:
    """The k candidates of each relaxed query with the largest inner product.

    Args:
        values: (Q, bits) checked relaxed codes, see `check_relaxed`. candidates: rows of the database.
    """
    rows = candidates.rows
    found = ScoredRows(rows, np.full(rows.shape, -np.inf), candidates.counts)
    if rows.size:
        tables, planes = _byte_tables(values), database.planes(values.shape[1])
        first = Found(found.rows, found.scores, found.counts)
        run(score_kernels.score_rows, len(values), threads, planes, tables, first)
    return _best(found, k)


def _best(found: ScoredRows, k: int) -> ScoredRows:
    """The k best rows by (-score, row)."""
    order = np.lexsort((found.rows, -found.scores), axis=1)[:, :k]
    rows = np.take_along_axis(found.rows, order, 1)
    return ScoredRows(rows, np.take_along_axis(found.scores, order, 1), np.minimum(found.counts, k))


def scan_of(queries: Codes, database: Codes, length: int, allowed: Allowed = None) -> Scan:
    """What the kernels compare at a prefix length."""
    turned = np.ascontiguousarray(queries.planes(length).T)  # (Q A, W)
    return Scan(turned, database.planes(length), last_mask(length), _as_mask(allowed), queries.views, database.views)


def run(kernel: Any, queries: int, threads: int | None, *arguments: Any) -> None:
    """Run a kernel over all queries; the first call on a machine compiles it.

    Raises:
        ConfigError: `threads` not whole, or less than 1.
    """
    threads = threads_or_all(threads)  # also without queries

    def work(first: int, last: int) -> None:
        kernel(first, last, *arguments)

    if not queries:
        return
    if not kernel.signatures:  # not in this process; what is on disk may be for another processor
        said = "Compiling for this processor: once, a few seconds"
        with contextlib.nullcontext() if is_compiled(kernel) else notice(said):
            _compile(work)
    over_queries(work, queries, threads)


def _compile(work: Callable[[int, int], None]) -> None:
    """Compile a kernel by running it on an empty range of queries.

    Where the result cannot be cached on disk, numba raises after each function that it has compiled, but keeps that
    function in memory; so call again until all are compiled.
    """
    for _ in range(ATTEMPTS):
        with contextlib.suppress(OSError):
            work(0, 0)
            return


def check_k(k: int) -> int:
    """`k`, if it is a whole number of at least 1.

    Raises:
        DataError: it is not.
    """
    return require_integer(k, 1, "k")


def check_radius(radius: int, option: str) -> int:
    """A largest distance, if it is a whole number of at least 0.

    Raises:
        DataError: it is not; names `option`, the argument that gave it.
    """
    return require_integer(radius, 0, option)


def check_candidates(candidates: int, hits: int) -> int:
    """A number of candidates, if it is whole and not smaller than that of the hits.

    Raises:
        DataError: it is not.
    """
    if require_integer(candidates, 0, "candidates") < hits:
        raise DataError(f"{candidates} candidates are fewer than the {hits} hits wanted.", option="candidates")
    return candidates


def check_allowed(allowed: Allowed, database: Codes) -> None:
    """Refuse a filter of another length.

    Raises:
        DataError: with both lengths.
    """
    if allowed is not None and np.shape(allowed) != (len(database),):
        raise DataError(
            f"need one value for each of the {len(database)} codes, got shape {np.shape(allowed)}.", option="allowed"
        )


def check_relaxed(values: ArrayLike, database: Codes, bits: int | None) -> NDArray[np.float64]:
    """Relaxed queries, cut to a prefix of the codes: (Q, length) float64.

    Raises:
        DataError: another shape, not finite or so large that their inner products are not, `bits` longer than the
            codes, or items with several views.
    """
    database.require_one_view("Asymmetric search", "Search with the binary codes: `nearest`.")
    length, array = database.check_length(bits), np.asarray(values, np.float64)
    if array.ndim != 2 or array.shape[1] < length:
        raise DataError(f"need (Q, {length} or more) values, got shape {array.shape}.", field="relaxed queries")
    array = array[:, :length]
    require_finite(array, "relaxed queries")
    if np.abs(array).max(initial=0) > np.finfo(np.float64).max / length:
        raise DataError(
            "values so large that their sum overflows; relaxed codes are in (-1, 1).", field="relaxed queries"
        )
    return array


def _allocate(queries: int, k: int, database: Codes, allowed: Allowed, dtype: Any) -> tuple[Rows, NDArray[Any], Rows]:
    """Rows (Q, min(k, allowed rows)) of -1, values of the same shape, and counts (Q,), both 0."""
    shape = queries, min(k, len(database) if allowed is None else int(np.count_nonzero(allowed)))
    return np.full(shape, -1, np.int64), np.zeros(shape, dtype), np.zeros(queries, np.int64)


def _as_mask(allowed: Allowed) -> NDArray[np.uint8]:
    """`Scan.allowed`: empty when every row is allowed."""
    return _EVERY_ROW if allowed is None else np.ascontiguousarray(allowed, np.bool_).view(np.uint8)


def _byte_tables(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(Q, 2 W, 256): contribution of each byte value to the inner product, by position; bits past the length add 0."""
    count, length = values.shape
    padded = np.zeros((count, -(-length // WORD) * WORD))
    padded[:, :length] = values
    signs = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") * 2.0 - 1.0  # (256, 8)
    return np.ascontiguousarray(padded.reshape(count, padded.shape[1] // 8, 8) @ signs.T)
