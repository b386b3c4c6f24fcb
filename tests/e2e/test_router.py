"""A router in front of three shards: it answers like one server with the whole index, or names what is missing."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import time
from urllib.parse import quote

import httpx2
import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx2")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multibit.errors import ConfigError, DataError, MismatchError, UnavailableError
from multibit.search.shards import Shard, reshard
from multibit.serve.router import create_router
from multibit.serve.settings import ServerSettings
from serving import BITS, ITEMS, NAMES, await_ready, behind, client_of, item_id, png, served

pytestmark = pytest.mark.slow

COUNT = 3
DEAD = "http://127.0.0.1:9"
TOKEN = "let me in"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def indices(pictured, tmp_path_factory):
    """The index of the run and its shards; next to the run, as far from the images as the index itself."""
    name = f"index of {tmp_path_factory.mktemp('router').name}"
    folder = shutil.copytree(pictured.folder / "index", pictured.folder / name)
    reshard(folder, ["image", "text"], COUNT)
    return folder


def router_of(urls, **options):
    chosen = {"refresh": 0.05, "timeout": 5.0, **options}
    return behind(create_router(urls, ServerSettings(**chosen)))


@contextlib.contextmanager
def routed(run, folder, **options):
    """One server with the whole index, and a router in front of its shards."""
    with contextlib.ExitStack() as stack:
        whole = stack.enter_context(client_of(run, folder, **options))
        urls = [stack.enter_context(served(run, folder, Shard(n, COUNT), **options)) for n in range(1, COUNT + 1)]
        router = stack.enter_context(router_of(urls, **options))
        yield await_ready(whole), await_ready(router)


@pytest.fixture(scope="module")
def pair(pictured, indices):
    with routed(pictured, indices, max_k=60) as made:
        yield made


@pytest.fixture
def writable(pictured, indices):
    """A pair whose indices a test may change."""
    name = f"{indices.name} {time.monotonic_ns()}"
    folder = shutil.copytree(indices, pictured.folder / name)
    with routed(pictured, folder, writable=True, refresh=0.05) as made:
        yield made


def same(answer, other):
    """Two answers say the same; the time that it took is their own."""
    assert answer.status_code == other.status_code, (answer.text, other.text)
    ours, theirs = (each.json() if "json" in each.headers.get("content-type", "") else each.content
                    for each in (answer, other))  # fmt: skip
    if isinstance(ours, dict) and "hits" in ours:
        assert ours["missing"] == []
        ours, theirs = ({**each, "seconds": 0} for each in (ours, theirs))
    if isinstance(ours, dict) and "codes" in ours:
        ours.pop("age")
    assert ours == theirs
    return ours


QUERIES = st.one_of(
    st.fixed_dictionaries({"text": st.sampled_from(["text 7", "a dog", "text 31"])}),
    st.fixed_dictionaries({"id": st.sampled_from([item_id(0), item_id(17), "unknown"])}),
    st.fixed_dictionaries({"code": st.sampled_from(["00000000", "ffff0000", "a5"])}),
    st.fixed_dictionaries({"vector": st.sampled_from([[0.5] * BITS, [-0.1, 0.2] * (BITS // 2), [1.0]])}),
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "bits": st.sampled_from([1, 2, 8, 13, BITS, 99]), "k": st.sampled_from([1, 3, 10, ITEMS, 60, 61]),
        "modality": st.sampled_from(["image", "text"]), "source": st.sampled_from(["image", "text"]),
        "relaxed": st.booleans(), "max_distance": st.integers(0, BITS), "partial": st.booleans(),
        "where": st.sampled_from([
            {"labels": NAMES[0]}, {"labels": {"$in": list(NAMES[:3])}}, {"text": "text 5"}, {"text": "none"},
            {"nothing": 1}, {"@age": 1}, {"image": "x"},
        ]),
        "fields": st.sampled_from([["text"], [], ["labels"], ["nothing"]]),
    },
)  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=QUERIES, options=OPTIONS)
def test_every_search_is_answered_like_by_one_server(pair, query, options):
    """Codes of few bits have many ties, so this also compares the order of the ages."""
    whole, router = pair
    same(*(each.post("/v1/search", json={**query, **options}) for each in (router, whole)))


def test_images_are_searched_and_encoded(pair):
    whole, router = pair
    for options in ({}, {"bits": 8, "k": 4, "modality": "image"}, {"bits": 999}, {"nonsense": 1}):
        sent = {"files": {"image": png()}, "data": {"options": json.dumps(options)}}
        same(*(each.post("/v1/search/image", **sent) for each in (router, whole)))
    for path, body in (
        ("/v1/encode", {"texts": ["a dog"], "images": [base64.b64encode(png()).decode()], "bits": 8, "vectors": True}),
        ("/v1/embeddings", {"input": "a dog", "dimensions": 8}),
        ("/v1/encode", {"texts": [""]}),
        ("/v1/search/image", {}),
    ):
        same(*(each.post(path, json=body) for each in (router, whole)))


def test_what_the_encoder_cannot_read_is_noted_or_refused(pair, monkeypatch):
    def note(encoder, text):
        if text == "?":
            raise DataError("knows none of it.", option="query", hint="Search in another language.")
        return "reads half of it" if "?" in text else ""

    monkeypatch.setattr("multibit.serve.encoding.unread_note", note)
    whole, router = pair
    for text, expected in (("a dog", ""), ("a dog?", "reads half of it")):
        answers = [each.post("/v1/search", json={"text": text}) for each in (router, whole)]
        same(*answers)
        assert [each.json()["note"] for each in answers] == [expected] * 2
    for each in (router, whole):
        refused = each.post("/v1/search", json={"text": "?"})
        assert refused.status_code == 422 and refused.json()["field"] == "text"
        encoded = each.post("/v1/encode", json={"texts": ["?", "a?"]}).json()["texts"]
        assert [text["note"] for text in encoded] == ["", ""]  # they may be stored
        refused = each.post("/v1/encode", json={"texts": ["a?", "?"], "queries": True})
        assert refused.status_code == 422 and refused.json()["field"] == "texts.1"


def test_items_and_what_is_near_them_come_from_their_own_shard(pair):
    whole, router = pair
    for number in (0, 5, 17, ITEMS - 1):
        path = f"/v1/items/{quote(item_id(number), safe='')}"
        for rest in ("", "/image", "/image?width=16", "/similar", "/similar?k=60&bits=4", "/similar?source=text&k=3",
                     "/similar?modality=text&bits=8", "/similar?bits=99",
                     "/similar?ef_search=20", "/similar?ef_search=0"):  # fmt: skip
            same(router.get(path + rest), whole.get(path + rest))
        tag = whole.get(f"{path}/image").headers["etag"]
        assert router.get(f"{path}/image").headers["etag"] == tag
        assert router.get(f"{path}/image", headers={"If-None-Match": tag}).status_code == 304
    for path in ("/v1/items/unknown", "/v1/items/unknown/image", "/v1/items/unknown/similar"):
        same(router.get(path), whole.get(path))


def test_items_are_listed_in_order_of_age(pair):
    whole, router = pair
    for some in ({}, {"offset": 7, "limit": 9}, {"modality": "text", "offset": 40, "limit": 20}, {"offset": 59}):
        answers = [each.get("/v1/items", params={"limit": 1, **some}) for each in (router, whole)]
        same(*answers)
    assert router.get("/v1/items", params={"offset": 60, "limit": 1}).json()["field"] == "offset"


def test_the_facts_are_those_of_all_shards(pair):
    whole, router = pair
    ours, theirs = (each.get("/v1/info").json() for each in (router, whole))
    for facts in (ours, theirs):
        for fields in facts["fields"].values():
            for field in fields.values():
                field["values"] = field["values"] and sorted(field["values"])
    assert ours == theirs
    assert sum(count for _, count in ours["fields"]["image"]["labels"]["values"]) > ITEMS / 2
    assert {name for name in ours["fields"]["image"]} == {"text", "labels"}
    for path in ("/v1/labels/topic%201/neighbours?k=3", "/v1/labels/none/neighbours", "/livez", "/readyz", "/"):
        same(router.get(path), whole.get(path))
    assert router.get("/v1/explain").json()["scales"] == whole.get("/v1/explain").json()["scales"]
    text = router.get("/metrics").text
    for line in (f'multibit_index_items{{index="image"}} {ITEMS}.0', f'multibit_shards{{state="all"}} {COUNT}.0',
                 'multibit_shards{state="missing"} 0.0'):  # fmt: skip
        assert line in text


def test_the_description_has_the_endpoints_of_a_server(pair):
    whole, router = pair
    ours, theirs = (each.get("/v1/openapi.json").json()["paths"] for each in (router, whole))
    del theirs["/v1/shard"]
    asked = "parameters", "requestBody", "responses"
    ours, theirs = (
        {(path, method): [about.get(each) for each in asked] for path, methods in paths.items()
         for method, about in methods.items()}
        for paths in (ours, theirs)
    )  # fmt: skip
    assert ours == theirs


def test_an_id_of_another_kind_is_told_the_kind_of_the_ids(pair):
    whole, router = pair
    for name in (3, "3"):
        same(*(each.post("/v1/search", json={"id": name}) for each in (router, whole)))


# Changes


def test_changes_reach_the_right_shard_and_keep_the_order(writable):
    whole, router = writable
    rng = np.random.default_rng(3)
    for batch in range(4):
        items = [
            {"id": f"new {(7 * batch + n) % 19}", "text_vector": [1.0] * BITS, "image_vector": signs.tolist(),
             "fields": {"labels": [NAMES[n % 3]], "batch": batch}}
            for n, signs in enumerate(rng.choice([-1.0, 1.0], (8, BITS)))
        ]  # fmt: skip
        same(*(each.put("/v1/items", json={"items": items}) for each in (router, whole)))
    gone = "/v1/items/new%203"
    for answer in (router.delete(gone), whole.delete(gone)):
        assert answer.status_code == 204
    same(router.delete(gone), whole.delete(gone))
    for body in ({"code": "f0f0f0f0", "bits": 2, "k": ITEMS + 20}, {"code": "ff", "bits": 4, "where": {"batch": 2}},
                 {"text": "text 1", "k": 60, "where": {"batch": {"$gte": 1}}, "fields": ["batch"]},
                 {"code": "ffffffff", "modality": "text", "k": 60}):  # fmt: skip
        same(*(each.post("/v1/search", json=body) for each in (router, whole)))
    same(*(each.get("/v1/items", params={"limit": 100}) for each in (router, whole)))


def test_a_field_of_one_shard_can_be_asked_for_at_all(writable):
    whole, router = writable
    item = {"id": "only", "text_vector": [1.0] * BITS, "image_vector": [1.0] * BITS, "fields": {"rare": 5}}
    same(*(each.put("/v1/items", json={"items": [item]}) for each in (router, whole)))
    for body in ({"where": {"rare": 5}}, {"where": {"rare": None}, "k": 60}, {"fields": ["rare"], "k": 60}):
        same(*(each.post("/v1/search", json={"code": "00000000", **body}) for each in (router, whole)))


def test_a_shard_refuses_items_of_others_and_ages_that_are_not_the_latest(writable, pictured, indices):
    _, router = writable
    reading = {"items": [{"id": "a", "text_vector": [1.0] * BITS}]}
    folder = shutil.copytree(indices, pictured.folder / f"{indices.name} direct")
    name = next(f"{n}" for n in range(99) if Shard(1, COUNT).holds(f"{n}"))
    other = next(f"{n}" for n in range(99) if not Shard(1, COUNT).holds(f"{n}"))
    with served(pictured, folder, Shard(1, COUNT), writable=True) as url, httpx2.Client(base_url=url) as shard:
        item = {"text_vector": [1.0] * BITS}
        for sent, status in (
            ({"id": other}, 422), ({"id": name, "age": 10}, 409), ({"id": name}, 200), ({"id": name, "age": 60}, 409),
            ({"id": name, "age": 2**62}, 200), ({"id": name, "fields": {"@age": 1}}, 422),
        ):  # fmt: skip
            assert shard.put("/v1/items", json={"items": [{**item, **sent}]}).status_code == status
    assert router.put("/v1/items", json=reading).status_code == 200
    with served(pictured, folder, Shard(1, COUNT)) as url, router_of([url, DEAD, DEAD]) as only_reads:
        assert only_reads.put("/v1/items", json=reading).status_code == 403


# Shards that fail


FIELDS = {
    "two kinds at once": [2001, "unknown", 2003, "n/a"],  # stored as JSON
    "integers": [2001, 2002, 2003, 2004],
    "floats": [1.5, 2, 2.5, 3],
    "nearly none": [None, None, "x", None],
    "lists": [["a"], ["b", "c"], None, []],
}


@pytest.mark.parametrize("values", FIELDS)
@pytest.mark.parametrize("later", [7, 7.5, "text"], ids=str)
def test_a_field_has_one_kind_in_all_shards(writable, values, later):
    """Of values in different shards, that come at once or one after the other."""
    whole, router = writable
    named = [f"kind {number}" for number in range(4 + 2 * COUNT)]
    first = [
        {"id": name, "text": "text 1", "fields": {"of": value}}
        for name, value in zip(named[:4], FIELDS[values], strict=True)
    ]
    others = [{"id": name, "text": "text 2", "fields": {"of": later}} for name in named[4:]]
    for items in (first, *([each] for each in others)):
        same(*(each.put("/v1/items", json={"items": items}) for each in (router, whole)))
    for body in ({}, {"fields": ["of"]}, {"where": {"of": {"$exists": True}}, "fields": ["of"]}):
        asked = {"text": "text 1", "modality": "text", "k": 50, **body}
        same(*(each.post("/v1/search", json=asked) for each in (router, whole)))
    ours, theirs = (each.get("/v1/info").json()["fields"]["text"]["of"]["kind"] for each in (router, whole))
    assert ours == theirs


@pytest.fixture
def three(pictured, indices):
    """A stack of three running shards, and their addresses."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(served(pictured, indices, Shard(n, COUNT))) for n in range(1, COUNT + 1)]


