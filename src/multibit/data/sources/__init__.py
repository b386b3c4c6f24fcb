"""Data as people have it -> a data set: one reader per kind of source, all under one verb."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from multibit.data.dataset import PairedDataset
from multibit.data.export import read_dataset_npz
from multibit.data.manifest import read_manifest
from multibit.data.sources.coco import read_coco
from multibit.data.sources.common import DataNote
from multibit.data.sources.folders import read_folders, read_pairs
from multibit.data.sources.huggingface import read_huggingface
from multibit.data.sources.iapr import read_iapr
from multibit.data.sources.mat import read_mat, read_mat_features
from multibit.data.sources.mirflickr import read_mirflickr
from multibit.data.sources.nuswide import read_nuswide
from multibit.data.sources.webdataset import read_webdataset
from multibit.errors import ConfigError

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
"""Reader by kind. Only mat-features gives the arrays of a feature file, all others a data set."""

UNPACKED = frozenset(("webdataset", "huggingface"))
"""Kinds whose pictures are inside the source and are written to the folder `images`."""


def read(kind: str, source: Path | str, **options: Any) -> PairedDataset | dict[str, NDArray[Any]]:
    """Read a source of a kind; what people should know about it comes as a `DataNote` warning.

    Args:
        kind: one of `READERS`. source: file or folder. options: of that kind's reader, None for its default.

    Raises:
        ConfigError: unknown kind, or an option that it does not take or needs. DataError: as the reader.
    """
    if kind not in READERS:
        raise ConfigError(f"kind {kind!r} is unknown; there are {', '.join(READERS)}.")
    given = {name: value for name, value in options.items() if value is not None}
    taken = dict(list(inspect.signature(READERS[kind]).parameters.items())[1:])
    if extra := sorted(set(given) - set(taken)):
        raise ConfigError(f"{kind} takes no {_spelled(extra)}; it takes {_spelled(taken) or 'no option'}.")
    if missing := [name for name, each in taken.items() if each.default is each.empty and name not in given]:
        raise ConfigError(f"{kind} needs {_spelled(missing)}.")
    return READERS[kind](source, **given)


def _spelled(names: Iterable[str]) -> str:
    """Options as the command line has them."""
    return ", ".join("--map" if name in ("names", "columns") else f"--{name.replace('_', '-')}" for name in names)
