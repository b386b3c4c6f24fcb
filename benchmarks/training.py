"""Time of a training step compared with its matrix products: python benchmarks/training.py [--smoke].

Trains the paper's model on 9,000 pairs of 512-d features (random, the size of MIRFlickr) and compares the mean time of
a step with that of the bare forward and backward matrix products of the same shapes, in turn, in one process. Aim: a
ratio of at most 1.4. --smoke only checks that everything runs.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import time

import numpy as np
import torch

from multibit import Config, Pairs
from multibit.hashing.loop import fit
from multibit.hashing.methods.multibit import MultiBit

FEATURES, LABELS = 512, 24


def random_pairs(count: int) -> Pairs:
    """Random features with random labels: the speed does not depend on their content."""
    rng = np.random.default_rng(0)
    image, text = rng.normal(size=(2, count, FEATURES)).astype(np.float32)
    labels = (rng.random((count, LABELS)) < 3.78 / LABELS).astype(np.uint8)
    return Pairs(image, text, np.arange(count + 1), labels)


def seconds_per_step(pairs: Pairs, config: Config) -> float:
    """Mean time of a training step: batch, network, objective, gradient, Adam."""
    learner = MultiBit(pairs, config)
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


def main() -> None:
    """Print medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="run in a few seconds, without meaningful times")
    count, epochs, rounds = (256, 1, 1) if parser.parse_args().smoke else (9_000, 4, 5)
    config, pairs = Config(epochs=epochs), random_pairs(count)
    steps, bare, ratios = [], [], []
    seconds_per_bare_products(config, 20)  # warm-up
    for _ in range(rounds):
        steps.append(seconds_per_step(pairs, config))
        bare.append(seconds_per_bare_products(config, 140))
        ratios.append(steps[-1] / bare[-1])
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"training step      {1e3 * statistics.median(steps):7.2f} ms")
    print(f"bare products      {1e3 * statistics.median(bare):7.2f} ms")
    print(f"ratio, median of {rounds} {statistics.median(ratios):7.2f}   (aim: at most 1.4)")


if __name__ == "__main__":
    main()
