"""Changes of two indices in one step, when their writer is killed before any line, and when it fails."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import test_index_crash as crash
from test_index_crash import child, left_over

from multibit import Codes, Index
from multibit.errors import BusyError, DataError, FormatError
from multibit.files import write_json
from multibit.search import journal, storage
from multibit.search.together import finish, writing_together

pytestmark = pytest.mark.slow

NAMES = ("image.mbx", "text.mbx")
SOURCES = ("files.py", *(os.path.join("search", f"{name}.py") for name in ("together", "storage", "journal")))


@pytest.fixture
def folder(tmp_path):
    """Two indices with the item "number 0"."""
    for name in NAMES:
        index = Index()
        index.add(["number", "other"], codes_of(0, 2), [{"number": 0}] * 2)
        index.save(tmp_path / name)
    return tmp_path


def codes_of(number, count=1):
    return Codes.from_bits([[number >> bit & 1 for bit in range(16)]] * count)


def write(folder, number):
    """Replace an item that is in both."""
    with writing_together([Index.open(folder / name) for name in NAMES]) as writers:
        for index in writers:
            index.upsert(["number"], codes_of(number), [{"number": number}])


def numbers(folder):
    """The number that each index has; its code must be that of the number."""
    found = []
    for name in NAMES:
        index = Index.load(folder / name)
        number = index.payloads[len(index) - 1]["number"]
        assert np.array_equal(index.codes_of(["number"]).to_bits(), codes_of(number).to_bits())
        found.append(number)
    return found


def clean(folder):
    """Nothing is left of interrupted writers."""
    assert not (folder / journal.JOURNAL).exists()
    for name in NAMES:
        assert set(left_over(folder / name)) <= set(NAMES)


def killed(work):
    """Run the work in a process that must be killed."""
    assert os.WTERMSIG(os.waitpid(child(work), 0)[1]) == signal.SIGKILL


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def test_both_indices_are_changed_and_nothing_is_left(folder):
    write(folder, 7)
    assert numbers(folder) == [7, 7] and finish(folder)
    clean(folder)


def test_a_writer_killed_between_the_two_indices_is_finished(folder, monkeypatch):
    """The worst moment: one index is new, the other one old."""
    real, calls = journal.carry_out, []

    def carry_out(path):
        if journal.pending(path.parent):
            calls.append(path)
            if len(calls) > 1:
                kill()
        return real(path)

    for finisher in (finish, lambda folder: write(folder, 9)):
        write(folder, 1)
        with monkeypatch.context() as patch:
            patch.setattr(journal, "carry_out", carry_out)
            killed(lambda: write(folder, 2))
        assert numbers(folder) == [2, 1]  # half written, until somebody opens the folder to write or to serve
        finisher(folder)
        assert numbers(folder) in ([2, 2], [9, 9])
        clean(folder)


def test_a_writer_of_one_index_keeps_what_was_decided(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(journal, "forget", lambda _: kill())
        patch.setattr(journal, "carry_out", lambda path: journal.pending(path.parent) and kill())
        killed(lambda: write(folder, 3))
    assert numbers(folder) == [0, 0]
    with Index.editing(folder / "text.mbx") as index:
        index.upsert(["more"], codes_of(5), [{"number": 3}])
    with Index.editing(folder / "text.mbx") as index:
        index.remove(["more"])
    assert finish(folder) and numbers(folder) == [3, 3]
    clean(folder)


def test_a_writer_killed_before_any_line_leaves_both_old_or_both_new(folder, monkeypatch):
    """Around every change of the files, before and after the decision."""
    monkeypatch.setattr(crash, "TRACED", tuple(os.path.join("multibit", name) for name in SOURCES))
    chosen = crash.telling_lines(lambda: write(folder, 1), folder)
    before, outcomes = 1, []
    for number, last in enumerate(chosen, start=2):
        steps = iter(range(last))
        work = lambda n=number: write(folder, n)  # noqa: E731
        process = child(lambda s=steps, w=work: crash.traced(w, lambda: next(s, None) is None and kill()))
        os.waitpid(process, 0)  # killed, or with fewer lines than the first time
        assert finish(folder)
        found = numbers(folder)
        assert found in ([before] * 2, [number] * 2)
        outcomes.append(found[0] == number)
        write(folder, number)
        clean(folder)
        before = number
    assert 0 < sum(outcomes) < len(outcomes)


def test_an_error_changes_neither(folder, monkeypatch):
    with pytest.raises(ZeroDivisionError), writing_together([Index.open(folder / name) for name in NAMES]) as writers:
        writers[0].upsert(["number"], codes_of(4), [{"number": 4}])
        raise ZeroDivisionError
    with pytest.raises(DataError), writing_together([Index.open(folder / name) for name in NAMES]) as writers:
        writers[0].upsert(["number"], codes_of(4), [{"number": 4}])
        writers[1].remove(["number", "other"])  # would be empty
    real = storage._write_version

    def full(path, *given):
        if path.name == NAMES[1]:
            raise OSError(28, "No space left on device")
        return real(path, *given)

    monkeypatch.setattr(storage, "_write_version", full)
    with pytest.raises(OSError, match="No space"):
        write(folder, 4)
    assert numbers(folder) == [0, 0]
    clean(folder)


def test_an_index_that_is_not_changed_is_not_written(folder):
    before = (folder / "text.mbx" / "manifest.json").stat().st_mtime_ns
    with writing_together([Index.open(folder / name) for name in NAMES]) as writers:
        writers[0].upsert(["number"], codes_of(4), [{"number": 4}])
    assert numbers(folder) == [4, 0]
    assert (folder / "text.mbx" / "manifest.json").stat().st_mtime_ns == before


def test_another_writer_is_left_alone(folder, tmp_path_factory):
    journal.decide(folder, dict.fromkeys(NAMES, "manifest-0.mbs"))
    with Index.editing(folder / "text.mbx"):
        assert not finish(folder)
        with pytest.raises(BusyError):
            write(folder, 1)
    assert finish(folder) and numbers(folder) == [0, 0]
    write_json(folder / journal.JOURNAL, {"manifests": {"../x": "manifest-0.mbs"}}, kind="index changes", version=1)
    with pytest.raises(FormatError):
        finish(folder)
    (folder / journal.JOURNAL).unlink()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "a.mbx"
    Index.open(folder / "text.mbx").save(elsewhere)
    both = [Index.open(folder / "text.mbx"), Index.open(elsewhere)]
    with pytest.raises(DataError), writing_together(both):
        pass
