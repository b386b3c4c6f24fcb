"""The index in a database: ClickHouse and PostgreSQL behind the verbs of `Index`."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from multibit.search.remote.approximate import recall
    from multibit.search.remote.index import RemoteIndex
    from multibit.search.remote.loading import load
    from multibit.search.remote.opening import create_remote, open_remote

__all__ = ["RemoteIndex", "create_remote", "load", "open_remote", "recall"]

# loaded on first use: the command line looks at URLs only
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "approximate": ["recall"],
        "index": ["RemoteIndex"],
        "loading": ["load"],
        "opening": ["create_remote", "open_remote"],
    },
)
