"""Speed of exact Hamming search: python benchmarks/search.py [--largest 10000000] [--hundred-million | --smoke].

multibit compared with faiss `IndexBinaryFlat` (the better of its heap and its counting selection) and the exact search
of usearch, one thread each, in turn in one process, on random and on clustered codes; distances are checked to be
identical. Then the rate of a search relative to the bare distance kernel, the pruned lists compared with the scan, and
with --hundred-million an index of 100 M codes loaded from disk. Aims: 6 x faiss at k = 10 and 3.5 x at k = 100 with
AVX-512, 3 x at k = 10 with AVX2; 80 % of the bare kernel at 10 M; lists never below 0.9 x the scan, 3 x on clustered
codes. An older processor can be imitated:
NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx2,+bmi,+bmi2,+fma,+lzcnt,+popcnt FAISS_OPT_LEVEL=AVX2
Peers: pip install "multibit[bench]"; usearch is left out where it is not installed. --smoke only checks that everything
runs.
"""

from __future__ import annotations

import resource
import tempfile
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import faiss
import numpy as np
from common import BITS, KINDS, median_seconds, new_parser, processor, random_codes

from multibit import Codes, Index
from multibit.codes import kernels, table_kernels
from multibit.codes.distance import nearest, scan_of

QUERIES, ROUNDS = 64, 5
PEER_QUERIES = 8  # of usearch, which is slow
SMOKE = 2_000  # codes


def usearch_seconds(packed: np.ndarray, asked: np.ndarray, k: int) -> float:
    """Time of the exact search of usearch; NaN where it is not installed."""
    if not find_spec("usearch"):
        return float("nan")
    from usearch.index import search

    return median_seconds(lambda: search(packed, asked, k, "hamming", exact=True, threads=1, dtype="b1"), 1)


def compare_with_peers(kind: str, count: int, bits: int, k: int) -> None:
    """One row: rates in billions of codes compared per second, and ratios."""
    width = bits // 8
    packed, asked = (KINDS[kind](n, seed)[:, :width].copy() for n, seed in ((count, 1), (QUERIES, 2)))
    codes, queries = Codes.from_bytes(packed), Codes.from_bytes(asked)
    flat = faiss.IndexBinaryFlat(bits)
    flat.add(packed)

    def faiss_search(heap: bool) -> np.ndarray:
        flat.use_heap = heap
        return flat.search(asked, k)[0]

    ours = median_seconds(lambda: nearest(queries, codes, k, threads=1), ROUNDS)
    peer = min(median_seconds(lambda: faiss_search(True), 3), median_seconds(lambda: faiss_search(False), 3))
    other = usearch_seconds(packed, asked[:PEER_QUERIES], k)
    np.testing.assert_array_equal(nearest(queries, codes, k).distances, faiss_search(True))
    rate = QUERIES * count / 1e9
    usearch_rate = PEER_QUERIES * count / 1e9 / other
    print(
        f"{kind:<10}{count:>12,}{bits:>6}{k:>5}{rate / ours:>9.2f}{rate / peer:>9.2f}{usearch_rate:>9.2f}"
        f"{peer / ours:>10.1f} x{rate / ours / usearch_rate:>9.1f} x",
        flush=True,
    )


def beside_bare_kernel(count: int) -> None:
    """A search of k = 10 beside nothing but the distances, over the same codes in the same chunks."""
    codes, queries = Codes.from_bytes(random_codes(count, 1)), Codes.from_bytes(random_codes(QUERIES, 2))
    scan = scan_of(queries, codes, BITS)

    if table_kernels.is_faster():
        asked = table_kernels.nibbles_of(scan.queries, BITS)
        bare = median_seconds(lambda: table_kernels.bare_distances(0, QUERIES, scan, asked), ROUNDS)
    else:
        bare = median_seconds(lambda: kernels.bare_distances(0, QUERIES, scan), ROUNDS)
    whole = median_seconds(lambda: nearest(queries, codes, 10, threads=1), ROUNDS)
    one = median_seconds(lambda: nearest(queries.take([0]), codes, 10, threads=1), ROUNDS)
    read = median_seconds(lambda: scan.planes.max(), ROUNDS)
    print(f"\nat {count:,} codes of {BITS} bits, k = 10, one thread")
    print(
        f"  bare distances {QUERIES * count / bare / 1e9:6.2f} G codes/s; the search keeps {100 * bare / whole:.0f} %"
    )
    print(f"  one query alone {1e3 * one:6.1f} ms; just reading the codes from memory {1e3 * read:6.1f} ms")


