"""Output folders: checked up front, before the work whose results they hold."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from multibit.paths import require_writable


def require_folder(folder: Path, *, folders: Iterable[str] = (), files: Iterable[str] = ()) -> None:
    """Refuse an output folder that cannot be written.

    Args:
        folder: the output folder; it need not exist. folders, files: names of what is written in it.

    Raises:
        DataError: a file is where a folder must be, or the reverse, or there is no permission to write.
    """
    for each in (folder, *(folder / name for name in folders)):
        require_writable(each, folder=True)
    for name in files:
        require_writable(folder / name)
