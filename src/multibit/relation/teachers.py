"""The relation teachers by name: the fractional one, and the ones that the paper compares it with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from multibit.arrays import FloatArray, as_labels
from multibit.errors import FormatError, require_known
from multibit.files import building, read_arrays
from multibit.relation.graph import LabelGraph
from multibit.relation.teacher import KIND, VERSION, RelationTeacher


class Binary(RelationTeacher):
    """Related or not: 1 where two items share a label, else 0."""

    name: ClassVar[str] = "binary"
    has_scales: ClassVar[bool] = False

    def embed(self, labels: ArrayLike, scale: int | None = None) -> FloatArray:
        """Labels unchanged (N, C); the scale teachers are those of the label graph."""
        if scale is None:
            return as_labels(labels, columns=len(self.graph.weights)).astype(np.float64)
        return super().embed(labels, scale)

    def compare(self, left: Any, right: Any) -> Any:
        """1.0 where a label is shared."""
        return (left @ right.T > 0) * 1.0


class Jaccard(Binary):
    """Jaccard index of two label sets, |a and b| / |a or b|; 0 where neither has a label."""

    name: ClassVar[str] = "jaccard"

    def compare(self, left: Any, right: Any) -> Any:
        """The index of every pair, in [0, 1]."""
        shared = left @ right.T
        union = left.sum(1)[:, None] + right.sum(1)[None, :] - shared
        return shared / (union + (union == 0))


class PpmiSpecificity(RelationTeacher):
    """One step over the label graph, kernel I + D^-1/2 W D^-1/2, on labels weighted by their specificity."""

    name: ClassVar[str] = "ppmi-specificity"
    has_scales: ClassVar[bool] = False

    def log_response(self, eigenvalues: FloatArray) -> FloatArray:
        """I + D^-1/2 W D^-1/2 = 2 I - L."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(2.0 - eigenvalues))


class Ppmi(PpmiSpecificity):
    """One step over the label graph, kernel I + D^-1/2 W D^-1/2, on unweighted labels."""

    name: ClassVar[str] = "ppmi"

    def weigh(self, labels: FloatArray) -> FloatArray:
        """Labels unchanged."""
        return labels


class SingleScale(RelationTeacher):
    """Heat diffusion at the most local scale only, exp(-tau_1 L)."""

    name: ClassVar[str] = "single-scale"
    has_scales: ClassVar[bool] = False

    def log_response(self, eigenvalues: FloatArray) -> FloatArray:
        """Logarithm of the kernel of the first scale teacher."""
        return np.asarray(-self.nodes[0][0] * eigenvalues)


class UniformHeat(RelationTeacher):
    """UMH: the mean of the scale teachers, each normalised before the mean."""

    name: ClassVar[str] = "umh"

    def embed(self, labels: ArrayLike, scale: int | None = None) -> FloatArray:
        """Concatenated rows of all scales (N, M C), whose products are the mean."""
        if scale is not None:
            return super().embed(labels, scale)
        rows = [self.heat(labels, tau) for tau in self.nodes[0]]
        return np.asarray(np.concatenate(rows, axis=1) / np.sqrt(self.scales))


class UniformKernel(RelationTeacher):
    """UKM: the mean of the scale kernels, normalised after the mean."""

    name: ClassVar[str] = "ukm"

    @property
    def mixture(self) -> FloatArray:
        """Weights (M,) of the scale kernels, summing to 1."""
        return np.full(self.scales, 1 / self.scales)

    def log_response(self, eigenvalues: FloatArray) -> FloatArray:
        """sum_l w_l exp(-tau_l lambda)."""
        exponents = np.log(self.mixture)[:, None] - np.outer(self.nodes[0], eigenvalues)  # (M, C)
        return np.asarray(logsumexp(exponents, axis=0))


@dataclass(frozen=True, eq=False, repr=False)
class LearnedWeights(UniformKernel):
    """A mixture of the scale kernels whose weights are trained with the codes, starting at the quadrature weights.

    Attributes:
        learned: (M,) positive weights, summing to 1; None before training.
    """

    learned: FloatArray | None = field(default=None)

    name: ClassVar[str] = "learned-weights"

    @property
    def mixture(self) -> FloatArray:
        """Weights (M,) of the scale kernels, summing to 1."""
        rho = self.nodes[1]
        return rho / rho.sum() if self.learned is None else self.learned

    def _arrays(self) -> dict[str, FloatArray]:
        return {**super()._arrays(), "learned": self.mixture}


TEACHERS: dict[str, type[RelationTeacher]] = {
    teacher.name: teacher
    for teacher in (
        RelationTeacher,
        Binary,
        Jaccard,
        Ppmi,
        PpmiSpecificity,
        SingleScale,
        UniformHeat,
        UniformKernel,
        LearnedWeights,
    )
}
"""Name -> class. To add a teacher, subclass `RelationTeacher` and list it here."""


def teacher_class(name: str) -> type[RelationTeacher]:
    """The class of a teacher.

    Raises:
        ConfigError: no teacher has this name.

    Example:
        >>> teacher_class("jaccard").fit([[1, 1, 0], [1, 0, 1], [0, 1, 0]]).scores([[1, 1, 0]], [[1, 0, 1]]).round(3)
        array([[0.333]])
    """
    require_known("teacher", name, TEACHERS)
    return TEACHERS[name]


def load_teacher(path: Path | str) -> RelationTeacher:
    """Read a file that `RelationTeacher.save` wrote.

    Raises:
        FormatError: corrupt or truncated, newer, or another kind of file, or an unknown teacher.
    """
    arrays, header = read_arrays(Path(path), kind=KIND, version=VERSION, form=_Header, needed=_ARRAYS)
    if header.name not in TEACHERS:
        raise FormatError(f"unknown teacher {header.name!r}; known teachers are {', '.join(TEACHERS)}.", file=path)
    with building(Path(path)):
        tau, rho = arrays.pop("tau"), arrays.pop("rho")
        extra = {key: arrays.pop(key) for key in ("learned",) if key in arrays}
        graph = LabelGraph(**arrays)
        labels, scales = len(graph.specificity), len(tau)
        shapes = {**dict.fromkeys(("weights", "laplacian", "cooccurrence"), (labels, labels)), "rho": (scales,)}
        if any(array.shape != shapes.get(name, array.shape) for name, array in {**vars(graph), "rho": rho}.items()):
            raise ValueError(f"arrays of other shapes for {labels} labels and {scales} scales")
        return TEACHERS[header.name](graph, header.alpha, header.eta, tau, rho, header.teacher_alpha, **extra)


class _Header(msgspec.Struct):
    """What the file of a teacher must say."""

    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1e6)]
    eta: Annotated[float, msgspec.Meta(gt=0, lt=1e6)]
    name: str = RelationTeacher.name  # version 1 had only one
    teacher_alpha: Annotated[float, msgspec.Meta(ge=0, lt=1e6)] = 0.0
    """Not written where g* has the nodes of the bit budget."""


_ARRAYS = {
    "tau": ("f", 1), "rho": ("f", 1), "specificity": ("f", 1),
    **{name: ("f", 2) for name in ("weights", "laplacian", "cooccurrence")},
}  # fmt: skip
