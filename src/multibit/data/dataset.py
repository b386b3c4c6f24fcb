"""A paired data set: items with an image, one or several texts, and labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from multibit.arrays import Labels, as_labels, row_numbers
from multibit.errors import DataError
from multibit.files import fingerprint

Item = tuple[str, Path | None, Sequence[str], Iterable[str]]
"""Id, image file, texts and label names of one item."""


@dataclass(frozen=True, eq=False)
class PairedDataset:
    """N items of images, texts and labels; row i of everything is item i.

    Attributes:
        ids: unique, stable names of the items.
        images: image file of each item, None where there is none.
        texts: one or several texts of each item.
        labels: (N, C) uint8 multi-hot.
        label_names: C names, the meaning of the columns.

    Raises:
        DataError: empty, rows that do not match, duplicate ids or label names, label values other than 0 and 1; its
            `field` is the attribute.

    Example:
        >>> texts = (("a cat",), ("a dog", "un chien"))
        >>> data = PairedDataset(("a", "b"), (None, None), texts, [[1, 0], [0, 1]], ("cat", "dog"))
        >>> len(data), data.labels.dtype
        (2, dtype('uint8'))
    """

    ids: tuple[str, ...]
    images: tuple[Path | None, ...]
    texts: tuple[tuple[str, ...], ...]
    labels: Labels
    label_names: tuple[str, ...]

    def __post_init__(self) -> None:
        count = len(self.ids)
        if not count:
            raise DataError("the data set is empty; it needs at least 1 item.", field="ids")
        for name in ("images", "texts"):
            found = len(getattr(self, name))
            if found != count:
                raise DataError(f"{found} rows for {count} ids.", field=name)
        labels = as_labels(self.labels, rows=count, columns=len(self.label_names))
        object.__setattr__(self, "labels", labels)
        if "" in self.ids:
            raise DataError(f"row {self.ids.index('')} has an empty id.", field="ids")
        _require_encodable("ids", self.ids)
        _require_encodable("label_names", self.label_names)
        for texts in self.texts:
            _require_encodable("texts", texts)
        _require_unique("ids", self.ids)
        _require_unique("label_names", self.label_names)

    @classmethod
    def of_items(
        cls, items: Iterable[Item], label_names: Sequence[str] | None = None, *, rows: Sequence[int] = ()
    ) -> PairedDataset:
        """Build from items one by one.

        Args:
            items: id, image file, texts and label names of each; an item without a text gets an empty one.
            label_names: the label columns; all that occur in alphabetical order when None.
            rows: row of each item in the file that they were read from, for errors.

        Raises:
            DataError: as the class, or a label that is not in `label_names`.

        Example:
            >>> PairedDataset.of_items([("a", None, ["a cat"], ["cat"]), ("b", None, [], ["dog", "cat"])]).labels
            array([[1, 0],
                   [1, 1]], dtype=uint8)
        """
        listed = [(name, image, tuple(texts) or ("",), tuple(labels)) for name, image, texts, labels in items]
        names = tuple(sorted({label for item in listed for label in item[3]}) if label_names is None else label_names)
        column = {name: i for i, name in enumerate(names)}
        multi_hot = np.zeros((len(listed), len(names)), np.uint8)
        for number, (key, _, _, labels) in enumerate(listed):
            for label in labels:
                if label not in column:
                    raise DataError(
                        f"item {key!r} has the unknown label {label!r}; {len(column)} labels are known.",
                        row=rows[number] if rows else None,
                        field="labels",
                        hint="Add it to `label_names`.",
                    )
                multi_hot[number, column[label]] = 1
        ids, images, texts = tuple(zip(*(item[:3] for item in listed), strict=True)) or ((), (), ())
        _require_unique("ids", ids, rows)
        return cls(ids, images, texts, multi_hot, names)

    def __repr__(self) -> str:
        return f"PairedDataset({len(self):,} items, {len(self.label_names):,} labels)"

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: ArrayLike) -> PairedDataset:
        """Some of the items, in the order given, or those where a mask is true.

        Raises:
            DataError: rows that are not integers or do not exist, or a row that is given twice.
        """
        index = row_numbers(rows, len(self))
        listed = index.tolist()
        return PairedDataset(
            tuple(self.ids[row] for row in listed),
            tuple(self.images[row] for row in listed),
            tuple(self.texts[row] for row in listed),
            self.labels[index],
            self.label_names,
        )

    def label_names_of(self, row: int) -> list[str]:
        """Names of the labels of one item."""
        return [self.label_names[column] for column in np.flatnonzero(self.labels[row])]

    def describe(self, row: int) -> dict[str, Any]:
        """One item as JSON-serialisable values: image path, first text, label names."""
        image = self.images[row]
        return {
            "image": None if image is None else str(image.absolute()),
            "text": self.texts[row][0],
            "labels": self.label_names_of(row),
        }

    def fingerprint(self) -> str:
        """16 hexadecimal digits of the ids, texts and labels: the identity of the data behind a number."""
        return fingerprint(self.ids, self.texts, self.label_names, self.labels)


def _require_encodable(field: str, texts: Iterable[str]) -> None:
    """Refuse text that cannot be written as UTF-8."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{text[:40]!r} contains a lone surrogate.", field=field, hint="Fix the source text."
            ) from None


def _require_unique(field: str, names: Sequence[str], rows: Sequence[int] = ()) -> None:
    """Refuse duplicates; `rows` are the rows of the names in their file, for the error."""
    first: dict[str, int] = {}
    for row, name in enumerate(names):
        if name in first:
            earlier, later = (rows[first[name]], rows[row]) if rows else (first[name], row)
            raise DataError(
                f"duplicate {name!r} in rows {earlier} and {later}; each must be unique.",
                row=later if rows else None,
                field=field,
            )
        first[name] = row
