"""Nested binary codes in word-planar order; only this file depends on the order of bits.

A code is cut into words of 16 bits, and each word of all items is stored in one array, a plane: row w of `Codes.words`
holds bits 16 w .. 16 w + 15. A search at B bits reads only the ceil(B / 16) planes of its prefix, and contiguous words
of equal width vectorise best. Inside a word the first bit is the lowest; bits past the length are 0.

An item may have several codes, its views: the distance of two items is then the smallest over all pairs of a view of
the one and a view of the other. The views of item i are the columns i V .. i V + V - 1 of `Codes.words`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import row_numbers
from multibit.codes.layout import require_length
from multibit.config import MAX_BITS
from multibit.errors import DataError, MismatchError, require_integer, require_kind
from multibit.files import building, fingerprint, read_arrays, write_arrays

WORD = 16
VERSION = 2  # of a file of codes with several views; the others are written as version 1
_REVERSED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)).reshape(256, 8), axis=1, bitorder="little")[:, 0]
"""Each byte with its bits reversed: converts between lowest-first (here) and highest-first (numpy)."""


@dataclass(frozen=True, eq=False)
class Codes:
    """The packed binary codes of N items, of `bits` bits each, of which every prefix is the code of that length.

    Create them with `Codes.binarize` (from relaxed or +-1 values) or `Codes.from_bits` (from 0/1 values): (N, B) of
    them, or (N, V, B) where every item has V codes, its views.

    Attributes:
        words: (ceil(bits / 16), N V) uint16; the order of bits is described in the module.
        bits: length of the code, 1 to 1,024.
        views: V, the codes of each item.
        model: fingerprint of the model that made the codes, "" where it is unknown; not compared.

    Raises:
        DataError: words of another type or shape than `bits` need, or codes that are not a whole number of items.

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
        >>> Codes.from_bits([[[1, 0], [1, 1]], [[0, 0], [1, 0]], [[0, 1], [1, 1]]])
        Codes(3 items, 2 bits, 2 views)
    """

    words: NDArray[np.uint16]
    bits: int
    views: int = 1
    model: str = ""

    def __post_init__(self) -> None:
        require_integer(self.bits, 1, "bits")
        wanted, hint = -(-self.bits // WORD), "Make codes with Codes.binarize, Codes.from_bits or Codes.from_bytes."
        require_kind(self.words, np.ndarray, "words", hint)
        if self.words.dtype != np.uint16 or self.words.ndim != 2 or len(self.words) != wanted:
            found = f"{self.words.dtype} {self.words.shape}"
            raise DataError(f"{self.bits} bits need uint16 ({wanted}, N), got {found}.", option="words", hint=hint)
        if self.views < 1 or self.words.shape[1] % self.views:
            raise DataError(f"{self.words.shape[1]} codes are not items of {self.views} each.", field="views")

    @classmethod
    def binarize(cls, values: ArrayLike, model: str = "") -> Codes:
        """Binarise (N, B) or (N, V, B) real values: bit 1 where value >= 0, so sign(0) = +1.

        Args:
            values: to binarise. model: fingerprint of the model that made them, "" where it is unknown.

        Raises:
            DataError: another shape, or not 1 to 1,024 columns, a NaN, or a 0/1 array (use `from_bits` for those).
        """
        array, views = _matrix(values)
        if array.dtype.kind in "bu" or _is_bits(array):
            raise DataError(
                f"0/1 values of type {array.dtype} have no sign.",
                field="values",
                hint="Pack them with Codes.from_bits.",
            )
        if array.dtype.kind == "f" and np.isnan(array).any():
            row, column = np.argwhere(np.isnan(array))[0]
            raise DataError(f"[{row}, {column}] is NaN, so it has no sign.", field="values")
        return cls._pack(array >= 0, views, model)

    @classmethod
    def from_bits(cls, values: ArrayLike) -> Codes:
        """Pack (N, B) or (N, V, B) values 0 or 1 (or bool).

        Raises:
            DataError: another shape, not 1 to 1,024 columns, or a value other than 0 and 1.
        """
        array, views = _matrix(values)
        wrong = (array != 0) & (array != 1)
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise DataError(
                f"[{row}, {column}] is {array[row, column]}; every bit must be 0 or 1.",
                field="values",
                hint="Binarise +-1 or real values with Codes.binarize.",
            )
        return cls._pack(array == 1, views)

    @classmethod
    def _pack(cls, bits: NDArray[np.bool_], views: int, model: str = "") -> Codes:
        return cls(_words(np.packbits(bits, axis=1, bitorder="little")), bits.shape[1], views, model)

    @classmethod
    def concatenate(cls, parts: Sequence[Codes]) -> Codes:
        """Join codes of one length, one number of views and one model, in order.

        Raises:
            DataError: no part, or parts of different lengths or views. MismatchError: codes of different models.
        """
        lengths, views = ({getattr(part, name) for part in parts} for name in ("bits", "views"))
        if len(lengths) != 1:
            raise DataError(f"need codes of one length to concatenate, got {sorted(lengths) or 'none'} bits.")
        if len(views) != 1:
            raise DataError(f"need one number of codes per item to concatenate, got {sorted(views)}.")
        models = {part.model for part in parts} - {""}
        if len(models) > 1:
            raise MismatchError(f"codes of different models cannot be joined: {', '.join(sorted(models))}.")
        model = parts[0].model if all(part.model for part in parts) else ""
        return cls(np.concatenate([part.words for part in parts], axis=1), lengths.pop(), views.pop(), model)

    def __len__(self) -> int:
        return int(self.words.shape[1]) // self.views

    def __repr__(self) -> str:
        views = f", {self.views} views" if self.views > 1 else ""
        return f"Codes({len(self)} items, {self.bits} bits{views})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Codes):
            return NotImplemented
        same = (self.bits, self.views) == (other.bits, other.views)
        return same and np.array_equal(self.words, other.words)

    __hash__ = None  # type: ignore[assignment]  # compared by value, so not hashable

    @property
    def nbytes(self) -> int:
        """Bytes of the packed payload, all views together."""
        return self.words.nbytes

    def prefix(self, bits: int) -> Codes:
        """The codes of the first `bits` bits: a view, except where a word is cut.

        Raises:
            DataError: `bits` is not in 1..B.
        """
        planes = self.planes(self.check_length(bits))
        if bits % WORD and bits != self.bits:
            planes = np.concatenate([planes[:-1], planes[-1:] & last_mask(bits)])
        return Codes(planes, bits, self.views, self.model)

    def columns(self, part: slice, views: int = 1) -> Codes:
        """The codes of some consecutive bits, or several codes of them that are side by side there.

        Args:
            part: first bit and one past the last, step 1; negative ones count from the end, as in Python.
            views: codes in this part, of equal length.

        Raises:
            DataError: a part that is empty, past the end, with a step, or not a whole number of codes.

        Example:
            >>> codes = Codes.from_bits([[1, 0, 1, 1]])
            >>> codes.columns(slice(1, 3)).to_bits(), codes.columns(slice(0, 4), views=2).to_bits().tolist()
            (array([[0, 1]], dtype=uint8), [[[1, 0], [1, 1]]])
        """
        start, stop = self._ends(part)
        width = stop - start
        require_integer(views, 1, "views")
        if width < 1 or width % views:
            raise DataError(f"bits {start} to {stop} are not {views} codes of equal length.", option="part")
        if not start and views == 1:
            return self.prefix(width)
        bits = width // views
        cut = [self._cut(start + view * bits, bits) for view in range(views)]  # (W, N) each
        return Codes(np.stack(cut, axis=2).reshape(len(cut[0]), -1), bits, views * self.views, self.model)

    def _ends(self, part: slice) -> tuple[int, int]:
        """First bit of a part, and one past its last."""
        require_kind(part, slice, "part", "Use slice(first bit, one past the last).")
        if part.step not in (None, 1):
            raise DataError(f"need consecutive bits, so step 1, got step {part.step!r}.", option="part")
        first, last = (
            int(end) + self.bits if isinstance(end, Integral) and end < 0 else end for end in (part.start, part.stop)
        )
        return require_integer(first or 0, 0, "part", most=self.bits), self.check_length(last)

    def _cut(self, start: int, bits: int) -> NDArray[np.uint16]:
        """(W, N) words of the codes of bits start .. start + bits - 1."""
        first, shift = divmod(start, WORD)
        count = -(-bits // WORD)
        planes = self.words[first : first + count] >> np.uint16(shift)
        if shift:
            after = self.words[first + 1 : first + 1 + count]
            planes[: len(after)] |= after << np.uint16(WORD - shift)
        planes[-1] &= last_mask(bits)
        return planes

    def planes(self, bits: int) -> NDArray[np.uint16]:
        """(W, N V) words of a prefix; of the last word only the bits of `last_mask(bits)` belong to it."""
        return self.words[: -(-bits // WORD)]

    def take(self, rows: ArrayLike) -> Codes:
        """The codes of some items, in the order given, or those where a mask is true.

        Raises:
            DataError: rows that are not integers in 0..N-1.
        """
        index = row_numbers(rows, len(self))
        if self.views > 1:
            index = (index[:, None] * self.views + np.arange(self.views)).ravel()
        return Codes(np.ascontiguousarray(self.words[:, index]), self.bits, self.views, self.model)

    def check_length(self, bits: int | None) -> int:
        """`bits`, or the full length when None.

        Raises:
            DataError: `bits` is not a whole number in 1..B.
        """
        if bits is None:
            return self.bits
        require_length(bits, self.bits)
        return int(bits)

    def require_one_view(self, what: str, instead: str) -> None:
        """Refuse items with several codes where only one is defined.

        Args:
            what: needs one code per item. instead: hint, what serves several.

        Raises:
            DataError: more than one view.

        Example:
            >>> Codes.from_bits([[[1], [0]]]).require_one_view("A .faiss file", "Search with `nearest`.")
            Traceback (most recent call last):
                ...
            multibit.errors.DataError: codes: A .faiss file needs one code per item, got 2. Search with `nearest`.
        """
        if self.views > 1:
            raise DataError(f"{what} needs one code per item, got {self.views}.", field="codes", hint=instead)

    def to_bits(self) -> NDArray[np.uint8]:
        """Unpack to (N, B) values 0 or 1; (N, V, B) where items have several views, as in all `to_` functions."""
        return self._by_item(np.unpackbits(self._bytes(), axis=1, bitorder="little", count=self.bits))

    def to_signs(self) -> NDArray[np.int8]:
        """Unpack to (N, B) values -1 or +1; (N, V, B) with several views."""
        return self.to_bits().astype(np.int8) * np.int8(2) - np.int8(1)

    def to_bytes(self) -> NDArray[np.uint8]:
        """(N, ceil(B/8)) uint8 in the bit order of numpy, for other tools: `np.unpackbits(x, axis=1)[:, :B]`.

        (N, V, ceil(B/8)) with several views.

        Example:
            >>> Codes.from_bits([[1, 0, 0, 0, 0, 0, 0, 1, 1]]).to_bytes()
            array([[129, 128]], dtype=uint8)
        """
        return self._by_item(_REVERSED[self._bytes()[:, : -(-self.bits // 8)]])

    @classmethod
    def from_bytes(cls, packed: ArrayLike, bits: int | None = None) -> Codes:
        """Read the output of `to_bytes` or `np.packbits(..., axis=-1)`: (N, bytes) or (N, V, bytes) uint8.

        Raises:
            DataError: another shape or type, or fewer bytes than `bits` need.
        """
        array, views = _by_code(np.asarray(packed))
        if array.ndim != 2 or array.dtype != np.uint8 or not array.shape[1]:
            raise DataError(f"need (items, bytes) uint8, got {array.dtype} {array.shape}.", field="packed codes")
        available = min(array.shape[1] * 8, MAX_BITS)
        length = array.shape[1] * 8 if bits is None else bits
        if not 1 <= length <= available:
            raise DataError(f"must be 1 to {available} for {array.shape[1]} bytes, got {length}.", option="bits")
        return cls(_words(_REVERSED[array]), array.shape[1] * 8, views).prefix(length)

    def _bytes(self) -> NDArray[np.uint8]:
        """(N V, bytes), lowest bit first; bits past the length are 0."""
        codes = np.ascontiguousarray(self.words.T, dtype="<u2")
        return codes.view(np.uint8).reshape(len(codes), 2 * len(self.words))

    def _by_item(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Rows of codes (N V, n) -> (N, V, n); unchanged with one view."""
        return rows if self.views == 1 else rows.reshape(len(self), self.views, rows.shape[1])

    def fingerprint(self) -> str:
        """16 hexadecimal digits of the content."""
        return fingerprint(self.bits, self.words, *self.more_views.values())

    @property
    def more_views(self) -> dict[str, int]:
        """What a file says about several views; empty with one, so that such files are those of earlier versions."""
        return {"views": self.views} if self.views > 1 else {}

    def save(self, path: Path | str) -> None:
        """Write to one file, atomically."""
        header = {"bits": self.bits, **self.more_views, **({"model": self.model} if self.model else {})}
        write_arrays(Path(path), {"words": self.words}, header, kind="codes", version=VERSION if self.more_views else 1)

    @classmethod
    def load(cls, path: Path | str) -> Codes:
        """Read a file that `save` wrote.

        Raises:
            FormatError: corrupt or truncated, newer, or another kind of file.
        """
        arrays, header = read_arrays(Path(path), kind="codes", version=VERSION, form=_Header)
        return cls.of_file(Path(path), arrays, header)

    @classmethod
    def of_file(cls, path: Path | str, arrays: Mapping[str, NDArray[Any]], header: CodesHeader) -> Codes:
        """The codes among the arrays of a file.

        Raises:
            FormatError: no codes of this length.
        """
        with building(Path(path)):
            words = arrays["words"]
            if words.dtype != np.uint16 or words.ndim != 2 or len(words) != -(-header.bits // WORD):
                raise ValueError(f"codes of {header.bits} bits as {words.dtype} {words.shape}")
            return cls(words, header.bits, header.views, header.model if isinstance(header, _Header) else "")


class CodesHeader(msgspec.Struct, kw_only=True):
    """What a file of codes must say about them."""

    bits: Annotated[int, msgspec.Meta(ge=1, le=MAX_BITS)]
    views: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1


class _Header(CodesHeader, kw_only=True):
    """What a file of codes alone says."""

    model: str = ""


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


def _by_code(array: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Values of items with several views (N, V, n) -> (N V, n), and V; other shapes as they are, and 1."""
    return (array, 1) if array.ndim != 3 else (array.reshape(-1, array.shape[2]), array.shape[1])


def _is_bits(array: NDArray[Any]) -> bool:
    """Whether all values are 0 or 1, both of which occur."""
    return bool(((array == 0) | (array == 1)).all()) and bool(array.any()) and not bool(array.all())


def _matrix(values: ArrayLike) -> tuple[NDArray[Any], int]:
    """Numbers of each code (N V, B), and V."""
    array, views = _by_code(np.asarray(values))
    if array.ndim != 2 or array.shape[1] < 1 or array.dtype.kind not in "biuf":
        raise DataError(f"need a matrix (items, bits) of numbers, got {array.dtype} {array.shape}.", field="values")
    if array.shape[1] > MAX_BITS:
        raise DataError(f"{array.shape[1]} bits; at most {MAX_BITS} are supported.", field="values")
    return array, views


def require_codes(value: object, option: str = "codes") -> None:
    """Refuse anything but codes, such as an array.

    Args:
        value: of an argument. option: name of the argument.

    Raises:
        DataError: of another kind.
    """
    require_kind(value, Codes, option, "Make them with Codes.binarize(values).")
