"""Items without labels: runs and codes made elsewhere are evaluated, compared and reported by pair recall alone."""

from __future__ import annotations

import numpy as np
import pytest

from commands import TINY, assert_names, done, refused
from conftest import plant
from multibit import Codes, Run, compare, load_evaluations, measurement
from multibit.errors import DataError
from multibit.evaluation import cost
from multibit.evaluation.metric import MAP, PAIR_RECALL, PAIRS
from multibit.evaluation.pair_recall import pair_recall
from multibit.search.code_files import CodeFile

SMALL = [*TINY, "--queries=20", "--training=60", "--validation=10"]
NEED_LABELS = ("accuracy", "resolution", "content", "strata")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs on features without labels, and the codes of the first without label keys."""
    folder = tmp_path_factory.mktemp("unlabelled")
    np.savez(folder / "plain.npz", **{**plant(120), "labels": np.zeros((120, 0), np.uint8)})
    for seed in (1, 2):
        done("train", folder / "plain.npz", "--out", folder / f"run{seed}", "--seed", seed, *SMALL)
    done("encode", folder / "run1", "--out", folder / "whole.npz")
    codes, split = np.load(folder / "whole.npz"), Run.load(folder / "run1").split
    six = {f"{side}_{short}": codes[modality][which] for side, which in (("q", split.query), ("r", split.database))
           for short, modality in (("img", "image"), ("txt", "text"))}  # fmt: skip
    np.savez(folder / "codes.npz", **six, bits=codes["bits"])
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(cost, "TIMED", 3)


def test_a_run_is_measured_by_pair_recall_alone(folder, tmp_path):
    said = done("evaluate", folder / "run1", "--no-report", "--out", tmp_path / "e.json")
    assert said.count(measurement.NO_LABELS) == 1 and "mAP@all" not in said
    (found,) = load_evaluations(tmp_path / "e.json")
    assert not found.labelled and found.headline == PAIR_RECALL and not found.floors and not found.curves
    assert {metric.name for metric in found.metrics} == {metric.name for metric in PAIRS}
    arrays = np.load(folder / "codes.npz")
    image, text = (Codes.from_bytes(arrays[key], 16) for key in ("q_img", "q_txt"))
    for bits in (8, 16):
        np.testing.assert_allclose(found.of("R@10", "i2t", bits), pair_recall(image, text, 10, bits), atol=1e-12)


def test_runs_are_compared_and_reported_in_recall(folder, tmp_path):
    report = tmp_path / "report"
    said = done(
        "evaluate", folder / "run1", "--against", folder / "run2", "--report", report, "--out", tmp_path / "e.json"
    )
    assert said.count(measurement.NO_LABELS) == 1
    names = {path.stem for path in (report / "tables").iterdir()}
    assert {"pair-recall-1", "pair-recall-2", "comparison-1", "agreement", "bits", "cost"} <= names
    assert not [name for name in names if name.startswith(NEED_LABELS)]
    page = (report / "report.html").read_text()
    assert page.count(measurement.NO_LABELS) == 1 and "R@10" in page
    assert "R@10" in (report / "tables" / "comparison-1.md").read_text().splitlines()[2]
    drawn = {path.stem for path in (report / "figures").iterdir()}
    assert "map-by-length" in drawn and not drawn & {"precision-recall", "precision-at-n", "distances-by-shared-labels"}
    (found,) = load_evaluations(tmp_path / "e.json")
    assert {"R@10 relaxed", "R@10 shared features"} <= set(map(str, found.metrics))  # the float ceiling


def test_codes_without_label_keys_have_the_numbers_of_their_run(folder, tmp_path):
    done("evaluate", folder / "run1", "--no-report", "--out", tmp_path / "run.json")
    said = done("evaluate", folder / "codes.npz", "--lengths=8,16", "--report", tmp_path / "report",
                "--out", tmp_path / "codes.json")  # fmt: skip
    assert said.count(measurement.NO_LABELS) == 1
    (mine,), (theirs,) = (load_evaluations(tmp_path / f"{name}.json") for name in ("run", "codes"))
    for key, values in mine.values.items():
        np.testing.assert_array_equal(theirs.values[key], values)
    said = done("evaluate", folder / "codes.npz", "--lengths=8,16", "--against", folder / "run1", "--no-report",
                "--out", tmp_path / "both.json")  # fmt: skip
    assert "compared with other runs in R@10" in said and "+0.00" in said


def test_codes_that_a_run_without_labels_writes_are_read(folder, tmp_path):
    done("encode", folder / "run1", "--out", tmp_path / "own.mat")
    done("evaluate", tmp_path / "own.mat", "--lengths=8,16", "--no-report", "--out", tmp_path / "own.json")
    done("evaluate", folder / "run1", "--no-report", "--out", tmp_path / "run.json")
    (mine,), (theirs,) = (load_evaluations(tmp_path / f"{name}.json") for name in ("own", "run"))
    np.testing.assert_array_equal(mine.of("R@10", "t2i", 16), theirs.of("R@10", "t2i", 16))


def test_codes_without_labels_are_compared_with_a_labelled_run_in_recall(folder, tmp_path):
    np.savez(tmp_path / "labelled.npz", **plant(120))
    done("train", tmp_path / "labelled.npz", "--out", tmp_path / "run", *SMALL)
    report = tmp_path / "report"
    said = done("evaluate", folder / "codes.npz", "--lengths=8,16", "--against", tmp_path / "run", "--report", report,
                "--out", tmp_path / "both.json")  # fmt: skip
    assert "compared with other runs in R@10" in said
    assert not list((report / "tables").glob("resolution*"))


@pytest.mark.parametrize("option", [["--at=5"], ["--save-dir=saved", "--no-report"]])
def test_what_needs_labels_is_refused_by_its_option(folder, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert option[0].split("=")[0] in refused("evaluate", folder / "run1", *option)
    assert not (tmp_path / "saved").exists()


def test_settings_are_those_of_the_method_that_is_trained(folder, tmp_path):
    done("train", folder / "plain.npz", "--out", tmp_path / "run", *SMALL, "--set=neighbours=2")
    run = Run.load(tmp_path / "run")
    assert (run.record.method, run.config.neighbours) == ("multibit-free", 2)
    said = refused("train", folder / "plain.npz", "--out", tmp_path / "new", "--set=colour=red")
    assert_names(said, "colour", "multibit-free", "neighbours")
    np.savez(tmp_path / "labelled.npz", **plant(120))
    said = refused("train", tmp_path / "labelled.npz", "--out", tmp_path / "new", "--set=neighbours=2")
    assert_names(said, "multibit-plus")


def test_one_label_key_alone_is_refused(folder, tmp_path):
    np.savez(tmp_path / "half.npz", **np.load(folder / "codes.npz"), q_l=np.ones((20, 3)))
    with pytest.raises(DataError) as caught:
        CodeFile.read(tmp_path / "half.npz")
    assert caught.value.field == "r_l"


def test_map_of_unlabelled_runs_cannot_be_compared(folder, tmp_path):
    done("evaluate", folder / "run1", "--no-report", "--out", tmp_path / "e.json")
    (found,) = load_evaluations(tmp_path / "e.json")
    assert compare(found, found).metric == PAIR_RECALL
    with pytest.raises(DataError) as caught:
        compare(found, found, metric=MAP)
    assert caught.value.field == "metric" or caught.value.option == "metric"
