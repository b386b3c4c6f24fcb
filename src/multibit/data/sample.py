"""The packaged sample: 4,769 public-domain OpenClipart images with texts and 73 labels."""

from __future__ import annotations

import warnings
from pathlib import Path

from multibit.data.dataset import PairedDataset
from multibit.data.manifest import read_manifest
from multibit.data.notes import DataNote

FOLDER = Path(__file__).parent.parent / "sample" / "openclipart"


def load_sample() -> PairedDataset:
    """The sample as a data set, read from an ordinary manifest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNote)  # title and license are for the reader of the file
        return read_manifest(FOLDER / "items.jsonl")
