"""Metadata of the items: one typed Arrow column per field.

A field has one kind: "string", "integer" (64-bit), "float", "boolean", "date", "timestamp" (without a time zone),
"timestamp UTC", "list" (of strings), or "json", which is the text of any other value. A value that is null and a value
that is missing are the same.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.errors import DataError, FormatError
from multibit.search.columns import Id, IdColumn, whole_array
from multibit.search.parquet import read_table
from multibit.search.trust import CheckedColumns

LIST = pyarrow.large_list(pyarrow.dictionary(pyarrow.int32(), pyarrow.large_string()))
TYPES: dict[str, Any] = {
    "string": pyarrow.large_string(),
    "integer": pyarrow.int64(),
    "float": pyarrow.float64(),
    "boolean": pyarrow.bool_(),
    "date": pyarrow.date32(),
    "timestamp": pyarrow.timestamp("us"),
    "timestamp UTC": pyarrow.timestamp("us", "UTC"),
    "list": LIST,
    "json": pyarrow.large_string(),
}
"""Kind -> Arrow type of the column."""

VALUES: dict[str, Any] = {**TYPES, "list": pyarrow.large_string()}
"""Kind -> Arrow type of one value, of a list that of what is in it."""

EXACT = 2**53  # larger integers are not exact as floats
_KINDS: dict[type, str] = {str: "string", int: "integer", float: "float", bool: "boolean", datetime.date: "date"}

Kinds = Mapping[str, str]


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
        table = _as_table(given)
        if table is not None:
            return _of_table(table, known or {})
        return _of_mappings(given, ids, known or {})

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
            whole = [plain_nulls(len(part), kind) if piece is None else _simple(piece, kind)
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
        return pyarrow.table({name: _simple(column, self.kinds[name]) for name, column in self.columns.items()})


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


def merge_kinds(known: Kinds, new: Kinds) -> dict[str, str]:
    """The kinds of all fields.

    Raises:
        DataError: a field has two kinds.
    """
    for name, kind in new.items():
        if known.get(name, kind) != kind:
            raise _conflict(name, known[name], kind)
    return {**known, **new}


def encode_lists(array: Any) -> Any:
    """Lists of strings -> the column type `LIST`."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    values = pc.list_flatten(array).cast(pyarrow.large_string()).dictionary_encode()
    nulls = array.is_null() if array.null_count else None
    return pyarrow.LargeListArray.from_arrays(pyarrow.array(offsets), values, mask=nulls)


def as_json(value: Any) -> str:
    """The text of a value in a JSON column: equal values have equal texts.

    Raises:
        TypeError, ValueError, RecursionError: not a JSON value.

    Example:
        >>> as_json({"b": 1, "a": [None]})
        '{"a": [null], "b": 1}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True)
    text.encode()
    if not _has_text_keys(value):
        raise TypeError("keys must be strings")
    return text


def _has_text_keys(value: Any) -> bool:
    """Whether all keys are strings, at any depth: JSON would convert others to strings."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _has_text_keys(inner) for key, inner in value.items())
    return all(map(_has_text_keys, value)) if isinstance(value, list | tuple) else True


def _simple(column: Any, kind: str) -> Any:
    """The column with lists of plain strings, which Arrow can concatenate."""
    if kind != "list":
        return column
    values = column.values
    nulls = column.is_null() if column.null_count else None
    return pyarrow.LargeListArray.from_arrays(column.offsets, values.dictionary_decode(), mask=nulls)


def plain_nulls(count: int, kind: str) -> Any:
    """A column of nulls as other tools read it: lists are lists of strings."""
    return pyarrow.nulls(count, pyarrow.large_list(pyarrow.large_string()) if kind == "list" else TYPES[kind])


def _conflict(name: str, known: str, new: str, found: str = "") -> DataError:
    problem = f"field {name!r} holds values of kind {known}, got {found or f'values of kind {new}'}."
    return DataError(problem, field="payloads", hint="Convert the values, or use another field name.")


# Python mappings


def _of_mappings(given: Sequence[Any], ids: IdColumn, known: Kinds) -> Metadata:
    if len(given) != len(ids):
        raise DataError(f"{len(ids)} ids, {len(given)} payloads: the counts must be equal.")
    for row, payload in enumerate(given):
        if not isinstance(payload, Mapping):
            found = type(payload).__name__
            raise DataError(f"that of id {ids[row]!r} must be a JSON object, got {found}.", field="payloads")
    kinds: dict[str, str] = {}
    columns = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(given)):
        values = [payload.get(name) for payload in given]
        _require_name(name, values, ids)
        kind = _kind(values)
        if kind:
            kinds[name] = _fitting(name, kind, known.get(name, kind), values, ids)
            columns[name] = _column(kinds[name], values, ids)
    return Metadata(len(ids), columns, kinds)


def _require_name(name: Any, values: list[Any], ids: IdColumn) -> None:
    try:
        if not isinstance(name, str):
            raise TypeError("keys must be strings")
        name.encode()
    except (TypeError, UnicodeEncodeError) as error:
        row = next((row for row, value in enumerate(values) if value is not None), 0)
        raise _invalid(ids[row], error) from None


def _invalid(name: Id, error: Exception) -> DataError:
    return DataError(f"that of id {name!r} is not valid JSON: {error}.", field="payloads")


