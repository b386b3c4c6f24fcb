"""The runs of the paper's tables: a run per key, trained once, kept and reused."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from multibit.arrays import Labels
from multibit.codes.items import CodedItems
from multibit.config import Config, Settings
from multibit.data import Split
from multibit.data.split_files import choose_split
from multibit.errors import DataError, FormatError, MultibitError
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.protocol import add_resolution, evaluate_rankings
from multibit.evaluation.ranking import Rankings
from multibit.evaluation.relevance import GradedRelevance
from multibit.features.pairs import Pairs
from multibit.features.recipe import EncoderRecipe
from multibit.features.store import FeatureStore
from multibit.files import checksum_file, fingerprint, read_json, write_json
from multibit.folders import subfolder
from multibit.hashing.encode import encode_store
from multibit.hashing.methods import find_method
from multibit.measurement import PROTOCOLS, label_name_relevance
from multibit.paper.cells import Design
from multibit.paths import remove_left_over
from multibit.records import RUN_FILES
from multibit.relation import LabelGraph, RelationTeacher
from multibit.runs import Run, remove_states

T = TypeVar("T")
Side = Literal["query", "database", "validation", "train", "unseen"]
SEAL = "seal.json"  # in the folder of a kept run: checksums of its files and the duration of the training
SEAL_KIND, SEAL_VERSION = "sealed run", 1


def _silent(sentence: str) -> None:
    pass


@dataclass(frozen=True, eq=False)
class Subject:
    """The dataset of a reproduction, with features or with labels only.

    Attributes:
        labels: (N, C) multi-hot. label_names: C names; empty when unknown. store: features; None for labels only.
        column: name of the dataset in the paper: "mirflickr", "iapr", "coco" or "nuswide"; None for another.
    """

    labels: Labels
    label_names: tuple[str, ...]
    store: FeatureStore | None = None
    column: str | None = None


@dataclass(eq=False)
class Reproduction:
    """The runs, codes and evaluations of one dataset; each is made on first use and kept.

    All runs share the split of seed 42. Seeds vary the initial weights and the batches.

    Args:
        subject: the dataset. folder: of the kept runs. config: settings of the method "multibit".
        device: for training. say: called with a sentence about what is trained or missing.
        sizes: number of query, train and validation rows of the split, drawn with seed 42; None for the split of the
            features, or the paper's sizes where they have none.
        text_encoder: name, folder or hub name of the label-name evaluator's encoder; that of the features when None, or
            the packaged one where the features are ready-made.
        workers: processes for a method with a model for each length.
        compared: names of the compared methods that the tables show besides MultiBit and its variants.
        download: whether the hub may be asked for the text encoder of the features; the user's token is not sent.
    """

    subject: Subject
    folder: Path
    config: Config
    device: str = "cpu"
    say: Callable[[str], None] = _silent
    sizes: Mapping[str, int] | None = None
    text_encoder: str | None = None
    workers: int = 1
    compared: tuple[str, ...] = ()
    download: bool = False
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def store(self) -> FeatureStore:
        """The features.

        Raises:
            DataError: the dataset has labels only.
        """
        if self.subject.store is None:
            raise DataError("the dataset has labels only, but features are needed.", field="features")
        return self.subject.store

    @cached_property
    def split(self) -> Split:
        """The split of all runs: with the given sizes, that of the feature file, or the paper's; by seed 42.

        Raises:
            ConfigError: sizes that do not fit, or only some of them.
        """
        store = self.subject.store
        ids = list(map(str, range(len(self.subject.labels)))) if store is None else store.dataset.ids
        return choose_split(ids, source=None if store is None else store.source, sizes=self.sizes)

    @cached_property
    def idf(self) -> GradedRelevance:
        """The IDF-weighted evaluator over the database."""
        return GradedRelevance.idf(self.subject.labels[self.split.database])

    @cached_property
    def graph(self) -> LabelGraph:
        """The label graph of the training items."""
        return LabelGraph.from_labels(self.subject.labels[self.split.train], self.config.epsilon)

    @cached_property
    def semantic(self) -> GradedRelevance:
        """The label-name evaluator.

        Raises:
            DataError: no label names. MultibitError: the text encoder cannot be loaded.
        """
        source = self.subject.store.source if self.subject.store else None
        return label_name_relevance(
            self._text_recipe,
            self.subject.label_names,
            text_encoder=self.text_encoder,
            folder=source,
            download=self.download,
        )

    @property
    def substituted(self) -> bool:
        """Whether the label-name evaluator is by an encoder that neither the features nor the user named."""
        return self.text_encoder is None and not (self._text_recipe and self._text_recipe.weights)

    @property
    def _text_recipe(self) -> EncoderRecipe | None:
        return self.subject.store.recipe.text if self.subject.store else None

    @cached_property
    def references(self) -> dict[str, GradedRelevance]:
        """The available evaluators, by name; says why one is missing."""
        found = {"IDF": self.idf}
        try:
            found["label names"] = self.semantic
        except MultibitError as error:
            self.say(f"No label-name evaluator: {error}")
        return found

    def run(self, method: str, seed: int, **settings: Any) -> Run:
        """The trained model of a method."""
        found = find_method(method)
        config = found.config(self.config, self.subject.column).override({"seed": seed, **settings})
        # Variants of MultiBit with the same settings are one run, whatever their names.
        variant = [] if found.lengths == "nested" and type(config) is Config else [method]
        parts = (*variant, config.changes(), self.store.fingerprint(), self.split.fingerprint(), self.device)
        folder = subfolder(self.folder, "runs") / fingerprint(*parts)
        return self.remember(("run", folder), lambda: self._open_or_train(method, config, folder))

    def designs(self, own: Sequence[Design], *, nested_only: bool = False) -> list[Design]:
        """The rows of a table: the compared methods, then its own.

        Args:
            own: designs of MultiBit. nested_only: without compared methods that train a model for each length.
        """
        chosen = [find_method(name) for name in self.compared]
        kept = [method for method in chosen if not (nested_only and method.lengths == "one")]
        return [*(Design(method.title, method.name) for method in kept), *own]

    def teacher(self, method: str, seed: int, **settings: Any) -> RelationTeacher:
        """The relation teacher of a variant of MultiBit, as it was trained."""
        teacher = self.run(method, seed, **settings).teacher
        assert teacher is not None
        return teacher

    def seconds(self, run: Run, bits: int | None = None) -> float:
        """Duration of its training, of all its models or of that of one length; NaN if it is not known.

        Models that were trained side by side count as if they had been trained one after the other.
        """
        recorded = run.record.seconds
        if bits is not None and str(bits) in recorded:
            return recorded[str(bits)]
        if recorded:
            return sum(recorded.values())
        return _read_seal(run.folder).seconds

    def _open_or_train(self, method: str, config: Settings, folder: Path) -> Run:
        if (folder / "run.json").exists():
            remove_left_over(folder)
            if run := self._open(folder, config):
                return run
            stale = _free(folder.with_name(f"{folder.name}-stale"))
            folder.rename(stale)
            self.say(f"{folder.name} ({method}) changed since it was trained: moved to {stale.name} and trained again.")
        self.say(f"Training {method}: {_differences(config)}")
        begun, start = folder.exists(), time.perf_counter()
        run = Run.create(
            folder, self.store, self.split, config, method=method, device=self.device, workers=self.workers
        )
        _seal(folder, float("nan") if begun else time.perf_counter() - start)
        return run

    def _open(self, folder: Path, config: Settings) -> Run | None:
        """The kept run; None if it is not what was trained. A run that was stopped just before its seal is sealed."""
        sealed = (folder / SEAL).exists()
        try:
            if sealed and not _intact(folder):
                return None
            run = Run.load(folder)
        except FormatError:
            return None
        if run.config != config or run.record.data != self.store.fingerprint():
            return None
        if not sealed:
            remove_states(folder)
            _seal(folder, float("nan"))  # the duration is unknown
        return run

    def pairs(self, side: Side) -> Pairs:
        """The features of one part of the split."""
        return self.remember(("pairs", side), lambda: self.store.take(getattr(self.split, side)))

    def codes(self, run: Run, side: Side) -> CodedItems:
        """The coded items of one part of the split, with their relaxed values."""
        rows = getattr(self.split, side)
        return self.remember(
            ("codes", run.folder, side), lambda: encode_store(run.model, self.store, rows, keep_relaxed=True)
        )

    def rankings(self, run: Run, side: Side, lengths: Sequence[int]) -> Rankings:
        """The items of one part of the split, ranked for every query."""
        key = "rankings", run.folder, side, tuple(lengths)
        return self.remember(key, lambda: Rankings(self.codes(run, "query"), self.codes(run, side), lengths))

    def evaluation(
        self,
        method: str,
        seed: int,
        lengths: Sequence[int] | None = None,
        *,
        graded: bool = False,
        protocol: str = "in",
        **settings: Any,
    ) -> Evaluation:
        """Evaluate a method. The first ranks of the method "multibit" are part of its candidate pools.

        Args:
            method, seed, settings: as in `run`. lengths: the configured lengths when None.
            graded: also measure resolution with all references. protocol: a key of `PROTOCOLS`.
        """
        measured = tuple(lengths or self.config.lengths)
        key = ("evaluation", method, seed, measured, graded, protocol, tuple(sorted(settings.items())))

        side: Side = "unseen" if protocol == "out" else "database"

        def measure() -> Evaluation:
            run = self.run(method, seed, **settings)
            return self._evaluate(run, measured, seed, graded, side, PROTOCOLS[protocol])

        return self.remember(key, measure)

    def _evaluate(
        self, run: Run, lengths: Sequence[int], seed: int, graded: bool, side: Side, protocol: str
    ) -> Evaluation:
        rankings = self.rankings(run, side, lengths)
        measured = evaluate_rankings(rankings, training_labels=self.subject.labels[self.split.train], protocol=protocol)
        if not graded:
            return measured
        anchor = self.rankings(self.run("multibit", seed), side, lengths).anchor
        return add_resolution(measured, rankings, list(self.references.values()), anchor)

    def remember(self, key: Any, make: Callable[[], T]) -> T:
        """The result of `make`, which is called once per key."""
        if key not in self._kept:
            self._kept[key] = make()
        found: T = self._kept[key]
        return found


def _differences(config: Settings) -> str:
    """The settings that differ from the defaults, human-readable."""
    return ", ".join(f"{name} {value}" for name, value in config.changes().items()) or "the default settings"


def _checksums(folder: Path) -> dict[str, str]:
    """Of the files that training wrote; an index or a report in the folder does not count."""
    return {name: checksum_file(folder / name) for name in RUN_FILES if (folder / name).exists()}


def _seal(folder: Path, seconds: float) -> None:
    """Record the checksums of the files of a run and the duration of its training."""
    write_json(folder / SEAL, {"seconds": seconds, "files": _checksums(folder)}, kind=SEAL_KIND, version=SEAL_VERSION)


def _intact(folder: Path) -> bool:
    """Whether the files of a run have the sealed checksums."""
    return _read_seal(folder).files == _checksums(folder)


class _Seal(msgspec.Struct):
    """What `seal.json` must have."""

    seconds: float
    files: dict[str, str]


def _read_seal(folder: Path) -> _Seal:
    return read_json(folder / SEAL, kind=SEAL_KIND, version=SEAL_VERSION, form=_Seal)


def _free(path: Path) -> Path:
    """A path that does not exist yet."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
