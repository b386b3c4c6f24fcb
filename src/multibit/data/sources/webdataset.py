"""WebDataset: tar files in which the files of one item have one name and lie together."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from multibit.data.dataset import PairedDataset
from multibit.data.sources.common import PICTURE_SUFFIXES, decode, note
from multibit.errors import DataError
from multibit.files import replacing

Entry = dict[str, bytes]
"""Files of one item by their ending, e.g. ".jpg"."""


def read_webdataset(source: Path | str, *, images: Path | str) -> PairedDataset:
    """Read shards, and unpack their pictures into a folder.

    Of each item: a picture; texts from `.txt`, or `caption`, `text` or `texts` of `.json`; labels from `labels` or
    `label` of `.json`, or from `.cls`. The id is the name of its files without the ending.

    Args:
        source: a .tar file, or a folder of them, read in alphabetical order. images: folder for the pictures.

    Raises:
        DataError: no shard, a torn one, an item that occurs twice, or a name that leads out of the folder.
    """
    path, folder = Path(source), Path(images)
    shards = sorted(path.glob("*.tar")) if path.is_dir() else [path]
    if not shards:
        raise DataError(f"{path}: no .tar file in it.")
    items, without = [], []
    for shard in shards:
        for key, entry in _entries(shard):
            suffix = next((suffix for suffix in entry if suffix in PICTURE_SUFFIXES), None)
            if suffix is None:
                without.append(key)
            else:
                texts, labels = _described(entry, f"{shard}, {key}")
                items.append((key, save_picture(folder, key + suffix, entry[suffix]), texts, labels))
    if without:
        note(f"{path}: {len(without):,} items without a picture left out, {without[0]} first.")
    try:
        return PairedDataset.of_items(items)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def save_picture(folder: Path, name: str, content: bytes) -> Path:
    """Write a picture of an archive below a folder; one that is there with as many bytes is kept.

    Raises:
        DataError: the name leads out of the folder.
    """
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or not parts or "\0" in name:
        raise DataError(f"the picture {name!r} would be written outside of {folder}; the archive is refused.")
    target = folder.joinpath(*parts)
    if not target.is_file() or target.stat().st_size != len(content):
        with replacing(target) as temporary:
            temporary.write_bytes(content)
    return target


def _entries(shard: Path) -> Iterator[tuple[str, Entry]]:
    """Items of a shard in its order."""
    entries: dict[str, Entry] = {}
    try:
        with tarfile.open(shard) as tar:
            for member in tar:
                folder, _, name = member.name.removeprefix("./").rpartition("/")
                stem, dot, ending = name.partition(".")
                if member.isfile() and stem and dot:
                    file = tar.extractfile(member)
                    key = f"{folder}/{stem}" if folder else stem
                    if entries and key not in entries:
                        yield entries.popitem()  # the files of an item lie together: only one is open
                    entries.setdefault(key, {})["." + ending.lower()] = file.read() if file else b""
    except FileNotFoundError:
        raise DataError(f"{shard}: no such file.") from None
    except (tarfile.TarError, OSError, EOFError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(":")  # then one for each compression
        raise DataError(f"{shard}: not a whole .tar file ({reason}).") from None
    yield from entries.items()


def _described(entry: Entry, where: str) -> tuple[list[str], list[str]]:
    """Texts and labels of an item."""
    try:
        about = json.loads(entry.get(".json", b"{}"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}.json: not JSON ({error}).") from None
    about = about if isinstance(about, dict) else {}
    if ".txt" in entry:
        texts = [decode(entry[".txt"]).strip()]
    else:
        texts = _listed(next((about[key] for key in ("texts", "caption", "text") if about.get(key)), []))
    labels = _listed(next((about[key] for key in ("labels", "label") if about.get(key) is not None), []))
    if not labels and ".cls" in entry:
        labels = decode(entry[".cls"]).split()
    return texts, labels


def _listed(value: Any) -> list[str]:
    several: Sequence[Any] = value if isinstance(value, list) else [value]
    return [str(each).strip() for each in several if each is not None]
