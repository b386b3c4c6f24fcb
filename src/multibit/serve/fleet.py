"""The servers of the shards as a router sees them: which ones answer, and requests that go to another when one is slow.

A shard has one or several servers that read the same folder. A request goes to one of them; when it fails, or has not
answered after `hedge` seconds, it also goes to the next, and the first answer is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx
from pydantic import ValidationError

from multibit.errors import MismatchError, UnavailableError, counted
from multibit.search.kinds import merge_kinds
from multibit.search.shards import Shard
from multibit.serve.models import Modality, ShardInfo
from multibit.serve.problems import RefusedError

LOG = logging.getLogger("multibit.serve")
FAILED = (401, 421)  # answers that say that this is not the server; from 500 on it has failed
NO_SHARD = "it is not a server of a shard"
WRONG_TOKEN = "it wants another token"
# AttributeError: the event loop has no socket to give where a server dies just as it is connected to, which httpx does
# not expect.
UNREACHED = (httpx.TransportError, AttributeError)
SAID = {404: NO_SHARD, 401: WRONG_TOKEN}
"""Status of a server that was asked what it is -> why it cannot be used."""

PROBED = 2.0  # seconds that a server has to say what it is; at the start as long as for a request
AGAIN = 0.5  # seconds between looks at the start


class MissingShardError(RefusedError):
    """A shard that does not answer.

    Attributes:
        shard: such as 2/4.
    """

    def __init__(self, shard: str, reason: str) -> None:
        super().__init__(503, f"shard {shard} does not answer ({reason}).", hint="Try again later.")
        self.shard = shard


@dataclass(eq=False)
class Replica:
    """A server of a shard.

    Attributes:
        url: of the server. http: its client. info: what it said last; None while it was never reached.
        problem: why it cannot be used now; "" where it can.
    """

    url: str
    http: httpx.AsyncClient
    info: ShardInfo | None = None
    problem: str = "not reached yet"

    async def probe(self, timeout: float) -> None:
        """Ask what it is."""
        try:
            response = await asyncio.wait_for(self.http.get("/v1/shard"), timeout)
            if response.status_code != 200:
                self.problem = SAID.get(response.status_code, f"status {response.status_code}")
                return
            self.info, self.problem = ShardInfo.model_validate_json(response.content), ""
        except (*UNREACHED, TimeoutError) as error:
            self.problem = _said(error)
        except ValidationError:
            self.problem = NO_SHARD


@dataclass(eq=False)
class Fleet:
    """The servers of all shards.

    Args:
        urls: of the servers. token: that they need. timeout: seconds of a request. hedge: seconds after which a slow
            one is asked again. refresh: seconds between looks at all servers. options: of the HTTP clients.
    """

    urls: Sequence[str]
    token: str
    timeout: float
    hedge: float
    refresh: float
    options: Mapping[str, Any] = field(default_factory=dict)
    replicas: list[Replica] = field(default_factory=list)
    like: ShardInfo | None = None  # set, model and count of shards that all must have
    hedged: int = 0  # requests that were sent again
    _next: int = 0

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Wait for the first server, then look at all of them again and again while the block runs.

        Raises:
            As `wait`.
        """
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        common = {"headers": headers, "timeout": self.timeout, "limits": limits, **self.options}
        self.replicas = [Replica(url, httpx.AsyncClient(base_url=url, **common)) for url in self.urls]
        async with contextlib.AsyncExitStack() as stack:
            for replica in self.replicas:
                stack.push_async_callback(replica.http.aclose)
            await self.wait()
            watching = asyncio.create_task(self._watch())
            stack.callback(watching.cancel)
            yield

    async def wait(self) -> None:
        """Look at all servers until one answers, at most as long as a request may take.

        Those that do not answer then are named in the log; their shards are missing until they do.

        Raises:
            UnavailableError: no server answers, or all want another token; or of a shard no server is named.
            MismatchError: as `require_one_kind`.
        """
        clock, said = asyncio.get_running_loop().time, False
        end = clock() + self.timeout
        while True:
            await self.look(timeout=max(end - clock(), AGAIN))
            self.require_one_kind()
            silent = [each for each in self.replicas if each.problem]
            problems = ", ".join(f"{each.url} ({each.problem})" for each in silent)
            if self.count:
                self._require_all_named(silent)
                if silent:
                    LOG.warning("not used until they answer: %s", problems)
                return
            if all(each.problem == WRONG_TOKEN for each in silent):
                raise UnavailableError(
                    f"refused by {problems}.", option="shards", hint="Give the `token` of these servers."
                )
            if clock() >= end:
                raise UnavailableError(
                    f"no answer in {self.timeout:g} s from {problems}.",
                    option="shards",
                    hint="Check the URLs and start these servers, or wait longer by `timeout`.",
                )
            if not said:
                LOG.warning("no answer yet from %s; waiting up to %g s", problems, self.timeout)
            said = True
            await asyncio.sleep(min(AGAIN, max(end - clock(), 0)))

    def _require_all_named(self, silent: Sequence[Replica]) -> None:
        """Refuse a list in which no URL can be that of a server of a shard.

        Raises:
            UnavailableError: names the shards.
        """
        if len(silent) < len(self.missing):
            raise UnavailableError(
                f"{counted(len(self.replicas), 'URL', 'URLs')} for {self.count} shards; none of shard "
                f"{', '.join(self.missing)}.",
                option="shards",
                hint="Name the servers of all shards.",
            )

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.refresh)
            await self.look()

    async def look(self, *replicas: Replica, timeout: float = PROBED) -> None:
        """Ask some servers, or all, what they are; those that do not fit the others are not used."""
        await asyncio.gather(*(each.probe(min(self.timeout, timeout)) for each in replicas or self.replicas))
        found = [each.info for each in self.replicas if each.info is not None and not each.problem]
        kinds = {_kind(info) for info in found}
        if found and (self.like is None or (len(kinds) == 1 and _kind(self.like) not in kinds)):
            self.like = found[0]  # the first, or what all of them are now
        for each in self.replicas:
            if each.info is not None and self.like is not None and not each.problem and not self._fits(each.info):
                each.problem = _difference(each.info, self.like)

    def _fits(self, info: ShardInfo) -> bool:
        return self.like is not None and _kind(info) == _kind(self.like)

    def require_one_kind(self) -> None:
        """Refuse servers of different models or sets, and those of whole indices or of something else.

        Raises:
            MismatchError: names one of them.
        """
        for replica in self.replicas:
            if replica.problem == NO_SHARD:
                raise MismatchError(f"{NO_SHARD}.", field=replica.url, hint="Start it as a `shard`.")
            if replica.info is not None and not self._fits(replica.info):
                raise MismatchError(replica.problem, field=replica.url, hint="Serve the shards of one set.")

    # What is there

    @property
    def count(self) -> int:
        """Number of shards; 0 while it is unknown."""
        return Shard.parse(self.like.shard).count if self.like is not None else 0

    @property
    def shards(self) -> range:
        """Numbers of all shards."""
        return range(1, self.count + 1)

    def of(self, number: int) -> list[Replica]:
        """The servers of a shard, those that can be used first."""
        own = [
            each for each in self.replicas
            if each.info is not None and self._fits(each.info) and Shard.parse(each.info.shard).number == number
        ]  # fmt: skip
        return sorted(own, key=lambda each: bool(each.problem))

    @property
    def missing(self) -> list[str]:
        """Shards without a server that can be used."""
        return [f"{n}/{self.count}" for n in self.shards if not any(not each.problem for each in self.of(n))]

    @property
    def infos(self) -> dict[int, ShardInfo]:
        """What the shards said last, by number."""
        return {n: info for n in self.shards for each in self.of(n)[:1] if (info := each.info) is not None}

    @property
    def id_kind(self) -> str:
        """Kind of the ids of all shards; "" while there are no items."""
        return next((info.ids for info in self.infos.values() if info.ids), "")

    def fields(self, modality: Modality) -> dict[str, str]:
        """The fields of the items of all shards: name -> kind.

        Raises:
            DataError: two shards have a field of two kinds.
        """
        kinds: dict[str, str] = {}
        for info in self.infos.values():
            kinds = merge_kinds(kinds, info.fields.get(modality, {}))
        return kinds

    # Asking

    async def ask(self, number: int, method: str, path: str, *, hedged: bool = True, **sent: Any) -> httpx.Response:
        """The answer of a shard.

        Args:
            number: of the shard. method, path, sent: as for `httpx.AsyncClient.request`.
            hedged: whether a slow server may be asked again: not for changes.

        Raises:
            MissingShardError: no server of it answers.
        """
        name, servers = f"{number}/{self.count}", self.of(number)
        if not servers:
            problems = [f"{each.url}: {each.problem}" for each in self.replicas if each.problem]
            LOG.warning("shard %s has no server; %s", name, "; ".join(problems))
            raise MissingShardError(name, "no server of it was found")
        self._next += 1
        able = [each for each in servers if not each.problem] or servers
        turn = self._next % len(able)
        order = [*able[turn:], *able[:turn]][: None if hedged else 1]
        if hedged and len(order) == 1:
            order *= 2  # asked again, on another connection
        try:
            return await asyncio.wait_for(self._first(order, method, path, sent), self.timeout)
        except TimeoutError:
            raise MissingShardError(name, f"no answer in {self.timeout:g} s") from None
        except _NoAnswerError as error:
            LOG.warning("shard %s: %s", name, error)
            raise MissingShardError(name, str(error)) from None

    async def _first(self, order: Sequence[Replica], method: str, path: str, sent: Mapping[str, Any]) -> httpx.Response:
        """The first answer; each further server is asked after a failure, or after `hedge` seconds."""
        waiting, tasks, failure = list(order), set[asyncio.Task[httpx.Response]](), _NoAnswerError("no server")
        try:
            while waiting or tasks:
                if waiting:
                    self.hedged += bool(tasks)
                    tasks.add(asyncio.create_task(_send(waiting.pop(0), method, path, sent)))
                done, tasks = await asyncio.wait(
                    tasks, timeout=self.hedge if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    try:
                        return task.result()
                    except _NoAnswerError as error:
                        failure = error
            raise failure
        finally:
            for task in tasks:
                task.cancel()


class _NoAnswerError(Exception):
    """A server that failed, or is not the one that was expected."""


async def _send(replica: Replica, method: str, path: str, sent: Mapping[str, Any]) -> httpx.Response:
    assert replica.info is not None
    headers = {**sent.get("headers", {}), "Multibit-Shard": replica.info.identity}
    try:
        response = await replica.http.request(method, path, **{**sent, "headers": headers})
    except UNREACHED as error:
        replica.problem = _said(error)
        raise _NoAnswerError(replica.problem) from None
    if response.status_code in FAILED or response.status_code >= 500:
        if response.status_code in FAILED:
            replica.problem = f"status {response.status_code}"
        raise _NoAnswerError(f"status {response.status_code}")
    replica.problem = ""
    return response


def _kind(info: ShardInfo) -> tuple[str, str, int]:
    return info.set, info.model, Shard.parse(info.shard).count


def _difference(info: ShardInfo, like: ShardInfo) -> str:
    for name in ("model", "set"):
        if getattr(info, name) != getattr(like, name):
            return f"serves shards of {name} {getattr(info, name)}, others of {name} {getattr(like, name)}."
    return f"serves shard {info.shard}, others of {Shard.parse(like.shard).count} shards."


def _said(error: Exception) -> str:
    """The kind of a failure: addresses are not for clients."""
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return "it is too slow"
    if isinstance(error, httpx.ConnectError):
        return "it cannot be reached"
    return "the connection broke"
