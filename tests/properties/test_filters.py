"""Filters select what a plain Python evaluation of the same conditions selects."""

from __future__ import annotations

import datetime
import json
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multibit import Codes, Index
from multibit.search.columns import IdColumn
from multibit.search.filters import passing
from multibit.search.metadata import Metadata

TEXTS = st.sampled_from(["", "a", "b", "日本", "👁", "a\x00", "Z"]) | st.text(max_size=2)
INTEGERS = st.sampled_from([0, 1, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]) | st.integers(-3, 3)
FLOATS = st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.0**53, 2.0**63, -1e300, 1e-300]) | st.floats(-3, 3)
DAYS = st.dates(datetime.date(2020, 1, 1), datetime.date(2020, 1, 4))
TIMES = st.datetimes(datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, 0, 0, 1))
LISTS = st.lists(TEXTS, max_size=3)
JSON = st.sampled_from([{}, {"a": 1}, {"a": [None, "b"], "b": 2.5}, [1], ["a", 1]])

VALUES = {"text": TEXTS, "n": INTEGERS, "f": FLOATS, "on": st.booleans(), "day": DAYS, "time": TIMES, "tags": LISTS}
ITEMS = st.lists(st.fixed_dictionaries({}, optional={**VALUES, "json": JSON}), max_size=12)
KINDS = dict(
    zip([*VALUES, "json"], ["string", "integer", "float", "boolean", "date", "timestamp", "list", "json"], strict=True)
)
ASKED = {
    **VALUES,
    "n": INTEGERS | FLOATS | st.just(2**70),
    "f": FLOATS | INTEGERS | st.sampled_from([2**1100, 2**60 + 1]),
}
ORDERED = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


def conditions(name):
    value = JSON if name == "json" else ASKED[name]
    equal = value | st.none() if name not in ("tags",) else LISTS | TEXTS | st.none()
    several = st.lists(equal, max_size=3)
    one = [
        st.fixed_dictionaries({"$eq": equal}),
        st.fixed_dictionaries({"$ne": equal}),
        st.fixed_dictionaries({"$in": several}),
        st.fixed_dictionaries({"$nin": several}),
        st.fixed_dictionaries({"$all": several}),
        st.fixed_dictionaries({"$exists": st.booleans()}),
    ]
    if name not in ("on", "json"):
        bound = TEXTS if name == "tags" else value
        one += [st.dictionaries(st.sampled_from(list(ORDERED)), bound, min_size=1, max_size=2)]
    single = st.one_of(one)
    return (single | equal | single.map(lambda inner: {"$not": inner})).map(lambda condition: {name: condition})


FIELD = st.sampled_from([*VALUES, "json"]).flatmap(conditions)
FILTERS = st.recursive(
    FIELD | st.just({}),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"$and": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"$or": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"$not": inner}),
        st.tuples(FIELD, FIELD).map(lambda pair: {**pair[0], **pair[1]}),
    ),
    max_leaves=4,
)


def passes(where, item):
    return all(holds(name, condition, item) for name, condition in where.items())


def holds(name, condition, item):
    if name == "$and":
        return all(passes(each, item) for each in condition)
    if name == "$or":
        return any(passes(each, item) for each in condition)
    if name == "$not":
        return not passes(condition, item)
    value = item.get(name)
    if isinstance(condition, dict) and any(key.startswith("$") for key in condition):
        return all(compare(name, sign, wanted, value) for sign, wanted in condition.items())
    return equal(condition, value)


def compare(name, sign, wanted, value):
    if sign in ORDERED:
        values = [] if value is None else value if name == "tags" else [value]
        return any(ORDERED[sign](each, wanted) for each in values)
    if sign == "$not":
        return not holds(name, wanted, {name: value})
    if sign == "$exists":
        return (value is not None) == wanted
    if sign == "$all":
        return bool(wanted) and all(equal(each, value) for each in wanted)
    found = any(equal(each, value) for each in (wanted if sign in ("$in", "$nin") else [wanted]))
    return found == (sign in ("$eq", "$in"))


def equal(wanted, value):
    if isinstance(value, list) and isinstance(wanted, str):
        return wanted in value
    return value == wanted


@settings(max_examples=150, deadline=None)
@given(ITEMS, FILTERS)
def test_a_filter_selects_what_plain_python_selects(items, where):
    data = Metadata.of(items, IdColumn(range(len(items))))
    assert set(data.kinds.items()) <= set(KINDS.items())
    assert passing(where, data, KINDS).tolist() == [passes(where, item) for item in items]


@settings(max_examples=60, deadline=None)
@given(st.lists(ITEMS, min_size=1, max_size=3), FILTERS, st.sets(st.integers(0, 35)))
def test_a_search_finds_what_passes_in_any_segments(batches, where, gone):
    """Also after items were removed, after compaction, and when the filter is asked again."""
    index, items = Index(), []
    index.add(None, Codes.from_bits(np.zeros((1, 4))), [sample()])
    for batch in batches:
        index.add(None, Codes.from_bits(np.zeros((len(batch), 4))), batch)
        items += batch
    gone = {row for row in gone if row < len(items)} | {-1}
    index.remove([row + 1 for row in gone])
    expected = [row + 1 for row, item in enumerate(items) if row not in gone and passes(where, item)]
    for _ in range(2):
        for _ in range(2):
            if index.codes is not None:
                assert index.search(Codes.from_bits(np.zeros((1, 4))), 99, where=where).ids == [expected]
        index.compact()


def sample():
    """An item with a value in each field."""
    day = datetime.date(2020, 1, 1)
    time = datetime.datetime(2020, 1, 1)
    return {"text": "", "n": 1, "f": 0.5, "on": True, "day": day, "time": time, "tags": ["a"], "json": {"a": 1}}


@settings(max_examples=50, deadline=None)
@given(ITEMS, FILTERS)
def test_a_filter_may_be_json(items, where):
    data = Metadata.of(items, IdColumn(range(len(items))))
    as_text = json.loads(json.dumps(where, default=lambda value: value.isoformat()))
    assert passing(as_text, data, KINDS).tolist() == passing(where, data, KINDS).tolist()


@pytest.mark.parametrize("rare", [0, 1, 7, 3000])
def test_a_label_is_found_wherever_it_lies_however_rare(rare):
    rng = np.random.default_rng(rare)
    items = [{"tags": [f"t{tag}" for tag in rng.integers(9, size=rng.integers(4))]} for _ in range(3000)]
    items[::50] = [{} for _ in items[::50]]
    for row in rng.choice(3000, rare, replace=False):
        items[row] = {"tags": [*items[row].get("tags", []), "rare", "rare", *items[row].get("tags", [])]}
    data = Metadata.of([*items, {"tags": ["rare"]}, {"tags": []}], IdColumn(range(3002)))
    wanted = ["rare" in item.get("tags", []) for item in items]
    assert passing({"tags": "rare"}, data, data.kinds).tolist() == [*wanted, True, False]
