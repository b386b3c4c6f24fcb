"""Figures show the numbers of the study, are reproducible, and stay legible in grey."""

from __future__ import annotations

import copy
import io
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from assessed import assessed_runs
from multibit.evaluation.metric import MAP
from multibit.report import run_figures
from multibit.report import study_figures as module
from multibit.report.study import Study
from multibit.report.svg import as_svg

pytestmark = pytest.mark.slow  # two runs are trained
NAMES = [
    "map-by-length", "training", "precision-recall", "precision-at-n", "rank-displacement",
    "distances-by-shared-labels", "label-graph", "bit-balance", "bit-budget", "accuracy-and-cost",
]  # fmt: skip
SIDES = {"i2t": "image-to-text", "t2i": "text-to-image"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two assessed runs on one split of planted data."""
    return assessed_runs(tmp_path_factory.mktemp("planted"), [f"topic {i}" for i in range(8)])


def report_figures(runs):
    return module.draw_study(Study.of(runs))


def report_figure(runs, name):
    """One of them: the others are not drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FIGURES", [each for each in module.FIGURES if each.name == name])
        return report_figures(runs)[name]


@pytest.fixture(scope="module")
def drawn(runs):
    return report_figures(runs)


@pytest.fixture(scope="module")
def drawn_again(runs):
    return report_figures(runs)


def png(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=50)
    return buffer.getvalue()


def lines_of(axes):
    """Lines in the legend: label -> line."""
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def legend_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


# All of them


def test_one_run_has_ten_figures_and_a_second_one_adds_the_differences(runs, drawn):
    assert list(report_figures(runs[:1])) == NAMES
    assert list(drawn) == [NAMES[0], "ap-differences", *NAMES[1:]]


@pytest.mark.parametrize("name", [*NAMES, "ap-differences"])
def test_two_renderings_are_the_same_file(drawn, drawn_again, name):
    first, again = as_svg(drawn[name], name), as_svg(drawn_again[name], name)
    assert first == again
    assert b"<text" in first and b"</svg>" in first and 3_000 < len(first) < 200_000
    with Image.open(io.BytesIO(png(drawn[name]))) as image:
        assert len(np.unique(np.asarray(image.convert("L")))) > 20


@pytest.mark.parametrize("name", NAMES)
def test_figures_follow_the_colour_scheme(drawn, name):
    """What is drawn in black has the colour of the text of the page, and the ground is transparent."""
    text = as_svg(drawn[name], name).decode()
    assert "prefers-color-scheme: dark" in text.replace("prefers-color-scheme:dark", "prefers-color-scheme: dark")
    assert "currentColor" in text and "#000000" not in text and "fill: #ffffff" not in text
    for tag in re.findall(r"<text\b[^>]*>", text):
        assert "currentColor" in tag or "fill: #" in tag


def test_every_caption_names_the_run_and_says_what_to_see(runs):
    study = Study.of(runs)
    captions = [figure.caption(study) for figure in module.figures_of(study)]
    assert all(caption.startswith("first") and caption.endswith(".") for caption in captions)
    assert len(set(captions)) == len(captions)


def test_every_panel_has_a_title_and_axis_labels(drawn):
    for axes in itertools.chain.from_iterable(figure.axes for figure in drawn.values()):
        if axes.get_label() != "<colorbar>":
            assert axes.get_title() and axes.get_xlabel() and axes.get_ylabel()


@pytest.mark.filterwarnings("error")
def test_a_run_of_one_length_without_names_is_drawn_as_well(runs):
    first = runs[0]
    one = replace(
        first,
        lengths=(16,),
        agreement={},
        strata={},
        evaluations=first.evaluations[:1],
    )
    figures = report_figures([one])
    assert list(figures) == [name for name in NAMES if name != "rank-displacement"]  # nothing to compare
    assert len(lines_of(figures["precision-at-n"].axes[0])) == 1


def test_without_teacher_and_cost_their_figures_are_left_out(runs):
    codes = replace(runs[0], teacher=None, cost=None, blocks=(), quantization={}, strata={})
    needing = {"label-graph", "bit-budget", "accuracy-and-cost"}
    figures = report_figures([codes])
    assert list(figures) == [name for name in NAMES if name not in needing]
    assert figures["bit-balance"].axes[0].get_xlabel() == "bit"


def test_a_run_that_is_only_compared_has_no_figures_of_a_single_run(runs):
    needing = {"precision-at-n", "rank-displacement", "distances-by-shared-labels"}
    assert list(report_figures([runs[1]])) == [name for name in NAMES if name not in needing]


# Styles


@pytest.mark.parametrize("name", ["precision-at-n", "distances-by-shared-labels"])
def test_lengths_of_one_run_differ_in_grey(drawn, name):
    for axes in drawn[name].axes:
        styles = [(line.get_alpha(), line.get_marker()) for line in lines_of(axes).values()]
        assert len(styles) >= 2 and len(set(styles)) == len(styles)
        assert len({line.get_color() for line in lines_of(axes).values()}) == 1


def test_colour_is_the_run_and_dash_the_direction(runs):
    axes = report_figure([*runs, replace(runs[1], name="third")], "map-by-length").axes[0]
    lines = {label: line for label, line in lines_of(axes).items() if not label.startswith("floor")}
    colors = {name: {line.get_color() for label, line in lines.items() if label.startswith(name)} for name in
              ("first", "second", "third")}  # fmt: skip
    assert all(len(found) == 1 for found in colors.values()) and len(set.union(*colors.values())) == 3
    for arrow, dash in {"image-to-text": "-", "text-to-image": "--"}.items():
        assert {line.get_linestyle() for label, line in lines.items() if label.endswith(arrow)} == {dash}


# The numbers


def test_map_by_length_shows_the_means_and_the_floors(runs, drawn):
    axes = drawn["map-by-length"].axes
    assert [each.get_title() for each in axes] == [e.protocol for e in runs[0].evaluations]
    for i, panel in enumerate(axes):
        lines = lines_of(panel)
        for run, (direction, arrow) in itertools.product(runs, SIDES.items()):
            line = lines.pop(f"{run.name}, {arrow}")
            means = [100 * np.nanmean(run.evaluations[i].values[MAP, direction, bits]) for bits in (8, 16)]
            assert line.get_xdata().tolist() == [8, 16]
            np.testing.assert_allclose(line.get_ydata(), means)
        for name, line in lines.items():
            floor = 100 * runs[0].evaluations[i].floors[name.removeprefix("floor: ")].mean()
            np.testing.assert_allclose(line.get_ydata(), floor)
        noted = " ".join(text.get_text() for text in panel.texts)
        for name, values in runs[0].evaluations[i].floors.items():
            assert f"floor: {name}" in lines or f"{name} {100 * values.mean():.1f}" in noted


def test_precision_and_recall_are_drawn_where_something_is_found(runs, drawn):
    curves = runs[0].evaluations[0].curves
    for axes, direction in zip(drawn["precision-recall"].axes, SIDES, strict=True):
        for bits, line in zip((8, 16), lines_of(axes).values(), strict=True):
            curve = curves[direction, bits]
            known = ~np.isnan(curve.precision)
            np.testing.assert_array_equal(line.get_xdata(), curve.recall[known])
            np.testing.assert_array_equal(line.get_ydata(), curve.precision[known])


def test_precision_at_n_starts_at_the_first_rank(runs, drawn):
    for axes, direction in zip(drawn["precision-at-n"].axes, SIDES, strict=True):
        for bits, line in zip((8, 16), lines_of(axes).values(), strict=True):
            np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 101))
            np.testing.assert_array_equal(line.get_ydata(), runs[0].precision[direction, bits])


