"""WebDataset: tar files in which the files of one item share a name and follow each other."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multibit.data.dataset import Item, PairedDataset
from multibit.data.sources.common import IMAGE_SUFFIXES, decode, listed, note, save_image
from multibit.errors import DataError

Entry = dict[str, bytes]
"""Files of one item by suffix, e.g. ".jpg"."""


def read_webdataset(source: Path | str, *, images: Path | str) -> PairedDataset:
    """Read shards, and unpack their images to a folder.

    Of each item: an image; texts from `.txt`, or `caption`, `text` or `texts` of `.json`; labels from `labels` or
    `label` of `.json`, or from `.cls`. The id is the name of its files without the suffix.

    Args:
        source: a .tar file, or a folder of them, read in alphabetical order. images: folder for the images.

    Raises:
        DataError: no shard, a corrupt or truncated one, an item that occurs twice, or a name that leads out of the
            folder.
    """
    path, folder = Path(source), Path(images)
    shards = sorted(path.glob("*.tar")) if path.is_dir() else [path]
    if not shards:
        raise DataError("no .tar file in this folder.", file=path)
    items: list[Item] = []
    without = []
    try:
        for shard in shards:
            for key, entry in _entries(shard):
                suffix = next((suffix for suffix in entry if suffix in IMAGE_SUFFIXES), None)
                if suffix is None:
                    without.append(key)
                else:
                    texts, labels = _described(entry, shard, key)
                    items.append((key, save_image(folder, key + suffix, entry[suffix]), texts, labels))
        if without:
            note(f"{path}: {len(without):,} items without an image left out, such as {without[0]}.")
        return PairedDataset.of_items(items)
    except DataError as error:
        raise error.within(path) from None


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
                        yield entries.popitem()  # the files of an item follow each other, so it is complete
                    entries.setdefault(key, {})["." + ending.lower()] = file.read() if file else b""
    except FileNotFoundError:
        raise DataError("no such file.", file=shard) from None
    except (tarfile.TarError, OSError, EOFError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(":")  # more lines: one per compression
        raise DataError(f"not a .tar file, corrupt or truncated ({reason}).", file=shard) from None
    yield from entries.items()


def _described(entry: Entry, shard: Path, key: str) -> tuple[list[str], list[str]]:
    """Texts and labels of an item."""
    try:
        about = json.loads(entry.get(".json", b"{}"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON ({error}).", file=shard, field=f"{key}.json") from None
    about = about if isinstance(about, dict) else {}
    if ".txt" in entry:
        texts = [decode(entry[".txt"]).strip()]
    else:
        texts = _stripped(next((about[name] for name in ("texts", "caption", "text") if about.get(name)), []))
    labels = _stripped(next((about[name] for name in ("labels", "label") if about.get(name) is not None), []))
    if not labels and ".cls" in entry:
        labels = decode(entry[".cls"]).split()
    return texts, labels


def _stripped(value: Any) -> list[str]:
    return [str(each).strip() for each in listed(value)]
