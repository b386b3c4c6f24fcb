"""DECH: evidence for and against a relation of each pair of codes, trained as an opinion with an uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from multibit.codes.items import Modality
from multibit.codes.layout import Layout
from multibit.config import EpochSettings
from multibit.features import Pairs
from multibit.hashing.code_model import CodeModel, TokenBatch
from multibit.hashing.layers import UnitRows, scale_rows
from multibit.hashing.learner import Batch, Descent, LossLearner, seeded
from multibit.hashing.losses import shared_labels
from multibit.hashing.methods.base import Method
from multibit.hashing.optimizers import constant_descent

EVIDENCE_RANGE = 15.0  # limit of the logarithm of the evidence
GRADIENT_NORM = 1.0  # largest norm of the gradient of all weights together
DIRECTIONS = 2  # image to text and text to image have the same evidence, so the loss of one counts twice
LEAST_EVIDENCE = 1e-5
UNITS_AT_ONCE = 2**19  # hidden units of the evidence network in memory together


@dataclass(frozen=True)
class DechSettings(EpochSettings):
    """The settings of DECH.

    Raises:
        ConfigError: a value is out of range.
    """

    lengths: tuple[int, ...] = (16, 32, 64, 128)  # target code lengths, each with a model of its own
    hidden: int = 8192  # width of the hidden layer of each modality
    temperature: float = 0.2  # tau, divides the logarithm of the evidence
    ramp_epochs: int = 10  # epochs until the divergence from the uniform opinion has its full weight
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-4
    seed: int = 42  # of initial weights and batches; the split has its own

    POSITIVE = ("learning_rate", "temperature")


class UnitHash(CodeModel, network="unit hash"):
    """Features -> hidden layer with ReLU -> tanh -> unit length, for each modality.

    Input rows are scaled to the length sqrt(d_m), as by `scale_rows`.

    Attributes:
        heads: modality -> layers.

    Example:
        >>> model = UnitHash(image_dim=20, text_dim=12, bits=8, hidden=16)
        >>> round(float(model(torch.ones(1, 12), "text").norm().detach()), 5)
        1.0
    """

    def __init__(self, image_dim: int, text_dim: int, bits: int, hidden: int) -> None:
        super().__init__(Layout((bits,)), image_dim=image_dim, text_dim=text_dim, bits=bits, hidden=hidden)
        self.heads = nn.ModuleDict(
            {
                modality: nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, bits), nn.Tanh())
                for modality, size in self.dimensions.items()
            }
        )

    def stacks(self, modality: Modality) -> list[list[nn.Module]]:
        """See `CodeModel.stacks`."""
        return [[*cast(nn.Sequential, self.heads[modality]), UnitRows()]]

    def forward(self, features: Tensor, modality: Modality, tokens: TokenBatch | None = None) -> Tensor:
        """(n, d_m) features -> (n, B) relaxed code of unit length."""
        return functional.normalize(self.heads[modality](scale_rows(features)), dim=1)


class OpposingEvidence(nn.Module):
    """g: two codes side by side -> one number, by a layer of twice as many units as a code has bits.

    Attributes:
        first: (2B) -> (2B). last: (2B) -> 1.
    """

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2 * bits, 2 * bits), nn.Linear(2 * bits, 1)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """(n, B) and (m, B) codes -> (n, m) g of every pair.

        The first layer is linear, so it is applied to each code once and not to each pair. The hidden units are made
        for a few images at a time, so that they stay in the processor's cache.
        """
        of_image, of_text = torch.split(self.first.weight, image.shape[1], dim=1)  # (2B, B) each
        left, right = image @ of_image.T + self.first.bias, text @ of_text.T  # (n, 2B), (m, 2B)
        few = max(1, UNITS_AT_ONCE // right.numel())
        blocks = [self.last((rows[:, None] + right).relu_()) for rows in torch.split(left, few)]  # (few, m, 1) each
        return torch.cat(blocks).squeeze(2)


class Dech(LossLearner):
    """Evidence for a relation from the agreement of two codes, and against it from a network on both.

    Attributes:
        model: layers of each modality. opposing: the network g.
    """

    parts = ("likelihood", "uniform", "missing", "total")
    needs_unrelated = True
    full_batches = True

    def __init__(self, training: Pairs, settings: DechSettings) -> None:
        super().__init__(training, settings)
        self.settings = settings
        bits = settings.code_bits
        with seeded(settings.seed):
            self.model = UnitHash(training.image.shape[1], training.text.shape[1], bits, settings.hidden)
            self.opposing = OpposingEvidence(bits)

    def optimizers(self, steps: int) -> Sequence[Descent]:
        """Adam at a constant rate for all weights."""
        optimizer = torch.optim.Adam(self.parameters(), self.settings.learning_rate, fused=True)
        return [constant_descent(optimizer, GRADIENT_NORM)]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """L = 2 (L_edl + L_3), of the evidence of all pairs of an image and a text."""
        image = unit_signs(self.model(batch.image, "image"))  # (b, B)
        text = unit_signs(self.model(batch.text, "text"))  # (b, B)
        supporting = evidence(image @ text.T, self.settings.temperature)  # (b, b)
        opposing = evidence(self.opposing(image, text), self.settings.temperature)  # (b, b)
        related = shared_labels(batch.labels) > 0
        true = torch.where(related, supporting, opposing)
        wrong = torch.where(related, opposing, supporting)
        weight = min(1.0, batch.epoch / self.settings.ramp_epochs)
        return {
            "likelihood": DIRECTIONS * likelihood_loss(true, wrong),
            "uniform": DIRECTIONS * weight * uniform_divergence(wrong),
            "missing": DIRECTIONS * (1 / (true + LEAST_EVIDENCE)).mean(),
        }


def unit_signs(relaxed: Tensor) -> Tensor:
    """(n, B) signs of unit length, whose gradient passes to the relaxed codes unchanged.

    Example:
        >>> unit_signs(torch.tensor([[0.6, -0.8, 0.0, 0.0]]))
        tensor([[ 0.5000, -0.5000,  0.5000,  0.5000]])
    """
    size = relaxed.shape[1] ** -0.5
    signs = torch.where(relaxed >= 0, size, -size).to(relaxed.dtype)
    return signs + (relaxed - relaxed.detach())  # in this order the value is that of the signs exactly


def evidence(scores: Tensor, temperature: float) -> Tensor:
    """exp(scores / temperature), with the exponent limited to -15 .. 15."""
    return torch.exp((scores / temperature).clamp(-EVIDENCE_RANGE, EVIDENCE_RANGE))


def likelihood_loss(true: Tensor, wrong: Tensor) -> Tensor:
    """Mean of log S - log alpha with alpha = true + 1 and S = true + wrong + 2: the first term of L_edl.

    Args:
        true: evidence for what is so. wrong: evidence for the opposite, of the same shape.

    Example:
        >>> round(float(likelihood_loss(torch.tensor([1.0]), torch.tensor([1.0]))), 4)  # log 2
        0.6931
    """
    return (torch.log(true + wrong + 2) - torch.log1p(true)).mean()


def uniform_divergence(wrong: Tensor) -> Tensor:
    """Mean of KL(Beta(1, a) || Beta(1, 1)) with a = wrong + 1: the second term of L_edl.

    With the first parameter 1 the gamma and digamma functions cancel: log a + 1/a - 1.

    Example:
        >>> float(uniform_divergence(torch.zeros(1)))
        0.0
    """
    return (torch.log1p(wrong) + 1 / (wrong + 1) - 1).mean()


DECH = Method(
    "dech",
    "DECH",
    "opinions on the relation of two codes, from evidence for it and against it",
    defaults=DechSettings(),
    learner=Dech,
    lengths="one",
    inputs="pooled",
    venue="AAAI 2025",
    source="fly2star/project_1 @ f89dac0, a third party's continuation; the authors' code is not public",
    differs="Evidence for and against a pair are matched in both directions, which then have equal losses; in the code "
    "read, text to image mixes up pairs. One hidden layer of 8192 units, as the 10.60 M parameters of the "
    "paper's table imply. 100 epochs instead of 200.",
)
