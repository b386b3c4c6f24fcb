"""Runs side by side: best, second and significance, to the letter; and what must not be compared."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from multibit.errors import DataError, MismatchError
from multibit.evaluation.comparison import compare_queries
from multibit.evaluation.protocol import Evaluation
from multibit.report import compare

DIRECTIONS = ("i2t", "t2i")


def evaluation(ap, *, name="run", lengths=(16,), metric="mAP", **changed):
    values = {(metric, direction, bits): np.array(ap, float) for direction in DIRECTIONS for bits in lengths}
    settings = {"protocol": "all items", "lengths": tuple(lengths), "queries": len(ap), "database": 50}
    floors = {"random": np.full(len(ap), 0.1)}
    return Evaluation(**{**settings, "values": values, "floors": floors, "curves": {}, "name": name, **changed})


@pytest.fixture
def three():
    """Forty queries that all gain ten points cannot be chance; equal ones are nothing else."""
    return [evaluation([ap] * 40, name=name) for name, ap in (("ours", 0.5), ("worse", 0.4), ("same", 0.5))]


def test_a_comparison_is_golden_to_the_letter(three):
    assert compare(*three).markdown() == (
        "**ours beside other runs, all items**\n"
        "\n"
        "|  | bits | run | mAP | ours minus it | 95 % interval | improved | tied | degraded | p |\n"
        "|---|--:|---|--:|--:|---|--:|--:|--:|--:|\n"
        "| image-to-text | 16 | ours | **50.00** |  |  |  |  |  |  |\n"
        "| image-to-text | 16 | worse | _40.00_ | +10.00* | +10.00 to +10.00 | 100.0 | 0.0 | 0.0 | 0.0001 |\n"
        "| image-to-text | 16 | same | **50.00** | +0.00 | +0.00 to +0.00 | 0.0 | 100.0 | 0.0 | 1.0000 |\n"
        "| text-to-image | 16 | ours | **50.00** |  |  |  |  |  |  |\n"
        "| text-to-image | 16 | worse | _40.00_ | +10.00* | +10.00 to +10.00 | 100.0 | 0.0 | 0.0 | 0.0001 |\n"
        "| text-to-image | 16 | same | **50.00** | +0.00 | +0.00 to +0.00 | 0.0 | 100.0 | 0.0 | 1.0000 |\n"
        "\n"
        "mAP in percent. Paired over the 40 queries that both runs define: randomisation test (* p < 0.05), bootstrap "
        "interval of the mean difference, share of queries in percent that ours improves, ties or degrades."
    )


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
    expected = compare_queries(ours.values["mAP", "t2i", 16], worse.values["mAP", "t2i", 16])
    assert (difference.mean, difference.p, difference.low) == (expected.mean, expected.p, expected.low)


def test_a_comparison_takes_the_queries_that_both_define_and_counts_them():
    ours = evaluation([0.5, np.nan, 0.7, 0.1])
    table = compare(ours, evaluation([0.4, np.nan, 0.7, 0.3])).table()
    assert [row[3] for row in table.rows[:2]] == ["43.33", "46.67"]
    assert (table.rows[1][4], *table.rows[1][6:9]) == ("-3.33", "33.3", "33.3", "33.3")
    assert "Paired over the 3 queries that both runs define" in table.note
    alone = compare(ours, evaluation([0.4, np.nan, np.nan, np.nan])).table()
    assert "Paired over the 1 query that both runs define" in alone.note


def test_a_difference_that_could_be_chance_has_no_star():
    row = compare(evaluation([0.9, 0.5, 0.6, 0.2]), evaluation([0.5, 0.6, 0.5, 0.3])).table().rows[1]
    assert row[4] == "+7.50"
    assert float(row[9]) > 0.05


def test_fewer_inversions_are_better():
    """Best, and improved, is the smaller value."""
    pair = [evaluation([0.2, 0.3, 0.4], metric="inversion IDF"), evaluation([0.3, 0.4, 0.4], metric="inversion IDF")]
    table = compare(*pair, names=("few", "many"), metric="inversion IDF").table()
    assert (table.marks[0, 3], table.marks[1, 3]) == ("best", "second")
    assert table.rows[1][6:9] == ("66.7", "33.3", "0.0")
    assert table.note.startswith("inversion IDF in percent")


def test_names_are_those_of_the_runs_or_given_and_repeated_ones_are_numbered(three):
    assert compare(*three).names == ("ours", "worse", "same")
    assert compare(*three, names=("a", "b", "a")).names == ("a", "b", "a (2)")
    with pytest.raises(DataError, match="1 names for 3 evaluations"):
        compare(*three, names=["a"])


def test_one_run_is_no_comparison(three):
    with pytest.raises(DataError, match="a comparison needs two or more evaluations, got 1"):
        compare(three[0])


def test_a_metric_that_a_run_lacks_is_named(three):
    with pytest.raises(DataError, match="ours did not measure mAP@5; it has mAP"):
        compare(*three, metric="mAP@5")


@pytest.mark.parametrize("changed", [{"database": 51}, {"protocol": "new items"}, {"lengths": (8,)}, {"queries": 3}])
def test_runs_that_measured_other_things_are_not_compared(three, changed):
    with pytest.raises(MismatchError, match=r"worse and ours measured different queries, databases or lengths: .* x "):
        compare(three[0], replace(three[1], **changed))


@pytest.mark.parametrize("part", ["data", "split"])
def test_runs_on_other_data_or_splits_are_not_compared(three, part):
    ours, worse, same = (
        replace(each, fingerprints={"data": "d", "split": "s", part: digits})
        for each, digits in zip(three, ("1", "2", "1"), strict=True)
    )
    assert compare(ours, same).names == ("ours", "same")
    with pytest.raises(MismatchError, match=f"worse and ours were measured on a different {part}: 2 and 1"):
        compare(ours, worse)
