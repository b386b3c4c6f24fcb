"""Who is trained on, who selects the epoch, who asks, and who is searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.errors import ConfigError
from multibit.files import fingerprint, read_arrays, write_arrays

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of a data set by role. Building one proves that the roles do not leak.

    Attributes:
        train, validation, query: disjoint rows.
        database: rows that are searched: no query row; the training and validation rows are in it (the field's
            usual protocol), first and in training order.
        seed: of the permutation that drew it; None where others drew it.

    Raises:
        ConfigError: roles overlap, or a row occurs twice.

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
        for name in ("train", "validation", "query", "database"):
            rows = np.asarray(getattr(self, name), np.int64)
            object.__setattr__(self, name, rows)
            if len(np.unique(rows)) < len(rows):
                raise ConfigError(f"split: a row occurs twice in {name}.")
            if len(rows) and rows.min() < 0:
                raise ConfigError(f"split: row {rows.min()} in {name} is negative; rows count from 0.")
        for first, second in (
            ("train", "validation"),
            ("train", "query"),
            ("validation", "query"),
            ("query", "database"),
        ):
            shared = np.intersect1d(getattr(self, first), getattr(self, second))
            if len(shared):
                raise ConfigError(
                    f"split: {len(shared)} rows are both in {first} and in {second}, row {shared[0]} first."
                )

    @property
    def unseen(self) -> Rows:
        """Database rows that training and selection never saw, in database order."""
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

        `numpy.random.RandomState(seed).permutation(items)`: the first `query` rows ask, the next `train` train, the
        next `validation` select; everything but the queries is the database.

        Args:
            items: N. query, train, validation: rows of each role. seed: the field uses 1814, 3407, 42 and 1.
            groups: (N,) what belongs together, e.g. near-duplicates: a group has one role. Then groups are permuted,
                and a role has as many whole groups as it needs to have its rows, so it may have some more.

        Raises:
            ConfigError: fewer items than the roles need, no query, or fewer than two training rows.
        """
        if not 0 <= seed < 2**32:
            raise ConfigError(f"seed: must be from 0 to 2^32 - 1, got {seed}.")
        if query < 1 or train < 2 or validation < 0:
            raise ConfigError(
                f"split: need 1+ query, 2+ train, 0+ validation rows; got {query}, {train}, {validation}."
            )
        if query + train + validation > items:
            raise ConfigError(
                f"split: {query} query + {train} train + {validation} validation = {query + train + validation} rows, "
                f"but the data has {items}."
            )
        if groups is None:
            order = np.random.RandomState(seed).permutation(items)
            cuts = [query, query + train, query + train + validation]
        else:
            order, cuts = _draw_groups(np.asarray(groups), items, (query, train, validation), seed)
        asked, rest = order[: cuts[0]], order[cuts[0] :]
        return cls(order[cuts[0] : cuts[1]], order[cuts[1] : cuts[2]], asked, rest, seed)

    @classmethod
    def of_roles(cls, items: int, roles: Mapping[str, ArrayLike]) -> Split:
        """A split that others drew.

        Args:
            items: N. roles: rows of query and train; of validation, or the last tenth of train is taken for it; of
                database, or all rows but the queries are searched, those of train first.

        Raises:
            ConfigError: query or train is missing, a row does not exist, or roles overlap.
        """
        rows = {name: np.asarray(each, np.int64).ravel() for name, each in roles.items()}
        for name in ("query", "train"):
            if not len(rows.get(name, ())):
                raise ConfigError(f"split: no row in {name}; it has {', '.join(rows) or 'nothing'}.")
        for name, each in rows.items():
            if len(each) and not 0 <= each.min() <= each.max() < items:
                wrong = each.min() if each.min() < 0 else each.max()
                raise ConfigError(f"split: {name} names row {wrong}, the data has rows 0 to {items - 1}.")
        train = rows["train"]
        rest = np.setdiff1d(np.arange(items), np.concatenate([rows["query"], train]))
        database = rows.get("database", np.concatenate([train, rest]))
        validation = rows.get("validation")
        if validation is None:
            train, validation = np.split(train, [len(train) - len(train) // 10])
        return cls(train, validation, rows["query"], database, None)

    @classmethod
    def usual(cls, items: int, seed: int = 42, groups: ArrayLike | None = None) -> Split:
        """Draw the paper's sizes: 5,000 / 9,000 / 1,000, or MIRFlickr's shares (25, 45, 5 %) of a smaller set."""
        sizes = {"query": items // 4, "train": items * 45 // 100, "validation": items // 20}
        if items < 5:
            raise ConfigError(f"split: {items} items are too few to train on and to query; need at least 5.")
        paper = {"query": 5000, "train": 9000, "validation": 1000}
        return cls.draw(
            items, **{role: min(paper[role], size) for role, size in sizes.items()}, seed=seed, groups=groups
        )

    def describe(self) -> str:
        """Where it comes from and how many rows have each role, for people."""
        roles = ("train", "validation", "query", "database")
        sizes = ", ".join(f"{len(getattr(self, role)):,} {role}" for role in roles)
        return f"{'given' if self.seed is None else f'seed {self.seed}'}: {sizes}"

    def fingerprint(self) -> str:
        """16 hexadecimal digits of the content."""
        return fingerprint(self.seed, self.train, self.validation, self.query, self.database)

    def save(self, path: Path | str) -> None:
        """Write to one file, in one step."""
        rows = {name: getattr(self, name) for name in ("train", "validation", "query", "database")}
        write_arrays(Path(path), rows, {"seed": self.seed}, kind="split", version=1)

    @classmethod
    def load(cls, path: Path | str) -> Split:
        """Read what `save` wrote."""
        rows, header = read_arrays(Path(path), kind="split", version=1)
        return cls(**rows, seed=header["seed"])


def _draw_groups(groups: NDArray[Any], items: int, sizes: Sequence[int], seed: int) -> tuple[Rows, list[int]]:
    """Rows in the order of permuted groups, and where each role ends: at the end of a group."""
    if groups.shape != (items,):
        raise ConfigError(f"groups: shape {groups.shape} for {items} items; need one group for each.")
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))[group]  # groups count from 0 in the order they appear
    order = np.random.RandomState(seed).permutation(len(first))
    place = np.argsort(order)[number]  # of each row's group
    ends = np.cumsum(np.bincount(place))
    cuts = [0]
    for size in sizes:
        reached = ends[min(int(np.searchsorted(ends, cuts[-1] + size)), len(ends) - 1)]
        cuts.append(int(reached) if size else cuts[-1])
    found = np.diff(cuts).tolist()
    if any(rows < size for rows, size in zip(found, sizes, strict=True)):
        raise ConfigError(
            f"groups: whole groups give {found} query, train, validation rows of {list(sizes)}; {len(first)} groups "
            "are too few or too large."
        )
    return np.argsort(place, kind="stable"), cuts[1:]
