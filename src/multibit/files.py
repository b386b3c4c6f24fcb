"""Atomic, versioned files: JSON for human-readable content, safetensors with a checksum for arrays.

Every file is written to a temporary name and renamed, so a crash never leaves half a file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar, overload

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from multibit.errors import DataError, FormatError, MultibitError, first_line

T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]
Needed = Mapping[str, tuple[str, int]]
"""Arrays of a file: name -> letters of numpy's kinds, number of dimensions."""
_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
"""safetensors dtype -> numpy dtype."""

_KINDS_OF_FILES = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

_ELSEWHERE = "Choose another path."
_AGAIN = "Write it again or restore a copy."


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name next to `path`; on success it is renamed to `path`, on any failure it is removed.

    A reader sees the old file or the new one, never a mixture. Works for files and for folders (a folder cannot replace
    an existing one, see `multibit.folders.renewing`). If `path` is a symbolic link, the link is replaced, and the file
    that it leads to is unchanged.

    Raises:
        OSError: cannot be written; names `path`, not the temporary file.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with replacing(target) as temporary:
        ...     _ = temporary.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    with putting(path, _rename) as temporary:
        yield temporary


@contextlib.contextmanager
def putting(path: Path, put: Callable[[Path, Path], None]) -> Iterator[Path]:
    """As `replacing`, with another last step.

    Args:
        path: of the file or folder. put: moves what was written to `path`; called when it is on the disk.
    """
    prefix = f".{path.name}."
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary = Path(tempfile.mkdtemp(prefix=prefix, suffix="~", dir=path.parent)) / path.name
        try:
            yield temporary
            flush(*(file for file in [temporary, *temporary.rglob("*")] if file.is_file()))
            put(temporary, path)
            flush(path.parent)
        finally:
            shutil.rmtree(temporary.parent, ignore_errors=True)
    except OSError as error:
        if prefix not in str(error.filename):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def remove_left_over(folder: Path, pattern: str = "*") -> None:
    """Remove what interrupted writers left in a folder under temporary names; the caller is its only writer.

    Args:
        folder: need not exist. pattern: glob pattern of the names of what they wrote.
    """
    for left_over in folder.glob(f".{pattern}.{8 * '?'}~/"):
        shutil.rmtree(left_over, ignore_errors=True)


def _rename(temporary: Path, path: Path) -> None:
    if temporary.is_dir() and path.is_symlink():
        path.unlink()  # a folder cannot be renamed to a link
    temporary.replace(path)


def require_writable(path: Path, *, folder: bool = False, unlike: Iterable[Path | None] = ()) -> None:
    """Refuse a path that cannot be written, before the work starts; creates nothing.

    Args:
        path: will be written or replaced; it and its parents need not exist. folder: whether it is a folder.
        unlike: inputs and other outputs of the work (None where not given): `path` must be none of these.

    Raises:
        DataError: a file is where a folder is needed, or the reverse; no permission; `path` is one of `unlike`, or is
            below a broken symbolic link.
    """
    for other in unlike:
        if other is not None and os.path.realpath(other) == os.path.realpath(path):
            raise DataError("is also an input, which would be replaced.", file=path, hint=_ELSEWHERE)
    for each in (path, *path.parents):
        if each.is_symlink() and not each.exists():
            raise DataError("is a broken symbolic link.", file=each, hint="Remove it or choose another path.")
    if path.exists() and path.is_dir() != folder:
        found, wanted = ("folder", "file") if path.is_dir() else ("file", "folder")
        raise DataError(f"is a {found}, but a {wanted} has to be written there.", file=path, hint=_ELSEWHERE)
    if not folder and path.exists():
        require_regular(path)  # a device or a named pipe would be replaced by a file
    place = path if folder else path.parent
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except NotADirectoryError:
        raise DataError(f"is a file, so {path} cannot be written below it.", file=place, hint=_ELSEWHERE) from None
    except OSError as error:
        raise DataError(
            f"cannot be written in {place.resolve()} ({error.strerror}).", file=path, hint=_ELSEWHERE
        ) from None


def portable_path(path: Path, folder: Path) -> str:
    """A path as a file that may be published keeps it: relative to the folder of the file, so that both can be moved.

    Only the name is kept where the relative path would show the home folder of the user.

    Args:
        path: to keep. folder: of the file that keeps it; need not exist.

    Example:
        >>> portable_path(Path("data/images/1.jpg"), Path("data/run/index"))
        '../../images/1.jpg'
    """
    there, here = Path(os.path.normpath(path.absolute())), Path(os.path.realpath(folder))
    shared = Path(os.path.commonpath([there, here]))
    for home in (Path.home(), Path.home().resolve()):
        if there.is_relative_to(home) and not shared.is_relative_to(home):
            return there.name
    return os.path.relpath(there, here)


