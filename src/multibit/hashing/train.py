"""Training: pairs -> model of a method, at the best epoch on validation data."""

from __future__ import annotations

import contextlib
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multibit.codes.items import DIRECTIONS
from multibit.config import EpochSettings, Settings
from multibit.errors import ConfigError, DataError, SpeedNote, counted, require_kind
from multibit.evaluation.pair_recall import count_own
from multibit.evaluation.protocol import selection_score
from multibit.features import Pairs
from multibit.files import fingerprint
from multibit.hashing.code_model import CodeModel, check_device
from multibit.hashing.encode import encode
from multibit.hashing.learner import require_full_batch, require_two, require_unrelated
from multibit.hashing.lengths import PerLength
from multibit.hashing.loop import fit
from multibit.hashing.methods import Method, choose_method, method_of, pooled_variant
from multibit.hashing.processes import train_in_processes
from multibit.hashing.state import TrainingState
from multibit.hashing.threads import on_threads
from multibit.progress import showing
from multibit.relation import RelationTeacher

MAX_THREADS = 1024
RECALLED = (1, 5, 10)  # numbers of first ranks in which a method without labels looks for the own counterpart


@dataclass(frozen=True, eq=False)
class Training:
    """Result of `train`.

    Attributes:
        model: at its best epoch. teacher: the relation teacher; None for a method without one. config: the settings.
        state: with the history of all parts of the objective and of the selection score. method: that was trained.
        threads: of torch.
    """

    model: CodeModel
    teacher: RelationTeacher | None
    config: Any
    state: TrainingState
    method: Method
    threads: int = 1

    def __repr__(self) -> str:
        return f"Training({self.model.bits} bits, best epoch {self.state.best_epoch} of {self.state.epoch})"


