"""Image files of every kind: decoded to RGB, or refused with a DataError."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from PIL import Image, features

from multibit.data import images
from multibit.data.images import center_square, open_image
from multibit.errors import DataError

NOISE = np.random.default_rng(0).integers(0, 256, (24, 36, 3), np.uint8)
RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def saved(path: Path, image: Image.Image, **options) -> Path:
    image.save(path, **options)
    return path


def pixels(path: Path) -> np.ndarray:
    image = open_image(path)
    assert image.mode == "RGB"
    return np.asarray(image)


def first_row(path: Path) -> list[tuple[int, ...]]:
    return [tuple(pixel) for pixel in pixels(path)[0].tolist()]


def png(
    path: Path, width: int, depth: int, color: int, row: bytes, transparent: bytes | None = None, height: int = 1
) -> Path:
    """A PNG of one row, written by hand: Pillow writes no 16-bit colour, not every transparency, and no false sizes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    size = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    extra = chunk(b"tRNS", transparent) if transparent else b""
    content = chunk(b"IHDR", size) + extra + chunk(b"IDAT", zlib.compress(b"\0" + row)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    return path


def exif(*entries: tuple[int, int, int, bytes]) -> bytes:
    """An EXIF block of (tag, type, count, value), little-endian, written by hand to contain what cameras get wrong."""
    table = b"".join(struct.pack("<HHI4s", *entry) for entry in sorted(entries))
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + table + struct.pack("<I", 0)


# Decoding


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "a.webp", "a.gif", "a.ppm", "a.jpg.bin"])
def test_an_image_is_read_by_its_content_whatever_its_name(tmp_path, name):
    form = {"a.webp": "WEBP", "a.jpg.bin": "PNG"}.get(name)
    options = {"lossless": True} if form == "WEBP" else {}
    image = Image.fromarray(NOISE).quantize(64).convert("RGB")
    path = saved(tmp_path / name, image, format=form, **options)
    assert np.array_equal(pixels(path), np.asarray(image))


def test_a_jpeg_is_read(tmp_path):
    path = saved(tmp_path / "a.JPG", Image.new("RGB", (20, 10), (200, 100, 50)))
    assert np.abs(pixels(path).astype(int) - (200, 100, 50)).max() <= 3


def test_grey_black_and_white_and_palette_become_rgb(tmp_path):
    assert first_row(saved(tmp_path / "l.png", Image.new("L", (1, 1), 77))) == [(77, 77, 77)]
    assert first_row(saved(tmp_path / "1.png", Image.new("1", (1, 1), 1))) == [WHITE]
    assert first_row(saved(tmp_path / "p.png", Image.new("RGB", (1, 1), RED).quantize(4))) == [RED]


def test_print_colours_become_rgb(tmp_path):
    path = saved(tmp_path / "a.jpg", Image.new("CMYK", (16, 16), (0, 255, 255, 0)), quality=95)
    assert np.abs(pixels(path)[0, 0].astype(int) - RED).max() <= 3


