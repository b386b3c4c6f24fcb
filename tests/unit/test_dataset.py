"""A paired data set: matching rows, and a fingerprint of the content."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from multibit import PairedDataset
from multibit.errors import DataError

GOOD = {
    "ids": ("a", "b", "ç"),
    "images": (Path("a.jpg"), None, Path("ç.jpg")),
    "texts": (("a cat",), ("a dog", "un chien"), ("猫",)),
    "labels": [[1, 0], [0, 1], [1, 1]],
    "label_names": ("cat", "dog"),
}


def dataset(**changed) -> PairedDataset:
    return PairedDataset(**{**GOOD, **changed})


@pytest.mark.parametrize("dtype", ["u1", "i8", "f4", "f8", "?"])
def test_labels_of_any_number_type_become_uint8(dtype):
    data = dataset(labels=np.array(GOOD["labels"], dtype))
    assert data.labels.dtype == np.uint8
    assert data.labels.tolist() == GOOD["labels"]


def test_items_are_described_as_plain_values():
    data = dataset()
    assert data.describe(2) == {"image": str(Path("ç.jpg").absolute()), "text": "猫", "labels": ["cat", "dog"]}
    assert data.describe(1) == {"image": None, "text": "a dog", "labels": ["dog"]}


def test_items_without_labels_are_allowed():
    data = dataset(labels=np.zeros((3, 0)), label_names=())
    assert data.labels.shape == (3, 0)
    assert data.label_names_of(0) == []


@pytest.mark.parametrize(
    ("changed", "field", "found"),
    [
        ({"ids": (), "images": (), "texts": (), "labels": []}, "ids", "empty"),
        ({"images": (None, None)}, "images", "2 rows for 3 ids"),
        ({"texts": (("x",),) * 4}, "texts", "4 rows for 3 ids"),
        ({"labels": [[1, 0]]}, "labels", "(1, 2)"),
        ({"labels": [[1], [0], [1]]}, "labels", "(3, 1)"),
        ({"labels": [1, 0, 1]}, "labels", "(3,)"),
        ({"labels": [[1, 0], [0, 2], [1, 1]]}, "labels", "[1, 1] is 2"),
        ({"labels": [[1, 0], [0, -1], [1, 1]]}, "labels", "[1, 1] is -1"),
        ({"labels": [[1, 0], [0, np.nan], [1, 1]]}, "labels", "[1, 1] is nan"),
        ({"labels": [["1", "0"]] * 3}, "labels", "<U1"),
        ({"ids": ("a", "", "b")}, "ids", "[1]"),
        ({"ids": ("a", "\ud83d", "b")}, "ids", "surrogate"),
        ({"texts": (("x",), ("x", "y\udcff"), ("z",))}, "texts", "surrogate"),
        ({"label_names": ("cat", "\ud83d")}, "label_names", "surrogate"),
        ({"ids": ("a", "b", "a")}, "ids", "'a' at [0] and [2]"),
        ({"label_names": ("cat", "cat")}, "label_names", "'cat' at [0] and [1]"),
    ],
)
def test_data_that_does_not_match_is_refused_with_the_field(changed, field, found):
    with pytest.raises(DataError) as caught:
        dataset(**changed)
    assert (caught.value.file, caught.value.row, caught.value.field) == (None, None, field)
    assert found in caught.value.problem


def test_an_unknown_label_of_an_item_is_refused_with_its_row_in_the_source():
    items = [("a", None, ["x"], ["cat"]), ("b", None, ["x"], ["fish"])]
    for rows, row in (((), None), ((2, 7), 7)):
        with pytest.raises(DataError) as caught:
            PairedDataset.of_items(items, ["cat"], rows=rows)
        assert (caught.value.row, caught.value.field) == (row, "labels")
        assert "'fish'" in caught.value.problem and "`label_names`" in caught.value.hint


def test_a_duplicate_id_of_an_item_is_refused_with_its_rows_in_the_source():
    with pytest.raises(DataError) as caught:
        PairedDataset.of_items([("a", None, [], [])] * 2, rows=(2, 7))
    assert (caught.value.row, caught.value.field) == (7, "ids") and "rows 2 and 7" in caught.value.problem


def test_taking_rows_takes_everything_of_them_in_the_order_given():
    part = dataset().take([2, 0])
    assert part.ids == ("ç", "a")
    assert part.images == (Path("ç.jpg"), Path("a.jpg"))
    assert part.texts == (("猫",), ("a cat",))
    assert part.labels.tolist() == [[1, 1], [1, 0]]
    assert part.label_names == ("cat", "dog")


def test_taking_a_row_twice_is_refused_because_ids_are_unique():
    with pytest.raises(DataError) as caught:
        dataset().take([1, 1])
    assert caught.value.field == "ids" and "'b'" in caught.value.problem


@pytest.mark.parametrize("rows", [[3], [-1], [0.0], [True, False], [[0]]])
def test_taking_rows_that_do_not_exist_is_refused(rows):
    with pytest.raises(DataError) as caught:
        dataset().take(rows)
    assert caught.value.field == "rows"


def test_taking_by_a_mask_takes_the_marked_items():
    assert dataset().take(np.array([False, False, True])).ids == ("ç",)


@pytest.mark.parametrize(
    "changed",
    [
        {"ids": ("a", "b", "c")},
        {"ids": ("b", "a", "ç")},
        {"texts": (("a cat",), ("a dog", "un chien"), ("猫 ",))},
        {"texts": (("a cat",), ("a dog un chien",), ("猫",))},
        {"texts": (("a cat", "a dog"), ("un chien",), ("猫",))},
        {"labels": [[1, 0], [0, 1], [1, 0]]},
        {"label_names": ("cat", "bird")},
    ],
    ids=["an id", "order of ids", "a text", "joined texts", "a text moved", "a label", "a label name"],
)
def test_the_fingerprint_changes_with(changed):
    assert dataset(**changed).fingerprint() != dataset().fingerprint()


def test_the_fingerprint_stays_when_the_folder_moves_or_the_label_type_changes():
    moved = dataset(images=(None, Path("elsewhere.jpg"), None), labels=np.array(GOOD["labels"], bool))
    assert moved.fingerprint() == dataset().fingerprint()


def test_the_fingerprint_is_the_same_in_every_process():
    code = (
        "from multibit import PairedDataset as P;"
        "print(P(('a','b','ç'),(None,)*3,(('a cat',),('a dog','un chien'),('猫',)),"
        "[[1,0],[0,1],[1,1]],('cat','dog')).fingerprint())"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONUTF8": "1"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == dataset().fingerprint()
