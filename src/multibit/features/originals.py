"""What the image files were when they were encoded, to notice files that were replaced later."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from multibit.errors import DataError
from multibit.files import checksum_file
from multibit.paths import require_regular


class Original(NamedTuple):
    """The state of an image file.

    Attributes:
        size: in bytes. time: of its last modification, in nanoseconds. digest: checksum of its bytes.
    """

    size: int
    time: int
    digest: str

    @classmethod
    def of(cls, path: Path) -> Original:
        """The state of a file.

        Raises:
            DataError: not a file. OSError: unreadable.
        """
        require_regular(path)
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns, checksum_file(path))

    def is_at(self, path: Path) -> bool:
        """Whether a file has the same content: the same size and time, or the same size and bytes.

        A file that is not there is taken for the same: nothing can be said about it.
        """
        try:
            require_regular(path)
            status = path.stat()
            if status.st_size != self.size:
                return False
            return status.st_mtime_ns == self.time or checksum_file(path) == self.digest
        except (DataError, OSError):
            return True


def absolute(path: Path) -> Path:
    """The absolute path, without "..", by which two paths are compared; links are not followed."""
    return Path(os.path.normpath(path.absolute()))


def changed_rows(originals: Sequence[Original | None], images: Iterable[Path | None]) -> list[int]:
    """Rows whose image file has another content than when it was encoded.

    Args:
        originals: of each item; None, or no entries at all, where they are unknown. images: the files now.
    """
    pairs = zip(originals, images, strict=False)
    return [row for row, (before, now) in enumerate(pairs) if before and now and not before.is_at(now)]
