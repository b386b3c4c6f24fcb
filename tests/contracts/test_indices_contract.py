"""The contract of every index, in this process and in a database: what plain Python finds, in the same order."""

from __future__ import annotations

import datetime
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from databases import ClickHouseServer, PostgresServer
from multibit import Codes, Index
from multibit.errors import ConfigError, DataError, MismatchError
from multibit.search.remote import create_remote, load, open_remote
from properties.test_filters import FILTERS

BACKENDS = ("local", "clickhouse", "postgresql", "postgresql, three databases")
WITH_CHDB = (*BACKENDS, "chdb")  # the tables and statements are those of a server: only what is sent differs
TABLES = itertools.count()
DAY, NOON = datetime.date(1500, 2, 28), datetime.datetime(2024, 2, 29, 12, 0, 0, 1)


@pytest.fixture(scope="module")
def postgres():
    pytest.importorskip("psycopg", reason='psycopg is not installed: pip install "multibit[postgres]"')
    import psycopg

    server = PostgresServer()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        for number in range(3):
            connection.execute(f"CREATE DATABASE part{number}")
    yield server
    server.remove()


@pytest.fixture(scope="module")
def clickhouse():
    server = ClickHouseServer()
    yield server
    server.remove()


@pytest.fixture(params=BACKENDS)
def backend(request):
    """The URL of fresh tables; None for an index in this process."""
    return url_of(request.param, request)


sent_otherwise = pytest.mark.parametrize("backend", WITH_CHDB, indirect=True)


def url_of(name, request):
    if name == "local":
        return None
    table = f"t{next(TABLES)}"
    if name == "clickhouse":
        return request.getfixturevalue("clickhouse").url(table=table)
    if name == "chdb":
        return f"{request.getfixturevalue('chdb')}?table={table}"
    url = request.getfixturevalue("postgres").url(table=table)
    if name == "postgresql":
        return url
    return ",".join(url.replace("/postgres?", f"/part{number}?") for number in range(3))


def created(backend, bits, **facts):
    """An empty index."""
    if backend is None:
        return Index(facts.get("model", ""), modality=facts.get("modality", ""))
    return create_remote(backend, bits=bits, **facts)


def random_bits(items, length, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (items, length), np.uint8)


def nearest(database, query, k, bits, keep=lambda row: True, most=None):
    """Rows and distances of the nearest, by a stable sort."""
    distances = (database[:, :bits] != query[:bits]).sum(1)
    rows = [row for row in np.argsort(distances, kind="stable").tolist() if keep(row)]
    rows = [row for row in rows if most is None or distances[row] <= most][:k]
    return rows, distances[rows].tolist()


def found(result, query=0):
    return [(hit.id, hit.distance) for hit in result.hits(query)]


@pytest.mark.parametrize("length", [1, 16, 33, 100, 200])  # in databases a code is words of 16, 16, 32 and 64 bits
def test_hits_are_those_of_a_stable_sort_at_every_prefix(backend, length):
    database, queries = random_bits(60, length, seed=length), random_bits(3, length, seed=1)
    database[20:40] = database[:20]  # ties, which age decides
    index = created(backend, length)
    index.upsert([f"item {row}" for row in range(60)], Codes.from_bits(database))
    for bits in sorted({1, min(15, length), min(16, length), min(17, length), min(40, length), length}):
        for k in (7, 1000):
            result = index.search(Codes.from_bits(queries), k, bits)
            for number, query in enumerate(queries):
                rows, distances = nearest(database, query, k, bits)
                assert found(result, number) == [(f"item {r}", d) for r, d in zip(rows, distances, strict=True)]
            assert result.distances[:, : len(rows)].dtype == np.uint16


def test_only_hits_within_the_largest_distance(backend):
    database = random_bits(50, 20, seed=3)
    index = created(backend, 20)
    index.upsert(list(map(str, range(50))), Codes.from_bits(database))
    for bits, most in ((20, 0), (20, 6), (20, 20), (9, 3), (20, 60_000)):
        result = index.search(Codes.from_bits(database[[7]]), 100, bits, max_distance=most)
        rows, distances = nearest(database, database[7], 100, bits, most=most)
        assert found(result) == [(str(row), distance) for row, distance in zip(rows, distances, strict=True)]


def test_one_item_and_none(backend):
    index = created(backend, 8)
    if backend is not None:  # an index in this process has no length before its first item
        assert len(index) == 0
        assert index.search(Codes.from_bits(random_bits(2, 8)), 3).ids == [[], []]
    index.upsert(["one"], Codes.from_bits(np.zeros((1, 8))), [{"n": 1}])
    assert index.search(Codes.from_bits(np.ones((1, 8))), 5).to_table().to_pylist() == [
        {"query": 0, "rank": 1, "id": "one", "distance": 8, "n": 1}
    ]
    index.remove(["one"])
    assert len(index) == 0
    assert index.search(Codes.from_bits(np.ones((1, 8))), 5).ids == [[]]


