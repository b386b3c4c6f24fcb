"""Two runs on the same queries: who wins where, and whether it could be chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.errors import ConfigError, DataError

FloatArray = NDArray[np.float64]
RESAMPLES = 10_000


@dataclass(frozen=True, eq=False)
class Difference:
    """Per-query differences of a metric between run A and run B.

    Attributes:
        values: (n,) A minus B, over the queries where both are defined.
        p: two-sided p value of the paired randomisation test (signs of the differences exchanged at random).
        low, high: 95 % bootstrap interval of the mean difference.
    """

    values: FloatArray
    p: float
    low: float
    high: float

    @property
    def mean(self) -> float:
        """Mean of A minus B."""
        return float(self.values.mean())

    @property
    def improved(self) -> float:
        """Share of queries where A is larger."""
        return float((self.values > 0).mean())

    @property
    def tied(self) -> float:
        """Share of queries where both are equal."""
        return float((self.values == 0).mean())

    @property
    def degraded(self) -> float:
        """Share of queries where A is smaller."""
        return float((self.values < 0).mean())


def compare_queries(a: ArrayLike, b: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> Difference:
    """Compare two runs query by query.

    Args:
        a, b: (Q,) values of the same queries; NaN where undefined, and left out.
        resamples: of the test and of the bootstrap. seed: of both.

    Raises:
        DataError: other shapes, or no query where both are defined. ConfigError: fewer than one resample.

    Example:
        >>> difference = compare_queries([0.9, 0.8, 0.7, 0.6], [0.5, 0.8, 0.6, 0.7])
        >>> round(difference.mean, 3), difference.improved, difference.tied, difference.degraded
        (0.1, 0.5, 0.25, 0.25)
    """
    if resamples < 1:
        raise ConfigError(f"resamples: need at least 1, got {resamples}.")
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise DataError(f"values of {first.shape} and {second.shape} queries: the runs must share their queries.")
    values = (first - second)[~np.isnan(first - second)]
    if not len(values):
        raise DataError("there is no query for which both runs have a value.")
    rng = np.random.default_rng(seed)
    mean, sums, boot = abs(values.mean()), np.empty(resamples), np.empty(resamples)
    for start in range(0, resamples, 250):  # blocks bound the memory
        size = min(250, resamples - start)
        signs = rng.integers(0, 2, (size, len(values))) * 2 - 1
        sums[start : start + size] = np.abs(signs @ values / len(values))
        boot[start : start + size] = values[rng.integers(0, len(values), (size, len(values)))].mean(axis=1)
    as_extreme = int((sums >= mean - 1e-12).sum())
    low, high = np.quantile(boot, [0.025, 0.975])
    return Difference(values, (as_extreme + 1) / (resamples + 1), float(low), float(high))
