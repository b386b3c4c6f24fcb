"""Edited headers of every format give an error of ours or a right result; `tests/fuzz.py` tries more."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fuzz
from multibit import Codes, Index
from multibit.errors import FormatError
from multibit.files import read_arrays, write_arrays
from multibit.hashing.code_model import CodeModel
from multibit.hashing.model import HashModel
from multibit.search import storage

TRIES = 100


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz.FORMATS)
def test_an_edited_header_is_refused_or_read(name):
    counts = fuzz.fuzz(name, TRIES)
    assert counts["refused"] > 0 and counts["read"] + counts["refused"] > TRIES / 2


def test_the_fuzzer_sees_an_error_that_is_not_ours(monkeypatch):
    form = fuzz.FORMATS["seal.json"]
    broken = fuzz.Format(form.make, form.load, form.store, lambda path: json.loads(path.read_bytes())["seconds"])
    monkeypatch.setitem(fuzz.FORMATS, "seal.json", broken)
    with pytest.raises(AssertionError, match="try"):
        fuzz.fuzz("seal.json", TRIES)


@pytest.mark.parametrize("name", ["../secret.mbs", "/etc/passwd", "segment-zz.mbs", "segment-00.mbs/../x"])
def test_a_manifest_names_files_of_its_own_folder_only(name, tmp_path):
    index = Index()
    index.add(["a"], Codes.from_bits([[1, 0]]))
    index.save(tmp_path / "a.mbx")
    content = json.loads((tmp_path / "a.mbx/manifest.json").read_text())
    content["segments"][0]["file"] = name
    content["xxh3"] = storage._checksum(content)
    (tmp_path / "a.mbx/manifest.json").write_text(json.dumps(content))
    with pytest.raises(FormatError) as caught:
        Index.open(tmp_path / "a.mbx")
    assert caught.value.field == "segments[0].file"


@pytest.mark.parametrize("size", [2**23, 10**12, 10**30, -1, 0, True, "8", 8.5, None])
def test_sizes_that_are_not_those_of_the_weights_are_refused_without_memory(size, tmp_path):
    path = tmp_path / "model.safetensors"
    HashModel(6, 5, (4, 4), 8, 8).save(path)
    arrays, header = read_arrays(path, kind="hash model", version=2)
    copies = {name: np.array(array) for name, array in arrays.items()}
    write_arrays(path, copies, {**header, "hidden": size}, kind="hash model", version=1)
    with pytest.raises(FormatError) as caught:
        CodeModel.load(path)
    assert caught.value.file == path


def test_weights_that_are_not_finite_are_refused(tmp_path):
    path, model = tmp_path / "model.safetensors", HashModel(6, 5, (4, 4), 8, 8)
    model.heads.bias.data[0] = float("nan")
    model.save(path)
    with pytest.raises(FormatError):
        CodeModel.load(path)
