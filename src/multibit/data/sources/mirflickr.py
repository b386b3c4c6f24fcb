"""MIRFlickr-25K as its authors give it: pictures, tag files, annotation files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from multibit.data.dataset import PairedDataset
from multibit.data.sources.common import compare, locate, read_lines
from multibit.errors import DataError

FREQUENT = 20  # a tag counts when at least so many pictures have it: 1,386 tags of the whole set do


def read_mirflickr(source: Path | str, *, images: Path | str | None = None) -> PairedDataset:
    """Read the 20,015 pairs with 24 labels that the field uses.

    A pair is taken when it has at least one label and at least one tag that 20 or more pictures have. Its text is all
    its tags. Rows ascend by picture number; labels are in alphabetical order; the relevant-only labels (`_r1`) are
    left out.

    Args:
        source: folder with `mirflickr/` (`im1.jpg`, ..., `meta/tags/tags1.txt`, ...) and `mirflickr25k_annotations_v080/`.
        images: folder of the pictures; that of `meta/` when None.

    Raises:
        DataError: a part is missing, or an annotation file holds something else than picture numbers.
    """  # noqa: E501
    root = Path(source)
    folder = locate(root, "meta/tags", "tag files")
    annotations = locate(root, "animals.txt", "annotation files").parent
    pictures = folder.parent.parent if images is None else Path(images)
    tags = {_number(path): [tag for tag in read_lines(path) if tag] for path in folder.glob("tags*.txt")}
    labels = _labels(annotations)
    counts = Counter(tag for each in tags.values() for tag in set(each))
    kept = sorted(
        number
        for number, each in tags.items()
        if number in labels and any(counts[tag] >= FREQUENT for tag in each)
    )  # fmt: skip
    if not kept:
        raise DataError(f"{root}: no picture has both a label and a tag that {FREQUENT} pictures have.")
    items = ((f"im{number}", pictures / f"im{number}.jpg", [" ".join(tags[number])], labels[number]) for number in kept)
    return compare(PairedDataset.of_items(items), "MIRFlickr-25K", pairs=20_015, labels=24)


def _labels(folder: Path) -> dict[int, list[str]]:
    """Labels of each picture number."""
    labels: dict[int, list[str]] = {}
    for path in sorted(folder.glob("*.txt")):
        if path.stem.endswith("_r1") or path.stem.lower() == "readme" or path.stem.startswith("."):
            continue
        for row, line in enumerate(read_lines(path), start=1):
            if line and not line.isdecimal():
                raise DataError(f"{path}, row {row}: {line[:40]!r} is not a picture number.")
            if line:
                labels.setdefault(int(line), []).append(path.stem)
    return labels


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("tags")
    if not digits.isdecimal():
        raise DataError(f"{path}: need the name tags1.txt, tags2.txt, ..., a number for each picture.")
    return int(digits)
