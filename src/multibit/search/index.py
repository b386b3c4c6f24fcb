"""The index: ids and payloads beside nested codes; exact search at any length from the one stored code."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.codes import Codes
from multibit.codes.distance import Neighbours, nearest_relaxed
from multibit.errors import BusyError, ConfigError, DataError, MismatchError
from multibit.files import read_arrays, require_file, write_arrays
from multibit.search.columns import Id, IdColumn, PayloadColumn
from multibit.search.engines import ENGINES, Engine, check_engine

KIND, VERSION = "index", 1


@dataclass(frozen=True)
class Hit:
    """One answer of a search.

    Attributes:
        rank: from 1. id: of the item. distance: differing bits; for a relaxed query the inner product, larger is
            nearer.
        bits: length searched at. payload: what was stored with the item.
    """

    rank: int
    id: Id
    distance: float
    bits: int
    payload: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Answers to Q queries, best first, equal distances by row.

    Attributes:
        rows: (Q, k) int64 rows of the index as it was searched, -1 past `counts`. distances: (Q, k).
        counts: (Q,) how many were found. bits: length searched at.
    """

    rows: NDArray[np.int64]
    distances: NDArray[Any]
    counts: NDArray[np.int64]
    bits: int
    _ids: IdColumn
    _payloads: PayloadColumn

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> list[list[Id]]:
        """Ids of the hits, a list per query."""
        return [
            [self._ids[int(row)] for row in rows[:count]] for rows, count in zip(self.rows, self.counts, strict=True)
        ]

    def hits(self, query: int = 0) -> list[Hit]:
        """The hits of one query with their payloads."""
        count = self.counts[query]
        found = zip(self.rows[query, :count].tolist(), self.distances[query, :count].tolist(), strict=True)
        return [
            Hit(rank, self._ids[row], distance, self.bits, self._payloads[row])
            for rank, (row, distance) in enumerate(found, start=1)
        ]


