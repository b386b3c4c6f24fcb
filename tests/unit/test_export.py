"""Writing a data set to every format and reading it back."""

from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st

from multibit import PairedDataset
from multibit.data.export import read_dataset_npz, write_arrays_npz, write_dataset
from multibit.data.manifest import read_manifest
from multibit.data.sources.mat import read_mat
from multibit.errors import DataError

FORMATS = {
    "items.csv": read_manifest,
    "items.jsonl": read_manifest,
    "items.parquet": read_manifest,
    "items.npz": read_dataset_npz,
    "trio": read_mat,
}


def content(data):
    return data.ids, data.images, data.texts, data.labels.tolist(), data.label_names


def example(folder):
    return PairedDataset.of_items(
        [
            ("im1", folder / "photos/im1.jpg", ["a cat", 'with "quotes", | and [brackets'], ["cat"]),
            ("日本/2", Path("/elsewhere/ü.png"), ["🐈 on a sofa"], ["dog|wolf", "cat"]),
            ("3", None, [], []),
        ]
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reads_back_the_same_data_set(tmp_path, name):
    data = example(tmp_path)
    write_dataset(data, tmp_path / name)
    assert content(FORMATS[name](tmp_path / name)) == content(data)


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12).map(
    lambda text: " ".join(text.split()) or "x"
)
items = st.lists(
    st.tuples(st.none() | texts.map(lambda name: Path("/p") / f"{name.replace('/', '_')}.jpg"),
              st.lists(texts, max_size=3), st.lists(texts, max_size=3)),
    min_size=1, max_size=5,
)  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25)
@given(items=items)
def test_any_data_set_is_read_back(tmp_path_factory, name, items):
    data = PairedDataset.of_items((f"id {row}", *item) for row, item in enumerate(items))
    path = tmp_path_factory.mktemp("export") / name
    write_dataset(data, path)
    found = FORMATS[name](path)
    assert content(found) == content(data) and found.fingerprint() == data.fingerprint()


def test_image_paths_below_the_manifest_are_relative_to_it(tmp_path):
    write_dataset(example(tmp_path), tmp_path / "items.csv")
    assert "\nim1,photos/im1.jpg," in (tmp_path / "items.csv").read_text(encoding="utf-8")


def test_labels_without_items_are_kept_where_the_format_lists_all(tmp_path):
    data = PairedDataset(("a",), (None,), (("x",),), [[1, 0]], ("z", "y"))
    for name in ("items.npz", "trio"):
        write_dataset(data, tmp_path / name)
        assert content(FORMATS[name](tmp_path / name)) == content(data)


def test_the_trio_is_what_the_loaders_of_the_field_expect(tmp_path):
    write_dataset(example(tmp_path), tmp_path / "trio")
    index, caption, label = (
        scipy.io.loadmat(tmp_path / "trio" / f"{name}.mat")[key]
        for name, key in (("index", "index"), ("caption", "caption"), ("label", "category"))
    )
    assert index.shape == (3,) and index[0].strip() == str(tmp_path / "photos/im1.jpg")
    assert caption.shape == (1, 3) and caption[0][0][0].strip() == "a cat"
    assert label.shape == (3, 2)


def test_real_photographs_are_read_back_from_every_format(shared_data, tmp_path):
    columns = {"image": "image", "texts": "captions", "labels": "labels"}
    lines = (shared_data / "coco/photos.jsonl").read_text(encoding="utf-8").replace('"labels": [', '"numbers": [')
    (tmp_path / "photos.jsonl").write_text(lines.replace('"image"', '"labels": "photo", "image"'), encoding="utf-8")
    data = read_manifest(tmp_path / "photos.jsonl", images=shared_data / "coco", columns=columns)
    assert len(data) == 213
    for name, reader in FORMATS.items():
        write_dataset(data, tmp_path / name)
        assert content(reader(tmp_path / name)) == content(data)


