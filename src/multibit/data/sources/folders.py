"""Images in folders: one sub-folder per label, or pairs of an image and a text file of the same name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from multibit.data.dataset import PairedDataset
from multibit.data.notes import note, note_left_out, note_other_kinds
from multibit.data.sources.common import IMAGE_SUFFIXES, read_lines, walk
from multibit.data.values import same_name
from multibit.errors import DataError, counted

SPLIT_FOLDERS = frozenset(("train", "training", "val", "valid", "validation", "test", "testing", "query", "database"))
"""Names of folders that are parts of a split, not labels."""

Stem = str
"""Path without its suffix, relative to the folder that is read; equal names have equal code points."""


def read_pairs(source: Path | str, *, encoding: str | None = None) -> PairedDataset:
    """Read pairs by stem: `a.jpg` with `a.txt`; each line of a text file is a text.

    Labels, if any, are in `a.labels`, one per line. The id is the path without its suffix. Suffixes may have any case.
    Linked folders are followed, each once. Files without a partner are left out and counted in a `DataNote`.

    Args:
        source: the folder. encoding: of the text files; by their byte order mark, or else UTF-8, when None.

    Raises:
        DataError: no such folder, no pair in it, or a text file in another encoding. ConfigError: an unknown encoding.
    """
    root = Path(source)
    images, texts, labels = _read(root, (".txt", ".labels"))
    paired = {stem: path for stem, path in images.items() if stem in texts}
    note_left_out(root, "images without a text", [path for stem, path in images.items() if stem not in texts])
    note_left_out(root, "texts without an image", [path for stem, path in texts.items() if stem not in images])
    note_left_out(root, "labels without a pair", [path for stem, path in labels.items() if stem not in paired])
    if not paired:
        raise DataError("no pair; need an image and a .txt file of the same name: a.jpg, a.txt.", file=root)
    items = [
        (stem, path, _lines(texts[stem], encoding), _lines(labels.get(stem), encoding)) for stem, path in paired.items()
    ]
    if empty := [texts[stem] for stem, _, lines, _ in items if not lines]:
        note(f"{root}: {len(empty):,} text files are empty, such as {empty[0]}; their items have an empty text.")
    return PairedDataset.of_items(items)


def read_folders(source: Path | str, *, encoding: str | None = None) -> PairedDataset:
    """Read a folder with one sub-folder per label: `dog/1.jpg`; the text is `dog/1.txt`, or the name of the label.

    Where all sub-folders are parts of a split, as `train` and `val`, the labels are the folders in them.

    The id is the path without its suffix. Suffixes may have any case. Linked folders are followed, each once.

    Args:
        source: the folder. encoding: of the text files; by their byte order mark, or else UTF-8, when None.

    Raises:
        DataError: no such folder, no image in a sub-folder, or a text file in another encoding. ConfigError: an unknown
            encoding.
    """
    root = Path(source)
    images, texts = _read(root, (".txt",))
    labelled = {stem: path for stem, path in images.items() if "/" in stem}
    note_left_out(root, "images in no sub-folder", [path for stem, path in images.items() if "/" not in stem])
    note_left_out(root, "texts without an image", [path for stem, path in texts.items() if stem not in labelled])
    if not labelled:
        raise DataError("no image in a sub-folder; need one folder per label: dog/1.jpg, cat/2.jpg.", file=root)
    depth = _depth_of_labels(root, labelled)
    items, without = [], 0
    for stem, path in labelled.items():
        text = _lines(texts.get(stem), encoding)
        without += not text
        label = stem.split("/")[depth]
        items.append((stem, path, text or [label.replace("_", " ").replace("-", " ")], [label]))
    if without:
        found = counted(without, "image has", "images have")
        note(f"{root}: {found} no .txt file; the text is the name of the label.")
    return PairedDataset.of_items(items)


def _depth_of_labels(root: Path, stems: Iterable[Stem]) -> int:
    """The level of the folders that are labels: the first, or the second below the folders of a split."""
    folders = [stem.split("/")[:-1] for stem in stems]
    if all(len(names) > 1 and names[0].lower() in SPLIT_FOLDERS for names in folders) and folders:
        parts = ", ".join(sorted({names[0] for names in folders}))
        note(f"{root}: {parts} are taken for the parts of a split; the labels are the folders in them.")
        return 1
    if deeper := sum(len(names) > 1 for names in folders):
        first = "/".join(next(names for names in folders if len(names) > 1))
        found = counted(deeper, "image lies", "images lie")
        note(f"{root}: {found} in deeper folders, such as {first}; the label is its first name.")
    return 0


def _read(root: Path, suffixes: Iterable[str]) -> list[Mapping[Stem, Path]]:
    """Images by their stem, then the files of each suffix; all others are counted in a note."""
    found: dict[str, dict[Stem, Path]] = {"": {}, **{suffix: {} for suffix in suffixes}}
    others: Counter[str] = Counter()
    duplicates = []
    for path in walk(root):
        suffix = path.suffix.lower()
        kind = "" if suffix in IMAGE_SUFFIXES else suffix
        if kind not in found or (kind == "" and suffix == ""):
            others[suffix or path.name] += 1
            continue
        stem = same_name(path.with_suffix("").relative_to(root).as_posix())
        if found[kind].setdefault(stem, path) != path:
            duplicates.append(path)
    note_left_out(root, "files whose name exists with another suffix", duplicates)
    note_other_kinds(root, others)
    return list(found.values())


def _lines(path: Path | None, encoding: str | None) -> list[str]:
    return [] if path is None else [line for line in read_lines(path, encoding) if line]
