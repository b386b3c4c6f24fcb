"""VH-ABL: one long code learned from label affinity and class centres, its bits ordered by importance."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import rel_entr
from torch import Tensor, nn
from torch.nn import functional

from multibit.arrays import FloatArray, Labels
from multibit.codes.items import MODALITIES, Modality
from multibit.codes.layout import Layout
from multibit.config import EpochSettings
from multibit.features import Pairs
from multibit.hashing.code_model import CodeModel, TokenBatch
from multibit.hashing.layers import Columns, scale_rows
from multibit.hashing.learner import Batch, Descent, LossLearner, seeded
from multibit.hashing.losses import affinity
from multibit.hashing.methods.base import Method

RANKED_ITEMS = 5_000  # training items whose codes order the bits: bounds the time per epoch
NOWHERE = -1e30  # a logit that adds nothing to a sum of exponentials


@dataclass(frozen=True)
class VhAblSettings(EpochSettings):
    """The settings of VH-ABL."""

    lengths: tuple[int, ...] = (16, 32, 64, 128)  # target code lengths; the longest is the stored code
    image_hidden: int = 2048  # width of the hidden layer of the image network
    text_hidden: int = 1024  # width of the hidden layer of the text network
    dimension: int = 128  # width of the shared layers
    dropout: float = 0.1  # fraction of units dropped in training
    similarity_weight: float = 1.0  # weight of the label affinity
    class_weight: float = 1.0  # weight of the classifier
    attraction_weight: float = 0.01  # weight of the codes' attraction to the centres of their classes
    centre_weight: float = 0.01  # weight of the distances between centres
    label_weight: float = 1e-4  # weight of the labels predicted by the centres
    epochs: int = 100
    batch_size: int = 128  # published: 1,024
    learning_rate: float = 1e-3  # of Adam
    seed: int = 42  # of initial weights, batches and dropout

    SHARES = ("dropout",)
    WIDTHS = ("image_hidden", "text_hidden", "dimension")


class OrderedHash(CodeModel, network="ordered hash"):
    """A network for each modality, shared last layers, and an order of the bits, most important first.

    Attributes:
        projections: modality -> network to the shared width. head: shared layers with the K bits as tanh.
        order: (K,) int64 buffer, the bit of the head at each position of the code.

    Example:
        >>> model = OrderedHash(image_dim=20, text_dim=12, bits=8, image_hidden=16, text_hidden=16, dimension=8)
        >>> model.encode(np.zeros((3, 12)), "text").shape
        (3, 8)
    """

    order: Tensor

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        bits: int,
        image_hidden: int = 2048,
        text_hidden: int = 1024,
        dimension: int = 128,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(
            Layout((bits,)), image_dim=image_dim, text_dim=text_dim, bits=bits, image_hidden=image_hidden,
            text_hidden=text_hidden, dimension=dimension, dropout=dropout,
        )  # fmt: skip
        widths = {"image": (image_dim, image_hidden), "text": (text_dim, text_hidden)}
        self.projections = nn.ModuleDict(
            {modality: _projection(*widths[modality], dimension, dropout) for modality in MODALITIES}
        )
        self.head = nn.Sequential(
            nn.Linear(dimension, dimension), nn.ReLU(), nn.Linear(dimension, dimension), nn.ReLU(),
            nn.Linear(dimension, bits), nn.BatchNorm1d(bits), nn.Tanh(),
            nn.Linear(bits, dimension), nn.ReLU(), nn.Linear(dimension, bits), nn.Tanh(),
        )  # fmt: skip
        self.register_buffer("order", torch.arange(bits))

    @property
    def flops(self) -> int:
        """Floating-point operations to code one image and one text; both pass through the head."""
        head = sum(layer.weight.numel() for layer in self.head if isinstance(layer, nn.Linear))
        return super().flops + 2 * head

    def forward(self, features: Tensor, modality: Modality, tokens: TokenBatch | None = None) -> Tensor:
        """(n, d_m) features -> (n, K) relaxed code in [-1, 1], of which every prefix has the most important bits."""
        code: Tensor = self.head(self.embed(features, modality))
        return code[:, self.order]

    def stacks(self, modality: Modality) -> list[list[nn.Module]]:
        """See `CodeModel.stacks`."""
        return [[*cast(nn.Sequential, self.projections[modality]), *self.head, Columns(self.order)]]

    def embed(self, features: Tensor, modality: Modality) -> Tensor:
        """(n, d_m) features -> (n, dimension) shared feature."""
        return self.projections[modality](scale_rows(features))  # type: ignore[no-any-return]

    def both(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Relaxed codes of b items, in the head's own order: (b, K) of the images, (b, K) of the texts.

        The shared batch norm sees both modalities together, as its running means do.
        """
        shared = torch.cat([self.embed(image, "image"), self.embed(text, "text")])  # (2b, dimension)
        of_images, of_texts = self.head(shared).chunk(2)
        return of_images, of_texts


