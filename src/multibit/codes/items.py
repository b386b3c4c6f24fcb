"""Coded items (a code for each modality, and labels), and the two directions of search between the modalities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import Labels, as_labels, row_numbers
from multibit.codes.layout import Layout
from multibit.codes.packing import Codes, require_codes
from multibit.errors import DataError, require_kind, require_known

Modality = Literal["image", "text"]
MODALITIES: tuple[Modality, ...] = get_args(Modality)
Direction = Literal["i2t", "t2i"]
DIRECTIONS: dict[Direction, tuple[Modality, Modality]] = {"i2t": ("image", "text"), "t2i": ("text", "image")}
"""Direction -> modality of the query, modality of the database."""

DIRECTION_NAMES: dict[Direction, str] = {"i2t": "image-to-text", "t2i": "text-to-image"}


@dataclass(frozen=True, eq=False)
class CodedItems:
    """Items with a code for each modality and their labels: a query set or a database. Made once per command.

    Attributes:
        image, text: N codes each. labels: (N, C) uint8 multi-hot.
        relaxed: modality -> (N, B) float32 values before the sign; empty where only the codes are known.
        layout: where the code of each length is; None for one nested code.

    Raises:
        DataError: counts that differ, codes of different lengths, or labels other than 0 and 1.

    Example:
        >>> items = CodedItems.binarize({"image": [[0.9, -0.2]], "text": [[0.1, 0.4]]}, labels=[[1, 0, 1]])
        >>> items.codes("image").to_signs(), len(items)
        (array([[ 1, -1]], dtype=int8), 1)
    """

    image: Codes
    text: Codes
    labels: Labels
    relaxed: Mapping[Modality, NDArray[np.float32]] = field(default_factory=dict, repr=False)
    layout: Layout | None = None

    def __post_init__(self) -> None:
        for modality in MODALITIES:
            require_codes(getattr(self, modality), modality)
        counts = [len(self.image), len(self.text), len(self.labels), *map(len, self.relaxed.values())]
        if len(set(counts)) != 1:
            raise DataError(
                f"{counts[0]} image codes, {counts[1]} text codes, {counts[2]} label rows"
                f"{''.join(f', {count} relaxed rows' for count in counts[3:])}: the counts must be equal."
            )
        if self.image.bits != self.text.bits:
            lengths = f"image codes of {self.image.bits} bits, text codes of {self.text.bits} bits"
            raise DataError(f"{lengths}: the lengths must be equal.")
        object.__setattr__(self, "labels", as_labels(self.labels))

    @classmethod
    def binarize(
        cls, relaxed: Mapping[Modality, ArrayLike], labels: ArrayLike, layout: Layout | None = None, model: str = ""
    ) -> CodedItems:
        """Binarise the relaxed values of both modalities, and keep them.

        Args:
            relaxed: modality -> (N, B) values. labels: (N, C) multi-hot. layout: of the code; nested when None.
            model: fingerprint of the model that made them, "" where it is unknown.

        Raises:
            DataError: no values of one modality, values that `Codes.binarize` refuses, or as the class.
        """
        require_kind(relaxed, Mapping, "relaxed", 'Use a dict: {"image": values, "text": values}.')
        for modality in MODALITIES:
            if modality not in relaxed:
                found = ", ".join(map(str, relaxed)) or "nothing"
                raise DataError(f"need values of image and text, got {found}.", option="relaxed")
        values = {modality: np.asarray(relaxed[modality], np.float32) for modality in MODALITIES}
        image, text = (Codes.binarize(values[modality], model) for modality in MODALITIES)
        return cls(image, text, np.asarray(labels), values, layout)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def model(self) -> str:
        """Fingerprint of the model that made the codes, "" where it is unknown."""
        return self.image.model

    def __repr__(self) -> str:
        return f"CodedItems({len(self)} items, {self.image.bits} bits)"

    def codes(self, modality: Modality) -> Codes:
        """The codes of one modality."""
        require_known("modality", modality, MODALITIES)
        return self.image if modality == "image" else self.text

    def take(self, rows: ArrayLike) -> CodedItems:
        """Some of the items, in the order given, or those where a mask is true.

        Raises:
            DataError: rows that are not integers in 0..N-1.
        """
        index = row_numbers(rows, len(self))
        relaxed = {modality: values[index] for modality, values in self.relaxed.items()}
        return CodedItems(self.image.take(index), self.text.take(index), self.labels[index], relaxed, self.layout)

    def at(self, bits: int) -> CodedItems:
        """The items with the code whose prefix is that of `bits` bits: themselves, where the code is nested.

        Relaxed values of items with several views are left out: what compares them, such as asymmetric scores and the
        quantisation loss, is defined for one code per item.

        Raises:
            DataError: `bits` is longer than the codes.

        Example:
            >>> relaxed = {"image": [[0.9, -0.2, 0.3]], "text": [[0.1, 0.4, -0.5]]}
            >>> items = CodedItems.binarize(relaxed, [[1]], Layout((1, 2), nested=False))
            >>> items.at(2).image.to_signs(), items.at(1).image.to_signs()
            (array([[-1,  1]], dtype=int8), array([[1]], dtype=int8))
        """
        if self.layout is None or (self.layout.nested and self.layout.views == 1):
            self.image.check_length(bits)
            return self
        part, views = self.layout.part(bits), self.layout.views
        image, text = (self.codes(modality).columns(part, views) for modality in MODALITIES)
        relaxed = {modality: values[:, part] for modality, values in self.relaxed.items() if views == 1}
        return CodedItems(image, text, self.labels, relaxed)


MIDDLE = 64
"""Code length of the tables and figures that show only one."""


def length_near(lengths: Iterable[int], wanted: int = MIDDLE) -> int:
    """The length nearest to `wanted`; the shorter of two that are equally near.

    Example:
        >>> length_near((16, 32, 64, 128)), length_near((8, 24, 40))
        (64, 40)
    """
    return min(lengths, key=lambda bits: (abs(bits - wanted), bits))
