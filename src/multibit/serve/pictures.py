"""The images of items as the server sends them: small copies, or the file itself where browsers can show it."""

from __future__ import annotations

import hashlib
import io
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from multibit.data.images import open_image
from multibit.errors import DataError
from multibit.serve.problems import not_found

SHOWN = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
"""Formats that browsers show."""

KEPT = 2_000  # small copies in memory, of about 10 kB each


class Picture(NamedTuple):
    """An image file in memory: its bytes, media type, and a tag that changes with the content."""

    content: bytes
    media_type: str
    tag: str


def read_picture(path: Path, width: int | None) -> Picture:
    """The image of an item.

    Args:
        path: of the file. width: largest width and height of a copy; the file itself when None.

    Raises:
        RefusedError: the file is missing or not an image.
    """
    try:
        changed = path.stat().st_mtime_ns
        if width is None:
            return _original(path)
        return _copy(path, width, changed)
    except (OSError, DataError):
        raise not_found("readable image") from None


def _original(path: Path) -> Picture:
    """The file where browsers can show its format, else a copy of full size."""
    with Image.open(path, formats=tuple(SHOWN)) as file:
        media_type = SHOWN[str(file.format)]
    content = path.read_bytes()
    return Picture(content, media_type, _tag(content))


@lru_cache(KEPT)
def _copy(path: Path, width: int, changed: int) -> Picture:
    """A copy that fits a square; `changed` tells apart what a file held before."""
    image = open_image(path)
    image.thumbnail((width, width))
    out = io.BytesIO()
    image.save(out, "WEBP", quality=82)
    return Picture(out.getvalue(), "image/webp", _tag(out.getvalue()))


def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:16]}"'
