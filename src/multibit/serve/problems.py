"""Errors of the HTTP interface: every refusal is `application/problem+json`, without paths of this machine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from multibit.errors import (
    BusyError,
    ConfigError,
    DataError,
    MissingExtraError,
    MultibitError,
    UnavailableError,
    printable,
)
from multibit.serve.models import Problem
from multibit.serve.reasons import described

LOG = logging.getLogger("multibit.serve")
MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = "1"  # seconds


class RefusedError(MultibitError):
    """A request that cannot be answered, with its HTTP status.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, status: int, problem: str, *, field: str = "", hint: str = "") -> None:
        super().__init__(problem, field=field, hint=hint)
        self.status = status


def not_found(what: str, hint: str = "") -> RefusedError:
    """The error of an unknown name."""
    return RefusedError(404, f"no {what}.", hint=hint)


def overloaded(problem: str) -> RefusedError:
    """The error of a server that has too much to do: the client should try again later."""
    return RefusedError(503, problem, hint="Try again later.")


STATUS: dict[type[Exception], int] = {
    MissingExtraError: 501, BusyError: 409, UnavailableError: 503, DataError: 422, ConfigError: 422,
}  # fmt: skip
"""Error -> status, the first that fits."""


SPELLED = {"payloads": "fields", "ids": "id"}
"""Argument of the library -> field of a request."""


def problem_response(status: int, detail: str, field: str = "", headers: dict[str, str] | None = None) -> Response:
    """A refusal."""
    try:
        title = HTTPStatus(status).phrase
    except ValueError:
        title = "Error"
    found = {"type": "about:blank", "title": title, "status": status, "detail": detail, "field": field}
    more = {"Retry-After": RETRY_AFTER} if status in (409, 503) else {}
    return Response(msgspec.json.encode(found), status, {**more, **(headers or {})}, MEDIA_TYPE)


def response_to(error: Exception) -> Response:
    """The answer to an error. What is not the fault of the request is logged and answered without details."""
    if isinstance(error, RefusedError):
        return problem_response(error.status, _said(error), error.field)
    if isinstance(error, TimeoutError):
        return problem_response(503, "the request took too long. Try again later.")
    if isinstance(error, UnicodeEncodeError):
        return problem_response(422, "a text contains a lone surrogate, which UTF-8 cannot represent.")
    if isinstance(error, BusyError) or (isinstance(error, MultibitError) and error.file is None):
        for kind, status in STATUS.items():
            if isinstance(error, kind):
                field = error.option or error.field
                return problem_response(status, _said(error), SPELLED.get(field, field))
    LOG.error("request failed", exc_info=error)
    return problem_response(500, "the server failed; its log has the cause.")


def _said(error: MultibitError) -> str:
    return " ".join(part for part in (error.problem, error.hint.replace("`", "")) if part)


def install(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    """Answer all errors of an application as problems; the routers are those that it includes."""

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        if isinstance(error.body, bytes):  # was not read as JSON
            return _not_json(request)
        of_body = error.errors()[0]["loc"][:1] == ("body",)
        content = error.body if of_body else {**request.path_params, **request.query_params}
        found = [
            {**each, "loc": each["loc"][1:]} for each in error.errors() if (each["loc"][:1] == ("body",)) == of_body
        ]
        return problem_response(422, *described(found, content))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers, detail = dict(error.headers or {}), str(error.detail)
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_methods([app, *routers], request))
            detail = f"{printable(request.method)} is not possible here; choose from {headers['Allow']}."
        return problem_response(error.status_code, detail, headers=headers)

    async def known(request: Request, error: Exception) -> Response:
        return response_to(error)

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    for kind in (MultibitError, TimeoutError, UnicodeEncodeError, OSError, RecursionError):
        app.add_exception_handler(kind, known)


def _not_json(request: Request) -> Response:
    given = request.headers.get("content-type", "none")
    problem = f"must be application/json, got {given}. Send the header Content-Type: application/json."
    return problem_response(422, printable(problem), "Content-Type")


def _methods(routers: Sequence[FastAPI | APIRouter], request: Request) -> list[str]:
    """The methods of all routes of a path; the library names those of one route only."""
    found: set[str] = set()
    for route in (route for router in routers for route in router.routes):
        methods = getattr(route, "methods", None)
        if methods and route.matches(request.scope)[0] is not Match.NONE:
            found |= set(methods)
    return sorted(found | ({"HEAD"} if "GET" in found else set()))


async def refuse_unknown(request: Request) -> None:
    """Refuse query parameters that the endpoint does not have: a misspelled one would have no effect.

    Raises:
        RefusedError: names the first.
    """
    known = [each.alias for each in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            offered = ", ".join(map(repr, known)) or "none"
            raise RefusedError(422, f"is no query parameter here. Those of this endpoint: {offered}.", field=name)


DESCRIBED: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "model": Problem, "content": {MEDIA_TYPE: {}}}
    for status, text in {
        401: "The token is missing or wrong.",
        413: "The body is larger than the limit.",
        422: "The request is invalid.",
        503: "The queue is full or the request took too long; try again after Retry-After.",
    }.items()
}
"""Refusals that every endpoint can answer, for the OpenAPI description."""
