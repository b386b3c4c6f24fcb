"""Packed nested codes, coded items, and exact Hamming distances at any prefix length."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from multibit.codes.distance import hamming_distances
    from multibit.codes.items import DIRECTIONS, MODALITIES, CodedItems, Modality
    from multibit.codes.packing import Codes

__all__ = ["DIRECTIONS", "MODALITIES", "CodedItems", "Codes", "Modality", "hamming_distances"]

# loaded on first use, so that a file of this package can be imported without numba
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "distance": ["hamming_distances"],
        "items": ["DIRECTIONS", "MODALITIES", "CodedItems", "Modality"],
        "packing": ["Codes"],
    },
)
