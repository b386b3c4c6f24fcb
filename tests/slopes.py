"""Gradients against finite differences of an independent loss."""

from __future__ import annotations

import numpy as np
import pytest


def assert_slopes(learner, arrays, slow, *, places=3, rel=1e-5, atol=1e-6):
    """The gradients of a learner's parameters are the central differences of a slow loss, at a few places of each.

    Args:
        learner: whose loss was differentiated. arrays: learner -> its weights by name, as copies.
        slow: weights -> the loss. places: per parameter.
    """
    rng = np.random.default_rng(0)
    for name, parameter in learner.named_parameters():
        for position in rng.integers(parameter.numel(), size=places):
            ends = []
            for change in (1e-6, -1e-6):
                weights = arrays(learner)
                weights[name].reshape(-1)[position] += change
                ends.append(slow(weights))
            slope = (ends[0] - ends[1]) / 2e-6
            assert float(parameter.grad.reshape(-1)[position]) == pytest.approx(slope, rel=rel, abs=atol), name
