"""Compiled inner loops of the search for near-duplicates; see `codes.duplicates` for the idea."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from multibit.codes.compiling import compiled
from multibit.codes.kernels import CHUNK, fill_distances
from multibit.codes.vectors import ones


class Blocks(NamedTuple):
    """Comparisons of different codes of U items that are sorted into buckets.

    Attributes:
        planes: (W, n) uint16, codes in the order of the buckets. queries: (n, W) uint16, the same codes.
        nodes: (n,) int64, which of the U items each is of.
        begins, ends, stops: (B,) int64; a block compares each of the codes begin..end - 1 with the later ones before
            stop, the end of its bucket.
    """

    planes: Any
    queries: Any
    nodes: Any
    begins: Any
    ends: Any
    stops: Any


@compiled
def root_of(parents: Any, node: Any) -> Any:
    """The smallest member of the group of a node; halves the path to it."""
    while parents[node] != node:
        parents[node] = parents[parents[node]]
        node = parents[node]
    return node


@compiled
def unite(parents: Any, a: Any, b: Any) -> None:
    """Join the groups of two nodes."""
    a, b = root_of(parents, a), root_of(parents, b)
    if a < b:
        parents[b] = a
    else:
        parents[a] = b


@compiled
def unite_all(parents: Any, left: Any, right: Any) -> None:
    """Join the groups of pairs of nodes."""
    for i in range(len(left)):
        unite(parents, left[i], right[i])


@compiled
def roots(parents: Any) -> None:
    """Replace each parent by the root."""
    for node in range(len(parents)):
        parents[node] = parents[parents[node]] if parents[node] < node else node


@compiled
def roots_of(parents: Any, nodes: Any) -> Any:
    """(n,) int64, the root of each of n nodes."""
    out = np.empty(len(nodes), np.int64)
    for i in range(len(nodes)):
        out[i] = root_of(parents, nodes[i])
    return out


@compiled
def in_groups(parents: Any) -> Any:
    """(N,) whether each node is in a group of several, where each parent is the root."""
    out = np.zeros(len(parents), np.bool_)
    for node in range(len(parents)):
        if parents[node] != node:
            out[node] = out[parents[node]] = True
    return out


@compiled
def join_near(first: int, last: int, blocks: Any, cuts: Any, limit: int, parents: Any) -> None:
    """Join codes nearer than `limit`, in shares first..last of the blocks.

    Args:
        cuts: (S + 1,) int64, first block of each share. parents: (S, U) int64, groups that each share starts from.
    """
    chunk = np.empty(CHUNK, np.uint16)
    for share in range(first, last):
        known = parents[share]
        for block in range(cuts[share], cuts[share + 1]):
            if not _is_one_group(blocks.nodes, blocks.begins[block], blocks.stops[block], known):
                _join_block(blocks, block, limit, known, chunk)


@compiled
def _is_one_group(nodes: Any, begin: int, stop: int, parents: Any) -> bool:
    """Whether codes are all in one group already."""
    group = root_of(parents, nodes[begin])
    for i in range(begin + 1, stop):  # noqa: SIM110  # compiled
        if root_of(parents, nodes[i]) != group:
            return False
    return True


@compiled
def _join_block(blocks: Any, block: int, limit: int, parents: Any, chunk: Any) -> None:
    """Join the near codes of one block; the later codes are read in chunks that stay in the first-level cache."""
    planes, queries, nodes = blocks.planes, blocks.queries, blocks.nodes
    begin, end, stop = blocks.begins[block], blocks.ends[block], blocks.stops[block]
    for start in range(begin + 1, stop, CHUNK):
        for i in range(begin, min(end, start + CHUNK)):
            later = max(start, i + 1)
            near = chunk[: max(min(start + CHUNK, stop) - later, 0)]
            if fill_distances(planes, queries, i, 0xFFFF, later, near, limit):
                group = root_of(parents, nodes[i])
                for j in range(len(near)):
                    if near[j] < limit and parents[nodes[later + j]] != group:
                        unite(parents, nodes[i], nodes[later + j])
                        group = root_of(parents, nodes[i])


@compiled
def distances_between(first: int, last: int, left: Any, right: Any, views: int, out: Any) -> None:
    """Distances of items of two arrays, each of the nearest pair of views, for items first..last.

    Args:
        left, right: (W, n V) uint16, without bits past the prefix.
    """
    for i in range(first, last):
        least = np.int64(16 * len(left))
        for a in range(views * i, views * (i + 1)):
            for b in range(views * i, views * (i + 1)):
                distance = np.int64(0)
                for w in range(len(left)):
                    distance += np.int64(ones(np.uint16(left[w, a] ^ right[w, b])))
                least = min(least, distance)
        out[i] = least