def test_a_replaced_item_is_the_last_and_the_others_keep_their_age(backend):
    index, same = created(backend, 16), np.zeros((3, 16))
    index.upsert(["a", "b", "c"], Codes.from_bits(same), [{"n": 1}, {"n": 2}, {"n": 3}])
    index.upsert(["a"], Codes.from_bits(same[:1]), [{"s": "new"}])
    result = index.search(Codes.from_bits(same[:1]), 9)
    assert result.ids == [["b", "c", "a"]]
    assert [hit.payload for hit in result.hits()] == [{"n": 2}, {"n": 3}, {"s": "new"}]
    index.remove(["c"])
    index.upsert(["c", "d"], Codes.from_bits(same[:2]))
    assert index.search(Codes.from_bits(same[:1]), 9).ids == [["b", "a", "c", "d"]]
    assert len(index) == 4


@sent_otherwise
def test_integer_ids(backend):
    index = created(backend, 16, **({} if backend is None else {"integer_ids": True}))
    database, ids = random_bits(4, 16, seed=5), [-(2**63), -1, 7, 2**63 - 1]
    index.upsert(ids, Codes.from_bits(database))
    rows, _ = nearest(database, database[2], 4, 16)
    assert index.search(Codes.from_bits(database[[2]]), 4).ids == [[ids[row] for row in rows]]
    assert index.codes_of([7, -1]) == Codes.from_bits(database[[2, 1]])
    index.remove([2**63 - 1])
    with pytest.raises(DataError):
        index.remove(["7"])
    with pytest.raises(DataError):
        index.upsert(["text"], Codes.from_bits(database[:1]))


UNUSUAL = (
    "", "\u00e9", "e\u0301", "日本 👁", "'; DROP TABLE x; --", '"quoted" `name` {x:String} %(k)s %s', "a\\b\n\t", "$f",
)  # fmt: skip


@sent_otherwise
def test_any_texts_are_ids_fields_and_values(backend):
    index, database = created(backend, 24), random_bits(len(UNUSUAL), 24, seed=6)
    payloads = [{text: text, f"list {text}": [text, "x"]} for text in UNUSUAL]
    index.upsert(list(UNUSUAL), Codes.from_bits(database), payloads)
    for row, text in enumerate(UNUSUAL):
        query = Codes.from_bits(database[[row]])
        (hit,) = index.search(query, 1).hits()
        assert (hit.id, hit.distance, hit.payload) == (text, 0, payloads[row])
        for where in ({text: text}, {f"list {text}": text}, {f"list {text}": [text, "x"]}, {text: {"$gte": text}}):
            if not text.startswith("$"):
                assert index.search(query, 9, where=where).ids == [[text]]
        assert index.search(query, 9, among=[text]).ids == [[text]]
    assert set(index.fields) == {name for text in UNUSUAL for name in (text, f"list {text}")}


ITEMS = [
    {"text": text, "n": n, "f": f, "on": on, "day": day, "time": time, "tags": tags, "json": json}
    for text, n, f, on, day, time, tags, json in zip(
        ["", "a", "b", "日本", "👁", "Z", None, "a b"],
        [0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63), None, 2],
        [0.0, 0.5, 1.0, 2.0**53, -1e300, 1e-300, None, 2.0],
        [True, False, None, True, False, True, None, False],
        [datetime.date(2020, 1, 1), DAY, datetime.date(9999, 12, 31), None, datetime.date(2020, 1, 3)] + [None] * 3,
        [datetime.datetime(2020, 1, 1), NOON, datetime.datetime(1, 1, 1), None] + [None] * 4,
        [[], ["a"], ["a", "b"], ["b", "a"], None, ["日本", ""], ["Z"], ["👁"]],
        [{}, {"a": 1}, {"a": [None, "b"], "b": 2.5}, None, [1], ["a", 1], None, {"a": 1.0}],
        strict=True,
    )
]


@pytest.mark.parametrize("name", WITH_CHDB[1:])
def test_a_filter_selects_what_it_selects_in_this_process(name, request):
    """Any filter: the walk over Arrow columns is compared with plain Python elsewhere."""
    payloads = [{key: value for key, value in item.items() if value is not None} for item in ITEMS]
    database, ids = random_bits(len(ITEMS), 16, seed=8), [f"i{row}" for row in range(len(ITEMS))]
    indices = [Index(), created(url_of(name, request), 16)]
    for index in indices:
        index.upsert(ids, Codes.from_bits(database), payloads)
    query = Codes.from_bits(database[[0]])

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(FILTERS)
    def same(where):
        here, there = (index.search(query, 99, where=where, fields=[]).ids for index in indices)
        assert here == there

    same()
    every = [index.search(query, 99) for index in indices]
    assert [hit.payload for hit in every[0].hits()] == [hit.payload for hit in every[1].hits()]
    assert every[0].to_table().equals(every[1].to_table())


