"""The state of a training after an epoch, and its file, from which an interrupted training is resumed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from multibit.config import Settings
from multibit.errors import FormatError, MismatchError
from multibit.hashing.averaging import Weights
from multibit.hashing.learner import Descent, Learner
from multibit.paths import replacing

STATE_VERSION = 5


@dataclass
class TrainingState:
    """State of a training after an epoch: everything needed to resume it, and the best model so far.

    Attributes:
        epoch: finished epochs. best_epoch, best_score, best: the best model so far by the score.
        learner: its state dictionary. descents: those of its optimisers and schedules. average: of the weights that the
            learner keeps over the latest epochs, if it has an `averaging`; empty without.
        history: one row per epoch: mean of each part of the objective, learning rate, validation score if scored.
        seconds: of the epochs so far. by_length: length -> state of its model, for a method with a model for each.
    """

    epoch: int = 0
    best_epoch: int = 0
    best_score: float = float("-inf")
    best: Weights = field(default_factory=dict)
    learner: dict[str, Any] = field(default_factory=dict)
    descents: list[dict[str, Any]] = field(default_factory=list)
    average: Weights = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    by_length: dict[int, TrainingState] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"TrainingState(epoch {self.epoch}, best {self.best_epoch}, score {self.best_score:.4f})"


def save_state(
    path: Path, identity: str, settings: Settings, state: TrainingState, learner: Learner, descents: Sequence[Descent]
) -> None:
    """Write the state of a training, atomically.

    Args:
        path: of the file. identity: of the training. settings: of the training, for errors of another one.
        state: after an epoch; gets the states of `learner` and `descents`.

    Raises:
        OSError: cannot be written.
    """
    state.learner, state.descents = learner.state_dict(), [each.state_dict() for each in descents]
    buffer = io.BytesIO()  # torch's own writer hides the error of a full disk
    content = {name: value for name, value in vars(state).items() if name != "by_length"}
    threads = torch.get_num_threads()
    about = {"version": STATE_VERSION, "identity": identity, "settings": settings.to_dict(), "threads": threads}
    torch.save({**about, **content}, buffer)
    with replacing(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def resumed(
    path: Path | None, identity: str, settings: Settings, learner: Learner, descents: Sequence[Descent]
) -> TrainingState:
    """The state that a file holds, with `learner` and `descents` set to it; a new one without a file.

    Args:
        path: of the file, if any. identity: that the state must have. settings: of this training.

    Raises:
        FormatError: corrupt, or newer. MismatchError: the state of another training, or on other threads.
    """
    if path is None or not path.exists():
        return TrainingState()
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        version, found, given = content.pop("version"), content.pop("identity"), content.pop("settings", None)
    except Exception as error:  # torch raises many types for a corrupt file
        kind = type(error).__name__
        problem = f"corrupt or truncated, or not a training state ({kind})."
        raise FormatError(problem, file=path, hint="Delete it to train from the beginning.") from None
    if version > STATE_VERSION:
        raise FormatError(
            f"written in state version {version}; this multibit reads up to {STATE_VERSION}.",
            file=path,
            field="version",
            hint="Upgrade multibit to resume it.",
        )
    if found != identity:
        problem = f"belongs to a training {_difference(given, settings.to_dict())}."
        raise MismatchError(problem, file=path, hint="Choose another folder or delete it.")
    threads, here = content.pop("threads", None), torch.get_num_threads()
    if threads not in (None, here) and learner.model.device.type == "cpu":  # sums are rounded differently
        problem = f"belongs to a training with other settings: threads {threads} there, {here} now."
        raise MismatchError(problem, file=path, hint="Choose another folder or delete it.")
    if version < 3:  # one optimiser, on its own
        content["descents"] = [{name: content.pop(name) for name in ("optimizer", "schedule")}]
    state = TrainingState(**content)
    learner.load_state_dict(state.learner)
    state.average = {name: tensor.to(learner.model.device) for name, tensor in state.average.items()}
    for descent, saved in zip(descents, state.descents, strict=True):
        descent.load_state_dict(saved)
    return state


def _difference(found: Mapping[str, Any] | None, own: Mapping[str, Any]) -> str:
    """How the training of a state differs from this one; before version 5 its settings were not stored."""
    if found is None:
        return "with other settings or data"
    if found.keys() != own.keys():
        return "of another method"
    changed = [f"{name} {found[name]} there, {own[name]} now" for name in own if found[name] != own[name]]
    return f"with other settings: {'; '.join(changed)}" if changed else "of other data or of another method"
