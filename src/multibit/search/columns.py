"""Columns of an index next to the codes: ids (numbered, integers or strings) and JSON payloads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.errors import DataError

Id = str | int
EMPTY = "{}"
_MISSING = object()  # unlike None, which can be a value of a payload


def text_arrays(texts: pyarrow.LargeStringArray, name: str) -> dict[str, NDArray[Any]]:
    """A string column as two arrays for a file: bytes and offsets."""
    whole = pyarrow.concat_arrays([texts])  # a slice becomes buffers that start at 0
    _, offsets, data = whole.buffers()
    ends = np.zeros(1, np.int64) if offsets is None else np.frombuffer(offsets, np.int64)[: len(texts) + 1]
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[: ends[-1]]
    return {name: content, f"{name}_offsets": ends}


def text_column(arrays: Mapping[str, NDArray[Any]], name: str) -> pyarrow.LargeStringArray:
    """Inverse of `text_arrays`, without copying: the column reads the mapped file."""
    offsets, content = arrays[f"{name}_offsets"], arrays[name]
    buffers = pyarrow.py_buffer(offsets), pyarrow.py_buffer(content)
    return pyarrow.LargeStringArray.from_buffers(len(offsets) - 1, *buffers)


def plain(name: Any) -> Any:
    """A numpy scalar as a Python value; others unchanged."""
    return name.item() if isinstance(name, np.generic) else name


def strings(values: Iterable[str]) -> pyarrow.LargeStringArray:
    """A string column."""
    return pyarrow.array(list(values), pyarrow.large_string())


@dataclass(frozen=True, eq=False)
class IdColumn:
    """Unique ids in row order: consecutive integers without storage (`range`), 64-bit integers, or strings.

    Example:
        >>> ids = IdColumn(strings(["a", "b"]))
        >>> ids[1], ids.rows_of(["b"]), ids.kind
        ('b', array([1]), 'string')
    """

    values: range | NDArray[np.int64] | pyarrow.LargeStringArray

    @classmethod
    def of(cls, ids: Sequence[Id] | NDArray[Any]) -> IdColumn:
        """A column of these ids.

        Raises:
            DataError: an id that is neither string nor integer, both kinds mixed, or a duplicate.
        """
        if isinstance(ids, str):
            raise DataError(f"need a list of ids, got the text {ids!r}.", field="ids")
        if isinstance(ids, range) and ids.step == 1 and ids.start >= -(2**63) and ids.stop <= 2**63:
            return cls(ids)
        names = [plain(name) for name in ids]
        kinds = {type(name) for name in names}
        if not kinds <= {str} and not kinds <= {int}:
            wrong = next((name for name in names if type(name) not in (str, int)), names[0])
            raise DataError(f"must be all strings or all integers, got {wrong!r}.", field="ids")
        try:
            column = cls(strings(names) if kinds == {str} else np.array(names, np.int64))
        except (OverflowError, UnicodeEncodeError) as error:
            raise DataError(f"need UTF-8 text or 64-bit integers ({error}).", field="ids") from None
        if len(column.row_by_id) < len(names):
            twice = next(name for row, name in enumerate(names) if column.row_by_id[name] != row)
            raise DataError(f"{twice!r} is given twice.", field="ids")
        return column

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> Id:
        value = self.values[row]
        if isinstance(value, pyarrow.LargeStringScalar):
            return str(value)
        return int(value)

    @property
    def kind(self) -> str:
        """One of "range", "integer" and "string"."""
        if isinstance(self.values, range):
            return "range"
        return "integer" if isinstance(self.values, np.ndarray) else "string"

    @cached_property
    def row_by_id(self) -> Mapping[Id, int]:
        """Row of each id; built when first needed."""
        values = self.values if isinstance(self.values, range) else self.values.tolist()
        return {name: row for row, name in enumerate(values)}

    @property
    def next(self) -> int:
        """The integer that continues the numbering.

        Raises:
            DataError: the ids are strings, or too large.
        """
        if isinstance(self.values, range):
            return self.values.stop
        if not len(self):
            return 0
        if not isinstance(self.values, np.ndarray):
            raise DataError("must be given: the index has string ids.", option="ids")
        largest = int(self.values.max())
        if largest > 2**62:
            raise DataError(f"must be given: the numbering cannot continue after {largest}.", option="ids")
        return max(largest, -1) + 1

    def known(self, ids: Iterable[Id]) -> list[bool]:
        """Whether each of these is in the column."""
        kind = str if self.kind == "string" else int
        found = self.values if isinstance(self.values, range) else self.row_by_id
        return [type(plain(name)) is kind and plain(name) in found for name in ids]

    def rows_of(self, ids: Sequence[Id]) -> Rows:
        """(n,) int64 rows of n ids.

        Raises:
            DataError: an id is unknown.
        """
        if isinstance(ids, str):
            raise DataError(f"need a list of ids, got the text {ids!r}.", field="ids")
        for name, is_known in zip(ids, self.known(ids), strict=True):
            if not is_known:
                raise DataError(f"{name!r} is not in the index of {len(self):,} items.", field="ids")
        if isinstance(self.values, range):
            return np.array([self.values.index(int(name)) for name in ids], np.int64)
        return np.array([self.row_by_id[plain(name)] for name in ids], np.int64)

    def append(self, other: IdColumn) -> IdColumn:
        """Concatenate.

        Raises:
            DataError: an id in both, or ids of another kind.
        """
        if not len(self) or not len(other):
            return other if not len(self) else self
        if (self.kind == "string") != (other.kind == "string"):
            raise DataError(f"new ids of kind {other.kind} cannot be added to ids of kind {self.kind}.", field="ids")
        mine, theirs = self.values, other.values
        if isinstance(mine, range) and isinstance(theirs, range) and mine.stop == theirs.start:
            return IdColumn(range(mine.start, theirs.stop))
        known = self.known(other[row] for row in range(len(other)))
        if any(known):
            raise DataError(f"{other[known.index(True)]!r} is already in the index.", field="ids")
        if self.kind == "string":
            return IdColumn(pyarrow.concat_arrays([mine, theirs]))
        return IdColumn(np.concatenate([np.asarray(mine, np.int64), np.asarray(theirs, np.int64)]))

    def take(self, rows: Rows) -> IdColumn:
        """Some of the ids, in the order given."""
        if isinstance(self.values, pyarrow.LargeStringArray):
            return IdColumn(self.values.take(pyarrow.array(rows)))
        return IdColumn(np.asarray(self.values, np.int64)[rows])

    def to_arrays(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and header for a file."""
        if isinstance(self.values, range):
            return {}, {"ids": "range", "first_id": self.values.start}
        if isinstance(self.values, np.ndarray):
            return {"ids": self.values}, {"ids": "integer"}
        return text_arrays(self.values, "ids"), {"ids": "string"}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> IdColumn:
        """Inverse of `to_arrays`."""
        if header["ids"] == "range":
            return cls(range(header["first_id"], header["first_id"] + header["count"]))
        return cls(arrays["ids"] if header["ids"] == "integer" else text_column(arrays, "ids"))


