"""The paper's tables from tiny runs: what is trained and kept, how cells become a table, what is left out."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import shutil
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import kendalltau

from commands import Words
from conftest import plant
from multibit import Config, FeatureStore, Run, runs, training
from multibit.errors import ConfigError, DataError, FormatError, MissingExtraError
from multibit.evaluation.protocol import DIRECTIONS
from multibit.files import read_json
from multibit.hashing.variants import VARIANTS
from multibit.report import reproduction
from multibit.report.paper import TABLES, Outcome, find_entry, printed_values, reproduce
from multibit.report.paper_cells import ABLATION
from multibit.report.reproduce import FIGURE_NAMES, choose, entries_table, open_subject, reproduce_all
from multibit.report.reproduction import SEAL, Reproduction, Subject
from multibit.runs import STATE_FILE

TINY = Config(lengths=(8, 16), scales=2, hidden=16, dimension=8, epochs=1, batch_size=64)
NEEDS_FEATURES = "It needs features, and this data set has labels only."


@pytest.fixture(autouse=True)
def quick_words(monkeypatch):
    monkeypatch.setattr(reproduction, "load_text_encoder", Words)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "planted.npz"
    np.savez(path, **plant(200), label_names=[f"topic {i}" for i in range(8)])
    return FeatureStore.open(path)


def reproduction_of(store, folder, config=TINY, column=None, device="cpu"):
    subject = Subject(store.dataset.labels, store.dataset.label_names, store, column)
    return Reproduction(subject, folder, config, device, say=lambda _: None)


@pytest.fixture(scope="module")
def kept(store, tmp_path_factory):
    """Lengths -> a reproduction whose runs are trained once for all tests."""
    folder = tmp_path_factory.mktemp("kept")
    lengths = [(8, 16), (8, 72), (16,), (80, 96), (8, 24, 40)]
    return {each: reproduction_of(store, folder, TINY.override({"lengths": each}), "mirflickr") for each in lengths}


@pytest.fixture
def trainings(monkeypatch):
    """The folders that are trained from now on, in order."""
    folders, create = [], Run.create.__func__

    def recorded(cls, folder, *args, **options):
        folders.append(folder)
        return create(cls, folder, *args, **options)

    monkeypatch.setattr(Run, "create", classmethod(recorded))
    return folders


def cells_of(name, r, seed=42):
    return {key: values.item() for key, values in reproduce(TABLES[name], r, [seed]).cells.items()}


# ---- every table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_every_table_measures_and_renders(name, kept):
    outcome = reproduce(TABLES[name], kept[8, 16], [42])
    assert outcome.cells and all(np.isfinite(values).all() for values in outcome.cells.values())
    table = outcome.table()
    assert "nan" not in table.markdown().lower() and TABLES[name].title.format(bits=16) in table.markdown()
    rows = list(csv.reader(io.StringIO(table.csv())))
    assert [len(row) for row in rows] == [len(table.header)] * (1 + len(table.rows))
    assert table.latex().count(r"\\") == 1 + len(table.rows)
    console = Console(width=200, file=io.StringIO())
    console.print(table.rich())
    assert table.rows[0][0] in console.file.getvalue()
    assert set(outcome.verdicts) == {claim.text for claim in TABLES[name].claims}


OTHER_LENGTHS = [
    pytest.param(lengths, name, id=f"{name} at {lengths}")
    for lengths in ((8, 72), (16,), (80, 96), (8, 24, 40))
    for name in TABLES
    if lengths != (16,) or name not in ("cross-length-agreement", "rank-displacement")
]


@pytest.mark.parametrize(("lengths", "name"), OTHER_LENGTHS)
def test_every_table_is_made_at_other_lengths(lengths, name, kept):
    outcome = reproduce(TABLES[name], kept[lengths], [42])
    assert outcome.cells and "{" not in outcome.table().markdown()
    assert all(np.isfinite(values).all() for values in outcome.cells.values())
    assert "nan" not in outcome.table().markdown().lower()


def test_one_length_alone_has_no_cross_length_agreement(kept):
    with pytest.raises(DataError, match="need two or more lengths"):
        reproduce(TABLES["cross-length-agreement"], kept[16,], [42])


def test_one_length_alone_has_no_rank_displacement(kept):
    with pytest.raises(DataError, match="the shortest code with the longest, and there is one length only: 16 bits"):
        reproduce(TABLES["rank-displacement"], kept[16,], [42])


@pytest.mark.parametrize("name", ["resolution-idf", "resolution-label-names"])
def test_resolution_is_of_the_lengths_that_the_paper_shows_or_else_of_all(name, kept):
    shown = {
        lengths: {int(column.split()[-1]) for _, column in cells_of(name, kept[lengths])}
        for lengths in ((8, 72), (80, 96))
    }
    assert shown == {(8, 72): {8}, (80, 96): {80, 96}}


@pytest.mark.parametrize(("lengths", "bits"), [((8, 24, 40), 40), ((8, 72), 72), ((80, 96), 80), ((16,), 16)])
@pytest.mark.parametrize("name", ["sensitivity", "query-gain", "resolution-strata", "multi-length-cost"])
def test_a_table_of_one_length_says_which_and_leaves_out_values_of_another(name, lengths, bits, kept):
    table = reproduce(TABLES[name], kept[lengths], [42]).table()
    assert f"{bits} bits" in table.title + table.note and "64 bits" not in table.title + table.note
    assert "The paper's values are of 16, 32, 64, 128 bits, so none stand here." in table.note
    assert "  paper" not in {row[0] for row in table.rows}


OF_LENGTHS = [name for name, entry in TABLES.items() if entry.of_lengths]


@pytest.mark.parametrize("name", OF_LENGTHS)
def test_values_of_the_papers_lengths_stand_beside_runs_of_these_lengths(name):
    r = SimpleNamespace(subject=SimpleNamespace(column="mirflickr"), config=Config())
    outcome = judged(name, printed_values(name, "mirflickr"), r)
    assert outcome.printed and not outcome.note and outcome.bits == 64


def test_the_printed_value_and_the_difference_stand_below_what_was_got(kept):
    table = reproduce(TABLES["main-comparison"], kept[8, 16], [42]).table()
    names = [row[0] for row in table.rows]
    assert table.header == ("", "8", "16")
    assert names == ["image-to-text", "  paper", "  difference", "text-to-image", "  paper", "  difference"]
    for start, printed in ((0, 82.86), (3, 79.25)):
        got = float(table.rows[start][2])
        assert table.rows[start + 1][1:] == ("-", f"{printed:.2f}")
        assert table.rows[start + 2][1:] == ("-", f"{got - printed:+.2f}")


def test_cells_of_accuracy_are_those_of_the_evaluated_runs(kept, store):
    r = kept[8, 16]
    for (row, bits), value in cells_of("component-ablation", r).items():
        (name,) = [name for name in ABLATION if VARIANTS[name].title == row]
        inside = r.run(name, 42).evaluate(store)[0]
        expected = np.mean([inside.mean("mAP", d, int(bits)) for d in DIRECTIONS])
        assert value == pytest.approx(100 * expected, abs=1e-9)


def test_separate_models_serve_each_its_length(kept, store):
    r = kept[8, 16]
    cells, models = cells_of("multi-length-cost", r), r.runs("separate", 42)
    assert [run.model.bits for run in models] == [8, 16]
    for run in models:
        inside = run.evaluate(store)[0]
        expected = np.mean([inside.mean("mAP", d, run.model.bits) for d in DIRECTIONS])
        assert cells["MultiBit-Sep", str(run.model.bits)] == pytest.approx(100 * expected, abs=1e-9)


def test_the_cost_of_serving_all_lengths(kept):
    r = kept[8, 16]
    cells, items = cells_of("multi-length-cost", r), len(r.split.database)
    parameters = {16: (24 + 16 + 2) * 16 + 2 * (16 + 1) * 8 + (8 + 1) * 16, 8: (24 + 16 + 2) * 16 + 2 * 17 * 8 + 9 * 8}
    assert {row: cells[row, "models"] for row in ("Naive Prefix", "MultiBit-Sep", "MultiBit")} == {
        "Naive Prefix": 1, "MultiBit-Sep": 2, "MultiBit": 1,
    }  # fmt: skip
    assert cells["MultiBit", "model MB"] == pytest.approx(4 * parameters[16] / 1e6)
    assert cells["MultiBit-Sep", "model MB"] == pytest.approx(4 * (parameters[8] + parameters[16]) / 1e6)
    assert cells["MultiBit", "code MiB"] == pytest.approx(2 * items * 16 / 8 / 2**20)
    assert cells["MultiBit-Sep", "code MiB"] == pytest.approx(2 * items * (8 + 16) / 8 / 2**20)
    assert cells_of("efficiency", r)["MultiBit", "parameters M"] == pytest.approx(parameters[16] / 1e6)


def test_the_best_of_the_sensitivity_grid_is_a_validation_score(kept):
    r = kept[8, 16]
    run = r.run("full", 42, alpha=0.9, eta=0.2)
    assert run is r.run("full", 42)  # the default is on the grid and is trained once
    one = run.config.override({"lengths": (16,)})
    query, database = r.codes(run, "validation"), r.codes(run, "train")
    expected = reproduction.evaluate(query, database, one.lengths, training_labels=database.labels, protocol="")
    got = cells_of("sensitivity", r)["eta 0.20", "alpha 0.9"]
    assert got == pytest.approx(100 * np.mean([expected.mean("mAP", d, 16) for d in DIRECTIONS]), abs=1e-9)


def test_the_shares_of_queries_add_up(kept):
    cells = cells_of("query-gain", kept[8, 16])
    for design in {row for row, _ in cells}:
        assert sum(cells[design, f"{word} %"] for word in ("improved", "tied", "degraded")) == pytest.approx(100)


def test_the_gap_is_what_ties_leave(kept):
    cells = cells_of("tie-ceiling", kept[8, 16])
    for row in ("8 bits", "16 bits"):
        assert cells[row, "ceiling"] == pytest.approx(np.sqrt(1 - cells[row, "S(B)"]), abs=0.02)  # mean over queries
        assert cells[row, "gap"] == pytest.approx(cells[row, "ceiling"] - cells[row, "tau-b"])


def distances(r, run, bits, direction):
    asked, searched = DIRECTIONS[direction]
    sides = r.codes(run, "query").codes(asked), r.codes(run, "database").codes(searched)
    query, database = (side.prefix(bits).to_bits().astype(int) for side in sides)
    return (query[:, None, :] != database[None, :, :]).sum(axis=2)


@pytest.mark.parametrize("row", ["Naive Prefix", "MultiBit-Sep", "MultiBit"])
def test_agreement_is_the_mean_tau_b_of_two_lengths(row, kept):
    r, variant = kept[8, 16], {"Naive Prefix": "naive-prefix", "MultiBit-Sep": "separate", "MultiBit": "full"}[row]
    cells = cells_of("cross-length-agreement", r)
    for direction in DIRECTIONS:
        short, long = (distances(r, r.serving(variant, 42, bits), bits, direction) for bits in (8, 16))
        expected = np.mean([kendalltau(a, b).statistic for a, b in zip(short, long, strict=True)])
        assert cells[row, f"8-16 {direction}"] == pytest.approx(expected, abs=1e-9)
        assert cells[row, f"mean {direction}"] == pytest.approx(expected, abs=1e-9)


def test_the_rank_displacement_is_that_of_five_queries(kept):
    r = kept[8, 16]
    asked = np.random.RandomState(42).permutation(50)[:5]
    short, long = (distances(r, r.run("full", 42), bits, "i2t")[asked] for bits in (8, 16))
    place = [np.argsort(np.argsort(d, axis=1, kind="stable"), axis=1) / (d.shape[1] - 1) for d in (short, long)]
    cells = cells_of("rank-displacement", r)
    assert cells["MultiBit", "mean |change|"] == pytest.approx(np.abs(place[1] - place[0]).mean())
    expected = np.mean([kendalltau(a, b).statistic for a, b in zip(short, long, strict=True)])
    assert cells["MultiBit", "tau-b"] == pytest.approx(expected, abs=1e-9)


def test_scale_boundaries_are_the_ends_of_the_blocks(kept):
    ends = np.cumsum(kept[8, 16].run("full", 42).model.blocks)
    assert [row for row, column in cells_of("scale-boundary", kept[8, 16]) if column == "N"] == [
        f"{end} bits" for end in ends
    ]
    assert "64 bits" in {row for row, _ in cells_of("scale-boundary", kept[8, 72])}


def test_the_parameter_register_is_that_of_the_runs(store, tmp_path):
    cells = cells_of("parameters", reproduction_of(store, tmp_path, TINY.override({"alpha": 0.5})))
    assert cells["alpha", "value"] == 0.5 and cells["epochs", "value"] == TINY.epochs


# ---- claims ---------------------------------------------------------------------------------------------------------


def table(text):
    """Cells of a hand-made table: a heading of columns, then rows, cells between bars."""
    header, *rows = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    return {(row[0], column): float(value) for row in rows for column, value in zip(header[1:], row[1:], strict=True)}


TRUE_AND_FALSE = {
    "quadrature-fidelity": ("x | tau-b\nM = 4 | 0.93\nM = 8 | 0.99", "x | tau-b\nM = 4 | 0.92\nM = 8 | 0.98"),
    "teacher-quality": (
        "x | IDF | label names\nUMH | .5 | .6\nFRT | .6 | .6",
        "x | IDF | label names\nUMH | .5 | .7\nFRT | .6 | .6",
    ),
    "teacher-aligned": ("x | IDF\nFRT | .7\nUKM | .6\nUMH | .5", "x | IDF\nFRT | .7\nUKM | .6\nUMH | .6"),
    "component-ablation": (
        "x | 16 | 32\nBaseline (no FRT/SBO/MPA) | 1 | 5\n+ FRT | 2 | 6\n+ FRT + SBO | 3 | 7\nFull MultiBit | 4 | 8",
        "x | 16 | 32\nBaseline (no FRT/SBO/MPA) | 1 | 5\n+ FRT | 2 | 4\n+ FRT + SBO | 3 | 7\nFull MultiBit | 4 | 8",
    ),
    "teacher-transfer": (
        "x | 16 | 32\nUMH | 1 | 2\nFull MultiBit (FRT) | 2 | 2",
        "x | 16 | 32\nUMH | 1 | 3\nFull MultiBit (FRT) | 2 | 2",
    ),
    "query-gain": ("x | tied % | mean pp\na | 0 | .1\nb | 3 | .2", "x | tied % | mean pp\na | 0 | .1\nb | 3 | -.2"),
    "resolution-idf": (
        "x | N 16 | tau-b 16 | C 16 | I 16\nNaive Prefix | 1 | 1 | 2 | 2\nMultiBit | 2 | 2 | 1 | 1",
        "x | N 16 | tau-b 16 | C 16 | I 16\nNaive Prefix | 1 | 1 | 2 | 2\nMultiBit | 2 | 2 | 1 | 3",
    ),
    "resolution-label-names": (
        "x | N 16 | tau-b 16 | C 16 | I 16\nNaive Prefix | 1 | 1 | 2 | 2\nMultiBit | 2 | 2 | 1 | 1",
        "x | N 16 | tau-b 16 | C 16 | I 16\nNaive Prefix | 1 | 2 | 2 | 2\nMultiBit | 2 | 1 | 1 | 1",
    ),
    "scale-boundary": (
        "x | N | tau-b | C | I\n8 bits | 1 | 1 | 4 | 4\n16 bits | 2 | 2 | 3 | 3\n64 bits | 3 | 3 | 2 | 2",
        "x | N | tau-b | C | I\n8 bits | 1 | 1 | 4 | 4\n16 bits | 2 | 2 | 3 | 5\n64 bits | 3 | 3 | 2 | 2",
    ),
    "tie-ceiling": ("x | S(B) | gap\n8 bits | .9 | .011", "x | S(B) | gap\n8 bits | .9 | .011\n16 bits | .1 | .012"),
    "sensitivity": (
        "x | alpha 0.6 | alpha 1.2\neta 0.10 | 1 | 2\neta 0.20 | 1 | 3",
        "x | alpha 0.6 | alpha 1.2\neta 0.10 | 1 | 4\neta 0.20 | 1 | 3",
    ),
    "multi-length-cost": (
        "x | 8 | train h\nMultiBit-Sep | 1 | 1\nMultiBit | 2 | 9",
        "x | 8 | train h\nMultiBit-Sep | 2 | 9\nMultiBit | 2 | 1",
    ),
    "cross-length-agreement": (
        "x | a | b\nMultiBit-Sep | 1 | 2\nMultiBit | 2 | 3",
        "x | a | b\nMultiBit-Sep | 1 | 4\nMultiBit | 2 | 3",
    ),
}
CHANGE = ("Naive Prefix", "mean |change|"), ("MultiBit", "mean |change|")
HAND_MADE = {name: tuple(map(table, both)) for name, both in TRUE_AND_FALSE.items()}
HAND_MADE["rank-displacement"] = tuple(dict(zip(CHANGE, values, strict=True)) for values in ((0.2, 0.1), (0.1, 0.1)))


def judged(name, cells, r=None):
    return reproduce(dataclasses.replace(TABLES[name], measure=lambda *_: cells), r or FAKE, [42])


FAKE = SimpleNamespace(subject=SimpleNamespace(column=None), config=Config())


@pytest.mark.parametrize("name", HAND_MADE)
def test_a_claim_holds_where_the_cells_show_it_and_not_where_they_do_not(name):
    shown, not_shown = (judged(name, cells) for cells in HAND_MADE[name])
    assert set(shown.verdicts.values()) == {True}
    assert set(not_shown.verdicts.values()) == {False}
    (claim, *_) = shown.verdicts
    assert f"reproduced: {claim}." in shown.table().note and "NOT" not in shown.table().note
    assert f"NOT REPRODUCED: {claim}." in not_shown.table().note


def test_every_claim_is_judged_by_hand_above():
    assert set(HAND_MADE) == {name for name, entry in TABLES.items() if entry.claims}


def test_a_claim_about_an_undefined_value_is_not_judged():
    outcome = judged("rank-displacement", dict(zip(CHANGE, (float("nan"), 0.1), strict=True)))
    assert list(outcome.verdicts.values()) == [None]


# ---- seeds ----------------------------------------------------------------------------------------------------------


def by_seed(values, **changes):
    return dataclasses.replace(
        TABLES["main-comparison"], measure=lambda _, seed: {("a", "16"): values[seed]}, **changes
    )


def test_several_seeds_give_mean_and_standard_deviation():
    outcome = reproduce(by_seed({1: 1.0, 2: 2.0, 5: 6.0}), FAKE, [1, 2, 5])
    np.testing.assert_array_equal(outcome.cells["a", "16"], [1, 2, 6])
    assert outcome.table().rows == (("a", "3.00 ± 2.65"),)
    assert outcome.table().latex().count(r"3.00 $\pm$ 2.65") == 1


def test_one_seed_gives_the_value_alone():
    assert reproduce(by_seed({1: 1.0}), FAKE, [1]).table().rows == (("a", "1.00"),)


def test_the_difference_is_that_of_the_mean():
    outcome = Outcome(TABLES["main-comparison"], {("a", "16"): np.array([1.0, 3.0])}, {("a", "16"): 1.5})
    assert outcome.table().rows == (("a", "2.00 ± 1.41"), ("  paper", "1.50"), ("  difference", "+0.50"))


def test_labels_are_measured_once_however_many_seeds():
    outcome = reproduce(by_seed({1: 1.0}, labels_only=True), FAKE, [1, 2, 5])
    assert outcome.table().rows == (("a", "1.00"),)


def test_a_value_that_no_seed_has_is_a_bar():
    outcome = Outcome(TABLES["main-comparison"], {("a", "16"): np.array([np.nan]), ("b", "32"): np.array([1.0])})
    assert outcome.table().rows == (("a", "-", "-"), ("b", "-", "1.00"))


def test_a_value_that_one_seed_lacks_is_never_printed_as_nan():
    outcome = Outcome(TABLES["main-comparison"], {("a", "16"): np.array([1.0, np.nan, 2.0])}, {("a", "16"): 1.0})
    assert "nan" not in outcome.table().markdown()


def test_seeds_vary_the_weights_but_not_the_split(kept):
    r = kept[8, 16]
    first, other = r.run("full", 42), r.run("full", 7)
    assert first.record["model"] != other.record["model"] and first.record["split"] == other.record["split"]
    measured = reproduce(TABLES["main-comparison"], r, [42, 7])
    assert all(values.shape == (2,) for values in measured.cells.values())
    assert " ± " in measured.table().rows[0][1]


# ---- runs are kept --------------------------------------------------------------------------------------------------


def test_a_run_is_trained_once_and_found_again(store, tmp_path, trainings):
    first = reproduction_of(store, tmp_path)
    run = first.run("full", 42)
    assert first.run("full", 42) is run and len(trainings) == 1
    again = reproduction_of(store, tmp_path).run("full", 42)
    assert len(trainings) == 1 and again.record == run.record


def test_tables_share_their_runs(store, tmp_path, trainings):
    r = reproduction_of(store, tmp_path)
    for name in ("main-comparison", "quantization", "tie-ceiling", "efficiency", "scale-boundary"):
        reproduce(TABLES[name], r, [42])
    assert len(trainings) == 1
    reproduce(TABLES["component-ablation"], r, [42])
    assert len(trainings) == 4
    reproduce(TABLES["component-ablation"], reproduction_of(store, tmp_path), [42])
    assert len(trainings) == len(set(trainings)) == 4


@pytest.mark.parametrize(
    "change",
    [{"alpha": 0.5}, {"epochs": 2}, {"lengths": (16,)}, {"hidden": 8}, {"teacher": "umh"}, {"seed": 1}],
    ids=str,
)
def test_other_settings_get_another_run(change, store, tmp_path, trainings):
    r = reproduction_of(store, tmp_path)
    assert r.run("full", 42).folder != r.run("full", **{"seed": 42, **change}).folder
    assert len(trainings) == 2


def test_settings_of_the_reproduction_count_too(store, tmp_path):
    first = reproduction_of(store, tmp_path).run("full", 42)
    assert reproduction_of(store, tmp_path, TINY.override({"eta": 0.3})).run("full", 42).folder != first.folder


def test_other_data_gets_another_run(store, tmp_path, trainings):
    np.savez(tmp_path / "other.npz", **plant(200, seed=5), label_names=[f"topic {i}" for i in range(8)])
    other = reproduction_of(FeatureStore.open(tmp_path / "other.npz"), tmp_path).run("full", 42)
    assert reproduction_of(store, tmp_path).run("full", 42).folder != other.folder and len(trainings) == 2


def test_another_device_gets_another_run(store, tmp_path, monkeypatch):
    asked, create = [], Run.create.__func__

    def anywhere(cls, folder, *args, device):
        asked.append((device, folder))
        return create(cls, folder, *args, device="cpu")

    monkeypatch.setattr(Run, "create", classmethod(anywhere))
    for device in ("cpu", "cuda"):
        reproduction_of(store, tmp_path, device=device).run("full", 42)
    assert [device for device, _ in asked] == ["cpu", "cuda"] and asked[0][1] != asked[1][1]


def append(name):
    def edit(folder):
        with (folder / name).open("ab") as file:
            file.write(b"\n")

    return edit


def truncate(name):
    def edit(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return edit


def set_record(name, value):
    def edit(folder):
        record = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**record, name: value}))

    return edit


def set_config(name, value):
    def edit(folder):
        record = json.loads((folder / "run.json").read_text())
        record["config"][name] = value
        (folder / "run.json").write_text(json.dumps(record))

    return edit


EDITS = {
    "history with a line more": append("history.jsonl"),
    "history gone": lambda folder: (folder / "history.jsonl").unlink(),
    "torn weights": truncate("model.safetensors"),
    "torn record": truncate("run.json"),
    "another best epoch": set_record("selection", {"epoch": 9}),
    "another setting": set_config("alpha", 0.5),
    "another data set": set_record("data", "0" * 16),
    "torn seal": truncate(SEAL),
    "weights gone": lambda folder: (folder / "model.safetensors").unlink(),
}
REFUSED = {"a setting out of range": set_config("epochs", -1), "an unknown setting": set_config("patience", 3)}


@pytest.mark.parametrize(
    "edit",
    [
        *(pytest.param(edit, id=name) for name, edit in EDITS.items()),
        *(pytest.param(edit, id=name) for name, edit in REFUSED.items()),
    ],
)
def test_a_run_edited_by_hand_is_moved_aside_and_trained_again(edit, store, tmp_path, trainings):
    run = reproduction_of(store, tmp_path).run("full", 42)
    edit(run.folder)
    said = []
    r = dataclasses.replace(reproduction_of(store, tmp_path), say=said.append)
    again = r.run("full", 42)
    assert trainings == [run.folder, run.folder] and again.record["model"] == run.record["model"]
    stale = run.folder.with_name(f"{run.folder.name}-stale")
    assert stale.is_dir() and said[0].startswith(f"{run.folder.name} (full): changed since it was trained; moved to")
    assert reproduction_of(store, tmp_path).run("full", 42).record == again.record and len(trainings) == 2


def test_a_run_edited_twice_keeps_both_stale_folders(store, tmp_path):
    for _ in range(2):
        append("history.jsonl")(reproduction_of(store, tmp_path).run("full", 42).folder)
    folder = reproduction_of(store, tmp_path).run("full", 42).folder
    assert {path.name for path in folder.parent.iterdir()} == {
        folder.name, f"{folder.name}-stale", f"{folder.name}-stale-2",
    }  # fmt: skip


def test_a_run_that_was_indexed_meanwhile_is_found_or_trained_again(store, tmp_path):
    run = reproduction_of(store, tmp_path).run("full", 42)
    (run.folder / "index").mkdir()
    assert reproduction_of(store, tmp_path).run("full", 42).record["model"] == run.record["model"]


def test_a_run_that_was_evaluated_meanwhile_is_found_again(store, tmp_path, trainings):
    run = reproduction_of(store, tmp_path).run("full", 42)
    (run.folder / "evaluation.json").write_text("{}")
    reproduction_of(store, tmp_path).run("full", 42)
    assert len(trainings) == 1


class Stopped(Exception):  # noqa: N818 - it plays the part of a power cut
    pass


def test_an_interrupted_reproduction_goes_on_to_the_same_models(store, tmp_path, monkeypatch):
    config = TINY.override({"epochs": 3})
    plain = reproduction_of(store, tmp_path / "plain", config)
    expected = reproduce(TABLES["component-ablation"], plain, [42])
    calls = []

    def stopping(*args):
        calls.append(1)
        if len(calls) == 5:  # in the second training
            raise Stopped
        return score(*args)

    score, train = training.selection_score, runs.train
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(training, "selection_score", stopping)
        patch.setattr(runs, "train", lambda *a, **o: train(*a, **o, save_every=0))
        reproduce(TABLES["component-ablation"], reproduction_of(store, tmp_path / "cut", config), [42])
    (unfinished,) = [path.parent for path in (tmp_path / "cut").rglob(STATE_FILE)]
    resumed = reproduction_of(store, tmp_path / "cut", config)
    got = reproduce(TABLES["component-ablation"], resumed, [42])
    assert got.cells == expected.cells
    (interrupted,) = [run for run in (resumed.run(name, 42) for name in ABLATION) if run.folder == unfinished]
    assert np.isnan(resumed.seconds([interrupted]))  # nobody knows how long it took
    assert resumed.seconds([resumed.run("full", 42)]) > 0


def test_a_run_that_was_stopped_before_its_seal_is_kept(store, tmp_path, trainings, monkeypatch):
    stopped = mock.Mock(side_effect=Stopped)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(reproduction, "write_json", stopped)
        reproduction_of(store, tmp_path).run("full", 42)
    (folder,) = trainings
    assert stopped.call_count == 1 and not (folder / SEAL).exists()
    (folder / STATE_FILE).write_bytes(b"left over")
    r = reproduction_of(store, tmp_path)
    assert r.run("full", 42).folder == folder and len(trainings) == 1 and not (folder / STATE_FILE).exists()
    assert (folder / SEAL).exists() and np.isnan(r.seconds([r.run("full", 42)]))


def test_a_run_that_was_stopped_after_its_last_epoch_is_not_trained_again(store, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(runs.HashModel, "save", mock.Mock(side_effect=Stopped))
        reproduction_of(store, tmp_path).run("full", 42)
    monkeypatch.setattr(
        training, "selection_score", mock.Mock(side_effect=AssertionError("an epoch was trained again"))
    )
    assert reproduction_of(store, tmp_path).run("full", 42).record["selection"]["epoch"] == TINY.epochs


def test_a_run_of_other_settings_without_a_seal_is_trained_again(store, tmp_path, trainings):
    run = reproduction_of(store, tmp_path).run("full", 42)
    (run.folder / SEAL).unlink()
    set_config("alpha", 0.5)(run.folder)
    reproduction_of(store, tmp_path).run("full", 42)
    assert len(trainings) == 2


# ---- a folder of tables and figures ---------------------------------------------------------------------------------


def make(r, names, folder, seeds=(42,)):
    console = Console(width=120, soft_wrap=True, file=io.StringIO())
    outcomes, _ = reproduce_all(r, names, seeds, folder, console)
    return SimpleNamespace(outcomes=outcomes, printed=console.file.getvalue(), folder=folder)


def test_all_tables_and_figures_are_written(kept, tmp_path):
    names = [name for name in choose([], quick=False) if name != "qualitative-retrieval"]
    made = make(kept[8, 16], names, tmp_path)
    tables, figures = ({path.name for path in (tmp_path / part).iterdir()} for part in ("tables", "figures"))
    assert tables == {f"{name}.{ending}" for name in TABLES for ending in ("md", "csv", "tex")}
    assert figures == {f"{n}.{e}" for n in FIGURE_NAMES if n != "qualitative-retrieval" for e in ("png", "pdf")}
    page = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    assert all(f"**{entry.title.format(bits=16)}**" in page for entry in TABLES.values())
    assert "200 items, 8 labels; seeds 42; the paper's column: mirflickr." in page
    content = read_json(tmp_path / "reproduction.json", kind="reproduction", version=1)
    assert list(content["tables"]) == list(TABLES) and content["left_out"] == {}
    assert len(made.outcomes) == len(TABLES) and "Left out" not in made.printed
    cell = content["tables"]["data-split"]["cells"][0]
    assert cell == {"row": "split", "column": "pairs", "got": [200.0], "paper": 20015.0}


def test_the_contact_sheet_needs_pictures(kept, tmp_path):
    made = make(kept[8, 16], ["qualitative-retrieval", "data-split"], tmp_path)
    assert "Left out: qualitative-retrieval. It needs the pictures themselves" in made.printed
    assert [outcome.entry.name for outcome in made.outcomes] == ["data-split"]


@pytest.fixture
def only_labels(tmp_path):
    subject = Subject(plant(200)["labels"], tuple(f"topic {i}" for i in range(8)))
    return Reproduction(subject, tmp_path, TINY, say=lambda _: None)


def test_labels_alone_leave_out_what_needs_features_with_one_sentence(only_labels, tmp_path, trainings):
    made = make(only_labels, choose([], quick=False), tmp_path)
    labels = [name for name, entry in TABLES.items() if entry.labels_only]
    assert [outcome.entry.name for outcome in made.outcomes] == labels
    features = [name for name in (*TABLES, *FIGURE_NAMES) if name not in labels]
    (line,) = [line for line in made.printed.splitlines() if line.startswith("Left out")]
    assert line == f"Left out: {', '.join(features)}. {NEEDS_FEATURES}"
    content = read_json(tmp_path / "reproduction.json", kind="reproduction", version=1)
    assert content["left_out"] == dict.fromkeys(features, NEEDS_FEATURES)
    assert not trainings


def test_labels_alone_have_no_trained_teacher(only_labels, kept):
    rows = {row for row, _ in cells_of("teacher-quality", only_labels)}
    assert {row for row, _ in cells_of("teacher-quality", kept[8, 16])} - rows == {"Learned-weight Multi-scale Heat"}


def test_labels_without_names_are_measured_by_the_idf_evaluator_only(tmp_path):
    said = []
    r = Reproduction(Subject(plant(200)["labels"], ()), tmp_path, TINY, say=said.append)
    assert {column for _, column in cells_of("teacher-quality", r)} == {"IDF"}
    (sentence,) = said
    assert sentence.startswith("No label-name evaluator: semantic relevance needs the names of the labels")


def no_encoder(name):
    raise MissingExtraError("sentence_transformers", extra="offline", need="the packaged text encoder")


def test_without_a_text_encoder_the_other_evaluator_is_left(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction, "load_text_encoder", no_encoder)
    said = []
    r = dataclasses.replace(kept[8, 16], say=said.append, _kept={})
    assert {column for _, column in cells_of("teacher-aligned", r)} == {"IDF"}
    assert said[0].startswith("No label-name evaluator: the packaged text encoder needs sentence_transformers")


def test_a_table_that_needs_a_missing_encoder_is_left_out_and_the_others_are_made(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction, "load_text_encoder", no_encoder)
    r = dataclasses.replace(kept[8, 16], _kept={})
    made = make(r, ["resolution-label-names", "data-split"], tmp_path)
    assert "Left out: resolution-label-names. the packaged text encoder needs" in made.printed
    assert [outcome.entry.name for outcome in made.outcomes] == ["data-split"]


@pytest.mark.parametrize("seeds", [(), (42, 42)])
def test_no_seed_and_one_twice_are_refused(seeds, kept, tmp_path):
    with pytest.raises(ConfigError, match="seeds: need one or more different ones"):
        make(kept[8, 16], ["data-split"], tmp_path, seeds=seeds)


def test_a_later_table_joins_those_that_are_there(kept, tmp_path):
    for name in ("scale-coverage", "data-split"):
        make(kept[8, 16], [name], tmp_path)
    content = read_json(tmp_path / "reproduction.json", kind="reproduction", version=1)
    assert set(content["tables"]) == {"scale-coverage", "data-split"}
    page = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    assert page.index("Data split") < page.index("Scale coverage")


def test_tables_of_other_data_or_settings_are_not_mixed(kept, only_labels, tmp_path):
    make(kept[8, 16], ["data-split"], tmp_path)
    for other in (only_labels, kept[16,]):
        with pytest.raises(DataError, match=r"holds tables of another .*Choose another folder with --out"):
            make(other, ["data-split"], tmp_path)


def test_settings_that_differ_are_named_with_both_values(kept, tmp_path):
    make(kept[8, 16], ["data-split"], tmp_path)
    other = reproduction_of(kept[8, 16].store, tmp_path, TINY.override({"epochs": 7}), "mirflickr")
    with pytest.raises(DataError, match=r"holds tables of another config \(epochs 1 there, 7 here\)\. Choose another"):
        make(other, ["data-split"], tmp_path)


@pytest.mark.parametrize("change", [{"tables": 3}, {"config": "x"}, {"tables": None}])
def test_a_summary_that_was_edited_is_named(change, kept, tmp_path):
    make(kept[8, 16], ["data-split"], tmp_path)
    content = json.loads((tmp_path / "reproduction.json").read_text())
    (tmp_path / "reproduction.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(FormatError, match=r"reproduction\.json: cannot be understood, so it was edited"):
        make(kept[8, 16], ["data-split"], tmp_path)


# ---- what can be chosen and opened ----------------------------------------------------------------------------------


def test_everything_is_made_unless_named_and_quick_leaves_the_grid_out():
    assert choose([], quick=False) == [*TABLES, *FIGURE_NAMES]
    assert {*choose([], quick=False)} - {*choose([], quick=True)} == {"sensitivity", "parameter-sensitivity"}
    assert choose(["sensitivity", "deployment-cost"], quick=True) == ["sensitivity", "deployment-cost"]


def test_an_unknown_table_is_refused_with_the_names_that_there_are():
    for ask in (lambda: choose(["data-split", "table 3"], quick=False), lambda: find_entry("table 3")):
        with pytest.raises(ConfigError, match="table: 'table 3' is unknown; there are parameters, data-split"):
            ask()


def test_the_list_names_every_table_and_figure():
    assert [row[0] for row in entries_table().rows] == [*TABLES, *FIGURE_NAMES]


def saved(folder, **arrays):
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def test_an_npz_with_features_is_opened_as_features(store, tmp_path):
    path = saved(tmp_path, **plant(20), label_names=[f"topic {i}" for i in range(8)])
    subject = open_subject(path, None, "coco")
    assert len(subject.store) == 20 and subject.column == "coco" and subject.label_names[0] == "topic 0"
    assert subject.labels is subject.store.dataset.labels


@pytest.mark.parametrize("key", [None, "labels", "L24"])
def test_an_npz_with_labels_only_is_opened_by_its_key(key, tmp_path):
    labels = plant(20)["labels"]
    subject = open_subject(saved(tmp_path, **{key or "labels": labels}), key, None)
    assert subject.store is None and subject.label_names == () and subject.labels.dtype == np.uint8
    np.testing.assert_array_equal(subject.labels, labels)


@pytest.mark.parametrize(
    ("arrays", "key", "sentence"),
    [
        ({"L24": np.eye(3)}, None, r"data\.npz: no 'labels'; it has L24 \(3, 3\)\. Name the labels with --labels-key"),
        ({"labels": np.eye(3)}, "L24", r"data\.npz: no 'L24'; it has labels \(3, 3\)"),
        (
            {"labels": np.ones(3)},
            None,
            r"labels has shape \(3,\); labels must be a matrix \(items, labels\) of 0 and 1",
        ),
        ({"labels": 2 * np.eye(3)}, None, "labels must be a matrix"),
        ({"labels": np.full((3, 2), np.nan)}, None, "labels must be a matrix"),
        ({"labels": np.array([["a", "b"]])}, None, "labels must be a matrix"),
        ({"labels": np.eye(3), "label_names": ["a"]}, None, r"data\.npz: 1 label_names for 3 label columns"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_labels_that_cannot_be_read_are_named(arrays, key, sentence, tmp_path):
    with pytest.raises(DataError, match=sentence):
        open_subject(saved(tmp_path, **arrays), key, None)


def test_too_few_items_to_split_are_named(tmp_path):
    r = Reproduction(open_subject(saved(tmp_path, labels=np.eye(3)), None, None), tmp_path, TINY)
    with pytest.raises(ConfigError, match="3 items are too few"):
        reproduce(TABLES["data-split"], r, [42])


def test_a_kept_folder_can_be_moved(store, tmp_path, trainings):
    reproduction_of(store, tmp_path / "here").run("full", 42)
    shutil.move(tmp_path / "here", tmp_path / "there")
    reproduction_of(store, tmp_path / "there").run("full", 42)
    assert len(trainings) == 1
