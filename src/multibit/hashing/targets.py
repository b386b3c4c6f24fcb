"""Training targets: the teacher's scores among the items of a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from multibit.relation import RelationTeacher
from multibit.relation.teachers import LearnedWeights


class Targets(nn.Module):
    """Teacher scores among training items: g* first, then g_l local to long range.

    Args:
        teacher: fitted to the training labels. labels: (n, C) of the training items.
        own_scales: g_l at the nodes of g* instead of those of the bit budget.
        content: (n, d) rows whose products say how alike two items are beyond their labels; see `content_rows`.
        share: of the content in the scores that follow g*: (1 - share) g* + share content.

    Example:
        >>> labels = np.array([[1, 0], [1, 1], [0, 1]], np.uint8)
        >>> teacher = RelationTeacher.fit(labels, scales=2)
        >>> Targets(teacher, labels)(torch.tensor([0, 2])).shape
        torch.Size([3, 2, 2])
    """

    integrated: Tensor  # (n, E) rows of g*
    scales: Tensor  # (M, n, C) rows of each g_l
    content: Tensor | None  # (n, d)

    def __init__(
        self,
        teacher: RelationTeacher,
        labels: NDArray[np.uint8],
        own_scales: bool = False,
        content: NDArray[np.float32] | None = None,
        share: float = 0.0,
    ) -> None:
        super().__init__()
        self.teacher, self.share = teacher, share
        self.register_buffer("content", None if content is None else torch.from_numpy(content), persistent=False)
        scales = np.stack([teacher.heat(labels, tau) for tau in (teacher.nodes[0] if own_scales else teacher.tau)])
        self.register_buffer("integrated", _tensor(teacher.embed(labels)), persistent=False)
        self.register_buffer("scales", _tensor(scales), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """(b,) training rows -> (1+M, b, b), symmetric."""
        g = self.scores(rows)  # (b, b)
        if self.content is not None:
            own = self.content[rows]
            g = (1 - self.share) * g + self.share * own @ own.T
        e = self.scales[:, rows]  # (M, b, C)
        return torch.cat([g[None], e @ e.mT])

    def scores(self, rows: Tensor) -> Tensor:
        """G* among (b,) training rows: (b, b)."""
        e = self.integrated[rows]
        return cast(Tensor, self.teacher.compare(e, e))

    def pull(self) -> Tensor | None:
        """A loss term that pulls the trained parameters to their prior; None without such parameters."""
        return None

    def finished(self) -> RelationTeacher:
        """The teacher, with any trained parameters."""
        return self.teacher


class LearnedTargets(Targets):
    """A mixture of the scale kernels whose weights are trained with the codes.

    The weights are the softmax of free logits, which start at the quadrature weights and are pulled to them by a KL
    divergence (Table `tab:teacher-transfer`, learned-weight multi-scale heat).
    """

    signal: Tensor  # (n, C) weighted labels in the eigenbasis of L
    log_heat: Tensor  # (M, C) -tau_l lambda
    prior: Tensor  # (M,) quadrature weights, summing to 1

    def __init__(self, teacher: LearnedWeights, labels: NDArray[np.uint8], *others: Any) -> None:
        super().__init__(teacher, labels, *others)
        eigenvalues, eigenvectors = teacher.spectrum
        tau, rho = teacher.nodes
        self.register_buffer("signal", _tensor((labels * teacher.graph.specificity) @ eigenvectors), persistent=False)
        self.register_buffer("log_heat", _tensor(-np.outer(tau, eigenvalues)), persistent=False)
        self.register_buffer("prior", _tensor(rho / rho.sum()), persistent=False)
        self.logits = nn.Parameter(self.prior.log())

    def scores(self, rows: Tensor) -> Tensor:
        """G* of the current mixture."""
        exponents = torch.log_softmax(self.logits, 0)[:, None] + self.log_heat  # (M, C)
        log_kernel = torch.logsumexp(exponents, dim=0)  # (C,), at each eigenvalue; at long diffusion it underflows
        e = functional.normalize(self.signal[rows] * ((log_kernel - log_kernel.max()) / 2).exp(), dim=1)
        return e @ e.T

    def pull(self) -> Tensor:
        """KL(weights || quadrature weights)."""
        log_weights = torch.log_softmax(self.logits, 0)
        return (log_weights.exp() * (log_weights - self.prior.log())).sum()

    def finished(self) -> RelationTeacher:
        """The teacher with the trained weights."""
        t = cast(LearnedWeights, self.teacher)
        weights = torch.softmax(self.logits.detach().double(), 0).cpu().numpy()
        return replace(t, learned=weights)


def build_targets(teacher: RelationTeacher, labels: NDArray[np.uint8], *others: Any) -> Targets:
    """The targets that fit a teacher; the arguments are those of `Targets`."""
    if isinstance(teacher, LearnedWeights):
        return LearnedTargets(teacher, labels, *others)
    return Targets(teacher, labels, *others)


def content_rows(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Unit rows of features (n, d) less their mean, at unit length again: products are cosines of what items differ in.

    Example:
        >>> content_rows(np.array([[5, 0], [0, 2]], np.float32)).round(3)
        array([[ 0.707, -0.707],
               [-0.707,  0.707]], dtype=float32)
    """
    unit = functional.normalize(torch.from_numpy(features).double(), dim=1)
    return functional.normalize(unit - unit.mean(dim=0), dim=1).float().numpy()


def _tensor(array: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(array.astype(np.float32))
