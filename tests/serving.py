"""A run with images, served in this process, and an image that stands for an upload."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI
from PIL import Image
from starlette.testclient import TestClient

from commands import Letters
from conftest import plant
from multibit import Config, FeatureStore, PairedDataset, Run, Split, build_indices
from multibit.features.recipe import Recipe
from multibit.search.names import index_path
from multibit.search.shards import Shard
from multibit.serve.app import create_app
from multibit.serve.settings import ServerSettings

ITEMS = 48
BITS = 32
NAMES = tuple(f"topic {number}" for number in range(8))
CONFIG = Config(lengths=(8, BITS), scales=2, hidden=24, dimension=12, epochs=2, batch_size=16)
HOST = "http://localhost"


def item_id(number: int) -> str:
    """Ids and file names with everything that must be quoted."""
    return f"a b/#ü% {number}"


def make_run(folder: Path) -> Run:
    """A trained run with an index; its items have images, texts and labels. The encoders are `Letters`."""
    data = plant(ITEMS, text_dim=16)
    images = folder / "images"
    images.mkdir(parents=True)
    paths = []
    for number in range(ITEMS):
        paths.append(images / f"a b#ü {number}.png")
        Image.new("RGB", (40 + number, 30), (5 * number, 90, 200 - 4 * number)).save(paths[-1])
    dataset = PairedDataset(
        tuple(map(item_id, range(ITEMS))), tuple(paths), tuple((f"text {n}",) for n in range(ITEMS)), data["labels"],
        NAMES,
    )  # fmt: skip
    recipe = Recipe(Letters(24).recipe, Letters().recipe)
    FeatureStore(dataset, data["image"], data["text"], np.arange(ITEMS + 1), recipe).save(folder / "features")
    store = FeatureStore.open(folder / "features")
    split = Split.draw(ITEMS, query=8, train=28, validation=4, seed=3)
    run = Run.create(folder / "run", store, split, CONFIG)
    for name, index in build_indices(run, store).items():
        index.save(index_path(folder / "run" / "index", name))
    return run


def client_of(run: Run, index: Path | None = None, **settings: object) -> TestClient:
    """The application behind a client; use it as a context manager, which starts and stops the application."""
    return behind(create_app(run, index, ServerSettings(**settings)))  # type: ignore[arg-type]


def behind(app: FastAPI) -> TestClient:
    """A client of an application."""
    return TestClient(app, base_url=HOST, raise_server_exceptions=False)


def await_ready(client: TestClient) -> TestClient:
    """Wait for the first query."""
    for _ in range(500):
        if client.get("/readyz").status_code == 200:
            return client
        time.sleep(0.01)
    raise AssertionError("not ready")


@contextlib.contextmanager
def served(run: Run, index: Path | None = None, shard: Shard | None = None, port: int = 0, **settings: object):
    """The address of a server in a thread."""
    app = create_app(run, index, ServerSettings(**settings), shard)  # type: ignore[arg-type]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not (server.started and app.state.service.is_ready):
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def png(width: int = 20, height: int = 10, colour: str = "red") -> bytes:
    """An image file in memory."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(out, "PNG")
    return out.getvalue()
