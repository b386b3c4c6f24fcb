"""Index folders where something goes wrong around them: a full disk, a read-only or moved folder, ten million items."""

from __future__ import annotations

import errno
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from multibit import Codes, Index
from multibit.errors import BusyError, DataError, FormatError

pytestmark = pytest.mark.slow

BITS = np.random.default_rng(2).integers(0, 2, (4000, 64), np.uint8)


def made(rows=range(50)) -> Index:
    index = Index("model")
    index.add([f"item {row}" for row in rows], Codes.from_bits(BITS[list(rows)]), [{"n": row} for row in rows])
    return index


def ids(index) -> list:
    return [index.ids[row] for row in range(len(index))]


@contextmanager
def mounted(path, options):
    """A small file system of its own; the test is skipped where it cannot be mounted."""
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    try:
        failed = subprocess.run(command, capture_output=True, check=False).returncode
    except FileNotFoundError:
        failed = 1
    if failed:
        pytest.skip("a file system cannot be mounted here; test_index_crash.py simulates a full disk")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


# A full disk


def add(path):
    with Index.editing(path) as index:
        index.add([f"item {row}" for row in range(50, 4000)], Codes.from_bits(BITS[50:]), [{"t": "x" * 99}] * 3950)


def test_a_change_that_does_not_fit_on_the_disk_leaves_the_index(tmp_path):
    with mounted(tmp_path / "disk", "size=256k") as disk:
        path = disk / "a.mbx"
        made().save(path)
        before = {file.name: file.read_bytes() for file in path.iterdir()}
        with pytest.raises(OSError) as caught:
            add(path)
        assert caught.value.errno == errno.ENOSPC and str(path) in str(caught.value)
        assert {file.name: file.read_bytes() for file in path.iterdir()} == before
        with Index.editing(path) as index:  # a small one does fit
            index.remove(["item 3"])
        assert ids(Index.load(path)) == [f"item {row}" for row in range(50) if row != 3]


def test_an_index_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path):
    with mounted(tmp_path / "disk", "size=64k") as disk:
        with pytest.raises(OSError) as caught:
            made(range(4000)).save(disk / "a.mbx")
        assert caught.value.errno == errno.ENOSPC and list(disk.iterdir()) == []


# A folder that cannot be written


def test_an_index_on_a_read_only_disk_is_searched_and_not_changed(tmp_path):
    with mounted(tmp_path / "disk", "size=256k") as disk:
        made().save(disk / "a.mbx")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        index = Index.open(disk / "a.mbx")
        assert index.search(Codes.from_bits(BITS[[7]]), 1).ids == [["item 7"]]
        assert not index.refresh()
        with pytest.raises(OSError) as caught:
            made().save(disk / "a.mbx")
        assert caught.value.errno == errno.EROFS
        with pytest.raises(OSError) as caught, index.writer() as writer:
            writer.remove(["item 1"])
        assert caught.value.errno == errno.EROFS
        assert ids(Index.load(disk / "a.mbx")) == [f"item {row}" for row in range(50)]


# A folder that moves


def test_a_reader_of_a_moved_folder_goes_on_and_is_told_when_it_refreshes(tmp_path):
    path, moved = tmp_path / "a.mbx", tmp_path / "b.mbx"
    made().save(path)
    index = Index.open(path)
    path.rename(moved)
    assert index.search(Codes.from_bits(BITS[[7]]), 1).hits()[0].payload == {"n": 7}
    with pytest.raises(FormatError) as caught:
        index.refresh()
    assert caught.value.file == path
    assert ids(Index.load(moved)) == ids(index)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_writer_of_a_moved_folder_writes_nothing(tmp_path, replaced):
    path, moved = tmp_path / "a.mbx", tmp_path / "b.mbx"
    made().save(path)
    with pytest.raises(FormatError) as caught, Index.editing(path) as index:
        index.remove(["item 1"])
        path.rename(moved)
        if replaced:
            made([0]).save(path)
    assert caught.value.file == path
    assert ids(Index.load(moved)) == [f"item {row}" for row in range(50)]
    assert path.exists() == replaced
    if replaced:
        assert ids(Index.load(path)) == ["item 0"]


# Two writers


def test_of_two_writers_the_second_is_refused_and_neither_loses_a_change(tmp_path):
    path = tmp_path / "a.mbx"
    made().save(path)
    one, other = Index.open(path), Index.open(path)
    with one.writer() as first:
        first.remove(["item 1"])
        with pytest.raises(BusyError) as caught, other.writer():
            pass
        assert caught.value.file == path
    with other.writer() as second:  # starts from what the first one wrote
        second.remove(["item 2"])
        with pytest.raises(DataError):
            second.remove(["item 1"])
    left = [f"item {row}" for row in range(50) if row not in (1, 2)]
    assert one.refresh() and ids(one) == ids(other) == ids(Index.load(path)) == left


# Ten million items

TEN_MILLION = """
import re, sys
from pathlib import Path
import numpy as np
from multibit import Codes, Index

def resident(key="VmRSS"):
    return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e3

words = np.zeros((2, 10_000_000), np.uint16)
words[0] = np.arange(10_000_000) % 65_536
words[1] = np.arange(10_000_000) // 65_536
query = Codes(words, 32).take([7_654_321])
path = Path(sys.argv[1])
index = Index()
index.add([0], query)
assert index.search(query).ids == [[0]]  # loads what is compiled
index = Index()
before = resident()
for start in range(0, 10_000_000, 2_500_000):
    index.add(None, Codes(words[:, start : start + 2_500_000], 32))
index.remove([5, 9_999_999])
assert len(index) == 9_999_998
index.save(path)
made = resident() - before
del index
before = resident()
opened = Index.open(path)
assert (len(opened), opened.search(query, 2).ids[0][0]) == (9_999_998, 7_654_321)
assert opened.search(query, 1, among=[17, 9_999_998]).ids[0][0] in (17, 9_999_998)
with opened.writer() as writer:
    writer.upsert([7_654_321, 12_000_000], query.take([0, 0]))
assert opened.search(query, 3).ids[0][:2] == [7_654_321, 12_000_000]
assert opened.codes_of([7_654_321]) == query
print(made, resident() - before)
"""


def test_ten_million_numbered_items_need_the_memory_of_their_codes(tmp_path):
    """40 MB of codes; a Python object per item would be 300 MB or more."""
    command = [sys.executable, "-c", TEN_MILLION, str(tmp_path / "a.mbx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made, opened = map(float, done.stdout.split())
    assert made < 150 and opened < 150, (made, opened)
    files = sum(file.stat().st_size for file in (tmp_path / "a.mbx").iterdir())
    assert files < 45e6
