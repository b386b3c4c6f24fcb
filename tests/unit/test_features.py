"""Feature vectors: ready-made ones from .npz, stores on disk, and pairs for training."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from multibit import FeatureStore, PairedDataset, Pairs
from multibit.arrays import require_finite
from multibit.errors import DataError, FormatError, MismatchError
from multibit.features import store as store_module
from multibit.features.recipe import EncoderRecipe, Recipe
from multibit.features.shards import Shard, ShardedRows

LABELS = np.array([[1, 0], [0, 1], [1, 1]], np.uint8)
IMAGE = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
TEXT = np.arange(10, dtype=np.float32).reshape(5, 2) / 4
OFFSETS = np.array([0, 1, 4, 5])
SHARD_FILE, ITEMS_FILE = "shard-00000.safetensors", "items-00001.parquet"
MEAN_TEXT = [[0.0, 0.25], [1.0, 1.25], [2.0, 2.25]]


def npz(folder: Path, **changed) -> Path:
    """A good .npz file of three items and five texts, with changes; None removes a key."""
    arrays = {"image": IMAGE, "text": TEXT, "text_offsets": OFFSETS, "labels": LABELS, **changed}
    path = folder / "ready.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def several_texts() -> FeatureStore:
    """A store that uses every feature: images, several texts, skipped items, two recipes."""
    data = PairedDataset(
        ("a", "ü", "3"), (Path("a.jpg").absolute(), None, Path("日本.png").absolute()),
        (("x",), (" y | z ", "[1", ""), ("w",)), LABELS, ("z last", "a|first"),
    )  # fmt: skip
    recipe = Recipe(
        EncoderRecipe("eyes", "w1", 4, "square", {"torch": "2.4"}), EncoderRecipe("ears", "w2", 2, "lower case")
    )
    return FeatureStore(data, IMAGE, TEXT, OFFSETS, recipe, (("lost", "lost.jpg: no such image."),), 1)


# Ready-made features


def test_an_npz_needs_only_features_and_labels(tmp_path):
    store = FeatureStore.open(npz(tmp_path, text=TEXT[:3], text_offsets=None))
    assert store.dataset.ids == ("0", "1", "2")
    assert store.dataset.label_names == ("label 0", "label 1")
    assert store.dataset.texts == (("",),) * 3
    assert store.recipe.image == EncoderRecipe("ready-made", "", 4, "unknown")
    assert store.recipe.text.dimension == 2
    assert store.source == tmp_path / "ready.npz"
    pairs = store.take([2, 0])
    assert np.array_equal(pairs.image, IMAGE[[2, 0]]) and np.array_equal(pairs.text, TEXT[[2, 0]])
    assert pairs.labels.tolist() == [[1, 1], [1, 0]]


def test_an_npz_may_name_everything(tmp_path):
    names = {"ids": ["a", "ü", "日"], "label_names": ["cat", "dog"], "texts": ["x", "y|z", "語"], "recipe": "CLIP B/32"}
    store = FeatureStore.open(npz(tmp_path, **names))
    assert store.dataset.ids == ("a", "ü", "日")
    assert store.dataset.label_names == ("cat", "dog")
    assert store.dataset.texts == (("x",), ("y|z",), ("語",))
    assert store.recipe.image.name == store.recipe.text.name == "CLIP B/32"


def test_ids_of_an_npz_may_be_numbers(tmp_path):
    assert FeatureStore.open(npz(tmp_path, ids=[7, 10, 2])).dataset.ids == ("7", "10", "2")


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_features_of_any_float_type_are_given_as_float32(tmp_path, dtype):
    store = FeatureStore.open(npz(tmp_path, image=IMAGE.astype(dtype), text=TEXT.astype(dtype)))
    pairs = store.take([1])
    assert store.image.dtype == dtype
    assert pairs.image.dtype == pairs.text.dtype == pairs.mean_text.dtype == np.float32
    assert np.array_equal(pairs.image, IMAGE[[1]]) and np.array_equal(pairs.text, TEXT[1:4])


@pytest.mark.parametrize(
    ("changed", "field", "found"),
    [
        ({"labels": None}, "labels", "text_offsets (4,)"),
        ({"image": None, "text": None, "labels": None}, "image, text, labels", "text_offsets (4,)"),
        ({"labels": LABELS[:2]}, "image features", "3 rows for 2"),
        ({"labels": LABELS[0]}, "labels", "(2,)"),
        ({"image": IMAGE[:2]}, "image features", "2 rows for 3"),
        ({"image": IMAGE[0]}, "image", "(4,)"),
        ({"image": IMAGE[:, :0]}, "image features", "(3, 0)"),
        ({"image": IMAGE.astype(int)}, "image features", "int64"),
        ({"text": TEXT.astype(complex)}, "text features", "complex128"),
        ({"text_offsets": None}, "text", "5 rows for 3"),
        ({"text_offsets": [0, 5]}, "text offsets", "(2,)"),
        ({"ids": ["a", "b"]}, "ids", "2 ids for 3"),
        ({"ids": [["a"], ["b"], ["c"]]}, "ids", "(3, 1)"),
        ({"ids": np.array([b"a", b"\xff", b"b"])}, "ids", "UTF-8"),
        ({"label_names": np.array([b"\xff", b"b"])}, "label_names", "UTF-8"),
    ],
)
def test_an_npz_that_does_not_fit_is_refused_with_file_and_field(tmp_path, changed, field, found):
    path = npz(tmp_path, **changed)
    with pytest.raises(DataError) as caught:
        FeatureStore.open(path)
    assert (caught.value.file, caught.value.field) == (path, field)
    assert found in caught.value.problem


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": LABELS * 2},
        {"ids": ["a", "b", "a"]},
        {"ids": ["a", "", "b"]},
        {"texts": ["a"]},
        {"label_names": ["a"]},
        {"label_names": ["a", "a"]},
        {"ids": np.array([{}, 1, 2], object)},
        {"image": IMAGE[:0], "text": TEXT[:0], "text_offsets": None, "labels": LABELS[:0]},
    ],
    ids=["labels", "duplicate id", "empty id", "texts", "label names", "duplicate label", "objects", "no items"],
)
def test_an_npz_that_is_not_a_data_set_is_refused_with_the_file(tmp_path, changed):
    path = npz(tmp_path, **changed)
    with pytest.raises(DataError) as caught:
        FeatureStore.open(path)
    assert str(caught.value).startswith(str(path))


def test_an_npz_without_any_array_is_refused(tmp_path):
    np.savez(tmp_path / "ready.npz")
    with pytest.raises(DataError) as caught:
        FeatureStore.open(tmp_path / "ready.npz")
    assert (caught.value.file, caught.value.field) == (tmp_path / "ready.npz", "image, text, labels")


def test_an_npz_truncated_anywhere_is_refused(tmp_path):
    path = npz(tmp_path)
    raw = path.read_bytes()
    for length in range(0, len(raw), 37):
        path.write_bytes(raw[:length])
        with pytest.raises(DataError) as caught:
            FeatureStore.open(path)
        assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("content", [None, b"hello", b"\x93NUMPY"])
def test_a_file_that_is_not_an_npz_is_refused(tmp_path, content):
    path = tmp_path / "ready.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        FeatureStore.open(path)
    assert str(caught.value).startswith(str(path))


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "items.csv").write_text("id")
    with pytest.raises(DataError) as caught:
        FeatureStore.open(str(tmp_path / "items.csv"))
    assert caught.value.file == tmp_path / "items.csv"


@pytest.mark.parametrize("changed", [{"image": np.float32(1)}, {"text": np.float32(1)}, {"ids": np.array("a")}])
def test_a_single_number_for_an_array_is_refused(tmp_path, changed):
    with pytest.raises(DataError) as caught:
        FeatureStore.open(npz(tmp_path, **changed))
    assert (caught.value.file, caught.value.field) == (tmp_path / "ready.npz", *changed)


@pytest.mark.parametrize(
    "offsets",
    [[0, 1, 4, 4], [0, 1, 2, 3], [1, 2, 4, 5], [0, 1, 4, 9], [0, 4, 1, 5], [0, 1, 1, 5], ["a", "b", "c", "d"]],
    ids=["an item without text", "rows left over", "first row skipped", "beyond", "falling", "empty", "letters"],
)
def test_text_offsets_that_do_not_cover_the_texts_are_refused(tmp_path, offsets):
    with pytest.raises(DataError) as caught:
        FeatureStore.open(npz(tmp_path, text_offsets=offsets))
    assert (caught.value.file, caught.value.field) == (tmp_path / "ready.npz", "text offsets")


def test_names_stored_as_bytes_are_read_as_text(tmp_path):
    assert FeatureStore.open(npz(tmp_path, ids=np.array([b"a", b"b", b"c"]))).dataset.ids == ("a", "b", "c")


# Pairs


def test_pairs_take_all_texts_of_the_rows_in_the_order_given():
    pairs = several_texts().take([2, 1])
    assert np.array_equal(pairs.image, IMAGE[[2, 1]])
    assert np.array_equal(pairs.text, TEXT[[4, 1, 2, 3]])
    assert pairs.offsets.tolist() == [0, 1, 4]
    assert pairs.labels.tolist() == LABELS[[2, 1]].tolist()


def test_the_mean_text_is_the_mean_of_each_items_texts():
    assert several_texts().take([0, 1, 2]).mean_text == pytest.approx(np.array(MEAN_TEXT))
    assert several_texts().take([1]).mean_text == pytest.approx(np.array(MEAN_TEXT)[[1]])


def test_the_mean_of_one_text_is_the_text_itself(planted_pairs):
    assert planted_pairs.mean_text is planted_pairs.text


def test_random_rows_of_random_texts_come_out_as_a_plain_loop_finds_them(planted_store):
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 5, len(planted_store))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    text = rng.normal(size=(offsets[-1], 3))
    store = FeatureStore(planted_store.dataset, planted_store.image, text, offsets, planted_store.recipe)
    rows = rng.permutation(len(store))[:50]
    expected = [text[offsets[row] : offsets[row + 1]].mean(axis=0) for row in rows]
    assert store.take(rows).mean_text == pytest.approx(np.array(expected), abs=1e-6)


def test_a_mask_takes_the_rows_where_it_is_true():
    assert np.array_equal(several_texts().take([True, False, True]).text, several_texts().take([0, 2]).text)


@pytest.mark.parametrize("rows", [[3], [-1], [0.0], [True, False], [[0, 1]], ["0"]])
def test_rows_that_do_not_exist_are_refused(rows):
    with pytest.raises(DataError) as caught:
        several_texts().take(rows)
    assert caught.value.field == "rows" and "0..2" in caught.value.problem


@pytest.mark.parametrize("rows", [[], np.array([], int)])
def test_no_rows_are_no_pairs(rows):
    pairs = several_texts().take(rows)
    assert len(pairs) == 0 and pairs.image.shape == (0, 4) and pairs.mean_text.shape == (0, 2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("modality", ["image", "text"])
def test_a_value_that_is_not_finite_is_refused_with_row_and_column(modality, value):
    arrays = {"image": IMAGE.copy(), "text": TEXT.copy()}
    arrays[modality][2, 1] = value
    with pytest.raises(DataError) as caught:
        Pairs(arrays["image"], arrays["text"], OFFSETS, LABELS)
    assert caught.value.field == f"{modality} features" and f"[2, 1] is {value}" in caught.value.problem


@pytest.mark.parametrize("modality", ["image", "text"])
def test_a_value_that_is_not_finite_is_named_by_its_file_and_its_row_in_it(tmp_path, modality):
    arrays = {"image": IMAGE.copy(), "text": TEXT.copy()}
    arrays[modality][-1, 1] = np.nan
    row = len(arrays[modality]) - 1
    with pytest.raises(DataError) as caught:
        FeatureStore.open(npz(tmp_path, **arrays)).take([2, 0])
    assert (caught.value.file, caught.value.field) == (tmp_path / "ready.npz", f"{modality} features")
    assert f"[{row}, 1] is nan" in caught.value.problem


@pytest.mark.parametrize("value", [1e300, -1e39, 1e-60])
def test_a_row_that_float32_cannot_represent_is_named_wherever_it_is_read(tmp_path, value):
    image = IMAGE.astype(np.float64)
    image[2] = value
    store = FeatureStore.open(npz(tmp_path, image=image))
    for read in (lambda: store.take([2, 0]), store.require_finite):
        with pytest.raises(DataError) as caught:
            read()
        assert (caught.value.file, caught.value.field) == (tmp_path / "ready.npz", "image features")
        assert f"[2, 0] is {value}" in caught.value.problem
    with pytest.raises(DataError) as caught:
        Pairs(image, TEXT, OFFSETS, LABELS)
    assert caught.value.field == "image features" and f"[2, 0] is {value}" in caught.value.problem


def test_the_mean_of_texts_is_right_even_if_their_sum_overflows():
    text = np.full((2, 3), 3e38, np.float32)
    pairs = Pairs(np.ones((1, 2), np.float32), text, np.array([0, 2]), np.ones((1, 1), np.uint8))
    np.testing.assert_array_equal(pairs.mean_text, text[:1])


def test_a_value_that_is_not_finite_is_found_in_any_row_and_numbered_as_asked():
    for row in range(10):
        wrong = np.zeros((10, 3))
        wrong[row, 2] = np.nan
        for rows, number in ((None, row), (np.arange(100, 110), row + 100)):
            with pytest.raises(DataError) as caught:
                require_finite(wrong, "x", rows)
            assert caught.value.field == "x" and f"[{number}, 2] is nan" in caught.value.problem


@pytest.mark.parametrize(
    ("changed", "field", "found"),
    [
        ({"image": IMAGE[:2]}, "features", "2 image rows and 3 label rows"),
        ({"text": TEXT[:4]}, "text offsets", "4"),
        ({"labels": LABELS[:2]}, "features", "3 image rows and 2 label rows"),
        ({"labels": LABELS * 2}, "labels", "[0, 0] is 2"),
        ({"labels": LABELS[:, 0]}, "labels", "(3,)"),
        ({"offsets": np.array([0, 5])}, "text offsets", "(2,)"),
        ({"offsets": np.array([0, 1, 1, 5])}, "text offsets", "item 1"),
        ({"offsets": np.array([0, 3, 2, 5])}, "text offsets", "item 1"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(changed, field, found):
    arrays = {"image": IMAGE, "text": TEXT, "offsets": OFFSETS, "labels": LABELS, **changed}
    with pytest.raises(DataError) as caught:
        Pairs(**arrays)
    assert caught.value.field == field and found in caught.value.problem


def test_pairs_whose_first_text_has_no_item_are_refused():
    with pytest.raises(DataError) as caught:
        Pairs(IMAGE, TEXT, np.array([1, 2, 4, 5]), LABELS)
    assert caught.value.field == "text offsets"


def test_pairs_and_stores_have_a_short_repr(planted_store):
    store = several_texts()
    assert repr(store) == "FeatureStore(3 items, 4-d image, 2-d text)"
    assert repr(store.take([0, 2])) == "Pairs(2 items, 4-d image, 2-d text, 2 labels)"
    many = planted_store.take(np.arange(2_000) % len(planted_store))
    assert repr(many) == "Pairs(2,000 items, 24-d image, 16-d text, 8 labels)"


# Stores


@pytest.mark.parametrize("kind", [Path, str])
def test_a_store_comes_back_as_it_was_saved(tmp_path, kind):
    store = several_texts()
    store.save(kind(tmp_path / "store"))
    loaded = FeatureStore.open(kind(tmp_path / "store"))
    assert (loaded.dataset.ids, loaded.dataset.images) == (store.dataset.ids, store.dataset.images)
    assert (loaded.dataset.texts, loaded.dataset.label_names) == (store.dataset.texts, store.dataset.label_names)
    assert np.array_equal(loaded.dataset.labels, LABELS)
    assert np.array_equal(loaded.image, IMAGE) and np.array_equal(loaded.text, TEXT)
    assert loaded.offsets.tolist() == OFFSETS.tolist()
    assert loaded.recipe == store.recipe and loaded.recipe.image.versions == {"torch": "2.4"}
    assert loaded.skipped == store.skipped and loaded.truncated == store.truncated == 1
    assert loaded.fingerprint() == store.fingerprint()
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("labels", [np.zeros((3, 0), np.uint8), np.zeros((3, 2), np.uint8)])
def test_a_store_without_any_label_comes_back(tmp_path, labels):
    store = FeatureStore.open(npz(tmp_path, labels=labels))
    store.save(tmp_path / "store")
    assert FeatureStore.open(tmp_path / "store").fingerprint() == store.fingerprint()


def test_an_opened_store_stays_on_disk(tmp_path):
    several_texts().save(tmp_path / "store")
    opened = FeatureStore.open(tmp_path / "store")
    assert isinstance(opened.image, ShardedRows) and isinstance(opened.text, ShardedRows)


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("size", [1, 2, 3, 512])
def test_rows_in_shards_are_indexed_as_the_rows_of_an_array(tmp_path, monkeypatch, size, dtype):
    monkeypatch.setattr(store_module, "SHARD", size)
    store = replace(several_texts(), text=TEXT.astype(dtype))
    store.save(tmp_path / "store")
    opened = FeatureStore.open(tmp_path / "store")
    for rows, whole in ((opened.image, IMAGE), (opened.text, TEXT.astype(dtype))):
        assert (rows.shape, rows.dtype, len(rows), rows.ndim) == (whole.shape, whole.dtype, len(whole), 2)
        none, even = np.array([], int), np.arange(len(whole)) % 2 == 0
        for index in (0, -1, slice(None), slice(1, 3), slice(0, 0), [2, 0, 2], none, even):
            assert np.array_equal(rows[index], whole[index])
        assert np.array_equal(np.asarray(rows), whole) and np.asarray(rows, np.float64).dtype == np.float64
        assert np.array_equal(np.concatenate(list(rows.blocks())), whole)
    assert opened.fingerprint() == store.fingerprint()
    assert np.array_equal(opened.offsets, OFFSETS)


def test_a_store_of_thousands_of_shards_holds_no_file_open(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "SHARD", 1)
    count = 300
    arrays = {"image": np.zeros((count, 2), np.float32), "text": np.zeros((count, 2), np.float32)}
    store = FeatureStore.open(npz(tmp_path, **arrays, text_offsets=None, labels=np.ones((count, 1), np.uint8)))
    store.save(tmp_path / "store")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, hard))
    try:
        opened = FeatureStore.open(tmp_path / "store")
        assert opened.take(np.arange(count)).image.shape == (count, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_store_of_the_first_version_is_refused_with_a_hint(tmp_path):
    several_texts().save(tmp_path / "store")
    path = tmp_path / "store" / "store.json"
    path.write_text(json.dumps({"format": "multibit feature store", "version": 1, "recipe": {}}))
    with pytest.raises(FormatError) as caught:
        FeatureStore.open(tmp_path / "store")
    assert caught.value.file == path and "version 1" in caught.value.problem and caught.value.hint


def test_saving_over_something_is_refused(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "precious").write_text("kept")
    with pytest.raises(DataError) as caught:
        several_texts().save(str(tmp_path / "store"))
    assert caught.value.file == tmp_path / "store"
    assert (tmp_path / "store" / "precious").read_text() == "kept"


@pytest.mark.parametrize("name", [SHARD_FILE, ITEMS_FILE, "store.json"])
@pytest.mark.parametrize("harm", ["gone", "cut in the header", "cut at the end"])
def test_a_truncated_store_is_refused_with_its_path(tmp_path, name, harm):
    store = tmp_path / "store"
    several_texts().save(store)
    raw = (store / name).read_bytes()
    (store / name).unlink()
    if harm != "gone":
        (store / name).write_bytes(raw[: 5 if "header" in harm else -3])
    with pytest.raises((FormatError, DataError)) as caught:
        FeatureStore.open(store)
    assert str(store) in str(caught.value)


@pytest.mark.parametrize("name", [SHARD_FILE, ITEMS_FILE])
def test_a_store_with_an_empty_file_is_refused(tmp_path, name):
    several_texts().save(tmp_path / "store")
    (tmp_path / "store" / name).write_bytes(b"")
    with pytest.raises(FormatError) as caught:
        FeatureStore.open(tmp_path / "store")
    assert caught.value.file == tmp_path / "store" / name


def test_an_array_of_another_store_is_refused(tmp_path):
    several_texts().save(tmp_path / "store")
    Shard(IMAGE, TEXT + 1, np.diff(OFFSETS)).write(tmp_path / "store", 0)
    with pytest.raises(FormatError) as caught:
        FeatureStore.open(tmp_path / "store")
    assert caught.value.file == tmp_path / "store" / SHARD_FILE


def test_a_newer_store_is_refused(tmp_path):
    several_texts().save(tmp_path / "store")
    path = tmp_path / "store" / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    with pytest.raises(FormatError) as caught:
        FeatureStore.open(tmp_path / "store")
    assert str(path) in str(caught.value) and "99" in str(caught.value)


@pytest.mark.parametrize("field", ["recipe", "label_names", "shards", "items", "checksums"])
def test_a_store_whose_header_lacks_a_field_is_refused(tmp_path, field):
    several_texts().save(tmp_path / "store")
    path = tmp_path / "store" / "store.json"
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != field}))
    with pytest.raises(FormatError) as caught:
        FeatureStore.open(tmp_path / "store")
    assert (caught.value.file, caught.value.field) == (path, field)


@pytest.mark.parametrize("content", [None, "a folder"])
def test_a_folder_that_is_not_a_store_is_refused(tmp_path, content):
    if content:
        (tmp_path / "store").mkdir()
    with pytest.raises(FormatError) as caught:
        FeatureStore.open(tmp_path / "store")
    assert str(tmp_path / "store" / "store.json") in str(caught.value)


# Identity


@pytest.mark.parametrize(
    "changed", [{"image": IMAGE + 1}, {"text": TEXT + 1}, {"labels": LABELS[::-1]}, {"ids": ["a", "b", "c"]}]
)
def test_the_fingerprint_follows_features_and_data(tmp_path, changed):
    assert FeatureStore.open(npz(tmp_path)).fingerprint() != FeatureStore.open(npz(tmp_path, **changed)).fingerprint()


def test_the_fingerprint_follows_which_text_belongs_to_which_item(tmp_path):
    test_the_fingerprint_follows_features_and_data(tmp_path, {"text_offsets": [0, 2, 4, 5]})


@pytest.mark.parametrize(
    ("modality", "key", "value"),
    [
        ("image", "name", "other"), ("image", "weights", "w9"), ("image", "dimension", 5),
        ("image", "preprocessing", "round"), ("text", "name", "other"), ("text", "dimension", 1),
    ],
)  # fmt: skip
def test_features_of_another_recipe_are_refused_with_the_first_difference(modality, key, value):
    recipe = several_texts().recipe
    values = recipe.to_dict()
    values[modality][key], trained = value, values[modality][key]
    other = msgspec.convert(values, Recipe)
    assert other != recipe
    with pytest.raises(MismatchError) as caught:
        recipe.require(other, "the queries")
    assert caught.value.field == f"{modality} features"
    assert all(part in caught.value.problem for part in ("the queries", key, repr(value), repr(trained)))


def test_recipes_that_differ_in_versions_only_are_the_same():
    recipe = several_texts().recipe
    values = json.loads(json.dumps(recipe.to_dict()))
    values["image"]["versions"] = {"torch": "9.9"}
    other = msgspec.convert(values, Recipe)
    recipe.require(other, "the queries")
    assert other == recipe
