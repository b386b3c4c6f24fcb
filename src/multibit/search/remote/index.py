"""The index in a database, with the verbs of `Index`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from multibit.codes import Codes
from multibit.codes.distance import Neighbours, check_k, check_radius
from multibit.errors import ConfigError, DataError, require_known
from multibit.search.batches import Queries, block_size, in_blocks
from multibit.search.changes import require_bits, require_counts
from multibit.search.columns import Id, IdColumn, require_list, require_page, require_same_kind, unknown_id
from multibit.search.conditions import Where, parse
from multibit.search.filters import read_typed
from multibit.search.kinds import merge_kinds
from multibit.search.metadata import Metadata
from multibit.search.one_model import OfOneModel
from multibit.search.remote.base import Asked, Facts, Found, Items, RemoteCapabilities, Store
from multibit.search.remote.hnsw import MOST_CANDIDATES
from multibit.search.results import SearchResult
from multibit.search.segments import Lost, Part, Segment, Version


class RemoteIndex(OfOneModel):
    """Searchable codes of one modality in a database.

    The verbs, the filters and the answers are those of `Index`: exact, ordered by (distance, age), where an item that
    is replaced becomes the last. Changes are stored at once. Open one with `open_remote`, make one with
    `create_remote`.

    Attributes:
        store: the database.
    """

    def __init__(self, store: Store, facts: Facts) -> None:
        self.store, self._facts = store, facts
        self._count: int | None = None

    def __len__(self) -> int:
        if self._count is None:
            self._count = self.store.count()
        return self._count

    def __repr__(self) -> str:
        return f"RemoteIndex({self.store.place}, {self.modality or 'item'}s, {self.bits} bits)"

    @property
    def model(self) -> str:  # type: ignore[override]  # read from the database
        """Fingerprint of the model that made the codes; "" when unknown."""
        return self._facts.model

    @property
    def modality(self) -> str:
        """Modality of the items; "" when unknown."""
        return self._facts.modality

    @property
    def bits(self) -> int:
        """Length of the codes."""
        return self._facts.bits

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the metadata: name -> kind."""
        return dict(self._facts.fields)

    @property
    def id_kind(self) -> str:
        """Kind of the ids: "string" or "integer"."""
        return self._facts.ids

    @property
    def capabilities(self) -> RemoteCapabilities:
        """What the database can do."""
        return self.store.capabilities

    @property
    def facts(self) -> Facts:
        """What is stored about the index."""
        return self._facts

    # Changes

    def upsert(self, ids: Any, codes: Codes, payloads: Any = None) -> None:
        """Append items; those with an id that is already there are replaced and are the last now.

        Args:
            ids, codes, payloads: as for `Index.add`.

        Raises:
            DataError: as `Index.add`. MismatchError: codes of another model. UnavailableError: a server is down.
        """
        self._require_own(codes)
        column = IdColumn.of(ids)
        with self._changing() as facts:
            items, fields = self._checked(facts, column, codes, payloads)
            if not len(column):
                return
            model = facts.model or codes.model
            after = _changed(facts, fields=fields, model=model)
            first = self.store.youngest() + 1
            self.store.describe(after)
            self.store.put(after, items._replace(ages=np.arange(first, first + len(column))))
        self._renew(after)

    def remove(self, ids: Any) -> None:
        """Remove items; the order of the others does not change.

        Raises:
            DataError: an id is unknown; then nothing is removed. UnavailableError: a server is down.
        """
        wanted = self._listed(ids)
        with self._changing() as facts:
            self._require_found(wanted, self._items(facts, wanted).ids)
            after = _changed(facts)
            self.store.remove(after, wanted)
            self.store.describe(after)
        self._renew(after)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Facts]:
        """What is stored now, while no other writer changes it."""
        with self.store.writing():
            yield self._stored()

    def _stored(self) -> Facts:
        """What is stored about the index now.

        Raises:
            DataError: the index was removed, or is being loaded.
        """
        facts = self.store.read()
        if facts is None:
            raise no_index(self.store.place)
        require_complete(facts, self.store.place)
        return facts

    def _checked(self, facts: Facts, ids: IdColumn, codes: Codes, payloads: Any) -> tuple[Items, dict[str, str]]:
        """New items, and all fields then."""
        codes.require_one_view("A database", "Use a local index.")
        require_bits(codes, facts.bits)
        require_same_kind(ids, facts.ids)
        metadata = Metadata.of(payloads, ids, facts.fields)
        require_counts(ids, codes, len(metadata))
        return Items(ids, np.zeros(0, np.int64), codes, metadata), merge_kinds(facts.fields, metadata.kinds)

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
        ef_search: int | None = None,
    ) -> SearchResult:
        """The k nearest items of each query by (distance, age), exactly unless `ef_search` is given.

        An approximate search may miss some of the nearest items, and may find fewer than k. What it finds is in order
        of (distance, age) and fits the filter. `recall` measures it.

        Args:
            codes, k, bits, max_distance, among, where, fields, model: as for `Index.search`.
            threads: no effect; the database decides.
            ef_search: candidates, 1 to 1000, of an approximate search in the HNSW index at this length; more find
                more of the nearest items and take longer. None for an exact search.

        Returns:
            A result whose `rows` are numbers of its own hits, and whose `lost` are the servers that did not answer,
            where partial answers were asked for. Its `exact` is False after an approximate search.

        Raises:
            DataError, MismatchError: as `Index.search`. UnavailableError: a server is down, or takes too long.
            ConfigError: an invalid `ef_search`, or no HNSW index at this length.
        """
        self._require_own(codes, model)
        codes.require_one_view("A database", "Use a local index.")
        check_k(k)
        self._require_candidates(ef_search)
        if max_distance is not None:
            check_radius(max_distance, "max_distance")
        facts = self._facts
        length = _length(facts.bits, bits)
        codes.check_length(length)
        for name in fields or ():
            require_known("field", name, facts.fields, option="fields")
        condition = None if where is None else parse(where, facts.fields)
        if among is not None:
            among = self._listed(among)
            self._require_found(among, self._items(facts, among).ids)
        wanted = list(facts.fields) if fields is None else list(fields)
        asked = Asked(codes.prefix(length), k, max_distance, condition, among, wanted, ef_search)
        found = self.store.search(facts, asked)
        result = _result(found, len(codes), length, facts, wanted)
        return replace(result, exact=ef_search is None)

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
        ef_search: int | None = None,
    ) -> Iterator[SearchResult]:
        """Search any number of queries in blocks of bounded memory, each in the index as it is then.

        Args:
            queries, k, bits, max_distance, where, fields, threads: as for `Index.search_batches`. ef_search: as for
                `search`.

        Yields:
            The answers, in the order of the queries.

        Raises:
            DataError, MismatchError, UnavailableError: as `search`.
        """
        for block in in_blocks(queries, block_size(k, len(self))):
            result = self.search(
                block.codes, k, bits, max_distance=max_distance, where=where, fields=fields, ef_search=ef_search
            )
            yield replace(result, queries=block.ids)

    def search_relaxed(self, *given: Any, **options: Any) -> SearchResult:
        """Refused: databases compare bits only.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a database ranks by distance only.", option="relaxed", hint="Use a local index.")

    def codes_of(self, ids: Any) -> Codes:
        """The codes of some items, in the order given; an id may be given several times.

        Raises:
            DataError: an id is unknown.
        """
        wanted = self._listed(ids)
        items = self._items(self._facts, wanted)
        self._require_found(wanted, items.ids)
        return replace(items.codes.take(items.ids.find(wanted)), model=self.model)

    def page(self, start: int, count: int) -> list[tuple[Id, dict[str, Any]]]:
        """Id and metadata of some items, in order of age; the arguments and errors are those of `Index.page`."""
        require_page(start, count)
        items = self.store.page(self._facts, start, count)
        every = np.arange(len(items.ids))
        return list(zip(items.ids.listed(every), items.metadata.rows(every), strict=True))

    def some_codes(self, count: int) -> Codes:
        """The codes of the oldest items."""
        return self.store.page(msgspec.structs.replace(self._facts, fields={}), 0, count).codes

    def values(self, field: str, limit: int = 100) -> list[tuple[Any, int]]:
        """The most common values of a field, with counts."""
        return self.store.values(self._facts, field, limit)

    def read_where(self, typed: Sequence[str]) -> dict[str, Any]:
        """Conditions as typed on a command line -> a filter, see `filters.read_typed`."""
        nothing = Codes(np.zeros((-(-self.bits // 16), 1), np.uint16), self.bits)
        return read_typed(
            typed, lambda where: bool(self.search(nothing, 1, 1, where=where, fields=()).counts[0]), self._facts.fields
        )

    # Versions

    def refresh(self) -> bool:
        """Read again what is stored about the index; items are always searched as they are.

        Returns:
            Whether anything changed.

        Raises:
            DataError: the index was removed, or is being loaded. UnavailableError: a server is down.
        """
        facts = self._stored()
        if facts == self._facts:
            return False
        self._renew(facts)
        return True

    def snapshot(self, fields: Mapping[str, str] | None = None) -> RemoteIndex:
        """The index itself: a database always answers with its newest items. There are no further `fields`."""
        return self

    @property
    def lost(self) -> tuple[Lost, ...]:
        """Nothing: the servers that did not answer belong to a result."""
        return ()

    def close(self) -> None:
        """Close the connections."""
        self.store.close()

    def _renew(self, facts: Facts) -> None:
        self._facts, self._count = facts, None

    # Checks

    @property
    def _described(self) -> tuple[str, str]:
        return self.store.place, "Load the index of this model: multibit index RUN --to URL."

    def _require_candidates(self, ef_search: int | None) -> None:
        if ef_search is None:
            return
        if not self.capabilities.approximate:
            problem = "this database searches exactly only."
            raise ConfigError(problem, option="ef_search", hint="Use PostgreSQL with pgvector.")
        if type(ef_search) is not int or not 1 <= ef_search <= MOST_CANDIDATES:
            problem = f"must be an integer from 1 to {MOST_CANDIDATES}, got {ef_search!r}."
            raise ConfigError(problem, option="ef_search")

    def _listed(self, ids: Any) -> list[Id]:
        """Ids as Python values."""
        require_list(ids)
        return [each.item() if isinstance(each, np.generic) else each for each in ids]

    def _items(self, facts: Facts, ids: Sequence[Id]) -> Items:
        """The items that there are among some ids of any kind."""
        some = msgspec.structs.replace(facts, fields={})  # without metadata
        return self.store.items(some, [each for each in dict.fromkeys(ids) if _can_be_id(each, facts.ids)])

    def _require_found(self, wanted: Sequence[Id], found: IdColumn) -> None:
        known = set(found.listed(np.arange(len(found))))
        for each in wanted:
            if each not in known or type(each) is bool:
                raise unknown_id(each, self.id_kind, len(self))


def no_index(place: str) -> DataError:
    """The error of an index that is not there."""
    return DataError(f"{place}: no such index.", hint="Load one with: multibit index RUN --to URL")


def require_complete(facts: Facts, place: str) -> None:
    """Refuse an index that is being loaded, or whose load was stopped.

    Raises:
        DataError: says how far it came.
    """
    if facts.loading is not None:
        done = f"{facts.loading.done:,} of {facts.loading.total:,}"
        raise DataError(f"{place}: incomplete, items loaded: {done}.", hint="Run the same load again to resume it.")


def _changed(facts: Facts, **changes: Any) -> Facts:
    return msgspec.structs.replace(facts, source="", **changes, changes=facts.changes + 1)


def _can_be_id(given: Any, kind: str) -> bool:
    """Whether a column of ids can hold a value."""
    if kind == "integer":
        return type(given) is int and -(2**63) <= given < 2**63
    return type(given) is str and not re.search("[\ud800-\udfff]", given)


def _length(longest: int, bits: int | None) -> int:
    return Codes(np.zeros((-(-longest // 16), 0), np.uint16), longest).check_length(bits)


def _result(found: Found, queries: int, bits: int, facts: Facts, fields: Sequence[str]) -> SearchResult:
    """Hits as a result: a small version of an index, whose rows are the hits in order; their codes are not needed."""
    counts = np.bincount(found.queries, minlength=queries).astype(np.int64)
    shape = queries, int(counts.max(initial=0))
    filled = np.arange(shape[1]) < counts[:, None]
    rows, distances = np.full(shape, -1, np.int64), np.zeros(shape, np.uint16)
    rows[filled], distances[filled] = np.arange(len(found.queries)), found.distances
    codes = Codes(np.zeros((1, len(found.queries)), np.uint16), 1)
    parts = (Part(Segment(codes, found.ids, found.metadata)),) if len(found.queries) else ()
    version = Version(parts, facts.fields, found.lost)
    return SearchResult(bits, Neighbours(rows, distances, counts), version, fields)
