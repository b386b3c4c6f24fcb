"""A data set that the Hugging Face `datasets` library saved to disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multibit.data.dataset import Item, PairedDataset
from multibit.data.manifest import require_known_fields
from multibit.data.notes import note
from multibit.data.sources.common import ImageFolder, unique_ids
from multibit.data.values import id_of, labels_of, path_of, texts_of
from multibit.errors import ConfigError, DataError, MissingExtraError, first_line

COLUMNS = {
    "id": ("id", "image_id", "key"),
    "image": ("image", "img", "picture"),
    "text": ("texts", "text", "captions", "caption", "sentences"),
    "labels": ("labels", "label", "categories"),
}
"""Column names that are looked for, by field."""

_MAGIC = {
    b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp", b"II*": ".tif",
    b"MM\0*": ".tif",
}  # fmt: skip
"""Start of an image file -> its suffix."""


def read_huggingface(
    source: Path | str,
    *,
    images: Path | str,
    names: Mapping[str, str] | None = None,
    label_names: Sequence[str] | None = None,
    prefix_ids: bool = False,
) -> PairedDataset:
    """Read what `Dataset.save_to_disk` wrote; images inside it are unpacked to a folder.

    All splits are read, one after the other. Images may be files, bytes or paths; texts a text, a list, or a structure
    with the text in `raw`, `text` or `caption`; labels names, class labels or numbers, lists of these, or multi-hot
    vectors. Rows without an id column are numbered. Where an id occurs in several splits, every id gets the name of
    its split in front.

    Args:
        source: the folder. images: folder for the images.
        names: its columns by field: id, image, text, labels; an empty id leaves out its id column.
        label_names: names of the class numbers, or of the columns of multi-hot vectors.
        prefix_ids: put the name of the split in front of every id.

    Raises:
        DataError: not such a folder, no column for images or texts, or a value of another type; with row and column.
        ConfigError: `names` has an unknown field. MissingExtraError: `datasets` is not installed.
    """
    names = names or {}
    require_known_fields(names, tuple(COLUMNS), "names")
    root = Path(source)
    try:
        parts = [_Part.of(name, table, names) for name, table in _load(root).items()]
        if len(parts) > 1:
            note(f"{root}: has the splits {', '.join(part.name for part in parts)}; all are read, in this order.")
        by_name = {part.name: part.ids() for part in parts}
        numbered = all(part.columns["id"] is None for part in parts)  # then the ids begin with the split already
        if prefix_ids and (numbered or len(parts) < 2):
            reason = "the rows have no ids" if numbered else "the data set has no splits"
            raise ConfigError(f"no effect, because {reason}.", option="prefix_ids", hint="Leave it out.")
        ids = iter(unique_ids(by_name, root, prefix=prefix_ids, what="split"))
        folder, items, columns = ImageFolder(Path(images)), list[Item](), list[str]()
        for part in parts:
            labels, found = part.labels(label_names)
            columns += [name for name in found or () if name not in columns]
            for row, (texts, image) in enumerate(zip(part.texts(), part.images(), strict=True), start=1):
                key = next(ids)
                items.append((key, _image(image, key, folder, row), texts, labels[row - 1]))
        return PairedDataset.of_items(items, columns or None)
    except DataError as error:
        if error.field in ("id", "ids"):
            error.hint = error.hint or "Or number the rows: `names` id= (nothing after the equals sign)."
        raise error.within(source) from None


def _load(source: Path) -> dict[str, Any]:
    """The splits by name, one without a name if there are none."""
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", extra="huggingface", need="a Hugging Face data set") from None
    try:
        loaded = datasets.load_from_disk(source.absolute())  # a path with "://" would be a network file system
    except Exception as error:  # the library lets errors of its readers through
        raise DataError(f"not a folder that datasets.save_to_disk wrote ({first_line(error)}).", file=source) from None
    return dict(loaded) if isinstance(loaded, dict) else {"": loaded}


@dataclass(frozen=True)
class _Part:
    """A split: its name, its table, and the column of each field; None for a field that it lacks."""

    name: str
    table: Any
    columns: Mapping[str, str | None]

    @classmethod
    def of(cls, name: str, table: Any, names: Mapping[str, str]) -> _Part:
        return cls(name, table, {field: _column(table, field, names) for field in COLUMNS})

    def _values(self, field: str) -> Sequence[Any]:
        column = self.columns[field]
        return [None] * len(self.table) if column is None else list(self.table[column])

    def ids(self) -> list[str]:
        if self.columns["id"] is None:
            prefix = f"{self.name}-" if self.name else ""
            return [f"{prefix}{row:08d}" for row in range(len(self.table))]
        return [id_of(value, row=row) for row, value in enumerate(self._values("id"), start=1)]

    def texts(self) -> Iterator[tuple[str, ...]]:
        return (texts_of(value, row=row) for row, value in enumerate(self._values("text"), start=1))

    def labels(self, label_names: Sequence[str] | None) -> tuple[list[tuple[str, ...]], tuple[str, ...] | None]:
        feature = self.table.features.get(self.columns["labels"])
        declared = getattr(getattr(feature, "feature", feature), "names", None)  # of a ClassLabel, or a list of them
        rows = range(1, len(self.table) + 1)
        return labels_of(self._values("labels"), rows=rows, class_names=declared, label_names=label_names)

    def images(self) -> Iterator[Any]:
        """Images one by one, not decoded."""
        import datasets

        column = self.columns["image"]
        table = self.table.select_columns([column])
        if isinstance(table.features[column], datasets.Image):
            table = table.cast_column(column, datasets.Image(decode=False))
        return (row[column] for row in table)


def _column(table: Any, field: str, names: Mapping[str, str]) -> str | None:
    if names.get(field) == "" and field == "id":
        return None
    wanted = (names[field],) if field in names else COLUMNS[field]
    found = next((name for name in wanted if name in table.column_names), None)
    if found is None and (field in names or field in ("image", "text")):
        raise DataError(
            f"no column {' or '.join(wanted)}; it has {', '.join(table.column_names)}.",
            field=field,
            hint=f"Map the field {field} to a column with `names`.",
        )
    return found


def _image(value: Any, key: str, folder: ImageFolder, row: int) -> Path | None:
    """The path of an image; bytes are written to a file that is named by the item's id."""
    path = None
    if isinstance(value, Mapping) and {"bytes", "path"} <= set(value):
        value, path = value["bytes"] or value["path"], value["path"]
    if isinstance(value, list):
        raise DataError(
            f"{len(value)} images in one row; an item has one.",
            row=row,
            field="image",
            hint="Write one row for each image, or map image to another column with `names`.",
        )
    if not isinstance(value, bytes):
        return path_of(value, row=row)
    known = (suffix for start, suffix in _MAGIC.items() if value.startswith(start))
    return folder.save(key, next(known, Path(path or "").suffix or ".img"), value)
