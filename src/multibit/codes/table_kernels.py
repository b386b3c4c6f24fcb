"""The search for processors with AVX2 and without AVX-512, which have no instruction that counts ones in vectors.

Each word of a few hundred rows is split into nibbles, one per byte, once for a batch of queries. A shuffle then looks
up the number of bits in which the nibbles of 32 rows differ from that of a query: two instructions for 128 bits, where
counting needs four or more. The sums are bytes, so codes have at most `MOST_BITS` bits; see `codes.kernels` for the
shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.codes.compiling import compiled, has_instructions
from multibit.codes.kernels import CANDIDATES
from multibit.codes.selection import drop, finish, forget, make_room, no_candidates, take
from multibit.codes.vectors import BLOCK, LANES, NIBBLES, TABLES, block_distances, split_words

BATCH = 64  # queries that share the nibbles of a pass over the database
STEP = 2 * BLOCK  # rows whose nibbles stay in the first-level cache
FEWEST = 4  # queries, below which splitting costs more than it saves
MOST_BITS = 254  # a distance, and a limit one above it, fit a byte


def is_faster() -> bool:
    """Whether this search is faster than `codes.kernels` on the processor that kernels are compiled for."""
    return has_instructions("avx2") and not has_instructions("avx512bitalg")


def nibbles_of(queries: NDArray[np.uint16], bits: int) -> NDArray[np.uint8]:
    """(Q, ceil(bits / 4)) nibbles of the prefix of queries, lowest first, from their words (Q, W).

    Example:
        >>> nibbles_of(np.array([[0x4321, 0xFF]], np.uint16), 22)
        array([[ 1,  2,  3,  4, 15,  3]], dtype=uint8)
    """
    split = [(queries >> np.uint16(4 * n)) & np.uint16(15) for n in range(NIBBLES)]
    nibbles = np.stack(split, axis=2).reshape(len(queries), -1).astype(np.uint8)[:, : -(-bits // 4)]
    nibbles[:, -1] &= (1 << (bits % 4 or 4)) - 1
    return np.ascontiguousarray(nibbles)


@compiled
def _split(planes: Any, mask: Any, start: int, size: int, nibbles: Any) -> None:
    """The nibbles of `size` rows from `start` on, into nibbles (4 W, STEP)."""
    whole = size // LANES * LANES
    for w in range(len(planes)):
        for i in range(0, whole, LANES):
            split_words(planes, w, start + i, nibbles, i)
        for i in range(whole, size):
            for n in range(NIBBLES):
                nibbles[NIBBLES * w + n, i] = (planes[w, start + i] >> np.uint16(4 * n)) & np.uint16(15)
    for n in range(NIBBLES):  # bits past the prefix
        inside = np.uint8((mask >> np.uint16(4 * n)) & np.uint16(15))
        if inside != 15:
            line = nibbles[NIBBLES * (len(planes) - 1) + n]
            for i in range(STEP):
                line[i] &= inside


@compiled
def _distances(nibbles: Any, asked: Any, q: int, size: int, distances: Any) -> Any:
    """Distances of query q to the rows of the nibbles; the smallest, which may be that of a row past the last."""
    least = np.uint8(255)
    for at in range(0, size, BLOCK):
        least = min(least, block_distances(nibbles, at, TABLES, asked, q, distances))
    return least


@compiled
def nearest(first: int, last: int, scan: Any, asked: Any, limit: int, found: Any) -> None:
    """As `kernels.nearest`, for codes with one view of at most `MOST_BITS` bits.

    Args:
        asked: (Q, P) uint8, the queries as `nibbles_of` returns them.
    """
    planes, allowed, k = scan.planes, scan.allowed, found.rows.shape[1]
    batch = max(1, min(BATCH, CANDIDATES // max(2 * k, k + 4 * STEP), last - first))
    kept = no_candidates(batch, k, limit, STEP)
    counts, capacity = kept.counts, kept.rows.shape[1]
    nibbles, distances = np.zeros((NIBBLES * len(planes), STEP), np.uint8), np.empty(STEP, np.uint8)
    for begin in range(first, last, batch):
        many = min(batch, last - begin)
        forget(kept, limit)
        for start in range(0, planes.shape[1], STEP):
            size = min(STEP, planes.shape[1] - start)
            _split(planes, scan.mask, start, size, nibbles)
            for b in range(many):
                if _distances(nibbles, asked, begin + b, size, distances) < kept.cuts[b]:
                    if len(allowed):
                        drop(distances, size, allowed[start : start + size], np.uint8(limit))
                    if counts[b] + size > capacity:
                        make_room(kept, b, k)
                    take(distances, size, start, k, kept, b)
        for b in range(many):
            finish(kept, b, k, limit, found, begin + b)


@compiled
def bare_distances(first: int, last: int, scan: Any, asked: Any) -> int:
    """As `kernels.bare_distances`."""
    planes = scan.planes
    nibbles, distances = np.zeros((NIBBLES * len(planes), STEP), np.uint8), np.empty(STEP, np.uint8)
    seen = 0
    for begin in range(first, last, BATCH):
        for start in range(0, planes.shape[1], STEP):
            size = min(STEP, planes.shape[1] - start)
            _split(planes, scan.mask, start, size, nibbles)
            for q in range(begin, min(begin + BATCH, last)):
                seen += _distances(nibbles, asked, q, size, distances) < 1
    return seen
