"""Agreement of GPU and CPU: python benchmarks/gpu_check.py, on a machine with a GPU.

Trains the same small planted model on both devices, then encodes the same features with the same weights on both, and
prints times, mAP and the share of bits that differ. Without a GPU it exits with status 2. --smoke uses the CPU for both
and only checks that everything runs.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from common import new_parser

from multibit import Codes, Config, HashModel, Pairs, encode, mean_average_precision, train

FEATURES, LABELS = 512, 24
MOST_FLIPPED = 1e-3


def planted_pairs(items: int) -> Pairs:
    """Features that are noisy linear functions of the labels, so that training has something to find."""
    rng = np.random.default_rng(0)
    labels = (rng.random((items, LABELS)) < 0.15).astype(np.uint8)
    labels[np.arange(items), rng.integers(LABELS, size=items)] = 1
    image, text = (
        (labels @ rng.normal(size=(LABELS, FEATURES)) + rng.normal(size=(items, FEATURES))).astype(np.float32)
        for _ in range(2)
    )
    return Pairs(image, text, np.arange(items + 1), labels)


def report(device: str, model: HashModel, seconds: float, pairs: Pairs) -> None:
    """Print the time and the mAP of a training."""
    coded = encode(model, pairs)
    accuracy = [
        mean_average_precision(
            coded.image.take(np.arange(500)), coded.text, coded.labels[:500], coded.labels, bits=bits
        )
        for bits in (16, 128)
    ]
    print(f"{device:<5} trained in {seconds:6.1f} s, mAP i2t {accuracy[0]:.4f} at 16 and {accuracy[1]:.4f} at 128 bits")


def main() -> None:
    """Train on both, encode on both, compare."""
    parser = new_parser(__doc__, smoke="use the CPU for both, in a few seconds")
    smoke = parser.parse_args().smoke
    if not smoke and not torch.cuda.is_available():
        print("torch finds no GPU: nothing was compared")
        sys.exit(2)
    other_device, items, epochs = ("cpu", 600, 1) if smoke else ("cuda", 6_000, 10)
    print(f"{'no GPU' if smoke else torch.cuda.get_device_name()}, torch {torch.__version__}")
    pairs, models = planted_pairs(items), {}
    for device in ("cpu", other_device):
        start = time.perf_counter()
        models[device] = train(pairs, None, Config(epochs=epochs), device=device).model
        report(device, models[device], time.perf_counter() - start, pairs)
    on_cpu = {side: Codes.binarize(models["cpu"].encode(getattr(pairs, side), side)) for side in ("image", "text")}
    moved = models["cpu"].to(other_device)
    for side, codes in on_cpu.items():
        start = time.perf_counter()
        other = Codes.binarize(moved.encode(getattr(pairs, side), side))
        seconds = time.perf_counter() - start
        flipped = float((codes.to_bits() != other.to_bits()).mean())
        print(f"{side}: {items / seconds:,.0f} items/s on the GPU, {flipped:.2e} of the bits differ from the CPU's")
        if flipped > MOST_FLIPPED:
            sys.exit(f"more than {MOST_FLIPPED} of the bits differ")


if __name__ == "__main__":
    main()
