"""Cost of serving: python benchmarks/serve.py RUN [--items 1000000 --seconds 10 | --soak 600 | --smoke].

A server in a process of its own answers 1, 16 and 64 clients on this machine, which share its processors. Vector
queries are relaxed codes that are searched as they are; text queries are encoded first, and each text is new. "in
process" asks the index, or the encoder, directly, one query at a time and in batches of 16. The items have random
codes. --milvus ADDRESS asks a running Milvus server (with pymilvus) the same vector queries, of as many random codes in
an exact index. Aims on two quiet cores at 1 M items: vector queries of 16 clients 1,500/s; text queries at most 1.3
times as slow as the encoder alone.

--soak keeps readers, a writer and clients that are killed at work, and prints errors and memory. RUN is a run or a
portable model, which needs encoders for text queries; --smoke trains a tiny run without them and only checks that
everything works.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
from common import new_parser

from multibit import Codes, FeatureStore, Index, Run, Split, open_run
from multibit.client import AsyncClient, Client, ServerError
from multibit.indices import index_names
from multibit.portable import PortableRun
from multibit.search.names import index_path
from multibit.serve.encoding import load_query_encoder
from multibit.serve.models import NewItem

CLIENTS = (1, 16, 64)
WORDS = ("red", "blue", "old", "small", "flower", "dog", "house", "tree", "boat", "map", "bird", "car", "hat", "sun")


class Server:
    """A server process on a free port."""

    def __init__(self, run: Path, index: Path, **environment: str) -> None:
        command = [sys.executable, "-c", "from multibit.cli import main; main()", "serve", str(run), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--index", str(index)], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        found = re.search(r"http://\S+", self.process.stdout.readline()) if self.process.stdout else None
        assert found is not None, "the server did not start"
        self.url = found[0]
        with Client(self.url) as client:
            while not client.is_ready():
                assert self.process.poll() is None, "the server did not start"
                time.sleep(0.05)

    def cpu(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Resident memory in MB."""
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())
        return int(found[1]) / 1e3 if found else float("nan")

    def stop(self) -> None:
        """End it as a service manager would."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def random_codes(count: int, bits: int, seed: int = 0) -> Codes:
    """Uniform bits."""
    words = np.random.default_rng(seed).integers(0, 1 << 16, (-(-bits // 16), count), dtype=np.uint16)
    return Codes(words, bits)


def write_indices(run: Run | PortableRun, folder: Path, count: int) -> None:
    """Indices of random codes for a run, with a label for each item."""
    labels = [{"labels": [f"l{row % 97}"]} for row in range(count)]
    for name, (modality, bits) in index_names(run).items():
        index = Index(run.record.model, "exact", modality)
        index.add([f"item {row}" for row in range(count)], random_codes(count, bits, len(name)), labels)
        index.save(index_path(folder, name))


def new_text() -> str:
    """A text that was not asked before."""
    return " ".join(random.choices(WORDS, k=4)) + f" {random.randrange(10**6)}"


def bodies(kind: str, bits: int) -> Callable[[], bytes]:
    """Maker of request bodies; vectors are drawn before, so that drawing them costs the clients nothing."""
    if kind == "text":
        return lambda: msgspec.json.encode({"text": new_text()})
    drawn = np.random.default_rng(1).uniform(-1, 1, (256, bits)).round(3).tolist()
    made = [msgspec.json.encode({"vector": each, "modality": "image"}) for each in drawn]
    return lambda: random.choice(made)


async def one_client(url: str, body: Callable[[], bytes], until: float, times: list[float]) -> None:
    """Ask over one connection until it is time; a bare socket, so that the client costs little."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    while time.perf_counter() < until:
        content = body()
        head = f"POST /v1/search HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: "
        start = time.perf_counter()
        writer.write(head.encode() + f"{len(content)}\r\n\r\n".encode() + content)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer)
        assert answer.startswith(b"HTTP/1.1 200") and length, answer
        await reader.readexactly(int(length[1]))
        times.append(time.perf_counter() - start)
    writer.close()


def ask(server: Server, kind: str, bits: int, clients: int, seconds: float) -> None:
    """One line: throughput, latency, and processor time of the server for each query."""
    times: list[float] = []

    async def run() -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(one_client(server.url, bodies(kind, bits), until, times) for _ in range(clients)))

    before, start = server.cpu(), time.perf_counter()
    asyncio.run(run())
    took, cpu = time.perf_counter() - start, server.cpu() - before
    line(f"{kind} queries, {clients} clients", len(times) / took, times, cpu / len(times))


