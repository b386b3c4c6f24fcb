"""Near-duplicates against connected components by brute force, their Parquet file and their page."""

from __future__ import annotations

import base64
import io
import itertools
import sys
import tracemalloc
from dataclasses import replace
from unittest import mock

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from multibit import Codes, Index, find_duplicates, near_duplicates
from multibit.codes import duplicates as module
from multibit.codes.distance import within
from multibit.codes.duplicates import COMPARISONS, near_duplicates_among
from multibit.errors import DataError, MissingExtraError
from multibit.report import duplicates as pages
from multibit.report.duplicates import write_duplicates_page

SCRIPT = "<script>alert('&')</script>"


def slow_groups(bits, radius):
    """Groups of two or more rows, each ascending, in order of their first; and the distances (N, N)."""
    views = bits if bits.ndim == 3 else bits[:, None]
    distances = np.array([[(a[:, None] != b[None]).sum(axis=2).min() for b in views] for a in views])
    groups, seen = [], set()
    for row in range(len(views)):
        if row in seen:
            continue
        group, waiting = {row}, [row]
        while waiting:
            near = set(np.flatnonzero(distances[waiting.pop()] <= radius).tolist()) - group
            group |= near
            waiting += near
        seen |= group
        if len(group) > 1:
            groups.append(sorted(group))
    return groups, distances


def assert_groups(found, bits, radius):
    groups, distances = slow_groups(bits, radius)
    assert found.count == len(bits) and len(found) == len(groups)
    assert found.rows.tolist() == [row for group in groups for row in group]
    assert found.groups.tolist() == [number for number, group in enumerate(groups) for _ in group]
    assert found.sizes.tolist() == [len(group) for group in groups]
    assert found.distances.tolist() == [int(distances[group[0], row]) for group in groups for row in group]


def random_bits(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 2, shape, np.uint8)


def clustered_bits(items, length, flipped=0.05, seed=0):
    rng = np.random.default_rng(seed)
    centres = random_bits((max(items // 10, 1), length), seed + 1)
    return centres[rng.integers(len(centres), size=items)] ^ (rng.random((items, length)) < flipped).astype(np.uint8)


@pytest.mark.parametrize("comparison", [*COMPARISONS, None])
@pytest.mark.parametrize("length", [1, 7, 16, 17, 70, 128])
@pytest.mark.parametrize("make", [lambda items, length: random_bits((items, length)), clustered_bits])
def test_groups_are_the_connected_components(comparison, length, make):
    bits = make(60, length)
    for radius in sorted({0, 1, 4, length - 1, length, length + 3}):
        found = near_duplicates(Codes.from_bits(bits), radius, comparison=comparison)
        assert_groups(found, bits, radius)
        assert (found.radius, found.bits) == (radius, length)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_groups_follow_from_any_codes_prefix_views_and_threads(data):
    length, items, views = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40)), data.draw(st.integers(1, 3))
    bits = clustered_bits(
        items * views, length, data.draw(st.sampled_from([0, 0.03, 0.2])), data.draw(st.integers(0, 99))
    )
    bits = bits if views == 1 else bits.reshape(items, views, length)
    prefix, radius = data.draw(st.integers(1, length)), data.draw(st.integers(0, 8))
    options = {"threads": data.draw(st.integers(1, 4)), "comparison": data.draw(st.sampled_from([*COMPARISONS, None]))}
    assert_groups(near_duplicates(Codes.from_bits(bits), radius, prefix, **options), bits[..., :prefix], radius)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_groups_do_not_follow_from_pieces_sets_and_items_that_are_left_out(data):
    length, items, views = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40)), data.draw(st.integers(1, 3))
    bits = clustered_bits(items * views, length, 0.05, data.draw(st.integers(0, 99))).reshape(items, views, length)
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=items, max_size=items)))
    cuts = sorted(data.draw(st.lists(st.integers(0, items), max_size=4)))
    pieces = [
        Codes.from_bits(bits[first:last]) for first, last in itertools.pairwise([0, *cuts, items]) if first < last
    ]
    prefix, radius = data.draw(st.integers(1, length)), data.draw(st.integers(0, 8))
    comparison = data.draw(st.sampled_from([*COMPARISONS, None]))
    with mock.patch.multiple(module, SET=data.draw(st.sampled_from([1, 3, 1 << 21])), SAMPLE=5):
        found = near_duplicates_among(pieces, chosen, radius, prefix, comparison, data.draw(st.integers(1, 3)))
    found = replace(found, rows=np.searchsorted(np.flatnonzero(chosen), found.rows))
    assert_groups(found, bits[chosen, :, :prefix], radius)


