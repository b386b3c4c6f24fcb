"""How fast is mAP@all: python benchmarks/evaluation.py.

1,000 queries against 117,218 codes (MS-COCO's database, random codes and labels) at 16, 32, 64 and 128 bits. Ours
measures both tie rules, by row and tie-averaged; the usual numpy loop (one argsort per query, as the field's
repositories do) measures one. The loop runs on fewer queries and is scaled up. Aim: at least 20 times faster, in memory
that does not grow with queries x database. One thread and all threads are shown.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import time

import numpy as np

from multibit import Codes
from multibit.evaluation.metrics import average_precision_of, count_rankings

QUERIES, LOOP_QUERIES, DATABASE, LABELS, LENGTHS, ROUNDS = 1_000, 20, 117_218, 80, (16, 32, 64, 128), 3


def usual_loop(query: np.ndarray, database: np.ndarray, query_labels: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Average precision as published repositories compute it, with a stable sort: +-1 codes, one query at a time."""
    values = []
    for code, wanted in zip(query, query_labels, strict=True):
        relevant = wanted @ labels.T > 0
        distance = 0.5 * (database.shape[1] - code @ database.T)
        order = np.argsort(distance, kind="stable")
        places = np.flatnonzero(relevant[order]) + 1
        values.append((np.arange(1, len(places) + 1) / places).mean())
    return np.array(values)


def main() -> None:
    """Print medians and the ratio."""
    rng = np.random.default_rng(0)
    signs = np.where(rng.normal(size=(QUERIES + DATABASE, max(LENGTHS))) >= 0, 1, -1).astype(np.float32)
    labels = (rng.random((QUERIES + DATABASE, LABELS)) < 2.9 / LABELS).astype(np.uint8)
    labels[~labels.any(axis=1), 0] = 1
    query, database = Codes.from_signs(signs[:QUERIES]), Codes.from_signs(signs[QUERIES:])
    query_labels, database_labels = labels[:QUERIES], labels[QUERIES:]

    def ours(threads: int | None) -> tuple[float, np.ndarray]:
        start = time.perf_counter()
        for bits in LENGTHS:
            counts = count_rankings(query, database, query_labels, database_labels, bits, threads=threads)
            stable, _ = average_precision_of(counts, "stable"), average_precision_of(counts, "average")
        return time.perf_counter() - start, stable

    def loop() -> tuple[float, np.ndarray]:
        start = time.perf_counter()
        as_floats = query_labels[:LOOP_QUERIES].astype(np.float32), database_labels.astype(np.float32)
        for bits in LENGTHS:
            values = usual_loop(signs[:LOOP_QUERIES, :bits], signs[QUERIES:, :bits], *as_floats)
        return (time.perf_counter() - start) * QUERIES / LOOP_QUERIES, values

    ours(None)  # warm-up: compiles on the first run ever
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rounds = [(ours(1), ours(None), loop()) for _ in range(ROUNDS)]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    (_, stable), _, (_, values) = rounds[0]
    np.testing.assert_allclose(stable[:LOOP_QUERIES], values)
    single, threaded, usual = (statistics.median(times[i][0] for times in rounds) for i in range(3))
    processors = len(os.sched_getaffinity(0))
    print(f"{platform.processor() or platform.machine()}, {processors} processors, numpy {np.__version__}")
    print(f"{QUERIES:,} queries x {DATABASE:,} codes x {len(LENGTHS)} lengths; equal values checked")
    print(f"ours, both tie rules, 1 thread     {single:8.2f} s   {usual / single:6.1f} x")
    print(f"ours, both tie rules, all threads  {threaded:8.2f} s   {usual / threaded:6.1f} x   (aim: at least 20 x)")
    print(f"usual numpy loop, one tie rule     {usual:8.2f} s   ({LOOP_QUERIES} queries, scaled)")
    print(f"peak memory grew by {grown / 1024:.0f} MB while measuring (the loop's own arrays among them)")


if __name__ == "__main__":
    main()
