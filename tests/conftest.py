"""Fixtures that several suites share: planted data whose relation is known, small runs, and the optional real data."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from commands import TINY, Distinct, Letters, Words, done
from multibit import Config, FeatureStore, PairedDataset, Pairs, Run, Split, extract_features, measurement
from multibit.data.sample import load_sample
from multibit.features import base, export, packaged, portable, sessions
from multibit.features.load import load_image_encoder, load_text_encoder
from multibit.features.recipe import Recipe
from multibit.features.tokens import Tokens
from multibit.files import fingerprint

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")  # the same examples in every run, so that a failure can be reproduced

SLOW_FOLDERS = ("contracts", "e2e", "methods", "properties")
SHARED = Path(os.environ.get("MULTIBIT_SHARED", Path(__file__).parents[2] / "shared"))


def pytest_configure(config: pytest.Config) -> None:
    """Keep exported encoders between test runs, for as long as the files that write them are the same."""
    sources = [Path(module.__file__ or "").read_text() for module in (base, export, packaged, portable, sessions)]
    folder = Path(config.rootpath, ".pytest_cache", "multibit", fingerprint(*sources, torch.__version__))
    os.environ.setdefault("MULTIBIT_CACHE", str(folder))
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0" and config.args == config.getini("testpaths"):
        # In a fresh environment the first import of a module compiles it: the workers begin with different ones.
        config.args = [config.args[1], *sorted(map(str, Path(__file__).parent.glob("[a-z]*/")), reverse=True)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is imported and collected from the garbage collector, which would go through a million objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that is not slow as fast; every command and every method together are slow."""
    items.sort(key=lambda item: item.path)  # in all workers alike
    for item in items:
        if not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.slow if item.path.parent.name in SLOW_FOLDERS else pytest.mark.fast)


@pytest.fixture(scope="session", autouse=True)
def power_stays_on() -> Iterator[None]:
    """Tests kill processes, not machines: nothing waits for the disk, which took a tenth of the time of all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def plant(items: int, labels: int = 8, image_dim: int = 24, text_dim: int = 16, seed: int = 0) -> dict[str, np.ndarray]:
    """Features that are noisy linear images of multi-hot labels: what a model should recover."""
    rng = np.random.default_rng(seed)
    topics = np.eye(labels, dtype=bool) | np.eye(labels, k=1, dtype=bool)  # neighbours occur together
    multi_hot = topics[rng.integers(labels, size=items)] & (rng.random((items, labels)) < 0.8)
    multi_hot[np.arange(items), rng.integers(labels, size=items)] = True
    mix = np.random.default_rng(7)  # the same mixing matrices for all seeds
    image = multi_hot @ mix.normal(size=(labels, image_dim)) + 0.3 * rng.normal(size=(items, image_dim))
    text = multi_hot @ mix.normal(size=(labels, text_dim)) + 0.3 * rng.normal(size=(items, text_dim))
    return {
        "image": image.astype(np.float32),
        "text": text.astype(np.float32),
        "labels": multi_hot.astype(np.uint8),
    }


def token_pairs(rows: slice) -> Pairs:
    """Of 300 planted items; every token is the pooled vector with noise, and a third of the words is padding."""
    data = plant(300)
    rng = np.random.default_rng(3)

    def tokens(features: np.ndarray) -> Tokens:
        values = features[:, None].repeat(3, 1) + 0.3 * rng.normal(size=(len(features), 3, features.shape[1]))
        counts = rng.integers(1, 4, len(features))
        values[np.arange(3) >= counts[:, None]] = 0
        return Tokens(values[rows].astype(np.float16), counts[rows])

    image, text = tokens(data["image"]), tokens(data["text"])
    labels = data["labels"][rows]
    return Pairs(data["image"][rows], data["text"][rows], np.arange(len(labels) + 1), labels, image, text)


@pytest.fixture
def quick_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Label names are read by an encoder that is made up, at once."""
    monkeypatch.setattr(measurement, "load_text_encoder", Words)


@pytest.fixture
def planted_pairs() -> Pairs:
    """200 planted items."""
    data = plant(200)
    return Pairs(data["image"], data["text"], np.arange(201), data["labels"])


@pytest.fixture
def planted_npz(tmp_path: Path) -> Path:
    """The same 200 items as an .npz file of ready features."""
    path = tmp_path / "planted.npz"
    np.savez(path, **plant(200), label_names=[f"topic {i}" for i in range(8)])
    return path


@pytest.fixture
def planted_store(planted_npz: Path) -> FeatureStore:
    """The same 200 items as a feature store."""
    return FeatureStore.open(planted_npz)


ITEMS = 80
SMALL = Config(lengths=(6, 16), scales=3, hidden=24, dimension=12, epochs=4, batch_size=16, learning_rate=3e-3)
NAMES = tuple(f"topic {i}" for i in range(8))


