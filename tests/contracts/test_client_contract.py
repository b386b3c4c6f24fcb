"""Both clients, synchronous and asynchronous, against the application: the same answers, the same errors."""

from __future__ import annotations

import contextlib
import shutil

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx2")

import httpx2
from anyio.from_thread import start_blocking_portal
from starlette.testclient import TestClient

from multibit.client import AsyncClient, Client, ServerError
from multibit.serve.app import create_app
from multibit.serve.models import Neighbours, NewItem, SearchResponse
from multibit.serve.settings import ServerSettings
from serving import BITS, HOST, ITEMS, NAMES, await_ready, item_id, png

TOKEN = "let me in"
METHODS = {
    name for name in vars(Client) if not name.startswith("_") and name != "close"
}  # every method is called by a test below


class Awaited:
    """An asynchronous client that is called like a synchronous one."""

    def __init__(self, client, portal):
        self._client, self._portal = client, portal

    def __getattr__(self, name):
        method = getattr(self._client, name)

        def call(*given, **options):
            async def run():
                return await method(*given, **options)

            return self._portal.call(run)

        return call


@contextlib.contextmanager
def synchronous(app, token):
    with TestClient(app, base_url=HOST) as transport:
        await_ready(transport)
        with Client(HOST, token, transport=transport._transport) as client:
            yield client


@contextlib.contextmanager
def asynchronous(app, token):
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(app.router.lifespan_context(app)):
        client = AsyncClient(HOST, token, transport=httpx2.ASGITransport(app))
        awaited = Awaited(client, portal)
        while not awaited.is_ready():
            pass
        yield awaited
        awaited.close()


@pytest.fixture(scope="module", params=[synchronous, asynchronous], ids=lambda make: make.__name__)
def client(request, pictured, tmp_path_factory):
    name = f"index of {tmp_path_factory.mktemp('client').name}"  # as far from the images as the index itself
    index = shutil.copytree(pictured.folder / "index", pictured.folder / name)
    app = create_app(pictured, index, ServerSettings(token=TOKEN, writable=True, max_batch=8))
    with request.param(app, TOKEN) as made:
        yield made


def refused(call, status):
    with pytest.raises(ServerError) as raised:
        call()
    assert raised.value.status == status
    return raised.value


def test_both_clients_have_the_same_methods():
    own = {name for name in vars(AsyncClient) if not name.startswith("_") and name != "close"}
    assert own == METHODS


def test_searches(client):
    found = client.search("text 4", bits=16, k=3, where={"labels": {"$exists": True}})
    assert isinstance(found, SearchResponse) and len(found.hits) == 3 and found.bits == 16
    by_id = client.search(id=item_id(3), source="text", modality="text", k=1)
    assert by_id.hits[0].id == item_id(3) and by_id.hits[0].distance == 0
    assert client.search(code=found.code, modality="image", bits=16, k=3).hits == found.hits
    assert len(client.search_image(png(), k=2, modality="image").hits) == 2
    assert item_id(3) not in [hit.id for hit in client.similar(item_id(3), k=ITEMS).hits]


def test_an_image_file_is_sent(client, tmp_path):
    (tmp_path / "ü #.png").write_bytes(png())
    assert client.search_image(tmp_path / "ü #.png", bits=8).code == client.search_image(png()).code


def test_encoding_and_facts(client):
    encoded = client.encode(["a", "b"], bits=16, vectors=True)
    assert [len(each.vector) for each in encoded.texts] == [16, 16]
    info = client.info()
    assert info.bits == BITS and info.indices["image"] >= ITEMS
    assert sum(scale.bits for scale in client.explain().scales) == BITS
    assert isinstance(client.neighbours(NAMES[0], k=2), Neighbours)
    assert client.is_ready()


def test_items(client):
    client.put([NewItem(id="new ü/1", text="text 1", fields={"labels": ["x"]})])
    item = client.get("new ü/1")
    assert item.fields == {"text": "text 1", "labels": ["x"]} and list(item.codes) == ["text"]
    client.delete("new ü/1")
    refused(lambda: client.get("new ü/1"), 404)
    listed = client.items("image", offset=1, limit=2)
    assert [each.id for each in listed.items] == [item_id(1), item_id(2)]
    assert client.image(item_id(0))[:4] == b"\x89PNG" and client.image(item_id(0), width=16)[:4] == b"RIFF"


def test_refusals_have_status_and_field(client):
    assert refused(lambda: client.search("a", bits=BITS + 1), 422).field == "bits"
    assert refused(lambda: client.encode(["a"] * 9), 422).field == "texts"
    assert refused(lambda: client.image("nothing"), 404).retry_after is None


@pytest.mark.parametrize("status", [503, 500])
def test_an_answer_of_something_else_is_an_error(status):
    def answer(request):
        return httpx2.Response(status, text="<html>", headers={"Retry-After": "3"})

    with Client(HOST, transport=httpx2.MockTransport(answer)) as client:
        refused(client.info, status)


def test_a_busy_server_says_when_to_try_again():
    def answer(request):
        problem = {"title": "", "status": 503, "detail": "busy"}
        return httpx2.Response(503, json=problem, headers={"Retry-After": "3"})

    with Client(HOST, transport=httpx2.MockTransport(answer)) as client:
        assert refused(client.info, 503).retry_after == 3
        assert client.is_ready() is False


def test_a_server_that_does_not_answer_is_an_error_without_status():
    with Client("http://127.0.0.1:9", timeout=2) as client:
        refused(client.info, 0)
        assert not client.is_ready()
