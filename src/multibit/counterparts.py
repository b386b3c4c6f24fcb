"""Codes and real values of single images and texts of a run, for pair recall; read from its features in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import Rows, unit_rows
from multibit.codes import MODALITIES, CodedItems, Codes, Modality
from multibit.evaluation.pair_metrics import RealBlock, TextCodes
from multibit.features import FeatureStore
from multibit.features.pairs import Pairs
from multibit.hashing.encode import shared_features
from multibit.runs import Run

BLOCK = 2_048  # items whose features are read at once

RELAXED, SHARED, ENCODER = "relaxed", "shared features", "encoder features"
"""Names of real values: codes before their sign, what both networks map to, and the features of a joint encoder."""


def text_codes(run: Run, store: FeatureStore, rows: Rows) -> TextCodes:
    """The codes of each text of some items.

    Args:
        run: its model. store: the features. rows: of the items.
    """
    blocks, counts = [], [np.zeros(0, np.int64)]
    for pairs in _pairs(store, rows):
        blocks.append(Codes.binarize(_coded_texts(run, pairs)))
        counts.append(np.diff(pairs.offsets))
    return TextCodes(Codes.concatenate(blocks), np.concatenate(counts), run.model.layout)


def real_blocks(
    run: Run, store: FeatureStore, query: CodedItems, database: CodedItems
) -> tuple[RealBlock, Iterator[RealBlock]]:
    """Real values of the query items, and of the database some items at a time.

    Args:
        run: its model, whose shared features are a ceiling of its codes; and so are the features of a joint encoder.
        store: the features. query, database: coded items of its split; relaxed values, if any, are taken from them.
    """
    (whole,) = _blocks(run, store, run.split.query, query, max(len(query), 1))
    return whole, _blocks(run, store, run.split.database, database, BLOCK)


def _blocks(run: Run, store: FeatureStore, rows: Rows, items: CodedItems, size: int) -> Iterator[RealBlock]:
    start = 0
    for pairs in _pairs(store, rows, size):
        part = slice(start, start + len(pairs))
        values: dict[tuple[str, int], dict[Modality, NDArray[np.float32]]] = {}
        if items.relaxed and run.model.layout.views == 1:
            single = len(pairs.text) == len(pairs)
            relaxed = {
                "image": items.relaxed["image"][part],
                "text": items.relaxed["text"][part] if single else _coded_texts(run, pairs),
            }
            for bits in run.lengths:
                columns = run.model.layout.part(bits)
                values[RELAXED, bits] = {m: relaxed[m][:, columns][:, :bits] for m in MODALITIES}
        features: dict[Modality, NDArray[np.float32]] = {"image": pairs.image, "text": pairs.text}
        shared = {modality: shared_features(run.model, each, modality) for modality, each in features.items()}
        if all(each is not None for each in shared.values()):
            values[SHARED, 0] = {modality: unit_rows(each) for modality, each in shared.items() if each is not None}
        if store.recipe.is_joint:
            values[ENCODER, 0] = {modality: unit_rows(each) for modality, each in features.items()}
        content = {modality: pairs.features(modality) for modality in MODALITIES}
        yield RealBlock(values, np.diff(pairs.offsets), content)
        start = part.stop


def _coded_texts(run: Run, pairs: Pairs) -> NDArray[np.float32]:
    """Relaxed code of each text: (T, stored bits)."""
    return run.model.encode(pairs.text, "text", pairs.text_tokens if run.model.reads_tokens else None)


def _pairs(store: FeatureStore, rows: Rows, size: int = BLOCK) -> Iterator[Pairs]:
    return (store.take(rows[start : start + size]) for start in range(0, len(rows), size))
