"""Data sets and splits, and the readers of common dataset layouts."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from multibit.data.dataset import PairedDataset
    from multibit.data.split import Split

__all__ = ["PairedDataset", "Split"]

# loaded on first use, so that an image is read without Arrow and scipy
__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs={"dataset": ["PairedDataset"], "split": ["Split"]})
