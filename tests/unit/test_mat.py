"""The field's .mat files in every layout that occurs, v5 and v7.3."""

import json
import sys

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse

from multibit import FeatureStore
from multibit.data.export import write_arrays_npz
from multibit.data.sources import DataNote
from multibit.data.sources.mat import read_mat, read_mat_features
from multibit.errors import ConfigError, DataError, MissingExtraError

PATHS = ["/home/a/im1.jpg", "/home/a/im10.jpg", "/home/a/im100.jpg"]
TEXTS = [("a cat", "a grey cat on a sofa"), ("le café",), ("",)]
LABELS = np.array([[1, 0], [1, 1], [0, 1]])


def cells(entries, shape):
    array = np.empty(len(entries), object)
    for i, entry in enumerate(entries):
        array[i] = entry
    return array.reshape(shape)


def trio(folder, *, index=None, caption=None, label=None):
    folder.mkdir(exist_ok=True)
    captions = cells([np.array(texts) for texts in TEXTS], (1, 3))
    scipy.io.savemat(folder / "index.mat", index or {"index": np.array(PATHS)})
    scipy.io.savemat(folder / "caption.mat", caption or {"caption": captions})
    scipy.io.savemat(folder / "label.mat", label or {"category": LABELS.astype(float)})
    return folder


class V73:
    """Writes arrays as MATLAB does with -v7.3: transposed, characters as numbers, cells as references."""

    def __init__(self, path):
        self.file = h5py.File(path, "w", userblock_size=512)
        self.path = path

    def numbers(self, name, array):
        self.file.create_dataset(name, data=np.asarray(array).T).attrs["MATLAB_class"] = np.bytes_("double")
        return self

    def text(self, name, rows):
        width = max(len(row) for row in rows)
        if width == 0:
            item = self.file.create_dataset(name, data=np.zeros(2, np.uint64))
            item.attrs["MATLAB_empty"] = np.uint8(1)
        else:
            codes = np.array([[ord(letter) for letter in row.ljust(width)] for row in rows], np.uint16)
            item = self.file.create_dataset(name, data=codes.T)
        item.attrs["MATLAB_class"] = np.bytes_("char")
        return item

    def cell(self, name, items, shape):
        references = np.empty(shape, h5py.ref_dtype)
        references.flat = [item.ref for item in items]
        item = self.file.create_dataset(name, data=references.T, dtype=h5py.ref_dtype)
        item.attrs["MATLAB_class"] = np.bytes_("cell")
        return item

    def close(self):
        self.file.close()
        raw = bytearray(self.path.read_bytes())
        raw[:19] = b"MATLAB 7.3 MAT-file"
        self.path.write_bytes(raw)


def content(data):
    return [str(image) for image in data.images], list(data.texts), data.labels.tolist()


EXPECTED = PATHS, TEXTS, LABELS.tolist()


# The trio


def test_the_trio_as_the_coco_script_writes_it(tmp_path):
    data = read_mat(trio(tmp_path / "coco"))
    assert content(data) == EXPECTED
    assert data.ids == ("im1", "im10", "im100") and data.label_names == ("label 0", "label 1")


@pytest.mark.parametrize("key", ["index", "imgs", "FAll"])
def test_every_key_of_the_images_is_known(tmp_path, key):
    assert content(read_mat(trio(tmp_path / "d", index={key: np.array(PATHS)}))) == EXPECTED


@pytest.mark.parametrize("key", ["category", "label", "labels", "LAll"])
@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int8, np.float32, bool])
def test_every_key_and_type_of_the_labels_is_known(tmp_path, key, dtype):
    assert content(read_mat(trio(tmp_path / "d", label={key: LABELS.astype(dtype)}))) == EXPECTED


@pytest.mark.parametrize("key", ["caption", "tags", "YAll"])
@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (np.array(["a cat   ", "le café ", "        "]), [("a cat",), ("le café",), ("",)]),
        (cells(["a cat  ", "le café", ""], (3, 1)), [("a cat",), ("le café",), ("",)]),
        (cells(["a cat", "le café", ""], (1, 3)), [("a cat",), ("le café",), ("",)]),
        (cells([np.array(["a  ", "b c"]), np.array(["d"]), "e"], (1, 3)), [("a", "b c"), ("d",), ("e",)]),
        (
            cells([cells(["a", np.array(["b "])], (2, 1)), cells(["c"], (1, 1)), "d"], (3, 1)),
            [("a", "b"), ("c",), ("d",)],
        ),
        (cells([cells(["a", "b", "c"], (1, 3))], (1, 1)), [("a",), ("b",), ("c",)]),
        (cells(["a", "b", "c", "d", "e", "f"], (3, 2)), [("a", "b"), ("c", "d"), ("e", "f")]),
        (cells(["a", "c", "e", "b", "d", "f"], (2, 3)), [("a", "b"), ("c", "d"), ("e", "f")]),
    ],
    ids=["padded", "column", "row", "several", "nested", "cell in a cell", "matrix of cells", "transposed matrix"],
)
def test_every_layout_of_the_texts_is_read(tmp_path, key, texts, expected):
    assert list(read_mat(trio(tmp_path / "d", caption={key: texts})).texts) == expected


