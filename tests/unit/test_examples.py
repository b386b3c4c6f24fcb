"""Example searches of the report: queries by percentile, hits as the ranking has them, images as small copies."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from conftest import ITEMS, NAMES
from multibit.codes import hamming_distances
from multibit.evaluation.metric import MAP
from multibit.measurement import measure
from multibit.report.examples import CHOSEN, HITS, example_searches

SIDES = {"image-to-text": ("i2t", "image", "text"), "text-to-image": ("t2i", "text", "image")}


@pytest.fixture(scope="module")
def measured(finished, store):
    return measure(finished, store)


@pytest.fixture(scope="module")
def shown(measured, store, tmp_path_factory):
    """The same items with an image and a text each; the image of item 0 is missing."""
    folder = tmp_path_factory.mktemp("images")
    for row in range(1, ITEMS):
        Image.new("RGB", (300, 200), (row, 0, 0)).save(folder / f"{row}.png")
    images = tuple(folder / f"{row}.png" for row in range(ITEMS))
    texts = tuple((f"text  of\nitem {row} {'long ' * 100}",) for row in range(ITEMS))
    return example_searches(measured, SimpleNamespace(dataset=replace(store.dataset, images=images, texts=texts)))


def test_items_without_images_and_texts_have_no_examples(measured, store):
    assert example_searches(measured, store) == []


def test_each_direction_has_a_good_a_usual_and_a_poor_query(measured, shown):
    assert len(shown) == 2 * len(CHOSEN)
    for name, (direction, asked, _) in SIDES.items():
        found = [each for each in shown if each.title.startswith(name)]
        assert [each.title.rsplit(" ", 2)[1] for each in found] == list(CHOSEN)
        assert all(each.asked == asked for each in found)
        values = np.sort(measured.evaluations[0].values[MAP, direction, 16])
        assert [each.value for each in found] == [values[round(q * (len(values) - 1))] for q in CHOSEN.values()]


def test_hits_are_those_of_the_ranking_with_distances_and_labels(measured, shown, store):
    data, split = store.dataset, measured.run.split
    row_of = {str(name): row for row, name in enumerate(data.ids)}
    for each in shown:
        _, asked, searched = next(sides for name, sides in SIDES.items() if each.title.startswith(name))
        query = row_of[each.query.id]
        place = split.query.tolist().index(query)
        assert list(each.rows) == [6, 16]
        for bits, hits in each.rows.items():
            codes = measured.query.at(bits).codes(asked).take([place]), measured.database.at(bits).codes(searched)
            distance = hamming_distances(*codes, bits)[0]
            best = np.argsort(distance, kind="stable")[:HITS]
            assert [hit.id for hit in hits] == [str(data.ids[split.database[row]]) for row in best]
            assert [hit.distance for hit in hits] == distance[best].tolist()
            for hit in hits:
                labels = data.labels[row_of[hit.id]]
                assert hit.labels == tuple(name for name, has in zip(NAMES, labels, strict=True) if has)
                assert hit.shares == bool((labels & data.labels[query]).any())


def test_only_the_images_of_the_side_that_has_images_are_shown(shown):
    for each in shown:
        hits = [hit for row in each.rows.values() for hit in row]
        with_image, without = (hits, [each.query]) if each.asked == "text" else ([each.query], hits)
        assert all(item.image == "" for item in without)
        for item in with_image:
            assert item.image.startswith("data:image/jpeg;base64,") or item.text.startswith("text of item 0 ")
        assert all(len(item.text) <= 160 and item.text.startswith("text of item ") for item in (each.query, *hits))
