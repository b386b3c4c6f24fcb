"""Descriptions of files and folders, for `multibit info`.

What only some kinds need is imported where it is used. Torch, which takes seconds to import, is needed only for runs of
earlier versions, whose record does not say enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multibit.data import PairedDataset
from multibit.data.export import read_dataset_npz
from multibit.data.manifest import read_manifest
from multibit.data.rows import READ
from multibit.errors import ConfigError, DataError, FormatError, counted
from multibit.files import read_arrays
from multibit.npz import npz_keys, read_npz

if TYPE_CHECKING:
    from multibit.data.sources.mat_files import MatFiles
    from multibit.features.recipe import Recipe
    from multibit.features.store import FeatureStore
    from multibit.portable.model import PortableRun
    from multibit.search import Index


def describe(path: Path, *, deep: bool = False) -> dict[str, str]:
    """Human-readable facts about a dataset, feature store, run, selection, portable model, index or codes, by name.

    Args:
        path: of any of these. deep: of an index or a portable model: read and check all of it first.

    Raises:
        DataError: no such file, or none of these. FormatError: corrupt, truncated or newer.
        ConfigError: `deep` of anything else.
    """
    if not path.exists():
        raise DataError("no such file or folder.", file=path)
    if deep:
        _require_sound(path)
    if (path / "store.json").exists():
        return _features(_open_store(path))
    if path.suffix == ".mbx" or (path.is_dir() and any(path.glob("*.mbx"))):
        return _indices(path)
    if path.suffix == ".npz":
        return _npz(path)
    if path.suffix == ".mat":
        return _mat(path)
    if path.suffix.lower() in READ:
        return {"what": "dataset", **_dataset(read_manifest(path))}
    if path.is_dir() and (found := _run_in(path) or _selection_in(path) or _codes_in(path)):
        return found
    known = f"a dataset ({', '.join(READ)}), feature store, run, selection, portable model, index (.mbx), .npz, .mat"
    raise DataError(f"not {known}, or a folder of codes.", file=path)


def open_data(
    path: Path,
    *,
    images: Path | None = None,
    columns: Mapping[str, str] | None = None,
    separator: str | None = None,
    label_names: Sequence[str] | None = None,
) -> tuple[PairedDataset, FeatureStore | None]:
    """Open a manifest, an `.npz` dataset, or features.

    Args:
        path: of any of these. images, columns, separator, label_names: as for `read_manifest`.

    Returns:
        The items, and their features if `path` is a feature store or an `.npz` with features.

    Raises:
        DataError, FormatError: as the readers. ConfigError: an option of manifests for anything else.
    """
    options = {"images": images, "columns": columns, "separator": separator, "label_names": label_names}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None and value != {}}
    is_store, is_npz = (path / "store.json").exists(), path.suffix == ".npz"
    if not is_store and not is_npz:
        return read_manifest(path, **given), None
    for option in given:
        raise ConfigError("no effect, because this is not a manifest.", file=path, option=option, hint="Leave it out.")
    if is_npz and _is_dataset(npz_keys(path)):
        return read_dataset_npz(path), None
    store = _open_store(path)
    return store.dataset, store


def _is_dataset(keys: Iterable[str]) -> bool:
    found = set(keys)
    return "image" not in found and {"ids", "labels", "text_offsets"} <= found


def _dataset(data: PairedDataset) -> dict[str, str]:
    counts, per_item = data.label_rows.per_label(), data.label_rows.per_item()
    common = ", ".join(f"{data.label_names[i]} ({counts[i]})" for i in np.argsort(-counts, kind="stable")[:5])
    texts = Counter(len(texts) for texts in data.texts)
    facts = {
        "items": f"{len(data):,}",
        "labels": f"{len(data.label_names)}, {per_item.mean():.2f} per item",
        "most common labels": common,
        "items without label": f"{int((per_item == 0).sum()):,}",
        "texts per item": ", ".join(f"{n} ({counted(count, 'item', 'items')})" for n, count in sorted(texts.items())),
        "fingerprint": data.fingerprint(),
    }
    images = [image for image in data.images if image is not None]
    if images:
        facts["images"] = f"{len(images):,}, of which {sum(not image.is_file() for image in images):,} are missing"
    return facts


def _open_store(path: Path) -> FeatureStore:
    from multibit.features.store import FeatureStore

    return FeatureStore.open(path)


def _features(store: FeatureStore) -> dict[str, str]:
    from multibit.features.tokens import describe_counts

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


def _run_in(folder: Path) -> dict[str, str] | None:
    """The facts about a run or a portable model; None where the folder holds none."""
    from multibit.portable.model import PortableRun, is_portable
    from multibit.records import is_run

    if is_portable(folder) and (found := PortableRun.find(folder)):
        return _portable(found)
    return _run(folder) if is_run(folder) else None


def _run(folder: Path) -> dict[str, str]:
    """The facts about a run, from its record and its split; the weights are only compared with their checksum."""
    from multibit.data import Split
    from multibit.hashing.encode import KIND, VERSION
    from multibit.records import RECORD, RunRecord, require_finished

    require_finished(folder)
    record = RunRecord.read(folder / RECORD)
    if not record.code:  # as in earlier versions
        from multibit.runs import Run, describe_code

        run = Run.load(folder)
        record = replace(record, code=describe_code(run), parameters=run.model.parameter_count)
    read_arrays(folder / "model.safetensors", kind=KIND, version=VERSION)
    split = Split.load(folder / "split.safetensors")
    if split.fingerprint() != record.split:
        raise FormatError("split.safetensors is not the split that run.json describes.", file=folder)
    return {
        "what": "run",
        "method": record.method or "not recorded",
        "code": record.code,
        **_blocks(record.blocks),
        "settings": ", ".join(f"{name} {value}" for name, value in record.config.items() if name != "lengths"),
        "selected epoch": str(record.selection),
        "split": f"{len(split.train):,} train, {len(split.validation):,} validation, {len(split.query):,} query, "
        f"{len(split.database):,} database, {len(split.unseen):,} of them unseen",
        "labels": f"{len(record.label_names)}",
        **_encoders(record.recipe),
        "parameters": f"{record.parameters:,}",
        "model": record.model,
        "data": record.data,
        "versions": ", ".join(f"{name} {value}" for name, value in record.versions.items()),
    }


def _selection_in(folder: Path) -> dict[str, str] | None:
    """The facts about a selection of alpha and eta; None where the folder holds none."""
    from multibit.selection import RECORD as SELECTION
    from multibit.selection import SelectionRecord

    if not (folder / SELECTION).exists():
        return None
    record = SelectionRecord.read(folder)
    best = record.chosen
    chosen = f"alpha {best.alpha}, eta {best.eta}: {100 * best.scores[-1]:.2f} % mAP" if best else "not finished"
    return {
        "what": "selection",
        "method": record.method or "not recorded",
        "alpha": ", ".join(map(str, record.alpha)),
        "eta": ", ".join(map(str, record.eta)),
        "chosen": chosen,
        "code": f"{record.bits} bits",
        "stages": f"{', '.join(map(str, record.stages))} epochs",
        "data": record.data,
        "versions": ", ".join(f"{name} {value}" for name, value in record.versions.items()),
    }


def _codes_in(path: Path) -> dict[str, str] | None:
    """The facts about codes made elsewhere; None where a folder holds none."""
    from multibit.search.code_sets import CodeSets, holds_codes

    if not holds_codes(path):
        return None
    codes = CodeSets.open(path)
    return {
        "what": "codes",
        "items": f"{len(codes.query):,} queries, {len(codes.database):,} in the database",
        "code": f"{', '.join(map(str, codes.lengths))} bits",
        "labels": counted(codes.query.labels.shape[1], "column", "columns"),
    }


def _portable(run: PortableRun) -> dict[str, str]:
    """The facts about a portable model."""
    encoders = [each for each in ("image", "text") if (run.model.networks / "encoders" / each).is_dir()]
    explained = {"teacher": run.teacher is not None, "evaluation": (run.folder / "evaluation.json").exists()}
    return {
        "what": "portable model",
        "method": run.record.method or "not recorded",
        "code": run.model.layout.describe(run.lengths),
        **_blocks(run.record.blocks),
        "labels": f"{len(run.label_names)}",
        **_encoders(run.recipe),
        "encoders": "in the folder" if len(encoders) == 2 else "in the cache of the user",
        "explained by": ", ".join(name for name, there in explained.items() if there) or "nothing",
        "size": f"{sum(file.stat().st_size for file in run.folder.rglob('*') if file.is_file()) / 1e6:.1f} MB",
        "model": run.record.model,
    }


def _blocks(blocks: Sequence[int]) -> dict[str, str]:
    return {"blocks": f"{', '.join(map(str, blocks))} bits, local to long range"} if blocks else {}


def _encoders(recipe: Recipe) -> dict[str, str]:
    return {
        f"{name} features": f"{each.dimension}-d, {each.name}"
        for name, each in (("image", recipe.image), ("text", recipe.text))
    }


def _indices(path: Path) -> dict[str, str]:
    from multibit.search import Index

    if path.suffix == ".mbx":
        return _index(Index.load(path))
    files = sorted(path.glob("*.mbx"))
    return {f"{file.stem}: {name}": fact for file in files for name, fact in _index(Index.load(file)).items()}


def _require_sound(path: Path) -> None:
    from multibit.portable.model import PortableModel, is_portable
    from multibit.search.storage import require_sound

    if is_portable(path):
        PortableModel.open(path).require_whole()
        return
    indices = [path] if path.suffix == ".mbx" else sorted(path.glob("*.mbx"))
    if not indices:
        problem = "only an index or a portable model is checked."
        raise ConfigError(problem, file=path, option="deep", hint="Leave it out.")
    for index in indices:
        require_sound(index)


def _index(index: Index) -> dict[str, str]:
    fields = ", ".join(f"{name} ({kind})" for name, kind in index.fields.items())
    return {
        "what": "index",
        "items": f"{len(index):,}",
        "code": f"{index.bits} bits, {index.some_codes(1).nbytes} bytes per item",
        **({"fields": fields} if fields else {}),
        "ids": index.id_kind,
        "search": index.engine.reason,
        "model": index.model or "unknown",
    }


def _npz(path: Path) -> dict[str, str]:
    arrays = read_npz(path)
    if _is_dataset(arrays):
        return {"what": "dataset", **_dataset(read_dataset_npz(path))}
    if found := _codes_in(path):
        return found
    if "labels" in arrays or not {"image", "text", "bits", "model"} <= set(arrays):
        return _features(_open_store(path))
    from multibit.codes import Codes

    codes = Codes.from_bytes(arrays["image"], int(arrays["bits"]))
    return {"what": "codes", "items": f"{len(codes):,}", "code": f"{codes.bits} bits", "model": str(arrays["model"])}


def _mat(path: Path) -> dict[str, str]:
    """The codes or the arrays of a MATLAB file, and which command reads it."""
    from multibit.data.sources.mat_files import MatFiles

    files = MatFiles.open(path, {}, ())
    if found := _codes_in(path):
        return found
    shapes = {name: str(shape) for name, shape in files.shapes[path].items()}
    return {"what": "MATLAB file", **shapes, **_import_of(path, files)}


def _import_of(path: Path, files: MatFiles) -> dict[str, str]:
    """The command that reads a MATLAB file of the field, if its keys are known."""
    from multibit.data.sources.mat import FEATURE_KEYS, PAIR_KEYS, PART_KEYS

    def has(keys: Mapping[str, Sequence[str]], *fields: str) -> bool:
        return any(files.has(field, keys[field]) for field in fields)

    if has(PAIR_KEYS, "image"):
        return {"import": f"multibit import mat {path} --out items.jsonl"}
    if has(FEATURE_KEYS, "image", "text") or has(PART_KEYS, *PART_KEYS):
        return {"import": f"multibit import mat-features {path} --out features.npz"}
    if has(PAIR_KEYS, "text", "labels"):  # one of three files
        return {"import": f"multibit import mat {path.parent} --out items.jsonl"}
    return {}
