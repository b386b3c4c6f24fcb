"""IAPR TC-12 in its original layout: ImageCLEF's images and annotation files, INRIA's keyword lists."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from multibit.data.dataset import PairedDataset
from multibit.data.notes import note
from multibit.data.sources.common import compare, locate, old_text, read_old_lines
from multibit.errors import DataError, counted
from multibit.texts import read_bytes


def read_iapr(source: Path | str, *, images: Path | str | None = None) -> PairedDataset:
    """Read the 19,627 pairs with 291 keywords; the text is the English description.

    Rows are in ascending order of folder and number.

    Args:
        source: folder with `annotations_complete_eng/00/25.eng`, ..., `images/00/25.jpg`, ..., and INRIA's
            `iaprtc12_dictionary.txt`, `iaprtc12_train_list.txt`, `iaprtc12_train_annot.hvecs`, the same of `test`.
        images: folder that contains `00/25.jpg`; `images/` next to the annotations when None.

    Raises:
        DataError: a part is missing, or lists and keywords do not match.
    """
    root = Path(source)
    descriptions = locate(root, "annotations_complete_eng", "descriptions")
    folder = descriptions.parent / "images" if images is None else Path(images)
    dictionary = locate(root, "*_dictionary.txt", "keywords")
    words = [line for line in read_old_lines(dictionary) if line]
    keywords: dict[str, list[str]] = {}
    for part in ("train", "test"):
        names = [line.removesuffix(".jpg") for line in read_old_lines(locate(root, f"*_{part}_list.txt", "images"))]
        path = locate(root, f"*_{part}_annot.hvecs", "keywords of each image")
        rows = _read_hvecs(path)
        if rows.shape != (len(names), len(words)):
            raise DataError(
                f"{rows.shape[0]} rows of {rows.shape[1]} keywords; the list has {len(names)} images, "
                f"{dictionary.name} {len(words)} words.",
                file=path,
            )
        keywords |= {name: [words[i] for i in np.flatnonzero(row)] for name, row in zip(names, rows, strict=True)}
    texts = {name: _description(descriptions / f"{name}.eng") for name in keywords}
    if without := [name for name, text in texts.items() if not text]:
        found = counted(len(without), "image has", "images have")
        note(f"IAPR TC-12: {found} no English description, such as {without[0]}.")
    items = ((name, folder / f"{name}.jpg", [texts[name]], keywords[name]) for name in sorted(keywords, key=_order))
    return compare(PairedDataset.of_items(items, sorted(words)), "IAPR TC-12", pairs=19_627, labels=291)


def _read_hvecs(path: Path) -> NDArray[np.int16]:
    """INRIA's vectors: for each row its length and its values, all 16-bit integers."""
    raw = read_bytes(path)
    values = np.frombuffer(raw[: len(raw) // 2 * 2], "<i2")
    width = int(values[0]) if len(values) else 0
    if width < 1 or len(values) % (width + 1) or (values[:: width + 1] != width).any():
        raise DataError(
            "truncated, or not a .hvecs file: need rows of 16-bit integers that begin with their length.", file=path
        )
    return values.reshape(-1, width + 1)[:, 1:]


def _description(path: Path) -> str:
    """The description in an annotation file, which looks like XML but is not always well-formed."""
    if not path.is_file():
        return ""
    found = re.search(r"<DESCRIPTION>(.*?)</DESCRIPTION>", old_text(read_bytes(path)), re.DOTALL)
    return " ".join(html.unescape(found[1]).split()) if found else ""


def _order(name: str) -> list[tuple[int, str]]:
    """Sort key that compares numbers by value: 00/25 before 00/116."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]
