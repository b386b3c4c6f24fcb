"""Codes as integers of 16, 16, 32 and then 64 bits, so that a short prefix reads few bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multibit.codes import Codes
from multibit.codes.packing import WORD, last_mask


class Word(NamedTuple):
    """A word of a code.

    Attributes:
        name: of its column. first: its first 16-bit plane, see `Codes.words`. bits: its width. used: bits of it that
            belong to the code; the first bit is the lowest.
    """

    name: str
    first: int
    bits: int
    used: int

    @property
    def type(self) -> str:
        """The type of its column in ClickHouse."""
        return f"UInt{self.bits}"


def words_of(bits: int) -> list[Word]:
    """The words of a code.

    Example:
        >>> [(word.name, word.type, word.used) for word in words_of(40)]
        [('w0', 'UInt16', 16), ('w1', 'UInt16', 16), ('w2', 'UInt32', 8)]
    """
    words: list[Word] = []
    start = 0
    while start < bits:
        width = (16, 16, 32)[len(words)] if len(words) < 3 else 64
        words.append(Word(f"w{len(words)}", start // WORD, width, min(width, bits - start)))
        start += width
    return words


def to_words(codes: Codes) -> list[tuple[Word, NDArray[Any]]]:
    """The words of N codes, each with its values (N,)."""
    return [(word, _values(codes.words, word)) for word in words_of(codes.bits)]


def query_words(codes: Codes) -> list[tuple[Word, NDArray[Any]]]:
    """As `to_words`, of queries whose length is the prefix."""
    return to_words(codes.prefix(codes.bits))


def to_codes(words: Mapping[str, NDArray[Any]], bits: int) -> Codes:
    """Inverse of `to_words`: name -> values.

    Example:
        >>> codes = Codes.from_bits(np.arange(3 * 70).reshape(3, 70) % 3 == 0)
        >>> to_codes({word.name: values for word, values in to_words(codes)}, 70) == codes
        True
    """
    planes = []
    for word in words_of(bits):
        values = words[word.name].astype(np.uint64)
        planes += [(values >> np.uint64(shift)).astype(np.uint16) for shift in range(0, word.used, WORD)]
    planes[-1] = planes[-1] & last_mask(bits)
    return Codes(np.stack(planes), bits)


def _values(planes: NDArray[np.uint16], word: Word) -> NDArray[Any]:
    value = np.zeros(planes.shape[1], np.uint64)
    for place, plane in enumerate(planes[word.first : word.first + word.bits // WORD]):
        value |= plane.astype(np.uint64) << np.uint64(WORD * place)
    return value.astype(f"uint{word.bits}")
