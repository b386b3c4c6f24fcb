"""Where the code of each length is in the stored code of an item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from multibit.errors import DataError


def require_length(bits: Any, longest: int) -> None:
    """Refuse a code length that no code has.

    Raises:
        DataError: not a whole number from 1 to the longest.
    """
    whole = isinstance(bits, Integral) and not isinstance(bits, bool)
    if not whole or not 1 <= bits <= longest:
        raise DataError(f"must be a whole number from 1 to {longest}, got {bits!r}.", option="bits")


@dataclass(frozen=True)
class Layout:
    """Where the code of each length is in the stored code: one nested code, or a code for each length, side by side.

    Attributes:
        lengths: code lengths, ascending. nested: every prefix of the stored code is the code of that length.
        views: codes of an item at each length; the distance of two items is that of their nearest codes.

    Example:
        >>> Layout((16, 32)).stored, Layout((16, 32), nested=False).stored
        (32, 48)
        >>> Layout((16, 32), nested=False).part(32), Layout((16, 32), nested=False).part(8)
        (slice(16, 48, None), slice(0, 16, None))
    """

    lengths: tuple[int, ...]
    nested: bool = True
    views: int = 1

    @property
    def longest(self) -> int:
        """The longest length."""
        return self.lengths[-1]

    @property
    def stored(self) -> int:
        """Bits that an item of one modality needs to be served at all lengths."""
        return self.views * (self.longest if self.nested else sum(self.lengths))

    def serving(self, bits: int) -> int:
        """The length of the code whose prefix is the code of `bits` bits: the shortest that is long enough.

        Raises:
            DataError: `bits` is not a whole number from 1 to the longest code.
        """
        require_length(bits, self.longest)
        return self.longest if self.nested else next(length for length in self.lengths if length >= bits)

    def part(self, bits: int) -> slice:
        """Columns of the stored code with the code whose prefix is the code of `bits` bits, view after view.

        Raises:
            DataError: `bits` is longer than the longest code.
        """
        chosen = self.serving(bits)
        start = 0 if self.nested else sum(length for length in self.lengths if length < chosen)
        return slice(self.views * start, self.views * (start + chosen))

    def describe(self, lengths: Sequence[int]) -> str:
        """How the codes serve some lengths, human-readable.

        Example:
            >>> Layout((32,)).describe([16, 32])
            '32 bits, trained at 16, 32'
        """
        named = ", ".join(map(str, lengths))
        if self.nested and self.views == 1:
            return f"{self.longest} bits, trained at {named}"
        codes = f"{self.views} codes" if self.views > 1 else "one code"
        return f"{codes} for each length, {named} bits; {self.stored} bits stored per image or text"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"lengths": list(self.lengths), "nested": self.nested, "views": self.views}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Layout:
        """Inverse of `to_dict`."""
        return cls(tuple(values["lengths"]), bool(values["nested"]), int(values["views"]))
