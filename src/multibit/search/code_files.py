"""A file of codes made elsewhere: the field's six keys in `.mat`, `.npz` or `.npy`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from multibit.arrays import Labels
from multibit.codes import DIRECTIONS, CodedItems, Codes
from multibit.codes.items import Direction
from multibit.data.sources.mat_files import MatFiles
from multibit.errors import DataError
from multibit.npz import read_npz

MAT_KEYS = ("q_img", "q_txt", "r_img", "r_txt", "q_l", "r_l")
"""Query and retrieval codes of images and texts (n, B), and their multi-hot labels (n, C)."""

CODE_KEYS, LABEL_KEYS = MAT_KEYS[:4], MAT_KEYS[4:]
_DIRECTION = re.compile(r"(?<![a-z0-9])(i2t|t2i)(?![a-z0-9])")

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class CodeFile:
    """The queries and the database of one file, or of one folder of `.npy` files.

    Attributes:
        path: of the file or folder. query, database: coded items. notes: how the file was read, one sentence each.
    """

    path: Path
    query: CodedItems
    database: CodedItems
    notes: tuple[str, ...] = ()

    @property
    def bits(self) -> int:
        """The code length."""
        return self.query.image.bits

    @property
    def direction(self) -> Direction | None:
        """The direction in the file name: the training kept its best epoch. None if it is for both."""
        found = set(_DIRECTION.findall(self.path.name.lower()))
        return next((each for each in DIRECTIONS if found == {each}), None)

    @classmethod
    def read(cls, path: Path | str) -> CodeFile:
        """Read a `.mat` (v5 or v7.3), an `.npz`, or a folder with `q_img.npy`, `q_txt.npy` and so on.

        Codes are -1 and +1; or 0 and 1; or packed uint8, as from `np.packbits`, whose length
        is the array `bits`. Labels are multi-hot (n, C), dense or sparse, or class numbers (n,) or (n, 1); without the
        keys of both sides the items have no labels.

        Raises:
            DataError: unreadable, a missing key, another value, or arrays that do not fit each other.
        """
        path = Path(path)
        found = _Source.open(path)
        missing = [key for key in MAT_KEYS if key not in found.shapes]
        if missing and missing != list(LABEL_KEYS):
            problem = f"lacks {', '.join(missing)}; found {found.listing or 'no arrays'}."
            raise DataError(problem, file=path, field=missing[0])
        arrays = {key: found.read(key) for key in (*MAT_KEYS, "bits") if key in found.shapes}
        codes, notes = _codes(path, arrays)
        counts = len(codes["q_img"]), len(codes["r_img"])
        shapes = ", ".join(f"{key} {arrays[key].shape}" for key in MAT_KEYS if key in arrays)
        if (len(codes["q_txt"]), len(codes["r_txt"])) != counts:
            raise DataError(f"image and text codes have different numbers of rows: {shapes}.", file=path)
        if len({each.bits for each in codes.values()}) > 1:
            raise DataError(f"the codes have different lengths: {shapes}.", file=path)
        query, database, more = _labels(path, arrays, counts, shapes)
        return cls(
            path,
            CodedItems(codes["q_img"], codes["q_txt"], query),
            CodedItems(codes["r_img"], codes["r_txt"], database),
            (*notes, *more),
        )


# Arrays


class _Source(NamedTuple):
    """The arrays of a file or folder: their shapes, a function that reads one, and their names and shapes as text."""

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], NDArray[Any]]
    listing: str

    @classmethod
    def open(cls, path: Path) -> _Source:
        if path.is_dir():
            files = {key: path / f"{key}.npy" for key in (*MAT_KEYS, "bits") if (path / f"{key}.npy").is_file()}
            arrays: Arrays = {key: _npy(file) for key, file in files.items()}
        elif path.suffix == ".npz":
            arrays = read_npz(path)
        else:
            mat = MatFiles.open(path, {}, ())
            return cls(mat.shapes[path], lambda key: _dense(mat.read(key, [key])), _listing(mat.shapes[path]))
        shapes = {key: array.shape for key, array in arrays.items()}
        return cls(shapes, arrays.__getitem__, _listing(shapes))


def _listing(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{key} {shape}" for key, shape in shapes.items())


def _dense(value: Any) -> NDArray[Any]:
    return np.asarray(value.toarray() if scipy.sparse.issparse(value) else value)


def _npy(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"cannot be read as .npy ({error}).", file=path) from None
    return array


# Values


def _codes(path: Path, arrays: Arrays) -> tuple[dict[str, Codes], list[str]]:
    """The codes by key, and notes on how they were read."""
    for key in CODE_KEYS:
        _require_matrix(path, key, arrays[key])
    codes = {key: arrays[key] for key in CODE_KEYS}
    if not all(array.dtype == np.uint8 for array in codes.values()):
        return _from_values(path, codes)
    bits, columns = _bits(path, arrays), codes["q_img"].shape[1]
    largest = max(array.max(initial=0) for array in codes.values())
    if largest <= 1 and bits in (None, columns):
        return _from_values(path, codes)
    if bits is not None and columns != -(-bits // 8):
        raise DataError(f"{bits} bits, but q_img has {columns} bytes.", file=path, field="bits")
    note = [] if bits else [f"{path}: packed codes without the array `bits`, so all {8 * columns} bits are used."]
    return {key: _unpacked(path, key, array, bits) for key, array in codes.items()}, note


def _bits(path: Path, arrays: Arrays) -> int | None:
    """The array `bits`: the length of packed codes."""
    if "bits" not in arrays:
        return None
    bits = arrays["bits"]
    if bits.size != 1 or bits.dtype.kind not in "iuf" or not bits.item() > 0 or bits.item() % 1:
        raise DataError(f"need one whole number, got {bits.tolist()}.", file=path, field="bits")
    return int(bits.item())


def _unpacked(path: Path, key: str, array: NDArray[Any], bits: int | None) -> Codes:
    try:
        return Codes.from_bytes(array, bits)
    except DataError as error:
        raise DataError(error.problem, file=path, field=key) from None


def _from_values(path: Path, codes: Arrays) -> tuple[dict[str, Codes], list[str]]:
    """Codes of -1 and +1, or of 0 and 1: the same kind in the whole file.

    A 0 among signs is refused, because a binary code cannot rank it: by the field's formula (B - q.r) / 2 it is half a
    bit away from both -1 and +1.
    """
    negative = {}
    for key, array in codes.items():
        minus = array == -1
        _require_values(path, key, array, (array != 0) & (array != 1) & ~minus, "-1 and 1, or 0 and 1")
        negative[key] = bool(minus.any())
    signed = any(negative.values())
    if signed:
        for key, array in codes.items():
            count = int((array == 0).sum())
            if count and not negative[key]:
                first = next(name for name in CODE_KEYS if negative[name])
                raise DataError(f"0 and 1 here, but -1 and 1 in {first}: write all codes alike.", file=path, field=key)
            if count:
                row, column = np.argwhere(array == 0)[0] + 1
                raise DataError(
                    f"{count:,} of {array.size:,} signs are 0, the first in column {column}; a bit is -1 or 1.",
                    file=path,
                    row=int(row),
                    field=key,
                    hint="Write 1 where the value is at least 0, else -1.",
                )
    return {key: Codes.from_bits(array == 1) for key, array in codes.items()}, []


def _labels(path: Path, arrays: Arrays, counts: tuple[int, int], shapes: str) -> tuple[Labels, Labels, list[str]]:
    """Multi-hot labels of queries and database, (n, 0) where there are none, and notes on how they were read."""
    if all(arrays[key].shape[1:] == (0,) for key in LABEL_KEYS if key in arrays):
        return np.zeros((counts[0], 0), np.uint8), np.zeros((counts[1], 0), np.uint8), []
    found = []
    for key, rows in zip(LABEL_KEYS, counts, strict=True):
        array = arrays[key]
        if array.ndim == 1:
            array = array[:, None]
        elif array.shape == (1, rows) and rows > 1:  # MATLAB has no vectors
            array = array.T
        _require_matrix(path, key, array)
        if len(array) != rows:
            raise DataError(f"{len(array):,} label rows for {rows:,} codes: {shapes}.", file=path, field=key)
        found.append(array)
    query, database = found
    if query.shape[1] != database.shape[1]:
        raise DataError(f"queries and database have different label columns: {shapes}.", file=path, field="r_l")
    if query.shape[1] == 1 and not all((array == 1).all() for array in found):
        return _one_hot(path, query, database)
    for key, array in zip(LABEL_KEYS, found, strict=True):
        _require_values(path, key, array, (array != 0) & (array != 1), "0 or 1")
    return query.astype(np.uint8), database.astype(np.uint8), []


def _one_hot(path: Path, query: NDArray[Any], database: NDArray[Any]) -> tuple[Labels, Labels, list[str]]:
    for key, array in (("q_l", query), ("r_l", database)):
        with np.errstate(invalid="ignore"):
            _require_values(path, key, array, ~((array >= 0) & (array % 1 == 0)), "a class number, 0 or larger")
    classes = np.unique(np.concatenate([query, database]))
    if set(classes.tolist()) <= {0, 1}:
        raise DataError(
            "one column of 0 and 1 can be two classes or one label.",
            file=path,
            field="q_l",
            hint="Write one column per class, or class numbers from 1 on.",
        )
    note = f"{path}: the labels are class numbers, {len(classes)} classes; relevant items have the class of the query."
    return (query == classes).astype(np.uint8), (database == classes).astype(np.uint8), [note]


def _require_matrix(path: Path, key: str, array: NDArray[Any]) -> None:
    if array.ndim == 3 and key in CODE_KEYS:
        raise DataError(
            f"{array.shape[1]} codes per item, shape {array.shape}: the file does not say how they are compared.",
            file=path,
            field=key,
            hint="Write one code per item, (n, K).",
        )
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise DataError(f"need a matrix of numbers, got {array.dtype} of shape {array.shape}.", file=path, field=key)
    if not array.shape[1]:
        raise DataError(f"no column, shape {array.shape}.", file=path, field=key)


def _require_values(path: Path, key: str, array: NDArray[Any], wrong: NDArray[np.bool_], allowed: str) -> None:
    if wrong.any():
        row, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise DataError(
            f"column {column + 1} is {array[row, column]}; every value must be {allowed}.",
            file=path,
            row=int(row) + 1,
            field=key,
        )
