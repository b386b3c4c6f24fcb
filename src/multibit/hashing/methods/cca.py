"""CCA-ITQ and CCA-LSH: binary codes from canonical correlations of the two modalities, without labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from multibit.arrays import FloatArray
from multibit.codes.items import MODALITIES, Modality
from multibit.codes.layout import Layout
from multibit.config import Settings
from multibit.features import Pairs
from multibit.hashing.linear_codes import LinearCodes, LinearMap, signs, solver_features
from multibit.hashing.methods.base import Method

LEAST_CORRELATION = 1e-6  # canonical variates below it are rounding noise
LEAST_VARIANCE = 1e-12  # features of unit size that vary less are constant
Maps = Mapping[Modality, LinearMap]


@dataclass(frozen=True)
class CcaSettings(Settings):
    """The settings of CCA-LSH, and of any method that starts from canonical variates."""

    lengths: tuple[int, ...] = (16, 32, 64, 128)  # target code lengths
    regularization: float = 1.0  # ridge of the covariances, as a multiple of the mean variance of a feature
    power: float = 2.0  # a canonical variate is multiplied by its correlation to this power
    seed: int = 42  # of the hyperplanes, or of the first rotation

    POSITIVE = ("regularization",)


@dataclass(frozen=True)
class CcaItqSettings(CcaSettings):
    """The settings of CCA-ITQ."""

    iterations: int = 50  # of the rotation


def canonical_variates(features: Mapping[Modality, FloatArray], settings: CcaSettings) -> Maps:
    """Regularised CCA: maps of both modalities to k variates, most correlated first.

    Each covariance gets the ridge r tr(C)/d on its diagonal, so that fewer items than dimensions can be solved. The
    variates are weighted by a power of their correlation, so that the code follows the directions that one modality
    predicts from the other.

    Args:
        features: modality -> (n, d_m). settings: with r and the power.

    Returns:
        Modality -> map (d_m) -> (k); k is the number of correlations above 0, at least 1.
    """
    means = {modality: rows.mean(axis=0) for modality, rows in features.items()}
    whiten = {
        modality: _whitening(_covariance(rows, rows), settings.regularization) for modality, rows in features.items()
    }
    cross = whiten["image"].T @ _covariance(features["image"], features["text"]) @ whiten["text"]  # (d_i, d_t)
    left, correlations, right = np.linalg.svd(cross, full_matrices=False)
    k = max(int((correlations > LEAST_CORRELATION).sum()), 1)
    directions: dict[Modality, FloatArray] = {"image": left[:, :k], "text": right[:k].T}
    maps = {}
    for modality in MODALITIES:
        weights = whiten[modality] @ (directions[modality] * correlations[:k] ** settings.power)  # (d_m, k)
        maps[modality] = LinearMap(weights, -means[modality] @ weights)
    return maps


def _covariance(left: FloatArray, right: FloatArray) -> FloatArray:
    """(d, d') covariance of (n, d) and (n, d') values, without centred copies of them."""
    covariance: FloatArray = left.T @ right / len(left) - np.outer(left.mean(axis=0), right.mean(axis=0))
    return covariance


def _whitening(covariance: FloatArray, regularization: float) -> FloatArray:
    """(d, d) matrix T with T^T (C + ridge) T = I."""
    d = len(covariance)
    variance = covariance.trace() / d
    ridge = regularization * (variance if variance > LEAST_VARIANCE else 1.0)
    values, vectors = np.linalg.eigh(covariance + ridge * np.eye(d))
    whitening: FloatArray = vectors / np.sqrt(values.clip(min=ridge))
    return whitening


def hyperplanes(k: int, bits: int, random: np.random.Generator) -> FloatArray:
    """(k, bits) random normals of length 1 in expectation, drawn one hyperplane after the other."""
    planes: FloatArray = random.standard_normal((bits, k)).T / np.sqrt(k)
    return planes


def fit_lsh(training: Pairs, settings: CcaSettings) -> LinearCodes:
    """Code by random hyperplanes through the canonical variates, the same ones for both modalities.

    The hyperplanes are independent, so every prefix of the code is a code of that length.

    Args:
        training: n >= 2 pairs; their labels are not read. settings: of the method.

    Raises:
        DataError: fewer than two pairs.
    """
    features = solver_features(training)
    variates = canonical_variates(features, settings)
    random = np.random.default_rng(settings.seed)
    planes = hyperplanes(len(variates["image"].shift), settings.code_bits, random)
    maps = {modality: variates[modality].then(planes) for modality in MODALITIES}
    return LinearCodes.of(maps, Layout((settings.code_bits,)), features)


def fit_itq(training: Pairs, settings: CcaItqSettings) -> LinearCodes:
    """Code by the signs of the first B canonical variates after the ITQ rotation, learned from both modalities.

    Codes that are longer than the number k of variates are padded by random projections of all k variates, the same
    ones for both modalities, before the rotation.

    Args:
        training: n >= 2 pairs; their labels are not read. settings: of the method.

    Raises:
        DataError: fewer than two pairs.
    """
    features = solver_features(training)
    variates = canonical_variates(features, settings)
    random, bits = np.random.default_rng(settings.seed), settings.code_bits
    k = len(variates["image"].shift)
    first = np.eye(k, min(k, bits))
    chosen = np.hstack([first, hyperplanes(k, max(bits - k, 0), random)])  # (k, B)
    maps = {modality: variates[modality].then(chosen) for modality in MODALITIES}
    values = np.vstack([maps[modality](features[modality]) for modality in MODALITIES])  # (2n, B)
    rotation = iterative_quantization(values, settings.iterations, random)
    maps = {modality: maps[modality].then(rotation) for modality in MODALITIES}
    return LinearCodes.of(maps, Layout((bits,)), features)


def iterative_quantization(values: FloatArray, iterations: int, random: np.random.Generator) -> FloatArray:
    """(B, B) rotation R that reduces |sign(Z R) - Z R|^2 of (m, B) values, from a random one (ITQ).

    Example:
        >>> values = np.array([[3.0, 4.0], [-4.0, 3.0], [-3.0, -4.0], [4.0, -3.0]])  # a rotated square
        >>> rotation = iterative_quantization(values, 50, np.random.default_rng(0))
        >>> np.abs(values @ rotation).round(3)[0]
        array([3.536, 3.536])
    """
    rotation, _ = np.linalg.qr(random.standard_normal((values.shape[1], values.shape[1])))
    for _ in range(iterations):
        left, _, right = np.linalg.svd(values.T @ signs(values @ rotation))
        rotation = left @ right
    return rotation


CCA_ITQ = Method(
    "cca-itq", "CCA-ITQ", "canonical correlations without labels, then the rotation nearest to the signs",
    defaults=CcaItqSettings(), fit=fit_itq, lengths="one", venue="TPAMI 2013",
    differs=(
        "Written from the literature: canonical variates of images and texts, not of images and labels. The ridge and "
        "the weighting are near the best of a grid on validation rows of the included sample."
    ),
)  # fmt: skip

CCA_LSH = Method(
    "cca-lsh", "CCA-LSH", "canonical correlations without labels, then random hyperplanes", defaults=CcaSettings(),
    fit=fit_lsh, lengths="nested", venue="STOC 2002",
    differs=(
        "Written from the literature: the random hyperplanes of LSH in the space of the canonical variates. The ridge "
        "and the weighting are near the best of a grid on validation rows of the included sample."
    ),
)  # fmt: skip
