"""Names of the indices of a run in their folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from multibit.codes.items import Modality
from multibit.codes.layout import Layout
from multibit.paths import located

if TYPE_CHECKING:
    from multibit.search.hits import Hit


INDEX = "index"
"""Name of the folder of the indices in a run folder."""


def index_path(folder: Path, name: str) -> Path:
    """The file of an index in an index folder, see `index_name`."""
    return folder / f"{name}.mbx"


def index_name(layout: Layout, modality: Modality, bits: int | None = None) -> str:
    """Name of the index of one modality that serves a code length, the longest when None.

    Raises:
        DataError: the codes are shorter.

    Example:
        >>> index_name(Layout((16, 32)), "text", 16), index_name(Layout((16, 32), nested=False), "text", 8)
        ('text', 'text-16')
    """
    return modality if layout.nested else f"{modality}-{layout.serving(bits or layout.longest)}"


def located_hits(hits: Sequence[Hit], folder: Path) -> list[Hit]:
    """Hits with the absolute paths of their images.

    Args:
        hits: of an index. folder: of the index, to which it keeps the paths relative.
    """
    return [
        replace(hit, payload={**hit.payload, "image": str(located(image, folder))})
        if isinstance(image := hit.payload.get("image"), str)
        else hit
        for hit in hits
    ]
