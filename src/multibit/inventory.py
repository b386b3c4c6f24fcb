"""Descriptions of files and folders, for `multibit info`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.codes import Codes
from multibit.data import PairedDataset
from multibit.data.export import read_dataset_npz
from multibit.data.manifest import SUFFIXES, read_manifest
from multibit.errors import ConfigError, DataError
from multibit.features.store import FeatureStore
from multibit.features.tokens import describe_counts
from multibit.files import read_npz
from multibit.runs import Run, describe_code, is_run
from multibit.search import Index


def describe(path: Path) -> dict[str, str]:
    """Human-readable facts about a dataset, feature store, run, index or codes file, by name.

    Raises:
        DataError: no such file, or none of these. FormatError: corrupt, truncated or newer.
    """
    if not path.exists():
        raise DataError("no such file or folder.", file=path)
    if is_run(path):
        return _run(Run.load(path))
    if (path / "store.json").exists():
        return _features(FeatureStore.open(path))
    if path.suffix == ".mbx":
        return _index(Index.load(path))
    if path.is_dir() and (files := sorted(path.glob("*.mbx"))):
        return {f"{file.stem}: {name}": fact for file in files for name, fact in _index(Index.load(file)).items()}
    if path.suffix == ".npz":
        return _npz(path)
    if path.suffix.lower() in SUFFIXES:
        return {"what": "dataset", **_dataset(read_manifest(path))}
    raise DataError(
        f"not a dataset ({', '.join(SUFFIXES)}), feature store, run folder, index (.mbx) or .npz file.", file=path
    )


def open_data(
    path: Path, *, images: Path | None = None, columns: Mapping[str, str] | None = None
) -> tuple[PairedDataset, FeatureStore | None]:
    """Open a manifest, an `.npz` dataset, or features.

    Args:
        path: of any of these. images, columns: as for `read_manifest`.

    Returns:
        The items, and their features if `path` is a feature store or an `.npz` with features.

    Raises:
        DataError, FormatError: as the readers. ConfigError: `images` or `columns` for anything but a manifest.
    """
    is_store, is_npz = (path / "store.json").exists(), path.suffix == ".npz"
    if not is_store and not is_npz:
        return read_manifest(path, images=images, columns=columns), None
    if images or columns:
        option = "images" if images else "columns"
        raise ConfigError("no effect, because this is not a manifest.", file=path, option=option, hint="Leave it out.")
    if is_npz and _is_dataset(read_npz(path)):
        return read_dataset_npz(path), None
    store = FeatureStore.open(path)
    return store.dataset, store


def _is_dataset(arrays: Mapping[str, NDArray[Any]]) -> bool:
    return "image" not in arrays and {"ids", "labels", "text_offsets"} <= set(arrays)


def _dataset(data: PairedDataset) -> dict[str, str]:
    counts, per_item = data.label_rows.per_label(), data.label_rows.per_item()
    common = ", ".join(f"{data.label_names[i]} ({counts[i]})" for i in np.argsort(-counts, kind="stable")[:5])
    texts = Counter(len(texts) for texts in data.texts)
    facts = {
        "items": f"{len(data):,}",
        "labels": f"{len(data.label_names)}, {per_item.mean():.2f} per item",
        "most common labels": common,
        "items without label": f"{int((per_item == 0).sum()):,}",
        "texts per item": ", ".join(f"{n} ({count:,} items)" for n, count in sorted(texts.items())),
        "fingerprint": data.fingerprint(),
    }
    images = [image for image in data.images if image is not None]
    if images:
        facts["images"] = f"{len(images):,}, of which {sum(not image.is_file() for image in images):,} are missing"
    return facts


def _features(store: FeatureStore) -> dict[str, str]:
    return {
        "what": "features",
        **_dataset(store.dataset),
        "image features": f"{store.image.shape[1]}-d {store.image.dtype}, {store.recipe.image.name}",
        "text features": f"{store.text.shape[1]}-d {store.text.dtype}, {store.recipe.text.name}",
        **{f"{name} tokens": describe_counts(each) for name, each in store.tokens.items()},
        "skipped items": f"{len(store.skipped):,}",
        "truncated texts": f"{store.truncated:,}",
        "with features": store.fingerprint(),
    }


def _run(run: Run) -> dict[str, str]:
    split, config = run.split, run.config
    blocks = {"blocks": f"{', '.join(map(str, run.model.blocks))} bits, local to long range"}
    return {
        "what": "run",
        "method": run.record.method or "not recorded",
        "code": describe_code(run),
        **(blocks if run.model.blocks else {}),
        "settings": ", ".join(f"{name} {value}" for name, value in config.to_dict().items() if name != "lengths"),
        "selected epoch": str(run.record.selection),
        "split": f"{len(split.train):,} train, {len(split.validation):,} validation, {len(split.query):,} query, "
        f"{len(split.database):,} database, {len(split.unseen):,} of them unseen",
        "labels": f"{len(run.label_names)}",
        "image features": f"{run.model.image_dim}-d, {run.recipe.image.name}",
        "text features": f"{run.model.text_dim}-d, {run.recipe.text.name}",
        "parameters": f"{run.model.parameter_count:,}",
        "model": run.record.model,
        "data": run.record.data,
        "versions": ", ".join(f"{name} {value}" for name, value in run.record.versions.items()),
    }


def _index(index: Index) -> dict[str, str]:
    assert index.codes is not None  # an empty index is never saved
    fields = ", ".join(f"{name} ({kind})" for name, kind in index.fields.items())
    return {
        "what": "index",
        "items": f"{len(index):,}",
        "code": f"{index.codes.bits} bits, {index.codes.nbytes / len(index):.0f} bytes per item",
        **({"fields": fields} if fields else {}),
        "ids": index.ids.kind,
        "search": index.engine.reason,
        "model": index.model or "unknown",
    }


def _npz(path: Path) -> dict[str, str]:
    arrays = read_npz(path)
    if _is_dataset(arrays):
        return {"what": "dataset", **_dataset(read_dataset_npz(path))}
    if "labels" in arrays or not {"image", "text", "bits", "model"} <= set(arrays):
        return _features(FeatureStore.open(path))
    codes = Codes.from_bytes(arrays["image"], int(arrays["bits"]))
    return {"what": "codes", "items": f"{len(codes):,}", "code": f"{codes.bits} bits", "model": str(arrays["model"])}
