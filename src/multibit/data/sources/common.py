"""Helpers that the readers share: notes, text files of any encoding, images of archives, comparison with the paper."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from multibit.data.dataset import PairedDataset
from multibit.data.notes import note, note_left_out
from multibit.errors import DataError, counted
from multibit.files import fingerprint
from multibit.paths import replacing
from multibit.texts import decode_text, parse_json, read_bytes, read_text

IMAGE_SUFFIXES = frozenset(
    (
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".webp",
        ".gif",
        ".bmp",
        ".tif",
        ".tiff",
        ".avif",
        ".jp2",
        ".ppm",
        ".pgm",
    )
)
"""Suffixes of the files that the readers of folders and archives take for images."""

LONGEST_NAME = 150
"""Bytes of a name from which an unpacked image keeps only the beginning; file systems allow 255."""

NAME_ENCODING = "Save it as UTF-8, or name its encoding: `encoding`, such as latin-1 or gb18030."
"""Hint for a text file that is not UTF-8, from readers with the argument `encoding`."""


def old_text(raw: bytes) -> str:
    """Text of a file of the datasets of before UTF-8: UTF-8, or else Latin-1."""
    try:
        return decode_text(raw)
    except DataError:
        return raw.decode("latin-1")


def split_lines(text: str) -> list[str]:
    """Lines without surrounding blanks; only line breaks end a line."""
    lines = [line.strip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def read_lines(path: Path, encoding: str | None = None, hint: str = NAME_ENCODING) -> list[str]:
    """Lines of a text file, see `split_lines`.

    Raises:
        DataError: missing, not a regular file, unreadable, or not text in this encoding.
    """
    return split_lines(read_text(path, encoding, hint))


def read_old_lines(path: Path) -> list[str]:
    """Lines of a text file of the datasets of before UTF-8: UTF-8, or else Latin-1.

    Raises:
        DataError: missing, not a regular file, or unreadable.
    """
    return split_lines(old_text(read_bytes(path)))


def load_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of another tool; empty where the file contains something else.

    Raises:
        DataError: missing, unreadable, or not JSON, or an object with a key that occurs twice.
    """
    try:
        content = parse_json(read_bytes(path))
    except DataError as error:
        raise error.within(path) from None
    return content if isinstance(content, dict) else {}


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
    """Every file below a folder in alphabetical order.

    Linked folders are followed, each folder once. Hidden files and folders, what is not a file, and names that are not
    UTF-8 are left out and counted in a `DataNote`.

    Raises:
        DataError: no such folder.
    """
    if not root.is_dir():
        raise DataError("no such folder.", file=root)
    whole, seen = root.resolve(), set[tuple[int, int]]()
    hidden: list[Path] = []
    others: list[Path] = []
    again: list[Path] = []
    failed: list[Path] = []
    undecoded: list[Path] = []
    for name, below, names in os.walk(
        root, followlinks=True, onerror=lambda error: failed.append(Path(error.filename))
    ):
        folder = Path(name)
        status = folder.stat()
        if (status.st_dev, status.st_ino) in seen:
            again.append(folder)
            below.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        hidden += [folder / each for each in (*below, *names) if each.startswith(".")]
        undecoded += [folder / each for each in (*below, *names) if not _is_text(each)]
        visible = [folder / each for each in sorted(filter(_is_text, below)) if not each.startswith(".")]
        inside = [each for each in visible if each.is_symlink() and each.resolve().is_relative_to(whole)]
        again += inside  # they lead to a folder that is read under its own name
        below[:] = [each.name for each in visible if each not in inside]
        for each in sorted(each for each in filter(_is_text, names) if not each.startswith(".")):
            path = folder / each
            if path.is_file():
                yield path
            else:
                others.append(path)
    note_left_out(root, "hidden files or folders", hidden)
    note_left_out(root, "broken links, pipes, sockets or devices", others)
    note_left_out(root, "links to folders that are read already", again)
    note_left_out(root, "folders that cannot be read", failed)
    note_left_out(root, "names that are not UTF-8", undecoded)


def _is_text(name: str) -> bool:
    """Whether the name of a file is UTF-8; the system's bytes that are not are lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def unique_ids(parts: Mapping[str, Sequence[str]], source: Path, *, prefix: bool, what: str) -> list[str]:
    """Ids of all parts of a source, in order, with the name of its part in front where that is needed or wanted.

    Args:
        parts: ids by name of the split or shard. source: of the parts. prefix: put the name in front of every id.
        what: human-readable name of a part.
    """
    used = Counter(key for ids in parts.values() for key in set(ids))
    repeated = [key for key, count in used.items() if count > 1]
    if repeated and not prefix:
        found = counted(len(repeated), "id occurs", "ids occur")
        note(
            f"{source}: {found} in several {what}s, such as {repeated[0]}; every id gets the name "
            f"of its {what} in front."
        )
    return [f"{name}-{key}" if repeated or prefix else key for name, ids in parts.items() for key in ids]


class ImageFolder:
    """The folder that images of an archive are unpacked to; each id has a file of its own.

    Characters that a name cannot have, or that lead elsewhere on Windows, become "_". Where that, a long name, or a
    file system that ignores case would give two ids one file, the name also has a hash of the id. Two ids that differ
    only in their Unicode form differ in that hash.

    Args:
        folder: for the images. nested: "/" in an id is a sub-folder.
    """

    def __init__(self, folder: Path, *, nested: bool = False) -> None:
        self._folder, self._nested = folder, nested
        self._taken: dict[str, str] = {}

    def save(self, key: str, suffix: str, content: bytes) -> Path:
        """Write the image of an id, unless its file has this content already.

        Raises:
            DataError: the id leads out of the folder.
        """
        target = self._folder / self._name(key, suffix)
        if not target.is_file() or target.stat().st_size != len(content) or target.read_bytes() != content:
            with replacing(target) as temporary:
                temporary.write_bytes(content)
        return target

    def _name(self, key: str, suffix: str) -> str:
        if self._nested:
            parts = PurePosixPath(key).parts
            if key.startswith("/") or ".." in parts or not parts:
                raise DataError(
                    f"the image {key + suffix!r} would be written outside of {self._folder}; the archive is refused."
                )
            key = "/".join(parts)
        name = re.sub(r"[\\:\x00-\x1f\x7f]" if self._nested else r"[/\\\x00-\x1f\x7f]", "_", key)
        longest = max(len(os.fsencode(part)) for part in name.split("/"))
        folded = _folded(name + suffix)
        if name != key or longest > LONGEST_NAME or self._taken.get(folded, key) != key:
            name = "/".join(os.fsencode(part)[:LONGEST_NAME].decode(errors="ignore") for part in name.split("/"))
            name = f"{name}-{fingerprint(key)[:8]}"
            folded = _folded(name + suffix)
        self._taken[folded] = key
        return name + suffix


def _folded(name: str) -> str:
    """The same for two names that are one file on a file system that ignores case or the Unicode form."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


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
            f"{name}: missing image files: {len(missing):,} of {len(dataset):,}, such as {missing[0]}; "
            "`multibit features` skips and lists them."
        )
    return dataset
