"""The application: the page, and the endpoints of the HTTP interface."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from multibit.errors import ConfigError
from multibit.search.remote.urls import is_url
from multibit.search.shards import Shard
from multibit.serve import problems
from multibit.serve.collection import Collection
from multibit.serve.encoding import load_query_encoder
from multibit.serve.guard import Guard
from multibit.serve.item_routes import router as items
from multibit.serve.metrics import Metrics
from multibit.serve.problems import LOG
from multibit.serve.query_routes import router as queries
from multibit.serve.run_routes import router as about
from multibit.serve.service import Service
from multibit.serve.settings import ServerSettings

if TYPE_CHECKING:
    from multibit.pipeline import AnyRun

PAGE = files("multibit.serve") / "page"
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
DESCRIPTION = "Search a multibit run by text, image, item or code, at any code length."


def create_app(
    run: AnyRun,
    index: Path | str | None = None,
    settings: ServerSettings | None = None,
    shard: Shard | None = None,
) -> FastAPI:
    """The application of a run; `multibit.serve.server.serve` runs it.

    Args:
        run: to serve. index: folder of its indices, that of the run when None, or URL of a database.
        settings: of the server. shard: to serve, of those that are in the folder; the whole indices when None.

    Raises:
        ConfigError: the index is in a database, and changes are allowed or a shard is named. DataError: the run has no
            index, or not this shard. MismatchError: an index or an installed encoder of another model.

    Example:
        >>> from starlette.testclient import TestClient
        >>> with TestClient(create_app(run), "http://localhost") as client:
        ...     client.post("/v1/search", json={"text": "a red flower", "k": 2}).json()["bits"]
        8
    """
    settings, metrics = settings or ServerSettings(), Metrics()
    if settings.writable and is_url(index):
        raise ConfigError("an index in a database is changed there.", option="writable", hint="Leave it out.")
    if shard is not None and is_url(index):
        raise ConfigError("an index in a database has no such shards.", option="shard", hint="Leave it out.")
    place = index or run.folder / "index"
    collection = Collection(run, place if shard is None else shard.folder(Path(place)), shard)
    encoder = load_query_encoder(run)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = Service(collection, encoder, settings, metrics)
        app.state.service = service
        starting = asyncio.create_task(service.start())
        starting.add_done_callback(_report)
        try:
            yield
        finally:
            starting.cancel()
            await service.stop()

    return assembled((queries, items, about), lifespan, settings, metrics, identity=lambda: collection.identity)


def assembled(
    routers: Sequence[APIRouter],
    lifespan: Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]],
    settings: ServerSettings,
    metrics: Metrics,
    identity: Callable[[], str] = str,
) -> FastAPI:
    """An application of some endpoints, with the page, the guard and answers to errors.

    Args:
        routers: of the endpoints. lifespan, settings, metrics: of the application. identity: of the shard now.
    """
    app = FastAPI(
        title="multibit", version="1", description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None,
        openapi_url="/v1/openapi.json", responses=problems.DESCRIBED,
    )  # fmt: skip
    problems.install(app, routers)
    for router in routers:
        app.include_router(router, dependencies=[Depends(problems.refuse_unknown)])
    _add_page(app)
    app.add_middleware(Guard, settings=settings, metrics=metrics, identity=identity)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.cors, allow_methods=["*"], allow_headers=["*"], max_age=600
        )
    return app


def _report(starting: asyncio.Task[None]) -> None:
    if not starting.cancelled() and starting.exception() is not None:
        LOG.error("the first query failed, so the server is not ready", exc_info=starting.exception())


def _add_page(app: FastAPI) -> None:
    """The files of the page, read once: `/` and `/page/NAME`."""
    contents = {each.name: each.read_bytes() for each in PAGE.iterdir() if Path(each.name).suffix in MEDIA_TYPES}

    def answer(name: str) -> Response:
        if name not in contents:
            raise problems.not_found("such file")
        media_type = f"{MEDIA_TYPES[Path(name).suffix]}; charset=utf-8"
        return Response(contents[name], media_type=media_type, headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return answer("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        return answer(name)
