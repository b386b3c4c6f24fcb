"""`multibit evaluate` of codes made elsewhere: numbers, report, comparison with runs, refusals."""

from __future__ import annotations

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io

from commands import Words, assert_names, done, refused, settings
from conftest import plant
from multibit import Codes, load_evaluations, mean_average_precision, measurement
from multibit.evaluation import cost
from multibit.evaluation.metric import MAP

SMALL = [*settings(epochs=2, lengths="8,16", scales=2, hidden=16, dimension=8), "--queries=20", "--training=60",
         "--validation=10"]  # fmt: skip
NAMES = [f"topic {i}" for i in range(8)]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(measurement, "load_text_encoder", Words)
    monkeypatch.setattr(cost, "TIMED", 3)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A run, its evaluation, and its codes in the field's files: nested.mat, and one per length and direction."""
    folder = tmp_path_factory.mktemp("exported")
    np.savez(folder / "ready.npz", **plant(200), label_names=NAMES)
    np.savez(folder / "stranger.npz", **plant(200, seed=1))
    for name, features, options in (
        ("run", "ready", []), ("short", "ready", ["--set=lengths=4,8"]), ("smaller", "ready", ["--queries=10"]),
        ("stranger", "stranger", []),
    ):  # fmt: skip
        small = [each for each in SMALL if not (options and each.startswith("--queries") and "queries" in options[0])]
        done("train", folder / f"{features}.npz", "--out", folder / name, *small, *options)
    done(
        "evaluate", folder / "run", "--no-report", "--save-dir", folder / "saved", "--at=5", "--out", folder / "e.json"
    )
    done("encode", folder / "run", "--out", folder / "nested.mat")
    return SimpleNamespace(
        folder=folder, run=folder / "run", saved=folder / "saved", evaluation=load_evaluations(folder / "e.json")[0]
    )


@pytest.fixture
def codes(exported, tmp_path):
    """A copy of the codes, for results next to them."""
    shutil.copy(exported.folder / "nested.mat", tmp_path / "nested.mat")
    shutil.copytree(exported.saved, tmp_path / "saved")
    return SimpleNamespace(nested=tmp_path / "nested.mat", saved=tmp_path / "saved", folder=tmp_path)


def assert_same_numbers(found, expected):
    assert found.lengths == expected.lengths and found.values.keys() == expected.values.keys()
    assert all(np.array_equal(found.values[key], expected.values[key], equal_nan=True) for key in found.values)
    assert np.array_equal(found.floors["random"], expected.floors["random"], equal_nan=True)
    for key, curve in expected.curves.items():
        assert np.array_equal(found.curves[key].precision, curve.precision, equal_nan=True)
        assert np.array_equal(found.curves[key].recall, curve.recall)


def test_codes_of_a_run_have_the_numbers_of_the_run(exported, codes):
    done("evaluate", codes.nested, "--lengths", "8,16", "--at", 5, "--no-report")
    done("evaluate", codes.saved, "--at", 5, "--no-report")
    for name in ("nested", "saved"):
        (found,) = load_evaluations(codes.folder / f"{name}-evaluation.json")
        assert_same_numbers(found, exported.evaluation)
        assert found.name == name and found.protocol == "the whole database"


@pytest.mark.slow
def test_the_numbers_are_printed_and_the_report_is_written_next_to_the_codes(codes):
    printed = done("evaluate", codes.saved)
    report = codes.folder / "saved-report"
    *_, page, values = printed.splitlines()
    assert page.startswith(f"Wrote {report / 'report.html'}: ")
    assert values.startswith(f"Wrote {codes.folder / 'saved-evaluation.json'}: ")
    assert printed.index("mAP@all, the whole database") < printed.index("Wrote")
    assert "most common labels first" not in printed and "random order" in printed
    tables = {path.stem for path in (report / "tables").iterdir()}
    assert tables == {"accuracy-1", "resolution-1", "pair-recall-1", "pair-recall-2", "agreement", "bits"}
    figures = {path.stem for path in (report / "figures").iterdir()}
    assert figures == {
        "map-by-length", "precision-recall", "precision-at-n", "rank-displacement", "distances-by-shared-labels",
        "bit-balance",
    }  # fmt: skip
    (evaluation,) = load_evaluations(codes.folder / "saved-evaluation.json")
    assert evaluation.references == ["IDF"]


