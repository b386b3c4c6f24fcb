"""Kinds of the metadata fields, and the Arrow types of their columns.

A field has one kind: "string", "integer" (64-bit), "float", "boolean", "date", "timestamp" (without a time zone),
"timestamp UTC", "list" (of strings), or "json", which is the text of any other value. A value that is null and a value
that is missing are the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow
import pyarrow.compute as pc

from multibit.errors import DataError

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

Kind = Literal["string", "integer", "float", "boolean", "date", "timestamp", "timestamp UTC", "list", "json"]
"""Kinds that a file may name."""

VALUES: dict[str, Any] = {**TYPES, "list": pyarrow.large_string()}
"""Kind -> Arrow type of one value, of a list that of what is in it."""

Kinds = Mapping[str, str]


def merge_kinds(known: Kinds, new: Kinds) -> dict[str, str]:
    """The kinds of all fields.

    Raises:
        DataError: a field has two kinds.
    """
    for name, kind in new.items():
        if known.get(name, kind) != kind:
            raise conflict(name, known[name], kind)
    return {**known, **new}


def conflict(name: str, known: str, new: str, found: str = "") -> DataError:
    """The error of a field that gets values of another kind than it has; `found` describes them."""
    problem = f"field {name!r} holds values of kind {known}, got {found or f'values of kind {new}'}."
    return DataError(problem, field="payloads", hint="Convert the values, or use another field name.")


def encode_lists(array: Any) -> Any:
    """Lists of strings -> the column type `LIST`."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    values = pc.list_flatten(array).cast(pyarrow.large_string()).dictionary_encode()
    nulls = array.is_null() if array.null_count else None
    return pyarrow.LargeListArray.from_arrays(pyarrow.array(offsets), values, mask=nulls)


def plain_lists(column: Any, kind: str) -> Any:
    """The column with lists of plain strings, which Arrow can concatenate."""
    if kind != "list":
        return column
    values = column.values
    nulls = column.is_null() if column.null_count else None
    return pyarrow.LargeListArray.from_arrays(column.offsets, values.dictionary_decode(), mask=nulls)


def plain_nulls(count: int, kind: str) -> Any:
    """A column of nulls as other tools read it: lists are lists of strings."""
    return pyarrow.nulls(count, pyarrow.large_list(pyarrow.large_string()) if kind == "list" else TYPES[kind])


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