def train(
    training: Pairs,
    validation: Pairs | None = None,
    config: Settings | None = None,
    *,
    method: str | None = None,
    preset: str | None = None,
    device: str = "cpu",
    state_file: Path | str | None = None,
    until: int | None = None,
    save_every: float = 3.0,
    workers: int = 1,
    threads: int = 1,
    progress: bool = False,
    **settings: Any,
) -> Training:
    """Train a method, by default one nested model that follows a relation teacher, and keep its best epoch.

    The best epoch has the largest validation mAP (validation pairs as queries, training pairs as database), averaged
    over both directions and all lengths; of a method that reads no labels the largest mean recall at 1, 5 and 10 of
    the own counterpart among the validation pairs. Without validation pairs the last epoch is kept.

    Args:
        training: n >= 2 pairs. validation: to select the epoch.
        config: the complete settings; those of `method` and `preset`, changed by `settings`, when None.
        method: name of the method; `METHODS` lists all. With a config of MultiBit it can be left out. When None,
            "multibit-plus", "multibit-free" where no training pair has a label, or with the preset of one of the
            paper's datasets the paper's method, "multibit".
        preset: the paper's settings for a dataset, one of `PRESETS`.
        device: "cpu" or "cuda". state_file: of the training state, from which an interrupted training is resumed.
        until: stop after this epoch; with a state file, a later call resumes as if there had been no stop.
        save_every: minimum seconds between two writes of the state. workers: processes that train the models of a
            method of one length side by side; more than 1 needs the usual `if __name__ == "__main__":` in a script.
        threads: of torch, for each model. Sums are rounded differently on another number of threads, so models differ
            as between seeds; and next to other work several threads are slower than one.
        progress: show a bar on standard error. settings: of the method, such as epochs=20.

    Raises:
        DataError: fewer than two pairs, no label among them, or a value that is not finite. ConfigError: a setting out
            of range, an unavailable device, or `config` together with a preset or settings. MismatchError: the
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
    for name, pairs in (("training", training), ("validation", validation)):
        if pairs is not None:
            require_kind(pairs, Pairs, name, "Take them from features, by a split: store.take(split.train).")
    require_two(training)
    chosen, resolved = _resolve(config, method, preset, settings, labels=bool(training.labels.any()))
    chosen.require_storable(resolved)
    check_device(device)
    if not 1 <= threads <= MAX_THREADS:
        raise ConfigError(f"must be in 1..{MAX_THREADS:,}, got {threads:,}.", option="threads")
    state_path = None if state_file is None else Path(state_file)
    _note_precision(resolved, device)
    work = partial(_train_one, chosen, training, validation, device=device, until=until, save_every=save_every)
    with showing(progress), on_threads(threads):
        if chosen.lengths != "one":
            return work(resolved, state_path)
        return _train_lengths(chosen, resolved, work, state_path, workers)


def _note_precision(settings: Settings, device: str) -> None:
    """Say that bfloat16 takes longer than single precision where the processor computes it in software."""
    if device != "cpu" or getattr(settings, "precision", "") != "bfloat16":
        return
    known: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # of torch 2.10 and later
    found = [known[name] for name in ("avx512_bf16", "amx_bf16", "bf16") if name in known]
    if found and not any(found):
        problem = "this processor has no instructions for bfloat16, so training takes several times as long"
        warnings.warn(f"{problem} as with precision=float32.", SpeedNote, stacklevel=3)


def state_files(path: Path) -> list[Path]:
    """The training states that belong to a name: its own, and one for each length of a method of one length.

    Args:
        path: as for `train`.
    """
    return sorted([*path.parent.glob(path.name), *path.parent.glob(f"{path.stem}-*{path.suffix}")])


def configure(
    method: str | None, preset: str | None, settings: Mapping[str, Any], *, labels: bool = True
) -> tuple[Method, Settings]:
    """A method and its settings: those of a preset, changed by the method, then by single settings.

    Args:
        method: name; chosen by the preset when None. preset: "default" when None. settings: override both.
        labels: whether any training item has a label.

    Raises:
        ConfigError: an unknown method, preset or setting, or one out of range.
    """
    chosen = choose_method(method, preset, labels=labels)
    return chosen, chosen.configure(preset, None, settings)


def _resolve(
    config: Settings | None, method: str | None, preset: str | None, settings: Mapping[str, Any], *, labels: bool
) -> tuple[Method, Settings]:
    if config is None:
        return configure(method, preset, settings, labels=labels)
    if preset is not None or settings:
        given = ", ".join([*(["preset"] if preset else []), *settings])
        raise ConfigError(f"got a complete config and {given}: pass only one of them.", option="config")
    return method_of(config, method), config


def _train_one(
    method: Method,
    training: Pairs,
    validation: Pairs | None,
    settings: Settings,
    state_file: Path | None,
    *,
    device: str,
    until: int | None,
    save_every: float,
) -> Training:
    """One model for all lengths of the settings."""
    _require_inputs(method, training, validation)
    score, selection = _selection(method, training, validation, settings)
    if method.fit is not None:
        begun = time.monotonic()
        model = method.fit(training, settings)
        state = _fitted(time.monotonic() - begun, None if score is None else score(model))
        return Training(model, None, settings, state, method, torch.get_num_threads())
    assert method.learner is not None and isinstance(settings, EpochSettings)
    if method.learner.needs_unrelated:
        require_unrelated(training)
    if method.learner.full_batches:
        require_full_batch(training, settings)
    learner = method.learner(training, settings).to(check_device(device))
    label = "Training" if method.lengths != "one" else f"Training {settings.code_bits} bits"
    state = fit(
        learner, training, settings, score, measure=method.measure, selection=selection, state_file=state_file,
        until=until, save_every=save_every, label=label,
    )  # fmt: skip
    return Training(learner.model.to("cpu"), learner.teacher, settings, state, method, torch.get_num_threads())


def _train_lengths(
    method: Method, settings: Settings, work: Callable[..., Training], state_file: Path | None, workers: int
) -> Training:
    """One model for each length."""
    each = [settings.override({"lengths": (bits,)}) for bits in settings.lengths]
    ahead = workers > 1 and len(each) > 1 and method.fit is None
    with contextlib.ExitStack() as stack:
        if ahead and state_file is None:
            state_file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "state.pt"
        files = [None if state_file is None else _of_length(state_file, bits) for bits in settings.lengths]
        tasks = list(zip(each, files, strict=True))
        if ahead:
            train_in_processes(work, tasks, workers)
        results = [work(*task) for task in tasks]
    states = {bits: result.state for bits, result in zip(settings.lengths, results, strict=True)}
    state = TrainingState(
        results[-1].state.epoch,
        results[-1].state.best_epoch,
        float(np.mean([each.best_score for each in states.values()])),
        history=[{"bits": bits, **row} for bits, each in states.items() for row in each.history],
        seconds=sum(each.seconds for each in states.values()),
        by_length=states,
    )
    model = PerLength.join([result.model for result in results])
    return replace(results[-1], model=model, config=settings, state=state)


def _of_length(path: Path, bits: int) -> Path:
    return path.with_name(f"{path.stem}-{bits}{path.suffix}")


def _fitted(seconds: float, score: float | None) -> TrainingState:
    """The state of a closed form: one epoch without a loss."""
    row = {"epoch": 1.0, "total": 0.0, "learning_rate": 0.0}
    if score is None:
        return TrainingState(1, 1, history=[row], seconds=seconds)
    return TrainingState(1, 1, score, history=[{**row, "validation_mAP": score}], seconds=seconds)


def _require_inputs(method: Method, training: Pairs, validation: Pairs | None) -> None:
    """Refuse features without the tokens that a method reads.

    Raises:
        DataError: names the method that reads none.
    """
    for pairs in (training, validation):
        if method.inputs == "tokens" and pairs is not None and len(pairs) and not pairs.has_tokens:
            raise DataError(
                f"the method {method.name!r} reads the tokens of images and texts, but the features have none.",
                field="tokens",
                hint=f"Extract the features with tokens, or train {pooled_variant(method).name}, which reads none.",
            )


def _selection(
    method: Method, training: Pairs, validation: Pairs | None, settings: Settings
) -> tuple[Callable[[CodeModel], float] | None, str]:
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
    if not method.labels:
        return partial(_recall, validation=validation, lengths=settings.lengths), fingerprint(*validation.arrays)
    if not training.labels.any():
        raise DataError(
            "no training item has a label.",
            option="training",
            field="labels",
            hint="Label the items with `multibit label`, or train with the method multibit-free.",
        )
    if not (validation.labels.astype(np.int64) @ training.labels.T.astype(np.int64)).any():
        raise DataError(
            f"no row shares a label with a training row ({counted(len(validation), 'row', 'rows')}), so they cannot "
            "select an epoch.",
            option="validation",
            hint="Use more validation rows, or none, which keeps the last epoch.",
        )

    def score(model: CodeModel) -> float:
        return selection_score(encode(model, validation), encode(model, training), settings.lengths)

    return score, fingerprint(*validation.arrays)


def _recall(model: CodeModel, validation: Pairs, lengths: Sequence[int]) -> float:
    """Mean recall at `RECALLED` of the own counterpart among the validation pairs, over directions and lengths."""
    coded = encode(model, validation)
    counts = [
        count_own(coded.at(bits).codes(asked), coded.at(bits).codes(searched), bits)
        for asked, searched in DIRECTIONS.values()
        for bits in lengths
    ]
    return float(np.mean([each.recall(k) for each in counts for k in RECALLED]))
