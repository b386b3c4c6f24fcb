"""One catalogue of error messages, as the command line prints them: messages.txt.

Other tests assert the type and the fields of an error. Here its wording is stored, so that a change is read by someone.
Write the catalogue with: MULTIBIT_UPDATE_GOLDEN=1 pytest tests/golden/test_messages.py
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from commands import TINY, assert_golden, cli, masked
from conftest import plant
from multibit.features import packaged
from multibit.files import write_json

COMMANDS = """
info gone
info notes.txt
info empty.npz
info cut.npz
import pairs ready.npz --out items.csv
import mat empty --out items.csv
import coco empty --out items.csv
import webdataset cut.npz --out items.csv
import pairs empty --root a=b --out items.csv
import manifest good.csv --out items.xlsx
import manifest good.csv --out good.csv
label good.csv --vocabulary names.txt --count 3 --out new.csv
check ready.npz --images empty
check ready.npz --split run.txt
features empty.csv --out new
features column.csv --out new
features cells.csv --out new
features duplicate.csv --out new
features broken.jsonl --out new
features good.csv --label-names names.txt --out new
features good.csv --map colour=a --out new
features good.csv --image-encoder letters --text-encoder none --out new
features good.csv --image-encoder letters --text-encoder letters --out new
features good.csv --ready ready.npz --out new
features good.csv --prompt photo --image-encoder letters --text-encoder letters --out new
features good.csv --out file
select ready.npz --out new --alpha 0.3,many
select ready.npz --out new --eta 0.1,0.1
select ready.npz --out new --set alpha=0.5
select ready.npz --out new --method baseline
select plain.npz --out new
select ready.npz --out new --queries 20 --training 30 --validation 0
train unlabelled.npz --out new
train two.npz --out new
train nan.npz --out new
train ready.npz --out new --set colour=red
train ready.npz --out new --set epochs=many
train ready.npz --out new --set item_weight=inf
train ready.npz --out new --set lengths=1
train ready.npz --out new --config bad.toml
train ready.npz --out new --config unknown.toml
train ready.npz --out new --preset flickr
train ready.npz --out new --method half
train ready.npz --out new --set teacher=oracle
train ready.npz --out new --queries 5
train ready.npz --out new --queries 30 --training 30 --validation 1
train second.npz --out new --split plain
train ready.npz --out run
train ready.npz --out separate
search separate word --bits 40
evaluate newer
evaluate edited
evaluate run second.npz
evaluate plain second.npz
evaluate run --out run/run.json
evaluate run --report a --no-report
evaluate run --pdf --no-report
encode run --bits 17
encode run --workers 3
encode run --out codes.txt
index run --remove none
index run --reshard 0
index run --reshard 4 --compact
index run --from-shards 3
index run --reshard 2 --from-shards 3
serve run --shard 9/8
serve run --shard 1/8
serve --shards ftp://x
serve
features good.csv --out memory://bucket/parts
features memory://bucket/none.csv --out new
encode run memory://bucket/none.csv --out codes.npz
merge run/index/image.mbx other/index/image.mbx --out new.mbx
merge run/index/image.mbx run/index/text.mbx --out new.mbx
export run/index/image.mbx --out codes.txt
export cut.mbx --out codes.npy
export run --out codes.npy
export run --out model --in image
export run/index/image.mbx --to huggingface --out items --bits 99
export run --to sentence-transformers --out model --in image
export separate --to sentence-transformers --out model
push run me
push run me/run --license Mine
push run me/run --index empty
serve gone
serve run --index empty
serve run --host 0.0.0.0
serve run --token secret --no-auth
serve run --max-k 0
search run word --sheet mine.png
search run word -k 0
search run word --bits 0
search run word --max-distance -1
search run word --index other/index
search run word --index empty
search run gone.png
search run
search run word --queries null.parquet --out hits.parquet
search run --queries null.parquet
search run --queries null.parquet --out hits.csv
search run --queries null.parquet --out hits.parquet --json
search run --queries null.parquet --out hits.parquet --as image
search run --queries null.parquet --out hits.parquet --field rank
search run --queries null.parquet --out hits.parquet
search run --queries ready.npz --out hits.parquet
search run word --out hits.parquet
search run word --field colour
search run word --where colour=red
search run word --where labels=none
search plain word
duplicates run --radius -1
duplicates run --radius 1 --out groups.csv
duplicates run/index/image.mbx --radius 1 --in text
duplicates run/index --radius 1
reproduce ready.npz --table none
reproduce ready.npz --seeds 1,1
reproduce ready.npz --set alignment=pairwise
reproduce keys.npz
""".strip().splitlines()


def write_bad_files(folder: Path) -> None:
    """Files that the commands fail on."""
    texts = {
        "notes.txt": "mine", "file": "mine", "names.txt": "z\n", "empty.csv": "", "broken.jsonl": "{",
        "good.csv": "id,image,text,labels\n1,a.png,x,y\n", "column.csv": "id,image,labels\n1,a.png,x\n",
        "cells.csv": "id,image,text,labels\n1,a.png\n",
        "duplicate.csv": "id,image,text,labels\n1,a.png,x,y\n1,b.png,x,y\n",
        "bad.toml": "epochs = '3'\n", "unknown.toml": "colour = 1\n", "empty.npz": "",
        "mine.png": "mine",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "empty").mkdir()
    (segment,) = (folder / "run/index/image.mbx").glob("segment-*")
    good = (folder / "ready.npz").read_bytes(), segment.read_bytes()
    for name, content in zip(("cut.npz", "cut.mbx"), good, strict=True):
        (folder / name).write_bytes(content[: len(content) // 2])
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None]}), folder / "null.parquet")
    data = plant(60)
    np.savez(folder / "unlabelled.npz", image=data["image"], text=data["text"])
    np.savez(folder / "plain.npz", **{**data, "labels": np.zeros((60, 0), np.uint8)})
    np.savez(folder / "two.npz", **{**data, "labels": 2 * data["labels"]})
    np.savez(folder / "nan.npz", **{**data, "text": np.full((60, 16), np.nan)})
    np.savez(folder / "keys.npz", L8=data["labels"])
    record = json.loads((folder / "run" / "run.json").read_text())
    for name, changes, version in (("newer", {"version": 9}, 9), ("edited", {"blocks": [1]}, 1)):
        shutil.copytree(folder / "run", folder / name)
        write_json(folder / name / "run.json", {**record, **changes}, kind="run", version=version)
    changed = json.loads((folder / "edited" / "run.json").read_text()) | {"method": "other"}
    (folder / "edited" / "run.json").write_text(json.dumps(changed))


@pytest.fixture
def here(made, letters, tmp_path, monkeypatch):
    folder = shutil.copytree(made, tmp_path / "here")
    write_bad_files(folder)
    monkeypatch.chdir(folder)
    for encoders in (packaged.IMAGE_ENCODERS, packaged.TEXT_ENCODERS):  # the others are slow to load
        for name in set(encoders) - {"letters"}:
            monkeypatch.setitem(encoders, name, encoders["letters"])
    return folder


@pytest.mark.slow
def test_the_messages_read_as_stored(made, here):
    printed = []
    for command in COMMANDS:
        verb, *options = command.split()
        result = cli(verb, *(TINY if verb in ("select", "train", "reproduce") else ()), *options)
        assert result.code == 1, (command, result)
        lines = result.err.strip().splitlines()
        assert lines[-1].startswith("Error: ") and sum(line.startswith("Error") for line in lines) == 1, command
        printed.append(f"$ multibit {command}\n{masked(masked(lines[-1], here), made)}\n")
    assert_golden(Path(__file__).with_name("messages.txt"), "\n".join(printed))
