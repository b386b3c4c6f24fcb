"""The index: exact search for the nearest items at any prefix length."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from multibit.search.batches import QueryFile
    from multibit.search.hits import Hit
    from multibit.search.index import Index
    from multibit.search.results import SearchResult, write_hits

__all__ = ["Hit", "Index", "QueryFile", "SearchResult", "write_hits"]

# loaded on first use, so that one query is answered without Arrow and numba
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "batches": ["QueryFile"],
        "hits": ["Hit"],
        "index": ["Index"],
        "results": ["SearchResult", "write_hits"],
    },
)
