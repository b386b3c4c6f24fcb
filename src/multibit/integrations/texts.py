"""Texts in an index, searched by text: what the vector stores of other libraries share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from multibit.codes import Codes, hamming_distances
from multibit.errors import ConfigError, DataError
from multibit.pipeline import open_run
from multibit.queries import encode_text, encode_texts
from multibit.search import Hit, Index
from multibit.search.conditions import Where
from multibit.search.names import located_hits

if TYPE_CHECKING:
    from multibit.pipeline import AnyRun

TEXT = "text"
"""Field of the text of an item, as in the indices of a run."""


class Texts:
    """The texts of an index, or its images with their texts; changes go to the disk where it was opened from there.

    Attributes:
        run: with one nested code, whose encoder reads the texts. index: of that model. bits: length of the searches.

    Args:
        run: a run, or the path of a run or a portable model. index: as `Index.open` gives it; None for an empty one in
            memory. bits: the full length when None.

    Raises:
        ConfigError: a code for each length, or several codes for an item. MismatchError: an index of another model.
        DataError: `bits` out of range.
    """

    def __init__(self, run: AnyRun | Path | str, index: Index | None = None, bits: int | None = None) -> None:
        self.run = open_run(run, many=True) if isinstance(run, str | Path) else run
        layout = self.run.model.layout
        if not layout.nested or layout.views > 1:
            raise ConfigError("a vector store needs one nested code for each item.", option="run")
        self.index = Index(self.run.record.model, modality="text") if index is None else index
        self.index.require_model(self.run.record.model)
        self.bits = self.length(bits)

    def length(self, bits: int | None) -> int:
        """A code length, the one of the store when None.

        Raises:
            DataError: out of range.
        """
        whole = self.run.model.bits
        chosen = getattr(self, "bits", whole) if bits is None else bits
        if not 1 <= chosen <= whole:
            raise DataError(f"must be 1 to {whole}, got {chosen}.", option="bits")
        return chosen

    def put(
        self, ids: Sequence[str], texts: Sequence[str], metadata: Sequence[Mapping[str, Any]],
        relaxed: ArrayLike | None = None,
    ) -> None:  # fmt: skip
        """Add texts; those with an id that is already there are replaced.

        Args:
            ids: unique. texts: to store. metadata: of each. relaxed: codes (n, B) of the texts; encoded when None.

        Raises:
            ConfigError: the index holds images. DataError: metadata with a field "text", or as `Index.upsert`.
        """
        if self.index.modality == "image":
            problem = "the index holds images, so no texts can be added."
            raise ConfigError(problem, option="index", hint="Use an index of texts.")
        if any(TEXT in each for each in metadata):
            raise DataError("is the field of the text itself.", field=TEXT, hint="Rename the field of the metadata.")
        if not len(ids):
            return
        codes = Codes.binarize(encode_texts(self.run, texts) if relaxed is None else relaxed)
        with self._writer() as writer:
            writer.upsert(ids, codes, [{TEXT: text, **each} for text, each in zip(texts, metadata, strict=True)])

    def remove(self, ids: Sequence[str]) -> None:
        """Remove items; unknown ids are ignored."""
        known = self._known(ids)
        if known:
            with self._writer() as writer:
                writer.remove(known)

    def get(self, ids: Sequence[str] | None = None, where: Where | None = None) -> list[Hit]:
        """The items with some ids, or that a filter passes; unknown ids are ignored."""
        known = None if ids is None else self._known(ids)
        if not len(self.index) or known == []:
            return []
        anything = Codes.from_bits(np.zeros((1, self.index.bits), np.uint8))
        found = self._located(self.index.search(anything, len(self.index), among=known, where=where).hits())
        return sorted(found, key=lambda hit: hit.rank if known is None else known.index(str(hit.id)))

    def search(
        self,
        query: str | ArrayLike,
        k: int,
        bits: int | None = None,
        where: Where | None = None,
        among: Sequence[str] | None = None,
    ) -> list[Hit]:
        """The k nearest items of a text, or of a relaxed code (B,).

        Raises:
            DataError: an empty text, or as `Index.search`.
        """
        known = None if among is None else self._known(among)
        if not len(self.index) or known == []:
            return []
        relaxed = encode_text(self.run, query) if isinstance(query, str) else np.asarray(query, np.float32)[None]
        codes = Codes.binarize(relaxed)
        return self._located(self.index.search(codes, k, self.length(bits), where=where, among=known).hits())

    def diverse(
        self,
        query: str | ArrayLike,
        k: int,
        fetch: int,
        weight: float,
        bits: int | None = None,
        where: Where | None = None,
    ) -> list[Hit]:
        """K of the nearest items by maximal marginal relevance: near the query, and far from those chosen before.

        The next item has the largest weight * s(query, item) - (1 - weight) * max s(item, chosen), where s is the share
        of equal bits; of equals the nearer one.

        Args:
            query, k, bits, where: as for `search`. fetch: nearest items to choose from, at least k.
            weight: 1 for the nearest items, 0 for the most different ones.

        Raises:
            DataError: a weight outside 0..1, or as `search`.
        """
        if not 0 <= weight <= 1:
            raise DataError(f"must be 0 to 1, got {weight}.", option="lambda_mult")
        hits = self.search(query, max(k, fetch) if k > 0 else k, bits, where)
        if not hits:
            return []
        codes, length = self.index.codes_of([hit.id for hit in hits]), self.length(bits)
        near = weight * np.array([self.similarity(hit) for hit in hits])
        between = 1 - hamming_distances(codes, codes, length) / length  # (n, n)
        chosen = [0]
        while len(chosen) < min(k, len(hits)):
            scores = near - (1 - weight) * between[chosen].max(axis=0)
            scores[chosen] = -np.inf
            chosen.append(int(scores.argmax()))
        return [hits[place] for place in chosen]

    def similarity(self, hit: Hit) -> float:
        """Share of equal bits."""
        assert hit.distance is not None
        return 1 - hit.distance / hit.bits

    def _located(self, hits: list[Hit]) -> list[Hit]:
        """Hits with the absolute paths of their images, where the index was opened from the disk."""
        return hits if self.index.path is None else located_hits(hits, self.index.path.parent)

    def _known(self, ids: Sequence[str]) -> list[str]:
        unique = list(dict.fromkeys(ids))
        return [name for name, known in zip(unique, self.index.contains(unique), strict=True) if known]

    @contextlib.contextmanager
    def _writer(self) -> Iterator[Index]:
        """The index to change: on disk where it was opened from there, else in memory."""
        if self.index.path is None:
            yield self.index
            return
        with self.index.writer() as writer:
            yield writer
