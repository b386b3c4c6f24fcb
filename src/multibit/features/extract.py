"""Feature extraction: data set -> feature store, shard by shard. Unreadable images are skipped and listed.

Shards are written directly into the folder of the store and become valid when `store.json` lists them. Until then
`plan.json` describes the extraction: the same extraction is resumed after a crash, another one is refused.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from multibit.arrays import Labels, require_finite
from multibit.codes.items import MODALITIES, Modality
from multibit.data.dataset import LabelRows, PairedDataset
from multibit.data.images import open_image
from multibit.errors import DataError, FormatError, MismatchError, counted, require_known
from multibit.features.base import Features, ImageEncoder, ImageTokenEncoder, TextEncoder, TextTokenEncoder
from multibit.features.cluster import ENGINES, run_on_ray
from multibit.features.load import RUNTIMES, token_shapes
from multibit.features.originals import Original
from multibit.features.recipe import EncoderRecipe, Recipe
from multibit.features.shards import Shard, shard_path
from multibit.features.storage import KIND, VERSION, read_header, write_header
from multibit.features.store import SHARD, FeatureStore
from multibit.features.tokens import Tokens, TokenShapes, joined
from multibit.features.update import merged, missing_from, require_same, rewritten, with_paths_of
from multibit.files import fingerprint, read_json, write_json
from multibit.folders import only_writer
from multibit.progress import showing, track

PLAN = "plan.json"
Advance = Callable[..., None]
Prepared = NDArray[np.uint8]


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
        DataError: no image can be read, or `folder` contains something else. MismatchError: `folder` contains a store
            of other data or of another recipe, of images that have changed since and are not to be updated, or with
            tokens against `tokens`. BusyError: another process is writing
            there. ConfigError: an unknown engine, or an encoder that gives no tokens. MissingExtraError, MultibitError:
            as `run_on_ray`.

    Example:
        >>> extract_features(data, image_encoder, text_encoder, "features")
        FeatureStore(24 items, 3-d image, 5-d text)
    """
    require_known("engine", engine, ENGINES)
    if not any(dataset.images):
        hint = "Name the column of the image paths by `columns`; vectors computed elsewhere need no images."
        raise DataError(f"none of {counted(len(dataset), 'item', 'items')} has an image.", field="image", hint=hint)
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


def _left_over(folder: Path) -> list[Path]:
    """What a process left in a store that was killed after the store was complete: items of before, and its plan."""
    header = read_header(folder)
    found = [path for path in folder.glob("items-*.parquet") if path.name != header.items]
    with contextlib.suppress(FormatError):  # there is none
        plan = read_json(folder / PLAN, kind="extraction plan", version=2, form=_Plan).plan
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


