"""CCA-ITQ and CCA-LSH against textbook formulas, with fewer items than dimensions, and codes longer than the rank."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from conftest import plant
from multibit import Pairs
from multibit.errors import DataError
from multibit.evaluation.protocol import selection_score
from multibit.hashing.encode import encode
from multibit.hashing.linear_codes import LinearCodes
from multibit.hashing.methods.cca import (
    CCA_ITQ,
    CcaItqSettings,
    CcaSettings,
    canonical_variates,
    fit_itq,
    fit_lsh,
    iterative_quantization,
)

FITS = [(fit_lsh, CcaSettings), (fit_itq, CcaItqSettings)]


def planted(items, seed=0, **shape):
    data = plant(items, seed=seed, **shape)
    return Pairs(data["image"], data["text"], np.arange(items + 1), data["labels"])


def related(n, d_i, d_t, shared, seed=0):
    """Two views with common factors and a mean."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(n, shared))
    views = {}
    for modality, d in (("image", d_i), ("text", d_t)):
        views[modality] = factors @ rng.normal(size=(shared, d)) + 0.5 * rng.normal(size=(n, d)) + rng.normal(size=d)
    return views


def slow_correlations(views, r):
    """Canonical correlations and image directions by the generalised eigenvalue problem of CCA."""
    x, y = (rows - rows.mean(0) for rows in (views["image"], views["text"]))
    n = len(x)
    c_xx, c_yy, c_xy = x.T @ x / n, y.T @ y / n, x.T @ y / n
    c_xx += r * np.trace(c_xx) / len(c_xx) * np.eye(len(c_xx))
    c_yy += r * np.trace(c_yy) / len(c_yy) * np.eye(len(c_yy))
    values, vectors = scipy.linalg.eigh(c_xy @ np.linalg.inv(c_yy) @ c_xy.T, c_xx)
    return np.sqrt(values[::-1].clip(min=0)), vectors[:, ::-1], c_xx


@pytest.mark.parametrize(("n", "d_i", "d_t"), [(60, 7, 5), (60, 4, 9), (10, 30, 20)])
@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_variates_solve_the_eigenvalue_problem_of_cca(n, d_i, d_t, power):
    views = related(n, d_i, d_t, 3)
    maps = canonical_variates(views, CcaSettings(regularization=0.1, power=power))
    correlations, directions, c_xx = slow_correlations(views, 0.1)
    k = len(maps["image"].shift)
    assert k == len(maps["text"].shift) == min(d_i, d_t, n - 1)
    weights = maps["image"].weights / correlations[:k] ** power
    np.testing.assert_allclose(weights.T @ c_xx @ weights, np.eye(k), atol=1e-6)
    leading = correlations[:k] > 0.01  # the directions of smaller ones are sensitive to rounding
    agreement = np.abs(np.diag(weights.T @ c_xx @ directions[:, :k]))  # equal up to the sign
    np.testing.assert_allclose(agreement[leading], 1, atol=1e-6)


def test_variates_of_the_modalities_correspond():
    views = related(500, 7, 5, 3)
    maps = canonical_variates(views, CcaSettings(regularization=1e-6, power=0))
    correlations = slow_correlations(views, 1e-6)[0]
    image, text = maps["image"](views["image"]), maps["text"](views["text"])
    np.testing.assert_allclose(image.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(image.T @ text / 500, np.diag(correlations[:5]), atol=1e-4)


@pytest.mark.parametrize(("items", "bits"), [(40, 6), (3, 12)])
def test_itq_equals_the_loop_that_starts_from_the_same_rotation(items, bits):
    values = np.random.default_rng(1).normal(size=(items, bits))
    first, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((bits, bits)))
    losses, rotation = [], first
    for _ in range(5):
        codes = np.where(values @ rotation >= 0, 1.0, -1.0)
        rotation, _ = scipy.linalg.orthogonal_procrustes(values, codes)
        losses.append(np.square(codes - values @ rotation).sum())
    got = iterative_quantization(values, 5, np.random.default_rng(0))
    np.testing.assert_allclose(values @ got, values @ rotation, atol=1e-9)
    np.testing.assert_allclose(got @ got.T, np.eye(bits), atol=1e-9)
    assert losses == sorted(losses, reverse=True)