def compare_lists_with_scan(kind: str, count: int, k: int) -> None:
    """The pruned lists, with their own fallback, compared with the plain scan."""
    codes, queries = Codes.from_bytes(KINDS[kind](count, 1)), Codes.from_bytes(KINDS[kind](256, 2))
    start = time.perf_counter()
    index = Index(engine="lists")
    index.add(None, codes)
    reason = index.engine.reason
    built = time.perf_counter() - start
    pruned = median_seconds(lambda: index.search(queries, k, threads=1), ROUNDS)
    scan = median_seconds(lambda: nearest(queries, codes, k, threads=1), ROUNDS)
    np.testing.assert_array_equal(index.search(queries, k).rows, nearest(queries, codes, k).rows)
    print(f"{kind:<10}{count:>12,}{k:>5}{scan / pruned:>8.1f} x   built in {built:5.1f} s; {reason}", flush=True)


def hundred_million() -> None:
    """Save, load and search 100 M codes of 128 bits."""
    count = 100_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.mbx"
        index = Index()
        words = np.random.default_rng(3).integers(0, 1 << 16, (BITS // 16, count), dtype=np.uint16)
        index.add(None, Codes(words, BITS))
        index.save(path)
        del index, words
        print(f"\n100 M codes, {path.stat().st_size / 1e9:.2f} GB on disk")
        for verify in (False, True):
            start = time.perf_counter()
            loaded = Index.load(path, verify=verify)
            print(f"  loaded {'and verified ' if verify else ''}in {time.perf_counter() - start:.3f} s")
        queries = Codes.from_bytes(random_codes(QUERIES, 2))
        for bits in (16, 64, 128):
            seconds = median_seconds(lambda bits=bits: loaded.search(queries, 10, bits, threads=1), 3)
            print(f"  {QUERIES} queries at {bits:>3} bits: {seconds:.2f} s, {1e3 * seconds / QUERIES:.1f} ms each")


def memory_per_code(count: int) -> None:
    """Peak memory that a search adds, relative to the codes themselves."""
    codes, queries = Codes.from_bytes(random_codes(count, 1)), Codes.from_bytes(random_codes(QUERIES, 2))
    nearest(queries, codes.take([0, 1]), 1, threads=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    nearest(queries, codes, 100, threads=1)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    share = grown / codes.nbytes
    print(f"\nmemory: {codes.nbytes / count:.1f} bytes per code, and at most {share:.1%} more while searching")


def main() -> None:
    """Print everything."""
    parser = new_parser(__doc__)
    parser.add_argument("--largest", type=int, default=10_000_000, help="most codes to search")
    parser.add_argument(
        "--hundred-million", action="store_true", help="also load and search 100 M codes (4 GB of memory)"
    )
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    print(processor())
    packages = ("numba", "faiss-cpu", *(["usearch"] if find_spec("usearch") else []), "numpy")
    print(", ".join(f"{name} {version(name)}" for name in packages))
    sizes = [count for count in (100_000, 1_000_000, 10_000_000) if count <= options.largest]
    if options.smoke:
        sizes = [SMOKE]
    memory_per_code(sizes[-1])
    print("\nG codes compared per second, one thread, 64 queries at a time, medians; ratios: ours / theirs")
    headings = f"{'codes':<10}{'N':>12}{'bits':>6}{'k':>5}{'ours':>9}{'faiss':>9}{'usearch':>9}"
    print(headings + f"{'/ faiss':>12}{'/ usearch':>11}")
    for kind in KINDS:
        for count in sizes:
            for bits in (64, 128):
                for k in (10, 100):
                    compare_with_peers(kind, count, bits, k)
    beside_bare_kernel(sizes[-1])
    print("\npruned lists compared with the scan, 256 queries, one thread")
    for kind in KINDS:
        for count in sizes:
            for k in (10, 100):
                compare_lists_with_scan(kind, count, k)
    if options.hundred_million:
        hundred_million()


if __name__ == "__main__":
    main()
