"""Training: pairs -> relation teacher -> trained model, at the best epoch on validation data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multibit.config import Config
from multibit.errors import ConfigError, DataError
from multibit.evaluation.protocol import selection_score
from multibit.features import Pairs
from multibit.files import fingerprint
from multibit.hashing.encode import encode
from multibit.hashing.loop import TrainingState, build_model, fit
from multibit.hashing.methods import choose_method
from multibit.hashing.model import HashModel, check_device
from multibit.hashing.targets import build_targets
from multibit.progress import showing
from multibit.relation import RelationTeacher, teacher_class


@dataclass(frozen=True, eq=False)
class Training:
    """Result of `train`.

    Attributes:
        model: at its best epoch. teacher: the relation teacher. config: the settings.
        state: with the history of all parts of the objective and of the selection score.
    """

    model: HashModel
    teacher: RelationTeacher
    config: Config
    state: TrainingState

    def __repr__(self) -> str:
        return f"Training({self.model.bits} bits, best epoch {self.state.best_epoch} of {self.state.epoch})"


def train(
    training: Pairs,
    validation: Pairs | None = None,
    config: Config | None = None,
    *,
    method: str | None = None,
    preset: str | None = None,
    device: str = "cpu",
    state_file: Path | str | None = None,
    until: int | None = None,
    save_every: float = 3.0,
    progress: bool = False,
    **settings: Any,
) -> Training:
    """Build the relation teacher, train one nested model, and keep its best epoch.

    The best epoch has the largest validation mAP (validation pairs as queries, training pairs as database), averaged
    over both directions and all lengths; without validation pairs the last epoch is kept.

    Args:
        training: n >= 2 pairs. validation: to select the epoch.
        config: the complete settings; those of `method` and `preset`, changed by `settings`, when None.
        method: name of the method; `METHODS` lists all. When None, "multibit-plus", or with the preset of one of the
            paper's datasets the paper's method, "multibit".
        preset: the paper's settings for a dataset, one of `PRESETS`.
        device: "cpu" or "cuda". state_file: of the training state, from which an interrupted training is resumed.
        until: stop after this epoch; with a state file, a later call resumes as if there had been no stop.
        save_every: minimum seconds between two writes of the state. progress: show a bar on standard error.
        settings: of `Config`, such as epochs=20.

    Raises:
        DataError: fewer than two pairs, no label among them, or a value that is not finite. ConfigError: a setting out
            of range, an unavailable device, or `config` together with a method, preset or settings. MismatchError: the
            state file belongs to another training. FormatError: it is corrupt.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = np.eye(2, dtype=np.uint8)[np.arange(8) % 2]
        >>> noisy = [(labels + rng.normal(0, 0.1, labels.shape)).astype(np.float32) for _ in range(2)]
        >>> pairs = Pairs(*noisy, np.arange(9), labels)
        >>> result = train(pairs, pairs, lengths=(4, 8), scales=2, hidden=16, dimension=8, epochs=3)
        >>> encode(result.model, pairs).image
        Codes(8 items, 8 bits)
    """
    if config is not None and (method is not None or preset is not None or settings):
        given = ", ".join([*(["method"] if method else []), *(["preset"] if preset else []), *settings])
        raise ConfigError(f"got a complete config and {given}: pass only one of them.", option="config")
    resolved = configure(method, preset, settings) if config is None else config
    teacher = teacher_class(resolved.teacher).fit(
        training.labels, resolved.alpha, resolved.eta, resolved.scales, resolved.epsilon, resolved.teacher_alpha
    )
    own_scales = resolved.scale_teacher == "own"
    targets = build_targets(teacher, training.labels, own_scales)
    without = {"scale_weight": 0.0} if own_scales and not teacher.has_scales else {}
    model = build_model(training, teacher, resolved).to(check_device(device))
    score, selection = _selection(training, validation, resolved)
    with showing(progress):
        state = fit(
            model, targets, training, resolved.override(without), score, selection=selection,
            state_file=None if state_file is None else Path(state_file), until=until, save_every=save_every,
        )  # fmt: skip
    return Training(model.to("cpu"), targets.finished(), resolved, state)


def configure(method: str | None, preset: str | None, settings: Mapping[str, Any]) -> Config:
    """The settings of a preset, changed by a method, then by single settings.

    Args:
        method: name; chosen by the preset when None. preset: "default" when None. settings: override both.

    Raises:
        ConfigError: an unknown method, preset or setting, one out of range, or a method of several models.
    """
    chosen = choose_method(method, preset)
    if chosen.separate:
        raise ConfigError(
            f"{chosen.name!r} is one model per length.", option="method", hint="Train one for each: lengths=(16,), ..."
        )
    return chosen.config(Config.preset(preset or "default"), **settings)


def _selection(
    training: Pairs, validation: Pairs | None, config: Config
) -> tuple[Callable[[HashModel], float] | None, str]:
    """The score that selects the epoch, and the fingerprint of the data that it uses.

    Raises:
        DataError: validation pairs that cannot select an epoch.
    """
    if validation is None or not len(validation):
        return None, ""
    if validation.labels.shape[1] != training.labels.shape[1]:
        columns = validation.labels.shape[1], training.labels.shape[1]
        raise DataError(
            f"{columns[0]} label columns, the training pairs have {columns[1]}.", option="validation", field="labels"
        )
    if not (validation.labels.astype(np.int64) @ training.labels.T.astype(np.int64)).any():
        raise DataError(
            f"none of the {len(validation)} rows shares a label with a training row, so they cannot select an epoch.",
            option="validation",
            hint="Use more validation rows, or none, which keeps the last epoch.",
        )

    def score(model: HashModel) -> float:
        return selection_score(encode(model, validation), encode(model, training), config.lengths)

    return score, fingerprint(validation.image, validation.text, validation.offsets, validation.labels)
