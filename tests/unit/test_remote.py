"""Indices in databases: URLs, passwords, interrupted loads, servers that are down, and what servers refuse."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from databases import PASSWORD, QUOTED, ClickHouseServer, PostgresServer, free_port
from multibit import Codes, Index
from multibit.errors import ConfigError, DataError, FormatError, MismatchError, UnavailableError
from multibit.search.remote import create_remote, load, loading, open_remote
from multibit.search.remote.base import VERSION, Facts
from multibit.search.remote.tables import Tables
from multibit.search.remote.urls import read_url
from multibit.search.remote.words import words_of

ITEMS = 40


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("psycopg", reason='psycopg is not installed: pip install "multibit[postgres]"')
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def clickhouse():
    server = ClickHouseServer()
    yield server
    server.remove()


@pytest.fixture(params=["postgresql", "clickhouse"])
def url(request):
    table = request.node.name.translate(str.maketrans("[]-", "___"))[-30:]
    if request.param == "chdb":
        return f"{request.getfixturevalue('chdb')}?table={table}"
    return request.getfixturevalue("server" if request.param == "postgresql" else "clickhouse").url(table=table)


with_chdb = pytest.mark.parametrize("url", ["postgresql", "clickhouse", "chdb"], indirect=True)


def codes_of(items, seed=0, bits=20):
    return Codes.from_bits(np.random.default_rng(seed).integers(0, 2, (items, bits)))


def indexed(seed=0, items=ITEMS):
    index = Index("m1", modality="image")
    index.add([f"i{row}" for row in range(items)], codes_of(items, seed), [{"n": row} for row in range(items)])
    return index


def answers(index):
    return index.search(codes_of(3, seed=9), ITEMS).to_table()


# URLs


@pytest.mark.parametrize(
    "url",
    [
        "mysql://a/b", "run/index", "postgresql://a:99999999/b", "postgresql://a:70000/b", "postgresql://a b:c:d/e",
        "postgresql://a/b?table=x;y", "postgresql://a/b?table=", "postgresql://a/b?timeout=soon",
        "postgresql://a/b?timeout=0", "postgresql://a/b?partial=yes", "postgresql://a/b?timeout",
        "clickhouse://a/b?cluster=x'y", "postgresql://a/b,clickhouse://c/d", "postgresql://a/b?table=x,postgresql://c/d",
        "postgresql://me:secret@[::1/b", "clickhouse://me:secret@a/b?secure=true", "clickhouse://a/b?hnsw=64",
    ],
)  # fmt: skip
def test_an_invalid_url_is_refused_without_its_password(url):
    with pytest.raises(ConfigError) as caught:
        open_remote(url)
    assert caught.value.option == "url"
    assert "secret" not in str(caught.value)


def test_a_url_names_servers_and_options():
    one, other = read_url("postgres://me:p%40ss@a:1,[::1]/photos?table=t&timeout=2.5&partial=1&sslmode=require")
    assert (one.scheme, one.host, one.port, one.user, one.password) == ("postgresql", "a", 1, "me", "p@ss")
    assert (other.host, other.port, other.database, other.table, other.timeout) == ("::1", None, "photos", "t", 2.5)
    assert (other.partial, other.options) == (True, (("sslmode", "require"),))
    assert [each.host for each in read_url("clickhouse://a/x,clickhouse://b/x")] == ["a", "b"]
    assert read_url("chdb:///a/b")[0].database == "/a/b"
    addresses = read_url("clickhouse://me:secret@a/x")
    assert "secret" not in repr(addresses) + addresses[0].shown


# What servers refuse


@pytest.mark.parametrize("name", ["server", "clickhouse"])
def test_a_wrong_password_is_refused_and_never_shown(name, request):
    with pytest.raises(ConfigError) as caught:
        open_remote(request.getfixturevalue(name).url(password="wr0ng"))
    assert caught.value.option == "url"
    assert caught.value.hint
    assert "wr0ng" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "option", "known"),
    [("chdb", "timout=5", "timeout"), ("clickhouse", "timout=5", "timeout"), ("server", "timout=5", "timeout"),
     ("chdb", "secure=1", "timeout"), ("server", "cluster=main", "hnsw"), ("clickhouse", "hnsw=64", "cluster")],
)  # fmt: skip
def test_an_option_that_is_not_known_is_refused_and_those_that_are_are_named(name, option, known, request):
    given = request.getfixturevalue(name)
    url = f"{given if name == 'chdb' else given.url()}?{option}"
    with pytest.raises(ConfigError) as caught:
        open_remote(url)
    assert caught.value.option == "url"
    assert option.partition("=")[0] in caught.value.problem
    assert known in str(caught.value)


def test_the_client_library_prints_nothing_of_its_own(capfd):
    code = f"""
