"""Tables of a study, from measurements made by hand."""

from __future__ import annotations

import csv
import fnmatch
import io
import itertools

import numpy as np
import pytest

from multibit.errors import MismatchError
from multibit.evaluation.agreement import LengthAgreement, Quantization
from multibit.evaluation.assessment import Assessment
from multibit.evaluation.cost import Cost, ModelSize, Times
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.health import CodeHealth
from multibit.evaluation.metric import MAP, RESOLUTION
from multibit.evaluation.strata import Stratum
from multibit.features.leaks import LookAlikes
from multibit.report.study import Study
from multibit.report.study_tables import TABLE_FILES, study_tables
from multibit.table import Number

DIRECTIONS = ("i2t", "t2i")


def evaluation(ap=(0.25, 0.5), resolution=(0.5, 0.25, 0.125, 0.06), lengths=(16, 64), **changed):
    """The same AP everywhere; resolution is a little larger for text queries and at more bits."""
    values = {(MAP, direction, bits): np.array(ap, float) for direction in DIRECTIONS for bits in lengths}
    for reference, (metric, base) in itertools.product(
        ("IDF", "label names"), zip(RESOLUTION, resolution, strict=True)
    ):
        for direction, bits in itertools.product(DIRECTIONS, lengths):
            value = base + bits / 1000 + (0.02 if direction == "t2i" else 0)
            values[metric.under(reference), direction, bits] = np.array([value - 0.01, value + 0.01])
    settings = {"protocol": "all items", "lengths": tuple(lengths), "queries": len(ap), "database": 50, "curves": {}}
    floors = {"random": np.array([0.1, 0.2]), "popularity": np.array([0.2, 0.3])}
    return Evaluation(**{**settings, "values": values, "floors": floors, **changed})


