"""Order preservation of the relaxed code (`eq:order-preservation`)."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from multibit import Config
from multibit.hashing.objective import Objective
from multibit.relation import RelationTeacher

ITEMS, LABELS = 8, 5
label_sets = arrays(np.uint8, (ITEMS, LABELS), elements=st.integers(0, 1))


def aligned(labels):
    """Relaxed codes of both modalities whose rankings are those of g*, and the student temperature that makes them so.

    The rows of the teacher's embedding have the products g*. Scaled into [-1, 1] they have the products c g*, which the
    student's softmax at temperature T_t c / 2 turns into the teacher's distribution.
    """
    teacher = RelationTeacher.fit(labels, scales=2)
    rows = torch.from_numpy(teacher.embed(labels))
    scale = 0.99 / max(float(rows.abs().max()), 1e-9)
    temperature = Config().teacher_temperature * scale**2 / LABELS / 2
    return rows * scale, temperature, rows @ rows.T


def order(scores, distance):
    """Pairs of candidates that the teacher orders by more than rounding, and those that the distance orders alike."""
    higher = scores[:, :, None] > scores[:, None, :] + 1e-9
    return higher, higher & (distance[:, :, None] < distance[:, None, :])


@given(label_sets)
@settings(max_examples=50, deadline=None)
def test_where_the_listwise_divergence_vanishes_the_soft_distance_orders_as_the_teacher(labels):
    assume(labels.any())
    codes, temperature, g = aligned(labels)
    config = Config(lengths=(LABELS,), scales=2, scale_weight=0.0, student_temperature=temperature, allocation="single")
    objective = Objective(config, (LABELS,), (1.0,))
    teacher = torch.stack([g, g, g])
    assert float(objective(codes, codes, teacher).total) < 1e-6
    distance = (LABELS - codes @ codes.T) / (2 * LABELS)
    higher, kept = order(g.numpy(), distance.numpy())
    assert (higher == kept).all()


@given(label_sets, st.integers(0, ITEMS - 1))
@settings(max_examples=50, deadline=None)
def test_codes_in_another_order_than_the_teacher_have_a_positive_divergence(labels, row):
    assume(labels.any())
    codes, temperature, g = aligned(labels)
    other = codes.clone()
    other[row] = -other[row]
    distance = (LABELS - codes @ other.T) / (2 * LABELS)
    higher, kept = order(g.numpy(), distance.numpy())
    assume((higher & ~kept).any())
    config = Config(lengths=(LABELS,), scales=2, scale_weight=0.0, student_temperature=temperature, allocation="single")
    assert float(Objective(config, (LABELS,), (1.0,))(codes, other, torch.stack([g, g, g])).total) > 1e-9
