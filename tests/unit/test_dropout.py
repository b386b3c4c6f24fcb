"""Dropout is bounded where a few values carry a row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from multibit import Config, Pairs
from multibit.hashing.dropout import DROPPED, DROPPED_OF_LABELS, dropout_bound
from multibit.hashing.methods.multibit import DROPOUT_ITEMS, MultiBit, new_model


def rows_of(kind, d=40, n=60):
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(n, d))
    return {"dense": dense, "topics": rng.dirichlet(np.full(d, 0.02), n), "scaled": 1e30 * dense}[kind]


@pytest.mark.parametrize("kind", ["dense", "topics", "scaled"])
def test_a_row_keeps_its_product_with_itself_up_to_the_bound(kind):
    rows = rows_of(kind).astype(np.float32)
    share = dropout_bound(rows)
    unit = torch.from_numpy(rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True))
    torch.manual_seed(0)
    products = torch.stack([(unit * torch.dropout(unit, share, train=True)).sum(dim=1) for _ in range(4000)])
    assert products.mean() == pytest.approx(1, abs=0.01)
    assert products.var(dim=0).mean().sqrt() == pytest.approx(DROPPED, rel=0.05)


def test_a_row_keeps_its_product_with_what_its_labels_explain_up_to_the_bound():
    rng = np.random.default_rng(0)
    labels = np.eye(4, dtype=np.uint8)[np.arange(80) % 4] | (rng.random((80, 4)) < 0.2)
    rows = (1 + 0.1 * labels @ rng.normal(size=(4, 60)) + 0.05 * rng.normal(size=(80, 60))).astype(np.float32)
    share = dropout_bound(rows, labels.astype(np.uint8))
    assert share < 0.1 * dropout_bound(rows)
    unit = rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    explained = np.empty_like(unit)
    for item, own in enumerate(labels):  # what `dropout_bound` computes with products of matrices
        explained[item] = np.mean([unit[labels[:, c] > 0].mean(axis=0) for c in np.flatnonzero(own)], axis=0)
    explained -= unit.mean(axis=0)
    torch.manual_seed(0)
    x, y = torch.from_numpy(unit), torch.from_numpy(explained)
    products = torch.stack([(y * torch.dropout(x, share, train=True)).sum(dim=1) for _ in range(4000)])
    size = float((y**2).sum(dim=1).mean())
    assert float(products.var(dim=0).mean().sqrt()) == pytest.approx(DROPPED_OF_LABELS * size, rel=0.05)


def test_labels_that_explain_much_of_a_row_change_nothing():
    labels = np.eye(3, dtype=np.uint8)[np.arange(60) % 3]
    rows = rows_of("dense") + 2 * labels @ rows_of("dense", n=3)
    assert dropout_bound(rows, labels) == dropout_bound(rows)


@pytest.mark.parametrize("labels", [np.zeros((60, 3)), np.ones((60, 3))], ids=["none", "all the same"])
def test_labels_that_explain_nothing_change_nothing(labels):
    rows = 0.1 + rows_of("dense")
    assert dropout_bound(rows, labels.astype(np.uint8)) == dropout_bound(rows)


def test_features_of_an_encoder_are_far_from_the_bound():
    assert dropout_bound(np.random.default_rng(0).normal(size=(50, 384))) > 0.5


def test_rows_of_zeros_and_a_single_value_are_safe():
    assert dropout_bound(np.zeros((3, 5))) == 1.0
    assert 0 < dropout_bound(np.ones((1, 1))) < 0.01


def pairs(items=60):
    image, topics = np.random.default_rng(0).normal(size=(items, 400)), np.resize(rows_of("topics", 10), (items, 10))
    labels = np.eye(3, dtype=np.uint8)[np.arange(items) % 3]
    return Pairs(image.astype(np.float32), topics.astype(np.float32), np.arange(items + 1), labels)


SETTINGS = Config(lengths=(4, 8), scales=2, hidden=8, dimension=4, dropout=0.4, input_dropout=0.2)


def shares(model, modality):
    return [layer.p for layer in model.projections[modality].modules() if isinstance(layer, torch.nn.Dropout)]


def test_each_modality_has_its_own_bound():
    model = MultiBit(pairs(), SETTINGS).model
    bound = dropout_bound(pairs().text)
    assert shares(model, "image") == [0.2, 0.4] and shares(model, "text") == [bound, bound] and bound < 0.02


def test_of_many_items_fewer_hidden_units_are_dropped():
    model = new_model(pairs(2 * DROPOUT_ITEMS), (8,), SETTINGS)
    assert shares(model, "image") == [0.2, pytest.approx(0.2)]
