"""BertAdam and its schedule, which most of the compared methods use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from multibit.hashing.learner import Descent

BETAS = (0.9, 0.98)  # shares of the former means of a gradient and of its square that are kept in a step
EPSILON = 1e-6  # keeps divisions by a norm finite
LARGEST_NORM = 1.0  # of the gradient of one tensor


class BertAdam(torch.optim.Optimizer):
    """Adam without bias correction, with decoupled weight decay and a limit on the gradient of each tensor.

    Args:
        params: parameters or groups of them. lr: learning rate, which a schedule multiplies. decay: times the scheduled
            rate, what a weight loses in a step.
    """

    def __init__(self, params: Any, lr: float, decay: float) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                norm = weights.grad.norm()
                gradient = weights.grad * (LARGEST_NORM / (norm + EPSILON)).clamp(max=1.0)
                state = self.state[weights]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(weights), torch.zeros_like(weights)
                state["mean"].lerp_(gradient, 1 - BETAS[0])
                state["square"].mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
                update = state["mean"] / (state["square"].sqrt() + EPSILON)
                weights.add_(update + group["decay"] * weights, alpha=-group["lr"])


def warmup_cosine(steps: int, warmup: float = 0.1) -> Callable[[int], float]:
    """Factor of the learning rate by step: a linear rise over the share `warmup` of all steps, then half a cosine.

    The cosine is that of all steps, so the factor drops a little where the rise ends.

    Example:
        >>> factor = warmup_cosine(100)
        >>> [round(factor(step), 3) for step in (0, 5, 10, 50, 100)]
        [0.0, 0.5, 0.976, 0.5, 0.0]
    """

    def factor(step: int) -> float:
        progress = step / max(steps, 1)
        return progress / warmup if progress < warmup else 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))

    return factor


def bert_descent(
    groups: Iterable[nn.Parameter] | list[dict[str, Any]],
    rate: float,
    steps: int,
    *,
    decay: float = 0.2,
    warmup: float = 0.1,
    clip: float | None = None,
) -> Descent:
    """BertAdam with warm-up and cosine.

    Args:
        groups: parameters, or groups of them with a rate of their own under "lr". rate: learning rate.
        steps: of all epochs. decay: of the weights. warmup: share of the steps with a rising rate.
        clip: largest norm of the gradient of all parameters together, before that of each tensor; None without one.
    """
    optimizer = BertAdam(list(groups), rate, decay)
    return Descent(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(steps, warmup)), clip)


def constant_descent(optimizer: torch.optim.Optimizer, clip: float | None = None, warmup: int = 0) -> Descent:
    """An optimiser whose rates stay as they are.

    Args:
        clip: largest norm of the gradient of all its parameters together; None without a limit.
        warmup: first steps, in which the rates rise linearly.
    """
    factor = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / (warmup + 1)))
    return Descent(optimizer, factor, clip)
