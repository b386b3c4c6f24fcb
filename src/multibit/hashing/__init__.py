"""Relation teacher + features -> one model whose 128-bit code is nested."""

from multibit.hashing.bits import allocate_bits
from multibit.hashing.model import HashModel

__all__ = ["HashModel", "allocate_bits"]
