"""DPSIH against its fact sheet written as loops."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest
import torch

from conftest import token_pairs
from multibit import Pairs
from multibit.errors import DataError
from multibit.features.tokens import Tokens
from multibit.hashing.code_model import TokenBatch
from multibit.hashing.encode import codes_at
from multibit.hashing.learner import Batch
from multibit.hashing.methods.dpsih import (
    DPSIH,
    DPSIH_POOLED,
    DPSIH_SINGLE,
    Dpsih,
    DpsihPooled,
    DpsihSettings,
    DpsihSingle,
    repetition,
)
from slopes import assert_slopes

COUNTS = np.array([1, 4, 2, 3, 2])  # words of the texts


def scaled(vector):
    return vector * sqrt(len(vector)) / np.linalg.norm(vector)


def unit(vector):
    length = np.linalg.norm(vector)
    return vector / length if length else vector


def slow_item(weights, modality, x, tokens, views):
    """Codes and residuals of one item, of its real tokens."""

    def get(name):
        return weights[f"model.branches.{modality}.{name}"]

    g = np.tanh(get("pooled.0.weight") @ scaled(x) + get("pooled.0.bias"))
    codes, residuals = [], []
    for k in range(views):
        r = np.zeros(len(g))
        if tokens is not None:
            scores = [
                float(get("local.attention.2.weight")[k] @ np.tanh(get("local.attention.0.weight") @ scaled(v)))
                for v in tokens
            ]
            total = sum(exp(s) for s in scores)
            attended = sum(exp(s) / total * scaled(v) for s, v in zip(scores, tokens, strict=True))
            r = 1 / (1 + np.exp(-(get("local.output.weight") @ attended + get("local.output.bias"))))
        h = g + r
        h = (h - h.mean()) / sqrt(h.var() + 1e-5) * get("norm.weight") + get("norm.bias")
        codes.append(unit(h))
        residuals.append(r)
    return np.array(codes), np.array(residuals)


def slow_items(weights, batch, modality, views):
    read, found = getattr(batch, f"{modality}_tokens"), []
    for i, x in enumerate(getattr(batch, modality).numpy()):
        tokens = None if read is None else read.values[i].numpy()[read.mask[i].numpy()]
        found.append(slow_item(weights, modality, x, tokens, views))
    return [each[0] for each in found], [each[1] for each in found]


def slow_triplets(first, second, labels, margin):
    """T as published: no anchor is its own positive."""
    values, b = [], len(labels)
    s = [[max(float(e @ f) for e in first[a] for f in second[c]) for c in range(b)] for a in range(b)]
    for a in range(b):
        for p in range(b):
            for n in range(b):
                if labels[a] @ labels[p] > 0 and p != a and not labels[a] @ labels[n] > 0:
                    value = s[a][n] - s[a][p] + margin
                    values += [value] if value >= 0 else []
    return sum(values) / len(values) if values else 0.0


def slow_kernel(first, second):
    """Sum over all pairs."""
    return sum(exp(-0.5 * float(np.linalg.norm(x - y))) for x in first for y in second)


def slow_repetition(residuals):
    total = 0.0
    for r in residuals:
        k = len(r)
        square = sum(float(unit(r[a]) @ unit(r[c])) ** 2 for a in range(k) for c in range(k) if a != c)
        total += sqrt(square) / k**2
    return total


def slow_terms(weights, batch, settings, views):
    labels = batch.labels.numpy()
    image, image_residuals = slow_items(weights, batch, "image", views)
    text, text_residuals = slow_items(weights, batch, "text", views)
    triplet = sum(
        slow_triplets(first, second, labels, settings.margin)
        for first, second in ((image, image), (text, text), (image, text))
    )
    images, texts = np.concatenate(image), np.concatenate(text)
    mmd = slow_kernel(images, images) - 2 * slow_kernel(images, texts) + slow_kernel(texts, texts)
    terms = [
        settings.triplet_weight * triplet,
        settings.discrepancy_weight * mmd,
        settings.diversity_weight * (slow_repetition(image_residuals) + slow_repetition(text_residuals)),
    ]
    return terms if views > 1 else terms[:1]


LABELS = {
    "several": [[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]],
    "one": [[1], [1], [1], [0], [1]],
    "none": [[0, 0, 0]] * 5,
    "all": [[1, 1, 1]] * 5,
}


def problem(labels, bits, learner=Dpsih, **settings):
    """A learner and a batch of 5 items, in float64, without dropout, and with garbage in the padding."""
    rng = np.random.default_rng(bits)
    labels = np.array(labels, np.uint8)
    tokens = rng.normal(size=(5, 3, 7)), rng.normal(size=(5, 4, 5))
    counts = np.full(5, 3), COUNTS
    features = rng.normal(size=(2, 5, 6)).astype(np.float32)
    training = Pairs(*features, np.arange(6), labels, *(Tokens(*each) for each in zip(tokens, counts, strict=True)))
    found = learner(training, DpsihSettings(lengths=(bits,), **settings)).double().eval()
    with torch.no_grad():
        for name, weights in found.named_parameters():
            if "norm" in name or "bias" in name:  # which start at 1 and 0
                weights += torch.from_numpy(rng.normal(size=weights.shape))
    read = [
        TokenBatch(torch.from_numpy(values), torch.arange(values.shape[1])[None] < torch.from_numpy(count)[:, None])
        for values, count in zip(tokens, counts, strict=True)
    ]
    image, text = (torch.from_numpy(each).double() for each in features)
    batch = Batch(torch.arange(5), image, text, torch.from_numpy(labels).double(), 1)
    return found, batch._replace(image_tokens=read[0], text_tokens=read[1])


def arrays(learner):
    return {name: each.detach().numpy().copy() for name, each in learner.named_parameters()}


def seen(learner, batch):
    """The batch with what the learner reads."""
    return batch if learner.reads_tokens else batch._replace(image_tokens=None, text_tokens=None)


CASES = pytest.mark.parametrize(
    ("learner", "changes"),
    [
        (Dpsih, {}),
        (Dpsih, {"margin": 1.5, "triplet_weight": 3.0, "discrepancy_weight": 0.5, "diversity_weight": 2.0}),
        (DpsihSingle, {}),
        (DpsihPooled, {}),
    ],
    ids=["default", "changed", "single", "pooled"],
)


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("bits", [1, 4])
@CASES
def test_terms_are_those_as_published(labels, bits, learner, changes):
    learner, batch = problem(labels, bits, learner, **changes)
    found = learner.losses(batch)
    assert tuple(found) == learner.parts[:-1]
    expected = slow_terms(arrays(learner), seen(learner, batch), learner.settings, learner.views)
    assert [each.item() for each in found.values()] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    if labels in (LABELS["none"], LABELS["all"]):
        assert found["triplet"].item() == 0


@CASES
def test_gradients_are_those_as_published(learner, changes):
    learner, batch = problem(LABELS["several"], 5, learner, **changes)
    torch.stack(list(learner.losses(batch).values())).sum().backward()
    assert_slopes(
        learner,
        arrays,
        lambda weights: sum(slow_terms(weights, seen(learner, batch), learner.settings, learner.views)),
        places=2,
        rel=1e-4,
        atol=1e-5,
    )


def test_the_output_has_one_view_after_the_other():
    learner, batch = problem(LABELS["several"], 6)
    out = learner.model(batch.image, "image", batch.image_tokens)
    codes, _ = slow_items(arrays(learner), batch, "image", 4)
    assert out.shape == (5, 24) and learner.model.layout.views == 4 and learner.model.layout.stored == 24
    for view in range(4):
        assert out[:, 6 * view : 6 * (view + 1)].detach().numpy() == pytest.approx(np.array(codes)[:, view])
    packed = codes_at(learner.model, out.detach().numpy().astype(np.float32), 6)
    assert packed.views == 4 and packed.bits == 6


def test_views_are_those_of_the_method():
    for method, views in ((DPSIH, 4), (DPSIH_SINGLE, 1), (DPSIH_POOLED, 1)):
        assert method.views == method.learner.views == views
        assert method.learner.reads_tokens == (method.inputs == "tokens")


def test_the_similarity_is_that_of_the_nearest_of_16_pairs():
    learner, _ = problem(LABELS["several"], 6)
    image, text = torch.eye(8).double()[torch.tensor([[0, 1, 2, 3]] * 5)], torch.zeros(5, 4, 8).double()
    text[:, 3, 0] = torch.tensor([0.9, 0.1, 0.3, 0.2, 0.0])
    labels = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1], [0, 0]]).double()
    texts = (text[:, 3] @ text[:, 3].T).numpy()
    values = [0.25]  # all images are equal
    for similarity in (texts, np.tile(text[:, 3, 0].numpy(), (5, 1))):
        found = [
            similarity[a, n] - similarity[a, p] + 0.25
            for a, p in ((0, 1), (1, 0), (2, 3), (3, 2))
            for n in range(5)
            if not labels[a] @ labels[n]
        ]
        values.append(np.mean([value for value in found if value >= 0]))
    assert learner.triplet_loss(image, text, labels).item() == pytest.approx(sum(values))


def test_the_own_text_is_no_positive():
    labels = torch.eye(5).double()
    learner, batch = problem(labels.numpy(), 6)
    assert learner.losses(batch)["triplet"].item() == 0
    codes = torch.eye(5).double()[:, None]
    assert learner.triplet_loss(codes, codes, labels).item() == 0


def test_distribution_and_diversity_are_sums_that_grow_with_the_batch():
    learner, batch = problem(LABELS["several"], 6)
    once = learner.losses(batch)

    def twice(tokens):
        return TokenBatch(tokens.values.repeat(2, 1, 1), tokens.mask.repeat(2, 1))

    doubled = Batch(
        torch.arange(10), batch.image.repeat(2, 1), batch.text.repeat(2, 1), batch.labels.repeat(2, 1), 1,
        twice(batch.image_tokens), twice(batch.text_tokens),
    )  # fmt: skip
    found = learner.losses(doubled)
    assert found["discrepancy"].item() == pytest.approx(4 * once["discrepancy"].item())
    assert found["diversity"].item() == pytest.approx(2 * once["diversity"].item())
    assert repetition(torch.ones(1, 4, 3)).item() == pytest.approx(sqrt(12) / 16)


def test_padding_takes_no_part():
    learner, batch = problem(LABELS["several"], 6)
    values, mask = batch.text_tokens
    for other in (values.masked_fill(~mask[..., None], 0), values.masked_fill(~mask[..., None], 1e4)):
        changed = learner.model(batch.text, "text", TokenBatch(other, mask))
        assert torch.equal(changed, learner.model(batch.text, "text", batch.text_tokens))


def test_one_bit_gives_finite_gradients():
    learner, batch = problem(LABELS["several"], 1)
    for norm in (each.norm for each in learner.model.branches.values()):
        torch.nn.init.zeros_(norm.bias)  # the only bit is then exactly its own mean
    torch.stack(list(learner.losses(batch).values())).sum().backward()
    assert all(torch.isfinite(each.grad).all() for each in learner.parameters())
    learner.step(batch, learner.optimizers(3))
    assert all(torch.isfinite(each).all() for each in learner.parameters())


def test_gradients_are_clipped_together():
    learner, batch = problem(LABELS["several"], 6, triplet_weight=1e6)
    (descent,) = learner.optimizers(10)
    learner.step(batch, [descent])
    assert descent.clip == 2.0
    total = sum(each.grad.square().sum() for each in learner.parameters())
    assert total.sqrt().item() == pytest.approx(2.0, rel=1e-4)


@pytest.mark.slow  # the counter of torch takes seconds to be imported
@pytest.mark.parametrize("learner", [Dpsih, DpsihSingle, DpsihPooled])
def test_operations_are_counted_for_the_most_tokens(learner):
    from torch.utils.flop_counter import FlopCounterMode

    model, batch = problem(LABELS["several"], 4, learner)
    with FlopCounterMode(display=False) as counter:
        for modality in ("image", "text"):
            model.model(getattr(batch, modality), modality, getattr(batch, f"{modality}_tokens"))
    assert model.model.flops == counter.get_total_flops() / 5


def test_missing_tokens_are_refused():
    pooled = token_pairs(slice(10))
    with pytest.raises(DataError):
        Dpsih(Pairs(pooled.image, pooled.text, pooled.offsets, pooled.labels), DpsihSettings())
