"""The paper's figures: what is drawn is what the tables measured."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from PIL import Image

from conftest import plant
from multibit import Config, FeatureStore
from multibit.errors import DataError
from multibit.evaluation.relevance import GradedRelevance
from multibit.report import paper_figures
from multibit.report.paper import TABLES
from multibit.report.paper_cells import GRID, ap_gains, displacement_panel
from multibit.report.paper_figures import FIGURES, qualitative_retrieval
from multibit.report.reproduction import Reproduction, Subject

TINY = Config(lengths=(8, 16), scales=2, hidden=16, dimension=8, epochs=1, batch_size=64)


@pytest.fixture(scope="module")
def r(tmp_path_factory):
    """A reproduction whose items have pictures."""
    folder = tmp_path_factory.mktemp("pictures")
    np.savez(folder / "planted.npz", **plant(200), label_names=[f"topic {i}" for i in range(8)])
    ready = FeatureStore.open(folder / "planted.npz")
    Image.new("RGB", (8, 8), "green").save(folder / "one.png")
    store = dataclasses.replace(ready, dataset=dataclasses.replace(ready.dataset, images=(folder / "one.png",) * 200))
    return Reproduction(Subject(store.dataset.labels, store.dataset.label_names, store), folder, TINY, say=str)


def test_the_stability_panels_draw_five_queries_of_each_method(r):
    panels = FIGURES["cross-length-stability"](r, 42).axes
    assert [panel.get_title() for panel in panels] == ["Naive Prefix", "MultiBit"]
    for panel, variant in zip(panels, ("naive-prefix", "full"), strict=True):
        rank, moved, taus = displacement_panel(r, 42, variant)
        drawn = [line.get_xydata() for line in panel.lines if line.get_marker() == "."]
        np.testing.assert_allclose(drawn, np.stack([rank, moved], axis=2))
        assert panel.texts[0].get_text().startswith(f"tau-b {taus.mean():.3f} ±")


def test_the_gain_curves_are_cumulative_distributions(r):
    (panel,) = FIGURES["query-level-gain"](r, 42).axes
    curves = [line.get_xydata() for line in panel.lines if len(line.get_xdata()) == len(r.split.query)]
    for curve, variant in zip(curves, ("single-scale", "uniform-bits", "pairwise"), strict=True):
        np.testing.assert_allclose(curve[:, 0], np.sort(ap_gains(r, 42, variant)))
        assert curve[-1, 1] == 1 and (np.diff(curve[:, 1]) > 0).all()


def test_the_sensitivity_map_marks_the_best_cell(r):
    cells = TABLES["sensitivity"].measure(r, 42)
    panel = FIGURES["parameter-sensitivity"](r, 42).axes[0]
    expected = [[cells[f"eta {eta:.2f}", f"alpha {alpha}"] for alpha in GRID["alpha"]] for eta in GRID["eta"]]
    np.testing.assert_allclose(panel.images[0].get_array(), expected)
    (star,) = [line for line in panel.lines if line.get_marker() == "*"]
    column, row = star.get_xydata()[0].round().astype(int)
    assert expected[row][column] == np.max(expected)


@pytest.mark.parametrize("lengths", [(8, 16), (8, 24, 40)])
def test_figures_of_one_length_say_which(lengths, r):
    other = Reproduction(r.subject, r.folder, TINY.override({"lengths": lengths}), say=str)
    titles = [FIGURES[name](other, 42).axes[0].get_title() for name in ("query-level-gain", "parameter-sensitivity")]
    panel = FIGURES["deployment-cost"](other, 42).axes[1].get_title()
    assert all(f"{lengths[-1]} bits" in title for title in (*titles, panel))


def test_the_contact_sheet_shows_the_trained_length_nearest_to_16_bits(r, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(paper_figures, "contact_sheet", lambda searches, path: drawn.extend(searches))
    other = Reproduction(r.subject, r.folder, TINY.override({"lengths": (8, 20, 40)}), say=str)
    qualitative_retrieval(other, 42, tmp_path / "sheet.png")
    assert {tuple(search.rows) for search in drawn} == {(20,)}


def test_the_cost_panels_have_a_bar_for_each_way_to_serve(r):
    panels = FIGURES["deployment-cost"](r, 42).axes
    assert len(panels) == 4
    for panel in panels:
        assert [tick.get_text() for tick in panel.get_yticklabels()] == ["MultiBit", "MultiBit-Sep", "Naive Prefix"]
    codes = [bar.get_width() for bar in panels[3].patches]
    assert codes == pytest.approx([2 * 150 * bits / 8 / 2**20 for bits in (16, 8 + 16, 16)])


def test_the_contact_sheet_shows_rank_distance_and_relevance_of_both_methods(r, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(paper_figures, "contact_sheet", lambda searches, path: drawn.extend(searches))
    qualitative_retrieval(r, 42, tmp_path / "sheet.png")
    assert [search.show for search in drawn] == ["text", "text", "image", "image"]
    assert [search.image is not None for search in drawn] == [True, True, False, False]
    titles = ["Baseline (no FRT/SBO/MPA)", "Full MultiBit"] * 2
    assert [title in search.title for title, search in zip(titles, drawn, strict=True)] == [True] * 4
    data, relevance = r.store.dataset, GradedRelevance.idf(r.subject.labels[r.split.database])
    for search in drawn:
        (hits,) = search.rows.values()
        asked = np.array([[name in search.labels for name in data.label_names]], np.uint8)
        assert list(search.rows) == [16] and [hit.rank for hit in hits] == list(range(1, 7))
        assert [hit.distance for hit in hits] == sorted(hit.distance for hit in hits)
        rows = [data.ids.index(hit.id) for hit in hits]
        assert set(rows) <= set(r.split.database.tolist())
        np.testing.assert_allclose(
            [hit.payload["relevance"] for hit in hits], relevance.scores(asked, data.labels[rows])[0]
        )


def test_the_contact_sheet_is_a_picture(r, tmp_path):
    qualitative_retrieval(r, 42, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 500 and sheet.height > 400


def test_without_pictures_there_is_no_contact_sheet(r, tmp_path):
    bare = dataclasses.replace(r.store, dataset=dataclasses.replace(r.store.dataset, images=(None,) * 200))
    blind = Reproduction(Subject(bare.dataset.labels, bare.dataset.label_names, bare), r.folder, TINY, say=str)
    with pytest.raises(DataError, match="It needs the pictures themselves, and this data set has features only"):
        qualitative_retrieval(blind, 42, tmp_path / "sheet.png")
