"""The items of an index as a data set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multibit.data import PairedDataset
from multibit.data.dataset import Item
from multibit.paths import located
from multibit.search.index import Index

FIELDS = {"image": "string", "text": "string", "labels": "list"}
"""Fields that `build_indices` writes -> their kind."""
ROWS = 1000


def items_of(index: Index, folder: Path) -> tuple[PairedDataset, Any]:
    """The items of an index, and an Arrow table of its further fields.

    Args:
        index: not empty. folder: of the index, to which it keeps the paths of the images relative.

    Raises:
        DataError: the index is empty.

    Example:
        >>> from multibit import Codes
        >>> index = Index()
        >>> index.add(["a"], Codes.from_bits([[1]]), [{"text": "a cat", "labels": ["cat"], "year": 2001}])
        >>> items, fields = items_of(index, Path("index"))
        >>> items.ids, items.texts, items.label_names, fields.to_pylist()
        (('a',), (('a cat',),), ('cat',), [{'year': 2001}])
    """
    known = [name for name, kind in FIELDS.items() if index.fields.get(name) == kind]
    further = index.payloads.only([name for name in index.fields if name not in known])
    return PairedDataset.of_items(_items(index, known, folder)), further.to_table()


def _items(index: Index, known: list[str], folder: Path) -> Iterator[Item]:
    table, ids = index.payloads.only(known).to_table(), index.ids
    for start in range(0, len(index), ROWS):
        rows = table.slice(start, ROWS).to_pylist() if known else [{}] * min(ROWS, len(index) - start)
        for row, payload in enumerate(rows, start=start):
            image, text = payload.get("image"), payload.get("text")
            yield str(ids[row]), located(image, folder) if image else None, [text or ""], payload.get("labels") or ()
