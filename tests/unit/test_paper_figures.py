"""The paper's figures draw what the tables measure."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from PIL import Image

from conftest import plant
from multibit import Config, FeatureStore
from multibit.config import GRID_ALPHA, GRID_ETA
from multibit.errors import DataError
from multibit.evaluation.relevance import GradedRelevance
from multibit.paper.accuracy_cells import GAIN_OVER, SERVING, ap_gains
from multibit.paper.cells import Alpha, Eta
from multibit.paper.figures import FIGURES
from multibit.paper.ranking_cells import displacements
from multibit.paper.reproduction import Reproduction, Subject
from multibit.paper.tables import TABLES, reproduce

pytestmark = pytest.mark.slow  # tiny runs are trained
TINY = Config(lengths=(8, 16), scales=2, hidden=16, dimension=8, epochs=1, batch_size=64)


@pytest.fixture(scope="module")
def r(tmp_path_factory):
    """A reproduction whose items have images."""
    folder = tmp_path_factory.mktemp("images")
    np.savez(folder / "planted.npz", **plant(200), label_names=[f"topic {i}" for i in range(8)])
    ready = FeatureStore.open(folder / "planted.npz")
    Image.new("RGB", (8, 8), "green").save(folder / "one.png")
    store = dataclasses.replace(ready, dataset=dataclasses.replace(ready.dataset, images=(folder / "one.png",) * 200))
    return Reproduction(Subject(store.dataset.labels, store.dataset.label_names, store), folder, TINY)


def drawn(name, r):
    figure = FIGURES[name]
    return figure.draw({"": figure.measure(r, [42])})


def test_the_stability_panels_draw_five_queries_of_each_method(r):
    panels = drawn("cross-length-stability", r).axes
    assert [panel.get_title() for panel in panels] == ["Naive Prefix", "MultiBit"]
    for panel, measured in zip(panels, displacements(r, 42), strict=True):
        points = [line.get_xydata() for line in panel.lines if line.get_marker() == "."]
        np.testing.assert_allclose(points, np.stack([measured.rank, measured.moved], axis=2))
        assert measured.rank.shape == (5, 150)
        assert panel.texts[0].get_text().startswith(f"tau-b {measured.tau.mean():.3f} ±")


def test_the_gain_curves_are_cumulative_distributions(r):
    (panel,) = drawn("query-level-gain", r).axes
    curves = [line.get_xydata() for line in panel.lines if len(line.get_xdata()) == len(r.split.query)]
    gains = ap_gains(r, 42).by_design
    assert list(gains) == list(GAIN_OVER)
    for curve, values in zip(curves, gains.values(), strict=True):
        np.testing.assert_allclose(curve[:, 0], np.sort(values))
        assert curve[-1, 1] == 1 and (np.diff(curve[:, 1]) > 0).all()


def test_the_sensitivity_map_marks_the_best_cell(r):
    cells = reproduce(TABLES["sensitivity"], r, [42]).cells
    panel = drawn("parameter-sensitivity", r).axes[0]
    expected = np.array([[cells[Eta(eta), Alpha(alpha)].item() for alpha in GRID_ALPHA] for eta in GRID_ETA])
    np.testing.assert_allclose(panel.images[0].get_array(), expected)
    (star,) = [line for line in panel.lines if line.get_marker() == "*"]
    column, row = int(star.get_xdata()[0]), int(star.get_ydata()[0])
    assert expected[row][column] == np.max(expected)


@pytest.mark.parametrize("lengths", [(8, 16), (8, 24, 40)])
def test_figures_of_one_length_name_it(lengths, r):
    other = Reproduction(r.subject, r.folder, TINY.override({"lengths": lengths}))
    titles = [drawn(name, other).axes[0].get_title() for name in ("query-level-gain", "parameter-sensitivity")]
    panel = drawn("deployment-cost", other).axes[1].get_title()
    assert all(f"{lengths[-1]} bits" in title for title in (*titles, panel))


def test_the_contact_sheet_shows_the_trained_length_nearest_to_16_bits(r):
    other = Reproduction(r.subject, r.folder, TINY.override({"lengths": (8, 20, 40)}))
    assert {tuple(search.rows) for search in FIGURES["qualitative-retrieval"].measure(other, [42])} == {(20,)}


def test_the_cost_panels_have_a_bar_for_each_way_to_serve(r):
    panels = drawn("deployment-cost", r).axes
    assert len(panels) == 4
    for panel in panels:
        assert [tick.get_text() for tick in panel.get_yticklabels()] == [str(design) for design in SERVING[::-1]]
    codes = [bar.get_width() for bar in panels[3].patches]
    assert codes == pytest.approx([2 * 150 * bits / 8 / 2**20 for bits in (16, 8 + 16, 16)])


def test_the_contact_sheet_shows_rank_distance_and_relevance_of_both_methods(r):
    searches = FIGURES["qualitative-retrieval"].measure(r, [42])
    assert [search.show for search in searches] == ["text", "text", "image", "image"]
    assert [search.image is not None for search in searches] == [True, True, False, False]
    titles = ["Baseline (no FRT/SBO/MPA)", "Full MultiBit"] * 2
    assert [title in search.title for title, search in zip(titles, searches, strict=True)] == [True] * 4
    data, relevance = r.store.dataset, GradedRelevance.idf(r.subject.labels[r.split.database])
    for search in searches:
        (hits,) = search.rows.values()
        asked = np.array([[name in search.labels for name in data.label_names]], np.uint8)
        assert list(search.rows) == [16] and [hit.rank for hit in hits] == list(range(1, 7))
        assert [hit.distance for hit in hits] == sorted(hit.distance for hit in hits)
        rows = [data.ids.index(hit.id) for hit in hits]
        assert set(rows) <= set(r.split.database.tolist())
        np.testing.assert_allclose(
            [hit.payload["relevance"] for hit in hits], relevance.scores(asked, data.labels[rows])[0]
        )


def test_the_contact_sheet_is_an_image(r):
    sheet = drawn("qualitative-retrieval", r)
    assert isinstance(sheet, Image.Image)
    assert sheet.width > 500 and sheet.height > 400


def test_without_images_there_is_no_contact_sheet(r):
    bare = dataclasses.replace(r.store, dataset=dataclasses.replace(r.store.dataset, images=(None,) * 200))
    blind = Reproduction(Subject(bare.dataset.labels, bare.dataset.label_names, bare), r.folder, TINY)
    with pytest.raises(DataError) as caught:
        FIGURES["qualitative-retrieval"].measure(blind, [42])
    assert caught.value.field == "images"
