"""The contract of a database that holds an index: what it stores about it, what it is asked, and what it answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.codes import Codes
from multibit.config import MAX_BITS
from multibit.errors import FormatError
from multibit.search.columns import Id, IdColumn
from multibit.search.conditions import Condition
from multibit.search.kinds import Kinds
from multibit.search.metadata import Metadata
from multibit.search.segments import Lost

VERSION = 1
"""Newest version of the tables that this multibit reads."""


class Loading(msgspec.Struct, frozen=True):
    """A bulk load that is not finished: fingerprint of its source, and the number of items that are stored."""

    source: str
    done: int
    total: int


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a database stores about an index.

    Attributes:
        model: fingerprint of the model. modality: of the items. bits: length of the codes. ids: their kind.
        fields: name -> kind, in the order of the columns. changes: number of changes so far.
        loading: None when complete. source: fingerprint of what was loaded, "" after a change.
        shard, shards: place of this database among several.
    """

    version: int = VERSION
    model: str = ""
    modality: str = ""
    bits: Annotated[int, msgspec.Meta(ge=1, le=MAX_BITS)]
    ids: Literal["string", "integer"] = "string"
    fields: dict[str, str] = {}
    changes: int = 0
    loading: Loading | None = None
    source: str = ""
    shard: int = 0
    shards: int = 1

    def to_json(self) -> str:
        """The text that is stored."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of_json(cls, text: str, place: str) -> Facts:
        """Inverse of `to_json`.

        Args:
            text: that was stored. place: of the index, for errors.

        Raises:
            FormatError: a newer version, or not such a text.

        Example:
            >>> Facts.of_json(Facts(bits=64).to_json(), "db").bits
            64
        """
        try:
            version = msgspec.json.decode(text, type=_Version).version
            if version > VERSION:
                raise FormatError(
                    f"{place}: written in format version {version}; this multibit reads up to {VERSION}.",
                    field="version",
                    hint="Upgrade multibit to open it.",
                )
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            hint = "Load the index again."
            raise FormatError(f"{place}: corrupt description of the index ({error}).", hint=hint) from None


class _Version(msgspec.Struct):
    version: int


class RemoteCapabilities(NamedTuple):
    """What a database can do. Every one searches exactly, filters, and searches any prefix.

    Attributes:
        approximate: also searches an HNSW index, where `ef_search` asks for it. shards: holds an index on several
            machines. transactions: a change of many items is made completely or not at all.
    """

    approximate: bool = False
    shards: bool = True
    transactions: bool = False


class Items(NamedTuple):
    """Stored items, or items to store: N ids, ages (N,) int64, codes and metadata."""

    ids: IdColumn
    ages: Rows
    codes: Codes
    metadata: Metadata


class Asked(NamedTuple):
    """A search, whose arguments are checked.

    Attributes:
        codes: Q queries of `bits` bits. k: hits of each. max_distance: of a hit. condition: on the metadata.
        among: ids that may be found. fields: of the hits. ef_search: candidates of an approximate search; None for
        an exact one.
    """

    codes: Codes
    k: int
    max_distance: int | None
    condition: Condition | None
    among: Sequence[Id] | None
    fields: Sequence[str]
    ef_search: int | None = None


@dataclass(frozen=True, eq=False)
class Found:
    """Hits of all queries, by (query, distance, age).

    Attributes:
        queries: (n,) int64, number of the query. distances: (n,) uint16. ages: (n,) int64.
        ids, metadata: of the n hits. lost: servers that did not answer, where the others are enough.
    """

    queries: Rows
    distances: NDArray[np.uint16]
    ages: Rows
    ids: IdColumn
    metadata: Metadata
    lost: tuple[Lost, ...] = ()


class Store(Protocol):
    """An index in a database. `RemoteIndex` checks the arguments, so a store gets valid ones only.

    Every method raises UnavailableError where the server cannot be reached or takes too long, and ConfigError where it
    refuses the user.
    """

    @property
    def capabilities(self) -> RemoteCapabilities:
        """What the database can do."""
        ...

    @property
    def place(self) -> str:
        """Where it is, for messages: never with a password."""
        ...

    def read(self) -> Facts | None:
        """What is stored about the index; None where there is none."""
        ...

    def create(self, facts: Facts) -> None:
        """Create an empty index, in the place of one that is there."""
        ...

    def drop(self) -> None:
        """Remove the index, if there is one."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """Be the only writer in the block, where the database can; an error inside undoes it, where it can."""
        ...

    def describe(self, facts: Facts) -> None:
        """Store other facts, and add the columns of new fields."""
        ...

    def put(self, facts: Facts, items: Items) -> None:
        """Store items, in the place of those with their ids."""
        ...

    def remove(self, facts: Facts, ids: Sequence[Id]) -> None:
        """Remove items, those that there are."""
        ...

    def settle(self) -> None:
        """Make searches fast after many changes, and build the HNSW indices that are asked for and not there."""
        ...

    def youngest(self) -> int:
        """Largest age that an item has or had; -1 if there was none."""
        ...

    def count(self) -> int:
        """Number of items."""
        ...

    def search(self, facts: Facts, asked: Asked) -> Found:
        """The k nearest items of each query, by (distance, age); approximately where `ef_search` is given."""
        ...

    def items(self, facts: Facts, ids: Sequence[Id]) -> Items:
        """The items that there are among some ids, in any order."""
        ...

    def page(self, facts: Facts, start: int, count: int) -> Items:
        """Some items in order of age."""
        ...

    def values(self, facts: Facts, field: str, limit: int) -> list[tuple[Any, int]]:
        """The most common values of a field, of each list those in it, with counts; ties by value."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def column_names(fields: Kinds) -> dict[str, str]:
    """Field -> column. A column is named by a number and what is readable of the field, so any field has one.

    Example:
        >>> column_names({"labels": "list", 'Ä"; DROP TABLE x': "string", "日": "float"})
        {'labels': 'f0_labels', 'Ä"; DROP TABLE x': 'f1_drop_table_x', '日': 'f2'}
    """
    names = {}
    for number, field in enumerate(fields):
        readable = re.sub("[^a-z0-9]+", "_", field.lower()).strip("_")[:40]
        names[field] = f"f{number}_{readable}".rstrip("_")
    return names