def _projection(inputs: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    widths = (inputs, inputs, hidden, outputs)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh(), nn.BatchNorm1d(after), nn.Dropout(dropout)]
    return nn.Sequential(*layers)


class VhAbl(LossLearner):
    """Label affinity, a classifier, and class centres that attract the codes of their items.

    Attributes:
        classifier: (K) -> (C). centres: (C, K).
    """

    parts = ("affinity", "classes", "attraction", "centres", "labels", "total")
    smallest_batch = 2  # of batch norm
    needs_unrelated = True
    full_batches = True
    model: OrderedHash

    def __init__(self, training: Pairs, settings: VhAblSettings) -> None:
        super().__init__(training, settings)
        self.settings = settings
        dimensions = training.image.shape[1], training.text.shape[1]
        bits, classes = settings.code_bits, training.labels.shape[1]
        with seeded(settings.seed):
            self.model = OrderedHash(
                *dimensions, bits, settings.image_hidden, settings.text_hidden, settings.dimension, settings.dropout
            )
            self.classifier = nn.Linear(bits, classes)
            self.centres = nn.Parameter(torch.randn(classes, bits))
        rows = np.unique(np.linspace(0, len(training) - 1, RANKED_ITEMS).astype(np.int64))  # all, or evenly spaced
        self._ranked = training.image[rows], training.mean_text[rows], training.labels[rows]

    def optimizers(self, steps: int) -> list[Descent]:
        """Adam with a constant rate."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.settings.learning_rate, fused=True)
        return [Descent(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0))]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The weighted terms of a batch."""
        return self.terms(*self.model.both(batch.image, batch.text), batch.labels)

    def terms(self, image: Tensor, text: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The weighted terms of (b, K) relaxed codes of both modalities and (b, C) multi-hot labels.

        As published: L_sim, L_clf, L_it, -L_cen (published: +L_cen, which pulls the centres together) and L_sup.
        The affinity term is the mean of the squared errors within the images, within the texts and between them; the
        terms of single codes are means over both modalities. So all weights keep their published ratios.
        """
        settings = self.settings
        codes, targets = torch.cat([image, text]), torch.cat([labels, labels])  # (2b, K), (2b, C)
        logits = codes @ self.centres.T  # (2b, C)
        predicted = torch.sigmoid(self.classifier(codes))
        return {
            "affinity": settings.similarity_weight * affinity_error(image, text, labels),
            "classes": settings.class_weight * functional.mse_loss(predicted, targets),
            "attraction": settings.attraction_weight * attraction(logits / codes.shape[1], targets),
            "centres": -settings.centre_weight * separation(self.centres),
            "labels": settings.label_weight * functional.binary_cross_entropy_with_logits(logits, targets),
        }

    def end_epoch(self, epoch: int) -> None:
        """Order the bits by their importance for the training items."""
        image, text, labels = self._ranked
        codes = np.concatenate([self.model.encode(image, "image"), self.model.encode(text, "text")])  # (2n, K)
        importance = bit_importance(codes >= 0, np.concatenate([labels, labels]))
        ranking = np.argsort(-importance, kind="stable")
        self.model.order.copy_(self.model.order[torch.from_numpy(ranking)])


def affinity_error(image: Tensor, text: Tensor, labels: Tensor) -> Tensor:
    """L_sim: () mean squared error of cosines and label affinity, of image-image, text-text and image-text pairs.

    Args:
        image, text: (b, K) relaxed codes. labels: (b, C).
    """
    wanted = affinity(labels)  # (b, b)
    u, v = functional.normalize(image, dim=1), functional.normalize(text, dim=1)
    errors = [functional.mse_loss(first @ second.T, wanted) for first, second in ((u, u), (v, v), (u, v))]
    return torch.stack(errors).mean()


def attraction(logits: Tensor, labels: Tensor) -> Tensor:
    """L_it: () mean over items of the mean over their labels of -log[e^l_c / (e^l_c + sum of e^l of absent labels)].

    Items without labels do not count.

    Args:
        logits: (m, C) l = h.c / K of codes and centres. labels: (m, C) multi-hot.

    Example:
        >>> round(float(attraction(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, 0.0]]))), 4)  # log 3
        1.0986
    """
    absent = logits.masked_fill(labels > 0, NOWHERE).logsumexp(dim=1, keepdim=True)  # (m, 1)
    counts = labels.sum(dim=1)  # (m,)
    errors = (functional.softplus(absent - logits) * labels).sum(dim=1) / counts.clamp(min=1)
    return errors.sum() / (counts > 0).sum().clamp(min=1)


def separation(centres: Tensor) -> Tensor:
    """L_cen: () mean and smallest distance of two centres, added and divided by K; 0 for a single centre."""
    distances = torch.pdist(centres)  # (C (C - 1) / 2,)
    if not len(distances):
        return centres.new_zeros(())
    return (distances.mean() + distances.min()) / centres.shape[1]


def bit_importance(codes: NDArray[np.bool_], labels: Labels) -> FloatArray:
    """(K,) information of each bit about the labels: sum over labels of the mutual information, in nats.

    Args:
        codes: (n, K) bits. labels: (n, C) multi-hot.

    Example:
        >>> bit_importance(np.array([[1, 1], [0, 1]], bool), np.array([[1], [0]], np.uint8)).round(4)
        array([0.6931, 0.    ])
    """
    n, present = len(codes), labels.astype(np.float64)
    both = codes.T.astype(np.float64) @ present  # (K, C) exact counts of items with the bit set and the label
    bit, label = codes.sum(axis=0)[:, None], present.sum(axis=0)[None]  # (K, 1), (1, C)
    cells = [
        (both, bit, label), (bit - both, bit, n - label),
        (label - both, n - bit, label), (n - bit - label + both, n - bit, n - label),
    ]  # fmt: skip
    information: FloatArray = sum(rel_entr(joint, first * second / n) for joint, first, second in cells)  # (K, C)
    return information.sum(axis=1) / n  # type: ignore[no-any-return]


VH_ABL = Method(
    "vh-abl", "VH-ABL", "one code from label affinity and class centres, its bits ordered by importance",
    defaults=VhAblSettings(), learner=VhAbl, lengths="nested", venue="TMM 2026",
    source="vindahi/VH-ABL @ 7ac778f, e744f45",
    differs=(
        "Low fidelity: the public code is incomplete, and no published loss trains its bit scores, so the order of the "
        "bits is reconstructed as their mutual information with the labels of the training items, after each epoch. "
        "Labels are not an input, and image and text are not fused but have a network each, with shared last layers; "
        "class centres are pushed apart, where the published sign pulls them together."
    ),
)  # fmt: skip
