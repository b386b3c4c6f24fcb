"""DSTH against its fact sheet written as loops."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import pytest
import torch

from multibit import Pairs
from multibit.errors import ConfigError
from multibit.hashing.learner import Batch
from multibit.hashing.methods import dsth
from multibit.hashing.methods.dsth import Dsth, DsthSettings, propagate, tuplet_loss
from slopes import assert_slopes


def slow_codes(features, weight, bias):
    return np.array([np.tanh(weight @ (x * sqrt(len(x)) / np.linalg.norm(x)) + bias) for x in features])


def unit(vector):
    return vector / np.linalg.norm(vector)


def slow_incidence(codes, labels, means, log_variances, scale):
    """(b, present classes)."""
    present = [c for c in range(labels.shape[1]) if labels[:, c].sum() > 0]
    rows = []
    for x, y in zip(codes, labels, strict=True):
        row = []
        for c in present:
            variance = np.exp(np.clip(log_variances[c], 0, 6))
            distance = sum((unit(x)[k] - unit(means[c])[k]) ** 2 / variance[k] for k in range(len(x)))
            row.append(y[c] + (1 - y[c]) * exp(-scale * distance))
        rows.append(row)
    return np.array(rows).reshape(len(codes), len(present))


def slow_propagation(incidence):
    """The matrix G."""
    if not incidence.shape[1]:
        return np.zeros((len(incidence),) * 2)
    half = np.diag(incidence.sum(axis=1) ** -0.5)
    return half @ incidence @ np.diag(1 / incidence.sum(axis=0)) @ incidence.T @ half


def slow_hypergraph(codes, labels, weights, modality, scale):
    def get(name):
        return weights[f"hypergraphs.{modality}.{name}"]

    g = slow_propagation(slow_incidence(codes, labels, get("means"), get("log_variances"), scale))
    hidden = g @ (codes @ get("hidden.weight").T + get("hidden.bias"))
    hidden = (hidden - hidden.mean(axis=0)) / np.sqrt(hidden.var(axis=0) + 1e-5)
    hidden = hidden * get("norm.weight") + get("norm.bias")
    hidden = np.where(hidden > 0, hidden, 0.1 * hidden)
    logits = g @ (hidden @ get("last.weight").T + get("last.bias"))
    loss = 0.0
    for row, y in zip(logits, labels, strict=True):
        total = log(sum(np.exp(row)))
        loss -= sum(y_c * (o - total) for o, y_c in zip(row, y, strict=True))
    return loss / len(codes)


def slow_tuplet(similarity, labels, margin):
    values = []
    for r, row in enumerate(similarity):
        near = [p for p in range(len(labels)) if labels[r] @ labels[p] > 0]
        far = [n for n in range(len(labels)) if n not in near]
        if near and far:
            terms = [min(max(row[p] - row[n] - margin, -100), 50) for p in near for n in far]
            values.append(sum(log(1 + exp(-t)) for t in terms) / len(terms))
    return sum(values) / len(values) if values else 0.0


def slow_terms(weights, batch, settings):
    codes = {
        name: slow_codes(each.numpy(), weights[f"model.heads.{name}.weight"], weights[f"model.heads.{name}.bias"])
        for name, each in (("image", batch.image), ("text", batch.text))
    }
    labels = batch.labels.numpy()
    hypergraph = sum(slow_hypergraph(u, labels, weights, name, settings.distance_scale) for name, u in codes.items())
    tuplet = deviation = 0.0
    for left, right in (("image", "image"), ("text", "text"), ("image", "text")):
        tuplet += slow_tuplet(codes[left] @ codes[right].T, labels, settings.margin)
        deviation += np.mean((codes[left] - np.where(codes[left] >= 0, 1, -1)) ** 2)
    return [hypergraph, tuplet, settings.quantization_weight * deviation]


LABELS = {
    "several": [[1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 1, 0]],
    "one": [[1], [1], [1], [0], [1]],
    "none": [[0, 0, 0]] * 5,
    "all": [[1, 1, 1]] * 5,
}


def problem(labels, bits, **settings):
    """A learner and a batch of 5 items, in float64 and without dropout."""
    rng = np.random.default_rng(bits)
    labels = np.array(labels, np.uint8)
    training = Pairs(*rng.normal(size=(2, 5, 6)).astype(np.float32), np.arange(6), labels)
    learner = Dsth(training, DsthSettings(lengths=(bits,), hidden=7, **settings)).double().eval()
    image, text = (torch.from_numpy(each).double() for each in (training.image, training.text))
    return learner, Batch(torch.arange(5), image, text, torch.from_numpy(labels).double(), 1)


def arrays(learner):
    return {name: each.detach().numpy().copy() for name, each in learner.named_parameters()}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("bits", [1, 4, 16])
@pytest.mark.parametrize("changes", [{}, {"distance_scale": 0.7, "margin": 0.0, "quantization_weight": 1.0}])
def test_terms_are_those_as_published(labels, bits, changes):
    learner, batch = problem(labels, bits, **changes)
    found = learner.losses(batch)
    assert tuple(found) == Dsth.parts[:-1]
    expected = slow_terms(arrays(learner), batch, learner.settings)
    assert [each.item() for each in found.values()] == pytest.approx(expected)


@pytest.mark.parametrize("bits", [2, 5])
def test_gradients_are_those_as_published(bits):
    learner, batch = problem(LABELS["several"], bits)
    torch.stack(list(learner.losses(batch).values())).sum().backward()
    assert_slopes(
        learner,
        arrays,
        lambda weights: sum(slow_terms(weights, batch, learner.settings)),
        places=3,
        rel=1e-4,
        atol=1e-6,
    )


@pytest.mark.parametrize("labels", ["several", "none", "all"])
def test_gradients_are_finite(labels):
    learner, batch = problem(LABELS[labels], 4)
    torch.stack(list(learner.losses(batch).values())).sum().backward()
    assert all(torch.isfinite(each.grad).all() for each in learner.parameters())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("at_once", [1, 200, 2**18])
def test_tuplets_of_many_items(monkeypatch, seed, at_once):
    """Anchors in any order, with other numbers of positives, and some without; limits are reached."""
    monkeypatch.setattr(dsth, "TUPLES_AT_ONCE", at_once)
    rng = np.random.default_rng(seed)
    labels = (rng.random((12, 4)) < 0.3).astype(float)
    similarity = torch.from_numpy(rng.normal(size=(12, 12)) * [1, 10, 60][seed]).requires_grad_()
    related = torch.from_numpy(labels @ labels.T > 0)
    loss = tuplet_loss(similarity, related, 0.5)
    assert loss.item() == pytest.approx(slow_tuplet(similarity.detach().numpy(), labels, 0.5))
    (2 * loss).backward()
    for row in range(12):
        for column in (0, row, 11):
            ends = []
            for change in (1e-6, -1e-6):
                moved = similarity.detach().numpy().copy()
                moved[row, column] += change
                ends.append(2 * slow_tuplet(moved, labels, 0.5))
            slope = (ends[0] - ends[1]) / 2e-6
            assert similarity.grad[row, column].item() == pytest.approx(slope, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("difference, loss, slope", [(-300.0, 100.0, 0.0), (-90.0, 90.0, -1.0), (300.0, 0.0, 0.0)])
def test_differences_are_limited(difference, loss, slope):
    similarity = torch.tensor([[difference, 0.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    related = torch.tensor([[True, False], [False, False]])
    value = tuplet_loss(similarity, related, margin=0.0)
    value.backward()
    assert value.item() == pytest.approx(loss, abs=1e-20)
    assert similarity.grad[0].tolist() == pytest.approx([slope, -slope], abs=1e-20)


def test_propagation_is_the_product_of_its_factors():
    rng = np.random.default_rng(0)
    incidence, values = rng.random((6, 3)), rng.normal(size=(6, 4))
    found = propagate(torch.from_numpy(incidence), torch.from_numpy(values))
    assert found.numpy() == pytest.approx(slow_propagation(incidence) @ values)


def test_classes_outside_the_batch_have_no_hyperedge():
    learner, batch = problem(LABELS["several"], 4)
    codes = learner.model(batch.image, "image")
    incidence = learner.hypergraphs["image"].incidence(codes, batch.labels)
    assert (incidence[:, 4] == 0).all() and (incidence[:, :4] > 0).all()
    assert (incidence[batch.labels > 0] == 1).all()


def test_inner_products_are_raw_and_the_anchor_is_its_own_positive():
    similarity = torch.tensor([[8.0, 1.0], [0.0, 0.0]])
    related = torch.tensor([[True, False], [False, False]])
    assert float(tuplet_loss(similarity, related, 0.5)) == pytest.approx(log(1 + exp(-6.5)), rel=1e-4)


def test_class_distributions_learn_through_the_hypergraph_only():
    learner, batch = problem(LABELS["several"], 4)
    found = learner.losses(batch)
    (found["tuplet"] + found["quantization"]).backward(retain_graph=True)
    assert all(each.grad is None for each in learner.hypergraphs.parameters())
    found["hypergraph"].backward()
    assert all((network.means.grad != 0).any() for network in learner.hypergraphs.values())


def test_hash_layers_and_hypergraphs_share_one_rate():
    learner, _ = problem(LABELS["several"], 4)
    (descent,) = learner.optimizers(10)
    (group,) = descent.optimizer.param_groups
    assert len(group["params"]) == len(list(learner.parameters()))
    assert learner.smallest_batch == 2


def test_refuses_an_unusable_width():
    with pytest.raises(ConfigError, match="hidden"):
        DsthSettings(hidden=10**9)
