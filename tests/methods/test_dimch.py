"""DIMCH against its fact sheet written as loops."""

from __future__ import annotations

from math import exp, log, log2, sqrt

import numpy as np
import pytest
import torch
from torch.nn import functional

from conftest import token_pairs
from multibit import Pairs
from multibit.errors import ConfigError, DataError
from multibit.features.tokens import Tokens
from multibit.hashing.code_model import TokenBatch
from multibit.hashing.learner import Batch
from multibit.hashing.losses import kernel_discrepancy, mean_triplet_hinge
from multibit.hashing.methods.dimch import (
    Dimch,
    DimchPooled,
    DimchSettings,
    gain_weights,
    mean_closeness,
    set_similarity,
)
from slopes import assert_slopes

COUNTS = np.array([1, 4, 2, 3, 2])  # words of the texts


def scaled(vector):
    length = np.linalg.norm(vector)
    return vector * sqrt(len(vector)) / length if length else vector


def unit(vector):
    return vector / np.linalg.norm(vector)


def slow_set(weights, modality, tokens):
    """The instances of one item, of its list of scaled tokens."""

    def get(name):
        return weights[f"model.heads.{modality}.{name}"]

    conv, size = get("mix.weight"), len(tokens[0])
    instances = []
    for m in range(len(conv)):
        mixed = np.full(size, get("mix.bias")[m])
        for j in range(size):
            for t, token in enumerate(tokens):
                for k in (-1, 0, 1):
                    if 0 <= j + k < size:
                        mixed[j] += conv[m, t, k + 1] * token[j + k]
        hidden = np.maximum(get("layers.0.weight") @ np.maximum(mixed, 0) + get("layers.0.bias"), 0)
        instances.append(get("layers.3.weight") @ hidden + get("layers.3.bias"))
    return np.array(instances)


def slow_sets(weights, batch, modality):
    features, read = getattr(batch, modality).numpy(), getattr(batch, f"{modality}_tokens")
    sets = []
    for i, x in enumerate(features):
        tokens = [scaled(x)]
        if read is not None:
            values, mask = read.values[i].numpy(), read.mask[i].numpy()
            first = []
            if modality == "image":
                matrix = weights.get("model.class_token.weight")
                first = [scaled(x) if matrix is None else matrix @ scaled(x) + weights["model.class_token.bias"]]
            tokens = first + [scaled(v) if real else np.zeros(len(v)) for v, real in zip(values, mask, strict=True)]
        sets.append(slow_set(weights, modality, tokens))
    return sets


def slow_similarity(first, second, tau):
    forth = sum(log(sum(exp(tau * float(x @ t)) for t in second)) for x in first) / (len(first) * tau)
    back = sum(log(sum(exp(tau * float(x @ t)) for x in first)) for t in second) / (len(first) * tau)
    return (forth + back) / 2


def slow_triplets(distances, labels, margin):
    """T as published."""
    total, count, b = 0.0, 0, len(labels)
    for i in range(b):
        s = [int(labels[i] @ labels[j]) for j in range(b)]
        z = sum((2**value - 1) / log2(rank + 1) for rank, value in enumerate(sorted(s, reverse=True), start=1))
        for j in range(b):
            for k in range(b):
                if s[j] > 0 and s[k] == 0:
                    term = ((2 ** s[j] - 1) - (2 ** s[k] - 1)) / z * (distances[i][j] - distances[i][k] + margin)
                    total, count = total + max(term, 0.0), count + (term > 0)
    return total / count if count else 0.0


def slow_kernel_mean(first, second):
    return sum(exp(-0.5 * float(np.linalg.norm(x - y))) for x in first for y in second) / (len(first) * len(second))


