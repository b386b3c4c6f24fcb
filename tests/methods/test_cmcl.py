"""CMCL against its fact sheet written as loops."""

from __future__ import annotations

from math import erf, exp, log, sqrt

import numpy as np
import pytest
import torch

from conftest import token_pairs
from multibit import Pairs
from multibit.errors import ConfigError, DataError
from multibit.features.tokens import Tokens
from multibit.hashing.code_model import TokenBatch
from multibit.hashing.learner import Batch
from multibit.hashing.methods import cmcl
from multibit.hashing.methods.cmcl import CMCL, CMCL_POOLED, Cmcl, CmclPooled, CmclSettings, contrast, unlikelihood
from multibit.hashing.optimizers import LARGEST_NORM, BertAdam

COUNTS = np.array([1, 4, 2, 3, 2, 4, 1])  # words of the texts
ITEMS, ROWS = 7, [5, 0, 2, 6]  # training items, and those of the batch
SMALL = {"dimension": 4, "hidden": 3, "concepts": 3, "heads": 2}


# ---- the network ----------------------------------------------------------------------------------------------------


def scaled(vector):
    return vector * sqrt(len(vector)) / np.linalg.norm(vector)


def unit(vector):
    return vector / np.linalg.norm(vector)


def norm(x, weight, bias):
    return (x - x.mean()) / sqrt(x.var() + 1e-5) * weight + bias


def gelu(x):
    return np.array([value * (1 + erf(value / sqrt(2))) / 2 for value in x])


def attend(queries, keys, values, heads):
    """Every query reads the values by the softmax of its products with the keys, head by head."""
    size = queries.shape[1] // heads
    read = np.zeros_like(queries)
    for c, query in enumerate(queries):
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            scores = [exp(float(query[part] @ key[part]) / sqrt(size)) for key in keys]
            for score, value in zip(scores, values, strict=True):
                read[c, part] += score / sum(scores) * value[part]
    return read


def layer(weights, name):
    """The linear layer of a name."""
    return lambda x: weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def slow_concepts(weights, modality, tokens, heads):
    """(C, d) of the real tokens of one item."""
    name = f"model.readers.{modality}"
    queries = np.array([layer(weights, f"{name}.query")(q) for q in weights["model.queries"]])
    keys, values = (
        np.array([layer(weights, f"{name}.{part}")(scaled(v)) for v in tokens]) for part in ("key", "value")
    )
    x = np.array([layer(weights, f"{name}.output")(r) for r in attend(queries, keys, values, heads)])
    name = f"{name}.transformer"
    h = np.array([norm(row, weights[f"{name}.norm1.weight"], weights[f"{name}.norm1.bias"]) for row in x])
    stacked = h @ weights[f"{name}.self_attn.in_proj_weight"].T + weights[f"{name}.self_attn.in_proj_bias"]
    read = attend(*np.split(stacked, 3, axis=1), heads)
    x = x + np.array([layer(weights, f"{name}.self_attn.out_proj")(r) for r in read])
    for c, row in enumerate(x):
        h = norm(row, weights[f"{name}.norm2.weight"], weights[f"{name}.norm2.bias"])
        x[c] = row + layer(weights, f"{name}.linear2")(gelu(layer(weights, f"{name}.linear1")(h)))
    return x


def slow_item(weights, modality, x, tokens, settings):
    """Codes of all lengths, g and the concepts."""
    g = scaled(x)
    if f"model.inputs.{modality}.weight" in weights:
        g = layer(weights, f"model.inputs.{modality}")(g)
    for block in (0, 1):
        name = f"model.residual.{block}.layers"
        h = norm(g, weights[f"{name}.0.weight"], weights[f"{name}.0.bias"])
        g = g + layer(weights, f"{name}.4")(gelu(layer(weights, f"{name}.1")(h)))
    concepts = None if tokens is None else slow_concepts(weights, modality, tokens, settings.heads)
    f = g if concepts is None else g + sum(concepts) / len(concepts)
    return [np.tanh(layer(weights, f"model.codes.{i}")(f)) for i in range(len(settings.lengths))], g, concepts


