"""The record of a run: what `run.json` says, readable without torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from multibit.config import MAX_BITS
from multibit.errors import FormatError
from multibit.features.recipe import Recipe
from multibit.files import fingerprint, read_json, typed, write_json

KIND, VERSION, RECORD = "run", 1, "run.json"
STATE_FILE = "training-state.pt"
STATE_FILES = (STATE_FILE, "training-state-*.pt")  # of one model, or of a model for each length
RUN_FILES = ("model.safetensors", "teacher.safetensors", "split.safetensors", "history.jsonl", RECORD)
MADE_BY = (
    "config", "model", "teacher", "split", "recipe", "label_names", "data", "dataset", "selection", "versions",
    "method", "code", "parameters",
)  # fmt: skip
"""Fields of a record that its fingerprint covers, where present; not the path of the features, which may be moved."""


Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]
Length = Annotated[str, msgspec.Meta(pattern="^[0-9]{0,4}$")]
"""A code length as a key of JSON; "" for a model of all lengths."""


@dataclass(frozen=True)
class DatasetRecord:
    """The data set of a run: number of items and fingerprint."""

    items: Count
    fingerprint: str


@dataclass(frozen=True)
class Selection:
    """The selected epoch.

    Attributes:
        epoch: the best one; that of the longest code for a model for each length. rule: how it was selected.
        validation_mean_mAP: its score. validation_recall: that of a method without labels: mean recall at 1, 5 and 10
            of the own counterpart. by_length: length -> best epoch, for a model for each length.
    """

    epoch: Count
    rule: str
    validation_mean_mAP: Share | None = None  # noqa: N815 - the name in the file
    validation_recall: Share | None = None
    by_length: dict[Length, Count] = field(default_factory=dict)

    def __str__(self) -> str:
        chosen = ", ".join(f"{epoch} at {bits} bits" for bits, epoch in self.by_length.items()) or str(self.epoch)
        return f"{chosen} ({self.rule})"


@dataclass(frozen=True)
class RunRecord:
    """The record of a run, `run.json`: settings, fingerprints and provenance.

    Attributes:
        config: settings. model, teacher, split, data: fingerprints; no teacher, "", for a method without one.
        blocks: bits of each scale; empty for a method without scales.
        recipe: of the features. label_names: of the label columns. dataset: size and fingerprint.
        features: path of the feature store, relative to the run folder; None if it was in memory.
        selection: of the epoch.
        device, threads: of the training. versions: of the libraries. content: fingerprint of the record itself.
        method: name of the method; "" if not recorded, as in earlier versions.
        seconds: of the training, by length for a model for each length, else under ""; empty if not recorded.
        code: how the codes serve the lengths, human-readable; parameters: number of trained weights; "" and 0 if not
            recorded, as in earlier versions.
    """

    config: dict[str, Any]
    model: str
    teacher: str
    split: str
    recipe: Recipe
    label_names: list[str]
    data: str
    dataset: DatasetRecord
    features: str | None = field(compare=False)
    selection: Selection
    versions: dict[str, str]
    content: str
    blocks: list[Annotated[int, msgspec.Meta(ge=1, le=MAX_BITS)]] = field(default_factory=list)
    device: str = "cpu"
    threads: Count = field(default=0, compare=False)
    method: str = ""
    seconds: dict[Length, Seconds] = field(default_factory=dict, compare=False)
    code: str = ""
    parameters: Count = 0

    def __repr__(self) -> str:
        return f"RunRecord({self.method!r}, model {self.model}, data {self.data})"

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Read and check a record.

        Raises:
            FormatError: missing, corrupt, newer, or not matching its fingerprint.
        """
        content = read_json(path, kind=KIND, version=VERSION)
        record = typed(content, cls, path, MODIFIED)
        if record.content != content_of(content):
            raise FormatError("the record does not match its fingerprint.", file=path, hint=MODIFIED)
        return record

    def write(self, path: Path) -> None:
        """Write the record with its fingerprint."""
        content = asdict(self)
        write_json(path, {**content, "content": content_of(content)}, kind=KIND, version=VERSION)


MODIFIED = "It may have been modified. Train again or restore a copy."


def content_of(record: dict[str, Any]) -> str:
    """Fingerprint of a record."""
    return fingerprint({name: record[name] for name in MADE_BY if record.get(name) not in (None, "")})


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, finished or unfinished."""
    return (folder / RECORD).exists() or any(any(folder.glob(each)) for each in STATE_FILES)


MAKE, STORE = "Make a run with: multibit train FEATURES --out RUN", "store.json"


def require_finished(folder: Path) -> None:
    """Refuse what is no run, and a run whose training was interrupted.

    Raises:
        FormatError: no such folder, a file, a feature store, or it is not finished.
    """
    if not folder.is_dir():
        raise FormatError(
            "is a file, not a run folder." if folder.exists() else "no such run folder.", file=folder, hint=MAKE
        )
    if (folder / STORE).exists() and not is_run(folder):
        raise FormatError("is a feature store, not a run folder.", file=folder, hint=MAKE)
    if is_run(folder) and not (folder / RECORD).exists():
        raise FormatError(
            "the training is not finished.", file=folder, hint="Train again with the same settings to resume it."
        )
