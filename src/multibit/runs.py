"""Run folders: a trained model with everything needed to repeat its training."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from multibit import hub
from multibit.codes.items import Modality
from multibit.config import Config, Settings
from multibit.data import Split
from multibit.data.split import require_split_fits
from multibit.errors import (
    ConfigError,
    DataError,
    FormatError,
    MismatchError,
    MultibitError,
    require_kind,
    require_opened,
    require_path,
)
from multibit.features import EncoderRecipe, FeatureStore, Recipe
from multibit.features.base import ImageEncoder, TextEncoder
from multibit.features.load import image_encoder_of, located_recipe, text_encoder_of
from multibit.files import typed
from multibit.folders import only_writer
from multibit.hashing.code_model import CodeModel
from multibit.hashing.methods import find_method, method_of
from multibit.hashing.train import Training, configure, state_files, train
from multibit.machine import versions_here
from multibit.paths import located, portable_path, replacing
from multibit.portable.publish import write_published
from multibit.records import (
    MODIFIED,
    RUN_FILES,
    STATE_FILE,
    STATE_FILES,
    DatasetRecord,
    RunRecord,
    Selection,
    require_finished,
)
from multibit.relation import RelationTeacher, load_teacher


@dataclass(frozen=True, eq=False)
class Run:
    """A trained model with its settings, teacher, split and recipe, as stored in a run folder.

    Attributes:
        folder: path of the run folder. record: content of `run.json`.
        config, model, split: of the training. teacher: of the training; None for a method without one.
        recipe: of the features.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from multibit.data.sample import load_sample
        >>> from multibit.features.recipe import Recipe
        >>> data, random = load_sample().take(np.arange(40)), np.random.default_rng(0)
        >>> image, text = random.normal(size=(2, 40, 8)).astype(np.float32)
        >>> store = FeatureStore(data, image, text, np.arange(41), Recipe.ready_made("random", 8, 8))
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> run = Run.create(folder, store, Split.usual(40), lengths=(4, 8), hidden=8, dimension=4, epochs=2)
        >>> run.model, run.lengths, len(read_history(run))
        (HashModel(8-d image, 8-d text, 8 bits), (4, 8), 2)
        >>> Run.load(folder).model.fingerprint() == run.record.model
        True
    """

    folder: Path
    record: RunRecord
    config: Any
    model: CodeModel
    teacher: RelationTeacher | None
    split: Split
    recipe: Recipe

    def __repr__(self) -> str:
        method = f"{self.record.method}, " if self.record.method else ""
        return f"Run({str(self.folder)!r}, {method}{self.model.bits} bits)"

    @property
    def name(self) -> str:
        """Name of the folder, for tables."""
        return self.folder.resolve().name

    @property
    def features(self) -> Path | None:
        """Path of the features that it was trained on; None if it is not recorded."""
        return None if self.record.features is None else located(self.record.features, self.folder)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The code lengths of the training, ascending."""
        return lengths_of(self.model, self.config)

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the label columns."""
        return tuple(self.record.label_names)

    def encoder_recipe(self, modality: Modality) -> EncoderRecipe:
        """How the features of a modality were made, with the place of a model folder, which only the features know."""
        recipe: EncoderRecipe = getattr(self.recipe, modality)
        return located_recipe(recipe, self.folder, self.features)

    def text_encoder(self, *, download: bool = False) -> TextEncoder:
        """The text encoder of the features.

        Args:
            download: whether the hub may be asked for one that is not on this disk; the user's token is not sent.

        Raises:
            DataError: ready-made features. MismatchError: the installed encoder differs from that of the features.
            ConfigError, MissingExtraError: it cannot be loaded.
        """
        encoder = text_encoder_of(self.encoder_recipe("text"), folder=self.folder, download=download)
        self.recipe.require_encoder("text", encoder.recipe)
        return encoder

    def image_encoder(self, *, download: bool = False) -> ImageEncoder:
        """The image encoder of the features. `download` and errors as of `text_encoder`."""
        encoder = image_encoder_of(self.encoder_recipe("image"), folder=self.folder, download=download)
        self.recipe.require_encoder("image", encoder.recipe)
        return encoder

    @classmethod
    def create(
        cls,
        folder: Path | str,
        store: FeatureStore,
        split: Split,
        config: Settings | None = None,
        *,
        method: str | None = None,
        preset: str | None = None,
        device: str = "cpu",
        workers: int = 1,
        threads: int = 1,
        progress: bool = False,
        **settings: Any,
    ) -> Run:
        """Train on a feature store by a split and write the run folder; an unfinished run in `folder` is resumed.

        Args:
            folder: of the run. store: the features. split: of the rows of the store.
            config: the complete settings; those of `method` and `preset`, changed by `settings`, when None.
            method: name of the method, which is recorded too. preset, device, workers, threads, progress, settings: as
                for `train`.

        Raises:
            BusyError: another process is training there.
            DataError: `folder` holds a finished run, or the split does not fit the store; and as `train`.
        """
        folder = require_path(folder, "folder")
        require_kind(store, FeatureStore, "store", "Open one with FeatureStore.open(path).")
        require_kind(split, Split, "split", "Draw one with Split.usual(len(store), seed).")
        require_split_fits(split, len(store))
        if config is None:
            labelled = bool(store.dataset.label_rows[split.train].any())
            chosen, config = configure(method, preset, settings, labels=labelled)
            method, preset, settings = chosen.name, None, {}
        if (folder / "run.json").exists():
            return cls._completed(folder, store, split, config)
        training, validation = store.take(split.train), store.take(split.validation)
        folder.mkdir(parents=True, exist_ok=True)  # fail before the training, not after it
        with only_writer(folder, (*STATE_FILES, *RUN_FILES)):
            _require_own_states(folder, method, config)
            _require_own_files(folder)
            try:
                result = train(
                    training, validation, config, method=method, preset=preset, device=device, workers=workers,
                    threads=threads, state_file=folder / STATE_FILE, progress=progress, **settings,
                )  # fmt: skip
                _write(folder, result, store, split, method=method or "", device=device, scored=bool(len(validation)))
            finally:
                with contextlib.suppress(OSError):
                    folder.rmdir()  # removes only an empty folder
        return cls.load(folder)

    @classmethod
    def _completed(cls, folder: Path, store: FeatureStore, split: Split, config: Settings) -> Run:
        """The same run, where a writer was killed after it was finished and before its states were removed.

        Raises:
            DataError: the folder holds a finished run.
        """
        if state_files(folder / STATE_FILE):
            with only_writer(folder, (*STATE_FILES, *RUN_FILES)):
                run = cls.load(folder)
                if run.config == config and run.split.same_rows(split) and run.record.data == store.fingerprint():
                    remove_states(folder)
                    return run
        raise DataError("holds a finished run.", file=folder, hint="Choose another folder or delete it first.")

    @classmethod
    def load(cls, folder: Path | str) -> Run:
        """Open a finished run.

        Raises:
            FormatError: unfinished, corrupt, newer, or with files of different runs. DataError: no path.
        """
        folder = require_path(folder, "folder")
        require_finished(folder)
        record = RunRecord.read(folder / "run.json")
        try:
            defaults = find_method(record.method).defaults if record.method else Config()
            config = defaults.override(record.config)
        except ConfigError as error:
            problem = f"invalid settings, or settings of another version of multibit ({error})"
            raise FormatError(f"{problem}.", file=folder / "run.json", field="config", hint=MODIFIED) from None
        model = CodeModel.load(folder / "model.safetensors")
        teacher = load_teacher(folder / "teacher.safetensors") if record.teacher else None
        split = Split.load(folder / "split.safetensors")
        found = {"model": model.fingerprint(), "split": split.fingerprint()}
        if teacher is not None:
            found["teacher"] = teacher.fingerprint()
        for name, digits in found.items():
            if digits != getattr(record, name):
                raise FormatError(f"{name}.safetensors is not the {name} that run.json describes.", file=folder)
        run = cls(folder, record, config, model, teacher, split, record.recipe)
        run._require_consistent()
        return run

    def _require_consistent(self) -> None:
        """Refuse a record that does not fit the model, or the split to the data.

        Raises:
            FormatError: names the field.
        """
        path, largest = self.folder / "run.json", max(map(max, filter(len, self.split.roles.values())), default=-1)
        dimensions = self.recipe.image.dimension, self.recipe.text.dimension
        wrong = {
            "config": max(self.lengths) > self.model.bits,
            "recipe": dimensions != (self.model.image_dim, self.model.text_dim),
            "dataset": largest >= self.record.dataset.items,
            "teacher": self.teacher is not None and len(self.teacher.graph.specificity) != len(self.label_names),
            "selection": any(str(bits) not in self.record.selection.by_length for bits in self.lengths)
            and bool(self.record.selection.by_length),
        }
        for name, is_wrong in wrong.items():
            if is_wrong:
                raise FormatError("does not fit the model and the split.", file=path, field=name, hint=MODIFIED)

    @classmethod
    def from_pretrained(
        cls,
        id_or_path: str | Path,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
    ) -> Run:
        """Open a published run: a folder, or `user/name` on the Hugging Face Hub.

        Args:
            id_or_path, revision, token, cache_dir, local_files_only, force_download: as for `multibit.pull`.

        Raises:
            DataError, FormatError, MissingExtraError: as `multibit.pull` and `load`.
        """
        return cls.load(
            hub.pull(
                id_or_path, revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only,
                force_download=force_download,
            )
        )  # fmt: skip

    def save_pretrained(
        self,
        folder: Path | str,
        *,
        name: str | None = None,
        license: str | None = None,
        encoders: bool | None = None,
        index: Path | str | None = None,
        download: bool = False,
    ) -> None:
        """Write a folder to publish: the run without local paths, its networks in ONNX, and a model card.

        Args:
            folder: does not exist yet, or is empty. name: in the card; that of the folder when None.
            license: identifier for the card, such as apache-2.0; left out when None.
            encoders: with the encoders in ONNX. None: only packaged ones, others are named.
            index: folder of the indices to publish, with ids, texts, labels and fields, but without paths of images.
            download: whether the hub may be asked for encoders that are not on this disk, without the user's token.

        Raises:
            DataError: `folder` has files, the recipe names a local path, or there is no index. ConfigError: not an
                identifier of a license, or encoders that cannot be exported. MismatchError: an index of another model.
        """
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataError("exists and is not an empty folder.", file=folder, hint="Choose another folder.")
        with replacing(folder) as temporary:
            temporary.mkdir()
            for file in (self.folder / each for each in RUN_FILES if each != "run.json"):
                if file.exists():
                    shutil.copyfile(file, temporary / file.name)
            replace(self.record, features=None).write(temporary / "run.json")
            write_published(
                self, temporary, name=name or folder.name, license=license, encoders=encoders,
                index=None if index is None else Path(index), download=download,
            )  # fmt: skip

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        commit_message: str = "Upload a multibit run",
        token: str | bool | None = None,
        create_pr: bool = False,
        license: str | None = None,
        encoders: bool | None = None,
        index: Path | str | None = None,
        download: bool = False,
    ) -> str:
        """Publish the run on the Hugging Face Hub and return the address of the commit or pull request.

        Args:
            repo_id: `user/name`, created if needed.
            private, commit_message, token, create_pr: as for every model of the Hub.
            license, encoders, index, download: as for `save_pretrained`.

        Raises:
            ConfigError: not such a name, or the Hub refuses it, or there is no connection. MissingExtraError:
                huggingface_hub is not installed. DataError, MismatchError: as `save_pretrained`.
        """
        hub.require_repository(repo_id)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "run"
            self.save_pretrained(
                folder, name=repo_id, license=license, encoders=encoders, index=index, download=download
            )
            return hub.upload(
                folder, repo_id, private=private, commit_message=commit_message, token=token, create_pr=create_pr
            )


def finished_before(folder: Path | str, store: FeatureStore, split: Split, config: Settings, method: str) -> bool:
    """Whether a folder holds the finished run that a training would write again."""
    if not (Path(folder) / "run.json").exists() or state_files(Path(folder) / STATE_FILE):
        return False  # not there, or not finished to the end
    run = Run.load(folder)
    same = run.record.method == method and run.config == config and run.split.same_rows(split)
    return same and run.record.data == store.fingerprint()


def lengths_of(model: CodeModel, config: Any) -> tuple[int, ...]:
    """The code lengths of a training, ascending."""
    return model.layout.lengths if not model.layout.nested else tuple(config.lengths)


def describe_code(run: Run) -> str:
    """How the codes of a run serve its lengths, human-readable."""
    return run.model.layout.describe(run.lengths)


def read_history(run: Run) -> list[dict[str, float]]:
    """The training history of a run, one row per epoch: mean of each loss part, learning rate, validation mAP.

    Raises:
        FormatError: missing or corrupt. DataError: a path instead of a run.

    Example:
        >>> [row["epoch"] for row in read_history(run)]
        [1.0, 2.0]
    """
    require_opened(run, "run", "Run.load")
    path = run.folder / "history.jsonl"
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise FormatError("no such file.", file=path, hint="Train again.") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"corrupt ({error}).", file=path, hint=MODIFIED) from None
    typed(rows, list[_Epoch], path, MODIFIED)
    return typed(rows, list[dict[str, float]], path, MODIFIED)


class _Epoch(msgspec.Struct):
    """What each row of a history must have; the other numbers are parts of the loss."""

    epoch: float
    total: float
    learning_rate: float


def _require_own_states(folder: Path, method: str | None, config: Settings) -> None:
    """Refuse a folder with the unfinished training of another method or of other lengths.

    Raises:
        MismatchError: names the states.
    """
    chosen = method_of(config, method)
    own = {STATE_FILE} if chosen.lengths != "one" else {f"training-state-{bits}.pt" for bits in config.lengths}
    others = [path.name for path in state_files(folder / STATE_FILE) if path.name not in own]
    if others:
        raise MismatchError(
            f"holds the unfinished training of another method or of other lengths: {', '.join(others)}.",
            file=folder,
            hint="Choose another folder or delete these files.",
        )


def _require_own_files(folder: Path) -> None:
    """Refuse files with the names of a run's that no training wrote; the model is the first that it writes.

    Raises:
        DataError: names one of them.
    """
    found = [name for name in RUN_FILES if (folder / name).exists()]
    if not found or state_files(folder / STATE_FILE):
        return
    try:
        CodeModel.load(folder / "model.safetensors")
    except MultibitError:
        raise DataError(
            f"holds {found[0]}, which no training wrote and which this one would replace.",
            file=folder,
            hint="Choose another folder, or give the file another name.",
        ) from None


def _write(
    folder: Path, result: Training, store: FeatureStore, split: Split, *, method: str, device: str, scored: bool
) -> None:
    """Write the files of a run, the record last, because it marks the run as finished."""
    state = result.state
    result.model.save(folder / "model.safetensors")
    if result.teacher is not None:
        result.teacher.save(folder / "teacher.safetensors")
    split.save(folder / "split.safetensors")
    with replacing(folder / "history.jsonl") as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in state.history), encoding="utf-8")
    by_length = {str(bits): each.best_epoch for bits, each in state.by_length.items()}
    seconds = {str(bits): each.seconds for bits, each in state.by_length.items()} or {"": state.seconds}
    measure = result.method.measure
    rule = f"largest validation mean {measure}" if scored else "last epoch, no validation rows"
    score = {{"mAP": "validation_mean_mAP", "recall": "validation_recall"}[measure]: state.best_score} if scored else {}
    RunRecord(
        config=result.config.to_dict(),
        model=result.model.fingerprint(),
        teacher="" if result.teacher is None else result.teacher.fingerprint(),
        split=split.fingerprint(),
        recipe=_portable(store.recipe),
        label_names=list(store.dataset.label_names),
        data=store.fingerprint(),
        dataset=DatasetRecord(len(store), store.dataset.fingerprint()),
        features=portable_path(store.source, folder) if store.source else None,
        selection=Selection(state.best_epoch, rule, by_length=by_length, **score),
        versions=versions_here(),
        content="",
        blocks=list(result.model.blocks),
        device=device,
        threads=result.threads,
        method=method,
        seconds=seconds,
        code=result.model.layout.describe(lengths_of(result.model, result.config)),
        parameters=result.model.parameter_count,
    ).write(folder / "run.json")
    remove_states(folder)


def _portable(recipe: Recipe) -> Recipe:
    """The recipe without the paths of this machine: of a model folder only the name; the features know its place."""
    sides = (recipe.image, recipe.text)
    return Recipe(
        *(replace(each, source=Path(each.source).name if Path(each.source).is_absolute() else each.source)
          for each in sides)
    )  # fmt: skip


def remove_states(folder: Path) -> None:
    """Remove the training states of a finished run."""
    for path in state_files(folder / STATE_FILE):
        path.unlink(missing_ok=True)
