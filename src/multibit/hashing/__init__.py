"""Training: relation teacher and features -> one model with a nested code."""

from multibit.hashing.bits import allocate_bits
from multibit.hashing.code_model import CodeModel
from multibit.hashing.model import HashModel

__all__ = ["CodeModel", "HashModel", "allocate_bits"]
