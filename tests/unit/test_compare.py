"""Comparison of runs: best, second and significance, and which runs cannot be compared."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from multibit.errors import ConfigError, DataError, MismatchError
from multibit.evaluation.comparison import compare, compare_queries
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.metric import INVERSION, MAP
from multibit.table import Number

DIRECTIONS = ("i2t", "t2i")


def evaluation(ap, *, name="run", lengths=(16,), metric=MAP, **changed):
    values = {(metric, direction, bits): np.array(ap, float) for direction in DIRECTIONS for bits in lengths}
    settings = {"protocol": "all items", "lengths": tuple(lengths), "queries": len(ap), "database": 50}
    floors = {"random": np.full(len(ap), 0.1)}
    return Evaluation(**{**settings, "values": values, "floors": floors, "curves": {}, "name": name, **changed})


def texts(*cells):
    """Numbers as they are printed."""
    assert all(isinstance(cell, Number) for cell in cells)
    return list(map(str, cells))


@pytest.fixture
def three():
    """Forty queries that all gain ten points are significant; equal values are not."""
    return [evaluation([ap] * 40, name=name) for name, ap in (("ours", 0.5), ("worse", 0.4), ("same", 0.5))]


def test_comparison_table(three):
    table, note = compare(*three).markdown().rsplit("\n\n", 1)
    assert table == (
        "**ours compared with other runs in mAP, all items**\n"
        "\n"
        "|  | bits | run | mAP | ours minus it | 95 % interval | improved | tied | degraded | p |\n"
        "|---|--:|---|--:|--:|---|--:|--:|--:|--:|\n"
        "| image-to-text | 16 | ours | **50.00** |  |  |  |  |  |  |\n"
        "| image-to-text | 16 | worse | _40.00_ | +10.00* | +10.00 to +10.00 | 100.0 | 0.0 | 0.0 | 0.0001 |\n"
        "| image-to-text | 16 | same | **50.00** | +0.00 | +0.00 to +0.00 | 0.0 | 100.0 | 0.0 | 1.0000 |\n"
        "| text-to-image | 16 | ours | **50.00** |  |  |  |  |  |  |\n"
        "| text-to-image | 16 | worse | _40.00_ | +10.00* | +10.00 to +10.00 | 100.0 | 0.0 | 0.0 | 0.0001 |\n"
        "| text-to-image | 16 | same | **50.00** | +0.00 | +0.00 to +0.00 | 0.0 | 100.0 | 0.0 | 1.0000 |"
    )
    assert "mAP in percent" in note
    assert "40 queries" in note
    assert "p < 0.05" in note


def test_latex_is_booktabs_with_the_best_bold_the_second_underlined_and_a_star(three):
    lines = compare(*three).latex().splitlines()
    assert {r"\toprule", r"\midrule", r"\bottomrule"} <= set(lines)
    assert r"image-to-text & 16 & ours & \textbf{50.00} &  &  &  &  &  &  \\" in lines
    assert [line for line in lines if r"worse & \underline{40.00} & +10.00* &" in line]


def test_csv_has_a_row_for_each_run(three):
    rows = list(csv.DictReader(io.StringIO(compare(*three).csv())))
    assert [row["run"] for row in rows] == ["ours", "worse", "same"] * 2
    assert [row["mAP"] for row in rows] == ["50.00", "40.00", "50.00"] * 2


def test_differences_are_values(three):
    ours, worse, _ = three
    difference = compare(ours, worse).differences["worse", "t2i", 16]
    expected = compare_queries(ours.values[MAP, "t2i", 16], worse.values[MAP, "t2i", 16])
    assert (difference.mean, difference.p) == (expected.mean, expected.p)
    assert (difference.low, difference.high) == pytest.approx((expected.low, expected.high), rel=1e-12)


def test_a_comparison_takes_the_queries_that_both_define_and_counts_them():
    ours = evaluation([0.5, np.nan, 0.7, 0.1])
    table = compare(ours, evaluation([0.4, np.nan, 0.7, 0.3])).table()
    assert [str(row[3]) for row in table.rows[:2]] == ["43.33", "46.67"]
    assert texts(table.rows[1][4], *table.rows[1][6:9]) == ["-3.33", "33.3", "33.3", "33.3"]
    assert "the 3 queries" in table.note
    alone = compare(ours, evaluation([0.4, np.nan, np.nan, np.nan])).table()
    assert "the 1 query that" in alone.note


def test_a_difference_that_could_be_chance_has_no_star():
    row = compare(evaluation([0.9, 0.5, 0.6, 0.2]), evaluation([0.5, 0.6, 0.5, 0.3])).table().rows[1]
    assert str(row[4]) == "+7.50"
    assert row[9].value > 0.05


def test_fewer_inversions_are_better():
    """Best, and improved, is the smaller value."""
    pair = [
        evaluation([0.2, 0.3, 0.4], metric=INVERSION.under("IDF")),
        evaluation([0.3, 0.4, 0.4], metric=INVERSION.under("IDF")),
    ]
    table = compare(*pair, names=("few", "many"), metric="inversion IDF").table()
    assert (table.marks[0, 3], table.marks[1, 3]) == ("best", "second")
    assert texts(*table.rows[1][6:9]) == ["66.7", "33.3", "0.0"]
    assert table.note.startswith("inversion IDF in percent")


def test_names_are_those_of_the_runs_or_given_and_repeated_ones_are_numbered(three):
    assert compare(*three).names == ("ours", "worse", "same")
    assert compare(*three, names=("a", "b", "a")).names == ("a", "b", "a (2)")
    with pytest.raises(DataError) as caught:
        compare(*three, names=["a"])
    assert "1" in caught.value.problem
    assert "3" in caught.value.problem


def test_one_run_is_refused(three):
    with pytest.raises(DataError) as caught:
        compare(three[0])
    assert "1" in caught.value.problem


def test_a_metric_that_was_not_measured_is_refused(three):
    with pytest.raises(DataError) as caught:
        compare(*three, metric="mAP@5")
    assert "mAP@5" in caught.value.problem


def test_an_unknown_metric_is_refused(three):
    with pytest.raises(ConfigError) as caught:
        compare(*three, metric="accuracy")
    assert caught.value.option == "metric"


@pytest.mark.parametrize("changed", [{"database": 51}, {"protocol": "new items"}, {"lengths": (8,)}, {"queries": 3}])
def test_runs_evaluated_on_other_items_or_lengths_are_refused(three, changed):
    with pytest.raises(MismatchError) as caught:
        compare(three[0], replace(three[1], **changed))
    assert "worse" in caught.value.problem
    assert str(*changed.values()).strip("(),") in caught.value.problem


@pytest.mark.parametrize("part", ["data", "split"])
def test_runs_on_other_data_or_splits_are_refused(three, part):
    ours, worse, same = (
        replace(each, fingerprints={"data": "d", "split": "s", part: digits})
        for each, digits in zip(three, ("1", "2", "1"), strict=True)
    )
    assert compare(ours, same).names == ("ours", "same")
    with pytest.raises(MismatchError) as caught:
        compare(ours, worse)
    assert part in caught.value.problem
    assert "2 and 1" in caught.value.problem