def line(name: str, rate: float, times: list[float], cpu: float) -> None:
    """One line of the table."""
    ordered = sorted(times)
    middle, late = statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    print(f"{name:<46}{rate:>10,.0f}{1e3 * middle:>10.2f}{1e3 * late:>10.2f}{1e3 * cpu:>12.2f}", flush=True)


def timed(name: str, work: Callable[[], object], seconds: float, batch: int) -> None:
    """One line for a function of this process."""
    work()
    times, start, cpu = [], time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    took, queries = time.perf_counter() - start, batch * len(times)
    line(name, queries / took, times, (time.process_time() - cpu) / queries)


def in_process(run: Run | PortableRun, folder: Path, seconds: float) -> None:
    """The same queries without a server."""
    index, encoder = Index.open(index_path(folder, "image")), load_query_encoder(run)
    for batch in (1, 16):
        codes = Codes.binarize(np.random.default_rng(2).uniform(-1, 1, (batch, run.model.bits)))
        timed(
            f"in process, vector queries by {batch}", lambda codes=codes: index.search(codes, 10).hits(), seconds, batch
        )
        if "text" in encoder.encoders:

            def texts(batch: int = batch) -> list[tuple[str, str]]:
                return [("text", new_text()) for _ in range(batch)]

            timed(f"in process, encoder alone by {batch}", lambda texts=texts: encoder.encode(texts()), seconds, batch)


def milvus(address: str, bits: int, count: int, seconds: float) -> None:
    """The same queries to Milvus: an exact index of binary vectors, asked by as many threads as there are clients."""
    from pymilvus import Collection, CollectionSchema, DataType, FieldSchema, connections, utility

    host, port = address.split(":")
    connections.connect(host=host, port=port)
    fields = [
        FieldSchema("row", DataType.INT64, is_primary=True),
        FieldSchema("code", DataType.BINARY_VECTOR, dim=bits),
    ]
    utility.drop_collection("multibit_benchmark")
    collection = Collection("multibit_benchmark", CollectionSchema(fields), consistency_level="Eventually")
    packed = random_codes(count, bits).to_bytes()
    for start in range(0, count, 50_000):
        rows = range(start, min(start + 50_000, count))
        collection.insert([list(rows), [packed[row].tobytes() for row in rows]])
    collection.flush()
    collection.create_index("code", {"index_type": "BIN_FLAT", "metric_type": "HAMMING", "params": {}})
    collection.load()
    drawn = random_codes(256, bits, 1).to_bytes()
    for clients in CLIENTS:
        times: list[float] = []
        until = time.perf_counter() + seconds

        def one(times: list[float] = times, until: float = until) -> None:
            while time.perf_counter() < until:
                start = time.perf_counter()
                collection.search([random.choice(drawn).tobytes()], "code", {"metric_type": "HAMMING"}, 10)
                times.append(time.perf_counter() - start)

        begun = time.perf_counter()
        with ThreadPoolExecutor(clients) as threads:
            for done in [threads.submit(one) for _ in range(clients)]:
                done.result()
        line(
            f"Milvus, vector queries, {clients} clients",
            len(times) / (time.perf_counter() - begun),
            times,
            float("nan"),
        )
    utility.drop_collection("multibit_benchmark")


