"""Splits and groups that are stored in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.data.rows import rows_of
from multibit.data.sources.common import load_json, read_lines
from multibit.data.sources.mat_files import MatFiles
from multibit.data.split import MIN_ITEMS, Split
from multibit.data.values import id_of, same_name, with_slashes
from multibit.errors import ConfigError, DataError
from multibit.npz import read_npz
from multibit.paths import require_regular
from multibit.texts import SAVE_AS_UTF8

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
        here, lacking = (" and ".join(f"`{role}`" for role in roles) for roles in (wanted, missing))
        raise ConfigError(
            "is missing: the numbers of query, training and validation items are given all three or not at all.",
            option=missing[0],
            hint=f"Add {lacking} to {here}, or leave out {here} for the paper's numbers.",
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
            `query.txt` (or `test.txt`), ..., one item per line. Numbers are ids if the data has all of them as ids;
            otherwise they are rows, from 0. In .mat rows count from 0 or 1, whichever all of them fit; where both fit,
            the file is refused. A role may also be a mask with one value per item. Texts are ids, or names of files
            whose stem is the id, or else all of them are rows.
        ids: of the N items.

    Raises:
        DataError: unreadable, no role in it, an item that the data does not have, some lines that are ids while others
            can only be rows, or numbers that can be read in two ways; with file and role.
    """
    if stored := _stored(path):
        return stored.roles
    suffix = path.suffix.lower()
    found: Mapping[str, Any]
    if path.is_dir():
        files_of = [(file.stem, file) for file in _text_files(path)]
        found = {name: [line for line in read_lines(file, hint=SAVE_AS_UTF8) if line] for name, file in files_of}
    elif suffix == ".npz":
        found = read_npz(path)
    elif suffix == ".mat":
        files = MatFiles.open(path, {}, ())
        known = {name for names in ROLE_NAMES.values() for name in names}
        found = {key: files.read(key, (key,)) for shapes in files.shapes.values() for key in shapes if key in known}
    elif suffix == ".json":
        found = load_json(path)
    else:
        raise DataError(
            "not a split; need a number (the seed), .npz, .mat, .json, a folder of .txt files, or a run folder.",
            file=path,
        )
    try:
        named = _named(found)
        if not named:
            raise DataError(f"no role in it; need query and train, found {', '.join(found) or 'nothing'}.")
        return _in_range(_rows_by_role(named, ids, from_one=suffix == ".mat"), len(ids))
    except DataError as error:
        raise error.within(path) from None


def _named(found: Mapping[str, Any]) -> dict[str, Any]:
    """What a file or folder has for each role, under any of its names in any case.

    Raises:
        DataError: two names of one role.
    """
    named = {}
    for role, names in ROLE_NAMES.items():
        keys = [key for key in found if str(key).lower() in names]
        if len(keys) > 1:
            raise DataError(f"{' and '.join(keys)} are names of one role.", field=role, hint="Keep one of them.")
        if keys:
            named[role] = found[keys[0]]
    return named


def _in_range(roles: Mapping[str, Rows], items: int) -> dict[str, Rows]:
    """The rows of each role, if the data has them.

    Raises:
        DataError: a row that does not exist.
    """
    for role, rows in roles.items():
        outside = rows[(rows < 0) | (rows >= items)]
        if len(outside):
            raise DataError(f"row {outside[0]}, but the data has rows 0 to {items - 1}.", field=role)
    return dict(roles)


def _text_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() == ".txt")


def read_groups(path: Path, ids: Sequence[str]) -> NDArray[np.str_]:
    """Group of each item, from a manifest with the columns `id` and `group`.

    An item that is not listed, or without a group, is its own group.

    Raises:
        DataError: unreadable, a column is missing, a group of another type, an item in two groups, or none of the ids
            is in the data.
    """
    groups: dict[str, str] = {}
    for number, row in rows_of(path):
        for field in ("id", "group"):
            if field not in row:
                raise DataError(f"no column {field!r}; it has {', '.join(row)}.", file=path, row=number, field=field)
        try:
            name, group = id_of(row["id"], row=number), row["group"]
            if group is None or group == "":
                continue
            group = f"group {id_of(group, row=number, field='group')}"
            if groups.setdefault(name, group) != group:
                raise DataError(f"{name!r} is in two groups.", row=number, field="group")
        except DataError as error:
            raise error.within(path) from None
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
    require_regular(source)
    with np.load(source, allow_pickle=False) as file:  # only these arrays: the features are large
        whole = {"train", "query"} <= set(file.files)
        return {role: file[role] for role in ROLE_NAMES if whole and role in file.files}


