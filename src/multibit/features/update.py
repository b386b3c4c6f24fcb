"""A feature store compared with the data set of a later call: what is the same, moved, changed or missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import scipy.sparse

from multibit.arrays import IntArray, Labels
from multibit.data.dataset import LabelRows, PairedDataset
from multibit.data.notes import note
from multibit.errors import MismatchError, counted
from multibit.features.originals import absolute, changed_rows
from multibit.features.recipe import Recipe
from multibit.features.shards import Shard
from multibit.features.storage import read_header, write_header
from multibit.features.store import FeatureStore
from multibit.features.tokens import TokenShapes, describe_tokens


def with_paths_of(store: FeatureStore, dataset: PairedDataset) -> PairedDataset | None:
    """The items of a store with the image paths that a data set has for them; None if they have these already."""
    path_of = dict(zip(dataset.ids, dataset.images, strict=True))
    pairs = zip(store.dataset.ids, store.dataset.images, strict=True)
    images = tuple(path_of.get(name) or image for name, image in pairs)
    if [image and absolute(image) for image in images] == [image and absolute(image) for image in store.dataset.images]:
        return None
    return replace(store.dataset, labels=cast(Labels, store.dataset.label_rows), images=images)


def rewritten(store: FeatureStore, dataset: PairedDataset) -> FeatureStore:
    """A store with other image paths, which a note tells."""
    assert store.source is not None
    first = next(image for image in dataset.images if image)
    note(f"{store.source}: the images are in another place than before, such as {first}; their new paths are kept.")
    shards = read_header(store.source).shards
    write_header(store.source, dataset, store.recipe, shards, store.token_shapes, rows=store.rows)
    return replace(store, dataset=dataset)


def require_same(store: FeatureStore, dataset: PairedDataset, recipe: Recipe, shapes: TokenShapes) -> FeatureStore:
    """The store, if it has the features of these items by these encoders.

    Raises:
        MismatchError: other data, another recipe, other tokens, or images that have changed since.
    """
    skipped = {name for name, _ in store.skipped}
    kept = [row for row, name in enumerate(dataset.ids) if name not in skipped]
    asked = dataset.take(kept) if kept else dataset
    same_data = store.dataset.fingerprint() == asked.fingerprint()
    if store.recipe != recipe or not same_data or _file_names(store.dataset) != _file_names(asked):
        raise MismatchError(
            "contains features of other data or of other encoders.",
            file=store.source,
            hint="Choose another folder or delete this one first; `update` adds items to it.",
        )
    _require_tokens(store, shapes)
    if changed := changed_rows(store.originals, asked.images):
        raise MismatchError(
            f"{counted(len(changed), 'image has changed', 'images have changed')} since the encoding, such as "
            f"{asked.images[changed[0]]}.",
            file=store.source,
            hint="Encode them again: `update`.",
        )
    return store


def _require_tokens(store: FeatureStore, shapes: TokenShapes) -> None:
    """Refuse a store with other tokens than those asked for.

    Raises:
        MismatchError: says what is there and what is asked for.
    """
    here, asked = describe_tokens(store.token_shapes), describe_tokens(shapes)
    if here == asked:
        return
    hint = "Choose another folder."
    if not here:
        problem = "has no tokens, and they cannot be added to items that are there."
        hint = "Leave `tokens` out or choose another folder."
    elif not asked:
        problem, hint = f"has tokens ({here}), but none are asked for.", "Give `tokens` or choose another folder."
    else:
        problem = f"has tokens of {here}, the encoders give {asked}."
    raise MismatchError(problem, file=store.source, option="tokens", hint=hint)


def _file_names(dataset: PairedDataset) -> list[str | None]:
    """Names of the image files without their folders: a data set that was moved is still the same."""
    return [None if image is None else image.name for image in dataset.images]


def missing_from(
    store: FeatureStore, dataset: PairedDataset, recipe: Recipe, shapes: TokenShapes
) -> PairedDataset | None:
    """The items that a store lacks or whose image has changed, None when there are none.

    Raises:
        MismatchError: another recipe, other tokens, or a different item with the same id.
    """
    if difference := store.recipe.difference(recipe):
        modality, key, mine, given = difference
        raise MismatchError(
            f"have {key} {mine!r}, the given encoder has {given!r}.",
            file=store.source,
            field=f"{modality} features",
            hint="Add items with the encoders of the store.",
        )
    _require_tokens(store, shapes)
    row_of = {name: row for row, name in enumerate(store.dataset.ids)}
    for row, name in enumerate(dataset.ids):
        if name in row_of and _item(dataset, row) != _item(store.dataset, row_of[name]):
            raise MismatchError(
                f"contains a different item {name!r} already (image, texts or labels differ).",
                file=store.source,
                hint="Give the new item another id.",
            )
    known = [row for row, name in enumerate(dataset.ids) if name in row_of]
    originals = [store.originals[row_of[dataset.ids[row]]] if store.originals else None for row in known]
    changed = [known[position] for position in changed_rows(originals, [dataset.images[row] for row in known])]
    if changed:
        first = dataset.images[changed[0]]
        found = counted(len(changed), "image has changed", "images have changed")
        note(f"{store.source}: {found}, such as {first}, and will be encoded again.")
    rows = changed + [row for row, name in enumerate(dataset.ids) if name not in row_of]
    return dataset.take(rows) if rows else None


def _item(dataset: PairedDataset, row: int) -> tuple[Any, ...]:
    image = dataset.images[row]
    return image and image.name, dataset.texts[row], sorted(dataset.label_names_of(row))


def merged(store: FeatureStore, new: PairedDataset, kept: Sequence[int]) -> tuple[PairedDataset, IntArray | None]:
    """The items of a store and those that were encoded after them, and the row of each in the shards.

    Args:
        store: before. new: items that were tried. kept: rows of those that were encoded, in the order of the shards.
    """
    row_of = {name: row for row, name in enumerate(store.dataset.ids)}
    before = len(store) if store.rows is None else _rows_in_shards(store)
    place = list(range(len(store))) if store.rows is None else store.rows.tolist()
    encoded = {new.ids[row]: before + position for position, row in enumerate(kept)}
    images = list(store.dataset.images)
    for row, name in enumerate(new.ids):
        if name in row_of and name in encoded:
            place[row_of[name]], images[row_of[name]] = encoded[name], new.images[row]
    lost = {row_of[name] for name in new.ids if name in row_of and name not in encoded}
    stay = [row for row in range(len(store)) if row not in lost]
    added = [row for row in kept if new.ids[row] not in row_of]
    old = replace(store.dataset, labels=cast(Labels, store.dataset.label_rows), images=tuple(images)).take(stay)
    whole = _joined(old, new.take(added)) if added else old
    rows = np.array([place[row] for row in stay] + [encoded[new.ids[row]] for row in added], np.int64)
    return whole, None if np.array_equal(rows, np.arange(before + len(kept))) else rows


def _joined(first: PairedDataset, second: PairedDataset) -> PairedDataset:
    """The items of two data sets; new label names come last."""
    names = list(dict.fromkeys([*first.label_names, *second.label_names]))
    column = {name: number for number, name in enumerate(names)}
    parts = [data.label_rows.matrix.tocoo() for data in (first, second)]
    columns = [np.array([column[name] for name in data.label_names], np.int64) for data in (first, second)]
    rows = np.concatenate([parts[0].coords[0], parts[1].coords[0] + len(first)])
    place = np.concatenate([own[part.coords[1]] for own, part in zip(columns, parts, strict=True)])
    matrix = scipy.sparse.csr_array(
        (np.ones(len(rows), np.uint8), (rows, place)), (len(first) + len(second), len(names))
    )
    matrix.sort_indices()
    labels = cast(Labels, LabelRows(matrix))
    return PairedDataset(
        first.ids + second.ids, first.images + second.images, first.texts + second.texts, labels, tuple(names)
    )


def _rows_in_shards(store: FeatureStore) -> int:
    """Number of rows in all shards of a store, those included that were encoded again."""
    assert store.source is not None
    return sum(
        len(Shard.read(path, verify=False).counts)
        for path in sorted(store.source.glob("shard-*.safetensors"))[: read_header(store.source).shards]
    )
