"""Endpoints that take queries: search by anything, and encoding."""

from __future__ import annotations

import base64
import json
from collections import Counter
from typing import Annotated

import numpy as np
from fastapi import APIRouter, File, Form, UploadFile
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from multibit.serve import models
from multibit.serve.answers import Served, as_json, search_answer
from multibit.serve.collection import Values
from multibit.serve.problems import RefusedError
from multibit.serve.reasons import described
from multibit.serve.service import decode_base64, hexadecimal

router = APIRouter(prefix="/v1", tags=["queries"])

# Parts of a form, which a router has too
Upload = Annotated[UploadFile, File(description="An image file.")]
Options = Annotated[str, Form(description='As for a search, as JSON: {"bits": 32, "k": 5}.')]


@router.post("/search", response_model=models.SearchResponse)
async def search(request: models.SearchRequest, service: Served) -> Response:
    """Search by a text, an item, a relaxed code or a binary code."""
    return search_answer(*await service.search(request))


@router.post("/search/image", response_model=models.SearchResponse)
async def search_by_image(
    request: Request,
    service: Served,
    image: Upload,
    options: Options = "{}",
) -> Response:
    """Search by an image; the hits are texts unless `options` name another modality."""
    chosen = read_options(options)
    await refuse_other_parts(request)
    modality = chosen.modality or "text"
    service.plan(chosen, modality)
    (values,) = await service.encode_images({"image": await image.read()})
    return search_answer(*await service.search_values(values, chosen, modality))


@router.post("/encode", response_model=models.EncodeResponse)
async def encode(request: models.EncodeRequest, service: Served) -> Response:
    """Encode texts and images."""
    length = checked_length(service, request.bits)
    files = {f"images.{place}": decode_base64(each, f"images.{place}") for place, each in enumerate(request.images)}
    images = await service.encode_images(files)
    asked = {f"texts.{place}": text for place, text in enumerate(request.texts)}
    texts = await service.encode_texts(asked)
    notes = [await service.note(*each) if request.queries else "" for each in asked.items()]

    def encoded(values: Values, note: str = "") -> dict[str, object]:
        part = values[:length]
        return {"code": hexadecimal(part), "vector": part.tolist() if request.vectors else None, "note": note}

    return as_json({
        "bits": length, "model": service.collection.run.record.model,
        "texts": list(map(encoded, texts, notes)), "images": list(map(encoded, images)),
    })  # fmt: skip


@router.post("/embeddings", response_model=models.EmbeddingsResponse)
async def embeddings(request: models.EmbeddingsRequest, service: Served) -> Response:
    """Embed texts, in the form of OpenAI's interface: `dimensions` is the code length, the values are relaxed."""
    length = checked_length(service, request.dimensions, "dimensions")
    single = isinstance(request.input, str)
    texts = [request.input] if isinstance(request.input, str) else request.input
    if not texts:
        raise RefusedError(422, "need at least one text.", field="input")
    values = await service.encode_texts(
        {"input" if single else f"input.{place}": text for place, text in enumerate(texts)}
    )
    data = [
        {
            "object": "embedding",
            "index": number,
            "embedding": _base64(each[:length]) if request.encoding_format == "base64" else each[:length].tolist(),
        }
        for number, each in enumerate(values)
    ]
    words = sum(len(text.split()) for text in texts)
    model = service.collection.run.record.model
    usage = {"prompt_tokens": words, "total_tokens": words}
    return as_json({"object": "list", "model": model, "data": data, "usage": usage})


def read_options(options: str) -> models.SearchOptions:
    """The options of a search as a form has them.

    Raises:
        RefusedError: not JSON, or invalid.
    """
    try:
        return models.SearchOptions.model_validate(json.loads(options))
    except ValidationError as error:
        detail, where = described(error.errors(), json.loads(options))
        raise RefusedError(422, detail, field=f"options.{where}" if where else "options") from None
    except (ValueError, RecursionError):
        raise RefusedError(422, "not valid JSON.", field="options") from None


async def refuse_other_parts(request: Request) -> None:
    """Refuse parts of the form that a search by an image does not have, or has once.

    Raises:
        RefusedError: names the first.
    """
    counts = Counter(name for name, _ in (await request.form()).multi_items())
    for name, count in counts.items():
        if name not in ("image", "options"):
            raise RefusedError(422, "is no part of the form: it has image and options.", field=name)
        if count > 1:
            raise RefusedError(422, f"is given {count} times. Give it once.", field=name)


def checked_length(service: Served, bits: int | None, field: str = "bits") -> int:
    """The length of a prefix of the stored code.

    Raises:
        RefusedError: beyond the codes, or the code of a length is not a prefix.
    """
    layout = service.collection.run.model.layout
    if bits is None:
        return layout.stored
    if bits > layout.longest:
        raise RefusedError(422, f"must be a whole number from 1 to {layout.longest}, got {bits}.", field=field)
    if not layout.nested or layout.views > 1:
        raise RefusedError(422, "this run has a code for each length: leave the length out.", field=field)
    return bits


def _base64(values: Values) -> str:
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()
