"""DSSH against its fact sheet written as loops, and the von Mises-Fisher sampler against known moments."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import pytest
import torch
from scipy.integrate import cumulative_trapezoid
from scipy.special import ive
from scipy.stats import kstest

from multibit import Pairs
from multibit.hashing import von_mises_fisher
from multibit.hashing.learner import Batch
from multibit.hashing.methods.dssh import Dssh, DsshSettings, first_proxies, similarity_loss
from multibit.hashing.von_mises_fisher import draw_noise, log_normalizer, mean_shrinkage, place
from slopes import assert_slopes


def pairs(data, rows=slice(None)):
    labels = data["labels"][rows]
    return Pairs(data["image"][rows], data["text"][rows], np.arange(len(labels) + 1), labels)


# The sampler


def along(direction_seed, dimension, concentration):
    direction = np.random.default_rng(direction_seed).normal(size=dimension)
    return torch.from_numpy(concentration * direction / np.linalg.norm(direction))[None]


def draw(natural, count):
    noise = draw_noise(natural.norm(dim=1), natural.shape[1], count)
    return place(noise, natural)[0].numpy()


def bessel_ratio(k, d):
    return ive(d / 2, k) / ive(d / 2 - 1, k)


@pytest.mark.parametrize("d", [1, 2, 3, 16, 64, 128])
@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 4.0])
def test_mean_and_spread_are_those_of_the_distribution(d, factor):
    k = factor * sqrt(d)
    natural = along(d, d, k)
    torch.manual_seed(1)
    samples = draw(natural, 20_000)
    direction = (natural / k)[0].numpy()
    cosines = samples @ direction
    assert np.allclose(np.linalg.norm(samples, axis=1), 1)
    assert cosines.mean() == pytest.approx(bessel_ratio(k, d), abs=4 * cosines.std() / sqrt(len(cosines)) + 1e-9)
    second = 1 - (d - 1) / k * bessel_ratio(k, d)  # E[cos^2], from the Bessel equation
    assert (cosines**2).mean() == pytest.approx(second, abs=4 * (cosines**2).std() / sqrt(len(cosines)) + 1e-9)
    aside = samples.mean(axis=0) - cosines.mean() * direction  # no other direction is preferred
    assert np.linalg.norm(aside) < 2 * sqrt(d / len(samples))


@pytest.mark.parametrize(("d", "k"), [(2, 1.4), (3, 5.0), (16, 4.0), (64, 30.0), (128, 11.3)])
def test_cosines_have_the_density_of_the_distribution(d, k):
    natural = along(0, d, k)
    torch.manual_seed(2)
    cosines = draw(natural, 10_000) @ (natural / k)[0].numpy()
    angle = np.linspace(0, np.pi, 20_001)  # density of the angle: exp(k cos) sin^(d-2)
    mass = cumulative_trapezoid(np.exp(k * (np.cos(angle) - 1)) * np.sin(angle) ** (d - 2), angle, initial=0)
    test = kstest(np.arccos(cosines), lambda x: np.interp(x, angle, mass / mass[-1]))
    assert test.pvalue > 1e-3


def test_tangents_are_isotropic():
    d, k = 6, 3.0
    natural = along(4, d, k)
    torch.manual_seed(0)
    samples = draw(natural, 40_000)
    axis = (natural / k)[0].numpy()
    values, vectors = np.linalg.eigh(np.cov(samples.T))
    aligned = np.abs(vectors.T @ axis)
    others = values[aligned < 0.5]
    assert (aligned > 0.99).sum() == 1
    assert others == pytest.approx(np.full(d - 1, bessel_ratio(k, d) / k), rel=0.05)  # (1 - E[cos^2]) / (d-1) = A / k


@pytest.mark.parametrize("d", [1, 2, 16, 128])
@pytest.mark.parametrize("k", [0.0, 1e-30, 1e-3, 100.0, 1e8, 1e15])
def test_samples_and_gradients_are_finite_for_any_concentration(d, k):
    natural = along(1, d, k).float().requires_grad_()
    samples = place(draw_noise(natural.detach().norm(dim=1), d, 200), natural)
    assert samples.norm(dim=2).detach().numpy() == pytest.approx(1, abs=1e-5)
    samples.square().sum().backward()
    assert torch.isfinite(natural.grad).all()


def test_what_is_still_rejected_after_the_last_round_is_kept(monkeypatch):
    monkeypatch.setattr(von_mises_fisher, "ROUNDS", 1)
    samples = draw(along(0, 4, 3.0), 1000)
    assert np.allclose(np.linalg.norm(samples, axis=1), 1)


def test_zero_has_no_direction():
    torch.manual_seed(0)
    samples = draw(torch.zeros(1, 8, dtype=torch.float64), 20_000)
    assert np.abs(samples.mean(axis=0)).max() < 0.02
    assert np.cov(samples.T) == pytest.approx(np.eye(8) / 8, abs=0.01)


def test_random_numbers_are_those_of_torch():
    torch.manual_seed(5)
    first = draw(along(0, 16, 4.0), 50)
    np.random.default_rng().normal()
    torch.manual_seed(5)
    assert np.array_equal(first, draw(along(0, 16, 4.0), 50))


@pytest.mark.parametrize("d", [2, 16, 32, 64, 128])
def test_closed_forms_agree_with_bessel_functions_and_each_other(d):
    k = torch.linspace(0.1, 4 * sqrt(d), 50, dtype=torch.float64, requires_grad=True)
    resultant = (k * mean_shrinkage(k**2, d)).detach().numpy()
    assert resultant == pytest.approx(bessel_ratio(k.detach().numpy(), d), abs=0.11 if d == 2 else 0.012)
    log_normalizer(k**2, d).sum().backward()
    assert k.grad.numpy() == pytest.approx(-resultant)


# The loss


def slow_mean(v):
    d, k = max(len(v), 2), sqrt(sum(x * x for x in v))
    if k == 0:
        return [0.0] * len(v)
    a, b = (d - 1) / 2, (d + 1) / 2
    ratio = 0.5 * (k / (a + sqrt(b * b + k * k)) + k / (a + sqrt(a * a + k * k)))
    return [x / k * ratio for x in v]


def slow_log_normalizer(k, d):
    a, b = (d - 1) / 2, (d + 1) / 2
    lower, upper = sqrt(a * a + k * k), sqrt(b * b + k * k)
    return 0.5 * (a * log(a + lower) - lower + a * log(a + upper) - upper)


def slow_sample(u, share, tangent):
    """Wood's cosine of a Beta value, then the reflection that takes the first axis to u."""
    d, k = len(u), sqrt(sum(x * x for x in u))
    b = (-2 * k + sqrt(4 * k * k + (d - 1) ** 2)) / (d - 1) if d > 1 else 1.0
    w = (1 - (1 + b) * share) / (1 - (1 - b) * share)
    x = np.array([w, *(sqrt(max(1 - w * w, 0)) * tangent)])
    mirror = np.eye(d)[0] - np.array(u) / k
    if not mirror.any():
        return x
    mirror /= np.linalg.norm(mirror)
    return x - 2 * mirror * (mirror @ x)


