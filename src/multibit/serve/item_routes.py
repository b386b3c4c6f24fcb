"""Endpoints of the items: read, change, their images, and what is similar."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from multibit.serve import models
from multibit.serve.answers import Served, as_json, search_answer, visible
from multibit.serve.pictures import read_picture
from multibit.serve.problems import DESCRIBED, RefusedError
from multibit.serve.service import Service, hexadecimal

router = APIRouter(prefix="/v1/items", tags=["items"])

REFUSALS: dict[int | str, dict[str, Any]] = {
    403: {**DESCRIBED[422], "description": "The server was started without the permission to write."},
    404: {**DESCRIBED[422], "description": "No such item."},
    409: {**DESCRIBED[422], "description": "Another process is writing the index; try again."},
}
IMAGE_ANSWERS = {**REFUSALS, 200: {"content": {"image/*": {}}}}
# Parameters, which a router has too
Listed = Annotated[models.Modality, Query(description="Modality of the items.")]
Offset = Annotated[int, Query(ge=0, le=2**40, description="Items to leave out, the oldest ones.")]
Limit = Annotated[int, Query(ge=1, description="Most items of the answer; the server has a limit too.")]
Width = Annotated[int | None, Query(ge=16, le=1024, description="Largest side of a copy, in pixels.")]
Source = Annotated[
    models.Modality, Query(description="Which code of the item is the query: that of its image, or of its text.")
]
Target = Annotated[models.Modality | None, Query(description="Modality of the hits. Default: the source.")]
Length = Annotated[int | None, Query(ge=1, le=1024, description=models.BITS)]
Hits = Annotated[int, Query(ge=1, description="Number of hits.")]
Candidates = Annotated[int | None, Query(ge=1, le=1000, description=models.EF_SEARCH)]


def _require_writable(service: Service) -> None:
    if not service.settings.writable:
        raise RefusedError(403, "this server only reads.", hint="Start it as `writable`.")


@router.put("", response_model=models.Changed, responses=REFUSALS)
async def put_items(request: models.PutItems, service: Served) -> Response:
    """Add items; those with a known id are replaced as a whole."""
    _require_writable(service)
    await service.put(request.items, request.known_fields)
    return as_json({"written": len(request.items), "items": service.collection.sizes})


@router.get("", response_model=models.ItemList)
async def list_items(
    service: Served,
    modality: Listed = "image",
    offset: Offset = 0,
    limit: Limit = 20,
) -> Response:
    """Some items of one modality, in order of age."""
    if limit > service.settings.max_k:
        raise RefusedError(422, f"at most {service.settings.max_k:,} items, got {limit:,}.", field="limit")
    total, found = await service.run(service.collection.listed, modality, offset, limit)
    return as_json({"total": total, "items": [visible(name, payload) for name, payload in found]})


@router.get("/{id:path}/image", responses=IMAGE_ANSWERS, response_class=Response)
async def get_image(id: str, request: Request, service: Served, width: Width = None) -> Response:
    """The image of an item: the file itself, or a small copy."""
    path = await service.run(service.collection.image_path, id)
    picture = await service.run(read_picture, path, width)
    headers = {"ETag": picture.tag, "Cache-Control": "private, max-age=300"}
    if request.headers.get("if-none-match") == picture.tag:
        return Response(status_code=304, headers=headers)
    return Response(picture.content, media_type=picture.media_type, headers=headers)


@router.get("/{id:path}/similar", response_model=models.SearchResponse, responses=REFUSALS)
async def get_similar(
    id: str,
    service: Served,
    source: Source = "image",
    modality: Target = None,
    bits: Length = None,
    k: Hits = 10,
    ef_search: Candidates = None,
) -> Response:
    """The items nearest to an item, without itself."""
    options = models.SearchOptions(modality=modality, bits=bits, k=k, ef_search=ef_search)
    return search_answer(*await service.similar(id, source, options))


@router.get("/{id:path}", response_model=models.Item, responses=REFUSALS)
async def get_item(id: str, service: Served) -> Response:
    """An item with its metadata and codes."""
    hit, values = await service.run(service.collection.item, id)
    codes = {modality: hexadecimal(each) for modality, each in values.items()}
    return as_json({**visible(hit.id, dict(hit.payload)), "codes": codes})


@router.delete("/{id:path}", status_code=204, responses=REFUSALS, response_class=Response)
async def delete_item(id: str, service: Served) -> Response:
    """Remove an item."""
    _require_writable(service)
    await service.delete(id)
    return Response(status_code=204)
