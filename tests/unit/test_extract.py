"""Feature extraction: what is encoded, what is skipped, and what a crash costs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from multibit import FeatureStore, PairedDataset
from multibit.data.sources import DataNote
from multibit.errors import BusyError, ConfigError, DataError, FormatError, MismatchError
from multibit.features import extract
from multibit.features.base import ImageFunction, TextFunction
from multibit.features.extract import extract_features
from multibit.features.recipe import EncoderRecipe, Recipe
from multibit.progress import showing, track

pytestmark = pytest.mark.slow  # images are encoded

ITEMS = 11
IMAGE_RECIPE, TEXT_RECIPE = EncoderRecipe("eyes", "w1", 3, "mean colour"), EncoderRecipe("ears", "w2", 2, "letters")


@dataclass
class MeanColour:
    """An image encoder: the mean colour. Fails after `stop` images, if asked to."""

    recipe: EncoderRecipe = IMAGE_RECIPE
    batch_size: int = 3
    stop: int | None = None
    failure: type[BaseException] = RuntimeError
    batches: list[int] = field(default_factory=list)

    def prepare(self, image: Image.Image) -> np.ndarray:
        return np.asarray(image)

    def encode(self, prepared: Sequence[np.ndarray]) -> np.ndarray:
        different = len(set(map(id, prepared)))  # the last batch of a shard is filled up
        if self.stop is not None and sum(self.batches) + different > self.stop:
            raise self.failure
        self.batches.append(different)
        return np.array([pixels.reshape(-1, 3).mean(axis=0) for pixels in prepared], np.float32)


@dataclass
class Letters:
    """A text encoder: the length and the first letter. Fails at a text, if asked to."""

    recipe: EncoderRecipe = TEXT_RECIPE
    stop: str | None = None
    encoded: list[str] = field(default_factory=list)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        if self.stop in texts:
            raise RuntimeError
        self.encoded.extend(texts)
        return np.array([[len(text), ord(text[0])] for text in texts], np.float32)

    def truncated(self, texts: Sequence[str]) -> int:
        return sum(len(text) > 2 for text in texts)


@pytest.fixture
def data(tmp_path) -> PairedDataset:
    """Eleven images of one colour each, with one to three texts."""
    folder = tmp_path / "images"
    folder.mkdir()
    for row in range(ITEMS):
        Image.new("RGB", (4, 3), (row * 20, row, 255 - row)).save(folder / f"{row}.png")
    return PairedDataset(
        tuple(f"item {row}" for row in range(ITEMS)),
        tuple(folder / f"{row}.png" for row in range(ITEMS)),
        tuple(tuple(f"{chr(97 + row)}{'!' * part}" for part in range(1 + row % 3)) for row in range(ITEMS)),
        np.eye(ITEMS, dtype=np.uint8)[:, :4],
        ("p", "q", "r", "s"),
    )


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(extract, "SHARD", 4)


def extracted(data: PairedDataset, folder: Path, **options) -> FeatureStore:
    return extract_features(data, MeanColour(), Letters(), folder, **options)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "images")


def check_rows(store: FeatureStore, data: PairedDataset, kept: Sequence[int]) -> None:
    """The store holds the features of the kept items, computed one by one."""
    texts = [data.texts[row] for row in kept]
    assert store.dataset.ids == tuple(data.ids[row] for row in kept)
    assert np.array_equal(store.dataset.labels, data.labels[list(kept)])
    assert store.dataset.label_names == data.label_names
    assert store.image[:].tolist() == [[row * 20, row, 255 - row] for row in kept]
    assert store.text[:].tolist() == [[len(text), ord(text[0])] for several in texts for text in several]
    assert np.diff(store.offsets).tolist() == [len(several) for several in texts]


# What is encoded


def test_every_image_and_every_text_is_encoded_in_the_order_of_the_items(data, tmp_path):
    store = extracted(data, tmp_path / "store")
    check_rows(store, data, range(ITEMS))
    assert store.skipped == ()
    assert (store.recipe.image, store.recipe.text) == (IMAGE_RECIPE, TEXT_RECIPE)
    assert store.source == tmp_path / "store"


@pytest.mark.parametrize(("shard", "batch", "workers"), [(1, 1, 1), (4, 8, 3), (5, 2, 1), (64, 4, 4)])
def test_shards_batches_and_threads_change_nothing(data, tmp_path, monkeypatch, shard, batch, workers):
    usual = extracted(data, tmp_path / "usual")
    monkeypatch.setattr(extract, "SHARD", shard)
    image_encoder = MeanColour(batch_size=batch)
    other = extract_features(data, image_encoder, Letters(), tmp_path / "other", workers=workers)
    assert other.fingerprint() == usual.fingerprint()
    check_rows(other, data, range(ITEMS))
    assert max(image_encoder.batches) == min(batch, shard, ITEMS)


def test_nothing_but_the_store_is_left(data, tmp_path):
    extracted(data, tmp_path / "store")
    assert names(tmp_path) == ["store"]
    shards = [f"shard-{number:05d}.safetensors" for number in range(3)]
    assert names(tmp_path / "store") == ["items-00003.parquet", *shards, "store.json"]


# What is skipped


def spoil(data: PairedDataset, rows: Sequence[int]) -> PairedDataset:
    """Images that cannot be read, each in another way."""
    images = list(data.images)
    for place, row in enumerate(rows):
        if place % 4 == 0:
            images[row].unlink()
        elif place % 4 == 1:
            images[row].write_bytes(b"")
        elif place % 4 == 2:
            images[row].write_bytes(images[row].read_bytes()[:45])
        else:
            images[row] = None
    return replace(data, images=tuple(images))


def test_images_that_cannot_be_read_are_left_out_and_listed_with_the_reason(data, tmp_path):
    bad = [1, 4, 5, 10]
    store = extracted(spoil(data, bad), tmp_path / "store")
    check_rows(store, data, [row for row in range(ITEMS) if row not in bad])
    assert [name for name, _ in store.skipped] == [f"item {row}" for row in bad]
    assert all(name in reason for name, (_, reason) in zip(("1.png", "4.png", "5.png"), store.skipped[:3], strict=True))
    assert len({reason for _, reason in store.skipped}) == 4


def test_texts_of_skipped_items_are_not_encoded(data, tmp_path):
    text_encoder = Letters()
    extract_features(spoil(data, [2]), MeanColour(), text_encoder, tmp_path / "store")
    assert not any(text.startswith("c") for text in text_encoder.encoded)


def test_a_whole_shard_without_images_is_passed_over(data, tmp_path):
    store = extracted(spoil(data, [4, 5, 6, 7]), tmp_path / "store")
    check_rows(store, data, [0, 1, 2, 3, 8, 9, 10])


def test_no_image_at_all_is_refused_with_the_first_reason(data, tmp_path):
    with pytest.raises(DataError) as caught:
        extracted(spoil(data, range(ITEMS)), tmp_path / "store")
    assert caught.value.field == "images" and "11" in caught.value.problem and "0.png" in caught.value.problem
    assert names(tmp_path) == []


def test_empty_texts_are_noted_where_no_item_has_another(data, tmp_path):
    some = tuple((" ",) if row else each for row, each in enumerate(data.texts))
    extracted(replace(data, texts=some), tmp_path / "some")
    with pytest.warns(DataNote, match="empty"):
        extracted(replace(data, texts=((" ",),) * len(data)), tmp_path / "none")


def test_an_encoder_that_makes_nan_is_refused_and_nothing_of_it_is_kept(data, tmp_path):
    class Blind(MeanColour):
        def encode(self, prepared):
            return np.full((len(prepared), 3), np.nan, np.float32)

    with pytest.raises(DataError) as caught:
        extract_features(data, Blind(), Letters(), tmp_path / "store")
    assert caught.value.field == "image encoder output" and "nan" in caught.value.problem
    assert names(tmp_path / "store") == ["plan.json"]


@pytest.mark.parametrize("encoder", ["image", "text"])
def test_an_encoder_whose_output_is_not_what_its_recipe_says_is_refused(data, tmp_path, encoder):
    image_encoder = MeanColour(recipe=replace(IMAGE_RECIPE, dimension=4)) if encoder == "image" else MeanColour()
    text_encoder = Letters(recipe=replace(TEXT_RECIPE, dimension=3)) if encoder == "text" else Letters()
    with pytest.raises(DataError) as caught:
        extract_features(data, image_encoder, text_encoder, tmp_path / "store")
    assert caught.value.field == f"{encoder} encoder output"
    assert ("(3, 3)" if encoder == "image" else "(7, 2)") in caught.value.problem


def odd_images(folder: Path) -> dict[str, str | None]:
    """Common and damaged image files: name -> part of the reason why it is skipped, None if it is not."""
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    photo, red = Image.fromarray(noise), Image.new("RGB", (8, 8), "red")
    photo.save(folder / "whole.jpg")
    raw = (folder / "whole.jpg").read_bytes()
    (folder / "truncated.jpg").write_bytes(raw[:-200])
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.jpg").write_text("not an image")
    photo.convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(noise[..., 0].astype(np.uint16) * 256).save(folder / "16-bit.png")
    red.convert("RGBA").save(folder / "alpha.png")
    red.save(folder / "animated.gif", save_all=True, append_images=[Image.new("RGB", (8, 8), "blue")])
    red.save(folder / "animated.webp", save_all=True, append_images=[Image.new("RGB", (8, 8), "blue")])
    turned = Image.Exif()
    turned[0x0112] = 6
    photo.save(folder / "turned.jpg", exif=turned)
    Image.new("RGB", (1, 1)).save(folder / "1x1.png")
    Image.new("RGB", (30_000, 2)).save(folder / "30000x2.png")
    Image.new("1", (20_000, 10_000)).save(folder / "200MP.png")
    photo.save(folder / "日本 #1 'ü'.png")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "link.jpg").symlink_to("whole.jpg")
    (folder / "folder.jpg").mkdir()
    bad = {
        "truncated.jpg": "truncated", "empty.jpg": "", "text.jpg": "", "200MP.png": "89,478,485",
        "loop.jpg": "Too many levels of symbolic links", "folder.jpg": "is a folder",
    }  # fmt: skip
    return {path.name: bad.get(path.name) for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("workers", [1, 3])
def test_odd_images_are_encoded_or_skipped_with_the_reason(tmp_path, workers):
    (tmp_path / "odd").mkdir()
    expected = odd_images(tmp_path / "odd")
    count = len(expected)
    data = PairedDataset(
        tuple(expected), tuple(tmp_path / "odd" / name for name in expected), (("x",),) * count,
        np.ones((count, 1), np.uint8), ("l",),
    )  # fmt: skip
    image_encoder = ImageFunction(
        lambda images: [np.asarray(p.resize((1, 1)))[0, 0] for p in images], IMAGE_RECIPE, batch_size=2
    )
    store = extract_features(data, image_encoder, Letters(), tmp_path / "store", workers=workers)
    assert store.dataset.ids == tuple(name for name, reason in expected.items() if reason is None) and len(store) == 11
    reasons = dict(store.skipped)
    assert list(reasons) == [name for name, reason in expected.items() if reason is not None]
    for name, reason in reasons.items():
        assert name in reason and expected[name] in reason


# What a crash costs


@pytest.mark.parametrize(
    ("crash", "finished"),
    [
        ((MeanColour(stop=2), Letters()), 0),
        ((MeanColour(stop=9), Letters()), 8),
        ((MeanColour(stop=9, failure=KeyboardInterrupt), Letters()), 8),
        ((MeanColour(), Letters(stop="e")), 4),
    ],
    ids=["first shard", "last shard", "interrupted by the user", "in the texts"],
)
def test_after_a_crash_only_unfinished_shards_are_encoded_and_the_bytes_are_the_same(data, tmp_path, crash, finished):
    extracted(data, tmp_path / "uninterrupted")
    with pytest.raises((RuntimeError, KeyboardInterrupt)):
        extract_features(data, *fresh(crash), tmp_path / "store")
    with pytest.raises(FormatError) as caught:
        FeatureStore.open(tmp_path / "store")
    assert caught.value.file == tmp_path / "store"
    image_encoder, text_encoder = MeanColour(), Letters()
    extract_features(data, image_encoder, text_encoder, tmp_path / "store")
    assert sum(image_encoder.batches) == ITEMS - finished
    assert len(text_encoder.encoded) == sum(map(len, data.texts[finished:]))
    assert content(tmp_path / "store") == content(tmp_path / "uninterrupted")
    assert names(tmp_path) == ["store", "uninterrupted"]


def fresh(encoders):
    """Fresh copies: the parameters of a test outlive it."""
    return [
        replace(encoder, **{"batches" if isinstance(encoder, MeanColour) else "encoded": []}) for encoder in encoders
    ]


KILLED = """
import functools, os, signal, sys
from pathlib import Path
import numpy as np
from multibit.features import extract
from multibit.features import EncoderRecipe; from multibit.features.base import ImageFunction, TextFunction
from multibit.features.extract import extract_features
from multibit.data.manifest import read_manifest

