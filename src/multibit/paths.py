"""Paths: refused before the work starts, replaced in one step, and kept in files so that they can be moved.

Every file is written to a temporary name and renamed, so a crash never leaves half a file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from multibit.errors import DataError

_KINDS_OF_FILES = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_ELSEWHERE = "Choose another path."


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


def require_new(folder: Path) -> None:
    """Refuse a folder that exists already.

    Raises:
        DataError: it, or a file, is there.
    """
    if folder.exists():
        raise DataError("exists already.", file=folder, hint="Choose another folder or delete it first.")


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
