"""Index files on the command line: built, updated, merged, exported and searched like the codes that they hold."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from commands import assert_names, cli, done, refused
from conftest import plant
from multibit import Codes, Config, FeatureStore, Index, Run, Split, near_duplicates
from multibit.codes import duplicates
from multibit.data.split_files import read_groups
from multibit.errors import DataError
from multibit.features.recipe import EncoderRecipe
from multibit.search import storage
from multibit.search.engines import ENGINES
from multibit.search.exchange import export_index

ITEMS, BITS = 90, 16
DATA = plant(ITEMS + 10, seed=3)  # the last ten come later
NAMES = [f"topic {i}" for i in range(8)]


class Known:
    """Returns planted features: for the text "item 7" and an image of the grey value 7 those of item 7."""

    batch_size = 8

    def __init__(self, modality):
        self.features = DATA[modality]
        self.recipe = EncoderRecipe("ready-made", "", self.features.shape[1], "unknown")

    def prepare(self, image):
        return np.asarray(image)[0, 0]

    def encode(self, inputs):
        return np.stack(
            [self.features[int(given.split()[-1] if isinstance(given, str) else given[0])] for given in inputs]
        )


def write_features(path, rows):
    arrays = {name: DATA[name][rows] for name in ("image", "text", "labels")}
    names = {"ids": [f"Nº {row}" for row in rows], "texts": [f"item {row}" for row in rows]}
    np.savez(path, **arrays, **names, label_names=NAMES)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small run on planted features, with its index."""
    folder = tmp_path_factory.mktemp("planted")
    store = FeatureStore.open(write_features(folder / "ready.npz", range(ITEMS)))
    config = Config(epochs=3, lengths=(8, BITS), scales=3, hidden=16, dimension=8, learning_rate=0.01)
    run = Run.create(folder / "run", store, Split.draw(ITEMS, query=20, train=40, validation=10, seed=1), config)
    done("index", run.folder)
    return run


@pytest.fixture
def run(trained, monkeypatch):
    monkeypatch.setattr("multibit.runs.text_encoder_of", lambda _, **__: Known("text"))
    monkeypatch.setattr("multibit.runs.image_encoder_of", lambda _, **__: Known("image"))
    return trained


@pytest.fixture
def index(run, tmp_path):
    """A folder with an index of its own."""
    done("index", run.folder, "--out", tmp_path / "index")
    return tmp_path / "index"


def hits(run, query, *options):
    return [json.loads(line) for line in done("search", run.folder, query, "--json", *options).splitlines()]


def found(run, query, *options):
    measure = "score" if "--relaxed" in options else "distance"
    return [(hit["id"], hit[measure]) for hit in hits(run, query, *options)]


def values(run, modality, rows):
    """Relaxed codes of planted items."""
    return run.model.encode(DATA[modality][rows], modality).astype(np.float64)


def expected(run, query, among="image", bits=BITS, rows=range(ITEMS)):
    """Ids and distances by (distance, row): text `query` against items, by comparing signs."""
    signs = values(run, among, list(rows))[:, :bits] >= 0
    side = "text" if among == "image" else "image"
    distances = (signs != (values(run, side, [query])[:, :bits] >= 0)).sum(axis=1)
    return [(f"Nº {list(rows)[at]}", int(distances[at])) for at in np.argsort(distances, kind="stable")]


