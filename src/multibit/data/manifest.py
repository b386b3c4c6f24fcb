"""Reading and writing of manifests: one item per row of a CSV, TSV, JSONL, JSON or Parquet file."""

from __future__ import annotations

import itertools
import json
import os
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from multibit.cells import no_formula, write_csv
from multibit.data.dataset import PairedDataset
from multibit.data.notes import note
from multibit.data.rows import ALSO, BATCH, FIELDS, rows_of, suffix_of
from multibit.data.values import describe, id_of, labels_of, path_of, texts_of, with_slashes
from multibit.errors import DataError, counted, require_known
from multibit.paths import replacing

OPTIONAL = ("image", "labels")
"""Fields whose column may be missing: then no item has one."""

MISSING = frozenset(("nan", "none", "null", "<na>", "n/a"))
"""What other tools write into a text file for a missing value."""

SHOWN = 12  # columns in a note

_TEXTS = pyarrow.list_(pyarrow.string())
SCHEMA = pyarrow.schema({"id": pyarrow.string(), "image": pyarrow.string(), "texts": _TEXTS, "labels": _TEXTS})
"""Columns of the manifests that are written."""


def read_manifest(
    path: Path | str,
    *,
    images: Path | str | Callable[[str], Path] | None = None,
    columns: Mapping[str, str] | None = None,
    separator: str = "|",
    label_names: Sequence[str] | None = None,
    encoding: str | None = None,
) -> PairedDataset:
    r"""Read one item per row.

    Fields: `id`, `image` (path, relative to `images`), `text` or `texts` (several), `labels`. In CSV and TSV, several
    values of one cell are separated by `separator` or written as a JSON list. A text may be a structure with the text
    in `raw` or `text`; labels are names, class numbers or multi-hot vectors. Label columns are in alphabetical order.
    Without a column of images or labels, no item has one. Names of columns are compared without case and blanks at
    their ends, and `label` is read where `labels` is missing. The cells of a .csv may be separated by semicolons or
    tabs too, as its header shows. Columns that are not used, and what may be a mistake of the tool that wrote the file,
    are reported in a `DataNote`.

    Args:
        path: a .csv, .tsv, .jsonl, .json (a list of objects) or .parquet file.
        images: folder that image paths are relative to, the manifest's own when None; or the path of an image from the
            text of its cell.
        columns: the file's own column names by field, e.g. {"image": "file_name"}.
        separator: between several values of one CSV cell.
        label_names: the only labels allowed, in column order; all that occur when None.
        encoding: of a text file; by its byte order mark, or else UTF-8, when None.

    Raises:
        DataError: unreadable, empty, a field missing in a row, a value of another type, duplicate ids, an unknown
            label; with file, row and field. Or `images` has no effect because all paths are absolute.
        ConfigError: `columns` names an unknown field.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "items.csv"
        >>> _ = path.write_text("id,text,labels\nfirst,a cat,cat\nsecond,a small dog,dog|pet\n")
        >>> data = read_manifest(path)
        >>> data, data.texts[1], data.label_names_of(1)
        (PairedDataset(2 items, 3 labels), ('a small dog',), ['dog', 'pet'])
    """
    columns = columns or {}
    require_known_fields(columns, FIELDS, "columns")
    path = Path(path)
    root = path.parent if images is None else images if callable(images) else Path(images)
    items: list[tuple[str, Path | None, tuple[str, ...]]] = []
    labels: list[Any] = []
    rows = array("q")
    remarks, is_text = _Remarks(path, separator), path.suffix.lower() in (".csv", ".tsv")
    try:
        for number, cells in rows_of(path, encoding):
            row = _Row(number, cells, columns, is_text)
            rows.append(number)
            items.append(row.item(root, separator))
            labels.append(row.values("labels", separator))
            remarks.read(row, items[-1], labels[-1])
        if isinstance(root, Path) and images is not None:
            _require_effect(root, [image for _, image, _ in items if image is not None])
        remarks.tell()
        names, found = labels_of(labels, rows=rows, label_names=label_names)
        whole = ((*item, each) for item, each in zip(items, names, strict=True))
        return PairedDataset.of_items(whole, found, rows=rows)
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


