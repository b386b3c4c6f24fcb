"""DSTH: a hypergraph of the batch from class distributions, and rankings of all tuples of an anchor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from multibit.codes.items import MODALITIES
from multibit.config import EpochSettings
from multibit.features import Pairs
from multibit.hashing.learner import Batch, Descent, LossLearner, seeded
from multibit.hashing.linear_hash import LinearHash
from multibit.hashing.losses import shared_labels, soft_label_cross_entropy, squared_deviation
from multibit.hashing.methods.base import Method
from multibit.hashing.optimizers import bert_descent

LEAST_DIFFERENCE, LARGEST_DIFFERENCE = -100.0, 50.0  # limits of what a tuple's loss depends on
TUPLES_AT_ONCE = 2**18  # bounds the memory of the tuplet loss, and keeps it in the processor's cache
TINY = 1e-12


@dataclass(frozen=True)
class DsthSettings(EpochSettings):
    """The settings of DSTH.

    Raises:
        ConfigError: a value is out of range.
    """

    lengths: tuple[int, ...] = (16, 32, 64, 128)  # target code lengths, each with a model of its own
    hidden: int = 1024  # width of the hypergraph network
    distance_scale: float = 0.1  # of the distance from a class, in the membership of its hyperedge
    margin: float = 0.5  # of the inner product with a positive item over that with a negative one
    quantization_weight: float = 0.1
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3
    seed: int = 42  # of initial weights, batches and dropout; the split has its own


class Hypergraph(nn.Module):
    """Classifies the codes of a batch by two hypergraph convolutions, with a hyperedge for each class in the batch.

    Attributes:
        means, log_variances: (C, B) of the classes' distributions. hidden, norm, last: layers.
    """

    def __init__(self, bits: int, classes: int, hidden: int, distance_scale: float) -> None:
        super().__init__()
        self.distance_scale = distance_scale
        self.means, self.log_variances = (nn.Parameter(torch.empty(classes, bits)) for _ in range(2))
        for weights in (self.means, self.log_variances):
            nn.init.kaiming_normal_(weights, mode="fan_out")
        self.hidden = nn.Linear(bits, hidden)
        self.norm = nn.BatchNorm1d(hidden, track_running_stats=False)  # used in training only
        self.last = nn.Linear(hidden, classes)

    def forward(self, codes: Tensor, labels: Tensor) -> Tensor:
        """(b, B) codes and (b, C) multi-hot labels, b >= 2 -> (b, C) logits G last(lrelu(norm(G hidden(u))))."""
        incidence = self.incidence(codes, labels)  # (b, C)
        hidden = self.norm(propagate(incidence, self.hidden(codes)))  # (b, hidden)
        return propagate(incidence, self.last(functional.leaky_relu(hidden, 0.1)))

    def incidence(self, codes: Tensor, labels: Tensor) -> Tensor:
        """(b, C) H = y + (1 - y) exp(-scale d) of the classes in the batch, 0 for the others.

        d is the squared Mahalanobis distance of the unit code from the unit mean of the class.
        """
        units, means = functional.normalize(codes, dim=1), functional.normalize(self.means, dim=1)
        precisions = torch.exp(-functional.relu6(self.log_variances))  # (C, B)
        distances = (
            units.square() @ precisions.T
            - 2 * units @ (means * precisions).T
            + (means.square() * precisions).sum(dim=1)
        )  # (b, C), expanded so that no (b, C, B) tensor is made
        present = labels.any(dim=0)  # (C,)
        return (labels + (1 - labels) * torch.exp(-self.distance_scale * distances)) * present


def propagate(incidence: Tensor, values: Tensor) -> Tensor:
    """G values with G = Dv^(-1/2) H De^(-1) H^T Dv^(-1/2), one factor after the other; an empty hyperedge adds nothing.

    Args:
        incidence: (b, C) H. values: (b, d).

    Example:
        >>> propagate(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[2.0], [4.0]]))
        tensor([[3.],
                [3.]])
    """
    of_nodes = incidence.sum(dim=1, keepdim=True).clamp(min=TINY).rsqrt()  # (b, 1)
    of_edges = incidence.sum(dim=0)[:, None].clamp(min=TINY).reciprocal()  # (C, 1)
    return of_nodes * (incidence @ (of_edges * (incidence.T @ (of_nodes * values))))


class Dsth(LossLearner):
    """Hypergraph classification of each modality, and tuplet rankings inside and across modalities.

    Attributes:
        model: linear hash layers. hypergraphs: modality -> its hypergraph network.
    """

    parts = ("hypergraph", "tuplet", "quantization", "total")
    smallest_batch = 2
    needs_unrelated = True
    full_batches = True

    def __init__(self, training: Pairs, settings: DsthSettings) -> None:
        super().__init__(training, settings)
        self.settings = settings
        bits, classes = settings.code_bits, training.labels.shape[1]
        with seeded(settings.seed):
            self.model = LinearHash(training.image.shape[1], training.text.shape[1], bits)
            self.hypergraphs = nn.ModuleDict(
                {name: Hypergraph(bits, classes, settings.hidden, settings.distance_scale) for name in MODALITIES}
            )

    def optimizers(self, steps: int) -> Sequence[Descent]:
        """BertAdam for all weights."""
        return [bert_descent(self.parameters(), self.settings.learning_rate, steps)]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """L = L_hg + T(u_i, u_i) + T(u_t, u_t) + T(u_i, u_t), each T with the quantisation of its first codes."""
        image: Tensor = self.model(batch.image, "image")  # (b, B)
        text: Tensor = self.model(batch.text, "text")  # (b, B)
        classified = [
            soft_label_cross_entropy(self.hypergraphs[name](codes, batch.labels), batch.labels)
            for name, codes in (("image", image), ("text", text))
        ]
        related = shared_labels(batch.labels) > 0
        ranked = [
            tuplet_loss(left @ right.T, related, self.settings.margin)
            for left, right in ((image, image), (text, text), (image, text))
        ]
        deviation = 2 * squared_deviation(image) + squared_deviation(text)
        return {
            "hypergraph": torch.stack(classified).sum(),
            "tuplet": torch.stack(ranked).sum(),
            "quantization": self.settings.quantization_weight * deviation,
        }


class _TupletSums(torch.autograd.Function):
    """For each anchor, the sum of softplus(-t) over its positives p and negatives n, t = s_p - s_n - margin limited.

    The slope is computed together with the value, for a few anchors at a time: fast, and in bounded memory. Anchors
    with about as many positives go together, each with its positives first, so that hardly more than the tuples is
    computed.
    """

    @staticmethod
    def forward(ctx: Any, similarity: Tensor, related: Tensor, margin: float) -> Tensor:
        """(b, b) similarity, (b, b) bool -> (b,)."""
        infinity = float("inf")
        near = similarity.masked_fill(~related, infinity) - margin  # an item that is not positive has no loss
        far = similarity.masked_fill(related, -infinity)
        positives = related.sum(dim=1)  # (b,)
        columns = related.to(torch.int8).argsort(dim=1, descending=True)  # (b, b), positives first
        sums, slopes = torch.zeros_like(similarity[:, 0]), torch.zeros_like(similarity)
        anchors = positives.argsort()
        for rows in torch.split(anchors, max(1, TUPLES_AT_ONCE // similarity.shape[1] ** 2)):
            least, most = int(positives[rows[0]]), int(positives[rows[-1]])
            first, last = columns[rows, :most], columns[rows, least:]  # (r, p), (r, n)
            minus_t = far[rows].gather(1, last)[:, None] - near[rows].gather(1, first)[:, :, None]  # (r, p, n)
            slope = torch.sigmoid(minus_t.clamp(min=-LARGEST_DIFFERENCE))
            slope.masked_fill_(minus_t > -LEAST_DIFFERENCE, 0)
            sums[rows] = functional.softplus(minus_t.clamp_(-LARGEST_DIFFERENCE, -LEAST_DIFFERENCE)).sum(dim=(1, 2))
            of_rows = torch.zeros_like(similarity[rows]).scatter_add(1, last, slope.sum(dim=1))
            slopes[rows] = of_rows.scatter_add(1, first, -slope.sum(dim=2))
        ctx.save_for_backward(slopes)
        return sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """(b,) gradients of the sums -> (b, b) of the similarity."""
        (slopes,) = ctx.saved_tensors
        return gradients[0][:, None] * slopes, None, None


def tuplet_loss(similarity: Tensor, related: Tensor, margin: float) -> Tensor:
    """T: mean over anchors of the mean over their positives p and negatives n of softplus(-t).

    t = clamp(s_p - s_n - margin, -100, 50). Anchors without a positive or without a negative do not count.

    Args:
        similarity: (b, b) inner products of the anchors with all items. related: (b, b) bool.

    Returns:
        () 0 where no anchor counts.

    Example:
        >>> related = torch.tensor([[True, False], [False, False]])
        >>> round(float(tuplet_loss(torch.tensor([[1.0, 0.5], [9.0, 9.0]]), related, margin=0.5)), 4)  # log 2
        0.6931
    """
    positives = related.sum(dim=1)  # (b,)
    tuples = positives * (related.shape[1] - positives)  # (b,)
    sums: Tensor = _TupletSums.apply(similarity, related, margin)  # type: ignore[no-untyped-call]
    return (sums / tuples.clamp(min=1)).sum() / (tuples > 0).sum().clamp(min=1)


DSTH = Method(
    "dsth",
    "DSTH",
    "hypergraph classification of the batch, and rankings of all tuples of an anchor",
    defaults=DsthSettings(),
    learner=Dsth,
    lengths="one",
    inputs="pooled",
    venue="TMM 2026",
    source="QinLab-WFU/DSTH @ 7c046a7",
    differs="CLIP is frozen, so the neighbour-aware loss on its features, L_nasa, changes no code and is left out. The "
    "hash layers start small instead of with Kaiming's initial weights, which saturate tanh on inputs of unit values.",
)
