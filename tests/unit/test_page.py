"""The report folder: every file, their contents, and one HTML page that needs no network and runs no script."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from conftest import plant
from multibit import Config, FeatureStore, Run, Split, __version__
from multibit.errors import MultibitError
from multibit.report import assessment as module
from multibit.report import figures, load_evaluations, report_tables, save_evaluations
from multibit.report.assessment import assess
from multibit.report.page import CAPTIONS, OWN, undrawn, write_report

SCRIPT = "<script>alert('&')</script>"
TABLES = [
    "accuracy-1", "accuracy-2", "resolution-1", "comparison-1", "resolution-2", "comparison-2", "agreement",
    "quantization", "strata", "bits", "cost",
]  # fmt: skip
FIGURES = [
    "map-by-length", "precision-recall", "precision-at-n", "rank-displacement", "distances-by-shared-labels",
    "label-graph", "bit-balance", "bit-budget", "accuracy-and-cost", "ap-differences",
]  # fmt: skip
EMPTY_TAGS = {"meta", "img", "br", "hr", "link", "input"}


class Words:
    """Stands for the packaged text encoder, which is slow to load."""

    def __init__(self, name):
        self.name = name

    def encode(self, texts):
        return np.random.default_rng(0).normal(size=(len(texts), 6))


class Page(HTMLParser):
    """Tags with their attributes, the text between them, and table cells; complains about tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.cells, self._open = [], [], [], []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY_TAGS:
            self._open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())
        if self._open and self._open[-1] in ("td", "th"):
            self.cells[-1] += data

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two assessed runs on one split, the second with a hostile name, and the first with a hostile warning and fact."""
    folder = tmp_path_factory.mktemp("planted")
    np.savez(folder / "ready.npz", **plant(120), label_names=[f"topic {i} {SCRIPT}" for i in range(8)])
    store = FeatureStore.open(folder / "ready.npz")
    split = Split.draw(120, query=20, train=60, validation=10)
    config = Config(epochs=3, lengths=(8, 16), scales=3, hidden=32, dimension=8, learning_rate=0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "load_text_encoder", Words)
        patch.setattr(module, "TIMED", 3)
        first = Run.create(folder / "first", store, split, config)
        second = Run.create(folder / "second", store, split, config.override({"seed": 7}))
        mine, theirs = assess(first, store), assess(second, store, anchor=first)
    mine = replace(mine, warnings=["mind the gap", SCRIPT], run={**mine.run, f"fact {SCRIPT}": SCRIPT})
    return [mine, replace(theirs, name=SCRIPT)]


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    """The folder and what `write_report` said it wrote."""
    folder = tmp_path_factory.mktemp("report") / "new" / "folder"
    return folder, write_report(runs, folder)


@pytest.fixture(scope="module")
def text(report):
    return (report[0] / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


@pytest.fixture
def few_figures(monkeypatch):
    """Drawing is slow, and the same for every test of the other files."""
    monkeypatch.setattr(figures, "report_figures", lambda runs: {"map-by-length": Figure(figsize=(1, 1))})


# Files


def test_the_report_has_every_file_and_no_other(report):
    folder, written = report
    expected = {"report.html", "evaluation.parquet", "evaluation.json"}
    expected |= {f"tables/{name}.{ending}" for name in TABLES for ending in ("md", "csv", "tex")}
    expected |= {f"figures/{name}.{ending}" for name in FIGURES for ending in ("png", "pdf")}
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == expected
    assert {str(path.relative_to(folder)) for path in written} == expected
    assert written[0] == folder / "report.html"
    assert len(written) == len(expected)


def test_tables_are_those_of_the_runs(runs, report):
    for name, table in report_tables(runs).items():
        for ending, expected in {
            "md": table.markdown() + "\n",
            "csv": table.csv(),
            "tex": table.latex() + "\n",
        }.items():
            assert (report[0] / "tables" / f"{name}.{ending}").read_text(encoding="utf-8") == expected


def test_figures_are_pictures_and_not_empty(report):
    for name in FIGURES:
        with Image.open(report[0] / "figures" / f"{name}.png") as picture:
            pixels = np.asarray(picture.convert("L"))
        assert min(pixels.shape) >= 500 and np.ptp(pixels) > 200
        pdf = (report[0] / "figures" / f"{name}.pdf").read_bytes()
        assert pdf.startswith(b"%PDF-") and pdf.rstrip().endswith(b"%%EOF") and len(pdf) > 5000
        assert b"CreationDate" not in pdf  # the same run gives the same file on another day


def test_what_is_saved_is_what_was_measured(runs, report):
    assert load_evaluations(report[0] / "evaluation.json") == runs[0].evaluations


def no_constant(name):
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_a_metric_that_no_query_defines_is_null_in_json(runs, tmp_path):
    """As where all items have the same labels: no pair differs in relevance."""
    evaluation = runs[0].evaluations[0]
    key = "collision IDF", "i2t", 8
    undefined = replace(evaluation, values={**evaluation.values, key: np.full(20, np.nan)})
    save_evaluations(tmp_path / "evaluation.json", [undefined])
    content = json.loads((tmp_path / "evaluation.json").read_text(), parse_constant=no_constant)
    (mean,) = [row for row in content["evaluations"][0]["means"] if tuple(row.values())[:3] == key]
    assert mean["value"] is None


def test_one_run_stands_beside_none(runs, tmp_path, few_figures):
    written = write_report(runs[:1], tmp_path)
    assert not [path for path in written if "comparison" in path.name]
    assert "beside" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_second_report_replaces_the_files_of_the_first(runs, tmp_path, few_figures):
    write_report(runs, tmp_path)
    before = (tmp_path / "report.html").read_text(encoding="utf-8")
    write_report([replace(runs[0], name="renamed"), runs[1]], tmp_path)
    after = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h1>first</h1>" in before and "<h1>renamed</h1>" in after and "<h1>first</h1>" not in after
    assert not [path for path in tmp_path.rglob("*") if "tmp" in path.suffix or path.name.startswith(".")]


# Page


def test_the_page_needs_no_network(page, text):
    """Everything that a browser would fetch is inside, or a place on the page."""
    kinds = {name for name, _ in page.tags}
    assert not kinds & {"script", "link", "iframe", "object", "embed", "base", "form", "video", "audio", "source"}
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "data", "poster", "background", "action"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:image/png;base64,"))
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    outside = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", text)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", outside)


def test_the_page_is_a_document_in_utf8(page, text):
    assert text.startswith("<!doctype html>")
    assert page.of("html") == [{"lang": "en"}]
    assert {"charset": "utf-8"} in page.of("meta")
    assert "{{" not in text and "{%" not in text


def test_links_lead_to_places_on_the_page(page):
    places = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {link["href"].removeprefix("#") for link in page.of("a")} == places == {"run", "tables", "figures"}


def test_hostile_names_are_shown_and_not_run(page, text):
    assert "<script" not in text
    assert page.texts.count(SCRIPT) >= 3  # the warning, the fact, and cells of tables
    assert any(SCRIPT in shown and shown.startswith(f"multibit {__version__}; beside ") for shown in page.texts)
    assert f"fact {SCRIPT}" in page.cells
    assert any(cell == f"{SCRIPT}, image-to-text" for cell in page.cells)


@pytest.mark.usefixtures("few_figures")
def test_a_hostile_name_of_the_reported_run_is_shown_and_not_run(runs, tmp_path):
    write_report([runs[1], runs[0]], tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert SCRIPT in Page(text).texts


def test_the_page_shows_every_fact_and_warning(runs, page):
    for key, value in runs[0].run.items():
        assert page.cells[page.cells.index(key) + 1] == value
    assert "mind the gap" in page.texts
    assert len([each for each in page.of("p") if each.get("class") == "warning"]) == 2


def test_the_page_shows_every_cell_of_every_table(runs, page):
    expected = [cell for pair in runs[0].run.items() for cell in pair]
    for table in report_tables(runs).values():
        assert table.title in page.texts
        assert table.note in page.texts
        expected += [*table.header, *(cell for row in table.rows for cell in row)]
    assert page.cells == expected


def test_marks_and_numbers_are_classes_of_cells(runs, page):
    """The table cells come in order, so their classes can be matched one by one."""
    classes = [set(attributes.get("class", "").split()) for attributes in page.of("td")][len(runs[0].run) :]
    expected = []
    for table in report_tables(runs).values():
        for i in range(len(table.rows)):
            for j, number in enumerate(table.numeric):
                mark = table.marks.get((i, j))
                expected.append(({"n"} if number else set()) | ({mark} if mark else set()))
    assert classes == expected
    assert {"n", "best"} in classes


def test_pictures_are_the_files_with_captions(report, page):
    shown = page.of("img")
    assert [image["alt"] for image in shown] == [CAPTIONS[name] for name in FIGURES]
    assert set(CAPTIONS) == set(FIGURES) and set(CAPTIONS.values()) <= set(page.texts)
    assert {int(image["width"]) for image in shown} == {480, 960}  # one or two panels, letters of one size
    for name, image in zip(FIGURES, shown, strict=True):
        content = base64.b64decode(image["src"].partition(",")[2], validate=True)
        assert content == (report[0] / "figures" / f"{name}.png").read_bytes()
        assert Image.open(io.BytesIO(content)).format == "PNG"


# Without the libraries


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_without_a_library_for_figures_there_are_values_and_tables_and_a_sentence(runs, tmp_path, monkeypatch, missing):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == missing else find(name, *rest))
    assert undrawn() == (
        "a report with figures needs matplotlib or jinja2, which is not installed. "
        'Install it with: pip install "multibit[report]"'
    )
    written = write_report(runs[:1], tmp_path)
    assert {path.suffix for path in written} == {".json", ".parquet", ".md", ".csv", ".tex"}
    assert len(written) == 2 + 3 * len(report_tables(runs[:1]))
    assert all(path.stat().st_size for path in written)


def test_with_the_libraries_there_is_nothing_to_say():
    assert undrawn() == ""


# Reports after each other


def test_every_file_of_a_report_is_known_as_its_own(report):
    """Else an earlier report's file could stay."""
    folder, written = report
    values = {folder / "evaluation.json", folder / "evaluation.parquet"}
    assert {path for name in OWN for path in folder.glob(name)} == set(written) - values


