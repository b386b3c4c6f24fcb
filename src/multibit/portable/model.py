"""The portable model: both encoders and both hash networks of a run, run by ONNX Runtime.

The folder has `config.json`, a model card, and in `onnx/` the hash network of each modality (`heads/`) and the encoders
(`encoders/`). Where the encoders are missing, they are packaged ones, and taken from the cache of the user.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import as_float32, as_matrix
from multibit.codes.items import MODALITIES, Modality
from multibit.codes.layout import Layout
from multibit.config import MAX_BITS
from multibit.errors import DataError, FormatError, MissingExtraError, require_known
from multibit.features.base import prompted
from multibit.features.portable import PortableImages, PortableTexts, cached_folder, is_cached, read_about
from multibit.features.recipe import Recipe
from multibit.features.sessions import Network
from multibit.files import building, read_json, typed
from multibit.paths import located

if TYPE_CHECKING:
    from PIL import Image

    from multibit.features.base import ImageEncoder, TextEncoder
    from multibit.features.tokens import Tokens
    from multibit.relation import RelationTeacher

KIND, VERSION = "portable model", 1
CONFIG, FOLDER, NETWORKS, TEACHER = "config.json", "portable", "onnx", "teacher.safetensors"
ROWS = 4096  # coded at a time


Length = Annotated[int, msgspec.Meta(ge=1, le=MAX_BITS)]


class PortableConfig(msgspec.Struct):
    """Content of `config.json`.

    Attributes:
        model: fingerprint of the weights. method: name. layout: of the codes. lengths: of the training.
        dimensions: modality -> length of the features. recipe: of the features. versions: of the libraries that wrote
            the folder. label_names, blocks, teacher: as in the record of the run; empty in folders of earlier versions.
        heads: modality -> checksum of its hash network; empty in folders of earlier versions.
    """

    model: str
    method: str
    layout: dict[str, Any]
    lengths: Annotated[list[Length], msgspec.Meta(min_length=1)]
    dimensions: dict[Modality, Annotated[int, msgspec.Meta(ge=1, lt=1 << 24)]]
    recipe: Recipe
    versions: dict[str, str] = {}
    label_names: list[str] = []
    blocks: list[int] = []
    teacher: str = ""
    heads: dict[str, str] = {}


@dataclass(frozen=True, eq=False)
class PortableModel:
    """Encodes images and texts without torch. `multibit.portable.export.export_run` writes its folder.

    Attributes:
        folder: of its files. weights: hash of those of the model that was exported. method: name.
        layout: of the codes. lengths: of the training, ascending. recipe: of the features.
        dimensions: modality -> length of the features. many: many queries will follow, see `Network`.
        heads: modality -> checksum of its hash network; none in folders of earlier versions.
    """

    folder: Path
    weights: str
    method: str
    layout: Layout
    lengths: tuple[int, ...]
    recipe: Recipe
    dimensions: dict[Modality, int]
    many: bool = False
    heads: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"PortableModel({str(self.folder)!r}, {self.method}, {self.layout.longest} bits)"

    @classmethod
    def open(cls, folder: Path | str, *, many: bool = False) -> PortableModel:
        """Open a folder; networks are opened when first used.

        Args:
            folder: of the model. many: many queries will follow, as in a server, see `Network`.

        Raises:
            FormatError: missing, corrupt or newer.
        """
        path, config = Path(folder) / CONFIG, read_portable_config(Path(folder))
        with building(path):
            layout = Layout.from_dict(config.layout)
            if not 1 <= layout.longest <= MAX_BITS or max(config.lengths) > layout.longest or layout.views < 1:
                raise ValueError(f"code lengths {config.lengths}, layout {config.layout}")
            if set(config.dimensions) != set(MODALITIES):
                raise ValueError(f"dimensions of {', '.join(config.dimensions) or 'nothing'}")
        return cls(
            Path(folder), config.model, config.method, layout, tuple(config.lengths), config.recipe, config.dimensions,
            many, config.heads,
        )  # fmt: skip

    def fingerprint(self) -> str:
        """That of the model that was exported, which identifies its codes."""
        return self.weights

    @property
    def bits(self) -> int:
        """The longest code length."""
        return self.layout.longest

    @property
    def networks(self) -> Path:
        """Folder of the networks; that of the model in folders of earlier versions."""
        found = self.folder / NETWORKS
        return found if found.is_dir() else self.folder

    @property
    def reads_tokens(self) -> bool:
        """Never: such networks cannot be exported."""
        return False

    def serving(self, bits: int) -> PortableModel:
        """Itself: its networks make the codes of all lengths."""
        return self

    def encode(self, features: ArrayLike, modality: Modality, tokens: Tokens | None = None) -> NDArray[np.float32]:
        """Relaxed codes of (n, d_m) features: (n, stored bits) float32, as `CodeModel.encode`.

        Raises:
            DataError: features of another dimension, or a value that is not finite. ConfigError: unknown modality.
        """
        require_known("modality", modality, MODALITIES)
        array = as_matrix(features, self.dimensions[modality], f"{modality} features")
        out = np.empty((len(array), self.layout.stored), np.float32)
        for start in range(0, len(array), ROWS):
            rows = np.arange(start, min(start + ROWS, len(array)))
            block = as_float32(array[rows], f"{modality} features", rows)
            out[rows] = self._heads[modality]({"features": block}, ["codes"])[0]
        return out

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Texts of any length and script -> relaxed codes (n, stored bits).

        Raises:
            FormatError: a file is missing or corrupt. MissingExtraError: a library is not installed. MismatchError: the
                encoder differs from that of the training.
        """
        return self.encode(self.text_encoder.encode(texts), "text")

    def encode_images(self, images: Sequence[Image.Image]) -> NDArray[np.float32]:
        """RGB images, as `multibit.data.images.open_image` reads them, -> relaxed codes (n, stored bits).

        Raises:
            FormatError, MissingExtraError, MismatchError: as `encode_texts`.
        """
        encoder = self.image_encoder
        if not images:
            return np.empty((0, self.layout.stored), np.float32)
        return self.encode(encoder.encode([encoder.prepare(image) for image in images]), "image")

    @cached_property
    def _heads(self) -> dict[Modality, Network]:
        return {
            modality: Network(
                self.networks / "heads" / modality, self.heads.get(modality, ""), many=self.many, is_large=False
            )
            for modality in MODALITIES
        }

    def require_whole(self) -> None:
        """Compare all networks of the folder with their checksums, which opening does for those that are not cached.

        Raises:
            FormatError: one is missing or was changed.
        """
        for network in self._heads.values():
            network.require_whole()
        for modality in MODALITIES:
            folder = self.networks / "encoders" / modality
            if folder.exists():
                Network(folder, read_about(folder, modality).checksum).require_whole()

    @cached_property
    def text_encoder(self) -> TextEncoder:
        """The encoder of texts, with the prompt of the training."""
        encoder = prompted(PortableTexts(self._encoder_folder("text"), many=self.many), self.recipe.text.prompt)
        self.recipe.require_encoder("text", encoder.recipe, "the encoders of this folder")
        return encoder

    @cached_property
    def image_encoder(self) -> ImageEncoder:
        """The encoder of images."""
        encoder = PortableImages(self._encoder_folder("image"), many=self.many)
        self.recipe.require_encoder("image", encoder.recipe, "the encoders of this folder")
        return encoder

    @property
    def is_complete(self) -> bool:
        """Whether all networks are here, or in packages; a published run may only name its encoders."""
        places = [(self.networks / part / each) for part in ("heads", "encoders") for each in MODALITIES]
        packaged = all(_is_packaged(self.recipe, modality) for modality in MODALITIES)
        return all(place.is_dir() for place in (places[:2] if packaged else places))

    def _encoder_folder(self, modality: Modality) -> Path:
        """Folder of an encoder: of this model, else in the cache, where it is written if torch is installed."""
        own = self.networks / "encoders" / modality
        if own.exists():
            return own
        recipe = getattr(self.recipe, modality)
        if not _is_packaged(self.recipe, modality):
            raise DataError(
                f"the {modality} encoder {recipe.name!r} is only named, not included.",
                file=self.folder,
                hint="Export the run with its encoders, or install multibit[clip], which loads them by name.",
            )
        cached = cached_folder(recipe.name, recipe.weights)
        if is_cached(cached):
            return cached
        try:
            from multibit.features.export import cached_encoder  # imports torch
        except ModuleNotFoundError as error:
            need = f"The {modality} encoder {recipe.name}, which is neither in {self.folder} nor in the cache,"
            raise MissingExtraError(str(error.name), extra="offline", need=need) from None
        return cached_encoder(recipe.name, modality)


