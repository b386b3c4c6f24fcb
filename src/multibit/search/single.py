"""One query at an index on disk, in a process that ends after it: without Arrow and without compiled kernels.

Loading these takes longer than the search itself. The answers are those of `Index.search`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.codes.packing import Codes, last_mask
from multibit.errors import FormatError
from multibit.files import read_arrays, read_json
from multibit.search.arrow_rows import metadata_rows
from multibit.search.hits import Hit

MANIFEST, VERSION, PART_VERSION = "manifest.json", 3, 1  # as `multibit.search.storage` writes them
BLOCK = 1 << 18  # codes compared at a time


def search_once(
    path: Path, query: Codes, k: int, bits: int, *, model: str, modality: str, max_distance: int | None = None
) -> list[Hit] | None:
    """The k nearest items of one query by (distance, age).

    Args:
        path: of the index. query: one code, at least `bits` long. k: at least 1. bits: prefix length.
        model, modality: that the index must have. max_distance: largest distance of a hit.

    Returns:
        The hits; None for an index that only `Index` reads: a single file of an earlier version, several codes per
        item, shorter codes, another model, or anything that is not as expected, which `Index` reports.
    """
    with contextlib.suppress(FormatError, OSError, KeyError, ValueError, TypeError, IndexError):
        manifest = read_json(path / MANIFEST, kind="index", version=VERSION)
        if (
            _is_whole(manifest)
            and manifest["views"] == query.views == 1
            and manifest["bits"] >= bits
            and (manifest["model"], manifest["modality"]) == (model, modality)
        ):
            reach = bits if max_distance is None else min(bits, max_distance)
            return _search(path, manifest["segments"], query, k, bits, reach)
    return None


def _is_whole(manifest: Mapping[str, Any]) -> bool:
    inner = {name: value for name, value in manifest.items() if name not in ("format", "xxh3")}
    return xxhash.xxh3_128_hexdigest(json.dumps(inner, sort_keys=True).encode()) == str(manifest["xxh3"])


def _search(path: Path, entries: Any, query: Codes, k: int, bits: int, reach: int) -> list[Hit]:
    segments = [read_arrays(path / entry["file"], kind="index segment", version=PART_VERSION, verify=False)
                for entry in entries]  # fmt: skip
    found = []
    for number, (entry, (arrays, _)) in enumerate(zip(entries, segments, strict=True)):
        distances = hamming_distances_of_one(query, arrays["words"], bits)
        if entry["removed"] is not None:
            packed, _ = read_arrays(path / entry["removed"], kind="removed rows", version=PART_VERSION)
            distances[np.unpackbits(packed["bitmap"], count=len(distances)).astype(bool)] = bits + 1
        rows = nearest_rows(distances, k, reach)
        found += [(int(distances[row]), number, row) for row in rows.tolist()]
    best = sorted(found)[:k]
    return [
        Hit(rank, _id(*segments[number], row), distance, bits, _payload(*segments[number], row))
        for rank, (distance, number, row) in enumerate(best, start=1)
    ]


def hamming_distances_of_one(query: Codes, words: NDArray[np.uint16], bits: int) -> NDArray[np.uint16]:
    """(N,) uint16 distances of one code to (W, N) planes at a prefix length.

    Example:
        >>> codes = Codes.binarize([[1, 1, 1], [1, -1, 1], [-1, -1, -1]])
        >>> hamming_distances_of_one(codes.take([0]), codes.words, 2)
        array([0, 1, 2], dtype=uint16)
    """
    asked = query.planes(bits)[:, 0]
    planes = words[: len(asked)]
    out = np.zeros(words.shape[1], np.uint16)
    for start in range(0, len(out), BLOCK):
        part = out[start : start + BLOCK]
        for number, (plane, word) in enumerate(zip(planes, asked, strict=True)):
            different = plane[start : start + BLOCK] ^ word
            if number == len(asked) - 1:
                different &= last_mask(bits)
            part += _count_ones(different)
    return out


def nearest_rows(distances: NDArray[np.uint16], k: int, reach: int) -> Rows:
    """The k rows of the smallest distances up to `reach`, by (distance, row).

    Example:
        >>> nearest_rows(np.array([3, 1, 2, 1, 9], np.uint16), 3, 8)
        array([1, 3, 2])
    """
    counts = np.cumsum(np.bincount(distances, minlength=reach + 1)[: reach + 1])  # rows within each distance
    cut = min(int(np.searchsorted(counts, k)), reach)
    rows = np.flatnonzero(distances <= cut)
    return np.asarray(rows[np.argsort(distances[rows], kind="stable")][:k], np.int64)


def _count_ones(words: NDArray[np.uint16]) -> NDArray[np.uint8]:
    if hasattr(np, "bitwise_count"):  # numpy 2
        ones: NDArray[np.uint8] = np.bitwise_count(words)
        return ones
    return _table()[words]


def _table() -> NDArray[np.uint8]:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    ones: NDArray[np.uint8] = np.unpackbits(every, axis=1).sum(axis=1, dtype=np.uint8)
    return ones


def _id(arrays: Mapping[str, Any], header: Mapping[str, Any], row: int) -> str | int:
    if header["ids"] == "range":
        return int(header["first_id"]) + row
    if header["ids"] == "integer":
        return int(arrays["ids"][row])
    ends = arrays["ids_offsets"]
    return bytes(arrays["ids"][ends[row] : ends[row + 1]]).decode()


def _payload(arrays: Mapping[str, Any], header: Mapping[str, Any], row: int) -> dict[str, Any]:
    if "metadata" not in arrays:
        return {}
    return metadata_rows(arrays["metadata"].view(np.uint8), header["fields"], [row])[0]
