"""The shared validators of arrays: labels, row numbers, features, text offsets, and the mean of defined values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from multibit.arrays import as_float32, as_labels, check_offsets, mean_of, require_finite, row_numbers
from multibit.errors import DataError

# Labels


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float32, np.float64, list])
def test_labels_of_any_number_type_become_uint8(kind):
    values = [[1, 0, 1], [0, 0, 1]]
    labels = as_labels(values if kind is list else np.array(values, kind))
    assert labels.dtype == np.uint8 and labels.tolist() == values


def test_labels_of_uint8_are_not_copied():
    given = np.array([[1, 0]], np.uint8)
    assert as_labels(given) is given


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_no_labels_are_labels(shape):
    assert as_labels(np.zeros(shape), rows=shape[0], columns=shape[1]).shape == shape


@pytest.mark.parametrize(
    ("labels", "sizes", "found"),
    [
        ([1, 0], {}, "(2,)"),
        (1, {}, "()"),
        (np.zeros((2, 2, 2)), {}, "(2, 2, 2)"),
        (np.zeros((2, 3)), {"rows": 4}, "4 rows"),
        (np.zeros((2, 3)), {"columns": 5}, "5 columns"),
        (np.zeros((2, 3)), {"rows": 2, "columns": 5}, "(2, 3)"),
        ([["a", "b"]], {}, "<U1"),
        ([[None, 1]], {}, "object"),
        ([[1j, 0]], {}, "complex128"),
        ([[1, 0], [0, 2]], {}, "[1, 1] is 2"),
        ([[1, 0.5]], {}, "[0, 1] is 0.5"),
        ([[np.nan, 1]], {}, "[0, 0] is nan"),
        ([[0, -1]], {}, "[0, 1] is -1"),
    ],
)
def test_other_values_and_shapes_of_labels_are_refused(labels, sizes, found):
    with pytest.raises(DataError) as caught:
        as_labels(labels, **sizes)
    assert caught.value.field == "labels" and found in caught.value.problem


def test_invalid_labels_name_their_owner():
    with pytest.raises(DataError) as caught:
        as_labels([[2]], whose="query")
    assert caught.value.field == "query labels"


# Row numbers


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([2, 0, 2], [2, 0, 2]),
        (range(3), [0, 1, 2]),
        (np.array([1], np.uint8), [1]),
        ([], []),
        (np.zeros(0), []),
        ([True, False, True], [0, 2]),
        (np.zeros(3, bool), []),
    ],
)
def test_rows_are_numbers_or_a_mask(rows, expected):
    index = row_numbers(rows, items=3)
    assert index.dtype == np.int64 and index.tolist() == expected


@pytest.mark.parametrize(
    "rows",
    [[3], [-1], [0, 1.0], [True, False], [True] * 4, [[0, 1]], 1, ["0"], [None], np.array([2**63], np.uint64)],
    ids=str,
)
def test_other_rows_are_refused(rows):
    with pytest.raises(DataError) as caught:
        row_numbers(rows, items=3)
    assert caught.value.field == "rows" and "0..2" in caught.value.problem


def test_a_long_list_of_invalid_rows_is_summarised():
    with pytest.raises(DataError) as caught:
        row_numbers(np.arange(10_000), items=3)
    assert "9999" in caught.value.problem and len(caught.value.problem) < 200


# Finite values and float32


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_with_its_row_and_column(value):
    array = np.zeros((3, 4))
    array[2, 1] = value
    require_finite(array[:2], "image features")
    for check in (require_finite, as_float32):
        with pytest.raises(DataError) as caught:
            check(array, "image features")
        assert caught.value.field == "image features" and f"[2, 1] is {value}" in caught.value.problem


def test_rows_have_the_numbers_of_their_source():
    array = np.zeros((2, 3))
    array[1, 2] = np.nan
    with pytest.raises(DataError) as caught:
        require_finite(array, "text features", rows=np.array([10, 77]))
    assert "[77, 2]" in caught.value.problem


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64])
def test_features_become_float32(kind):
    single = as_float32(np.array([[1, -2], [0, 3]], kind), "features")
    assert single.dtype == np.float32 and single.tolist() == [[1, -2], [0, 3]]


def test_features_of_float32_are_not_copied():
    array = np.ones((2, 2), np.float32)
    assert as_float32(array, "features") is array


@pytest.mark.parametrize(("row", "column"), [([1, 1e300], 1), ([1e-300, 0], 0)])
def test_values_that_float32_cannot_represent_are_refused(row, column):
    with pytest.raises(DataError) as caught:
        as_float32(np.array([[1, 1], row]), "features")
    assert caught.value.field == "features" and f"[1, {column}]" in caught.value.problem
    assert caught.value.hint


def test_small_values_next_to_large_ones_may_become_zero():
    assert as_float32(np.array([[1.0, 1e-300]]), "features").tolist() == [[1, 0]]


# Text offsets


@pytest.mark.parametrize(("offsets", "texts"), [([0], 0), ([0, 1], 1), ([0, 2, 3, 7], 7)])
def test_offsets_give_every_item_text_rows(offsets, texts):
    check_offsets(np.array(offsets), items=len(offsets) - 1, text_rows=texts)


@pytest.mark.parametrize(
    ("offsets", "found"),
    [
        ([0, 3], "(2,)"),
        ([[0, 1, 3]], "(1, 3)"),
        ([0.0, 1.0, 3.0], "float64"),
        ([1, 2, 3], "1 to 3"),
        ([0, 1, 2], "0 to 2"),
        ([0, 0, 3], "item 0"),
        ([0, 3, 3], "item 1"),
        ([0, 4, 3], "item 1"),
    ],
)
def test_other_offsets_are_refused(offsets, found):
    with pytest.raises(DataError) as caught:
        check_offsets(np.array(offsets), items=2, text_rows=3)
    assert caught.value.field == "text offsets" and found in caught.value.problem


# Means


def test_a_mean_is_that_of_the_defined_values():
    assert mean_of([1, np.nan, 2]) == 1.5
    assert mean_of(np.array([[0.25, 0.75], [np.nan, np.nan]])) == 0.5
    assert math.isnan(mean_of([np.nan])) and math.isnan(mean_of([]))
