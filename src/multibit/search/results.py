"""Results of a search: rows of a version of an index, what they stand for, and their Parquet file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.codes.distance import Neighbours, ScoredRows
from multibit.errors import DataError, counted, require_integer
from multibit.paths import replacing, require_suffix
from multibit.progress import track
from multibit.search.batches import FACTS, ID
from multibit.search.columns import Id, IdColumn
from multibit.search.hits import Hit
from multibit.search.segments import Lost, Version, in_order
from multibit.table import Number, Table

QUERY, RANK, DISTANCE = "query", "rank", "distance"  # columns of hits, together with the id, before the fields


@dataclass(frozen=True, eq=False, repr=False)
class SearchResult:
    """Results of Q queries, best first, ties by age: the item that was added (or last replaced) first comes first.

    Attributes:
        bits: code length of the search. queries: (Q,) ids of the queries as an Arrow array; None where they have none.
        exact: False after an approximate search, which may miss some of the nearest items.

    Example:
        >>> from multibit import Codes, Index
        >>> index = Index()
        >>> index.add(["a", "b"], Codes.from_bits([[1, 1], [0, 1]]), [{"year": 2001}, {}])
        >>> result = index.search(Codes.from_bits([[1, 1]]), k=2)
        >>> result.ids, result.distances
        ([['a', 'b']], array([[0, 1]], dtype=uint16))
        >>> result.hits()[0]
        Hit(rank=1, id='a', distance=0, bits=2, payload={'year': 2001}, score=None)
    """

    bits: int
    _found: Neighbours | ScoredRows  # rows with the removed ones counted
    _version: Version
    _fields: Sequence[str] | None = None
    queries: Any = None
    exact: bool = True

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        return f"SearchResult({len(self)} queries, {int(self.counts.sum())} hits at {self.bits} bits{self._mark})"

    @property
    def _mark(self) -> str:
        return "" if self.exact else ", approximate"

    def _repr_html_(self) -> str:
        """The hits of the first query as a table, for notebooks."""
        rows = [
            (Number(hit.rank, "d"), str(hit.id), str(hit.distance if hit.score is None else round(hit.score, 3)))
            for hit in (self.hits() if len(self) else ())
        ]
        title = f"First of {counted(len(self), 'query', 'queries')}, {self.bits} bits{self._mark}"
        return Table(title, ("rank", "id", "distance or score"), tuple(rows))._repr_html_()

    @property
    def lost(self) -> tuple[Lost, ...]:
        """Segments that were not searched because they could not be read; only where the index was opened partially."""
        return self._version.lost

    @property
    def rows(self) -> Rows:
        """(Q, k) int64 rows of the index as it was searched, -1 past `counts`."""
        return self._version.ordinals(self._found.rows)

    @property
    def counts(self) -> Rows:
        """(Q,) int64, number of hits of each query."""
        return self._found.counts

    @property
    def distances(self) -> NDArray[np.uint16]:
        """(Q, k) uint16 Hamming distances.

        Raises:
            DataError: the queries were relaxed.
        """
        if isinstance(self._found, ScoredRows):
            raise DataError("relaxed queries have no Hamming distances.", hint="Read the scores instead.")
        return self._found.distances

    @property
    def scores(self) -> NDArray[np.float64]:
        """(Q, k) float64 inner products with the relaxed queries.

        Raises:
            DataError: the queries were binary.
        """
        if isinstance(self._found, Neighbours):
            raise DataError("binary queries have no scores.", hint="Read the distances instead.")
        return self._found.scores

    @property
    def ids(self) -> list[list[Id]]:
        """Ids of the hits, one list per query."""
        ends = np.cumsum(self.counts).tolist()
        names = self._ids(self._found.rows[self._filled])
        return [names[first:last] for first, last in zip([0, *ends], ends, strict=False)]

    def hits(self, query: int = 0) -> list[Hit]:
        """The hits of one query with their metadata; reads only these items.

        Raises:
            DataError: no such query.
        """
        if not len(self):
            raise DataError("the result is of no query, so it has no hits.", option="query")
        require_integer(query, 0, "query", most=len(self) - 1)
        rows = self._found.rows[query, : self.counts[query]]
        distances: list[int | None] = [None] * len(rows)
        scores: list[float | None] = [None] * len(rows)
        if isinstance(self._found, ScoredRows):
            scores = self._found.scores[query, : len(rows)].tolist()
        else:
            distances = self._found.distances[query, : len(rows)].tolist()
        payloads: list[dict[str, Any]] = [{}] * len(rows)
        for part, places, inner in self._version.by_part(rows):
            for place, payload in zip(places.tolist(), part.segment.metadata.rows(inner, self._fields), strict=True):
                payloads[place] = payload
        return [
            Hit(rank, name, distance, self.bits, payload, score)
            for rank, (name, distance, payload, score) in enumerate(
                zip(self._ids(rows), distances, payloads, scores, strict=True), start=1
            )
        ]

    def to_table(self) -> Any:
        """All hits as an Arrow table: `query` (its id, or number from 0), `rank`, `id`, `distance`, and the fields.

        Raises:
            DataError: the queries were relaxed, or a field is named like one of the first columns.

        Example:
            >>> from multibit import Codes, Index
            >>> index, codes = Index(), Codes.from_bits([[1, 1], [1, 0]])
            >>> index.add(["a", "b"], codes, [{"year": 2001}, {}])
            >>> index.search(codes.take([1]), k=2).to_table().to_pylist()
            [{'query': 0, 'rank': 1, 'id': 'b', 'distance': 0, 'year': None},
             {'query': 0, 'rank': 2, 'id': 'a', 'distance': 1, 'year': 2001}]
        """
        names = list(self._version.kinds) if self._fields is None else list(self._fields)
        require_free_names(names)
        asked, place = np.nonzero(self._filled)  # of each hit
        rows = self._found.rows[self._filled]
        asking = pyarrow.array(np.arange(len(self))) if self.queries is None else self.queries
        columns = {
            QUERY: asking.take(pyarrow.array(asked)),
            RANK: pyarrow.array((place + 1).astype(np.int32)),
            ID: self._id_column(rows),
            DISTANCE: pyarrow.array(self.distances[self._filled]),
        }
        return pyarrow.table({**columns, **self._version.metadata_of(rows, names)})

    @property
    def _filled(self) -> NDArray[np.bool_]:
        """(Q, k) places with a hit."""
        filled: NDArray[np.bool_] = np.arange(self._found.rows.shape[1]) < self.counts[:, None]
        return filled

    def _ids(self, rows: Rows) -> list[Id]:
        names: list[Id] = [""] * len(rows)
        for part, places, inner in self._version.by_part(rows):
            for place, name in zip(places.tolist(), part.segment.ids.listed(inner), strict=True):
                names[place] = name
        return names

    def _id_column(self, rows: Rows) -> Any:
        """The ids of some rows as an Arrow array."""
        parts = self._version.by_part(rows)
        column = IdColumn.concatenate([part.segment.ids.take(inner) for part, _, inner in parts])
        return column.to_arrow().take(pyarrow.array(in_order(parts)))


def write_hits(path: Path | str, results: Iterable[SearchResult], total: int) -> int:
    """Write the answers to queries as Parquet: `query`, `rank`, `id`, `distance`, and the fields of the search.

    An existing file is unchanged if writing fails or the process ends.

    Args:
        path: ending in .parquet. results: as from `Index.search_batches`. total: number of queries, for the progress.

    Returns:
        Number of hits.

    Raises:
        DataError: another ending, or a field that is named like one of the first columns.
        OSError: cannot be written.

    Example:
        >>> import tempfile
        >>> from multibit import Codes, Index
        >>> index, codes = Index(), Codes.from_bits([[1, 1], [1, 0]])
        >>> index.add(["a", "b"], codes)
        >>> out = Path(tempfile.mkdtemp()) / "hits.parquet"
        >>> write_hits(out, index.search_batches(codes, k=1), total=2)
        2
        >>> pyarrow.parquet.read_table(out).to_pylist()
        [{'query': 0, 'rank': 1, 'id': 'a', 'distance': 0}, {'query': 1, 'rank': 1, 'id': 'b', 'distance': 0}]
    """
    target = Path(path)
    require_suffix(target, ".parquet")
    hits, writer = 0, None
    with replacing(target) as temporary, track("Searching", total, "queries") as advance:
        try:
            for result in results:
                table = result.to_table()
                if writer is None:
                    facts = {
                        "bits": result.bits,
                        "lost": [str(lost.file) for lost in result.lost],
                        "exact": result.exact,
                    }
                    schema = table.schema.with_metadata({FACTS: json.dumps(facts)})
                    writer = pyarrow.parquet.ParquetWriter(temporary, schema)
                writer.write_table(table.replace_schema_metadata(writer.schema.metadata))
                hits += table.num_rows
                advance(len(result))
        finally:
            if writer is not None:
                writer.close()
    return hits


def require_free_names(fields: Sequence[str]) -> None:
    """Refuse fields that are named like a column of every table of hits.

    Raises:
        DataError: names the first such field.
    """
    for name in fields:
        if name in (QUERY, RANK, ID, DISTANCE):
            problem = f"a field is named {name!r}, as a column of the hits."
            raise DataError(problem, option="fields", hint="Choose other fields, or rename it.")
