"""Work on a Ray cluster, in its local mode: the results are the same even if a worker dies."""

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import Letters, cli, done
from conftest import plant
from multibit import Config, FeatureStore, HashModel, Run, Split, encode, encode_store
from multibit.data.parts import Parts
from multibit.errors import ConfigError, DataError, MissingExtraError, MultibitError
from multibit.features import extract
from multibit.features.cluster import RETRIES, run_on_ray
from multibit.features.parts import extract_parts, join_parts
from multibit.hashing.encode import ENCODE_ROWS
from multibit.pipeline import write_codes
from multibit.progress import showing

SMALL = Config(lengths=(8, 16), scales=2, hidden=16, dimension=8, epochs=1)
ITEMS = ENCODE_ROWS + 100  # two blocks


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install multibit[ray]")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests
    yield ray
    ray.shutdown()


@pytest.fixture
def here_for_ray(monkeypatch) -> list:
    """The parts of each run that would be on Ray: their work is done in this process."""
    runs = []
    monkeypatch.setattr(
        "multibit.hashing.encode.run_on_ray", lambda work, parts, _: runs.append(parts) or map(work, parts)
    )
    return runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A feature store in shards, and a run that was trained on some of its rows."""
    folder = tmp_path_factory.mktemp("run")
    np.savez(folder / "ready.npz", **plant(ITEMS))
    store = FeatureStore.open(folder / "ready.npz")
    store.save(folder / "features")
    rows = np.arange(ITEMS)
    split = Split(train=rows[:60], validation=rows[60:80], query=rows[80:100], database=rows[100:], seed=0)
    Run.create(folder / "run", FeatureStore.open(folder / "features"), split, SMALL)
    return folder


def die(times: int, folder: Path, number: int) -> int:
    """The worker dies at part 3, `times` times."""
    if number == 3 and len(list(folder.iterdir())) < times:
        (folder / str(time.monotonic_ns())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def refuse(number: int) -> int:
    raise DataError("cannot be read.", file=f"part {number}", row=3, field="labels", hint="Pass `columns`.")


def lacking() -> None:
    raise ModuleNotFoundError("No module named 'eyes'")


class Elsewhere:
    """Work from a package that a worker lacks."""

    def __reduce__(self):
        return lacking, ()

    def __call__(self, number: int) -> int:
        return number


@pytest.mark.slow
def test_results_come_in_the_order_of_the_parts_and_a_worker_that_dies_is_replaced(ray, tmp_path, monkeypatch):
    """The relative path of the folder means the same to both workers and to the replacement."""
    monkeypatch.chdir(tmp_path)
    folder = Path("deaths")
    folder.mkdir()
    assert list(run_on_ray(partial(die, 1, folder), range(5), 2)) == [0, 1, 4, 9, 16]
    assert len(list(folder.iterdir())) == 1


@pytest.mark.slow
def test_a_part_that_always_kills_its_worker_is_refused(ray, tmp_path):
    with pytest.raises(MultibitError) as caught:
        list(run_on_ray(partial(die, 9, tmp_path), range(5), 1))
    assert f"{RETRIES} replacements" in caught.value.problem and "`workers`" in caught.value.hint
    assert len(list(tmp_path.iterdir())) == 1 + RETRIES


@pytest.mark.slow
def test_an_error_of_a_worker_is_raised_here_with_its_fields_and_the_cluster_ends(ray, monkeypatch):
    """The cluster of the tests stands for the one that is started where there is none."""
    calls = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for name in ("init", "shutdown"):
        monkeypatch.setattr(ray, name, lambda name=name, **_: calls.append(name))
    with pytest.raises(DataError) as caught:
        list(run_on_ray(refuse, range(2), 1))
    error = caught.value
    assert (error.problem, error.file, error.row, error.field) == ("cannot be read.", Path("part 0"), 3, "labels")
    assert error.hint == "Pass `columns`."
    assert (calls[0], calls[-1], calls.count("shutdown")) == ("init", "shutdown", 1)


@pytest.mark.slow
def test_a_worker_that_lacks_a_package_is_refused_with_its_name(ray):
    with pytest.raises(MultibitError) as caught:
        list(run_on_ray(Elsewhere(), range(2), 1))
    assert "No module named 'eyes'" in caught.value.problem and caught.value.hint


def test_a_value_that_is_not_finite_is_named_by_its_file_and_row(folder, here_for_ray):
    arrays = plant(ITEMS)
    arrays["image"][ENCODE_ROWS + 1, 2] = np.nan
    np.savez(folder / "faulty.npz", **arrays)
    model = HashModel(24, 16, (4, 4), hidden=8, dimension=8)
    with pytest.raises(DataError) as caught:
        encode_store(model, FeatureStore.open(folder / "faulty.npz"), engine="ray")
    assert (caught.value.file, caught.value.field) == (folder / "faulty.npz", "image features")
    assert f"[{ENCODE_ROWS + 1}, 2] is nan" in caught.value.problem


def test_codes_made_in_blocks_are_those_of_all_items(folder):
    run, store = Run.load(folder / "run"), FeatureStore.open(folder / "features")
    whole, coded = encode(run.model, store.take(np.arange(ITEMS))), encode_store(run.model, store)
    assert coded.image == whole.image and coded.text == whole.text
    assert np.array_equal(coded.labels, whole.labels)
    write_codes(run, store, folder / "whole.mat")
    from scipy.io import loadmat

    made = loadmat(folder / "whole.mat")
    assert np.array_equal(made["q_l"], store.dataset.labels[run.split.query])
    assert np.array_equal(made["r_img"], whole.image.take(run.split.database).to_signs())


@pytest.mark.slow
def test_codes_made_on_ray_are_those_made_here(ray, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for engine in ("local", "ray"):
        printed = done("encode", "run", "features", "--engine", engine, "--bits", 12, "--out", f"{engine}.npz")
        assert f"{ITEMS:,} items" in printed and "12 bits" in printed
    assert (folder / "ray.npz").read_bytes() == (folder / "local.npz").read_bytes()


def test_queries_and_database_are_encoded_in_one_run_on_ray(folder, here_for_ray):
    run, store = Run.load(folder / "run"), FeatureStore.open(folder / "features")
    write_codes(run, store, folder / "once.mat", engine="ray")
    assert here_for_ray == [range(0, ITEMS, ENCODE_ROWS)]


def test_no_rows_have_no_codes(folder):
    store = FeatureStore.open(folder / "features")
    assert len(encode_store(Run.load(folder / "run").model, store, np.zeros(0, np.int64))) == 0


def test_only_some_rows_of_the_store_are_in_memory_at_a_time(folder, monkeypatch):
    store, asked = FeatureStore.open(folder / "features"), []
    take = FeatureStore.take
    monkeypatch.setattr(FeatureStore, "take", lambda self, rows: asked.append(len(rows)) or take(self, rows))
    encode_store(HashModel(24, 16, (4, 4), hidden=8, dimension=8), store)
    assert asked == [ENCODE_ROWS, 100]


def test_the_missing_ray_is_named_before_any_code(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    run, store = Run.load(folder / "run"), FeatureStore.open(folder / "features")
    with pytest.raises(MissingExtraError) as caught:
        write_codes(run, store, folder / "none.npz", engine="ray")
    assert (caught.value.module, caught.value.extra) == ("ray", "ray")
    with pytest.raises(ConfigError) as caught:
        encode_store(run.model, store, engine="dask")
    assert caught.value.option == "engine" and "'dask'" in caught.value.problem
    assert not (folder / "none.npz").exists()


@pytest.mark.slow
def test_shards_of_features_and_tokens_made_on_ray_are_those_made_here(ray, tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed: pip install multibit[clip]")
    from test_joint import noise, write_clip

    clip = write_clip(tmp_path / "clip")
    rows = ["id,image,text,labels", *(f"{row},{row}.png,text {row},x" for row in range(10))]
    (tmp_path / "items.csv").write_text("\n".join(rows))
    for row, image in enumerate(noise(*[(40, 30 + row) for row in range(9)])):  # the tenth is missing
        image.save(tmp_path / f"{row}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(extract, "SHARD", 4)
    shards = []
    for engine in ("local", "ray"):
        encoders = ["--image-encoder", clip, "--text-encoder", clip]
        with showing():
            made = cli("features", "items.csv", *encoders, "--tokens", "--engine", engine, "--out", engine)
        assert f"Wrote {engine}: 9 items, 1 skipped" in made.out and "10/10" in made.err, made.err
        shards.append({path.name: path.read_bytes() for path in (tmp_path / engine).iterdir()})
    assert shards[0] == shards[1] and len(shards[0]) == 5


@pytest.mark.slow
def test_parts_of_a_store_are_encoded_on_the_cluster_and_resumed(ray, tmp_path, monkeypatch):
    monkeypatch.setattr("multibit.data.parts.ROWS", 2)
    (tmp_path / "data").mkdir()
    for n in range(5):
        Image.new("RGB", (8, 8), (40 * n, 0, 0)).save(tmp_path / "data" / f"{n}.png")
    lines = (json.dumps({"id": str(n), "image": f"{n}.png", "text": f"text {n}", "labels": []}) for n in range(5))
    (tmp_path / "data" / "items.jsonl").write_text("\n".join(lines))
    parts = Parts.of(f"file://{tmp_path}/data/items.jsonl", tmp_path / "plan")
    encoders = Letters(24), Letters()
    ray.cloudpickle.register_pickle_by_value(sys.modules[Letters.__module__])
    stores = []
    for engine in ("ray", "local"):
        out = f"file://{tmp_path}/{engine}"
        assert extract_parts(parts, *encoders, out, engine=engine) == 5
        stores.append(join_parts(out, tmp_path / f"{engine} joined"))
    np.testing.assert_array_equal(stores[0].image[:], stores[1].image[:])
    assert stores[0].dataset.ids == stores[1].dataset.ids
    (tmp_path / "ray" / "00001" / "store.json").unlink()  # the worker of this part was stopped
    assert extract_parts(parts, *encoders, f"file://{tmp_path}/ray") == 2
