"""Ids of an index: numbered, integers or strings, found by a sorted column of 64-bit hashes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow
import xxhash
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.codes.packing import CodesHeader
from multibit.errors import DataError

Id = str | int
Lookup = tuple[NDArray[np.uint64], Rows]


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
    if offsets.dtype != np.int64 or content.dtype != np.uint8 or offsets.ndim != 1 or not len(offsets):
        raise ValueError(f"{name}: no texts")
    buffers = pyarrow.py_buffer(offsets), pyarrow.py_buffer(content)
    column = pyarrow.LargeStringArray.from_buffers(len(offsets) - 1, *buffers)
    column.validate()
    return column


def plain(name: Any) -> Any:
    """A numpy scalar as a Python value; others unchanged."""
    return name.item() if isinstance(name, np.generic) else name


def strings(values: Iterable[str]) -> pyarrow.LargeStringArray:
    """A string column."""
    return pyarrow.array(list(values), pyarrow.large_string())


class IdHeader(CodesHeader, kw_only=True):
    """What a file must say about its codes and their ids."""

    ids: Literal["range", "integer", "string"]
    first_id: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)] = 0


@dataclass(frozen=True, eq=False)
class IdColumn:
    """Unique ids in row order: consecutive integers without storage (`range`), 64-bit integers, or strings.

    Attributes:
        values: the ids. stored: `lookup` where a file has it; computed when first needed otherwise.

    Example:
        >>> ids = IdColumn(strings(["a", "b"]))
        >>> ids[1], ids.find(["b", "c"]), ids.kind
        ('b', array([ 1, -1]), 'string')
    """

    values: range | NDArray[np.int64] | pyarrow.LargeStringArray
    stored: Lookup | None = None

    @classmethod
    def of(cls, ids: Any) -> IdColumn:
        """A column of these ids: a sequence, a numpy array, or an Arrow column.

        Raises:
            DataError: an id that is neither string nor integer, both kinds mixed, or a duplicate.
        """
        if isinstance(ids, str):
            raise DataError(f"need a list of ids, got the text {ids!r}.", field="ids")
        if isinstance(ids, IdColumn):
            return ids
        if isinstance(ids, range) and ids.step == 1 and ids.start >= -(2**63) and ids.stop <= 2**63:
            return cls(ids)
        column = _of_arrow(ids) if isinstance(ids, pyarrow.Array | pyarrow.ChunkedArray) else _of_names(ids)
        twice = column._duplicate()
        if twice is not None:
            raise DataError(f"{column[twice]!r} is given twice.", field="ids")
        return column

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> Id:
        value = self.values[row]
        if isinstance(value, pyarrow.LargeStringScalar):
            return str(value)
        return int(value)

    def listed(self, rows: Rows) -> list[Id]:
        """The ids of some rows."""
        if isinstance(self.values, pyarrow.LargeStringArray):
            return list(self.values.take(pyarrow.array(rows)).to_pylist())
        return [self[row] for row in rows.tolist()]

    @property
    def kind(self) -> str:
        """One of "range", "integer" and "string"."""
        if isinstance(self.values, range):
            return "range"
        return "integer" if isinstance(self.values, np.ndarray) else "string"

    @cached_property
    def lookup(self) -> Lookup:
        """(N,) keys in ascending order, and the row of each. The key is the integer itself, or xxh3 of the string."""
        if self.stored is not None:
            return self.stored
        keys = self._keys()
        order = np.argsort(keys, kind="stable")
        return keys[order], order

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

    def find(self, ids: IdColumn | Sequence[Id]) -> Rows:
        """(n,) row of each of n ids, -1 where it is not in the column."""
        if not isinstance(ids, IdColumn):
            return self._find_names(ids)
        if not len(self) or not len(ids) or (self.kind == "string") != (ids.kind == "string"):
            return np.full(len(ids), -1, np.int64)
        if isinstance(self.values, range):
            wanted = np.asarray(ids.values, np.int64)
            return np.where((wanted >= self.values.start) & (wanted < self.values.stop), wanted - self.values.start, -1)
        keys, rows = self.lookup
        hashes = ids._keys()
        place = np.searchsorted(keys, hashes)
        nearest = np.minimum(place, len(keys) - 1)
        out = np.where(keys[nearest] == hashes, rows[nearest], -1)
        return self._checked(out, ids, keys, place) if self.kind == "string" else out

    def append(self, other: IdColumn) -> IdColumn:
        """Concatenate ids that are known to differ."""
        if not len(self) or not len(other):
            return other if not len(self) else self
        mine, theirs = self.values, other.values
        if isinstance(mine, range) and isinstance(theirs, range) and mine.stop == theirs.start:
            return IdColumn(range(mine.start, theirs.stop))
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
        keys, rows = self.lookup
        lookup = {"id_keys": keys, "id_rows": rows}
        if isinstance(self.values, np.ndarray):
            return {"ids": self.values, **lookup}, {"ids": "integer"}
        return {**text_arrays(self.values, "ids"), **lookup}, {"ids": "string"}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], header: IdHeader, count: int) -> IdColumn:
        """Inverse of `to_arrays`; files of earlier versions have no lookup.

        Args:
            arrays, header: of the file. count: number of ids.

        Raises:
            ValueError, KeyError: the arrays are not those of so many ids.
        """
        if header.ids == "range":
            return cls(range(header.first_id, header.first_id + count))
        lookup = (arrays["id_keys"], arrays["id_rows"]) if "id_keys" in arrays else None
        found = cls(arrays["ids"] if header.ids == "integer" else text_column(arrays, "ids"), lookup)
        kinds = {"id_keys": np.uint64, "id_rows": np.int64, **({"ids": np.int64} if header.ids == "integer" else {})}
        wrong = [name for name in kinds if name in arrays and not _is_column(arrays[name], kinds[name], count)]
        if wrong or len(found) != count:
            raise ValueError(f"{', '.join(wrong) or 'ids'}: not {count} of them")
        return found

    def _keys(self) -> NDArray[np.uint64]:
        if isinstance(self.values, pyarrow.LargeStringArray):
            hashed = map(xxhash.xxh3_64_intdigest, self.values.cast(pyarrow.large_binary()).to_pylist())
            return np.fromiter(hashed, np.uint64, len(self.values))
        return np.asarray(self.values, np.int64).view(np.uint64)

    def _duplicate(self) -> int | None:
        """Row of an id that an earlier row has, if there is one."""
        keys, rows = self.lookup
        for place in np.flatnonzero(keys[1:] == keys[:-1]):
            first = int(np.searchsorted(keys, keys[place]))
            names = [self[int(row)] for row in rows[first : place + 2]]
            if names[-1] in names[:-1]:
                return int(rows[place + 1])
        return None

    def _find_names(self, ids: Sequence[Id]) -> Rows:
        names, kind = [plain(name) for name in ids], str if self.kind == "string" else int
        out = np.full(len(names), -1, np.int64)
        usable = [row for row, name in enumerate(names) if type(name) is kind and _storable(name)]
        if usable:
            out[usable] = self.find(_of_names([names[row] for row in usable]))
        return out

    def _checked(self, out: Rows, ids: IdColumn, keys: NDArray[np.uint64], place: Rows) -> Rows:
        """Compare the strings themselves: two strings may have one hash."""
        found = np.flatnonzero(out >= 0)
        for at, mine, wanted in zip(found.tolist(), self.listed(out[found]), ids.listed(found), strict=True):
            if mine != wanted:
                last = int(np.searchsorted(keys, keys[place[at]], side="right"))
                rows = self.lookup[1][place[at] : last].tolist()
                out[at] = next((row for row in rows if self[row] == wanted), -1)
        return out


def _of_arrow(ids: Any) -> IdColumn:
    array = ids.combine_chunks() if isinstance(ids, pyarrow.ChunkedArray) else ids
    if array.null_count:
        raise DataError("an id is null.", field="ids")
    kind = array.type.value_type if pyarrow.types.is_dictionary(array.type) else array.type
    if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
        return IdColumn(pyarrow.concat_arrays([array.cast(pyarrow.large_string())]))
    if not pyarrow.types.is_integer(kind):
        raise DataError(f"must be strings or integers, got Arrow {kind}.", field="ids")
    try:
        return IdColumn(np.array(array.cast(pyarrow.int64()).to_numpy(zero_copy_only=False)))
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"need UTF-8 text or 64-bit integers ({error}).", field="ids") from None


def _of_names(ids: Any) -> IdColumn:
    names = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    kinds = set(map(type, names))
    if not kinds <= {str} and not kinds <= {int}:
        names = [plain(name) for name in names]
        kinds = set(map(type, names))
    if not kinds <= {str} and not kinds <= {int}:
        wrong = next((name for name in names if type(name) not in (str, int)), names[0])
        raise DataError(f"must be all strings or all integers, got {wrong!r}.", field="ids")
    try:
        return IdColumn(strings(names) if kinds == {str} else np.array(names, np.int64))
    except (OverflowError, UnicodeEncodeError) as error:
        raise DataError(f"need UTF-8 text or 64-bit integers ({error}).", field="ids") from None


def _is_column(array: NDArray[Any], dtype: Any, count: int) -> bool:
    return array.dtype == dtype and array.shape == (count,)


def _storable(name: Id) -> bool:
    """Whether a column can hold the id at all."""
    if isinstance(name, int):
        return -(2**63) <= name < 2**63
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
