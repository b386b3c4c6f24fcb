"""Nested binary codes in word-planar order. The only file that knows the order of bits.

A code is stored as words of 16 | 16 | 32 | 64 | 64 ... bits, each word of all items in one array (a plane). The usual
lengths 16, 32, 64, 128 end on word boundaries, so a search at B bits reads only the planes of its prefix.
Bit j of a code is bit j - start of its word, lowest first; bits past the length are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.errors import DataError
from multibit.files import fingerprint, read_arrays, write_arrays

Plane = NDArray[Any]  # unsigned integers
Words = tuple[Plane, Plane, Plane, Plane]
"""The planes: uint16 (N,), uint16 (N,), uint32 (N,), then all 64-bit words, uint64 (K, N)."""

MAX_BITS = 1024
_NAMES = ("word16a", "word16b", "word32", "words64")
_TYPES = (np.uint16, np.uint16, np.uint32, np.uint64)


@dataclass(frozen=True, eq=False)
class Codes:
    """N packed binary codes of `bits` bits each, of which every prefix is the code of that length.

    Make them with `Codes.from_signs` (from relaxed or +-1 values) or `Codes.from_bits` (from 0/1 values).

    Attributes:
        words: the planes, see the module.
        bits: length of the code, 1 to 1,024.

    Example:
        >>> codes = Codes.from_signs([[0.3, -0.2, 0.0, -1.0], [-1, -1, 1, 1]])
        >>> codes.bits, len(codes)
        (4, 2)
        >>> codes.to_signs()  # sign(0) = +1
        array([[ 1, -1,  1, -1],
               [-1, -1,  1,  1]], dtype=int8)
        >>> codes.prefix(2).to_signs()
        array([[ 1, -1],
               [-1, -1]], dtype=int8)
    """

    words: Words
    bits: int

    @classmethod
    def from_signs(cls, values: ArrayLike) -> Codes:
        """Binarise (N, B) real values: bit 1 where value >= 0, so sign(0) = +1.

        Raises:
            DataError: not a matrix, no column, more than 1,024, a NaN, or a 0/1 array (that is for `from_bits`).
        """
        array = _matrix(values)
        if array.dtype.kind in "bu":
            raise DataError(f"values of type {array.dtype} have no sign; give 0/1 values to Codes.from_bits.")
        if array.dtype.kind == "f" and np.isnan(array).any():
            row, column = np.argwhere(np.isnan(array))[0]
            raise DataError(f"values: row {row}, column {column} is NaN, so it has no sign.")
        return cls._pack(array >= 0)

    @classmethod
    def from_bits(cls, values: ArrayLike) -> Codes:
        """Pack (N, B) values 0 or 1 (or bool).

        Raises:
            DataError: not a matrix, no column, more than 1,024, or another value.
        """
        array = _matrix(values)
        if not ((array == 0) | (array == 1)).all():
            raise DataError("values: every bit must be 0 or 1; give +-1 or real values to Codes.from_signs.")
        return cls._pack(array == 1)

    @classmethod
    def _pack(cls, bits: NDArray[np.bool_]) -> Codes:
        count, length = bits.shape
        planes = [_pack_word(bits[:, start : start + width], width) for start, width in _layout(length)]
        first, second, third = (planes[i] if i < len(planes) else np.zeros(0, _TYPES[i]) for i in range(3))
        rest = np.stack(planes[3:]) if length > 64 else np.zeros((0, count), np.uint64)
        return cls((first, second, third, rest), length)

    @classmethod
    def concatenate(cls, parts: Sequence[Codes]) -> Codes:
        """Join codes of one length, in order.

        Raises:
            DataError: no part, or parts of different lengths.
        """
        lengths = {part.bits for part in parts}
        if len(lengths) != 1:
            raise DataError(f"need codes of one length to join, got {sorted(lengths) or 'none'}.")
        first, second, third, rest = (np.concatenate([part.words[i] for part in parts], axis=-1) for i in range(4))
        return cls((first, second, third, rest), lengths.pop())

    def __len__(self) -> int:
        return len(self.words[0])

    def __repr__(self) -> str:
        return f"Codes({len(self)} items, {self.bits} bits)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Codes):
            return NotImplemented
        return self.bits == other.bits and all(
            np.array_equal(mine, theirs) for mine, theirs in zip(self.words, other.words, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays inside: equal by value, not usable as a key

    @property
    def nbytes(self) -> int:
        """Bytes of the packed payload."""
        return sum(plane.nbytes for plane in self.words)

    def prefix(self, bits: int) -> Codes:
        """The codes of the first `bits` bits: the planes themselves, only a cut word is copied.

        Raises:
            DataError: `bits` is not in 1..B.
        """
        masks = prefix_masks(self.check_length(bits))
        first, second, third = (_cut(self.words[i], masks[i]) for i in range(3))
        rest = self.words[3][: len(masks[3])]
        if bits > 64 and bits % 64:
            rest = rest & masks[3][:, None]
        return Codes((first, second, third, rest), bits)

    def take(self, rows: ArrayLike) -> Codes:
        """The codes of some rows, in the order given."""
        index = np.asarray(rows)
        first, second, third = (plane[index] if len(plane) else plane for plane in self.words[:3])
        return Codes((first, second, third, self.words[3][:, index]), self.bits)

    def check_length(self, bits: int | None) -> int:
        """`bits`, or the full length when None.

        Raises:
            DataError: `bits` is not in 1..B.
        """
        if bits is None:
            return self.bits
        if not 1 <= bits <= self.bits:
            raise DataError(f"bits: asked for a prefix of {bits} bits, these codes have 1 to {self.bits}.")
        return int(bits)

    def to_bits(self) -> NDArray[np.uint8]:
        """Unpack to (N, B) values 0 or 1."""
        planes: list[NDArray[Any]] = [*(plane for plane in self.words[:3] if len(plane)), *self.words[3]]
        columns = [_unpack_word(plane) for plane in planes]
        if not columns:
            return np.zeros((0, self.bits), np.uint8)
        return np.concatenate(columns, axis=1)[:, : self.bits]

    def to_signs(self) -> NDArray[np.int8]:
        """Unpack to (N, B) values -1 or +1."""
        return self.to_bits().astype(np.int8) * np.int8(2) - np.int8(1)

    def to_bytes(self) -> NDArray[np.uint8]:
        """(N, ceil(B/8)) bytes in numpy's own bit order, for other tools: `np.unpackbits(x, axis=1)[:, :B]`.

        Example:
            >>> Codes.from_bits([[1, 0, 0, 0, 0, 0, 0, 1, 1]]).to_bytes()
            array([[129, 128]], dtype=uint8)
        """
        return np.packbits(self.to_bits(), axis=1)

    @classmethod
    def from_bytes(cls, packed: ArrayLike, bits: int | None = None) -> Codes:
        """Read what `to_bytes` or `np.packbits(..., axis=1)` made: (N, bytes) uint8."""
        array = _matrix(packed)
        if array.dtype != np.uint8:
            raise DataError(f"packed codes must be uint8, got {array.dtype}.")
        available = array.shape[1] * 8
        length = available if bits is None else bits
        if not 1 <= length <= available:
            raise DataError(f"bits: asked for {length}, {array.shape[1]} bytes hold 1 to {available}.")
        return cls.from_bits(np.unpackbits(array, axis=1)[:, :length])

    def fingerprint(self) -> str:
        """16 hexadecimal digits of the content."""
        return fingerprint(self.bits, *self.words)

    def save(self, path: Path | str) -> None:
        """Write to one file, in one step."""
        write_arrays(Path(path), self.to_arrays(), {"bits": self.bits}, kind="codes", version=1)

    @classmethod
    def load(cls, path: Path | str) -> Codes:
        """Read what `save` wrote.

        Raises:
            FormatError: torn, newer, or another kind of file.
        """
        arrays, header = read_arrays(Path(path), kind="codes", version=1)
        return cls.from_arrays(arrays, header["bits"])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The planes by name, for a file."""
        return dict(zip(_NAMES, self.words, strict=True))

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], bits: int) -> Codes:
        """Inverse of `to_arrays`."""
        first, second, third, rest = (arrays[name] for name in _NAMES)
        return cls((first, second, third, rest), bits)


