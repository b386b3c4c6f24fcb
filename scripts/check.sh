#!/usr/bin/env bash
# The full check, in the active virtual environment. CONTRIBUTING.md describes it.
set -euo pipefail
cd "$(dirname "$0")/.."
# Several processes of one thread each: two processes with many threads of torch slow each other down. Three on
# two processors were measured to be slower than two.
export OMP_NUM_THREADS=1
ruff check
ruff format --check
mypy
lint-imports
pytest --numprocesses auto --maxprocesses 4 --dist loadfile
