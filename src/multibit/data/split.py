"""Train, validation, query and database rows of a data set."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import Rows
from multibit.errors import ConfigError, DataError, counted, require_integer
from multibit.files import building, fingerprint, read_arrays, write_arrays

ROLES = ("train", "validation", "query", "database")

PAPER_SIZES = {"query": 5_000, "train": 9_000, "validation": 1_000}
MIN_ITEMS = 5
"""The usual split needs at least this many items."""


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of a data set by role. Construction verifies that no row leaks from one role into another.

    Attributes:
        train, validation, query: disjoint rows.
        database: rows that are searched, none of them a query row; training and validation rows are in it (the field's
            usual protocol), first and in training order.
        seed: of the permutation that the split was drawn with; None where it was read from elsewhere.

    Raises:
        ConfigError: roles overlap, a row occurs twice, or a row is negative.

    Example:
        >>> split = Split.draw(10, query=3, train=4, validation=1)
        >>> len(split.database), len(split.unseen)
        (7, 2)
    """

    train: Rows
    validation: Rows
    query: Rows
    database: Rows
    seed: int | None

    def __post_init__(self) -> None:
        for name, given in self.roles.items():
            rows = np.asarray(given, np.int64)
            object.__setattr__(self, name, rows)
            if len(np.unique(rows)) < len(rows):
                raise ConfigError(f"a row occurs twice in {name}.", field="split")
            if len(rows) and rows.min() < 0:
                raise ConfigError(f"{name} has the negative row {rows.min()}; rows count from 0.", field="split")
        _require_disjoint(self.roles)

    @property
    def roles(self) -> dict[str, Rows]:
        """Rows by role."""
        return {name: getattr(self, name) for name in ROLES}

    @property
    def unseen(self) -> Rows:
        """Database rows that are in neither train nor validation, in database order."""
        seen = np.concatenate([self.train, self.validation])
        return self.database[~np.isin(self.database, seen)]

    @classmethod
    def draw(
        cls,
        items: int,
        *,
        query: int,
        train: int,
        validation: int,
        seed: int = 42,
        groups: ArrayLike | None = None,
    ) -> Split:
        """Draw by the paper's rule (Table `tab:data-split`), which is the field's with any seed.

        In `numpy.random.RandomState(seed).permutation(items)`, the first `query` rows are the queries, the next `train`
        rows the training set, the next `validation` rows the validation set; all but the queries are the database.

        Args:
            items: N. query, train, validation: number of rows. seed: the field uses 1814, 3407, 42 and 1.
            groups: (N,) group of each item, e.g. near-duplicates; all items of a group get one role. Groups are
                permuted instead of rows, and each role takes whole groups until it has its number of rows or more.

        Raises:
            ConfigError: a number that is not whole, fewer items than the roles need, no query, fewer than two training
                rows, a seed out of range, or groups that do not fit.
        """
        sizes = {"query": query, "train": train, "validation": validation}
        for option, number in {"items": items, "seed": seed, **sizes}.items():
            require_integer(number, option=option, kind=ConfigError)
        if not 0 <= seed < 2**32:
            raise ConfigError(f"need 0 to 2^32 - 1, got {seed}.", option="seed")
        for (name, size), least in zip(sizes.items(), (1, 2, 0), strict=True):
            if size < least:
                raise ConfigError(f"need at least {least} rows, got {size}.", option=name)
        if query + train + validation > items:
            raise ConfigError(
                f"{query} query + {train} train + {validation} validation = {query + train + validation} rows, but the "
                f"data has {items}.",
                field="split",
                hint="Decrease `query`, `train` or `validation`.",
            )
        if groups is None:
            order = np.random.RandomState(seed).permutation(items)
            ends = [query, query + train, query + train + validation]
        else:
            order, ends = _draw_groups(np.asarray(groups), items, list(sizes.values()), seed)
        queries, rest = order[: ends[0]], order[ends[0] :]
        return cls(order[ends[0] : ends[1]], order[ends[1] : ends[2]], queries, rest, seed)

    @classmethod
    def of_roles(cls, items: int, roles: Mapping[str, ArrayLike]) -> Split:
        """A split whose rows are given.

        Args:
            items: N.
            roles: rows of query and train; of validation, by default the last tenth of train; of database, by default
                all rows but the queries, those of train first.

        Raises:
            ConfigError: query or train is missing, a row does not exist, or roles overlap.
        """
        rows = {name: np.asarray(each, np.int64).ravel() for name, each in roles.items()}
        for name in ("query", "train"):
            if not len(rows.get(name, ())):
                raise ConfigError(f"no row in {name}; it has {', '.join(rows) or 'nothing'}.", field="split")
        for name, each in rows.items():
            if len(each) and not 0 <= each.min() <= each.max() < items:
                wrong = each.min() if each.min() < 0 else each.max()
                raise ConfigError(f"{name} has row {wrong}, the data has rows 0 to {items - 1}.", field="split")
        _require_disjoint(rows)  # before roles that are not given are derived from the others
        train = rows["train"]
        rest = np.setdiff1d(np.arange(items), np.concatenate([rows["query"], train]))
        database = rows.get("database", np.concatenate([train, rest]))
        validation = rows.get("validation")
        if validation is None:
            train, validation = np.split(train, [len(train) - len(train) // 10])
        return cls(train, validation, rows["query"], database, None)

    @classmethod
    def usual(cls, items: int, seed: int = 42, groups: ArrayLike | None = None) -> Split:
        """Draw the paper's sizes, 5,000 queries, 9,000 train and 1,000 validation rows, wherever they fit.

        A data set of up to 15,000 items gets MIRFlickr's shares: 25, 45 and 5 %.

        Raises:
            ConfigError: fewer than `MIN_ITEMS` items, or as `draw`.

        Example:
            >>> Split.usual(19_627).describe()  # IAPR TC-12
            'seed 42: 9,000 train, 1,000 validation, 5,000 query, 14,627 database'
        """
        return cls.draw(items, **usual_sizes(items), seed=seed, groups=groups)

    def __repr__(self) -> str:
        return f"Split({self.describe()})"

    def describe(self) -> str:
        """Its seed and the number of rows of each role, human-readable."""
        sizes = ", ".join(f"{len(rows):,} {role}" for role, rows in self.roles.items())
        return f"{'given' if self.seed is None else f'seed {self.seed}'}: {sizes}"

    def same_rows(self, other: Split) -> bool:
        """Whether all roles have the same rows in the same order, whatever drew them."""
        return all(np.array_equal(rows, other.roles[role]) for role, rows in self.roles.items())

    def identity(self) -> str:
        """16 hexadecimal digits of the rows: equal where `same_rows` is true."""
        return fingerprint(*self.roles.values())

    def fingerprint(self) -> str:
        """16 hexadecimal digits of the content, seed included: what a file of the split must have."""
        return fingerprint(self.seed, *self.roles.values())

    def save(self, path: Path | str) -> None:
        """Write to one file, in one step."""
        write_arrays(Path(path), self.roles, {"seed": self.seed}, kind="split", version=1)

    @classmethod
    def load(cls, path: Path | str) -> Split:
        """Read what `save` wrote.

        Raises:
            FormatError: missing, corrupt or truncated, newer, or another kind of file. ConfigError: roles overlap.
        """
        needed = {role: ("iu", 1) for role in ROLES}
        rows, header = read_arrays(Path(path), kind="split", version=1, form=_Header, needed=needed)
        with building(Path(path)):
            return cls(**rows, seed=header.seed)


class _Header(msgspec.Struct):
    """What the file of a split must say."""

    seed: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] | None


def _require_disjoint(roles: Mapping[str, Rows]) -> None:
    """Refuse a row in two roles that exclude each other.

    Raises:
        ConfigError: names the roles and a row.
    """
    for first, second in (*itertools.combinations(("train", "validation", "query"), 2), ("query", "database")):
        shared = np.intersect1d(roles.get(first, ()), roles.get(second, ()))
        if len(shared):
            found = counted(len(shared), "row is", "rows are")
            problem = f"{found} both in {first} and in {second}, such as row {int(shared[0])}."
            raise ConfigError(problem, field="split")


def _draw_groups(groups: NDArray[Any], items: int, sizes: Sequence[int], seed: int) -> tuple[Rows, list[int]]:
    """Rows in the order of permuted groups, and where each role ends: at the end of a group."""
    if groups.shape != (items,):
        raise ConfigError(f"need one group for each of {items} items, got shape {groups.shape}.", option="groups")
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))[group]  # groups count from 0 in the order they appear
    order = np.random.RandomState(seed).permutation(len(first))
    rank = np.argsort(order)[number]  # of each row's group
    ends = np.cumsum(np.bincount(rank))
    cuts = [0]
    for size in sizes:
        reached = ends[min(int(np.searchsorted(ends, cuts[-1] + size)), len(ends) - 1)]
        cuts.append(int(reached) if size else cuts[-1])
    found = np.diff(cuts).tolist()
    if any(rows < size for rows, size in zip(found, sizes, strict=True)):
        raise ConfigError(
            f"whole groups give {found} query, train and validation rows instead of {list(sizes)}; {len(first)} groups "
            "are too few or too large.",
            option="groups",
        )
    return np.argsort(rank, kind="stable"), cuts[1:]


def usual_sizes(items: int) -> dict[str, int]:
    """Query, train and validation rows of `Split.usual`.

    Raises:
        ConfigError: fewer than `MIN_ITEMS` items, or not a whole number.

    Example:
        >>> usual_sizes(4_769)
        {'query': 1192, 'train': 2146, 'validation': 238}
    """
    require_integer(items, option="items", kind=ConfigError)
    if items < MIN_ITEMS:
        found = counted(items, "item is", "items are")
        raise ConfigError(f"{found} too few to split; need at least {MIN_ITEMS}.", field="split")
    if items > sum(PAPER_SIZES.values()):  # some of the database was never trained on
        return dict(PAPER_SIZES)
    return {"query": items // 4, "train": items * 45 // 100, "validation": items // 20}


def require_split_fits(split: Split, items: int) -> None:
    """Refuse a split of other data.

    Raises:
        DataError: a role has a row that the data does not have, or there is no query or database row.
    """
    for name, rows in split.roles.items():
        if len(rows) and rows.max() >= items:
            raise DataError(f"{name} has row {rows.max()}, the features have rows 0 to {items - 1}.", field="split")
        if not len(rows) and name in ("query", "database"):
            raise DataError(f"no row in {name}, so nothing could be evaluated.", field="split")