class Soak:
    """Readers, a writer, and clients that are killed while they ask; errors and memory."""

    def __init__(self, server: Server, run: Run | PortableRun, seconds: float) -> None:
        self.server, self.seconds = server, seconds
        self.bits, self.longest = run.model.layout.stored, run.model.bits
        self.until = time.monotonic() + seconds
        self.errors: list[str] = []
        self.counts = {"searches": 0, "writes": 0, "killed": 0}

    async def reader(self, client: AsyncClient, number: int) -> None:
        """Search at any length; the hits must be in order."""
        drawn = np.random.default_rng(number)
        while time.monotonic() < self.until:
            bits, vector = int(drawn.integers(1, self.longest + 1)), drawn.uniform(-1, 1, self.bits).tolist()
            found = await client.search(vector=vector, modality="image", bits=bits)
            distances = [hit.distance or 0 for hit in found.hits]
            if distances != sorted(distances) or len(distances) != 10:
                self.errors.append(f"hits out of order: {distances}")
            self.counts["searches"] += 1

    async def writer(self, client: AsyncClient) -> None:
        """Write an item, find it, and remove the one before the last twenty."""
        number = 0
        while time.monotonic() < self.until:
            values = np.random.default_rng(number).uniform(-1, 1, self.bits).tolist()
            await client.put([NewItem(id=f"new {number}", image_vector=values, text_vector=values)])
            found = await client.search(id=f"new {number}", source="image", modality="image", k=1)
            if found.hits[0].distance != 0:
                self.errors.append("a written item was not found")
            if number >= 20:
                await client.delete(f"new {number - 20}")
            number, self.counts["writes"] = number + 1, self.counts["writes"] + 1

    async def killer(self) -> None:
        """Kill clients in the middle of their requests."""
        while time.monotonic() < self.until:
            victim = multiprocessing.get_context("spawn").Process(target=_victim, args=(self.server.url, self.bits))
            victim.start()
            await asyncio.sleep(min(5.0, self.seconds / 3))
            victim.kill()
            victim.join()
            self.counts["killed"] += 1

    async def watcher(self) -> None:
        """Print how it goes."""
        while time.monotonic() < self.until:
            print(f"memory {self.server.memory():,.0f} MB, {self.counts}, {len(self.errors)} errors", flush=True)
            await asyncio.sleep(max(0.5, self.seconds / 10))

    async def guarded(self, work: Awaitable[None]) -> None:
        """Note an error instead of ending the others."""
        try:
            await work
        except (ServerError, OSError) as error:
            self.errors.append(str(error))

    async def run(self) -> None:
        """All of them at once."""
        async with AsyncClient(self.server.url) as client:
            readers = (self.reader(client, number) for number in range(8))
            parts = [*readers, self.writer(client), self.killer(), self.watcher()]
            await asyncio.gather(*map(self.guarded, parts))
        print(f"soak: {self.counts}, memory {self.server.memory():,.0f} MB, errors: {self.errors[:3] or 'none'}")


def _victim(url: str, bits: int) -> None:
    """Ask without end, over raw connections that nobody closes."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    body = bodies("vector", bits)()
    while True:
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v1/search HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            sent = body[: random.randrange(len(body))]
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + sent)


def tiny_run(folder: Path) -> Path:
    """A run without encoders."""
    rng = np.random.default_rng(0)
    labels = np.eye(4, dtype=np.uint8)[rng.integers(4, size=60)]
    arrays = {"image": rng.normal(size=(60, 8)), "text": rng.normal(size=(60, 6))}
    np.savez(folder / "features.npz", labels=labels, **{name: each.astype(np.float32) for name, each in arrays.items()})
    store = FeatureStore.open(folder / "features.npz")
    Run.create(
        folder / "run", store, Split.draw(60, query=10, train=40, validation=5, seed=0), method="multibit", epochs=1,
        lengths=(8, 16), scales=2, hidden=16, dimension=8,
    )  # fmt: skip
    return folder / "run"


def main() -> None:
    """Print the table, or soak."""
    parser = new_parser(__doc__)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--soak", type=float, default=0.0)
    parser.add_argument("--milvus", metavar="ADDRESS", help="HOST:PORT of a Milvus server to compare with")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if given.smoke:
            given.run, given.items, given.seconds, given.soak = tiny_run(folder), 500, 0.3, 1.0
        run = open_run(given.run, many=True)
        write_indices(run, folder / "index", given.items)
        server = Server(given.run, folder / "index", MULTIBIT_WRITABLE="1")
        try:
            if given.smoke or not given.soak:
                print(f"{given.items:,} items{'':<34}{'queries/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'CPU ms each':>12}")
                kinds = ["vector", "text"] if "text" in Client(server.url).info().encodes else ["vector"]
                for kind in kinds:
                    for clients in CLIENTS:
                        ask(server, kind, run.model.layout.stored, clients, given.seconds)
                in_process(run, folder / "index", given.seconds)
                if given.milvus:
                    milvus(given.milvus, run.model.bits, given.items, given.seconds)
            if given.soak:
                asyncio.run(Soak(server, run, given.soak).run())
        finally:
            server.stop()


if __name__ == "__main__":
    main()
