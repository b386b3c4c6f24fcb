"""Cost of changing, filtering and opening an index: python benchmarks/index.py [--items 1000000 | --smoke].

Items of 128 bits with a string id and metadata: two labels, a year, a path and a text. Times are medians of some
rounds; "first" is one call on columns that nothing has read before. faiss `IndexBinaryFlat` has no string ids, no
metadata, no filters and no changes in place, so it is compared where it does the same work: add, search and load. Aims
on two quiet cores at 1 M items: a filter 15 ms first and twice the unfiltered search when repeated; among 1,000 ids
5 ms; add 5 s from Arrow and 15 s from Python objects; change of one item 20 ms in memory and on disk; open and search
50 ms.
Then readers search while a writer adds items. Peer: pip install "multibit[bench]". --smoke only checks that everything
runs.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa

from multibit import Codes, Index

BITS, ROUNDS = 128, 15
SMOKE = 2_000


def seconds(work: Callable[[], object], rounds: int = 1) -> float:
    """Median time."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def report(name: str, ours: float, theirs: float | None = None) -> None:
    """One line: milliseconds, and those of faiss."""
    peer = "" if theirs is None else f"{1e3 * theirs:>12.2f}{theirs / ours:>9.1f} x"
    print(f"{name:<52}{1e3 * ours:>12.2f}{peer}", flush=True)


