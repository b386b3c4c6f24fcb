"""RCMH: codes of any length from labels and features by linear algebra, and ridge regressions onto them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from multibit.arrays import FloatArray
from multibit.codes.items import MODALITIES
from multibit.codes.layout import Layout
from multibit.config import Settings
from multibit.features import Pairs
from multibit.hashing.linear_codes import LinearCodes, LinearMap, inverse_root, polar, signs, solve, solver_features
from multibit.hashing.methods.base import Method
from multibit.progress import track

AUGMENTATIONS, ALTERNATIONS, TEXT_STEPS = 5, 4, 5
ABSENT = -0.5  # value of a label that an item does not have


@dataclass(frozen=True)
class RcmhSettings(Settings):
    """The settings of RCMH; the defaults are the published ones for CLIP features of MIRFlickr."""

    lengths: tuple[int, ...] = (16, 32, 64, 128)  # target code lengths, each solved on its own
    alpha: float = 0.6  # share of the labels in the label augmentation of 16 bits; it grows with the length
    pace: float = 0.005  # step size of the text reconstruction
    mu: float = 1.0  # weight of the existing codes
    theta: float = 1.0  # ridge of the hash functions
    existing_bits: int = 32  # length of the existing codes, which are random signs
    seed: int = 42  # of the existing codes and of the initial values

    POSITIVE = ("pace", "mu", "theta")


class Views(NamedTuple):
    """The training items.

    Attributes:
        image: (n, d_i). text: (n, d_t). labels: (n, C) multi-hot. existing: (n, r) signs U. All float64.
        image_gram: (d_i, d_i) X X^T as published, where columns are items.
    """

    image: FloatArray
    text: FloatArray
    labels: FloatArray
    existing: FloatArray
    image_gram: FloatArray


def fit(training: Pairs, settings: RcmhSettings) -> LinearCodes:
    """Solve for the codes of every length, then for the hash functions P = (X X^T + theta I)^{-1} X B^T.

    All products are ordered so that memory and time are linear in the number of items. The numbers of a length are
    drawn from the seed and the length, so that its codes do not depend on the other lengths.

    Args:
        training: n >= 2 pairs. settings: of the method.

    Raises:
        DataError: fewer than two pairs.
    """
    features = solver_features(training)
    signs_of_seed = np.random.default_rng([settings.seed, 0]).standard_normal((len(training), settings.existing_bits))
    grams = {modality: features[modality].T @ features[modality] for modality in MODALITIES}  # (d_m, d_m)
    labels = training.labels.astype(np.float64)
    views = Views(features["image"], features["text"], labels, signs(signs_of_seed), grams["image"])
    solved: dict[str, list[FloatArray]] = {modality: [] for modality in MODALITIES}
    with track("Solving RCMH", len(settings.lengths), "lengths") as advance:
        for bits in settings.lengths:
            codes = regenerate(views, bits, settings, np.random.default_rng([settings.seed, bits]))  # (n, c)
            for modality in MODALITIES:
                ridge = grams[modality] + settings.theta * np.eye(len(grams[modality]))
                solved[modality].append(solve(ridge, features[modality].T @ codes))  # (d_m, c)
            advance()
    layout = Layout(settings.lengths, nested=False)
    maps = {modality: LinearMap(np.hstack(solved[modality]), np.zeros(layout.stored)) for modality in MODALITIES}
    return LinearCodes.of(maps, layout, features)


def regenerate(views: Views, bits: int, settings: RcmhSettings, random: np.random.Generator) -> FloatArray:
    """B as published: (n, c) signs that follow labels, features and the existing codes.

    Args:
        views: the training items. bits: c. random: draws H, M, D, the signs that are missing in U, and the completions
            of V, in this order.
    """
    existing, n = views.existing, len(views.existing)
    weights = random.standard_normal((views.text.shape[1], bits))  # H
    e = augment_labels(views, bits, settings.alpha, random)  # (n, C)
    flips = random.standard_normal((views.image.shape[1], 1))  # diagonal of D
    codes = existing[:, :bits]
    if bits > existing.shape[1]:
        codes = np.hstack([codes, signs(random.standard_normal((n, bits - existing.shape[1])))])
    for _ in range(ALTERNATIONS):
        v = spread(bits * (e @ (e.T @ codes)), random)  # (n, c)
        anchor = settings.mu * (existing @ polar(existing.T @ codes))  # mu Q^T U
        codes = signs(bits * (e @ (e.T @ v)) + anchor)
    v = compete(v, reconstruct_image(views, v, flips), reconstruct_text(views.text, v, weights, settings.pace))
    anchor = settings.mu * (existing @ polar(existing.T @ codes))
    target = bits * (e @ (e.T @ v)) + anchor  # (n, c)
    return signs(solve(v.T @ v + settings.mu * np.eye(bits), target.T).T)


def augment_labels(views: Views, bits: int, alpha: float, random: np.random.Generator) -> FloatArray:
    """E as published: (n, C) unit rows, the labels weighted by what both modalities say about them.

    The weight of the features, 1 - a, becomes negative where a = alpha + 0.1 sqrt(c/16 - 1) exceeds 1, as published.
    """
    share = alpha + 0.1 * np.sqrt(max(bits / 16 - 1, 0.0))  # shorter codes than 16 bits take the share of 16
    signed = np.where(views.labels > 0, 1.0, ABSENT)  # F
    sources = (((1 - share) / 2, views.image), ((1 - share) / 2, views.text), (share, views.labels))
    lengths = [_inverse_norms(rows) for _, rows in sources]
    mask = random.standard_normal(signed.shape)  # M
    for _ in range(AUGMENTATIONS):
        mixed = np.zeros_like(signed)
        for (weight, rows), inverse in zip(sources, lengths, strict=True):
            rotation = polar((mask * signed * inverse).T @ rows)  # (C, d) Q_Z
            mixed += weight * inverse * (rows @ rotation.T)
        mask = np.abs(mixed * signed)
        mask *= _inverse_norms(mask)
    e = signed * mask
    e *= _inverse_norms(e)
    return e


def _inverse_norms(rows: FloatArray) -> FloatArray:
    """(n, 1) 1 / length of each row; 0 for rows of zeros, such as an item without labels."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    inverse: FloatArray = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    return inverse


