"""Compiled inner loops of relaxed queries: inner products with packed codes; see `codes.kernels` for the shapes."""

from __future__ import annotations

from typing import Any

from multibit.codes.compiling import compiled


@compiled
def _score(planes: Any, row: int, table: Any) -> float:
    """Inner product of one row with a relaxed query: the sum of the table's entry for each byte of the row."""
    score = 0.0
    for w in range(len(planes)):
        word = planes[w, row]
        score += table[2 * w, word & 0xFF] + table[2 * w + 1, word >> 8]
    return score


@compiled
def best_scores(first: int, last: int, planes: Any, allowed: Any, tables: Any, found: Any) -> None:
    """The k rows of the largest inner product with relaxed queries first..last, as a heap of (score, -row).

    Args:
        planes, allowed: as in `Scan`. tables: (Q, 2 W, 256) float64, contribution of every byte value at every byte
            position.
    """
    for q in range(first, last):
        rows, scores, count = found.rows[q], found.values[q], 0
        for row in range(planes.shape[1]):
            if not len(allowed) or allowed[row]:
                count = _insert(rows, scores, count, row, _score(planes, row, tables[q]))
        found.counts[q] = count


@compiled
def score_rows(first: int, last: int, planes: Any, tables: Any, found: Any) -> None:
    """Inner products of relaxed queries first..last with the rows that were found for them, into found.values."""
    for q in range(first, last):
        rows, scores = found.rows[q], found.values[q]
        for i in range(found.counts[q]):
            scores[i] = _score(planes, rows[i], tables[q])


@compiled
def _insert(rows: Any, scores: Any, count: int, row: int, score: float) -> int:
    """Keep the best in a heap whose root is the worst of them; of equal scores the later row is worse."""
    k = len(rows)
    if count < k:
        at = count
        while at > 0:
            parent = (at - 1) // 2
            if not (score < scores[parent] or (score == scores[parent] and row > rows[parent])):
                break
            rows[at], scores[at] = rows[parent], scores[parent]
            at = parent
        rows[at], scores[at] = row, score
        return count + 1
    if score <= scores[0]:  # rows come in order, so an equal score is a later row
        return count
    at = 0
    while 2 * at + 1 < k:
        child = 2 * at + 1
        other = child + 1
        if other < k and (
            scores[other] < scores[child] or (scores[other] == scores[child] and rows[other] > rows[child])
        ):
            child = other
        if not (scores[child] < score or (scores[child] == score and rows[child] > row)):
            break
        rows[at], scores[at] = rows[child], scores[child]
        at = child
    rows[at], scores[at] = row, score
    return count
