"""Picture files as people have them -> RGB pictures, or a sentence about why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from multibit.errors import DataError

MAX_PIXELS = 89_478_485
"""Larger pictures are refused: decoding them could exhaust the memory. Pillow warns from the same number on."""


def open_picture(path: Path) -> Image.Image:
    """Decode a picture file to RGB: turned upright by its EXIF tag, transparency over white, 16 bits scaled to 8.

    Raises:
        DataError: missing, empty, truncated, not a picture, or larger than `MAX_PIXELS`; says which.
    """
    try:
        with Image.open(path) as file:
            if file.width * file.height > MAX_PIXELS:
                raise DataError(f"{path}: {file.width} x {file.height} pixels, at most {MAX_PIXELS:,} are read.")
            file.load()
            return _to_rgb(ImageOps.exif_transpose(file))
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such picture.") from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: not a picture in a known format.") from None
    except Image.DecompressionBombError:
        raise DataError(f"{path}: too many pixels, at most {MAX_PIXELS:,} are read.") from None
    except Exception as error:  # a damaged file makes its decoder raise anything
        raise DataError(f"{path}: cannot be decoded ({getattr(error, 'strerror', None) or error}).") from None


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):  # 16 bits, or 32 of which 8 or 16 are used
        whole = picture.convert("I")
        deep = int(np.asarray(whole).max(initial=0)) > 255
        picture = (whole.point(lambda value: value / 256) if deep else whole).convert("L")
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    return picture.convert("RGB")


def center_square(picture: Image.Image, side: int) -> Image.Image:
    """Scale the shorter side to `side` (bicubic) and cut the middle square."""
    return ImageOps.fit(picture, (side, side), Image.Resampling.BICUBIC)
