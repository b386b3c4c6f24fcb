"""Files that survive a crash: written to a temporary name, then renamed; each carries its kind and version.

Two formats serve everything: JSON for what people read, safetensors for arrays (with a checksum of their bytes).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from multibit.errors import DataError, FormatError

Arrays = dict[str, NDArray[Any]]
_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
"""safetensors' names of the types that we write."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success it becomes `path`, on any failure it is removed.

    A reader sees the old file or the new one, never a mixture. Works for a file and for a folder (a folder may
    only take a name that is free). A link stays: what it leads to is replaced.

    Raises:
        OSError: the disk refuses; names `path`, not the temporary file.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with replacing(target) as temporary:
        ...     _ = temporary.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    target, prefix = _behind_link(path), f".{path.name}."
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent)) / path.name
        try:
            yield temporary
            for file in [temporary, *temporary.rglob("*")]:
                if file.is_file():
                    _flush(file)
            temporary.replace(target)
            _flush(target.parent)
        finally:
            shutil.rmtree(temporary.parent, ignore_errors=True)
    except OSError as error:
        if prefix not in str(error.filename):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def require_writable(path: Path, *, folder: bool = False, unlike: Iterable[Path | None] = ()) -> None:
    """Refuse a place where nothing can be written, before the work that ends there; nothing is left behind.

    Args:
        path: to be written or replaced; it and folders above it need not exist. folder: it is one, not a file.
        unlike: what the work reads or writes elsewhere, as far as it is given: `path` must be none of these.

    Raises:
        DataError: a file is where a folder must be, or the reverse, or the disk refuses; `path` is one of `unlike`, or
            below a link that leads nowhere.
    """
    for other in unlike:
        if other is not None and os.path.realpath(other) == os.path.realpath(path):
            raise DataError(f"{path}: is the source itself, which would be replaced. Choose another name.")
    for each in (path, *path.parents):
        if each.is_symlink() and not each.exists():
            raise DataError(f"{each}: is a link that leads nowhere. Remove it or choose another place.")
    if path.exists() and path.is_dir() != folder:
        found, wanted = ("folder", "file") if path.is_dir() else ("file", "folder")
        raise DataError(f"{path}: is a {found}, but a {wanted} is to be written there. Choose another name.")
    place = path if folder else _behind_link(path).parent
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except NotADirectoryError:
        raise DataError(f"{place}: is a file, so {path} cannot be written below it. Choose another place.") from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written in {place.resolve()} ({error.strerror}). Choose another place."
        ) from None


def _behind_link(path: Path) -> Path:
    """Where a link leads; any other path as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def require_file(path: Path, kind: str) -> None:
    """Refuse a place where no file of a kind can be.

    Raises:
        FormatError: nothing is there, or a folder.
    """
    if path.is_dir():
        raise FormatError(f"{path}: is a folder; expected the file of a multibit {kind}.")
    if not path.is_file():
        raise FormatError(f"{path}: no such file; expected a multibit {kind}.")


def _flush(path: Path) -> None:
    """Ask the disk to keep what was written, so that a rename never outlives its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Mapping[str, Any], *, kind: str, version: int) -> None:
    """Write a versioned JSON file in one step."""
    header = {"format": f"multibit {kind}", "version": version}
    with replacing(path) as temporary:
        text = json.dumps({**header, **content}, ensure_ascii=False, indent=1)
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path, *, kind: str, version: int, fields: Sequence[str] = ()) -> dict[str, Any]:
    """Read what `write_json` wrote.

    Args:
        path: of the file. kind, version: what it must be. fields: that it must have.

    Raises:
        FormatError: the file is missing, torn, of another kind, or from a newer version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(f"{path}: no such file, so this is not a complete multibit {kind}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: not readable as JSON ({error}). The file is torn or was edited.") from None
    _check_header(path, content if isinstance(content, dict) else {}, kind, version)
    missing = [field for field in fields if field not in content]
    if missing:
        raise FormatError(f"{path}: lacks {', '.join(missing)}, so it was edited. Make it again or restore a copy.")
    return dict(content)


def write_arrays(path: Path, arrays: Arrays, header: Mapping[str, Any], *, kind: str, version: int) -> None:
    """Write named arrays and a JSON header as one safetensors file, in one step, with a checksum of the arrays."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {"format": f"multibit {kind}", "version": str(version), "header": json.dumps(header)}
    metadata["xxh3"] = _checksum(arrays, metadata)
    with replacing(path) as temporary:
        try:
            save_file(arrays, temporary, metadata=metadata)
        except SafetensorError as error:
            raise OSError(f"{path}: cannot be written ({error})") from None
        _sort_metadata(temporary)
        temporary.chmod(0o666 & ~_umask())


