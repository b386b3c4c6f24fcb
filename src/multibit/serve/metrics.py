"""Numbers about the running server, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters and histograms of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "multibit_requests", "Requests by endpoint and status.", ["endpoint", "status"], registry=self.registry
        )
        self.latency = Histogram(
            "multibit_request_seconds", "Time of requests.", ["endpoint"], buckets=SECONDS, registry=self.registry
        )
        self.search = Histogram(
            "multibit_search_seconds", "Time of searches by code length, rounded up to a multiple of 8.",
            ["bits"], buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self.batch = Histogram(
            "multibit_batch_size", "Queries worked on together.", ["stage"], buckets=SIZES, registry=self.registry
        )
        self.queue = Gauge("multibit_queue_length", "Queries that wait.", ["stage"], registry=self.registry)
        self.items = Gauge("multibit_index_items", "Items of an index.", ["index"], registry=self.registry)
        self.shards = Gauge(
            "multibit_shards", "Shards, and those without an answer.", ["state"], registry=self.registry
        )
        self.hedged = Gauge("multibit_hedged_requests", "Requests sent to a shard again.", registry=self.registry)
        self.version = Gauge("multibit_index_version", "Changes of the indices since start.", registry=self.registry)

    def searched(self, bits: int, seconds: float) -> None:
        """Count a search."""
        self.search.labels(str(-(-bits // 8) * 8)).observe(seconds)

    def text(self) -> bytes:
        """All numbers in the text format."""
        return bytes(generate_latest(self.registry))
