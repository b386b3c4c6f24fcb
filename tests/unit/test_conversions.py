"""What other tools write where an id, a text, a label or a path is expected: read by its convention, or refused."""

import math

import numpy as np
import pytest

from multibit.data.values import id_of, labels_of, mixes_scripts, path_of, texts_of
from multibit.errors import DataError


@pytest.mark.parametrize(
    ("value", "expected"), [("a/b", "a/b"), (7, "7"), (101.0, "101"), (np.int32(4), "4"), (b"key", "key"), (-3, "-3")]
)
def test_texts_and_whole_numbers_are_ids(value, expected):
    assert id_of(value) == expected


@pytest.mark.parametrize("value", [None, "", 1.5, math.nan, math.inf, True, {"id": 1}, ["a"], b"\xff", np.zeros(2)])
def test_any_other_id_is_refused_with_row_and_field(value):
    with pytest.raises(DataError) as caught:
        id_of(value, row=3, field="key")
    assert (caught.value.row, caught.value.field) == (3, "key")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ()),
        ("a", ("a",)),
        (["a", None, "b"], ("a", "b")),
        ({"raw": "a", "tokens": ["a"]}, ("a",)),
        ([{"raw": "a", "sentid": 1}, {"raw": "b", "sentid": 2}], ("a", "b")),
        ({"raw": ["a", "b"], "sentid": [1, 2]}, ("a", "b")),
        ("café".encode(), ("café",)),
        (np.array(["a", "b"]), ("a", "b")),
    ],
)
def test_texts_are_read_from_lists_and_structures(value, expected):
    assert texts_of(value) == expected


@pytest.mark.parametrize("value", [4.2, 0, True, {"en": "a", "fr": "b"}, {}, [["a", 3]], b"\xff\xfe"])
def test_what_is_no_text_is_refused(value):
    with pytest.raises(DataError) as caught:
        texts_of(value, row=2)
    assert caught.value.row == 2 and caught.value.field.startswith("text")


@pytest.mark.parametrize("value", [1.0, {"path": "a", "url": "b"}, ["a.jpg"], "a\0b"])
def test_what_is_no_path_is_refused(value):
    with pytest.raises(DataError):
        path_of(value, row=1)


@pytest.mark.parametrize(
    ("values", "options", "names", "columns"),
    [
        (["cat", None, ["dog", "cat"], ""], {}, [("cat",), (), ("dog", "cat"), ()], None),
        ([0, 1, -1], {"class_names": ["cat", "dog"]}, [("cat",), ("dog",), ()], None),
        ([[1, 17], [3]], {}, [("1", "17"), ("3",)], None),
        ([2, 0.0], {"label_names": "abc"}, [("c",), ("a",)], ("a", "b", "c")),
        ([[0, 1, 0], [1.0, 0, 1]], {}, [("label 1",), ("label 0", "label 2")], ("label 0", "label 1", "label 2")),
        ([[True, False], None], {"label_names": ["x", "y"]}, [("x",), ()], ("x", "y")),
        ([[0, 1], [1, 0]], {"class_names": ["cat", "dog"]}, [("cat", "dog"), ("dog", "cat")], None),
        (np.eye(2, dtype=int), {}, [("label 0",), ("label 1",)], ("label 0", "label 1")),
    ],
)
def test_names_class_numbers_and_vectors_are_labels(values, options, names, columns):
    assert labels_of(values, **options) == (names, columns)


@pytest.mark.parametrize(
    ("values", "options", "row"),
    [
        (["a", 0.5], {}, 8),
        ([True, False], {}, 7),
        ([{"bbox": 1}, "a"], {}, 7),
        ([0, 2], {"label_names": ["a", "b"]}, 8),
        ([[0, 1], [1, 1]], {"label_names": ["a"]}, None),
        (["a", [["b"]]], {}, 8),
    ],
)
def test_any_other_label_is_refused_with_its_row(values, options, row):
    with pytest.raises(DataError) as caught:
        labels_of(values, rows=[7, 8], **options)
    assert (caught.value.row, caught.value.field) == (row, "labels")


@pytest.mark.parametrize(
    ("text", "mixed"),
    [
        ("une forêt près de Zürich", False),
        ("собака и cat", False),
        ("β-carotene 5 µm", False),
        ("שָׁלוֹם", False),
        ("猫狗".encode("gbk").decode("latin-1"), False),  # one script, so nothing tells
        ("\u04bb\u05bb\u00e8", True),
    ],
)
def test_letters_of_several_scripts_in_one_word_are_noticed(text, mixed):
    assert mixes_scripts(text) is mixed
