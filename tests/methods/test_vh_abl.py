"""VH-ABL: every term and its gradient against loops, the order of the bits, and the pitfalls of the published code."""

from __future__ import annotations

from math import exp, log, sqrt, tanh

import numpy as np
import pytest
import torch
from sklearn.metrics import mutual_info_score

from conftest import plant
from multibit import Pairs
from multibit.hashing.learner import Batch
from multibit.hashing.loop import fit
from multibit.hashing.methods.vh_abl import (
    OrderedHash,
    VhAbl,
    VhAblSettings,
    attraction,
    bit_importance,
    separation,
)

SMALL = {"image_hidden": 32, "text_hidden": 32, "dimension": 16, "batch_size": 32}
WEIGHTS = {
    "similarity_weight": 0.9, "class_weight": 0.8, "attraction_weight": 0.7, "centre_weight": 0.6, "label_weight": 0.5,
}  # fmt: skip
TERMS = ("affinity", "classes", "attraction", "centres", "labels")


def planted(items, seed=0, **shape):
    data = plant(items, seed=seed, **shape)
    return Pairs(data["image"], data["text"], np.arange(items + 1), data["labels"])


def learner(bits=6, classes=5, **settings):
    """A learner of random features in double precision."""
    rng = np.random.default_rng(0)
    labels = (rng.random((40, classes)) < 0.3).astype(np.uint8)
    pairs = Pairs(
        rng.normal(size=(40, 7)).astype(np.float32), rng.normal(size=(40, 4)).astype(np.float32), np.arange(41), labels
    )
    return VhAbl(pairs, VhAblSettings(lengths=(bits,), **{**SMALL, **WEIGHTS, **settings})).double()


def problem(items, bits, classes, kind="several", seed=0):
    """Relaxed codes of both modalities and labels: several per item, one, none, all."""
    rng = np.random.default_rng(seed)
    image, text = np.tanh(rng.normal(size=(2, items, bits)))
    labels = np.zeros((items, classes))
    if kind == "several":
        labels = (rng.random((items, classes)) < 0.4).astype(float)
        labels[0] = 0  # an item without labels
    if kind == "one":
        labels[np.arange(items), rng.integers(classes, size=items)] = 1
    if kind == "all":
        labels[:] = 1
    return image, text, labels


def sigmoid(value):
    return 1 / (1 + exp(-value))


def slow_terms(image, text, labels, centres, weights, bias):
    """The terms as published for each modality (and between them), without weights, averaged."""
    n, bits, classes = len(image), image.shape[1], len(centres)
    squares = []
    for first, second in ((image, image), (text, text), (image, text)):
        for i in range(n):
            for j in range(n):
                cosine = first[i] @ second[j] / sqrt(first[i] @ first[i]) / sqrt(second[j] @ second[j])
                squares.append((cosine - tanh(labels[i] @ labels[j] / 2)) ** 2)
    errors, crosses, pulls = [], [], []
    for codes in (image, text):
        for h, y in zip(codes, labels, strict=True):
            logits = [h @ centres[c] / bits for c in range(classes)]
            absent = sum(exp(logits[c]) for c in range(classes) if not y[c])
            own = [-log(exp(logits[c]) / (exp(logits[c]) + absent)) for c in range(classes) if y[c]]
            pulls += [sum(own) / len(own)] if own else []
            for c in range(classes):
                errors.append((sigmoid(weights[c] @ h + bias[c]) - y[c]) ** 2)
                p = sigmoid(h @ centres[c])
                crosses.append(-y[c] * log(p) - (1 - y[c]) * log(1 - p))
    apart = [np.linalg.norm(centres[a] - centres[b]) for a in range(classes) for b in range(a)]
    return {
        "affinity": np.mean(squares),
        "classes": np.mean(errors),
        "attraction": np.mean(pulls) if pulls else 0.0,
        "centres": -(np.mean(apart) + min(apart)) / bits if apart else 0.0,
        "labels": np.mean(crosses),
    }


def slow_weighted(each, image, text, labels):
    """The same terms with the weights of the learner's settings."""
    numbers = [part.detach().numpy() for part in (each.centres, each.classifier.weight, each.classifier.bias)]
    return weigh(slow_terms(image, text, labels, *numbers))


def weigh(terms):
    return {name: weight * terms[name] for name, weight in zip(TERMS, WEIGHTS.values(), strict=True)}


def tensors(*arrays):
    return [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in arrays]


SHAPES = [
    # items, bits, classes, labels
    (5, 6, 5, "several"), (4, 3, 4, "one"), (4, 6, 5, "none"), (4, 6, 5, "all"), (4, 6, 1, "one"), (4, 1, 3, "several"),
    (2, 6, 5, "several"),
]  # fmt: skip


@pytest.mark.parametrize(("items", "bits", "classes", "kind"), SHAPES)
def test_every_term_equals_the_sheet_as_loops(items, bits, classes, kind):
    each = learner(bits, classes)
    image, text, labels = problem(items, bits, classes, kind)
    got = each.terms(*tensors(image, text), torch.tensor(labels))
    assert tuple(got) == each.parts[:-1] == TERMS
    for name, value in slow_weighted(each, image, text, labels).items():
        assert got[name].item() == pytest.approx(value, rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("kind", ["several", "one"])
def test_gradients_equal_finite_differences_of_the_loops(name, kind):
    each = learner()
    image, text, labels = problem(5, 6, 5, kind)
    weights = [part.detach().numpy().copy() for part in (each.centres, each.classifier.weight, each.classifier.bias)]
    h_image, h_text = tensors(image, text)
    each.terms(h_image, h_text, torch.tensor(labels))[name].backward()
    places = {
        "image": (image, h_image.grad, (1, 2)),
        "text": (text, h_text.grad, (4, 0)),
        "centres": (weights[0], each.centres.grad, (2, 3)),
        "classifier": (weights[1], each.classifier.weight.grad, (3, 1)),
        "bias": (weights[2], each.classifier.bias.grad, (0,)),
    }
    for place, (array, gradient, where) in places.items():
        values = []
        for step in (1e-5, -1e-5):
            before = array[where]
            array[where] += step
            values.append(weigh(slow_terms(image, text, labels, *weights))[name])
            array[where] = before
        expected = (values[0] - values[1]) / 2e-5
        got = 0.0 if gradient is None else gradient[where].item()
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-8), place


