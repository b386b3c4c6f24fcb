"""Products on segments and divergences of rankings against the definitions as loops."""

from __future__ import annotations

from math import exp, fsum, log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multibit.hashing.rankings import Goals, Segments, leave_out, log_sums

SEGMENTS = [slice(0, 3), slice(0, 7), slice(3, 7), slice(7, 8), slice(2, 8)]


def random(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def softmax(scores):
    powers = [exp(score - max(scores)) for score in scores]
    return [power / fsum(powers) for power in powers]


def slow_divergence(logits, teacher, both):
    """Mean over the queries of a side of KL(softmax(teacher) || softmax(logits)), rows, or rows and columns."""
    sides = [(logits, teacher), (logits.T, teacher)] if both else [(logits, teacher)]
    total = 0.0
    for side, follow in sides:
        for scores, goal in zip(side.tolist(), follow.tolist(), strict=True):
            total += fsum(p * log(p / q) for p, q in zip(softmax(goal), softmax(scores), strict=True))
    return total / len(logits)


# ---- products -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [1, 2, 5])
def test_products_are_means_over_the_bits_of_each_segment(items):
    left, right = random(2, items, 8)
    factors = torch.tensor([[1.0], [2.0], [-0.5], [3.0], [0.0]], dtype=torch.float64)
    got = Segments(SEGMENTS)(left, right, factors)
    assert got.shape == (5, items, items)
    for segment, factor, each in zip(SEGMENTS, factors[:, 0].tolist(), got, strict=True):
        for q in range(items):
            for r in range(items):
                product = fsum((left[q, segment] * right[r, segment]).tolist()) / (segment.stop - segment.start)
                assert each[q, r].item() == pytest.approx(factor * product, abs=1e-12)


def test_products_of_both_modalities_at_once_are_those_of_each():
    codes = random(2, 4, 8)
    both = Segments(SEGMENTS)(codes, codes)
    for modality in range(2):
        torch.testing.assert_close(both[:, modality], Segments(SEGMENTS)(codes[modality], codes[modality]))


def test_the_gradient_of_products_is_that_of_finite_differences():
    left, right = (each.clone().requires_grad_() for each in random(2, 3, 8))
    factors = torch.ones(5, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Segments(SEGMENTS), (left, right, factors))


# ---- divergences ----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.booleans(), st.floats(0.01, 100), st.integers(0, 2**32 - 1))
def test_a_divergence_is_the_definition_as_loops(items, both, size, seed):
    logits, teacher = size * random(3, items, items, seed=seed), random(2, items, items, seed=seed + 1)
    teacher = (teacher + teacher.mT) / 2
    goals = Goals.of(teacher, both=both)
    got = goals.take([0, 1, 1]).divergence(logits).tolist()
    expected = [slow_divergence(*each, both) for each in zip(logits, teacher[[0, 1, 1]], strict=True)]
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-9 * size)
    assert min(got) >= -1e-12 * size * items


def test_one_ranking_serves_any_number_of_logits():
    teacher, logits = random(1, 4, 4), random(3, 2, 4, 4)
    goals = Goals.of((teacher + teacher.mT), both=True)
    got = goals.divergence(logits)
    assert got.shape == (3, 2)
    for one, value in zip(logits.flatten(0, 1), got.flatten(), strict=True):
        torch.testing.assert_close(goals.divergence(one[None])[0], value)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("constant", [0.0, 500.0, -3.0])
def test_a_ranking_does_not_diverge_from_itself(both, constant):
    teacher = random(2, 5, 5)
    teacher += teacher.mT.clone()
    assert Goals.of(teacher, both=both).divergence(teacher + constant).abs().max() < 1e-10


@pytest.mark.parametrize("both", [False, True])
def test_the_gradients_of_a_divergence_are_those_of_finite_differences(both):
    logits, teacher = random(2, 4, 4), random(2, 4, 4, seed=1)

    def loss(logits, teacher):
        return Goals.of(teacher + teacher.mT, both=both).divergence(logits)

    assert torch.autograd.gradcheck(loss, (logits.requires_grad_(), teacher.requires_grad_()))


@pytest.mark.parametrize("both", [False, True])
def test_log_sums_are_those_of_torch(both):
    logits = random(2, 3, 6, 6)
    expected = torch.logsumexp(logits, -1).sum(-1) + (torch.logsumexp(logits, -2).sum(-1) if both else 0)
    torch.testing.assert_close(log_sums(logits, both=both), expected)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_huge_logits_are_finite(size, both):
    logits = (size * torch.sign(random(1, 6, 6))).float().requires_grad_()
    sums = log_sums(logits, both=both)
    sums.sum().backward()
    assert torch.isfinite(sums).all() and torch.isfinite(logits.grad).all()


# ---- pairs left out -------------------------------------------------------------------------------------------------


def test_pairs_that_are_left_out_count_for_nothing():
    logits, teacher = random(1, 5, 5), random(1, 5, 5, seed=1)
    left = random(5, 5, seed=2) > 0.3
    left.fill_diagonal_(False)
    hidden = leave_out(left)
    codes = logits.clone().requires_grad_()
    Goals.of(teacher + hidden, both=False).divergence(codes + hidden).sum().backward()
    assert not codes.grad[0][left].any() and codes.grad[0][~left].any()
    got = Goals.of(teacher + hidden, both=False).divergence(logits + hidden).item()
    expected = 0.0
    for q in range(5):
        kept = [r for r in range(5) if not left[q, r]]
        goal, ranking = softmax(teacher[0, q, kept].tolist()), softmax(logits[0, q, kept].tolist())
        expected += sum(p * log(p / s) for p, s in zip(goal, ranking, strict=True)) / 5
    assert got == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_item_alone_has_no_divergence_from_others(dtype):
    hidden = leave_out(torch.ones(1, 1, dtype=torch.bool))
    logits = random(1, 1, 1).to(dtype).requires_grad_()
    loss = Goals.of(logits.detach() + hidden, both=False).divergence(logits + hidden)
    loss.sum().backward()
    assert loss.item() == 0 and not logits.grad.any()