SEARCH = {"code": "00000000", "k": ITEMS}


def test_a_missing_shard_is_an_error_that_names_it_or_a_marked_answer(pictured, indices, three):
    with router_of([three[0], DEAD, three[2]]) as router:
        answer = router.get("/readyz")
        assert (answer.status_code, "2/3" in answer.json()["detail"]) == (503, True)
        answer = router.post("/v1/search", json=SEARCH)
        assert answer.status_code == 503 and "2/3" in answer.json()["detail"]
        assert int(answer.headers["retry-after"]) > 0
        partial = router.post("/v1/search", json={**SEARCH, "partial": True}).json()
        assert partial["missing"] == ["2/3"]
        expected = {item_id(n) for n in range(ITEMS) if not Shard(2, COUNT).holds(item_id(n))}
        assert {hit["id"] for hit in partial["hits"]} == expected
        assert partial["items"] == len(expected)
        for number in range(ITEMS):
            status = router.get(f"/v1/items/{quote(item_id(number), safe='')}").status_code
            assert status == (200 if item_id(number) in expected else 503)
        assert router.get("/v1/info").status_code == 503


def test_a_batch_that_a_shard_misses_says_how_many_items_were_written_and_is_completed_by_sending_it_again(
    pictured, indices
):
    folder = shutil.copytree(indices, pictured.folder / f"{indices.name} batch")
    alone = shutil.copytree(indices, pictured.folder / f"{indices.name} alone")
    items = [{"id": f"new {number}", "text": f"text {number % 4}"} for number in range(12)]
    last = sum(Shard(COUNT, COUNT).holds(item["id"]) for item in items)
    assert 0 < last < len(items)
    search = {"text": "text 1", "modality": "text", "k": 100}
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as killed:
        urls = [(stack if n < COUNT else killed).enter_context(served(pictured, folder, Shard(n, COUNT), writable=True))
                for n in range(1, COUNT + 1)]  # fmt: skip
        router = stack.enter_context(router_of(urls, writable=True))
        await_ready(router)
        killed.close()
        answer = router.put("/v1/items", json={"items": items})
        assert answer.status_code == 503
        assert f"{COUNT}/{COUNT}" in answer.json()["detail"]
        assert f"{len(items) - last} of {len(items)} items" in answer.json()["detail"]
        port = int(urls[-1].rpartition(":")[2])
        stack.enter_context(served(pictured, folder, Shard(COUNT, COUNT), port, writable=True))
        await_ready(router)
        assert router.put("/v1/items", json={"items": items}).json()["written"] == len(items)
        whole = stack.enter_context(client_of(pictured, alone, writable=True))
        assert await_ready(whole).put("/v1/items", json={"items": items}).status_code == 200
        same(router.post("/v1/search", json=search), whole.post("/v1/search", json=search))


