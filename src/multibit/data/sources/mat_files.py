"""MATLAB files, v5 and v7.3, of which single arrays are read when asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse
from numpy.typing import NDArray

from multibit.data.sources.common import note
from multibit.errors import DataError, MissingExtraError

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class MatFiles:
    """One or several MATLAB files, of which single arrays are read when asked for.

    Attributes:
        source: the file or folder. shapes: what each file has, by key.
        names: keys that people gave for our names.
    """

    source: Path
    shapes: dict[Path, Shapes]
    names: Mapping[str, str]

    @classmethod
    def open(cls, source: Path, names: Mapping[str, str], known: Sequence[str]) -> MatFiles:
        """Look into a .mat file, or into all of a folder.

        Raises:
            DataError: nothing there, or unreadable. ... a mapping of something else than the `known` names.
        """
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise DataError(f"--map: {', '.join(unknown)} is not needed here; the names are {', '.join(known)}.")
        paths = sorted(source.glob("*.mat")) if source.is_dir() else [source]
        if not paths:
            raise DataError(f"{source}: no .mat file in it.")
        return cls(source, {path: _shapes(path) for path in paths}, names)

    def has(self, name: str, aliases: Sequence[str]) -> bool:
        """Whether any of its keys is there."""
        return self._find(name, aliases) is not None

    def read(self, name: str, aliases: Sequence[str]) -> Any:
        """The array that goes by one of these keys.

        Raises:
            DataError: none is there; says what is.
        """
        return _read(*self._locate(name, aliases))

    def read_matrix(self, name: str, aliases: Sequence[str]) -> tuple[NDArray[Any], str]:
        """The numbers that go by one of these keys, and which file and key that is, for people.

        Raises:
            DataError: none is there, or something else than an array of numbers.
        """
        path, key = self._locate(name, aliases)
        value = _read(path, key)
        array = np.asarray(value.toarray() if scipy.sparse.issparse(value) else value)
        if array.ndim < 2 or array.dtype.kind not in "biuf":
            raise DataError(
                f"{path}: {key}: need a matrix of numbers where there is {array.dtype} of shape {array.shape}. Name "
                f"another key with --map {name}=KEY."
            )
        return array, f"{path}: {key}"

    def _locate(self, name: str, aliases: Sequence[str]) -> tuple[Path, str]:
        found = self._find(name, aliases)
        if found is None:
            wanted = self.names.get(name) or " or ".join(aliases)
            raise DataError(f"{self.source}: no {wanted}; found {self}. Name it with --map {name}=KEY.")
        return found

    def _find(self, name: str, aliases: Sequence[str]) -> tuple[Path, str] | None:
        keys = (self.names[name],) if name in self.names else aliases
        places = [(path, key) for key in keys for path, shapes in self.shapes.items() if key in shapes]
        if len(places) > 1:
            others = ", ".join(f"{key} of {path.name}" for path, key in places[1:])
            note(f"{self.source}: {name} is read from {places[0][1]} of {places[0][0].name}, not from {others}.")
        return places[0] if places else None

    def __str__(self) -> str:
        found = [
            f"{path.name}: " + ", ".join(f"{key} {shape}" for key, shape in shapes.items())
            for path, shapes in self.shapes.items()
        ]
        return "; ".join(found)


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(20)
    return head.startswith((b"\x89HDF", b"MATLAB 7.3"))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever the parsers raise into one sentence."""
    try:
        yield
    except (DataError, MissingExtraError):
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except Exception as error:  # scipy and h5py let the errors of zlib and of their own parsers through
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path}: not a readable MATLAB file, neither v5 nor v7.3 ({first}).") from None


def _shapes(path: Path) -> Shapes:
    with _reading(path):
        if _is_hdf5(path):
            with _h5py().File(path, "r") as file:
                return {
                    key: tuple(reversed(item.shape)) if "MATLAB_class" in item.attrs else item.shape
                    for key, item in file.items()
                    if hasattr(item, "shape")
                }
        return {name: tuple(map(int, shape)) for name, shape, _ in scipy.io.whosmat(path, appendmat=False)}


def _read(path: Path, key: str) -> Any:
    with _reading(path):
        if _is_hdf5(path):
            with _h5py().File(path, "r") as file:
                _keep_little(file.id)
                kind = np.bytes_(file[key].attrs.get("MATLAB_class", b"")).decode()
                return _value(file.id, file[key].id, kind)
        return scipy.io.loadmat(path, appendmat=False, variable_names=[key])[key]


def _keep_little(file: Any) -> None:
    """Let HDF5 remember 1 MiB of what it read: each text is its own array, read once, and 4 KiB would stay of each."""
    cache = file.get_mdc_config()
    cache.set_initial_size = True
    cache.initial_size = cache.min_size = cache.max_size = 1 << 20
    file.set_mdc_config(cache)


def _value(file: Any, node: Any, kind: str | None) -> Any:
    """What MATLAB had: it stores arrays transposed, characters as numbers, cells as references.

    Args:
        file, node: h5py's low-level ids, three times faster for the hundreds of thousands of texts of a data set.
        kind: MATLAB's class; empty in a file that MATLAB did not write, None inside a cell, where the type tells it.
    """
    h5py = _h5py()
    dtype = node.dtype
    array = np.empty(node.shape, dtype)
    if array.size:
        node.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    if h5py.check_ref_dtype(dtype):
        cells = np.empty(array.shape, object)
        for place, reference in np.ndenumerate(array):
            cells[place] = _value(file, h5py.h5r.dereference(reference, file), None)
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
