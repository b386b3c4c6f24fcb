"""Read a user's own data: a CSV, JSONL or Parquet manifest beside a folder of pictures."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from multibit.data.dataset import PairedDataset
from multibit.errors import DataError
from multibit.files import replacing

FIELDS = ("id", "image", "text", "texts", "labels")
SUFFIXES = (".csv", ".jsonl", ".parquet")


def read_manifest(
    path: Path | str,
    *,
    images: Path | str | None = None,
    columns: Mapping[str, str] | None = None,
    separator: str = "|",
    label_names: Sequence[str] | None = None,
) -> PairedDataset:
    """Read one item per row.

    Fields: `id`, `image` (path, relative to `images`), `text` or `texts` (several), `labels` (names). In CSV, several
    values of one cell are separated by `separator` or written as a JSON list. Label columns are in alphabetical order.

    Args:
        path: a .csv, .jsonl or .parquet file, UTF-8.
        images: folder of the pictures; the manifest's own when None.
        columns: the file's own column names by field, e.g. {"image": "file_name"}.
        separator: between several values of one CSV cell.
        label_names: the only labels allowed, in column order; all that occur when None.

    Raises:
        DataError: unreadable, empty, a field missing in a row, duplicate ids, an unknown label; with file and row.
            Or `images` has no effect, for all paths are absolute.
    """
    names = {name: name for name in FIELDS} | dict(columns or {})
    if unknown := sorted(set(names) - set(FIELDS)):
        raise DataError(f"columns: {', '.join(unknown)} is not a field; there are {', '.join(FIELDS)}.")
    path = Path(path)
    root = path.parent if images is None else Path(images)
    asked = set(columns or ())
    numbers: list[int] = []
    ids: list[str] = []
    pictures: list[Path | None] = []
    texts: list[tuple[str, ...]] = []
    labels: list[tuple[str, ...]] = []
    for number, row in rows_of(path):
        where = f"{path}, row {number}"
        fields = {name: _cell(row, names, name, where) for name in ("id", "image", "labels")}
        numbers.append(number)
        ids.append(str(fields["id"]))
        pictures.append(root / str(fields["image"]) if fields["image"] else None)
        several = "texts" in asked or ("text" not in asked and names["texts"] in row)
        written = _cell(row, names, "texts" if several else "text", where)
        texts.append(_several(written, separator if several else None, where) or ("",))
        labels.append(_several(fields["labels"], separator, where))
    if not ids:
        raise DataError(f"{path}: the manifest is empty; it needs at least one row.")
    _refuse_duplicates(path, numbers, ids)
    if images is not None:
        _refuse_useless(path, root, [picture for picture in pictures if picture is not None])
    vocabulary = tuple(sorted(set().union(*labels)) if label_names is None else label_names)
    multi_hot = _multi_hot(path, numbers, labels, vocabulary)
    try:
        return PairedDataset(tuple(ids), tuple(pictures), tuple(texts), multi_hot, vocabulary)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def write_manifest(dataset: PairedDataset, path: Path | str) -> None:
    """Write a manifest that `read_manifest` reads back, the kind of file by its ending, in one step.

    Pictures below the manifest's folder are named relative to it. A label that no item has is not written.

    Raises:
        DataError: another ending.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise DataError(f"{path}: a manifest must end in {', '.join(SUFFIXES)}.")
    rows = [
        {
            "id": name,
            "image": _relative(image, path.parent),
            "texts": list(texts),
            "labels": dataset.label_names_of(row),
        }
        for row, (name, image, texts) in enumerate(zip(dataset.ids, dataset.images, dataset.texts, strict=True))
    ]
    with replacing(path) as temporary:
        if kind == ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), temporary)
        elif kind == ".jsonl":
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            temporary.write_text("".join(lines), encoding="utf-8")
        else:
            out = io.StringIO(newline="")
            writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            for row in rows:
                several = {name: json.dumps(row[name], ensure_ascii=False) for name in ("texts", "labels")}
                writer.writerow({**row, **several})
            temporary.write_text(out.getvalue(), encoding="utf-8", newline="")


