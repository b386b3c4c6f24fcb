"""The training loop. It sees training pairs and a score function, never query or database items."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multibit.codes.items import MODALITIES
from multibit.config import Config
from multibit.errors import ConfigError, DataError, FormatError, MismatchError
from multibit.features.pairs import Pairs
from multibit.files import fingerprint, replacing
from multibit.hashing.bits import plan_blocks
from multibit.hashing.model import HashModel
from multibit.hashing.objective import Objective
from multibit.hashing.targets import Targets
from multibit.progress import track
from multibit.relation import RelationTeacher

Score = Callable[[HashModel], float]
"""Quality of a model on validation data, larger is better."""

Weights = dict[str, Tensor]
STATE_VERSION = 2
TEMPERATURE_STEP = 30  # learning rate of the temperatures, as a multiple of that of the weights


@dataclass
class TrainingState:
    """State of a training after an epoch: everything needed to resume it, and the best model so far.

    Attributes:
        epoch: finished epochs. best_epoch, best_score, best: the best model so far by the score.
        learner, optimizer, schedule: state dictionaries; the learner is the model with the trained parts of its targets
            and objective.
        history: one row per epoch: mean of each part of the objective, learning rate, validation mAP if scored.
    """

    epoch: int = 0
    best_epoch: int = 0
    best_score: float = float("-inf")
    best: Weights = field(default_factory=dict)
    learner: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)


def build_model(training: Pairs, teacher: RelationTeacher, config: Config) -> HashModel:
    """A new model for these features, initialised from the seed, with blocks allocated by the teacher's weights.

    Raises:
        ConfigError: the network does not fit into memory.
    """
    blocks = plan_blocks(teacher.rho, config)
    dimensions = training.image.shape[1], training.text.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        try:
            return HashModel(*dimensions, blocks, config.hidden, config.dimension, config.dropout, config.input_dropout)
        except RuntimeError as error:  # raised by torch when memory is low
            first = str(error).splitlines()[0]
            raise ConfigError(
                f"the network does not fit into memory ({first}).",
                option="hidden",
                hint="Reduce `hidden` or `dimension`.",
            ) from None


def fit(
    model: HashModel,
    targets: Targets,
    training: Pairs,
    config: Config,
    score: Score | None,
    *,
    selection: str = "",
    state_file: Path | None = None,
    until: int | None = None,
    save_every: float = 3.0,
) -> TrainingState:
    """Train `model`, and any parameters of `targets`, and set both to their best epoch.

    Args:
        model: from `build_model`, on the device to train on.
        targets: scores of a teacher that was fitted to the training labels.
        training: n >= 2 pairs. config: the settings.
        score: quality after each epoch; the best epoch is kept. None keeps the last epoch.
        selection: fingerprint of the data that `score` uses, so that scores of different data are never compared.
        state_file: of the training state; if it exists, training resumes from it, bit-identical on a CPU.
        until: stop after this epoch. The learning rates follow the schedule of all epochs, so that a later call resumes
            from the state file as if there had been no stop. A state after a later epoch is left as it is.
        save_every: minimum seconds between two writes of the state.

    Returns:
        The state after the last epoch, with the history.

    Raises:
        DataError: fewer than two pairs. MismatchError: the state belongs to another training. FormatError: the state
            is corrupt. ConfigError: the loss or the codes are not finite.
    """
    if len(training) < 2:
        raise DataError(f"need at least 2 pairs to rank, got {len(training)}.", option="training")
    if until is not None and until < 1:
        raise ConfigError(f"must be at least 1, got {until}.", option="until")
    device = model.device
    targets = targets.to(device)
    objective = Objective(config, model.blocks, tuple(targets.teacher.rho)).to(device)
    image, text = torch.from_numpy(training.image).to(device), torch.from_numpy(training.text).to(device)
    labels = torch.from_numpy(training.labels).to(device, torch.float32)
    learner = nn.ModuleDict({"model": model, "targets": targets, "objective": objective})
    optimizer = _optimizer(learner, config)
    steps = -(-len(training) // config.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=config.epochs * steps)
    arrays = training.image, training.text, training.offsets, training.labels
    identity = fingerprint(config.to_dict(), model.blocks, selection, *arrays)
    state = _resume(state_file, identity, learner, optimizer, schedule)
    saved = time.monotonic()
    last = config.epochs if until is None else min(until, config.epochs)
    with track("Training", last, "epochs", done=min(state.epoch, last)) as advance:
        for epoch in range(state.epoch + 1, last + 1):
            model.train()
            sums = torch.zeros(len(objective.names), device=device)
            rate = float(schedule.get_last_lr()[0])
            with _seeded(config.seed, epoch, device):  # dropout depends only on seed and epoch
                for rows, text_rows in _batches(training, config, epoch):
                    h_image = model(image[rows], "image")  # (b, B_max)
                    h_text = model(text[text_rows], "text")  # (b, B_max)
                    related = _related(labels[rows]) if config.standard_weight else None  # (b, b)
                    parts = objective(h_image, h_text, targets(rows), related)
                    pull = targets.pull()
                    loss = parts.total if pull is None else parts.total + pull
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
                    schedule.step()
                    sums += parts.values * (len(rows) / len(training))
            state.epoch = epoch
            _record(state, objective, sums, rate)
            _require_codes(model, training, epoch)
            _keep_best(state, learner, None if score is None else score(model))
            advance(1, note=_note(state))
            if state_file and (time.monotonic() - saved >= save_every or epoch == last):
                _save_state(state_file, identity, state, learner, optimizer, schedule)
                saved = time.monotonic()
    learner.load_state_dict(state.best)
    model.eval()
    return state


def _optimizer(learner: nn.ModuleDict, config: Config) -> torch.optim.Adam:
    """Adam, with a larger learning rate for the temperatures, which start far from their final values."""
    weights = [*learner["model"].parameters(), *learner["targets"].parameters()]
    groups: list[dict[str, Any]] = [{"params": weights}]
    if temperatures := list(learner["objective"].parameters()):
        groups.append({"params": temperatures, "lr": TEMPERATURE_STEP * config.learning_rate})
    return torch.optim.Adam(groups, lr=config.learning_rate, fused=True)


def _related(labels: Tensor) -> Tensor:
    """(b, b) 1.0 where two items share a label."""
    return (labels @ labels.T > 0).to(labels.dtype)


def _batches(training: Pairs, config: Config, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled rows of an epoch, and one text row of each; depends only on seed and epoch."""
    generator = np.random.default_rng([config.seed, epoch])
    order = generator.permutation(len(training))
    counts = np.diff(training.offsets)
    text_rows = training.offsets[:-1] + (generator.random(len(training)) * counts).astype(np.int64)
    for start in range(0, len(order), config.batch_size):
        rows = order[start : start + config.batch_size]
        yield torch.from_numpy(rows), torch.from_numpy(text_rows[rows])


