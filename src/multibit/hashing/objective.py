"""The objective: every prefix follows g*, every scale block follows its own g_l (MPA)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from multibit.config import Config

QUANTIZATION = 0.1  # weight of the quantisation term of the standard objective


@dataclass(frozen=True, eq=False)
class Parts:
    """The objective by parts.

    Attributes:
        total: () what is minimised (`eq:overall-objective`).
        values: (P,) detached, one for each of `Objective.names`.
    """

    total: Tensor
    values: Tensor


class Objective:
    """Both directions, all prefixes, all scale blocks, in one batched computation.

    Attributes:
        names: of the parts: "prefix 16", ..., "scale 1", ..., "standard" where it is on, then "prefix", "scale",
            "total".

    Example:
        >>> objective = Objective(Config(lengths=(2, 4), scales=2), blocks=(3, 1), rho=(2.0, 1.0))
        >>> objective.names
        ('prefix 2', 'prefix 4', 'scale 1', 'scale 2', 'prefix', 'scale', 'total')
        >>> image, text = torch.zeros(2, 5, 4)
        >>> teacher = torch.zeros(3, 5, 5)
        >>> float(objective(image, text, teacher).total)  # two flat rankings agree
        0.0
    """

    def __init__(self, config: Config, blocks: tuple[int, ...], rho: tuple[float, ...]) -> None:
        self.config = config
        ends = [sum(blocks[: i + 1]) for i in range(len(blocks))]
        prefixes = [slice(0, length) for length in config.aligned_lengths]
        scales = [slice(end - width, end) for end, width in zip(ends, blocks, strict=True)]
        if config.allocation == "single":
            scales = []  # one block for all scales follows none of them
        self.segments = [*prefixes, *scales]  # bits of the code that make one ranking
        self.targets = [0] * len(prefixes) + list(range(1, len(scales) + 1))  # the teacher each one follows
        self.prefixes = len(prefixes)
        self.names = (
            *(f"prefix {length}" for length in config.aligned_lengths),
            *(f"scale {scale + 1}" for scale in range(len(scales))),
            *(["standard"] if config.standard_weight else []),
            "prefix", "scale", "total",
        )  # fmt: skip
        beta = torch.tensor(config.length_weights)
        rho_bar = torch.tensor(rho[: len(scales)]) / sum(rho)
        self.weights = torch.cat([beta, config.scale_weight * rho_bar])  # (P,)
        self.shares = torch.cat([beta, rho_bar])  # (P,) of each part in "prefix" and "scale"

    def __call__(self, image: Tensor, text: Tensor, teacher: Tensor, related: Tensor | None = None) -> Parts:
        """Compare the code rankings of a batch with the teacher's.

        Args:
            image, text: (b, B_max) relaxed codes of the same b items.
            teacher: (1+M, b, b) scores of those items, g* first, then g_l local to long range; symmetric.
            related: (b, b) 1 where two items share a label; needed by the standard objective only.
        """
        total = image.new_zeros(())
        values = []
        if self.segments:
            follow = self._listwise if self.config.alignment == "listwise" else self._pairwise
            losses = follow(image, text, teacher)  # (P,)
            total = losses @ self.weights.to(losses)
            values.append(losses.detach())
        if self.config.standard_weight:
            assert related is not None  # the loop gives it where the setting asks for it
            standard = standard_loss(image, text, related)
            total = total + self.config.standard_weight * standard
            values.append(standard.detach()[None])
        return Parts(total, torch.cat([*values, self._sums(values, total)]))

    def _listwise(self, image: Tensor, text: Tensor, teacher: Tensor) -> Tensor:
        """KL divergence of each ranking from its teacher's, both directions: (P,) (`eq:directional-list`)."""
        # -soft distance / T_s without its constant: softmax does not see it (`eq:student-distribution`)
        student = self._similarities(image, text) / (2 * self.config.student_temperature)  # (P, b, b)
        logits = teacher / self.config.teacher_temperature
        target = torch.softmax(logits, dim=-1)  # (1+M, b, b), P*(r|q)
        log_target = torch.log_softmax(logits, dim=-1)
        negative_entropy = (target * log_target).sum(dim=(1, 2))  # (1+M,)
        target = target[self.targets]  # (P, b, b)
        # The teacher is symmetric, so one target serves both directions: rows ask in i2t, columns in t2i.
        log_i2t, log_t2i = torch.log_softmax(student, dim=2), torch.log_softmax(student, dim=1).mT
        cross_entropy = -(target * (log_i2t + log_t2i)).sum(dim=(1, 2))  # (P,)
        return (cross_entropy + 2 * negative_entropy[self.targets]) / len(image)

    def _pairwise(self, image: Tensor, text: Tensor, teacher: Tensor) -> Tensor:
        """Mean squared error of the code similarities from their teacher's, both directions: (P,)."""
        return 2 * (self._similarities(image, text) - teacher[self.targets]).square().mean(dim=(1, 2))

    def _similarities(self, image: Tensor, text: Tensor) -> Tensor:
        """<h_q, h_r> / B on the bits of each ranking: (P, b, b), image rows, text columns, in [-1, 1]."""
        return torch.stack([image[:, s] @ text[:, s].T / (s.stop - s.start) for s in self.segments])

    def _sums(self, values: list[Tensor], total: Tensor) -> Tensor:
        shared = values[0] * self.shares.to(total) if self.segments else total.new_zeros(0)
        prefix, scale = shared[: self.prefixes].sum(), shared[self.prefixes :].sum()
        return torch.stack([prefix, scale, total.detach()])


def standard_loss(image: Tensor, text: Tensor, related: Tensor) -> Tensor:
    """The field's standard objective: negative log-likelihood of sharing a label, and a small quantisation term.

    Args:
        image, text: (b, B) relaxed codes. related: (b, b) 1 where two items share a label, else 0.

    Returns:
        () mean over pairs of -(s theta - log(1 + e^theta)) with theta = <h_q, h_r> / 2, plus the mean squared
        deviation of the codes from their signs.

    Example:
        >>> code = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
        >>> round(float(standard_loss(code, code, torch.eye(2))), 4)  # log(1 + 1/e)
        0.3133
    """
    theta = image @ text.T / 2
    likelihood = functional.binary_cross_entropy_with_logits(theta, related)
    deviation = (image.abs() - 1).square().mean() + (text.abs() - 1).square().mean()
    return likelihood + QUANTIZATION * deviation
