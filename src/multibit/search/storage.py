"""An index on disk: a folder of immutable segment files and one small manifest, which is replaced in one step.

`manifest.json` lists the segment files in order, and for each the file of its removed rows (a bitmap) and of its stored
engine (the pruned lists). A change writes new files under new names and flushes them together with the new manifest,
renames the manifest, then removes the files that are not listed any more. So a writer that is killed leaves the old
version or the new one; a reader that has opened (mapped) a version keeps it; and a reader that meets a file removed
between the manifest and the file starts again from the new manifest. Indices of earlier versions are single files: they
are read as they are, and replaced by a folder at the first change.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import numpy as np
import xxhash

from multibit.codes import Codes
from multibit.codes.packing import CodesHeader
from multibit.errors import DataError, FormatError
from multibit.files import AGAIN, building, json_text, put_arrays, read_arrays, read_json, require_file, typed
from multibit.folders import only_writer, renewing
from multibit.paths import flush, remove_left_over, require_writable
from multibit.progress import notice
from multibit.search import journal
from multibit.search.columns import IdColumn, IdHeader, text_column
from multibit.search.engines import ENGINES, Engine, StoredEngine
from multibit.search.journal import MANIFEST
from multibit.search.kinds import Kind
from multibit.search.metadata import Metadata
from multibit.search.segments import Lost, Part, Segment, Version
from multibit.search.trust import require_whole

KIND, FILE_VERSION, VERSION = "index", 2, 3  # single files were versions 1 and 2
SEGMENT, REMOVED, ENGINE, PART_VERSION = "index segment", "removed rows", "search engine", 1
ENDING, TEMPORARY = ".mbs", ".tmp"  # the last one of safetensors, while it writes a file
_OWN = f"*{ENDING}", MANIFEST  # files of an index
BLOCK = 1 << 16  # rows of metadata that are checked at a time
ATTEMPTS = 100  # of a reader, while a writer replaces the version again and again
_SUFFIX = r"-[0-9a-f]+\.mbs$"
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]


class _Entry(msgspec.Struct):
    """A segment in the manifest: its file, and that of its removed rows."""

    file: Annotated[str, msgspec.Meta(pattern="^segment" + _SUFFIX)]
    items: Count
    removed: Annotated[str, msgspec.Meta(pattern="^removed" + _SUFFIX)] | None
    engine: Annotated[str, msgspec.Meta(pattern="^[a-z]+" + _SUFFIX)] | None = None


class _Manifest(CodesHeader, kw_only=True):
    """What `manifest.json` must have."""

    model: str
    engine: str
    modality: Literal["image", "text", ""]
    generation: Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
    fields: dict[str, Kind]
    segments: Annotated[list[_Entry], msgspec.Meta(min_length=1)]
    xxh3: str


class _SegmentHeader(IdHeader, kw_only=True):
    """What the file of a segment must say."""

    count: Count
    fields: dict[str, Kind]


class _FileHeader(IdHeader, kw_only=True):
    """What the single file of an earlier version must say."""

    model: str
    engine: str
    modality: Literal["image", "text", ""] = ""


@dataclass(frozen=True)
class Stored:
    """A version of an index on disk.

    Attributes:
        version: the content. facts: model, engine, modality. name: of the version, see `name_of`.
    """

    version: Version
    facts: Mapping[str, str]
    name: str = ""


def read(path: Path, *, verify: bool, partial: bool = False, known: Version | None = None) -> Stored:
    """Open an index.

    Args:
        path: a folder, or a single file of an earlier version. verify: compare the checksums, which reads every byte.
        partial: leave out segments that cannot be read, where there are others. known: an earlier version of it, whose
            segments are used again.

    Raises:
        FormatError: missing, corrupt or truncated, newer, or another kind of file; names the file.
    """
    for _ in range(ATTEMPTS):
        before = _state(path)
        try:
            stored = _read_folder(path, verify, partial, known) if path.is_dir() else _read_file(path, verify)
            if not stored.version.lost or _state(path) == before:
                return stored
        except (FormatError, FileNotFoundError, NotADirectoryError, IsADirectoryError):
            if _state(path) == before:
                raise
    raise FormatError("is replaced faster than it can be read.", file=path)


def require_sound(path: Path) -> None:
    """Read and check all of an index: checksums, texts, offsets, the lookup of ids, and the lists of engines.

    Opening checks as much as takes no time, and the rest is checked when it is used; this is for an index from
    elsewhere. It takes the time of reading every byte.

    Raises:
        FormatError: something is wrong; names the file.
    """
    for part in read(path, verify=True).version.parts:
        segment = part.segment
        with building(segment.file or path):
            segment.ids.require_sound()
            for name in segment.metadata.columns:
                segment.metadata.columns[name]
            rows = np.arange(len(segment))
            for start in range(0, len(rows), BLOCK):  # JSON is read too
                segment.metadata.rows(rows[start : start + BLOCK])
        for engine in segment.engines.values():  # none but the stored one so far
            with building(segment.engine_file or path):
                cast(StoredEngine, engine).require_sound()


def require_writable_index(path: Path, unlike: Iterable[Path | None] = ()) -> None:
    """Refuse a path where no index can be written or replaced, before the work starts; creates nothing.

    Args:
        path: of the index; it and its parents need not exist. unlike: as for `files.require_writable`.

    Raises:
        DataError: another folder is there, no permission, or `path` is one of `unlike`. FormatError: an index is
            there that cannot be read, which might be restored.
    """
    _require_index(path)
    if path.is_dir() and not path.is_symlink():
        try:
            _manifest(path)
        except FormatError as error:
            hint = "Remove the folder, or restore a copy of the file, then run the command again."
            raise FormatError(error.problem, file=error.file, hint=hint) from None
    require_writable(path, folder=path.is_dir(), unlike=unlike)


def _require_index(path: Path) -> None:
    """Refuse a folder or a file that is no index, because it would be replaced."""
    if path.is_file():
        try:
            require_file(path, KIND)
            read_arrays(path, kind=KIND, version=FILE_VERSION, form=_FileHeader, verify=False)  # of an earlier version
        except FormatError as error:
            problem = f"is a file that is not an index ({error.problem.rstrip('.')})."
            raise DataError(problem, file=path, hint="Choose another path.") from None
    if path.is_dir() and not (path / MANIFEST).exists():
        problem = f"is a folder without {MANIFEST}, so it is not an index that can be replaced."
        raise DataError(problem, file=path, hint="Choose another path.")


def name_of(path: Path) -> str:
    """What no other version of any index has: the checksum of the manifest on disk; "" for a single file.

    The generation would not do: one that replaces the whole index starts again from 1.
    """
    return _manifest(path).xxh3 if path.is_dir() else ""


def _generation_of(path: Path) -> int:
    return _manifest(path).generation if path.is_dir() else 0


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Callable[[], None]]:
    """Be the only writer of an index, and remove what interrupted writers left in it and next to it.

    Yields:
        A function that raises FormatError if the index was moved, removed or replaced by another one meanwhile.
    """
    with only_writer(path, ("*",), replaced=path.is_symlink()):
        remove_left_over(path.parent, glob.escape(path.name))
        if path.is_dir():
            journal.carry_out(path)
        before = path.stat().st_ino if path.exists() else None

        def unchanged() -> None:
            if not path.exists() or path.stat().st_ino != before:
                raise FormatError("was moved or removed meanwhile, so the change is not written.", file=path)

        yield unchanged


def write(path: Path, version: Version, facts: Mapping[str, str]) -> None:
    """Make a version the content of an index; the caller is its only writer.

    Segments that are files of this index already are not written again.

    Raises:
        DataError: the index is empty. OSError: cannot be written.
    """
    _require_items(path, version)
    _require_index(path)
    path = Path(os.path.realpath(path.parent)) / path.name
    if path.is_dir() and not path.is_symlink():
        try:
            _publish(path, _write_version(path, version, facts, _generation_of(path) + 1))
        finally:
            remove_unlisted(path)
    else:  # nothing is there, or a single file of an earlier version, or a link, which is not followed
        with renewing(path) as fresh:
            _publish(fresh, _write_version(fresh, version, facts, 1))


def write_anew(changes: Sequence[tuple[Path, Version, Mapping[str, str]]]) -> None:
    """Write several indices, whatever is at their paths; if one cannot be written, all paths are as before.

    Args:
        changes: path, content, and facts of each index; the caller is the only writer of all of them.

    Raises:
        DataError: an index is empty, or another folder or file is there. OSError: cannot be written.
    """
    for path, version, _ in changes:
        _require_items(path, version)
        _require_index(path)
    with contextlib.ExitStack() as stack:  # each takes its place at the end
        for path, version, facts in changes:
            place = Path(os.path.realpath(path.parent)) / path.name
            fresh = stack.enter_context(renewing(place, own=_OWN))
            _publish(fresh, _write_version(fresh, version, facts, 1))


def write_together(changes: Sequence[tuple[Path, Version, Mapping[str, str]]]) -> None:
    """Make versions the contents of several indices of one folder in one step, see `multibit.search.journal`.

    Args:
        changes: path of a folder, content, and facts of each index; the caller is the only writer of all of them.

    Raises:
        DataError: an index is empty; then none is changed. OSError: cannot be written.
    """
    if len(changes) < 2:
        for change in changes:
            write(*change)
        return
    for path, version, _ in changes:
        _require_items(path, version)
    folder, decided = changes[0][0].parent, False
    try:
        prepared = {path.name: _write_version(path, version, facts, _generation_of(path) + 1).name
                    for path, version, facts in changes}  # fmt: skip
        journal.decide(folder, prepared)
        decided = True
    finally:
        if not decided:
            for path, _, _ in changes:
                remove_unlisted(path)
    for path, _, _ in changes:
        journal.carry_out(path)
    journal.forget(folder)
    for path, _, _ in changes:
        remove_unlisted(path)


def _require_items(path: Path, version: Version) -> None:
    if not version.parts:
        raise DataError("an empty index cannot be saved.", file=path, hint="Delete it instead.")


class SegmentWriter:
    """Writes an index that appears when it is complete, segment by segment; memory holds one of them, see `creating`.

    Args:
        folder: new. facts: model, engine, modality.
    """

    def __init__(self, folder: Path, facts: Mapping[str, str]) -> None:
        self.folder, self.facts = folder, facts
        self._entries: list[dict[str, Any]] = []

    def put(self, segment: Segment) -> IdColumn:
        """Write a segment; its ids, read from the file."""
        new: list[Path] = []
        self._entries.append(_write_part(self.folder, Part(segment), self.facts["engine"], new))
        flush(*new)
        arrays, header = read_arrays(new[0], kind=SEGMENT, version=PART_VERSION, form=_SegmentHeader, verify=False)
        return IdColumn.from_arrays(arrays, header, header.count)

    def finish(self, codes: Codes, kinds: Mapping[str, str]) -> None:
        """Make the segments an index. `codes` has the length and the views of all, `kinds` the fields."""
        _publish(self.folder, _write_manifest(self.folder, self._entries, codes, kinds, self.facts, 1, []))


@contextlib.contextmanager
def creating(path: Path, facts: Mapping[str, str]) -> Iterator[SegmentWriter]:
    """Write an index whose items come in a stream; it takes the place of `path` in one step, on success only.

    Raises:
        BusyError: another process is writing this index. DataError: another folder is there.
    """
    _require_index(path)
    with writing(path):
        place = Path(os.path.realpath(path.parent)) / path.name
        with renewing(place, own=_OWN) as fresh:
            yield SegmentWriter(fresh, facts)


def remove_unlisted(path: Path) -> None:
    """Remove files of versions before, and those of a writer that was interrupted."""
    if not (path / MANIFEST).exists():
        return
    listed = {name for entry in _manifest(path).segments for name in (entry.file, entry.removed, entry.engine)}
    for file in itertools.chain(path.glob(f"*{ENDING}"), path.glob(f"{TEMPORARY}*")):
        if file.name not in listed:
            file.unlink(missing_ok=True)


# Folders


def _read_folder(path: Path, verify: bool, partial: bool, known: Version | None) -> Stored:
    manifest = _manifest(path)
    old = {part.segment.file: part.segment for part in (known.parts if known else ())}
    parts, lost = [], []
    for entry in manifest.segments:
        try:
            parts.append(_read_part(path, entry, manifest, verify, old))
        except FormatError as error:
            if not partial:
                raise
            lost.append(Lost(error.file or path, entry.items, error.problem))
            first = error
    if lost and not parts:
        raise first
    return Stored(Version(tuple(parts), manifest.fields, tuple(lost)), _facts(manifest), manifest.xxh3)


def _facts(header: _Manifest | _FileHeader) -> dict[str, str]:
    return {"model": header.model, "engine": header.engine, "modality": header.modality}


def _manifest(path: Path) -> _Manifest:
    if not (path / MANIFEST).exists():
        raise FormatError(f"is a folder without {MANIFEST}; expected a multibit {KIND}.", file=path)
    content = read_json(path / MANIFEST, kind=KIND, version=VERSION)
    manifest = typed(content, _Manifest, path / MANIFEST)
    if manifest.xxh3 != _checksum(content):
        raise FormatError("the content does not match the checksum.", file=path / MANIFEST, hint=AGAIN)
    return manifest


def _checksum(content: Mapping[str, Any]) -> str:
    inner = {name: value for name, value in content.items() if name not in ("format", "xxh3")}
    return xxhash.xxh3_128_hexdigest(json.dumps(inner, sort_keys=True).encode())


def _read_part(
    path: Path, entry: _Entry, manifest: _Manifest, verify: bool, old: Mapping[Path | None, Segment]
) -> Part:
    segment = old.get(path / entry.file) or _read_segment(path, entry, manifest, verify)
    if entry.removed is None:
        return Part(segment)
    bitmap = path / entry.removed
    packed, _ = read_arrays(
        bitmap, kind=REMOVED, version=PART_VERSION, form=dict[str, Any], needed={"bitmap": ("u", 1)}, verify=True
    )
    with building(bitmap):
        if len(packed["bitmap"]) != -(-len(segment) // 8):
            raise ValueError(f"{8 * len(packed['bitmap'])} bits for {len(segment)} items")
        return Part(segment, np.unpackbits(packed["bitmap"], count=len(segment)).view(bool), bitmap)


def _read_segment(path: Path, entry: _Entry, manifest: _Manifest, verify: bool) -> Segment:
    file = path / entry.file
    arrays, header = read_arrays(file, kind=SEGMENT, version=PART_VERSION, form=_SegmentHeader, verify=verify)
    codes = Codes.of_file(file, arrays, header)
    with building(file):
        ids = IdColumn.from_arrays(arrays, header, header.count)
        metadata = Metadata.from_arrays(arrays, header.fields, header.count)
        if (codes.bits, codes.views) != (manifest.bits, manifest.views):
            raise ValueError("codes of another kind than the manifest says")
        if not metadata.kinds.items() <= manifest.fields.items():
            raise ValueError("fields of another kind than the manifest says")
    if not len(codes) == len(ids) == entry.items:
        raise FormatError(f"{len(codes):,} items, the manifest says {entry.items:,}.", file=file, hint=AGAIN)
    if entry.engine is None:
        return Segment(codes, ids, metadata, file)
    stored = path / entry.engine
    arrays, facts = read_arrays(stored, kind=ENGINE, version=PART_VERSION, form=dict[str, Any], verify=verify)
    try:
        with building(stored):
            engines: dict[str, Engine] = {manifest.engine: _stored(manifest.engine).from_arrays(codes, arrays, facts)}
    except DataError as error:
        raise FormatError(f"does not fit the segment ({error.problem}).", file=stored, hint=AGAIN) from None
    return Segment(codes, ids, metadata, file, engines, stored)


def _write_version(path: Path, version: Version, facts: Mapping[str, str], generation: int) -> Path:
    """Write a version that nobody reads yet; the file that becomes its manifest."""
    new: list[Path] = []
    entries = [_write_part(path, part, facts["engine"], new) for part in version.parts]
    return _write_manifest(path, entries, version.parts[0].segment.codes, version.kinds, facts, generation, new)


def _write_manifest(
    path: Path,
    entries: list[dict[str, Any]],
    codes: Codes,
    kinds: Mapping[str, str],
    facts: Mapping[str, str],
    generation: int,
    new: list[Path],
) -> Path:
    """Write the manifest of some segments, after which `_publish` makes them the index, and flush all that is new."""
    content: dict[str, Any] = {
        "version": VERSION,
        **facts, "bits": codes.bits, "views": codes.views, "generation": generation, "fields": dict(kinds),
        "segments": entries,
    }  # fmt: skip
    manifest = _new_file(path, "manifest", new)
    content = {**content, "xxh3": _checksum(content)}
    manifest.write_text(json_text(content, kind=KIND, version=VERSION), encoding="utf-8")
    flush(*new)
    return manifest


def _publish(path: Path, manifest: Path) -> None:
    manifest.replace(path / MANIFEST)
    flush(path)


def _write_part(path: Path, part: Part, engine: str, new: list[Path]) -> dict[str, Any]:
    """Write the files of a part that are not there yet; its entry in the manifest."""
    segment, file, bitmap = part.segment, part.segment.file, part.file
    if file is None or not _is_in(file, path):
        file = _new_file(path, "segment", new)
        id_arrays, id_header = segment.ids.to_arrays()
        arrays, header = segment.metadata.to_arrays()
        facts = {"count": len(segment), "bits": segment.codes.bits, "views": segment.codes.views}
        arrays = {"words": segment.codes.words, **id_arrays, **arrays}
        put_arrays(file, arrays, {**facts, **id_header, **header}, kind=SEGMENT, version=PART_VERSION)
    if part.removed is not None and (bitmap is None or not _is_in(bitmap, path)):
        bitmap = _new_file(path, "removed", new)
        put_arrays(bitmap, {"bitmap": np.packbits(part.removed)}, {}, kind=REMOVED, version=PART_VERSION)
    entry = {
        "file": file.name,
        "items": len(segment),
        "removed": None if part.removed is None or bitmap is None else bitmap.name,
    }
    stored = _write_engine(path, segment, engine, new)
    return entry if stored is None else {**entry, "engine": stored.name}


def _write_engine(path: Path, segment: Segment, engine: str, new: list[Path]) -> Path | None:
    """The file of the engine of a segment, written if it is not there yet; None for an engine with nothing to store."""
    if not ENGINES[engine].capabilities.stored:
        return None
    if segment.engine_file is not None and _is_in(segment.engine_file, path):
        return segment.engine_file
    with notice(f"Preparing the {engine} engine"):
        arrays, header = cast(StoredEngine, segment.engine(engine)).to_arrays()
    if not arrays:
        return None
    file = _new_file(path, engine, new)
    put_arrays(file, arrays, header, kind=ENGINE, version=PART_VERSION)
    return file


def _stored(engine: str) -> type[StoredEngine]:
    return cast(type[StoredEngine], ENGINES[engine])


def _new_file(path: Path, name: str, new: list[Path]) -> Path:
    """A new name in the folder; a file that no manifest lists is read by nobody, and removed by the next writer."""
    new.append(path / f"{name}-{secrets.token_hex(8)}{ENDING}")
    return new[-1]


def _is_in(file: Path, path: Path) -> bool:
    return os.path.realpath(file.parent) == os.path.realpath(path) and file.exists()


# Single files of earlier versions


def _read_file(path: Path, verify: bool) -> Stored:
    require_file(path, KIND)
    arrays, header = read_arrays(path, kind=KIND, version=FILE_VERSION, form=_FileHeader, verify=verify)
    codes = Codes.of_file(path, arrays, header)
    with building(path):
        ids = IdColumn.from_arrays(arrays, header, len(codes))
        payloads = None
        if "payloads" in arrays:
            texts = text_column(arrays, "payloads")
            require_whole(texts, "payloads")
            payloads = [json.loads(text) for text in texts.to_pylist()]
        metadata = Metadata.of(payloads, ids)
        return Stored(Version((Part(Segment(codes, ids, metadata)),), metadata.kinds), _facts(header))


def _state(path: Path) -> tuple[tuple[int, int] | None, ...]:
    """What changes when an index is replaced."""
    found: list[tuple[int, int] | None] = []
    for each in (path, path / MANIFEST):
        try:
            status = each.stat()
            found.append((status.st_ino, status.st_mtime_ns if each.name == MANIFEST else 0))
        except OSError:
            found.append(None)
    return tuple(found)
