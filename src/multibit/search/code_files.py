"""Codes made elsewhere: the field's six keys in `.mat`, `.npz` or `.npy`, nested or one file per length."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from multibit.arrays import Labels
from multibit.codes import DIRECTIONS, CodedItems, Codes
from multibit.codes.items import DIRECTION_NAMES, Direction
from multibit.data.sources.mat_files import MatFiles
from multibit.errors import DataError, MismatchError, MultibitError, counted
from multibit.evaluation.ranking import Key
from multibit.npz import npz_keys, read_npz
from multibit.paths import require_suffix

MAT_KEYS = ("q_img", "q_txt", "r_img", "r_txt", "q_l", "r_l")
"""Query and retrieval codes of images and texts (n, B), and their multi-hot labels (n, C)."""

CODE_KEYS, LABEL_KEYS = MAT_KEYS[:4], MAT_KEYS[4:]
ENDINGS = (".mat", ".npz")
SHOWN = 8  # file names in a note
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


@dataclass(frozen=True, eq=False)
class CodeSets:
    """Codes made elsewhere, of the same queries and the same database at every length.

    Attributes:
        source: the file or folder. lengths: code lengths, shortest first.
        files: (direction, length) -> the file that is measured there. notes: how they were read, one sentence each.
    """

    source: Path
    lengths: tuple[int, ...]
    files: Mapping[Key, CodeFile]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the file without its ending, or of the folder, for tables."""
        path = self.source.resolve()
        return path.name if path.is_dir() else path.stem

    @property
    def nested(self) -> bool:
        """Whether shorter codes are prefixes of longer ones."""
        return len(self.lengths) > 1 and len({file.bits for file in self.files.values()}) == 1

    @property
    def labelled(self) -> bool:
        """Whether any item has a label."""
        return bool(self.query.labels.any() or self.database.labels.any())

    @property
    def query(self) -> CodedItems:
        """The queries with their longest codes."""
        return self.files["i2t", self.lengths[-1]].query

    @property
    def database(self) -> CodedItems:
        """The database with its longest codes."""
        return self.files["i2t", self.lengths[-1]].database

    @classmethod
    def open(cls, source: Path | str, lengths: Sequence[int] | None = None) -> CodeSets:
        """Read the codes of one file, or of all files in a folder and below it.

        Two files of one length that are named by the directions, `...-i2t.mat` and `...-t2i.mat`, are measured in one
        direction each.

        Args:
            source: as for `CodeFile.read`, or a folder of such files.
            lengths: prefix lengths of codes of one length, which says that they are nested, or some of the lengths of
                the files; the lengths of the files when None.

        Raises:
            DataError: no codes, files that cannot be read or do not fit each other, two files of one length and
                direction, or a length that the codes do not have.
        """
        source = Path(source)
        paths, skipped = _paths(source)
        files = [CodeFile.read(path) for path in paths]
        for other in files[1:]:
            require_same_items(files[0], other.query.labels, other.database.labels, files[0].path, other.path)
        chosen, notes = _assign(source, files)
        measured = _lengths(source, sorted({bits for _, bits in chosen}), lengths)
        by_length = {
            (d, bits): chosen.get((d, bits)) or chosen[d, files[0].bits] for d in DIRECTIONS for bits in measured
        }
        if skipped:
            names = ", ".join(path.name for path in skipped[:SHOWN]) + (", ..." if len(skipped) > SHOWN else "")
            notes.append(f"{source}: not read, because they have none of the six keys: {names}.")
        notes += [note for file in files for note in file.notes]
        return cls(source, measured, by_length, tuple(notes))

    def require_label_names(self, names: Sequence[str]) -> None:
        """Refuse label names that are not one per label column; no name at all is accepted.

        Raises:
            DataError: another number.
        """
        columns = self.database.labels.shape[1]
        if len(names) not in (0, columns):
            sizes = counted(len(names), "name", "names"), counted(columns, "label column", "label columns")
            problem = f"{' for '.join(sizes)} of {self.source}."
            raise DataError(problem, option="label_names", hint="Write one name per column, in their order.")

    def require_same_items(self, query_labels: Labels, database_labels: Labels, other: Path) -> None:
        """Refuse to compare with codes of other queries or another database.

        Args:
            query_labels, database_labels: multi-hot, of the other codes. other: their path.

        Raises:
            MismatchError: another number of rows or label columns, or a row with other labels.
        """
        try:
            require_same_items(self.files["i2t", self.lengths[-1]], query_labels, database_labels, self.source, other)
        except DataError as error:
            raise MismatchError(error.problem, file=other, row=error.row, field=error.field, hint=error.hint) from None


