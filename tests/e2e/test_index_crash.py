"""Index files when processes are killed, write and read at the same time, and when files are corrupt.

Every index here is of one generation: its ids, codes, payloads and model all contain the same number, so a mixture of
two generations is detected.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

import multibit.files
from multibit import Codes, Index
from multibit.errors import BusyError, ConfigError, DataError, FormatError
from multibit.files import write_arrays, write_json
from multibit.search import storage
from multibit.search.columns import strings, text_arrays

pytestmark = pytest.mark.slow

BITS = 24
KILLS = int(os.environ.get("MULTIBIT_KILLS", "20"))
TRACED = tuple(
    os.path.join("multibit", *name) for name in (("files.py",), ("search", "index.py"), ("search", "storage.py"))
)


def size(generation):
    return 2 + generation % 5


def fill(index, generation, wide=1):
    """Replace the items by those of a generation; `wide` is the length of their text."""
    index.remove([index.ids[row] for row in range(len(index))])
    count = size(generation)
    codes = Codes.from_bits(np.tile([[generation >> bit & 1 for bit in range(BITS)]], (count, 1)))
    index.add([f"{generation}: {row}" for row in range(count)], codes, payloads_of(generation, wide))
    index.model = str(generation)


def payloads_of(generation, wide):
    return [{"generation": generation, "text": "x" * wide}] * size(generation)


def made(generation, wide=1):
    index = Index()
    fill(index, generation, wide)
    return index


def generation_of(index):
    """The generation of an index, which must be the same everywhere."""
    generation = int(index.model)
    assert [index.ids[row] for row in range(len(index))] == [f"{generation}: {row}" for row in range(size(generation))]
    assert {index.payloads[row]["generation"] for row in range(len(index))} == {generation}
    assert (index.codes.to_bits() == [generation >> bit & 1 for bit in range(BITS)]).all()
    return generation


def left_over(path):
    """Files next to an index, except locks, and files in it that its manifest does not list."""
    outside = [file.name for file in path.parent.iterdir() if file != path and not file.name.endswith(".lock")]
    return sorted(outside + [file.name for file in path.iterdir() if file.name not in listed(path)])


def listed(path):
    """Names of the files of an index."""
    entries = json.loads((path / "manifest.json").read_text())["segments"]
    return {"manifest.json", *(entry.get(key) for entry in entries for key in ("file", "removed", "engine"))}


def raw(path):
    """The files of an index."""
    return {file.name: file.read_bytes() for file in path.iterdir()}


def only(path, pattern):
    (file,) = path.glob(pattern)
    return file


def child(work, *arguments):
    """Run the work in a forked process, where nothing has to be imported and compiled again."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def succeeded(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


# Ways of writing: each changes the index from one generation to another


def edit(path, generation, wide=1):
    with Index.editing(path) as index:
        fill(index, generation, wide)


def save(path, generation, wide=1):
    made(generation, wide).save(path)


def upsert(path, generation, wide=1):
    """Replace the items by those of a generation, without a removal in a step of its own."""
    old = [row for row in range(size(generation))]
    with Index.editing(path) as index:
        gone = [index.ids[row] for row in range(len(index))]
        index.upsert([f"{generation}: {row}" for row in old], made(generation).codes, payloads_of(generation, wide))
        index.remove(gone)
        index.model = str(generation)
        index.compact()


WRITINGS = {"editing": edit, "saving": save, "upserting": upsert}
writings = pytest.mark.parametrize("write", WRITINGS.values(), ids=WRITINGS)


def traced(work, at_line):
    """Run the work and call `at_line` before every line of the code that writes files."""

    def on_line(_frame, event, _argument):
        if event == "line":
            at_line()
        return on_line

    sys.settrace(lambda frame, _event, _argument: on_line if frame.f_code.co_filename.endswith(TRACED) else None)
    try:
        work()
    finally:
        sys.settrace(None)


def lines_of(work):
    """Number of these lines."""
    lines = []
    traced(work, lambda: lines.append(1))
    return len(lines)


def telling_lines(work, folder):
    """The first and the last line of each state of the files of a folder: a kill at a line between leaves the same."""
    seen = []
    traced(work, lambda: seen.append({(path, *facts(path.stat())) for path in folder.rglob("*")}))
    found = [0, *(line for line in range(1, len(seen)) if seen[line] != seen[line - 1])]
    assert len(found) > 4, "the writing is not traced"
    return sorted({*found, *(line - 1 for line in found[1:]), len(seen) - 1})


