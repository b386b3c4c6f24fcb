"""WebDataset: tar files in which the files of one item share a name."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from multibit.data.dataset import PairedDataset
from multibit.data.notes import note, note_left_out, note_other_kinds
from multibit.data.sources.common import IMAGE_SUFFIXES, NAME_ENCODING, ImageFolder, split_lines, unique_ids, walk
from multibit.data.values import labels_of, same_name, texts_of
from multibit.errors import DataError, first_line
from multibit.paths import require_regular
from multibit.texts import decode_text, parse_json

SHARDS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
"""Endings of shards, in any case."""

DESCRIBED_BY = (".txt", ".json", ".cls")
"""Suffixes of the files with texts and labels of an item."""

Entry = dict[str, bytes]
"""Files of one item by suffix, e.g. ".json"."""

LARGEST = 1 << 28
"""Bytes of the largest member that is read; a larger one is no image, and could exhaust the memory."""


def read_webdataset(
    source: Path | str,
    *,
    images: Path | str,
    label_names: Sequence[str] | None = None,
    encoding: str | None = None,
    prefix_ids: bool = False,
) -> PairedDataset:
    """Read shards, and unpack their images to a folder.

    Of each item: an image; texts from `.txt`, or `caption`, `text` or `texts` of `.json`; labels from `labels` or
    `label` of `.json`, or from `.cls`. The id is the name of its files without the suffix. The files of an item need
    not follow each other. Where an id occurs in several shards, every id gets the name of its shard in front.

    Args:
        source: a .tar file, compressed or not, or a folder of them, read in alphabetical order.
        images: folder for the images. label_names: names of class numbers, or of the columns of multi-hot vectors.
        encoding: of the texts; by their byte order mark, or else UTF-8, when None.
        prefix_ids: put the name of the shard in front of every id.

    Raises:
        DataError: no shard, a corrupt or truncated one, a file that occurs twice in a shard or is too large, a value of
            another type, or a name that leads out of the folder. ConfigError: an unknown encoding.
    """
    path, folder = Path(source), ImageFolder(Path(images), nested=True)
    shards = _shards(path)
    items: list[tuple[str, Path, tuple[str, ...]]] = []
    labels: list[Any] = []
    try:
        found = {name: _keys(shard) for name, shard in shards.items()}
        _note_left_out(path, found)
        whole = {name: [key for key, files in keys.items() if _image(files)] for name, keys in found.items()}
        ids = iter(unique_ids(whole, path, prefix=prefix_ids, what="shard"))
        for name, shard in shards.items():
            key_ids = dict(zip(whole[name], ids, strict=False))
            described: dict[str, Entry] = {key: {} for key in key_ids}
            saved: dict[str, Path] = {}
            for key, suffix, content in _contents(shard, {key: _image(found[name][key]) for key in key_ids}):
                if suffix in DESCRIBED_BY:
                    described[key][suffix] = content
                else:
                    saved[key] = folder.save(key_ids[key], suffix, content)
            for key, entry in described.items():
                texts, label = _described(entry, shard, key, encoding)
                items.append((key_ids[key], saved[key], texts))
                labels.append(label)
        names, columns = _labels(labels, items, label_names)
        return PairedDataset.of_items([(*item, each) for item, each in zip(items, names, strict=True)], columns)
    except DataError as error:
        raise error.within(path) from None


def _labels(
    labels: Sequence[Any], items: Sequence[tuple[str, Path, tuple[str, ...]]], label_names: Sequence[str] | None
) -> tuple[list[tuple[str, ...]], tuple[str, ...] | None]:
    """As `labels_of`; an error names the item."""
    try:
        return labels_of(labels, rows=range(len(labels)), label_names=label_names)
    except DataError as error:
        if error.row is not None:
            error.field, error.row = f"labels of {items[error.row][0]}", None
        raise


def _shards(path: Path) -> dict[str, Path]:
    """The shards of a folder by name, or the file itself; other files of the folder are counted in a note."""
    if not path.is_dir():
        return {_stem(path.name): path}
    files = list(walk(path))
    shards = [each for each in files if each.parent == path and each.name.lower().endswith(SHARDS)]
    if not shards:
        raise DataError(f"no {', '.join(SHARDS)} file in this folder.", file=path)
    note_left_out(path, "files that are not shards of this folder", [each for each in files if each not in shards])
    stems = Counter(_stem(shard.name) for shard in shards)
    return {name if stems[name] == 1 else shard.name: shard for shard in shards for name in [_stem(shard.name)]}


def _stem(name: str) -> str:
    """Name of a shard without its ending."""
    ending = next((ending for ending in sorted(SHARDS, key=len)[::-1] if name.lower().endswith(ending)), "")
    return name[: len(name) - len(ending)]


def _image(files: Collection[str]) -> str:
    """Suffix of the image among the files of an item; "" if there is none."""
    return next((suffix for suffix in files if suffix in IMAGE_SUFFIXES), "")


def _members(shard: Path) -> Iterator[tuple[str, str, tarfile.TarInfo, tarfile.TarFile]]:
    """Key, suffix, member and archive of each file of a shard; key and suffix are empty for what is not of an item."""
    require_regular(shard)
    try:
        with tarfile.open(shard) as tar:
            for member in tar:
                folder, _, name = member.name.removeprefix("./").rpartition("/")
                stem, dot, ending = name.partition(".")
                if member.isdir():
                    continue
                if not (member.isfile() and stem and dot):
                    yield "", "", member, tar
                    continue
                yield same_name(f"{folder}/{stem}" if folder else stem), f".{ending.lower()}", member, tar
            _require_end(tar, shard)
    except DataError:
        raise
    except Exception as error:  # the errors of gzip, bzip2 and lzma come through
        reason = first_line(error).rstrip(":")  # more lines: one per compression
        raise DataError(f"not a .tar file, corrupt or truncated ({reason}).", file=shard) from None


def _require_end(tar: tarfile.TarFile, shard: Path) -> None:
    """Refuse an archive that does not end where its members do: tarfile stops at the first header that it cannot read.

    Raises:
        DataError: a damaged header, no mark of the end, or more data after it, as of archives joined into one file.
    """
    file = tar.fileobj
    assert file is not None
    file.seek(tar.offset)
    mark = file.read(tarfile.BLOCKSIZE)
    if mark != bytes(tarfile.BLOCKSIZE):
        what = "no mark of its end" if not mark.strip(b"\0") else f"a damaged header at byte {tar.offset:,}"
        raise DataError(f"corrupt or truncated: {what}, so members may be missing.", file=shard)
    while rest := _padding(file, shard):
        if rest.strip(b"\0"):
            hint = "Extract it with tar --ignore-zeros, and write one archive; or give a folder with all archives."
            raise DataError("more data after the end, as of archives joined into one file.", file=shard, hint=hint)


def _padding(file: Any, shard: Path) -> bytes:
    """The next bytes after the end of an archive; b"" at the end of the file."""
    try:
        return bytes(file.read(1 << 20))
    except OSError as error:  # the archive is complete, and something else follows its compressed data
        note(f"{shard}: data after the end of the archive is not read ({error}).")
        return b""


def _keys(shard: Path) -> dict[str, list[str]]:
    """Suffixes of the files of each item; under the key "" the names of what is not of an item."""
    keys: dict[str, list[str]] = {}
    for key, suffix, member, _ in _members(shard):
        files = keys.setdefault(key, [])
        if key and suffix in files:
            raise DataError("occurs twice in this shard.", file=shard, field=member.name)
        files.append(suffix or member.name)
    return keys


def _note_left_out(source: Path, found: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
    """Count what is left out of the shards."""
    items = [(key, files) for keys in found.values() for key, files in keys.items() if key]
    others = [name for keys in found.values() for name in keys.get("", ())]
    note_left_out(source, "items without an image", [key for key, files in items if not _image(files)])
    note_left_out(source, "links and names without an ending", others)
    kinds = Counter(
        suffix for _, files in items for suffix in files if suffix not in (_image(files), *DESCRIBED_BY)
    )  # fmt: skip
    note_other_kinds(source, kinds)


def _contents(shard: Path, wanted: Mapping[str, str]) -> Iterator[tuple[str, str, bytes]]:
    """Key, suffix and content of the files that are used.

    Args:
        shard: of the items. wanted: suffix of the image by key.
    """
    for key, suffix, member, tar in _members(shard):
        if key not in wanted or suffix not in (wanted[key], *DESCRIBED_BY):
            continue
        if member.size > LARGEST:
            raise DataError(f"{member.size:,} bytes; at most {LARGEST:,} are read.", file=shard, field=member.name)
        file = tar.extractfile(member)
        yield key, suffix, file.read() if file else b""


def _described(entry: Entry, shard: Path, key: str, encoding: str | None) -> tuple[tuple[str, ...], Any]:
    """Texts of an item, and its labels as they are written."""
    about: Any = {}
    field = f"{key}.json"
    try:
        if ".json" in entry:
            about = parse_json(entry[".json"])
    except DataError as error:
        error.field = field
        raise error.within(shard) from None
    about = about if isinstance(about, dict) else {}
    try:
        if ".txt" in entry:
            texts: tuple[str, ...] = (decode_text(entry[".txt"], encoding, NAME_ENCODING).strip(),)
        else:
            written = next((about[name] for name in ("texts", "caption", "text") if about.get(name)), None)
            texts = tuple(text.strip() for text in texts_of(written, field=field))
        labels = next((about[name] for name in ("labels", "label") if about.get(name) is not None), None)
        if labels is None and ".cls" in entry:
            labels = _classes(decode_text(entry[".cls"], encoding, NAME_ENCODING))
        return texts, labels
    except DataError as error:
        error.field = error.field or f"{key}.txt"
        raise error.within(shard) from None


def _classes(text: str) -> list[Any]:
    """Class numbers, or names, one per line."""
    words = text.split()
    return [int(word) for word in words] if all(map(str.isdecimal, words)) else split_lines(text)