def _is_packaged(recipe: Recipe, modality: Modality) -> bool:
    """Whether the encoder of a modality is one that comes inside a package."""
    from multibit.features.packaged import IMAGE_ENCODERS, TEXT_ENCODERS

    known: Collection[str] = IMAGE_ENCODERS if modality == "image" else TEXT_ENCODERS
    each = getattr(recipe, modality)
    return each.name in known and bool(each.weights) and not each.source


def read_portable_config(folder: Path) -> PortableConfig:
    """Content of the `config.json` of a portable model.

    Raises:
        FormatError: missing, corrupt or newer.
    """
    return typed(read_json(folder / CONFIG, kind=KIND, version=VERSION), PortableConfig, folder / CONFIG)


class Record(msgspec.Struct):
    """What encoding and serving need to know of `run.json`.

    Attributes:
        model: fingerprint of the weights. method: name. features: path of the feature store of the training, if known.
        label_names: of the label columns. blocks: bits of each scale. teacher: fingerprint; "" without one.
    """

    model: str
    method: str = ""
    features: str | None = None
    label_names: list[str] = []
    blocks: list[int] = []
    teacher: str = ""


def is_portable(folder: Path) -> bool:
    """Whether a folder is a portable model of its own, not a run that has one."""
    return (folder / CONFIG).is_file() and not (folder / "run.json").exists()


