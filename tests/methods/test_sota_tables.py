"""The tables that compare methods: every row is trained here, next to the paper's number."""

from __future__ import annotations

import numpy as np
import pytest

from commands import assert_names, done, refused, settings
from conftest import plant
from multibit import METHODS, Config, FeatureStore
from multibit.codes import Codes
from multibit.codes.items import DIRECTIONS
from multibit.errors import ConfigError
from multibit.evaluation.metrics import average_precision
from multibit.evaluation.real_precision import cosine_average_precision
from multibit.paper.accuracy_cells import MEAN_MAP, MULTIBIT, MULTIBIT_PLUS, P_VALUE, SERVING
from multibit.paper.cells import AtLength, Cells, Searching
from multibit.paper.claims import RIVALS, wins
from multibit.paper.reproduce import SOTA_TABLES, choose, compared_methods
from multibit.paper.reproduction import Reproduction, Subject
from multibit.paper.tables import TABLES, printed_texts, reproduce

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_words")]
TINY = Config(lengths=(8, 16), scales=2, hidden=16, dimension=8, epochs=1, batch_size=32)
FEW = ("dnph", "rcmh", "vh-abl", "cca-itq")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "planted.npz"
    np.savez(path, **plant(200), label_names=[f"topic {i}" for i in range(8)])
    return FeatureStore.open(path)


@pytest.fixture(scope="module")
def made(store, tmp_path_factory):
    subject = Subject(store.dataset.labels, store.dataset.label_names, store, "mirflickr")
    return Reproduction(subject, tmp_path_factory.mktemp("kept"), TINY, compared=FEW)


# ---- which methods --------------------------------------------------------------------------------------------------


def test_sota_stands_for_its_tables_and_for_all_compared_methods(store):
    assert choose(["sota", "data-split"], quick=True) == [*SOTA_TABLES, "data-split"]
    compared = compared_methods(None, ["sota"], store)
    assert set(compared) >= {"dssh", "dnph", "dech", "dpbe", "dsth", "dghdgh", "rcmh", "vh-abl", "cca-itq", "cca-lsh"}
    assert all(METHODS[name].inputs == "pooled" for name in compared)  # the features have no tokens
    assert compared_methods(None, ["main-comparison"], store) == ()


def test_methods_are_chosen_in_the_order_of_the_paper_whatever_the_order_of_asking(store):
    assert compared_methods(["cca-itq", "dnph"], [], store) == ("dnph", "cca-itq")
    for name in ("oracle", "multibit"):
        with pytest.raises(ConfigError) as caught:
            compared_methods([name], [], store)
        assert caught.value.option == "methods" and repr(name) in caught.value.problem


# ---- what the tables hold -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOTA_TABLES)
def test_every_table_shows_the_compared_methods(name, made):
    outcome = reproduce(TABLES[name], made, [42])
    text = outcome.table().markdown()
    shown = [method for method in FEW if name != "cross-length-agreement" or METHODS[method].lengths != "one"]
    assert all(METHODS[method].title in text for method in shown) and "nan" not in text.lower()
    assert all(np.isfinite(values).all() for values in outcome.cells.values())


@pytest.mark.parametrize("name", SOTA_TABLES)
def test_every_value_that_the_paper_prints_of_these_methods_has_a_cell(name, made):
    shorter = {"16": "8", "32": "16", "64": "16", "128": "16"}
    cells = reproduce(TABLES[name], made, [42]).cells
    measured = {(str(row), str(column)) for row, column in cells}
    titles = {METHODS[method].title for method in FEW}
    for row, column in printed_texts(name, "mirflickr"):
        if {row.partition(", ")[0], column.rpartition(" ")[2]} & titles:
            here = " ".join(shorter.get(word, word) for word in column.split()).replace("16-128", "8-16")
            assert (row, here) in measured, (row, column)


def test_the_rows_of_the_main_comparison(made):
    outcome = reproduce(TABLES["main-comparison"], made, [42])
    rows = outcome.cells.rows
    titles = [*(METHODS[name].title for name in FEW), "MultiBit+", "MultiBit"]
    for direction in DIRECTIONS:
        assert [row.title for row in rows if row.direction == direction and row.is_code] == titles
    (floats,) = {row.title for row in rows if not row.is_code}
    for direction in DIRECTIONS:
        row = Searching(direction, "DNPH")
        expected = made.evaluation("dnph", 42).mean("mAP", direction, 16)
        assert outcome.cells[row, AtLength(MEAN_MAP, 16)].item() == pytest.approx(100 * expected)
        assert 0 < outcome.cells[row, AtLength(P_VALUE, 16)].item() <= 1
        ceiling = [outcome.cells[Searching(direction, floats), AtLength(MEAN_MAP, bits)].item() for bits in (8, 16)]
        assert ceiling[0] == ceiling[1]
    assert (Searching("i2t", "MultiBit"), AtLength(P_VALUE, 16)) not in outcome.cells


