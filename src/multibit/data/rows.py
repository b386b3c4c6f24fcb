"""Rows of a table in a file, CSV, TSV, JSONL, JSON or Parquet, with their number as an editor shows it."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from multibit.data.values import describe
from multibit.errors import DataError
from multibit.paths import require_regular
from multibit.texts import lines_of, parse_json

FIELDS = ("id", "image", "text", "texts", "labels")
"""Fields of an item, by which the header of a manifest is known."""

ALSO = {"labels": "label"}
"""Another name of a field's column, which is read where the field's own is missing."""

SUFFIXES = (".csv", ".jsonl", ".parquet")
"""Formats that are written."""

READ = (*SUFFIXES, ".tsv", ".json")
"""Formats that are read: also cells separated by tabs, and one JSON list of objects."""

BATCH = 4096
"""Rows of a Parquet file that are read or written at a time."""

_DELIMITERS = ",;\t"


def suffix_of(path: Path, known: Sequence[str] = SUFFIXES) -> str:
    """The format of a file by its ending, in lower case.

    Raises:
        DataError: none of those known.
    """
    suffix = path.suffix.lower()
    if suffix not in known:
        raise DataError(f"a manifest must end in {', '.join(known)}.", file=path)
    return suffix


def rows_of(path: Path, encoding: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their number as an editor shows it: the line of a text file, from 1 in Parquet.

    Args:
        path: of the file. encoding: of a text file without a byte order mark; UTF-8 when None.

    Raises:
        DataError: missing, unreadable, in another encoding, another suffix, or a row that is not CSV or JSON.
        ConfigError: an unknown encoding.
    """
    suffix = suffix_of(path, READ)
    require_regular(path)
    try:
        if suffix == ".parquet":
            with pyarrow.parquet.ParquetFile(path) as whole:
                _require_once(whole.schema_arrow.names)
                rows = (row for batch in whole.iter_batches(BATCH) for row in batch.to_pylist())
                yield from enumerate(rows, start=1)
            return
        yield from _READERS[suffix](lines_of(path, encoding))
    except DataError as error:
        raise error.within(path) from None
    except FileNotFoundError:
        raise DataError("no such file.", file=path) from None
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read ({error}).", file=path) from None


def _csv_rows(file: Iterable[str], delimiter: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of cells; without a delimiter, it is the one of the header."""
    csv.field_size_limit(2**31 - 1)  # texts may have any length
    lines = iter(file)
    header = next(lines, None)
    if header is None:
        return
    delimiter = delimiter or _delimiter(header)
    reader = csv.DictReader(itertools.chain([header], lines), strict=True, delimiter=delimiter)
    try:
        names = list(reader.fieldnames or ())
        _require_once(names, row=1)
        for row in reader:
            if None in row or None in row.values():
                found = len(names) + len(row.get(None) or ()) - list(row.values()).count(None)
                raise DataError(f"{found} cells; the header has {len(names)}.", row=reader.line_num)
            if len(names) > 1 and [cell.lstrip("\ufeff") for cell in row.values()] == names:
                hint = "The file was joined from several: keep only the first header."
                raise DataError("the header again.", row=reader.line_num, hint=hint)
            if delimiter == "\t":
                _refuse_swallowed_rows(row.values(), reader.line_num)
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"not CSV ({error}).", row=reader.reader.line_num) from None


def _delimiter(header: str) -> str:
    r"""What separates the cells of a .csv: a comma where that shows a field's name, else what gives the most names.

    Example:
        >>> _delimiter("id,text;note,labels"), _delimiter("id;text, long;labels"), _delimiter("sku\ttitle")
        (',', ';', '\t')
    """
    found = {mark: next(csv.reader([header], delimiter=mark), []) for mark in _DELIMITERS}
    if {name.strip().casefold() for name in found[","]} & {*FIELDS, *ALSO.values()}:
        return ","
    return max(found, key=lambda mark: len(found[mark]))


def _refuse_swallowed_rows(cells: Iterable[str], line: int) -> None:
    """Refuse a cell between tabs that contains tabs and line breaks.

    Many tools write such cells as they are, so a text that begins with a quotation mark would swallow the rows up to
    the next quotation mark.

    Raises:
        DataError: with the row where the cell begins.
    """
    for cell in cells:
        if "\t" in cell and (breaks := cell.count("\n")):
            raise DataError(
                f"a cell begins with a quotation mark, which ends {breaks} lines later.",
                row=line - breaks,
                hint='Write "" for a quotation mark and put its cell in quotation marks, or write JSON lines.',
            )


def _require_once(names: Sequence[str], row: int | None = None) -> None:
    """Refuse two columns of one name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError("two columns of this name; each must be unique.", row=row, field=twice)


def _json_rows(file: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, start=1):
        line = line.lstrip("\ufeff")  # files with a byte order mark may have been joined
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except DataError as error:
            error.row = number
            raise
        yield number, _require_object(row, number)


def _json_list(file: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = parse_json("".join(file))
    if not isinstance(rows, list):
        raise DataError(f"need a list of objects, one per item, got {describe(rows)}.")
    for number, row in enumerate(rows, start=1):
        yield number, _require_object(row, number)


def _require_object(row: Any, number: int) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f"need an object with the fields {', '.join(FIELDS)}, got {type(row).__name__}.", row=number)
    return row


_READERS: Mapping[str, Callable[[Iterable[str]], Iterator[tuple[int, dict[str, Any]]]]] = {
    ".csv": _csv_rows,
    ".tsv": partial(_csv_rows, delimiter="\t"),
    ".jsonl": _json_rows,
    ".json": _json_list,
}