def slow_items(weights, batch, modality, settings):
    read = getattr(batch, f"{modality}_tokens")
    return [
        slow_item(
            weights, modality, x, None if read is None else read.values[i].numpy()[read.mask[i].numpy()], settings
        )
        for i, x in enumerate(getattr(batch, modality).numpy())
    ]


# ---- the loss -------------------------------------------------------------------------------------------------------


def slow_unlikelihood(memory, codes, memory_labels, labels):
    total = 0.0
    for a, y in zip(memory, memory_labels, strict=True):
        for u, z in zip(codes, labels, strict=True):
            theta = 0.5 * min(max(float(a @ u), -64.0), 64.0)
            total += log(1 + exp(theta)) - (theta if y @ z > 0 else 0.0)
    return total / (len(memory) * len(codes))


def slow_contrast(first, second, temperature):
    """Mean of both directions."""
    n, loss = len(first), 0.0
    for rows, columns in ((first, second), (second, first)):
        for i in range(n):
            scores = [exp(float(unit(rows[i]) @ unit(columns[j])) / temperature) for j in range(n)]
            loss -= log(scores[i] / sum(scores)) / (2 * n)
    return loss


def slow_terms(weights, buffers, batch, settings):
    labels, rows, b = batch.labels.numpy(), batch.rows.numpy(), len(batch.labels)
    image, text = (slow_items(weights, batch, name, settings) for name in ("image", "text"))
    inter = intra = quantization = reconstruction = 0.0
    longest, start = max(settings.lengths), 0
    target = buffers["binary"][rows][:, -longest:]
    for i, k in enumerate(settings.lengths):
        u_i, u_t = ([each[0][i] for each in items] for items in (image, text))
        part = slice(start, start + k)
        memory_i, memory_t = buffers["image_memory"][:, part], buffers["text_memory"][:, part]
        w = settings.auxiliary_weight if k == longest else 1.0
        p = {
            (name, other): slow_unlikelihood(memory, codes, buffers["labels"], labels)
            for name, memory in (("i", memory_i), ("t", memory_t))
            for other, codes in (("i", u_i), ("t", u_t))
        }
        inter += w * settings.inter_weight * (p["i", "t"] + p["t", "i"])
        intra += w * settings.intra_weight * p["i", "i"] + w * settings.intra_weight * p["t", "t"]
        for j, row in enumerate(rows):
            for u in (u_i[j], u_t[j]):
                deviation = float(np.sum((u - buffers["binary"][row, part]) ** 2))
                quantization += w * settings.quantization_weight * deviation / (b * k)
                if k < longest:
                    hidden = np.maximum(layer(weights, f"decoders.{i}.0")(u), 0)
                    decoded = np.tanh(layer(weights, f"decoders.{i}.2")(hidden))
                    scale = settings.auxiliary_weight * settings.delta / b
                    reconstruction += scale * float(np.sum((decoded - target[j]) ** 2))
        start += k
    whole = slow_contrast([each[1] for each in image], [each[1] for each in text], settings.temperature)
    terms = [inter, intra, quantization, reconstruction, settings.global_weight * whole]
    if image[0][2] is not None:
        local = [slow_contrast(i[2], t[2], settings.temperature) for i, t in zip(image, text, strict=True)]
        terms.append(settings.local_weight * sum(local) / b)
    return terms


LABELS = {
    "several": [[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 0]],
    "one": [[1], [1], [1], [0], [1], [1], [0]],
    "none": [[0, 0, 0]] * 7,
    "all": [[1, 1, 1]] * 7,
}