def is_codes(path: Path) -> bool:
    """Whether a path may hold codes made elsewhere: a `.mat` or `.npz`, or a folder with such files or `q_img.npy`."""
    return path.suffix in ENDINGS if not path.is_dir() else any(_candidates(path))


def holds_codes(path: Path) -> bool:
    """Whether a path does hold codes made elsewhere, by the keys of its files; of a folder, those that can be read.

    Raises:
        DataError: a file that cannot be read.
    """
    if not path.is_dir():
        return _has_keys(path)
    for each in _candidates(path):
        with contextlib.suppress(MultibitError, OSError):
            if _has_keys(each):
                return True
    return False


def _has_keys(path: Path) -> bool:
    if path.is_dir():
        return True
    keys = npz_keys(path) if path.suffix == ".npz" else MatFiles.open(path, {}, ()).shapes[path]
    return not set(MAT_KEYS).isdisjoint(keys)


def require_same_items(file: CodeFile, query_labels: Labels, database_labels: Labels, name: Path, other: Path) -> None:
    """Refuse labels that differ from those of a file; where one side has none, only the numbers of rows are compared.

    Args:
        file: whose labels. query_labels, database_labels: of the other codes. name, other: paths for the error.

    Raises:
        DataError: another number of rows or label columns, or a row with other labels.
    """
    sides = {"q_l": (file.query.labels, query_labels), "r_l": (file.database.labels, database_labels)}
    labelled = all(labels.any() for labels in (file.database.labels, database_labels))
    for key, (mine, theirs) in sides.items():
        if not labelled and len(mine) == len(theirs):
            continue
        if mine.shape != theirs.shape:
            sizes = [f"{len(labels):,} rows with {labels.shape[1]} label columns" for labels in (theirs, mine)]
            raise DataError(f"{sizes[0]} here, {sizes[1]} in {name}.", file=other, field=key)
        differs = np.flatnonzero((mine != theirs).any(axis=1))
        if len(differs):
            raise DataError(
                f"the labels of {counted(len(differs), 'row differs', 'rows differ')} from those of {name}, of "
                f"{len(mine):,}.",
                file=other,
                row=int(differs[0]) + 1,
                field=key,
                hint="Rows and label columns must be the same, in the same order.",
            )


# Files


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


def _candidates(folder: Path) -> Iterator[Path]:
    """Files and folders below a folder that may hold codes."""
    for path in folder.rglob("*"):
        if path.suffix in ENDINGS and path.is_file():
            yield path
        elif path.name == "q_img.npy":
            yield path.parent


def _paths(source: Path) -> tuple[list[Path], list[Path]]:
    """The files with codes at a path, and the other `.mat` and `.npz` files there, which have none of the keys."""
    if not source.exists():
        raise DataError("no such file.", file=source)
    if not source.is_dir():
        require_suffix(source, *ENDINGS)
        return [source], []
    files: list[Path] = []
    skipped: list[Path] = []
    for path in sorted(_candidates(source)):
        (files if _has_keys(path) else skipped).append(path)
    if not files:
        found = f"; found {', '.join(path.name for path in skipped[:SHOWN])}" if skipped else ""
        raise DataError(f"no file with {', '.join(MAT_KEYS)} in this folder{found}.", file=source)
    return files, skipped


def _assign(source: Path, files: Sequence[CodeFile]) -> tuple[dict[Key, CodeFile], list[str]]:
    """The file of each direction and length."""
    chosen: dict[Key, CodeFile] = {}
    for file in files:
        for direction in [file.direction] if file.direction else DIRECTIONS:
            first = chosen.setdefault((direction, file.bits), file)
            if first is not file:
                raise DataError(
                    f"two files with {direction} codes of {file.bits} bits: {first.path.relative_to(source)} and "
                    f"{file.path.relative_to(source)}.",
                    file=source,
                    hint="Evaluate one of them alone.",
                )
    notes = []
    for (direction, bits), file in list(chosen.items()):
        for other in DIRECTIONS:
            if (other, bits) not in chosen:
                chosen[other, bits] = file
                notes.append(
                    f"{file.path.name}: measured in both directions, but by its name it is for "
                    f"{DIRECTION_NAMES[direction]}, and there is no {other} file of {bits} bits."
                )
    return chosen, notes


def _lengths(source: Path, available: Sequence[int], wanted: Sequence[int] | None) -> tuple[int, ...]:
    if wanted is None:
        return tuple(available)
    chosen = sorted(set(wanted))
    nested = len(available) == 1
    missing = [bits for bits in chosen if not (1 <= bits <= available[0] if nested else bits in available)]
    if missing or not chosen:
        have = f"1 to {available[0]}" if nested else ", ".join(map(str, available))
        raise DataError(
            f"the codes have {have} bits, got {', '.join(map(str, missing))}.", file=source, option="lengths"
        )
    return tuple(chosen)


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
