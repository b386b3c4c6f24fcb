"""Features and labels of some items: the input of training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import IntArray, Labels, as_float32, as_labels, check_offsets
from multibit.codes.items import Modality
from multibit.errors import DataError
from multibit.features.tokens import Tokens

TOKEN_ROWS = 64  # whose tokens a fingerprint reads; all of them can be gigabytes


@dataclass(frozen=True, eq=False)
class Pairs:
    """Features and labels of n items: the input of training and of validation.

    Attributes:
        image: (n, d_i) float32. text: (T, d_t) float32, the texts of item i in rows offsets[i] to offsets[i+1] - 1.
        offsets: (n+1,) int64. labels: (n, C) uint8 multi-hot.
        image_tokens: of the n images. text_tokens: of the T texts; None where the features have no tokens.

    Raises:
        DataError: row counts that do not match, an item without text, a feature that is not finite, or a label other
            than 0 and 1.

    Example:
        >>> image, text = np.eye(2, dtype=np.float32), np.eye(3, dtype=np.float32)
        >>> Pairs(image, text, np.array([0, 1, 3]), np.array([[1, 0, 0, 1], [0, 1, 0, 0]], np.uint8))
        Pairs(2 items, 2-d image, 3-d text, 4 labels)
    """

    image: NDArray[np.float32]
    text: NDArray[np.float32]
    offsets: IntArray
    labels: Labels
    image_tokens: Tokens | None = None
    text_tokens: Tokens | None = None

    def __post_init__(self) -> None:
        for name in ("image", "text"):
            single = as_float32(np.asarray(getattr(self, name)), f"{name} features")
            object.__setattr__(self, name, np.require(single, np.float32, ["C", "W"]))
        for name in ("offsets", "labels"):  # lists are converted, as those of features are
            object.__setattr__(self, name, np.asarray(getattr(self, name)))
        if len(self.image) != len(self.labels):
            raise DataError(
                f"{len(self.image)} image rows and {len(self.labels)} label rows; the counts must be equal.",
                field="features",
            )
        object.__setattr__(self, "labels", as_labels(self.labels))
        check_offsets(self.offsets, len(self.labels), len(self.text))
        for name, tokens, rows in (("image", self.image_tokens, self.image), ("text", self.text_tokens, self.text)):
            if tokens is not None and len(tokens) != len(rows):
                raise DataError(f"tokens of {len(tokens)} rows, for {len(rows)} rows.", field=f"{name} tokens")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        sizes = f"{self.image.shape[1]}-d image, {self.text.shape[1]}-d text, {self.labels.shape[1]} labels"
        return f"Pairs({len(self):,} items, {sizes})"

    @property
    def has_tokens(self) -> bool:
        """Whether both modalities have token features."""
        return self.image_tokens is not None and self.text_tokens is not None

    def require_tokens(self) -> dict[Modality, list[int]]:
        """Modality -> number of tokens, padding included, and length of each.

        Raises:
            DataError: the items have no tokens.
        """
        if self.image_tokens is None or self.text_tokens is None:
            raise DataError("need tokens of images and texts, but the features have none.", field="tokens")
        return {"image": [*self.image_tokens.shape[1:]], "text": [*self.text_tokens.shape[1:]]}

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Features, offsets, labels, and of tokens the counts and the vectors of some rows, for a fingerprint."""
        arrays: list[NDArray[Any]] = [self.image, self.text, self.offsets, self.labels]
        for tokens in (self.image_tokens, self.text_tokens):
            if tokens is not None:
                rows = np.arange(0, len(tokens), max(len(tokens) // TOKEN_ROWS, 1))
                arrays += [tokens.counts, tokens.take(rows).values[np.arange(len(rows))]]
        return tuple(arrays)

    def features(self, modality: Modality) -> NDArray[np.float32]:
        """(n, d) features of one modality, the mean of several texts."""
        return self.image if modality == "image" else self.mean_text

    def tokens(self, modality: Modality) -> Tokens | None:
        """Tokens of the n images, or of the T texts; None without tokens."""
        return self.image_tokens if modality == "image" else self.text_tokens

    @property
    def mean_text(self) -> NDArray[np.float32]:
        """(n, d_t) mean of the texts of each item: the input of the text network."""
        if len(self.text) == len(self):
            return self.text
        with np.errstate(over="ignore"):
            sums = np.add.reduceat(self.text, self.offsets[:-1], axis=0)
        if not np.isfinite(sums).all():
            sums = np.add.reduceat(self.text, self.offsets[:-1], axis=0, dtype=np.float64)
        return np.asarray(sums / np.diff(self.offsets)[:, None], np.float32)


def in_memory(pairs: Pairs) -> Pairs:
    """The same pairs, with their tokens read."""
    read = (
        None if tokens is None else tokens.take(np.arange(len(tokens)))
        for tokens in (pairs.image_tokens, pairs.text_tokens)
    )
    image_tokens, text_tokens = read
    return replace(pairs, image_tokens=image_tokens, text_tokens=text_tokens)
