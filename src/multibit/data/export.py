"""Writing of data sets for other tools: manifest, `.npz`, and the field's trio of `.mat` files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from numpy.typing import NDArray

from multibit.arrays import check_offsets
from multibit.data.dataset import PairedDataset
from multibit.data.manifest import write_manifest
from multibit.data.rows import SUFFIXES
from multibit.data.values import id_of, texts_of
from multibit.errors import ConfigError, DataError, require_kind
from multibit.npz import read_npz
from multibit.paths import located, portable_path, replacing, require_new

KEYS = ("ids", "images", "texts", "text_offsets", "labels", "label_names")


def require_dataset_target(path: Path, *, features: bool = False, spreadsheet_safe: bool = False) -> None:
    """Refuse a path that has the wrong suffix, or an existing folder, before the work starts.

    Args:
        path: of `write_dataset`. features: it is the path of `write_arrays_npz` instead.
        spreadsheet_safe: as for `write_dataset`.

    Raises:
        DataError: neither function could write there. ConfigError: `spreadsheet_safe` of another format than .csv.
    """
    suffix = path.suffix.lower()
    if spreadsheet_safe and suffix != ".csv":
        raise ConfigError(f"has no effect on {path}, which is not a .csv.", option="spreadsheet_safe")
    if features and suffix != ".npz":
        raise DataError("must end in .npz for features.", file=path)
    if suffix not in (*SUFFIXES, ".npz", ""):
        raise DataError(f"must end in {', '.join(SUFFIXES)} or .npz, or be a folder for the .mat trio.", file=path)
    if not suffix:
        require_new(path)


def write_dataset(dataset: PairedDataset, path: Path | str, *, spreadsheet_safe: bool = False) -> None:
    """Write a data set in the format of the suffix: .csv, .jsonl, .parquet, .npz, or a folder for the `.mat` trio.

    Args:
        dataset: N items. path: of the file or folder. spreadsheet_safe: of a .csv, as in `write_manifest`.

    Raises:
        DataError: not a data set, another suffix, a folder that exists, or as `write_mat_trio`.

    Example:
        >>> import tempfile
        >>> from multibit.data.manifest import read_manifest
        >>> data = PairedDataset.of_items([("a", None, ["a cat"], ["cat"]), ("b", None, ["a dog"], ["dog"])])
        >>> path = Path(tempfile.mkdtemp()) / "items.jsonl"
        >>> write_dataset(data, path)
        >>> read_manifest(path).fingerprint() == data.fingerprint()
        True
    """
    require_kind(dataset, PairedDataset, "dataset", "Read one with read(source) or read_manifest(path).")
    path = Path(path)
    require_dataset_target(path, spreadsheet_safe=spreadsheet_safe)
    if path.suffix.lower() == ".npz":
        write_arrays_npz(_arrays(dataset, path.parent), path)
    elif path.suffix:
        write_manifest(dataset, path, spreadsheet_safe=spreadsheet_safe)
    else:
        write_mat_trio(dataset, path)


def write_arrays_npz(arrays: dict[str, NDArray[Any]], path: Path) -> None:
    """Write arrays to one `.npz` file in one step.

    Raises:
        DataError: another suffix.
    """
    require_dataset_target(path, features=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def write_mat_trio(dataset: PairedDataset, folder: Path) -> None:
    """Write `index.mat`, `caption.mat` and `label.mat` as the field's loaders read them, with ids and label names.

    Keys: `index` (N,) padded paths, `caption` (1, N) cells of padded texts, `category` (N, C); and `ids`,
    `label_names`.

    Raises:
        DataError: an id, image path, text or label name with blanks at its ends, which readers take for padding; an
            empty text among several, which they leave out; an empty label name.
    """
    _require_kept(dataset, folder)
    paths = [" " if image is None else str(image.absolute()) for image in dataset.images]  # "" would lose its row
    captions = np.empty((1, len(dataset)), object)
    for row, texts in enumerate(dataset.texts):
        captions[0, row] = np.array(texts)
    files = {
        "index": {"index": np.array(paths), "ids": np.array(dataset.ids)},
        "caption": {"caption": captions},
        "label": {"category": dataset.labels, "label_names": np.array(dataset.label_names)},
    }
    with replacing(folder) as temporary:
        temporary.mkdir()
        for name, arrays in files.items():
            scipy.io.savemat(temporary / f"{name}.mat", arrays, do_compression=True)


def _require_kept(dataset: PairedDataset, folder: Path) -> None:
    lost = [
        repr(name)
        for name, image, texts in zip(dataset.ids, dataset.images, dataset.texts, strict=True)
        if _has_padding(name, str(image or ""), *texts) or (len(texts) > 1 and "" in texts)
    ]
    names = [repr(name) for name in dataset.label_names if not name or _has_padding(name)]
    for field, found, what in (
        ("ids", lost, "items have an id, path or text with blanks at its ends, or an empty text among several"),
        ("label_names", names, "label names are empty or have blanks at their ends"),
    ):
        if found:
            raise DataError(
                f"{len(found):,} {what}, which the .mat trio does not keep: {', '.join(found[:5])}"
                f"{', ...' if len(found) > 5 else ''}.",
                file=folder,
                field=field,
                hint="Fix them, or write .csv, .jsonl, .parquet or .npz.",
            )


def _has_padding(*texts: str) -> bool:
    """Whether reading the trio would change one of these: `sources.mat` strips padding."""
    return any(text != text.strip(" \0") for text in texts)


def read_dataset_npz(source: Path | str) -> PairedDataset:
    """Read what `write_dataset` wrote to `.npz`: ids, images, texts, text_offsets, labels, label_names.

    Raises:
        DataError: unreadable, a key missing, or arrays that do not match; with file and key.
    """
    path = Path(source)
    arrays = read_npz(path)
    if missing := [key for key in KEYS if key not in arrays]:
        raise DataError(f"no such array; it has {', '.join(arrays) or 'nothing'}.", file=path, field=missing[0])
    try:
        ids = [id_of(value, row=row, field="ids") for row, value in enumerate(_column(arrays, "ids"), 1)]
        images, texts, names = (_texts(arrays, key) for key in ("images", "texts", "label_names"))
        offsets = arrays["text_offsets"]
        check_offsets(offsets, len(ids), len(texts))
        parts = tuple(tuple(texts[offsets[row] : offsets[row + 1]]) for row in range(len(ids)))
        paths = tuple(located(image, path.parent) if image else None for image in images)
        return PairedDataset(tuple(ids), paths, parts, arrays["labels"], tuple(names))
    except DataError as error:
        raise error.within(path) from None


def _column(arrays: Mapping[str, NDArray[Any]], key: str) -> list[Any]:
    """The values of a one-dimensional array.

    Raises:
        DataError: another shape.
    """
    if arrays[key].ndim != 1:
        raise DataError(f"need one value per row, got an array of shape {arrays[key].shape}.", field=key)
    return list(arrays[key].tolist())


def _texts(arrays: Mapping[str, NDArray[Any]], key: str) -> list[str]:
    """The texts of an array, "" where one is empty.

    Raises:
        DataError: values of another type, or bytes that are not UTF-8.
    """
    values = _column(arrays, key)
    if arrays[key].dtype.kind not in "US" and len(values):
        raise DataError(f"need texts, got {arrays[key].dtype}.", field=key)
    return [(texts_of(value, row=row, field=key) or ("",))[0] for row, value in enumerate(values, 1)]


def _arrays(dataset: PairedDataset, folder: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a data set; paths of images are relative to the folder of the file."""
    counts = [len(texts) for texts in dataset.texts]
    return {
        "ids": np.array(dataset.ids),
        "images": np.array(["" if image is None else portable_path(image, folder) for image in dataset.images]),
        "texts": np.array([text for texts in dataset.texts for text in texts]),
        "text_offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "labels": dataset.labels,
        "label_names": np.array(dataset.label_names, str),
    }