def located(stored: str, folder: Path) -> Path:
    """The absolute path that `portable_path` kept; the absolute paths of earlier versions are unchanged.

    Args:
        stored: path in a file. folder: of that file.
    """
    return Path(os.path.normpath(Path(os.path.realpath(folder)) / stored))


def require_regular(path: Path) -> None:
    """Refuse a path that is not a regular file, before it is opened: reading a named pipe could wait for ever.

    Raises:
        DataError: nothing is there; a folder, a named pipe, a socket or a device.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise DataError("no such file.", file=path) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        raise DataError(f"cannot be read ({getattr(error, 'strerror', None) or error}).", file=path) from None
    if not stat.S_ISREG(mode):
        kind = next((kind for is_kind, kind in _KINDS_OF_FILES if is_kind(mode)), "another kind of file")
        raise DataError(f"is {kind}, not a file.", file=path)


def require_suffix(path: Path, *known: str) -> None:
    """Refuse a path with another ending than the known ones, such as ".parquet".

    Raises:
        DataError: names its ending and the known ones.
    """
    if path.suffix not in known:
        raise DataError(f"must end in {' or '.join(known)}, got {path.suffix!r}.", file=path)


def require_file(path: Path, kind: str) -> None:
    """Refuse a path that is not an existing file.

    Raises:
        FormatError: nothing is there, or a folder.
    """
    if path.is_dir():
        raise FormatError(f"is a folder; expected a multibit {kind} file.", file=path)
    if not path.is_file():
        raise FormatError(f"no such file; expected a multibit {kind}.", file=path)


def flush(*paths: Path) -> None:
    """Flush files or folders to disk, so that their content is stored before what comes next.

    Several are flushed at the same time: a file system stores them together, in about the time of one.
    """
    if len(paths) < 2:
        for path in paths:
            _flush(path)
        return
    with ThreadPoolExecutor(min(len(paths), 8)) as threads:
        list(threads.map(_flush, paths))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_text(content: Mapping[str, Any], *, kind: str, version: int) -> str:
    """The text of a versioned JSON file."""
    header = {"format": f"multibit {kind}", "version": version}
    return json.dumps({**header, **content}, ensure_ascii=False, indent=1) + "\n"


def write_json(path: Path, content: Mapping[str, Any], *, kind: str, version: int) -> None:
    """Write a versioned JSON file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(json_text(content, kind=kind, version=version), encoding="utf-8")


@overload
def read_json(path: Path, *, kind: str, version: int) -> dict[str, Any]: ...
@overload
def read_json(path: Path, *, kind: str, version: int, form: type[T], hint: str = ...) -> T: ...
def read_json(path: Path, *, kind: str, version: int, form: Any = dict[str, Any], hint: str = _AGAIN) -> Any:
    """Read a file that `write_json` wrote.

    Args:
        path: of the file. kind: expected kind. version: newest readable version.
        form: structure of msgspec or dataclass that the content must be, with every constraint.
        hint: how to get a right file.

    Raises:
        FormatError: missing, corrupt or truncated, of another kind, or newer; or a field is missing, of another type or
            out of range.
    """
    if not path.exists():
        raise FormatError(f"no such file, so this is not a complete multibit {kind}.", file=path)
    require_regular(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number of thousands of digits, deep nesting
        raise FormatError(f"corrupt or truncated: not valid JSON ({error}).", file=path, hint=_AGAIN) from None
    _check_header(path, content if isinstance(content, dict) else {}, kind, version)
    return typed(content, form, path, hint)


def typed(content: Any, form: type[T], path: Path, hint: str = _AGAIN) -> T:
    """A structure of msgspec or a dataclass from the content of a file: the one way in which headers are read.

    Args:
        content: plain values. form: what they must be. path: of the file. hint: how to get a right one.

    Raises:
        FormatError: a field is missing, of another type or out of range.
    """
    try:
        return msgspec.convert(content, form)
    except (msgspec.ValidationError, UnicodeEncodeError, OverflowError, RecursionError) as error:
        place, missing = re.search(r"`\$\.([^`]*)`$", str(error)), re.search(r"required field `(\w+)`", str(error))
        field = ".".join(match[1] for match in (place, missing) if match)
        raise FormatError(f"invalid or missing field ({error}).", file=path, field=field, hint=hint) from None


_UNFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, MemoryError)
"""What constructors raise for parts that do not fit together."""


