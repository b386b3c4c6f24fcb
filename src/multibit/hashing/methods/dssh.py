"""DSSH: codes as von Mises-Fisher distributions, classified by proxies that are distributions too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from multibit.config import EpochSettings
from multibit.features import Pairs
from multibit.hashing.learner import Batch, Descent, LossLearner, seeded
from multibit.hashing.linear_hash import LinearHash
from multibit.hashing.losses import soft_label_cross_entropy
from multibit.hashing.methods.base import Method
from multibit.hashing.optimizers import bert_descent
from multibit.hashing.von_mises_fisher import draw_noise, log_normalizer, mean_shrinkage, place

FIRST_RESULTANT = 0.7  # length of the mean of a proxy's distribution at the start


@dataclass(frozen=True)
class DsshSettings(EpochSettings):
    """The settings of DSSH."""

    lengths: tuple[int, ...] = (16, 32, 64, 128)  # target code lengths, each with a model of its own
    samples: int = 32  # S, directions drawn for each code to estimate its partition function
    proxy_rate: float = 0.1  # learning rate of the proxies, as a multiple of that of the hash layers
    temperature_rate: float = 0.01  # learning rate of the log-temperature, as a multiple of that of the hash layers
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3  # of the hash layers
    seed: int = 42  # of initial weights, batches, dropout and samples; the split has its own


class Dssh(LossLearner):
    """A code is the natural parameter of a von Mises-Fisher distribution: its length is the certainty.

    Attributes:
        model: linear hash layers. proxies: (C, B) natural parameters of the classes.
        log_temperature: () t, whose exp(-t) multiplies the logits.
    """

    parts = ("image", "text", "mean", "similarity", "total")
    needs_unrelated = True
    full_batches = True

    def __init__(self, training: Pairs, settings: DsshSettings) -> None:
        super().__init__(training, settings)
        self.settings = settings
        with seeded(settings.seed):
            self.model = LinearHash(training.image.shape[1], training.text.shape[1], settings.code_bits)
            self.proxies = nn.Parameter(first_proxies(training.labels.shape[1], settings.code_bits))
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def optimizers(self, steps: int) -> list[Descent]:
        """BertAdam, with smaller learning rates for the proxies and the temperature."""
        rate = self.settings.learning_rate
        groups: list[dict[str, Any]] = [
            {"params": list(self.model.parameters())},
            {"params": [self.proxies], "lr": self.settings.proxy_rate * rate},
            {"params": [self.log_temperature], "lr": self.settings.temperature_rate * rate},
        ]
        return [bert_descent(groups, rate, steps)]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """L = L_vmf(u_i) + L_vmf(u_t) + L_vmf((u_i + u_t) / 2) + L_sim.

        Only items with a label count in L_vmf.
        """
        image: Tensor = self.model(batch.image, "image")  # (b, B)
        text: Tensor = self.model(batch.text, "text")  # (b, B)
        codes = torch.cat([image, text, (image + text) / 2])  # (3b, B), so that all samples are drawn together
        noise = draw_noise(codes.detach().norm(dim=1), codes.shape[1], self.settings.samples)
        samples = place(noise, codes)  # (3b, S, B)
        labels = batch.labels.repeat(3, 1)  # (3b, C)
        values = von_mises_fisher_loss(codes, samples, labels, self.proxies, torch.exp(-self.log_temperature))
        labelled = batch.labels.any(dim=1)  # (b,)
        means = (values.reshape(3, -1) * labelled).sum(dim=1) / labelled.sum().clamp(min=1)  # (3,)
        return dict(zip(self.parts, [*means, similarity_loss(image, text, batch.labels)], strict=False))


def first_proxies(classes: int, bits: int) -> Tensor:
    """(C, B) normal values, so long that the mean of each distribution has about the length 0.7."""
    dimension = max(bits, 2)
    scale = FIRST_RESULTANT / (1 - FIRST_RESULTANT**2) * (dimension - 1) / math.sqrt(dimension)
    return scale * torch.randn(classes, bits)


def von_mises_fisher_loss(codes: Tensor, samples: Tensor, labels: Tensor, proxies: Tensor, beta: Tensor) -> Tensor:
    """L_vmf of each code: the softmax cross-entropy of distributions with the distributions of the classes.

    mean_s log sum_c exp[log C(|p_c|) - log C(|p_c + beta z_s|)] - beta <m(sum_c y_c p_c), m(u)>, where m is the mean
    of a distribution.

    Args:
        codes: (n, B) u. samples: (n, S, B) directions z drawn from the distributions of the codes.
        labels: (n, C) multi-hot y. proxies: (C, B) p. beta: () inverse temperature.

    Returns:
        (n,) values.

    Example:
        >>> codes, samples, proxies = torch.zeros(1, 4), torch.eye(4)[None], torch.zeros(3, 4)
        >>> values = von_mises_fisher_loss(codes, samples, torch.ones(1, 3), proxies, torch.zeros(()))
        >>> round(float(values[0].exp()), 4)  # three classes that are alike
        3.0
    """
    bits = max(codes.shape[1], 2)  # one bit has the formulas of a circle, which are smooth at 0
    squares = proxies.square().sum(dim=1)  # (C,)
    combined = torch.addmm(squares + beta.square(), samples.flatten(0, 1), 2 * beta * proxies.T)  # |p_c + beta z_s|^2
    partition = torch.logsumexp(log_normalizer(squares, bits) - log_normalizer(combined, bits), dim=1)  # (nS,)
    attraction: Tensor = (_mean(labels @ proxies, bits) * _mean(codes, bits)).sum(dim=1)  # (n,)
    return partition.reshape(len(codes), -1).mean(dim=1) - beta * attraction


def _mean(natural: Tensor, bits: int) -> Tensor:
    """(n, B) means of the distributions of (n, B) natural parameters."""
    return natural * mean_shrinkage(natural.square().sum(dim=1, keepdim=True), bits)


def similarity_loss(image: Tensor, text: Tensor, labels: Tensor) -> Tensor:
    """L_sim: in the batch, the inner products of codes rank items by their number of shared labels.

    Args:
        image, text: (b, B) codes. labels: (b, C) multi-hot.

    Returns:
        () sum of the cross-entropies image to text, image to image and text to text. The targets are counts.
    """
    counts = labels @ labels.T  # (b, b)
    pairs = ((image, text), (image, image), (text, text))
    return torch.stack([soft_label_cross_entropy(left @ right.T, counts) for left, right in pairs]).sum()


DSSH = Method(
    "dssh",
    "DSSH",
    "von Mises-Fisher codes with class proxies, whose partition function is sampled",
    defaults=DsshSettings(),
    learner=Dssh,
    lengths="one",
    inputs="pooled",
    venue="TKDE 2026",
    source="QinLab-WFU/DSSH @ 3c17ffb",
    differs="CLIP is frozen, each code has 32 samples instead of one per training item, and items without a label do "
    "not count in the proxy loss, where the published code gives them a random class. The learning rate peaks at 1e-3 "
    "after a warm-up; the published 0.1 with a warm-up that never ends is 1e-3 on average over 100 epochs.",
)
