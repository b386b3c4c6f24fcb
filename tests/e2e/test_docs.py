"""The documentation: the commands and programs of every page run, and the site builds without loose ends."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import multibit
from multibit.data import sample
from multibit.hashing.methods import METHODS
from pages import ROOT, blocks, require_known_options, run_page

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
START = DOCS / "own-data.md"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that "Your own data" leaves, made of a few items and epochs: the other pages start from it."""
    data = sample.load_sample()
    labels = [data.label_names.index(name) for name in ("flower", "fruit", "fish", "tree")]
    rows = np.unique(np.concatenate([np.flatnonzero(data.labels[:, label])[:28] for label in labels]))
    few = data.take(np.random.default_rng(0).permutation(rows))
    folder = tmp_path_factory.mktemp("docs") / "project"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for module in ("data.sample", "demo"):
            patch.setattr(f"multibit.{module}.load_sample", lambda: few)
        for name in ("multibit", "multibit-plus"):
            quick = replace(METHODS[name].defaults, epochs=3)
            patch.setitem(METHODS, name, replace(METHODS[name], defaults=quick))
        patch.chdir(folder)
        run_page(START)
        yield folder


def test_your_own_data_becomes_an_index(example: Path):
    index = multibit.Index.open(example / "run" / "index" / "image.mbx")
    assert len(index) > 80 and "new" not in set(index.ids)
    assert (example / "run" / "report" / "report.html").is_file()


TESTED = [page for page in PAGES if page != START and any(block.is_tested for block in blocks(page))]


@pytest.mark.parametrize("page", TESTED, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(example, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    run_page(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_has_a_known_verb_and_known_options(page: Path):
    for block in blocks(page, "sh"):
        require_known_options(block.text)


def test_few_blocks_are_not_tested():
    marked = [block.title for page in PAGES for block in blocks(page, "sh", "python") if not block.is_tested]
    assert len(marked) <= 12 and all(re.fullmatch("Not tested: needs .+", title) for title in marked)


def test_every_public_name_is_on_one_page_of_the_api():
    named = [name.rpartition(".")[2] for page in (DOCS / "api").glob("*.md") for name in described(page)]
    public = set(multibit.__all__) - {"METHODS"}  # a mapping, named in the text of its page
    assert public <= set(named) and len(named) == len(set(named))


def described(page: Path) -> list[str]:
    return re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; a page that is not in its navigation, a link or an anchor that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_has_every_page(site: Path):
    made = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert {page.relative_to(DOCS).with_suffix("") for page in PAGES} <= made


def test_the_site_loads_nothing_from_elsewhere(site: Path):
    for path in site.rglob("*.html"):
        for tag in re.findall(r"<(?:script|img|iframe|link|source|video)\b[^>]*>", path.read_text(encoding="utf-8")):
            address = re.search(r"""\s(?:src|href)=["']?(?:https?:)?//""", tag)
            assert address is None or 'rel="canonical"' in tag, (path, tag)
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"""(?:url\(|@import )["']?(?:https?:)?//""", text), path
