"""Checks of data sets whose faults are known."""

import json

import numpy as np
import pytest
from PIL import Image

from multibit import FeatureStore, PairedDataset, Split
from multibit.data.checking import MAX_DISTANCE, check_dataset, difference_hash
from multibit.data.split_files import choose_roles, read_groups
from multibit.features.faults import feature_faults
from multibit.features.recipe import EncoderRecipe, Recipe
from multibit.relation import LabelGraph


def noise(seed, side=64):
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    return small.resize((side, side), Image.Resampling.BICUBIC)


def rows(table):
    """Cells of each row by its first one; numbers as their values."""
    return {row[0]: tuple(getattr(cell, "value", cell) for cell in row[1:]) for row in table.rows}


@pytest.fixture
def faulty(tmp_path):
    """Items 0 and 1: equal files; 2: that image smaller, as JPEG; 3 truncated; 4 missing; 5 without an image."""
    noise(1).save(tmp_path / "0.png")
    (tmp_path / "1.png").write_bytes((tmp_path / "0.png").read_bytes())
    noise(1).resize((48, 48)).save(tmp_path / "2.jpg", quality=85)
    (tmp_path / "3.png").write_bytes((tmp_path / "0.png").read_bytes()[:200])
    noise(6).save(tmp_path / "6.png")
    names = ["0.png", "1.png", "2.jpg", "3.png", "4.png", None, "6.png"]
    labels = [["a", "b"], ["a", "b"], ["a"], ["a"], ["a", "c"], ["a"], []]
    texts = [["x"], ["x"], [" "], [], ["x", ""], ["x"], ["x"]]
    images = [name and tmp_path / name for name in names]
    items = zip([f"i{row}" for row in range(7)], images, texts, labels, strict=True)
    return PairedDataset.of_items(items, ["a", "b", "c", "d"])


def test_every_fault_is_counted_with_the_first_item(faulty):
    found = {what: cells[:2] for what, cells in rows(check_dataset(faulty).problems).items()}
    assert found == {
        "unreadable images": (2, "i3"),
        "items without an image": (1, "i5"),
        "items without a text": (2, "i2"),
        "items without a label": (1, "i6"),
        "identical images": (2, "i0"),
        "near-duplicate images": (3, "i0"),
        "labels of no item": (1, "d"),
        "labels of one item": (1, "c"),
    }


def test_unreadable_images_come_with_their_reason(faulty):
    reasons = dict(check_dataset(faulty).unreadable)
    assert list(reasons) == ["i3", "i4"] and "3.png" in reasons["i3"] and "4.png" in reasons["i4"]


def test_facts_and_labels_are_those_of_the_data(faulty):
    found = check_dataset(faulty)
    facts = {name: cells[0] for name, cells in rows(found.facts).items()}
    assert (facts["items"], facts["images"], facts["texts"], facts["labels"]) == (7, 6, 8, 4)
    weights = LabelGraph.from_labels(faulty.labels).weights
    pairs = [weights[i, j] > 0 for i in range(4) for j in range(i)]
    assert facts["label graph density"] == sum(pairs) / 6 and facts["labels per item"] == 9 / 7
    assert facts["fingerprint"] == faulty.fingerprint()
    assert [tuple(map(str, row[:3])) for row in found.labels.rows] == [
        ("a", "6", "85.71"), ("b", "2", "28.57"), ("c", "1", "14.29"), ("d", "0", "0.00"),
    ]  # fmt: skip


def test_counts_are_numbers_that_tables_align(faulty):
    found = check_dataset(faulty, {"query": np.array([0]), "train": np.array([1])})
    assert found.problems.numeric == [False, True, False, False]
    assert found.labels.numeric == [False, True, True, True]
    assert found.roles.numeric == [False, True, True, True, True]


def test_copies_between_the_roles_are_counted(faulty):
    roles = {"train": np.array([1, 3]), "query": np.array([0, 4]), "database": np.array([1, 2, 3, 4])}
    found = rows(check_dataset(faulty, roles).roles)
    assert found == {
        "train": (2, 0, 0, 1),
        "query": (2, 0, "", ""),
        "database": (4, 0, 1, 2),
    }


def test_groups_of_the_check_keep_copies_in_one_role(faulty, tmp_path):
    check_dataset(faulty).write_groups(tmp_path / "groups.csv")
    groups = read_groups(tmp_path / "groups.csv", faulty.ids)
    assert groups[0] == groups[1] == groups[2] and len(set(groups)) == 5
    for seed in range(5):
        split = Split.draw(7, query=1, train=2, validation=0, seed=seed, groups=groups)
        assert len({0, 1, 2} & set(split.query.tolist())) in (0, 3)


