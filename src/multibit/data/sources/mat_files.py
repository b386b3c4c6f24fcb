"""MATLAB files, v5 and v7.3, whose arrays are read one by one."""

from __future__ import annotations

import contextlib
import math
import mmap
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.io
import scipy.sparse
from numpy.typing import NDArray

from multibit.data.manifest import require_known_fields
from multibit.data.notes import note
from multibit.errors import DataError, MissingExtraError, first_line
from multibit.paths import require_regular

Shapes = dict[str, tuple[int, ...]]
_OBJECT = 17  # class of a variable of a v5 file: an object, such as a string array
_SPARSE = 5  # class of a sparse matrix: rows, columns, values
_COMPLEX = 0x800  # flag of a variable that has imaginary values too
_ARRAYS = range(4, 16)  # classes of variables that are arrays of characters or numbers
_MATRIX = 14  # type of a variable
_COMPRESSED = 15  # type of a compressed variable
_VALUES = {1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 16, 17, 18}  # types of numbers and characters
_HEAD = 4096  # bytes of a variable that are enough for its name and dimensions
LARGEST = 1 << 32
"""An array of more bytes than this, and 16 times the file, is refused: it could exhaust the memory."""

ELSEWHERE = "link to a value in another place"

SPARSE = "MATLAB_sparse"  # attribute of a sparse matrix in a v7.3 file: its number of rows


class Matrix(NamedTuple):
    """A matrix of numbers, and where it was read from.

    Attributes:
        values: two or more dimensions. file: its .mat file. key: its key in the file.
    """

    values: NDArray[Any]
    file: Path
    key: str

    def transposed(self) -> Matrix:
        """The transposed matrix; its key says so."""
        return Matrix(self.values.T, self.file, f"{self.key} (transposed)")