def _kind(values: list[Any]) -> str | None:
    """The kind of a column with these values; None if all are null."""
    found = set(map(type, values)) - {type(None)}
    if not found:
        return None
    if found <= {int, float}:
        integers = [value for value in values if type(value) is int]
        limit = 2**63 - 1 if float not in found else EXACT
        if any(not -limit - 1 <= value <= limit for value in integers):
            return "json"
        return "float" if float in found else "integer"
    if found <= {list, tuple}:
        inner = set(map(type, itertools.chain.from_iterable(value for value in values if value is not None)))
        return "list" if inner <= {str} else "json"
    if found == {datetime.datetime}:
        zones = {value.tzinfo is None for value in values if value is not None}
        return "json" if len(zones) > 1 else "timestamp" if zones.pop() else "timestamp UTC"
    return _KINDS.get(next(iter(found)), "json") if len(found) == 1 else "json"


def _fitting(name: str, kind: str, known: str, values: list[Any], ids: IdColumn) -> str:
    """The kind to convert to: that of the field in the index, where all values fit it."""
    if known in (kind, "json"):
        return known
    for row, value in enumerate(values):
        one = None if value is None else _kind([value])
        if one is not None and (known, one) != ("float", "integer") and one != known:
            raise _conflict(name, known, one, f"{value!r} of id {ids[row]!r}")
    if known == "float" and any(type(value) is int and abs(value) > EXACT for value in values):
        raise _conflict(name, known, kind, f"an integer beyond 2**53, which floats cannot represent, near {ids[0]!r}")
    return known


def _column(kind: str, values: list[Any], ids: IdColumn) -> Any:
    if kind == "json":
        return pyarrow.array([_json(value, ids[row]) for row, value in enumerate(values)], TYPES[kind])
    if kind == "float":
        for row, value in enumerate(values):
            if value is not None and not math.isfinite(value):
                raise _invalid(ids[row], ValueError("Out of range float values are not JSON compliant"))
    try:
        if kind == "list":
            return encode_lists(pyarrow.array(values, pyarrow.large_list(pyarrow.large_string())))
        return pyarrow.array(values, TYPES[kind])
    except (UnicodeEncodeError, OverflowError, pyarrow.ArrowInvalid) as error:
        for row, value in enumerate(values):
            if kind in ("string", "list"):
                _json(value, ids[row])  # names the id
        raise DataError(f"cannot be stored as {kind} ({error}).", field="payloads") from None


def _json(value: Any, name: Id) -> str | None:
    try:
        return None if value is None else as_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid(name, error) from None


# Tables


def _as_table(given: Any) -> Any:
    """An Arrow table of a table, a Parquet file or a frame; None for anything else."""
    if isinstance(given, str | Path):
        return read_table(given)
    if isinstance(given, pyarrow.Table):
        return given
    if isinstance(given, pyarrow.RecordBatch):
        return pyarrow.Table.from_batches([given])
    if hasattr(given, "__arrow_c_stream__"):
        return pyarrow.table(given)
    return None


def _of_table(table: Any, known: Kinds) -> Metadata:
    kinds: dict[str, str] = {}
    columns = {}
    for name, chunked in zip(table.column_names, table.columns, strict=True):
        if name.startswith("__index_level_"):  # the row labels of pandas
            continue
        array = whole_array(chunked)
        if array.null_count == len(array):
            continue
        kind, column = _of_array(array)
        wanted = known.get(name, kind)
        if kind != wanted and wanted == "json":
            texts = [_json(value, row) for row, value in enumerate(array.to_pylist())]
            kind, column = wanted, pyarrow.array(texts, TYPES[wanted])
        elif (wanted, kind) == ("float", "integer"):
            kind, column = _as_floats(name, column)
        if kind != wanted:
            raise _conflict(name, wanted, kind)
        kinds[name], columns[name] = kind, column
    return Metadata(table.num_rows, columns, kinds)


def _as_floats(name: str, column: Any) -> tuple[str, Any]:
    try:
        return "float", column.cast(pyarrow.float64())
    except pyarrow.ArrowInvalid as error:
        raise _conflict(name, "float", "integer", str(error)) from None


def _of_array(array: Any) -> tuple[str, Any]:
    """Kind and column of an Arrow array; NaN counts as null."""
    types, given = pyarrow.types, array.type
    if types.is_dictionary(given):
        return _of_array(array.dictionary_decode())
    if types.is_list(given) or types.is_large_list(given):
        plain = array.cast(pyarrow.large_list(given.value_type))
        inner = given.value_type.value_type if types.is_dictionary(given.value_type) else given.value_type
        if (types.is_string(inner) or types.is_large_string(inner)) and not pc.list_flatten(plain).null_count:
            return "list", encode_lists(plain)
    kind = _kind_of_type(given)
    if kind == "float":
        column = array.cast(TYPES[kind])
        return kind, pc.if_else(pc.is_nan(column), pyarrow.scalar(None, TYPES[kind]), column)
    if kind == "integer" and types.is_uint64(given) and (pc.max(array).as_py() or 0) >= 2**63:
        kind = "json"
    if kind == "json":
        return kind, pyarrow.array([_json(value, row) for row, value in enumerate(array.to_pylist())], TYPES[kind])
    return kind, pyarrow.concat_arrays([array.cast(TYPES[kind], safe=not types.is_timestamp(given))])


def _kind_of_type(given: Any) -> str:
    types = pyarrow.types
    if types.is_timestamp(given):
        return "timestamp" if given.tz is None else "timestamp UTC"
    tests = {
        "string": (types.is_string, types.is_large_string),
        "integer": (types.is_integer,),
        "float": (types.is_floating,),
        "boolean": (types.is_boolean,),
        "date": (types.is_date,),
    }
    return next((kind for kind, each in tests.items() if any(test(given) for test in each)), "json")
