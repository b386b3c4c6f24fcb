"""Time of a training step compared with its matrix products: python benchmarks/training.py [--compile] [--smoke].

Trains on 9,000 pairs of 512-d features (random, the size of MIRFlickr), with both precisions, and compares the mean
time of a step with that of the bare forward and backward matrix products of the same shapes, in turn, in one process.
Then the time of a step with one thread and with all, alone and beside two processes that never pause. --compile
compares, in single precision, with network and objective compiled by `torch.compile`, which the product does not do; it
needs a C++ compiler, and its compilation is not in the times. --smoke only checks that everything runs.
"""

from __future__ import annotations

import itertools
import os
import platform
import statistics
import time

import numpy as np
import torch
from common import busy, new_parser

from multibit import Config, Pairs
from multibit.hashing.loop import fit
from multibit.hashing.methods import find_method
from multibit.hashing.methods.multibit import MultiBit
from multibit.hashing.threads import on_threads

FEATURES, LABELS = 512, 24


def random_pairs(count: int) -> Pairs:
    """Random features with random labels: the speed does not depend on their content."""
    rng = np.random.default_rng(0)
    image, text = rng.normal(size=(2, count, FEATURES)).astype(np.float32)
    labels = (rng.random((count, LABELS)) < 3.78 / LABELS).astype(np.uint8)
    return Pairs(image, text, np.arange(count + 1), labels)


def seconds_per_step(pairs: Pairs, config: Config, *, compiled: bool = False) -> float:
    """Mean time of a training step: batch, network, objective, gradient, Adam."""
    learner = MultiBit(pairs, config)
    if compiled:
        learner.model.compile()
        learner.objective.compile()
        fit(learner, pairs, config, score=None)  # compiles for full batches and for the last one
    start = time.perf_counter()
    fit(learner, pairs, config, score=None)
    return (time.perf_counter() - start) / (config.epochs * -(-len(pairs) // config.batch_size))


def seconds_per_bare_products(config: Config, steps: int) -> float:
    """Mean time of the products: per modality three forward, three for the weights, two for the inputs."""
    widths = [FEATURES, config.hidden, config.dimension, config.code_bits]
    inputs = [torch.randn(config.batch_size, width) for width in widths]
    weights = [torch.randn(outputs, width) for width, outputs in itertools.pairwise(widths)]
    start = time.perf_counter()
    for _ in range(steps):
        for _ in ("image", "text"):
            for layer, weight in enumerate(weights):
                x, gradient = inputs[layer], inputs[layer + 1]
                x @ weight.T
                gradient.T @ x
                if layer:
                    gradient @ weight
    return (time.perf_counter() - start) / steps


def every() -> int:
    """Threads that torch uses if nobody chooses."""
    return len(os.sched_getaffinity(0))


def step_on(threads: int, rounds: int) -> list[float]:
    """Times of a step with some threads."""
    few = random_pairs(256)
    with on_threads(threads):
        return [seconds_per_step(few, Config(epochs=1)) for _ in range(min(rounds, 3))]


def main() -> None:
    """Print medians and ratios."""
    parser = new_parser(__doc__)
    parser.add_argument("--compile", action="store_true", help="compare with a compiled step")
    options = parser.parse_args()
    smoke = options.smoke
    count, epochs, rounds, bare_steps = (256, 1, 1, 7) if smoke else (9_000, 2, 5, 140)
    pairs = random_pairs(count)
    ways = ("float32", "compiled") if options.compile else Config.CHOICES["precision"]
    settings = {
        (name, way): find_method(name).config(epochs=epochs, precision="float32" if way == "compiled" else way)
        for name in ("multibit", "multibit-plus")
        for way in ways
    }
    bare: list[float] = []
    steps: dict[tuple[str, str], list[float]] = {key: [] for key in settings}
    seconds_per_bare_products(Config(), bare_steps // 7)  # warm-up
    for _ in range(rounds):
        bare.append(seconds_per_bare_products(Config(), bare_steps))
        for key, config in settings.items():
            steps[key].append(seconds_per_step(pairs, config, compiled=key[1] == "compiled"))
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"medians of {rounds} rounds{'ms':>22}{'of the bare products':>24}{'of multibit':>14}")
    print(f"{'bare products, float32':<32}{1e3 * statistics.median(bare):>9.2f}")
    for key, each in steps.items():
        of_bare = statistics.median(a / b for a, b in zip(each, bare, strict=True))
        of_paper = statistics.median(a / b for a, b in zip(each, steps["multibit", key[1]], strict=True))
        print(f"{', '.join(key):<32}{1e3 * statistics.median(each):>9.2f}{of_bare:>24.2f}{of_paper:>14.2f}")
    print("aims: multibit in float32 at most 1.25 of the bare products, multibit-plus at most 1.10 of multibit")
    for others in (1,) if smoke else (0, 2):
        with busy(others):
            found = {count: statistics.median(step_on(count, rounds)) for count in (1, every())}
        shown = ", ".join(f"{1e3 * seconds:.2f} ms on {count}" for count, seconds in found.items())
        print(f"threads, {others} busy     {shown}")


if __name__ == "__main__":
    main()