def random_codes(count: int, seed: int = 0) -> Codes:
    """Uniform bits."""
    words = np.random.default_rng(seed).integers(0, 1 << 16, (BITS // 16, count), dtype=np.uint16)
    return Codes(words, BITS)


def described(count: int) -> list[dict[str, object]]:
    """Metadata of the items."""
    return [
        {
            "labels": [f"l{row % 97}", share_label(row)],
            "year": 1990 + row % 35,
            "path": f"images/{row:08d}.jpg",
            "text": f"a caption of item {row}",
        }
        for row in range(count)
    ]


def share_label(row: int) -> str:
    """The label "rare" on one item in 10,000, "some" on one in 100, "half" on every second."""
    if not row % 10_000:
        return "rare"
    return "some" if not row % 100 else "half" if row % 2 else "other"


def resident() -> float:
    """Resident memory of this process, MB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1e3 if found else float("nan")


def adding(count: int, codes: Codes) -> Index:
    """From Python objects and from Arrow columns."""
    names, items = [f"item {row}" for row in range(count)], described(count)
    from_objects, index = Index(), Index()
    objects = seconds(lambda: from_objects.add(names, codes, items))
    table = pa.Table.from_pylist(items)
    ids = pa.array(names)
    columns = seconds(lambda: index.add(ids, codes, table))
    packed, flat = codes.to_bytes(), faiss.IndexBinaryFlat(BITS)
    peer = seconds(lambda: flat.add(packed))
    report(f"add {count:,} items from Python objects", objects)
    report("add them from Arrow columns (faiss: the codes alone)", columns, peer)
    return index


def searching(index: Index, count: int, codes: Codes) -> None:
    """Unfiltered, with filters, and among ids."""
    query, flat = codes.take([count // 3]), faiss.IndexBinaryFlat(BITS)
    flat.add(codes.to_bytes())
    packed = query.to_bytes()
    for search in (lambda: index.search(query), lambda: index.search(query, where={"year": {"$gt": 1995}})):
        search()  # loads the compiled kernels
    peer = seconds(lambda: flat.search(packed, 10), ROUNDS)
    report("search, k = 10, one query", seconds(lambda: index.search(query), ROUNDS), peer)
    for share, label in ((".0001", "rare"), (".01", "some"), (".5", "half")):
        where = {"labels": label}
        report(
            f"search where a label is on {share} of the items, first",
            seconds(lambda w=where: index.search(query, where=w)),
        )
        report("  repeated", seconds(lambda w=where: index.search(query, where=w), ROUNDS))
    where = {"year": {"$gte": 2010, "$lt": 2015}, "$not": {"labels": "half"}}
    report("search with three conditions, first", seconds(lambda: index.search(query, where=where)))
    among = [f"item {row}" for row in range(0, count, max(1, count // 1_000))]
    report(f"search among {len(among):,} ids", seconds(lambda: index.search(query, among=among), ROUNDS))


def changing(index: Index, codes: Codes) -> None:
    """One item, in memory."""
    one, number = codes.take([0]), itertools.count()
    report(
        "upsert one item, in memory",
        seconds(lambda: index.upsert([f"item {next(number)}"], one, [{"year": 1}]), ROUNDS),
    )
    report("remove one item, in memory", seconds(lambda: index.remove([f"item {100 + next(number)}"]), ROUNDS))


def on_disk(index: Index, path: Path, codes: Codes) -> None:
    """Save, open, and change one item."""
    report("save", seconds(lambda: index.save(path)))
    size = sum(file.stat().st_size for file in path.iterdir())
    packed = path.with_name("codes.faiss")
    flat = faiss.IndexBinaryFlat(BITS)
    flat.add(codes.to_bytes())
    faiss.write_index_binary(flat, str(packed))
    query = codes.take([1])
    asked = query.to_bytes()
    peer = seconds(lambda: faiss.read_index_binary(str(packed)).search(asked, 10), 5)
    report("open and search", seconds(lambda: Index.open(path).search(query), 5), peer)
    report("open with checksums", seconds(lambda: Index.load(path), 3))
    before = resident()
    opened = Index.open(path)
    opened.search(query)
    added, touched = resident() - before, codes.nbytes / 1e6
    print(f"  {size / 1e6:,.0f} MB on disk; opening and a search add {added:,.0f} MB; codes {touched:,.0f} MB")
    number = itertools.count()

    def write(change: Callable[[Index, int], None]) -> None:
        with Index.editing(path) as writer:
            change(writer, next(number))

    one = codes.take([0])
    report(
        "add one item, on disk", seconds(lambda: write(lambda w, n: w.add([f"new {n}"], one, [{"year": 1}])), ROUNDS)
    )
    report(
        "upsert one item, on disk",
        seconds(lambda: write(lambda w, n: w.upsert([f"item {n}"], one, [{"year": 1}])), ROUNDS),
    )
    report("remove one item, on disk", seconds(lambda: write(lambda w, n: w.remove([f"item {500 + n}"])), ROUNDS))
    report("compact", seconds(lambda: write(lambda w, n: w.compact())))


def mixed(path: Path, codes: Codes, duration: float) -> None:
    """Two readers search while a writer adds 100 items a second; every answer must be that of some version."""
    query, latest = codes.take([2]), Index.open(path)
    base = latest.search(query, 10).ids[0]

    def read(times: list[float], stop: float) -> None:
        reader = Index.open(path)
        while time.perf_counter() < stop:
            start = time.perf_counter()
            reader.refresh()
            found = reader.search(query, 10, threads=1).ids[0]
            times.append(time.perf_counter() - start)
            assert [name for name in found if not str(name).startswith("added")] == base, "a wrong answer"

    for name, rate in (("no writer", 0), ("a writer of 100 items a second", 100)):
        stop, times = time.perf_counter() + duration, []
        readers = [threading.Thread(target=read, args=(times, stop)) for _ in range(2)]
        for reader in readers:
            reader.start()
        written = 0
        while rate and time.perf_counter() < stop:
            with latest.writer() as writer:
                far = Codes.from_bits(1 - query.to_bits())  # never among the nearest
                writer.add([f"added {written}"], far, [{"year": 1}])
            written += 1
            time.sleep(max(0.0, 1 / rate - 0.005))
        for reader in readers:
            reader.join()
        fast, slow = 1e3 * np.percentile(times, 50), 1e3 * np.percentile(times, 99)
        print(f"two readers, {name}: {fast:.2f} ms median, {slow:.2f} ms at p99, {written} items written", flush=True)


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000, help="items of the index")
    parser.add_argument("--seconds", type=float, default=60, help="duration of the mixed load")
    parser.add_argument("--smoke", action="store_true", help="run in a few seconds, without meaningful times")
    options = parser.parse_args()
    count, duration = (SMOKE, 0.5) if options.smoke else (options.items, options.seconds)
    faiss.omp_set_num_threads(1)
    print(f"{'milliseconds, medians':<52}{'multibit':>12}{'faiss':>12}{'ratio':>11}")
    codes = random_codes(count)
    index = adding(count, codes)
    searching(index, count, codes)
    with tempfile.TemporaryDirectory() as folder:
        on_disk(index, Path(folder) / "a.mbx", codes)
        mixed(Path(folder) / "a.mbx", codes, duration)
    changing(index, codes)


if __name__ == "__main__":
    main()
