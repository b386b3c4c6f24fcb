"""Selection of alpha and eta on validation pairs: a grid of trainings, of which hopeless ones are stopped early.

All settings are trained for a share of their epochs, the worse half is stopped, and the others continue; see
`survivors` for the exact rule. Learning rates follow the schedule of all epochs, so a setting that is never stopped is
trained as by `train`, bit for bit on a CPU.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from multibit.codes.items import length_near
from multibit.config import GRID_ALPHA, GRID_ETA, Config, Settings
from multibit.errors import ConfigError, DataError
from multibit.evaluation.protocol import selection_score
from multibit.features import Pairs
from multibit.hashing.encode import encode
from multibit.hashing.methods import METHODS, choose_method
from multibit.hashing.train import train
from multibit.progress import showing, track

SHARES = (1 / 8, 1 / 4, 1 / 2, 1)
"""Shares of the epochs after which settings are compared."""

MARGIN = 0.001
"""Difference of mean mAP that never stops a setting: 0.1 percentage points."""


class Setting(NamedTuple):
    """One cell of the grid."""

    alpha: float
    eta: float

    def __str__(self) -> str:
        return f"alpha {self.alpha}, eta {self.eta}"


Scores = dict[Setting, tuple[float, ...]]
"""Setting -> its score at each stage that it reached, in the order of the grid."""


@dataclass(frozen=True)
class Choice:
    """What `select` returns.

    Attributes:
        bits: code length of the scores. stages: epochs after which settings are compared, the last is all of them.
        scores: of each setting, mean mAP of both directions in [0, 1] on validation data.
    """

    bits: int
    stages: tuple[int, ...]
    scores: Scores

    def __repr__(self) -> str:
        return f"Choice({self.best}, {100 * self.best_score:.2f} % at {self.bits} bits, of {len(self.scores)} settings)"

    @property
    def best(self) -> Setting:
        """The setting with the best score among those that were trained to the end; the first of equals."""
        finished = [setting for setting, scores in self.scores.items() if len(scores) == len(self.stages)]
        return max(finished, key=lambda setting: self.scores[setting][-1])

    @property
    def best_score(self) -> float:
        """The score of the best setting."""
        return self.scores[self.best][-1]

    def epochs(self, setting: Setting) -> int:
        """Epochs after which a setting was stopped, or all of them."""
        return self.stages[len(self.scores[setting]) - 1]


def grid_of(alpha: Sequence[float] = GRID_ALPHA, eta: Sequence[float] = GRID_ETA) -> list[Setting]:
    """All pairs of the values, row by row as in the paper's table.

    Raises:
        ConfigError: no value, a repeated one, or one that is not a positive number.

    Example:
        >>> grid_of([0.9], [0.1, 0.2])
        [Setting(alpha=0.9, eta=0.1), Setting(alpha=0.9, eta=0.2)]
    """
    for name, values in (("alpha", alpha), ("eta", eta)):
        if not values or len(set(values)) < len(values):
            found = ", ".join(map(str, values)) or "none"
            raise ConfigError(f"need one or more different values, got {found}.", option=name)
        for value in values:
            Config().override({name: value})
    return [Setting(float(a), float(e)) for e in eta for a in alpha]


def stages_of(epochs: int, *, full: bool = False) -> tuple[int, ...]:
    """Epochs after which settings are compared: an eighth, a quarter, a half and all, rounded up.

    Args:
        epochs: of a whole training. full: only after all, so no setting is stopped early.

    Example:
        >>> stages_of(100), stages_of(2), stages_of(100, full=True)
        ((13, 25, 50, 100), (1, 2), (100,))
    """
    return tuple(sorted({math.ceil(share * epochs) for share in (SHARES[-1:] if full else SHARES)}))


def survivors(scores: Mapping[Setting, float]) -> list[Setting]:
    """The settings that continue: the better half, rounded up, and all within `MARGIN` of the worst of that half.

    So equal scores share their fate, and the order of the grid does not matter. A setting that is in the better half
    at every stage, or at most `MARGIN` below it, is never stopped.

    Example:
        >>> a, b, c, d = grid_of([0.3, 0.6, 0.9, 1.2], [0.2])
        >>> [s.alpha for s in survivors({a: 0.7, b: 0.8, c: 0.6995, d: 0.5})]
        [0.3, 0.6, 0.9]
    """
    limit = sorted(scores.values(), reverse=True)[(len(scores) - 1) // 2] - MARGIN
    return [setting for setting, score in scores.items() if score >= limit]


def halve(
    settings: Sequence[Setting],
    stages: Sequence[int],
    score: Callable[[Setting, int], float],
    stop: Callable[[Setting], None],
) -> Scores:
    """Successive halving.

    Args:
        settings: all of them. stages: epochs, ascending.
        score: setting, epochs -> score after as many epochs; called in order of the stages, then of the settings.
        stop: called with each setting that is not trained further.
    """
    scores: Scores = dict.fromkeys(settings, ())
    left = list(settings)
    for stage, epochs in enumerate(stages, start=1):
        with track(f"Stage {stage} of {len(stages)}, to epoch {epochs}", len(left), "settings") as advance:
            for setting in left:
                scores[setting] += (score(setting, epochs),)
                advance(note=f"{setting}: mAP {scores[setting][-1]:.4f}")
        compared, left = left, [] if epochs == stages[-1] else survivors({each: scores[each][-1] for each in left})
        for setting in compared:
            if setting not in left:
                stop(setting)
    return scores


def select(
    training: Pairs,
    validation: Pairs,
    config: Config | None = None,
    *,
    alpha: Sequence[float] = GRID_ALPHA,
    eta: Sequence[float] = GRID_ETA,
    full: bool = False,
    device: str = "cpu",
    folder: Path | str | None = None,
    earlier: Mapping[Setting, Sequence[float]] | None = None,
    keep: Callable[[Setting, float], None] | None = None,
    progress: bool = False,
) -> Choice:
    """Choose alpha and eta on validation data, as the paper does.

    Each setting is trained on the training pairs and scored by the mean mAP of both directions at the trained length
    nearest to 64 bits, validation queries against training pairs, at its best epoch so far; that epoch is the one that
    `train` selects, by the mean over all lengths. No query or database item can take part: none is passed.

    Args:
        training: n >= 2 pairs. validation: one or more pairs.
        config: the other settings; those of the default method when None.
        alpha, eta: values of the grid, the paper's when omitted. full: train every setting for all epochs.
        device: "cpu" or "cuda".
        folder: of the training states, from which an interrupted selection is resumed; a temporary one when None.
        earlier: scores of an interrupted selection, which are not computed again.
        keep: called with every new score. progress: show bars on standard error.

    Raises:
        ConfigError: a grid or settings that cannot be selected from, or no such device. DataError: no labels or no
            validation pairs; and as `train`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> labels = np.eye(2, dtype=np.uint8)[np.arange(8) % 2]
        >>> noisy = [(labels + rng.normal(0, 0.1, labels.shape)).astype(np.float32) for _ in range(2)]
        >>> pairs = Pairs(*noisy, np.arange(9), labels)
        >>> small = Config(lengths=(4, 8), scales=2, hidden=16, dimension=8, epochs=2)
        >>> choice = select(pairs, pairs, small, alpha=[0.3, 0.9], eta=[0.2])
        >>> choice.best.eta, choice.bits, choice.stages
        (0.2, 8, (1, 2))
    """
    config = choose_method().config() if config is None else config
    grid, stages, bits = grid_of(alpha, eta), stages_of(config.epochs, full=full), length_near(config.lengths)
    require_selectable(config)
    require_labels(bool(training.labels.any()))
    if not len(validation):
        raise DataError("no validation rows, so nothing can be selected.", option="validation")
    known = {setting: list(scores) for setting, scores in (earlier or {}).items()}

    with _states(folder) as states, showing(progress):

        def score(setting: Setting, epochs: int) -> float:
            stage = stages.index(epochs)
            if stage < len(known.get(setting, ())):
                return known[setting][stage]
            chosen = config.override(setting._asdict())
            run = partial(
                train, training, validation, chosen, device=device, state_file=state_of(setting), until=epochs
            )
            result = run()
            if result.state.epoch > epochs:  # a state whose earlier scores are not known
                stop(setting)
                result = run()
            found = selection_score(encode(result.model, validation), encode(result.model, training), [bits])
            if keep is not None:
                keep(setting, found)
            return found

        def state_of(setting: Setting) -> Path:
            return states / f"alpha-{setting.alpha}-eta-{setting.eta}.pt"

        def stop(setting: Setting) -> None:
            state_of(setting).unlink(missing_ok=True)

        return Choice(bits, stages, halve(grid, stages, score, stop))


def require_selectable(config: Settings, method: str = "") -> None:
    """Refuse settings under which alpha and eta change nothing.

    Args:
        config: of the trainings. method: its name, for the message.

    Raises:
        ConfigError: nothing follows the relation teacher.
    """
    if not _follows_graph(config):
        known = ", ".join(name for name, each in METHODS.items() if _follows_graph(each.config()))
        raise ConfigError(
            f"alpha and eta belong to the label graph, which {method or 'the method'} with its settings does not use.",
            option="method",
            hint=f"Choose a method with a relation teacher: {known}.",
        )


def require_labels(labelled: bool, features: Path | None = None) -> None:
    """Refuse to select without labels.

    Args:
        labelled: whether any training item has a label. features: their file, for the message.

    Raises:
        DataError: no training item has a label.
    """
    if not labelled:
        raise DataError(
            "alpha and eta belong to the label graph, but no training item has a label.",
            file=features,
            field="labels",
            hint="Label the items with `multibit label`, or train without labels by `multibit train`.",
        )


def _follows_graph(config: Settings) -> bool:
    return type(config) is Config and (config.aligned != "none" or config.scale_weight > 0)


@contextlib.contextmanager
def _states(folder: Path | str | None) -> Iterator[Path]:
    """The folder of the training states, a temporary one when None."""
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)
