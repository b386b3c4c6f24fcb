"""Parsed filters: a tree of conditions whose values have the type of their field, exactly.

`parse` reads a filter in the grammar of `multibit.search.filters`. Whatever selects items, by Arrow columns or by SQL,
walks this tree, so that all of them select the same items. A condition holds or does not: on a null value only `Null`
holds.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from multibit.errors import DataError
from multibit.search.kinds import Kinds, as_json

Where = Mapping[str, Any] | str
ORDERED = ("$gt", "$gte", "$lt", "$lte")
OPERATORS = ("$eq", "$ne", *ORDERED, "$in", "$nin", "$all", "$exists", "$not")
LOGICAL = ("$and", "$or", "$not")


class Every(NamedTuple):
    """All conditions hold; always, if there are none."""

    parts: tuple[Condition, ...]


class Some(NamedTuple):
    """At least one condition holds; never, if there are none."""

    parts: tuple[Condition, ...]


class Not(NamedTuple):
    """The condition does not hold."""

    part: Condition


class Null(NamedTuple):
    """The field is null or missing."""

    field: str


class OneOf(NamedTuple):
    """The value, which is not a list, is one of these, at least one."""

    field: str
    values: tuple[Any, ...]


class Compares(NamedTuple):
    """The value, which is not a list, compares by `sign`, one of `ORDERED`."""

    field: str
    sign: str
    value: Any


class Holds(NamedTuple):
    """The list holds a text."""

    field: str
    value: str


class HoldsCompared(NamedTuple):
    """The list holds a text that compares by `sign`, one of `ORDERED`; texts are in order of their code points."""

    field: str
    sign: str
    value: str


class Equals(NamedTuple):
    """The list consists of these texts, in order."""

    field: str
    values: tuple[str, ...]


Condition = Every | Some | Not | Null | OneOf | Compares | Holds | HoldsCompared | Equals

ALWAYS, NEVER = Every(()), Some(())


def parse(where: Where, kinds: Kinds) -> Condition:
    """The conditions of a filter.

    Args:
        where: a mapping or JSON text. kinds: field -> kind, of the index.

    Raises:
        DataError: invalid JSON, an unknown field or operator, or a value of another kind than the field.

    Example:
        >>> parse({"year": {"$gt": 2001.5}, "tags": "a"}, {"year": "integer", "tags": "list"})
        Every(parts=(Compares(field='year', sign='$gt', value=2001), Holds(field='tags', value='a')))
    """
    return _filter(as_mapping(where), kinds)


def as_mapping(where: Where) -> Mapping[str, Any]:
    """A filter as a mapping.

    Raises:
        DataError: invalid JSON, or no mapping.
    """
    if isinstance(where, str):
        try:
            where = json.loads(where)
        except (ValueError, RecursionError) as error:
            raise refused(f"not valid JSON ({error}).") from None
    if not isinstance(where, Mapping):
        raise refused(f"need a mapping of fields to values, got {type(where).__name__}.")
    return where


def require_field(name: Any, kinds: Kinds) -> None:
    """Refuse a field that no item has.

    Raises:
        DataError: names those that there are.
    """
    if name not in kinds:
        known = f"choose from {', '.join(sorted(kinds))}" if kinds else "the items have no fields"
        raise refused(f"no item has a field {name!r}; {known}.")


def refused(problem: str, hint: str = "") -> DataError:
    """The error of a filter."""
    return DataError(problem, option="where", hint=hint)


def _filter(where: Mapping[str, Any], kinds: Kinds) -> Condition:
    parts = []
    for name, condition in where.items():
        if name in LOGICAL:
            parts.append(_combined(name, condition, kinds))
        elif isinstance(name, str) and name.startswith("$"):
            raise refused(f"unknown operator {name}; choose from {', '.join(LOGICAL)}.")
        else:
            require_field(name, kinds)
            parts.append(_Field(name, kinds[name]).holds(condition))
    return _every(parts)


def _every(parts: Sequence[Condition]) -> Condition:
    return parts[0] if len(parts) == 1 else Every(tuple(parts))


def _combined(name: str, condition: Any, kinds: Kinds) -> Condition:
    if name == "$not":
        if not isinstance(condition, Mapping):
            raise refused(f"$not needs a filter, got {condition!r}.")
        return Not(_filter(condition, kinds))
    if isinstance(condition, str | Mapping) or not isinstance(condition, Sequence):
        raise refused(f"{name} needs a list of filters, got {condition!r}.")
    if not all(isinstance(each, Mapping) for each in condition):
        raise refused(f"{name} needs a list of filters.")
    parts = tuple(_filter(each, kinds) for each in condition)
    return Every(parts) if name == "$and" else Some(parts)


class _Field(NamedTuple):
    """A field and its kind."""

    name: str
    kind: str

    def holds(self, condition: Any) -> Condition:
        if not (isinstance(condition, Mapping) and any(str(key).startswith("$") for key in condition)):
            return self.equal(condition)
        parts = []
        for operator, value in condition.items():
            if operator not in OPERATORS:
                raise refused(f"unknown operator {operator} of {self.name!r}; choose from {', '.join(OPERATORS)}.")
            parts.append(self.apply(operator, value))
        return _every(parts)

    def apply(self, operator: str, value: Any) -> Condition:
        if operator in ORDERED:
            return self.ordered(operator, value)
        if operator == "$exists":
            if not isinstance(value, bool):
                raise refused(f"$exists of {self.name!r} needs true or false, got {value!r}.")
            return Not(Null(self.name)) if value else Null(self.name)
        if operator == "$not":
            return Not(self.holds(value))
        if operator in ("$eq", "$ne"):
            return Not(self.equal(value)) if operator == "$ne" else self.equal(value)
        if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
            raise refused(f"{operator} of {self.name!r} needs a list of values, got {value!r}.")
        if operator == "$all":
            return Every(tuple(map(self.equal, value))) if value else NEVER
        return Not(self.any_of(value)) if operator == "$nin" else self.any_of(value)

    def equal(self, value: Any) -> Condition:
        return Null(self.name) if value is None else self.any_of([value])

    def any_of(self, values: Sequence[Any]) -> Condition:
        given = [value for value in values if value is not None]
        parts: list[Condition] = [Null(self.name)] if len(given) < len(values) else []
        if self.kind == "list":
            parts += map(self.list_equal, given)
        elif wanted := tuple(each for each in map(self.exactly, given) if each is not None):
            parts.append(OneOf(self.name, wanted))
        return parts[0] if len(parts) == 1 else Some(tuple(parts))

    def list_equal(self, value: Any) -> Condition:
        """Whether a list holds a string, or is a whole list."""
        if isinstance(value, str):
            return Holds(self.name, value)
        if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
            return Equals(self.name, tuple(value))
        raise self.mismatch(value)

    def ordered(self, operator: str, value: Any) -> Condition:
        if self.kind in ("boolean", "json"):
            raise refused(f"values of kind {self.kind} have no order: {operator} of {self.name!r}.")
        if self.kind == "list":
            if not isinstance(value, str):
                raise self.mismatch(value)
            return HoldsCompared(self.name, operator, value)
        found = self.bound(operator, value)
        if isinstance(found, bool):
            return Not(Null(self.name)) if found else NEVER
        return Compares(self.name, *found)

    def bound(self, operator: str, value: Any) -> bool | tuple[str, Any]:
        """The comparison in the type of the column, exactly; or whether all values pass, or none."""
        if self.kind not in ("integer", "float"):
            return operator, self.exactly(value)
        if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
            raise self.mismatch(value)
        up = operator in ("$gt", "$gte")
        if self.kind == "integer":
            if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
                operator, value = ("$gt", math.floor(value)) if up else ("$lt", math.ceil(value))
            if value > 2**63 - 1 or value < -(2**63):
                return bool((value < 0) == up)
            return operator, int(value)
        near = _as_float(value)
        if math.isinf(near) and isinstance(value, int):
            return bool((value < 0) == up)
        if near != value:
            operator = ("$gte" if near > value else "$gt") if up else ("$lt" if near > value else "$lte")
        return operator, near

    def exactly(self, value: Any) -> Any:
        """The value in the type of the column; None where no value of the column can be equal.

        Raises:
            DataError: of another kind.
        """
        if self.kind == "json":
            return self.json(value)
        if self.kind in ("integer", "float"):
            return self.number(value)
        if self.kind == "boolean" and isinstance(value, bool):
            return value
        if self.kind == "string" and isinstance(value, str):
            return value
        if self.kind in ("date", "timestamp", "timestamp UTC"):
            return self.time(value)
        raise self.mismatch(value)

    def number(self, value: Any) -> Any:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.mismatch(value)
        if self.kind == "float":
            near = _as_float(value)
            return near if near == value else None
        whole = isinstance(value, int) or value.is_integer()
        return int(value) if whole and -(2**63) <= value < 2**63 else None

    def time(self, value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = datetime.datetime.fromisoformat(value) if self.kind != "date" else (
                    datetime.date.fromisoformat(value))  # fmt: skip
            except ValueError:
                raise self.mismatch(value) from None
        if isinstance(value, datetime.datetime):
            fits = self.kind == ("timestamp" if value.tzinfo is None else "timestamp UTC")
        else:
            fits = self.kind == "date" and isinstance(value, datetime.date)
        if not fits:
            raise self.mismatch(value)
        return value

    def json(self, value: Any) -> str:
        try:
            return as_json(value)
        except (TypeError, ValueError, RecursionError):
            raise self.mismatch(value) from None

    def mismatch(self, value: Any) -> DataError:
        return refused(f"field {self.name!r} holds values of kind {self.kind}, got {value!r}.")


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
