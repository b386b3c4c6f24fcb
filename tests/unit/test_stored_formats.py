"""Files of an earlier version: each kind still loads, with the codes and values that were recorded when it was written.

`tests/golden/stored` was written by version 0.1.0 before the restructuring (commit d748368): a feature store of 60
planted items, a split, a run with lengths 8 and 16 on them with its evaluation, its indices, and its codes at 8 bits;
`index/folder.mbx` is an index of commit e964f50.
`values.json` holds what that version computed from them. The files are not written again: a new format gets new files.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from multibit import FeatureStore, Index, Run, Split, load_evaluations
from multibit.codes import Codes
from multibit.evaluation.metric import MAP, NDCG, PAIRS, Metric
from multibit.evaluation.relevance import GradedRelevance
from multibit.hashing.encode import encode_store
from multibit.indices import open_index
from multibit.measurement import measure
from multibit.pipeline import write_codes
from multibit.runs import read_history

STORED = Path(__file__).parents[1] / "golden" / "stored"
MODALITIES = ("image", "text")


@pytest.fixture(scope="module")
def values():
    return json.loads((STORED / "values.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def store():
    return FeatureStore.open(STORED / "features")


@pytest.fixture(scope="module")
def run():
    return Run.load(STORED / "run")


def roles_of(split):
    return {role: getattr(split, role).tolist() for role in ("train", "validation", "query", "database")}


def codes_of(values, modality):
    packed = np.frombuffer(bytes.fromhex(values["codes"][modality]), np.uint8)
    return Codes.from_bytes(packed.reshape(60, 2))


def test_the_files_are_small():
    assert sum(path.stat().st_size for path in STORED.rglob("*") if path.is_file()) < 300_000


def test_a_feature_store(store, values):
    assert (store.fingerprint(), store.dataset.fingerprint()) == (values["data"], values["dataset"])
    assert store.dataset.texts[0] == ("text 0", "second text") and store.dataset.texts[1] == ("text 1",)
    assert store.dataset.label_names == tuple(f"topic {i}" for i in range(8))
    assert (store.recipe.image.name, store.recipe.text.dimension) == ("stored", 16)


def test_a_split(values):
    split = Split.load(STORED / "split.safetensors")
    assert roles_of(split) == values["roles"]
    assert (split.fingerprint(), split.seed) == (values["split"], 5)


def test_a_run(run, values):
    assert run.model.fingerprint() == run.record.model == values["model"]
    assert run.teacher.fingerprint() == run.record.teacher == values["teacher"]
    assert roles_of(run.split) == values["roles"]
    assert (run.config.lengths, run.config.epochs, run.config.hidden) == ((8, 16), 2, 16)
    assert (run.record.method, run.record.features, run.record.dataset.items) == ("", None, 60)
    assert read_history(run) == values["history"]


def test_the_relaxed_codes_of_a_run(run, store, values):
    pairs = store.take([0, 5])
    for modality, features in (("image", pairs.image), ("text", pairs.mean_text)):
        np.testing.assert_allclose(run.model.encode(features, modality), values["relaxed"][modality], atol=2e-5)


def test_the_codes_of_a_run(run, store, values):
    coded = encode_store(run.model, store, keep_relaxed=True)
    for modality in MODALITIES:
        assert np.abs(coded.relaxed[modality]).min() > 1e-5  # no sign depends on rounding
        assert coded.codes(modality) == codes_of(values, modality)


@pytest.mark.parametrize("modality", MODALITIES)
def test_an_index(modality, run, values):
    index = open_index(run, STORED / "index", modality)
    assert (index.model, index.modality, index.engine_name) == (values["model"], modality, "exact")
    assert [index.ids[row] for row in range(len(index))] == [f"item {i}" for i in range(60)]
    assert index.codes == codes_of(values, modality)
    assert index.payloads[0] == {name: value for name, value in values["payload"].items() if value is not None}


def test_an_index_folder_is_read_and_changed(tmp_path):
    """Written before stored engines and before manifests were flushed together with segments."""
    path = tmp_path / "folder.mbx"
    shutil.copytree(STORED / "index" / "folder.mbx", path)
    bits = np.random.default_rng(11).integers(0, 2, (6, 40), np.uint8)
    rows = [0, 2, 3, 4, 5]
    index = Index.load(path)
    assert [index.ids[row] for row in range(5)] == ["item 0", "item 2", "item 3", "item 1", "new"]
    assert index.codes == Codes.from_bits(bits[rows]) and index.payloads[1]["x"] == {"y": 2}
    assert index.search(Codes.from_bits(bits[[4]]), 1, where={"year": {"$gte": 2000}}).ids == [["item 1"]]
    with index.writer() as writer:
        writer.remove(["item 0"])
        writer.compact()
    assert Index.load(path).codes == Codes.from_bits(bits[rows[1:]])


def test_a_search_in_an_index(values):
    index = Index.load(STORED / "index" / "text.mbx")
    found = index.search(index.codes.take([0]), 3, 8)
    assert found.rows.tolist() == values["text search"]["rows"]
    assert found.distances.tolist() == values["text search"]["distances"]


def test_evaluations(values):
    found = load_evaluations(STORED / "run" / "evaluation.json")
    assert len(found) == len(values["evaluations"]) == 2
    for evaluation, expected in zip(found, values["evaluations"], strict=True):
        assert (evaluation.protocol, evaluation.queries, evaluation.database) == (
            expected["protocol"], expected["queries"], expected["database"],
        )  # fmt: skip
        assert evaluation.fingerprints == expected["fingerprints"]
        assert {name: evaluation.floor(name) for name in evaluation.floors} == expected["floors"]
        means = {
            f"{metric} | {direction} | {bits}": evaluation.mean(metric, direction, bits)
            for metric, direction, bits in evaluation.values
        }
        assert means == expected["means"]
        assert NDCG.under("IDF") in evaluation.metrics and MAP.at(5) in evaluation.metrics
        for key, value in expected["map of the first query"].items():
            direction, bits = key.split(" | ")
            assert evaluation.of(MAP, direction, int(bits))[0] == value
        assert set(evaluation.curves) == {(direction, bits) for direction in ("i2t", "t2i") for bits in (8, 16)}


def test_a_run_that_is_measured_again_has_the_stored_values(run, store):
    measured = measure(run, store, at=5).evaluations
    for evaluation, stored in zip(measured, load_evaluations(STORED / "run" / "evaluation.json"), strict=True):
        for name in ("run", "data"):  # that of a split was of its seed too
            assert evaluation.fingerprints[name] == stored.fingerprints[name]
        names = {metric.name for metric in PAIRS}  # newer than the stored files
        again = {key: found for key, found in evaluation.values.items() if key[0].name not in names}
        assert {key for key in stored.values if not key[0].reference} == set(again)
        for key, found in again.items():
            np.testing.assert_array_equal(found, stored.values[key])
        for name, found in evaluation.floors.items():
            np.testing.assert_array_equal(found, stored.floors[name])


def test_stored_references_are_parsed_to_metrics():
    (whole, _) = load_evaluations(STORED / "run" / "evaluation.json")
    assert whole.references == [GradedRelevance.idf(np.ones((1, 1))).name]
    assert all(Metric.parse(str(metric)) == metric for metric in whole.metrics)


def test_codes_for_other_tools(run, store, tmp_path):
    write_codes(run, store, tmp_path / "codes.npz", 8)
    with np.load(STORED / "codes.npz") as stored, np.load(tmp_path / "codes.npz") as written:
        assert sorted(stored.files) == sorted(written.files)
        for name in stored.files:
            np.testing.assert_array_equal(written[name], stored[name])
