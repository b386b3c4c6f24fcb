"""Threads of torch: a training uses those it is told, whatever the environment allows."""

from __future__ import annotations

import pytest
import torch

from multibit import Config, ConfigError, MismatchError, train
from multibit.hashing.threads import on_threads

SMALL = Config(lengths=(8, 16), scales=2, hidden=64, dimension=16, epochs=2, batch_size=32)


def test_threads_are_those_of_before_again_even_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), on_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise RuntimeError
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("method", ["multibit-plus", "multibit-free", "dech"])
def test_the_result_does_not_depend_on_the_threads_that_the_environment_allows(planted_pairs, method):
    found = {}
    for allowed in (1, 4):
        with on_threads(allowed):
            found[allowed] = train(planted_pairs, None, method=method, lengths=(8, 16), epochs=2, batch_size=32)
            assert torch.get_num_threads() == allowed
    assert found[1].threads == found[4].threads == 1
    assert found[1].model.fingerprint() == found[4].model.fingerprint()


def test_a_training_uses_the_threads_that_it_is_told(planted_pairs, monkeypatch):
    seen = set()
    monkeypatch.setattr("multibit.hashing.train.fit", recording(seen))
    assert train(planted_pairs, None, SMALL, threads=3).threads == 3
    assert seen == {3}


def test_a_training_is_resumed_on_as_many_threads(planted_pairs, tmp_path):
    state = tmp_path / "state.pt"
    train(planted_pairs, None, SMALL, state_file=state, until=1, threads=2)
    with pytest.raises(MismatchError, match="threads 2 there, 1 now"):
        train(planted_pairs, None, SMALL, state_file=state)
    assert train(planted_pairs, None, SMALL, state_file=state, threads=2).state.epoch == 2


@pytest.mark.parametrize("threads", [0, 1025, 10**20])
def test_a_number_of_threads_out_of_range_is_refused(planted_pairs, threads):
    with pytest.raises(ConfigError) as caught:
        train(planted_pairs, None, SMALL, threads=threads)
    assert caught.value.option == "threads"


def recording(seen):
    from multibit.hashing.loop import fit

    def recorded(*given, **named):
        seen.add(torch.get_num_threads())
        return fit(*given, **named)

    return recorded
