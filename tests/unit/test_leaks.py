"""Duplicates that cross a split: counted exactly by features, and by images of a sample of the queries."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFilter

from multibit import FeatureStore, PairedDataset, Split
from multibit.data.checking import are_near_duplicates
from multibit.features import Recipe, leaks
from multibit.features.leaks import crossing_duplicates, look_alikes

ITEMS = 12
SPLIT = Split([0, 1, 2, 3], [4], [5, 6, 7, 8], [0, 1, 2, 3, 4, 9, 10, 11], None)


def picture(seed):
    noise = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), np.uint8)
    return Image.fromarray(noise).resize((200, 200)).filter(ImageFilter.GaussianBlur(2))


@pytest.fixture
def photos(tmp_path):
    """Items 5 and 6 are items 0 and 4 in another size; item 7 is a copy of item 2."""
    for row in range(ITEMS):
        source = {5: 0, 6: 4, 7: 2}.get(row, row)
        image = picture(source).resize((150, 150)) if row in (5, 6) else picture(source)
        image.save(tmp_path / f"{row}.png")
    return [tmp_path / f"{row}.png" for row in range(ITEMS)]


def store_of(images, features):
    data = PairedDataset(tuple(map(str, range(ITEMS))), tuple(images), (("",),) * ITEMS, [[1]] * ITEMS, ("label",))
    return FeatureStore(data, features, features, np.arange(ITEMS + 1), Recipe.ready_made("mine", 6, 6))


def features_of(images):
    """Distinct vectors; those of look-alikes are close, those of copies equal."""
    vectors = np.random.default_rng(0).normal(size=(ITEMS, 6)).astype(np.float32)
    vectors[5], vectors[6], vectors[7] = vectors[0] + 0.01, vectors[4] + 0.01, vectors[2]
    return vectors


def test_images_are_near_duplicates_in_another_size_and_not_otherwise(photos, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    assert are_near_duplicates(photos[0], photos[5]) and are_near_duplicates(photos[2], photos[7])
    assert not are_near_duplicates(photos[0], photos[1])
    assert not are_near_duplicates(photos[0], tmp_path / "broken.png")


@pytest.mark.parametrize("block", [1, 3, 100])
def test_queries_with_a_look_alike_in_training_are_counted(photos, block, monkeypatch):
    monkeypatch.setattr(leaks, "BLOCK", block)
    found = crossing_duplicates(store_of(photos, features_of(photos)), SPLIT)
    assert (found.queries, found.identical, found.sampled, found.near) == (4, 1, 4, 3)
    assert "3 of 4 queries" in found.problem


def test_without_images_only_equal_features_are_counted():
    found = crossing_duplicates(store_of([None] * ITEMS, features_of(None)), SPLIT)
    assert (found.identical, found.sampled, found.near) == (1, 0, 0) and "1 query has" in found.problem


def test_a_sample_bounds_the_images_that_are_read(photos, monkeypatch):
    monkeypatch.setattr(leaks, "SAMPLE", 2)
    found = crossing_duplicates(store_of(photos, features_of(photos)), SPLIT)
    assert found.sampled == 2 and f"{found.near} of 2 sampled queries" in found.problem


def test_a_split_that_keeps_them_together_is_clean(photos):
    together = Split([0, 5, 2, 7], [4, 6], [1, 3, 8], [0, 5, 2, 7, 4, 6, 9], None)
    assert crossing_duplicates(store_of(photos, features_of(photos)), together).problem == ""


@pytest.mark.parametrize("sample", [2, 100])
def test_look_alikes_in_training_and_in_the_database_are_told_apart(photos, sample):
    split = Split([0, 1], [4], [5, 6, 7, 8], [0, 1, 2, 3, 4, 9, 10, 11], None)
    found = look_alikes(store_of(photos, features_of(photos)), split, sample)
    compared = set(found.compared.tolist())
    assert len(compared) == min(sample, 4)
    assert (set(found.training.tolist()), set(found.database.tolist())) == ({0, 1} & compared, {2} & compared)


def test_without_images_look_alikes_have_equal_features():
    found = look_alikes(store_of([None] * ITEMS, features_of(None)), SPLIT)
    assert (found.training.tolist(), found.database.tolist(), found.any) == ([2], [], True)
    alone = Split([0], [], [8], [0, 9], None)
    assert not look_alikes(store_of([None] * ITEMS, features_of(None)), alone).any