class _seeded:  # noqa: N801 - reads as a statement
    """Seed torch for one epoch and restore the caller's random state."""

    def __init__(self, seed: int, epoch: int, device: torch.device) -> None:
        self._seed = int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
        self._fork = torch.random.fork_rng(devices=[] if device.type == "cpu" else [device])

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *error: Any) -> None:
        self._fork.__exit__(*error)


_DIVERGED = "Try a smaller `learning_rate` or larger temperatures."


def _record(state: TrainingState, objective: Objective, sums: Tensor, rate: float) -> None:
    """Append the epoch to the history."""
    values = dict(zip(objective.names, sums.tolist(), strict=True))
    if not np.isfinite(values["total"]):
        raise ConfigError(
            f"the loss is {values['total']} in epoch {state.epoch}.", option="learning_rate", hint=_DIVERGED
        )
    state.history.append({"epoch": state.epoch, **values, "learning_rate": rate})


def _require_codes(model: HashModel, training: Pairs, epoch: int) -> None:
    """Refuse an epoch whose codes are not finite, which the loss would show only with the next batch."""
    for modality in MODALITIES:
        if not np.isfinite(model.encode(getattr(training, modality)[:2], modality)).all():
            raise ConfigError(
                f"the {modality} codes are not finite after epoch {epoch}.", option="learning_rate", hint=_DIVERGED
            )


def _keep_best(state: TrainingState, learner: nn.Module, score: float | None) -> None:
    """Keep the weights if they score better than all earlier epochs; always keep them without a score."""
    if score is not None:
        state.history[-1]["validation_mAP"] = score
    if score is None or score > state.best_score:
        state.best_score, state.best_epoch = state.best_score if score is None else score, state.epoch
        state.best = {name: tensor.detach().cpu().clone() for name, tensor in learner.state_dict().items()}


def _note(state: TrainingState) -> str:
    last = state.history[-1]
    loss = f"loss {last['total']:.3f}"
    if "validation_mAP" not in last:
        return loss
    return f"{loss}, mAP {last['validation_mAP']:.3f} (best {state.best_score:.3f})"


def _save_state(
    path: Path, identity: str, state: TrainingState, learner: nn.Module, optimizer: Any, schedule: Any
) -> None:
    state.learner, state.optimizer, state.schedule = learner.state_dict(), optimizer.state_dict(), schedule.state_dict()
    buffer = io.BytesIO()  # torch's own writer hides the error of a full disk
    torch.save({"version": STATE_VERSION, "identity": identity, **vars(state)}, buffer)
    with replacing(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def _resume(path: Path | None, identity: str, learner: nn.Module, optimizer: Any, schedule: Any) -> TrainingState:
    if path is None or not path.exists():
        return TrainingState()
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        version, found = content.pop("version"), content.pop("identity")
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
        raise MismatchError(
            "belongs to a training with other settings or data.", file=path, hint="Choose another folder or delete it."
        )
    state = TrainingState(**content)
    learner.load_state_dict(state.learner)
    optimizer.load_state_dict(state.optimizer)
    schedule.load_state_dict(state.schedule)
    return state
