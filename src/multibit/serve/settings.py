"""Settings of the server: where it listens, who may use it, and its limits."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from multibit.errors import ConfigError

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the server; every one is an option of `multibit serve` and an environment variable.

    Attributes:
        host, port: where it listens. token: that every request must bear; "" for none.
        no_auth: listen outside this machine without a token. writable: allow changes of the items.
        allow_hosts: further names in the Host header; with "*" any. cors: origins of other pages that may call.
        max_body: bytes of a request. max_pixels: of an image. max_text: characters of a text. max_k: hits.
        max_batch: items of one request. queue: queries that may wait; more are refused with 503.
        timeout: seconds until a request is given up. refresh: seconds between looks for changes made elsewhere.
        drain: seconds that running requests have when the server stops.
        hedge: seconds after which a router sends a request to a shard again.

    Raises:
        ConfigError: a value out of range, an origin that is none, or an address outside this machine with neither a
            token nor `no_auth`.

    Example:
        >>> ServerSettings(host="0.0.0.0")
        Traceback (most recent call last):
            ...
        multibit.errors.ConfigError: host: 0.0.0.0 can be reached from other machines. Set a `token`, or pass `no_auth`.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str = ""
    no_auth: bool = False
    writable: bool = False
    allow_hosts: tuple[str, ...] = ()
    cors: tuple[str, ...] = ()
    max_body: int = 10 << 20
    max_pixels: int = 40_000_000
    max_text: int = 10_000
    max_k: int = 1_000
    max_batch: int = 256
    queue: int = 1_024
    timeout: float = 30.0
    refresh: float = 1.0
    drain: float = 10.0
    hedge: float = 0.2

    def __post_init__(self) -> None:
        for name in (
            "max_body",
            "max_pixels",
            "max_text",
            "max_k",
            "max_batch",
            "queue",
            "timeout",
            "refresh",
            "hedge",
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(f"must be positive, got {getattr(self, name)}.", option=name)
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"must be 0 to 65,535, got {self.port}.", option="port")
        if not self.drain >= 0:
            raise ConfigError(f"must not be negative, got {self.drain}.", option="drain")
        if not (self.token or self.no_auth or self.is_local):
            problem = f"{self.host} can be reached from other machines."
            raise ConfigError(problem, option="host", hint="Set a `token`, or pass `no_auth`.")
        for origin in self.cors:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                problem = f"{origin!r} is no origin."
                raise ConfigError(problem, option="cors", hint="Give * or scheme://host[:port], without a path.")
        if self.token and self.no_auth:
            raise ConfigError("cannot be combined with a token.", option="no_auth", hint="Give one of them.")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def limits(self) -> dict[str, float]:
        """The limits that a client should know."""
        return {name: getattr(self, name) for name in ("max_body", "max_pixels", "max_text", "max_k", "max_batch")}

    def knows_host(self, header: str) -> bool:
        """Whether the Host header of a request names this server: other names may come from DNS rebinding.

        Example:
            >>> ServerSettings().knows_host("localhost:8080"), ServerSettings().knows_host("evil.example")
            (True, False)
        """
        name = header.lower()
        if name.count(":") == 1 or "]:" in name:
            name = name.rpartition(":")[0]
        own = f"[{self.host}]" if ":" in self.host else self.host.lower()
        return "*" in self.allow_hosts or name in (*LOOPBACK_NAMES, own, *map(str.lower, self.allow_hosts))