from multibit.errors import UnavailableError
from multibit.search.remote import open_remote
try:
    open_remote("clickhouse://127.0.0.1:{free_port()}/x")
except UnavailableError:
    print("refused")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert tuple(capfd.readouterr()) == ("refused\n", "")


def test_the_password_is_in_no_message(server):
    for options in ({"sslmode": "nonsense"}, {"nonsense": "1"}, {"table": "nothing"}):
        with pytest.raises((ConfigError, UnavailableError, DataError)) as caught:
            open_remote(server.url(**options))
        assert PASSWORD not in str(caught.value)
        assert QUOTED not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql", "clickhouse"])
def test_an_unreachable_server(scheme):
    with pytest.raises(UnavailableError) as caught:
        open_remote(f"{scheme}://me:secret@127.0.0.1:{free_port()}/x")
    assert "secret" not in str(caught.value)
    assert caught.value.hint


def test_a_server_that_is_silent():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(UnavailableError):
            open_remote(f"clickhouse://127.0.0.1:{listener.getsockname()[1]}/x?timeout=1")


def test_a_slow_query_is_stopped(server):
    index = load(indexed(), server.url(table="slow", timeout="0.2"))
    with pytest.raises(UnavailableError):
        index.store._rows("SELECT pg_sleep(5)")
    assert len(index) == ITEMS  # the connection goes on


def test_a_slow_query_of_clickhouse_is_stopped(clickhouse):
    index = load(indexed(), clickhouse.url(table="slow", timeout="1"))
    with pytest.raises(UnavailableError):
        index.store._arrow("SELECT count() FROM numbers(1_000_000_000_000) WHERE number % 7 = 8")
    assert len(index) == ITEMS


def test_a_clickhouse_without_the_database_is_refused(clickhouse):
    with pytest.raises(ConfigError) as caught:
        open_remote(clickhouse.url().replace("/default", "/nothing"))
    assert caught.value.hint


@pytest.mark.parametrize("version", ["18.16.1", "23.1.9.1", ""])
@pytest.mark.parametrize("known", [True, False])
def test_an_old_clickhouse_is_refused_by_its_version(version, known, monkeypatch):
    """With 18.16.1, the server of Debian, the client library fails before it knows the version."""
    pytest.importorskip("clickhouse_connect")
    from multibit.search.remote import clickhouse

    def client(**_):
        if known:
            return SimpleNamespace(server_version=version)
        raise clickhouse.ClickHouseError("Code: 47, e.displayText() = DB::Exception: Unknown identifier: readonly")

    monkeypatch.setattr(clickhouse, "_version_of", lambda address: version)
    monkeypatch.setattr(clickhouse.clickhouse_connect, "get_client", client)
    with pytest.raises(ConfigError) as caught:
        open_remote("clickhouse://db/photos")
    assert caught.value.option == "url"
    assert (version or "unknown") in caught.value.problem
    assert "23.2" in caught.value.problem


