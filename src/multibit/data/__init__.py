"""Data sets and splits, and the readers of common dataset layouts."""

from multibit.data.dataset import PairedDataset
from multibit.data.split import Split

__all__ = ["PairedDataset", "Split"]
