"""Nested binary codes in word-planar order; only this file depends on the order of bits.

A code is cut into words of 16 bits, and each word of all items is stored in one array, a plane: row w of `Codes.words`
holds bits 16 w .. 16 w + 15. A search at B bits reads only the ceil(B / 16) planes of its prefix, and contiguous words
of equal width vectorise best. Inside a word the first bit is the lowest; bits past the length are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import row_numbers
from multibit.config import MAX_BITS
from multibit.errors import DataError
from multibit.files import fingerprint, read_arrays, write_arrays

WORD = 16
_REVERSED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)).reshape(256, 8), axis=1, bitorder="little")[:, 0]
"""Each byte with its bits reversed: converts between lowest-first (here) and highest-first (numpy)."""


@dataclass(frozen=True, eq=False)
class Codes:
    """N packed binary codes of `bits` bits each, of which every prefix is the code of that length.

    Create them with `Codes.binarize` (from relaxed or +-1 values) or `Codes.from_bits` (from 0/1 values).

    Attributes:
        words: (ceil(bits / 16), N) uint16; the order of bits is described in the module.
        bits: length of the code, 1 to 1,024.

    Example:
        >>> codes = Codes.binarize([[0.3, -0.2, 0.0, -1.0], [-1, -1, 1, 1]])
        >>> codes.bits, len(codes)
        (4, 2)
        >>> codes.to_signs()  # sign(0) = +1
        array([[ 1, -1,  1, -1],
               [-1, -1,  1,  1]], dtype=int8)
        >>> codes.prefix(2).to_signs()
        array([[ 1, -1],
               [-1, -1]], dtype=int8)
    """

    words: NDArray[np.uint16]
    bits: int

    @classmethod
    def binarize(cls, values: ArrayLike) -> Codes:
        """Binarise (N, B) real values: bit 1 where value >= 0, so sign(0) = +1.

        Raises:
            DataError: not a matrix of 1 to 1,024 columns, a NaN, or a 0/1 array (use `from_bits` for those).
        """
        array = _matrix(values)
        if array.dtype.kind in "bu" or (array.dtype.kind == "i" and set(np.unique(array)) == {0, 1}):
            raise DataError(
                f"0/1 values of type {array.dtype} have no sign.",
                field="values",
                hint="Pack them with Codes.from_bits.",
            )
        if array.dtype.kind == "f" and np.isnan(array).any():
            row, column = np.argwhere(np.isnan(array))[0]
            raise DataError(f"row {row}, column {column} is NaN, so it has no sign.", field="values")
        return cls._pack(array >= 0)

    @classmethod
    def from_bits(cls, values: ArrayLike) -> Codes:
        """Pack (N, B) values 0 or 1 (or bool).

        Raises:
            DataError: not a matrix of 1 to 1,024 columns, or a value other than 0 and 1.
        """
        array = _matrix(values)
        wrong = (array != 0) & (array != 1)
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise DataError(
                f"row {row}, column {column} is {array[row, column]}; every bit must be 0 or 1.",
                field="values",
                hint="Binarise +-1 or real values with Codes.binarize.",
            )
        return cls._pack(array == 1)

    @classmethod
    def _pack(cls, bits: NDArray[np.bool_]) -> Codes:
        return cls(_words(np.packbits(bits, axis=1, bitorder="little")), bits.shape[1])

    @classmethod
    def concatenate(cls, parts: Sequence[Codes]) -> Codes:
        """Join codes of one length, in order.

        Raises:
            DataError: no part, or parts of different lengths.
        """
        lengths = {part.bits for part in parts}
        if len(lengths) != 1:
            raise DataError(f"need codes of one length to concatenate, got {sorted(lengths) or 'none'} bits.")
        return cls(np.concatenate([part.words for part in parts], axis=1), lengths.pop())

    def __len__(self) -> int:
        return int(self.words.shape[1])

    def __repr__(self) -> str:
        return f"Codes({len(self)} items, {self.bits} bits)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Codes):
            return NotImplemented
        return self.bits == other.bits and np.array_equal(self.words, other.words)

    __hash__ = None  # type: ignore[assignment]  # compared by value, so not hashable

    @property
    def nbytes(self) -> int:
        """Bytes of the packed payload."""
        return self.words.nbytes

    def prefix(self, bits: int) -> Codes:
        """The codes of the first `bits` bits: a view, except where a word is cut.

        Raises:
            DataError: `bits` is not in 1..B.
        """
        planes = self.planes(self.check_length(bits))
        if bits % WORD and bits != self.bits:
            planes = np.concatenate([planes[:-1], planes[-1:] & last_mask(bits)])
        return Codes(planes, bits)

    def planes(self, bits: int) -> NDArray[np.uint16]:
        """(W, N) words of a prefix; of the last word only the bits of `last_mask(bits)` belong to it."""
        return self.words[: -(-bits // WORD)]

    def take(self, rows: ArrayLike) -> Codes:
        """The codes of some rows, in the order given, or those where a mask is true.

        Raises:
            DataError: rows that are not integers in 0..N-1.
        """
        return Codes(np.ascontiguousarray(self.words[:, row_numbers(rows, len(self))]), self.bits)

    def check_length(self, bits: int | None) -> int:
        """`bits`, or the full length when None.

        Raises:
            DataError: `bits` is not a whole number in 1..B.
        """
        if bits is None:
            return self.bits
        given: Any = bits
        whole = isinstance(given, Integral) and not isinstance(given, bool)
        if not whole or not 1 <= bits <= self.bits:
            raise DataError(f"must be a whole number from 1 to {self.bits}, got {bits!r}.", option="bits")
        return int(bits)

    def to_bits(self) -> NDArray[np.uint8]:
        """Unpack to (N, B) values 0 or 1."""
        return np.unpackbits(self._bytes(), axis=1, bitorder="little", count=self.bits)

    def to_signs(self) -> NDArray[np.int8]:
        """Unpack to (N, B) values -1 or +1."""
        return self.to_bits().astype(np.int8) * np.int8(2) - np.int8(1)

    def to_bytes(self) -> NDArray[np.uint8]:
        """(N, ceil(B/8)) uint8 in the bit order of numpy, for other tools: `np.unpackbits(x, axis=1)[:, :B]`.

        Example:
            >>> Codes.from_bits([[1, 0, 0, 0, 0, 0, 0, 1, 1]]).to_bytes()
            array([[129, 128]], dtype=uint8)
        """
        return _REVERSED[self._bytes()[:, : -(-self.bits // 8)]]

    @classmethod
    def from_bytes(cls, packed: ArrayLike, bits: int | None = None) -> Codes:
        """Read the output of `to_bytes` or `np.packbits(..., axis=1)`: (N, bytes) uint8.

        Raises:
            DataError: not a matrix of uint8, or fewer bytes than `bits` need.
        """
        array = np.asarray(packed)
        if array.ndim != 2 or array.dtype != np.uint8 or not array.shape[1]:
            raise DataError(f"need (items, bytes) uint8, got {array.dtype} {array.shape}.", field="packed codes")
        available = min(array.shape[1] * 8, MAX_BITS)
        length = array.shape[1] * 8 if bits is None else bits
        if not 1 <= length <= available:
            raise DataError(f"must be 1 to {available} for {array.shape[1]} bytes, got {length}.", option="bits")
        return cls(_words(_REVERSED[array]), array.shape[1] * 8).prefix(length)

    def _bytes(self) -> NDArray[np.uint8]:
        """(N, bytes), lowest bit first; bits past the length are 0."""
        items = np.ascontiguousarray(self.words.T, dtype="<u2")
        return items.view(np.uint8).reshape(len(self), 2 * len(self.words))

    def fingerprint(self) -> str:
        """16 hexadecimal digits of the content."""
        return fingerprint(self.bits, self.words)

    def save(self, path: Path | str) -> None:
        """Write to one file, atomically."""
        write_arrays(Path(path), {"words": self.words}, {"bits": self.bits}, kind="codes", version=1)

    @classmethod
    def load(cls, path: Path | str) -> Codes:
        """Read a file that `save` wrote.

        Raises:
            FormatError: corrupt or truncated, newer, or another kind of file.
        """
        arrays, header = read_arrays(Path(path), kind="codes", version=1)
        return cls(arrays["words"], header["bits"])


def last_mask(bits: int) -> np.uint16:
    """Mask of the bits of the last word that belong to a prefix of `bits` bits.

    Example:
        >>> bin(last_mask(20)), bin(last_mask(32))
        ('0b1111', '0b1111111111111111')
    """
    inside = bits % WORD or WORD
    return np.uint16((1 << inside) - 1)


def _words(packed: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """(N, bytes) lowest bit first -> planes (W, N)."""
    if packed.shape[1] % 2:
        packed = np.concatenate([packed, np.zeros((len(packed), 1), np.uint8)], axis=1)
    return np.ascontiguousarray(np.ascontiguousarray(packed).view("<u2").T, dtype=np.uint16)


def _matrix(values: ArrayLike) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 2 or array.shape[1] < 1 or array.dtype.kind not in "biuf":
        raise DataError(f"need a matrix (items, bits) of numbers, got {array.dtype} {array.shape}.", field="values")
    if array.shape[1] > MAX_BITS:
        raise DataError(f"{array.shape[1]} bits; at most {MAX_BITS} are supported.", field="values")
    return array
