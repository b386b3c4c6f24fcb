"""Data sets for the `datasets` library of Hugging Face: items with their images, labels and packed codes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.data.dataset import PairedDataset
from multibit.errors import DataError, MissingExtraError
from multibit.files import fingerprint
from multibit.paths import replacing, require_new
from multibit.progress import tracked

Packed = NDArray[np.uint8]
ROWS = 1000  # of further columns that become Python objects at a time
COLUMNS = ("id", "image", "texts", "labels")


def write_huggingface(
    dataset: PairedDataset,
    folder: Path | str,
    *,
    codes: Mapping[str, Packed] | None = None,
    fields: Any = None,
    description: str = "",
) -> None:
    """Write items as `datasets.load_from_disk` reads them; `read("huggingface", folder, ...)` reads them too.

    The columns are `id`, `image` (`Image`, with the content of the file), `texts` (`List` of strings), `labels` (`List`
    of `ClassLabel`), and those given. Images are read some at a time, so memory is bounded.

    Args:
        dataset: the items. folder: must not exist.
        codes: column -> (N, bytes) uint8 packed codes, which become `List(Value("uint8"), length=bytes)`.
        fields: Arrow table of N rows with further columns. description: kept in the data set's information.

    Raises:
        DataError: `folder` exists, an image file is missing or cannot be read, a column has another number of rows or
            the name of another one. MissingExtraError: `datasets` is not installed.

    Example:
        >>> import datasets, tempfile
        >>> data = PairedDataset.of_items([("a", None, ["a cat"], ["cat"]), ("b", None, ["a dog"], ["dog"])])
        >>> folder = Path(tempfile.mkdtemp()) / "items"
        >>> write_huggingface(data, folder, codes={"code": np.array([[1, 2], [3, 4]], np.uint8)})
        >>> datasets.load_from_disk(folder)[1]
        {'id': 'b', 'image': None, 'texts': ['a dog'], 'labels': [1], 'code': [3, 4]}
    """
    target, codes = Path(folder), codes or {}
    fields = fields if fields is not None and fields.column_names else None
    library = _library()
    require_new(target)
    _require_columns(dataset, codes, fields)
    _require_images(dataset)
    features = library.Features(_features(library, dataset, codes))
    if fields is not None:
        features.update(library.Features.from_arrow_schema(fields.schema))
    named = fingerprint(dataset.fingerprint(), [str(image) for image in dataset.images], *codes, *codes.values())
    with replacing(target) as temporary, _quiet(library):
        temporary.mkdir()
        work = temporary / ".cache"
        try:
            made = library.Dataset.from_generator(
                lambda: _rows(dataset, codes, fields), features=features, cache_dir=str(work), fingerprint=named
            )
            made.info.description = description
            made.save_to_disk(temporary / "items")
        except library.exceptions.DatasetGenerationError as error:
            raise DataError(f"cannot be written ({error.__cause__ or error}).", file=target) from None
        for path in (temporary / "items").iterdir():
            path.rename(temporary / path.name)
        (temporary / "items").rmdir()
        del made
        shutil.rmtree(work)


def _features(library: Any, dataset: PairedDataset, codes: Mapping[str, Packed]) -> dict[str, Any]:
    label = library.ClassLabel(names=list(dataset.label_names)) if dataset.label_names else library.Value("string")
    return {
        "id": library.Value("string"),
        "image": library.Image(),
        "texts": library.List(library.Value("string")),
        "labels": library.List(label),
        **{name: library.List(library.Value("uint8"), length=packed.shape[1]) for name, packed in codes.items()},
    }


def _rows(dataset: PairedDataset, codes: Mapping[str, Packed], fields: Any) -> Iterator[dict[str, Any]]:
    more = _dictionaries(fields, len(dataset))
    for row in tracked(range(len(dataset)), "Writing", "items"):
        image = dataset.images[row]
        yield {
            "id": dataset.ids[row],
            "image": None if image is None else _image(image),
            "texts": list(dataset.texts[row]),
            "labels": dataset.label_rows.columns_of(row),
            **{name: packed[row] for name, packed in codes.items()},
            **next(more),
        }


def _dictionaries(fields: Any, count: int) -> Iterator[dict[str, Any]]:
    """The rows of an Arrow table, some at a time."""
    for start in range(0, count, ROWS):
        yield from [{}] * ROWS if fields is None else fields.slice(start, ROWS).to_pylist()


def _image(path: Path) -> str | dict[str, Any]:
    """The path, which the library reads when it writes the item; the content where it would take it for an address."""
    name = str(path.absolute())
    return {"bytes": path.read_bytes(), "path": path.name} if "::" in name or "://" in name else name


def _require_columns(dataset: PairedDataset, codes: Mapping[str, Packed], fields: Any) -> None:
    further = {name: len(packed) for name, packed in codes.items()}
    for name in () if fields is None else fields.column_names:
        if name in further:
            raise DataError("is also the name of a column of codes.", field=name, hint="Rename the field.")
        further[name] = fields.num_rows
    for name, count in further.items():
        if name in COLUMNS:
            raise DataError("is also the name of a column of the items.", field=name, hint="Rename it.")
        if count != len(dataset):
            raise DataError(f"{count} rows for {len(dataset)} items.", field=name)


def _require_images(dataset: PairedDataset) -> None:
    missing = [path for path in dataset.images if path is not None and not path.is_file()]
    if missing:
        raise DataError(
            f"no such file; missing images: {len(missing):,} of {len(dataset):,}.",
            file=missing[0],
            hint="Restore the images, or leave them out of the data set.",
        )


@contextlib.contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """No progress bars of the library: those of multibit count the same items."""
    was_quiet = library.are_progress_bars_disabled()
    library.disable_progress_bars()
    try:
        yield
    finally:
        if not was_quiet:
            library.enable_progress_bars()


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", extra="huggingface", need="A Hugging Face data set") from None
    return datasets
