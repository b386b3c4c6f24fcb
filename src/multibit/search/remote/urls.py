"""Addresses of databases, and how they are shown: without passwords."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from multibit.errors import ConfigError, UnavailableError

POSTGRES = ("postgresql", "postgres")
SCHEMES = ("clickhouse", "chdb", *POSTGRES)
TABLE = "multibit"
_COMMON = "table", "timeout", "partial"
OPTIONS = {
    "clickhouse": (*_COMMON, "cluster", "secure"), "chdb": (*_COMMON, "cluster"), "postgresql": (*_COMMON, "hnsw"),
}  # fmt: skip
"""Scheme -> options that we read. Servers get the others, and refuse unknown ones; chdb has no others."""
TIMEOUT = 60.0
SHORT = 4  # characters below which a password is likely to be a part of other words
_URL = re.compile(rf"({'|'.join(SCHEMES)})://.*", re.DOTALL)
_TABLE = re.compile("[A-Za-z_][A-Za-z0-9_]{0,31}")
_LENGTHS = re.compile("[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*")


def is_url(text: object) -> bool:
    """Whether a text is the address of a database, and not a path.

    Example:
        >>> is_url("postgresql://db/photos"), is_url("run/index")
        (True, False)
    """
    return isinstance(text, str) and _URL.match(text) is not None


@dataclass(frozen=True)
class Address:
    """One server.

    Attributes:
        scheme: one of `SCHEMES`. host, port: of the server; the default port when None. database: its name, or the
            folder of chdb. user, password: "" where the server decides. table: first part of the names of all tables.
        timeout: seconds that a query may take. partial: whether answers without servers that are down are wanted.
        hnsw: lengths at which an HNSW index is built. options: that are left, for the client library.
    """

    scheme: str
    host: str
    port: int | None
    database: str
    user: str = ""
    password: str = field(default="", repr=False)
    table: str = TABLE
    timeout: float = TIMEOUT
    partial: bool = False
    hnsw: tuple[int, ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    @property
    def shown(self) -> str:
        """The address for messages, without a password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{host}{port}/{self.database.lstrip('/')}"

    def without_password(self, text: str) -> str:
        """A message of a library, from which the password is removed; a short one only where it is a word.

        Example:
            >>> Address("postgresql", "db", None, "photos", password="e").without_password("no entry for me:e@db")
            'no entry for me:***@db'
        """
        for secret in {self.password, quote(self.password, safe="")} - {""}:
            word = re.escape(secret)
            text = re.sub(rf"(?<!\w){word}(?!\w)" if len(secret) < SHORT else word, "***", text)
        return text

    def refused(self, reason: str, hint: str) -> ConfigError:
        """The error of a server that does not let this user in."""
        return ConfigError(f"{self.shown}: {reason}.", option="url", hint=hint)

    def no_answer(self) -> UnavailableError:
        """The error of a query that takes longer than the timeout."""
        problem = f"{self.shown}: no answer within {self.timeout:g} seconds."
        return UnavailableError(problem, hint="Raise it in the URL, such as ?timeout=300.")

    def unreachable(self, reason: str, hint: str) -> UnavailableError:
        """The error of a server that is down."""
        return UnavailableError(f"{self.shown}: cannot be reached ({reason}).", hint=hint)

    def option(self, name: str) -> str:
        """An option for the client library; "" where it is not given."""
        return dict(self.options).get(name, "")


def read_url(url: str) -> list[Address]:
    """The servers of a URL: several hosts, `postgresql://a,b/db`, or several URLs, separated by commas.

    Raises:
        ConfigError: another scheme, or an invalid part.

    Example:
        >>> [one.shown for one in read_url("postgresql://me:secret@a:5432,b/db?table=photos")]
        ['postgresql://a:5432/db', 'postgresql://b/db']
    """
    if not is_url(url):
        raise _invalid(f"need the URL of a database ({'://, '.join(SCHEMES[:3])}://).")
    starts = [match.start() for match in re.finditer(rf"(?:(?<=,)|^)(?:{'|'.join(SCHEMES)})://", url)]
    urls = [url[start:stop].rstrip(",") for start, stop in zip(starts, [*starts[1:], None], strict=True)]
    return [address for each in urls for address in _addresses(each)]


def _addresses(url: str) -> list[Address]:
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise _invalid(f"invalid URL ({type(error).__name__}).") from None  # the text of the error may have a password
    options = dict(given)
    scheme = POSTGRES[0] if parts.scheme in POSTGRES else parts.scheme
    _require_known(options, scheme)
    table, timeout = options.pop("table", TABLE), options.pop("timeout", str(TIMEOUT))
    if not _TABLE.fullmatch(table):
        raise _invalid(f"table must be a name of letters, digits and _, at most 32, got {table!r}.")
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", timeout) or float(timeout) <= 0:
        raise _invalid(f"timeout must be a number of seconds, got {timeout!r}.")
    partial = options.pop("partial", "0")
    if partial not in ("0", "1"):
        raise _invalid(f"partial must be 0 or 1, got {partial!r}.")
    hnsw = options.pop("hnsw", None)
    if hnsw is not None and not _LENGTHS.fullmatch(hnsw):
        raise _invalid(f"hnsw must be lengths of codes, such as 64 or 64,128, got {hnsw!r}.")
    lengths = tuple(dict.fromkeys(map(int, hnsw.split(",")))) if hnsw else ()
    user, _, hosts = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    database = unquote(parts.path if scheme == "chdb" else parts.path.lstrip("/"))
    return [
        Address(
            scheme, host, port, database, unquote(name), unquote(password), table, float(timeout), partial == "1",
            lengths, tuple(options.items()),
        )
        for host, port in map(_host, hosts.split(","))
    ]  # fmt: skip


def _require_known(options: Mapping[str, str], scheme: str) -> None:
    """Refuse options of another database, and in chdb all others: they would have no effect."""
    checked = set(options) if scheme == "chdb" else {name for names in OPTIONS.values() for name in names}
    for name in sorted((checked & options.keys()) - set(OPTIONS[scheme])):
        raise _invalid(f"{scheme} has no option {name!r}; choose from {', '.join(OPTIONS[scheme])}.")
    if options.get("secure", "1") not in ("0", "1"):
        raise _invalid(f"secure must be 0 or 1, got {options['secure']!r}.")


def _host(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"\[([0-9A-Fa-f:.%]+)\](?::([0-9]{1,5}))?|([^:\[\]/]*)(?::([0-9]{1,5}))?", text)
    if match is None:
        raise _invalid("invalid host or port.")
    port = match[2] or match[4]
    if port and int(port) > 65_535:
        raise _invalid(f"port {port} is beyond 65535.")
    return match[1] or match[3] or "", int(port) if port else None


def _invalid(problem: str) -> ConfigError:
    return ConfigError(problem, option="url", hint="Such as postgresql://user:password@host:5432/database.")
