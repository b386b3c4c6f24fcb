"""Shared parts of the endpoints: the service of a request, and answers as JSON."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response

from multibit.search.shards import AGE
from multibit.serve.collection import HIDDEN, IMAGE, Found, Query
from multibit.serve.problems import RefusedError
from multibit.serve.service import Service, hexadecimal


async def service_of(request: Request) -> Service:
    """The service of the application; a function that is not async would be called in a thread, at a cost.

    Raises:
        RefusedError: it is not started.
    """
    service = getattr(request.app.state, "service", None)
    if not isinstance(service, Service):
        raise RefusedError(503, "the server is starting.")
    return service


Served = Annotated[Service, Depends(service_of)]


def as_json(value: Any) -> Response:
    """An answer, encoded without the cost of a second validation."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def image_url(name: str | int) -> str:
    """Where the image of an item is served."""
    return f"/v1/items/{quote(str(name), safe='')}/image"


def visible(name: str | int, payload: dict[str, Any]) -> dict[str, Any]:
    """An item as clients see it: its image as an address, not as a path."""
    fields = {key: value for key, value in payload.items() if key not in HIDDEN}
    image = image_url(name) if payload.get(IMAGE) is not None else None
    age = {"age": payload[AGE]} if AGE in payload else {}
    return {"id": name, "image": image, "fields": fields, **age}


def search_answer(query: Query, found: Found) -> Response:
    """The answer of a search."""
    hits = [
        {"rank": rank, "distance": hit.distance, "score": hit.score, **visible(hit.id, dict(hit.payload))}
        for rank, hit in enumerate(found.hits, start=1)
    ]
    return as_json({
        "bits": query.bits, "modality": query.modality, "code": hexadecimal(query.values), "items": found.items,
        "bytes_read": found.bytes_read, "seconds": found.seconds, "exact": found.exact,
        "missing": found.missing, "note": query.note, "hits": hits,
    })  # fmt: skip
