"""Filters: conditions on metadata, in the grammar of MongoDB, evaluated on whole columns.

A filter is a mapping, or its JSON text. Every entry must hold:

* `{"year": 2001}`: equal. A list field holds a string if one of its values is equal. `None`: null or missing.
* `{"year": {"$gte": 2001, "$lt": 2010}}`: `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`, `$in`, `$nin` (of some values),
  `$all` (a list field holds all of these), `$exists` (true or false), `$not` (of conditions on the same field).
* `{"$and": [...]}`, `{"$or": [...]}`, `{"$not": {...}}`: of filters.

Null values are never equal to a value, smaller or larger, so `$ne`, `$nin` and `$not` find items without the field.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute as pc
from numpy.typing import NDArray

from multibit.errors import DataError
from multibit.search.metadata import TYPES, Kinds, Metadata, as_json

Mask = NDArray[np.bool_]
Where = Mapping[str, Any] | str
ORDERED: dict[str, Callable[[Any, Any], Any]] = {
    "$gt": pc.greater,
    "$gte": pc.greater_equal,
    "$lt": pc.less,
    "$lte": pc.less_equal,
}
OPERATORS = ("$eq", "$ne", *ORDERED, "$in", "$nin", "$all", "$exists", "$not")
LOGICAL = ("$and", "$or", "$not")
SPARSE = 0.005  # share of passing values of lists, below which it is faster to find the list of each
_TYPED = re.compile(r"(?P<negated>not\s+)?(?P<field>[^=<>!]+?)\s*(?P<sign>>=|<=|!=|=|>|<)\s*(?P<value>.*)", re.DOTALL)
_SIGNS = {">=": "$gte", "<=": "$lte", "!=": "$ne", "=": "$eq", ">": "$gt", "<": "$lt"}


class Filter(NamedTuple):
    """A filter that fits the fields of an index.

    Attributes:
        tree: nested conditions. key: text that equal filters share.
    """

    tree: Mapping[str, Any]
    key: str

    @classmethod
    def parse(cls, where: Where, kinds: Kinds) -> Filter:
        """Check a filter.

        Args:
            where: a mapping or JSON text, see the module. kinds: field -> kind, of the index.

        Raises:
            DataError: invalid JSON, an unknown field or operator, or a value of another kind than the field.
        """
        if isinstance(where, str):
            try:
                where = json.loads(where)
            except (ValueError, RecursionError) as error:
                raise _refused(f"not valid JSON ({error}).") from None
        if not isinstance(where, Mapping):
            raise _refused(f"need a mapping of fields to values, got {type(where).__name__}.")
        evaluate(where, Metadata(0, {}, {}), kinds)
        return cls(where, json.dumps(_described(where), sort_keys=True))

    def mask(self, metadata: Metadata, kinds: Kinds) -> Mask:
        """(N,) bool, the items that the filter passes."""
        return evaluate(self.tree, metadata, kinds)


def evaluate(where: Mapping[str, Any], metadata: Metadata, kinds: Kinds) -> Mask:
    """(N,) bool, the items that a filter passes.

    Args:
        where: a mapping, see the module. metadata: of N items. kinds: of all fields of the index.

    Raises:
        DataError: an unknown field or operator, or a value of another kind than the field.

    Example:
        >>> from multibit.search.columns import IdColumn
        >>> data = Metadata.of([{"tags": ["a"], "n": 1}, {"tags": ["a", "b"]}, {"n": 5}], IdColumn(range(3)))
        >>> evaluate({"tags": "a"}, data, data.kinds), evaluate({"n": {"$gt": 0}, "tags": None}, data, data.kinds)
        (array([ True,  True, False]), array([False, False,  True]))
    """
    out = np.ones(len(metadata), bool)
    for name, condition in where.items():
        if name in LOGICAL:
            out &= _combined(name, condition, metadata, kinds)
        elif isinstance(name, str) and name.startswith("$"):
            raise _refused(f"unknown operator {name}; choose from {', '.join(LOGICAL)}.")
        else:
            out &= _Field.of(name, metadata, kinds).holds(condition)
    return out


def read_typed(typed: Sequence[str], metadata: Sequence[Metadata], kinds: Kinds) -> dict[str, Any]:
    """Conditions as typed on a command line -> a filter; all must hold.

    A value gets the kind of its field. Text is taken as it is, in any of its Unicode forms (é as one code point or as
    two), or without its quotation marks where only that is found.

    Args:
        typed: such as "labels=dog", "year>=2010", "license!=nc" or "not license=nc".
        metadata: of all segments; a value that no item has is refused, because it is almost certainly a typo.
        kinds: of the fields.

    Raises:
        DataError: another form, an unknown field, a value of another kind, or one that no item has.
    """
    conditions = [_read(text, metadata, kinds) for text in typed]
    return conditions[0] if len(conditions) == 1 else {"$and": conditions}


def _read(text: str, metadata: Sequence[Metadata], kinds: Kinds) -> dict[str, Any]:
    match = _TYPED.fullmatch(text.strip())
    if match is None:
        raise _refused(f"need FIELD=VALUE, got {text!r}.", "The signs are =, !=, <, <=, > and >=; `not` negates.")
    name, sign, value = match["field"].strip(), _SIGNS[match["sign"]], match["value"].strip()
    _require_field(name, kinds)
    forms = dict.fromkeys([value, *(unicodedata.normalize(form, value) for form in ("NFC", "NFD"))])
    readings = [reading for reading in (*forms, *_from_json(value)) if _fits(name, sign, reading, kinds)]
    if not readings:
        raise _refused(f"field {name!r} holds values of kind {kinds[name]}, got {value!r}.")
    if sign in ("$eq", "$ne"):
        found = [each for each in readings if any(evaluate({name: {"$eq": each}}, m, kinds).any() for m in metadata)]
        if not found:
            raise _refused(f"no item has {name}={value}.", "Check the spelling; case matters.")
        same = [each for each in found if isinstance(each, str) and each in forms]
        if len(same) > 1:  # the same letters, in several Unicode forms
            readings, sign = [same], {"$eq": "$in", "$ne": "$nin"}[sign]
        else:
            readings = found
    condition = {name: {sign: readings[0]}}
    return {"$not": condition} if match["negated"] else condition


def _fits(name: str, sign: str, value: Any, kinds: Kinds) -> bool:
    try:
        evaluate({name: {sign: value}}, Metadata(0), kinds)
    except DataError:
        return False
    return True


def _from_json(text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return []


def _combined(name: str, condition: Any, metadata: Metadata, kinds: Kinds) -> Mask:
    if name == "$not":
        if not isinstance(condition, Mapping):
            raise _refused(f"$not needs a filter, got {condition!r}.")
        return ~evaluate(condition, metadata, kinds)
    if isinstance(condition, str | Mapping) or not isinstance(condition, Sequence):
        raise _refused(f"{name} needs a list of filters, got {condition!r}.")
    if not all(isinstance(each, Mapping) for each in condition):
        raise _refused(f"{name} needs a list of filters.")
    masks = [evaluate(each, metadata, kinds) for each in condition]
    if name == "$and":
        return _every(masks, len(metadata))
    return ~_every([~mask for mask in masks], len(metadata))


class _Field(NamedTuple):
    """A field of some items; no column where all of their values are null."""

    name: str
    kind: str
    metadata: Metadata

    @classmethod
    def of(cls, name: str, metadata: Metadata, kinds: Kinds) -> _Field:
        _require_field(name, kinds)
        return cls(name, kinds[name], metadata)

    @property
    def column(self) -> Any:
        return self.metadata.columns.get(self.name)

    def holds(self, condition: Any) -> Mask:
        if not (isinstance(condition, Mapping) and any(str(key).startswith("$") for key in condition)):
            return self.equal(condition)
        out = np.ones(len(self.metadata), bool)
        for operator, value in condition.items():
            if operator not in OPERATORS:
                raise _refused(f"unknown operator {operator} of {self.name!r}; choose from {', '.join(OPERATORS)}.")
            out &= self.apply(operator, value)
        return out

    def apply(self, operator: str, value: Any) -> Mask:
        if operator in ORDERED:
            return self.ordered(operator, value)
        if operator == "$exists":
            if not isinstance(value, bool):
                raise _refused(f"$exists of {self.name!r} needs true or false, got {value!r}.")
            return ~self.null() if value else self.null()
        if operator == "$not":
            return ~self.holds(value)
        if operator in ("$eq", "$ne"):
            return ~self.equal(value) if operator == "$ne" else self.equal(value)
        if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
            raise _refused(f"{operator} of {self.name!r} needs a list of values, got {value!r}.")
        if operator == "$all":
            return _every(list(map(self.equal, value)), len(self.metadata)) & bool(value)
        return ~self.any_of(value) if operator == "$nin" else self.any_of(value)

    def null(self) -> Mask:
        if self.column is None:
            return np.ones(len(self.metadata), bool)
        return _mask(self.column.is_null())

    def equal(self, value: Any) -> Mask:
        if value is None:
            return self.null()
        if self.kind == "list":
            return self.list_equal(value)
        return self.any_of([value])

    def any_of(self, values: Sequence[Any]) -> Mask:
        out = self.null() if any(value is None for value in values) else np.zeros(len(self.metadata), bool)
        given = [value for value in values if value is not None]
        if self.kind == "list":
            for value in given:
                out |= self.list_equal(value)
            return out
        wanted = [each for each in map(self.exactly, given) if each is not None]
        if self.column is None or not wanted:
            return out
        if len(wanted) == 1:
            return out | _mask(pc.equal(self.column, pyarrow.scalar(wanted[0], TYPES[self.kind])))
        return out | _mask(pc.is_in(self.column, value_set=pyarrow.array(wanted, TYPES[self.kind])))

    def list_equal(self, value: Any) -> Mask:
        """Whether a list holds a string, or is a whole list."""
        out = np.zeros(len(self.metadata), bool)
        if isinstance(value, str):
            if self.column is not None:
                lists = self.metadata.list_column(self.name)
                out = _any_in(lists.offsets, lists.codes == lists.names.index(value).as_py())
            return out
        whole = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
        if not whole:
            raise self.mismatch(value)
        if self.column is None:
            return out
        lists = self.metadata.list_column(self.name)
        rows = np.flatnonzero((np.diff(lists.offsets) == len(value)) & ~self.null())
        for at, each in enumerate(value):
            rows = rows[lists.codes[lists.offsets[rows] + at] == lists.names.index(each).as_py()]
        out[rows] = True
        return out

    def ordered(self, operator: str, value: Any) -> Mask:
        nothing = np.zeros(len(self.metadata), bool)
        if self.kind in ("boolean", "json"):
            raise _refused(f"values of kind {self.kind} have no order: {operator} of {self.name!r}.")
        if self.kind == "list":
            if not isinstance(value, str):
                raise self.mismatch(value)
            if self.column is None:
                return nothing
            lists = self.metadata.list_column(self.name)
            passing = _mask(ORDERED[operator](lists.names, pyarrow.scalar(value, pyarrow.large_string())))
            return _any_in(lists.offsets, passing[lists.codes] if len(passing) else np.zeros(0, bool))
        found = self.bound(operator, value)
        if self.column is None or isinstance(found, bool):
            return ~self.null() if found is True else nothing
        operator, value = found
        return _mask(ORDERED[operator](self.column, pyarrow.scalar(value, TYPES[self.kind])))

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
        return _refused(f"field {self.name!r} holds values of kind {self.kind}, got {value!r}.")


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _every(masks: Sequence[Mask], count: int) -> Mask:
    out = np.ones(count, bool)
    for mask in masks:
        out &= mask
    return out


def _any_in(offsets: NDArray[np.int64], passing: Mask) -> Mask:
    """Whether any value of each list passes."""
    found = np.zeros(len(offsets) - 1, bool)
    if np.count_nonzero(passing) < SPARSE * len(passing):
        found[np.searchsorted(offsets, np.flatnonzero(passing), side="right") - 1] = True
        return found
    counts = np.zeros(len(passing) + 1, np.int32 if len(passing) < 2**31 else np.int64)
    np.cumsum(passing, out=counts[1:])
    counts = counts[offsets]
    np.greater(counts[1:], counts[:-1], out=found)
    return found


def _mask(array: Any) -> Mask:
    """An Arrow array of booleans, where null is false."""
    filled = array.fill_null(False) if array.null_count else array
    return np.asarray(filled.to_numpy(zero_copy_only=False), bool)


def _require_field(name: Any, kinds: Kinds) -> None:
    if name not in kinds:
        known = f"choose from {', '.join(sorted(kinds))}" if kinds else "the items have no fields"
        raise _refused(f"no item has a field {name!r}; {known}.")


def _described(value: Any) -> Any:
    """Nested plain values that differ where the filters do: 1, 1.0 and true are told apart."""
    if isinstance(value, Mapping):
        return {str(key): _described(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_described(each) for each in value]
    return [type(value).__name__, str(value)]


def _refused(problem: str, hint: str = "") -> DataError:
    return DataError(problem, option="where", hint=hint)
