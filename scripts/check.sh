#!/usr/bin/env bash
# The full check, in the active virtual environment. CONTRIBUTING.md describes it.
set -euo pipefail
cd "$(dirname "$0")/.."
# Processes of one thread each: two processes with many threads of torch slow each other down. Three keep two cores busy,
# because some tests wait for servers.
export OMP_NUM_THREADS=1
ruff check
ruff format --check
mypy
lint-imports
pytest --numprocesses 3 --dist loadfile
