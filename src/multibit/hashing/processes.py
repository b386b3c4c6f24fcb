"""Trainings side by side, each in a process of its own that leaves its training state for the first process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from multibit.config import Settings
from multibit.hashing.threads import on_threads
from multibit.progress import track

Task = tuple[Settings, Path | None]
"""Settings of a training, and its state file."""


def train_in_processes(work: Callable[..., object], tasks: Sequence[Task], workers: int) -> None:
    """Train in processes of their own, several at a time, up to the states of the last epochs.

    A training that fails or is killed here is resumed by the caller, where its error is raised.

    Args:
        work: the training, a function of a task. tasks: of the trainings. workers: largest number of processes.
    """
    context, waiting, running = get_context("spawn"), list(tasks), list[BaseProcess]()
    with track("Training, a model for each length", len(tasks), "models") as advance:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    arguments = torch.get_num_threads(), work, waiting.pop(0)
                    running.append(context.Process(target=_in_a_process, args=arguments, daemon=True))
                    running[-1].start()
                wait([process.sentinel for process in running])
                alive = [process for process in running if process.is_alive()]
                advance(len(running) - len(alive))
                running = alive
        finally:
            for process in running:
                process.terminate()
                process.join()


def _in_a_process(threads: int, work: Callable[..., object], task: Task) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(Exception), on_threads(threads):
        work(*task)


def _end_with_parent() -> None:
    """End this process when the first one is killed: it would go on to write into a folder that is not locked."""
    if (first := parent_process()) is not None:
        first.join()
        os._exit(1)