def test_rank_displacement_counts_every_sampled_item(runs, drawn):
    axes, _ = drawn["rank-displacement"].axes
    rank, moved = runs[0].displacement
    assert axes.collections[0].get_array().sum() == len(rank)
    assert any(text.get_text() == f"mean |change| {np.abs(moved).mean():.3f}" for text in axes.texts)


def test_distances_are_one_line_for_each_number_of_shared_labels(runs, drawn):
    (axes,) = drawn["distances-by-shared-labels"].axes
    assert list(runs[0].shared) == [0, 1, 2, 3]
    assert legend_of(axes) == ["0 shared", "1 shared", "2 shared", "3 or more shared"]
    for line, share in zip(axes.get_lines(), runs[0].shared.values(), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), np.arange(17))
        np.testing.assert_array_equal(line.get_ydata(), share)


def test_the_label_graph_is_drawn_whole_and_the_kernels_start_at_one(runs, drawn):
    graph, scales = drawn["label-graph"].axes[:2]
    shown, weights = np.asarray(graph.get_images()[0].get_array()), runs[0].teacher.graph.weights
    assert shown.shape == (8, 8)
    np.testing.assert_array_equal(np.sort(shown, axis=None), np.sort(weights, axis=None))
    np.testing.assert_array_equal(shown, shown.T)
    lines = lines_of(scales)
    for tau in runs[0].teacher.tau:
        line = lines[f"tau = {tau:.2f}"]
        np.testing.assert_allclose(line.get_ydata(), np.exp(-tau * line.get_xdata()))
    assert lines["fractional kernel"].get_ydata()[0] == 1


def test_labels_have_their_names_and_an_empty_graph_is_explained(runs):
    names = [text.get_text() for text in report_figure(runs, "label-graph").axes[0].get_yticklabels()]
    assert sorted(names) == sorted(f"topic {i}" for i in range(8))
    teacher = copy.deepcopy(runs[0].teacher)
    teacher.graph.weights[:] = 0
    (text,) = report_figure([replace(runs[0], teacher=teacher)], "label-graph").axes[0].texts
    assert text.get_text()


