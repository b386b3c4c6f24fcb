"""Killed and stopped commands are completed by the same command; `tests/faults.py` kills them a hundred times each."""

from __future__ import annotations

import contextlib
import os
import random
import signal

import numpy as np
import pytest

import faults
from commands import TINY, cli
from conftest import plant
from multibit.errors import BusyError
from multibit.folders import only_writer, only_writer_of

KILLED = ("import", "features", "train", "evaluate", "index --update", "export", "reproduce")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    yield tmp_path_factory.mktemp("faults")
    faults.prepared.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_the_same_command_completes_what_a_killed_one_began(name, root):
    rng = random.Random(name)
    for _ in range(2):
        faults.one_try(name, root, rng)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", ["features", "train"])
def test_a_stopped_command_can_be_resumed_whatever_the_signal(name, stop, root):
    faults.one_try(name, root, random.Random(f"{name} {stop}"), stop)


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_program_with_a_message_and_its_code(stop, code, planted_npz, tmp_path, monkeypatch):
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
    monkeypatch.setattr("multibit.runs.Run.create", lambda *_, **__: os.kill(os.getpid(), stop))
    try:
        result = cli("train", planted_npz, "--out", tmp_path / "run", *TINY)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert (result.code, result.err.count("Error: ")) == (code, 1)


# Two writers


@pytest.fixture
def ready(made, tmp_path):
    np.savez(tmp_path / "other.npz", **plant(20))
    return made


BUSY = {
    "evaluate": (["evaluate", "plain", "--out", "OUT.json", "--no-report"], "OUT.json"),
    "evaluate, report": (["evaluate", "plain", "--out", "OUT.json", "--report", "OUT"], "OUT"),
    "evaluate, field": (["evaluate", "plain", "--out", "OUT.json", "--no-report", "--save-dir", "OUT"], "OUT"),
    "export": (["export", "plain/index/image.mbx", "--out", "OUT.npy"], "OUT.npy"),
    "encode": (["encode", "plain", "--out", "OUT.npz"], "OUT.npz"),
    "import": (["import", "pairs", ".", "--out", "OUT.csv"], "OUT.csv"),
}


@pytest.mark.parametrize("name", BUSY)
def test_a_second_writer_is_refused_at_once(name, made, tmp_path, monkeypatch):
    arguments, output = BUSY[name]
    monkeypatch.chdir(made)
    monkeypatch.setattr("multibit.measurement.measure", None)  # refused before the work
    out = tmp_path / output.replace("OUT", "out")
    with only_writer_of(out):
        result = cli(*(each.replace("OUT", str(tmp_path / "out")) for each in arguments))
    assert result.code == 1 and BusyError.__name__ not in result.err and str(out) in result.err


def test_a_second_reproduction_in_a_folder_is_refused(planted_npz, tmp_path):
    with only_writer(tmp_path):
        result = cli("reproduce", planted_npz, "--out", tmp_path, "--table", "data-split")
    assert result.code == 1 and str(tmp_path) in result.err


# Nothing can be written


WRITING = {
    "import": ["import", "npz", "FROM/data.npz", "--out", "OUT/new.jsonl"],
    "label": ["label", "FROM/data.npz", "--out", "OUT/labelled.jsonl"],
    "check": ["check", "FROM/ready.npz", "--html", "OUT/check.html"],
    "features": ["features", "FROM/items.csv", "--out", "OUT/f", "--ready", "FROM/ready.npz", "--recipe", "mine"],
    "train": ["train", "FROM/ready.npz", "--out", "OUT/run", *TINY],
    "select": ["select", "FROM/ready.npz", "--out", "OUT/s", "--method=multibit", "--alpha=0.9", "--eta=0.1", *TINY],
    "encode": ["encode", "FROM/plain", "--out", "OUT/codes.npz"],
    "evaluate": ["evaluate", "FROM/plain", "--out", "OUT/e.json", "--report", "OUT/report"],
    "evaluate --save-dir": [
        "evaluate", "FROM/plain", "--out", "OUT/e.json", "--no-report", "--save-dir", "OUT/field"
    ],
    "index": ["index", "FROM/plain", "--out", "OUT/index"],
    "merge": ["merge", "FROM/plain/index/image.mbx", "--out", "OUT/merged.mbx"],
    "export": ["export", "FROM/plain/index/image.mbx", "--out", "OUT/index.parquet"],
    "export .npy": ["export", "FROM/plain/index/image.mbx", "--out", "OUT/codes.npy"],
    "export .faiss": ["export", "FROM/plain/index/image.mbx", "--out", "OUT/codes.faiss"],
    "export huggingface": ["export", "FROM/plain", "--to", "huggingface", "--out", "OUT/items"],
    "duplicates": ["duplicates", "FROM/plain", "--radius", "2", "--out", "OUT/groups.parquet"],
    "encode .mat": ["encode", "FROM/plain", "--out", "OUT/codes.mat"],
    "reproduce": ["reproduce", "FROM/ready.npz", "--out", "OUT/made", "--table", "data-split"],
}  # fmt: skip


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    """A full disk and a read-only one; both hold one small file."""
    import subprocess

    places = {}
    try:
        for name in ("full", "read-only"):
            place = tmp_path_factory.mktemp(name)
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=False)
            if mounted.returncode:
                pytest.skip("no tmpfs can be mounted here, so there is no full disk to write to")
            places[name] = place
            (place / "kept.txt").write_text("kept")
        with (places["full"] / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        subprocess.run(["mount", "-o", "remount,ro", str(places["read-only"])], check=True)
        yield places
    finally:
        for place in places.values():
            subprocess.run(["umount", str(place)], check=False)


@pytest.mark.slow
@pytest.mark.parametrize("disk", ["full", "read-only"])
@pytest.mark.parametrize("name", WRITING)
def test_a_disk_that_takes_nothing_is_one_line_and_changes_nothing(name, disk, disks, made, tmp_path):
    (tmp_path / "items.csv").write_text("id,image,text,labels\n" + "".join(f"{i},,t{i},x\n" for i in range(60)))
    data = plant(60)
    np.savez(
        tmp_path / "data.npz", ids=np.arange(60).astype(str), images=np.array([""] * 60), label_names=list("abcdefgh"),
        texts=np.array(["word other"] * 60), text_offsets=np.arange(61), labels=data["labels"],
    )  # fmt: skip
    for name_ in ("ready.npz", "plain"):
        (tmp_path / name_).symlink_to(made / name_)
    place = disks[disk]
    before = sorted(path for path in place.rglob("*") if path.is_file())
    result = cli(*(each.replace("FROM", str(tmp_path)).replace("OUT", str(place)) for each in WRITING[name]))
    assert result.code == 1, (result.out, result.err)
    assert "Traceback" not in result.err and result.err.strip().splitlines()[-1].startswith("Error: ")
    assert sorted(path for path in place.rglob("*") if path.is_file()) == before
    assert (place / "kept.txt").read_text() == "kept"
