"""Splits and groups that are stored in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.data.manifest import rows_of
from multibit.data.sources.common import load_json, read_lines
from multibit.data.sources.mat_files import MatFiles
from multibit.data.split import MIN_ITEMS, Split
from multibit.errors import ConfigError, DataError
from multibit.files import read_npz

ROLE_NAMES = {
    "train": ("train", "tr", "training"),
    "validation": ("validation", "val", "valid"),
    "query": ("query", "test", "te"),
    "database": ("database", "retrieval", "db"),
}
"""Names of each role in files, multibit's own first."""

SIZES = ("query", "train", "validation")
"""Roles whose size can be chosen; all other items are searched only."""


def choose_split(
    ids: Sequence[str],
    split: str | None = None,
    *,
    source: Path | None = None,
    sizes: Mapping[str, int | None] | None = None,
    groups: Path | None = None,
) -> Split:
    """The split of a file, of the features, or drawn by the paper's rule.

    Args:
        ids: of the N items.
        split: a seed, 42 when None, or a file or folder for `read_roles`.
        source: file of the features; its own split is used when no argument asks for another one.
        sizes: number of query, train and validation rows: all of them, or none for the paper's sizes.
        groups: manifest with the columns `id` and `group`; no group gets two roles.

    Raises:
        ConfigError: arguments that exclude each other, or what `Split` refuses. DataError: an unreadable file.
    """
    wanted = {role: size for role, size in (sizes or {}).items() if size is not None}
    if split is not None and not split.isdecimal():
        if unused := [*wanted, *(["groups"] if groups else [])]:
            raise ConfigError(
                f"{split} already assigns every item to a role.",
                option="split",
                hint=f"Leave out {', '.join(f'`{name}`' for name in unused)}.",
            )
        if stored := _stored(Path(split)):
            return _fitting(stored, Path(split), len(ids))  # with its seed
        return _of_file(Path(split), read_roles(Path(split), ids), len(ids))
    if missing := [role for role in SIZES if wanted and role not in wanted]:
        raise ConfigError(
            "must be given together with the other sizes, those of query, train and validation rows.",
            option=missing[0],
            hint="Give all three, or none for the paper's sizes.",
        )
    if split is None and source is not None and not wanted and groups is None and (own := _own_roles(source)):
        return _of_file(source, own, len(ids))
    seed = 42 if split is None else int(split)
    together = None if groups is None else read_groups(groups, ids)
    if not wanted:
        return Split.usual(len(ids), seed, together)
    return Split.draw(len(ids), **wanted, seed=seed, groups=together)


def choose_roles(ids: Sequence[str], split: str | None = None, *, source: Path | None = None) -> dict[str, Rows]:
    """Rows by role, for checks: as `choose_split`, but the roles of a file may overlap and few items have no roles.

    Args:
        ids, split, source: as in `choose_split`.
    """
    if split is not None and not split.isdecimal():
        return read_roles(Path(split), ids)
    if split is None and len(ids) < MIN_ITEMS:
        return {}
    return choose_split(ids, split, source=source).roles


def _stored(path: Path) -> Split | None:
    """The split of a run folder or of a file that `Split.save` wrote; None for anything else."""
    if path.suffix.lower() == ".safetensors":
        return Split.load(path)
    return Split.load(path / "split.safetensors") if (path / "split.safetensors").exists() else None


def _fitting(split: Split, path: Path, items: int) -> Split:
    """The split, if all its rows exist.

    Raises:
        ConfigError: a role names a row that the data does not have.
    """
    for role, rows in split.roles.items():
        if len(rows) and rows.max() >= items:
            problem = f"{role} has row {rows.max()}, the data has rows 0 to {items - 1}."
            raise ConfigError(problem, file=path, field="split")
    return split


