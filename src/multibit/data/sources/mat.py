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
from multibit.data.values import first_class, id_of, numbered_labels, texts_of, with_slashes
from multibit.errors import ConfigError, DataError

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
    encoding: str | None = None,
) -> PairedDataset:
    """Read the field's trio `index.mat`, `caption.mat` or `caption.txt`, `label.mat`.

    Texts may be a padded character matrix or a cell array, of one text or several, (N, 1), (1, N) or nested, or
    structures with the text in `raw` or `text`. Labels are multi-hot, or one class number per item. The id of an item
    is the stem of its image file, or its path if stems repeat.

    Args:
        source: folder of the three, or one .mat file with all keys. See `PAIR_KEYS` for the known keys.
        names: the file's own keys by field: image, text, labels.
        root: new folders of images by old ones; either may be written with backslashes.
        label_names: names of the label columns or class numbers; numbered when None.
        encoding: of `caption.txt`; by its byte order mark, or else UTF-8, when None.

    Raises:
        DataError: unreadable, a key missing, values of another type, or shapes that do not match; with file and key.
        ConfigError: `names` has an unknown field, or no image is in a folder of `root`.
        MissingExtraError: a v7.3 file, and h5py is not installed.
    """
    files = MatFiles.open(Path(source), names or {}, tuple(PAIR_KEYS))
    paths = _texts_of(files, "image", None)
    count = len(paths)
    images = _moved([texts[0] if texts else None for texts in paths], root or {})
    matrix = files.read_matrix("labels", PAIR_KEYS["labels"])
    texts = _texts(files, count, encoding)
    values = matrix.values.T if matrix.values.shape[0] != count and matrix.values.shape[1] == count else matrix.values
    if not count == len(values) == len(texts):
        raise DataError(
            f"{count:,} images, {len(texts):,} texts, labels of shape {values.shape}; need one row per item. Found "
            f"{files}.",
            file=files.source,
        )
    given = label_names or _names_in(files, "label_names")
    try:
        labels, columns = _multi_hot(values, matrix.key, given)
        ids = _names_in(files, "ids") or _ids(images)
        return PairedDataset(tuple(ids), images, tuple(texts), labels, columns)
    except DataError as error:
        raise error.within(files.source) from None


def read_mat_features(
    source: Path | str, *, names: Mapping[str, str] | None = None, label_names: Sequence[str] | None = None
) -> dict[str, NDArray[Any]]:
    """Read feature vectors and labels: `I_tr`, `T_tr`, `L_tr`, `I_te`, ..., or `XAll`, `YAll`, `LAll`.

    Transposed arrays are detected. If the file has parts, its split is kept: `te` are the queries, `tr` the training
    set, `db` the database (`tr` if there is none).

    Args:
        source: a .mat file, or a folder of several that belong together.
        names: the file's own keys by field: image, text, labels, or I_tr, T_tr, ...
        label_names: as for `read_mat`.

    Returns:
        The arrays of a feature file (`FeatureStore.from_npz`): image, text, labels, label_names, recipe; and rows
        train, query, database if the file has a split.

    Raises:
        DataError: unreadable, a key missing, shapes that do not match, or a value that is not finite as float32.
        ConfigError: `names` has an unknown field, or one that has no effect. MissingExtraError: a v7.3 file, and h5py
            is not installed.
    """
    source = Path(source)
    files = MatFiles.open(source, names or {}, (*FEATURE_KEYS, *PART_KEYS, "label_names"))
    whole = any(files.has(name, keys) for name, keys in FEATURE_KEYS.items() if name != "labels")
    for field in set(files.names) & set(PART_KEYS if whole else FEATURE_KEYS):
        read = ", ".join(FEATURE_KEYS if whole else PART_KEYS)
        raise ConfigError(f"{field} has no effect, because the file is read by {read}.", file=source, option="names")
    arrays = _aligned(files, FEATURE_KEYS) if whole else _parts(files)
    try:
        given = label_names or _names_in(files, "label_names")
        labels, columns = _multi_hot(arrays["labels"], "labels", given)
    except DataError as error:
        raise error.within(source) from None
    return {**arrays, "labels": labels, "label_names": np.array(columns), "recipe": np.array(source.stem)}


def _multi_hot(
    values: NDArray[Any], key: str, given: Sequence[str] | None
) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """Multi-hot labels (N, C) and the names of their columns.

    Args:
        values: (N, C) multi-hot, or (N, 1) class numbers. key: of the matrix. given: names of the labels.

    Raises:
        DataError: other values, or class numbers that the names do not fit, or fit both counted from 0 and from 1.
    """
    if not _is_classes(values):
        names = tuple(given or numbered_labels(values.shape[1]))
        return as_labels(np.ascontiguousarray(values), columns=len(names)), names
    labels, classes = _one_hot(values)
    if given is None:
        width = len(str(classes[-1]))
        return labels, tuple(f"label {number:0{width}d}" for number in classes)
    try:
        first = first_class(classes[0], classes[-1], given)
    except DataError as error:
        error.field = key
        raise
    whole = np.zeros((len(labels), len(given)), np.uint8)
    whole[:, np.array(classes) - first] = labels
    return whole, tuple(given)


