"""Kills of commands that write: the same command again gives what an undisturbed run gives, and nothing else.

    python tests/faults.py --tries 100           # every command
    python tests/faults.py --command train --seed 7

Each try runs a command in a process of its own and kills it (SIGKILL): half of the tries just before one of its file
operations, chosen at random, the others at a random time. Then the same command runs undisturbed, and the folder is
compared with that of a run that was never killed: contents, and names, so that no temporary file stays.
`tests/e2e/test_faults_cli.py` does this with few tries.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from commands import Letters, cli, settings
from multibit import Index
from multibit.cli import main as program
from multibit.features import extract, packaged

OPERATIONS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "shutil.rmtree", "os.truncate")
ITEMS = 24
TINY = settings(epochs=3, lengths="8,16", scales=2, hidden=16, dimension=8)
SIZES = ["--queries", "6", "--training", "10", "--validation", "4"]


@dataclass(frozen=True)
class Command:
    """A command that is killed.

    Attributes:
        arguments: of the program, in the folder of the try. before: commands that make its inputs.
        ignored: keys of JSON that hold times, and names of files that do.
    """

    arguments: list[str]
    before: list[list[str]] = field(default_factory=list)
    ignored: tuple[str, ...] = ()


FEATURES = ["features", "items.jsonl", "--out", "f", "--image-encoder", "letters", "--text-encoder", "letters"]
TRAIN = ["train", "f", "--out", "run", *TINY, *SIZES]
INDEX = ["index", "run"]
TIMES = ("seconds", "history.jsonl", "cost.md", "cost.csv", "cost.tex", "report.html", "accuracy-and-cost")

COMMANDS: dict[str, Command] = {
    "import": Command(["import", "pairs", "images", "--out", "new.jsonl"]),
    "import of an archive": Command(["import", "webdataset", "shard.tar", "--out", "new.jsonl"]),
    "features": Command(FEATURES),
    "features --update": Command([*FEATURES[:1], "more.jsonl", *FEATURES[2:], "--update"], [FEATURES]),
    "train": Command(TRAIN, [FEATURES], TIMES),
    "train a model for each length": Command([*TRAIN, "--method", "separate"], [FEATURES], TIMES),
    "evaluate": Command(["evaluate", "run", "--no-report", "--save-dir", "field"], [FEATURES, TRAIN], TIMES),
    "evaluate with a report": Command(["evaluate", "run"], [FEATURES, TRAIN, ["evaluate", "run"]], TIMES),
    "index": Command(INDEX, [FEATURES, TRAIN]),
    "index --update": Command([*INDEX, "f", "--update"], [FEATURES, TRAIN, [*INDEX, "--items", "database"]]),
    "export": Command(["export", "run/index/image.mbx", "--out", "index.parquet"], [FEATURES, TRAIN, INDEX]),
    "reproduce": Command(
        ["reproduce", "f", "--out", "made", "--table", "scale-boundary", "--table", "data-split", *SIZES,
         *settings(epochs=2, lengths="16,32", scales=2, hidden=16, dimension=8)],
        [FEATURES], TIMES,
    ),
}  # fmt: skip


def write_inputs(folder: Path) -> None:
    """A data set of small images with texts, twice, and as a tar archive."""
    import tarfile

    (folder / "images").mkdir(parents=True)
    rows = []
    for i in range(ITEMS + 8):
        pixels = np.random.default_rng(i).integers(0, 255, (4, 4, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"images/{i:02}.png")
        (folder / f"images/{i:02}.txt").write_text(f"text {i}")
        labels = [f"topic {i % 4}", f"topic {i % 3}"]
        rows.append(
            json.dumps({"id": f"{i:02}", "image": f"images/{i:02}.png", "texts": [f"text {i}"], "labels": labels})
        )
    (folder / "items.jsonl").write_text("\n".join(rows[:ITEMS]))
    (folder / "more.jsonl").write_text("\n".join(rows))
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for i in range(8):
            for ending in ("png", "txt"):
                tar.add(folder / f"images/{i:02}.{ending}", f"{i:02}.{ending}")


def in_a_process(arguments: list[str], folder: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """Start the program in a forked process, where everything is imported already; its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.chdir(folder)
        said = (folder.parent / "said").open("w")
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        packaged.IMAGE_ENCODERS["letters"] = lambda _: Letters(24)
        packaged.TEXT_ENCODERS["letters"] = lambda _: Letters()
        extract.SHARD = 5
        warnings.simplefilter("ignore")
        prepare()
        code = 0
        with mock.patch.object(sys, "argv", ["multibit", *arguments]):
            try:
                program()
            except SystemExit as stop:
                code = int(stop.code or 0)
        os._exit(code)
    finally:
        os._exit(99)


def run(arguments: list[str], folder: Path) -> None:
    """Run the program to its end.

    Raises:
        AssertionError: it failed, other than because a training was finished already.
    """
    _, status = os.waitpid(in_a_process(arguments, folder), 0)
    said = (folder.parent / "said").read_text()
    assert status == 0 or "holds a finished run" in said, f"{' '.join(arguments)}: {said[-2000:]}"


