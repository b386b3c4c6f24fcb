#!/usr/bin/env bash
# The full check, in the active virtual environment. CONTRIBUTING.md describes it.
set -euo pipefail
cd "$(dirname "$0")/.."
ruff check
ruff format --check
mypy
lint-imports
pytest
