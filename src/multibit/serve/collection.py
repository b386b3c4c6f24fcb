"""What is searched: the indices of a run, kept up to date, and changed on request."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multibit.codes import MODALITIES, Codes, Modality
from multibit.codes.layout import require_length
from multibit.errors import BusyError, ConfigError, DataError
from multibit.hashing.encode import part_at
from multibit.indices import index_names, open_index
from multibit.paths import located, portable_path, replacing
from multibit.search import Hit, Index, SearchResult
from multibit.search.columns import IdColumn, other_kind
from multibit.search.filters import Filter
from multibit.search.kinds import merge_kinds
from multibit.search.metadata import Metadata
from multibit.search.names import INDEX, index_name, index_path
from multibit.search.remote import RemoteIndex
from multibit.search.remote.urls import is_url
from multibit.search.shards import AGE, Shard, last_age, read_shard
from multibit.search.together import finish, writing_together
from multibit.serve.problems import RefusedError, not_found, overloaded

if TYPE_CHECKING:
    from multibit.pipeline import AnyRun

IMAGE = "image"
"""The field with the path of an image."""

HIDDEN = (IMAGE, AGE)
"""Fields that a client never sees, filters by or sets."""

LARGE_SCAN = 64 << 20
"""Bytes of codes above which one search uses all processors; below, the others serve HTTP and the encoder."""

_INTEGER = re.compile(r"-?[0-9]{1,19}")

Values = NDArray[np.float32]
Id = str | int


class Query(NamedTuple):
    """A search.

    Attributes:
        values: (stored bits,) relaxed code. note: what the encoder could not read; the other fields are those of
            `Index.search`.
    """

    values: Values
    modality: Modality
    bits: int
    k: int
    where: Mapping[str, Any] | None = None
    where_key: str = ""
    relaxed: bool = False
    max_distance: int | None = None
    fields: tuple[str, ...] | None = None
    ef_search: int | None = None
    note: str = ""

    @property
    def group(self) -> str:
        """Searches with equal text can run together."""
        own = self.modality, self.bits, self.k, self.where_key, self.relaxed, self.max_distance, self.fields
        return repr((*own, self.ef_search))


@dataclass(frozen=True)
class Found:
    """Hits of one search.

    Attributes:
        hits: in order. items: that were searched. seconds: of the scan of the group. missing: servers that did not
            answer. exact: False after an approximate search.
    """

    hits: list[Hit]
    items: int
    bytes_read: int
    seconds: float
    missing: tuple[str, ...] = ()
    exact: bool = True


@dataclass(frozen=True)
class Entry:
    """An item to write: relaxed codes by modality, the image file, metadata, and the age that a router gives it."""

    id: Id
    values: Mapping[Modality, Values]
    image: bytes | None
    fields: Mapping[str, Any]
    age: int | None = None


class _Shelf:
    """An index on disk and the version of it that is searched; a search never sees a change while it runs."""

    def __init__(self, index: Index | RemoteIndex, modality: Modality, bits: int) -> None:
        self.live, self.model, self.modality, self.bits = index, index.model, modality, bits
        self.elsewhere: dict[str, str] = {}  # fields of the items of other shards, and their kinds
        self.take()

    def take(self) -> None:
        """Search the version that the index has now."""
        self.current = self.live.snapshot(self.elsewhere)

    def show(self) -> None:
        """Search the version that was read or written last."""
        self.live.require_model(self.model)  # built again with another model, it cannot answer these queries
        self.take()


class Collection:
    """The indices of a run in a folder, or one of their shards.

    Args:
        run: with the model. place: folder of the indices, or URL of a database, which is only read.
        shard: that is in the folder; None for whole indices.

    Raises:
        DataError: no index of the run, or no shard. MismatchError: an index of another model, or another shard.
    """

    def __init__(self, run: AnyRun, place: Path | str, shard: Shard | None = None) -> None:
        self.run, self.shard, self.is_remote = run, shard, is_url(place)
        self.folder = folder = run.folder / INDEX if self.is_remote else Path(place)
        self.set = "" if shard is None else read_shard(folder, shard).set
        self._changing = threading.Lock()
        self._shelves: dict[str, _Shelf] = {}
        self.version = 0
        if not self.is_remote:
            finish(folder)  # what a killed writer had decided
        for name, (modality, bits) in index_names(run).items():
            if self.is_remote or index_path(folder, name).exists():
                self._shelves[name] = _Shelf(open_index(run, place, modality, bits), modality, bits)
        if not self._shelves:
            open_index(run, place, "image")  # raises with the command that builds one

    # Reading

    @property
    def sizes(self) -> dict[str, int]:
        """Name of an index -> number of items."""
        return {name: len(shelf.current) for name, shelf in self._shelves.items()}

    @property
    def modalities(self) -> list[Modality]:
        """Modalities that can be searched."""
        return [each for each in MODALITIES if any(shelf.modality == each for shelf in self._shelves.values())]

    @property
    def id_kind(self) -> str:
        """Kind of the ids, as of `Index.id_kind`; "" while there are no items."""
        return next((kind for shelf in self._shelves.values() if (kind := shelf.current.id_kind)), "")

    def index(self, modality: Modality, bits: int | None = None) -> Index | RemoteIndex:
        """The current version of the index that serves a length.

        Raises:
            RefusedError: no such index. DataError: a length beyond the codes.
        """
        if bits is not None:
            require_length(bits, self.run.model.bits)
        shelf = self._shelves.get(index_name(self.run.model.layout, modality, bits))
        if shelf is None:
            raise not_found(f"index of {modality}s")
        return shelf.current

    def fields(self, modality: Modality) -> dict[str, str]:
        """Fields that a client may see: name -> kind."""
        return {name: kind for name, kind in self.index(modality).fields.items() if name not in HIDDEN}

    @property
    def identity(self) -> str:
        """What a router expects of a shard: its number, set and model; "" for whole indices."""
        return "" if self.shard is None else f"{self.shard} {self.set} {self.run.record.model}"

    def learn(self, modality: Modality, fields: Mapping[str, str]) -> None:
        """Know fields that only items of other shards have: here they are null.

        Raises:
            DataError: a field of another kind.
        """
        for shelf in self._shelves.values():
            if shelf.modality == modality and not fields.items() <= shelf.current.fields.items():
                shelf.elsewhere = merge_kinds(shelf.current.fields, fields)
                shelf.take()

    def parse_where(self, where: Mapping[str, Any] | None, modality: Modality) -> str:
        """Check a filter; equal filters have equal texts.

        Raises:
            DataError: an unknown field or operator, or a value of another kind.
        """
        if where is None:
            return ""
        try:
            return Filter.parse(where, self.fields(modality)).key
        except (RecursionError, OverflowError):
            raise DataError("nested too deeply, or a number is too large.", option="where") from None

    def search(self, queries: Sequence[Query]) -> list[Found]:
        """The answers of some searches, in order; those that differ in nothing but the query run together."""
        out: list[Found | None] = [None] * len(queries)
        places = sorted(range(len(queries)), key=lambda place: queries[place].group)
        for _, group in groupby(places, key=lambda place: queries[place].group):
            chosen = list(group)
            for place, found in zip(chosen, self._search([queries[each] for each in chosen]), strict=True):
                out[place] = found
        return [found for found in out if found is not None]

    def _search(self, queries: list[Query]) -> list[Found]:
        first = queries[0]
        index, length = self.index(first.modality, first.bits), first.bits
        fields = None
        if first.fields is not None:
            known = index.fields
            fields = [name for name in (*first.fields, *HIDDEN) if name in known]
        stacked = np.stack([query.values for query in queries])
        values = part_at(self.run.model, stacked, length)
        size = len(index)
        scanned = size * self.run.model.layout.views * 2 * -(-length // 16)
        threads = None if scanned > LARGE_SCAN else 1
        start = time.perf_counter()
        if first.relaxed:
            found = index.search_relaxed(values, first.k, length, where=first.where, fields=fields, threads=threads)
        else:
            approximate: dict[str, Any] = {} if first.ef_search is None else {"ef_search": first.ef_search}
            found = index.search(
                Codes.binarize(values), first.k, length, where=first.where, fields=fields,
                max_distance=first.max_distance, threads=threads, **approximate,
            )  # fmt: skip
        seconds = time.perf_counter() - start
        missing = tuple(str(each.file) for each in found.lost)
        return [
            Found(found.hits(number), size, scanned, seconds, missing, found.exact) for number in range(len(queries))
        ]

    def values_of(self, name: Id, modality: Modality) -> Values:
        """The stored code of an item as a relaxed code of -1 and +1, (stored bits,).

        Raises:
            RefusedError: no such item.
        """
        layout = self.run.model.layout
        values = np.ones(layout.stored, np.float32)
        for shelf in self._shelves.values():
            if shelf.modality == modality:
                index = shelf.current
                found = self._find(index, name)
                if found is None:
                    raise not_found(f"{modality} with id {name!r}", other_kind(name, index.id_kind))
                values[layout.part(shelf.bits)] = index.codes_of(found.ids[0]).to_signs().ravel()
        return values

    def item(self, name: Id) -> tuple[Hit, dict[Modality, Values]]:
        """An item with its metadata, and its code by modality.

        Raises:
            RefusedError: no such item.
        """
        hits = {}
        for modality in self.modalities:
            found = self._find(self.index(modality), name)
            if found is not None:
                hits[modality] = found.hits()[0]
        if not hits:
            raise not_found(f"item with id {name!r}")
        return next(iter(hits.values())), {each: self.values_of(name, each) for each in hits}

    def image_path(self, name: Id) -> Path:
        """The image file of an item.

        Raises:
            RefusedError: no such item, or it has no image.
        """
        for modality in self.modalities:
            found = self._find(self.index(modality), name)
            if found is not None and (path := found.hits()[0].payload.get(IMAGE)):
                return located(str(path), self.folder)
        raise not_found(f"image of an item with id {name!r}")

    def _find(self, index: Index | RemoteIndex, name: Id) -> SearchResult | None:
        """An item by id, as the only hit of a search; in a path an integer id is text."""
        if not len(index):
            return None
        anything = self._anything(index.bits)
        also = [int(name)] if isinstance(name, str) and _INTEGER.fullmatch(name) else []
        for each in (name, *also):
            with contextlib.suppress(DataError):
                return index.search(anything, 1, among=[each])
        return None

    def _anything(self, bits: int) -> Codes:
        views = self.run.model.layout.views
        return Codes(np.zeros((-(-bits // 16), views), np.uint16), bits, views)

    def listed(self, modality: Modality, start: int, count: int) -> tuple[int, list[tuple[Id, dict[str, Any]]]]:
        """Number of items of a modality, and some of them in order of age."""
        index = self.index(modality)
        return len(index), index.page(start, count)

    # Changing

    def refresh(self) -> bool:
        """Take over changes that were made elsewhere, of all indices together; whether there were any."""
        with self._changing:
            if not self.is_remote and not finish(self.folder):  # another process is between two indices
                return False
            changed = [shelf for shelf in self._shelves.values() if shelf.live.refresh()]
            if changed:
                self._show(changed)
        return bool(changed)

    def _show(self, shelves: Sequence[_Shelf]) -> None:
        """Search what was read or written last."""
        for shelf in shelves:
            shelf.show()
        if self.shard is not None:
            self.set = read_shard(self.folder, self.shard).set
        self.version += 1

    def put(self, entries: Sequence[Entry], known: Mapping[Modality, Mapping[str, str]] | None = None) -> None:
        """Add items; those with a known id are replaced as a whole.

        Args:
            entries: the items. known: kinds of fields that items of other shards have, by modality.

        Raises:
            DataError: ids or metadata that do not fit; then nothing is changed. BusyError: another writer, or an age
                that is not larger than those there. RefusedError: an item of another shard.
        """
        self._require_in_place()  # before an image is stored
        self._require_own(entries)
        for shelf in self._shelves.values():
            self._put(shelf.live.snapshot(), shelf, entries, {}, known or {})  # all checks, before anything is written
        paths = {
            entry.id: portable_path(self._keep_image(entry.image), self.folder)
            for entry in entries
            if entry.image is not None
        }
        with self._writing() as writers:
            entries = self._aged(entries, [index for _, index in writers])
            for shelf, index in writers:
                self._put(index, shelf, entries, paths, known or {})

    def _require_own(self, entries: Sequence[Entry]) -> None:
        """Refuse items of other shards, and ages where there are no shards."""
        for entry in entries:
            if self.shard is None and entry.age is not None:
                raise RefusedError(422, "only the items of a shard have an age.", field="age")
            if self.shard is not None and not self.shard.holds(entry.id):
                own = Shard.of(entry.id, self.shard.count)
                raise RefusedError(422, f"{entry.id!r} belongs to shard {own}, this is {self.shard}.", field="id")

    def _aged(self, entries: Sequence[Entry], indices: Sequence[Index]) -> Sequence[Entry]:
        """The items with their ages, each larger than all before: so rows are in order of age."""
        if self.shard is None:
            return entries
        now = max(max(map(last_age, indices)) + 1, time.time_ns() // 1000)
        ages = [now + number if entry.age is None else entry.age for number, entry in enumerate(entries)]
        return [replace(entry, age=age) for entry, age in zip(entries, ages, strict=True)]

    def _put(
        self,
        index: Any,
        shelf: _Shelf,
        entries: Sequence[Entry],
        paths: Mapping[Id, str],
        known_fields: Mapping[Modality, Mapping[str, str]],
    ) -> None:
        own = [entry for entry in entries if shelf.modality in entry.values]
        gone = [entry.id for entry in entries if shelf.modality not in entry.values]
        known = [each for each in gone if self._find(index, each) is not None]
        if own:
            ages = [entry.age for entry in own if entry.age is not None]
            if any(age <= before for before, age in zip([last_age(index), *ages], ages, strict=False)):
                raise BusyError("a younger item was written meanwhile.", field="age", hint="Try again.")
            values = part_at(self.run.model, np.stack([entry.values[shelf.modality] for entry in own]), shelf.bits)
            payloads: Any = [{**entry.fields, IMAGE: paths.get(entry.id), AGE: entry.age} for entry in own]
            ids = IdColumn.of([entry.id for entry in own])
            if kinds := known_fields.get(shelf.modality):  # of which this shard may have none or only some yet
                payloads = Metadata.of(payloads, ids, {**kinds, **index.fields})
            index.upsert(ids, Codes.binarize(values), payloads)
        if known:
            index.remove(known)

    def delete(self, name: Id) -> None:
        """Remove an item from all indices.

        Raises:
            RefusedError: no such item. DataError: it is the last one. BusyError: another writer.
        """
        if all(self._find(shelf.current, name) is None for shelf in self._shelves.values()):
            raise not_found(f"item with id {name!r}")
        with self._writing() as writers:
            for _, index in writers:
                found = self._find(index, name)
                if found is not None:
                    index.remove(found.ids[0])

    def _keep_image(self, content: bytes) -> Path:
        """Store an uploaded image under a name that follows from its content."""
        import xxhash

        path = (self.folder / "images" / f"{xxhash.xxh3_128_hexdigest(content)}").absolute()
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as temporary:
                temporary.write_bytes(content)
        return path

    def _require_in_place(self) -> None:
        """Refuse to write where an index was moved away, or is in a database."""
        if self.is_remote:
            raise ConfigError("an index in a database is changed there, not by this server.")
        for name in self._shelves:
            if not index_path(self.folder, name).exists():
                raise overloaded(f"the index {name!r} is not in its place.")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[list[tuple[_Shelf, Index]]]:
        """Change all indices in one step, as their only writer; what was written is searched afterwards."""
        shelves = list(self._shelves.values())
        with self._changing:
            self._require_in_place()
            with writing_together([shelf.live for shelf in shelves if isinstance(shelf.live, Index)]) as writers:
                for shelf, index in zip(shelves, writers, strict=True):
                    index.require_model(shelf.model)
                yield list(zip(shelves, writers, strict=True))
                if not all(map(len, writers)):
                    raise DataError("an index cannot be empty: the last item cannot be removed.", field="id")
            self._show(shelves)
