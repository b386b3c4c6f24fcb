"""Speed of mAP@all: pip install "multibit[bench]"; python benchmarks/evaluation.py [--smoke].

1,000 queries against 117,218 random codes and labels (the size of MS-COCO's database) at 16, 32, 64 and 128 bits.
multibit computes both tie rules, by row and tie-averaged. The peers compute one, query by query, on the same distances:

* the usual numpy loop, one argsort per query as the field's repositories do, here a stable one: the same values as ours
* torchmetrics `retrieval_average_precision`, on one thread as all peers are
* scikit-learn `average_precision_score`

They run on fewer queries, and their times are scaled up. The tie rule of each peer is shown on small cases first; its
mAP at the shortest length shows the effect. Aim: at least 20 times faster than the loop, in memory that does not grow
with queries x database. A peer that is not installed is left out; --smoke only checks that everything runs.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch
from common import new_parser

from multibit import Codes
from multibit.evaluation.metrics import average_precision_of, count_rankings

LABELS, LENGTHS = 80, (16, 32, 64, 128)
Metric = Callable[[np.ndarray, np.ndarray, int], float]
"""Relevant (N,) bool, distance (N,), bits -> average precision of one query."""


class Size(NamedTuple):
    """Number of queries, of queries that the peers run, of database items, and of rounds."""

    queries: int
    peer_queries: int
    database: int
    rounds: int


FULL, SMOKE = Size(1_000, 20, 117_218, 3), Size(30, 5, 400, 1)


def by_numpy(relevant: np.ndarray, distance: np.ndarray, bits: int) -> float:
    """As in published repositories, with a stable sort."""
    places = np.flatnonzero(relevant[np.argsort(distance, kind="stable")]) + 1
    return float((np.arange(1, len(places) + 1) / places).mean())


def by_torchmetrics(relevant: np.ndarray, distance: np.ndarray, bits: int) -> float:
    """Scores must be positive to count, hence bits - distance + 1."""
    from torchmetrics.functional.retrieval import retrieval_average_precision

    scores = torch.from_numpy(bits - distance + 1)
    return float(retrieval_average_precision(scores, torch.from_numpy(relevant)))


def by_sklearn(relevant: np.ndarray, distance: np.ndarray, bits: int) -> float:
    """Equal scores are one threshold."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(relevant, -distance))


def peers() -> dict[str, Metric]:
    """The installed peers, by name and version."""
    found: dict[str, Metric] = {"usual numpy loop": by_numpy}
    for module, package, metric in (
        ("torchmetrics", "torchmetrics", by_torchmetrics),
        ("sklearn", "scikit-learn", by_sklearn),
    ):
        if find_spec(module):
            found[f"{package} {version(package)}"] = metric
        else:
            print(f"{package} is not installed: left out")
    return found


def show_tie_rules() -> None:
    """Print the tie rules of the peers, after checking those of the installed ones on small cases."""
    relevant, distance = np.array([True, False, False, True]), np.array([1.0, 1.0, 1.0, 1.0], np.float32)
    if find_spec("sklearn"):
        assert by_sklearn(relevant, distance, 4) == by_sklearn(relevant[::-1], distance, 4) == 0.5
    if find_spec("torchmetrics"):
        from torchmetrics.functional.retrieval import retrieval_average_precision

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
    parser = new_parser(__doc__)
    size = SMOKE if parser.parse_args().smoke else FULL
    torch.set_num_threads(1)
    others = peers()
    rng = np.random.default_rng(0)
    signs = np.where(rng.normal(size=(size.queries + size.database, max(LENGTHS))) >= 0, 1, -1).astype(np.float32)
    labels = (rng.random((size.queries + size.database, LABELS)) < 2.9 / LABELS).astype(np.uint8)
    labels[~labels.any(axis=1), 0] = 1
    query, database = Codes.binarize(signs[: size.queries]), Codes.binarize(signs[size.queries :])
    query_labels, database_labels = labels[: size.queries], labels[size.queries :]
    as_floats = database_labels.astype(np.float32)

    def ours(threads: int | None) -> tuple[float, np.ndarray]:
        start, found = time.perf_counter(), []
        for bits in LENGTHS:
            counts = count_rankings(query, database, query_labels, database_labels, bits, threads=threads)
            found.append((average_precision_of(counts, "stable"), average_precision_of(counts, "average")))
        return time.perf_counter() - start, np.array([stable[: size.peer_queries] for stable, _ in found])

    def peer(metric: Metric) -> tuple[float, np.ndarray]:
        """Seconds of all queries, and the values (lengths, queries)."""
        start, found = time.perf_counter(), []
        for bits in LENGTHS:
            for code, wanted in zip(signs[: size.peer_queries, :bits], query_labels, strict=False):
                relevant = as_floats @ wanted.astype(np.float32) > 0
                found.append(metric(relevant, 0.5 * (bits - signs[size.queries :, :bits] @ code), bits))
        return (time.perf_counter() - start) * size.queries / size.peer_queries, np.reshape(found, (len(LENGTHS), -1))

    show_tie_rules()
    ours(None)  # warm-up: compiles on the first run ever
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rounds = [(ours(1), ours(None), *(peer(metric) for metric in others.values())) for _ in range(size.rounds)]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    stable = rounds[0][0][1]
    np.testing.assert_allclose(stable, rounds[0][2][1])
    times = zip(*[[seconds for seconds, _ in each] for each in rounds], strict=True)
    single, threaded, *of_peers = (statistics.median(each) for each in times)
    processors = len(os.sched_getaffinity(0))
    print(f"\n{platform.processor() or platform.machine()}, {processors} processors, numpy {np.__version__}")
    print(f"{size.queries:,} queries x {size.database:,} codes x {len(LENGTHS)} lengths; values of the loop equal ours")
    print(f"{'':34}{'seconds':>8}  {'1 thread':>10}  {'all threads':>11}  {f'mAP at {LENGTHS[0]} bits':>14}")
    for name, seconds in {
        "ours, both tie rules, 1 thread": single,
        "ours, both tie rules, all threads": threaded,
    }.items():
        print(f"{name:34}{seconds:8.2f}  {'':10}  {'':11}  {stable[0].mean():14.6f}")
    for i, (name, seconds) in enumerate(zip(others, of_peers, strict=True), start=2):
        ratios = f"{seconds / single:8.1f} x  {seconds / threaded:9.1f} x"
        print(f"{name:34}{seconds:8.2f}  {ratios}  {rounds[0][i][1][0].mean():14.6f}")
    print(f"Peers: {size.peer_queries} queries, scaled, one thread. Aim: 20 x the loop.")
    print(f"Peak memory grew by {grown / 1024:.0f} MB while measuring (including the peers' own arrays).")


if __name__ == "__main__":
    main()
