"""How an image becomes the input of a network, as data: the part that needs only Pillow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from multibit.data.images import center_square
from multibit.errors import ConfigError

SETTINGS = "preprocessor_config.json"


class Preparation(Protocol):
    """Prepares an image, and describes itself as plain values."""

    def apply(self, image: Image.Image) -> NDArray[np.uint8]:
        """One RGB image -> (height, width, 3)."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        ...


@dataclass(frozen=True)
class Scaling:
    """How an image becomes the network's input.

    Attributes:
        shortest: length that the shorter side is scaled to before the centre is cropped; None scales the whole image to
            `width` x `height`.
        width, height: of the input, in pixels. filter: resampling filter of Pillow.
        factor, mean, deviation: the input is (pixels * factor - mean) / deviation, per channel.
    """

    shortest: int | None
    width: int
    height: int
    filter: Image.Resampling
    factor: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Scaling:
        """From the settings of an image processor of `transformers`.

        Raises:
            ConfigError: its output has no fixed size, or it does something that is not supported.
        """
        size, crop = dict(settings.get("size") or {}), dict(settings.get("crop_size") or {})
        cut = crop if settings.get("do_center_crop") else {}
        shortest = size.get("shortest_edge")
        final = cut if shortest else size
        fits = bool(shortest) or not cut or cut == size
        if not settings.get("do_resize") or settings.get("do_pad") or not fits or not {"height", "width"} <= set(final):
            raise ConfigError(
                f"asks for images of size {size}, crop {crop}; only a fixed size, or the centre of an image whose "
                "shorter side is scaled, is supported.",
                field=SETTINGS,
            )
        width, height = int(final["width"]), int(final["height"])
        if shortest and shortest < max(width, height):
            raise ConfigError(
                f"a crop of {width} x {height} does not fit into a shorter side of {shortest}.", field=SETTINGS
            )
        scaled, normal = settings.get("do_rescale"), settings.get("do_normalize")
        return cls(
            int(shortest) if shortest else None, width, height, Image.Resampling(settings.get("resample", 3)),
            float(settings["rescale_factor"]) if scaled else 1.0,
            tuple(map(float, settings["image_mean"])) if normal else (0.0,) * 3,
            tuple(map(float, settings["image_std"])) if normal else (1.0,) * 3,
        )  # fmt: skip

    def describe(self) -> str:
        """Human-readable, for the recipe."""
        part = f"middle of shorter side {self.shortest}" if self.shortest else "all"
        return (
            f"{part}, {self.width} x {self.height} {self.filter.name.lower()}, "
            f"(x * {self.factor:.6g} - {list(self.mean)}) / {list(self.deviation)}"
        )

    def apply(self, image: Image.Image) -> NDArray[np.uint8]:
        """One RGB image -> (height, width, 3); pixels that are cropped away are never computed."""
        width, height = image.size
        if self.shortest is None:
            return np.asarray(image.resize((self.width, self.height), self.filter))
        short = min(width, height)
        scaled = int(self.shortest * width / short), int(self.shortest * height / short)
        left, top = (scaled[0] - self.width) // 2, (scaled[1] - self.height) // 2
        across, down = width / scaled[0], height / scaled[1]
        box = (
            left * across,
            top * down,
            min((left + self.width) * across, width),
            min((top + self.height) * down, height),
        )
        return np.asarray(image.resize((self.width, self.height), self.filter, box=box))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"kind": "scaling", **asdict(self), "filter": self.filter.name.lower()}


@dataclass(frozen=True)
class CenterSquare:
    """Scales the shorter side of an image and crops the central square, see `multibit.data.images.center_square`.

    Attributes:
        side: of the square, in pixels.
    """

    side: int

    def apply(self, image: Image.Image) -> NDArray[np.uint8]:
        """One RGB image -> (side, side, 3)."""
        return np.asarray(center_square(image, self.side))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"kind": "center square", **asdict(self), "filter": "bicubic"}


def preparation_of(values: Mapping[str, Any]) -> Preparation:
    """Inverse of `to_dict`.

    Raises:
        KeyError, TypeError, ValueError: other values.

    Example:
        >>> preparation_of(CenterSquare(224).to_dict())
        CenterSquare(side=224)
    """
    if values["kind"] == "center square":
        return CenterSquare(int(values["side"]))
    given = {name: value for name, value in values.items() if name not in ("kind", "filter")}
    given |= {name: tuple(given[name]) for name in ("mean", "deviation")}
    return Scaling(**given, filter=Image.Resampling[values["filter"].upper()])
