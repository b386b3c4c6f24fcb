"""The application of a router: the endpoints of one server, answered by the shards behind it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from multibit.errors import ConfigError
from multibit.serve import models
from multibit.serve.answers import as_json
from multibit.serve.app import assembled
from multibit.serve.fleet import Fleet
from multibit.serve.gathering import Gathering, PassedError, item_path
from multibit.serve.item_routes import (
    IMAGE_ANSWERS,
    REFUSALS,
    Candidates,
    Hits,
    Length,
    Limit,
    Listed,
    Offset,
    Source,
    Target,
    Width,
)
from multibit.serve.metrics import Metrics
from multibit.serve.problems import RefusedError
from multibit.serve.query_routes import Options, Upload, read_options, refuse_other_parts
from multibit.serve.run_routes import NOT_READY, UNKNOWN_LABEL, Every, Labels, livez
from multibit.serve.settings import ServerSettings

KEPT = ("content-type", "etag", "cache-control", "retry-after")  # headers of a shard that reach the client
router = APIRouter()


def create_router(urls: Sequence[str], settings: ServerSettings | None = None, **options: Any) -> FastAPI:
    """The application in front of the servers of all shards; `multibit.serve.server.route` runs it.

    Args:
        urls: of the servers; several may serve one shard, from the same folder. settings: of the router, whose token
            the shards need too. options: of `httpx2.AsyncClient`.

    Raises:
        ConfigError: no URL, or one that is not of HTTP. When it starts, as `multibit.serve.fleet.Fleet.wait`:
            UnavailableError, servers that do not answer; MismatchError, shards of different sets.
    """
    settings, metrics = settings or ServerSettings(), Metrics()
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"must be URLs, such as http://127.0.0.1:8081, got {url!r}.", option="shards")
    if not urls:
        raise ConfigError("needs at least one URL.", option="shards")

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        fleet = fleet_of(urls, settings, **options)
        async with fleet.watched():
            app.state.service, app.state.metrics = Gathering(fleet, settings), metrics
            yield

    app = assembled([router], lifespan, settings, metrics)
    app.add_exception_handler(PassedError, _passed)
    return app


def fleet_of(urls: Sequence[str], settings: ServerSettings, **options: Any) -> Fleet:
    """The servers of all shards; the arguments are those of `create_router`."""
    return Fleet(urls, settings.token, settings.timeout, settings.hedge, settings.refresh, options)


async def _passed(request: Request, error: Exception) -> Response:
    assert isinstance(error, PassedError)
    return _as_it_is(error.response)


def _as_it_is(response: Any) -> Response:
    """An answer of a shard for the client."""
    headers = {name: response.headers[name] for name in KEPT if name in response.headers}
    return Response(response.content, response.status_code, headers)


async def _gathering(request: Request) -> Gathering:
    found = request.app.state.service
    assert isinstance(found, Gathering)
    return found


Gathered = Annotated[Gathering, Depends(_gathering)]


# Queries


@router.post("/v1/search", response_model=models.SearchResponse)
async def search(request: models.SearchRequest, all_shards: Gathered) -> Response:
    """Search by a text, an item, a relaxed code or a binary code."""
    return as_json(await all_shards.search(request))


@router.post("/v1/search/image", response_model=models.SearchResponse)
async def search_by_image(
    request: Request,
    all_shards: Gathered,
    image: Upload,
    options: Options = "{}",
) -> Response:
    """Search by an image; the hits are texts unless `options` name another modality."""
    chosen = read_options(options)
    await refuse_other_parts(request)
    return as_json(await all_shards.search_by_image(await image.read(), chosen))


@router.post("/v1/encode", response_model=models.EncodeResponse)
async def encode(body: models.EncodeRequest, request: Request, all_shards: Gathered) -> Response:
    """Encode texts and images."""
    return await _any_shard(request, all_shards)


@router.post("/v1/embeddings", response_model=models.EmbeddingsResponse)
async def embeddings(body: models.EmbeddingsRequest, request: Request, all_shards: Gathered) -> Response:
    """Embed texts, in the form of OpenAI's interface: `dimensions` is the code length, the values are relaxed."""
    return await _any_shard(request, all_shards)


@router.get("/v1/explain", response_model=models.Explanation)
async def explain_run(request: Request, all_shards: Gathered) -> Response:
    """Accuracy by length, bit budget by scale, and warnings about the codes."""
    return await _any_shard(request, all_shards)


