"""The field's MATLAB files, v5 and v7.3: the trio of paths, captions and labels, and files of features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import Rows, as_float32, as_labels
from multibit.data.dataset import PairedDataset
from multibit.data.sources.common import read_lines
from multibit.data.sources.mat_files import MatFiles, Matrix
from multibit.errors import DataError

PAIR_KEYS = {
    "image": ("index", "imgs", "FAll"),
    "text": ("caption", "captions", "tags", "YAll"),
    "labels": ("category", "label", "labels", "LAll"),
    "ids": ("ids",),
    "label_names": ("label_names",),
}
"""Keys that the field's files use for each field, the usual one first."""

FEATURE_KEYS = {
    "image": ("image", "XAll", "IAll"),
    "text": ("text", "YAll", "TAll"),
    "labels": ("labels", "LAll", "label", "category"),
}
PART_KEYS = {
    f"{letter}_{part}": tuple(f"{letter}_{name}" for name in (part, *others))
    for letter in "ITL"
    for part, others in {"tr": ("train",), "te": ("test", "query"), "db": ("database", "retrieval")}.items()
}
EMPTY_CAPTION = "123456"
"""Line that the field's scripts write to caption.txt for an item without tags."""


def read_mat(
    source: Path | str,
    *,
    names: Mapping[str, str] | None = None,
    root: Mapping[str, str] | None = None,
    label_names: Sequence[str] | None = None,
) -> PairedDataset:
    """Read the field's trio `index.mat`, `caption.mat` or `caption.txt`, `label.mat`.

    Texts may be a padded character matrix or a cell array, of one text or several, (N, 1), (1, N) or nested. The id of
    an item is the stem of its image file, or its path if stems repeat.

    Args:
        source: folder of the three, or one .mat file with all keys. See `PAIR_KEYS` for the known keys.
        names: the file's own keys by field: image, text, labels. root: new prefixes of image paths by old ones.
        label_names: names of the label columns; numbered when None.

    Raises:
        DataError: unreadable, a key missing, or shapes that do not match; lists the arrays that were found.
        ConfigError: `names` has an unknown field. MissingExtraError: a v7.3 file, and h5py is not installed.
    """
    files = MatFiles.open(Path(source), names or {}, tuple(PAIR_KEYS))
    paths = [_strings(each) for each in _rows(files.read("image", PAIR_KEYS["image"]), None)]
    count = len(paths)
    images = tuple(_moved(strings[0], root or {}) if strings else None for strings in paths)
    labels = files.read_matrix("labels", PAIR_KEYS["labels"]).values
    texts = _texts(files, count)
    if labels.shape[0] != count and labels.shape[1] == count:
        labels = labels.T
    if not count == len(labels) == len(texts):
        raise DataError(
            f"{count:,} images, {len(texts):,} texts, labels of shape {labels.shape}; need one row per item. Found "
            f"{files}.",
            file=files.source,
        )
    columns = label_names or _optional(files, "label_names") or numbered_labels(labels.shape[1])
    ids = _optional(files, "ids") or _ids(images)
    try:
        return PairedDataset(tuple(ids), images, tuple(texts), np.ascontiguousarray(labels), tuple(columns))
    except DataError as error:
        raise error.within(files.source) from None


def read_mat_features(source: Path | str, *, names: Mapping[str, str] | None = None) -> dict[str, NDArray[Any]]:
    """Read feature vectors and labels: `I_tr`, `T_tr`, `L_tr`, `I_te`, ..., or `XAll`, `YAll`, `LAll`.

    Transposed arrays are detected. If the file has parts, its split is kept: `te` are the queries, `tr` the training
    set, `db` the database (`tr` if there is none).

    Args:
        source: a .mat file, or a folder of several that belong together.
        names: the file's own keys by field: image, text, labels, or I_tr, T_tr, ...

    Returns:
        The arrays of a feature file (`FeatureStore.from_npz`): image, text, labels, recipe; and rows train, query,
        database if the file has a split.

    Raises:
        DataError: unreadable, a key missing, shapes that do not match, or a value that is not finite as float32.
        ConfigError: `names` has an unknown field. MissingExtraError: a v7.3 file, and h5py is not installed.
    """
    files = MatFiles.open(Path(source), names or {}, (*FEATURE_KEYS, *PART_KEYS))
    if any(files.has(name, keys) for name, keys in FEATURE_KEYS.items() if name != "labels"):
        arrays = _aligned(files, FEATURE_KEYS)
    else:
        arrays = _parts(files)
    return {**arrays, "recipe": np.array(Path(source).stem)}


def numbered_labels(count: int) -> tuple[str, ...]:
    """Names for columns without names, whose alphabetical order is that of the columns."""
    return tuple(f"label {i:0{len(str(max(count - 1, 0)))}d}" for i in range(count))


def _parts(files: MatFiles) -> dict[str, NDArray[Any]]:
    """All rows of the parts of a split once, database first, and the rows of each role."""
    parts = {}
    for part in ("tr", "te", "db"):
        keys = {"image": f"I_{part}", "text": f"T_{part}", "labels": f"L_{part}"}
        if part != "db" or any(files.has(key, PART_KEYS[key]) for key in keys.values()):
            parts[part] = _aligned(files, {key: PART_KEYS[key] for key in keys.values()})
            parts[part] = dict(zip(keys, parts[part].values(), strict=True))
    _same_columns(files, parts)
    train = np.arange(len(parts["tr"]["labels"]))
    order = ["tr", "te"]
    database = train
    if "db" in parts:
        inside = _rows_among(parts["tr"], parts["db"])
        order = ["db", "te"] if inside is not None else ["db", "tr", "te"]
        database = np.arange(len(parts["db"]["labels"]))
        train = inside if inside is not None else len(database) + train
    arrays = {name: np.concatenate([parts[part][name] for part in order]) for name in ("image", "text", "labels")}
    count, queries = len(arrays["labels"]), len(parts["te"]["labels"])
    return {**arrays, "train": train, "query": np.arange(count - queries, count), "database": database}


