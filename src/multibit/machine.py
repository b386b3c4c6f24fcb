"""The machine that this process runs on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version


def processors() -> int:
    """How many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system has it
        return os.cpu_count() or 1


def versions_here() -> dict[str, str]:
    """Versions of the libraries that a training depends on, of Python, and the processor."""
    libraries = ("multibit", "torch", "numpy", "scipy", "numba", "safetensors")
    found = {name: version(name) for name in libraries}
    return {**found, "python": platform.python_version(), "processor": platform.machine()}
