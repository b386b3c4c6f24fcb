"""Encoding: features -> coded items, in memory or block by block."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from multibit.arrays import Rows, row_numbers
from multibit.codes import MODALITIES, CodedItems, Codes
from multibit.errors import require_known
from multibit.features import FeatureStore, Pairs
from multibit.features.cluster import ENGINES, run_on_ray
from multibit.hashing.model import ENCODE_ROWS, HashModel
from multibit.progress import track


def encode(model: HashModel, pairs: Pairs) -> CodedItems:
    """Code both modalities of items in memory; an item with several texts is coded by their mean.

    Args:
        model: the trained model. pairs: n items.

    Returns:
        n coded items with their relaxed values.

    Raises:
        DataError: features of another dimension.
    """
    relaxed = {"image": model.encode(pairs.image, "image"), "text": model.encode(pairs.mean_text, "text")}
    return CodedItems.binarize({modality: relaxed[modality] for modality in MODALITIES}, pairs.labels)


def encode_store(
    model: HashModel,
    store: FeatureStore,
    rows: ArrayLike | None = None,
    *,
    keep_relaxed: bool = False,
    engine: str = "local",
    workers: int = 2,
) -> CodedItems:
    """Code items of a feature store, with a few thousand rows in memory at a time.

    Args:
        model: the trained model. store: the items. rows: of the items to encode, or a mask; all when None.
        keep_relaxed: also keep the relaxed values, 4 bytes per bit and modality.
        engine: "local", or "ray" for the machines of a Ray cluster that can all read the store; the codes are the same.
        workers: number of Ray workers.

    Raises:
        DataError: a value that is not finite, or features of another dimension. ConfigError: an unknown engine.
            MissingExtraError, MultibitError: as `run_on_ray`.
    """
    require_known("engine", engine, ENGINES)
    chosen = np.arange(len(store)) if rows is None else row_numbers(rows, len(store))
    starts = range(0, max(len(chosen), 1), ENCODE_ROWS)
    work = partial(_encode_block, model, store, chosen, keep_relaxed)
    results = run_on_ray(work, starts, workers) if engine == "ray" else map(work, starts)
    blocks = []
    with track("Encoding features", len(chosen), "items") as advance:
        for block in results:
            blocks.append(block)
            advance(len(block))
    image, text = (Codes.concatenate([block.codes(modality) for block in blocks]) for modality in MODALITIES)
    relaxed = {
        modality: np.concatenate([block.relaxed[modality] for block in blocks])
        for modality in MODALITIES
        if keep_relaxed
    }
    return CodedItems(image, text, store.dataset.labels[chosen], relaxed)


def _encode_block(model: HashModel, store: FeatureStore, rows: Rows, keep_relaxed: bool, start: int) -> CodedItems:
    """Code the rows that `HashModel.encode` passes through the network together, so results are bit-identical."""
    block = encode(model, store.take(rows[start : start + ENCODE_ROWS]))
    return block if keep_relaxed else CodedItems(block.image, block.text, block.labels)
