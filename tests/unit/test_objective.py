"""The listwise objective against the paper's equations written as loops, and edge cases."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import pytest
import torch

from multibit import Config, HashModel
from multibit.hashing.objective import Objective

SETTINGS = [
    # lengths, blocks, T_t, T_s, lambda_s
    ((16, 32, 64, 128), (71, 50, 6, 1), 0.2, 0.1, 0.7),
    ((3, 7, 10), (4, 3, 2, 1), 0.5, 0.3, 1.5),
    ((5,), (2, 2, 1), 0.1, 0.05, 0.0),
    ((1, 6), (6,), 1.0, 1.0, 1.0),
    ((1,), (1,), 0.2, 0.1, 0.7),
]


def problem(lengths, blocks, items, seed=0):
    """Codes of both modalities, unit-cosine teachers (1+M, b, b) and scale weights."""
    rng = np.random.default_rng(seed)
    image, text = np.tanh(rng.normal(size=(2, items, max(lengths))))
    e = rng.normal(size=(1 + len(blocks), items, 5))
    e /= np.linalg.norm(e, axis=2, keepdims=True)
    return image, text, e @ e.transpose(0, 2, 1), rng.uniform(0.1, 3, size=len(blocks))


def softmax(scores):
    powers = [exp(score - max(scores)) for score in scores]
    return [power / sum(powers) for power in powers]


def directional_loss(asking, answering, teacher, teacher_temperature, student_temperature):
    """eq:directional-list, one query after the other."""
    items, bits = asking.shape
    divergences = []
    for q in range(items):
        distances = [(bits - float(asking[q] @ answering[r])) / (2 * bits) for r in range(items)]
        student = softmax([-distance / student_temperature for distance in distances])
        target = softmax([teacher[q, r] / teacher_temperature for r in range(items)])
        divergences.append(sum(p * (log(p) - log(s)) for p, s in zip(target, student, strict=True)))
    return sum(divergences) / items


def both_directions(image, text, *rest):
    return directional_loss(image, text, *rest) + directional_loss(text, image, *rest)


def slow_parts(image, text, teacher, rho, lengths, blocks, temperatures, scale_weight):
    """eq:prefix-loss and eq:overall-objective, by name."""
    parts = {f"prefix {B}": both_directions(image[:, :B], text[:, :B], teacher[0], *temperatures) for B in lengths}
    start = 0
    for scale, width in enumerate(blocks, start=1):
        block = slice(start, start + width)
        parts[f"scale {scale}"] = both_directions(image[:, block], text[:, block], teacher[scale], *temperatures)
        start += width
    roots = sum(sqrt(B) for B in lengths)
    parts["prefix"] = sum(sqrt(B) / roots * parts[f"prefix {B}"] for B in lengths)
    parts["scale"] = sum(rho[m] / sum(rho) * parts[f"scale {m + 1}"] for m in range(len(blocks)))
    parts["total"] = parts["prefix"] + scale_weight * parts["scale"]
    return parts


def build(lengths, blocks, rho, teacher_temperature=0.2, student_temperature=0.1, scale_weight=0.7):
    config = Config(
        lengths=lengths,
        scales=len(blocks),
        teacher_temperature=teacher_temperature,
        student_temperature=student_temperature,
        scale_weight=scale_weight,
    )
    return Objective(config, blocks, tuple(rho))


def tensors(*arrays, dtype=torch.float64):
    return [torch.tensor(array, dtype=dtype) for array in arrays]


def named(objective, *arrays):
    return dict(zip(objective.names, objective(*tensors(*arrays)).values.tolist(), strict=True))


@pytest.mark.parametrize("items", [1, 2, 9])
@pytest.mark.parametrize(("lengths", "blocks", "teacher_t", "student_t", "scale_weight"), SETTINGS)
def test_every_part_equals_the_equations_as_loops(lengths, blocks, teacher_t, student_t, scale_weight, items):
    image, text, teacher, rho = problem(lengths, blocks, items)
    objective = build(lengths, blocks, rho, teacher_t, student_t, scale_weight)
    expected = slow_parts(image, text, teacher, rho, lengths, blocks, (teacher_t, student_t), scale_weight)
    got = named(objective, image, text, teacher)
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
    assert objective(*tensors(image, text, teacher)).total.item() == pytest.approx(
        expected["total"], rel=1e-6, abs=1e-9
    )


def test_single_precision_agrees_with_the_equations():
    lengths, blocks, *_ = SETTINGS[0]
    image, text, teacher, rho = problem(lengths, blocks, 32)
    expected = slow_parts(image, text, teacher, rho, lengths, blocks, (0.2, 0.1), 0.7)["total"]
    got = build(lengths, blocks, rho)(*tensors(image, text, teacher, dtype=torch.float32)).total
    assert got.dtype == torch.float32 and got.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("constant", [0.0, -3.0])
def test_the_loss_is_zero_when_the_student_equals_the_teacher_up_to_the_temperatures(constant):
    teacher_t, student_t, bits = 0.4, 0.15, 6
    codes = problem((bits,), (bits,), 8)[0]
    matched = codes @ codes.T / (2 * bits) * teacher_t / student_t + constant  # softmax ignores a constant
    objective = build((bits,), (bits,), (1.0,), teacher_t, student_t)
    got = named(objective, codes, codes, np.stack([matched, matched]))
    assert all(value == pytest.approx(0, abs=1e-12) for value in got.values())


def test_the_loss_is_not_zero_when_only_one_direction_fits():
    bits, items = 6, 5
    teacher = np.zeros((2, items, items))
    image = np.ones((items, bits))
    text = problem((bits,), (bits,), items)[1]  # each text ranks all images equally, each image ranks texts unequally
    assert named(build((bits,), (bits,), (1.0,)), image, text, teacher)["total"] > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_of_one_item_has_zero_loss_and_gradient(dtype):
    lengths, blocks, *_ = SETTINGS[1]
    image, text, teacher, rho = problem(lengths, blocks, 1)
    h_image, h_text, g = tensors(image, text, teacher, dtype=dtype)
    h_image.requires_grad_()
    total = build(lengths, blocks, rho)(h_image, h_text, g).total
    total.backward()
    assert total.item() == 0 and not h_image.grad.any()


def test_the_gradient_is_that_of_finite_differences():
    lengths, blocks, *_ = SETTINGS[1]
    image, text, teacher, rho = problem(lengths, blocks, 4)
    h_image, h_text, g = tensors(image, text, teacher)
    objective = build(lengths, blocks, rho)
    assert torch.autograd.gradcheck(
        lambda i, t: objective(i, t, g).total, (h_image.requires_grad_(), h_text.requires_grad_())
    )


@pytest.mark.parametrize("student_temperature", [1e-3, 0.1])
@pytest.mark.parametrize("size", [1.0, 40.0, 1e4])
def test_the_gradient_is_finite_at_saturated_codes(size, student_temperature):
    lengths, blocks, *_ = SETTINGS[1]
    image, text, teacher, rho = problem(lengths, blocks, 6)
    before = [torch.tensor(np.sign(a) * size, dtype=torch.float32, requires_grad=True) for a in (image, text)]
    objective = build(lengths, blocks, rho, student_temperature=student_temperature)
    total = objective(*(torch.tanh(values) for values in before), torch.tensor(teacher, dtype=torch.float32)).total
    total.backward()
    assert torch.isfinite(total) and all(torch.isfinite(values.grad).all() for values in before)


def test_items_without_label_have_a_flat_teacher_and_a_finite_loss():
    lengths, blocks, *_ = SETTINGS[1]
    image, text, teacher, rho = problem(lengths, blocks, 6)
    teacher[:, 2], teacher[:, :, 2] = 0, 0
    expected = slow_parts(image, text, teacher, rho, lengths, blocks, (0.2, 0.1), 0.7)["total"]
    assert named(build(lengths, blocks, rho), image, text, teacher)["total"] == pytest.approx(expected, rel=1e-6)


def test_only_the_total_carries_a_gradient():
    lengths, blocks, *_ = SETTINGS[1]
    image, text, teacher, rho = problem(lengths, blocks, 3)
    h_image, h_text, g = tensors(image, text, teacher)
    parts = build(lengths, blocks, rho)(h_image.requires_grad_(), h_text, g)
    assert parts.total.requires_grad and not parts.values.requires_grad


def test_the_weights_of_the_lengths_are_the_papers():
    assert [round(beta, 4) for beta in Config().length_weights] == [0.1381, 0.1953, 0.2761, 0.3905]


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_only_the_ratio_of_the_scale_weights_counts(factor):
    lengths, blocks, *_ = SETTINGS[1]
    image, text, teacher, rho = problem(lengths, blocks, 5)
    once, scaled = (named(build(lengths, blocks, r), image, text, teacher) for r in (rho, rho * factor))
    assert once["total"] == pytest.approx(scaled["total"], rel=1e-6)


def test_the_length_of_the_code_of_a_model_is_the_longest_length():
    lengths, blocks, *_ = SETTINGS[1]
    objective = build(lengths, blocks, np.ones(len(blocks)))
    bits = HashModel(4, 4, blocks, 8, 4).bits
    assert bits == max(lengths) == sum(objective.segments.widths)
