"""The HTTP interface in process: every endpoint, limits, permissions, refusals, and changes made elsewhere."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

pytest.importorskip("fastapi")

from multibit import FeatureStore, Index, Run, build_indices, encode_text
from multibit.codes import Codes
from multibit.errors import ConfigError, DataError
from multibit.search.names import index_path
from multibit.serve.models import SearchResponse
from multibit.serve.settings import ServerSettings
from serving import BITS, ITEMS, NAMES, await_ready, client_of, item_id, png


@pytest.fixture(scope="module")
def client(pictured):
    with client_of(pictured, max_text=100, max_k=40, max_batch=4, max_body=100_000, max_pixels=10_000) as made:
        yield await_ready(made)


@pytest.fixture
def copied(pictured, tmp_path):
    """The index of the run in a folder that a test may change."""
    return shutil.copytree(pictured.folder / "index", tmp_path / "index")


@pytest.fixture
def writable(pictured, copied):
    with client_of(pictured, copied, writable=True, refresh=0.02) as made:
        yield await_ready(made)


def ids(answer):
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["hits"]]


def refusal(answer, status, field=None):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status and problem["detail"]
    assert field is None or problem["field"] == field, problem
    return problem


# Queries


@pytest.mark.parametrize("bits", [1, 8, 13, BITS])
@pytest.mark.parametrize("relaxed", [False, True])
def test_a_text_finds_what_the_library_finds(client, pictured: Run, bits, relaxed):
    values = encode_text(pictured, "text 7")
    index = Index.open(pictured.folder / "index" / "image.mbx")
    where = {"labels": {"$in": list(NAMES[:4])}}
    if relaxed:
        expected = index.search_relaxed(values, 9, bits, where=where)
    else:
        expected = index.search(Codes.binarize(values), 9, bits, where=where)
    body = {"text": "text 7", "k": 9, "bits": bits, "relaxed": relaxed, "where": where}
    answer = client.post("/v1/search", json=body)
    assert ids(answer) == expected.ids[0]
    SearchResponse.model_validate_json(answer.content)  # as described
    first, hit = answer.json()["hits"][0], expected.hits()[0]
    assert (first["rank"], first["distance"], first["score"]) == (1, hit.distance, hit.score)
    assert answer.json()["bytes_read"] == ITEMS * 2 * (1 if bits <= 16 else 2)


def test_a_text_its_vector_and_its_code_find_the_same(client):
    (encoded,) = client.post("/v1/encode", json={"texts": ["text 3"], "vectors": True}).json()["texts"]
    by_text, by_vector, by_code = (
        client.post("/v1/search", json={**query, "k": 40, "bits": 20, "modality": "image"})
        for query in ({"text": "text 3"}, {"vector": encoded["vector"]}, {"code": encoded["code"]})
    )
    assert ids(by_text) == ids(by_vector) == ids(by_code)
    assert by_text.json()["code"] == encoded["code"]
    prefix = client.post("/v1/encode", json={"texts": ["text 3"], "bits": 16}).json()["texts"][0]["code"]
    assert encoded["code"].startswith(prefix) and len(prefix) == 4
    short = client.post("/v1/search", json={"code": prefix, "modality": "image", "k": 40})
    assert short.json()["bits"] == 16
    assert ids(short) == ids(client.post("/v1/search", json={"text": "text 3", "bits": 16, "k": 40}))
    refusal(client.post("/v1/search", json={"code": prefix, "bits": 17}), 422, "code")


def test_an_image_finds_texts_and_an_image_of_the_index_finds_itself(client, pictured):
    answer = client.post("/v1/search/image", files={"image": png()}, data={"options": '{"k": 3, "bits": 8}'})
    assert len(ids(answer)) == 3 and answer.json()["modality"] == "text"
    encoded = client.post("/v1/encode", json={"images": [base64.b64encode(png()).decode()]}).json()
    assert encoded["images"][0]["code"] == answer.json()["code"] and encoded["texts"] == []
    assert encoded["model"] == pictured.record.model


def test_similar_items_are_those_of_a_search_by_id_without_the_item(client):
    name = item_id(5)
    whole = client.post("/v1/search", json={"id": name, "k": 6, "bits": 24, "source": "image"})
    assert name in ids(whole) and whole.json()["modality"] == "image"
    similar = client.get(f"/v1/items/{quoted(name)}/similar", params={"k": 5, "bits": 24})
    assert ids(similar) == [each for each in ids(whole) if each != name][:5]
    texts = client.get(f"/v1/items/{quoted(name)}/similar", params={"modality": "text", "k": 40})
    assert texts.json()["modality"] == "text" and name not in ids(texts)


def test_embeddings_have_the_form_of_openai(client):
    given = client.post("/v1/embeddings", json={"input": ["a", "b"], "model": "any", "dimensions": 8}).json()
    assert [(each["object"], each["index"], len(each["embedding"])) for each in given["data"]] == [
        ("embedding", 0, 8), ("embedding", 1, 8),
    ]  # fmt: skip
    packed = client.post("/v1/embeddings", json={"input": "a", "dimensions": 8, "encoding_format": "base64"}).json()
    decoded = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(decoded, given["data"][0]["embedding"], rtol=1e-6)


def test_hits_have_the_fields_that_were_asked_for_and_never_a_path(client, pictured):
    some = client.post("/v1/search", json={"text": "a", "fields": ["labels"], "k": 2}).json()["hits"][0]
    assert set(some["fields"]) == {"labels"} and some["image"].startswith("/v1/items/")
    none = client.post("/v1/search", json={"text": "a", "fields": [], "k": 2}).json()["hits"][0]
    assert none["fields"] == {}
    for path in ("/v1/info", "/v1/explain", "/v1/items", f"/v1/items/{quoted(item_id(0))}", "/v1/openapi.json"):
        assert str(pictured.folder.parent) not in client.get(path).text, path
    for where in ({"image": {"$gte": "/"}}, {"$or": [{"image": {"$exists": True}}]}):
        problem = refusal(client.post("/v1/search", json={"text": "a", "where": where}), 422, "where")
        assert str(pictured.folder.parent) not in json.dumps(problem)


# Items, facts


def quoted(name):
    from urllib.parse import quote

    return quote(name, safe="")


def test_an_item_has_its_metadata_its_codes_and_its_image(client, pictured):
    item = client.get(f"/v1/items/{quoted(item_id(2))}").json()
    index = Index.open(pictured.folder / "index" / "image.mbx")
    assert item["id"] == item_id(2) and item["fields"]["text"] == "text 2"
    assert item["codes"]["image"] == index.codes.take([2]).to_bytes().tobytes().hex()
    whole = client.get(item["image"])
    assert Image.open(io.BytesIO(whole.content)).size == (42, 30) and whole.headers["content-type"] == "image/png"
    small = client.get(item["image"], params={"width": 21})
    assert Image.open(io.BytesIO(small.content)).size == (21, 15)
    again = client.get(item["image"], params={"width": 21}, headers={"If-None-Match": small.headers["etag"]})
    assert again.status_code == 304 and not again.content
    listed = client.get("/v1/items", params={"offset": ITEMS - 1, "limit": 5}).json()
    assert listed["total"] == ITEMS and [each["id"] for each in listed["items"]] == [item_id(ITEMS - 1)]


def test_the_facts_are_those_of_the_run(client, pictured, store):
    info = client.get("/v1/info").json()
    assert (info["bits"], info["lengths"], info["indices"]) == (BITS, [8, BITS], {"image": ITEMS, "text": ITEMS})
    counts = dict(info["fields"]["image"]["labels"]["values"])
    index = Index.open(pictured.folder / "index" / "image.mbx")
    assert counts == {
        name: sum(name in index.payloads[row]["labels"] for row in range(ITEMS)) for name in NAMES if counts.get(name)
    }
    assert info["fields"]["image"]["text"]["values"] is None and "image" not in info["fields"]["image"]
    facts = client.get("/v1/explain").json()
    assert facts["accuracy"] == [] and sum(scale["bits"] for scale in facts["scales"]) == BITS
    related = client.get(f"/v1/labels/{NAMES[0]}/neighbours", params={"k": 2}).json()["neighbours"]
    every = np.eye(8, dtype=np.uint8)
    scores = pictured.teacher.scores(every[:1], every)[0]
    assert related[0]["score"] == pytest.approx(np.sort(scores)[-2])
    assert len(related[0]["scales"]) == 2


def test_the_description_covers_every_endpoint_with_an_example(client):
    description = client.get("/v1/openapi.json").json()
    assert set(description["paths"]) == {
        "/v1/search", "/v1/search/image", "/v1/encode", "/v1/embeddings", "/v1/items", "/v1/items/{id}",
        "/v1/items/{id}/image", "/v1/items/{id}/similar", "/v1/info", "/v1/explain", "/v1/labels/{name}/neighbours",
        "/v1/shard", "/livez", "/readyz", "/metrics",
    }  # fmt: skip
    guide = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    assert all(path.removeprefix("/v1/labels") in guide for path in description["paths"])
    schemas = description["components"]["schemas"]
    requests = ("SearchRequest", "EncodeRequest", "EmbeddingsRequest", "PutItems")
    assert all(schemas[name]["examples"] for name in (*requests, "SearchResponse", "Problem"))
    for name, path in (("SearchRequest", "/v1/search"), ("EncodeRequest", "/v1/encode")):
        for example in schemas[name]["examples"]:
            if "id" not in example and "code" not in example:
                assert client.post(path, json=example).status_code == 200


def test_the_metrics_count_searches_by_length_and_items(client):
    client.post("/v1/search", json={"text": "a", "bits": 13})
    text = client.get("/metrics").text
    for line in ('multibit_search_seconds_count{bits="16"}', f'multibit_index_items{{index="image"}} {ITEMS}.0',
                 'multibit_queue_length{stage="search"} 0.0', 'multibit_batch_size_count{stage="encode"}',
                 "multibit_index_version 0.0"):  # fmt: skip
        assert line in text


# Changes


def test_items_are_added_replaced_and_removed(writable, copied):
    new = {"id": "new/1", "text": "text 9", "image": base64.b64encode(png(30, 30, "blue")).decode(),
           "fields": {"labels": ["topic 1", "neu"]}}  # fmt: skip
    answer = writable.put("/v1/items", json={"items": [new]})
    assert answer.json() == {"written": 1, "items": {"image": ITEMS + 1, "text": ITEMS + 1}}
    found = writable.post("/v1/search", json={"text": "text 9", "modality": "text", "where": {"labels": "neu"}})
    assert ids(found) == ["new/1"] and found.json()["hits"][0]["distance"] == 0
    image = writable.get(found.json()["hits"][0]["image"])
    assert image.content == png(30, 30, "blue")
    assert ["neu", 1] in writable.get("/v1/info").json()["fields"]["text"]["labels"]["values"]
    writable.put("/v1/items", json={"items": [{"id": "new/1", "text": "only a text now"}]})
    assert writable.get("/v1/items/new%2F1").json()["codes"].keys() == {"text"}
    refusal(writable.get("/v1/items/new%2F1/image"), 404)
    assert writable.delete("/v1/items/new%2F1").status_code == 204
    refusal(writable.delete("/v1/items/new%2F1"), 404)
    assert len(Index.load(copied / "image.mbx")) == len(Index.load(copied / "text.mbx")) == ITEMS


def test_items_of_an_index_of_faiss_are_found_and_removed_as_those_of_the_exact_one(pictured, tmp_path):
    pytest.importorskip("faiss", reason='faiss is not installed: pip install "multibit[faiss]"')
    answers = []
    for engine in ("exact", "faiss"):
        for name, index in build_indices(
            pictured, FeatureStore.open(pictured.folder.parent / "features"), engine=engine
        ).items():
            index.save(index_path(tmp_path / engine, name))
        with client_of(pictured, tmp_path / engine, writable=True) as client:
            await_ready(client).put("/v1/items", json={"items": [{"id": "new", "text": "text 9"}]})
            similar = f"/v1/items/{quoted(item_id(3))}/similar"
            said = [client.get(similar, params={"bits": bits, "k": 7}).json()["hits"] for bits in (8, BITS)]
            gone = [client.delete(f"/v1/items/{each}").status_code for each in ("new", "new", "unknown", "3")]
            assert gone == [204, 404, 404, 404] and client.delete(f"/v1/items/{quoted(item_id(4))}").status_code == 204
            said.append(client.get(similar, params={"k": 40}).json()["hits"])
            answers.append(said)
    assert answers[0] == answers[1] and [len(hits) for hits in answers[0]] == [7, 7, 40]


def test_a_change_that_is_refused_changes_nothing(writable, copied):
    for item, field in (
        ({"id": "x", "text": "a", "fields": {"labels": 3}}, "fields"),
        ({"id": 5, "text": "a"}, "id"),
        ({"id": "x", "image": "####"}, "items.1.image"),
        ({"id": "x", "text": " "}, "items.1.text"),
        ({"id": "x", "text_vector": [0.5]}, "items.1.text_vector"),
        ({"id": "x", "fields": {"labels": []}}, "items.1"),
        ({"id": "x", "text": "a", "fields": {"image": "/etc/passwd"}}, "items.1"),
        ({"id": "x", "text": "a", "fields": {"": 1}}, "items.1"),
        ({"id": "x", "text": "a", "fields": {"$and": 1}}, "items.1"),
    ):
        refusal(writable.put("/v1/items", json={"items": [{"id": "fine", "text": "fine"}, item]}), 422, field)
    assert "fine" not in Index.load(copied / "text.mbx").ids.listed(np.arange(ITEMS))
    assert not list(copied.glob("images/*"))


def test_without_the_permission_nothing_is_written(client):
    refusal(client.put("/v1/items", json={"items": [{"id": "x", "text": "a"}]}), 403)
    refusal(client.delete(f"/v1/items/{quoted(item_id(0))}"), 403)


def test_changes_made_elsewhere_are_found(writable, copied):
    other = Index.open(copied / "image.mbx")
    with other.writer() as index:
        index.upsert(["elsewhere"], other.codes.take([0]), [{"labels": ["topic 1"]}])
    for _ in range(300):
        if writable.get("/v1/items/elsewhere").status_code == 200:
            break
        time.sleep(0.01)
    assert "elsewhere" in ids(writable.post("/v1/search", json={"id": "elsewhere", "source": "image"}))
    assert "multibit_index_version 1.0" in writable.get("/metrics").text


def test_another_writer_is_a_conflict_and_searches_go_on(writable, copied):
    entered, leave = threading.Event(), threading.Event()

    def write():
        with Index.editing(copied / "image.mbx"):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=write)
    thread.start()
    assert entered.wait(10)
    try:
        assert writable.put("/v1/items", json={"items": [{"id": "x", "text": "a"}]}).status_code == 409
        assert writable.delete(f"/v1/items/{quoted(item_id(1))}").headers["retry-after"] == "1"
        assert len(ids(writable.post("/v1/search", json={"text": "a"}))) == 10
    finally:
        leave.set()
        thread.join()


# Permissions and limits


def test_a_token_is_needed_where_there_is_one(pictured):
    with client_of(pictured, token="sésame", host="0.0.0.0") as made:
        for headers in ({}, {"Authorization": "Bearer sesame"}, {"Authorization": "Basic c8OpY"}):
            for path in ("/v1/info", "/metrics", "/v1/openapi.json"):
                answer = made.get(path, headers=headers)
                refusal(answer, 401)
                assert answer.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": "Bearer sésame".encode()}
        assert made.get("/v1/info", headers=right).status_code == 200
        assert made.get("/livez").status_code == made.get("/").status_code == 200


def test_an_address_outside_this_machine_needs_a_token_or_a_decision():
    with pytest.raises(ConfigError) as raised:
        ServerSettings(host="0.0.0.0")
    assert raised.value.option == "host"
    assert (
        ServerSettings(host="0.0.0.0", no_auth=True)
        and ServerSettings(host="::1")
        and ServerSettings(host="::", token="x")
    )


@pytest.mark.parametrize(
    "origin", ["foo", "example.org", "https://a.b/", "https://a.b/c", "https://", "null", "https://a b"]
)
def test_an_origin_that_is_none_is_refused(origin):
    with pytest.raises(ConfigError) as raised:
        ServerSettings(cors=("*", "http://localhost:3000", "https://[::1]:8", origin))
    assert raised.value.option == "cors"


def test_other_host_names_are_refused(client, pictured):
    for name in ("evil.example", "localhost.evil.example", "127.0.0.1.nip.io", ""):
        refusal(client.get("/v1/info", headers={"Host": name}), 421)
    for name in ("localhost:8080", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        assert client.get("/livez", headers={"Host": name}).status_code == 200
    with client_of(pictured, allow_hosts=("search.example",)) as made:
        assert made.get("/livez", headers={"Host": "search.example:443"}).status_code == 200


def test_other_origins_are_allowed_only_if_named(client, pictured):
    asked = {"Origin": "https://other.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in client.options("/v1/search", headers=asked).headers
    with client_of(pictured, cors=("https://other.example",)) as made:
        allowed = made.options("/v1/search", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == "https://other.example"


def test_each_limit_refuses_what_is_beyond_it(client):
    assert client.post("/v1/search", json={"text": "x" * 100, "k": 40}).status_code == 200
    refusal(client.post("/v1/search", json={"text": "x" * 101}), 422, "text")
    refusal(client.post("/v1/search", json={"text": "a", "k": 41}), 422, "k")
    refusal(client.post("/v1/search", json={"text": "a", "bits": BITS + 1}), 422, "bits")
    refusal(client.post("/v1/encode", json={"texts": ["a"] * 5}), 422, "texts")
    refusal(client.post("/v1/search", json={"text": "x" * 100_000}), 413)
    streamed = client.post(
        "/v1/search", content=iter([b"x" * 60_000] * 3), headers={"Content-Type": "application/json"}
    )
    refusal(streamed, 413)
    refusal(client.post("/v1/search/image", files={"image": png(101, 100)}), 422)
    assert client.post("/v1/search/image", files={"image": png(100, 100)}).status_code == 200


INVALID = [
    ({"text": "a", "bitz": 8}, "bitz"),
    ({"text": "a", "bits": "many"}, "bits"),
    ({"text": "a", "bits": 0}, "bits"),
    ({"text": "a", "k": 1.5}, "k"),
    ({"text": "a", "modality": "sound"}, "modality"),
    ({"id": 1.5}, "id"),
    ({"id": ""}, "id"),
    ({"vector": [1, "x"]}, "vector.1"),
    ({"code": "xyz"}, "code"),
    ({"text": "a", "fields": ["labels", 3]}, "fields.1"),
    ({}, ""),
]
INTERNAL = re.compile(r"constrained|function|str\b|int\b|dict|tuple|NoneType|pydantic|Input|\[")


@pytest.mark.parametrize(("body", "field"), INVALID, ids=str)
def test_an_invalid_request_is_described_in_its_own_names(client, body, field):
    problem = refusal(client.post("/v1/search", json=body), 422, field)
    assert not INTERNAL.search(problem["detail"] + problem["field"])
    sent = {key: value for key, value in body.items() if key not in ("text", "id", "vector", "code")}
    if sent and "text" in body:
        answer = client.post("/v1/search/image", files={"image": png()}, data={"options": json.dumps(sent)})
        assert refusal(answer, 422, f"options.{field}")["detail"] == problem["detail"]


@pytest.mark.parametrize("given", ["application/x-www-form-urlencoded", "text/plain", None])
def test_a_body_that_is_not_declared_as_json_names_the_header(client, given):
    headers = {} if given is None else {"Content-Type": given}
    problem = refusal(client.post("/v1/search", content=b'{"text": "red"}', headers=headers), 422, "Content-Type")
    assert "application/json" in problem["detail"] and (given or "none") in problem["detail"]


def test_an_id_of_another_kind_is_told_the_kind_of_the_ids(client):
    kinds = refusal(client.post("/v1/search", json={"id": 3}), 404)["detail"]
    assert "texts" in kinds and "integer" in kinds
    assert "texts" not in refusal(client.post("/v1/search", json={"id": "3"}), 404)["detail"]


def test_unknown_parameters_are_named(client):
    assert "'limit'" in refusal(client.get("/v1/items", params={"limti": 3}), 422, "limti")["detail"]
    refusal(client.get("/v1/info", params={"x": 1}), 422, "x")
    refusal(client.post("/v1/search", params={"k": 3}, json={"text": "a"}), 422, "k")
    refusal(client.get(f"/v1/items/{quoted(item_id(0))}/similar", params={"bit": 3}), 422, "bit")
    refusal(client.post("/v1/embeddings", json={"input": "a", "dimension": 8}), 422, "dimension")
    refusal(client.post("/v1/search/image", files={"image": png()}, data={"k": "3"}), 422, "k")
    twice = [("image", ("a.png", png())), ("image", ("b.png", png()))]
    refusal(client.post("/v1/search/image", files=twice), 422, "image")
    no_file = refusal(client.post("/v1/search/image", data={"image": "x", "options": "{}"}), 422, "image")
    assert "UploadFile" not in no_file["detail"]
    refusal(client.get("/v1/items", params={"limit": "x"}), 422, "limit")
    refusal(client.get("/v1/items/x/similar", params={"source": "sound"}), 422, "source")
    beyond = refusal(client.get("/v1/items", params={"limit": 41}), 422, "limit")
    assert "40" in beyond["detail"] and "41" in beyond["detail"]
    assert client.get("/", params={"q": "a dog", "bits": 8}).status_code == 200  # the page has its state there


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/search", {"POST"}),
        ("POST", "/v1/items", {"GET", "HEAD", "PUT"}),
        ("POST", "/v1/items/x", {"DELETE", "GET", "HEAD"}),
        ("DELETE", "/livez", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method_is_told_all_methods(client, method, path, allowed):
    answer = client.request(method, path)
    assert all(name in refusal(answer, 405)["detail"] for name in (method, *allowed))
    assert set(answer.headers["allow"].split(", ")) == allowed


def test_every_parameter_is_described(client):
    for path, methods in client.get("/v1/openapi.json").json()["paths"].items():
        for parameter in (each for about in methods.values() for each in about.get("parameters", ())):
            assert parameter["in"] == "path" or parameter["description"], (path, parameter)


def bomb():
    """A PNG of 30,000 x 30,000 pixels in 100 bytes: its header alone must be enough to refuse it."""

    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = (30_000).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "content",
    [b"", b"not an image", png()[:40], bomb(), b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"<svg/>"],
    ids=["empty", "text", "truncated", "bomb", "eps", "svg"],
)
def test_an_upload_that_is_no_harmless_image_is_refused(client, content):
    refusal(client.post("/v1/search/image", files={"image": ("x.png", content)}), 422)
    refusal(client.post("/v1/encode", json={"images": [base64.b64encode(content).decode()]}), 422)


def test_a_full_queue_refuses_and_recovers(pictured):
    with client_of(pictured, queue=2) as made:
        await_ready(made)
        service = made.app.state.service
        entered, leave = threading.Event(), threading.Event()
        search = service._searching._work

        def slow(items):
            entered.set()
            leave.wait(10)
            return search(items)

        service._searching._work = slow
        codes = []
        asked = [threading.Thread(target=lambda: codes.append(made.post("/v1/search", json={"text": "a"}).status_code))
                 for _ in range(3)]  # fmt: skip
        asked[0].start()
        assert entered.wait(10)
        for thread in asked[1:]:
            thread.start()
        while len(service._searching) < 2:
            time.sleep(0.005)
        full = made.post("/v1/search", json={"text": "a"})
        refusal(full, 503)
        assert full.headers["retry-after"] == "1"
        leave.set()
        for thread in asked:
            thread.join()
        assert codes == [200] * 3
        assert made.post("/v1/search", json={"text": "a"}).status_code == 200


def test_a_request_that_takes_too_long_is_given_up(pictured):
    with client_of(pictured, timeout=0.05) as made:
        await_ready(made)
        work = made.app.state.service._encoding._work
        made.app.state.service._encoding._work = lambda items: time.sleep(0.3) or work(items)
        refusal(made.post("/v1/search", json={"text": "new"}), 503)


def test_a_failure_of_the_server_shows_nothing_of_it(pictured, caplog):
    with client_of(pictured) as made:
        await_ready(made)

        def fail(items):
            raise RuntimeError("secret")

        made.app.state.service._searching._work = fail
        problem = refusal(made.post("/v1/search", json={"text": "a"}), 500)
        assert "secret" not in json.dumps(problem) and "secret" in caplog.text


def test_a_run_without_encoders_is_searched_by_items(finished, store, tmp_path):
    for name, index in build_indices(finished, store).items():
        index.save(index_path(tmp_path, name))
    with client_of(finished, tmp_path) as client:
        await_ready(client)
        refusal(client.post("/v1/search", json={"text": "a"}), 422, "text")
        name = client.get("/v1/items", params={"limit": 1}).json()["items"][0]["id"]
        assert ids(client.post("/v1/search", json={"id": name, "k": 1})) == [name]
        assert client.get("/v1/info").json()["encodes"] == []


def test_a_code_for_each_length_is_searched_at_each_length(store, split, tmp_path):
    run = Run.create(
        tmp_path / "run", store, split, method="separate", epochs=1, lengths=(8, 16), scales=2, hidden=16, dimension=8
    )
    built = build_indices(run, store)
    for name, index in built.items():
        index.save(index_path(tmp_path / "run" / "index", name))
    with client_of(run, writable=True) as client:
        await_ready(client)
        for bits in (5, 8, 11, 16):
            index = built[f"image-{8 if bits <= 8 else 16}"]
            expected = index.search(index.codes.take([3]), 7, bits).ids[0]
            answer = client.post("/v1/search", json={"id": "3", "source": "image", "bits": bits, "k": 7})
            assert ids(answer) == expected
        vector = [0.5] * run.model.layout.stored
        put = client.put("/v1/items", json={"items": [{"id": "new", "text_vector": vector}]})
        assert put.json()["items"] == {"image-8": 80, "text-8": 81, "image-16": 80, "text-16": 81}
        refusal(client.post("/v1/search", json={"code": "ff"}), 422, "code")
        refusal(client.post("/v1/encode", json={"texts": ["a"], "bits": 8}), 422, "bits")


def test_an_index_of_another_model_is_not_taken_over(writable, copied, finished, store, caplog):
    build_indices(finished, store)["image"].save(copied / "image.mbx")
    for _ in range(300):
        if "another" in caplog.text or "model" in caplog.text:
            break
        time.sleep(0.01)
    assert writable.get("/v1/info").json()["indices"]["image"] == ITEMS
    assert writable.put("/v1/items", json={"items": [{"id": "x", "image_vector": [0.5] * BITS}]}).status_code >= 409
    assert len(Index.load(copied / "image.mbx")) == 80


def test_bits_are_not_taken_for_values(client):
    for vectors in ([[0, 1] * (BITS // 2)], [[0, 1] * (BITS // 2), [0.5] * BITS]):
        answers = [client.post("/v1/search", json={"vector": vector}) for vector in vectors]
        refusal(answers[0], 422)


def test_a_run_without_an_index_is_refused(pictured, tmp_path):
    with pytest.raises(DataError) as raised:
        client_of(pictured, tmp_path / "nothing")
    assert raised.value.hint


# Anything at all

ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
OPERATOR = st.sampled_from(["$eq", "$ne", "$gt", "$lte", "$in", "$nin", "$all", "$exists", "$not", "$and", "$or", "$x"])
WHERE = st.dictionaries(
    st.sampled_from(["labels", "text", "$and", "$or", "$not", "image", "x"]),
    ANY | st.dictionaries(OPERATOR, ANY, max_size=2) | st.lists(st.dictionaries(st.just("labels"), ANY), max_size=2),
    max_size=2,
)
SEARCH = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(max_size=20) | ANY, "id": st.just(item_id(0)) | ANY, "code": st.text("0123abcdef", max_size=10),
        "vector": st.lists(st.floats(), max_size=BITS + 1) | st.just([0.5] * BITS), "bits": st.integers(-1, 40) | ANY,
        "k": st.integers(-1, 50) | ANY, "where": WHERE | ANY, "relaxed": st.booleans() | ANY, "modality": ANY,
        "source": st.sampled_from(["image", "text"]) | ANY, "max_distance": st.integers(-1, 99) | ANY,
        "fields": st.lists(st.sampled_from(["labels", "text", "image"])) | ANY,
    },
)  # fmt: skip
ENDPOINTS = st.sampled_from([
    ("POST", "/v1/search"), ("POST", "/v1/encode"), ("POST", "/v1/embeddings"), ("PUT", "/v1/items"),
    ("POST", "/v1/search/image"), ("DELETE", "/v1/items/x"),
])  # fmt: skip


def assert_answered(answer):
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=SEARCH)
def test_no_search_makes_the_server_fail(client, body):
    answer = client.post("/v1/search", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert_answered(answer)


@pytest.mark.slow
@settings(max_examples=100)
@given(endpoint=ENDPOINTS, body=st.binary(max_size=40) | ANY.map(lambda value: json.dumps(value).encode()))
def test_no_body_makes_the_server_fail(client, endpoint, body):
    kinds = ("application/json", "multipart/form-data; boundary=x", "text/plain")
    for kind in kinds:
        assert_answered(client.request(*endpoint, content=body, headers={"Content-Type": kind}))


@pytest.mark.slow
@settings(max_examples=60)
@given(
    path=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12), number=st.integers(-(2**70), 2**70)
)
def test_no_path_makes_the_server_fail(client, path, number):
    for start, end in (
        ("/", ""),
        ("/page/", ""),
        ("/v1/items/", ""),
        ("/v1/items/", "/image"),
        ("/v1/labels/", "/neighbours"),
    ):
        assert_answered(client.get(f"{start}{quoted(path)}{end}", params={"width": number, "k": number}))
    for name in ("../../etc/passwd", "..%2f..%2fapp.py", "index.html/../../app.py"):
        assert client.get(f"/page/{name}").status_code == 404


def test_deep_and_odd_json_is_refused(client):
    odd = {"Content-Type": "application/json"}
    for body in ("[" * 50_000, '{"text": "\\ud800"}', '{"where": ' + '{"$not": ' * 900 + "{}" + "}" * 901, "nan", "",
                 '{"vector": [NaN]}', '{"text": "a", "k": 1e400}', '{"id": 99999999999999999999999}'):  # fmt: skip
        answer = client.post("/v1/search", content=body, headers=odd)
        assert 400 <= answer.status_code < 500, (body[:40], answer.text)
        assert answer.headers["content-type"] == "application/problem+json"


def test_head_answers_as_get_without_a_body(pictured):
    with client_of(pictured) as client:
        await_ready(client)
        answer = client.head("/livez")
        assert answer.status_code == 200 and not answer.content


def test_codes_that_are_too_long_and_empty_texts_are_refused(pictured):
    with client_of(pictured) as client:
        await_ready(client)
        for query in ({"code": "00" * 32}, {"text": " "}):
            answer = client.post("/v1/search", json=query)
            assert (answer.status_code, answer.json()["field"]) == (422, next(iter(query)))


def test_nothing_is_written_where_the_index_was_moved_away(pictured, tmp_path):
    folder = shutil.copytree(pictured.folder / "index", tmp_path / "index")
    with client_of(pictured, folder, writable=True) as client:
        await_ready(client)
        folder.rename(tmp_path / "away")
        answer = client.put("/v1/items", json={"items": [{"id": "new", "text": "x"}]})
        assert answer.status_code == 503 and not folder.exists()
        (tmp_path / "away").rename(folder)
        assert client.put("/v1/items", json={"items": [{"id": "new", "text": "x"}]}).status_code == 200