def test_the_text_file_of_nus_wide_is_read_with_its_mark_of_an_empty_line(tmp_path):
    folder = trio(tmp_path / "nuswide")
    (folder / "caption.mat").unlink()
    (folder / "caption.txt").write_text("a cat \n123456\ncafé\n", encoding="utf-8")
    assert list(read_mat(folder).texts) == [("a cat",), ("",), ("café",)]


def test_a_caption_file_of_another_name_is_found(tmp_path):
    folder = trio(tmp_path / "iapr")
    (folder / "caption.mat").rename(folder / "caption2.mat")
    assert content(read_mat(folder)) == EXPECTED


def test_two_files_with_the_same_key_are_noted(tmp_path):
    folder = trio(tmp_path / "d")
    scipy.io.savemat(folder / "caption2.mat", {"caption": np.array(["x", "y", "z"])})
    with pytest.warns(DataNote) as notes:
        assert content(read_mat(folder)) == EXPECTED
    message = str(notes[0].message)
    assert message.startswith(str(folder)) and message.index("caption.mat") < message.index("caption2.mat")


def test_one_file_with_all_keys_is_read(tmp_path):
    path = tmp_path / "all.mat"
    scipy.io.savemat(path, {"FAll": cells(PATHS, (3, 1)), "YAll": cells(["x", "y", "z"], (3, 1)), "LAll": LABELS})
    data = read_mat(path)
    assert [str(image) for image in data.images] == PATHS and data.texts == (("x",), ("y",), ("z",))


def test_transposed_labels_are_transposed_back(tmp_path):
    assert content(read_mat(trio(tmp_path / "d", label={"category": LABELS.T}))) == EXPECTED


def test_sparse_labels_are_read(tmp_path):
    sparse = scipy.sparse.csc_matrix(LABELS.astype(float))
    assert content(read_mat(trio(tmp_path / "d", label={"category": sparse}))) == EXPECTED


@pytest.mark.parametrize("old", ["/home/a", "path_replace"])
def test_the_prefix_of_paths_is_replaced(tmp_path, old):
    paths = np.array([path.replace("/home/a", old) for path in PATHS])
    data = read_mat(trio(tmp_path / "d", index={"index": paths}), root={old: "/data"})
    assert [str(image) for image in data.images] == ["/data/im1.jpg", "/data/im10.jpg", "/data/im100.jpg"]


def test_windows_paths_are_read(tmp_path):
    paths = np.array([f"D:\\mir\\im{i}.jpg" for i in range(3)])
    assert read_mat(trio(tmp_path / "d", index={"index": paths})).ids == ("im0", "im1", "im2")


def test_paths_are_the_ids_where_stems_repeat(tmp_path):
    data = read_mat(trio(tmp_path / "d", index={"index": np.array(["a/1.jpg", "b/1.jpg", "b/2.jpg"])}))
    assert data.ids == ("a/1.jpg", "b/1.jpg", "b/2.jpg")


def test_numbered_labels_keep_their_order_in_the_alphabet(tmp_path):
    folder = trio(tmp_path / "d", label={"category": np.zeros((3, 12))})
    names = read_mat(folder).label_names
    assert names[2] == "label 02" and names == tuple(sorted(names))


def test_given_label_names_are_used(tmp_path):
    assert read_mat(trio(tmp_path / "d"), label_names=["cat", "dog"]).label_names == ("cat", "dog")


