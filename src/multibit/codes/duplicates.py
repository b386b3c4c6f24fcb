"""Near-duplicates: groups of items whose codes are within a Hamming radius, directly or through others. Exact.

Equal codes are joined first, by sorting. The different codes are then compared in one of two ways, whichever needs
fewer comparisons by a sample:

* by parts: of two codes that differ in at most r bits, one of r + 1 parts must be equal, so only codes with an equal
  part are compared. Each part is a sort and its buckets of equal parts.
* all pairs: one bucket.

Pairs are never kept: each joins two groups at once. Codes are sorted in sets, those with equal first bits together, so
memory holds one set at a time, and for each code its group and whether it is compared: five bytes, the codes excepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.codes import duplicate_kernels
from multibit.codes.distance import check_radius, run
from multibit.codes.duplicate_kernels import Blocks
from multibit.codes.packing import WORD, Codes, last_mask, require_codes
from multibit.errors import require_known
from multibit.machine import threads_or_all
from multibit.progress import track

Comparison = Literal["parts", "all pairs"]
COMPARISONS: tuple[Comparison, ...] = ("parts", "all pairs")

SET = 1 << 21  # codes that are sorted at a time
MOST_SETS = 64  # as each set is found by reading all codes
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
        threads: at least 1; all processors when None; the result is the same for any number.

    Raises:
        DataError: radius not whole or negative, or `bits` longer than the codes.

    Example:
        >>> codes = Codes.from_bits([[0, 0, 0], [1, 1, 1], [0, 0, 1], [0, 0, 0]])
        >>> found = near_duplicates(codes, radius=1)
        >>> found.rows, found.groups, found.distances
        (array([0, 2, 3]), array([0, 0, 0]), array([0, 1, 0], dtype=uint16))
    """
    require_codes(codes)
    return near_duplicates_among([codes], np.ones(len(codes), bool), radius, bits, comparison, threads)


def near_duplicates_among(
    pieces: Sequence[Codes],
    chosen: NDArray[np.bool_],
    radius: int,
    bits: int | None = None,
    comparison: Comparison | None = None,
    threads: int | None = None,
) -> NearDuplicates:
    """Near-duplicates among some items whose codes are in several pieces, which are never joined.

    Args:
        pieces: at least one, of one length and number of views, with N items in all, which are numbered on.
        chosen: (N,) which of them may be found; the result counts these, but its rows are of all N.
        radius, bits, comparison, threads: as for `near_duplicates`.

    Raises:
        DataError: as `near_duplicates`.
    """
    length = pieces[0].check_length(bits)
    limit = min(check_radius(radius, "radius"), length)
    if comparison is not None:
        require_known("comparison", comparison, COMPARISONS)
    source = _Source(pieces, length)
    parents = np.arange(len(chosen), dtype=np.int32 if len(source) < 1 << 31 else np.int64)
    different = np.repeat(chosen, source.views)
    if limit == length:
        parents[chosen] = chosen.argmax() if len(chosen) else 0
    else:
        _join_equal(source, different, parents)
        if limit:
            _join_different(source, different, limit, parents, comparison, threads_or_all(threads))
    duplicate_kernels.roots(parents)
    rows, groups, distances = _of_groups(parents, source, threads)
    return NearDuplicates(int(np.count_nonzero(chosen)), radius, length, rows, groups, distances)


