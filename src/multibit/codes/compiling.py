"""Kernels compiled by numba: compiled without the GIL, kept on disk, run on threads.

A kernel takes a range of queries, so that `over_queries` can distribute them over threads; a query is never split,
hence the result is the same for any number of threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.registry import cpu_target

from multibit.machine import threads_or_all

BATCH = 32  # queries that share one pass over the database: reading it from memory costs as much as a few of them


def compiled(function: Callable[..., Any]) -> Any:
    """Compile without the GIL and cache the result on disk, next to the source or in the user's cache folder.

    Where neither can be written, each process compiles again.
    """
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no folder to cache in
        return njit(nogil=True)(function)


def has_instructions(name: str) -> bool:
    """Whether kernels are compiled for a processor with some instructions, as LLVM calls them: "avx2".

    It is this processor, unless the environment variables NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name another one.
    """
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return f"+{name}" in features.split(",")


def over_queries(work: Callable[[int, int], None], count: int, threads: int | None = None) -> None:
    """Call `work(first, last)` on ranges that cover 0..count, on several threads (all processors when None).

    Raises:
        ConfigError: `threads` not whole, or less than 1.
    """
    workers = min(threads_or_all(threads), count)
    if workers <= 1:
        work(0, count)
        return
    parts = min(count, max(workers, -(-count // BATCH)))
    edges = [count * part // parts for part in range(parts + 1)]
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work, first, last) for first, last in itertools.pairwise(edges)]:
            done.result()


def is_compiled(kernel: Any) -> bool:
    """Whether a kernel is ready to run, in this process or on disk."""
    if kernel.signatures:
        return True
    folder = kernel.stats.cache_path
    name = f"{kernel.py_func.__module__.rsplit('.')[-1]}.{kernel.py_func.__name__}"
    return folder is not None and any(Path(folder).glob(f"{name}-*.nbc"))
