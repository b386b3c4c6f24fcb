"""Near-duplicates: groups of items whose codes are within a Hamming radius, directly or through others. Exact.

Equal codes are joined first, by sorting. The different codes are then compared in one of two ways, whichever needs
fewer comparisons by a sample:

* by parts: of two codes that differ in at most r bits, one of r + 1 parts must be equal, so only codes with an equal
  part are compared. Each part is a sort and its buckets of equal parts.
* all pairs: one bucket.

Pairs are never kept: each joins two groups at once, so memory is proportional to the number of items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.codes import duplicate_kernels
from multibit.codes.distance import check_radius, run
from multibit.codes.duplicate_kernels import Blocks
from multibit.codes.packing import WORD, Codes, last_mask
from multibit.errors import require_known
from multibit.machine import processors
from multibit.progress import track

Comparison = Literal["parts", "all pairs"]
COMPARISONS: tuple[Comparison, ...] = ("parts", "all pairs")

ROWS = 64  # codes of a block, which share a pass over the later codes of their bucket
SHARE = 1 << 32  # comparisons of a thread, about a second, after which progress is reported and Ctrl-C is heard
SAMPLE = 1 << 14  # codes from which the comparisons of each way are estimated
SORTING = 1_500  # comparisons that take as long as sorting one code by one part
KEY_BITS = 64  # of a part that are sorted; a longer part is compared by its first ones


@dataclass(frozen=True, eq=False)
class NearDuplicates:
    """Groups of two or more near-duplicates among N items.

    Attributes:
        count: N. radius, bits: of the search.
        rows: (n,) int64, the items that are in a group: group by group, ascending in each.
        groups: (n,) int64, number of the group, from 0, in order of its first item.
        distances: (n,) uint16, Hamming distance to the first item of the group; it may exceed the radius, where items
            are joined through others.
    """

    count: int
    radius: int
    bits: int
    rows: Rows
    groups: Rows
    distances: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __repr__(self) -> str:
        return (
            f"NearDuplicates({len(self):,} groups of {len(self.rows):,} of {self.count:,} items, "
            f"within {self.radius} of {self.bits} bits)"
        )

    @cached_property
    def starts(self) -> Rows:
        """(groups + 1,) int64; group g has the items rows[starts[g]:starts[g + 1]]."""
        firsts = np.flatnonzero(np.diff(self.groups, prepend=-1))
        return np.append(firsts, len(self.rows))

    @property
    def sizes(self) -> Rows:
        """(groups,) int64, number of items of each group."""
        return np.diff(self.starts)


def near_duplicates(
    codes: Codes,
    radius: int,
    bits: int | None = None,
    *,
    comparison: Comparison | None = None,
    threads: int | None = None,
) -> NearDuplicates:
    """Group the items whose codes differ in at most `radius` bits, directly or through others (connected components).

    Items with several codes are joined where any of their codes are near.

    Args:
        codes: N items. radius: largest distance of two near-duplicates.
        bits: prefix length, 1 to B; the full length when None.
        comparison: "parts" or "all pairs", see the module; the faster one when None. The result is the same.
        threads: all processors when None; the result is the same for any number.

    Raises:
        DataError: radius not whole or negative, or `bits` longer than the codes.

    Example:
        >>> codes = Codes.from_bits([[0, 0, 0], [1, 1, 1], [0, 0, 1], [0, 0, 0]])
        >>> found = near_duplicates(codes, radius=1)
        >>> found.rows, found.groups, found.distances
        (array([0, 2, 3]), array([0, 0, 0]), array([0, 1, 0], dtype=uint16))
    """
    length = codes.check_length(bits)
    limit = min(check_radius(radius, "radius"), length)
    if comparison is not None:
        require_known("comparison", comparison, COMPARISONS)
    words = codes.planes(length)
    if length % WORD:
        words = np.concatenate([words[:-1], words[-1:] & last_mask(length)])
    parents = np.arange(len(codes))
    firsts = _first_equal(words)
    different = np.flatnonzero(firsts == np.arange(len(firsts)))
    others = np.flatnonzero(firsts != np.arange(len(firsts)))
    duplicate_kernels.unite_all(parents, firsts[others] // codes.views, others // codes.views)
    del firsts, others
    if limit == length:
        parents[:] = 0
    elif limit and len(different) > 1:
        planes = words if len(different) == words.shape[1] else np.ascontiguousarray(words[:, different])
        joined = _joined(planes, length, limit, comparison, threads or processors())
        duplicate_kernels.unite_all(parents, different // codes.views, different[joined] // codes.views)
    duplicate_kernels.roots(parents)
    return _of_groups(parents, words, codes.views, radius, length, threads)


def _first_equal(words: NDArray[np.uint16]) -> Rows:
    """(N V,) the first code that each code equals; itself where none before it does."""
    keys = [_part(words, start, start + KEY_BITS) for start in range(0, WORD * len(words), KEY_BITS)]
    order = np.lexsort(keys)  # stable: the first of equal codes comes first
    new = np.zeros(len(order), bool)
    new[:1] = True
    for key in keys:
        ordered = key[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    first = np.empty(len(order), np.int64)
    first[order] = np.repeat(order[new], np.diff(np.append(np.flatnonzero(new), len(order))))
    return first


def _part(words: NDArray[np.uint16], begin: int, end: int) -> NDArray[np.uint64]:
    """Bits begin..end - 1 of each code, at most `KEY_BITS` of them, as a number."""
    end = min(end, begin + KEY_BITS, WORD * len(words))
    key = np.zeros(words.shape[1], np.uint64)
    for w in range(begin // WORD, -(-end // WORD)):
        first, last = max(begin, WORD * w), min(end, WORD * (w + 1))
        inside = (words[w].astype(np.uint64) >> np.uint64(first - WORD * w)) & np.uint64((1 << (last - first)) - 1)
        key |= inside << np.uint64(first - begin)
    return key


def _joined(planes: NDArray[np.uint16], length: int, radius: int, comparison: Comparison | None, threads: int) -> Rows:
    """(U,) a member of the group of each of U different codes; the same one for all codes of a group."""
    count = planes.shape[1]
    parts = [(length * i // (radius + 1), length * (i + 1) // (radius + 1)) for i in range(radius + 1)]
    by_parts = _parts_are_faster(planes, parts) if comparison is None else comparison == "parts"
    buckets = (_buckets(_part(planes, *part)) for part in parts) if by_parts else iter([_one_bucket(count)])
    parents = np.arange(count, dtype=np.int32 if count < 1 << 31 else np.int64)
    with track("Comparing codes", count * (len(parts) if by_parts else 1), "codes") as advance:
        for order, edges in buckets:
            advance(count - len(order))  # the others have no equal part
            if not len(order):
                continue
            ordered = np.ascontiguousarray(planes[:, order])
            blocks = Blocks(ordered, np.ascontiguousarray(ordered.T), order, *_blocks(edges))
            for rows in _join(blocks, radius + 1, parents, threads):
                advance(rows)
    duplicate_kernels.roots(parents)
    return parents.astype(np.int64)


def _parts_are_faster(planes: NDArray[np.uint16], parts: list[tuple[int, int]]) -> bool:
    """Whether comparing by parts needs less time than all pairs, from the buckets of a sample."""
    count = planes.shape[1]
    sample = planes
    if count > SAMPLE:
        sample = planes[:, np.sort(np.random.default_rng(0).choice(count, SAMPLE, replace=False))]
    pairs = 0.0
    for part in parts:
        _, sizes = np.unique(_part(sample, *part), return_counts=True)
        pairs += float((sizes * (sizes - 1.0)).sum() / 2)
    scale = count / sample.shape[1]
    return bool(pairs * scale**2 + SORTING * count * len(parts) < count * (count - 1) / 2)


def _buckets(keys: NDArray[np.uint64]) -> tuple[Rows, Rows]:
    """Codes that share their key with another one, key by key (n,), and where each bucket begins (buckets + 1,)."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    sizes = np.diff(np.append(begins, len(keys)))
    shared = sizes > 1
    return order[np.repeat(shared, sizes)], np.concatenate([[0], np.cumsum(sizes[shared])])


