"""The same work on Ray: each worker does whole parts of it, byte for byte what one machine makes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from multibit.errors import ConfigError, MissingExtraError, MultibitError

T = TypeVar("T")
ENGINES = ("local", "ray")
RETRIES = 2
"""How often a part whose worker died is tried again, on a new worker."""


def check_engine(engine: str) -> str:
    """The engine, if it is known.

    Raises:
        ConfigError: it is not.
    """
    if engine not in ENGINES:
        raise ConfigError(f"engine: must be {' or '.join(ENGINES)}, got {engine!r}.")
    return engine


def run_on_ray(work: Callable[[int], T], parts: Sequence[int], workers: int, *, gpu: bool = False) -> Iterator[T]:
    """Do parts of some work on the cluster that Ray knows of (`RAY_ADDRESS`), or on this machine's processors.

    Args:
        work: makes the result of a part; goes to each worker once. All machines see the files that it names; relative
            names mean the same there as here. parts: what it is called with.
        workers: at most so many, each with a processor. gpu: and each with a GPU.

    Yields:
        The results in the order of the parts.

    Raises:
        MissingExtraError: Ray is not installed. MultibitError: a worker died again and again, or lacks a package.
            Whatever `work` raises.
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
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        there = resources.get("GPU" if gpu else "CPU", 1)
        count = max(1, min(workers, len(parts), int(there)))
        replaced = ray.remote(num_cpus=1, num_gpus=int(gpu), max_restarts=RETRIES, max_task_retries=RETRIES)
        remote, shared = replaced(_Worker), [ray.put(work)]  # in a list it goes as a reference, fetched once
        pool = ActorPool([remote.remote(torch.get_num_threads(), Path.cwd()) for _ in range(count)])
        yield from pool.map(lambda worker, part: worker.do.remote(part, shared), list(parts))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayActorError as error:
        reason = str(error).strip().splitlines()[-1].strip()[:200]
        raise MultibitError(
            f"--engine ray: a worker died and replacing it {RETRIES} times did not help ({reason}). Is memory short, "
            "take fewer --workers. Run the same command again; `features` keeps its finished shards."
        ) from None
    finally:
        if started:
            ray.shutdown()


class _Worker:
    def __init__(self, threads: int, folder: Path) -> None:
        import torch

        torch.set_num_threads(threads)  # as where the work was started: sums are rounded alike
        self._folder = folder
        self._work: Callable[[int], Any] | None = None

    def do(self, part: int, shared: list[Any]) -> Any:
        import ray

        os.chdir(self._folder)
        try:
            self._work = self._work or ray.get(shared[0])
        except ray.exceptions.RaySystemError as error:
            reason = str(error).splitlines()[0].removeprefix("System error: ")
            raise MultibitError(
                f"--engine ray: a worker cannot load the work ({reason}). Install the same packages on all machines."
            ) from None
        return self._work(part)
