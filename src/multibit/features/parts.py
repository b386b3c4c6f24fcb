"""Features of data in an object store, part by part, and written to a store again.

The folder of the result has `plan.json` and a feature store for each part, in a folder with its number. A part is
complete when its `store.json` is there, which is written last: what was stopped is resumed by the same call.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from multibit.data.dataset import PairedDataset
from multibit.data.objects import fetch, joined, put, sizes_of
from multibit.data.parts import Parts, describe
from multibit.errors import DataError, MismatchError
from multibit.features.base import ImageEncoder, TextEncoder
from multibit.features.cluster import run_on_ray
from multibit.features.extract import extract_features
from multibit.features.recipe import Recipe
from multibit.features.shards import Shard, shard_path
from multibit.features.storage import read_header, write_header
from multibit.features.store import FeatureStore
from multibit.files import read_json, write_json
from multibit.folders import only_writer, renewing
from multibit.progress import track

PLAN, KIND, VERSION = "plan.json", "plan of parts", 1


class Plan(msgspec.Struct):
    """What `plan.json` says: what is computed, from which parts. Plans are only compared.

    Attributes:
        what: such as the recipe of the features. parts: URL, size, first and last row of each.
    """

    what: dict[str, Any]
    parts: list[list[Any]]


def work_on_parts(
    parts: Parts,
    out: str,
    what: dict[str, Any],
    make: Callable[[int], int],
    done: Callable[[int], str],
    *,
    engine: str = "local",
    workers: int = 2,
) -> int:
    """Make the missing parts of a result in a store.

    Args:
        parts: of the data. out: URL of the folder of the result. what: is computed, for the plan.
        make: makes a part and puts it there; returns the number of its items. done: URL of the object that says that a
            part is complete. engine: "local" or "ray". workers: of Ray.

    Returns:
        Number of items of the parts that were made now.

    Raises:
        MismatchError: another result is there. DataError: as `Parts.fetch`. MultibitError: as `run_on_ray`.
    """
    _require_plan(out, Plan(what, describe(parts.parts)))
    sizes = sizes_of([done(number) for number in range(len(parts.parts))])
    missing = [number for number, size in enumerate(sizes) if size < 0]
    items = 0
    with track("Encoding parts", len(parts.parts), "parts", len(parts.parts) - len(missing)) as advance:
        results = run_on_ray(make, missing, workers) if engine == "ray" and missing else map(make, missing)
        for count in results:
            items += count
            advance()
    return items


def _require_plan(out: str, plan: Plan) -> None:
    """Write the plan, or compare it with the one that is there."""
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / PLAN
        try:
            fetch(joined(out, PLAN), local)
        except FileNotFoundError:
            write_json(local, msgspec.to_builtins(plan), kind=KIND, version=VERSION)
            put(local, joined(out, PLAN))
            return
        if msgspec.to_builtins(read_json(local, kind=KIND, version=VERSION, form=Plan)) != msgspec.to_builtins(plan):
            problem = "contains parts of other data, or made in another way."
            raise MismatchError(problem, field=out, hint="Choose another folder.")


def extract_parts(
    parts: Parts,
    image_encoder: ImageEncoder,
    text_encoder: TextEncoder,
    out: str,
    *,
    engine: str = "local",
    workers: int = 2,
) -> int:
    """Encode the images and texts of data in a store; `join_parts` makes one feature store of it, and has an example.

    Args:
        parts: of the data. out: URL of the folder of the result. engine: "local", or "ray" for a Ray cluster whose
            machines all reach both stores. workers: threads that decode images, or Ray workers.

    Returns:
        Number of items that were encoded now; parts that are complete stay as they are.

    Raises:
        MismatchError: another result is there. DataError: as `Parts.fetch`, or a part without a readable image.
    """
    recipe = Recipe(image_encoder.recipe, text_encoder.recipe)
    make = partial(_extract_part, parts, image_encoder, text_encoder, out, workers if engine == "local" else 1)
    what = {"features": recipe.to_dict()}
    return work_on_parts(parts, out, what, make, partial(_done, out), engine=engine, workers=workers)


def _done(out: str, number: int) -> str:
    return joined(out, f"{number:05d}/store.json")


def _extract_part(
    parts: Parts, image_encoder: ImageEncoder, text_encoder: TextEncoder, out: str, workers: int, number: int
) -> int:
    with tempfile.TemporaryDirectory() as folder:
        store = features_of_part(parts, number, image_encoder, text_encoder, Path(folder), workers)
        assert store.source is not None
        files = sorted(path for path in store.source.iterdir() if path.name != "store.json" and path.is_file())
        for path in (*files, store.source / "store.json"):
            put(path, joined(out, f"{number:05d}/{path.name}"))
        return len(store)


def features_of_part(
    parts: Parts, number: int, image_encoder: ImageEncoder, text_encoder: TextEncoder, folder: Path, workers: int = 1
) -> FeatureStore:
    """Fetch a part to a folder and encode it there. The store has no paths of images, which end with the folder.

    Raises:
        DataError: as `Parts.fetch`, or no image can be read; names the part.
    """
    dataset = parts.fetch(number, folder)
    target = folder / "features"
    try:
        store = extract_features(dataset, image_encoder, text_encoder, target, workers=workers)
    except DataError as error:
        problem = _without_paths(error.problem, dataset.images)
        raise DataError(problem, file=parts.parts[number].url) from None
    _forget_paths(target, dataset)
    without = replace(store.dataset, images=(None,) * len(store), labels=store.dataset.label_rows)  # type: ignore[arg-type]
    write_header(target, without, store.recipe, read_header(target).shards, store.token_shapes)
    return FeatureStore.open(target)


def _forget_paths(target: Path, dataset: PairedDataset) -> None:
    """Take the paths of the images, which end with the folder, out of the reasons why items were skipped."""
    images = dict(zip(dataset.ids, dataset.images, strict=True))
    for number in range(read_header(target).shards):
        shard = Shard.read(shard_path(target, number))
        if shard.skipped:
            skipped = tuple((name, _without_paths(reason, [images[name]])) for name, reason in shard.skipped)
            replace(shard, skipped=skipped).write(target, number)


def _without_paths(text: str, paths: Sequence[Path | None]) -> str:
    """A message without paths in front of what it says about them."""
    for path in paths:
        text = text.replace(f"{path}: ", "")
    return text


def join_parts(out: str, folder: Path | str) -> FeatureStore:
    """Make one feature store on this machine of the parts that `extract_parts` wrote.

    Args:
        out: URL of the folder of the parts. folder: of the store, which appears when it is complete.

    Raises:
        DataError: a part is missing, or an id is in two of them. FormatError: corrupt.

    Example:
        >>> from multibit import write_dataset
        >>> from multibit.data.parts import Parts
        >>> base = f"file://{Path.cwd()}"
        >>> manifest = write_dataset(data, "items.jsonl")
        >>> parts = Parts.of(f"{base}/items.jsonl", Path("local"))
        >>> extract_parts(parts, image_encoder, text_encoder, f"{base}/features")
        24
        >>> join_parts(f"{base}/features", "joined")
        FeatureStore(24 items, 3-d image, 5-d text)
    """
    folder = Path(folder)
    with tempfile.TemporaryDirectory() as temporary:
        try:
            fetch(joined(out, PLAN), Path(temporary) / PLAN)
        except FileNotFoundError:
            raise DataError(f"no {PLAN}: there are no parts.", field=out) from None
        count = len(read_json(Path(temporary) / PLAN, kind=KIND, version=VERSION, form=Plan).parts)
    sizes = sizes_of([_done(out, number) for number in range(count)])
    missing = [number for number, size in enumerate(sizes) if size < 0]
    if missing:
        hint = "Run the same extraction again to complete it."
        raise DataError(f"missing parts: {len(missing):,} of {count:,}.", field=out, hint=hint)
    with only_writer(folder, replaced=True), renewing(folder, own=("shard-*", "items-*", "store.json")) as fresh:
        stores = []
        with track("Fetching parts", count, "parts") as advance:
            for number in range(count):
                stores.append(_fetch_store(out, number, fresh))
                advance()
        dataset = _concatenated([store.dataset for store in stores])
        write_header(fresh, dataset, stores[0].recipe, count, stores[0].token_shapes, place=folder)
    return FeatureStore.open(folder)


def _fetch_store(out: str, number: int, fresh: Path) -> FeatureStore:
    """Fetch a part, whose only shard becomes that of its number; the store without its features."""
    with tempfile.TemporaryDirectory(dir=fresh) as temporary:
        part = Path(temporary) / "part"
        fetch(_done(out, number), part / "store.json")
        for name in read_header(part).checksums:
            fetch(joined(out, f"{number:05d}/{name}"), part / name)
        store = FeatureStore.open(part)
        shard_path(part, 0).rename(shard_path(fresh, number))
        return store


def _concatenated(parts: Sequence[PairedDataset]) -> PairedDataset:
    names = list(dict.fromkeys(name for part in parts for name in part.label_names))
    items = (
        (part.ids[row], None, part.texts[row], part.label_names_of(row)) for part in parts for row in range(len(part))
    )
    return PairedDataset.of_items(items, sorted(names))
