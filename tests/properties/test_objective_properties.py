"""Properties of the listwise objective for any codes, blocks and lengths."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multibit import Config
from multibit.hashing.objective import Objective

MODEST = settings(max_examples=40, deadline=None)


class Problem:
    """One batch with an objective for it."""

    def __init__(self, blocks, lengths, items, temperatures, scale_weight, seed, saturation):
        self.rng = np.random.default_rng(seed)
        self.blocks, self.items, bits = tuple(blocks), items, sum(blocks)
        self.lengths = tuple(sorted({min(length, bits) for length in lengths} | {bits}))
        self.config = Config(
            lengths=self.lengths,
            scales=len(blocks),
            teacher_temperature=temperatures[0],
            student_temperature=temperatures[1],
            scale_weight=scale_weight,
        )
        self.rho = self.rng.uniform(0.1, 2, size=len(blocks))
        self.objective = Objective(self.config, self.blocks, tuple(self.rho))
        self.image, self.text = np.tanh(saturation * self.rng.normal(size=(2, items, bits)))
        e = self.rng.normal(size=(1 + len(blocks), items, 4))
        e[:, self.rng.random(items) < 0.2] = 0  # items without label
        e /= np.maximum(np.linalg.norm(e, axis=2, keepdims=True), 1e-12)
        self.teacher = e @ e.transpose(0, 2, 1)

    def parts(self, image=None, text=None, teacher=None):
        given = (self.image, image), (self.text, text), (self.teacher, teacher)
        values = self.objective(*(torch.tensor(own if other is None else other) for own, other in given)).values
        return dict(zip(self.objective.names, values.tolist(), strict=True))


problems = st.builds(
    Problem,
    blocks=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    lengths=st.sets(st.integers(1, 30), max_size=4),
    items=st.integers(1, 7),
    temperatures=st.tuples(st.floats(0.05, 2), st.floats(0.05, 2)),
    scale_weight=st.floats(0, 3),
    seed=st.integers(0, 2**32 - 1),
    saturation=st.sampled_from([0.1, 1.0, 50.0]),
)


def assert_equal_parts(first, second):
    for name, value in first.items():
        np.testing.assert_allclose(second[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


@MODEST
@given(problems)
def test_the_order_of_the_items_in_a_batch_does_not_matter(problem):
    order = problem.rng.permutation(problem.items)
    shuffled = problem.parts(problem.image[order], problem.text[order], problem.teacher[:, order][:, :, order])
    assert_equal_parts(problem.parts(), shuffled)


@MODEST
@given(problems)
def test_images_and_texts_can_be_swapped(problem):
    assert_equal_parts(problem.parts(), problem.parts(problem.text, problem.image))


@MODEST
@given(problems)
def test_flipping_a_bit_of_all_items_changes_nothing(problem):
    mask = problem.rng.choice([-1.0, 1.0], size=sum(problem.blocks))
    assert_equal_parts(problem.parts(), problem.parts(problem.image * mask, problem.text * mask))


@MODEST
@given(problems)
def test_a_prefix_does_not_depend_on_later_bits(problem):
    before = problem.parts()
    for length in problem.lengths:
        image, text = problem.image.copy(), problem.text.copy()
        image[:, length:], text[:, length:] = 0.5, -0.5
        after = problem.parts(image, text)
        assert_equal_parts(
            {f"prefix {B}": before[f"prefix {B}"] for B in problem.lengths if length >= B},
            {f"prefix {B}": after[f"prefix {B}"] for B in problem.lengths},
        )


@MODEST
@given(problems)
def test_a_scale_depends_only_on_its_own_block_and_teacher(problem):
    before, ends = problem.parts(), np.cumsum(problem.blocks)
    for scale, end in enumerate(ends, start=1):
        own = slice(end - problem.blocks[scale - 1], end)
        image, text = np.full_like(problem.image, 0.5), np.full_like(problem.text, -0.5)
        image[:, own], text[:, own] = problem.image[:, own], problem.text[:, own]
        teacher = np.zeros_like(problem.teacher)
        teacher[scale] = problem.teacher[scale]
        name = f"scale {scale}"
        assert_equal_parts({name: before[name]}, problem.parts(image, text, teacher))


@MODEST
@given(problems)
def test_every_part_is_finite_and_not_negative(problem):
    values = np.array(list(problem.parts().values()))
    assert np.isfinite(values).all() and (values >= -1e-9).all()


@MODEST
@given(problems)
def test_the_sums_are_those_of_the_parts(problem):
    parts, roots, rho = problem.parts(), np.sqrt(problem.lengths), problem.rho
    prefix = sum(root * parts[f"prefix {B}"] for root, B in zip(roots, problem.lengths, strict=True)) / roots.sum()
    scale = sum(weight * parts[f"scale {m}"] for m, weight in enumerate(rho, start=1)) / rho.sum()
    sums = {"prefix": prefix, "scale": scale, "total": prefix + problem.config.scale_weight * scale}
    for name, value in sums.items():
        np.testing.assert_allclose(parts[name], value, rtol=1e-6, atol=1e-9, err_msg=name)


@MODEST
@given(problems)
def test_the_gradient_is_finite_and_descends(problem):
    image = torch.tensor(problem.image, requires_grad=True)
    text, teacher = torch.tensor(problem.text), torch.tensor(problem.teacher)
    total = problem.objective(image, text, teacher).total
    total.backward()
    assert torch.isfinite(image.grad).all()
    steepness = float((image.grad**2).sum())
    if steepness > 1e-6:
        with torch.no_grad():
            lower = min(
                float(problem.objective(image - step * image.grad, text, teacher).total) for step in (1e-1, 1e-3, 1e-5)
            )
        assert lower < total.item()