@sent_otherwise
def test_times_in_any_zone(backend):
    utc, other = datetime.UTC, datetime.timezone(datetime.timedelta(hours=5, minutes=30))
    index = created(backend, 8)
    times = [datetime.datetime(1890, 1, 1, tzinfo=utc), datetime.datetime(2024, 1, 1, 5, 30, tzinfo=other)]
    index.upsert(["a", "b"], Codes.from_bits(np.zeros((2, 8))), [{"t": each} for each in times])
    query = Codes.from_bits(np.zeros((1, 8)))
    assert [hit.payload["t"] for hit in index.search(query).hits()] == times
    assert index.search(query, where={"t": "2024-01-01T00:00:00+00:00"}).ids == [["b"]]
    assert index.search(query, where={"t": {"$lt": "1900-01-01T00:00:00+00:00"}}).ids == [["a"]]


def test_hundreds_of_queries(backend):
    """More than a statement to a database takes."""
    database, queries = random_bits(40, 32, seed=9), random_bits(200, 32, seed=10)
    index = created(backend, 32)
    index.upsert(list(map(str, range(40))), Codes.from_bits(database))
    results = list(index.search_batches(Codes.from_bits(queries), 2, 19, fields=[]))
    ids = [each for result in results for each in result.ids]
    assert ids == [[str(row) for row in nearest(database, query, 2, 19)[0]] for query in queries]


@sent_otherwise
def test_an_error_changes_nothing(backend):
    index, one = created(backend, 8), Codes.from_bits(np.zeros((1, 8)))
    index.upsert(["a"], one, [{"n": 1}])
    for ids, codes, payloads in (
        (["b"], Codes.from_bits(np.zeros((1, 9))), None),
        (["b", "c"], one, None),
        (["b", "b"], Codes.from_bits(np.zeros((2, 8))), None),
        (["b"], one, [{"n": "text"}]),
        ([1], one, None),
    ):
        with pytest.raises(DataError):
            index.upsert(ids, codes, payloads)
    for work in (
        lambda: index.remove(["a", "unknown"]),
        lambda: index.search(one, among=["unknown"]),
        lambda: index.search(one, where={"unknown": 1}),
        lambda: index.search(one, where={"n": "text"}),
        lambda: index.search(one, 0),
        lambda: index.search(one, bits=9),
        lambda: index.search(one, max_distance=-1),
        lambda: index.codes_of(["unknown"]),
    ):
        with pytest.raises(DataError):
            work()
    with pytest.raises(ConfigError):
        index.search(one, fields=["unknown"])
    assert index.search(one).to_table().to_pylist() == [{"query": 0, "rank": 1, "id": "a", "distance": 0, "n": 1}]


def test_codes_of_another_model_are_refused(backend):
    index, one = created(backend, 8, model="m1"), Codes.from_bits(np.zeros((1, 8)))
    index.upsert(["a"], one)
    with pytest.raises(MismatchError):
        index.search(one, model="m2")
    with pytest.raises(MismatchError):
        index.upsert(["b"], Codes(one.words, 8, model="m2"))
    with pytest.raises(MismatchError):
        index.require_model("m2")
    assert index.search(one, model="m1").ids == [["a"]]


def test_items_in_order_of_age(backend):
    index = created(backend, 8)
    index.upsert(list("abcd"), Codes.from_bits(np.zeros((4, 8))), [{"n": n, "t": ["x"] * (n % 2)} for n in range(4)])
    index.upsert(["a"], Codes.from_bits(np.ones((1, 8))), [{"n": 3}])
    assert index.page(1, 2) == [("c", {"n": 2, "t": []}), ("d", {"n": 3, "t": ["x"]})]
    assert index.page(3, 9) == [("a", {"n": 3})]
    assert index.codes_of(["a", "b", "a"]) == Codes.from_bits(np.array([[1] * 8, [0] * 8, [1] * 8]))
    if backend is not None:
        assert index.values("n") == [(3, 2), (1, 1), (2, 1)]
        assert index.values("t") == [("x", 2)]


@pytest.mark.parametrize("name", WITH_CHDB[1:])
def test_a_loaded_index_answers_as_the_index(name, request):
    url, database = url_of(name, request), random_bits(300, 100, seed=11)
    local = Index("m1", modality="image")
    payloads = [{"n": row % 7, "tags": ["even"] if row % 2 == 0 else []} if row % 3 else {} for row in range(300)]
    local.add([f"i{row}" for row in range(300)], Codes.from_bits(database), payloads)
    local.remove(["i5"])
    local.upsert(["i6"], Codes.from_bits(database[[5]]))
    load(local, url)
    remote = open_remote(url)
    assert (len(remote), remote.bits, remote.model, remote.modality) == (299, 100, "m1", "image")
    assert remote.fields == local.fields
    for where in (None, {"tags": "even"}, {"n": {"$gte": 3}}):
        here, there = (each.search(Codes.from_bits(database[:3]), 20, 70, where=where) for each in (local, remote))
        assert here.to_table().equals(there.to_table())
    assert open_remote(url).read_where(["tags=even"]) == local.read_where(["tags=even"])
