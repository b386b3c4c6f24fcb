"""Versioned files: JSON for human-readable content, safetensors with a checksum for arrays; and fingerprints."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar, overload

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from multibit.errors import FormatError, MultibitError, first_line
from multibit.paths import replacing, require_regular

T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]
Needed = Mapping[str, tuple[str, int]]
"""Arrays of a file: name -> letters of numpy's kinds, number of dimensions."""
_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
"""safetensors dtype -> numpy dtype."""


AGAIN = "Write it again or restore a copy."


def require_file(path: Path, kind: str) -> None:
    """Refuse a path that is not an existing file.

    Raises:
        FormatError: nothing is there, or a folder.
    """
    if path.is_dir():
        raise FormatError(f"is a folder; expected a multibit {kind} file.", file=path)
    if not path.is_file():
        raise FormatError(f"no such file; expected a multibit {kind}.", file=path)


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
def read_json(path: Path, *, kind: str, version: int, form: Any = dict[str, Any], hint: str = AGAIN) -> Any:
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
        raise FormatError(f"corrupt or truncated: not valid JSON ({error}).", file=path, hint=AGAIN) from None
    _check_header(path, content if isinstance(content, dict) else {}, kind, version)
    return typed(content, form, path, hint)


def typed(content: Any, form: type[T], path: Path, hint: str = AGAIN) -> T:
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
def building(path: Path, hint: str = AGAIN) -> Iterator[None]:
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
            raise FormatError(problem, file=path, hint=AGAIN) from None
    _check_header(path, msgspec.structs.asdict(metadata), kind, version)
    if not metadata.header or (verify and _checksum(arrays, metadata) != metadata.xxh3):
        raise FormatError("the content does not match the checksum.", file=path, hint=AGAIN)
    try:
        header = json.loads(metadata.header)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"corrupt header ({error}).", file=path, hint=AGAIN) from None
    for name, (kinds, dimensions) in needed.items():
        array = arrays.get(name)
        if array is None or array.dtype.kind not in kinds or array.ndim != dimensions:
            what = "is missing" if array is None else f"is {array.dtype} of shape {array.shape}"
            raise FormatError(f"the array {what}.", file=path, field=name, hint=AGAIN)
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
        raise FormatError(problem, file=path, field="version", hint=AGAIN)
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
