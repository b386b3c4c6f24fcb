"""The files of a feature store.

A store is a folder: shards with the vectors, the items in `items-*.parquet` (a manifest that any tool can read), and
`store.json`, written last, which lists these files with their checksums. Adding items adds shards and replaces
`store.json`.

A store may also hold tokens, the vectors of patches and words, in the same shards; `store.json` then has their shapes.
Without them it is what it always was, and a version that knows no tokens reads the other arrays of a store with them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow
import pyarrow.parquet

from multibit.arrays import IntArray, Labels
from multibit.codes.items import Modality
from multibit.data.dataset import PairedDataset
from multibit.data.manifest import read_manifest
from multibit.errors import FormatError
from multibit.features.originals import Original, absolute
from multibit.features.recipe import Recipe
from multibit.features.shards import Shard, shard_path
from multibit.features.tokens import TokenShapes
from multibit.files import checksum_file, read_json, typed, write_json
from multibit.paths import replacing

KIND, VERSION = "feature store", 2
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


def require_whole(folder: Path, header: Header) -> None:
    """Refuse files that differ from those that were written.

    Raises:
        FormatError: names the file.
    """
    for name, digits in header.checksums.items():
        if not (folder / name).is_file() or checksum_file(folder / name) != digits:
            raise FormatError(
                "is missing, corrupt or truncated.", file=folder / name, hint="Extract the features again."
            )


def read_items(folder: Path, header: Header) -> PairedDataset:
    """The items of a store, with paths that do not depend on the working directory."""
    dataset = read_manifest(folder / header.items, label_names=header.label_names)
    here = Path(os.path.realpath(folder))
    stored = (path.relative_to(folder) if path and path.is_relative_to(folder) else path for path in dataset.images)
    images = (path and Path(os.path.normpath(here / path)) for path in stored)
    return replace(dataset, labels=cast(Labels, dataset.label_rows), images=tuple(images))


def rows_in(folder: Path, header: Header, items: int, stored: int) -> IntArray | None:
    """The row in the shards of each item, where items were encoded again; else None.

    Args:
        folder: of the store. header: its content. items: of the store. stored: rows that the shards have.

    Raises:
        FormatError: rows that the shards do not have.
    """
    if header.rows is None:
        return None
    rows = np.array(header.rows, np.int64)
    if len(rows) != items or (len(rows) and rows.max() >= stored):
        problem = f"{len(rows)} rows for {items} items, of {stored} in the shards."
        raise FormatError(problem, file=folder / "store.json", field="rows", hint=_AGAIN)
    return rows


class ShardFacts(NamedTuple):
    """What the shards of a store have besides vectors.

    Attributes:
        ends: modality -> (shards,) number of its rows up to the end of each shard.
        counts: (n,) texts of each item. tokens: modality -> (rows,) tokens of each of its rows.
        reasons: id -> why the item was skipped. truncated: number of texts.
        originals: state of each image file when it was encoded, None where it is unknown.
    """

    ends: dict[Modality, IntArray]
    counts: IntArray
    tokens: dict[Modality, IntArray]
    reasons: dict[str, str]
    truncated: int
    originals: list[Original | None]


def read_facts(paths: Sequence[Path], header: Header) -> ShardFacts:
    """Read all shards of a store, one at a time: an open shard holds a file descriptor.

    Raises:
        FormatError: a shard is corrupt, or has no tokens although the store has.
    """
    counts: list[IntArray] = []
    tokens: dict[Modality, list[IntArray]] = {modality: [] for modality in header.tokens}
    reasons: dict[str, str] = {}
    originals: list[Original | None] = []
    truncated = 0
    for path in paths:
        shard = Shard.read(path, verify=False)
        counts.append(np.array(shard.counts))
        for modality, found in tokens.items():
            if modality not in shard.tokens:
                raise FormatError("has no such tokens.", file=path, field=f"{modality} tokens", hint=_AGAIN)
            found.append(shard.tokens[modality].counts)
        reasons.update(shard.skipped)
        originals += shard.originals or [None] * len(shard.counts)
        truncated += shard.truncated
    ends: dict[Modality, IntArray] = {
        "image": np.cumsum([len(each) for each in counts]), "text": np.cumsum([each.sum() for each in counts])
    }  # fmt: skip
    joined = {modality: np.concatenate(found) for modality, found in tokens.items()}
    return ShardFacts(ends, np.concatenate(counts), joined, reasons, truncated, originals)
