"""Speed of extraction compared with its encoders: python benchmarks/extraction.py [--encoder NAME] [--images N].

--runtime torch runs packaged encoders in torch, for comparison. Times, in turn and in one process, on the images and
texts that come with multibit:
  bare: the encoders alone, on images that were decoded before and on the same texts;
  features: `extract_features`, which also reads and decodes the images, checks, and writes the store;
  busy: extraction beside two processes that never pause, in turn with extraction alone; aim: at least 0.4 of its rate;
  processes: the decoding alone, by threads and by processes, for the choice between them.
Aim: features reach at least 90 % of the bare loop. torch uses one thread less than there are processors. --smoke only
checks that everything runs, with the mean colour and the length of the text as encoders.
"""

from __future__ import annotations

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
from common import busy, new_parser

from multibit import PairedDataset
from multibit.data.images import center_square, open_image
from multibit.data.sample import load_sample
from multibit.features.base import ImageEncoder, ImageFunction, TextEncoder, TextFunction
from multibit.features.extract import extract_features
from multibit.features.load import RUNTIMES, load_image_encoder, load_text_encoder
from multibit.features.recipe import EncoderRecipe

ROUNDS = 6


def smoke_encoders() -> tuple[ImageEncoder, TextEncoder]:
    """Encoders that need neither weights nor time."""
    recipes = (EncoderRecipe(name, "none", size, "") for name, size in (("mean colour", 3), ("text length", 1)))
    return (
        ImageFunction(lambda images: [np.asarray(image).mean(axis=(0, 1)) for image in images], next(recipes)),
        TextFunction(lambda texts: [[len(text)] for text in texts], next(recipes)),
    )


def bare_seconds(
    data: PairedDataset, prepared: list[np.ndarray], image_encoder: ImageEncoder, text_encoder: TextEncoder
) -> float:
    """Time of the encoders alone, on the same batches and texts."""
    start = time.perf_counter()
    for first in range(0, len(prepared), image_encoder.batch_size):
        image_encoder.encode(prepared[first : first + image_encoder.batch_size])
    text_encoder.encode([text for texts in data.texts for text in texts])
    return time.perf_counter() - start


def extraction_seconds(
    data: PairedDataset, image_encoder: ImageEncoder, text_encoder: TextEncoder, workers: int
) -> float:
    """Time of the whole extraction into a new store."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        extract_features(data, image_encoder, text_encoder, Path(folder) / "store", workers=workers)
        return time.perf_counter() - start


def decode(path: Path) -> np.ndarray:
    """The work of a decoding worker."""
    return np.asarray(center_square(open_image(path), 224))


def decoding_rate(pool: Executor, paths: list[Path]) -> float:
    """Images per second through a warm pool."""
    options = {"chunksize": 8} if isinstance(pool, ProcessPoolExecutor) else {}
    list(pool.map(decode, paths[:16], **options))
    start = time.perf_counter()
    list(pool.map(decode, paths, **options))
    return len(paths) / (time.perf_counter() - start)


def main() -> None:
    """Print medians and ratios."""
    parser = new_parser(__doc__)
    parser.add_argument("--encoder", help="folder or hub name of a CLIP-like model, instead of the packaged encoders")
    parser.add_argument("--runtime", choices=RUNTIMES, help="of packaged encoders; the faster by default")
    parser.add_argument("--images", type=int, default=512, help="number of images")
    parser.add_argument("--photographs", type=Path, help="a folder of .jpg files to decode, instead of the sample")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    processors = len(os.sched_getaffinity(0))
    torch.set_num_threads(max(1, processors - 1))
    rounds, images = (1, 32) if given.smoke else (ROUNDS, given.images)
    if given.smoke:
        image_encoder, text_encoder = smoke_encoders()
    else:
        image_encoder = load_image_encoder(given.encoder or "efficientnet-lite0", given.device, runtime=given.runtime)
        text_encoder = load_text_encoder(given.encoder or "all-minilm-l6-v2", given.device, runtime=given.runtime)
    sample = load_sample()
    data = sample.take(np.arange(images))
    paths = [path for path in data.images if path is not None]
    prepared = [image_encoder.prepare(open_image(path)) for path in paths]
    workers = max(2, processors - 1)
    bare, whole = [], []
    bare_seconds(data.take(np.arange(32)), prepared[:32], image_encoder, text_encoder)  # warm-up
    for number in range(rounds):
        sides: list[tuple[list[float], Callable[[], float]]] = [
            (bare, lambda: bare_seconds(data, prepared, image_encoder, text_encoder)),
            (whole, lambda: extraction_seconds(data, image_encoder, text_encoder, workers)),
        ]
        for times, seconds in (
            sides if number % 2 else reversed(sides)
        ):  # alternate, because a machine that slows down favours the first
            times.append(seconds())
    ratios = [one / other for one, other in zip(bare, whole, strict=True)]
    print(f"{platform.processor() or platform.machine()}, {processors} processors, torch {torch.__version__}")
    print(f"{image_encoder.recipe.name} and {text_encoder.recipe.name}, {len(data)} items, {workers} decoding threads")
    print(f"bare encoders   {len(data) / statistics.median(bare):8.1f} items/s")
    print(f"extraction      {len(data) / statistics.median(whole):8.1f} items/s")
    print(f"ratio, median of {rounds}  {100 * statistics.median(ratios):5.1f} %   (aim: at least 90 %)")
    quiet, beside = [], []
    for _ in range(rounds):
        quiet.append(extraction_seconds(data, image_encoder, text_encoder, workers))
        with busy(2):
            beside.append(extraction_seconds(data, image_encoder, text_encoder, workers))
    share = statistics.median(one / other for one, other in zip(quiet, beside, strict=True))
    print(f"beside 2 busy   {len(data) / statistics.median(beside):8.1f} items/s, {share:.2f} of alone (aim: 0.4)")
    shown = sorted(given.photographs.glob("*.jpg")) if given.photographs else paths
    with ThreadPoolExecutor(processors) as threads, ProcessPoolExecutor(processors) as processes:
        rates = [(decoding_rate(threads, shown), decoding_rate(processes, shown)) for _ in range(rounds)]
    threaded, forked = (statistics.median(rate) for rate in zip(*rates, strict=True))
    print(f"decoding alone  {threaded:8.1f} images/s by threads, {forked:.1f} by processes")


if __name__ == "__main__":
    main()