def test_many_labels_are_cut_to_those_of_the_largest_degree(runs, monkeypatch):
    monkeypatch.setattr(run_figures, "MOST_NAMES", 3)
    study = Study.of(runs[:1])
    assert np.asarray(module.draw_study(study)["label-graph"].axes[0].get_images()[0].get_array()).shape == (3, 3)
    (caption,) = (each.caption(study) for each in module.FIGURES if each.name == "label-graph")
    assert "3 of 8" in caption


def test_training_shows_the_loss_and_the_validation_score_of_each_epoch(runs, drawn):
    loss, score = drawn["training"].axes
    for run in runs:
        total = np.array([row["total"] for row in run.history])
        np.testing.assert_allclose(lines_of(loss)[run.name].get_ydata(), total / abs(total[0]))
        np.testing.assert_allclose(
            lines_of(score)[run.name].get_ydata(), [100 * row["validation_mAP"] for row in run.history]
        )


def test_bit_balance_has_a_bar_for_each_bit_and_a_line_between_scales(runs, drawn):
    blocks = runs[0].blocks
    for axes, modality in zip(drawn["bit-balance"].axes, ("image", "text"), strict=True):
        (bars,) = axes.patches
        np.testing.assert_allclose(bars.get_data().values, runs[0].health[modality].balance)
        ends = [line.get_xdata()[0] for line in axes.get_lines()[1:]]
        assert ends == [blocks[0] + 0.5, blocks[0] + blocks[1] + 0.5]


def test_bit_budget_has_a_bar_for_each_scale(runs, drawn):
    (axes,) = drawn["bit-budget"].axes
    assert [bar.get_height() for bar in axes.patches] == list(runs[0].blocks)
    assert [text.get_text() for text in axes.texts] == [str(bits) for bits in runs[0].blocks]


def test_accuracy_is_drawn_against_bytes_and_microseconds(runs, drawn):
    storage, time = drawn["accuracy-and-cost"].axes
    for run in runs:
        means = [
            50 * sum(np.nanmean(run.evaluations[0].values[MAP, direction, bits]) for direction in SIDES)
            for bits in (8, 16)
        ]
        np.testing.assert_allclose(lines_of(storage)[run.name].get_ydata(), means)
        assert lines_of(storage)[run.name].get_xdata().tolist() == [1, 2]
    for run, container in zip(runs, time.containers, strict=True):  # points, because times are noisy
        micro = [1000 * run.cost.query[bits].median for bits in (8, 16)]
        np.testing.assert_allclose(np.array(container[0].get_xdata(), float), micro)
        assert container[0].get_linestyle() == "None"


def test_ap_differences_rise_from_the_worst_query_to_the_best(runs, drawn):
    for axes, direction in zip(drawn["ap-differences"].axes, SIDES, strict=True):
        (line,) = (line for label, line in lines_of(axes).items() if label.startswith("second: "))
        first, second = (run.evaluations[0].values[MAP, direction, 16] for run in runs)
        np.testing.assert_allclose(line.get_xdata(), np.sort(100 * (first - second)))
        np.testing.assert_allclose(line.get_ydata(), np.arange(1, 21) / 20)
        assert line.get_label() == f"second: {100 * (first > second).mean():.0f} % improved"
        assert axes.get_title() == f"{SIDES[direction]}, 16 bits"


# Names


@pytest.mark.parametrize("name", ["<script>", "a & b", "100 %", "ünïcode", "cost 5 $"])
def test_names_of_runs_are_unchanged_in_the_legend(runs, name):
    figure = report_figure([replace(runs[0], name=name), runs[1]], "accuracy-and-cost")
    assert legend_of(figure.axes[0]) == [name, "second"]
    assert len(png(figure)) > 1000


def test_a_name_with_two_dollars_is_not_a_formula(runs):
    png(report_figure([replace(runs[0], name="run$1_$2"), runs[1]], "accuracy-and-cost"))


def test_a_name_that_begins_with_an_underscore_is_in_the_legend(runs):
    """matplotlib hides labels that begin with an underscore, so a space precedes it."""
    figures = report_figures([replace(runs[0], name="_run"), runs[1]])
    assert legend_of(figures["accuracy-and-cost"].axes[0]) == [" _run", "second"]
    assert " _run, image-to-text" in lines_of(figures["map-by-length"].axes[0])


def test_no_figure_measures(runs, monkeypatch):
    """Differences come with the study."""
    study = Study.of(runs)
    monkeypatch.setattr("multibit.evaluation.comparison.compare_queries", lambda *_, **__: pytest.fail("measured"))
    assert "ap-differences" in module.draw_study(study)
