"""Search engines: one adapter per file, listed in `ENGINES`."""

from __future__ import annotations

from multibit.search.engines.base import Capabilities, Engine, StoredEngine
from multibit.search.engines.exact import ExactEngine
from multibit.search.engines.faiss import FaissEngine
from multibit.search.engines.lists import ListsEngine
from multibit.search.engines.reference import ReferenceEngine

ENGINES: dict[str, type[Engine]] = {
    "exact": ExactEngine,
    "lists": ListsEngine,
    "faiss": FaissEngine,
    "reference": ReferenceEngine,
}
"""Name -> engine; "exact" is the default."""

__all__ = ["ENGINES", "Capabilities", "Engine", "StoredEngine"]
