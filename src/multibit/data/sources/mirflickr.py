"""MIRFlickr-25K in its original layout: images, tag files, annotation files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from multibit.data.dataset import PairedDataset
from multibit.data.notes import note_left_out
from multibit.data.sources.common import compare, locate, read_old_lines
from multibit.errors import DataError

FREQUENT = 20  # a tag counts when at least this many images have it: 1,386 tags of the whole set do


def read_mirflickr(source: Path | str, *, images: Path | str | None = None) -> PairedDataset:
    """Read the 20,015 pairs with 24 labels that the field uses.

    A pair is taken when it has at least one label and at least one tag that 20 or more images have. Its text is all
    its tags. Rows are in ascending order of image numbers, labels in alphabetical order; the relevant-only labels
    (`_r1`) are left out.

    Args:
        source: folder with `mirflickr/` (`im1.jpg`, ..., `meta/tags/tags1.txt`, ...) and `mirflickr25k_annotations_v080/`.
        images: folder of the images; that of `meta/` when None.

    Raises:
        DataError: a part is missing, or an annotation file contains something other than image numbers.
    """  # noqa: E501
    root = Path(source)
    folder = locate(root, "meta/tags", "tag files")
    annotations = locate(root, "animals.txt", "annotation files").parent
    image_folder = folder.parent.parent if images is None else Path(images)
    tags = {_number(path): [tag for tag in read_old_lines(path) if tag] for path in folder.glob("tags*.txt")}
    labels = _labels(annotations)
    counts = Counter(tag for each in tags.values() for tag in set(each))
    kept = sorted(
        number
        for number, each in tags.items()
        if number in labels and any(counts[tag] >= FREQUENT for tag in each)
    )  # fmt: skip
    if not kept:
        raise DataError(f"no image has both a label and a tag that {FREQUENT} images have.", file=root)
    note_left_out(
        root, "images without a label or a frequent tag", [f"im{number}" for number in sorted(tags.keys() - set(kept))]
    )
    items = (
        (f"im{number}", image_folder / f"im{number}.jpg", [" ".join(tags[number])], labels[number]) for number in kept
    )
    return compare(PairedDataset.of_items(items), "MIRFlickr-25K", pairs=20_015, labels=24)


def _labels(folder: Path) -> dict[int, list[str]]:
    """Labels of each image number."""
    labels: dict[int, list[str]] = {}
    for path in sorted(folder.glob("*.txt")):
        if path.stem.endswith("_r1") or path.stem.lower() == "readme" or path.stem.startswith("."):
            continue
        for row, line in enumerate(read_old_lines(path), start=1):
            if line and not line.isdecimal():
                raise DataError(f"{line[:40]!r} is not an image number.", file=path, row=row)
            if line:
                labels.setdefault(int(line), []).append(path.stem)
    return labels


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("tags")
    if not digits.isdecimal():
        raise DataError("need a name of the form tags1.txt, with the number of an image.", file=path)
    return int(digits)
