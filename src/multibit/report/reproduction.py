"""The runs that the paper's tables need: each trained once, kept, and found again by what it depends on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from multibit.config import Config
from multibit.data import FeatureStore, Split
from multibit.data.encoders import load_text_encoder
from multibit.data.split_files import choose_split
from multibit.errors import DataError, FormatError, MultibitError
from multibit.evaluation.protocol import CodedPairs, Evaluation, evaluate, first_rows
from multibit.evaluation.relevance import GradedRelevance
from multibit.files import checksum_file, fingerprint, read_json, write_json
from multibit.hashing.variants import find_variant
from multibit.runs import PROTOCOLS, RUN_FILES, STATE_FILE, Run
from multibit.training import encode

T = TypeVar("T")
SEAL = "seal.json"  # beside a kept run: checksums of its files, and how long the training took
SEAL_KIND, SEAL_VERSION = "sealed run", 1
DEFAULT_TEXT_ENCODER = "all-minilm-l6-v2"


@dataclass(frozen=True, eq=False)
class Subject:
    """What a reproduction measures: a data set, with features or with labels only.

    Attributes:
        labels: (N, C) multi-hot. label_names: C names; empty when unknown. store: features; None for labels only.
        column: the paper's data set that this is ("mirflickr", "iapr", "coco", "nuswide"), None for another.
    """

    labels: NDArray[np.uint8]
    label_names: tuple[str, ...]
    store: FeatureStore | None = None
    column: str | None = None


@dataclass(eq=False)
class Reproduction:
    """Everything that tables and figures ask for; runs are trained when first asked for.

    The split is the one of seed 42 for every run (all methods share it); a list of seeds varies initial weights and
    batches.

    Args:
        subject: to measure. folder: keeps the runs. config: settings of `full`.
        device: to train on. say: is told what is trained, a sentence at a time.
    """

    subject: Subject
    folder: Path
    config: Config
    device: str = "cpu"
    say: Callable[[str], None] = print
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def store(self) -> FeatureStore:
        """The features.

        Raises:
            DataError: there are labels only.
        """
        if self.subject.store is None:
            raise DataError("It needs features, and this data set has labels only.")
        return self.subject.store

    @cached_property
    def split(self) -> Split:
        """The split that all runs share: that of the feature file, or the paper's rule with seed 42."""
        store = self.subject.store
        if store is None:
            return Split.usual(len(self.subject.labels))
        return choose_split(store.dataset.ids, source=store.source)

    @cached_property
    def idf(self) -> GradedRelevance:
        """The IDF-weighted evaluator over the database."""
        return GradedRelevance.idf(self.subject.labels[self.split.database])

    @cached_property
    def semantic(self) -> GradedRelevance:
        """The label-name evaluator, by the text encoder of the features or the packaged one.

        Raises:
            DataError: no label names. MultibitError: no text encoder.
        """
        recipe = self.subject.store.recipe.text if self.subject.store else None
        encoder = load_text_encoder(recipe.name if recipe and recipe.weights else DEFAULT_TEXT_ENCODER)
        return GradedRelevance.semantic(self.subject.label_names, encoder.encode)

    @cached_property
    def references(self) -> dict[str, GradedRelevance]:
        """The evaluators that can be had here, by name; says which cannot."""
        found = {"IDF": self.idf}
        try:
            found["label names"] = self.semantic
        except MultibitError as error:
            self.say(f"No label-name evaluator: {error}")
        return found

    def run(self, variant: str, seed: int, **settings: Any) -> Run:
        """The trained model of a variant that is one model."""
        return self.runs(variant, seed, **settings)[0]

    def runs(self, variant: str, seed: int, **settings: Any) -> list[Run]:
        """The trained models of a variant: one for all lengths, or one for each."""
        found = find_variant(variant)
        config = found.config(self.config).override({"seed": seed, **settings})
        return [self._train(variant, each) for each in found.models(config).values()]

    def seconds(self, runs: Iterable[Run]) -> float:
        """How long their trainings took together; NaN when one of them was interrupted."""
        return float(sum(read_json(run.folder / SEAL, kind=SEAL_KIND, version=SEAL_VERSION)["seconds"] for run in runs))

    def _train(self, variant: str, config: Config) -> Run:
        key = fingerprint(config.to_dict(), self.store.fingerprint(), self.split.fingerprint(), self.device)
        return self.remember(("run", key), lambda: self._open_or_train(variant, config, self.folder / "runs" / key))

    def _open_or_train(self, variant: str, config: Config, folder: Path) -> Run:
        if (folder / "run.json").exists():
            if run := self._open(folder, config):
                return run
            stale = _free(folder.with_name(f"{folder.name}-stale"))
            folder.rename(stale)
            self.say(f"{folder.name} ({variant}): changed since it was trained; moved to {stale.name}, trained again.")
        self.say(f"Training {variant}: {_differences(config)}")
        begun, start = folder.exists(), time.perf_counter()
        run = Run.create(folder, self.store, self.split, config, device=self.device)
        _seal(folder, float("nan") if begun else time.perf_counter() - start)
        return run

    def _open(self, folder: Path, config: Config) -> Run | None:
        """The kept run, unless it is no longer what was trained; one that was stopped just before its seal gets it."""
        sealed = (folder / SEAL).exists()
        try:
            if sealed and not _intact(folder):
                return None
            run = Run.load(folder)
        except FormatError:
            return None
        if run.config != config or run.record["data"] != self.store.fingerprint():
            return None
        if not sealed:
            (folder / STATE_FILE).unlink(missing_ok=True)
            _seal(folder, float("nan"))  # nobody knows how long it took
        return run

    def serving(self, variant: str, seed: int, bits: int, **settings: Any) -> Run:
        """The model that makes the codes of one length: of separate models, the shortest that is long enough."""
        runs = self.runs(variant, seed, **settings)  # ascending
        return next(run for run in runs if run.config.code_bits >= bits)

    def codes(self, run: Run, side: str) -> CodedPairs:
        """Codes of the "query", "database", "validation", "train" or "unseen" items."""
        rows = getattr(self.split, side)
        return self.remember(("codes", run.folder, side), lambda: encode(run.model, self.store.take(rows)))

    def evaluation(
        self,
        variant: str,
        seed: int,
        lengths: Sequence[int] | None = None,
        *,
        graded: bool = False,
        protocol: str = "in",
        **settings: Any,
    ) -> Evaluation:
        """Measure a variant; its candidate pools are shared with the full model's first ranks.

        Args:
            variant, seed, settings: as in `runs`. lengths: the configured ones when None.
            graded: also measure resolution, with all references. protocol: of `PROTOCOLS`.
        """
        measured = tuple(lengths or self.config.lengths)
        key = ("evaluation", variant, seed, measured, graded, protocol, tuple(sorted(settings.items())))

        def measure() -> Evaluation:
            parts = [
                self._evaluate(run, [b for b in measured if run is self.serving(variant, seed, b, **settings)], *rest)
                for run in self.runs(variant, seed, **settings)
            ]
            return _join(parts, measured)

        rest = (seed, graded, "unseen" if protocol == "out" else "database", PROTOCOLS[protocol])
        return self.remember(key, measure)

    def _evaluate(
        self, run: Run, lengths: Sequence[int], seed: int, graded: bool, side: str, protocol: str
    ) -> Evaluation:
        full = self.run("full", seed) if graded else None
        anchor = first_rows(self.codes(full, "query"), self.codes(full, side), lengths) if full else None
        return evaluate(
            self.codes(run, "query"),
            self.codes(run, side),
            lengths,
            training_labels=self.subject.labels[self.split.train],
            protocol=protocol,
            graded=list(self.references.values()) if graded else (),
            anchor=anchor,
        )

    def remember(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` gives, made once."""
        if key not in self._kept:
            self._kept[key] = make()
        found: T = self._kept[key]
        return found


def _join(parts: Sequence[Evaluation], lengths: Sequence[int]) -> Evaluation:
    """The evaluations of models that serve different lengths, as one."""
    first = parts[0]
    values = {key: value for part in parts for key, value in part.values.items()}
    curves = {key: curve for part in parts for key, curve in part.curves.items()}
    return Evaluation(first.protocol, tuple(lengths), first.queries, first.database, values, first.floors, curves)


def _differences(config: Config) -> str:
    """The settings that are not the defaults, for people."""
    plain = Config().to_dict()
    changed = [f"{name} {value}" for name, value in config.to_dict().items() if value != plain[name]]
    return ", ".join(changed) or "the default settings"


def _checksums(folder: Path) -> dict[str, str]:
    """Of the files that training wrote; an index or a report beside them changes nothing."""
    return {name: checksum_file(folder / name) for name in RUN_FILES if (folder / name).exists()}


def _seal(folder: Path, seconds: float) -> None:
    """Keep what the files of a run are, against changes, and how long its training took."""
    write_json(folder / SEAL, {"seconds": seconds, "files": _checksums(folder)}, kind=SEAL_KIND, version=SEAL_VERSION)


def _intact(folder: Path) -> bool:
    """Whether the files of a run are those that were sealed."""
    seal = read_json(folder / SEAL, kind=SEAL_KIND, version=SEAL_VERSION, fields=("seconds", "files"))
    return seal["files"] == _checksums(folder) and isinstance(seal["seconds"], float | int)


def _free(path: Path) -> Path:
    """A name that is not taken yet."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
