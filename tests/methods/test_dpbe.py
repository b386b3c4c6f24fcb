"""DPBE against its fact sheet written as loops."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest
import torch

from conftest import plant
from multibit import Pairs
from multibit.hashing.learner import Batch
from multibit.hashing.loop import fit
from multibit.hashing.methods.dpbe import (
    DPBE,
    Dpbe,
    DpbeSettings,
    SampledHash,
    apply_samples,
    curvature,
    curvature_scale,
    with_one,
)

MODALITIES = ("image", "text")


def slow_embed(features, weights):
    """Unit vectors of rows, by (B, d+1) weights with the bias last."""
    rows = []
    for x in features:
        length = np.linalg.norm(x)
        a = weights[:, :-1] @ (x * sqrt(len(x)) / length if length else x) + weights[:, -1]
        rows.append(a / np.linalg.norm(a))
    return np.array(rows)


def slow_error(left, right, labels):
    n, loss = len(labels), 0.0
    for i in range(n):
        for j in range(n):
            target = 2 / (1 + exp(-float(labels[i] @ labels[j]))) - 1
            loss += (float(left[i] @ right[j]) - target) ** 2 / n**2
    return loss


def slow_terms(means, noise, batch):
    """The three terms, of the mean weights and the noise that is added to them, by modality."""
    samples, labels = len(noise["image"]), batch.labels.numpy()
    terms = np.zeros(3)
    for s in range(samples):
        z = {m: slow_embed(getattr(batch, m).numpy(), means[m] + noise[m][s]) for m in MODALITIES}
        for term, (left, right) in enumerate((("image", "image"), ("text", "text"), ("image", "text"))):
            terms[term] += slow_error(z[left], z[right], labels) / samples
    return terms


def slow_curvature(features, samples):
    """Mean over items and samples of the squared derivatives of the unit vector, by central differences."""
    total = np.zeros(samples[0].shape)
    for weights in samples:
        for x in features:
            for position in np.ndindex(weights.shape):
                ends = []
                for change in (1e-5, -1e-5):
                    moved = weights.copy()
                    moved[position] += change
                    ends.append(slow_embed([x], moved)[0])
                total[position] += np.sum(((ends[0] - ends[1]) / 2e-5) ** 2)
    return total / len(samples) / len(features)


def slow_triplets(labels):
    n = len(labels)
    related = [[bool(labels[i] @ labels[j]) for j in range(n)] for i in range(n)]
    return sum(
        related[a][p] and not related[a][q] for a in range(n) for p in range(n) if p != a for q in range(n) if q != a
    )


LABELS = {
    "several": [[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]],
    "one": [[1], [1], [1], [0], [1]],
    "none": [[0, 0, 0]] * 5,
}


def problem(labels, bits, **settings):
    """A learner and a batch of 5 items in float64."""
    rng = np.random.default_rng(bits)
    labels = np.array(labels, np.uint8)
    features = (rng.normal(size=(5, size)).astype(np.float32) for size in (6, 4))
    training = Pairs(*features, np.arange(6), labels)
    learner = Dpbe(training, DpbeSettings(lengths=(bits,), **settings)).double()
    image, text = (torch.from_numpy(each).double() for each in (training.image, training.text))
    return learner, Batch(torch.arange(5), image, text, torch.from_numpy(labels).double(), 1)


def drawn(learner):
    """Mean weights, and the noise that seed 9 adds to them, by modality."""
    torch.manual_seed(9)
    means = {m: learner.model.weights(m).detach().numpy() for m in MODALITIES}
    return means, {m: learner.draw(m).detach().numpy() - means[m] for m in MODALITIES}


def losses(learner, batch):
    torch.manual_seed(9)
    return learner.losses(batch)


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("bits", [1, 4, 16])
def test_terms_are_means_over_all_samples(labels, bits):
    learner, batch = problem(labels, bits)
    means, noise = drawn(learner)
    found = losses(learner, batch)
    assert tuple(found) == Dpbe.parts[:-1]
    assert noise["image"].shape == (5, bits, 7) and noise["text"].shape == (5, bits, 5)
    assert [each.item() for each in found.values()] == pytest.approx(list(slow_terms(means, noise, batch)))


@pytest.mark.parametrize("bits", [2, 5])
def test_gradient_at_the_samples_is_applied_to_the_mean(bits):
    learner, batch = problem(LABELS["several"], bits)
    means, noise = drawn(learner)
    torch.stack(list(losses(learner, batch).values())).sum().backward()
    rng = np.random.default_rng(0)
    for modality in MODALITIES:
        head = learner.model.heads[modality]
        gradient = torch.cat([head.weight.grad, head.bias.grad[:, None]], dim=1)
        for position in rng.integers(gradient.numel(), size=4):
            ends = []
            for change in (1e-6, -1e-6):
                moved = {m: means[m].copy() for m in MODALITIES}
                moved[modality].reshape(-1)[position] += change
                ends.append(slow_terms(moved, noise, batch).sum())
            slope = (ends[0] - ends[1]) / 2e-6
            assert float(gradient.reshape(-1)[position]) == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_curvature_is_that_of_the_unit_vectors(bits):
    rng = np.random.default_rng(bits)
    features, samples = rng.normal(size=(4, 3)), rng.normal(size=(2, bits, 4))
    inputs = with_one(torch.from_numpy(features))
    found = curvature(inputs, apply_samples(inputs, torch.from_numpy(samples))).numpy()
    assert found == pytest.approx(slow_curvature(features, samples), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_precision_remembers_and_adds_the_scaled_curvature(labels):
    learner, batch = problem(labels, 3, memory=0.9)
    means, noise = drawn(learner)
    losses(learner, batch)
    count = slow_triplets(batch.labels.numpy())
    scale = 5**2 / min(count, 5000) if count else 0.0
    for modality in MODALITIES:
        features = getattr(batch, modality).numpy()
        expected = 0.9 * 5 + scale * slow_curvature(features, means[modality] + noise[modality])
        assert getattr(learner, f"{modality}_precision").numpy() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_scale_counts_triplets_up_to_5000(seed):
    rng = np.random.default_rng(seed)
    labels = (rng.random((int(rng.integers(2, 12)), 5)) < rng.uniform(0.1, 0.6)).astype(np.float32)
    count = slow_triplets(labels)
    assert curvature_scale(torch.from_numpy(labels), 300) == (300**2 / count if count else 0.0)
    many = torch.eye(2).repeat(50, 1)  # 100 * 49 * 50 triplets
    assert curvature_scale(many, 10_000) == 20_000


def test_spread_of_the_samples_follows_the_precision():
    learner, _ = problem(LABELS["several"], 2, samples=20_000)
    assert float(learner.image_precision.min()) == float(learner.image_precision.max()) == 5  # the training items
    learner.image_precision.copy_(torch.linspace(0, 1e4, 14).reshape(2, 7))
    torch.manual_seed(0)
    samples = learner.draw("image").detach()
    expected = [[1 / (sqrt(h + 1) + 1e-6) for h in row] for row in learner.image_precision.tolist()]
    assert samples.std(dim=0).numpy() == pytest.approx(np.array(expected), rel=0.03)
    offset = (samples.mean(dim=0) - learner.model.weights("image")).detach().numpy()
    assert np.abs(offset / np.array(expected)).max() < 0.03


def test_precision_grows_and_samples_become_alike():
    data = plant(100)
    training = Pairs(data["image"], data["text"], np.arange(101), data["labels"])
    settings = DPBE.config(lengths=(8,), epochs=30, batch_size=50)
    learner = Dpbe(training, settings)
    assert float(learner.image_precision.min()) == 100
    fit(learner, training, settings, score=None)
    assert float(learner.image_precision.mean()) > 110


def test_encodes_by_the_mean_over_stored_samples():
    learner, batch = problem(LABELS["several"], 4)
    learner.end_epoch(1)
    for modality in MODALITIES:
        features, samples = getattr(batch, modality).numpy(), learner.model.samples(modality).numpy()
        expected = np.mean([slow_embed(features, weights) for weights in samples], axis=0)
        learner.model.float()
        found = learner.model.encode(features.astype(np.float32), modality)
        assert found == pytest.approx(expected, abs=1e-5)
        assert np.abs(found).max() <= 1
        learner.model.double()


def test_samples_are_drawn_once_per_epoch_from_the_posterior():
    learner, batch = problem(LABELS["several"], 4)
    first = {m: learner.model.samples(m).clone() for m in MODALITIES}
    assert all(torch.equal(first[m][s], learner.model.weights(m)) for m in MODALITIES for s in range(5))
    losses(learner, batch)
    assert all(torch.equal(first[m], learner.model.samples(m)) for m in MODALITIES)
    torch.manual_seed(9)
    learner.end_epoch(1)
    _, noise = drawn(learner)
    for modality in MODALITIES:
        deviation = learner.model.samples(modality) - learner.model.weights(modality)
        assert deviation.detach().numpy() == pytest.approx(noise[modality])


def test_untrained_model_codes_by_its_weights():
    features = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    model = SampledHash(5, 4, bits=6)
    expected = slow_embed(features, model.weights("image").detach().numpy())
    assert model.encode(features, "image") == pytest.approx(expected, abs=1e-5)
    assert model.flops == 2 * 5 * 6 * (6 + 5)


def test_similar_items_cannot_reach_their_target():
    """The target of an item with itself is tanh(labels / 2), though its cosine is 1."""
    learner, batch = problem([[1, 0]] * 5, 4)
    with torch.no_grad():
        for modality in MODALITIES:
            head = learner.model.heads[modality]
            head.weight.zero_()
            head.bias.fill_(1e6)
    values = losses(learner, batch)
    assert values["image"].item() == pytest.approx((1 - np.tanh(0.5)) ** 2, rel=1e-3)
