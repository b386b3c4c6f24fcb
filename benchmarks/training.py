"""Is training bound by its matrix products: python benchmarks/training.py.

Trains the paper's model on 9,000 pairs of 512-d features (planted, MIRFlickr's size) and times a mean step beside the
bare forward and backward matrix products of the same shapes, in turn, in one process. Aim: a ratio of at most 1.4.
"""

from __future__ import annotations

import itertools
import platform
import statistics
import time

import numpy as np
import torch

from multibit import Config, Pairs, RelationTeacher
from multibit.hashing.train import build_model, fit

PAIRS, FEATURES, LABELS, ROUNDS, EPOCHS = 9_000, 512, 24, 5, 4


def planted_pairs() -> Pairs:
    """Random features with random labels: the speed does not depend on what they mean."""
    rng = np.random.default_rng(0)
    image, text = rng.normal(size=(2, PAIRS, FEATURES)).astype(np.float32)
    labels = (rng.random((PAIRS, LABELS)) < 3.78 / LABELS).astype(np.uint8)
    return Pairs(image, text, np.arange(PAIRS + 1), labels)


def seconds_per_step(pairs: Pairs, teacher: RelationTeacher, config: Config) -> float:
    """Mean time of a real training step: batches, network, objective, gradient, Adam."""
    model = build_model(pairs, teacher, config)
    start = time.perf_counter()
    fit(model, teacher, pairs, config, score=None)
    return (time.perf_counter() - start) / (config.epochs * -(-PAIRS // config.batch_size))


def seconds_per_bare_products(config: Config, steps: int) -> float:
    """Mean time of only the products: per modality three forward, three for the weights', two for the inputs'."""
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
    config, pairs = Config(epochs=EPOCHS), planted_pairs()
    teacher = RelationTeacher.fit(pairs.labels, config.alpha, config.eta, config.scales)
    steps, bare, ratios = [], [], []
    seconds_per_bare_products(config, 20)  # warm-up
    for _ in range(ROUNDS):
        steps.append(seconds_per_step(pairs, teacher, config))
        bare.append(seconds_per_bare_products(config, 140))
        ratios.append(steps[-1] / bare[-1])
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"training step      {1e3 * statistics.median(steps):7.2f} ms")
    print(f"bare products      {1e3 * statistics.median(bare):7.2f} ms")
    print(f"ratio, median of {ROUNDS} {statistics.median(ratios):7.2f}   (aim: at most 1.4)")


if __name__ == "__main__":
    main()