def test_the_version_of_a_server_that_the_library_cannot_use(clickhouse):
    from multibit.search.remote.clickhouse import _version_of

    (address,) = read_url(clickhouse.url())
    assert re.fullmatch(r"[0-9]+(\.[0-9]+)+", _version_of(address))
    assert _version_of(read_url(f"clickhouse://127.0.0.1:{free_port()}")[0]) == ""


def test_reading_makes_no_folder(tmp_path):
    pytest.importorskip("clickhouse_connect")
    for folder in (tmp_path / "nothing", tmp_path):
        with pytest.raises(DataError):
            open_remote(f"chdb://{folder}")
        assert list(tmp_path.iterdir()) == []


@with_chdb
def test_a_missing_index(url):
    with pytest.raises(DataError):
        open_remote(url)
    index = load(indexed(), url)
    index.store.drop()
    for work in (index.refresh, lambda: answers(index), lambda: index.remove(["i1"])):
        with pytest.raises(DataError):
            work()


def test_a_newer_format_and_a_corrupt_description(url):
    store = load(indexed(), url).store
    for facts, kind in (({"version": VERSION + 1}, FormatError), ({"version": VERSION}, FormatError)):
        text = json.dumps(facts)
        if not url.startswith("postgresql"):
            store._write_facts(text)
        else:
            store._rows(f"UPDATE {store.facts_table} SET facts = %s", [text])
        with pytest.raises(kind):
            open_remote(url)


def test_another_model(url):
    index = load(indexed(), url)
    with pytest.raises(MismatchError):
        index.require_model("m2")


def test_postgresql_has_no_nul_characters(server):
    index = create_remote(server.url(table="nul"), bits=20)
    one = codes_of(1)
    for ids, payload in (
        (["a\0"], {}),
        (["a"], {"s": "\0"}),
        (["a"], {"l": ["x", "y\0z"]}),
        (["a"], {"j": {"k": "\0"}}),
    ):
        if "j" in payload:
            continue  # JSON writes it as an escape
        with pytest.raises(DataError):
            index.upsert(ids, one, [payload])
    index.upsert(["a", "ab"], codes_of(2), [{"s": "a", "l": ["a"]}, {"s": "ab", "l": ["ab"]}])
    same = Index()
    same.add(["a", "ab"], codes_of(2), [{"s": "a", "l": ["a"]}, {"s": "ab", "l": ["ab"]}])
    for sign in ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte"):
        for field in ("s", "l"):
            where = {field: {sign: "a\0b"}}
            assert index.search(one, where=where).ids == same.search(one, where=where).ids
    assert index.search(one, where={"s": {"$in": ["a\0", "ab"]}}).ids == [["ab"]]
    with pytest.raises(DataError):
        index.codes_of(["a\0"])


# Loads


class StopError(Exception):
    pass


