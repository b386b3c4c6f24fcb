"""Output of library calls: none by default, progress on standard error with `progress=True`."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from conftest import plant
from multibit import FeatureStore, Run, Split, encode_store, evaluate_run, train
from multibit.indices import build_indices
from multibit.measurement import assess_run, measure
from multibit.progress import is_shown, showing

TINY = {"lengths": (8, 16), "scales": 2, "hidden": 16, "dimension": 8, "epochs": 2, "method": "multibit"}
FIRST_CALL = """
import numpy as np
from multibit import Codes, hamming_distances
from multibit.codes import kernels
from multibit.codes.compiling import is_compiled

assert not is_compiled(kernels.all_distances)
codes = Codes.binarize(np.ones((2, 8)))
assert hamming_distances(codes, codes).tolist() == [[0, 0], [0, 0]]
"""


@pytest.fixture
def split():
    return Split.draw(200, query=20, train=60, validation=10, seed=1)


def test_library_calls_write_nothing(planted_store, split, tmp_path, capfd):
    pairs = planted_store.take(split.train)
    train(pairs, planted_store.take(split.validation), **TINY)
    run = Run.create(tmp_path / "run", planted_store, split, **TINY)
    encode_store(run.model, planted_store)
    evaluate_run(run, planted_store, at=5)
    build_indices(run, planted_store, [0, 1])
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_an_assessment_writes_nothing(split, tmp_path, capfd):
    np.savez(tmp_path / "nameless.npz", **plant(200))  # without label names no text encoder is loaded
    store = FeatureStore.open(tmp_path / "nameless.npz")
    run = Run.create(tmp_path / "run", store, split, **TINY)
    assess_run(measure(run, store), store)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("call", ["train", "create", "evaluate"])
def test_progress_is_written_to_standard_error_when_asked_for(call, planted_store, split, tmp_path, capfd):
    if call == "train":
        train(planted_store.take(split.train), progress=True, **TINY)
    else:
        run = Run.create(tmp_path / "run", planted_store, split, progress=call == "create", **TINY)
        if call == "evaluate":
            assert capfd.readouterr() == ("", "")
            evaluate_run(run, planted_store, progress=True)
    out, err = capfd.readouterr()
    assert out == "" and ("Ranking" if call == "evaluate" else "Training") in err
    assert not is_shown()


def test_a_call_without_progress_keeps_that_of_its_caller(planted_store, split, capfd):
    with showing():
        train(planted_store.take(split.train), **TINY)
    assert "Training" in capfd.readouterr().err


@pytest.mark.slow
def test_the_first_call_of_a_kernel_writes_nothing(tmp_path):
    """In a new process with an empty cache, where the kernels are compiled first."""
    found = subprocess.run(
        [sys.executable, "-c", FIRST_CALL],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    assert list((tmp_path / "cache").rglob("*.nbi"))
