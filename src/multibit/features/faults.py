"""Faults of feature vectors, as findings for `multibit.data.checking.check_dataset`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from multibit.data.checking import Finding
from multibit.features.store import FeatureStore

BLOCK = 16_384  # rows in memory at a time


def feature_faults(store: FeatureStore) -> Iterator[Finding]:
    """Items whose features are not finite, not representable in float32, or all zero, or whose tokens are not finite.

    Args:
        store: N items; its arrays are read in blocks of rows.

    Yields:
        One finding per modality and fault, with the ids of the items that have it, if any.
    """
    owners = {"image": np.arange(len(store)), "text": np.repeat(np.arange(len(store)), np.diff(store.offsets))}
    for modality, owner in owners.items():
        array = getattr(store, modality)
        infinite, lost, empty = set(), set(), set()
        for start in range(0, len(array), BLOCK):
            part = np.asarray(array[start : start + BLOCK])
            items = owner[start : start + BLOCK]
            with np.errstate(over="ignore", under="ignore"):
                single = part.astype(np.float32, copy=False)  # the network's type
            finite, zero = np.isfinite(part).all(axis=1), (part == 0).all(axis=1)
            kept = np.isfinite(single).all(axis=1) & (zero | (single != 0).any(axis=1))
            infinite.update(items[~finite].tolist())
            lost.update(items[finite & ~kept].tolist())
            empty.update(items[zero].tolist())
        for what, rows, meaning in (
            ("non-finite", infinite, "training and encoding refuse them"),
            ("not representable in float32", lost, "training and encoding refuse them; scale the features"),
            ("all zero", empty, "they have no direction, so all of them get the same code"),
        ):
            yield Finding(f"{modality} features: {what}", [store.dataset.ids[row] for row in sorted(rows)], meaning)
    for modality, tokens in store.tokens.items():
        infinite, start = set(), 0
        for block in tokens.blocks():
            finite = np.isfinite(block).all(axis=(1, 2))
            infinite.update(owners[modality][start : start + len(block)][~finite].tolist())
            start += len(block)
        ids = [store.dataset.ids[row] for row in sorted(infinite)]
        yield Finding(f"{modality} tokens: non-finite", ids, "methods that read tokens learn nothing from them")
