"""The verb that serves a run."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Annotated

import typer

from multibit.cli.options import echo, refuse_unused
from multibit.errors import counted

Megabytes = Annotated[float, typer.Option(envvar="MULTIBIT_MAX_BODY", help="Largest request, in MiB.")]


def serve(
    ctx: typer.Context,
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run folder written by `multibit train`, or a portable model."),
    ] = None,
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
    shard: Annotated[
        str, typer.Option(envvar="MULTIBIT_SHARD", help="Serve one shard, such as 2/8, of `multibit index --reshard`.")
    ] = "",
    shards: Annotated[
        str,
        typer.Option(envvar="MULTIBIT_SHARDS", help="URLs of the servers of all shards, with commas: route to these."),
    ] = "",
    hedge: Annotated[
        float, typer.Option(envvar="MULTIBIT_HEDGE", help="Seconds until a router asks a slow shard again.")
    ] = 0.2,
    drain: Annotated[
        float, typer.Option(envvar="MULTIBIT_DRAIN", help="Seconds that running requests have at the end.")
    ] = 10.0,
) -> None:
    """Serve a run, one shard of it, or all shards over HTTP.

    With a search page. Listens on this machine only unless told otherwise. Every option can also be set by an
    environment variable.
    """
    from multibit.errors import ConfigError, MissingExtraError

    try:
        from multibit.serve.server import route
        from multibit.serve.server import serve as run_server
    except ImportError as error:
        raise MissingExtraError(str(error.name), extra="serve", need="The server") from None
    from multibit.pipeline import open_run
    from multibit.search.shards import Shard
    from multibit.serve.settings import ServerSettings

    if not math.isfinite(max_body):
        raise ConfigError(f"must be a number of MiB, got {max_body}.", option="max_body")
    settings = ServerSettings(
        host, port, token, no_auth, writable, tuple(allow_host or ()), tuple(cors or ()), int(max_body * (1 << 20)),
        max_pixels, max_text, max_k, max_batch, queue, timeout, refresh, drain, hedge,
    )  # fmt: skip
    if shards:
        refuse_unused(ctx, "with --shards: the servers of the shards have them", "run", "index", "shard")
        urls = [url.strip().rstrip("/") for url in shards.split(",") if url.strip()]
        with contextlib.suppress(KeyboardInterrupt):
            servers = counted(len(urls), "server", "servers")
            route(urls, settings, started=lambda url: echo(f"Routing to {servers} at {url}"))
        return
    refuse_unused(ctx, "without --shards", "hedge")
    if run is None:
        raise ConfigError("is missing.", option="run", hint="Name a run folder, or the `shards` to route to.")
    part, what = (Shard.parse(shard), f"shard {shard} of {run}") if shard else (None, str(run))
    with contextlib.suppress(KeyboardInterrupt):  # a signal is the usual end; running requests were finished
        served = open_run(run, many=True)
        run_server(served, index, settings, part, started=lambda url: echo(f"Serving {what} at {url}"))
