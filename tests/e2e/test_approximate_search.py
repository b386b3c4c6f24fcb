"""Approximate searches in PostgreSQL on the command line, in the server, in both clients and behind a router."""

from __future__ import annotations

import json
import re
import shutil

import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx2")

from commands import assert_names, cli, done, refused
from databases import PostgresServer, binaries_with_pgvector
from multibit.client import Client, ServerError
from multibit.search.shards import Shard, reshard
from multibit.serve.router import create_router
from multibit.serve.settings import ServerSettings
from serving import BITS, ITEMS, await_ready, behind, client_of, item_id, served

SHORT = 8  # has an HNSW index, as the full length


@pytest.fixture(scope="module")
def url():
    pytest.importorskip("psycopg", reason='psycopg is not installed: pip install "multibit[postgres]"')
    server = PostgresServer(binaries_with_pgvector())
    yield server.url(hnsw=f"{SHORT},{BITS}")
    server.remove()


@pytest.fixture(scope="module")
def run(pictured, url):
    done("index", str(pictured.folder), "--to", url)
    return pictured


@pytest.fixture(scope="module")
def queries(tmp_path_factory):
    path = tmp_path_factory.mktemp("queries") / "queries.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": [item_id(number) for number in range(20)]}), path)
    return path


def found_recall(shown):
    """The recall that is printed, and the counts that it is made of."""
    value, found, nearest = re.search(r"Recall .*: ([0-9.]+) \(([0-9,]+) of the ([0-9,]+)", shown).groups()
    return float(value), int(found), int(nearest)


def test_one_query_is_searched_approximately_and_its_recall_printed(run, url):
    asked = ("search", str(run.folder), "a text", "--as", "text", "-k", "5", "--index", url, "--ef-search", "100")
    shown = done(*asked, "--recall")
    assert "approximate" in shown
    assert found_recall(shown) == (1.0, 5, 5)
    printed = cli(*asked, "--recall", "--json")
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert [row["exact"] for row in rows] == [False] * 5
    assert found_recall(printed.err) == (1.0, 5, 5)
    exact = done(*asked[:-2])
    assert "approximate" not in exact
    assert "Recall" not in exact


def test_the_recall_of_a_file_of_queries_is_measured_while_its_hits_are_written(run, url, queries, tmp_path):
    asked = ("search", str(run.folder), "--queries", str(queries), "--index", url, "--bits", str(SHORT))
    tables, shown = [], ""
    for number, options in enumerate(((), ("--ef-search", "200", "--recall"), ("--ef-search", "200"))):
        out = tmp_path / f"{number}.parquet"
        shown += done(*asked, "--out", str(out), *options)
        tables.append(pyarrow.parquet.read_table(out))
    assert found_recall(shown) == (1.0, 200, 200)
    assert shown.count("Recall") == 1
    assert tables[1].equals(tables[2])
    assert tables[0]["distance"].equals(tables[1]["distance"])
    assert [json.loads(each.schema.metadata[b"multibit"])["exact"] for each in tables] == [True, False, False]


def test_no_hit_within_a_distance_has_no_recall_and_is_no_error(run, url):
    asked = ("search", str(run.folder), "a text", "--as", "text", "--max-distance", "0", "--index", url)
    printed = cli(*asked, "--ef-search", "10", "--recall")
    assert printed.code == 0
    assert not re.search(r"Recall .*[0-9]\.[0-9]", printed.out)
    assert "approximate" in printed.err


def test_an_approximate_search_is_refused_where_there_is_none(run, url):
    asked = ("search", str(run.folder), "a text", "--as", "text")
    assert_names(refused(*asked, "--ef-search", "100"), "--ef-search", "local")
    assert_names(refused(*asked, "--index", url, "--bits", "9", "--ef-search", "100"), "--ef-search", 9, SHORT, BITS)
    for wrong in (0, 1001, -1):
        assert_names(refused(*asked, "--index", url, "--ef-search", str(wrong)), "--ef-search", wrong, 1000)
    assert_names(refused(*asked, "--index", url, "--recall"), "--recall", "--ef-search")


def test_the_server_searches_approximately_and_says_so(run, url):
    with client_of(run, url) as transport:
        client = Client("http://localhost", transport=await_ready(transport)._transport)
        exact = client.search(id=item_id(3), modality="image", k=7)
        found = client.search(id=item_id(3), modality="image", k=7, ef_search=200)
        assert (exact.exact, found.exact) == (True, False)
        assert [hit.distance for hit in found.hits] == [hit.distance for hit in exact.hits]
        for options in ({"bits": 9}, {"relaxed": True}):
            with pytest.raises(ServerError) as caught:
                client.search(code="f" * (BITS // 4), ef_search=200, **options)
            assert caught.value.status == 422
    with client_of(run) as local:
        await_ready(local)
        assert local.post("/v1/search", json={"text": "a", "k": 2}).json()["exact"] is True
        for wrong in (10, 0, 1001, "many"):
            answer = local.post("/v1/search", json={"text": "a", "ef_search": wrong})
            assert (answer.status_code, answer.json()["field"]) == (422, "ef_search")


def test_a_router_passes_the_refusal_of_its_shards(pictured, tmp_path):
    run, folder = pictured, shutil.copytree(pictured.folder / "index", tmp_path / "index")
    reshard(folder, ["image", "text"], 1)
    with served(run, folder, Shard(1, 1)) as address, behind(create_router([address], ServerSettings())) as router:
        await_ready(router)
        code = "f" * (BITS // 4)
        assert router.post("/v1/search", json={"code": code, "k": ITEMS}).json()["exact"] is True
        answer = router.post("/v1/search", json={"code": code, "ef_search": 10})
        assert (answer.status_code, answer.json()["field"]) == (422, "ef_search")