@dataclass(frozen=True)
class MatFiles:
    """One or several MATLAB files.

    Attributes:
        source: the file or folder. shapes: shape of each array by file and key. names: given keys by field.
        unread: MATLAB's class of each variable that is not read, such as string, by file and key; or `ELSEWHERE`.
    """

    source: Path
    shapes: dict[Path, Shapes]
    names: Mapping[str, str]
    unread: dict[Path, dict[str, str]]

    @classmethod
    def open(cls, source: Path, names: Mapping[str, str], known: Sequence[str]) -> MatFiles:
        """List the arrays of a .mat file, or of all .mat files in a folder.

        Args:
            source: the file or folder. names: given keys by field. known: fields that can be given.

        Raises:
            DataError: missing or unreadable, or no array has a given key. ConfigError: `names` has a field that is not
                `known`.
        """
        require_known_fields(names, known, "names")
        paths = sorted(source.glob("*.mat")) if source.is_dir() else [source]
        if not paths:
            raise DataError("no .mat file in this folder.", file=source)
        found = {path: _variables(path) for path in paths}
        shapes = {path: shapes for path, (shapes, _) in found.items()}
        files = cls(source, shapes, names, {path: unread for path, (_, unread) in found.items()})
        for field, key in names.items():
            if not any(key in each for each in shapes.values()):
                files.locate(field, ())  # raises
        return files

    def has(self, field: str, keys: Sequence[str]) -> bool:
        """Whether an array with one of these keys exists."""
        return self._find(field, keys) is not None

    def read(self, field: str, keys: Sequence[str]) -> Any:
        """The array with the given key of a field, or with the first of these keys that exists.

        Raises:
            DataError: no such array.
        """
        path, key = self.locate(field, keys)
        return _read(path, key, self.shapes[path][key])

    def read_matrix(self, field: str, keys: Sequence[str]) -> Matrix:
        """The same, of numbers; sparse matrices become dense.

        Raises:
            DataError: no such array, or not a matrix of numbers.
        """
        path, key = self.locate(field, keys)
        value = _read(path, key, self.shapes[path][key])
        if scipy.sparse.issparse(value):
            _require_size(path, key, value.shape)
        array = np.asarray(value.toarray() if scipy.sparse.issparse(value) else value)
        if array.ndim < 2 or array.dtype.kind not in "biuf":
            raise DataError(
                f"need a matrix of numbers, got {array.dtype} of shape {array.shape}.",
                file=path,
                field=key,
                hint=f"Map {field} to another key with `names`.",
            )
        return Matrix(array, path, key)

    def locate(self, field: str, keys: Sequence[str]) -> tuple[Path, str]:
        """File and key of a field.

        Raises:
            DataError: no such array, or of a class of MATLAB that is not read.
        """
        found = self._find(field, keys)
        if found is None:
            self._refuse_unread(field, keys)
            wanted = self.names.get(field) or " or ".join(keys)
            raise DataError(
                f"no {wanted}; found {self}.",
                file=self.source,
                field=field,
                hint=f"Map {field} to a key with `names`.",
            )
        return found

    def _find(self, field: str, keys: Sequence[str]) -> tuple[Path, str] | None:
        wanted = (self.names[field],) if field in self.names else keys
        found = [(path, key) for key in wanted for path, shapes in self.shapes.items() if key in shapes]
        if len(found) > 1:
            others = ", ".join(f"{key} of {path.name}" for path, key in found[1:])
            note(f"{self.source}: {field} is read from {found[0][1]} of {found[0][0].name}, not from {others}.")
        return found[0] if found else None

    def _refuse_unread(self, field: str, keys: Sequence[str]) -> None:
        """Refuse a variable of a class that is not read."""
        wanted = (self.names[field],) if field in self.names else keys
        for path, unread in self.unread.items():
            for key in set(wanted) & set(unread):
                hint = f"In MATLAB: {key} = cellstr({key}), and save it again." if unread[key] == "string" else ""
                kind = "a" if unread[key] == ELSEWHERE else "of MATLAB's class"
                raise DataError(
                    f"{kind} {unread[key]}, which is not read.",
                    file=path,
                    field=key,
                    hint=hint or "Save it as an array of numbers or a cell array of texts.",
                )

    def __str__(self) -> str:
        found = [
            f"{path.name}: " + ", ".join([f"{key} {shape}" for key, shape in shapes.items()] + [*self.unread[path]])
            for path, shapes in self.shapes.items()
        ]
        return "; ".join(found)


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(20)
    return head.startswith((b"\x89HDF", b"MATLAB 7.3"))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise every error of the parsers as a DataError."""
    try:
        yield
    except (DataError, MissingExtraError):
        raise
    except FileNotFoundError:
        raise DataError("no such file.", file=path) from None
    except Exception as error:  # scipy and h5py let the errors of zlib and of their own parsers through
        raise DataError(f"not a readable MATLAB file, neither v5 nor v7.3 ({first_line(error)}).", file=path) from None


def _variables(path: Path) -> tuple[Shapes, dict[str, str]]:
    """Shapes of the arrays, and classes of the variables that are not read."""
    require_regular(path)
    with _reading(path):
        if _is_hdf5(path):
            with _h5py().File(path, "r") as file:
                elsewhere = {key: ELSEWHERE for key in file if _is_elsewhere(file, key)}
                items = {key: file[key] for key in file if key not in elsewhere}
                unread = elsewhere | {key: _class(item) for key, item in items.items() if _is_unread(item)}
                shapes = {key: _shape(item) for key, item in items.items() if key not in unread}
                return {key: shape for key, shape in shapes.items() if shape is not None}, unread
        _require_whole(path)
        try:
            listed = scipy.io.whosmat(path, appendmat=False)
        except TypeError:  # scipy cannot list a file with objects, such as string arrays
            return _list_v5(path)
        return {name: tuple(map(int, shape)) for name, shape, _ in listed}, {}


def _require_whole(path: Path) -> None:
    """Refuse a v5 file that scipy would read wrongly.

    Of a truncated one it lists the variables before the cut; values of an unknown type end the process. The types
    inside compressed variables are not checked: damage to these shows when they are inflated.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(128)
        if head[126:] not in (b"IM", b"MI"):  # not v5, or shorter than a header: scipy says so
            return
        tag, start = struct.Struct(f"{_order(head)}2I"), len(head)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            while start < size:
                kind, length = tag.unpack_from(raw, start) if start + 8 <= size else (0, 8)
                end = start + 8 + length
                if end > size:
                    problem = f"a truncated MATLAB v5 file: {size:,} bytes, but a variable ends after {end:,} or more."
                    raise DataError(problem, file=path, hint="Copy it again.")
                if kind == _MATRIX:
                    _require_known_types(raw, tag, start + 8, end)
                start = end


