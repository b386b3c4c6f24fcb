"""Feature stores: the feature vectors of a data set with the recipe that made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import IntArray, Rows, as_float32, check_offsets, row_numbers
from multibit.codes.items import MODALITIES, Modality
from multibit.data.dataset import PairedDataset
from multibit.data.values import id_of, texts_of
from multibit.errors import DataError, MultibitError, require_path
from multibit.features.originals import Original
from multibit.features.pairs import Pairs
from multibit.features.recipe import Recipe
from multibit.features.shards import Shard, ShardedRows, shard_path
from multibit.features.storage import read_facts, read_header, read_items, require_whole, rows_in, write_header
from multibit.features.tokens import Tokens, TokenShapes, named_tokens
from multibit.files import fingerprint
from multibit.npz import read_npz
from multibit.paths import replacing, require_new

SHARD = 512
"""Items per shard: the most that a killed extraction loses."""


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """Feature vectors of a data set.

    Attributes:
        dataset: the items, row for row.
        image: (N, d_i) float32 or float16, in memory or in shards on disk. text: (T, d_t), T >= N.
        offsets: (N+1,) int64, the texts of item i are in rows offsets[i] to offsets[i+1] - 1.
        recipe: how the features were made.
        skipped: (id, reason) of each item that could not be encoded.
        truncated: number of texts that are longer than the encoder reads.
        source: folder or file that the store was opened from.
        image_tokens: (N, t, d) float16, of the images. text_tokens: (T, t, d), of the texts; None where not kept.
        originals: state of each image file when it was encoded; None or no entries where it is unknown.
        rows: row of each item in the shards of a store in which items were encoded again.

    Raises:
        DataError: features or tokens of another shape or type, or row counts that do not match the data set.

    Example:
        >>> data = PairedDataset(("a", "b"), (None, None), (("a cat",), ("a dog",)), [[1, 0], [0, 1]], ("cat", "dog"))
        >>> image, text = np.eye(2, 4, dtype=np.float32), np.eye(2, 3, dtype=np.float32)
        >>> store = FeatureStore(data, image, text, np.arange(3), Recipe.ready_made("mine", 4, 3))
        >>> store, store.take([1])
        (FeatureStore(2 items, 4-d image, 3-d text), Pairs(1 items, 4-d image, 3-d text, 2 labels))
    """

    dataset: PairedDataset
    image: NDArray[Any] | ShardedRows
    text: NDArray[Any] | ShardedRows
    offsets: IntArray
    recipe: Recipe
    skipped: tuple[tuple[str, str], ...] = ()
    truncated: int = 0
    source: Path | None = None
    image_tokens: Tokens | None = None
    text_tokens: Tokens | None = None
    originals: tuple[Original | None, ...] = ()
    rows: IntArray | None = None

    def __post_init__(self) -> None:
        for name in ("image", "text"):
            array = getattr(self, name)
            if array.ndim != 2 or array.shape[1] < 1 or array.dtype.kind != "f":
                raise DataError(
                    f"need a matrix of floats, got {array.dtype} of shape {array.shape}.", field=f"{name} features"
                )
        if len(self.image) != len(self.dataset):
            raise DataError(f"{len(self.image)} rows for {len(self.dataset)} items.", field="image features")
        check_offsets(self.offsets, len(self.dataset), len(self.text))
        for modality, tokens in self.tokens.items():
            rows = len(self.image if modality == "image" else self.text)
            if len(tokens) != rows or tokens.dtype != np.float16:
                raise DataError(
                    f"need float16 tokens of {rows} rows, got {tokens.dtype} of {len(tokens)}.",
                    field=f"{modality} tokens",
                )

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        sizes = f"{self.image.shape[1]}-d image, {self.text.shape[1]}-d text"
        return f"FeatureStore({len(self):,} items, {sizes}{', tokens' if self.tokens else ''})"

    @property
    def tokens(self) -> dict[Modality, Tokens]:
        """The tokens that are kept."""
        both = zip(MODALITIES, (self.image_tokens, self.text_tokens), strict=True)
        return {modality: tokens for modality, tokens in both if tokens is not None}

    @property
    def token_shapes(self) -> TokenShapes:
        """Number and length of the tokens that are kept."""
        return {modality: (tokens.shape[1], tokens.shape[2]) for modality, tokens in self.tokens.items()}

    def fingerprint(self) -> str:
        """16 hexadecimal digits of data and features, tokens included: the identity of the input of a run."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        tokens = [part for name, each in self.tokens.items() for part in (name, each, each.counts)]
        return fingerprint(self.dataset.fingerprint(), self.image, self.text, self.offsets, *tokens)

    def require_finite(self, block: int = 16_384) -> None:
        """Check every value, `block` rows at a time.

        Raises:
            DataError: a value that is not finite or that float32 cannot represent; with file, row and column.
        """
        for array, name in ((self.image, "image features"), (self.text, "text features")):
            for start in range(0, len(array), block):
                part = np.asarray(array[start : start + block])
                self._as_float32(part, name, np.arange(start, start + len(part)))
        for modality, tokens in self.tokens.items():
            try:
                tokens.require_finite(f"{modality} tokens")
            except DataError as error:
                raise self._within(error) from None

    def take(self, rows: ArrayLike) -> Pairs:
        """Features and labels of some rows, in the order given, or of those where a mask is true; float32 in memory.

        Tokens are not read yet, but where the pairs are used.

        Raises:
            DataError: rows that are not integers or do not exist; a value among them that is not finite or that
                float32 cannot represent, with file, row and column.
        """
        index = row_numbers(rows, len(self))
        counts = np.diff(self.offsets)[index]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        text_rows = np.repeat(self.offsets[index], counts) + within
        image = self._as_float32(self.image[index], "image features", index)
        text = self._as_float32(self.text[text_rows], "text features", text_rows)
        image_tokens = None if self.image_tokens is None else self.image_tokens.select(index)
        text_tokens = None if self.text_tokens is None else self.text_tokens.select(text_rows)
        labels = self.dataset.label_rows[index]
        return Pairs(image, text, offsets.astype(np.int64), labels, image_tokens, text_tokens)

    def _as_float32(self, array: NDArray[Any], name: str, rows: Rows) -> NDArray[np.float32]:
        try:
            return as_float32(array, name, rows)
        except DataError as error:
            raise self._within(error) from None

    def _within(self, error: MultibitError) -> MultibitError:
        return error.within(self.source) if self.source else error

    def save(self, folder: Path | str) -> None:
        """Write to a new folder, in one step.

        Raises:
            DataError: the folder exists already.
        """
        folder = Path(folder)
        require_new(folder)
        with replacing(folder) as temporary:
            temporary.mkdir()
            for number, start in enumerate(range(0, len(self), SHARD)):
                ends = self.offsets[start : start + SHARD + 1]
                image, text = self.image[start : start + SHARD], self.text[ends[0] : ends[-1]]
                remarks = (self.skipped, self.truncated) if number == 0 else ((), 0)
                rows = {"image": np.arange(start, start + len(image)), "text": np.arange(ends[0], ends[-1])}
                tokens = {modality: each.take(rows[modality]) for modality, each in self.tokens.items()}
                Shard(image, text, np.diff(ends), *remarks, tokens).write(temporary, number)
            write_header(temporary, self.dataset, self.recipe, number + 1, self.token_shapes, place=folder)

    @classmethod
    def open(cls, path: Path | str) -> FeatureStore:
        """Open a feature store folder, or a ready `.npz` file (see `from_npz`).

        Raises:
            FormatError: corrupt or truncated, newer than this version, or another kind of folder. DataError: its arrays
                do not match, or no path.
        """
        path = require_path(path, "path")
        if path.suffix == ".npz":
            return cls.from_npz(path)
        if path.is_file():
            raise DataError(
                "contains no features.", file=path, hint="Give the folder of a feature store, or an .npz file."
            )
        header = read_header(path)
        require_whole(path, header)
        dataset = read_items(path, header)
        paths = [shard_path(path, number) for number in range(header.shards)]
        facts = read_facts(paths, header)
        counts, originals = facts.counts, facts.originals
        items = rows_in(path, header, len(dataset), len(counts))
        rows: dict[Modality, IntArray | None] = {"image": items, "text": None}
        if items is not None:
            rows["text"] = _ranges((np.cumsum(counts) - counts)[items], counts[items])
            counts, originals = counts[items], [originals[row] for row in items]
        tokens = {
            modality: Tokens(
                ShardedRows(paths, f"{modality}_tokens", facts.ends[modality], rows[modality]),
                kept[slice(None) if rows[modality] is None else rows[modality]],
            )
            for modality, kept in facts.tokens.items()
        }
        encoded = set(dataset.ids) if facts.reasons else set()  # what was skipped once may have been encoded later
        return cls(
            dataset,
            ShardedRows(paths, "image", facts.ends["image"], rows["image"]),
            ShardedRows(paths, "text", facts.ends["text"], rows["text"]),
            np.concatenate([[0], counts]).cumsum(),
            header.recipe,
            tuple(pair for pair in facts.reasons.items() if pair[0] not in encoded),
            facts.truncated,
            path,
            tokens.get("image"),
            tokens.get("text"),
            tuple(originals),
            items,
        )

    @classmethod
    def from_npz(cls, path: Path | str) -> FeatureStore:
        """Read ready features and labels from one `.npz` file.

        Keys: `image` (N, d_i), `text` (N, d_t) or (T, d_t) with `text_offsets` (N+1,), `labels` (N, C) 0/1; optional
        `ids` (N,), `label_names` (C,), `texts` (N,), `recipe` (a name for how the features were made), and tokens:
        `image_tokens` (N, t, d) with `image_token_counts` (N,), `text_tokens` with `text_token_counts` of the rows of
        `text`; other types than float16 are converted, and without counts all tokens are real.

        Raises:
            DataError: unreadable, a key missing, or shapes that do not match.
        """
        path = Path(path)
        arrays = read_npz(path)
        missing = [name for name in ("image", "text", "labels") if name not in arrays]
        if missing:
            found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise DataError(
                f"no such array; found {found or 'none'}.",
                file=path,
                field=", ".join(missing),
                hint="Needed: image, text, labels; of items without labels, an array (N, 0).",
            )
        try:
            return cls._of_arrays(arrays, path)
        except DataError as error:
            raise error.within(path) from None

    @classmethod
    def _of_arrays(cls, arrays: dict[str, NDArray[Any]], path: Path) -> FeatureStore:
        for name in ("image", "text", "labels"):
            if arrays[name].ndim != 2:
                raise DataError(f"need a matrix, got an array of shape {arrays[name].shape}.", field=name)
        count, columns = arrays["labels"].shape
        ids = read_names(arrays, "ids", [str(row) for row in range(count)])
        if len(ids) != count:
            raise DataError(f"{len(ids)} ids for {count} rows of labels; the counts must be equal.", field="ids")
        names = read_names(arrays, "label_names", [f"label {column}" for column in range(columns)])
        texts = tuple((text,) for text in read_names(arrays, "texts", [""] * count))
        image, text, tokens = arrays["image"], arrays["text"], named_tokens(arrays)
        for modality, each in tokens.items():
            each.require_finite(f"{modality}_tokens")
        if "text_offsets" not in arrays and len(text) != count:
            raise DataError(
                f"{len(text)} rows for {count} items.",
                field="text",
                hint="Add the array text_offsets if an item has several texts.",
            )
        return cls(
            PairedDataset(ids, (None,) * count, texts, arrays["labels"], names),
            image,
            text,
            arrays.get("text_offsets", np.arange(len(text) + 1)),
            Recipe.ready_made(str(arrays.get("recipe", "ready-made")), image.shape[1], text.shape[1]),
            source=path,
            image_tokens=tokens.get("image"),
            text_tokens=tokens.get("text"),
        )


def _ranges(starts: IntArray, counts: IntArray) -> IntArray:
    """Start .. start + count - 1 of each, joined."""
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    ranges: IntArray = np.repeat(starts, counts) + within
    return ranges


def read_names(arrays: Mapping[str, NDArray[Any]], key: str, default: Sequence[str] = ()) -> tuple[str, ...]:
    """Names stored as text, as UTF-8 bytes, or as whole numbers; texts stored as text or UTF-8 bytes.

    Raises:
        DataError: not one value per row, a value of another type, or bytes that are not UTF-8.
    """
    if key not in arrays:
        return tuple(default)
    array = arrays[key]
    if array.ndim != 1:
        raise DataError(f"need one value per row, got an array of shape {array.shape}.", field=key)
    if key == "texts":
        return tuple((texts_of(text, row=row, field=key) or ("",))[0] for row, text in enumerate(array.tolist(), 1))
    return tuple(id_of(name, row=row, field=key) for row, name in enumerate(array.tolist(), 1))
