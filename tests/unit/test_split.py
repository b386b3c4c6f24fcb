"""Train, validation, query and database rows: the paper's rule, and no leaks."""

from __future__ import annotations

import numpy as np
import pytest

from multibit import Split
from multibit.errors import ConfigError, FormatError
from multibit.files import write_arrays

ROLES = ("train", "validation", "query", "database")


def paper_rule(items: int, query: int, train: int, validation: int, seed: int = 42) -> dict[str, list[int]]:
    """The paper's split, one row at a time."""
    roles = {role: [] for role in ROLES}
    for place, row in enumerate(np.random.RandomState(seed).permutation(items).tolist()):
        if place < query:
            roles["query"].append(row)
            continue
        roles["database"].append(row)
        if place < query + train:
            roles["train"].append(row)
        elif place < query + train + validation:
            roles["validation"].append(row)
    return roles


def rows(split: Split) -> dict[str, list[int]]:
    return {role: getattr(split, role).tolist() for role in ROLES}


@pytest.mark.parametrize("seed", [0, 1, 42])
@pytest.mark.parametrize("sizes", [(10, 3, 4, 1), (10, 1, 2, 0), (10, 3, 5, 2), (500, 100, 225, 25)])
def test_a_split_is_the_papers_rule(sizes, seed):
    items, query, train, validation = sizes
    split = Split.draw(items, query=query, train=train, validation=validation, seed=seed)
    assert rows(split) == paper_rule(*sizes, seed)
    assert split.seed == seed


def test_the_seed_is_the_papers_unless_asked_otherwise():
    assert rows(Split.draw(50, query=10, train=20, validation=5)) == paper_rule(50, 10, 20, 5, 42)


def test_the_first_queries_of_mirflickr_are_those_of_every_earlier_run():
    assert Split.usual(20_015).query[:5].tolist() == [19593, 5849, 15197, 3458, 9646]


@pytest.mark.parametrize(
    ("items", "query", "train", "validation"),
    [
        (20_015, 5000, 9000, 1000),
        (122_218, 5000, 9000, 1000),
        (195_834, 5000, 9000, 1000),
        (19_999, 5000, 9000, 1000),
        (19_627, 5000, 9000, 1000),
        (15_001, 5000, 9000, 1000),
        (15_000, 3750, 6750, 750),
        (4769, 1192, 2146, 238),
        (100, 25, 45, 5),
        (5, 1, 2, 0),
    ],
)
def test_the_usual_split_has_the_papers_sizes_or_its_shares(items, query, train, validation):
    split = Split.usual(items)
    assert [len(split.query), len(split.train), len(split.validation)] == [query, train, validation]
    assert len(split.database) == items - query
    assert rows(split) == paper_rule(items, query, train, validation)


@pytest.mark.parametrize("items", [0, 1, 4])
def test_too_few_items_for_the_usual_split_are_refused(items):
    with pytest.raises(ConfigError) as caught:
        Split.usual(items)
    assert caught.value.field == "split" and f"{items} item" in caught.value.problem and "5" in caught.value.problem


def test_unseen_is_the_database_without_train_and_validation():
    split = Split.draw(40, query=10, train=12, validation=3)
    seen = {*split.train.tolist(), *split.validation.tolist()}
    assert split.unseen.tolist() == [row for row in split.database.tolist() if row not in seen]
    assert len(split.unseen) == 15


@pytest.mark.parametrize(
    ("sizes", "option", "found"),
    [
        ((10, 0, 4, 1), "query", "1 rows, got 0"),
        ((10, 1, 1, 1), "train", "2 rows, got 1"),
        ((10, 1, 2, -1), "validation", "0 rows, got -1"),
        ((10, 4, 5, 2), "", "= 11 rows, but the data has 10"),
    ],
)
def test_sizes_that_cannot_be_drawn_are_refused(sizes, option, found):
    items, query, train, validation = sizes
    with pytest.raises(ConfigError) as caught:
        Split.draw(items, query=query, train=train, validation=validation)
    assert caught.value.option == option and found in caught.value.problem
    assert option or "`query`" in caught.value.hint


@pytest.mark.parametrize(
    ("first", "second"),
    [("train", "validation"), ("train", "query"), ("validation", "query"), ("query", "database")],
)
def test_a_row_in_two_roles_is_refused_with_the_roles(first, second):
    roles = {"train": [1, 2], "validation": [3, 4], "query": [5, 6], "database": [1, 2, 3, 4]}
    roles[second] = [*roles[second][:-1], roles[first][-1]]
    with pytest.raises(ConfigError) as caught:
        Split(**roles, seed=0)
    named = f"1 row is both in {first} and in {second}", f"row {roles[first][-1]}"
    assert caught.value.field == "split" and all(each in caught.value.problem for each in named)


@pytest.mark.parametrize("role", ROLES)
def test_a_row_twice_in_a_role_is_refused(role):
    roles = {"train": [1, 2], "validation": [3, 4], "query": [5, 6], "database": [1, 2, 3, 4]}
    roles[role] = [*roles[role], roles[role][0]]
    with pytest.raises(ConfigError) as caught:
        Split(**roles, seed=0)
    assert caught.value.field == "split" and role in caught.value.problem


def test_training_rows_may_be_searched():
    split = Split([1, 2], [3], [4], [1, 2, 3, 5], seed=0)
    assert split.unseen.tolist() == [5]


def test_a_negative_row_is_refused_because_it_hides_a_leak():
    with pytest.raises(ConfigError) as caught:
        Split([-1, 1], [], [9], [-1, 1], seed=0)
    assert caught.value.field == "split" and "-1" in caught.value.problem


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_numpy_does_not_accept_is_refused(seed):
    with pytest.raises(ConfigError) as caught:
        Split.draw(10, query=1, train=2, validation=1, seed=seed)
    assert caught.value.option == "seed" and str(seed) in caught.value.problem


@pytest.mark.parametrize("validation", [0, 3])
def test_a_split_is_read_as_it_was_saved(tmp_path, validation):
    split = Split.draw(30, query=5, train=10, validation=validation, seed=7)
    split.save(tmp_path / "a.split")
    loaded = Split.load(tmp_path / "a.split")
    assert rows(loaded) == rows(split)
    assert loaded.seed == 7
    assert all(getattr(loaded, role).dtype == np.int64 for role in ROLES)


def test_a_saved_split_that_leaks_is_refused_when_read(tmp_path):
    leaking = {"train": [1, 2], "validation": [3], "query": [2], "database": [1, 3]}
    arrays = {role: np.array(rows) for role, rows in leaking.items()}
    write_arrays(tmp_path / "a.split", arrays, {"seed": 0}, kind="split", version=1)
    with pytest.raises(ConfigError) as caught:
        Split.load(tmp_path / "a.split")
    assert (caught.value.file, caught.value.field) == (tmp_path / "a.split", "split")
    assert "both in train and in query" in caught.value.problem


def test_a_truncated_split_is_refused(tmp_path):
    path = tmp_path / "a.split"
    Split.usual(20).save(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError) as caught:
        Split.load(path)
    assert str(path) in str(caught.value)
