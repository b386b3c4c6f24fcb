"""The contact sheet: its size, and green frames that mean relevant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from multibit.errors import DataError
from multibit.report import fonts
from multibit.report.fonts import NO_CHARACTER
from multibit.report.sheet import (
    CELL_HEIGHT,
    CELL_WIDTH,
    GREEN,
    LINE,
    PAD,
    THUMB,
    Search,
    contact_sheet,
    draw_sheet,
    require_sheet_target,
)
from multibit.search import Hit

RED, BLUE, GONE = (255, 0, 0), (0, 0, 255), (234, 238, 242)


@pytest.fixture
def red(tmp_path) -> Path:
    """A red image."""
    Image.new("RGB", (300, 300), RED).save(tmp_path / "red.png")
    return tmp_path / "red.png"


def hit(rank: int, labels=("cat",), image: Path | None = None, **payload) -> Hit:
    return Hit(rank, f"id {rank}", rank * 3, 16, {"labels": list(labels), "image": image and str(image), **payload})


def search(rows, labels=("cat",), image=None, title="a query", show="text") -> Search:
    return Search(title, frozenset(labels), image, rows, show)


def drawn(tmp_path: Path, *searches: Search) -> np.ndarray:
    """The sheet as (height, width, 3) pixels."""
    path = tmp_path / "sheets" / "sheet.png"
    contact_sheet(searches, path)
    assert [file.name for file in path.parent.iterdir()] == ["sheet.png"]
    with Image.open(path) as sheet:
        assert (sheet.format, sheet.mode) == ("PNG", "RGB")
        return np.asarray(sheet)


def cell(sheet: np.ndarray, column: int, row: int, top: int = PAD) -> np.ndarray:
    """The pixels of a hit's cell; column 0 is that of the query."""
    y = top + 2 * LINE + row * CELL_HEIGHT
    return sheet[y : y + CELL_HEIGHT, column * CELL_WIDTH : (column + 1) * CELL_WIDTH]


def count(pixels: np.ndarray, color) -> int:
    rgb = ImageColor.getrgb(color) if isinstance(color, str) else color
    return int((pixels == rgb).all(axis=-1).sum())


@pytest.mark.parametrize(
    ("rows", "columns", "lines"),
    [
        ([{16: 1}], 2, [1]),
        ([{16: 3, 32: 3}], 4, [2]),
        ([{16: 2}, {16: 1, 32: 5, 64: 0}], 6, [1, 3]),
        ([{16: 0}], 1, [1]),
    ],
)
def test_the_sheet_has_a_column_for_the_query_and_each_hit_and_a_row_for_each_length(tmp_path, rows, columns, lines):
    searches = [search({bits: [hit(n) for n in range(1, k + 1)] for bits, k in one.items()}) for one in rows]
    height, width, _ = drawn(tmp_path, *searches).shape
    assert width == columns * CELL_WIDTH + PAD
    assert height == sum(2 * LINE + n * CELL_HEIGHT + PAD for n in lines) + PAD


def test_a_green_frame_marks_exactly_the_hits_that_share_a_label(tmp_path):
    near = [hit(1, ["cat"]), hit(2, ["dog"]), hit(3, []), hit(4, ["dog", "cat"])]
    far = [hit(1, ["dog"]), hit(2, ["cats"]), hit(3, ["cat"]), hit(4, ["Cat"])]
    sheet = drawn(tmp_path, search({16: near, 128: far}, labels=("cat", "bird")))
    green = [[count(cell(sheet, column, row), GREEN) > 0 for column in range(5)] for row in range(2)]
    assert green == [[False, True, False, False, True], [False, False, False, True, False]]
    one = cell(sheet, 1, 0)
    frame = 2 * 3 * (CELL_WIDTH - 4 + CELL_HEIGHT - 4) - 4 * 9
    assert count(one, GREEN) == frame  # a frame three pixels wide, and nothing else is green
    assert count(sheet, GREEN) == 3 * frame


def test_nothing_is_green_for_a_query_without_labels(tmp_path):
    assert count(drawn(tmp_path, search({16: [hit(1), hit(2, [])]}, labels=())), GREEN) == 0


def test_empty_payloads_are_drawn(tmp_path):
    sheet = drawn(tmp_path, search({16: [Hit(1, 7, 0, 16, {}), Hit(2, "x", 1, 16, {"labels": None, "text": None})]}))
    assert count(sheet, GREEN) == 0
    assert sheet.shape[1] == 3 * CELL_WIDTH + PAD


def test_images_of_the_query_and_of_the_hits_are_shown(tmp_path, red):
    sheet = drawn(tmp_path, search({16: [hit(1, image=red)], 32: [hit(1, image=red)]}, image=red, show="image"))
    shown = [[count(cell(sheet, column, row), RED) for column in range(2)] for row in range(2)]
    assert shown == [[THUMB * THUMB, THUMB * THUMB], [0, THUMB * THUMB]]  # the query image is shown once


def test_texts_are_shown_instead_of_images_if_texts_were_searched(tmp_path, red):
    sheet = drawn(tmp_path, search({16: [hit(1, image=red, text="a text")]}, show="text"))
    assert count(sheet, RED) == 0


