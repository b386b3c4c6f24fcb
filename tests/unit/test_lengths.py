"""A model for each length: where its codes are, and that training them side by side changes nothing."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
import torch

from conftest import plant
from multibit import Pairs, train
from multibit.codes.layout import Layout
from multibit.errors import ConfigError, DataError
from multibit.hashing import processes
from multibit.hashing.lengths import PerLength
from multibit.hashing.linear_hash import LinearHash
from multibit.hashing.train import state_files

SMALL = {"lengths": (4, 8), "epochs": 2, "batch_size": 32}


@pytest.fixture(scope="module")
def pairs():
    data = plant(64)
    return Pairs(data["image"], data["text"], np.arange(65), data["labels"])


@pytest.mark.parametrize(
    ("layout", "bits", "part"),
    [
        (Layout((16, 32)), 16, slice(0, 32)),
        (Layout((16, 32)), 5, slice(0, 32)),
        (Layout((16, 32), nested=False), 16, slice(0, 16)),
        (Layout((16, 32), nested=False), 17, slice(16, 48)),
        (Layout((16, 32), nested=False), 1, slice(0, 16)),
        (Layout((8,), views=4), 8, slice(0, 32)),
        (Layout((8, 12), nested=False, views=3), 12, slice(24, 60)),
    ],
    ids=str,
)
def test_the_part_of_a_length_is_that_of_the_shortest_code_that_is_long_enough(layout, bits, part):
    assert layout.part(bits) == part
    assert part.stop <= layout.stored and Layout.from_dict(layout.to_dict()) == layout


def test_a_length_beyond_the_codes_is_refused_with_both_numbers():
    with pytest.raises(DataError) as caught:
        Layout((16, 32), nested=False).part(33)
    assert caught.value.option == "bits" and "32" in caught.value.problem and "33" in caught.value.problem


def test_the_output_is_that_of_each_model_side_by_side():
    torch.manual_seed(0)
    models = [LinearHash(6, 5, bits) for bits in (4, 8)]
    joined, rows = PerLength.join(models), np.random.default_rng(0).normal(size=(7, 5))
    relaxed = joined.encode(rows, "text")
    for model in models:
        np.testing.assert_array_equal(relaxed[:, joined.layout.part(model.bits)], model.encode(rows, "text"))
        assert joined.serving(model.bits) is model
    assert joined.serving(5) is models[1] and joined.nbytes == sum(model.nbytes for model in models)
    assert joined.flops == sum(model.flops for model in models) and joined.bits == 8


@pytest.mark.slow
def test_models_that_are_trained_side_by_side_are_the_same(pairs, tmp_path):
    alone = train(pairs, pairs, method="dnph", **SMALL)
    together = train(pairs, pairs, method="dnph", state_file=tmp_path / "state.pt", workers=2, **SMALL)
    assert together.model.fingerprint() == alone.model.fingerprint()
    assert together.state.history == alone.state.history
    assert [path.name for path in state_files(tmp_path / "state.pt")] == ["state-4.pt", "state-8.pt"]


@pytest.mark.slow
def test_an_error_of_a_training_in_another_process_is_raised_here(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(
        processes, "get_context", lambda _: multiprocessing.get_context("fork")
    )  # imports nothing again
    with pytest.raises(ConfigError) as caught:
        train(pairs, pairs, method="dpbe", state_file=tmp_path / "state.pt", workers=2, learning_rate=1e30, **SMALL)
    assert caught.value.option == "learning_rate"


def test_the_best_epoch_is_that_of_each_length(pairs):
    state = train(pairs, pairs, method="dnph", **SMALL).state
    assert set(state.by_length) == {4, 8} and state.seconds == sum(each.seconds for each in state.by_length.values())
    assert [row["bits"] for row in state.history] == [4, 4, 8, 8]
    for bits, each in state.by_length.items():
        scores = [row["validation_mAP"] for row in state.history if row["bits"] == bits]
        assert each.best_epoch == 1 + int(np.argmax(scores))