def slow_terms(weights, batch, settings):
    labels = batch.labels.numpy()
    raw = {name: slow_sets(weights, batch, name) for name in ("image", "text")}
    sets = {name: [np.array([unit(e) for e in each]) for each in found] for name, found in raw.items()}
    codes = {name: [np.tanh(sum(each) / len(each)) for each in found] for name, found in raw.items()}
    of_sets, of_codes = (
        [[distance(x, t) for t in found["text"]] for x in found["image"]]
        for found, distance in (
            (sets, lambda x, t: max(0.0, 1 - slow_similarity(x, t, settings.sharpness))),
            (codes, lambda x, t: 1 - float(unit(x) @ unit(t))),
        )
    )
    triplets = [
        (slow_triplets(d, labels, settings.margin) + slow_triplets(np.array(d).T, labels, settings.margin)) / 2
        for d in (of_sets, of_codes)
    ]
    images, texts = (np.concatenate(sets[name]) for name in ("image", "text"))
    mmd = slow_kernel_mean(images, images) - 2 * slow_kernel_mean(images, texts) + slow_kernel_mean(texts, texts)
    closeness, count = 0.0, settings.instances
    for found in sets.values():
        for each in found:
            pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
            closeness += sum(exp(-20 * float(np.sum((each[a] - each[b]) ** 2))) for a, b in pairs) / (
                max(len(pairs), 1) * len(labels)
            )
    deviation = sum(np.mean([(u - np.where(u >= 0, 1, -1)) ** 2 for u in found]) / 2 for found in codes.values())
    return [
        settings.set_weight * triplets[0],
        settings.discrepancy_weight * mmd,
        settings.diversity_weight * closeness,
        settings.code_weight * triplets[1],
        settings.quantization_weight * deviation,
    ]


LABELS = {
    "several": [[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]],
    "one": [[1], [1], [1], [0], [1]],
    "none": [[0, 0, 0]] * 5,
    "all": [[1, 1, 1]] * 5,
}


def problem(labels, bits, learner=Dimch, image_dim=6, **settings):
    """A learner and a batch of 5 items, in float64, without dropout, and with garbage in the padding."""
    rng = np.random.default_rng(bits)
    labels = np.array(labels, np.uint8)
    tokens = rng.normal(size=(5, 3, 7)), rng.normal(size=(5, 4, 5))
    counts = np.full(5, 3), COUNTS
    features = rng.normal(size=(5, image_dim)).astype(np.float32), rng.normal(size=(5, 6)).astype(np.float32)
    training = Pairs(*features, np.arange(6), labels, *(Tokens(*each) for each in zip(tokens, counts, strict=True)))
    found = learner(training, DimchSettings(lengths=(bits,), **{"hidden": 4, "instances": 3, **settings}))
    with torch.no_grad():
        for name, weights in found.named_parameters():
            if name.endswith("bias"):  # they start at 0, and so few hidden units could all be 0
                weights.copy_(torch.from_numpy(rng.normal(size=weights.shape)))
    read = [
        TokenBatch(torch.from_numpy(values), torch.arange(values.shape[1])[None] < torch.from_numpy(count)[:, None])
        for values, count in zip(tokens, counts, strict=True)
    ]
    image, text = (torch.from_numpy(each).double() for each in features)
    batch = Batch(torch.arange(5), image, text, torch.from_numpy(labels).double(), 1)
    return found.double().eval(), batch._replace(image_tokens=read[0], text_tokens=read[1])


def arrays(learner):
    return {name: each.detach().numpy().copy() for name, each in learner.named_parameters()}


def without_tokens(batch):
    return batch._replace(image_tokens=None, text_tokens=None)