def test_sixteen_bits_are_scaled_to_eight_and_not_clipped(tmp_path):
    values = np.array([[0, 257, 128 * 257, 65535]], np.uint16)
    path = saved(tmp_path / "a.png", Image.fromarray(values))
    assert first_row(path) == [(v, v, v) for v in (0, 1, 128, 255)]


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
@pytest.mark.parametrize("largest", [3, 255, 256, 4095, 65535])
def test_sixteen_bits_keep_their_upper_half_whatever_the_values_are(tmp_path, name, largest):
    values = np.array([[0, largest // 2, largest]], np.uint16)
    if name == "a.pgm":
        (tmp_path / name).write_bytes(b"P5 3 1 65535\n" + values.astype(">u2").tobytes())
    else:
        Image.fromarray(values).save(tmp_path / name)
    assert first_row(tmp_path / name) == [(v, v, v) for v in (values[0] // 256).tolist()]


def test_grey_and_colour_of_sixteen_bits_are_scaled_alike(tmp_path):
    values = np.array([0, 200, 255], ">u2")
    grey = first_row(png(tmp_path / "grey.png", 3, 16, 0, values.tobytes()))
    assert grey == first_row(png(tmp_path / "rgb.png", 3, 16, 2, np.repeat(values, 3).tobytes()))


def test_sixteen_bits_in_every_kind_of_png(tmp_path):
    colours = np.array([0, 257, 65535, 65535, 128 * 257, 0], ">u2").tobytes()
    assert first_row(png(tmp_path / "rgb.png", 2, 16, 2, colours)) == [(0, 1, 255), (255, 128, 0)]
    grey_alpha = np.array([0, 0, 65535, 65535, 0, 65535], ">u2").tobytes()
    assert first_row(png(tmp_path / "la.png", 3, 16, 4, grey_alpha)) == [WHITE, WHITE, BLACK]


@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.tif"])
def test_transparency_is_composited_over_white(tmp_path, name):
    image = Image.fromarray(np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 128]]], np.uint8))
    options = {"lossless": True, "exact": True} if name == "a.webp" else {}
    opaque, hidden, half = first_row(saved(tmp_path / name, image, **options))
    assert (opaque, hidden) == (RED, WHITE)
    assert np.abs(np.array(half) - 127).max() <= 1


def test_grey_with_transparency_is_composited_over_white(tmp_path):
    image = Image.fromarray(np.array([[[0, 255], [0, 0]]], np.uint8))
    assert image.mode == "LA"
    assert first_row(saved(tmp_path / "a.png", image)) == [BLACK, WHITE]


@pytest.mark.parametrize("name", ["a.png", "a.gif"])
def test_a_transparent_palette_entry_is_white(tmp_path, name):
    image = Image.new("P", (3, 1))
    image.putpalette([*RED, *GREEN, *BLUE])
    image.putdata([0, 1, 2])
    assert first_row(saved(tmp_path / name, image, transparency=1)) == [RED, WHITE, BLUE]


def test_palette_entries_may_be_half_transparent(tmp_path):
    image = Image.new("P", (3, 1))
    image.putpalette([*RED, *GREEN, *BLUE])
    image.putdata([0, 1, 2])
    first, second, third = first_row(saved(tmp_path / "a.png", image, transparency=bytes([0, 127, 255])))
    assert (first, third) == (WHITE, BLUE)
    assert np.abs(np.array(second) - (128, 255, 128)).max() <= 1


@pytest.mark.parametrize(
    ("depth", "color", "row", "transparent", "expected"),
    [
        (8, 0, bytes([0, 16]), b"\0\x10", [BLACK, WHITE]),
        (8, 2, bytes([255, 0, 0, 0, 0, 255]), b"\0\xff\0\0\0\0", [WHITE, BLUE]),
        (16, 0, b"\x00\x00\x80\x80", b"\x00\x00", [WHITE, (128, 128, 128)]),
        (1, 0, b"\x40", b"\0\0", [WHITE, WHITE]),
    ],
    ids=["grey", "colour", "16-bit grey", "black and white"],
)
def test_a_transparent_colour_is_white(tmp_path, depth, color, row, transparent, expected):
    assert first_row(png(tmp_path / "a.png", 2, depth, color, row, transparent)) == expected


UPRIGHT = np.array([[RED, GREEN, BLUE], [WHITE, BLACK, WHITE]], np.uint8)
TURNED = {  # EXIF orientation -> how the camera stored the image that is upright above
    1: UPRIGHT, 2: UPRIGHT[:, ::-1], 3: UPRIGHT[::-1, ::-1], 4: UPRIGHT[::-1], 5: UPRIGHT.transpose(1, 0, 2),
    6: np.rot90(UPRIGHT, 1), 7: np.rot90(UPRIGHT, 2).transpose(1, 0, 2), 8: np.rot90(UPRIGHT, -1),
}  # fmt: skip


@pytest.mark.parametrize("orientation", TURNED)
def test_the_exif_orientation_is_applied(tmp_path, orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(TURNED[orientation]))
    assert np.array_equal(pixels(saved(tmp_path / "a.png", stored, exif=tags)), UPRIGHT)


def test_a_rotated_jpeg_has_its_sides_swapped(tmp_path):
    tags = Image.Exif()
    tags[0x0112] = 6
    assert open_image(saved(tmp_path / "a.jpg", Image.new("RGB", (30, 20)), exif=tags)).size == (20, 30)


def test_an_animation_is_read_as_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, GREEN, BLUE)]
    for name in ("a.gif", "a.png", "a.tif"):
        path = saved(tmp_path / name, frames[0], save_all=True, append_images=frames[1:])
        assert first_row(path) == [RED] * 4


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (2, 2999), (30_000, 2), (2, 30_000)])
def test_tiny_and_thin_images_are_read_and_cropped_to_a_square(tmp_path, size):
    image = open_image(saved(tmp_path / "a.png", Image.new("RGB", size, RED)))
    assert image.size == size
    square = center_square(image, 16)
    assert square.size == (16, 16)
    assert (np.asarray(square) == RED).all()


@pytest.mark.parametrize("turned", [False, True])
def test_the_square_is_the_middle(turned):
    strip = np.zeros((10, 30, 3), np.uint8)
    strip[:, 10:20] = GREEN
    square = center_square(Image.fromarray(np.rot90(strip) if turned else strip), 10)
    assert (np.asarray(square) == GREEN).all()


def test_real_photographs_are_read(shared_data):
    photographs = sorted((shared_data / "coco" / "photos").glob("*.jpg"))[::9]
    assert photographs
    for path in photographs:
        with Image.open(path) as file:
            size = file.size
        image = open_image(path)
        assert image.mode == "RGB" and sorted(image.size) == sorted(size)


# Errors


def refused(path: Path) -> DataError:
    """The error that an image file is refused with."""
    with pytest.raises(DataError) as caught:
        open_image(path)
    assert caught.value.file == path
    return caught.value


