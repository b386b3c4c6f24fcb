"""What a published folder has next to the files of the run: networks in ONNX, a model card, and indices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from multibit.errors import DataError
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.storage import load_evaluations
from multibit.hashing.heads import can_export
from multibit.portable.card import model_card
from multibit.portable.export import has_packaged_encoders, write_config, write_networks
from multibit.portable.model import NETWORKS
from multibit.search import Index
from multibit.search.building import copy_index
from multibit.search.names import INDEX

if TYPE_CHECKING:
    from multibit.runs import Run

IMAGE = "image"
"""Field of an index with the paths of the images, which nobody else has."""


def write_published(
    run: Run,
    folder: Path,
    *,
    name: str,
    license: str | None = None,
    encoders: bool | None = None,
    index: Path | None = None,
    download: bool = False,
) -> None:
    """Write what makes a run folder a published one.

    Args:
        run: to publish. folder: exists. name, license: as for `model_card`.
        encoders: with the encoders in ONNX. None: only where they are packaged ones, others are named in the recipe.
        index: folder of the indices to publish; their ids, texts, labels and other fields, but no paths of images.
        download: as for `export_run`.

    Raises:
        DataError: the recipe or the settings name a path of this machine, no index in the folder, or, for `encoders`,
            as `export_run`. MismatchError: an index of another model.
    """
    require_no_paths({"recipe": run.recipe.to_dict(), "config": run.config.to_dict()}, run.folder / "run.json")
    if encoders or can_export(run.model):
        encoders = has_packaged_encoders(run) if encoders is None else encoders
        write_networks(run, folder / NETWORKS, encoders=encoders, download=download)
    write_config(run, folder)
    card = model_card(run, name=name, license=license, evaluations=evaluations_of(run))
    (folder / "README.md").write_text(card, encoding="utf-8")
    if index is not None:
        _write_indices(run, Path(index), folder / INDEX)


def evaluations_of(run: Run) -> list[Evaluation]:
    """The evaluations that `multibit evaluate` wrote into the run folder, if any.

    Raises:
        FormatError: corrupt.
    """
    path = run.folder / "evaluation.json"
    found = load_evaluations(path) if path.is_file() else []
    return [each for each in found if each.fingerprints.get("run") == run.record.model]


def require_no_paths(content: dict[str, Any], file: Path) -> None:
    """Refuse a record that names a path of this machine.

    Raises:
        DataError: names the field.
    """
    for name, text in _texts(content, ""):
        if PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute():
            raise DataError(
                f"names the local path {text}, which nobody else has.",
                file=file,
                field=name,
                hint="Train on features of an encoder that is named by its package or its name on the Hub.",
            )


def _texts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """All texts in a record, with the dotted names of their fields."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(each, f"{name}.{key}" if name else str(key))
    elif isinstance(value, str):
        yield name, value


def _write_indices(run: Run, source: Path, target: Path) -> None:
    files = sorted(source.glob("*.mbx"))
    if not files:
        raise DataError("no index.", file=source, hint=f"Build one with: multibit index {run.folder}")
    target.mkdir()
    for file in files:
        index = Index.load(file)
        index.require_model(run.record.model)
        copy_index(index, target / file.name, [field for field in index.fields if field != IMAGE])