def test_memory_is_that_of_a_set(monkeypatch):
    monkeypatch.setattr(module, "SET", 1 << 14)
    codes = Codes.from_bytes(np.random.default_rng(0).integers(0, 256, (1_000_000, 16), np.uint8))
    near_duplicates(codes.take(np.arange(40_000)), 2, threads=1)  # compiles
    tracemalloc.start()
    try:
        near_duplicates(codes, 2, threads=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(codes)


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("threads", [1, 3])
def test_buckets_that_need_many_blocks_chunks_and_rounds(comparison, threads, monkeypatch):
    monkeypatch.setattr(module, "SHARE", 100_000)
    bits = clustered_bits(3_500, 24, seed=3)
    codes = Codes.from_bits(bits)
    found = near_duplicates(codes, 2, comparison=comparison, threads=threads)
    near = within(codes, codes, 2)
    group = -1 - np.arange(len(bits))
    group[found.rows] = found.groups
    assert (np.repeat(group, np.diff(near.offsets)) == group[near.rows]).all()
    alone = np.diff(near.offsets) == 1
    assert (group[alone] < 0).all() and (group[~alone] >= 0).all()
    assert len(found) == len(np.unique(group[~alone]))


def test_no_pair_of_equal_codes_is_kept():
    count = 100_000
    found = near_duplicates(Codes.from_bits(np.tile(random_bits((1, 32)), (count, 1))), 3)
    assert found.sizes.tolist() == [count] and not found.distances.any()


def test_items_that_are_joined_through_others_can_be_farther_than_the_radius():
    bits = np.tri(9, 8, -1, dtype=np.uint8)  # each row differs from the next one in one bit
    found = near_duplicates(Codes.from_bits(bits), 1)
    assert found.sizes.tolist() == [9] and found.distances.tolist() == list(range(9))


@pytest.mark.parametrize("items", [0, 1])
@pytest.mark.parametrize("radius", [0, 2, 99])
def test_few_items_have_no_duplicates(items, radius):
    found = near_duplicates(Codes.from_bits(random_bits((items, 5))), radius)
    assert (len(found), found.count, found.rows.tolist(), found.sizes.tolist()) == (0, items, [], [])


@pytest.mark.parametrize(
    ("given", "option"),
    [((-1,), "radius"), ((1.5,), "radius"), ((True,), "radius"), ((1, 0), "bits"), ((1, 9), "bits")],
)
def test_a_bad_radius_or_length_is_refused(given, option):
    with pytest.raises(DataError) as caught:
        near_duplicates(Codes.from_bits(random_bits((3, 8))), *given)
    assert caught.value.option == option


def test_the_faster_comparison_is_chosen(monkeypatch):
    chosen = []
    real = module._one_bucket
    monkeypatch.setattr(module, "_one_bucket", lambda count: chosen.append(count) or real(count))
    codes = Codes.from_bits(random_bits((20_000, 128)))
    assert len(near_duplicates(codes, 3)) == 0 and chosen == []
    assert len(near_duplicates(codes.take(np.arange(500)), 3)) == 0 and chosen == [500]


# Of an index


@pytest.fixture
def index():
    index = Index("a model", modality="image")
    bits = np.array([[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1], [1, 0, 1, 0], [1, 1, 1, 0]])
    rows = [{"text": f"text {row}", "labels": ["x"], "year": row} for row in range(4)]
    index.add(["a", "b", SCRIPT, "d"], Codes.from_bits(bits[:4]), rows)
    index.remove(["d"])
    index.add(["e"], Codes.from_bits(bits[4:]), [{"text": "late", "year": 9}])
    return index


def test_the_groups_of_an_index_have_ids_and_metadata(index, tmp_path):
    found = find_duplicates(index, 1)
    assert found.groups == [["a", SCRIPT], ["b", "e"]]
    found.save(tmp_path / "new" / "groups.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "new" / "groups.parquet").to_pydict()
    assert table == {
        "group": [0, 0, 1, 1], "id": ["a", SCRIPT, "b", "e"], "distance": [0, 1, 0, 1],
        "text": ["text 0", "text 2", "text 1", "late"], "labels": [["x"], ["x"], ["x"], None], "year": [0, 2, 1, 9],
    }  # fmt: skip


def test_an_index_without_duplicates_gives_an_empty_file(tmp_path):
    index = Index()
    index.add(None, Codes.from_bits([[0, 0], [1, 1]]))
    found = find_duplicates(index, 1)
    assert found.groups == [] and repr(found).startswith("NearDuplicates(0 groups")
    found.save(tmp_path / "groups.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "groups.parquet")
    assert table.num_rows == 0 and table.column_names == ["group", "id", "distance"]


def test_an_empty_index_is_refused():
    with pytest.raises(DataError):
        find_duplicates(Index(), 1)


def test_a_field_named_like_a_column_and_another_ending_are_refused(tmp_path):
    index = Index()
    index.add(None, Codes.from_bits([[0, 0], [0, 0]]), [{"group": 1}, {"group": 2}])
    with pytest.raises(DataError) as caught:
        find_duplicates(index, 1).save(tmp_path / "groups.parquet")
    assert caught.value.field == "group"
    with pytest.raises(DataError):
        find_duplicates(index, 1).save(tmp_path / "groups.csv")
    assert list(tmp_path.iterdir()) == []


# The page


def test_the_page_shows_images_and_texts_escaped_and_needs_no_network(index, tmp_path):
    Image.new("RGB", (300, 200), "red").save(tmp_path / "red.png")
    index.upsert(["e"], Codes.from_bits([[1, 1, 1, 0]]), [{"image": str(tmp_path / "red.png"), "text": SCRIPT * 20}])
    index.upsert(["b"], Codes.from_bits([[1, 1, 1, 1]]), [{"image": str(tmp_path / "gone.png")}])
    write_duplicates_page(find_duplicates(index, 1), SCRIPT, tmp_path / "new" / "page.html")
    text = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert text.count("<script") == 1 and "http" not in text.replace("http-equiv", "")  # the script of the page
    assert text.count("<img") == 1 and text.count("cannot be read") == 1
    content = text.split("data:image/jpeg;base64,")[1].split('"')[0]
    image = Image.open(io.BytesIO(base64.b64decode(content)))
    assert image.size == (144, 96) and image.getpixel((70, 50))[0] > 200
    assert "text 0" in text and "alert" in text


def test_the_page_shows_the_largest_groups_first_and_not_all_items(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "GROUPS", 2)
    monkeypatch.setattr(pages, "ITEMS", 3)
    index = Index()
    bits = np.repeat(random_bits((4, 40), 5), [2, 5, 3, 2], axis=0)
    index.add([f"item {row:02d}" for row in range(12)], Codes.from_bits(bits))
    write_duplicates_page(find_duplicates(index, 0), "codes", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert [name for name in (f"item {row:02d}" for row in range(12)) if name in text] == [
        "item 02", "item 03", "item 04", "item 07", "item 08", "item 09",
    ]  # fmt: skip
    assert text.index("Group 1") < text.index("Group 2") and "Group 0" not in text


def test_the_page_needs_the_extra(index, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError):
        write_duplicates_page(find_duplicates(index, 1), "codes", tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
