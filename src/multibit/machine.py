"""The machine that this process runs on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

from multibit.errors import ConfigError, require_integer


def processors() -> int:
    """How many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system has it
        return os.cpu_count() or 1


def threads_or_all(threads: int | None) -> int:
    """A number of threads: all processors when None.

    Raises:
        ConfigError: not a whole number of at least 1.

    Example:
        >>> threads_or_all(2)
        2
    """
    return processors() if threads is None else require_integer(threads, 1, "threads", kind=ConfigError)


def versions_here() -> dict[str, str]:
    """Versions of the libraries that a training depends on, of Python, and the processor."""
    libraries = ("multibit", "torch", "numpy", "scipy", "numba", "safetensors")
    found = {name: version(name) for name in libraries}
    return {**found, "python": platform.python_version(), "processor": platform.machine()}