@contextlib.contextmanager
def building(path: Path, hint: str = _AGAIN) -> Iterator[None]:
    """Build an object from the typed content of a file; what its parts refuse together is an error of the file.

    Raises:
        FormatError: in place of the errors that constructors raise. MultibitError: as raised, with the file.
    """
    try:
        yield
    except MultibitError as error:
        raise error.within(path) from None
    except (*_UNFIT, msgspec.ValidationError) as error:
        raise FormatError(f"its parts do not fit together ({first_line(error)}).", file=path, hint=hint) from None


def write_arrays(path: Path, arrays: Arrays, header: Mapping[str, Any], *, kind: str, version: int) -> None:
    """Write named arrays and a JSON header atomically as one safetensors file, with a checksum of both."""
    with replacing(path) as temporary:
        put_arrays(temporary, arrays, header, kind=kind, version=version)


def put_arrays(path: Path, arrays: Arrays, header: Mapping[str, Any], *, kind: str, version: int) -> None:
    """As `write_arrays`, straight to the path and without a flush: for a file that nothing reads yet."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    about = _Metadata(f"multibit {kind}", str(version), json.dumps(header))
    about.xxh3 = _checksum(arrays, about)
    metadata: dict[str, str] = msgspec.structs.asdict(about)
    try:
        save_file(arrays, path, metadata=metadata)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise OSError(errno.EIO, f"cannot be written ({error})", str(path)) from None
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from None
    _sort_metadata(path)
    path.chmod(0o666 & ~_umask())


def _sort_metadata(path: Path) -> None:
    """Sort the metadata in place: safetensors writes them in any order, and equal content should give equal bytes."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
        entries["__metadata__"] = dict(sorted(entries["__metadata__"].items()))
        file.seek(8)
        file.write(json.dumps(entries, separators=(",", ":")).encode().ljust(length))  # ASCII only


class _Entry(msgspec.Struct):
    """An array in the header of a safetensors file."""

    dtype: Literal[
        "BOOL", "U8", "I8", "U16", "I16", "F16", "U32", "I32", "F32", "U64", "I64", "F64"
    ]  # fmt: skip
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]
    data_offsets: tuple[int, int]


class _Metadata(msgspec.Struct):
    """What `write_arrays` says about a file."""

    format: str = ""
    version: str = ""
    header: str = ""
    xxh3: str = ""


@overload
def read_arrays(path: Path, *, kind: str, version: int, verify: bool = ...) -> tuple[Arrays, dict[str, Any]]: ...
@overload
def read_arrays(
    path: Path, *, kind: str, version: int, form: type[T], needed: Needed = ..., verify: bool = ...
) -> tuple[Arrays, T]: ...
def read_arrays(
    path: Path,
    *,
    kind: str,
    version: int,
    form: Any = dict[str, Any],
    needed: Needed = {},  # noqa: B006 - never changed
    verify: bool = True,
) -> tuple[Arrays, Any]:
    """Memory-map a file that `write_arrays` wrote: pages are read when used, and changes never reach the file.

    Args:
        path: of the file. kind: expected kind. version: newest readable version.
        form: structure of msgspec or dataclass that the header must be, with every constraint.
        needed: arrays that must be there: name -> letters of numpy's kinds, number of dimensions.
        verify: compare the checksum, which reads every byte once.

    Returns:
        The arrays by name, and the header.

    Raises:
        FormatError: missing, corrupt or truncated, modified, of another kind, or newer; or a field of the header is
            missing, of another type or out of range.
    """
    require_file(path, kind)
    with path.open("rb") as file:  # opened once: a writer may replace the file meanwhile
        try:
            arrays, found = _map_arrays(file, path)
            metadata = typed(found, _Metadata, path)
        except (ValueError, OverflowError, RecursionError, FormatError) as error:
            reason = error.problem if isinstance(error, FormatError) else error
            problem = f"corrupt or truncated, or not a multibit {kind} ({reason})."
            raise FormatError(problem, file=path, hint=_AGAIN) from None
    _check_header(path, msgspec.structs.asdict(metadata), kind, version)
    if not metadata.header or (verify and _checksum(arrays, metadata) != metadata.xxh3):
        raise FormatError("the content does not match the checksum.", file=path, hint=_AGAIN)
    try:
        header = json.loads(metadata.header)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"corrupt header ({error}).", file=path, hint=_AGAIN) from None
    for name, (kinds, dimensions) in needed.items():
        array = arrays.get(name)
        if array is None or array.dtype.kind not in kinds or array.ndim != dimensions:
            what = "is missing" if array is None else f"is {array.dtype} of shape {array.shape}"
            raise FormatError(f"the array {what}.", file=path, field=name, hint=_AGAIN)
    return arrays, typed(header, form, path)


