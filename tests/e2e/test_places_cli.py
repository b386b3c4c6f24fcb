"""What is refused before the work: outputs in the place of inputs, where nothing can be written, without effect."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from commands import done, refused
from conftest import plant
from multibit import runs

TINY = [f"--set={each}" for each in ("epochs=1", "lengths=8,16", "scales=2", "hidden=16", "dimension=8")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Features and a run with an index."""
    folder = tmp_path_factory.mktemp("made")
    np.savez(folder / "a.npz", **plant(60))
    done("train", folder / "a.npz", "--out", folder / "run", *TINY)
    done("index", folder / "run")
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """The working folder, with links to what was made and files of the user's own; nothing may be encoded."""
    monkeypatch.chdir(tmp_path)
    for each in ("run", "a.npz"):
        (tmp_path / each).symlink_to(made / each)
    (tmp_path / "it.csv").write_text("id,image,text,labels\n1,a.png,x,y\n")
    Image.new("RGB", (4, 4)).save(tmp_path / "photo.png")
    monkeypatch.setattr(runs, "encode", lambda *_: pytest.fail("too late"))
    return tmp_path


# ---- inputs are kept -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("check a.npz --html", "a.npz"),
        ("check it.csv --groups", "it.csv"),
        ("encode run a.npz --out", "a.npz"),
        ("encode run --out", "a.npz"),  # the features that it was trained on
        ("search run photo.png --sheet", "photo.png"),
        ("merge run/index/image.mbx --out", "run/index/image.mbx"),
        ("export run/index/image.mbx --out", "run/index/image.mbx"),
    ],
)
def test_an_input_is_never_replaced(command, target, here):
    before = (here / target).read_bytes()
    assert f"{target}: is the source itself, which would be replaced" in refused(*command.split(), target)
    assert (here / target).read_bytes() == before


def test_two_outputs_never_share_a_name(here):
    assert "both name g.csv" in refused("check", "it.csv", "--groups", "g.csv", "--html", "g.csv")


def test_an_evaluation_replaces_only_an_evaluation(here, made):
    before = (here / "run" / "run.json").read_bytes()
    said = refused("evaluate", "run", "--out", "run/run.json", "--no-report")
    assert "run/run.json: expected a multibit evaluation, found multibit run" in said
    (here / "mine.parquet").write_text("mine")
    said = refused("evaluate", "run", "--out", "mine.json", "--no-report")
    assert "mine.parquet: holds no values of an evaluation, but would be replaced" in said
    assert (here / "run" / "run.json").read_bytes() == before and (here / "mine.parquet").read_text() == "mine"


def test_an_evaluation_is_replaced_by_the_next(made, tmp_path):
    for _ in range(2):
        done("evaluate", made / "run", "--out", tmp_path / "e.json", "--no-report")
    (tmp_path / "e.json").unlink()  # as after a crash between the two files
    done("evaluate", made / "run", "--out", tmp_path / "e.json", "--no-report")


# ---- places below the one that was named -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "inside", "kind"),
    [
        ("evaluate run --report R", "R/figures", "file"),
        ("evaluate run --report R", "R/tables", "file"),
        ("evaluate run --report R", "R/report.html", "folder"),
        ("evaluate run --no-report --out R/e.json", "R/e.parquet", "folder"),
        ("evaluate run --no-report --save-dir R", "R/PR_cruve", "file"),
        ("index run --out R", "R/text.mbx", "folder"),
    ],
)
def test_a_place_inside_that_cannot_be_written_is_refused_before_the_work(command, inside, kind, here):
    (here / "R").mkdir()
    (here / inside).mkdir() if kind == "folder" else (here / inside).write_text("mine")
    assert f"{inside}: is a {kind}, but a " in refused(*command.split())
    assert [each.name for each in (here / "R").iterdir()] == [(here / inside).name]


@pytest.mark.parametrize(
    "command", ["train a.npz --out link", "evaluate run --out link/e.json", "encode run --out link.npz"]
)
@pytest.mark.parametrize("leads", ["nowhere", "itself"])
def test_a_link_that_leads_nowhere_is_refused(command, leads, here):
    for name in ("link", "link.npz"):
        (here / name).symlink_to("gone" if leads == "nowhere" else name)
    assert ": is a link that leads nowhere. Remove it or choose another place." in refused(*command.split())


# ---- links -----------------------------------------------------------------------------------------------------------


def test_a_link_stays_and_what_it_leads_to_is_replaced(made, tmp_path):
    (tmp_path / "codes").mkdir()
    (tmp_path / "codes" / "kept.npz").write_text("old")
    (tmp_path / "link.npz").symlink_to("codes/kept.npz")
    done("encode", made / "run", "--out", tmp_path / "link.npz")
    assert os.readlink(tmp_path / "link.npz") == "codes/kept.npz"
    assert len(np.load(tmp_path / "codes" / "kept.npz")["ids"]) == 60
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["codes", "kept.npz", "link.npz"]


# ---- options without effect ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("index run --update --engine exact", "--engine: no effect with --update: the index keeps its engine"),
        ("index run --remove 1 --engine lists", "--engine: no effect with --remove, which only takes items out"),
        ("index run --remove 1 --items all", "--items: no effect with --remove"),
        ("encode run --workers 2", "--workers: no effect without --engine ray"),
        ("encode run --engine local --workers 8", "--workers: no effect without --engine ray"),
        ("label it.csv --vocabulary v --count 9", "--count: no effect with --vocabulary, which names the labels"),
        ("label it.csv --vocabulary v --min-share 0 --max-share 1", "--min-share, --max-share: no effect with"),
    ],
)
def test_an_option_without_effect_is_refused(command, said, here):
    (here / "v").write_text("word\n")
    out = [] if command.startswith("index") else ["--out", here / ("new.npz")]
    assert said in refused(*command.split(), *out)
    assert not (here / "new.npz").exists()


@pytest.mark.parametrize("ending", ["npz", "mat"])
def test_a_length_that_the_codes_do_not_have_is_refused_before_they_are_made(ending, here):
    said = refused("encode", "run", "--bits", 500, "--out", f"new.{ending}")
    assert "asked for a prefix of 500 bits, these codes have 1 to 16" in said


@pytest.mark.parametrize("name", [".npz", "codes", "folder/"])
def test_a_name_without_ending_is_refused(name, here):
    (here / "folder").mkdir()
    assert "must be a file name that ends in .npz or .mat, such as codes.npz" in refused("encode", "run", "--out", name)


def test_a_folder_in_place_of_an_index_is_named(here):
    assert "run: is a folder; expected the file of a multibit index" in refused("export", "run", "--out", "c.npy")
