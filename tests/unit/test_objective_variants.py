"""Objectives of the other methods: pairwise, standard and rankings of the signs, each against loops."""

from __future__ import annotations

import itertools
from math import exp, log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr

from multibit import Config
from multibit.hashing.methods import METHODS
from multibit.hashing.methods.multibit import MULTIBIT_METHODS
from multibit.hashing.objective import Objective, disagreement, standard_loss, straight_through

LENGTHS, BLOCKS, RHO = (3, 7, 10), (4, 3, 3), (2.0, 0.7, 0.1)
T_TEACHER, T_STUDENT, SCALE_WEIGHT = 0.5, 0.3, 0.7
SHARPNESS = [[0.4, -0.2, 0.9], [-0.5, 0.1, 0.3]]  # (between or within, prefix)
BETA = [sqrt(B) / sum(map(sqrt, LENGTHS)) for B in LENGTHS]


def problem(items, seed=0):
    """Relaxed codes of both modalities, with a zero among them, cosine teachers (1+M, b, b), shared labels (b, b)."""
    rng = np.random.default_rng(seed)
    image, text = np.tanh(rng.normal(size=(2, items, max(LENGTHS))))
    image[0, 0] = 0.0
    e = rng.normal(size=(1 + len(BLOCKS), items, 5))
    e /= np.linalg.norm(e, axis=2, keepdims=True)
    related = (rng.random((items, items)) < 0.4).astype(float)
    return image, text, e @ e.transpose(0, 2, 1), np.maximum(related, related.T)


def build(sharpness=None, **settings):
    shared = {"teacher_temperature": T_TEACHER, "student_temperature": T_STUDENT, "scale_weight": SCALE_WEIGHT}
    config = Config(lengths=LENGTHS, scales=len(BLOCKS), **{**shared, **settings})
    blocks = (max(LENGTHS),) if config.allocation == "single" else BLOCKS
    objective = Objective(config, blocks, RHO).double()
    if objective.sharpness is not None and sharpness is not None:
        objective.sharpness.data = torch.tensor(sharpness, dtype=torch.float64)
    return objective


def tensors(*arrays):
    return [torch.tensor(array, dtype=torch.float64) for array in arrays]


def named(objective, *arrays):
    return dict(zip(objective.names, objective(*tensors(*arrays)).values.tolist(), strict=True))


# ---- the definitions, one query after the other ---------------------------------------------------------------------


def softmax(scores):
    powers = [exp(score - max(scores)) for score in scores]
    return [power / sum(powers) for power in powers]


def divergence(target, student):
    return sum(p * (log(p) - log(s)) for p, s in zip(target, student, strict=True))


def ranking_loss(asking, answering, teacher, sharpness=0.0, own_item=True):
    """Mean divergence of each query's ranking from its teacher's; without the query itself where not `own_item`."""
    items, bits = asking.shape
    total = 0.0
    for q in range(items):
        others = [r for r in range(items) if own_item or r != q]
        if not others:
            continue
        student = [exp(sharpness) * (asking[q] @ answering[r]) / (2 * bits * T_STUDENT) for r in others]
        total += divergence(softmax([teacher[q, r] / T_TEACHER for r in others]), softmax(student))
    return total / items


def signs(codes):
    return np.where(codes >= 0, 1.0, -1.0)


def slow_binary(image, text, teacher, sharpness):
    """The stored prefixes, both directions, weighted by length."""
    image, text = signs(image), signs(text)
    return sum(
        beta * ranking_loss(asking[:, :B], answering[:, :B], teacher[0], t)
        for B, beta, t in zip(LENGTHS, BETA, sharpness[0], strict=True)
        for asking, answering in ((image, text), (text, image))
    )


def slow_within(image, text, teacher, sharpness):
    """The stored prefixes of each modality among themselves, weighted by length."""
    return sum(
        beta * ranking_loss(code[:, :B], code[:, :B], teacher[0], t, own_item=False)
        for B, beta, t in zip(LENGTHS, BETA, sharpness[1], strict=True)
        for code in (signs(image), signs(text))
    )


def slow_item(image, text, teacher, sharpness, alike):
    """Each query among the items alike, by the signs of the bits that each length adds, weighted by length."""
    items, total = len(image), 0.0
    for start, stop, beta, temperature in zip((0, *LENGTHS), LENGTHS, BETA, sharpness, strict=False):
        one, other = (signs(code)[:, start:stop] for code in (image, text))
        for asking, answering in ((one, other), (other, one)):
            for q in range(items):
                near = [r for r in range(items) if r == q or teacher[q, r] >= alike]
                sums = [asking[q] @ answering[r] / (stop - start) for r in near]
                shares = softmax([exp(temperature) * each / (2 * T_STUDENT) for each in sums])
                total -= beta * log(shares[near.index(q)]) / items / 2
    return total