def _require_known_types(raw: mmap.mmap, tag: struct.Struct, start: int, end: int) -> None:
    """Refuse a variable with values of an unknown type, and an array of numbers or characters that lacks some."""
    number = flags = 0
    while start + 8 <= end:
        kind, length = tag.unpack_from(raw, start)
        small = kind >> 16
        kind &= 0xFFFF
        if number == 0:
            flags = tag.unpack_from(raw, start + 8)[0]
        if kind == _MATRIX and number > 1 and flags & 0xFF not in _ARRAYS:
            _require_known_types(raw, tag, start + 8, start + 8 + length)
        elif kind not in _VALUES:
            raise ValueError(f"values of the unknown type {kind}")
        start += 8 if small else 8 + -(-length // 8) * 8
        number += 1
    needed = 3 + (3 if flags & 0xFF == _SPARSE else 1) + bool(flags & _COMPLEX)  # flags, dimensions and name first
    if number and flags & 0xFF in _ARRAYS and number < needed:
        raise ValueError(f"{number} elements of a variable that needs {needed}")


def _order(head: bytes) -> str:
    """The byte order of a v5 file, by its first 128 bytes, as `struct` spells it."""
    return "<" if head[126:128] == b"IM" else ">"


def _class(item: Any) -> str:
    """MATLAB's class of a variable in a v7.3 file; "" in a file that MATLAB did not write."""
    return str(np.bytes_(item.attrs.get("MATLAB_class", b"")).decode())


def _is_elsewhere(file: Any, key: str) -> bool:
    """Whether a variable is a link, or has its values in other files, which a stranger's file could name."""
    h5py = _h5py()
    if not isinstance(file.get(key, getlink=True), h5py.HardLink):
        return True
    item = file[key]
    return isinstance(item, h5py.Dataset) and (item.external is not None or item.is_virtual)


def _is_unread(item: Any) -> bool:
    """Whether a variable of a v7.3 file is an object, such as a string array or a table, or a structure."""
    return "MATLAB_object_decode" in item.attrs or (_class(item) == "struct" and not hasattr(item, "shape"))


def _list_v5(path: Path) -> tuple[Shapes, dict[str, str]]:
    """The same of a v5 file with objects.

    A variable is a tag (type, bytes) with elements inside: the flags; then of an array its dimensions and name, of an
    object its name, the kind of object, and its class. Compressed variables are inflated only so far.
    """
    shapes: Shapes = {}
    unread: dict[str, str] = {}
    with path.open("rb") as file:
        order = _order(file.read(128))
        while tag := file.read(8):
            kind, size = struct.unpack(f"{order}2I", tag)
            start = file.tell()
            raw = file.read(min(size, _HEAD))
            raw = zlib.decompressobj().decompress(raw, _HEAD)[8:] if kind == _COMPRESSED else raw
            flags, *parts = _elements(raw, order, 4)
            if flags and struct.unpack_from(f"{order}I", flags)[0] & 0xFF == _OBJECT:
                unread[parts[0].decode("latin-1")] = parts[2].decode("latin-1")
            elif parts[1]:  # a variable without a name is MATLAB's own table of objects
                shapes[parts[1].decode("latin-1")] = tuple(np.frombuffer(parts[0], f"{order}i4").tolist())
            file.seek(start + size)
    return shapes, unread


def _elements(raw: bytes, order: str, count: int) -> list[bytes]:
    """The first elements inside a variable; one of up to 4 bytes is written into its tag."""
    found, position = [], 0
    for _ in range(count):
        kind, size = struct.unpack_from(f"{order}2I", raw, position)
        if kind >> 16:  # a small element
            found.append(raw[position + 4 : position + 4 + (kind >> 16)])
            position += 8
        else:
            found.append(raw[position + 8 : position + 8 + size])
            position += 8 + -(-size // 8) * 8
    return found


def _shape(item: Any) -> tuple[int, ...] | None:
    """The shape of a variable of a v7.3 file; None for a structure or the table of references."""
    if SPARSE in item.attrs:
        return int(item.attrs[SPARSE]), len(item["jc"]) - 1
    if not hasattr(item, "shape"):
        return None
    return tuple(reversed(item.shape)) if "MATLAB_class" in item.attrs else item.shape


def _sparse(item: Any) -> Any:
    """A sparse matrix, stored by columns; one without a value other than 0 has no data."""
    data, rows = (item[name][()] if name in item else np.empty(0, np.int64) for name in ("data", "ir"))
    return scipy.sparse.csc_matrix((data, rows, item["jc"][()]), shape=_shape(item))


def _require_size(path: Path, key: str, shape: Sequence[int]) -> None:
    """Refuse an array that is declared far larger than its file."""
    if (size := 8 * math.prod(shape)) > LARGEST + 16 * path.stat().st_size:
        raise DataError(f"declared with {size:,} bytes, which could exhaust the memory.", file=path, field=key)


def _read(path: Path, key: str, shape: Sequence[int]) -> Any:
    _require_size(path, key, shape)
    with _reading(path):
        if _is_hdf5(path):
            with _h5py().File(path, "r") as file:
                if SPARSE in file[key].attrs:
                    return _sparse(file[key])
                _limit_cache(file.id)
                kind = np.bytes_(file[key].attrs.get("MATLAB_class", b"")).decode()
                return _value(file.id, file[key].id, kind)
        return scipy.io.loadmat(path, appendmat=False, variable_names=[key])[key]


def _limit_cache(file: Any) -> None:
    """Limit HDF5's metadata cache to 1 MiB: each text is an array of its own, read once, of which 4 KiB would stay."""
    cache = file.get_mdc_config()
    cache.set_initial_size = True
    cache.initial_size = cache.min_size = cache.max_size = 1 << 20
    file.set_mdc_config(cache)


def _value(file: Any, node: Any, kind: str | None) -> Any:
    """The value of a variable: MATLAB stores arrays transposed, characters as numbers, cells as references.

    Args:
        file, node: low-level ids of h5py, three times faster for the hundreds of thousands of texts of a data set.
        kind: MATLAB's class; empty in a file that MATLAB did not write, None inside a cell, where the dtype decides.
    """
    h5py = _h5py()
    dtype = node.dtype
    array = np.empty(node.shape, dtype)
    if array.size:
        node.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    if h5py.check_ref_dtype(dtype):
        cells = np.empty(array.shape, object)
        for position, reference in np.ndenumerate(array):
            cells[position] = _value(file, h5py.h5r.dereference(reference, file), None) if reference else None
        return cells.T
    if dtype == np.uint64 and h5py.h5a.exists(node, b"MATLAB_empty"):
        return np.empty((0, 0), "U1" if kind == "char" else float)
    if kind == "char" or (kind is None and dtype == np.uint16):
        rows = np.ascontiguousarray(array.T, "<u2").reshape(-1, array.shape[0])
        return np.array([row.tobytes().decode("utf-16-le", "replace") for row in rows])
    return array if kind == "" else array.T


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("h5py", extra="mat", need="a MATLAB v7.3 file") from None
    return h5py
