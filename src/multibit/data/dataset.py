"""A paired data set: items with an image, one or several texts, and labels.

The labels are kept sparse from the reader to the feature store, and become a dense matrix where `labels` is read:
40,000 items with 8 of 20,000 tags each are 320,000 numbers, the matrix has 800 million.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from multibit.arrays import IntArray, Labels, as_labels, row_numbers
from multibit.data.values import same_name
from multibit.errors import DataError, counted, require_integer
from multibit.files import fingerprint

Item = tuple[str, Path | None, Sequence[str], Iterable[str]]
"""Id, image file, texts and label names of one item."""


BLOCK = 1 << 24
"""Bytes of dense labels that are made at a time."""


class LabelRows:
    """Sparse labels (N, C), of which rows become dense where they are indexed.

    Args:
        matrix: (N, C) of uint8, every stored value 1.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, matrix: scipy.sparse.csr_array) -> None:
        self.matrix = matrix
        self.shape: tuple[int, int] = matrix.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Labels:
        """Dense labels of some rows, (n, C), or of one, (C,)."""
        if isinstance(rows, int | np.integer):
            return cast(Labels, self[[rows]][0])
        dense: Labels = self.matrix[rows].toarray()
        return dense

    def columns_of(self, row: int) -> list[int]:
        """Columns of the labels of one item, ascending."""
        columns: list[int] = self.matrix.indices[self.matrix.indptr[row] : self.matrix.indptr[row + 1]].tolist()
        return columns

    def blocks(self) -> Iterator[Labels]:
        """All rows, dense, some at a time."""
        step = max(BLOCK // max(self.shape[1], 1), 1)
        return (self[slice(start, start + step)] for start in range(0, max(len(self), 1), step))

    def per_label(self) -> IntArray:
        """(C,) number of items of each label."""
        return np.bincount(self.matrix.indices, minlength=self.shape[1]).astype(np.int64)

    def per_item(self) -> IntArray:
        """(N,) number of labels of each item."""
        counts: IntArray = np.diff(self.matrix.indptr).astype(np.int64)
        return counts


@dataclass(frozen=True, eq=False)
class PairedDataset:
    """N items of images, texts and labels; row i of everything is item i.

    Attributes:
        ids: unique, stable names of the items.
        images: image file of each item, None where there is none.
        texts: one or several texts of each item.
        labels: (N, C) uint8 multi-hot; made from `label_rows` when it is first read, unless it was given.
        label_names: C names, the meaning of the columns.
        label_rows: the labels, sparse.

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
    label_rows: LabelRows = field(init=False, repr=False)

    def __post_init__(self) -> None:
        count = len(self.ids)
        if not count:
            raise DataError("the data set is empty; it needs at least 1 item.", field="ids")
        for name in ("images", "texts"):
            found = len(getattr(self, name))
            if found != count:
                raise DataError(f"{found} rows for {count} ids.", field=name)
        if isinstance(self.labels, LabelRows):
            object.__setattr__(self, "label_rows", self.labels)
            object.__delattr__(self, "labels")  # `__getattr__` makes it
        else:
            labels = as_labels(self.labels, rows=count, columns=len(self.label_names))
            object.__setattr__(self, "labels", labels)
            object.__setattr__(self, "label_rows", LabelRows(scipy.sparse.csr_array(labels)))
        for name in ("ids", "label_names"):
            _require_texts(name, getattr(self, name))
        if "" in self.ids:
            raise DataError(f"[{self.ids.index('')}] is empty.", field="ids")
        for texts in self.texts:
            _require_texts("texts", texts)
        _require_unique("ids", self.ids)
        _require_unique("label_names", self.label_names)

    @classmethod
    def of_items(
        cls, items: Iterable[Item], label_names: Sequence[str] | None = None, *, rows: Sequence[int] = ()
    ) -> PairedDataset:
        """Build from items one by one.

        Args:
            items: id, image file, texts and label names of each; an item without a text gets an empty one. Labels that
                differ only in their Unicode form are one label.
            label_names: the label columns; all that occur in alphabetical order when None.
            rows: row of each item in the file that they were read from, for errors.

        Raises:
            DataError: as the class, or a label that is not in `label_names`.

        Example:
            >>> PairedDataset.of_items([("a", None, ["a cat"], ["cat"]), ("b", None, [], ["dog", "cat"])]).labels
            array([[1, 0],
                   [1, 1]], dtype=uint8)
        """
        given = None if label_names is None else tuple(map(same_name, label_names))
        _require_unique("label_names", given or ())
        columns = {name: i for i, name in enumerate(given or ())}
        ids: dict[str, int] = {}
        images, texts, indices, ends = list[Path | None](), list[tuple[str, ...]](), array("q"), array("q", [0])
        for number, (key, image, written, labels) in enumerate(items):
            row = rows[number] if rows else None
            if ids.setdefault(key, number) != number:
                raise _duplicate("ids", key, ids[key], number, rows)
            images.append(image)
            texts.append(tuple(written) or ("",))
            found = set()
            for label in map(same_name, labels):
                if label not in columns and given is not None:
                    known = counted(len(columns), "label is", "labels are")
                    raise DataError(
                        f"item {key!r} has the unknown label {label!r}; {known} known.",
                        row=row,
                        field="labels",
                        hint="Add it to `label_names`.",
                    )
                found.add(columns.setdefault(label, len(columns)))
            indices.extend(found)
            ends.append(len(indices))
        names = tuple(sorted(columns)) if given is None else given
        place = np.empty(len(names), np.int64)  # of each column, in the order of the names
        place[[columns[name] for name in names]] = np.arange(len(names))
        parts = np.ones(len(indices), np.uint8), place[np.array(indices, np.int64)], np.array(ends, np.int64)
        matrix = scipy.sparse.csr_array(parts, shape=(len(ids), len(names)))
        matrix.sort_indices()
        return cls(tuple(ids), tuple(images), tuple(texts), cast(Labels, LabelRows(matrix)), names)

    def __getattr__(self, name: str) -> Labels:
        if name != "labels":
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        object.__setattr__(self, "labels", self.label_rows[:])
        return self.labels

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
            cast(Labels, LabelRows(self.label_rows.matrix[index])),
            self.label_names,
        )

    def label_names_of(self, row: int) -> list[str]:
        """Names of the labels of one item.

        Raises:
            DataError: no such row.
        """
        require_integer(row, 0, "row", most=len(self) - 1)
        return [self.label_names[column] for column in self.label_rows.columns_of(row)]

    def describe(self, row: int) -> dict[str, Any]:
        """One item as JSON-serialisable values: image path, first text, label names.

        Raises:
            DataError: no such row.
        """
        require_integer(row, 0, "row", most=len(self) - 1)
        image = self.images[row]
        return {
            "image": None if image is None else str(image.absolute()),
            "text": self.texts[row][0],
            "labels": self.label_names_of(row),
        }

    def fingerprint(self) -> str:
        """16 hexadecimal digits of the ids, texts and labels: the identity of the data behind a number."""
        return fingerprint(self.ids, self.texts, self.label_names, self.label_rows)


def _require_texts(field: str, texts: Iterable[Any]) -> None:
    """Refuse what is not text, and text that cannot be written as UTF-8."""
    for text in texts:
        if not isinstance(text, str):
            raise DataError(f"need texts, got {text!r:.60} of type {type(text).__name__}.", field=field)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{text[:40]!r} contains a lone surrogate.", field=field, hint="Fix the source text."
            ) from None


def _require_unique(field: str, names: Sequence[str]) -> None:
    """Refuse duplicates."""
    first: dict[str, int] = {}
    for row, name in enumerate(names):
        if first.setdefault(name, row) != row:
            raise _duplicate(field, name, first[name], row)


def _duplicate(field: str, name: str, first: int, second: int, rows: Sequence[int] = ()) -> DataError:
    """The error of a name that occurs twice; `rows` are the rows of the names in their file."""
    place = f"in rows {rows[first]} and {rows[second]}" if rows else f"at [{first}] and [{second}]"
    row = rows[second] if rows else None
    return DataError(f"duplicate {name!r} {place}; each must be unique.", row=row, field=field)
