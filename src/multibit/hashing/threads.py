"""How many threads a training uses: chosen by a short timed trial, and never at the price of other results.

Threads of one product wait for each other. On a machine with other work they wait for a processor too, spinning
meanwhile: two threads have been measured to take ten times as long as one. So several threads are used only where they
are clearly faster at the start of a training, and compute the same bits in the trial; then the choice, which depends on
the load, cannot change the model.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator

import torch
from torch import Tensor

ROUNDS = 5
CLEARLY = 1.15  # times as fast


def chosen_threads(rows: int, columns: int, width: int) -> int:
    """Number of threads for products of the size of a training: all that torch would use, or one.

    Args:
        rows: of a batch. columns: of its features. width: of the hidden layer.

    Returns:
        One, unless all threads are clearly faster here and now, and compute the same bits.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return 1
    random = torch.Generator().manual_seed(0)
    batch, weights = (torch.randn(*size, generator=random) for size in ((rows, columns), (width, columns)))
    times: dict[int, list[float]] = {1: [], threads: []}
    bits: dict[int, Tensor] = {}
    for _ in range(ROUNDS):
        for count in times:  # in turn, because the load changes
            with on_threads(count):
                start = time.perf_counter()
                bits[count] = _step(batch, weights)
                times[count].append(time.perf_counter() - start)
    faster = statistics.median(times[1]) >= CLEARLY * statistics.median(times[threads])
    return threads if faster and torch.equal(bits[1], bits[threads]) else 1


@contextlib.contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Let torch use a number of threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _step(batch: Tensor, weights: Tensor) -> Tensor:
    """The gradient of a layer: its product, a softmax over similarities, and the products of the way back."""
    layer = weights.clone().requires_grad_()
    hidden = torch.relu(batch @ layer.T)
    loss = -torch.log_softmax(hidden @ hidden.T / hidden.shape[1], 1).diagonal().mean()
    (gradient,) = torch.autograd.grad(loss, layer)
    return gradient
