"""Encoding: features -> coded items, in memory or block by block."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import Rows, row_numbers
from multibit.codes import MODALITIES, CodedItems, Codes, Modality
from multibit.errors import require_kind, require_known, require_opened
from multibit.features.cluster import ENGINES, run_on_ray
from multibit.features.pairs import Pairs
from multibit.features.tokens import Tokens
from multibit.progress import track

if TYPE_CHECKING:
    from multibit.codes.layout import Layout
    from multibit.features import FeatureStore
    from multibit.hashing.code_model import CodeModel

KIND, VERSION = "hash model", 2  # of the file of a `CodeModel`; that of the first network is written as version 1
ENCODE_ROWS = 4096  # rows per forward pass: bounds the memory


@runtime_checkable
class Coder(Protocol):
    """Codes features: a `CodeModel`, or a `PortableModel`."""

    @property
    def layout(self) -> Layout:
        """Of the codes."""
        ...

    @property
    def bits(self) -> int:
        """The longest code length."""
        ...

    @property
    def reads_tokens(self) -> bool:
        """Whether `encode` needs token features."""
        ...

    def serving(self, bits: int) -> Coder:
        """What makes the code of a length."""
        ...

    def encode(self, features: ArrayLike, modality: Modality, tokens: Tokens | None = None) -> NDArray[np.float32]:
        """(n, d_m) features -> relaxed codes (n, stored bits)."""
        ...

    def fingerprint(self) -> str:
        """Identifies the codes of this model."""
        ...


def encode(model: Coder, pairs: Pairs) -> CodedItems:
    """Code both modalities of items in memory; see `relaxed_codes` for items with several texts.

    Args:
        model: the trained model. pairs: n items.

    Returns:
        n coded items with their relaxed values.

    Raises:
        DataError: features of another dimension.

    Example:
        >>> from multibit.hashing.model import HashModel
        >>> pairs = Pairs(np.eye(3), np.eye(3, 2), np.arange(4), np.eye(3, dtype=np.uint8))
        >>> coded = encode(HashModel(image_dim=3, text_dim=2, blocks=(8,), hidden=4, dimension=4), pairs)
        >>> coded.image, coded.relaxed["text"].shape
        (Codes(3 items, 8 bits), (3, 8))
    """
    require_kind(model, Coder, "model", "Pass the `model` of a run or of a training.")
    require_kind(pairs, Pairs, "pairs", "Take them from features, store.take(rows); code a text with encode_text.")
    relaxed = {modality: relaxed_codes(model, pairs, modality) for modality in MODALITIES}
    return CodedItems.binarize(relaxed, pairs.labels, model.layout, model.fingerprint())


def relaxed_codes(model: Coder, pairs: Pairs, modality: Modality) -> NDArray[np.float32]:
    """Relaxed codes of one modality of items in memory: (n, stored bits).

    An item with several texts is coded by the mean of their features; by a model that reads tokens each text is coded,
    and the item has the mean of their relaxed codes.
    """
    if modality == "image":
        return model.encode(pairs.image, modality, pairs.image_tokens)
    if not model.reads_tokens or len(pairs.text) == len(pairs):
        return model.encode(pairs.mean_text, modality, pairs.text_tokens if model.reads_tokens else None)
    relaxed = model.encode(pairs.text, modality, pairs.text_tokens)
    sums = np.add.reduceat(relaxed, pairs.offsets[:-1], axis=0)
    return np.asarray(sums / np.diff(pairs.offsets)[:, None], np.float32)


def encode_codes(model: Coder, pairs: Pairs, modality: Modality, bits: int | None = None) -> Codes:
    """The codes of one modality of items in memory at one length.

    Args:
        model: the trained model. pairs: n items. modality: "image" or "text". bits: length; the longest when None.

    Returns:
        The n codes whose prefix of `bits` bits is the code of that length.
    """
    chosen = model.serving(model.bits if bits is None else bits)
    codes = codes_at(chosen, relaxed_codes(chosen, pairs, modality), bits)
    return replace(codes, model=model.fingerprint())


def codes_at(model: Coder, relaxed: NDArray[np.float32], bits: int | None = None) -> Codes:
    """Binarise the output of a model, and take the codes that serve a length; the arguments are those of `part_at`."""
    return Codes.binarize(part_at(model, relaxed, bits))


def part_at(model: Coder, relaxed: NDArray[np.float32], bits: int | None = None) -> NDArray[np.float32]:
    """The part of the output of a model that serves a length: (n, B), or (n, V, B) where an item has V codes.

    Args:
        model: that made the relaxed codes. relaxed: (n, stored bits). bits: length; the longest when None.
    """
    layout = model.layout
    part = relaxed[:, layout.part(layout.longest if bits is None else bits)]
    return part if layout.views == 1 else part.reshape(len(part), layout.views, -1)


def shared_features(model: CodeModel, features: NDArray[np.float32], modality: Modality) -> NDArray[np.float32] | None:
    """(n, d_m) features -> (n, d) real values that both modalities share, before the code; None without any."""
    import torch  # slow to import

    was_training = model.training
    model.eval()
    with torch.inference_mode():
        found = model.embed(torch.from_numpy(features).to(model.device), modality)
    model.train(was_training)
    return None if found is None else found.cpu().numpy()


def encode_store(
    model: Coder,
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
        DataError: a value that is not finite, features of another dimension, a model of another kind, or a path instead
            of a store. ConfigError: an unknown engine.
            MissingExtraError, MultibitError: as `run_on_ray`.

    Example:
        >>> encode_store(run.model, store, run.split.query)
        CodedItems(6 items, 8 bits)
    """
    require_known("engine", engine, ENGINES)
    require_kind(model, Coder, "model", "Pass the `model` of a run or of a training.")
    require_opened(store, "store", "FeatureStore.open")
    chosen = np.arange(len(store)) if rows is None else row_numbers(rows, len(store))
    starts = range(0, max(len(chosen), 1), ENCODE_ROWS)
    work = partial(_encode_block, model, store, chosen, keep_relaxed)
    results = run_on_ray(work, starts, workers) if engine == "ray" else map(work, starts)
    codes: dict[Modality, list[Codes]] = {modality: [] for modality in MODALITIES}
    relaxed: dict[Modality, NDArray[np.float32]] = {}
    done = 0
    with track("Encoding features", len(chosen), "items") as advance:
        for block in results:
            for modality in MODALITIES:
                codes[modality].append(block.codes(modality))
            for modality, values in block.relaxed.items():  # into their place: joined later they would be held twice
                whole = relaxed.setdefault(modality, np.empty((len(chosen), values.shape[1]), np.float32))
                whole[done : done + len(block)] = values
            done += len(block)
            advance(len(block))
    image, text = (Codes.concatenate(codes[modality]) for modality in MODALITIES)
    return CodedItems(image, text, store.dataset.labels[chosen], relaxed, model.layout)


def _encode_block(model: Coder, store: FeatureStore, rows: Rows, keep_relaxed: bool, start: int) -> CodedItems:
    """Code the rows that `CodeModel.encode` passes through the network together, so results are bit-identical."""
    block = encode(model, store.take(rows[start : start + ENCODE_ROWS]))
    return block if keep_relaxed else CodedItems(block.image, block.text, block.labels, layout=model.layout)