def test_a_batch_that_a_shard_refuses_says_how_many_items_were_written(writable):
    _, router = writable
    named = {number: next(f"n{n}" for n in range(99) if Shard(number, COUNT).holds(f"n{n}")) for number in (1, COUNT)}
    good, wrong = {"id": named[1], "text": "text 1"}, {"id": named[COUNT], "text_vector": [1.0]}
    kinds = {**wrong, "text_vector": [1.0] * BITS, "fields": {"labels": {"not": "a list"}}}
    answer = router.put("/v1/items", json={"items": [good, kinds]})
    assert (answer.status_code, answer.json()["field"]) == (422, "fields")  # before any shard is asked
    assert router.get(f"/v1/items/{named[1]}").status_code == 404
    answer = router.put("/v1/items", json={"items": [good, wrong]})
    assert (answer.status_code, answer.json()["field"]) == (422, "items.1.text_vector")
    assert "1 of 2 items" in answer.json()["detail"]
    assert router.get(f"/v1/items/{named[1]}").status_code == 200
    answer = router.put("/v1/items", json={"items": [wrong]})
    assert answer.status_code == 422
    assert "Written:" not in answer.json()["detail"]


def test_a_slow_shard_is_asked_again_elsewhere(pictured, indices, three, monkeypatch):
    """Two servers of shard 1, one of which hangs."""
    with socket.create_server(("127.0.0.1", 0)) as silent, router_of([*three, three[0]], hedge=0.05) as router:
        await_ready(router)
        fleet = router.app.state.service.fleet
        slow = fleet.of(1)[0]
        slow.http.base_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for _ in range(4):
            slow.problem = ""
            start = time.monotonic()
            assert len(router.post("/v1/search", json=SEARCH).json()["hits"]) == ITEMS
            assert time.monotonic() - start < 3
        assert fleet.hedged >= 1


