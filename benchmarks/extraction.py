"""Does extraction keep the encoder busy: python benchmarks/extraction.py [--encoder NAME] [--pictures N].

Times, in turn and in one process, on the pictures and texts that come with multibit:
  bare: the encoders alone, on pictures that were decoded before and on the same texts;
  features: `extract_features`, which also reads and decodes the pictures, checks, and writes the store;
  processes: the decoding alone, by threads and by processes, for the choice between them.
Aim: features reach at least 90 % of the bare loop. torch takes one thread less than there are processors.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from multibit import PairedDataset
from multibit.data.encoders import PictureEncoder, TextEncoder, load_picture_encoder, load_text_encoder
from multibit.data.extract import extract_features
from multibit.data.pictures import center_square, open_picture
from multibit.data.sample import load_sample

ROUNDS = 6


def bare_seconds(data: PairedDataset, prepared: list[np.ndarray], eyes: PictureEncoder, ears: TextEncoder) -> float:
    """Time of the encoders alone, on the same batches and texts."""
    start = time.perf_counter()
    for first in range(0, len(prepared), eyes.batch_size):
        eyes.encode(prepared[first : first + eyes.batch_size])
    ears.encode([text for texts in data.texts for text in texts])
    return time.perf_counter() - start


def extraction_seconds(data: PairedDataset, eyes: PictureEncoder, ears: TextEncoder, workers: int) -> float:
    """Time of the whole extraction into a new store."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        extract_features(data, eyes, ears, Path(folder) / "store", workers=workers)
        return time.perf_counter() - start


def decode(path: Path) -> np.ndarray:
    """What a worker does."""
    return np.asarray(center_square(open_picture(path), 224))


def decoding_rate(pool: Executor, paths: list[Path]) -> float:
    """Pictures a second through a pool that is warm."""
    options = {"chunksize": 8} if isinstance(pool, ProcessPoolExecutor) else {}
    list(pool.map(decode, paths[:16], **options))
    start = time.perf_counter()
    list(pool.map(decode, paths, **options))
    return len(paths) / (time.perf_counter() - start)


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--encoder", help="folder or hub name of a CLIP-like model, instead of the packaged encoders")
    parser.add_argument("--pictures", type=int, default=512)
    parser.add_argument("--photographs", type=Path, help="a folder of .jpg files to decode, instead of the sample")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    processors = len(os.sched_getaffinity(0))
    torch.set_num_threads(max(1, processors - 1))
    eyes = load_picture_encoder(given.encoder or "efficientnet-lite0", given.device)
    ears = load_text_encoder(given.encoder or "all-minilm-l6-v2", given.device)
    sample = load_sample()
    data = sample.take(np.arange(given.pictures))
    paths = [path for path in data.images if path is not None]
    prepared = [eyes.prepare(open_picture(path)) for path in paths]
    workers = max(2, processors - 1)
    bare, whole = [], []
    bare_seconds(data.take(np.arange(32)), prepared[:32], eyes, ears)  # warm-up
    for number in range(ROUNDS):
        sides: list[tuple[list[float], Callable[[], float]]] = [
            (bare, lambda: bare_seconds(data, prepared, eyes, ears)),
            (whole, lambda: extraction_seconds(data, eyes, ears, workers)),
        ]
        for times, seconds in sides if number % 2 else reversed(sides):  # a machine that slows down favours the first
            times.append(seconds())
    ratios = [one / other for one, other in zip(bare, whole, strict=True)]
    print(f"{platform.processor() or platform.machine()}, {processors} processors, torch {torch.__version__}")
    print(f"{eyes.recipe.name} and {ears.recipe.name}, {len(data)} items, {workers} decoding threads")
    print(f"bare encoders   {len(data) / statistics.median(bare):8.1f} items/s")
    print(f"extraction      {len(data) / statistics.median(whole):8.1f} items/s")
    print(f"ratio, median of {ROUNDS}  {100 * statistics.median(ratios):5.1f} %   (aim: at least 90 %)")
    shown = sorted(given.photographs.glob("*.jpg")) if given.photographs else paths
    with ThreadPoolExecutor(processors) as threads, ProcessPoolExecutor(processors) as processes:
        rates = [(decoding_rate(threads, shown), decoding_rate(processes, shown)) for _ in range(ROUNDS)]
    threaded, forked = (statistics.median(rate) for rate in zip(*rates, strict=True))
    print(f"decoding alone  {threaded:8.1f} pictures/s by threads, {forked:.1f} by processes")


if __name__ == "__main__":
    main()
