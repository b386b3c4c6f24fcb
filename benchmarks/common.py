"""What several benchmarks use: options, codes, times, servers, facts about the machine."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from multibit.codes import table_kernels

BITS = 128  # of the codes that are made here


def new_parser(
    about: str | None, smoke: str = "run in a few seconds, without meaningful results"
) -> argparse.ArgumentParser:
    """A parser with the option that every benchmark has.

    Args:
        about: the docstring of the benchmark. smoke: help of --smoke.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help=smoke)
    return parser


def median_seconds(work: Callable[[], object], rounds: int = 1) -> float:
    """Median processor time of work on one thread, after a warm-up; other processes hardly change it."""
    work()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def seconds(work: Callable[[], object]) -> float:
    """Time of one call by the clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Other processes that never pause, as many as given."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def random_codes(count: int, seed: int) -> np.ndarray:
    """(count, 16) packed uniform bits."""
    return np.random.default_rng(seed).integers(0, 256, (count, BITS // 8), dtype=np.uint8)


def clustered_codes(count: int, seed: int, clusters: int = 1_000, flipped: float = 0.06) -> np.ndarray:
    """(count, 16) packed codes: centres with a share of their bits flipped."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).random((clusters, BITS)) < 0.5
    packed = np.empty((count, BITS // 8), np.uint8)
    for start in range(0, count, 100_000):
        part = packed[start : start + 100_000]
        home = rng.integers(clusters, size=len(part))
        part[:] = np.packbits(centres[home] ^ (rng.random((len(part), BITS)) < flipped), axis=1)
    return packed


KINDS = {"random": random_codes, "clustered": clustered_codes}


@contextlib.contextmanager
def postgres_url(given: str | None, *, pgvector: bool = False, **options: object) -> Iterator[str]:
    """The URL of a server that was given, else of one that is started, with these options, and removed again."""
    if given is not None:
        yield given
        return
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from databases import PostgresServer, binaries_with_pgvector

    server = PostgresServer(binaries_with_pgvector() if pgvector else None)
    try:
        yield server.url(**options)
    finally:
        server.remove()


def processor() -> str:
    """Name, relevant vector instructions, and which search they lead to."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = next((line.split(":")[1].strip() for line in text.splitlines() if "model name" in line), platform.machine())
    flags = [flag for flag in ("avx2", "avx512_vpopcntdq", "avx512_bitalg") if flag in text]
    kernel = "looks up nibbles" if table_kernels.is_faster() else "counts ones in words"
    compiled = os.environ.get("NUMBA_CPU_NAME")
    return (
        f"{name} ({', '.join(flags) or 'no AVX2'}), {len(os.sched_getaffinity(0))} processors; the search {kernel}"
        f"{f', compiled for {compiled}' if compiled else ''}"
    )
