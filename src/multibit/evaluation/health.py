"""Statistics of the bits: balance, entropy, correlation, distinct codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import FloatArray
from multibit.codes import Codes, Modality
from multibit.codes.items import Direction
from multibit.errors import DataError
from multibit.evaluation.ranking import Rankings

BLOCK = 1 << 16  # codes whose bits are held as real values at once

SEARCHED_BY: dict[Modality, Direction] = {"image": "t2i", "text": "i2t"}
"""Modality -> direction that searches it."""


@dataclass(frozen=True, eq=False)
class CodeHealth:
    """Statistics of the bits of a set of codes.

    Attributes:
        balance: (B,) share of ones of each bit; 0.5 is best.
        entropy: (B,) entropy of each bit; 1 is best, 0 is a dead bit.
        correlation: (B, B) correlation of two bits; 0 with a dead bit.
        distinct: length -> number of different codes.
        blocks: bits of each scale, local to long range.
    """

    balance: FloatArray
    entropy: FloatArray
    correlation: FloatArray
    distinct: dict[int, int]
    blocks: tuple[int, ...]

    @property
    def dead(self) -> NDArray[np.int64]:
        """Positions of bits that are the same in all codes."""
        return np.flatnonzero((self.balance == 0) | (self.balance == 1))

    def mean_correlation(self, start: int, stop: int) -> float:
        """Mean |correlation| of two different bits in start..stop; 0 for fewer than two."""
        block = np.abs(self.correlation[start:stop, start:stop])
        size = len(block)
        return float((block.sum() - np.trace(block)) / (size * (size - 1))) if size > 1 else 0.0


def code_health(codes: Codes, lengths: Sequence[int], blocks: Sequence[int] = ()) -> CodeHealth:
    """Compute the statistics of the bits. All views of an item count as codes.

    Args:
        codes: of N >= 1 items. lengths: at which to count distinct codes. blocks: bits of each scale, if known.

    Raises:
        DataError: no codes, or a length beyond them.

    Example:
        >>> health = code_health(Codes.from_bits([[1, 0, 1], [1, 1, 0], [1, 0, 1], [1, 1, 0]]), (1, 3))
        >>> health.balance, health.dead, health.distinct
        (array([1. , 0.5, 0.5]), array([0]), {1: 1, 3: 2})
    """
    if not len(codes):
        raise DataError("need at least 1 code, got 0.", field="codes")
    codes = Codes(codes.words, codes.bits)
    together = np.zeros(
        (codes.bits, codes.bits)
    )  # codes in which both of two bits are 1; sums of floats are exact here
    for start in range(0, len(codes), BLOCK):
        bits = codes.take(np.arange(start, min(start + BLOCK, len(codes)))).to_bits().astype(np.float32)
        together += bits.T @ bits
    share = np.diag(together) / len(codes)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share))
    deviation = np.sqrt(share * (1 - share))
    covariance = together / len(codes) - np.outer(share, share)
    scale = np.outer(deviation, deviation)
    correlation = np.divide(covariance, scale, out=np.zeros_like(covariance), where=scale > 0)
    distinct = {length: len(np.unique(codes.prefix(length).to_bytes(), axis=0)) for length in lengths}
    return CodeHealth(share, np.nan_to_num(entropy), correlation, distinct, tuple(blocks))


def code_warnings(health: CodeHealth, items: int, modality: str) -> list[str]:
    """Sentences about codes that use too few of their bits, so that their numbers say little about the method.

    Bits are constant, or a length has fewer than 2^(bits/2) different codes, where a quarter of the items is more.

    Args:
        health: of the codes. items: number of codes. modality: of the codes, for the sentence.

    Example:
        >>> code_warnings(code_health(Codes.from_bits([[1, 0], [1, 1]]), (2,)), items=2, modality="image")
        ['1 of 2 bits is constant in the image codes: [0].']
    """
    if health.distinct[max(health.distinct)] == 1:
        return [f"All {modality} codes are equal."]
    found = []
    if dead := len(health.dead):
        bits = f"{dead} of {len(health.balance)} bits {'is' if dead == 1 else 'are'} constant"
        more = ", and more" if dead > 8 else ""
        found.append(f"{bits} in the {modality} codes: {health.dead[:8].tolist()}{more}.")
    for length, distinct in health.distinct.items():
        expected = min(2 ** (length / 2), items / 4)
        if distinct < expected:
            codes = f"{distinct:,} different {modality} codes of {length} bits for {items:,} items"
            found.append(f"Only {codes}; {expected:,.0f} expected.")
    return found


@dataclass(frozen=True, eq=False)
class BitUse:
    """How the codes of a database use their bits.

    Attributes:
        health: modality -> statistics of its bits. warnings: sentences about codes that use too few of them.
    """

    health: dict[Modality, CodeHealth]
    warnings: list[str]


def bit_use(rankings: Rankings, blocks: Sequence[int] = ()) -> BitUse:
    """Statistics of the bits of the database that rankings search.

    Where each length has codes of its own, the longest ones give the statistics and all of them the warnings.

    Args:
        rankings: of the whole database. blocks: bits of each scale, if known.
    """
    health, warnings = {}, []
    for modality, direction in SEARCHED_BY.items():
        codes = {bits: rankings[direction, bits].database for bits in sorted(rankings.lengths)}
        different = {id(each): each for each in codes.values()}.values()
        parts = [code_health(each, [bits for bits in codes if codes[bits] is each], blocks) for each in different]
        for part in parts:
            name = modality if len(parts) == 1 else f"{max(part.distinct)}-bit {modality}"
            warnings += code_warnings(part, len(rankings.database), name)
        distinct = {bits: count for part in parts for bits, count in part.distinct.items()}
        health[modality] = replace(parts[-1], distinct=distinct)
    return BitUse(health, warnings)