def test_a_shard_that_hangs_is_given_up(pictured, indices, three):
    with socket.create_server(("127.0.0.1", 0)) as silent, router_of(three, timeout=2.0, hedge=0.05) as router:
        await_ready(router)
        (slow,) = router.app.state.service.fleet.of(3)
        slow.http.base_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        answer = router.post("/v1/search", json=SEARCH)
        assert answer.status_code == 503 and "3/3" in answer.json()["detail"]
        assert router.post("/v1/search", json={**SEARCH, "partial": True}).json()["missing"] == ["3/3"]


def test_a_connection_that_ends_while_it_is_made_is_a_missing_shard(pictured, indices, three, monkeypatch):
    with router_of(three, refresh=60.0) as router:
        await_ready(router)
        (gone,) = router.app.state.service.fleet.of(3)

        async def without_socket(*_, **__):
            raise AttributeError("'NoneType' object has no attribute 'getpeername'")

        monkeypatch.setattr(gone.http, "request", without_socket)
        answer = router.post("/v1/search", json=SEARCH)
        assert answer.status_code == 503 and "3/3" in answer.json()["detail"]


def test_shards_of_different_sets_or_models_are_refused(pictured, indices, three):
    folder = shutil.copytree(indices, pictured.folder / f"{indices.name} other")
    reshard(folder, ["image", "text"], COUNT)
    with (
        served(pictured, folder, Shard(2, COUNT)) as other,
        pytest.raises(MismatchError) as caught,
        router_of([three[0], other, three[2]]),
    ):
        pass
    assert caught.value.field == other
    reshard(folder, ["image", "text"], 2)
    with served(pictured, folder, Shard(2, 2)) as other, pytest.raises(MismatchError), router_of([*three, other]):
        pass


