"""Threads of torch: a training says how many, because sums are rounded differently on another number of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Let torch use a number of threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
