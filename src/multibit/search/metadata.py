"""Metadata of the items: one typed Arrow column per field, see `multibit.search.kinds`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.errors import FormatError
from multibit.search.columns import IdColumn
from multibit.search.kinds import TYPES, Kinds, encode_lists, plain_lists, plain_nulls
from multibit.search.payloads import as_table, of_mappings, of_table
from multibit.search.trust import CheckedColumns


@dataclass(frozen=True, eq=False)
class Metadata:
    """Metadata of some items.

    Attributes:
        count: N items. columns: field -> (N,) Arrow array of the type of its kind. kinds: field -> kind.

    Example:
        >>> data = Metadata.of([{"labels": ["a", "b"], "year": 2001}, {"year": 2010}], IdColumn(range(2)))
        >>> data[0], data[1], dict(data.kinds)
        ({'labels': ['a', 'b'], 'year': 2001}, {'year': 2010}, {'labels': 'list', 'year': 'integer'})
    """

    count: int
    columns: Mapping[str, Any] = field(default_factory=dict)
    kinds: Kinds = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any, ids: IdColumn, known: Kinds | None = None) -> Metadata:
        """Typed columns of what is given.

        Args:
            given: mappings (one per item), an Arrow table, the path of a Parquet file, a frame of pandas or Polars, or
                metadata; None for no metadata.
            ids: of the items, for errors. known: kinds of the fields that the index has.

        Raises:
            DataError: another number of rows, a value that no column can hold, or a value of another kind than the
                field has.
        """
        if given is None:
            return cls(len(ids))
        if isinstance(given, Metadata):
            return given
        table = as_table(given)
        if table is not None:
            return cls(table.num_rows, *of_table(table, known or {}))
        return cls(len(ids), *of_mappings(given, ids, known or {}))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> dict[str, Any]:
        if not -self.count <= row < self.count:
            raise IndexError(f"row {row} of {self.count}")
        return self.rows(np.array([row % self.count]))[0]

    def rows(self, rows: Rows, fields: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The metadata of some items, without null values; only some fields if they are given."""
        out: list[dict[str, Any]] = [{} for _ in range(len(rows))]
        for name in self.columns:
            if fields is None or name in fields:
                is_json = self.kinds[name] == "json"
                for item, value in zip(out, self._taken(name, rows).to_pylist(), strict=True):
                    if value is not None:
                        item[name] = _parsed(value, name) if is_json else value
        return out

    def only(self, names: Sequence[str]) -> Metadata:
        """The metadata with some of the fields only."""
        kept = [name for name in names if name in self.columns]
        return Metadata(
            self.count, {name: self.columns[name] for name in kept}, {name: self.kinds[name] for name in kept}
        )

    def take(self, rows: Rows) -> Metadata:
        """The metadata of some items, in the order given."""
        return Metadata(len(rows), {name: self._taken(name, rows) for name in self.columns}, self.kinds)

    def _taken(self, name: str, rows: Rows) -> Any:
        if isinstance(self.columns, CheckedColumns):
            return self.columns.take(name, rows)
        return self.columns[name].take(pyarrow.array(rows))

    @classmethod
    def concatenate(cls, parts: Sequence[Metadata]) -> Metadata:
        """Join the metadata of several sets of items; a field has the same kind in all of them."""
        if len(parts) == 1:
            return parts[0]
        kinds = {name: kind for part in parts for name, kind in part.kinds.items()}
        columns = {}
        for name, kind in kinds.items():
            pieces = [part.columns.get(name) for part in parts]
            whole = [plain_nulls(len(part), kind) if piece is None else plain_lists(piece, kind)
                     for piece, part in zip(pieces, parts, strict=True)]  # fmt: skip
            joined = pyarrow.concat_arrays(whole)
            columns[name] = encode_lists(joined) if kind == "list" else joined
        return cls(sum(map(len, parts)), columns, kinds)

    @cached_property
    def lists(self) -> dict[str, Lists]:
        """The list columns as arrays, for filters; each is filled when first needed."""
        return {}

    def list_column(self, name: str) -> Lists:
        """A list column as arrays."""
        if name not in self.lists:
            array = self.columns[name]
            values, offsets = array.values, np.asarray(array.offsets)
            self.lists[name] = Lists(offsets, np.asarray(values.indices), values.dictionary)
        return self.lists[name]

    def value_counts(self, name: str) -> Any:
        """The distinct values of a field, of each list those in it, and how often each occurs, as an Arrow table.

        Example:
            >>> data = Metadata.of([{"labels": ["a", "b"]}, {"labels": ["b"]}, {}], IdColumn(range(3)))
            >>> data.value_counts("labels").to_pylist()
            [{'value': 'a', 'count': 1}, {'value': 'b', 'count': 2}]
        """
        if self.kinds[name] == "list":
            lists = self.list_column(name)
            counts = np.bincount(lists.codes, minlength=len(lists.names))
            table = pyarrow.table({"value": lists.names, "count": counts})
            return table.filter(pyarrow.array(counts > 0))
        found = pc.value_counts(self.columns[name].drop_null())
        return pyarrow.table({"value": found.field("values"), "count": found.field("counts")})

    def to_arrays(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and header for a file."""
        header = {"fields": dict(self.kinds)}
        if not self.columns:
            return {}, header
        batch = pyarrow.record_batch(list(self.columns.values()), [str(at) for at in range(len(self.columns))])
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        written = np.frombuffer(sink.getvalue(), np.uint8)
        padded = np.zeros(-(-len(written) // 8) * 8, np.uint8)  # 64-bit words are stored at aligned places
        padded[: len(written)] = written
        return {"metadata": padded.view(np.uint64)}, header

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], kinds: Kinds, count: int) -> Metadata:
        """Inverse of `to_arrays`, without copying: the columns read the mapped file and are checked when they are used.

        Args:
            arrays: of the file. kinds: of the fields. count: number of items.

        Raises:
            ValueError: the columns are not those of these fields and items.
        """
        if "metadata" not in arrays:
            if kinds:
                raise ValueError(f"no metadata for the fields {', '.join(kinds)}")
            return cls(count)
        buffer = pyarrow.py_buffer(np.ascontiguousarray(arrays["metadata"]).view(np.uint8))
        try:
            batch = pyarrow.ipc.open_stream(buffer).read_next_batch()
        except (OSError, StopIteration) as error:  # so Arrow says that the buffer is not its stream
            raise ValueError(f"no columns of metadata ({error})") from None
        batch.validate()
        columns = dict(zip(kinds, batch.columns, strict=True))
        wrong = [name for name, column in columns.items() if column.type != TYPES[kinds[name]]]
        if batch.num_rows != count or wrong:
            raise ValueError(f"{batch.num_rows} rows of metadata for {count} items; fields of another kind: {wrong}")
        return cls(count, CheckedColumns(columns), kinds)

    def to_table(self) -> Any:
        """An Arrow table that other tools read: lists are lists of strings, and JSON is text."""
        return pyarrow.table({name: plain_lists(column, self.kinds[name]) for name, column in self.columns.items()})


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON ({error}).", field=name) from None


@dataclass(frozen=True, eq=False)
class Lists:
    """A column of lists of strings.

    Attributes:
        offsets: (N + 1,) where the values of each row begin. codes: place of each value in `names`. names: distinct.
    """

    offsets: NDArray[np.int64]
    codes: NDArray[np.int32]
    names: Any