def assessment(name="ours", lengths=(16, 64), shift=0.0, evaluations=None, **changed):
    """Numbers that are easy to check; `shift` makes runs differ."""
    pairs = [
        LengthAgreement(pair, np.array([0.5, 0.7]) + shift, np.array([0.1, 0.2]))
        for pair in itertools.combinations(lengths, 2)
    ]
    correlation = np.array([[1, 0.5, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0.25], [0, 0, 0.25, 1]])
    health = CodeHealth(
        np.array([0.5, 0.25, 1.0, 0.5]), np.array([1.0, 0.8, 0.0, 1.0]), correlation, {2: 3, 4: 1234}, (3, 1)
    )
    settings = {
        "facts": {"code": "4 bits"},
        "evaluations": evaluations or [evaluation(lengths=lengths), evaluation(lengths=lengths, protocol="new items")],
        "agreement": dict.fromkeys(DIRECTIONS, pairs) if pairs else {},
        "quantization": {
            (direction, bits): Quantization(bits, 0.03125, np.array([0.5, 0.75]), 0.19)
            for direction in DIRECTIONS
            for bits in lengths
        },
        "health": {"image": health, "text": health},
        "cost": Cost(
            payload={bits: 2**20 * bits // 64 for bits in lengths},
            nested=2**20,
            model=ModelSize(bytes=2_500_000, parameters=620_000, flops=1_500_000),
            encode={"image": Times(0.5, 1.25), "text": Times(0.25, 0.75)},
            query={bits: Times(bits / 1000, bits / 500) for bits in lengths},
        ),
        "strata": {
            direction: (
                Stratum("no shared label", 12345, np.array([0.5 + shift, np.nan, 0.75 + shift])),
                Stratum("no shared label, graph top 25 %", 7, np.array([0.125, np.nan, np.nan])),
            )
            for direction in DIRECTIONS
        },
        "precision": {},
        "displacement": np.zeros((2, 0)),
        "shared": {},
        "teacher": None,
        "blocks": (3, 1),
        "warnings": [],
    }
    return Assessment(name=name, lengths=tuple(lengths), **{**settings, **changed})


def tables_of(*runs):
    return study_tables(Study.of(runs))


def texts(row):
    """The cells of a row as they are printed."""
    return tuple(map(str, row))


# The study


def test_a_study_of_one_run_has_no_comparison():
    study = Study.of([assessment()])
    assert study.comparisons == ()
    assert study.first is study.runs[0]


def test_a_study_compares_the_first_run_under_each_protocol_and_numbers_repeated_names():
    study = Study.of([assessment("run"), assessment("run"), assessment("theirs")])
    assert [run.name for run in study.runs] == ["run", "run (2)", "theirs"]
    assert [comparison.names for comparison in study.comparisons] == [("run", "run (2)", "theirs")] * 2
    assert [comparison.metric for comparison in study.comparisons] == [MAP, MAP]


@pytest.mark.parametrize("changed", [{"queries": 3}, {"database": 51}, {"lengths": (8, 64)}])
def test_a_study_refuses_runs_that_were_evaluated_on_other_items_or_lengths(changed):
    runs = [assessment("ours", evaluations=[evaluation()]), assessment("theirs", evaluations=[evaluation(**changed)])]
    with pytest.raises(MismatchError) as caught:
        Study.of(runs)
    assert "theirs" in caught.value.problem
    assert "ours" in caught.value.problem


def test_a_study_takes_comparisons_that_were_made_before(monkeypatch):
    runs = [assessment("ours"), assessment("theirs")]
    before = Study.of(runs).comparisons
    monkeypatch.setattr("multibit.report.study.compare", lambda *_, **__: pytest.fail("compared twice"))
    assert Study.of(runs, before).comparisons == before


# Which tables


def test_one_run_has_a_table_of_each_kind():
    assert list(tables_of(assessment())) == [
        "accuracy-1", "accuracy-2", "resolution-1", "resolution-2",
        "agreement", "quantization", "strata", "bits", "cost",
    ]  # fmt: skip


def test_several_runs_are_compared_under_each_protocol():
    tables = tables_of(assessment(), assessment("theirs"))
    assert [name for name in tables if name.startswith("comparison")] == ["comparison-1", "comparison-2"]
    assert "all items" in tables["comparison-1"].title and "new items" in tables["comparison-2"].title


def test_what_was_not_measured_has_no_table():
    tables = tables_of(assessment(lengths=(16,), strata={}, evaluations=[evaluation(lengths=(16,))]))
    assert list(tables) == ["accuracy-1", "resolution-1", "quantization", "bits", "cost"]


def test_runs_of_one_name_stay_apart():
    better = [evaluation([0.75, 1.0], protocol=protocol) for protocol in ("all items", "new items")]
    tables = tables_of(assessment("run"), assessment("run", evaluations=better))
    pair = [("run", "37.50", ""), ("run (2)", "87.50", "-50.00")]
    assert [texts(row)[2:5] for row in tables["comparison-1"].rows] == pair * 4


# Resolution


def test_resolution_of_one_run_table():
    assert tables_of(assessment())["resolution-1"].markdown() == (
        "**Relevance resolution, all items**\n"
        "\n"
        "| reference | bits | run | NDCG@100 | tau-b | collision | inversion |\n"
        "|---|--:|---|--:|--:|--:|--:|\n"
        "| IDF | 16 | ours | 0.526 | 0.276 | 0.151 | 0.086 |\n"
        "| IDF | 64 | ours | 0.574 | 0.324 | 0.199 | 0.134 |\n"
        "| label names | 16 | ours | 0.526 | 0.276 | 0.151 | 0.086 |\n"
        "| label names | 64 | ours | 0.574 | 0.324 | 0.199 | 0.134 |\n"
        "\n"
        "Mean of both directions. NDCG@100 on the whole database; the others on the union of the first 100 "
        "ranks of the run and of ours."
    )


def test_resolution_marks_the_best_of_each_length_and_fewer_collisions_are_better():
    runs = [
        assessment("ours", evaluations=[evaluation(resolution=(0.5, 0.2, 0.3, 0.1))]),
        assessment("a", evaluations=[evaluation(resolution=(0.4, 0.3, 0.2, 0.1))]),
        assessment("b_c", evaluations=[evaluation(resolution=(0.3, 0.1, 0.4, 0.2))]),
    ]
    table = tables_of(*runs)["resolution-1"]
    body = table.latex().splitlines()[7:13]
    assert body == [
        r"IDF & 16 & ours & \textbf{0.526} & \underline{0.226} & \underline{0.326} & \textbf{0.126} \\",
        r"IDF & 16 & a & \underline{0.426} & \textbf{0.326} & \textbf{0.226} & \textbf{0.126} \\",
        r"IDF & 16 & b\_c & 0.326 & 0.126 & 0.426 & \underline{0.226} \\",
        r"IDF & 64 & ours & \textbf{0.574} & \underline{0.274} & \underline{0.374} & \textbf{0.174} \\",
        r"IDF & 64 & a & \underline{0.474} & \textbf{0.374} & \textbf{0.274} & \textbf{0.174} \\",
        r"IDF & 64 & b\_c & 0.374 & 0.174 & 0.474 & \underline{0.274} \\",
    ]


# The others


def test_agreement_table():
    runs = [assessment(lengths=(8, 16, 64)), assessment("theirs", lengths=(8, 16, 64), shift=0.1)]
    assert tables_of(*runs)["agreement"].markdown() == (
        "**Cross-length ranking agreement**\n"
        "\n"
        "|  | tau-b 8-64 | mean tau-b of all pairs | mean rank displacement 8-64 |\n"
        "|---|--:|--:|--:|\n"
        "| ours, image-to-text | 0.600 | 0.600 | 0.150 |\n"
        "| ours, text-to-image | 0.600 | 0.600 | 0.150 |\n"
        "| theirs, image-to-text | 0.700 | 0.700 | 0.150 |\n"
        "| theirs, text-to-image | 0.700 | 0.700 | 0.150 |\n"
        "\n"
        "Over the whole database, mean of the first 2 queries."
    )


def test_agreement_shows_the_most_distant_pair_and_the_mean():
    taus = {(8, 16): 0.75, (8, 64): 0.25, (16, 64): 0.5}
    pairs = [LengthAgreement(pair, np.array([tau]), np.array([1 - tau])) for pair, tau in taus.items()]
    run = assessment(lengths=(8, 16, 64), agreement=dict.fromkeys(DIRECTIONS, pairs))
    assert texts(tables_of(run)["agreement"].rows[0]) == ("ours, image-to-text", "0.250", "0.500", "0.750")


def test_quantization_table():
    assert tables_of(assessment())["quantization"].markdown() == (
        "**Quantisation loss**\n"
        "\n"
        "|  | bits | deviation | tau-b soft/binary | S(B) | ceiling | gap |\n"
        "|---|--:|--:|--:|--:|--:|--:|\n"
        "| image-to-text | 16 | 0.0312 | 0.625 | 0.1900 | 0.900 | 0.275 |\n"
        "| image-to-text | 64 | 0.0312 | 0.625 | 0.1900 | 0.900 | 0.275 |\n"
        "| text-to-image | 16 | 0.0312 | 0.625 | 0.1900 | 0.900 | 0.275 |\n"
        "| text-to-image | 64 | 0.0312 | 0.625 | 0.1900 | 0.900 | 0.275 |\n"
        "\n"
        "tau-b of the first 2 queries; S(B) is the share of tied pairs."
    )


def test_strata_table():
    assert tables_of(assessment())["strata"].markdown() == (
        "**Pairs that share no label**\n"
        "\n"
        "|  | pairs | NDCG@100 | count |\n"
        "|---|---|--:|--:|\n"
        "| ours, image-to-text | no shared label | 0.625 | 12,345 |\n"
        "| ours, image-to-text | no shared label, graph top 25 % | 0.125 | 7 |\n"
        "| ours, text-to-image | no shared label | 0.625 | 12,345 |\n"
        "| ours, text-to-image | no shared label, graph top 25 % | 0.125 | 7 |\n"
        "\n"
        "64 bits, label-name reference; the first 3 queries."
    )


def test_strata_note_names_the_length_nearest_to_64_bits():
    run = assessment(lengths=(8, 24), evaluations=[evaluation(lengths=(8, 24))])
    assert tables_of(run)["strata"].note.startswith("24 bits")


@pytest.mark.filterwarnings("error")
def test_a_stratum_without_pairs_is_printed_as_a_dash_without_a_warning():
    nothing = Stratum("no shared label, graph top 25 %", 0, np.array([np.nan, np.nan]))
    run = assessment(strata={"i2t": (nothing, nothing)})
    assert texts(tables_of(run)["strata"].rows[0])[2:] == ("-", "0")


def test_use_of_the_bits_table():
    """The last block is one bit, which correlates with no other in it."""
    table = tables_of(assessment())["bits"]
    assert table.markdown() == (
        "**Use of the bits in the database**\n"
        "\n"
        "|  | bits | \\|share of ones - 0.5\\| | entropy | \\|correlation\\| |\n"
        "|---|--:|--:|--:|--:|\n"
        "| image, scale 1 | 3 | 0.250 | 0.600 | 0.167 |\n"
        "| image, scale 2 | 1 | 0.000 | 1.000 | 0.000 |\n"
        "| image, first 2 bits | 3 codes |  |  |  |\n"
        "| image, first 4 bits | 1,234 codes |  |  |  |\n"
        "| text, scale 1 | 3 | 0.250 | 0.600 | 0.167 |\n"
        "| text, scale 2 | 1 | 0.000 | 1.000 | 0.000 |\n"
        "| text, first 2 bits | 3 codes |  |  |  |\n"
        "| text, first 4 bits | 1,234 codes |  |  |  |\n"
        "\n"
        "Means over the bits of a block."
    )


def test_cost_table():
    assert list(csv.reader(io.StringIO(tables_of(assessment())["cost"].csv()))) == [
        ["run", "what", "cost", "95th percentile"],
        ["ours", "one nested database, both modalities", "1.000 MiB", ""],
        ["ours", "2 separate databases", "1.250 MiB", ""],
        ["ours", "weights", "2.50 MB", ""],
        ["ours", "parameters", "0.62 M", ""],
        ["ours", "coding one image and one text", "0.0015 GFLOP", ""],
        ["ours", "coding one image feature vector", "0.500 ms", "1.250 ms"],
        ["ours", "coding one text feature vector", "0.250 ms", "0.750 ms"],
        ["ours", "one search at 16 bits", "0.0160 ms", "0.0320 ms"],
        ["ours", "one search at 64 bits", "0.0640 ms", "0.1280 ms"],
    ]


def test_runs_are_listed_in_the_order_given():
    runs = [assessment("b"), assessment("a"), assessment("c")]
    tables = tables_of(*runs)
    for name, column in {"cost": 0, "strata": 0, "agreement": 0}.items():
        seen = [str(row[column]).split(",")[0] for row in tables[name].rows]
        assert [key for key, _ in itertools.groupby(seen)] == ["b", "a", "c"]


@pytest.mark.parametrize("form", ["markdown", "csv", "latex"])
def test_every_table_has_all_columns_in_every_format(form):
    for table in tables_of(assessment(r"a|b & 50 % \x"), assessment("theirs")).values():
        text = getattr(table, form)()
        assert all(len(row) == len(table.header) for row in table.rows)
        lines = {
            "markdown": [line.replace(r"\|", "").count("|") - 1 for line in text.splitlines() if line.startswith("|")],
            "csv": [len(row) for row in csv.reader(io.StringIO(text))],
            "latex": [line.replace(r"\&", "").count("&") + 1 for line in text.splitlines() if line.endswith(r"\\")],
        }[form]
        extra = 2 if form == "markdown" else 1  # the header, and in markdown the rule below it
        assert lines == [len(table.header)] * (len(table.rows) + extra)


def test_every_number_is_a_number():
    for name, table in tables_of(assessment(), assessment("theirs")).items():
        for row in table.rows:
            left = [cell for cell in row if not isinstance(cell, Number)]
            assert not [cell for cell in left if cell.replace(".", "").isdigit()], name


def test_every_table_has_a_file_pattern():
    names = tables_of(assessment(), assessment("theirs"))
    assert [name for name in names if not any(fnmatch.fnmatch(name, each) for each in TABLE_FILES)] == []


def test_look_alikes_are_left_out_and_counted():
    alike = LookAlikes(np.arange(2), np.array([0]), np.array([0], np.int64))
    table = study_tables(Study.of([assessment(look_alikes=alike)]))["look-alikes"]
    numbers = [tuple(cell.value for cell in row[1:]) for row in table.rows]
    with_all, without = (2, 37.5, 37.5), (1, 50.0, 50.0)  # AP of the two queries: .25 and .5
    assert numbers == [with_all] * 2 + [without] * 4 + [with_all] * 2 + [without] * 4
    nothing = LookAlikes(np.arange(2), np.arange(0), np.arange(0))
    assert "look-alikes" not in study_tables(Study.of([assessment(look_alikes=nothing)]))
