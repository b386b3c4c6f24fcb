"""CSV that every reader gets back as it was, and cells that no spreadsheet takes for a formula."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import Any, TextIO

FORMULA = ("=", "+", "-", "@", "\t", "＝", "＋", "－", "＠")
"""What a spreadsheet takes for the beginning of a formula."""


class _LineFeeds:
    """A file whose rows end in a line feed only, while the writer quotes every cell that has a carriage return."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, row: str) -> int:
        return self._file.write(row.removesuffix("\r\n") + "\n")


def write_csv(file: TextIO, rows: Iterable[Iterable[Any]]) -> None:
    r"""Write rows of cells.

    Example:
        >>> import io
        >>> out = io.StringIO()
        >>> write_csv(out, [["id", "text"], ["a", "two\rlines"]])
        >>> out.getvalue()
        'id,text\na,"two\rlines"\n'
    """
    csv.writer(_LineFeeds(file), lineterminator="\r\n").writerows(rows)


def no_formula(text: str) -> str:
    """A text with an apostrophe in front where a spreadsheet would take it for a formula; numbers unchanged.

    Example:
        >>> no_formula("=1+1"), no_formula("-1.5"), no_formula("a-b")
        ("'=1+1", '-1.5', 'a-b')
    """
    if not text.lstrip("\r\n").startswith(FORMULA) or text == "-":
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
