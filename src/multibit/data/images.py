"""Decoding of image files to RGB."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from multibit.errors import DataError
from multibit.paths import require_regular

DEEP = 1 << 16
"""Values of an image of 16 bits are below this."""

BRIGHT = 16
"""A float image whose largest value is above 1 and below this is neither in the range to 1 nor in that to 255."""

MAX_PIXELS = 89_478_485
"""Larger images are refused: decoding them could exhaust the memory. Pillow warns above the same number."""


READ = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "SGI", "TGA", "TIFF", "WEBP")
"""Formats that are read; the decoders of others, such as EPS, start programs."""

SIXTEEN = ("PNG", "PPM")
"""Formats whose integers of more than 8 bits have 16, as Pillow decodes them."""

UPLOADED = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""Formats that are read from strangers over the network."""


def open_image(path: Path) -> Image.Image:
    """Decode an image file to RGB: EXIF orientation applied, transparency over white, 16 bits and floats scaled to 8.

    Of 16 bits the upper 8 are kept, in grey as in colour and whatever the values are, so that all images of a data set
    are scaled alike. Integers of 32 bits and floats have no declared range: values above 255, or above 1, tell it.

    Raises:
        DataError: missing, not a regular file, empty, truncated, not an image, more than `MAX_PIXELS` pixels, or values
            of an unknown range.
    """
    if os.path.exists(path):  # noqa: PTH110 - `Path.exists` raises for a name that is too long
        require_regular(path)
        if not path.stat().st_size:
            raise DataError("is empty.", file=path)
    try:
        return decode_image(path, max_pixels=MAX_PIXELS)
    except DataError as error:
        raise error.within(path) from None


def decode_image(
    source: Path | BinaryIO, *, max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] = READ
) -> Image.Image:
    """Decode an image to RGB, as `open_image`, from a path or an open file.

    Args:
        source: of the image. max_pixels: more are refused before decoding. formats: of Pillow.

    Raises:
        DataError: as `open_image`.
    """
    try:
        with Image.open(source, formats=formats) as file:
            if file.width * file.height > max_pixels:
                raise DataError(f"{file.width} x {file.height} pixels; at most {max_pixels:,} pixels are decoded.")
            file.load()
            return _to_rgb(ImageOps.exif_transpose(file), sixteen=file.format in SIXTEEN)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError("no such image.") from None
    except UnidentifiedImageError:
        raise DataError("not an image in a known format.") from None
    except Image.DecompressionBombError:
        raise DataError(f"too many pixels; at most {max_pixels:,} pixels are decoded.") from None
    except Exception as error:  # a damaged file can make its decoder raise anything
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot be decoded ({reason}).") from None


def _to_rgb(image: Image.Image, sixteen: bool) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        about = image.info  # with a transparent colour
        values = np.asarray(image if image.mode == "F" else image.convert("I"))
        sixteen = image.mode.startswith("I;16") or (sixteen and image.mode == "I")
        image = Image.fromarray((values >> 8).astype(np.uint8) if sixteen else _scaled(values))
        image.info.update(about)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _scaled(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Integers of 32 bits or floats as 8 bits.

    Raises:
        DataError: values that are in none of the ranges that are in use.
    """
    low, high = float(values.min(initial=0)), float(values.max(initial=0))
    is_float = values.dtype.kind == "f"
    if not low >= 0 or not high < DEEP or (is_float and 1 < high < BRIGHT):  # NaN is refused too
        raise DataError(f"values from {low:g} to {high:g}; 0 to 1 (floats), to 255 or to 65,535 are read.")
    if is_float and high <= 1:
        return np.round(values * 255).astype(np.uint8)
    return (values / 256 if high > 255 else values).astype(np.uint8)


def center_square(image: Image.Image, side: int) -> Image.Image:
    """Scale the shorter side to `side` pixels (bicubic) and crop the central square."""
    return ImageOps.fit(image, (side, side), Image.Resampling.BICUBIC)