def write_manifest(dataset: PairedDataset, path: Path | str, *, spreadsheet_safe: bool = False) -> None:
    """Write a manifest that `read_manifest` reads back, in the format of its suffix, in one step.

    Paths of images below the manifest's folder are relative to it. A label that no item has is not written.

    Args:
        dataset: N items. path: a .csv, .jsonl or .parquet file.
        spreadsheet_safe: in a .csv, put an apostrophe in front of ids and paths that a spreadsheet would take for
            formulas. Read back, these ids and paths have it too. Texts and labels are JSON lists, never formulas.

    Raises:
        DataError: another suffix; or a .csv, and an id has blanks at its ends, which are lost there.
    """
    path = Path(path)
    kind = suffix_of(path)
    if kind == ".csv" and (padded := next((name for name in dataset.ids if name != name.strip()), "")):
        problem = f"{padded!r} has blanks at its ends, which are lost in a .csv."
        raise DataError(problem, file=path, field="id", hint="Write .jsonl or .parquet.")
    rows = (
        {
            "id": name,
            "image": _relative(image, path.parent),
            "texts": list(texts),
            "labels": dataset.label_names_of(row),
        }
        for row, (name, image, texts) in enumerate(zip(dataset.ids, dataset.images, dataset.texts, strict=True))
    )
    with replacing(path) as temporary:
        if kind == ".parquet":
            with pyarrow.parquet.ParquetWriter(temporary, SCHEMA) as writer:
                while part := list(itertools.islice(rows, BATCH)):
                    writer.write_table(pyarrow.Table.from_pylist(part, SCHEMA))
            return
        with temporary.open("w", encoding="utf-8", newline="") as file:
            if kind == ".jsonl":
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
                return
            guard = no_formula if spreadsheet_safe else _unchanged
            cells = (
                (guard(str(row["id"])), guard(str(row["image"])), _json_cell(row["texts"]), _json_cell(row["labels"]))
                for row in rows
            )
            write_csv(file, itertools.chain([SCHEMA.names], cells))


def _unchanged(text: str) -> str:
    return text


def _json_cell(values: Any) -> str:
    return json.dumps(values, ensure_ascii=False)


def _relative(image: Path | None, folder: Path) -> str:
    if image is None:
        return ""
    absolute, base = image.absolute(), folder.absolute()
    return absolute.relative_to(base).as_posix() if absolute.is_relative_to(base) else str(absolute)


@dataclass(frozen=True)
class _Row:
    """A row of a manifest.

    Attributes:
        number: as an editor shows it. cells: by the file's own column names. columns: those names by field.
        is_text: of a CSV or TSV file, whose ids may have blanks at their ends.
    """

    number: int
    cells: Mapping[str, Any]
    columns: Mapping[str, str]
    is_text: bool

    def item(self, root: Path | Callable[[str], Path], separator: str) -> tuple[str, Path | None, tuple[str, ...]]:
        """Id, image and texts; image paths are relative to `root`, or found by it; a CSV cell of texts is split."""
        name = id_of(self._value("id"), row=self.number)
        name = name.strip() if self.is_text else name
        image = path_of(self._value("image"), row=self.number) if isinstance(root, Path) else self._located(root)
        field = self.text_field
        several = field == "texts"
        value = self.values(field, separator if several else None)
        texts = texts_of(value, row=self.number, field=field)
        if not several and isinstance(value, list) and texts and _LIST.fullmatch(texts[0]):
            hint = "Map the field texts to this column with `columns`, as a JSON list; or write JSON lines."
            raise DataError(f"{texts[0][:40]!r} is a list of texts.", row=self.number, field=field, hint=hint)
        if image is not None and isinstance(root, Path):
            image = _place(root, image)
        return name, image, texts

    def _located(self, locate: Callable[[str], Path]) -> Path | None:
        """The path that `locate` gives an image, which may be an address."""
        value = self._value("image")
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise DataError(f"need a path, got {describe(value)}.", row=self.number, field="image")
        try:
            return locate(value.strip())
        except DataError as error:
            raise DataError(error.problem, row=self.number, field="image", hint=error.hint) from None

    @property
    def text_field(self) -> str:
        """The field that is read: `text` or `texts`."""
        if "texts" in self.columns or ("text" not in self.columns and self._column("texts") is not None):
            return "texts"
        return "text"

    @property
    def unused(self) -> list[str]:
        """Names of the columns that no field is read from, `text` next to `texts` left out."""
        read = {self.columns.get(field) or self._column(field) for field in ("id", "image", "labels", self.text_field)}
        return [str(name) for name in self.cells if name not in read and name not in ("text", "texts")]

    def _column(self, field: str) -> str | None:
        """The column of a field that is not mapped; None if it has none."""
        if field in self.cells:
            return field
        folded = {str(name).strip().casefold(): name for name in self.cells}
        return folded.get(field) or (self._column(ALSO[field]) if field in ALSO else None)

    def _value(self, field: str) -> Any:
        column = self.columns.get(field) or self._column(field)
        if column is None or column not in self.cells:
            if field in OPTIONAL and field not in self.columns:
                return None
            raise DataError(
                f"no column {self.columns.get(field, field)!r}; it has {', '.join(map(str, self.cells))}.",
                row=self.number,
                field=field,
                hint=f"Map the field {field} to a column with `columns`.",
            )
        return self.cells[column]

    def values(self, field: str, separator: str | None) -> Any:
        """Values of one cell: a list, a JSON list, or text that is split at the separator; the whole text if None."""
        value = self._value(field)
        if not isinstance(value, str):
            return value
        if separator is None or not value.lstrip().startswith("["):
            parts = value.split(separator) if separator else [value]
            return [part.strip() for part in parts if part.strip()]
        try:
            return json.loads(value)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(
                f"{value[:40]!r} starts like a JSON list but is not one ({error}).", row=self.number, field=field
            ) from None


