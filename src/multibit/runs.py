"""The run folder: a trained model with everything needed to repeat it."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from multibit.codes import Codes
from multibit.config import Config
from multibit.data import FeatureStore, PairedDataset, Recipe, Split
from multibit.data.encoders import EncoderRecipe, load_picture_encoder, load_text_encoder
from multibit.data.features import row_numbers
from multibit.data.pictures import open_picture
from multibit.errors import ConfigError, DataError, FormatError, MismatchError
from multibit.evaluation.protocol import Anchor, Evaluation, evaluate, first_rows
from multibit.evaluation.relevance import GradedRelevance
from multibit.files import fingerprint, read_json, replacing, write_json
from multibit.hashing.model import HashModel, Modality
from multibit.relation import RelationTeacher, load_teacher
from multibit.search import Index
from multibit.search.exchange import save_mat
from multibit.training import encode, encode_store, train

T = TypeVar("T")
KIND, VERSION = "run", 1
FIELDS = {
    "config": dict, "model": str, "teacher": str, "split": str, "recipe": dict, "label_names": list, "data": str,
    "dataset": dict, "features": str | None, "selection": dict, "versions": dict, "content": str,
}  # fmt: skip
"""What `run.json` must have, and of which type."""
INNER_FIELDS = {"dataset": ("items", "fingerprint"), "selection": ("epoch", "rule")}
STATE_FILE = "training-state.pt"
RUN_FILES = ("model.safetensors", "teacher.safetensors", "split.safetensors", "history.jsonl", "run.json")
PROTOCOLS = {
    "in": "training items in the database",
    "out": "training items kept out of the database",
}


def _read_record(path: Path) -> tuple[dict[str, Any], Config, Recipe]:
    """`run.json`, and the settings and the feature recipe in it."""
    record = read_json(path, kind=KIND, version=VERSION, fields=tuple(FIELDS))
    wrong = [name for name, kind in FIELDS.items() if not isinstance(record[name], kind)]
    wrong = wrong or [
        f"{name}, {part}" for name, parts in INNER_FIELDS.items() for part in parts if part not in record[name]
    ]
    found = f"cannot be understood at {wrong[0]}" if wrong else "is not what its fingerprint says"
    try:
        if not wrong:
            config, recipe = Config().override(record["config"]), Recipe.from_dict(record["recipe"])
            if record["content"] == _content(record):
                return record, config, recipe
    except ConfigError as error:
        raise FormatError(f"{path}: {error} It was edited, or made by another multibit.") from None
    except (KeyError, TypeError):
        found = "cannot be understood at recipe"
    raise FormatError(f"{path}: {found}, so it was edited. Make it again or restore a copy.")


def _content(record: dict[str, Any]) -> str:
    """Fingerprint of what a run was made with; the place of the features may change."""
    return fingerprint({name: record[name] for name in FIELDS if name not in ("content", "features")})


def _check_split(split: Split, items: int) -> None:
    """Refuse a split of other data."""
    for name in ("train", "validation", "query", "database"):
        rows = getattr(split, name)
        if len(rows) and rows.max() >= items:
            raise DataError(f"split: {name} names row {rows.max()}, the features have {items} rows.")
        if not len(rows) and name in ("query", "database"):
            raise DataError(f"split: no row in {name}, so nothing could be evaluated.")


def require_split_of(given: str | None, data: PairedDataset) -> None:
    """Refuse a run folder as the source of a split, where the run was trained on another data set.

    Args:
        given: what `choose_split` takes: only a run folder says which data its rows belong to. data: to be split.

    Raises:
        MismatchError: another data set. FormatError: a torn run, or a folder of separate models.
    """
    folder = Path(given or "")
    if given is None or given.isdecimal() or not (is_run(folder) or separate_models(folder)):
        return
    theirs, here = Run.load(folder).record["dataset"], data.fingerprint()
    if theirs["fingerprint"] != here:
        raise MismatchError(
            f"--split {folder}: is the split of data {theirs['fingerprint']} with {theirs['items']} items, here is "
            f"data {here} with {len(data)}: its rows would be other items. Name a run on this data, or a seed; if "
            f"the rows are the same all the same, name {folder / 'split.safetensors'}."
        )


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, finished or not."""
    return (folder / "run.json").exists() or (folder / STATE_FILE).exists()