class Index:
    """Searchable codes of one modality.

    Every change is made in memory and whole: an error leaves the index as it was. `save` puts it on disk in one step;
    use `Index.editing` where several processes change one file.

    Attributes:
        ids: unique, in row order. payloads: a JSON object per item. codes: of the items, None while empty.
        model: fingerprint of the model that made the codes, "" when unknown. engine_name: one of `ENGINES`.
        modality: "image" or "text", what the codes are of; "" when unknown, as in files of before.

    Example:
        >>> index = Index()
        >>> index.add(["a", "b", "c"], Codes.from_signs([[1, 1, 1], [1, -1, 1], [-1, -1, -1]]))
        >>> result = index.search(Codes.from_signs([[1, 1, -1]]), k=2)
        >>> result.ids, result.distances
        ([['a', 'b']], array([[1, 2]], dtype=uint16))
    """

    def __init__(self, model: str = "", engine: str = "exact", modality: str = "") -> None:
        self.model = model
        self.modality = modality
        self.engine_name = check_engine(engine)
        self.ids = IdColumn(range(0))
        self.payloads = PayloadColumn(0)
        self.codes: Codes | None = None
        self._engine: Engine | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def engine(self) -> Engine:
        """The engine over the present codes; built when first needed after a change.

        Raises:
            DataError: the index is empty.
        """
        if self._engine is None:
            if self.codes is None:
                raise DataError("the index is empty: there is nothing to search.")
            self._engine = ENGINES[self.engine_name](self.codes)
        return self._engine

    def add(self, ids: Sequence[Id] | None, codes: Codes, payloads: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Append items.

        Args:
            ids: new and unique, all strings or all integers; None counts on.
            codes: one each, of the index's length. payloads: a JSON object each.

        Raises:
            DataError: counts that differ, an id twice or known already, codes of another length, or a payload that is
                not a JSON object.
        """
        column = IdColumn.of(range(self.ids.next, self.ids.next + len(codes)) if ids is None else ids)
        described = self._check(column, codes, payloads)
        self._replace(
            self.ids.append(column),
            codes if self.codes is None else Codes.concatenate([self.codes, codes]),
            self.payloads.append(described),
        )

    def upsert(self, ids: Sequence[Id], codes: Codes, payloads: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Replace the items that are known, in their place, and append the others; raises as `add`."""
        column = IdColumn.of(ids)
        described = self._check(column, codes, payloads)
        known = np.array(self.ids.known(column[row] for row in range(len(column))), bool)
        new, old = np.flatnonzero(~known), np.flatnonzero(known)
        every = np.arange(len(self) + len(new))  # where each row comes from: below len(self) kept, above it given
        every[len(self) :] = len(self) + new
        every[self.ids.rows_of([column[int(row)] for row in old])] = len(self) + old
        both = codes if self.codes is None else Codes.concatenate([self.codes, codes])
        self._replace(
            self.ids.append(column.take(new)) if len(new) else self.ids,
            both.take(every),
            self.payloads.append(described).take(every),
        )

    def remove(self, ids: Sequence[Id]) -> None:
        """Take items out; the ids and the order of the others stay.

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
        """One index of several that were built in parts, in order.

        Args:
            parts: of one model and one modality; a modality that is unknown fits any. names: of the parts, for people;
                "part 1", ... when None.

        Raises:
            DataError: no part, an id in two of them, or codes of different lengths. MismatchError: different models or
                modalities.
        """
        if not parts:
            raise DataError("nothing to merge: give at least one index.")
        called = names or [f"part {number}" for number in range(1, len(parts) + 1)]
        known = next((part for part in parts if part.modality), parts[0])
        merged = cls(parts[0].model, parts[0].engine_name, known.modality)
        for name, part in zip(called, parts, strict=True):
            if part.model != merged.model:
                models = part.model or "unknown", merged.model or "unknown"
                raise MismatchError(f"{name} holds codes of model {models[0]}, {called[0]} of model {models[1]}.")
            if part.modality not in ("", merged.modality):
                first = called[parts.index(known)]
                raise MismatchError(f"{name} is an index of {part.modality}s, {first} of {merged.modality}s.")
            if part.codes is not None:
                try:
                    merged.ids = merged.ids.append(part.ids)
                except DataError as error:
                    given = [part.ids[row] for row in range(len(part))]
                    with_one = (other for other, each in zip(called, parts, strict=True) if any(each.ids.known(given)))
                    raise DataError(f"{name} does not fit {next(with_one, called[0])}: {error}") from None
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
            codes: Q queries, at least `bits` long. k: hits wanted; all items when larger.
            bits: prefix length to search at, 1 to B; the full length when None.
            max_distance: only items at most this far.
            among: only items with these ids. where: only items whose payload has these values (a list in the payload
                must contain them). Filters are applied before ranking: k hits are found where k exist.
            model: fingerprint of the model that made the queries; refused if the index is of another one.
            threads: all processors when None.

        Raises:
            DataError: k < 1, `bits` longer than the codes, or an unknown id. ConfigError: the engine cannot filter.
            MismatchError: the index holds codes of another model.
        """
        if model is not None:
            self.require_model(model)
        if k < 1:
            raise DataError(f"k: need at least 1 neighbour, got {k}.")
        length = codes.check_length(bits) if self.codes is None else self.codes.check_length(bits)
        if self.codes is None:
            nothing = np.empty((len(codes), 0), np.int64)
            return self._result(Neighbours(nothing, nothing.astype(np.uint16), np.zeros(len(codes), np.int64)), length)
        if max_distance is not None and max_distance < 0:
            raise DataError(f"max_distance: must be at least 0, got {max_distance}.")
        codes.check_length(length)
        allowed = self._allowed(among, where)
        if allowed is not None and not self.engine.capabilities.filters:
            raise ConfigError(f"the {self.engine_name} engine cannot search among some items only; use exact.")
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
            values: (Q, B) values in (-1, 1), as `HashModel.encode` gives them.
            candidates: score only this many nearest items by Hamming distance; all when None.
            k, bits, among, where, threads: as in `search`.
        """
        if self.codes is None:
            raise DataError("the index is empty: there is nothing to search.")
        found = nearest_relaxed(
            values, self.codes, k, bits, candidates=candidates, allowed=self._allowed(among, where), threads=threads
        )
        return self._result(found, self.codes.check_length(bits))

    def require_model(self, model: str) -> None:
        """Refuse to compare codes of different models: their bits mean different things.

        Raises:
            MismatchError: the fingerprints differ.
        """
        if self.model != model:
            raise MismatchError(
                f"the index holds codes of model {self.model or 'unknown'}, not of model {model or 'unknown'}. "
                "Build the index again with this model."
            )

    def save(self, path: Path | str) -> None:
        """Write to one file, in one step: readers see the old index or the new one.

        Raises:
            DataError: the index is empty. BusyError: another process is writing this file.
        """
        with _writing(Path(path)):
            self._write(Path(path))

    @classmethod
    def load(cls, path: Path | str, *, verify: bool = True) -> Index:
        """Map what `save` wrote into memory; changes to the index never reach the file.

        Args:
            path: of the file. verify: compare the checksum, which reads every byte once.

        Raises:
            FormatError: torn, newer, or another kind of file.
        """
        arrays, header = read_arrays(Path(path), kind=KIND, version=VERSION, verify=verify)
        index = cls(header["model"], header["engine"], header.get("modality", ""))
        index._replace(
            IdColumn.from_arrays(arrays, header),
            Codes(arrays["words"], header["bits"]),
            PayloadColumn.from_arrays(arrays, header["count"]),
        )
        return index

    @classmethod
    @contextlib.contextmanager
    def editing(cls, path: Path | str) -> Iterator[Index]:
        """Load, change and save as one step that no other writer can come between.

        An error inside leaves the file as it was. Readers are never disturbed.

        Raises:
            BusyError: another process is writing this file. FormatError: as `load`.
        """
        require_file(Path(path), KIND)
        with _writing(Path(path)):
            index = cls.load(path)
            yield index
            index._write(Path(path))

    def _write(self, path: Path) -> None:
        if self.codes is None:
            raise DataError("the index is empty: delete its file instead of saving it.")
        id_arrays, id_header = self.ids.to_arrays()
        arrays = {"words": self.codes.words, **id_arrays, **self.payloads.to_arrays()}
        header = {
            "bits": self.codes.bits, "count": len(self), "model": self.model, "engine": self.engine_name,
            "modality": self.modality, **id_header,
        }  # fmt: skip
        write_arrays(path, arrays, header, kind=KIND, version=VERSION)

    def _check(self, ids: IdColumn, codes: Codes, payloads: Sequence[Mapping[str, Any]] | None) -> PayloadColumn:
        """Refuse what does not fit, before anything is changed."""
        given = len(ids) if payloads is None else len(payloads)
        if not len(ids) == len(codes) == given:
            raise DataError(f"{len(ids)} ids, {len(codes)} codes, {given} payloads: must be equal.")
        if self.codes is not None and codes.bits != self.codes.bits:
            raise DataError(f"codes of {codes.bits} bits do not fit an index of {self.codes.bits} bits.")
        return PayloadColumn.of(payloads, ids)

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

    def _result(self, found: Neighbours, bits: int) -> SearchResult:
        return SearchResult(found.rows, found.distances, found.counts, bits, self.ids, self.payloads)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Be the only writer of a file, and clear away what a killed one left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, locked = _lock(path)
    try:
        for left_over in path.parent.glob(f".{glob.escape(path.name)}.{8 * '?'}/"):
            shutil.rmtree(left_over, ignore_errors=True)
        yield
    finally:
        if locked != path:
            locked.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path) -> tuple[int, Path]:
    """Lock the file itself, or a file beside it while there is none; the lock ends when the descriptor is closed.

    Saving puts a new file in the place of the old one, so a lock on a file that is no longer there is tried again.

    Returns:
        The descriptor, and what was locked.
    """
    import fcntl  # not on every system; elsewhere an index can be searched but not written

    while True:
        target = path if path.exists() else path.with_name(f".{path.name}.lock")
        descriptor = os.open(target, os.O_RDONLY | (0 if target == path else os.O_CREAT), 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            still_there = os.fstat(descriptor).st_ino == target.stat().st_ino
            if still_there and (target == path or not path.exists()):
                return descriptor, target
        except BlockingIOError:
            os.close(descriptor)
            raise BusyError(f"{path}: another process is writing this index. Try again when it is done.") from None
        except FileNotFoundError:
            pass  # removed just now: try again
        os.close(descriptor)
