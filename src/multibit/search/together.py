"""Changes of several indices on disk in one step: after a crash all of them are there, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from multibit.errors import BusyError, DataError, FormatError
from multibit.search import journal, storage
from multibit.search.index import Index


@contextlib.contextmanager
def writing_together(indices: Sequence[Index]) -> Iterator[list[Index]]:
    """Change indices of one folder as their only writer, starting from the newest versions; then `refresh` them.

    An error inside leaves all of them unchanged. Readers are not blocked; each index is replaced in one step, all
    within moments. Use `finish` after a crash, before reading.

    Args:
        indices: opened, in one folder.

    Yields:
        The indices to change, in order.

    Raises:
        DataError: in different folders, or one would be empty. FormatError: one was moved or removed. BusyError:
            another process is writing one of them.
    """
    paths = [index.require_path() for index in indices]
    if len({path.parent.resolve() for path in paths}) != 1:
        raise DataError("need indices of one folder.", field="indices")
    for path in paths:
        if not path.exists():
            raise FormatError("was moved or removed.", file=path, hint="Open it where it is now.")
        if not path.is_dir() or path.is_symlink():
            with Index.editing(path):
                pass  # a file of an earlier version becomes a folder
    with contextlib.ExitStack() as stack:
        checks = [stack.enter_context(storage.writing(path)) for path in paths]
        writers = [index.reopened() for index in indices]
        before = [writer.version for writer in writers]
        yield writers
        for unchanged in checks:
            unchanged()
        changed = [
            (path, writer.version, writer.facts)
            for path, writer, version in zip(paths, writers, before, strict=True)
            if writer.version is not version
        ]
        storage.write_together(changed)
    for index in indices:
        index.refresh()


def save_together(indices: Mapping[Path, Index]) -> None:
    """Write indices to paths in one folder: all of them or none, where something cannot be written.

    Args:
        indices: by the path that each is written to; an index there is replaced.

    Raises:
        DataError: an index is empty, or another folder or file is there. BusyError: another process is writing one.
    """
    changes = [(path, index.version, index.facts) for path, index in indices.items()]
    with contextlib.ExitStack() as stack:
        for path in indices:
            stack.enter_context(storage.writing(path))
        are_there = all(path.is_dir() and not path.is_symlink() for path in indices)
        (storage.write_together if are_there else storage.write_anew)(changes)


def finish(folder: Path) -> bool:
    """Finish a change that an interrupted writer had decided.

    Args:
        folder: of indices.

    Returns:
        Whether all indices of the folder agree now: not while another process is writing them.

    Raises:
        FormatError: the journal is corrupt.
    """
    names = journal.pending(folder)
    if not names:
        return True
    try:
        with contextlib.ExitStack() as stack:
            for path in (folder / name for name in names if (folder / name).is_dir()):
                stack.enter_context(storage.writing(path))  # carries it out
                storage.remove_unlisted(path)
            journal.forget(folder)
    except BusyError:
        return False
    return True
