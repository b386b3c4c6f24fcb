"""Which split to use: the paper's rule, another seed, one that came with the data, or one that others wrote down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.data.features import read_npz
from multibit.data.manifest import rows_of
from multibit.data.sources.common import load_json, read_lines
from multibit.data.sources.mat_files import MatFiles
from multibit.data.split import Split
from multibit.errors import ConfigError, DataError

ROLES = {
    "train": ("train", "tr", "training"),
    "validation": ("validation", "val", "valid"),
    "query": ("query", "test", "te"),
    "database": ("database", "retrieval", "db"),
}
"""Names of the roles in files, ours first."""


def choose_split(
    ids: Sequence[str],
    given: str | None = None,
    *,
    source: Path | None = None,
    sizes: Mapping[str, int | None] | None = None,
    groups: Path | None = None,
    seed: int = 42,
) -> Split:
    """The split that was asked for.

    Args:
        ids: of the N items. given: a seed, or a file or folder for `read_roles`.
        source: of the features; their own split is used when nothing else is asked for.
        sizes: rows of query, training and validation: all, or none for the paper's.
        groups: manifest with `id` and `group`. seed: of the permutation, when `given` is none.

    Raises:
        ConfigError: options that exclude each other, or what `Split` refuses. DataError: an unreadable file.
    """
    asked = {role: size for role, size in (sizes or {}).items() if size is not None}
    drawn = given is None or given.isdecimal()
    if not drawn and (asked or groups):
        raise ConfigError(f"--split {given} says who has which role: give it without sizes and without --groups.")
    if asked and len(asked) < 3:
        missing = ", ".join(f"--{role}" for role in sizes or () if role not in asked)
        raise ConfigError(f"give all of --query, --training, --validation or none; missing {missing}.")
    if given is not None and not drawn:
        return Split.of_roles(len(ids), read_roles(Path(given), ids))
    if given is None and not asked and groups is None and source is not None and (own := _own_roles(source)):
        return Split.of_roles(len(ids), own)
    together = None if groups is None else read_groups(groups, ids)
    seed = seed if given is None else int(given)
    if not asked:
        return Split.usual(len(ids), seed, together)
    return Split.draw(
        len(ids),
        query=asked["query"],
        train=asked["training"],
        validation=asked["validation"],
        seed=seed,
        groups=together,
    )


def choose_roles(
    ids: Sequence[str], given: str | None = None, *, source: Path | None = None, seed: int = 42
) -> dict[str, NDArray[np.int64]]:
    """Rows by role as `choose_split` takes them, but of a file even where they overlap, to look at.

    None of a data set that is too small to split.
    """
    if given is not None and not given.isdecimal():
        return read_roles(Path(given), ids)
    if given is None and len(ids) < 5:
        return {}
    split = choose_split(ids, given, source=source, seed=seed)
    return {role: getattr(split, role) for role in ROLES}


def read_roles(path: Path, ids: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Rows of each role from what others wrote.

    Args:
        path: a run folder; `.npz`, `.mat` or `.json` with the keys of `ROLES`; or a folder with `train.txt`,
            `query.txt` (or `test.txt`), ..., one item a line. Numbers are rows, from 0 (in .mat from 1 if the last row
            is N); texts are ids, or names of files whose stem is the id, or else all of them are rows.
        ids: of the N items.

    Raises:
        DataError: unreadable, no role in it, an item that the data does not have, or some lines that are ids while
            others can only be rows.
    """
    suffix = path.suffix.lower()
    if suffix == ".safetensors" or (path / "split.safetensors").exists():
        split = Split.load(path if suffix == ".safetensors" else path / "split.safetensors")
        return {role: getattr(split, role) for role in ROLES}
    found: Mapping[str, Any]
    if path.is_dir():
        found = {file.stem: [line for line in read_lines(file) if line] for file in sorted(path.glob("*.txt"))}
    elif suffix == ".npz":
        found = read_npz(path)
    elif suffix == ".mat":
        files = MatFiles.open(path, {}, ())
        found = {key: np.ravel(files.read(key, (key,))) for shapes in files.shapes.values() for key in shapes}
    elif suffix == ".json":
        found = load_json(path)
    else:
        raise DataError(
            f"{path}: a split is a number (the seed), .npz, .mat, .json, a folder of .txt, or a run folder."
        )
    named = {role: found[name] for role, names in ROLES.items() for name in reversed(names) if name in found}
    if not named:
        raise DataError(f"{path}: no role in it; it has {', '.join(found) or 'nothing'}. Need query and train.")
    rows = _rows_by_role(named, {name: row for row, name in enumerate(ids)}, path)
    everything = np.concatenate(list(rows.values()))
    if suffix == ".mat" and len(everything) and everything.min() == 1 and everything.max() == len(ids):
        rows = {role: each - 1 for role, each in rows.items()}  # MATLAB counts from 1
    return rows


