"""Endpoints about the run and the server."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import PlainTextResponse, Response

from multibit.serve import models
from multibit.serve.answers import Served, as_json
from multibit.serve.explain import explain, related_labels
from multibit.serve.problems import DESCRIBED, RefusedError, not_found

router = APIRouter(tags=["server"])
# Parameters, which a router has too
Every = Annotated[bool, Query(description="Counts of all values of each field, not only of those to choose from.")]
Labels = Annotated[int, Query(ge=1, le=1000, description="Number of labels.")]


@router.get("/v1/info", response_model=models.Info)
async def info(service: Served, every: Every = False) -> Response:
    """What is served: lengths, sizes, fields with counts, limits."""
    run = service.collection.run
    sizes = {"image": run.recipe.image.dimension, "text": run.recipe.text.dimension}
    return as_json({
        "model": run.record.model, "method": run.record.method, "bits": run.model.bits, "lengths": list(run.lengths),
        "nested": run.model.layout.nested, "indices": service.collection.sizes,
        "fields": await service.field_counts(every), "labels": list(run.label_names),
        "encodes": list(service.encoder.encoders), "feature_bytes": {name: 4 * size for name, size in sizes.items()},
        "writable": service.settings.writable, "limits": service.settings.limits,
    })  # fmt: skip


_WHOLE: dict[int | str, dict[str, Any]] = {404: {**DESCRIBED[422], "description": "The server is not of a shard."}}


@router.get("/v1/shard", response_model=models.ShardInfo, responses=_WHOLE)
async def shard(service: Served) -> Response:
    """What a router must know about this shard."""
    collection = service.collection
    if collection.shard is None:
        raise not_found("shard: this server has whole indices")
    return as_json({
        "shard": str(collection.shard), "identity": collection.identity, "set": collection.set,
        "model": collection.run.record.model, "ids": collection.id_kind, "items": collection.sizes,
        "fields": {modality: collection.fields(modality) for modality in collection.modalities},
        "encodes": list(service.encoder.encoders), "writable": service.settings.writable,
        "limits": service.settings.limits,
    })  # fmt: skip


@router.get("/v1/explain", response_model=models.Explanation)
async def explain_run(service: Served) -> Response:
    """Accuracy by length, bit budget by scale, and warnings about the codes."""
    return as_json(await service.fact("explanation", lambda: explain(service.collection)))


UNKNOWN_LABEL: dict[int | str, dict[str, Any]] = {
    404: {**DESCRIBED[422], "description": "No such label, or a run without a relation teacher."}
}


@router.get("/v1/labels/{name:path}/neighbours", response_model=models.Neighbours, responses=UNKNOWN_LABEL)
async def neighbours(name: str, service: Served, k: Labels = 12) -> Response:
    """The labels that the relation teacher considers related to a label, with the score at each scale."""
    return as_json(await service.run(related_labels, service.collection.run, name, k))


@router.get("/livez", response_class=PlainTextResponse)
async def livez() -> str:
    """Whether the process answers."""
    return "ok"


NOT_READY: dict[int | str, dict[str, Any]] = {503: DESCRIBED[503]}


@router.get("/readyz", response_class=PlainTextResponse, responses=NOT_READY)
async def readyz(service: Served) -> str:
    """Whether queries are answered: after the first one, and until the server is told to stop."""
    if not service.is_ready:
        raise RefusedError(503, "the server is starting or stopping.")
    return "ok"


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: Served) -> PlainTextResponse:
    """Counters and histograms for Prometheus."""
    numbers = service.metrics
    for name, size in service.collection.sizes.items():
        numbers.items.labels(name).set(size)
    numbers.version.set(service.collection.version)
    return PlainTextResponse(numbers.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