def test_a_report_with_fewer_runs_leaves_no_comparison_and_no_file_that_is_not_ours_is_touched(
    runs, tmp_path, monkeypatch
):
    both = {name: Figure(figsize=(1, 1)) for name in ("map-by-length", "ap-differences")}
    monkeypatch.setattr(figures, "report_figures", lambda runs: dict(list(both.items())[: len(runs)]))
    write_report(runs, tmp_path)
    foreign = [tmp_path / name for name in ("tables/notes.md", "figures/mine.png", "tables/accuracy-old.csv", "x.html")]
    for path in foreign:
        path.write_text("keep")
    written = write_report(runs[:1], tmp_path)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {*written, *foreign}
    assert all(path.read_text() == "keep" for path in foreign)


def test_a_report_that_cannot_be_drawn_leaves_no_older_page(runs, tmp_path, monkeypatch, few_figures):
    write_report(runs[:1], tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    written = write_report(runs[:1], tmp_path)
    assert not (tmp_path / "report.html").exists() and not list((tmp_path / "figures").iterdir())
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(written)


def test_a_report_of_runs_that_measured_other_things_is_refused_before_anything_is_written(runs, tmp_path):
    fewer = replace(runs[1], evaluations=[replace(each, queries=19) for each in runs[1].evaluations])
    with pytest.raises(MultibitError, match="measured different queries, databases or lengths"):
        write_report([runs[0], fewer], tmp_path / "report")
    assert not (tmp_path / "report").exists()
