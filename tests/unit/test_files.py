"""Files survive crashes: a reader finds the old file or the new one, and an error where it is neither."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from multibit.errors import DataError, FormatError
from multibit.files import fingerprint, read_arrays, read_json, write_arrays, write_json
from multibit.npz import read_npz
from multibit.paths import replacing, require_writable

ARRAYS = {
    "words": np.arange(6, dtype=np.uint64).reshape(2, 3),
    "nothing": np.zeros((0, 4), np.uint16),
    "half": np.array([[0.5], [-1.25]], np.float16),
}


def write_sample(path: Path, version: int = 1) -> bytes:
    write_arrays(path, ARRAYS, {"bits": 128, "model": "a1b2", "title": "naïve 日本"}, kind="index", version=version)
    return path.read_bytes()


def header_length(raw: bytes) -> int:
    """Bytes of a safetensors file before its arrays: a little-endian length, then so much JSON."""
    return 8 + int.from_bytes(raw[:8], "little")


def flipped(raw: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(raw)
    changed[place] ^= 1 << bit
    return bytes(changed)


# Writable paths


@pytest.mark.parametrize(
    ("name", "folder", "file"),
    [("note.txt", True, "note.txt"), ("there", False, "there"), ("note.txt/deep/new", True, "note.txt")],
    ids=["a file for a folder", "a folder for a file", "below a file"],
)
def test_a_path_of_another_kind_is_refused(name, folder, file, tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    (tmp_path / "there").mkdir()
    with pytest.raises(DataError) as caught:
        require_writable(tmp_path / name, folder=folder)
    assert caught.value.file == tmp_path / file and caught.value.hint


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_is_refused_with_the_reason(code, tmp_path, monkeypatch):
    def refuse(dir):
        raise OSError(code, os.strerror(code), f"{dir}/tmpx")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    wanted = tmp_path / "new" / "deeper" / "x.json"
    with pytest.raises(DataError) as caught:
        require_writable(wanted)
    assert caught.value.file == wanted
    assert str(tmp_path) in caught.value.problem and os.strerror(code) in caught.value.problem


def test_an_output_that_is_also_an_input_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "data.csv")
    (tmp_path / "data.csv").write_text("mine")
    require_writable(tmp_path / "new.csv", unlike=(None, tmp_path / "data.csv"))
    for other in ("data.csv", "link"):
        with pytest.raises(DataError) as caught:
            require_writable(tmp_path / other, unlike=(None, tmp_path / "data.csv"))
        assert caught.value.file == tmp_path / other


@pytest.mark.parametrize("name", ["link", "link/x.json"])
def test_a_path_at_or_below_a_broken_link_is_refused(name, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    with pytest.raises(DataError) as caught:
        require_writable(tmp_path / name)
    assert caught.value.file == tmp_path / "link"


@pytest.mark.parametrize(("name", "folder"), [("new/deeper", True), ("new/x.json", False), ("x.json", False)])
def test_a_path_that_can_be_written_is_left_unchanged(name, folder, tmp_path):
    (tmp_path / "x.json").write_text("mine")
    require_writable(tmp_path / name, folder=folder)
    assert list(tmp_path.iterdir()) == [tmp_path / "x.json"] and (tmp_path / "x.json").read_text() == "mine"


# Replacing


def test_a_finished_write_leaves_the_content_and_no_other_name(tmp_path):
    target = tmp_path / "new folder" / "note.txt"
    with replacing(target) as temporary:
        temporary.write_text("whole")
        assert not target.exists()
    assert target.read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("failure", [RuntimeError, OSError, KeyboardInterrupt, SystemExit])
def test_a_write_that_fails_midway_leaves_the_old_content_and_no_other_name(tmp_path, failure):
    target = tmp_path / "note.txt"
    target.write_text("old")
    with pytest.raises(failure), replacing(target) as temporary:
        temporary.write_text("hal")
        raise failure
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_fails_midway_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), replacing(tmp_path / "store") as temporary:
        temporary.mkdir()
        (temporary / "half.npy").write_bytes(b"ha")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_folder_never_replaces_a_folder_that_holds_something(tmp_path):
    target = tmp_path / "store"
    target.mkdir()
    (target / "precious").write_text("kept")
    with pytest.raises(OSError), replacing(target) as temporary:
        temporary.mkdir()
    assert [path.name for path in tmp_path.rglob("*")] == ["store", "precious"]


@pytest.mark.parametrize("reason", ["a folder is there", "no file may be made"])
def test_a_write_that_fails_names_the_target(reason, tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    if reason == "a folder is there":
        target.mkdir()
    else:
        monkeypatch.setattr(os, "mkdir", lambda path, *_: (_ for _ in ()).throw(OSError(13, "Permission denied", path)))
    with pytest.raises(OSError) as caught, replacing(target) as temporary:
        temporary.write_text("new")
    assert (caught.value.filename, caught.value.filename2) == (str(target), None)


def test_the_content_is_on_disk_before_it_takes_the_name(tmp_path, monkeypatch):
    order = []
    flush, rename = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (order.append("flush"), flush(descriptor))[1])
    monkeypatch.setattr(Path, "replace", lambda self, target: (order.append("rename"), rename(self, target))[1])
    write_json(tmp_path / "a.json", {}, kind="note", version=1)
    assert order == ["flush", "rename", "flush"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_what_is_written_may_be_read_by_those_whom_the_user_lets(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_json(tmp_path / "a.json", {}, kind="note", version=1)
        write_sample(tmp_path / "a.index")
        with replacing(tmp_path / "folder") as temporary:
            temporary.mkdir()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"a.json": 0o666 & ~mask, "a.index": 0o666 & ~mask, "folder": 0o777 & ~mask}


# Disk full


@pytest.fixture(params=["while writing", "while flushing"])
def disk_full(request, monkeypatch):
    """A context in which the disk is full: no file may grow past 100 bytes, or the flush to the disk fails."""

    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    @contextlib.contextmanager
    def full():
        if request.param == "while flushing":
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", no_space)
                yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return full


def is_full(error: OSError) -> bool:
    return any(os.strerror(code) in str(error) for code in (errno.ENOSPC, errno.EFBIG))


def test_a_full_disk_leaves_the_old_arrays(tmp_path, disk_full):
    path = tmp_path / "a.index"
    old = write_sample(path)
    with disk_full(), pytest.raises(OSError) as caught:
        write_arrays(path, {"other": np.ones(1000)}, {}, kind="index", version=1)
    assert is_full(caught.value)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_json(tmp_path, disk_full):
    path = tmp_path / "a.json"
    write_json(path, {"value": "old"}, kind="note", version=1)
    with disk_full(), pytest.raises(OSError) as caught:
        write_json(path, {"value": "new" * 100}, kind="note", version=1)
    assert is_full(caught.value)
    assert read_json(path, kind="note", version=1)["value"] == "old"
    assert list(tmp_path.iterdir()) == [path]


# JSON


def test_json_comes_back_as_written_and_is_human_readable(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"title": "naïve 日本 👁", "numbers": [1, 2.5, None]}, kind="note", version=3)
    expected = {"format": "multibit note", "version": 3, "title": "naïve 日本 👁", "numbers": [1, 2.5, None]}
    assert read_json(path, kind="note", version=3) == expected
    assert "naïve 日本 👁" in path.read_text(encoding="utf-8")


def test_json_of_an_older_version_is_read(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1}, kind="note", version=1)
    assert read_json(tmp_path / "a.json", kind="note", version=2)["x"] == 1


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (None, "no such file"),
        (b"", "JSON"),
        (b'{"format": "multibit no', "JSON"),
        (b'{"x": "\xff"}', "JSON"),
        (b"[1, 2]", "multibit note"),
        (b'{"x": 1}', "multibit note"),
        (b'{"format": "multibit index", "version": 1}', "multibit index"),
        (b'{"format": "multibit note", "version": 3}', "version 3"),
    ],
    ids=["missing", "empty", "truncated", "not UTF-8", "a list", "no header", "another kind", "newer"],
)
def test_another_json_file_is_refused(tmp_path, content, value):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FormatError) as caught:
        read_json(path, kind="note", version=2)
    assert caught.value.file == path and value in caught.value.problem


class Note(msgspec.Struct):
    x: int
    y: Annotated[int, msgspec.Meta(ge=0)]


def test_json_without_a_required_field_is_refused(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"x": 1}, kind="note", version=1)
    with pytest.raises(FormatError) as caught:
        read_json(path, kind="note", version=1, form=Note)
    assert (caught.value.file, caught.value.field) == (path, "y")


@pytest.mark.parametrize("version", ["x", None, [1]])
def test_json_with_a_version_that_is_not_a_number_is_refused(tmp_path, version):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"format": "multibit note", "version": version}))
    with pytest.raises(FormatError) as caught:
        read_json(path, kind="note", version=1)
    assert (caught.value.file, caught.value.field) == (path, "version")


# Arrays


def test_equal_content_is_equal_bytes(tmp_path):
    assert len({write_sample(tmp_path / str(number)) for number in range(9)}) == 1


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i8", "f2", "f4", "f8", "?"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 4), (3, 0)])
def test_arrays_come_back_as_written(tmp_path, dtype, shape):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    write_arrays(tmp_path / "a", {"x": array}, {"n": 1}, kind="index", version=1)
    arrays, header = read_arrays(tmp_path / "a", kind="index", version=1)
    assert arrays["x"].dtype == array.dtype and arrays["x"].shape == shape
    assert np.array_equal(arrays["x"], array)
    assert header == {"n": 1}


def test_arrays_that_are_views_come_back_by_value(tmp_path):
    array = np.arange(24).reshape(4, 6)
    write_arrays(tmp_path / "a", {"t": array.T, "s": array[::2, 1::2]}, {}, kind="index", version=1)
    arrays, _ = read_arrays(tmp_path / "a", kind="index", version=1)
    assert np.array_equal(arrays["t"], array.T) and np.array_equal(arrays["s"], array[::2, 1::2])


def test_changes_to_the_arrays_never_reach_the_file(tmp_path):
    before = write_sample(tmp_path / "a")
    arrays, _ = read_arrays(tmp_path / "a", kind="index", version=1)
    arrays["words"][...] = 0
    del arrays
    assert (tmp_path / "a").read_bytes() == before


def test_a_header_keeps_unicode_and_nesting(tmp_path):
    header = {"title": 'naïve 日本 👁 " \\ \n', "deep": {"list": [1, None, True]}}
    write_arrays(tmp_path / "a", {}, header, kind="index", version=1)
    assert read_arrays(tmp_path / "a", kind="index", version=1)[1] == header


def assert_refused(path: Path, value: str = "", kind: str = "index") -> FormatError:
    """Reading the file raises a FormatError that names it, with `value` in the problem."""
    with pytest.raises(FormatError) as caught:
        read_arrays(path, kind=kind, version=1)
    assert caught.value.file == path and value in caught.value.problem
    return caught.value


def test_arrays_truncated_anywhere_are_refused(tmp_path):
    path = tmp_path / "a"
    raw = write_sample(path)
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        assert assert_refused(path).hint


def test_arrays_with_bytes_appended_are_refused(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(write_sample(path) + b"\0")
    assert_refused(path, "truncated")


def test_a_changed_array_is_not_detected_when_asked_not_to_verify(tmp_path):
    path = tmp_path / "a"
    raw = write_sample(path)
    path.write_bytes(flipped(raw, len(raw) - 1, 0))
    assert set(read_arrays(path, kind="index", version=1, verify=False)[0]) == set(ARRAYS)
    assert_refused(path, "checksum")


def test_a_flipped_bit_anywhere_in_the_arrays_is_refused(tmp_path):
    path = tmp_path / "a"
    raw = write_sample(path)
    for place in range(header_length(raw), len(raw)):
        path.write_bytes(flipped(raw, place, place % 8))
        assert assert_refused(path, "checksum").hint


def test_a_flipped_bit_in_the_header_is_refused_or_changes_nothing(tmp_path):
    path = tmp_path / "a"
    raw = write_sample(path)
    _, header = read_arrays(path, kind="index", version=1)
    for place in range(header_length(raw)):
        path.write_bytes(flipped(raw, place, place % 8))
        try:
            arrays, found = read_arrays(path, kind="index", version=1)
        except FormatError:
            continue
        assert found == header, f"byte {place}: read another header without an error"
        assert all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)


def test_missing_arrays_are_refused(tmp_path):
    assert_refused(tmp_path / "nothing.mbx", "no such file")
    assert_refused(tmp_path, "folder")


def test_arrays_of_another_kind_are_refused_by_name(tmp_path):
    write_sample(tmp_path / "a")
    assert "multibit codes" in assert_refused(tmp_path / "a", "multibit index", kind="codes").problem


def test_arrays_of_a_newer_version_are_refused_with_a_hint(tmp_path):
    write_sample(tmp_path / "a", version=7)
    error = assert_refused(tmp_path / "a", "version 7")
    assert error.field == "version" and "Upgrade" in error.hint


def test_a_safetensors_file_of_another_tool_is_refused(tmp_path):
    save_file({"x": np.ones(3)}, tmp_path / "a")
    assert_refused(tmp_path / "a", "multibit index")


def test_a_header_without_checksum_is_refused(tmp_path):
    save_file({"x": np.ones(3)}, tmp_path / "a", metadata={"format": "multibit index", "version": "1"})
    assert_refused(tmp_path / "a")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n" * 9, b"\0" * 100])
def test_any_other_file_is_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    assert_refused(tmp_path / "a", "multibit index")


# NumPy archives


def test_all_arrays_of_an_npz_file_are_read(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.ones((2, 2)))
    arrays = read_npz(tmp_path / "a.npz")
    assert arrays["x"].tolist() == [0, 1, 2] and arrays["y"].shape == (2, 2)


@pytest.mark.parametrize("content", [None, b"", b"hello", b"PK\3\4 truncated"])
def test_another_file_than_an_npz_file_is_refused(tmp_path, content):
    path = tmp_path / "a.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_npz(path)
    assert caught.value.file == path and "pickle" not in caught.value.problem


# Fingerprint


@pytest.mark.parametrize(
    "other",
    [
        ("b", np.arange(6, dtype=np.int32)),
        ("a", np.arange(6, dtype=np.int64)),
        ("a", np.arange(6, dtype=np.int32).reshape(2, 3)),
        ("a", np.arange(6, dtype=np.int32)[::-1]),
        ("a", np.arange(7, dtype=np.int32)),
        ("a",),
        (np.arange(6, dtype=np.int32), "a"),
    ],
    ids=["value", "type", "shape", "order in the array", "size", "missing part", "order of the parts"],
)
def test_a_fingerprint_changes_with(other):
    assert fingerprint("a", np.arange(6, dtype=np.int32)) != fingerprint(*other)


def test_a_fingerprint_separates_its_parts():
    assert fingerprint(1, 23) != fingerprint(12, 3)


def test_a_fingerprint_depends_on_values_not_on_memory_layout():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert fingerprint(array.T) == fingerprint(array.T.copy())
    assert fingerprint(array[::2]) == fingerprint(array[::2].copy())
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_a_fingerprint_is_the_same_in_every_process():
    code = "from multibit.files import fingerprint; print(fingerprint({'b': 'naïve', 'a': [1, None]}, ('x', 'y')))"
    expected = fingerprint({"b": "naïve", "a": [1, None]}, ("x", "y"))
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONUTF8": "1"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
