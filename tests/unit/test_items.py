"""Coded items: codes of both modalities with labels, and the directions between the modalities."""

from __future__ import annotations

import numpy as np
import pytest

from multibit.codes import DIRECTIONS, MODALITIES, CodedItems, Codes
from multibit.codes.items import DIRECTION_NAMES, length_near
from multibit.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
RELAXED = {"image": RNG.uniform(-1, 1, (5, 20)), "text": RNG.uniform(-1, 1, (5, 20))}
LABELS = RNG.integers(0, 2, (5, 3))


def made() -> CodedItems:
    return CodedItems.binarize(RELAXED, LABELS)


def test_items_are_coded_by_the_signs_of_their_relaxed_values():
    items = made()
    for modality in MODALITIES:
        assert items.codes(modality) == Codes.binarize(RELAXED[modality])
        assert items.relaxed[modality].dtype == np.float32
        np.testing.assert_array_equal(items.relaxed[modality], RELAXED[modality].astype(np.float32))
    assert len(items) == 5 and repr(items) == "CodedItems(5 items, 20 bits)"


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float64])
def test_labels_of_any_number_type_become_uint8(kind):
    items = CodedItems.binarize(RELAXED, LABELS.astype(kind))
    assert items.labels.dtype == np.uint8 and items.labels.tolist() == LABELS.tolist()


def test_other_values_of_labels_are_refused():
    with pytest.raises(DataError) as caught:
        CodedItems.binarize(RELAXED, LABELS * 2)
    assert caught.value.field == "labels"


def test_counts_that_differ_are_refused_with_all_counts():
    image, text = Codes.binarize(RELAXED["image"]), Codes.binarize(RELAXED["text"][:4])
    with pytest.raises(DataError) as caught:
        CodedItems(image, text, LABELS[:3])
    assert all(count in caught.value.problem for count in ("5 image", "4 text", "3 label"))
    with pytest.raises(DataError) as caught:
        CodedItems(image, image, LABELS, {"image": np.zeros((2, 20), np.float32)})
    assert "2 relaxed" in caught.value.problem


@pytest.mark.parametrize("rows", [[3, 0], [], np.arange(5) % 2 == 0, range(5)])
def test_taking_rows_takes_codes_labels_and_relaxed_values(rows):
    items, index = made(), np.arange(5)[np.asarray(rows, None if len(rows) else int)]
    taken = items.take(rows)
    assert len(taken) == len(index)
    for modality in MODALITIES:
        assert taken.codes(modality) == items.codes(modality).take(index)
        np.testing.assert_array_equal(taken.relaxed[modality], items.relaxed[modality][index])
    np.testing.assert_array_equal(taken.labels, items.labels[index])


@pytest.mark.parametrize("rows", [[5], [-1], [0.5], [True, False]])
def test_rows_that_do_not_exist_are_refused(rows):
    with pytest.raises(DataError) as caught:
        made().take(rows)
    assert caught.value.field == "rows"


def test_codes_without_relaxed_values_can_be_taken():
    items = made()
    bare = CodedItems(items.image, items.text, items.labels)
    assert bare.relaxed == {} and bare.take([1]).relaxed == {}


@pytest.mark.parametrize("modality", ["picture", "", "Image"])
def test_an_unknown_modality_is_refused(modality):
    with pytest.raises(ConfigError) as caught:
        made().codes(modality)
    assert caught.value.option == "modality" and repr(modality) in caught.value.problem


def test_the_two_directions_search_from_one_modality_to_the_other():
    assert DIRECTIONS == {"i2t": ("image", "text"), "t2i": ("text", "image")}
    assert DIRECTION_NAMES == {"i2t": "image-to-text", "t2i": "text-to-image"}


@pytest.mark.parametrize(
    ("lengths", "wanted", "nearest"), [((16, 64), 64, 64), ((48, 80), 64, 48), ([128], 1, 128), ((8, 16), 100, 16)]
)
def test_the_nearest_length_is_the_shorter_of_two(lengths, wanted, nearest):
    assert length_near(lengths, wanted) == nearest
