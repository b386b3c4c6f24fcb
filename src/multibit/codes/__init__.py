"""Relaxed values -> packed nested codes, and exact Hamming distances between them."""

from multibit.codes.distance import hamming_distances
from multibit.codes.packing import Codes

__all__ = ["Codes", "hamming_distances"]
