#!/usr/bin/env bash
# Write constraints.txt: every direct and indirect dependency of ".[offline,dev]" as installed in the active virtual
# environment. Pass the full check with these versions first; CONTRIBUTING.md describes how.
set -euo pipefail
cd "$(dirname "$0")/.."
python - > constraints.txt.new <<'PYTHON'
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
waiting = [Requirement(each) for each in (*project["dependencies"], *extras["offline"], *extras["dev"])]
pins, seen = {}, set()
while waiting:
    wanted = waiting.pop()
    name = canonicalize_name(wanted.name)
    for extra in wanted.extras | {""}:
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            found = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f'{name} is not installed: pip install -e ".[offline,dev]"') from None
        pins[name] = found.version.partition("+")[0]  # without the suffix of a local build
        needed = map(Requirement, found.requires or ())
        waiting += [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]
print('# Every dependency of ".[offline,dev]" as tested. Written by scripts/pin.sh; do not edit.')
print("\n".join(f"{name}=={version}" for name, version in sorted(pins.items())))
PYTHON
mv constraints.txt.new constraints.txt
