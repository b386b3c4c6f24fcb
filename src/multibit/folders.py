"""Output folders: their one writer, their replacement in one step, and links in them, which are never followed."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from multibit.errors import BusyError, DataError
from multibit.paths import putting, remove_left_over

_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)  # by this kernel, or by this file system


@contextlib.contextmanager
def renewing(folder: Path, own: Iterable[str] = ()) -> Iterator[Path]:
    """Yield a new folder next to `folder`, which takes its place in one step on success.

    On any failure, a full disk included, the earlier folder is unchanged. Its other files, and links, are in the new
    folder too, as hard links where possible. If `folder` is a symbolic link, the link is replaced.

    Args:
        folder: need not exist.
        own: glob patterns of the files that the writer makes: those of an earlier time are not kept.

    Raises:
        OSError: cannot be written; names `folder`.

    Example:
        >>> import tempfile
        >>> report = Path(tempfile.mkdtemp()) / "report"
        >>> for name in ("first.md", "second.md"):
        ...     with renewing(report, own=["*.md"]) as fresh:
        ...         _ = (fresh / name).write_text(name)
        >>> [path.name for path in report.iterdir()]
        ['second.md']
    """

    def put(fresh: Path, place: Path) -> None:
        if place.is_dir() and not place.is_symlink():
            _keep_others(place, fresh, own)
            shutil.copymode(place, fresh)
        exchange(fresh, place) if os.path.lexists(place) else fresh.rename(place)

    with putting(folder, put) as fresh:
        fresh.mkdir()
        yield fresh


def exchange(fresh: Path, place: Path) -> None:
    """Exchange two files or folders next to each other, in one step where the system can, else in two renames."""
    for name, flag in (("renameat2", 2), ("renameatx_np", 2)):  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
        rename = getattr(ctypes.CDLL(None, use_errno=True), name, None) if os.name == "posix" else None
        if rename is None:
            continue
        here = -100 if sys.platform == "linux" else -2  # AT_FDCWD
        if not rename(here, os.fsencode(fresh), here, os.fsencode(place), flag):
            return
        code = ctypes.get_errno()
        if code not in _UNSUPPORTED:
            raise OSError(code, os.strerror(code), str(place))
    aside = fresh.with_name(f"{fresh.name}.old")
    place.rename(aside)
    try:
        fresh.rename(place)
    except OSError:
        aside.rename(place)
        raise


def _keep_others(earlier: Path, fresh: Path, own: Iterable[str]) -> None:
    """Put the files of an earlier folder that are not its writer's into the fresh one, unless they are there."""
    gone = {path for pattern in own for path in earlier.glob(pattern)}
    for here, folders, files in os.walk(earlier):
        links = [name for name in folders if (Path(here) / name).is_symlink()]
        for path in (Path(here) / name for name in (*files, *links)):
            target = fresh / path.relative_to(earlier)
            if path in gone or os.path.lexists(target):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, target, follow_symlinks=False)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                shutil.copy2(path, target, follow_symlinks=False)  # a file system without hard links


def subfolder(folder: Path, name: str) -> Path:
    """A folder inside an output folder, created if needed; a symbolic link there is removed, not followed.

    What interrupted writers left in it is removed; the caller is the only writer of the output folder.
    """
    path = folder / name
    if path.is_symlink():
        path.unlink()
    path.mkdir(parents=True, exist_ok=True)
    remove_left_over(path)
    return path


def require_inside(folder: Path, name: str, option: str) -> Path:
    """The default place of an output inside a folder; not one that a symbolic link leads elsewhere.

    Args:
        folder: such as of a run. name: of the output. option: argument that names another place.

    Raises:
        DataError: a symbolic link is there.
    """
    path = folder / name
    if path.is_symlink():
        raise DataError(
            f"is a symbolic link to {path.readlink()}, so the output would be written outside of {folder}.",
            file=path,
            hint=f"Remove the link, or name the other place by `{option}`.",
        )
    return path


# The one writer


@contextlib.contextmanager
def only_writer(path: Path, names: Sequence[str] = (), *, replaced: bool = False) -> Iterator[None]:
    """Be the only writer of a file or folder while the block runs, and remove temporary files of interrupted writers.

    The operating system releases the lock when the process ends, so a killed writer never blocks others.

    Args:
        path: a folder that exists, or a file, which need not exist.
        names: glob patterns of the files that are written in a folder.
        replaced: whether `path` is replaced as a whole, once or several times, while the block runs.

    Raises:
        BusyError: another process is writing there.
    """
    inside = path.is_dir() and not replaced
    folder, patterns = (path, names) if inside else (path.parent, [glob.escape(path.name)])
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, locked = _lock(path, replaced)
    try:
        for pattern in patterns:
            remove_left_over(folder, pattern)
        yield
    finally:
        if locked != path:
            locked.unlink(missing_ok=True)
        os.close(descriptor)


@contextlib.contextmanager
def only_writer_of(*paths: Path | None) -> Iterator[None]:
    """Be the only writer of several files and folders that are replaced as a whole; None is skipped.

    Raises:
        BusyError: another process is writing one of them.
    """
    with contextlib.ExitStack() as stack:
        for path in sorted({path for path in paths if path is not None}):
            stack.enter_context(only_writer(path, replaced=True))
        yield


def _lock(path: Path, replaced: bool) -> tuple[int, Path]:
    """Lock the path itself, or a lock file next to it while it does not exist or if it is to be replaced.

    Saving may replace a file by a new one, so a lock on a file that was replaced meanwhile is tried again.

    Returns:
        The descriptor, and the path that was locked.
    """
    import fcntl  # POSIX only; on other systems files can be read but not written

    while True:
        itself = path.exists() and not replaced
        target = path if itself else path.with_name(f".{path.name}.lock")
        if not itself and target.is_symlink():
            target.unlink()
        flags = os.O_RDONLY | os.O_NONBLOCK  # a named pipe would wait
        descriptor = os.open(target, flags if itself else flags | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            still_there = os.fstat(descriptor).st_ino == target.stat().st_ino
            if still_there and (itself or replaced or not path.exists()):
                return descriptor, target
        except BlockingIOError:
            os.close(descriptor)
            raise BusyError("another process is writing there.", file=path, hint="Try again when it is done.") from None
        except FileNotFoundError:
            pass  # removed meanwhile: try again
        os.close(descriptor)