def test_missing_images_and_texts_of_ready_features_are_no_problem():
    data = PairedDataset(("a", "b"), (None, None), (("",), ("",)), [[1], [1]], ("x",))
    assert rows(check_dataset(data).problems).keys() == {"labels of every item", "isolated labels"}


def test_data_without_labels_are_checked():
    data = PairedDataset(("a", "b"), (None, None), (("x",), ("y",)), np.zeros((2, 0)), ())
    found = check_dataset(data)
    assert rows(found.problems)["items without a label"][0] == 2 and not found.labels.rows


def test_the_hash_of_an_image_survives_scaling_and_separates_images():
    hashes = np.array([difference_hash(noise(seed)) for seed in range(30)])
    scaled = np.array([difference_hash(noise(seed).resize((48, 48))) for seed in range(30)])
    distances = (hashes[:, None] != scaled[None]).sum(axis=2)
    assert np.diag(distances).max() <= MAX_DISTANCE < distances[~np.eye(30, dtype=bool)].min()


def test_images_without_detail_are_only_compared_byte_by_byte(tmp_path):
    for name, color in (("a", "red"), ("b", "blue"), ("c", "red")):
        Image.new("RGB", (20, 20), color).save(tmp_path / f"{name}.png")
    data = PairedDataset.of_items((name, tmp_path / f"{name}.png", ["x"], ["l"]) for name in "abc")
    assert check_dataset(data).groups == (("a", "c"),)


def test_an_overlap_in_index_files_is_shown_instead_of_refused(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"train": [0, 1], "query": [1]}))
    roles = choose_roles(["a", "b"], str(tmp_path / "x.json"))
    data = PairedDataset(("a", "b"), (None, None), (("x",), ("y",)), [[1], [1]], ("l",))
    assert rows(check_dataset(data, roles).roles)["train"] == (2, 0, 1, 0)
    assert choose_roles(["a", "b"]) == {}


def test_real_photographs_have_no_copies_but_those_made_of_them(shared_data, tmp_path):
    paths = sorted((shared_data / "coco/photos").glob("*.jpg"))
    data = PairedDataset.of_items((path.stem, path, ["x"], ["l"]) for path in paths)
    found = check_dataset(data)
    assert len(data) == 213 and not found.unreadable and not found.groups
    small = tmp_path / "small.jpg"
    with Image.open(paths[5]) as photo:
        photo.resize((photo.width // 2, photo.height // 2)).save(small, quality=75)
    twice = PairedDataset.of_items((path.stem, path, ["x"], ["l"]) for path in [*paths[:20], small])
    assert check_dataset(twice).groups == ((paths[5].stem, "small"),)


def test_faults_of_features_are_counted_by_item():
    texts = (("x", "y"), ("x",), ("x",), ("x",), ("x",))
    data = PairedDataset(tuple("abcde"), (None,) * 5, texts, np.eye(5, dtype=np.uint8), tuple("pqrst"))
    image = np.array([[1, 2], [1e-50, 0], [1e300, 1], [0, 0], [np.inf, 1e300]])  # beyond float32 on both sides
    text = np.array([[1, 2], [np.nan, np.inf], [0, 0], [1e-20, 1e19], [1, 1], [1, 1]], np.float32)
    recipe = Recipe(EncoderRecipe("x", "", 2, "x"), EncoderRecipe("x", "", 2, "x"))
    store = FeatureStore(data, image, text, np.array([0, 2, 3, 4, 5, 6]), recipe)
    found = rows(check_dataset(data, faults=feature_faults(store)).problems)
    assert {what: cells[:2] for what, cells in found.items() if "features" in what} == {
        "image features: non-finite": (1, "e"),
        "image features: not representable in float32": (2, "b"),
        "image features: all zero": (1, "d"),
        "text features: non-finite": (1, "a"),
        "text features: all zero": (1, "b"),
    }
    assert not any("features" in what for what in rows(check_dataset(data).problems))


def test_many_tags_are_checked_without_a_dense_matrix():
    items = ((str(row), None, ["x"], [f"tag {row % 4_000}", f"tag {row * 7 % 4_000}"]) for row in range(4_000))
    data = PairedDataset.of_items(items)
    found = check_dataset(data, {"query": np.arange(10), "database": np.arange(10, 4_000)})
    assert rows(found.facts)["labels"] == (4_000,) and found.labels.rows[0][0] == "tag 1"
    assert "labels" not in vars(data)
