"""The training loop. It sees training pairs and a score function, never query or database items."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multibit.codes.items import MODALITIES
from multibit.config import EpochSettings
from multibit.errors import ConfigError
from multibit.features.pairs import Pairs
from multibit.files import fingerprint
from multibit.hashing.averaging import follow, kept_weights, replaced
from multibit.hashing.code_model import CodeModel, token_batch
from multibit.hashing.learner import Batch, Learner, require_two
from multibit.hashing.state import TrainingState, resumed, save_state
from multibit.progress import track

Score = Callable[[CodeModel], float]
"""Quality of a model on validation data, larger is better."""

SAVING = 20  # a state is written at most every so many times as long as writing it takes


def fit(
    learner: Learner,
    training: Pairs,
    settings: EpochSettings,
    score: Score | None,
    *,
    measure: str = "mAP",
    selection: str = "",
    state_file: Path | None = None,
    until: int | None = None,
    save_every: float = 3.0,
    label: str = "Training",
) -> TrainingState:
    """Train a learner and set what it keeps to the best epoch.

    Args:
        learner: made from the training pairs, on the device to train on.
        training: n >= 2 pairs. settings: of the training.
        score: quality after each epoch; the best epoch is kept. None keeps the last epoch.
        measure: what the score is, in the history and in the progress bar.
        selection: fingerprint of the data that `score` uses, so that scores of different data are never compared.
        state_file: of the training state; if it exists, training resumes from it, bit-identical on a CPU.
        until: stop after this epoch. The learning rates follow the schedule of all epochs, so that a later call resumes
            from the state file as if there had been no stop. A state after a later epoch is left as it is.
        save_every: minimum seconds between two writes of the state, more where a write takes long; 0 writes it after
            every epoch. label: of the progress bar.

    Returns:
        The state after the last epoch, with the history.

    Raises:
        DataError: fewer than two pairs. MismatchError: the state belongs to another training. FormatError: the state
            is corrupt. ConfigError: the loss or the codes are not finite.
    """
    if until is not None and until < 1:
        raise ConfigError(f"must be at least 1, got {until}.", option="until")
    require_two(training)
    device = learner.model.device
    source = _Source(training, device, tokens=learner.model.reads_tokens)
    if settings.batch_size < learner.smallest_batch:
        raise ConfigError(f"must be at least {learner.smallest_batch} for this method.", option="batch_size")
    sizes = _sizes(len(training), settings.batch_size, learner.smallest_batch)
    descents = learner.optimizers(settings.epochs * len(sizes))
    identity = fingerprint(settings.to_dict(), learner.identity, selection, *training.arrays)
    state = resumed(state_file, identity, settings, learner, descents)
    due = time.monotonic() + save_every
    last = settings.epochs if until is None else min(until, settings.epochs)
    with track(label, last, "epochs", done=min(state.epoch, last)) as advance:
        for epoch in range(state.epoch + 1, last + 1):
            begun = time.monotonic()
            learner.train()
            means = torch.zeros(len(learner.parts), device=device)
            rate = descents[0].rate
            with _seeded(settings.seed, epoch, device):  # dropout and sampling depend only on seed and epoch
                learner.start_epoch(epoch)
                for rows, text_rows in _batches(training, settings, epoch, learner.smallest_batch):
                    means += learner.step(source.take(rows, text_rows, epoch), descents) * (len(rows) / sum(sizes))
                learner.end_epoch(epoch)
            state.epoch = epoch
            _record(state, learner.parts, means, rate)
            if learner.averaging:
                follow(state.average, kept_weights(learner), learner.averaging, epoch)
            with replaced(learner, state.average):
                _require_codes(learner.model, training, epoch)
                _keep_best(state, learner, None if score is None else score(learner.model), measure)
            state.seconds += time.monotonic() - begun
            advance(1, note=_note(state, measure))
            if state_file and (time.monotonic() >= due or epoch == last):
                begun = time.monotonic()
                save_state(state_file, identity, settings, state, learner, descents)
                written = time.monotonic()
                due = written + (max(save_every, SAVING * (written - begun)) if save_every else 0)
    learner.load_state_dict(state.best, strict=False)
    learner.eval()
    return state


class _Source:
    """The training items on the device; tokens are read batch by batch."""

    def __init__(self, training: Pairs, device: torch.device, *, tokens: bool) -> None:
        self._device = device
        self._image, self._text = (torch.from_numpy(each).to(device) for each in (training.image, training.text))
        self._labels = torch.from_numpy(training.labels).to(device, torch.float32)
        self._tokens = (training.image_tokens, training.text_tokens) if tokens else (None, None)

    def take(self, rows: Tensor, text_rows: Tensor, epoch: int) -> Batch:
        """Items of one step, each with one of its texts."""
        image_tokens, text_tokens = (
            None if tokens is None else token_batch(tokens.take(chosen.numpy()), self._device)
            for tokens, chosen in zip(self._tokens, (rows, text_rows), strict=True)
        )
        image, text, labels = self._image[rows], self._text[text_rows], self._labels[rows]
        return Batch(rows.to(self._device), image, text, labels, epoch, image_tokens, text_tokens)


def _sizes(count: int, batch_size: int, smallest: int) -> list[int]:
    """Sizes of the batches of an epoch."""
    sizes = [min(batch_size, count - start) for start in range(0, count, batch_size)]
    return [size for size in sizes if size >= smallest]


def _batches(training: Pairs, settings: EpochSettings, epoch: int, smallest: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled rows of an epoch, and one text row of each; depends only on seed and epoch."""
    generator = np.random.default_rng([settings.seed, epoch])
    order = generator.permutation(len(training))
    counts = np.diff(training.offsets)
    text_rows = training.offsets[:-1] + (generator.random(len(training)) * counts).astype(np.int64)
    for number, size in enumerate(_sizes(len(order), settings.batch_size, smallest)):
        rows = order[number * settings.batch_size :][:size]
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


def _record(state: TrainingState, parts: Sequence[str], means: Tensor, rate: float) -> None:
    """Append the epoch to the history."""
    values = dict(zip(parts, means.tolist(), strict=True))
    if not np.isfinite(values["total"]):
        raise ConfigError(
            f"the loss is {values['total']} in epoch {state.epoch}.", option="learning_rate", hint=_DIVERGED
        )
    state.history.append({"epoch": state.epoch, **values, "learning_rate": rate})


def _require_codes(model: CodeModel, training: Pairs, epoch: int) -> None:
    """Refuse an epoch whose codes are not finite, which the loss would show only with the next batch."""
    for modality in MODALITIES:
        tokens = training.tokens(modality)
        first = None if tokens is None else tokens.take([0, 1])
        if not np.isfinite(model.encode(getattr(training, modality)[:2], modality, first)).all():
            raise ConfigError(
                f"the {modality} codes are not finite after epoch {epoch}.", option="learning_rate", hint=_DIVERGED
            )


def _keep_best(state: TrainingState, learner: Learner, score: float | None, measure: str) -> None:
    """Keep the weights if they score better than all earlier epochs; always keep them without a score."""
    if score is not None:
        state.history[-1][f"validation_{measure}"] = score
    if score is None or score > state.best_score:
        state.best_score, state.best_epoch = state.best_score if score is None else score, state.epoch
        state.best = {name: tensor.cpu().clone() for name, tensor in kept_weights(learner).items()}


def _note(state: TrainingState, measure: str) -> str:
    last = state.history[-1]
    loss = f"loss {last['total']:.3f}"
    if f"validation_{measure}" not in last:
        return loss
    return f"{loss}, {measure} {last[f'validation_{measure}']:.3f} (best {state.best_score:.3f})"
