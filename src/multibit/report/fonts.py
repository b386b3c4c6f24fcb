"""Fonts for texts of any script: the built-in one, then those that are installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from PIL import ImageDraw, ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
PREFERRED = ("dejavusans.", "notosans-regular", "notosanscjk-regular", "notosans", "unifont", "droidsansfallback")
"""Beginnings of file names that are tried first; they have many scripts."""

ENDINGS = (".ttf", ".otf", ".ttc")
NO_CHARACTER = "\U0010ffff"  # no font has it, so it is drawn as the box for missing glyphs


@cache
def font_files() -> tuple[Path, ...]:
    """The installed fonts, those of many scripts first; matplotlib brings one."""
    folders = [Path(folder) for folder in _folders()]
    matplotlib = importlib.util.find_spec("matplotlib")
    if matplotlib is not None and matplotlib.origin is not None:
        folders.append(Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf")
    found = {path for folder in folders for path in folder.rglob("*") if path.suffix.lower() in ENDINGS}
    return tuple(sorted(found, key=lambda path: (_rank(path.name.lower()), path.name, str(path))))


def _folders() -> Iterator[str]:
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home raises where there is none
    if sys.platform == "win32":
        yield from (rf"{os.environ.get('WINDIR', 'C:/Windows')}\Fonts",)
    elif sys.platform == "darwin":
        yield from ("/System/Library/Fonts", "/Library/Fonts", f"{home}/Library/Fonts")
    else:
        yield from ("/usr/share/fonts", "/usr/local/share/fonts", f"{home}/.fonts", f"{home}/.local/share/fonts")


def _rank(name: str) -> int:
    ranks = [place for place, start in enumerate(PREFERRED) if name.startswith(start)]
    heavy = any(word in name for word in ("bold", "italic", "oblique", "black", "mono"))
    return min(ranks, default=len(PREFERRED)) + (len(PREFERRED) + 1 if heavy else 0)


@cache
def _opened(path: Path, size: int) -> Font | None:
    try:
        return ImageFont.truetype(str(path), size)
    except OSError:  # damaged, or a format that is not read
        return None


@cache
def _has(font: Font, character: str) -> bool:
    box, mask = font.getmask(NO_CHARACTER), font.getmask(character)
    return mask.size != box.size or bytes(mask) != bytes(box)


@cache
def _fallback(character: str, size: int) -> Font | None:
    """The first installed font with a glyph for a character."""
    fonts = (_opened(path, size) for path in font_files())
    return next((font for font in fonts if font is not None and _has(font, character)), None)


@cache
def _built_in(size: int) -> Font:
    return ImageFont.load_default(size)


@dataclass
class TextPen:
    """Measures and draws lines of any script.

    Attributes:
        draw: where to. missing: characters for which no installed font has a glyph, so far.

    Example:
        >>> from PIL import Image
        >>> pen = TextPen(ImageDraw.Draw(Image.new("RGB", (100, 20))))
        >>> pen.width("dog", 11) < pen.width("a dog", 11), pen.missing
        (True, set())
    """

    draw: ImageDraw.ImageDraw
    missing: set[str] = field(default_factory=set)

    def width(self, line: str, size: int) -> float:
        """Pixels of a line."""
        return sum(font.getlength(part) for font, part in self._parts(line, size))

    def write(self, corner: tuple[int, int], line: str, size: int, color: str) -> None:
        """Draw one line with its upper left corner there."""
        x: float = corner[0]
        for font, part in self._parts(line, size):
            below = size * 0.95  # fonts differ in their ascents, so parts share the baseline
            if isinstance(font, ImageFont.FreeTypeFont):
                self.draw.text((x, corner[1] + below), part, fill=color, font=font, anchor="ls")
            else:
                self.draw.text((x, corner[1]), part, fill=color, font=font)
            x += font.getlength(part)

    def _parts(self, line: str, size: int) -> list[tuple[Font, str]]:
        """The line in parts of one font each; marks and blanks belong to the letter before them."""
        own, parts = _built_in(size), list[tuple[Font, str]]()
        for character in line:
            font = parts[-1][0] if parts else own
            if not character.isspace() and not _has(font, character):
                font = own if _has(own, character) else _fallback(character, size) or font
                if not _has(font, character):
                    self.missing.add(character)
            elif character.isascii() and not character.isspace():
                font = own
            if parts and parts[-1][0] is font:
                parts[-1] = font, parts[-1][1] + character
            else:
                parts.append((font, character))
        return parts
