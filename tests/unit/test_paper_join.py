"""Tables of several datasets, made from the folders of finished reproductions."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from commands import Words
from conftest import plant
from multibit import Config, FeatureStore, measurement
from multibit.errors import ConfigError, DataError, FormatError
from multibit.files import write_json
from multibit.paper.figures import FIGURES
from multibit.paper.join import join
from multibit.paper.layouts import LAYOUTS
from multibit.paper.outcome import printed_tables, printed_texts
from multibit.paper.reproduce import FIGURE_KIND, FIGURE_VERSION, KIND, VERSION, choose, reproduce_all
from multibit.paper.reproduction import Reproduction, Subject
from multibit.paper.tables import TABLES

pytestmark = pytest.mark.slow  # figures are drawn
TINY = Config(lengths=(8, 16), scales=2, hidden=16, dimension=8, epochs=1, batch_size=64)


def folder_of(path, column, tables, config=None, seeds=(42,)):
    """A finished reproduction that has these cells: table -> (row, column) -> values."""
    content = {
        name: {
            "label": TABLES[name].label,
            "columns": {c: {"form": ".2f", "larger_is_better": not c.startswith(("C ", "model"))} for _, c in cells},
            "cells": [
                {"row": r, "column": c, "got": list(values), "paper": printed_texts(name, column).get((r, c))}
                for (r, c), values in cells.items()
            ],
            "claims": {claim.text: True for claim in TABLES[name].claims},
        }
        for name, cells in tables.items()
    }
    path.mkdir(parents=True)
    settings = (config or Config.preset(column or "default")).to_dict()
    summary = {"tables": content, "column": column, "config": settings, "seeds": list(seeds)}
    write_json(path / "reproduction.json", summary, kind=KIND, version=VERSION)
    return path


@pytest.fixture
def papers(tmp_path):
    """Reproductions that measured exactly what the paper prints."""
    return [
        folder_of(
            tmp_path / column,
            column,
            {
                name: {key: (value,) for key, value in printed_texts(name, column).items()}
                for name in TABLES
                if column in printed_tables().get(name, {})
            },
        )
        for column in ("mirflickr", "iapr", "coco")
    ]


def read(out, name, ending="md"):
    return (out / "tables" / f"{name}.{ending}").read_text(encoding="utf-8")


def rows_of(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_a_wide_table_has_the_datasets_side_by_side(papers, tmp_path):
    join(papers, tmp_path / "out")
    header, _, *rows = rows_of(read(tmp_path / "out", "component-ablation"))
    assert header[1:5] == [f"MIRFlickr-25K {bits}" for bits in (16, 32, 64, 128)] and len(header) == 13
    assert rows[0][0] == "Baseline (no FRT/SBO/MPA)" and rows[0][1] == "80.50 (80.50)"
    assert rows[-1][:2] == ["Full MultiBit", "**81.06 (81.06)**"] and rows[-2][1] == "_81.01 (81.01)_"
    tex = read(tmp_path / "out", "component-ablation", "tex")
    assert (
        r" & \multicolumn{4}{c}{MIRFlickr-25K} & \multicolumn{4}{c}{IAPR TC-12} & \multicolumn{4}{c}{MS-COCO} \\" in tex
    )
    assert r"\cmidrule(lr){2-5} \cmidrule(lr){6-9} \cmidrule(lr){10-13}" in tex
    assert r" & 16 & 32 & 64 & 128 & 16 & 32" in tex and r"\textbf{81.06 (81.06)}" in tex


def test_a_table_of_methods_has_a_block_for_each_dataset(papers, tmp_path):
    join(papers, tmp_path / "out")
    header, _, *rows = rows_of(read(tmp_path / "out", "resolution-idf"))
    assert header[:6] == ["", "", "16 N", "16 tau-b", "16 C", "16 I"]
    names = ["DECH", "DGHDGH", "CMCL", "RCMH", "VH-ABL", "Naive Prefix", "MultiBit"]
    datasets = ["MIRFlickr-25K", "IAPR TC-12", "MS-COCO"]
    assert [row[:2] for row in rows] == [[data if i == 0 else "", n] for data in datasets for i, n in enumerate(names)]
    assert rows[6][2] == "**0.66 (0.66)**" and rows[6][4] == "**0.37 (0.37)**"  # a lower collision rate is better
    tex = read(tmp_path / "out", "resolution-idf", "tex")
    assert tex.count(r"\midrule") == 3 and r" &  & \multicolumn{4}{c}{16}" in tex


def test_the_marks_are_those_of_the_dataset(papers, tmp_path):
    join(papers, tmp_path / "out")
    rows = rows_of(read(tmp_path / "out", "sensitivity"))
    best = [cell for row in rows for cell in row if cell.startswith("**")]
    assert best == ["**83.21 (83.21)**", "**68.85 (68.85)**", "**75.92 (75.92)**"]


def test_teachers_are_in_blocks_of_evaluators(papers, tmp_path):
    join(papers, tmp_path / "out")
    header, _, *rows = rows_of(read(tmp_path / "out", "teacher-quality"))
    assert header == ["", "", "MIRFlickr-25K", "IAPR TC-12", "MS-COCO"]
    assert [row[0] for row in rows] == ["IDF", *[""] * 5, "label names", *[""] * 5]
    assert rows[5][1:3] == ["FRT", "**0.70 (0.70)**"]
    header, _, *rows = rows_of(read(tmp_path / "out", "query-gain"))
    assert rows[0][:3] == ["Single-scale Teacher", "MIRFlickr-25K", "59.73 (59.73)"] and rows[1][0] == ""


def test_every_table_of_the_paper_has_a_layout(papers, tmp_path):
    written = join(papers, tmp_path / "out")
    assert {*LAYOUTS, "baseline-optimizers"} == set(TABLES)
    made = {path.stem for path in written if path.parent.name == "tables"}
    assert made == set(TABLES) - {"order-preservation"} | {"claims"}  # the paper prints no share of the order
    page = (tmp_path / "out" / "joined.md").read_text(encoding="utf-8")
    assert page.count("**Component ablation") == 1 and "MS-COCO: seeds 42; settings of the paper." in page


class Spans(HTMLParser):
    def __init__(self):
        super().__init__()
        self.spans = []

    def handle_starttag(self, tag, attributes):
        if tag == "th" and dict(attributes).get("class") == "group":
            self.spans.append(int(dict(attributes)["colspan"]))


def test_the_page_has_grouped_headers_and_marks(papers, tmp_path):
    join(papers, tmp_path / "out")
    text = (tmp_path / "out" / "joined.html").read_text(encoding="utf-8")
    spans = Spans()
    spans.feed(text)
    assert {4} < set(spans.spans) and '<td class="n best">81.06 (81.06)</td>' in text
    assert "http" not in text


def test_several_seeds_show_their_deviation_and_a_missing_value_a_dash(tmp_path):
    cells = {("Naive Prefix", "8"): (1.0, 3.0), ("MultiBit", "8"): (None, None)}
    out = tmp_path / "out"
    join([folder_of(tmp_path / "mine", None, {"multi-length-cost": cells}, seeds=(1, 2))], out)
    rows = rows_of(read(out, "multi-length-cost"))
    assert [row[2] for row in rows[2:]] == ["**2.00 ± 1.41**", "-"] and rows[2][0] == "mine"


def test_settings_that_are_not_the_papers_are_named(tmp_path):
    config = Config.preset("mirflickr").override({"epochs": 3})
    folder = folder_of(tmp_path / "a", "mirflickr", {"data-split": {("split", "pairs"): (5.0,)}}, config)
    join([folder], tmp_path / "out")
    assert "settings other than the paper's: epochs 3." in (tmp_path / "out" / "joined.md").read_text()


def test_claims_are_listed_by_dataset(papers, tmp_path):
    join(papers, tmp_path / "out")
    header, _, *rows = rows_of(read(tmp_path / "out", "claims"))
    assert header == ["table", "claim", "MIRFlickr-25K", "IAPR TC-12", "MS-COCO"]
    assert ["component-ablation", "every component gains at every length", "yes", "yes", "yes"] in rows


def test_what_cannot_be_joined_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    one = folder_of(tmp_path / "one", "coco", {})
    two = folder_of(tmp_path / "two", "coco", {})
    with pytest.raises(ConfigError) as caught:
        join([], tmp_path / "out")
    assert caught.value.option == "join"
    with pytest.raises(FormatError):
        join([tmp_path / "empty"], tmp_path / "out")
    with pytest.raises(DataError) as caught:
        join([one, two], tmp_path / "out")
    assert caught.value.option == "join" and "MS-COCO" in caught.value.problem
    with pytest.raises(DataError) as caught:
        join([one], two)
    assert (caught.value.file, caught.value.option) == (two, "out")


@pytest.mark.parametrize("tables", [{"data-split": 3}, {"data-split": {"cells": [{}], "claims": {}}}, []])
def test_invalid_content_is_refused(tables, tmp_path):
    folder = folder_of(tmp_path / "one", "coco", {})
    content = json.loads((folder / "reproduction.json").read_text())
    (folder / "reproduction.json").write_text(json.dumps({**content, "tables": tables}))
    with pytest.raises(FormatError) as caught:
        join([folder], tmp_path / "out")
    assert caught.value.file == folder / "reproduction.json"


NUMBERS = {
    "cross-length-stability": {
        "lengths": [8, 16],
        "designs": {
            design: {
                "rank": [[0.0, 0.5, 1.0]] * 5,
                "moved": [[shift, -shift, 0.0]] * 5,
                "tau": [0.1, 0.2, 0.3, 0.4, 0.5],
            }
            for design, shift in (("Naive Prefix", 0.5), ("MultiBit", 0.1))
        },
    },
    "query-level-gain": {"bits": 16, "differences": {"Uniform Bits": [-1.0, 2.0, 3.0, 0.0]}},
    "parameter-sensitivity": {
        "bits": 16,
        "alpha": [0.3, 0.6],
        "eta": [0.1, 0.2, 0.4],
        "mean_map": [[1, 2], [3, 9], [4, 5]],
    },
}


def keep_numbers(folder, numbers):
    for name, content in numbers.items():
        (folder / "figures").mkdir(exist_ok=True)
        write_json(folder / "figures" / f"{name}.json", content, kind=FIGURE_KIND, version=FIGURE_VERSION)


def test_figures_of_several_datasets_have_panels_for_each(papers, tmp_path):
    keep_numbers(papers[0], NUMBERS)
    keep_numbers(papers[2], {name: NUMBERS[name] for name in ("query-level-gain", "parameter-sensitivity")})
    written = join(papers, tmp_path / "out")
    made = {path.name for path in written if path.parent.name == "figures"}
    assert made == {f"{name}.{ending}" for name in NUMBERS for ending in ("png", "pdf")}
    both = {"MIRFlickr-25K": NUMBERS, "MS-COCO": NUMBERS}
    titles = {
        name: [axes.get_title() for axes in FIGURES[name].draw({of: each[name] for of, each in both.items()}).axes]
        for name in NUMBERS
    }
    assert titles["cross-length-stability"] == [f"{of}: {each}" for of in both for each in ("Naive Prefix", "MultiBit")]
    assert titles["query-level-gain"] == [f"{of}: AP of the full model minus the other design, 16 bits" for of in both]
    assert [each for each in titles["parameter-sensitivity"] if each] == [
        f"{of}: Validation mean mAP (%) at 16 bits" for of in both
    ]


def test_datasets_without_numbers_of_figures_have_none(papers, tmp_path):
    assert not [path for path in join(papers, tmp_path / "out") if path.parent.name == "figures"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "content", [{}, {"lengths": 3, "bits": [], "designs": {"a": 1}, "differences": 7, "alpha": "x"}]
)
def test_invalid_numbers_of_a_figure_are_refused_with_the_file(name, content, papers, tmp_path):
    keep_numbers(papers[0], {name: NUMBERS[name]})  # the others would be drawn first
    keep_numbers(papers[1], {name: content})
    with pytest.raises(FormatError) as caught:
        join(papers, tmp_path / "out")
    assert caught.value.file == papers[1] / "figures" / f"{name}.json"


@pytest.mark.slow
def test_folders_of_real_reproductions_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "load_text_encoder", Words)
    names = [name for name in choose([], quick=True) if name in TABLES or name in NUMBERS]
    for number, column in enumerate(("mirflickr", None)):
        path = tmp_path / f"data-{number}.npz"
        np.savez(path, **plant(120, seed=number), label_names=[f"topic {i}" for i in range(8)])
        store = FeatureStore.open(path)
        r = Reproduction(
            Subject(store.dataset.labels, store.dataset.label_names, store, column), tmp_path / f"r{number}", TINY
        )
        reproduce_all(r, names, [42], r.folder, Console(file=io.StringIO()))
    written = join([tmp_path / "r0", tmp_path / "r1"], tmp_path / "out")
    assert {path.stem for path in written if path.parent.name == "tables"} == {*names, "claims"} - set(NUMBERS)
    figures = {path.stem for path in written if path.parent.name == "figures"}
    assert figures == {"cross-length-stability", "query-level-gain"}
    text = read(tmp_path / "out", "resolution-label-names")
    assert "MIRFlickr-25K: " in text and "all-minilm-l6-v2" in text and "r1: " in text
    assert "nan" not in (tmp_path / "out" / "joined.md").read_text().lower()
    tex = read(tmp_path / "out", "multi-length-cost", "tex")
    assert tex.count(r"\toprule") == tex.count(r"\bottomrule") == 1