def test_a_v73_trio_is_read_as_the_v5_one(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    index, caption, label = (V73(folder / f"{name}.mat") for name in ("index", "caption", "label"))
    index.text("index", PATHS)
    inner = []
    for i, texts in enumerate(TEXTS):
        inner.append(caption.cell(f"inner{i}", [caption.text(f"t{i}{j}", [text]) for j, text in enumerate(texts)], (1, len(texts))))  # noqa: E501  # fmt: skip
    caption.cell("caption", inner, (1, 3))
    label.numbers("category", LABELS)
    for file in (index, caption, label):
        file.close()
    assert content(read_mat(folder)) == EXPECTED


def test_texts_that_python_wrote_to_hdf5_are_read(tmp_path):
    path = tmp_path / "all.h5"
    with h5py.File(path, "w") as file:
        file["FAll"], file["YAll"], file["LAll"] = PATHS, ["a", "le café", "c"], LABELS
    data = read_mat(path)
    assert data.texts == (("a",), ("le café",), ("c",)) and data.labels.tolist() == LABELS.tolist()


def test_v73_without_h5py_names_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "all.mat"
    V73(path).numbers("LAll", LABELS).close()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError) as caught:
        read_mat(path)
    assert (caught.value.module, caught.value.extra) == ("h5py", "mat")


def test_a_missing_key_is_named_with_those_that_exist_and_the_argument_to_map_it(tmp_path):
    folder = trio(tmp_path / "d", label={"my_labels": LABELS})
    with pytest.raises(DataError) as caught:
        read_mat(folder)
    error = caught.value
    assert (error.file, error.field) == (folder, "labels") and "`names`" in error.hint
    for named in ("category or label or labels or LAll", "label.mat: my_labels (3, 2)", "index.mat: index (3,)"):
        assert named in error.problem
    assert content(read_mat(folder, names={"labels": "my_labels"})) == EXPECTED


@pytest.mark.parametrize(
    ("change", "file", "field", "found"),
    [
        ({"label": {"category": np.zeros((4, 2))}}, "", "", "3 images, 3 texts, labels of shape (4, 2)"),
        ({"label": {"category": LABELS * 2}}, "", "labels", "[0, 0] is 2"),
        ({"label": {"category": np.array(["x", "y", "z"])}}, "label.mat", "category", "<U1"),
        ({"caption": {"caption": np.array(["a", "b"])}}, "", "", "3 images, 2 texts"),
        ({"caption": {"YAll": np.zeros((3, 5))}}, "", "text", "(3, 5)"),
    ],
)
def test_arrays_that_do_not_match_are_refused(tmp_path, change, file, field, found):
    with pytest.raises(DataError) as caught:
        read_mat(trio(tmp_path / "d", **change))
    assert (caught.value.file, caught.value.field) == (tmp_path / "d" / file, field)
    assert found in caught.value.problem


@pytest.mark.parametrize("raw", [b"", b"junk" * 100, b"MATLAB 5.0 MAT-file" + bytes(200), b"MATLAB 7.3 MAT-file" + bytes(600)])  # fmt: skip  # noqa: E501
def test_a_file_of_another_kind_is_refused(tmp_path, raw):
    path = tmp_path / "x.mat"
    path.write_bytes(raw)
    with pytest.raises(DataError) as caught:
        read_mat(path)
    assert caught.value.file == path


def test_a_missing_file_and_a_folder_without_any_are_distinguished(tmp_path):
    for path, found in ((tmp_path / "x.mat", "no such file"), (tmp_path, "no .mat file")):
        with pytest.raises(DataError) as caught:
            read_mat(path)
        assert caught.value.file == path and found in caught.value.problem


def test_a_mapping_of_an_unknown_field_is_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_mat(trio(tmp_path / "d"), names={"picture": "index"})
    assert caught.value.option == "names"
    assert "picture" in caught.value.problem and "image, text, labels" in caught.value.problem


# Features


@pytest.fixture
def parts():
    rng = np.random.default_rng(0)
    sizes = {"tr": 6, "te": 3, "db": 9}
    arrays = {f"{letter}_{part}": rng.normal(size=(n, {"I": 5, "T": 4}[letter])) for part, n in sizes.items() for letter in "IT"}  # noqa: E501  # fmt: skip
    return arrays | {f"L_{part}": (rng.random((n, 2)) < 0.5).astype(float) for part, n in sizes.items()}


def test_parts_become_rows_and_a_split(tmp_path, parts):
    two = {key: value for key, value in parts.items() if not key.endswith("db")}
    scipy.io.savemat(tmp_path / "f.mat", two)
    arrays = read_mat_features(tmp_path / "f.mat")
    np.testing.assert_allclose(arrays["image"][arrays["train"]], parts["I_tr"], rtol=1e-6)
    np.testing.assert_allclose(arrays["text"][arrays["query"]], parts["T_te"], rtol=1e-6)
    assert arrays["database"].tolist() == arrays["train"].tolist() == list(range(6))
    assert arrays["labels"].dtype == np.uint8 and str(arrays["recipe"]) == "f"