@pytest.mark.parametrize("when", ["put", "described", "settled"])
def test_a_load_that_is_killed_is_resumed(url, when, monkeypatch):
    monkeypatch.setattr(loading, "BLOCK", 14)
    local = indexed()
    store_of, writes = loading.open_store, []

    def dying(*given, **options):
        store = store_of(*given, **options)
        name = {"put": "put", "described": "describe", "settled": "settle"}[when]
        work = getattr(store, name)

        def once(*given):
            writes.append(given)
            work(*given)
            if len(writes) == (1 if when == "settled" else 2):
                raise StopError

        monkeypatch.setattr(store, name, once)
        return store

    monkeypatch.setattr(loading, "open_store", dying)
    with pytest.raises(StopError):
        load(local, url)
    with pytest.raises(DataError):
        open_remote(url)  # it is not complete
    monkeypatch.setattr(loading, "open_store", store_of)
    resumed = load(local, url)
    assert answers(resumed).equals(answers(local))
    assert resumed.page(0, ITEMS) == local.page(0, ITEMS)
    changes = resumed.facts.changes
    assert load(local, url).facts.changes == changes  # complete, so it is not repeated
    assert changes <= -(-ITEMS // 14) + 1


@with_chdb
def test_another_source_replaces_the_index(url):
    load(indexed(), url)
    other = indexed(seed=1, items=9)
    assert answers(load(other, url)).equals(answers(other))
    changed = open_remote(url)
    changed.remove(["i0"])
    assert len(changed) == 8
    assert len(load(other, url)) == 9  # after a change the load is repeated


def test_a_change_elsewhere_is_seen(url):
    index = load(indexed(), url)
    other = open_remote(url)
    other.upsert(["new"], codes_of(1), [{"extra": "x"}])
    assert index.refresh()
    assert (len(index), index.fields["extra"], index.refresh()) == (ITEMS + 1, "string", False)


def test_an_empty_index_is_not_loaded(url):
    with pytest.raises(DataError):
        load(Index(), url)


# Several servers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["server", "clickhouse"])
def test_three_servers_one_of_which_dies(name, request):
    server = request.getfixturevalue(name)
    others = [type(server)(), type(server)()]
    servers = [server, *others]
    try:
        url = ",".join(each.url(table="three") for each in servers)
        local = indexed()
        remote = load(local, url)
        assert answers(remote).equals(answers(local))
        assert all(0 < store.count() < ITEMS for store in remote.store.stores)
        remote.upsert(["i3", "new"], codes_of(2, seed=4))
        local.upsert(["i3", "new"], codes_of(2, seed=4))
        assert answers(remote).equals(answers(local))
        with pytest.raises(ConfigError):  # in another order items would be taken for others
            open_remote(",".join(each.url(table="three") for each in reversed(servers)))
        partial = open_remote(url, partial=True)
        assert partial.search(codes_of(1), 3).lost == ()
        others[0].stop()
        with pytest.raises(UnavailableError):
            answers(remote)
        with pytest.raises(UnavailableError):
            open_remote(url)
        result = partial.search(codes_of(1), ITEMS)
        assert [lost.file for lost in result.lost] == [partial.store.stores[1].place]
        assert PASSWORD not in repr(result.lost)
        there = {name for name, _ in (row for store in (0, 2) for row in paged(partial.store.stores[store], remote))}
        assert result.ids[0] == [name for name in local.search(codes_of(1), ITEMS + 1).ids[0] if name in there]
        with pytest.raises(UnavailableError):
            partial.upsert(["x"], codes_of(1))
        others[0].start()
        assert answers(remote).equals(answers(local))  # it is connected again
        assert partial.search(codes_of(1), 3).lost == ()
    finally:
        for each in others:
            each.remove()


def paged(store, index):
    items = store.page(index.facts, 0, ITEMS + 1)
    return list(zip(items.ids.listed(np.arange(len(items.ids))), items.ages, strict=True))


def test_servers_that_do_not_belong_together(server):
    import psycopg

    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE other")
    here, there = server.url(table="mix"), server.url(table="mix").replace("/postgres?", "/other?")
    load(indexed(), f"{here},{there}")
    with pytest.raises(ConfigError):
        open_remote(f"{there},{here}")
    store = load(indexed(), f"{here},{there}").store
    facts = msgspec.structs.replace(store.stores[1].read(), model="m2")
    store.stores[1].describe(facts)
    with pytest.raises(MismatchError):
        open_remote(f"{here},{there}")
    store.stores[1].drop()
    with pytest.raises(DataError):
        open_remote(f"{here},{there}")


# The cluster mode of ClickHouse. The engine of the tests has no Keeper, so ON CLUSTER and replication are only parsed


@pytest.fixture(scope="module")
def cluster():
    """A server with two clusters: `one` is this server, `two` has a second shard where nobody listens."""
    here, dead = free_port(), free_port()
    shard = "<shard><replica><host>127.0.0.1</host><port>{}</port></replica></shard>".format
    server = ClickHouseServer(
        f"<clickhouse><tcp_port>{here}</tcp_port><remote_servers><one>{shard(here)}</one>"
        f"<two>{shard(here)}{shard(dead)}</two></remote_servers></clickhouse>"
    )
    yield server
    server.remove()


@pytest.fixture
def unreplicated(monkeypatch):
    """The tables of a cluster without what needs Keeper; everything else is as on a cluster."""
    monkeypatch.setattr(Tables, "_everywhere", "")
    monkeypatch.setattr(
        Tables, "_engine", lambda self, order, shared: f"ReplacingMergeTree(version, deleted) ORDER BY {order}"
    )


@pytest.mark.usefixtures("unreplicated")
def test_an_index_in_distributed_tables(cluster):
    url, local = cluster.url(table="spread", cluster="one"), indexed()
    remote = load(local, url)
    engines = remote.store._arrow("SELECT engine FROM system.tables WHERE name LIKE 'spread_image%' ORDER BY name")
    assert engines.column("engine").to_pylist() == ["Distributed", "ReplacingMergeTree"]
    for index in (local, remote):
        index.upsert(["i3", "new"], codes_of(2, seed=4), [{"n": 3}, {"tags": ["a"]}])
        index.remove(["i5"])
    for each in (remote, open_remote(url), open_remote(url, partial=True)):
        assert answers(each).equals(answers(local))
        assert each.page(0, ITEMS) == local.page(0, ITEMS)
        assert each.search(codes_of(1), where={"tags": "a"}).ids == [["new"]]
        assert each.search(codes_of(1)).lost == ()
        assert (len(each), each.values("tags")) == (ITEMS, [("a", 1)])


@pytest.mark.usefixtures("unreplicated")
def test_a_shard_of_a_cluster_that_is_down(cluster):
    local = indexed()
    here = load(local, cluster.url(table="half", cluster="one")).store
    here._run(here.tables.drop()[0])
    tables = Tables(here.tables.facts, here.tables.items, "two")
    here._run(tables.create("string", words_of(20))[-1])
    url = cluster.url(table="half", cluster="two")
    remote, partial = open_remote(url), open_remote(url, partial=True)
    for work in (lambda: answers(remote), lambda: len(remote), lambda: remote.codes_of(["i1"])):
        with pytest.raises(UnavailableError) as caught:
            work()
        assert "?partial=1" in caught.value.hint
    result = partial.search(codes_of(3, seed=9), ITEMS)
    assert result.to_table().equals(answers(local))
    assert [lost.file for lost in result.lost] == [f"{here.address.shown}, shard 2"]
    with pytest.raises(UnavailableError):
        partial.upsert([f"other {row}" for row in range(20)], codes_of(20))
    here._run("DROP TABLE half_image_local")  # the first shard answers, but has lost its table
    assert partial.store._down() == [f"{here.address.shown}, shard {number}" for number in (1, 2)]


def test_the_statements_of_a_cluster_are_parsed(clickhouse):
    from multibit.search.remote.clickhouse import ClickHouseStore

    tables = Tables("m_indices", "m_image", "photos")
    statements = [
        *tables.create("string", words_of(128)), *tables.add("f0_x Nullable(Int64)"), *tables.drop(), tables.optimize(),
        *tables.shards(),
    ]  # fmt: skip
    client = ClickHouseStore(*read_url(clickhouse.url()), "image")._connected()
    for statement in statements:
        assert client.command(f"EXPLAIN AST {statement}", {"database": "photos"})
    assert sum("ON CLUSTER 'photos'" in each for each in statements) == 8
    with pytest.raises(Exception, match=r"[Ss]yntax"):
        client.command(f"EXPLAIN AST {statements[0].replace('ENGINE', 'ENGIN')}")


def test_facts_are_read_as_they_were_written():
    facts = Facts(bits=64, fields={"é": "list"}, model="m", loading=None)
    assert Facts.of_json(facts.to_json(), "here") == facts
    for wrong in ("", "{}", '{"version": 1}', '{"version": 1, "bits": 0}', '{"version": "x"}'):
        with pytest.raises(FormatError):
            Facts.of_json(wrong, "here")
