"""The same extraction on Ray: each worker makes whole shards, byte for byte those that one machine makes."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from multibit.errors import MissingExtraError

if TYPE_CHECKING:
    from multibit.data.extract import Advance, Extraction


def run_on_ray(extraction: Extraction, numbers: Sequence[int], workers: int, advance: Advance) -> None:
    """Make some shards on the cluster that Ray knows of (`RAY_ADDRESS`), or on one of this machine's processors.

    Args:
        extraction: what to make; all machines see its folder and pictures. numbers: of the shards.
        workers: at most so many, each with a processor, and with a GPU when the encoders run on one.
        advance: is told of finished items.

    Raises:
        MissingExtraError: Ray is not installed. Whatever `Extraction.run` raises.
    """
    try:
        import ray
        from ray.util import ActorPool
    except ImportError:
        raise MissingExtraError("ray", extra="ray", need="--engine ray") from None
    import torch

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    try:
        gpus = int(getattr(extraction.pictures, "device", "cpu") != "cpu")
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        there = resources.get("GPU" if gpus else "CPU", 1)
        count = max(1, min(workers, len(numbers), int(there)))
        shared, remote = ray.put(extraction), ray.remote(num_cpus=1, num_gpus=gpus)(_Worker)
        pool = ActorPool([remote.remote(shared, torch.get_num_threads()) for _ in range(count)])
        for number in pool.map_unordered(lambda worker, number: worker.make.remote(number), list(numbers)):
            advance(len(extraction.rows(number)))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    finally:
        if started:
            ray.shutdown()


class _Worker:
    def __init__(self, extraction: Extraction, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)  # as where the extraction was started: sums are rounded alike
        self._extraction = extraction

    def make(self, number: int) -> int:
        self._extraction.run([number], 1, _ignore)
        return number


def _ignore(*_: Any) -> None:
    """Progress is shown where the extraction was started."""
