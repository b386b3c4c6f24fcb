"""Files as cameras, Windows, MATLAB and pandas write them: what is read, what is told, what is refused."""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import unicodedata
import warnings
from pathlib import Path

import datasets
import h5py
import numpy as np
import pytest
import scipy.io
from PIL import Image

from multibit import FeatureStore, PairedDataset
from multibit.config import Config
from multibit.data.images import open_image
from multibit.data.manifest import read_manifest, write_manifest
from multibit.data.sources import DataNote, read
from multibit.data.sources.common import ImageFolder
from multibit.data.sources.mat import read_mat, read_mat_features
from multibit.data.split import Split
from multibit.data.split_files import read_groups, read_roles
from multibit.errors import ConfigError, DataError, FormatError
from multibit.features.recipe import Recipe
from multibit.npz import read_npz
from multibit.paths import replacing


def noted(kind, source, **options):
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", DataNote)
        found = read(kind, source, **options)
    return found, [str(each.message) for each in notes]


def png(color):
    out = io.BytesIO()
    Image.new("RGB", (4, 4), color).save(out, "BMP")  # every colour has the same number of bytes
    return out.getvalue()


def write(path, content=b""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# Data sets of the hub


def table(columns, features=None):
    columns = {"image": ["a.jpg"] * len(next(iter(columns.values()))), **columns}
    return datasets.Dataset.from_dict(columns, datasets.Features(features) if features else None)


def hub(path, columns, **options):
    table(columns).save_to_disk(path)
    return noted("huggingface", path, images=path.parent / "images", **options)


def test_columns_of_the_hub_are_read_by_their_conventions(tmp_path):
    sentences = [{"raw": "a", "tokens": ["a"]}, {"raw": "b", "tokens": ["b"]}]
    data, _ = hub(tmp_path / "d", {"sentences": sentences, "labels": [[0, 1], [1, 1]]}, label_names=["x", "y"])
    assert data.texts == (("a",), ("b",)) and data.labels.tolist() == [[0, 1], [1, 1]]
    data, _ = hub(tmp_path / "e", {"text": ["a", "b"], "label": [5, 12], "id": [1.0, 2.0]})
    assert data.label_names == ("12", "5") and data.ids == ("1", "2")


@pytest.mark.parametrize(
    ("columns", "row", "field"),
    [
        ({"text": ["a", "b"], "id": ["x", None]}, 2, "id"),
        ({"text": [1, 2]}, 1, "text"),
        ({"text": ["a", "b"], "image": [["a.jpg", "b.jpg"]] * 2}, 1, "image"),
        ({"text": ["a", "b"], "labels": [0.25, 0.5]}, 1, "labels"),
        ({"text": ["a", "b"], "id": ["x", "x"]}, None, "ids"),
    ],
)
def test_other_columns_are_refused_by_row_and_field(tmp_path, columns, row, field):
    with pytest.raises(DataError) as caught:
        hub(tmp_path / "d", columns)
    assert (caught.value.file, caught.value.row, caught.value.field) == (tmp_path / "d", row, field)


def test_ids_that_occur_in_several_splits_get_the_name_of_their_split(tmp_path):
    parts = {name: table({"id": [0, 1], "text": [name] * 2}) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "d")
    data, notes = noted("huggingface", tmp_path / "d", images=tmp_path / "i")
    assert data.ids == ("train-0", "train-1", "test-0", "test-1") and "2 ids" in notes[1]
    data, _ = noted("huggingface", tmp_path / "d", images=tmp_path / "i", names={"id": ""})
    assert data.ids[0] == "train-00000000"
    with pytest.raises(ConfigError) as caught:
        hub(tmp_path / "one", {"id": ["a"], "text": ["x"]}, prefix_ids=True)
    assert caught.value.option == "prefix_ids"


def test_ids_never_share_a_file_and_files_follow_their_content(tmp_path):
    folder = ImageFolder(tmp_path)
    keys = ["a/b", "a_b", "A_B", "caf\u00e9", "cafe\u0301", "x" * 400, "x" * 401, "..", "a\nb"]
    paths = [folder.save(key, ".bmp", key.encode()) for key in keys]
    assert len({path.name.casefold() for path in paths}) == len(keys)
    assert [path.read_bytes() for path in paths] == [key.encode() for key in keys]
    assert ImageFolder(tmp_path).save("a_b", ".bmp", b"A_C") == paths[1] and paths[1].read_bytes() == b"A_C"


# Folders and archives


def test_endings_in_any_case_and_names_in_any_form_are_paired(tmp_path):
    write(tmp_path / "A.PNG")
    write(tmp_path / "A.TXT", "text")
    write(tmp_path / "A.LABELS", "dog")
    write(tmp_path / f"{unicodedata.normalize('NFC', 'é')}.avif")
    write(tmp_path / f"{unicodedata.normalize('NFD', 'é')}.txt", "accent")
    write(tmp_path / "lost.labels", "cat")
    data, notes = noted("pairs", tmp_path)
    assert data.ids == ("A", "é") and data.texts == (("text",), ("accent",)) and data.label_names == ("dog",)
    assert len(notes) == 1 and "lost.labels" in notes[0]


def test_linked_folders_are_read_once_and_pipes_are_told(tmp_path):
    write(tmp_path / "p/real/a.png")
    write(tmp_path / "p/real/a.txt", "a")
    write(tmp_path / "other/b.png")
    write(tmp_path / "other/b.txt", "b")
    for name, target in (("linked", "other"), ("twice", "other"), ("back", "p/real")):
        (tmp_path / "p" / name).symlink_to(tmp_path / target)
    os.mkfifo(tmp_path / "p/real/c.png")
    data, notes = noted("pairs", tmp_path / "p")
    assert data.ids == ("linked/b", "real/a")
    assert any("links" in each and "(2)" in each for each in notes) and any(
        "pipes" in each and "c.png" in each for each in notes
    )


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_is_honoured_everywhere(tmp_path, encoding):
    write(tmp_path / "p/a.png")
    write(tmp_path / "p/a.txt", "café".encode(encoding))
    assert noted("pairs", tmp_path / "p")[0].texts == (("café",),)
    write(tmp_path / "m.csv", "id,image,text,labels\na,,café,x\n".encode(encoding))
    assert read_manifest(tmp_path / "m.csv").texts == (("café",),)
    write(tmp_path / "s.toml", "epochs = 3\r\n".encode(encoding))
    assert Config.load(tmp_path / "s.toml").epochs == 3


def test_other_encodings_are_named_or_refused(tmp_path):
    write(tmp_path / "p/a.png")
    for text in ("日本語".encode("shift-jis"), "a cat".encode("utf-16-le")):
        write(tmp_path / "p/a.txt", text)
        with pytest.raises(DataError) as caught:
            read("pairs", tmp_path / "p")
        assert caught.value.file == tmp_path / "p/a.txt" and "`encoding`" in caught.value.hint
    write(tmp_path / "p/a.txt", "日本語".encode("shift-jis"))
    assert read("pairs", tmp_path / "p", encoding="shift-jis").texts == (("日本語",),)
    with pytest.raises(ConfigError) as caught:
        read("pairs", tmp_path / "p", encoding="klingon")
    assert caught.value.option == "encoding"


def test_equal_labels_in_two_unicode_forms_are_one(tmp_path):
    rows = [
        {"id": form, "image": "", "text": "", "labels": [unicodedata.normalize(form, "é")]} for form in ("NFC", "NFD")
    ]
    write(tmp_path / "m.jsonl", "\n".join(map(json.dumps, rows)))
    assert read_manifest(tmp_path / "m.jsonl").labels.tolist() == [[1], [1]]
    names = [unicodedata.normalize("NFD", "é")]
    assert read_manifest(tmp_path / "m.jsonl", label_names=names).label_names == ("é",)


def tar(path, files):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return write(path, gzip.compress(raw.getvalue()) if path.name.endswith("gz") else raw.getvalue())


def test_files_of_an_item_that_do_not_lie_together_are_joined(tmp_path):
    tar(tmp_path / "s/0.tar.gz", [("a.jpg", b"A"), ("b.jpg", b"B"), ("a.txt", b"one"), ("b.cls", b"7"), ("a.npy", b"")])
    tar(tmp_path / "s/1.TAR", [("a.jpg", b"C"), ("a.json", b'{"caption": "three", "labels": ["x"]}'), ("README", b"")])
    write(tmp_path / "s/notes.md")
    data, notes = noted("webdataset", tmp_path / "s", images=tmp_path / "i", encoding="utf-8")
    assert data.ids == ("0-a", "0-b", "1-a") and data.texts == (("one",), ("",), ("three",))
    assert [data.label_names_of(row) for row in range(3)] == [[], ["7"], ["x"]]
    assert [path.read_bytes() for path in data.images] == [b"A", b"B", b"C"]
    told = " ".join(notes)
    assert all(part in told for part in ("notes.md", "README", ".npy (1)", "several shards"))


def test_values_of_another_type_and_huge_members_are_refused_in_archives(tmp_path, monkeypatch):
    path = tar(tmp_path / "a.tar", [("a.jpg", b"A"), ("a.json", b'{"caption": 4}')])
    with pytest.raises(DataError) as caught:
        read("webdataset", path, images=tmp_path / "i")
    assert (caught.value.file, caught.value.field) == (path, "a.json")
    monkeypatch.setattr("multibit.data.sources.webdataset.LARGEST", 10)
    path = tar(tmp_path / "b.tar", [("a.jpg", b"A" * 11)])
    with pytest.raises(DataError) as caught:
        read("webdataset", path, images=tmp_path / "i")
    assert (caught.value.file, caught.value.field) == (path, "a.jpg")


def archive(*names):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as whole:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            whole.addfile(member, io.BytesIO(b"x"))
    return raw.getvalue()


@pytest.mark.parametrize(
    "raw",
    [
        archive("a.png", "a.txt") + archive("b.png", "b.txt"),
        gzip.compress(archive("a.png", "a.txt")) + gzip.compress(archive("b.png", "b.txt")),
        archive("a.png", "a.txt", "b.png", "b.txt")[:2048],
        archive("a.png", "a.txt", "b.png", "b.txt")[:2100],
        archive("a.png", "a.txt")[:1024] + b"\xff" * 512 + archive("b.png", "b.txt"),
    ],
    ids=["joined", "joined and compressed", "without an end", "truncated", "damaged"],
)
def test_an_archive_that_ends_before_the_file_is_refused(tmp_path, raw):
    path = write(tmp_path / "a.tar", raw)
    with pytest.raises(DataError) as caught:
        read("webdataset", path, images=tmp_path / "i")
    assert caught.value.file == path and not (tmp_path / "i").exists()


def test_what_follows_a_compressed_archive_is_told(tmp_path):
    path = write(tmp_path / "a.tar.gz", gzip.compress(archive("a.png", "a.txt")) + b"more")
    data, notes = noted("webdataset", path, images=tmp_path / "i")
    assert data.ids == ("a",) and "after the end" in notes[0]


def test_members_cannot_lead_elsewhere_on_windows_and_errors_name_their_item(tmp_path):
    path = tar(tmp_path / "a.tar", [("d\\a.png", b"A"), ("C:\\b.png", b"B")])
    data, _ = noted("webdataset", path, images=tmp_path / "i")
    assert len(data) == 2
    assert not [image for image in data.images if set("\\:") & set(image.name)]
    path = tar(tmp_path / "b.tar", [("a.png", b"A"), ("b.png", b"B"), ("b.json", b'{"labels": {"x": 1}}')])
    with pytest.raises(DataError) as caught:
        read("webdataset", path, images=tmp_path / "i")
    assert caught.value.file == path and caught.value.field.endswith(" b")


@pytest.mark.parametrize("names", [("train", "val"), ("Train", "TEST")])
def test_folders_of_a_split_are_no_labels(tmp_path, names):
    for name in names:
        for label in ("cat", "dog"):
            write(tmp_path / f"f/{name}/{label}/1.png")
    data, notes = noted("folders", tmp_path / "f")
    assert data.label_names == ("cat", "dog") and data.texts[0] == ("cat",) and names[0] in notes[0]
    write(tmp_path / "f/other/deep/1.png")
    data, notes = noted("folders", tmp_path / "f")
    assert data.label_names == tuple(sorted((*names, "other"))) and "/" in notes[0]


def test_names_that_are_not_utf8_and_empty_texts_are_told(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"p/{name}.png")
        write(tmp_path / f"p/{name}.txt", "text" if name == "a" else "\ufeff\n")
    (tmp_path / os.fsdecode(b"p/caf\xe9.png")).touch()
    data, notes = noted("pairs", tmp_path / "p")
    assert data.ids == ("a", "b") and len(notes) == 2 and "udce9" in notes[0] and "b.txt" in notes[1]


# Images


def test_a_format_whose_decoder_starts_a_program_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", None)  # would be called
    path = write(tmp_path / "a.jpg", "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n%%EOF\n")
    with pytest.raises(DataError) as caught:
        open_image(path)
    assert caught.value.file == path


@pytest.mark.parametrize(
    "ending", ["png", "gif", "bmp", "tif", "webp", "avif", "jp2", "ico", "ppm", "tga", "sgi", "pcx"]
)
def test_formats_of_images_are_read(tmp_path, ending):
    Image.new("RGB", (32, 32), "red").save(tmp_path / f"a.{ending}")
    red, green, blue = open_image(tmp_path / f"a.{ending}").getpixel((0, 0))
    assert red > 250 and green < 5 and blue < 5


@pytest.mark.parametrize("high", [1.0001, 2, 15.9, float("inf"), 70000])
def test_a_float_image_between_the_ranges_is_refused(tmp_path, high):
    Image.fromarray(np.array([[0, high]], np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(DataError):
        open_image(tmp_path / "a.tif")
    Image.fromarray(np.array([[0, 1]], np.float32)).save(tmp_path / "a.tif")
    assert np.asarray(open_image(tmp_path / "a.tif")).tolist() == [[[0, 0, 0], [255, 255, 255]]]


def test_a_name_that_is_too_long_is_an_image_that_cannot_be_read():
    with pytest.raises(DataError):
        open_image(Path("x" * 5000 + ".png"))


# MATLAB and numpy


def trio(folder, index=("D:\\set\\a.jpg", "D:\\set\\b.jpg"), caption=("x", "y"), category=((1, 0), (0, 1)), **more):
    folder.mkdir()
    scipy.io.savemat(folder / "index.mat", {"index": np.array(index), **more})
    scipy.io.savemat(folder / "caption.mat", {"caption": caption if isinstance(caption, list) else np.array(caption)})
    scipy.io.savemat(folder / "label.mat", {"category": np.array(category)})
    return folder


@pytest.mark.parametrize("old", ["D:\\set", "D:/set/", "D:\\"])
def test_folders_are_replaced_as_they_are_written_in_the_file(tmp_path, old):
    images = read_mat(trio(tmp_path / "m"), root={old: "/new"}).images
    assert [str(path) for path in images] == [
        f"/new/{'set/' if old == 'D:' + chr(92) else ''}{name}.jpg" for name in "ab"
    ]


@pytest.mark.parametrize("old", ["/set", "D:\\se", "E:\\set"])
def test_a_folder_that_no_image_is_in_is_refused(tmp_path, old):
    with pytest.raises(ConfigError) as caught:
        read_mat(trio(tmp_path / "m"), root={old: "/new"})
    assert caught.value.option == "root" and repr(old) in caught.value.problem


def test_numbers_are_ids_where_they_are_whole_and_never_texts_or_paths(tmp_path):
    assert read_mat(trio(tmp_path / "ids", ids=np.array([[101.0], [102.0]]))).ids == ("101", "102")
    assert read_mat(trio(tmp_path / "struct", caption=[{"text": "x"}, {"text": "y"}])).texts == (("x",), ("y",))
    for name, change, file, row in (
        ("half", {"ids": np.array([[0.5], [1]])}, "index.mat", 1),
        ("path", {"index": ((1.0,), (2.0,))}, "index.mat", 1),
        ("odd", {"caption": [{"a": 1}, {"a": 2}]}, "caption.mat", 1),
    ):
        with pytest.raises(DataError) as caught:
            read_mat(trio(tmp_path / name, **change))
        assert (caught.value.row, caught.value.file.name in (file, name)) == (row, True)


def test_class_numbers_become_one_column_each(tmp_path):
    data = read_mat(trio(tmp_path / "m", category=((2,), (11,))))
    assert data.label_names == ("label 02", "label 11") and data.labels.tolist() == [[1, 0], [0, 1]]
    data = read_mat(trio(tmp_path / "n", category=((1,), (3,))), label_names=["x", "y", "z"])
    assert data.labels.tolist() == [[1, 0, 0], [0, 0, 1]]  # 3 of 3 names: counted from 1
    with pytest.raises(DataError) as caught:
        read_mat(trio(tmp_path / "o", category=((1,), (2,))), label_names=["x", "y", "z"])
    assert "'x'" in caught.value.problem and "'y'" in caught.value.problem
    vectors = {"XAll": np.eye(3), "YAll": np.eye(3), "LAll": np.array([[4], [2], [4]])}
    scipy.io.savemat(tmp_path / "f.mat", vectors)
    assert read_mat_features(tmp_path / "f.mat")["labels"].tolist() == [[0, 1], [1, 0], [0, 1]]


def test_an_array_that_is_declared_far_larger_than_its_file_is_refused(tmp_path, monkeypatch):
    scipy.io.savemat(tmp_path / "f.mat", {"XAll": np.zeros((900, 900)), "YAll": np.eye(2), "LAll": np.eye(2)},
                     do_compression=True)  # fmt: skip
    monkeypatch.setattr("multibit.data.sources.mat_files.LARGEST", 1 << 20)
    with pytest.raises(DataError) as caught:
        read_mat_features(tmp_path / "f.mat")
    assert (caught.value.file, caught.value.field) == (tmp_path / "f.mat", "XAll")


def test_an_array_of_objects_is_named_by_its_key(tmp_path):
    np.savez(tmp_path / "f.npz", image=np.eye(2), ids=np.array(["a", "b"], object))
    with pytest.raises(DataError) as caught:
        read_npz(tmp_path / "f.npz")
    assert (caught.value.file, caught.value.field) == (tmp_path / "f.npz", "ids") and "str" in caught.value.hint


@pytest.mark.parametrize(("key", "value"), [("ids", [0.5, 1.5]), ("texts", [1, 2]), ("label_names", [0.5, 2])])
def test_names_of_another_type_are_refused_in_features(tmp_path, key, value):
    eye = np.eye(2, dtype=np.float32)
    np.savez(tmp_path / "f.npz", image=eye, text=eye, labels=np.eye(2, dtype=np.uint8), **{key: np.array(value)})
    with pytest.raises(DataError) as caught:
        FeatureStore.open(tmp_path / "f.npz")
    assert (caught.value.file, caught.value.field) == (tmp_path / "f.npz", key)


def hdf5(path, change):
    """A v7.3 file with a matrix `LAll`, `XAll` and `YAll`, after a change."""
    with h5py.File(path, "w") as file:
        for name in ("XAll", "YAll", "LAll"):
            file[name] = np.eye(2)
        change(file)
    return path


def external(file, name="LAll"):
    del file[name]
    file.create_dataset(name, (2, 2), dtype="u1", external=[("/etc/passwd", 0, 4)])


def linked(file):
    del file["LAll"]
    file["LAll"] = h5py.ExternalLink("/etc/passwd", "x")


def virtual(file):
    del file["LAll"]
    layout = h5py.VirtualLayout((2, 2), "u1")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (2, 2))
    file.create_virtual_dataset("LAll", layout)


@pytest.mark.parametrize("change", [external, linked, virtual])
def test_values_of_other_files_are_never_read(tmp_path, change):
    path = hdf5(tmp_path / "f.mat", change)
    with pytest.raises(DataError) as caught:
        read_mat_features(path)
    assert (caught.value.file, caught.value.field) == (path, "LAll")


def test_links_that_are_not_asked_for_are_no_harm(tmp_path):
    def change(file):
        file["gone"], file["soft"] = h5py.ExternalLink("gone.h5", "x"), h5py.SoftLink("/gone")

    assert read_mat_features(hdf5(tmp_path / "f.mat", change))["labels"].tolist() == [[1, 0], [0, 1]]


# Splits


IDS = [f"im{row}" for row in range(6)]


def roles_of(path, ids=IDS, **roles):
    if path.suffix == ".mat":
        scipy.io.savemat(path, roles)
    elif path.suffix == ".npz":
        np.savez(path, **roles)
    else:
        path.write_text(json.dumps(roles))
    return {role: rows.tolist() for role, rows in read_roles(path, ids).items()}


def cell(*values):
    out = np.empty((1, len(values)), object)
    out[0, :] = values
    return out


def test_rows_of_matlab_count_from_where_all_of_them_fit(tmp_path):
    whole = {"train": [0, 1], "query": [4, 5]}
    assert roles_of(tmp_path / "a.mat", train=[1.0, 2.0], query=[5.0, 6.0]) == whole
    assert roles_of(tmp_path / "b.mat", train=[0, 1], query=[4, 5]) == whole
    assert roles_of(tmp_path / "c.mat", train=cell("im0", "im1"), query=cell("im4", "im5")) == whole
    assert (
        roles_of(tmp_path / "d.mat", train=np.array([1, 1, 0, 0, 0, 0], bool), query=[[0], [0], [0], [0], [1], [1]])
        == whole
    )
    assert roles_of(tmp_path / "e.mat", train=cell(1.0, 2.0), query=cell(5.0, 6.0)) == whole
    with pytest.raises(DataError) as caught:
        roles_of(tmp_path / "f.mat", train=[1, 2], query=[4, 5])
    assert all(part in caught.value.problem for part in ("'im1'", "'im0'", "from 0", "from 1"))
    assert roles_of(tmp_path / "g.json", train=[1, 2], query=[4, 5]) == {"train": [1, 2], "query": [4, 5]}


@pytest.mark.parametrize("ending", ["json", "npz", "mat"])
def test_numbers_are_ids_where_the_data_has_all_of_them(tmp_path, ending):
    ids = [str(number) for number in range(1, 7)]
    assert roles_of(tmp_path / f"a.{ending}", ids, train=[1, 2], query=[4, 5]) == {"train": [0, 1], "query": [3, 4]}
    if ending != "mat":
        assert roles_of(tmp_path / f"b.{ending}", ids, train=[0, 1], query=[4, 5]) == {"train": [0, 1], "query": [4, 5]}


def test_masks_are_rows_and_a_mask_of_other_data_is_refused(tmp_path):
    masks = {"train": np.arange(6) < 3, "query": np.arange(6) > 3}
    assert roles_of(tmp_path / "a.npz", **masks) == {"train": [0, 1, 2], "query": [4, 5]}
    assert roles_of(tmp_path / "a.json", **{role: mask.tolist() for role, mask in masks.items()})["query"] == [4, 5]
    with pytest.raises(DataError) as caught:
        roles_of(tmp_path / "b.npz", train=np.ones(4, bool), query=masks["query"])
    assert caught.value.field == "train"


def test_an_overlap_names_roles_of_the_file_only():
    with pytest.raises(ConfigError) as caught:
        Split.of_roles(30, {"train": np.arange(20), "query": np.arange(19, 25)})
    assert "train" in caught.value.problem and "validation" not in caught.value.problem


# Images, pipes, memory and links


@pytest.mark.parametrize(
    ("values", "grey"),
    [
        (np.full((4, 4), 0.5, np.float32), 128),
        (np.full((4, 4), 200, np.float32), 200),
        (np.full((4, 4), 0x8000, np.float32), 128),
        (np.full((4, 4), 0x8000, np.int32), 128),
    ],
)
def test_deep_images_are_scaled_by_their_range(tmp_path, values, grey):
    Image.fromarray(values).save(tmp_path / "a.tif")
    assert open_image(tmp_path / "a.tif").getpixel((0, 0)) == (grey,) * 3


@pytest.mark.parametrize("value", [-1.0, 1e6, np.nan])
def test_images_of_an_unknown_range_are_refused(tmp_path, value):
    Image.fromarray(np.array([[0.5, value]], np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(DataError) as caught:
        open_image(tmp_path / "a.tif")
    assert caught.value.file == tmp_path / "a.tif"


@pytest.mark.parametrize("reader", [open_image, read_manifest, read_npz, Config.load])
def test_a_named_pipe_is_refused_and_never_waited_for(tmp_path, reader):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises((DataError, ConfigError)) as caught:
        reader(tmp_path / "pipe.csv")
    assert "named pipe" in caught.value.problem


def test_a_link_is_replaced_and_what_it_leads_to_is_kept(tmp_path):
    write(tmp_path / "mine", "precious")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with replacing(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "mine").read_text() == "precious" and not (tmp_path / "link").is_symlink()


def test_memory_grows_with_the_labels_that_are_given():
    code = """
import resource, sys, tempfile, pathlib
from multibit.data.dataset import PairedDataset
from multibit.data.manifest import read_manifest, write_manifest
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
items = ((str(i), None, ["x"], [f"tag{(i * 7 + k) % 9000}" for k in range(5)]) for i in range(20_000))
data = PairedDataset.of_items(items)
path = pathlib.Path(tempfile.mkdtemp()) / "m.jsonl"
write_manifest(data.take(range(15_000)), path)
assert len(read_manifest(path)) == 15_000 and data.label_rows.shape == (20_000, 9_000)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    grown = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    assert grown < 120, "MiB; the dense labels alone have 172"


def test_sparse_and_dense_labels_are_the_same_data(tmp_path):
    items = [("a", None, ["x"], ["dog", "cat"]), ("b", None, ["y"], []), ("c", None, ["z"], ["cat"])]
    data = PairedDataset.of_items(items)
    dense = PairedDataset(data.ids, data.images, data.texts, data.labels, data.label_names)
    assert data.fingerprint() == dense.fingerprint()
    assert data.label_rows.per_label().tolist() == [2, 1] and data.label_rows.per_item().tolist() == [2, 0, 1]
    assert data.take([2, 0]).labels.tolist() == dense.take([2, 0]).labels.tolist() == [[1, 0], [1, 1]]
    write_manifest(data, tmp_path / "m.parquet")
    assert read_manifest(tmp_path / "m.parquet", label_names=data.label_names).fingerprint() == data.fingerprint()


# Edited headers


def test_a_header_that_was_edited_is_refused_or_gives_the_same_store(tmp_path):
    eye = np.eye(4, dtype=np.float32)
    data = PairedDataset(tuple("abcd"), (None,) * 4, (("t",),) * 4, np.eye(4, dtype=np.uint8), tuple("wxyz"))
    FeatureStore(data, eye, eye, np.arange(5), Recipe.ready_made("mine", 4, 4)).save(tmp_path / "store")
    path = tmp_path / "store/store.json"
    whole = json.loads(path.read_text())
    places = [(whole, key) for key in whole]
    nested = whole["checksums"], whole["recipe"], whole["recipe"]["image"]
    places += [(inner, key) for inner in nested for key in inner]
    values = [None, -1, 0, 2, 10**30, 1.5, "", "../x", True, [], ["a"], {}, {"a": 1}, "\ud800", [[[]]]]
    outcomes = {"refused": 0, "same": 0}
    for holder, key in places:
        kept = holder[key]
        for value in values:
            holder[key] = value
            path.write_text(json.dumps(whole))
            try:
                assert FeatureStore.open(tmp_path / "store").fingerprint()
                outcomes["same"] += 1
            except (FormatError, DataError, ConfigError):
                outcomes["refused"] += 1
        holder[key] = kept
    assert outcomes["refused"] > 200, outcomes
    for text in ("9" * 5000, "[" * 100_000, '{"checksums": {}}', "\ud800".encode("utf-16", "surrogatepass").hex()):
        path.write_text(text)
        with pytest.raises(FormatError):
            FeatureStore.open(tmp_path / "store")


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ('{"train": [0], "train": [1], "query": [2]}', "train"),
        ('{"train": [0], "tr": [1], "query": [2]}', "train"),
        ('{"Train": [0], "train": [1], "query": [2]}', "train"),
        ('{"train": [-1], "query": [2]}', "train"),
        ('{"train": [0], "query": [6]}', "query"),
        ('{"train": [1e19], "query": [2]}', "train"),
        ('{"train": [[0, 1], 2], "query": [2]}', "train"),
    ],
)
def test_roles_that_are_not_one_or_not_in_the_data_are_refused(tmp_path, text, role):
    path = write(tmp_path / "s.json", text)
    with pytest.raises(DataError) as caught:
        read_roles(path, IDS)
    assert (caught.value.file, caught.value.field) == (path, role)


def test_roles_in_any_case_and_items_in_any_form_are_found(tmp_path):
    ids = ["dog/1", "cat/1", "caf\u00e9", " x", "x"]
    lines = {"Train": ["dog/1.jpg", "cat\\1.jpg 0"], "QUERY": ["cafe\u0301.png"], "db": [" x", "x"]}
    assert roles_of(tmp_path / "s.json", ids, **lines) == {"train": [0, 1], "query": [2], "database": [3, 4]}


def test_items_without_a_group_are_not_one_group(tmp_path):
    rows = [("im0", None), ("im1", None), ("im2", 1.0), ("im3", "1"), ("im4", "")]
    path = write(tmp_path / "g.jsonl", "\n".join(json.dumps({"id": name, "group": group}) for name, group in rows))
    assert len(set(read_groups(path, IDS).tolist())) == 5
    for text, row in (("id,group\nim0,a\nim0,b\n", 3), ('{"id": "im0", "group": {"a": 1}}', 1)):
        path = write(tmp_path / ("g.csv" if row == 3 else "h.jsonl"), text)
        with pytest.raises(DataError) as caught:
            read_groups(path, IDS)
        assert (caught.value.file, caught.value.row, caught.value.field) == (path, row, "group")
