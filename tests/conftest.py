"""Fixtures that several suites share: planted data whose relation is known, and the optional real data."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from multibit import FeatureStore, Pairs

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")  # the same examples in every run: a failure can be seen again

SHARED = Path(os.environ.get("MULTIBIT_SHARED", Path(__file__).parents[2] / "shared"))


def plant(items: int, labels: int = 8, image_dim: int = 24, text_dim: int = 16, seed: int = 0) -> dict[str, np.ndarray]:
    """Features that are noisy linear images of multi-hot labels: what a model should recover."""
    rng = np.random.default_rng(seed)
    topics = np.eye(labels, dtype=bool) | np.eye(labels, k=1, dtype=bool)  # neighbours occur together
    multi_hot = topics[rng.integers(labels, size=items)] & (rng.random((items, labels)) < 0.8)
    multi_hot[np.arange(items), rng.integers(labels, size=items)] = True
    mix = np.random.default_rng(7)  # one pair of worlds for all seeds
    image = multi_hot @ mix.normal(size=(labels, image_dim)) + 0.3 * rng.normal(size=(items, image_dim))
    text = multi_hot @ mix.normal(size=(labels, text_dim)) + 0.3 * rng.normal(size=(items, text_dim))
    return {
        "image": image.astype(np.float32),
        "text": text.astype(np.float32),
        "labels": multi_hot.astype(np.uint8),
    }


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


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real data; its tests are skipped where it is absent."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set MULTIBIT_SHARED to its parent")
    return folder
