"""DPSIH: several codes of an item, each the global one with another local residual; the nearest two count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from multibit.codes.items import Modality
from multibit.codes.layout import Layout
from multibit.config import EpochSettings
from multibit.features import Pairs
from multibit.hashing.code_model import CodeModel, TokenBatch
from multibit.hashing.layers import scale_rows, scale_tokens
from multibit.hashing.learner import Batch, Descent, LossLearner, seeded
from multibit.hashing.losses import kernel_discrepancy, mean_triplet_hinge, shared_labels
from multibit.hashing.methods.base import Method
from multibit.hashing.optimizers import bert_descent

CLIP = 2.0  # largest norm of the gradient of all weights together


@dataclass(frozen=True)
class DpsihSettings(EpochSettings):
    """The settings of DPSIH."""

    lengths: tuple[int, ...] = (16, 32, 64, 128)  # target code lengths, each with a model of its own
    dropout: float = 0.2  # fraction of values of the global branch dropped in training
    margin: float = 0.25  # of the cosine with a positive item over that with a negative one
    triplet_weight: float = 100.0
    discrepancy_weight: float = 0.01  # weight of the difference of the modalities' distributions, a sum
    diversity_weight: float = 0.01  # weight of the cosines of an item's residuals, a sum over items
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3
    seed: int = 42  # of initial weights, batches and dropout; the split has its own

    SHARES = ("dropout",)


class Residuals(nn.Module):
    """Tokens -> K residuals, each of another attention to the tokens.

    Attributes:
        attention: token -> score of each residual. output: attended token -> residual before the sigmoid.
    """

    def __init__(self, dimension: int, bits: int, views: int) -> None:
        super().__init__()
        hidden = max(dimension // 2, 1)
        self.attention = nn.Sequential(
            nn.Linear(dimension, hidden, bias=False), nn.Tanh(), nn.Linear(hidden, views, bias=False)
        )
        self.output = nn.Linear(dimension, bits)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, tokens: TokenBatch) -> Tensor:
        """(b, t, d) -> (b, K, B) r = sigmoid(output(A^T x)), A the softmax over the tokens that are not padding."""
        vectors = scale_tokens(tokens)  # (b, t, d)
        scores = self.attention(vectors).masked_fill(~tokens.mask[..., None], float("-inf"))  # (b, t, K)
        return torch.sigmoid(self.output(scores.softmax(dim=1).transpose(1, 2) @ vectors))


class Branches(nn.Module):
    """The layers of one modality: a global branch of the pooled vector, a local one of the tokens.

    Attributes:
        pooled: pooled vector -> bits. local: None without tokens. norm: of the codes.
    """

    def __init__(self, inputs: int, dimension: int | None, bits: int, views: int, dropout: float) -> None:
        super().__init__()
        self.pooled = nn.Sequential(nn.Linear(inputs, bits), nn.Dropout(dropout), nn.Tanh())
        self.local = None if dimension is None else Residuals(dimension, bits, views)
        self.norm = nn.LayerNorm(bits)

    def forward(self, features: Tensor, tokens: TokenBatch | None) -> tuple[Tensor, Tensor]:
        """(b, d_m), (b, t, d) -> (b, K, B) unit codes e, (b, K, B) residuals r, zeros without tokens."""
        whole = self.pooled(scale_rows(features))[:, None]  # (b, 1, B)
        residuals = torch.zeros_like(whole) if self.local is None or tokens is None else self.local(tokens)
        return functional.normalize(self.norm(whole + residuals), dim=2), residuals


class PolysemicCodes(CodeModel, network="dpsih"):
    """K codes e_k = normalize(norm(g + r_k)) of an item, side by side.

    Rows and tokens are scaled to the length sqrt(d), as by `scale_rows`. Without tokens, K is 1 and r is 0.

    Attributes:
        branches: modality -> its layers.

    Example:
        >>> model = PolysemicCodes(image_dim=20, text_dim=12, bits=8)
        >>> model.encode(torch.zeros(3, 12), "text").shape
        (3, 8)
    """

    def __init__(
        self,
        image_dim: int,
        text_dim: int,
        bits: int,
        tokens: Mapping[Modality, Sequence[int]] | None = None,
        views: int = 1,
        dropout: float = 0.2,
    ) -> None:
        super().__init__(
            Layout((bits,), views=views), image_dim=image_dim, text_dim=text_dim, bits=bits, tokens=tokens, views=views,
            dropout=dropout,
        )  # fmt: skip
        self.branches = nn.ModuleDict(
            {
                modality: Branches(size, tokens[modality][1] if tokens else None, bits, views, dropout)
                for modality, size in self.dimensions.items()
            }
        )

    @property
    def flops(self) -> int:
        """Floating-point operations to code one image and one text: of all matrices, with the most tokens."""
        products: int = (self.image_dim + self.text_dim) * self.bits
        for count, dimension in (self.sizes["tokens"] or {}).values():
            views, hidden = self.layout.views, max(dimension // 2, 1)
            products += (
                count * (dimension * hidden + hidden * views + views * dimension) + views * dimension * self.bits
            )
        return 2 * products

    def codes(self, features: Tensor, modality: Modality, tokens: TokenBatch | None = None) -> tuple[Tensor, Tensor]:
        """(n, d_m) features and (n, t, d) tokens -> (n, K, B) unit codes and (n, K, B) residuals."""
        return self.branches[modality](features, tokens if self.reads_tokens else None)  # type: ignore[no-any-return]

    def forward(self, features: Tensor, modality: Modality, tokens: TokenBatch | None = None) -> Tensor:
        """(n, d_m) features and (n, t, d) tokens -> (n, K B) codes in [-1, 1], one after the other."""
        return self.codes(features, modality, tokens)[0].flatten(1)


class Dpsih(LossLearner):
    """Triplets of the nearest codes, equal distributions of both modalities, and different residuals.

    Attributes:
        model: features and tokens -> codes. views: K, codes of an item.
    """

    parts: tuple[str, ...] = ("triplet", "discrepancy", "diversity", "total")
    needs_unrelated = True
    full_batches = True
    reads_tokens: ClassVar[bool] = True
    views: ClassVar[int] = 4
    model: PolysemicCodes

    def __init__(self, training: Pairs, settings: DpsihSettings) -> None:
        super().__init__(training, settings)
        self.settings = settings
        tokens = training.require_tokens() if self.reads_tokens else None
        inputs = training.image.shape[1], training.text.shape[1], settings.code_bits, tokens
        with seeded(settings.seed):
            self.model = PolysemicCodes(*inputs, self.views, settings.dropout)

    def optimizers(self, steps: int) -> list[Descent]:
        """BertAdam for all weights, with a limit on the gradient of all together."""
        return [bert_descent(self.parameters(), self.settings.learning_rate, steps, clip=CLIP)]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """L = 100 L_msc + 0.01 L_dc + 0.01 L_ed, with the weights of the settings; one code has L_msc alone."""
        settings = self.settings
        image, image_residuals = self.model.codes(batch.image, "image", batch.image_tokens)  # (b, K, B)
        text, text_residuals = self.model.codes(batch.text, "text", batch.text_tokens)
        losses = {"triplet": settings.triplet_weight * self.triplet_loss(image, text, batch.labels)}
        if self.views > 1:
            everything = len(batch.labels) * self.views
            total = everything**2 * kernel_discrepancy(image.flatten(0, 1), text.flatten(0, 1))
            losses["discrepancy"] = settings.discrepancy_weight * total
            repeated = repetition(image_residuals) + repetition(text_residuals)
            losses["diversity"] = settings.diversity_weight * repeated
        return losses

    def triplet_loss(self, image: Tensor, text: Tensor, labels: Tensor) -> Tensor:
        """L_msc = T(i, i) + T(t, t) + T(i, t); no item is its own positive, not even in the other modality.

        Args:
            image, text: (b, K, B) unit codes. labels: (b, C) multi-hot.
        """
        related = shared_labels(labels)  # (b, b)
        others, far = related.clone().fill_diagonal_(0), related == 0
        losses = [
            mean_triplet_hinge(-nearest_cosines(first, second), others, far, self.settings.margin)
            for first, second in ((image, image), (text, text), (image, text))
        ]
        return torch.stack(losses).sum()


class DpsihSingle(Dpsih):
    """DPSIH with one code of an item; distribution and diversity of the codes are then left out."""

    parts = ("triplet", "total")
    views = 1


class DpsihPooled(DpsihSingle):
    """DPSIH with one code that is made of the pooled vector."""

    reads_tokens = False


def nearest_cosines(first: Tensor, second: Tensor) -> Tensor:
    """(n, m) s(a, b) = max_kl <e_k, e_l>, of (n, K, B) and (m, K, B) unit codes.

    Example:
        >>> codes = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
        >>> nearest_cosines(codes, -codes)
        tensor([[0.]])
    """
    views = first.shape[1]
    cosines = first.flatten(0, 1) @ second.flatten(0, 1).T  # (n K, m K)
    return cosines.view(len(first), views, len(second), views).amax(dim=(1, 3))


def repetition(residuals: Tensor) -> Tensor:
    """L_ed: sum over items of |G - diag G| / K^2, G the (K, K) cosines of an item's residuals.

    Args:
        residuals: (b, K, B), none of them 0.

    Example:
        >>> round(float(repetition(torch.ones(3, 2, 5))), 4)  # 3 sqrt(2) / 4
        1.0607
    """
    units = functional.normalize(residuals, dim=2)
    views = residuals.shape[1]
    others = ~torch.eye(views, dtype=torch.bool, device=residuals.device)
    cosines = (units @ units.transpose(1, 2))[:, others]  # (b, K (K - 1))
    norms: Tensor = torch.linalg.vector_norm(cosines, dim=1)  # (b,)
    return norms.sum() / views**2


DPSIH = Method(
    "dpsih",
    "DPSIH",
    "four codes of an item, the global one with different local residuals; the nearest two count",
    defaults=DpsihSettings(),
    learner=Dpsih,
    lengths="one",
    inputs="tokens",
    views=4,
    tables=("tokens",),
    venue="AAAI 2026",
    source="QinLab-WFU/DPSIH @ 1b713c6",
    differs="CLIP is frozen. Padding takes no part in the attention; in the published code it does. An item has four "
    "codes of the stated length, which take four times the memory.",
)
DPSIH_SINGLE = replace(
    DPSIH,
    name="dpsih-single",
    variant_of="dpsih",
    title="DPSIH (one code)",
    meaning="DPSIH with one code of an item: the global one with a local residual",
    learner=DpsihSingle,
    views=1,
    differs="CLIP is frozen. Padding takes no part in the attention; in the published code it does. An item has one "
    "code instead of four, as by the option num_embeds of the published code.",
)
DPSIH_POOLED = replace(
    DPSIH_SINGLE,
    name="dpsih-pooled",
    variant_of="dpsih",
    title="DPSIH (pooled)",
    meaning="DPSIH with one code of an item, made of the pooled vector alone",
    learner=DpsihPooled,
    inputs="pooled",
    tables=("pooled",),
    differs="CLIP is frozen. An item has one code instead of four, without the local residual of its tokens.",
)
