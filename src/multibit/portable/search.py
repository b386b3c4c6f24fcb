"""A search by one text in a process that ends after it, without torch, Arrow and numba."""

from __future__ import annotations

from pathlib import Path

from multibit.codes.items import Modality
from multibit.codes.packing import Codes
from multibit.features.base import unread
from multibit.hashing.encode import part_at
from multibit.portable.model import PortableRun
from multibit.search.hits import Hit
from multibit.search.names import index_name, index_path
from multibit.search.single import search_once


def search_text(
    folder: Path,
    text: str,
    k: int,
    bits: int | None = None,
    *,
    searched: Modality = "image",
    indices: Path | None = None,
    max_distance: int | None = None,
) -> tuple[int, list[Hit]] | None:
    """The k nearest items of a text.

    Args:
        folder: of a run with a portable model, or of the model. text: any. k: number of hits. bits: code length; the
            longest when None. searched: modality of the items. indices: folder of the indices; `index` in `folder` when
            None. max_distance: largest distance of a hit.

    Returns:
        The code length, and the hits; None without a portable model, for arguments or an index that only
        `Index.search` takes, and for a text that the encoder cannot read in full, of which `encode_text` says so.

    Raises:
        FormatError, MissingExtraError, MismatchError: as `PortableModel.encode_texts`.
    """
    run = PortableRun.find(folder)
    if run is None:
        return None
    length = run.model.bits if bits is None else bits
    path = indices or folder / "index"
    if k < 1 or not 1 <= length <= run.model.bits or (max_distance or 0) < 0:
        return None
    place = index_path(path, index_name(run.model.layout, searched, length))
    if not place.is_dir() or unread(run.model.text_encoder, text):
        return None
    code = Codes.binarize(part_at(run.model, run.model.encode_texts([text]), length))
    model = run.model.fingerprint()
    hits = search_once(place, code, k, length, model=model, modality=searched, max_distance=max_distance)
    return None if hits is None else (length, hits)
