"""Metadata as users give it, mappings of Python or a table -> typed columns."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute as pc

from multibit.errors import DataError
from multibit.search.columns import Id, IdColumn, whole_array
from multibit.search.kinds import TYPES, Kinds, as_json, conflict, encode_lists
from multibit.search.parquet import read_table

EXACT = 2**53  # larger integers are not exact as floats
_KINDS: dict[type, str] = {str: "string", int: "integer", float: "float", bool: "boolean", datetime.date: "date"}
Columns = tuple[dict[str, Any], dict[str, str]]
"""Arrow array and kind of each field."""


# Python mappings


def of_mappings(given: Sequence[Any], ids: IdColumn, known: Kinds) -> Columns:
    """The columns of mappings, one per item. Arguments and errors are those of `Metadata.of`."""
    if len(given) != len(ids):
        raise DataError(f"{len(ids)} ids, {len(given)} payloads: the counts must be equal.")
    for row, payload in enumerate(given):
        if not isinstance(payload, Mapping):
            found = type(payload).__name__
            raise DataError(f"that of id {ids[row]!r} must be a JSON object, got {found}.", field="payloads")
    kinds = kinds_of(given, ids, known)
    columns = {name: _column(kind, [each.get(name) for each in given], ids) for name, kind in kinds.items()}
    return columns, kinds


def kinds_of(given: Sequence[Mapping[str, Any]], ids: Sequence[Id] | IdColumn, known: Kinds) -> dict[str, str]:
    """The kinds of the fields of mappings, of which some may be known; not of a field whose values are all null.

    Raises:
        DataError: as `Metadata.of`.
    """
    kinds: dict[str, str] = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(given)):
        values = [payload.get(name) for payload in given]
        _require_name(name, values, ids)
        if kind := _kind(values):
            kinds[name] = _fitting(name, kind, known.get(name, kind), values, ids)
    return kinds


def _require_name(name: Any, values: list[Any], ids: Sequence[Id] | IdColumn) -> None:
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


def _fitting(name: str, kind: str, known: str, values: list[Any], ids: Sequence[Id] | IdColumn) -> str:
    """The kind to convert to: that of the field in the index, where all values fit it."""
    if known in (kind, "json"):
        return known
    for row, value in enumerate(values):
        one = None if value is None else _kind([value])
        if one is not None and (known, one) != ("float", "integer") and one != known:
            raise conflict(name, known, one, f"{value!r} of id {ids[row]!r}")
    if known == "float" and any(type(value) is int and abs(value) > EXACT for value in values):
        raise conflict(name, known, kind, f"an integer beyond 2**53, which floats cannot represent, near {ids[0]!r}")
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


def as_table(given: Any) -> Any:
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


def of_table(table: Any, known: Kinds) -> Columns:
    """The columns of a table. Arguments and errors are those of `Metadata.of`."""
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
            raise conflict(name, wanted, kind)
        kinds[name], columns[name] = kind, column
    return columns, kinds


def _as_floats(name: str, column: Any) -> tuple[str, Any]:
    try:
        return "float", column.cast(pyarrow.float64())
    except pyarrow.ArrowInvalid as error:
        raise conflict(name, "float", "integer", str(error)) from None


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
