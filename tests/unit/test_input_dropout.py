"""Input dropout is bounded where a few values carry a row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from multibit import Config, Pairs
from multibit.hashing.methods.multibit import DROPPED, MultiBit, bounded_dropout


def rows_of(kind, d=40, n=60):
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(n, d))
    return {"dense": dense, "topics": rng.dirichlet(np.full(d, 0.02), n), "scaled": 1e30 * dense}[kind]


@pytest.mark.parametrize("kind", ["dense", "topics", "scaled"])
def test_a_row_keeps_its_product_with_itself_up_to_the_bound(kind):
    rows = rows_of(kind).astype(np.float32)
    share = bounded_dropout(0.9, rows)
    unit = torch.from_numpy(rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True))
    torch.manual_seed(0)
    products = torch.stack([(unit * torch.dropout(unit, share, train=True)).sum(dim=1) for _ in range(4000)])
    assert products.mean() == pytest.approx(1, abs=0.01)
    assert products.var(dim=0).mean().sqrt() == pytest.approx(DROPPED, rel=0.05)


def test_features_of_an_encoder_keep_the_asked_share():
    rows = np.random.default_rng(0).normal(size=(50, 384))
    assert bounded_dropout(0.2, rows) == 0.2 and bounded_dropout(0.0, rows) == 0.0


def test_rows_of_zeros_and_a_single_value_are_safe():
    assert bounded_dropout(0.2, np.zeros((3, 5))) == 0.2
    assert 0 < bounded_dropout(0.2, np.ones((1, 1))) < 0.01


def test_each_modality_has_its_own_bound():
    image, topics = np.random.default_rng(0).normal(size=(60, 400)), rows_of("topics", 10)
    labels = np.eye(3, dtype=np.uint8)[np.arange(60) % 3]
    pairs = Pairs(image.astype(np.float32), topics.astype(np.float32), np.arange(61), labels)
    settings = Config(lengths=(4, 8), scales=2, hidden=8, dimension=4, input_dropout=0.2)
    projections = MultiBit(pairs, settings).model.projections
    assert projections["image"].drop.p == 0.2
    assert projections["text"].drop.p == bounded_dropout(0.2, topics) < 0.02
