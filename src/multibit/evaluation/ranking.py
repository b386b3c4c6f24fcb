"""Rankings of both directions at all lengths, each computed once and shared by all metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from multibit.arrays import FloatArray, Rows
from multibit.codes import DIRECTIONS, CodedItems, Codes
from multibit.codes.distance import nearest
from multibit.codes.items import Direction
from multibit.errors import DataError
from multibit.evaluation.metrics import LabelWords, RankingCounts, count_packed, pack_both_labels

POOL = 100  # first ranks that are kept, for NDCG and the candidate pools
DEPTH = 1_000  # of the precision@N curve
BLOCK = 64  # queries whose ranks down to the depth are held at once

Key = tuple[Direction, int]
"""Direction and code length."""

Anchor = Mapping[Key, Rows]
"""(Q, 100) first rows of each query, by direction and length, of the run that shares its candidates with all pools."""


@dataclass(frozen=True, eq=False)
class FirstRanks:
    """The first ranks of a ranking.

    Attributes:
        rows: (Q, min(100, N)) database rows, nearest first.
        precision: (min(depth, N),) mean precision of the first 1, 2, ... ranks, over the queries that have a relevant
            item; NaN where none has.
    """

    rows: Rows
    precision: FloatArray


@dataclass(frozen=True, eq=False)
class Ranking:
    """The database ranked by (distance, row) for every query, in one direction at one length.

    Attributes:
        query: Q codes. database: N codes. query_labels: (Q, C). database_labels: (N, C).
        bits: prefix length. depth: last rank of the precision curve; 0 for none.
        words: the labels packed by `pack_both_labels`, where rankings share them.
        counterparts: Q codes of the query items in the modality of the database; None where they are not known.
    """

    query: Codes
    database: Codes
    query_labels: np.ndarray
    database_labels: np.ndarray
    bits: int
    depth: int = DEPTH
    words: LabelWords | None = None
    counterparts: Codes | None = None

    @cached_property
    def _words(self) -> LabelWords:
        sides = self.query_labels, len(self.query), self.database_labels, len(self.database)
        return self.words or pack_both_labels(*sides)

    @cached_property
    def counts(self) -> RankingCounts:
        """Counts for average precision and the precision-recall curve, computed on first use."""
        return count_packed(self.query, self.database, self._words, self.bits, (None,))[0]

    def counts_at(self, cutoff: int) -> RankingCounts:
        """Counts for the first `cutoff` ranks, from one pass together with `counts`."""
        counts, cut = count_packed(self.query, self.database, self._words, self.bits, (None, cutoff))
        vars(self)["counts"] = counts  # as the cached property would keep it
        return cut

    @cached_property
    def first(self) -> FirstRanks:
        """The first ranks of every query, computed on first use."""
        asked, searched = self._words
        columns = min(max(self.depth, POOL), len(self.database))
        rows = np.empty((len(self.query), min(POOL, columns)), np.int64)
        hits = np.zeros(columns)
        for start in range(0, len(self.query), BLOCK):
            block = np.arange(start, min(start + BLOCK, len(self.query)))
            found = nearest(self.query.take(block), self.database, columns, self.bits).rows  # (b, columns)
            rows[block] = found[:, :POOL]
            if self.depth:
                relevant = np.zeros(found.shape, np.bool_)
                for wanted, words in zip(asked, searched, strict=True):
                    relevant |= (words[found] & wanted[block, None]) != 0
                hits += relevant.sum(axis=0)
        defined = int(self.counts.relevant.any(axis=1).sum()) if self.depth else 0
        ranks = np.arange(1, columns + 1)
        precision = hits.cumsum() / (defined * ranks) if defined else np.full(columns, np.nan)
        return FirstRanks(rows, precision[: self.depth])


class Rankings(Mapping[Key, Ranking]):
    """The rankings of one query set and one database: both directions, all lengths.

    Args:
        query, database: coded items, with codes at least as long as the longest length. lengths: to rank at.
        depth: last rank of the precision curves; 0 for none.
        own: direction and length -> query and database of that ranking, where it has codes of its own; the same items
            in the same order.

    Raises:
        DataError: an empty side, no length, codes shorter than a length, or own codes of another number of items.

    Example:
        >>> items = CodedItems.binarize({"image": [[1, -1], [1, 1]], "text": [[1, -1], [-1, 1]]}, [[1, 0], [0, 1]])
        >>> rankings = Rankings(items, items, lengths=(1, 2))
        >>> list(rankings)
        [('i2t', 1), ('i2t', 2), ('t2i', 1), ('t2i', 2)]
        >>> rankings["t2i", 2].first.rows
        array([[0, 1],
               [1, 0]])
    """

    def __init__(
        self,
        query: CodedItems,
        database: CodedItems,
        lengths: Sequence[int],
        *,
        depth: int = DEPTH,
        own: Mapping[Key, tuple[CodedItems, CodedItems]] | None = None,
    ) -> None:
        if not len(query) or not len(database):
            raise DataError(
                f"{len(query)} queries and {len(database)} database items: need at least 1 of each.",
                field="database" if len(query) else "query",
            )
        if not isinstance(lengths, Iterable) or isinstance(lengths, str | bytes):
            problem = f"need a list of code lengths, got {lengths!r:.60}."
            raise DataError(problem, option="lengths", hint="Pass a list, such as [16, 32].")
        lengths = tuple(lengths)  # read once: it may be a generator
        if not lengths:
            raise DataError("need at least 1 code length.", option="lengths")
        self.query, self.database, self.lengths = query, database, lengths
        labels = query.labels, database.labels
        words = pack_both_labels(labels[0], len(query), labels[1], len(database))
        self._rankings: dict[Key, Ranking] = {}
        for direction, (asked, searched) in DIRECTIONS.items():
            for bits in lengths:
                sides = (own or {}).get((direction, bits)) or (query.at(bits), database.at(bits))
                if tuple(map(len, sides)) != (len(query), len(database)):
                    raise DataError(f"own codes of {sides}, for {query} and {database}.", field=f"{direction}, {bits}")
                codes = sides[0].codes(asked), sides[1].codes(searched)
                own_codes = sides[0].codes(searched)
                self._rankings[direction, bits] = Ranking(*codes, *labels, bits, depth, words, own_codes)
        for _, ranking in sorted(self.items(), key=lambda each: -each[0][1]):  # the longest length is named first
            ranking.query.check_length(ranking.bits)
            ranking.database.check_length(ranking.bits)

    def __getitem__(self, key: Key) -> Ranking:
        return self._rankings[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rankings)

    def __len__(self) -> int:
        return len(self._rankings)

    @property
    def labelled(self) -> bool:
        """Whether any item has a label; without them only own counterparts tell what is relevant."""
        return bool(self.query.labels.any() or self.database.labels.any())

    @property
    def anchor(self) -> Anchor:
        """First rows of every ranking, for the candidate pools of other runs."""
        return {key: ranking.first.rows for key, ranking in self.items()}
