"""Splits from files, and groups that keep one role."""

import json

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from multibit import Split
from multibit.data.split_files import choose_split, read_groups, read_roles
from multibit.errors import ConfigError, DataError

IDS = [f"im{i}" for i in range(10)]
ROLES = {"train": [4, 2, 9], "query": [0, 7], "database": [4, 2, 9, 1]}


def as_lists(roles):
    return {role: rows.tolist() for role, rows in roles.items()}


# Index files


def text_folder(folder, lines):
    folder.mkdir()
    for role, each in lines.items():
        (folder / f"{role}.txt").write_text("".join(f"{line}\n" for line in each))
    return folder


WRITERS = {
    "npz": lambda path: np.savez(path, **ROLES),
    "mat": lambda path: scipy.io.savemat(path, {role: np.array(rows)[None] for role, rows in ROLES.items()}),
    "json": lambda path: path.write_text(json.dumps(ROLES)),
    "names.json": lambda path: path.write_text(json.dumps({r: [IDS[i] for i in rows] for r, rows in ROLES.items()})),
    "ids": lambda path: text_folder(path, {role: [IDS[i] for i in rows] for role, rows in ROLES.items()}),
    "rows": lambda path: text_folder(path, ROLES),
    "files": lambda path: text_folder(
        path, {r: [f"a/b/{IDS[i]}.jpg 0 1 1" for i in rows] for r, rows in ROLES.items()}
    ),
    "split.safetensors": lambda path: Split.of_roles(10, {**ROLES, "validation": []}).save(path),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_index_file_is_read(tmp_path, kind):
    path = tmp_path / (kind if kind in ("ids", "rows", "files", "split.safetensors") else f"x.{kind}")
    WRITERS[kind](path)
    assert {role: rows for role, rows in as_lists(read_roles(path, IDS)).items() if rows} == ROLES


def test_the_split_of_another_run_is_read(tmp_path):
    split = Split.usual(10)
    split.save(tmp_path / "split.safetensors")
    found = choose_split(IDS, str(tmp_path))
    assert found.query.tolist() == split.query.tolist() and found.train.tolist() == split.train.tolist()


def test_the_split_of_another_run_keeps_its_seed_so_that_both_runs_are_comparable(tmp_path):
    split = Split.usual(10, seed=7)
    split.save(tmp_path / "split.safetensors")
    for place in (tmp_path, tmp_path / "split.safetensors"):
        assert choose_split(IDS, str(place)).fingerprint() == split.fingerprint()


def test_a_stored_split_of_more_items_is_refused(tmp_path):
    Split.usual(30).save(tmp_path / "split.safetensors")
    with pytest.raises(ConfigError) as caught:
        choose_split(IDS, str(tmp_path))
    assert (caught.value.file, caught.value.field) == (tmp_path, "split") and "0 to 9" in caught.value.problem


def test_other_names_of_the_roles_are_known(tmp_path):
    folder = text_folder(tmp_path / "d", {"test": ["im1"], "retrieval": ["im2"], "val": ["im3"], "train": ["im2"]})
    assert as_lists(read_roles(folder, IDS)) == {"train": [2], "validation": [3], "query": [1], "database": [2]}


def test_matlab_counts_from_one(tmp_path):
    scipy.io.savemat(tmp_path / "x.mat", {"train": np.arange(3.0, 11)[:, None], "query": np.array([[1.0, 2.0]])})
    assert as_lists(read_roles(tmp_path / "x.mat", IDS)) == {"train": list(range(2, 10)), "query": [0, 1]}


def test_an_id_that_is_a_number_is_an_id(tmp_path):
    folder = text_folder(tmp_path / "d", {"train": ["30", "10"], "query": ["20"]})
    assert as_lists(read_roles(folder, ["10", "20", "30"])) == {"train": [2, 0], "query": [1]}


def test_numbers_that_are_only_partly_ids_are_refused(tmp_path):
    folder = text_folder(tmp_path / "d", {"train": ["1", "2"], "query": ["0"]})  # rows, but the ids are 1, 2, 3
    with pytest.raises(DataError) as caught:
        read_roles(folder, ["1", "2", "3"])
    assert (
        caught.value.file == folder and caught.value.problem.startswith("2 lines") and "1 can" in caught.value.problem
    )


@pytest.mark.parametrize(
    ("name", "content", "field", "found"),
    [
        ("x.json", "{", "", "JSON"),
        ("x.json", "[1]", "", "need query and train, found nothing"),
        ("x.json", '{"a": []}', "", "found a"),
        ("x.json", '{"train": [0.5], "query": [1]}', "train", "float64"),
        ("x.json", '{"train": ["im77"]}', "train", "'im77'"),
        ("x.npz", "junk", "", ""),
        ("x.mat", "junk", "", "MATLAB"),
        ("x.json", None, "", "no such file"),
        ("x.csv", "", "", ".npz, .mat, .json"),
    ],
)
def test_invalid_index_files_are_refused_with_file_and_role(tmp_path, name, content, field, found):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as caught:
        read_roles(tmp_path / name, IDS)
    assert str(tmp_path / name) in str(caught.value)
    assert caught.value.field == field and found in caught.value.problem


# Splits of given roles


def test_validation_is_the_last_tenth_of_training_by_default(tmp_path):
    split = Split.of_roles(40, {"train": range(20, 0, -1), "query": [0, 30]})
    assert split.train.tolist() == list(range(20, 2, -1)) and split.validation.tolist() == [2, 1]
    assert split.database.tolist() == [*range(20, 0, -1), *range(21, 30), *range(31, 40)] and split.seed is None


def test_a_split_of_given_roles_is_read_as_it_was_saved(tmp_path):
    split = Split.of_roles(10, ROLES)
    split.save(tmp_path / "s.safetensors")
    assert Split.load(tmp_path / "s.safetensors").fingerprint() == split.fingerprint()


@pytest.mark.parametrize(
    ("roles", "found"),
    [
        ({"train": [1, 2]}, "no row in query; it has train"),
        ({"query": [1], "train": []}, "no row in train"),
        ({"query": [10], "train": [1]}, "query has row 10, the data has rows 0 to 9"),
        ({"query": [-1], "train": [1]}, "query has row -1"),
        ({"query": [1], "train": [1, 2]}, "1 row is both in train and in query, such as row 1"),
        ({"query": [1], "train": [2], "database": [1, 2]}, "both in query and in database"),
    ],
)
def test_roles_that_do_not_match_the_data_are_refused(roles, found):
    with pytest.raises(ConfigError) as caught:
        Split.of_roles(10, roles)
    assert (caught.value.file, caught.value.field) == (None, "split") and found in caught.value.problem


def test_roles_of_a_file_that_overlap_are_refused_with_the_file(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"train": [1, 2], "query": [1]}))
    with pytest.raises(ConfigError) as caught:
        choose_split(IDS, str(path))
    assert (caught.value.file, caught.value.field) == (path, "split")


