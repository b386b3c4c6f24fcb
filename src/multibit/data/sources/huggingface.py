"""A data set that the Hugging Face `datasets` library saved to disk."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from multibit.data.dataset import Item, PairedDataset
from multibit.data.manifest import require_known_fields
from multibit.data.sources.common import listed, note, save_image
from multibit.errors import DataError, MissingExtraError

COLUMNS = {
    "id": ("id", "image_id", "key"),
    "image": ("image", "img", "picture"),
    "text": ("texts", "text", "captions", "caption", "sentences"),
    "labels": ("labels", "label", "categories"),
}
"""Column names that are looked for, by field."""

_MAGIC = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"GI": ".gif", b"BM": ".bmp", b"RI": ".webp", b"II": ".tif"}


def read_huggingface(
    source: Path | str, *, images: Path | str, names: Mapping[str, str] | None = None
) -> PairedDataset:
    """Read what `Dataset.save_to_disk` wrote; images inside it are unpacked to a folder.

    All splits are read, one after the other. Labels may be names, a list of names, or class labels.

    Args:
        source: the folder. images: folder for the images. names: its columns by field: id, image, text, labels.

    Raises:
        DataError: not such a folder, or no column for images or texts. ConfigError: `names` has an unknown field.
        MissingExtraError: `datasets` is not installed.
    """
    names = names or {}
    require_known_fields(names, tuple(COLUMNS), "names")
    parts = _load(Path(source))
    if len(parts) > 1:
        note(f"{source}: has the splits {', '.join(parts)}; all are read, in this order.")
    items: list[Item] = []
    try:
        for name, part in parts.items():
            items += _items(part, f"{name}-" if name else "", names, Path(images))
        return PairedDataset.of_items(items)
    except DataError as error:
        raise error.within(source) from None


def _load(source: Path) -> dict[str, Any]:
    """The splits by name, one without a name if there are none."""
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", extra="huggingface", need="a Hugging Face data set") from None
    try:
        loaded = datasets.load_from_disk(str(source))
    except Exception as error:  # the library lets errors of its readers through
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"not a folder that datasets.save_to_disk wrote ({first}).", file=source) from None
    return dict(loaded) if isinstance(loaded, dict) else {"": loaded}


def _items(part: Any, prefix: str, names: Mapping[str, str], folder: Path) -> Iterator[Item]:
    import datasets

    column = {field: _column(part, field, names) for field in COLUMNS}
    if isinstance(part.features[column["image"]], datasets.Image):
        part = part.cast_column(column["image"], datasets.Image(decode=False))
    for row, item in enumerate(part):
        key = str(item[column["id"]]) if column["id"] else f"{prefix}{row:08d}"
        labels = _labels(part.features[column["labels"]], item[column["labels"]]) if column["labels"] else []
        texts = [str(text) for text in listed(item[column["text"]])]
        yield key, _image(item[column["image"]], key, folder), texts, labels


def _column(part: Any, field: str, names: Mapping[str, str]) -> str | None:
    wanted = (names[field],) if field in names else COLUMNS[field]
    found = next((name for name in wanted if name in part.column_names), None)
    if found is None and (field in names or field in ("image", "text")):
        raise DataError(
            f"no column {' or '.join(wanted)}; it has {', '.join(part.column_names)}.",
            field=field,
            hint=f"Map the field {field} to a column with `names`.",
        )
    return found


def _image(value: Any, key: str, folder: Path) -> Path | None:
    """The path of an image; bytes are written to a file that is named by the item's id."""
    if value is None or isinstance(value, str):
        return Path(value) if value else None
    if value.get("bytes") is None:
        return Path(value["path"])
    suffix = _MAGIC.get(value["bytes"][:2], Path(value.get("path") or "").suffix or ".img")
    return save_image(folder, re.sub(r"[/\\\0]", "_", key) + suffix, value["bytes"])


def _labels(feature: Any, value: Any) -> list[str]:
    """Names of the labels; class labels are stored as numbers."""
    inner = getattr(feature, "feature", feature)
    name = getattr(inner, "int2str", str)
    return [str(name(each)) for each in listed(value)]
