"""What comparisons of trained methods share: their options, the features, and the recall of the own counterpart."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from common import new_parser

from multibit import CodedItems, Config, FeatureStore
from multibit.codes.items import DIRECTIONS
from multibit.evaluation.pair_recall import pair_recall
from multibit.paper.reproduction import Reproduction, Subject

SMOKE = Config(epochs=1, lengths=(8, 16), scales=2, hidden=16, dimension=8)


def comparison_parser(about: str | None, folder: str, seeds: str) -> argparse.ArgumentParser:
    """A parser of the features, the folder of the runs, seeds and epochs.

    Args:
        about: the docstring of the benchmark. folder: default of --out. seeds: default of --seeds.
    """
    parser = new_parser(about)
    parser.add_argument("features", type=Path, nargs="?", help="a feature store or .npz file")
    parser.add_argument("--out", type=Path, default=Path(folder), help="folder of the runs, which are kept")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=seeds)
    parser.add_argument("--epochs", type=int, default=100)
    return parser


def reproduction(features: Path, folder: Path, config: Config) -> Reproduction:
    """Trainings on a feature store or `.npz`, whose runs are kept in a folder."""
    store = FeatureStore.open(features)
    subject = Subject(store.dataset.labels, store.dataset.label_names, store)
    return Reproduction(subject, folder, config, say=lambda text: None)


@contextlib.contextmanager
def smoke_reproduction(**arrays: np.ndarray) -> Iterator[Reproduction]:
    """Tiny trainings on planted features, in a temporary folder: `image`, `text` and `labels` of some items."""
    with tempfile.TemporaryDirectory() as folder:
        features = Path(folder) / "planted.npz"
        np.savez(features, **arrays)
        yield reproduction(features, Path(folder), SMOKE)


def own_recall(items: CodedItems, direction: str, bits: int | None = None) -> float:
    """Items whose own counterpart is among the first ten of all items, ties averaged, in percent."""
    asked, searched = DIRECTIONS[direction]
    return 100 * float(np.mean(pair_recall(items.codes(asked), items.codes(searched), 10, bits)))