def slow_vmf(codes, labels, proxies, beta, shares, tangents):
    values, d = [], max(codes.shape[1], 2)
    for u, y, share, tangent in zip(codes, labels, shares, tangents, strict=True):
        if not y.any():
            continue
        partition = 0.0
        for s in range(len(share)):
            z = slow_sample(list(u), share[s], tangent[s])
            total = sum(
                exp(slow_log_normalizer(np.linalg.norm(p), d) - slow_log_normalizer(np.linalg.norm(p + beta * z), d))
                for p in proxies
            )
            partition += log(total) / len(share)
        own = sum(y_c * p for y_c, p in zip(y, proxies, strict=True))
        values.append(partition - beta * np.dot(slow_mean(list(own)), slow_mean(list(u))))
    return sum(values) / len(values) if values else 0.0


def slow_similarity(image, text, labels):
    loss, n = 0.0, len(labels)
    for left, right in ((image, text), (image, image), (text, text)):
        for i in range(n):
            logits = [float(left[i] @ right[j]) for j in range(n)]
            total = log(sum(exp(x) for x in logits))
            for j in range(n):
                loss -= float(labels[i] @ labels[j]) * (logits[j] - total) / n
    return loss


def slow_codes(features, weight, bias):
    rows = [np.tanh(weight @ (x * sqrt(len(x)) / np.linalg.norm(x)) + bias) for x in features]
    return np.array(rows)


def slow_terms(weights, batch, noise):
    """The four terms, of weights by name."""
    image = slow_codes(batch.image.numpy(), weights["model.heads.image.weight"], weights["model.heads.image.bias"])
    text = slow_codes(batch.text.numpy(), weights["model.heads.text.weight"], weights["model.heads.text.bias"])
    labels, n = batch.labels.numpy(), len(batch.labels)
    beta = exp(-float(weights["log_temperature"]))
    terms = []
    for part, codes in enumerate((image, text, (image + text) / 2)):
        rows = slice(part * n, (part + 1) * n)
        terms.append(slow_vmf(codes, labels, weights["proxies"], beta, noise.share[rows], noise.tangent[rows]))
    return [*terms, slow_similarity(image, text, labels)]


LABELS = {
    "several": [[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]],
    "one": [[1], [1], [1], [0], [1]],
    "none": [[0, 0, 0]] * 5,
}


