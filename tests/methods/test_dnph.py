"""DNPH against its fact sheet written as loops."""

from __future__ import annotations

from itertools import permutations
from math import exp, log, sqrt

import numpy as np
import pytest
import torch

from multibit import Pairs
from multibit.hashing.learner import Batch
from multibit.hashing.methods import dnph
from multibit.hashing.methods.dnph import Dnph, DnphSettings, matched_agreement, proxy_loss
from slopes import assert_slopes


def unit(vector):
    return vector / sqrt(float(vector @ vector))


def slow_proxy_loss(codes, labels, proxies, margin):
    loss = 0.0
    for f, y in zip(codes, labels, strict=True):
        distances = [float(np.sum((unit(f) - unit(p)) ** 2)) + margin * y_c for p, y_c in zip(proxies, y, strict=True)]
        total = log(sum(exp(-distance) for distance in distances))
        loss -= sum(y_c * (-distance - total) for distance, y_c in zip(distances, y, strict=True))
    return loss / len(codes)


def slow_agreement(codes, targets, power=1):
    """Every assignment is tried; `power` 2 is the assignment by squared distances, which the method does not use."""
    n = len(codes)

    def cost(order):
        return sum(np.linalg.norm(codes[i] - targets[order[i]]) ** power for i in range(n))

    best = min(permutations(range(n)), key=cost)
    return sum(float(codes[i] @ targets[best[i]]) for i in range(n)) / n


def slow_codes(features, weight, bias):
    rows = [np.tanh(weight @ (x * sqrt(len(x)) / np.linalg.norm(x)) + bias) for x in features]
    return np.array(rows)


def slow_terms(weights, batch, targets, settings):
    image = slow_codes(batch.image.numpy(), weights["model.heads.image.weight"], weights["model.heads.image.bias"])
    text = slow_codes(batch.text.numpy(), weights["model.heads.text.weight"], weights["model.heads.text.bias"])
    labels = batch.labels.numpy()
    proxy = slow_proxy_loss([*image, *text], [*labels, *labels], weights["proxies"], settings.margin)
    agreement = slow_agreement(image, targets) + slow_agreement(text, targets)
    return [proxy, -settings.noise_weight * agreement]


LABELS = {
    "several": [[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]],
    "one": [[1], [1], [1], [0], [1]],
    "none": [[0, 0, 0]] * 5,
}


def problem(labels, bits, **settings):
    """A learner and a batch of 5 items, in float64 and without dropout."""
    rng = np.random.default_rng(bits)
    labels = np.array(labels, np.uint8)
    training = Pairs(*rng.normal(size=(2, 5, 6)).astype(np.float32), np.arange(6), labels)
    learner = Dnph(training, DnphSettings(lengths=(bits,), **settings)).double().eval()
    image, text = (torch.from_numpy(each).double() for each in (training.image, training.text))
    return learner, Batch(torch.arange(5), image, text, torch.from_numpy(labels).double(), 1)


@pytest.fixture
def drawn(monkeypatch):
    """The random codes that each call of `matched_agreement` got."""
    seen = []

    def spy(codes, targets):
        seen.append(targets.numpy())
        return matched_agreement(codes, targets)

    monkeypatch.setattr(dnph, "matched_agreement", spy)
    return seen


def arrays(learner):
    return {name: each.detach().numpy().copy() for name, each in learner.named_parameters()}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("bits", [1, 4, 16])
@pytest.mark.parametrize("changes", [{}, {"margin": 0.3, "noise_weight": 2.0}], ids=["default", "changed"])
def test_terms_are_those_as_published(drawn, labels, bits, changes):
    learner, batch = problem(labels, bits, **changes)
    found = learner.losses(batch)
    assert tuple(found) == Dnph.parts[:-1]
    expected = slow_terms(arrays(learner), batch, drawn[0], learner.settings)
    assert [each.item() for each in found.values()] == pytest.approx(expected)


@pytest.mark.parametrize("bits", [2, 5])
def test_gradients_are_those_as_published(drawn, bits):
    learner, batch = problem(LABELS["several"], bits)
    torch.stack(list(learner.losses(batch).values())).sum().backward()
    assert_slopes(
        learner,
        arrays,
        lambda weights: sum(slow_terms(weights, batch, drawn[0], learner.settings)),
        places=3,
        rel=1e-5,
        atol=1e-7,
    )


