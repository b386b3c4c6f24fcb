"""Cost of `multibit evaluate` with its report: benchmarks/report.py [RUN OTHER FEATURES] [--before SRC] [--smoke].

Evaluates one run against another in a process of its own, and prints seconds, processor seconds and peak memory: of
mAP alone (`--no-report`), and with the report. Without arguments, features are planted on the labels of 100,000 items
and two models are trained for one epoch, since their quality does not matter here; --keep FOLDER keeps both for the
next call. --before SRC runs the `src` folder of another version alternately with this one and prints the ratios.
--smoke only checks that everything runs.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import new_parser

from multibit import FeatureStore, Run, Split

ITEMS, SMOKE_ITEMS, LABELS, DIMENSION, ROUNDS = 100_000, 400, 40, 128, 3
HERE = Path(__file__).parents[1] / "src"
COMMAND = "import sys; from multibit.cli import main; main()"
LAUNCH = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(code)
"""
"""Starts a command from a small process: the peak memory of a process is at least that of the one that starts it."""

TINY = {"epochs": 1, "lengths": (8, 16), "scales": 2, "hidden": 16, "dimension": 8}


class Spent(NamedTuple):
    """Seconds, processor seconds and peak memory in MB of one command."""

    wall: float
    processor: float
    peak: float


def plant(items: int, path: Path, labels: int = LABELS, image: int = DIMENSION, text: int = DIMENSION) -> None:
    """Write features that are noisy linear images of random labels."""
    rng = np.random.default_rng(0)
    frequency = 0.3 / np.arange(1, labels + 1) ** 0.5
    given = rng.random((items, labels)) < frequency
    given[np.arange(items), rng.integers(labels, size=items)] = True
    features = {
        modality: (given @ rng.normal(size=(labels, size)) + rng.normal(size=(items, size))).astype(np.float32)
        for modality, size in (("image", image), ("text", text))
    }
    names = [f"label {chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(labels)]
    np.savez(path, **features, labels=given.astype(np.uint8), label_names=names)


def prepare(folder: Path, items: int, settings: dict[str, object]) -> tuple[Path, Path, Path]:
    """Two runs and their features, made where they are missing."""
    features, first, second = folder / "planted.npz", folder / "first", folder / "second"
    if not features.exists():
        folder.mkdir(parents=True, exist_ok=True)
        plant(items, features)
    store = FeatureStore.open(features)
    for run, method in ((first, "multibit-plus"), (second, "multibit")):
        if not (run / "run.json").exists():
            Run.create(run, store, Split.usual(len(store)), method=method, **settings)
    return first, second, features


def spend(source: Path, *arguments: object) -> Spent:
    """Run `multibit` of a source folder."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", LAUNCH, sys.executable, "-c", COMMAND, *map(str, arguments)]
    start = time.perf_counter()
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    wall = time.perf_counter() - start
    if run.returncode:
        raise SystemExit(run.stderr)
    processor, peak = map(float, run.stdout.split())
    return Spent(wall, processor, peak / 1024)


def main() -> None:
    """Print the cost, and the ratios to another version."""
    parser = new_parser(__doc__)
    parser.add_argument("given", nargs="*", type=Path, metavar="RUN OTHER FEATURES")
    parser.add_argument("--items", type=int, default=ITEMS, help="number of planted items")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only-report", action="store_true", help="leave out mAP alone")
    parser.add_argument("--keep", type=Path, help="folder of the planted features and their runs")
    parser.add_argument("--before", type=Path, help="src folder of another version")
    options = parser.parse_args()
    if len(options.given) not in (0, 3):
        parser.error("give RUN OTHER FEATURES, or none of them")
    items, rounds = (SMOKE_ITEMS, 1) if options.smoke else (options.items, options.rounds)
    settings = TINY if options.smoke else {"epochs": 1}
    sources = {"this version": HERE, **({"before": options.before} if options.before else {})}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run, other, features = options.given or prepare(options.keep or folder / "planted", items, settings)
        arguments = {
            "mAP alone": (features, "--against", other, "--no-report", "--out", folder / "e.json"),
            "with the report": (
                features,
                "--against",
                other,
                "--report",
                folder / "report",
                "--out",
                folder / "e.json",
            ),
        }
        if options.only_report:
            del arguments["mAP alone"]
        print(f"{'':34}{'seconds':>9}{'processor s':>13}{'peak MB':>9}")
        for what, chosen in arguments.items():
            if not options.smoke:
                spend(HERE, "evaluate", run, *chosen)  # compiles and fills the caches of the disk
            spent: dict[str, list[Spent]] = {name: [] for name in sources}
            for _ in range(rounds):
                for name, source in sources.items():
                    shutil.rmtree(folder / "report", ignore_errors=True)
                    spent[name].append(spend(source, "evaluate", run, *chosen))
            median = {name: Spent(*map(statistics.median, zip(*each, strict=True))) for name, each in spent.items()}
            for name, each in median.items():
                print(f"{f'{what}, {name}':34}{each.wall:9.1f}{each.processor:13.1f}{each.peak:9.0f}")
            if "before" in median:
                now, before = median["this version"], median["before"]
                ratios = [old / new for old, new in zip(before, now, strict=True)]
                print(f"{f'{what}, before / this':34}{ratios[0]:9.2f}{ratios[1]:13.2f}{ratios[2]:9.2f}")
    print(f"Median of {rounds}.")


if __name__ == "__main__":
    main()
