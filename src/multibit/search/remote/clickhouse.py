"""ClickHouse 23.2 and newer, or chdb: codes are cut into words, a prefix reads only its own."""

from __future__ import annotations

import base64
import contextlib
import logging
import re
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.codes import Codes
from multibit.errors import ConfigError, DataError, MissingExtraError, MultibitError, UnavailableError
from multibit.search.columns import Id, IdColumn, whole_array
from multibit.search.kinds import TYPES, Kinds, encode_lists
from multibit.search.metadata import Metadata
from multibit.search.remote.base import Asked, Facts, Found, Items, RemoteCapabilities, column_names
from multibit.search.remote.sql import SIGNS, SqlConditions
from multibit.search.remote.tables import Tables
from multibit.search.remote.urls import OPTIONS, Address
from multibit.search.remote.words import Word, query_words, to_codes, to_words, words_of
from multibit.search.segments import Lost

try:
    import clickhouse_connect
    from clickhouse_connect.driver.exceptions import ClickHouseError
except ImportError as error:
    raise MissingExtraError("clickhouse-connect", extra="clickhouse", need="An index in ClickHouse") from error

logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())  # else it prints a line before our errors

OLDEST = 23, 2  # the first with `deleted` in ReplacingMergeTree
CONNECT = 10  # seconds that a connection may take
TOGETHER = 16  # queries of a statement
ASKED_IDS = 10_000  # ids of a statement
ATTEMPTS = 5  # while another process changes the hits of a search before their metadata are read
MOST_HITS = 2**62
TYPES_OF_VALUES = {
    "string": "String", "integer": "Int64", "float": "Float64", "boolean": "Bool", "date": "Int32",
    "timestamp": "Int64", "timestamp UTC": "Int64", "json": "String",
}  # fmt: skip
"""Kind -> type of a value. Dates are days and timestamps microseconds since 1970: the types of ClickHouse for them
begin in 1900."""
REFUSED = {
    193: "The user or the password is wrong.",
    194: "The user or the password is wrong.",
    497: "Grant the user the rights on this database.",
    516: "The user or the password is wrong.",
    81: "Create the database first.",
    115: f"An option is a setting of ClickHouse or one of {', '.join(OPTIONS['clickhouse'])}.",
}
"""Code of an error -> how to fix it."""
TIMES = (159, 160, 209)
UNREACHABLE = (210, 279, 519)
MISSING = (60, 47)


_Hits = tuple[Rows, NDArray[np.uint16], Rows, IdColumn, Metadata]


class ClickHouseConditions(SqlConditions):
    """Filters for ClickHouse. A list cannot be NULL, so another column says whether there is one."""

    def negated(self, inner: str) -> str:
        """See `SqlConditions`."""
        return f"(NOT ifNull({inner}, FALSE))"

    def null(self, field: str, column: str) -> str:
        """See `SqlConditions`."""
        return f"({column}_given = 0)" if self.kinds[field] == "list" else f"isNull({column})"

    def one_of(self, column: str, kind: str, values: Sequence[Any]) -> str:
        """See `SqlConditions`."""
        name = self.bound([_plain(each, kind) for each in values])
        return f"({column} IN {{{name}:Array({TYPES_OF_VALUES[kind]})}})"

    def compares(self, column: str, kind: str, sign: str, value: Any) -> str:
        """See `SqlConditions`."""
        return f"({column} {SIGNS[sign]} {{{self.bound(_plain(value, kind))}:{TYPES_OF_VALUES[kind]}}})"

    def holds(self, column: str, value: str) -> str:
        """See `SqlConditions`."""
        return f"has({column}, {{{self.bound(value)}:String}})"

    def holds_compared(self, column: str, sign: str, value: str) -> str:
        """See `SqlConditions`."""
        return f"arrayExists(one -> one {SIGNS[sign]} {{{self.bound(value)}:String}}, {column})"

    def equals(self, column: str, texts: Sequence[str]) -> str:
        """See `SqlConditions`."""
        return f"({column} = {{{self.bound(list(texts))}:Array(String)}})"


def _plain(value: Any, kind: str) -> Any:
    """A value as the column stores it."""
    return pyarrow.scalar(value, TYPES[kind]).value if kind in ("date", "timestamp", "timestamp UTC") else value