def prefix_masks(bits: int) -> Words:
    """Which bits of each word belong to a prefix of `bits` bits: ones there, zeros after.

    Returns:
        Three arrays of one word, then (K,) 64-bit words, K as many as the prefix touches.

    Example:
        >>> [hex(int(mask[0])) for mask in prefix_masks(20)[:3]]
        ['0xffff', '0xf', '0x0']
    """
    ones = Codes.from_bits(np.ones((1, bits), np.uint8)).words
    first, second, third = (plane if len(plane) else np.zeros(1, plane.dtype) for plane in ones[:3])
    return first, second, third, ones[3][:, 0]


def _matrix(values: ArrayLike) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 2 or array.shape[1] < 1 or array.dtype.kind not in "biuf":
        raise DataError(f"codes: need a matrix (items, bits) of numbers, got {array.dtype} of shape {array.shape}.")
    if array.shape[1] > MAX_BITS:
        raise DataError(f"codes: {array.shape[1]} bits, at most {MAX_BITS} are supported.")
    return array


def _layout(length: int) -> list[tuple[int, int]]:
    """(start, width) of each word that a code of `length` bits needs."""
    words = [(0, 16), (16, 16), (32, 32)] + [(start, 64) for start in range(64, length, 64)]
    return [(start, width) for start, width in words if start < length]


def _pack_word(bits: NDArray[np.bool_], width: int) -> NDArray[Any]:
    full = np.zeros((len(bits), width), np.bool_)
    full[:, : bits.shape[1]] = bits
    packed = np.packbits(full, axis=1, bitorder="little")
    return packed.view(f"<u{width // 8}")[:, 0].astype(f"u{width // 8}")


def _unpack_word(plane: NDArray[Any]) -> NDArray[np.uint8]:
    width = plane.dtype.itemsize
    as_bytes = np.ascontiguousarray(plane.astype(f"<u{width}")).view(np.uint8).reshape(len(plane), width)
    return np.unpackbits(as_bytes, axis=1, bitorder="little")


def _cut(plane: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    if not len(plane) or not mask[0]:
        return plane[:0]
    full = np.iinfo(plane.dtype).max
    return plane if mask[0] == full else plane & mask[0]
