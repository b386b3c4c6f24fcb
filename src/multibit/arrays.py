"""Shared array types, and validators of labels, row numbers, features and text offsets."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.errors import DataError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Rows = NDArray[np.int64]
Labels = NDArray[np.uint8]
Float = TypeVar("Float", bound=np.floating[Any])

CHECKED = 1024  # rows of labels that are checked at once


def as_labels(labels: ArrayLike, *, rows: int | None = None, columns: int | None = None, whose: str = "") -> Labels:
    """Multi-hot labels as uint8, without a copy where they are uint8 already.

    Args:
        labels: (N, C), every value 0 or 1. rows: required N. columns: required C; any when None.
        whose: owner of the labels in the error, such as "query".

    Raises:
        DataError: not a matrix of numbers, another shape, or a value other than 0 and 1; names its row and column.

    Example:
        >>> as_labels([[1, 0], [0, 2]])
        Traceback (most recent call last):
            ...
        multibit.errors.DataError: labels: [1, 1] is 2; every value must be 0 or 1.
    """
    array, name = np.asarray(labels), f"{whose} labels".strip()
    wanted = tuple("any" if size is None else size for size in (rows, columns))
    fits = array.ndim == 2 and all(size in ("any", found) for size, found in zip(wanted, array.shape, strict=True))
    if not fits:
        needed = f"{'N' if rows is None else rows} rows, {'C' if columns is None else columns} columns"
        raise DataError(f"need a matrix of {needed}, got shape {array.shape}.", field=name)
    if array.dtype.kind not in "biuf":
        raise DataError(f"need numbers 0 and 1, got values of type {array.dtype}.", field=name)
    for start in range(0, len(array), CHECKED):  # a mask of all would be as large as the labels
        values = array[start : start + CHECKED]
        wrong = (values != 0) & (values != 1)
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise DataError(
                f"[{start + row}, {column}] is {values[row, column]}; every value must be 0 or 1.", field=name
            )
    return array.astype(np.uint8, copy=False)


def row_numbers(rows: ArrayLike, items: int) -> Rows:
    """Row numbers as int64, given as integers or as a mask (items,).

    Raises:
        DataError: rows that are neither integers in 0..items-1 nor a mask.

    Example:
        >>> row_numbers([True, False, True], items=3)
        array([0, 2])
    """
    index = np.asarray(rows)
    if index.dtype == np.bool_ and index.shape == (items,):
        return np.flatnonzero(index)
    whole = index.ndim == 1 and (not index.size or index.dtype.kind in "iu")
    if not whole or (index.size and (index.min() < 0 or index.max() >= items)):
        shown = index if index.size <= 8 else f"{index.dtype} {index.shape} from {index.min()} to {index.max()}"
        raise DataError(f"need integers in 0..{items - 1} or a mask of {items}, got {shown}.", field="rows")
    return index.astype(np.int64)


def require_finite(array: NDArray[Any], what: str, rows: Rows | None = None) -> None:
    """Refuse NaN and infinity.

    Args:
        array: (n, d). what: human-readable name of the array. rows: row numbers for the error; 0..n-1 when None.

    Raises:
        DataError: names the row and column of the first such value.
    """
    wrong = ~np.isfinite(array)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        name = row if rows is None else rows[row]
        raise DataError(f"[{name}, {column}] is {array[row, column]}; every value must be finite.", field=what)


def as_float32(array: NDArray[Any], what: str, rows: Rows | None = None) -> NDArray[np.float32]:
    """Features as float32, the input type of the networks.

    Args:
        array: (n, d). what, rows: as in `require_finite`.

    Raises:
        DataError: a value that is not finite, or that float32 cannot represent; names its row and column.
    """
    require_finite(array, what, rows)
    with np.errstate(over="ignore", under="ignore"):
        single = np.asarray(array, np.float32)
    if array.dtype.itemsize > single.dtype.itemsize:
        lost = ~np.isfinite(single) | ((single == 0).all(axis=-1, keepdims=True) & (array != 0))
        if lost.any():
            row, column = np.argwhere(lost)[0]
            name = row if rows is None else rows[row]
            raise DataError(
                f"[{name}, {column}] is {array[row, column]}, which float32 cannot represent.",
                field=what,
                hint="Rescale the features: only the direction of a row matters.",
            )
    return single


def as_matrix(values: ArrayLike, columns: int, what: str) -> NDArray[Any]:
    """The values as an array (n, columns).

    Args:
        values: of any type. columns: required. what: human-readable name of the array.

    Raises:
        DataError: another shape; names both.
    """
    array = np.asarray(values)
    if array.ndim != 2 or array.shape[1] != columns:
        raise DataError(f"need shape (n, {columns}), got {array.shape}.", field=what)
    return array


def unit_rows(rows: NDArray[Float]) -> NDArray[Float]:
    """Rows (n, d) of floats, each scaled to length 1; rows of zeros unchanged.

    Example:
        >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
        array([[0.6, 0.8],
               [0. , 0. ]])
    """
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: NDArray[Float] = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)
    return unit


def check_offsets(offsets: NDArray[Any], items: int, text_rows: int) -> None:
    """Refuse text offsets that do not assign one or more text rows to every item.

    Raises:
        DataError: another shape or type, wrong first or last offset, or an item without a text row.
    """
    if offsets.shape != (items + 1,) or offsets.dtype.kind not in "iu":
        raise DataError(
            f"need {items + 1} integers for {items} items, got {offsets.dtype} {offsets.shape}.", field="text offsets"
        )
    if offsets[0] != 0 or offsets[-1] != text_rows:
        raise DataError(
            f"run from {offsets[0]} to {offsets[-1]}, the text features from 0 to {text_rows}.", field="text offsets"
        )
    if items and np.diff(offsets).min() < 1:
        raise DataError(f"item {int(np.diff(offsets).argmin())} has no text row.", field="text offsets")


def mean_of(values: ArrayLike) -> float:
    """Mean of the values that are not NaN; NaN if there are none.

    Example:
        >>> mean_of([0.5, np.nan, 1.0])
        0.75
    """
    array = np.asarray(values, np.float64)
    defined = array[~np.isnan(array)]
    return float(defined.mean()) if len(defined) else float("nan")