# Choosing


def test_a_seed_of_the_field_draws_as_its_scripts_do():
    order = np.random.RandomState(1814).permutation(60)
    split = choose_split([str(i) for i in range(60)], "1814", sizes={"query": 10, "train": 20, "validation": 0})
    assert split.query.tolist() == order[:10].tolist() and split.database.tolist() == order[10:].tolist()
    assert split.train.tolist() == order[10:30].tolist() and split.seed == 1814


def test_the_split_of_the_features_is_used_unless_another_is_asked_for(tmp_path):
    path = tmp_path / "f.npz"
    np.savez(path, image=np.zeros(1), **ROLES)
    assert choose_split(IDS, source=path).query.tolist() == [0, 7]
    usual = Split.usual(10).query.tolist()
    assert choose_split(IDS, "42", source=path).query.tolist() == usual
    np.savez(path, image=np.zeros(1), train=np.zeros(3))
    assert choose_split(IDS, source=path).query.tolist() == usual


@pytest.mark.parametrize(
    ("split", "options", "option", "hint"),
    [
        ("x.npz", {"sizes": {"query": 1, "train": None, "validation": None}}, "split", "`query`"),
        ("x.npz", {"groups": "g.csv"}, "split", "`groups`"),
        (
            None,
            {"sizes": {"query": 1, "train": None, "validation": 0}},
            "train",
            "Add `train` to `query` and `validation`",
        ),
    ],
)
def test_options_that_exclude_each_other_are_refused(split, options, option, hint):
    with pytest.raises(ConfigError) as caught:
        choose_split(IDS, split, **options)
    assert caught.value.option == option and hint in caught.value.hint


# Groups


@st.composite
def grouped(draw):
    groups = draw(st.lists(st.integers(0, 12), min_size=8, max_size=40))
    return np.array(groups), draw(st.integers(0, 99))


@given(grouped())
def test_a_group_never_has_two_roles(case):
    groups, seed = case
    sizes = {"query": 2, "train": 3, "validation": 1}
    try:
        split = Split.draw(len(groups), **sizes, seed=seed, groups=groups)
    except ConfigError as error:
        assert error.option == "groups"
        return
    sides = [set(groups[rows]) for rows in (split.query, split.train, split.validation, split.unseen)]
    assert sum(map(len, sides)) == len(set(groups))
    assert sorted([*split.query, *split.database]) == list(range(len(groups)))
    assert len(split.query) >= 2 and len(split.train) >= 3


@given(st.integers(5, 60), st.integers(0, 2**32 - 1))
def test_groups_of_one_change_nothing(items, seed):
    names = [f"g{i * 7 % 61}" for i in range(items)]
    assert Split.usual(items, seed, names).fingerprint() == Split.usual(items, seed).fingerprint()


def test_groups_of_another_length_are_refused():
    with pytest.raises(ConfigError) as caught:
        Split.usual(10, 0, [1, 2, 3])
    assert caught.value.option == "groups" and "10 items" in caught.value.problem and "(3,)" in caught.value.problem


def test_groups_are_read_from_a_manifest(tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text("id,group\nim0,a\nim2,a\n")
    groups = read_groups(path, IDS)
    assert groups[0] == groups[2] and len(set(groups)) == 9
    split = choose_split(IDS, groups=path, sizes={"query": 3, "train": 3, "validation": 1})
    assert (0 in split.query) == (2 in split.query)
    path.write_text("id,cluster\nim0,a\n")
    with pytest.raises(DataError) as caught:
        read_groups(path, IDS)
    assert (caught.value.file, caught.value.row, caught.value.field) == (path, 2, "group")
    assert "id, cluster" in caught.value.problem


def test_groups_of_other_data_are_refused(tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text("id,group\nnobody,1\nno one,1\n")
    with pytest.raises(DataError) as caught:
        read_groups(path, IDS)
    assert caught.value.file == path and "2 ids" in caught.value.problem and "'im0'" in caught.value.problem
