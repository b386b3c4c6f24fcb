"""ClickHouse's HTTP interface in front of chdb: python tests/clickhouse_http.py FOLDER PORT PASSWORD.

It answers what the real client library sends to a server: queries and inserts in any format, parameters, settings,
compressed answers, and errors with their code. What a server has besides (sessions, progress, roles) it has not.
"""

from __future__ import annotations

import base64
import gzip
import re
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import chdb

NO_SETTINGS = {"query", "database", "query_id", "session_id", "wait_end_of_query", "client_protocol_version"}
STATUS = {516: 403, 60: 404, 81: 404, 159: 408}
"""Code of an error -> HTTP status, as the server answers; others are 500."""
INSERT = re.compile(rb"\s*INSERT INTO .* FORMAT \w+\s*", re.DOTALL | re.IGNORECASE)


class EngineError(Exception):
    """An error of the engine, whose text has its code."""


class Engine:
    """chdb in a folder. Every request has a connection, so settings and the database end with it."""

    def __init__(self, folder: str) -> None:
        self.folder, self.lock = folder, threading.Lock()
        self.first = chdb.connect(folder)  # the engine ends with its last connection

    def answer(self, query: str, values: dict[str, str], settings: dict[str, str], database: str, data: bytes) -> bytes:
        """The bytes of an answer in the format that the query names, TabSeparated by default."""
        with self.lock, tempfile.NamedTemporaryFile() as file:
            connection = chdb.connect(self.folder)
            try:
                connection.query("SET max_threads = 1")  # several make it wait forever at times, see ClickHouseStore
                if database:
                    connection.query(f"USE `{database}`")
                for name, value in settings.items():
                    connection.query(f"SET {name} = {_quoted(value)}")
                if data:
                    file.write(data)
                    file.flush()
                    query = re.sub(r"(FORMAT \w+\s*)$", rf"FROM INFILE '{file.name}' \1", query)
                return bytes(connection.query(query, "TabSeparated", params=values).bytes())
            except RuntimeError as error:
                raise EngineError(str(error)) from None
            finally:
                connection.close()


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def form_of(body: bytes, content_type: str) -> dict[str, str]:
    """The texts of multipart/form-data."""
    boundary = content_type.partition("boundary=")[2].encode()
    fields = {}
    for part in body.split(b"--" + boundary)[1:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        name = re.search(rb'name="([^"]*)"', head)
        assert name is not None
        fields[name[1].decode()] = value.removesuffix(b"\r\n").decode()
    return fields


class Handler(BaseHTTPRequestHandler):
    """A request: `query` in the URL, in a form, or the body itself, with or without data after it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or every body waits 40 ms for the acknowledgement of its headers
    engine: Engine
    password: str

    def do_GET(self) -> None:
        """/ping, and queries that only read."""
        self._send(200, b"Ok.\n") if self.path == "/ping" else self.do_POST()

    def do_POST(self) -> None:
        """Any query."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            self._send(200, self._answer(body))
        except EngineError as error:
            found = re.search(r"Code: (\d+)", str(error))
            code = int(found[1]) if found else 1002  # UNKNOWN_EXCEPTION
            self._send(STATUS.get(code, 500), str(error).encode(), code)

    def _answer(self, body: bytes) -> bytes:
        expected = base64.b64encode(f"default:{self.password}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {expected}":
            raise EngineError("Code: 516. DB::Exception: default: Authentication failed. (AUTHENTICATION_FAILED)")
        given = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        kind = self.headers.get("Content-Type", "")
        if kind.startswith("multipart/form-data"):
            given, body = {**given, **form_of(body, kind)}, b""
        insert = INSERT.match(body)
        end = insert.end() if insert else len(body)
        query, data = (given["query"], body) if "query" in given else (body[:end].decode(), body[end:])
        values = {name[6:]: value for name, value in given.items() if name.startswith("param_")}
        settings = {name: value for name, value in given.items() if name not in NO_SETTINGS and name[:6] != "param_"}
        return self.engine.answer(query, values, settings, given.get("database", ""), data)

    def _send(self, status: int, body: bytes, code: int = 0) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-ClickHouse-Exception-Code", str(code))
        elif "gzip" in self.headers.get("Accept-Encoding", "") and "enable_http_compression=1" in self.path:
            body = gzip.compress(body)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: object) -> None:
        """Nothing is printed."""


def main() -> None:
    """Answer until the process is killed."""
    folder, port, Handler.password = sys.argv[1:]
    Handler.engine = Engine(folder)
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