def problem(labels, lengths, learner=Cmcl, image_dim=6, **settings):
    """A learner of 7 items and a batch of 4, in float64, without dropout, and with garbage in the padding."""
    rng = np.random.default_rng(len(lengths))
    labels = np.array(labels, np.uint8)
    tokens = rng.normal(size=(ITEMS, 3, 7)), rng.normal(size=(ITEMS, 4, 5))
    counts = np.full(ITEMS, 3), COUNTS
    features = (
        rng.normal(size=(ITEMS, image_dim)).astype(np.float32),
        rng.normal(size=(ITEMS, 6)).astype(np.float32),
    )
    every = (Tokens(*each) for each in zip(tokens, counts, strict=True))
    training = Pairs(*features, np.arange(ITEMS + 1), labels, *every)
    found = learner(training, CmclSettings(lengths=lengths, **{**SMALL, **settings})).double().eval()
    with torch.no_grad():
        for name, weights in found.named_parameters():
            if "norm" in name or "bias" in name:  # some start at 1 and 0
                weights += torch.from_numpy(0.3 * rng.normal(size=weights.shape))
    read = [
        TokenBatch(
            torch.from_numpy(values[ROWS]), torch.arange(values.shape[1])[None] < torch.tensor(count[ROWS])[:, None]
        )
        for values, count in zip(tokens, counts, strict=True)
    ]
    image, text = (torch.from_numpy(each[ROWS]).double() for each in features)
    batch = Batch(torch.tensor(ROWS), image, text, torch.from_numpy(labels[ROWS]).double(), 1)
    return found, batch._replace(image_tokens=read[0], text_tokens=read[1])


def arrays(learner):
    return {name: each.detach().numpy().copy() for name, each in learner.named_parameters()}


def stored(learner):
    return {name: each.numpy().copy() for name, each in learner.named_buffers()}


def seen(learner, batch):
    """The batch with what the learner reads."""
    return batch if learner.reads_tokens else batch._replace(image_tokens=None, text_tokens=None)


CHANGED = {
    "inter_weight": 1.0, "intra_weight": 2.0, "quantization_weight": 3.0, "auxiliary_weight": 0.5, "delta": 0.7,
    "global_weight": 0.2, "local_weight": 4.0, "temperature": 0.5,
}  # fmt: skip
CASES = pytest.mark.parametrize(
    ("learner", "changes"),
    [(Cmcl, {}), (Cmcl, {**CHANGED, "image_dim": 4, "heads": 4}), (CmclPooled, {}), (CmclPooled, {"image_dim": 4})],
    ids=["default", "changed", "pooled", "pooled, same dimension"],
)


@CASES
def test_the_network_is_that_as_published(learner, changes):
    learner, batch = problem(LABELS["several"], (2, 5), learner, **changes)
    for modality in ("image", "text"):
        codes, shared, concepts = learner.model.outputs(
            getattr(batch, modality), modality, getattr(batch, f"{modality}_tokens")
        )
        items = slow_items(arrays(learner), seen(learner, batch), modality, learner.settings)
        assert codes.detach().numpy() == pytest.approx(np.array([np.concatenate(each[0]) for each in items]))
        assert shared.detach().numpy() == pytest.approx(np.array([each[1] for each in items]))
        if concepts is not None:
            assert concepts.detach().numpy() == pytest.approx(np.array([each[2] for each in items]))


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("lengths", [(1,), (3, 4, 8)], ids=["one", "several"])
@CASES
def test_terms_are_those_as_published(labels, lengths, learner, changes):
    learner, batch = problem(labels, lengths, learner, **changes)
    found = learner.losses(batch)
    assert tuple(found) == learner.parts[:-1]
    expected = slow_terms(arrays(learner), stored(learner), seen(learner, batch), learner.settings)
    assert [each.item() for each in found.values()] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    if len(lengths) == 1:
        assert found["reconstruction"].item() == 0


@CASES
def test_gradients_are_those_as_published(learner, changes):
    learner, batch = problem(LABELS["several"], (3, 5), learner, **changes)
    torch.stack(list(learner.losses(batch).values())).sum().backward()
    rng = np.random.default_rng(0)
    for name, parameter in learner.named_parameters():
        (position,) = rng.integers(parameter.numel(), size=1)
        ends = []
        for change in (1e-6, -1e-6):
            weights = arrays(learner)
            weights[name].reshape(-1)[position] += change
            ends.append(sum(slow_terms(weights, stored(learner), seen(learner, batch), learner.settings)))
        slope = (ends[0] - ends[1]) / 2e-6
        assert float(parameter.grad.reshape(-1)[position]) == pytest.approx(slope, rel=1e-4, abs=1e-5), name


# ---- likelihood -----------------------------------------------------------------------------------------------------