@pytest.mark.parametrize("inside", [True, False], ids=["train in database", "train apart"])
def test_training_rows_that_are_in_the_database_are_kept_once(tmp_path, parts, inside):
    if inside:
        for letter in "ITL":
            parts[f"{letter}_tr"] = parts[f"{letter}_db"][[8, 0, 3, 5, 1, 2]]
    scipy.io.savemat(tmp_path / "f.mat", parts)
    arrays = read_mat_features(tmp_path / "f.mat")
    assert len(arrays["image"]) == (12 if inside else 18)
    for role, part in {"train": "tr", "query": "te", "database": "db"}.items():
        for name, letter in {"image": "I", "text": "T", "labels": "L"}.items():
            np.testing.assert_allclose(arrays[name][arrays[role]], parts[f"{letter}_{part}"], rtol=1e-6)


def test_equal_rows_of_the_training_set_take_different_rows_of_the_database(tmp_path, parts):
    for letter in "ITL":
        parts[f"{letter}_db"][1] = parts[f"{letter}_db"][0]
        parts[f"{letter}_tr"] = parts[f"{letter}_db"][[0, 1, 2, 3, 4, 5]]
    scipy.io.savemat(tmp_path / "f.mat", parts)
    assert sorted(read_mat_features(tmp_path / "f.mat")["train"].tolist()) == [0, 1, 2, 3, 4, 5]


def test_parts_in_several_files_are_joined(tmp_path, parts):
    for part in ("tr", "te", "db"):
        scipy.io.savemat(tmp_path / f"mir_{part}.mat", {k: v for k, v in parts.items() if k.endswith(part)})
    assert len(read_mat_features(tmp_path)["image"]) == 18


@pytest.mark.parametrize("turned", [(), ("I",), ("T", "L"), ("I", "T", "L")])
def test_transposed_features_are_transposed_back(tmp_path, turned):
    rng = np.random.default_rng(1)
    arrays = {"XAll": rng.normal(size=(7, 5)), "YAll": rng.normal(size=(7, 4)), "LAll": np.eye(7)[:, :3]}
    names = {"I": "XAll", "T": "YAll", "L": "LAll"}
    scipy.io.savemat(tmp_path / "f.mat", arrays | {names[key]: arrays[names[key]].T for key in turned})
    found = read_mat_features(tmp_path / "f.mat")
    np.testing.assert_allclose(found["image"], arrays["XAll"], rtol=1e-6)
    np.testing.assert_allclose(found["text"], arrays["YAll"], rtol=1e-6)
    assert found["labels"].tolist() == arrays["LAll"].tolist() and "train" not in found


def test_square_features_are_taken_as_they_are(tmp_path):
    image = np.arange(9.0).reshape(3, 3)
    scipy.io.savemat(tmp_path / "f.mat", {"XAll": image, "YAll": image + 1, "LAll": np.eye(3)})
    assert read_mat_features(tmp_path / "f.mat")["image"].tolist() == image.tolist()


def test_v73_features_are_read(tmp_path, parts):
    file = V73(tmp_path / "f.mat")
    for key, value in parts.items():
        file.numbers(key, value)
    file.close()
    arrays = read_mat_features(tmp_path / "f.mat")
    np.testing.assert_allclose(arrays["image"][arrays["query"]], parts["I_te"], rtol=1e-6)


def test_features_open_as_a_store(tmp_path, parts):
    scipy.io.savemat(tmp_path / "f.mat", parts)
    write_arrays_npz(read_mat_features(tmp_path / "f.mat"), tmp_path / "f.npz")
    store = FeatureStore.open(tmp_path / "f.npz")
    assert len(store) == 18 and store.recipe.image.name == "f"


def test_other_keys_are_mapped(tmp_path):
    scipy.io.savemat(tmp_path / "f.mat", {"a": np.ones((3, 2)), "b": np.ones((3, 4)), "c": np.eye(3)})
    arrays = read_mat_features(tmp_path / "f.mat", names={"image": "a", "text": "b", "labels": "c"})
    assert arrays["text"].shape == (3, 4)