@dataclass(frozen=True, eq=False)
class PortableRun:
    """A run for encoding and searching, which loads neither torch nor what only training needs.

    The attributes are those of `Run` with these names.
    """

    folder: Path
    record: Record
    model: PortableModel

    def __repr__(self) -> str:
        return f"PortableRun({str(self.folder)!r}, {self.model.bits} bits)"

    @property
    def recipe(self) -> Recipe:
        """Of the features."""
        return self.model.recipe

    @property
    def features(self) -> Path | None:
        """Path of the features of the training; None if it is not recorded."""
        return None if self.record.features is None else located(self.record.features, self.folder)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The code lengths of the training, ascending."""
        return self.model.lengths

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the label columns."""
        return tuple(self.record.label_names)

    def text_encoder(self, *, download: bool = False) -> TextEncoder:
        """See `Run.text_encoder`; it is in the folder or the cache, so nothing is downloaded."""
        return self.model.text_encoder

    def image_encoder(self, *, download: bool = False) -> ImageEncoder:
        """See `Run.image_encoder`; it is in the folder or the cache, so nothing is downloaded."""
        return self.model.image_encoder

    @cached_property
    def teacher(self) -> RelationTeacher | None:
        """The relation teacher of the training; None for a method without one, or where its file was left out.

        Raises:
            FormatError: the file is corrupt, or of another teacher.
        """
        path = self.folder / TEACHER
        if not self.record.teacher or not path.exists():
            return None
        from multibit.relation import load_teacher  # imports scipy

        teacher = load_teacher(path)
        if teacher.fingerprint() != self.record.teacher:
            raise FormatError("is not the teacher of this model.", file=path, hint="Export the run again.")
        return teacher

    @classmethod
    def find(cls, folder: Path | str, *, many: bool = False) -> PortableRun | None:
        """The portable model of a run folder, or of its own folder; None where there is none, or no ONNX Runtime.

        Args:
            folder: of a run, or of a portable model. many: as for `PortableModel.open`.

        Raises:
            FormatError: corrupt or newer, or the model of another run.
        """
        path = Path(folder)
        has_torch = importlib.util.find_spec("torch") is not None
        if importlib.util.find_spec("onnxruntime") is None and has_torch:
            return None
        is_run = (path / "run.json").is_file()
        place = path / FOLDER if is_run and (path / FOLDER / CONFIG).is_file() else path
        if not (place / CONFIG).is_file():
            return None
        model = PortableModel.open(place, many=many)
        if not is_run:
            config = read_portable_config(path)
            about = Record(config.model, config.method, None, config.label_names, config.blocks, config.teacher)
            return cls(path, about, model)
        record = typed(read_json(path / "run.json", kind="run", version=1), Record, path / "run.json")
        if record.model != model.weights:
            problem = f"is that of model {model.weights}, the run is model {record.model}."
            raise FormatError(problem, file=place, hint="Delete this folder and export the run again.")
        return cls(path, record, model) if model.is_complete or not has_torch else None