@pytest.mark.parametrize("name", ["items.xlsx", "items.mat"])
def test_another_suffix_is_refused(tmp_path, name):
    for write in (lambda path: write_dataset(example(tmp_path), path), lambda path: write_arrays_npz({}, path)):
        with pytest.raises(DataError) as caught:
            write(tmp_path / name)
        assert caught.value.file == tmp_path / name and ".npz" in caught.value.problem
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("item", "label", "field", "named"),
    [
        ((" a", None, ("x",)), "l", "ids", "' a'"),
        (("a", None, ("x", "y ")), "l", "ids", "'a'"),
        (("a", None, ("", "only second")), "l", "ids", "'a'"),
        (("a", Path("/p/a.jpg "), ("x",)), "l", "ids", "'a'"),
        (("a", None, ("x",)), "l ", "label_names", "'l '"),
        (("a", None, ("x",)), "", "label_names", "''"),
    ],
)
def test_what_a_trio_would_lose_is_refused_before_anything_is_written(tmp_path, item, label, field, named):
    name, image, texts = item
    data = PairedDataset((name, "b"), (image, None), (texts, ("",)), [[1], [1]], (label,))
    with pytest.raises(DataError) as caught:
        write_dataset(data, tmp_path / "trio")
    assert (caught.value.file, caught.value.field) == (tmp_path / "trio", field)
    assert caught.value.problem.startswith("1 ") and caught.value.problem.endswith(f": {named}.")
    assert not list(tmp_path.iterdir())
    write_dataset(data, tmp_path / "items.npz")
    assert content(read_dataset_npz(tmp_path / "items.npz")) == content(data)


def test_a_trio_never_replaces_an_existing_folder(tmp_path):
    (tmp_path / "trio").mkdir()
    with pytest.raises(DataError) as caught:
        write_dataset(example(tmp_path), tmp_path / "trio")
    assert caught.value.file == tmp_path / "trio" and not list((tmp_path / "trio").iterdir())


@pytest.mark.parametrize(
    ("change", "field", "found"),
    [
        ({"ids": None}, "ids", "images, texts"),
        ({"text_offsets": np.array([0, 1])}, "text offsets", "(2,)"),
        ({"labels": np.array([[2, 0]] * 3)}, "labels", "[0, 0] is 2"),
        ({"images": np.array(["x"])}, "images", "1 rows for 3 ids"),
    ],
)
def test_an_npz_that_does_not_match_is_refused(tmp_path, change, field, found):
    write_dataset(example(tmp_path), tmp_path / "items.npz")
    arrays = dict(np.load(tmp_path / "items.npz")) | change
    np.savez(tmp_path / "items.npz", **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(DataError) as caught:
        read_dataset_npz(tmp_path / "items.npz")
    assert (caught.value.file, caught.value.field) == (tmp_path / "items.npz", field)
    assert found in caught.value.problem


# Files that were edited or made elsewhere


def npz_of(path, **changes):
    write_dataset(DATA_FOR_TYPES, path)
    arrays = {**np.load(path), **changes}
    np.savez(path, **arrays)
    return path


DATA_FOR_TYPES = PairedDataset(("a", "b"), (None, None), (("x",), ("y", "z")), [[1, 0], [0, 1]], ("cat", "dog"))


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("texts", np.arange(3)), ("texts", np.array([0.5, 1, 2])), ("texts", np.array([["x", "y", "z"]])),
        ("ids", np.array([0.5, 1.5])), ("ids", np.array([["a"], ["b"]])), ("ids", np.array([True, False])),
        ("label_names", np.arange(2)), ("label_names", np.array([b"\xff", b"a"])), ("images", np.arange(2)),
        ("text_offsets", np.array([0.0, 1.0, 3.0])), ("text_offsets", np.array([0, 5, 3])), ("labels", np.eye(2) / 2),
    ],
    ids=str,
)  # fmt: skip
def test_an_array_of_another_type_is_refused_with_its_key(key, values, tmp_path):
    path = npz_of(tmp_path / "a.npz", **{key: values})
    with pytest.raises(DataError) as caught:
        read_dataset_npz(path)
    assert caught.value.file == path


def test_whole_numbers_are_ids_and_bytes_are_texts(tmp_path):
    path = npz_of(tmp_path / "a.npz", ids=np.array([7, 8]), texts=np.array([b"x", "é".encode(), b"z"]))
    data = read_dataset_npz(path)
    assert data.ids == ("7", "8") and data.texts == (("x",), ("é", "z"))


def test_image_paths_are_relative_to_the_file_and_a_moved_folder_keeps_working(tmp_path):
    (tmp_path / "here").mkdir()
    image = tmp_path / "here/images/1.png"
    data = PairedDataset(("a",), (image,), (("x",),), [[1]], ("cat",))
    write_dataset(data, tmp_path / "here/a.npz")
    assert np.load(tmp_path / "here/a.npz")["images"].tolist() == ["images/1.png"]
    (tmp_path / "here").rename(tmp_path / "there")
    assert read_dataset_npz(tmp_path / "there/a.npz").images == (tmp_path / "there/images/1.png",)
