"""The server as a process: its address, options from the environment, SIGTERM, and kill -9 while it writes."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from commands import cli, refused

pytest.importorskip("fastapi")
pytest.importorskip("httpx2")

from multibit import Index, build_indices
from multibit.client import Client, ServerError
from multibit.search.names import index_path
from multibit.serve.models import NewItem
from multibit.serve.server import serve
from multibit.serve.settings import ServerSettings

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("MULTIBIT_SERVER_KILLS", "3"))


@pytest.fixture
def index(finished, store, tmp_path):
    """The indices of a run without encoders."""
    for name, built in build_indices(finished, store).items():
        built.save(index_path(tmp_path / "index", name))
    return tmp_path / "index"


@pytest.fixture
def start(finished, index):
    """Start a server in a process of its own; its address, and the process."""
    running = []

    def begin(**environment):
        command = [sys.executable, "-c", "from multibit.cli import main; main()", "serve", str(finished.folder)]
        process = subprocess.Popen(
            [*command, "--index", str(index)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "MULTIBIT_PORT": "0", "MULTIBIT_WRITABLE": "1", **environment},
        )  # fmt: skip
        running.append(process)
        url = re.search(r"http://\S+", process.stdout.readline())[0]
        client = Client(url)
        while not client.is_ready():
            assert process.poll() is None
            time.sleep(0.02)
        return client, process

    yield begin
    for process in running:
        process.kill()
        process.wait()


def test_sigterm_finishes_running_requests_and_ends_well(start):
    client, process = start()
    codes = []

    def ask():
        while True:
            try:
                codes.append(len(client.search(id="0", k=1, source="image", modality="image").hits))
            except ServerError as error:
                assert error.status in (0, 503)
                return

    asking = threading.Thread(target=ask)
    asking.start()
    while len(codes) < 5:
        assert asking.is_alive()
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    asking.join()
    assert set(codes) == {1}


@contextlib.contextmanager
def forked(run, index):
    """A client of a server in a forked process, where nothing has to be imported again; and its number."""
    told, tell = os.pipe()
    process = os.fork()
    if not process:
        settings = ServerSettings(port=0, writable=True)
        with contextlib.suppress(BaseException):
            serve(run, index, settings, started=lambda url: os.write(tell, f"{url}\n".encode()))
        os._exit(1)
    os.close(tell)
    with os.fdopen(told) as lines:
        client = Client(lines.readline().strip())
    try:
        while not client.is_ready():
            time.sleep(0.01)
        yield client, process
    finally:
        os.kill(process, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
        client.close()


def vector(number):
    """The relaxed code of an item, which tells its number."""
    return [1.0 if number >> bit & 1 else -1.0 for bit in range(16)]


def write_until_refused(client, first, written):
    """Write items of both modalities, one after another: each replaces "last" as well."""
    for number in range(first, first + 10_000):
        values = vector(number)
        items = [NewItem(id=name, image_vector=values, text_vector=values, fields={"number": number})
                 for name in (f"new {number}", "last")]  # fmt: skip
        try:
            client.put(items)
        except ServerError:
            return
        written.append(number)


def written_items(index):
    """Numbers of the new items in order, the same in both indices; the codes must be theirs."""
    found = {}
    for name in ("image", "text"):
        loaded = Index.load(index_path(index, name))  # compares the checksums
        numbers = []
        for row in range(len(loaded)):
            item = loaded.ids[row]
            if item.startswith("new ") or item == "last":
                number = loaded.payloads[row]["number"]
                assert item in ("last", f"new {number}")
                assert loaded.codes_of([item]).to_signs().ravel().tolist() == vector(number)
                numbers += [number] if item != "last" else []
                last = number
        found[name] = (numbers, last if numbers else None)
    assert found["image"] == found["text"]
    numbers, last = found["image"]
    assert not numbers or last == numbers[-1]
    return numbers


def test_the_index_survives_servers_that_are_killed_while_they_write(finished, index):
    """After each kill both indices have the acknowledged writes, and at most the one in flight."""
    acknowledged, moments = [], random.Random(0)
    for _ in range(KILLS):
        written = []
        with forked(finished, index) as (client, process):
            found = written_items(index)  # the server has finished what the last one had decided
            assert found[: len(acknowledged)] == acknowledged and len(found) <= len(acknowledged) + 1
            acknowledged = found
            writing = threading.Thread(target=write_until_refused, args=(client, len(acknowledged), written))
            writing.start()
            while not written:
                assert writing.is_alive()
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.1))
            os.kill(process, signal.SIGKILL)
            writing.join()
        acknowledged = acknowledged + written
    assert len(acknowledged) >= KILLS


def test_what_cannot_be_served_is_refused_in_one_line(finished, index, tmp_path, monkeypatch):
    run = str(finished.folder)
    refused("serve", run, "--index", tmp_path / "nothing")
    refused("serve", run, "--index", index, "--host", "0.0.0.0")
    refused("serve", run, "--index", index, "--port", "99999")
    refused("serve", run, "--index", index, "--max-k", "0")
    refused("serve", tmp_path / "no-run")
    monkeypatch.setenv("MULTIBIT_MAX_K", "many")
    assert cli("serve", run).code == 2
