"""Images in folders, in tar shards, and in data sets of the Hugging Face library."""

import io
import json
import sys
import tarfile
import warnings

import datasets
import pytest
from PIL import Image

from multibit.data.sources import DataNote, read
from multibit.data.sources.folders import read_folders, read_pairs
from multibit.data.sources.huggingface import read_huggingface
from multibit.data.sources.webdataset import read_webdataset
from multibit.errors import ConfigError, DataError, MissingExtraError


def write(path, content=b""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def reading(reader, *arguments, **options):
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", DataNote)
        data = reader(*arguments, **options)
    return data, [str(each.message) for each in notes]


def image(color, kind="PNG"):
    out = io.BytesIO()
    Image.new("RGB", (4, 4), color).save(out, kind)
    return out.getvalue()


# Folders


def test_pairs_are_found_by_stem(tmp_path):
    for name in ("a.jpg", "sub/b.PNG", "alone.jpg", "._a.jpg", ".hidden/c.jpg", "x.heic", "y.heic", "z.psd"):
        write(tmp_path / name)
    write(tmp_path / "a.txt", "a cat\n\nanother\n")
    write(tmp_path / "a.labels", "cat\nanimal\n")
    write(tmp_path / "sub/b.txt", "un café".encode("utf-16"))
    write(tmp_path / "widow.txt", "text")
    write(tmp_path / ".hidden/c.txt", "text")
    data, notes = reading(read_pairs, tmp_path)
    assert data.ids == ("a", "sub/b") and data.images == (tmp_path / "a.jpg", tmp_path / "sub/b.PNG")
    assert data.texts == (("a cat", "another"), ("un café",)) and data.label_names_of(0) == ["animal", "cat"]
    assert len(notes) == 4 and all(each.startswith(f"{tmp_path}: ") for each in notes)
    assert "hidden files or folders (2)" in notes[0] and ".heic (2), .psd (1)" in notes[1]
    assert "images without a text (1)" in notes[2] and f"{tmp_path / 'alone.jpg'}" in notes[2]
    assert "texts without an image (1)" in notes[3] and f"{tmp_path / 'widow.txt'}" in notes[3]


def test_pairs_without_labels_have_none(tmp_path):
    write(tmp_path / "a.b.jpg")
    write(tmp_path / "a.b.txt", "x")
    data, _ = reading(read_pairs, tmp_path)
    assert data.ids == ("a.b",) and data.labels.shape == (1, 0)


def test_two_images_of_one_stem_are_noted(tmp_path):
    for name in ("a.jpg", "a.png"):
        write(tmp_path / name)
    write(tmp_path / "a.txt", "x")
    data, notes = reading(read_pairs, tmp_path)
    assert data.images == (tmp_path / "a.jpg",) and f"{tmp_path / 'a.png'}" in notes[0]


def test_a_loop_of_links_ends(tmp_path):
    write(tmp_path / "a/1.jpg")
    (tmp_path / "a/loop").symlink_to(tmp_path, target_is_directory=True)
    assert reading(read_folders, tmp_path)[0].ids == ("a/1",)


def test_a_sub_folder_is_a_label(tmp_path):
    for name in ("dog/1.jpg", "dog/deep/2.jpg", "big_cat/1.jpg", "stray.jpg"):
        write(tmp_path / name)
    write(tmp_path / "dog/1.txt", "a brown dog")
    data, notes = reading(read_folders, tmp_path)
    assert data.ids == ("big_cat/1", "dog/1", "dog/deep/2") and data.label_names == ("big_cat", "dog")
    assert data.texts == (("big cat",), ("a brown dog",), ("dog",))
    assert "(1)" in notes[0] and "stray.jpg" in notes[0] and "dog/deep" in notes[1] and "2 images" in notes[2]


@pytest.mark.parametrize("reader", [read_pairs, read_folders])
def test_folders_without_any_are_refused(tmp_path, reader):
    write(tmp_path / "a.txt", "x")
    with pytest.raises(DataError) as caught:
        reading(reader, tmp_path)
    assert caught.value.file == tmp_path
    with pytest.raises(DataError) as caught:
        reader(tmp_path / "absent")
    assert caught.value.file == tmp_path / "absent"


# Tar shards


def shard(path, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            raw = content if isinstance(content, bytes) else content.encode("utf-8")
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
    return path


def test_shards_are_read_in_order_and_images_unpacked(tmp_path):
    shard(tmp_path / "s/1.tar", {"c.jpg": b"C", "c.txt": "a sea", "c.cls": "3", "d.txt": "no image"})
    about = {"caption": "a café", "labels": ["x", "y"]}
    shard(tmp_path / "s/0.tar", {"./p/a.png": b"A", "./p/a.json": json.dumps(about), "b.v1.jpg": b"?", "b.jpg": b"B"})
    data, notes = reading(read_webdataset, tmp_path / "s", images=tmp_path / "unpacked")
    assert data.ids == ("p/a", "b", "c") and data.texts == (("a café",), ("",), ("a sea",))
    assert [data.label_names_of(row) for row in range(3)] == [["x", "y"], [], ["3"]]
    assert [path.read_bytes() for path in data.images] == [b"A", b"B", b"C"]
    assert data.images[0] == tmp_path / "unpacked/p/a.png"
    assert len(notes) == 2 and notes[0] == f"{tmp_path / 's'}: left out items without an image (1), such as d."
    assert ".v1.jpg (1)" in notes[1]


@pytest.mark.parametrize("name", ["../evil.jpg", "/abs/evil.jpg", "a/../../evil.jpg"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path, name):
    with pytest.raises(DataError) as caught:
        read_webdataset(shard(tmp_path / "s.tar", {name: b"x"}), images=tmp_path / "unpacked")
    assert caught.value.file == tmp_path / "s.tar" and name in caught.value.problem
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize("ending", ["jpg", "json"])
def test_a_truncated_shard_is_named(tmp_path, ending):
    path = shard(tmp_path / "s.tar", {"a.jpg": b"x" * 4000, f"b.{ending}": "{" * 4000})
    path.write_bytes(path.read_bytes()[:6000])
    with pytest.raises(DataError) as caught:
        read_webdataset(path, images=tmp_path / "p")
    assert (caught.value.file, caught.value.field) == (path, "")


def test_the_error_of_a_file_that_is_not_a_tar_is_one_line(tmp_path):
    write(tmp_path / "a.tar", b"junk" * 300)
    with pytest.raises(DataError) as caught:
        read_webdataset(tmp_path / "a.tar", images=tmp_path / "images")
    assert caught.value.file == tmp_path / "a.tar" and not set("\n:") & set(caught.value.problem)


def test_invalid_shards_are_refused_with_file_and_field(tmp_path):
    shard(tmp_path / "j.tar", {"a.jpg": b"x", "a.json": "{"})
    shard(tmp_path / "s.tar", {"a.jpg": b"x", "a.JPG": b"x"})
    (tmp_path / "empty").mkdir()
    for name, field in (("empty", ""), ("x.tar", ""), ("j.tar", "a.json"), ("s.tar", "a.JPG")):
        with pytest.raises(DataError) as caught:
            read_webdataset(tmp_path / name, images=tmp_path / "p")
        assert (caught.value.file, caught.value.field) == (tmp_path / name, field)


# Hugging Face


def saved(path, columns, features=None):
    part = datasets.Dataset.from_dict(columns, datasets.Features(features) if features else None)
    part.save_to_disk(str(path))
    return path


def test_images_texts_and_class_labels_are_read(tmp_path):
    raw = [image("red"), image("blue", "JPEG")]
    columns = {
        "image": [{"bytes": content, "path": None} for content in raw],
        "captions": [["a", "b"], ["c"]],
        "label": [[0, 1], [1]],
    }
    features = {
        "image": datasets.Image(),
        "captions": datasets.Sequence(datasets.Value("string")),
        "label": datasets.Sequence(datasets.ClassLabel(names=["cat", "dog"])),
    }
    data, notes = reading(read_huggingface, saved(tmp_path / "d", columns, features), images=tmp_path / "p")
    assert data.ids == ("00000000", "00000001") and data.texts == (("a", "b"), ("c",)) and not notes
    assert [data.label_names_of(row) for row in range(2)] == [["cat", "dog"], ["dog"]]
    assert [path.read_bytes() for path in data.images] == raw
    assert [path.suffix for path in data.images] == [".png", ".jpg"]


def test_columns_are_mapped_and_paths_kept(tmp_path):
    path = saved(tmp_path / "d", {"file": ["/x/1.jpg", ""], "title": ["t", None], "kind": ["k", "l"], "key": [7, 8]})
    names = {"image": "file", "text": "title", "labels": "kind"}
    data, _ = reading(read_huggingface, path, images=tmp_path / "p", names=names)
    assert data.ids == ("7", "8") and str(data.images[0]) == "/x/1.jpg" and data.images[1] is None
    assert data.texts == (("t",), ("",)) and data.label_names == ("k", "l")
    with pytest.raises(DataError) as caught:
        read_huggingface(path, images=tmp_path / "p")
    assert (caught.value.file, caught.value.field) == (path, "image") and "`names`" in caught.value.hint
    assert "image or img or picture; it has file, title, kind, key" in caught.value.problem
    with pytest.raises(ConfigError) as caught:
        read_huggingface(path, images=tmp_path / "p", names={"picture": "file"})
    assert caught.value.option == "names"


def test_splits_are_joined(tmp_path):
    parts = {name: datasets.Dataset.from_dict({"image": ["a.jpg"], "text": [name]}) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "d"))
    data, notes = reading(read_huggingface, tmp_path / "d", images=tmp_path / "p")
    assert data.ids == ("train-00000000", "test-00000000") and "train, test" in notes[0]


def test_another_folder_is_refused_and_a_missing_library_named(tmp_path, monkeypatch):
    with pytest.raises(DataError) as caught:
        read_huggingface(tmp_path, images=tmp_path / "p")
    assert caught.value.file == tmp_path
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError) as caught:
        read_huggingface(tmp_path, images=tmp_path / "p")
    assert (caught.value.module, caught.value.extra) == ("datasets", "huggingface")


# The registry


@pytest.mark.parametrize(
    ("kind", "options", "option", "hint"),
    [
        ("flickr", {}, "kind", ""),
        ("coco", {"root": {"a": "b"}, "names": None}, "root", "Leave out `root`; coco takes `images`."),
        ("pairs", {"names": {"a": "b"}, "label_names": ["a"]}, "label_names", "Leave out `label_names`, `names`;"),
        ("webdataset", {}, "images", ""),
    ],
)
def test_a_kind_takes_its_own_options_only(tmp_path, kind, options, option, hint):
    with pytest.raises(ConfigError) as caught:
        read(kind, tmp_path, **options)
    assert caught.value.option == option and caught.value.hint.startswith(hint)
    assert kind in caught.value.problem