class _Plan(msgspec.Struct):
    """What `plan.json` must have; plans are only compared."""

    plan: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Extraction:
    """Items to encode, and the folder for their shards.

    Attributes:
        dataset: N items. image_encoder, text_encoder: make their features. folder: of the shards.
        first: number of their first shard. size: items per shard. tokens: shapes of the tokens to keep.
    """

    dataset: PairedDataset
    image_encoder: ImageEncoder
    text_encoder: TextEncoder
    folder: Path
    first: int
    size: int
    tokens: TokenShapes

    @property
    def end(self) -> int:
        """Number of the last shard plus one."""
        return self.first + -(-len(self.dataset) // self.size)

    def rows(self, number: int) -> range:
        """Rows of the data set in a shard."""
        start = (number - self.first) * self.size
        return range(start, min(start + self.size, len(self.dataset)))

    def unfinished(self) -> list[int]:
        """Numbers of the missing shards."""
        return [number for number in range(self.first, self.end) if not shard_path(self.folder, number).exists()]

    def resume_or_start(self, recipe: Recipe) -> None:
        """Keep the finished shards of the same plan. Those of another plan are hours of work: they are not deleted.

        Raises:
            DataError: the folder contains something else. MismatchError: finished shards of another plan.
        """
        names = {path.name for path in self.folder.iterdir()}
        if names and not names & {PLAN, "store.json"}:
            raise DataError(
                "contains files that are not a feature store.", file=self.folder, hint="Choose another folder."
            )
        images = fingerprint([str(path) for path in self.dataset.images])
        plan = {"data": self.dataset.fingerprint(), "images": images, "first": self.first, "size": self.size}
        plan["recipe"] = recipe.to_dict()
        if self.tokens:
            plan["tokens"] = {modality: list(shape) for modality, shape in self.tokens.items()}
        with contextlib.suppress(FormatError):
            if read_json(self.folder / PLAN, kind="extraction plan", version=2, form=_Plan).plan == plan:
                return
            if finished := len(self._shards()):
                require_same_runtime(self.folder, recipe)
                raise MismatchError(
                    f"contains an unfinished extraction of other data, encoders or settings, with {finished} finished "
                    "shards.",
                    file=self.folder,
                    hint=f"Run the earlier command again to resume it, or delete {PLAN} there to discard it.",
                )
        self.discard()
        write_json(self.folder / PLAN, {"plan": plan}, kind="extraction plan", version=2)

    def discard(self) -> None:
        """Remove everything that does not belong to a finished store."""
        for path in self._shards():
            path.unlink()
        (self.folder / PLAN).unlink(missing_ok=True)

    def _shards(self) -> list[Path]:
        """The shards of this folder that no finished store contains."""
        first = shard_path(self.folder, self.first).name
        return [path for path in self.folder.glob("shard-*.safetensors") if path.name >= first]

    def run(self, numbers: Sequence[int], workers: int, advance: Advance) -> None:
        """Make some shards in this process. Threads decode images, a few batches ahead of the encoder."""
        rows = chain.from_iterable(self.rows(number) for number in numbers)
        with ThreadPoolExecutor(workers) as pool:
            prepared = _ahead(pool, self._prepare, rows, 2 * self.image_encoder.batch_size + workers)
            for number in numbers:
                self._encode(self.rows(number), prepared, advance).write(self.folder, number)

    def make(self, number: int) -> int:
        """Make one shard, in a worker of a cluster; returns the number of its items."""
        self.run([number], 1, _ignore)
        return len(self.rows(number))

    def _prepare(self, row: int) -> tuple[Prepared, Original] | str:
        """The prepared image of an item with the state of its file, or the reason why there is none."""
        path = self.dataset.images[row]
        if path is None:
            return "the item has no picture file."
        try:
            return self.image_encoder.prepare(open_image(path)), Original.of(path)
        except DataError as error:
            return str(error)
        except OSError as error:
            return f"{path}: cannot be read ({error.strerror or error})."

    def _encode(self, rows: range, prepared: Iterator[tuple[Prepared, Original] | str], advance: Advance) -> Shard:
        kept: list[int] = []
        originals: list[Original] = []
        skipped: list[tuple[str, str]] = []

        def readable() -> Iterator[Prepared]:
            for row, outcome in zip(rows, islice(prepared, len(rows)), strict=True):
                if isinstance(outcome, str):
                    skipped.append((self.dataset.ids[row], outcome))
                    advance()
                else:
                    kept.append(row)
                    originals.append(outcome[1])
                    yield outcome[0]

        vectors = [_empty(self.image_encoder.recipe)]
        patches: list[Tokens] = []
        size = self.image_encoder.batch_size
        for batch in _batches(readable(), size):
            filled = batch + batch[-1:] * (size - len(batch))  # all batches of one shape, so results are bit-identical
            encoded, found = self._features(self.image_encoder, filled, "image")
            vectors.append(encoded[: len(batch)])
            patches += [] if found is None else [found.take(np.arange(len(batch)))]
            advance(len(batch))
        texts = [text for row in kept for text in self.dataset.texts[row]]
        text_vectors, words = self._features(self.text_encoder, texts, "text")
        tokens: dict[Modality, Tokens] = {}
        if words is not None:
            tokens = {"image": joined(patches, self.tokens["image"]), "text": words}
        return Shard(
            np.concatenate(vectors),
            text_vectors,
            np.array([len(self.dataset.texts[row]) for row in kept], np.int64),
            tuple(skipped),
            self.text_encoder.truncated(texts),
            tokens,
            tuple(originals),
        )

    def _features(
        self, encoder: ImageEncoder | TextEncoder, items: Sequence[Any], modality: Modality
    ) -> tuple[Features, Tokens | None]:
        """Checked features of some images or texts, and their tokens if they are kept."""
        if not items:
            return _empty(encoder.recipe), Tokens.none(self.tokens[modality]) if self.tokens else None
        if not self.tokens:
            return _checked(encoder.encode(items), len(items), encoder.recipe, modality), None
        vectors, tokens = cast(ImageTokenEncoder | TextTokenEncoder, encoder).encode_tokens(items)
        checked = _checked(vectors, len(items), encoder.recipe, modality)
        return checked, _checked_tokens(tokens, (len(items), *self.tokens[modality]), modality)

    def skipped(self) -> dict[str, str]:
        """Id -> reason of the items that could not be encoded; needs all shards."""
        found: dict[str, str] = {}
        for number in range(self.first, self.end):
            found.update(Shard.read(shard_path(self.folder, number)).skipped)
        return found


def begun_with(folder: Path | str) -> dict[str, str | None]:
    """Modality -> runtime of the features of a store, finished or not: "torch" or "onnxruntime"; None if unknown."""
    found: dict[str, str | None] = dict.fromkeys(MODALITIES)
    with contextlib.suppress(FormatError, KeyError, TypeError, AttributeError):
        file, kind = ("store.json", KIND) if (Path(folder) / "store.json").exists() else (PLAN, "extraction plan")
        content = read_json(Path(folder) / file, kind=kind, version=VERSION)
        recipe = content["recipe"] if kind == KIND else content["plan"]["recipe"]
        for modality in MODALITIES:
            versions = recipe[modality]["versions"]
            found[modality] = next((name for name in RUNTIMES if name in versions), None)
    return found


def require_same_runtime(folder: Path, recipe: Recipe) -> None:
    """Refuse to continue an extraction with another runtime: its shards would not be byte-identical.

    Raises:
        MismatchError: names both runtimes.
    """
    for modality, begun in begun_with(folder).items():
        given = next((name for name in RUNTIMES if name in getattr(recipe, modality).versions), None)
        if begun and given and begun != given:
            raise MismatchError(
                f"was begun with {begun}, the given {modality} encoder runs in {given}.",
                file=folder,
                option="runtime",
                hint=f"Load the encoders with runtime {begun!r} to resume it.",
            )


def _ignore(*_: Any) -> None:
    """Progress is shown by the process that started the extraction."""


def _ahead(pool: Executor, function: Callable[[int], Any], rows: Iterable[int], window: int) -> Iterator[Any]:
    """Results in order, at most `window` of them computed in advance."""
    waiting: deque[Any] = deque()
    for row in rows:
        waiting.append(pool.submit(function, row))
        if len(waiting) > window:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _batches(items: Iterator[Prepared], size: int) -> Iterator[list[Prepared]]:
    while batch := list(islice(items, size)):
        yield batch


def _empty(recipe: EncoderRecipe) -> Features:
    return np.zeros((0, recipe.dimension), recipe.dtype)


def _checked(vectors: Features, count: int, recipe: EncoderRecipe, modality: str) -> Features:
    """The output of an encoder, if it matches the recipe.

    Raises:
        DataError: another shape, or a value that is not finite.
    """
    name = f"{modality} encoder output"
    if vectors.shape != (count, recipe.dimension):
        raise DataError(f"shape {vectors.shape} for {count} items of dimension {recipe.dimension}.", field=name)
    vectors = vectors.astype(recipe.dtype, copy=False)
    require_finite(vectors, name)
    return vectors


def _checked_tokens(tokens: Tokens, shape: tuple[int, ...], modality: str) -> Tokens:
    """The tokens of an encoder, in float16, if they are what it says.

    Raises:
        DataError: another shape, or a value that is not finite in float16.
    """
    name = f"{modality} encoder tokens"
    if tokens.shape != shape:
        raise DataError(f"shape {tokens.shape}; {shape} are needed.", field=name)
    with np.errstate(over="ignore", under="ignore"):
        half = Tokens(np.asarray(tokens.values).astype(np.float16, copy=False), tokens.counts)
    half.require_finite(name)
    return half
