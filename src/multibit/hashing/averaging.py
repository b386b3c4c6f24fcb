"""The average of the weights over the latest epochs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import Tensor

from multibit.hashing.learner import Learner

Weights = dict[str, Tensor]


def kept_weights(learner: Learner) -> Weights:
    """Weights and buffers of the submodules that a learner keeps, by name; they share memory with the learner."""
    return {
        name: tensor.detach() for name, tensor in learner.state_dict().items() if name.split(".")[0] in learner.kept
    }


def follow(average: Weights, weights: Weights, share: float, epoch: int) -> None:
    """Take the weights of one more epoch into their average, in place.

    They enter epoch t with 1 / (1 + share (t - 1)): the average reaches about as far back as that share of the epochs,
    without a copy of each. A share of 1 makes it the plain mean of all epochs, one of 0 the latest weights.

    Args:
        average: empty before the first epoch. weights: of the epoch. share: in [0, 1]. epoch: from 1.

    Example:
        >>> import torch
        >>> average = {}
        >>> for epoch, value in enumerate((1.0, 2.0, 6.0), start=1):
        ...     follow(average, {"w": torch.tensor(value)}, share=1.0, epoch=epoch)
        >>> float(average["w"])
        3.0
    """
    for name, latest in weights.items():
        if name in average and latest.is_floating_point():
            average[name].lerp_(latest, 1 / (1 + share * (epoch - 1)))
        else:  # the first epoch, or a count
            average[name] = latest.clone()


@contextlib.contextmanager
def replaced(learner: Learner, weights: Weights) -> Iterator[None]:
    """Give a learner other weights for a while, and then its own again."""
    own = {name: tensor.clone() for name, tensor in kept_weights(learner).items() if name in weights}
    learner.load_state_dict(weights, strict=False)
    try:
        yield
    finally:
        learner.load_state_dict(own, strict=False)
