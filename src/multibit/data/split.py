"""Who is trained on, who selects the epoch, who asks, and who is searched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
        seed: of the permutation that drew it.

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
    seed: int

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
    def draw(cls, items: int, *, query: int, train: int, validation: int, seed: int = 42) -> Split:
        """Draw by the paper's rule (Table `tab:data-split`).

        `numpy.random.RandomState(seed).permutation(items)`: the first `query` rows ask, the next `train` train, the
        next `validation` select; everything but the queries is the database.

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
        order = np.random.RandomState(seed).permutation(items)
        asked, rest = order[:query], order[query:]
        return cls(rest[:train], rest[train : train + validation], asked, rest, seed)

    @classmethod
    def usual(cls, items: int, seed: int = 42) -> Split:
        """Draw the paper's sizes: 5,000 / 9,000 / 1,000, or MIRFlickr's shares (25, 45, 5 %) of a smaller set."""
        sizes = {"query": items // 4, "train": items * 45 // 100, "validation": items // 20}
        if items < 5:
            raise ConfigError(f"split: {items} items are too few to train on and to query; need at least 5.")
        paper = {"query": 5000, "train": 9000, "validation": 1000}
        return cls.draw(items, **{role: min(paper[role], size) for role, size in sizes.items()}, seed=seed)

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
