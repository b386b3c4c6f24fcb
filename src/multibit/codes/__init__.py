"""Packed nested codes, coded items, and exact Hamming distances at any prefix length."""

from multibit.codes.distance import hamming_distances
from multibit.codes.items import DIRECTIONS, MODALITIES, CodedItems, Modality
from multibit.codes.packing import Codes

__all__ = ["DIRECTIONS", "MODALITIES", "CodedItems", "Codes", "Modality", "hamming_distances"]
