"""Cost of changing, filtering and opening an index: python benchmarks/index.py [--items 10_000_000 | --smoke].

Items of 128 bits with a string id and metadata: two labels, a share, a year, a path and a text. Times are medians of
some rounds in milliseconds; "first" is one call on columns that nothing has read before. "processor" is the time that
multibit used the processors, which a busy machine does not change as much.

Peers do the same work in the same run: faiss `IndexBinaryFlat` (one thread) has no ids, metadata, filters or changes in
place, so it adds, searches and loads; LanceDB, without a vector index, has all of them. A peer that is not installed is
named and left out: pip install "multibit[bench]".

Aims on two quiet cores: a filter 15 ms first and twice the unfiltered search when repeated; among 1,000 ids 5 ms; add
1 M items in 5 s from Arrow and 15 s from Python objects; change of one item 20 ms in memory and on disk; open and
search 50 ms at 10 M items. Then two readers search while a writer adds 100 items a second; every answer must be that
of some version. --smoke only checks that everything runs.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import multiprocessing
import re
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from common import new_parser, random_codes

from multibit import Codes, Index
from multibit.search.results import write_hits

BITS, ROUNDS = 128, 15
SMOKE, MILLION = 2_000, 1_000_000
SHARES = {"rare": ".0001", "some": ".01", "half": ".5"}
RATE = 100  # items a second
COLUMNS = ("multibit", "processor", "faiss", "lancedb")


class Time(NamedTuple):
    """Median milliseconds: on the clock, and of the processors."""

    wall: float
    processor: float


def timed(work: Callable[[], object], rounds: int = 1) -> Time:
    """Median times of some rounds."""
    times = []
    for _ in range(rounds):
        start, used = time.perf_counter(), time.process_time()
        work()
        times.append((1e3 * (time.perf_counter() - start), 1e3 * (time.process_time() - used)))
    walls, processors = zip(*times, strict=True)
    return Time(statistics.median(walls), statistics.median(processors))


def report(name: str, ours: Time, **peers: Time) -> None:
    """One line of the table."""
    cells = {"multibit": ours.wall, "processor": ours.processor, **{key: each.wall for key, each in peers.items()}}
    shown = "".join(f"{cells[key]:>12,.2f}" if key in cells else f"{'':>12}" for key in COLUMNS)
    print(f"{name:<70}{shown}", flush=True)


# Data


def codes_of(count: int, seed: int = 0) -> Codes:
    """Uniform bits."""
    return Codes.from_bytes(random_codes(count, seed))


def numbered(text: str, count: int, digits: int = 0) -> pa.Array:
    """Texts that end in the row."""
    rows = pc.cast(pa.array(np.arange(count)), pa.large_string())
    large = [pa.scalar(each, pa.large_string()) for each in (text, "")]
    return pc.binary_join_element_wise(large[0], pc.utf8_lpad(rows, digits, "0"), large[1])


def shares(count: int) -> pa.Array:
    """One item in 10,000 is "rare", one in 100 "some", every second "half", the others "other"."""
    rows = np.arange(count)
    code = np.select([rows % 10_000 == 0, rows % 100 == 0, rows % 2 == 1], [0, 1, 2], 3).astype(np.int32)
    return pa.DictionaryArray.from_arrays(code, ["rare", "some", "half", "other"]).cast(pa.large_string())


def described(count: int) -> pa.Table:
    """Metadata of the items."""
    rows, share = np.arange(count), shares(count)
    topics = pa.DictionaryArray.from_arrays((rows % 97).astype(np.int32), [f"l{topic}" for topic in range(97)])
    both = pa.concat_arrays([topics.cast(pa.large_string()), share])
    values = both.take(pa.array(np.stack([rows, rows + count], axis=1).ravel()))
    labels = pa.LargeListArray.from_arrays(np.arange(0, 2 * count + 1, 2), values)
    paths, texts = numbered("images/", count, 8), numbered("a caption of item ", count)
    return pa.table({"labels": labels, "share": share, "year": 1990 + rows % 35, "path": paths, "text": texts})


def resident() -> float:
    """Resident memory of this process, MB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1e3 if found else float("nan")


