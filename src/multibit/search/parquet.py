"""Reading Parquet files of others, which may be corrupt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from multibit.errors import DataError, first_line

PARQUET_ERRORS = (pyarrow.ArrowException, OSError, UnicodeDecodeError)
"""What reading Parquet raises."""


def read_table(path: Path | str) -> Any:
    """The table of a Parquet file, checked as a whole.

    Raises:
        DataError: missing, not Parquet, corrupt, or with texts that are not UTF-8.
    """
    if not Path(path).is_file():
        raise DataError("no such file.", file=path)
    try:
        table = pyarrow.parquet.read_table(path)
        table.validate(full=True)
    except PARQUET_ERRORS as error:
        raise unreadable(path, error) from None
    return table


def unreadable(path: Path | str, error: Exception) -> DataError:
    """The error of a file that is not Parquet, or corrupt."""
    return DataError(f"cannot be read as Parquet ({first_line(error)}).", file=path)
