"""What the endpoints call: queries are encoded and searched in micro-batches, and the indices are kept up to date."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from multibit.codes import MODALITIES, Codes, Modality
from multibit.errors import DataError, MultibitError
from multibit.serve import explain
from multibit.serve.batching import Batcher
from multibit.serve.collection import Collection, Entry, Found, Id, Query, Values
from multibit.serve.encoding import QueryEncoder, Raw
from multibit.serve.metrics import Metrics
from multibit.serve.models import NewItem, SearchOptions, SearchRequest
from multibit.serve.problems import RefusedError
from multibit.serve.settings import ServerSettings
from multibit.texts import is_blank

LOG = logging.getLogger("multibit.serve")
REMEMBERED = 4_096  # encoded texts that are kept
THREADS = 2  # that decode images and read facts
OTHER: dict[Modality, Modality] = {"image": "text", "text": "image"}

T = TypeVar("T")


class Service:
    """A run that answers queries; all methods that wait run in one event loop.

    Args:
        collection: what is searched. encoder: of raw queries. settings: limits. metrics: to fill.
    """

    def __init__(
        self, collection: Collection, encoder: QueryEncoder, settings: ServerSettings, metrics: Metrics
    ) -> None:
        self.collection, self.encoder, self.settings, self.metrics = collection, encoder, settings, metrics
        self.is_ready = False
        self._texts: OrderedDict[str, Values] = OrderedDict()
        self._facts: dict[Any, tuple[int, Any]] = {}
        self._pool = ThreadPoolExecutor(THREADS, "multibit-work")
        self._writer = ThreadPoolExecutor(1, "multibit-write")
        self._encoding: Batcher[Raw, Values] = self._batcher("encode", encoder.encode)
        self._searching: Batcher[Query, Found] = self._batcher("search", collection.search)
        self._watching: asyncio.Task[None] | None = None

    def _batcher(self, stage: str, work: Callable[[list[Any]], Sequence[Any]]) -> Batcher[Any, Any]:
        batcher: Batcher[Any, Any] = Batcher(
            f"multibit-{stage}", work, capacity=self.settings.queue, observe=self.metrics.batch.labels(stage).observe
        )
        self.metrics.queue.labels(stage).set_function(lambda: len(batcher))
        return batcher

    # Life

    async def start(self) -> None:
        """Answer first queries, which load what is loaded late: encoders, index pages, kernels. Then be ready."""
        values = np.ones(self.collection.run.model.layout.stored, np.float32)
        if "text" in self.encoder.encoders:
            values = await self.encode_text("warm up")
        for modality in self.collection.modalities:
            query = Query(values, modality, self.collection.run.model.bits, 1)
            relaxed = [] if self.collection.is_remote else [[query._replace(relaxed=True)]]
            for each in ([query], [query] * 4, *relaxed):
                await self._searching.submit(*each)
        self._watching = asyncio.create_task(self._watch())
        self.is_ready = True

    async def stop(self) -> None:
        """Finish what waits."""
        self.is_ready = False
        if self._watching is not None:
            self._watching.cancel()
        for worker in (self._encoding.close, self._searching.close, self._writer.shutdown, self._pool.shutdown):
            await asyncio.to_thread(worker)

    async def _watch(self) -> None:
        """Take over changes of the indices that others make."""
        while True:
            await asyncio.sleep(self.settings.refresh)
            try:
                await self._in_thread(self.collection.refresh, self._writer)
            except (MultibitError, OSError) as error:  # the version in memory goes on
                LOG.warning("the index cannot be read again: %s", error)

    async def _in_thread(self, work: Callable[..., T], pool: ThreadPoolExecutor | None = None, *given: Any) -> T:
        loop = asyncio.get_running_loop()
        return await asyncio.wait_for(loop.run_in_executor(pool or self._pool, work, *given), self.settings.timeout)

    async def run(self, work: Callable[..., T], *given: Any) -> T:
        """The result of a function that takes a moment, computed in another thread."""
        return await self._in_thread(work, None, *given)

    # Queries

    async def encode_text(self, text: str) -> Values:
        """The relaxed code of a text; the last ones are remembered."""
        return (await self.encode_texts({"text": text}))[0]

    async def encode_texts(self, given: Mapping[str, str]) -> list[Values]:
        """The relaxed codes of texts, by the fields of the request that have them."""
        if not given:
            return []
        with _about(next(iter(given))):
            self.encoder.require("text")
        self._require_few("texts", len(given))
        for field, text in given.items():
            if is_blank(text):
                raise RefusedError(422, "is empty.", field=field)
            if len(text) > self.settings.max_text:
                problem = f"{len(text):,} characters; at most {self.settings.max_text:,} are read."
                raise RefusedError(422, problem, field=field)
        texts = list(given.values())
        found = {text: self._texts[text] for text in texts if text in self._texts}
        new = [text for text in dict.fromkeys(texts) if text not in found]
        found.update(zip(new, await self._encoded([("text", text) for text in new]), strict=True))
        for text, values in found.items():
            self._texts[text] = values
            self._texts.move_to_end(text)
        while len(self._texts) > REMEMBERED:
            self._texts.popitem(last=False)
        return [found[text] for text in texts]

    async def note(self, field: str, text: str) -> str:
        """What the encoder cannot read in a query, a field of the request that was encoded."""
        with _about(field):
            return await self._in_thread(self.encoder.note, None, text)

    async def encode_images(self, given: Mapping[str, bytes]) -> list[Values]:
        """The relaxed codes of image files, by the fields of the request that have them."""
        self._require_few("images", len(given))
        prepared = []
        for field, content in given.items():
            with _about(field):
                prepared.append(await self._in_thread(self.encoder.prepare, None, content, self.settings.max_pixels))
        return await self._encoded(prepared)

    async def _encoded(self, queries: Sequence[Raw]) -> list[Values]:
        return await asyncio.wait_for(self._encoding.submit(*queries), self.settings.timeout) if queries else []

    async def search(self, request: SearchRequest) -> tuple[Query, Found]:
        """The answer of a search by text, id, vector or code."""
        modality: Modality
        note = ""
        if request.id is not None:
            source = request.source or (request.modality or self.collection.modalities[0])
            values = await self._in_thread(self.collection.values_of, None, request.id, source)
            modality = request.modality or source
        elif request.text is not None:
            modality = request.modality or "image"
            self.plan(request, modality)  # refuse it before the encoding
            values = await self.encode_text(request.text)
            note = await self.note("text", request.text)
        else:
            modality = request.modality or OTHER[request.source or "text"]
            if request.vector is not None:
                values = self._given(request.vector, "vector")
            else:
                values, request = self._coded(str(request.code), request)
        query, found = await self.search_values(values, request, modality)
        return query._replace(note=note), found

    async def search_values(self, values: Values, options: SearchOptions, modality: Modality) -> tuple[Query, Found]:
        """The answer of a search by a relaxed code."""
        query = self.plan(options, modality)._replace(values=values)
        return query, await self._found(query)

    async def _found(self, query: Query) -> Found:
        (found,) = await asyncio.wait_for(self._searching.submit(query), self.settings.timeout)
        self.metrics.searched(query.bits, found.seconds)
        return found

    def plan(self, options: SearchOptions, modality: Modality) -> Query:
        """A checked query without its values.

        Raises:
            RefusedError: no such index. DataError: a length, field or filter that does not fit.
        """
        longest = self.collection.run.model.bits
        bits = longest if options.bits is None else options.bits
        self.collection.index(modality, bits)
        if options.known_fields:
            self.collection.learn(modality, options.known_fields)
        if options.k > self.settings.max_k:
            raise RefusedError(422, f"at most {self.settings.max_k:,} hits, got {options.k:,}.", field="k")
        if options.ef_search is not None and not self.collection.is_remote:
            raise RefusedError(422, "a local index is searched exactly only.", field="ef_search", hint="Leave it out.")
        known = self.collection.fields(modality)
        for name in options.fields or ():
            if name not in known:
                raise RefusedError(422, f"no item has a field {name!r}.", field="fields")
        key = self.collection.parse_where(options.where, modality)
        fields = None if options.fields is None else tuple(options.fields)
        return Query(
            np.empty(0, np.float32), modality, bits, options.k, options.where, key, options.relaxed,
            options.max_distance, fields, options.ef_search,
        )  # fmt: skip

    async def similar(self, name: Id, source: Modality, options: SearchOptions) -> tuple[Query, Found]:
        """The items nearest to an item, without itself."""
        planned = self.plan(options, options.modality or source)
        values = await self.run(self.collection.values_of, name, source)
        query = planned._replace(values=values, k=options.k + 1)
        found = await self._found(query)
        others = [hit for hit in found.hits if str(hit.id) != str(name)][: options.k]
        return query, replace(found, hits=others)

    def _given(self, vector: Sequence[float], field: str) -> Values:
        stored = self.collection.run.model.layout.stored
        if len(vector) != stored:
            raise RefusedError(422, f"need {stored} numbers, got {len(vector)}.", field=field)
        values = np.clip(np.array(vector, np.float64), -1e30, 1e30).astype(np.float32)
        with _about(field):
            Codes.binarize(values[None])  # refuses bits, which have no sign
        return values

    def _coded(self, code: str, request: SearchRequest) -> tuple[Values, SearchRequest]:
        """The values of a hexadecimal code. A prefix of a nested code can be searched at its own length and below."""
        layout = self.collection.run.model.layout
        packed = np.frombuffer(bytes.fromhex(code), np.uint8)
        if len(packed) > -(-layout.stored // 8):
            raise RefusedError(422, f"the codes have {layout.stored} bits, got {8 * len(packed)}.", field="code")
        bits = np.unpackbits(packed)[: layout.stored]
        values = np.full(layout.stored, -1, np.float32)
        values[: len(bits)] = bits.astype(np.float32) * 2 - 1
        if len(bits) < layout.stored:
            if not layout.nested or layout.views > 1 or (request.bits or 0) > len(bits):
                wanted = request.bits if layout.nested and layout.views == 1 else layout.stored
                raise RefusedError(422, f"need the code of {wanted} bits, got {len(bits)}.", field="code")
            request = request.model_copy(update={"bits": request.bits or len(bits)})
        return values, request

    def _require_few(self, what: str, count: int) -> None:
        if count > self.settings.max_batch:
            raise RefusedError(422, f"at most {self.settings.max_batch} {what} at a time, got {count}.", field=what)

    # Items

    async def put(self, items: Sequence[NewItem], known: Mapping[Modality, Mapping[str, str]] | None = None) -> None:
        """Add or replace items; `known` has the kinds of fields that items of other shards have, by modality."""
        self._require_few("items", len(items))
        values: list[dict[Modality, Values]] = [{} for _ in items]
        texts = {place: str(item.text) for place, item in enumerate(items) if self._reads_text(item)}
        images = {
            place: decode_base64(item.image, f"items.{place}.image")
            for place, item in enumerate(items)
            if item.image and item.image_vector is None
        }
        read = await self.encode_texts({f"items.{place}.text": text for place, text in texts.items()})
        seen = await self.encode_images({f"items.{place}.image": content for place, content in images.items()})
        for place, each in zip(texts, read, strict=True):
            values[place]["text"] = each
        for place, each in zip(images, seen, strict=True):
            values[place]["image"] = each
        entries = [
            self._entry(item, own, f"items.{place}")
            for place, (item, own) in enumerate(zip(items, values, strict=True))
        ]
        await self._in_thread(self.collection.put, self._writer, entries, known or {})

    def _reads_text(self, item: NewItem) -> bool:
        """Whether the text of an item is encoded: not if it has a vector, or if no encoder can and it has an image."""
        if item.text is None or item.text_vector is not None:
            return False
        return "text" in self.encoder.encoders or not (item.image or item.image_vector)

    def _entry(self, item: NewItem, values: dict[Modality, Values], field: str) -> Entry:
        for modality in MODALITIES:
            vector = item.text_vector if modality == "text" else item.image_vector
            if vector is not None:
                values[modality] = self._given(vector, f"{field}.{modality}_vector")
        fields = dict(item.fields) if item.text is None else {**item.fields, "text": item.text}
        content = None if item.image is None else decode_base64(item.image, f"{field}.image")
        return Entry(item.id, values, content, fields, item.age)

    async def delete(self, name: Id) -> None:
        """Remove an item."""
        await self._in_thread(self.collection.delete, self._writer, name)

    # Facts

    async def fact(self, name: str, work: Callable[[], T]) -> T:
        """The result of a slow function of the indices, kept until they change."""
        version = self.collection.version
        known = self._facts.get(name)
        if known is None or known[0] != version:
            known = version, await self._in_thread(work)
            self._facts[name] = known
        return known[1]  # type: ignore[no-any-return]

    async def field_counts(self, every: bool = False) -> dict[str, dict[str, Any]]:
        """Fields by modality, with counts of the most common values, or of every value."""
        collection = self.collection
        return await self.fact(
            f"fields {every}",
            lambda: {each: explain.field_counts(collection.index(each), every) for each in collection.modalities},
        )


@contextlib.contextmanager
def _about(field: str) -> Iterator[None]:
    """Errors in data are about this field of the request."""
    try:
        yield
    except DataError as error:
        raise RefusedError(422, error.problem, field=field, hint=error.hint) from None


def decode_base64(text: str, field: str) -> bytes:
    """The bytes of a base64 text, a field of the request.

    Raises:
        RefusedError: not base64.
    """
    with contextlib.suppress(binascii.Error, ValueError):
        return base64.b64decode(text, validate=True)
    raise RefusedError(422, "not valid base64.", field=field)


def hexadecimal(values: Values) -> str:
    """The binary code of a relaxed code, the first bit first.

    Example:
        >>> hexadecimal(np.array([0.3, -0.2, 0.1, -1, 0.5, 0.5, -0.1, -0.1, 0.9], np.float32))
        'ac80'
    """
    return np.packbits(values >= 0).tobytes().hex()
