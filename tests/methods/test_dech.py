"""DECH against its fact sheet written as loops."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch
from scipy.special import digamma, gammaln

from multibit import Pairs
from multibit.errors import ConfigError
from multibit.hashing.learner import Batch
from multibit.hashing.methods import dech
from multibit.hashing.methods.dech import Dech, DechSettings, evidence, likelihood_loss, uniform_divergence


def slow_codes(weights, modality, features):
    names = [f"model.heads.{modality}.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")]
    first, first_bias, last, last_bias = (weights[name] for name in names)
    rows = []
    for x in features:
        hidden = np.maximum(first @ (x * sqrt(len(x)) / np.linalg.norm(x)) + first_bias, 0)
        row = np.tanh(last @ hidden + last_bias)
        rows.append(row / np.linalg.norm(row))
    return np.array(rows)


def signs(relaxed):
    return np.where(relaxed >= 0, 1, -1) / sqrt(relaxed.shape[1])


def slow_evidence(weights, h_image, h_text, tau):
    """(e+, e-) of one image and one text."""
    limit = 15
    hidden = weights["opposing.first.weight"] @ np.concatenate([h_image, h_text]) + weights["opposing.first.bias"]
    g = float((weights["opposing.last.weight"] @ np.maximum(hidden, 0) + weights["opposing.last.bias"])[0])
    return [np.exp(np.clip(z / tau, -limit, limit)) for z in (float(h_image @ h_text), g)]


def slow_divergence(alpha):
    """KL(Dir(alpha) || Dir(1)) with the gamma functions."""
    total = sum(alpha)
    value = gammaln(total) - sum(gammaln(a) for a in alpha) - gammaln(len(alpha))
    return value + sum((a - 1) * (digamma(a) - digamma(total)) for a in alpha)


def slow_terms(weights, batch, settings, shift=None):
    """The three terms; `shift` is added to the signed codes, for slopes through the signs."""
    h = {
        name: signs(slow_codes(weights, name, each.numpy()))
        for name, each in (("image", batch.image), ("text", batch.text))
    }
    for name in h if shift else ():
        h[name] = h[name] + shift[name]
    labels, n = batch.labels.numpy(), len(batch.labels)
    ramp = min(1, batch.epoch / settings.ramp_epochs)
    likelihood = uniform = missing = 0.0
    for direction in ("i2t", "t2i"):
        for asked in range(n):
            for answer in range(n):
                i, t = (asked, answer) if direction == "i2t" else (answer, asked)
                e = slow_evidence(weights, h["image"][i], h["text"][t], settings.temperature)
                s = float(labels[i] @ labels[t] > 0)
                q, alpha = (s, 1 - s), [each + 1 for each in e]
                likelihood += sum(q[k] * (np.log(sum(alpha)) - np.log(alpha[k])) for k in (0, 1)) / n**2
                kept = [(alpha[k] - 1) * (1 - q[k]) + 1 for k in (0, 1)]
                uniform += ramp * slow_divergence(kept) / n**2
                missing += 1 / (sum(q[k] * e[k] for k in (0, 1)) + 1e-5) / n**2
    return [likelihood, uniform, missing]


LABELS = {
    "several": [[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]],
    "one": [[1], [1], [1], [0], [1]],
    "none": [[0, 0, 0]] * 5,
}


def problem(labels, bits, epoch=3, **settings):
    """A learner and a batch of 5 items, in float64."""
    rng = np.random.default_rng(bits)
    labels = np.array(labels, np.uint8)
    training = Pairs(*rng.normal(size=(2, 5, 6)).astype(np.float32), np.arange(6), labels)
    learner = Dech(training, DechSettings(lengths=(bits,), hidden=7, **settings)).double()
    image, text = (torch.from_numpy(each).double() for each in (training.image, training.text))
    return learner, Batch(torch.arange(5), image, text, torch.from_numpy(labels).double(), epoch)


def arrays(learner):
    return {name: each.detach().numpy().copy() for name, each in learner.named_parameters()}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("bits", [1, 4, 16])
@pytest.mark.parametrize("changes", [{}, {"temperature": 0.04, "ramp_epochs": 2}], ids=["default", "changed"])
def test_terms_are_those_as_published(labels, bits, changes):
    learner, batch = problem(labels, bits, **changes)
    found = learner.losses(batch)
    assert tuple(found) == Dech.parts[:-1]
    expected = slow_terms(arrays(learner), batch, learner.settings)
    assert [each.item() for each in found.values()] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["opposing.first.weight", "opposing.first.bias", "opposing.last.weight"])
def test_gradient_of_the_evidence_network(name):
    learner, batch = problem(LABELS["several"], 5)
    torch.stack(list(learner.losses(batch).values())).sum().backward()
    parameter = learner.get_parameter(name)
    for position in np.random.default_rng(0).integers(parameter.numel(), size=4):
        ends = []
        for change in (1e-6, -1e-6):
            weights = arrays(learner)
            weights[name].reshape(-1)[position] += change
            ends.append(sum(slow_terms(weights, batch, learner.settings)))
        slope = (ends[0] - ends[1]) / 2e-6
        assert float(parameter.grad.reshape(-1)[position]) == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_gradient_passes_through_the_signs(monkeypatch):
    learner, batch = problem(LABELS["several"], 5)
    relaxed = []

    def spy(codes):
        codes.retain_grad()
        relaxed.append(codes)
        return original(codes)

    original = dech.unit_signs
    monkeypatch.setattr(dech, "unit_signs", spy)
    torch.stack(list(learner.losses(batch).values())).sum().backward()
    for codes, name in zip(relaxed, ("image", "text"), strict=True):
        for row, column in ((0, 0), (2, 3), (4, 1)):
            ends = []
            for change in (1e-6, -1e-6):
                shift = {each: np.zeros((5, 5)) for each in ("image", "text")}
                shift[name][row, column] = change
                ends.append(sum(slow_terms(arrays(learner), batch, learner.settings, shift)))
            slope = (ends[0] - ends[1]) / 2e-6
            assert float(codes.grad[row, column]) == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_divergence_ramps_up_over_ten_epochs():
    values = []
    for epoch in (1, 5, 10, 50):
        learner, batch = problem(LABELS["several"], 4, epoch=epoch)
        values.append(learner.losses(batch)["uniform"].item())
    assert [each / values[2] for each in values] == pytest.approx([0.1, 0.5, 1, 1])


@pytest.mark.parametrize("wrong", [0.0, 1e-6, 0.3, 5.0, 148.0, 3.2e6])
def test_divergence_is_that_of_the_gamma_functions(wrong):
    expected = slow_divergence([1.0, wrong + 1.0])
    exact = float(uniform_divergence(torch.tensor([wrong]).double()))
    assert exact == pytest.approx(expected, rel=1e-6, abs=1e-8)
    assert float(uniform_divergence(torch.tensor([wrong]))) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_evidence_is_limited_and_finite_in_float32():
    scores = torch.tensor([-1e9, -3.0, 0.0, 3.0, 1e9], requires_grad=True)
    found = evidence(scores, temperature=0.2)
    assert found.detach().numpy() == pytest.approx(np.exp([-15, -15, 0, 15, 15]), rel=1e-5)
    for true, wrong in ((found, found.flip(0)), (found.flip(0), found)):
        (likelihood_loss(true, wrong) + uniform_divergence(wrong)).backward(retain_graph=True)
    assert torch.isfinite(scores.grad).all()


def test_evidence_against_is_that_of_image_i_and_text_t():
    learner, batch = problem([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0]], 4)
    codes = {name: dech.unit_signs(learner.model(getattr(batch, name), name)) for name in ("image", "text")}
    found = learner.opposing(codes["image"], codes["text"])
    weights = arrays(learner)
    for i in range(5):
        for t in range(5):
            image, text = codes["image"][i].detach().numpy(), codes["text"][t].detach().numpy()
            expected = np.log(slow_evidence(weights, image, text, 1.0)[1])
            assert found[i, t].item() == pytest.approx(expected)


def test_codes_are_bounded_and_of_unit_length():
    learner, batch = problem(LABELS["several"], 16)
    codes = learner.model(1e3 * batch.image, "image")
    assert codes.norm(dim=1).detach().numpy() == pytest.approx(np.ones(5))


def test_the_norm_of_the_gradient_is_limited_over_all_networks(monkeypatch):
    learner, batch = problem(LABELS["several"], 4, temperature=0.01)
    seen = []
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: seen.append(self.param_groups[0]["params"]))
    (descent,) = learner.optimizers(10)
    learner.step(batch, [descent])
    assert {id(each) for each in seen[0]} == {id(each) for each in learner.parameters()}
    total = sum(float(each.grad.square().sum()) for each in seen[0]) ** 0.5
    assert total == pytest.approx(1.0, rel=1e-4)
    assert descent.rate == 1e-4


def test_refuses_an_unusable_width():
    with pytest.raises(ConfigError, match="hidden"):
        DechSettings(hidden=10**9)
