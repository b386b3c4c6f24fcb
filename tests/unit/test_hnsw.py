"""Approximate searches with the HNSW indices of pgvector, on a real server."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from databases import PostgresServer, binaries_with_pgvector
from multibit import Codes, Index
from multibit.errors import ConfigError, DataError
from multibit.search.remote import create_remote, hnsw, load, open_remote, recall
from multibit.search.remote.urls import read_url
from multibit.search.results import write_hits

ITEMS, BITS = 3000, 64
TABLES = iter(range(1000))


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("psycopg", reason='psycopg is not installed: pip install "multibit[postgres]"')
    import psycopg

    server = PostgresServer(binaries_with_pgvector())
    with psycopg.connect(server.url(), autocommit=True) as connection:
        for number in range(2):
            connection.execute(f"CREATE DATABASE part{number}")
    yield server
    server.remove()


@pytest.fixture(scope="module")
def bits():
    """Codes of 60 clusters, in which a graph is easy to follow."""
    random = np.random.default_rng(0)
    centres = random.integers(0, 2, (60, BITS))
    return centres[random.integers(0, 60, ITEMS)] ^ (random.random((ITEMS, BITS)) < 0.1)


@pytest.fixture(scope="module")
def local(bits):
    index = Index("m1", modality="image")
    rows = range(ITEMS)
    index.add([f"i{row}" for row in rows], Codes.from_bits(bits), [{"n": row, "third": row % 3 == 0} for row in rows])
    return index


@pytest.fixture(scope="module")
def url(server, local):
    """An index with HNSW indices at two lengths; a table with a capital letter."""
    url = server.url(table="Loaded", hnsw="32,64")
    load(local, url)
    return url


def fresh(server, **options):
    return server.url(table=f"t{next(TABLES)}", **options)


def plan(index, run):
    """What the server plans for the search that is run."""
    statements = []
    fetched = index.store._fetched
    index.store._fetched = lambda connection, statement, values: (
        (
            statements.append(json.dumps(fetched(connection, f"EXPLAIN (FORMAT JSON) {statement}", values)))
            if statement.startswith("SELECT one.number")
            else None
        )
        or fetched(connection, statement, values)
    )
    run()
    del index.store._fetched
    return statements


@pytest.mark.parametrize("length", [32, 64])
def test_an_approximate_search_uses_the_index_and_is_marked(url, bits, length, tmp_path):
    index, queries = open_remote(url), Codes.from_bits(bits[:20])
    (planned,) = plan(index, lambda: index.search(queries, 10, length, ef_search=100))
    assert f"loaded_image_hnsw_{length}" in planned
    (planned,) = plan(index, lambda: index.search(queries, 10, length))
    assert "hnsw" not in planned
    result, exact = index.search(queries, 10, length, ef_search=100), index.search(queries, 10, length)
    assert (result.exact, exact.exact) == (False, True)
    assert "approximate" in repr(result)
    assert "approximate" not in repr(exact)
    out = tmp_path / "hits.parquet"
    write_hits(out, index.search_batches(queries, 10, length, ef_search=100, fields=[]), 20)
    assert json.loads(pq.read_schema(out).metadata[b"multibit"])["exact"] is False


def test_hits_have_their_true_distance_and_are_ordered_by_distance_and_age(url, bits):
    index = open_remote(url)
    result = index.search(Codes.from_bits(bits[:20]), 50, 32, ef_search=60)
    for number in range(20):
        rows = [int(each[1:]) for each in result.ids[number]]
        distances = (bits[rows, :32] != bits[number, :32]).sum(1).tolist()
        assert result.distances[number, : len(rows)].tolist() == distances
        assert list(zip(distances, rows, strict=True)) == sorted(zip(distances, rows, strict=True))
        assert len(set(rows)) == 50


def test_recall_is_that_of_the_definition_and_grows_with_the_candidates(url, bits):
    index, queries = open_remote(url), Codes.from_bits(bits[:40])
    for length, candidates in ((32, 10), (64, 10), (64, 400)):
        found, good = index.search(queries, 10, length, ef_search=candidates), 0
        for number, names in enumerate(found.ids):
            distances = (bits[:, :length] != bits[number, :length]).sum(1)
            good += sum(distances[int(name[1:])] <= np.sort(distances)[9] for name in names)
        assert recall(index, queries, 10, length, ef_search=candidates) == pytest.approx(good / 400)
    few, many = (recall(index, queries, 10, ef_search=candidates) for candidates in (1, 400))
    assert few <= many
    assert many > 0.95
    with pytest.raises(DataError):
        recall(index, queries.take([]), ef_search=10)
    with pytest.raises(DataError):
        recall(index, queries, ef_search=10, where={"n": -1})


def test_recall_counts_what_a_filter_and_a_distance_leave(url, bits):
    index, queries = open_remote(url), Codes.from_bits(bits[:40])
    found = index.search(queries, 10, max_distance=9, where={"third": True}, ef_search=10)
    distances = (bits[:40, None] != bits[None, ::3]).sum(2)
    there = np.minimum((distances <= 9).sum(1), 10)
    assert there.min() < 10 < there.sum()  # the queries have different numbers of hits
    good = sum(
        int((found.distances[number, :count] <= np.sort(distances[number])[there[number] - 1]).sum())
        for number, count in enumerate(found.counts)
        if there[number]
    )
    measured = recall(index, queries, 10, max_distance=9, where={"third": True}, ef_search=10)
    assert measured == pytest.approx(good / there.sum())


def test_a_filter_and_the_largest_distance_hold(url, bits):
    index, queries = open_remote(url), Codes.from_bits(bits[:10])
    result = index.search(queries, 200, where={"third": True}, ef_search=40)
    assert all(int(each[1:]) % 3 == 0 for names in result.ids for each in names)
    assert result.counts.tolist() == [200] * 10  # more than the candidates: the scan goes on
    near = index.search(queries, 100, max_distance=9, ef_search=400)
    assert near.distances.max() <= 9
    exact = index.search(queries, 100, max_distance=9)
    assert near.counts.sum() > 0.9 * exact.counts.sum() > 0
    assert index.search(queries, 10, where={"n": 7}, ef_search=1).ids == [["i7"]] * 10
    assert index.search(queries, 10, among=["i5"], ef_search=1).ids == [["i5"]] * 10


def test_changes_are_found(server, bits):
    url = fresh(server, hnsw=BITS)
    index = create_remote(url, bits=BITS)
    index.upsert([f"i{row}" for row in range(500)], Codes.from_bits(bits[:500]))
    index.remove(["i3"])
    index.upsert(["i4"], Codes.from_bits(1 - bits[[4]]))
    index.store.settle()
    assert index.search(Codes.from_bits(1 - bits[[4]]), 1, ef_search=100).ids == [["i4"]]
    assert "i3" not in index.search(Codes.from_bits(bits[[3]]), 500, ef_search=1000).ids[0]


def test_an_index_is_added_by_the_same_load_with_another_url(server, local, bits):
    table, query = f"t{next(TABLES)}", Codes.from_bits(bits[:1])
    index = load(local, server.url(table=table))
    with pytest.raises(ConfigError) as caught:
        index.search(query, ef_search=10)
    assert caught.value.option == "ef_search"
    index = load(local, server.url(table=table, hnsw=16))
    assert not index.search(query, bits=16, ef_search=10).exact
    with pytest.raises(ConfigError):
        index.search(query, bits=17, ef_search=10)


def test_several_servers(server, local, bits):
    one = fresh(server, hnsw=BITS)
    index = load(local, ",".join(one.replace("/postgres?", f"/part{number}?") for number in range(2)))
    queries = Codes.from_bits(bits[:20])
    assert index.capabilities.approximate
    assert not index.search(queries, ef_search=200).exact
    assert recall(index, queries, ef_search=400) > 0.95


@pytest.mark.parametrize("candidates", [0, 1001, -1, 1.5, True, "40"])
def test_invalid_candidates_are_refused(url, bits, candidates):
    with pytest.raises(ConfigError) as caught:
        open_remote(url).search(Codes.from_bits(bits[:1]), ef_search=candidates)
    assert caught.value.option == "ef_search"


def test_a_server_without_pgvector_is_refused_before_anything_is_stored(server, local, monkeypatch):
    monkeypatch.setattr(hnsw, "EXTENSION", "pgvector_that_is_absent")
    url = fresh(server, hnsw=BITS)
    for work in (lambda: load(local, url), lambda: create_remote(url, bits=BITS)):
        with pytest.raises(ConfigError) as caught:
            work()
        assert caught.value.option == "url"
        assert caught.value.hint
    with pytest.raises(DataError):
        open_remote(url)


def test_old_versions_and_long_indices_are_refused(server):
    hnsw.require_version("0.8.0", "db")
    hnsw.require_version("1.0", "db")
    for version in ("0.7.4", None):
        with pytest.raises(ConfigError):
            hnsw.require_version(version, "db")
    with pytest.raises(ConfigError):
        create_remote(fresh(server, hnsw=BITS + 1), bits=BITS)


def test_a_database_without_hnsw_refuses_an_approximate_search(tmp_path):
    pytest.importorskip("chdb", reason="chdb is not installed: pip install chdb-core-lite")
    pytest.importorskip("clickhouse_connect", reason='not installed: pip install "multibit[clickhouse]"')
    index = create_remote(f"chdb://{tmp_path}", bits=8)
    with pytest.raises(ConfigError) as caught:
        index.search(Codes.from_bits(np.zeros((1, 8))), ef_search=10)
    assert caught.value.option == "ef_search"


def test_the_url_names_lengths():
    one, other = read_url("postgres://a/b?hnsw=64,16,64,postgresql://c/d")
    assert (one.hnsw, other.hnsw, one.options) == ((64, 16), (), ())
    for wrong in ("", "0", "64,", "a", "-1", "99999"):
        with pytest.raises(ConfigError):
            read_url(f"postgresql://a/b?hnsw={wrong}&timeout=1")
    with pytest.raises(ConfigError):
        read_url("clickhouse://a/b?hnsw=64")
