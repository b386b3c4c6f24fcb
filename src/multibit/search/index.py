"""The index: ids and payloads beside nested codes; exact search at any length from the one stored code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.codes import Codes
from multibit.codes.distance import nearest
from multibit.errors import DataError, MismatchError
from multibit.files import read_arrays, write_arrays

KIND, VERSION = "index", 1
Id = str | int


@dataclass(frozen=True)
class Hit:
    """One answer of a search.

    Attributes:
        rank: from 1. id: of the item. distance: differing bits. bits: length searched at.
        payload: what was stored with the item.
    """

    rank: int
    id: Id
    distance: int
    bits: int
    payload: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Answers to Q queries, best first, equal distances by row.

    Attributes:
        rows: (Q, k) int64 index rows. distances: (Q, k) uint16. bits: length searched at. index: that was searched.
    """

    rows: NDArray[np.int64]
    distances: NDArray[np.uint16]
    bits: int
    index: Index

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> list[list[Id]]:
        """Ids of the hits, a list per query."""
        return [[self.index.ids[row] for row in rows] for rows in self.rows]

    def hits(self, query: int = 0) -> list[Hit]:
        """The hits of one query with their payloads."""
        found = zip(self.rows[query].tolist(), self.distances[query].tolist(), strict=True)
        return [
            Hit(rank, self.index.ids[row], distance, self.bits, self.index.payloads[row])
            for rank, (row, distance) in enumerate(found, start=1)
        ]


class Index:
    """Searchable codes of one modality.

    Attributes:
        ids: unique, in row order. codes: of the items, None while empty. payloads: a JSON object per item.
        model: fingerprint of the model that made the codes, "" when unknown.

    Example:
        >>> index = Index()
        >>> index.add(["a", "b", "c"], Codes.from_signs([[1, 1, 1], [1, -1, 1], [-1, -1, -1]]))
        >>> result = index.search(Codes.from_signs([[1, 1, -1]]), k=2)
        >>> result.ids, result.distances
        ([['a', 'b']], array([[1, 2]], dtype=uint16))
    """

    def __init__(self, model: str = "") -> None:
        self.model = model
        self.ids: list[Id] = []
        self.payloads: list[Mapping[str, Any]] = []
        self.codes: Codes | None = None
        self._known: set[Id] = set()

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, ids: Sequence[Id], codes: Codes, payloads: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Append items; on any error nothing is added.

        Args:
            ids: new and unique, strings or integers. codes: one each, of the index's length.
            payloads: a JSON object each.

        Raises:
            DataError: counts that differ, an id twice or known already, codes of another length, or a payload that is
                not a JSON object.
        """
        payloads = [{} for _ in ids] if payloads is None else payloads
        if not len(ids) == len(codes) == len(payloads):
            raise DataError(f"{len(ids)} ids, {len(codes)} codes, {len(payloads)} payloads: must be equal.")
        if self.codes is not None and codes.bits != self.codes.bits:
            raise DataError(f"codes of {codes.bits} bits do not fit an index of {self.codes.bits} bits.")
        fresh: set[Id] = set()
        for name in ids:
            if not isinstance(name, str | int) or isinstance(name, bool):
                raise DataError(f"id {name!r}: must be a string or an integer.")
            if name in self._known or name in fresh:
                raise DataError(f"id {name!r} is {'in the index already' if name in self._known else 'given twice'}.")
            fresh.add(name)
        for name, payload in zip(ids, payloads, strict=True):
            _require_json_object(name, payload)
        self.codes = codes if self.codes is None else Codes.concatenate([self.codes, codes])
        self.ids.extend(ids)
        self.payloads.extend(payloads)
        self._known |= fresh

    def search(self, codes: Codes, k: int = 10, bits: int | None = None, *, threads: int | None = None) -> SearchResult:
        """The k nearest items of each query by (distance, row), exactly.

        Args:
            codes: Q queries, at least `bits` long. k: hits wanted; all items when larger.
            bits: prefix length to search at, 1 to B; the full length when None.
            threads: all processors when None.

        Raises:
            DataError: k < 1, or `bits` longer than the codes.
        """
        if self.codes is None:
            if k < 1:
                raise DataError(f"k: need at least 1 hit, got {k}.")
            shape = (len(codes), 0)
            return SearchResult(np.empty(shape, np.int64), np.empty(shape, np.uint16), codes.check_length(bits), self)
        rows, distances = nearest(codes, self.codes, k, bits, threads=threads)
        return SearchResult(rows, distances, self.codes.check_length(bits), self)

    def require_model(self, model: str) -> None:
        """Refuse to compare codes of different models: their bits mean different things.

        Raises:
            MismatchError: the fingerprints differ.
        """
        if self.model != model:
            raise MismatchError(
                f"the index holds codes of model {self.model or 'unknown'}, the query comes from model {model}. "
                "Build the index again with this model."
            )

    def save(self, path: Path | str) -> None:
        """Write to one file, in one step."""
        if self.codes is None:
            raise DataError("the index is empty: add items before saving it.")
        text = {
            "ids": json.dumps(self.ids, ensure_ascii=False),
            "payloads": json.dumps(self.payloads, ensure_ascii=False),
        }
        arrays = {name: np.frombuffer(value.encode(), np.uint8) for name, value in text.items()}
        header = {"bits": self.codes.bits, "model": self.model, "count": len(self)}
        write_arrays(Path(path), {"words": self.codes.words, **arrays}, header, kind=KIND, version=VERSION)

    @classmethod
    def load(cls, path: Path | str) -> Index:
        """Read what `save` wrote.

        Raises:
            FormatError: torn, newer, or another kind of file.
        """
        arrays, header = read_arrays(Path(path), kind=KIND, version=VERSION)
        ids, payloads = (json.loads(arrays.pop(name).tobytes()) for name in ("ids", "payloads"))
        index = cls(header["model"])
        index.add(ids, Codes(arrays["words"], header["bits"]), payloads)
        return index


def _require_json_object(name: Id, payload: Mapping[str, Any]) -> None:
    try:
        json.dumps(payload, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"payload of id {name!r} is not JSON: {error}.") from None
    if not isinstance(payload, Mapping):
        raise DataError(f"payload of id {name!r} must be a JSON object, got {type(payload).__name__}.")
