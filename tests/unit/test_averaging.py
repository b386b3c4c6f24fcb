"""The weights over the latest epochs are averaged, and the average is validated and kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from test_train import SMALL, planted, same, weights

from multibit import Config
from multibit.errors import ConfigError
from multibit.hashing.averaging import follow, kept_weights, replaced
from multibit.hashing.loop import fit
from multibit.hashing.methods.multibit import MultiBit, temperature_descent

AVERAGED = dataclasses.replace(SMALL, averaging=0.4, item_weight=0.3, binary_weight=1.0)


class Watched(MultiBit):
    """Remembers what it kept at the end of each epoch, and with what it started the next."""

    def __init__(self, *given):
        super().__init__(*given)
        self.ends, self.starts = [], []

    def start_epoch(self, epoch):
        self.starts.append(copied(kept_weights(self)))

    def end_epoch(self, epoch):
        self.ends.append(copied(kept_weights(self)))


def copied(tensors):
    return {name: tensor.numpy().copy() for name, tensor in tensors.items()}


def slow_average(epochs, share):
    """The average by its definition: of each epoch, times what the later ones left of it."""
    entering = [1 / (1 + share * number) for number in range(len(epochs))]
    left = [np.prod([1 - each for each in entering[number + 1 :]]) for number in range(len(epochs))]
    assert np.dot(entering, left) == pytest.approx(1)
    return {
        name: sum(a * b * epoch[name].astype(np.float64) for a, b, epoch in zip(entering, left, epochs, strict=True))
        for name in epochs[0]
    }


def trained(config, score=None):
    pairs = planted(70)
    learner = Watched(pairs, config)
    return learner, fit(learner, pairs, config, score)


@pytest.mark.parametrize("share", [0.125, 0.4, 0.99])
def test_what_is_scored_and_kept_is_the_average(share):
    seen = []
    config = dataclasses.replace(AVERAGED, averaging=share)
    learner, state = trained(config, lambda model: seen.append(weights(model)) or float(len(seen) == 4))
    for epoch, scored in enumerate(seen, start=1):
        expected = slow_average(learner.ends[:epoch], share)
        for name, array in scored.items():
            np.testing.assert_allclose(array, expected[f"model.{name}"], atol=1e-6)
    assert state.best_epoch == 4 and same(weights(learner.model), seen[3])
    kept = copied(kept_weights(learner))
    np.testing.assert_allclose(
        kept["objective.sharpness"], slow_average(learner.ends[:4], share)["objective.sharpness"], atol=1e-6
    )


def test_training_goes_on_from_the_weights_and_not_from_their_average():
    learner, _ = trained(AVERAGED, lambda model: 0.0)
    assert len(learner.ends) == AVERAGED.epochs
    assert all(same(end, start) for end, start in zip(learner.ends[:-1], learner.starts[1:], strict=True))


def test_without_a_score_the_average_at_the_end_is_kept():
    learner, state = trained(AVERAGED)
    assert state.best_epoch == AVERAGED.epochs
    expected = slow_average(learner.ends, AVERAGED.averaging)
    np.testing.assert_allclose(weights(learner.model)["heads.weight"], expected["model.heads.weight"], atol=1e-6)


def test_the_learning_rate_is_constant_with_averaging_and_falls_without():
    rates = [
        [row["learning_rate"] for row in trained(config)[1].history]
        for config in (AVERAGED, dataclasses.replace(AVERAGED, averaging=0.0))
    ]
    assert rates[0] == [AVERAGED.learning_rate / 2, *[AVERAGED.learning_rate] * 4]  # one of 15 steps of warm-up
    assert rates[1] == sorted(rates[1], reverse=True) and rates[1][-1] < AVERAGED.learning_rate / 2


@pytest.mark.parametrize(("steps", "rising"), [(9, 0), (100, 10), (10_000, 50)])
def test_a_constant_rate_is_reached_by_a_short_rise(steps, rising):
    weight = torch.nn.Parameter(torch.ones(1))
    descent = temperature_descent([weight], [], AVERAGED, steps)
    rates = []
    for _ in range(rising + 3):
        rates.append(descent.rate / AVERAGED.learning_rate)
        descent.step(weight.sum())
    assert rates == pytest.approx([min(1, (step + 1) / (rising + 1)) for step in range(rising + 3)])
    assert rates[rising:] == [1, 1, 1]


def test_without_averaging_nothing_is_averaged():
    learner, state = trained(SMALL)
    assert not state.average and same(learner.ends[-1], copied(kept_weights(learner)))


def test_counts_are_not_averaged():
    average = {}
    for epoch, count in enumerate((3, 8), start=1):
        follow(average, {"seen": torch.tensor(count)}, 0.5, epoch)
    assert average["seen"] == 8 and average["seen"].dtype == torch.int64


def test_the_average_is_independent_of_the_weights_it_was_made_from():
    average, tensor = {}, torch.ones(2)
    follow(average, {"w": tensor}, 0.5, 1)
    tensor.zero_()
    assert average["w"].tolist() == [1, 1]


def test_the_own_weights_come_back_after_an_error():
    learner = MultiBit(planted(20), SMALL)
    before = weights(learner.model)
    with pytest.raises(KeyError), replaced(learner, {"model.heads.bias": torch.ones(16)}):
        assert learner.model.heads.bias.detach().tolist() == [1] * 16
        raise KeyError
    assert same(weights(learner.model), before)


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_a_share_out_of_range_is_refused(value):
    with pytest.raises(ConfigError) as caught:
        Config(averaging=value)
    assert caught.value.option == "averaging"