def test_random_codes_are_signs_shared_by_the_modalities_and_new_for_every_batch(drawn):
    learner, batch = problem(LABELS["several"], 64)
    learner.losses(batch)
    learner.losses(batch)
    assert [targets.shape for targets in drawn] == [(5, 64)] * 4
    assert all(set(np.unique(targets)) == {-1.0, 1.0} for targets in drawn)
    assert np.array_equal(drawn[0], drawn[1]) and np.array_equal(drawn[2], drawn[3])
    assert not np.array_equal(drawn[0], drawn[2])
    assert abs(np.concatenate(drawn[::2]).mean()) < 0.2


def test_assignment_minimises_distances_that_are_not_squared():
    differ = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        codes = np.tanh(rng.normal(size=(5, 4)) * rng.uniform(0.1, 3, size=(5, 1)))
        targets = rng.choice([-1.0, 1.0], size=(5, 4))
        value = float(matched_agreement(torch.from_numpy(codes), torch.from_numpy(targets)))
        assert value == pytest.approx(slow_agreement(codes, targets))
        differ += value < slow_agreement(codes, targets, power=2) - 1e-9
    assert differ


def test_agreement_is_a_sum_over_bits():
    codes = torch.ones(3, 32)
    assert float(matched_agreement(codes, codes)) == 32.0


def test_proxy_loss_is_a_sum_over_labels_and_a_mean_over_codes():
    codes, proxies = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).double(), torch.eye(8).double()[:3]
    both = torch.tensor([[1.0, 1.0, 0.0]] * 4).double()
    parts = proxy_loss(codes, both * torch.tensor([1, 0, 0]), proxies, margin=0.0)
    parts = parts + proxy_loss(codes, both * torch.tensor([0, 1, 0]), proxies, margin=0.0)
    assert float(proxy_loss(codes, both, proxies, margin=0.0)) == pytest.approx(float(parts))
    repeated = proxy_loss(codes.repeat(2, 1), both.repeat(2, 1), proxies, margin=1.0)
    assert float(repeated) == pytest.approx(float(proxy_loss(codes, both, proxies, margin=1.0)))


def test_margin_makes_the_own_proxies_farther():
    codes, labels = torch.eye(4)[:2], torch.eye(2)
    values = [float(proxy_loss(codes, labels, torch.eye(4)[:2], margin)) for margin in (0.0, 1.0, 2.0)]
    assert values == sorted(values) and len(set(values)) == 3


def test_uniform_term_pulls_codes_to_the_random_ones(drawn):
    learner, batch = problem(LABELS["none"], 4)
    before = learner.losses(batch)["uniform"]
    before.backward()
    with torch.no_grad():
        for weights in learner.model.parameters():
            weights -= 0.1 * weights.grad
    image = slow_codes(
        batch.image.numpy(), *(each.detach().numpy() for each in learner.model.heads["image"].parameters())
    )
    text = slow_codes(batch.text.numpy(), *(each.detach().numpy() for each in learner.model.heads["text"].parameters()))
    assert slow_agreement(image, drawn[0]) + slow_agreement(text, drawn[0]) > -before.item() / 0.1


@pytest.mark.parametrize("rate", [1e-4, 0.0])
def test_proxies_follow_plain_gradient_descent(rate):
    learner, batch = problem(LABELS["several"], 4, proxy_rate=rate)
    learner.losses(batch)["proxy"].backward()
    expected = (learner.proxies - rate * learner.proxies.grad).detach().numpy()
    layers = arrays(learner)
    descents = learner.optimizers(10)
    learner.step(batch, descents)
    assert learner.proxies.detach().numpy() == pytest.approx(expected, abs=1e-12)
    learner.step(batch, descents)  # the first step of a warm-up has the rate 0
    assert all((layers[name] != each).any() for name, each in arrays(learner).items() if name.startswith("model"))
    assert descents[1].rate == rate  # constant


def test_first_proxies_have_an_eighth_of_unit_size():
    labels = np.eye(400, dtype=np.uint8)
    training = Pairs(*np.ones((2, 400, 3), np.float32), np.arange(401), labels)
    assert Dnph(training, DnphSettings(lengths=(16,))).proxies.std().item() == pytest.approx(1 / 8, rel=0.05)