def slow_squared(image, text, teacher):
    """Squared error of <h_q, h_r> / B, mean over pairs, both directions."""
    items, bits = image.shape
    errors = [(image[q] @ text[r] / bits - teacher[q, r]) ** 2 for q in range(items) for r in range(items)]
    return 2 * sum(errors) / items**2


def slow_standard(image, text, related, quantization=0.1):
    items, bits = image.shape
    likelihood = sum(
        related[q, r] * (image[q] @ text[r] / 2) - log(1 + exp(image[q] @ text[r] / 2))
        for q in range(items)
        for r in range(items)
    )
    deviation = sum((abs(value) - 1) ** 2 for code in (image, text) for value in code.flat)
    return -likelihood / items**2 + quantization * deviation / (items * bits)


# ---- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [1, 2, 6])
def test_the_binary_ranking_is_that_of_the_signs_at_its_own_temperature(items):
    image, text, teacher, _ = problem(items)
    got = named(build(SHARPNESS, binary_weight=0.6), image, text, teacher)
    expected = slow_binary(image, text, teacher, SHARPNESS)
    assert got["binary"] == pytest.approx(expected, rel=1e-6, abs=1e-12)
    plain = named(build(), image, text, teacher)["total"]
    assert got["total"] == pytest.approx(plain + 0.6 * expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("items", [1, 2, 6])
def test_the_ranking_within_a_modality_leaves_each_item_itself_out(items):
    image, text, teacher, _ = problem(items)
    got = named(build(SHARPNESS, within_weight=1.7), image, text, teacher)
    expected = slow_within(image, text, teacher, SHARPNESS)
    assert got["within"] == pytest.approx(expected, rel=1e-6, abs=1e-12)
    plain = named(build(), image, text, teacher)["total"]
    assert got["total"] == pytest.approx(plain + 1.7 * expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("items", [1, 2, 6])
@pytest.mark.parametrize("alike", [0.0, 0.5, 2.0])
def test_an_item_is_told_from_those_alike_by_the_bits_that_each_length_adds(alike, items):
    image, text, teacher, _ = problem(items)
    objective = build(item_weight=0.4, alike=alike)
    objective.item_sharpness.data = torch.tensor([0.7, -0.4, 0.2], dtype=torch.float64)
    got = named(objective, image, text, teacher)
    expected = slow_item(image, text, teacher[0], [0.7, -0.4, 0.2], alike)
    assert got["item"] == pytest.approx(expected, rel=1e-6, abs=1e-12)
    plain = named(build(), image, text, teacher)["total"]
    assert got["total"] == pytest.approx(plain + 0.4 * expected, rel=1e-6, abs=1e-12)
    if items == 1 or alike == 2:
        assert got["item"] == pytest.approx(0, abs=1e-12)  # nothing is alike


def test_each_length_tells_items_apart_by_bits_of_its_own():
    image, text, teacher, _ = problem(4)
    objective, starts = build(item_weight=1.0, alike=0.0), (0, *LENGTHS)
    for place, (start, stop) in enumerate(itertools.pairwise(starts)):
        codes = [torch.tensor(each, requires_grad=True) for each in (image, text)]
        pair = tuple(straight_through(code) for code in codes)
        objective._tell_apart(pair, torch.tensor(teacher[0]), torch.ones(3))[place].backward()
        used = codes[0].grad.any(dim=0)
        assert used[start:stop].any() and not used[:start].any() and not used[stop:].any()


@pytest.mark.parametrize("items", [1, 2, 6])
def test_pairwise_alignment_is_the_squared_error_of_similarities(items):
    image, text, teacher, _ = problem(items)
    got = named(build(alignment="pairwise"), image, text, teacher)
    for B in LENGTHS:
        assert got[f"prefix {B}"] == pytest.approx(slow_squared(image[:, :B], text[:, :B], teacher[0]), rel=1e-6)
    start, scales = 0, []
    for scale, width in enumerate(BLOCKS, start=1):
        block = slice(start, start + width)
        scales.append(slow_squared(image[:, block], text[:, block], teacher[scale]))
        assert got[f"scale {scale}"] == pytest.approx(scales[-1], rel=1e-6)
        start += width
    prefix = sum(beta * got[f"prefix {B}"] for B, beta in zip(LENGTHS, BETA, strict=True))
    scale = sum(rho / sum(RHO) * loss for rho, loss in zip(RHO, scales, strict=True))
    assert (got["prefix"], got["scale"]) == (pytest.approx(prefix, rel=1e-6), pytest.approx(scale, rel=1e-6))
    assert got["total"] == pytest.approx(prefix + SCALE_WEIGHT * scale, rel=1e-6)


@pytest.mark.parametrize("items", [1, 2, 6])
def test_the_standard_loss_is_the_likelihood_of_sharing_a_label_and_a_quantisation_term(items):
    image, text, _, related = problem(items)
    got = standard_loss(*tensors(image, text, related), quantization=0.1).item()
    assert got == pytest.approx(slow_standard(image, text, related, 0.1), rel=1e-9)


def test_the_quantisation_term_is_off_unless_asked_for():
    image, text, _, related = problem(6)
    assert standard_loss(*tensors(image, text, related)).item() == pytest.approx(
        slow_standard(image, text, related, 0.0), rel=1e-9
    )
    assert Config().quantization_weight == 0
    assert METHODS["baseline"].config(quantization_weight=0.3).quantization_weight == 0.3


def test_the_standard_loss_alone_leaves_nothing_else_to_follow():
    image, text, teacher, related = problem(5)
    settings = {
        "allocation": "single",
        "scale_weight": 0.0,
        "aligned": "none",
        "standard_weight": 2.0,
        "quantization_weight": 0.1,
    }
    got = named(build(**settings), image, text, teacher, related)
    assert list(got) == ["standard", "prefix", "scale", "total"]
    assert got["prefix"] == got["scale"] == 0
    assert got["total"] == pytest.approx(2 * slow_standard(image, text, related), rel=1e-9)


def test_all_parts_add_up():
    image, text, teacher, related = problem(5)
    weights = {"standard_weight": 0.3, "binary_weight": 0.6, "within_weight": 1.7}
    got = named(build(SHARPNESS, **weights), image, text, teacher, related)
    extras = 0.3 * got["standard"] + 0.6 * got["binary"] + 1.7 * got["within"]
    assert got["total"] == pytest.approx(got["prefix"] + SCALE_WEIGHT * got["scale"] + extras, rel=1e-6)


def test_only_the_longest_length_is_aligned_by_that_setting():
    image, text, teacher, _ = problem(5)
    got = named(build(aligned="longest", scale_weight=0.0, allocation="single"), image, text, teacher)
    both = ranking_loss(image, text, teacher[0]) + ranking_loss(text, image, teacher[0])
    assert got == {name: pytest.approx(both, rel=1e-6) for name in ("prefix 10", "prefix", "total")} | {"scale": 0}


@pytest.mark.parametrize("name", [method.name for method in MULTIBIT_METHODS])
def test_names_line_up_with_values_in_every_method(name):
    image, text, teacher, related = problem(4)
    objective = build(**{"scale_weight": SCALE_WEIGHT, **METHODS[name].settings})
    parts = objective(*tensors(image, text, teacher, related))
    assert parts.values.shape == (len(objective.names),) and len(set(objective.names)) == len(objective.names)
    assert parts.values[-1] == parts.total and objective.names[-3:] == ("prefix", "scale", "total")
    assert not parts.values.requires_grad


# ---- gradients ------------------------------------------------------------------------------------------------------


def test_straight_through_is_the_sign_with_the_gradient_of_the_relaxed_code():
    relaxed = torch.tensor([0.3, 0.0, -0.0, -0.9], requires_grad=True)
    code = straight_through(relaxed)
    assert code.tolist() == [1, 1, 1, -1]
    (code * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert relaxed.grad.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(("part", "slow"), [("binary", slow_binary), ("within", slow_within)])
def test_the_gradient_of_a_ranking_of_signs_is_that_at_the_signs(part, slow, monkeypatch):
    image, text, teacher, _ = problem(4)
    weighted = build(SHARPNESS, **{f"{part}_weight": 1.0})
    got = gradient(weighted, image, text, teacher) - gradient(build(), image, text, teacher)
    monkeypatch.setattr(f"{__name__}.signs", lambda codes: codes)  # the loss of real values near the signs
    at, expected, step = signs_of(image, text), np.zeros_like(got), 1e-5
    for place in itertools.product(*map(range, got.shape)):
        ends = []
        for side in (1, -1):
            moved = at.copy()
            moved[place] += side * step
            ends.append(slow(*moved, teacher, SHARPNESS))
        expected[place] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(got, expected, atol=1e-7)
    assert np.abs(got).max() > 1e-3


def signs_of(image, text):
    return np.stack([np.where(codes >= 0, 1.0, -1.0) for codes in (image, text)])


def gradient(objective, image, text, teacher):
    codes = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in (image, text)]
    objective(*codes, *tensors(teacher)).total.backward()
    return np.stack([code.grad.numpy() for code in codes])


@pytest.mark.parametrize(("part", "row", "slow"), [("binary", 0, slow_binary), ("within", 1, slow_within)])
def test_the_gradient_of_the_temperatures_is_that_of_finite_differences(part, row, slow):
    image, text, teacher, _ = problem(4)
    objective = build(SHARPNESS, **{f"{part}_weight": 1.0})
    objective(*tensors(image, text, teacher)).total.backward()
    for prefix in range(len(LENGTHS)):
        up, down = np.array(SHARPNESS), np.array(SHARPNESS)
        up[row, prefix] += 1e-5
        down[row, prefix] -= 1e-5
        expected = (slow(image, text, teacher, up) - slow(image, text, teacher, down)) / 2e-5
        assert objective.sharpness.grad[row, prefix].item() == pytest.approx(expected, abs=1e-7)
    assert not objective.sharpness.grad[1 - row].any()


def test_temperatures_start_at_that_of_the_relaxed_code():
    image, text, teacher, _ = problem(5)
    fresh = build(binary_weight=1.0)
    assert fresh.sharpness.shape == (2, 3) and not fresh.sharpness.any()
    of_signs = named(build(), signs(image), signs(text), teacher)["prefix"]
    assert named(fresh, image, text, teacher)["binary"] == pytest.approx(of_signs, rel=1e-6)


def test_without_rankings_of_signs_no_temperature_is_trained():
    assert build().sharpness is None and not list(build().parameters())


# ---- edges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("items", [1, 2])
@pytest.mark.parametrize("name", [method.name for method in MULTIBIT_METHODS])
def test_the_smallest_batches_have_finite_values_and_gradients_in_every_method(name, items, dtype):
    image, text, teacher, related = problem(items)
    objective = build(**{"scale_weight": SCALE_WEIGHT, **METHODS[name].settings})
    codes = [torch.tensor(array, dtype=dtype, requires_grad=True) for array in (image, text)]
    parts = objective(*codes, *(each.to(dtype) for each in tensors(teacher, related)))
    parts.total.backward()
    assert torch.isfinite(parts.values).all()
    assert all(torch.isfinite(code.grad).all() for code in codes)
    assert all(torch.isfinite(p.grad).all() for p in objective.parameters() if p.grad is not None)


@pytest.mark.parametrize("part", ["binary_weight", "within_weight"])
def test_items_without_label_and_saturated_codes_are_finite(part):
    image, text, teacher, _ = problem(5)
    teacher[:, 2], teacher[:, :, 2] = 0, 0
    objective = build([[40.0] * 3, [40.0] * 3], **{part: 1.0}).float()
    codes = [torch.tensor(np.sign(array), dtype=torch.float32, requires_grad=True) for array in (image, text)]
    total = objective(*codes, torch.tensor(teacher, dtype=torch.float32)).total
    total.backward()
    assert torch.isfinite(total) and all(torch.isfinite(code.grad).all() for code in codes)


def test_consistency_is_one_minus_the_correlation_of_each_query_with_the_longest_prefix():
    rng = np.random.default_rng(5)
    image, text = np.tanh(rng.normal(size=(2, 6, 8)))
    signs = np.where(image >= 0, 1, -1), np.where(text >= 0, 1, -1)
    whole = signs[0] @ signs[1].T / 8
    lacking = []
    for bits in (2, 4):
        shorter = signs[0][:, :bits] @ signs[1][:, :bits].T / bits
        for own, longest in [*zip(shorter, whole, strict=True), *zip(shorter.T, whole.T, strict=True)]:
            lacking.append(1 - (pearsonr(own, longest).statistic if np.ptp(own) else 0))
    config = Config(lengths=(2, 4, 8), scales=2, consistency_weight=1.0)
    objective = Objective(config, (6, 2), (2.0, 1.0))
    teacher = torch.zeros(3, 6, 6, dtype=torch.float64)
    parts = objective(torch.tensor(image), torch.tensor(text), teacher)
    got = dict(zip(objective.names, parts.values.tolist(), strict=True))
    assert got["consistency"] == pytest.approx(np.mean(lacking), abs=1e-12)
    assert got["total"] == pytest.approx(got["prefix"] + 0.7 * got["scale"] + got["consistency"], abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 20), st.floats(-3, 3))
def test_disagreement_ignores_location_and_scale(seed, scale, shift):
    shorter, longest = torch.tensor(np.random.default_rng(seed).normal(size=(2, 1, 5, 5)))
    got = disagreement(shorter, longest)
    assert float(got) == pytest.approx(float(disagreement(scale * shorter + shift, longest)), abs=1e-9)
    assert 0 <= float(got) <= 2


def test_equal_codes_have_finite_gradients_of_the_disagreement():
    shorter = torch.full((2, 4, 4), 0.5, requires_grad=True)
    got = disagreement(shorter, torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(0)))
    got.backward()
    assert got.item() == 1 and torch.isfinite(shorter.grad).all()


def test_one_length_has_no_consistency_term():
    config = Config(lengths=(8,), scales=2, consistency_weight=1.0)
    assert "consistency" not in Objective(config, (6, 2), (2.0, 1.0)).names
