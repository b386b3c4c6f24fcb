"""RCMH against the published formulas with explicit N x N matrices, and its promises about size."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from conftest import plant
from multibit import Pairs
from multibit.errors import DataError
from multibit.evaluation.protocol import selection_score
from multibit.hashing.encode import encode
from multibit.hashing.linear_codes import LinearCodes, polar
from multibit.hashing.methods.rcmh import (
    RCMH,
    RcmhSettings,
    Views,
    augment_labels,
    fit,
    reconstruct_image,
    reconstruct_text,
    regenerate,
    spread,
)

CASES = [
    # n, d_i, d_t, C, r, c
    (40, 9, 7, 5, 6, 4),  # fewer bits than labels and than existing bits
    (40, 9, 7, 5, 6, 14),  # more of all: random completion of B and of V
    (40, 9, 7, 5, 20, 20),
    (8, 12, 11, 4, 6, 16),  # fewer items than bits and than dimensions
    (30, 6, 5, 1, 4, 3),  # one label
    (30, 6, 5, 12, 4, 1),  # one bit
]


def unit_columns(matrix):
    norms = np.linalg.norm(matrix, axis=0)
    return matrix / np.where(norms > 0, norms, 1)


def procrustes(matrix, rank=None):
    """U V^T over the leading singular values."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    kept = int((values > 1e-7 * values[0]).sum()) if rank is None else rank
    return left[:, :kept] @ right[:kept]


def sign(matrix):
    return np.where(matrix >= 0, 1.0, -1.0)


def slow_augmentation(X, Y, L, bits, alpha, random):
    """E (C x n)."""
    a = alpha + 0.10 * np.sqrt(max(bits / 16 - 1, 0))
    F = np.where(L == 0, -0.5, L)
    X, Y, T = unit_columns(X), unit_columns(Y), unit_columns(L)
    M = random.standard_normal(F.T.shape).T
    for _ in range(5):
        Q_X, Q_Y, Q_T = (procrustes((M * F) @ Z.T) for Z in (X, Y, T))
        M = unit_columns(np.abs(((1 - a) / 2 * Q_X @ X + (1 - a) / 2 * Q_Y @ Y + a * Q_T @ T) * F))
    return unit_columns(F * M)


def slow_spread(V0, random):
    """V (c x n): scaled, zero-mean Procrustes solution, completed in the directions that V0 leaves open."""
    c, n = V0.shape
    J = np.eye(n) - np.ones((n, n)) / n
    left, values, right = np.linalg.svd(V0 @ J, full_matrices=False)
    rank = int((values > 1e-6 * values[0]).sum())
    V, R, P = left[:, :rank] @ right[:rank], left[:, :rank], right[:rank].T
    missing = min(c, n - 1) - rank
    if missing > 0:
        noise = random.standard_normal((n, c)).T
        V = V + procrustes((np.eye(c) - R @ R.T) @ noise @ J @ (np.eye(n) - P @ P.T), missing)
    return np.sqrt(n) * V


def slow_image(X, V, D):
    """Bx (c x n), from the singular vectors Yt' of X."""
    _, values, Yt = np.linalg.svd(X, full_matrices=False)
    Yt = Yt[values > 1e-6 * values[0]]  # (k, n)
    W = procrustes(np.diag(D[: len(Yt)]) @ Yt @ V.T)
    cosines = []
    for j in range(len(Yt)):
        row = (W @ V)[j]
        length = np.linalg.norm(Yt[j]) * np.linalg.norm(row)
        cosines.append(Yt[j] @ row / length if length > 0 else 0.0)
    D = np.diag([1.0 if cosine >= np.mean(cosines) else -1.0 for cosine in cosines])
    return sign(W.T @ D @ Yt)


def slow_text(Y, V, H, pace):
    """By (c x n)."""
    for _ in range(5):
        T = np.tanh(H @ Y)
        H = H + pace * ((V - T) * (1 - T * T)) @ Y.T
    return sign(np.tanh(H @ Y))


def slow_regenerate(X, Y, L, U, c, settings, random):
    """B (c x n), with E^T E as an N x N matrix."""
    n, r = X.shape[1], len(U)
    H = random.standard_normal((len(Y), c)).T
    E = slow_augmentation(X, Y, L, c, settings.alpha, random)
    S = E.T @ E  # (n, n)
    D = random.standard_normal((len(X), 1))[:, 0]
    B = U[:c] if c <= r else np.vstack([U, sign(random.standard_normal((n, c - r))).T])
    for _ in range(4):
        V = slow_spread(c * B @ S, random)
        Q = procrustes(U @ B.T)
        B = sign(c * V @ S + settings.mu * Q.T @ U)
    Bx, By = slow_image(X, V, D), slow_text(Y, V, H, settings.pace)
    Vm = np.stack([Bx[:, i] if Bx[:, i] @ V[:, i] > By[:, i] @ V[:, i] else By[:, i] for i in range(n)], axis=1)
    Q = procrustes(U @ B.T)
    return sign(np.linalg.inv(Vm @ Vm.T + settings.mu * np.eye(c)) @ (c * Vm @ S + settings.mu * Q.T @ U))


