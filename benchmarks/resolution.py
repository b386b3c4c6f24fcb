"""Speed of tau-b and of the whole protocol: python benchmarks/resolution.py [--small | --smoke].

Tau-b of the distances at 16 and 128 bits among 15,015 candidates (the size of MIRFlickr-25K's database), compared with
scipy's general one on the same numbers. Aim: at least 20 times faster.

Then everything that `evaluate` computes at the size of NUS-WIDE: 5,000 queries against 190,834 items, four lengths, two
directions, 21 label columns: mAP under four tie rules, precision-recall, NDCG@100, and tau-b, collision and inversion
rate on candidate pools, under the IDF reference. Aim: under 4 GB at the peak, including codes and labels. Codes are
made from labels and noise. It runs once, because it takes minutes; --small is a tenth of both sides, --smoke only
checks that everything runs.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
from typing import NamedTuple

import numpy as np
import scipy
from common import new_parser, seconds
from scipy.stats import kendalltau

from multibit import Codes
from multibit.codes import hamming_distances
from multibit.codes.items import CodedItems
from multibit.evaluation.agreement import cross_length_agreement
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.metric import MAP
from multibit.evaluation.protocol import evaluate
from multibit.evaluation.relevance import GradedRelevance
from multibit.evaluation.resolution import kendall_tau

COLUMNS, PER_ITEM, LENGTHS = 21, 2.4, (16, 32, 64, 128)
CHUNK = 10_000  # items whose real values are held at once


class Size(NamedTuple):
    """Candidates, queries and queries of scipy for tau-b, rounds; queries and database items of the protocol."""

    candidates: int
    tau_queries: int
    scipy_queries: int
    rounds: int
    queries: int
    database: int


FULL = Size(15_015, 200, 20, 5, 5_000, 190_834)
SMALL = FULL._replace(queries=500, database=19_083)
SMOKE = Size(300, 10, 4, 1, 20, 400)


def main() -> None:
    """Print medians, ratio, wall time and peak memory."""
    parser = new_parser(__doc__)
    parser.add_argument("--small", action="store_true", help="a tenth of both sides of the protocol")
    given = parser.parse_args()
    size = SMOKE if given.smoke else SMALL if given.small else FULL
    rng = np.random.default_rng(0)
    print(
        f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} processors, "
        f"numpy {np.__version__}, scipy {scipy.__version__}"
    )
    compare_tau(rng, size)
    measure_protocol(rng, size.queries, size.database)


def compare_tau(rng: np.random.Generator, size: Size) -> None:
    """Tau-b between two lengths, for each ranking alone and for all of them with their distances."""
    labels = some_labels(rng, size.tau_queries + size.candidates)
    codes = some_codes(rng, labels)
    query, database = codes.take(np.arange(size.tau_queries)), codes.take(np.arange(size.tau_queries, len(codes)))
    short, long = (hamming_distances(query, database, bits).astype(np.int64) for bits in (16, 128))

    def ours() -> list[float]:
        return [kendall_tau(*each) for each in zip(short, long, strict=True)]

    def theirs() -> list[float]:
        pairs = zip(short[: size.scipy_queries], long[: size.scipy_queries], strict=True)
        return [kendalltau(*each).statistic for each in pairs]

    def together() -> list[float]:
        return cross_length_agreement(query, database, (16, 128))[0].tau.tolist()

    np.testing.assert_allclose(
        ours()[: size.scipy_queries], theirs(), rtol=1e-9
    )  # also compiles, on the first run ever
    np.testing.assert_allclose(ours(), together(), rtol=1e-9)
    rounds = [(seconds(ours), seconds(together), seconds(theirs)) for _ in range(size.rounds)]
    single, threaded, usual = (statistics.median(times) for times in zip(*rounds, strict=True))
    single, threaded = (1e3 * time / size.tau_queries for time in (single, threaded))
    usual = 1e3 * usual / size.scipy_queries
    print(f"tau-b of {size.candidates:,} candidates at 16 and 128 bits, per query; equal values checked")
    print(f"ours, 1 thread                   {single:8.3f} ms   {usual / single:6.1f} x   (aim: at least 20 x)")
    print(f"ours, all threads, everything *  {threaded:8.3f} ms   {usual / threaded:6.1f} x")
    print(f"scipy.stats.kendalltau           {usual:8.3f} ms")
    print("* includes the distances of both lengths and the rank displacement")


def measure_protocol(rng: np.random.Generator, queries: int, database: int) -> None:
    """All metrics, both directions, all lengths."""
    labels = some_labels(rng, queries + database)
    image, text = some_codes(rng, labels), some_codes(rng, labels)
    pairs = CodedItems(image, text, labels)
    asked, searched = pairs.take(np.arange(queries)), pairs.take(np.arange(queries, len(pairs)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found: list[Evaluation] = []

    def measure() -> None:
        graded = [GradedRelevance.idf(searched.labels)]
        found.append(evaluate(asked, searched, LENGTHS, training_labels=searched.labels[:9_000], graded=graded))

    took = seconds(measure)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"\n{queries:,} queries x {database:,} items x {len(LENGTHS)} lengths x 2 directions, {COLUMNS} label columns"
    )
    print(f"{len(found[0].metrics)} metrics: {', '.join(map(str, found[0].metrics))}")
    means = ", ".join(f"{found[0].mean(MAP, 'i2t', bits):.3f}" for bits in LENGTHS)
    print(f"mAP {means} above a random order's {found[0].floor('random'):.3f}")
    print(f"wall time    {took:8.1f} s")
    print(f"peak memory  {peak / 2**20:8.2f} GB, of which {before / 2**20:.2f} GB before   (aim: under 4 GB)")


def some_labels(rng: np.random.Generator, items: int) -> np.ndarray:
    """Multi-hot labels, at least one per item."""
    labels = (rng.random((items, COLUMNS)) < PER_ITEM / COLUMNS).astype(np.uint8)
    labels[~labels.any(axis=1), 0] = 1
    return labels


def some_codes(rng: np.random.Generator, labels: np.ndarray) -> Codes:
    """Signs of noisy linear functions of the labels."""
    mix = np.random.default_rng(1).normal(size=(COLUMNS, max(LENGTHS)))  # the same for both modalities
    parts = []
    for start in range(0, len(labels), CHUNK):
        block = (labels[start : start + CHUNK] - PER_ITEM / COLUMNS) @ mix
        parts.append(Codes.binarize(block + rng.normal(size=block.shape)))
    return Codes.concatenate(parts)


if __name__ == "__main__":
    main()