def test_products_are_limited_to_64_before_they_are_halved():
    memory = torch.ones(1, 200).double()
    for value, theta, moves in ((0.3, 30.0, True), (0.33, 32.0, False), (-0.9, -32.0, False)):
        codes = torch.full((1, 200), value).double().requires_grad_()
        loss = unlikelihood(memory, codes, torch.zeros(1, 1).double())
        loss.backward()
        assert loss.item() == pytest.approx(log(1 + exp(theta)))
        assert (codes.grad != 0).all() if moves else (codes.grad == 0).all()


def test_parts_of_the_memory_add_up(monkeypatch):
    random = torch.Generator().manual_seed(0)
    memory, codes = torch.randn(50, 6, generator=random).double(), torch.randn(4, 6, generator=random).double()
    related = (torch.rand(50, 4, generator=random) < 0.3).double()
    found = []
    for numbers in (2**18, 28):
        monkeypatch.setattr(cmcl, "NUMBERS_AT_ONCE", numbers)
        leaf = codes.clone().requires_grad_()
        (3 * unlikelihood(memory, leaf, related)).backward()
        found.append((unlikelihood(memory, codes, related).item(), leaf.grad.numpy()))
    assert found[0][0] == pytest.approx(found[1][0])
    assert found[0][1] == pytest.approx(found[1][1])
    leaf = codes.clone().requires_grad_()
    products = memory @ leaf.T
    theta = products / 2
    (3 * (torch.log1p(theta.exp()) - related * theta).mean()).backward()
    assert leaf.grad.numpy() == pytest.approx(found[0][1])


# ---- memories -------------------------------------------------------------------------------------------------------


def test_memories_start_as_normal_numbers_and_their_signs():
    learner = CmclPooled(token_pairs(slice(300)), CmclSettings(lengths=(16, 64), **SMALL))
    for memory in (learner.image_memory, learner.text_memory):
        assert memory.shape == (300, 80) and memory.std().item() == pytest.approx(1, rel=0.05)
        assert abs(memory.mean().item()) < 0.05
    assert not torch.equal(learner.image_memory, learner.text_memory)
    signs = torch.where(learner.image_memory + learner.text_memory >= 0, 1.0, -1.0)
    assert torch.equal(learner.binary, signs) and learner.binary.unique().tolist() == [-1, 1]
    state = learner.state_dict()
    assert {"image_memory", "text_memory", "binary"} <= set(state) and "labels" not in state


@pytest.mark.parametrize("learner", [Cmcl, CmclPooled])
def test_a_step_remembers_the_codes_from_before_the_update(learner):
    learner, batch = problem(LABELS["several"], (3, 5), learner)
    image, text = (each.codes.detach().clone() for each in learner.outputs(batch))
    before = stored(learner)
    values = learner.losses(batch)
    descents = learner.optimizers(10)
    found = learner.step(batch, descents)
    assert found.tolist() == pytest.approx([*(each.item() for each in values.values()), sum(values.values()).item()])
    others = [row for row in range(ITEMS) if row not in ROWS]
    for name, codes in (("image_memory", image), ("text_memory", text)):
        assert torch.equal(getattr(learner, name)[ROWS], codes)
        assert np.array_equal(getattr(learner, name)[others].numpy(), before[name][others])
    assert np.array_equal(learner.binary.numpy(), before["binary"])  # until the end of the epoch
    learner.step(batch, descents)  # the first step of a warm-up has the rate 0
    learner.step(batch, descents)
    assert not torch.equal(learner.image_memory[ROWS], image)
    learner.end_epoch(1)
    total = learner.image_memory + learner.text_memory
    assert torch.equal(learner.binary, torch.where(total >= 0, 1.0, -1.0).double())


def test_the_sign_of_0_is_1():
    learner, _ = problem(LABELS["several"], (4,))
    learner.image_memory.zero_()
    learner.text_memory.zero_()
    learner.end_epoch(1)
    assert (learner.binary == 1).all()


# ---- lengths and settings -------------------------------------------------------------------------------------------


def test_lengths_are_side_by_side_with_heads_and_decoders_of_their_own():
    learner, batch = problem(LABELS["several"], (2, 3, 8))
    assert learner.model.layout.part(3) == slice(2, 5) and not learner.model.layout.nested
    assert [head.out_features for head in learner.model.codes] == [2, 3, 8]
    assert [(each[0].in_features, each[2].out_features) for each in learner.decoders] == [(2, 8), (3, 8)]
    assert learner.model(batch.image, "image", batch.image_tokens).shape == (4, 13)


