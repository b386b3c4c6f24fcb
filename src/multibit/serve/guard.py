"""The outermost layer: host names, tokens, sizes of bodies, security headers, and the count of requests."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from multibit.serve.metrics import Metrics
from multibit.serve.problems import problem_response, response_to
from multibit.serve.settings import ServerSettings

EXPECTED = b"multibit-shard"
"""Header of the requests of a router: the shard, set and model that it expects; another server refuses them."""

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)


class Guard:
    """Middleware around the application.

    Args:
        app: the application. settings: of the server. metrics: that count the requests.
        identity: of the shard that is served now, see `Collection.identity`.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, metrics: Metrics, identity: Callable[[], str] = str
    ) -> None:
        self.app, self.settings, self.metrics, self._identity = app, settings, metrics, identity
        self._token = settings.token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, head = time.perf_counter(), 500, scope["method"] == "HEAD"
        if head:  # what GET answers, without the body
            scope = {**scope, "method": "GET"}

        async def guarded_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            elif head:
                message = {**message, "body": b""}
            await send(message)

        headers = dict(scope["headers"])
        try:
            refused = self._refused(scope, headers)
            if refused is None:
                await self.app(scope, self._counted(receive), guarded_send)
            else:
                await refused(scope, receive, guarded_send)
        except Exception as error:
            if status != 500:  # the answer has begun
                raise
            await response_to(error)(scope, receive, guarded_send)
        finally:
            endpoint = _endpoint(scope)
            self.metrics.requests.labels(endpoint, str(status)).inc()
            self.metrics.latency.labels(endpoint).observe(time.perf_counter() - start)

    def _refused(self, scope: Scope, headers: MutableMapping[bytes, bytes]) -> Any:
        if not self.settings.knows_host(headers.get(b"host", b"").decode("latin-1")):
            return problem_response(421, "this server does not serve that host name.")
        expected = headers.get(EXPECTED)
        if expected is not None and expected.decode("latin-1") != self._identity():
            return problem_response(421, "this server does not have that shard.")
        path = scope["path"]  # without a token: the files of the page, /livez and /readyz, which hold no data
        if self._token and (path.startswith("/v1/") or path == "/metrics"):
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
                return problem_response(401, "a bearer token is needed.", headers={"WWW-Authenticate": "Bearer"})
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > self.settings.max_body:
            return self._too_large()
        return None

    def _too_large(self) -> Any:
        detail = f"the body is larger than {self.settings.max_body:,} bytes."
        return problem_response(413, detail, headers={"Connection": "close"})

    def _counted(self, receive: Receive) -> Callable[[], Awaitable[Message]]:
        """The body, as long as it is not too large."""
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.settings.max_body:
                raise HTTPException(413, f"the body is larger than {self.settings.max_body:,} bytes.")
            return message

        return counted


def _endpoint(scope: Scope) -> str:
    """The route, not the path: ids would make a series of their own."""
    route = scope.get("route")
    return str(getattr(route, "path", "other"))
