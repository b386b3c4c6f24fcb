"""Evaluations on disk: they are read back equal, and corrupt files are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest

from multibit.codes import Codes
from multibit.codes.items import CodedItems
from multibit.errors import DataError, FormatError
from multibit.evaluation.metric import MAP
from multibit.evaluation.protocol import evaluate
from multibit.evaluation.relevance import GradedRelevance
from multibit.evaluation.storage import load_evaluations, save_evaluations


def coded(items, seed):
    rng = np.random.default_rng(seed)
    labels = (rng.random((items, 5)) < 0.3).astype(np.uint8)
    image, text = (Codes.from_bits(rng.integers(0, 2, size=(items, 12))) for _ in range(2))
    return CodedItems(image, text, labels)


@pytest.fixture
def measured():
    """Two protocols; some queries have no label, so values of every metric are undefined."""
    query, database = coded(9, 1), coded(40, 2)
    query.labels[2:4] = 0
    graded = [GradedRelevance.idf(database.labels)]
    settings = {"training_labels": database.labels, "graded": graded, "at": 3, "name": "run é"}
    return [
        evaluate(query, database, (4, 12), protocol="all", fingerprints={"run": "a1", "data": "b2"}, **settings),
        evaluate(query, database.take(np.arange(20)), (4, 12), protocol="new", **settings),
    ]


def test_evaluations_are_read_back_equal(measured, tmp_path):
    written = save_evaluations(tmp_path / "e.json", measured)
    assert written == [tmp_path / "e.json", tmp_path / "e.parquet"]
    found = load_evaluations(tmp_path / "e.json")
    assert found == measured
    for mine, theirs in zip(found, measured, strict=True):
        assert list(mine.values) == list(theirs.values)
        assert all(mine.values[key].dtype == np.float64 for key in mine.values)
        assert (mine.name, mine.fingerprints) == (theirs.name, theirs.fingerprints)
        assert np.isnan(mine.values[MAP, "i2t", 4]).sum() == 2
        for key, curve in theirs.curves.items():
            np.testing.assert_array_equal(mine.curves[key].precision, curve.precision)
            np.testing.assert_array_equal(mine.curves[key].recall, curve.recall)


def test_a_single_evaluation_is_read_back(tmp_path, measured):
    save_evaluations(tmp_path / "e.json", measured[:1])
    assert len(load_evaluations(tmp_path / "e.json")) == 1


def test_evaluations_differ_when_anything_in_them_does(measured):
    one = measured[0]
    key = MAP, "t2i", 12
    values = {**one.values, key: one.values[key] + np.eye(9)[0] * 1e-15}
    others = [
        measured[1], replace(one, name="other"), replace(one, fingerprints={}), replace(one, values=values),
        replace(one, curves={}), replace(one, floors={**one.floors, "random": one.floors["random"] * 2}), "text",
    ]  # fmt: skip
    assert all(one != other for other in others)
    assert one == replace(one, values=dict(one.values))


def test_the_parquet_file_has_a_row_per_value(measured, tmp_path):
    save_evaluations(tmp_path / "e.json", measured)
    rows = pyarrow.parquet.read_table(tmp_path / "e.parquet").to_pylist()
    assert list(rows[0]) == ["evaluation", "protocol", "metric", "direction", "bits", "query", "value"]
    found = {tuple(row.values())[:6]: row["value"] for row in rows}
    assert len(found) == len(rows)
    for number, evaluation in enumerate(measured):
        streams = {(str(metric), direction, bits): v for (metric, direction, bits), v in evaluation.values.items()}
        streams |= {(f"floor {name}", "", 0): v for name, v in evaluation.floors.items()}
        for key, values in streams.items():
            for query, value in enumerate(values.tolist()):
                row = number, evaluation.protocol, *key, query
                assert found.pop(row) == pytest.approx(value, abs=0, nan_ok=True)
    assert not found


def test_the_same_evaluations_are_the_same_bytes(measured, tmp_path):
    for name in ("a", "b"):
        save_evaluations(tmp_path / f"{name}.json", measured)
    for ending in ("json", "parquet"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


@pytest.mark.parametrize("name", ["e.parquet", "e", "e.txt"])
def test_a_name_that_does_not_end_in_json_is_refused(measured, tmp_path, name):
    with pytest.raises(DataError) as caught:
        save_evaluations(tmp_path / name, measured)
    assert caught.value.file == tmp_path / name
    assert not list(tmp_path.iterdir())


def test_a_parquet_file_of_other_values_is_refused(measured, tmp_path):
    save_evaluations(tmp_path / "e.json", measured)
    save_evaluations(tmp_path / "other.json", measured[:1])
    (tmp_path / "other.parquet").replace(tmp_path / "e.parquet")
    with pytest.raises(FormatError) as caught:
        load_evaluations(tmp_path / "e.json")
    assert caught.value.file == tmp_path / "e.parquet"


def test_a_folder_is_refused_and_its_json_files_are_listed(measured, tmp_path):
    with pytest.raises(FormatError) as caught:
        load_evaluations(tmp_path)
    assert caught.value.file == tmp_path
    assert "evaluation.json" not in str(caught.value)
    save_evaluations(tmp_path / "evaluation.json", measured)
    with pytest.raises(FormatError) as caught:
        load_evaluations(tmp_path)
    assert caught.value.file == tmp_path
    assert "evaluation.json" in str(caught.value)


def test_a_missing_file_is_refused(measured, tmp_path):
    save_evaluations(tmp_path / "e.json", measured)
    (tmp_path / "e.parquet").unlink()
    with pytest.raises(FormatError) as caught:
        load_evaluations(tmp_path / "e.json")
    assert caught.value.file == tmp_path / "e.parquet"
    with pytest.raises(FormatError) as caught:
        load_evaluations(str(tmp_path / "nothing.json"))
    assert "nothing.json" in str(caught.value)


@pytest.mark.parametrize("lost", ["protocol", "lengths", "curves", "name", "fingerprints"])
def test_a_file_without_a_field_is_refused(measured, tmp_path, lost):
    save_evaluations(tmp_path / "e.json", measured)
    content = json.loads((tmp_path / "e.json").read_text(encoding="utf-8"))
    del content["evaluations"][1][lost]
    (tmp_path / "e.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(FormatError) as caught:
        load_evaluations(tmp_path / "e.json")
    assert caught.value.file == tmp_path / "e.json"
    assert lost in str(caught.value)