def problem(labels, bits, samples=3):
    """A learner and a batch of 5 items, in float64 and without dropout, and the noise that seed 9 draws for it."""
    rng = np.random.default_rng(bits)
    labels = np.array(labels, np.uint8)
    training = Pairs(*rng.normal(size=(2, 5, 6)).astype(np.float32), np.arange(6), labels)
    learner = Dssh(training, DsshSettings(lengths=(bits,), samples=samples)).double().eval()
    with torch.no_grad():
        learner.log_temperature.fill_(-0.4)
    image, text = (torch.from_numpy(each).double() for each in (training.image, training.text))
    batch = Batch(torch.arange(5), image, text, torch.from_numpy(labels).double(), 1)
    with torch.no_grad():
        image_codes, text_codes = learner.model(image, "image"), learner.model(text, "text")
    codes = torch.cat([image_codes, text_codes, (image_codes + text_codes) / 2])
    torch.manual_seed(9)
    return learner, batch, draw_noise(codes.norm(dim=1), bits, samples)


def losses(learner, batch):
    torch.manual_seed(9)
    return learner.losses(batch)


def arrays(learner):
    return {name: each.detach().numpy().copy() for name, each in learner.named_parameters()}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("bits", [1, 2, 5, 16])
def test_terms_are_those_as_published(labels, bits):
    learner, batch, noise = problem(labels, bits)
    found = losses(learner, batch)
    assert tuple(found) == Dssh.parts[:-1]
    noise = type(noise)(*(each.numpy() for each in noise))
    assert [each.item() for each in found.values()] == pytest.approx(slow_terms(arrays(learner), batch, noise))


@pytest.mark.parametrize("bits", [1, 2, 5])
def test_gradients_are_those_as_published(bits):
    learner, batch, noise = problem(LABELS["several"], bits)
    torch.stack(list(losses(learner, batch).values())).sum().backward()
    noise = type(noise)(*(each.numpy() for each in noise))
    assert_slopes(
        learner, arrays, lambda weights: sum(slow_terms(weights, batch, noise)), places=3, rel=1e-5, atol=1e-6
    )


def test_items_without_a_label_are_left_out_of_the_proxy_terms():
    learner, batch, _ = problem(LABELS["none"], bits=4)
    values = losses(learner, batch)
    assert [values[name].item() for name in ("image", "text", "mean", "similarity")] == [0.0] * 4
    torch.stack(list(values.values())).sum().backward()
    assert all(not parameter.grad.any() for parameter in learner.parameters())


def test_similarity_targets_are_counts_not_shares():
    image, text = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1.0, 0], [1, 0], [0, 1]])
    once, twice = (similarity_loss(image, text, each) for each in (labels, torch.cat([labels, labels], dim=1)))
    assert float(twice) == pytest.approx(2 * float(once))


def test_codes_at_their_proxy_cost_less():
    learner, batch, _ = problem([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]], bits=16, samples=64)
    own = batch.labels @ learner.proxies.detach()
    values = {}
    for sign in (1, -1):
        learner.model.forward = lambda *_, sign=sign: torch.tanh(sign * own)
        values[sign] = losses(learner, batch)
    assert all(values[1][name] < values[-1][name] - 0.1 for name in ("image", "text", "mean"))


@pytest.mark.parametrize("size", [0.0, 1e-4, 1e3])
def test_partition_is_stable_for_any_proxies(size):
    learner, batch, _ = problem(LABELS["several"], bits=16)
    with torch.no_grad():
        learner.proxies.mul_(size)
    learner.float()
    batch = batch._replace(image=batch.image.float(), text=batch.text.float(), labels=batch.labels.float())
    total = torch.stack(list(losses(learner, batch).values())).sum()
    total.backward()
    assert torch.isfinite(total) and all(torch.isfinite(each.grad).all() for each in learner.parameters())


@pytest.mark.parametrize("bits", [16, 32, 64, 128])
def test_first_proxies_have_means_of_the_wanted_length(bits):
    torch.manual_seed(0)
    proxies = first_proxies(2000, bits)
    assert float(proxies.std()) == pytest.approx(0.7 / 0.51 * (bits - 1) / sqrt(bits), rel=0.02)
    means = proxies * mean_shrinkage(proxies.square().sum(dim=1, keepdim=True), bits)
    assert float(means.norm(dim=1).mean()) == pytest.approx(0.7, abs=0.02)


def test_proxies_and_temperature_learn_more_slowly():
    learner, _, _ = problem(LABELS["several"], bits=4)
    optimizer = learner.optimizers(100)[0].optimizer
    layers, proxies, temperature = optimizer.param_groups
    assert [group["initial_lr"] for group in (layers, proxies, temperature)] == pytest.approx([1e-3, 1e-4, 1e-5])
    assert proxies["params"][0] is learner.proxies and temperature["params"][0] is learner.log_temperature
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(learner.parameters()))