def test_a_server_that_became_another_shard_is_not_mistaken(pictured, indices, three):
    with router_of(three, refresh=60.0) as router:
        await_ready(router)
        first, second = (router.app.state.service.fleet.of(n)[0] for n in (1, 2))
        first.http.base_url = second.http.base_url
        answer = router.post("/v1/search", json=SEARCH)
        assert answer.status_code == 503 and "1/3" in answer.json()["detail"]


def test_a_router_bears_its_token_and_needs_the_right_one(pictured, indices):
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(served(pictured, indices, Shard(n, COUNT), token=TOKEN))
                for n in range(1, COUNT + 1)]  # fmt: skip
        with router_of(urls, token=TOKEN) as router:
            await_ready(router)
            assert router.post("/v1/search", json=SEARCH).status_code == 401
            assert len(router.post("/v1/search", json=SEARCH, headers=BEARER).json()["hits"]) == ITEMS
        start = time.monotonic()
        with pytest.raises(UnavailableError) as caught, router_of(urls, timeout=60.0):
            pass
        assert caught.value.option == "shards" and all(url in caught.value.problem for url in urls)
        assert time.monotonic() - start < 30  # it does not wait for what cannot change


def test_a_router_without_any_server_says_which_and_how_long_it_waits_and_stops(caplog):
    other = "http://127.0.0.1:10"
    with pytest.raises(UnavailableError) as caught, router_of([DEAD, other], timeout=0.4):
        pass
    assert caught.value.option == "shards"
    for said in (caplog.text, caught.value.problem):
        assert DEAD in said and other in said and "0.4 s" in said


