"""multibit: one nested binary code for image-text search.

    labels ─> relation ─> hashing ─> codes ─> search
       data ──features──────^           └──> evaluation ─> report

Names are loaded when first used, so importing the package imports neither torch nor numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from multibit.codes import Codes, hamming_distances
    from multibit.config import Config
    from multibit.data import FeatureStore, PairedDataset, Pairs, Split
    from multibit.data.manifest import read_manifest
    from multibit.evaluation import (
        average_precision,
        evaluate,
        mean_average_precision,
        precision_at,
        precision_recall,
    )
    from multibit.hashing import HashModel, allocate_bits
    from multibit.relation import RelationTeacher
    from multibit.runs import Run
    from multibit.search import Index
    from multibit.training import encode, encode_store, train

_HOME = {
    "Codes": "codes",
    "Config": "config",
    "FeatureStore": "data",
    "HashModel": "hashing",
    "Index": "search",
    "PairedDataset": "data",
    "Pairs": "data",
    "RelationTeacher": "relation",
    "Run": "runs",
    "Split": "data",
    "allocate_bits": "hashing",
    "average_precision": "evaluation",
    "encode": "training",
    "encode_store": "training",
    "evaluate": "evaluation",
    "hamming_distances": "codes",
    "mean_average_precision": "evaluation",
    "precision_at": "evaluation",
    "precision_recall": "evaluation",
    "read_manifest": "data.manifest",
    "train": "training",
}

__all__ = [
    "Codes",
    "Config",
    "FeatureStore",
    "HashModel",
    "Index",
    "PairedDataset",
    "Pairs",
    "RelationTeacher",
    "Run",
    "Split",
    "allocate_bits",
    "average_precision",
    "encode",
    "encode_store",
    "evaluate",
    "hamming_distances",
    "mean_average_precision",
    "precision_at",
    "precision_recall",
    "read_manifest",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'multibit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"multibit.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
