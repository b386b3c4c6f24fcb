"""A few rows of stored metadata, read from the bytes of an Arrow stream without Arrow, whose import takes longer.

The stream is what `Metadata.to_arrays` writes: a schema, a dictionary for each column of lists, and one record batch
without compression. Its headers are Flatbuffers, of which this reads the few tables that it needs.
"""

from __future__ import annotations

import datetime
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCHEMA, DICTIONARY, BATCH = 1, 2, 3  # kinds of messages
_EPOCH = datetime.datetime(1970, 1, 1)


def metadata_rows(stream: NDArray[np.uint8], kinds: Mapping[str, str], rows: Sequence[int]) -> list[dict[str, Any]]:
    """The metadata of some items, without null values, as `Metadata.rows`.

    Args:
        stream: bytes of the Arrow stream. kinds: field -> kind, in the order of the columns. rows: of the items.

    Raises:
        ValueError, struct.error: not such a stream.
    """
    dictionaries: dict[int, _Columns] = {}
    ids: list[int] = []
    for kind, header, body in _messages(stream):
        if kind == SCHEMA:
            ids = [number for field in header.tables(1) for number in field.dictionary_ids()]
        elif kind == DICTIONARY:
            dictionaries[header.number(0, "q")] = _Columns(header.table(1), body)
        elif kind == BATCH:
            return _read(_Columns(header, body), dictionaries, ids, kinds, rows)
    raise ValueError("no record batch")


def _read(
    columns: _Columns, dictionaries: Mapping[int, _Columns], ids: list[int], kinds: Mapping[str, str],
    rows: Sequence[int],
) -> list[dict[str, Any]]:  # fmt: skip
    found: list[dict[str, Any]] = [{} for _ in rows]
    lists = iter(ids)
    for name, kind in kinds.items():
        valid = columns.next()
        read = columns.lists(dictionaries[next(lists)]) if kind == "list" else columns.plain(kind)
        for item, row in zip(found, rows, strict=True):
            if not len(valid) or valid[row >> 3] >> (row & 7) & 1:
                item[name] = read(row)
    return found


class _Table:
    """A table of Flatbuffers."""

    def __init__(self, data: memoryview, place: int) -> None:
        self._data, self._place = data, place
        self._fields = place - self._unpack("i", place)

    def _unpack(self, form: str, place: int) -> Any:
        return struct.unpack_from("<" + form, self._data, place)[0]

    def _field(self, number: int) -> int:
        """Place of a field, 0 if it has its default value."""
        entry = 4 + 2 * number
        offset = self._unpack("H", self._fields + entry) if entry < self._unpack("H", self._fields) else 0
        return self._place + offset if offset else 0

    def number(self, number: int, form: str) -> int:
        """A number, 0 by default."""
        place = self._field(number)
        return int(self._unpack(form, place)) if place else 0

    def table(self, number: int) -> _Table:
        """A table inside this one."""
        place = self._field(number)
        if not place:
            raise ValueError(f"no field {number}")
        return _Table(self._data, place + self._unpack("I", place))

    def has(self, number: int) -> bool:
        """Whether a field is there."""
        return bool(self._field(number))

    def _vector(self, number: int) -> tuple[int, int]:
        """Place of the first entry of a vector, and number of entries."""
        place = self._field(number)
        if not place:
            return 0, 0
        place += self._unpack("I", place)
        return place + 4, self._unpack("I", place)

    def tables(self, number: int) -> list[_Table]:
        """A vector of tables."""
        first, count = self._vector(number)
        places = range(first, first + 4 * count, 4)
        return [_Table(self._data, place + self._unpack("I", place)) for place in places]

    def pairs(self, number: int) -> list[tuple[int, int]]:
        """A vector of pairs of 64-bit integers."""
        first, count = self._vector(number)
        return list(struct.iter_unpack("<qq", self._data[first : first + 16 * count]))

    def dictionary_ids(self) -> list[int]:
        """Numbers of the dictionaries of a field of the schema and of its children."""
        own = [self.table(4).number(0, "q")] if self.has(4) else []
        return own + [number for child in self.tables(5) for number in child.dictionary_ids()]


class _Columns:
    """The buffers of a record batch, one after the other."""

    def __init__(self, batch: _Table, body: NDArray[np.uint8]) -> None:
        if batch.has(3):
            raise ValueError("compressed")
        self._buffers = iter(batch.pairs(2))
        self._body = body

    def next(self, dtype: Any = np.uint8) -> NDArray[Any]:
        """The next buffer, as an array."""
        start, length = next(self._buffers)
        return self._body[start : start + length - length % np.dtype(dtype).itemsize].view(dtype)

    def plain(self, kind: str) -> Any:
        """The function that reads a value of a column of this kind."""
        if kind in ("string", "json"):
            text = self.texts()
            return (lambda row: json.loads(text(row))) if kind == "json" else text
        if kind == "boolean":
            bits = self.next()
            return lambda row: bool(bits[row >> 3] >> (row & 7) & 1)
        values = self.next({"float": np.float64, "date": np.int32}.get(kind, np.int64))
        convert = {"integer": int, "float": float, "date": _date, "timestamp": _timestamp, "timestamp UTC": _utc}[kind]
        return lambda row: convert(values[row])  # type: ignore[operator]

    def texts(self) -> Any:
        """The function that reads a text of a column."""
        ends, content = self.next(np.int64), self.next()
        return lambda row: content[ends[row] : ends[row + 1]].tobytes().decode()

    def lists(self, dictionary: _Columns) -> Any:
        """The function that reads a list of a column of lists."""
        ends, _, codes = self.next(np.int64), self.next(), self.next(np.int32)
        dictionary.next()
        name = dictionary.texts()
        return lambda row: [name(int(code)) for code in codes[ends[row] : ends[row + 1]]]


def _messages(stream: NDArray[np.uint8]) -> Any:
    """Kind, header and body of each message."""
    place, data = 0, stream.data
    while place + 8 <= len(stream):
        marker, length = struct.unpack_from("<Ii", data, place)
        if marker != 0xFFFFFFFF or not length:
            return
        start = place + 8
        message = _Table(data, start + struct.unpack_from("<I", data, start)[0])
        size, body = message.number(3, "q"), start + length
        yield message.number(1, "B"), message.table(2), stream[body : body + size]
        place = body + size


def _date(days: Any) -> datetime.date:
    return (_EPOCH + datetime.timedelta(days=int(days))).date()


def _timestamp(microseconds: Any) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(microseconds=int(microseconds))


def _utc(microseconds: Any) -> datetime.datetime:
    return _timestamp(microseconds).replace(tzinfo=datetime.UTC)
