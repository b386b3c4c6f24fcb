"""The packaged sample: complete, readable, public domain."""

from __future__ import annotations

import json

import pytest

from multibit import PairedDataset, Split
from multibit.data.images import open_image
from multibit.data.sample import FOLDER, load_sample


@pytest.fixture(scope="module")
def sample() -> PairedDataset:
    return load_sample()


def test_the_sample_has_its_items_and_labels(sample):
    assert len(sample) == 4769
    assert len(sample.label_names) == 73
    assert list(sample.label_names) == sorted(sample.label_names)


def test_every_item_of_the_sample_has_a_text_and_a_label_and_every_label_an_item(sample):
    assert all(len(texts) == 1 and texts[0].strip() for texts in sample.texts)
    assert sample.labels.any(axis=1).all()
    assert sample.labels.any(axis=0).all()


def test_the_sample_is_the_one_of_the_published_numbers(sample):
    assert sample.fingerprint() == "9d16987e16f1cf59"


def test_the_image_folder_contains_exactly_the_images_of_the_sample(sample):
    assert sorted(sample.images) == sorted((FOLDER / "images").iterdir())


@pytest.mark.parametrize("start", range(5))
def test_a_selection_of_the_images_opens(sample, start):
    for path in sample.images[start * 19 :: 477]:
        image = open_image(path)
        assert image.mode == "RGB" and min(image.size) >= 1


def test_every_licence_of_the_sample_is_the_public_domain():
    with (FOLDER / "items.jsonl").open(encoding="utf-8") as file:
        licences = [json.loads(line)["license"] for line in file]
    assert len(licences) == 4769
    assert set(licences) == {
        "http://creativecommons.org/licenses/publicdomain/",
        "http://web.resource.org/cc/PublicDomain",
    }


def test_the_usual_split_of_the_sample_has_unseen_database_items(sample):
    split = Split.usual(len(sample))
    assert (len(split.query), len(split.train), len(split.validation)) == (1192, 2146, 238)
    assert len(split.unseen) == 4769 - 1192 - 2146 - 238