def read_roles(path: Path, ids: Sequence[str]) -> dict[str, Rows]:
    """Rows of each role from a file or folder, in any of the layouts that are in use.

    Args:
        path: a run folder; `.npz`, `.mat` or `.json` with the keys of `ROLE_NAMES`; or a folder with `train.txt`,
            `query.txt` (or `test.txt`), ..., one item per line. Numbers are rows, from 0 (in .mat from 1 if the last
            row is N); texts are ids, or names of files whose stem is the id, or else all of them are rows.
        ids: of the N items.

    Raises:
        DataError: unreadable, no role in it, an item that the data does not have, or some lines that are ids while
            others can only be rows; with file and role.
    """
    if stored := _stored(path):
        return stored.roles
    suffix = path.suffix.lower()
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
            "not a split; need a number (the seed), .npz, .mat, .json, a folder of .txt files, or a run folder.",
            file=path,
        )
    named = {role: found[name] for role, names in ROLE_NAMES.items() for name in reversed(names) if name in found}
    if not named:
        raise DataError(f"no role in it; need query and train, found {', '.join(found) or 'nothing'}.", file=path)
    try:
        rows = _rows_by_role(named, {name: row for row, name in enumerate(ids)})
    except DataError as error:
        raise error.within(path) from None
    everything = np.concatenate(list(rows.values()))
    if suffix == ".mat" and len(everything) and everything.min() == 1 and everything.max() == len(ids):
        rows = {role: each - 1 for role, each in rows.items()}  # MATLAB counts from 1
    return rows


def read_groups(path: Path, ids: Sequence[str]) -> NDArray[np.str_]:
    """Group of each item, from a manifest with the columns `id` and `group`; an unlisted item is its own group.

    Raises:
        DataError: unreadable, a column is missing, or none of the ids is in the data.
    """
    groups = {}
    for number, row in rows_of(path):
        for field in ("id", "group"):
            if field not in row:
                raise DataError(f"no column {field!r}; it has {', '.join(row)}.", file=path, row=number, field=field)
        groups[str(row["id"])] = f"group {row['group']}"
    if not groups.keys() & set(ids):
        raise DataError(
            f"none of its {len(groups):,} ids is in the data, whose first is {ids[0]!r}.", file=path, field="id"
        )
    return np.array([groups.get(name, f"item {name}") for name in ids])


def _of_file(path: Path, roles: Mapping[str, NDArray[Any]], items: int) -> Split:
    try:
        return Split.of_roles(items, roles)
    except ConfigError as error:
        raise error.within(path) from None


def _own_roles(source: Path) -> dict[str, NDArray[Any]]:
    """Roles that a feature file contains; a feature store has none."""
    if source.suffix != ".npz":
        return {}
    with np.load(source, allow_pickle=False) as file:  # only these arrays: the features are large
        whole = {"train", "query"} <= set(file.files)
        return {role: file[role] for role in ROLE_NAMES if whole and role in file.files}


def _rows_by_role(named: Mapping[str, Any], known: Mapping[str, int]) -> dict[str, Rows]:
    """Rows of numbers, and of texts: all of them ids, or all of them row numbers.

    Args:
        named: rows or ids of each role. known: row of each id.
    """
    rows, numbers, ids = {}, [], 0
    for role, values in named.items():
        array = _array(values, role)
        if array.dtype.kind == "i":
            rows[role] = array
            continue
        found = [_row(str(name).strip(), known, role) for name in array]
        numbers += [name for name, row in zip(array, found, strict=True) if row is None]
        ids += len(found) - found.count(None)
        rows[role] = np.array([int(n) if r is None else r for n, r in zip(array, found, strict=True)], np.int64)
    if numbers and ids:
        raise DataError(
            f"{ids} lines are ids of the data, but {len(numbers)} can only be row numbers, such as {numbers[0]}.",
            hint="Name all items by id, or write the rows as numbers to .npz or .json.",
        )
    return rows


def _array(values: Any, role: str) -> NDArray[Any]:
    """Numbers as int64, or texts."""
    array = np.asarray(values)
    whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and (array == array.astype(np.int64)).all())
    if array.ndim == 1 and (whole or not array.size):
        return array.astype(np.int64)  # MATLAB's numbers are floats
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise DataError(f"need rows or ids, got {array.dtype} of shape {array.shape}.", field=role)
    return array


def _row(name: str, known: Mapping[str, int], role: str) -> int | None:
    """Row of an id, or of a file name (labels may follow) whose stem is the id; None of a number that is not an id."""
    first = (name.split() or [""])[0]
    for candidate in (name, first, PurePosixPath(first).stem):
        if candidate in known:
            return known[candidate]
    if name.isdecimal():
        return None
    raise DataError(f"the data has no item {name[:60]!r}.", field=role)
