"""The selection folder: alpha and eta chosen on validation rows, with everything needed to repeat it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from multibit.codes.items import length_near
from multibit.config import GRID_ALPHA, GRID_ETA, MAX_BITS, Config
from multibit.data import Split
from multibit.data.split import require_split_fits
from multibit.errors import DataError, FormatError
from multibit.features import FeatureStore
from multibit.files import read_json, write_json
from multibit.folders import only_writer
from multibit.hashing.select import (
    MARGIN,
    Choice,
    Scores,
    Setting,
    grid_of,
    require_labels,
    require_selectable,
    select,
    stages_of,
)
from multibit.machine import versions_here
from multibit.paths import portable_path
from multibit.records import DatasetRecord

RECORD, KIND, VERSION = "selection.json", "selection", 1
STATES = "states"
IDENTITY = ("config", "alpha", "eta", "stages", "margin", "data", "split", "device")
"""Fields that an interrupted selection must share with the one that resumes it."""


Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]


@dataclass(frozen=True)
class SettingRecord:
    """A setting and its scores, one per stage that it reached."""

    alpha: Positive
    eta: Positive
    scores: list[Annotated[float, msgspec.Meta(ge=0, le=1)]]


@dataclass(frozen=True)
class SelectionRecord:
    """`selection.json`: what was selected from, the scores, and the choice.

    Attributes:
        method: name. config: settings of all trainings, with the seed, without alpha and eta.
        alpha, eta: values of the grid. bits: code length of the scores. stages: epochs after which settings are
            compared. margin: difference that never stops a setting.
        data, split: fingerprints. dataset: its size and fingerprint.
        features: path of the feature store, relative to the folder, or None.
        device: of the trainings. versions: of the libraries.
        settings: with scores so far. chosen: the best, with its scores; None in an unfinished selection.
    """

    method: str
    config: dict[str, Any]
    alpha: list[Positive]
    eta: list[Positive]
    bits: Annotated[int, msgspec.Meta(ge=1, le=MAX_BITS)]
    stages: Annotated[list[Annotated[int, msgspec.Meta(ge=1, lt=1 << 40)]], msgspec.Meta(min_length=1)]
    margin: Annotated[float, msgspec.Meta(ge=0, le=1)]
    data: str
    split: str
    dataset: DatasetRecord
    features: str | None
    device: str
    versions: dict[str, str]
    settings: list[SettingRecord]
    chosen: SettingRecord | None = None

    @property
    def scores(self) -> Scores:
        """Setting -> its scores."""
        return {Setting(each.alpha, each.eta): tuple(each.scores) for each in self.settings}

    @property
    def choice(self) -> Choice:
        """The scores as `select` returns them, of a finished selection."""
        return Choice(self.bits, tuple(self.stages), self.scores)

    @classmethod
    def read(cls, folder: Path) -> SelectionRecord:
        """Read and check the record of a selection folder.

        Raises:
            FormatError: missing, corrupt or newer.
        """
        path = folder / RECORD
        record = read_json(path, kind=KIND, version=VERSION, form=cls, hint=_AGAIN)
        grid = [Setting(alpha, eta) for eta in record.eta for alpha in record.alpha]
        reached = [len(each.scores) for each in record.settings]
        finished = record.chosen is None or (bool(grid) and max(reached) == len(record.stages))
        if list(record.scores) != grid or max(reached, default=0) > len(record.stages) or not finished:
            raise FormatError("does not match its grid.", file=path, field="settings", hint=_AGAIN)
        return record

    def with_score(self, setting: Setting, score: float) -> SelectionRecord:
        """A copy with one more score of a setting."""
        scores = {**self.scores, setting: (*self.scores[setting], score)}
        return replace(self, settings=[SettingRecord(*each, list(values)) for each, values in scores.items()])

    def write(self, folder: Path) -> None:
        """Write the record."""
        write_json(folder / RECORD, asdict(self), kind=KIND, version=VERSION)


_AGAIN = "It may have been modified. Delete the folder and select again."


def select_in(
    folder: Path | str,
    store: FeatureStore,
    split: Split,
    config: Config,
    *,
    method: str = "",
    alpha: Sequence[float] = GRID_ALPHA,
    eta: Sequence[float] = GRID_ETA,
    full: bool = False,
    device: str = "cpu",
    progress: bool = False,
) -> SelectionRecord:
    """Select alpha and eta by the train and validation rows of a split, and keep every score in a folder.

    An interrupted selection is resumed: scores are kept, and a setting that was being trained continues from its
    training state. A finished one is only read.

    Args:
        folder: of the selection. store: the features. split: of its rows; query and database rows are not read.
        config: the other settings. method: name, for the record.
        alpha, eta, full, device, progress: as for `select`.

    Raises:
        DataError: the folder holds a selection of other data or settings, or the split does not fit the store; and as
            `select`. ConfigError: as `select`. BusyError: another process selects there. FormatError: a corrupt record
            or state.
    """
    folder = Path(folder)
    require_selectable(config, method)
    require_split_fits(split, len(store))
    require_labels(bool(store.dataset.label_rows[split.train].any()), store.source)
    fixed = {name: value for name, value in config.to_dict().items() if name not in Setting._fields}
    fresh = SelectionRecord(
        method=method,
        config=fixed,
        alpha=list(map(float, alpha)),
        eta=list(map(float, eta)),
        bits=length_near(config.lengths),
        stages=list(stages_of(config.epochs, full=full)),
        margin=MARGIN,
        data=store.fingerprint(),
        split=split.fingerprint(),
        dataset=DatasetRecord(len(store), store.dataset.fingerprint()),
        features=portable_path(store.source, folder) if store.source else None,
        device=device,
        versions=versions_here(),
        settings=[SettingRecord(*setting, []) for setting in grid_of(alpha, eta)],
    )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with only_writer(folder, [RECORD]):
            return _finish(folder, _earlier(folder, fresh), store, split, config, full=full, progress=progress)
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # removes only an empty folder: nothing was started


def _finish(
    folder: Path,
    record: SelectionRecord,
    store: FeatureStore,
    split: Split,
    config: Config,
    *,
    full: bool,
    progress: bool,
) -> SelectionRecord:
    """Compute the scores that are missing, and choose."""
    if record.chosen is not None:
        return record

    def keep(setting: Setting, score: float) -> None:
        nonlocal record
        record = record.with_score(setting, score)
        record.write(folder)

    choice = select(
        store.take(split.train), store.take(split.validation), config, alpha=record.alpha, eta=record.eta, full=full,
        device=record.device, folder=folder / STATES, earlier=record.scores, keep=keep, progress=progress,
    )  # fmt: skip
    best = choice.best
    record = replace(record, chosen=SettingRecord(*best, list(choice.scores[best])))
    record.write(folder)
    with contextlib.suppress(OSError):
        (folder / STATES).rmdir()
    return record


def _earlier(folder: Path, fresh: SelectionRecord) -> SelectionRecord:
    """The selection that the folder holds, or a new one.

    Raises:
        DataError: it selects from other data or settings.
    """
    if not (folder / RECORD).exists():
        return fresh
    found = SelectionRecord.read(folder)
    different = [name for name in IDENTITY if getattr(found, name) != getattr(fresh, name)]
    if different:
        settings = [
            f"{k} {found.config.get(k)} there, {v} here" for k, v in fresh.config.items() if found.config.get(k) != v
        ]
        what = [name if name != "config" else f"config ({'; '.join(settings)})" for name in different]
        raise DataError(
            f"holds a selection of another {', '.join(what)}.",
            file=folder,
            option="folder",
            hint="Choose another folder.",
        )
    return found
