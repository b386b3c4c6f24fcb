"""Compiled kernels where they can be kept on disk and where they cannot: searching works either way."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from numba.core.registry import cpu_target

from multibit.codes import Codes, hamming_distances, kernels
from multibit.codes.compiling import is_compiled, over_queries
from multibit.codes.distance import nearest

SEARCH = """
import json
import numpy as np
from multibit.codes import Codes, kernels
from multibit.codes.compiling import is_compiled
from multibit.codes.distance import nearest

ready = is_compiled(kernels.nearest)
bits = np.random.default_rng(0).integers(0, 2, (300, 40))
found = nearest(Codes.from_bits(bits[:3]), Codes.from_bits(bits), 5, bits=23)
print(json.dumps([[found.rows.tolist(), found.distances.tolist()], kernels.nearest.stats.cache_path, ready]))
"""
SMALL = """
from multibit.codes.compiling import compiled

@compiled
def square(value):
    return value * value

@compiled
def squares(first, last, out):
    for query in range(first, last):
        out[query] = square(query)
"""
"""A kernel of two functions, like those of a search, which take many seconds to compile."""
USE = """
import json
import numpy as np
import small
from multibit.codes.compiling import is_compiled
from multibit.codes.distance import run

ready, out = is_compiled(small.squares), np.zeros(4, np.int64)
run(small.squares, 4, None, out)
print(json.dumps([out.tolist(), small.squares.stats.cache_path, ready]))
"""
NOWHERE = """
from numba.core import caching
for kind in vars(caching).values():
    if hasattr(kind, "_locator_classes"):
        kind._locator_classes = []
"""
FULL = """
import errno
from numba.core import caching

def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")

caching.IndexDataCacheFile._open_for_write = full
"""


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def nearest_rows():
    bits = np.random.default_rng(0).integers(0, 2, (300, 40))[:, :23]
    distances = (bits[:3, None] != bits).sum(axis=2)
    rows = np.argsort(distances, axis=1, kind="stable")[:, :5]
    return [rows.tolist(), np.take_along_axis(distances, rows, axis=1).tolist()]


def answer(result, expected):
    """Where kernels are kept, and whether the one was ready before its use; its result is compared here."""
    assert result.returncode == 0, result.stderr
    found, folder, ready = json.loads(result.stdout)
    assert found == expected
    return folder, ready


@pytest.fixture
def use(tmp_path):
    """Use the small kernel in another process: where it is kept, and whether it was ready."""
    (tmp_path / "small.py").write_text(SMALL)
    path = os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))

    def result(before="", **environment):
        return answer(run(before + USE, PYTHONPATH=path, **environment), [0, 1, 4, 9])

    return result


@pytest.mark.slow
def test_an_unusable_cache_folder_is_ignored_and_a_later_process_uses_the_other_one(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for folder in ("file", "file/cache"):
        kept, ready = answer(run(SEARCH, NUMBA_CACHE_DIR=str(tmp_path / folder)), nearest_rows())
        assert str(tmp_path) not in kept
    assert ready is True


@pytest.mark.slow
def test_without_a_writable_cache_each_process_compiles_again_and_finds_the_same(use, tmp_path):
    assert use(NOWHERE, HOME=str(tmp_path / "no home")) == (None, False)
    assert not (tmp_path / "no home").exists()


@pytest.mark.slow
def test_the_first_use_on_a_processor_compiles_and_a_later_process_uses_the_cache(use, tmp_path):
    """In one cache folder, such as a home directory on two machines, each processor finds its own kernels."""
    _, name, features = cpu_target.target_context.codegen().magic_tuple()
    newest = "+avx512" if "+avx512bitalg" in features else "+avx"
    without = ",".join(f"-{flag[1:]}" if flag.startswith(newest) else flag for flag in features.split(","))
    cache = tmp_path / "cache"
    kept, ready = [], []
    for flags in (features, without, features):
        folder, compiled = use(NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES=flags, NUMBA_CACHE_DIR=str(cache))
        assert str(cache) in folder
        ready.append(compiled)
        kept.append({path.name for path in cache.rglob("*small.squares-*.nbc")})
    assert kept[0] < kept[1] == kept[2]
    assert (ready[0], ready[2]) == (False, True)


@pytest.mark.slow
def test_a_full_disk_while_caching_a_kernel_does_not_stop_its_use(use, tmp_path):
    """The kernel of another processor is there."""
    use(NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    for file in (tmp_path / "cache").rglob("small.*"):
        file.rename(file.with_name("small.squares-another.nbc"))
    assert use(FULL, NUMBA_CACHE_DIR=str(tmp_path / "cache"))[1] is True  # by its name the kernel is there


def test_importing_compiles_nothing():
    code = (
        "from multibit.codes import kernels; print([k for k in vars(kernels).values() if getattr(k, 'signatures', 0)])"
    )
    assert run(code).stdout == "[]\n"


def test_a_kernel_that_was_used_is_compiled():
    codes = Codes.from_bits([[1, 0], [0, 0]])
    hamming_distances(codes, codes)
    nearest(codes, codes, 1)
    assert is_compiled(kernels.nearest) and is_compiled(kernels.all_distances)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 100])
@pytest.mark.parametrize("threads", [1, 2, 7, 500, None])
def test_every_query_is_processed_exactly_once(count, threads):
    seen = []
    over_queries(lambda first, last: seen.extend(range(first, last)), count, threads)
    assert sorted(seen) == list(range(count))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_a_thread_is_raised(threads):
    def work(first, _last):
        if first == 0:
            raise MemoryError("too much")

    with pytest.raises(MemoryError):
        over_queries(work, 70, threads)