def _relative(image: Path | None, folder: Path) -> str:
    if image is None:
        return ""
    absolute, base = image.absolute(), folder.absolute()
    return absolute.relative_to(base).as_posix() if absolute.is_relative_to(base) else str(absolute)


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their number as an editor shows it: the line of a text file, from 1 in Parquet."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: a manifest must end in {', '.join(SUFFIXES)}.")
    try:
        if path.suffix.lower() == ".parquet":
            yield from enumerate(pyarrow.parquet.read_table(path).to_pylist(), start=1)
            return
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _json_rows(path, file) if path.suffix.lower() == ".jsonl" else _csv_rows(path, file)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error}). Save it as UTF-8.") from None
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({error}).") from None


def _csv_rows(path: Path, file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(2**31 - 1)  # texts may have any length
    reader = csv.DictReader(file, strict=True)
    names = list(reader.fieldnames or ())
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path}, row 1: the column {twice!r} is there twice.")
    for row in _named_errors(path, reader):
        if None in row or None in row.values():
            raise DataError(
                f"{path}, row {reader.line_num}: need {len(reader.fieldnames or [])} cells, as in the header."
            )
        yield reader.line_num, row


def _named_errors(path: Path, reader: csv.DictReader[str]) -> Iterator[dict[str, Any]]:
    try:
        yield from reader
    except csv.Error as error:
        raise DataError(f"{path}, row {reader.reader.line_num}: not CSV ({error}).") from None


def _json_rows(path: Path, file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{path}, row {number}: not JSON ({error}).") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, row {number}: need an object with the fields {', '.join(FIELDS)}.")
        yield number, row


def _cell(row: Mapping[str, Any], names: Mapping[str, str], field: str, where: str) -> Any:
    """The row's value of a field; a missing column is an error, an empty value is not (but for the id)."""
    column = names[field]
    if column not in row or (field == "id" and row[column] in (None, "")):
        raise DataError(
            f"{where}: no {column!r}; it has {', '.join(map(str, row))}. Name the column with --column {field}=NAME, "
            f"of import with --map {field}=NAME."
        )
    return row[column]


def _several(value: Any, separator: str | None, where: str) -> tuple[str, ...]:
    """Values of one cell: a list as it is, a JSON list, or text cut at the separator."""
    if value is None:
        return ()
    if isinstance(value, str):
        if separator is not None and value.lstrip().startswith("["):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise DataError(f"{where}: {value[:40]!r} starts like a JSON list but is none ({error}).") from None
        else:
            parts = value.split(separator) if separator else [value]
            return tuple(part.strip() for part in parts if part.strip())
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise DataError(f"{where}: need a text or a list of texts, got {str(value)[:60]!r}.")
    return tuple(value)


def _refuse_useless(path: Path, root: Path, pictures: Sequence[Path]) -> None:
    """Refuse a folder of pictures that no picture path is relative to."""
    if pictures and not any(picture.absolute().is_relative_to(root.absolute()) for picture in pictures):
        raise DataError(
            f"{path}: the folder of pictures {root} has no effect, for every picture path is absolute, {pictures[0]} "
            "first. Leave --images out, or write paths relative to the folder."
        )


def _refuse_duplicates(path: Path, numbers: Sequence[int], ids: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for number, name in zip(numbers, ids, strict=True):
        if name in first:
            raise DataError(f"{path}: duplicate id {name!r}: rows {first[name]} and {number}. Each must be unique.")
        first[name] = number


def _multi_hot(
    path: Path, numbers: Sequence[int], labels: Sequence[Sequence[str]], vocabulary: Sequence[str]
) -> NDArray[np.uint8]:
    column = {name: index for index, name in enumerate(vocabulary)}
    array = np.zeros((len(labels), len(vocabulary)), np.uint8)
    for row, names in enumerate(labels):
        for name in names:
            if name not in column:
                raise DataError(
                    f"{path}, row {numbers[row]}: the label {name!r} is unknown; {len(column)} labels are known."
                )
            array[row, column[name]] = 1
    return array