class _Source:
    """Codes in several pieces, numbered on, of which a search reads some at a time.

    Args:
        pieces: N items with V views. bits: prefix length.
    """

    def __init__(self, pieces: Sequence[Codes], bits: int) -> None:
        self.bits, self.views = bits, pieces[0].views
        self._planes = [planes[:, start : start + SET] for planes in (each.planes(bits) for each in pieces)
                        for start in range(0, planes.shape[1], SET)]  # fmt: skip
        self._starts = np.cumsum([0, *(planes.shape[1] for planes in self._planes)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, rows: Rows) -> NDArray[np.uint16]:
        """(W, n) words of n codes, ascending, without bits past the prefix."""
        cuts = np.searchsorted(rows, self._starts)
        found = [planes[:, rows[first:last] - start] for planes, start, first, last
                 in zip(self._planes, self._starts, cuts, cuts[1:], strict=False) if first < last]  # fmt: skip
        empty = np.zeros((-(-self.bits // WORD), 0), np.uint16)
        out = found[0] if len(found) == 1 else np.concatenate([empty, *found], axis=1)
        if self.bits % WORD:
            out[-1] &= last_mask(self.bits)
        return out

    def sets(self, among: NDArray[np.bool_], begin: int, end: int) -> Iterator[Rows]:
        """Some codes in sets of about `SET`, those of equal bits begin..end - 1 together; ascending in each set."""
        largest = max(SET, len(self) // MOST_SETS)
        if len(self) <= largest:
            yield np.flatnonzero(among)
            return
        end = min(end, begin + WORD)
        counts = np.zeros(1 << WORD, np.int64)
        for start, planes in zip(self._starts, self._planes, strict=False):
            some = among[start : start + planes.shape[1]]
            counts += np.bincount(_part(planes, begin, end)[some], minlength=len(counts))
        sets = (np.cumsum(counts) - counts) // largest  # of each value of the bits
        for first, last in _runs(sets[counts > 0], np.flatnonzero(counts)):
            yield self._between(among, begin, end, first, last)

    def _between(self, among: NDArray[np.bool_], begin: int, end: int, first: int, last: int) -> Rows:
        """Some codes whose bits begin..end - 1 are a number in first..last."""
        found = [np.zeros(0, np.int64)]
        for start, planes in zip(self._starts, self._planes, strict=False):
            values = _part(planes, begin, end)
            inside = (values >= first) & (values <= last) & among[start : start + planes.shape[1]]
            found.append(start + np.flatnonzero(inside))
        return np.concatenate(found)


def _runs(sets: Rows, values: Rows) -> Iterator[tuple[int, int]]:
    """First and last value of each set; both ascending."""
    firsts = np.flatnonzero(np.diff(sets, prepend=-1))
    lasts = np.append(firsts[1:], len(sets)) - 1
    yield from zip(values[firsts].tolist(), values[lasts].tolist(), strict=True) if len(sets) else ()


def _join_equal(source: _Source, different: NDArray[np.bool_], parents: NDArray[Any]) -> None:
    """Join equal codes, of which only the first stays different."""
    for rows in source.sets(different, 0, source.bits):
        firsts = _first_equal(source.take(rows))
        others = np.flatnonzero(firsts != np.arange(len(firsts)))
        duplicate_kernels.unite_all(parents, rows[firsts[others]] // source.views, rows[others] // source.views)
        different[rows[others]] = False


def _first_equal(words: NDArray[np.uint16]) -> Rows:
    """(n,) the first code that each code equals; itself where none before it does."""
    keys = [_part(words, start, start + KEY_BITS, np.uint64) for start in range(0, WORD * len(words), KEY_BITS)]
    order = np.lexsort(keys)  # stable: the first of equal codes comes first
    new = np.zeros(len(order), bool)
    new[:1] = True
    for key in keys:
        ordered = key[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    first = np.empty(len(order), np.int64)
    first[order] = np.repeat(order[new], np.diff(np.append(np.flatnonzero(new), len(order))))
    return first


def _part(words: NDArray[np.uint16], begin: int, end: int, kind: type[np.unsignedinteger] = np.uint16) -> NDArray[Any]:
    """Bits begin..end - 1 of each code, as many of them as the kind of number has, as a number."""
    end = min(end, begin + 8 * np.dtype(kind).itemsize, WORD * len(words))
    key = np.zeros(words.shape[1], kind)
    for w in range(begin // WORD, -(-end // WORD)):
        first, last = max(begin, WORD * w), min(end, WORD * (w + 1))
        inside = (words[w].astype(kind) >> kind(first - WORD * w)) & kind((1 << (last - first)) - 1)
        key |= inside << kind(first - begin)
    return key


def _join_different(
    source: _Source,
    different: NDArray[np.bool_],
    radius: int,
    parents: NDArray[Any],
    comparison: Comparison | None,
    threads: int,
) -> None:
    """Join the groups of different codes within a radius."""
    count = int(np.count_nonzero(different))
    parts = [(source.bits * i // (radius + 1), source.bits * (i + 1) // (radius + 1)) for i in range(radius + 1)]
    by_parts = _parts_are_faster(source, different, parts) if comparison is None else comparison == "parts"
    with track("Comparing codes", count * (len(parts) if by_parts else 1), "codes") as advance:
        if not by_parts:
            rows = np.flatnonzero(different)
            for done in _join(source.take(rows), rows // source.views, *_one_bucket(count), radius, parents, threads):
                advance(done)
            return
        for part in parts:
            for rows in source.sets(different, *part):
                planes = source.take(rows)
                order, edges = _buckets(_part(planes, *part, np.uint64))
                advance(len(rows) - len(order))  # the others have no equal part
                for done in _join(planes, rows // source.views, order, edges, radius, parents, threads):
                    advance(done)


def _parts_are_faster(source: _Source, different: NDArray[np.bool_], parts: list[tuple[int, int]]) -> bool:
    """Whether comparing by parts needs less time than all pairs, from the buckets of a sample."""
    count = int(np.count_nonzero(different))
    several = count > SAMPLE
    sample = np.sort(np.random.default_rng(0).choice(count, SAMPLE, replace=False)) if several else np.arange(count)
    planes = source.take(_places(different, sample))
    pairs = 0.0
    for part in parts:
        _, sizes = np.unique(_part(planes, *part, np.uint64), return_counts=True)
        pairs += float((sizes * (sizes - 1.0)).sum() / 2)
    scale = count / max(len(sample), 1)
    return bool(pairs * scale**2 + SORTING * count * len(parts) < count * (count - 1) / 2)


def _places(mask: NDArray[np.bool_], numbers: Rows) -> Rows:
    """Where some of the true values of a mask are, by their numbers, ascending."""
    found, before = [np.zeros(0, np.int64)], 0
    for start in range(0, len(mask), SET):
        here = np.flatnonzero(mask[start : start + SET])
        own = numbers[np.searchsorted(numbers, before) : np.searchsorted(numbers, before + len(here))]
        found.append(start + here[own - before])
        before += len(here)
    return np.concatenate(found)


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


def _join(
    planes: NDArray[np.uint16],
    items: Rows,
    order: Rows,
    edges: Rows,
    radius: int,
    parents: NDArray[Any],
    threads: int,
) -> Iterator[int]:
    """Join near codes of a set in rounds, in which each thread takes one share of the blocks.

    Args:
        planes: (W, n) words of the codes. items: (n,) the item of each. order, edges: of their buckets.
        parents: of all items.

    Yields:
        The number of codes of each round.
    """
    if not len(order):
        return
    ordered = np.ascontiguousarray(planes[:, order])
    new = np.diff(items, prepend=-1) > 0  # several codes of an item are side by side
    members = items[new]
    blocks = Blocks(ordered, np.ascontiguousarray(ordered.T), (np.cumsum(new) - 1)[order], *_blocks(edges))
    groups = _known_groups(parents, members)
    rows = blocks.ends - blocks.begins
    work = np.cumsum(rows * (blocks.stops - blocks.begins))
    shares = max(threads, int(-(-work[-1] // SHARE)))
    cuts = np.searchsorted(work, work[-1] * np.arange(1, shares) / shares, side="right")
    cuts = np.unique(np.concatenate([[0], cuts, [len(rows)]]))
    for start in range(0, len(cuts) - 1, threads):
        mine = cuts[start : start + threads + 1]
        known = np.tile(groups, (len(mine) - 1, 1))
        run(duplicate_kernels.join_near, len(mine) - 1, threads, blocks, mine, radius + 1, known)
        for each in known:
            changed = np.flatnonzero(each != groups)
            duplicate_kernels.unite_all(groups, changed, each[changed])
        yield int(rows[mine[0] : mine[-1]].sum())
    joined = np.flatnonzero(groups != np.arange(len(groups)))
    duplicate_kernels.unite_all(parents, members[joined], members[groups[joined]])


def _known_groups(parents: NDArray[Any], members: Rows) -> Rows:
    """(U,) the first of some items, ascending, that is in the group of each."""
    roots = duplicate_kernels.roots_of(parents, members)
    groups: Rows = np.searchsorted(members, roots)  # a root is not after its members
    absent = np.flatnonzero(members[groups] != roots)
    _, firsts, numbers = np.unique(roots[absent], return_index=True, return_inverse=True)
    groups[absent] = absent[firsts[numbers]]
    return groups


def _of_groups(parents: NDArray[Any], source: _Source, threads: int | None) -> tuple[Rows, Rows, NDArray[np.uint16]]:
    """Rows, groups and distances of the result, from the first item of the group of each item."""
    members = np.flatnonzero(duplicate_kernels.in_groups(parents))
    rows = members[np.argsort(parents[members], kind="stable")]
    _, groups = np.unique(parents[rows], return_inverse=True)
    distances = np.zeros(len(rows), np.uint16)
    for start in range(0, len(rows), SET):
        some = rows[start : start + SET]
        firsts, own = (_codes_of(source, items) for items in (parents[some], some))
        out = distances[start : start + SET]
        run(duplicate_kernels.distances_between, len(some), threads, firsts, own, source.views, out)
    return rows, groups.astype(np.int64), distances


def _codes_of(source: _Source, items: Rows) -> NDArray[np.uint16]:
    """(W, n V) words of all codes of n items, in any order."""
    different, places = np.unique(items, return_inverse=True)
    views = np.arange(source.views)
    words = source.take((different[:, None] * source.views + views).ravel())
    return words[:, (places[:, None] * source.views + views).ravel()]
