"""Training: relation teacher and features -> one model with a nested code."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from multibit.hashing.bits import allocate_bits
    from multibit.hashing.code_model import CodeModel
    from multibit.hashing.model import HashModel

__all__ = ["CodeModel", "HashModel", "allocate_bits"]

# loaded on first use, so that a store is coded by a portable model without torch
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__, submod_attrs={"bits": ["allocate_bits"], "code_model": ["CodeModel"], "model": ["HashModel"]}
)
