"""Items to encode, shard by shard, so that what was interrupted is resumed.

Shards are written directly into the folder of the store and become valid when `store.json` lists them. Until then
`plan.json` describes the extraction: the same extraction is resumed after a crash, another one is refused.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from multibit.arrays import require_finite
from multibit.codes.items import MODALITIES, Modality
from multibit.data.dataset import PairedDataset
from multibit.data.images import open_image
from multibit.errors import DataError, FormatError, MismatchError
from multibit.features.base import (
    Features,
    ImageEncoder,
    ImageTokenEncoder,
    TextEncoder,
    TextTokenEncoder,
    count_truncated,
)
from multibit.features.load import RUNTIMES
from multibit.features.originals import Original
from multibit.features.recipe import EncoderRecipe, Recipe
from multibit.features.shards import Shard, shard_path
from multibit.features.storage import KIND, VERSION
from multibit.features.tokens import Tokens, TokenShapes, joined
from multibit.files import fingerprint, read_json, write_json

PLAN = "plan.json"
Advance = Callable[..., None]
Prepared = NDArray[np.uint8]


class Plan(msgspec.Struct):
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
            if read_json(self.folder / PLAN, kind="extraction plan", version=2, form=Plan).plan == plan:
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
            count_truncated(self.text_encoder, texts),
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
