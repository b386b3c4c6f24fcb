"""Searches -> one picture that a person can judge: each query with its hits at several lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from multibit.data.pictures import open_picture
from multibit.errors import DataError
from multibit.files import replacing
from multibit.search import Hit

THUMB, PAD, LINE = 112, 8, 14  # pixels
CELL_WIDTH, CELL_HEIGHT = THUMB + 2 * PAD, THUMB + 3 * LINE + 2 * PAD
GREEN, GREY, INK, PAPER = "#1a7f37", "#8c959f", "#1f2328", "white"


@dataclass(frozen=True)
class Search:
    """One query and its hits.

    Attributes:
        title: what was asked, for people. labels: of the query, empty when unknown.
        image: the query's picture, None for a text query. rows: hits by code length.
        show: "image" draws the hits' pictures, "text" writes their texts.
    """

    title: str
    labels: frozenset[str]
    image: Path | None
    rows: Mapping[int, Sequence[Hit]]
    show: str


def contact_sheet(searches: Sequence[Search], path: Path) -> None:
    """Draw the searches below each other and write a PNG.

    Every hit shows its labels and distance, or the score of a relaxed query; a green frame marks a hit that shares a
    label with the query.
    """
    columns = max((len(hits) for search in searches for hits in search.rows.values()), default=0) + 1
    heights = [LINE * 2 + CELL_HEIGHT * len(search.rows) + PAD for search in searches]
    sheet = Image.new("RGB", (columns * CELL_WIDTH + PAD, sum(heights) + PAD), PAPER)
    draw = ImageDraw.Draw(sheet)
    top = PAD
    for search, height in zip(searches, heights, strict=True):
        _draw_search(sheet, draw, search, top)
        top += height
    with replacing(path) as temporary:
        sheet.save(temporary, format="PNG")


def _draw_search(sheet: Image.Image, draw: ImageDraw.ImageDraw, search: Search, top: int) -> None:
    known = f"   [{', '.join(sorted(search.labels))}]" if search.labels else ""
    _write(draw, (PAD, top), search.title + known, sheet.width - 2 * PAD, lines=1, size=13)
    for row, (bits, hits) in enumerate(search.rows.items()):
        y = top + 2 * LINE + row * CELL_HEIGHT
        if search.image and row == 0:
            _paste(sheet, search.image, (PAD, y + PAD))
        _write(draw, (PAD, y + CELL_HEIGHT - 2 * LINE), f"{bits} bits", THUMB, lines=1, size=13)
        for column, hit in enumerate(hits, start=1):
            _draw_hit(sheet, draw, search, hit, (column * CELL_WIDTH, y))


def _draw_hit(sheet: Image.Image, draw: ImageDraw.ImageDraw, search: Search, hit: Hit, corner: tuple[int, int]) -> None:
    x, y = corner
    labels = [str(label) for label in hit.payload.get("labels") or ()]
    box = (x + 2, y + 2, x + CELL_WIDTH - 3, y + CELL_HEIGHT - 3)
    shares = bool(search.labels & set(labels))
    draw.rectangle(box, outline=GREEN if shares else GREY, width=3 if shares else 1)
    picture = hit.payload.get("image")
    if search.show == "image" and picture:
        _paste(sheet, Path(picture), (x + PAD, y + PAD))
    else:
        _write(draw, (x + PAD, y + PAD), str(hit.payload.get("text") or hit.id), THUMB, lines=THUMB // LINE)
    caption = y + PAD + THUMB + 4
    relaxed = isinstance(hit.distance, float)  # then it is the inner product
    found = f"score {hit.distance:.2f}" if relaxed else f"distance {hit.distance}"
    if "relevance" in hit.payload:  # a graded one leaves room for letters only
        found = f"{hit.rank}: d {hit.distance}, r {hit.payload['relevance']:.2f}"
    _write(draw, (x + PAD, caption), found, THUMB, lines=1)
    _write(draw, (x + PAD, caption + LINE), ", ".join(labels) or "no label", THUMB, lines=2, color=GREY)


def _paste(sheet: Image.Image, path: Path, corner: tuple[int, int]) -> None:
    """The thumbnail, or an empty frame where the picture is gone."""
    try:
        picture = open_picture(path)
    except DataError:
        picture = Image.new("RGB", (THUMB, THUMB), "#eaeef2")
    picture.thumbnail((THUMB, THUMB))
    x, y = corner
    sheet.paste(picture, (x + (THUMB - picture.width) // 2, y + (THUMB - picture.height) // 2))


def _write(
    draw: ImageDraw.ImageDraw,
    corner: tuple[int, int],
    text: str,
    width: int,
    *,
    lines: int,
    size: int = 11,
    color: str = INK,
) -> None:
    """Write at most `lines` lines of `width` pixels."""
    font = ImageFont.load_default(size)
    wrapped = _wrap(text, font, width)
    if len(wrapped) > lines:
        wrapped = [*wrapped[: lines - 1], _wrap(wrapped[lines - 1], font, width - 2 * size)[0] + "…"]
    draw.multiline_text(corner, "\n".join(wrapped), fill=color, font=font, spacing=2)


def _wrap(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    """Break a text into lines of at most `width` pixels, between words where that is possible."""
    lines = [""]
    for word in text.split():
        line = f"{lines[-1]} {word}".strip()
        if font.getlength(line) <= width:
            lines[-1] = line
            continue
        rest = word
        while rest:  # a word wider than the line is cut
            fits = next((n for n in range(len(rest), 1, -1) if font.getlength(rest[:n]) <= width), 1)
            lines.append(rest[:fits])
            rest = rest[fits:]
    return lines if lines[0] or len(lines) == 1 else lines[1:]