def read_groups(path: Path, ids: Sequence[str]) -> NDArray[np.str_]:
    """Group of each item, from a manifest with the columns `id` and `group`; an item it does not name is alone.

    Raises:
        DataError: unreadable, or a column is missing.
    """
    groups = {}
    for number, row in rows_of(path):
        if "id" not in row or "group" not in row:
            raise DataError(f"{path}, row {number}: need id and group; it has {', '.join(map(str, row))}.")
        groups[str(row["id"])] = f"group {row['group']}"
    if not groups.keys() & set(ids):
        raise DataError(f"{path}: none of its {len(groups):,} ids is in the data, whose first is {ids[0]!r}.")
    return np.array([groups.get(name, f"item {name}") for name in ids])


def _own_roles(source: Path) -> dict[str, NDArray[Any]]:
    """Roles that a feature file carries; none in a feature store."""
    if source.suffix != ".npz":
        return {}
    with np.load(source, allow_pickle=False) as file:
        whole = {"train", "query"} <= set(file.files)
        return {role: file[role] for role in ROLES if whole and role in file.files}


def _rows_by_role(named: Mapping[str, Any], known: Mapping[str, int], path: Path) -> dict[str, NDArray[np.int64]]:
    """Rows of numbers, and of texts: ids, or row numbers in all places."""
    arrays = {role: _array(values, f"{path}, {role}") for role, values in named.items()}
    rows, numbers, ids = {}, [], 0
    for role, array in arrays.items():
        if array.dtype.kind == "i":
            rows[role] = array
            continue
        found = [_row(str(name).strip(), known, f"{path}, {role}") for name in array]
        numbers += [name for name, row in zip(array, found, strict=True) if row is None]
        ids += len(found) - found.count(None)
        rows[role] = np.array([int(n) if r is None else r for n, r in zip(array, found, strict=True)], np.int64)
    if numbers and ids:
        raise DataError(
            f"{path}: {ids} lines are ids of the data, but {len(numbers)} can only be row numbers, {numbers[0]} first. "
            "Name all items by id, or write the rows as numbers into .npz or .json."
        )
    return rows


def _array(values: Any, where: str) -> NDArray[Any]:
    """Numbers as int64, or texts."""
    array = np.asarray(values)
    whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and (array == array.astype(np.int64)).all())
    if array.ndim == 1 and (whole or not array.size):
        return array.astype(np.int64)  # MATLAB's numbers are floats
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise DataError(f"{where}: need rows or ids, got {array.dtype} of shape {array.shape}.")
    return array


def _row(name: str, known: Mapping[str, int], where: str) -> int | None:
    """Of an id, or of a file's name (with labels after it) whose stem is the id; None of a number that is no id."""
    first = (name.split() or [""])[0]
    for candidate in (name, first, PurePosixPath(first).stem):
        if candidate in known:
            return known[candidate]
    if name.isdecimal():
        return None
    raise DataError(f"{where}: the data has no item {name[:60]!r}.")