def save_npz(path: Path, **changes: object) -> FeatureStore:
    """Ready features of 80 planted items, with some arrays replaced or added."""
    np.savez(path, **{**plant(ITEMS), "label_names": NAMES, **changes})  # type: ignore[arg-type]
    return FeatureStore.open(path)


@pytest.fixture(scope="session")
def split() -> Split:
    """A split of the 80 items."""
    return Split.draw(ITEMS, query=16, train=40, validation=8, seed=3)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    """The features of the 80 items."""
    return save_npz(tmp_path_factory.mktemp("features") / "ready.npz")


@pytest.fixture(scope="session")
def finished(store: FeatureStore, split: Split, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run that no test changes."""
    return Run.create(tmp_path_factory.mktemp("runs") / "run", store, split, SMALL)


@pytest.fixture(scope="session")
def other_run(store: FeatureStore, split: Split, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Another run on the same split."""
    return Run.create(tmp_path_factory.mktemp("other") / "run", store, split, SMALL.override({"seed": 5}))


def register_letters(patch: pytest.MonkeyPatch) -> None:
    """Make the encoders of `made` known by the name "letters"."""
    patch.setitem(packaged.IMAGE_ENCODERS, "letters", lambda _: Letters(24))
    patch.setitem(packaged.TEXT_ENCODERS, "letters", lambda _: Letters())


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs of the command line. Copy or link them: they are shared by all tests.

    ready.npz: 60 planted items. recoded.npz: other features of the same items. second.npz, longer.npz: other items.
    features/: ready.npz as a store made by the encoder "letters". run/, other/: trained on it by other splits and
    seeds, with an index.
    plain/: trained on ready.npz, with an index. separate/: a model for each length.
    """
    folder = tmp_path_factory.mktemp("made")
    data = plant(60)
    np.savez(folder / "ready.npz", **data)
    np.savez(folder / "recoded.npz", **{**data, "image": -data["image"]})
    np.savez(folder / "second.npz", **plant(60, seed=1))
    np.savez(folder / "longer.npz", **plant(80))
    texts = tuple((f"text {i}",) for i in range(60))
    names = tuple(f"topic {i}" for i in range(8))
    items = PairedDataset(tuple(map(str, range(60))), (None,) * 60, texts, data["labels"], names)
    recipe = Recipe(Letters(24).recipe, Letters().recipe)
    FeatureStore(items, data["image"], data["text"], np.arange(61), recipe).save(folder / "features")
    with pytest.MonkeyPatch.context() as patch:
        register_letters(patch)
        for name, seed in (("run", 1), ("other", 2)):
            done("train", folder / "features", "--out", folder / name, *TINY, "--seed", seed, "--split", seed)
        done("train", folder / "ready.npz", "--out", folder / "plain", *TINY)
        done("train", folder / "ready.npz", "--out", folder / "separate", "--method", "separate", *TINY)
        for name in ("run", "other", "plain"):
            done("index", folder / name)
    return folder


@pytest.fixture(scope="session")
def packaged_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on 60 items of the sample by the packaged encoders, with its index and portable model.

    Its features are next to it. Copy it before changing it.
    """
    folder = tmp_path_factory.mktemp("packaged")
    data = load_sample().take(np.arange(0, 600, 10))
    image = load_image_encoder("efficientnet-lite0", runtime="onnxruntime")
    text = load_text_encoder("all-minilm-l6-v2", runtime="onnxruntime")
    extract_features(data, image, text, folder / "features")
    done("train", folder / "features", "--out", folder / "run", *TINY)
    done("index", folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run with images and an index, as `serving.make_run` makes it. Copy the index before changing it."""
    serving = pytest.importorskip("serving", exc_type=ImportError)
    with pytest.MonkeyPatch.context() as patch:
        register_letters(patch)
        yield serving.make_run(tmp_path_factory.mktemp("pictured"))


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoders of `made`, known by name."""
    register_letters(monkeypatch)


@pytest.fixture
def distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoders of `made`, but with another code for each text."""
    register_letters(monkeypatch)
    monkeypatch.setitem(packaged.TEXT_ENCODERS, "letters", lambda _: Distinct())


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real data; its tests are skipped where it is absent."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set MULTIBIT_SHARED to its parent")
    return folder


@pytest.fixture(scope="module")
def chdb(tmp_path_factory):
    """The URL of ClickHouse in this process, which `tests/e2e/test_clickhouse_process.py` starts for it."""
    if not os.environ.get("MULTIBIT_CHDB"):
        pytest.skip("tests/e2e/test_clickhouse_process.py runs it")
    pytest.importorskip("chdb", reason="chdb is not installed: pip install chdb-core-lite")
    pytest.importorskip("clickhouse_connect", reason='not installed: pip install "multibit[clickhouse]"')
    return f"chdb://{tmp_path_factory.mktemp('chdb')}"
