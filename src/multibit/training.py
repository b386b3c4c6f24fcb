"""Training pairs -> trained model -> codes: what a run folder keeps, in memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from multibit.codes import Codes
from multibit.config import Config
from multibit.data import FeatureStore, Pairs
from multibit.data.features import row_numbers
from multibit.data.ray_engine import check_engine, run_on_ray
from multibit.errors import ConfigError, DataError
from multibit.evaluation.protocol import CodedPairs, selection_score
from multibit.files import fingerprint
from multibit.hashing.model import ENCODE_ROWS, MODALITIES, HashModel
from multibit.hashing.targets import build_targets
from multibit.hashing.train import TrainingState, build_model, fit
from multibit.progress import progress
from multibit.relation import RelationTeacher, teacher_class


@dataclass(frozen=True, eq=False)
class Training:
    """What `train` returns.

    Attributes:
        model: at its best epoch. teacher: that it learned from. config: the settings.
        state: history of all parts of the objective and of the selection score.
    """

    model: HashModel
    teacher: RelationTeacher
    config: Config
    state: TrainingState


def train(
    training: Pairs,
    validation: Pairs | None = None,
    config: Config | None = None,
    *,
    device: str = "cpu",
    state_file: Path | None = None,
    save_every: float = 3.0,
) -> Training:
    """Build the relation teacher, train one nested model, keep its best epoch.

    Nothing but these pairs can reach the model. The best epoch is that of the largest validation mAP (validation
    queries against training pairs), averaged over both directions and all lengths; without validation pairs the last
    epoch is kept.

    Args:
        training: n >= 2 pairs. validation: to select the epoch. config: the defaults when None.
        device: "cpu" or "cuda". state_file: keeps the state, so that a killed training goes on from there.
        save_every: least seconds between two writes of the state.

    Raises:
        DataError: fewer than two pairs, no label among them, or a value that is not finite. ConfigError: a setting out
            of range, or no such device. MismatchError, FormatError: the state file is of another training, or torn.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> labels = np.eye(2, dtype=np.uint8)[np.arange(8) % 2]
        >>> noisy = [(labels + rng.normal(0, 0.1, labels.shape)).astype(np.float32) for _ in range(2)]
        >>> pairs = Pairs(*noisy, np.arange(9), labels)
        >>> small = Config(lengths=(4, 8), scales=2, hidden=16, dimension=8, epochs=3)
        >>> result = train(pairs, pairs, small)
        >>> encode(result.model, pairs).image
        Codes(8 items, 8 bits)
    """
    settings = Config() if config is None else config
    teacher = teacher_class(settings.teacher).fit(
        training.labels, settings.alpha, settings.eta, settings.scales, settings.epsilon
    )
    targets = build_targets(teacher, training.labels)
    model = build_model(training, teacher, settings).to(check_device(device))

    def score(current: HashModel) -> float:
        assert validation is not None  # else it is not used
        return selection_score(encode(current, validation), encode(current, training), settings.lengths)

    if validation is None or not len(validation):
        state = fit(model, targets, training, settings, None, state_file=state_file, save_every=save_every)
        return Training(model.to("cpu"), targets.finished(), settings, state)
    if validation.labels.shape[1] != training.labels.shape[1]:
        columns = validation.labels.shape[1], training.labels.shape[1]
        raise DataError(f"labels: {columns[0]} columns for validation, {columns[1]} for training.")
    if not (validation.labels.astype(np.int64) @ training.labels.T.astype(np.int64)).any():
        raise DataError(
            f"validation: none of the {len(validation)} rows shares a label with a training row, so no epoch can be "
            "selected by them. Take more validation rows, or none: then the last epoch is kept."
        )
    selection = fingerprint(validation.image, validation.text, validation.offsets, validation.labels)
    state = fit(
        model, targets, training, settings, score, selection=selection, state_file=state_file, save_every=save_every
    )
    return Training(model.to("cpu"), targets.finished(), settings, state)


def encode(model: HashModel, pairs: Pairs) -> CodedPairs:
    """Codes of both modalities; an item with several texts is encoded by their mean."""
    return CodedPairs(
        Codes.from_signs(model.encode(pairs.image, "image")),
        Codes.from_signs(model.encode(pairs.mean_text, "text")),
        pairs.labels,
    )


def encode_store(
    model: HashModel,
    store: FeatureStore,
    rows: ArrayLike | None = None,
    *,
    engine: str = "local",
    workers: int = 2,
) -> CodedPairs:
    """Codes of the items of a store, of which some thousand rows at a time are in memory.

    Args:
        model: N features -> codes. store: the items. rows: of the items that are encoded, or a mask; all when None.
        engine: "local", or "ray" for the machines of a Ray cluster that all see the store; the codes are the same.
        workers: of Ray.

    Raises:
        DataError: a value that is not finite, or features of another length. ConfigError: no such engine.
            MissingExtraError, MultibitError: as `run_on_ray`.
    """
    check_engine(engine)
    chosen = np.arange(len(store)) if rows is None else row_numbers(rows, len(store))
    starts = range(0, max(len(chosen), 1), ENCODE_ROWS)
    work = partial(_encode_block, model, store, chosen)
    results = run_on_ray(work, starts, workers) if engine == "ray" else map(work, starts)
    blocks = []
    with progress("Encoding features", len(chosen), "items") as advance:
        for block in results:
            blocks.append(block)
            advance(len(block))
    image, text = (Codes.concatenate([block.codes(modality) for block in blocks]) for modality in MODALITIES)
    return CodedPairs(image, text, store.dataset.labels[chosen])


def _encode_block(model: HashModel, store: FeatureStore, rows: NDArray[np.int64], start: int) -> CodedPairs:
    """Those rows that `HashModel.encode` passes through the network together, so that sums are rounded alike."""
    return encode(model, store.take(rows[start : start + ENCODE_ROWS]))


def check_device(device: str) -> str:
    """The device, if this machine has it.

    Raises:
        ConfigError: unknown, or not on this machine.
    """
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"device: must be cpu or cuda, got {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda was asked for, but torch sees no GPU here. Use cpu.")
    return device