@pytest.mark.parametrize("kind", ["none", "all"])
def test_batches_without_a_positive_or_a_negative_have_finite_gradients(kind):
    each = learner()
    image, text, labels = problem(4, 6, 5, kind)
    codes = tensors(image, text)
    terms = each.terms(*codes, torch.tensor(labels))
    sum(terms.values()).backward()
    assert terms["attraction"].item() == 0
    assert all(torch.isfinite(code.grad).all() for code in codes)
    assert torch.isfinite(each.centres.grad).all()


def test_centres_are_pushed_apart():
    each = learner()
    before = separation(each.centres).item()
    each.terms(*tensors(*problem(4, 6, 5)[:2]), torch.zeros(4, 5))["centres"].backward()
    with torch.no_grad():
        each.centres -= 0.1 * each.centres.grad
    assert separation(each.centres).item() > before
    assert separation(torch.randn(1, 6)) == 0


def test_equal_centres_have_a_finite_gradient():
    centres = torch.ones(3, 4, requires_grad=True)
    separation(centres).backward()
    assert torch.isfinite(centres.grad).all()


def test_only_absent_labels_compete_in_the_attraction():
    logits = torch.tensor([[1.0, 5.0, 0.5]])
    both = attraction(logits, torch.tensor([[1.0, 1.0, 0.0]]))
    expected = -np.mean([log(exp(own) / (exp(own) + exp(0.5))) for own in (1.0, 5.0)])
    assert both.item() == pytest.approx(expected, rel=1e-5)


def test_labels_are_not_an_input_and_the_modalities_are_not_fused():
    model = OrderedHash(7, 4, 6, 8, 8, 8).eval()
    image, text = torch.randn(3, 7), torch.randn(3, 4)
    apart = model(image, "image")
    torch.testing.assert_close(model.both(image, text)[0][:, model.order], apart)
    torch.testing.assert_close(model.both(image, -text)[0][:, model.order], apart)


def test_the_loss_does_not_depend_on_the_order_of_the_bits():
    each = learner().eval()
    batch = Batch(torch.arange(4), torch.randn(4, 7).double(), torch.randn(4, 4).double(), torch.eye(5)[:4].double(), 1)
    before = [value.item() for value in each.losses(batch).values()]
    each.model.order.copy_(torch.arange(6).flip(0))
    assert [value.item() for value in each.losses(batch).values()] == before


def test_importance_is_the_mutual_information_with_the_labels():
    rng = np.random.default_rng(0)
    labels = (rng.random((60, 4)) < 0.4).astype(np.uint8)
    labels[:, 3] = 1  # a label that says nothing
    codes = rng.random((60, 5)) < 0.5
    codes[:, 1] = labels[:, 0]
    codes[:, 2] = True  # a bit that says nothing
    expected = [sum(mutual_info_score(bit, label) for label in labels.T) for bit in codes.T]
    np.testing.assert_allclose(bit_importance(codes, labels), expected, atol=1e-12)
    assert bit_importance(codes, labels).argmax() == 1


def test_every_prefix_has_the_most_important_bits_after_each_epoch():
    training = planted(64)
    settings = VhAblSettings(lengths=(4, 12), epochs=20, **SMALL)
    each = VhAbl(training, settings)
    fit(each, training, settings, score=None)
    codes = np.concatenate([each.model.encode(training.image, "image"), each.model.encode(training.text, "text")])
    importance = bit_importance(codes >= 0, np.concatenate([training.labels] * 2))
    assert (np.diff(importance) <= 0).all()
    assert importance[0] > 2 * importance[-1]
    order = each.model.order.tolist()
    assert sorted(order) == list(range(12)) and order != sorted(order)
    assert "model.order" in each.state_dict()


def test_the_order_is_saved_with_the_model(tmp_path):
    model = OrderedHash(7, 4, 6, 8, 8, 8)
    model.order.copy_(torch.tensor([5, 3, 1, 0, 2, 4]))
    model.save(tmp_path / "model.safetensors")
    loaded = OrderedHash.load(tmp_path / "model.safetensors")
    features = np.random.default_rng(0).normal(size=(5, 7))
    np.testing.assert_array_equal(loaded.encode(features, "image"), model.encode(features, "image"))


def test_the_shared_batch_norm_sees_both_modalities():
    model = OrderedHash(7, 4, 6, 8, 8, 8, dropout=0.0)
    model.train()
    model.both(torch.randn(5, 7), torch.randn(5, 4))
    norm = next(layer for layer in model.head if isinstance(layer, torch.nn.BatchNorm1d))
    assert norm.num_batches_tracked == 1


def test_counts_of_the_work():
    model = OrderedHash(7, 4, 6, image_hidden=9, text_hidden=5, dimension=8)
    projections = (7 * 7 + 7 * 9 + 9 * 8) + (4 * 4 + 4 * 5 + 5 * 8)
    assert model.flops == 2 * (projections + 2 * (8 * 8 + 8 * 8 + 8 * 6 + 6 * 8 + 8 * 6))
