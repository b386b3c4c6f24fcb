"""Properties of every split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multibit import Split
from multibit.errors import ConfigError

SETTINGS = settings(max_examples=50, deadline=None)


@st.composite
def sizes(draw):
    items = draw(st.integers(3, 80))
    query = draw(st.integers(1, items - 2))
    train = draw(st.integers(2, items - query))
    return items, query, train, draw(st.integers(0, items - query - train))


@SETTINGS
@given(sizes(), st.integers(0, 2**32 - 1))
def test_queries_and_database_are_all_items_once(size, seed):
    items, query, train, validation = size
    split = Split.draw(items, query=query, train=train, validation=validation, seed=seed)
    assert sorted([*split.query, *split.database]) == list(range(items))


@SETTINGS
@given(sizes(), st.integers(0, 2**32 - 1))
def test_train_validation_and_unseen_are_the_database_once(size, seed):
    items, query, train, validation = size
    split = Split.draw(items, query=query, train=train, validation=validation, seed=seed)
    assert (len(split.query), len(split.train), len(split.validation)) == (query, train, validation)
    assert [*split.train, *split.validation, *split.unseen] == split.database.tolist()


@SETTINGS
@given(sizes(), st.integers(0, 2**32 - 1))
def test_the_queries_do_not_depend_on_how_the_rest_is_used(size, seed):
    items, query, train, validation = size
    split = Split.draw(items, query=query, train=train, validation=validation, seed=seed)
    other = Split.draw(items, query=query, train=2, validation=0, seed=seed)
    assert np.array_equal(split.query, other.query) and np.array_equal(split.database, other.database)


@SETTINGS
@given(st.integers(5, 3000))
def test_the_usual_split_can_always_be_drawn_and_has_unseen_items(items):
    split = Split.usual(items)
    assert len(split.query) >= 1 and len(split.train) >= 2 and len(split.unseen) >= 1


@SETTINGS
@given(*[st.lists(st.integers(0, 12), max_size=6) for _ in range(4)])
def test_a_split_is_accepted_exactly_when_no_row_leaks(train, validation, query, database):
    roles = (train, validation, query, database)
    once = all(len(set(rows)) == len(rows) for rows in roles)
    apart = not (
        set(train) & set(validation) or set(query) & set(train) or set(query) & set(validation)
        or set(query) & set(database)
    )  # fmt: skip
    if once and apart:
        assert Split(*roles, seed=0).query.tolist() == query
    else:
        with pytest.raises(ConfigError) as caught:
            Split(*roles, seed=0)
        assert caught.value.field == "split"
