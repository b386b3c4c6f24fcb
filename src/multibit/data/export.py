"""A data set -> files for other tools: manifest, `.npz`, the community's `.mat` trio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from numpy.typing import NDArray

from multibit.data.dataset import PairedDataset
from multibit.data.features import check_offsets, read_npz
from multibit.data.manifest import SUFFIXES, write_manifest
from multibit.errors import DataError
from multibit.files import replacing

KEYS = ("ids", "images", "texts", "text_offsets", "labels", "label_names")


def check_target(path: Path, *, features: bool = False) -> None:
    """Refuse a target before the work, not after it.

    Raises:
        DataError: `write_dataset`, or `write_arrays_npz` for features, could not write there.
    """
    suffix = path.suffix.lower()
    if features and suffix != ".npz":
        raise DataError(f"{path}: features are written to a file that ends in .npz.")
    if suffix not in (*SUFFIXES, ".npz", ""):
        raise DataError(f"{path}: must end in {', '.join(SUFFIXES)} or .npz, or name a folder for the .mat trio.")
    if not suffix and path.exists():
        raise DataError(f"{path}: exists already. Choose another folder or delete it first.")


def write_dataset(dataset: PairedDataset, path: Path | str) -> None:
    """Write a data set, the kind of file by its ending: .csv, .jsonl, .parquet, .npz, or a folder for the `.mat` trio.

    Raises:
        DataError: another ending, a folder that exists, or as `write_mat_trio`.
    """
    path = Path(path)
    check_target(path)
    if path.suffix.lower() == ".npz":
        write_arrays_npz(_arrays(dataset), path)
    elif path.suffix:
        write_manifest(dataset, path)
    else:
        write_mat_trio(dataset, path)


def write_arrays_npz(arrays: dict[str, NDArray[Any]], path: Path) -> None:
    """Write arrays to one `.npz` file in one step."""
    check_target(path, features=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def write_mat_trio(dataset: PairedDataset, folder: Path) -> None:
    """Write `index.mat`, `caption.mat` and `label.mat` as the field's loaders read them, with ids and label names.

    Keys: `index` (N,) padded paths, `caption` (1, N) cells of padded texts, `category` (N, C); and `ids`,
    `label_names`.

    Raises:
        DataError: an id, picture path, text or label name with blanks at its ends, which readers take for padding; an
            empty text beside others, which they leave out; an empty label name. Names them.
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
    for found, what in (
        (lost, "items with blanks at the ends of the id, path or a text, or with an empty text beside others"),
        (names, "label names with blanks at the ends, or empty"),
    ):
        if found:
            raise DataError(
                f"{folder}: {len(found):,} {what}, which the .mat trio does not keep: {', '.join(found[:5])}"
                f"{', ...' if len(found) > 5 else ''}. Mend them, or write .csv, .jsonl, .parquet or .npz."
            )


def _has_padding(*texts: str) -> bool:
    """Whether reading the trio would change one of these, as `sources.mat` takes padding away."""
    return any(text != text.strip(" \0") for text in texts)


def read_dataset_npz(source: Path | str) -> PairedDataset:
    """Read what `write_dataset` wrote to `.npz`: ids, images, texts, text_offsets, labels, label_names.

    Raises:
        DataError: unreadable, a key missing, or arrays that do not fit.
    """
    path = Path(source)
    arrays = read_npz(path)
    if missing := [key for key in KEYS if key not in arrays]:
        raise DataError(f"{path}: no {', '.join(missing)}; it has {', '.join(arrays) or 'nothing'}.")
    ids, images, texts, names = (
        [str(value) for value in arrays[key].ravel()] for key in ("ids", "images", "texts", "label_names")
    )
    offsets = arrays["text_offsets"]
    try:
        check_offsets(offsets, len(ids), len(texts))
        parts = tuple(tuple(texts[offsets[row] : offsets[row + 1]]) for row in range(len(ids)))
        pictures = tuple(Path(image) if image else None for image in images)
        return PairedDataset(tuple(ids), pictures, parts, arrays["labels"], tuple(names))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _arrays(dataset: PairedDataset) -> dict[str, NDArray[Any]]:
    counts = [len(texts) for texts in dataset.texts]
    return {
        "ids": np.array(dataset.ids),
        "images": np.array(["" if image is None else str(image.absolute()) for image in dataset.images]),
        "texts": np.array([text for texts in dataset.texts for text in texts]),
        "text_offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "labels": dataset.labels,
        "label_names": np.array(dataset.label_names, str),
    }
