"""`multibit variants`, `train --variant` and `reproduce` as people use them."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from commands import Words, cli, done, refused
from conftest import plant
from multibit import Run
from multibit.errors import MissingExtraError
from multibit.hashing.variants import VARIANTS
from multibit.relation import TEACHERS
from multibit.report import reproduction
from multibit.report.paper import TABLES
from multibit.report.reproduce import FIGURE_NAMES

GOLDEN = Path(__file__).parent / "golden"
TINY = [f"--set={each}" for each in ("epochs=1", "lengths=8,16", "scales=2", "hidden=16", "dimension=8")]


@pytest.fixture(autouse=True)
def quick_words(monkeypatch):
    monkeypatch.setattr(reproduction, "load_text_encoder", Words)


def assert_golden(name, text):
    """Compare with a stored text; MULTIBIT_UPDATE_GOLDEN=1 stores what is there now."""
    path = GOLDEN / f"{name}.txt"
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if os.environ.get("MULTIBIT_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is missing; look at the output, then make it with MULTIBIT_UPDATE_GOLDEN=1"
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture
def labels_npz(tmp_path):
    """200 planted items, their labels only, under a name of their own."""
    path = tmp_path / "labels.npz"
    np.savez(path, L8=plant(200)["labels"], label_names=[f"topic {i}" for i in range(8)])
    return path


# ---- variants -------------------------------------------------------------------------------------------------------


def test_the_variants_read_as_stored():
    printed = done("variants")
    assert_golden("variants", printed)
    assert all(name in printed for name in [*VARIANTS, *TEACHERS])


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "separate"])
def test_each_variant_trains_by_its_name(name, planted_npz, tmp_path):
    printed = done("train", planted_npz, "--out", tmp_path / "run", "--variant", name, *TINY)
    run = Run.load(tmp_path / "run")
    assert re.search(r"\nWrote .*run: 16-bit code, best epoch 1 \(largest validation mean mAP\)\n", printed)
    assert {key: run.config.to_dict()[key] for key in VARIANTS[name].settings} == dict(VARIANTS[name].settings)


def test_separate_models_lie_in_a_folder_for_each_length(planted_npz, tmp_path):
    printed = done("train", planted_npz, "--out", tmp_path / "runs", "--variant", "separate", *TINY)
    runs = {bits: Run.load(tmp_path / "runs" / str(bits)) for bits in (8, 16)}
    assert {bits: run.model.bits for bits, run in runs.items()} == {8: 8, 16: 16}
    lines = [line for line in printed.splitlines() if line.startswith("Wrote")]
    assert [line.split(":")[1].split(",")[0] for line in lines] == [" 8-bit code", " 16-bit code"]
    runs[8].require_same_split(runs[16])


def test_separate_models_go_on_after_an_interruption(planted_npz, tmp_path):
    command = ("train", planted_npz, "--out", tmp_path / "runs", "--variant", "separate", *TINY)
    done(*command)
    shutil.rmtree(tmp_path / "runs" / "16")  # as if stopped before the second model
    first = Run.load(tmp_path / "runs" / "8").record
    done(*command)
    assert Run.load(tmp_path / "runs" / "8").record == first and Run.load(tmp_path / "runs" / "16").model.bits == 16


def test_a_single_setting_is_stronger_than_the_variant(planted_npz, tmp_path):
    chosen = ["--variant", "single-scale", "--set", "teacher=umh"]
    done("train", planted_npz, "--out", tmp_path / "run", *TINY, *chosen)
    assert Run.load(tmp_path / "run").config.teacher == "umh"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--variant", "half"], "Error: variant: 'half' is unknown; there are full, multibit-plus, baseline"),
        (["--set", "teacher=oracle"], "Error: teacher: 'oracle' is unknown; there are frt, binary, jaccard"),
        (["--variant", "frt", "--set", "scale_weight=1"], "Error: scale_weight: a single block has no scales, so it"),
        (["--variant", "baseline", "--set", "binary_weight=1"], "Error: binary_weight, within_weight, consist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_trained_is_refused_with_a_sentence(options, sentence, planted_npz, tmp_path):
    assert refused("train", planted_npz, "--out", tmp_path / "run", *TINY, *options).startswith(sentence)
    assert not (tmp_path / "run").exists()


# ---- reproduce ------------------------------------------------------------------------------------------------------


def test_the_list_of_tables_reads_as_stored(tmp_path):
    printed = done("reproduce", "--table", "list", "--out", tmp_path / "none")
    assert_golden("reproduce-list", printed)
    assert all(name in printed for name in [*TABLES, *FIGURE_NAMES]) and not (tmp_path / "none").exists()


def test_tables_of_labels_read_as_stored(labels_npz, tmp_path):
    tables = [f"--table={name}" for name in ("data-split", "scale-coverage", "quadrature-fidelity")]
    chosen = [labels_npz, "--labels-key", "L8", "--preset", "mirflickr", *tables, "--out", tmp_path / "out"]
    printed = done("reproduce", *chosen).replace(str(tmp_path), "FOLDER")
    assert_golden("reproduce-labels", printed)


def test_one_table_is_printed_and_written_and_its_run_is_kept(planted_npz, tmp_path):
    command = ("reproduce", planted_npz, "--out", tmp_path / "out", "--table", "main-comparison", *TINY)
    first, again = done(*command), done(*command)
    assert "mAP@all in percent" in first and "Training full: " in first and "Training" not in again
    assert first.endswith(again)
    assert sorted(path.name for path in (tmp_path / "out" / "tables").iterdir()) == [
        f"main-comparison.{ending}" for ending in ("csv", "md", "tex")
    ]
    (run,) = (tmp_path / "out" / "runs").iterdir()
    inside = Run.load(run)
    (rows,) = [(tmp_path / "out" / "tables" / "main-comparison.csv").read_text().splitlines()]
    evaluated = inside.evaluate(inside.open_features())[0]
    expected = [f"{100 * evaluated.mean('mAP', 'i2t', bits):.2f}" for bits in (8, 16)]
    assert rows[:2] == [",8,16", f"image-to-text,{','.join(expected)}"]


def test_a_table_named_twice_is_made_once(planted_npz, tmp_path):
    chosen = ["--table", "data-split", "--table", "data-split"]
    printed = done("reproduce", planted_npz, "--out", tmp_path / "out", *chosen, *TINY)
    assert printed.count("Data split") == 1 and printed.endswith("1 table now\n")


def test_seeds_give_mean_and_deviation(planted_npz, tmp_path):
    chosen = ["--table", "main-comparison", "--seeds", "1, 2", *TINY]
    done("reproduce", planted_npz, "--out", tmp_path / "out", *chosen)
    text = (tmp_path / "out" / "reproduction.md").read_text(encoding="utf-8")
    assert re.search(r"\| image-to-text \| \d+\.\d\d ± \d+\.\d\d \|", text) and "seeds 1, 2" in text
    assert sorted(Run.load(run).config.seed for run in (tmp_path / "out" / "runs").iterdir()) == [1, 2]


def test_a_figure_is_drawn(planted_npz, tmp_path):
    done("reproduce", planted_npz, "--out", tmp_path / "out", "--table", "cross-length-stability", *TINY)
    assert {path.suffix for path in (tmp_path / "out" / "figures").iterdir()} == {".png", ".pdf"}


def test_labels_alone_say_what_is_left_out(labels_npz, tmp_path):
    tables = ["--table=data-split", "--table=main-comparison", "--table=deployment-cost"]
    result = cli("reproduce", labels_npz, "--labels-key", "L8", "--out", tmp_path / "out", *tables)
    printed = result.stdout
    assert result.exit_code == 1  # a table that was asked for by name is not there
    assert (
        "Left out: main-comparison, deployment-cost. It needs features, and this data set has labels only." in printed
    )


def test_a_figure_that_was_asked_for_and_is_not_there_is_a_failure(labels_npz, tmp_path):
    tables = ["--table=data-split", "--table=deployment-cost"]
    assert cli("reproduce", labels_npz, "--labels-key", "L8", "--out", tmp_path / "out", *tables).exit_code == 1
    assert cli("reproduce", labels_npz, "--labels-key", "L8", "--out", tmp_path / "out").exit_code == 0


def test_labels_without_names_leave_the_label_name_evaluator_out(tmp_path):
    np.savez(tmp_path / "bare.npz", labels=plant(200)["labels"])
    tables = ["--table=teacher-aligned", "--table=resolution-label-names"]
    printed = cli("reproduce", tmp_path / "bare.npz", "--out", tmp_path / "out", *tables).stdout
    assert "No label-name evaluator: semantic relevance needs the names of the labels" in printed
    assert "Left out: resolution-label-names. semantic relevance needs the names of the labels" in printed
    assert "IDF" in printed and (tmp_path / "out" / "tables" / "teacher-aligned.md").exists()


def no_encoder(name):
    raise MissingExtraError("sentence_transformers", extra="offline", need="the packaged text encoder")


def test_a_table_that_needs_a_missing_encoder_says_what_to_install(planted_npz, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction, "load_text_encoder", no_encoder)
    command = ["reproduce", planted_npz, "--out", tmp_path / "out", "--table", "resolution-label-names", *TINY]
    result = cli(*command)
    assert "Traceback" not in result.output
    assert 'pip install "multibit[offline]"' in result.stderr + result.stdout


def test_what_to_install_is_printed_with_the_name_of_the_extra(labels_npz, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction, "load_text_encoder", no_encoder)
    chosen = ["--labels-key", "L8", "--table", "teacher-aligned", "--out", tmp_path / "out"]
    assert 'Install it with: pip install "multibit[offline]"' in done("reproduce", labels_npz, *chosen)


def test_quick_leaves_an_explicit_setting_alone(planted_npz, tmp_path):
    chosen = ["--quick", "--table", "main-comparison", "--out", tmp_path / "out"]
    done("reproduce", planted_npz, *chosen, *TINY)
    assert json.loads((tmp_path / "out" / "reproduction.json").read_text())["config"]["epochs"] == 1


def test_quick_trains_few_epochs(planted_npz, tmp_path):
    chosen = ["--quick", "--table", "data-split", "--out", tmp_path / "out"]
    done("reproduce", planted_npz, *chosen)
    assert json.loads((tmp_path / "out" / "reproduction.json").read_text())["config"]["epochs"] == 15


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--table", "table 3"], "Error: table: 'table 3' is unknown; there are parameters, data-split"),
        (["--seeds", "1,two"], "Error: --seeds 1,two: need whole numbers with commas between them."),
        (["--seeds", ""], "Error: seeds: need one or more different ones, got none."),
        (["--seeds", "-1", "--table", "main-comparison"], "Error: seed: must be at least 0, got -1."),
        (["--preset", "flickr"], "Error: preset: 'flickr' is unknown; there are default, mirflickr"),
        (["--set", "patience=3"], "Error: unknown setting patience; there are"),
        (
            ["--set", "teacher=umh"],
            "Error: teacher: the tables set it for each method, so it must be frt here, got umh",
        ),
        (["--set", "teacher=oracle"], "Error: teacher: the tables set it for each method, so it must be frt here"),
        (["--set", "binary_weight=1"], "Error: binary_weight: the tables set it for each method, so it must be 0.0"),
        (["--labels-key", "L24"], "Error: --labels-key L24: FOLDER/planted.npz has features, whose labels are known."),
        (["--device", "cuda"], "Error: device: cuda was asked for, but torch sees no GPU here. Use cpu."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_reproduced_is_refused_with_a_sentence(options, sentence, planted_npz, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = refused("reproduce", planted_npz, "--out", tmp_path / "out", *TINY, *options)
    assert said.replace(str(tmp_path), "FOLDER").startswith(sentence)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--seeds", "7,7"], "Error: seeds: need one or more different ones, got 7, 7."),
        (["--seeds", "1,two"], "Error: --seeds 1,two: need whole numbers with commas between them."),
        (["--set", "alignment=pairwise"], "Error: alignment: the tables set it for each method"),
        (["--labels-key", "L24"], "Error: --labels-key L24: names the labels in an .npz, got the sample."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_nothing_is_encoded_for_what_cannot_be_reproduced(options, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr("multibit.demo.sample_features", lambda *_, **__: pytest.fail("too late"))
    assert refused("reproduce", "--out", tmp_path / "out", *options).startswith(sentence)


def test_a_missing_key_says_which_arrays_there_are(labels_npz, tmp_path):
    said = refused("reproduce", labels_npz, "--out", tmp_path / "out")
    assert "no 'labels'; it has L8 (200, 8), label_names (8,). Name the labels with --labels-key." in said


def test_a_data_set_that_is_not_there_is_named(tmp_path):
    for name in ("none", "none.npz"):
        assert str(tmp_path / name) in refused("reproduce", tmp_path / name, "--out", tmp_path / "out")
