"""Answers of all shards as one: searches are sent to each shard and merged by (distance, age)."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx2 as httpx
import msgspec

from multibit.codes import MODALITIES
from multibit.errors import counted
from multibit.search.columns import other_kind
from multibit.search.payloads import kinds_of
from multibit.search.shards import Shard
from multibit.serve.explain import common_values
from multibit.serve.fleet import Fleet, MissingShardError
from multibit.serve.models import Modality, NewItem, SearchOptions, SearchRequest
from multibit.serve.problems import RefusedError, not_found
from multibit.serve.settings import ServerSettings

Id = str | int
Answer = dict[str, Any]
OTHER: dict[Modality, Modality] = {"image": "text", "text": "image"}
# Options of a search, as they are sent to each shard
OPTIONS = ("bits", "k", "where", "relaxed", "max_distance", "fields", "ef_search")


class PassedError(Exception):
    """A refusal of a shard, which goes to the client as it is.

    Attributes:
        response: of the shard.
    """

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(response.status_code)
        self.response = response


class Gathering:
    """What the endpoints of a router call; all methods run in one event loop.

    Args:
        fleet: servers of the shards. settings: of the router.
    """

    def __init__(self, fleet: Fleet, settings: ServerSettings) -> None:
        self.fleet, self.settings = fleet, settings
        self.is_ready = True
        self._writing = asyncio.Lock()
        self._age = 0

    async def ask(self, number: int, method: str, path: str, **sent: Any) -> httpx.Response:
        """The answer of a shard.

        Raises:
            MissingShardError: it does not answer. PassedError: it refuses the request.
        """
        response = await self.fleet.ask(number, method, path, **sent)
        if response.status_code >= 400:
            raise PassedError(response)
        return response

    async def ask_any(self, method: str, path: str, **sent: Any) -> httpx.Response:
        """The answer of one shard to what every shard knows."""
        missing: MissingShardError | None = None
        for number in self._reached():
            try:
                return await self.ask(number, method, path, **sent)
            except MissingShardError as error:
                missing = error
        assert missing is not None
        raise missing

    async def ask_all(self, method: str, path: str, **sent: Any) -> list[Answer]:
        """The answers of all shards, in order."""
        asked = (self.ask(number, method, path, **sent) for number in self._reached())
        return [_decoded(response) for response in await _gathered(*asked)]

    def owner(self, name: Id) -> int:
        """Number of the shard of an id."""
        return Shard.of(name, len(self._reached())).number

    def _reached(self) -> range:
        if not self.fleet.count:
            raise RefusedError(503, "no server of a shard was reached yet.")
        return self.fleet.shards

    # Searches

    async def search(self, request: SearchRequest) -> Answer:
        """The answer of a search by text, id, vector or code."""
        query: dict[str, Any]
        modality: Modality
        if request.id is not None:
            source = request.source or request.modality or self.modalities[0]
            query, modality = {"code": await self.code_of(request.id, source)}, request.modality or source
        elif request.text is not None:
            encoded = await self.encode("text", texts=[request.text], queries=True)
            query, modality = {"vector": encoded["vector"]}, request.modality or "image"
            return {**await self.search_by(query, request, modality), "note": encoded["note"]}
        else:
            query = {"code": request.code} if request.vector is None else {"vector": request.vector}
            modality = request.modality or OTHER[request.source or "text"]
        return await self.search_by(query, request, modality)

    async def search_by(self, query: Mapping[str, Any], options: SearchOptions, modality: Modality) -> Answer:
        """The answer of a search by a vector or a code."""
        sent = self._sent(query, options, modality)
        asked = [self._searched(number, body) for number, body in sent.items()]
        return merge(await _gathered(*asked), options.k, partial=options.partial)

    async def search_by_image(self, content: bytes, options: SearchOptions) -> Answer:
        """The answer of a search by an image file."""
        encoded = await self.encode("image", images=[base64.b64encode(content).decode()])
        return await self.search_by({"vector": encoded["vector"]}, options, options.modality or "text")

    async def similar(self, name: str, source: Modality, options: SearchOptions) -> Answer:
        """The items nearest to an item, without itself: its own shard leaves it out."""
        modality, owner = options.modality or source, self.owner(name)
        query = {"code": await self.code_of(name, source)}
        others = [self._searched(number, body) for number, body in self._sent(query, options, modality).items()
                  if number != owner]  # fmt: skip
        given = {"source": source, "modality": modality, "bits": options.bits, "k": options.k,
                 "ef_search": options.ef_search}  # fmt: skip
        own = self._asked(owner, "GET", f"{item_path(name)}/similar", params=_given(given))
        return merge(await _gathered(own, *others), options.k)

    def _sent(self, query: Mapping[str, Any], options: SearchOptions, modality: Modality) -> dict[int, Answer]:
        """The request to each shard; a shard is told of fields that only items of others have."""
        body = {**query, "modality": modality, **_given({name: getattr(options, name) for name in OPTIONS})}
        numbers, told = self._reached(), options.where is not None or options.fields is not None
        known = self.fleet.fields(modality) if told else {}
        out = {}
        for number in numbers:
            info = self.fleet.infos.get(number)
            own = {} if info is None else info.fields.get(modality, {})
            more = {"known_fields": known} if told and own != known else {}
            out[number] = {**body, **more}
        return out

    async def _searched(self, number: int, body: Answer) -> Answer | MissingShardError:
        sent = {"content": msgspec.json.encode(body), "headers": {"Content-Type": "application/json"}}
        return await self._asked(number, "POST", "/v1/search", **sent)

    async def _asked(self, number: int, method: str, path: str, **sent: Any) -> Answer | MissingShardError:
        try:
            return _decoded(await self.ask(number, method, path, **sent))
        except MissingShardError as error:
            return error

    async def encode(self, field: str, **inputs: Any) -> Answer:
        """The relaxed code of a text or an image, a field of the request, by any shard, with its note."""
        try:
            answer = _decoded(await self.ask_any("POST", "/v1/encode", json={**inputs, "vectors": True}))
        except PassedError as error:
            raise _refused(error, lambda _: field) from None
        (found,) = answer["texts"] + answer["images"]
        return dict(found)

    async def code_of(self, name: Id, source: Modality) -> str:
        """The stored code of an item, hexadecimal."""
        kind = self.fleet.id_kind
        is_possible = isinstance(name, str) or kind != "string"  # in a path an integer is a text
        codes = await self._codes_of(name) if is_possible else {}
        if source not in codes:
            raise not_found(f"{source} with id {name!r}", other_kind(name, kind))
        return codes[source]

    async def _codes_of(self, name: Id) -> dict[str, str]:
        """The codes of an item by modality; none of an unknown one."""
        try:
            found: dict[str, str] = _decoded(await self.ask(self.owner(name), "GET", item_path(name)))["codes"]
        except PassedError as error:
            if error.response.status_code != 404:
                raise
            return {}
        return found

    # Items

    async def put(self, items: Sequence[NewItem]) -> Answer:
        """Add or replace items, each in its shard; one change at a time, so that their ages are those of one index."""
        self._require_writable()
        if len(items) > self.settings.max_batch:
            problem = f"at most {self.settings.max_batch} items at a time, got {len(items)}."
            raise RefusedError(422, problem, field="items")
        async with self._writing:
            fields, ids = [item.fields for item in items], [item.id for item in items]
            kinds = {each: kinds_of(fields, ids, self.fleet.fields(each)) for each in self.modalities}
            first = self._age = max(self._age + 1, time.time_ns() // 1000)
            self._age += len(items)
            parts: dict[int, list[Answer]] = defaultdict(list)
            places: dict[int, list[int]] = defaultdict(list)
            for place, item in enumerate(items):
                sent = item.model_copy(update={"age": first + place}).model_dump(mode="json", exclude_none=True)
                parts[self.owner(item.id)].append(sent)
                places[self.owner(item.id)].append(place)
            written = 0
            for number, part in sorted(parts.items()):
                done = f"Written: {written:,} of {counted(len(items), 'item', 'items')}."
                try:
                    await self.ask(
                        number, "PUT", "/v1/items", hedged=False, json={"items": part, "known_fields": kinds}
                    )
                except MissingShardError as error:
                    raise RefusedError(503, f"{error.problem} {done}", hint="Send all of them again.") from None
                except PassedError as error:
                    placed = partial(_placed, places=places[number])
                    raise _refused(error, placed, f"{done} Send all of them again." if written else "") from None
                written += len(part)
            await self.fleet.look(*(each for number in parts for each in self.fleet.of(number)))
        return {"written": written, "items": self.sizes}

    async def delete(self, name: str) -> None:
        """Remove an item."""
        self._require_writable()
        async with self._writing:
            await self.ask(self.owner(name), "DELETE", item_path(name), hedged=False)

    def _require_writable(self) -> None:
        if not self.settings.writable:
            raise RefusedError(403, "this server only reads.", hint="Start it as `writable`.")

    async def listed(self, modality: Modality, offset: int, limit: int) -> Answer:
        """Some items in order of age, among the first ones."""
        count, most = min(limit, self.settings.max_k), self._most
        if offset + count > most:
            problem = f"a router lists the first {most:,} items, not those from {offset:,} to {offset + count:,}."
            raise RefusedError(422, problem, field="offset")
        given = {"modality": modality, "offset": 0, "limit": offset + count}
        answers = await self.ask_all("GET", "/v1/items", params=given)
        items = sorted((item for answer in answers for item in answer["items"]), key=lambda item: item["age"])
        shown = [_without_age(item) for item in items[offset : offset + count]]
        return {"total": sum(answer["total"] for answer in answers), "items": shown}

    # Facts

    @property
    def modalities(self) -> list[Modality]:
        """Modalities that can be searched."""
        known = {each for info in self.fleet.infos.values() for each in info.fields}
        return [each for each in MODALITIES if each in known]

    @property
    def sizes(self) -> dict[str, int]:
        """Name of an index -> number of items of all shards."""
        total: dict[str, int] = defaultdict(int)
        for info in self.fleet.infos.values():
            for name, size in info.items.items():
                total[name] += size
        return dict(total)

    @property
    def _most(self) -> int:
        """Hits that every shard returns."""
        return int(min((info.limits["max_k"] for info in self.fleet.infos.values()), default=0))

    async def info(self, every: bool) -> Answer:
        """What is served, by all shards."""
        answers = await self.ask_all("GET", "/v1/info", params={"every": True})
        sizes: dict[str, int] = defaultdict(int)
        for answer in answers:
            for name, size in answer["indices"].items():
                sizes[name] += size
        fields = {
            modality: merge_fields(
                [answer["fields"].get(modality, {}) for answer in answers], max(sizes.values(), default=0), every
            )
            for modality in answers[0]["fields"]
        }
        limits = {name: min(answer["limits"][name] for answer in answers) for name in answers[0]["limits"]}
        return {
            **answers[0], "indices": dict(sizes), "fields": fields, "writable": self.settings.writable,
            "limits": {name: min(limits[name], own) for name, own in self.settings.limits.items()},
        }  # fmt: skip


def merge(found: Sequence[Answer | MissingShardError], k: int, *, partial: bool = False) -> Answer:
    """The k best hits of several shards by (distance, age), or by (score, age) where the search was relaxed.

    Args:
        found: answers, and shards without one. k: number of hits. partial: answer without some shards.

    Raises:
        MissingShardError: a shard is missing, and the answer may not be partial, or all are.

    Example:
        >>> answers = [
        ...     {"items": 2, "bytes_read": 8, "seconds": 0.1, "hits": [{"id": "b", "distance": 1, "age": 7}]},
        ...     {"items": 1, "bytes_read": 4, "seconds": 0.2, "hits": [{"id": "a", "distance": 1, "age": 3}]},
        ... ]
        >>> [hit["id"] for hit in merge(answers, 2)["hits"]], merge(answers, 2)["items"]
        (['a', 'b'], 3)
    """
    missing = [each for each in found if isinstance(each, MissingShardError)]
    answers = [each for each in found if not isinstance(each, MissingShardError)]
    if missing and not (partial and answers):
        raise missing[0]
    hits = sorted((hit for answer in answers for hit in answer["hits"]), key=_place)[:k]
    return {
        **answers[0],
        "items": sum(answer["items"] for answer in answers),
        "bytes_read": sum(answer["bytes_read"] for answer in answers),
        "seconds": max(answer["seconds"] for answer in answers),
        "hits": [{**_without_age(hit), "rank": rank} for rank, hit in enumerate(hits, start=1)],
        "missing": sorted(each.shard for each in missing),
    }


def _place(hit: Answer) -> tuple[float, int]:
    """Where a hit stands: the nearest first, then the oldest."""
    near = hit["distance"] if hit.get("score") is None else -hit["score"]
    return near, hit["age"]


def merge_fields(parts: Sequence[Mapping[str, Answer]], items: int, every: bool) -> dict[str, Answer]:
    """Fields of several shards with the sums of their counts.

    Args:
        parts: field -> kind and values with counts, of each shard. items: number of all items. every: all values.

    A field that has two kinds, because shards were changed without a router, has no values here.
    """
    out: dict[str, Answer] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        own = [part[name] for part in parts if name in part]
        if any(each["kind"] != own[0]["kind"] for each in own):
            out[name] = {"kind": "json", "values": None}
            continue
        counts: dict[Any, int] = defaultdict(int)
        for each in own:
            for value, count in each["values"] or ():
                counts[value] += count
        found = None if any(each["values"] is None for each in own) else list(counts.items())
        out[name] = {"kind": own[0]["kind"], "values": common_values(found, items, own[0]["kind"], every)}
    return out


def item_path(name: Id) -> str:
    """Address of an item."""
    return f"/v1/items/{quote(str(name), safe='')}"


def _without_age(item: Answer) -> Answer:
    return {name: value for name, value in item.items() if name != "age"}


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _refused(error: PassedError, renamed: Callable[[str], str], done: str = "") -> Exception:
    """A refusal of a shard with the field as the client sent it, and what other shards did; else as it is."""
    if error.response.status_code != 422 and not done:
        return error
    problem = _decoded(error.response)
    detail = f"{problem['detail']} {done}".rstrip()
    return RefusedError(error.response.status_code, detail, field=renamed(str(problem["field"])))


def _placed(field: str, places: Sequence[int]) -> str:
    """The field of an item with its place in the request of the client.

    Example:
        >>> _placed("items.1.text", [4, 7]), _placed("items", [4, 7])
        ('items.7.text', 'items')
    """
    name, *rest = field.split(".")
    if name != "items" or not rest or not rest[0].isdecimal() or int(rest[0]) >= len(places):
        return field
    return ".".join([name, str(places[int(rest[0])]), *rest[1:]])


def _decoded(response: httpx.Response) -> Answer:
    found: Answer = msgspec.json.decode(response.content)
    return found


async def _gathered(*work: Any) -> list[Any]:
    """All results; after an error the others are stopped."""
    async with _Cancelling(work) as tasks:
        return list(await asyncio.gather(*tasks))


class _Cancelling:
    """Tasks that end with the block."""

    def __init__(self, work: Sequence[Any]) -> None:
        self._tasks = [asyncio.ensure_future(each) for each in work]

    async def __aenter__(self) -> list[asyncio.Future[Any]]:
        return self._tasks

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