def _rows_by_role(named: Mapping[str, Any], ids: Sequence[str], *, from_one: bool) -> dict[str, Rows]:
    """Rows of numbers, masks and texts; all texts are ids, or all of them row numbers.

    Args:
        named: rows, ids or a mask of each role. ids: of the N items. from_one: rows may also count from 1.
    """
    known = {name: row for row, name in enumerate(ids)}
    given = {role: _array(values, role, len(ids)) for role, values in named.items()}
    texts = {role: array for role, array in given.items() if array.dtype.kind in "US"}
    masks = {role: np.flatnonzero(array) for role, array in given.items() if array.dtype.kind == "b"}
    whole = {role: array for role, array in given.items() if array.dtype.kind == "i"}
    found = {role: [_row(str(name), known, role) for name in array] for role, array in texts.items()}
    numbers = [name for role in texts for name, row in zip(texts[role], found[role], strict=True) if row is None]
    named_ids = sum(len(rows) - rows.count(None) for rows in found.values())
    if numbers and named_ids:
        raise DataError(
            f"{named_ids} lines are ids of the data, but {len(numbers)} can only be row numbers, such as {numbers[0]}.",
            hint="Name all items by id, or write the rows as numbers to .npz or .json.",
        )
    if numbers:
        whole |= {role: array.astype(np.int64) for role, array in texts.items()}
    else:
        masks |= {role: np.array(rows, np.int64) for role, rows in found.items()}
    rows = masks | _rows_of_numbers(whole, known, from_one=from_one)
    return {role: rows[role] for role in named}


def _rows_of_numbers(given: Mapping[str, Rows], known: Mapping[str, int], *, from_one: bool) -> dict[str, Rows]:
    """Rows of numbers, which are ids of the data, or row numbers.

    Args:
        given: numbers of each role. known: row of each id. from_one: rows may also count from 1.

    Raises:
        DataError: rows that count from 0 as well as from 1.
    """
    numbers = np.concatenate([np.zeros(0, np.int64), *given.values()])
    if not len(numbers):
        return dict(given)
    if all(str(number) in known for number in numbers.tolist()):
        return {
            role: np.array([known[str(number)] for number in each.tolist()], np.int64) for role, each in given.items()
        }
    if not from_one or numbers.min() < 1:
        return dict(given)
    if numbers.max() < len(known):
        role, first = next((role, each[0]) for role, each in given.items() if len(each))
        ids = list(known)
        raise DataError(
            f"the rows can count from 0 or from 1: row {first} is item {ids[first]!r} or {ids[first - 1]!r}, and "
            f"neither 0 nor {len(known)} occurs.",
            field=role,
            hint="Write ids, a mask of all items, or rows from 0 to .npz or .json.",
        )
    return {role: each - 1 for role, each in given.items()}


def _array(values: Any, role: str, items: int) -> NDArray[Any]:
    """Numbers as int64, texts, or a mask (items,) of bool."""
    array = _listed(values, role)
    if array.ndim == 2 and 1 in array.shape:  # MATLAB has no vectors
        array = array.ravel()
    if array.dtype == object and array.ndim == 1:  # a cell array, whose entries may be arrays of one value
        array = np.array([np.asarray(each).ravel()[0] if np.size(each) == 1 else each for each in array.tolist()])
    if array.dtype.kind == "b" or (array.dtype.kind in "iuf" and _is_mask(array, items)):
        if array.shape != (items,):
            raise DataError(f"a mask of shape {array.shape} for {items} items.", field=role)
        return array.astype(bool)
    if array.ndim == 1 and not array.size:
        return array.astype(np.int64)
    if array.ndim == 1 and array.dtype.kind in "iuf":
        if not np.isfinite(array).all() or (array != np.floor(array)).any():
            raise DataError(f"need whole numbers, got {array.dtype} with fractions.", field=role)
        if (largest := float(array.max())) >= 2**62 or float(array.min()) < -(2**62):
            raise DataError(f"need row numbers, got {largest:g}.", field=role)
        return array.astype(np.int64)  # MATLAB's numbers are floats
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise DataError(f"need rows, ids or a mask, got {array.dtype} of shape {array.shape}.", field=role)
    return array


def _listed(values: Any, role: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:  # lists of several lengths
        raise DataError("need rows, ids or a mask, got lists inside a list.", field=role) from None


def _is_mask(array: NDArray[Any], items: int) -> bool:
    """Whether numbers are a mask: one for each of three or more items, all 0 or 1; as rows they would be repeated."""
    return array.shape == (items,) and items > 2 and bool(((array == 0) | (array == 1)).all())


def _row(name: str, known: Mapping[str, int], role: str) -> int | None:
    """Row of an id, or of a file name (labels may follow) whose stem is the id; None of a number that is not an id."""
    written, name = name, name.strip()
    first = with_slashes((name.split() or [""])[0])
    path = PurePosixPath(first)
    for each in (written, name, first, path.with_suffix("").as_posix() if path.name else first, path.stem):
        for candidate in (each, same_name(each)):
            if candidate in known:
                return known[candidate]
    if name.isdecimal():
        return None
    raise DataError(f"the data has no item {name[:60]!r}.", field=role)
