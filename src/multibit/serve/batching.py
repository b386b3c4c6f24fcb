"""Micro-batches: requests that arrive while a worker is busy are worked on together, without waiting for more."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from multibit.serve.problems import overloaded

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """A worker thread with a bounded queue. It takes all that waits, up to `largest`, and works on it at once.

    Args:
        name: of the thread. work: items -> results, in order. capacity: items that may wait.
        largest: items of a batch. observe: called with the size of each batch.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[T]], Sequence[R]],
        *,
        capacity: int,
        largest: int = 32,
        observe: Callable[[int], object] = lambda size: None,
    ) -> None:
        self.name, self.capacity, self.largest = name, capacity, largest
        self._work, self._observe = work, observe
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    async def submit(self, *items: T) -> list[R]:
        """The results of some items; all of them are queued, or none. An empty queue takes any number.

        Raises:
            RefusedError: the queue is full, status 503; and what `work` raises.
        """
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in items]
        with self._ready:
            if self._closed or (self._waiting and len(self._waiting) + len(items) > self.capacity):
                raise overloaded(f"{len(self._waiting)} queries are waiting; at most {self.capacity} may.")
            self._waiting.extend(zip(items, futures, strict=True))
            self._ready.notify()
        try:
            return [await future for future in futures]
        finally:
            for future in futures:  # after an error or a time limit the others are skipped
                if future.done() and not future.cancelled():
                    future.exception()  # seen, so not reported as lost
                future.cancel()

    def close(self) -> None:
        """Finish what waits, then stop the thread."""
        with self._ready:
            self._closed = True
            self._ready.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._waiting:
                    if self._closed:
                        return
                    self._ready.wait()
                taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), self.largest))]
            jobs = [(item, future) for item, future in taken if not future.cancelled()]
            if jobs:
                self._observe(len(jobs))
                results = self._results([item for item, _ in jobs])
                _hand_over([future for _, future in jobs], results)

    def _results(self, items: list[T]) -> list[Any]:
        """Result or error of each item; one that fails is not the fault of the others."""
        try:
            return list(self._work(items))
        except Exception as error:
            if len(items) == 1:
                return [error]
        return [result for item in items for result in self._results([item])]


def _hand_over(futures: list[asyncio.Future[Any]], results: list[Any]) -> None:
    """Set the results in the event loop that waits for them."""

    def deliver() -> None:
        for future, result in zip(futures, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    loop = futures[0].get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(deliver)