def count_operations(counted: list[int], kill_at: int | None, pipe: int | None) -> None:
    """Count the file operations of this process, and kill it before the one with this number."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or (event == "open" and not _writes(arguments)):
            return
        counted[0] += 1
        if pipe is not None:
            os.write(pipe, b".")
        if counted[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _writes(arguments: tuple[Any, ...]) -> bool:
    return len(arguments) > 2 and bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def outcome(folder: Path, ignored: tuple[str, ...]) -> dict[str, Any]:
    """The files of a folder with what is in them; the random names in an index are replaced."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            found[f"{name}/"] = None
            if path.suffix == ".mbx":
                index = Index.load(path)
                found[name] = index.codes, list(index.ids), [index.payloads[row] for row in range(len(index))]
        elif ".mbx" in name:
            kind = path.name.partition("-")[0]
            found[f"{path.parent}: {kind}"] = None
        elif any(each in name for each in ignored):
            found[name] = None
        elif path.suffix == ".json":
            found[name] = _without(json.loads(path.read_text()), ignored)
        else:
            found[name] = path.read_bytes() if path.suffix not in (".pdf", ".png", ".mat") else None
    return {key.replace(str(folder), ""): value for key, value in found.items()}


def _without(content: Any, ignored: tuple[str, ...]) -> Any:
    """JSON content without what depends on times: durations, and checksums over them."""
    if isinstance(content, dict):
        left_out = (*ignored, *(["files"] if ignored else []))
        return {key: _without(value, ignored) for key, value in content.items() if key not in left_out}
    return [_without(each, ignored) for each in content] if isinstance(content, list) else content


def warm(command: Command, folder: Path) -> None:
    """Run a command in this process, so that everything is imported and compiled in the forked ones."""
    scratch = folder.parent / "scratch"
    shutil.copytree(folder, scratch, symlinks=True)
    with mock.patch.dict(packaged.IMAGE_ENCODERS), mock.patch.dict(packaged.TEXT_ENCODERS), contextlib.chdir(scratch):
        packaged.IMAGE_ENCODERS["letters"] = lambda _: Letters(24)
        packaged.TEXT_ENCODERS["letters"] = lambda _: Letters()
        cli(*command.arguments)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    shutil.rmtree(scratch)


@functools.cache
def prepared(name: str, root: Path) -> tuple[Path, dict[str, Any], int, float]:
    """The inputs of a command, what it gives undisturbed, its number of file operations, and its duration."""
    command, folder = COMMANDS[name], root / name / "inputs"
    write_inputs(folder)
    for arguments in command.before:
        run(arguments, folder)
    warm(command, folder)
    done = root / name / "done"
    shutil.copytree(folder, done, symlinks=True)
    read, write = os.pipe()
    start = time.perf_counter()
    pid = in_a_process(command.arguments, done, lambda: count_operations([0], None, write))
    os.close(write)
    operations = 0
    while block := os.read(read, 1 << 16):
        operations += len(block)
    os.close(read)
    _, status = os.waitpid(pid, 0)
    assert status == 0, (root / name / "said").read_text()[-2000:]
    return folder, outcome(done, command.ignored), operations, time.perf_counter() - start


def one_try(name: str, root: Path, rng: random.Random, stop: int = signal.SIGKILL) -> bool:
    """Kill a command once and run it again; whether it was killed before its end.

    Raises:
        AssertionError: the same command again fails, or gives something else than an undisturbed run.
    """
    command, (inputs, expected, operations, seconds) = COMMANDS[name], prepared(name, root)
    folder = root / name / "try"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(inputs, folder, symlinks=True)
    if stop == signal.SIGKILL and rng.random() < 0.5:
        number = rng.randint(1, operations)
        about = f"killed before file operation {number} of {operations}"
        pid = in_a_process(command.arguments, folder, lambda: count_operations([0], number, None))
    else:
        delay = rng.random() * seconds
        about = f"stopped by signal {stop} after {delay:.3f} of {seconds:.3f} seconds"
        pid = in_a_process(command.arguments, folder)
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, stop)
    _, status = os.waitpid(pid, 0)
    run(command.arguments, folder)
    found = outcome(folder, command.ignored)
    names = set(found) ^ set(expected)
    assert not names, f"{name}, {about}: {sorted(names)} are there only once"
    wrong = [key for key in expected if found[key] != expected[key]]
    assert not wrong, f"{name}, {about}: other content in {wrong}"
    return status != 0


def main() -> None:
    """Kill all commands or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", choices=list(COMMANDS))
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as root:
        for name in [options.command] if options.command else COMMANDS:
            rng, killed, wrong = random.Random(f"{name} {options.seed}"), 0, list[str]()
            for _ in range(options.tries):
                try:
                    killed += one_try(name, Path(root), rng)
                except AssertionError as error:
                    wrong.append(str(error))
            failed += len(wrong)
            print(f"{name}: {options.tries} tries, killed {killed} times, {len(wrong)} failed", flush=True)
            for each in dict.fromkeys(wrong):
                print(f"  {each}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    sys.stdin = io.StringIO()
    main()
