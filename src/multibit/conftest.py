"""What the examples of docstrings start from: items of the sample, their features, a run on them, and its indices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multibit import EncoderRecipe, ImageFunction, Run, Split, TextFunction, build_indices, extract_features
from multibit.data.sample import load_sample
from multibit.features import packaged

ITEMS = 24
_COLOURS = EncoderRecipe("colours", weights="1", dimension=3, preprocessing="mean of each channel")
_LETTERS = EncoderRecipe("letters", weights="1", dimension=5, preprocessing="counts of vowels")
image_encoder = ImageFunction(lambda images: [np.asarray(each).mean(axis=(0, 1)) for each in images], _COLOURS)
text_encoder = TextFunction(lambda texts: [[1 + text.count(vowel) for vowel in "aeiou"] for text in texts], _LETTERS)


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names; files are in a folder that the tests remove."""
    folder = tmp_path_factory.mktemp("examples")
    data = load_sample().take(np.arange(ITEMS))
    store = extract_features(data, image_encoder, text_encoder, folder / "features")
    settings: dict[str, Any] = {"lengths": (4, 8), "scales": 2, "hidden": 8, "dimension": 4, "epochs": 2}
    run = Run.create(folder / "run", store, Split.usual(ITEMS), method="multibit", **settings)
    indices = build_indices(run, store)
    for name, index in indices.items():
        index.save(run.folder / "index" / f"{name}.mbx")
    return {"data": data, "store": store, "run": run, "index": indices["image"]}


@pytest.fixture(autouse=True)
def _names(
    doctest_namespace: dict[str, Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """Give each example an empty working folder, and the names to those that need them."""
    monkeypatch.chdir(tmp_path)
    words = {word for each in request.node.dtest.examples for word in re.findall(r"\w+", each.source)}
    if not words & {"data", "run", "store"}:
        yield
        return
    monkeypatch.setitem(packaged.IMAGE_ENCODERS, "colours", lambda _: image_encoder)
    monkeypatch.setitem(packaged.TEXT_ENCODERS, "letters", lambda _: text_encoder)
    given = {**request.getfixturevalue("started"), "image_encoder": image_encoder, "text_encoder": text_encoder}
    doctest_namespace.update(given)
    yield
    for name in given:
        del doctest_namespace[name]