def facts(about):
    return about.st_ino, about.st_size, about.st_mtime_ns


def assert_old_or_new(path, old, new):
    """The file is of one of these generations, and the next writer removes the temporary files of the killed one."""
    assert generation_of(Index.load(path)) in (old, new)
    edit(path, new)
    assert generation_of(Index.load(path)) == new
    assert left_over(path) == []


@writings
def test_a_writer_killed_before_any_line_leaves_the_old_index_or_the_new_one(tmp_path, write):
    """For each way of writing, around every change of the files."""
    path = tmp_path / "a.mbx"
    save(path, 0)
    chosen, outcomes = telling_lines(lambda: write(path, 5), tmp_path), set()
    generations = range(10, 10 + 5 * len(chosen), 5)  # in steps of five: all of one size, so of equal lines
    for generation, last in zip(generations, chosen, strict=True):
        steps = iter(range(last))

        def kill_in_time(steps=steps):
            if next(steps, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        process = child(traced, lambda g=generation: write(path, g), kill_in_time)
        assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
        outcomes.add(generation_of(Index.load(path)) - generation)
        assert_old_or_new(path, generation - 5, generation)
    assert outcomes == {-5, 0}  # some were killed before the rename, some after


def write_forever(path, write, first, announce):
    for generation in range(first, first + 10_000):
        write(path, generation, wide=20_000)
        os.write(announce, generation.to_bytes(4, "little"))


@writings
def test_a_writer_killed_at_any_moment_leaves_the_last_generation_it_finished_or_the_next(tmp_path, write):
    """Processes that write repeatedly, each killed at a random moment."""
    path, rng = tmp_path / "a.mbx", np.random.default_rng(1)
    save(path, 0)
    old = 0
    for _ in range(KILLS):
        told, announce = os.pipe()
        process = child(write_forever, path, write, old + 1, announce)
        os.close(announce)
        select.select([], [], [], rng.uniform(0, 0.03))  # a write takes some milliseconds
        os.kill(process, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
        with os.fdopen(told, "rb") as finished:
            announced = np.frombuffer(finished.read(), "<u4")
        last = int(announced[-1]) if len(announced) else old
        assert_old_or_new(path, last, last + 1)
        old = last + 1


@writings
def test_a_writer_killed_with_half_of_the_bytes_written_leaves_the_old_index(tmp_path, write, monkeypatch):
    path, whole_save = tmp_path / "a.mbx", multibit.files.save_file
    save(path, 0)

    def half(arrays, target, metadata):
        whole_save(arrays, target, metadata=metadata)
        os.truncate(target, target.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(multibit.files, "save_file", half)
        for _ in range(3):
            assert not succeeded(child(write, path, 1))
    assert generation_of(Index.load(path)) == 0 and left_over(path) != []
    assert_old_or_new(path, 0, 1)


def test_a_first_writer_that_is_killed_leaves_no_index_or_a_whole_one(tmp_path):
    (tmp_path / "try").mkdir()
    for last in telling_lines(lambda: save(tmp_path / "try" / "a.mbx", 1), tmp_path / "try"):
        path, steps = tmp_path / str(last) / "a.mbx", iter(range(last))
        process = child(
            traced, lambda p=path: save(p, 1), lambda s=steps: next(s, None) is None and os.kill(os.getpid(), 9)
        )
        assert not succeeded(process)
        assert not path.exists() or generation_of(Index.load(path)) == 1
        save(path, 2)
        assert generation_of(Index.load(path)) == 2 and left_over(path) == []


def single_file(path, generation):
    """A file as version 1 wrote it."""
    index = made(generation)
    rows = range(len(index))
    names, texts = (strings(values) for values in (
        [index.ids[row] for row in rows], [json.dumps(index.payloads[row]) for row in rows]
    ))  # fmt: skip
    arrays = {"words": index.codes.words, **text_arrays(names, "ids"), **text_arrays(texts, "payloads")}
    facts = {"bits": BITS, "count": len(index), "model": str(generation), "engine": "exact", "ids": "string"}
    write_arrays(path, arrays, facts, kind="index", version=1)


@writings
def test_a_writer_killed_while_it_converts_a_file_leaves_the_file_or_the_folder(tmp_path, write):
    path, outcomes = tmp_path / "a.mbx", set()
    single_file(path, 0)
    for last in telling_lines(lambda: write(path, 5), tmp_path):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        single_file(path, 0)
        steps = iter(range(last))
        process = child(
            traced, lambda: write(path, 5), lambda s=steps: next(s, None) is None and os.kill(os.getpid(), 9)
        )
        assert not succeeded(process)
        outcomes.add((path.is_dir(), generation_of(Index.load(path))))
        edit(path, 10)
        assert generation_of(Index.load(path)) == 10 and left_over(path) == []
    assert outcomes == {(False, 0), (True, 5)}


def search_repeatedly(path, rounds):
    reader = Index.open(path)
    for _ in range(rounds):
        assert reader.search(Codes.from_bits([[0] * BITS]), 9).ids[0] == [f"{row}" for row in range(9)]
        reader.refresh()


def test_a_reader_finds_the_same_through_changes_and_compactions(tmp_path):
    path = tmp_path / "a.mbx"
    index = Index()
    index.add([f"{row}" for row in range(9)], Codes.from_bits([[0] * BITS] * 9))
    index.save(path)
    readers = [child(search_repeatedly, path, 200) for _ in range(2)]
    writer = Index.open(path)
    for number in range(40):
        with writer.writer() as changed:
            changed.upsert([f"far {number % 7}"], Codes.from_bits([[1] * BITS]))
            if number % 4 == 3:
                changed.compact()
    assert [succeeded(reader) for reader in readers] == [True, True]
    assert len(Index.load(path)) == 16


# Several processes at once


def read_repeatedly(path, loads, verify):
    last = 0
    for _ in range(loads):
        generation = generation_of(Index.load(path, verify=verify))
        assert generation >= last
        last = generation


def write_until_killed(path, ready):
    for generation in range(1, 10_000):
        edit(path, generation)
        os.write(ready, b"x")


@pytest.mark.parametrize("verify", [True, False])
def test_two_readers_always_see_whole_indices_while_a_writer_works(tmp_path, verify, capfd):
    path = tmp_path / "a.mbx"
    save(path, 0)
    ready, announce = os.pipe()
    writer = child(write_until_killed, path, announce)
    os.read(ready, 1)
    readers = [child(read_repeatedly, path, 250, verify) for _ in range(2)]
    try:
        assert [succeeded(reader) for reader in readers] == [True, True]
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        os.close(ready)
        os.close(announce)
    assert generation_of(Index.load(path)) > 1


def load_while_replaced(path, verify, at):
    """The generation that is loaded where 1 is replaced by 4 before a certain line of the loading."""
    steps, found = iter(range(at)), []

    def replace_in_time():
        if next(steps, None) is None and not found:
            found.append("replaced")
            save(path, 4)

    traced(lambda: found.append(generation_of(Index.load(path, verify=verify))), replace_in_time)
    assert found[0] == "replaced"
    return found[1]


@pytest.mark.parametrize("verify", [True, False])
def test_an_index_that_is_replaced_at_any_line_of_its_loading_is_the_old_one_or_the_new_one(tmp_path, verify):
    path, loaded = tmp_path / "a.mbx", set()
    save(path, 1)
    for at in range(lines_of(lambda: Index.load(path, verify=verify))):
        save(path, 1)
        loaded.add(load_while_replaced(path, verify, at))
    assert loaded == {1, 4}


def hold(path, held, release):
    with Index.editing(path) as index:
        fill(index, 1)
        os.write(held, b"x")
        os.read(release, 1)


@contextlib.contextmanager
def another_process_edits(path):
    """A process in the middle of an edit; yields it and a function that lets it finish."""
    (held, tell_held), (release, tell_release) = os.pipe(), os.pipe()
    process = child(hold, path, tell_held, release)
    try:
        os.read(held, 1)
        yield process, lambda: os.write(tell_release, b"x")
    finally:
        with contextlib.suppress(ChildProcessError):  # it has ended and was waited for
            if os.waitpid(process, os.WNOHANG) == (0, 0):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
        for end in (held, tell_held, release, tell_release):
            os.close(end)


@writings
def test_the_second_of_two_writers_is_refused_at_once_and_the_first_one_finishes(tmp_path, write):
    path = tmp_path / "a.mbx"
    save(path, 0)
    with another_process_edits(path) as (first, let_it_finish):
        with pytest.raises(BusyError) as caught:
            write(path, 9)
        assert caught.value.file == path and caught.value.hint
        assert generation_of(Index.load(path)) == 0
        let_it_finish()
        assert succeeded(first) and generation_of(Index.load(path)) == 1
    write(path, 2)
    assert generation_of(Index.load(path)) == 2 and left_over(path) == []


@pytest.mark.parametrize("there", [True, False])
def test_two_indices_in_one_folder_are_written_at_the_same_time(tmp_path, monkeypatch, there):
    one, other, whole_save = tmp_path / "image.mbx", tmp_path / "text.mbx", multibit.files.save_file
    if there:
        save(one, 0)
        save(other, 0)

    def save_the_other_first(*arguments, **settings):
        monkeypatch.setattr(multibit.files, "save_file", whole_save)
        save(other, 2)
        whole_save(*arguments, **settings)

    monkeypatch.setattr(multibit.files, "save_file", save_the_other_first)
    save(one, 1)
    assert (generation_of(Index.load(one)), generation_of(Index.load(other))) == (1, 2)


def test_two_edits_in_one_process_collide_too(tmp_path):
    path = tmp_path / "a.mbx"
    save(path, 0)
    with Index.editing(path) as index:
        fill(index, 1)
        with pytest.raises(BusyError) as caught:
            edit(path, 2)
        assert caught.value.file == path
    assert generation_of(Index.load(path)) == 1


def test_a_writer_that_dies_releases_the_lock(tmp_path):
    path = tmp_path / "a.mbx"
    save(path, 0)
    with another_process_edits(path) as (first, _):
        os.kill(first, signal.SIGKILL)
        assert not succeeded(first)
        assert_old_or_new(path, 0, 1)


# Writing that fails


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_edit_that_raises_leaves_the_file_and_releases_the_lock(tmp_path, failure):
    path = tmp_path / "a.mbx"
    save(path, 0)
    before = raw(path)
    with pytest.raises(failure), Index.editing(path) as index:
        fill(index, 1)
        raise failure
    assert raw(path) == before and left_over(path) == []
    assert_old_or_new(path, 0, 1)


@writings
@pytest.mark.parametrize("at", ["fsync", "save_file", "replace"])
def test_a_full_disk_leaves_the_old_file_and_releases_the_lock(tmp_path, monkeypatch, write, at):
    path = tmp_path / "a.mbx"
    save(path, 0)
    before = raw(path)

    def full(*_arguments, **_settings):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr({"fsync": os, "save_file": multibit.files, "replace": Path}[at], at, full)
        with pytest.raises(OSError) as caught:
            write(path, 1)
        assert caught.value.errno == errno.ENOSPC
    assert raw(path) == before and left_over(path) == []
    assert_old_or_new(path, 0, 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
@writings
def test_a_folder_that_cannot_be_written_is_refused(tmp_path, write):
    path = tmp_path / "folder" / "a.mbx"
    save(path, 0)
    path.parent.chmod(0o555)
    try:
        with pytest.raises(PermissionError) as caught:
            write(path, 1)
    finally:
        path.parent.chmod(0o755)
    assert str(path.parent) in str(caught.value) and generation_of(Index.load(path)) == 0


def test_emptying_an_index_by_an_edit_is_refused_and_leaves_the_file(tmp_path):
    path = tmp_path / "a.mbx"
    save(path, 0)
    with pytest.raises(DataError) as caught, Index.editing(path) as index:
        index.remove([index.ids[row] for row in range(len(index))])
    assert caught.value.file == path
    assert_old_or_new(path, 0, 1)


@pytest.mark.parametrize("name", ["a", "a.mbx", "a[b].mbx", "a*.mbx", "日本 x.mbx"])
def test_temporary_files_of_a_killed_writer_are_removed_whatever_the_name_of_the_file(tmp_path, monkeypatch, name):
    path = tmp_path / name
    save(path, 0)
    whole_save = multibit.files.save_file

    def save_and_die(*arguments, **settings):
        whole_save(*arguments, **settings)
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(multibit.files, "save_file", save_and_die)
        assert not succeeded(child(edit, path, 1))
    assert len(left_over(path)) == 1
    assert_old_or_new(path, 0, 1)


def test_other_folders_are_not_touched(tmp_path):
    theirs = [f".{name}.abcdefgh" for name in ("ab.mbx", "b.mbx", "a.mbx.x", "a-b.mbx")]
    for name in theirs:
        (tmp_path / name).mkdir()
    for name in ("a[b].mbx", "a.mbx", "a?b.mbx"):
        save(tmp_path / name, 0)
    assert set(theirs) <= {path.name for path in tmp_path.iterdir()}


# Corrupt files


def assert_refused(path, found, file=None, **options):
    """Loading raises a FormatError that names the file, with `found` in the problem."""
    with pytest.raises(FormatError) as caught:
        Index.load(path, **options)
    assert caught.value.file == (file or path) and found in caught.value.problem
    return caught.value


CUTS = [0, 1, 7, 8, 9, 0.2, 0.5, 0.8, -1]


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("cut", CUTS)
def test_an_index_truncated_anywhere_is_refused(tmp_path, cut, verify):
    path = tmp_path / "a.mbx"
    save(path, 0)
    file = only(path, "segment-*")
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * cut) if isinstance(cut, float) else cut])
    assert assert_refused(path, "truncated", file, verify=verify).hint


def test_bytes_after_the_end_are_refused(tmp_path):
    path = tmp_path / "a.mbx"
    save(path, 0)
    file = only(path, "segment-*")
    file.write_bytes(file.read_bytes() + b"more")
    assert_refused(path, "truncated", file)


def outcome(path):
    """Result of loading: "refused" with the name of the file, the generation, or an unexpected error."""
    try:
        return generation_of(Index.load(path))
    except FormatError as error:
        return "refused" if error.file.parent == path else error
    except Exception as error:
        return error


def every_flip(path, bit_of):
    """Flip one bit of each byte of each file, and assert that every one is refused, or changes nothing."""
    index = Index.load(path)
    for file in path.iterdir():
        content = file.read_bytes()
        for place in range(len(content)):
            file.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit_of()]) + content[place + 1 :])
            found = outcome(path)
            blank = content[place : place + 1].isspace() and file.suffix == ".json"  # may become another blank
            assert found == "refused" or blank, f"{file.name}, byte {place}: {content[place - 20 : place]}, {found}"
        file.write_bytes(content)
    assert Index.load(path).codes == index.codes


