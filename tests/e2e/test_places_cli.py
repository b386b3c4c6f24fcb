"""Refused before the work: outputs that would replace inputs, paths that cannot be written, options without effect."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from commands import assert_names, done, refused
from multibit import indices, measurement, pipeline


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """The working folder, with links to the inputs and files of the user; nothing may be encoded."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").symlink_to(made / "plain")
    (tmp_path / "ready.npz").symlink_to(made / "ready.npz")
    (tmp_path / "it.csv").write_text("id,image,text,labels\n1,a.png,x,y\n")
    Image.new("RGB", (4, 4)).save(tmp_path / "photo.png")
    for module in (measurement, pipeline, indices):
        monkeypatch.setattr(module, "encode_store", lambda *_, **__: pytest.fail("too late"))
    return tmp_path


# ---- inputs are kept -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("check ready.npz --html", "ready.npz"),
        ("check it.csv --groups", "it.csv"),
        ("encode run ready.npz --out", "ready.npz"),
        ("encode run --out", "ready.npz"),  # the features that it was trained on
        ("search run photo.png --sheet", "photo.png"),
        ("merge run/index/image.mbx --out", "run/index/image.mbx"),
        ("export run/index/image.mbx --out", "run/index/image.mbx"),
    ],
)
def test_an_input_is_never_replaced(command, target, here):
    kept = here / target
    file = kept / "manifest.json" if kept.is_dir() else kept
    before = file.read_bytes()
    assert_names(refused(*command.split(), target), target)
    assert file.read_bytes() == before


def test_two_outputs_never_share_a_name(here):
    """The page and the groups have endings of their own."""
    assert_names(refused("check", "it.csv", "--groups", "g.csv", "--html", "g.csv"), "--html", ".html", "g.csv")
    assert_names(refused("check", "it.csv", "--groups", "g.html", "--html", "g.html"), "--groups", ".csv", "g.html")


def test_an_evaluation_replaces_only_an_evaluation(here, made):
    before = (here / "run" / "run.json").read_bytes()
    assert_names(refused("evaluate", "run", "--out", "run/run.json", "--no-report"), "run/run.json")
    (here / "mine.parquet").write_text("mine")
    assert_names(refused("evaluate", "run", "--out", "mine.json", "--no-report"), "mine.parquet")
    assert (here / "run" / "run.json").read_bytes() == before and (here / "mine.parquet").read_text() == "mine"


def test_an_evaluation_is_replaced_by_the_next(made, tmp_path):
    for _ in range(2):
        done("evaluate", made / "plain", "--out", tmp_path / "e.json", "--no-report")
    (tmp_path / "e.json").unlink()  # as after a crash between the two files
    done("evaluate", made / "plain", "--out", tmp_path / "e.json", "--no-report")


# ---- paths inside the named folder -----------------------------------------------------------------------------------


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
def test_a_path_inside_that_cannot_be_written_is_refused_before_the_work(command, inside, kind, here):
    (here / "R").mkdir()
    (here / inside).mkdir() if kind == "folder" else (here / inside).write_text("mine")
    assert_names(refused(*command.split()), inside)
    assert [each.name for each in (here / "R").iterdir()] == [(here / inside).name]


@pytest.mark.parametrize(
    "command", ["train ready.npz --out link", "evaluate run --out link/e.json", "encode run --out link.npz"]
)
@pytest.mark.parametrize("leads", ["nowhere", "itself"])
def test_a_dangling_link_is_refused(command, leads, here):
    for name in ("link", "link.npz"):
        (here / name).symlink_to("gone" if leads == "nowhere" else name)
    assert_names(refused(*command.split()), "link")


# ---- links -----------------------------------------------------------------------------------------------------------


def test_a_link_is_replaced_and_what_it_leads_to_is_kept(made, tmp_path):
    (tmp_path / "codes").mkdir()
    (tmp_path / "codes" / "kept.npz").write_text("old")
    (tmp_path / "link.npz").symlink_to("codes/kept.npz")
    done("encode", made / "plain", "--out", tmp_path / "link.npz")
    assert (tmp_path / "codes" / "kept.npz").read_text() == "old" and not (tmp_path / "link.npz").is_symlink()
    assert len(np.load(tmp_path / "link.npz")["ids"]) == 60
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["codes", "kept.npz", "link.npz"]


# ---- options without effect ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("index run --update --engine exact", "--engine"),
        ("index run --remove 1 --engine lists", "--engine"),
        ("index run --remove 1 --items all", "--items"),
        ("encode run --workers 2", "--workers"),
        ("encode run --engine local --workers 8", "--workers"),
        ("label it.csv --vocabulary v --count 9", "--count"),
        ("label it.csv --vocabulary v --min-share 0 --max-share 1", "--min-share, --max-share"),
    ],
)
def test_an_option_without_effect_is_refused(command, options, here):
    (here / "v").write_text("word\n")
    out = [] if command.startswith("index") else ["--out", here / ("new.npz")]
    assert refused(*command.split(), *out).startswith(f"Error: {options}: no effect with")
    assert not (here / "new.npz").exists()


@pytest.mark.parametrize("ending", ["npz", "mat"])
def test_a_length_that_the_codes_do_not_have_is_refused_before_they_are_made(ending, here):
    assert_names(refused("encode", "run", "--bits", 500, "--out", f"new.{ending}"), 500, 16)


@pytest.mark.parametrize("name", [".npz", "codes", "folder/"])
def test_a_name_without_ending_is_refused(name, here):
    (here / "folder").mkdir()
    assert_names(refused("encode", "run", "--out", name), "--out", ".npz", ".mat", name.strip("/"))


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        ("evaluate run --no-report --out run.txt", ".json"),
        ("merge run/index/image.mbx --out all.npy", ".mbx"),
        ("search run word --sheet run.json", ".png"),
    ],
)
def test_an_output_of_another_ending_is_refused(command, ending, here):
    *_, option, name = command.split()
    assert_names(refused(*command.split()), option, ending, name)


def test_a_folder_in_place_of_an_index_is_named(here):
    assert_names(refused("export", "run", "--out", "c.npy"), "run", "folder", "index")


def test_a_path_is_printed_as_it_is(here):
    """Brackets and colons mean markup and emoji to the library that prints tables."""
    name = "r[/x] [red] :smile:"
    done("import", "manifest", "it.csv", "--out", f"{name}.jsonl")
    assert done("import", "manifest", "it.csv", "--out", f"{name}.csv").startswith(f"Wrote {name}.csv: 1 item,")
    assert f"{name}.jsonl" in refused("import", "manifest", f"{name}.jsonl", "--out", f"{name}.jsonl")
    assert f"Error: {name}" in refused("info", name)
