"""Token features: the patch vectors of an image, the word vectors of a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import IntArray, row_numbers
from multibit.codes.items import MODALITIES, Modality
from multibit.errors import DataError

TokenShape = tuple[int, int]
"""Number of tokens that are kept, and length of each."""
TokenShapes = dict[Modality, TokenShape]
MAX_WORDS = 32
"""Word vectors kept of a text, as the field does."""
BLOCK = 512
"""Items whose tokens are read at a time, where all have to be: 64 MB of 49 x 1280."""


class TokenRows(Protocol):
    """(n, t, d) vectors that are read only where they are indexed: an array, or shards on disk."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, t, d)."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Float type of the vectors."""
        ...

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        """(m, t, d) of some rows."""
        ...


@dataclass(frozen=True, eq=False)
class Tokens:
    """Token features of n images or texts.

    Attributes:
        values: (n, t, d) float16 or float32, zeros after the last token; in memory or on disk.
        counts: (n,) int64, number of tokens of each, 1 to t.

    Raises:
        DataError: values that are not three-dimensional, another number of counts, or a count out of range.

    Example:
        >>> tokens = Tokens(np.zeros((3, 4, 8), np.float16), np.array([4, 1, 2]))
        >>> tokens.take([2, 0]).counts, tokens.dimension
        (array([2, 4]), 8)
    """

    values: TokenRows
    counts: IntArray

    def __post_init__(self) -> None:
        if len(self.values.shape) != 3 or len(self.counts) != self.values.shape[0]:
            raise DataError(
                f"need (n, tokens, d) vectors and n counts, got {self.values.shape} and {len(self.counts)}.",
                field="tokens",
            )
        if len(self) and not 1 <= self.counts.min() <= self.counts.max() <= self.values.shape[1]:
            raise DataError(
                f"counts from {self.counts.min()} to {self.counts.max()}; need 1 to {self.values.shape[1]}.",
                field="tokens",
            )

    @classmethod
    def none(cls, shape: TokenShape) -> Tokens:
        """The tokens of no item."""
        return cls(np.zeros((0, *shape), np.float16), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def dimension(self) -> int:
        """Length of a token vector."""
        return self.values.shape[2]

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, t, d)."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Float type of the vectors."""
        return self.values.dtype

    def blocks(self) -> Iterator[NDArray[np.floating]]:
        """All vectors in order, `BLOCK` items at a time."""
        return (self.values[np.arange(start, min(start + BLOCK, len(self)))] for start in range(0, len(self), BLOCK))

    def require_finite(self, what: str) -> None:
        """Check every value, a block at a time.

        Raises:
            DataError: a value that is not finite; with its row, token and column. `what` names the tokens.
        """
        for number, block in enumerate(self.blocks()):
            wrong = ~np.isfinite(block)
            if wrong.any():
                row, token, column = np.argwhere(wrong)[0]
                raise DataError(
                    f"[{number * BLOCK + row}, {token}, {column}] is {block[row, token, column]}; every "
                    "value must be finite, in float16.",
                    field=what,
                )

    def take(self, rows: ArrayLike) -> Tokens:
        """The tokens of some rows, in the order given, in memory."""
        index = row_numbers(rows, len(self))
        return Tokens(self.values[index], self.counts[index])

    def select(self, rows: ArrayLike) -> Tokens:
        """The tokens of some rows, which are read when they are taken."""
        index = row_numbers(rows, len(self))
        return Tokens(_Selected(self.values, index), self.counts[index])


@dataclass(frozen=True, eq=False)
class _Selected:
    """Some rows of token vectors, not read yet."""

    source: TokenRows
    rows: IntArray

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.source.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        return self.source[self.rows[rows]]


def describe_tokens(shapes: TokenShapes) -> str:
    """Human-readable, such as "49 x 768 of an image and at most 32 x 512 of a text"; "" without tokens."""
    names: dict[Modality, str] = {"image": "of an image", "text": "of a text"}
    limits: dict[Modality, str] = {"image": "", "text": "at most "}
    return " and ".join(f"{limits[key]}{count} x {size} {names[key]}" for key, (count, size) in shapes.items())


def describe_counts(tokens: Tokens) -> str:
    """Human-readable, such as "at most 32 x 512-d float16, 14.2 on average"."""
    limit, size = tokens.shape[1:]
    fixed = bool((tokens.counts == limit).all())
    mean = "" if fixed else f", {tokens.counts.mean():.1f} on average"
    return f"{'' if fixed else 'at most '}{limit} x {size}-d {tokens.dtype}{mean}"


def joined(parts: list[Tokens], shape: TokenShape) -> Tokens:
    """The tokens of several batches, one after the other, in memory."""
    values = [np.asarray(part.values) for part in parts]
    counts = [part.counts for part in parts]
    return Tokens(np.concatenate(values), np.concatenate(counts)) if parts else Tokens.none(shape)


def named_tokens(arrays: Mapping[str, NDArray[Any]]) -> dict[Modality, Tokens]:
    """The tokens among named arrays: `image_tokens` (n, t, d), `image_token_counts` (n,), and the same of text.

    Args:
        arrays: without counts, all tokens are real. Values in float16 are not copied and stay where they are; others
            are converted.

    Raises:
        DataError: arrays of another shape or type, a count out of range, or a value that float16 cannot represent.

    Example:
        >>> named_tokens({"image_tokens": np.zeros((3, 4, 8)), "labels": np.zeros((3, 1))})["image"].counts
        array([4, 4, 4])
    """
    return {modality: _named(arrays, modality) for modality in MODALITIES if f"{modality}_tokens" in arrays}


def _named(arrays: Mapping[str, NDArray[Any]], modality: Modality) -> Tokens:
    name, counted = f"{modality}_tokens", f"{modality}_token_counts"
    values = arrays[name]
    if values.ndim != 3 or values.shape[2] < 1 or values.dtype.kind != "f":
        raise DataError(f"need (n, tokens, d) floats, got {values.dtype} of shape {values.shape}.", field=name)
    count, limit = values.shape[:2]
    counts = arrays.get(counted, np.full(count, limit))
    if counts.shape != (count,) or counts.dtype.kind not in "iu":
        raise DataError(f"need {count} integers, got {counts.dtype} {counts.shape}.", field=counted)
    wrong = (counts < 1) | (counts > limit)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"[{row}] is {counts[row]}; every count must be in 1..{limit}.", field=counted)
    with np.errstate(over="ignore", under="ignore"):
        tokens = Tokens(values.astype(np.float16, copy=False), counts.astype(np.int64))
    if values.dtype != np.float16:
        tokens.require_finite(name)
    return tokens