def _rows_among(some: dict[str, NDArray[Any]], among: dict[str, NDArray[Any]]) -> Rows | None:
    """Rows of `among` that equal those of `some`, each used once; None unless all are found."""
    equal: dict[bytes, list[int]] = {}
    for row in reversed(range(len(among["labels"]))):
        equal.setdefault(_row_bytes(among, row), []).append(row)
    found = [(equal.get(_row_bytes(some, row)) or [-1]).pop() for row in range(len(some["labels"]))]
    return None if -1 in found else np.array(found, np.int64)


def _row_bytes(arrays: dict[str, NDArray[Any]], row: int) -> bytes:
    return b"".join(array[row].tobytes() for array in arrays.values())


def _same_columns(files: MatFiles, parts: dict[str, dict[str, NDArray[Any]]]) -> None:
    for name in ("image", "text", "labels"):
        if len({part[name].shape[1] for part in parts.values()}) > 1:
            raise DataError(
                f"the parts have different numbers of columns; found {files}.", file=files.source, field=name
            )


def _aligned(files: MatFiles, keys: Mapping[str, Sequence[str]]) -> dict[str, NDArray[Any]]:
    """Image, text and label matrices of one part with one row per item."""
    matrices = [files.read_matrix(field, known) for field, known in keys.items()]
    if any(matrix.values.ndim != 2 for matrix in matrices):
        raise DataError(f"features must be matrices (items, values); found {files}.", file=files.source)
    rows = _common_rows([matrix.values.shape for matrix in matrices])
    if rows is None:
        raise DataError(f"{', '.join(keys)} share no number of items; found {files}.", file=files.source)
    image, text, labels = (matrix if len(matrix.values) == rows else matrix.transposed() for matrix in matrices)
    try:
        multi_hot = np.ascontiguousarray(as_labels(labels.values, whose=labels.key))
    except DataError as error:
        raise error.within(labels.file) from None
    return dict(zip(keys, (_features(image), _features(text), multi_hot), strict=True))


def _common_rows(shapes: Sequence[tuple[int, ...]]) -> int | None:
    """Number of items: rows of all matrices, or else the one size that all of them have; None if neither exists."""
    if len({shape[0] for shape in shapes}) == 1:
        return shapes[0][0]
    common = set(shapes[0]).intersection(*shapes[1:])
    return common.pop() if len(common) == 1 else None


def _features(matrix: Matrix) -> NDArray[np.float32]:
    if not matrix.values.size:
        raise DataError(
            f"an empty matrix of shape {matrix.values.shape}; need one row per item.",
            file=matrix.file,
            field=matrix.key,
        )
    try:
        return np.ascontiguousarray(as_float32(matrix.values, matrix.key))
    except DataError as error:
        raise error.within(matrix.file) from None


def _texts(files: MatFiles, count: int) -> list[tuple[str, ...]]:
    plain = files.source / "caption.txt"
    if plain.is_file() and not files.has("text", PAIR_KEYS["text"]):
        lines = ("" if line == EMPTY_CAPTION else line for line in read_lines(plain))
        return [(line,) for line in lines]
    value = files.read("text", PAIR_KEYS["text"])
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        raise DataError(
            f"the texts are a matrix of numbers {value.shape}.",
            file=files.source,
            field="text",
            hint="Read features with the kind mat-features, or map text to another key with `names`.",
        )
    return [_strings(each) or ("",) for each in _rows(value, count)]


def _optional(files: MatFiles, name: str) -> tuple[str, ...] | None:
    if not files.has(name, PAIR_KEYS[name]):
        return None
    return tuple((_strings(each) or ("",))[0] for each in _rows(files.read(name, PAIR_KEYS[name]), None))


def _rows(value: Any, count: int | None) -> list[Any]:
    """The entries of an array of texts in any layout; `count` of them if that is known."""
    array = np.atleast_1d(value)
    while array.dtype == object and array.size == 1 and count != 1 and isinstance(array.flat[0], np.ndarray):
        array = np.atleast_1d(array.flat[0])  # a cell that contains the whole cell array
    if array.ndim == 2 and len(array) != count and array.shape[1] == count:
        array = array.T
    if array.ndim == 2 and 1 in array.shape and len(array) != count:
        array = array.ravel()
    return list(array)


def _strings(entry: Any) -> tuple[str, ...]:
    """All texts in a nested entry without padding; empty ones are left out."""
    if isinstance(entry, np.ndarray):
        return tuple(text for part in entry.ravel() for text in _strings(part))
    text = (entry.decode("utf-8", "replace") if isinstance(entry, bytes) else str(entry)).strip(" \0")
    return (text,) if text else ()


def _moved(path: str, root: Mapping[str, str]) -> Path:
    """Image path with its prefix replaced."""
    if "/" not in path:
        path = path.replace("\\", "/")
    for old, new in root.items():
        if path.startswith(old):
            return Path(new + path.removeprefix(old))
    return Path(path)


def _ids(images: Sequence[Path | None]) -> tuple[str, ...]:
    paths = [str(row) if image is None else image.as_posix() for row, image in enumerate(images)]
    stems = tuple(PurePosixPath(path).stem for path in paths)
    return stems if len(set(stems)) == len(stems) else tuple(paths)
