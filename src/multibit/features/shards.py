"""Shards of a feature store: the features of some items in one file, written once and never changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from multibit.arrays import IntArray
from multibit.codes.items import Modality
from multibit.features.originals import Original
from multibit.features.tokens import Tokens, named_tokens
from multibit.files import building, read_arrays, write_arrays

KIND, VERSION = "feature shard", 2


@dataclass(frozen=True, eq=False)
class Shard:
    """Features of n consecutive items.

    Attributes:
        image: (n, d_i) float32 or float16. text: (t, d_t), the texts of the items in order.
        counts: (n,) int64, number of texts of each item.
        skipped: (id, reason) of items of this shard that could not be encoded.
        truncated: number of texts that are longer than the encoder reads.
        tokens: of the n images and of the t texts, where they are kept.
        originals: state of the n image files; empty where it is unknown.
    """

    image: NDArray[Any]
    text: NDArray[Any]
    counts: IntArray
    skipped: tuple[tuple[str, str], ...] = ()
    truncated: int = 0
    tokens: Mapping[Modality, Tokens] = field(default_factory=dict)
    originals: tuple[Original, ...] = ()

    def write(self, folder: Path, number: int) -> None:
        """Write in one step: the file is complete or absent."""
        arrays = {"image": self.image, "text": self.text, "counts": self.counts}
        for modality, tokens in self.tokens.items():
            arrays[f"{modality}_tokens"], arrays[f"{modality}_token_counts"] = np.asarray(tokens.values), tokens.counts
        header: dict[str, Any] = {"skipped": self.skipped, "truncated": self.truncated}
        if self.originals:
            header["originals"] = self.originals
        write_arrays(shard_path(folder, number), arrays, header, kind=KIND, version=VERSION)

    @classmethod
    def read(cls, path: Path, *, verify: bool = True) -> Shard:
        """Map a shard into memory. `verify` compares its checksum, which reads the whole file.

        Raises:
            FormatError: missing, corrupt or truncated, or newer than this version.
        """
        arrays, header = read_arrays(path, kind=KIND, version=VERSION, form=_Header, needed=_ARRAYS, verify=verify)
        image, text, counts = arrays["image"], arrays["text"], arrays["counts"]
        with building(path):
            if len(counts) != len(image) or counts.sum() != len(text) or (counts < 1).any():
                raise ValueError(f"{len(counts)} counts of texts for {len(image)} images and {len(text)} texts")
            if header.originals and len(header.originals) != len(image):
                raise ValueError(f"{len(header.originals)} image files for {len(image)} images")
            return cls(image, text, counts, header.skipped, header.truncated, named_tokens(arrays), header.originals)


_ARRAYS = {"image": ("f", 2), "text": ("f", 2), "counts": ("iu", 1)}


class _Header(msgspec.Struct):
    """What the file of a shard must say."""

    skipped: tuple[tuple[str, str], ...]
    truncated: Annotated[int, msgspec.Meta(ge=0)]
    originals: tuple[Original, ...] = ()


def shard_path(folder: Path, number: int) -> Path:
    """File of the shard with this number."""
    return folder / f"shard-{number:05d}.safetensors"


class ShardedRows:
    """An array whose rows are in several shards; indexed by rows like any other, and read only where it is indexed.

    Its rows are feature vectors, or the (t, d) tokens of an item.

    Args:
        paths: of the shards. name: of their array. ends: (shards,) number of rows up to the end of each.
        rows: the row in all shards of each row; all of them in order when None.
    """

    def __init__(self, paths: Sequence[Path], name: str, ends: IntArray, rows: IntArray | None = None) -> None:
        self._paths, self._name, self._ends, self._rows = paths, name, ends, rows
        first = self._part(0)
        self.dtype, self.ndim = first.dtype, first.ndim
        self.shape: tuple[int, ...] = (int(ends[-1]) if rows is None else len(rows), *first.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        index = (np.arange(len(self)) if self._rows is None else self._rows)[rows]
        flat = np.atleast_1d(index)
        shards = np.searchsorted(self._ends, flat, side="right")
        order = np.argsort(shards, kind="stable")
        found = np.empty((len(flat), *self.shape[1:]), self.dtype)
        for positions in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            if len(positions):
                part = self._part(number := int(shards[positions[0]]))
                found[positions] = part[flat[positions] - self._ends[number] + len(part)]
        return found if index.ndim else found[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """All rows, about one shard at a time."""
        if self._rows is None:
            return (self._part(number) for number in range(len(self._paths)))
        step = -(-len(self) // len(self._paths))
        return (self[start : start + step] for start in range(0, len(self), step))

    def _part(self, number: int) -> NDArray[Any]:
        return read_arrays(self._paths[number], kind=KIND, version=VERSION, verify=False)[0][self._name]