def _map_arrays(file: BinaryIO, path: Path) -> tuple[Arrays, Any]:
    """The mapped arrays of a safetensors file, and its metadata.

    The format: 8 bytes length of the header, the header in JSON with the position of each array, then the arrays up to
    the end of the file.
    """
    length = int.from_bytes(file.read(8), "little")
    size = os.fstat(file.fileno()).st_size
    if length > size - 8:
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    content = typed(json.loads(file.read(length)), dict[str, Any], path)
    metadata = content.pop("__metadata__", {})
    whole = np.memmap(file, np.uint8, mode="c")
    arrays, end = {}, 0
    for name, entry in typed(content, dict[str, _Entry], path).items():
        start, stop = entry.data_offsets
        dtype = np.dtype(_DTYPES[entry.dtype])
        if not 0 <= start <= stop <= size - 8 - length or stop - start != dtype.itemsize * math.prod(entry.shape):
            raise ValueError(f"array {name} at bytes {start} to {stop} of {size - 8 - length}")
        arrays[name] = np.asarray(whole[8 + length + start : 8 + length + stop]).view(dtype).reshape(entry.shape)
        end = max(end, stop)
    if end != size - 8 - length:
        raise ValueError(f"arrays of {end} bytes, the file has {size - 8 - length}")
    return arrays, metadata


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _check_header(path: Path, header: Mapping[str, Any], kind: str, version: int) -> None:
    found = header.get("format")
    if found != f"multibit {kind}":
        raise FormatError(f"expected a multibit {kind}, found {found or 'some other file'}.", file=path)
    if not re.fullmatch("[0-9]{1,9}", str(header.get("version"))):
        problem = "no valid version, so it may have been modified."
        raise FormatError(problem, file=path, field="version", hint=_AGAIN)
    if int(header["version"]) > version:
        raise FormatError(
            f"written in format version {header['version']}; this multibit reads up to {version}.",
            file=path,
            field="version",
            hint="Upgrade multibit to open it.",
        )


def _checksum(arrays: Arrays, metadata: _Metadata) -> str:
    """Hash of the arrays with their names, dtypes and shapes, and of the header."""
    digest = xxhash.xxh3_128()
    digest.update(json.dumps([metadata.format, metadata.version, metadata.header]).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def checksum_file(path: Path) -> str:
    """xxh3 of the bytes of a file, to detect corrupt and modified files."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(*parts: Any) -> str:
    """Hash values and arrays into 16 hexadecimal digits: equal input gives equal digits on every machine.

    An object with `blocks()` is an array that is read block by block; it hashes like the whole array.

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


def npz_keys(path: Path) -> list[str]:
    """Names of the arrays of an `.npz` file, none of which is read.

    Raises:
        DataError: missing, corrupt or truncated, or another kind of file.
    """
    require_regular(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            return list(file.files)
    except Exception as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    foreign = isinstance(error, ValueError) and not zipfile.is_zipfile(path)  # numpy's message is about pickles
    reason = "not a zip archive" if foreign else error
    return DataError(f"corrupt or truncated .npz file, or not one ({reason}).", file=path)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an `.npz` file.

    Raises:
        DataError: missing, corrupt or truncated, or another kind of file; or an array of Python objects, which is never
            unpickled, or one that the memory cannot hold; with its key.
    """
    require_regular(path)
    key = ""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {}
            for key in file.files:
                arrays[key] = file[key]
            return arrays
    except MemoryError:
        raise DataError("is declared larger than the memory.", file=path, field=key) from None
    except Exception as error:  # numpy passes on the errors of zip, zlib and its own parser
        if key and "allow_pickle" in str(error):
            raise DataError(
                "an array of Python objects, which is not read.",
                file=path,
                field=key,
                hint=f"Save it as texts or numbers, e.g. {key}=np.array(list_of_names, str).",
            ) from None
        raise _unreadable(path, error) from None
