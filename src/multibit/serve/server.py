"""Run the application until it is told to stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from multibit.errors import DataError
from multibit.search.shards import Shard
from multibit.serve.app import create_app
from multibit.serve.router import create_router, fleet_of
from multibit.serve.settings import ServerSettings

if TYPE_CHECKING:
    from multibit.pipeline import AnyRun


class _Server(uvicorn.Server):
    """A server that is not ready any more as soon as it is told to stop."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        app = self.config.app
        assert isinstance(app, FastAPI)
        service = getattr(app.state, "service", None)
        if service is not None:
            service.is_ready = False
        super().handle_exit(sig, frame)


def serve(
    run: AnyRun,
    index: Path | str | None = None,
    settings: ServerSettings | None = None,
    shard: Shard | None = None,
    *,
    started: Callable[[str], object] = lambda url: None,
) -> None:
    """Serve a run until SIGTERM or SIGINT; running requests are finished first.

    Args:
        run, index, settings, shard: as for `create_app`. started: called with the address once the server listens.

    Raises:
        DataError: the address cannot be used; and as `create_app`.
    """
    settings = settings or ServerSettings()
    _listen_and_run(create_app(run, index, settings, shard), settings, started)


def route(
    urls: Sequence[str], settings: ServerSettings | None = None, *, started: Callable[[str], object] = lambda url: None
) -> None:
    """Answer for the servers of all shards until SIGTERM or SIGINT.

    Args:
        urls, settings: as for `create_router`. started: as for `serve`.

    Raises:
        DataError: the address cannot be used; and as `create_router`, before it listens.
    """
    settings = settings or ServerSettings()
    app = create_router(urls, settings)
    asyncio.run(_reach(urls, settings))
    _listen_and_run(app, settings, started)


async def _reach(urls: Sequence[str], settings: ServerSettings) -> None:
    async with fleet_of(urls, settings).watched():
        pass


def _listen_and_run(app: FastAPI, settings: ServerSettings, started: Callable[[str], object]) -> None:
    listener = _listen(settings.host, settings.port)
    name = f"[{settings.host}]" if ":" in settings.host else settings.host
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="on",
        timeout_graceful_shutdown=int(settings.drain), backlog=settings.queue, proxy_headers=False,
    )  # fmt: skip
    started(f"http://{name}:{listener.getsockname()[1]}/")
    _Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        problem = f"cannot listen on {host}:{port} ({error.strerror or error})."
        raise DataError(problem, option="port", hint="Choose another port.") from None
    return listener
