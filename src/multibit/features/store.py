"""Feature stores: the feature vectors of a data set with the recipe that made them.

A store is a folder: shards with the vectors, the items in `items-*.parquet` (a manifest that any tool can read), and
`store.json`, written last, which lists these files with their checksums. Adding items adds shards and replaces
`store.json`.

A store may also hold tokens, the vectors of patches and words, in the same shards; `store.json` then has their shapes.
Without them it is what it always was, and a version that knows no tokens reads the other arrays of a store with them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import IntArray, Labels, Rows, as_float32, check_offsets, row_numbers
from multibit.codes.items import MODALITIES, Modality
from multibit.data.dataset import PairedDataset
from multibit.data.manifest import read_manifest
from multibit.data.values import id_of, texts_of
from multibit.errors import DataError, FormatError, MultibitError
from multibit.features.originals import Original, absolute
from multibit.features.pairs import Pairs
from multibit.features.recipe import Recipe
from multibit.features.shards import Shard, ShardedRows, shard_path
from multibit.features.tokens import Tokens, TokenShapes, named_tokens
from multibit.files import checksum_file, fingerprint, read_json, read_npz, replacing, typed, write_json

KIND, VERSION = "feature store", 2
SHARD = 512
"""Items per shard: the most that a killed extraction loses."""
_AGAIN = "It may have been modified. Extract the features again or restore a copy."


class Header(msgspec.Struct):
    """What `store.json` must have."""

    recipe: Recipe
    label_names: list[str]
    shards: Annotated[int, msgspec.Meta(ge=1)]
    items: Annotated[str, msgspec.Meta(pattern=r"^items-[0-9]+\.parquet$")]
    checksums: dict[str, str]
    tokens: dict[Modality, tuple[int, int]] = {}
    rows: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]] | None = None


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
        if folder.exists():
            raise DataError("exists already.", file=folder, hint="Choose another folder or delete it first.")
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
                do not match.
        """
        path = Path(path)
        if path.suffix == ".npz":
            return cls.from_npz(path)
        if path.is_file():
            raise DataError(
                "contains no features.", file=path, hint="Give the folder of a feature store, or an .npz file."
            )
        header = read_header(path)
        for name, digits in header.checksums.items():
            if not (path / name).is_file() or checksum_file(path / name) != digits:
                raise FormatError(
                    "is missing, corrupt or truncated.", file=path / name, hint="Extract the features again."
                )
        dataset = _read_items(path, header)
        paths = [shard_path(path, number) for number in range(header.shards)]
        counts: list[IntArray] = []
        kept: dict[Modality, list[IntArray]] = {modality: [] for modality in header.tokens}
        reasons: dict[str, str] = {}
        originals: list[Original | None] = []
        truncated = 0
        for each in paths:  # one at a time: an open shard holds a file descriptor
            shard = Shard.read(each, verify=False)
            counts.append(np.array(shard.counts))
            for modality, found in kept.items():
                if modality not in shard.tokens:
                    raise FormatError("has no such tokens.", file=each, field=f"{modality} tokens", hint=_AGAIN)
                found.append(shard.tokens[modality].counts)
            reasons.update(shard.skipped)
            originals += shard.originals or [None] * len(shard.counts)
            truncated += shard.truncated
        encoded = set(dataset.ids) if reasons else set()  # what was skipped once may have been encoded later
        ends = {"image": np.cumsum([len(each) for each in counts]), "text": np.cumsum([each.sum() for each in counts])}
        rows: dict[Modality, IntArray | None] = {"image": _rows_in(header), "text": None}
        per_item = np.concatenate(counts)
        _require_rows(rows["image"], len(dataset), len(per_item), path / "store.json")
        if (items := rows["image"]) is not None:
            rows["text"] = _ranges((np.cumsum(per_item) - per_item)[items], per_item[items])
            per_item, originals = per_item[items], [originals[row] for row in items]
        tokens = {
            modality: Tokens(
                ShardedRows(paths, f"{modality}_tokens", ends[modality], rows[modality]),
                np.concatenate(found)[slice(None) if rows[modality] is None else rows[modality]],
            )
            for modality, found in kept.items()
        }
        return cls(
            dataset,
            ShardedRows(paths, "image", ends["image"], rows["image"]),
            ShardedRows(paths, "text", ends["text"], rows["text"]),
            np.concatenate([[0], per_item]).cumsum(),
            header.recipe,
            tuple(pair for pair in reasons.items() if pair[0] not in encoded),
            truncated,
            path,
            tokens.get("image"),
            tokens.get("text"),
            tuple(originals),
            rows["image"],
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


def _read_items(folder: Path, header: Header) -> PairedDataset:
    """The items of a store, with paths that do not depend on the working directory."""
    dataset = read_manifest(folder / header.items, label_names=header.label_names)
    here = Path(os.path.realpath(folder))
    stored = (path.relative_to(folder) if path and path.is_relative_to(folder) else path for path in dataset.images)
    images = (path and Path(os.path.normpath(here / path)) for path in stored)
    return replace(dataset, labels=cast(Labels, dataset.label_rows), images=tuple(images))


def _rows_in(header: Header) -> IntArray | None:
    """The row in the shards of each item, where items were encoded again; else None."""
    return None if header.rows is None else np.array(header.rows, np.int64)


def _require_rows(rows: IntArray | None, items: int, stored: int, path: Path) -> None:
    """Refuse rows that the shards do not have."""
    if rows is not None and (len(rows) != items or (len(rows) and rows.max() >= stored)):
        problem = f"{len(rows)} rows for {items} items, of {stored} in the shards."
        raise FormatError(problem, file=path, field="rows", hint=_AGAIN)


def _ranges(starts: IntArray, counts: IntArray) -> IntArray:
    """Start .. start + count - 1 of each, joined."""
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    ranges: IntArray = np.repeat(starts, counts) + within
    return ranges


def _stored_path(image: Path | None, place: Path) -> str | None:
    """Path of an image as a store keeps it: relative below the folder of the store's own, so that both can be moved."""
    if image is None:
        return None
    path, here = absolute(image), Path(os.path.realpath(place))
    return os.path.relpath(path, here) if path.is_relative_to(here.parent) else str(path)


def write_header(
    folder: Path,
    dataset: PairedDataset,
    recipe: Recipe,
    shards: int,
    tokens: TokenShapes,
    *,
    rows: IntArray | None = None,
    place: Path | None = None,
) -> None:
    """Complete a store whose shards are written: write the items, then `store.json`.

    Args:
        folder: with the shards 0 to `shards` - 1. dataset: the items. recipe: of their features.
        tokens: shapes of the tokens in all shards. rows: row of each item in the shards; in order when None.
        place: where the folder will be; where it is when None.
    """
    columns = {
        "id": dataset.ids,
        "image": [_stored_path(path, place or folder) for path in dataset.images],
        "texts": dataset.texts,
        "labels": [dataset.label_names_of(row) for row in range(len(dataset))],
    }
    listed = read_header(folder).items if (folder / "store.json").exists() else ""
    names = (f"items-{number:05d}.parquet" for number in (shards, shards + 1))
    items = folder / next(name for name in names if name != listed)  # the old store stays valid until the last step
    with replacing(items) as temporary:
        table = pyarrow.table({name: list(column) for name, column in columns.items()})
        pyarrow.parquet.write_table(table, temporary)
    files = [*(shard_path(folder, number) for number in range(shards)), items]
    header = {
        "recipe": recipe.to_dict(),
        "label_names": list(dataset.label_names),
        "shards": shards,
        "items": items.name,
        "checksums": {file.name: checksum_file(file) for file in files},
        **({"tokens": tokens} if tokens else {}),
        **({} if rows is None else {"rows": rows.tolist()}),
    }
    write_json(folder / "store.json", header, kind=KIND, version=VERSION)
    for other in folder.glob("items-*.parquet"):
        if other != items:
            other.unlink()


def read_header(folder: Path) -> Header:
    """Content of `store.json`.

    Raises:
        FormatError: missing, unfinished, corrupt or truncated, or of another version.
    """
    path = folder / "store.json"
    if (folder / "plan.json").exists() and not path.exists():
        raise FormatError(
            "its extraction is not finished.", file=folder, hint="Run the same extraction again to resume it."
        )
    if int((content := read_json(path, kind=KIND, version=VERSION))["version"]) < VERSION:
        raise FormatError(
            f"written in format version {content['version']}, which this multibit no longer reads.",
            file=path,
            hint="Extract the features again.",
        )
    header = typed(content, Header, path, _AGAIN)
    files = {header.items, *(shard_path(folder, number).name for number in range(len(header.checksums) - 1))}
    if set(header.checksums) != files or header.shards != len(files) - 1:
        count = len(header.checksums)
        problem = f"lists {count} files for {header.shards} shards and the items; need one checksum each."
        raise FormatError(problem, file=path, field="checksums", hint=_AGAIN)
    return header


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
        return tuple((texts_of(text, row=row, field=key) or ("",))[0] for row, text in enumerate(array.tolist()))
    return tuple(id_of(name, row=row, field=key) for row, name in enumerate(array.tolist()))
