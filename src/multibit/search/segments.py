"""Segments: the immutable pieces of an index, and the removed rows of each.

The rows of an index are those of its segments, in order, without the removed ones. New items are appended as a new
segment, so rows are in order of age. Segments are merged by this policy, which keeps the order: a segment of which more
than a quarter is removed is written again; and when the last eight segments are of the size of the last one or smaller
(a size is a power of eight), they become one, unless that one would have more than `LARGEST` items: a change never
needs the memory of the whole index.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.codes import Codes
from multibit.codes.distance import Neighbours, ScoredRows, nearest
from multibit.search.columns import Id, IdColumn, Wanted
from multibit.search.engines import ENGINES, Engine
from multibit.search.filters import Filter, Mask
from multibit.search.kinds import VALUES, Kinds, plain_nulls
from multibit.search.metadata import Metadata

FEW = 0.01  # share of the rows below which only the rows that pass a filter are compared
REMOVED = 0.25  # share of removed rows above which a segment is written again
FANOUT = 8  # segments of one size that become one
SMALL = 1024  # items; segments up to this are of the smallest size
LARGEST = 1 << 22  # items of a segment that is made of others, or written in a stream
LEAST_CACHE = 1 << 20  # bytes of the cached filters of a segment: at least this, at most the size of its codes


class Chosen(NamedTuple):
    """Rows of a segment that a search may find: a mask, or the rows themselves where they are few."""

    mask: Mask | None = None
    rows: Rows | None = None

    @classmethod
    def of(cls, mask: Mask) -> Chosen:
        """The compact form of a mask."""
        if np.count_nonzero(mask) <= FEW * len(mask):
            return cls(rows=np.flatnonzero(mask))
        return cls(mask=mask)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return sum(each.nbytes for each in self if each is not None)


@dataclass(frozen=True, eq=False)
class Segment:
    """Items that are never changed.

    Attributes:
        codes: N codes. ids, metadata: of the N items. file: where it is stored, None in memory.
        engines: over all rows, by name: those that were stored, and those that were needed.
        engine_file: where an engine is stored, None where there is none.
    """

    codes: Codes
    ids: IdColumn
    metadata: Metadata
    file: Path | None = None
    engines: dict[str, Engine] = field(default_factory=dict, repr=False)
    engine_file: Path | None = None
    _filters: OrderedDict[str, Chosen] = field(default_factory=OrderedDict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: Rows) -> Segment:
        """A segment of some of the items, in the order given."""
        return Segment(self.codes.take(rows), self.ids.take(rows), self.metadata.take(rows))

    def engine(self, name: str) -> Engine:
        """The engine over all rows, built when first needed where it is not stored."""
        if name not in self.engines:
            self.engines[name] = ENGINES[name](self.codes)
        return self.engines[name]

    def passing(self, condition: Filter, kinds: Kinds) -> Chosen:
        """The rows that a filter passes; the latest filters are kept, in at most the memory of the codes."""
        with self._lock:
            known = self._filters.get(condition.key)
            if known is not None:
                self._filters.move_to_end(condition.key)
                return known
        found = Chosen.of(condition.mask(self.metadata, kinds))
        with self._lock:
            self._filters[condition.key] = found
            limit = max(LEAST_CACHE, self.codes.nbytes)
            while len(self._filters) > 1 and sum(each.nbytes for each in self._filters.values()) > limit:
                self._filters.popitem(last=False)
        return found


@dataclass(frozen=True, eq=False)
class Part:
    """A segment and its removed rows.

    Attributes:
        segment: N items. removed: (N,) bool; None where nothing is removed. file: of the removed rows, None in memory.
    """

    segment: Segment
    removed: Mask | None = None
    file: Path | None = None
    _engines: dict[str, Engine] = field(default_factory=dict, repr=False)

    @cached_property
    def live(self) -> int:
        """Number of rows that are not removed."""
        return len(self.segment) - (0 if self.removed is None else int(np.count_nonzero(self.removed)))

    def at(self, items: Rows) -> Rows:
        """Numbers of items that there are -> their rows."""
        return items if self.removed is None else self.rows[items]

    @cached_property
    def rows(self) -> Rows:
        """The rows that are not removed; long where none is, so see `at`."""
        return np.arange(len(self.segment)) if self.removed is None else np.flatnonzero(~self.removed)

    @cached_property
    def alive(self) -> Mask | None:
        """(N,) bool, the rows that are not removed; None for all."""
        return None if self.removed is None else ~self.removed

    def find(self, ids: IdColumn | Wanted | Sequence[Id]) -> Rows:
        """(n,) row of each of n ids, -1 where it is unknown or removed."""
        rows = self.segment.ids.find(ids)
        if self.removed is not None:
            rows[(rows >= 0) & self.removed[rows]] = -1
        return rows

    def without(self, rows: Rows) -> Part:
        """The part with some rows removed."""
        if not len(rows):
            return self
        removed = np.zeros(len(self.segment), bool) if self.removed is None else self.removed.copy()
        removed[rows] = True
        return Part(self.segment, removed)

    def written(self) -> Segment:
        """A segment of the rows that are not removed."""
        return self.segment if self.alive is None else self.segment.take(self.rows)

    def metadata(self, names: Sequence[str] | None = None) -> Metadata:
        """The metadata of the rows that are not removed, or only some fields of it."""
        own = self.segment.metadata if names is None else self.segment.metadata.only(names)
        return own if self.alive is None else own.take(self.rows)

    def engine(self, name: str) -> Engine:
        """The engine that searches this part; one without filters sees only the rows that are not removed."""
        if self.removed is None or ENGINES[name].capabilities.filters:
            return self.segment.engine(name)
        if name not in self._engines:
            self._engines[name] = ENGINES[name](self.segment.codes.take(self.rows))
        return self._engines[name]

    def choose(self, condition: Filter | None, kinds: Kinds, among: Rows | None) -> Chosen | None:
        """The rows that may be found; None for all.

        Args:
            condition: filter. kinds: of the fields of the index. among: rows of this part.
        """
        passing = None if condition is None else self.segment.passing(condition, kinds)
        if among is not None:
            rows = np.unique(among)
            if passing is not None and passing.mask is not None:
                rows = rows[passing.mask[rows]]
            elif passing is not None and passing.rows is not None:
                rows = np.intersect1d(rows, passing.rows, assume_unique=True)
            return Chosen(rows=rows)
        if passing is None:
            return None if self.alive is None else Chosen(mask=self.alive)
        if self.alive is None:
            return passing
        if passing.rows is not None:
            return Chosen(rows=passing.rows[self.alive[passing.rows]])
        return Chosen(mask=None if passing.mask is None else passing.mask & self.alive)

    def search(
        self,
        engine: str,
        queries: Codes,
        k: int,
        bits: int,
        chosen: Chosen | None,
        *,
        max_distance: int | None,
        threads: int | None,
    ) -> Neighbours:
        """The k nearest rows of each query, as `Engine.search`, among the chosen ones."""
        if chosen is not None and chosen.rows is not None:
            rows, codes = chosen.rows, self.segment.codes
            found = nearest(
                queries, codes.take(rows), k, bits, max_distance=max_distance, threads=threads
            )  # few rows need no other engine
            mapped = np.where(found.rows >= 0, rows[found.rows], -1) if len(rows) else found.rows
            return Neighbours(mapped, found.distances, found.counts)
        searcher = self.engine(engine)
        if not searcher.capabilities.filters:
            found = searcher.search(queries, k, bits, max_distance=max_distance, threads=threads)
            if self.alive is None:
                return found
            return Neighbours(np.where(found.rows >= 0, self.rows[found.rows], -1), found.distances, found.counts)
        allowed = None if chosen is None else chosen.mask
        return searcher.search(queries, k, bits, allowed=allowed, max_distance=max_distance, threads=threads)


class Lost(NamedTuple):
    """A segment that cannot be read, or a server that does not answer.

    Attributes:
        file: that is missing or corrupt, or address of the server. items: of the segment, those removed included; None
            where it is unknown. problem: what is wrong.
    """

    file: Path | str
    items: int | None
    problem: str


@dataclass(frozen=True, eq=False)
class Version:
    """The content of an index at one moment: immutable, so that readers keep it while a writer goes on.

    Attributes:
        parts: segments, each with a row that is not removed. kinds: field -> kind, see `metadata`.
        lost: segments that could not be read, where the others are enough.
    """

    parts: tuple[Part, ...] = ()
    kinds: Kinds = field(default_factory=dict)
    lost: tuple[Lost, ...] = ()

    def __len__(self) -> int:
        return sum(part.live for part in self.parts)

    @cached_property
    def starts(self) -> Rows:
        """(P + 1,) first row of each part, removed rows included."""
        return np.concatenate([[0], np.cumsum([len(part.segment) for part in self.parts])]).astype(np.int64)

    @cached_property
    def removed(self) -> Rows:
        """The removed rows, ascending."""
        found = [start + np.flatnonzero(part.removed) for start, part in zip(self.starts, self.parts, strict=False)
                 if part.removed is not None]  # fmt: skip
        return np.concatenate([np.zeros(0, np.int64), *found])

    def ordinals(self, rows: Rows) -> Rows:
        """Rows with the removed ones counted -> rows of the items that there are; -1 stays."""
        return np.where(rows < 0, rows, rows - np.searchsorted(self.removed, rows))

    def rows_of(self, items: Rows) -> Rows:
        """Inverse of `ordinals`: numbers of items that there are -> rows with the removed ones counted."""
        starts = np.concatenate([[0], np.cumsum([part.live for part in self.parts])])
        home = np.searchsorted(starts, items, side="right") - 1
        rows = np.empty(len(items), np.int64)
        for number in np.unique(home).tolist():
            here = home == number
            rows[here] = self.parts[number].at(items[here] - starts[number]) + self.starts[number]
        return rows

    def by_part(self, rows: Rows) -> list[tuple[Part, Rows, Rows]]:
        """Some rows by part: the part, the places in `rows`, and the rows of the part."""
        home = np.searchsorted(self.starts, rows, side="right") - 1
        out = []
        for number in np.unique(home).tolist():
            places = np.flatnonzero(home == number)
            out.append((self.parts[number], places, rows[places] - self.starts[number]))
        return out

    def take(self, rows: Rows) -> Segment:
        """Some items, in the order given, with all fields; reads only these. `rows`: with the removed ones counted."""
        home = np.searchsorted(self.starts, rows, side="right") - 1
        places = [np.flatnonzero(home == number) for number in range(len(self.parts))]
        found = [Part(part.segment.take(rows[here] - start))
                 for part, here, start in zip(self.parts, places, self.starts, strict=False)]  # fmt: skip
        return merged(found).take(np.argsort(np.concatenate(places)))

    def blocks(self, size: int, start: int = 0) -> Iterator[Segment]:
        """The items in order from number `start` on, in blocks of at most `size` items: all of them may be too many."""
        for part in self.parts:
            for first in range(start, part.live, size):
                yield part.segment.take(part.at(np.arange(first, min(first + size, part.live))))
            start = max(0, start - part.live)

    def code_blocks(self, size: int) -> Iterator[Codes]:
        """The codes in order, in blocks of at most `size` items."""
        for part in self.parts:
            for first in range(0, part.live, size):
                yield part.segment.codes.take(part.at(np.arange(first, min(first + size, part.live))))

    def metadata_of(self, rows: Rows, names: Sequence[str]) -> dict[str, Any]:
        """Some fields of some rows: name -> Arrow array, as other tools read it."""
        parts = self.by_part(rows)
        taken = [part.segment.metadata.only(names).take(inner) for part, _, inner in parts]
        found = Metadata.concatenate(taken or [Metadata(0)]).to_table()
        back = pyarrow.array(in_order(parts))
        return {
            name: found[name].take(back) if name in found.column_names else plain_nulls(len(rows), self.kinds[name])
            for name in names
        }

    @cached_property
    def codes(self) -> Codes | None:
        """All codes, None while there are none."""
        return self.prefixes(self.parts[0].segment.codes.bits) if self.parts else None

    def prefixes(self, bits: int) -> Codes:
        """The first bits of all codes, which are not kept in memory; at least one item."""
        found = [_live_codes(part).prefix(bits) for part in self.parts]
        return Codes.concatenate(found) if len(found) > 1 else found[0]

    @cached_property
    def ids(self) -> IdColumn:
        """All ids."""
        return IdColumn.concatenate([
            part.segment.ids if part.alive is None else part.segment.ids.take(part.rows) for part in self.parts
        ])  # fmt: skip

    @cached_property
    def metadata(self) -> Metadata:
        """All metadata."""
        if not self.parts:
            return Metadata(0)
        return Metadata.concatenate([part.metadata() for part in self.parts])

    def value_counts(self, field: str, most: int | None = None) -> Any | None:
        """The distinct values of a field with counts, the most common first, ties by value: an Arrow table.

        Args:
            field: of the metadata. most: number of values beyond which there is no answer; any number when None.
        """
        total = pyarrow.table({"value": pyarrow.array([], VALUES[self.kinds[field]]), "count": np.zeros(0, np.int64)})
        for part in self.parts:
            metadata = part.metadata([field])
            if field in metadata.columns:
                both = pyarrow.concat_tables([total, metadata.value_counts(field)])
                total = both.group_by("value").aggregate([("count", "sum")]).select(["value", "count_sum"])
                total = total.rename_columns(["value", "count"])
            if most is not None and len(total) > most:
                return None
        return total.sort_by([("count", "descending"), ("value", "ascending")])

    def settled(self) -> Version:
        """The version after the policy of the module."""
        parts = [
            Part(part.written()) if part.live < (1 - REMOVED) * len(part.segment) else part
            for part in self.parts
            if part.live
        ]
        while parts:
            size, run = _size(parts[-1].live), 0
            while run < len(parts) and _size(parts[-1 - run].live) <= size:
                run += 1
            if run < FANOUT or sum(part.live for part in parts[-run:]) > LARGEST:
                break
            parts[-run:] = [Part(merged(parts[-run:]))]
        return Version(tuple(parts), self.kinds if parts else {})

    def compacted(self) -> Version:
        """Segments without removed rows, neighbours joined to at most `LARGEST` items; whole ones stay as they are."""
        groups: list[list[Part]] = []
        for part in self.parts:
            if groups and sum(each.live for each in (*groups[-1], part)) <= LARGEST:
                groups[-1].append(part)
            else:
                groups.append([part])
        parts = [group[0] if len(group) == 1 and group[0].removed is None else Part(merged(group)) for group in groups]
        return self if parts == list(self.parts) else Version(tuple(parts), self.kinds)


def in_order(parts: Sequence[tuple[Part, Rows, Rows]]) -> Rows:
    """What puts values that were read part by part, see `Version.by_part`, back into the order of the rows."""
    return np.argsort(np.concatenate([np.zeros(0, np.int64), *(places for _, places, _ in parts)]))


def merged(parts: Sequence[Part]) -> Segment:
    """One segment of several parts, in order, without the removed rows."""
    written = [part.written() for part in parts]
    if len(written) == 1:
        return written[0]
    return Segment(
        Codes.concatenate([each.codes for each in written]),
        IdColumn.concatenate([each.ids for each in written]),
        Metadata.concatenate([each.metadata for each in written]),
    )


def merge_found(found: Sequence[Neighbours], starts: Rows, k: int) -> Neighbours:
    """The k nearest rows of each query from those of each part, by (distance, row).

    Args:
        found: of each part, with its own rows. starts: first row of each part. k: at most this many.
    """
    if len(found) == 1 and not starts[0]:
        return found[0]
    rows, distances, counts = _merge([(each.rows, each.distances) for each in found], starts, k)
    return Neighbours(rows, distances.astype(np.uint16), counts)


def merge_scored(found: Sequence[ScoredRows], starts: Rows, k: int) -> ScoredRows:
    """The k rows of the largest scores from those of each part, by (-score, row); see `merge_found`."""
    rows, negated, counts = _merge([(each.rows, -each.scores) for each in found], starts, k)
    return ScoredRows(rows, -negated, counts)


def _merge(found: Sequence[tuple[Rows, NDArray[Any]]], starts: Rows, k: int) -> tuple[Rows, NDArray[np.float64], Rows]:
    """The k rows of the smallest values, by (value, row), their values, and how many there are, of each query."""
    rows = np.concatenate([np.where(own < 0, -1, own + s) for (own, _), s in zip(found, starts, strict=False)], axis=1)
    values = np.concatenate([np.where(own < 0, np.inf, each) for own, each in found], axis=1)
    order = np.lexsort((rows, values), axis=1)[:, : min(k, rows.shape[1])]
    rows = np.take_along_axis(rows, order, 1)
    values = np.where(rows < 0, 0, np.take_along_axis(values, order, 1))
    return rows, values, np.count_nonzero(rows >= 0, axis=1).astype(np.int64)


def _live_codes(part: Part) -> Codes:
    return part.segment.codes if part.alive is None else part.segment.codes.take(part.rows)


def _size(items: int) -> int:
    """Power of eight of a number of items, 0 up to `SMALL`."""
    return max(0, (max(items - 1, 0) // SMALL).bit_length() + 2) // 3
