"""Helpers that the readers share: notes, text files of any encoding, images of archives, comparison with the paper."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from multibit.data.dataset import PairedDataset
from multibit.errors import DataError
from multibit.files import replacing

IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"))
"""Suffixes of the files that the readers of folders and archives take for images."""


class DataNote(UserWarning):
    """A remark about a source that was read, such as items that were left out."""


def note(message: str) -> None:
    """Issue a `DataNote`."""
    warnings.warn(message, DataNote, stacklevel=3)


def decode(raw: bytes) -> str:
    """Text of a file that does not declare its encoding: UTF-8, or else Latin-1, which old data sets use."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def read_text(path: Path) -> str:
    """All of a text file, UTF-8 or Latin-1.

    Raises:
        DataError: missing or unreadable.
    """
    return decode(_read_bytes(path))


def read_lines(path: Path) -> list[str]:
    """Lines of a text file without surrounding blanks; only line breaks end a line."""
    lines = [line.strip() for line in read_text(path).replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def load_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of another tool; empty where the file contains something else.

    Raises:
        DataError: missing, unreadable, or not JSON.
    """
    try:
        content = json.loads(_read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON ({error}).", file=path) from None
    return content if isinstance(content, dict) else {}


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error}).", file=path) from None


def locate(root: Path, pattern: str, what: str) -> Path:
    """The first file or folder that matches a pattern in `root` or up to two folders below.

    Args:
        root: folder that a data set was unpacked into. pattern: for glob. what: human-readable name, for the error.

    Raises:
        DataError: no match.
    """
    for depth in ("", "*/", "*/*/"):
        if found := sorted(root.glob(depth + pattern)):
            return found[0]
    raise DataError(f"no {pattern} ({what}) in this folder, nor up to two folders below.", file=root)


def walk(root: Path) -> Iterator[Path]:
    """Every file below a folder in alphabetical order; hidden files and linked folders are skipped.

    Raises:
        DataError: no such folder.
    """
    if not root.is_dir():
        raise DataError("no such folder.", file=root)
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith("."))


def listed(value: Any) -> list[Any]:
    """The values of a list, or a single value, without None."""
    return [each for each in (value if isinstance(value, list) else [value]) if each is not None]


def save_image(folder: Path, name: str, content: bytes) -> Path:
    """Write an image of an archive below a folder; an existing file of the same size is kept.

    Raises:
        DataError: the name leads out of the folder.
    """
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or not parts or "\0" in name:
        raise DataError(f"the image {name!r} would be written outside of {folder}; the archive is refused.")
    target = folder.joinpath(*parts)
    if not target.is_file() or target.stat().st_size != len(content):
        with replacing(target) as temporary:
            temporary.write_bytes(content)
    return target


def compare(dataset: PairedDataset, name: str, *, pairs: int, labels: int) -> PairedDataset:
    """The data set, with notes on differences from the paper's and on missing image files.

    Args:
        dataset: as it was read. name: human-readable. pairs, labels: their numbers in the paper.
    """
    found = len(dataset), len(dataset.label_names)
    if found != (pairs, labels):
        note(f"{name}: {found[0]:,} pairs with {found[1]} labels; the paper has {pairs:,} with {labels}.")
    missing = [image for image in dataset.images if image is not None and not image.is_file()]
    if missing:
        note(
            f"{name}: {len(missing):,} of {len(dataset):,} image files are missing, such as {missing[0]}; "
            "`multibit features` skips and lists them."
        )
    return dataset