CASES = pytest.mark.parametrize(
    ("learner", "changes"),
    [
        (Dimch, {}),
        (Dimch, {"image_dim": 7, "sharpness": 3.0, "margin": 1.0, "discrepancy_weight": 3.0, "set_weight": 2.0}),
        (Dimch, {"instances": 1, "diversity_weight": 2.0, "code_weight": 0.5, "quantization_weight": 4.0}),
        (DimchPooled, {}),
    ],
    ids=["default", "same dimension", "one instance", "pooled"],
)


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("bits", [1, 4])
@CASES
def test_terms_are_those_as_published(labels, bits, learner, changes):
    learner, batch = problem(labels, bits, learner, **changes)
    found = learner.losses(batch)
    assert tuple(found) == Dimch.parts[:-1]
    read = batch if learner.reads_tokens else without_tokens(batch)
    expected = slow_terms(arrays(learner), read, learner.settings)
    assert [each.item() for each in found.values()] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    if labels in (LABELS["none"], LABELS["all"]):
        assert found["sets"].item() == found["codes"].item() == 0


@CASES
def test_gradients_are_those_as_published(learner, changes):
    learner, batch = problem(LABELS["several"], 5, learner, **changes)
    torch.stack(list(learner.losses(batch).values())).sum().backward()
    read = batch if learner.reads_tokens else without_tokens(batch)
    assert_slopes(
        learner, arrays, lambda weights: sum(slow_terms(weights, read, learner.settings)), places=2, rel=1e-4, atol=1e-5
    )


def test_the_code_is_the_tanh_of_the_mean_of_the_set():
    learner, batch = problem(LABELS["several"], 4)
    for modality in ("image", "text"):
        inputs = getattr(batch, modality), modality, getattr(batch, f"{modality}_tokens")
        expected = [np.tanh(each.mean(axis=0)) for each in slow_sets(arrays(learner), batch, modality)]
        assert learner.model(*inputs).detach().numpy() == pytest.approx(np.array(expected))


def test_only_images_have_the_pooled_vector_as_a_token():
    learner, batch = problem(LABELS["several"], 4)
    image, text = (
        learner.model(2 * getattr(batch, name).flip(1), name, getattr(batch, f"{name}_tokens"))
        for name in ("image", "text")
    )
    assert not torch.allclose(image, learner.model(batch.image, "image", batch.image_tokens))
    assert torch.equal(text, learner.model(batch.text, "text", batch.text_tokens))
    assert [head.mix.in_channels for head in learner.model.heads.values()] == [4, 4]
    pooled, _ = problem(LABELS["several"], 4, DimchPooled)
    assert [head.mix.in_channels for head in pooled.model.heads.values()] == [1, 1]
    assert not pooled.model.reads_tokens and learner.model.reads_tokens


def test_similarity_exceeds_one_by_at_most_log_m_over_tau_and_the_distance_is_then_0():
    equal = torch.ones(2, 8, 4).double() / 2
    assert float(set_similarity(equal, equal, 16.0)[0, 1]) == pytest.approx(1 + log(8) / 16)
    learner, batch = problem(LABELS["several"], 4, set_weight=1.0, margin=0.3)
    with torch.no_grad():
        for head in learner.model.heads.values():
            head.layers[3].weight.zero_()
            head.layers[3].bias.copy_(torch.arange(1.0, 5.0))  # all sets equal: all distances are 0, not negative
    weights, far = gain_weights(batch.labels), batch.labels @ batch.labels.T == 0
    expected = mean_triplet_hinge(torch.zeros(5, 5).double(), weights, far, 0.3)
    assert learner.losses(batch)["sets"].item() == pytest.approx(expected.item())


def test_similarity_is_symmetric_and_stays_finite_for_sharp_sets():
    x, t = functional.normalize(torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(1)), dim=3)
    assert torch.allclose(set_similarity(x, t, 16.0), set_similarity(t, x, 16.0).T)
    assert torch.allclose(set_similarity(x, x, 1e4).diagonal(), torch.ones(3), atol=1e-3)


