"""A paired data set: rows that belong together, an identity that follows the data."""

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


def test_items_are_described_for_people():
    data = dataset()
    assert data.describe(2) == {"image": str(Path("ç.jpg").absolute()), "text": "猫", "labels": ["cat", "dog"]}
    assert data.describe(1) == {"image": None, "text": "a dog", "labels": ["dog"]}


def test_items_without_labels_are_allowed():
    data = dataset(labels=np.zeros((3, 0)), label_names=())
    assert data.labels.shape == (3, 0)
    assert data.label_names_of(0) == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"ids": (), "images": (), "texts": (), "labels": []}, "the data set is empty: it needs at least one item"),
        ({"images": (None, None)}, "images: 2 rows for 3 ids; every item needs its row"),
        ({"texts": (("x",),) * 4}, "texts: 4 rows for 3 ids; every item needs its row"),
        ({"labels": [[1, 0]]}, "labels: 1 rows for 3 ids; every item needs its row"),
        ({"labels": [[1], [0], [1]]}, r"labels: shape \(3, 1\) for 2 label names; need \(items, 2\)"),
        ({"labels": [1, 0, 1]}, r"labels: shape \(3,\) for 2 label names"),
        ({"labels": [[1, 0], [0, 2], [1, 1]]}, "labels: every value must be 0 or 1"),
        ({"labels": [[1, 0], [0, -1], [1, 1]]}, "labels: every value must be 0 or 1"),
        ({"labels": [[1, 0], [0, np.nan], [1, 1]]}, "labels: every value must be 0 or 1"),
        ({"labels": [["1", "0"]] * 3}, "labels: every value must be 0 or 1"),
        ({"ids": ("a", "", "b")}, "ids: row 1 has an empty id. Every item needs a name"),
        ({"ids": ("a", "\ud83d", "b")}, "holds half of a letter"),
        ({"texts": (("x",), ("x", "y\udcff"), ("z",))}, "holds half of a letter"),
        ({"label_names": ("cat", "\ud83d")}, "holds half of a letter"),
        ({"ids": ("a", "b", "a")}, "duplicate id 'a': rows 0 and 2. Each must be unique"),
        ({"label_names": ("cat", "cat")}, "duplicate label name 'cat': rows 0 and 1. Each must be unique"),
    ],
)
def test_data_that_does_not_fit_is_refused_with_a_sentence(changed, sentence):
    with pytest.raises(DataError, match=sentence):
        dataset(**changed)


def test_taking_rows_takes_everything_of_them_in_the_order_given():
    part = dataset().take([2, 0])
    assert part.ids == ("ç", "a")
    assert part.images == (Path("ç.jpg"), Path("a.jpg"))
    assert part.texts == (("猫",), ("a cat",))
    assert part.labels.tolist() == [[1, 1], [1, 0]]
    assert part.label_names == ("cat", "dog")


def test_taking_a_row_twice_is_refused_because_ids_are_unique():
    with pytest.raises(DataError, match="duplicate id 'b'"):
        dataset().take([1, 1])


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
