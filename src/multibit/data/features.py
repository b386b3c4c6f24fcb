"""Feature vectors of a data set with the recipe that made them, and the part of them that training may see."""

from __future__ import annotations

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
from multibit.errors import DataError, FormatError, MismatchError
from multibit.files import fingerprint, read_json, replacing, write_json

KIND, VERSION = "feature store", 1


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

    def require(self, other: Recipe, whose: str) -> None:
        """Refuse features of another recipe.

        Raises:
            MismatchError: the recipes differ; says in what.
        """
        for modality in ("image", "text"):
            mine, theirs = getattr(self, modality).to_dict(), getattr(other, modality).to_dict()
            for key in ("name", "weights", "dimension", "preprocessing"):
                if mine[key] != theirs[key]:
                    raise MismatchError(
                        f"{modality} features: {whose} have {key} {theirs[key]!r}, the model was trained on "
                        f"{mine[key]!r}. Make the features again with the model's encoders."
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
        count = len(self.labels)
        if len(self.image) != count or len(self.offsets) != count + 1 or self.offsets[-1] != len(self.text):
            raise DataError(
                f"features: {len(self.image)} image rows, {len(self.offsets) - 1} items with {len(self.text)} text "
                f"rows, {count} label rows; every item needs its own."
            )
        if count and np.diff(self.offsets).min() < 1:
            raise DataError(f"features: item {int(np.diff(self.offsets).argmin())} has no text feature.")
        for name in ("image", "text"):
            require_finite(getattr(self, name), f"{name} features")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def mean_text(self) -> NDArray[np.float32]:
        """(n, d_t) mean of all texts of each item: what is encoded."""
        if len(self.text) == len(self):
            return self.text
        sums = np.add.reduceat(self.text, self.offsets[:-1], axis=0)
        return np.asarray(sums / np.diff(self.offsets)[:, None], np.float32)


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """Feature vectors of a data set.

    Attributes:
        dataset: the items, row for row.
        image: (N, d_i) float32 or float16, may be memory-mapped. text: (T, d_t), T >= N.
        offsets: (N+1,) int64, the texts of item i are rows offsets[i]..offsets[i+1].
        recipe: how the features were made.
        skipped: (id, reason) of each item whose picture could not be read.
        source: where the store was opened from.

    Raises:
        DataError: rows that do not match the data set.
    """

    dataset: PairedDataset
    image: NDArray[Any]
    text: NDArray[Any]
    offsets: NDArray[np.int64]
    recipe: Recipe
    skipped: tuple[tuple[str, str], ...] = ()
    source: Path | None = None

    def __post_init__(self) -> None:
        for name in ("image", "text"):
            array = getattr(self, name)
            if array.ndim != 2 or array.shape[1] < 1 or array.dtype.kind != "f":
                raise DataError(f"{name} features: need a matrix of floats, got {array.dtype} of shape {array.shape}.")
        if len(self.image) != len(self.dataset) or len(self.offsets) != len(self.dataset) + 1:
            raise DataError(
                f"features: {len(self.image)} image rows and {len(self.offsets) - 1} text items for "
                f"{len(self.dataset)} items of the data set."
            )

    def __len__(self) -> int:
        return len(self.dataset)

    def fingerprint(self) -> str:
        """16 hexadecimal digits of data and features: the identity of the input of a run."""
        return fingerprint(self.dataset.fingerprint(), np.asarray(self.image), np.asarray(self.text))

    def take(self, rows: ArrayLike) -> Pairs:
        """Features and labels of some rows, in the order given, as float32 in memory.

        Raises:
            DataError: a value among them is not finite.
        """
        index = np.asarray(rows, np.int64)
        counts = np.diff(self.offsets)[index]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        text_rows = np.repeat(self.offsets[index], counts) + within
        return Pairs(
            np.asarray(self.image[index], np.float32),
            np.asarray(self.text[text_rows], np.float32),
            offsets.astype(np.int64),
            self.dataset.labels[index],
        )

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
            np.save(temporary / "image.npy", self.image)
            np.save(temporary / "text.npy", self.text)
            np.save(temporary / "offsets.npy", self.offsets)
            self.write_header(temporary)

    def write_header(self, folder: Path) -> None:
        """Write everything but the arrays: the items (a manifest that any tool reads), label names, recipe."""
        data = self.dataset
        rows = {
            "id": data.ids,
            "image": [None if path is None else str(path.absolute()) for path in data.images],
            "texts": data.texts,
            "labels": [data.label_names_of(row) for row in range(len(data))],
        }
        pyarrow.parquet.write_table(
            pyarrow.table({name: list(column) for name, column in rows.items()}), folder / "items.parquet"
        )
        header = {
            "recipe": self.recipe.to_dict(),
            "label_names": list(data.label_names),
            "shapes": {"image": self.image.shape, "text": self.text.shape},
            "skipped": self.skipped,
        }
        write_json(folder / "store.json", header, kind=KIND, version=VERSION)

    @classmethod
    def open(cls, path: Path | str) -> FeatureStore:
        """Open a feature store folder, or a ready `.npz` file (see `from_npz`).

        Raises:
            FormatError: torn, newer, or another kind of folder. DataError: its arrays do not match.
        """
        path = Path(path)
        if path.suffix == ".npz":
            return cls.from_npz(path)
        header = read_json(path / "store.json", kind=KIND, version=VERSION)
        dataset = read_manifest(path / "items.parquet", label_names=header["label_names"])
        try:
            image, text = (np.load(path / f"{name}.npy", mmap_mode="r") for name in ("image", "text"))
            offsets = np.load(path / "offsets.npy")
        except (OSError, ValueError) as error:
            raise FormatError(f"{path}: an array is missing or torn ({error}). Make the features again.") from None
        for name, array in (("image", image), ("text", text)):
            if list(array.shape) != header["shapes"][name]:
                raise FormatError(f"{path}: {name}.npy has shape {array.shape}, recorded is {header['shapes'][name]}.")
        skipped = tuple((name, reason) for name, reason in header["skipped"])
        return cls(dataset, image, text, offsets, Recipe.from_dict(header["recipe"]), skipped, path)

    @classmethod
    def from_npz(cls, path: Path | str) -> FeatureStore:
        """Read ready features and labels from one `.npz` file.

        Keys: `image` (N, d_i), `text` (N, d_t) or (T, d_t) with `text_offsets` (N+1,), `labels` (N, C) 0/1; optional
        `ids` (N,), `label_names` (C,), `texts` (N,) and `recipe` (a name for how the features were made).

        Raises:
            DataError: unreadable, a key missing, or shapes that do not match.
        """
        path = Path(path)
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: not a readable .npz file ({error}).") from None
        except Exception as error:  # zipfile.BadZipFile and friends: numpy lets them through
            raise DataError(f"{path}: torn .npz file ({error}).") from None
        missing = [name for name in ("image", "text", "labels") if name not in arrays]
        if missing:
            found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise DataError(f"{path}: no {', '.join(missing)}; it has {found or 'nothing'}. Need image, text, labels.")
        labels = arrays["labels"]
        if labels.ndim != 2:
            raise DataError(f"{path}: labels have shape {labels.shape}, need (items, labels) of 0 and 1.")
        count, columns = labels.shape
        ids = tuple(str(name) for name in arrays.get("ids", np.arange(count)))
        names = tuple(str(name) for name in arrays.get("label_names", [f"label {i}" for i in range(columns)]))
        texts = tuple((str(text),) for text in arrays.get("texts", [""] * count))
        recipe = str(arrays.get("recipe", "ready-made"))
        try:
            return cls(
                PairedDataset(ids, (None,) * count, texts, labels, names),
                arrays["image"],
                arrays["text"],
                np.asarray(arrays.get("text_offsets", np.arange(len(arrays["text"]) + 1)), np.int64),
                Recipe(*(EncoderRecipe(recipe, "", arrays[name].shape[-1], "unknown") for name in ("image", "text"))),
                source=path,
            )
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


def require_finite(array: NDArray[Any], what: str, block: int = 65_536) -> None:
    """Refuse NaN and infinity, reading at most `block` rows at a time.

    Raises:
        DataError: with the row and column of the first one.
    """
    for start in range(0, len(array), block):
        wrong = ~np.isfinite(array[start : start + block])
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            value = array[start + row, column]
            raise DataError(f"{what}: row {start + row}, column {column} is {value}; every value must be finite.")