def test_itq_codes_the_rotated_leading_variates():
    training = planted(120)
    settings = CcaItqSettings(lengths=(6,), iterations=3)
    model = fit_itq(training, settings)
    views = {}
    for modality in ("image", "text"):
        rows = getattr(training, modality).astype(float)
        views[modality] = rows / np.linalg.norm(rows, axis=1, keepdims=True) * np.sqrt(rows.shape[1])
    maps = canonical_variates(views, settings)
    values = np.vstack([maps[modality](views[modality])[:, :6] for modality in ("image", "text")])
    rotation = iterative_quantization(values, 3, np.random.default_rng(settings.seed))
    for modality, block in zip(("image", "text"), np.split(values @ rotation, 2), strict=True):
        relaxed = model.encode(getattr(training, modality), modality)
        np.testing.assert_allclose(relaxed, np.tanh(block / np.sqrt(np.square(block).mean())), atol=1e-4)


@pytest.mark.parametrize(("fit", "settings"), FITS)
@pytest.mark.parametrize("bits", [1, 16, 17, 64])
def test_codes_longer_than_the_rank_have_all_bits(fit, settings, bits):
    training = planted(100)  # 16-d texts
    model = fit(training, settings(lengths=(bits,)))
    values = model.encode(training.text, "text")
    assert values.shape == (100, bits) and np.abs(values).max() <= 1
    codes = values >= 0
    assert codes.any(axis=0).all() and not codes.all(axis=0).any()  # no constant bit
    assert len(np.unique(codes, axis=1).T) > 0.8 * bits  # few bits are equal to another on all 100 items


@pytest.mark.parametrize(("fit", "settings"), FITS)
@pytest.mark.parametrize("items", [2, 5, 12])
def test_fewer_items_than_dimensions(fit, settings, items):
    training = planted(items)
    model = fit(training, settings(lengths=(8,)))
    image, text = encode(model, training).relaxed["image"], encode(model, training).relaxed["text"]
    assert np.isfinite(image).all() and np.isfinite(text).all()
    assert ((image >= 0) == (text >= 0)).mean() > 0.8  # the modalities of a training item agree


@pytest.mark.parametrize(("fit", "settings"), FITS)
def test_constant_features_give_finite_codes(fit, settings):
    data = plant(30)
    training = Pairs(np.ones((30, 6), np.float32), data["text"], np.arange(31), data["labels"])
    model = fit(training, settings(lengths=(8,)))
    assert np.isfinite(model.encode(training.image, "image")).all()
    assert np.isfinite(model.encode(training.text, "text")).all()


@pytest.mark.parametrize(("fit", "settings"), FITS)
def test_labels_are_not_read(fit, settings):
    training = planted(60)
    other = Pairs(training.image, training.text, training.offsets, 1 - training.labels)
    assert fit(training, settings(lengths=(8,))).fingerprint() == fit(other, settings(lengths=(8,))).fingerprint()


def test_every_prefix_of_cca_lsh_is_the_code_of_a_shorter_model():
    training = planted(60)
    long, short = (fit_lsh(training, CcaSettings(lengths=lengths)) for lengths in ((4, 32), (4,)))
    assert long.layout.nested and long.layout.stored == 32
    first = long.encode(training.image, "image")[:, :4] >= 0
    np.testing.assert_array_equal(first, short.encode(training.image, "image") >= 0)


@pytest.mark.parametrize(("fit", "settings"), FITS)
def test_it_learns(fit, settings):
    training, validation = planted(300), planted(80, seed=1)

    def score(model):
        return selection_score(encode(model, validation), encode(model, training), (16,))

    chance = ((validation.labels @ training.labels.T) > 0).mean()
    found = score(fit(training, settings(lengths=(16,))))
    assert found > chance + 0.2
    assert found > score(LinearCodes(24, 16, (16,))) + 0.2


def test_fewer_than_two_pairs_are_refused():
    with pytest.raises(DataError, match="at least 2"):
        CCA_ITQ.fit(planted(1), CcaItqSettings())
