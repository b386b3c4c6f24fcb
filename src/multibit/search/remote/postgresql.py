"""PostgreSQL 14 and newer: codes are bit strings, a prefix is a cast. Only HNSW needs an extension."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow
import pyarrow.compute as pc

from multibit.codes import Codes
from multibit.errors import ConfigError, DataError, MissingExtraError, MultibitError
from multibit.search.columns import Id, IdColumn
from multibit.search.kinds import TYPES, Kinds, encode_lists
from multibit.search.metadata import Metadata
from multibit.search.remote import hnsw
from multibit.search.remote.base import Asked, Facts, Found, Items, RemoteCapabilities, column_names
from multibit.search.remote.sql import SIGNS, SqlConditions
from multibit.search.remote.urls import OPTIONS, Address

try:
    import psycopg
    from psycopg.conninfo import make_conninfo
except ImportError as error:
    raise MissingExtraError("psycopg", extra="postgres", need="An index in PostgreSQL") from error

OLDEST = 140_000  # bit_count is new in PostgreSQL 14
CONNECT = 10  # seconds that a connection may take
SESSION = "-c statement_timeout={} -c jit=off -c timezone=UTC -c client_min_messages=error"
TOGETHER = 32  # queries of a statement
MOST_HITS = 2**62
COLUMNS = {
    "string": 'text COLLATE "C"',
    "integer": "bigint",
    "float": "double precision",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp UTC": "timestamptz",
    "list": 'text[] COLLATE "C"',
    "json": "text",
}
"""Kind -> type of the column. Texts are in order of their code points, as in a local index."""
BINARY = {**COLUMNS, "string": "text", "list": "text[]", "string id": "text", "integer id": "bigint"}
REFUSED = {
    "28P01": "The user or the password is wrong.",
    "28000": "The server does not accept this user from here.",
    "42501": "Grant the user the rights on this database.",
    "3D000": "Create the database first.",
}
"""SQLSTATE -> how to fix it."""


class PostgresConditions(SqlConditions):
    """Filters for PostgreSQL. Its texts cannot contain a NUL character, so none is equal to one that does."""

    def negated(self, inner: str) -> str:
        """See `SqlConditions`."""
        return f"(({inner}) IS NOT TRUE)"

    def null(self, field: str, column: str) -> str:
        """See `SqlConditions`."""
        return f"({column} IS NULL)"

    def one_of(self, column: str, kind: str, values: Sequence[Any]) -> str:
        """See `SqlConditions`."""
        possible = [each for each in values if not (isinstance(each, str) and "\0" in each)]
        return f"({column} = ANY({self._bound(possible, kind + '[]')}))" if possible else "FALSE"

    def compares(self, column: str, kind: str, sign: str, value: Any) -> str:
        """See `SqlConditions`."""
        sign, value = _without_nul(sign, value)
        return f"({column} {SIGNS[sign]} {self._bound(value, kind)})"

    def holds(self, column: str, value: str) -> str:
        """See `SqlConditions`."""
        return "FALSE" if "\0" in value else f"({column} @> {self._bound([value], 'list')})"  # by the GIN index

    def holds_compared(self, column: str, sign: str, value: str) -> str:
        """See `SqlConditions`."""
        sign, value = _without_nul(sign, value)
        bound = self._bound(value, "string")
        return f"EXISTS (SELECT FROM unnest({column}) AS one WHERE one {SIGNS[sign]} {bound})"

    def equals(self, column: str, texts: Sequence[str]) -> str:
        """See `SqlConditions`."""
        return "FALSE" if any("\0" in each for each in texts) else f"({column} = {self._bound(list(texts), 'list')})"

    def _bound(self, value: Any, kind: str) -> str:
        one, many = kind.removesuffix("[]"), "[]" if kind.endswith("[]") else ""
        return f"%({self.bound(value)})s::{BINARY[one].split(' COLLATE')[0]}{many}"


def _without_nul(sign: str, value: Any) -> tuple[str, Any]:
    """The same comparison with a text without NUL: what precedes it decides, as no stored text has one."""
    if not isinstance(value, str) or "\0" not in value:
        return sign, value
    return {"$gt": "$gt", "$gte": "$gt", "$lt": "$lte", "$lte": "$lte"}[sign], value.partition("\0")[0]


class PostgresStore:
    """An index in the tables of one PostgreSQL server.

    Args:
        address: of the server. name: of the index, such as "image".
    """

    capabilities: ClassVar[RemoteCapabilities] = RemoteCapabilities(approximate=True, transactions=True)

    def __init__(self, address: Address, name: str) -> None:
        self.address = address
        self.facts_table = f"{address.table}_indices"
        self.table = f"{address.table}_{name.replace('-', '_')}"
        self.name = name
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.RLock()
        self._writing = False

    @property
    def place(self) -> str:
        """See `Store`."""
        return f"{self.address.shown}, table {self.table}"

    # Connection

    def _connect(self) -> psycopg.Connection[Any]:
        address = self.address
        given: dict[str, Any] = {
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "password": address.password,
            "dbname": address.database,
            "connect_timeout": CONNECT,
            "application_name": "multibit",
            "client_encoding": "utf8",
            "options": SESSION.format(int(1e3 * address.timeout)),
            **dict(address.options),
        }
        try:
            info = make_conninfo(**{name: value for name, value in given.items() if value not in (None, "")})
        except psycopg.ProgrammingError as error:
            problem = address.without_password(f"{address.shown}: {str(error).strip()}.")
            hint = f"An option is a parameter of libpq or one of {', '.join(OPTIONS['postgresql'])}."
            raise ConfigError(problem, option="url", hint=hint) from None
        connection = psycopg.connect(info, autocommit=True)
        encoding = connection.info.parameter_status("server_encoding")
        if connection.info.server_version < OLDEST or encoding != "UTF8":
            connection.close()
            found = f"PostgreSQL {connection.info.server_version // 10_000} with encoding {encoding}"
            raise ConfigError(f"{address.shown}: need PostgreSQL 14 or newer with encoding UTF8, found {found}.")
        return connection

    @contextlib.contextmanager
    def _session(self) -> Iterator[psycopg.Connection[Any]]:
        """The connection, for one thread at a time; the errors of the library become ours."""
        with self._lock:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._connect()
                yield self._connection
            except psycopg.Error as error:
                raise self._explained(error) from None

    def _rows(self, statement: str, values: Any = None) -> list[Any]:
        """The rows of a statement; a connection that the server closed meanwhile is opened again."""
        used = self._connection
        with self._session() as connection:
            try:
                return self._fetched(connection, statement, values)
            except psycopg.OperationalError:
                if self._writing or connection is not used or not connection.closed:
                    raise
                self._connection = self._connect()
                return self._fetched(self._connection, statement, values)

    def _fetched(self, connection: psycopg.Connection[Any], statement: str, values: Any) -> list[Any]:
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def _explained(self, error: psycopg.Error) -> MultibitError:
        state, shown = error.sqlstate or "", self.address.without_password(" ".join(str(error).split()))
        if not state and "authentication failed" in shown:
            state = "28P01"
        if state in REFUSED:
            return self.address.refused(shown, REFUSED[state])
        if state in ("57014", "55P03"):
            return self.address.no_answer()
        if state == "42P01":
            return DataError(f"{self.place}: no such table.", hint="Load one with: multibit index RUN --to URL")
        if state == "42703":
            return DataError(f"{self.place}: a column is missing ({shown}).", hint="Load the index again.")
        if isinstance(error, psycopg.OperationalError):
            return self.address.unreachable(shown, "Check the address, and that the server is running.")
        return DataError(f"{self.place}: refused by the server ({shown}).")

    def close(self) -> None:
        """See `Store`."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    # What is stored about the index

    def read(self) -> Facts | None:
        """See `Store`."""
        found = self._rows("SELECT to_regclass(%s)", [self.facts_table])
        if found[0][0] is None:
            return None
        rows = self._rows(f"SELECT facts FROM {self.facts_table} WHERE name = %s", [self.name])
        return Facts.of_json(rows[0][0], self.place) if rows else None

    def create(self, facts: Facts) -> None:
        """See `Store`."""
        id_type = BINARY["string"] + ' COLLATE "C"' if facts.ids == "string" else "bigint"
        hnsw.require_lengths(self.address.hnsw, facts.bits)
        with self.writing():
            self._require_vector()
            self.drop()
            self._rows(f"CREATE TABLE IF NOT EXISTS {self.facts_table} (name text PRIMARY KEY, facts text NOT NULL)")
            self._rows(
                f"CREATE TABLE {self.table} (id {id_type} PRIMARY KEY, age bigint NOT NULL, "
                f"code bit({facts.bits}) NOT NULL)"
            )
            self._rows(f"CREATE INDEX ON {self.table} (age)")
            self.describe(facts)
            if facts.loading is None:
                self._build_hnsw(facts)

    def drop(self) -> None:
        """See `Store`."""
        self._rows(f"DROP TABLE IF EXISTS {self.table}")
        if self._rows("SELECT to_regclass(%s)", [self.facts_table])[0][0] is not None:
            self._rows(f"DELETE FROM {self.facts_table} WHERE name = %s", [self.name])

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction, and one writer at a time; see `Store`."""
        with self._lock:
            if self._writing:
                yield
                return
            self._rows("SELECT 1")  # opens the connection again, if it was closed
            with self._session() as connection, connection.transaction():
                self._rows("SELECT pg_advisory_xact_lock(hashtext(%s))", [self.table])
                self._writing = True
                try:
                    yield
                finally:
                    self._writing = False

    def describe(self, facts: Facts) -> None:
        """See `Store`."""
        columns = column_names(facts.fields)
        with self.writing():
            before = self.read()
            known = before.fields if before else {}
            for field, kind in facts.fields.items():
                if field not in known:
                    self._rows(f"ALTER TABLE {self.table} ADD COLUMN {columns[field]} {COLUMNS[kind]}")
                    if kind == "list":
                        self._rows(f"CREATE INDEX ON {self.table} USING gin ({columns[field]})")
            self._rows(
                f"INSERT INTO {self.facts_table} VALUES (%s, %s) "
                "ON CONFLICT (name) DO UPDATE SET facts = EXCLUDED.facts",
                [self.name, facts.to_json()],
            )

    # Changes

    def put(self, facts: Facts, items: Items) -> None:
        """See `Store`: binary COPY into a temporary table, from which the rows are taken over."""
        fields = {name: kind for name, kind in facts.fields.items() if name in items.metadata.columns}
        self._require_no_nul(items, fields)
        columns = column_names(facts.fields)
        names = ["id", "age", "code", *columns.values()]
        replaced = ", ".join(f"{name} = EXCLUDED.{name}" for name in names[1:])
        with self.writing(), self._session() as connection:
            self._rows(f"CREATE TEMPORARY TABLE multibit_new (LIKE {self.table}) ON COMMIT DROP")
            copied = ", ".join(["id", "age", "code", *(columns[field] for field in fields)])
            with connection.cursor().copy(f"COPY multibit_new ({copied}) FROM STDIN (FORMAT BINARY)".encode()) as copy:
                types = [BINARY[f"{facts.ids} id"], "bigint", "bytea", *(BINARY[kind] for kind in fields.values())]
                copy.set_types([name.split(" COLLATE")[0] for name in types])
                for row in zip(*_values(items, fields), strict=True):
                    copy.write_row(row)
            self._rows(
                f"INSERT INTO {self.table} ({', '.join(names)}) SELECT {', '.join(names)} FROM multibit_new "
                f"ON CONFLICT (id) DO UPDATE SET {replaced}"
            )
            self._rows("DROP TABLE multibit_new")

    def _require_no_nul(self, items: Items, fields: Kinds) -> None:
        """Refuse what PostgreSQL cannot store."""
        texts = {"ids": items.ids.to_arrow()} if items.ids.kind == "string" else {}
        for name, kind in fields.items():
            column = items.metadata.columns[name]
            if kind in ("string", "json"):
                texts[name] = column
            elif kind == "list":
                texts[name] = pc.list_flatten(column).dictionary_decode()
        for name, column in texts.items():
            if pc.any(pc.match_substring(column, "\0")).as_py():
                problem = "has a text with a NUL character, which PostgreSQL cannot store."
                raise DataError(problem, field=name, hint="Remove the character.")

    def remove(self, facts: Facts, ids: Sequence[Id]) -> None:
        """See `Store`."""
        self._rows(f"DELETE FROM {self.table} WHERE id = ANY(%s)", [list(ids)])

    def settle(self) -> None:
        """See `Store`; an index that is built after a load is built much faster."""
        if self.address.hnsw:
            with self.writing():
                self._require_vector()
                if (facts := self.read()) is not None:
                    self._build_hnsw(facts)
        self._rows(f"VACUUM (ANALYZE) {self.table}")

    def _require_vector(self) -> None:
        """Install pgvector in the database where an HNSW index is asked for, before anything is stored."""
        if not self.address.hnsw:
            return
        found = self._rows(hnsw.VERSION, [hnsw.EXTENSION])
        hnsw.require_version(found[0][0] if found else None, self.address.shown)
        self._rows(f"CREATE EXTENSION IF NOT EXISTS {hnsw.EXTENSION}")

    def _build_hnsw(self, facts: Facts) -> None:
        """Build the HNSW indices that are not there, however long it takes."""
        hnsw.require_lengths(self.address.hnsw, facts.bits)
        self._set({"statement_timeout": "0"})
        for bits in self.address.hnsw:
            self._rows(hnsw.creation(self.table, bits, facts.bits))

    def _set(self, settings: Mapping[str, str]) -> None:
        """Settings that end with the transaction."""
        for name, value in settings.items():
            self._rows("SELECT set_config(%s, %s, true)", [name, value])

    # Reading

    def youngest(self) -> int:
        """See `Store`."""
        return int(self._rows(f"SELECT coalesce(max(age), -1) FROM {self.table}")[0][0])

    def count(self) -> int:
        """See `Store`."""
        return int(self._rows(f"SELECT count(*) FROM {self.table}")[0][0])

    def search(self, facts: Facts, asked: Asked) -> Found:
        """See `Store`: one statement for some queries together."""
        if asked.ef_search is None:
            return self._searched(facts, asked)
        with self._lock:
            names = self._rows(hnsw.INDICES, [self.table])
            hnsw.require_index([name for (name,) in names], self.table, asked.codes.bits, self.place)
            with self._session() as connection, connection.transaction():
                self._set(hnsw.scan_settings(asked.ef_search))
                return self._searched(facts, asked)

    def _searched(self, facts: Facts, asked: Asked) -> Found:
        conditions = PostgresConditions(facts.fields)
        tests = [] if asked.condition is None else [conditions.sql(asked.condition)]
        bits = asked.codes.bits
        prefix = hnsw.prefix(bits, facts.bits)
        distance = f"bit_count({prefix} # one.query)"
        values: dict[str, Any] = {**conditions.values, "k": min(asked.k, MOST_HITS)}
        order, within = "distance, age", ""
        if asked.ef_search is not None:
            order = f"{prefix} <~> one.query"
        if asked.max_distance is not None:
            if asked.ef_search is None:
                tests.append(f"{distance} <= %(most)s")
            else:
                within = "WHERE hit.distance <= %(most)s "  # inside, the scan would go on until it has k such hits
            values["most"] = min(asked.max_distance, bits)
        if asked.among is not None:
            tests.append("id = ANY(%(among)s)")
            values["among"] = list(asked.among)
        wanted = "".join(f", {column_names(facts.fields)[field]}" for field in asked.fields)
        statement = (
            f"SELECT one.number, hit.* FROM unnest(%(queries)s::bit({bits})[]) WITH ORDINALITY AS one (query, number), "
            f"LATERAL (SELECT {distance} AS distance, age, id{wanted} FROM {self.table} "
            f"{'WHERE ' + ' AND '.join(tests) if tests else ''} ORDER BY {order} LIMIT %(k)s) AS hit "
            f"{within}ORDER BY one.number, hit.distance, hit.age"
        )
        rows: list[Any] = []
        texts = _bit_texts(asked.codes)
        for start in range(0, len(texts), TOGETHER):
            found = self._rows(statement, {**values, "queries": texts[start : start + TOGETHER]})
            rows += [(start + row[0] - 1, *row[1:]) for row in found]
        columns = list(zip(*rows, strict=True)) or [()] * (4 + len(asked.fields))
        return Found(
            np.array(columns[0], np.int64),
            np.array(columns[1], np.uint16),
            np.array(columns[2], np.int64),
            _ids(columns[3], facts),
            _metadata(columns[4:], {field: facts.fields[field] for field in asked.fields}, len(rows)),
        )

    def items(self, facts: Facts, ids: Sequence[Id]) -> Items:
        """See `Store`."""
        possible = [each for each in ids if not (isinstance(each, str) and "\0" in each)]
        return self._items(facts, "WHERE id = ANY(%s)", [possible])

    def page(self, facts: Facts, start: int, count: int) -> Items:
        """See `Store`."""
        return self._items(facts, "ORDER BY age OFFSET %s LIMIT %s", [start, count])

    def _items(self, facts: Facts, which: str, values: list[Any]) -> Items:
        wanted = "".join(f", {column}" for column in column_names(facts.fields).values())
        rows = self._rows(f"SELECT id, age, code::text{wanted} FROM {self.table} {which}", values)
        columns = list(zip(*rows, strict=True)) or [()] * (3 + len(facts.fields))
        bits = np.frombuffer("".join(columns[2]).encode(), np.uint8).reshape(len(rows), facts.bits) - ord("0")
        return Items(
            _ids(columns[0], facts),
            np.array(columns[1], np.int64),
            Codes.from_bits(bits),
            _metadata(columns[3:], facts.fields, len(rows)),
        )

    def values(self, facts: Facts, field: str, limit: int) -> list[tuple[Any, int]]:
        """See `Store`."""
        column = column_names(facts.fields)[field]
        source = f"{self.table}, unnest({column}) AS one" if facts.fields[field] == "list" else self.table
        value = "one" if facts.fields[field] == "list" else column
        return self._rows(
            f"SELECT {value}, count(*) FROM {source} WHERE {value} IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT %s",
            [limit],
        )


def _bit_texts(codes: Codes) -> list[str]:
    """Codes as PostgreSQL writes bit strings, the first bit first."""
    return [row.tobytes().decode() for row in codes.to_bits() + np.uint8(ord("0"))]


def _values(items: Items, fields: Kinds) -> Iterator[Sequence[Any]]:
    """The columns of items for binary COPY; a bit string is its length and its bytes."""
    length = items.codes.bits.to_bytes(4, "big")
    yield items.ids.to_arrow().to_pylist()
    yield items.ages.tolist()
    yield [length + row.tobytes() for row in items.codes.to_bytes()]
    for name in fields:
        yield items.metadata.columns[name].to_pylist()


def _ids(values: Sequence[Any], facts: Facts) -> IdColumn:
    if facts.ids == "string":
        return IdColumn(pyarrow.array(values, pyarrow.large_string()))
    return IdColumn(np.array(values, np.int64))


def _metadata(columns: Sequence[Sequence[Any]], kinds: Kinds, count: int) -> Metadata:
    arrays = {}
    for values, (name, kind) in zip(columns, kinds.items(), strict=True):
        if kind == "list":
            arrays[name] = encode_lists(pyarrow.array(values, pyarrow.large_list(pyarrow.large_string())))
        else:
            arrays[name] = pyarrow.array(values, TYPES[kind])
    return Metadata(count, arrays, kinds)
