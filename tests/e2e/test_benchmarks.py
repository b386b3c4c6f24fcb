"""Every benchmark runs, in its smoke size."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from commands import done

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SHARED = {"common", "trainings"}  # what several of them import
PRINTED = {
    "duplicates": "peak memory",
    "evaluation": "Aim: 20 x the loop",
    "extraction": "decoding alone",
    "free": "UCCH, R@10",
    "gpu_check": "text: ",
    "hnsw": "| clustered | 128 | 1000 |",
    "index": "two readers, a writer",
    "plus": "cross-length tau-b, multibit-plus",
    "remote": "batch of 32, ms/query",
    "report": "with the report, this version",
    "resolution": "peak memory",
    "scale": "a billion codes",
    "scale_of_reports": "400 reproduce",
    "search": "pruned lists",
    "serve": "soak: {",
    "startup": "multibit --help",
    "training": "medians of 1 rounds",
}
NEEDS = {
    "duplicates": "faiss", "hnsw": "psycopg", "index": "faiss", "remote": "psycopg", "search": "faiss",
    "serve": "fastapi",
}  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _same_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_benchmark_is_tested():
    assert {path.stem for path in BENCHMARKS.glob("*.py")} == {*PRINTED, *SHARED}


@pytest.mark.parametrize(
    ("name", "options", "printed"),
    [
        *((name, [], printed) for name, printed in PRINTED.items()),
        ("scale", ["--verbs"], "a page of items"),
        ("scale", ["--stages"], "64 bits first"),
    ],
    ids=[*PRINTED, "scale --verbs", "scale --stages"],
)
def test_a_benchmark_runs_in_its_smoke_size(name, options, printed, monkeypatch, capsys):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    if name == "remote" and not os.environ.get("MULTIBIT_CHDB"):
        pytest.skip("tests/e2e/test_clickhouse_process.py runs it")
    monkeypatch.syspath_prepend(BENCHMARKS)  # as for a script
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # worker processes find its functions by this name
    spec.loader.exec_module(module)
    start_fewer_processes(name, module, monkeypatch)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--smoke", *options])
    module.main()
    assert printed in capsys.readouterr().out


def start_fewer_processes(name, module, patch):
    """What a benchmark starts in a process of its own runs in this one, except one command of `report`."""

    def again(command, **_):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(sys, "argv", list(map(str, command[1:])))
            module.main()

    def spend(source, *command):
        own = name == "report" and "--no-report" in command
        return real(source, *command) if own else done(*command) and nothing

    if name == "scale":
        patch.setattr(module, "subprocess", SimpleNamespace(run=again, Popen=subprocess.Popen, PIPE=subprocess.PIPE))
        measure, alone = module.print_verb, "a page of items"
        patch.setattr(
            module, "print_verb", lambda path, verb: (measure if verb == alone else module.run_verb)(path, verb)
        )
    elif name in ("report", "scale_of_reports"):
        real = module.spend
        nothing = real.__globals__["Spent"](0, 0, 0)
        patch.setattr(module, "spend", spend)
