"""Feature vectors made elsewhere, beside the items they belong to -> feature store, under a declared recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.data.dataset import PairedDataset
from multibit.data.encoders import EncoderRecipe
from multibit.data.features import FeatureStore, Recipe, read_npz
from multibit.errors import DataError


def read_ready(dataset: PairedDataset, path: Path, recipe: str) -> FeatureStore:
    """Join ready vectors to items.

    Args:
        dataset: N items.
        path: an `.npz` file, or a folder of `.npy` files, which stay on disk when they are in the order of the items.
            `image` (R, d_i); `text` (R, d_t), or one row for each text of the items in their order; `ids` (R,) when
            the rows are in another order, or not of all items.
        recipe: a name for how they were made; features of another name never mix with them.

    Returns:
        A store of the items that have vectors; the others are listed as skipped.

    Raises:
        DataError: unreadable, an array missing, or rows that do not match.
    """
    arrays = _read(path)
    missing = [name for name in ("image", "text") if name not in arrays or arrays[name].ndim != 2]
    if missing:
        found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise DataError(f"{path}: no matrix {' and no matrix '.join(missing)}; it has {found or 'nothing'}.")
    image, text = arrays["image"], arrays["text"]
    made = Recipe(*(EncoderRecipe(recipe, "", array.shape[1], "unknown") for array in (image, text)))
    if "ids" in arrays:
        return _by_id(dataset, image, text, arrays["ids"], made, path)
    counts = [len(texts) for texts in dataset.texts]
    several = len(text) == sum(counts)
    if len(image) != len(dataset) or not (several or len(text) == len(dataset)):
        raise DataError(
            f"{path}: {len(image)} image and {len(text)} text rows for {len(dataset)} items with {sum(counts)} texts. "
            "Give ids where rows are missing or in another order."
        )
    offsets = np.concatenate([[0], np.cumsum(counts)]) if several else np.arange(len(dataset) + 1)
    return FeatureStore(dataset, image, text, offsets, made, source=path)


def _by_id(
    dataset: PairedDataset,
    image: NDArray[Any],
    text: NDArray[Any],
    ids: NDArray[Any],
    recipe: Recipe,
    path: Path,
) -> FeatureStore:
    if not len(ids) == len(image) == len(text):
        raise DataError(f"{path}: {len(ids)} ids, {len(image)} image and {len(text)} text rows; must be equal.")
    row_of = {name.decode() if isinstance(name, bytes) else str(name): row for row, name in enumerate(ids.tolist())}
    unknown = row_of.keys() - set(dataset.ids)
    if unknown or len(row_of) < len(ids):
        what = f"id {min(unknown)!r} is not in the data set" if unknown else "an id is there twice"
        raise DataError(f"{path}: {what}.")
    kept = [row for row, name in enumerate(dataset.ids) if name in row_of]
    if not kept:
        raise DataError(f"{path}: has no ids.")
    rows = [row_of[dataset.ids[row]] for row in kept]
    skipped = tuple((name, f"no row in {path.name}.") for name in dataset.ids if name not in row_of)
    offsets = np.arange(len(kept) + 1)
    return FeatureStore(dataset.take(kept), image[rows], text[rows], offsets, recipe, skipped, source=path)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_dir():
        return read_npz(path)
    try:
        names = [name for name in ("image", "text", "ids") if (path / f"{name}.npy").exists()]
        return {name: np.load(path / f"{name}.npy", mmap_mode="r") for name in names}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: an array is torn or of another kind ({error}).") from None
