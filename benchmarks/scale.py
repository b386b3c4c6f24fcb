"""What an index costs that is larger than the cache: python benchmarks/scale.py [--items 100000000] [--folder DIR].

Builds an index of 128-bit codes with ids and metadata in a stream, opens it mapped, and measures: time and memory of
the build, time to open it, one query alone and a batch at 16, 64 and 128 bits next to the time of only reading those
bytes, filters, and other engines on the same codes. All answers are compared with a slow reference. Then it
extrapolates to a billion codes. Ratios are of processor time, which other processes hardly change. --folder keeps the
index and uses it again; --codes clustered makes codes that have near neighbours; --smoke only checks that everything
runs. Databases that --to names (`chdb:///folder`, `postgresql://...`) are compared, and faiss where it is installed:
pip install "multibit[bench]"

--verbs measures time and memory of what goes through the whole index instead, each in a process of its own; --stages
compares searches in two stages and in one, on several kinds of codes in memory.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pyarrow
from common import BITS, KINDS, new_parser, processor, random_codes

from multibit import Codes, Index
from multibit.codes import kernels
from multibit.codes.distance import hamming_distances, nearest
from multibit.codes.vectors import ones
from multibit.inventory import describe
from multibit.search.building import copy_index, create_index
from multibit.search.duplicates import find_duplicates
from multibit.search.exchange import export_codes, export_index
from multibit.search.remote import load as load_remote
from multibit.search.remote.loading import IndexSource
from multibit.search.segments import LARGEST
from multibit.search.shards import reshard

BLOCK = 1_000_000  # items that are made at a time
LENGTHS = (16, 64, 128)
BATCH, K, ROUNDS = 64, 10, 5
CHECKED = 2  # queries that are compared with the slow reference
SMOKE = 20_000
BILLION = 1_000_000_000
WIDTHS = (5, 20, 22, 20, 8, 15)  # of the columns of a table
LABELS = np.array([f"label {number}" for number in range(50)])


class Measured(NamedTuple):
    """Median time by the clock, and of the processor, in seconds."""

    wall: float
    cpu: float


def measured(work: Callable[[], object], rounds: int = ROUNDS) -> Measured:
    """Medians after a warm-up; the processor time counts all threads."""
    work()
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return Measured(statistics.median(walls), statistics.median(cpus))


# The index


def blocks(kind: str, items: int, size: int) -> Iterator[tuple[list[str], Codes, pyarrow.Table]]:
    """Ids, codes and metadata (a year and a list of labels) of all items."""
    for start in range(0, items, size):
        count = min(size, items - start)
        rng = np.random.default_rng(start)
        labels = pyarrow.LargeListArray.from_arrays(np.arange(count + 1), LABELS[rng.integers(len(LABELS), size=count)])
        table = pyarrow.table({"year": rng.integers(1850, 2026, count), "labels": labels})
        yield (
            [f"item {row:,}" for row in range(start, start + count)],
            Codes.from_bytes(KINDS[kind](count, start)),
            table,
        )


def build(path: Path, kind: str, items: int, segment: int) -> None:
    """Write the index; called in a process of its own, so that its memory can be told."""
    with create_index(path, modality="image", size=segment) as builder:
        for ids, codes, metadata in blocks(kind, items, min(BLOCK, segment)):
            builder.add(pyarrow.array(ids), codes, metadata)


def report_build(path: Path, kind: str, items: int, segment: int) -> None:
    """Build in another process; print time, size and peak memory."""
    start = time.perf_counter()
    asked = {"--build": path, "--items": items, "--codes": kind, "--segment": segment}
    words = [str(word) for pair in asked.items() for word in pair]
    subprocess.run([sys.executable, __file__, *words], check=True)
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    size = sum(file.stat().st_size for file in path.iterdir())
    print(
        f"built in {seconds:,.0f} s ({used.ru_utime + used.ru_stime:,.0f} s of processor time): {size / 1e9:.2f} GB on "
        f"disk, {16 * items / 1e9:.2f} GB of them codes; peak memory {used.ru_maxrss / 1e6:.2f} GB"
    )


# Searches


def reference(index: Index, queries: Codes, bits: int) -> np.ndarray:
    """(Q, K) smallest distances, by a count of different bits in numpy."""
    out = []
    for number in range(len(queries)):
        best = np.zeros(0, np.int64)
        for part in index.version.parts:
            planes = part.segment.codes.words[: bits // 16]
            distances = np.zeros(planes.shape[1], np.int64)
            for plane, word in zip(planes, queries.words[:, number], strict=False):
                distances += np.bitwise_count(plane ^ word)
            best = np.sort(np.concatenate([best, np.partition(distances, K)[:K]]))[:K]
        out.append(best)
    return np.array(out)


def words_of(index: Index, bits: int) -> list[np.ndarray]:
    """The words that a search of a length reads, as 64-bit numbers."""
    return [plane[: len(plane) // 4 * 4].view(np.uint64)
            for part in index.version.parts for plane in part.segment.codes.words[: bits // 16]]  # fmt: skip


def read_only(words: list[np.ndarray], threads: int) -> int:
    """The sum of some numbers: the least that a scan can do."""
    with ThreadPoolExecutor(threads) as pool:
        halves = [part for whole in words for part in np.array_split(whole, threads)]
        return sum(int(total) for total in pool.map(np.ndarray.sum, halves))


def search_times(index: Index, queries: Codes, threads: int) -> dict[int, tuple[Measured, Measured, Measured]]:
    """Length -> one query alone, a batch, and only reading the codes."""
    out = {}
    for bits in LENGTHS:
        words = words_of(index, bits)
        reading = measured(lambda words=words: read_only(words, threads))
        one = measured(lambda bits=bits: index.search(queries.take([0]), K, bits, threads=threads))
        batch = measured(lambda bits=bits: index.search(queries, K, bits, threads=threads), 3)
        out[bits] = one, batch, reading
    return out


def print_search_times(index: Index, queries: Codes) -> dict[int, tuple[Measured, Measured, Measured]]:
    """A table for each number of threads; that of one thread is returned."""
    most = len(os.sched_getaffinity(0))
    for threads in dict.fromkeys((most, 1)):
        times = search_times(index, queries, threads)
        print(f"\n{threads} thread{'s' * (threads > 1)}, k = {K}: milliseconds by the clock (of the processors)")
        heads = "bits", "one query", f"batch of {BATCH}, each", "only reading", "GB/s", "one / reading"
        print("".join(f"{head:>{width}}" for head, width in zip(heads, WIDTHS, strict=True)))
        for bits, (one, batch, reading) in times.items():
            cells = (
                bits, *(f"{1e3 * each.wall / n:.2f} ({1e3 * each.cpu / n:.2f})"
                        for each, n in ((one, 1), (batch, BATCH), (reading, 1))),
                f"{threads * len(index) * bits / 8e9 / reading.cpu:.1f}", f"{one.cpu / reading.cpu:.2f}",
            )  # fmt: skip
            print("".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)), flush=True)
    return times


@numba.njit(cache=False)
def scan_in_two_stages(planes: np.ndarray, query: np.ndarray, short: int, best: np.ndarray) -> int:
    """Improve the smallest distances, ascending; the number of rows whose prefix of `short` words was near enough.

    A full distance is at least that of a prefix, so a row whose prefix is farther than the k-th best is never one.
    """
    distances, left = np.empty(kernels.CHUNK, np.uint16), 0
    mask = np.uint16(0xFFFF)
    for start in range(0, planes.shape[1], kernels.CHUNK):
        near = distances[: min(kernels.CHUNK, planes.shape[1] - start)]
        if not kernels.fill_distances(planes[:short], query, 0, mask, start, near, min(best[-1], np.uint16(0x7FFF))):
            continue
        for i in range(len(near)):
            if near[i] < best[-1]:
                left += 1
                distance = near[i]
                for word in range(short, len(planes)):
                    distance += np.uint16(ones(np.uint16(planes[word, start + i] ^ query[0, word])))
                place = len(best) - 1
                if distance < best[place]:
                    while place and best[place - 1] > distance:
                        best[place] = best[place - 1]
                        place -= 1
                    best[place] = distance
    return left


def two_stages(segments: Sequence[Codes], queries: Codes, short: int) -> tuple[np.ndarray, float]:
    """(Q, K) smallest distances, exactly, by a prefix of `short` bits first; the share of the items that it leaves."""
    out, left = np.full((len(queries), K), 0x7FFF, np.uint16), 0
    for number in range(len(queries)):
        query = np.ascontiguousarray(queries.words[:, number : number + 1].T)
        for codes in segments:
            left += scan_in_two_stages(codes.words, query, short // 16, out[number])
    return out, left / sum(map(len, segments)) / len(queries)


def print_two_stages(segments: Sequence[Codes], queries: Codes) -> None:
    """Two stages compared with one, one query at a time on one thread."""

    def one_stage() -> np.ndarray:
        found = [np.concatenate([nearest(queries.take([each]), codes, K, threads=1).distances for codes in segments], 1)
                 for each in range(len(queries))]  # fmt: skip
        return np.sort(np.concatenate(found), axis=1)[:, :K]

    expected = one_stage()
    one = measured(one_stage, 3)
    print(f"  one stage {1e3 * one.cpu / len(queries):.1f} ms; distance of hit {K}: {expected[:, -1].mean():.1f}")
    for short in (16, 32, 64):
        found, left = two_stages(segments, queries, short)
        np.testing.assert_array_equal(found, expected)
        two = measured(lambda short=short: two_stages(segments, queries, short), 1)
        print(f"{short:>5} bits first: {left:8.3%} left over, {one.cpu / two.cpu:5.2f} x the speed", flush=True)


def near_codes(items: int, centres: np.ndarray, draws: int, seed: int) -> Codes:
    """Codes around centres (C, 16) uint8; each bit differs with a probability of 2^-draws."""
    rng, out = np.random.default_rng(seed), np.empty((BITS // 16, items), np.uint16)
    for start in range(0, items, BLOCK):
        count = min(BLOCK, items - start)
        flips = np.full((count, 2), ~np.uint64(0))
        for _ in range(draws):
            flips &= rng.integers(0, 1 << 64, flips.shape, np.uint64, endpoint=False)
        packed = centres[rng.integers(len(centres), size=count)] ^ flips.view(np.uint8)
        out[:, start : start + count] = Codes.from_bytes(packed).words
    return Codes(out, BITS)


def print_left_over(codes: Codes) -> None:
    """The share of some codes whose prefix is as near to one of them as its K-th nearest other code."""
    queries = codes.take(np.arange(0, len(codes), max(1, len(codes) // 100)))
    farthest = nearest(queries, codes, K + 1).distances[:, -1:]
    shares = [
        f"{(hamming_distances(queries, codes, short) < farthest).mean():.1%} by {short} bits" for short in (16, 32, 64)
    ]
    print(f"of the {len(codes):,} codes themselves are left over: {', '.join(shares)}; hit {K}: {farthest.mean():.1f}")


def compare_stages(items: int, real: Path | None) -> None:
    """Two stages and one on codes in memory, from hardly to tightly clustered; queries are of the same kind."""
    every = Index.open(real).some_codes(1 << 20).to_bytes() if real else np.zeros((0, BITS // 8), np.uint8)
    kinds = [("random", random_codes(1, 0), 1), ("1,000,000 random centres", random_codes(1_000_000, 99), 4)]
    if real:
        kinds.append((f"centres are the {len(every):,} codes of {real}", every, 4))
    kinds += [("1,000 random centres", random_codes(1_000, 99), draws) for draws in (4, 6)]
    print(f"{processor()}\n{items:,} codes of {BITS} bits, k = {K}, one thread, one query: two stages and one")
    if real:
        print_left_over(Codes.from_bytes(every))
    for name, centres, draws in kinds:
        print(f"\n{name}, {2.0**-draws:.1%} of the bits differ from the centre")
        codes = near_codes(items, centres, draws, 1)
        print_two_stages([codes], near_codes(4, centres, draws, 2))


def print_filters(index: Index, query: Codes) -> None:
    """Searches with a filter: the first one of its kind, and further ones, whose rows are remembered."""
    print("\nfilters, 128 bits, one query, all threads")
    for where in ({"year": 1900}, {"labels": "label 7"}, {"year": {"$gte": 1950}}):
        start = time.perf_counter()
        found = index.search(query, K, where=where)
        first = time.perf_counter() - start
        again = measured(lambda where=where: index.search(query, K, where=where), 3)
        print(f"  {where!s:<28} first {1e3 * first:8.0f} ms, then {1e3 * again.wall:7.1f} ms; {found.counts[0]} hits")


# Verbs over the whole index


def relaxed_query(index: Index) -> None:
    """One query with its real values."""
    index.search_relaxed(np.random.default_rng(0).normal(size=(1, BITS)), K)


VERBS: dict[str, Callable[[Index, Path], object]] = {
    "a relaxed query": lambda index, folder: relaxed_query(index),
    "a page of items": lambda index, folder: index.page(len(index) // 2, 20),
    "counts of all fields": lambda index, folder: [index.values(name) for name in index.fields],
    "multibit info": lambda index, folder: describe(index.path),
    "what a load into a database reads": lambda index, folder: IndexSource(index).fingerprint(),
    "export to Parquet": lambda index, folder: export_index(index, folder / "out.parquet"),
    "export to .npy": lambda index, folder: export_codes(index, folder / "out.npy"),
    "export to .faiss": lambda index, folder: export_codes(index, folder / "out.faiss"),
    "a copy with one field, to publish": lambda index, folder: copy_index(index, folder / "out.mbx", ["labels"]),
    "reshard into 4": lambda index, folder: shutil.rmtree(reshard(index.path.parent, [index.path.stem], 4)),
    "near-duplicates, radius 2": lambda index, folder: find_duplicates(index, 2),
}
"""Each is run in a process of its own, so that its memory can be told; they must not need that of all items."""


def run_verb(path: Path, name: str) -> None:
    """Open an index, print the memory of it, do something with it, print the seconds by the clock and of processors."""
    index = Index.open(path)
    index.search(Codes.from_bytes(np.zeros((1, BITS // 8), np.uint8)), 1)  # loads what is loaded late
    print(own_memory(os.getpid()), flush=True)
    wall, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        VERBS[name](index, Path(folder))
    print(f"{time.perf_counter() - wall:10.1f} s{time.process_time() - cpu:10.1f} s", flush=True)


def own_memory(process: int) -> int:
    """Bytes of a process that are not pages of mapped files; 0 after its end."""
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return 1024 * int(found[1]) if found else 0


def print_verb(path: Path, name: str) -> None:
    """Time of a verb, and the most memory that it takes beyond that of the opened index."""
    words = [sys.executable, __file__, "--folder", str(path), "--verb", name]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        before = peak = int(process.stdout.readline() or 0)
        while process.poll() is None:
            peak = max(peak, own_memory(process.pid))
            time.sleep(0.01)
        seconds = process.stdout.read().rstrip()
    if process.returncode:
        raise SystemExit(f"{name}: failed with {process.returncode}")
    print(f"{name:>36}{seconds}{(peak - before) / 1e9:10.2f} GB", flush=True)


def print_verbs(path: Path) -> None:
    """Time and memory of what goes through the whole index."""
    print("verbs over the whole index: by the clock, processor time, memory without mapped files", flush=True)
    for name in VERBS:
        if find_spec("faiss") or ".faiss" not in name:
            print_verb(path, name)


# Other engines


class Peer(NamedTuple):
    """Another engine with the same codes: its name, and a function from packed queries and k to distances."""

    name: str
    search: Callable[[np.ndarray, int], np.ndarray]


def peers(index: Index, urls: Sequence[str]) -> Iterator[Peer]:
    """The engine of faiss where it is installed, and some databases."""
    if find_spec("faiss"):
        import faiss

        flat = faiss.IndexBinaryFlat(BITS)
        for part in index.version.parts:
            flat.add(part.segment.codes.to_bytes())
        yield Peer(f"faiss-cpu {version('faiss-cpu')}, IndexBinaryFlat", lambda asked, k: flat.search(asked, k)[0])
        del flat
    else:
        print("  faiss: not installed")
    for url in urls:
        start = time.perf_counter()
        remote = load_remote(index, url, "scale")
        rate = len(index) / (time.perf_counter() - start)
        print(f"  {remote.store.place}: loaded {rate:,.0f} items a second")
        yield Peer(remote.store.place, lambda asked, k, at=remote: at.search(Codes.from_bytes(asked), k).distances)
        remote.close()


def print_peers(index: Index, queries: Codes, urls: Sequence[str]) -> None:
    """Other engines on the same codes, all threads; the distances must be the same."""
    print(f"\nother engines, 128 bits, k = {K}, all threads: milliseconds by the clock (of this process's processors)")
    asked = queries.to_bytes()
    for name, search in peers(index, urls):
        np.testing.assert_array_equal(search(asked[:CHECKED], K), index.search(queries, K).distances[:CHECKED])
        for what, count in (("one query", 1), (f"batch of {BATCH}, each", len(asked))):
            some = queries.take(np.arange(count))
            theirs = measured(lambda search=search, count=count: search(asked[:count], K), 3)
            ours = measured(lambda some=some: index.search(some, K), 3)
            cells = (f"{1e3 * each.wall / count:.1f} ({1e3 * each.cpu / count:.1f})" for each in (theirs, ours))
            print(
                f"  {name}, {what}: {', ours '.join(cells)}: {theirs.wall / ours.wall:.1f} x by the clock", flush=True
            )


def print_billion(times: dict[int, tuple[Measured, Measured, Measured]], items: int) -> None:
    """What follows for a billion codes: times grow with the number of items, and shards work at the same time."""
    scale = BILLION / items
    print(
        "\na billion codes, extrapolated, one thread: one machine; eight machines with a shard each, plus the network"
    )
    for bits, (one, batch, _) in times.items():
        rate = BATCH / batch.cpu / scale
        print(
            f"{bits:>5} bits: one query {scale * one.cpu:6.2f} s; {scale * one.cpu / 8:6.3f} s. "
            f"In batches of {BATCH}: {rate:6.1f} queries/s; {8 * rate:6.1f} queries/s"
        )


def prepare(path: Path, kind: str, items: int, segment: int) -> None:
    """Build the index, if it is not there yet."""
    print(processor())
    packages = ("numba", "numpy", "pyarrow", *(["faiss-cpu"] if find_spec("faiss") else []))
    print(", ".join(f"{name} {version(name)}" for name in packages))
    print(f"\n{items:,} {kind} codes of {BITS} bits, with text ids, a number and a list of labels each", flush=True)
    if not path.exists():
        report_build(path, kind, items, segment)


def print_searches(path: Path, kind: str, urls: Sequence[str]) -> None:
    """Measure searches of an index."""
    start = time.perf_counter()
    index = Index.open(path)
    opened = time.perf_counter() - start
    queries = Codes.from_bytes(KINDS[kind](BATCH, 10**9 + 7))
    start = time.perf_counter()
    index.search(queries.take([0]), K)
    searched = time.perf_counter() - start
    print(f"opened in {opened:.2f} s, first search {searched:.2f} s, {len(index.version.parts)} segments")
    for bits in LENGTHS:
        some = queries.take(np.arange(CHECKED))
        np.testing.assert_array_equal(index.search(some, K, bits).distances, reference(index, some, bits))
    times = print_search_times(index, queries)
    print_filters(index, queries.take([0]))
    print_peers(index, queries, urls)
    print_billion(times, len(index))


def main() -> None:
    """Print everything."""
    parser = new_parser(__doc__)
    parser.add_argument("--items", type=int, default=100_000_000, help="number of codes")
    parser.add_argument("--codes", choices=sorted(KINDS), default="random", help="kind of codes")
    parser.add_argument("--folder", type=Path, help="folder of the index, which is kept; else a temporary one")
    parser.add_argument("--segment", type=int, default=LARGEST, help="items of a segment")
    parser.add_argument("--to", metavar="URL", nargs="+", default=[], help="databases to load the codes into as well")
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stages", action="store_true", help="only compare searches in two stages, on codes in memory")
    parser.add_argument("--real", type=Path, help="with --stages: an index whose codes are centres too")
    parser.add_argument("--verbs", action="store_true", help="only measure what goes through the whole index")
    parser.add_argument("--verb", choices=VERBS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.verb:
        run_verb(options.folder, options.verb)
        return
    items = SMOKE if options.smoke else options.items
    if options.build:
        build(options.build, options.codes, items, options.segment)
        return
    if options.stages:
        compare_stages(items, options.real)
        return
    with tempfile.TemporaryDirectory() as temporary:
        path = (options.folder or Path(temporary)) / f"{options.codes}-{items}.mbx"
        prepare(path, options.codes, items, options.segment)
        if options.verbs:
            print_verbs(path)
        else:
            print_searches(path, options.codes, options.to)


if __name__ == "__main__":
    main()
