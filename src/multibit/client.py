"""A client of `multibit serve`, synchronous and asynchronous, with the models of the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar
from urllib.parse import quote

from multibit.errors import MissingExtraError, MultibitError

try:
    import httpx2 as httpx
    from pydantic import BaseModel, ValidationError
except ImportError as error:
    raise MissingExtraError(str(error.name), extra="client", need="The client") from None

from multibit.serve import models
from multibit.serve.models import (
    EncodeResponse,
    Explanation,
    Id,
    Info,
    Item,
    ItemList,
    Modality,
    Neighbours,
    NewItem,
    Problem,
    SearchOptions,
    SearchRequest,
    SearchResponse,
)

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
TIMEOUT = 60.0


class ServerError(MultibitError):
    """A request that the server refused, or that did not reach it.

    Attributes:
        status: HTTP status; 0 where there was no answer. retry_after: seconds to wait, where the server says so.

    Example:
        >>> error = ServerError(503, "too many queries.", retry_after=1.0)
        >>> error.status, error.retry_after
        (503, 1.0)
    """

    def __init__(self, status: int, problem: str, *, field: str = "", retry_after: float | None = None) -> None:
        super().__init__(problem, field=field)
        self.status, self.retry_after = status, retry_after


class _Call(NamedTuple, Generic[T]):
    """A request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    options: Mapping[str, Any] = {}


class _Calls:
    """The requests of all methods; both clients send the same ones."""

    def search(self, request: SearchRequest) -> _Call[SearchResponse]:
        return _post("/v1/search", request, SearchResponse)

    def search_image(self, image: Path | bytes, options: SearchOptions) -> _Call[SearchResponse]:
        form = {"options": json.dumps(options.model_dump(exclude_none=True))}
        sent = {"data": form, "files": {"image": _content(image)}}
        return _Call("POST", "/v1/search/image", _reader(SearchResponse), sent)

    def similar(self, name: Id, **given: Any) -> _Call[SearchResponse]:
        return _get(f"{_item(name)}/similar", SearchResponse, given)

    def encode(self, request: models.EncodeRequest) -> _Call[EncodeResponse]:
        return _post("/v1/encode", request, EncodeResponse)

    def put(self, items: Sequence[NewItem]) -> _Call[models.Changed]:
        return _post("/v1/items", models.PutItems(items=list(items)), models.Changed, "PUT")

    def get(self, name: Id) -> _Call[Item]:
        return _get(_item(name), Item)

    def delete(self, name: Id) -> _Call[None]:
        return _Call("DELETE", _item(name), lambda response: None)

    def image(self, name: Id, width: int | None) -> _Call[bytes]:
        return _Call("GET", f"{_item(name)}/image", lambda response: response.content, _query({"width": width}))

    def items(self, modality: Modality, offset: int, limit: int) -> _Call[ItemList]:
        return _get("/v1/items", ItemList, {"modality": modality, "offset": offset, "limit": limit})

    def info(self) -> _Call[Info]:
        return _get("/v1/info", Info)

    def explain(self) -> _Call[Explanation]:
        return _get("/v1/explain", Explanation)

    def neighbours(self, label: str, k: int) -> _Call[Neighbours]:
        return _get(f"/v1/labels/{quote(label, safe='')}/neighbours", Neighbours, {"k": k})

    def is_ready(self) -> _Call[bool]:
        return _Call("GET", "/readyz", lambda response: True)


def _item(name: Id) -> str:
    return f"/v1/items/{quote(str(name), safe='')}"


def _query(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"params": {key: value for key, value in given.items() if value is not None}}


def _get(path: str, model: type[M], given: Mapping[str, Any] | None = None) -> _Call[M]:
    return _Call("GET", path, _reader(model), _query(given or {}))


def _post(path: str, request: BaseModel, model: type[M], method: str = "POST") -> _Call[M]:
    sent = request.model_dump_json(exclude_none=True)
    return _Call(method, path, _reader(model), {"content": sent, "headers": {"Content-Type": "application/json"}})


def _reader(model: type[M]) -> Callable[[httpx.Response], M]:
    return lambda response: model.model_validate_json(response.content)


def _content(image: Path | bytes) -> bytes:
    return image if isinstance(image, bytes) else image.read_bytes()


def _checked(call: _Call[T], response: httpx.Response) -> T:
    """The answer, or the error that it describes."""
    try:
        if response.is_success:
            return call.read(response)
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        raise ServerError(response.status_code, "the answer is not that of a multibit server.") from None
    wait = response.headers.get("retry-after", "")
    raise ServerError(
        problem.status, problem.detail, field=problem.field, retry_after=float(wait) if wait.isdecimal() else None
    )


