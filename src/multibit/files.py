"""Files that survive a crash: written to a temporary name, then renamed; each carries its kind and version.

Two formats serve everything: JSON for what people read, safetensors for arrays (with a checksum of their bytes).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from multibit.errors import FormatError

Arrays = dict[str, NDArray[Any]]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success it becomes `path`, on any failure it is removed.

    A reader sees the old file or the new one, never a mixture. Works for a file and for a folder (a folder may
    only take a name that is free).

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with replacing(target) as temporary:
        ...     _ = temporary.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent)) / path.name
    try:
        yield temporary
        if temporary.is_file():
            _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)
    finally:
        shutil.rmtree(temporary.parent, ignore_errors=True)


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


def read_json(path: Path, *, kind: str, version: int) -> dict[str, Any]:
    """Read what `write_json` wrote.

    Raises:
        FormatError: the file is missing, torn, of another kind, or from a newer version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file, so this is not a complete multibit {kind}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: not readable as JSON ({error}). The file is torn or was edited.") from None
    _check_header(path, content if isinstance(content, dict) else {}, kind, version)
    return dict(content)


def write_arrays(path: Path, arrays: Arrays, header: Mapping[str, Any], *, kind: str, version: int) -> None:
    """Write named arrays and a JSON header as one safetensors file, in one step, with a checksum of the arrays."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {
        "format": f"multibit {kind}",
        "version": str(version),
        "sha256": _checksum(arrays),
        "header": json.dumps(header, ensure_ascii=False),
    }
    with replacing(path) as temporary:
        temporary.write_bytes(save(arrays, metadata=metadata))


def read_arrays(path: Path, *, kind: str, version: int) -> tuple[Arrays, dict[str, Any]]:
    """Read what `write_arrays` wrote.

    Returns:
        The arrays by name, and the header.

    Raises:
        FormatError: the file is missing, torn, changed, of another kind, or from a newer version.
    """
    if not path.is_file():
        raise FormatError(f"{path}: no such file; expected a multibit {kind}.")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            _check_header(path, metadata, kind, version)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except SafetensorError as error:
        raise FormatError(
            f"{path}: torn or not a multibit {kind} ({error}). Make it again or restore a copy."
        ) from None
    if _checksum(arrays) != metadata["sha256"]:
        raise FormatError(f"{path}: its content does not match its checksum. Make it again or restore a copy.")
    return arrays, json.loads(metadata["header"])


def _check_header(path: Path, header: Mapping[str, Any], kind: str, version: int) -> None:
    found = header.get("format")
    if found != f"multibit {kind}":
        raise FormatError(f"{path}: expected a multibit {kind}, found {found or 'some other file'}.")
    if int(header.get("version", 0)) > version:
        raise FormatError(
            f"{path}: written in format version {header['version']}, this multibit reads up to {version}. "
            "Upgrade multibit to open it."
        )


def _checksum(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def fingerprint(*parts: object) -> str:
    """Hash values and arrays into 16 hexadecimal digits: equal input, equal digits, on every machine.

    Example:
        >>> fingerprint("a", np.arange(3, dtype=np.uint8)) == fingerprint("a", np.array([0, 1, 2], np.uint8))
        True
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            array = np.ascontiguousarray(part)
            digest.update(f"{array.dtype.str} {array.shape}".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        else:
            digest.update(json.dumps(part, sort_keys=True, ensure_ascii=False, default=str).encode())
    return digest.hexdigest()[:16]
