"""Readers of common dataset layouts: one reader per kind of source, all called by `read`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from multibit.data.dataset import PairedDataset
from multibit.data.export import read_dataset_npz
from multibit.data.manifest import read_manifest
from multibit.data.notes import DataNote, note
from multibit.data.sources.coco import read_coco
from multibit.data.sources.folders import read_folders, read_pairs
from multibit.data.sources.huggingface import read_huggingface
from multibit.data.sources.iapr import read_iapr
from multibit.data.sources.mat import read_mat, read_mat_features
from multibit.data.sources.mirflickr import read_mirflickr
from multibit.data.sources.nuswide import read_nuswide
from multibit.data.sources.webdataset import read_webdataset
from multibit.data.values import mixes_scripts
from multibit.errors import ConfigError, counted, require_known

__all__ = ["READERS", "UNPACKED", "DataNote", "read"]

READERS: Mapping[str, Callable[..., PairedDataset | dict[str, NDArray[Any]]]] = {
    "manifest": read_manifest,
    "npz": read_dataset_npz,
    "mat": read_mat,
    "mat-features": read_mat_features,
    "mirflickr": read_mirflickr,
    "coco": read_coco,
    "nuswide": read_nuswide,
    "iapr": read_iapr,
    "folders": read_folders,
    "pairs": read_pairs,
    "webdataset": read_webdataset,
    "huggingface": read_huggingface,
}
"""Reader by kind. mat-features returns the arrays of a feature file, all others a data set."""

UNPACKED = frozenset(("webdataset", "huggingface"))
"""Kinds whose images are inside the source and are written to the folder `images`."""


def read(kind: str, source: Path | str, **options: Any) -> PairedDataset | dict[str, NDArray[Any]]:
    r"""Read a source of a kind; remarks about the source are `DataNote` warnings.

    Args:
        kind: one of `READERS`. source: file or folder. options: arguments of that kind's reader, None for a default.

    Raises:
        ConfigError: unknown kind, or an argument that its reader does not take or requires. DataError: as the reader.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "items.csv"
        >>> _ = path.write_text("id,text,category\na,a cat,cat\nb,a dog,dog\n")
        >>> read("manifest", path, columns={"labels": "category"})
        PairedDataset(2 items, 2 labels)
    """
    require_known("kind", kind, READERS)
    given = {name: value for name, value in options.items() if value is not None}
    taken = dict(list(inspect.signature(READERS[kind]).parameters.items())[1:])
    if extra := sorted(set(given) - set(taken)):
        raise ConfigError(
            f"has no effect on the kind {kind}.",
            option=extra[0],
            hint=f"Leave out {_quoted(extra)}; {kind} takes {_quoted(taken) or 'no options'}.",
        )
    if missing := [name for name, each in taken.items() if each.default is each.empty and name not in given]:
        raise ConfigError(f"required for the kind {kind}.", option=missing[0])
    found = READERS[kind](source, **given)
    if "encoding" in taken and "encoding" not in given and isinstance(found, PairedDataset):
        odd = [text for texts in found.texts for text in texts if not text.isascii() and mixes_scripts(text)]
        if odd:
            texts = counted(len(odd), "text mixes", "texts mix")
            note(
                f"{source}: {texts} scripts inside a word, such as {odd[0][:40]!r}; if that is wrong, "
                "name the encoding of the files, such as gb18030."
            )
    return found


def _quoted(names: Iterable[str]) -> str:
    """Arguments as an error's hint names them."""
    return ", ".join(f"`{name}`" for name in names)