def test_the_longest_length_is_the_auxiliary_one():
    learner, batch = problem(LABELS["several"], (3, 5))
    heavy, _ = problem(LABELS["several"], (3, 5), auxiliary_weight=40.0)
    light, _ = problem(LABELS["several"], (3, 5), auxiliary_weight=0.0)
    inter = [each.losses(batch)["inter"].item() for each in (light, learner, heavy)]
    assert inter[1] - inter[0] == pytest.approx(inter[2] - inter[1]) and inter[0] > 0
    assert heavy.losses(batch)["reconstruction"].item() == pytest.approx(
        2 * learner.losses(batch)["reconstruction"].item()
    )


def test_padding_takes_no_part():
    learner, batch = problem(LABELS["several"], (4,))
    values, mask = batch.text_tokens
    for other in (values.masked_fill(~mask[..., None], 0), values.masked_fill(~mask[..., None], 1e4)):
        changed = learner.model(batch.text, "text", TokenBatch(other, mask))
        assert torch.allclose(changed, learner.model(batch.text, "text", batch.text_tokens), atol=1e-12)


def test_contrast_of_concepts_is_inside_an_item():
    random = torch.Generator().manual_seed(0)
    first, second = torch.nn.functional.normalize(torch.randn(2, 5, 3, 4, generator=random).double(), dim=3)
    each = [contrast(x, t, 0.07).item() for x, t in zip(first, second, strict=True)]
    assert contrast(first, second, 0.07).item() == pytest.approx(np.mean(each))


def test_optimiser_has_a_short_warm_up_and_little_decay():
    learner, _ = problem(LABELS["several"], (4,), learning_rate=0.002)
    (descent,) = learner.optimizers(100)
    (group,) = descent.optimizer.param_groups
    assert isinstance(descent.optimizer, BertAdam) and group["decay"] == 0.01 and LARGEST_NORM == 1.0
    rates = []
    for _ in range(6):
        rates.append(descent.rate)
        descent.optimizer.step()
        descent.schedule.step()
    assert rates[:5] == pytest.approx([0, 0.0004, 0.0008, 0.0012, 0.0016]) and rates[5] > 0.0019


@pytest.mark.parametrize("method", [CMCL, CMCL_POOLED], ids=lambda method: method.name)
def test_presets_have_the_published_rates(method):
    found = {name: method.config(preset=name) for name in ("mirflickr", "coco", "nuswide", "iapr")}
    assert [each.learning_rate for each in found.values()] == [0.001, 0.002, 0.002, 0.002]
    assert [each.delta for each in found.values()] == [0.001, 0.005, 0.001, 0.001]
    assert method.learner.reads_tokens == (method.inputs == "tokens")


def test_bad_settings_and_missing_tokens_are_refused():
    for wrong in ({"heads": 3}, {"temperature": 0.0}, {"dropout": 1.0}, {"dimension": 10**7}, {"concepts": 0}):
        with pytest.raises(ConfigError) as caught:
            CmclSettings(**wrong)
        assert caught.value.option == next(iter(wrong))
    pooled = token_pairs(slice(10))
    with pytest.raises(DataError):
        Cmcl(Pairs(pooled.image, pooled.text, pooled.offsets, pooled.labels), CmclSettings(**SMALL))


@pytest.mark.slow  # the counter of torch takes seconds to be imported
@pytest.mark.parametrize("learner", [Cmcl, CmclPooled])
def test_operations_are_counted_for_the_most_tokens(learner):
    from torch.utils.flop_counter import FlopCounterMode

    model, batch = problem(LABELS["several"], (3, 4), learner)
    model.train()  # without the fused layer of inference, which is not counted
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for modality in ("image", "text"):
            model.model(getattr(batch, modality), modality, getattr(batch, f"{modality}_tokens"))
    queries = 2 * 2 * 3 * 4 * 4 if learner.reads_tokens else 0  # projected once, for any number of items
    assert model.model.flops == (counter.get_total_flops() - queries) / len(ROWS)
