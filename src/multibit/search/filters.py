"""Filters: conditions on metadata, in the grammar of MongoDB, evaluated on whole columns.

A filter is a mapping, or its JSON text. Every entry must hold:

* `{"year": 2001}`: equal. A list field holds a string if one of its values is equal. `None`: null or missing.
* `{"year": {"$gte": 2001, "$lt": 2010}}`: `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`, `$in`, `$nin` (of some values),
  `$all` (a list field holds all of these), `$exists` (true or false), `$not` (of conditions on the same field).
* `{"$and": [...]}`, `{"$or": [...]}`, `{"$not": {...}}`: of filters.

Null values are never equal to a value, smaller or larger, so `$ne`, `$nin` and `$not` find items without the field.
`multibit.search.conditions` parses filters.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute as pc
from numpy.typing import NDArray

from multibit.errors import DataError
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
    Where,
    as_mapping,
    parse,
    refused,
    require_field,
)
from multibit.search.kinds import TYPES, Kinds
from multibit.search.metadata import Metadata

Mask = NDArray[np.bool_]
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "$gt": pc.greater,
    "$gte": pc.greater_equal,
    "$lt": pc.less,
    "$lte": pc.less_equal,
}
SPARSE = 0.005  # share of passing values of lists, below which it is faster to find the list of each
_TYPED = re.compile(r"(?P<negated>not\s+)?(?P<field>[^=<>!]+?)\s*(?P<sign>>=|<=|!=|=|>|<)\s*(?P<value>.*)", re.DOTALL)
_SIGNS = {">=": "$gte", "<=": "$lte", "!=": "$ne", "=": "$eq", ">": "$gt", "<": "$lt"}


class Filter(NamedTuple):
    """A filter that fits the fields of an index.

    Attributes:
        tree: its conditions. key: text that equal filters share.
    """

    tree: Condition
    key: str

    @classmethod
    def parse(cls, where: Where, kinds: Kinds) -> Filter:
        """Check a filter.

        Args:
            where: a mapping or JSON text, see the module. kinds: field -> kind, of the index.

        Raises:
            DataError: invalid JSON, an unknown field or operator, or a value of another kind than the field.
        """
        given = as_mapping(where)
        return cls(parse(given, kinds), json.dumps(_described(given), sort_keys=True))

    def mask(self, metadata: Metadata, kinds: Kinds) -> Mask:
        """(N,) bool, the items that the filter passes."""
        return _Columns(metadata, kinds).mask(self.tree)


def passing(where: Where, metadata: Metadata, kinds: Kinds) -> Mask:
    """(N,) bool, the items that a filter passes.

    Args:
        where: a mapping, see the module. metadata: of N items. kinds: of all fields of the index.

    Raises:
        DataError: an unknown field or operator, or a value of another kind than the field.

    Example:
        >>> from multibit.search.columns import IdColumn
        >>> data = Metadata.of([{"tags": ["a"], "n": 1}, {"tags": ["a", "b"]}, {"n": 5}], IdColumn(range(3)))
        >>> passing({"tags": "a"}, data, data.kinds), passing({"n": {"$gt": 0}, "tags": None}, data, data.kinds)
        (array([ True,  True, False]), array([False, False,  True]))
    """
    return _Columns(metadata, kinds).mask(parse(where, kinds))


def read_typed(typed: Sequence[str], occurs: Callable[[dict[str, Any]], bool], kinds: Kinds) -> dict[str, Any]:
    """Conditions as typed on a command line -> a filter; all must hold.

    A value gets the kind of its field. Text is taken as it is, in any of its Unicode forms (é as one code point or as
    two), or without its quotation marks where only that is found.

    Args:
        typed: such as "labels=dog", "year>=2010", "license!=nc" or "not license=nc".
        occurs: whether a filter passes any item; a value that no item has is refused, because it is almost certainly a
            typo.
        kinds: of the fields.

    Raises:
        DataError: another form, an unknown field, a value of another kind, or one that no item has.
    """
    conditions = [_read(text, occurs, kinds) for text in typed]
    return conditions[0] if len(conditions) == 1 else {"$and": conditions}


def _read(text: str, occurs: Callable[[dict[str, Any]], bool], kinds: Kinds) -> dict[str, Any]:
    match = _TYPED.fullmatch(text.strip())
    if match is None:
        raise refused(f"need FIELD=VALUE, got {text!r}.", "The signs are =, !=, <, <=, > and >=; `not` negates.")
    name, sign, value = match["field"].strip(), _SIGNS[match["sign"]], match["value"].strip()
    require_field(name, kinds)
    forms = dict.fromkeys([value, *(unicodedata.normalize(form, value) for form in ("NFC", "NFD"))])
    readings = [reading for reading in (*forms, *_from_json(value)) if _fits(name, sign, reading, kinds)]
    if not readings:
        raise refused(f"field {name!r} holds values of kind {kinds[name]}, got {value!r}.")
    if sign in ("$eq", "$ne"):
        found = [each for each in readings if occurs({name: {"$eq": each}})]
        if not found:
            raise refused(f"no item has {name}={value}.", "Check the spelling; case matters.")
        same = [each for each in found if isinstance(each, str) and each in forms]
        if len(same) > 1:  # the same letters, in several Unicode forms
            readings, sign = [same], {"$eq": "$in", "$ne": "$nin"}[sign]
        else:
            readings = found
    condition = {name: {sign: readings[0]}}
    return {"$not": condition} if match["negated"] else condition


def _fits(name: str, sign: str, value: Any, kinds: Kinds) -> bool:
    try:
        parse({name: {sign: value}}, kinds)
    except DataError:
        return False
    return True


def _from_json(text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return []


class _Columns(NamedTuple):
    """The columns of N items, on which conditions are evaluated. A field that only other items have has no column."""

    metadata: Metadata
    kinds: Kinds

    def mask(self, condition: Condition) -> Mask:
        """(N,) bool, the items on which a condition holds."""
        match condition:
            case Every(parts):
                return self.every([self.mask(part) for part in parts])
            case Some(parts):
                return ~self.every([~self.mask(part) for part in parts])
            case Not(part):
                return ~self.mask(part)
            case Null(field):
                return self.null(field)
        if condition.field not in self.metadata.columns:
            return np.zeros(len(self.metadata), bool)
        return self.filled(condition)

    def every(self, masks: Sequence[Mask]) -> Mask:
        out = np.ones(len(self.metadata), bool)
        for mask in masks:
            out &= mask
        return out

    def null(self, field: str) -> Mask:
        column = self.metadata.columns.get(field)
        return np.ones(len(self.metadata), bool) if column is None else _mask(column.is_null())

    def filled(self, condition: OneOf | Compares | Holds | HoldsCompared | Equals) -> Mask:
        """As `mask`, where there is a column."""
        column = self.metadata.columns[condition.field]
        match condition:
            case OneOf(field, values):
                kind = TYPES[self.kinds[field]]
                if len(values) == 1:
                    return _mask(pc.equal(column, pyarrow.scalar(values[0], kind)))
                return _mask(pc.is_in(column, value_set=pyarrow.array(values, kind)))
            case Compares(field, sign, value):
                return _mask(COMPARE[sign](column, pyarrow.scalar(value, TYPES[self.kinds[field]])))
            case Holds(field, value):
                lists = self.metadata.list_column(field)
                return _any_in(lists.offsets, lists.codes == lists.names.index(value).as_py())
            case HoldsCompared(field, sign, value):
                lists = self.metadata.list_column(field)
                passing = _mask(COMPARE[sign](lists.names, pyarrow.scalar(value, pyarrow.large_string())))
                return _any_in(lists.offsets, passing[lists.codes] if len(passing) else np.zeros(0, bool))
            case Equals(field, texts):
                return self.equals(field, texts)

    def equals(self, field: str, texts: Sequence[str]) -> Mask:
        lists, out = self.metadata.list_column(field), np.zeros(len(self.metadata), bool)
        rows = np.flatnonzero((np.diff(lists.offsets) == len(texts)) & ~self.null(field))
        for at, text in enumerate(texts):
            rows = rows[lists.codes[lists.offsets[rows] + at] == lists.names.index(text).as_py()]
        out[rows] = True
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


def _described(value: Any) -> Any:
    """Nested plain values that differ where the filters do: 1, 1.0 and true are told apart."""
    if isinstance(value, Mapping):
        return {str(key): _described(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_described(each) for each in value]
    return [type(value).__name__, str(value)]
