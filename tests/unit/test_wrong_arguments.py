"""Arguments of another kind are named, with the call that makes the right one."""

from __future__ import annotations

import numpy as np
import pytest

from multibit import EncoderRecipe, build_indices, encode_image, encode_text, evaluate_run, extract_features
from multibit.data.sample import load_sample
from multibit.errors import DataError
from multibit.queries import encode_texts

CALLS = {
    "a path for a run, of a text": (lambda run, _: encode_text(str(run.folder), "a"), "run", "open_run"),
    "a path for a run, of an image": (lambda run, _: encode_image(run.folder, "x.png"), "run", "open_run"),
    "a path for a run, to evaluate": (lambda run, store: evaluate_run(run.folder, store), "run", "open_run"),
    "a path for a run, to index": (lambda run, store: build_indices(run.folder, store), "run", "open_run"),
    "a path for features, to evaluate": (lambda run, _: evaluate_run(run, "f.npz"), "store", "open_features"),
    "a path for features, to index": (lambda run, _: build_indices(run, "f.npz"), "store", "open_features"),
    "several texts for one": (lambda run, _: encode_text(run, ["a"]), "text", "encode_texts"),
    "nothing for a text": (lambda run, _: encode_text(run, None), "text", "encode_texts"),
    "one text for several": (lambda run, _: encode_texts(run, "abc"), "texts", "encode_text"),
    "pixels for a path": (lambda run, _: encode_image(run, np.zeros((3, 3))), "path", "encode_images"),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_another_kind_is_named_with_the_call_that_makes_it(name, pictured, store):
    call, option, instead = CALLS[name]
    with pytest.raises(DataError) as caught:
        call(pictured, store)
    assert caught.value.option == option and instead in caught.value.hint


class Texts:
    recipe = EncoderRecipe("any", "", 3, "none")


class Images(Texts):
    def prepare(self, image):
        return image


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("folder", Images(), Texts()), "dataset"),
        ((None, "name", Texts()), "image_encoder"),
        ((None, Images(), "name"), "text_encoder"),
        ((None, Texts(), Images()), "image_encoder"),
    ],
)
def test_names_of_encoders_and_swapped_ones_are_refused(arguments, option, tmp_path):
    dataset, *encoders = arguments
    with pytest.raises(DataError) as caught:
        extract_features(dataset or load_sample().take([0, 1]), *encoders, tmp_path / "features")
    assert caught.value.option == option and not (tmp_path / "features").exists()
