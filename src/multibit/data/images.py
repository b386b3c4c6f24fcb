"""Decoding of image files to RGB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from multibit.errors import DataError

MAX_PIXELS = 89_478_485
"""Larger images are refused: decoding them could exhaust the memory. Pillow warns above the same number."""


def open_image(path: Path) -> Image.Image:
    """Decode an image file to RGB: EXIF orientation applied, transparency over white, 16 bits scaled to 8.

    Raises:
        DataError: missing, empty, truncated, not an image, or more than `MAX_PIXELS` pixels.
    """
    try:
        with Image.open(path) as file:
            if file.width * file.height > MAX_PIXELS:
                raise DataError(
                    f"{file.width} x {file.height} pixels; at most {MAX_PIXELS:,} pixels are decoded.", file=path
                )
            file.load()
            return _to_rgb(ImageOps.exif_transpose(file))
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError("no such image.", file=path) from None
    except UnidentifiedImageError:
        raise DataError("not an image in a known format.", file=path) from None
    except Image.DecompressionBombError:
        raise DataError(f"too many pixels; at most {MAX_PIXELS:,} pixels are decoded.", file=path) from None
    except Exception as error:  # a damaged file can make its decoder raise anything
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot be decoded ({reason}).", file=path) from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits, or 32 of which 8 or 16 are used
        whole = image.convert("I")
        deep = int(np.asarray(whole).max(initial=0)) > 255
        image = (whole.point(lambda value: value / 256) if deep else whole).convert("L")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def center_square(image: Image.Image, side: int) -> Image.Image:
    """Scale the shorter side to `side` pixels (bicubic) and crop the central square."""
    return ImageOps.fit(image, (side, side), Image.Resampling.BICUBIC)