def _sort_metadata(path: Path) -> None:
    """Put the metadata in order, in place: safetensors writes them in any, and equal content should be equal bytes."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
        entries["__metadata__"] = dict(sorted(entries["__metadata__"].items()))
        file.seek(8)
        file.write(json.dumps(entries, separators=(",", ":")).encode().ljust(length))  # all of it is ASCII


def read_arrays(path: Path, *, kind: str, version: int, verify: bool = True) -> tuple[Arrays, dict[str, Any]]:
    """Map what `write_arrays` wrote into memory: pages are read when used, and changes never reach the file.

    Args:
        path: of the file. kind, version: what it must be.
        verify: compare the checksum, which reads every byte once.

    Returns:
        The arrays by name, and the header.

    Raises:
        FormatError: the file is missing, torn, changed, of another kind, or from a newer version.
    """
    require_file(path, kind)
    with path.open("rb") as file:  # opened once: a writer may put a new file in its place meanwhile
        try:
            arrays, metadata = _map_arrays(file)
        except (ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
            raise FormatError(
                f"{path}: torn or not a multibit {kind} ({error}). Make it again or restore a copy."
            ) from None
    _check_header(path, metadata, kind, version)
    if "header" not in metadata or (verify and _checksum(arrays, metadata) != metadata.get("xxh3")):
        raise FormatError(f"{path}: its content does not match its checksum. Make it again or restore a copy.")
    return arrays, json.loads(metadata["header"])


def _map_arrays(file: BinaryIO) -> tuple[Arrays, dict[str, str]]:
    """The arrays of a safetensors file, in place, and its metadata.

    The format: 8 bytes length of the header, the header in JSON with the place of each array, then the arrays, which
    fill the file to its end.
    """
    length = int.from_bytes(file.read(8), "little")
    size = os.fstat(file.fileno()).st_size
    if length > size - 8:
        raise ValueError(f"the header should have {length} bytes, the file has {size}")
    entries = json.loads(file.read(length))
    metadata = entries.pop("__metadata__", {})
    whole = np.memmap(file, np.uint8, mode="c")
    arrays, end = {}, 0
    for name, entry in entries.items():
        start, stop = entry["data_offsets"]
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        if not 0 <= start <= stop <= size - 8 - length or stop - start != dtype.itemsize * math.prod(entry["shape"]):
            raise ValueError(f"array {name} should lie at {start} to {stop} of {size - 8 - length} bytes")
        arrays[name] = np.asarray(whole[8 + length + start : 8 + length + stop]).view(dtype).reshape(entry["shape"])
        end = max(end, stop)
    if end != size - 8 - length:
        raise ValueError(f"the arrays should end at {end}, the file has {size - 8 - length} bytes of them")
    return arrays, metadata


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _check_header(path: Path, header: Mapping[str, Any], kind: str, version: int) -> None:
    found = header.get("format")
    if found != f"multibit {kind}":
        raise FormatError(f"{path}: expected a multibit {kind}, found {found or 'some other file'}.")
    if not str(header.get("version")).isdecimal():
        raise FormatError(f"{path}: has no readable version, so it was edited. Make it again or restore a copy.")
    if int(header["version"]) > version:
        raise FormatError(
            f"{path}: written in format version {header['version']}, this multibit reads up to {version}. "
            "Upgrade multibit to open it."
        )


def _checksum(arrays: Arrays, metadata: Mapping[str, str]) -> str:
    """Hash of the arrays and of everything that is said about them."""
    digest = xxhash.xxh3_128()
    digest.update(json.dumps([metadata[key] for key in ("format", "version", "header")]).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def checksum_file(path: Path) -> str:
    """xxh3 of a file's bytes, against torn and changed files."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(*parts: Any) -> str:
    """Hash values and arrays into 16 hexadecimal digits: equal input, equal digits, on every machine.

    What has `blocks()` is an array that is read block by block; it has the digits of the whole array.

    Example:
        >>> fingerprint("a", np.arange(3, dtype=np.uint8)) == fingerprint("a", np.array([0, 1, 2], np.uint8))
        True
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray) or hasattr(part, "blocks"):
            digest.update(f"{part.dtype.str} {part.shape}".encode())
            for block in [part] if isinstance(part, np.ndarray) else part.blocks():
                digest.update(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
        else:
            digest.update(json.dumps(part, sort_keys=True, default=str).encode())
        digest.update(b"\0")  # so that (1, 23) and (12, 3) differ
    return digest.hexdigest()[:16]