_LIST = re.compile(r"""\[\s*(['"]).*\1\s*\]""", re.DOTALL)
"""A list of texts as JSON, Python or numpy writes it."""

_SEPARATORS = ";|,"
_BITS = re.compile(r"[01]([ ,;|][01])+")


@dataclass
class _Remarks:
    """What looks like a mistake of the tool that wrote a manifest, counted while the rows are read."""

    path: Path
    separator: str
    missing: int = 0
    unsplit: int = 0
    split: int = 0
    bits: int = 0
    ignored: int = 0
    headers: set[tuple[str, ...]] = field(default_factory=set)
    unused: dict[str, None] = field(default_factory=dict)

    def read(self, row: _Row, item: tuple[str, Path | None, tuple[str, ...]], labels: Any) -> None:
        """Count the values of a row."""
        name, image, texts = item
        if (header := tuple(row.cells)) not in self.headers:
            self.headers.add(header)
            self.unused |= dict.fromkeys(row.unused)
        self.ignored += row.text_field == "texts" and "text" in row.cells and "text" not in row.columns.values()
        if not row.is_text or not isinstance(labels, list):
            return
        cells = [name, "" if image is None else image.name, *texts, *map(str, labels)]
        self.missing += any(cell.casefold() in MISSING for cell in cells)
        written = [label for label in labels if isinstance(label, str)]
        vector = len(written) > 2 and set(written) <= {"0", "1"}
        self.bits += vector or any(_BITS.fullmatch(label) is not None for label in written)
        self.split += len(labels) > 1
        self.unsplit += any(mark in label for label in written for mark in self.others)

    @property
    def others(self) -> str:
        """Other separators that are in use."""
        return "".join(mark for mark in _SEPARATORS if mark != self.separator)

    def tell(self) -> None:
        """Issue a `DataNote` for each kind of mistake that was found."""
        if self.missing:
            note(
                f"{self.path}: {counted(self.missing, 'row has', 'rows have')} nan, None or NULL as text; write "
                "empty cells where they stand for missing values."
            )
        if self.bits:
            note(
                f"{self.path}: {counted(self.bits, 'row has', 'rows have')} labels such as 0 1 0, which is read as "
                "one name; write a JSON list, [0, 1, 0], for a multi-hot vector."
            )
        if self.unsplit and not self.split:
            found = counted(self.unsplit, "row has", "rows have")
            note(
                f"{self.path}: no label is separated by {self.separator!r}, but {found} one of "
                f"{' '.join(self.others)} in a label; name the `separator` if it separates labels."
            )
        if self.unused:
            names = [name.strip() or "one without a name" for name in self.unused]
            what = f"{', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
            note(f"{self.path}: not used: the {'column' if len(names) == 1 else 'columns'} {what}.")
        if self.ignored:
            note(f"{self.path}: the column text is not read, because there is texts.")


def _place(root: Path, image: Path) -> Path:
    """The place of an image; a relative path that was written on Windows has backslashes."""
    path = root / image
    if "\\" not in str(image) or os.path.lexists(path):
        return path
    return root / with_slashes(str(image))


def _require_effect(root: Path, images: Sequence[Path]) -> None:
    """Refuse a folder that no image path is relative to."""
    if images and not any(image.absolute().is_relative_to(root.absolute()) for image in images):
        raise DataError(
            f"the folder {root} has no effect: every image path is absolute, such as {images[0]}.",
            option="images",
            hint="Leave out `images`, or write paths relative to the folder.",
        )