def test_triplets_are_divided_by_the_number_that_is_not_zero():
    distances = torch.tensor([[0.0, 0.2, 0.9]]).double()
    weights, far = torch.tensor([[1.0, 0.0, 0.0]]).double(), torch.tensor([[False, True, True]])
    assert float(mean_triplet_hinge(distances, weights, far, 0.3)) == pytest.approx(0.1)  # of 0.1 and 0
    assert float(mean_triplet_hinge(distances, 3 * weights, far, 1.0)) == pytest.approx(3 * (0.8 + 0.1) / 2)
    assert float(mean_triplet_hinge(distances, weights, far, 0.1)) == 0


def test_an_item_is_a_positive_of_its_own_text():
    labels = torch.eye(3).double()
    assert torch.equal(gain_weights(labels) > 0, torch.eye(3) > 0)
    learner, batch = problem(np.eye(5), 4)
    assert learner.losses(batch)["sets"].item() > 0


def test_gains_of_many_shared_labels_are_finite():
    labels = torch.zeros(3, 200)
    labels[0], labels[1, :150] = 1, 1
    weights = gain_weights(labels)
    assert torch.isfinite(weights).all() and weights[0].tolist() == pytest.approx([1, 0, 0])
    few = torch.zeros(3, 20)
    few[0], few[1, :15] = 1, 1
    best = (2**20 - 1) + (2**15 - 1) / log2(3)
    assert gain_weights(few)[0].tolist() == pytest.approx([(2**20 - 1) / best, (2**15 - 1) / best, 0])


def test_diversity_is_that_inside_a_set():
    item = functional.normalize(torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(0)).double(), dim=2)
    assert float(mean_closeness(item.repeat(5, 1, 1))) == pytest.approx(float(mean_closeness(item)))
    assert float(mean_closeness(item[:, :1].repeat(1, 4, 1))) == pytest.approx(1.0)
    assert float(mean_closeness(item[:, :1])) == 0


def test_discrepancy_has_no_infinite_slope_at_equal_instances():
    x = torch.zeros(4, 3, requires_grad=True)
    kernel_discrepancy(x, torch.cat([x[:2], x[2:] + 1])).backward()
    assert torch.isfinite(x.grad).all()


def test_padding_changes_nothing():
    learner, batch = problem(LABELS["several"], 4)
    values, mask = batch.text_tokens
    other = TokenBatch(values.masked_fill(~mask[..., None], 0), mask)
    assert torch.equal(learner.model(batch.text, "text", other), learner.model(batch.text, "text", batch.text_tokens))


def test_first_weights_are_kaimings():
    learner = DimchPooled(token_pairs(slice(300)), DimchSettings(lengths=(128,)))
    head = learner.model.heads["image"]
    assert head.layers[3].weight.std().item() == pytest.approx(sqrt(2 / 256), rel=0.05)
    assert head.layers[3].bias.abs().max() == 0
    codes = learner.model.encode(token_pairs(slice(300)).image, "image")
    assert 0.3 < np.abs(codes).mean() < 0.8  # of visible size, not saturated


@pytest.mark.slow  # the counter of torch takes seconds to be imported
@pytest.mark.parametrize("learner", [Dimch, DimchPooled])
def test_operations_are_counted(learner):
    from torch.utils.flop_counter import FlopCounterMode

    model, batch = problem(LABELS["several"], 4, learner)
    with FlopCounterMode(display=False) as counter:
        for modality in ("image", "text"):
            model.model(getattr(batch, modality), modality, getattr(batch, f"{modality}_tokens"))
    assert model.model.flops == counter.get_total_flops() / 5


def test_bad_settings_and_missing_tokens_are_refused():
    for wrong in ({"instances": 0}, {"sharpness": 0.0}, {"dropout": 1.0}, {"hidden": 10**7}):
        with pytest.raises(ConfigError) as caught:
            DimchSettings(**wrong)
        assert caught.value.option == next(iter(wrong))
    pooled = token_pairs(slice(10))
    with pytest.raises(DataError):
        Dimch(Pairs(pooled.image, pooled.text, pooled.offsets, pooled.labels), DimchSettings())
