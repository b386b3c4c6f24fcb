"""The listwise objective: every prefix follows g*, every scale block follows its own g_l (MPA)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from multibit.config import Config


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
        names: of the parts: "prefix 16", ..., "scale 1", ..., then "prefix", "scale", "total".

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
        self.teacher_temperature = config.teacher_temperature
        self.student_temperature = config.student_temperature
        ends = [sum(blocks[: i + 1]) for i in range(len(blocks))]
        prefixes = [slice(0, length) for length in config.lengths]
        scales = [slice(end - width, end) for end, width in zip(ends, blocks, strict=True)]
        self.segments = [*prefixes, *scales]  # bits of the code that make one ranking
        self.targets = [0] * len(prefixes) + list(range(1, len(scales) + 1))  # the teacher each one follows
        self.prefixes = len(prefixes)
        self.names = (
            *(f"prefix {length}" for length in config.lengths),
            *(f"scale {scale + 1}" for scale in range(len(scales))),
            "prefix", "scale", "total",
        )  # fmt: skip
        beta = torch.tensor(config.length_weights)
        rho_bar = torch.tensor(rho) / sum(rho)
        self.weights = torch.cat([beta, config.scale_weight * rho_bar])  # (P,)
        self.shares = torch.cat([beta, rho_bar])  # (P,) of each part in "prefix" and "scale"

    def __call__(self, image: Tensor, text: Tensor, teacher: Tensor) -> Parts:
        """Compare the code rankings of a batch with the teacher's.

        Args:
            image, text: (b, B_max) relaxed codes of the same b items.
            teacher: (1+M, b, b) scores of those items, g* first, then g_l local to long range; symmetric.
        """
        # -soft distance / T_s without its constant: softmax does not see it (`eq:student-distribution`)
        student = torch.stack(
            [image[:, s] @ text[:, s].T / (2 * (s.stop - s.start) * self.student_temperature) for s in self.segments]
        )  # (P, b, b), image rows, text columns
        target = torch.softmax(teacher / self.teacher_temperature, dim=-1)  # (1+M, b, b), P*(r|q)
        log_target = torch.log_softmax(teacher / self.teacher_temperature, dim=-1)
        negative_entropy = (target * log_target).sum(dim=(1, 2))  # (1+M,)
        target = target[self.targets]  # (P, b, b)
        # The teacher is symmetric, so one target serves both directions: rows ask in i2t, columns in t2i.
        log_i2t, log_t2i = torch.log_softmax(student, dim=2), torch.log_softmax(student, dim=1).mT
        cross_entropy = -(target * (log_i2t + log_t2i)).sum(dim=(1, 2))  # (P,)
        losses = (cross_entropy + 2 * negative_entropy[self.targets]) / len(image)  # (P,), KL (`eq:directional-list`)
        total = losses @ self.weights.to(losses)
        return Parts(total, self._named(losses.detach(), total.detach()))

    def _named(self, losses: Tensor, total: Tensor) -> Tensor:
        shared = losses * self.shares.to(losses)
        prefix, scale = shared[: self.prefixes].sum(), shared[self.prefixes :].sum()
        return torch.cat([losses, torch.stack([prefix, scale, total])])