@dataclass(frozen=True, eq=False)
class PayloadColumn:
    """A JSON object per row, stored as text and parsed on access; nothing is stored while all are empty.

    Attributes:
        count: number of rows. texts: (count,) JSON, None while all are empty.
    """

    count: int
    texts: pyarrow.LargeStringArray | None = None

    @classmethod
    def of(cls, payloads: Sequence[Mapping[str, Any]] | None, ids: IdColumn) -> PayloadColumn:
        """A column of these objects.

        Raises:
            DataError: a payload is not a JSON object; names its id.
        """
        if payloads is None:
            return cls(len(ids))
        return cls(len(ids), strings(_to_json(payload, ids[row]) for row, payload in enumerate(payloads)))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {} if self.texts is None else dict(json.loads(str(self.texts[row])))

    def append(self, other: PayloadColumn) -> PayloadColumn:
        """Concatenate."""
        if self.texts is None and other.texts is None:
            return PayloadColumn(self.count + other.count)
        return PayloadColumn(self.count + other.count, pyarrow.concat_arrays([self._written(), other._written()]))

    def take(self, rows: Rows) -> PayloadColumn:
        """Some of the payloads, in the order given."""
        return PayloadColumn(len(rows), None if self.texts is None else self.texts.take(pyarrow.array(rows)))

    def matching(self, where: Mapping[str, Any]) -> NDArray[np.bool_]:
        """(count,) bool, rows with these values: equal, or contained in a list of the payload."""
        return np.fromiter((_matches(self[row], where) for row in range(self.count)), np.bool_, self.count)

    def read_conditions(self, typed: Mapping[str, str]) -> dict[str, Any]:
        """Typed conditions -> values for `matching`, each of the type that the payloads have.

        A condition is text if some payload has that text, else it is read as JSON: 1 is the label "1" where a payload
        has it, else the number.

        Raises:
            DataError: no payload has such a field, or such a value of it.

        Example:
            >>> column = PayloadColumn.of([{"labels": ["1", "dog"], "year": 2001}], IdColumn.of(["a"]))
            >>> column.read_conditions({"labels": "1", "year": "2001"})
            {'labels': '1', 'year': 2001}
        """
        return {field: self._read_condition(field, text) for field, text in typed.items()}

    def _read_condition(self, field: str, text: str) -> Any:
        for reading in (text, *_as_json(text)):
            if any(_holds(self[row].get(field, _MISSING), reading) for row in range(self.count)):
                return reading
        fields = sorted({name for row in range(self.count) for name in self[row]})
        if field not in fields:
            known = f"choose from {', '.join(fields)}" if fields else "the items have no fields"
            raise DataError(f"no item has a field {field!r}; {known}.", option="where")
        raise DataError(f"no item has {field}={text}.", option="where", hint="Check the spelling; case matters.")

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays for a file."""
        return {} if self.texts is None else text_arrays(self.texts, "payloads")

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], count: int) -> PayloadColumn:
        """Inverse of `to_arrays`."""
        return cls(count, text_column(arrays, "payloads") if "payloads" in arrays else None)

    def _written(self) -> pyarrow.LargeStringArray:
        return strings([EMPTY] * self.count) if self.texts is None else self.texts


def _to_json(payload: Mapping[str, Any], name: Id) -> str:
    if not isinstance(payload, Mapping):
        raise DataError(f"that of id {name!r} must be a JSON object, got {type(payload).__name__}.", field="payloads")
    try:
        text = json.dumps(dict(payload), ensure_ascii=False, allow_nan=False)
        text.encode()
        if not _has_text_keys(payload):
            raise TypeError("keys must be strings")
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"that of id {name!r} is not valid JSON: {error}.", field="payloads") from None


def _has_text_keys(value: Any) -> bool:
    """Whether all keys are strings, at any depth: JSON would convert others to strings."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _has_text_keys(inner) for key, inner in value.items())
    return all(map(_has_text_keys, value)) if isinstance(value, list | tuple) else True


def _matches(payload: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    return all(_holds(payload.get(field, _MISSING), wanted) for field, wanted in where.items())


def _holds(value: Any, wanted: Any) -> bool:
    """Whether a value of a payload is the wanted one, or a list that contains it; true and 1 differ."""
    return _same(value, wanted) or (isinstance(value, list) and any(_same(each, wanted) for each in value))


def _same(value: Any, wanted: Any) -> bool:
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


def _as_json(text: str) -> list[Any]:
    """The JSON value of a text, if it is valid JSON: a number, true, false, null, or a quoted text."""
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return []
