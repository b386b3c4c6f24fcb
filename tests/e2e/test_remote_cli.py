"""An index in a database on the command line and in the server: loaded, searched and served like the local one."""

from __future__ import annotations

import json

import pyarrow
import pyarrow.parquet
import pytest

from commands import done, refused
from databases import PASSWORD, QUOTED, PostgresServer
from multibit.errors import ConfigError
from serving import BITS, ITEMS, client_of, item_id, make_run


@pytest.fixture(scope="module")
def url():
    pytest.importorskip("psycopg", reason='psycopg is not installed: pip install "multibit[postgres]"')
    server = PostgresServer()
    yield server.url()
    server.remove()


@pytest.fixture(scope="module")
def run(tmp_path_factory, url):
    run = make_run(tmp_path_factory.mktemp("remote"))
    shown = done("index", str(run.folder), "--to", url)
    assert shown.count(f"{ITEMS} items") == 2
    assert QUOTED not in shown
    assert PASSWORD not in shown
    return run


def test_a_run_is_served_from_a_database(run, url):
    with client_of(run) as here, client_of(run, url) as there:
        asked = {"id": item_id(3), "modality": "image", "k": 7, "bits": 8, "where": {"labels": "topic 1"}}
        answers = [client.post("/v1/search", json=asked).json() for client in (here, there)]
        assert answers[0]["hits"] == answers[1]["hits"]
        assert len(answers[1]["hits"]) == 7
        assert answers[1]["missing"] == []
        infos = [client.get("/v1/info").json() for client in (here, there)]
        assert counted(infos[0]) == counted(infos[1])
        assert there.get("/v1/explain").status_code == here.get("/v1/explain").status_code
        relaxed = there.post("/v1/search", json={"vector": [1.0] * BITS, "relaxed": True})
        assert relaxed.status_code == 422
    with pytest.raises(ConfigError):
        client_of(run, url, writable=True)


def counted(info):
    """The fields with their counts; ties are in any order."""
    return {
        modality: {name: (each["kind"], sorted(each["values"] or ())) for name, each in fields.items()}
        for modality, fields in info["fields"].items()
    }


def test_a_load_is_refused_next_to_other_work(run, url):
    for options in (["--update"], ["--compact"], ["--engine", "lists"]):
        refused("index", str(run.folder), "--to", url, *options)
    refused("index", str(run.folder), "--to", "mysql://a/b")


def test_hits_of_a_file_of_queries_are_those_of_the_local_index(run, url, tmp_path):
    queries = tmp_path / "queries.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": [item_id(number) for number in range(20)]}), queries)
    tables = []
    for number, options in enumerate(([], ["--index", url])):
        out = tmp_path / f"{number}.parquet"
        done("search", str(run.folder), "--queries", str(queries), "--out", str(out), "--field", "labels", *options)
        tables.append(pyarrow.parquet.read_table(out))
    assert tables[0].equals(tables[1])
    assert json.loads(tables[1].schema.metadata[b"multibit"])["lost"] == []


def test_an_unknown_table_is_an_error_with_a_hint(run, url):
    message = refused("search", str(run.folder), "anything", "--as", "text", "--index", f"{url}?table=nothing")
    assert PASSWORD not in message