def problem(n, d_i, d_t, classes, r, seed=0):
    """Views with several labels per item, and two items without any."""
    rng = np.random.default_rng(seed)
    labels = (rng.random((n, classes)) < 0.4).astype(float)
    labels[:2] = 0
    image = labels @ rng.normal(size=(classes, d_i)) + 0.5 * rng.normal(size=(n, d_i))
    text = labels @ rng.normal(size=(classes, d_t)) + 0.5 * rng.normal(size=(n, d_t))
    return Views(image, text, labels, sign(rng.normal(size=(n, r))), image.T @ image)


def planted(items, seed=0, **shape):
    data = plant(items, seed=seed, **shape)
    return Pairs(data["image"], data["text"], np.arange(items + 1), data["labels"])


@pytest.mark.parametrize(("n", "d_i", "d_t", "classes", "r", "bits"), CASES)
def test_codes_equal_the_formulas_with_explicit_similarities(n, d_i, d_t, classes, r, bits):
    views = problem(n, d_i, d_t, classes, r)
    settings = RcmhSettings(lengths=(bits,), pace=0.01, mu=0.7, alpha=0.9)
    got = regenerate(views, bits, settings, np.random.default_rng(3))
    slow = slow_regenerate(
        views.image.T, views.text.T, views.labels.T, views.existing.T, bits, settings, np.random.default_rng(3)
    )
    assert set(np.unique(got)) <= {-1.0, 1.0}
    np.testing.assert_array_equal(got, slow.T)


@pytest.mark.parametrize(("n", "d_i", "d_t", "classes", "r", "bits"), CASES)
def test_every_part_equals_its_formula(n, d_i, d_t, classes, r, bits):
    views = problem(n, d_i, d_t, classes, r, seed=1)
    X, Y, L = views.image.T, views.text.T, views.labels.T
    e = augment_labels(views, bits, 0.8, np.random.default_rng(0))
    np.testing.assert_allclose(e, slow_augmentation(X, Y, L, bits, 0.8, np.random.default_rng(0)).T, atol=1e-7)
    raw = e @ (e.T @ np.random.default_rng(1).normal(size=(n, bits)))
    v = spread(raw, np.random.default_rng(2))
    np.testing.assert_allclose(v, slow_spread(raw.T, np.random.default_rng(2)).T, atol=1e-6)
    flips = np.random.default_rng(4).normal(size=(d_i, 1))
    np.testing.assert_array_equal(reconstruct_image(views, v, flips), slow_image(X, v.T, flips[:, 0]).T)
    weights = np.random.default_rng(5).normal(size=(d_t, bits))
    np.testing.assert_array_equal(reconstruct_text(views.text, v, weights, 0.01), slow_text(Y, v.T, weights.T, 0.01).T)


@pytest.mark.parametrize(("rank", "bits", "n"), [(3, 8, 50), (8, 8, 50), (2, 8, 5)])
def test_v_is_balanced_and_uncorrelated_also_in_its_random_directions(rank, bits, n):
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, bits)) + 3
    v = spread(raw, rng)
    np.testing.assert_allclose(v.sum(axis=0), 0, atol=1e-6)
    gram = v.T @ v / n
    np.testing.assert_allclose(gram @ gram, gram, atol=1e-7)  # a projection
    assert np.trace(gram) == pytest.approx(min(bits, n - 1))
    assert (raw * v).sum() == pytest.approx(
        np.sqrt(n) * np.linalg.norm(raw - raw.mean(0), "nuc")
    )  # the largest possible


def test_the_share_of_the_labels_grows_with_the_length_and_is_that_of_16_bits_below():
    views = problem(20, 6, 5, 4, 4)
    at = {bits: augment_labels(views, bits, 0.5, np.random.default_rng(0)) for bits in (2, 16, 128)}
    np.testing.assert_array_equal(at[2], at[16])
    assert np.abs(at[128] - at[16]).max() > 1e-3
    assert all(np.isfinite(e).all() for e in at.values())


def test_augmented_labels_are_unit_rows_with_the_signs_of_the_labels():
    views = problem(20, 6, 5, 4, 4)
    e = augment_labels(views, 16, 0.6, np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(e, axis=1), 1)
    assert (e[views.labels > 0] >= 0).all() and (e[views.labels == 0] <= 0).all()


@pytest.fixture(scope="module")
def solved():
    pairs = planted(200)
    return pairs, RcmhSettings(lengths=(8, 24)), fit(pairs, RcmhSettings(lengths=(8, 24)))