def files(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def contents(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ids(path):
    index = Index.load(path)
    return [index.ids[row] for row in range(len(index))]


# Searching


@pytest.mark.parametrize("bits", [1, 7, 8, 15, BITS])
@pytest.mark.parametrize("query", [0, 50])
def test_a_text_finds_the_nearest_images_at_any_length(run, query, bits):
    assert found(run, f"item {query}", "-k", 12, "--bits", bits) == expected(run, query, bits=bits)[:12]


def test_an_image_finds_the_nearest_texts(run, tmp_path):
    Image.new("RGB", (2, 2), (33, 33, 33)).save(tmp_path / "query.png")
    assert found(run, tmp_path / "query.png", "-k", 12) == expected(run, 33, among="text")[:12]


@pytest.mark.parametrize("farthest", [0, 3, BITS])
def test_hits_beyond_the_largest_distance_are_left_out(run, farthest):
    near = [hit for hit in expected(run, 4) if hit[1] <= farthest]
    assert found(run, "item 4", "-k", ITEMS, "--max-distance", farthest) == near


def test_a_larger_k_than_the_index_returns_all_items(run):
    assert found(run, "item 4", "-k", 1000) == expected(run, 4)


@pytest.mark.parametrize("wanted", [["topic 2"], ["topic 2", "topic 3"]])
@pytest.mark.parametrize("k", [3, ITEMS])
def test_conditions_are_applied_before_the_k_nearest_are_taken(run, wanted, k):
    columns = [NAMES.index(name) for name in wanted]  # a hit has all of them
    rows = np.flatnonzero(DATA["labels"][:ITEMS, columns].all(axis=1))
    assert len(rows) > 3 or len(wanted) > 1
    options = [part for name in wanted for part in ("--where", f"labels={name}")]
    assert found(run, "item 9", "-k", k, *options) == expected(run, 9, rows=rows)[:k]


@pytest.mark.parametrize("typed", ["not labels=topic 2", "labels!=topic 2"])
def test_a_condition_may_be_negated(run, typed):
    rows = np.flatnonzero(DATA["labels"][:ITEMS, 2] == 0)
    assert found(run, "item 9", "-k", ITEMS, "--where", typed) == expected(run, 9, rows=rows)


def test_conditions_on_two_fields_hold_together(run):
    row = int(np.flatnonzero(DATA["labels"][:ITEMS, 0])[2])
    options = ("--where", "labels=topic 0", "--where", f"text=item {row}")
    assert [name for name, _ in found(run, "item 9", *options)] == [f"Nº {row}"]
    other = int(np.flatnonzero(DATA["labels"][:ITEMS, 0] == 0)[0])
    options = ("--where", "labels=topic 0", "--where", f"text=item {other}")
    assert found(run, "item 9", *options) == []
    assert "0 nearest images at 16 bits" in done("search", run.folder, "item 9", *options)


@pytest.mark.parametrize(
    ("condition", "named"),
    [("labels=topic", ["labels", "topic"]), ("labels=1", ["labels", 1]), ("colour=red", ["colour", "labels, text"])],
)
def test_a_condition_that_no_item_meets_is_refused(run, condition, named):
    assert_names(refused("search", run.folder, "item 9", "--where", condition), *named)


@pytest.mark.parametrize("name", ["1", "true", "null", '"'])
def test_label_names_that_look_like_numbers_are_names(run, tmp_path, name):
    changed = Index.load(run.folder / "index" / "image.mbx")
    changed.upsert(["Nº 3"], changed.codes.take(np.array([3])), [{"labels": [name]}])
    changed.save(tmp_path / "image.mbx")
    for typed in (name, json.dumps(name)):
        assert [each for each, _ in found(run, "item 9", "--index", tmp_path, "--where", f"labels={typed}")] == ["Nº 3"]


@pytest.mark.parametrize("bits", [5, BITS])
def test_a_relaxed_query_ranks_by_the_inner_product_with_its_values(run, bits):
    query = values(run, "text", [21])[0, :bits]
    scores = np.where(values(run, "image", list(range(ITEMS)))[:, :bits] >= 0, 1, -1) @ query
    got = found(run, "item 21", "--relaxed", "-k", ITEMS, "--bits", bits)
    assert [score for _, score in got] == pytest.approx(np.sort(scores)[::-1])
    by_id = {f"Nº {row}": score for row, score in enumerate(scores)}
    assert [by_id[name] for name, _ in got] == pytest.approx([score for _, score in got])


def test_a_relaxed_query_has_scores_and_no_distances(run):
    assert all("distance" not in hit for hit in hits(run, "item 21", "--relaxed"))
    for options, measure, other in ((["--relaxed"], "score", "distance"), ([], "distance", "score")):
        printed = done("search", run.folder, "item 21", *options)
        assert measure in printed and other not in printed


def test_a_relaxed_query_keeps_to_conditions(run):
    rows = np.flatnonzero(DATA["labels"][:ITEMS, 5])
    got = found(run, "item 21", "--relaxed", "-k", ITEMS, "--where", "labels=topic 5")
    assert sorted(name for name, _ in got) == sorted(f"Nº {row}" for row in rows)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["-k", 0], ["k", 1, 0]),
        (["-k", -3], ["k", 1, -3]),
        (["--relaxed", "-k", 0], ["k", 1, 0]),
        (["--bits", 0], ["0", 16]),
        (["--bits", 17], [17, 16]),
        (["--max-distance", -1], ["distance", 0, -1]),
        (["--relaxed", "--max-distance", 3], ["--relaxed", "--max-distance"]),
        (["--where", "labels"], ["--where", "FIELD=VALUE", "'labels'"]),
        (["--where", "=x"], ["--where", "FIELD=VALUE", "'=x'"]),
    ],
    ids=str,
)
def test_a_bad_search_is_refused(run, options, named):
    assert_names(refused("search", run.folder, "item 1", *options), *named)


# A file of queries


