"""The methods that can be trained, by name."""

from __future__ import annotations

from multibit.config import Config
from multibit.errors import require_known
from multibit.hashing.methods.multibit import METHODS, Method

DEFAULT_METHOD = "multibit-plus"
"""The method of `train` when none is named, in Python and on the command line."""

PAPER_METHOD = "multibit"
"""What a preset of one of the paper's data sets trains unless told otherwise."""


def find_method(name: str) -> Method:
    """The method with this name.

    Raises:
        ConfigError: unknown.
    """
    require_known("method", name, METHODS)
    return METHODS[name]


def choose_method(name: str | None = None, preset: str | None = None) -> Method:
    """The method of a name; without a name the paper's for a preset of its data sets, else the default.

    Raises:
        ConfigError: no such method or preset.

    Example:
        >>> choose_method().name, choose_method(preset="mirflickr").name
        ('multibit-plus', 'multibit')
    """
    if preset is not None:
        Config.preset(preset)  # refuses an unknown one
    return find_method(name or (DEFAULT_METHOD if preset in (None, "default") else PAPER_METHOD))


__all__ = ["DEFAULT_METHOD", "METHODS", "PAPER_METHOD", "Method", "choose_method", "find_method"]
