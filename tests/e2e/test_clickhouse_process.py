"""ClickHouse inside a process: its tests run in a process of their own, stopped if the engine never answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/contracts/test_indices_contract.py",
    "tests/unit/test_remote.py",
    "tests/e2e/test_benchmarks.py::test_a_benchmark_runs_in_its_smoke_size[remote]",
)
LIMIT = 300  # seconds; they take about 20


@pytest.mark.slow
def test_the_tests_of_clickhouse_in_a_process_pass():
    pytest.importorskip("chdb", reason="chdb is not installed: pip install chdb-core-lite")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "chdb or smoke", *TESTS]
    environment = {**os.environ, "MULTIBIT_CHDB": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run(command, cwd=ROOT, env=environment, timeout=LIMIT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-3000:]
