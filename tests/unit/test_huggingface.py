"""Data sets for the `datasets` library, read back by it and by our own reader."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from commands import done, refused
from multibit import Codes, Index, PairedDataset, open_features, read
from multibit.data.huggingface import write_huggingface
from multibit.data.manifest import write_manifest
from multibit.errors import DataError
from multibit.hashing.encode import encode_store
from multibit.pipeline import write_index_items

datasets = pytest.importorskip("datasets")


def pictures(folder):
    """Image files with names that libraries take for addresses."""
    paths = [folder / "a b.png", folder / "ü#1.png", folder / "x::y.png"]
    from PIL import Image

    for number, path in enumerate(paths):
        Image.new("RGB", (3 + number, 2), (40 * number, 9, 9)).save(path)
    return paths


@pytest.fixture
def items(tmp_path):
    first, second, third = pictures(tmp_path)
    return PairedDataset.of_items(
        [
            ("im/1", first, ["a cat", "un chat"], ["cat"]),
            ("2 ü", second, [""], ["dog", "cat"]),
            ("3", None, ["a bird"], []),
            ("4", third, ["🐈"], ["dog"]),
        ]
    )


def test_what_is_written_is_read_back(items, tmp_path):
    codes = np.arange(64, dtype=np.uint8).reshape(4, 16)
    write_huggingface(items, tmp_path / "out", codes={"code": codes}, description="what they are")
    found = datasets.load_from_disk(tmp_path / "out")
    assert found.features["image"] == datasets.Image()
    assert found.features["labels"] == datasets.List(datasets.ClassLabel(names=["cat", "dog"]))
    assert found.features["code"] == datasets.List(datasets.Value("uint8"), length=16)
    assert found.info.description == "what they are"
    assert np.array_equal(found.with_format("numpy")["code"], codes)
    assert [None if image is None else image.size for image in found["image"]] == [(3, 2), (4, 2), None, (5, 2)]
    assert found["labels"] == [[0], [0, 1], [], [1]]
    back = read("huggingface", tmp_path / "out", images=tmp_path / "images")
    assert (back.ids, back.texts, back.label_names) == (items.ids, items.texts, items.label_names)
    assert np.array_equal(back.labels, items.labels)
    for one, other in zip(items.images, back.images, strict=True):
        assert (one is None) == (other is None) and (one is None or one.read_bytes() == other.read_bytes())
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".arrow", ".json", ".json"]


def test_the_library_has_its_progress_bars_back_afterwards(items, tmp_path, capfd):
    assert not datasets.are_progress_bars_disabled()
    write_huggingface(items, tmp_path / "out")
    assert not datasets.are_progress_bars_disabled()
    assert capfd.readouterr() == ("", "")


def test_items_without_labels_and_images(tmp_path):
    data = PairedDataset(("a",), (None,), (("one",),), np.zeros((1, 0), np.uint8), ())
    write_huggingface(data, tmp_path / "out")
    back = read("huggingface", tmp_path / "out", images=tmp_path / "images")
    assert (back.ids, back.images, back.label_names) == (data.ids, data.images, ())


def test_memory_is_bounded_by_blocks(items, tmp_path, monkeypatch):
    """No more rows of further columns become Python objects than a block has."""
    import pyarrow

    class Watched:
        schema, num_rows, column_names = pyarrow.schema([("year", pyarrow.int64())]), 4, ["year"]

        def slice(self, start, count):
            assert count == 3
            return pyarrow.table({"year": list(range(start, min(start + count, 4)))})

    monkeypatch.setattr("multibit.data.huggingface.ROWS", 3)
    write_huggingface(items, tmp_path / "out", fields=Watched())
    assert datasets.load_from_disk(tmp_path / "out")["year"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("codes", "field"),
    [({"code": np.zeros((3, 2), np.uint8)}, "code"), ({"labels": np.zeros((4, 2), np.uint8)}, "labels")],
)
def test_columns_that_do_not_fit_are_refused(items, tmp_path, codes, field):
    with pytest.raises(DataError) as caught:
        write_huggingface(items, tmp_path / "out", codes=codes)
    assert caught.value.field == field and not (tmp_path / "out").exists()


def test_a_missing_image_and_an_existing_folder_are_refused(items, tmp_path):
    items.images[1].unlink()
    with pytest.raises(DataError) as caught:
        write_huggingface(items, tmp_path / "out")
    assert caught.value.file == items.images[1] and not (tmp_path / "out").exists()
    with pytest.raises(DataError):
        write_huggingface(items, tmp_path)


# Indices, runs and data sets


def test_an_index_is_exported_with_its_codes_and_fields(tmp_path):
    path = pictures(tmp_path)[0]
    index = Index("m" * 16, modality="image")
    payloads = [{"image": path.name, "text": "a cat", "labels": ["cat"], "year": 2001}, {"labels": []}, {"year": 2}]
    codes = Codes.from_bits(np.random.default_rng(0).integers(0, 2, (3, 20)))
    index.add([7, 8, 9], codes, payloads)
    index.save(tmp_path / "image.mbx")
    assert done("export", tmp_path / "image.mbx", "--to", "huggingface", "--out", tmp_path / "out", "--bits", 12)
    found = datasets.load_from_disk(tmp_path / "out")
    assert found["id"] == ["7", "8", "9"] and found["year"] == [2001, None, 2] and found[0]["image"].size == (3, 2)
    assert (
        Codes.from_bytes(np.array(found["code"], np.uint8), 12).to_bits().tolist() == codes.to_bits()[:, :12].tolist()
    )
    assert index.model in found.info.description
    write_index_items(Index.open(tmp_path / "image.mbx"), tmp_path / "whole")
    assert datasets.load_from_disk(tmp_path / "whole").features["code"].length == 3
    with pytest.raises(DataError):
        write_index_items(Index(), tmp_path / "empty")


def test_a_field_with_the_name_of_a_column_is_refused(tmp_path):
    index = Index()
    index.add(["a"], Codes.from_bits([[1, 0]]), [{"texts": 3}])
    with pytest.raises(DataError) as caught:
        write_index_items(index, tmp_path / "out")
    assert caught.value.field == "texts"


@pytest.mark.slow
def test_a_run_is_exported_with_the_codes_of_both_modalities(pictured, tmp_path):
    out = done("export", pictured.folder, "--to", "huggingface", "--out", tmp_path / "out", "--bits", 16)
    store = open_features(pictured)
    coded = encode_store(pictured.model, store).at(16)
    found = datasets.load_from_disk(tmp_path / "out")
    assert f"{len(store)}" in out and found["id"] == list(store.dataset.ids)
    for modality in ("image", "text"):
        expected = coded.codes(modality).prefix(16).to_bytes()
        assert np.array_equal(np.array(found[f"{modality}_code"], np.uint8), expected)


def test_several_codes_for_each_item_are_refused(tmp_path):
    index = Index()
    index.add(["a", "b"], Codes.from_bits(np.zeros((2, 3, 20), np.uint8)))
    index.save(tmp_path / "image.mbx")
    refused("export", tmp_path / "image.mbx", "--to", "huggingface", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_manifest_is_exported(items, tmp_path):
    write_manifest(items, tmp_path / "items.jsonl")
    done("export", tmp_path / "items.jsonl", "--to", "huggingface", "--out", tmp_path / "out")
    assert datasets.load_from_disk(tmp_path / "out")["id"] == list(items.ids)
    refused("export", tmp_path / "items.jsonl", "--to", "huggingface", "--out", tmp_path / "more", "--bits", 8)
    refused("export", tmp_path / "items.jsonl", "--to", "huggingface", "--out", tmp_path / "more.parquet")
    shutil.rmtree(tmp_path / "out")
    refused("export", tmp_path / "items.jsonl", "--to", "portable", "--out", tmp_path / "out")
