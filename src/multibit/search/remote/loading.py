"""Bulk loads into a database: in blocks, resumed after an interruption, and repeated without effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec
import numpy as np

from multibit.codes.packing import Codes
from multibit.errors import DataError
from multibit.files import fingerprint
from multibit.progress import notice, track
from multibit.search.columns import IdColumn
from multibit.search.index import Index
from multibit.search.kinds import merge_kinds
from multibit.search.metadata import Metadata
from multibit.search.remote.base import Facts, Items, Loading
from multibit.search.remote.index import RemoteIndex
from multibit.search.remote.opening import open_store

BLOCK = 50_000  # items that are stored together


class Source(Protocol):
    """What is loaded: always the same items in the same order.

    Attributes:
        model: fingerprint of the model. modality: of the items. bits: length of the codes. count: number of items.
        integer_ids: whether the ids are integers.
    """

    model: str
    modality: str
    bits: int
    count: int
    integer_ids: bool

    def fingerprint(self) -> str:
        """Hash of the content, which says whether an interrupted load is resumed."""
        ...

    def blocks(self, start: int) -> Iterator[tuple[IdColumn, Codes, Metadata]]:
        """The items from a row on, in blocks of bounded size."""
        ...


class IndexSource:
    """An index as the source of a load.

    Raises:
        DataError: it is empty, or has several codes per item.
    """

    def __init__(self, index: Index) -> None:
        if not len(index):
            raise DataError("the index is empty, so there is nothing to load.")
        self._version = index.version
        first = self._version.parts[0].segment
        first.codes.require_one_view("A database", "Use a local index.")
        self.model, self.modality, self.bits, self.count = index.model, index.modality, index.bits, len(index)
        self.integer_ids = first.ids.kind != "string"

    def fingerprint(self) -> str:
        """See `Source`."""
        kinds, parts = dict(self._version.kinds), [self.model, self.modality, self.bits]
        for ids, codes, metadata in self.blocks(0):
            arrays = {**ids.to_arrays()[0], **metadata.to_arrays()[0], "words": codes.words}
            parts.append(fingerprint(str(ids.values) if ids.kind == "range" else "", *arrays.values()))
        return fingerprint(kinds, *parts)

    def blocks(self, start: int) -> Iterator[tuple[IdColumn, Codes, Metadata]]:
        """See `Source`."""
        for block in self._version.blocks(BLOCK, start):
            yield block.ids, block.codes, block.metadata


def load(source: Source | Index, url: str, name: str = "image") -> RemoteIndex:
    """Load an index into a database, in the place of one that is there, in bounded memory.

    An interrupted load is resumed by the same call. One that is complete is not repeated, but an HNSW
    index that is new in the URL is built. Until it is complete the
    index cannot be searched.

    Args:
        source: an index, or another source. url, name: as for `open_remote`.

    Raises:
        DataError: an empty index, or what the database cannot store. UnavailableError, ConfigError, FormatError,
            MissingExtraError: as `open_remote`.
    """
    given = IndexSource(source) if isinstance(source, Index) else source
    store = open_store(url, name)
    facts = store.read()
    with notice("Comparing the content"):
        own = given.fingerprint()
    if facts is not None and facts.loading is None and facts.source == own:
        store.settle()  # builds an HNSW index that is new in the URL
        return RemoteIndex(store, facts)
    if facts is None or facts.loading is None or facts.loading.source != own:
        kind: Any = "integer" if given.integer_ids else "string"
        facts = Facts(bits=given.bits, model=given.model, modality=given.modality, ids=kind,
                      loading=Loading(own, 0, given.count))  # fmt: skip
        store.create(facts)
    assert facts.loading is not None
    done = facts.loading.done
    with track(f"Loading {name}", given.count, "items", done) as advance:
        for ids, codes, metadata in given.blocks(done):
            with store.writing():
                fields = merge_kinds(facts.fields, metadata.kinds)
                if fields != facts.fields:
                    facts = msgspec.structs.replace(facts, fields=fields)
                    store.describe(facts)
                facts = msgspec.structs.replace(facts, changes=facts.changes + 1)
                store.put(facts, Items(ids, np.arange(done, done + len(ids)), codes, metadata))
                done += len(ids)
                facts = msgspec.structs.replace(facts, loading=Loading(own, done, given.count))
                store.describe(facts)
            advance(len(ids))
    with notice("Settling the tables"):
        store.settle()
    facts = msgspec.structs.replace(facts, loading=None, source=own)
    store.describe(facts)
    return RemoteIndex(store, facts)
