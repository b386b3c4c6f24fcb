"""The objective: every prefix follows g*, every scale block follows its own g_l (MPA)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from multibit.config import Config
from multibit.hashing.rankings import Goals, Segments, leave_out, log_sums


@dataclass(frozen=True, eq=False)
class Parts:
    """The objective by parts.

    Attributes:
        total: () what is minimised (`eq:overall-objective`).
        values: (P,) detached, one for each of `Objective.names`.
    """

    total: Tensor
    values: Tensor


class Objective(nn.Module):
    """Both directions, all prefixes, all scale blocks, in one batched computation.

    With `binary_weight` the prefixes of the stored binary codes follow g* too, and with `within_weight` those within
    each modality. The ranking of a short binary code cannot be as sharp as its teacher, so each of these rankings has
    its own temperature, trained with the codes. With `consistency_weight` the similarities of a query at the shorter
    prefixes are correlated with those at the longest. With `item_weight` the signs of the bits that each length adds to
    the shorter one tell an item from those alike, which the labels do not.

    Attributes:
        names: of the parts: "prefix 16", ..., "scale 1", ..., then the enabled extra terms, then "prefix", "scale",
            "total".
        sharpness: (2, prefixes) logarithm of the inverse temperatures, relative to T_s, of the binary rankings between
            and within modalities; None where neither is enabled.
        item_sharpness: (prefixes,) the same of telling items apart, by the added bits; None where not enabled.

    Example:
        >>> objective = Objective(Config(lengths=(2, 4), scales=2), blocks=(3, 1), rho=(2.0, 1.0))
        >>> objective.names
        ('prefix 2', 'prefix 4', 'scale 1', 'scale 2', 'prefix', 'scale', 'total')
        >>> image, text = torch.zeros(2, 5, 4)
        >>> teacher = torch.zeros(3, 5, 5)
        >>> float(objective(image, text, teacher).total)  # two flat rankings agree
        0.0
    """

    weights: Tensor  # (P,) of each ranking in the loss
    shares: Tensor  # (P,) of each ranking in "prefix" and "scale"

    def __init__(self, config: Config, blocks: tuple[int, ...], rho: tuple[float, ...]) -> None:
        super().__init__()
        self.config = config
        prefixes = [slice(0, length) for length in config.aligned_lengths]
        added = [slice(*ends) for ends in itertools.pairwise((0, *config.aligned_lengths))]  # lengths ascend
        scales = [slice(*ends) for ends in itertools.pairwise((0, *itertools.accumulate(blocks)))]
        if config.allocation == "single":
            scales = []  # a single block follows no scale
        self.segments = Segments([*prefixes, *scales])  # bits of the code behind each ranking
        self.targets = [0] * len(prefixes) + list(range(1, len(scales) + 1))  # the teacher that each one follows
        self.of_prefixes, self.of_added = Segments(prefixes), Segments(added)
        self.prefixes = len(prefixes)
        extras = {
            "standard": config.standard_weight,
            "binary": config.binary_weight,
            "within": config.within_weight,
            "consistency": config.consistency_weight if self.prefixes > 1 else 0.0,
            "item": config.item_weight,
        }
        self.extras = {name: weight for name, weight in extras.items() if weight}
        self.names = (
            *(f"prefix {length}" for length in config.aligned_lengths),
            *(f"scale {scale + 1}" for scale in range(len(scales))),
            *self.extras,
            "prefix", "scale", "total",
        )  # fmt: skip
        beta = torch.tensor(config.length_weights)
        rho_bar = torch.tensor(rho[: len(scales)]) / sum(rho)
        self.register_buffer("weights", torch.cat([beta, config.scale_weight * rho_bar]), persistent=False)
        self.register_buffer("shares", torch.cat([beta, rho_bar]), persistent=False)
        binary = self.extras.keys() - {"standard", "item"}
        self.sharpness = nn.Parameter(torch.zeros(2, self.prefixes)) if binary else None
        self.item_sharpness = nn.Parameter(torch.zeros(self.prefixes)) if "item" in self.extras else None

    def forward(self, image: Tensor, text: Tensor, teacher: Tensor, related: Tensor | None = None) -> Parts:
        """Compare the code rankings of a batch with the teacher's.

        Args:
            image, text: (b, B_max) relaxed codes of the same b items.
            teacher: (1+M, b, b) scores of those items, g* first, then g_l local to long range; symmetric.
            related: (b, b) 1 where two items share a label; needed only by the standard objective.
        """
        losses = image.new_zeros(0)  # (P,)
        if self.targets:
            follow = self._listwise if self.config.alignment == "listwise" else self._pairwise
            losses = follow(image, text, teacher)
        extras = self._extra_terms(image, text, teacher, related)
        total = self._weigh(losses)
        for name, loss in extras.items():
            total = total + self.extras[name] * loss
        return Parts(total, self._named(losses.detach(), [loss.detach() for loss in extras.values()], total.detach()))

    def _listwise(self, image: Tensor, text: Tensor, teacher: Tensor) -> Tensor:
        """KL divergence of each ranking from its teacher's, both directions: (P,) (`eq:directional-list`)."""
        goals = Goals.of(teacher / self.config.teacher_temperature, both=True).take(self.targets)
        return goals.divergence(self.segments(image, text, self._sharp))

    def _pairwise(self, image: Tensor, text: Tensor, teacher: Tensor) -> Tensor:
        """Mean squared error of the code similarities from their teacher's, both directions: (P,)."""
        similarities: Tensor = self.segments(image, text)
        return 2 * (similarities - teacher[self.targets]).square().mean(dim=(1, 2))

    @property
    def _sharp(self) -> float:
        """Factor of mean products: -soft distance / T_s without its constant (`eq:student-distribution`)."""
        return 1 / (2 * self.config.student_temperature)

    def _extra_terms(self, image: Tensor, text: Tensor, teacher: Tensor, related: Tensor | None) -> dict[str, Tensor]:
        """The enabled terms beyond the paper's full method, by name: ()."""
        extras = {}
        if "standard" in self.extras:
            assert related is not None  # the learner passes it if the weight is set
            extras["standard"] = standard_loss(image, text, related, self.config.quantization_weight)
        if self.sharpness is None and self.item_sharpness is None:
            return extras
        signs = straight_through(torch.stack([image, text]))  # (2, b, B_max)
        if self.sharpness is not None:
            extras |= self._binary_terms(signs, teacher[0], self._sharp * self.sharpness.to(image).exp())
        if self.item_sharpness is not None:
            sharpness = self._sharp * self.item_sharpness.to(image).exp()
            extras["item"] = self._weigh(self._tell_apart(signs, teacher[0], sharpness))
        return extras

    def _binary_terms(self, signs: Tensor, teacher: Tensor, sharpness: Tensor) -> dict[str, Tensor]:
        """The enabled terms of the stored binary codes, by name: ().

        Args:
            signs: (2, b, B_max) of images and of texts. teacher: (b, b), symmetric. sharpness: (2, prefixes).
        """
        terms, (between, within) = {}, sharpness[..., None]
        scores = teacher[None] / self.config.teacher_temperature
        across = self.of_prefixes(*signs, between)  # (prefixes, b, b)
        if "binary" in self.extras:
            terms["binary"] = self._weigh(Goals.of(scores, both=True).divergence(across))
        if "within" in self.extras:
            others = leave_out(_diagonal(teacher))  # a query does not find itself
            own = self.of_prefixes(signs, signs, within) + others  # (prefixes, 2, b, b)
            terms["within"] = self._weigh(Goals.of(scores + others, both=False).divergence(own).sum(dim=1))
        if "consistency" in self.extras:  # lengths ascend
            terms["consistency"] = disagreement(across[:-1], across[-1:].detach())
        return terms

    def _tell_apart(self, signs: Tensor, teacher: Tensor, sharpness: Tensor) -> Tensor:
        """Cross-entropy of the own counterpart of each query among the items alike, both directions: (prefixes,).

        Each is of the bits that a length adds to the shorter one. Items that the teacher tells from the query are left
        out, so that this does not push against its ranking.

        Args:
            signs: (2, b, B_max) of images and of texts. teacher: (b, b) scores, symmetric. sharpness: (prefixes,).
        """
        others = leave_out((teacher < self.config.alike) & ~_diagonal(teacher))
        logits: Tensor = self.of_added(*signs, sharpness[:, None]) + others  # (prefixes, b, b)
        own = logits.diagonal(dim1=1, dim2=2).sum(dim=1)
        return (log_sums(logits, both=True) - 2 * own) / (2 * len(teacher))

    def _weigh(self, losses: Tensor) -> Tensor:
        """The weighted sum of all rankings, or of the prefixes only, which come first."""
        return losses @ self.weights[: len(losses)].to(losses)

    def _named(self, losses: Tensor, extras: list[Tensor], total: Tensor) -> Tensor:
        shared = losses * self.shares.to(losses)
        prefix, scale = shared[: self.prefixes].sum(), shared[self.prefixes :].sum()
        return torch.cat([losses, torch.stack([*extras, prefix, scale, total])])


