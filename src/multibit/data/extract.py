"""Data set -> feature store: streamed shard by shard, resumable, extendable; bad pictures are skipped and listed.

Shards are written straight into the store's folder and count once `store.json` names them. Until then `plan.json` says
what is being made there, so that the same command goes on after a crash and another one starts anew.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.data.dataset import PairedDataset
from multibit.data.encoders import EncoderRecipe, Features, PictureEncoder, TextEncoder
from multibit.data.features import SHARD, FeatureStore, Recipe, read_header, require_finite, write_header
from multibit.data.pictures import open_picture
from multibit.data.ray_engine import check_engine, run_on_ray
from multibit.data.shards import Shard, shard_path
from multibit.errors import BusyError, DataError, FormatError, MismatchError
from multibit.files import fingerprint, read_json, write_json
from multibit.progress import progress

PLAN = "plan.json"
Advance = Callable[..., None]


def extract_features(
    dataset: PairedDataset,
    pictures: PictureEncoder,
    texts: TextEncoder,
    folder: Path,
    *,
    workers: int = 2,
    update: bool = False,
    engine: str = "local",
) -> FeatureStore:
    """Encode all pictures and texts into a feature store.

    Run again after a crash and it goes on: finished shards are kept. A store of the same data and recipe that is there
    already is opened, not computed again.

    Args:
        dataset: N items with pictures. folder: of the store. workers: threads that decode pictures, or Ray's workers.
        update: add the items that the store does not have yet, and try those again that it skipped.
        engine: "local", or "ray" for the machines of a Ray cluster that all see `folder` and the pictures.

    Raises:
        DataError: no picture can be read, or `folder` holds something else. MismatchError: `folder` holds a store of
            other data or another recipe. BusyError: another process is writing there. ConfigError: no such engine.
            MissingExtraError, MultibitError: as `run_on_ray`.
    """
    check_engine(engine)
    recipe = Recipe(pictures.recipe, texts.recipe)
    if (folder / "store.json").exists() and not update:
        return _require_same(FeatureStore.open(folder), dataset, recipe)
    with _only_writer(folder):
        store = FeatureStore.open(folder) if (folder / "store.json").exists() else None
        new = dataset if store is None else _not_in(store, dataset, recipe)
        if new is not None:
            first = 0 if store is None else read_header(folder)["shards"]
            extraction = Extraction(new, pictures, texts, folder, first, SHARD)
            extraction.continue_or_start(recipe)
            _run(extraction, workers, engine)
            _finish(extraction, recipe, store)
    return FeatureStore.open(folder)


def _run(extraction: Extraction, workers: int, engine: str) -> None:
    """Make the shards that are not there yet."""
    numbers, items = extraction.unfinished(), len(extraction.dataset)
    done = items - sum(len(extraction.rows(number)) for number in numbers)
    with progress("Encoding pictures and texts", items, "items", done) as advance:
        if engine == "ray" and numbers:
            gpu = getattr(extraction.pictures, "device", "cpu") != "cpu"
            for count in run_on_ray(extraction.make, numbers, workers, gpu=gpu):
                advance(count)
        else:
            extraction.run(numbers, workers, advance)


def _finish(extraction: Extraction, recipe: Recipe, store: FeatureStore | None) -> None:
    """Make the shards count.

    Raises:
        DataError: none of them holds an item; the folder is as it was before.
    """
    skipped = extraction.skipped()
    kept = [row for row, name in enumerate(extraction.dataset.ids) if name not in skipped]
    if store is None and not kept:
        extraction.discard()
        extraction.folder.rmdir()
        first = skipped[extraction.dataset.ids[0]]
        raise DataError(f"none of the {len(skipped)} pictures can be read. The first: {first}")
    if store is not None and not kept and skipped.items() <= dict(store.skipped).items():
        extraction.discard()  # nothing new, not even a reason
        return
    whole = extraction.dataset.take(kept) if kept else None
    if store is not None:
        whole = store.dataset if whole is None else _joined(store.dataset, whole)
    assert whole is not None
    write_header(extraction.folder, whole, recipe, extraction.end)
    (extraction.folder / PLAN).unlink()


@dataclass(frozen=True, eq=False)
class Extraction:
    """Items to encode, and the folder for their shards.

    Attributes:
        dataset: N items. pictures, texts: their encoders. folder: of the shards.
        first: number of their first shard. size: items of a shard.
    """

    dataset: PairedDataset
    pictures: PictureEncoder
    texts: TextEncoder
    folder: Path
    first: int
    size: int

    @property
    def end(self) -> int:
        """Number after that of the last shard."""
        return self.first + -(-len(self.dataset) // self.size)

    def rows(self, number: int) -> range:
        """Rows of the data set that a shard is made of."""
        start = (number - self.first) * self.size
        return range(start, min(start + self.size, len(self.dataset)))

    def unfinished(self) -> list[int]:
        """Numbers of the shards that are not there yet."""
        return [number for number in range(self.first, self.end) if not shard_path(self.folder, number).exists()]

    def continue_or_start(self, recipe: Recipe) -> None:
        """Keep finished shards only if they were made by the same plan.

        Raises:
            DataError: the folder holds something else.
        """
        names = {path.name for path in self.folder.iterdir()}
        if names and not names & {PLAN, "store.json"}:
            raise DataError(f"{self.folder}: is in the way and not ours. Choose another folder or move it.")
        images = fingerprint([str(path) for path in self.dataset.images])
        plan = {"data": self.dataset.fingerprint(), "images": images, "first": self.first, "size": self.size}
        plan["recipe"] = recipe.to_dict()
        with contextlib.suppress(FormatError):
            if read_json(self.folder / PLAN, kind="extraction plan", version=2).get("plan") == plan:
                return
        self.discard()
        write_json(self.folder / PLAN, {"plan": plan}, kind="extraction plan", version=2)

    def discard(self) -> None:
        """Remove all that does not belong to a finished store."""
        for path in self.folder.glob("shard-*.safetensors"):
            if path.name >= shard_path(self.folder, self.first).name:
                path.unlink()
        (self.folder / PLAN).unlink(missing_ok=True)

    def run(self, numbers: Sequence[int], workers: int, advance: Advance) -> None:
        """Make some shards here. Pictures are decoded by threads, a few batches ahead of the encoder."""
        rows = chain.from_iterable(self.rows(number) for number in numbers)
        with ThreadPoolExecutor(workers) as pool:
            prepared = _ahead(pool, self._prepare, rows, 2 * self.pictures.batch_size + workers)
            for number in numbers:
                self._encode(self.rows(number), prepared, advance).write(self.folder, number)

    def make(self, number: int) -> int:
        """Make one shard, as a worker of a cluster does; the number of its items."""
        self.run([number], 1, _ignore)
        return len(self.rows(number))

    def _prepare(self, row: int) -> NDArray[np.uint8] | str:
        """The prepared picture, or the reason why there is none."""
        path = self.dataset.images[row]
        if path is None:
            return "the item has no picture file."
        try:
            return self.pictures.prepare(open_picture(path))
        except DataError as error:
            return str(error)

    def _encode(self, rows: range, prepared: Iterator[NDArray[np.uint8] | str], advance: Advance) -> Shard:
        kept: list[int] = []
        skipped: list[tuple[str, str]] = []

        def readable() -> Iterator[NDArray[np.uint8]]:
            for row, outcome in zip(rows, islice(prepared, len(rows)), strict=True):
                if isinstance(outcome, str):
                    skipped.append((self.dataset.ids[row], outcome))
                    advance()
                else:
                    kept.append(row)
                    yield outcome

        vectors = [_empty(self.pictures.recipe)]
        size = self.pictures.batch_size
        for batch in _batches(readable(), size):
            full = batch + batch[-1:] * (
                size - len(batch)
            )  # of one shape, so that sums are rounded alike in all shards
            encoded = _checked(self.pictures.encode(full), size, self.pictures.recipe, "picture")
            vectors.append(encoded[: len(batch)])
            advance(len(batch))
        flat = [text for row in kept for text in self.dataset.texts[row]]
        text = _checked(self.texts.encode(flat), len(flat), self.texts.recipe, "text") if flat else None
        return Shard(
            np.concatenate(vectors),
            _empty(self.texts.recipe) if text is None else text,
            np.array([len(self.dataset.texts[row]) for row in kept], np.int64),
            tuple(skipped),
            self.texts.truncated(flat),
        )

    def skipped(self) -> dict[str, str]:
        """Reason by id of the items that could not be encoded, when all shards are there."""
        found: dict[str, str] = {}
        for number in range(self.first, self.end):
            found.update(Shard.read(shard_path(self.folder, number)).skipped)
        return found


def _ignore(*_: Any) -> None:
    """Progress is shown where the extraction was started."""


def _ahead(pool: Executor, function: Callable[[int], Any], rows: Iterable[int], window: int) -> Iterator[Any]:
    """Results in order, at most `window` of them computed before they are asked for."""
    waiting: deque[Any] = deque()
    for row in rows:
        waiting.append(pool.submit(function, row))
        if len(waiting) > window:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _batches(items: Iterator[NDArray[np.uint8]], size: int) -> Iterator[list[NDArray[np.uint8]]]:
    while batch := list(islice(items, size)):
        yield batch


def _empty(recipe: EncoderRecipe) -> Features:
    return np.zeros((0, recipe.dimension), recipe.dtype)


def _checked(vectors: Features, count: int, recipe: EncoderRecipe, what: str) -> Features:
    """What an encoder made, as its recipe says.

    Raises:
        DataError: another shape, or a value that is not finite.
    """
    if vectors.shape != (count, recipe.dimension):
        raise DataError(
            f"{what} encoder output: shape {vectors.shape} for {count} items of dimension {recipe.dimension}."
        )
    vectors = vectors.astype(recipe.dtype, copy=False)
    require_finite(vectors, f"{what} encoder output")
    return vectors


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Make the folder, be the only writer in it, and clear away what a killed one left.

    Raises:
        BusyError: another process is writing there.
    """
    import fcntl  # not on every system; elsewhere features can be read but not made

    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"{folder}: another process is making features there. Wait until it is done.") from None
        for name in (PLAN, "shard-*", "items-*", "store.json"):
            for left_over in folder.glob(f".{name}.????????/"):
                shutil.rmtree(left_over, ignore_errors=True)
        yield
    finally:
        os.close(descriptor)


