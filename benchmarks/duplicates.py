"""Speed of the search for near-duplicates: python benchmarks/duplicates.py [--items 1000000 | --smoke].

Groups of codes of 128 bits within a Hamming radius, one thread: by equal parts, by comparing all pairs, and by the way
that multibit chooses; compared with range searches of faiss `IndexBinaryFlat`, which find the pairs and would still
have to be joined. faiss answers some of the queries, and its time is scaled to all. The groups of both ways are checked
to be identical, and to join every pair that faiss finds. Aim: minutes for 1 M codes. Peer: pip install
"multibit[bench]". --smoke only checks that everything runs.
"""

from __future__ import annotations

import resource

import faiss
import numpy as np
from common import BITS, KINDS, median_seconds, new_parser, processor

from multibit import Codes, near_duplicates
from multibit.codes.duplicates import COMPARISONS, NearDuplicates

RADII = (0, 4, 16)
QUERIES = 500  # of faiss
ALL_PAIRS = 200_000  # codes up to which all pairs are compared; then the time is scaled from as many
SMOKE = 2_000


def by_faiss(packed: np.ndarray, radius: int) -> tuple[float, np.ndarray]:
    """Scaled seconds of a range search of every code, and the pairs (n, 2) of some."""
    flat = faiss.IndexBinaryFlat(BITS)
    flat.add(packed)
    asked = packed[:QUERIES]
    ends, _, rows = flat.range_search(asked, radius + 1)  # faiss leaves out the radius itself
    pairs = np.stack([np.repeat(np.arange(len(asked)), np.diff(ends.astype(np.int64))), rows], axis=1)
    seconds = median_seconds(lambda: flat.range_search(asked, radius + 1))
    return seconds * len(packed) / len(asked), pairs


def require_joined(found: NearDuplicates, pairs: np.ndarray) -> None:
    """Refuse a result in which two near codes are in different groups."""
    group = -1 - np.arange(found.count)
    group[found.rows] = found.groups
    np.testing.assert_array_equal(group[pairs[:, 0]], group[pairs[:, 1]])


def compare(kind: str, count: int, radius: int) -> None:
    """One row."""
    packed = KINDS[kind](count, 1)
    codes = Codes.from_bytes(packed)
    found = near_duplicates(codes, radius, threads=1)
    ours = median_seconds(lambda: near_duplicates(codes, radius, threads=1))
    some = codes.take(np.arange(min(count, ALL_PAIRS)))
    groups, times = [], []
    for way in COMPARISONS if radius else ():
        groups.append(near_duplicates(some, radius, comparison=way, threads=1))
        times.append(median_seconds(lambda way=way: near_duplicates(some, radius, comparison=way, threads=1)))
    if groups:
        np.testing.assert_array_equal(groups[0].rows, groups[1].rows)
        np.testing.assert_array_equal(groups[0].groups, groups[1].groups)
    parts, pairs = (f"{time:.2f}" for time in times) if times else "--"  # equal codes need no comparison
    theirs, near = by_faiss(packed, radius)
    require_joined(found, near)
    print(
        f"{kind:<10}{count:>11,}{radius:>7}{len(found):>9,}{len(found.rows):>11,}{ours:>9.2f}{theirs:>10.1f}"
        f"{theirs / ours:>8.0f} x{len(some):>11,}{parts:>9}{pairs:>11}",
        flush=True,
    )


def main() -> None:
    """Print everything."""
    parser = new_parser(__doc__)
    parser.add_argument("--items", type=int, default=1_000_000, help="number of codes")
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    print(processor())
    print("\nprocessor seconds of one thread; the last three columns: both ways on the first codes")
    headings = f"{'codes':<10}{'N':>11}{'radius':>7}{'groups':>9}{'in groups':>11}{'ours, s':>9}{'faiss, s':>10}"
    print(headings + f"{'ratio':>10}{'N':>11}{'parts':>9}{'all pairs':>11}")
    for kind in KINDS:
        for radius in RADII:
            compare(kind, SMOKE if options.smoke else options.items, radius)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {used:,.0f} MB")


if __name__ == "__main__":
    main()