class ClickHouseStore:
    """An index in the tables of a ClickHouse server or cluster, or of chdb in this process.

    Args:
        address: of a server. name: of the index, such as "image". partial: answer without shards that are down.
    """

    capabilities: ClassVar[RemoteCapabilities] = RemoteCapabilities()

    def __init__(self, address: Address, name: str, partial: bool = False) -> None:
        self.address, self.name = address, name
        self.tables = Tables(f"{address.table}_indices", f"{address.table}_{name.replace('-', '_')}",
                             address.option("cluster"))  # fmt: skip
        self.partial = partial and bool(self.tables.cluster)
        self._client: Any = None
        self._lock = threading.Lock()

    @property
    def place(self) -> str:
        """See `Store`."""
        return f"{self.address.shown}, table {self.tables.items}"

    # Connection

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        if self.address.scheme == "chdb":
            return clickhouse_connect.get_client(dsn=f"chdb://{self.address.database}")
        try:
            client = self._client_of_server()
        except ClickHouseError as error:
            if _code_of(str(error)) in MISSING:  # the library itself asks for what old servers do not have
                self._require_version(_version_of(self.address))
            raise
        self._require_version(client.server_version)
        return client

    def _require_version(self, version: str) -> None:
        """Refuse an old server; "" is an unknown version."""
        numbers = tuple(map(int, re.findall("[0-9]+", version)[:2]))
        if numbers < OLDEST:
            needed = ".".join(map(str, OLDEST))
            problem = f"{self.address.shown}: ClickHouse {version or 'of an unknown version'}; {needed} is needed."
            raise ConfigError(problem, option="url", hint="Use a newer server.")

    def _client_of_server(self) -> Any:
        address = self.address
        settings = {name: value for name, value in address.options if name not in ("cluster", "secure")}
        return clickhouse_connect.get_client(
            host=address.host, port=address.port, username=address.user or "default", password=address.password,
            database=address.database or "default", secure=address.option("secure") == "1", connect_timeout=CONNECT,
            send_receive_timeout=max(1, int(address.timeout)), autogenerate_session_id=False,
            form_encode_query_params=True, settings=settings, client_name="multibit",
        )  # fmt: skip

    @contextlib.contextmanager
    def _session(self) -> Iterator[Any]:
        """The client; the errors of the library become ours."""
        try:
            yield self._connected()
        except ClickHouseError as error:
            raise self._explained(error) from None

    def _explained(self, error: Exception) -> MultibitError:
        shown = self.address.without_password(" ".join(str(error).split())[:500])
        code = _code_of(shown)
        if code in REFUSED:
            return self.address.refused(shown, REFUSED[code])
        if code in TIMES or "timed out" in shown.lower():
            return self.address.no_answer()
        if code in UNREACHABLE or (not code and "DB::Exception" not in shown):
            shard = code and self.tables.cluster and not self.partial
            hint = ("Start all shards, or ask for partial answers: ?partial=1." if shard
                    else "Check the address, and that all servers are running.")  # fmt: skip
            return self.address.unreachable(shown, hint)
        if code in MISSING:
            hint = "Load one with: multibit index RUN --to URL"
            return DataError(f"{self.place}: no such table or column ({shown}).", hint=hint)
        return DataError(f"{self.place}: refused by the server ({shown}).")

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"max_execution_time": self.address.timeout}
        if self.partial:
            settings["skip_unavailable_shards"] = 1
        return settings

    def _run(self, statement: str) -> None:
        with self._session() as client:
            client.command(statement)

    def _arrow(self, statement: str, values: dict[str, Any] | None = None, several: bool = False) -> Any:
        """The rows of a statement, as an Arrow table; `several` for one that unites several queries."""
        settings = self._settings()
        if several and self.address.scheme == "chdb":
            settings["max_threads"] = 1  # the threads of chdb 26.5 wait for each other forever at times
        with self._session() as client:
            return client.query_arrow(statement, parameters=values, settings=settings)

    def _insert(self, table: str, columns: dict[str, Any]) -> None:
        settings = {"distributed_foreground_insert": 1} if self.tables.cluster else None
        with self._session() as client:
            client.insert_arrow(table, pyarrow.table(columns), settings=settings)

    def close(self) -> None:
        """See `Store`."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    # What is stored about the index

    def read(self) -> Facts | None:
        """See `Store`; chdb would write into a folder that is not its own."""
        if self.address.scheme == "chdb" and not Path(self.address.database, "metadata").is_dir():
            return None
        if not self._exists(self.tables.facts):
            return None
        statement = f"SELECT facts FROM {self.tables.facts} FINAL WHERE name = {{name:String}}"
        rows = self._arrow(statement, {"name": self.name}).column("facts").to_pylist()
        return Facts.of_json(rows[0], self.place) if rows else None

    def _exists(self, table: str) -> bool:
        found = self._arrow("SELECT count() AS n FROM system.tables WHERE database = currentDatabase() "
                            "AND name = {table:String}", {"table": table})  # fmt: skip
        return bool(found.column("n")[0].as_py())

    def create(self, facts: Facts) -> None:
        """See `Store`."""
        self.drop()
        for statement in self.tables.create(facts.ids, words_of(facts.bits)):
            self._run(statement)
        self.describe(facts)

    def drop(self) -> None:
        """See `Store`."""
        for statement in self.tables.drop():
            self._run(statement)
        if self._exists(self.tables.facts):
            self._write_facts("", deleted=1)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """See `Store`: ClickHouse has no locks, so one process must write at a time."""
        yield

    def describe(self, facts: Facts) -> None:
        """See `Store`."""
        before = self.read()
        known = before.fields if before else {}
        columns = column_names(facts.fields)
        for field, kind in facts.fields.items():
            if field not in known:
                for statement in self.tables.add(_column(columns[field], kind)):
                    self._run(statement)
        self._write_facts(facts.to_json())

    def _write_facts(self, text: str, deleted: int = 0) -> None:
        newest = f"SELECT max(version) AS n FROM {self.tables.facts} WHERE name = {{name:String}}"
        version = self._arrow(newest, {"name": self.name}).column("n")[0].as_py() or 0
        row = {"name": [self.name], "facts": [text]}
        numbers = {"version": pyarrow.array([version + 1], pyarrow.uint64()),
                   "deleted": pyarrow.array([deleted], pyarrow.uint8())}  # fmt: skip
        self._insert(self.tables.facts, {**row, **numbers})

    # Changes

    def put(self, facts: Facts, items: Items) -> None:
        """See `Store`: rows of a newer version."""
        columns: dict[str, Any] = {"id": items.ids.to_arrow(), "age": pyarrow.array(items.ages)}
        columns |= {word.name: pyarrow.array(values) for word, values in to_words(items.codes)}
        for field, name in column_names(facts.fields).items():
            if (values := items.metadata.columns.get(field)) is not None:
                columns |= _stored(name, facts.fields[field], values)
        self._insert(self.tables.items, {**columns, **_versions(len(items.ids), facts.changes, 0)})

    def remove(self, facts: Facts, ids: Sequence[Id]) -> None:
        """See `Store`: rows of a newer version that are marked as deleted."""
        kind = pyarrow.large_string() if facts.ids == "string" else pyarrow.int64()
        columns = {"id": pyarrow.array(list(ids), kind), **_versions(len(ids), facts.changes, 1)}
        self._insert(self.tables.items, columns)

    def settle(self) -> None:
        """See `Store`: merges the parts, after which FINAL costs little."""
        with self._session() as client:
            client.command(
                self.tables.optimize(), settings={"optimize_throw_if_noop": 0, "optimize_skip_merged_partitions": 1}
            )

    # Reading

    def youngest(self) -> int:
        """See `Store`."""
        row = self._arrow(f"SELECT max(age) AS age, count() AS n FROM {self.tables.items}").to_pylist()[0]
        return int(row["age"]) if row["n"] else -1

    def count(self) -> int:
        """See `Store`."""
        return int(self._arrow(f"SELECT count() AS n FROM {self.tables.items} FINAL").column("n")[0].as_py())

    def search(self, facts: Facts, asked: Asked) -> Found:
        """See `Store`: the nearest ids first, then their metadata, of the same version of the items."""
        for _ in range(ATTEMPTS):
            before = self._down()
            hits = self._nearest(facts, asked)
            found = self._described(facts, asked, hits)
            if found is not None:
                lost = dict.fromkeys((*before, *self._down()))
                return Found(*found, tuple(Lost(each, None, "not reachable.") for each in lost))
        raise UnavailableError(f"{self.place}: the hits changed again and again while they were read.")

    def _down(self) -> list[str]:
        """Shards of the cluster that do not answer, where a search goes on without them."""
        if not self.partial:
            return []
        values = {"database": self.address.database or "default"}
        every, reached = (self._arrow(each, values).column("shard").to_pylist() for each in self.tables.shards())
        return [f"{self.address.shown}, shard {each}" for each in sorted(set(every) - set(reached))]

    def _nearest(self, facts: Facts, asked: Asked) -> Any:
        """query, distance, age and id of the hits, in order, as an Arrow table."""
        conditions = ClickHouseConditions(facts.fields)
        tests = [] if asked.condition is None else [conditions.sql(asked.condition)]
        values: dict[str, Any] = {**conditions.values, "k": min(asked.k, MOST_HITS)}
        kind = "String" if facts.ids == "string" else "Int64"
        if asked.among is not None:
            tests.append(f"id IN {{among:Array({kind})}}")
            values["among"] = list(asked.among)
        if asked.max_distance is not None:
            tests.append("distance <= {most:UInt16}")
            values["most"] = min(asked.max_distance, asked.codes.bits)
        where = f"WHERE {' AND '.join(tests)} " if tests else ""
        parts = []
        for start in range(0, max(1, len(asked.codes)), TOGETHER):
            some = asked.codes.take(np.arange(start, min(start + TOGETHER, len(asked.codes))))
            words = query_words(some)
            selects = [
                f"(SELECT {start + number}::Int64 AS query, {_distance(words, number)} AS distance, age, id "
                f"FROM {self.tables.items} FINAL {where}ORDER BY distance, age LIMIT {{k:UInt64}})"
                for number in range(len(some))
            ]
            bound = {f"q{number}_{word.name}": int(row[number]) for word, row in words for number in range(len(some))}
            if selects:
                statement = f"SELECT * FROM ({' UNION ALL '.join(selects)}) ORDER BY query, distance, age"
                parts.append(self._arrow(statement, {**values, **bound}, several=len(selects) > 1))
        return pyarrow.concat_tables(parts) if parts else None

    def _described(self, facts: Facts, asked: Asked, hits: Any) -> _Hits | None:
        """Hits with their metadata; None where an item was changed in between."""
        kinds = {field: facts.fields[field] for field in asked.fields}
        if hits is None:
            return np.zeros(0, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.int64), IdColumn(range(0)), Metadata(0)
        ids = _ids(hits.column("id"), facts)
        ages = hits.column("age").to_numpy().astype(np.int64)
        metadata = Metadata(len(ids))
        if kinds:
            known = self._items(facts, list(dict.fromkeys(hits.column("id").to_pylist())), kinds, with_codes=False)
            rows = known.ids.find(ids)
            if (rows < 0).any() or not np.array_equal(known.ages[rows], ages):
                return None
            metadata = known.metadata.take(rows)
        queries = hits.column("query").to_numpy().astype(np.int64)
        return queries, hits.column("distance").to_numpy().astype(np.uint16), ages, ids, metadata

    def items(self, facts: Facts, ids: Sequence[Id]) -> Items:
        """See `Store`."""
        return self._items(facts, ids, facts.fields)

    def _items(self, facts: Facts, ids: Sequence[Id], kinds: Kinds, with_codes: bool = True) -> Items:
        kind = "String" if facts.ids == "string" else "Int64"
        tables = [
            self._select(facts, kinds, f"WHERE id IN {{ids:Array({kind})}}",
                         {"ids": list(ids[start : start + ASKED_IDS])}, with_codes)
            for start in range(0, max(1, len(ids)), ASKED_IDS)
        ]  # fmt: skip
        return _items_of(pyarrow.concat_tables(tables), facts, kinds, with_codes)

    def page(self, facts: Facts, start: int, count: int) -> Items:
        """See `Store`."""
        which = "ORDER BY age LIMIT {count:UInt64} OFFSET {start:UInt64}"
        table = self._select(facts, facts.fields, which, {"count": count, "start": start}, True)
        return _items_of(table, facts, facts.fields, True)

    def _select(self, facts: Facts, kinds: Kinds, which: str, values: dict[str, Any], with_codes: bool) -> Any:
        names = column_names(facts.fields)
        columns = ["id", "age", *(word.name for word in words_of(facts.bits) if with_codes)]
        for field, kind in kinds.items():
            columns += [names[field], f"{names[field]}_given"] if kind == "list" else [names[field]]
        return self._arrow(f"SELECT {', '.join(columns)} FROM {self.tables.items} FINAL {which}", values)

    def values(self, facts: Facts, field: str, limit: int) -> list[tuple[Any, int]]:
        """See `Store`."""
        column, kind = column_names(facts.fields)[field], facts.fields[field]
        value = f"arrayJoin({column})" if kind == "list" else f"assumeNotNull({column})"
        where = "" if kind == "list" else f"WHERE isNotNull({column})"
        table = self._arrow(
            f"SELECT {value} AS value, count() AS n FROM {self.tables.items} FINAL {where} GROUP BY value "
            "ORDER BY n DESC, value LIMIT {limit:UInt64}", {"limit": limit},
        )  # fmt: skip
        found = table.column("value")
        found = found if kind == "list" else _column_of(found, kind)
        return list(zip(found.to_pylist(), table.column("n").to_pylist(), strict=True))


def _code_of(message: str) -> int:
    """Code of an error of the server; 0 for none."""
    found = re.search(r"[Cc]ode: ([0-9]+)", message)
    return int(found[1]) if found else 0


def _version_of(address: Address) -> str:
    """What a server says of its version, without the client library; "" for no answer."""
    scheme, port = ("https", 8443) if address.option("secure") == "1" else ("http", 8123)
    host = f"[{address.host}]" if ":" in address.host else address.host
    asked = urllib.request.Request(f"{scheme}://{host}:{address.port or port}/?query=SELECT%20version()")
    secret = f"{address.user or 'default'}:{address.password}".encode()
    asked.add_header("Authorization", f"Basic {base64.b64encode(secret).decode()}")
    try:
        with urllib.request.urlopen(asked, timeout=CONNECT) as answer:
            return bytes(answer.read(100)).decode(errors="replace").strip()
    except OSError:
        return ""


def _distance(words: list[tuple[Word, Any]], number: int) -> str:
    """The expression of the distance to a query, over the words of its prefix."""
    parts = []
    for word, _ in words:
        differing = f"bitXor({word.name}, {{q{number}_{word.name}:{word.type}}})"
        if word.used < word.bits:  # the end of the prefix is inside this word
            differing = f"bitAnd({differing}, {2**word.used - 1}::{word.type})"
        parts.append(f"bitCount({differing})")
    return " + ".join(parts)


def _versions(count: int, version: int, deleted: int) -> dict[str, Any]:
    numbers = np.full(count, version, np.uint64), np.full(count, deleted, np.uint8)
    return dict(zip(("version", "deleted"), map(pyarrow.array, numbers), strict=True))


def _column(name: str, kind: str) -> str:
    """Definition of the column of a field."""
    if kind == "list":
        return f"{name} Array(String), ADD COLUMN IF NOT EXISTS {name}_given UInt8"
    return f"{name} Nullable({TYPES_OF_VALUES[kind]})"


def _stored(name: str, kind: str, values: Any) -> dict[str, Any]:
    """The column of a field as ClickHouse stores it."""
    if kind == "list":
        given = values.is_valid()
        flat = values.values.dictionary_decode()
        filled = pyarrow.LargeListArray.from_arrays(values.offsets, flat)
        return {name: filled, f"{name}_given": given.cast(pyarrow.uint8())}
    if kind == "date":
        return {name: values.cast(pyarrow.int32())}
    return {name: values.cast(pyarrow.int64()) if kind.startswith("timestamp") else values}


def _ids(column: Any, facts: Facts) -> IdColumn:
    whole = whole_array(column)
    if facts.ids == "string":
        return IdColumn(whole.cast(pyarrow.large_string()))
    return IdColumn(whole.to_numpy(zero_copy_only=False).astype(np.int64))


def _column_of(column: Any, kind: str, given: Any = None) -> Any:
    """A column as the metadata have it."""
    array = whole_array(column)
    if kind == "list":
        lists = array.cast(pyarrow.large_list(pyarrow.large_string()))
        missing = pyarrow.array(given.to_numpy() == 0)
        return encode_lists(pyarrow.LargeListArray.from_arrays(lists.offsets, lists.values, mask=missing))
    if kind == "date":
        return array.cast(pyarrow.int32()).cast(TYPES[kind])
    return array.cast(pyarrow.int64()).cast(TYPES[kind]) if kind.startswith("timestamp") else array.cast(TYPES[kind])


def _items_of(table: Any, facts: Facts, kinds: Kinds, with_codes: bool) -> Items:
    names, columns = column_names(facts.fields), {}
    for field, kind in kinds.items():
        given = table.column(f"{names[field]}_given") if kind == "list" else None
        columns[field] = _column_of(table.column(names[field]), kind, given)
    words = {word.name: table.column(word.name).to_numpy() for word in words_of(facts.bits) if with_codes}
    codes = to_codes(words, facts.bits) if with_codes else Codes(np.zeros((1, table.num_rows), np.uint16), 1)
    ages = table.column("age").to_numpy().astype(np.int64)
    return Items(_ids(table.column("id"), facts), ages, codes, Metadata(table.num_rows, columns, kinds))
