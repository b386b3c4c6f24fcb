"""Four shards and a router as processes: one shard is killed under load, and comes back."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time

import numpy as np
import pytest

from commands import assert_names, cli, done, refused

pytest.importorskip("fastapi")
pytest.importorskip("httpx2")

from multibit import Codes, Index, build_indices
from multibit.cli import main
from multibit.client import Client, ServerError
from multibit.search.names import index_path
from multibit.search.shards import Shard
from multibit.serve.models import NewItem

pytestmark = pytest.mark.slow
COUNT = 4
KILLED = 3


@pytest.fixture(scope="module")
def index(finished, store, tmp_path_factory):
    """The indices of a run without encoders, and their shards."""
    folder = tmp_path_factory.mktemp("shards") / "index"
    for name, built in build_indices(finished, store).items():
        built.save(index_path(folder, name))
    done("index", finished.folder, "--out", folder, "--reshard", COUNT)
    return folder


class Server:
    """`multibit serve` in a forked process, where nothing has to be imported and compiled again."""

    def __init__(self, *arguments, port=0):
        told, tell = os.pipe()
        self.process = os.fork()
        if not self.process:
            os.dup2(tell, 1)
            os.environ |= {"MULTIBIT_PORT": str(port), "MULTIBIT_WRITABLE": "1", "MULTIBIT_REFRESH": "0.2"}
            sys.argv, sys.stdout = ["multibit", "serve", *map(str, arguments)], os.fdopen(tell, "w")
            with contextlib.suppress(BaseException):
                main()
            os._exit(1)
        os.close(tell)
        with os.fdopen(told) as lines:
            self.address = re.search(r"http://\S+", lines.readline())[0].rstrip("/")

    def is_running(self):
        return self.process and os.waitpid(self.process, os.WNOHANG) == (0, 0)

    def kill(self):
        if self.process:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
            self.process = None


@pytest.fixture
def start():
    """Start a server; it is killed at the end."""
    with contextlib.ExitStack() as stack:

        def begin(*arguments, port=0):
            server = Server(*arguments, port=port)
            stack.callback(server.kill)
            return server

        yield begin


def await_ready(client, server):
    while not client.is_ready():
        assert server.is_running()
        time.sleep(0.05)


def test_a_shard_that_is_killed_under_load_is_never_lost_silently(start, finished, index):
    shards = [start(finished.folder, "--index", index, "--shard", f"{n}/{COUNT}") for n in range(1, COUNT + 1)]
    urls = [shard.address for shard in shards]
    router = start("--shards", ",".join(urls))
    client = Client(router.address)
    await_ready(client, router)
    whole = Index.open(index_path(index, "image"))
    rng = np.random.default_rng(0)
    queries = [rng.choice([-1.0, 1.0], finished.model.bits).tolist() for _ in range(6)]
    expected = [whole.search(Codes.binarize([query]), 20).ids[0] for query in queries]
    left = {name for name in whole.ids.listed(np.arange(len(whole))) if not Shard(KILLED, COUNT).holds(name)}
    seen, stop = {"whole": 0, "error": 0, "partial": 0}, threading.Event()
    wrong = []

    def ask(number, partial):
        while not stop.is_set():
            try:
                time.sleep(0.02)  # the servers share the processors
                answer = client.search(vector=queries[number], k=20, modality="image", partial=partial)
            except ServerError as error:
                named = error.status == 503 and f"{KILLED}/{COUNT}" in str(error)
                wrong.extend([] if named else [str(error)])
                seen["error"] += 1
                continue
            ids = [hit.id for hit in answer.hits]
            if answer.missing:
                fits = partial and answer.missing == [f"{KILLED}/{COUNT}"] and set(ids) <= left
            else:
                fits = ids == expected[number]
            wrong.extend([] if fits else [answer])
            seen["partial" if answer.missing else "whole"] += 1

    threads = [threading.Thread(target=ask, args=(n, n % 2 == 1)) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        await_count(seen, "whole", 20)
        shards[KILLED - 1].kill()
        await_count(seen, "error", 5)
        await_count(seen, "partial", 5)
        assert not client.is_ready()
        mine = next(str(n) for n in range(1_000, 2_000) if Shard(KILLED, COUNT).holds(str(n)))
        with pytest.raises(ServerError) as caught:
            client.put([NewItem(id=mine, image_vector=queries[0], text_vector=queries[0])])
        assert f"{KILLED}/{COUNT}" in str(caught.value)
        port = int(urls[KILLED - 1].rpartition(":")[2])
        again = start(finished.folder, "--index", index, "--shard", f"{KILLED}/{COUNT}", port=port)
        await_ready(client, again)
        before = seen["whole"]
        await_count(seen, "whole", before + 20)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[:3]


def await_count(seen, kind, count):
    deadline = time.monotonic() + 60
    while seen[kind] < count:
        assert time.monotonic() < deadline, seen
        time.sleep(0.01)


def test_shards_on_the_command_line(finished, index, tmp_path):
    run = finished.folder
    done("index", run, "--out", index, "--reshard", 2, "--from-shards", COUNT)
    sizes = [len(Index.open(index_path(Shard(n, 2).folder(index), "image"))) for n in (1, 2)]
    assert sum(sizes) == len(Index.open(index_path(index, "image")))
    assert_names(refused("index", run, "--out", index, "--reshard", 2, "--from-shards", 3), "3-shards")
    assert_names(refused("index", run, "--out", index, "--reshard", 0), "--reshard")
    assert_names(refused("index", run, "--out", index, "--reshard", 4_000), "--reshard")
    assert_names(refused("index", run, "--out", index, "--reshard", 3, "--compact"), "--reshard")
    assert_names(refused("index", run, "--out", index, "--from-shards", 3), "--from-shards")
    assert_names(refused("index", run, "--out", tmp_path / "none", "--reshard", 3), "none")
    assert_names(refused("serve", run, "--index", index, "--shard", "9/8"), "--shard")
    assert_names(refused("serve", run, "--index", index, "--shard", "1/8"), "8-shards")
    assert_names(refused("serve", "--shards", "ftp://x"), "--shards")
    assert_names(refused("serve", run, "--shards", "http://127.0.0.1:9"), "RUN")
    assert_names(refused("serve"), "RUN")
    assert_names(refused("serve", run, "--index", index, "--hedge", "1"), "--hedge")
    assert cli("serve", "--shards", "http://127.0.0.1:9", "--hedge", "x").code == 2
