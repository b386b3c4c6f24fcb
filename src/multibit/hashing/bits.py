"""Bit allocation: number of bits of each diffusion scale (SBO, `eq:bit-budget`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from multibit.config import Config
from multibit.errors import ConfigError


def plan_blocks(rho: ArrayLike, config: Config) -> tuple[int, ...]:
    """Bits of each block of the code, by the setting `allocation`: one block per scale, or one for all.

    Args:
        rho: (M,) quadrature weights, local to long range. config: the settings.

    Raises:
        ConfigError: as `allocate_bits`.

    Example:
        >>> plan_blocks([3.0, 1.0], Config(lengths=(8,), scales=2, allocation="uniform"))
        (4, 4)
    """
    if config.allocation == "single":
        return (config.code_bits,)
    weights = np.ones(len(np.asarray(rho))) if config.allocation == "uniform" else rho
    return allocate_bits(weights, config.code_bits)


def allocate_bits(rho: ArrayLike, total: int) -> tuple[int, ...]:
    """Share `total` bits in proportion to the quadrature weights, at least one each.

    Largest remainder: each scale gets the integer part of its ideal share, or 1 where that is 0; remaining bits go to
    the largest fractional parts among the scales that were not raised to 1; bits overspent on raising are taken back
    from the largest block.

    Args:
        rho: (M,) positive quadrature weights, local to long range.
        total: B_max.

    Returns:
        m_l of each scale, summing to `total`.

    Raises:
        ConfigError: fewer bits than scales, or a weight that is not positive.

    Example:
        >>> allocate_bits([3.8768, 2.6967, 0.3203, 0.0047], 128)
        (71, 50, 6, 1)
    """
    weights = np.asarray(rho, dtype=np.float64)
    if weights.ndim != 1 or not len(weights) or not (np.isfinite(weights) & (weights > 0)).all():
        raise ConfigError(f"need one or more positive weights, got {weights}.", option="rho")
    if total < len(weights):
        raise ConfigError(f"{total} bits for {len(weights)} scales: each scale needs at least one.", option="total")
    ideal = total * weights / weights.sum()
    bits = np.maximum(np.floor(ideal).astype(int), 1)
    left = total - bits.sum()
    if left > 0:
        remainder = np.where(ideal >= 1, ideal - np.floor(ideal), -1.0)
        bits[np.argsort(-remainder, kind="stable")[:left]] += 1
    for _ in range(-left):
        bits[bits.argmax()] -= 1
    return tuple(int(count) for count in bits)
