"""Threads of a training: several only where they are clearly faster and compute the same bits."""

from __future__ import annotations

import itertools

import pytest
import torch

from multibit.hashing import threads
from multibit.hashing.threads import chosen_threads, on_threads


@pytest.fixture(autouse=True)
def four_threads():
    with on_threads(4):
        yield


def trial(monkeypatch, seconds):
    """Let a trial step take the seconds of its number of threads."""
    clock = itertools.accumulate(itertools.cycle([0, seconds[1], 0, seconds[4]]))
    monkeypatch.setattr(threads.time, "perf_counter", lambda: next(clock))


@pytest.mark.parametrize(("seconds", "expected"), [({1: 4, 4: 2}, 4), ({1: 4, 4: 40}, 1), ({1: 4, 4: 3.8}, 1)])
def test_threads_are_used_where_they_are_clearly_faster(monkeypatch, seconds, expected):
    trial(monkeypatch, seconds)
    assert chosen_threads(16, 8, 4) == expected
    assert torch.get_num_threads() == 4


def test_threads_that_compute_other_bits_are_never_used(monkeypatch):
    trial(monkeypatch, {1: 4, 4: 1})
    monkeypatch.setattr(threads, "_step", lambda *_: torch.tensor(float(torch.get_num_threads())))
    assert chosen_threads(16, 8, 4) == 1


def test_a_single_thread_needs_no_trial(monkeypatch):
    monkeypatch.setattr(threads, "_step", lambda *_: pytest.fail("a trial"))
    with on_threads(1):
        assert chosen_threads(16, 8, 4) == 1


def test_the_result_does_not_depend_on_the_threads_that_are_allowed(planted_pairs):
    from multibit import Config, train

    config = Config(lengths=(8, 16), scales=2, hidden=64, dimension=16, epochs=2, batch_size=32)
    found = {}
    for count in (1, 4):
        with on_threads(count):
            found[count] = train(planted_pairs, None, config)
    assert found[1].model.fingerprint() == found[4].model.fingerprint()
    assert found[1].threads == 1 and found[4].threads in (1, 4)