@pytest.mark.slow
def test_a_report_of_one_length_compares_no_lengths(codes):
    done("evaluate", codes.nested)
    report = codes.folder / "nested-report"
    assert {path.stem for path in (report / "tables").iterdir()} == {
        "accuracy-1", "resolution-1", "pair-recall-1", "pair-recall-2", "bits",
    }  # fmt: skip
    assert "whole code" in (report / "tables" / "bits.md").read_text()
    assert not (report / "figures" / "rank-displacement.png").exists()


@pytest.mark.slow
def test_label_names_add_the_label_name_evaluator(codes):
    (codes.folder / "names.txt").write_text("\n".join(NAMES))
    done("evaluate", codes.nested, "--label-names", codes.folder / "names.txt")
    (evaluation,) = load_evaluations(codes.folder / "nested-evaluation.json")
    assert evaluation.references == ["IDF", "label names"]


@pytest.mark.slow
def test_outputs_go_where_they_are_wanted(codes):
    done("evaluate", codes.nested, "--report", codes.folder / "r", "--out", codes.folder / "e.json")
    assert {path.name for path in codes.folder.iterdir()} == {
        "nested.mat", "saved", "r", "e.json", "e.parquet"
    }  # fmt: skip


def test_class_numbers_are_reported(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {key: rng.choice([-1, 1], (n, 8)) for key, n in
              {"q_img": 5, "q_txt": 5, "r_img": 30, "r_txt": 30}.items()}  # fmt: skip
    labels = rng.integers(1, 4, 35)
    scipy.io.savemat(tmp_path / "codes.mat", {**arrays, "q_l": labels[:5], "r_l": labels[5:]})
    printed = done("evaluate", tmp_path / "codes.mat")
    notes = [line for line in printed.splitlines() if line.startswith("Note: ")]
    assert len(notes) == 1
    assert_names(notes[0], tmp_path / "codes.mat", "3 classes")
    page = (tmp_path / "codes-report" / "report.html").read_text(encoding="utf-8")
    assert "3 classes" in page
    one_hot = labels[:, None] == [1, 2, 3]
    expected = mean_average_precision(
        Codes.from_bits(arrays["q_txt"] >= 0), Codes.from_bits(arrays["r_img"] >= 0), one_hot[:5], one_hot[5:]
    )
    (evaluation,) = load_evaluations(tmp_path / "codes-evaluation.json")
    assert evaluation.mean(MAP, "t2i", 8) == expected


# Comparison with runs


@pytest.mark.slow
def test_codes_compared_with_their_own_run_are_all_ties(exported, codes):
    printed = done("evaluate", codes.saved, "--against", exported.run, "--markdown")
    rows = [line for line in printed.splitlines() if re.search(r"\| (8|16) \| run \|", line)]
    assert len(rows) == 4
    assert all("| +0.00 | +0.00 to +0.00 | 0.0 | 100.0 | 0.0 | 1.0000 |" in row for row in rows)
    (found,) = load_evaluations(codes.folder / "saved-evaluation.json")
    assert found.protocol == exported.evaluation.protocol
    report = codes.folder / "saved-report" / "tables"
    assert {"comparison-1", "cost", "accuracy-1"} <= {path.stem for path in report.iterdir()}
    lines = (report / "resolution-1.csv").read_text().splitlines()[1:]
    assert {line.split(",")[0] for line in lines} == {"IDF", "label names"}
    for mine, theirs in zip(lines[::2], lines[1::2], strict=True):
        assert mine.split(",")[3:] == theirs.split(",")[3:]


def test_codes_of_fewer_lengths_are_compared_at_those(exported, codes):
    printed = done("evaluate", codes.nested, "--against", exported.run, "--lengths", 8, "--markdown", "--no-report")
    assert re.findall(r"\| (\d+) \| run \|", printed) == ["8", "8"]
    assert f"{100 * exported.evaluation.mean(MAP, 'i2t', 8):.2f}" in printed


def test_a_run_with_shorter_codes_is_refused(exported, codes):
    said = refused("evaluate", codes.nested, "--against", exported.folder / "short")
    assert_names(said, exported.folder / "short", "8 bits", "16 bits", "--lengths")


def test_a_run_on_other_queries_is_refused_with_both_numbers_before_the_work(exported, codes, monkeypatch):
    monkeypatch.setattr(measurement, "encode_store", lambda *_, **__: pytest.fail("too late"))
    said = refused("evaluate", codes.nested, "--against", exported.run, "--against", exported.folder / "smaller")
    assert_names(said, exported.folder / "smaller", codes.nested, "10 rows", "20 rows")
    assert {path.name for path in codes.folder.iterdir()} == {"nested.mat", "saved"}


def test_a_run_on_other_labels_is_refused_with_the_row(exported, codes):
    said = refused("evaluate", codes.nested, "--against", exported.folder / "stranger")
    assert_names(said, exported.folder / "stranger", codes.nested, "row ", "q_l")


# Refusals


def test_options_without_effect_are_refused(exported, codes, tmp_path):
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    for options, option in (
        (["--save-dir", tmp_path / "new"], "--save-dir"),
        ([exported.folder / "ready.npz"], "FEATURES"),
        (["--against", exported.run, "--label-names", tmp_path / "names.txt"], "--label-names"),
        (["--report", tmp_path / "r", "--no-report"], "--report"),
        (["--lengths", "8,x"], "--lengths"),
        (["--lengths", "8,17"], "--lengths"),
    ):
        assert_names(refused("evaluate", codes.nested, *options), option)
    for options in (["--lengths", "8"], ["--label-names", tmp_path / "names.txt"]):
        assert_names(refused("evaluate", exported.run, *options), options[0])


def test_label_names_that_do_not_fit_are_refused_before_the_work(codes, monkeypatch):
    monkeypatch.setattr(measurement, "Rankings", lambda *_, **__: pytest.fail("too late"))
    (codes.folder / "names.txt").write_text("a\nb")
    said = refused("evaluate", codes.nested, "--label-names", codes.folder / "names.txt")
    assert_names(said, "--label-names", "2 names", "8 label columns")


@pytest.mark.parametrize("name", ["gone.mat", "gone.npz"])
def test_a_missing_file_is_refused(tmp_path, name):
    assert_names(refused("evaluate", tmp_path / name), tmp_path / name, "no such file")


def test_a_folder_with_neither_a_run_nor_codes_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    assert_names(refused("evaluate", tmp_path / "empty"), tmp_path / "empty")


def test_a_file_of_other_content_is_refused(exported):
    said = refused("evaluate", exported.folder / "ready.npz")
    assert_names(said, exported.folder / "ready.npz", "q_img", "image (200, 24)")


def test_codes_do_not_replace_another_file(codes):
    (codes.folder / "nested-evaluation.json").write_text(json.dumps({"mine": 1}))
    assert_names(refused("evaluate", codes.nested, "--no-report"), codes.folder / "nested-evaluation.json")


def test_info_describes_codes_made_elsewhere(codes):
    arrays = {key: value for key, value in scipy.io.loadmat(codes.nested).items() if key[0] != "_"}
    np.savez(codes.folder / "nested.npz", **arrays)
    one, other, several = (done("info", path) for path in (codes.nested, codes.nested.with_suffix(".npz"), codes.saved))
    assert one == other and re.search(r"(?m)^code: +16 bits$", one)
    assert re.search(r"(?m)^code: +8, 16 bits$", several)
    assert re.search(r"(?m)^items: +20 queries, [0-9]+ in the database$", several)
