"""Micro-batches: order, bounds, one bad item among good ones, cancellation, and the end."""

from __future__ import annotations

import asyncio
import threading

import pytest

pytest.importorskip("fastapi")

from multibit.serve.batching import Batcher
from multibit.serve.problems import RefusedError


class Held:
    """Work that waits until it is let go, and remembers its batches."""

    def __init__(self):
        self.entered, self.leave, self.batches = threading.Event(), threading.Event(), []

    def __call__(self, items):
        self.entered.set()
        assert self.leave.wait(10)
        self.batches.append(list(items))
        if "bad" in items:
            raise ValueError("bad")
        return [item.upper() for item in items]


@pytest.fixture
def held():
    return Held()


async def entered(held):
    await asyncio.to_thread(held.entered.wait, 10)


def test_what_arrives_while_it_works_is_one_batch_and_answers_keep_their_order(held):
    async def run():
        batcher = Batcher("test", held, capacity=10, largest=4)
        first = asyncio.create_task(batcher.submit("a"))
        await entered(held)
        others = [asyncio.create_task(batcher.submit(*pair)) for pair in ("bc", "de", "f")]
        while len(batcher) < 5:
            await asyncio.sleep(0)
        held.leave.set()
        assert await asyncio.gather(first, *others) == [["A"], ["B", "C"], ["D", "E"], ["F"]]
        await asyncio.to_thread(batcher.close)

    asyncio.run(run())
    assert held.batches == [["a"], ["b", "c", "d", "e"], ["f"]]


def test_a_full_queue_refuses_all_or_nothing(held):
    async def run():
        batcher = Batcher("test", held, capacity=3)
        first = asyncio.create_task(batcher.submit("a"))
        await entered(held)
        second = asyncio.create_task(batcher.submit("b", "c"))
        while len(batcher) < 2:
            await asyncio.sleep(0)
        with pytest.raises(RefusedError) as raised:
            await batcher.submit("d", "e")
        assert raised.value.status == 503 and len(batcher) == 2
        held.leave.set()
        assert await first + await second == ["A", "B", "C"]
        await asyncio.to_thread(batcher.close)

    asyncio.run(run())


def test_an_item_that_fails_is_not_the_fault_of_the_others(held):
    held.leave.set()

    async def run():
        batcher = Batcher("test", held, capacity=10)
        found = await asyncio.gather(*map(batcher.submit, ("a", "bad", "b")), return_exceptions=True)
        await asyncio.to_thread(batcher.close)
        return found

    first, error, last = asyncio.run(run())
    assert (first, last) == (["A"], ["B"]) and isinstance(error, ValueError)


def test_what_was_given_up_is_not_worked_on(held):
    async def run():
        batcher = Batcher("test", held, capacity=10)
        first = asyncio.create_task(batcher.submit("a"))
        await entered(held)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batcher.submit("late"), 0.01)
        held.leave.set()
        assert await first == ["A"] and await batcher.submit("b") == ["B"]
        await asyncio.to_thread(batcher.close)

    asyncio.run(run())
    assert ["late"] not in held.batches and held.batches[-1] == ["b"]


def test_the_end_finishes_what_waits_and_refuses_more(held):
    async def run():
        batcher = Batcher("test", held, capacity=10)
        waiting = asyncio.create_task(batcher.submit("a"))
        await entered(held)
        ending = asyncio.create_task(asyncio.to_thread(batcher.close))
        held.leave.set()
        assert await waiting == ["A"]
        await ending
        with pytest.raises(RefusedError):
            await batcher.submit("b")

    asyncio.run(run())
