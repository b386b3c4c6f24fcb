#!/usr/bin/env bash
# Build the sdist, and from it the wheel, into dist/ or another folder, and check both.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
python -m build --no-isolation --outdir "$out"
twine check --strict "$out"/*
check-wheel-contents "$out"/*.whl