def _one_bucket(count: int) -> tuple[Rows, Rows]:
    return np.arange(count), np.array([0, count])


def _blocks(edges: Rows) -> tuple[Rows, Rows, Rows]:
    """`Blocks.begins`, `ends` and `stops` of buckets: at most `ROWS` codes each."""
    sizes = np.diff(edges)
    many = -(-sizes // ROWS)  # blocks of each bucket
    bucket = np.repeat(np.arange(len(sizes)), many)
    number = np.arange(len(bucket)) - np.repeat(np.cumsum(many) - many, many)  # of the block in its bucket
    begins, stops = edges[bucket] + ROWS * number, edges[bucket + 1]
    return begins, np.minimum(begins + ROWS, stops), stops


def _join(blocks: Blocks, limit: int, parents: NDArray[Any], threads: int) -> Iterator[int]:
    """Join near codes in rounds, in which each thread takes one share of the blocks; yields the codes of each round."""
    rows = blocks.ends - blocks.begins
    work = np.cumsum(rows * (blocks.stops - blocks.begins))
    shares = max(threads, int(-(-work[-1] // SHARE)))
    cuts = np.searchsorted(work, work[-1] * np.arange(1, shares) / shares, side="right")
    cuts = np.unique(np.concatenate([[0], cuts, [len(rows)]]))
    for start in range(0, len(cuts) - 1, threads):
        mine = cuts[start : start + threads + 1]
        known = np.tile(parents, (len(mine) - 1, 1))
        run(duplicate_kernels.join_near, len(mine) - 1, threads, blocks, mine, limit, known)
        for each in known:
            changed = np.flatnonzero(each != parents)
            duplicate_kernels.unite_all(parents, changed, each[changed].astype(np.int64))
        yield int(rows[mine[0] : mine[-1]].sum())


def _of_groups(
    parents: Rows, words: NDArray[np.uint16], views: int, radius: int, length: int, threads: int | None
) -> NearDuplicates:
    """The result, from the first item of the group of each item."""
    members = np.flatnonzero(np.bincount(parents, minlength=len(parents))[parents] > 1)
    rows = members[np.argsort(parents[members], kind="stable")]
    _, groups = np.unique(parents[rows], return_inverse=True)
    distances = np.zeros(len(rows), np.uint16)
    run(duplicate_kernels.distances_between, len(rows), threads, words, views, parents[rows], rows, distances)
    return NearDuplicates(len(parents), radius, length, rows, groups.astype(np.int64), distances)
