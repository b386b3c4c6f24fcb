"""The methods that can be trained, by name."""

from __future__ import annotations

from multibit.errors import ConfigError
from multibit.hashing.methods.multibit import METHODS, Method

DEFAULT_METHOD = "multibit-plus"
"""The method of `train` when none is named, in Python and on the command line."""


def find_method(name: str) -> Method:
    """The method with this name.

    Raises:
        ConfigError: unknown.
    """
    if name not in METHODS:
        raise ConfigError(f"unknown method {name!r}; choose from {', '.join(METHODS)}.", option="method")
    return METHODS[name]


__all__ = ["DEFAULT_METHOD", "METHODS", "Method", "find_method"]
