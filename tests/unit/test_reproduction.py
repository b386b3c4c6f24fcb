"""The paper's tables from tiny runs: kept runs, cells, claims, the output folder, and what is left out."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import io
import json
import shutil
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import kendalltau

from conftest import plant
from multibit import Config, FeatureStore, Run, measurement, runs
from multibit.codes.items import DIRECTIONS
from multibit.errors import ConfigError, DataError, FormatError, MissingExtraError
from multibit.evaluation.metric import MAP, TAU_B
from multibit.evaluation.protocol import evaluate
from multibit.files import read_json
from multibit.hashing.methods import METHODS
from multibit.hashing.model import HashModel
from multibit.paper import accuracy_cells as accuracy
from multibit.paper import baselines, reproduction
from multibit.paper import ranking_cells as ranking
from multibit.paper.accuracy_cells import ABLATION, MEAN_MAP, MULTIBIT, NAIVE_PREFIX, SEPARATE, SERVING
from multibit.paper.cells import (
    Alpha,
    AtLength,
    Cells,
    Design,
    Eta,
    Length,
    LengthAgreementTau,
    Named,
    Nodes,
    Quantity,
    Scale,
    Searching,
)
from multibit.paper.figures import FIGURES
from multibit.paper.label_cells import ERROR, FIDELITY, FRT, UKM, UMH, VALUE
from multibit.paper.reproduce import choose, entries_table, open_subject, reproduce_all, require_plan
from multibit.paper.reproduction import SEAL, Reproduction, Subject
from multibit.paper.tables import TABLES, Outcome, printed_texts, reproduce
from multibit.records import STATE_FILE
from multibit.table import Number

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_words")]  # dozens of tiny runs are trained
training = importlib.import_module("multibit.hashing.train")  # the package exports a function of this name
TINY = Config(lengths=(8, 16), scales=2, hidden=16, dimension=8, epochs=1, batch_size=64)
CONTACT_SHEET = "qualitative-retrieval"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "planted.npz"
    np.savez(path, **plant(200), label_names=[f"topic {i}" for i in range(8)])
    return FeatureStore.open(path)


def reproduction_of(store, folder, config=TINY, column=None, device="cpu"):
    subject = Subject(store.dataset.labels, store.dataset.label_names, store, column)
    return Reproduction(subject, folder, config, device)


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
    return Cells({key: values.item() for key, values in reproduce(TABLES[name], r, [seed]).cells.items()})


# ---- every table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_measured_and_printed(name, kept):
    outcome = reproduce(TABLES[name], kept[8, 16], [42])
    assert outcome.cells and all(np.isfinite(values).all() for values in outcome.cells.values())
    table = outcome.table()
    assert "nan" not in table.markdown().lower() and TABLES[name].titled(16) in table.markdown()
    rows = list(csv.reader(io.StringIO(table.csv())))
    assert [len(row) for row in rows] == [len(table.header)] * (1 + len(table.rows))
    assert table.latex().count(r"\\") == 1 + len(table.rows)
    console = Console(width=200, file=io.StringIO())
    console.print(table.rich())
    assert table.rows[0][0] in console.file.getvalue()
    assert set(outcome.verdicts) == {claim.text for claim in TABLES[name].claims if claim.concerns("mirflickr")}


@pytest.fixture
def small_grid(monkeypatch):
    """The sensitivity to four settings instead of all: each is a training."""
    for name in ("GRID_ALPHA", "GRID_ETA"):
        monkeypatch.setattr(accuracy, name, getattr(accuracy, name)[:2])


OTHER_LENGTHS = [
    pytest.param(lengths, name, id=f"{name} at {lengths}")
    for lengths in ((8, 72), (16,), (80, 96))
    for name in TABLES
    if lengths != (16,) or name not in ("cross-length-agreement", "rank-displacement")
]


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize(("lengths", "name"), OTHER_LENGTHS)
def test_every_table_is_made_at_other_lengths(lengths, name, kept):
    outcome = reproduce(TABLES[name], kept[lengths], [42])
    assert outcome.cells and "{" not in outcome.table().markdown()
    assert all(np.isfinite(values).all() for values in outcome.cells.values())
    assert "nan" not in outcome.table().markdown().lower()


def test_a_single_length_has_no_cross_length_agreement(kept):
    with pytest.raises(DataError) as caught:
        reproduce(TABLES["cross-length-agreement"], kept[16,], [42])
    assert "16" in caught.value.problem


def test_a_single_length_has_no_rank_displacement(kept):
    with pytest.raises(DataError) as caught:
        reproduce(TABLES["rank-displacement"], kept[16,], [42])
    assert caught.value.field == "lengths"
    assert "16" in caught.value.problem


def test_every_row_and_column_has_a_name_of_its_own(kept):
    for name in TABLES:
        cells = reproduce(TABLES[name], kept[8, 16], [42]).cells
        for keys in (cells.rows, cells.columns):
            assert len(set(map(str, keys))) == len(keys), name


@pytest.mark.parametrize("name", ["resolution-idf", "resolution-label-names"])
def test_resolution_is_measured_at_the_lengths_of_the_paper_or_else_at_all(name, kept):
    shown = {
        lengths: {column.bits for column in cells_of(name, kept[lengths]).columns} for lengths in ((8, 72), (80, 96))
    }
    assert shown == {(8, 72): {8}, (80, 96): {80, 96}}


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize(
    ("name", "lengths", "bits"),
    [
        ("query-gain", (8, 24, 40), 40),
        *((name, lengths, bits) for lengths, bits in (((8, 72), 72), ((80, 96), 80), ((16,), 16))
          for name in ("sensitivity", "query-gain", "resolution-strata", "multi-length-cost")),
    ],
)  # fmt: skip
def test_a_table_of_one_length_names_it_and_omits_printed_values_of_another(name, lengths, bits, kept):
    outcome = reproduce(TABLES[name], kept[lengths], [42])
    table = outcome.table()
    assert f"{bits} bits" in table.title + table.note and "64 bits" not in table.title + table.note
    assert outcome.note in table.note and "16, 32, 64, 128 bits" in outcome.note
    assert "  paper" not in {row[0] for row in table.rows}


OF_LENGTHS = [name for name, entry in TABLES.items() if entry.of_lengths]


@pytest.mark.parametrize("name", OF_LENGTHS)
def test_printed_values_are_compared_with_runs_of_the_papers_lengths(name):
    cells = Cells({(Named(row), Quantity(column)): v for (row, column), v in printed_texts(name, "mirflickr").items()})
    outcome = reproduce(dataclasses.replace(TABLES[name], measure=lambda *_: cells, claims=()), fake("mirflickr"), [42])
    assert outcome.printed == cells and "not shown" not in outcome.note and outcome.bits == 64


@pytest.mark.parametrize("name", [name for name in TABLES if name != "scale-boundary"])
def test_every_printed_value_has_a_cell(name, kept):
    """Or a name in printed.json has no key, or another spelling; the blocks of a tiny run end elsewhere."""
    shorter = {"16": "8", "32": "16", "64": "16", "128": "16"}
    cells = reproduce(TABLES[name], kept[8, 16], [42]).cells
    measured = {(str(row), str(column)) for row, column in cells}
    measured |= {(str(Nodes(m)), column) for m in (2, 4, 8, 16) for column in ("error %", "tau-b")}
    measured |= {("RCMH", "learning rate")}  # its public code has no optimiser
    compared = {method.title for method in METHODS.values() if not isinstance(method.defaults, Config)}
    for row, column in printed_texts(name, "mirflickr"):
        if {row.partition(", ")[0], column.rpartition(" ")[2]} & compared:
            continue  # tests/methods/test_sota_tables.py measures them
        words = [[shorter.get(word, word) for word in text.split()] for text in (row, column)]
        here = tuple(" ".join(each).replace("16-128", "8-16") for each in words)
        assert {(row, column), here} & measured or row.endswith(("scale 3", "scale 4")), (row, column)


def test_the_printed_value_and_the_difference_are_below_the_measured_one(kept):
    table = reproduce(TABLES["component-ablation"], kept[8, 16], [42]).table()
    assert table.header == ("", "8", "16")
    names = [name for row in ABLATION for name in (str(row), "  paper", "  difference")]
    assert [row[0] for row in table.rows] == names
    for start, printed in ((0, 80.5), (9, 81.057)):
        got = table.rows[start][2].value
        assert texts(table.rows[start + 1]) == ("  paper", "-", f"{printed:.2f}")
        assert texts(table.rows[start + 2]) == ("  difference", "-", f"{got - printed:+.2f}")


def test_the_main_comparison_has_the_papers_value_in_parentheses(kept):
    table = reproduce(TABLES["main-comparison"], kept[8, 16], [42]).table()
    assert table.header == ("", "8", "16")
    assert [row[0] for row in table.rows] == ["MultiBit, image-to-text", "MultiBit, text-to-image"]
    assert [row[2].suffix for row in table.rows] == [" (82.86)", " (79.25)"] and not table.marks


def mean_map(r, run, bits):
    """Mean mAP in percent over both directions, by `evaluate`."""
    query, database = (r.codes(run, side) for side in ("query", "database"))
    training = r.subject.labels[r.split.train]
    return 100 * evaluate(query, database, [bits], training_labels=training).mean_of_directions(MAP, bits)


def test_cells_of_accuracy_are_those_of_the_evaluated_runs(kept):
    r = kept[8, 16]
    cells = cells_of("component-ablation", r)
    assert cells.rows == list(ABLATION)
    for (design, column), value in cells.items():
        assert value == pytest.approx(mean_map(r, r.run(design.method, 42), column.bits), abs=1e-9)


def test_separate_models_serve_one_length_each(kept):
    r = kept[8, 16]
    cells, run = cells_of("multi-length-cost", r), r.run("separate", 42)
    assert run.model.models == 2 and run.lengths == (8, 16)
    for bits in run.lengths:
        expected = mean_map(r, run, bits)
        assert cells[SEPARATE, AtLength(accuracy.COST_MAP, bits)] == pytest.approx(expected, abs=1e-9)


def test_the_cost_of_serving_all_lengths(kept):
    r = kept[8, 16]
    cells, items = cells_of("multi-length-cost", r), len(r.split.database)
    parameters = {16: (24 + 16 + 2) * 16 + 2 * (16 + 1) * 8 + (8 + 1) * 16, 8: (24 + 16 + 2) * 16 + 2 * 17 * 8 + 9 * 8}
    assert [cells[design, accuracy.MODELS] for design in SERVING] == [1, 2, 1]
    assert cells[MULTIBIT, accuracy.MODEL_SIZE] == pytest.approx(4 * parameters[16] / 1e6)
    assert cells[SEPARATE, accuracy.MODEL_SIZE] == pytest.approx(4 * (parameters[8] + parameters[16]) / 1e6)
    assert cells[MULTIBIT, accuracy.CODE_SIZE] == pytest.approx(2 * items * 16 / 8 / 2**20)
    assert cells[SEPARATE, accuracy.CODE_SIZE] == pytest.approx(2 * items * (8 + 16) / 8 / 2**20)
    efficiency = {str(column): value for (_, column), value in cells_of("efficiency", r).items()}
    assert efficiency["parameters M"] == pytest.approx(parameters[16] / 1e6)


def test_a_cell_of_the_sensitivity_grid_is_a_validation_score(kept):
    r = kept[8, 16]
    run = r.run("multibit", 42, alpha=0.9, eta=0.2)
    assert run is r.run("multibit", 42)  # the default settings are on the grid and are trained once
    query, database = r.codes(run, "validation"), r.codes(run, "train")
    expected = evaluate(query, database, [16], training_labels=database.labels).mean_of_directions(MAP, 16)
    assert cells_of("sensitivity", r)[Eta(0.2), Alpha(0.9)] == pytest.approx(100 * expected, abs=1e-9)


def test_the_shares_of_queries_add_up(kept):
    cells = cells_of("query-gain", kept[8, 16])
    for design in cells.rows:
        shares = (accuracy.IMPROVED, accuracy.TIED, accuracy.DEGRADED)
        assert sum(cells[design, share] for share in shares) == pytest.approx(100)


def test_the_gap_is_the_distance_to_the_ceiling(kept):
    cells = cells_of("tie-ceiling", kept[8, 16])
    for row in (Length(8), Length(16)):
        ties, ceiling = cells[row, ranking.TIED_PAIRS], cells[row, ranking.CEILING]
        assert ceiling == pytest.approx(np.sqrt(1 - ties), abs=0.02)  # mean over queries
        assert cells[row, ranking.GAP] == pytest.approx(ceiling - cells[row, ranking.TAU])


def distances(r, run, bits, direction):
    asked, searched = DIRECTIONS[direction]
    sides = r.codes(run, "query").at(bits).codes(asked), r.codes(run, "database").at(bits).codes(searched)
    query, database = (side.prefix(bits).to_bits().astype(int) for side in sides)
    return (query[:, None, :] != database[None, :, :]).sum(axis=2)


@pytest.mark.parametrize("design", SERVING, ids=str)
def test_agreement_is_the_mean_tau_b_of_two_lengths(design, kept):
    r = kept[8, 16]
    cells = cells_of("cross-length-agreement", r)
    for direction in DIRECTIONS:
        short, long = (distances(r, r.run(design.method, 42), bits, direction) for bits in (8, 16))
        expected = np.mean([kendalltau(a, b).statistic for a, b in zip(short, long, strict=True)])
        assert cells[design, LengthAgreementTau(direction, (8, 16))] == pytest.approx(expected, abs=1e-9)
        assert cells[design, LengthAgreementTau(direction)] == pytest.approx(expected, abs=1e-9)


def test_the_rank_displacement_is_that_of_five_queries(kept):
    r = kept[8, 16]
    asked = np.random.RandomState(42).permutation(50)[:5]
    short, long = (distances(r, r.run("multibit", 42), bits, "i2t")[asked] for bits in (8, 16))
    rank = [np.argsort(np.argsort(d, axis=1, kind="stable"), axis=1) / (d.shape[1] - 1) for d in (short, long)]
    cells = cells_of("rank-displacement", r)
    assert cells[MULTIBIT, ranking.DISPLACEMENT] == pytest.approx(np.abs(rank[1] - rank[0]).mean())
    expected = np.mean([kendalltau(a, b).statistic for a, b in zip(short, long, strict=True)])
    assert cells[MULTIBIT, ranking.TAU] == pytest.approx(expected, abs=1e-9)


def test_scale_boundaries_are_the_ends_of_the_blocks(kept):
    ends = np.cumsum(kept[8, 16].run("multibit", 42).model.blocks)
    assert cells_of("scale-boundary", kept[8, 16]).rows == [Length(end) for end in ends]
    assert Length(64) in cells_of("scale-boundary", kept[8, 72]).rows


def test_the_parameter_register_is_that_of_the_runs(store, tmp_path):
    cells = cells_of("parameters", reproduction_of(store, tmp_path, TINY.override({"alpha": 0.5})))
    assert cells[Named("alpha"), VALUE] == 0.5
    assert cells[Named("epochs"), VALUE] == TINY.epochs


# ---- cells ----------------------------------------------------------------------------------------------------------


def test_keys_are_equal_by_value_and_print_the_names_of_the_paper():
    names = {
        Searching("i2t"): "image-to-text",
        Length(64): "64 bits",
        Scale(2): "scale 2",
        Nodes(4): "M = 4",
        Eta(0.2): "eta 0.20",
        Alpha(0.9): "alpha 0.9",
        AtLength(MEAN_MAP, 16): "16",
        AtLength(ranking.DEVIATION, 16): "deviation 16",
        LengthAgreementTau("i2t", (16, 128)): "16-128 i2t",
        LengthAgreementTau("t2i"): "mean t2i",
        Design("UMH", "multibit", "umh"): "UMH",
    }
    assert {key: str(key) for key in names} == names
    assert Design("UMH", "multibit", "umh") != Named("UMH")


def test_cells_know_their_rows_and_columns_in_order():
    cells = Cells({(Scale(2), MEAN_MAP): 1.0, (Scale(1), VALUE): 2.0, (Scale(2), VALUE): 3.0})
    assert cells.rows == [Scale(2), Scale(1)]
    assert cells.columns == [MEAN_MAP, VALUE]
    assert cells.where(lambda column: column == VALUE) == {(Scale(1), VALUE): 2.0, (Scale(2), VALUE): 3.0}
    assert cells.find({("scale 1", "value"): 5.0, ("scale 9", "value"): 6.0}) == {(Scale(1), VALUE): 5.0}


# ---- claims ---------------------------------------------------------------------------------------------------------


KNOWN = {
    str(key): key
    for key in (
        *ABLATION, *accuracy.TRANSFER, *accuracy.OWN_SCALES, NAIVE_PREFIX, SEPARATE, ranking.WITHOUT_MPA, MULTIBIT, UMH,
        UKM, FRT, Nodes(4), Nodes(8), *map(Length, (8, 16, 64)), *map(Eta, (0.1, 0.2)), *map(Alpha, (0.6, 0.9, 1.2)),
        *accuracy.GAIN_OVER, Searching("i2t"), FIDELITY, ERROR, Quantity("IDF"), Quantity("label names"),
        accuracy.TIED, accuracy.IMPROVED, accuracy.MEAN_GAIN, accuracy.MEAN_OF_LENGTHS, accuracy.MODEL_SAVED,
        accuracy.CODE_SAVED, *(AtLength(MEAN_MAP, bits) for bits in (8, 16, 32, 64, 128)), accuracy.TRAINING,
        ranking.TIED_PAIRS, ranking.GAP, *ranking.RESOLUTION.values(),
        *(AtLength(quantity, 16) for quantity in ranking.RESOLUTION.values()),
        *(AtLength(ranking.DEVIATION, bits) for bits in (16, 32)), LengthAgreementTau("i2t", (16, 128)),
        LengthAgreementTau("i2t"), LengthAgreementTau("t2i"), ranking.DISPLACEMENT, baselines.LEARNING_RATE,
    )
}  # fmt: skip


def cells_from(text, known):
    """Cells of a hand-made table: a line of columns, then rows, with / between cells."""
    header, *rows = [[cell.strip() for cell in line.split("/")] for line in text.strip().splitlines()]
    return Cells(
        {
            (known[row[0]], known[column]): float(value)
            for row in rows
            for column, value in zip(header[1:], row[1:], strict=True)
        }
    )


TRUE_AND_FALSE = {
    "quadrature-fidelity": (
        "x / error % / tau-b\nM = 4 / 18.64 / 0.93\nM = 8 / 1.7 / 0.99",
        "x / error % / tau-b\nM = 4 / 5 / 0.92\nM = 8 / 1.8 / 0.98",
    ),
    "teacher-quality": (
        "x / IDF / label names\nUMH / .5 / .6\nFRT / .6 / .6",
        "x / IDF / label names\nUMH / .5 / .7\nFRT / .6 / .6",
    ),
    "teacher-aligned": ("x / IDF\nFRT / .7\nUKM / .6\nUMH / .5", "x / IDF\nFRT / .7\nUKM / .6\nUMH / .6"),
    "component-ablation": (
        "x / 64 / 128\nBaseline / 1 / 5\n+ FRT / 2 / 6\n+ FRT + SBO / 3 / 8\nFull MultiBit / 4 / 9",
        "x / 64 / 128\nBaseline / 1 / 6\n+ FRT / 2 / 5\n+ FRT + SBO / 3 / 7\nFull MultiBit / 4 / 9",
    ),
    "teacher-transfer": (
        "x / 16 / 32 / 64 / 128\nUMH / 1 / 2 / 3 / 3\nUKM / 1 / 2 / 3 / 3\nFull MultiBit (FRT) / 2 / 3 / 5 / 6\n"
        "UMH, own scale loss / 1 / 1 / 1 / 1",
        "x / 16 / 32 / 64 / 128\nUMH / 1 / 3 / 6 / 7\nUKM / 1 / 3 / 5 / 6\nFull MultiBit (FRT) / 2 / 3 / 5 / 6\n"
        "UMH, own scale loss / 1 / 1 / 1 / 7",
    ),
    "query-gain": (
        "x / improved % / tied % / mean pp\nSingle-scale Teacher / 43.5 / 0 / .1\n"
        "Uniform Bit Allocation / 47.5 / 0 / .1\nPairwise Alignment / 70 / 3 / .2",
        "x / improved % / tied % / mean pp\nSingle-scale Teacher / 43.4 / 0 / .1\n"
        "Uniform Bit Allocation / 63.8 / 0 / .1\nPairwise Alignment / 70 / 3 / -.2",
    ),
    "resolution-idf": (
        "x / N 16 / tau-b 16 / C 16 / I 16\nNaive Prefix / 1 / 1 / 2 / 2\nMultiBit / 2 / 2 / 1 / 1",
        "x / N 16 / tau-b 16 / C 16 / I 16\nNaive Prefix / 1 / 1 / 2 / 2\nMultiBit / 2 / 2 / 1 / 3",
    ),
    "resolution-label-names": (
        "x / N 16 / tau-b 16 / C 16 / I 16\nNaive Prefix / 1 / 1 / 2 / 2\nMultiBit / 2 / 2 / 1 / 1",
        "x / N 16 / tau-b 16 / C 16 / I 16\nNaive Prefix / 1 / 2 / 2 / 2\nMultiBit / 2 / 1 / 1 / 1",
    ),
    "scale-boundary": (
        "x / N / tau-b / C / I\n8 bits / 1 / 1 / 4 / 4\n16 bits / 2 / 2 / 3 / 3\n64 bits / 3 / 3 / 2 / 2",
        "x / N / tau-b / C / I\n8 bits / 1 / 1 / 4 / 4\n16 bits / 2 / 2 / 3 / 5\n64 bits / 3 / 3 / 2 / 2",
    ),
    "quantization": (
        "x / deviation 16 / deviation 32 / tau-b 16 / tau-b 32\nimage-to-text / .0168 / .0380 / .896 / .964",
        "x / deviation 16 / deviation 32 / tau-b 16 / tau-b 32\nimage-to-text / .0380 / .0167 / .896 / .965",
    ),
    "tie-ceiling": ("x / S(B) / gap\n8 bits / .9 / .011", "x / S(B) / gap\n8 bits / .9 / .011\n16 bits / .1 / .012"),
    "sensitivity": (
        "x / alpha 0.9 / alpha 1.2\neta 0.10 / 1 / 2\neta 0.20 / 3 / 2.9",
        "x / alpha 0.9 / alpha 1.2\neta 0.10 / 1 / 2\neta 0.20 / 3 / 3.1",
    ),
    "multi-length-cost": (
        "x / 8 / mean / train h / model saved % / code saved %\nMultiBit-Sep / 1 / 1 / 1 / 74.4 / 46.7\n"
        "MultiBit / 2 / 2 / 9 / 74.4 / 46.7",
        "x / 8 / mean / train h / model saved % / code saved %\nMultiBit-Sep / 2 / 3 / 9 / 72 / 49\n"
        "MultiBit / 2 / 2 / 1 / 72 / 49",
    ),
    "cross-length-agreement": (
        "x / 16-128 i2t / mean i2t / mean t2i\nMultiBit without MPA / .6 / .8 / .7\nMultiBit / .7 / .82 / .8",
        "x / 16-128 i2t / mean i2t / mean t2i\nMultiBit without MPA / .7 / .7 / .9\nMultiBit / .7 / .82 / .8",
    ),
    "rank-displacement": (
        "x / tau-b / mean |change|\nNaive Prefix / .5 / 0.2\nMultiBit / .6 / 0.1",
        "x / tau-b / mean |change|\nNaive Prefix / .5 / 0.1\nMultiBit / .5 / 0.1",
    ),
}
NAMES_OF = {
    "teacher-quality": {"UMH": UMH},
    "teacher-aligned": {"UMH": UMH, "UKM": UKM},
    "component-ablation": {"Baseline": ABLATION[0]},
    "teacher-transfer": {"UMH": accuracy.TRANSFER[4], "UKM": accuracy.TRANSFER[6]},
    "scale-boundary": {"tau-b": ranking.RESOLUTION[TAU_B]},
    "quadrature-fidelity": {"tau-b": FIDELITY},
    "rank-displacement": {"tau-b": ranking.TAU},
    "quantization": {f"tau-b {bits}": AtLength(ranking.SIGN_TAU, bits) for bits in (16, 32)},
}
HAND_MADE = {
    name: tuple(cells_from(text, KNOWN | NAMES_OF.get(name, {})) for text in both)
    for name, both in TRUE_AND_FALSE.items()
}


def fake(column=None):
    """A reproduction of given cells."""
    return SimpleNamespace(
        subject=SimpleNamespace(column=column),
        config=Config(),
        remember=lambda key, make: make(),
        substituted=False,
        semantic=SimpleNamespace(origin="words"),
    )


def judged(name, cells):
    return reproduce(dataclasses.replace(TABLES[name], measure=lambda *_: cells), fake(), [42])


def texts(row):
    """The cells of a row as they are printed."""
    return tuple(map(str, row))


@pytest.mark.parametrize("name", HAND_MADE)
def test_a_claim_holds_where_the_cells_show_it_and_not_where_they_do_not(name):
    shown, not_shown = (judged(name, cells) for cells in HAND_MADE[name])
    assert set(shown.verdicts.values()) == {True}
    assert set(not_shown.verdicts.values()) == {False}
    for claim in shown.verdicts:
        found, other = (f" (here {each.found[claim]})" if claim in each.found else "" for each in (shown, not_shown))
        assert f"reproduced: {claim}{found}." in shown.table().note and "NOT" not in shown.table().note
        assert f"NOT REPRODUCED: {claim}{other}." in not_shown.table().note


def test_every_claim_is_judged_by_hand_above():
    elsewhere = {"baseline-optimizers", "main-comparison"}
    assert {*HAND_MADE, *elsewhere} == {name for name, entry in TABLES.items() if entry.claims}


def test_a_claim_about_an_undefined_value_is_not_judged():
    cells = {(design, ranking.DISPLACEMENT): v for design, v in ((NAIVE_PREFIX, float("nan")), (MULTIBIT, 0.1))}
    outcome = judged("rank-displacement", Cells(cells))
    assert list(outcome.verdicts.values()) == [None, None]


def test_a_claim_about_other_code_lengths_is_not_judged():
    columns = AtLength(MEAN_MAP, 8), AtLength(MEAN_MAP, 32)
    outcome = judged("component-ablation", Cells({(design, c): 1.0 for design in ABLATION for c in columns}))
    assert list(outcome.verdicts.values()) == [False, None, None]


@pytest.mark.parametrize(("column", "alpha"), [("mirflickr", 1.2), ("coco", 0.9), ("iapr", 0.9), (None, 0.9)])
def test_the_peak_of_the_grid_is_judged_for_the_dataset(column, alpha):
    for best in (0.9, 1.2):
        cells = Cells({(Eta(0.2), Alpha(each)): float(each == best) for each in (0.9, 1.2)})
        outcome = reproduce(
            dataclasses.replace(TABLES["sensitivity"], measure=lambda *_, c=cells: c), fake(column), [42]
        )
        assert outcome.verdicts == {f"the grid peaks at eta 0.20 and alpha {alpha:.2f}": best == alpha}
        assert list(outcome.found.values()) == [f"eta 0.20 and alpha {best}"]


# ---- seeds ----------------------------------------------------------------------------------------------------------

AT_16, AT_32 = AtLength(MEAN_MAP, 16), AtLength(MEAN_MAP, 32)
A, B = Named("a"), Named("b")


def by_seed(values, **changes):
    return dataclasses.replace(
        TABLES["component-ablation"], claims=(), measure=lambda _, seed: Cells({(A, AT_16): values[seed]}), **changes
    )


def test_several_seeds_give_mean_and_standard_deviation():
    outcome = reproduce(by_seed({1: 1.0, 2: 2.0, 5: 6.0}), fake(), [1, 2, 5])
    np.testing.assert_array_equal(outcome.cells[A, AT_16], [1, 2, 6])
    table = outcome.table()
    assert table.rows == (("a", Number(3.0, ".2f", spread=pytest.approx(7**0.5))),)
    assert texts(table.rows[0]) == ("a", "3.00 ± 2.65")
    assert table.latex().count(r"3.00 $\pm$ 2.65") == 1


def test_one_seed_gives_the_value_alone():
    assert reproduce(by_seed({1: 1.0}), fake(), [1]).table().rows == (("a", Number(1.0, ".2f")),)


def test_the_difference_is_that_of_the_mean():
    cells = Cells({(A, AT_16): np.array([1.0, 3.0])})
    rows = Outcome(TABLES["component-ablation"], cells, Cells({(A, AT_16): 1.5})).table().rows
    assert [texts(row) for row in rows] == [("a", "2.00 ± 1.41"), ("  paper", "1.50"), ("  difference", "+0.50")]


def test_labels_are_measured_once_for_any_number_of_seeds():
    outcome = reproduce(by_seed({1: 1.0}, seeded=False), fake(), [1, 2, 5])
    assert outcome.table().rows == (("a", Number(1.0, ".2f")),)


def test_undefined_and_missing_values_are_printed_as_dashes():
    cells = Cells({(A, AT_16): np.array([np.nan]), (B, AT_32): np.array([1.0])})
    rows = Outcome(TABLES["component-ablation"], cells).table().rows
    assert [texts(row) for row in rows] == [("a", "-", "-"), ("b", "-", "1.00")]


def test_a_value_that_one_seed_lacks_is_printed_as_a_dash():
    cells = Cells({(A, AT_16): np.array([1.0, np.nan, 2.0])})
    rows = Outcome(TABLES["component-ablation"], cells, Cells({(A, AT_16): 1.0})).table().rows
    assert [texts(row) for row in rows] == [("a", "-"), ("  paper", "1.00"), ("  difference", "-")]


def test_seeds_vary_the_weights_but_not_the_split(kept):
    r = kept[8, 16]
    first, other = r.run("multibit", 42), r.run("multibit", 7)
    assert first.record.model != other.record.model and first.record.split == other.record.split
    measured = reproduce(TABLES["main-comparison"], r, [42, 7])
    assert all(values.shape == (2,) for values in measured.cells.values())
    assert measured.table().rows[0][1].spread > 0


# ---- runs are kept --------------------------------------------------------------------------------------------------


def test_a_run_is_trained_once_and_found_again(store, tmp_path, trainings):
    first = reproduction_of(store, tmp_path)
    run = first.run("multibit", 42)
    assert first.run("multibit", 42) is run and len(trainings) == 1
    again = reproduction_of(store, tmp_path).run("multibit", 42)
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
    assert r.run("multibit", 42).folder != r.run("multibit", **{"seed": 42, **change}).folder
    assert len(trainings) == 2


def test_settings_of_the_reproduction_count_too(store, tmp_path):
    first = reproduction_of(store, tmp_path).run("multibit", 42)
    assert reproduction_of(store, tmp_path, TINY.override({"eta": 0.3})).run("multibit", 42).folder != first.folder


def test_other_data_gets_another_run(store, tmp_path, trainings):
    np.savez(tmp_path / "other.npz", **plant(200, seed=5), label_names=[f"topic {i}" for i in range(8)])
    other = reproduction_of(FeatureStore.open(tmp_path / "other.npz"), tmp_path).run("multibit", 42)
    assert reproduction_of(store, tmp_path).run("multibit", 42).folder != other.folder and len(trainings) == 2


def test_another_device_gets_another_run(store, tmp_path, monkeypatch):
    asked, create = [], Run.create.__func__

    def anywhere(cls, folder, *args, device, **options):
        asked.append((device, folder))
        return create(cls, folder, *args, device="cpu", **options)

    monkeypatch.setattr(Run, "create", classmethod(anywhere))
    for device in ("cpu", "cuda"):
        reproduction_of(store, tmp_path, device=device).run("multibit", 42)
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
    "history with another line": append("history.jsonl"),
    "missing history": lambda folder: (folder / "history.jsonl").unlink(),
    "truncated weights": truncate("model.safetensors"),
    "truncated record": truncate("run.json"),
    "another best epoch": set_record("selection", {"epoch": 9}),
    "another setting": set_config("alpha", 0.5),
    "another dataset": set_record("data", "0" * 16),
    "truncated seal": truncate(SEAL),
    "missing weights": lambda folder: (folder / "model.safetensors").unlink(),
}
REFUSED = {"a setting out of range": set_config("epochs", -1), "an unknown setting": set_config("patience", 3)}


@pytest.mark.parametrize(
    "edit",
    [
        *(pytest.param(edit, id=name) for name, edit in EDITS.items()),
        *(pytest.param(edit, id=name) for name, edit in REFUSED.items()),
    ],
)
def test_a_modified_run_is_moved_and_trained_again(edit, store, tmp_path, trainings):
    run = reproduction_of(store, tmp_path).run("multibit", 42)
    edit(run.folder)
    said = []
    r = dataclasses.replace(reproduction_of(store, tmp_path), say=said.append)
    again = r.run("multibit", 42)
    assert trainings == [run.folder, run.folder] and again.record.model == run.record.model
    stale = run.folder.with_name(f"{run.folder.name}-stale")
    assert stale.is_dir() and said[0].startswith(run.folder.name) and stale.name in said[0]
    assert reproduction_of(store, tmp_path).run("multibit", 42).record == again.record and len(trainings) == 2


def test_a_run_modified_twice_keeps_both_stale_folders(store, tmp_path):
    for _ in range(2):
        append("history.jsonl")(reproduction_of(store, tmp_path).run("multibit", 42).folder)
    folder = reproduction_of(store, tmp_path).run("multibit", 42).folder
    assert {path.name for path in folder.parent.iterdir()} == {
        folder.name, f"{folder.name}-stale", f"{folder.name}-stale-2",
    }  # fmt: skip


def test_a_run_that_was_indexed_is_found_again(store, tmp_path):
    run = reproduction_of(store, tmp_path).run("multibit", 42)
    (run.folder / "index").mkdir()
    assert reproduction_of(store, tmp_path).run("multibit", 42).record.model == run.record.model


def test_a_run_that_was_evaluated_is_found_again(store, tmp_path, trainings):
    run = reproduction_of(store, tmp_path).run("multibit", 42)
    (run.folder / "evaluation.json").write_text("{}")
    reproduction_of(store, tmp_path).run("multibit", 42)
    assert len(trainings) == 1


class Stopped(Exception):  # noqa: N818 - stands for a power cut
    pass


def test_a_resumed_reproduction_has_the_same_models(store, tmp_path, monkeypatch):
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
    trained = [resumed.run(design.method, 42) for design in ABLATION]
    (interrupted,) = [run for run in trained if run.folder == unfinished]
    assert resumed.seconds(interrupted) > 0  # of both parts
    assert resumed.seconds(resumed.run("multibit", 42)) > 0


def test_a_run_that_was_stopped_before_its_seal_is_kept(store, tmp_path, trainings, monkeypatch):
    stopped = mock.Mock(side_effect=Stopped)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(reproduction, "write_json", stopped)
        reproduction_of(store, tmp_path).run("multibit", 42)
    (folder,) = trainings
    assert stopped.call_count == 1 and not (folder / SEAL).exists()
    (folder / STATE_FILE).write_bytes(b"left over")
    r = reproduction_of(store, tmp_path)
    assert r.run("multibit", 42).folder == folder and len(trainings) == 1 and not (folder / STATE_FILE).exists()
    assert (folder / SEAL).exists() and r.seconds(r.run("multibit", 42)) > 0


def test_a_run_that_was_stopped_after_its_last_epoch_is_not_trained_again(store, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(HashModel, "save", mock.Mock(side_effect=Stopped))
        reproduction_of(store, tmp_path).run("multibit", 42)
    monkeypatch.setattr(
        training, "selection_score", mock.Mock(side_effect=AssertionError("an epoch was trained again"))
    )
    assert reproduction_of(store, tmp_path).run("multibit", 42).record.selection.epoch == TINY.epochs


def test_a_run_of_other_settings_without_a_seal_is_trained_again(store, tmp_path, trainings):
    run = reproduction_of(store, tmp_path).run("multibit", 42)
    (run.folder / SEAL).unlink()
    set_config("alpha", 0.5)(run.folder)
    reproduction_of(store, tmp_path).run("multibit", 42)
    assert len(trainings) == 2


# ---- a folder of tables and figures ---------------------------------------------------------------------------------


def make(r, names, folder, seeds=(42,)):
    console = Console(width=120, soft_wrap=True, file=io.StringIO())
    outcomes, left_out = reproduce_all(r, names, seeds, folder, console)
    return SimpleNamespace(outcomes=outcomes, left_out=left_out, printed=console.file.getvalue(), folder=folder)


def test_all_tables_and_figures_are_written(kept, tmp_path):
    names = [name for name in choose([], quick=False) if name != CONTACT_SHEET]
    made = make(kept[8, 16], names, tmp_path)
    tables, figures = ({path.name for path in (tmp_path / part).iterdir()} for part in ("tables", "figures"))
    assert tables == {f"{name}.{ending}" for name in TABLES for ending in ("md", "csv", "tex")}
    assert figures == {
        f"{name}.{ending}"
        for name, figure in FIGURES.items()
        if name != CONTACT_SHEET
        for ending in ("png", "pdf", *["json"] * figure.joined)
    }
    page = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    assert all(f"**{entry.titled(16)}**" in page for entry in TABLES.values())
    assert "200 items, 8 labels; seeds 42; the paper's column: mirflickr." in page
    content = read_json(tmp_path / "reproduction.json", kind="reproduction", version=1)
    assert list(content["tables"]) == list(TABLES) and content["left_out"] == {}
    assert len(made.outcomes) == len(TABLES) and "Left out" not in made.printed
    cell = content["tables"]["data-split"]["cells"][0]
    assert cell == {"row": "split", "column": "pairs", "got": [200.0], "paper": 20015.0}
    grid = content["tables"]["sensitivity"]["cells"][0]
    assert (grid["row"], grid["column"], grid["paper"]) == ("eta 0.05", "alpha 0.3", None)  # as in earlier versions


def test_a_figure_shows_the_numbers_of_its_table(kept):
    """Times are measured once."""
    r = kept[8, 16]
    outcome = reproduce(TABLES["multi-length-cost"], r, [42])
    shown = FIGURES["deployment-cost"].measure(r, [42])
    assert {key: values.item() for key, values in shown.cells.items()} == {
        key: values.item() for key, values in outcome.cells.items()
    }


def test_the_contact_sheet_needs_images(kept, tmp_path):
    made = make(kept[8, 16], [CONTACT_SHEET, "data-split"], tmp_path)
    assert list(made.left_out) == [CONTACT_SHEET]
    assert f"Left out: {CONTACT_SHEET}. {made.left_out[CONTACT_SHEET]}" in made.printed
    assert [outcome.entry.name for outcome in made.outcomes] == ["data-split"]


@pytest.fixture
def only_labels(tmp_path):
    subject = Subject(plant(200)["labels"], tuple(f"topic {i}" for i in range(8)))
    return Reproduction(subject, tmp_path, TINY)


def test_labels_alone_leave_out_what_needs_features(only_labels, tmp_path, trainings):
    made = make(only_labels, choose([], quick=False), tmp_path)
    labels = [name for name, entry in TABLES.items() if entry.labels_only]
    assert [outcome.entry.name for outcome in made.outcomes] == labels
    features = [name for name in (*TABLES, *FIGURES) if name not in labels]
    assert list(made.left_out) == features
    (reason,) = set(made.left_out.values())
    (line,) = [line for line in made.printed.splitlines() if line.startswith("Left out")]
    assert line == f"Left out: {', '.join(features)}. {reason}"
    content = read_json(tmp_path / "reproduction.json", kind="reproduction", version=1)
    assert content["left_out"] == made.left_out
    assert not trainings


def test_labels_alone_have_no_features(only_labels):
    with pytest.raises(DataError) as caught:
        _ = only_labels.store
    assert caught.value.field == "features"


def test_labels_alone_have_no_trained_teacher(only_labels, kept):
    here, trained = (set(cells_of("teacher-quality", r).rows) for r in (only_labels, kept[8, 16]))
    assert trained - here == {Named("Learned-weight Multi-scale Heat")}


def test_labels_without_names_are_measured_by_the_idf_evaluator_only(tmp_path):
    said = []
    r = Reproduction(Subject(plant(200)["labels"], ()), tmp_path, TINY, say=said.append)
    assert cells_of("teacher-quality", r).columns == [Quantity("IDF")]
    assert len(said) == 1


def no_encoder(name):
    raise MissingExtraError("sentence_transformers", extra="offline", need="The packaged text encoder")


def test_without_a_text_encoder_the_other_evaluator_is_left(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "load_text_encoder", no_encoder)
    said = []
    r = dataclasses.replace(kept[8, 16], say=said.append, _kept={})
    assert cells_of("teacher-aligned", r).columns == [Quantity("IDF")]
    assert "sentence_transformers" in said[0]


def test_a_table_that_needs_a_missing_encoder_is_left_out_and_the_others_are_made(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "load_text_encoder", no_encoder)
    r = dataclasses.replace(kept[8, 16], _kept={})
    made = make(r, ["resolution-label-names", "data-split"], tmp_path)
    assert list(made.left_out) == ["resolution-label-names"]
    assert "sentence_transformers" in made.left_out["resolution-label-names"]
    assert [outcome.entry.name for outcome in made.outcomes] == ["data-split"]


@pytest.mark.parametrize("seeds", [(), (42, 42)])
def test_no_seed_and_a_repeated_one_are_refused(seeds, kept, tmp_path):
    with pytest.raises(ConfigError) as caught:
        make(kept[8, 16], ["data-split"], tmp_path, seeds=seeds)
    assert caught.value.option == "seeds"


def test_settings_that_the_tables_vary_are_refused():
    with pytest.raises(ConfigError) as caught:
        require_plan(TINY.override({"teacher": "umh"}), [42])
    assert caught.value.field == "teacher"
    assert "umh" in caught.value.problem


def test_a_later_table_is_added_to_the_earlier_ones(kept, tmp_path):
    for name in ("scale-coverage", "data-split"):
        make(kept[8, 16], [name], tmp_path)
    content = read_json(tmp_path / "reproduction.json", kind="reproduction", version=1)
    assert set(content["tables"]) == {"scale-coverage", "data-split"}
    page = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    assert page.index("Data split") < page.index("Scale coverage")


def test_tables_of_other_data_or_settings_are_refused(kept, only_labels, tmp_path):
    make(kept[8, 16], ["data-split"], tmp_path)
    for other in (only_labels, kept[16,]):
        with pytest.raises(DataError) as caught:
            make(other, ["data-split"], tmp_path)
        assert (caught.value.file, caught.value.option) == (tmp_path, "folder")


def test_settings_that_differ_are_named_with_both_values(kept, tmp_path):
    make(kept[8, 16], ["data-split"], tmp_path)
    other = reproduction_of(kept[8, 16].store, tmp_path, TINY.override({"epochs": 7}), "mirflickr")
    with pytest.raises(DataError) as caught:
        make(other, ["data-split"], tmp_path)
    assert "epochs 1 there, 7 here" in caught.value.problem


def test_a_folder_of_an_earlier_version_is_continued(kept, tmp_path):
    """Keys were texts then, as they are in the file now."""
    make(kept[8, 16], ["data-split", "quadrature-fidelity"], tmp_path)
    path = tmp_path / "reproduction.json"
    before = json.loads(path.read_text())
    make(kept[8, 16], ["scale-coverage"], tmp_path)
    after = json.loads(path.read_text())
    assert {name: after["tables"][name] for name in before["tables"]} == before["tables"]
    assert set(after["tables"]) == {*before["tables"], "scale-coverage"}


@pytest.mark.parametrize("change", [{"tables": 3}, {"config": "x"}, {"tables": None}])
def test_an_invalid_summary_is_refused(change, kept, tmp_path):
    make(kept[8, 16], ["data-split"], tmp_path)
    content = json.loads((tmp_path / "reproduction.json").read_text())
    (tmp_path / "reproduction.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(FormatError) as caught:
        make(kept[8, 16], ["data-split"], tmp_path)
    assert caught.value.file == tmp_path / "reproduction.json"


# ---- choosing and opening ----------------------------------------------------------------------------------


def test_everything_is_made_unless_named_and_quick_leaves_the_grid_out():
    assert choose([], quick=False) == [*TABLES, *FIGURES]
    assert {*choose([], quick=False)} - {*choose([], quick=True)} == {"sensitivity", "parameter-sensitivity"}
    assert choose(["sensitivity", "deployment-cost"], quick=True) == ["sensitivity", "deployment-cost"]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError) as caught:
        choose(["table 3"], quick=False)
    assert caught.value.option == "names"
    assert "table 3" in caught.value.problem
    assert all(name in caught.value.problem for name in TABLES)


def test_the_list_names_every_table_and_figure():
    assert [row[0] for row in entries_table().rows] == [*TABLES, *FIGURES]


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


def test_a_key_for_an_npz_with_features_is_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        open_subject(saved(tmp_path, **plant(20)), "L24", None)
    assert caught.value.option == "key"


@pytest.mark.parametrize(
    ("arrays", "key", "found"),
    [({"L24": np.eye(3)}, None, "L24 (3, 3)"), ({"labels": np.eye(3)}, "L24", "labels (3, 3)")],
    ids=["no labels", "other key"],
)
def test_a_missing_array_of_labels_is_refused(arrays, key, found, tmp_path):
    path = saved(tmp_path, **arrays)
    with pytest.raises(DataError) as caught:
        open_subject(path, key, None)
    assert caught.value.file == path
    assert found in caught.value.problem
    assert "`key`" in caught.value.hint


@pytest.mark.parametrize(
    ("arrays", "field"),
    [
        ({"labels": np.ones(3)}, "labels"),
        ({"labels": 2 * np.eye(3)}, "labels"),
        ({"labels": np.full((3, 2), np.nan)}, "labels"),
        ({"labels": np.array([["a", "b"]])}, "labels"),
        ({"L24": 2 * np.eye(3)}, "L24"),
        ({"labels": np.eye(3), "label_names": ["a"]}, "label_names"),
    ],
    ids=["one-dimensional", "two", "nan", "text", "other key", "names"],
)
def test_labels_other_than_0_and_1_are_refused(arrays, field, tmp_path):
    path = saved(tmp_path, **arrays)
    with pytest.raises(DataError) as caught:
        open_subject(path, "L24" if "L24" in arrays else None, None)
    assert (caught.value.file, caught.value.field) == (path, field)


def test_too_few_items_to_split_are_refused(tmp_path):
    r = Reproduction(open_subject(saved(tmp_path, labels=np.eye(3)), None, None), tmp_path, TINY)
    with pytest.raises(ConfigError) as caught:
        reproduce(TABLES["data-split"], r, [42])
    assert "3" in str(caught.value)


def test_a_kept_folder_can_be_moved(store, tmp_path, trainings):
    reproduction_of(store, tmp_path / "here").run("multibit", 42)
    shutil.move(tmp_path / "here", tmp_path / "there")
    reproduction_of(store, tmp_path / "there").run("multibit", 42)
    assert len(trainings) == 1
