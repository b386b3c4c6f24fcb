"""DNPH: codes near the proxies of their labels, and spread uniformly by matching them to random codes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional

from multibit.config import EpochSettings
from multibit.features import Pairs
from multibit.hashing.learner import Batch, Descent, LossLearner, seeded
from multibit.hashing.linear_hash import LinearHash
from multibit.hashing.losses import soft_label_cross_entropy
from multibit.hashing.methods.base import Method
from multibit.hashing.optimizers import bert_descent, constant_descent


@dataclass(frozen=True)
class DnphSettings(EpochSettings):
    """The settings of DNPH."""

    lengths: tuple[int, ...] = (16, 32, 64, 128)  # target code lengths, each with a model of its own
    margin: float = 1.0  # m, added to the squared distance from the proxies of an item's own labels
    noise_weight: float = 0.1  # weight of the agreement with the random codes
    proxy_rate: float = 1e-4  # learning rate of the proxies; 0 leaves them as drawn
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3  # of the hash layers
    seed: int = 42  # of initial weights, batches, dropout and random codes; the split has its own


class Dnph(LossLearner):
    """Proxies of the classes on the sphere, and a uniform distribution of the codes.

    Attributes:
        model: linear hash layers. proxies: (C, B), one for each label, shared by both modalities.
    """

    parts = ("proxy", "uniform", "total")

    def __init__(self, training: Pairs, settings: DnphSettings) -> None:
        super().__init__(training, settings)
        self.settings = settings
        with seeded(settings.seed):
            self.model = LinearHash(training.image.shape[1], training.text.shape[1], settings.code_bits)
            self.proxies = nn.Parameter(torch.randn(training.labels.shape[1], settings.code_bits) / 8)

    def optimizers(self, steps: int) -> list[Descent]:
        """BertAdam for the hash layers, plain gradient descent at a constant rate for the proxies."""
        proxies = torch.optim.SGD([self.proxies], self.settings.proxy_rate)
        layers = bert_descent(self.model.parameters(), self.settings.learning_rate, steps)
        return [layers, constant_descent(proxies)]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """L = L_p - noise_weight * L_u."""
        image, text = self.model(batch.image, "image"), self.model(batch.text, "text")  # (b, B)
        codes, labels = torch.cat([image, text]), batch.labels.repeat(2, 1)  # (2b, B), (2b, C)
        targets = 2 * torch.randint_like(image, 2) - 1  # (b, B) of -1 and 1, new for every batch
        agreement = matched_agreement(image, targets) + matched_agreement(text, targets)
        return {
            "proxy": proxy_loss(codes, labels, self.proxies, self.settings.margin),
            "uniform": -self.settings.noise_weight * agreement,
        }


def proxy_loss(codes: Tensor, labels: Tensor, proxies: Tensor, margin: float) -> Tensor:
    """L_p = mean_n sum_c -y_nc log softmax_c(-D_nc), with D_nc = |f_n - p_c|^2 + m y_nc of unit vectors f and p.

    Args:
        codes: (n, B). labels: (n, C) multi-hot; an item without a label contributes 0. proxies: (C, B). margin: m.

    Example:
        >>> codes, labels = torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]])
        >>> loss = proxy_loss(codes, labels, torch.tensor([[2.0, 0.0], [-1.0, 0.0]]), margin=1.0)
        >>> round(float(loss), 4)  # log(1 + exp(1 - 4))
        0.0486
    """
    cosines = functional.normalize(codes, dim=1) @ functional.normalize(proxies, dim=1).T  # (n, C)
    distances = 2 - 2 * cosines + margin * labels
    return soft_label_cross_entropy(-distances, labels)


def matched_agreement(codes: Tensor, targets: Tensor) -> Tensor:
    """Mean inner product of codes with targets, which are first assigned to them at the least total distance.

    Args:
        codes: (n, B). targets: (n, B).

    Returns:
        () differentiable by the codes; the assignment is constant.

    Example:
        >>> codes = torch.tensor([[0.9, 0.8], [-0.7, -0.6]])
        >>> round(float(matched_agreement(codes, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))), 4)
        1.5
    """
    distances = torch.cdist(codes.detach(), targets)  # (n, n)
    _, columns = linear_sum_assignment(distances.cpu().numpy())
    return (codes * targets[torch.from_numpy(columns).to(targets.device)]).sum(dim=1).mean()


DNPH = Method(
    "dnph",
    "DNPH",
    "proxies of the labels with a margin, and codes matched to random ones",
    defaults=DnphSettings(),
    learner=Dnph,
    lengths="one",
    inputs="pooled",
    venue="TOMM 2024",
    source="QinLab-WFU/OUR-DNPH @ e3f19ec",
    differs="CLIP is frozen, so the classifiers on its features change no code and are left out. The proxies follow "
    "plain gradient descent at 1e-4, as was intended; the published code never updates them.",
)
