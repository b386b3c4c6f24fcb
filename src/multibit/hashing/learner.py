"""What the training loop trains: a model together with its loss, its memories and its optimisers."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from multibit.config import EpochSettings
from multibit.errors import DataError
from multibit.features import Pairs
from multibit.hashing.code_model import CodeModel, TokenBatch
from multibit.relation import RelationTeacher


class Batch(NamedTuple):
    """Training items of one step.

    Attributes:
        rows: (b,) int64, their positions among the training items, for memories.
        image: (b, d_i) float32. text: (b, d_t) float32, one text of each item.
        labels: (b, C) float32 multi-hot. epoch: from 1.
        image_tokens, text_tokens: of the same items and texts; None where the method does not read them.
    """

    rows: Tensor
    image: Tensor
    text: Tensor
    labels: Tensor
    epoch: int
    image_tokens: TokenBatch | None = None
    text_tokens: TokenBatch | None = None


@dataclass(frozen=True)
class Descent:
    """An optimiser with its schedule.

    Attributes:
        optimizer: of some parameters. schedule: advanced after every step.
        clip: largest norm of the gradient of all its parameters together; None without a limit.
    """

    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    clip: float | None = None

    @property
    def rate(self) -> float:
        """The current learning rate of the first parameters."""
        return float(self.schedule.get_last_lr()[0])

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of a loss."""
        self.clear()
        loss.backward()  # type: ignore[no-untyped-call]
        self.follow()

    def clear(self) -> None:
        """Forget the gradients of its parameters."""
        self.optimizer.zero_grad(set_to_none=True)

    def follow(self) -> None:
        """One step down the gradients that its parameters have."""
        if self.clip is not None:
            weights = [each for group in self.optimizer.param_groups for each in group["params"]]
            nn.utils.clip_grad_norm_(weights, self.clip)
        self.optimizer.step()
        self.schedule.step()

    def state_dict(self) -> dict[str, Any]:
        """State of the optimiser and of the schedule."""
        return {"optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])


class Learner(nn.Module, ABC):
    """A model in training: the contract that every method obeys.

    The loop calls `optimizers` once, then for each epoch `start_epoch`, `step` for every batch, and `end_epoch`.
    Everything that a resumed training needs (memories, centres, running means) must be a parameter or a buffer of the
    learner, and every random number must come from torch's global generator, which the loop seeds for each epoch. Only
    training items are passed to the constructor.

    Attributes:
        model: what is trained. parts: names of the values that `step` returns; the last one is "total".
        kept: names of the submodules that are set to the best epoch at the end.
        averaging: share of the epochs, the latest, over which the weights are averaged to be validated and kept; 0
            keeps those of an epoch.
        smallest_batch: a last batch with fewer items is left out.
        needs_unrelated: refuse training items of which every two share a label.
        full_batches: refuse fewer training items than a batch.
    """

    model: CodeModel
    parts: tuple[str, ...]
    kept: tuple[str, ...] = ("model",)
    averaging: float = 0.0
    smallest_batch: int = 1
    needs_unrelated: bool = False
    full_batches: bool = False

    def __init__(self, training: Pairs, settings: Any) -> None:
        """Build everything from n training items, initialised from `settings.seed`."""
        super().__init__()

    @property
    def identity(self) -> Any:
        """What must be equal for a training to be resumed, beyond settings and data."""
        return type(self).__name__

    @abstractmethod
    def optimizers(self, steps: int) -> Sequence[Descent]:
        """The optimisers, in the order in which `step` uses them.

        Args:
            steps: number of steps in all epochs.
        """

    @property
    def teacher(self) -> RelationTeacher | None:
        """The relation teacher, with any trained parameters; None for a method without one."""
        return None

    def start_epoch(self, epoch: int) -> None:
        """Called before the first batch of an epoch; epochs count from 1."""

    @abstractmethod
    def step(self, batch: Batch, descents: Sequence[Descent]) -> Tensor:
        """Update the weights by one batch.

        Returns:
            (P,) detached values of `parts`.
        """

    def end_epoch(self, epoch: int) -> None:
        """Called after the last batch of an epoch, before the model is scored."""


class LossLearner(Learner):
    """A learner whose step goes down the gradient of one sum of terms, with all its optimisers."""

    @abstractmethod
    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The terms of the loss, weighted: their sum is minimised. Their names are `parts` without "total"."""

    def step(self, batch: Batch, descents: Sequence[Descent]) -> Tensor:
        """Update the weights by the gradient of the sum of `losses`."""
        for descent in descents:
            descent.clear()
        losses = self.losses(batch)
        total = torch.stack(list(losses.values())).sum()
        total.backward()  # type: ignore[no-untyped-call]
        for descent in descents:
            descent.follow()
        return torch.stack([*losses.values(), total]).detach()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from a seed, and restore the caller's random state: for initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


Fit = Callable[[Pairs, Any], CodeModel]
"""A closed-form solution: training items, settings -> model."""


def require_two(training: Pairs) -> None:
    """Refuse fewer than two training items.

    Raises:
        DataError: nothing can be ranked.
    """
    if len(training) < 2:
        raise DataError(f"need at least 2 pairs to rank, got {len(training)}.", option="training")


UNRELATED_ROWS = 1024  # items that are compared with all at once


def require_unrelated(training: Pairs) -> None:
    """Refuse training items of which every two share a label.

    Raises:
        DataError: nothing can be learned by comparing them.
    """
    labels = training.labels.astype(np.float32)
    for start in range(0, len(labels), UNRELATED_ROWS):
        if ((labels[start : start + UNRELATED_ROWS] @ labels.T) == 0).any():
            return
    raise DataError(
        f"every two of the {len(training)} training items share a label, so there is nothing to tell apart.",
        field="labels",
        hint="Leave out labels that nearly all items have.",
    )


def require_full_batch(training: Pairs, settings: EpochSettings) -> None:
    """Refuse fewer training items than a batch.

    Raises:
        DataError: names both numbers.
    """
    if len(training) < settings.batch_size:
        raise DataError(
            f"{len(training)} training items are fewer than a batch of {settings.batch_size}.",
            option="batch_size",
            hint="Reduce `batch_size`.",
        )
