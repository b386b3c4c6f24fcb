"""A paired data set: items with a picture, one or several texts, and labels."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.errors import DataError
from multibit.files import fingerprint


@dataclass(frozen=True, eq=False)
class PairedDataset:
    """N items of pictures, texts and labels; row i of everything is item i.

    Attributes:
        ids: unique, stable names of the items.
        images: picture file of each item, None where there is none.
        texts: one or several texts of each item.
        labels: (N, C) uint8 multi-hot.
        label_names: C names, the meaning of the columns.

    Raises:
        DataError: empty, rows that do not match, duplicate ids or label names, label values other than 0 and 1.

    Example:
        >>> texts = (("a cat",), ("a dog", "un chien"))
        >>> data = PairedDataset(("a", "b"), (None, None), texts, [[1, 0], [0, 1]], ("cat", "dog"))
        >>> len(data), data.labels.dtype
        (2, dtype('uint8'))
    """

    ids: tuple[str, ...]
    images: tuple[Path | None, ...]
    texts: tuple[tuple[str, ...], ...]
    labels: NDArray[np.uint8]
    label_names: tuple[str, ...]

    def __post_init__(self) -> None:
        count = len(self.ids)
        if not count:
            raise DataError("the data set is empty: it needs at least one item.")
        rows = {"images": len(self.images), "texts": len(self.texts), "labels": len(self.labels)}
        for name, found in rows.items():
            if found != count:
                raise DataError(f"{name}: {found} rows for {count} ids; every item needs its row.")
        object.__setattr__(self, "labels", _multi_hot(self.labels, len(self.label_names)))
        if "" in self.ids:
            raise DataError(f"ids: row {self.ids.index('')} has an empty id. Every item needs a name.")
        _require_text(self.ids, self.label_names, *self.texts)
        _require_unique("id", self.ids)
        _require_unique("label name", self.label_names)

    @classmethod
    def of_items(
        cls,
        items: Iterable[tuple[str, Path | None, Sequence[str], Iterable[str]]],
        label_names: Sequence[str] | None = None,
    ) -> PairedDataset:
        """Build from items one by one: id, picture, texts, label names.

        Args:
            items: an item without a text gets an empty one.
            label_names: the label columns; all that occur in alphabetical order when None.

        Raises:
            DataError: as the class, or a label that is not among `label_names`.

        Example:
            >>> PairedDataset.of_items([("a", None, ["a cat"], ["cat"]), ("b", None, [], ["dog", "cat"])]).labels
            array([[1, 0],
                   [1, 1]], dtype=uint8)
        """
        listed = [(name, image, tuple(texts) or ("",), tuple(labels)) for name, image, texts, labels in items]
        names = tuple(sorted({label for item in listed for label in item[3]}) if label_names is None else label_names)
        column = {name: i for i, name in enumerate(names)}
        multi_hot = np.zeros((len(listed), len(names)), np.uint8)
        for row, (key, _, _, labels) in enumerate(listed):
            for label in labels:
                if label not in column:
                    raise DataError(f"item {key}: the label {label!r} is unknown; {len(column)} labels are known.")
                multi_hot[row, column[label]] = 1
        ids, images, texts = tuple(zip(*(item[:3] for item in listed), strict=True)) or ((), (), ())
        return cls(ids, images, texts, multi_hot, names)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: ArrayLike) -> PairedDataset:
        """Some of the items, in the order given, or those where a mask is true."""
        given = np.asarray(rows)
        index = [int(row) for row in (np.flatnonzero(given) if given.dtype == np.bool_ else given)]
        return PairedDataset(
            tuple(self.ids[row] for row in index),
            tuple(self.images[row] for row in index),
            tuple(self.texts[row] for row in index),
            self.labels[index],
            self.label_names,
        )

    def label_names_of(self, row: int) -> list[str]:
        """Names of the labels of one item."""
        return [self.label_names[column] for column in np.flatnonzero(self.labels[row])]

    def describe(self, row: int) -> dict[str, Any]:
        """One item for people, as plain values: picture path, first text, label names."""
        image = self.images[row]
        return {
            "image": None if image is None else str(image.absolute()),
            "text": self.texts[row][0],
            "labels": self.label_names_of(row),
        }

    def fingerprint(self) -> str:
        """16 hexadecimal digits of the ids, texts and labels: the identity of the data behind a number."""
        return fingerprint(self.ids, self.texts, self.label_names, self.labels)


def _multi_hot(labels: ArrayLike, columns: int) -> NDArray[np.uint8]:
    array = np.asarray(labels)
    if array.ndim != 2 or array.shape[1] != columns:
        raise DataError(f"labels: shape {array.shape} for {columns} label names; need (items, {columns}).")
    if array.dtype.kind not in "biuf" or not ((array == 0) | (array == 1)).all():
        raise DataError("labels: every value must be 0 or 1.")
    return array.astype(np.uint8)


def _require_text(*groups: Sequence[str]) -> None:
    """Refuse what no file can hold: half of a surrogate pair."""
    for text in itertools.chain(*groups):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(f"{text[:40]!r} holds half of a letter (a lone surrogate); mend its source.") from None


def _require_unique(what: str, names: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for row, name in enumerate(names):
        if name in first:
            raise DataError(f"duplicate {what} {name!r}: rows {first[name]} and {row}. Each must be unique.")
        first[name] = row
