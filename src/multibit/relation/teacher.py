"""The fractional relation teacher (FRT): relevance scores g*, and g_l at each diffusion scale."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.special import gamma, roots_genlaguerre

from multibit.arrays import FloatArray, as_labels, unit_rows
from multibit.errors import ConfigError
from multibit.files import fingerprint, write_arrays
from multibit.relation.graph import LabelGraph

KIND, VERSION = "relation teacher", 2


@dataclass(frozen=True, eq=False)
class RelationTeacher:
    """Relevance between two label sets, by diffusion over the label graph (`eq:integrated-teacher`).

    Create it with `RelationTeacher.fit`. Every score is a row product: `scores(q, d) == embed(q) @ embed(d).T`.
    The other teachers of `multibit.relation.teachers` differ in g* only: each overrides one of `log_response`,
    `weigh`, `embed` and `compare`. They inherit the scales, the bit budget and the scale teachers.

    Attributes:
        name: of the teacher in the settings. has_scales: whether g* is made of scales of its own.
        graph: the label graph of the training labels.
        alpha: fractional order. eta: kernel shift.
        tau: (M,) diffusion times, local to long range. rho: (M,) their quadrature weights
            (`eq:quadrature-decomposition`); they set the bit budget, while scores use the exact matrix functions.
        teacher_alpha: fractional order of g* alone, whose nodes then differ from those of the bit budget; 0 is alpha.

    Example:
        >>> kinds = [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
        >>> labels = np.repeat(kinds, [3, 3, 1, 3], axis=0)
        >>> teacher = RelationTeacher.fit(labels, alpha=0.9, eta=0.2, scales=4)
        >>> teacher.tau.round(4)
        array([ 1.425 ,  8.3205, 22.0774, 46.1771])
        >>> teacher.scores(kinds[:1], kinds).round(2)  # itself; a shared label; a label two steps away; no path
        array([[1.  , 0.76, 0.52, 0.  ]])
    """

    graph: LabelGraph
    alpha: float
    eta: float
    tau: FloatArray
    rho: FloatArray
    teacher_alpha: float = 0.0

    name: ClassVar[str] = "frt"
    has_scales: ClassVar[bool] = True

    @classmethod
    def fit(
        cls,
        labels: ArrayLike,
        alpha: float = 0.9,
        eta: float = 0.2,
        scales: int = 4,
        epsilon: float = 0.1,
        teacher_alpha: float = 0.0,
    ) -> Self:
        """Build the label graph of a training set.

        Args:
            labels: (N, C) multi-hot training labels.
            alpha: fractional order, > 0. eta: kernel shift, > 0. scales: M, >= 1. epsilon: PPMI smoothing, > 0.
            teacher_alpha: fractional order of g* alone, > 0; alpha when 0.

        Raises:
            DataError: labels of a wrong shape or value, or no label at all.
            ConfigError: a setting out of range.
        """
        tau, rho = quadrature(alpha, eta, scales)
        if teacher_alpha:
            quadrature(teacher_alpha, eta, scales)  # refuse it before training
        return cls(LabelGraph.from_labels(labels, epsilon), alpha, eta, tau, rho, teacher_alpha)

    def __repr__(self) -> str:
        settings = f"alpha={self.alpha}, eta={self.eta}, scales={self.scales}"
        return f"{type(self).__name__}({len(self.graph.weights)} labels, {settings})"

    @property
    def scales(self) -> int:
        """M, the number of diffusion scales."""
        return len(self.tau)

    @cached_property
    def nodes(self) -> tuple[FloatArray, FloatArray]:
        """Diffusion times (M,) and quadrature weights (M,) of g*: tau and rho unless `teacher_alpha` is set."""
        return quadrature(self.teacher_alpha, self.eta, self.scales) if self.teacher_alpha else (self.tau, self.rho)

    @cached_property
    def spectrum(self) -> tuple[FloatArray, FloatArray]:
        """Eigenvalues (C,) in [0, 2] and eigenvectors (C, C), one per column, of L.

        Computed per connected component, so that labels without any path between them score exactly 0.
        """
        laplacian = self.graph.laplacian
        values, vectors = np.zeros(len(laplacian)), np.zeros_like(laplacian)
        _, component = connected_components(csr_array(self.graph.weights), directed=False)
        for label in np.unique(component):
            members = np.flatnonzero(component == label)
            block = np.ix_(members, members)
            values[members], vectors[block] = eigh(laplacian[block])
        return np.clip(values, 0.0, 2.0), vectors

    def embed(self, labels: ArrayLike, scale: int | None = None) -> FloatArray:
        """Map (N, C) multi-hot labels to (N, C) rows of length 1 whose products are the scores.

        Args:
            labels: (N, C) multi-hot.
            scale: None for g*, or 0..M-1 for the scale teacher g_l (0 is the most local).

        Returns:
            (N, C) float64. An item without labels, or only with labels of specificity 0, has a zero row: it scores 0
            with every item.

        Raises:
            DataError: labels of a wrong shape or value. ConfigError: no such scale.
        """
        eigenvalues, eigenvectors = self.spectrum
        y = as_labels(labels, columns=len(eigenvalues)).astype(np.float64)  # (N, C)
        if scale is None:
            return _unit_response(self.weigh(y) @ eigenvectors, self.log_response(eigenvalues) / 2)
        if not 0 <= scale < self.scales:
            raise ConfigError(f"must be None or 0..{self.scales - 1}, got {scale}.", option="scale")
        return self.heat(labels, self.tau[scale])

    def heat(self, labels: ArrayLike, tau: float) -> FloatArray:
        """Map (N, C) multi-hot labels to unit rows (N, C) whose products are the heat scores at diffusion time tau."""
        eigenvalues, eigenvectors = self.spectrum
        y = as_labels(labels, columns=len(eigenvalues)).astype(np.float64)
        return _unit_response((y * self.graph.specificity) @ eigenvectors, -tau * eigenvalues / 2)

    def weigh(self, labels: FloatArray) -> FloatArray:
        """Weighted labels (N, C), to which the kernel of g* is applied."""
        return labels * self.graph.specificity

    def log_response(self, eigenvalues: FloatArray) -> FloatArray:
        """Logarithm of the kernel of g* at eigenvalues (C,) of L (`eq:fractional-kernel`)."""
        return np.asarray(-(self.teacher_alpha or self.alpha) * np.log(eigenvalues + self.eta))

    def compare(self, left: Any, right: Any) -> Any:
        """g* of rows of `embed`: (Q, E) and (D, E) -> (Q, D), for numpy arrays and torch tensors."""
        return left @ right.T

    def scores(self, query_labels: ArrayLike, database_labels: ArrayLike) -> FloatArray:
        """g* of every pair (`eq:integrated-teacher`): (Q, C) and (D, C) multi-hot -> (Q, D) in [-1, 1]."""
        return np.asarray(np.clip(self.compare(self.embed(query_labels), self.embed(database_labels)), -1.0, 1.0))

    def scale_scores(self, query_labels: ArrayLike, database_labels: ArrayLike) -> FloatArray:
        """g_l of every pair at every scale (`eq:scale-teacher`): -> (M, Q, D) in [-1, 1], local to long range."""
        products = [
            self.embed(query_labels, scale) @ self.embed(database_labels, scale).T for scale in range(self.scales)
        ]
        return np.clip(np.stack(products), -1.0, 1.0)

    def quadrature_error(self, scales: int | None = None) -> float:
        """Signal-weighted error of the M-point rule against the exact kernel (Table `tab:quadrature-fidelity`).

        Args:
            scales: M of the rule; the teacher's own when None.

        Returns:
            sum_k (f_exact - f_M)(lambda_k) E_k / sum_k f_exact(lambda_k) E_k, a fraction (0.06 is 6 %); E_k is the
            energy of the weighted training labels at eigenvalue lambda_k.
        """
        tau, rho = (self.tau, self.rho) if scales is None else quadrature(self.alpha, self.eta, scales)
        eigenvalues, eigenvectors = self.spectrum
        s = self.graph.specificity
        signal = s[:, None] * self.graph.cooccurrence * s[None, :]  # (C, C), sum over items of y~ y~^T
        energy = np.einsum("ak,ab,bk->k", eigenvectors, signal, eigenvectors, optimize=True)
        exact = (eigenvalues + self.eta) ** -self.alpha
        rule = np.exp(-np.outer(eigenvalues, tau)) @ rho
        total = exact @ energy
        return float((exact - rule) @ energy / total) if total > 0 else 0.0

    def fingerprint(self) -> str:
        """16 hexadecimal digits of the content."""
        return fingerprint(self.name, *self._settings().values(), *self._arrays().values())

    def save(self, path: Path | str) -> None:
        """Write to one file, atomically; `load_teacher` reads it."""
        header = {"name": self.name, **self._settings()}
        write_arrays(Path(path), self._arrays(), header, kind=KIND, version=VERSION)

    def _settings(self) -> dict[str, Any]:
        own = {"teacher_alpha": self.teacher_alpha} if self.teacher_alpha else {}
        return {"alpha": self.alpha, "eta": self.eta, **own}

    def _arrays(self) -> dict[str, FloatArray]:
        return {"tau": self.tau, "rho": self.rho, **vars(self.graph)}


def quadrature(alpha: float, eta: float, scales: int) -> tuple[FloatArray, FloatArray]:
    """Generalised Gauss-Laguerre rule of the fractional kernel (`eq:quadrature-decomposition`).

    Returns:
        tau (M,) ascending, and rho (M,), with sum(rho) = eta^-alpha.

    Raises:
        ConfigError: a setting out of range.

    Example:
        >>> quadrature(1.2, 0.2, 4)[1].round(4)
        array([3.8768, 2.6967, 0.3203, 0.0047])
    """
    for name, value in (("alpha", alpha), ("eta", eta)):
        if not 0 < value < np.inf:
            raise ConfigError(f"must be a positive number, got {value}.", option=name)
    if not (scales >= 1 and scales == int(scales)):
        raise ConfigError(f"must be a whole number of at least 1, got {scales}.", option="scales")
    nodes, weights = roots_genlaguerre(int(scales), alpha - 1)
    with np.errstate(over="ignore", invalid="ignore"):
        tau, rho = np.asarray(nodes / eta), np.asarray(np.float64(eta) ** -alpha * weights / gamma(alpha))
    if not (np.isfinite(tau) & np.isfinite(rho) & (rho > 0)).all():
        raise ConfigError(
            f"a quadrature weight underflows with {scales} scales at alpha {alpha}, eta {eta}.",
            option="scales",
            hint="Use fewer scales.",
        )
    return tau, rho


def _unit_response(coefficients: FloatArray, log_response: FloatArray) -> FloatArray:
    """Rows coefficients * exp(log_response), each scaled to length 1; zero rows stay zero.

    The largest term of a row is factored out before the exponential: at long diffusion times the response itself
    underflows, but its direction does not.
    """
    with np.errstate(divide="ignore"):
        log_size = np.log(np.abs(coefficients)) + log_response
    peak = log_size.max(axis=1, keepdims=True)
    return unit_rows(np.sign(coefficients) * np.exp(log_size - np.where(np.isfinite(peak), peak, 0.0)))