def straight_through(relaxed: Tensor) -> Tensor:
    """The binary code, -1 or +1 with sign(0) = +1; its gradient is that of the relaxed code.

    Example:
        >>> straight_through(torch.tensor([0.3, 0.0, -0.9]))
        tensor([ 1.,  1., -1.])
    """
    signs = relaxed.detach().sign().add_(0.5).sign_()  # of 0 it is that of 0.5; faster than a comparison
    return relaxed + (signs - relaxed.detach())


def disagreement(shorter: Tensor, longest: Tensor) -> Tensor:
    """How much the similarities of each query at the shorter lengths deviate from those at the longest.

    Correlation ignores location and scale, which differ between lengths: a 16-bit code cannot be as sharp.

    Args:
        shorter: (P, b, b), image rows, text columns. longest: (1, b, b).

    Returns:
        () mean of 1 - Pearson correlation over lengths, queries and both directions, in [0, 2]; a query with equal
        similarities to all candidates has correlation 0.

    Example:
        >>> longest = torch.tensor([[[0.9, 0.1], [0.3, 0.5]]])
        >>> round(float(disagreement(longest / 2 - 0.1, longest)), 6), round(float(disagreement(-longest, longest)), 6)
        (0.0, 2.0)
    """

    def correlation(dim: int) -> Tensor:
        deviations = shorter - shorter.mean(dim, keepdim=True)
        against = functional.normalize(longest - longest.mean(dim, keepdim=True), dim=dim)
        squares = (deviations * deviations).sum(dim).clamp_min(torch.finfo(shorter.dtype).tiny)
        return (deviations * against).sum(dim) * squares.rsqrt()

    return 1 - (correlation(2) + correlation(1)).mean() / 2


def _diagonal(scores: Tensor) -> Tensor:
    """(b, b) True where an item meets itself."""
    return torch.eye(len(scores), dtype=torch.bool, device=scores.device)


def standard_loss(image: Tensor, text: Tensor, related: Tensor, quantization: float = 0.0) -> Tensor:
    """The field's standard objective: negative log-likelihood of sharing a label, and a quantisation term.

    Args:
        image, text: (b, B) relaxed codes. related: (b, b) 1 where two items share a label, else 0.
        quantization: weight of the quantisation term. The default 0 was chosen on validation data: on the sample every
            larger weight is worse, and 0.1 makes most bits constant.

    Returns:
        () mean over pairs of -(s theta - log(1 + e^theta)) with theta = <h_q, h_r> / 2, plus `quantization`
        times the mean squared deviation of the codes from their signs.

    Example:
        >>> code = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
        >>> round(float(standard_loss(code, code, torch.eye(2))), 4)  # log(1 + 1/e)
        0.3133
    """
    theta = image @ text.T / 2
    likelihood = functional.binary_cross_entropy_with_logits(theta, related)
    deviation = (image.abs() - 1).square().mean() + (text.abs() - 1).square().mean()
    return likelihood + quantization * deviation
