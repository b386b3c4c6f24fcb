"""Pairs are mixed in training, together with the scores that their codes follow."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from test_train import SMALL, planted, same, weights

from multibit import Config, Pairs
from multibit.errors import ConfigError
from multibit.hashing.dropout import dropout_bound
from multibit.hashing.learner import Batch
from multibit.hashing.loop import fit
from multibit.hashing.methods import METHODS
from multibit.hashing.methods.free import Free
from multibit.hashing.methods.multibit import MultiBit, mixed_pairs
from multibit.hashing.mixing import Mix

MIXED = dataclasses.replace(SMALL, mixing=0.4)


def some_batch(items=5, seed=0):
    rng = np.random.default_rng(seed)
    image, text, labels = (torch.from_numpy(rng.normal(size=(items, d)).astype(np.float32)) for d in (7, 4, 3))
    return Batch(torch.arange(items), image, text, (labels > 0).float(), 1)


def slow_rows(rows, partners, shares):
    mixed = [(1 - s) * row + s * rows[p] for row, p, s in zip(rows, partners, shares, strict=True)]
    return np.array(mixed)


def slow_means(scores, partners, shares):
    """Of the two parts of the one pair and the two of the other, each with its share."""
    items = range(len(scores))
    parts = [((q, 1 - shares[q]), (partners[q], shares[q])) for q in items]
    return np.array(
        [[sum(a * b * scores[i, j] for i, a in parts[q] for j, b in parts[r]) for r in items] for q in items]
    )


def directions(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# ---- values ---------------------------------------------------------------------------------------------------------


def test_both_sides_of_a_pair_are_mixed_with_the_same_partner_by_the_same_share():
    batch, mix = some_batch(), Mix(torch.tensor([2, 0, 1, 3, 4]), torch.tensor([0.0, 0.25, 0.5, 0.9, 1.0]))
    got = mix.batch(batch)
    for before, after in ((batch.image, got.image), (batch.text, got.text)):
        rows = directions(before.double().numpy())
        expected = slow_rows(rows, mix.partners.tolist(), mix.shares.tolist()) * np.sqrt(rows.shape[1])
        np.testing.assert_allclose(after.numpy(), expected, atol=1e-6)
    assert got.rows is batch.rows and got.labels is batch.labels and got.epoch == batch.epoch


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_what_two_mixed_pairs_have_in_common_is_the_mean_of_their_parts(shape):
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(*shape, 6, 6))
    mix = Mix(torch.from_numpy(rng.permutation(6)), torch.from_numpy(rng.random(6)))
    got = mix.means(torch.from_numpy(scores)).numpy().reshape(-1, 6, 6)
    for each, before in zip(got, scores.reshape(-1, 6, 6), strict=True):
        np.testing.assert_allclose(each, slow_means(before, mix.partners.numpy(), mix.shares.numpy()), atol=1e-12)


def test_scores_are_products_of_mixed_unit_rows():
    rows = torch.nn.functional.normalize(torch.randn(3, 6, 4, dtype=torch.float64), dim=2)
    rows[:, 2] = 0  # a pair without labels
    mix = Mix(torch.tensor([1, 2, 2, 0, 5, 4]), torch.tensor([0.3, 0.6, 0.5, 0.0, 1.0, 0.9], dtype=torch.float64))
    mixed = torch.stack([torch.from_numpy(slow_rows(each, mix.partners, mix.shares.numpy())) for each in rows.numpy()])
    got = mix.scores(rows @ rows.mT)
    length = torch.ones(6, dtype=torch.float64)
    length[1], length[2] = 0.4**0.5, 0  # a part without labels has 0 with itself
    unit = torch.nn.functional.normalize(mixed, dim=2) * length[:, None]
    torch.testing.assert_close(got, unit @ unit.mT)
    torch.testing.assert_close(got, got.mT)


def test_opposite_parts_leave_a_score_of_zero():
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    got = Mix(torch.tensor([1, 0, 2]), torch.tensor([0.5, 0.25, 0.0])).scores(rows @ rows.T)
    torch.testing.assert_close(got, torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 0, 1]]))


def test_a_batch_of_one_is_mixed_with_itself():
    batch, mix = some_batch(1), Mix.draw(1, 0.4, 1.0, torch.device("cpu"))
    np.testing.assert_allclose(directions(mix.batch(batch).image.numpy()), directions(batch.image.numpy()), atol=1e-6)
    torch.testing.assert_close(mix.scores(torch.tensor([[[0.7]]])), torch.tensor([[[0.7]]]))


@pytest.mark.parametrize("largest", [1.0, 0.3])
@pytest.mark.parametrize("strength", [0.01, 0.4, 0.9])
def test_shares_have_the_distribution_of_the_strength(strength, largest):
    torch.manual_seed(0)
    mix = Mix.draw(20_000, strength, largest, torch.device("cpu"))
    assert sorted(mix.partners.tolist()) == list(range(20_000))
    assert ((mix.shares >= 0) & (mix.shares <= largest)).all()
    assert mix.shares.mean() == pytest.approx(largest / 2, abs=0.02)
    assert mix.shares.var() == pytest.approx(largest**2 / (4 * (2 * strength + 1)), rel=0.03)


# ---- in training ----------------------------------------------------------------------------------------------------


class Recorded(Exception):  # noqa: N818 - ends a step where its objective would be computed
    pass


@pytest.mark.parametrize("settings", [{}, {"standard_weight": 0.3}], ids=str)
def test_codes_of_mixed_pairs_follow_mixed_scores(settings, monkeypatch):
    pairs, seen = planted(40), []
    learner = MultiBit(pairs, dataclasses.replace(MIXED, mixing=0.9, dropout=0.0, **settings)).eval()
    rows = torch.arange(8)
    batch = Batch(rows, *(torch.from_numpy(each[:8]) for each in (pairs.image, pairs.text)), labels(pairs, 8), 1)
    monkeypatch.setattr(learner.objective, "forward", lambda *given: seen.append(given) or stop())
    torch.manual_seed(3)
    with pytest.raises(Recorded):
        learner.step(batch, [])
    torch.manual_seed(3)
    mix = learner.draw_mix(rows)
    image, text, teacher, related = seen[0]
    torch.testing.assert_close(image, learner.model(mix.batch(batch).image, "image"))
    torch.testing.assert_close(text, learner.model(mix.batch(batch).text, "text"))
    torch.testing.assert_close(teacher, mix.scores(learner.targets(rows)))
    assert not torch.allclose(teacher, learner.targets(rows))
    if settings:
        torch.testing.assert_close(related, mix.means((labels(pairs, 8) @ labels(pairs, 8).T > 0).float()))
    else:
        assert related is None


def stop():
    raise Recorded


def labels(pairs, items):
    return torch.from_numpy(pairs.labels[:items].astype(np.float32))


@pytest.mark.parametrize("method", [MultiBit, Free])
def test_without_mixing_nothing_is_drawn_and_with_it_each_step_draws(method, monkeypatch):
    pairs, calls = planted(70), []
    draw = Mix.draw
    monkeypatch.setattr(Mix, "draw", lambda *given: calls.append(given) or draw(*given))
    base = MIXED if method is MultiBit else METHODS["multibit-free"].config(MIXED, mixing=0.4)
    for mixing, expected in ((0.0, []), (0.4, [32, 32, 6] * SMALL.epochs)):
        calls.clear()
        config = base.override({"mixing": mixing})
        fit(method(pairs, config), pairs, config, None)
        assert [given[0] for given in calls] == expected


def test_the_seed_determines_the_mixing():
    pairs = planted(70)
    models = [trained(pairs, dataclasses.replace(MIXED, seed=seed)) for seed in (42, 42, 43)]
    assert same(weights(models[0]), weights(models[1]))
    assert not same(weights(models[0]), weights(models[2]))
    assert not same(weights(models[0]), weights(trained(pairs, SMALL)))


def trained(pairs, config):
    learner = MultiBit(pairs, config)
    fit(learner, pairs, config, None)
    return learner.model


@pytest.mark.parametrize("teacher", ["frt", "learned-weights", "jaccard", "binary"])
def test_pairs_without_labels_are_mixed_with_any_teacher(teacher):
    pairs = planted(60)
    bare = pairs.labels.copy()
    bare[::3] = 0
    config = dataclasses.replace(MIXED, teacher=teacher, within_weight=1.0)
    model = trained(dataclasses.replace(pairs, labels=bare), config)
    assert all(np.isfinite(array).all() for array in weights(model).values())


# ---- settings -------------------------------------------------------------------------------------------------------


def test_pairs_are_mixed_less_where_few_values_carry_a_row_of_either_side():
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(60, 400)).astype(np.float32)
    topics = rng.dirichlet(np.full(10, 0.1), 60).astype(np.float32)
    largest = dropout_bound(topics) / 0.4
    assert largest < 0.1
    for image, text, expected in ((dense, topics, largest), (topics, dense, largest), (dense, dense, 1.0)):
        pairs = Pairs(image, text, np.arange(61), np.ones((60, 1), np.uint8))
        shares = mixed_pairs(pairs, MIXED)(torch.arange(5000)).shares
        assert 0.99 * expected < shares.max() <= expected
        assert mixed_pairs(pairs, SMALL) is None


@pytest.mark.parametrize("value", [-0.1, 1.0, float("inf")])
def test_a_strength_out_of_range_is_refused(value):
    with pytest.raises(ConfigError) as caught:
        Config(mixing=value)
    assert caught.value.option == "mixing"