def test_the_best_is_bold_and_the_second_marked_in_each_direction(made):
    outcome = reproduce(TABLES["main-comparison"], made, [42])
    table, rows = outcome.table(), outcome.cells.rows
    for column, bits in enumerate((8, 16), start=1):
        for direction in DIRECTIONS:
            values = {
                i: outcome.cells[row, AtLength(MEAN_MAP, bits)].item()
                for i, row in enumerate(rows) if row.direction == direction and row.is_code
            }  # fmt: skip
            ranked = sorted(set(values.values()), reverse=True)
            for place, mark in enumerate(("best", "second")):
                assert {i for i in values if table.marks.get((i, column)) == mark} == {
                    i for i, value in values.items() if value == ranked[place]
                }
    assert not any((i, 1) in table.marks for i, row in enumerate(rows) if not row.is_code)


def test_wins_are_counted_over_directions_and_lengths_without_real_valued_rows():
    column = AtLength(MEAN_MAP, 16), AtLength(MEAN_MAP, 32)
    cells = Cells()
    rows = {**dict.fromkeys(RIVALS, (0, 0, 0, 0)), "DSSH": (1, 5, 3, 1), "CMCL (pooled)": (2, 3, 3, 2)}
    del rows["CMCL"]  # its variant stands for it
    others = {"MultiBit": (2, 4, 3, 2), "MultiBit+": (9, 9, 9, 9), "CCA-ITQ": (9, 9, 9, 9), "float: x": (9, 9, 9, 9)}
    for title, values in {**rows, **others}.items():
        for place, (direction, each) in enumerate((d, c) for d in DIRECTIONS for c in column):
            cells[Searching(direction, title), each] = values[place]
    assert wins(cells) == (3, 4)  # a draw counts
    with pytest.raises(KeyError) as caught:
        wins(Cells({key: value for key, value in cells.items() if key[0].title != "RCMH"}))
    assert "RCMH" in str(caught.value)


def test_what_more_codes_and_models_cost(made):
    cells = reproduce(TABLES["multi-length-cost"], made, [42]).cells
    size = {str(row): cells[row, column].item() for row, column in cells if str(column) == "code MiB"}
    assert size["RCMH"] == size["DNPH"] == pytest.approx(1.5 * size["MultiBit"]) and size["VH-ABL"] == size["MultiBit"]
    models = {str(row): cells[row, column].item() for row, column in cells if str(column) == "models"}
    assert (models["RCMH"], models["DNPH"], models["VH-ABL"]) == (1, 2, 1)
    assert [str(row) for row in cells.rows][-3:] == [str(design) for design in SERVING]


def test_seeds_give_mean_deviation_and_the_largest_p_value(made):
    outcome = reproduce(TABLES["main-comparison"], made, [42, 7])
    assert all(values.shape == (2,) for values in outcome.cells.values())
    assert "±" in outcome.table().markdown()
    assert {MULTIBIT.title, MULTIBIT_PLUS.title} <= {row.title for row in outcome.cells.rows}


def test_runs_of_methods_with_equal_settings_are_not_mixed_up(made):
    folders = [made.run(name, 42).folder for name in ("multibit", "separate", *FEW)]
    assert len(set(folders)) == len(folders)
    assert [made.run(name, 42).record.method for name in FEW] == list(FEW)


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_keeps_runs_and_goes_on(tmp_path):
    np.savez(tmp_path / "ready.npz", **plant(120), label_names=[f"topic {i}" for i in range(8)])
    common = ["reproduce", tmp_path / "ready.npz", "--out", tmp_path / "out", "--methods", "rcmh,cca-lsh"]
    tiny = settings(lengths="8,16", scales=2, hidden=16, dimension=8, epochs=1)
    printed = done(*common, "--table", "main-comparison", *tiny)
    assert "Training rcmh" in printed and "CCA" in printed
    again = done(*common, "--table", "main-comparison", "--table", "efficiency", *tiny)
    assert "Training" not in again
    assert_names(refused("reproduce", tmp_path / "ready.npz", "--methods", "frt", *tiny), "--methods", "'frt'")
    said = refused("reproduce", tmp_path / "ready.npz", "--out", tmp_path / "out", "--methods", "rcmh", *tiny)
    assert_names(said, "compared")


# ---- the float ceiling ----------------------------------------------------------------------------------------------


def test_the_ceiling_of_signs_is_the_average_precision_of_their_codes():
    rng = np.random.default_rng(0)
    query, database = rng.choice([-1.0, 1.0], (6, 24)), rng.choice([-1.0, 1.0], (40, 24))
    labels = [rng.integers(0, 2, (n, 3)) for n in (6, 40)]
    expected = average_precision(Codes.binarize(query), Codes.binarize(database), *labels)
    np.testing.assert_allclose(cosine_average_precision(3 * query, 5 * database, *labels), expected)


def test_the_ceiling_of_a_query_without_a_relevant_item_is_undefined():
    assert np.isnan(cosine_average_precision([[1.0]], [[1.0], [0.0]], [[0, 1]], [[1, 0], [1, 0]])).all()
