"""Feature vectors of a data set with the recipe that made them, and the part of them that training may see.

A feature store is a folder: shards with the vectors, the items in `items-*.parquet` (a manifest that any tool reads),
and `store.json`, written last, which names them with their checksums. More items are more shards and a new
`store.json`.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import ArrayLike, NDArray

from multibit.data.dataset import PairedDataset
from multibit.data.encoders import EncoderRecipe
from multibit.data.manifest import read_manifest
from multibit.data.shards import Shard, ShardedRows, shard_path
from multibit.errors import DataError, FormatError, MismatchError
from multibit.files import checksum_file, fingerprint, read_json, replacing, write_json

KIND, VERSION = "feature store", 2
SHARD = 512  # items in a shard: what is lost, at most, when an extraction is killed


@dataclass(frozen=True)
class Recipe:
    """How the features of both modalities were made; two recipes are equal when their features are comparable."""

    image: EncoderRecipe
    text: EncoderRecipe

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"image": self.image.to_dict(), "text": self.text.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        """Inverse of `to_dict`."""
        return cls(EncoderRecipe(**values["image"]), EncoderRecipe(**values["text"]))

    def difference(self, other: Recipe) -> tuple[str, str, Any, Any] | None:
        """The first thing that another recipe does in another way: modality, what, here, there."""
        for modality in ("image", "text"):
            mine, theirs = getattr(self, modality).to_dict(), getattr(other, modality).to_dict()
            for key in ("name", "weights", "dimension", "preprocessing", "dtype", "prompt"):
                if mine[key] != theirs[key]:
                    return modality, key, mine[key], theirs[key]
        return None

    def require(self, other: Recipe, whose: str) -> None:
        """Refuse features of another recipe.

        Raises:
            MismatchError: the recipes differ; says in what.
        """
        if difference := self.difference(other):
            modality, key, mine, theirs = difference
            raise MismatchError(
                f"{modality} features: {whose} have {key} {theirs!r}, the model was trained on {mine!r}. Make the "
                "features again with the model's encoders."
            )


@dataclass(frozen=True, eq=False)
class Pairs:
    """Features and labels of some items, and nothing else: what training and selection are given.

    Attributes:
        image: (n, d_i) float32. text: (T, d_t) float32, the texts of item i in rows offsets[i]..offsets[i+1].
        offsets: (n+1,) int64. labels: (n, C) uint8.

    Raises:
        DataError: rows that do not match, an item without text, or a value that is not finite.
    """

    image: NDArray[np.float32]
    text: NDArray[np.float32]
    offsets: NDArray[np.int64]
    labels: NDArray[np.uint8]

    def __post_init__(self) -> None:
        for name in ("image", "text"):
            single = as_float32(np.asarray(getattr(self, name)), f"{name} features")
            object.__setattr__(self, name, np.require(single, np.float32, ["C", "W"]))
        if len(self.image) != len(self.labels):
            raise DataError(f"features: {len(self.image)} image rows, {len(self.labels)} label rows; must be equal.")
        check_offsets(self.offsets, len(self.labels), len(self.text))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def mean_text(self) -> NDArray[np.float32]:
        """(n, d_t) mean of all texts of each item: what is encoded."""
        if len(self.text) == len(self):
            return self.text
        with np.errstate(over="ignore"):
            sums = np.add.reduceat(self.text, self.offsets[:-1], axis=0)
        if not np.isfinite(sums).all():
            sums = np.add.reduceat(self.text, self.offsets[:-1], axis=0, dtype=np.float64)
        return np.asarray(sums / np.diff(self.offsets)[:, None], np.float32)


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """Feature vectors of a data set.

    Attributes:
        dataset: the items, row for row.
        image: (N, d_i) float32 or float16, in memory or in shards on disk. text: (T, d_t), T >= N.
        offsets: (N+1,) int64, the texts of item i are rows offsets[i]..offsets[i+1].
        recipe: how the features were made.
        skipped: (id, reason) of each item whose picture could not be read.
        truncated: texts longer than the encoder reads.
        source: where the store was opened from.

    Raises:
        DataError: rows that do not match the data set.
    """

    dataset: PairedDataset
    image: NDArray[Any] | ShardedRows
    text: NDArray[Any] | ShardedRows
    offsets: NDArray[np.int64]
    recipe: Recipe
    skipped: tuple[tuple[str, str], ...] = ()
    truncated: int = 0
    source: Path | None = None

    def __post_init__(self) -> None:
        for name in ("image", "text"):
            array = getattr(self, name)
            if array.ndim != 2 or array.shape[1] < 1 or array.dtype.kind != "f":
                raise DataError(f"{name} features: need a matrix of floats, got {array.dtype} of shape {array.shape}.")
        if len(self.image) != len(self.dataset):
            raise DataError(f"features: {len(self.image)} image rows for {len(self.dataset)} items of the data set.")
        check_offsets(self.offsets, len(self.dataset), len(self.text))

    def __len__(self) -> int:
        return len(self.dataset)

    def fingerprint(self) -> str:
        """16 hexadecimal digits of data and features: the identity of the input of a run."""
        return fingerprint(self.dataset.fingerprint(), self.image, self.text, self.offsets)

    def require_finite(self, block: int = 16_384) -> None:
        """Look at every value, some rows at a time.

        Raises:
            DataError: one is not finite, or not as float32; with file, row and column.
        """
        where = f"{self.source}: " if self.source else ""
        for name in ("image", "text"):
            array = getattr(self, name)
            for start in range(0, len(array), block):
                part = np.asarray(array[start : start + block])
                as_float32(part, f"{where}{name} features", np.arange(start, start + len(part)))

    def take(self, rows: ArrayLike) -> Pairs:
        """Features and labels of some rows, in the order given, or of those where a mask is true; float32 in memory.

        Raises:
            DataError: rows that are not integers or do not exist; a value among them that is not finite, or not as
                float32; with file, row and column.
        """
        index = row_numbers(rows, len(self))
        counts = np.diff(self.offsets)[index]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        text_rows = np.repeat(self.offsets[index], counts) + within
        where = f"{self.source}: " if self.source else ""
        image = as_float32(self.image[index], f"{where}image features", index)
        text = as_float32(self.text[text_rows], f"{where}text features", text_rows)
        return Pairs(image, text, offsets.astype(np.int64), self.dataset.labels[index])

    def save(self, folder: Path | str) -> None:
        """Write to a new folder, in one step.

        Raises:
            DataError: the folder exists already.
        """
        folder = Path(folder)
        if folder.exists():
            raise DataError(f"{folder}: exists already. Choose another folder or delete it first.")
        with replacing(folder) as temporary:
            temporary.mkdir()
            for number, start in enumerate(range(0, len(self), SHARD)):
                ends = self.offsets[start : start + SHARD + 1]
                image, text = self.image[start : start + SHARD], self.text[ends[0] : ends[-1]]
                told = (self.skipped, self.truncated) if number == 0 else ((), 0)
                Shard(image, text, np.diff(ends), *told).write(temporary, number)
            write_header(temporary, self.dataset, self.recipe, number + 1)

    @classmethod
    def open(cls, path: Path | str) -> FeatureStore:
        """Open a feature store folder, or a ready `.npz` file (see `from_npz`).

        Raises:
            FormatError: torn, newer, or another kind of folder. DataError: its arrays do not match.
        """
        path = Path(path)
        if path.suffix == ".npz":
            return cls.from_npz(path)
        if path.is_file():
            raise DataError(f"{path}: holds no features; give the folder of a feature store, or an .npz file.")
        header = read_header(path)
        for name, digits in header["checksums"].items():
            if not (path / name).is_file() or checksum_file(path / name) != digits:
                raise FormatError(f"{path}: {name} is missing or torn, or was changed. Make the features again.")
        dataset = read_manifest(path / header["items"], label_names=header["label_names"])
        paths = [shard_path(path, number) for number in range(header["shards"])]
        counts: list[NDArray[np.int64]] = []
        reasons: dict[str, str] = {}
        truncated = 0
        for each in paths:  # one at a time: an open shard holds a file descriptor
            shard = Shard.read(each, verify=False)
            counts.append(np.array(shard.counts))
            reasons.update(shard.skipped)
            truncated += shard.truncated
        encoded = set(dataset.ids) if reasons else set()  # what was skipped once may have been encoded later
        return cls(
            dataset,
            ShardedRows(paths, "image", np.cumsum([len(each) for each in counts])),
            ShardedRows(paths, "text", np.cumsum([each.sum() for each in counts])),
            np.concatenate([[0], *counts]).cumsum(),
            Recipe.from_dict(header["recipe"]),
            tuple(pair for pair in reasons.items() if pair[0] not in encoded),
            truncated,
            path,
        )

    @classmethod
    def from_npz(cls, path: Path | str) -> FeatureStore:
        """Read ready features and labels from one `.npz` file.

        Keys: `image` (N, d_i), `text` (N, d_t) or (T, d_t) with `text_offsets` (N+1,), `labels` (N, C) 0/1; optional
        `ids` (N,), `label_names` (C,), `texts` (N,) and `recipe` (a name for how the features were made).

        Raises:
            DataError: unreadable, a key missing, or shapes that do not match.
        """
        path = Path(path)
        arrays = read_npz(path)
        missing = [name for name in ("image", "text", "labels") if name not in arrays]
        if missing:
            found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise DataError(f"{path}: no {', '.join(missing)}; it has {found or 'nothing'}. Need image, text, labels.")
        try:
            return cls._of_arrays(arrays, path)
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: a name is not UTF-8 ({error}).") from None
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    @classmethod
    def _of_arrays(cls, arrays: dict[str, NDArray[Any]], path: Path) -> FeatureStore:
        for name in ("image", "text", "labels"):
            if arrays[name].ndim != 2:
                raise DataError(f"{name}: need a matrix, got an array of shape {arrays[name].shape}.")
        count, columns = arrays["labels"].shape
        ids = _names(arrays.get("ids", np.arange(count)))
        if len(ids) != count:
            raise DataError(f"ids: {len(ids)} for {count} items; need one for each row of labels.")
        names = _names(arrays.get("label_names", np.array([f"label {i}" for i in range(columns)])))
        texts = tuple((text,) for text in _names(arrays.get("texts", np.array([""] * count))))
        recipe = str(arrays.get("recipe", "ready-made"))
        image, text = arrays["image"], arrays["text"]
        if "text_offsets" not in arrays and len(text) != count:
            raise DataError(
                f"text: {len(text)} rows for {count} items. Give text_offsets where an item has several texts."
            )
        return cls(
            PairedDataset(ids, (None,) * count, texts, arrays["labels"], names),
            image,
            text,
            arrays.get("text_offsets", np.arange(len(text) + 1)),
            Recipe(*(EncoderRecipe(recipe, "", array.shape[1], "unknown") for array in (image, text))),
            source=path,
        )


def write_header(folder: Path, dataset: PairedDataset, recipe: Recipe, shards: int) -> None:
    """Make a store of the shards in a folder: write the items, then `store.json`, which makes them count.

    Args:
        folder: with the shards 0 to `shards` - 1. dataset: the items in them, in order. recipe: of their features.
    """
    rows = {
        "id": dataset.ids,
        "image": [None if path is None else str(path.absolute()) for path in dataset.images],
        "texts": dataset.texts,
        "labels": [dataset.label_names_of(row) for row in range(len(dataset))],
    }
    items = folder / f"items-{shards:05d}.parquet"  # another name than before: the old store holds until the last step
    with replacing(items) as temporary:
        table = pyarrow.table({name: list(column) for name, column in rows.items()})
        pyarrow.parquet.write_table(table, temporary)
    files = [*(shard_path(folder, number) for number in range(shards)), items]
    header = {
        "recipe": recipe.to_dict(),
        "label_names": list(dataset.label_names),
        "shards": shards,
        "items": items.name,
        "checksums": {file.name: checksum_file(file) for file in files},
    }
    write_json(folder / "store.json", header, kind=KIND, version=VERSION)
    for other in folder.glob("items-*.parquet"):
        if other != items:
            other.unlink()


def read_header(folder: Path) -> dict[str, Any]:
    """What `store.json` says.

    Raises:
        FormatError: no store, unfinished, torn, newer, or of the first version.
    """
    if (folder / "plan.json").exists() and not (folder / "store.json").exists():
        raise FormatError(f"{folder}: its extraction is not finished. Run the same `multibit features` again to go on.")
    header = read_json(folder / "store.json", kind=KIND, version=VERSION)
    if int(header["version"]) < VERSION:
        raise FormatError(f"{folder}: an earlier multibit wrote it in another form. Make the features again.")
    fields = ("recipe", "label_names", "shards", "items", "checksums")
    return read_json(folder / "store.json", kind=KIND, version=VERSION, fields=fields)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an `.npz` file.

    Raises:
        DataError: missing, torn, or another kind of file.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except Exception as error:  # numpy lets the errors of zip, zlib and its own parser through
        foreign = isinstance(error, ValueError) and not zipfile.is_zipfile(path)  # here numpy speaks of pickles
        reason = "not a zip archive" if foreign else error
        raise DataError(f"{path}: torn .npz file, or another kind of file ({reason}).") from None


def require_finite(array: NDArray[Any], what: str, rows: NDArray[np.int64] | None = None) -> None:
    """Refuse NaN and infinity.

    Args:
        array: (n, d). what: it holds, for people. rows: how the rows are called where they come from; 0..n-1 when None.

    Raises:
        DataError: with the row and column of the first one.
    """
    wrong = ~np.isfinite(array)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        name = row if rows is None else rows[row]
        raise DataError(f"{what}: row {name}, column {column} is {array[row, column]}; every value must be finite.")


def as_float32(array: NDArray[Any], what: str, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
    """Features as the network takes them.

    Args:
        array: (n, d). what, rows: as of `require_finite`.

    Raises:
        DataError: with the row of the first value that is not finite, or of more than 32 bits and too large or too
            small for fewer.
    """
    require_finite(array, what, rows)
    with np.errstate(over="ignore", under="ignore"):
        single = np.asarray(array, np.float32)
    if array.dtype.itemsize > single.dtype.itemsize:
        lost = ~np.isfinite(single) | ((single == 0).all(axis=-1, keepdims=True) & (array != 0))
        if lost.any():
            row, column = np.argwhere(lost)[0]
            name = row if rows is None else rows[row]
            raise DataError(
                f"{what}: row {name}, column {column} is {array[row, column]}, which float32 does not hold. Scale the "
                "features: only the direction of a row counts."
            )
    return single


def row_numbers(rows: ArrayLike, items: int) -> NDArray[np.int64]:
    """Row numbers as they are given, or those where a mask (items,) is true.

    Raises:
        DataError: rows that are not integers or do not exist.

    Example:
        >>> row_numbers([True, False, True], items=3)
        array([0, 2])
    """
    index = np.asarray(rows)
    if index.dtype == np.bool_ and index.shape == (items,):
        return np.flatnonzero(index)
    whole = index.ndim == 1 and (not index.size or index.dtype.kind in "iu")
    if not whole or (index.size and (index.min() < 0 or index.max() >= items)):
        raise DataError(f"rows: need integers in 0..{items - 1} or a mask of {items}, got {index}.")
    return index.astype(np.int64)


def check_offsets(offsets: NDArray[np.int64], items: int, text_rows: int) -> None:
    """Refuse offsets that do not give every item one or more text rows of its own.

    Raises:
        DataError: says where.
    """
    if offsets.shape != (items + 1,) or offsets.dtype.kind not in "iu":
        raise DataError(
            f"text offsets: need {items + 1} integers for {items} items, got {offsets.dtype} {offsets.shape}."
        )
    if offsets[0] != 0 or offsets[-1] != text_rows:
        raise DataError(
            f"text offsets: run from {offsets[0]} to {offsets[-1]}, the text features from 0 to {text_rows}."
        )
    if items and np.diff(offsets).min() < 1:
        raise DataError(f"text offsets: item {int(np.diff(offsets).argmin())} has no text row.")


def _names(array: NDArray[Any]) -> tuple[str, ...]:
    """Names stored as text, as bytes, or as numbers."""
    if array.ndim != 1:
        raise DataError(f"names: need one for each row, got an array of shape {array.shape}.")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in array.tolist())