def size_of(folder: Path) -> float:
    """Size of the files below a folder, MB."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


# Peers


class Lance:
    """LanceDB without a vector index: a flat scan by Hamming distance."""

    name = "lancedb"

    def __init__(self, folder: Path) -> None:
        import lancedb

        self.folder = folder / "lance"
        self.connection = lancedb.connect(self.folder)

    def add(self, ids: pa.Array, codes: Codes, table: pa.Table) -> None:
        """All items."""
        self.table = self.connection.create_table("items", self._rows(ids, codes, table))

    def _rows(self, ids: pa.Array, codes: Codes, table: pa.Table) -> pa.Table:
        packed = codes.to_bytes()
        code = pa.FixedSizeListArray.from_arrays(pa.array(packed.ravel()), packed.shape[1])
        return table.append_column("id", ids).append_column("code", code)

    def search(self, query: Codes, share: str | None = None) -> Any:
        """Ids of the ten nearest."""
        asked = self.table.search(query.to_bytes()[0]).distance_type("hamming").limit(10).select(["id", "_distance"])
        return (asked if share is None else asked.where(f"share = '{share}'")).to_arrow()

    def upsert(self, ids: pa.Array, codes: Codes, table: pa.Table) -> None:
        """Replace items, or add them."""
        merge = self.table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(self._rows(ids, codes, table))

    def open_and_search(self, query: Codes) -> Any:
        """From the files."""
        self.table = self.connection.open_table("items")
        return self.search(query)


def peers_of(folder: Path) -> list[Lance]:
    """The peers that are installed."""
    if importlib.util.find_spec("lancedb") is None:
        print('lancedb is not installed, so it is left out: pip install "multibit[bench]"')
        return []
    return [Lance(folder)]


# Measurements


def adding(count: int, codes: Codes, peers: list[Lance]) -> Index:
    """From Python objects, up to a million, and from Arrow columns."""
    ids, table = numbered("item ", count), described(count)
    few = min(count, MILLION)
    names, items = ids[:few].to_pylist(), table[:few].to_pylist()
    objects = timed(lambda: Index().add(names, codes.take(range(few)), items))
    report(f"add {few:,} items from Python objects", objects)
    index, flat, packed = Index(), faiss.IndexBinaryFlat(BITS), codes.to_bytes()
    ours = timed(lambda: index.add(ids, codes, table))
    theirs = {peer.name: timed(lambda p=peer: p.add(ids, codes, table)) for peer in peers}
    report(
        f"add {count:,} from Arrow columns (faiss: codes alone)", ours, faiss=timed(lambda: flat.add(packed)), **theirs
    )
    return index


def searching(index: Index, count: int, codes: Codes, peers: list[Lance]) -> None:
    """Unfiltered, with filters, and among ids."""
    query, flat = codes.take([count // 3]), faiss.IndexBinaryFlat(BITS)
    flat.add(codes.to_bytes())
    packed = query.to_bytes()
    for search in (lambda: index.search(query), lambda: index.search(query, where={"year": {"$gt": 1995}})):
        search()  # loads the compiled kernels, Arrow, and pandas where it is installed
    rounds = ROUNDS if count <= MILLION else 5
    theirs = {peer.name: timed(lambda p=peer: p.search(query), rounds) for peer in peers}
    theirs["faiss"] = timed(lambda: flat.search(packed, 10), rounds)
    report("search, k = 10, one query", timed(lambda: index.search(query), ROUNDS), **theirs)
    for share, part in SHARES.items():
        where = {"share": share}
        first = timed(lambda w=where: index.search(query, where=w))
        report(f"search where a field passes {part} of the items, first", first)
        theirs = {peer.name: timed(lambda p=peer, s=share: p.search(query, s), rounds) for peer in peers}
        report("  repeated", timed(lambda w=where: index.search(query, where=w), ROUNDS), **theirs)
    for where in ({"labels": "some"}, {"year": {"$gte": 2010, "$lt": 2015}, "$not": {"labels": "half"}}):
        report(f"search where {json.dumps(where)}, first", timed(lambda w=where: index.search(query, where=w)))
        report("  repeated", timed(lambda w=where: index.search(query, where=w), ROUNDS))
    among = [f"item {row}" for row in range(0, count, max(1, count // 1_000))]
    report(f"search among {len(among):,} ids, first", timed(lambda: index.search(query, among=among)))
    report("  repeated", timed(lambda: index.search(query, among=among), ROUNDS))


def in_batches(index: Index, count: int, folder: Path, queries: int) -> None:
    """Many queries, written to Parquet."""
    asked = codes_of(queries, seed=1)
    before = resident()
    ours = timed(
        lambda: write_hits(folder / "hits.parquet", index.search_batches(asked, 10, fields=["year"]), len(asked))
    )
    print(f"{len(asked):,} queries to Parquet: {ours.wall / 1e3:,.1f} s on all processors, ", end="")
    print(f"{len(asked) * count / ours.processor / 1e6:,.2f} G codes compared per processor second, ", end="")
    print(f"{resident() - before:,.0f} MB more memory", flush=True)


def changing(index: Index, codes: Codes) -> None:
    """One item, in memory."""
    one, number = codes.take([0]), itertools.count()
    ours = timed(lambda: index.upsert([f"item {next(number)}"], one, [{"year": 1}]), ROUNDS)
    report("upsert one item, in memory", ours)
    report("remove one item, in memory", timed(lambda: index.remove([f"item {100 + next(number)}"]), ROUNDS))


def on_disk(index: Index, folder: Path, codes: Codes, peers: list[Lance]) -> Path:
    """Save, open, and change one item."""
    path, query = folder / "a.mbx", codes.take([1])
    report("save", timed(lambda: index.save(path)))
    flat, packed = faiss.IndexBinaryFlat(BITS), folder / "codes.faiss"
    flat.add(codes.to_bytes())
    faiss.write_index_binary(flat, str(packed))
    asked = query.to_bytes()
    theirs = {peer.name: timed(lambda p=peer: p.open_and_search(query), 5) for peer in peers}
    theirs["faiss"] = timed(lambda: faiss.read_index_binary(str(packed)).search(asked, 10), 5)
    report("open and search", timed(lambda: Index.open(path).search(query), 5), **theirs)
    report("open with checksums", timed(lambda: Index.load(path), 3))
    before = resident()
    opened = Index.open(path)
    opened.search(query)
    added, touched = resident() - before, codes.nbytes / 1e6
    sizes = ", ".join(f"{peer.name} {size_of(peer.folder):,.0f} MB" for peer in peers)
    print(f"  on disk {size_of(path):,.0f} MB{f' ({sizes})' if sizes else ''}; ", end="")
    print(f"opening and a search add {added:,.0f} MB of memory, the codes are {touched:,.0f} MB", flush=True)
    number = itertools.count()

    def write(change: Callable[[Index, int], None]) -> Callable[[], None]:
        def work() -> None:
            with opened.writer() as writer:
                change(writer, next(number))

        return work

    one, year = codes.take([0]), [{"year": 1}]
    add = timed(write(lambda w, n: w.add([f"new {n}"], one, year)), ROUNDS)
    report("add one item, on disk", add)
    row = described(1)
    theirs = {
        peer.name: timed(lambda p=peer: p.upsert(pa.array([f"item {next(number)}"], pa.large_string()), one, row), 5)
        for peer in peers
    }
    report("upsert one item, on disk", timed(write(lambda w, n: w.upsert([f"item {n}"], one, year)), ROUNDS), **theirs)
    report("remove one item, on disk", timed(write(lambda w, n: w.remove([f"item {500 + n}"])), ROUNDS))
    report("compact", timed(write(lambda w, n: w.compact())))
    return path


# A writer and two readers


def distance_of(number: int) -> int:
    """Of an added item from the query: some are nearer than all items before."""
    return number * 37 % 60


def reading(path: Path, query: Codes, items: int, stop: float, out: Path) -> None:
    """Search until some time; write the times, and the answer of each version that was seen."""
    index, times, seen = Index.open(path), [], {}
    while time.time() < stop:
        start = time.perf_counter()
        index.refresh()
        found = index.search(query, 10, threads=1).ids[0]
        times.append(time.perf_counter() - start)
        version = len(index) - items
        if seen.setdefault(version, found) != found:
            raise AssertionError(f"two answers of one version: {seen[version]}, {found}")
    out.write_text(json.dumps([times, list(seen.items())]))


def answer_of(version: int, base: list[tuple[int, str]]) -> list[str]:
    """The right answer when some items were added: by (distance, age)."""
    added = [(distance_of(number), f"added {number}") for number in range(version)]
    return [name for _, name in sorted([*base, *added], key=lambda hit: hit[0])[:10]]


def mixed(path: Path, codes: Codes, duration: float) -> None:
    """Two readers, without a writer and with one; every answer is compared with that of its version."""
    query, writing = codes.take([2]), Index.open(path)
    bits, items = query.to_bits(), len(writing)
    before = writing.search(query, 10)
    base = list(zip(before.distances[0].tolist(), before.ids[0], strict=True))
    for name, rate in (("no writer", 0), (f"a writer of {RATE} items a second", RATE)):
        start = time.time()
        outs = [path.with_name(f"reader-{number}.json") for number in range(2)]
        forked = multiprocessing.get_context("fork")
        readers = [forked.Process(target=reading, args=(path, query, items, start + duration, out)) for out in outs]
        for reader in readers:
            reader.start()
        written = changes = 0
        while rate and time.time() < start + duration:
            due = min(int((time.time() - start) * rate) - written, rate)
            if due < 1:
                time.sleep(1 / rate)
                continue
            numbers = range(written, written + due)
            flipped = np.repeat(bits, due, axis=0)
            for row, number in enumerate(numbers):
                flipped[row, : distance_of(number)] ^= 1
            with writing.writer() as writer:
                writer.add([f"added {number}" for number in numbers], Codes.from_bits(flipped), [{"year": 1}] * due)
            written, changes = written + due, changes + 1
        for reader in readers:
            reader.join()
            assert reader.exitcode == 0, "a reader failed"
        times: list[float] = []
        versions: dict[int, list[str]] = {}
        for out in outs:
            some, seen = json.loads(out.read_text())
            times += some
            versions |= dict(seen)
        wrong = [version for version, found in versions.items() if found != answer_of(version, base)]
        assert not wrong, f"wrong answers of {wrong}"
        fast, slow = 1e3 * np.percentile(times, 50), 1e3 * np.percentile(times, 99)
        print(f"two readers, {name}: {fast:.2f} ms median, {slow:.2f} ms at p99, {len(times):,} searches, ", end="")
        print(f"{written:,} items in {changes:,} changes, {len(versions):,} versions seen, no wrong answer", flush=True)


def main() -> None:
    """Print everything."""
    parser = new_parser(__doc__)
    parser.add_argument("--items", type=int, default=MILLION, help="items of the index")
    parser.add_argument("--queries", type=int, default=100_000, help="queries of the batch")
    parser.add_argument("--seconds", type=float, default=60, help="duration of the mixed load, twice")
    parser.add_argument(
        "--without", nargs="*", default=[], choices=("lancedb", "sqlite-vec"), help="peers to leave out"
    )
    options = parser.parse_args()
    count, duration = (SMOKE, 0.5) if options.smoke else (options.items, options.seconds)
    faiss.omp_set_num_threads(1)
    warnings.filterwarnings("ignore", message="lancedb fork")  # the readers do not use it
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        peers = peers_of(folder)
        print(f"{'milliseconds, medians':<70}{''.join(f'{name:>12}' for name in COLUMNS)}")
        codes = codes_of(count)
        index = adding(count, codes, peers)
        searching(index, count, codes, peers)
        in_batches(index, count, folder, min(options.queries, count))
        path = on_disk(index, folder, codes, peers)
        mixed(path, codes, duration)
        changing(index, codes)


if __name__ == "__main__":
    main()
