"""Data set -> feature store: streamed in shards, resumable, bad pictures skipped and listed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from multibit.data.dataset import PairedDataset
from multibit.data.encoders import PictureEncoder, TextEncoder
from multibit.data.features import FeatureStore, Recipe, require_finite
from multibit.data.pictures import open_picture
from multibit.errors import DataError, FormatError, MismatchError
from multibit.files import read_arrays, read_json, replacing, write_arrays, write_json
from multibit.progress import progress

SHARD = 128  # items per shard: what is lost, at most, when the extraction is killed


def extract_features(
    dataset: PairedDataset, pictures: PictureEncoder, texts: TextEncoder, folder: Path, *, workers: int = 2
) -> FeatureStore:
    """Encode all pictures and texts into a feature store.

    Finished shards lie in `<folder>.partial` until the end: run again after a crash and it goes on there. A store of
    the same data and recipe that is there already is opened, not computed again.

    Args:
        dataset: N items with pictures. folder: of the new store. workers: threads that decode pictures.

    Raises:
        DataError: no picture can be read. MismatchError: `folder` holds a store of other data or another recipe.
    """
    recipe = Recipe(pictures.recipe, texts.recipe)
    images = [str(path) for path in dataset.images]
    plan = {"data": dataset.fingerprint(), "images": images, "recipe": recipe.to_dict(), "shard": SHARD}
    if folder.exists():
        return _open_finished(folder, dataset, recipe)
    partial = folder.with_name(folder.name + ".partial")
    _continue_or_start(partial, plan)
    shards = [np.arange(start, min(start + SHARD, len(dataset))) for start in range(0, len(dataset), SHARD)]
    with progress("Encoding pictures and texts", len(dataset), "items") as advance:
        for number, rows in enumerate(shards):
            path = partial / f"shard-{number:05d}.safetensors"
            if not path.exists():
                arrays, skipped = _encode_shard(dataset, rows, pictures, texts, workers, advance)
                write_arrays(path, arrays, {"skipped": skipped}, kind="feature shard", version=1)
            else:
                advance(len(rows))
    _join(partial, dataset, recipe, folder)
    shutil.rmtree(partial)
    return FeatureStore.open(folder)


def _open_finished(folder: Path, dataset: PairedDataset, recipe: Recipe) -> FeatureStore:
    store = FeatureStore.open(folder)
    skipped = {name for name, _ in store.skipped}
    kept = [row for row, name in enumerate(dataset.ids) if name not in skipped]
    asked = dataset.take(kept) if kept else dataset
    same_data = store.dataset.fingerprint() == asked.fingerprint()
    if store.recipe != recipe or not same_data or _file_names(store.dataset) != _file_names(asked):
        raise MismatchError(
            f"{folder}: holds features of other data or of other encoders. Choose another folder or delete it first."
        )
    return store


def _file_names(dataset: PairedDataset) -> list[str | None]:
    """Names of the picture files without their folder: a data set that was moved is the same."""
    return [None if image is None else image.name for image in dataset.images]


def _continue_or_start(partial: Path, plan: dict[str, Any]) -> None:
    """Keep finished shards only if they were made by the same plan.

    Raises:
        DataError: the folder holds something else.
    """
    if partial.exists() and any(partial.iterdir()) and not (partial / "plan.json").exists():
        raise DataError(f"{partial}: is in the way and not ours. Choose another folder or move it.")
    try:
        found = read_json(partial / "plan.json", kind="extraction plan", version=1)
        if found["plan"] == plan:
            return
    except FormatError:
        pass
    shutil.rmtree(partial, ignore_errors=True)
    write_json(partial / "plan.json", {"plan": plan}, kind="extraction plan", version=1)


def _encode_shard(
    dataset: PairedDataset,
    rows: NDArray[np.int64],
    pictures: PictureEncoder,
    texts: TextEncoder,
    workers: int,
    advance: Any,
) -> tuple[dict[str, NDArray[Any]], list[list[str]]]:
    kept: list[int] = []
    skipped: list[list[str]] = []
    vectors: list[NDArray[np.float32]] = []

    def readable() -> Iterator[NDArray[np.uint8]]:
        with ThreadPoolExecutor(workers) as pool:
            for row, outcome in zip(
                rows, pool.map(lambda row: _prepare(dataset.images[row], pictures), rows), strict=True
            ):
                if isinstance(outcome, str):
                    skipped.append([dataset.ids[row], outcome])
                    advance()
                else:
                    kept.append(int(row))
                    yield outcome

    for batch in _batches(readable(), pictures.batch_size):
        vectors.append(pictures.encode(batch))
        advance(len(batch))
    flat = [text for row in kept for text in dataset.texts[row]]
    empty_text = np.zeros((0, texts.recipe.dimension), np.float32)
    arrays = {
        "rows": np.asarray(kept, np.int64),
        "image": np.concatenate([np.zeros((0, pictures.recipe.dimension), np.float32), *vectors]),
        "text": texts.encode(flat) if flat else empty_text,
        "counts": np.asarray([len(dataset.texts[row]) for row in kept], np.int64),
    }
    require_finite(arrays["image"], "picture encoder output")
    require_finite(arrays["text"], "text encoder output")
    return arrays, skipped


def _prepare(path: Path | None, pictures: PictureEncoder) -> NDArray[np.uint8] | str:
    """The prepared picture, or the reason why there is none."""
    if path is None:
        return "the item has no picture file."
    try:
        return pictures.prepare(open_picture(path))
    except DataError as error:
        return str(error)


def _batches(items: Iterator[NDArray[np.uint8]], size: int) -> Iterator[Sequence[NDArray[np.uint8]]]:
    batch: list[NDArray[np.uint8]] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _join(partial: Path, dataset: PairedDataset, recipe: Recipe, folder: Path) -> None:
    """Write all shards as one store, one shard in memory at a time."""
    paths = sorted(partial.glob("shard-*.safetensors"))
    rows, counts, skipped = [], [], []
    for path in paths:
        arrays, header = read_arrays(path, kind="feature shard", version=1)
        rows.append(arrays["rows"])
        counts.append(arrays["counts"])
        skipped.extend(header["skipped"])
    kept, offsets = np.concatenate(rows), np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    if not len(kept):
        shutil.rmtree(partial)
        raise DataError(f"none of the {len(dataset)} pictures can be read. The first: {skipped[0][1]}")
    with replacing(folder) as temporary:
        temporary.mkdir()
        image = open_memmap(temporary / "image.npy", "w+", np.float32, (len(kept), recipe.image.dimension))
        text = open_memmap(temporary / "text.npy", "w+", np.float32, (int(offsets[-1]), recipe.text.dimension))
        image_end = text_end = 0
        for path in paths:
            arrays, _ = read_arrays(path, kind="feature shard", version=1)
            image[image_end : (image_end := image_end + len(arrays["image"]))] = arrays["image"]
            text[text_end : (text_end := text_end + len(arrays["text"]))] = arrays["text"]
        image.flush()
        text.flush()
        np.save(temporary / "offsets.npy", offsets)
        listed = tuple((name, reason) for name, reason in skipped)
        FeatureStore(dataset.take(kept), image, text, offsets, recipe, listed).write_header(temporary)
