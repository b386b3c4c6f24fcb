"""Startup time: python benchmarks/startup.py [--run RUN] [--items N] [--smoke].

Times whole processes, compared with an empty Python: `import multibit`, `multibit --help` (aim: under 0.2 s on quiet
cores), and with --run, a run with a portable model and an index, `multibit search RUN "a red flower"` (aim: under
0.7 s), also in an index of N random codes (aim for a million: under 1 s). CPU seconds do not depend on what else runs
on the machine. --smoke runs each once.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import new_parser

from multibit import Codes, Index
from multibit.portable import PortableRun

ROUNDS = 9
COMMAND = [sys.executable, "-c", "from multibit.cli import main; main()"]
COMMANDS = {
    "python, nothing": [sys.executable, "-c", "pass"],
    "import multibit": [sys.executable, "-c", "import multibit"],
    "multibit --help": [*COMMAND, "--help"],
}


def seconds(command: list[str]) -> tuple[float, float]:
    """Wall and CPU time of one process."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


def write_random_index(run: PortableRun, items: int, folder: Path) -> None:
    """An index of images with random codes of the run's model."""
    index = Index(run.model.fingerprint(), modality="image")
    words = np.random.default_rng(0).integers(0, 1 << 16, (-(-run.model.bits // 16), items), np.uint16)
    index.add(None, Codes(words, run.model.bits))
    index.save(folder / "image.mbx")


def main() -> None:
    """Print medians."""
    parser = new_parser(__doc__, smoke="run each process once")
    parser.add_argument("--run", type=Path, help="a run with a portable model and an index")
    parser.add_argument("--items", type=int, default=1_000_000, help="number of random codes")
    given = parser.parse_args()
    rounds = 1 if given.smoke else ROUNDS
    commands = dict(COMMANDS)
    with tempfile.TemporaryDirectory() as folder:
        if given.run:
            run = PortableRun.find(given.run)
            if run is None:
                parser.error(f"{given.run} has no portable model")
            search = [*COMMAND, "search", str(given.run), "a red flower"]
            write_random_index(run, given.items, Path(folder))
            commands["multibit search"] = search
            commands[f"... {given.items:,} codes"] = [*search, "--index", folder]
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                times[name].append(seconds(command))
    for name, values in times.items():
        wall, cpu = (statistics.median(each) for each in zip(*values, strict=True))
        least = min(each[0] for each in values)
        print(f"{name:<22}{wall:7.3f} s wall (least {least:.3f}), {cpu:.3f} s CPU   (median of {rounds})")


if __name__ == "__main__":
    main()
