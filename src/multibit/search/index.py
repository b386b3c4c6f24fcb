"""The index: nested codes with ids and payloads, and exact search at any length of the stored code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import Rows
from multibit.codes import Codes
from multibit.codes.distance import Neighbours, ScoredRows, check_k, check_radius, nearest_relaxed
from multibit.errors import ConfigError, DataError, MismatchError, require_known
from multibit.files import only_writer, read_arrays, require_file, write_arrays
from multibit.search.columns import Id, IdColumn, PayloadColumn
from multibit.search.engines import ENGINES, Engine

KIND, VERSION = "index", 2  # the version of an index with several codes per item; the others are written as 1


@dataclass(frozen=True)
class Hit:
    """One result of a search.

    Attributes:
        rank: from 1. id: of the item.
        distance: number of differing bits; None for a relaxed query.
        bits: code length of the search. payload: stored with the item.
        score: inner product with a relaxed query, larger is nearer; None for a binary query.
    """

    rank: int
    id: Id
    distance: int | None
    bits: int
    payload: Mapping[str, Any]
    score: float | None = None


@dataclass(frozen=True, eq=False, repr=False)
class SearchResult:
    """Results of Q queries, best first, ties by row.

    Attributes:
        found: rows of the index as it was searched, with distances or, for relaxed queries, scores.
        bits: code length of the search.
    """

    found: Neighbours | ScoredRows
    bits: int
    _ids: IdColumn
    _payloads: PayloadColumn

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"SearchResult({len(self)} queries, {int(self.counts.sum())} hits at {self.bits} bits)"

    @property
    def rows(self) -> Rows:
        """(Q, k) int64 rows of the index as it was searched, -1 past `counts`."""
        return self.found.rows

    @property
    def counts(self) -> Rows:
        """(Q,) int64, number of hits of each query."""
        return self.found.counts

    @property
    def distances(self) -> NDArray[np.uint16]:
        """(Q, k) uint16 Hamming distances.

        Raises:
            DataError: the queries were relaxed.
        """
        if isinstance(self.found, ScoredRows):
            raise DataError("relaxed queries have no Hamming distances.", hint="Read the scores instead.")
        return self.found.distances

    @property
    def scores(self) -> NDArray[np.float64]:
        """(Q, k) float64 inner products with the relaxed queries.

        Raises:
            DataError: the queries were binary.
        """
        if isinstance(self.found, Neighbours):
            raise DataError("binary queries have no scores.", hint="Read the distances instead.")
        return self.found.scores

    @property
    def ids(self) -> list[list[Id]]:
        """Ids of the hits, one list per query."""
        return [
            [self._ids[int(row)] for row in rows[:count]] for rows, count in zip(self.rows, self.counts, strict=True)
        ]

    def hits(self, query: int = 0) -> list[Hit]:
        """The hits of one query with their payloads."""
        rows = self.rows[query, : self.counts[query]].tolist()
        distances: list[int | None] = [None] * len(rows)
        scores: list[float | None] = [None] * len(rows)
        if isinstance(self.found, ScoredRows):
            scores = self.found.scores[query, : len(rows)].tolist()
        else:
            distances = self.found.distances[query, : len(rows)].tolist()
        return [
            Hit(rank, self._ids[row], distance, self.bits, self._payloads[row], score)
            for rank, (row, distance, score) in enumerate(zip(rows, distances, scores, strict=True), start=1)
        ]


class Index:
    """Searchable codes of one modality.

    Every change is made in memory, completely or not at all: an error leaves the index unchanged. `save` writes it
    atomically; use `Index.editing` where several processes change one file.

    Attributes:
        ids: unique, in row order. payloads: one JSON object per item. codes: N codes, None while empty.
        model: fingerprint of the model that made the codes, "" when unknown. engine_name: one of `ENGINES`.
        modality: "image" or "text", modality of the items; "" when unknown, as in older files.

    Example:
        >>> index = Index()
        >>> index.add(["a", "b", "c"], Codes.binarize([[1, 1, 1], [1, -1, 1], [-1, -1, -1]]))
        >>> result = index.search(Codes.binarize([[1, 1, -1]]), k=2)
        >>> result.ids, result.distances
        ([['a', 'b']], array([[1, 2]], dtype=uint16))
    """

    def __init__(self, model: str = "", engine: str = "exact", modality: str = "") -> None:
        require_known("engine", engine, ENGINES)
        self.model = model
        self.modality = modality
        self.engine_name = engine
        self.ids = IdColumn(range(0))
        self.payloads = PayloadColumn(0)
        self.codes: Codes | None = None
        self._engine: Engine | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        size = "empty" if self.codes is None else f"{len(self):,} {self.modality or 'item'}s, {self.codes.bits} bits"
        views = f", {self.codes.views} views" if self.codes is not None and self.codes.views > 1 else ""
        return f"Index({size}{views}, {self.engine_name} engine)"

    @property
    def engine(self) -> Engine:
        """The engine over the current codes, built when first needed after a change.

        Raises:
            DataError: the index is empty.
        """
        if self._engine is None:
            self._engine = ENGINES[self.engine_name](self._filled())
        return self._engine

    def add(self, ids: Sequence[Id] | None, codes: Codes, payloads: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Append items.

        Args:
            ids: new and unique, all strings or all integers; None continues the numbering.
            codes: one item each, of the length and the views of the index. payloads: one JSON object per item.

        Raises:
            DataError: counts that differ, a duplicate or existing id, codes of another length or number of views, or a
                payload that is not a JSON object. ConfigError: several views, which the engine cannot search.
        """
        column = IdColumn.of(range(self.ids.next, self.ids.next + len(codes)) if ids is None else ids)
        described = self._check(column, codes, payloads)
        self._replace(
            self.ids.append(column),
            codes if self.codes is None else Codes.concatenate([self.codes, codes]),
            self.payloads.append(described),
        )

    def upsert(self, ids: Sequence[Id], codes: Codes, payloads: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Replace existing items in place and append the others; raises as `add`."""
        column = IdColumn.of(ids)
        described = self._check(column, codes, payloads)
        known = np.array(self.ids.known(column[row] for row in range(len(column))), bool)
        new, old = np.flatnonzero(~known), np.flatnonzero(known)
        every = np.arange(len(self) + len(new))  # source of each row: below len(self) an old row, else a new one
        every[len(self) :] = len(self) + new
        every[self.ids.rows_of([column[int(row)] for row in old])] = len(self) + old
        both = codes if self.codes is None else Codes.concatenate([self.codes, codes])
        self._replace(
            self.ids.append(column.take(new)) if len(new) else self.ids,
            both.take(every),
            self.payloads.append(described).take(every),
        )

    def remove(self, ids: Sequence[Id]) -> None:
        """Remove items; the ids and the order of the others do not change.

        Raises:
            DataError: an id is unknown; then nothing is removed.
        """
        keep = np.ones(len(self), bool)
        keep[self.ids.rows_of(ids)] = False
        rows = np.flatnonzero(keep)
        codes = self.codes.take(rows) if self.codes is not None and len(rows) else None
        self._replace(self.ids.take(rows), codes, self.payloads.take(rows))

    @classmethod
    def merge(cls, parts: Sequence[Index], names: Sequence[str] | None = None) -> Index:
        """Concatenate several indices, in order.

        Args:
            parts: of one model and one modality; an unknown modality matches any. names: of the parts for errors, such
                as their files; "part 1", ... when None.

        Raises:
            DataError: no part, an id in two of them, or codes of different lengths or views. MismatchError: different
                models or modalities.
        """
        if not parts:
            raise DataError("need at least one index to merge.")
        called = names or [f"part {number}" for number in range(1, len(parts) + 1)]
        known = next((part for part in parts if part.modality), parts[0])
        merged = cls(parts[0].model, parts[0].engine_name, known.modality)
        for name, part in zip(called, parts, strict=True):
            if part.model != merged.model:
                models = part.model or "unknown", merged.model or "unknown"
                problem = f"holds codes of model {models[0]}, but {called[0]} of model {models[1]}."
                raise MismatchError(problem, field=name)
            if part.modality not in ("", merged.modality):
                first = called[parts.index(known)]
                problem = f"is an index of {part.modality}s, but {first} of {merged.modality}s."
                raise MismatchError(problem, field=name)
            if part.codes is not None:
                try:
                    merged.ids = merged.ids.append(part.ids)
                except DataError as error:
                    given = [part.ids[row] for row in range(len(part))]
                    with_one = (other for other, each in zip(called, parts, strict=True) if any(each.ids.known(given)))
                    first = next(with_one, called[0])
                    raise DataError(f"the ids do not fit those of {first}: {error.problem}", field=name) from None
                merged.payloads = merged.payloads.append(part.payloads)
        filled = [part.codes for part in parts if part.codes is not None]
        merged.codes = Codes.concatenate(filled) if filled else None
        return merged

    def search(
        self,
        codes: Codes,
        k: int = 10,
        bits: int | None = None,
        *,
        max_distance: int | None = None,
        among: Sequence[Id] | None = None,
        where: Mapping[str, Any] | None = None,
        model: str | None = None,
        threads: int | None = None,
    ) -> SearchResult:
        """The k nearest items of each query by (distance, row), exactly.

        Args:
            codes: Q queries, at least `bits` long. k: number of hits per query; all items when larger.
            bits: prefix length of the search, 1 to B; the full length when None.
            max_distance: largest distance of a hit.
            among: ids to search among. where: payload values that a hit must have (a list in the payload must contain
                the value). Filters apply before the ranking: k hits are found where k exist.
            model: fingerprint of the model that made the queries; must be the model of the index.
            threads: all processors when None.

        Raises:
            DataError: k or max_distance out of range, `bits` longer than the codes, or an unknown id.
            ConfigError: the engine has no filters, or cannot search several views. MismatchError: the index holds codes
                of another model.
        """
        if model is not None:
            self.require_model(model)
        check_k(k)
        if max_distance is not None:
            check_radius(max_distance, "max_distance")
        length = (codes if self.codes is None else self.codes).check_length(bits)
        if self.codes is None:
            return self._result(Neighbours.allocate(len(codes), k, codes.take([])), length)
        codes.check_length(length)
        self._require_views(codes, self.codes)
        allowed = self._allowed(among, where)
        if allowed is not None and not self.engine.capabilities.filters:
            problem = f"the {self.engine_name} engine cannot search with filters."
            raise ConfigError(problem, option="engine", hint="Use the exact engine.")
        found = self.engine.search(codes, k, length, allowed=allowed, max_distance=max_distance, threads=threads)
        return self._result(found, length)

    def search_relaxed(
        self,
        values: ArrayLike,
        k: int = 10,
        bits: int | None = None,
        *,
        candidates: int | None = None,
        among: Sequence[Id] | None = None,
        where: Mapping[str, Any] | None = None,
        threads: int | None = None,
    ) -> SearchResult:
        """The k items of the largest inner product with relaxed queries (asymmetric search), see `nearest_relaxed`.

        Args:
            values: (Q, B) relaxed codes in (-1, 1).
            candidates: score only this many nearest items by Hamming distance; all when None.
            k, bits, among, where, threads: as in `search`.

        Raises:
            DataError: as `nearest_relaxed`, an unknown id, or an empty index.
        """
        codes = self._filled()
        allowed = self._allowed(among, where)
        found = nearest_relaxed(values, codes, k, bits, candidates=candidates, allowed=allowed, threads=threads)
        return self._result(found, codes.check_length(bits))

    def require_model(self, model: str) -> None:
        """Refuse to compare codes of different models, whose bits have different meanings.

        Raises:
            MismatchError: the fingerprints differ.
        """
        if self.model != model:
            raise MismatchError(
                f"the index holds codes of model {self.model or 'unknown'}, not of model {model or 'unknown'}.",
                hint="Build the index again with this model.",
            )

    def save(self, path: Path | str) -> None:
        """Write to one file, atomically: readers see the old index or the new one.

        Raises:
            DataError: the index is empty. BusyError: another process is writing this file.
        """
        with only_writer(Path(path)):
            self._write(Path(path))

    @classmethod
    def load(cls, path: Path | str, *, verify: bool = True) -> Index:
        """Memory-map a file that `save` wrote; changes to the index never reach the file.

        Args:
            path: of the file. verify: compare the checksum, which reads every byte once.

        Raises:
            FormatError: corrupt or truncated, newer, or another kind of file.
        """
        arrays, header = read_arrays(Path(path), kind=KIND, version=VERSION, verify=verify)
        index = cls(header["model"], header["engine"], header.get("modality", ""))
        index._replace(
            IdColumn.from_arrays(arrays, header),
            Codes(arrays["words"], header["bits"], header.get("views", 1)),
            PayloadColumn.from_arrays(arrays, header["count"]),
        )
        return index

    @classmethod
    @contextlib.contextmanager
    def editing(cls, path: Path | str) -> Iterator[Index]:
        """Load, change and save an index while no other process can write it.

        An error inside leaves the file unchanged. Readers are not blocked.

        Raises:
            BusyError: another process is writing this file. FormatError: as `load`.
        """
        require_file(Path(path), KIND)
        with only_writer(Path(path)):
            index = cls.load(path)
            yield index
            index._write(Path(path))

    def _write(self, path: Path) -> None:
        if self.codes is None:
            raise DataError("an empty index cannot be saved.", file=path, hint="Delete its file instead.")
        id_arrays, id_header = self.ids.to_arrays()
        arrays = {"words": self.codes.words, **id_arrays, **self.payloads.to_arrays()}
        header = {
            "bits": self.codes.bits, "count": len(self), "model": self.model, "engine": self.engine_name,
            "modality": self.modality, **id_header, **self.codes.more_views,
        }  # fmt: skip
        write_arrays(path, arrays, header, kind=KIND, version=VERSION if self.codes.more_views else 1)

    def _filled(self) -> Codes:
        if self.codes is None:
            raise DataError("the index is empty, so it cannot be searched.")
        return self.codes

    def _check(self, ids: IdColumn, codes: Codes, payloads: Sequence[Mapping[str, Any]] | None) -> PayloadColumn:
        """Refuse items that do not fit, before anything is changed."""
        given = len(ids) if payloads is None else len(payloads)
        if not len(ids) == len(codes) == given:
            raise DataError(f"{len(ids)} ids, {len(codes)} codes, {given} payloads: the counts must be equal.")
        if self.codes is not None and codes.bits != self.codes.bits:
            raise DataError(f"have {codes.bits} bits, the index has {self.codes.bits}.", field="codes")
        if self.codes is not None and codes.views != self.codes.views:
            raise DataError(f"{codes.views} per item, the index has {self.codes.views}.", field="codes")
        self._require_views(codes)
        return PayloadColumn.of(payloads, ids)

    def _require_views(self, *codes: Codes) -> None:
        """Refuse items with several codes where the engine cannot search them."""
        most = max(each.views for each in codes)
        if most > 1 and not ENGINES[self.engine_name].capabilities.views:
            problem = f"the {self.engine_name} engine cannot search items with {most} codes each."
            raise ConfigError(problem, option="engine", hint="Use the exact engine.")

    def _replace(self, ids: IdColumn, codes: Codes | None, payloads: PayloadColumn) -> None:
        self.ids, self.payloads = ids, payloads
        self.codes = codes if codes is not None and len(codes) else None
        self._engine = None

    def _allowed(self, among: Sequence[Id] | None, where: Mapping[str, Any] | None) -> NDArray[np.bool_] | None:
        if among is None and where is None:
            return None
        allowed = np.ones(len(self), bool) if where is None else self.payloads.matching(where)
        if among is not None:
            chosen = np.zeros(len(self), bool)
            chosen[self.ids.rows_of(among)] = True
            allowed &= chosen
        return allowed

    def _result(self, found: Neighbours | ScoredRows, bits: int) -> SearchResult:
        return SearchResult(found, bits, self.ids, self.payloads)
