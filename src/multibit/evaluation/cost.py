"""Cost of serving: bytes, operations, and times on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from multibit.codes import CodedItems, Modality
from multibit.codes.distance import nearest

TIMED = 50  # single calls that are timed
HITS = 100  # of a timed search


@dataclass(frozen=True)
class Times:
    """Milliseconds of single calls: median and 95th percentile."""

    median: float
    p95: float


@dataclass(frozen=True)
class ModelSize:
    """Size of a model.

    Attributes:
        bytes: of the weights. parameters: number of trained values. flops: floating-point operations of coding one
            image and one text from their features.
    """

    bytes: int
    parameters: int
    flops: int


@dataclass(frozen=True, eq=False)
class Cost:
    """Cost of serving (Tables `tab:multi-length-cost`, `tab:performance-efficiency-raw`).

    Attributes:
        payload: length -> bytes of all packed codes of that length, both modalities. nested: bytes of the one stored
            code that serves all lengths. model: size of the model.
        encode: modality -> time to code one feature vector. query: length -> time of one exact search for 100 hits.
    """

    payload: dict[int, int]
    nested: int
    model: ModelSize
    encode: dict[Modality, Times]
    query: dict[int, Times]


def measure_cost(
    query: CodedItems,
    database: CodedItems,
    lengths: Sequence[int],
    model: ModelSize,
    coders: Mapping[Modality, Callable[[], Any]],
) -> Cost:
    """Time single searches and the coding of single feature vectors, on one thread.

    Args:
        query: one item. database: the items to search. lengths: code lengths to search at.
        model: its size. coders: modality -> function that codes one feature vector.
    """
    return Cost(
        payload={length: _payload(database.at(length), length) for length in lengths},
        nested=_payload(database, database.image.bits),
        model=model,
        encode={modality: _time(work) for modality, work in coders.items()},
        query={length: _time(_search_at(query, database, length)) for length in lengths},
    )


def _payload(items: CodedItems, bits: int) -> int:
    """Bytes of the codes of both modalities, all views, each packed into whole bytes."""
    return 2 * len(items) * items.image.views * -(-bits // 8)


def _search_at(query: CodedItems, database: CodedItems, bits: int) -> Callable[[], Any]:
    """A search of the texts by an image at one length."""
    return partial(nearest, query.at(bits).image, database.at(bits).text, HITS, bits, threads=1)


def _time(work: Callable[[], Any]) -> Times:
    work()
    times = np.empty(TIMED)
    for i in range(TIMED):
        start = time.perf_counter()
        work()
        times[i] = 1e3 * (time.perf_counter() - start)
    return Times(float(np.median(times)), float(np.quantile(times, 0.95)))
