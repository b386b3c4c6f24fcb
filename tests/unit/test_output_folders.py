"""Output folders are replaced in one step, have one writer, and links in them are never followed."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from multibit.errors import BusyError, DataError
from multibit.folders import only_writer, only_writer_of, renewing, require_inside, subfolder
from multibit.paths import replacing, require_writable


def tree(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def report(tmp_path):
    """An earlier report with a file of the user's, in a folder of the report and in one of their own."""
    folder = tmp_path / "report"
    for name in ("page.html", "tables/a.md", "tables/mine.md", "notes/mine.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"old {name}")
    return folder


def write(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"new {name}")


OWN = ("*.html", "tables/?.md")
KEPT = {"tables/mine.md": "old tables/mine.md", "notes/mine.txt": "old notes/mine.txt"}


@pytest.fixture(params=["in one step", "in two renames"])
def system(request, monkeypatch):
    """A system that can exchange two names, and one that cannot."""
    if request.param == "in two renames":
        monkeypatch.setattr("multibit.folders.ctypes", SimpleNamespace(CDLL=lambda *_, **__: object()))
    return request.param


def test_a_new_folder_takes_the_place_of_the_earlier_one_and_other_files_stay(report, system):
    with renewing(report, OWN) as fresh:
        write(fresh, "page.html", "tables/b.md")
        assert tree(report)["page.html"] == "old page.html"
    assert tree(report) == {"page.html": "new page.html", "tables/b.md": "new tables/b.md", **KEPT}
    assert list(report.parent.iterdir()) == [report]


def test_a_folder_that_does_not_exist_is_made(tmp_path, system):
    with renewing(tmp_path / "a" / "report", OWN) as fresh:
        write(fresh, "page.html")
    assert tree(tmp_path) == {"a/report/page.html": "new page.html"}


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt(), RuntimeError()])
def test_a_failure_leaves_the_earlier_folder_and_nothing_else(report, failure):
    before = tree(report)
    with pytest.raises(type(failure)), renewing(report, OWN) as fresh:
        write(fresh, "page.html")
        raise failure
    assert tree(report) == before and list(report.parent.iterdir()) == [report]


def test_where_no_hard_links_can_be_made_other_files_are_copied(report, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EPERM, "no links")))
    with renewing(report, OWN) as fresh:
        write(fresh, "page.html")
    assert tree(report) == {"page.html": "new page.html", **KEPT}


def test_a_disk_that_is_full_while_other_files_are_kept_leaves_the_earlier_folder(report, monkeypatch):
    before = tree(report)
    monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError), renewing(report, OWN) as fresh:
        write(fresh, "page.html")
    assert tree(report) == before and list(report.parent.iterdir()) == [report]


def test_an_exchange_that_the_system_refuses_is_an_error_that_names_the_folder(report, monkeypatch):
    def refused(*_):
        ctypes.set_errno(errno.EACCES)
        return -1

    library = SimpleNamespace(renameat2=refused)
    fake = SimpleNamespace(CDLL=lambda *_, **__: library, get_errno=lambda: errno.EACCES)
    monkeypatch.setattr("multibit.folders.ctypes", fake)
    before = tree(report)
    with pytest.raises(OSError) as caught, renewing(report, OWN) as fresh:
        write(fresh, "page.html")
    assert caught.value.filename == str(report) and tree(report) == before


def test_links_are_replaced_and_what_they_lead_to_is_unchanged(report, tmp_path):
    victims = tmp_path / "victims"
    victims.mkdir()
    (victims / "page.html").write_text("precious")
    (victims / "a.md").write_text("precious")
    (report / "page.html").unlink()
    (report / "page.html").symlink_to(victims / "page.html")
    for path in (report / "tables").iterdir():
        path.unlink()
    (report / "tables").rmdir()
    (report / "tables").symlink_to(victims)
    with renewing(report, OWN) as fresh:
        write(fresh, "page.html", "tables/a.md")
    assert tree(victims) == {"a.md": "precious", "page.html": "precious"}
    assert not (report / "page.html").is_symlink() and not (report / "tables").is_symlink()
    assert (report / "tables/a.md").read_text() == "new tables/a.md"


def test_a_link_of_the_user_stays_a_link(report, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (report / "notes/there").symlink_to(tmp_path / "elsewhere")
    (report / "notes/gone").symlink_to(tmp_path / "gone")
    with renewing(report, OWN):
        pass
    assert (report / "notes/there").readlink() == tmp_path / "elsewhere" and (report / "notes/gone").is_symlink()


def test_a_folder_that_is_a_link_is_replaced(report, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(report)
    before = tree(report)
    with renewing(link, OWN) as fresh:
        write(fresh, "page.html")
    assert tree(report) == before and tree(link) == {"page.html": "new page.html"} and not link.is_symlink()


def test_a_file_that_is_a_link_is_replaced(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out").symlink_to(tmp_path / "victim")
    with replacing(tmp_path / "out") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "victim").read_text() == "precious" and (tmp_path / "out").read_text() == "new"


def test_a_folder_in_an_output_folder_is_never_a_link(tmp_path):
    (tmp_path / "victims").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/tables").symlink_to(tmp_path / "victims")
    made = subfolder(tmp_path / "out", "tables")
    assert made.is_dir() and not made.is_symlink() and (tmp_path / "victims").is_dir()
    assert subfolder(tmp_path / "out", "tables") == made


def test_a_default_place_that_leads_out_of_the_run_is_refused(tmp_path):
    (tmp_path / "index").symlink_to(tmp_path)
    with pytest.raises(DataError) as caught:
        require_inside(tmp_path, "index", "out")
    assert caught.value.file == tmp_path / "index"
    assert require_inside(tmp_path, "report", "report") == tmp_path / "report"


@pytest.mark.parametrize("kind", ["a named pipe", "a device"])
def test_an_output_that_is_no_regular_file_is_refused(kind, tmp_path):
    path = tmp_path / "out"
    if kind == "a device":
        try:
            os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))  # as /dev/null
        except PermissionError:
            pytest.skip("only root makes devices")
    else:
        os.mkfifo(path)
    with pytest.raises(DataError) as caught:
        require_writable(path)
    assert caught.value.file == path


# The one writer


@pytest.mark.parametrize("there", [None, "file", "folder"])
def test_a_second_writer_of_what_is_replaced_is_refused_though_it_was_replaced(there, tmp_path):
    path = tmp_path / "out"
    if there:
        path.write_text("old") if there == "file" else path.mkdir()
    with only_writer_of(path, None):
        if there == "folder":
            with renewing(path):
                pass
        else:
            with replacing(path) as temporary:
                temporary.write_text("new")
        with pytest.raises(BusyError) as caught, only_writer_of(path):
            pass
        assert caught.value.file == path
    with only_writer_of(path):
        pass
    assert list(tmp_path.iterdir()) == [path]


def test_the_lock_of_a_dead_writer_is_not_in_the_way(tmp_path):
    script = (
        "import os, sys; from pathlib import Path; from multibit.folders import only_writer_of\n"
        "with only_writer_of(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "out")], check=False)
    assert [path.name for path in tmp_path.iterdir()] == [".out.lock"]
    with only_writer_of(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_a_link_is_replaced(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / ".out.lock").symlink_to(tmp_path / "victim")
    with only_writer_of(tmp_path / "out"):
        assert not (tmp_path / ".out.lock").is_symlink()
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_named_pipe_is_locked_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with only_writer(tmp_path / "pipe"):
        pass