extract.SHARD, encoded = 4, []

def colours(images):
    encoded.append(len(images))
    if sum(encoded) > int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return [np.asarray(image).reshape(-1, 3).mean(axis=0) for image in images]

def letters(texts):
    return [[len(text), ord(text[0])] for text in texts]

image_encoder = ImageFunction(colours, EncoderRecipe("eyes", "w1", 3, "mean colour"), 1)
text_encoder = TextFunction(letters, EncoderRecipe("ears", "w2", 2, "letters"))
extract_features(read_manifest(Path(sys.argv[1])), image_encoder, text_encoder, Path(sys.argv[2]))
print(sum(encoded))
"""


@pytest.mark.slow
def test_after_kill_9_no_finished_shard_is_made_again_and_the_bytes_are_the_same(data, tmp_path):
    extracted(data, tmp_path / "manifest")  # for its items, which are a manifest
    manifest = next((tmp_path / "manifest").glob("items-*.parquet"))

    def run(folder: str, kill_after: int) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-c", KILLED, str(manifest), str(tmp_path / folder), str(kill_after)]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=120)

    assert run("whole", 99).stdout == f"{ITEMS}\n"
    assert run("store", 5).returncode == -signal.SIGKILL
    left_over = tmp_path / "store" / ".shard-00001.safetensors.abcd1234~"  # as a kill while writing leaves it
    left_over.mkdir()
    assert names(tmp_path / "store") == [left_over.name, "plan.json", "shard-00000.safetensors"]
    again = run("store", 99)
    assert again.stdout == f"{ITEMS - 4}\n", again.stderr
    assert content(tmp_path / "store") == content(tmp_path / "whole")


def test_a_crash_while_the_header_is_written_costs_no_encoding(data, tmp_path, monkeypatch):
    bad = spoil(data, [3])
    extracted(bad, tmp_path / "uninterrupted")
    with monkeypatch.context() as patch:
        patch.setattr(extract, "write_header", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError) as caught:
            extracted(bad, tmp_path / "store")
        assert str(caught.value) == "disk full"
    assert "plan.json" in names(tmp_path / "store")
    image_encoder, text_encoder = MeanColour(), Letters()
    extract_features(bad, image_encoder, text_encoder, tmp_path / "store")
    assert (image_encoder.batches, text_encoder.encoded) == ([], [])
    assert content(tmp_path / "store") == content(tmp_path / "uninterrupted")
    assert names(tmp_path) == ["store", "uninterrupted"]


def test_a_second_run_encodes_nothing(data, tmp_path):
    bad = spoil(data, [3])
    first = extracted(bad, tmp_path / "store")
    before = content(tmp_path / "store")
    image_encoder, text_encoder = MeanColour(), Letters()
    second = extract_features(bad, image_encoder, text_encoder, tmp_path / "store")
    assert (image_encoder.batches, text_encoder.encoded) == ([], [])
    assert content(tmp_path / "store") == before
    assert second.fingerprint() == first.fingerprint() and second.skipped == first.skipped


@pytest.mark.parametrize("started", ["for other data", "by other encoders"])
def test_finished_shards_of_another_plan_are_neither_mixed_in_nor_deleted(data, tmp_path, started):
    other = replace(data, texts=tuple(("other",) for _ in range(ITEMS))) if "data" in started else data
    recipe = IMAGE_RECIPE if "data" in started else EncoderRecipe("other eyes", "w9", 3, "mean colour")
    folder = tmp_path / "store"
    with pytest.raises(RuntimeError):
        extract_features(other, MeanColour(recipe=recipe, stop=9), Letters(), folder)
    before = content(folder)
    assert any(name.startswith("shard-") for name in names(folder))
    with pytest.raises(MismatchError) as caught:
        extracted(data, folder)
    assert caught.value.file == folder and "plan.json" in caught.value.hint
    assert content(folder) == before
    extract_features(other, MeanColour(recipe=recipe), Letters(), folder)  # the earlier one is resumed


def test_an_unfinished_extraction_is_discarded_by_deleting_its_plan(data, tmp_path):
    other = replace(data, texts=tuple(("other",) for _ in range(ITEMS)))
    with pytest.raises(RuntimeError):
        extract_features(other, MeanColour(stop=9), Letters(), tmp_path / "store")
    (tmp_path / "store" / "plan.json").unlink()
    for shard in (tmp_path / "store").glob("shard-*"):
        shard.unlink()
    image_encoder = MeanColour()
    check_rows(extract_features(data, image_encoder, Letters(), tmp_path / "store"), data, range(ITEMS))
    assert sum(image_encoder.batches) == ITEMS


def test_a_truncated_shard_is_refused_by_name(data, tmp_path):
    with pytest.raises(RuntimeError):
        extract_features(data, MeanColour(stop=9), Letters(), tmp_path / "store")
    shard = tmp_path / "store" / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(FormatError) as caught:
        extracted(data, tmp_path / "store")
    assert str(shard) in str(caught.value)
    assert not (tmp_path / "store" / "store.json").exists()


# The folder


@pytest.mark.parametrize(
    "changed",
    [
        lambda data: replace(data, texts=(("new",), *data.texts[1:])),
        lambda data: replace(data, labels=1 - data.labels),
        lambda data: replace(data, ids=("new", *data.ids[1:])),
        lambda data: data.take(range(ITEMS - 1)),
        lambda data: data.take(range(ITEMS)[::-1]),
    ],
    ids=["a text", "labels", "an id", "fewer items", "another order"],
)
def test_a_folder_of_other_data_is_refused_and_kept(data, tmp_path, changed):
    extracted(data, tmp_path / "store")
    before = content(tmp_path / "store")
    with pytest.raises(MismatchError) as caught:
        extracted(changed(data), tmp_path / "store")
    assert caught.value.file == tmp_path / "store" and "`update`" in caught.value.hint
    assert content(tmp_path / "store") == before


@pytest.mark.parametrize("change", [{"weights": "w9"}, {"name": "other"}, {"preprocessing": "round"}])
def test_a_folder_of_other_encoders_is_refused_and_kept(data, tmp_path, change):
    extracted(data, tmp_path / "store")
    before = content(tmp_path / "store")
    with pytest.raises(MismatchError) as caught:
        extract_features(data, MeanColour(recipe=replace(IMAGE_RECIPE, **change)), Letters(), tmp_path / "store")
    assert caught.value.file == tmp_path / "store"
    assert content(tmp_path / "store") == before


def test_a_folder_that_is_not_a_store_is_refused_and_kept(data, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "precious").write_text("kept")
    with pytest.raises(DataError) as caught:
        extracted(data, tmp_path / "store")
    assert caught.value.file == tmp_path / "store"
    assert (tmp_path / "store" / "precious").read_text() == "kept"


def test_a_folder_of_other_images_is_refused(data, tmp_path):
    extracted(data, tmp_path / "store")
    with pytest.raises(MismatchError):
        extracted(replace(data, images=data.images[::-1]), tmp_path / "store")


def test_images_that_were_replaced_are_noticed_and_encoded_again_in_their_place(data, tmp_path):
    extracted(data.take(range(6)), tmp_path / "store")
    Image.new("RGB", (4, 3), (7, 7, 7)).save(data.images[2])
    with pytest.raises(MismatchError) as caught:
        extracted(data.take(range(6)), tmp_path / "store")
    assert str(data.images[2]) in caught.value.problem and "`update`" in caught.value.hint
    with pytest.warns(DataNote, match="1 image has changed"):
        store = extracted(data, tmp_path / "store", update=True)
    assert store.dataset.ids == data.ids and store.dataset.texts == data.texts
    assert store.image[:].tolist() == [[7, 7, 7] if row == 2 else [row * 20, row, 255 - row] for row in range(ITEMS)]
    assert store.text[:].tolist() == [[len(text), ord(text[0])] for several in data.texts for text in several]
    whole = extracted(data, tmp_path / "new")
    assert store.fingerprint() == whole.fingerprint()
    data.images[4].write_bytes(b"")
    with pytest.warns(DataNote, match="1 image has changed"):
        store = extracted(data, tmp_path / "store", update=True)
    assert "item 4" not in store.dataset.ids and dict(store.skipped).keys() == {"item 4"}
    assert store.image[2].tolist() == [7, 7, 7] and len(store) == ITEMS - 1


def test_a_touched_image_is_the_same_and_a_moved_store_finds_its_images(data, tmp_path):
    (tmp_path / "all").mkdir()
    (tmp_path / "images").rename(tmp_path / "all/images")
    here = replace(data, images=tuple(tmp_path / "all/images" / path.name for path in data.images))
    extracted(here, tmp_path / "all/store")
    os.utime(here.images[0], (1, 1))
    assert extracted(here, tmp_path / "all/store").dataset.images == here.images
    (tmp_path / "all").rename(tmp_path / "moved")
    moved = tuple(tmp_path / "moved/images" / path.name for path in data.images)
    assert FeatureStore.open(tmp_path / "moved/store").dataset.images == moved
    (tmp_path / "moved/images").rename(tmp_path / "elsewhere")
    elsewhere = tuple(tmp_path / "elsewhere" / path.name for path in data.images)
    with pytest.warns(DataNote, match="another place"):
        extracted(replace(data, images=elsewhere), tmp_path / "moved/store")
    assert FeatureStore.open(tmp_path / "moved/store").dataset.images == elsewhere


def test_shards_of_another_size_are_never_mixed_in(data, tmp_path, monkeypatch):
    with pytest.raises(RuntimeError):
        extract_features(data, MeanColour(stop=9), Letters(), tmp_path / "store")
    monkeypatch.setattr(extract, "SHARD", 5)
    with pytest.raises(MismatchError):
        extracted(data, tmp_path / "store")


def test_a_second_writer_is_refused(data, tmp_path):
    class Nosy(MeanColour):
        def encode(self, prepared):
            with pytest.raises(BusyError) as caught:
                extracted(data, tmp_path / "store")
            assert caught.value.file == tmp_path / "store"
            return super().encode(prepared)

    check_rows(extract_features(data, Nosy(), Letters(), tmp_path / "store"), data, range(ITEMS))


def test_an_unknown_engine_is_refused(data, tmp_path):
    with pytest.raises(ConfigError) as caught:
        extracted(data, tmp_path / "store", engine="spark")
    assert caught.value.option == "engine" and "spark" in caught.value.problem


# Adding items


def test_added_items_come_last_and_finished_shards_stay_as_they_are(data, tmp_path):
    extracted(data.take(range(6)), tmp_path / "store")
    before = content(tmp_path / "store")
    image_encoder = MeanColour()
    store = extract_features(data, image_encoder, Letters(), tmp_path / "store", update=True)
    check_rows(store, data, range(ITEMS))
    assert sum(image_encoder.batches) == ITEMS - 6
    after = content(tmp_path / "store")
    assert {name: after[name] for name in before if name.startswith("shard")} == {
        name: raw for name, raw in before.items() if name.startswith("shard")
    }
    assert sorted(set(after) - set(before)) == [
        "items-00004.parquet",
        "shard-00002.safetensors",
        "shard-00003.safetensors",
    ]
    assert store.fingerprint() == extracted(data, tmp_path / "at once").fingerprint()


def test_items_with_labels_that_are_new_are_added_to_those_without(data, tmp_path):
    extracted(replace(data.take([0, 1]), labels=np.eye(2, dtype=np.uint8), label_names=("r", "p")), tmp_path / "store")
    more = replace(data.take([5, 6]), labels=np.array([[1, 0, 1], [0, 1, 0]]), label_names=("a", "p", "z"))
    store = extracted(more, tmp_path / "store", update=True)
    assert [store.dataset.label_names_of(row) for row in range(4)] == [["r"], ["p"], ["a", "z"], ["p"]]
    assert store.dataset.label_names == ("r", "p", "a", "z")


def test_an_update_without_anything_new_changes_nothing(data, tmp_path):
    bad = spoil(data, [3])
    extracted(bad, tmp_path / "store")
    before = content(tmp_path / "store")
    for asked in (bad, bad.take([0, 1])):
        image_encoder = MeanColour()
        store = extract_features(asked, image_encoder, Letters(), tmp_path / "store", update=True)
        assert image_encoder.batches == [] and len(store) == ITEMS - 1
        assert content(tmp_path / "store") == before


def test_an_update_of_nothing_makes_a_store(data, tmp_path):
    check_rows(extracted(data, tmp_path / "store", update=True), data, range(ITEMS))


def test_a_skipped_item_is_tried_again_by_an_update(data, tmp_path):
    raw = data.images[3].read_bytes()
    assert [name for name, _ in extracted(spoil(data, [3]), tmp_path / "store").skipped] == ["item 3"]
    data.images[3].write_bytes(raw)
    store = extracted(data, tmp_path / "store", update=True)
    check_rows(store, data, [0, 1, 2, *range(4, ITEMS), 3])
    assert store.skipped == ()


def test_a_crash_of_an_update_keeps_the_old_store_and_is_resumed(data, tmp_path):
    old = extracted(data.take([0, 1]), tmp_path / "store")
    with pytest.raises(RuntimeError):
        extract_features(data, MeanColour(stop=6), Letters(), tmp_path / "store", update=True)
    assert FeatureStore.open(tmp_path / "store").fingerprint() == old.fingerprint()
    image_encoder = MeanColour()
    check_rows(extract_features(data, image_encoder, Letters(), tmp_path / "store", update=True), data, range(ITEMS))
    assert sum(image_encoder.batches) == ITEMS - 2 - 4
    assert "plan.json" not in names(tmp_path / "store")


def test_only_items_of_the_same_recipe_are_added(data, tmp_path):
    extracted(data.take([0]), tmp_path / "store")
    with pytest.raises(MismatchError) as caught:
        extract_features(
            data, MeanColour(), Letters(recipe=replace(TEXT_RECIPE, name="other")), tmp_path / "store", update=True
        )
    assert (caught.value.file, caught.value.field) == (tmp_path / "store", "text features")
    assert all(part in caught.value.problem for part in ("name", "'ears'", "'other'"))


def test_another_item_of_a_known_id_is_refused(data, tmp_path):
    extracted(data, tmp_path / "store")
    changed = replace(data, texts=(*data.texts[:2], ("new",), *data.texts[3:]))
    with pytest.raises(MismatchError) as caught:
        extracted(changed, tmp_path / "store", update=True)
    assert caught.value.file == tmp_path / "store" and "'item 2'" in caught.value.problem


# Texts that are too long


def test_truncated_texts_are_counted_but_not_those_of_skipped_items(data, tmp_path):
    long = [row for row in range(ITEMS) if row % 3 == 2]  # their third text is "x!!"
    store = extracted(spoil(data, [2]), tmp_path / "store")
    assert store.truncated == len(long) - 1
    assert FeatureStore.open(tmp_path / "store").truncated == len(long) - 1


# Functions as encoders


def test_any_function_is_an_encoder(data, tmp_path):
    sizes = []

    def colours(images):
        sizes.append(len(images))
        return [np.asarray(image).reshape(-1, 3).mean(axis=0) for image in images]

    def letters(texts):
        return [[len(text), ord(text[0])] for text in texts]

    image_encoder, text_encoder = (
        ImageFunction(colours, IMAGE_RECIPE, batch_size=3),
        TextFunction(letters, replace(TEXT_RECIPE, dtype="float16"), 2),
    )
    store = extract_features(data, image_encoder, text_encoder, tmp_path / "store")
    check_rows(store, data, range(ITEMS))
    assert store.recipe == Recipe(IMAGE_RECIPE, text_encoder.recipe) and max(sizes) == 3
    assert (store.image.dtype, store.text.dtype) == (np.float32, np.float16)


# Memory


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_than_some_batches_are_decoded_ahead(data, tmp_path, monkeypatch, workers):
    """For any size of a shard and of the data."""
    monkeypatch.setattr(extract, "SHARD", 100)
    ahead = []

    class Watched(MeanColour):
        prepared = 0

        def prepare(self, image):
            Watched.prepared += 1
            return super().prepare(image)

        def encode(self, prepared):
            ahead.append(Watched.prepared - sum(self.batches))
            return super().encode(prepared)

    many = replace(
        data.take([0] * 1), ids=tuple(map(str, range(90))), images=data.images[:1] * 90, texts=data.texts[:1] * 90,
        labels=np.repeat(data.labels[:1], 90, axis=0),
    )  # fmt: skip
    extract_features(many, Watched(batch_size=2), Letters(), tmp_path / "store", workers=workers)
    assert max(ahead) <= 2 + 2 * 2 + workers + 1


# The progress bar


@pytest.mark.parametrize("bad", [[], [0, 5, 10]])
def test_every_item_is_counted_once_even_skipped_and_resumed_ones(data, tmp_path, monkeypatch, bad):
    counted = []

    @contextlib.contextmanager
    def counting(doing, total, unit, done):
        counted.append([total, done])
        yield lambda count=1, note="": counted[-1].__setitem__(1, counted[-1][1] + count)

    monkeypatch.setattr(extract, "track", counting)
    data = spoil(data, bad)
    with pytest.raises(RuntimeError):
        extract_features(data, MeanColour(stop=6), Letters(), tmp_path / "store")
    extracted(data, tmp_path / "store")
    assert counted[1] == [ITEMS, ITEMS]


def test_extraction_is_silent_unless_asked_for_progress(data, tmp_path, capsys):
    extracted(data, tmp_path / "silent")
    assert capsys.readouterr() == ("", "")
    extracted(data, str(tmp_path / "shown"), progress=True)
    printed = capsys.readouterr()
    assert printed.out == "" and f"{ITEMS}/{ITEMS}" in printed.err


def test_the_bar_shows_work_count_and_rate_and_keeps_off_standard_output(capsys):
    with showing(), track("Counting sheep", total=3, unit="sheep") as advance:
        advance()
        advance(2, note="asleep")
    printed = capsys.readouterr()
    assert all(part in printed.err for part in ("Counting sheep", "3/3", "sheep/s", "asleep"))
    assert printed.out == ""


@pytest.mark.parametrize("shown", [True, False])
def test_the_bar_lets_an_error_through(shown):
    with pytest.raises(KeyError), showing(shown), track("Counting", total=3, unit="items") as advance:
        advance()
        raise KeyError("lost")
