"""Cost of evaluate, check, index and reproduce by number of items: benchmarks/scale_of_reports.py [--items N ...].

Plants features of 128 and 64 dimensions on 24 labels, with 1,000 queries and 2,000 training items, and trains one
epoch, since quality does not matter here. Each command runs in a process of its own; prints its processor seconds, its
peak memory, and the size of the data. `reproduce` reads the labels only. --before SRC runs the `src` folder of another
version, too. --smoke only checks that everything runs.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
from common import new_parser
from report import HERE, TINY, plant, spend

from multibit import FeatureStore, Run, Split

ITEMS, SMOKE_ITEMS = (100_000, 300_000), 400
TABLES = ("parameters", "data-split", "scale-coverage", "quadrature-fidelity", "teacher-quality", "teacher-aligned")
MB = 1 << 20


def prepare(folder: Path, items: int, *, smoke: bool) -> None:
    """Features, their labels alone, and a run, made where they are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    features, labels, run = folder / "features.npz", folder / "labels.npz", folder / "run"
    if not features.exists():
        plant(items, features, labels=24, image=128, text=64)
        with np.load(features) as planted:
            np.savez(labels, labels=planted["labels"])
    if not (run / "run.json").exists():
        store = FeatureStore.open(features)
        sizes = {"query": 60, "train": 120} if smoke else {"query": 1_000, "train": 2_000}
        split = Split.draw(items, **sizes, validation=sizes["query"] // 2)
        Run.create(run, store, split, method="multibit-plus", **(TINY if smoke else {"epochs": 1}))


def commands(folder: Path, scratch: Path, *, smoke: bool) -> dict[str, tuple[object, ...]]:
    """Each command by its name."""
    features, run = folder / "features.npz", folder / "run"
    query, train, validation = (60, 120, 30) if smoke else (1_000, 2_000, 500)
    sizes = ("--queries", query, "--training", train, "--validation", validation)
    tables = [part for name in TABLES for part in ("--table", name)]
    report = ("--report", scratch / "report", "--out", scratch / "e.json")
    return {
        "evaluate": ("evaluate", run, features, *report),
        "check": ("check", features),
        "index": ("index", run, features, "--out", scratch / "index"),
        "reproduce": ("reproduce", folder / "labels.npz", *tables, *sizes, "--out", scratch / "made"),
    }


def main() -> None:
    """Print the cost of each command at each number of items."""
    parser = new_parser(__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=ITEMS)
    parser.add_argument("--only", nargs="+", help="names of commands")
    parser.add_argument("--keep", type=Path, help="folder of the planted features and their runs")
    parser.add_argument("--before", type=Path, help="src folder of another version")
    options = parser.parse_args()
    sources = {**({"before": options.before} if options.before else {}), "now": HERE}
    print(f"{'items':>9} {'command':12}{'version':9}{'processor s':>12}{'peak MB':>9}{'data MB':>9}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for items in (SMOKE_ITEMS,) if options.smoke else options.items:
            folder = (options.keep or Path(temporary)) / str(items)
            prepare(folder, items, smoke=options.smoke)
            for name, source in sources.items():
                scratch = Path(temporary) / "out"
                for what, command in commands(folder, scratch, smoke=options.smoke).items():
                    if options.only and what not in options.only:
                        continue
                    data = folder / ("labels.npz" if what == "reproduce" else "features.npz")
                    scratch.mkdir(exist_ok=True)
                    spent = spend(source, *command)
                    shutil.rmtree(scratch)
                    numbers = f"{spent.processor:12.1f}{spent.peak:9.0f}{data.stat().st_size / MB:9.0f}"
                    print(f"{items:9,} {what:12}{name:9}{numbers}", flush=True)


if __name__ == "__main__":
    main()
