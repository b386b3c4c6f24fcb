"""What the readers share: notes for people, text files of any age, comparison with the paper."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multibit.data.dataset import PairedDataset
from multibit.errors import DataError

PICTURE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"))
"""Files that the readers of folders and archives take for pictures."""


class DataNote(UserWarning):
    """Something about a source that people should know, and that is no reason to refuse it."""


def note(message: str) -> None:
    """Tell people; the reading goes on."""
    warnings.warn(message, DataNote, stacklevel=3)


def decode(raw: bytes) -> str:
    """Text of a file that does not say its encoding: UTF-8, or else Latin-1, as the old data sets have it."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def read_text(path: Path) -> str:
    """All of a text file, UTF-8 or Latin-1.

    Raises:
        DataError: it is not there or cannot be read.
    """
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None


def read_lines(path: Path) -> list[str]:
    """Lines of a text file without blanks around them; only line breaks end a line."""
    lines = [line.strip() for line in read_text(path).replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def load_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file that another tool wrote; empty where it holds something else.

    Raises:
        DataError: unreadable, or not JSON.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}).") from None
    return content if isinstance(content, dict) else {}


def locate(root: Path, pattern: str, what: str) -> Path:
    """The first file or folder of that name in `root` or up to two folders below, however people unpacked it.

    Raises:
        DataError: none there.
    """
    for depth in ("", "*/", "*/*/"):
        if found := sorted(root.glob(depth + pattern)):
            return found[0]
    raise DataError(f"{root}: no {pattern} ({what}) in it, nor up to two folders below.")


def walk(root: Path) -> Iterator[Path]:
    """Every file below a folder in alphabetical order; hidden files and linked folders are passed over.

    Raises:
        DataError: no such folder.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder.")
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith("."))


def compare(dataset: PairedDataset, name: str, *, pairs: int, labels: int) -> PairedDataset:
    """Say where a data set differs from the paper's, and which pictures are not there."""
    found = len(dataset), len(dataset.label_names)
    if found != (pairs, labels):
        note(f"{name}: {found[0]:,} pairs with {found[1]} labels; the paper has {pairs:,} with {labels}.")
    missing = [image for image in dataset.images if image is not None and not image.is_file()]
    if missing:
        note(
            f"{name}: {len(missing):,} of {len(dataset):,} pictures are not there, {missing[0]} first; "
            "`multibit features` leaves them out and lists them."
        )
    return dataset
