"""Images in folders: one sub-folder per label, or pairs of an image and a text file of the same name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from multibit.data.dataset import PairedDataset
from multibit.data.sources.common import IMAGE_SUFFIXES, note, read_lines, walk
from multibit.errors import DataError


def read_pairs(source: Path | str) -> PairedDataset:
    """Read pairs by stem: `a.jpg` with `a.txt`; each line of a text file is a text.

    Labels, if any, are in `a.labels`, one per line. The id is the path without its suffix. Files without a partner are
    left out and counted in a `DataNote`.

    Raises:
        DataError: no such folder, or no pair in it.
    """
    root = Path(source)
    images, others = _split(root)
    texts = {path.with_suffix("") for path in others if path.suffix.lower() == ".txt"}
    paired = {stem: path for stem, path in images.items() if stem in texts}
    _note_left_out(root, "images without a text", [path for stem, path in images.items() if stem not in texts])
    _note_left_out(root, "texts without an image", sorted(texts - images.keys()))
    _note_other_kinds(root, (path for path in others if path.suffix.lower() not in (".txt", ".labels")))
    if not paired:
        raise DataError("no pair; need an image and a .txt file of the same name: a.jpg, a.txt.", file=root)
    return PairedDataset.of_items(
        (stem.relative_to(root).as_posix(), path, _lines(stem, ".txt"), _lines(stem, ".labels"))
        for stem, path in paired.items()
    )


def read_folders(source: Path | str) -> PairedDataset:
    """Read a folder with one sub-folder per label: `dog/1.jpg`; the text is `dog/1.txt`, or the name of the label.

    The id is the path without its suffix.

    Raises:
        DataError: no such folder, or no image in a sub-folder.
    """
    root = Path(source)
    images, others = _split(root)
    labelled = {stem: path for stem, path in images.items() if stem.parent != root}
    _note_left_out(root, "images in no sub-folder", [path for stem, path in images.items() if stem.parent == root])
    _note_other_kinds(root, (path for path in others if path.suffix.lower() != ".txt"))
    if not labelled:
        raise DataError("no image in a sub-folder; need one folder per label: dog/1.jpg, cat/2.jpg.", file=root)
    items, without = [], 0
    for stem, path in labelled.items():
        name = stem.relative_to(root)
        text = _lines(stem, ".txt")
        without += not text
        label = name.parts[0]
        items.append((name.as_posix(), path, text or [label.replace("_", " ").replace("-", " ")], [label]))
    if without:
        note(f"{root}: {without:,} images have no .txt file; their text is the name of their label.")
    return PairedDataset.of_items(items)


def _split(root: Path) -> tuple[dict[Path, Path], list[Path]]:
    """Images by their path without suffix, and all other files."""
    images: dict[Path, Path] = {}
    others, duplicates = [], []
    for path in walk(root):
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            others.append(path)
        elif images.setdefault(path.with_suffix(""), path) != path:
            duplicates.append(path)
    _note_left_out(root, "images whose name exists with another suffix", duplicates)
    return images, others


def _lines(stem: Path, suffix: str) -> list[str]:
    path = stem.with_name(stem.name + suffix)
    return [line for line in read_lines(path) if line] if path.is_file() else []


def _note_left_out(root: Path, what: str, paths: list[Path]) -> None:
    if paths:
        note(f"{root}: {len(paths):,} {what} left out, such as {paths[0]}.")


def _note_other_kinds(root: Path, paths: Iterable[Path]) -> None:
    counts = Counter(path.suffix.lower() or path.name for path in paths)
    if counts:
        kinds = ", ".join(f"{suffix} ({count:,})" for suffix, count in sorted(counts.items()))
        note(f"{root}: files of other kinds left out: {kinds}.")