@router.get("/v1/labels/{name:path}/neighbours", response_model=models.Neighbours, responses=UNKNOWN_LABEL)
async def neighbours(name: str, request: Request, all_shards: Gathered, k: Labels = 12) -> Response:
    """The labels that the relation teacher considers related to a label, with the score at each scale."""
    return await _any_shard(request, all_shards)


async def _any_shard(request: Request, all_shards: Gathered) -> Response:
    """What every shard answers alike."""
    path = request.scope["raw_path"].decode("latin-1")
    sent: Mapping[str, Any] = {"params": dict(request.query_params)}
    if request.method == "POST":
        sent = {"content": await request.body(), "headers": {"Content-Type": "application/json"}}
    return _as_it_is(await all_shards.ask_any(request.method, path, **sent))


# Items


@router.put("/v1/items", response_model=models.Changed, responses=REFUSALS)
async def put_items(request: models.PutItems, all_shards: Gathered) -> Response:
    """Add items; those with a known id are replaced as a whole."""
    return as_json(await all_shards.put(request.items))


@router.get("/v1/items", response_model=models.ItemList)
async def list_items(
    all_shards: Gathered,
    modality: Listed = "image",
    offset: Offset = 0,
    limit: Limit = 20,
) -> Response:
    """Some of the first items of one modality, in order of age."""
    return as_json(await all_shards.listed(modality, offset, limit))


@router.get("/v1/items/{id:path}/image", responses=IMAGE_ANSWERS, response_class=Response)
async def get_image(id: str, request: Request, all_shards: Gathered, width: Width = None) -> Response:
    """The image of an item: the file itself, or a small copy."""
    known = request.headers.get("if-none-match")
    sent: dict[str, Any] = {"headers": {"If-None-Match": known}} if known else {}
    if width is not None:
        sent["params"] = {"width": width}
    return _as_it_is(await all_shards.ask(all_shards.owner(id), "GET", f"{item_path(id)}/image", **sent))


@router.get("/v1/items/{id:path}/similar", response_model=models.SearchResponse, responses=REFUSALS)
async def get_similar(
    id: str,
    all_shards: Gathered,
    source: Source = "image",
    modality: Target = None,
    bits: Length = None,
    k: Hits = 10,
    ef_search: Candidates = None,
) -> Response:
    """The items nearest to an item, without itself."""
    options = models.SearchOptions(modality=modality, bits=bits, k=k, ef_search=ef_search)
    return as_json(await all_shards.similar(id, source, options))


@router.get("/v1/items/{id:path}", response_model=models.Item, responses=REFUSALS)
async def get_item(id: str, all_shards: Gathered) -> Response:
    """An item with its metadata and codes."""
    return _as_it_is(await all_shards.ask(all_shards.owner(id), "GET", item_path(id)))


@router.delete("/v1/items/{id:path}", status_code=204, responses=REFUSALS, response_class=Response)
async def delete_item(id: str, all_shards: Gathered) -> Response:
    """Remove an item."""
    await all_shards.delete(id)
    return Response(status_code=204)


# The server


@router.get("/v1/info", response_model=models.Info)
async def info(all_shards: Gathered, every: Every = False) -> Response:
    """What is served: lengths, sizes, fields with counts, limits."""
    return as_json(await all_shards.info(every))


router.get("/livez", response_class=PlainTextResponse)(livez)


@router.get("/readyz", response_class=PlainTextResponse, responses=NOT_READY)
async def readyz(all_shards: Gathered) -> str:
    """Whether queries are answered: while every shard has a server, and until the router is told to stop."""
    if not all_shards.is_ready:
        raise RefusedError(503, "the server is stopping.")
    if not all_shards.fleet.count:
        raise RefusedError(503, "no server of a shard was reached yet.")
    if all_shards.fleet.missing:
        raise RefusedError(503, f"these shards do not answer: {', '.join(all_shards.fleet.missing)}.")
    return "ok"


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request, all_shards: Gathered) -> PlainTextResponse:
    """Counters and histograms for Prometheus."""
    numbers: Metrics = request.app.state.metrics
    for name, size in all_shards.sizes.items():
        numbers.items.labels(name).set(size)
    numbers.shards.labels("all").set(all_shards.fleet.count)
    numbers.shards.labels("missing").set(len(all_shards.fleet.missing))
    numbers.hedged.set(all_shards.fleet.hedged)
    return PlainTextResponse(numbers.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
