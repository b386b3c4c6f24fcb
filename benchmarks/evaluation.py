"""How fast is mAP@all: pip install "multibit[bench]"; python benchmarks/evaluation.py.

1,000 queries against 117,218 codes (MS-COCO's database, random codes and labels) at 16, 32, 64 and 128 bits. Ours
measures both tie rules, by row and tie-averaged. The peers measure one, a query at a time, on the same distances:

* the usual numpy loop, one argsort per query as the field's repositories do, here a stable one: the same values as ours
* torchmetrics `retrieval_average_precision`, on one thread as all peers are
* scikit-learn `average_precision_score`

They run on fewer queries and are scaled up. What each peer does with ties is shown on small cases first; its mAP at the
shortest length says what that changes. Aim: at least 20 times faster than the loop, in memory that does not grow with
queries x database.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import sklearn
import torch
import torchmetrics
from sklearn.metrics import average_precision_score
from torchmetrics.functional.retrieval import retrieval_average_precision

from multibit import Codes
from multibit.evaluation.metrics import average_precision_of, count_rankings

QUERIES, LOOP_QUERIES, DATABASE, LABELS, LENGTHS, ROUNDS = 1_000, 20, 117_218, 80, (16, 32, 64, 128), 3
Metric = Callable[[np.ndarray, np.ndarray, int], float]
"""Relevant (N,) bool, distance (N,), bits -> average precision of one query."""


def by_numpy(relevant: np.ndarray, distance: np.ndarray, bits: int) -> float:
    """As published repositories compute it, with a stable sort."""
    places = np.flatnonzero(relevant[np.argsort(distance, kind="stable")]) + 1
    return float((np.arange(1, len(places) + 1) / places).mean())


def by_torchmetrics(relevant: np.ndarray, distance: np.ndarray, bits: int) -> float:
    """Scores must be above 0 to count, hence bits - distance + 1."""
    scores = torch.from_numpy(bits - distance + 1)
    return float(retrieval_average_precision(scores, torch.from_numpy(relevant)))


def by_sklearn(relevant: np.ndarray, distance: np.ndarray, bits: int) -> float:
    """Equal scores are one threshold."""
    return float(average_precision_score(relevant, -distance))


PEERS: dict[str, Metric] = {
    "usual numpy loop": by_numpy,
    f"torchmetrics {torchmetrics.__version__}": by_torchmetrics,
    f"scikit-learn {sklearn.__version__}": by_sklearn,
}


def show_tie_rules() -> None:
    """Say what the peers do with ties, after checking it on small cases."""
    relevant, distance = np.array([True, False, False, True]), np.array([1.0, 1.0, 1.0, 1.0], np.float32)
    assert by_sklearn(relevant, distance, 4) == by_sklearn(relevant[::-1], distance, 4) == 0.5
    assert retrieval_average_precision(torch.tensor([-1.0, 0.0]), torch.tensor([True, True])) == 0
    assert retrieval_average_precision(torch.tensor([1.0, 2.0]), torch.tensor([True, True])) == 1
    many = torch.ones(1_000)
    unstable = not torch.equal(torch.topk(many, 1_000).indices, torch.arange(1_000))
    order = "are not in their given order here" if unstable else "happened to keep their given order here"
    print("Ties, checked on small cases:")
    print("  ours          by database row, and the exact mean over all orders of equal distances, in one pass")
    print("  numpy loop    by database row, since the sort is stable; published code often sorts unstably")
    print(f"  torchmetrics  in the order of torch.topk, which is undefined: 1,000 equal scores {order};")
    print("                items with a score <= 0 count as not relevant, so minus the distance would give 0")
    print(
        "  scikit-learn  equal scores are one threshold: each relevant item gets the precision at the end of its group"
    )


def main() -> None:
    """Print tie rules, medians and ratios."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    signs = np.where(rng.normal(size=(QUERIES + DATABASE, max(LENGTHS))) >= 0, 1, -1).astype(np.float32)
    labels = (rng.random((QUERIES + DATABASE, LABELS)) < 2.9 / LABELS).astype(np.uint8)
    labels[~labels.any(axis=1), 0] = 1
    query, database = Codes.from_signs(signs[:QUERIES]), Codes.from_signs(signs[QUERIES:])
    query_labels, database_labels = labels[:QUERIES], labels[QUERIES:]
    as_floats = database_labels.astype(np.float32)

    def ours(threads: int | None) -> tuple[float, np.ndarray]:
        start, found = time.perf_counter(), []
        for bits in LENGTHS:
            counts = count_rankings(query, database, query_labels, database_labels, bits, threads=threads)
            found.append((average_precision_of(counts, "stable"), average_precision_of(counts, "average")))
        return time.perf_counter() - start, np.array([stable[:LOOP_QUERIES] for stable, _ in found])

    def peer(metric: Metric) -> tuple[float, np.ndarray]:
        """Seconds of all queries, and the values (lengths, queries)."""
        start, found = time.perf_counter(), []
        for bits in LENGTHS:
            for code, wanted in zip(signs[:LOOP_QUERIES, :bits], query_labels, strict=False):
                relevant = as_floats @ wanted.astype(np.float32) > 0
                found.append(metric(relevant, 0.5 * (bits - signs[QUERIES:, :bits] @ code), bits))
        return (time.perf_counter() - start) * QUERIES / LOOP_QUERIES, np.reshape(found, (len(LENGTHS), -1))

    show_tie_rules()
    ours(None)  # warm-up: compiles on the first run ever
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rounds = [(ours(1), ours(None), *(peer(metric) for metric in PEERS.values())) for _ in range(ROUNDS)]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    stable = rounds[0][0][1]
    np.testing.assert_allclose(stable, rounds[0][2][1])
    times = zip(*[[seconds for seconds, _ in each] for each in rounds], strict=True)
    single, threaded, *others = (statistics.median(each) for each in times)
    processors = len(os.sched_getaffinity(0))
    print(f"\n{platform.processor() or platform.machine()}, {processors} processors, numpy {np.__version__}")
    print(f"{QUERIES:,} queries x {DATABASE:,} codes x {len(LENGTHS)} lengths; values of the loop equal ours")
    print(f"{'':34}{'seconds':>8}  {'1 thread':>10}  {'all threads':>11}  {f'mAP at {LENGTHS[0]} bits':>14}")
    for name, seconds in {
        "ours, both tie rules, 1 thread": single,
        "ours, both tie rules, all threads": threaded,
    }.items():
        print(f"{name:34}{seconds:8.2f}  {'':10}  {'':11}  {stable[0].mean():14.6f}")
    for i, (name, seconds) in enumerate(zip(PEERS, others, strict=True), start=2):
        ratios = f"{seconds / single:8.1f} x  {seconds / threaded:9.1f} x"
        print(f"{name:34}{seconds:8.2f}  {ratios}  {rounds[0][i][1][0].mean():14.6f}")
    print(f"Peers: {LOOP_QUERIES} queries, scaled, one thread. Aim: 20 x the loop.")
    print(f"Peak memory grew by {grown / 1024:.0f} MB while measuring (the peers' own arrays among them).")


if __name__ == "__main__":
    main()
