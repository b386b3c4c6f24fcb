"""The report folder and the HTML pages, which need no network and run no script but their own."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
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
from multibit.data import PairedDataset
from multibit.data.checking import Check
from multibit.errors import DataError, MismatchError, MissingExtraError
from multibit.evaluation.metric import COLLISION
from multibit.evaluation.storage import save_evaluations
from multibit.report import page as module
from multibit.report.examples import Example, Shown, thumbnail, unreadable
from multibit.report.folder import require_folder
from multibit.report.glossary import TERMS, term_of
from multibit.report.headline import findings, sentence
from multibit.report.page import FOLDERS, OWN, PAGE, missing_for_figures, write_check_page, write_report
from multibit.report.study import Study
from multibit.report.study_figures import FIGURES as ALL_FIGURES
from multibit.report.study_figures import figures_of
from multibit.report.study_tables import study_tables
from multibit.table import Number, Table

pytestmark = pytest.mark.slow  # two runs are trained
ESCAPED = str.maketrans({"<": "&lt;", ">": "&gt;", "&": "&amp;", "'": "&#39;"})
SCRIPT = "<script>alert('&')</script>"
TABLES = [
    "accuracy-1", "accuracy-2", "pair-recall-1", "pair-recall-2", "pair-recall-comparison", "content", "resolution-1",
    "comparison-1", "resolution-2", "comparison-2", "agreement", "quantization", "strata", "bits", "cost",
]  # fmt: skip
FIGURES = [
    "map-by-length", "ap-differences", "training", "precision-recall", "precision-at-n", "rank-displacement",
    "distances-by-shared-labels", "label-graph", "bit-balance", "bit-budget", "accuracy-and-cost",
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
        if {"td", "th"} & set(self._open):
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


PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)


def example(**changed):
    hits = tuple(Shown(f"hit {i}", f"text {SCRIPT}", "" if i else PIXEL, ("a", SCRIPT), i, i == 1) for i in range(3))
    query = Shown(f"query {SCRIPT}", f"asks {SCRIPT}", "", (SCRIPT,))
    return Example(
        **{
            "title": "a good query",
            "value": 0.5,
            "measure": "average precision",
            "asked": "text",
            "query": query,
            "rows": {8: hits},
            **changed,
        }
    )


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    """The folder and the paths that `write_report` returned."""
    folder = tmp_path_factory.mktemp("report") / "new" / "folder"
    return folder, write_report(runs, folder, examples=[example()])


@pytest.fixture(scope="module")
def text(report):
    return (report[0] / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


@pytest.fixture
def few_figures(monkeypatch):
    """One small figure, since drawing is slow."""
    monkeypatch.setattr(module, "draw_study", lambda study: {"map-by-length": Figure(figsize=(1, 1))})


# Files


def test_the_report_has_every_file_and_no_other(report):
    folder, written = report
    expected = {"report.html"}
    expected |= {f"tables/{name}.{ending}" for name in TABLES for ending in ("md", "csv", "tex")}
    expected |= {f"figures/{name}.svg" for name in FIGURES}
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


def test_figures_as_pdf_on_request(runs, tmp_path, few_figures):
    written = write_report(runs[:1], tmp_path, pdf=True)
    assert {path.suffix for path in written if path.parent.name == "figures"} == {".svg", ".pdf"}
    pdf = (tmp_path / "figures" / "map-by-length.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-") and b"CreationDate" not in pdf  # so the files of a run are reproducible
    write_report(runs[:1], tmp_path)
    assert [path.suffix for path in (tmp_path / "figures").iterdir()] == [".svg"]


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
    assert not kinds & {"link", "iframe", "object", "embed", "base", "form", "video", "audio", "source"}
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "data", "poster", "background", "action"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:image/svg+xml;base64,", "data:image/png;base64,"))
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    outside = re.sub(r"data:image/[a-z+]+;base64,[A-Za-z0-9+/=]+", "", text)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", outside)


def test_only_the_script_of_the_page_may_run(page, text):
    """The policy names the hashes of the one script and the one style."""
    (policy,) = (each["content"] for each in page.of("meta") if each.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;") and "unsafe" not in policy
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_the_page_is_a_document_in_utf8(page, text):
    assert text.startswith("<!doctype html>")
    assert page.of("html") == [{"lang": "en"}]
    assert {"charset": "utf-8"} in page.of("meta")
    assert "{{" not in text and "{%" not in text


def test_links_lead_to_anchors_on_the_page(page):
    anchors = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(anchors)) == len(anchors)
    assert {link["href"].removeprefix("#") for link in page.of("a")} <= set(anchors)


def test_the_finding_comes_first_and_the_settings_last(page, text):
    order = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert order == ["finding", "searches", "contents", "tables", "figures", "glossary", "settings"]
    assert text.index('id="figure-map-by-length"') < text.index('id="searches"')


def test_the_headline_has_the_mean_of_every_length_and_the_gain_with_its_interval(runs, page):
    study = Study.of(runs)
    for found, number in zip(findings(study), (0, 1, 0), strict=True):
        evaluation, metric = study.first.evaluations[number], found.metric
        assert found.protocol == evaluation.protocol or metric == "R@10"
        means = [50 * sum(np.nanmean(evaluation.of(metric, d, bits)) for d in ("i2t", "t2i")) for bits in (8, 16)]
        assert [str(mean) for mean in found.means] == [f"{mean:.1f}" for mean in means]
        (gain,) = found.gains
        other = study.runs[1].evaluations[number]
        for bits, (mean, interval, verdict) in zip((8, 16), gain.cells, strict=True):
            differences = np.mean(
                [evaluation.of(metric, d, bits) - other.of(metric, d, bits) for d in ("i2t", "t2i")], 0
            )
            assert mean == f"{100 * differences.mean():+.1f}"
            low, high = map(float, interval.split(" to "))
            assert low <= float(mean) <= high
            assert verdict == "" or (verdict == "better") == (differences.mean() > 0)
            assert mean + interval in page.cells
    assert sentence(study) in page.texts and SCRIPT in sentence(study)


def test_the_headline_of_one_run_has_no_gain(runs):
    assert all(found.gains == () for found in findings(Study.of(runs[:1])))


def test_hostile_names_are_escaped(page, text):
    assert text.count("<script") == 1 and "alert('&')" not in text
    assert page.texts.count(SCRIPT) >= 3  # the warning, the fact, and labels
    assert f"fact {SCRIPT}" in page.cells
    assert any(cell == f"{SCRIPT}, image-to-text" for cell in page.cells)


@pytest.mark.usefixtures("few_figures")
def test_a_hostile_name_of_the_reported_run_is_escaped(runs, tmp_path):
    write_report([runs[1], runs[0]], tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count("<script") == 1
    assert SCRIPT in Page(text).texts


def test_the_page_shows_every_fact_and_warning(runs, page):
    for key, value in runs[0].facts.items():
        assert page.cells[page.cells.index(key) + 1] == value
    assert "mind the gap" in page.texts
    assert (
        page.texts.count("mind the gap") == 1
        and len([each for each in page.of("div") if each.get("class") == "warnings"]) == 1
    )


def plain(cell):
    return cell.strip().rstrip("↕").rstrip().rstrip("↑↓").rstrip()


def test_the_page_shows_every_cell_of_every_table(runs, page):
    shown = [plain(cell) for cell in page.cells]
    start = 0
    for table in tables_of(runs).values():
        assert table.title in page.texts
        assert table.note in page.texts
        expected = [*table.header, *(str(cell) for row in table.rows for cell in row)]
        start = next(i for i in range(start, len(shown)) if shown[i : i + len(expected)] == expected)


def test_marks_and_numbers_are_classes_of_cells(runs, text):
    for table in tables_of(runs).values():
        part = text[text.index(f"{table.title.translate(ESCAPED)}</h2>") :]
        found = [set(each.split()) - {"long"} for each in re.findall(r'<td class="([^"]*)">', part)]
        expected = []
        for i in range(len(table.rows)):
            for j, number in enumerate(table.numeric):
                mark = table.marks.get((i, j))
                expected.append(({"n"} if number else set()) | ({mark} if mark else set()))
        assert found[: len(expected)] == expected


def test_every_heading_with_a_number_is_explained_with_its_direction(runs, page):
    """Each column of each table is a link to its definition."""
    headings = {heading for table in tables_of(runs).values() for heading in table.header if heading}
    assert {heading for heading in headings if term_of(heading) is None} <= {"what"}
    assert all(term_of(heading).better for heading in ("NDCG@100", "tau-b", "collision", "gap", "mAP"))
    anchors = {attributes["id"] for attributes in page.of("dt")}
    assert anchors == {term.anchor for term in TERMS} and len(anchors) == len(TERMS)


def test_every_table_can_be_sorted_by_every_column(runs, page):
    columns = sum(len(table.header) for table in tables_of(runs).values() if len(table.rows) > 1)
    assert len([button for button in page.of("button") if button["class"] == "sort"]) == columns


def test_figures_are_the_files_with_captions(runs, report, page):
    shown = [image for image in page.of("img") if image["src"].startswith("data:image/svg")]
    study = Study.of(runs)
    assert [image["alt"] for image in shown] == [each.title for each in figures_of(study)]
    for each, image in zip(figures_of(study), shown, strict=True):
        content = base64.b64decode(image["src"].partition(",")[2], validate=True)
        assert content == (report[0] / "figures" / f"{each.name}.svg").read_bytes()
        assert each.caption(study) in page.texts


def test_example_searches_show_images_labels_and_which_hits_share_one(page):
    items = [each["class"] for each in page.of("div") if each.get("class", "").startswith("item")]
    assert items == ["item query", "item", "item shares", "item"]
    assert [image["src"] for image in page.of("img") if image["src"].startswith("data:image/png")] == [PIXEL]
    assert page.texts.count("no image") == 2 and "distance 1 ✓" in page.texts and "hit 2" in page.texts


def test_images_that_cannot_be_read_are_counted(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no")
    assert thumbnail(tmp_path / "broken.png") == "" == thumbnail(tmp_path / "missing.png")
    Image.new("RGB", (300, 100), "red").save(tmp_path / "good.png")
    assert thumbnail(tmp_path / "good.png").startswith("data:image/jpeg;base64,")
    assert unreadable([example()]) == 2 and unreadable([example(asked="image")]) == 1


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
    assert [figure.name for figure in ALL_FIGURES] == FIGURES


def test_every_file_of_a_report_matches_a_pattern(report):
    """Otherwise a file of an earlier report could stay."""
    folder, written = report
    assert {path for name in OWN for path in folder.glob(name)} == set(written)


def test_a_report_of_fewer_runs_removes_the_comparison_and_no_foreign_file(runs, tmp_path, monkeypatch):
    both = {name: Figure(figsize=(1, 1)) for name in ("map-by-length", "ap-differences")}
    monkeypatch.setattr(module, "draw_study", lambda study: dict(list(both.items())[: len(study.runs)]))
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
    assert text.count("<script") == 1
    assert [plain(cell) for cell in page.cells] == [
        "what", "value", "items", "12", SCRIPT, "x", "label", SCRIPT, "id", "reason", SCRIPT, "not an image",
    ]  # fmt: skip
    assert {f"Data {SCRIPT}", f"Note {SCRIPT}", SCRIPT, f"multibit check: {SCRIPT}"} <= set(page.texts)
    assert not page.of("a")
    assert not page.of("img")


def test_the_check_page_of_readable_images_has_no_table_of_reasons(tmp_path):
    write_check_page(check(), "data", tmp_path / "check.html")
    assert "reason" not in Page((tmp_path / "check.html").read_text(encoding="utf-8")).cells


def test_the_check_page_shows_look_alikes_side_by_side(tmp_path):
    for name in ("a", "b", "c"):
        Image.new("RGB", (40, 40), "red").save(tmp_path / f"{name}.png")
    images = [tmp_path / "a.png", tmp_path / "b.png", tmp_path / "gone.png", tmp_path / "c.png"]
    names = SCRIPT, "b", "gone", "c"
    data = PairedDataset.of_items((name, image, ("t",), ("x",)) for name, image in zip(names, images, strict=True))
    write_check_page(check(groups=((SCRIPT, "b"), ("gone", "c"))), "data", tmp_path / "check.html", data)
    page = Page((tmp_path / "check.html").read_text(encoding="utf-8"))
    assert [image["alt"] for image in page.of("img")] == [SCRIPT, "b", "c"] and page.texts.count("no image") == 1


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