def parquet(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def written(run, queries, out, *options):
    """Ids and distances of the hits of each query of a file."""
    printed = done("search", run.folder, "--queries", queries, "--out", out, *options)
    found = {}
    for row in pyarrow.parquet.read_table(out).to_pylist():
        found.setdefault(row["query"], []).append((row["id"], row["distance"]))
        assert row["rank"] == len(found[row["query"]])
    assert f"{sum(map(len, found.values())):,} hits" in printed
    return found


@pytest.mark.parametrize("options", [[], ["--bits", 5], ["--max-distance", 3], ["--where", "labels=topic 2"]], ids=str)
def test_a_file_of_texts_finds_what_each_text_finds(run, tmp_path, options):
    rows = [3, 41, 3, 88]
    texts = parquet(tmp_path / "q.parquet", text=[f"item {row}" for row in rows])
    got = written(run, texts, tmp_path / "hits.parquet", "-k", 7, *options)
    alone = [found(run, f"item {row}", "-k", 7, *options) for row in rows]
    assert [got.get(number, []) for number in range(4)] == alone


def test_a_file_of_images_finds_texts(run, tmp_path):
    for row in (5, 60):
        Image.new("RGB", (2, 2), (row, row, row)).save(tmp_path / f"{row}.png")
    images = parquet(tmp_path / "q.parquet", id=["first", "second"], image=["5.png", str(tmp_path / "60.png")])
    got = written(run, images, tmp_path / "hits.parquet", "-k", 4)
    assert got == {"first": expected(run, 5, among="text")[:4], "second": expected(run, 60, among="text")[:4]}


@pytest.mark.parametrize("options", [[], ["--in", "image"], ["--as", "text"]], ids=str)
def test_a_file_of_ids_searches_with_the_stored_codes(run, tmp_path, options):
    ids = parquet(tmp_path / "q.parquet", id=["Nº 7", "Nº 0"])
    got = written(run, ids, tmp_path / "hits.parquet", "-k", 4, *options)
    assert got == {"Nº 7": expected(run, 7)[:4], "Nº 0": expected(run, 0)[:4]}
    nearest = written(run, ids, tmp_path / "hits.parquet", "-k", 1, "--in", "image", "--as", "image")
    assert nearest["Nº 7"][0][1] == 0


def test_an_exported_index_is_a_file_of_queries(run, tmp_path):
    exported = tmp_path / "text.parquet"
    done("export", run.folder / "index" / "text.mbx", "--out", exported)
    got = written(run, exported, tmp_path / "hits.parquet", "-k", 3)
    assert got == {f"Nº {row}": expected(run, row)[:3] for row in range(ITEMS)}


def test_the_fields_of_hits_are_those_asked_for(run, tmp_path):
    texts = parquet(tmp_path / "q.parquet", text=["item 3"])
    out, options = tmp_path / "hits.parquet", ("-k", 2, "--field", "labels", "--field", "text")
    done("search", run.folder, "--queries", texts, "--out", out, *options)
    rows = pyarrow.parquet.read_table(out).to_pylist()
    assert [list(row) for row in rows] == [["query", "rank", "id", "distance", "labels", "text"]] * 2
    alone = hits(run, "item 3", *options)
    assert [(row["labels"], row["text"]) for row in rows] == [(hit["labels"], hit["text"]) for hit in alone]
    assert all(set(hit) == {"rank", "id", "distance", "bits", "labels", "text"} for hit in alone)


def test_no_queries_write_no_hits(run, tmp_path):
    none = parquet(tmp_path / "q.parquet", text=pyarrow.array([], pyarrow.string()))
    assert written(run, none, tmp_path / "hits.parquet") == {}


@pytest.mark.parametrize(
    ("columns", "options", "named"),
    [
        ({"text": ["a", None]}, [], ["q.parquet", "row 2", "text"]),
        ({"id": ["Nº 1", "Nº 999"]}, [], ["q.parquet", "Nº 999", 90]),
        ({"id": [1, 2]}, [], ["q.parquet", "1 is not", 90, "texts", "integer"]),
        ({"image": ["gone.png"]}, [], ["q.parquet", "row 1", "gone.png"]),
        ({"caption": ["a"]}, [], ["q.parquet", "caption"]),
        ({"code": [b"abc", b"ab"]}, [], ["q.parquet", "row 2", "code"]),
        ({"code": [b"a"]}, [], [16, 8]),
        ({"text": ["item 1"]}, ["--as", "image"], ["--as", "text", "image"]),
        ({"text": ["item 1"]}, ["--relaxed"], ["--relaxed", "--queries"]),
        ({"text": ["item 1"]}, ["--json"], ["--json", "--queries"]),
        ({"text": ["item 1"]}, ["--field", "colour"], ["--field", "colour"]),
        ({"text": ["item 1"]}, ["--field", "rank"], ["--field", "rank"]),
        ({"text": ["item 1"]}, ["--where", "labels=nothing"], ["--where", "nothing"]),
        ({"text": ["item 1"]}, ["--bits", 17], [17, 16]),
        ({"text": ["item 1"]}, ["-k", 0], ["k", 0]),
    ],
    ids=str,
)
def test_a_bad_batch_is_refused_and_writes_nothing(run, tmp_path, columns, options, named):
    queries = parquet(tmp_path / "q.parquet", **columns)
    out = tmp_path / "hits.parquet"
    assert_names(refused("search", run.folder, "--queries", queries, "--out", out, *options), *named)
    assert list(tmp_path.iterdir()) == [queries]


def test_a_batch_needs_a_file_and_no_query(run, tmp_path):
    texts = parquet(tmp_path / "q.parquet", text=["item 3"])
    assert_names(refused("search", run.folder, "item 3", "--queries", texts), "QUERY", "--queries")
    assert_names(refused("search", run.folder), "QUERY", "--queries")
    assert_names(refused("search", run.folder, "--queries", texts), "--out")
    assert_names(refused("search", run.folder, "--queries", texts, "--out", texts), texts)
    assert_names(refused("search", run.folder, "--queries", texts, "--out", tmp_path / "h.csv"), "--out", ".parquet")
    assert_names(refused("search", run.folder, "item 3", "--out", tmp_path / "h.parquet"), "--out", "--queries")


def test_codes_of_another_model_are_refused_as_queries(run, tmp_path):
    other = Index("another model")
    other.add(["x"], Codes.from_bits(np.zeros((1, BITS))))
    export_index(other, tmp_path / "q.parquet")
    said = refused("search", run.folder, "--queries", tmp_path / "q.parquet", "--out", tmp_path / "h.parquet")
    assert_names(said, tmp_path / "q.parquet", "another model", run.record.model)


# A damaged index


def test_a_damaged_index_is_refused_before_the_items_are_encoded(run, index, monkeypatch):
    manifest = index / "image.mbx" / "manifest.json"
    manifest.write_text("{")
    monkeypatch.setattr("multibit.indices.encode_store", None)
    assert_names(refused("index", run.folder, "--out", index), manifest, "Remove")
    assert manifest.read_text() == "{"


def test_what_is_no_index_is_not_replaced_by_one(run, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "text.mbx").write_text("mine")
    assert_names(refused("index", run.folder, "--out", folder), folder / "text.mbx")
    assert (folder / "text.mbx").read_text() == "mine" and not (folder / "image.mbx").exists()
    with pytest.raises(DataError):
        Index.open(run.folder / "index" / "image.mbx").save(folder / "text.mbx")
    assert (folder / "text.mbx").read_text() == "mine"


@pytest.mark.parametrize("there", ["nothing", "both", "one"])
def test_both_indices_are_written_or_none(run, index, tmp_path, monkeypatch, there):
    folder = index if there != "nothing" else tmp_path / "new"
    if there == "one":
        shutil.rmtree(index / "text.mbx")
    before = {path.name: len(Index.open(path)) for path in folder.glob("*.mbx")}
    written, write = [], storage._write_version

    def full(path, version, facts, generation):
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        written.append(path)
        return write(path, version, facts, generation)

    monkeypatch.setattr(storage, "_write_version", full)
    assert "No space left" in refused("index", run.folder, "--items", "database", "--out", folder)
    monkeypatch.undo()
    assert {path.name: len(Index.open(path)) for path in folder.glob("*.mbx")} == before


# A part of an index


def test_the_other_segments_are_searched_when_one_is_lost(run, index, tmp_path):
    later = write_features(tmp_path / "later.npz", range(ITEMS, ITEMS + 10))
    done("index", run.folder, later, "--update", "--out", index)
    manifest = json.loads((index / "image.mbx" / "manifest.json").read_text())
    lost = index / "image.mbx" / manifest["segments"][1]["file"]
    content = lost.read_bytes()
    lost.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # only a checksum shows it
    options = ("--index", index, "-k", 99, "--partial")
    result = cli("search", run.folder, "item 3", "--json", *options)
    assert result.code == 0 and str(lost) in result.err and "10 items" in result.err
    assert [json.loads(line)["id"] for line in result.out.splitlines()] == [name for name, _ in expected(run, 3)]
    lost.unlink()
    assert_names(refused("search", run.folder, "item 3", "--index", index), lost)
    texts = parquet(tmp_path / "q.parquet", text=["item 3"])
    assert written(run, texts, tmp_path / "hits.parquet", *options) == {0: expected(run, 3)}


# Engines


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_an_index_is_searched_by_the_engine_that_it_names(run, tmp_path, engine):
    if engine == "faiss":
        pytest.importorskip("faiss", reason='faiss is not installed: pip install "multibit[faiss]"')
    done("index", run.folder, "--engine", engine, "--out", tmp_path)
    assert Index.load(tmp_path / "image.mbx").engine_name == Index.load(tmp_path / "text.mbx").engine_name == engine
    for bits in (5, BITS):
        options = ("--index", tmp_path, "-k", 20, "--bits", bits)
        assert found(run, "item 3", *options) == expected(run, 3, bits=bits)[:20]
    assert "search:" in done("info", tmp_path / "image.mbx")
    done("index", run.folder, "--update", "--out", tmp_path)
    assert Index.load(tmp_path / "image.mbx").engine_name == engine


def test_an_engine_that_cannot_filter_names_one_that_can(run, tmp_path):
    pytest.importorskip("faiss", reason='faiss is not installed: pip install "multibit[faiss]"')
    done("index", run.folder, "--engine", "faiss", "--out", tmp_path)
    said = refused("search", run.folder, "item 3", "--index", tmp_path, "--where", "labels=topic 1")
    assert_names(said, "faiss", "exact")


def test_an_unknown_engine_exits_with_2_and_lists_the_known_ones(run):
    result = cli("index", run.folder, "--engine", "annoy")
    assert result.code == 2 and all(name in result.err for name in ENGINES)


# Updating


def test_an_update_adds_what_is_new_and_replaces_what_is_known(run, index, tmp_path):
    later = write_features(tmp_path / "later.npz", [5, *range(ITEMS, ITEMS + 10)])
    assert f"{ITEMS + 10} items" in done("index", run.folder, later, "--update", "--out", index)
    rows = [row for row in range(ITEMS) if row != 5] + [5, *range(ITEMS, ITEMS + 10)]
    assert ids(index / "image.mbx") == ids(index / "text.mbx") == [f"Nº {row}" for row in rows]
    assert found(run, "item 3", "--index", index, "-k", 99) == expected(run, 3, rows=rows)[:99]


def test_an_update_with_the_same_items_changes_nothing(run, index):
    before = Index.load(index / "image.mbx")
    done("index", run.folder, "--update", "--out", index)
    after = Index.load(index / "image.mbx")
    assert after.codes == before.codes and ids(index / "image.mbx") == [f"Nº {row}" for row in range(ITEMS)]
    assert [after.payloads[row] for row in range(ITEMS)] == [before.payloads[row] for row in range(ITEMS)]


def test_an_update_with_changed_items_searches_their_new_codes(run, index, tmp_path):
    path = tmp_path / "changed.npz"
    np.savez(
        path, image=DATA["image"][[70]], text=DATA["text"][[70]], labels=DATA["labels"][[70]], ids=["Nº 4"],
        label_names=NAMES,
    )  # fmt: skip
    done("index", run.folder, path, "--update", "--out", index)
    distance = dict(found(run, "item 3", "--index", index, "-k", ITEMS))
    assert distance["Nº 4"] == distance["Nº 70"] and len(distance) == ITEMS


def test_removed_items_are_not_found_and_the_others_as_before(run, index):
    gone = [0, 17, ITEMS - 1]
    printed = done("index", run.folder, "--out", index, *(part for row in gone for part in ("--remove", f"Nº {row}")))
    assert printed.count(f"{ITEMS - 3} items") == 2
    rows = [row for row in range(ITEMS) if row not in gone]
    assert found(run, "item 17", "--index", index, "-k", ITEMS) == expected(run, 17, rows=rows)


def test_an_item_of_one_index_is_removed_from_it(run, index):
    texts = Index.open(index / "text.mbx")
    with texts.writer() as writer:
        writer.upsert(["only a text"], texts.codes.take([0]))
    done("index", run.folder, "--out", index, "--remove", "only a text", "--remove", "Nº 3")
    assert ids(index / "text.mbx") == ids(index / "image.mbx") == [f"Nº {row}" for row in range(ITEMS) if row != 3]


def test_integer_ids_are_removed_as_they_are_typed(run, index):
    for name in ("image", "text"):
        codes, numbered = Index.load(index / f"{name}.mbx").codes, Index(run.record.model, modality=name)
        numbered.add(range(-5, ITEMS - 5), codes)
        shutil.rmtree(index / f"{name}.mbx")
        numbered.save(index / f"{name}.mbx")
    done("index", run.folder, "--out", index, "--remove=-5", "--remove", "7")
    assert ids(index / "text.mbx") == ids(index / "image.mbx") == [row for row in range(-4, ITEMS - 5) if row != 7]
    assert_names(refused("index", run.folder, "--out", index, "--remove", "x"), "'x'", "integers")


@pytest.mark.parametrize(
    ("remove", "named"),
    [(["Nº 1", "nobody"], ["'nobody'", 90]), ([f"Nº {row}" for row in range(ITEMS)], ["empty"])],
    ids=["unknown", "all"],
)
def test_a_refused_removal_keeps_the_files(run, index, remove, named):
    before = contents(index)
    options = [part for name in remove for part in ("--remove", name)]
    assert_names(refused("index", run.folder, "--out", index, *options), *named)
    assert contents(index) == before


@pytest.mark.parametrize("change", [["--update"], ["--remove", "Nº 1"]])
def test_an_index_that_does_not_exist_cannot_be_changed(run, tmp_path, change):
    said = refused("index", run.folder, "--out", tmp_path / "none", *change)
    assert_names(said, tmp_path / "none" / "image.mbx")
    assert not (tmp_path / "none" / "image.mbx").exists()


def test_during_another_update_an_update_is_refused_and_a_search_is_not(run, index):
    before = contents(index)
    with Index.editing(index / "image.mbx"):
        said = refused("index", run.folder, "--update", "--out", index)
        assert_names(said, index / "image.mbx", "another process is writing")
        assert found(run, "item 3", "--index", index, "-k", 5) == expected(run, 3)[:5]
        assert contents(index) == before


def test_writing_leaves_only_the_two_files(run, index):
    done("index", run.folder, "--update", "--out", index)
    done("index", run.folder, "--remove", "Nº 2", "--out", index)
    done("index", run.folder, "--out", index)
    assert files(index) == ["image.mbx", "text.mbx"]


# Merging


@pytest.fixture
def parts(run, tmp_path):
    """The index of images in three files, in order."""
    paths = []
    for number, rows in enumerate([range(30), range(30, 31), range(31, ITEMS)]):
        folder = tmp_path / f"part {number}"
        store = write_features(tmp_path / f"{number}.npz", rows)
        done("index", run.folder, store, "--out", folder)
        paths.append(folder / "image.mbx")
    return paths


def test_merged_parts_are_searched_like_the_whole(run, parts, tmp_path):
    assert f"{ITEMS} items" in done("merge", *parts, "--out", tmp_path / "whole" / "image.mbx")
    assert ids(tmp_path / "whole" / "image.mbx") == [f"Nº {row}" for row in range(ITEMS)]
    assert hits(run, "item 3", "--index", tmp_path / "whole") == hits(run, "item 3")


def test_parts_are_merged_in_the_given_order(parts, tmp_path):
    done("merge", *reversed(parts), "--out", tmp_path / "whole.mbx")
    assert ids(tmp_path / "whole.mbx") == [f"Nº {row}" for row in [*range(31, ITEMS), 30, *range(30)]]


def test_a_part_is_never_replaced_by_the_whole(parts):
    assert_names(refused("merge", *parts, "--out", parts[0]), parts[0])
    assert len(ids(parts[0])) == 30


def test_parts_that_do_not_fit_are_refused_and_nothing_is_written(run, parts, tmp_path):
    other = Index("another model")
    other.add(["x"], Codes.from_bits(np.zeros((1, BITS))))
    other.save(tmp_path / "other.mbx")
    out = ("--out", tmp_path / "whole.mbx")
    copied = parts[1].with_name("copy.mbx")
    shutil.copytree(parts[1], copied)
    assert_names(refused("merge", *parts, copied, *out), copied, parts[1], "'Nº 30'")
    said = refused("merge", parts[0], tmp_path / "other.mbx", *out)
    assert_names(said, tmp_path / "other.mbx", "another model", parts[0], run.record.model)
    texts = parts[1].with_name("text.mbx")
    assert_names(refused("merge", parts[0], texts, *out), texts, parts[0], "text", "image")
    assert_names(refused("merge", parts[0], tmp_path / "gone.mbx", *out), tmp_path / "gone.mbx")
    assert_names(refused("merge", tmp_path / "0.npz", *out), tmp_path / "0.npz")
    assert not (tmp_path / "whole.mbx").exists()


def test_an_index_of_the_other_modality_is_not_searched(run, index):
    shutil.rmtree(index / "image.mbx")
    (index / "text.mbx").replace(index / "image.mbx")
    assert_names(refused("search", run.folder, "item 1", "--index", index), index / "image.mbx", "text", "image")


# Exporting


def signs(run, modality, bits=BITS):
    return values(run, modality, list(range(ITEMS)))[:, :bits] >= 0


@pytest.mark.parametrize("bits", [None, 1, 8, 13])
def test_the_codes_are_exported_for_numpy(run, tmp_path, bits):
    options = [] if bits is None else ["--bits", bits]
    printed = done("export", run.folder / "index" / "text.mbx", "--out", tmp_path / "codes.npy", *options)
    assert f"{ITEMS} codes of {bits or BITS} bits" in printed
    assert np.array_equal(np.load(tmp_path / "codes.npy"), np.packbits(signs(run, "text", bits), axis=1))


@pytest.mark.parametrize("bits", [BITS, 13])
def test_the_codes_are_exported_for_faiss_which_finds_the_same(run, tmp_path, bits):
    faiss = pytest.importorskip("faiss", reason='faiss is not installed: pip install "multibit[faiss]"')
    done("export", run.folder / "index" / "image.mbx", "--out", tmp_path / "codes.faiss", "--bits", bits)
    index = faiss.read_index_binary(str(tmp_path / "codes.faiss"))
    query = np.packbits(values(run, "text", [8])[:, :bits] >= 0, axis=1)
    distances, rows = (part[0].tolist() for part in index.search(query, ITEMS))
    pairs = sorted(zip(distances, rows, strict=True))
    assert [(f"Nº {row}", distance) for distance, row in pairs] == expected(run, 8, bits=bits)


def test_an_index_goes_through_parquet_and_back(run, index, tmp_path):
    done("export", index / "image.mbx", "--out", tmp_path / "image.parquet")
    shutil.rmtree(index / "image.mbx")
    assert f"{ITEMS} items" in done("merge", tmp_path / "image.parquet", "--out", index / "image.mbx")
    assert hits(run, "item 3", "--index", index) == hits(run, "item 3")


def test_segments_are_joined_and_answers_stay(run, index, tmp_path):
    later = write_features(tmp_path / "later.npz", [5, *range(ITEMS, ITEMS + 10)])
    done("index", run.folder, later, "--update", "--out", index)
    before = found(run, "item 3", "--index", index, "-k", 99)
    assert len(list((index / "image.mbx").iterdir())) > 2
    assert f"{ITEMS + 10} items" in done("index", run.folder, "--compact", "--out", index)
    assert len(list((index / "image.mbx").iterdir())) == 2
    assert found(run, "item 3", "--index", index, "-k", 99) == before
    assert_names(refused("index", run.folder, "--compact", "--update", "--out", index), "--compact", "--update")
    said = refused("index", run.folder, "--remove", "a", "--compact", "--out", index)
    assert (said.count("--remove"), said.count("--compact"), said.count("--reshard")) == (1, 1, 0)


@pytest.mark.parametrize(
    ("source", "name", "options", "named"),
    [
        ("index/image.mbx", "codes.txt", [], ["codes.txt", ".npy", ".faiss"]),
        ("index/image.mbx", "codes.npy", ["--bits", 17], [17, 16]),
        ("index/image.mbx", "codes.npy", ["--bits", 0], ["0", 16]),
        ("index/gone.mbx", "codes.npy", [], ["gone.mbx"]),
        ("model.safetensors", "codes.npy", [], ["model.safetensors"]),
    ],
)
def test_a_bad_export_is_refused_and_nothing_is_written(run, tmp_path, source, name, options, named):
    assert_names(refused("export", run.folder / source, "--out", tmp_path / name, *options), *named)
    assert list(tmp_path.iterdir()) == []


# Near-duplicates


def groups_of(path):
    table = pyarrow.parquet.read_table(path).to_pydict()
    return list(zip(table["group"], table["id"], table["distance"], table["text"], strict=True))


def expected_groups(run, modality, radius, bits=BITS):
    found = near_duplicates(Codes.from_bits(signs(run, modality, bits)), radius)
    rows, groups, distances = found.rows.tolist(), found.groups.tolist(), found.distances.tolist()
    return [(group, f"Nº {row}", far, f"item {row}") for group, row, far in zip(groups, rows, distances, strict=True)]


@pytest.mark.parametrize("modality", ["image", "text"])
def test_the_near_duplicates_of_a_run_are_those_of_its_codes(run, tmp_path, modality):
    for radius, bits in ((0, BITS), (2, BITS), (1, 5)):
        out = tmp_path / "new" / "groups.parquet"
        options = ("--radius", radius, "--bits", bits, "--in", modality, "--out", out)
        printed = done("duplicates", run.folder, *options)
        groups = expected_groups(run, modality, radius, bits)
        assert groups_of(out) == groups
        assert f"{len(groups):,} items" in printed and f"{out.with_suffix('.html')}: open it" in printed
        assert "Nº" in out.with_suffix(".html").read_text(encoding="utf-8")


def test_the_near_duplicates_of_an_index_are_written_next_to_it(run, index):
    done("index", run.folder, "--out", index, "--remove", "Nº 0")
    done("duplicates", index / "text.mbx", "--radius", 2)
    assert files(index) == ["image.mbx", "text-duplicates.html", "text-duplicates.parquet", "text.mbx"]
    found = near_duplicates(Codes.from_bits(signs(run, "text")[1:]), 2)
    assert [name for _, name, *_ in groups_of(index / "text-duplicates.parquet")] == [f"Nº {r + 1}" for r in found.rows]


def test_by_default_the_near_duplicates_of_a_run_are_written_into_it(run, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run.folder, copied)
    done("duplicates", copied, run.features, "--radius", 1)
    assert groups_of(copied / "image-duplicates.parquet") == expected_groups(run, "image", 1)
    assert (copied / "image-duplicates.html").is_file()


@pytest.mark.parametrize("allowed", [True, False])
def test_a_download_has_to_be_allowed_for_a_file_of_texts_too(run, index, tmp_path, monkeypatch, allowed):
    asked = []
    monkeypatch.setattr(
        "multibit.runs.text_encoder_of", lambda _, **given: asked.append(given["download"]) or Known("text")
    )
    pyarrow.parquet.write_table(pyarrow.table({"text": ["item 3"]}), tmp_path / "q.parquet")
    options = ["--queries", tmp_path / "q.parquet", "--out", tmp_path / "hits.parquet", "--index", index]
    done("search", run.folder, *options, *(["--download"] if allowed else []))
    assert asked == [allowed]


def test_a_radius_of_all_bits_is_noted(run, tmp_path):
    result = cli("duplicates", run.folder, "--radius", BITS, "--out", tmp_path / "groups.parquet")
    assert result.code == 0 and "one group" in result.err


def test_without_the_extra_the_groups_are_written_and_the_page_is_not(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    printed = done("duplicates", run.folder, "--radius", 1, "--out", tmp_path / "groups.parquet")
    assert "multibit[report]" in printed and files(tmp_path) == ["groups.parquet"]


def test_an_interrupted_search_for_near_duplicates_leaves_the_earlier_files(run, tmp_path, monkeypatch):
    out = tmp_path / "groups.parquet"
    done("duplicates", run.folder, "--radius", 1, "--out", out)
    before = contents(tmp_path)

    def interrupted(*_):
        raise KeyboardInterrupt

    for name in ("_join", "_of_groups"):
        with monkeypatch.context() as patch:
            patch.setattr(duplicates, name, interrupted)
            assert cli("duplicates", run.folder, "--radius", 2, "--out", out).code == 130
        assert contents(tmp_path) == before


def test_groups_of_near_duplicates_stay_together_in_a_split(run, tmp_path):
    done("duplicates", run.folder, "--radius", 1, "--out", tmp_path / "groups.parquet")
    group = {name: number for number, name, *_ in groups_of(tmp_path / "groups.parquet")}
    ids = [f"Nº {row}" for row in range(ITEMS)]
    read = read_groups(tmp_path / "groups.parquet", ids)
    for a in group:
        for b in group:
            assert (read[ids.index(a)] == read[ids.index(b)]) == (group[a] == group[b])


@pytest.mark.parametrize(
    ("source", "options", "named"),
    [
        ("run", ["--radius", -1], ["--radius", 0, -1]),
        ("run", ["--radius", 1, "--bits", 17], ["--bits", 16, 17]),
        ("run", ["--radius", 1, "--bits", 0], ["--bits", 16, 0]),
        ("run", ["--radius", 1, "--out", "groups.csv"], ["--out", ".parquet"]),
        ("run/index/image.mbx", ["--radius", 1, "--in", "text"], ["--in"]),
        ("run/index/image.mbx", ["--radius", 1, "--out", "run/index/image.mbx"], ["--out", ".parquet"]),
        ("run/index", ["--radius", 1], ["index", ".mbx"]),
        ("gone.mbx", ["--radius", 1], ["gone.mbx"]),
    ],
)
def test_a_bad_search_for_near_duplicates_is_refused_and_nothing_is_written(run, tmp_path, source, options, named):
    path = run.folder / source.removeprefix("run").strip("/") if source.startswith("run") else tmp_path / source
    options = [tmp_path / part if str(part).startswith(("groups", "run")) else part for part in options]
    before = files(run.folder)
    assert_names(refused("duplicates", path, *options), *named)
    assert files(run.folder) == before and list(tmp_path.iterdir()) == []


# Searches that find nothing, or that the encoder cannot read


@pytest.mark.parametrize("query", ["", "  ", "\n"])
def test_an_empty_query_is_refused(run, query):
    assert_names(refused("search", run.folder, query), "QUERY")


def test_a_search_that_finds_nothing_says_why(run):
    result = cli("search", run.folder, "item 3", "--where", "labels=topic 1", "--where", "not labels=topic 1")
    assert result.code == 0 and "max-distance" not in result.err
    assert_names(result.err, "--where", ITEMS)
    item = Index.load(run.folder / "index" / "image.mbx").payloads[0]["text"]
    for where in ([], ["--where", f"text={item}"]):
        result = cli("search", run.folder, "item 3", *where, "--max-distance", 0, "--bits", BITS, "--json")
        assert bool(result.out) != ("--max-distance" in result.err)


class Tokenizer:
    """Knows Latin letters only, as words; other words are unknown, Greek ones are spelled."""

    unk_token_id = 0

    def __call__(self, text, **_):
        tokens = []
        for word in text.split():
            greek = all("\u0370" <= letter <= "\u03ff" for letter in word)
            tokens += [2] * len(word) if greek else [1 if word.isascii() else 0]
        return {"input_ids": tokens}


@pytest.mark.parametrize(("query", "noted"), [("item 3", False), ("item собака 3", True), ("σκύλος 3", True)])
def test_a_text_that_the_encoder_reads_in_part_is_noted(run, monkeypatch, query, noted):
    monkeypatch.setattr(Known, "tokenizer", Tokenizer(), raising=False)
    result = cli("search", run.folder, query)
    assert result.code == 0 and ("ready-made" in result.err) == noted


def test_a_text_of_which_the_encoder_knows_nothing_is_refused(run, monkeypatch):
    monkeypatch.setattr(Known, "tokenizer", Tokenizer(), raising=False)
    assert_names(refused("search", run.folder, "собака красная"), "QUERY", "ready-made", "собака красная")


# Sheets


def test_a_sheet_replaces_a_sheet_and_no_other_file(run, tmp_path):
    sheet = tmp_path / "sheet.png"
    for _ in range(2):
        done("search", run.folder, "item 3", "--sheet", sheet)
    photo = tmp_path / "photo.png"
    Image.new("RGB", (8, 8), "red").save(photo)
    before = photo.read_bytes()
    for path in (photo, tmp_path / "link.png"):
        if path != photo:
            path.symlink_to(photo)
        assert_names(refused("search", run.folder, "item 3", "--sheet", path), path)
    assert photo.read_bytes() == before
