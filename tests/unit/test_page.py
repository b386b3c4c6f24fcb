"""The report folder and the HTML pages, which need no network and run no script."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from assessed import assessed_runs
from multibit import __version__
from multibit.data.checking import Check
from multibit.errors import DataError, MismatchError, MissingExtraError
from multibit.evaluation.metric import COLLISION
from multibit.evaluation.storage import save_evaluations
from multibit.report import page as module
from multibit.report.figures import FIGURES as ALL_FIGURES
from multibit.report.folder import require_folder
from multibit.report.page import CAPTIONS, FOLDERS, OWN, PAGE, missing_for_figures, write_check_page, write_report
from multibit.report.study import Study
from multibit.report.study_tables import study_tables
from multibit.table import Number, Table

pytestmark = pytest.mark.slow  # two runs are trained
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


def tables_of(runs):
    return study_tables(Study.of(runs))


class Page(HTMLParser):
    """Tags with their attributes, the text between them, and table cells; fails on tags that do not match."""

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
    """Two assessed runs, the first with a hostile warning and fact, the second with a hostile name."""
    names = [f"topic {i} {SCRIPT}" for i in range(8)]
    mine, theirs = assessed_runs(tmp_path_factory.mktemp("planted"), names)
    mine = replace(mine, warnings=["mind the gap", SCRIPT], facts={**mine.facts, f"fact {SCRIPT}": SCRIPT})
    return [mine, replace(theirs, name=SCRIPT)]


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    """The folder and the paths that `write_report` returned."""
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
    """One small figure, since drawing is slow."""
    monkeypatch.setattr(module, "report_figures", lambda study: {"map-by-length": Figure(figsize=(1, 1))})


# Files


def test_the_report_has_every_file_and_no_other(report):
    folder, written = report
    expected = {"report.html"}
    expected |= {f"tables/{name}.{ending}" for name in TABLES for ending in ("md", "csv", "tex")}
    expected |= {f"figures/{name}.{ending}" for name in FIGURES for ending in ("png", "pdf")}
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == expected
    assert {str(path.relative_to(folder)) for path in written} == expected
    assert written[0] == folder / "report.html"
    assert len(written) == len(expected)


def test_tables_are_those_of_the_runs(runs, report):
    for name, table in tables_of(runs).items():
        for ending, expected in {
            "md": table.markdown() + "\n",
            "csv": table.csv(),
            "tex": table.latex() + "\n",
        }.items():
            assert (report[0] / "tables" / f"{name}.{ending}").read_text(encoding="utf-8") == expected


def test_figures_are_not_empty(report):
    for name in FIGURES:
        with Image.open(report[0] / "figures" / f"{name}.png") as image:
            pixels = np.asarray(image.convert("L"))
        assert min(pixels.shape) >= 500 and np.ptp(pixels) > 200
        pdf = (report[0] / "figures" / f"{name}.pdf").read_bytes()
        assert pdf.startswith(b"%PDF-") and pdf.rstrip().endswith(b"%%EOF") and len(pdf) > 5000
        assert b"CreationDate" not in pdf  # so the files of a run are reproducible


def no_constant(name):
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_an_undefined_mean_is_null_in_json(runs, tmp_path):
    """For example if all items have the same labels: no pair differs in relevance."""
    evaluation = runs[0].evaluations[0]
    key = COLLISION.under("IDF"), "i2t", 8
    undefined = replace(evaluation, values={**evaluation.values, key: np.full(20, np.nan)})
    save_evaluations(tmp_path / "evaluation.json", [undefined])
    content = json.loads((tmp_path / "evaluation.json").read_text(), parse_constant=no_constant)
    (mean,) = [
        row for row in content["evaluations"][0]["means"] if tuple(row.values())[:3] == ("collision IDF", "i2t", 8)
    ]
    assert mean["value"] is None


@pytest.mark.usefixtures("few_figures")
def test_a_report_of_one_run_has_no_comparison(runs, tmp_path):
    written = write_report(runs[:1], tmp_path)
    assert not [path for path in written if "comparison" in path.name]
    assert "compared with" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_second_report_replaces_the_files_of_the_first(runs, tmp_path, few_figures):
    write_report(runs, tmp_path)
    before = (tmp_path / "report.html").read_text(encoding="utf-8")
    write_report([replace(runs[0], name="renamed"), runs[1]], tmp_path)
    after = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h1>first</h1>" in before and "<h1>renamed</h1>" in after and "<h1>first</h1>" not in after
    assert not [path for path in tmp_path.rglob("*") if "tmp" in path.suffix or path.name.startswith(".")]


# Page


def test_the_page_needs_no_network(page, text):
    """Everything that a browser would fetch is embedded or an anchor on the page."""
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


def test_links_lead_to_anchors_on_the_page(page):
    anchors = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {link["href"].removeprefix("#") for link in page.of("a")} == anchors == {"run", "tables", "figures"}


def test_hostile_names_are_escaped(page, text):
    assert "<script" not in text
    assert page.texts.count(SCRIPT) >= 3  # the warning, the fact, and cells of tables
    assert any(SCRIPT in shown and shown.startswith(f"multibit {__version__}; compared with ") for shown in page.texts)
    assert f"fact {SCRIPT}" in page.cells
    assert any(cell == f"{SCRIPT}, image-to-text" for cell in page.cells)


@pytest.mark.usefixtures("few_figures")
def test_a_hostile_name_of_the_reported_run_is_escaped(runs, tmp_path):
    write_report([runs[1], runs[0]], tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert SCRIPT in Page(text).texts


def test_the_page_shows_every_fact_and_warning(runs, page):
    for key, value in runs[0].facts.items():
        assert page.cells[page.cells.index(key) + 1] == value
    assert "mind the gap" in page.texts
    assert len([each for each in page.of("p") if each.get("class") == "warning"]) == 2


def test_the_page_shows_every_cell_of_every_table(runs, page):
    expected = [cell for pair in runs[0].facts.items() for cell in pair]
    for table in tables_of(runs).values():
        assert table.title in page.texts
        assert table.note in page.texts
        expected += [*table.header, *(str(cell) for row in table.rows for cell in row)]
    assert page.cells == expected


def test_marks_and_numbers_are_classes_of_cells(runs, page):
    """The table cells come in order, so their classes can be matched one by one."""
    classes = [set(attributes.get("class", "").split()) for attributes in page.of("td")][len(runs[0].facts) :]
    expected = []
    for table in tables_of(runs).values():
        for i in range(len(table.rows)):
            for j, number in enumerate(table.numeric):
                mark = table.marks.get((i, j))
                expected.append(({"n"} if number else set()) | ({mark} if mark else set()))
    assert classes == expected
    assert {"n", "best"} in classes


def test_images_are_the_files_with_captions(report, page):
    shown = page.of("img")
    assert [image["alt"] for image in shown] == [CAPTIONS[name] for name in FIGURES]
    assert set(CAPTIONS) == set(FIGURES) and set(CAPTIONS.values()) <= set(page.texts)
    assert {int(image["width"]) for image in shown} == {480, 960}  # one or two panels, text of the same size
    for name, image in zip(FIGURES, shown, strict=True):
        content = base64.b64decode(image["src"].partition(",")[2], validate=True)
        assert content == (report[0] / "figures" / f"{name}.png").read_bytes()
        assert Image.open(io.BytesIO(content)).format == "PNG"


# Without the libraries


@pytest.fixture
def without(monkeypatch):
    """Makes a library look as if it were not installed."""
    find = importlib.util.find_spec

    def hide(missing):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name == missing else find(name, *rest)
        )
        monkeypatch.setitem(sys.modules, missing, None)

    return hide


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_without_the_extra_there_are_tables_only(runs, tmp_path, without, missing):
    without(missing)
    error = missing_for_figures()
    assert (error.module, error.extra) == (missing, "report")
    written = write_report(runs[:1], tmp_path)
    assert {path.suffix for path in written} == {".md", ".csv", ".tex"}
    assert len(written) == 3 * len(tables_of(runs[:1]))
    assert all(path.stat().st_size for path in written)


def test_with_the_extra_nothing_is_missing():
    assert missing_for_figures() is None


def test_names_of_figures_are_known_without_matplotlib():
    script = "import sys; sys.modules['matplotlib'] = None; import multibit.report.page, multibit.paper.reproduce"
    subprocess.run([sys.executable, "-c", script], check=True)


# Reports after each other


def test_figures_are_listed_once():
    assert [figure.name for figure in ALL_FIGURES] == list(CAPTIONS) == FIGURES


def test_every_file_of_a_report_matches_a_pattern(report):
    """Otherwise a file of an earlier report could stay."""
    folder, written = report
    assert {path for name in OWN for path in folder.glob(name)} == set(written)


def test_a_report_of_fewer_runs_removes_the_comparison_and_no_foreign_file(runs, tmp_path, monkeypatch):
    both = {name: Figure(figsize=(1, 1)) for name in ("map-by-length", "ap-differences")}
    monkeypatch.setattr(module, "report_figures", lambda study: dict(list(both.items())[: len(study.runs)]))
    write_report(runs, tmp_path)
    foreign = [tmp_path / name for name in ("tables/notes.md", "figures/mine.png", "tables/accuracy-old.csv", "x.html")]
    for path in foreign:
        path.write_text("keep")
    written = write_report(runs[:1], tmp_path)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {*written, *foreign}
    assert all(path.read_text() == "keep" for path in foreign)


@pytest.mark.usefixtures("few_figures")
def test_a_report_without_figures_removes_an_earlier_page(runs, tmp_path, without):
    write_report(runs[:1], tmp_path)
    without("jinja2")
    written = write_report(runs[:1], tmp_path)
    assert not (tmp_path / "report.html").exists() and not list((tmp_path / "figures").glob("*"))
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(written)


def test_runs_on_other_queries_are_refused_before_anything_is_written(runs, tmp_path):
    fewer = replace(runs[1], evaluations=[replace(each, queries=19) for each in runs[1].evaluations])
    with pytest.raises(MismatchError):
        write_report([runs[0], fewer], tmp_path / "report")
    assert not (tmp_path / "report").exists()


@pytest.fixture
def earlier(runs, tmp_path, few_figures):
    """A report folder as earlier versions wrote it, with an evaluation of its own."""
    folder = tmp_path / "report"
    write_report(runs, folder)
    save_evaluations(folder / "evaluation.json", runs[1].evaluations)
    return folder


def evaluation_files(folder):
    return sorted(path.name for path in folder.glob("evaluation.*"))


def test_the_evaluation_of_an_earlier_report_is_removed(runs, earlier):
    write_report(runs, earlier)
    assert evaluation_files(earlier) == []


def test_an_evaluation_that_was_just_written_there_is_kept(runs, earlier):
    saved = save_evaluations(earlier / "evaluation.json", runs[0].evaluations)
    write_report(runs, earlier, keep=saved)
    assert evaluation_files(earlier) == ["evaluation.json", "evaluation.parquet"]


def test_an_evaluation_in_a_folder_without_a_report_is_kept(runs, tmp_path, few_figures):
    save_evaluations(tmp_path / "evaluation.json", runs[1].evaluations)
    write_report(runs, tmp_path)
    assert evaluation_files(tmp_path) == ["evaluation.json", "evaluation.parquet"]


def test_the_evaluation_of_a_run_folder_is_kept(runs, earlier):
    (earlier / "run.json").write_text("{}")
    write_report(runs, earlier)
    assert evaluation_files(earlier) == ["evaluation.json", "evaluation.parquet"]


def test_a_foreign_file_with_the_name_of_an_evaluation_is_kept(runs, earlier):
    (earlier / "evaluation.json").write_text('{"mine": 1}')
    write_report(runs, earlier)
    assert evaluation_files(earlier) == ["evaluation.json", "evaluation.parquet"]


# The page of a check


def check(**changed):
    empty = Table("", (), ())
    table = Table(f"Data {SCRIPT}", ("what", "value"), (("items", Number(12, ",")), (SCRIPT, "x")), f"Note {SCRIPT}")
    labels = Table("Labels", ("label",), ((SCRIPT,),))
    fields = {"facts": table, "problems": empty, "roles": empty, "labels": labels, "groups": (), "unreadable": ()}
    return Check(**{**fields, **changed})


def test_the_check_page_shows_all_tables_escaped(tmp_path):
    write_check_page(check(unreadable=((SCRIPT, "not an image"),)), SCRIPT, tmp_path / "new" / "check.html")
    text = (tmp_path / "new" / "check.html").read_text(encoding="utf-8")
    page = Page(text)
    assert "<script" not in text
    assert page.cells == [
        "what",
        "value",
        "items",
        "12",
        SCRIPT,
        "x",
        "label",
        SCRIPT,
        "id",
        "reason",
        SCRIPT,
        "not an image",
    ]
    assert {f"Data {SCRIPT}", f"Note {SCRIPT}", SCRIPT, f"multibit check: {SCRIPT}"} <= set(page.texts)
    assert not page.of("a")
    assert not page.of("img")


def test_the_check_page_of_readable_images_has_no_table_of_reasons(tmp_path):
    write_check_page(check(), "data", tmp_path / "check.html")
    assert "reason" not in Page((tmp_path / "check.html").read_text(encoding="utf-8")).cells


def test_the_check_page_needs_the_extra(tmp_path, without):
    without("jinja2")
    with pytest.raises(MissingExtraError) as caught:
        write_check_page(check(), "data", tmp_path / "check.html")
    assert (caught.value.module, caught.value.extra) == ("jinja2", "report")
    assert not (tmp_path / "check.html").exists()


# Output folders


def test_a_writable_folder_is_accepted_and_nothing_is_created(tmp_path):
    require_folder(tmp_path / "new", folders=FOLDERS, files=(PAGE,))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "is_folder"), [("out", False), ("out/tables", False), ("out/figures", False), ("out/report.html", True)]
)
def test_a_path_of_the_wrong_kind_is_refused(tmp_path, name, is_folder):
    path = tmp_path / name
    if is_folder:
        path.mkdir(parents=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a file")
    with pytest.raises(DataError) as caught:
        require_folder(tmp_path / "out", folders=FOLDERS, files=(PAGE,))
    assert str(path) in str(caught.value)
