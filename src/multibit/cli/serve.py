"""The verb that serves a run."""

from __future__ import annotations

import contextlib
import math
from typing import Annotated

import typer

from multibit.cli.options import RunArgument, echo

Megabytes = Annotated[float, typer.Option(envvar="MULTIBIT_MAX_BODY", help="Largest request, in MiB.")]


def serve(
    run: RunArgument,
    index: Annotated[
        str | None,
        typer.Option(envvar="MULTIBIT_INDEX", help="Index folder, or URL of a database. Default: RUN/index"),
    ] = None,
    host: Annotated[str, typer.Option(envvar="MULTIBIT_HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="MULTIBIT_PORT", help="Port; 0 takes a free one.")] = 8080,
    token: Annotated[
        str, typer.Option(envvar="MULTIBIT_TOKEN", help="Bearer token that every request must carry.")
    ] = "",
    no_auth: Annotated[
        bool, typer.Option("--no-auth", envvar="MULTIBIT_NO_AUTH", help="Serve other machines without a token.")
    ] = False,
    writable: Annotated[
        bool, typer.Option("--writable", envvar="MULTIBIT_WRITABLE", help="Allow items to be added and removed.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(envvar="MULTIBIT_ALLOW_HOST", help="Further name of this server in URLs, or *. Repeatable."),
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(envvar="MULTIBIT_CORS", help="Origin of pages that may call. Repeatable.")
    ] = None,
    max_body: Megabytes = 10.0,
    max_pixels: Annotated[
        int, typer.Option(envvar="MULTIBIT_MAX_PIXELS", help="Largest uploaded image, in pixels.")
    ] = 40_000_000,
    max_text: Annotated[int, typer.Option(envvar="MULTIBIT_MAX_TEXT", help="Longest text, in characters.")] = 10_000,
    max_k: Annotated[int, typer.Option(envvar="MULTIBIT_MAX_K", help="Most hits of a search.")] = 1_000,
    max_batch: Annotated[
        int, typer.Option(envvar="MULTIBIT_MAX_BATCH", help="Most texts, images or items of a request.")
    ] = 256,
    queue: Annotated[
        int, typer.Option(envvar="MULTIBIT_QUEUE", help="Queries that may wait; more are refused with 503.")
    ] = 1_024,
    timeout: Annotated[
        float, typer.Option(envvar="MULTIBIT_TIMEOUT", help="Longest time of a request, in seconds.")
    ] = 30.0,
    refresh: Annotated[
        float, typer.Option(envvar="MULTIBIT_REFRESH", help="Seconds between looks for index changes made elsewhere.")
    ] = 1.0,
    drain: Annotated[
        float, typer.Option(envvar="MULTIBIT_DRAIN", help="Seconds that running requests have at the end.")
    ] = 10.0,
) -> None:
    """Serve a run over HTTP, with a search page.

    Listens on this machine only unless told otherwise. Every option can also be set by an environment variable.
    """
    from multibit.errors import ConfigError, MissingExtraError

    try:
        from multibit.serve.server import serve as run_server
    except ImportError as error:
        raise MissingExtraError(str(error.name), extra="serve", need="The server") from None
    from multibit.pipeline import open_run
    from multibit.serve.settings import ServerSettings

    if not math.isfinite(max_body):
        raise ConfigError(f"must be a number of MiB, got {max_body}.", option="max_body")
    settings = ServerSettings(
        host, port, token, no_auth, writable, tuple(allow_host or ()), tuple(cors or ()), int(max_body * (1 << 20)),
        max_pixels, max_text, max_k, max_batch, queue, timeout, refresh, drain,
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):  # a signal is the usual end; running requests were finished
        run_server(open_run(run, many=True), index, settings, started=lambda url: echo(f"Serving {run} at {url}"))
