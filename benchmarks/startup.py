"""Startup time: python benchmarks/startup.py [--smoke].

Times whole processes: `import multibit` (aim: under 0.3 s) and `multibit --help` (aim: under 0.5 s), compared with an
empty Python. --smoke runs each once.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

ROUNDS = 9
COMMANDS = {
    "python, nothing": [sys.executable, "-c", "pass"],
    "import multibit": [sys.executable, "-c", "import multibit"],
    "multibit --help": [
        sys.executable,
        "-c",
        "import sys; sys.argv[1:] = ['--help']; from multibit.cli import main; main()",
    ],
}


def seconds(command: list[str]) -> float:
    """Wall time of one process."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="run each process once")
    rounds = 1 if parser.parse_args().smoke else ROUNDS
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            times[name].append(seconds(command))
    for name, values in times.items():
        print(f"{name:<18}{statistics.median(values):7.3f} s   (median of {rounds}, at most {max(values):.3f} s)")


if __name__ == "__main__":
    main()
