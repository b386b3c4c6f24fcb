"""Ids, labels, texts and paths that are terminal control characters, Rich markup, formulas, HTML: every verb."""

from __future__ import annotations

import csv
import html.parser
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from commands import TINY, Words, cli
from conftest import register_letters
from multibit import measurement

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
NASTY = (
    "\x1b]0;owned\x07\x1b[31m", "\x9b2J", "[red]x[/red]", "r[/x]", "[link=http://x.y]z[/link]", "@SUM(1)",
    "=1+cmd|' /C calc'!A0", "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}",
    r"$\frac{$ $x$", "\u202egnp", "a\r\nb", "%s {0} \\", "👁",
)  # fmt: skip
FOLDER = "r[red] [/x] \x1b[31m<b>{{ 7 }}"
MARKED = "r[red] [/x] \\u001b[31m<b>{{ 7 }}"  # as it is printed
ITEMS = 60


class Tags(html.parser.HTMLParser):
    """The names of all tags of a page, and whether one has a handler of an event."""

    def __init__(self, page):
        super().__init__()
        self.names, self.handlers = set(), set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.handlers |= {name for name, _ in attrs if name.startswith("on")}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each verb says and writes, run in a folder with a hostile name on a data set of hostile names."""
    folder = tmp_path_factory.mktemp("hostile") / FOLDER
    (folder / "images").mkdir(parents=True)
    rng, rows = np.random.default_rng(0), []
    for i in range(ITEMS):
        nasty = NASTY[i % len(NASTY)]
        name = re.sub(r"[/\0]", "-", f"{i} {nasty}.png")
        Image.fromarray(rng.integers(0, 255, (4, 4, 3), np.uint8)).save(folder / "images" / name)
        labels = [f"{NASTY[k]} label" for k in sorted({i % 8, int(rng.integers(6))})]
        image = f"images/{name}" if i != 7 else f"images/gone {name}"
        rows.append({"id": f"{nasty} {i}", "image": image, "texts": [f"{nasty} text {i}", nasty], "labels": labels})
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    commands = {
        "import": ["manifest", "items.jsonl", "--out", "new.csv"],
        "label": ["items.jsonl", "--out", "labelled.jsonl"],
        "check": ["items.jsonl", "--html", "check.html", "--groups", "groups.csv"],
        "features": ["items.jsonl", "--out", "f", "--image-encoder", "letters", "--text-encoder", "letters"],
        "select": ["f", "--out", "selection", "--alpha", "0.9", "--eta", "0.1,0.2", "--full", "--method=multibit"],
        "train": ["f", "--out", "run"],
        "evaluate": ["run", "--report", "report", "--save-dir", "field"],
        "encode": ["run", "--out", "codes.npz"],
        "index": ["run"],
        "search": ["run", NASTY[0], "--sheet", "sheet.png"],
        "search --json": ["run", NASTY[0], "--json"],
        "search --where": ["run", NASTY[0], "--where", f"labels={NASTY[0]} none"],
        "export": ["run/index/image.mbx", "--out", "index.parquet"],
        "merge": ["run/index/image.mbx", "--out", "merged.mbx"],
        "info": ["f"],
        "reproduce": ["f", "--out", "reproduced", "--table", "data-split", "--table", "no-such\x1b[31m"],
    }
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        register_letters(patch)
        patch.setattr(measurement, "load_text_encoder", Words)
        for name, arguments in commands.items():
            more = TINY if name in ("train", "select") else []
            places = [
                str(folder / each) if (folder / each).exists() and "--" not in each else each for each in arguments
            ]
            found[name] = cli(name.split()[0], *places, *more)
    yield SimpleNamespace(folder=folder, of=found)
    shutil.rmtree(folder)


FAILING = ("search --where", "reproduce")


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb",
    [
        "import",
        "label",
        "check",
        "features",
        "select",
        "train",
        "evaluate",
        "encode",
        "index",
        "search",
        "search --json",
        "search --where",
        "export",
        "merge",
        "info",
        "reproduce",
    ],
)
def test_no_verb_prints_a_control_character_or_reads_markup(verb, said):
    result = said.of[verb]
    assert result.code == (1 if verb in FAILING else 0), result.err
    assert not CONTROL.search(result.out) and not CONTROL.search(result.err), (result.out, result.err)
    assert "Traceback" not in result.err


@pytest.mark.slow
def test_names_are_printed_as_they_are(said):
    assert f"Wrote {said.folder}".replace(FOLDER, MARKED) in said.of["index"].out.replace("Wrote ", "Wrote ", 1)
    assert "[link=http://x.y]z[/link]" in said.of["check"].out
    hits = [json.loads(line) for line in said.of["search --json"].out.splitlines()]
    assert len(hits) == 10 and {hit["id"] for hit in hits} <= {f"{NASTY[i % len(NASTY)]} {i}" for i in range(ITEMS)}


@pytest.mark.slow
@pytest.mark.parametrize("page", ["check.html", "report/report.html"])
def test_pages_hold_names_as_text(page, said):
    content = (said.folder / page).read_text(encoding="utf-8")
    tags = Tags(content)
    assert not tags.handlers and not CONTROL.search(content)
    raw = re.findall(r"(.{9})alert\(1\)", content)
    assert raw and set(raw) <= {"cript&gt;", " onerror="}
    assert "img" not in tags.names or page != "check.html"


@pytest.mark.slow
def test_tables_for_people_hold_no_formulas_and_no_control_characters(said):
    tables = [*said.folder.glob("report/tables/*"), *said.folder.glob("selection/*.csv")]
    assert len(tables) > 6
    for path in tables:
        text = path.read_text(encoding="utf-8")
        assert not CONTROL.search(text), path
        if path.suffix == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                cells = [cell for row in csv.reader(file) for cell in row]
            assert not [cell for cell in cells if cell.startswith(("=", "@", "\t")) or cell[:2] in ("+c", "-c")], path


@pytest.mark.slow
def test_data_exports_keep_the_names(said):
    with (said.folder / "new.csv").open(encoding="utf-8", newline="") as file:
        ids = [row["id"] for row in csv.DictReader(file)]
    assert ids == [f"{NASTY[i % len(NASTY)]} {i}" for i in range(ITEMS)]
