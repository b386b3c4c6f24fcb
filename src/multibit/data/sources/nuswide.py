"""NUS-WIDE in its original layout: concept files, image list, tags."""

from __future__ import annotations

from pathlib import Path, PureWindowsPath

import numpy as np
from numpy.typing import NDArray

from multibit.data.dataset import PairedDataset
from multibit.data.notes import note_left_out
from multibit.data.sources.common import compare, locate, read_old_lines
from multibit.errors import DataError
from multibit.texts import read_bytes

CONCEPTS = 21  # the most frequent of the 81


def read_nuswide(source: Path | str, *, images: Path | str | None = None) -> PairedDataset:
    """Read the 195,834 images that have at least one of the 21 most frequent concepts; the text is all tags.

    Rows are in the order of the image list; labels in alphabetical order.

    Args:
        source: folder with `AllLabels/Labels_*.txt`, `Imagelist.txt` and `All_Tags.txt`, in their original folders.
        images: folder of the images (`actor/0001_2124494179.jpg`); `Flickr/` or `images/` of `source` when None.

    Raises:
        DataError: a part is missing, or the files have different numbers of lines.
    """
    root = Path(source)
    files = sorted(locate(root, "AllLabels", "concept files").glob("Labels_*.txt"))
    listed = locate(root, "Imagelist.txt", "list of images")
    tagged = locate(root, "All_Tags.txt", "tags of each image")
    paths = [PureWindowsPath(line) for line in read_old_lines(listed)]  # written with backslashes
    if nameless := [row for row, path in enumerate(paths, start=1) if not path.name]:
        raise DataError("no file name.", file=listed, row=nameless[0])
    tags = read_old_lines(tagged)
    if len(tags) != len(paths):
        raise DataError(f"{len(tags):,} lines, but {listed} has {len(paths):,}; must be equal.", file=tagged)
    columns = {path.stem.removeprefix("Labels_"): _column(path, len(paths)) for path in files}
    if not columns:
        raise DataError("no Labels_*.txt in AllLabels.", file=root)
    frequent = sorted(sorted(columns, key=lambda name: (-int(columns[name].sum()), name))[:CONCEPTS])
    labels = np.stack([columns[name] for name in frequent], axis=1)
    kept = np.flatnonzero(labels.any(axis=1))
    left_out = [paths[row].as_posix() for row in np.flatnonzero(~labels.any(axis=1))]
    note_left_out(root, f"images with none of the {len(frequent)} most frequent concepts", left_out)
    folder = next((root / name for name in ("Flickr", "images") if (root / name).is_dir()), root)
    folder = folder if images is None else Path(images)
    dataset = PairedDataset(
        tuple(paths[row].with_suffix("").as_posix() for row in kept),
        tuple(folder / paths[row].as_posix() for row in kept),
        tuple((_text(tags[row], paths[row].stem),) for row in kept),
        labels[kept],
        tuple(frequent),
    )
    return compare(dataset, "NUS-WIDE", pairs=195_834, labels=CONCEPTS)


def _column(path: Path, rows: int) -> NDArray[np.uint8]:
    """One concept's file: 0 or 1 on each line."""
    characters = np.frombuffer(read_bytes(path), np.uint8)
    digits = characters[~np.isin(characters, np.frombuffer(b" \t\r\n", np.uint8))]
    if len(digits) != rows or not np.isin(digits, np.frombuffer(b"01", np.uint8)).all():
        raise DataError(
            f"need {rows:,} lines of 0 or 1, as in the image list; found {len(digits):,} digits.", file=path
        )
    return digits - ord("0")


def _text(line: str, stem: str) -> str:
    """The tags of a line; it begins with the number of the photograph, which also ends its file name."""
    first, *tags = line.split() or [""]
    return " ".join(tags if stem.endswith(first) else [first, *tags])
