"""The index: nested codes with ids and metadata, and exact search at any length of the stored code."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import Rows
from multibit.codes import Codes
from multibit.codes.distance import Neighbours, ScoredRows, check_k, check_radius, nearest_relaxed
from multibit.errors import ConfigError, DataError, MismatchError, require_known
from multibit.files import remove_left_over
from multibit.folders import only_writer
from multibit.search import storage
from multibit.search.columns import Id, IdColumn
from multibit.search.engines import ENGINES, Engine
from multibit.search.filters import Filter, Mask, Where, read_typed
from multibit.search.metadata import Metadata, merge_kinds
from multibit.search.segments import Chosen, Part, Segment, Version, merge_found


@dataclass(frozen=True)
class Hit:
    """One result of a search.

    Attributes:
        rank: from 1. id: of the item.
        distance: number of differing bits; None for a relaxed query.
        bits: code length of the search. payload: metadata of the item, without null values.
        score: inner product with a relaxed query, larger is nearer; None for a binary query.
    """

    rank: int
    id: Id
    distance: int | None
    bits: int
    payload: Mapping[str, Any]
    score: float | None = None


@dataclass(frozen=True, eq=False, repr=False)
class SearchResult:
    """Results of Q queries, best first, ties by age: the item that was added (or last replaced) first comes first.

    Attributes:
        bits: code length of the search.
    """

    bits: int
    _found: Neighbours | ScoredRows  # rows with the removed ones counted
    _version: Version
    _fields: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        return f"SearchResult({len(self)} queries, {int(self.counts.sum())} hits at {self.bits} bits)"

    @property
    def rows(self) -> Rows:
        """(Q, k) int64 rows of the index as it was searched, -1 past `counts`."""
        return self._version.ordinals(self._found.rows)

    @property
    def counts(self) -> Rows:
        """(Q,) int64, number of hits of each query."""
        return self._found.counts

    @property
    def distances(self) -> NDArray[np.uint16]:
        """(Q, k) uint16 Hamming distances.

        Raises:
            DataError: the queries were relaxed.
        """
        if isinstance(self._found, ScoredRows):
            raise DataError("relaxed queries have no Hamming distances.", hint="Read the scores instead.")
        return self._found.distances

    @property
    def scores(self) -> NDArray[np.float64]:
        """(Q, k) float64 inner products with the relaxed queries.

        Raises:
            DataError: the queries were binary.
        """
        if isinstance(self._found, Neighbours):
            raise DataError("binary queries have no scores.", hint="Read the distances instead.")
        return self._found.scores

    @property
    def ids(self) -> list[list[Id]]:
        """Ids of the hits, one list per query."""
        rows = self._found.rows
        ends = np.cumsum(self.counts).tolist()
        names = self._ids(rows[np.arange(rows.shape[1]) < self.counts[:, None]])
        return [names[first:last] for first, last in zip([0, *ends], ends, strict=False)]

    def hits(self, query: int = 0) -> list[Hit]:
        """The hits of one query with their metadata; reads only these items."""
        rows = self._found.rows[query, : self.counts[query]]
        distances: list[int | None] = [None] * len(rows)
        scores: list[float | None] = [None] * len(rows)
        if isinstance(self._found, ScoredRows):
            scores = self._found.scores[query, : len(rows)].tolist()
        else:
            distances = self._found.distances[query, : len(rows)].tolist()
        payloads: list[dict[str, Any]] = [{}] * len(rows)
        for part, places, inner in self._version.by_part(rows):
            for place, payload in zip(places.tolist(), part.segment.metadata.rows(inner, self._fields), strict=True):
                payloads[place] = payload
        return [
            Hit(rank, name, distance, self.bits, payload, score)
            for rank, (name, distance, payload, score) in enumerate(
                zip(self._ids(rows), distances, payloads, scores, strict=True), start=1
            )
        ]

    def _ids(self, rows: Rows) -> list[Id]:
        names: list[Id] = [""] * len(rows)
        for part, places, inner in self._version.by_part(rows):
            for place, name in zip(places.tolist(), part.segment.ids.listed(inner), strict=True):
                names[place] = name
        return names


class Index:
    """Searchable codes of one modality.

    Every change is made in memory, completely or not at all: an error leaves the index unchanged, and results and
    snapshots that were made before keep their content. On disk an index is a folder: `save` writes it, `open` maps it,
    and `writer` (or `editing`) changes it in one step, at a cost that follows from the change, not from the size.

    Items are in order of age: an item keeps its place until it is removed or replaced by `upsert`; then it is the last.

    Attributes:
        model: fingerprint of the model that made the codes, "" when unknown. engine_name: one of `ENGINES`.
        modality: "image" or "text", modality of the items; "" when unknown, as in older files.
        path: where it was opened; None in memory.

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
        self._version = Version()
        self._generation = 0

    def __len__(self) -> int:
        return len(self._version)

    def __repr__(self) -> str:
        first = self._first
        size = "empty" if first is None else f"{len(self):,} {self.modality or 'item'}s, {first.bits} bits"
        views = f", {first.views} views" if first is not None and first.views > 1 else ""
        return f"Index({size}{views}, {self.engine_name} engine)"

    @property
    def ids(self) -> IdColumn:
        """The ids in order; joined when first asked for after a change."""
        return self._version.ids

    @property
    def payloads(self) -> Metadata:
        """The metadata in order; joined when first asked for after a change."""
        return self._version.metadata

    @property
    def codes(self) -> Codes | None:
        """The codes in order, None while empty; joined when first asked for after a change."""
        return self._version.codes

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the metadata: name -> kind, see `multibit.search.metadata`."""
        return dict(self._version.kinds)

    @property
    def bits(self) -> int:
        """Length of the codes; 0 while empty."""
        return 0 if self._first is None else self._first.bits

    @property
    def engine(self) -> Engine:
        """The engine of the largest segment, built when first needed.

        Raises:
            DataError: the index is empty.
        """
        if not self._version.parts:
            raise DataError("the index is empty, so it cannot be searched.")
        return max(self._version.parts, key=lambda part: part.live).engine(self.engine_name)

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
            ConfigError: several views, which the engine cannot search.
        """
        column = IdColumn.of(self._numbered(len(codes)) if ids is None else ids)
        added = self._check(column, codes, payloads)
        for part in self._version.parts:
            known = np.flatnonzero(part.find(column) >= 0)
            if len(known):
                raise DataError(f"{column[int(known[0])]!r} is already in the index.", field="ids")
        self._append(self._version.parts, added)

    def upsert(self, ids: Any, codes: Codes, payloads: Any = None) -> None:
        """Append items; those with an id that is already there are replaced and are the last now. Raises as `add`."""
        column = IdColumn.of(ids)
        added = self._check(column, codes, payloads)
        parts = []
        for part in self._version.parts:
            rows = part.find(column)
            parts.append(part.without(rows[rows >= 0]))
        self._append(parts, added)

    def remove(self, ids: Any) -> None:
        """Remove items; the ids and the order of the others do not change.

        Raises:
            DataError: an id is unknown; then nothing is removed.
        """
        parts = [part.without(rows) for part, rows in zip(self._version.parts, self._rows_of(ids), strict=True)]
        self._version = Version(tuple(parts), self._version.kinds).settled()

    def compact(self) -> None:
        """Join all segments and drop what was removed; answers do not change."""
        self._version = self._version.compacted()

    def snapshot(self) -> Index:
        """The index as it is now, which later changes of this one do not reach; nothing is copied."""
        index = Index(self.model, self.engine_name, self.modality)
        index._version = self._version
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
        for number, (name, part) in enumerate(zip(called, parts, strict=True)):
            if part.model != merged.model:
                models = part.model or "unknown", merged.model or "unknown"
                problem = f"holds codes of model {models[0]}, but {called[0]} of model {models[1]}."
                raise MismatchError(problem, field=name)
            if part.modality not in ("", merged.modality):
                first = called[parts.index(known)]
                problem = f"is an index of {part.modality}s, but {first} of {merged.modality}s."
                raise MismatchError(problem, field=name)
            try:
                merged._join(part, parts[:number], called)
            except DataError as error:
                raise DataError(error.problem, field=name) from None
        merged._version = merged._version.settled()
        return merged

    def _join(self, other: Index, before: Sequence[Index], called: Sequence[str]) -> None:
        first, theirs = self._first, other._first
        if first is not None and theirs is not None:
            self._require_same_codes(theirs)
            names = other.ids
            for number, index in enumerate(before):
                for part in index._version.parts:
                    known = np.flatnonzero(part.find(names) >= 0)
                    if len(known):
                        shared = f"{names[int(known[0])]!r} is in both"
                        raise DataError(f"the ids do not fit those of {called[number]}: {shared}.")
            self._require_same_ids(names)
        kinds = merge_kinds(self._version.kinds, other._version.kinds)
        self._version = Version((*self._version.parts, *other._version.parts), kinds)

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
            model: fingerprint of the model that made the queries; must be the model of the index.
            threads: all processors when None.

        Raises:
            DataError: k or max_distance out of range, `bits` longer than the codes, an unknown id or field, or a filter
                that does not fit the fields.
            ConfigError: the engine has no filters, or cannot search several views. MismatchError: the index holds codes
                of another model.
        """
        if model is not None:
            self.require_model(model)
        check_k(k)
        if max_distance is not None:
            check_radius(max_distance, "max_distance")
        version, first = self._version, self._first
        length = (codes if first is None else first).check_length(bits)
        self._require_fields(fields)
        if first is None:
            return SearchResult(length, Neighbours.allocate(len(codes), k, codes.take([])), version)
        codes.check_length(length)
        self._require_views(codes, first)
        chosen = self._chosen(among, where)
        if (among is not None or where is not None) and not ENGINES[self.engine_name].capabilities.filters:
            problem = f"the {self.engine_name} engine cannot search with filters."
            raise ConfigError(problem, option="engine", hint="Use the exact engine.")
        found = [
            part.search(self.engine_name, codes, k, length, some, max_distance=max_distance, threads=threads)
            for part, some in zip(version.parts, chosen, strict=True)
        ]
        return SearchResult(length, merge_found(found, version.starts, k), version, fields)

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
        codes, version = self.codes, self._version
        if codes is None:
            raise DataError("the index is empty, so it cannot be searched.")
        self._require_fields(fields)
        allowed = None
        if among is not None or where is not None:
            masks = [_as_mask(part, some) for part, some in zip(version.parts, self._chosen(among, where), strict=True)]
            allowed = np.concatenate(masks)
        found = nearest_relaxed(values, codes, k, bits, candidates=candidates, allowed=allowed, threads=threads)
        if len(version.removed):
            every = np.delete(np.arange(version.starts[-1]), version.removed)
            found = ScoredRows(np.where(found.rows < 0, -1, every[found.rows]), found.scores, found.counts)
        return SearchResult(codes.check_length(bits), found, version, fields)

    def read_where(self, typed: Sequence[str]) -> dict[str, Any]:
        """Conditions as typed on a command line -> a filter, see `filters.read_typed`."""
        return read_typed(typed, [part.segment.metadata for part in self._version.parts], self._version.kinds)

    def require_model(self, model: str) -> None:
        """Refuse to compare codes of different models, whose bits have different meanings.

        Raises:
            MismatchError: the fingerprints differ.
        """
        if self.model != model:
            raise MismatchError(
                f"the index holds codes of model {self.model or 'unknown'}, not of model {model or 'unknown'}.",
                hint="Build the index again with this model.",
            )

    # On disk

    def save(self, path: Path | str) -> None:
        """Write to a folder, atomically: readers see the old index or the new one.

        Raises:
            DataError: the index is empty. BusyError: another process is writing this index.
        """
        with _writing(Path(path)):
            storage.write(Path(path), self._version, self._facts)

    @classmethod
    def open(cls, path: Path | str) -> Index:
        """Map an index on disk: pages are read when used. `writer` changes it, `refresh` reads the newest version.

        Raises:
            FormatError: truncated, newer, or another kind of file; names the file.
        """
        return cls.load(path, verify=False)

    @classmethod
    def load(cls, path: Path | str, *, verify: bool = True) -> Index:
        """Open an index after comparing its checksums; changes in memory never reach the disk.

        Args:
            path: a folder, or a single file of an earlier version. verify: read every byte once.

        Raises:
            FormatError: corrupt or truncated, newer, or another kind of file; names the file.
        """
        stored = storage.read(Path(path), verify=verify)
        index = cls(stored.facts["model"], stored.facts["engine"], stored.facts["modality"])
        index.path, index._version, index._generation = Path(path), stored.version, stored.generation
        return index

    def refresh(self) -> bool:
        """Read the newest version from the disk; changes in memory are lost.

        Returns:
            Whether there was a newer one.

        Raises:
            ConfigError: the index was not opened. FormatError: as `open`.
        """
        path = self._opened()
        if self._generation and self._generation == storage.generation_of(path):
            return False
        stored = storage.read(path, verify=False, known=self._version)
        self.model, self.modality = stored.facts["model"], stored.facts["modality"]
        self._version, self._generation = stored.version, stored.generation
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
        path = self._opened()
        with Index.editing(path) as index:
            yield index
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
        with _writing(target):
            index = cls.open(target)
            yield index
            storage.write(target, index._version, index._facts)

    def _opened(self) -> Path:
        if self.path is None:
            raise ConfigError("the index is in memory only.", hint="Save it, then open it with Index.open.")
        return self.path

    @property
    def _facts(self) -> dict[str, str]:
        return {"model": self.model, "engine": self.engine_name, "modality": self.modality}

    # Checks

    @property
    def _first(self) -> Codes | None:
        """Codes that have the length and the views of the index; None while empty."""
        return self._version.parts[0].segment.codes if self._version.parts else None

    def _check(self, ids: IdColumn, codes: Codes, payloads: Any) -> tuple[Segment, dict[str, str]]:
        """Refuse items that do not fit, before anything is changed; the new segment and all kinds of fields."""
        given = len(ids) if payloads is None or isinstance(payloads, str | Path) else len(payloads)
        if not len(ids) == len(codes) == given:
            raise DataError(f"{len(ids)} ids, {len(codes)} codes, {given} payloads: the counts must be equal.")
        self._require_same_codes(codes)
        self._require_views(codes)
        self._require_same_ids(ids)
        kinds = self._version.kinds
        metadata = Metadata.of(payloads, ids, kinds)
        if len(metadata) != len(ids):
            problem = f"{len(ids)} ids, {len(codes)} codes, {len(metadata)} payloads: the counts must be equal."
            raise DataError(problem)
        return Segment(codes, ids, metadata), merge_kinds(kinds, metadata.kinds)

    def _require_same_codes(self, codes: Codes) -> None:
        first = self._first
        if first is not None and codes.bits != first.bits:
            raise DataError(f"have {codes.bits} bits, the index has {first.bits}.", field="codes")
        if first is not None and codes.views != first.views:
            raise DataError(f"{codes.views} per item, the index has {first.views}.", field="codes")

    def _require_same_ids(self, ids: IdColumn) -> None:
        """Refuse strings next to integers."""
        if self._version.parts and len(ids):
            kind = self._version.parts[0].segment.ids.kind
            if (kind == "string") != (ids.kind == "string"):
                raise DataError(f"new ids of kind {ids.kind} cannot be added to ids of kind {kind}.", field="ids")

    def _require_fields(self, fields: Sequence[str] | None) -> None:
        """Refuse a field that no item has."""
        for name in fields or ():
            require_known("field", name, self._version.kinds, option="fields")

    def _require_views(self, *codes: Codes) -> None:
        """Refuse items with several codes where the engine cannot search them."""
        most = max(each.views for each in codes)
        if most > 1 and not ENGINES[self.engine_name].capabilities.views:
            problem = f"the {self.engine_name} engine cannot search items with {most} codes each."
            raise ConfigError(problem, option="engine", hint="Use the exact engine.")

    def _append(self, parts: Sequence[Part], added: tuple[Segment, dict[str, str]]) -> None:
        segment, kinds = added
        more = (Part(segment),) if len(segment) else ()
        self._version = Version((*parts, *more), kinds).settled()

    def _numbered(self, count: int) -> range:
        """The ids that continue the numbering."""
        columns = [
            part.segment.ids if part.alive is None else part.segment.ids.take(part.rows) for part in self._version.parts
        ]
        first = max((column.next for column in columns), default=0)
        return range(first, first + count)

    def _rows_of(self, ids: Any) -> list[Rows]:
        """Rows of some ids, of each part.

        Raises:
            DataError: an id is unknown.
        """
        if isinstance(ids, str):
            raise DataError(f"need a list of ids, got the text {ids!r}.", field="ids")
        found = [part.find(ids) for part in self._version.parts]
        best = np.max([np.full(len(ids), -1), *found], axis=0)
        if best.min(initial=0) < 0:
            raise DataError(f"{ids[int(best.argmin())]!r} is not in the index of {len(self):,} items.", field="ids")
        return [rows[rows >= 0] for rows in found]

    def _chosen(self, among: Sequence[Id] | None, where: Where | None) -> list[Chosen | None]:
        """The rows of each part that may be found."""
        version = self._version
        condition = None if where is None else Filter.parse(where, version.kinds)
        rows: Sequence[Rows | None] = [None] * len(version.parts) if among is None else self._rows_of(among)
        return [part.choose(condition, version.kinds, some) for part, some in zip(version.parts, rows, strict=True)]


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Be the only writer of an index, and remove what interrupted writers left in it and next to it."""
    with only_writer(path, ("*",), replaced=path.is_symlink()):
        remove_left_over(path.parent, glob.escape(path.name))
        yield


def _as_mask(part: Part, chosen: Chosen | None) -> Mask:
    """(live rows,) bool of the chosen rows."""
    mask = np.ones(len(part.segment), bool)
    if chosen is not None and chosen.rows is not None:
        mask[:] = False
        mask[chosen.rows] = True
    elif chosen is not None and chosen.mask is not None:
        mask = chosen.mask
    return mask if part.alive is None else mask[part.alive]
