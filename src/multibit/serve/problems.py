"""Errors of the HTTP interface: every refusal is `application/problem+json`, without paths of this machine."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from multibit.errors import BusyError, ConfigError, DataError, MissingExtraError, MultibitError
from multibit.serve.models import Problem

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


def not_found(what: str) -> RefusedError:
    """The error of an unknown name."""
    return RefusedError(404, f"no {what}.")


def overloaded(problem: str) -> RefusedError:
    """The error of a server that has too much to do: the client should try again later."""
    return RefusedError(503, problem, hint="Try again later.")


STATUS: dict[type[Exception], int] = {
    MissingExtraError: 501, BusyError: 409, DataError: 422, ConfigError: 422,
}  # fmt: skip
"""Error -> status, the first that fits."""


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
                return problem_response(status, _said(error), error.option or error.field)
    LOG.error("request failed", exc_info=error)
    return problem_response(500, "the server failed; its log has the cause.")


def _said(error: MultibitError) -> str:
    return " ".join(part for part in (error.problem, error.hint.replace("`", "")) if part)


def install(app: FastAPI) -> None:
    """Answer all errors of an application as problems."""

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first: dict[str, Any] = dict(error.errors()[0])
        place = [str(part) for part in first.get("loc", ())[1:]]
        detail = str(first.get("msg", "invalid")).removeprefix("Value error, ")
        return problem_response(422, f"{detail}.", ".".join(place))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem_response(error.status_code, str(error.detail), headers=dict(error.headers or {}))

    async def known(request: Request, error: Exception) -> Response:
        return response_to(error)

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    for kind in (MultibitError, TimeoutError, UnicodeEncodeError, OSError, RecursionError):
        app.add_exception_handler(kind, known)


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
