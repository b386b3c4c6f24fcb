"""Data in object stores: manifests and shards are read, results are written there, and what was stopped is resumed."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fsspec")

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from commands import Letters, assert_names, done, refused
from multibit import FeatureStore, Index, encode_store
from multibit.bulk import code_parts, index_parts
from multibit.codes import MODALITIES
from multibit.data import objects
from multibit.data.manifest import read_manifest
from multibit.data.notes import DataNote
from multibit.data.objects import fetch, is_url, joined, listed, place_of, put, sizes_of
from multibit.data.parts import Parts
from multibit.data.sources.webdataset import read_webdataset
from multibit.errors import DataError, MismatchError, MissingExtraError, shown_path
from multibit.features.extract import extract_features
from multibit.features.parts import extract_parts, join_parts
from multibit.search.names import index_path

ITEMS = 11
ENCODERS = Letters(24), Letters()


class Flaky(MemoryFileSystem):
    """A store that cuts transfers off, or fails: `failures` counts down, then it works again."""

    protocol = "flaky"
    store: dict = {}  # noqa: RUF012 - as in fsspec
    pseudo_dirs = [""]  # noqa: RUF012
    cachable = False
    failures = 0
    writes = 0

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("flaky://"))

    def _open(self, path, mode="rb", **options):
        kind = type(self)
        if kind.failures > 0 and mode == "rb":
            kind.failures -= 1
            return io.BytesIO(self.cat_file(path)[:7]) if kind.failures % 2 else self._broken()
        if mode == "wb":
            kind.writes -= 1
            if kind.writes == 0:
                raise ConnectionError("cut off")
        return super()._open(path, mode, **options)

    def cat_file(self, path, **options):
        return bytes(self.store[self._strip_protocol(path)].getvalue())

    @staticmethod
    def _broken():
        raise TimeoutError("no answer")


class Buckets(MemoryFileSystem):
    """A store of buckets, as S3: folders need not be made, and making one makes the bucket. One is there."""

    protocol = "buckets"
    store: dict = {}  # noqa: RUF012 - as in fsspec
    pseudo_dirs = [""]  # noqa: RUF012
    cachable = False

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("buckets://"))

    def makedirs(self, path, exist_ok=False):
        raise AssertionError("made a bucket")

    def _open(self, path, mode="rb", **options):
        if not self._strip_protocol(path).startswith("/there/"):
            raise FileNotFoundError("The specified bucket does not exist")
        return super()._open(path, mode, **options)


@pytest.fixture(autouse=True)
def stores():
    """Empty stores."""
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    for kind in (Flaky, Buckets, MemoryFileSystem):
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]
    Flaky.failures = Flaky.writes = 0


def png(number):
    out = io.BytesIO()
    Image.new("RGB", (20 + number, 10), (20 * number, 90, 10)).save(out, "PNG")
    return out.getvalue()


def write_bytes(url, content):
    files, path = fsspec.core.url_to_fs(url)
    files.makedirs(files._parent(path), exist_ok=True)
    files.pipe_file(path, content)


def manifest(base, images="images/{}.png", name="items.jsonl", rows=range(ITEMS)):
    """A manifest in a store; every fourth image is missing."""
    lines = []
    for n in rows:
        place = images.format(n)
        lines.append({"id": f"item {n}", "image": place, "text": f"text {n}", "labels": [f"label {n % 3}"]})
        if n % 4 != 3:
            write_bytes(place if is_url(place) else joined(base, place), png(n))
    write_bytes(f"{base}/{name}", "\n".join(map(json.dumps, lines)).encode())
    return f"{base}/{name}"


def shard(url, rows):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for n in rows:
            for suffix, content in (
                (".png", png(n)),
                (".json", json.dumps({"text": f"text {n}", "labels": ["x"]}).encode()),
            ):
                member = tarfile.TarInfo(f"{n:03d}{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    write_bytes(url, out.getvalue())


@pytest.fixture
def few_rows(monkeypatch):
    monkeypatch.setattr("multibit.data.parts.ROWS", 4)


def parts_of(source, folder, **options):
    return Parts.of(source, folder, **options)


def base_of(protocol, tmp_path):
    return f"{protocol}://{tmp_path}/data" if protocol == "file" else f"{protocol}://bucket/data"


PROTOCOLS = pytest.mark.parametrize("protocol", ["memory", "file", "flaky"])


@pytest.mark.slow
@PROTOCOLS
def test_features_of_a_manifest_equal_those_of_a_local_one(protocol, tmp_path, few_rows):
    base = base_of(protocol, tmp_path)
    source = manifest(base)
    parts = parts_of(source, tmp_path / "plan")
    assert [(part.start, part.stop) for part in parts.parts] == [(0, 4), (4, 8), (8, 11)]
    out = f"{base}/features"
    readable = [n for n in range(ITEMS) if n % 4 != 3]
    assert extract_parts(parts, *ENCODERS, out) == len(readable)
    assert extract_parts(parts, *ENCODERS, out) == 0  # all is there
    store = join_parts(out, tmp_path / "joined")
    assert list(store.dataset.ids) == [f"item {n}" for n in readable]
    assert [name for name, _ in store.skipped] == ["item 3", "item 7"]
    for n in range(ITEMS):
        if n % 4 != 3:
            path = tmp_path / "local" / "images" / f"{n}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(n))
    fetch(source, tmp_path / "local" / "items.jsonl")
    local = extract_features(read_manifest(tmp_path / "local" / "items.jsonl"), *ENCODERS, tmp_path / "features")
    for name in ("image", "text"):
        np.testing.assert_array_equal(getattr(store, name)[:], getattr(local, name)[:])
    assert store.recipe == local.recipe
    assert (store.dataset.texts, store.dataset.label_names) == (local.dataset.texts, local.dataset.label_names)
    np.testing.assert_array_equal(store.dataset.labels, local.dataset.labels)


@pytest.mark.slow
@PROTOCOLS
def test_codes_and_indices_of_shards_equal_those_of_local_data(protocol, tmp_path, pictured):
    base = base_of(protocol, tmp_path)
    for number, rows in enumerate((range(5), range(5, 9), range(9, 11))):
        shard(f"{base}/part-{number}.tar", rows)
    parts = parts_of(f"{base}/part-*.tar", tmp_path)
    out = f"{base}/codes"
    assert code_parts(pictured, parts, out) == ITEMS
    assert listed(out, (".parquet",)) == [f"{out}/codes-0000{n}.parquet" for n in range(3)] or protocol == "file"
    assert index_parts(pictured, out, tmp_path / "index") == {"image": ITEMS, "text": ITEMS}
    for number in range(3):
        fetch(f"{base}/part-{number}.tar", tmp_path / "tars" / f"part-{number}.tar")
    data = read_webdataset(tmp_path / "tars", images=tmp_path / "unpacked", prefix_ids=True)
    local = encode_store(pictured.model, extract_features(data, *ENCODERS, tmp_path / "features"))
    for modality in MODALITIES:
        index = Index.load(index_path(tmp_path / "index", modality))
        assert index.codes == local.codes(modality)
        assert index.ids.listed(np.arange(ITEMS)) == list(data.ids)
        assert (index.model, index.modality) == (pictured.record.model, modality)
        assert index.payloads[4] == {"text": "text 4", "labels": ["x"]}


def test_what_was_stopped_is_resumed_without_what_is_done(tmp_path, few_rows, monkeypatch):
    source, out = manifest("flaky://bucket/data"), "flaky://bucket/out"
    parts = parts_of(source, tmp_path)
    monkeypatch.setattr(objects, "TRIES", 1)
    Flaky.writes = 6  # the plan, then the three files of the first part; the next one fails
    with pytest.raises(DataError):
        extract_parts(parts, *ENCODERS, out)
    with pytest.raises(DataError):
        join_parts(out, tmp_path / "joined")
    encoded = []

    class Counting(Letters):
        def encode(self, items):
            encoded.extend(items)
            return super().encode(items)

    assert extract_parts(parts, Counting(24), Letters(), out) == 6
    assert len(encoded) == 8  # the images of two parts, in batches of four; not those of the first part
    assert len(join_parts(out, tmp_path / "joined")) == 9
    assert not [name for name in Flaky.store if name.endswith("~")]
    assert not (tmp_path / "joined-parts").exists()


def test_transfers_that_are_cut_off_are_tried_again(tmp_path):
    write_bytes("flaky://bucket/a", b"0123456789")
    Flaky.failures = 2  # too short, then an error
    fetch("flaky://bucket/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"0123456789"
    Flaky.failures = 99
    with pytest.raises(DataError) as caught:
        fetch("flaky://bucket/a", tmp_path / "b")
    assert caught.value.field == "flaky://bucket/a"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    Flaky.failures, Flaky.writes = 0, 1
    put(tmp_path / "a", "flaky://bucket/c")
    assert sizes_of(["flaky://bucket/c", "flaky://bucket/none"]) == [10, -1]
    assert sorted(Flaky.store) == ["/bucket/a", "/bucket/c"]


def test_a_missing_bucket_is_an_error_and_is_not_made(tmp_path, monkeypatch):
    fsspec.register_implementation("buckets", Buckets, clobber=True)
    monkeypatch.setitem(objects.EXTRAS, "buckets", objects.EXTRAS["s3"])
    (tmp_path / "a").write_bytes(b"content")
    put(tmp_path / "a", "buckets://there/new/folder/c")
    fetch("buckets://there/new/folder/c", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"content"
    with pytest.raises(DataError) as caught:
        put(tmp_path / "a", "buckets://missing/c")
    assert caught.value.field == "buckets://missing/c"
    assert list(Buckets.store) == ["/there/new/folder/c"]


def test_a_result_of_other_data_or_made_otherwise_is_kept(tmp_path, few_rows):
    source, out = manifest("memory://bucket/data"), "memory://bucket/out"
    extract_parts(parts_of(source, tmp_path), *ENCODERS, out)
    with pytest.raises(MismatchError):
        extract_parts(parts_of(source, tmp_path), Letters(12), Letters(), out)
    other = parts_of(manifest("memory://bucket/more", rows=range(3)), tmp_path)
    with pytest.raises(MismatchError) as caught:
        extract_parts(other, *ENCODERS, out)
    assert caught.value.field == out


def test_a_manifest_that_changes_meanwhile_is_refused(tmp_path):
    source = manifest("memory://bucket/data")
    parts = parts_of(source, tmp_path)
    manifest("memory://bucket/data", rows=range(5))
    with pytest.raises(DataError) as caught:
        parts.fetch(0, tmp_path)
    assert caught.value.field == source


@pytest.mark.parametrize(
    "image", ["flaky://bucket/x.png", "file:///etc/passwd", "../../../../etc/passwd", "http://127.0.0.1/x.png",
              "memory://other/x.png", "simplecache::memory://bucket/x.png", "s3://key:secret@bucket/x"],
)  # fmt: skip
def test_a_manifest_does_not_choose_what_this_machine_connects_to(image, tmp_path, monkeypatch):
    write_bytes("memory://bucket/data/ok.png", png(1))
    rows = [
        {"id": "a", "image": "ok.png", "text": "", "labels": []},
        {"id": "b", "image": image, "text": "", "labels": []},
    ]
    write_bytes("memory://bucket/data/items.jsonl", "\n".join(map(json.dumps, rows)).encode())
    opened = []
    original = objects._filesystem

    def watched(url, stranger=False):
        opened.append((url, stranger))
        return original(url, stranger)

    monkeypatch.setattr(objects, "_filesystem", watched)
    with pytest.raises(DataError) as caught:
        parts_of("memory://bucket/data/items.jsonl", tmp_path)
    assert (caught.value.row, shown_path(caught.value.file)) == (2, "memory://bucket/data/items.jsonl")
    assert {place_of(url) for url, _ in opened} == {"memory://bucket"}


def test_images_of_other_stores_are_fetched_without_credentials_where_allowed(tmp_path, monkeypatch):
    source = manifest("memory://bucket/data", images="flaky://images/{}.png")
    parts = parts_of(source, tmp_path, download=True)
    asked = []
    original = objects._filesystem

    def watched(url, stranger=False):
        asked.append((place_of(url), stranger))
        return original(url, stranger)

    monkeypatch.setattr(objects, "_filesystem", watched)
    data = parts.fetch(0, tmp_path / "part")
    assert set(asked) == {("memory://bucket", False), ("flaky://images", True)}
    assert sum(path.exists() for path in data.images) == 9
    asked.clear()
    own = parts_of(source, tmp_path, images="flaky://images")  # named by the user, so not of a stranger
    own.fetch(0, tmp_path / "again")
    assert ("flaky://images", False) in asked
    for protocol, options in objects.WITHOUT_CREDENTIALS.items():
        assert options in ({"anon": True}, {"token": "anon"}, {"token": False}), protocol


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    for url in ("memory://bucket/none.csv", "memory://bucket/none/", "memory://bucket/*.tar"):
        with pytest.raises(DataError) as caught:
            parts_of(url, tmp_path)
        assert caught.value.field == url
    with pytest.raises(DataError):
        parts_of("nothing://bucket/items.csv", tmp_path)
    shard("memory://bucket/a.tar", range(2))
    with pytest.raises(DataError) as images:
        parts_of("memory://bucket/a.tar", tmp_path, images="memory://bucket/x")
    assert images.value.option == "images"
    write_bytes("memory://bucket/bad.csv", b"name\nx\n")
    with pytest.raises(DataError) as bad:
        parts_of("memory://bucket/bad.csv", tmp_path)
    assert shown_path(bad.value.file) == "memory://bucket/bad.csv"
    with pytest.raises(DataError):
        join_parts("memory://bucket/none", tmp_path / "joined")
    with pytest.raises(DataError):
        listed("memory://bucket/none", (".parquet",))


def test_messages_name_what_the_user_gave_and_no_temporary_file(tmp_path):
    base = f"file://{tmp_path}/data"
    manifest(base, name="items.csv")  # lines of JSON, so no table
    manifest(base, rows=range(4))
    shard(f"{base}/a.tar", range(3))
    cut = (tmp_path / "data" / "a.tar").read_bytes()[:2000]
    write_bytes(f"{base}/b.tar", cut)
    for name in ("items.csv", "b.tar"):
        with pytest.raises(DataError) as caught:
            Parts.of(f"{base}/{name}", tmp_path / "local").fetch(0, tmp_path / "local")
        assert str(caught.value).startswith(f"{base}/{name}") and "local" not in str(caught.value)
    write_bytes(f"{base}/notes.csv", b"id,image,text,more\n1,images/0.png,x,y\n2,images/none.png,x,y\n")
    with pytest.warns(DataNote, match="more") as told:
        parts = Parts.of(f"{base}/notes.csv", tmp_path / "local")
        extract_parts(parts, *ENCODERS, f"file://{tmp_path}/out")
    assert {str(each.message).partition(": ")[0] for each in told} == {f"{base}/notes.csv"}
    ((_, reason),) = join_parts(f"file://{tmp_path}/out", tmp_path / "store").skipped
    assert reason == "no such image."


@pytest.mark.parametrize(("protocol", "extra"), [("s3", "s3"), ("gs", "gcs")])
def test_the_extra_of_a_store_is_named(protocol, extra, tmp_path, monkeypatch):
    def lacking(*_, **__):
        raise ImportError("Install it")

    monkeypatch.setattr(fsspec, "filesystem", lacking)
    with pytest.raises(MissingExtraError) as caught:
        parts_of(f"{protocol}://bucket/items.csv", tmp_path)
    assert caught.value.extra == extra


def test_codes_of_another_model_are_not_indexed(tmp_path, pictured, finished):
    shard("memory://bucket/a.tar", range(3))
    parts = parts_of("memory://bucket/a.tar", tmp_path)
    code_parts(pictured, parts, "memory://bucket/codes")
    with pytest.raises(MismatchError) as caught:
        index_parts(finished, "memory://bucket/codes", tmp_path / "index")
    assert caught.value.field.startswith("memory://bucket/codes/codes-00000")
    assert not list((tmp_path / "index").glob("*.mbx"))


def test_the_memory_of_another_process_is_refused_by_its_option(finished, tmp_path):
    run, source = finished.folder, "memory://bucket/items.csv"
    for words, option in (
        (("features", source, "--out", tmp_path / "x"), "DATA"),
        (("features", "file:///none.csv", "--out", "memory://x"), "--out"),
        (("encode", run, source, "--out", "file:///x"), "FEATURES"),
        (("encode", run, "file:///none.csv", "--out", "memory://x"), "--out"),
        (("index", run, "--codes", "memory://bucket/codes"), "--codes"),
    ):
        assert_names(refused(*words), f"{option}: memory://")


def test_a_missing_object_is_named_with_its_url(tmp_path):
    (tmp_path / "empty").mkdir()
    base = f"file://{tmp_path}"
    for name, said in (("none.csv", "no such object"), ("none", "no such folder"), ("empty", "nothing in it")):
        with pytest.raises(DataError) as caught:
            Parts.of(f"{base}/{name}", tmp_path)
        assert caught.value.field == f"{base}/{name}" and said in caught.value.problem and caught.value.hint


@pytest.mark.slow
def test_the_command_line_goes_from_urls_to_an_index(tmp_path, letters, pictured, few_rows):
    source, base = manifest(f"file://{tmp_path}/data"), f"file://{tmp_path}"
    encoders = "--image-encoder", "letters", "--text-encoder", "letters"
    done("features", source, "--out", tmp_path / "features", *encoders)
    assert not (tmp_path / "features-parts").exists()
    done("features", source, "--out", f"{base}/parts", *encoders)
    done("features", f"{base}/parts", "--out", tmp_path / "joined")
    one, other = (FeatureStore.open(tmp_path / name) for name in ("features", "joined"))
    np.testing.assert_array_equal(one.image[:], other.image[:])
    assert one.dataset.ids == other.dataset.ids
    done("encode", pictured.folder, source, "--out", f"{base}/codes")
    (tmp_path / "rows.csv").write_text("id,file,text\n1,images/1.png,a\n2,images/2.png,b\n")
    mapped = "--images", f"{base}/data", "--map", "image=file"
    assert "2 items" in done("encode", pictured.folder, f"{base}/rows.csv", "--out", f"{base}/mapped", *mapped)
    done("index", pictured.folder, "--codes", f"{base}/codes", "--out", tmp_path / "index")
    assert len(Index.open(tmp_path / "index" / "image.mbx")) == 9
    for words in (
        ("features", source, "--out", tmp_path / "x", "--update"),
        ("features", source, "--out", tmp_path / "x", "--tokens"),
        ("features", tmp_path / "data" / "items.jsonl", "--out", f"{base}/x"),
        ("features", f"{base}/parts", "--out", f"{base}/x"), ("encode", pictured.folder, source, "--out", "codes.npz"),
        ("encode", pictured.folder, source, "--out", f"{base}/codes", "--bits", 8),
        ("encode", pictured.folder, "--images", f"{base}/data"),
        ("index", pictured.folder, "--codes", f"{base}/codes", "--out", tmp_path / "index", "--update"),
        ("features", tmp_path / "data" / "items.jsonl", "--out", tmp_path / "x", "--download"),
    ):  # fmt: skip
        refused(*words)
    assert not Path(tmp_path / "x").exists()
