"""Pictures in folders: a sub-folder per label, or pairs of a picture and a text of the same name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from multibit.data.dataset import PairedDataset
from multibit.data.sources.common import PICTURE_SUFFIXES, note, read_lines, walk
from multibit.errors import DataError


def read_pairs(source: Path | str) -> PairedDataset:
    """Read pairs by stem: `a.jpg` with `a.txt`; each line of a text file is a text.

    Labels, if any, are in `a.labels`, one a line; `multibit label` makes some otherwise. The id is the path without its
    ending. What has no partner is left out and counted.

    Raises:
        DataError: no such folder, or no pair in it.
    """
    root = Path(source)
    pictures, others = _split(root)
    texts = {path.with_suffix("") for path in others if path.suffix.lower() == ".txt"}
    paired = {stem: path for stem, path in pictures.items() if stem in texts}
    _tell(root, "pictures without a text", [path for stem, path in pictures.items() if stem not in texts])
    _tell(root, "texts without a picture", sorted(texts - pictures.keys()))
    _tell_kinds(root, (path for path in others if path.suffix.lower() not in (".txt", ".labels")))
    if not paired:
        raise DataError(f"{root}: no pair in it. A pair is a picture and a .txt of the same name: a.jpg, a.txt.")
    return PairedDataset.of_items(
        (stem.relative_to(root).as_posix(), path, _lines(stem, ".txt"), _lines(stem, ".labels"))
        for stem, path in paired.items()
    )


def read_folders(source: Path | str) -> PairedDataset:
    """Read a folder with one sub-folder per label: `dog/1.jpg`; the text is `dog/1.txt`, or the label in words.

    The id is the path without its ending.

    Raises:
        DataError: no such folder, or no picture in a sub-folder.
    """
    root = Path(source)
    pictures, others = _split(root)
    labelled = {stem: path for stem, path in pictures.items() if stem.parent != root}
    _tell(root, "pictures in no sub-folder", [path for stem, path in pictures.items() if stem.parent == root])
    _tell_kinds(root, (path for path in others if path.suffix.lower() != ".txt"))
    if not labelled:
        raise DataError(f"{root}: no picture in a sub-folder. Need one folder per label: dog/1.jpg, cat/2.jpg.")
    items, worded = [], 0
    for stem, path in labelled.items():
        name = stem.relative_to(root)
        text = _lines(stem, ".txt")
        worded += not text
        label = name.parts[0]
        items.append((name.as_posix(), path, text or [label.replace("_", " ").replace("-", " ")], [label]))
    if worded:
        note(f"{root}: {worded:,} pictures have no .txt of their own; their text is the name of their label.")
    return PairedDataset.of_items(items)


def _split(root: Path) -> tuple[dict[Path, Path], list[Path]]:
    """Pictures by their path without ending, and all other files."""
    pictures: dict[Path, Path] = {}
    others, twice = [], []
    for path in walk(root):
        if path.suffix.lower() not in PICTURE_SUFFIXES:
            others.append(path)
        elif pictures.setdefault(path.with_suffix(""), path) != path:
            twice.append(path)
    _tell(root, "pictures of a name that is there with another ending", twice)
    return pictures, others


def _lines(stem: Path, suffix: str) -> list[str]:
    path = stem.with_name(stem.name + suffix)
    return [line for line in read_lines(path) if line] if path.is_file() else []


def _tell(root: Path, what: str, paths: list[Path]) -> None:
    if paths:
        note(f"{root}: {len(paths):,} {what} left out, {paths[0]} first.")


def _tell_kinds(root: Path, paths: Iterable[Path]) -> None:
    counts = Counter(path.suffix.lower() or path.name for path in paths)
    if counts:
        kinds = ", ".join(f"{suffix} ({count:,})" for suffix, count in sorted(counts.items()))
        note(f"{root}: files of other kinds left out: {kinds}.")
