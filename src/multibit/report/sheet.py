"""Contact sheets: one image of queries and their hits at several code lengths."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from multibit.data.images import open_image
from multibit.errors import DataError
from multibit.paths import replacing
from multibit.report.fonts import TextPen
from multibit.search import Hit

THUMB, PAD, LINE = 112, 8, 14  # pixels
LONGEST = 2_000  # characters of a text that are looked at; fewer fit
CELL_WIDTH, CELL_HEIGHT = THUMB + 2 * PAD, THUMB + 4 * LINE + 2 * PAD
MADE_BY = "multibit contact sheet"  # in the file, so that only sheets are replaced
GREEN, GREY, INK, PAPER = "#1a7f37", "#8c959f", "#1f2328", "white"


@dataclass(frozen=True)
class Search:
    """One query and its hits.

    Attributes:
        title: human-readable query. labels: of the query, empty when unknown.
        image: file of the query image, None for a text query. rows: code length -> hits.
        show: modality of the hits: "image" draws their images, "text" writes their texts.
    """

    title: str
    labels: frozenset[str]
    image: Path | None
    rows: Mapping[int, Sequence[Hit]]
    show: str


def contact_sheet(searches: Sequence[Search], path: Path) -> frozenset[str]:
    """Write a PNG of the searches, as `draw_sheet` draws them.

    Returns:
        The characters for which no installed font has a glyph.
    """
    made_by, missing = PngInfo(), set[str]()
    made_by.add_text("Software", MADE_BY)
    with replacing(path) as temporary:
        draw_sheet(searches, missing).save(temporary, format="PNG", pnginfo=made_by)
    return frozenset(missing)


def require_sheet_target(path: Path) -> None:
    """Refuse to replace a file that is not a contact sheet: it could be the image of an item.

    Raises:
        DataError: it exists and is another file.
    """
    if not path.exists():
        return
    try:
        with Image.open(path) as image:
            if image.info.get("Software") == MADE_BY:
                return
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError):
        pass
    raise DataError("exists and is not a contact sheet.", file=path, hint="Choose another name.")


def draw_sheet(searches: Sequence[Search], missing: set[str] | None = None) -> Image.Image:
    """Draw the searches below each other.

    Every hit shows its id, its labels, and its distance, or its score for a relaxed query. A green frame marks a hit
    that shares a label with the query.

    Args:
        searches: to draw. missing: gets the characters for which no installed font has a glyph.
    """
    columns = max((len(hits) for search in searches for hits in search.rows.values()), default=0) + 1
    heights = [LINE * 2 + CELL_HEIGHT * len(search.rows) + PAD for search in searches]
    sheet = Image.new("RGB", (columns * CELL_WIDTH + PAD, sum(heights) + PAD), PAPER)
    pen = TextPen(ImageDraw.Draw(sheet), set() if missing is None else missing)
    top = PAD
    for search, height in zip(searches, heights, strict=True):
        _draw_search(sheet, pen, search, top)
        top += height
    return sheet


def _draw_search(sheet: Image.Image, pen: TextPen, search: Search, top: int) -> None:
    known = f"   [{', '.join(sorted(search.labels))}]" if search.labels else ""
    _write(pen, (PAD, top), search.title + known, sheet.width - 2 * PAD, lines=1, size=13)
    for row, (bits, hits) in enumerate(search.rows.items()):
        y = top + 2 * LINE + row * CELL_HEIGHT
        if search.image and row == 0:
            _paste(sheet, search.image, (PAD, y + PAD))
        _write(pen, (PAD, y + CELL_HEIGHT - 2 * LINE), f"{bits} bits", THUMB, lines=1, size=13)
        for column, hit in enumerate(hits, start=1):
            _draw_hit(sheet, pen, search, hit, (column * CELL_WIDTH, y))


def _draw_hit(sheet: Image.Image, pen: TextPen, search: Search, hit: Hit, corner: tuple[int, int]) -> None:
    x, y = corner
    labels = [str(label) for label in hit.payload.get("labels") or ()]
    box = (x + 2, y + 2, x + CELL_WIDTH - 3, y + CELL_HEIGHT - 3)
    shares = bool(search.labels & set(labels))
    pen.draw.rectangle(box, outline=GREEN if shares else GREY, width=3 if shares else 1)
    image = hit.payload.get("image")
    if search.show == "image" and image:
        _paste(sheet, Path(image), (x + PAD, y + PAD))
    else:
        _write(pen, (x + PAD, y + PAD), str(hit.payload.get("text") or hit.id), THUMB, lines=THUMB // LINE)
    caption = y + PAD + THUMB + 4
    _write(pen, (x + PAD, caption), _caption(hit), THUMB, lines=1)
    _write(pen, (x + PAD, caption + LINE), str(hit.id), THUMB, lines=1)
    _write(pen, (x + PAD, caption + 2 * LINE), ", ".join(labels) or "no label", THUMB, lines=2, color=GREY)


def _caption(hit: Hit) -> str:
    if "relevance" in hit.payload:  # rank, distance and graded relevance, abbreviated to fit
        return f"{hit.rank}: d {hit.distance}, r {hit.payload['relevance']:.2f}"
    return f"distance {hit.distance}" if hit.score is None else f"score {hit.score:.2f}"


def _paste(sheet: Image.Image, path: Path, corner: tuple[int, int]) -> None:
    """Paste a thumbnail, or an empty frame if the image cannot be read."""
    try:
        image = open_image(path)
    except DataError:
        image = Image.new("RGB", (THUMB, THUMB), "#eaeef2")
    image.thumbnail((THUMB, THUMB))
    x, y = corner
    sheet.paste(image, (x + (THUMB - image.width) // 2, y + (THUMB - image.height) // 2))


def _write(
    pen: TextPen,
    corner: tuple[int, int],
    text: str,
    width: int,
    *,
    lines: int,
    size: int = 11,
    color: str = INK,
) -> None:
    """Write at most `lines` lines of `width` pixels; a longer text ends in an ellipsis."""
    wrapped = _wrap(text, pen, size, width)
    if len(wrapped) > lines:
        wrapped = [*wrapped[: lines - 1], _wrap(wrapped[lines - 1], pen, size, width - 2 * size)[0] + "…"]
    for number, line in enumerate(wrapped):
        pen.write((corner[0], corner[1] + number * LINE), line, size, color)


def _wrap(text: str, pen: TextPen, size: int, width: int) -> list[str]:
    """Break a text into lines of at most `width` pixels, between words if possible."""
    lines = [""]
    for word in text[:LONGEST].split():
        line = f"{lines[-1]} {word}".strip()
        if pen.width(line, size) <= width:
            lines[-1] = line
            continue
        rest = word
        while rest:  # cut a word that is wider than the line
            fits = _fitting(rest, pen, size, width)
            lines.append(rest[:fits])
            rest = rest[fits:]
    return lines if lines[0] or len(lines) == 1 else lines[1:]


def _fitting(word: str, pen: TextPen, size: int, width: int) -> int:
    """How many characters of a word fit in `width` pixels, at least one."""
    return max(bisect_right(range(len(word) + 1), float(width), key=lambda count: pen.width(word[:count], size)) - 1, 1)
