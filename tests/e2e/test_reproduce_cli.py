"""`multibit methods`, `train --method` and `reproduce` on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from commands import TINY, Words, assert_golden, assert_names, cli, done, refused, settings
from conftest import plant
from multibit import METHODS, ConfigError, MissingExtraError, Run, evaluate_run, measurement, open_features
from multibit.machine import processors
from multibit.paper.figures import FIGURES
from multibit.paper.tables import TABLES
from multibit.relation import TEACHERS

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def quick_words(monkeypatch):
    monkeypatch.setattr(measurement, "load_text_encoder", Words)


@pytest.fixture
def labels_npz(tmp_path):
    """Only the labels of 200 planted items, under another key."""
    path = tmp_path / "labels.npz"
    np.savez(path, L8=plant(200)["labels"], label_names=[f"topic {i}" for i in range(8)])
    return path


# ---- methods --------------------------------------------------------------------------------------------------------


def test_the_methods_read_as_stored():
    printed = done("methods")
    assert_golden(GOLDEN / "methods.txt", printed)
    assert all(name in printed for name in [*METHODS, *TEACHERS])


def small(name):
    """Options of a training with a method that takes no time, of those that it has."""
    known = (*TINY, *settings(batch_size=16))
    return [each for each in known if hasattr(METHODS[name].defaults, each.split("=")[1])]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.inputs == "pooled"])
def test_each_method_trains_by_its_name(name, made, tmp_path):
    """Those that read tokens: tests/methods/test_tokens_cli.py."""
    printed = done("train", made / "features", "--out", tmp_path / "run", "--method", name, *small(name))
    run = Run.load(tmp_path / "run")
    assert run.record.method == name
    if METHODS[name].lengths != "nested":
        assert "one code for each length, 8, 16 bits; 24 bits stored per image or text" in printed
    elif not METHODS[name].fit:
        said = rf"\nWrote .*run: 16-bit code, best epoch 1 \(largest validation mean {METHODS[name].measure}\)\n"
        assert re.search(said, printed)
    assert {key: run.config.to_dict()[key] for key in METHODS[name].settings} == dict(METHODS[name].settings)


SERVED = {(method.lengths, method.fit is None): name for name, method in METHODS.items() if method.inputs == "pooled"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for (lengths, _), name in SERVED.items() if lengths != "nested"])
def test_a_method_with_a_code_for_each_length_is_served_from_one_run_folder(name, made, letters, tmp_path):
    """Evaluation, codes for other tools, index and search at every length, of one method of each kind."""
    run = tmp_path / "run"
    done("train", made / "features", "--out", run, "--method", name, *small(name))
    assert "24 bits stored" in done("info", run)
    report = [] if METHODS[name].fit is not None else ["--no-report"]  # drawn for one kind: it has no other input
    assert "8 bits" in done("evaluate", run, *report)
    assert (run / "report" / "report.html").exists() == (not report)
    for bits in (8, 16):
        done("encode", run, "--out", tmp_path / f"{bits}.npz", "--bits", bits)
        assert np.load(tmp_path / f"{bits}.npz")["image"].shape == (60, bits // 8)
    done("index", run)
    assert sorted(path.name for path in (run / "index").iterdir()) == [
        "image-16.mbx", "image-8.mbx", "text-16.mbx", "text-8.mbx",
    ]  # fmt: skip
    for bits in (5, 8, 12, 16):
        assert len(done("search", run, "text 3", "--as", "text", "--bits", bits, "-k", 3, "--json").splitlines()) == 3
    assert_names(refused("search", run, "text 3", "--as", "text", "--bits", 17), "--bits", 16, 17)


def test_a_command_trains_a_model_for_each_length_on_all_processors(made, tmp_path, monkeypatch):
    given = {}

    def create(*_, **named):
        given.update(named)
        raise ConfigError("not trained.")

    monkeypatch.setattr(Run, "create", create)
    refused("train", made / "ready.npz", "--out", tmp_path / "run", "--method", "separate", *TINY)
    assert given["workers"] == processors()


def test_a_single_setting_overrides_the_method(planted_npz, tmp_path):
    chosen = ["--method", "single-scale", "--set", "teacher=umh"]
    done("train", planted_npz, "--out", tmp_path / "run", *TINY, *chosen)
    assert Run.load(tmp_path / "run").config.teacher == "umh"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--method half", "--method 'half' multibit, multibit-plus, baseline"),
        ("--set teacher=oracle", "teacher 'oracle' frt, binary, jaccard"),
        ("--method frt --set scale_weight=1", "scale_weight 0 1"),
        ("--method baseline --set binary_weight=1", "binary_weight aligned"),
    ],
)
def test_a_bad_method_or_setting_is_refused(options, named, planted_npz, tmp_path):
    said = refused("train", planted_npz, "--out", tmp_path / "run", *TINY, *options.split())
    assert_names(said, *named.replace(",", "").split())
    assert not (tmp_path / "run").exists()


# ---- reproduce ------------------------------------------------------------------------------------------------------


def test_the_list_of_tables_reads_as_stored(tmp_path):
    printed = done("reproduce", "--list", "--out", tmp_path / "none")
    assert_golden(GOLDEN / "reproduce-list.txt", printed)
    assert all(name in printed for name in [*TABLES, *FIGURES]) and not (tmp_path / "none").exists()


def test_tables_of_labels_read_as_stored(labels_npz, tmp_path):
    tables = [f"--table={name}" for name in ("data-split", "scale-coverage", "quadrature-fidelity")]
    chosen = [labels_npz, "--labels-key", "L8", "--preset", "mirflickr", *tables, "--out", tmp_path / "out"]
    printed = done("reproduce", *chosen).replace(str(tmp_path), "FOLDER")
    assert_golden(GOLDEN / "reproduce-labels.txt", printed)


@pytest.mark.slow
def test_one_table_is_printed_and_written_and_its_run_is_kept(planted_npz, tmp_path):
    command = ("reproduce", planted_npz, "--out", tmp_path / "out", "--table", "main-comparison", *TINY)
    first, again = done(*command), done(*command)
    assert "mAP@all in percent" in first and "Training multibit: " in first and "Training" not in again
    assert first.endswith(again)
    assert sorted(path.name for path in (tmp_path / "out" / "tables").iterdir()) == [
        f"main-comparison.{ending}" for ending in ("csv", "md", "tex")
    ]
    (run,) = (tmp_path / "out" / "runs").iterdir()
    inside = Run.load(run)
    (rows,) = [(tmp_path / "out" / "tables" / "main-comparison.csv").read_text().splitlines()]
    evaluated = evaluate_run(inside, open_features(inside))[0]
    expected = [f"{100 * evaluated.mean('mAP', 'i2t', bits):.2f}" for bits in (8, 16)]
    assert rows[:2] == [",8,16", f'"MultiBit, image-to-text",{",".join(expected)}']


def test_a_table_named_twice_is_made_once(planted_npz, tmp_path):
    chosen = ["--table", "data-split", "--table", "data-split"]
    printed = done("reproduce", planted_npz, "--out", tmp_path / "out", *chosen, *TINY)
    assert printed.count("Data split") == 1 and printed.endswith("1 table now\n")


@pytest.mark.slow
def test_seeds_give_mean_and_deviation(planted_npz, tmp_path):
    chosen = ["--table", "main-comparison", "--seeds", "1, 2", *TINY]
    done("reproduce", planted_npz, "--out", tmp_path / "out", *chosen)
    text = (tmp_path / "out" / "reproduction.md").read_text(encoding="utf-8")
    assert re.search(r"\| MultiBit, image-to-text \| \d+\.\d\d ± \d+\.\d\d \|", text) and "seeds 1, 2" in text
    assert sorted(Run.load(run).config.seed for run in (tmp_path / "out" / "runs").iterdir()) == [1, 2]


@pytest.mark.slow
def test_a_figure_is_drawn(planted_npz, tmp_path):
    done("reproduce", planted_npz, "--out", tmp_path / "out", "--table", "cross-length-stability", *TINY)
    assert {path.suffix for path in (tmp_path / "out" / "figures").iterdir()} == {".png", ".pdf", ".json"}


@pytest.mark.slow
def test_labels_alone_say_what_is_left_out(labels_npz, tmp_path):
    tables = ["--table=data-split", "--table=main-comparison", "--table=deployment-cost"]
    result = cli("reproduce", labels_npz, "--labels-key", "L8", "--out", tmp_path / "out", *tables)
    assert result.code == 1  # a table that was named is not there
    assert "Left out: main-comparison, deployment-cost. " in result.out


@pytest.mark.slow
def test_a_named_figure_that_cannot_be_drawn_is_a_failure(labels_npz, tmp_path):
    tables = ["--table=data-split", "--table=deployment-cost"]
    assert cli("reproduce", labels_npz, "--labels-key", "L8", "--out", tmp_path / "out", *tables).code == 1
    assert cli("reproduce", labels_npz, "--labels-key", "L8", "--out", tmp_path / "out").code == 0


@pytest.mark.slow
def test_labels_without_names_leave_the_label_name_evaluator_out(tmp_path):
    np.savez(tmp_path / "bare.npz", labels=plant(200)["labels"])
    tables = ["--table=teacher-aligned", "--table=resolution-label-names"]
    printed = cli("reproduce", tmp_path / "bare.npz", "--out", tmp_path / "out", *tables).out
    assert "No label-name evaluator: " in printed and "Left out: resolution-label-names. " in printed
    assert "IDF" in printed and (tmp_path / "out" / "tables" / "teacher-aligned.md").exists()


def no_encoder(name):
    raise MissingExtraError("sentence_transformers", extra="offline", need="The packaged text encoder")


def test_a_table_that_needs_a_missing_encoder_says_what_to_install(planted_npz, tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "load_text_encoder", no_encoder)
    command = ["reproduce", planted_npz, "--out", tmp_path / "out", "--table", "resolution-label-names", *TINY]
    result = cli(*command)
    assert 'pip install "multibit[offline]"' in result.err + result.out


def test_what_to_install_is_printed_with_the_name_of_the_extra(labels_npz, tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "load_text_encoder", no_encoder)
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
    ("options", "named"),
    [
        (["--table", "table 3"], ["table", "'table 3'", "parameters"]),
        (["--seeds", "1,two"], ["--seeds", "'1,two'"]),
        (["--seeds", ""], ["seeds"]),
        (["--seeds", "-1", "--table", "main-comparison"], ["seed", 0, -1]),
        (["--set", "seed=1"], ["seed", "--seeds"]),
        (["--preset", "flickr"], ["preset", "flickr", "mirflickr"]),
        (["--set", "patience=3"], ["patience", "epochs"]),
        (["--set", "teacher=umh"], ["teacher", "frt", "umh"]),
        (["--set", "teacher=oracle"], ["teacher", "frt", "oracle"]),
        (["--set", "binary_weight=1"], ["binary_weight", "0.0", "1"]),
        (["--labels-key", "L24"], ["--labels-key", "planted.npz"]),
        (["--device", "cuda"], ["--device", "cuda"]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_a_bad_reproduction_is_refused(options, named, planted_npz, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert_names(refused("reproduce", planted_npz, "--out", tmp_path / "out", *TINY, *options), *named)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--seeds", "7,7"], ["seeds", "7, 7"]),
        (["--seeds", "1,two"], ["--seeds", "'1,two'"]),
        (["--set", "alignment=pairwise"], ["alignment", "pairwise"]),
        (["--labels-key", "L24"], ["--labels-key", "sample"]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_a_bad_reproduction_is_refused_before_the_work(options, named, tmp_path, monkeypatch):
    monkeypatch.setattr("multibit.demo.sample_features", lambda *_, **__: pytest.fail("too late"))
    assert_names(refused("reproduce", "--out", tmp_path / "out", *options), *named)


def test_a_missing_key_lists_the_arrays(labels_npz, tmp_path):
    said = refused("reproduce", labels_npz, "--out", tmp_path / "out")
    assert_names(said, labels_npz, "'labels'", "L8 (200, 8)", "--labels-key")


def test_a_missing_dataset_is_named(tmp_path):
    for name in ("none", "none.npz"):
        assert_names(refused("reproduce", tmp_path / name, "--out", tmp_path / "out"), tmp_path / name)


# ---- sizes, text encoder, joined datasets ---------------------------------------------------------------------------


def test_explicit_sizes_are_those_of_the_split_and_of_the_table(labels_npz, tmp_path):
    sizes = "--queries", 30, "--training", 100, "--validation", 10
    printed = done(
        "reproduce", labels_npz, "--labels-key", "L8", "--out", tmp_path / "out", "--table", "data-split", *sizes
    )
    (row,) = [line.split() for line in printed.splitlines() if line.strip().startswith("split")]
    assert row[-4:] == ["100", "10", "30", "170"]


def test_some_sizes_only_are_refused(labels_npz, tmp_path):
    out = tmp_path / "out"
    message = refused(
        "reproduce", labels_npz, "--labels-key", "L8", "--out", out, "--table", "data-split", "--queries", 9
    )
    assert_names(message, "--training", "query")


def test_a_substituted_text_encoder_is_named_in_the_table(labels_npz, tmp_path, monkeypatch):
    asked = []

    def load(name, *_, **__):
        asked.append(name)
        return Words(name)

    monkeypatch.setattr(measurement, "load_text_encoder", load)
    options = (
        "--labels-key",
        "L8",
        "--out",
        tmp_path / "out",
        "--table",
        "teacher-aligned",
        "--text-encoder",
        "owner/words",
    )
    printed = done("reproduce", labels_npz, *options, "--preset", "mirflickr")
    assert set(asked) == {"owner/words"} and "owner/words" in printed


def test_finished_reproductions_of_several_datasets_are_joined(labels_npz, tmp_path):
    for preset in ("mirflickr", "coco"):
        options = "--labels-key", "L8", "--out", tmp_path / preset, "--table", "quadrature-fidelity"
        done("reproduce", labels_npz, *options, "--preset", preset)
    done("reproduce", tmp_path / "mirflickr", tmp_path / "coco", "--join", "--out", tmp_path / "joined")
    table = (tmp_path / "joined" / "tables" / "quadrature-fidelity.md").read_text()
    assert "MIRFlickr" in table and "COCO" in table
    assert (tmp_path / "joined" / "joined.md").is_file()


def test_what_cannot_be_joined_is_refused(labels_npz, tmp_path):
    assert_names(refused("reproduce", "--join", "--out", tmp_path / "joined"), "need one or more")
    assert_names(refused("reproduce", tmp_path, "--join", "--quick", "--out", tmp_path / "joined"), "--quick", "--join")
    assert_names(refused("reproduce", tmp_path, tmp_path, "--out", tmp_path / "out"), "one dataset", "2", "--join")
