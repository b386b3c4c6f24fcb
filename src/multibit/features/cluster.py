"""Work on a Ray cluster: each worker makes whole parts, and the results equal those of one machine byte for byte."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from multibit.errors import MissingExtraError, MultibitError, first_line

T = TypeVar("T")
ENGINES = ("local", "ray")
RETRIES = 2
"""Number of times that a worker that died is replaced and its part tried again."""


def run_on_ray(work: Callable[[int], T], parts: Sequence[int], workers: int, *, gpu: bool = False) -> Iterator[T]:
    """Do parts of some work on the Ray cluster at `RAY_ADDRESS`, or on the processors of this machine.

    Args:
        work: makes the result of one part; sent to each worker once. All machines must see the files that it names;
            relative paths mean the same there as here. parts: arguments of the calls.
        workers: maximum number of workers, each with a processor. gpu: each with a GPU too.

    Yields:
        The results in the order of the parts.

    Raises:
        MissingExtraError: Ray is not installed. MultibitError: a worker keeps dying, or lacks a package. Also whatever
            `work` raises.
    """
    try:
        import ray
        from ray.util import ActorPool
    except ImportError:
        raise MissingExtraError("ray", extra="ray", need="The ray engine") from None
    import torch

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    try:
        resources: dict[str, float] = ray.cluster_resources()
        available = resources.get("GPU" if gpu else "CPU", 1)
        count = max(1, min(workers, len(parts), int(available)))
        replaced = ray.remote(num_cpus=1, num_gpus=int(gpu), max_restarts=RETRIES, max_task_retries=RETRIES)
        remote, shared = replaced(_Worker), [ray.put(work)]  # in a list it is passed by reference and fetched once
        pool = ActorPool([remote.remote(torch.get_num_threads(), Path.cwd()) for _ in range(count)])
        yield from pool.map(lambda worker, part: worker.do.remote(part, shared), list(parts))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayActorError as error:
        reason = str(error).strip().splitlines()[-1].strip()[:200]
        raise MultibitError(
            f"a Ray worker died and so did its {RETRIES} replacements ({reason}).",
            hint="If memory is low, use fewer `workers`. Feature extraction keeps its finished shards: run it again.",
        ) from None
    finally:
        if started:
            ray.shutdown()


class _Worker:
    def __init__(self, threads: int, folder: Path) -> None:
        import torch

        torch.set_num_threads(threads)  # as in the process that started the work, so results are bit-identical
        self._folder = folder
        self._work: Callable[[int], Any] | None = None

    def do(self, part: int, shared: list[Any]) -> Any:
        import ray

        os.chdir(self._folder)
        try:
            self._work = self._work or ray.get(shared[0])
        except ray.exceptions.RaySystemError as error:
            reason = first_line(error).removeprefix("System error: ")
            raise MultibitError(
                f"a Ray worker cannot load the work ({reason}).", hint="Install the same packages on all machines."
            ) from None
        return self._work(part)