def separate_models(folder: Path) -> list[Path]:
    """The run folders of `--variant separate`, one for each length, shortest first; none in another folder."""
    found = [each for each in folder.glob("*/") if each.name.isdecimal() and is_run(each)]
    return [] if is_run(folder) else sorted(found, key=lambda each: int(each.name))


def require_alone(folder: Path, *, separate: bool) -> None:
    """Refuse to put one model and separate models into the same folder.

    Raises:
        DataError: the other kind lies there.
    """
    if separate and is_run(folder):
        raise DataError(
            f"{folder}: holds one model for all lengths, so separate models cannot lie below it. Choose another folder."
        )
    if not separate and (models := separate_models(folder)):
        names = ", ".join(each.name for each in models)
        raise DataError(f"{folder}: holds separate models ({names}), so no other run. Choose another folder.")


@dataclass(frozen=True, eq=False)
class Run:
    """A trained model with everything that made it, as kept in a run folder.

    Attributes:
        folder: where it lies. config, model, teacher, split: as trained. recipe: of the features.
        label_names: meaning of the label columns.
        record: `run.json`: also data fingerprint, feature source, versions, selection.
    """

    folder: Path
    config: Config
    model: HashModel
    teacher: RelationTeacher
    split: Split
    recipe: Recipe
    label_names: tuple[str, ...]
    record: dict[str, Any]

    @classmethod
    def create(cls, folder: Path, store: FeatureStore, split: Split, config: Config, *, device: str = "cpu") -> Run:
        """Train on a feature store by a split, and keep the result; an unfinished run in `folder` goes on.

        Raises:
            DataError: `folder` holds a finished run or separate models, or the rows of the split do not fit the store.
        """
        if (folder / "run.json").exists():
            raise DataError(f"{folder}: holds a finished run. Choose another folder or delete it first.")
        require_alone(folder, separate=False)
        _check_split(split, len(store))
        training, validation = store.take(split.train), store.take(split.validation)
        folder.mkdir(parents=True, exist_ok=True)  # before the work, not after it
        try:
            result = train(training, validation, config, device=device, state_file=folder / STATE_FILE)
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()  # only an empty one goes: nothing was begun
        state = result.state
        result.model.save(folder / "model.safetensors")
        result.teacher.save(folder / "teacher.safetensors")
        split.save(folder / "split.safetensors")
        with replacing(folder / "history.jsonl") as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in state.history), encoding="utf-8")
        record = {
            "config": config.to_dict(),
            "model": result.model.fingerprint(),
            "blocks": list(result.model.blocks),
            "recipe": store.recipe.to_dict(),
            "label_names": list(store.dataset.label_names),
            "data": store.fingerprint(),
            "dataset": {"items": len(store), "fingerprint": store.dataset.fingerprint()},
            "features": str(store.source.resolve()) if store.source else None,
            "teacher": result.teacher.fingerprint(),
            "split": split.fingerprint(),
            "selection": {
                "epoch": state.best_epoch,
                "validation_mean_mAP": state.best_score if len(validation) else None,
                "rule": "largest validation mean mAP" if len(validation) else "last epoch, no validation rows",
            },
            "device": device,
            "threads": torch.get_num_threads(),
            "versions": {
                **{name: version(name) for name in ("multibit", "torch", "numpy", "scipy", "numba", "safetensors")},
                "python": platform.python_version(),
                "processor": platform.machine(),
            },
        }
        record["content"] = _content(record)
        write_json(folder / "run.json", record, kind=KIND, version=VERSION)  # last: its presence says "finished"
        (folder / STATE_FILE).unlink(missing_ok=True)
        return cls.load(folder)

    @classmethod
    def load(cls, folder: Path | str) -> Run:
        """Open a finished run.

        Raises:
            FormatError: unfinished, torn, newer, files of different runs, or a folder of separate models.
        """
        folder = Path(folder)
        if (folder / STATE_FILE).exists() and not (folder / "run.json").exists():
            raise FormatError(f"{folder}: its training is not finished. Run the same `multibit train` again to go on.")
        if models := separate_models(folder):
            names = ", ".join(str(each) for each in models)
            raise FormatError(f"{folder}: holds separate models, one for each length. Name one of them: {names}.")
        record, config, recipe = _read_record(folder / "run.json")
        model = HashModel.load(folder / "model.safetensors")
        teacher = load_teacher(folder / "teacher.safetensors")
        split = Split.load(folder / "split.safetensors")
        found = {"model": model.fingerprint(), "teacher": teacher.fingerprint(), "split": split.fingerprint()}
        for name, digits in found.items():
            if digits != record[name]:
                raise FormatError(f"{folder}: {name}.safetensors is not the {name} that run.json describes.")
        return cls(
            folder,
            config,
            model,
            teacher,
            split,
            recipe,
            tuple(record["label_names"]),
            record,
        )

    @property
    def features(self) -> Path | None:
        """Where the features lay that the run was trained on, if it knows."""
        return Path(self.record["features"]) if self.record["features"] else None

    def open_features(self, path: Path | None = None) -> FeatureStore:
        """The features that the run was trained on, or others made by the same recipe.

        Raises:
            DataError: no path is known. MismatchError: another recipe.
        """
        where = path or self.features
        if where is None:
            raise DataError(f"{self.folder}: does not know where its features are; name them.")
        if path is None and not where.exists():
            raise DataError(
                f"{where}: the features that this run was trained on are gone; name them where they are now."
            )
        store = FeatureStore.open(where)
        self.recipe.require(store.recipe, str(where))
        return store

    def _load(self, load: Callable[..., T], recipe: EncoderRecipe) -> T:
        """The encoder that made the features, if anybody knows it."""
        try:
            return load(recipe.source or recipe.name, **recipe.options)
        except ConfigError:
            if recipe.weights:
                raise
            raise DataError(
                f"{self.folder}: was trained on ready features ({recipe.name}), so it cannot encode a raw text or "
                "picture. Encode it as they were made, then use HashModel.encode and Index.search in Python."
            ) from None

    def save_codes(
        self, path: Path, store: FeatureStore, bits: int | None = None, *, engine: str = "local", workers: int = 2
    ) -> None:
        """Write packed codes of all items to `.npz`: ids, image, text (items, bytes) uint8, bits, model.

        `engine` and `workers`: as of `encode_store`.
        """
        length = self._check_length(bits)
        coded = encode_store(self.model, store, engine=engine, workers=workers)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(
                file,
                ids=np.array(store.dataset.ids),
                image=coded.image.prefix(length).to_bytes(),
                text=coded.text.prefix(length).to_bytes(),
                bits=length,
                model=self.record["model"],
            )

    def save_mat(
        self, path: Path, store: FeatureStore, bits: int | None = None, *, engine: str = "local", workers: int = 2
    ) -> None:
        """Write the codes of the split's queries and database to the field's six-key `.mat`.

        `engine` and `workers`: as of `encode_store`.
        """
        self.require_own(store)
        self._check_length(bits)
        rows = np.concatenate([self.split.query, self.split.database])
        coded = encode_store(self.model, store, rows, engine=engine, workers=workers)
        query, database = map(coded.take, np.split(np.arange(len(rows)), [len(self.split.query)]))
        save_mat(path, (query.image, query.text, query.labels), (database.image, database.text, database.labels), bits)

    def _check_length(self, bits: int | None) -> int:
        """`Codes.check_length` before there are codes."""
        return Codes.from_bits(np.zeros((0, self.model.bits), bool)).check_length(bits)

    def require_own(self, store: FeatureStore) -> None:
        """Refuse features that the split of the run does not belong to.

        Raises:
            MismatchError: other data; with its own split unknown, training items could be among the queries.
        """
        if store.fingerprint() != self.record["data"]:
            raise MismatchError(
                f"{store.source or 'these features'}: not the data that the run's split belongs to, so training items "
                f"could be among the queries: data {store.fingerprint()} with {len(store)} items here, "
                f"{self.record['data']} with {self.record['dataset']['items']} in {self.folder}. "
                f"Name the features that it was trained on: {self.record['features'] or 'it does not know where'}."
            )

    def require_same_split(self, other: Run) -> None:
        """Refuse to compare runs whose queries differ.

        Raises:
            MismatchError: the splits differ.
        """
        if other.split.fingerprint() != self.split.fingerprint():
            raise MismatchError(f"{other.folder} and {self.folder} have different splits: they cannot be compared.")

    def require_comparable(self, other: Run) -> None:
        """Refuse to compare runs whose queries or code lengths differ.

        Raises:
            MismatchError: the splits or the lengths differ.
        """
        self.require_same_split(other)
        if other.config.lengths != self.config.lengths:
            lengths = ["/".join(map(str, each.config.lengths)) for each in (other, self)]
            raise MismatchError(
                f"{other.folder} has codes of {lengths[0]} bits, {self.folder} of {lengths[1]} bits: they cannot be "
                "compared. Train both with the same lengths."
            )

    def index_items(
        self, index: Index, store: FeatureStore, modality: Modality, rows: NDArray[np.int64] | None = None
    ) -> None:
        """Encode one modality of some items (all when None) into an index, with picture, text and labels.

        Items that the index knows by id are replaced.

        Raises:
            MismatchError: the index holds codes of another model.
        """
        index.require_model(self.record["model"])
        chosen = np.arange(len(store)) if rows is None else row_numbers(rows, len(store))
        codes = encode(self.model, store.take(chosen)).codes(modality)
        index.upsert([store.dataset.ids[row] for row in chosen], codes, [store.dataset.describe(row) for row in chosen])

    def encode_text(self, text: str) -> NDArray[np.float32]:
        """Relaxed code (1, B) of a raw text, by the text encoder that the run was trained with."""
        encoder = self._load(load_text_encoder, self.recipe.text)
        self.recipe.require(Recipe(self.recipe.image, encoder.recipe), "this machine's encoders")
        return self.model.encode(encoder.encode([text]), "text")

    def encode_picture(self, path: Path) -> NDArray[np.float32]:
        """Relaxed code (1, B) of a picture file, by the picture encoder that the run was trained with."""
        encoder = self._load(load_picture_encoder, self.recipe.image)
        self.recipe.require(Recipe(encoder.recipe, self.recipe.text), "this machine's encoders")
        return self.model.encode(encoder.encode([encoder.prepare(open_picture(path))]), "image")

    def evaluate(
        self,
        store: FeatureStore,
        *,
        at: int | None = None,
        graded: Sequence[GradedRelevance] = (),
        anchor: Run | None = None,
    ) -> list[Evaluation]:
        """Measure the query set against both databases: with and without the training and validation items.

        A protocol whose database is empty is left out.

        Args:
            store: the features that the run was split by. at, graded: as in `evaluation.evaluate`.
            anchor: the run whose first ranks all candidate pools share; this run when None.

        Raises:
            MismatchError: these are not the features that the split of the run belongs to, or the anchor has another
                split.
        """
        self.require_own(store)
        self.require_same_split(anchor or self)
        query = encode(self.model, store.take(self.split.query))
        labels = store.dataset.labels[self.split.train]
        fingerprints = {"run": self.record["model"], "data": self.record["data"], "split": self.record["split"]}
        evaluations = []
        for protocol, rows in self.databases.items():
            database = encode(self.model, store.take(rows))
            first = self.first_rows(store, rows, anchor) if graded and anchor is not None else None
            evaluations.append(
                evaluate(
                    query, database, self.config.lengths, training_labels=labels, protocol=protocol, at=at,
                    graded=graded, anchor=first, name=self.folder.resolve().name, fingerprints=fingerprints,
                )
            )  # fmt: skip
        return evaluations

    @property
    def databases(self) -> dict[str, NDArray[np.int64]]:
        """Protocol -> rows that are searched: with and without the training and validation items, if any are left."""
        rows = {PROTOCOLS["in"]: self.split.database, PROTOCOLS["out"]: self.split.unseen}
        return {protocol: each for protocol, each in rows.items() if len(each)}

    def first_rows(self, store: FeatureStore, rows: NDArray[np.int64], anchor: Run) -> Anchor:
        """The first ranks of the anchor run among these rows, which all candidate pools share."""
        query, database = (encode(anchor.model, store.take(part)) for part in (self.split.query, rows))
        return first_rows(query, database, self.config.lengths)
