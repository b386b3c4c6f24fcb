"""Reading and writing of manifests: one item per row of a CSV, JSONL or Parquet file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pyarrow
import pyarrow.parquet

from multibit.data.dataset import Item, PairedDataset
from multibit.errors import DataError, require_known
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
        images: folder that image paths are relative to; the manifest's own when None.
        columns: the file's own column names by field, e.g. {"image": "file_name"}.
        separator: between several values of one CSV cell.
        label_names: the only labels allowed, in column order; all that occur when None.

    Raises:
        DataError: unreadable, empty, a field missing in a row, duplicate ids, an unknown label; with file, row and
            field. Or `images` has no effect because all paths are absolute.
        ConfigError: `columns` names an unknown field.
    """
    columns = columns or {}
    require_known_fields(columns, FIELDS, "columns")
    path = Path(path)
    root = path.parent if images is None else Path(images)
    items: list[Item] = []
    rows: list[int] = []
    try:
        for number, cells in rows_of(path):
            rows.append(number)
            items.append(_Row(number, cells, columns).item(root, separator))
        if images is not None:
            _require_effect(root, [image for _, image, _, _ in items if image is not None])
        return PairedDataset.of_items(items, label_names, rows=rows)
    except DataError as error:
        raise error.within(path) from None


def require_known_fields(names: Mapping[str, str], known: Sequence[str], option: str) -> None:
    """Refuse a mapping of column names or keys that has unknown fields.

    Args:
        names: the source's own name by field. known: the fields. option: argument that `names` was given as.

    Raises:
        ConfigError: an unknown field.
    """
    for name in names:
        require_known("field", name, known, option=option)


def write_manifest(dataset: PairedDataset, path: Path | str) -> None:
    """Write a manifest that `read_manifest` reads back, in the format of its suffix, in one step.

    Paths of images below the manifest's folder are relative to it. A label that no item has is not written.

    Raises:
        DataError: another suffix.
    """
    path = Path(path)
    kind = _suffix_of(path)
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


def _suffix_of(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"a manifest must end in {', '.join(SUFFIXES)}.", file=path)
    return suffix


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their number as an editor shows it: the line of a text file, from 1 in Parquet.

    Raises:
        DataError: missing, unreadable, not UTF-8, another suffix, or a row that is not CSV or JSON.
    """
    suffix = _suffix_of(path)
    try:
        if suffix == ".parquet":
            yield from enumerate(pyarrow.parquet.read_table(path).to_pylist(), start=1)
            return
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _json_rows(file) if suffix == ".jsonl" else _csv_rows(file)
    except DataError as error:
        raise error.within(path) from None
    except FileNotFoundError:
        raise DataError("no such file.", file=path) from None
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 ({error}).", file=path, hint="Save it as UTF-8.") from None
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"cannot be read ({error}).", file=path) from None


def _csv_rows(file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(2**31 - 1)  # texts may have any length
    reader = csv.DictReader(file, strict=True)
    try:
        names = list(reader.fieldnames or ())
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise DataError("two columns of this name; each must be unique.", row=1, field=twice)
        for row in reader:
            if None in row or None in row.values():
                found = len(names) + len(row.get(None) or ()) - list(row.values()).count(None)
                raise DataError(f"{found} cells; the header has {len(names)}.", row=reader.line_num)
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"not CSV ({error}).", row=reader.reader.line_num) from None


def _json_rows(file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"not JSON ({error}).", row=number) from None
        if not isinstance(row, dict):
            raise DataError(
                f"need an object with the fields {', '.join(FIELDS)}, got {type(row).__name__}.", row=number
            )
        yield number, row


@dataclass(frozen=True)
class _Row:
    """A row of a manifest.

    Attributes:
        number: as an editor shows it. cells: by the file's own column names. columns: those names by field.
    """

    number: int
    cells: Mapping[str, Any]
    columns: Mapping[str, str]

    def item(self, root: Path, separator: str) -> Item:
        """The item; image paths are relative to `root`, a CSV cell of several values is split at the separator."""
        name, image = self._value("id"), self._value("image")
        if name in (None, ""):
            raise DataError("the id is empty.", row=self.number, field="id")
        labels = self._values("labels", separator)
        several = "texts" in self.columns or ("text" not in self.columns and "texts" in self.cells)
        texts = self._values("texts", separator) if several else self._values("text", None)
        return str(name), root / str(image) if image else None, texts, labels

    def _value(self, field: str) -> Any:
        column = self.columns.get(field, field)
        if column not in self.cells:
            raise DataError(
                f"no column {column!r}; it has {', '.join(map(str, self.cells))}.",
                row=self.number,
                field=field,
                hint=f"Map the field {field} to a column with `columns`.",
            )
        return self.cells[column]

    def _values(self, field: str, separator: str | None) -> tuple[str, ...]:
        """Values of one cell: a list, a JSON list, or text that is split at the separator; the whole text if None."""
        value = self._value(field)
        if value is None:
            return ()
        if isinstance(value, str):
            if separator is None or not value.lstrip().startswith("["):
                parts = value.split(separator) if separator else [value]
                return tuple(part.strip() for part in parts if part.strip())
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{value[:40]!r} starts like a JSON list but is not one ({error}).", row=self.number, field=field
                ) from None
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise DataError(f"need a text or a list of texts, got {str(value)[:60]!r}.", row=self.number, field=field)
        return tuple(value)


def _require_effect(root: Path, images: Sequence[Path]) -> None:
    """Refuse a folder that no image path is relative to."""
    if images and not any(image.absolute().is_relative_to(root.absolute()) for image in images):
        raise DataError(
            f"the folder {root} has no effect: every image path is absolute, such as {images[0]}.",
            option="images",
            hint="Leave out `images`, or write paths relative to the folder.",
        )