def test_a_list_without_a_shard_is_refused(three):
    with pytest.raises(UnavailableError) as caught, router_of(three[:2]):
        pass
    assert caught.value.option == "shards" and "3/3" in caught.value.problem


def test_refusals_of_shards_name_what_the_client_sent(writable):
    for client in writable:
        answer = client.post("/v1/search", json={"text": " "})
        assert (answer.status_code, answer.json()["field"]) == (422, "text")
        answer = client.post("/v1/search/image", files={"image": b"no image"})
        assert (answer.status_code, answer.json()["field"]) == (422, "image")
        good = [{"id": f"new {n}", "text_vector": [1.0] * BITS} for n in range(5)]
        for field, wrong in (
            ("text", {"text": " "}),
            ("image", {"image": "####"}),
            ("text_vector", {"text_vector": [1]}),
        ):
            answer = client.put("/v1/items", json={"items": [*good, {"id": "wrong", **wrong}]})
            assert (answer.status_code, answer.json()["field"]) == (422, f"items.5.{field}")
        answer = client.post("/v1/search", params={"limt": 3}, json={"text": "a"})
        assert (answer.status_code, answer.json()["field"]) == (422, "limt")
        answer = client.post("/v1/search", json={"text": "a", "colour": 1})
        assert (answer.status_code, answer.json()["field"]) == (422, "colour")
        answer = client.delete("/v1/items")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, PUT")


def test_what_is_no_router_is_refused(pictured, indices):
    for urls in ([], ["ftp://x"], ["127.0.0.1:80"]):
        with pytest.raises(ConfigError) as caught:
            create_router(urls)
        assert caught.value.option == "shards"
    with client_of(pictured, indices) as whole, served(pictured, indices) as url:
        assert await_ready(whole).get("/v1/shard").status_code == 404
        with pytest.raises(MismatchError) as caught, router_of([url]):
            pass
        assert caught.value.field == url
