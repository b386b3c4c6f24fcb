"""Near-duplicates of queries among training items: they inflate every score, because training has seen their labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import Rows, unit_rows
from multibit.data.checking import are_near_duplicates
from multibit.data.split import Split
from multibit.errors import counted
from multibit.features.store import FeatureStore
from multibit.files import fingerprint
from multibit.progress import track

SAMPLE = 200
"""Queries whose images are compared: decoding all images of a large data set would take longer than its training."""

COMPARED = 2_000
"""Queries whose images are compared for a report."""

BLOCK = 16_384
"""Rows of features in memory at a time."""


@dataclass(frozen=True)
class Crossing:
    """Queries that have a duplicate among the training and validation items.

    Attributes:
        queries: number of query items. identical: those with the image features of such an item.
        sampled: queries whose image was compared. near: those whose image is a near-duplicate of such an item's.
    """

    queries: int
    identical: int
    sampled: int
    near: int

    @property
    def problem(self) -> str:
        """One sentence; empty where nothing crosses the split."""
        if self.near:
            sampled = "sampled " if self.sampled < self.queries else ""
            of = counted(self.sampled, f"{sampled}query", f"{sampled}queries")
            return f"{self.near:,} of {of} with a near-duplicate among the training images: every score is too high."
        if self.identical:
            queries = counted(self.identical, "query has", "queries have")
            return f"{queries} the image features of a training item: duplicates leak labels."
        return ""


def crossing_duplicates(store: FeatureStore, split: Split) -> Crossing:
    """Look for queries with a duplicate among the training and validation items.

    All queries are compared by their image features. Of at most `SAMPLE` queries, drawn with a fixed seed, the image is
    also compared with that of the item whose features are the most similar, as `multibit check` compares all images.

    Args:
        store: the features. split: of its rows.
    """
    seen = np.concatenate([split.train, split.validation])
    known = {fingerprint(row) for block in _blocks(store, seen) for row in block}
    identical = sum(fingerprint(row) in known for block in _blocks(store, split.query) for row in block)
    sample = np.random.default_rng(0).permutation(split.query)[:SAMPLE] if len(seen) else split.query[:0]
    images = store.dataset.images
    pairs = [
        (first, second)
        for mine, theirs in zip(sample, _nearest(store, sample, seen), strict=True)
        if (first := images[mine]) is not None and (second := images[theirs]) is not None
    ]
    near = 0
    with track("Looking for near-duplicates", len(pairs), "images") as advance:
        for pair in pairs:
            near += are_near_duplicates(*pair)
            advance()
    return Crossing(len(split.query), identical, len(pairs), near)


@dataclass(frozen=True, eq=False)
class LookAlikes:
    """Queries that have a look-alike among the items that a model saw or that are searched.

    Attributes:
        compared: places of the compared queries among all, ascending. training: those of them with a look-alike among
            the training and validation items. database: with one among the other items of the database.
    """

    compared: Rows
    training: Rows
    database: Rows

    def __repr__(self) -> str:
        return f"LookAlikes({len(self.training)} and {len(self.database)} of {len(self.compared)} queries)"

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(len(self.training) or len(self.database))


def look_alikes(store: FeatureStore, split: Split, sample: int = COMPARED) -> LookAlikes:
    """Look for queries with a look-alike: equal image features, or a near-duplicate image.

    The image of a query is compared with that of the item whose image features are the most similar.

    Args:
        store: the features. split: of its rows. sample: number of queries to compare at most, drawn with a fixed seed.
    """
    seen = np.concatenate([split.train, split.validation])
    places = np.sort(np.random.default_rng(0).permutation(len(split.query))[:sample])
    rows = split.query[places]
    training, database = (places[_alike(store, rows, among)] for among in (seen, np.setdiff1d(split.database, seen)))
    return LookAlikes(places, training, database)


def _alike(store: FeatureStore, rows: Rows, among: Rows) -> NDArray[np.bool_]:
    """Whether each row has a look-alike among others."""
    found = np.zeros(len(rows), np.bool_)
    if not len(among):
        return found
    images = store.dataset.images
    with track("Looking for look-alikes", len(rows), "queries") as advance:
        for place, (mine, theirs) in enumerate(zip(rows, _nearest(store, rows, among), strict=True)):
            first, second = images[mine], images[theirs]
            same = np.array_equal(store.image[[mine]], store.image[[theirs]])
            found[place] = same or (first is not None and second is not None and are_near_duplicates(first, second))
            advance()
    return found


def _nearest(store: FeatureStore, rows: Rows, among: Rows) -> Rows:
    """The row with the largest cosine to each of some rows; the first of equals."""
    asked = unit_rows(np.asarray(store.image[rows], np.float32))
    best, chosen = np.full(len(rows), -np.inf, np.float32), np.zeros(len(rows), np.int64)
    start = 0
    for block in _blocks(store, among):
        cosines = asked @ unit_rows(np.asarray(block, np.float32)).T
        largest = cosines.argmax(axis=1) if len(rows) else chosen
        values = cosines[np.arange(len(rows)), largest]
        better = values > best
        best[better], chosen[better] = values[better], among[start + largest[better]]
        start += len(block)
    return chosen


def _blocks(store: FeatureStore, rows: Rows) -> Iterator[NDArray[np.floating]]:
    """The image features of some rows."""
    return (np.asarray(store.image[rows[start : start + BLOCK]]) for start in range(0, len(rows), BLOCK))