def jpeg_bytes() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(NOISE).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "no such image"),
        (b"", "empty"),
        (b"not an image at all\n", "known format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "known format"),
        (jpeg_bytes()[:-200], "truncated"),
        (jpeg_bytes()[:40], ""),
    ],
    ids=["missing", "empty", "text", "svg", "cut", "cut in the header"],
)
def test_a_file_that_is_not_an_image_is_refused(tmp_path, content, found):
    path = tmp_path / "a.jpg"
    if content is not None:
        path.write_bytes(content)
    assert found in refused(path).problem


def test_a_folder_is_refused(tmp_path):
    assert "folder" in refused(tmp_path).problem


def test_a_loop_of_symbolic_links_is_refused(tmp_path):
    (tmp_path / "a.jpg").symlink_to(tmp_path / "b.jpg")
    (tmp_path / "b.jpg").symlink_to(tmp_path / "a.jpg")
    assert "Too many levels of symbolic links" in refused(tmp_path / "a.jpg").problem


def test_200_megapixels_are_refused_without_the_memory_for_them(tmp_path):
    path = png(tmp_path / "a.png", 20_000, 1, 0, bytes(20_000 // 8), height=10_000)
    code = (
        "import resource, sys, pathlib; from multibit.data.images import open_image; "
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; before = used()\n"
        "try: open_image(pathlib.Path(sys.argv[1]))\n"
        "except ValueError as error: print(error.problem)\n"
        "print(used() - before)"
    )
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    problem, kilobytes = result.stdout.splitlines()
    assert "pixels" in problem and "89,478,485" in problem
    assert int(kilobytes) < 20_000


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    assert open_image(saved(tmp_path / "fits.png", Image.new("RGB", (40, 25)))).size == (40, 25)
    path = saved(tmp_path / "large.png", Image.new("RGB", (41, 25)))
    path.write_bytes(path.read_bytes()[:60])  # truncated as well: decoding it would give another error
    assert "41 x 25 pixels" in refused(path).problem and "1,000" in refused(path).problem


def test_pillow_warns_of_no_image_that_is_read():
    assert images.MAX_PIXELS <= Image.MAX_IMAGE_PIXELS


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("side", "found"), [(9_500, "9500 x 9500 pixels"), (20_000, "too many pixels")])
def test_a_small_file_that_unpacks_to_a_huge_image_is_refused(tmp_path, side, found):
    problem = refused(png(tmp_path / "a.png", side, 1, 0, bytes(side // 8), height=side)).problem
    assert found in problem and "89,478,485" in problem


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "WEBP", "BMP"])
def test_an_image_damaged_anywhere_is_read_or_refused(tmp_path, form):
    buffer = io.BytesIO()
    Image.fromarray(NOISE).save(buffer, form)
    raw = buffer.getvalue()
    rng = np.random.default_rng(1)
    path = tmp_path / "a"
    refused = 0
    for length in rng.integers(0, len(raw), 150):
        damaged = bytearray(raw[:length] if length % 2 else raw)
        if damaged:
            damaged[int(rng.integers(min(len(damaged), 200)))] = int(rng.integers(256))
        path.write_bytes(damaged)
        try:
            open_image(path)
        except DataError as error:
            assert error.file == path
            refused += 1
    assert refused > 20


@pytest.mark.parametrize(
    "entry",
    [(0x011A, 2, 4, b"72\0\0"), (0x0100, 2, 4, b"72\0\0"), (0x0131, 11, 1, struct.pack("<f", 1.5))],
    ids=["resolution as text", "width as text", "software as number"],
)
def test_a_photograph_with_a_wrong_exif_entry_is_read_or_refused(tmp_path, entry):
    tags = exif((0x0112, 3, 1, b"\6\0\0\0"), entry)
    path = saved(tmp_path / "a.jpg", Image.new("RGB", (30, 20)), exif=tags)
    try:
        assert open_image(path).size == (20, 30)
    except DataError as error:
        assert error.file == path


def test_a_damaged_avif_is_read_or_refused(tmp_path):
    if not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    path = saved(tmp_path / "a.avif", Image.fromarray(NOISE))
    raw = path.read_bytes()
    for place in range(0, len(raw), 3):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 0x40]) + raw[place + 1 :])
        try:
            open_image(path)
        except DataError as error:
            assert error.file == path


def test_decoding_in_two_threads_keeps_the_warning_filters(tmp_path, monkeypatch):
    first, second = (saved(tmp_path / name, Image.new("RGB", (2, 2))) for name in ("1.png", "2.png"))
    first_open, second_open, first_done = Event(), Event(), Event()
    decode = Image.open

    def overlapping(path, **options):  # the first image is opened and closed before the second one
        (first_open if path == first else second_open).set()
        assert (second_open if path == first else first_done).wait(20)
        return decode(path, **options)

    monkeypatch.setattr(Image, "open", overlapping)
    before = list(warnings.filters)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(open_image, first)
        assert first_open.wait(20)
        two = pool.submit(open_image, second)
        one.result()
        first_done.set()
        two.result()
    assert list(warnings.filters) == before
