"""Feature extraction: data set -> feature store. Unreadable images are skipped and listed."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import cast

from multibit.arrays import Labels
from multibit.data.dataset import LabelRows, PairedDataset
from multibit.data.notes import note
from multibit.errors import (
    ConfigError,
    DataError,
    FormatError,
    MismatchError,
    counted,
    require_integer,
    require_kind,
    require_known,
)
from multibit.features.base import ImageEncoder, TextEncoder
from multibit.features.cluster import ENGINES, run_on_ray
from multibit.features.extraction import PLAN, Extraction, Plan
from multibit.features.load import token_shapes
from multibit.features.recipe import Recipe
from multibit.features.storage import read_header, write_header
from multibit.features.store import SHARD, FeatureStore
from multibit.features.update import merged, missing_from, require_same, rewritten, with_paths_of
from multibit.files import read_json
from multibit.folders import only_writer
from multibit.progress import showing, track
from multibit.texts import is_blank


def extract_features(
    dataset: PairedDataset,
    image_encoder: ImageEncoder,
    text_encoder: TextEncoder,
    folder: Path | str,
    *,
    workers: int = 2,
    update: bool = False,
    engine: str = "local",
    progress: bool = False,
    tokens: bool = False,
) -> FeatureStore:
    """Encode all images and texts into a feature store.

    After a crash the same call resumes: finished shards are kept. An existing store of the same data and recipe is
    opened, not computed again; if its images were moved, it gets the new paths, which a `DataNote` tells.

    Args:
        dataset: N items with images. folder: of the store.
        workers: number of threads that decode images, or of Ray workers.
        update: add the items that an existing store lacks, retry those that it skipped, and encode those again whose
            image has changed.
        engine: "local", or "ray" for a Ray cluster whose machines all see `folder` and the images.
        progress: show a progress bar.
        tokens: also keep the vectors of patches and words, from the same pass; the features are the same.

    Raises:
        DataError: no image can be read, `folder` contains something else, or an argument is of another kind.
            MismatchError: `folder` contains a store of other data or of another recipe, of images that have changed
            since and are not to be updated, or with tokens against `tokens`. BusyError: another process is writing
            there. ConfigError: an unknown engine, fewer than one worker, or an encoder that gives no tokens.
            MissingExtraError, MultibitError: as `run_on_ray`.

    Example:
        >>> extract_features(data, image_encoder, text_encoder, "features")
        FeatureStore(24 items, 3-d image, 5-d text)
    """
    require_known("engine", engine, ENGINES)
    require_integer(workers, 1, "workers", kind=ConfigError)
    require_kind(dataset, PairedDataset, "dataset", "Read one with read(source) or read_manifest(path).")
    _require_encoders(image_encoder, text_encoder)
    if not any(dataset.images):
        hint = "Name the column of the image paths by `columns`; vectors computed elsewhere need no images."
        raise DataError(f"none of {counted(len(dataset), 'item', 'items')} has an image.", field="image", hint=hint)
    if all(is_blank(text) for texts in dataset.texts for text in texts):
        note(
            "every text is empty, so all items have the same text features. Name the column of the texts by `columns`."
        )
    folder = Path(folder)
    recipe = Recipe(image_encoder.recipe, text_encoder.recipe)
    shapes = token_shapes(image_encoder, text_encoder) if tokens else {}
    if (folder / "store.json").exists() and not update:
        same = require_same(FeatureStore.open(folder), dataset, recipe, shapes)
        if with_paths_of(same, dataset) is None and not _left_over(folder):
            return same
    folder.mkdir(parents=True, exist_ok=True)
    with showing(progress), only_writer(folder, (PLAN, "shard-*", "items-*", "store.json")):
        store = FeatureStore.open(folder) if (folder / "store.json").exists() else None
        if store is not None and (moved := with_paths_of(store, dataset)) is not None:
            store = rewritten(store, moved)
        new = dataset if store is None else missing_from(store, dataset, recipe, shapes) if update else None
        if new is not None:
            first = 0 if store is None else read_header(folder).shards
            extraction = Extraction(new, image_encoder, text_encoder, folder, first, SHARD, shapes)
            extraction.resume_or_start(recipe)
            _run(extraction, workers, engine)
            _finish(extraction, recipe, store)
        for path in _left_over(folder):
            path.unlink()
    return FeatureStore.open(folder)


def _require_encoders(image_encoder: ImageEncoder, text_encoder: TextEncoder) -> None:
    """Refuse names and classes of encoders, and an encoder of texts for images.

    Raises:
        DataError: names the function that loads one, or the class.
    """
    for option, encoder, needed in (
        ("image_encoder", image_encoder, "prepare"),
        ("text_encoder", text_encoder, "recipe"),
    ):
        if isinstance(encoder, type):
            raise DataError(
                f"need an encoder, got the class {encoder.__name__}.",
                option=option,
                hint=f"Make one: {encoder.__name__}().",
            )
        if not hasattr(encoder, needed):
            raise DataError(
                f"need an encoder of {option.removesuffix('_encoder')}s, got {type(encoder).__name__}.",
                option=option,
                hint=f"Load one with load_{option}(name). The encoder of images comes first.",
            )


def _left_over(folder: Path) -> list[Path]:
    """What a process left in a store that was killed after the store was complete: items of before, and its plan."""
    header = read_header(folder)
    found = [path for path in folder.glob("items-*.parquet") if path.name != header.items]
    with contextlib.suppress(FormatError):  # there is none
        plan = read_json(folder / PLAN, kind="extraction plan", version=2, form=Plan).plan
        first = plan.get("first")
        if isinstance(first, int) and first < header.shards:  # its shards are in the store
            found.append(folder / PLAN)
    return found


def _run(extraction: Extraction, workers: int, engine: str) -> None:
    """Make the missing shards."""
    numbers, items = extraction.unfinished(), len(extraction.dataset)
    done = items - sum(len(extraction.rows(number)) for number in numbers)
    with track("Encoding images and texts", items, "items", done) as advance:
        if engine == "ray" and numbers:
            gpu = getattr(extraction.image_encoder, "device", "cpu") != "cpu"
            for count in run_on_ray(extraction.make, numbers, workers, gpu=gpu):
                advance(count)
        else:
            extraction.run(numbers, workers, advance)


def _finish(extraction: Extraction, recipe: Recipe, store: FeatureStore | None) -> None:
    """Make the shards part of the store.

    Raises:
        DataError: they contain no item at all; the folder is removed.
    """
    skipped = extraction.skipped()
    kept = [row for row, name in enumerate(extraction.dataset.ids) if name not in skipped]
    if store is None and not kept:
        extraction.discard()
        extraction.folder.rmdir()
        first = skipped[extraction.dataset.ids[0]]
        raise DataError(f"no image can be read; the first of {len(skipped):,}: {first}", field="images")
    again = set() if store is None else set(store.dataset.ids) & set(extraction.dataset.ids)
    if store is not None and not kept and not again and skipped.items() <= dict(store.skipped).items():
        extraction.discard()  # nothing changed, reasons included
        return
    whole, rows = (extraction.dataset.take(kept), None) if store is None else merged(store, extraction.dataset, kept)
    write_header(extraction.folder, whole, recipe, extraction.end, extraction.tokens, rows=rows)
    (extraction.folder / PLAN).unlink()


def replace_labels(folder: Path | str, dataset: PairedDataset) -> FeatureStore:
    """Give the items of a store the labels that a data set has for them; nothing is encoded.

    Args:
        folder: of the store. dataset: with the labels; items that the store lacks are ignored, as are images and texts.

    Raises:
        MismatchError: the data set lacks an item of the store. BusyError: another process is writing there.

    Example:
        >>> from multibit import label_from_texts
        >>> found = extract_features(data, image_encoder, text_encoder, "features")
        >>> replace_labels("features", label_from_texts(data, ["title", "image", "a"])).dataset.label_names
        ('a', 'image', 'title')
    """
    folder = Path(folder)
    with only_writer(folder, ("items-*", "store.json")):
        store = FeatureStore.open(folder)
        row_of = {name: row for row, name in enumerate(dataset.ids)}
        missing = [name for name in store.dataset.ids if name not in row_of]
        if missing:
            problem = f"items that are not in the data: {len(missing):,} of {len(store):,}, such as {missing[0]!r}."
            raise MismatchError(problem, file=folder, field="ids", hint="Give labels of all items of the store.")
        rows = [row_of[name] for name in store.dataset.ids]
        labels = cast(Labels, LabelRows(dataset.label_rows.matrix[rows]))
        labelled = replace(store.dataset, labels=labels, label_names=dataset.label_names)
        shards = read_header(folder).shards
        write_header(folder, labelled, store.recipe, shards, store.token_shapes, rows=store.rows)
    return FeatureStore.open(folder)