def _is_classes(values: NDArray[Any]) -> bool:
    """Whether a column holds class numbers: whole, not negative, and not only 0 and 1."""
    if values.ndim != 2 or values.shape[1] != 1 or not values.size or values.dtype.kind not in "iuf":
        return False
    whole = bool((values >= 0).all() and (values == np.floor(values)).all())
    return whole and bool((values > 1).any())


def _one_hot(values: NDArray[Any]) -> tuple[NDArray[np.uint8], list[int]]:
    """A column of class numbers as one column for each class that occurs, and the classes; others unchanged."""
    if not _is_classes(values):
        return values, []
    classes, column = np.unique(values, return_inverse=True)
    labels = np.zeros((len(values), len(classes)), np.uint8)
    labels[np.arange(len(values)), column.ravel()] = 1
    return labels, classes.astype(np.int64).tolist()


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
        classes = _is_classes(labels.values)  # made multi-hot together with the other parts
        multi_hot = labels.values if classes else np.ascontiguousarray(as_labels(labels.values, whose=labels.key))
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


def _texts(files: MatFiles, count: int, encoding: str | None) -> list[tuple[str, ...]]:
    plain = files.source / "caption.txt"
    if plain.is_file() and not files.has("text", PAIR_KEYS["text"]):
        lines = ("" if line == EMPTY_CAPTION else line for line in read_lines(plain, encoding))
        return [(line,) for line in lines]
    value = files.read("text", PAIR_KEYS["text"])
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        raise DataError(
            f"the texts are a matrix of numbers {value.shape}.",
            file=files.source,
            field="text",
            hint="Read features with the kind mat-features, or map text to another key with `names`.",
        )
    return [texts or ("",) for texts in _texts_of(files, "text", count)]


def _texts_of(files: MatFiles, field: str, count: int | None) -> list[tuple[str, ...]]:
    """Texts of each item under the key of a field.

    Raises:
        DataError: no such key, or a value that is not a text; with file, row and key.
    """
    path, key = files.locate(field, PAIR_KEYS[field])
    try:
        rows = enumerate(_rows(files.read(field, PAIR_KEYS[field]), count), start=1)
        return [_strings(each, key, row) for row, each in rows]
    except DataError as error:
        raise error.within(path) from None


def _names_in(files: MatFiles, field: str) -> tuple[str, ...] | None:
    """The ids or label names of a file, texts or whole numbers; None if it has none."""
    if not files.has(field, PAIR_KEYS[field]):
        return None
    path, key = files.locate(field, PAIR_KEYS[field])
    try:
        rows = enumerate(_rows(files.read(field, PAIR_KEYS[field]), None), start=1)
        return tuple(id_of(_single(each), row=row, field=key) for row, each in rows)
    except DataError as error:
        raise error.within(path) from None


def _single(entry: Any) -> Any:
    """The value of an entry that may be nested, a text without padding."""
    while isinstance(entry, np.ndarray) and entry.size == 1 and entry.dtype.names is None:
        entry = entry.ravel()[0]
    return entry.strip(" \0") if isinstance(entry, str) else entry


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


def _strings(entry: Any, key: str, row: int) -> tuple[str, ...]:
    """All texts in a nested entry without padding; empty ones are left out."""
    if isinstance(entry, np.ndarray) and entry.dtype.names is None:
        return tuple(text for part in entry.ravel() for text in _strings(part, key, row))
    texts = (text.strip(" \0") for text in texts_of(entry, row=row, field=key))
    return tuple(text for text in texts if text)


def _moved(paths: Sequence[str | None], root: Mapping[str, str]) -> tuple[Path | None, ...]:
    """Image paths with their folders replaced.

    Raises:
        ConfigError: no path is in a folder to replace.
    """
    folders = {with_slashes(old).rstrip("/"): (old, new) for old, new in root.items()}
    unused = set(folders)
    moved: list[Path | None] = []
    for written in paths:
        path = None if written is None else with_slashes(written)
        start = next((each for each in folders if path is not None and f"{path}/".startswith(f"{each}/")), None)
        if path is not None and start is not None:
            unused.discard(start)
            path = str(Path(folders[start][1]) / path.removeprefix(start).lstrip("/"))
        moved.append(None if path is None else Path(path))
    if unused:
        first = next((path for path in paths if path is not None), "nothing")
        raise ConfigError(
            f"no image path begins with {folders[min(unused)][0]!r}; the first is {first!r}.",
            option="root",
            hint="Write OLD as in the file.",
        )
    return tuple(moved)


def _ids(images: Sequence[Path | None]) -> tuple[str, ...]:
    paths = [str(row) if image is None else image.as_posix() for row, image in enumerate(images)]
    stems = tuple(PurePosixPath(path).stem for path in paths)
    return stems if len(set(stems)) == len(stems) else tuple(paths)
