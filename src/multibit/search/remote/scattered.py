"""Several servers as one: items are placed by a hash of their id, every server is asked, and the answers are merged."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np

from multibit.codes import Codes
from multibit.errors import ConfigError, DataError, MismatchError, UnavailableError
from multibit.search.columns import Id, IdColumn
from multibit.search.metadata import Metadata
from multibit.search.remote.base import Asked, Facts, Found, Items, Store
from multibit.search.segments import Lost

T = TypeVar("T")
EVERY = 100_000  # values of a field that each server counts


class ScatteredStore:
    """One index in several databases; see `Store`.

    Args:
        stores: at least one, always in the same order. partial: answer without servers that cannot be reached, and say
            so; only changes need all of them.
    """

    def __init__(self, stores: Sequence[Store], partial: bool = False) -> None:
        self.stores, self.is_partial = list(stores), partial
        self.capabilities = stores[0].capabilities._replace(transactions=False)
        self._writer: int | None = None
        self._pool = ThreadPoolExecutor(len(self.stores), "multibit-scatter")

    @property
    def place(self) -> str:
        """See `Store`."""
        return "; ".join(store.place for store in self.stores)

    def _ask(self, work: Callable[[Store], T]) -> tuple[list[T], list[tuple[Store, UnavailableError]]]:
        """The answers of all servers that can be reached, and those that cannot.

        Raises:
            UnavailableError: a server is down, and partial answers were not asked for; or all are.
        """
        inside = self._writer == threading.get_ident()  # this thread has the locks of all stores
        waiting = [partial(work, store) if inside else self._pool.submit(work, store).result for store in self.stores]
        answers, lost = [], []
        for store, answer in zip(self.stores, waiting, strict=True):
            try:
                answers.append(answer())
            except UnavailableError as error:
                lost.append((store, error))
        if lost and (not self.is_partial or not answers):
            hint = lost[0][1].hint if self.is_partial else "Start it, or ask for partial answers: ?partial=1."
            raise UnavailableError(lost[0][1].problem, hint=hint)
        return answers, lost

    def read(self) -> Facts | None:
        """See `Store`; refuses servers that do not belong together."""
        answers, _ = self._ask(lambda store: (self.stores.index(store), store.read()))
        known = [(number, facts) for number, facts in answers if facts is not None]
        if not known:
            return None
        for number, facts in answers:
            place = self.stores[number].place
            if facts is None:
                raise DataError(f"{place}: no such index, but the other servers have it.", hint="Load it again.")
            if (facts.shard, facts.shards) != (number, len(self.stores)):
                found = f"server {facts.shard + 1} of {facts.shards}, named as {number + 1} of {len(self.stores)}"
                raise ConfigError(
                    f"{place}: {found}.", option="url", hint="Name all servers, in the order of the load."
                )
            if (facts.model, facts.bits, facts.modality) != (known[0][1].model, known[0][1].bits, known[0][1].modality):
                models = f"{facts.model or 'unknown'}, the first server those of {known[0][1].model or 'unknown'}"
                raise MismatchError(f"{place}: holds codes of model {models}.", hint="Load it again.")
        newest = max((facts for _, facts in known), key=lambda facts: (len(facts.fields), facts.changes))
        loads = [facts.loading for _, facts in known if facts.loading is not None]
        loading = min(loads, key=lambda each: each.done) if loads else None
        return msgspec.structs.replace(newest, loading=loading, shard=0, shards=1)

    def create(self, facts: Facts) -> None:
        """See `Store`."""
        for number, store in enumerate(self.stores):
            store.create(self._own(facts, number))

    def _own(self, facts: Facts, number: int) -> Facts:
        return msgspec.structs.replace(facts, shard=number, shards=len(self.stores))

    def drop(self) -> None:
        """See `Store`."""
        for store in self.stores:
            store.drop()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """See `Store`; all servers are locked in the same order, so writers wait for each other."""
        with contextlib.ExitStack() as stack:
            for store in self.stores:
                stack.enter_context(store.writing())
            before, self._writer = self._writer, threading.get_ident()
            try:
                yield
            finally:
                self._writer = before

    def describe(self, facts: Facts) -> None:
        """See `Store`."""
        for number, store in enumerate(self.stores):
            store.describe(self._own(facts, number))

    def put(self, facts: Facts, items: Items) -> None:
        """See `Store`."""
        home = items.ids.keys % np.uint64(len(self.stores))
        for number, store in enumerate(self.stores):
            rows = np.flatnonzero(home == number)
            if len(rows):
                store.put(facts, _taken(items, rows))

    def remove(self, facts: Facts, ids: Sequence[Id]) -> None:
        """See `Store`."""
        for store in self.stores:
            store.remove(facts, ids)

    def settle(self) -> None:
        """See `Store`."""
        self._ask(lambda store: store.settle())

    def youngest(self) -> int:
        """See `Store`."""
        return max(store.youngest() for store in self.stores)

    def count(self) -> int:
        """See `Store`."""
        return sum(self._ask(lambda store: store.count())[0])

    def search(self, facts: Facts, asked: Asked) -> Found:
        """See `Store`."""
        answers, gone = self._ask(lambda store: store.search(facts, asked))
        queries, distances, ages = (
            np.concatenate([getattr(answer, name) for answer in answers]) for name in ("queries", "distances", "ages")
        )
        order = np.lexsort((ages, distances, queries))
        first = np.searchsorted(queries[order], np.arange(len(asked.codes)))  # place of the first hit of each query
        order = order[np.arange(len(order)) - first[queries[order]] < asked.k]
        lost = [Lost(store.place, None, error.problem) for store, error in gone]
        return Found(
            queries[order],
            distances[order],
            ages[order],
            IdColumn.concatenate([answer.ids for answer in answers]).take(order),
            Metadata.concatenate([answer.metadata for answer in answers]).take(order),
            (*(each for answer in answers for each in answer.lost), *lost),
        )

    def items(self, facts: Facts, ids: Sequence[Id]) -> Items:
        """See `Store`."""
        return _joined(self._ask(lambda store: store.items(facts, ids))[0])

    def page(self, facts: Facts, start: int, count: int) -> Items:
        """See `Store`."""
        found = _joined(self._ask(lambda store: store.page(facts, 0, start + count))[0])
        return _taken(found, np.argsort(found.ages, kind="stable")[start : start + count])

    def values(self, facts: Facts, field: str, limit: int) -> list[tuple[Any, int]]:
        """See `Store`."""
        total: Counter[Any] = Counter()
        for found in self._ask(lambda store: store.values(facts, field, EVERY))[0]:
            total.update(dict(found))
        return sorted(total.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]

    def close(self) -> None:
        """See `Store`."""
        for store in self.stores:
            store.close()
        self._pool.shutdown()


def _joined(parts: Sequence[Items]) -> Items:
    return Items(
        IdColumn.concatenate([part.ids for part in parts]),
        np.concatenate([part.ages for part in parts]),
        Codes.concatenate([part.codes for part in parts]),
        Metadata.concatenate([part.metadata for part in parts]),
    )


def _taken(items: Items, rows: Any) -> Items:
    return Items(items.ids.take(rows), items.ages[rows], items.codes.take(rows), items.metadata.take(rows))
