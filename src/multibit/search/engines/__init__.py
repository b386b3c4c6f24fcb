"""Search engines: one adapter per file, listed in `ENGINES`."""

from __future__ import annotations

from collections.abc import Callable

from multibit.codes import Codes
from multibit.errors import ConfigError
from multibit.search.engines.base import Capabilities, Engine
from multibit.search.engines.exact import ExactEngine
from multibit.search.engines.faiss import FaissEngine
from multibit.search.engines.lists import ListsEngine
from multibit.search.engines.reference import ReferenceEngine

ENGINES: dict[str, Callable[[Codes], Engine]] = {
    "exact": ExactEngine,
    "lists": ListsEngine,
    "faiss": FaissEngine,
    "reference": ReferenceEngine,
}
"""Name -> engine; "exact" is the default."""


def check_engine(name: str) -> str:
    """The name, if an engine has it.

    Raises:
        ConfigError: unknown engine.
    """
    if name not in ENGINES:
        raise ConfigError(f"unknown engine {name!r}; choose from {', '.join(ENGINES)}.", option="engine")
    return name


__all__ = ["ENGINES", "Capabilities", "Engine", "check_engine"]
