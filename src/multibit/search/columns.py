"""Ids of an index: numbered, integers or strings, found by a sorted column of 64-bit hashes."""

from __future__ import annotations

import itertools
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
from multibit.errors import DataError, FormatError, counted, require_integer
from multibit.search.trust import require_whole, take

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


def strings(values: Iterable[str | None]) -> pyarrow.LargeStringArray:
    """A string column."""
    return pyarrow.array(list(values), pyarrow.large_string())


def whole_array(column: Any) -> Any:
    """A column of an Arrow table as one array."""
    array = column.combine_chunks()
    return array if isinstance(array, pyarrow.Array) else pyarrow.concat_arrays(array.chunks)


class IdHeader(CodesHeader, kw_only=True):
    """What a file must say about its codes and their ids."""

    ids: Literal["range", "integer", "string"]
    first_id: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)] = 0


@dataclass(frozen=True, eq=False)
class IdColumn:
    """Unique ids in row order: consecutive integers without storage (`range`), 64-bit integers, or strings.

    Attributes:
        values: the ids. stored: `lookup` where a file has it; computed when first needed otherwise.
        mapped: the values are those of a file, which are checked when they are used.

    Example:
        >>> ids = IdColumn(strings(["a", "b"]))
        >>> ids[1], ids.find(["b", "c"]), ids.kind
        ('b', array([ 1, -1]), 'string')
    """

    values: range | NDArray[np.int64] | pyarrow.LargeStringArray
    stored: Lookup | None = None
    mapped: bool = False

    @classmethod
    def of(cls, ids: Any) -> IdColumn:
        """A column of these ids: a sequence, a numpy array, or an Arrow column.

        Raises:
            DataError: an id that is neither string nor integer, both kinds mixed, or a duplicate.
        """
        require_list(ids)
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
        if isinstance(self.values, pyarrow.LargeStringArray):
            return self.listed(np.array([range(len(self))[row]]))[0]
        return int(self.values[row])

    def listed(self, rows: Rows) -> list[Id]:
        """The ids of some rows."""
        if isinstance(self.values, pyarrow.LargeStringArray):
            return list(self._texts_of(rows).to_pylist())
        return list(self.take(rows).integers.tolist())

    def _texts_of(self, rows: Rows) -> pyarrow.LargeStringArray:
        """Some ids that are strings, as a column."""
        texts: pyarrow.LargeStringArray = self.values
        return take(texts, rows, "ids") if self.mapped else texts.take(pyarrow.array(rows))

    @cached_property
    def whole(self) -> pyarrow.LargeStringArray:
        """All ids that are strings, checked.

        Raises:
            FormatError: a text that is not inside its file, or not UTF-8.
        """
        if self.mapped:
            require_whole(self.values, "ids")
        return self.values

    def require_sound(self) -> None:
        """Refuse texts outside of the file, and a lookup that is not that of the ids; in time of their number.

        Raises:
            FormatError: one of these.
        """
        if self.kind == "range":
            return
        if self.kind == "string":
            self.whole  # noqa: B018 - checks it
        keys, rows = self.lookup
        sound = bool(np.array_equal(np.sort(rows), np.arange(len(self)))) and bool((keys[1:] >= keys[:-1]).all())
        if not sound or not np.array_equal(keys, self.keys[rows]):
            raise FormatError("the lookup does not fit the ids.", field="id_rows")
        if (twice := self._duplicate()) is not None:
            raise FormatError(f"{self[twice]!r} occurs twice.", field="ids")

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
        keys = self.keys
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

    @property
    def integers(self) -> NDArray[np.int64]:
        """(N,) integer ids."""
        if isinstance(self.values, range):
            return np.arange(self.values.start, self.values.stop, dtype=np.int64)
        return np.asarray(self.values, np.int64)

    def find(self, ids: IdColumn | Wanted | Sequence[Id]) -> Rows:
        """(n,) row of each of n ids, -1 where it is not in the column."""
        wanted = ids if isinstance(ids, IdColumn | Wanted) else Wanted.of(ids)
        if isinstance(wanted, Wanted):
            out = np.full(len(wanted), -1, np.int64)
            places, some = wanted.texts if self.kind == "string" else wanted.numbers
            out[places] = self._find(some)
            return out
        if (self.kind == "string") != (wanted.kind == "string"):
            return np.full(len(wanted), -1, np.int64)
        return self._find(wanted)

    def _find(self, ids: IdColumn) -> Rows:
        """As `find`, for ids of the same kind."""
        if not len(self) or not len(ids):
            return np.full(len(ids), -1, np.int64)
        if isinstance(self.values, range):
            numbers = ids.integers
            inside = (numbers >= self.values.start) & (numbers < self.values.stop)
            return np.where(inside, numbers - self.values.start, -1)
        keys, rows = self.lookup
        place = np.searchsorted(keys, ids.keys)
        nearest = np.minimum(place, len(keys) - 1)
        out = np.where(keys[nearest] == ids.keys, rows[nearest], -1)
        found = out[keys[nearest] == ids.keys]
        if len(found) and not 0 <= found.min() <= found.max() < len(self):
            raise FormatError(f"the lookup has a row outside of the {len(self):,} items.", field="id_rows")
        return self._checked(out, ids, place) if self.kind == "string" else out

    @classmethod
    def concatenate(cls, parts: Sequence[IdColumn]) -> IdColumn:
        """Join ids that are known to differ, in order."""
        filled = [part for part in parts if len(part)]
        if len(filled) < 2:
            return filled[0] if filled else cls(range(0))
        ranges = [part.values for part in filled if isinstance(part.values, range)]
        if len(ranges) == len(filled) and all(one.stop == other.start for one, other in itertools.pairwise(ranges)):
            return cls(range(ranges[0].start, ranges[-1].stop))
        if filled[0].kind == "string":
            return cls(pyarrow.concat_arrays([part.whole for part in filled]))
        return cls(np.concatenate([part.integers for part in filled]))

    def take(self, rows: Rows) -> IdColumn:
        """Some of the ids, in the order given."""
        if isinstance(self.values, pyarrow.LargeStringArray):
            return IdColumn(self._texts_of(rows))
        return IdColumn(rows + self.values.start if isinstance(self.values, range) else self.values[rows])

    def to_arrow(self) -> Any:
        """The ids as an Arrow array."""
        if isinstance(self.values, pyarrow.LargeStringArray):
            return self.whole
        return pyarrow.array(self.integers)

    def to_arrays(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and header for a file."""
        if isinstance(self.values, range):
            return {}, {"ids": "range", "first_id": self.values.start}
        keys, rows = self.lookup
        lookup = {"id_keys": keys, "id_rows": rows}
        if isinstance(self.values, np.ndarray):
            return {"ids": self.values, **lookup}, {"ids": "integer"}
        return {**text_arrays(self.whole, "ids"), **lookup}, {"ids": "string"}

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
        found = cls(arrays["ids"] if header.ids == "integer" else text_column(arrays, "ids"), lookup, mapped=True)
        kinds = {"id_keys": np.uint64, "id_rows": np.int64, **({"ids": np.int64} if header.ids == "integer" else {})}
        wrong = [name for name in kinds if name in arrays and not _is_column(arrays[name], kinds[name], count)]
        if wrong or len(found) != count:
            raise ValueError(f"{', '.join(wrong) or 'ids'}: not {count} of them")
        return found

    @cached_property
    def keys(self) -> NDArray[np.uint64]:
        """(N,) key of each row, see `lookup`."""
        if isinstance(self.values, pyarrow.LargeStringArray):
            hashed = map(xxhash.xxh3_64_intdigest, self.whole.cast(pyarrow.large_binary()).to_pylist())
            return np.fromiter(hashed, np.uint64, len(self.values))
        return self.integers.view(np.uint64)

    def _duplicate(self) -> int | None:
        """Row of an id that an earlier row has, if there is one."""
        keys, rows = self.lookup
        for place in np.flatnonzero(keys[1:] == keys[:-1]):
            first = int(np.searchsorted(keys, keys[place]))
            names = [self[int(row)] for row in rows[first : place + 2]]
            if names[-1] in names[:-1]:
                return int(rows[place + 1])
        return None

    def _checked(self, out: Rows, ids: IdColumn, place: Rows) -> Rows:
        """Compare the strings themselves: two strings may have one hash."""
        found, keys = np.flatnonzero(out >= 0), self.lookup[0]
        for at, mine, wanted in zip(found.tolist(), self.listed(out[found]), ids.listed(found), strict=True):
            if mine != wanted:
                last = int(np.searchsorted(keys, keys[place[at]], side="right"))
                rows = self.lookup[1][place[at] : last].tolist()
                out[at] = next((row for row in rows if self[row] == wanted), -1)
        return out


def require_distinct(columns: Sequence[IdColumn], block: int = 1 << 22) -> None:
    """Refuse an id that is in two columns of unique ids, in memory that does not grow with them.

    Args:
        columns: of one kind, string or not. block: about this many ids are compared at a time.

    Raises:
        DataError: names the id.

    Example:
        >>> require_distinct([IdColumn(range(3)), IdColumn(np.array([7, 2]))])
        Traceback (most recent call last):
            ...
        multibit.errors.DataError: ids: 2 is given twice.
    """
    ranges = sorted(
        (column.values for column in columns if isinstance(column.values, range)), key=lambda each: each.start
    )
    if len(ranges) == len(columns):
        twice = next((later.start for one, later in itertools.pairwise(ranges) if one.stop > later.start), None)
        if twice is not None:
            raise DataError(f"{twice} is given twice.", field="ids")
        return
    step = max(1, block // 64)
    samples = np.sort(np.concatenate([column.lookup[0][::step] for column in columns]))
    cuts = np.unique(samples[::64][1:])  # where the sorted keys are cut into blocks
    places = [[0, *np.searchsorted(column.lookup[0], cuts).tolist(), len(column)] for column in columns]
    for number in range(len(cuts) + 1):
        parts = [slice(place[number], place[number + 1]) for place in places]
        keys = np.concatenate([column.lookup[0][part] for column, part in zip(columns, parts, strict=True)])
        order = np.argsort(keys, kind="stable")
        same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
        if len(same):
            homes = np.repeat(np.arange(len(columns)), [part.stop - part.start for part in parts])
            rows = np.concatenate([column.lookup[1][part] for column, part in zip(columns, parts, strict=True)])
            _require_distinct_names(columns, keys, homes, rows, order[np.union1d(same, same + 1)])


def _require_distinct_names(
    columns: Sequence[IdColumn], keys: NDArray[np.uint64], homes: Rows, rows: Rows, places: Rows
) -> None:
    """Compare the ids themselves: two strings may have one hash."""
    seen = set()
    for place in places.tolist():
        name = columns[homes[place]][int(rows[place])]
        if (int(keys[place]), name) in seen:
            raise DataError(f"{name!r} is given twice.", field="ids")
        seen.add((int(keys[place]), name))


@dataclass(frozen=True, eq=False)
class Wanted:
    """Ids to be found, of any kind and any number of times, prepared once for all segments.

    Attributes:
        count: n ids. texts, numbers: the places of the strings and of the integers among them, and these as a column.
    """

    count: int
    texts: tuple[Rows, IdColumn]
    numbers: tuple[Rows, IdColumn]

    @classmethod
    def of(cls, ids: Sequence[Id]) -> Wanted:
        """Prepare some ids; one that no column can hold is found nowhere."""
        names: list[Any] = [plain(name) for name in ids] if set(map(type, ids)) - {str, int} else list(ids)
        texts = [place for place, name in enumerate(names) if type(name) is str]
        numbers = [place for place, name in enumerate(names) if type(name) is int and -(2**63) <= name < 2**63]
        try:
            column = strings([names[place] for place in texts])
        except UnicodeEncodeError:
            texts = [place for place in texts if _is_unicode(names[place])]
            column = strings([names[place] for place in texts])
        integers = np.array([names[place] for place in numbers], np.int64)
        return cls(
            len(names), (np.array(texts, np.int64), IdColumn(column)), (np.array(numbers, np.int64), IdColumn(integers))
        )

    def __len__(self) -> int:
        return self.count


def require_list(ids: Any) -> None:
    """Refuse one text, which Python would take for a list of letters, as ids.

    Raises:
        DataError: a text.
    """
    if isinstance(ids, str):
        raise DataError(f"need a list of ids, got the text {ids!r}.", field="ids")


def require_page(start: int, count: int) -> None:
    """Refuse a part of the items that does not exist, of which a negative row would be counted from the end.

    Raises:
        DataError: not whole, or negative.
    """
    require_integer(start, 0, "start")
    require_integer(count, 0, "count")


def require_same_kind(ids: IdColumn, kind: str) -> None:
    """Refuse strings next to integers.

    Args:
        ids: to be added. kind: of the ids that there are.

    Raises:
        DataError: names both.
    """
    if len(ids) and (ids.kind == "string") != (kind == "string"):
        raise DataError(f"new ids of kind {ids.kind} cannot be added to ids of kind {kind}.", field="ids")


def unknown_id(name: Any, kind: str, count: int) -> DataError:
    """The error of an id that an index does not have.

    Args:
        name: the id. kind: of the ids of the index. count: number of its items.
    """
    problem = f"{name!r} is not in the index of {counted(count, 'item', 'items')}."
    return DataError(problem, field="ids", hint=other_kind(name, kind))


def other_kind(name: Any, kind: str) -> str:
    """A hint where an id is of another kind than all ids of an index; "" otherwise.

    Example:
        >>> other_kind(3, "string"), other_kind("3", "string")
        ('The ids here are texts, and this is an integer.', '')
    """
    given, wanted = type(plain(name)), str if kind == "string" else int
    if not kind or given is wanted:
        return ""
    spelled = {str: "a text", int: "an integer"}.get(given, f"of type {given.__name__}")
    return f"The ids here are {'texts' if wanted is str else 'integers'}, and this is {spelled}."


def _of_arrow(ids: Any) -> IdColumn:
    array = whole_array(ids) if isinstance(ids, pyarrow.ChunkedArray) else ids
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


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