def test_items_are_coded_by_ridge_regressions_onto_the_codes(solved):
    pairs, settings, model = solved
    rng, n = np.random.default_rng([settings.seed, 0]), len(pairs)
    existing = sign(rng.standard_normal((n, settings.existing_bits)))
    scaled = {}
    for modality in ("image", "text"):
        rows = getattr(pairs, modality).astype(float)
        scaled[modality] = rows / np.linalg.norm(rows, axis=1, keepdims=True) * np.sqrt(rows.shape[1])
    views = Views(
        scaled["image"], scaled["text"], pairs.labels.astype(float), existing, scaled["image"].T @ scaled["image"]
    )
    for bits in settings.lengths:
        codes = regenerate(views, bits, settings, np.random.default_rng([settings.seed, bits]))  # (n, c)
        for modality, x in scaled.items():
            values = x @ np.linalg.inv(x.T @ x + settings.theta * np.eye(x.shape[1])) @ x.T @ codes
            relaxed = model.encode(getattr(pairs, modality), modality)[:, model.layout.part(bits)]
            np.testing.assert_allclose(relaxed, np.tanh(values / np.sqrt((values**2).mean())), atol=1e-4)
            assert ((relaxed >= 0) != (codes > 0)).any()  # hash functions, not the codes that know the labels


def test_a_length_does_not_depend_on_the_other_lengths(solved):
    pairs, _, model = solved
    alone = fit(pairs, RcmhSettings(lengths=(8,)))
    np.testing.assert_allclose(alone.encode(pairs.image, "image"), model.encode(pairs.image, "image")[:, :8], atol=1e-6)


def test_the_codes_of_two_lengths_are_side_by_side_and_not_nested(solved):
    pairs, _, model = solved
    assert not model.layout.nested and model.layout.stored == 32 and model.models == 1
    values = model.encode(pairs.text, "text")
    assert np.abs(values).max() <= 1
    assert not np.array_equal(values[:, :8] >= 0, values[:, 8:16] >= 0)


def test_the_seed_draws_the_existing_codes(solved):
    pairs, _, model = solved
    other = fit(pairs, RcmhSettings(lengths=(8, 24), seed=1))
    assert other.fingerprint() != model.fingerprint()
    assert fit(pairs, RcmhSettings(lengths=(8, 24))).fingerprint() == model.fingerprint()


def test_presets_are_those_of_clip_features():
    found = {name: RCMH.config(preset=name) for name in ("mirflickr", "nuswide", "coco", "iapr")}
    values = {name: (each.alpha, each.pace, each.mu, each.theta) for name, each in found.items()}
    assert values == {
        "mirflickr": (0.6, 0.005, 1, 1), "nuswide": (1, 0.5, 1, 1), "coco": (1, 0.1, 1, 1), "iapr": (0.9, 0.005, 1, 10),
    }  # fmt: skip


def test_it_learns():
    training, validation = planted(300), planted(80, seed=1)
    lengths = (8, 16)
    model = fit(training, RcmhSettings(lengths=lengths))

    def score(each):
        return selection_score(encode(each, validation), encode(each, training), lengths)

    chance = ((validation.labels @ training.labels.T) > 0).mean()
    assert score(model) > chance + 0.25
    assert score(model) > score(LinearCodes(24, 16, lengths)) + 0.25


@pytest.mark.parametrize("change", ["constant image", "no labels", "one label everywhere", "two items"])
def test_degenerate_training_items_give_finite_codes(change):
    data = plant(30)
    if change == "constant image":
        data["image"][:] = 0
    if change == "no labels":
        data["labels"][:] = 0
    if change == "one label everywhere":
        data["labels"] = np.ones((30, 1), np.uint8)
    n = 2 if change == "two items" else 30
    pairs = Pairs(data["image"][:n], data["text"][:n], np.arange(n + 1), data["labels"][:n])
    model = fit(pairs, RcmhSettings(lengths=(1, 40)))
    for modality in ("image", "text"):
        assert np.isfinite(model.encode(getattr(pairs, modality), modality)).all()


def test_fewer_than_two_pairs_are_refused():
    data = plant(1)
    with pytest.raises(DataError, match="at least 2"):
        fit(Pairs(data["image"], data["text"], np.arange(2), data["labels"]), RcmhSettings())


def test_polar_factor_of_a_singular_matrix_is_unique():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(9, 3)) @ rng.normal(size=(3, 5))
    np.testing.assert_allclose(polar(matrix), procrustes(matrix), atol=1e-8)
    np.testing.assert_allclose(polar(matrix.T), procrustes(matrix).T, atol=1e-8)
    np.testing.assert_array_equal(polar(np.zeros((4, 3))), 0)


def test_memory_is_linear_in_the_number_of_items():
    settings = RcmhSettings(lengths=(8, 32))
    peaks = {}
    for items in (10_000, 20_000):
        pairs = planted(items)
        tracemalloc.start()
        fit(pairs, settings)
        peaks[items] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[20_000] < 2.2 * peaks[10_000]
    assert peaks[20_000] < 20_000**2 / 4  # a quarter of an N x N matrix of bytes
