"""Ready-made features: vectors made elsewhere, joined to the items of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.codes.items import MODALITIES, Modality
from multibit.data.dataset import PairedDataset
from multibit.errors import DataError
from multibit.features.recipe import Recipe
from multibit.features.store import FeatureStore, read_names
from multibit.features.tokens import Tokens, named_tokens
from multibit.npz import read_npz

ARRAYS = ("image", "text", "ids", *(f"{modality}_token{end}" for modality in MODALITIES for end in ("s", "_counts")))
"""Names of the files of a folder, without their ending."""


def read_ready(dataset: PairedDataset, path: Path | str, recipe: str) -> FeatureStore:
    """Join ready-made vectors to the items of a data set.

    Args:
        dataset: N items.
        path: an `.npz` file, or a folder of `.npy` files, which stay on disk when they are in the order of the items.
            Arrays: `image` (R, d_i); `text` (R, d_t), or one row per text of the items, in order; `ids` (R,) if the
            rows are in another order or do not cover all items. Tokens, as in `FeatureStore.from_npz`, have the rows
            of `image` and `text`.
        recipe: a name for how the vectors were made; features of another name are never mixed with them.

    Returns:
        A store of the items that have vectors; the others are listed as skipped.

    Raises:
        DataError: an unreadable file, a missing array, or rows that do not match.
    """
    path = Path(path)
    arrays = _read(path)
    missing = [name for name in ("image", "text") if name not in arrays or arrays[name].ndim != 2]
    if missing:
        found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise DataError(f"no such matrix; found {found or 'no array'}.", file=path, field=", ".join(missing))
    image, text = arrays["image"], arrays["text"]
    made = Recipe.ready_made(recipe, image.shape[1], text.shape[1])
    try:
        tokens = named_tokens(arrays)
        for modality, each in tokens.items():
            if len(each) != (rows := len(arrays[modality])):
                raise DataError(f"{len(each)} rows, {rows} of {modality}.", field=f"{modality}_tokens")
        if "ids" in arrays:
            return _by_id(dataset, image, text, tokens, read_names(arrays, "ids"), made, path)
    except DataError as error:
        raise error.within(path) from None
    counts = [len(texts) for texts in dataset.texts]
    several = len(text) == sum(counts)
    if len(image) != len(dataset) or not (several or len(text) == len(dataset)):
        raise DataError(
            f"{len(image)} image and {len(text)} text rows for {len(dataset)} items with {sum(counts)} texts.",
            file=path,
            hint="Add the array ids if rows are missing or in another order.",
        )
    offsets = np.concatenate([[0], np.cumsum(counts)]) if several else np.arange(len(dataset) + 1)
    return FeatureStore(dataset, image, text, offsets, made, (), 0, path, tokens.get("image"), tokens.get("text"))


def _by_id(
    dataset: PairedDataset,
    image: NDArray[Any],
    text: NDArray[Any],
    tokens: Mapping[Modality, Tokens],
    ids: Sequence[str],
    recipe: Recipe,
    path: Path,
) -> FeatureStore:
    if not len(ids) == len(image) == len(text):
        raise DataError(f"{len(ids)} ids, {len(image)} image rows and {len(text)} text rows; the counts must be equal.")
    row_of = {name: row for row, name in enumerate(ids)}
    if unknown := row_of.keys() - set(dataset.ids):
        raise DataError(f"{min(unknown)!r} is not in the data set.", field="ids")
    if len(row_of) < len(ids):
        repeated = next(name for row, name in enumerate(ids) if row_of[name] != row)
        raise DataError(f"{repeated!r} occurs more than once.", field="ids")
    kept = [row for row, name in enumerate(dataset.ids) if name in row_of]
    if not kept:
        raise DataError("is empty; at least one id is needed.", field="ids")
    rows = [row_of[dataset.ids[row]] for row in kept]
    skipped = tuple((name, f"no row in {path.name}.") for name in dataset.ids if name not in row_of)
    chosen = {modality: each.select(rows) for modality, each in tokens.items()}
    offsets = np.arange(len(kept) + 1)
    return FeatureStore(
        dataset.take(kept),
        image[rows],
        text[rows],
        offsets,
        recipe,
        skipped,
        0,
        path,
        chosen.get("image"),
        chosen.get("text"),
    )


def _read(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_dir():
        return read_npz(path)
    try:
        names = [name for name in ARRAYS if (path / f"{name}.npy").exists()]
        return {name: np.load(path / f"{name}.npy", mmap_mode="r") for name in names}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"an array is corrupt, truncated or of another kind ({error}).", file=path) from None
