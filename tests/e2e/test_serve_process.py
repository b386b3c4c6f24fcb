"""The server as a process: its address, options from the environment, SIGTERM, and kill -9 while it writes."""

from __future__ import annotations

import os
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
from multibit.pipeline import index_path
from multibit.serve.models import NewItem

pytestmark = pytest.mark.slow


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


def test_the_index_survives_a_server_that_is_killed_while_it_writes(start, index):
    client, process = start()
    written = []

    def write():
        number = 1_000
        while True:
            items = [NewItem(id=str(number + n), image_vector=[0.5] * 16, text_vector=[0.5] * 16) for n in range(20)]
            try:
                written.append(client.put(items).items["image"])
            except ServerError:
                return
            number += 20

    writing = threading.Thread(target=write)
    writing.start()
    while len(written) < 3:
        assert writing.is_alive()
        time.sleep(0.005)
    process.kill()
    writing.join()
    for name in ("image", "text"):
        loaded = Index.load(index_path(index, name))  # compares the checksums
        assert len(loaded) >= len(written) * 20 and (len(loaded) - 80) % 20 == 0
    again, _ = start()
    assert again.info().indices["image"] >= written[-1]
    again.put([NewItem(id="last", text_vector=[-0.5] * 16)])


def test_what_cannot_be_served_is_refused_in_one_line(finished, index, tmp_path, monkeypatch):
    run = str(finished.folder)
    refused("serve", run, "--index", tmp_path / "nothing")
    refused("serve", run, "--index", index, "--host", "0.0.0.0")
    refused("serve", run, "--index", index, "--port", "99999")
    refused("serve", run, "--index", index, "--max-k", "0")
    refused("serve", tmp_path / "no-run")
    monkeypatch.setenv("MULTIBIT_MAX_K", "many")
    assert cli("serve", run).code == 2
