"""Filters as SQL: a walk over the parsed tree of conditions, whose values become bound parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from multibit.search.conditions import (
    Compares,
    Condition,
    Equals,
    Every,
    Holds,
    HoldsCompared,
    Not,
    Null,
    OneOf,
    Some,
)
from multibit.search.kinds import Kinds
from multibit.search.remote.base import column_names

SIGNS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


class SqlConditions(ABC):
    """The visitor of one dialect.

    No text of a user is pasted: values are bound, and the names of columns are made by `column_names`. A comparison
    with NULL may be NULL, which counts as false: `negated` must turn it into true.

    Attributes:
        values: name of a parameter -> its value, filled by `sql`.
    """

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self.columns: Mapping[str, str] = column_names(kinds)
        self.values: dict[str, Any] = {}

    def sql(self, condition: Condition) -> str:
        """The expression of a condition."""
        match condition:
            case Every(parts):
                return self._joined(" AND ", parts, "TRUE")
            case Some(parts):
                return self._joined(" OR ", parts, "FALSE")
            case Not(part):
                return self.negated(self.sql(part))
            case Null(field):
                return self.null(field, self.columns[field])
        column, kind = self.columns[condition.field], self.kinds[condition.field]
        match condition:
            case OneOf(_, values):
                return self.one_of(column, kind, values)
            case Compares(_, sign, value):
                return self.compares(column, kind, sign, value)
            case Holds(_, value):
                return self.holds(column, value)
            case HoldsCompared(_, sign, value):
                return self.holds_compared(column, sign, value)
            case Equals(field, texts):
                return f"({self.equals(column, texts)} AND {self.negated(self.null(field, column))})"

    def _joined(self, word: str, parts: Sequence[Condition], without: str) -> str:
        return f"({word.join(map(self.sql, parts))})" if parts else without

    def bound(self, value: Any) -> str:
        """Name of a new parameter with this value."""
        name = f"v{len(self.values)}"
        self.values[name] = value
        return name

    @abstractmethod
    def negated(self, inner: str) -> str:
        """True where an expression is false or NULL."""

    @abstractmethod
    def null(self, field: str, column: str) -> str:
        """The value is missing."""

    @abstractmethod
    def one_of(self, column: str, kind: str, values: Sequence[Any]) -> str:
        """The value is one of some."""

    @abstractmethod
    def compares(self, column: str, kind: str, sign: str, value: Any) -> str:
        """The value compares."""

    @abstractmethod
    def holds(self, column: str, value: str) -> str:
        """The list holds a text."""

    @abstractmethod
    def holds_compared(self, column: str, sign: str, value: str) -> str:
        """The list holds a text that compares."""

    @abstractmethod
    def equals(self, column: str, texts: Sequence[str]) -> str:
        """The list has these texts."""
