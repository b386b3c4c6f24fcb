"""Columns of mapped files, whose offsets are checked before Arrow follows them.

A checksum shows that a file is as it was written, not that its writer was honest: a place outside of the file would be
read without a check, and could end the process. Opening checks the sizes of all buffers; the texts of a few rows are
checked when they are read, a whole column once, when it is first used as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow

from multibit.arrays import Rows
from multibit.errors import FormatError
from multibit.files import AGAIN


def require_whole(column: Any, name: str) -> None:
    """Check every offset, dictionary index and letter of a column.

    Raises:
        FormatError: one of them is invalid.
    """
    try:
        column.validate(full=True)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise FormatError(f"corrupt ({error}).", field=name, hint=AGAIN) from None


def take(column: Any, rows: Rows, name: str) -> Any:
    """Some rows of a column of texts; in time of the number of rows.

    Raises:
        FormatError: the text of one of them is not inside the file, or not UTF-8.
    """
    _, offsets, content = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    first, last = ends[rows], ends[np.asarray(rows) + 1]
    if len(rows) and (first.min() < 0 or (last < first).any() or last.max() > (content.size if content else 0)):
        raise FormatError("a text is outside of the file.", field=name, hint=AGAIN)
    found = column.take(pyarrow.array(rows))
    require_whole(found, name)
    return found


class CheckedColumns(Mapping[str, Any]):
    """Columns of metadata by field; each is checked as a whole when it is first read.

    Args:
        columns: as mapped.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns, self._checked = columns, set[str]()

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        if name not in self._checked:
            require_whole(column, name)
            self._checked.add(name)
        return column

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def take(self, name: str, rows: Rows) -> Any:
        """Some rows of a column, without a look at the others where that is safe."""
        column = self._columns[name]
        if name not in self._checked and pyarrow.types.is_large_string(column.type):
            return take(column, rows, name)
        return self[name].take(pyarrow.array(rows))
