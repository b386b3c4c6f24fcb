"""Indices written in a stream, and as shards: placement, order, and the set as a whole."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from multibit import Codes, Index
from multibit.errors import BusyError, ConfigError, DataError, FormatError, MismatchError
from multibit.search import columns, shards
from multibit.search.building import create_index
from multibit.search.columns import IdColumn, require_distinct
from multibit.search.names import index_path
from multibit.search.segments import LARGEST, Part, Segment, Version
from multibit.search.shards import AGE, Shard, id_hashes, last_age, read_shard, reshard

BITS = 16


def codes(count, seed=0):
    return Codes.from_bytes(np.random.default_rng(seed).integers(0, 256, (count, BITS // 8), dtype=np.uint8))


def plain(folder, count=200, removed=(), model="m"):
    """An index of images in a folder; every third item has a year."""
    index = Index(model, modality="image")
    rows = [{"year": n % 7} if n % 3 == 0 else {"image": f"../photos/{n}.png"} for n in range(count)]
    index.add([f"item {n}" for n in range(count)], codes(count), rows)
    if len(removed):
        index.remove([f"item {n}" for n in removed])
    index.save(index_path(folder, "image"))
    return index


def opened(folder, count):
    return [Index.open(index_path(Shard(n, count).folder(folder), "image")) for n in range(1, count + 1)]


def merged_ids(parts, queries, k, **options):
    """What a router does: the answers of all shards by (distance, age)."""
    out = []
    for number in range(len(queries)):
        hits = [hit for part in parts for hit in part.search(queries, k, **options).hits(number)]
        out.append([hit.id for hit in sorted(hits, key=lambda hit: (hit.distance, hit.payload[AGE]))[:k]])
    return out


# Placement


def test_the_shard_of_an_id_is_the_documented_hash():
    for name in ("cat 7", "", "ü", "0", "-12"):
        assert Shard.of(name, 8).number == xxhash.xxh3_64_intdigest(name.encode()) % 8 + 1
    assert Shard.of(5, 8) == Shard.of("5", 8)


@pytest.mark.parametrize("names", [["a", "b ü", "c"] * 1, [5, -3, 2**62], range(10, 15)])
def test_hashes_of_a_column_are_those_of_its_ids(names, tmp_path):
    column = IdColumn.of(names)
    wanted = [xxhash.xxh3_64_intdigest(str(name).encode()) for name in names]
    assert id_hashes(column).tolist() == wanted
    index = Index()
    index.add(column, codes(len(column)))
    index.save(tmp_path / "a.mbx")
    (part,) = Index.open(tmp_path / "a.mbx").version.parts
    assert id_hashes(part.segment.ids).tolist() == wanted


@pytest.mark.parametrize("text", ["", "2", "0/4", "5/4", "1/0", "a/b", "1/5000", " 1/4", "1/4/4", "01/4"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ConfigError) as caught:
        Shard.parse(text)
    assert caught.value.option == "shard"


# Streams


def test_an_index_from_a_stream_answers_like_one_made_at_once(tmp_path):
    whole, rng = Index("m", modality="text"), np.random.default_rng(1)
    with create_index(tmp_path / "a.mbx", model="m", modality="text", size=40) as builder:
        for number in range(7):
            count = int(rng.integers(0, 30))
            names = [f"{number} {n}" for n in range(count)]
            block = names, codes(count, number), [{"n": n, **({"x": "y"} if number > 3 else {})} for n in range(count)]
            builder.add(*block)
            if count:
                whole.add(*block)
        assert len(builder) == len(whole)
    found = Index.load(tmp_path / "a.mbx")
    assert (found.model, found.modality, found.fields, len(found)) == ("m", "text", whole.fields, len(whole))
    assert len(found.version.parts) > 1
    for where in (None, {"x": "y"}, {"n": {"$lt": 5}}):
        for bits in (7, BITS):
            ours, theirs = (each.search(codes(9, 99), 12, bits, where=where) for each in (found, whole))
            assert ours.ids == theirs.ids
            assert ours.hits() == theirs.hits()
    with Index.editing(tmp_path / "a.mbx") as index:
        index.upsert(["new"], codes(1, 5), [{"n": 1}])
    assert Index.open(tmp_path / "a.mbx").ids[len(whole)] == "new"


def test_a_stream_that_fails_changes_nothing(tmp_path):
    path = tmp_path / "a.mbx"
    plain_index = Index()
    plain_index.add(["old"], codes(1))
    plain_index.save(path)
    with pytest.raises(RuntimeError), create_index(path, size=2) as builder:
        builder.add(["a", "b", "c"], codes(3))
        raise RuntimeError
    with pytest.raises(DataError), create_index(path, size=1) as builder:
        builder.add(["a"], codes(1))
        builder.add(["b", "a"], codes(2))
    with pytest.raises(DataError), create_index(path) as builder:
        builder.add([], codes(0))
    with pytest.raises(DataError), create_index(path) as builder:
        builder.add(["a"], codes(1), [{"year": 1}])
        builder.add(["b"], codes(1), [{"year": "one"}])
    with pytest.raises(MismatchError), create_index(path, model="m") as builder:
        builder.add(["a"], Codes.binarize([[1, 1]], model="other"))
    assert Index.open(path).ids.listed(np.arange(1)) == ["old"]
    assert [each.name for each in tmp_path.iterdir()] == ["a.mbx"]
    with create_index(path) as builder:
        builder.add(["new"], codes(1))
    assert Index.open(path).ids.listed(np.arange(1)) == ["new"]
    assert len(list(path.iterdir())) == 2  # the segment and the manifest


def test_an_index_from_a_stream_has_one_writer(tmp_path):
    plain(tmp_path)
    with create_index(index_path(tmp_path, "image")) as builder:
        with pytest.raises(BusyError), Index.editing(index_path(tmp_path, "image")):
            pass
        builder.add(None, codes(3))
    assert Index.open(index_path(tmp_path, "image")).ids.values == range(3)


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.sets(st.integers(-20, 40), max_size=12), min_size=1, max_size=5),
    texts=st.booleans(), block=st.integers(1, 9),
)  # fmt: skip
def test_ids_in_two_columns_are_found_in_blocks_of_any_size(parts, texts, block):
    kind = str if texts else int
    made = [IdColumn.of([kind(each) for each in part]) for part in parts if part]
    together = [name for part in parts for name in part]
    if len(set(together)) == len(together):
        require_distinct(made, block * 64)
    else:
        with pytest.raises(DataError):
            require_distinct(made, block)


def test_two_texts_with_one_hash_are_distinct(monkeypatch):
    monkeypatch.setattr(columns.xxhash, "xxh3_64_intdigest", lambda text: 7)
    require_distinct([IdColumn.of(["a"]), IdColumn.of(["b", "c"])])
    with pytest.raises(DataError):
        require_distinct([IdColumn.of(["a", "b"]), IdColumn.of(["c", "b"])])


def test_ranges_that_overlap_are_refused():
    require_distinct([IdColumn(range(5, 9)), IdColumn(range(5))])
    with pytest.raises(DataError):
        require_distinct([IdColumn(range(5, 9)), IdColumn(range(6))])


def test_a_change_never_joins_more_than_the_largest_segment(monkeypatch):
    monkeypatch.setattr("multibit.search.segments.LARGEST", 3_000)
    monkeypatch.setattr("multibit.search.segments.SMALL", 1)
    parts = tuple(
        Part(Segment(codes(500), IdColumn(range(500 * n, 500 * n + 500)), Index().payloads.take(np.zeros(0, int))))
        for n in range(8)
    )
    assert len(Version(parts).settled().parts) == 8
    assert LARGEST >= 8 * 1024


# Shards


@pytest.mark.parametrize("block", [3, 50, 1_000])
def test_shards_answer_like_one_index_however_often_they_are_written_anew(tmp_path, block, monkeypatch):
    monkeypatch.setattr(shards, "BLOCK", block)
    whole = plain(tmp_path, removed=range(0, 200, 9))
    queries = codes(6, 7)
    for count, source in ((4, None), (3, 4), (1, 3), (5, 1)):
        assert reshard(tmp_path, ["image", "text"], count, source, model="m") == tmp_path / f"{count}-shards"
        parts = opened(tmp_path, count)
        assert sum(map(len, parts)) == len(whole)
        for number, part in enumerate(parts, start=1):
            assert all(Shard(number, count).holds(name) for name in part.ids.listed(np.arange(len(part))))
            ages = [payload[AGE] for payload in part.payloads.rows(np.arange(len(part)))]
            assert ages == sorted(set(ages))
            assert last_age(part) == ages[-1]
            assert (part.model, part.modality) == ("m", "image")
            assert part.fields == {**whole.fields, AGE: "integer"}
        for bits in (3, 9, BITS):
            assert merged_ids(parts, queries, 12, bits=bits) == whole.search(queries, 12, bits).ids
            where = {"year": {"$gte": 3}}
            assert (
                merged_ids(parts, queries, 12, bits=bits, where=where)
                == whole.search(queries, 12, bits, where=where).ids
            )


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_merged_answers_equal_those_of_one_index_after_any_changes(tmp_path_factory, data):
    """Codes of 4 bits: nearly everything is a tie, so the order is that of the ages."""
    folder = tmp_path_factory.mktemp("shards")
    count = data.draw(st.integers(1, 4), "shards")
    start = [f"{n}" for n in range(40)]
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))

    def some(number):
        return Codes.from_bits(rng.integers(0, 2, (number, 4)))

    whole = Index(modality="image")
    whole.add(start, some(40))
    whole.save(index_path(folder, "image"))
    reshard(folder, ["image"], count)
    parts, age = opened(folder, count), 1_000
    for _ in range(data.draw(st.integers(0, 4), "changes")):
        names = data.draw(st.lists(st.sampled_from([str(n) for n in range(60)]), unique=True, min_size=1), "ids")
        new = some(len(names))
        whole.upsert(names, new)
        for number, part in enumerate(parts, start=1):
            rows = [place for place, name in enumerate(names) if Shard(number, count).holds(name)]
            if rows:
                part.upsert([names[row] for row in rows], new.take(rows), [{AGE: age + row} for row in rows])
        age += len(names)
    queries, k = some(3), data.draw(st.integers(1, 70), "k")
    assert merged_ids(parts, queries, k) == whole.search(queries, k).ids


def test_images_are_found_from_the_folder_of_each_shard(tmp_path):
    index_folder = tmp_path / "run" / "index"
    uploaded = index_folder / "images" / "abc"
    uploaded.parent.mkdir(parents=True)
    uploaded.write_bytes(b"picture")
    index = Index("m")
    index.add(["a", "b"], codes(2), [{"image": "../../photos/a.png"}, {"image": "images/abc"}])
    index.save(index_path(index_folder, "image"))
    reshard(index_folder, ["image"], 1)
    uploaded.unlink()
    (part,) = opened(index_folder, 1)
    folder = Shard(1, 1).folder(index_folder)
    first, second = (folder / payload["image"] for payload in part.payloads.rows(np.arange(2)))
    assert first.resolve() == (tmp_path / "photos" / "a.png").resolve()
    assert second.read_bytes() == b"picture"
    assert second.parent == folder / "images"


def test_a_set_of_shards_appears_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    plain(tmp_path)
    reshard(tmp_path, ["image"], 2)
    before = read_shard(Shard(1, 2).folder(tmp_path), Shard(1, 2)).set

    def broken(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(shards, "_in_order", broken)
        for count in (2, 3):
            with pytest.raises(OSError, match="disk full"):
                reshard(tmp_path, ["image"], count)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["2-shards", "image.mbx"]
    assert read_shard(Shard(1, 2).folder(tmp_path), Shard(1, 2)).set == before
    reshard(tmp_path, ["image"], 2)
    assert read_shard(Shard(1, 2).folder(tmp_path), Shard(1, 2)).set != before
    assert sum(map(len, opened(tmp_path, 2))) == 200


def test_nobody_writes_to_what_is_written_anew(tmp_path):
    plain(tmp_path)
    reshard(tmp_path, ["image"], 2)
    with Index.editing(index_path(Shard(1, 2).folder(tmp_path), "image")):
        for count, source in ((3, 2), (2, None)):
            with pytest.raises(BusyError):
                reshard(tmp_path, ["image"], count, source)


def test_what_cannot_be_written_as_shards_is_refused(tmp_path):
    with pytest.raises(DataError) as caught:
        reshard(tmp_path, ["image"], 2)
    assert caught.value.file == tmp_path
    plain(tmp_path, count=3)
    for count, source, option in ((0, None, "reshard"), (5_000, None, "reshard"), (2, 2, "reshard")):
        with pytest.raises(ConfigError) as refused:
            reshard(tmp_path, ["image"], count, source)
        assert refused.value.option == option
    with pytest.raises(DataError) as few:
        reshard(tmp_path, ["image"], 50)
    assert few.value.option == "reshard"
    with pytest.raises(MismatchError):
        reshard(tmp_path, ["image"], 1, model="other")
    with pytest.raises(DataError) as missing:
        reshard(tmp_path, ["image"], 1, 2)
    assert missing.value.file == Shard(1, 2).folder(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["image.mbx"]


def test_shards_of_two_sets_and_in_the_wrong_place_are_refused(tmp_path):
    for name in "ab":
        plain(tmp_path / name)
        reshard(tmp_path / name, ["image"], 2)
    own, other = (Shard(2, 2).folder(tmp_path / name) for name in "ab")
    with pytest.raises(MismatchError):
        read_shard(own, Shard(1, 2))
    facts = json.loads((other / "shard.json").read_text())
    (own / "shard.json").write_text(json.dumps(facts))
    with pytest.raises(MismatchError):
        reshard(tmp_path / "a", ["image"], 3, 2)
    (own / "shard.json").write_text("{}")
    with pytest.raises(FormatError):
        read_shard(own, Shard(2, 2))