@pytest.mark.parametrize("bit", range(0, 8, 3))
def test_a_flipped_bit_in_any_byte_is_refused(tmp_path, bit):
    path = tmp_path / "a.mbx"
    save(path, 6)
    with Index.editing(path) as index:
        index.add(["last"], index.codes.take([0]))
        index.remove(["last"])
    every_flip(path, lambda: bit)


def test_a_flipped_bit_in_any_byte_of_a_numbered_index_is_refused(tmp_path):
    path, rng = tmp_path / "a.mbx", np.random.default_rng(3)
    index = Index("0")
    index.add(None, Codes.from_bits(np.zeros((9, BITS))))
    index.remove([3])
    index.save(path)
    every_flip(path, lambda: rng.integers(8))


def test_a_newer_index_is_refused_with_a_hint(tmp_path):
    path = tmp_path / "a.mbx"
    save(path, 0)
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 3', '"version": 4'))
    for work in (Index.load, lambda path: edit(path, 1)):
        with pytest.raises(FormatError) as caught:
            work(path)
        assert (caught.value.file, caught.value.field) == (manifest, "version")
        assert "version 4" in caught.value.problem and "Upgrade" in caught.value.hint


@pytest.mark.parametrize("kind", ["codes", "json", "pickle", "text", "zeros"])
def test_a_file_of_another_kind_is_refused(tmp_path, kind):
    path = tmp_path / "a.mbx"
    if kind == "codes":
        Codes.from_bits([[1, 0]]).save(path)
    elif kind == "json":
        write_json(path, {}, kind="index", version=1)
    else:
        path.write_bytes({"pickle": b"\x80\x04N.", "text": b"id,text\n1,a\n", "zeros": bytes(5000)}[kind])
    assert_refused(path, "multibit index")


@pytest.mark.parametrize(("name", "found"), [("missing.mbx", "no such file"), ("folder", "folder")])
def test_a_missing_file_is_refused(tmp_path, name, found):
    (tmp_path / "folder").mkdir()
    assert_refused(tmp_path / name, found)
    with pytest.raises(FormatError) as caught:
        edit(tmp_path / name, 1)
    assert caught.value.file == tmp_path / name and found in caught.value.problem


def test_an_index_for_an_unknown_engine_is_refused(tmp_path):
    path = tmp_path / "a.mbx"
    save(path, 0)
    manifest = path / "manifest.json"
    content = {**json.loads(manifest.read_text()), "engine": "annoy"}
    del content["xxh3"]
    manifest.write_text(json.dumps({**content, "xxh3": storage._checksum(content)}))
    with pytest.raises(ConfigError) as caught:
        Index.load(path)
    assert caught.value.option == "engine" and "'annoy'" in caught.value.problem