def _settings(url: str, token: str, timeout: float, options: Mapping[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {"base_url": url, "headers": headers, "timeout": timeout, **options}


class Client:
    """A client that waits for its answers. Use it as a context manager, or close it.

    Args:
        url: of the server. token: that it needs, if any. timeout: seconds. options: of `httpx2.Client`.

    All methods raise `ServerError` where the server refuses.

    Example:
        >>> def serve(request):
        ...     problem = {"title": "", "status": 422, "detail": "no such length.", "field": "bits"}
        ...     return httpx.Response(422, json=problem)
        >>> with Client("http://localhost:8080", transport=httpx.MockTransport(serve)) as client:
        ...     client.search(text="a red flower", bits=999)
        Traceback (most recent call last):
            ...
        multibit.client.ServerError: bits: no such length.
    """

    def __init__(self, url: str, token: str = "", *, timeout: float = TIMEOUT, **options: Any) -> None:
        self._http = httpx.Client(**_settings(url, token, timeout, options))
        self._calls = _Calls()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _send(self, call: _Call[T]) -> T:
        try:
            response = self._http.request(call.method, call.path, **call.options)
        except httpx.TransportError as error:
            raise ServerError(0, f"no answer ({error or type(error).__name__}).") from None
        return _checked(call, response)

    def search(self, text: str | None = None, **query: Any) -> SearchResponse:
        """Search by exactly one of text, id, vector and code; the other arguments are those of `SearchRequest`."""
        return self._send(self._calls.search(SearchRequest(text=text, **query)))

    def search_image(self, image: Path | bytes, **options: Any) -> SearchResponse:
        """Search by an image file; the other arguments are those of `SearchOptions`."""
        return self._send(self._calls.search_image(image, SearchOptions(**options)))

    def similar(self, id: Id, **options: Any) -> SearchResponse:
        """The items nearest to an item, without itself: source, modality, bits, k, ef_search."""
        return self._send(self._calls.similar(id, **options))

    def encode(self, texts: Sequence[str] = (), **options: Any) -> EncodeResponse:
        """Encode texts and images (base64); the other arguments are those of `EncodeRequest`."""
        return self._send(self._calls.encode(models.EncodeRequest(texts=list(texts), **options)))

    def put(self, items: Sequence[NewItem]) -> models.Changed:
        """Add items; those with a known id are replaced as a whole."""
        return self._send(self._calls.put(items))

    def get(self, id: Id) -> Item:
        """An item."""
        return self._send(self._calls.get(id))

    def delete(self, id: Id) -> None:
        """Remove an item."""
        self._send(self._calls.delete(id))

    def image(self, id: Id, width: int | None = None) -> bytes:
        """The image file of an item, or a copy of at most `width` pixels."""
        return self._send(self._calls.image(id, width))

    def items(self, modality: Modality = "image", offset: int = 0, limit: int = 20) -> ItemList:
        """Some items, in order of age."""
        return self._send(self._calls.items(modality, offset, limit))

    def info(self) -> Info:
        """What is served."""
        return self._send(self._calls.info())

    def explain(self) -> Explanation:
        """Accuracy, bit budget and warnings of the run."""
        return self._send(self._calls.explain())

    def neighbours(self, label: str, k: int = 12) -> Neighbours:
        """Labels that the relation teacher considers related."""
        return self._send(self._calls.neighbours(label, k))

    def is_ready(self) -> bool:
        """Whether the server answers queries."""
        try:
            return self._send(self._calls.is_ready())
        except ServerError:
            return False


class AsyncClient:
    """`Client` for an event loop: the same arguments and methods, which are to be awaited.

    Example:
        >>> import asyncio
        >>> async def search():
        ...     problem = {"title": "", "status": 422, "detail": "no such length.", "field": "bits"}
        ...     transport = httpx.MockTransport(lambda request: httpx.Response(422, json=problem))
        ...     async with AsyncClient("http://localhost:8080", transport=transport) as client:
        ...         await client.search(text="a red flower", bits=999)
        >>> asyncio.run(search())
        Traceback (most recent call last):
            ...
        multibit.client.ServerError: bits: no such length.
    """

    def __init__(self, url: str, token: str = "", *, timeout: float = TIMEOUT, **options: Any) -> None:
        self._http = httpx.AsyncClient(**_settings(url, token, timeout, options))
        self._calls = _Calls()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _send(self, call: _Call[T]) -> T:
        try:
            response = await self._http.request(call.method, call.path, **call.options)
        except httpx.TransportError as error:
            raise ServerError(0, f"no answer ({error or type(error).__name__}).") from None
        return _checked(call, response)

    async def search(self, text: str | None = None, **query: Any) -> SearchResponse:
        """As `Client.search`."""
        return await self._send(self._calls.search(SearchRequest(text=text, **query)))

    async def search_image(self, image: Path | bytes, **options: Any) -> SearchResponse:
        """As `Client.search_image`."""
        return await self._send(self._calls.search_image(image, SearchOptions(**options)))

    async def similar(self, id: Id, **options: Any) -> SearchResponse:
        """As `Client.similar`."""
        return await self._send(self._calls.similar(id, **options))

    async def encode(self, texts: Sequence[str] = (), **options: Any) -> EncodeResponse:
        """As `Client.encode`."""
        return await self._send(self._calls.encode(models.EncodeRequest(texts=list(texts), **options)))

    async def put(self, items: Sequence[NewItem]) -> models.Changed:
        """As `Client.put`."""
        return await self._send(self._calls.put(items))

    async def get(self, id: Id) -> Item:
        """As `Client.get`."""
        return await self._send(self._calls.get(id))

    async def delete(self, id: Id) -> None:
        """As `Client.delete`."""
        await self._send(self._calls.delete(id))

    async def image(self, id: Id, width: int | None = None) -> bytes:
        """As `Client.image`."""
        return await self._send(self._calls.image(id, width))

    async def items(self, modality: Modality = "image", offset: int = 0, limit: int = 20) -> ItemList:
        """As `Client.items`."""
        return await self._send(self._calls.items(modality, offset, limit))

    async def info(self) -> Info:
        """As `Client.info`."""
        return await self._send(self._calls.info())

    async def explain(self) -> Explanation:
        """As `Client.explain`."""
        return await self._send(self._calls.explain())

    async def neighbours(self, label: str, k: int = 12) -> Neighbours:
        """As `Client.neighbours`."""
        return await self._send(self._calls.neighbours(label, k))

    async def is_ready(self) -> bool:
        """As `Client.is_ready`."""
        try:
            return await self._send(self._calls.is_ready())
        except ServerError:
            return False