def _require_same(store: FeatureStore, dataset: PairedDataset, recipe: Recipe) -> FeatureStore:
    skipped = {name for name, _ in store.skipped}
    kept = [row for row, name in enumerate(dataset.ids) if name not in skipped]
    asked = dataset.take(kept) if kept else dataset
    same_data = store.dataset.fingerprint() == asked.fingerprint()
    if store.recipe != recipe or not same_data or _file_names(store.dataset) != _file_names(asked):
        raise MismatchError(
            f"{store.source}: holds features of other data or of other encoders. Choose another folder or delete it "
            "first; --update adds items to it."
        )
    return store


def _file_names(dataset: PairedDataset) -> list[str | None]:
    """Names of the picture files without their folder: a data set that was moved is the same."""
    return [None if image is None else image.name for image in dataset.images]


def _not_in(store: FeatureStore, dataset: PairedDataset, recipe: Recipe) -> PairedDataset | None:
    """The items that a store does not have yet, None when it has them all.

    Raises:
        MismatchError: another recipe, or an item of the same id is not the same.
    """
    if difference := store.recipe.difference(recipe):
        modality, key, mine, asked = difference
        raise MismatchError(
            f"{store.source}: its {modality} features have {key} {mine!r}, the encoder asked for has {asked!r}. Add "
            "items with the encoders that the store was made with."
        )
    row_of = {name: row for row, name in enumerate(store.dataset.ids)}
    for row, name in enumerate(dataset.ids):
        if name in row_of and _item(dataset, row) != _item(store.dataset, row_of[name]):
            raise MismatchError(
                f"{store.source}: has another item {name!r} already (picture, texts or labels differ). Give the new "
                "one another id."
            )
    rows = [row for row, name in enumerate(dataset.ids) if name not in row_of]
    return dataset.take(rows) if rows else None


def _item(dataset: PairedDataset, row: int) -> tuple[Any, ...]:
    image = dataset.images[row]
    return image and image.name, dataset.texts[row], sorted(dataset.label_names_of(row))


def _joined(first: PairedDataset, second: PairedDataset) -> PairedDataset:
    """The items of two data sets; label names that are new come last."""
    names = list(dict.fromkeys([*first.label_names, *second.label_names]))
    labels = np.zeros((len(first) + len(second), len(names)), np.uint8)
    labels[: len(first), : len(first.label_names)] = first.labels
    labels[len(first) :, [names.index(name) for name in second.label_names]] = second.labels
    return PairedDataset(
        first.ids + second.ids, first.images + second.images, first.texts + second.texts, labels, tuple(names)
    )
