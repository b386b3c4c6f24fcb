"""DIMCH: an item as a small set of diverse instances, and a code that is the mean of the set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from multibit.codes.items import MODALITIES, Modality
from multibit.codes.layout import Layout
from multibit.config import EpochSettings
from multibit.features import Pairs
from multibit.hashing.code_model import CodeModel, TokenBatch
from multibit.hashing.layers import scale_rows, scale_tokens
from multibit.hashing.learner import Batch, Descent, LossLearner, seeded
from multibit.hashing.losses import kernel_discrepancy, mean_triplet_hinge, shared_labels, squared_deviation
from multibit.hashing.methods.base import Method
from multibit.hashing.optimizers import bert_descent

KERNEL = 3  # neighbouring values of a token that the convolution sees
DIVERSITY_SCALE = 20.0  # of the squared distance of two instances
TINY = 1e-12


@dataclass(frozen=True)
class DimchSettings(EpochSettings):
    """The settings of DIMCH.

    Raises:
        ConfigError: a value is out of range.
    """

    lengths: tuple[int, ...] = (16, 32, 64, 128)  # target code lengths, each with a model of its own
    instances: int = 8  # M, in the set of an item
    hidden: int = 256  # width of the hidden layer that an instance passes through
    dropout: float = 0.3  # fraction of hidden units dropped in training
    sharpness: float = 16.0  # tau: the larger, the more a set is compared by its most similar instances
    margin: float = 0.3  # of the distance of an unrelated item over that of a related one
    set_weight: float = 50.0  # weight of the triplets of sets
    discrepancy_weight: float = 1.0  # weight of the difference of the modalities' distributions
    diversity_weight: float = 0.3  # weight of the closeness of the instances of a set
    code_weight: float = 50.0  # weight of the triplets of codes
    quantization_weight: float = 1.0
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3
    seed: int = 42  # of initial weights, batches and dropout; the split has its own

    POSITIVE = ("learning_rate", "sharpness")
    SHARES = ("dropout",)
    WIDTHS = ("instances", "hidden")


class InstanceHead(nn.Module):
    """Tokens -> a set of instances: a convolution along the values of the tokens, then two layers.

    Attributes:
        mix: every instance is a mixture of all tokens. layers: of each instance.
    """

    def __init__(self, shape: Sequence[int], bits: int, instances: int, hidden: int, dropout: float) -> None:
        super().__init__()
        tokens, dimension = shape
        self.mix = nn.Conv1d(tokens, instances, KERNEL, padding=KERNEL // 2)
        self.layers = nn.Sequential(
            nn.Linear(dimension, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, bits)
        )
        for layer in self.modules():
            if isinstance(layer, (nn.Conv1d, nn.Linear)):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, tokens: Tensor) -> Tensor:
        """(b, t, d) -> (b, M, B) instances."""
        return self.layers(functional.relu(self.mix(tokens)))  # type: ignore[no-any-return]


class InstanceSets(CodeModel, network="dimch"):
    """Tokens of either modality -> a set of M instances -> tanh of their mean.

    The first token of an image is its pooled vector, the class token; of a text, the token of its end is one of its
    own. Tokens are scaled to the length sqrt(d); padding is zero. Without tokens, the pooled vector is the only one.

    Attributes:
        class_token: pooled vector of an image -> length of its tokens. heads: modality -> its layers.

    Example:
        >>> model = InstanceSets(image_dim=20, text_dim=12, bits=8)
        >>> model.encode(torch.zeros(3, 12), "text").shape
        (3, 8)
    """

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        bits: int,
        tokens: Mapping[Modality, Sequence[int]] | None = None,
        instances: int = 8,
        hidden: int = 256,
        dropout: float = 0.3,
    ) -> None:
        super().__init__(
            Layout((bits,)), image_dim=image_dim, text_dim=text_dim, bits=bits, tokens=tokens, instances=instances,
            hidden=hidden, dropout=dropout,
        )  # fmt: skip
        self.shapes: dict[Modality, tuple[int, int]] = {"image": (1, image_dim), "text": (1, text_dim)}
        if tokens is not None:
            (count, dimension), (words, word_dimension) = (tokens[modality] for modality in MODALITIES)
            self.shapes = {"image": (1 + count, dimension), "text": (words, word_dimension)}
            self.class_token = nn.Identity() if image_dim == dimension else nn.Linear(image_dim, dimension)
        self.heads = nn.ModuleDict(
            {name: InstanceHead(shape, bits, instances, hidden, dropout) for name, shape in self.shapes.items()}
        )

    @property
    def flops(self) -> int:
        """Floating-point operations to code one image and one text: of the convolutions and all matrices."""
        instances, hidden = self.sizes["instances"], self.sizes["hidden"]
        products: int = sum(
            instances * (KERNEL * tokens * dimension + dimension * hidden + hidden * self.bits)
            for tokens, dimension in self.shapes.values()
        )
        dimension = self.shapes["image"][1]
        return 2 * (products + self.image_dim * dimension * (self.image_dim != dimension))

    def sets(self, features: Tensor, modality: Modality, tokens: TokenBatch | None = None) -> Tensor:
        """(n, d_m) features and (n, t, d) tokens -> (n, M, B) instances."""
        pooled = scale_rows(features)[:, None]  # (n, 1, d_m)
        if not self.reads_tokens:
            return self.heads[modality](pooled)  # type: ignore[no-any-return]
        assert tokens is not None
        vectors = scale_tokens(tokens)  # (n, t, d)
        if modality == "image":
            vectors = torch.cat([self.class_token(pooled), vectors], dim=1)
        return self.heads[modality](vectors)  # type: ignore[no-any-return]

    def forward(self, features: Tensor, modality: Modality, tokens: TokenBatch | None = None) -> Tensor:
        """(n, d_m) features and (n, t, d) tokens -> (n, B) relaxed code in (-1, 1)."""
        return mean_code(self.sets(features, modality, tokens))


def mean_code(instances: Tensor) -> Tensor:
    """(n, M, B) instances -> (n, B) tanh of their mean."""
    return torch.tanh(instances.mean(dim=1))


class Dimch(LossLearner):
    """Triplets of sets and of codes, equal distributions of both modalities, and diverse sets.

    Attributes:
        model: tokens -> sets.
    """

    parts = ("sets", "discrepancy", "diversity", "codes", "quantization", "total")
    needs_unrelated = True
    full_batches = True
    reads_tokens: ClassVar[bool] = True
    model: InstanceSets

    def __init__(self, training: Pairs, settings: DimchSettings) -> None:
        super().__init__(training, settings)
        self.settings = settings
        tokens = training.require_tokens() if self.reads_tokens else None
        inputs = training.image.shape[1], training.text.shape[1], settings.code_bits, tokens
        with seeded(settings.seed):
            self.model = InstanceSets(*inputs, settings.instances, settings.hidden, settings.dropout)

    def optimizers(self, steps: int) -> list[Descent]:
        """BertAdam for all weights."""
        return [bert_descent(self.parameters(), self.settings.learning_rate, steps)]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """L = 50 L_tok + MMD + 0.3 L_div + 50 L_hash + L_q, with the weights of the settings."""
        settings = self.settings
        sets = (
            self.model.sets(batch.image, "image", batch.image_tokens),
            self.model.sets(batch.text, "text", batch.text_tokens),
        )  # 2 x (b, M, B)
        image, text = (functional.normalize(each, dim=2) for each in sets)
        u_image, u_text = (mean_code(each) for each in sets)  # (b, B)
        far_sets = (1 - set_similarity(image, text, settings.sharpness)).clamp(min=0)  # (b, b)
        far_codes = 1 - functional.normalize(u_image, dim=1) @ functional.normalize(u_text, dim=1).T  # (b, b)
        deviation = (squared_deviation(u_image) + squared_deviation(u_text)) / 2
        closeness = mean_closeness(image) + mean_closeness(text)
        discrepancy = kernel_discrepancy(image.flatten(0, 1), text.flatten(0, 1))
        return {
            "sets": settings.set_weight * self._both_ways(far_sets, batch.labels),
            "discrepancy": settings.discrepancy_weight * discrepancy,
            "diversity": settings.diversity_weight * closeness,
            "codes": settings.code_weight * self._both_ways(far_codes, batch.labels),
            "quantization": settings.quantization_weight * deviation,
        }

    def _both_ways(self, distances: Tensor, labels: Tensor) -> Tensor:
        """1/2 [T(d) + T(d^T)] of (b, b) distances of images from texts."""
        weights, far = gain_weights(labels), shared_labels(labels) == 0  # (b, b)
        ways = [mean_triplet_hinge(each, weights, far, self.settings.margin) for each in (distances, distances.T)]
        return torch.stack(ways).mean()


class DimchPooled(Dimch):
    """DIMCH with sets that are made of the pooled vectors."""

    reads_tokens = False


def set_similarity(first: Tensor, second: Tensor, sharpness: float) -> Tensor:
    """Smooth Chamfer similarity of all pairs of sets: 1 for equal unit vectors, and at most log(M) / tau more.

    sim(X, T) = 1 / (2 M tau) (sum_x log sum_t exp(tau x.t) + sum_t log sum_x exp(tau x.t)).

    Args:
        first: (n, M, B) unit vectors x. second: (m, M, B) unit vectors t. sharpness: tau.

    Returns:
        (n, m).

    Example:
        >>> x = torch.eye(2)[None]
        >>> round(float(set_similarity(x, x, sharpness=16.0)), 4)
        1.0
    """
    instances = first.shape[1]
    cosines = first.flatten(0, 1) @ second.flatten(0, 1).T  # (n M, m M)
    powers = sharpness * cosines.view(len(first), instances, len(second), instances)
    of_first, of_second = powers.logsumexp(dim=3).sum(dim=1), powers.logsumexp(dim=1).sum(dim=2)  # (n, m)
    return (of_first + of_second) / (2 * instances * sharpness)


def gain_weights(labels: Tensor) -> Tensor:
    """(b, b) w = (2^s - 1) / Z of the s labels that two items share; Z is the best DCG of an anchor in the batch.

    Args:
        labels: (b, C) multi-hot. An anchor without related items has weights 0.

    Example:
        >>> gain_weights(torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]))[0]  # Z = 3 + 1 / log2(3)
        tensor([0.8262, 0.2754, 0.0000])
    """
    shared = labels @ labels.T  # (b, b)
    most = shared.amax(dim=1, keepdim=True)
    gains = torch.exp2(shared - most) - torch.exp2(-most)  # (2^s - 1) / 2^most, which no number of labels overflows
    ranks = torch.arange(2, len(labels) + 2, device=labels.device, dtype=labels.dtype)
    best = (gains.sort(dim=1, descending=True).values / ranks.log2()).sum(dim=1, keepdim=True)  # (b, 1)
    return gains / best.clamp(min=TINY)


def mean_closeness(instances: Tensor) -> Tensor:
    """Mean over items and over the pairs of different instances of an item of exp(-20 |x - y|^2); 0 for one instance.

    Args:
        instances: (b, M, B) unit vectors.
    """
    count = instances.shape[1]
    first, second = torch.triu_indices(count, count, offset=1, device=instances.device)  # (pairs,)
    cosines = (instances @ instances.transpose(1, 2))[:, first, second]  # (b, pairs)
    return torch.exp(-DIVERSITY_SCALE * (2 - 2 * cosines)).sum() / max(cosines.numel(), 1)


DIMCH = Method(
    "dimch",
    "DIMCH",
    "sets of diverse instances made of the tokens, and codes that are the mean of a set",
    defaults=DimchSettings(),
    learner=Dimch,
    lengths="one",
    inputs="tokens",
    tables=("tokens",),
    venue="TIP 2025",
    source="kalenforn/clip-based-cross-modal-hash @ 6d64ae2",
    differs="CLIP is frozen. The class token of an image is its pooled vector, mapped to the length of the patch "
    "vectors, and the padding of a text is zero. Diversity is that inside a set, as was intended, and not that of all "
    "instances of a batch; the published batches have 20 items.",
)
DIMCH_POOLED = replace(
    DIMCH,
    name="dimch-pooled",
    variant_of="dimch",
    title="DIMCH (pooled)",
    meaning="sets of diverse instances made of the pooled vector, and codes that are the mean of a set",
    learner=DimchPooled,
    inputs="pooled",
    tables=("pooled",),
    differs="CLIP is frozen, and its pooled vector is the only token of an item. Diversity is that inside a set, as "
    "was intended, and not that of all instances of a batch; the published batches have 20 items.",
)