def test_a_thin_image_keeps_its_shape_in_the_middle_of_its_cell(tmp_path):
    Image.new("RGB", (400, 100), BLUE).save(tmp_path / "thin.png")
    sheet = drawn(tmp_path, search({16: [hit(1, image=tmp_path / "thin.png")]}, show="image"))
    rows, columns = np.nonzero((cell(sheet, 1, 0) == BLUE).all(axis=-1))
    assert (np.ptp(columns) + 1, np.ptp(rows) + 1) == (THUMB, THUMB // 4)
    assert rows.min() == PAD + (THUMB - THUMB // 4) // 2


@pytest.mark.parametrize("harm", ["missing", "empty"])
def test_an_unreadable_image_leaves_an_empty_frame(tmp_path, red, harm):
    lost = tmp_path / "lost.png"
    if harm == "empty":
        lost.write_bytes(b"")
    sheet = drawn(tmp_path, search({16: [hit(1, image=lost), hit(2, image=red)]}, image=lost, show="image"))
    assert count(cell(sheet, 0, 0), GONE) == count(cell(sheet, 1, 0), GONE) == THUMB * THUMB
    assert count(cell(sheet, 2, 0), RED) == THUMB * THUMB


@pytest.mark.parametrize(
    "text",
    ["日本語のとても長い題 👁 " * 40, "x" * 1000, "", "two\nlines\tand a tab", "العربية \u202e אבג"],
    ids=["unicode", "one long word", "empty", "lines", "right to left"],
)
def test_a_title_of_any_length_and_script_fits_its_line(tmp_path, text):
    labels = [text or "l", "cat"]
    searches = [search({16: [hit(1, labels, text=text)]}, labels=labels, title=text) for _ in range(2)]
    sheet = drawn(tmp_path, *searches)
    plain = drawn(tmp_path, *[search({16: [hit(1)]}, title="") for _ in range(2)])
    assert sheet.shape == plain.shape
    assert count(sheet, GREEN) == count(plain, GREEN) > 0
    assert (sheet[:PAD] == 255).all()


def test_a_text_of_wide_letters_fits_its_cell(tmp_path):
    wide, narrow = (drawn(tmp_path, search({16: [hit(1, text=text), hit(2)]})) for text in ("WWWM " * 50, "ill " * 50))
    assert np.array_equal(cell(wide, 2, 0), cell(narrow, 2, 0))


def test_title_distance_and_labels_are_drawn(tmp_path):
    plain = drawn(tmp_path, search({16: [hit(1)]}, title=""))
    assert not np.array_equal(plain, drawn(tmp_path, search({16: [hit(1)]}, title="a title")))
    assert not np.array_equal(plain, drawn(tmp_path, search({32: [hit(1)]}, title="")))
    assert not np.array_equal(plain, drawn(tmp_path, search({16: [hit(1, ["cat", "dog"])]}, title="")))
    farther = Hit(1, "id 1", 4, 16, hit(1).payload)
    assert not np.array_equal(plain, drawn(tmp_path, search({16: [farther]}, title="")))


def test_a_relaxed_hit_shows_its_score(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr("multibit.report.sheet._write", lambda _, __, text, *___, **____: written.append(text))
    drawn(tmp_path, search({16: [Hit(1, "id 1", None, 16, {}, score=3.14159), Hit(2, "id 2", 3, 16, {})]}))
    assert "score 3.14" in written and "distance 3" in written


def test_a_graded_hit_shows_rank_distance_and_relevance(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr("multibit.report.sheet._write", lambda _, __, text, *___, **____: written.append(text))
    drawn(tmp_path, search({16: [hit(2, relevance=0.25)]}))
    assert "2: d 6, r 0.25" in written


def test_a_failed_write_leaves_the_old_sheet(tmp_path, monkeypatch):
    contact_sheet([search({16: [hit(1)]})], tmp_path / "sheet.png")
    before = (tmp_path / "sheet.png").read_bytes()

    def half(_, path, **__):
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Image.Image, "save", half)
    with pytest.raises(OSError):
        contact_sheet([search({16: [hit(1), hit(2)]})], tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]


@pytest.mark.parametrize("searches", [[], [search({})]], ids=["no search", "no row"])
def test_no_hits_give_an_empty_sheet(tmp_path, searches):
    drawn(tmp_path, *searches)


# Scripts


def test_every_script_that_an_installed_font_has_is_drawn(monkeypatch):
    """The built-in font has Latin letters only; matplotlib brings a font with Greek, Cyrillic, Arabic and Hebrew."""
    pytest.importorskip("matplotlib")
    for text in ("σκύλος", "собака", "كلب", "כלב"):
        missing = set()
        sheet = draw_sheet([search({16: [hit(1, text=text)]}, title=text)], missing)
        boxes = draw_sheet([search({16: [hit(1, text=NO_CHARACTER * len(text))]}, title=NO_CHARACTER * len(text))])
        assert missing == set() and not np.array_equal(np.asarray(sheet), np.asarray(boxes)), text


def test_characters_without_a_glyph_are_returned(tmp_path, monkeypatch):
    monkeypatch.setattr(fonts, "font_files", lambda: ())
    fonts._fallback.cache_clear()
    missing = contact_sheet([search({16: [hit(1, text="собака dog")]})], tmp_path / "sheet.png")
    fonts._fallback.cache_clear()
    assert missing == frozenset("собак")


def test_a_file_that_is_no_sheet_is_recognised(tmp_path, red):
    with pytest.raises(DataError) as caught:
        require_sheet_target(red)
    assert caught.value.file == red
    contact_sheet([search({16: [hit(1)]})], tmp_path / "sheet.png")
    require_sheet_target(tmp_path / "sheet.png")
    require_sheet_target(tmp_path / "new.png")


def test_hits_show_their_ids(monkeypatch, tmp_path):
    written = []
    monkeypatch.setattr("multibit.report.sheet._write", lambda _, __, text, *___, **____: written.append(text))
    drawn(tmp_path, search({16: [hit(7)]}))
    assert "id 7" in written