def spread(raw: FloatArray, random: np.random.Generator) -> FloatArray:
    """V as published: the (n, c) matrix nearest to V0 with columns of mean 0 and V^T V = n I.

    V0 has at most C directions; those that are missing are random ones, orthogonal to it. With n <= c items only n - 1
    directions exist, and V^T V is n times a projection.
    """
    n, bits = raw.shape
    known = polar(raw - raw.mean(axis=0))  # (n, c)
    rank = round(float(np.square(known).sum()))
    if rank < min(bits, n - 1):
        noise = random.standard_normal(raw.shape)
        noise -= noise.mean(axis=0)
        noise -= known @ (known.T @ noise)
        noise -= noise @ (known.T @ known)
        known += polar(noise)
    known *= np.sqrt(n)
    return known


def reconstruct_image(views: Views, v: FloatArray, flips: FloatArray) -> FloatArray:
    """(n, c) signs Bx = sign(W^T D Yt'), from the singular vectors Yt = X' root of the images.

    Only products of the size of d_i are formed, never Yt.
    """
    values, vectors = (each[..., ::-1] for each in np.linalg.eigh(views.image_gram))  # largest first
    scale = inverse_root(values)
    root = vectors * scale  # (d_i, d_i)
    aligned = root.T @ (views.image.T @ v)  # (d_i, c) Yt' V^T
    rotation = polar(flips * aligned)  # W
    inner = (aligned * rotation).sum(axis=1)  # (d_i,) rows of Yt' with rows of W V
    lengths = np.sqrt(((rotation @ (v.T @ v)) * rotation).sum(axis=1).clip(min=0))
    cosine = np.divide(inner, lengths, out=np.zeros_like(inner), where=lengths > 0)
    mean = cosine[scale > 0].mean() if scale.any() else 0.0
    return signs(views.image @ (root @ (signs(cosine - mean)[:, None] * rotation)))


def reconstruct_text(text: FloatArray, v: FloatArray, weights: FloatArray, pace: float) -> FloatArray:
    """(n, c) signs By = sign(tanh(H Y)), after steps down 1/2 ||V - tanh(H Y)||^2 from random H."""
    for _ in range(TEXT_STEPS):
        relaxed = np.tanh(text @ weights)  # (n, c)
        weights = weights + pace * (text.T @ ((v - relaxed) * (1 - relaxed**2)))
    return signs(text @ weights)


def compete(v: FloatArray, by_image: FloatArray, by_text: FloatArray) -> FloatArray:
    """Vm as published: of each item the signs with the larger inner product with V; the text's where they are equal.

    Example:
        >>> compete(np.array([[2.0, 1.0]]), np.array([[1.0, -1.0]]), np.array([[-1.0, 1.0]]))
        array([[ 1., -1.]])
    """
    image_wins = (by_image * v).sum(axis=1) > (by_text * v).sum(axis=1)
    return np.where(image_wins[:, None], by_image, by_text)


RCMH = Method(
    "rcmh", "RCMH", "closed form: codes of every length from labels and features, then linear hash functions",
    defaults=RcmhSettings(), fit=fit, lengths="several", venue="TPAMI 2026", source="kaihang-jiang/RCMH @ 19091e9",
    presets={
        "mirflickr": {"alpha": 0.6, "pace": 0.005},
        "nuswide": {"alpha": 1.0, "pace": 0.5},
        "coco": {"alpha": 1.0, "pace": 0.1},
        "iapr": {"alpha": 0.9, "pace": 0.005, "theta": 10.0},
    },
    differs=(
        "All items, those of the database too, are coded by the hash functions; the published evaluation codes the "
        "database by the labels. The existing codes are random signs, as in the published demo. Rows of features are "
        "scaled, and missing directions of V are made orthogonal to the others."
    ),
)  # fmt: skip
