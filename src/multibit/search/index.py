"""The index: nested codes with ids and metadata, and exact search at any length of the stored code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.codes import Codes
from multibit.errors import ConfigError, DataError, FormatError, MismatchError, require_known, require_path
from multibit.search import changes, searching, storage
from multibit.search.batches import Queries, block_size, in_blocks
from multibit.search.columns import Id, IdColumn, require_page
from multibit.search.conditions import Where
from multibit.search.engines import ENGINES, Engine
from multibit.search.filters import passing, read_typed
from multibit.search.metadata import Metadata
from multibit.search.one_model import OfOneModel
from multibit.search.results import SearchResult
from multibit.search.segments import Lost, Version


class Index(OfOneModel):
    """Searchable codes of one modality.

    Every change is made in memory, completely or not at all: an error leaves the index unchanged, and results and
    snapshots that were made before keep their content. On disk an index is a folder: `save` writes it, `open` maps it,
    and `writer` (or `editing`) changes it in one step, at a cost that follows from the change, not from the size.

    Items are in order of age: an item keeps its place until it is removed or replaced by `upsert`; then it is the last.

    Attributes:
        model: fingerprint of the model that made the codes, taken from the first that are added; "" when unknown.
        engine_name: one of `ENGINES`.
        modality: "image" or "text", modality of the items; "" when unknown, as in older files.
        path: where it was opened; None in memory.
        version: the segments as they are now, a value that never changes; every change puts another one in its place.

    Example:
        >>> index = Index()
        >>> codes = Codes.binarize([[1, 1, 1], [1, -1, 1], [-1, -1, -1]])
        >>> index.add(["a", "b", "c"], codes, [{"year": 2001}, {"year": 2010}, {}])
        >>> result = index.search(Codes.binarize([[1, 1, -1]]), k=2)
        >>> result.ids, result.distances
        ([['a', 'b']], array([[1, 2]], dtype=uint16))
        >>> index.search(codes, k=1, where={"year": {"$gt": 2001}}).hits()[0].payload
        {'year': 2010}
    """

    def __init__(self, model: str = "", engine: str = "exact", modality: str = "") -> None:
        require_known("engine", engine, ENGINES)
        self.model = model
        self.modality = modality
        self.engine_name = engine
        self.path: Path | None = None
        self.version = Version()
        self._name = ""

    def __len__(self) -> int:
        return len(self.version)

    def __repr__(self) -> str:
        first = self._first
        size = "empty" if first is None else f"{len(self):,} {self.modality or 'item'}s, {first.bits} bits"
        views = f", {first.views} views" if first is not None and first.views > 1 else ""
        return f"Index({size}{views}, {self.engine_name} engine)"

    @property
    def ids(self) -> IdColumn:
        """The ids in order; joined when first asked for after a change."""
        return self.version.ids

    @property
    def payloads(self) -> Metadata:
        """The metadata in order; joined when first asked for after a change."""
        return self.version.metadata

    @property
    def codes(self) -> Codes | None:
        """The codes in order, None while empty; joined when first asked for after a change."""
        return self.version.codes

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the metadata: name -> kind, see `multibit.search.kinds`."""
        return dict(self.version.kinds)

    @property
    def bits(self) -> int:
        """Length of the codes; 0 while empty."""
        return 0 if self._first is None else self._first.bits

    @property
    def id_kind(self) -> str:
        """Kind of the ids: "string", "integer", or "range" where they are consecutive integers; "" while empty."""
        kinds = {part.segment.ids.kind for part in self.version.parts}
        return kinds.pop() if len(kinds) == 1 else "integer" if kinds else ""

    @property
    def engine(self) -> Engine:
        """The engine of the largest segment, built when first needed.

        Raises:
            DataError: the index is empty.
        """
        if not self.version.parts:
            raise DataError("the index is empty, so it cannot be searched.")
        return max(self.version.parts, key=lambda part: part.live).engine(self.engine_name)

    # Changes

    def add(self, ids: Any, codes: Codes, payloads: Any = None) -> None:
        """Append items.

        Args:
            ids: new and unique, all strings or all integers, as a sequence, numpy array or Arrow column; None continues
                the numbering.
            codes: one item each, of the length and the views of the index.
            payloads: metadata, one row per item: mappings, an Arrow table, the path of a Parquet file, or a frame of
                pandas or Polars.

        Raises:
            DataError: counts that differ, a duplicate or existing id, codes of another length or number of views, a
                value that is not JSON, a date or a time, or one of another kind than its field has.
            ConfigError: several views, which the engine cannot search. MismatchError: codes of another model.
        """
        self._require_own(codes)
        self._require_changeable(codes)
        self.version = changes.added(self.version, ids, codes, payloads)
        self.model = self.model or codes.model

    def upsert(self, ids: Any, codes: Codes, payloads: Any = None) -> None:
        """Append items; those with an id that is already there are replaced and are the last now. Raises as `add`."""
        self._require_own(codes)
        self._require_changeable(codes)
        self.version = changes.upserted(self.version, ids, codes, payloads)
        self.model = self.model or codes.model

    def remove(self, ids: Any) -> None:
        """Remove items; the ids and the order of the others do not change.

        Raises:
            DataError: an id is unknown; then nothing is removed.
        """
        self._require_changeable()
        self.version = changes.removed(self.version, ids)

    def compact(self) -> None:
        """Join segments, up to about four million items in each, and drop what was removed; answers do not change."""
        self._require_changeable()
        self.version = self.version.compacted()

    def snapshot(self, fields: Mapping[str, str] | None = None) -> Index:
        """The index as it is now, which later changes of this one do not reach; nothing is copied.

        Args:
            fields: further ones that no item has, and their kinds.
        """
        index = Index(self.model, self.engine_name, self.modality)
        index.version = replace(self.version, kinds={**(fields or {}), **self.version.kinds})
        return index

    @classmethod
    def merge(cls, parts: Sequence[Index], names: Sequence[str] | None = None) -> Index:
        """Concatenate several indices, in order.

        Args:
            parts: of one model and one modality; an unknown modality matches any. names: of the parts for errors, such
                as their files; "part 1", ... when None.

        Raises:
            DataError: no part, an id in two of them, codes of different lengths or views, or a field of two kinds.
            MismatchError: different models or modalities.
        """
        if not parts:
            raise DataError("need at least one index to merge.")
        called = names or [f"part {number}" for number in range(1, len(parts) + 1)]
        known = next((part for part in parts if part.modality), parts[0])
        merged = cls(parts[0].model, parts[0].engine_name, known.modality)
        for name, part in zip(called, parts, strict=True):
            part._require_changeable()
            if part.model != merged.model:
                models = part.model or "unknown", merged.model or "unknown"
                problem = f"holds codes of model {models[0]}, but {called[0]} of model {models[1]}."
                raise MismatchError(problem, field=name)
            if part.modality not in ("", merged.modality):
                first = called[parts.index(known)]
                problem = f"is an index of {part.modality}s, but {first} of {merged.modality}s."
                raise MismatchError(problem, field=name)
        merged.version = changes.joined([part.version for part in parts], called)
        return merged

    # Searching

    def search(
        self,
        codes: Codes,
        k: int = 10,
        bits: int | None = None,
        *,
        max_distance: int | None = None,
        among: Sequence[Id] | None = None,
        where: Where | None = None,
        fields: Sequence[str] | None = None,
        model: str | None = None,
        threads: int | None = None,
    ) -> SearchResult:
        """The k nearest items of each query by (distance, age), exactly.

        Args:
            codes: Q queries, at least `bits` long. k: number of hits per query; all items when larger.
            bits: prefix length of the search, 1 to B; the full length when None.
            max_distance: largest distance of a hit.
            among: ids to search among. where: filter on the metadata, see `multibit.search.filters`. Filters apply
                before the ranking: k hits are found where k exist.
            fields: of the metadata that the hits have; all when None.
            model: fingerprint of the model that made the queries, which must be that of the index; the one that the
                codes carry when None. Codes of an unknown model are searched as they are.
            threads: all processors when None.

        Raises:
            DataError: k or max_distance out of range, `bits` longer than the codes, an unknown id or field, or a filter
                that does not fit the fields.
            ConfigError: `where` alone and an engine without filters, or one that cannot search several views.
            MismatchError: the index holds codes of another model.
        """
        self._require_own(codes, model)
        return searching.search(
            self.version, self.engine_name, codes, k, bits,
            max_distance=max_distance, among=among, where=where, fields=fields, threads=threads,
        )  # fmt: skip

    def search_batches(
        self,
        queries: Codes | Iterable[Queries],
        k: int = 10,
        bits: int | None = None,
        *,
        max_distance: int | None = None,
        where: Where | None = None,
        fields: Sequence[str] | None = None,
        threads: int | None = None,
    ) -> Iterator[SearchResult]:
        """Search any number of queries in blocks of bounded memory, all in the index as it is now.

        `write_hits` writes the answers to Parquet.

        Args:
            queries: codes, or blocks of codes with their ids, as `QueryFile.blocks` reads them.
            k, bits, max_distance, where, fields, threads: as in `search`.

        Yields:
            The answers, in the order of the queries.

        Raises:
            DataError, ConfigError, MismatchError: as `search`.

        Example:
            >>> index, codes = Index(), Codes.from_bits([[1, 1], [1, 0], [0, 0]])
            >>> index.add(["a", "b", "c"], codes)
            >>> [result.ids for result in index.search_batches(codes, k=1)]
            [[['a'], ['b'], ['c']]]
        """
        version, engine = self.version, self.engine_name
        for block in in_blocks(queries, block_size(k, len(version))):
            self._require_own(block.codes)
            result = searching.search(
                version, engine, block.codes, k, bits,
                max_distance=max_distance, among=None, where=where, fields=fields, threads=threads,
            )  # fmt: skip
            yield replace(result, queries=block.ids)

    def codes_of(self, ids: Any) -> Codes:
        """The codes of some items, in the order given; an id may be given several times.

        Raises:
            DataError: an id is unknown, or the index is empty.
        """
        return replace(changes.codes_of(self.version, ids), model=self.model)

    def contains(self, ids: Sequence[Id]) -> NDArray[np.bool_]:
        """(n,) whether each of n ids is in the index.

        Raises:
            DataError: one text instead of a list.
        """
        return changes.contained(self.version, ids)

    def page(self, start: int, count: int) -> list[tuple[Id, dict[str, Any]]]:
        """Id and metadata of some items, in order of age; fewer at the end.

        Args:
            start: number of items before the first, from 0. count: number of items.

        Raises:
            DataError: `start` or `count` not whole or negative.
        """
        require_page(start, count)
        items = np.arange(min(start, len(self)), min(start + count, len(self)))
        return [
            pair
            for part, _, rows in self.version.by_part(self.version.rows_of(items))
            for pair in zip(part.segment.ids.listed(rows), part.segment.metadata.rows(rows), strict=True)
        ]

    def values(self, field: str, limit: int = 100, *, most: int | None = None) -> list[tuple[Any, int]] | None:
        """The most common values of a field, of each list those in it, with counts; ties by value.

        Segments are counted one after the other, so memory holds one of them, and the distinct values.

        Args:
            field: of the metadata. limit: number of values to return. most: number of distinct values beyond which
                counting stops; any number when None.

        Returns:
            Values with counts; None where there are more than `most`.

        Raises:
            ConfigError: no such field.

        Example:
            >>> index = Index()
            >>> index.add(["a", "b"], Codes.from_bits([[1], [0]]), [{"labels": ["cat", "dog"]}, {"labels": ["dog"]}])
            >>> index.values("labels")
            [('dog', 2), ('cat', 1)]
        """
        require_known("field", field, self.fields, option="field")
        found = self.version.value_counts(field, most)
        return None if found is None else [(each["value"], each["count"]) for each in found[:limit].to_pylist()]

    def some_codes(self, count: int) -> Codes:
        """The codes of at most `count` items that are spread evenly over all.

        Raises:
            DataError: the index is empty.
        """
        if not len(self):
            raise DataError("the index is empty.")
        items = np.linspace(0, len(self) - 1, min(count, len(self))).astype(np.int64)
        parts = self.version.by_part(self.version.rows_of(items))
        return Codes.concatenate([part.segment.codes.take(rows) for part, _, rows in parts])

    def search_relaxed(
        self,
        values: ArrayLike,
        k: int = 10,
        bits: int | None = None,
        *,
        candidates: int | None = None,
        among: Sequence[Id] | None = None,
        where: Where | None = None,
        fields: Sequence[str] | None = None,
        threads: int | None = None,
    ) -> SearchResult:
        """The k items of the largest inner product with relaxed queries (asymmetric search), see `nearest_relaxed`.

        Args:
            values: (Q, B) relaxed codes in (-1, 1).
            candidates: score only this many nearest items by Hamming distance; all when None.
            k, bits, among, where, fields, threads: as in `search`.

        Raises:
            DataError: as `nearest_relaxed`, an unknown id, field or filter, or an empty index.
        """
        return searching.search_relaxed(
            self.version, values, k, bits,
            candidates=candidates, among=among, where=where, fields=fields, threads=threads,
        )  # fmt: skip

    def read_where(self, typed: Sequence[str]) -> dict[str, Any]:
        """Conditions as typed on a command line -> a filter, see `filters.read_typed`."""
        columns, kinds = [part.segment.metadata for part in self.version.parts], self.version.kinds
        return read_typed(typed, lambda where: any(passing(where, each, kinds).any() for each in columns), kinds)

    # On disk

    def save(self, path: Path | str) -> None:
        """Write to a folder, atomically: readers see the old index or the new one.

        An index that was opened partially is written without what is lost, to another path.

        Raises:
            DataError: the index is empty. BusyError: another process is writing this index. FormatError: the index
                there has segments that could not be read.
        """
        if self.path is not None and Path(path).resolve() == self.path.resolve():
            self._require_changeable()
        with storage.writing(Path(path)):
            storage.write(Path(path), self.version, self.facts)

    @classmethod
    def open(cls, path: Path | str, *, partial: bool = False) -> Index:
        """Map an index on disk: pages are read when used. `writer` changes it, `refresh` reads the newest version.

        Args:
            path: a folder, or a single file of an earlier version.
            partial: search without segments that are missing or truncated, see `lost`; such an index cannot be changed.

        Raises:
            FormatError: missing, truncated, newer, or another kind of file; names the file. DataError: no path.
        """
        return cls.load(path, verify=False, partial=partial)

    @classmethod
    def load(cls, path: Path | str, *, verify: bool = True, partial: bool = False) -> Index:
        """Open an index after comparing its checksums; changes in memory never reach the disk.

        Args:
            path, partial: as in `open`. verify: read every byte once; a corrupt file is an error, or lost.

        Raises:
            FormatError: corrupt or truncated, newer, or another kind of file; names the file. DataError: no path.
        """
        place = require_path(path, "path")
        return cls._of(storage.read(place, verify=verify, partial=partial), place)

    @classmethod
    def _of(cls, stored: storage.Stored, path: Path) -> Index:
        index = cls(stored.facts["model"], stored.facts["engine"], stored.facts["modality"])
        index.path, index.version, index._name = path, stored.version, stored.name
        return index

    @property
    def lost(self) -> tuple[Lost, ...]:
        """Segments that could not be read; empty unless it was opened with `partial`."""
        return self.version.lost

    def refresh(self) -> bool:
        """Read the newest version from the disk; changes in memory are lost.

        Returns:
            Whether there was a newer one.

        Raises:
            ConfigError: the index was not opened. FormatError: as `open`.
        """
        path = self.require_path()
        if self._name and self._name == storage.name_of(path):
            return False
        stored = storage.read(path, verify=False, partial=bool(self.lost), known=self.version)
        self.model, self.modality = stored.facts["model"], stored.facts["modality"]
        self.version, self._name = stored.version, stored.name
        return True

    @contextlib.contextmanager
    def writer(self) -> Iterator[Index]:
        """Change the index on disk as its only writer, starting from the newest version; then `refresh`.

        An error inside leaves it unchanged. Readers are not blocked.

        Raises:
            ConfigError: the index was not opened. BusyError: another process is writing it.

        Example:
            >>> import tempfile
            >>> index, folder = Index(), Path(tempfile.mkdtemp()) / "a.mbx"
            >>> index.add(["a"], Codes.binarize([[1, 1]]))
            >>> index.save(folder)
            >>> opened = Index.open(folder)
            >>> with opened.writer() as writer:
            ...     writer.upsert(["a", "b"], Codes.binarize([[1, -1], [-1, -1]]))
            >>> opened.search(Codes.binarize([[1, -1]])).ids
            [['a', 'b']]
        """
        path = self.require_path()
        if not path.exists():
            raise FormatError("was moved or removed.", file=path, hint="Open it where it is now.")
        with storage.writing(path) as unchanged:
            index = self.reopened()
            yield index
            unchanged()
            storage.write(path, index.version, index.facts)
        self.refresh()

    @classmethod
    @contextlib.contextmanager
    def editing(cls, path: Path | str) -> Iterator[Index]:
        """Open, change and save an index while no other process can write it.

        An error inside leaves it unchanged. Readers are not blocked.

        Raises:
            BusyError: another process is writing this index. FormatError: as `open`.
        """
        target = Path(path)
        if not target.exists():
            cls.open(target)  # raises FormatError
        with storage.writing(target) as unchanged:
            index = cls.open(target)
            yield index
            unchanged()
            storage.write(target, index.version, index.facts)

    def reopened(self) -> Index:
        """The newest version on the disk as an index of its own; segments that this one has are not read again.

        Raises:
            ConfigError: the index was not opened. FormatError: as `open`.
        """
        path = self.require_path()
        return Index._of(storage.read(path, verify=False, known=self.version), path)

    def require_path(self) -> Path:
        """Where it was opened.

        Raises:
            ConfigError: the index is in memory only.
        """
        if self.path is None:
            raise ConfigError("the index is in memory only.", hint="Save it, then open it with Index.open.")
        return self.path

    @property
    def facts(self) -> dict[str, str]:
        """What the file says about all items: model, engine and modality."""
        return {"model": self.model, "engine": self.engine_name, "modality": self.modality}

    # Checks

    @property
    def _first(self) -> Codes | None:
        """Codes that have the length and the views of the index; None while empty."""
        return self.version.parts[0].segment.codes if self.version.parts else None

    @property
    def _described(self) -> tuple[str, str]:
        return "the index", "Build the index again with this model."

    def _require_changeable(self, *codes: Codes) -> None:
        """Refuse to change an index of which only a part was read, and codes that its engine cannot search."""
        for lost in self.version.lost:
            problem = f"cannot be read ({lost.problem}), so the index can be searched, but not changed."
            raise FormatError(problem, file=lost.file, hint="Restore a copy of the file.")
        searching.require_views(self.engine_name, *codes)