def test_a_mapping_that_would_have_no_effect_is_refused(tmp_path, parts):
    scipy.io.savemat(tmp_path / "f.mat", parts)
    with pytest.raises(DataError) as missing:
        read_mat_features(tmp_path / "f.mat", names={"image": "NOSUCH"})
    assert missing.value.field == "image" and "NOSUCH" in missing.value.problem and "I_tr" in missing.value.problem
    with pytest.raises(ConfigError) as unused:
        read_mat_features(tmp_path / "f.mat", names={"labels": "L_tr"})
    assert unused.value.option == "names" and "labels" in unused.value.problem


def test_label_names_of_features_are_given_or_read(tmp_path, parts):
    scipy.io.savemat(tmp_path / "f.mat", parts)
    assert read_mat_features(tmp_path / "f.mat")["label_names"].tolist() == ["label 0", "label 1"]
    given = read_mat_features(tmp_path / "f.mat", label_names=["cat", "dog"])
    assert given["label_names"].tolist() == ["cat", "dog"]
    with pytest.raises(DataError) as caught:
        read_mat_features(tmp_path / "f.mat", label_names=["cat"])
    assert "2" in caught.value.problem and caught.value.file == tmp_path / "f.mat"


@pytest.mark.parametrize(
    ("arrays", "field", "found"),
    [
        ({"x": np.ones((3, 2))}, "I_tr", "no I_tr or I_train; found f.mat: x (3, 2)"),
        ({"XAll": np.ones((3, 2)), "YAll": np.ones((4, 2)), "LAll": np.eye(5)}, "", "image, text, labels"),
        ({"XAll": np.ones((3, 2, 2)), "YAll": np.ones((3, 2)), "LAll": np.eye(3)}, "", "(3, 2, 2)"),
        ({"XAll": np.ones((3, 2)), "YAll": np.ones((3, 2)), "LAll": np.eye(3) * 2}, "LAll labels", "is 2"),
        ({"XAll": np.ones((3, 2)), "LAll": np.eye(3)}, "text", "no text or YAll or TAll"),
        (
            {"XAll": np.array([[1, 2], [3, 1e300]]), "YAll": np.ones((2, 3)), "LAll": np.eye(2)},
            "XAll",
            "[1, 1] is 1e+300",
        ),
        (
            {"XAll": np.ones((2, 2)), "YAll": np.array([[1, np.nan, 2], [1, 1, 1]]), "LAll": np.eye(2)},
            "YAll",
            "[0, 1] is nan",
        ),
        (
            {"XAll": np.array([[1, 2, 3], [1, 2, np.inf]]), "YAll": np.ones((3, 4)), "LAll": np.eye(3)},
            "XAll (transposed)",
            "[2, 1] is inf",
        ),
        (
            {"XAll": np.ones((0, 12)), "YAll": np.ones((0, 3)), "LAll": np.ones((0, 2))},
            "XAll",
            "(0, 12)",
        ),
        (
            {"XAll": np.array([["a", "b"]], object), "YAll": np.ones((2, 3)), "LAll": np.eye(2)},
            "XAll",
            "object of shape (1, 2)",
        ),
    ],
)
def test_features_that_do_not_match_are_refused_with_file_and_key(tmp_path, arrays, field, found):
    path = tmp_path / "f.mat"
    scipy.io.savemat(path, arrays)
    with pytest.raises(DataError) as caught:
        read_mat_features(path)
    assert (caught.value.file, caught.value.field) == (path, field) and found in caught.value.problem


def test_parts_of_different_widths_are_refused(tmp_path, parts):
    parts["I_te"] = np.ones((3, 6))
    scipy.io.savemat(tmp_path / "f.mat", parts)
    with pytest.raises(DataError) as caught:
        read_mat_features(tmp_path / "f.mat")
    assert (caught.value.file, caught.value.field) == (tmp_path / "f.mat", "image")


def test_real_photographs_are_read_from_a_trio(shared_data, tmp_path):
    lines = (shared_data / "coco" / "photos.jsonl").read_text(encoding="utf-8").splitlines()
    photos = [json.loads(line) for line in lines]
    labels = np.zeros((len(photos), 80))
    for row, photo in enumerate(photos):
        labels[row, photo["labels"]] = 1
    paths = np.array(["path_replace/" + photo["image"] for photo in photos])
    captions = cells([np.array(photo["captions"]) for photo in photos], (1, len(photos)))
    folder = trio(tmp_path / "d", index={"index": paths}, caption={"caption": captions}, label={"category": labels})
    data = read_mat(folder, root={"path_replace": str(shared_data / "coco")})
    assert len(data) == 213 and all(image.is_file() for image in data.images)
    assert [list(texts) for texts in data.texts] == [[text.strip() for text in photo["captions"]] for photo in photos]
